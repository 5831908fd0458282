# -*- test-case-name: tests.commands.test_status -*-
"""The members of a group as a table for people."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

from dledger.admin.sites.reports import MemberReport

_WIDTH_ELSEWHERE = 500


def print_members(
    reports: tuple[MemberReport, ...], more: Mapping[str, Mapping[str, str]] | None = None,
    console: Console | None = None,
) -> None:
    """
    Print one line for each member.

    @param more: further columns: name to the text by member id.
    """
    console = console or Console()
    if not console.is_terminal:
        console.width = _WIDTH_ELSEWHERE  # no cell is cut in a file or a pipe
    table = _table(reports, more or {})
    # A narrow terminal breaks the lines of the table; it does not cut them.
    console.width = max(console.width, Measurement.get(console, console.options, table).minimum + 12)
    console.print(table)


def _number(value: int) -> str:
    return "-" if value < -1 else "empty" if value == -1 else f"{value}"


def _numbers(report: MemberReport) -> tuple[int, ...]:
    return report.term, report.begin_index, report.end_index, report.committed_index, report.lag


def _table(reports: tuple[MemberReport, ...], more: Mapping[str, Mapping[str, str]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("member", "role"):
        table.add_column(name, no_wrap=True)
    for column, name in enumerate(("term", "begin", "end", "committed", "lag")):
        longest = max((len(str(_numbers(report)[column])) for report in reports), default=1)
        # A cut number lies.
        table.add_column(name, justify="right", no_wrap=True, min_width=max(longest, len(name)))
    for name in ("leader", *more, "address", "note"):
        table.add_column(name, overflow="fold")
    for report in reports:
        further = [column.get(report.member_id, "-") for column in more.values()]
        if report.problem:
            cells = ("unreachable", *["-"] * 6, *further, report.address, escape(report.problem))
            table.add_row(report.member_id, *cells, style="red")
            continue
        table.add_row(
            report.member_id,
            report.role or "-",
            "-" if report.term < 0 else str(report.term),
            _number(report.begin_index),
            _number(report.end_index),
            _number(report.committed_index),
            "-" if report.lag < 0 else str(report.lag),
            report.leader_id or "none",
            *further,
            report.address,
            escape("; ".join(filter(None, (report.health, report.begin_moved)))),
            style="bold" if report.role == "leader" else "yellow" if report.health else "",
        )
    return table
