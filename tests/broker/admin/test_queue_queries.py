# -*- test-case-name: tests.broker.admin.test_queue_queries -*-
"""What administrators ask about queues, and how fast they fill and empty."""

from __future__ import annotations

import json

from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.answering.refusals import Code
from dledger.rocketmq.broker.admin import queue_queries
from dledger.rocketmq.broker.admin.queue_queries import (
    GET_BROKER_CONSUME_STATS,
    QUERY_CONSUME_QUEUE,
    VIEW_BROKER_STATS_DATA,
    QueueQueries,
)
from dledger.rocketmq.broker.admin.stats import StatsCommands
from dledger.rocketmq.broker.consuming.consumers import ConsumerTable
from dledger.rocketmq.broker.consuming.pull_progress import PullProgress
from dledger.rocketmq.broker.consuming.subscriptions import ConsumerData, parse_subscription
from protocols.wire.rocketmq.message import java_hash
from tests.broker.asked import NOW_MS, Asked
from tests.broker.support import message


class QueueTests(SynchronousTestCase):
    """A topic of two queues, and a group."""

    def setUp(self) -> None:
        self.asked = asked = Asked()
        self.addCleanup(asked.close)
        asked.topic("t", queues=2)
        asked.metadata.groups.find("g", NOW_MS)
        self.table, self.progress = ConsumerTable(), PullProgress(asked.wall_ms)
        stats = StatsCommands(asked.inside, self.table, progress=self.progress)
        asked.groups = [QueueQueries(asked.inside, self.table, stats, progress=self.progress)]
        self.admin = asked.client()

    def view(self, name: str, key: str) -> dict[str, dict[str, float]]:
        """The figures of an item."""
        answer = self.admin.ask(VIEW_BROKER_STATS_DATA, {"statsName": name, "statsKey": key})
        self.assertEqual(answer.code, 0, answer.remark)
        found: dict[str, dict[str, float]] = json.loads(answer.body)
        return found

    def test_put(self) -> None:
        """Messages of the last minute, hour and day, of all queues: by their times in the log."""
        self.asked.append(message(topic="t"), message(topic="t", queue_id=1))
        self.asked.clock.advance(120)
        self.asked.append(message(topic="t"))
        self.assertEqual(self.view("TOPIC_PUT_NUMS", "t"), {
            "statsMinute": {"sum": 1, "tps": 0.0167}, "statsHour": {"sum": 3, "tps": 0.0008},
            "statsDay": {"sum": 3, "tps": 0.0},
        })
        self.asked.clock.advance(3601)
        self.assertEqual([one["sum"] for one in self.view("TOPIC_PUT_NUMS", "t").values()], [0, 0, 3])

    def test_got(self) -> None:
        """Messages that a group was sent."""
        self.progress.pulled("g", "t", 0, 5, [b"m"] * 30)
        found = self.view("GROUP_GET_NUMS", "t@g")
        self.assertEqual(found["statsMinute"], {"sum": 30, "tps": 0.5})
        self.assertEqual(found["statsDay"]["sum"], 30)

    def test_no_such_figure(self) -> None:
        """It is not invented."""
        for name, key in (("TOPIC_PUT_NUMS", "u"), ("TOPIC_PUT_SIZE", "t"), ("GROUP_GET_NUMS", "g")):
            answer = self.admin.ask(VIEW_BROKER_STATS_DATA, {"statsName": name, "statsKey": key})
            self.assertEqual(answer.code, Code.SYSTEM_ERROR)
            self.assertIn(f"The stats <{name}> <{key}> not exist", answer.remark or "")
        self.patch(queue_queries, "COUNTED_MAX", 1)
        self.asked.append(message(topic="t"), message(topic="t", queue_id=1))
        answer = self.admin.ask(VIEW_BROKER_STATS_DATA, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "t"})
        self.assertEqual(answer.code, Code.SYSTEM_ERROR)

    def test_all_groups(self) -> None:
        """Each group with its topics; what is behind and what is being consumed, together."""
        self.asked.append(*[message(topic="t") for _ in range(5)])
        self.asked.metadata.groups.find("idle", NOW_MS)
        self.asked.metadata.consumer_offsets.commit("g", "t", 0, 1, NOW_MS)
        self.progress.pulled("g", "t", 0, 3, [b"m"] * 3)
        body = self.admin.ask(GET_BROKER_CONSUME_STATS, {"isOrder": "false"}).body
        self.assertEqual(body, (
            b'{"brokerAddr":"10.0.0.1:10911","totalDiff":4,"totalInflightDiff":2,"consumeStatsList":['
            b'{"g":[{"consumeTps":0.05,"offsetTable":{'
            b'{"brokerName":"DEFAULT_BROKER","queueId":0,"topic":"t"}:{"brokerOffset":5,"consumerOffset":1,'
            b'"lastTimestamp":%d,"pullOffset":3},'
            b'{"brokerName":"DEFAULT_BROKER","queueId":1,"topic":"t"}:{"brokerOffset":0,"consumerOffset":0,'
            b'"lastTimestamp":0,"pullOffset":0}}}]},{"idle":[]}]}' % NOW_MS
        ))
        self.assertIn(b'"totalDiff":0', self.admin.ask(GET_BROKER_CONSUME_STATS, {"isOrder": "true"}).body)
        data = ConsumerData(group="g", subscriptions={"u": parse_subscription("u", "*")})
        self.table.register(self.admin.connection, "c", data, now_ms=NOW_MS)
        self.admin.received()
        self.assertIn(b'"totalDiff":0', self.admin.ask(GET_BROKER_CONSUME_STATS, {}).body)

    def test_too_many(self) -> None:
        """An answer has a bound."""
        self.patch(queue_queries, "QUEUES_MAX", 1)
        self.asked.metadata.consumer_offsets.commit("g", "t", 0, 1, NOW_MS)
        self.assertEqual(self.admin.ask(GET_BROKER_CONSUME_STATS, {}).code, Code.SYSTEM_ERROR)

    def test_units(self) -> None:
        """Where the messages of a queue are; and what a group wants of them."""
        self.asked.append(*[message(topic="t", properties={"TAGS": "A"}) for _ in range(3)])
        fields = {"topic": "t", "queueId": 0, "index": 1, "count": 5, "consumerGroup": "g"}
        found = json.loads(self.admin.ask(QUERY_CONSUME_QUEUE, fields).body)
        units = self.asked.store.queues.get("t", 0).read(1, 2)  # type: ignore[union-attr]
        self.assertEqual(found, {"maxQueueIndex": 3, "minQueueIndex": 0, "queueData": [
            {"eval": False, "physicOffset": one.offset, "physicSize": one.size, "tagsCode": java_hash("A")}
            for one in units
        ], "filterData": "g@t is not online!"})
        data = ConsumerData(group="g", subscriptions={"t": parse_subscription("t", "A", version=5)})
        self.table.register(self.admin.connection, "c", data, now_ms=NOW_MS)
        self.admin.received()
        found = json.loads(self.admin.ask(QUERY_CONSUME_QUEUE, {**fields, "count": 0}).body)
        self.assertEqual((found["subscriptionData"]["subString"], found["queueData"]), ("A", []))

    def test_no_units(self) -> None:
        """A queue that is not there, an index that is not."""
        fields = {"topic": "t", "queueId": 0, "index": 0, "count": 5}
        self.assertEqual(self.admin.ask(QUERY_CONSUME_QUEUE, fields).remark, "0@t is not exist!")
        self.asked.append(message(topic="t"))
        answer = self.admin.ask(QUERY_CONSUME_QUEUE, {**fields, "index": 1})
        self.assertEqual((answer.code, answer.remark), (0, "Index 1 of 0@t is not exist!"))
        answer = self.admin.ask(QUERY_CONSUME_QUEUE, {**fields, "count": 1025})
        self.assertEqual(answer.code, Code.SYSTEM_ERROR)
