# -*- test-case-name: tests.broker.transactions.test_ends -*-
"""A transaction ends once, whoever ends it, and whatever the clocks say."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.answering.refusals import Code, Refused
from dledger.rocketmq.broker.producing.halves import (
    DISCARDED_TOPIC,
    HALF_TOPIC,
    OP_TOPIC,
    TRANSACTION_GROUP,
    op_message,
)
from dledger.rocketmq.broker.producing.puts import NotPut, PutPipeline
from dledger.rocketmq.broker.producing.transactions import ends, ends_reading
from dledger.rocketmq.broker.producing.transactions.ends import COMMIT, ROLLBACK, UNKNOWN_END, TransactionEnds
from dledger.rocketmq.broker.producing.transactions.ends_reading import EndsReading
from dledger.rocketmq.broker.producing.transactions.half_progress import HalfProgress
from dledger.rocketmq.replication.put_status import PutStatus
from protocols.wire.rocketmq.message import Host, Message
from tests.broker.send_support import send_of
from tests.broker.transactions.rig import TransactionCase


class EndCase(TransactionCase):
    """Half messages that are ended more than once."""

    def asked(self, half: Message) -> Message:
        """Its producer is asked about it. @return: the copy."""
        self.assertEqual(len(self.wait(10.5)), 1)
        copy = self.of(HALF_TOPIC)[-1]
        self.assertNotEqual(copy.queue_offset, half.queue_offset)
        return copy

    def again(self) -> None:
        """Another master begins with the same log."""
        self.parts.metadata.save(lambda work: succeed(work()))
        self.parts.checks_of_halves.stop()
        self.broker.store.abandon()
        self.make()
        self.broker.clock.pump([0] * 5)

    def bodies(self) -> list[bytes]:
        """The messages that consumers see."""
        return [one.body for one in self.of("T1")]

    def refused(self, half: Message, kind: int, words: str, **fields: Any) -> None:
        """An end that is not taken."""
        answer = self.end(half, kind, **fields)
        self.assertEqual(answer.code, Code.ILLEGAL_OPERATION, answer.remark)
        self.assertIn(words, answer.remark or "")


class TornTests(EndCase):
    """A committed message is the last one of the log, and its op message is lost."""

    def tear(self, half: Message, **fields: Any) -> None:
        """Its commit is stored in part, and not answered with success; the broker ends."""
        put = self.parts.pipeline.put

        def torn(messages: Any, *, waits: bool = True) -> Any:
            return put(messages[:1], waits=waits)._replace(done=succeed(PutStatus.SERVICE_NOT_AVAILABLE))

        self.patch(self.parts.pipeline, "put", torn)
        self.assertNotEqual(self.end(half, COMMIT, **fields).code, 0)
        self.assertEqual((self.bodies(), self.ended), ([b"body"], []))
        self.again()

    def test_a_torn_commit_is_completed(self) -> None:
        """The next master stores the op message; nothing rolls the message back, or commits it twice."""
        half = self.half()
        self.tear(half)
        self.assertEqual(self.ended, [b"0"])
        self.refused(half, ROLLBACK, "is committed already")
        for _ in range(2):
            self.assertEqual(self.end(half).code, 0)
            self.assertEqual((self.wait(60), self.bodies(), self.ended), ([], [b"body"], [b"0"]))
            self.again()

    def test_a_torn_commit_of_a_copy(self) -> None:
        """Both half messages have ended: neither is asked about."""
        half = self.half()
        copy = self.asked(half)
        self.tear(copy, fromTransactionCheck="true")
        self.assertEqual(self.ended, [b"0", b"1"][-len(self.ended):])
        self.assertIn(b"1", self.ended)
        self.assertEqual((self.wait(60), self.bodies()), ([], [b"body"]))
        self.refused(half, ROLLBACK, "is committed already")

    def test_a_put_that_fails(self) -> None:
        """The op message is stored as soon as that is possible; until then no other end is taken."""
        half, put, tries = self.half(), PutPipeline.put, iter((True, False))

        def failing(pipeline: PutPipeline, messages: Any, *, waits: bool = True) -> Any:
            if messages[0].body == b"0" and (is_reported := next(tries, None)) is not None:
                if is_reported:
                    raise NotPut(PutStatus.SERVICE_NOT_AVAILABLE, "a test")
                return put(pipeline, [], waits=waits)._replace(
                    done=succeed(PutStatus.SERVICE_NOT_AVAILABLE)
                )
            return put(pipeline, messages, waits=waits)

        self.patch(PutPipeline, "put", failing)
        self.tear(half)
        self.refused(half, ROLLBACK, "is committed already")
        self.assertEqual(self.ended, [])
        self.wait(1)
        self.assertEqual((self.ended, next(tries, None)), ([b"0"], None))

    def test_other_last_messages(self) -> None:
        """A message that is no commit, or that a client made one, ends nothing."""
        half = self.half()
        for flag in (0, 8):
            self.client.send(send_of(b"plain", sysFlag=flag))
            self.again()
            self.assertEqual(self.ended, [])
        self.assertEqual(self.end(half, ROLLBACK).code, 0)


class OnceTests(EndCase):
    """The second end of a half message."""

    def test_a_rolled_back_message_is_not_committed(self) -> None:
        """Nothing commits it then; the same end is answered, and stores nothing."""
        half = self.half()
        self.assertEqual(self.end(half, ROLLBACK).code, 0)
        for _ in range(2):
            self.refused(half, COMMIT, "is rolled back already")
            self.assertEqual(self.end(half, ROLLBACK).code, 0)
            self.assertEqual((self.bodies(), len(self.ended)), ([], 1))
            self.again()

    def test_a_committed_message_is_not_rolled_back(self) -> None:
        """It is there once, and is not rolled back."""
        half = self.half()
        for _ in range(2):
            self.assertEqual(self.end(half, COMMIT).code, 0)
            self.refused(half, ROLLBACK, "is committed already")
            self.assertEqual((self.bodies(), len(self.ended)), ([b"body"], 1))
            self.again()

    def test_a_late_end_names_the_first_message(self) -> None:
        """An end that names the first half message ends the copy that was asked about."""
        half = self.half()
        copy = self.asked(half)
        self.assertEqual(self.end(half).code, 0)
        self.assertEqual(self.wait(60), [])
        self.assertEqual(self.end(copy, COMMIT, fromTransactionCheck="true").code, 0)
        self.refused(copy, ROLLBACK, "is committed already", fromTransactionCheck="true")
        self.again()
        self.assertEqual(self.end(copy, COMMIT).code, 0)
        self.assertEqual((self.wait(200), self.bodies()), ([], [b"body"]))
        self.assertEqual(self.of(DISCARDED_TOPIC), [])

    def test_late_after_a_change_of_master(self) -> None:
        """The next master knows the copy, too."""
        half = self.half()
        self.asked(half)
        self.again()
        self.assertEqual(self.end(half, ROLLBACK).code, 0)
        self.assertEqual((self.wait(200), self.bodies()), ([], []))
        self.refused(half, COMMIT, "rolled back")

    def test_answer_of_the_copy(self) -> None:
        """The producer answers about the copy; then its own commit comes late."""
        half = self.half()
        self.assertEqual(self.end(self.asked(half), ROLLBACK, fromTransactionCheck="true").code, 0)
        self.refused(half, COMMIT, "rolled back")
        self.again()
        self.refused(half, COMMIT, "rolled back")
        self.assertEqual(self.bodies(), [])

    def test_an_end_excludes_others_while_stored(self) -> None:
        """While an end is being stored no other one is taken; when it fails, another one is."""
        half = self.half()
        put, held = self.parts.pipeline.put, []

        def holding(messages: Any, *, waits: bool = True) -> Any:
            done: Deferred[PutStatus] = Deferred()
            held.append(done)
            return put(messages, waits=waits)._replace(done=done)

        self.patch(self.parts.pipeline, "put", holding)
        self.client.send(self.end_of(half))
        self.assertEqual(self.end(half, ROLLBACK).code, Code.SYSTEM_BUSY)
        held[0].callback(PutStatus.SERVICE_NOT_AVAILABLE)
        self.client.received()
        self.patch(self.parts.pipeline, "put", put)
        self.assertEqual(self.end(half, ROLLBACK).code, 0)

    def test_an_end_of_java_refuses_further_ends(self) -> None:
        """An op message of RocketMQ does not report the kind: then each further end is refused."""
        half = self.half()
        host = Host.of("127.0.0.1", 1)
        message = op_message(half.queue_offset, host, 1, end=COMMIT)
        self.put(message.topic, message.body, "TAGS\x01d\x02")
        self.again()
        for kind in (COMMIT, ROLLBACK):
            self.refused(half, kind, "has ended already")

    def test_not_read_yet(self) -> None:
        """Until a master knows which transactions have ended it takes no end."""
        half = self.half()
        self.broker.settle()
        self.parts.checks_of_halves.stop()
        self.parts.checks_of_halves.start()
        self.assertEqual(self.end(half).code, Code.SYSTEM_BUSY)
        self.broker.clock.pump([0] * 5)
        self.assertEqual(self.end(half).code, 0)

    def test_nothing_commits_into_a_deleted_topic(self) -> None:
        """Nothing is committed into a deleted topic; one that the table has lost is added."""
        half, other = self.half(), self.half(key="other")
        self.parts.metadata.topics.delete("T1", 1)
        self.assertEqual(self.end(half).code, 0)
        self.assertIsNotNone(self.parts.metadata.topics.get("T1"))
        self.parts.note_deletion("T1")
        self.parts.metadata.topics.delete("T1", 1)
        self.assertEqual(self.end(other).code, Code.TOPIC_NOT_EXIST)
        self.assertIsNone(self.parts.metadata.topics.get("T1"))


class ExpiryTests(EndCase):
    """Messages of transactions that expire while they are read."""

    def setUp(self) -> None:
        """Three transactions were rolled back."""
        super().setUp()
        for number in range(3):
            self.end(self.half(key=f"K{number}"), ROLLBACK)
        self.broker.settle()

    def expire(self, *topics: str) -> None:
        """All that the queues of these topics have is before the beginning of the log."""
        for topic in topics:
            queue = self.broker.store.queues.get(topic, 0)
            assert queue is not None
            self.patch(queue, "_begin_index", queue.next_index)

    def test_ends_expire_while_they_are_read(self) -> None:
        """A master goes on from the first message that is there; those that it has read count."""
        self.patch(ends_reading, "TURN_MESSAGES", 1)
        for topics, known in (((OP_TOPIC,), [ROLLBACK, None, None]), ((HALF_TOPIC, OP_TOPIC), [None] * 3)):
            table = TransactionEnds()
            reading = EndsReading(self.broker.store, table)
            reading.begin(0, 0)
            for _ in range(4 if len(topics) == 1 else 1):
                self.assertFalse(reading.go_on())
            self.expire(*topics)
            self.assertTrue(reading.go_on())
            self.assertEqual((table.is_loaded, [table.kind_of(at) for at in range(3)]), (True, known))

    def test_messages_expire_between_two_rounds(self) -> None:
        """The next round begins with the first ones that are there."""
        progress = HalfProgress(self.parts.inside)
        progress.find_begin()
        self.assertEqual((progress.half_at, progress.op_at), (0, 0))
        self.expire(HALF_TOPIC, OP_TOPIC)
        progress.find_begin()
        self.assertEqual((progress.half_at, progress.read_ops(), progress.ended), (3, False, set()))


    def test_a_former_master_was_further(self) -> None:
        """A round begins with what came since this master began, although its offset is after the end."""
        progress = HalfProgress(self.parts.inside)
        for topic in (HALF_TOPIC, OP_TOPIC):
            self.parts.metadata.consumer_offsets.commit(TRANSACTION_GROUP, topic, 0, 7, 0)
        self.end(self.half(key="K3"), ROLLBACK)
        self.broker.settle()
        progress.find_begin()
        self.assertEqual((progress.half_at, progress.op_at), (3, 3))


class ClockTests(EndCase):
    """Producers whose clocks are wrong."""

    def test_asked_in_time(self) -> None:
        """The age of a half message is that of the broker's clock."""
        for away_s in (0, 10, -10, -4 * 86_400):
            self.half(key=f"K{away_s}", born=self.broker.wall_ms() + away_s * 1000)
            self.assertEqual(self.wait(5), [])
            asked = self.wait(12)
            self.assertEqual({one.ext_fields["msgId"] for one in asked}, {f"K{away_s}"}, away_s)
            self.end(self.of(HALF_TOPIC)[-1], ROLLBACK, fromTransactionCheck="true")
        self.assertEqual(self.of(DISCARDED_TOPIC), [])

    def test_an_immunity_counts_from_the_first_message(self) -> None:
        """It counts from the first half message, whatever copies there are; a late end is refused."""
        half = self.half(born=self.broker.wall_ms() - 3_600_000, CHECK_IMMUNITY_TIME_IN_SECONDS="30")
        self.assertEqual(self.wait(25), [])
        self.assertEqual(len(self.wait(10)), 1)
        answer = self.end(half)
        self.assertEqual(answer.code, Code.ILLEGAL_OPERATION)
        self.assertIn("time of its first check is over", answer.remark or "")

    def test_a_producer_cannot_forge_store_times(self) -> None:
        """A producer cannot say when its half message was stored."""
        self.half(TRAN_PREPARED_STORE_TIME="1", TRAN_PREPARED_QUEUE_OFFSET="0", key="forged")
        self.assertNotIn("TRAN_PREPARED_STORE_TIME", self.of(HALF_TOPIC)[-1].properties)


