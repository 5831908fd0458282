# -*- test-case-name: tests.broker.admin.test_stats -*-
"""What administrators ask about topics and groups."""

from __future__ import annotations

import json

from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.answering.pieces import at_once
from dledger.rocketmq.answering.refusals import Code
from dledger.rocketmq.broker.admin import stats as stats_commands
from dledger.rocketmq.broker.admin.stats import (
    CONSUMER_NOT_ONLINE,
    GET_CONSUME_STATS,
    GET_CONSUMER_CONNECTION_LIST,
    GET_SUBSCRIPTIONGROUP_CONFIG,
    GET_TOPIC_CONFIG,
    GET_TOPIC_STATS_INFO,
    QUERY_TOPIC_CONSUME_BY_WHO,
    StatsCommands,
    TableCommands,
)
from dledger.rocketmq.broker.consuming.consumers import ConsumerTable
from dledger.rocketmq.broker.consuming.pull_progress import PullProgress
from dledger.rocketmq.broker.consuming.subscriptions import ConsumerData, parse_subscription
from dledger.rocketmq.metadata.slave_synchronize import ITEMS, metadata_answer
from tests.broker.asked import NOW_MS, Asked
from tests.broker.support import message


class StatsTests(SynchronousTestCase):
    """A master with a topic of two queues, and a group."""

    def setUp(self) -> None:
        self.asked = Asked()
        self.addCleanup(self.asked.close)
        self.asked.topic("t", queues=2)
        self.table, self.progress = ConsumerTable(), PullProgress(self.asked.wall_ms)
        self.asked.groups = [
            StatsCommands(self.asked.inside, self.table, progress=self.progress)
        ]
        self.client = self.asked.client()
        self.asked.append(message(topic="t"), message(topic="t"), message(topic="t", queue_id=1))

    def register(self) -> None:
        """A consumer of group g."""
        data = ConsumerData(group="g", subscriptions={"t": parse_subscription("t", "A", version=5)})
        self.table.register(self.client.connection, "c1", data, now_ms=NOW_MS, language="JAVA", version=409)

    def test_topic(self) -> None:
        """Where each queue begins and ends, and when it was written to; keys as fastjson writes them."""
        body = self.client.ask(GET_TOPIC_STATS_INFO, {"topic": "t"}).body
        self.assertEqual(body, (
            b'{"offsetTable":{{"brokerName":"DEFAULT_BROKER","queueId":0,"topic":"t"}:'
            b'{"lastUpdateTimestamp":%d,"maxOffset":2,"minOffset":0},'
            b'{"brokerName":"DEFAULT_BROKER","queueId":1,"topic":"t"}:'
            b'{"lastUpdateTimestamp":%d,"maxOffset":1,"minOffset":0}}}' % (NOW_MS, NOW_MS)
        ))
        self.assertEqual(self.client.ask(GET_TOPIC_STATS_INFO, {"topic": "u"}).code, Code.TOPIC_NOT_EXIST)

    def test_consumed(self) -> None:
        """How far a group is: in one topic, and in all that it has to do with."""
        self.asked.metadata.consumer_offsets.commit("g", "t", 0, 1, NOW_MS)
        for fields in ({"consumerGroup": "g", "topic": "t"}, {"consumerGroup": "g"}):
            body = self.client.ask(GET_CONSUME_STATS, fields).body
            self.assertIn(
                b'"queueId":0,"topic":"t"}:{"brokerOffset":2,"consumerOffset":1,"lastTimestamp":%d,' % NOW_MS,
                body,
            )
            self.assertIn(b'"queueId":1,"topic":"t"}:{"brokerOffset":1,"consumerOffset":0', body)
            self.assertTrue(body.startswith(b'{"consumeTps":0.0,"offsetTable":{'))
        self.assertEqual(self.client.ask(GET_CONSUME_STATS, {"consumerGroup": "h"}).body,
                         b'{"consumeTps":0.0,"offsetTable":{}}')
        self.register()
        self.asked.metadata.consumer_offsets.delete_group("g", NOW_MS)
        self.assertIn(b'"consumerOffset":0', self.client.ask(GET_CONSUME_STATS, {"consumerGroup": "g"}).body)

    def test_pulled(self) -> None:
        """The messages that are with consumers, and how fast they go there: figures of this run."""
        self.asked.metadata.consumer_offsets.commit("g", "t", 0, 1, NOW_MS)
        fields = {"consumerGroup": "g", "topic": "t"}
        self.assertIn(b'"consumerOffset":1,"lastTimestamp":%d,"pullOffset":1}' % NOW_MS,
                      self.client.ask(GET_CONSUME_STATS, fields).body)
        self.progress.pulled("g", "t", 0, 2, [b"m"] * 30)
        body = self.client.ask(GET_CONSUME_STATS, fields).body
        self.assertIn(b'"consumerOffset":1,"lastTimestamp":%d,"pullOffset":2}' % NOW_MS, body)
        self.assertTrue(body.startswith(b'{"consumeTps":0.5,'), body)
        self.asked.metadata.consumer_offsets.commit("g", "t", 0, 3, NOW_MS)
        self.assertIn(b'"pullOffset":3}', self.client.ask(GET_CONSUME_STATS, fields).body)

    def test_too_many_queues(self) -> None:
        """An answer has a bound."""
        self.patch(stats_commands, "QUEUES_MAX", 1)
        answer = self.client.ask(GET_TOPIC_STATS_INFO, {"topic": "t"})
        self.assertEqual(answer.code, Code.SYSTEM_ERROR)

    def test_connections(self) -> None:
        """Members of a group and its subscription; a group without members is not online."""
        answer = self.client.ask(GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "g"})
        self.assertEqual(answer.code, CONSUMER_NOT_ONLINE)
        self.register()
        said = json.loads(self.client.ask(GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "g"}).body)
        (member,) = said["connectionSet"]
        self.assertEqual((member["clientId"], member["language"], member["version"]), ("c1", "JAVA", 409))
        wanted = said["subscriptionTable"]["t"]
        self.assertEqual((wanted["subString"], wanted["codeSet"], wanted["subVersion"]), ("A", [65], 5))
        self.assertEqual((said["consumeType"], said["messageModel"]), ("CONSUME_PASSIVELY", "CLUSTERING"))

    def test_groups_of_a_topic(self) -> None:
        """Those that want it, and those that have consumed of it."""
        self.register()
        self.asked.metadata.consumer_offsets.commit("h", "t", 0, 1, NOW_MS)
        said = json.loads(self.client.ask(QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "t"}).body)
        self.assertEqual(said, {"groupList": ["g", "h"]})

    def test_settings(self) -> None:
        """One topic, one group, or that there is none."""
        said = json.loads(self.client.ask(GET_TOPIC_CONFIG, {"topic": "t"}).body)
        self.assertEqual((said["topicName"], said["writeQueueNums"]), ("t", 2))
        self.assertEqual(self.client.ask(GET_TOPIC_CONFIG, {"topic": "u"}).code, Code.TOPIC_NOT_EXIST)
        answer = self.client.ask(GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "g"})
        self.assertEqual(answer.code, Code.SUBSCRIPTION_GROUP_NOT_EXIST)
        self.asked.metadata.groups.find("g", NOW_MS)
        said = json.loads(self.client.ask(GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "g"}).body)
        self.assertEqual((said["groupName"], said["retryQueueNums"]), ("g", 1))


class TableTests(SynchronousTestCase):
    """A master with topics."""

    def test_answers(self) -> None:
        """Each table as its master has it."""
        asked = Asked()
        self.addCleanup(asked.close)
        asked.groups = [TableCommands(asked.metadata)]
        client = asked.client()
        for code in ITEMS:
            answer = client.ask(code, {})
            self.assertEqual((answer.code, answer.body), (0, at_once(metadata_answer(asked.metadata, code))))
