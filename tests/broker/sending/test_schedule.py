# -*- test-case-name: tests.broker.sending.test_schedule -*-
"""Delayed messages: not before their time, in order, none lost."""

from __future__ import annotations

from typing import Any
from unittest import mock

import attrs
from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.broker.options.own_address import OwnAddress
from dledger.rocketmq.broker.producing.delays import schedule
from dledger.rocketmq.broker.producing.delays.schedule import ScheduleMessageService
from dledger.rocketmq.metadata.offsets import DelayOffsets
from dledger.rocketmq.metadata.tables import TopicConfig
from dledger.rocketmq.replication.put_status import PutStatus
from dledger.rocketmq.store.records.records import SCHEDULE_TOPIC, NewMessage
from dledger.testing.world.memory_disk import MemoryDisk
from protocols.wire.rocketmq.message import Host, Message
from tests.broker.put_support import WALL_MS, Writing
from tests.broker.support import message, messages_in, plain

STORE_HOST = Host.of("10.0.0.9", 10911)


def delayed(body: bytes, level: int, *, topic: str = "T1", queue_id: int = 2, **more: str) -> NewMessage:
    """A message as it is stored while it waits."""
    properties = {"TAGS": "A", "KEYS": "k", "DELAY": str(level), "REAL_TOPIC": topic,
                  "REAL_QID": str(queue_id), **more}
    return message(
        body, topic=SCHEDULE_TOPIC, queue_id=level - 1, reconsume_times=3, flag=9,
        properties={name: value for name, value in properties.items() if value},
    )


class ScheduleCase(SynchronousTestCase):
    """A master with levels of 1, 5 and 10 seconds."""

    def setUp(self) -> None:
        self.disk = MemoryDisk()
        self.offsets = DelayOffsets(WALL_MS)
        self.make()

    def make(self, levels: str = "1s 5s 10s", **store: int) -> None:
        """Started; also once more on the same disk, and with the same offsets."""
        self.writing = Writing(self.disk, store={"message_delay_level": levels, **store})
        self.reported: list[tuple[str, int, int]] = []
        self.topics = self.writing.broker.metadata.topics
        self.skew_ms = 0
        own = OwnAddress()
        own.bind("10.0.0.9", 10911)
        self.writing.metadata.delay_offsets = self.offsets
        inside = attrs.evolve(self.writing.inside, own=own, wall_ms=self.wall_ms)
        self.schedule = ScheduleMessageService(inside, self.writing.pipeline, topic_of=self.notify)
        for name in ("T1", "T2"):
            self.topics.put(TopicConfig(topic_name=name, read_queue_nums=4, write_queue_nums=4), 1)
        self.writing.broker.schedule = self.schedule
        self.schedule.start()
        self.settle()

    def notify(self, topic: str, queue_id: int, offset: int) -> TopicConfig | None:
        """A message goes to this queue."""
        self.reported.append((topic, queue_id, offset))
        return self.topics.get(topic)

    def tearDown(self) -> None:
        self.schedule.stop()
        self.writing.stop()

    def wall_ms(self) -> int:
        """The time of day, which may be set."""
        return self.writing.wall_ms() + self.skew_ms

    def settle(self) -> None:
        """What is to be done at once is done."""
        self.writing.settle()

    def put(self, *messages: NewMessage) -> None:
        """Producers send."""
        self.writing.pipeline.put(plain(*[[one] for one in messages]))
        self.settle()

    def wait(self, seconds: float) -> None:
        """Time goes by."""
        self.writing.clock.pump([0.1] * round(seconds * 10))
        self.settle()

    def delivered(self, topic: str = "T1") -> list[Message]:
        """What was delivered."""
        return [one for one in messages_in(self.writing.store.log) if one.topic == topic]

    def bodies(self, topic: str = "T1") -> list[bytes]:
        """Their bodies."""
        return [one.body for one in self.delivered(topic)]


