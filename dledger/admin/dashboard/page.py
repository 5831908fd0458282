# -*- test-case-name: tests.admin.test_dashboard -*-
"""The dashboard of a member: an L{Overview} as HTML."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

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
from dledger.admin.sites.diagnoses import FINE, LOOK, WRONG, Diagnosis
from dledger.admin.sites.reports import MemberReport
from dledger.node.reporting.reports import SeenEvent
from dledger.node.reporting.status import NodeStatus

_LINKS = ("browse", "actions", "status", "cluster", "events", "config", "metrics", "openapi.json")
#: Of a page that no member serves.
_GROUP_LINKS = ("cluster",)
#: Findings that the page lists.
FINDINGS_SHOWN = 50


def dashboard_page(overview: Overview | None) -> bytes:
    """The page. @param overview: None: without a number, see L{empty_frame}."""
    if overview is None:
        return empty_frame(_LINKS)
    who = f", member {overview.status.member.self_id}" if overview.status is not None else ""
    to_see = any(one.level == LOOK for one in overview.findings)
    return framed_page(
        title=overview.group, heading=f"Group {overview.group}{who}", problem=overview.problem,
        good=f"All members serve.{' Some things are to be looked at.' if to_see else ''}",
        live=_live(overview), numbers=plotted_numbers(overview),
        links=_LINKS if overview.status is not None else _GROUP_LINKS,
        findings=_findings([one for one in overview.findings if one.level != FINE]),
    )


def _live(overview: Overview) -> Iterable[Markup]:
    status = overview.status
    yield _members(overview)
    if status is not None:
        if note := not_leader(status):
            yield Markup(
                '<p class="soft">{}: lags in bytes, and times of appends, are on the page of the leader.</p>'
            ).format(note)
        yield _facts(status)
    yield _readers(overview)
    if status is None:
        yield _machines(overview)
        yield _disks(overview)
    whose = "this member" if status is not None else "the members"
    for title, name, events in (
        ("Changes of role and leader", "elections", tuple(reversed(overview.elections))),
        (f"Last events of {whose}", "events", overview.events),
    ):
        without = "There are none among the last events." if overview.details else _UNREAD
        yield table_section(title, name, _EVENT_COLUMNS, map(_event, events), without=without)


_FINDING_COLUMNS = (
    ("Level", False), ("About", False), ("Found", False), ("Meaning", False), ("What to do", False),
)


def _findings(findings: Sequence[Diagnosis]) -> Markup | str:
    """What C{dledger doctor} says of the group, the worst first; empty if nothing is wrong."""
    if not findings:
        return ""
    rows = [
        (text_cell(one.level, "bad" if one.level == WRONG else ""), text_cell(one.about),
         text_cell(one.found, "words"), text_cell(one.means, "words"), text_cell(one.mend, "words"))
        for one in findings[:FINDINGS_SHOWN]
    ]
    more = f" (of {len(findings):,})" if len(findings) > len(rows) else ""
    return table_section(f"What is wrong, or to be looked at{more}", "found", _FINDING_COLUMNS, rows)


_LAG_BYTES, _UNREAD = "Lag, bytes", "They are not known: no page of a member was read."
_MEMBER_COLUMNS = (
    ("Member", False), ("Role", False), ("Term", True), ("First", True), ("Last", True), ("Committed", True),
    ("Lag, entries", True), (_LAG_BYTES, True), ("State", False), ("Version", False), ("Address", False),
)


def _members(overview: Overview) -> Markup:
    rows = (_member(one, overview.lag_bytes) for one in overview.reports)
    return table_section("Members", "members", _MEMBER_COLUMNS, rows, without="No member is known.")


def _name_of(report: MemberReport) -> Markup:
    """The first cell of a member's row: a link to its page."""
    name: str = report.member_id
    if report.admin_url.startswith(("http://", "https://")):
        name = Markup('<a href="{}/">{}</a>').format(report.admin_url, name)
    return Markup('<th scope="row">{}</th>').format(name)


def _member(report: MemberReport, lag_bytes: Mapping[str, int]) -> Iterable[Markup]:
    yield _name_of(report)
    yield text_cell(report.role or "unknown")
    yield number_cell(report.term, 0)
    yield from (number_cell(one) for one in (report.begin_index, report.end_index, report.committed_index))
    yield number_cell(report.lag, 0)
    yield number_cell(lag_bytes.get(report.member_id, 0 if report.role == "leader" else -1), 0)
    trouble = report.problem or report.health
    yield text_cell(trouble or "serves", "bad" if trouble else "good")
    yield text_cell(report.version or "unknown", "" if report.version else "soft")
    yield text_cell(report.address)


