# -*- test-case-name: tests.broker.admin.test_commands -*-
"""What administrators change and ask."""

from __future__ import annotations

import json
from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.answering.refusals import Code
from dledger.rocketmq.broker.admin.commands import (
    DELETE_SUBSCRIPTIONGROUP,
    DELETE_TOPIC_IN_BROKER,
    GET_BROKER_CONFIG,
    GET_BROKER_HA_STATUS,
    GET_BROKER_RUNTIME_INFO,
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
    UPDATE_AND_CREATE_TOPIC,
    UPDATE_AND_CREATE_TOPIC_LIST,
    UPDATE_BROKER_CONFIG,
    AdminCommands,
    AdminParts,
)
from dledger.rocketmq.broker.consuming.commits import CommitJudge
from dledger.rocketmq.broker.consuming.consumers import ConsumerTable
from dledger.rocketmq.broker.consuming.pull_reading import PullReading
from dledger.rocketmq.broker.consuming.pulls import PullCommands
from dledger.rocketmq.broker.options.groups import OWN_GROUPS
from dledger.rocketmq.broker.producing.puts import NotPut, Put
from dledger.rocketmq.metadata.tables import GroupConfig
from dledger.rocketmq.replication.put_status import PutStatus
from dledger.rocketmq.replication.service import HAStatus
from dledger.rocketmq.store.records.plain_records import Placed
from dledger.values.errors import StoreError
from protocols.wire.remoting import RemotingCommand
from tests.broker.admin.test_ha_info import master, slave
from tests.broker.asked import NOW_MS, Asked
from tests.broker.support import message

TOPIC = {"topic": "t", "defaultTopic": "TBW102", "readQueueNums": 4, "writeQueueNums": 3, "perm": 6,
         "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false"}


class Case(SynchronousTestCase):
    """A broker with an administrator."""

    def build(self, *, is_slave: bool = False, **options: Any) -> None:
        """Make it."""
        self.asked = Asked(is_slave=is_slave, **options)
        self.addCleanup(self.asked.close)
        asked = self.asked
        self.status: HAStatus | None = slave() if is_slave else master()
        self.saving: Deferred[None] = succeed(None)
        self.reported = 0
        self.noted: list[str] = []
        self.note_status = PutStatus.PUT_OK
        self.note_refused: NotPut | None = None
        self.note_put: Deferred[PutStatus] | None = None
        inside = asked.inside
        pulls = PullCommands(inside, PullReading(inside, ConsumerTable(), CommitJudge(inside)))
        self.commands = AdminCommands(inside, AdminParts(
            disk=asked.disk, pulls=pulls, save=lambda: self.saving, keep=lambda: self.saving,
            topics_changed=self.notify, ha_status=lambda: self.status, stored=lambda: 7,
            note_deletion=self.note,
        ))
        asked.groups = [self.commands, pulls]
        self.client = asked.client()

    def note(self, topic: str) -> Put:
        """The deletion of a topic would be noted in the log."""
        if self.note_refused is not None:
            raise self.note_refused
        self.noted.append(topic)
        return Put(Placed([0], [0], 0, NOW_MS), self.note_put or succeed(self.note_status))

    def notify(self) -> None:
        """Name servers would be informed."""
        self.reported += 1

    def put_topic(self, **fields: object) -> RemotingCommand:
        """Make or change a topic."""
        return self.client.ask(UPDATE_AND_CREATE_TOPIC, {**TOPIC, **fields})

    def put_group(self, **fields: object) -> RemotingCommand:
        """Make or change a group."""
        body = json.dumps({"groupName": "g", "retryQueueNums": 2, "consumeEnable": False, **fields}).encode()
        return self.client.ask(UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)


