# -*- test-case-name: tests.admin.test_dashboard -*-
"""The dashboard of a member: an L{Overview} as HTML."""

from __future__ import annotations

from collections.abc import Iterable

from markupsafe import Markup

from dledger.admin.dashboard.frame import (
    empty_frame,
    facts_of,
    framed_page,
    number_cell,
    size_text,
    span_text,
    table_section,
    text_cell,
    utc_text,
)
from dledger.admin.dashboard.overview import Overview, not_leader, plotted_numbers
from dledger.admin.sites.reports import MemberReport
from dledger.node.reporting.reports import SeenEvent
from dledger.node.reporting.status import NodeStatus

_LINKS = ("browse", "actions", "status", "cluster", "events", "config", "metrics", "openapi.json")
#: Of a page that no member serves.
_GROUP_LINKS = ("cluster",)


def dashboard_page(overview: Overview | None) -> bytes:
    """The page. @param overview: None: without a number, see L{empty_frame}."""
    if overview is None:
        return empty_frame(_LINKS)
    who = f", member {overview.status.member.self_id}" if overview.status is not None else ""
    return framed_page(
        title=overview.group, heading=f"Group {overview.group}{who}", problem=overview.problem,
        good="All members serve.", live=_live(overview), numbers=plotted_numbers(overview),
        links=_LINKS if overview.status is not None else _GROUP_LINKS,
    )


def _live(overview: Overview) -> Iterable[Markup]:
    if overview.status is not None and (note := not_leader(overview.status)):
        yield Markup(
            '<p class="soft">{}: appends and lags in bytes are on the page of the leader.</p>'
        ).format(note)
    yield _members(overview)
    if overview.status is not None:
        yield _facts(overview.status)
        if overview.status.readers:
            yield _readers(overview.status)
    if overview.status is not None or overview.events:
        whose = "this member" if overview.status is not None else "the members"
        yield _events("Changes of role and leader", "elections", reversed(overview.elections))
        yield _events(f"Last events of {whose}", "events", overview.events)


#: Known to the leader, so to the page of a member only.
_LAG_BYTES = "Lag, bytes"
_MEMBER_COLUMNS = (
    ("Member", False), ("Role", False), ("Term", True), ("First", True), ("Last", True), ("Committed", True),
    ("Lag, entries", True), (_LAG_BYTES, True), ("State", False), ("Version", False), ("Address", False),
)


def _members(overview: Overview) -> Markup:
    rows = (_member(one, overview) for one in overview.reports)
    columns = (one for one in _MEMBER_COLUMNS if overview.status is not None or one[0] != _LAG_BYTES)
    return table_section("Members", "members", columns, rows)


def _member(report: MemberReport, overview: Overview) -> Iterable[Markup]:
    name: str = report.member_id
    if report.admin_url.startswith(("http://", "https://")):
        name = Markup('<a href="{}/">{}</a>').format(report.admin_url, name)
    yield Markup('<th scope="row">{}</th>').format(name)
    yield text_cell(report.role or "unknown")
    yield number_cell(report.term, 0)
    yield from (number_cell(one) for one in (report.begin_index, report.end_index, report.committed_index))
    yield number_cell(report.lag, 0)
    if overview.status is not None:
        yield number_cell(overview.lag_bytes.get(report.member_id, 0 if report.role == "leader" else -1), 0)
    trouble = report.problem or report.health
    yield text_cell(trouble or "serves", "bad" if trouble else "good")
    yield text_cell(report.version)
    yield text_cell(report.address)


def _facts(status: NodeStatus) -> Markup:
    """The numbers of the member itself."""
    member, machine, store = status.member, status.machine, status.store
    refusals = ", ".join(f"{name} {count:,}" for name, count in sorted(status.counts.refusals.items()))
    facts: list[tuple[str, str]] = [
        ("Up", span_text(status.uptime_s)),
        ("Appends", f"{status.counts.appends:,}, {size_text(status.counts.append_bytes)}"),
        ("Without an answer", f"{member.pending_appends:,} appends, {member.pending_reads:,} reads"),
        ("On stable storage", f"up to {member.flushed_index:,}, {size_text(store.unsynced_bytes)} behind"),
        ("Disk", f"{size_text(store.free_bytes)} of {size_text(store.total_bytes)} free"),
        ("Connections", f"{status.connections.incoming:,} open, {status.connections.refused:,} refused"),
        ("Leaders so far", f"{status.counts.roles.leader_changes:,}"),
        ("Reactor", f"missed {status.counts.stalls:,} ticks, {status.counts.stall_s:.1f} s"),
        ("Refusals", refusals or "none"),
        ("Set aside", f"{store.set_aside_files:,} files, {size_text(store.set_aside_bytes)}"),
        ("Begin moved", store.begin_moved or "not since the start"),
        ("Files", store.path or "in memory"),
    ]
    if machine is not None:
        facts.append((f"Machine {machine.name}", f"{machine.state}, {machine.lag:,} behind"))
    return facts_of("This member", facts)


_READER_COLUMNS = (
    ("Reader", False), ("Next entry", True), ("Lag, entries", True), (_LAG_BYTES, True), ("Held by", False),
)


def _readers(status: NodeStatus) -> Markup:
    """The named readers, those first that are furthest behind."""
    rows = [
        (text_cell(one.name), number_cell(one.next_index), number_cell(one.lag, 0),
         number_cell(one.lag_bytes, 0), text_cell(", ".join(one.holders) or "nobody"))
        for one in status.readers
    ]
    more = f" (of {status.reader_count:,})" if status.reader_count > len(rows) else ""
    return table_section(f"Named readers{more}", "readers", _READER_COLUMNS, rows)


_EVENT_COLUMNS = (("Time, UTC", False), ("Level", False), ("Event", False), ("Facts", False))


def _events(title: str, name: str, events: Iterable[SeenEvent]) -> Markup:
    rows = [
        (text_cell(utc_text(one.at_s)), text_cell(one.level, "" if one.level == "info" else "bad"),
         text_cell(one.event), text_cell(one.facts, "words"))
        for one in events
    ]
    return table_section(title, name, _EVENT_COLUMNS, rows)


