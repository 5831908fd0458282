# -*- test-case-name: tests.storage.test_identity -*-
"""Whose files these are, and whether a loss of power may have taken acknowledged entries."""

from __future__ import annotations

from typing import Any

import attrs
from twisted.trial.unittest import SynchronousTestCase

from dledger.base.disk.disk import read_boot_id
from dledger.base.disk.two_slots import SLOT_SIZE
from dledger.storage.start.identity import Identity, IdentityFile, listed_members, read_identity
from dledger.storage.store.file_store import FileStore
from dledger.values.errors import DirectoryError, StoreError
from dledger.values.ledger.config import GROUP_BYTES_MAX, ID_BYTES_MAX, DLedgerConfig
from dledger.values.ledger.group_name import GroupName
from dledger.values.ledger.lineage import Lineage, Standing
from tests.storage.support import NO_SPACE, ROOT, HookedDisk, config_of

PATH = f"{ROOT}/identity"


class IdentityCase(SynchronousTestCase):
    """A directory on a disk."""

    def setUp(self) -> None:
        self.disk = HookedDisk()

    def start(self, boot: str = "boot 1", **options: Any) -> FileStore:
        """A process opens the directory."""
        self.disk.locked.clear()
        return FileStore.open(config_of(**{"bootstrap": True, **options}), self.disk, boot_id=boot)

    def recorded(self) -> Identity:
        """The content of the file."""
        found = read_identity(self.disk, PATH)
        assert found is not None
        return found[1]


class RoomTests(IdentityCase):
    """No room to write the record in place."""

    def test_a_record_waits_for_room(self) -> None:
        """What may be forgotten in a crash is written when there is room; what may not ends the store."""
        store = self.start()
        self.disk.failures = {("pwrite", "identity"): NO_SPACE}
        store.identity.record_group(GroupName("g1", 3, is_known=True))
        store.check_point()
        self.assertEqual(store.identity.group_name.id, "g1")
        self.assertEqual(self.recorded().group_id, "")
        self.disk.failures = {}
        store.check_point()
        self.assertEqual(self.recorded().group_id, "g1")
        self.disk.failures = {("pwrite", "identity"): NO_SPACE}
        self.assertRaises(StoreError, store.identity.doubt, 5)


