# -*- test-case-name: tests.broker.store.test_queries -*-
"""What a consumer is given."""

from __future__ import annotations

from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.store import queries
from dledger.rocketmq.store.queries import (
    GetStatus,
    Got,
    get_messages,
    offset_at,
    stored_ms,
)
from dledger.testing.world.memory_disk import MemoryDisk
from dledger.values.errors import StoreError
from protocols.wire.rocketmq.message import decode_message, java_hash
from tests.broker.support import LOG_SIZE, Opened, message


class QueriesTests(SynchronousTestCase):
    """A queue of thirty messages, a third of them with another tag."""

    def setUp(self) -> None:
        self.disk = MemoryDisk(modified_s=0.0)
        self.opened = Opened(self.disk)
        self.opened.settle()
        self.store = self.opened.store
        for number in range(30):
            tags = "B" if number % 3 == 0 else "A"
            new = message(bytes([number]) * 300, properties={"TAGS": tags})
            self.store.log.append([[new]], 1_000 + 10 * number)
        self.opened.settle()

    def damage(self, number: int) -> int:
        """Flip a bit in the body of one message. @return: its offset in the log."""
        queue = self.store.queues.get("T1", 0)
        assert queue is not None
        (unit,) = queue.read(number, 1)
        base = unit.offset - unit.offset % LOG_SIZE
        content = self.disk.files[f"base/commitlog/{base:020d}"].data
        content[unit.offset - base + 100] ^= 1
        return unit.offset

    def test_a_damaged_message_is_left_out(self) -> None:
        """A consumer gets the messages around it; it is logged once, and by its offset there is an error."""
        offset = self.damage(5)
        with capturedLogs() as events:
            for _ in range(2):
                got = self.get(4)
                self.assertEqual([decode_message(one).body[0] for one in got.records][:3], [4, 6, 7])
        self.assertEqual(len([one for one in events if "is damaged" in one["log_format"]]), 1)
        self.assertEqual(self.store.bad_records.offsets(), [offset])
        got = self.get(5, count_max=1)
        self.assertEqual((got.status, got.next_offset), (GetStatus.MESSAGE_WAS_REMOVING, 6))
        self.assertIsNone(self.store.sound.at(offset))

    def test_wrong_lengths_are_not_served(self) -> None:
        """A consumer goes by the lengths of topic and properties to the next record: none may mislead it."""
        queue = self.store.queues.get("T1", 0)
        assert queue is not None
        (unit,) = queue.read(5, 1)
        record = self.store.log.read(unit.offset, unit.size)
        topic = 88 + int.from_bytes(record[84:88], "big")
        properties = topic + 1 + record[topic]
        base = unit.offset - unit.offset % LOG_SIZE
        content = self.disk.files[f"base/commitlog/{base:020d}"].data
        for place in (topic, properties, properties + 1):
            content[unit.offset - base + place] ^= 1
            got = self.get(4)
            self.assertEqual([decode_message(one).body[0] for one in got.records][:3], [4, 6, 7], place)
            content[unit.offset - base + place] ^= 1
        self.assertEqual([decode_message(one).body[0] for one in self.get(4).records][:3], [4, 5, 6])

    def get(self, offset: int, **options: object) -> Got:
        """Of the queue."""
        values = {"is_slave": False, **options}
        return get_messages(self.store, "T1", 0, offset, **values)  # type: ignore[arg-type]

    def numbers(self, got: Got) -> list[int]:
        """Which messages these are."""
        return [decode_message(record).body[0] for record in got.records]

    def test_messages_are_found_in_order(self) -> None:
        """In order, from the offset on, as many as may be; then the next offset."""
        got = self.get(0)
        self.assertEqual((got.status, got.next_offset), (GetStatus.FOUND, 30))
        self.assertEqual(self.numbers(got), list(range(30)))
        self.assertEqual((got.begin_offset, got.end_offset), (0, 30))
        got = self.get(7, count_max=5)
        self.assertEqual((self.numbers(got), got.next_offset), ([7, 8, 9, 10, 11], 12))
        size = len(got.records[0])
        for bytes_max, count in ((0, 1), (size, 1), (2 * size, 2), (3 * size - 1, 2)):
            self.assertEqual(len(self.get(7, bytes_max=bytes_max).records), count)

    def test_messages_are_found_by_tag(self) -> None:
        """By hash; what does not match is passed over once, not again."""
        got = self.get(1, tags_codes=frozenset([java_hash("B")]), count_max=3)
        self.assertEqual((self.numbers(got), got.next_offset), ([3, 6, 9], 12))
        got = self.get(1, tags_codes=frozenset([java_hash("C")]))
        self.assertEqual((got.status, got.next_offset), (GetStatus.NO_MATCHED_MESSAGE, 30))
        self.patch(queries, "UNITS_MAX", 4)
        self.assertEqual(self.get(1, tags_codes=frozenset([java_hash("C")])).next_offset, 5)

    def test_each_case_has_its_status(self) -> None:
        """Each case has its status; a master corrects the offset, a slave does not."""
        self.store.checkpoint()
        self.store.maintenance(1e9, 4, keep_from=LOG_SIZE)
        begin = self.get(29).begin_offset
        self.assertGreater(begin, 0)
        for topic, offset, status, corrected in (
            ("T1", begin - 1, GetStatus.OFFSET_TOO_SMALL, begin),
            ("T1", 30, GetStatus.OFFSET_OVERFLOW_ONE, 30), ("T1", 31, GetStatus.OFFSET_OVERFLOW_BADLY, 30),
            ("None", 5, GetStatus.NO_MATCHED_LOGIC_QUEUE, 0),
        ):
            got = get_messages(self.store, topic, 0, offset, is_slave=False)
            self.assertEqual((got.status, got.next_offset, got.records), (status, corrected, ()))
            got = get_messages(self.store, topic, 0, offset, is_slave=True)
            self.assertEqual((got.status, got.next_offset), (status, offset))

    def test_an_empty_queue_has_no_messages(self) -> None:
        """All its messages were cut."""
        self.store.log.cut(0)
        self.assertEqual(self.get(3).status, GetStatus.NO_MATCHED_LOGIC_QUEUE)
        self.assertEqual(offset_at(self.store, "T1", 0, 1_000), 0)

    def test_others_come_after_a_cut(self) -> None:
        """Records that were read, and then cut, are given to nobody: others of their size come there."""
        self.assertEqual(self.numbers(self.get(0)), list(range(30)))
        queue = self.store.queues.get("T1", 0)
        assert queue is not None
        (unit,) = queue.read(20, 1)
        self.store.log.cut(unit.offset)
        for number in range(20, 30):
            new = message(bytes([100 + number]) * 300, properties={"TAGS": "A"})
            self.store.log.append([[new]], 2_000)
        self.opened.settle()
        self.assertEqual(self.numbers(self.get(0)), [*range(20), *range(120, 130)])

    def test_fillers_are_not_given_out(self) -> None:
        """A queue that begins in the middle: fillers are never given out."""
        slave = Opened(MemoryDisk(), is_slave=True)
        slave.settle()
        source, at = self.store.log, LOG_SIZE
        while at < source.end_offset:
            data = source.read(at, LOG_SIZE)
            slave.store.log.append_raw(at, data)
            at += len(data)
        slave.settle()
        got = get_messages(slave.store, "T1", 0, 0, is_slave=True)
        self.assertEqual(got.status, GetStatus.OFFSET_TOO_SMALL)
        got = get_messages(slave.store, "T1", 0, got.begin_offset, is_slave=True)
        self.assertEqual(self.numbers(got), list(range(got.begin_offset, 30)))

    def test_a_time_leads_to_its_message(self) -> None:
        """The first message at or after a time."""
        for timestamp, offset in ((0, 0), (1_000, 0), (1_001, 1), (1_150, 15), (1_290, 29), (1_291, 30)):
            self.assertEqual(offset_at(self.store, "T1", 0, timestamp), offset, timestamp)
        self.assertEqual(offset_at(self.store, "None", 0, 5), 0)

    def test_times_count_without_records(self) -> None:
        """Files of the log are gone, those of the queues are not: such messages were stored before."""
        self.store.checkpoint()

        def fail(begin: int) -> None:
            raise OSError("no")

        self.patch(self.store.queues, "expire", fail)
        self.store.maintenance(1e9, 4, keep_from=LOG_SIZE)
        queue = self.store.queues.get("T1", 0)
        assert queue is not None and queue.begin_index == 0
        units = queue.read(0, 30)
        (first, *_) = [unit.queue_offset for unit in units if unit.offset >= self.store.log.begin_offset]
        self.assertGreater(first, 0)
        for timestamp, offset in ((0, first), (1_000, first), (1_280, 28)):
            self.assertEqual(offset_at(self.store, "T1", 0, timestamp), offset)
        self.assertEqual([stored_ms(self.store, units[at]) for at in (0, first)], [0, 1_000 + 10 * first])

    def test_a_failing_disk_is_an_error(self) -> None:
        """A store error, not an empty answer."""
        def fail(offset: int, size: int) -> bytes:
            raise OSError("no")

        self.patch(self.store.log, "read", fail)
        self.assertRaises(StoreError, self.get, 0)
        self.assertRaises(StoreError, offset_at, self.store, "T1", 0, 1_100)
