# -*- test-case-name: tests.node.test_reports -*-
"""
Turns the core's reports into log lines and counters.

Rule 1: every report is counted.
Rule 2: a report repeated by retries (for example, a follower whose files have another size refuses the
same push once a second for hours) is folded, see L{dledger.base.serving.folding}.
Rule 3: the last L{EVENTS_MAX} lines are kept in memory, for C{/events}.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import attrs
from twisted.logger import Logger, LogLevel

from dledger.base.serving.folding import Folding
from dledger.core.state.effects import Report
from dledger.node.reporting.event_kinds import EVENT_KINDS, EventKind
from dledger.node.reporting.status import count
from protocols.wire.fastjson import JsonObject

_RESERVED = frozenset({"level", "format", "event", "facts", "self"})
#: An event that has no kind: another version of the core reports it.
_OTHER = EventKind("info", "")

#: The result of a vote for a candidate that is not a member: strangers choose that name, so all count as one.
_OF_STRANGERS = "REJECT_UNKNOWN_LEADER"

#: At most this many characters of a fact are logged: another party chose some of them.
FACT_CHARACTERS_MAX = 200

#: Events that are kept, and characters of the facts of each.
EVENTS_MAX = 256
EVENT_CHARACTERS_MAX = 1000


@attrs.frozen(kw_only=True)
class SeenEvent:
    """
    An event as the log has it.

    @ivar number: of the events of this process, from 1; numbers that are missing were dropped for later ones.
    @ivar at_s: seconds since 1970.
    @ivar level: C{info}, C{warn} or C{error}.
    @ivar facts: C{name=value} of each.
    """

    number: int
    at_s: float
    level: str
    event: str
    facts: str


class Reports:
    """Logs and counts the reports of one member, and keeps the last ones for its pages."""

    def __init__(
        self, log: Logger, *, self_id: str, counts: dict[str, int], seconds: Callable[[], float],
        wall_clock: Callable[[], tuple[float, int]],
    ) -> None:
        """
        @param counts: event name to number of reports; updated by this object.
        @param seconds: a monotonic clock.
        @param wall_clock: seconds since 1970, and the local hour.
        """
        self._wall_clock = wall_clock
        self._events: deque[SeenEvent] = deque(maxlen=EVENTS_MAX)
        self._number = 0
        self._log = log
        self._self_id = self_id
        self._counts = counts
        self._folding = Folding(seconds)

    def report(self, report: Report) -> None:
        """Count the report, and log it unless it is a repetition."""
        count(self._counts, report.event)
        facts: JsonObject = {
            name: _bounded(value) for name, value in report.facts.items() if name not in _RESERVED
        }
        names = EVENT_KINDS.get(report.event, _OTHER).same
        if names is not None:
            identity = facts if facts.get("result") != _OF_STRANGERS else {**facts, "candidate_id": "any"}
            repeated = self._folding.happened((report.event, *map(identity.get, names)))
            if repeated is None:
                return
            facts.update(repeated)
        reported = " ".join(f"{name}={value}" for name, value in facts.items())
        facts["self_id"] = self._self_id
        self._log.emit(_level(report.event), "{event} {facts}", event=report.event, facts=reported, **facts)
        self._keep(report.event, reported)

    def _keep(self, event: str, reported: str) -> None:
        self._number += 1
        self._events.append(SeenEvent(
            number=self._number, at_s=self._wall_clock()[0], level=_level(event).name, event=event,
            facts=reported[:EVENT_CHARACTERS_MAX],
        ))

    def events(self) -> tuple[SeenEvent, ...]:
        """The last events, oldest first."""
        return tuple(self._events)

    def sweep(self, now_s: float) -> None:
        """Log the repeated reports that are over."""
        for key, episode in self._folding.sweep(now_s):
            event = str(key[0])
            names = EVENT_KINDS[event].same or ()
            reported = " ".join(f"{name}={value}" for name, value in zip(names, key[1:], strict=False))
            self._log.emit(
                _level(event), "{event} {facts}: over after {times} times in {since_s} s",
                event=event, facts=reported, times=episode.times,
                since_s=round(episode.last_s - episode.begin_s), self_id=self._self_id,
            )
            self._keep(event, f"{reported}: over after {episode.times} times")


def _bounded(value: object) -> object:
    if isinstance(value, str) and len(value) > FACT_CHARACTERS_MAX:
        return f"{value[:FACT_CHARACTERS_MAX]}... ({len(value)} characters)"
    return value


def _level(event: str) -> LogLevel:
    level: LogLevel = LogLevel.lookupByName(EVENT_KINDS.get(event, _OTHER).level)
    return level
