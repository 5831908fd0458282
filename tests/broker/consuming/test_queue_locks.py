# -*- test-case-name: tests.broker.consuming.test_queue_locks -*-
"""A queue is lent to one client at a time."""

from __future__ import annotations

import json

from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.answering.refusals import Code
from dledger.rocketmq.broker.consuming.queue_locks import (
    EXPIRED_MS,
    LOCK_BATCH_MQ,
    UNLOCK_BATCH_MQ,
    QueueLocks,
)
from tests.broker.asked import Asked


def wanted(client_id: str, *numbers: int, group: str = "g") -> bytes:
    """What a client asks for."""
    queues = [{"topic": "t", "brokerName": "b", "queueId": number} for number in numbers]
    return json.dumps({"consumerGroup": group, "clientId": client_id, "mqSet": queues}).encode()


class LockTests(SynchronousTestCase):
    """One master."""

    def setUp(self) -> None:
        self.asked = Asked()
        self.addCleanup(self.asked.close)
        self.locks = QueueLocks(steady_ms=self.asked.wall_ms, locks_max=3)
        self.asked.groups = [self.locks]
        self.client = self.asked.client()

    def lock(self, client_id: str, *numbers: int, group: str = "g") -> list[int]:
        """@return: the queues that it got."""
        answer = self.client.ask(LOCK_BATCH_MQ, {}, wanted(client_id, *numbers, group=group))
        return [queue["queueId"] for queue in json.loads(answer.body)["lockOKMQSet"]]

    def test_one_client(self) -> None:
        """Who has it gets it again, others do not; another group has locks of its own."""
        self.assertEqual(self.lock("c1", 0, 1), [0, 1])
        self.assertEqual(self.lock("c1", 0), [0])
        self.assertEqual(self.lock("c2", 0, 1), [])
        self.assertEqual(self.lock("c2", 0, group="h"), [0])

    def test_unlock(self) -> None:
        """Only who has it gives it back."""
        self.lock("c1", 0)
        for client_id, others in (("c2", []), ("c1", [0])):
            self.client.ask(UNLOCK_BATCH_MQ, {}, wanted(client_id, 0))
            self.assertEqual(self.lock("c3", 0), others)

    def test_expired(self) -> None:
        """It runs out 60 s after it was asked for last."""
        self.lock("c1", 0)
        self.asked.clock.advance(30)
        self.lock("c1", 0)
        self.asked.clock.advance(EXPIRED_MS / 1000)
        self.locks.sweep()
        self.assertEqual((self.lock("c2", 0), len(self.locks)), ([], 1))
        self.asked.clock.advance(0.001)
        self.assertEqual(self.lock("c2", 0), [0])
        self.asked.clock.advance(61)
        self.locks.sweep()
        self.assertEqual(len(self.locks), 0)

    def test_full(self) -> None:
        """There are no more locks than are allowed."""
        self.assertEqual(self.lock("c1", 0, 1, 2, 3), [0, 1, 2])

    def test_nonsense(self) -> None:
        """What makes no sense is refused by name."""
        for body, word in (
            (b"", "no body"), (b'{"consumerGroup":"g","clientId":"c"}', "mqSet"),
            (b'{"mqSet":[],"clientId":"c"}', "consumerGroup"),
            (b'{"consumerGroup":"g","clientId":"c","mqSet":[7]}', "mqSet"),
            (b'{"consumerGroup":"g","clientId":"c","mqSet":[{"topic":"t"}]}', "brokerName"),
        ):
            answer = self.client.ask(LOCK_BATCH_MQ, {}, body)
            self.assertEqual(answer.code, Code.SYSTEM_ERROR)
            self.assertIn(word, answer.remark or "")
