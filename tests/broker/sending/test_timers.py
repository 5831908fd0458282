# -*- test-case-name: tests.broker.sending.test_timers -*-
"""Messages with a time of their own: delivered at that time, once, also by the next run of the broker."""

from __future__ import annotations

from typing import Any
from unittest import mock

from twisted.internet.defer import Deferred, succeed
from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.answering.refusals import Code
from dledger.rocketmq.broker.producing.delays import timers
from dledger.rocketmq.broker.producing.delays.timed import DONE_TOPIC, TIMED_TOPIC
from dledger.rocketmq.broker.producing.delays.timers import TIMER_GROUP
from dledger.rocketmq.broker.producing.puts import Put
from dledger.rocketmq.metadata.tables import TopicConfig
from dledger.rocketmq.replication.put_status import PutStatus
from dledger.testing.world.memory_disk import MemoryDisk
from protocols.wire.rocketmq.message import Message
from tests.broker.put_support import WALL_MS
from tests.broker.send_support import Sending, send_of


class TimerCase(SynchronousTestCase):
    """A master."""

    def setUp(self) -> None:
        self.disk = MemoryDisk()
        self.make()

    def make(self, *, store: dict[str, Any] | None = None, **options: Any) -> None:
        """Running; also once more on the same disk."""
        sizes = {"mapped_file_size_commit_log": 1 << 17, **(store or {})}
        self.broker = Sending(self.disk, options=options, store=sizes)
        self.parts = self.broker.broker
        self.producer = self.broker.connect()
        self.addCleanup(self.broker.store.abandon)
        self.addCleanup(lambda: self.parts.timers.stop())
        self.parts.timers.start()
        self.settle()

    def again(self, *, crash: bool = False, store: dict[str, Any] | None = None) -> None:
        """The broker ends, and another one runs on its disk."""
        if not crash:
            self.parts.timers.sweep()
            self.parts.metadata.save(lambda work: succeed(work()))
        self.parts.timers.stop()
        self.broker.store.abandon()
        passed_s = self.broker.clock.seconds()
        self.make(store=store)
        self.broker.clock.advance(passed_s)
        self.settle()

    def settle(self) -> None:
        """What happens without a wait."""
        self.broker.clock.pump([0.0] * 4)
        self.broker.settle()
        self.broker.clock.pump([0.0] * 4)

    def wait(self, seconds: float) -> None:
        """Time goes by."""
        steps = max(round(seconds * 4), 1)
        for _ in range(steps):
            self.broker.clock.advance(seconds / steps)
            self.settle()
        self.parts.timers.sweep()

    def send(self, body: bytes, delay_ms: int, **fields: Any) -> int:
        """@return: the code of the answer."""
        named = {"properties": f"TIMER_DELAY_MS\x01{delay_ms}", **fields}
        (answer,) = self.producer.send(send_of(body, **named))
        self.settle()
        return answer.code

    def of(self, topic: str = "T1") -> list[Message]:
        """The messages of a topic."""
        return [one for one in self.broker.stored() if one.topic == topic]

    def bodies(self) -> list[bytes]:
        """What is delivered."""
        return [one.body for one in self.of()]


