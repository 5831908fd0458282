# -*- test-case-name: tests.admin.test_dashboard -*-
"""
What the dashboard shows, as values: the group as its members report it, and the numbers of one member.

Knows nothing of HTML.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypedDict

import attrs

from dledger.admin.sites.reports import MemberReport, group_problems
from dledger.base.histogram import Histogram
from dledger.node.reporting.health import health_problem
from dledger.node.reporting.reports import SeenEvent
from dledger.node.reporting.status import NodeStatus
from protocols.wire.fastjson import JsonObject

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
    @ivar status: of the member that serves the page; None if no member does.
    @ivar problems: what is wrong with the group as a whole.
    @ivar events: of that member, newest first.
    @ivar elections: those of the events that report a new role or leader, oldest first.
    """

    at_s: float
    group: str
    reports: tuple[MemberReport, ...]
    status: NodeStatus | None = None
    problems: tuple[str, ...] = ()
    events: tuple[SeenEvent, ...] = ()
    elections: tuple[SeenEvent, ...] = ()

    @property
    def problem(self) -> str:
        """Why the group or the member that serves the page is not well; empty if both are."""
        own = health_problem(self.status) if self.status is not None else None
        others = [f"{one.member_id}: {one.problem or one.health}" for one in self.reports
                  if (one.problem or one.health) and not self._is_self(one)]
        return "; ".join([*self.problems, *([f"this member: {own}"] if own else []), *others])

    def _is_self(self, report: MemberReport) -> bool:
        return self.status is not None and report.member_id == self.status.member.self_id

    @property
    def lag_bytes(self) -> Mapping[str, int]:
        """Bytes that each follower lacks; known to the leader only."""
        return self.status.peers.lag_bytes if self.status is not None else {}


def overview_of(
    status: NodeStatus | None, reports: Sequence[MemberReport], events: Iterable[SeenEvent], *, at_s: float,
    group: str = "",
) -> Overview:
    """
    @param status: of the member that serves the page; None if no member does.
    @param events: of that member, oldest first.
    @param at_s: seconds since 1970.
    @param group: without a status, the name of the group.
    """
    events = tuple(events)
    return Overview(
        at_s=at_s,
        group=status.member.group if status is not None else group,
        reports=tuple(reports),
        status=status,
        problems=group_problems(reports),
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
    reports: Sequence[MemberReport], events: Iterable[ReportedEvent], *, at_s: float, group: str,
    problem: str = "",
) -> Overview:
    """
    What the members reported.

    @param events: of all members.
    @param at_s: seconds since 1970.
    @param problem: why nobody reported anything; empty if somebody did.
    """
    seen = [
        SeenEvent(number=one["number"], at_s=one["at_s"], level=one["level"], event=one["event"],
                  facts=f"member={one['member_id']} {one['facts']}")
        for one in events
    ]
    seen.sort(key=lambda one: one.at_s)
    overview = overview_of(None, reports, seen, at_s=at_s, group=group)
    return attrs.evolve(overview, problems=(problem,)) if problem else overview


def plotted_numbers(overview: Overview) -> JsonObject:
    """
    The numbers that the page draws as curves, by their titles.

    C{counters} only rise: the page draws their rise per second. C{gauges} are drawn as they are. Of C{times},
    in seconds, the page draws p50 and p99 between two looks: they have the bounds of their buckets, and the
    count of each.
    """
    ends = [one.end_index for one in overview.reports if one.end_index >= -1]
    lags = [one.lag for one in overview.reports if one.lag >= 0]
    counters: JsonObject = {"Entries a second": max(ends)} if ends else {}
    gauges: JsonObject = {"Lag of the last member, entries": max(lags)} if lags else {}
    times: JsonObject = {}
    status = overview.status
    if status is not None:
        counters["Reactor stalled, seconds a second"] = status.counts.stall_s
        gauges["Appends without an answer"] = status.member.pending_appends
        times = {"Appends, p50 and p99": _times(status.counts.append_s),
                 "Fsync, p50 and p99": _times(status.counts.fsync)}
    return {
        "at_s": overview.at_s, "uptime_s": status.uptime_s if status is not None else 0.0,
        "counters": counters, "gauges": gauges, "times": times,
    }


def _times(one: Histogram) -> JsonObject:
    return {"bounds": list(one.bounds), "counts": list(one.counts)}


def not_leader(status: NodeStatus) -> str:
    """That the member does not lead, and who does; empty at the leader."""
    member = status.member
    if member.role == "leader":
        return ""
    return f"{member.self_id} does not lead; {member.leader_id or 'no member that it knows'} does"
