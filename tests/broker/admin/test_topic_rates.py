# -*- test-case-name: tests.broker.admin.test_topic_rates -*-
"""How many messages the queues of topics have."""

from __future__ import annotations

from typing import Any

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.broker.admin.topic_rates import TopicCount, TopicRates, topic_counts


class FakeQueues:
    """Two topics, one of two queues."""

    def keys(self) -> list[tuple[str, int]]:
        """Of every queue; one is gone when it is looked at."""
        return [("T", 0), ("T", 1), ("U", 0), ("gone", 0)]

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int] | None:
        """As of queues."""
        return {("T", 0): (3, 10), ("T", 1): (0, 5), ("U", 0): (0, 1)}.get((topic, queue_id))


class CountTests(SynchronousTestCase):
    """L{topic_counts}."""

    def test_counts(self) -> None:
        """Of all queues of a topic together; what is beyond the bound is counted."""
        queues: Any = FakeQueues()
        counts, cut = topic_counts(queues)
        self.assertEqual(counts["T"], TopicCount(queues=2, stored=15, kept=12))
        self.assertEqual((counts["gone"].stored, cut), (0, 0))
        counts, cut = topic_counts(queues, 1)
        self.assertEqual((list(counts), counts["T"].stored, cut), (["T"], 10, 3))


class RateTests(SynchronousTestCase):
    """L{TopicRates}."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.stored, self.looks = 100, 0
        self.rates = TopicRates(self.read, self.clock)

    def read(self) -> dict[str, TopicCount]:
        """The present counts."""
        self.looks += 1
        return {"T": TopicCount(queues=1, stored=self.stored, kept=self.stored)}

    def run_for(self, seconds: int, per_second: int) -> None:
        """A topic grows, and is swept each second."""
        for _ in range(seconds):
            self.stored += per_second
            self.clock.advance(1)
            self.rates.sweep()

    def test_minute(self) -> None:
        """The rate is that of about the last minute, and queues are looked at each ten seconds."""
        self.rates.sweep()
        self.assertEqual(self.rates.per_second("T"), 0.0)
        self.run_for(20, 3)
        self.assertEqual((self.rates.per_second("T"), self.rates.per_second("other")), (3.0, 0.0))
        self.run_for(60, 7)
        self.assertEqual((self.rates.per_second("T"), self.looks), (7.0, 9))

    def test_made_again(self) -> None:
        """A topic whose queues begin again has no negative rate."""
        self.rates.sweep()
        self.run_for(10, -5)
        self.assertEqual(self.rates.per_second("T"), 0.0)
