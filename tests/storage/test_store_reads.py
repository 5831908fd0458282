# -*- test-case-name: tests.storage.test_store_reads -*-
"""Reads: few calls, checked, and never from a memory of what was cut."""

from __future__ import annotations

from unittest import mock

import attrs

from dledger.storage.start import scanner
from dledger.storage.store.file_store import FileStore
from dledger.storage.store.hole_finder import HoleFinder
from dledger.storage.store.store_reads import ENTRIES_KEPT, StoreReads
from dledger.values.errors import DamagedEntryError
from protocols.wire.ledger.entry import bodies_of
from tests.storage.support import (
    BROKEN,
    DATA_SIZE,
    INDEX_SIZE,
    ROOT,
    HookedCase,
    batch_of,
    bodies_in,
    config_of,
    entry_at,
    flush,
    our_record,
)


class CallTests(HookedCase):
    """One write per file and batch; the live tail needs no read."""

    def calls_of(self, operation: str, part: str = "") -> int:
        """Count, and begin to count again."""
        counted = self.disk.count(operation, part)
        self.disk.calls.clear()
        return counted

    def test_one_write_per_file(self) -> None:
        """A batch is one write to the data and one to the index."""
        self.store.append_bodies((b"x",), 1)
        self.calls_of("pwrite")
        self.store.append_bodies((b"y",) * 8, 1)
        self.assertEqual(self.calls_of("pwrite"), 2)
        self.store.append_bodies((bytes(400),) * 2, 1)
        self.assertEqual(self.calls_of("pwrite"), 4, "two data files, two index files")

    def test_the_live_tail_needs_no_read(self) -> None:
        """What was written last is read without a system call, alone or joined."""
        for number in range(6):
            self.store.append_bodies((bytes([number]),) * 2, 1)
        self.calls_of("pread")
        batch = self.store.read_batch(4, max_count=100, max_bytes=10_000)
        self.assertEqual((batch.first_index, batch.count), (4, 8))
        self.assertEqual(bodies_of(self.store.read_batch(4, max_count=2, max_bytes=10_000)), [b"\2", b"\2"])
        self.assertEqual([self.store.term_of(at) for at in range(12)], [1] * 12)
        self.store.position_of(3)
        self.assertEqual(self.calls_of("pread"), 0)
        follower = FileStore.open(config_of("follower"), self.disk)
        follower.append_entries(self.store.read_batch(0, max_count=4, max_bytes=999))
        self.calls_of("pread")
        follower.read_batch(0, max_count=9, max_bytes=999)
        self.assertEqual(self.calls_of("pread"), 0)

    def test_remembered_batches_are_cut(self) -> None:
        """What was cut is not shown from memory."""
        self.store.append_bodies((b"a", b"b", b"c", b"d"), 1)
        self.store.truncate_to(entry_at(self.store, 1))
        self.assertEqual(self.store.read_batch(0, max_count=9, max_bytes=999).count, 2)
        self.store.append_bodies((b"x", b"y"), 2)
        self.assertEqual(bodies_of(self.store.read_batch(2, max_count=9, max_bytes=999)), [b"x", b"y"])
        self.assertEqual(bodies_in(self.store), [b"a", b"b", b"x", b"y"])
        self.store.truncate_to(batch_of([our_record(b"anew", index=2, term=9, pos=DATA_SIZE)]), anew=True)
        self.assertEqual(bodies_of(self.store.read_batch(2, max_count=9, max_bytes=999)), [b"anew"])

    def test_units_that_cannot_be_read_any_more(self) -> None:
        """Recovery could read the index, and the disk cannot now: nothing is remembered, all is served."""
        self.store.append_bodies((b"a", b"b", b"c"), 1)
        ledger, marks = self.store.parts.ledger, self.store.parts.marks
        self.disk.failures = {("pread", "/index/"): BROKEN}
        reads = StoreReads(ledger, marks, 0, HoleFinder(ledger, marks))
        self.assertTrue(reads.recent.is_empty)
        self.disk.failures.clear()
        self.assertEqual(bodies_of(reads.read_batch(0, max_count=9, max_bytes=999)), [b"a", b"b", b"c"])

    def test_catching_up_costs_few_calls(self) -> None:
        """A thousand entries from the files cost a few calls."""
        self.config = config_of(mapped_file_size_for_entry_data=1 << 20,
                                mapped_file_size_for_entry_index=1 << 20, store_base_dir="other")
        self.store = FileStore.open(self.config, self.disk)
        self.store.append_bodies((b"x" * 50,) * 6000, 1)
        self.store.abandon()
        self.store = FileStore.open(self.config, self.disk)
        self.calls_of("pread")
        batch = self.store.read_batch(100, max_count=1000, max_bytes=1 << 20)
        self.assertEqual(batch.count, 1000)
        self.assertLessEqual(self.calls_of("pread"), 6)
        self.assertEqual(self.store.read_batch(1100, max_count=1000, max_bytes=1 << 20).count, 1000)
        self.assertLessEqual(self.calls_of("pread"), 3)
        self.assertEqual(self.store.read_batch(5000, max_count=1000, max_bytes=1 << 20).count, 1000)
        self.assertLessEqual(self.calls_of("pread"), 3)

    def test_memory_for_recent_entries_is_bounded(self) -> None:
        """The memory for recent entries is bounded."""
        self.config = config_of("big", mapped_file_size_for_entry_data=1 << 26,
                                mapped_file_size_for_entry_index=1 << 26)
        self.store = FileStore.open(self.config, self.disk)
        batch = (b"",) * 10_000
        for _ in range(2 * ENTRIES_KEPT // 10_000 + 2):
            self.store.append_bodies(batch, 1)
        self.assertLessEqual(len(self.store.parts.reads.recent.positions), 2 * ENTRIES_KEPT)
        self.assertGreater(self.store.parts.reads.recent.first_index, 0)
        self.assertEqual(self.store.position_of(7), 7 * 48)
        self.assertEqual(self.store.term_of(7), 1)


class ColdReadTests(HookedCase):
    """Entries that are not remembered are found through the index, which nobody vouches for."""

    def setUp(self) -> None:
        super().setUp()
        self.store.append_bodies((b"a" * 50,) * 40, 1)
        self.store.append_bodies((b"b" * 50,) * 20, 2)
        flush(self.store)
        self.reopen()
        self.forget()

    def forget(self) -> None:
        """Nothing is remembered."""
        self.store.parts.reads.recent.reset(60)
        self.store.parts.reads.batches.clear()

    def unit(self, index: int) -> bytearray:
        """The file that holds the unit of an entry, and its data."""
        return self.disk.files[f"{ROOT}/index/{index * 32 // INDEX_SIZE * INDEX_SIZE:020d}"].data

    def test_cold_entries_are_read(self) -> None:
        """Everything can be read without a memory, in any pieces."""
        for start in (0, 9, 10, 11, 39, 40, 55):
            for max_bytes in (0, 100, 10_000):
                batch = self.store.read_batch(start, max_count=7, max_bytes=max_bytes)
                self.assertEqual({bytes(body) for body in bodies_of(batch)},
                                 {b"a" * 50 if start < 40 else b"b" * 50})
        self.assertEqual((self.store.term_of(39), self.store.term_of(40)), (1, 2))
        self.assertEqual(bodies_in(self.store), [b"a" * 50] * 40 + [b"b" * 50] * 20)

    def test_every_byte_of_a_unit(self) -> None:
        """A wrong unit is written again, whatever is asked."""
        for byte in range(32):
            for ask in (lambda: self.store.term_of(45), lambda: self.store.position_of(45),
                        lambda: entry_at(self.store, 45)):
                self.setUp()
                right = ask()
                self.forget()
                before = bytes(self.unit(45))
                self.unit(45)[45 * 32 % INDEX_SIZE + byte] ^= 0x81
                self.assertEqual(ask(), right, f"byte {byte}")
                self.assertEqual(self.store.holes, ())
                self.assertEqual(bytes(self.unit(45)), before)

    def test_preload_of_a_damaged_unit(self) -> None:
        """Nor at a start."""
        for byte in (5, 10, 11, 12, 15, 22):
            with mock.patch.object(scanner, "SCAN_BACK_BYTES", 300):
                self.setUp()
                self.unit(20)[20 * 32 % INDEX_SIZE + byte] ^= 0x80
                self.reopen()
            self.assertEqual(bodies_in(self.store), [b"a" * 50] * 40 + [b"b" * 50] * 20)

    def test_terms_behind_a_deep_cut(self) -> None:
        """Entries that continue a term after a cut before all that is remembered have that term."""
        with mock.patch.object(scanner, "SCAN_BACK_BYTES", 300):
            self.reopen()
        copies = [entry_at(self.store, index) for index in range(60)]
        self.store.truncate_to(copies[9])
        for copy in copies[10:]:
            self.store.append_entries(copy)
        self.store.parts.reads.batches.clear()
        self.assertEqual([self.store.term_of(index) for index in range(60)], [1] * 40 + [2] * 20)
        self.assertEqual([entry_at(self.store, index) for index in range(60)], copies)

    def test_a_cut_file_is_noticed(self) -> None:
        """A data file that was cut under a running store."""
        for size in (0, 20, 70):
            self.setUp()
            path = f"{ROOT}/data/{self.store.parts.data.offsets[2]:020d}"
            offset = self.store.parts.data.offsets[2]
            index = next(at for at in range(60) if self.store.position_of(at) == offset)
            del self.disk.files[path].data[size:]
            self.disk.files[path].size = size
            self.forget()
            with self.assertRaises(DamagedEntryError):
                self.store.read_batch(index, max_count=1, max_bytes=0)

    def test_another_size_is_noticed(self) -> None:
        """Entries that differ in size only are different."""
        entry = entry_at(self.store, 45)
        self.assertTrue(self.store.holds(entry))
        self.assertFalse(self.store.holds(attrs.evolve(entry, records=entry.records + b"x")))

    def test_the_first_record_is_held_to_the_mark(self) -> None:
        """The first record of a ledger whose beginning expired is held against its CRC in the mark."""
        self.store.record_commit(59)
        self.store.abandon()
        self.store = FileStore.open(config_of(file_reserved_hours=1), self.disk)
        self.store.record_commit(59)
        self.store.maintenance(1e10, 4, keep_from_index=60)
        begin = self.store.ledger_begin_index
        self.assertGreater(begin, 0)
        self.store.read_batch(begin, max_count=1, max_bytes=0)
        path = f"{ROOT}/data/{self.store.parts.data.offsets[0]:020d}"
        self.disk.files[path].data[37] ^= 1
        self.forget()
        with self.assertRaises(DamagedEntryError):
            self.store.read_batch(begin, max_count=1, max_bytes=0)
        self.assertEqual([(hole.first_index, hole.last_index) for hole in self.store.holes], [(begin, begin)])
