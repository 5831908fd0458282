# -*- test-case-name: tests.storage.test_configurations -*-
"""The list of members beside a ledger."""

from __future__ import annotations

import errno
import random

import attrs
from twisted.trial.unittest import SynchronousTestCase

from dledger.storage.backups.group_setup import force_new_group
from dledger.storage.files.records import pack_bodies
from dledger.storage.start.configurations import (
    COPY_SUFFIX,
    MEMBERS_NAME,
    encode_memberships,
    read_memberships,
)
from dledger.storage.start.identity import IDENTITY_NAME
from dledger.storage.store.file_store import FileStore
from dledger.testing.world.disk import SimDisk
from dledger.testing.world.memory_disk import MemoryDisk
from dledger.values.errors import DirectoryError, DLedgerError, StoreError
from dledger.values.ledger.config import DLedgerConfig
from dledger.values.ledger.group_name import GroupName
from dledger.values.ledger.membership import Membership
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.entry import ENTRY_HEADER
from protocols.wire.ledger.own.configuration import encode_configuration
from protocols.wire.ledger.own.own_entries import CONFIGURATION_CHANNEL
from tests.storage.support import HookedDisk

FOUR = Membership(voters={"n0": "h:1", "n1": "h:2", "n2": "h:3"}, learners={"n3": "h:4"})
TWO = Membership(voters={"n0": "h:1", "n1": "h:2"})


def config_of(self_id: str = "n0", **options: object) -> DLedgerConfig:
    """Small files."""
    return DLedgerConfig(
        self_id=self_id, peers="n0-h:1;n1-h:2;n2-h:3", store_base_dir="/s",
        mapped_file_size_for_entry_data=4096, mapped_file_size_for_entry_index=3200,
        **options,  # type: ignore[arg-type]
    )


def configuration_batch(body: bytes) -> EntryBatch:
    """The entry 0, a configuration entry with this body, as a leader sends it."""
    layout = pack_bodies((body,), first_index=0, term=1, end_position=0, previous_chain_crc=0, file_size=4096,
                         channels=(CONFIGURATION_CHANNEL,))
    return EntryBatch(first_index=0, count=1, term=1, records=layout.records)


class ListCase(SynchronousTestCase):
    """A store on a disk in memory."""

    def setUp(self) -> None:
        self.disk = MemoryDisk()
        self.config = config_of()
        self.path = f"{self.config.self_path}/{MEMBERS_NAME}"
        self.store = FileStore.open(self.config, self.disk)

    def reopen(self) -> FileStore:
        """As after a clean stop."""
        self.store.clean_close()
        self.store = FileStore.open(self.config, self.disk)
        return self.store

    def voters(self) -> str:
        """In force now."""
        now = self.store.membership
        return "start" if now is None else " ".join(sorted(now.voters))


