# -*- test-case-name: tests.interop.test_mqadmin -*-
"""
Commands of RocketMQ's C{mqadmin} at a broker of ours, with a producer and a consumer of RocketMQ: figures,
questions that go on to a consumer, lists of topics and groups, offsets.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from tests.interop.ha import OurBroker
from tests.interop.java import JavaMissing
from tests.interop.name_servers import Asking, OurNameServer, mqadmin
from tests.interop.rocketmq import PATIENCE, TOPIC, Messages, class_path
from tests.interop.test_ha_consumers import Consumers
from tests.processes.children import ChildError, free_triple

VERSION = "5.3.3"
GROUP = "readers"
_TOPIC = {
    "topic": "t", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6",
    "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
}


class AdminTests(SynchronousTestCase):
    """One name server, one broker."""

    def setUp(self) -> None:
        try:
            class_path(VERSION)
        except JavaMissing as missing:
            raise SkipTest(str(missing)) from None
        held = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(held.cleanup)
        self.directory = Path(held.name)
        self.names = OurNameServer(self.directory)
        self.addCleanup(self.names.kill)
        self.names.start()
        self.names.wait_started()
        port = free_triple()
        self.address = f"127.0.0.1:{port}"
        self.broker = OurBroker("ours", self.directory / "ours", port=port, name_server=self.names.address,
                                store=self.directory / "store")
        self.addCleanup(self.broker.kill)
        self.broker.become("ASYNC_MASTER")
        self.broker.start()
        self.broker.wait_started(seconds=PATIENCE)
        self.asking = Asking(port)
        self.addCleanup(self.asking.close)
        (self.directory / "tool" / "conf").mkdir(parents=True)

    def tool(self, *words: str) -> str:
        """What C{mqadmin} writes, without the lines of its log."""
        said = mqadmin(VERSION, self.directory / "tool", self.names.address, *words)
        return "\n".join(line for line in said.splitlines() if " |-" not in line)

    def test_clients(self) -> None:
        """Producers and consumers, and what a consumer says of itself; the figures of both."""
        messages = Messages(self.names.address, self.directory, VERSION)
        self.addCleanup(messages.kill)
        messages.start()
        messages.wait_started()
        sent = messages.produce(0, 20)
        self.assertEqual(messages.received(20), (20, 0))
        consumers = "consumers"
        said = self.tool("producer", "-b", self.address)
        self.assertIn("producers", said)
        status = self.tool("consumerStatus", "-g", consumers)
        client_id = next((word for word in status.split() if "@" in word), "")
        self.assertTrue(client_id, status)
        try:
            running = self.tool("consumerStatus", "-g", consumers, "-i", client_id)
        except ChildError as error:  # the names of a client's options have the word Exception in them
            running = str(error)
        self.assertIn("#Consumer RT&TPS#", running)
        reported = self.tool(
            "queryMsgById", "-t", TOPIC, "-i", sent[0].message_id, "-g", consumers, "-d", client_id
        )
        self.assertIn("CR_SUCCESS", reported)
        self.assertIn(consumers, self.tool("brokerConsumeStats", "-b", self.address))
        queue = self.tool("queryCq", "-t", TOPIC, "-q", str(sent[0].queue_id), "-i", "0", "-b", self.address)
        self.assertIn("tagsCode", queue)
        line = next(one for one in self.tool("statsAll").splitlines() if one.startswith(TOPIC))
        words = line.split()
        self.assertGreater(float(words[3]), 0.0, line)
        self.assertEqual(words[5], "20", line)

    def test_consume_mode(self) -> None:
        """A push consumer that lets the broker share out the queues pops, when an administrator says so."""
        for code, fields, body in (
            (17, _TOPIC, b""), (200, {}, json.dumps({"groupName": GROUP}).encode()),
        ):
            self.assertEqual(self.asking.ask(code, fields, body).code, 0)
        self.tool("setConsumeMode", "-b", self.address, "-t", "t", "-g", GROUP, "-m", "POP", "-q", "8")
        consumers = Consumers(self.names.address, self.directory, VERSION)
        self.addCleanup(consumers.kill)
        consumers.start()
        consumers.wait_started(seconds=PATIENCE)
        self.assertEqual(consumers.push("one", "t", group=GROUP, way="popped"), "ok")
        consumers.produce("t", "a", "b", "c")
        seen = consumers.seen("one", 6)
        self.assertEqual(sorted((one.body, one.times) for one in seen),
                         [(body, times) for body in "abc" for times in (0, 1)])
        status = self.asking.ask(43)
        self.assertIn("REVIVE", str(status.body))

    def test_lists(self) -> None:
        """Lists of topics and groups; metadata to a file; what tidies up."""
        topics = self.directory / "topics.json"
        topics.write_text(json.dumps([
            {"topicName": "one", "attributes": {"+message.type": "FIFO"}}, {"topicName": "two"},
        ]))
        self.tool("updateTopicList", "-b", self.address, "-f", str(topics))
        self.assertIn("FIFO", str(self.asking.ask(351, {"topic": "one"}).body))
        groups = self.directory / "groups.json"
        groups.write_text(json.dumps([{"groupName": "g1"}, {"groupName": "g2", "retryMaxTimes": 3}]))
        self.tool("updateSubGroupList", "-b", self.address, "-f", str(groups))
        self.assertRegex(self.tool("getConsumerConfig", "-g", "g2"), r"retryMaxTimes *= *3")
        self.tool("exportMetadata", "-b", self.address, "-t", "-f", str(self.directory))
        exported = json.loads((self.directory / "topic.json").read_text())
        self.assertLessEqual({"one", "two"}, set(exported["topicConfigTable"]))
        for command in ("cleanExpiredCQ", "cleanUnusedTopic", "deleteExpiredCommitLog"):
            self.assertIn("success", self.tool(command, "-b", self.address))

    def test_offsets(self) -> None:
        """One queue goes back to an offset; a group that does not exist gets none."""
        self.asking.ask(17, _TOPIC)
        for at in range(3):
            sent = self.tool("sendMessage", "-t", "t", "-p", f"m{at}")
            self.assertIn("SEND_OK", sent)
        self.assertEqual(self.asking.ask(200, {}, json.dumps({"groupName": GROUP}).encode()).code, 0)
        said = self.tool(
            "resetOffsetByTime", "-g", GROUP, "-t", "t", "-s", "now", "-b", self.address, "-q", "0", "-o", "2"
        )
        self.assertIn("reset consumer offset to 2", said)
        answer = self.asking.ask(14, {"consumerGroup": GROUP, "topic": "t", "queueId": "0"})
        self.assertEqual(answer.fields["offset"], "2")
        fields = {"consumerGroup": "new", "topic": "t", "queueId": "0", "commitOffset": "1"}
        answer = self.asking.ask(15, fields)
        self.assertEqual(answer.code, 26)
