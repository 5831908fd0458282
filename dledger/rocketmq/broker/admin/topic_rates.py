# -*- test-case-name: tests.broker.admin.test_topic_rates -*-
"""
How many messages the queues of each topic have, and how many come in a second: about the last minute's.

The queues are looked at every L{INTERVAL_S}, at most L{QUEUES_MAX} of them: a put costs nothing more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

import attrs
from twisted.internet.interfaces import IReactorTime

from dledger.rocketmq.store.queues.consume_queues import ConsumeQueues

INTERVAL_S = 9.5
SAMPLES_MAX = 7
#: No further queue is looked at after this many: the reactor does nothing else meanwhile.
QUEUES_MAX = 5_000


@attrs.frozen(kw_only=True)
class TopicCount:
    """
    @ivar stored: messages that its queues have ever had; a topic that was deleted and made again has all.
    @ivar kept: those that are still there.
    """

    queues: int
    stored: int
    kept: int


def topic_counts(queues: ConsumeQueues, queues_max: int = QUEUES_MAX) -> tuple[dict[str, TopicCount], int]:
    """The counts of each topic, and the number of queues that were not looked at."""
    found: dict[str, list[int]] = {}
    keys = queues.keys()
    for topic, queue_id in keys[:queues_max]:
        begin, end = queues.bounds(topic, queue_id) or (0, 0)
        counts = found.setdefault(topic, [0, 0, 0])
        counts[0] += 1
        counts[1] += end
        counts[2] += end - begin
    made = {
        topic: TopicCount(queues=number, stored=stored, kept=kept)
        for topic, (number, stored, kept) in found.items()
    }
    return made, max(0, len(keys) - queues_max)


class TopicRates:
    """Invariant: samples are at least L{INTERVAL_S} apart, the newest last."""

    def __init__(self, read: Callable[[], Mapping[str, TopicCount]], clock: IReactorTime) -> None:
        """@param clock: monotonic."""
        self._read = read
        self._clock = clock
        self._samples: deque[tuple[float, Mapping[str, int]]] = deque(maxlen=SAMPLES_MAX)

    def sweep(self) -> None:
        """Look at the queues if it is time. Called about once a second."""
        now_s = self._clock.seconds()
        if not self._samples or now_s - self._samples[-1][0] >= INTERVAL_S:
            stored = {topic: counts.stored for topic, counts in self._read().items()}
            self._samples.append((now_s, stored))

    def per_second(self, topic: str) -> float:
        """About how many a second in the last minute; 0.0 while unknown."""
        if len(self._samples) < 2:
            return 0.0
        (then_s, then), (now_s, now) = self._samples[0], self._samples[-1]
        return max(0, now.get(topic, 0) - then.get(topic, 0)) / (now_s - then_s)