class TimerTests(TimerCase):
    """Deliveries."""

    def test_at_their_times(self) -> None:
        """In the order of their times, at the millisecond, with the properties of their producers."""
        for body, delay_ms in ((b"late", 9000), (b"soon", 1500), (b"now", 0)):
            self.assertEqual(self.send(body, delay_ms, queueId=2), 0)
        self.assertEqual(self.bodies(), [b"now"])
        self.broker.clock.advance(1.499)
        self.settle()
        self.assertEqual(self.bodies(), [b"now"])
        self.broker.clock.advance(0.001)
        self.settle()
        self.assertEqual(self.bodies(), [b"now", b"soon"])
        self.wait(8)
        self.assertEqual(self.bodies(), [b"now", b"soon", b"late"])
        found = self.of()[-1]
        self.assertEqual((found.queue_id, found.properties["TIMER_DELAY_MS"]), (2, "9000"))
        self.assertTrue({"TIMER_OUT_MS", "REAL_TOPIC", "REAL_QID"}.isdisjoint(found.properties))
        self.assertEqual((self.parts.timers.delivered, len(self.parts.timers)), (2, 0))

    def test_refused(self) -> None:
        """Times that cannot be; a batch and a half message have none; a full broker takes no more."""
        self.assertEqual(self.send(b"a", 10**13), Code.MESSAGE_ILLEGAL)
        self.assertEqual(self.send(b"a", 5, properties="TIMER_DELAY_MS\x015\x02TRAN_MSG\x01true"), 1)
        self.patch(timers, "TIMERS_MAX", 1)
        self.assertEqual([self.send(b"a", 50), self.send(b"b", 50)], [0, Code.SYSTEM_BUSY])
        self.assertEqual(self.send(b"c", 0), 0)

    def test_level_first(self) -> None:
        """A message with a level, too, waits for the level."""
        self.assertEqual(self.send(b"a", 0, properties="TIMER_DELAY_MS\x015\x02DELAY\x013"), 0)
        self.assertEqual([one.topic for one in self.broker.stored()], ["SCHEDULE_TOPIC_XXXX"])

    def test_next_run(self) -> None:
        """What waits is delivered by the next run, and what was delivered is not, even after a crash."""
        self.send(b"long", 60_000)
        self.send(b"short", 1000)
        self.wait(2)
        for crash in (False, True, True):
            self.again(crash=crash)
            self.wait(2)
            self.assertEqual(self.bodies(), [b"short"], crash)
        self.wait(60)
        self.assertEqual(self.bodies(), [b"short", b"long"])
        offsets = self.parts.metadata.consumer_offsets
        found = [offsets.query(TIMER_GROUP, topic, 0) for topic in (TIMED_TOPIC, DONE_TOPIC)]
        self.assertEqual(found, [2, 2])
        self.again()
        self.wait(2)
        self.assertEqual(self.bodies(), [b"short", b"long"])

    def test_begin_of_the_next(self) -> None:
        """The next master begins at the first message that waits, and reads the notes that concern it."""
        self.send(b"long", 60_000)
        for _ in range(3):
            self.send(b"short", 1000)
            self.wait(2)
        offsets = self.parts.metadata.consumer_offsets
        self.assertIn(offsets.query(TIMER_GROUP, TIMED_TOPIC, 0), (0, None))
        self.assertIsNone(offsets.query(TIMER_GROUP, DONE_TOPIC, 0))
        self.again()
        self.wait(60)
        self.assertEqual(self.bodies(), [b"short"] * 3 + [b"long"])
        self.assertEqual(self.parts.metadata.consumer_offsets.query(TIMER_GROUP, DONE_TOPIC, 0), 4)

    def test_all_notes_are_gone(self) -> None:
        """A master whose notes have all expired, after the place that it wrote down, delivers."""
        for _ in range(2):
            self.send(b"short", 1000)
            self.wait(2)
        offsets = self.parts.metadata.consumer_offsets
        offsets.commit(TIMER_GROUP, TIMED_TOPIC, 0, 2, WALL_MS)
        offsets.commit(TIMER_GROUP, DONE_TOPIC, 0, 1, WALL_MS)
        self.parts.metadata.save(lambda work: succeed(work()))
        queue = self.broker.store.queues.get(DONE_TOPIC, 0)
        assert queue is not None
        self.parts.timers.stop()
        self.patch(queue, "_begin_index", queue.next_index)
        self.parts.timers.start()
        self.settle()
        self.send(b"next", 1000)
        self.wait(2)
        self.assertEqual(self.bodies(), [b"short", b"short", b"next"])

    def test_a_former_master_was_further(self) -> None:
        """A message that comes after the log has lost others is delivered, also by the next run."""
        offsets = self.parts.metadata.consumer_offsets
        for has_queue in (False, True):
            offsets = self.parts.metadata.consumer_offsets
            offsets.commit(TIMER_GROUP, TIMED_TOPIC, 0, 7, WALL_MS)
            self.parts.timers.stop()
            self.parts.timers.start()
            self.assertEqual(self.broker.store.queues.get(TIMED_TOPIC, 0) is not None, has_queue)
            if not has_queue:
                self.wait(2)
                offsets.commit(TIMER_GROUP, TIMED_TOPIC, 0, 0, WALL_MS)  # as L{OffsetBounds} does
            self.send(b"a", 4000)
            self.wait(1)
            self.again()
            self.wait(5)
            self.assertEqual(self.bodies(), [b"a"] * (1 + has_queue))

    def test_not_stored(self) -> None:
        """A delivery that the log refuses later is repeated."""
        self.send(b"a", 1000)
        put, held = self.parts.pipeline.put, []

        def holding(messages: Any, *, waits: bool = True) -> Any:
            done: Deferred[PutStatus] = Deferred()
            held.append(done)
            return put(messages, waits=waits)._replace(done=done)

        self.patch(self.parts.pipeline, "put", holding)
        self.wait(2)
        self.assertEqual(len(held), 1)
        held[0].callback(PutStatus.SERVICE_NOT_AVAILABLE)
        self.wait(1)
        self.assertEqual((len(held), len(self.parts.timers)), (2, 1))
        held[1].callback(PutStatus.PUT_OK)
        self.assertEqual(len(self.parts.timers), 0)

    def test_a_failed_read_loses_no_message(self) -> None:
        """The log cannot be read for a moment, while a message is found or delivered: it waits."""
        sound = self.parts.store.sound
        read, broken = sound.at, [2]

        def failing(offset: int, **named: Any) -> Any:
            if broken[0]:
                broken[0] -= 1
                raise OSError(24, "Too many open files")
            return read(offset, **named)

        self.patch(sound, "at", failing)
        self.assertEqual([self.send(b"a", 1000), self.send(b"b", 1000)], [0, 0])
        self.wait(0.5)
        self.assertEqual((broken, len(self.parts.timers)), ([0], 2))
        broken[0] = 2
        self.wait(3)
        self.assertEqual((broken, self.bodies()), ([0], [b"a", b"b"]))

    def test_a_surprise_does_not_end_deliveries(self) -> None:
        """A failure that nobody has thought of is for the log; what waits is tried again a minute later."""
        self.send(b"a", 1000)
        with mock.patch.object(self.parts.timers, "_deliver", side_effect=RuntimeError("a test")):
            self.assertRaises(RuntimeError, self.wait, 2)
        self.wait(59)
        self.assertEqual(self.bodies(), [])
        self.wait(2)
        self.assertEqual(self.bodies(), [b"a"])

    def test_a_smaller_size_loses_no_message(self) -> None:
        """Somebody lowers max_message_size: what was stored before is delivered all the same."""
        self.assertEqual(self.send(bytes(70_000), 1000), 0)
        self.again(store={"max_message_size": 1000})
        self.wait(2)
        self.assertEqual(self.bodies(), [bytes(70_000)])
        self.assertEqual(self.send(bytes(70_000), 1000), Code.MESSAGE_ILLEGAL)

    def test_notes_in_order(self) -> None:
        """A recall whose put has not ended holds the place of the notes; and that never goes back."""
        own, real = self.parts.timers, self.parts.timers.pipeline.put
        held: Deferred[PutStatus] = Deferred()

        def place() -> int:
            return self.parts.metadata.consumer_offsets.query(TIMER_GROUP, DONE_TOPIC, 0) or 0

        def put(*arguments: Any, **named: Any) -> Put:
            return real(*arguments, **named)._replace(done=held)

        with mock.patch.object(own.pipeline, "put", put):
            own.recall("T1", "K", WALL_MS + 30_000)
        self.send(b"soon", 1000)
        self.wait(2)
        self.assertEqual((self.bodies(), place()), ([b"soon"], 0))
        self.again()
        self.assertEqual(len(self.parts.timers._recalled), 1)
        self.wait(60)
        self.assertEqual(place(), 2)
        self.parts.timers._add_note(0, -1, 0)
        self.parts.timers.sweep()
        self.assertEqual(place(), 2)

    def test_each_message_with_a_time_has_a_key(self) -> None:
        """Also one whose producer has set an empty key, or a property whose name ends like it."""
        for name in ("UNIQ_KEY\x01", "MY_UNIQ_KEY\x01a"):
            self.assertEqual(self.send(b"a", 1000, properties=f"{name}\x02TIMER_DELAY_MS\x011000\x02"), 0)
        keys = {key for _, key, _ in self.parts.timers.keys()}
        self.assertEqual((len(keys), "" in keys), (2, False))

    def test_a_queue_that_is_gone(self) -> None:
        """The topic has fewer queues by now: the message comes in one that consumers read."""
        self.send(b"a", 1000, queueId=3)
        self.parts.metadata.topics.put(
            TopicConfig(topic_name="T1", read_queue_nums=2, write_queue_nums=2), WALL_MS
        )
        self.wait(2)
        self.assertEqual([one.queue_id for one in self.of()], [1])

    def test_clock_set_back(self) -> None:
        """
        A delay that began while the clock was an hour ahead ends when it is set back, also over a restart; a
        time that the producer has named does not move.
        """
        for is_restarted in (False, True):
            self.broker.clock.advance(3600)
            at_ms = self.broker.wall_ms() + 5000
            for body, properties in (
                (b"ms", "TIMER_DELAY_MS\x014000"), (b"s", "TIMER_DELAY_SEC\x015"),
                (b"at", f"TIMER_DELIVER_MS\x01{at_ms}"),
            ):
                (answer,) = self.producer.send(send_of(body, properties=properties))
                self.assertEqual(answer.code, 0, answer.remark)
            self.wait(1)
            self.assertEqual(self.bodies(), [b"ms", b"s", b"at"] * is_restarted)
            if is_restarted:
                self.parts.timers.stop()
                self.broker.store.abandon()
                self.make()
            else:
                self.patch(self.parts.timers, "_wall_ms", lambda: self.broker.wall_ms() - 3_600_000)
                self.parts.timers.sweep()
            self.wait(1)
            self.assertEqual(sorted(self.bodies()[3 * is_restarted :]), [b"ms", b"s"])
            if not is_restarted:
                self.patch(self.parts.timers, "_wall_ms", self.broker.wall_ms)
                self.wait(6)

    def test_deleted_topic(self) -> None:
        """Messages for a topic that was deleted are skipped."""
        self.send(b"a", 1000)
        self.parts.note_deletion("T1")
        self.parts.metadata.topics.delete("T1", WALL_MS)
        self.wait(2)
        self.assertEqual((self.bodies(), self.parts.timers.passed_over, len(self.parts.timers)), ([], 1, 0))

    def test_many(self) -> None:
        """More than one turn takes."""
        self.patch(timers, "TURN_MESSAGES", 2)
        self.patch(timers, "TURN_READS", 3)
        for number in range(10):
            self.send(b"%d" % number, 1000)
        self.again()
        self.wait(2)
        self.assertEqual(sorted(self.bodies()), [b"%d" % number for number in range(10)])

    def test_own_topics(self) -> None:
        """Nobody sends there."""
        self.send(b"a", 1000)
        for topic in (TIMED_TOPIC, DONE_TOPIC):
            self.assertEqual(self.send(b"x", 0, topic=topic), Code.NO_PERMISSION)
