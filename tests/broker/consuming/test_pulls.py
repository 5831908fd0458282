# -*- test-case-name: tests.broker.consuming.test_pulls -*-
"""Messages for each question, at once or as soon as they are there."""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.answering.refusals import Code
from dledger.rocketmq.broker.consuming import pulls
from dledger.rocketmq.broker.consuming.commits import CommitJudge
from dledger.rocketmq.broker.consuming.consumers import ConsumerTable
from dledger.rocketmq.broker.consuming.pull_reading import SUSPEND_MS_MAX, PullReading
from dledger.rocketmq.broker.consuming.pulls import LITE_PULL_MESSAGE, PULL_MESSAGE, PullCommands
from dledger.rocketmq.broker.consuming.subscriptions import ConsumerData, Subscription, parse_subscription
from dledger.rocketmq.metadata.tables import GroupConfig
from dledger.rocketmq.store.queries import FILTERED_RECORDS_MAX
from protocols.wire.remoting import RemotingCommand
from protocols.wire.rocketmq.message import Message, decode_message
from tests.broker.asked import NOW_MS, Asked, Client
from tests.broker.support import message

#: A request that brings its subscription and may not wait.
FIELDS = {
    "consumerGroup": "g", "topic": "t", "queueId": 0, "queueOffset": 0, "maxMsgNums": 32, "sysFlag": 4,
    "commitOffset": 0, "suspendTimeoutMillis": 15000, "subscription": "*", "subVersion": 1,
    "expressionType": "TAG",
}
HOLD = 4 | 2


def messages_in(body: bytes) -> list[Message]:
    """The records of an answer, one after the other."""
    found, at = [], 0
    while at < len(body):
        found.append(decode_message(body, at))
        at += found[-1].size
    return found


def one(body: bytes = b"hello", tag: str = "A", **fields: Any) -> Any:
    """A message of topic t."""
    return message(body, topic="t", properties={"TAGS": tag}, **fields)


class Case(SynchronousTestCase):
    """A broker that answers pulls."""

    def build(
        self, *, is_slave: bool = False, slow_bytes: int = 0, held_max: int = 100, **options: Any
    ) -> None:
        """Make it, with topic t and one client."""
        self.asked = Asked(is_slave=is_slave, **options)
        self.addCleanup(self.asked.close)
        self.asked.topic("t")
        self.table = ConsumerTable()
        asked = self.asked
        reading = PullReading(asked.inside, self.table, CommitJudge(asked.inside))
        self.pulls = PullCommands(asked.inside, reading, slow_bytes=slow_bytes, held_max=held_max)
        self.asked.broker.pulls = self.pulls
        self.asked.groups = [self.pulls]
        self.client = self.asked.client()

    def pull(self, client: Client | None = None, **fields: Any) -> RemotingCommand:
        """Ask, and be answered at once."""
        return (client or self.client).ask(PULL_MESSAGE, {**FIELDS, **fields})

    def hold(self, client: Client | None = None, **fields: Any) -> int:
        """Ask, and wait. @return: the number of the request."""
        client = client or self.client
        before = len(self.pulls)
        opaque = client.send(PULL_MESSAGE, {**FIELDS, "sysFlag": HOLD, **fields})
        self.assertEqual((client.received(), len(self.pulls)), ([], before + 1))
        return opaque

    def offsets(self, answer: RemotingCommand) -> tuple[int, int, int, int]:
        """Code, and the offsets in the header: next, lowest, end."""
        header = answer.ext_fields
        return (answer.code, int(header["nextBeginOffset"]), int(header["minOffset"]),
                int(header["maxOffset"]))


