# -*- test-case-name: tests.broker.admin.test_run_time_options -*-
"""
The topics that every master has.

Source: TopicConfigManager (4.9.8).
"""

from __future__ import annotations

from dledger.rocketmq.broker.options.config import BrokerConfig
from dledger.rocketmq.metadata.files import Metadata
from dledger.rocketmq.metadata.tables import (
    AUTO_CREATE_TOPIC,
    PERM_INHERIT,
    PERM_READ,
    PERM_WRITE,
    TopicConfig,
)


def add_system_topics(metadata: Metadata, config: BrokerConfig, now_ms: int) -> None:
    """Add the topics that every master has, and those that its options require."""
    topics = metadata.topics
    topics.add_system_topics(cluster=config.broker_cluster_name, broker=config.broker_name, now_ms=now_ms)
    for name, queues, may_send in (
        (AUTO_CREATE_TOPIC, config.default_topic_queue_nums, True),
        (config.broker_cluster_name, 16, config.cluster_topic_enable),
        (config.broker_name, 1, True),
    ):
        perm = PERM_INHERIT | (PERM_READ | PERM_WRITE if may_send else 0)
        topics.put(
            TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm), now_ms
        )
    if not config.auto_create_topic_enable:
        topics.delete(AUTO_CREATE_TOPIC, now_ms)
