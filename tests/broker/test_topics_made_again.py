# -*- test-case-name: tests.broker.test_topics_made_again -*-
"""A topic that was deleted is over: nothing of it comes up in a new one of its name."""

from __future__ import annotations

from typing import Any
from unittest import mock

import attrs
from twisted.internet.defer import succeed
from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.answering.refusals import Code
from dledger.rocketmq.broker import lost_topics
from dledger.rocketmq.broker.ha.put_status import PutStatus
from dledger.rocketmq.broker.metadata.tables import BEGINS_AT, TopicConfig, Topics
from dledger.rocketmq.broker.popping.check_points import pop_retry_topic
from dledger.rocketmq.broker.puts.halves import HALF_TOPIC
from dledger.rocketmq.broker.transactions.ends import COMMIT
from dledger.rocketmq.broker.transactions.ends_reading import first_place
from protocols.wire.remoting import RemotingCommand
from tests.broker.popping.rig import REVIVE, PopCase, pop_of
from tests.broker.transactions.rig import TransactionCase

DELETE, MAKE = 215, 17
FIELDS = {
    "topic": "T1", "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6",
    "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
}


def made(name: str = "T1", **rest: object) -> TopicConfig:
    """An entry."""
    return TopicConfig(topic_name=name, read_queue_nums=4, write_queue_nums=4, rest=rest)


class TableTests(SynchronousTestCase):
    """Where a topic begins."""

    def setUp(self) -> None:
        self.topics = Topics(1)
        self.topics.log_end = lambda name: 700

    def test_new(self) -> None:
        """At the end of the log; a change of its settings changes nothing of that; it is in the file."""
        self.topics.put(made(), 1)
        self.assertEqual(self.topics.begins_at("T1"), 700)
        self.topics.log_end = lambda name: 900
        self.topics.put(TopicConfig(topic_name="T1", read_queue_nums=8), 2)
        self.assertEqual(self.topics.begins_at("T1"), 700)
        again = Topics(1)
        again.load(self.topics.file_bytes())
        self.assertEqual((again.begins_at("T1"), again.entries["T1"].read_queue_nums), (700, 8))
        self.topics.delete("T1", 3)
        self.assertEqual(self.topics.begins_at("T1"), 0)
        self.topics.put(made(), 4)
        self.assertEqual(self.topics.begins_at("T1"), 900)

    def test_told(self) -> None:
        """An entry that has a place keeps it; what is no place counts for nothing."""
        self.topics.put(made(**{BEGINS_AT: 0}), 1)
        self.assertEqual(self.topics.begins_at("T1"), 0)
        for value in ("7", -1, None, [1]):
            self.topics.put(made("T2", **{BEGINS_AT: value}), 1)
            self.assertEqual(self.topics.begins_at("T2"), 0)

    def test_another_log(self) -> None:
        """A place after the end of the log is forgotten: the log is another one, or older."""
        self.topics.put(made(), 1)
        self.assertEqual(self.topics.begin_within(700, 2), [])
        self.assertEqual(self.topics.begin_within(699, 2), ["T1"])
        self.assertEqual((self.topics.begins_at("T1"), self.topics.begin_within(0, 3)), (0, []))


class AgainCase(PopCase):
    """T1, with its messages, is deleted and made again."""

    is_kept = False

    def make(self, **options: Any) -> None:
        """Everybody may change topics."""
        super().make(change_hosts=("*",), **options)

    def setUp(self) -> None:
        super().setUp()
        self.parts.lost_topics.restore()
        if self.is_kept:  # as on a raft log
            self.patch(type(self.parts.store), "forget_topic", lambda store, topic: None)

    def admin(self, code: int) -> None:
        """An administrator's request."""
        answers = self.client.send(RemotingCommand(code=code, opaque=1, ext_fields=FIELDS))
        self.settle()
        (answer,) = answers or self.client.received()
        self.assertEqual(answer.code, 0, answer.remark)

    def make_again(self) -> None:
        """Delete it and make it, with one new message."""
        self.admin(DELETE)
        self.admin(MAKE)
        self.send(b"new")

    def field(self, code: int, name: str, **fields: str) -> int:
        """A number in the answer to a question about queue 0."""
        named = {"topic": "T1", "queueId": "0", **fields}
        (answer,) = self.client.send(RemotingCommand(code=code, opaque=1, ext_fields=named))
        self.assertEqual(answer.code, 0, answer.remark)
        return int(answer.ext_fields[name])


