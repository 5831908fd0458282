# -*- test-case-name: tests.node.test_reports -*-
"""
Turns the core's reports into log lines and counters.

Rule 1: every report is counted.
Rule 2: a report repeated by retries (for example, a follower whose files have another size refuses the
same push once a second for hours) is folded, see L{dledger.base.folding}.
Rule 3: the last L{EVENTS_MAX} lines are kept in memory, for C{/events}.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import attrs
from twisted.logger import Logger, LogLevel

from dledger.base.folding import Folding
from dledger.core.effects import Report
from dledger.node.status import count
from protocols.wire.fastjson import JsonObject

#: Reports that need an operator's attention.
_WARNINGS = frozenset({
    "two-leaders", "truncate-refused", "append-refused", "repairing", "stepping-down", "push-refused",
    "stray-leader-called", "append-too-large", "message-refused", "terms-exhausted", "claim-refused",
    "agrees-again", "standing-in", "leaving-full", "unsure", "slow-fsync", "term-leap", "entries-damaged",
    "leaving-machine", "machine-differs", "leaving-damaged", "leaving-slow-disk",
    "push-waits-for-damaged", "foreign-member", "request-forbidden",
    "handshake-failed", "chunk-refused", "change-asked",
})
_ERRORS = frozenset({"store-failed", "diverged", "disk-full", "entries-not-found", "vote-refused"})
_RESERVED = frozenset({"level", "format", "event", "facts", "self"})

#: Reports that a retry or another party can repeat, and the facts that identify a repetition.
_REPEATED = {
    "append-refused": ("code",),
    "disk-full": (),
    "disk-has-room": (),
    "entries-damaged": (),
    "entries-mended": (),
    "entries-not-found": ("first_index",),
    "leaving-damaged": ("transferee_id",),
    "leaving-full": ("transferee_id",),
    "leaving-machine": ("transferee_id",),
    "machine-differs": ("member_id", "reason"),
    "leaving-slow-disk": ("transferee_id",),
    "push-refused": ("code", "type"),
    "chunk-refused": ("peer_id",),
    "slow-fsync": (),
    "push-set-back": ("peer_id", "state"),
    "push-waits-for-damaged": ("peer_id", "write_index"),
    "dispatcher-state": ("peer_id", "old", "new"),
    "append-too-large": (),
    # (Not the port: a client that asks again connects again. A change that was made has another index.)
    "change-asked": ("change", "member_id", "member_address", "is_forced", "configuration"),
    "claim-refused": ("peer_id", "reason"),
    "foreign-member": (),
    "request-forbidden": ("who", "request"),
    "handshake-failed": ("reason",),
    "peer-connected": ("peer_id",),
    "peer-disconnected": ("peer_id",),
    "message-refused": ("sender_id", "kind", "fault"),
    "sender-absent": ("sender_id",),
    "terms-exhausted": (),
    "term-leap": ("sender_id",),
    "truncate-refused": ("leader_id",),
    "two-leaders": ("known", "other"),
    "vote-answered": ("candidate_id", "result"),
}

#: The result of a vote for a candidate that is no member: strangers choose that name, so all count as one.
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
    """See the module."""

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
        names = _REPEATED.get(report.event)
        if names is not None:
            identity = facts if facts.get("result") != _OF_STRANGERS else {**facts, "candidate_id": "any"}
            repeated = self._folding.happened((report.event, *map(identity.get, names)))
            if repeated is None:
                return
            facts.update(repeated)
        told = " ".join(f"{name}={value}" for name, value in facts.items())
        facts["self_id"] = self._self_id
        self._log.emit(_level(report.event), "{event} {facts}", event=report.event, facts=told, **facts)
        self._keep(report.event, told)

    def _keep(self, event: str, told: str) -> None:
        self._number += 1
        self._events.append(SeenEvent(
            number=self._number, at_s=self._wall_clock()[0], level=_level(event).name, event=event,
            facts=told[:EVENT_CHARACTERS_MAX],
        ))

    def events(self) -> tuple[SeenEvent, ...]:
        """The last events, oldest first."""
        return tuple(self._events)

    def sweep(self, now_s: float) -> None:
        """Log the repeated reports that are over."""
        for key, episode in self._folding.sweep(now_s):
            event = str(key[0])
            told = " ".join(f"{name}={value}" for name, value in zip(_REPEATED[event], key[1:], strict=False))
            self._log.emit(
                _level(event), "{event} {facts}: over after {times} times in {since_s} s",
                event=event, facts=told, times=episode.times,
                since_s=round(episode.last_s - episode.begin_s), self_id=self._self_id,
            )
            self._keep(event, f"{told}: over after {episode.times} times")


def _bounded(value: object) -> object:
    if isinstance(value, str) and len(value) > FACT_CHARACTERS_MAX:
        return f"{value[:FACT_CHARACTERS_MAX]}... ({len(value)} characters)"
    return value


def _level(event: str) -> LogLevel:
    level: LogLevel = LogLevel.info
    if event in _ERRORS:
        level = LogLevel.error
    elif event in _WARNINGS:
        level = LogLevel.warn
    return level
