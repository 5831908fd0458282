# -*- test-case-name: tests.broker.store.test_index_file -*-
"""One file of the index: its bytes, its chains, and what a crash leaves of it."""

from __future__ import annotations

import random

from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.store.index.index_file import (
    ENTRY,
    HEADER,
    IndexEntry,
    IndexFile,
    IndexHeader,
    IndexShape,
    header_problem,
)
from dledger.testing.world.memory_disk import MemoryDisk
from dledger.values.errors import StoreError

SHAPE = IndexShape(3, 6)
PATH = "index/20231114221320000"

#: Entries for hashes 4, 1, 5 at offsets 100, 200, 300, stored at 5.000, 6.999 and 7.000 s.
GOLDEN = bytes.fromhex(
    "0000000000001388" "0000000000001b58" "0000000000000064" "000000000000012c" "00000002" "00000004"
    "00000000" "00000002" "00000003"
    "0000000000000000000000000000000000000000"
    "00000004" "0000000000000064" "00000000" "00000000"
    "00000001" "00000000000000c8" "00000001" "00000001"
    "00000005" "000000000000012c" "00000002" "00000000"
    "0000000000000000000000000000000000000000" "0000000000000000000000000000000000000000"
)
KEYS = [(4, 100, 5_000), (1, 200, 6_999), (5, 300, 7_000)]


def create(disk: MemoryDisk, shape: IndexShape = SHAPE, last: IndexHeader | None = None) -> IndexFile:
    """A new file."""
    disk.makedirs("index")
    return IndexFile.create(disk, PATH, shape, last)


def flush(file: IndexFile) -> None:
    """Bring it to stable storage."""
    for step in file.prepare_flush():
        step()


def chain(file: IndexFile, key_hash: int) -> list[int]:
    """Offsets in the chain of a hash, the youngest first."""
    found, number = [], file.newest(key_hash)
    while number:
        entry = file.entry_of(number, key_hash)
        found.append(entry.offset)
        number = entry.previous
    return found


class IndexFileTests(SynchronousTestCase):
    """The file."""

    def setUp(self) -> None:
        self.disk = MemoryDisk()

    def test_bytes_are_those_of_java(self) -> None:
        """Byte for byte as Java's C{IndexFile} writes it."""
        self.assertEqual((HEADER.size, ENTRY.size, SHAPE.file_size), (40, 20, 40 + 4 * 3 + 20 * 6))
        self.assertEqual(IndexShape(5_000_000, 20_000_000).file_size, 420_000_040)
        file = create(self.disk)
        self.assertEqual(self.disk.file_size(PATH), SHAPE.file_size)
        self.assertEqual(file.put(KEYS), 3)
        flush(file)
        self.assertEqual(self.disk.read_file(PATH).hex(), GOLDEN.hex())
        again = IndexFile.open(self.disk, PATH, SHAPE)
        self.assertEqual(again.header, IndexHeader(5_000, 7_000, 100, 300, 2, 4))
        chains = [chain(again, one) for one in (0, 4, 1, 5, 2)]
        self.assertEqual(chains, [[], [200, 100], [200, 100], [300], [300]])

    def test_a_file_follows_another(self) -> None:
        """A file begins with the end of the one before; the first entry's seconds count from there."""
        file = create(self.disk, last=IndexHeader(1_000, 5_000, 10, 90, 1, 6))
        self.assertEqual(file.header, IndexHeader(5_000, 5_000, 90, 90, 0, 1))
        file.put([(4, 100, 7_500), (4, 200, 8_400)])
        self.assertEqual(file.header, IndexHeader(7_500, 8_400, 100, 200, 1, 3))
        self.assertEqual([file.entry(number).seconds for number in (1, 2)], [2, 0])

    def test_a_full_file_takes_no_entry(self) -> None:
        """The last entry leaves no place: entry 0 is never used."""
        file = create(self.disk)
        self.assertEqual(file.put(KEYS * 3), 5)
        self.assertTrue(file.is_full)
        self.assertEqual(file.put(KEYS), 0)

    def test_times_are_bounded_seconds(self) -> None:
        """Seconds are bounded, before the first time and far after it."""
        file = create(self.disk)
        file.put([(1, 0, 10_000), (1, 1, 1_000), (1, 2, 2**60)])
        self.assertEqual([file.entry(number).seconds for number in (1, 2, 3)], [0, 0, 2**31 - 1])

    def test_pending_entries_are_read(self) -> None:
        """Entries can be read before they are written, and slots before they are flushed."""
        file = create(self.disk)
        file.put(KEYS[:2])
        file.write()
        file.put(KEYS[2:])
        self.assertEqual(chain(file, 4), [200, 100])
        self.assertEqual(chain(file, 5), [300])
        self.assertFalse(file.is_clean)
        self.assertEqual(IndexFile.open(self.disk, PATH, SHAPE).header.index_count, 1)
        flush(file)
        self.assertTrue(file.is_clean)
        file.unload()
        self.assertEqual(chain(file, 4), [200, 100])

    def test_only_dirty_pages(self) -> None:
        """A flush writes the pages of slots that have changed."""
        shape = IndexShape(10_000, 100)
        file = create(self.disk, shape)
        rng = random.Random(1)
        for _ in range(10):
            keys = [(rng.randrange(2**31), number, 1) for number in range(5)]
            file.put(keys)
            flush(file)
            again = IndexFile.open(self.disk, PATH, shape)
            for key_hash, _, _ in keys:
                self.assertEqual(chain(again, key_hash), chain(file, key_hash))

    def test_a_failed_flush_is_repeated(self) -> None:
        """What a failed flush did not write, the next one writes."""
        file = create(self.disk)
        file.put(KEYS)
        file.prepare_flush()
        file.flush_failed()
        self.assertFalse(file.is_clean)
        flush(file)
        self.assertEqual(self.disk.read_file(PATH).hex(), GOLDEN.hex())

    def test_a_bad_header_is_refused(self) -> None:
        """A header that no file can have is refused."""
        self.assertEqual(header_problem(IndexHeader(), SHAPE), "")
        for header in (
            IndexHeader(index_count=0), IndexHeader(index_count=7), IndexHeader(index_count=-1),
            IndexHeader(slot_count=-1), IndexHeader(slot_count=4, index_count=6), IndexHeader(end_offset=-5),
        ):
            self.assertNotEqual(header_problem(header, SHAPE), "")
            create(self.disk).close()
            self.disk.open(PATH).pwrite(HEADER.pack(*header), 0)
            self.assertRaises(StoreError, IndexFile.open, self.disk, PATH, SHAPE)
            self.disk.unlink(PATH)

    def test_bad_chains_are_not_followed(self) -> None:
        """A circle, an entry of another slot, a slot that is out of range: no search follows them."""
        file = create(self.disk)
        file.put(KEYS)
        flush(file)
        raw = self.disk.open(PATH)
        raw.pwrite(ENTRY.pack(1, 200, 1, 2), SHAPE.entry_at(2))  # it comes before itself
        self.assertRaises(StoreError, file.entry_of, 2, 1)
        raw.pwrite(ENTRY.pack(2, 200, 1, 1), SHAPE.entry_at(2))
        self.assertRaises(StoreError, file.entry_of, 2, 1)
        raw.pwrite(ENTRY.pack(-1, 200, 1, 1), SHAPE.entry_at(2))
        self.assertRaises(StoreError, file.entry_of, 2, 1)
        for slot in (-1, 4, 2**31 - 1):
            raw.pwrite(slot.to_bytes(4, "big", signed=True), SHAPE.slot_at(1))
            again = IndexFile.open(self.disk, PATH, SHAPE)
            self.assertEqual(again.newest(1), 0)
            again.load()
            again.put([(1, 400, 8_000)])
            self.assertEqual(chain(again, 1), [400])


