# -*- test-case-name: tests.commands.test_status -*-
"""
C{dledger status}: every member in one table; members that do not answer, with the reason.

The command asks the administrations named with C{--admin}, and the log ports of all other members.
"""

from __future__ import annotations

from typing import Any

import attrs
import click
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table
from twisted.internet.defer import Deferred
from twisted.web.client import Agent

from dledger.admin.cluster import (
    MemberReport,
    fetch_status,
    identity_of_status,
    report_of_info,
    report_of_status,
    with_lag,
)
from dledger.base.reactor import Reactor
from dledger.base.reactor_thread import ReactorThread
from dledger.commands.common import EXIT_FAILED, say, write_json

_DEADLINE_S = 2.0
_WIDTH_ELSEWHERE = 500


@click.command()
@click.option("--admin", "urls", multiple=True, envvar="DLEDGER_ADMIN", metavar="URL",
              help="Base URL of a member's administration. [env DLEDGER_ADMIN]")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def status(context: click.Context, urls: tuple[str, ...], as_json: bool) -> None:
    """
    Show the members of the group.

    Exit status 1 if no member leads, or if several do: then only the one with the highest term may have a
    majority.
    """
    target = context.obj
    by_admin, addresses, group = _ask_admins(urls)
    reports = dict(by_admin)
    peers = target.peers or ";".join(f"{member_id}-{address}" for member_id, address in addresses.items())
    missing = set(addresses) - set(reports) if addresses else {""}
    if missing and (peers or not urls):
        at_log = attrs.evolve(target, peers=peers, group=group or target.group)
        with at_log.open() as log:
            for info in log.status():
                reports.setdefault(info.member_id, report_of_info(info))
    if not reports:
        raise click.ClickException("no member answers")
    ordered = with_lag(tuple(reports[member_id] for member_id in sorted(reports)))
    if as_json:
        write_json([attrs.asdict(report) for report in ordered])
    else:
        console = Console()
        if not console.is_terminal:
            console.width = _WIDTH_ELSEWHERE  # no cell is cut in a file or a pipe
        table = _table(ordered)
        # A narrow terminal breaks the lines of the table; it does not cut them.
        console.width = max(console.width, Measurement.get(console, console.options, table).minimum + 12)
        console.print(table)
    leaders = [report for report in ordered if report.role == "leader"]
    if len(leaders) != 1:
        named = ", ".join(f"{report.member_id} in term {report.term}" for report in leaders)
        say(f"dledger: {len(leaders)} members lead: {named}" if leaders else "dledger: no member leads")
        context.exit(EXIT_FAILED)


def _ask_admins(urls: tuple[str, ...]) -> tuple[dict[str, MemberReport], dict[str, str], str]:
    """Reports by member id; addresses of all members, and the group, as the administrations tell them."""
    reports: dict[str, MemberReport] = {}
    addresses: dict[str, str] = {}
    group = ""
    if not urls:
        return reports, addresses, group
    thread = ReactorThread("dledger-status")
    try:
        agent = Agent(thread.reactor, connectTimeout=_DEADLINE_S)
        asked = [(url, thread.start(_story(agent, url, thread.reactor))) for url in urls]
        for url, answer in asked:
            try:
                document = answer.result()
                member_id, its_group, its_peers = identity_of_status(document)
                report = report_of_status(member_id, its_peers[member_id], url, document)
                addresses = {**its_peers, **addresses}
                group = group or its_group
                reports[member_id] = attrs.evolve(report, address=addresses[member_id])
            except ValueError as error:
                say(f"dledger: {url}: no dledger member answered: {error}")
            except Exception as error:
                say(f"dledger: {url}: {error or type(error).__name__}")
    finally:
        thread.stop(lambda: None)
    return reports, addresses, group


def _story(agent: Agent, url: str, reactor: Reactor) -> Any:
    return lambda: Deferred.fromCoroutine(fetch_status(agent, url, _DEADLINE_S, reactor))


def _number(value: int) -> str:
    return "-" if value < -1 else "empty" if value == -1 else f"{value}"


def _numbers(report: MemberReport) -> tuple[int, ...]:
    return report.term, report.begin_index, report.end_index, report.committed_index, report.lag


def _table(reports: tuple[MemberReport, ...]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("member", "role"):
        table.add_column(name, no_wrap=True)
    for column, name in enumerate(("term", "begin", "end", "committed", "lag")):
        longest = max((len(str(_numbers(report)[column])) for report in reports), default=1)
        # A cut number lies.
        table.add_column(name, justify="right", no_wrap=True, min_width=max(longest, len(name)))
    for name in ("leader", "address", "note"):
        table.add_column(name, overflow="fold")
    for report in reports:
        if report.problem:
            why = escape(report.problem)
            table.add_row(report.member_id, "unreachable", *["-"] * 6, report.address, why, style="red")
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
            report.address,
            escape("; ".join(filter(None, (report.health, report.begin_moved)))),
            style="bold" if report.role == "leader" else "yellow" if report.health else "",
        )
    return table