class DeliveryTests(ScheduleCase):
    """The usual course."""

    def test_not_before_its_time(self) -> None:
        """Each level after its own delay; nothing is left to do then."""
        self.put(delayed(b"ten", 3), delayed(b"one", 1), delayed(b"five", 2))
        self.assertEqual(self.bodies(), [])
        for seconds, bodies in ((0.8, []), (0.4, [b"one"]), (3.6, [b"one"]), (0.4, [b"one", b"five"]),
                                (5.0, [b"one", b"five", b"ten"])):
            self.wait(seconds)
            self.assertEqual(self.bodies(), bodies)
        self.assertEqual([self.offsets.get(level) for level in (1, 2, 3)], [1, 1, 1])
        self.assertEqual(self.schedule.delivered, 3)

    def test_a_queue_that_is_gone(self) -> None:
        """The topic has fewer queues by now: the message comes in one that consumers read."""
        self.put(*(delayed(b"%d" % queue_id, 1, queue_id=queue_id) for queue_id in range(4)))
        self.topics.put(TopicConfig(topic_name="T1", read_queue_nums=3, write_queue_nums=2), 2)
        self.wait(1.5)
        self.assertEqual([one.queue_id for one in self.delivered()], [0, 1, 2, 1])

    def test_a_level_that_is_gone(self) -> None:
        """After a start with fewer levels, what waits in the others comes at its time, too."""
        self.put(delayed(b"ten", 3), delayed(b"five", 2))
        self.schedule.stop()
        self.writing.stop()
        self.make("1s")
        self.assertEqual(self.schedule.waiting, {1: 0, 2: 1, 3: 1})
        self.wait(4.8)
        self.assertEqual(self.bodies(), [])
        self.wait(0.4)
        self.assertEqual(self.bodies(), [b"five"])
        self.wait(5.0)
        self.assertEqual((self.bodies(), self.schedule.waiting), ([b"five", b"ten"], {1: 0, 2: 0, 3: 0}))

    def test_a_level_far_above_the_others(self) -> None:
        """A record of another program has any number of a queue: no level is looked at that has none."""
        self.schedule.arrived({(SCHEDULE_TOPIC, 1_000_000)})
        self.wait(1)
        self.assertEqual(self.schedule.waiting, {1: 0, 2: 0, 3: 0, 1_000_001: 0})

    def test_reported(self) -> None:
        """Where each message goes is reported when it is delivered, and where it was stored."""
        self.put(delayed(b"one", 1, topic="T2", queue_id=3))
        self.assertEqual(self.reported, [])
        self.wait(1.2)
        self.assertEqual(self.reported, [("T2", 3, 0)])

    def test_exactly(self) -> None:
        """The timer is set for the moment, not for the next look."""
        self.put(delayed(b"one", 1))
        self.writing.clock.advance(0.999)
        self.assertEqual(self.bodies(), [])
        self.writing.clock.advance(0.001)
        self.assertEqual(self.bodies(), [b"one"])

    def test_the_message(self) -> None:
        """It is as it was sent, except its delay; it goes to its own topic and queue, by our hands."""
        self.put(delayed(b"one", 1))
        self.wait(1.1)
        (found,) = self.delivered()
        self.assertEqual((found.queue_id, found.flag, found.reconsume_times), (2, 9, 3))
        self.assertEqual((found.store_host, found.born_timestamp), (STORE_HOST, 1_700_000_000_000))
        self.assertEqual(found.properties, {
            "TAGS": "A", "KEYS": "k", "REAL_TOPIC": "T1", "REAL_QID": "2", "WAIT": "false",
        })

    def test_order(self) -> None:
        """Within a level as they were sent, whenever that was."""
        self.put(delayed(b"0", 1), delayed(b"1", 1))
        self.wait(0.5)
        self.put(delayed(b"2", 1))
        self.wait(0.6)
        self.assertEqual(self.bodies(), [b"0", b"1"])
        self.wait(0.5)
        self.assertEqual(self.bodies(), [b"0", b"1", b"2"])

    def test_idle(self) -> None:
        """Where nothing waits no timer runs; other topics do not set one, and there is never a second."""
        assert self.writing.store.indexing is not None
        self.writing.store.indexing.stop()  # it has a timer of its own
        timers = len(self.writing.clock.getDelayedCalls())
        self.put(message(b"x", topic="T2"))
        self.assertEqual(len(self.writing.clock.getDelayedCalls()), timers)
        for level in (1, 2, 1):
            self.put(delayed(b"one", level))
            self.assertEqual(len(self.writing.clock.getDelayedCalls()), timers + 1)

    def test_stopped(self) -> None:
        """After the end nothing is delivered."""
        self.put(delayed(b"one", 1))
        self.schedule.stop()
        self.wait(2)
        self.put(delayed(b"two", 1))
        self.wait(2)
        self.assertEqual(self.bodies(), [])

    def test_goes_on(self) -> None:
        """A broker that comes back delivers what is due, from where it was."""
        self.put(delayed(b"0", 1), delayed(b"1", 2))
        self.wait(1.1)
        self.tearDown()
        self.make()
        self.skew_ms = 4000
        self.wait(1.1)
        self.assertEqual(self.bodies(), [b"0", b"1"])


class BoundTests(ScheduleCase):
    """A turn has a bound."""

    def test_messages(self) -> None:
        """The bound of a turn is for all levels together."""
        self.patch(schedule, "TURN_MESSAGES", 3)
        self.put(*[delayed(b"%d" % number, 1) for number in range(4)], delayed(b"x", 2))
        self.schedule.stop()
        self.wait(6)
        counts = []
        for _ in range(3):
            self.schedule.turn()
            counts.append(self.schedule.delivered)
        self.assertEqual(counts, [3, 5, 5])
        self.assertEqual(self.bodies(), [b"0", b"1", b"2", b"3", b"x"])

    def test_bytes(self) -> None:
        """A turn has a bound in bytes, and one message at least."""
        self.patch(schedule, "TURN_BYTES", 10)
        self.put(delayed(b"0", 1), delayed(b"1", 1), delayed(b"2", 2))
        self.schedule.stop()
        self.wait(6)
        counts = []
        for _ in range(3):
            self.schedule.turn()
            counts.append(self.schedule.delivered)
        self.assertEqual(counts, [1, 2, 3])


