# -*- test-case-name: tests.base.test_folding -*-
"""
Folds log lines that other parties can repeat: the first is written, then one line in L{AGAIN_S} with the
number of repetitions, and a last one when the event has not happened for L{QUIET_S}.

Without this, a peer that repeats a refused request, or a stranger, writes our log, and fills our disk.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

import attrs

#: A repeated event is logged at most once in this many seconds.
AGAIN_S = 60.0
#: An event that was not repeated for this many seconds is over.
QUIET_S = 10.0
#: At most this many different events are distinguished; further ones count as one.
KEYS_MAX = 256


@attrs.define(kw_only=True)
class Episode:
    """
    One event and its repetitions.

    @ivar begin_s, logged_s, last_s: first, last logged, and last time, in seconds of the caller's clock.
    @ivar times: number of events. @ivar reported: the number that the log has reported.
    """

    begin_s: float
    logged_s: float
    last_s: float
    times: int = 1
    reported: int = 1


class Folding:
    """
    Decides which repetitions are logged.

    Invariant: C{_episodes} holds the events of the last L{QUIET_S}, as of the last L{sweep}; at most
    L{KEYS_MAX} and one for each C{kind}.
    """

    def __init__(self, seconds: Callable[[], float]) -> None:
        """@param seconds: a monotonic clock."""
        self._seconds = seconds
        self._episodes: dict[tuple[Hashable, ...], Episode] = {}

    def happened(self, key: tuple[Hashable, ...]) -> dict[str, int] | None:
        """
        Count an event.

        @param key: its kind first, then the facts that identify a repetition.
        @return: None if it is not to be logged; else facts to add to its line: none, or C{times} and
            C{since_s} of its episode.
        """
        now_s = self._seconds()
        episode = self._episodes.get(key)
        if episode is None and len(self._episodes) >= KEYS_MAX:
            key = key[:1]
            episode = self._episodes.get(key)
        if episode is None:
            self._episodes[key] = Episode(begin_s=now_s, logged_s=now_s, last_s=now_s)
            return {}
        episode.times += 1
        episode.last_s = now_s
        if now_s - episode.logged_s < AGAIN_S:
            return None
        episode.logged_s = now_s
        episode.reported = episode.times
        return {"times": episode.times, "since_s": round(now_s - episode.begin_s)}

    def sweep(self, now_s: float) -> list[tuple[tuple[Hashable, ...], Episode]]:
        """
        Forget the events that are over. Called regularly.

        @return: those with repetitions that the log has not reported.
        """
        if not self._episodes:
            return []
        over = [key for key, episode in self._episodes.items() if now_s - episode.last_s >= QUIET_S]
        ended = [(key, self._episodes.pop(key)) for key in over]
        return [(key, episode) for key, episode in ended if episode.times > episode.reported]
