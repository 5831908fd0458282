# -*- test-case-name: tests.broker.store.test_unit_check -*-
"""A unit of a consume queue and the record to which it points."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from dledger.base.disk.memory_disk import MemoryDisk
from dledger.broker.store.records import NewMessage
from dledger.broker.store.unit_check import points_to_record
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
        ]  # fmt: skip

    def setUp(self) -> None:
        self.log = open_log(MemoryDisk())
        self.log.append([[one] for one in self.records()], 1)
        self.messages = messages_in(self.log)

    def fits(self, topic: str, queue_id: int, index: int, offset: int, size: int) -> bool:
        """Whether the unit can be of the record at C{offset}."""
        return points_to_record(self.log.read, topic, queue_id, index=index, offset=offset, size=size)

    def test_own_record(self) -> None:
        """Every record fits the unit that was put for it, and one with a lower index."""
        for one in self.messages:
            place = (one.topic, one.queue_id, one.queue_offset, one.physical_offset, one.size)
            self.assertTrue(self.fits(*place), place)
        last = self.messages[3]
        self.assertEqual((last.topic, last.queue_offset), ("T1", 1))
        self.assertTrue(self.fits("T1", 0, 0, last.physical_offset, last.size))

    def test_other_record(self) -> None:
        """No other topic, queue, size, later index, or place in the log fits."""
        one = self.messages[0]
        size, at = one.size, one.physical_offset
        self.assertEqual({two.size for two in self.messages[:4]}, {size})
        self.assertTrue(self.fits("T1", 0, 0, at, size))
        for wrong in (("T2", 0, 0, at, size), ("T", 0, 0, at, size), ("T11", 0, 0, at, size),
                      ("T1", 1, 0, at, size), ("T1", 0, 1, at, size), ("T1", 0, 0, at, size + 1),
                      ("T1", 0, 0, at + 1, size), ("T1", 0, 0, self.log.end_offset, size)):  # fmt: skip
            self.assertFalse(self.fits(*wrong), wrong)

    def test_bytes_of_a_body(self) -> None:
        """A copy of a record in another one's body is not at its own offset."""
        record = self.log.read(0, self.messages[0].size)
        self.log.append([[message(record)]], 1)
        at = self.log.read(0, self.log.end_offset).rindex(record)
        self.assertFalse(self.fits("T1", 0, 0, at, len(record)))
