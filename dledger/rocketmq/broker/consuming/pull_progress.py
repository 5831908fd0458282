# -*- test-case-name: tests.broker.consuming.test_pull_progress -*-
"""
How far the groups have pulled, and how fast: figures for administrators, of this run of the broker.

A group's pull offset is the queue offset after the last message that it was sent. Its committed offset is
that of the messages which it has consumed; the messages between the two are with its consumers.

Counts are of about the last minute, hour and day: that of the present one, and the share of the one before
that is less than a minute, hour or day ago.

Source: ConsumerOffsetManager.commitPullOffset, BrokerStatsManager.tpsGroupGetNums (5.3.3).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

#: Queues of groups whose pull offset is known, and pairs of group and topic whose rate is; the oldest go.
PLACES_MAX = 65_536

#: A minute, an hour, a day.
WINDOWS_MS = (60_000, 3_600_000, 86_400_000)

#: The number of a window since 1970, the count in it, and in the one before.
_Count = tuple[int, int, int]


class Rates:
    """Counts by key, for each of L{WINDOWS_MS}."""

    def __init__(self, wall_ms: Callable[[], int], *, keys_max: int = PLACES_MAX) -> None:
        """@param wall_ms: milliseconds since 1970."""
        self._wall_ms = wall_ms
        self._keys_max = keys_max
        self._counts: dict[tuple[str, ...], tuple[_Count, ...]] = {}

    def add(self, key: tuple[str, ...], count: int) -> None:
        """C{count} more of a key."""
        found = self._at(key, self._wall_ms())
        if key not in self._counts and len(self._counts) >= self._keys_max:
            del self._counts[next(iter(self._counts))]
        self._counts[key] = tuple((number, now + count, before) for number, now, before in found)

    def _at(self, key: tuple[str, ...], now_ms: int) -> tuple[_Count, ...]:
        known = self._counts.get(key)
        if known is None:
            return tuple((now_ms // window_ms, 0, 0) for window_ms in WINDOWS_MS)
        found = []
        for window_ms, (number, now, before) in zip(WINDOWS_MS, known, strict=True):
            present = now_ms // window_ms
            if number != present:
                now, before = 0, now if number == present - 1 else 0
            found.append((present, now, before))
        return tuple(found)

    def last(self, key: tuple[str, ...]) -> tuple[float, ...]:
        """About how many in the last minute, the last hour, the last day."""
        now_ms = self._wall_ms()
        return tuple(
            now + before * (1 - now_ms % window_ms / window_ms)
            for window_ms, (_, now, before) in zip(WINDOWS_MS, self._at(key, now_ms), strict=True)
        )

    def per_second(self, key: tuple[str, ...]) -> float:
        """About how many a second, in the last minute."""
        return self.last(key)[0] / 60


class Deliveries(Protocol):
    """Hears what the groups are sent."""

    def delivered(self, records: Sequence[bytes], group: str, topic: str, queue_id: int = -1) -> None:
        """@param records: at least one. @param queue_id: -1: unknown."""


class PullProgress:
    """
    That of all groups of one broker.

    @ivar rates: messages, by group and topic.
    """

    def __init__(
        self, wall_ms: Callable[[], int], trace: Deliveries | None = None, *, places_max: int = PLACES_MAX
    ) -> None:
        """@param wall_ms: milliseconds since 1970. @param trace: hears of each message; None: nobody does."""
        self._places_max = places_max
        self._offsets: dict[tuple[str, str, int], int] = {}
        self.rates = Rates(wall_ms, keys_max=places_max)
        self._trace = trace

    def pulled(
        self, group: str, topic: str, queue_id: int, offset: int, records: Sequence[bytes]
    ) -> None:
        """
        A group was sent messages of a queue.

        @param offset: queue offset after them.
        """
        place = group, topic, queue_id
        if place not in self._offsets and len(self._offsets) >= self._places_max:
            del self._offsets[next(iter(self._offsets))]
        self._offsets[place] = offset
        if records:
            self.rates.add((group, topic), len(records))
            if self._trace is not None:
                self._trace.delivered(records, group, topic, queue_id)

    def popped(self, group: str, topic: str, records: Sequence[bytes]) -> None:
        """A group was given messages by POP: the pop itself has moved its committed offset."""
        self.rates.add((group, topic), len(records))
        if self._trace is not None:
            self._trace.delivered(records, group, topic)

    def offset(self, group: str, topic: str, queue_id: int, consumed: int) -> int:
        """The pull offset; at least C{consumed}, the committed one."""
        return max(self._offsets.get((group, topic, queue_id), consumed), consumed)
