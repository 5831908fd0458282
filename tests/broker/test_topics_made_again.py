# -*- test-case-name: tests.broker.test_topics_made_again -*-
"""A topic that was deleted is over: nothing of it comes up in a new one of its name."""

from __future__ import annotations

from typing import Any
from unittest import mock

from twisted.internet.defer import succeed
from twisted.logger import capturedLogs

from dledger.rocketmq.answering.refusals import Code
from dledger.rocketmq.broker.consuming.popping.check_points import pop_retry_topic
from dledger.rocketmq.broker.producing.halves import HALF_TOPIC
from dledger.rocketmq.broker.producing.transactions.ends import COMMIT
from dledger.rocketmq.broker.producing.transactions.ends_reading import first_place
from dledger.rocketmq.metadata.tables import TopicConfig
from dledger.rocketmq.replication.put_status import PutStatus
from protocols.wire.remoting import RemotingCommand, encode_command
from tests.broker.popping.rig import REVIVE, PopCase, pop_of
from tests.broker.sending.test_plain_sends import java, length_word
from tests.broker.transactions.rig import TransactionCase
from tests.processes.brokers import messages_of
from tests.protocols.fakes import plug, sent_commands

DELETE, MAKE = 215, 17
FIELDS = {
    "topic": "T1", "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6",
    "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
}


class AgainCase(PopCase):
    """T1, with its messages, is deleted and made again."""

    is_kept = False

    def make(self, **options: Any) -> None:
        """Everybody may change topics."""
        super().make(change_hosts=("*",), **options)

    def setUp(self) -> None:
        super().setUp()
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
    """The table of topics is lost, or older than the log."""

    def lose(self) -> None:
        """The broker starts without its table."""
        for name in ("topics.json", "topics.json.bak"):
            if self.disk.exists(f"/store/config/{name}"):
                self.disk.unlink(f"/store/config/{name}")
        self.again(crash=True)
        self.parts.lost_topics.restore()

    def test_begin(self) -> None:
        """A topic that was deleted, and made again by a message before a crash, begins after the deletion."""
        for is_delayed in (False, True):
            self.send(b"old", properties="DELAY\x011\x02")
            self.wait(1)
            self.admin(DELETE)
            self.wait(1)
            if is_delayed:
                self.send(b"waits", properties="DELAY\x012\x02")
            self.send(b"new")
            self.lose()
            self.parts.schedule.start()
            self.addCleanup(self.parts.schedule.stop)
            self.wait(9)
            self.parts.schedule.stop()
            wanted = [b"new", b"waits"] if is_delayed else [b"new"]
            self.assertEqual([one.body for one in self.pop(consumerGroup=f"of-{is_delayed}")], wanted)

    def test_whole(self) -> None:
        """Without a deletion all of it is there, also when an operator, or a message, makes it once more."""
        self.send(b"one", b"two")
        for code in (None, MAKE, 0):
            if code is None:
                self.lose()
            elif code:
                self.admin(code)
            else:
                self.lose()
                self.send(b"three")
            bodies = [one.body for one in self.pop(consumerGroup=f"of-{code}")]
            self.assertEqual(bodies[:2], [b"one", b"two"])

    def test_made_again(self) -> None:
        """A topic that was lost, and is made by others, has the messages that wait for it."""
        for code in (MAKE, 0):
            self.send(b"waits", properties="DELAY\x012\x02")
            self.lose()
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
        self.lose()
        self.parts.schedule.start()
        self.addCleanup(self.parts.schedule.stop)
        self.wait(3)
        self.assertEqual([one.body for one in self.of("T1")], [b"first"])
        self.admin(DELETE)
        self.wait(9)
        self.assertIsNone(self.parts.metadata.topics.get("T1"))
        self.assertEqual([one.body for one in self.of("T1")], [b"first"])

    def test_an_older_log(self) -> None:
        """Offsets from after a deletion that the log does not have say nothing of its messages."""
        self.send(b"one", b"two")
        log = {name: self.disk.read_file(name) for name in self.disk.files if "/commitlog/" in name}
        self.make_again()
        offsets = self.parts.metadata.consumer_offsets
        offsets.commit("G", "T1", 0, 1, 1)
        self.parts.metadata.save(lambda work: succeed(work()))
        offsets.forget_other_logs(self.parts.store.log.begin_offset)
        self.assertEqual(offsets.query("G", "T1", 0), 1)
        for name in list(self.disk.files):
            if "/config/" not in name:
                self.disk.unlink(name)
        for name, data in log.items():
            self.disk.write_file(name, data)
        self.again(crash=True)
        with capturedLogs() as events:
            self.parts.lost_topics.restore()
        self.assertEqual([one["names"] for one in events if "is an older copy" in one["log_format"]], ["T1"])
        self.assertIsNone(self.parts.metadata.consumer_offsets.query("G", "T1", 0))
        self.assertEqual([one.body for one in self.pop()], [b"one", b"two"])


