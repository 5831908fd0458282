# -*- test-case-name: tests.broker.store.test_topic_lives -*-
"""Queues of a slave show whether a topic was made again, or only found again by its master."""

from __future__ import annotations

import random

from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.broker.store.queues.consume_queues import ConsumeQueues
from dledger.rocketmq.broker.store.queues.topic_lives import TopicLives
from dledger.testing.world.disk import SimDisk
from tests.broker.support import config_of


class LivesTests(SynchronousTestCase):
    """A queue with two messages, at 1,000 and 1,100 of the log; the table of topics was copied once."""

    def setUp(self) -> None:
        self.disk = SimDisk(random.Random(1))
        self.queues = ConsumeQueues(config_of(), self.disk)
        for index in (0, 1):
            self.queues.put("T", 0, index, 1000 + 100 * index, 100, 0)
        self.lives = TopicLives(self.queues)
        self.lives.note()

    def test_a_topic_is_found_again(self) -> None:
        """All messages are of the topic that begins there."""
        self.assertFalse(self.lives.has_ended("T", 900))
        self.assertFalse(self.lives.has_ended("T", 1000))

    def test_a_topic_made_again_is_noticed(self) -> None:
        """Some messages are older than the topic."""
        self.assertTrue(self.lives.has_ended("T", 1001))
        self.assertTrue(self.lives.has_ended("T", 1200))

    def test_a_queue_begun_anew_is_noticed_once(self) -> None:
        """The queue has taken the place of an earlier one since the last table; once."""
        self.queues.put("T", 0, 0, 2000, 100, 0)
        self.assertTrue(self.lives.has_ended("T", 1900))
        self.lives.note()
        self.assertFalse(self.lives.has_ended("T", 1950))

    def test_an_unknown_topic_had_another_life(self) -> None:
        """Before the first table, without a queue, and if one cannot be read, there was another life."""
        self.assertTrue(TopicLives(self.queues).has_ended("T", 900))
        self.assertTrue(self.lives.has_ended("U", 900))
        self.queues.write()
        self.disk.arm(reads=9)
        self.assertTrue(self.lives.has_ended("T", 900))