class ChangeTests(Case):
    """Topics and groups of a master."""

    def setUp(self) -> None:
        self.build()

    def test_topic(self) -> None:
        """It is made, changed, and name servers are informed; fields of 5.x that we do not know stay."""
        self.assertEqual(self.put_topic(attributes="+message.type=NORMAL").code, 0)
        made = self.asked.metadata.topics.get("t")
        assert made is not None
        self.assertEqual((made.read_queue_nums, made.write_queue_nums, made.perm), (4, 3, 6))
        self.assertEqual(self.put_topic(perm=4, order="true").code, 0)
        made = self.asked.metadata.topics.get("t")
        assert made is not None
        self.assertEqual((made.perm, made.order, self.reported), (4, True, 2))

    def test_types(self) -> None:
        """The type of a topic is kept, changed, and reported with the topic; MIXED needs an option."""
        topics = self.asked.metadata.topics
        for text, kept in (("+message.type=FIFO", "FIFO"), ("", "FIFO"), ("+message.type=DELAY", "DELAY")):
            self.assertEqual(self.put_topic(attributes=text).code, 0)
            self.assertEqual(topics.entries["t"].document()["attributes"], {"message.type": kept})
        self.assertEqual(self.put_topic(attributes="+message.type=MIXED").code, Code.INVALID_PARAMETER)
        body = b"enableMixedMessageType=true"
        self.assertEqual(self.client.ask(UPDATE_BROKER_CONFIG, {}, body).code, 0)
        self.assertEqual(self.put_topic(attributes="+message.type=MIXED").code, 0)
        self.assertEqual(self.put_topic(attributes="-message.type").code, 0)
        self.assertEqual(topics.entries["t"].document()["attributes"], {})

    def test_list_of_topics(self) -> None:
        """All of them, with attributes as in a request for one; or none."""
        def put(*topics: dict[str, object]) -> RemotingCommand:
            body = json.dumps({"topicConfigList": topics}).encode()
            return self.client.ask(UPDATE_AND_CREATE_TOPIC_LIST, {}, body)

        fifo = {"topicName": "u", "readQueueNums": 2, "writeQueueNums": 3, "perm": 6, "other": 5,
                "attributes": {"+message.type": "FIFO"}}
        self.assertEqual(put(fifo, {"topicName": "v"}).code, 0)
        made = self.asked.metadata.topics.entries["u"]
        self.assertEqual((made.read_queue_nums, made.write_queue_nums, made.rest.get("other")), (2, 3, None))
        self.assertEqual(made.document()["attributes"], {"message.type": "FIFO"})
        self.assertIn("v", self.asked.metadata.topics.entries)
        for bad in ({"topicName": "a/b"}, {"topicName": "TBW102"}, {"topicName": "x", "perm": 8},
                    {"topicName": "x", "attributes": {"message.type": "FIFO"}},
                    {"topicName": "x", "attributes": {"+queue.type": "BatchCQ"}},
                    {"topicName": 5}):
            self.assertEqual(put({"topicName": "w"}, bad).code, Code.SYSTEM_ERROR, bad)
        for body in (b"", b"{}", b'{"topicConfigList":[]}', b'{"topicConfigList":[5]}'):
            answer = self.client.ask(UPDATE_AND_CREATE_TOPIC_LIST, {}, body)
            self.assertEqual(answer.code, Code.SYSTEM_ERROR)
        self.assertNotIn("w", self.asked.metadata.topics.entries)
        self.assertEqual(self.reported, 1)

    def test_list_of_groups(self) -> None:
        """All of them, or none."""
        def put(*groups: dict[str, object]) -> int:
            body = json.dumps({"groupConfigList": groups}).encode()
            return self.client.ask(UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, {}, body).code

        fifo = {"groupName": "g", "retryMaxTimes": 3, "consumeMessageOrderly": True}
        self.assertEqual(put(fifo, {"groupName": "h"}), 0)
        groups = self.asked.metadata.groups
        self.assertEqual((groups.entries["g"].retry_max_times, "h" in groups.entries), (3, True))
        self.assertTrue(groups.entries["g"].document()["consumeMessageOrderly"])
        self.assertEqual(put({"groupName": "i"}, {"groupName": "a/b"}), Code.SYSTEM_ERROR)
        self.assertEqual(put(), Code.SYSTEM_ERROR)
        self.assertNotIn("i", groups.entries)

    def test_kept_before_the_answer(self) -> None:
        """The answer follows the disk; what cannot be kept is no success."""
        self.saving = Deferred()
        self.client.send(UPDATE_AND_CREATE_TOPIC, TOPIC)
        self.assertEqual(self.client.received(), [])
        self.saving.callback(None)
        self.assertEqual([answer.code for answer in self.client.received()], [0])
        self.saving = Deferred()
        self.client.send(UPDATE_AND_CREATE_TOPIC, TOPIC)
        self.saving.errback(StoreError("no space"))
        (answer,) = self.client.received()
        self.assertEqual(answer.code, Code.SYSTEM_ERROR)
        self.assertIn("no space", answer.remark or "")
        self.assertEqual(len(self.flushLoggedErrors(StoreError)), 1)

    def test_topics_that_cannot_be(self) -> None:
        """Each mistake by name; nothing has changed."""
        before = dict(self.asked.metadata.topics.entries)
        for fields, word in (
            ({"topic": "a/b"}, "a/b"), ({"topic": ""}, "blank"), ({"topic": "TBW102"}, "system topic"),
            ({"topic": "DefaultCluster"}, "system topic"), ({"topic": "rmq_sys_x"}, "system topic"),
            ({"perm": 8}, "perm=8"), ({"readQueueNums": -1}, "readQueueNums=-1"),
            ({"writeQueueNums": 65536}, "writeQueueNums=65536"),
            ({"topicFilterType": "x"}, "topicFilterType"),
            ({"attributes": "+queue.type=BatchCQ"}, "BatchCQ"), ({"order": "maybe"}, "order"),
        ):
            answer = self.put_topic(**fields)
            self.assertEqual(answer.code, Code.SYSTEM_ERROR, fields)
            self.assertIn(word, answer.remark or "")
        self.assertEqual((self.asked.metadata.topics.entries, self.reported), (before, 0))

    def test_delete_topic(self) -> None:
        """With its queues and what was consumed of it; one of the same name begins at 0. Others stay."""
        before = set(self.asked.metadata.topics.entries)
        self.asked.topic("t")
        self.asked.topic("u")
        self.asked.append(message(topic="t"), message(topic="t"), message(topic="u"))
        for topic in ("t", "u"):
            self.asked.metadata.consumer_offsets.commit("g", topic, 0, 1, NOW_MS)
        self.client.send(DELETE_TOPIC_IN_BROKER, {"topic": "t"})
        self.asked.settle()
        self.assertEqual([answer.code for answer in self.client.received()], [0])
        self.assertEqual(set(self.asked.metadata.topics.entries), before | {"u"})
        self.assertEqual(self.asked.store.queues.keys(), [("u", 0)])
        self.assertIsNone(self.asked.metadata.consumer_offsets.query("g", "t", 0))
        self.assertEqual(self.asked.metadata.consumer_offsets.query("g", "u", 0), 1)
        self.asked.append(message(topic="t"), message(topic="u"))
        units = self.asked.units()
        self.assertEqual([unit[0] for unit in units["t", 0]], [0])
        self.assertEqual([unit[0] for unit in units["u", 0]], [0, 1])
        self.assertEqual(self.of_a_slave(), units)

    def of_a_slave(self) -> dict[tuple[str, int], list[tuple[int, int, int, int]]]:
        """The queues of a slave that was sent the whole log."""
        follower, log = Asked(is_slave=True), self.asked.store.log
        self.addCleanup(follower.close)
        follower.store.log.append_raw(0, log.read(0, log.end_offset))
        follower.settle()
        return follower.units()

    def test_deletion_is_noted_first(self) -> None:
        """A deletion that the log does not take is none; a topic that never was is in no note."""
        self.put_topic()
        topics = self.asked.metadata.topics
        made = topics.get("t")
        for refused, status, code in (
            (NotPut(PutStatus.SERVICE_NOT_AVAILABLE, "made up"), PutStatus.PUT_OK, 14),
            (None, PutStatus.UNKNOWN_ERROR, 1),
        ):
            self.note_refused, self.note_status = refused, status
            self.client.send(DELETE_TOPIC_IN_BROKER, {"topic": "t"})
            self.asked.settle()
            self.assertEqual([answer.code for answer in self.client.received()], [code])
            self.assertEqual(topics.get("t"), made)
        self.note_status = PutStatus.PUT_OK
        self.assertEqual(self.noted, ["t"])
        for _ in range(2):
            self.client.send(DELETE_TOPIC_IN_BROKER, {"topic": "t"})
            self.asked.settle()
            self.assertEqual([answer.code for answer in self.client.received()], [0])
            self.assertEqual((topics.get("t"), self.noted), (None, ["t", "t"]))

    def test_deletion_without_a_note(self) -> None:
        """The topic is over while the log is asked, and is back when it refuses; a slave has its master's."""
        for becomes_slave in (False, True):
            self.build()
            self.put_topic()
            made, asked = self.asked.metadata.topics.get("t"), self.asked
            held: Deferred[PutStatus] = Deferred()
            self.note_put = held
            self.client.send(DELETE_TOPIC_IN_BROKER, {"topic": "t"})
            self.assertIsNone(asked.metadata.topics.get("t"))
            if becomes_slave:
                asked.inside.config.role.become("SLAVE", 1)
            reported = self.reported
            held.callback(PutStatus.SERVICE_NOT_AVAILABLE)
            asked.settle()
            self.assertEqual([answer.code for answer in self.client.received()], [1])
            self.assertEqual(asked.metadata.topics.get("t"), None if becomes_slave else made)
            self.assertEqual(self.reported, reported + (not becomes_slave))

    def test_made_again_during_the_deletion(self) -> None:
        """Offsets of the new topic stay; without one none stay."""
        offsets = self.asked.metadata.consumer_offsets
        for is_again, left in ((True, 3), (False, None)):
            self.put_topic()
            held: Deferred[PutStatus] = Deferred()
            self.note_put = held
            self.client.send(DELETE_TOPIC_IN_BROKER, {"topic": "t"})
            if is_again:
                self.put_topic()
            offsets.commit("g", "t", 0, 3, NOW_MS)
            held.callback(PutStatus.PUT_OK)
            self.asked.settle()
            self.assertEqual([answer.code for answer in self.client.received()], [0])
            self.assertEqual(offsets.query("g", "t", 0), left)

    def test_delete_while_messages_come(self) -> None:
        """What was sent before and is not dispatched yet makes no queue afterwards."""
        self.asked.topic("t")
        self.asked.store.log.append([[message(topic="t")]], NOW_MS)
        self.client.send(DELETE_TOPIC_IN_BROKER, {"topic": "t"})
        self.assertEqual(self.asked.store.queues.keys(), [])
        self.asked.settle()
        self.assertEqual(self.asked.store.queues.keys(), [])
        self.assertEqual([answer.code for answer in self.client.received()], [0])

    def test_deleted_and_made_again_at_once(self) -> None:
        """A topic that is there again keeps what is sent to it."""
        self.asked.topic("t")
        self.asked.store.log.append([[message(topic="t")]], NOW_MS)
        self.client.send(DELETE_TOPIC_IN_BROKER, {"topic": "t"})
        self.asked.topic("t")
        self.asked.settle()
        self.assertEqual(self.asked.store.queues.keys(), [("t", 0)])

    def test_group(self) -> None:
        """It is made as its document says, and deleted, with its offsets if that is wanted."""
        self.assertEqual(self.put_group().code, 0)
        made = self.asked.metadata.groups.get("g")
        assert made is not None
        self.assertEqual((made.retry_queue_nums, made.consume_enable, made.retry_max_times), (2, False, 16))
        for clean, left in (("false", 5), ("true", None)):
            self.asked.metadata.groups.put(GroupConfig(group_name="g"), NOW_MS)
            self.asked.metadata.consumer_offsets.commit("g", "t", 0, 5, NOW_MS)
            answer = self.client.ask(DELETE_SUBSCRIPTIONGROUP, {"groupName": "g", "cleanOffset": clean})
            self.assertEqual(answer.code, 0)
            self.assertIsNone(self.asked.metadata.groups.get("g"))
            self.assertEqual(self.asked.metadata.consumer_offsets.query("g", "t", 0), left)

    def test_own_groups_are_not_deleted(self) -> None:
        """Their offsets say what is done of half messages, times and popped messages."""
        for name in OWN_GROUPS:
            self.asked.metadata.consumer_offsets.commit(name, "t", 0, 5, NOW_MS)
            answer = self.client.ask(DELETE_SUBSCRIPTIONGROUP, {"groupName": name, "cleanOffset": "true"})
            self.assertEqual(answer.code, Code.NO_PERMISSION)
            self.assertEqual(self.asked.metadata.consumer_offsets.query(name, "t", 0), 5)

    def test_groups_that_cannot_be(self) -> None:
        """Each mistake by name."""
        for fields, word in (
            ({"groupName": ""}, "groupName"), ({"groupName": "a b"}, "groupName"),
            ({"retryQueueNums": -1}, "retryQueueNums=-1"), ({"retryMaxTimes": "x"}, "retryMaxTimes"),
        ):
            answer = self.put_group(**fields)
            self.assertEqual(answer.code, Code.SYSTEM_ERROR, fields)
            self.assertIn(word, answer.remark or "")
        self.assertEqual(self.client.ask(UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b"{").code, 1)
        self.assertEqual(self.asked.metadata.groups.entries, {})

    def test_slave(self) -> None:
        """A slave changes nothing."""
        self.build(is_slave=True)
        for code in (UPDATE_AND_CREATE_TOPIC, DELETE_TOPIC_IN_BROKER, UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
                     DELETE_SUBSCRIPTIONGROUP):
            answer = self.client.ask(code, TOPIC, b'{"groupName":"g"}')
            self.assertEqual(answer.code, Code.SYSTEM_ERROR)
            self.assertIn("from slave broker", answer.remark or "")


