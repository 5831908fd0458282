# -*- test-case-name: tests.broker.admin.test_runtime_stats -*-
"""
The rates of a broker's counters, and their values at midnight.

Counters are read about once a second, and samples are kept for ten minutes. Rates are those of the last ten
seconds, of the last minute, and of the last ten minutes, as in RocketMQ.

Source: StoreStatsService, BrokerStats (4.9.8).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from time import localtime

from twisted.internet.interfaces import IReactorTime

#: The least time between samples: less than a second, so that a slightly early sweep counts, too.
INTERVAL_S = 0.9
SAMPLES_MAX = 601
WINDOWS_S = (10, 60, 600)


class RuntimeStats:
    """
    Invariant: samples are at least L{INTERVAL_S} apart, the newest last.

    @ivar boot_ms: time of the start, ms since 1970.
    """

    def __init__(
        self, read: Callable[[], Mapping[str, int]], *, clock: IReactorTime, wall_ms: Callable[[], int]
    ) -> None:
        """
        @param read: returns counters by name, which never fall. A new name counts from its first sample on.
        @param wall_ms: milliseconds since 1970.
        """
        self._read = read
        self._clock = clock
        self._wall_ms = wall_ms
        self._samples: deque[tuple[float, Mapping[str, int]]] = deque(maxlen=SAMPLES_MAX)
        self._day = self._today()
        now = dict(read())
        self._yesterday: Mapping[str, int] = now
        self._morning: Mapping[str, int] = now
        self.boot_ms = wall_ms()

    def _today(self) -> tuple[int, int]:
        now = localtime(self._wall_ms() / 1000)
        return now.tm_year, now.tm_yday

    def sweep(self) -> None:
        """Read the counters. Called about once a second."""
        now_s = self._clock.seconds()
        if self._samples and now_s - self._samples[-1][0] < INTERVAL_S:
            return
        now = dict(self._read())
        self._samples.append((now_s, now))
        day = self._today()
        if day != self._day:
            self._day, self._yesterday, self._morning = day, self._morning, now

    def per_second(self, name: str, window_s: float = WINDOWS_S[0]) -> float:
        """Average rise of a counter per second over the last C{window_s} seconds; 0.0 while unknown."""
        if not self._samples:
            return 0.0
        now_s, now = self._samples[-1]
        then_s, then = next(sample for sample in self._samples if now_s - sample[0] <= window_s)
        if now_s <= then_s or name not in then or name not in now:
            return 0.0
        return (now[name] - then[name]) / (now_s - then_s)

    def rates(self, *names: str) -> str:
        """The sum of the counters' rates for each of L{WINDOWS_S}: three numbers separated by blanks."""
        return " ".join(
            f"{sum(self.per_second(name, window_s) for name in names):.2f}" for window_s in WINDOWS_S
        )

    def totals(self, name: str) -> tuple[int, int, int]:
        """Values of a counter: yesterday at midnight (or at the start), today at midnight, and now."""
        return self._yesterday.get(name, 0), self._morning.get(name, 0), self._read().get(name, 0)

    @property
    def running(self) -> str:
        """The time since the start, in RocketMQ's words."""
        seconds = max(self._wall_ms() - self.boot_ms, 0) // 1000
        days, hours, minutes = seconds // 86400, seconds // 3600 % 24, seconds // 60 % 60
        return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds % 60} seconds ]"
