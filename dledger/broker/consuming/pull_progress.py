# -*- test-case-name: tests.broker.consuming.test_pull_progress -*-
"""
How far the groups have pulled, and how fast: figures for administrators, of this run of the broker.

A group's pull offset is the queue offset after the last message that it was sent. Its committed offset is
that of the messages which it has consumed; the messages between the two are with its consumers.

Rates are of about the last minute: the count of this minute, and that share of the minute before which is
less than a minute ago.

Source: ConsumerOffsetManager.commitPullOffset, BrokerStatsManager.tpsGroupGetNums (5.3.3).
"""

from __future__ import annotations

from collections.abc import Callable

#: Queues of groups whose pull offset is known, and pairs of group and topic whose rate is; the oldest go.
PLACES_MAX = 65_536

_MINUTE_MS = 60_000


class Rates:
    """
    Counts by key, and how fast they rise.

    @ivar _counts: minute, count in it, count in the minute before, and in all.
    """

    def __init__(self, wall_ms: Callable[[], int], *, keys_max: int = PLACES_MAX) -> None:
        """@param wall_ms: milliseconds since 1970."""
        self._wall_ms = wall_ms
        self._keys_max = keys_max
        self._counts: dict[tuple[str, ...], tuple[int, int, int, int]] = {}

    def add(self, key: tuple[str, ...], count: int) -> None:
        """C{count} more of a key."""
        minute, now, before, total = self._at(key)
        if key not in self._counts and len(self._counts) >= self._keys_max:
            del self._counts[next(iter(self._counts))]
        self._counts[key] = minute, now + count, before, total + count

    def _at(self, key: tuple[str, ...]) -> tuple[int, int, int, int]:
        minute = self._wall_ms() // _MINUTE_MS
        then, now, before, total = self._counts.get(key, (minute, 0, 0, 0))
        if then != minute:
            now, before = 0, now if then == minute - 1 else 0
        return minute, now, before, total

    def last_minute(self, key: tuple[str, ...]) -> float:
        """About how many in the last minute."""
        _minute, now, before, _total = self._at(key)
        return now + before * (1 - self._wall_ms() % _MINUTE_MS / _MINUTE_MS)

    def per_second(self, key: tuple[str, ...]) -> float:
        """About how many a second, in the last minute."""
        return self.last_minute(key) / 60

    def total(self, key: tuple[str, ...]) -> int:
        """How many in this run, since the key was last forgotten."""
        return self._at(key)[3]


class PullProgress:
    """
    That of all groups of one broker.

    @ivar rates: messages, by group and topic.
    """

    def __init__(self, wall_ms: Callable[[], int], *, places_max: int = PLACES_MAX) -> None:
        """@param wall_ms: milliseconds since 1970."""
        self._places_max = places_max
        self._offsets: dict[tuple[str, str, int], int] = {}
        self.rates = Rates(wall_ms, keys_max=places_max)

    def pulled(self, group: str, topic: str, queue_id: int, offset: int, count: int) -> None:
        """
        A group was sent messages of a queue.

        @param offset: queue offset after them. @param count: how many they are.
        """
        place = group, topic, queue_id
        if place not in self._offsets and len(self._offsets) >= self._places_max:
            del self._offsets[next(iter(self._offsets))]
        self._offsets[place] = offset
        if count:
            self.rates.add((group, topic), count)

    def popped(self, group: str, topic: str, count: int) -> None:
        """A group was given messages by POP: the pop itself has moved its committed offset."""
        self.rates.add((group, topic), count)

    def offset(self, group: str, topic: str, queue_id: int, consumed: int) -> int:
        """The pull offset; at least C{consumed}, the committed one."""
        return max(self._offsets.get((group, topic, queue_id), consumed), consumed)
