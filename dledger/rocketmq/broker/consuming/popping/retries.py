# -*- test-case-name: tests.broker.popping.test_retries -*-
"""
The topics of a group's retries, and what lies in them for it::

    %RETRY%group+topic    version 2 of the names: ours are written here
    %RETRY%group_topic    version 1, of RocketMQ without C{enableRetryTopicV2}:
                          groups and topics have underscores, too, so the name may be that of several groups,
                          and of the topic for the retries of a group that pulls

Rule 1: of a topic of version 1 a group gets the messages whose own group it is (C{ORIGIN_GROUP}); those that
do not say, if no other group, and no other topic, can be meant.
Rule 2: retries that could not be stored are refused before the first delivery.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dledger.rocketmq.broker.consuming.popping.check_points import (
    ORIGIN_GROUP,
    kind_of,
    pop_retry_topic,
    popped_places,
)
from dledger.rocketmq.broker.options.inside import BrokerInside
from dledger.rocketmq.metadata.tables import RETRY_PREFIX
from protocols.wire.errors import WireError
from protocols.wire.rocketmq.message import decode_message, java_hash


class RetryTopics:
    """Those of one broker."""

    def __init__(self, inside: BrokerInside) -> None:
        self._config = inside.config
        self._metadata = inside.metadata

    def written(self, topic: str, group: str) -> str:
        """The topic in which a retry is stored."""
        return pop_retry_topic(topic, group, version=2 if self._config.enable_retry_topic_v2 else 1)

    def read(self, topic: str, group: str) -> Iterator[str]:
        """The topics that may have retries of a group for a topic."""
        yield pop_retry_topic(topic, group)
        yield pop_retry_topic(topic, group, version=1)

    def why_unstorable(self, topic: str, group: str, characters_max: int) -> str:
        """
        @param characters_max: of a topic, in this log.
        @return: why no retry of this group for this topic can be stored; empty: it can be.
        """
        size = len(self.written(topic, group))
        if size <= characters_max:
            return ""
        return (f"the topic of retries of group {group} for topic {topic} would have {size} characters, "
                f"{characters_max} are allowed here: a message that is not acknowledged would be lost. Take "
                "a shorter group or topic, or consume without POP")

    def belongs(
        self, name: str, group: str, *, codes: frozenset[int] | None, matches: Callable[[bytes], bool] | None
    ) -> Callable[[bytes], bool] | None:
        """
        Which records of a topic are for a group.

        @param codes, matches: its filter, as of L{dledger.rocketmq.store.queries.get_messages}.
        @return: whether a record is; None: C{codes} and C{matches} are all.
        """
        if kind_of(name) != 1:
            return None
        is_only_ours = self._is_only_of(name, group)

        def is_ours(record: bytes) -> bool:
            try:
                message = decode_message(record, verify_body=False)
            except WireError:
                return False
            origin = message.properties.get(ORIGIN_GROUP)
            if origin != group and not (origin is None and is_only_ours):
                return False
            if codes is not None and java_hash(message.tags or "") not in codes:
                return False
            return matches is None or matches(record)

        return is_ours

    def _is_only_of(self, name: str, group: str) -> bool:
        groups, topics = self._metadata.groups.entries, self._metadata.topics.entries
        others = {found for found, _topic in popped_places(name, groups=groups, topics=topics)} - {group}
        return not others and name.removeprefix(RETRY_PREFIX) not in groups
