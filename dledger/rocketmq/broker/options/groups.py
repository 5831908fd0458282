# -*- test-case-name: tests.broker.consuming.test_consumers -*-
"""
Consumer groups: their allowed names, and their creation on first use.

Source: SubscriptionGroupManager, TopicConfigManager.createTopicInSendMessageBackMethod (4.9.8).
"""

from __future__ import annotations

from dledger.rocketmq.broker.options.config import BrokerConfig
from dledger.rocketmq.metadata.files import Metadata
from dledger.rocketmq.metadata.tables import RETRY_PREFIX, GroupConfig, TopicConfig
from dledger.rocketmq.store.queues.consume_queues import is_topic

#: With this many groups, first use creates no more; administrators may.
KNOWN_GROUPS_MAX = 65_536
GROUP_CHARACTERS_MAX = 120

#: The most queues of a topic for retries; its group sets the number.
RETRY_QUEUES_MAX = 65_535


#: The broker's own groups: their offsets say which half messages, times and popped messages are done.
OWN_GROUPS = frozenset({
    "CID_RMQ_SYS_TRANS", "CID_RMQ_SYS_TIMER", "CID_RMQ_SYS_REVIVE_GROUP", "CID_RMQ_SYS_POPPED_GROUP",
})


def is_group(name: str) -> bool:
    """Whether a group may have this name, which becomes part of a topic's name; as TopicValidator."""
    return is_topic(name) and "+" not in name and len(name) <= GROUP_CHARACTERS_MAX


def find_group(metadata: Metadata, config: BrokerConfig, name: str, wall_ms: int) -> GroupConfig | None:
    """
    Settings of a group. A master creates it on first use; a slave only assumes the default settings.

    @return: None if it is unknown and cannot be created, or is the broker's own.
    """
    if name in OWN_GROUPS:  # a broker of RocketMQ may have left it in the table
        return None
    found = metadata.groups.get(name)
    if found is not None or not config.auto_create_subscription_group:
        return found
    if not is_group(name):
        return None
    if len(metadata.groups.entries) >= KNOWN_GROUPS_MAX:
        return None
    return GroupConfig(group_name=name) if config.role.is_slave else metadata.groups.find(name, wall_ms)


def may_add_retries(metadata: Metadata, config: BrokerConfig) -> bool:
    """
    Whether one more topic for the retries or dead letters of a group may be created by its first use.

    Such topics have places of their own beyond C{topics_max}: messages that create topics take none of them.
    """
    return len(metadata.topics.entries) < 2 * config.topics_max


def retry_topic(metadata: Metadata, config: BrokerConfig, group: GroupConfig, wall_ms: int) -> str:
    """Name of the group's topic for retries; a master creates it if missing, and if it may."""
    name = RETRY_PREFIX + group.group_name
    if not config.role.is_slave and metadata.topics.get(name) is None and may_add_retries(metadata, config):
        queues = min(max(group.retry_queue_nums, 0), RETRY_QUEUES_MAX)
        metadata.topics.put(
            TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues), wall_ms
        )
    return name
