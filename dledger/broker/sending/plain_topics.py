# -*- test-case-name: tests.broker.sending.test_plain_sends -*-
"""
Topics to which any producer may send, and about which there is nothing special.
"""

from __future__ import annotations

from dledger.broker.metadata.tables import Topics
from dledger.broker.sending.topic_checks import FORBIDDEN


class PlainTopics:
    """
    Invariant: C{_queues} was found out when the topics had the version C{_seen}.
    """

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._seen = topics.version
        self._queues: dict[str, int] = {}

    def queues_of(self, topic: str) -> int:
        """Queues of a topic that is there and has nothing special about it; 0 for any other."""
        if self._topics.version is not self._seen:
            self._queues.clear()
            self._seen = self._topics.version
        known = self._queues.get(topic)
        if known is None:
            known = self._look(topic)
            if known:
                self._queues[topic] = known
        return known

    def _look(self, topic: str) -> int:
        found = self._topics.entries.get(topic)
        if found is None or topic.startswith("%") or topic in FORBIDDEN or "\0" in topic:
            return 0
        if not found.can_write or found.order or found.topic_filter_type != "SINGLE_TAG":
            return 0
        return max(found.write_queue_nums, found.read_queue_nums)
