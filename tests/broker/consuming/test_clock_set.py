# -*- test-case-name: tests.broker.consuming.test_clock_set -*-
"""Somebody sets the clock of the computer: nothing lives longer, or shorter, for that."""

from __future__ import annotations

import json

from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.broker.consuming.consumers import HEART_BEAT
from dledger.rocketmq.broker.consuming.producers import EXPIRED_MS
from dledger.rocketmq.broker.consuming.queue_locks import EXPIRED_MS as LOCK_MS
from dledger.rocketmq.broker.consuming.queue_locks import LOCK_BATCH_MQ
from protocols.wire.remoting import RemotingCommand
from tests.broker.send_support import Sending

_BEAT = {
    "clientID": "c", "producerDataSet": [{"groupName": "P"}],
    "consumerDataSet": [{"groupName": "G", "subscriptionDataSet": []}],
}
_DAY_MS = 86_400_000


class SetClockTests(SynchronousTestCase):
    """A whole broker, with a consumer, a producer and a lock."""

    def setUp(self) -> None:
        self.broker = Sending()
        self.addCleanup(self.broker.stop)
        self.parts = self.broker.broker
        self.client = self.broker.connect()
        beat = RemotingCommand(code=HEART_BEAT, opaque=1, body=json.dumps(_BEAT).encode())
        self.assertEqual(self.client.send(beat)[-1].code, 0)
        self.assertTrue(self.lock("c"))

    def lock(self, client_id: str) -> bool:
        """Whether a client gets the lock of a queue."""
        queues = [{"topic": "t", "brokerName": "b", "queueId": 0}]
        body = json.dumps({"consumerGroup": "G", "clientId": client_id, "mqSet": queues}).encode()
        (answer,) = self.client.send(RemotingCommand(code=LOCK_BATCH_MQ, opaque=2, body=body))
        return bool(json.loads(answer.body)["lockOKMQSet"])

    def known(self) -> tuple[int, int]:
        """Number of consumers and of producers."""
        self.parts.consumers.sweep()
        self.parts.locks.sweep()
        return self.parts.consumer_table.count_of("G"), len(self.parts.producer_table)

    def test_forward_ends_nothing(self) -> None:
        """Consumers, producers and locks stay: no other client may consume the queue, too."""
        self.broker.set_clock(_DAY_MS)
        self.assertEqual((self.known(), self.lock("d")), ((1, 1), False))

    def test_back_keeps_nothing(self) -> None:
        """A client that is gone does not hold its queue for as long as the clock was set back."""
        self.broker.set_clock(-_DAY_MS)
        self.broker.clock.advance(LOCK_MS / 1000 + 1)
        self.assertTrue(self.lock("d"))
        self.broker.clock.advance((EXPIRED_MS - LOCK_MS) / 1000)
        self.assertEqual(self.known(), (0, 0))