class EntryTests(ListCase):
    """Configuration entries are entries."""

    def test_an_unchanged_group_has_no_file(self) -> None:
        """Without a change there is no file."""
        self.store.append_bodies((b"a",), 1)
        self.assertEqual((self.voters(), self.disk.exists(self.path)), ("start", False))

    def test_in_force_when_written(self) -> None:
        """And after a restart. The record is one of Java's form, with a channel of its own."""
        self.store.append_bodies((b"a",), 1)
        self.store.append_configuration(FOUR, 2)
        self.assertEqual(self.voters(), "n0 n1 n2")
        self.assertEqual((self.reopen().memberships[0].index, self.store.memberships[0].term), (1, 2))
        record = self.store.read_range(1, end_index=1, max_bytes=1).records
        header = ENTRY_HEADER.unpack_from(record)
        self.assertEqual((header[0], header[5]), (1, CONFIGURATION_CHANNEL))
        self.assertTrue(record[ENTRY_HEADER.size :].startswith(b"DLCF"))

    def test_no_body_of_a_client_is_one(self) -> None:
        """Even the same bytes."""
        self.store.append_configuration(FOUR, 1)
        body = self.store.read_range(0, end_index=0, max_bytes=1).records[ENTRY_HEADER.size :]
        self.store.truncate_to(self.store.read_range(0, end_index=0, max_bytes=1))
        self.store.append_bodies((body, body), 1)
        self.assertEqual([one.index for one in self.store.memberships], [0])

    def test_pushed_configurations_are_listed(self) -> None:
        """In a batch with other entries, many of one size included."""
        source = FileStore.open(config_of("n1"), self.disk)
        bodies = tuple(b"%016d" % number for number in range(100))
        source.append_bodies(bodies, 1)
        source.append_configuration(FOUR, 1)
        source.append_bodies(bodies, 1)
        at = 0
        while at <= source.ledger_end_index:
            batch = source.read_batch(at, max_count=1000, max_bytes=1 << 20)
            self.store.append_entries(batch)
            at = batch.last_index + 1
        self.assertEqual((self.voters(), self.store.memberships[0].index), ("n0 n1 n2", 100))

    def test_an_unreadable_configuration_is_refused(self) -> None:
        """A configuration entry of a later version is refused, and nothing has changed."""
        source = FileStore.open(config_of("n1"), self.disk)
        source.append_configuration(FOUR, 1)
        body = bytearray(source.read_range(0, end_index=0, max_bytes=1).records[ENTRY_HEADER.size :])
        body[7] = 2
        batch = configuration_batch(bytes(body))
        error = self.assertRaises(DLedgerError, self.store.append_entries, batch)
        self.assertIs(error.code, ResponseCode.INCONSISTENT_STATE)
        self.assertIn("upgrade this member", str(error))
        self.assertEqual((self.store.ledger_end_index, self.voters()), (-1, "start"))

    def test_a_configuration_needs_addresses(self) -> None:
        """An entry that names a place to which nobody could connect is refused, and nothing has changed."""
        body = encode_configuration({"n0": "h:1", "n1": "junk"}, {})
        batch = configuration_batch(body)
        error = self.assertRaises(DLedgerError, self.store.append_entries, batch)
        self.assertIn("'junk' is not an address", str(error))
        self.assertEqual((self.store.ledger_end_index, self.voters()), (-1, "start"))

    def test_a_full_disk_lists_nothing(self) -> None:
        """
        A change that the disk has no room for is neither in the ledger nor listed: the entry that comes to
        its place, of the same term, is not a change.
        """
        self.store.append_bodies((b"x" * 3950,), 1)

        def full(path: str, *, create: bool = False, **_: object) -> None:
            raise OSError(errno.ENOSPC, "no room", path)

        patched = self.patch(self.disk, "open", full)
        error = self.assertRaises(DLedgerError, self.store.append_configuration, FOUR, 1)
        self.assertIs(error.code, ResponseCode.DISK_FULL)
        patched.restore()
        self.assertEqual((self.voters(), self.disk.exists(self.path)), ("start", False))
        self.store.maintenance(0.0, 0, keep_from_index=0)
        self.store.append_bodies((b"a",), 1)
        self.reopen()
        self.assertEqual((self.voters(), self.store.ledger_end_index), ("start", 1))

    def test_durable_with_async(self) -> None:
        """
        Also without sync flushing: a member that lost it would ask the voters before it for their votes, of
        whom none may have it if there were one or two.
        """
        for is_leader in (True, False):
            disk = SimDisk(random.Random(3))
            disk.makedirs("/s")
            config = config_of(flush_disk_type="async")
            store = FileStore.open(config, disk)
            if is_leader:
                store.append_configuration(FOUR, 1)
            else:
                source = FileStore.open(config_of("n1"), self.disk)
                source.append_configuration(FOUR, 1)
                store.append_entries(source.read_range(0, end_index=0, max_bytes=1))
            disk.lose_power()
            store = FileStore.open(config, disk)
            assert store.membership is not None, is_leader
            self.assertEqual((store.membership.index, store.ledger_end_index), (0, 0))

    def test_a_long_configuration_is_refused(self) -> None:
        """For a data file: refused, and nothing has changed."""
        many = Membership(voters={f"n{number}": "h" * 100 + ":1" for number in range(60)})
        error = self.assertRaises(DLedgerError, self.store.append_configuration, many, 1)
        self.assertIn("too many members", str(error))
        self.assertEqual((self.store.ledger_end_index, self.voters()), (-1, "start"))


