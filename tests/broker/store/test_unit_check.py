# -*- test-case-name: tests.broker.store.test_unit_check -*-
"""A unit of a consume queue and the record to which it points."""

from __future__ import annotations

from typing import Any
from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.store.commit_log_store import FILES_LOST_MAX, written_below
from dledger.rocketmq.store.log.log_start import LogSeen
from dledger.rocketmq.store.queues.queue_files import Unit
from dledger.rocketmq.store.queues.unit_check import TornUnits, points_to_record
from dledger.rocketmq.store.records.records import NewMessage
from dledger.testing.world.memory_disk import MemoryDisk
from protocols.wire.rocketmq.message import Host
from tests.broker.support import message, messages_in, open_log


class UnitTests(SynchronousTestCase):
    """A record answers for its own unit only."""

    def records(self) -> list[NewMessage]:
        """Messages of one size; others with long addresses and topics."""
        return [
            message(topic="T1"), message(topic="T2"), message(topic="T1", queue_id=1), message(topic="T1"),
            message(bytes(300), topic="T2"), message(topic="T2", born_host=Host.of("2001:db8::1", 7)),
            message(topic="t" * 200), message(b"", topic="T1"),
        ]

    def setUp(self) -> None:
        self.log = open_log(MemoryDisk())
        self.log.append([[one] for one in self.records()], 1)
        self.messages = messages_in(self.log)

    def fits(self, topic: str, queue_id: int, index: int, offset: int, size: int) -> bool:
        """Whether the unit can be of the record at C{offset}."""
        return points_to_record(self.log.read, topic, queue_id, index=index, offset=offset, size=size)

    def test_a_record_fits_its_own_unit(self) -> None:
        """Every record fits the unit that was put for it, and one with a lower index."""
        for one in self.messages:
            place = (one.topic, one.queue_id, one.queue_offset, one.physical_offset, one.size)
            self.assertTrue(self.fits(*place), place)
        last = self.messages[3]
        self.assertEqual((last.topic, last.queue_offset), ("T1", 1))
        self.assertTrue(self.fits("T1", 0, 0, last.physical_offset, last.size))

    def test_a_record_fits_no_other_unit(self) -> None:
        """No other topic, queue, size, later index, or place in the log fits."""
        one = self.messages[0]
        size, at = one.size, one.physical_offset
        self.assertEqual({two.size for two in self.messages[:4]}, {size})
        self.assertTrue(self.fits("T1", 0, 0, at, size))
        for wrong in (("T2", 0, 0, at, size), ("T", 0, 0, at, size), ("T11", 0, 0, at, size),
                      ("T1", 1, 0, at, size), ("T1", 0, 1, at, size), ("T1", 0, 0, at, size + 1),
                      ("T1", 0, 0, at + 1, size), ("T1", 0, 0, self.log.end_offset, size)):
            self.assertFalse(self.fits(*wrong), wrong)

    def test_a_record_that_cannot_be_read(self) -> None:
        """It may be that of the unit, wherever the bad sector begins."""
        one = self.messages[4]
        at, size = one.physical_offset, one.size
        for begin in range(size):
            bad = range(at + begin, at + begin + 4096)

            def read(offset: int, count: int, bad: range = bad) -> bytes:
                data = bytearray(self.log.read(offset, count))
                for place in range(len(data)):
                    if offset + place in bad:
                        data[place] = 0xBD
                return bytes(data)

            fits = points_to_record(read, "T2", 0, index=0, offset=at, size=size)
            self.assertTrue(fits, begin)
            torn = TornUnits(read, range(1 << 20), 1 << 40)
            self.assertFalse(torn.is_torn("T2", 0, Unit(0, at, size, 0), -1))

    def test_before_the_log(self) -> None:
        """The record of a unit has expired; a filler that lost a part of its size would be a longer one."""
        torn = TornUnits(lambda at, size: self.fail("nothing is there"), range(40_960, 1 << 20), 1 << 40)
        for offset, size in ((0, 255), (40_000, 960)):
            self.assertFalse(torn.is_torn("T1", 0, Unit(0, offset, size, 0), -1))
        for size in (0x7FFF_0000, 0x7FFF_FF00, 0x00FF_FFFF, 0xFFFF):
            self.assertTrue(torn.is_torn("T1", 0, Unit(0, 0, size, 0), -1))

    def test_bytes_of_a_body(self) -> None:
        """A copy of a record in another one's body is not at its own offset."""
        record = self.log.read(0, self.messages[0].size)
        self.log.append([[message(record)]], 1)
        at = self.log.read(0, self.log.end_offset).rindex(record)
        self.assertFalse(self.fits("T1", 0, 0, at, len(record)))

    def test_which_may_be_torn(self) -> None:
        """The zeroes in front must be able to hide an offset of a record that was not dispatched."""
        gib = 1 << 30
        for offset, end, limit, is_torn in (
            (0, gib, gib + 1, True), (0, gib, gib, False),  # all bytes lost
            (7, gib, gib + 8, True), (7, gib, gib + 7, False), (7, gib + 8, gib + 256, False),  # all but one
            (0x1234, 1 << 16, 2 << 16, True), (0x1234, 1 << 16, 1 << 16, False),
            (3 * gib, 3 * gib + 9, 4 * gib, False),  # four bytes can hide nothing below 7 GiB
            (3 * gib, 3 * gib + 9, 7 * gib + 1, True), (3 * gib, 3 * gib + 9, 7 * gib, False),
            (3 * gib, 7 * gib + 1, 11 * gib, False), (5 * gib, 6 * gib, 64 * gib, False),
        ):
            torn = TornUnits(lambda at, size: b"", range(end), limit)
            self.assertEqual(torn.is_torn("T", 0, Unit(1, offset, 99, 0), -1), is_torn, (offset, end, limit))

    def test_each_unit_is_judged(self) -> None:
        """It stays if it is after the one before it, and its record fits, or has expired."""
        one, two = self.messages[0], self.messages[3]
        self.assertEqual((one.topic, two.topic, one.physical_offset), ("T1", "T1", 0))
        self.assertLess(two.physical_offset, 512)
        low = self.messages[2].physical_offset  # of another queue
        self.assertLess(low, 256)
        for begin, unit, before, is_torn in (
            (0, Unit(0, 0, one.size, 0), -1, False), (0, Unit(0, low, one.size, 0), -1, True),
            (0, Unit(0, 0, one.size, 0), 0, True), (0, Unit(0, low, one.size, 0), low - 1, True),
            (low + one.size, Unit(0, low, one.size, 0), -1, False),
            (low, Unit(0, low, one.size, 0), -1, True),
        ):
            torn = TornUnits(self.log.read, range(begin, 600), 1 << 40)
            self.assertEqual(torn.is_torn("T1", 0, unit, before), is_torn, (begin, unit, before))


class WrittenTests(SynchronousTestCase):
    """How far records reached before a power cut."""

    def test_files_after_the_end(self) -> None:
        """A unit whose record was in a file after the end of the log, which is left or lost, is torn."""
        log: Any = mock.Mock(end_offset=110_592, file_size=4096)
        whole, torn = 0x1E000, 0xE000  # the two bytes in front were lost
        for left in ((), ("base/commitlog/00000000000000135168",)):
            seen = LogSeen(
                mark=None, stored_end=0, crashed=True, offsets=(0, 106_496), left_over=left, checkpoint=None,
            )
            limit = written_below(seen, log)
            self.assertEqual(limit, (139_264 if left else 110_592) + FILES_LOST_MAX * 4096)
            self.assertGreater(limit, whole)
            units = TornUnits(lambda at, size: b"", range(0, 100_010), limit)
            self.assertTrue(units.is_torn("T", 1, Unit(10, torn, 250, 0), 86_753))