class TableTests(SynchronousTestCase):
    """What is remembered."""

    def setUp(self) -> None:
        self.ends = TransactionEnds()
        self.ends.is_loaded = True

    def refused(self, first: int, kind: int) -> int:
        """@return: the code."""
        return int(self.assertRaises(Refused, self.ends.begin, first, kind).code)

    def test_the_table_forgets_the_oldest_ends(self) -> None:
        """The oldest ends are forgotten; then only what is known to be open ends."""
        self.patch(ends, "ENDS_MAX", 80)
        self.ends.copied(3, 200)
        for first in range(10, 100):
            self.assertTrue(self.ends.begin(first, COMMIT))
            self.ends.stored(first, COMMIT, is_stored=True)
        self.assertLessEqual(len(self.ends._kinds), 80)
        self.assertGreater(self.ends.floor, 10)
        self.assertEqual(self.refused(10, COMMIT), Code.ILLEGAL_OPERATION)
        self.assertEqual(self.refused(4, COMMIT), Code.ILLEGAL_OPERATION)
        self.assertTrue(self.ends.begin(3, COMMIT))
        self.assertFalse(self.ends.begin(99, COMMIT))

    def test_an_open_transaction_has_one_copy(self) -> None:
        """An open transaction has one copy, an ended one none."""
        self.ends.copied(1, 5)
        self.ends.copied(1, 9)
        self.assertEqual(self.ends.copy_of(1), 9)
        self.ends.add(1, UNKNOWN_END)
        self.ends.copied(1, 12)
        self.assertIsNone(self.ends.copy_of(1))