def _facts(status: NodeStatus) -> Markup:
    """The numbers of the member itself."""
    member, machine, store = status.member, status.machine, status.store
    refusals = ", ".join(f"{name} {count:,}" for name, count in sorted(status.counts.refusals.items()))
    facts: list[tuple[str, str]] = [
        ("Up", span_text(status.uptime_s)),
        ("Appends", f"{status.counts.appends:,}, {size_text(status.counts.append_bytes)}"),
        ("Without an answer", f"{member.pending_appends:,} appends, {member.pending_reads:,} reads"),
        ("On stable storage", f"up to {member.flushed_index:,}; {size_text(store.unsynced_bytes)} are not"),
        ("Disk", f"{size_text(store.free_bytes)} of {size_text(store.total_bytes)} free"),
        ("Connections", f"{status.connections.incoming:,} open, {status.connections.refused:,} refused"),
        ("Leaders so far", f"{status.counts.roles.leader_changes:,}"),
        ("Reactor", f"missed {status.counts.stalls:,} ticks, {status.counts.stall_s:.1f} s"),
        ("Refusals", refusals or "none"),
        ("Set aside", _set_aside(store.set_aside_files, store.set_aside_bytes)),
        ("Begin moved", store.begin_moved or "not since the start"),
        ("Files", store.path or "in memory"),
    ]
    if machine is not None:
        facts.append((f"Machine {machine.name}", f"{machine.state}, lacks {machine.lag:,} entries"))
    return facts_of("This member", facts)


_READER_COLUMNS = (
    ("Reader", False), ("Next entry", True), ("Lag, entries", True), (_LAG_BYTES, True), ("Held by", False),
)


def _readers(overview: Overview) -> Markup:
    """The named readers, those first that lack most."""
    rows = [
        (text_cell(one.name), number_cell(one.next_index), number_cell(one.lag, 0),
         number_cell(one.lag_bytes, 0), text_cell(", ".join(one.holders) or "nobody"))
        for one in overview.readers
    ]
    whose, title = overview.informed, "Named readers"
    if whose:
        count = overview.details[whose].reader_count
        title += f", as {whose} knows them" + (f" (of {count:,})" if count > len(rows) else "")
    return table_section(
        title, "readers", _READER_COLUMNS, rows,
        without="There are none." if whose else _UNREAD,
    )


_MACHINE_COLUMNS = (
    ("Member", False), ("Machine", False), ("State", False), ("Last entry", True), ("Lag, entries", True),
    ("Last snapshot", True),
)


def _machines(overview: Overview) -> Markup:
    rows = [
        (Markup('<th scope="row">{}</th>').format(name), text_cell(f"{one.name}, version {one.version}"),
         text_cell(f"{one.state}: {one.reason}" if one.reason else one.state,
                   "bad" if one.state == "failed" else ""),
         number_cell(one.applied_index), number_cell(one.lag, 0), number_cell(one.snapshot_index))
        for name, one in overview.machines
    ]
    return table_section(
        "State machines", "machines", _MACHINE_COLUMNS, rows,
        without="No member whose page was read runs one." if overview.details else _UNREAD,
    )


_DISK_COLUMNS = (
    ("Member", False), ("Up", True), ("Free", True), ("Of", True), ("Not on stable storage", True),
    ("Set aside", True), ("Files", False),
)


def _disks(overview: Overview) -> Markup:
    rows = [
        (_name_of(report), *(text_cell(said, "number") for said in (
            span_text(one.uptime_s), size_text(one.disk_free_bytes), size_text(one.disk_total_bytes),
            size_text(one.unsynced_bytes), _set_aside(one.set_aside_files, one.set_aside_bytes),
        )), text_cell(one.store_path or "in memory", "words"))
        for report in overview.reports if (one := overview.details.get(report.member_id)) is not None
    ]
    return table_section("Disks", "disks", _DISK_COLUMNS, rows,
                         without=_UNREAD)


def _set_aside(files: int, size: int) -> str:
    """Files that may be the only copy of entries."""
    if files <= 0:
        return "none" if files == 0 else "unknown"
    return f"{files:,} files, {size_text(size)}"


_EVENT_COLUMNS = (("Time, UTC", False), ("Level", False), ("Event", False), ("Facts", False))


def _event(one: SeenEvent) -> tuple[Markup, ...]:
    return (text_cell(utc_text(one.at_s)), text_cell(one.level, "" if one.level == "info" else "bad"),
            text_cell(one.event), text_cell(one.facts, "words"))
