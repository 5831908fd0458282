# -*- test-case-name: tests.admin.test_dashboard -*-
"""
What the dashboard shows, as values: the group as its members report it, and the numbers of one member.

Knows nothing of HTML.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypedDict

import attrs

from dledger.admin.dashboard.curves import Curves, curves
from dledger.admin.sites.details import MachineDetails, MemberDetails, best_informed, details_of
from dledger.admin.sites.diagnoses import LEVELS, WRONG, Diagnosis, all_diagnoses
from dledger.admin.sites.reports import MemberReport
from dledger.admin.sites.status_document import status_document
from dledger.base.histogram import Histogram
from dledger.node.reporting.health import health_problem
from dledger.node.reporting.reports import SeenEvent
from dledger.node.reporting.status import NodeStatus
from protocols.wire.fastjson import JsonObject
from protocols.wire.ledger.readers import ReaderInfo

#: Events that the page lists, and elections that it draws.
EVENTS_SHOWN = 40
ELECTIONS_SHOWN = 60
#: Events of the core that report a new role, term or leader.
_ROLE_EVENT = "role-changed"


@attrs.frozen(kw_only=True)
class Overview:
    """
    One moment of a group.

    @ivar at_s: seconds since 1970.
    @ivar details: member id to what its page says: of all members that could be asked, or of the one that
        serves the page.
    @ivar status: of the member that serves the page; None if no member does.
    @ivar problems: why the reports are old, or missing.
    @ivar findings: what is wrong with the group and those members, the worst first.
    @ivar events: of the members with details, newest first.
    @ivar elections: those of the events that report a new role or leader, oldest first.
    """

    at_s: float
    group: str
    reports: tuple[MemberReport, ...]
    details: Mapping[str, MemberDetails]
    status: NodeStatus | None = None
    problems: tuple[str, ...] = ()
    findings: tuple[Diagnosis, ...] = ()
    events: tuple[SeenEvent, ...] = ()
    elections: tuple[SeenEvent, ...] = ()

    @property
    def problem(self) -> str:
        """What is wrong; empty if nothing is."""
        return "; ".join((*self.problems, *(
            one.found if one.about == "group" else f"{one.about}: {one.found}"
            for one in self.findings if one.level == WRONG
        )))

    @property
    def informed(self) -> str:
        """The member whose page counts for readers and for lags in bytes; empty: no page was read."""
        return best_informed(self.reports, self.details)

    @property
    def lag_bytes(self) -> Mapping[str, int]:
        """Bytes that each follower lacks; known to the leader only."""
        return self.details[self.informed].lag_bytes if self.informed else {}

    @property
    def readers(self) -> tuple[ReaderInfo, ...]:
        """The named readers, the one first that lacks most."""
        readers = self.details[self.informed].readers if self.informed else ()
        return tuple(sorted(readers, key=lambda one: (-one.lag, one.name)))

    @property
    def machines(self) -> tuple[tuple[str, MachineDetails], ...]:
        """Member ids, and their state machines."""
        return tuple((name, one.machine) for name, one in self.details.items() if one.machine is not None)


def overview_of(
    status: NodeStatus, reports: Sequence[MemberReport], events: Iterable[SeenEvent], *, at_s: float
) -> Overview:
    """
    As one member sees its group.

    @param status: of the member that serves the page.
    @param events: of that member, oldest first.
    @param at_s: seconds since 1970.
    """
    me = status.member.self_id
    health = health_problem(status) or ""  # (the reports may be a second old)
    return _overview(
        tuple(attrs.evolve(one, health=health) if one.member_id == me else one for one in reports),
        {me: details_of(me, status_document(status))}, events, at_s=at_s, group=status.member.group,
        status=status,
    )


def _overview(
    reports: Sequence[MemberReport], details: Mapping[str, MemberDetails], events: Iterable[SeenEvent], *,
    at_s: float, group: str, status: NodeStatus | None = None, unread: Mapping[str, str] | None = None,
) -> Overview:
    events = tuple(events)
    found = all_diagnoses(reports, details, at_s, unread)
    return Overview(
        at_s=at_s, group=group, reports=tuple(reports), details=details, status=status,
        findings=tuple(sorted(found, key=lambda one: LEVELS.index(one.level))),
        events=tuple(reversed(events[-EVENTS_SHOWN:])),
        elections=tuple(one for one in events if one.event == _ROLE_EVENT)[-ELECTIONS_SHOWN:],
    )


class ReportedEvent(TypedDict):
    """An event that a member shows; see L{SeenEvent}."""

    member_id: str
    number: int
    at_s: float
    level: str
    event: str
    facts: str


def group_overview(
    reports: Sequence[MemberReport], details: Mapping[str, MemberDetails], events: Iterable[ReportedEvent], *,
    at_s: float, group: str, unread: Mapping[str, str] | None = None,
) -> Overview:
    """
    What the members reported.

    @param details: of the members whose pages were read. @param events: of all of them.
    @param at_s: seconds since 1970.
    @param unread: member id to why its page was not read.
    """
    seen = [
        SeenEvent(number=one["number"], at_s=one["at_s"], level=one["level"], event=one["event"],
                  facts=f"member={one['member_id']} {one['facts']}")
        for one in events
    ]
    seen.sort(key=lambda one: one.at_s)
    return _overview(reports, details, seen, at_s=at_s, group=group, unread=unread)


def no_overview(problem: str, *, at_s: float, group: str) -> Overview:
    """Nobody reported anything. @param problem: why."""
    return Overview(at_s=at_s, group=group, reports=(), details={}, problems=(problem,))


def plotted_numbers(overview: Overview) -> JsonObject:
    """The numbers that the page draws as curves, see L{curves}."""
    ends = [one.end_index for one in overview.reports if one.end_index >= -1]
    counters: Curves = {"Entries": (max(ends), "entries/s")} if ends else {}
    gauges: Curves = {}
    for title, lags in (
        ("Lag of the last member", [one.lag for one in overview.reports]),
        ("Lag of the last reader", [one.lag for one in overview.readers]),
        ("Lag of the last state machine", [machine.lag for _, machine in overview.machines]),
    ):
        if known := [one for one in lags if one >= 0]:
            gauges[title] = (max(known), "entries")
    times: JsonObject = {}
    status = overview.status
    if status is not None:
        counters["Reactor stalled"] = (status.counts.stall_s, "s/s")
        gauges["Appends without an answer"] = (status.member.pending_appends, "appends")
        times = {"Time of appends": _times(status.counts.append_s),
                 "Time of fsyncs": _times(status.counts.fsync)}
    return curves(overview.at_s, status.uptime_s if status is not None else 0.0, gauges, counters, times)


def _times(one: Histogram) -> JsonObject:
    return {"bounds": list(one.bounds), "counts": list(one.counts)}


def not_leader(status: NodeStatus) -> str:
    """That the member does not lead, and who does; empty at the leader."""
    member = status.member
    if member.role == "leader":
        return ""
    return f"{member.self_id} does not lead; {member.leader_id or 'no member that it knows'} does"
