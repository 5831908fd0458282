# -*- test-case-name: tests.storage.test_commit_mark -*-
"""The commit mark survives a torn write, and says so when it does not."""

from __future__ import annotations

import attrs
from twisted.trial.unittest import SynchronousTestCase

from dledger.base.disk.two_slots import SLOT_SIZE
from dledger.storage.files.commit_mark import (
    CommitMark,
    MarkFile,
    decode_mark,
    encode_mark,
    is_superseded,
    read_mark,
)
from dledger.testing.world.memory_disk import MemoryDisk
from dledger.values.errors import DirectoryError
from tests.storage.support import HookedDisk

MARK = CommitMark(
    committed_index=3, end_index=4, end_term=5, end_position=600, begin_position=0, begin_crc=0xFFFF_FFFF,
    index_end_position=500, repair_end_index=7, damaged_index=2, data_file_size=1024, index_file_size=320,
    clean=True,
)


class SlotTests(SynchronousTestCase):
    """One slot."""

    def test_golden_bytes_do_not_change(self) -> None:
        """The bytes of a slot do not change."""
        self.assertEqual(
            encode_mark(MARK, 9).hex(),
            "444c434d00000001" "0000000000000009" "0000000000000003" "0000000000000004" "0000000000000005"
            "0000000000000258" "0000000000000000" "00000000ffffffff" "00000000000001f4" "0000000000000007"
            "0000000000000002" "0000000000000400" "0000000000000140" "00000001"
            + encode_mark(MARK, 9)[-4:].hex(),
        )
        self.assertEqual(decode_mark(encode_mark(MARK, 9)), (9, MARK))
        self.assertEqual(MARK.recorded_end_index, 4)

    def test_every_bit_and_truncation(self) -> None:
        """A damaged slot is not a mark."""
        whole = encode_mark(MARK, 9)
        self.assertEqual(len(whole), 112)
        for size in range(len(whole)):
            self.assertIsNone(decode_mark(whole[:size]))
        for bit in range(len(whole) * 8):
            flipped = bytearray(whole)
            flipped[bit // 8] ^= 1 << bit % 8
            self.assertIsNone(decode_mark(bytes(flipped)), f"bit {bit}")


class MarkFileTests(SynchronousTestCase):
    """The file with its two slots."""

    def setUp(self) -> None:
        self.disk = MemoryDisk()
        self.file, found = MarkFile.open(self.disk, "mark", MARK)
        self.assertIsNone(found)

    def read(self) -> CommitMark:
        """What a start would find."""
        found = read_mark(self.disk, "mark")
        assert found is not None
        return found[1]

    def tear(self, slot: int) -> None:
        """Damage a slot."""
        self.disk.files["mark"].data[slot * SLOT_SIZE + 20] ^= 1

    def test_the_newest_slot_counts(self) -> None:
        """Of two sound slots the newer one is the mark; a new process goes on from there."""
        for end in range(10, 15):
            mark = attrs.evolve(MARK, end_index=end)
            self.file.write_durably(mark)
            self.assertEqual(self.read(), mark)
        again, found = MarkFile.open(self.disk, "mark", MARK)
        self.assertEqual(found, attrs.evolve(MARK, end_index=14))
        again.write_durably(attrs.evolve(MARK, end_index=20))
        self.assertEqual(self.read().end_index, 20)

    def test_a_torn_write_loses_no_mark(self) -> None:
        """However many writes were not synced, the last synced one is never lost."""
        self.file.write_durably(attrs.evolve(MARK, end_index=10))
        before = bytes(self.disk.files["mark"].data)
        for end in range(11, 14):
            self.file.write(attrs.evolve(MARK, end_index=end))
        after = bytes(self.disk.files["mark"].data)
        touched = {at // SLOT_SIZE for at in range(len(after)) if before[at] != after[at]}
        self.assertEqual(len(touched), 1, "both slots were written without a sync between")
        self.tear(touched.pop())
        self.assertEqual(self.read().end_index, 10)

    def test_sync_that_came_too_early(self) -> None:
        """A sync that started before the last write does not make it durable."""
        self.file.write(attrs.evolve(MARK, end_index=10))
        started_at = self.file.generation
        self.file.write(attrs.evolve(MARK, end_index=11))
        self.file.synced(started_at)
        self.assertTrue(self.file.needs_sync)
        self.file.synced(self.file.generation)
        self.assertFalse(self.file.needs_sync)

    def test_two_damaged_slots_stop_the_start(self) -> None:
        """Nothing sound left: a sentence that says what to do."""
        self.file.write_durably(MARK)
        self.tear(0)
        self.assertEqual(self.read(), MARK)
        self.tear(1)
        with self.assertRaises(DirectoryError) as caught:
            self.read()
        self.assertIn("Restore the member", str(caught.exception))

    def test_durable_when_it_says_so(self) -> None:
        """What is read at a start, and what is written durably, is synced before it counts."""
        disk = HookedDisk()
        MarkFile.open(disk, "mark", MARK)
        disk.calls.clear()
        file, _ = MarkFile.open(disk, "mark", MARK)
        self.assertEqual(disk.calls[-1], ("datasync", "mark"))
        durable = [("pwrite", "mark"), ("datasync", "mark")]
        disk.calls.clear()
        file.write_durably(MARK)
        self.assertEqual(disk.calls, [*durable, ("pwrite", "mark")], "the copy in the other slot follows")
        disk.calls.clear()
        file.write(MARK)
        file.datasync()
        self.assertEqual(disk.calls, durable)

    def test_nothing_to_sync(self) -> None:
        """A sync after which nothing was written does not turn the slots."""
        self.file.write_durably(attrs.evolve(MARK, end_index=10))
        self.file.synced(self.file.generation)
        before = bytes(self.disk.files["mark"].data)
        self.file.write(attrs.evolve(MARK, end_index=11))
        self.tear(0 if bytes(self.disk.files["mark"].data[:SLOT_SIZE]) != before[:SLOT_SIZE] else 1)
        self.assertEqual(self.read().end_index, 10)

    def test_another_writer_is_noticed(self) -> None:
        """Only after an orderly stop does another checkpoint mean that somebody else was here."""
        for clean, checkpoint, expected in (
            (True, (3, 4), False), (True, (3, 5), True), (True, (2, 4), True), (True, None, False),
            (True, (3, -2), False), (False, (9, 9), False),
        ):
            self.assertIs(is_superseded(attrs.evolve(MARK, clean=clean), checkpoint), expected, checkpoint)

    def test_a_java_directory_has_no_mark(self) -> None:
        """Java's directories have none."""
        self.assertIsNone(read_mark(self.disk, "other"))
