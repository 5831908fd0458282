# -*- test-case-name: tests.broker.store.test_log_mark -*-
"""The log mark survives torn writes, and knows when somebody else had the store open."""

from __future__ import annotations

from zlib import crc32

import attrs
from twisted.trial.unittest import SynchronousTestCase

from dledger.base.disk.two_slots import SLOT_SIZE
from dledger.rocketmq.store.log.log_mark import (
    LOG_MARK_DECLARATION,
    LogMark,
    LogMarkFile,
    decode_log_mark,
    encode_log_mark,
    read_log_mark,
)
from dledger.testing.world.memory_disk import MemoryDisk
from dledger.values.errors import DirectoryError

MARK = LogMark(end_offset=4711, dispatched_offset=17, log_file_size=4096, queue_file_size=200,
               checkpoint_crc=5, previous_checkpoint_crc=6, clean=True, begin_offset=4096)


class SlotTests(SynchronousTestCase):
    """One slot."""

    def test_a_slot_has_its_declared_bytes(self) -> None:
        """As declared, with a CRC at the end."""
        data = encode_log_mark(MARK, 3)
        fields = LOG_MARK_DECLARATION.parse(data)
        self.assertEqual((fields.generation, fields.end_offset, fields.dispatched_offset, fields.clean),
                         (3, 4711, 17, 1))
        self.assertEqual(int.from_bytes(data[-4:], "big"), crc32(data[:-4]))
        self.assertEqual(decode_log_mark(data), (3, MARK))

    def test_golden_bytes_do_not_change(self) -> None:
        """The bytes of a slot do not change."""
        self.assertEqual(
            encode_log_mark(MARK, 3).hex(),
            "444c484d00000001" "0000000000000003" "0000000000001267" "0000000000000011" "0000000000001000"
            "00000000000000c8" "0000000000000005" "0000000000000006" "00000001"
            "0000000000001000" "425c8ee0",
        )

    def test_every_truncation_and_every_bit(self) -> None:
        """Neither is taken for a mark."""
        data = encode_log_mark(MARK, 3)
        for size in range(len(data)):
            self.assertIsNone(decode_log_mark(data[:size]))
        for at in range(len(data)):
            damaged = bytearray(data)
            damaged[at] ^= 0x10
            self.assertIsNone(decode_log_mark(bytes(damaged)))


class LogMarkFileTests(SynchronousTestCase):
    """Two slots, written in turn."""

    def setUp(self) -> None:
        self.disk = MemoryDisk()
        self.disk.makedirs("base")
        self.file, _ = LogMarkFile.open(self.disk, "base/mark", MARK)

    def written(self) -> int:
        """The end that would be read now."""
        found = read_log_mark(self.disk, "base/mark")
        assert found is not None
        return found[1].end_offset

    def test_torn_write_costs_the_newest_only(self) -> None:
        """However a write that was never synced is torn, what was synced is found."""
        self.file.write_durably(attrs.evolve(MARK, end_offset=1))
        self.file.write(attrs.evolve(MARK, end_offset=2))
        self.file.write(attrs.evolve(MARK, end_offset=3))
        self.assertEqual(self.written(), 3)
        sound = self.disk.read_file("base/mark")
        for slot in (0, 1):
            torn = bytearray(sound)
            torn[slot * SLOT_SIZE + 20 : (slot + 1) * SLOT_SIZE] = bytes(SLOT_SIZE - 20)
            self.disk.write_file("base/mark", bytes(torn))
            if self.written() == 1:
                break
        else:
            self.fail("the slot that was synced has been written over")

    def test_a_reopened_mark_goes_on(self) -> None:
        """What was written last is found, and the other slot is written next."""
        self.file.write_durably(attrs.evolve(MARK, end_offset=8))
        again, _ = LogMarkFile.open(self.disk, "base/mark", MARK)
        self.assertEqual((again.generation, self.written()), (2, 8))
        again.write(attrs.evolve(MARK, end_offset=9))
        self.assertEqual(self.written(), 9)
        self.assertTrue(again.needs_sync)

    def test_damaged_in_both(self) -> None:
        """Refused, with a sentence that says what to do."""
        self.disk.write_file("base/mark", bytes(2 * SLOT_SIZE))
        with self.assertRaises(DirectoryError) as caught:
            read_log_mark(self.disk, "base/mark")
        self.assertIn("Remove this one file", str(caught.exception))


class TrustTests(SynchronousTestCase):
    """Whether nobody else has had the store open."""

    def test_a_fitting_checkpoint_is_trusted(self) -> None:
        """The checkpoint is the one that was noted or the one before."""
        mark = LogMark(log_file_size=1, queue_file_size=1, checkpoint_crc=crc32(b"new"),
                       previous_checkpoint_crc=crc32(b"old"))
        self.assertTrue(mark.fits(b"new", is_aborted=True))
        self.assertTrue(mark.fits(b"old", is_aborted=True))
        self.assertFalse(mark.fits(b"other", is_aborted=True))
        self.assertFalse(mark.fits(None, is_aborted=True))

    def test_a_tidied_directory_is_not_trusted(self) -> None:
        """We crashed, yet the abort file is gone: somebody else has closed the store."""
        mark = LogMark(log_file_size=1, queue_file_size=1)
        self.assertTrue(mark.fits(None, is_aborted=True))
        self.assertFalse(mark.fits(None, is_aborted=False))
        self.assertTrue(attrs.evolve(mark, clean=True).fits(None, is_aborted=False))
