# -*- test-case-name: tests.broker.admin.test_reset_offsets -*-
"""A group consumes once more."""

from __future__ import annotations

from twisted.internet.defer import Deferred, fail, succeed
from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.answering.refusals import Code
from dledger.rocketmq.broker.admin.reset_offsets import (
    INVOKE_BROKER_TO_RESET_OFFSET,
    RESET_CONSUMER_CLIENT_OFFSET,
    ResetOffsets,
)
from dledger.rocketmq.broker.admin.stats import CONSUMER_NOT_ONLINE
from dledger.rocketmq.broker.consuming.consumers import ConsumerTable
from dledger.rocketmq.broker.consuming.subscriptions import ConsumerData
from dledger.rocketmq.metadata.order_info import OrderInfo
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode
from protocols.wire.remoting import RemotingCommand
from tests.broker.asked import NOW_MS, Asked
from tests.broker.support import message


class ResetTests(SynchronousTestCase):
    """A topic of two queues with three messages each, a second apart; group g has consumed two of each."""

    def setUp(self) -> None:
        self.asked = Asked()
        self.addCleanup(self.asked.close)
        self.asked.topic("t", queues=2)
        self.table = ConsumerTable()
        self.asked.groups = [
            ResetOffsets(self.asked.inside, self.table, settled=lambda: self.settled)
        ]
        self.settled: Deferred[None] = succeed(None)
        for _ in range(3):
            self.asked.append(message(topic="t"), message(topic="t", queue_id=1))
            self.asked.clock.advance(1)
        self.asked.metadata.groups.find("g", NOW_MS)
        for queue_id in range(2):
            self.asked.metadata.consumer_offsets.commit("g", "t", queue_id, 2, NOW_MS)
        self.admin, self.consumer = self.asked.client(), self.asked.client()

    def join(self) -> None:
        """A consumer is there."""
        self.table.register(self.consumer.connection, "c", ConsumerData(group="g"), now_ms=NOW_MS)
        self.consumer.received()

    def reset(self, timestamp_ms: int, *, force: bool = True, **more: object) -> RemotingCommand:
        """The answer to the administrator."""
        forced = str(force).lower()
        fields = {"topic": "t", "group": "g", "timestamp": timestamp_ms, "isForce": forced, **more}
        return self.admin.ask(INVOKE_BROKER_TO_RESET_OFFSET, fields)

    def table_of(self, *offsets: int) -> bytes:
        """The document, as fastjson writes it."""
        key = b'{"brokerName":"DEFAULT_BROKER","queueId":%d,"topic":"t"}:%d'
        keys = (key % one for one in enumerate(offsets))
        return b'{"offsetTable":{' + b",".join(keys) + b"}}"

    def test_to_a_time(self) -> None:
        """Consumers are informed where each queue was then, one way, and so is the administrator."""
        self.join()
        answer = self.reset(NOW_MS + 1000, offset=-1, queueId=-1)
        self.assertEqual((answer.code, answer.body), (0, self.table_of(1, 1)))
        (reported,) = self.consumer.received()
        self.assertTrue(reported.is_oneway)
        self.assertEqual((reported.code, reported.body), (RESET_CONSUMER_CLIENT_OFFSET, answer.body))
        self.assertEqual((reported.ext_fields["group"], reported.ext_fields["topic"]), ("g", "t"))

    def test_forwards(self) -> None:
        """Only if it is forced; a time of -1 is the end."""
        self.join()
        self.assertEqual(self.reset(-1, force=False).body, self.table_of(2, 2))
        self.assertEqual(self.reset(-1).body, self.table_of(3, 3))
        self.assertEqual(self.reset(0, force=False).body, self.table_of(0, 0))

    def test_nobody_there(self) -> None:
        """The administrator's tool gets the offsets, and does it itself."""
        answer = self.reset(0)
        self.assertEqual(answer.code, CONSUMER_NOT_ONLINE)
        self.assertEqual(self.asked.metadata.consumer_offsets.query("g", "t", 0), 2)

    def test_refused(self) -> None:
        """Each mistake by name; no consumer is informed."""
        self.join()
        self.asked.topic("new", queues=1)
        for fields, word in (
            ({"topic": "u"}, "no topic"), ({"group": "h"}, "not exist"), ({"topic": "new"}, "queue 0 of new"),
            ({"isForce": "x"}, "isForce"), ({"timestamp": "x"}, "timestamp"),
            ({"offset": 4, "queueId": 0}, "Target offset 4 not in"), ({"queueId": 2}, "no such queue"),
            ({"group": "CID_RMQ_SYS_TIMER"}, "are the broker's own"),
        ):
            answer = self.reset(**{"timestamp_ms": 0, **fields})  # type: ignore[arg-type]
            self.assertEqual(answer.code, Code.SYSTEM_ERROR, fields)
            self.assertIn(word, answer.remark or "")
        self.assertEqual(self.consumer.received(), [])

    def test_to_an_offset(self) -> None:
        """
        One queue: it is committed, and its consumers, if there are any, are informed of this queue only.
        """
        one = b'{"offsetTable":{{"brokerName":"DEFAULT_BROKER","queueId":1,"topic":"t"}:3}}'
        answer = self.reset(0, queueId=1, offset=3)
        self.assertEqual((answer.code, answer.body), (0, one))
        offsets = self.asked.metadata.consumer_offsets
        self.assertEqual([offsets.query("g", "t", queue_id) for queue_id in range(2)], [2, 3])
        self.join()
        self.assertEqual(self.reset(0, queueId=1, offset=3).body, one)
        (reported,) = self.consumer.received()
        self.assertEqual((reported.code, reported.body), (RESET_CONSUMER_CLIENT_OFFSET, one))
        answer = self.reset(0, group="new", queueId=1, offset=3)
        self.assertEqual(answer.code, Code.SUBSCRIPTION_GROUP_NOT_EXIST)

    def test_of_a_pop(self) -> None:
        """A group that pops in order holds nothing any more, and need not be reported."""
        infos = self.asked.metadata.order_info
        for queue_id in range(2):
            infos.put(("t", "g", queue_id), OrderInfo(pop_ms=NOW_MS, invisible_ms=9000, offsets=(1, 2)))
        self.assertEqual(self.reset(0).body, self.table_of(0, 0))
        self.assertEqual((len(infos), self.asked.metadata.consumer_offsets.query("g", "t", 1)), (0, 0))

    def test_answered_when_settled(self) -> None:
        """The next master knows an offset that is committed here, or the answer says that it may not."""
        self.settled = Deferred()
        fields = {"topic": "t", "group": "g", "timestamp": 0, "isForce": "true", "queueId": 1, "offset": 0}
        self.admin.send(INVOKE_BROKER_TO_RESET_OFFSET, fields)
        self.assertEqual(self.admin.received(), [])
        self.settled.callback(None)
        self.assertEqual([one.code for one in self.admin.received()], [0])
        self.settled = fail(DLedgerError(ResponseCode.UNKNOWN, reason="a test"))
        answer = self.reset(0, queueId=1, offset=0)
        self.assertEqual(answer.code, Code.SYSTEM_ERROR)
        self.assertIn("a test", answer.remark or "")

    def test_slave_commits_nothing(self) -> None:
        """A slave commits no offset: its master would overwrite it."""
        self.asked.config.role.become("SLAVE", 1)
        answer = self.reset(0, queueId=1, offset=0)
        self.assertEqual((answer.code, answer.remark), (1, "Can not reset offset in slave broker"))
        self.assertEqual(self.asked.metadata.consumer_offsets.query("g", "t", 1), 2)
