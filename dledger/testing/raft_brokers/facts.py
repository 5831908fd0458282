# -*- test-case-name: tests.sim.test_raft_clients -*-
"""
Changes of metadata, of names that no client uses.

B29. On a raft log, a master knows every topic, group and offset that was acknowledged before, and no topic or
group whose deletion was; in the end every broker does.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from dledger.rocketmq.broker.parts import BrokerParts
from dledger.rocketmq.metadata.files import Metadata
from dledger.rocketmq.metadata.tables import GroupConfig, TopicConfig
from dledger.testing.brokers.admin_traffic import KEPT
from dledger.testing.brokers.rig.accounts import require_pair

#: The beginning of all names, which nobody else uses.
_MADE = "made_"
_TOPIC, _GROUP, _GROUPS = _MADE + "topic", _MADE + "group", 3
#: Levels of delay without messages.
_LEVELS = (17, 18)
_NOW_MS = 1_700_000_000_000


def is_made(name: str) -> bool:
    """Whether a name of a topic, a group, or the group that follows its topic, is one of these."""
    return name.rpartition("@")[2].startswith(_MADE)


class AckedFacts:
    """
    Every change has a number of its own, so that a later value is a higher one.

    @ivar known: by table and name, the highest acknowledged value.
    @ivar deleted: tables and names whose deletion was acknowledged; each is used once.
    @ivar judged: number of acknowledgements.
    """

    def __init__(self, acknowledged: Callable[[BrokerParts, str, str], None]) -> None:
        """@param acknowledged: called with the table and the name of the entry of a change that is."""
        self._acknowledged = acknowledged
        self._number = self.judged = 0
        #: Topics and groups that may be deleted: they were made, acknowledged or not.
        self._made: list[tuple[str, str]] = []
        #: Those whose deletion was asked for.
        self._asked: set[tuple[str, str]] = set()
        self.known: dict[tuple[str, str], int] = {}
        self.deleted: set[tuple[str, str]] = set()

    def change(self, parts: BrokerParts, rng: random.Random) -> None:
        """One change at a master; it counts when the master says that it is settled."""
        self._number += 1
        number, metadata = self._number, parts.metadata
        made = ("topics", f"{_TOPIC}-{number}"), ("groups", f"{_GROUP}-{number}")
        kind, group = rng.randrange(7), f"{_GROUP}{rng.randrange(_GROUPS)}"
        if kind < 2:
            self._made.append(made[kind])
        if kind == 0:
            metadata.topics.put(TopicConfig(topic_name=made[0][1], read_queue_nums=number), _NOW_MS)
            self._when_settled(parts, made[0], number)
        elif kind in (1, 2):
            name = made[1][1] if kind == 1 else group
            metadata.groups.put(GroupConfig(group_name=name, retry_max_times=number), _NOW_MS)
            self._when_settled(parts, ("groups", name), number)
        elif kind == 3:
            _, end = parts.store.queues.bounds(KEPT[0], 0) or (0, 0)  # none is beyond the end
            metadata.consumer_offsets.commit(group, KEPT[0], 0, end, _NOW_MS)
            self._when_settled(parts, ("consumerOffsets", group), end)
        elif kind == 4:
            level = rng.choice(_LEVELS)
            metadata.delay_offsets.put(level, number, _NOW_MS)
            self._when_settled(parts, ("delayOffsets", str(level)), number)
        elif kind == 5:
            # Nobody has it. A master without its last ranges in the log does not know that.
            self._delete(parts, rng.choice(made))
        elif self._made:
            # The last ones: their makers may not be acknowledged, and this master may not know them.
            self._delete(parts, self._made.pop(-1 - min(int(rng.expovariate(0.5)), len(self._made) - 1)))

    def _delete(self, parts: BrokerParts, key: tuple[str, str]) -> None:
        """Delete a topic or a group. Until it is settled, nobody knows whether it is there."""
        table, name = key
        self.known.pop(key, None)
        self._asked.add(key)
        (parts.metadata.topics if table == "topics" else parts.metadata.groups).delete(name, _NOW_MS)
        self._when_settled(parts, key, -1)

    def _when_settled(self, parts: BrokerParts, key: tuple[str, str], value: int) -> None:
        """@param value: that is acknowledged then; -1: the deletion is."""
        def settled(_: None) -> None:
            self.judged += 1
            if value < 0:
                self.deleted.add(key)
            elif key not in self._asked:
                self.known[key] = max(self.known.get(key, 0), value)
            if key[0] in ("topics", "groups"):
                self._acknowledged(parts, *key)

        parts.replication.settled().addCallbacks(settled, lambda _: None)

    def check(self, broker: str, metadata: Metadata) -> None:
        """B29. @param broker: the one with these tables."""
        for key, value in self.known.items():
            found = _value(metadata, *key)
            require_pair(found >= value, 29, f"{broker}: {key} was acknowledged as {value}, and is {found}")
        for key in self.deleted:
            require_pair(_value(metadata, *key) < 0, 29, f"{broker}: the deletion of {key} was acknowledged")


def _value(metadata: Metadata, table: str, name: str) -> int:
    """What an entry says; -1: there is none."""
    if table == "topics":
        topic = metadata.topics.get(name)
        return -1 if topic is None else topic.read_queue_nums
    if table == "groups":
        group = metadata.groups.get(name)
        return -1 if group is None else group.retry_max_times
    if table == "consumerOffsets":
        offset = metadata.consumer_offsets.query(name, KEPT[0], 0)
        return -1 if offset is None else offset
    return metadata.delay_offsets.get(int(name))