class CutTests(ListCase):
    """What is cut is undone."""

    def setUp(self) -> None:
        super().setUp()
        self.store.append_bodies((b"a",), 1)
        self.store.append_configuration(FOUR, 1)
        self.store.append_configuration(TWO, 2)

    def test_a_cut_undoes_configurations(self) -> None:
        """One after the other, down to the start list; also on the disk."""
        self.assertEqual(self.voters(), "n0 n1")
        self.store.truncate_to(self.store.read_range(1, end_index=1, max_bytes=1))
        self.assertEqual(self.voters(), "n0 n1 n2")
        self.assertEqual([one.index for one in read_memberships(self.disk, self.path)], [1])
        self.store.truncate_to(self.store.read_range(0, end_index=0, max_bytes=1))
        self.assertEqual((self.voters(), self.disk.exists(self.path)), ("start", False))
        self.assertFalse(self.disk.exists(self.path + COPY_SUFFIX))

    def test_a_replaced_configuration_counts(self) -> None:
        """By another leader's entry at the same index."""
        source = FileStore.open(config_of("n1"), self.disk)
        source.append_bodies((b"a",), 1)
        source.append_configuration(TWO, 3)
        self.store.truncate_to(source.read_range(1, end_index=1, max_bytes=1))
        self.assertEqual([(one.index, one.term) for one in self.store.memberships], [(1, 3)])

    def test_just_behind_the_end(self) -> None:
        """
        The first entry that a leader still has may name the members, and be the next one here: it is followed
        as any other, also by the next process.
        """
        source = FileStore.open(config_of("n1"), self.disk)
        source.append_bodies((b"a",), 1)
        source.append_configuration(FOUR, 1)
        self.store.truncate_to(self.store.read_range(0, end_index=0, max_bytes=1))
        self.assertEqual(self.voters(), "start")
        self.store.truncate_to(source.read_range(1, end_index=1, max_bytes=1))
        self.assertEqual([one.index for one in self.store.memberships], [1])
        self.assertEqual([one.index for one in self.reopen().memberships], [1])

    def test_listed_and_not_in_the_ledger(self) -> None:
        """A crash came in between: the next start drops it."""
        self.store.clean_close()
        known = read_memberships(self.disk, self.path)
        more = Membership(voters=TWO.voters, index=3, term=2)
        other = Membership(voters=TWO.voters, index=2, term=9)
        for wrong in ((*known, more), (*known[:1], other)):
            self.disk.write_file(self.path, encode_memberships(wrong))
            self.store = FileStore.open(self.config, self.disk)
            self.assertEqual([one.index for one in self.store.memberships],
                             [one.index for one in wrong if one in known])
            self.store.clean_close()


