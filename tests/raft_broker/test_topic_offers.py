# -*- test-case-name: tests.raft_broker.test_topic_offers -*-
"""Topics that a slave of ours has a master of RocketMQ create."""

from __future__ import annotations

import json

from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.error import ConnectionRefusedError as Refused
from twisted.logger import capturedLogs

from dledger.rocketmq.metadata.slave_synchronize import OwnLog
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode
from protocols.wire.remoting import RemotingCommand
from tests.broker.send_support import send_of
from tests.raft_broker.rig import RaftCase


class _Master:
    """Has topics; answers like a master of RocketMQ."""

    def __init__(self, *names: str) -> None:
        self.topics = {name: {"topicName": name} for name in names}
        self.asked: list[RemotingCommand] = []
        self.refusal = 0
        self.is_lost = False
        self.copies = 0

    def ask(self, address: str, command: RemotingCommand, *, timeout_s: float) -> Deferred[RemotingCommand]:
        """See L{dledger.rocketmq.metadata.slave_synchronize.MasterAsker}."""
        if command.code == 17:
            self.asked.append(command)
            if self.is_lost:
                return fail(DLedgerError(ResponseCode.NETWORK_ERROR, reason="lost"))
            if not self.refusal:
                self.topics[command.ext_fields["topic"]] = {"topicName": command.ext_fields["topic"]}
            return succeed(RemotingCommand(code=self.refusal, opaque=0, flag=1))
        if command.code != 21:
            return fail(Refused())
        self.copies += 1
        version = {"timestamp": 1, "counter": self.copies}
        body = json.dumps({"dataVersion": version, "topicConfigTable": self.topics})
        return succeed(RemotingCommand(code=0, opaque=0, flag=1, body=body.encode()))

    @property
    def created(self) -> list[str]:
        """The topics that it was asked to create."""
        return [one.ext_fields["topic"] for one in self.asked]


class OfferTests(RaftCase):
    """A broker with a message in a new topic, whose master is another one."""

    def setUp(self) -> None:
        super().setUp()
        self.start()
        self.ask(send_of(b"one", topic="New", queueId=1))
        self.settle(0.2)
        self.master = _Master("TBW102")
        self.synchronize = self.replication.synchronize
        self.patch(self.synchronize, "_asker", self.master)
        self.patch(self.offers, "_asker", self.master)
        self.patch(self.synchronize, "_own_log", OwnLog(local_topics=self.broker.store.queues.topics))
        self.synchronize.master_address = "10.0.0.9:10911"

    def tearDown(self) -> None:
        """The broker ends."""
        self.stop()

    @property
    def offers(self) -> object:
        """The part that is tested."""
        return self.synchronize._topics_copied.__self__  # type: ignore[union-attr]

    def round(self) -> None:
        """One copy of the master's metadata."""
        self.successResultOf(self.synchronize.synchronize())

    def test_an_unknown_topic_is_created_once(self) -> None:
        """A master that does not know a topic with a young message creates it, as it is here; once."""
        self.round()
        self.round()
        self.assertEqual(self.master.created, ["New"])
        self.assertEqual(self.master.asked[0].ext_fields, {
            "topic": "New", "defaultTopic": "TBW102", "perm": "6", "readQueueNums": "4",
            "writeQueueNums": "4", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
        })

    def test_a_topic_unknown_here_is_offered(self) -> None:
        """A topic that this broker does not know either, but has a queue of, is offered."""
        self.broker.metadata.topics.delete("New", 0)
        self.round()
        self.assertEqual(self.master.created, ["New"])

    def test_a_deleted_topic_is_not_created_again(self) -> None:
        """A topic that was deleted at a master is not created again, there or at a later one."""
        self.master.topics["New"] = {"topicName": "New"}
        self.round()
        del self.master.topics["New"]
        self.round()
        self.assertEqual(self.master.created, [])
        self.synchronize.master_address = "10.0.0.8:10911"
        self.round()
        self.assertEqual(self.master.created, [])

    def test_another_master_gets_its_lost_topics(self) -> None:
        """A topic that the next master has not copied from the last one is created there."""
        self.master.topics["New"] = {"topicName": "New"}
        self.round()
        del self.master.topics["New"]
        self.synchronize.master_address = "10.0.0.8:10911"
        self.round()
        self.assertEqual(self.master.created, ["New"])

    def test_an_old_topic_is_not_created(self) -> None:
        """A topic without a young message is not created."""
        self.clock.rightNow += 601
        self.round()
        self.assertEqual(self.master.created, [])

    def test_a_refused_topic_is_not_offered_again(self) -> None:
        """A refusal is reported, and the topic is not offered to this master again."""
        self.master.refusal = 16
        with capturedLogs() as events:
            self.round()
            self.round()
        self.assertEqual(self.master.created, ["New"])
        self.assertEqual([event["code"] for event in events if "refuses" in event["log_format"]], [16])

    def test_a_lost_answer_repeats_the_offer(self) -> None:
        """A master that does not answer is asked again in the next round."""
        self.master.is_lost = True
        self.round()
        self.master.is_lost = False
        self.round()
        self.round()
        self.assertEqual(self.master.created, ["New", "New"])