class OwnerTests(IdentityCase):
    """Another group's or another member's files are refused."""

    def test_the_owner_is_recorded_at_start(self) -> None:
        """At the first start, durably."""
        self.start(group="g").clean_close()
        self.assertEqual(self.recorded(), Identity(
            group="g", member_id="n0", boot_id="boot 1", members="n0", was_async=1,
        ))

    def test_another_group_is_refused(self) -> None:
        """Nothing is changed, and the way out works."""
        self.start(group="g").clean_close()
        before = self.disk.contents()
        with self.assertRaises(DirectoryError) as caught:
            self.start(group="h")
        self.assertIn("--group g", str(caught.exception))
        self.assertEqual(self.disk.contents(), before)
        self.start(group="g").clean_close()
        self.disk.unlink(PATH)
        self.start(group="h").clean_close()
        self.assertEqual(self.recorded().group, "h")

    def test_another_member_is_refused(self) -> None:
        """A directory that was renamed."""
        self.start().clean_close()
        for path in list(self.disk.files):
            self.disk.files[path.replace("dledger-n0", "dledger-n1")] = self.disk.files[path]
        self.disk.directories |= {path.replace("dledger-n0", "dledger-n1") for path in self.disk.directories}
        peers = "n0-h:1;n1-h:2"
        with self.assertRaises(DirectoryError) as caught:
            self.start(self_id="n1", peers=peers)
        self.assertIn("--node-id n0", str(caught.exception))

    def test_a_java_directory_is_adopted(self) -> None:
        """A directory without the file, as of Java; also on a full disk."""
        self.start().clean_close()
        self.disk.unlink(PATH)
        self.disk.failures = {("write_file", "identity"): NO_SPACE}
        store = self.start("boot 2")
        self.assertFalse(store.identity.is_unsure)
        store.identity.end_unsure()
        store.clean_close()
        self.assertFalse(self.disk.exists(PATH))
        self.disk.failures = {}
        self.start("boot 2").clean_close()
        self.assertTrue(self.disk.exists(PATH))

    def test_lost_terms_stop_the_start(self) -> None:
        """Term and vote were recorded once: also an empty ledger does not start without them."""
        store = self.start()
        self.assertFalse(store.identity.has_terms)
        store.identity.note_terms()
        store.clean_close()
        self.assertTrue(self.start().identity.has_terms)

    def test_one_sound_slot_is_enough(self) -> None:
        """One slot is enough; with none the member does not start."""
        self.start().clean_close()
        self.disk.files[PATH].data[20] ^= 1
        self.start().clean_close()
        self.disk.files[PATH].data[20] ^= 1
        self.disk.files[PATH].data[SLOT_SIZE + 20] ^= 1
        with self.assertRaises(DirectoryError) as caught:
            self.start()
        self.assertIn("adopted", str(caught.exception))

    def test_a_later_program_wrote_it(self) -> None:
        """Its number is in both slots, which no single damage does: the error says what to do."""
        self.start().clean_close()
        self.disk.files[PATH].data[7] = 2
        self.start().clean_close()
        self.disk.files[PATH].data[7] = self.disk.files[PATH].data[SLOT_SIZE + 7] = 2
        with self.assertRaises(DirectoryError) as caught:
            self.start()
        self.assertIn("version 2, this program reads 1: a later program wrote it", str(caught.exception))

    def test_longest_names_fit(self) -> None:
        """The options refuse longer ones."""
        name = "x" * ID_BYTES_MAX
        config = config_of(group="g" * GROUP_BYTES_MAX, self_id=name, peers=f"{name}-h:1;{name[1:]}y-h:2")
        longest = Identity(group=config.group, member_id=name, boot_id="b" * 36, group_id="i" * 32,
                           members=listed_members(config))
        IdentityFile.create(self.disk, "x", longest).close()
        store = FileStore.open(attrs.evolve(config, bootstrap=True), self.disk)
        store.identity.begin_run(7, 11)
        self.assertEqual(store.identity.lineage.incarnation, 7)  # type: ignore[union-attr]
        self.assertRaises(ValueError, DLedgerConfig, group="g" * (GROUP_BYTES_MAX + 1))
        self.assertRaises(ValueError, DLedgerConfig, self_id=name + "x", peers=f"{name}x-h:1")


class NewTests(IdentityCase):
    """A directory without a ledger: its member cannot know whether its disk was lost."""

    three = "n0-h:1;n1-h:2;n2-h:3"

    def test_a_new_member_is_unsure(self) -> None:
        """Its vote counts only with those of all, until it holds all that a leader has, over restarts."""
        store = self.start(bootstrap=False, peers=self.three)
        self.assertTrue(store.identity.is_unsure)
        store.identity.note_terms()
        again = self.start(bootstrap=False, peers=self.three).identity
        self.assertTrue(again.is_unsure and again.forgot_terms)
        store = self.start(bootstrap=False, peers=self.three, flush_disk_type="sync")
        self.assertTrue(store.identity.is_unsure)
        store.identity.end_unsure()
        store.clean_close()
        self.assertFalse(self.start(bootstrap=False, peers=self.three).identity.is_unsure)

    def test_a_failed_start_leaves_it_unsure(self) -> None:
        """A start that fails at any of its calls leaves a directory whose member is unsure."""
        for count in range(200):
            self.disk = HookedDisk()
            self.disk.fails_at = count
            try:
                self.start(bootstrap=False, peers=self.three)
            except (StoreError, DirectoryError):
                self.disk.fails_at = -1
                self.assertTrue(self.start(bootstrap=False, peers=self.three).identity.is_unsure, count)
            else:
                self.assertGreater(count, 5)
                return
        self.fail("the start never ends")

    def test_a_full_disk_is_no_start(self) -> None:
        """A new directory on a full disk is no start: it would be adopted as sure later."""
        self.disk.failures = {("write_file", "identity"): NO_SPACE}
        self.assertRaises(StoreError, self.start, bootstrap=False)

    def test_an_operator_makes_it_sure(self) -> None:
        """At the first start, or at a later one of a ledger that is still empty; not for one with entries."""
        self.assertFalse(self.start(peers=self.three).identity.is_unsure)
        self.disk = HookedDisk()
        self.start(bootstrap=False, peers=self.three)
        self.assertFalse(self.start(peers=self.three).identity.is_unsure)
        self.disk = HookedDisk()
        self.start(bootstrap=False, peers=self.three).append_bodies((b"a",), 1)
        self.assertTrue(self.start(peers=self.three).identity.is_unsure)

    def test_with_a_ledger(self) -> None:
        """Files of Java are adopted, in whatever state they are."""
        for name, content in (
            ("currterm", b"voteLeader=n0\ncurrTerm=1\n"), ("checkpoint", b"committedIndex=-1\nendIndex=-1\n"),
        ):
            self.disk = HookedDisk()
            self.disk.makedirs(ROOT)
            self.disk.write_file(f"{ROOT}/{name}", content)
            self.assertFalse(self.start(bootstrap=False, peers=self.three).identity.is_unsure, name)


