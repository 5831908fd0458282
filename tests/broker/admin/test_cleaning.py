# -*- test-case-name: tests.broker.admin.test_cleaning -*-
"""Requests to tidy up: nothing goes that would not go by itself."""

from __future__ import annotations

import json

from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.answering.refusals import Code
from dledger.rocketmq.broker.admin.cleaning import (
    CLEAN_EXPIRED_CONSUMEQUEUE,
    CLEAN_UNUSED_TOPIC,
    DELETE_EXPIRED_COMMITLOG,
    GET_SYSTEM_TOPIC_LIST,
    Cleaning,
)
from dledger.rocketmq.broker.options.raft_options import RaftOptions
from tests.broker.asked import Asked
from tests.broker.support import message


class CleaningTests(SynchronousTestCase):
    """A master with a topic."""

    def setUp(self) -> None:
        self.kept = 0
        self.make()

    def make(self, **options: object) -> None:
        """The broker."""
        self.asked = Asked(**options)
        self.addCleanup(self.asked.close)
        self.asked.topic("t")

        def maintain() -> None:
            self.kept += 1

        self.asked.groups = [Cleaning(self.asked.inside, maintain=maintain)]
        self.admin = self.asked.client()

    def test_system_topics(self) -> None:
        """Those of every broker, and its own."""
        found = json.loads(self.admin.ask(GET_SYSTEM_TOPIC_LIST, {}).body)["topicList"]
        for name in ("TBW102", "SCHEDULE_TOPIC_XXXX", "DefaultCluster", "DEFAULT_BROKER"):
            self.assertIn(name, found)
        self.assertNotIn("t", found)

    def test_queues(self) -> None:
        """Files of queues whose messages are gone; the others stay."""
        for _ in range(8):
            self.asked.append(message(b"x" * 1000, topic="t"))
            self.asked.clock.advance(1)
        self.asked.store.log.expire_first()
        queue = self.asked.store.queues.get("t", 0)
        assert queue is not None
        self.assertEqual(self.admin.ask(CLEAN_EXPIRED_CONSUMEQUEUE, {}).code, 0)
        self.assertEqual((queue.begin_index, queue.next_index), (3, 8))

    def test_unused_topics(self) -> None:
        """There are none: the answer says so."""
        answer = self.admin.ask(CLEAN_UNUSED_TOPIC, {})
        self.assertEqual(answer.code, 0)
        self.assertIn("nothing to do", answer.remark or "")

    def test_log(self) -> None:
        """Old files go now; of a raft log its members delete them."""
        self.assertEqual((self.admin.ask(DELETE_EXPIRED_COMMITLOG, {}).code, self.kept), (0, 1))
        self.make(raft=RaftOptions(
            enable_dleger_commit_log=True, dleger_peers="n0-127.0.0.1:1", dleger_self_id="n0"
        ))
        answer = self.admin.ask(DELETE_EXPIRED_COMMITLOG, {})
        self.assertEqual((answer.code, self.kept), (Code.SYSTEM_ERROR, 1))