class UnwindTests(SynchronousTestCase):
    """After a crash a file goes back to a state that was on stable storage."""

    def test_any_cut_is_unwound(self) -> None:
        """Whatever of the newer slots and of the header was written."""
        shape = IndexShape(5, 200)
        for seed in range(40):
            rng = random.Random(seed)
            disk = MemoryDisk()
            file = create(disk, shape)
            keys = [(rng.randrange(40), number * 10, number) for number in range(rng.randrange(1, 199))]
            kept = rng.randrange(len(keys) + 1)
            file.put(keys[:kept])
            flush(file)
            header = file.header
            expected = {key_hash: chain(file, key_hash) for key_hash in range(40)}
            file.put(keys[kept:])
            before = disk.read_file(PATH)
            steps = file.prepare_flush()
            steps[0]()
            for step in steps[1:]:
                step()
            raw = disk.open(PATH)
            for slot in range(5):  # some slots, and perhaps the header, are the old ones
                if rng.random() < 0.5:
                    raw.pwrite(before[shape.slot_at(slot) :][:4], shape.slot_at(slot))
            if rng.random() < 0.5:
                raw.pwrite(before[:40], 0)
            again = IndexFile.open(disk, PATH, shape)
            again.unwind(header)
            self.assertEqual(again.header, header)
            self.assertEqual({key_hash: chain(again, key_hash) for key_hash in range(40)}, expected)
            flush(again)
            third = IndexFile.open(disk, PATH, shape)
            self.assertEqual({key_hash: chain(third, key_hash) for key_hash in range(40)}, expected)

    def test_a_damaged_slot_is_not_unwound(self) -> None:
        """A slot whose entry is another's cannot be taken back."""
        disk = MemoryDisk()
        file = create(disk)
        file.put(KEYS[:1])
        flush(file)
        header = file.header
        file.put(KEYS[1:])
        flush(file)
        raw = disk.open(PATH)
        raw.pwrite(ENTRY.pack(2, 200, 1, 1), SHAPE.entry_at(2))
        again = IndexFile.open(disk, PATH, SHAPE)
        self.assertRaises(StoreError, again.unwind, header)
        raw.pwrite(b"\xff" * 4, SHAPE.slot_at(0))
        self.assertRaises(StoreError, again.unwind, header)

    def test_slots_of_another_program(self) -> None:
        """
        Slots with numbers of entries that nobody wrote are refused at once: RocketMQ with smaller
        C{maxHashSlotNum} and C{maxIndexNum} writes its entries over our slots.
        """
        shape = IndexShape(1000, 20_000_000)
        disk = MemoryDisk()
        file = create(disk, shape)
        file.put(KEYS[:1])
        flush(file)
        header, raw = file.header, disk.open(PATH)
        for number in (19_999_999, 20_000_000, 2**31 - 1):
            for slot in (0, 7):
                before = raw.pread(4, shape.slot_at(slot))
                raw.pwrite(number.to_bytes(4, "big"), shape.slot_at(slot))
                again = IndexFile.open(disk, PATH, shape)
                read: list[int] = []

                def entries(first: int, count: int, inner=again._entries, read=read) -> list[IndexEntry]:
                    read.append(count)
                    return inner(first, count)

                self.patch(again, "_entries", entries)
                self.assertRaisesRegex(StoreError, f"no entry {number}", again.unwind, header)
                self.assertLess(sum(read), 10)
                raw.pwrite(before, shape.slot_at(slot))
        again = IndexFile.open(disk, PATH, shape)
        again.unwind(header)
        self.assertEqual(again.header, header)