class LostTests(AgainCase):
    """A message makes a deleted topic again, and the broker crashes before the table is written."""

    def test_begin(self) -> None:
        """The topic begins with the first message since the deletion, also with one that waits."""
        for is_delayed in (False, True):
            self.send(b"old", properties="DELAY\x011\x02")
            self.wait(1)
            self.admin(DELETE)
            self.wait(1)
            if is_delayed:
                self.send(b"waits", properties="DELAY\x012\x02")
            self.send(b"new")
            self.again(crash=True)
            self.parts.lost_topics.restore()
            first = b"waits" if is_delayed else b"new"
            (begin,) = [one.physical_offset for one in self.broker.stored() if one.body == first][-1:]
            self.assertEqual(self.parts.metadata.topics.begins_at("T1"), begin)


    def test_made_again(self) -> None:
        """A topic that was lost, and is made by others, has the messages that wait for it."""
        for code in (MAKE, 0):
            self.send(b"waits", properties="DELAY\x012\x02")
            table = b'{"topicConfigTable":{},"dataVersion":{"stateVersion":0,"timestamp":1,"counter":"1"}}'
            self.disk.write_file("/store/config/topics.json", table)
            self.again(crash=True)
            self.parts.lost_topics.restore()
            self.parts.schedule.start()
            self.addCleanup(self.parts.schedule.stop)
            if code:
                self.admin(code)
            else:
                self.send(b"new")
            self.wait(9)
            self.assertEqual([one.body for one in self.of("T1")][-1], b"waits")
            self.parts.schedule.stop()

    def test_deleted_again(self) -> None:
        """A topic that was lost, added and deleted is not made again by a message that waits for it."""
        self.send(b"first", properties="DELAY\x011\x02")
        self.send(b"second", properties="DELAY\x012\x02")
        table = b'{"topicConfigTable":{},"dataVersion":{"stateVersion":0,"timestamp":1,"counter":"1"}}'
        self.disk.write_file("/store/config/topics.json", table)
        self.again(crash=True)
        self.parts.lost_topics.restore()
        self.parts.schedule.start()
        self.addCleanup(self.parts.schedule.stop)
        self.wait(3)
        self.assertEqual([one.body for one in self.of("T1")], [b"first"])
        self.admin(DELETE)
        self.wait(9)
        self.assertIsNone(self.parts.metadata.topics.get("T1"))
        self.assertEqual([one.body for one in self.of("T1")], [b"first"])


