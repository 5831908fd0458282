# -*- test-case-name: tests.sim.test_raft_brokers -*-
"""The changes of metadata that a group of brokers has acknowledged, and whether a broker knows them."""

from __future__ import annotations

import random
from typing import TypeVar

from dledger.rocketmq.broker.metadata.files import Metadata
from dledger.rocketmq.broker.metadata.tables import GroupConfig, TopicConfig
from dledger.rocketmq.broker.parts import BrokerParts

_Key = TypeVar("_Key")

_GROUPS, _LEVELS = 3, 2
_NOW_MS = 1_700_000_000_000


class AckedFacts:
    """
    Every change has a number of its own, so that a later value is a higher one.

    @ivar topics, groups: name to the number of its acknowledged value.
    @ivar offsets: group to its highest acknowledged offset.
    @ivar deleted: topics whose deletion was acknowledged. Names are used once.
    @ivar levels: delay level to its highest acknowledged offset.
    """

    def __init__(self) -> None:
        self._number = 0
        self.topics: dict[str, int] = {}
        self.groups: dict[str, int] = {}
        self.offsets: dict[str, int] = {}
        self.levels: dict[int, int] = {}
        self.deleted: set[str] = set()

    def change(self, parts: BrokerParts, rng: random.Random) -> None:
        """One change at a master; it counts when the master says that it is settled."""
        self._number += 1
        number, metadata = self._number, parts.metadata
        kind = rng.randrange(5)
        if kind == 0:
            name = f"made-{number}"
            metadata.topics.put(TopicConfig(topic_name=name, read_queue_nums=number), _NOW_MS)
            self._when_settled(parts, self.topics, name, number)
        elif kind == 1:
            name = f"g{rng.randrange(_GROUPS)}"
            metadata.groups.put(GroupConfig(group_name=name, retry_max_times=number), _NOW_MS)
            self._when_settled(parts, self.groups, name, number)
        elif kind == 2:
            name = f"g{rng.randrange(_GROUPS)}"
            metadata.consumer_offsets.commit(name, "T1", 0, number, _NOW_MS)
            self._when_settled(parts, self.offsets, name, number)
        elif kind == 3:
            level = rng.randrange(_LEVELS)
            metadata.delay_offsets.put(level, number, _NOW_MS)
            self._when_settled(parts, self.levels, level, number)
        elif self.topics:
            name = rng.choice(sorted(self.topics))
            del self.topics[name]  # until it is settled, nobody knows
            metadata.topics.delete(name, _NOW_MS)
            parts.replication.settled().addCallbacks(lambda _: self.deleted.add(name), lambda _: None)

    @staticmethod
    def _when_settled(parts: BrokerParts, table: dict[_Key, int], key: _Key, number: int) -> None:
        def settled(_: None) -> None:
            table[key] = max(table.get(key, 0), number)

        parts.replication.settled().addCallbacks(settled, lambda _: None)

    def forgotten(self, metadata: Metadata) -> str:
        """What these tables lack; empty if nothing."""
        for name, number in self.topics.items():
            topic = metadata.topics.get(name)
            if topic is None or topic.read_queue_nums != number:
                return f"topic {name} was acknowledged, and is {topic}"
        for name in self.deleted:
            if metadata.topics.get(name) is not None:
                return f"the deletion of topic {name} was acknowledged"
        for name, number in self.groups.items():
            group = metadata.groups.get(name)
            if group is None or group.retry_max_times < number:
                return f"group {name} was acknowledged with {number}, and is {group}"
        for name, number in self.offsets.items():
            offset = metadata.consumer_offsets.query(name, "T1", 0)
            if offset is None or offset < number:
                return f"offset {number} of group {name} was acknowledged, and is {offset}"
        for level, number in self.levels.items():
            if metadata.delay_offsets.get(level) < number:
                return f"offset {number} of level {level} was acknowledged"
        return ""