class PopsTests(AgainCase):
    """What was popped before."""

    def test_check_point_under_way(self) -> None:
        """It is stored after the topic was made again: nothing is given, and no message passed over."""
        for is_made in (True, False):
            self.send(b"old 0", b"old 1")
            held = self.hold_puts()
            self.assertEqual(self.client.send(pop_of()), [])
            self.parts.pipeline.__dict__.pop("put")
            self.admin(DELETE)
            if is_made:
                self.admin(MAKE)
            held.pop().callback(PutStatus.PUT_OK)
            (answer,) = self.client.received()
            self.assertEqual((answer.code, len(self.parts.revive.table)), (210, 0))
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
        reported = [one for one in events if "is skipped" in str(one.get("log_format"))]
        self.assertEqual([one["reason"] for one in reported], ["topic T1 was deleted"])


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
        self.parts.note_deletion(name)
        self.parts.metadata.topics.delete(name, 1)

    def make_it(self) -> None:
        """Make T1, as an administrator does."""
        self.parts.metadata.topics.put(TopicConfig(
            topic_name="T1", read_queue_nums=4, write_queue_nums=4
        ), 1)

    def test_over(self) -> None:
        """It is not committed, and nobody is asked about it."""
        self.assertEqual(self.end(self.half(key="warm up")).code, 0)
        half = self.half(key="old")
        self.delete("T1")
        self.assertEqual(self.end(half, COMMIT).code, Code.TOPIC_NOT_EXIST)
        self.make_it()
        self.assertEqual(self.end(half, COMMIT).code, Code.TOPIC_NOT_EXIST)
        new = self.half(key="new")
        self.assertEqual([one.ext_fields["msgId"] for one in self.wait(10.5)], ["new"])
        self.assertEqual(self.end(new, COMMIT).code, 0)

    def test_copy(self) -> None:
        """A copy is as old as the first one, although it was stored when the topic was gone."""
        self.assertEqual(self.end(self.half(key="warm up")).code, 0)
        half = self.half(key="old")
        self.wait(10.5)
        before = self.of(HALF_TOPIC)[-1]
        self.patch(self.broker.store.deleted, "place_of", lambda topic: before.physical_offset)
        self.assertEqual(first_place(self.broker.store, before), half.physical_offset)
        self.assertEqual(self.end(before, COMMIT, fromTransactionCheck="true").code, Code.TOPIC_NOT_EXIST)
        self.assertEqual(self.wait(20), [])

    def test_reading_fails(self) -> None:
        """The first one cannot be read: its end is refused, and may be asked for again."""
        self.half(key="old")
        self.wait(10.5)
        copy, queue = self.of(HALF_TOPIC)[-1], self.broker.store.queues.get(HALF_TOPIC, 0)
        with mock.patch.object(type(queue), "read", side_effect=OSError(5, "made up")):
            self.assertEqual(self.end(copy, COMMIT, fromTransactionCheck="true").code, Code.SYSTEM_ERROR)
        self.assertEqual(self.end(copy, COMMIT, fromTransactionCheck="true").code, 0)


class RetriesTests(AgainCase):
    """Messages that a consumer has sent back."""

    def back(self) -> None:
        """The group sends its last message back, for a retry after a second."""
        (answer,) = self.client.send(RemotingCommand(code=36, opaque=1, ext_fields={
            "offset": str(self.of("T1")[-1].physical_offset), "group": "G", "delayLevel": "1",
        }))
        self.assertEqual(answer.code, 0, answer.remark)
        self.settle()

    def pulled(self) -> list[bytes]:
        """What the group gets of its retries."""
        (answer,) = self.client.send(RemotingCommand(code=11, opaque=1, ext_fields={
            "consumerGroup": "G", "topic": "%RETRY%G", "queueId": "0", "queueOffset": "0",
            "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0",
            "subscription": "*", "subVersion": "0", "expressionType": "TAG",
        }))
        return [one.body for one in messages_of(answer)]

    def test_over(self) -> None:
        """Those that wait, those in the topic of retries, and those that are sent back later."""
        self.parts.schedule.start()
        self.addCleanup(self.parts.schedule.stop)
        self.send(b"there")
        self.back()
        self.wait(2)
        self.assertEqual(self.pulled(), [b"there"])
        self.send(b"waits")
        self.back()
        self.make_again()
        self.wait(2)
        self.assertEqual(self.pulled(), [])
        count = len(self.broker.stored())
        old = [one for one in self.broker.stored() if one.body == b"there"][0]
        (answer,) = self.client.send(RemotingCommand(code=36, opaque=1, ext_fields={
            "offset": str(old.physical_offset), "group": "G", "delayLevel": "1",
        }))
        self.assertEqual((answer.code, len(self.broker.stored())), (0, count))
        self.back()
        self.wait(2)
        self.assertEqual(self.pulled(), [b"new"])


class SentBeforeTests(AgainCase):
    """What a producer sent before the deletion is put before it, though it waits for the end of the turn."""

    is_kept = True

    def test_in_one_turn(self) -> None:
        """It is of the topic that was deleted, also after a start."""
        producers = [self.parts.router.buildProtocol(None) for _ in range(3)]
        sent = [plug(one) for one in producers]
        for producer in producers[:2]:
            producer.dataReceived(length_word(java(1, b"old")))
            self.settle()
        producers[0].dataReceived(length_word(java(2, b"race")))
        producers[2].dataReceived(encode_command(RemotingCommand(code=DELETE, opaque=3, ext_fields=FIELDS)))
        self.settle()
        codes = [(one.opaque, one.code) for transport in sent for one in sent_commands(transport.value())]
        self.assertEqual(codes, [(1, 0), (2, 0), (1, 0), (3, 0)])
        self.again(crash=True)
        self.parts.lost_topics.restore()
        self.assertIsNone(self.parts.metadata.topics.get("T1"))
