# -*- test-case-name: tests.storage.test_torn_end -*-
"""Damage that the body's checksum does not show: in headers, and in records without a body."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from dledger.storage.store.file_store import FileStore
from dledger.values.errors import DamagedEntryError
from tests.storage.support import HookedDisk, append_bare, config_of, flush

ROOT = "base/dledger-n0"
DATA = f"{ROOT}/data/{0:020d}"


class HeaderTests(SynchronousTestCase):
    """A header is held against the chain, whichever entry a read begins with."""

    def test_every_byte_of_a_header(self) -> None:
        """One flipped bit anywhere in a header that is read by itself is noticed."""
        for byte in range(48):
            disk = HookedDisk()
            store = FileStore.open(config_of(), disk)
            store.append_bodies((b"one", b"two", b"three"), 1)
            disk.files[DATA].data[51 + byte] ^= 1
            with self.assertRaises(DamagedEntryError, msg=f"byte {byte}"):
                store.read_range(1, end_index=1, max_bytes=1)


class TornEndTests(SynchronousTestCase):
    """A record with an empty body whose write was torn before its checksums looks whole."""

    def torn(self, flush_disk_type: str) -> FileStore:
        """A store whose second, empty record lost its chainCrc; only the first was flushed."""
        disk = HookedDisk()
        config = config_of(flush_disk_type=flush_disk_type)
        store = FileStore.open(config, disk)
        store.append_bodies((b"one",), 1)
        flush(store)
        store.append_bodies((b"",), 2)
        disk.files[DATA].data[51 + 36 : 51 + 40] = bytes(4)
        store.abandon()
        return FileStore.open(config, disk)

    def test_a_torn_end_is_cut(self) -> None:
        """Nobody was promised it: it goes, and the entry before it is the end, in its term."""
        for flush_disk_type in ("sync", "async"):
            store = self.torn(flush_disk_type)
            self.assertEqual((store.ledger_end_index, store.ledger_end_term), (0, 1))
            self.assertEqual(store.repair_end_index, -1)
            store.append_bodies((b"more",), 3)
            self.assertEqual(store.read_range(0, end_index=1, max_bytes=1000).count, 2)

    def test_stays_where_it_is_vouched_for(self) -> None:
        """Flushed and on record; or with a body; or after another one without a chainCrc."""
        for bodies, flushed in (((b"",), True), ((b"body",), False), ((b"body", b""), False)):
            disk = HookedDisk()
            config = config_of(flush_disk_type="sync")
            store = FileStore.open(config, disk)
            store.append_bodies((b"one",), 1)
            flush(store)
            append_bare(store, bodies, 2)
            if flushed:
                flush(store)
            store.abandon()
            store = FileStore.open(config, disk)
            self.assertEqual((store.ledger_end_index, store.repair_end_index), (len(bodies), -1))
            store.abandon()

    def test_stays_where_java_was(self) -> None:
        """A directory without a mark is Java's, whose records have no chainCrc."""
        disk = HookedDisk()
        store = FileStore.open(config_of(), disk)
        store.append_bodies((b"one", b""), 1)
        disk.files[DATA].data[51 + 36 : 51 + 40] = bytes(4)
        store.abandon()
        disk.unlink(f"{ROOT}/commitmark")
        self.assertEqual(FileStore.open(config_of(), disk).ledger_end_index, 1)


class DamageBeforeTheTailTests(SynchronousTestCase):
    """Damage of the recorded end takes along the entries after that end."""

    def test_all_of_it_is_missed(self) -> None:
        """What was written but is not on record yet may have been acknowledged: it counts."""
        for tail in (0, 1, 700):
            disk = HookedDisk()
            config = config_of(mapped_file_size_for_entry_data=1 << 17,
                               mapped_file_size_for_entry_index=32 * 256)
            store = FileStore.open(config, disk)
            store.append_bodies((b"one", b"two", b"three"), 1)
            flush(store)
            if tail:
                store.append_bodies((b"more",) * tail, 1)
            for index in (1, 2):
                disk.files[DATA].data[51 * index + 48] ^= 1
            store.abandon()
            store = FileStore.open(config, disk)
            self.assertEqual((store.ledger_end_index, store.repair_end_index), (0, 2 + tail))
            store.abandon()