class MembersTests(IdentityCase):
    """The members of the group are recorded."""

    three = "n0-h:1;n1-h:2;n2-h:3"

    def test_other_members_are_refused(self) -> None:
        """A forgotten or another --peers is refused and changes nothing; addresses may change."""
        self.start(peers=self.three).clean_close()
        before = self.disk.contents()
        for peers in ("n0-h:1", "n0-h:1;n1-h:2", "n0-h:1;n1-h:2;n3-h:3", f"{self.three};n3-h:4;n4-h:5"):
            with self.assertRaises(DirectoryError) as caught:
                self.start(peers=peers)
            self.assertIn("a group of the members n0, n1, n2, but --peers names n0", str(caught.exception))
            self.assertIn("accept_new_members", str(caught.exception))
        self.assertEqual(self.disk.contents(), before)
        self.start(peers="n2-h:7;n1-h:8;n0-h:9").clean_close()

    def test_an_operator_changes_the_record(self) -> None:
        """An operator's word changes the record, once."""
        self.start(peers=self.three).clean_close()
        self.start(peers="n0-h:1;n9-h:2", accept_new_members=True).clean_close()
        self.start(peers="n0-h:1;n9-h:2").clean_close()
        self.assertRaises(DirectoryError, self.start, peers=self.three)

    def test_many_members_are_a_digest(self) -> None:
        """More ids than the record has room for are recorded as a digest, with the same effect."""
        peers = ";".join(f"{chr(97 + number) * 60}-h:{number + 1}" for number in range(9))
        own = {"self_id": "a" * 60}
        self.start(peers=peers, **own).clean_close()
        self.start(peers=peers, **own).clean_close()
        error = self.assertRaises(DirectoryError, self.start, peers=f"{peers};z-h:99", **own)
        self.assertIn("does not name exactly", str(error))