class LostTests(SynchronousTestCase):
    """The list of members alone is lost, while the ledger has a configuration entry."""

    def setUp(self) -> None:
        self.disk = HookedDisk()
        self.path = f"{config_of().self_path}/{MEMBERS_NAME}"
        store = FileStore.open(config_of(), self.disk)
        store.append_bodies((b"a",), 1)
        store.append_configuration(FOUR, 1)
        store.clean_close()

    def lose(self) -> None:
        """The list, and its copy."""
        for path in (self.path, self.path + COPY_SUFFIX):
            self.disk.unlink(path)

    def test_one_of_two_is_enough(self) -> None:
        """The start goes by the other one, and writes the lost one again."""
        for path in (self.path, self.path + COPY_SUFFIX):
            content = self.disk.read_file(path)
            self.disk.unlink(path)
            store = FileStore.open(config_of(), self.disk)
            self.assertEqual([one.index for one in store.memberships], [1])
            store.clean_close()
            self.assertEqual(self.disk.read_file(path), content)

    def test_a_lost_list_stops_the_start(self) -> None:
        """The start says so and changes nothing, whatever the options; the file put back is the way out."""
        saved = self.disk.read_file(self.path)
        self.lose()
        before = self.disk.contents()
        for options in ({}, {"join": True}, {"bootstrap": True}):
            error = self.assertRaises(DirectoryError, FileStore.open, config_of(**options), self.disk)
            self.assertIn("members is missing", str(error))
        self.assertEqual(self.disk.contents(), before)
        self.disk.write_file(self.path, saved)
        store = FileStore.open(config_of(), self.disk)
        self.assertEqual([one.index for one in store.memberships], [1])

    def test_of_a_member_that_joins(self) -> None:
        """Also before it has any entry: else it would be a voter of --peers."""
        FileStore.open(config_of("n2", join=True), self.disk).clean_close()
        self.path = f"{config_of('n2').self_path}/{MEMBERS_NAME}"
        self.lose()
        self.assertRaises(DirectoryError, FileStore.open, config_of("n2"), self.disk)

    def test_a_survivor_goes_on_by_force(self) -> None:
        """The last survivor goes on: its log reports the new members, and the mark of the old ones stays."""
        self.lose()
        alone = attrs.evolve(config_of(), peers={"n0": "h:1"})
        force_new_group(alone, self.disk, GroupName("a" * 32, 1, True))
        store = FileStore.open(alone, self.disk)
        self.assertEqual([(one.index, sorted(one.voters)) for one in store.memberships], [(2, ["n0"])])

    def test_directory_of_an_earlier_start(self) -> None:
        """A directory whose identity does not say so yet, as after a power cut, says so after a start."""
        identity = f"{config_of().self_path}/{IDENTITY_NAME}"
        self.disk.unlink(identity)
        FileStore.open(config_of(), self.disk).clean_close()
        self.lose()
        self.assertRaises(DirectoryError, FileStore.open, config_of(), self.disk)

    def test_a_crash_leaves_a_sound_list(self) -> None:
        """
        A first change is written, and taken back: a process that ends at any call leaves a directory that
        starts, and goes by the change or by the start list; by --peers only if these are the start list.
        """
        seen = set()
        for count in range(400):
            disk = HookedDisk()
            store = FileStore.open(config_of(), disk)
            store.append_bodies((b"a",), 1)
            kept = store.read_range(0, end_index=0, max_bytes=1)
            disk.fails_at = len(disk.calls) + count
            try:
                store.append_configuration(FOUR, 1)
                store.truncate_to(kept)
            except StoreError:
                is_done = False
            else:
                is_done = True
            disk.fails_at = -1
            disk.locked.clear()
            other = attrs.evolve(config_of(), peers={"n0": "h:1", "n9": "h:9"})
            try:
                store = FileStore.open(other, disk)
            except (DirectoryError, StoreError) as error:
                self.assertIn("n0, n1, n2", str(error))
                disk.locked.clear()
                store = FileStore.open(config_of(), disk)
                self.assertEqual(store.memberships, ())
            else:
                self.assertEqual([one.index for one in store.memberships], [1])
            seen.add(bool(store.memberships))
            self.assertEqual(store.identity.is_listed, bool(store.memberships))
            self.assertEqual(disk.exists(self.path), bool(store.memberships))
            if is_done:
                self.assertEqual(seen, {True, False})
                return
        self.fail("it never ends")

    def test_taken_back_with_other_peers(self) -> None:
        """A process that was started with another --peers stops: the start list counts again."""
        other = attrs.evolve(config_of(), peers={"n0": "h:1", "n9": "h:9"})
        store = FileStore.open(other, self.disk)
        kept = store.read_range(0, end_index=0, max_bytes=1)
        error = self.assertRaises(StoreError, store.truncate_to, kept)
        self.assertIn("again n0, n1, n2", str(error))


class BeginTests(ListCase):
    """A ledger that begins after configuration entries takes the leader's word for them."""

    def test_the_leader_gives_the_configuration(self) -> None:
        """The last configuration before the begin of the log applies."""
        source = FileStore.open(config_of("n1"), self.disk)
        source.append_bodies(tuple(b"x" * 900 for _ in range(9)), 1)
        first = next(at for at in range(9) if source.position_of(at) == 4096)
        reported = tuple(
            Membership(voters=one.voters, index=at, term=1) for one, at in ((FOUR, 0), (TWO, 8))
        )
        self.store.truncate_to(source.read_range(first, end_index=first, max_bytes=1), reported=reported)
        self.assertEqual([one.index for one in self.store.memberships], [0])
        self.assertEqual([one.index for one in self.reopen().memberships], [0])


