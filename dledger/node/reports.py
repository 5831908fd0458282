# -*- test-case-name: tests.node.test_reports -*-
"""
Turns the core's reports into log lines and counters.

Rule 1: every report is counted.
Rule 2: a report repeated by retries (for example, a follower whose files have another size refuses the
same push once a second for hours) is logged the first time, then once in L{AGAIN_S} with its number of
repetitions, and again when it has not happened for L{QUIET_S}.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
from twisted.logger import Logger, LogLevel

from dledger.core.effects import Report
from dledger.node.status import count
from protocols.wire.fastjson import JsonObject

#: Reports that need an operator's attention.
_WARNINGS = frozenset({
    "two-leaders", "truncate-refused", "append-refused", "repairing", "stepping-down", "push-refused",
    "truncating", "stray-leader-called", "leaving-full", "unsure", "slow-fsync",
})
_ERRORS = frozenset({"store-failed", "disk-full"})
_RESERVED = frozenset({"level", "format", "event", "facts", "self"})

#: Reports that each retry repeats, and the facts that identify a repetition.
_REPEATED = {
    "append-refused": ("code",),
    "disk-full": (),
    "disk-has-room": (),
    "leaving-full": ("transferee_id",),
    "push-refused": ("code", "type"),
    "slow-fsync": (),
    "push-set-back": ("peer_id", "state"),
    "dispatcher-state": ("peer_id", "old", "new"),
}
#: A repeated report is logged at most once in this many seconds.
AGAIN_S = 60.0
#: A report that was not repeated for this many seconds is over.
QUIET_S = 10.0


@attrs.define(kw_only=True)
class _Episode:
    """C{times}: number of repetitions; C{told}: the number that the log has reported."""

    begin_s: float
    logged_s: float
    last_s: float
    level: LogLevel
    times: int = 1
    told: int = 1


class Reports:
    """
    Invariant: C{_episodes} holds the repeated reports of the last L{QUIET_S}, as of the last L{sweep}. Its
    keys are made of the peers, states and codes of one group, so their number is small.
    """

    def __init__(
        self, log: Logger, *, self_id: str, counts: dict[str, int], seconds: Callable[[], float]
    ) -> None:
        """
        @param counts: event name to number of reports; updated by this object.
        @param seconds: a monotonic clock.
        """
        self._log = log
        self._self_id = self_id
        self._counts = counts
        self._seconds = seconds
        self._episodes: dict[tuple[object, ...], _Episode] = {}

    def report(self, report: Report) -> None:
        """Count the report, and log it unless it is a repetition."""
        count(self._counts, report.event)
        level = LogLevel.info
        if report.event in _WARNINGS:
            level = LogLevel.warn
        elif report.event in _ERRORS:
            level = LogLevel.error
        facts: JsonObject = {
            name: value for name, value in report.facts.items() if name not in _RESERVED
        }
        names = _REPEATED.get(report.event)
        if names is not None:
            repeated = self._repeated((report.event, *map(facts.get, names)), level)
            if repeated is None:
                return
            facts.update(repeated)
        told = " ".join(f"{name}={value}" for name, value in facts.items())
        facts["self_id"] = self._self_id
        self._log.emit(level, "{event} {facts}", event=report.event, facts=told, **facts)

    def _repeated(self, key: tuple[object, ...], level: LogLevel) -> JsonObject | None:
        """Count a repetition. @return: additional facts for its log line; None for no line."""
        now_s = self._seconds()
        episode = self._episodes.get(key)
        if episode is None:
            self._episodes[key] = _Episode(begin_s=now_s, logged_s=now_s, last_s=now_s, level=level)
            return {}
        episode.times += 1
        episode.last_s = now_s
        if now_s - episode.logged_s < AGAIN_S:
            return None
        episode.logged_s, episode.told = now_s, episode.times
        return {"times": episode.times, "since_s": round(now_s - episode.begin_s)}

    def sweep(self, now_s: float) -> None:
        """Log and forget the repeated reports that are over."""
        over = [key for key, episode in self._episodes.items() if now_s - episode.last_s >= QUIET_S]
        for key in over:
            episode = self._episodes.pop(key)
            if episode.times > episode.told:
                told = " ".join(f"{name}={value}" for name, value in zip(_names(key), key[1:], strict=True))
                self._log.emit(
                    episode.level, "{event} {facts}: over after {times} times in {since_s} s",
                    event=key[0], facts=told, times=episode.times,
                    since_s=round(episode.last_s - episode.begin_s), self_id=self._self_id,
                )


def _names(key: tuple[object, ...]) -> tuple[str, ...]:
    return _REPEATED[str(key[0])]