class UnsureTests(IdentityCase):
    """After a loss of power with async flushing."""

    def test_another_boot_makes_it_unsure(self) -> None:
        """Not closed in order, and another boot: unsure, until an operator says otherwise."""
        store = self.start()
        store.append_bodies((b"a",), 1)
        self.assertFalse(store.identity.is_unsure)
        self.assertFalse(self.start().identity.is_unsure, "a kill loses nothing")
        self.assertTrue(self.start("boot 2").identity.is_unsure)
        store = self.start("boot 2")
        self.assertTrue(store.identity.is_unsure, "it is not forgotten")
        store.clean_close()
        store = self.start("boot 3", flush_disk_type="sync")
        self.assertTrue(store.identity.is_unsure)
        store.identity.end_unsure()
        self.assertFalse(store.identity.is_unsure)
        self.assertFalse(self.start("boot 4").identity.is_unsure, "the last process was sync")

    def test_closed_in_order(self) -> None:
        """Everything was flushed."""
        self.start().clean_close()
        self.assertFalse(self.start("boot 2").identity.is_unsure)

    def test_a_syncing_member_stays_sure(self) -> None:
        """Everything that was acknowledged was flushed."""
        self.start(flush_disk_type="sync")
        self.assertFalse(self.start("boot 2").identity.is_unsure)

    def test_unknown_boots_prove_nothing(self) -> None:
        """A system that does not name its boots."""
        self.start("")
        self.assertFalse(self.start("boot 2").identity.is_unsure)
        self.assertFalse(self.start("").identity.is_unsure)

    def test_an_operator_makes_it_sure(self) -> None:
        """No other member has more."""
        self.start()
        self.assertFalse(self.start("boot 2", accept_unclean_start=True).identity.is_unsure)
        self.assertFalse(self.start("boot 2").identity.is_unsure)

    def test_this_boot_is_known(self) -> None:
        """Linux names it."""
        self.assertEqual(read_boot_id(), read_boot_id())


class LineageTests(IdentityCase):
    """A directory counts its starts, and may be doubted."""

    def run_once(self, incarnation: int = 7, **options: Any) -> FileStore:
        """A process opens the directory, and counts that."""
        store = self.start(**options)
        store.identity.begin_run(incarnation, 11)
        return store

    def reported(self, store: FileStore) -> tuple[int, int, str]:
        """Of the directory."""
        lineage = store.identity.lineage
        assert lineage is not None
        return lineage.incarnation, lineage.starts, lineage.standing

    def test_each_start_is_counted(self) -> None:
        """The incarnation is made once; a start counts before anybody is informed."""
        store = self.start()
        self.assertIsNone(store.identity.lineage)
        store.identity.begin_run(7, 11)
        self.assertEqual(store.identity.lineage, Lineage(
            incarnation=7, starts=1, run=11, standing=Standing.TRUSTED))
        self.assertEqual(self.reported(self.run_once(8)), (7, 2, "trusted"))
        self.assertEqual((self.recorded().incarnation, self.recorded().starts), (7, 2))

    def test_a_proven_member_stays_proven(self) -> None:
        """A member that was joining is proven when it ends, and stays so."""
        three = "n0-h:1;n1-h:2;n2-h:3"
        store = self.run_once(bootstrap=False, peers=three)
        self.assertEqual(self.reported(store), (7, 1, "joining"))
        store.identity.end_unsure()
        self.assertEqual(self.reported(store), (7, 1, "proven"))
        self.assertEqual(self.reported(self.run_once(bootstrap=False, peers=three)), (7, 2, "proven"))

    def test_a_doubted_member_becomes_sure_again(self) -> None:
        """An option that stays in a file does not end it; what a leader says does, or an operator's word."""
        for incarnation, reported in ((-1, 7), (9, 9)):
            self.disk = HookedDisk()
            self.run_once().identity.doubt(incarnation)
            store = self.run_once(bootstrap=True)
            self.assertEqual((self.reported(store)[0], self.reported(store)[2]), (reported, "joining"))
            self.assertTrue(store.identity.forgot_terms)
            word = self.run_once(accept_unclean_start=True)
            self.assertEqual((self.reported(word)[0], self.reported(word)[2]), (reported, "proven"))

    def test_doubted_while_it_runs(self) -> None:
        """From the moment on."""
        store = self.run_once()
        store.identity.end_unsure()
        store.identity.doubt(9)
        self.assertEqual((self.reported(store), store.identity.is_unsure), ((9, 1, "joining"), True))

    def test_adopted_without_room(self) -> None:
        """Nothing is reported that is not recorded."""
        self.start().clean_close()
        self.disk.unlink(PATH)
        self.disk.failures = {("write_file", "identity"): NO_SPACE}
        self.assertIsNone(self.run_once().identity.lineage)