class TroubleTests(ScheduleCase):
    """What can go wrong."""

    def test_refused(self) -> None:
        """While messages are refused they wait; then they come, once. The trouble is logged once."""
        self.put(delayed(b"one", 1))
        refusal: list[Any] = [self.writing.service.refusal]
        status = self.refuse()
        with capturedLogs() as events:
            self.wait(2)
        self.assertEqual(len([event for event in events if "have to wait" in event["log_format"]]), 1)
        self.assertEqual((self.bodies(), self.offsets.get(1)), ([], 0))
        self.writing.service.refusal = refusal[0]  # type: ignore[method-assign]
        self.wait(0.5)
        self.assertEqual((self.bodies(), self.offsets.get(1), status), ([b"one"], 1, 14))

    def refuse(self) -> int:
        """Every put is refused from now on. @return: with this code."""
        refused = PutStatus.SERVICE_NOT_AVAILABLE
        self.writing.service.refusal = lambda: refused  # type: ignore[method-assign]
        return refused.remoting_code

    def test_a_surprise_does_not_end_deliveries(self) -> None:
        """A failure that nobody has thought of is for the log; what waits is tried again a minute later."""
        self.put(delayed(b"one", 1))
        with mock.patch.object(self.schedule, "_due", side_effect=RuntimeError("a test")):
            self.assertRaises(RuntimeError, self.wait, 2)
        self.wait(58)
        self.assertEqual(self.bodies(), [])
        self.wait(4)
        self.assertEqual(self.bodies(), [b"one"])

    def test_a_smaller_size_loses_no_message(self) -> None:
        """Somebody lowers max_message_size: what was stored before is delivered all the same."""
        size = 1 << 17
        self.schedule.stop()
        self.writing.stop()
        self.disk = MemoryDisk()
        self.make(mapped_file_size_commit_log=size)
        self.put(delayed(bytes(70_000), 1))
        self.schedule.stop()
        self.writing.stop()
        self.make(mapped_file_size_commit_log=size, max_message_size=1000)
        self.wait(2)
        self.assertEqual(self.bodies(), [bytes(70_000)])

    def test_broker_stops(self) -> None:
        """Then nobody tries any more, and nothing is logged."""
        self.put(delayed(b"one", 1))
        self.writing.pipeline.close("the broker stops")
        with capturedLogs() as events:
            self.wait(2)
        self.assertEqual([event for event in events if "delayed" in event["log_format"]], [])
        self.assertEqual(self.bodies(), [])

    def test_clock_set_back(self) -> None:
        """A message whose time would be further off than its delay is due now."""
        self.put(delayed(b"one", 2))
        self.skew_ms = -60_000
        self.wait(1.1)
        self.assertEqual(self.bodies(), [b"one"])

    def test_clock_set_forward(self) -> None:
        """It is noticed within a second."""
        self.put(delayed(b"one", 3))
        self.skew_ms = 60_000
        self.wait(1.1)
        self.assertEqual(self.bodies(), [b"one"])

    def test_nowhere_to_go(self) -> None:
        """What has no topic or queue to go to is passed over; those after it come."""
        self.put(delayed(b"0", 1, topic=""), delayed(b"1", 1, topic="a/b"), delayed(b"2", 1, REAL_QID="-1"),
                 delayed(b"3", 1, topic=SCHEDULE_TOPIC), delayed(b"4", 1, REAL_QID="99999999999"),
                 delayed(b"5", 1))
        self.wait(1.1)
        self.assertEqual((self.bodies(), self.schedule.passed_over, self.offsets.get(1)), ([b"5"], 5, 6))

    def test_gone(self) -> None:
        """Messages that the log does not have any more are passed over."""
        self.put(delayed(b"old", 1), *[message(b"x" * 1000, topic="T2") for _ in range(8)])
        self.schedule.stop()
        self.wait(2)
        self.writing.store.log.expire_first()
        self.schedule.start()
        self.put(delayed(b"new", 1))
        self.wait(1.1)
        self.assertEqual((self.bodies(), self.schedule.passed_over), ([b"new"], 1))

    def test_offsets_corrected(self) -> None:
        """Offsets that the queue does not have are taken for the nearest."""
        self.put(delayed(b"0", 1))
        self.schedule.stop()
        self.offsets.put(1, 9, WALL_MS)
        self.schedule.start()
        self.settle()
        self.assertEqual(self.offsets.get(1), 1)
        self.put(delayed(b"1", 1))
        self.wait(1.1)
        self.assertEqual(self.bodies(), [b"1"])

    def test_offset_of_lost_messages(self) -> None:
        """Messages after the start, with the numbers of lost ones, are delivered."""
        self.schedule.stop()
        self.offsets.put(1, 4, WALL_MS)
        self.schedule.start()
        self.put(delayed(b"0", 1))
        self.wait(1.1)
        self.put(delayed(b"1", 1))
        self.wait(1.1)
        self.assertEqual((self.bodies(), self.offsets.get(1)), ([b"0", b"1"], 2))