class PullTests(Case):
    """Requests that are answered at once."""

    def setUp(self) -> None:
        self.build()

    def test_found(self) -> None:
        """The records as they stand in the log, and where to go on."""
        self.asked.append(*[one(b"%d" % number) for number in range(3)])
        answer = self.pull(queueOffset=1)
        self.assertEqual(self.offsets(answer), (0, 3, 0, 3))
        self.assertEqual((answer.remark, answer.ext_fields["suggestWhichBrokerId"]), ("FOUND", "0"))
        self.assertEqual([found.body for found in messages_in(answer.body)], [b"1", b"2"])

    def test_lite(self) -> None:
        """What a lite pull consumer of 5.x asks is the same."""
        self.asked.append(one())
        answer = self.client.ask(LITE_PULL_MESSAGE, FIELDS)
        self.assertEqual(len(messages_in(answer.body)), 1)

    def test_bounds(self) -> None:
        """No more messages than asked for, no more bytes than allowed, but one at least."""
        self.asked.append(*[one(b"x" * 300) for _ in range(8)])
        self.assertEqual(len(messages_in(self.pull(maxMsgNums=3).body)), 3)
        self.assertEqual(len(messages_in(self.pull(maxMsgBytes=900).body)), 2)
        self.assertEqual(len(messages_in(self.pull(maxMsgBytes=1).body)), 1)
        self.assertEqual(len(messages_in(self.pull(maxMsgNums=-5).body)), 1)
        self.build(max_transfer_count_on_message_in_memory=2)
        self.asked.append(*[one() for _ in range(3)])
        self.assertEqual(len(messages_in(self.pull().body)), 2)

    def test_offsets_that_are_not_there(self) -> None:
        """After the end, below the beginning, in no queue: each with its code, and the offset to ask for."""
        self.assertEqual(self.offsets(self.pull()), (Code.PULL_NOT_FOUND, 0, 0, 0))
        self.assertEqual(self.offsets(self.pull(queueOffset=9)), (Code.PULL_OFFSET_MOVED, 0, 0, 0))
        self.asked.append(*[one() for _ in range(3)])
        self.assertEqual(self.offsets(self.pull(queueOffset=3)), (Code.PULL_NOT_FOUND, 3, 0, 3))
        self.assertEqual(self.offsets(self.pull(queueOffset=-1)), (Code.PULL_OFFSET_MOVED, 0, 0, 3))
        moved = self.pull(queueOffset=9)
        self.assertEqual((moved.code, moved.remark), (Code.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY"))

    def test_tags(self) -> None:
        """Only what is wanted; if there is none, how far it was looked."""
        self.asked.append(one(tag="A"), one(tag="B"), one(tag="C"))
        answer = self.pull(subscription="A || C")
        self.assertEqual([found.tags for found in messages_in(answer.body)], ["A", "C"])
        answer = self.pull(subscription="D")
        self.assertEqual(self.offsets(answer), (Code.PULL_RETRY_IMMEDIATELY, 3, 0, 3))

    def test_expressions(self) -> None:
        """Only messages whose properties match; if there is none, how far it was looked."""
        self.build(enable_property_filter=True)
        for number in range(6):
            self.asked.append(message(b"%d" % number, topic="t", properties={"n": str(number)}))
        fields = {"expressionType": "SQL92", "subscription": "n > 1 AND n <> 3"}
        answer = self.pull(**fields)
        self.assertEqual([found.body for found in messages_in(answer.body)], [b"2", b"4", b"5"])
        self.assertEqual(self.offsets(answer), (0, 6, 0, 6))
        answer = self.pull(**fields, maxMsgNums=2)
        self.assertEqual([found.body for found in messages_in(answer.body)], [b"2", b"4"])
        self.assertEqual(self.offsets(answer), (0, 5, 0, 6))
        self.assertEqual(self.offsets(self.pull(**fields, maxMsgNums=0)), (0, 4, 0, 6))
        answer = self.pull(**fields, maxMsgBytes=1)
        self.assertEqual(self.offsets(answer), (0, 4, 0, 6))
        answer = self.pull(**{**fields, "subscription": "n > 9"})
        self.assertEqual(self.offsets(answer), (Code.PULL_RETRY_IMMEDIATELY, 6, 0, 6))
        wrong = self.pull(**{**fields, "subscription": "n >"})
        self.assertEqual(wrong.code, Code.SUBSCRIPTION_PARSE_FAILED)
        self.assertIn("at character 4: found the end, expected a property", wrong.remark or "")
        wrong = self.pull(**{**fields, "expressionType": "GROOVY"})
        self.assertEqual(wrong.code, Code.SYSTEM_ERROR)

    def test_many_do_not_match(self) -> None:
        """One request examines a bounded number of messages, and a turn a bounded number for all of them."""
        self.build(enable_property_filter=True)
        self.asked.append(*[one() for _ in range(FILTERED_RECORDS_MAX + 50)])
        fields = {"expressionType": "SQL92", "subscription": "TAGS = 'B'"}
        others = [self.asked.client() for _ in range(3)]
        found = self.offsets(self.pull(**fields))
        self.assertEqual(found[:2], (Code.PULL_RETRY_IMMEDIATELY, FILTERED_RECORDS_MAX))
        for client in others:
            client.send(PULL_MESSAGE, {**FIELDS, **fields})
        self.assertEqual(len(self.pulls), 2)  # one is answered in this turn, the others in later ones
        self.assertEqual([len(client.received()) for client in others], [1, 1, 1])

    def test_refusals(self) -> None:
        """What must not be answered with messages, each with RocketMQ's code."""
        self.asked.topic("closed", perm=2)
        self.asked.metadata.groups.put(GroupConfig(group_name="off", consume_enable=False), NOW_MS)
        for fields, code, word in (
            ({"topic": "u"}, Code.TOPIC_NOT_EXIST, "topic[u] not exist"),
            ({"topic": "closed"}, Code.NO_PERMISSION, "forbidden"),
            ({"consumerGroup": "off"}, Code.NO_PERMISSION, "subscription group"),
            ({"consumerGroup": "a/b"}, Code.SUBSCRIPTION_GROUP_NOT_EXIST, "does not exist"),
            ({"queueId": 4}, Code.SYSTEM_ERROR, "queueId[4] is illegal"),
            ({"queueId": -1}, Code.SYSTEM_ERROR, "queueId[-1] is illegal"),
            ({"queueId": "x"}, Code.SYSTEM_ERROR, "queueId='x' is not a number"),
            ({"expressionType": "SQL92"}, Code.SYSTEM_ERROR, "SQL92"),
        ):
            answer = self.pull(**fields)
            self.assertEqual(answer.code, code, fields)
            self.assertIn(word, answer.remark or "")
        self.build(broker_permission=2)
        self.assertEqual(self.pull().code, Code.NO_PERMISSION)

    def test_subscription_of_the_heartbeat(self) -> None:
        """Without one in the request that of the group counts, if it is there and new enough."""
        self.asked.append(one(tag="A"), one(tag="B"))
        self.assertEqual(self.pull(sysFlag=0).code, Code.SUBSCRIPTION_NOT_EXIST)
        wanted = parse_subscription("t", "B", version=1)
        self.register(wanted)
        answer = self.pull(sysFlag=0)
        self.assertEqual([found.tags for found in messages_in(answer.body)], ["B"])
        self.assertEqual(self.pull(sysFlag=0, subVersion=2).code, Code.SUBSCRIPTION_NOT_LATEST)
        self.asked.topic("u")
        self.assertEqual(self.pull(sysFlag=0, topic="u").code, Code.SUBSCRIPTION_NOT_EXIST)

    def register(self, *wanted: Subscription, model: str = "CLUSTERING") -> None:
        """A heartbeat of group g."""
        data = ConsumerData(group="g", message_model=model, subscriptions={sub.topic: sub for sub in wanted})
        self.table.register(self.client.connection, "c", data, now_ms=NOW_MS)

    def test_broadcast(self) -> None:
        """A group that may not broadcast is informed of that."""
        self.register(parse_subscription("t", "*", version=1), model="BROADCASTING")
        self.assertEqual(self.pull(sysFlag=0).code, Code.PULL_NOT_FOUND)
        forbidden = GroupConfig(group_name="g", consume_broadcast_enable=False)
        self.asked.metadata.groups.put(forbidden, NOW_MS)
        self.assertEqual(self.pull(sysFlag=0).code, Code.NO_PERMISSION)

    def test_commit(self) -> None:
        """The offset that comes with a pull counts if the flag says so."""
        offsets = self.asked.metadata.consumer_offsets
        self.asked.append(message(topic="t"), message(topic="t"))
        self.pull(commitOffset=1)
        self.assertIsNone(offsets.query("g", "t", 0))
        self.pull(sysFlag=5, commitOffset=1)
        self.assertEqual(offsets.query("g", "t", 0), 1)
        self.pull(sysFlag=5, commitOffset=-1)
        self.assertEqual(offsets.query("g", "t", 0), 1)
        self.hold(sysFlag=7, commitOffset=2, queueOffset=2)
        self.assertEqual(offsets.query("g", "t", 0), 2)

    def test_slow_consumer(self) -> None:
        """Who is far behind is sent to the slave that its group names, where slaves may be read."""
        self.asked.append(*[one(b"x" * 200) for _ in range(8)])
        for enabled, suggested in ((True, "1"), (False, "0")):
            self.build(slow_bytes=1000, slave_read_enable=enabled)
            self.asked.append(*[one(b"x" * 200) for _ in range(8)])
            self.assertEqual(self.pull(maxMsgNums=1).ext_fields["suggestWhichBrokerId"], suggested)
            self.assertEqual(self.pull(queueOffset=7).ext_fields["suggestWhichBrokerId"], "0")


class SlaveTests(Case):
    """A slave: it may only be behind."""

    def setUp(self) -> None:
        self.build(is_slave=True)
        self.master = Asked()
        self.addCleanup(self.master.close)

    def replicate(self, *messages: Any) -> None:
        """Messages of the master arrive."""
        self.master.append(*messages)
        log, at = self.master.store.log, self.asked.store.log.end_offset
        self.asked.store.log.append_raw(at, log.read(at, log.end_offset - at))
        self.asked.settle()

    def test_no_correction(self) -> None:
        """An offset that is not there is no reason to move: ask again. Offsets are not committed."""
        answer = self.pull(queueOffset=9, sysFlag=5, commitOffset=3)
        self.assertEqual(self.offsets(answer), (Code.PULL_RETRY_IMMEDIATELY, 9, 0, 0))
        self.assertIsNone(self.asked.metadata.consumer_offsets.query("g", "t", 0))
        self.assertEqual(self.asked.metadata.groups.entries, {})

    def test_correction(self) -> None:
        """Unless it is to be checked here, too."""
        self.build(is_slave=True, offset_check_in_slave=True)
        self.assertEqual(self.pull(queueOffset=9).code, Code.PULL_OFFSET_MOVED)

    def test_woken(self) -> None:
        """A request that waits at a slave is answered with the messages that arrive."""
        self.hold()
        self.replicate(one(b"new"))
        (answer,) = self.client.received()
        self.assertEqual([found.body for found in messages_in(answer.body)], [b"new"])


class HeldTests(Case):
    """Requests that wait."""

    def setUp(self) -> None:
        self.build()

    def test_woken(self) -> None:
        """Answered once, with the message that arrived in its queue; others go on waiting."""
        opaque = self.hold()
        self.hold(queueId=1)
        self.asked.append(one(b"new"))
        (answer,) = self.client.received()
        self.assertEqual((answer.opaque, self.offsets(answer)), (opaque, (0, 1, 0, 1)))
        self.assertEqual([found.body for found in messages_in(answer.body)], [b"new"])
        self.assertEqual(len(self.pulls), 1)
        self.asked.append(one())
        self.assertEqual(self.client.received(), [])

    def test_time_is_over(self) -> None:
        """With the answer that nothing is there, after as long as was asked for and not before."""
        opaque = self.hold(suspendTimeoutMillis=5000)
        self.asked.clock.advance(4.9)
        self.pulls.sweep()
        self.assertEqual(self.client.received(), [])
        self.asked.clock.advance(0.2)
        self.pulls.sweep()
        (answer,) = self.client.received()
        self.assertEqual((answer.opaque, self.offsets(answer)), (opaque, (Code.PULL_NOT_FOUND, 0, 0, 0)))
        self.assertEqual(len(self.pulls), 0)

    def test_no_time(self) -> None:
        """Who may not wait, or for no time at all, is answered at once; nobody waits for ever."""
        self.assertEqual(self.pull(sysFlag=HOLD, suspendTimeoutMillis=0).code, Code.PULL_NOT_FOUND)
        self.assertEqual(self.pull(sysFlag=HOLD, suspendTimeoutMillis=-9).code, Code.PULL_NOT_FOUND)
        self.hold(suspendTimeoutMillis=2**62)
        self.asked.clock.advance(SUSPEND_MS_MAX / 1000 + 1)
        self.pulls.sweep()
        self.assertEqual(len(self.client.received()), 1)

    def test_short_polling(self) -> None:
        """Without long polling everybody waits for a second at most."""
        self.build(long_polling_enable=False)
        self.hold()
        self.asked.clock.advance(1)
        self.pulls.sweep()
        self.assertEqual(len(self.client.received()), 1)

    def test_other_tags(self) -> None:
        """Messages that are not wanted wake nobody; when time is over they need not be looked at again."""
        self.hold(subscription="A")
        self.asked.append(one(tag="B"), one(tag="B"))
        self.assertEqual(self.client.received(), [])
        self.asked.clock.advance(15)
        self.pulls.sweep()
        (answer,) = self.client.received()
        self.assertEqual(self.offsets(answer), (Code.PULL_RETRY_IMMEDIATELY, 2, 0, 2))

    def test_wanted_behind_others(self) -> None:
        """The wanted one comes later."""
        self.hold(subscription="A")
        self.asked.append(one(tag="B"))
        self.asked.append(one(b"mine", tag="A"))
        (answer,) = self.client.received()
        self.assertEqual([found.body for found in messages_in(answer.body)], [b"mine"])
        self.assertEqual(self.offsets(answer), (0, 2, 0, 2))

    def test_lost(self) -> None:
        """A connection that has ended is not answered, and keeps no place."""
        other = self.asked.client()
        self.hold(other)
        self.hold()
        other.lose()
        self.assertEqual(len(self.pulls), 1)
        self.asked.append(one())
        self.assertEqual((other.received(), len(self.client.received())), ([], 1))

    def test_full(self) -> None:
        """Who finds no place is answered at once."""
        self.build(held_max=2)
        self.hold()
        self.hold()
        self.assertEqual(self.pull(sysFlag=HOLD).code, Code.PULL_NOT_FOUND)

    def test_topic_gone(self) -> None:
        """A topic that was deleted meanwhile is named when time is over."""
        self.hold()
        self.asked.metadata.topics.delete("t", NOW_MS)
        self.asked.clock.advance(15)
        self.pulls.sweep()
        (answer,) = self.client.received()
        self.assertEqual(answer.code, Code.TOPIC_NOT_EXIST)

    def test_many(self) -> None:
        """A bounded number is woken in one turn, the others in the next ones; all are answered."""
        self.build(held_max=1000)
        for _ in range(pulls.WOKEN_MAX + 10):
            self.hold()
        self.asked.store.log.append([[one()]], NOW_MS)
        left: list[int] = []
        self.asked.clock.callLater(0, lambda: left.append(len(self.pulls)))
        self.asked.clock.advance(0)
        self.assertEqual((left, len(self.pulls)), ([10], 0))

    def test_stop(self) -> None:
        """At the end everybody is answered, and nobody waits any more."""
        self.hold()
        self.pulls.stop()
        (answer,) = self.client.received()
        self.assertEqual(answer.code, Code.PULL_NOT_FOUND)
        self.assertEqual(self.pull(sysFlag=HOLD).code, Code.PULL_NOT_FOUND)
        self.pulls.stop()


class UnreadTests(Case):
    """A connection that does not read its answers."""

    def setUp(self) -> None:
        self.build()
        self.asked.append(*[one(b"x" * 400) for _ in range(4)])

    def test_waiting_request(self) -> None:
        """It is answered when the connection reads again, whatever arrives meanwhile."""
        self.hold(queueOffset=4)
        self.client.connection.pauseProducing()
        self.asked.append(one())
        self.asked.clock.advance(0)
        self.pulls.sweep()
        self.assertEqual((len(self.pulls), self.client.received()), (1, []))
        self.client.connection.resumeProducing()
        self.asked.clock.advance(0)
        self.assertEqual((len(self.pulls), len(self.client.received())), (0, 1))

    def test_no_room(self) -> None:
        """Nor while the process has no room for answers; then the sweep finds it, as nothing is drained."""
        self.hold(queueOffset=4)
        budget = self.asked.router().budgets.answers
        budget.held += budget.bytes_max
        self.asked.append(one())
        self.asked.clock.advance(0)
        self.pulls.sweep()
        self.assertEqual(len(self.pulls), 1)
        budget.held -= budget.bytes_max
        self.pulls.sweep()
        self.assertEqual((len(self.pulls), len(self.client.received())), (0, 1))

    def test_bound_of_a_turn(self) -> None:
        """Many connections share what one turn may answer; the rest is answered in the next turns."""
        self.patch(pulls, "TURN_BYTES_MAX", 900)
        clients = [self.asked.client() for _ in range(5)]
        for client in clients:
            client.send(PULL_MESSAGE, {**FIELDS, "maxMsgNums": 1})
        self.assertEqual(len(self.pulls), 3)
        self.asked.clock.advance(0)
        self.assertEqual(len(self.pulls), 0)
        self.assertEqual([client.received()[0].code for client in clients], [Code.SUCCESS] * 5)

    def test_no_place(self) -> None:
        """Where nothing can be held the answer says that the broker is busy."""
        self.build(held_max=0)
        self.patch(pulls, "TURN_BYTES_MAX", 0)
        self.assertEqual(self.pull().code, Code.SYSTEM_BUSY)
