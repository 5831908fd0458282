# -*- test-case-name: tests.commands.test_status -*-
"""
C{dledger status}: every member in one table; members that do not answer, with the reason.

The command asks the administrations named with C{--admin}, and the log ports of all other members.
L{gather_reports} does so for other commands, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import attrs
import click
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

from dledger.admin.sites.reports import (
    MemberReport,
    followed_url,
    group_problems,
    report_of_info,
    with_lag,
)
from dledger.cli.console.command import EXIT_FAILED, write_json
from dledger.cli.console.contexts import admin_option
from dledger.cli.console.failures import complain
from dledger.cli.console.target import AdminAccess, Target

if TYPE_CHECKING:
    from dledger.client.answers.values import MemberInfo

_WIDTH_ELSEWHERE = 500


def gather_reports(
    target: Target, urls: tuple[str, ...], *, follows: bool = False
) -> tuple[MemberReport, ...]:
    """As L{gather_group}, without the name of the group."""
    return gather_group(target, urls, follows=follows)[1]


def gather_group(
    target: Target, urls: tuple[str, ...], *, follows: bool = False, is_quiet: bool = False
) -> tuple[str, tuple[MemberReport, ...]]:
    """
    The name of the group, and the reports of all members, in order of ids.

    @param target: see L{Target}.
    @param urls: administrations to ask; all other members are asked on their log ports.
    @param follows: ask the administrations that those report, too.
    @param is_quiet: do not say which administrations do not answer.
    @raise ClickException: no member answers.
    """
    by_admin, addresses, group = _ask_admins(target.admin, dict.fromkeys(urls), is_quiet=is_quiet)
    reports = dict(by_admin)
    peers = target.peers or ";".join(f"{member_id}-{address}" for member_id, address in addresses.items())
    missing = set(addresses) - set(reports) if addresses else {""}
    if missing and (peers or not urls):
        at_log = attrs.evolve(target, peers=peers, group=group or target.group)
        with at_log.open() as log:
            infos = log.status()
        if follows:
            reported = followed_urls(info for info in infos if info.member_id not in reports)
            reports.update(_ask_admins(target.admin, reported, is_quiet=True)[0])
        for info in infos:
            reports.setdefault(info.member_id, report_of_info(info))
    if not reports:
        raise click.ClickException("no member answers")
    ordered = tuple(reports[member_id] for member_id in sorted(reports))
    return group or target.group, with_lag(ordered)


@click.command()
@admin_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def status(context: click.Context, urls: tuple[str, ...], as_json: bool) -> None:
    """
    Show the members of the group.

    Exit status 1 if no member leads, if several do (then only the one with the highest term may have a
    majority), or if the members do not agree on who they are.
    """
    # Only administrations report versions.
    ordered = gather_reports(context.obj, urls, follows=as_json)
    if as_json:
        write_json([attrs.asdict(report) for report in ordered])
    else:
        print_members(Console(), ordered)
    end_with_problems(context, group_problems(ordered))


def print_members(
    console: Console, reports: tuple[MemberReport, ...], more: Mapping[str, Mapping[str, str]] | None = None
) -> None:
    """
    Print one line for each member.

    @param more: further columns: name to the text by member id.
    """
    if not console.is_terminal:
        console.width = _WIDTH_ELSEWHERE  # no cell is cut in a file or a pipe
    table = _table(reports, more or {})
    # A narrow terminal breaks the lines of the table; it does not cut them.
    console.width = max(console.width, Measurement.get(console, console.options, table).minimum + 12)
    console.print(table)


def end_with_problems(context: click.Context, problems: tuple[str, ...]) -> None:
    """Say the problems, and exit with status 1 if there are any."""
    for problem in problems:
        complain(problem)
    if problems:
        context.exit(EXIT_FAILED)


def followed_urls(infos: Iterable[MemberInfo]) -> dict[str, str | None]:
    """The administrations that members report: URL to the id of the member."""
    reported: dict[str, str | None] = {followed_url(one.address, one.admin): one.member_id for one in infos}
    reported.pop("", None)
    return reported


def _ask_admins(
    access: AdminAccess, urls: Mapping[str, str | None], *, is_quiet: bool = False
) -> tuple[dict[str, MemberReport], dict[str, str], str]:
    """As L{dledger.cli.console.administration.ask_members}."""
    if not urls:
        return {}, {}, ""
    from dledger.cli.console.administration import ask_members  # a log port is asked without HTTP
    return ask_members(access, urls, is_quiet=is_quiet)


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

