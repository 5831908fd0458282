# -*- test-case-name: tests.storage.test_identity -*-
"""Whose files these are, and whether a loss of power may have taken acknowledged entries."""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from dledger.base.disk.disk import read_boot_id
from dledger.base.errors import DirectoryError
from dledger.config import GROUP_BYTES_MAX, ID_BYTES_MAX, DLedgerConfig
from dledger.storage.file_store import FileStore
from dledger.storage.identity import Identity, IdentityFile, read_identity
from tests.storage.support import NO_SPACE, ROOT, HookedDisk, config_of

PATH = f"{ROOT}/identity"


class IdentityCase(SynchronousTestCase):
    """A directory on a disk."""

    def setUp(self) -> None:
        self.disk = HookedDisk()

    def start(self, boot: str = "boot 1", **options: Any) -> FileStore:
        """A process opens the directory."""
        self.disk._locked.clear()
        return FileStore.open(config_of(**options), self.disk, boot_id=boot)

    def recorded(self) -> Identity:
        """What the file says."""
        found = read_identity(self.disk, PATH)
        assert found is not None
        return found[1]


class OwnerTests(IdentityCase):
    """Another group's or another member's files are refused."""

    def test_recorded(self) -> None:
        """At the first start, durably."""
        self.start(group="g").clean_close()
        self.assertEqual(self.recorded(), Identity(group="g", member_id="n0", boot_id="boot 1", was_async=1))

    def test_another_group(self) -> None:
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

    def test_another_member(self) -> None:
        """A directory that was renamed."""
        self.start().clean_close()
        for path in list(self.disk.files):
            self.disk.files[path.replace("dledger-n0", "dledger-n1")] = self.disk.files[path]
        self.disk.directories |= {path.replace("dledger-n0", "dledger-n1") for path in self.disk.directories}
        peers = "n0-h:1;n1-h:2"
        with self.assertRaises(DirectoryError) as caught:
            self.start(self_id="n1", peers=peers)
        self.assertIn("--node-id n0", str(caught.exception))

    def test_adopted(self) -> None:
        """A directory without the file, as of Java; also on a full disk."""
        self.start().clean_close()
        self.disk.unlink(PATH)
        self.disk.failures = {("write_file", "identity"): NO_SPACE}
        store = self.start("boot 2")
        self.assertFalse(store.is_unsure)
        store.end_unsure()
        store.clean_close()
        self.assertFalse(self.disk.exists(PATH))
        self.disk.failures = {}
        self.start("boot 2").clean_close()
        self.assertTrue(self.disk.exists(PATH))

    def test_terms_existed(self) -> None:
        """Term and vote were recorded once: also an empty ledger does not start without them."""
        store = self.start()
        self.assertFalse(store.has_terms)
        store.note_terms()
        store.clean_close()
        self.assertTrue(self.start().has_terms)

    def test_damaged(self) -> None:
        """One slot is enough; with none the member does not start."""
        self.start().clean_close()
        self.disk.files[PATH].data[20] ^= 1
        self.start().clean_close()
        self.disk.files[PATH].data[20] ^= 1
        self.disk.files[PATH].data[532] ^= 1
        with self.assertRaises(DirectoryError) as caught:
            self.start()
        self.assertIn("adopted", str(caught.exception))

    def test_longest_names_fit(self) -> None:
        """The options refuse longer ones."""
        name = "x" * ID_BYTES_MAX
        longest = Identity(group="g" * GROUP_BYTES_MAX, member_id=name, boot_id="b" * 36)
        IdentityFile.create(self.disk, "x", longest).close()
        self.assertRaises(ValueError, DLedgerConfig, group="g" * (GROUP_BYTES_MAX + 1))
        self.assertRaises(ValueError, DLedgerConfig, self_id=name + "x", peers=f"{name}x-h:1")


class UnsureTests(IdentityCase):
    """After a loss of power with async flushing."""

    def test_another_boot(self) -> None:
        """Not closed in order, and another boot: unsure, until told otherwise, whatever happens."""
        self.assertFalse(self.start().is_unsure)
        self.assertFalse(self.start().is_unsure, "a kill loses nothing")
        self.assertTrue(self.start("boot 2").is_unsure)
        store = self.start("boot 2")
        self.assertTrue(store.is_unsure, "it is not forgotten")
        store.clean_close()
        store = self.start("boot 3", flush_disk_type="sync")
        self.assertTrue(store.is_unsure)
        store.end_unsure()
        self.assertFalse(store.is_unsure)
        self.assertFalse(self.start("boot 4").is_unsure, "the last process was sync")

    def test_closed_in_order(self) -> None:
        """Everything was flushed."""
        self.start().clean_close()
        self.assertFalse(self.start("boot 2").is_unsure)

    def test_sync(self) -> None:
        """Everything that was acknowledged was flushed."""
        self.start(flush_disk_type="sync")
        self.assertFalse(self.start("boot 2").is_unsure)

    def test_unknown_boots(self) -> None:
        """A system that does not name its boots."""
        self.start("")
        self.assertFalse(self.start("boot 2").is_unsure)
        self.assertFalse(self.start("").is_unsure)

    def test_operators_word(self) -> None:
        """No other member has more."""
        self.start()
        self.assertFalse(self.start("boot 2", accept_unclean_start=True).is_unsure)
        self.assertFalse(self.start("boot 2").is_unsure)

    def test_this_boot(self) -> None:
        """Linux names it."""
        self.assertEqual(read_boot_id(), read_boot_id())