class JoinTests(SynchronousTestCase):
    """A member that joins counts nobody."""

    def test_a_new_directory_counts_nobody(self) -> None:
        """It stays so until the log says otherwise, whatever the options say later."""
        disk = MemoryDisk()
        store = FileStore.open(config_of(join=True), disk)
        assert store.membership is not None
        self.assertEqual((store.membership.voters, store.membership.index), ({}, -1))
        store.clean_close()
        store = FileStore.open(config_of(), disk)
        assert store.membership is not None
        self.assertEqual(store.membership.voters, {})
        store.append_configuration(FOUR, 1)
        self.assertEqual(len(store.membership.voters), 3)

    def test_directory_of_a_member(self) -> None:
        """Is refused."""
        disk = MemoryDisk()
        store = FileStore.open(config_of(), disk)
        store.append_bodies((b"a",), 1)
        store.clean_close()
        error = self.assertRaises(DirectoryError, FileStore.open, config_of(join=True), disk)
        self.assertIn("join=true", str(error))

    def test_the_log_overrides_the_peers(self) -> None:
        """Once the log names the members, --peers only says where some are."""
        disk = MemoryDisk()
        store = FileStore.open(config_of(), disk)
        store.append_configuration(FOUR, 1)
        store.clean_close()
        config = DLedgerConfig(peers="n0-h:1;n9-h:9", store_base_dir="/s",
                               mapped_file_size_for_entry_data=4096, mapped_file_size_for_entry_index=3200)
        store = FileStore.open(config, disk)
        assert store.membership is not None
        self.assertEqual(sorted(store.membership.addresses), ["n0", "n1", "n2", "n3"])

class DamageTests(ListCase):
    """The list is there twice."""

    def setUp(self) -> None:
        """A list of one entry, in both files."""
        super().setUp()
        self.store.append_configuration(FOUR, 1)
        self.store.clean_close()
        self.copy = self.path + COPY_SUFFIX
        self.data = self.disk.read_file(self.path)

    def test_two_damaged_lists_stop_the_start(self) -> None:
        """Refuses the start, and says why."""
        data = self.data
        for spoilt in (data[:-1], data[:5], b"", data[:20] + b"x" + data[21:]):
            for path in (self.path, self.copy):
                self.disk.write_file(path, spoilt)
            error = self.assertRaises(DirectoryError, FileStore.open, self.config, self.disk)
            self.assertIn("names the members of the group", str(error))

    def test_one_sound_list_is_enough(self) -> None:
        """The other one counts, and both are whole after the start; also without any bytes."""
        flipped = [bytes(byte ^ 1 << bit if at == place else byte for at, byte in enumerate(self.data))
                   for place in range(len(self.data)) for bit in (0, 7)]
        for path in (self.path, self.copy):
            for spoilt in (b"", self.data[:-1], *flipped):
                self.disk.write_file(path, spoilt)
                self.store = FileStore.open(self.config, self.disk)
                self.assertEqual(self.voters(), "n0 n1 n2")
                self.store.clean_close()
                for one in (self.path, self.copy):
                    self.assertEqual(self.disk.read_file(one), self.data)

    def test_an_unreadable_sector_is_damage(self) -> None:
        """A sector that cannot be read is damage."""
        hooked = HookedDisk()
        hooked.files, hooked.directories = self.disk.files, self.disk.directories
        hooked.failures = {("read_file", self.path): errno.EIO}
        self.assertRaises(DirectoryError, FileStore.open, self.config, hooked)  # the copy has that path, too
        hooked.failures = {("read_file", self.copy): errno.EIO}
        FileStore.open(self.config, hooked).clean_close()
        self.assertGreater(hooked.count("write_file", self.copy), 0)

    def test_without_a_copy(self) -> None:
        """A directory of an earlier release has none: it is made."""
        self.disk.unlink(self.copy)
        FileStore.open(self.config, self.disk).clean_close()
        self.assertEqual(self.disk.read_file(self.copy), self.data)

    def test_the_copy_is_written_first(self) -> None:
        """The copy lists the ledger's members: it is written before the list, and both before the ledger."""
        hooked = HookedDisk()
        hooked.files, hooked.directories = self.disk.files, self.disk.directories
        store = FileStore.open(self.config, hooked)
        hooked.calls.clear()
        store.append_configuration(TWO, 2)
        steps = [path.rpartition("/")[2] for operation, path in hooked.calls
                 if operation == "write_file" or (operation == "pwrite" and "/data/" in path)]
        self.assertEqual([step for step in steps if step.startswith("members")], ["members.copy", "members"])
        self.assertEqual(steps[:2], ["members.copy", "members"])