class PopsTests(AgainCase):
    """What was popped before."""

    def test_check_point_under_way(self) -> None:
        """It is stored after the topic was made again: nothing is given, and no message passed over."""
        for is_made in (True, False):
            self.send(b"old 0", b"old 1")
            held = self.hold_puts()
            self.assertEqual(self.client.send(pop_of()), [])
            self.admin(DELETE)
            if is_made:
                self.admin(MAKE)
            held.pop().callback(PutStatus.PUT_OK)
            (answer,) = self.client.received()
            self.assertEqual((answer.code, len(self.parts.revive.table)), (210, 0))
            self.parts.pipeline.__dict__.pop("put")
            self.admin(MAKE)
            self.send(b"new 0", b"new 1", b"new 2")
            given = self.pop()
            self.assertEqual([one.body for one in given], [b"new 0", b"new 1", b"new 2"])
            for one in given:
                self.ack(one)

    def test_in_order(self) -> None:
        """A receipt of the deleted topic acknowledges no message of the new one, which is free at once."""
        self.send(b"old 0", b"old 1")
        one, two = self.pop(order="true")
        self.assertEqual(self.ack(one).code, 0)
        self.make_again()
        self.send(b"newer")
        self.assertEqual(self.ack(two).code, Code.NO_MESSAGE)
        self.assertEqual([one.body for one in self.pop(order="true")], [b"new", b"newer"])

    def test_check_points(self) -> None:
        """Those of the deleted topic deliver nothing of the new one."""
        self.send(b"old 0", b"old 1")
        self.assertEqual(len(self.pop()), 2)
        self.wait(1)
        self.make_again()
        (given,) = self.pop()
        self.assertEqual((given.body, self.ack(given).code), (b"new", 0))
        self.wait(15)
        self.assertEqual(([one.body for one in self.pop()], self.parts.revive.gone), ([], 2))

    def test_expired_check_points(self) -> None:
        """Nor do those that have expired, so that nothing says any more when their messages were popped."""
        self.send(b"old 0", b"old 1")
        _, two = self.pop()
        self.wait(1)
        self.make_again()
        queue = self.broker.store.queues.get(REVIVE, 0)
        assert queue is not None
        self.patch(queue, "_begin_index", queue.next_index)
        self.assertEqual(self.change(two, 1000).code, Code.NO_MESSAGE)
        self.assertEqual([one.body for one in self.pop()], [b"new"])
        self.wait(15)
        self.assertEqual([(one.body, one.tries) for one in self.pop()], [(b"new", 1)])

    def test_another_time(self) -> None:
        """What was popped of the deleted topic cannot get another time, and so outlive it."""
        self.send(b"old 0", b"old 1")
        one, two = self.pop()
        self.admin(DELETE)
        self.assertEqual(self.change(one, 1000).code, Code.NO_MESSAGE)
        self.admin(MAKE)
        self.send(b"new")
        self.assertEqual(self.change(two, 1000).code, Code.NO_MESSAGE)
        self.wait(15)
        self.assertEqual([one.body for one in self.pop()], [b"new"])

    def test_open_check_point(self) -> None:
        """That of the new topic does, with the same offsets."""
        self.send(b"old")
        self.pop()
        self.make_again()
        self.assertEqual([one.body for one in self.pop()], [b"new"])
        self.wait(15)
        self.assertEqual([(one.body, one.tries) for one in self.pop()], [(b"new", 1)])

    def test_retries(self) -> None:
        """Retries of the deleted topic are over."""
        self.send(b"old")
        for version in (1, 2):
            self.put(b"old retry", topic=pop_retry_topic("T1", "G", version=version),
                     properties=b"ORIGIN_GROUP\x01G\x02")
        self.assertEqual(len(self.pop()), 3)
        self.parts.metadata.consumer_offsets.delete_group("G", 1)
        self.make_again()
        self.assertEqual([one.body for one in self.pop()], [b"new"])

    def test_after_a_restart(self) -> None:
        """The next master knows it, too."""
        self.send(b"old")
        self.pop()
        self.make_again()
        self.parts.metadata.save(lambda work: succeed(work()))
        self.again()
        self.assertEqual([one.body for one in self.pop()], [b"new"])
        self.wait(15)
        self.assertEqual([(one.body, one.tries) for one in self.pop()], [(b"new", 1)])

    def test_delayed(self) -> None:
        """A delayed message of the deleted topic is dropped, with one line."""
        self.parts.schedule.start()
        self.addCleanup(self.parts.schedule.stop)
        self.send(b"later", properties="DELAY\x011\x02")
        self.make_again()
        with capturedLogs() as events:
            self.wait(3)
        self.assertEqual([one.body for one in self.of("T1")], [b"new"])
        told = [one for one in events if "is skipped" in str(one.get("log_format"))]
        self.assertEqual([one["reason"] for one in told], ["topic T1 was deleted"])


