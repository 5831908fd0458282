# -*- test-case-name: tests.sim.test_raft_brokers -*-
"""The changes of metadata that a group of brokers has acknowledged, and whether a broker knows them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeVar

from dledger.rocketmq.broker.parts import BrokerParts
from dledger.rocketmq.metadata.files import Metadata
from dledger.rocketmq.metadata.tables import GroupConfig, TopicConfig

_Key = TypeVar("_Key")

_GROUPS, _LEVELS = 3, 2
_NOW_MS = 1_700_000_000_000


class AckedFacts:
    """
    Every change has a number of its own, so that a later value is a higher one.

    @ivar topics, groups: name to the number of its acknowledged value.
    @ivar offsets: group to its highest acknowledged offset.
    @ivar deleted: topics whose deletion was acknowledged. @ivar deleted_groups: the same of groups. Names of
        both are used once.
    @ivar judged: number of acknowledgements.
    @ivar levels: delay level to its highest acknowledged offset.
    """

    def __init__(self, reported: Callable[[BrokerParts, str, str], None]) -> None:
        """@param reported: called when a change is acknowledged, with its table and the name of its entry."""
        self._reported = reported
        self._number = self.judged = 0
        #: Topics and groups that may be deleted: they were made, acknowledged or not.
        self._made: list[str] = []
        #: Names whose deletion was asked for.
        self._asked: set[object] = set()
        self.topics: dict[str, int] = {}
        self.groups: dict[str, int] = {}
        self.offsets: dict[str, int] = {}
        self.levels: dict[int, int] = {}
        self.deleted: set[str] = set()
        self.deleted_groups: set[str] = set()

    def change(self, parts: BrokerParts, rng: random.Random) -> None:
        """One change at a master; it counts when the master says that it is settled."""
        self._number += 1
        number, metadata = self._number, parts.metadata
        kind = rng.randrange(7)
        if kind == 0:
            name = f"made-{number}"
            self._made.append(name)
            metadata.topics.put(TopicConfig(topic_name=name, read_queue_nums=number), _NOW_MS)
            self._when_settled(parts, "topics", self.topics, name, number)
        elif kind in (1, 2):
            name = f"g{rng.randrange(_GROUPS)}" if kind == 1 else f"group-{number}"
            if kind == 2:
                self._made.append(name)
            metadata.groups.put(GroupConfig(group_name=name, retry_max_times=number), _NOW_MS)
            self._when_settled(parts, "groups", self.groups, name, number)
        elif kind == 3:
            name = f"g{rng.randrange(_GROUPS)}"
            metadata.consumer_offsets.commit(name, "T1", 0, number, _NOW_MS)
            self._when_settled(parts, "consumerOffsets", self.offsets, name, number)
        elif kind == 4:
            level = rng.randrange(_LEVELS)
            metadata.delay_offsets.put(level, number, _NOW_MS)
            self._when_settled(parts, "delayOffsets", self.levels, level, number)
        elif kind == 5:
            # Nobody has it. A master without its last ranges in the log does not know that.
            self._delete(parts, rng.choice((f"made-{number}", f"group-{number}")))
        elif self._made:
            # The last ones: their makers may not be acknowledged, and this master may not know them.
            name = self._made.pop(-1 - min(int(rng.expovariate(0.5)), len(self._made) - 1))
            self._delete(parts, name)

    def _delete(self, parts: BrokerParts, name: str) -> None:
        """Delete a topic or a group. Until it is settled, nobody knows whether it is there."""
        metadata = parts.metadata
        if name.startswith("made"):
            table, deleted = "topics", self.deleted
            self.topics.pop(name, None)
            metadata.topics.delete(name, _NOW_MS)
        else:
            table, deleted = "groups", self.deleted_groups
            self.groups.pop(name, None)
            metadata.groups.delete(name, _NOW_MS)
        self._asked.add(name)

        def settled(_: None) -> None:
            deleted.add(name)
            self.judged += 1
            self._reported(parts, table, name)

        parts.replication.settled().addCallbacks(settled, lambda _: None)

    def _when_settled(
        self, parts: BrokerParts, table: str, known: dict[_Key, int], key: _Key, number: int
    ) -> None:
        def settled(_: None) -> None:
            self.judged += 1
            if key not in self._asked:
                known[key] = max(known.get(key, 0), number)
            if table in ("topics", "groups"):
                self._reported(parts, table, str(key))

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
        for name in self.deleted_groups:
            if metadata.groups.get(name) is not None:
                return f"the deletion of group {name} was acknowledged"
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


def differing_place(
    one: dict[tuple[str, int], list[tuple[int, int, str]]],
    other: dict[tuple[str, int], list[tuple[int, int, str]]],
) -> str:
    """
    Where the queues of two brokers differ.

    @param one, other: by queue, the offset in it, the offset in the log and the key of each message.
    """
    for key in sorted(one.keys() | other.keys()):
        ours, theirs = one.get(key, []), other.get(key, [])
        if ours != theirs:
            at = next((at for at, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b),
                      min(len(ours), len(theirs)))
            return f"{key} from {at} of {len(ours)} and {len(theirs)}: {ours[at:at + 3]}, {theirs[at:at + 3]}"
    return "none"
