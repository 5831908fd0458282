# -*- test-case-name: tests.broker.transactions.test_commands -*-
"""The topics that transactions need besides that of half messages, which every broker has."""

from __future__ import annotations

from dledger.rocketmq.broker.producing.halves import DISCARDED_TOPIC, OP_TOPIC
from dledger.rocketmq.metadata.files import Metadata
from dledger.rocketmq.metadata.tables import PERM_READ, PERM_WRITE, TopicConfig


def keep_topics(metadata: Metadata, now_ms: int) -> None:
    """Make them on first use, as RocketMQ does. @param now_ms: ms since 1970."""
    for name in (OP_TOPIC, DISCARDED_TOPIC):
        if metadata.topics.get(name) is None:
            metadata.topics.put(
                TopicConfig(
                    topic_name=name, read_queue_nums=1, write_queue_nums=1, perm=PERM_READ | PERM_WRITE
                ),
                now_ms,
            )