class KeptQueueTests(AgainCase):
    """The queues stay, as on a raft log."""

    is_kept = True

    def test_begins_after(self) -> None:
        """For fresh groups, pulls, POP, minimum and earliest, and searches; and after a restart."""
        self.send(b"old 0", b"old 1")
        self.make_again()
        for is_again in (False, True):
            if is_again:
                self.parts.metadata.save(lambda work: succeed(work()))
                self.again()
            self.assertEqual(self.field(14, "offset", consumerGroup="fresh"), 2)
            self.assertEqual((self.field(31, "offset"), self.field(30, "offset")), (2, 3))
            self.assertEqual(self.field(29, "offset", timestamp="0"), 2)
            named = {
                "consumerGroup": "fresh", "topic": "T1", "queueId": "0", "queueOffset": "0",
                "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0",
                "subscription": "*",
                "subVersion": "0", "expressionType": "TAG",
            }
            (answer,) = self.client.send(RemotingCommand(code=11, opaque=1, ext_fields=named))
            self.assertEqual((answer.code, answer.ext_fields["nextBeginOffset"]), (21, "2"))
            group = f"pops{is_again}"
            self.assertEqual([one.body for one in self.pop(consumerGroup=group)], [b"new"])

    def test_no_message_yet(self) -> None:
        """The queue has only old messages."""
        self.send(b"old")
        self.admin(DELETE)
        self.admin(MAKE)
        self.assertEqual((self.field(31, "offset"), self.field(14, "offset", consumerGroup="x")), (1, 1))
        self.assertEqual(self.pop(), [])
        self.send(b"new")
        self.assertEqual([one.body for one in self.pop()], [b"new"])


class HalfTests(TransactionCase):
    """A half message of a topic that is deleted and made again."""

    def delete(self, name: str) -> None:
        """As an administrator does."""
        self.parts.metadata.topics.delete(name, 1)
        self.parts.lost_topics.deleted(name)

    def test_over(self) -> None:
        """It is not committed, and nobody is asked about it."""
        self.parts.lost_topics.restore()
        self.assertEqual(self.end(self.half(key="warm up")).code, 0)
        half = self.half(key="old")
        self.delete("T1")
        self.assertEqual(self.end(half, COMMIT).code, Code.TOPIC_NOT_EXIST)
        self.parts.metadata.topics.put(made(), 1)
        self.assertEqual(self.end(half, COMMIT).code, Code.TOPIC_NOT_EXIST)
        new = self.half(key="new")
        self.assertEqual([one.ext_fields["msgId"] for one in self.wait(10.5)], ["new"])
        self.assertEqual(self.end(new, COMMIT).code, 0)

    def test_copy(self) -> None:
        """A copy is as old as the first one, although it was stored when the topic was gone."""
        self.parts.lost_topics.restore()
        self.assertEqual(self.end(self.half(key="warm up")).code, 0)
        half = self.half(key="old")
        self.delete("T1")
        begin = self.broker.store.log.record_end
        self.wait(10.5)
        copy = self.of(HALF_TOPIC)[-1]
        self.assertGreaterEqual(copy.physical_offset, begin)
        # As after a crash: the topic begins with the first message that waited since its deletion.
        self.parts.metadata.topics.put(made(**{BEGINS_AT: begin}), 1)
        self.assertEqual(first_place(self.broker.store, copy), half.physical_offset)
        self.assertEqual(self.end(copy, COMMIT, fromTransactionCheck="true").code, Code.TOPIC_NOT_EXIST)
        self.assertEqual(self.wait(20), [])

    def test_reading_fails(self) -> None:
        """The first one cannot be read: its end is refused, and may be asked for again."""
        self.half(key="old")
        self.wait(10.5)
        copy, queue = self.of(HALF_TOPIC)[-1], self.broker.store.queues.get(HALF_TOPIC, 0)
        with mock.patch.object(type(queue), "read", side_effect=OSError(5, "made up")):
            self.assertEqual(self.end(copy, COMMIT, fromTransactionCheck="true").code, Code.SYSTEM_ERROR)
        self.assertEqual(self.end(copy, COMMIT, fromTransactionCheck="true").code, 0)

    def test_lost_and_deleted(self) -> None:
        """An end does not make a topic that an administrator has deleted since the start."""
        half = self.half(key="old")
        self.delete("T1")
        self.parts.lost_topics.note_table()
        self.broker.clock.advance(1)
        self.parts.lost_topics.restore()
        self.parts.lost_topics._at_start = attrs.evolve(self.parts.lost_topics._at_start, table_ms=0)
        self.delete("T1")
        self.assertEqual(self.end(half, COMMIT).code, Code.TOPIC_NOT_EXIST)
        self.patch(lost_topics, "DELETED_MAX", 2)
        for name in ("T2", "T3"):
            self.delete(name)
        self.assertEqual(self.end(half, COMMIT).code, 0)