class QuestionTests(Case):
    """How it fares."""

    def setUp(self) -> None:
        self.build()

    def table(self) -> dict[str, str]:
        """What request 28 says."""
        found: dict[str, str] = json.loads(self.client.ask(GET_BROKER_RUNTIME_INFO, {}).body)["table"]
        return found

    def test_runtime(self) -> None:
        """Texts only; where the log begins and ends, and what mqadmin clusterList reads."""
        self.asked.append(message())
        table = self.table()
        self.assertTrue(all(isinstance(value, str) for value in table.values()))
        for name, value in (
            ("commitLogMinOffset", "0"), ("commitLogMaxOffset", str(self.asked.store.log.end_offset)),
            ("dispatchBehindBytes", "0"), ("brokerVersion", "479"), ("brokerVersionDesc", "V5_3_3"),
            ("earliestMessageTimeStamp", str(NOW_MS)), ("msgPutTotalTodayNow", "7"), ("brokerActive", "true"),
            ("putTps", "0.00 0.00 0.00"), ("sendThreadPoolQueueSize", "0"), ("brokerRole", "ASYNC_MASTER"),
        ):
            self.assertEqual(table[name], value, name)
        self.assertLessEqual(0.0, float(table["commitLogDiskRatio"]))

    def test_rates(self) -> None:
        """What was pulled in the last seconds."""
        self.asked.topic("t")
        self.asked.append(*[message(topic="t") for _ in range(20)])
        self.commands.sweep()
        self.client.ask(11, {
            "consumerGroup": "g", "topic": "t", "queueId": 0, "queueOffset": 0, "maxMsgNums": 32,
            "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0, "subVersion": 0,
        })
        self.asked.clock.advance(2)
        self.commands.sweep()
        table = self.table()
        self.assertEqual(table["getTransferedTps"].split()[0], "10.00")
        self.assertEqual(table["getFoundTps"].split()[0], "0.50")

    def test_options(self) -> None:
        """Lines of name=value, as a file of options has them."""
        answer = self.client.ask(GET_BROKER_CONFIG, {})
        lines = answer.body.decode().splitlines()
        self.assertIn("brokerRole=ASYNC_MASTER", lines)
        self.assertIn("brokerIP1=10.0.0.1", lines)
        self.assertEqual(json.loads(answer.ext_fields["version"])["counter"], 0)

    def test_ha(self) -> None:
        """The document of replication, or that there is none."""
        info = json.loads(self.client.ask(GET_BROKER_HA_STATUS, {}).body)
        self.assertEqual((info["master"], len(info["haConnectionInfo"])), (True, 2))
        self.status = None
        self.assertEqual(self.client.ask(GET_BROKER_HA_STATUS, {}).code, Code.SYSTEM_ERROR)
