# -*- test-case-name: tests.commands.test_watch -*-
"""
The commands that look at a group: C{dledger health}, C{dledger cluster}, C{dledger top}, C{dledger events}.

Any member may be named, with C{--peers} or C{--admin}: it knows the others. None changes anything.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from itertools import chain

import attrs
import click
from rich.console import Console
from twisted.web.iweb import IAgent

from dledger.admin.dashboard.overview import ReportedEvent
from dledger.admin.sites.cluster import fetch_page
from dledger.admin.sites.reports import MemberReport, group_problems, one_line
from dledger.base.reactor import Reactor
from dledger.cli.console.administration import DEADLINE_S, ask_all
from dledger.cli.console.command import EXIT_FAILED, shown_body, write_json, write_json_line
from dledger.cli.console.contexts import admin_option
from dledger.cli.console.failures import complain
from dledger.cli.console.numbers import RealRange, WholeRange
from dledger.cli.ledger.members_table import print_members
from dledger.cli.ledger.status import end_with_problems, followed_urls, gather_reports
from protocols.wire.fastjson import JsonObject, as_int, as_list, as_object

#: Events of a page that count, the last ones, and characters of the facts of one.
EVENTS_MAX, FACTS_CHARACTERS_MAX = 1000, 2000
_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.command()
@admin_option
@_json_option
@click.pass_context
def health(context: click.Context, urls: tuple[str, ...], as_json: bool) -> None:
    """
    Say of each member whether it serves, and why not.

    Exit status 1 if one does not, if not exactly one leads, or if they do not agree on who they are.
    """
    reports = gather_reports(context.obj, urls)
    problems = group_problems(reports)
    why = {report.member_id: report.problem or report.health for report in reports}
    if as_json:
        write_json({
            "is_healthy": not problems and not any(why.values()), "problems": problems,
            "members": [{"member_id": one, "is_healthy": not said, "reason": said}
                        for one, said in why.items()],
        })
    else:
        for report in reports:
            said = why[report.member_id]
            click.echo(f"{report.member_id}\t" + (f"not healthy\t{said}" if said else f"ok\t{report.role}"))
    end_with_problems(context, problems)
    if any(why.values()):
        context.exit(EXIT_FAILED)


def _versions_of(reports: tuple[MemberReport, ...]) -> dict[str, str]:
    return {report.member_id: report.version for report in reports if report.version}


@click.command()
@admin_option
@_json_option
@click.pass_context
def cluster(context: click.Context, urls: tuple[str, ...], as_json: bool) -> None:
    """
    Show the whole group: roles, indexes, lags, health, versions.

    Exit status 1 as of "status".
    """
    reports = gather_reports(context.obj, urls)
    problems = group_problems(reports)
    if as_json:
        write_json({"problems": problems, "members": [attrs.asdict(report) for report in reports]})
    else:
        print_members(reports, {"version": _versions_of(reports)})
    end_with_problems(context, problems)


@click.command()
@admin_option
@click.option("--interval", type=RealRange(min=0.1), default=1.0, show_default=True,
              metavar="SECONDS", help="Time between two looks.")
@click.option("--count", type=WholeRange(min=1), default=None,
              help="End after so many looks. Default: at Ctrl-C.")
@_json_option
@click.pass_context
def top(
    context: click.Context, urls: tuple[str, ...], interval: float, count: int | None, as_json: bool
) -> None:
    """
    Show the group again and again, with the entries per second that each member gets.

    On a terminal the table stays in its place; elsewhere one follows the other. --json prints an object for
    each look, on one line.
    """
    console, looks = Console(), 0
    before: dict[str, tuple[float, int]] = {}
    try:
        while True:
            reports = gather_reports(context.obj, urls)
            now_s = _seconds()
            rates = {
                report.member_id: (report.end_index - before[report.member_id][1])
                / max(now_s - before[report.member_id][0], 0.001)
                for report in reports if report.end_index >= -1 and report.member_id in before
            }
            before = {report.member_id: (now_s, report.end_index) for report in reports
                      if report.end_index >= -1}
            _show_look(console, reports, rates, as_json=as_json)
            looks += 1
            if looks == count:
                if all(report.problem for report in reports):
                    context.exit(EXIT_FAILED)
                return
            _sleep(interval)
    except KeyboardInterrupt:
        return


#: The clock of C{top}.
_seconds = time.monotonic
_sleep = time.sleep


def _show_look(
    console: Console, reports: tuple[MemberReport, ...], rates: dict[str, float], *, as_json: bool
) -> None:
    problems = group_problems(reports)
    if as_json:
        rows = [{**attrs.asdict(one), "entries_per_s": rates.get(one.member_id)} for one in reports]
        write_json_line({"problems": problems, "members": rows})
        return
    if console.is_terminal:
        console.clear()
    shown = {member_id: f"{rate:,.0f}" for member_id, rate in rates.items()}
    print_members(reports, {"entries/s": shown, "version": _versions_of(reports)}, console)
    for problem in problems:
        console.print(problem, style="red", markup=False)


@click.command()
@admin_option
@click.option("-n", "--lines", type=WholeRange(min=1), default=50, show_default=True,
              help="Number of last events.")
@_json_option
@click.pass_context
def events(context: click.Context, urls: tuple[str, ...], lines: int, as_json: bool) -> None:
    """
    Show the last events of the members: changes of roles, truncations, repairs, refusals.

    Members keep them in memory and report them on their administration. Without --admin, the members of
    --peers are asked for its address. Exit status 1 if one does not answer.
    """
    asked: dict[str, str | None] = dict.fromkeys(urls)
    if not asked:
        with context.obj.open() as log:
            asked = followed_urls(log.status())
        if not asked:
            raise click.ClickException("no member names an administration within reach: give --admin")
    silent: list[str] = []

    def failed(url: str, error: Exception) -> None:
        silent.append(url)
        complain(f"{url}: {error or type(error).__name__}")

    async def story(agent: IAgent, url: str, reactor: Reactor) -> list[ReportedEvent]:
        return events_of(None, await fetch_page(agent, url, "/events", DEADLINE_S, reactor))

    pages = ask_all(context.obj.admin, asked, story, failed).values()
    found = sorted(chain.from_iterable(pages), key=lambda event: event["at_s"])[-lines:]
    if as_json:
        write_json(found)
    for event in () if as_json else found:
        at = datetime.fromtimestamp(event["at_s"], UTC).isoformat(timespec="milliseconds")
        words = f"{event['member_id']}\t{event['level']}\t{event['event']} {event['facts']}"
        click.echo("\t".join([at, *map(lambda word: shown_body(word.encode()), words.split("\t"))]))
    if silent:
        context.exit(EXIT_FAILED)


def events_of(member_id: str | None, page: JsonObject) -> list[ReportedEvent]:
    """
    The events of a page, each with C{member_id}.

    @param member_id: whose page it must be; None: anybody's.
    @raise ValueError: it is not a page of events, or of another member.
    """
    try:
        if member_id not in (None, page["self_id"]):
            raise ValueError(f"it is member {one_line(page['self_id'])!r}")
        return [
            {"member_id": one_line(page["self_id"]), "number": as_int(event["number"]),
             "at_s": _moment_s(event["at_s"]), "level": one_line(event["level"]),
             "event": one_line(event["event"]), "facts": str(event["facts"])[:FACTS_CHARACTERS_MAX]}
            for event in map(as_object, as_list(page["events"])[-EVENTS_MAX:])
        ]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"not a page of events of a dledger member: {error!r}") from None


def _moment_s(value: object) -> float:
    """@return: seconds since 1970. @raise ValueError: it has no date."""
    at_s = float(str(value))
    if not 0 <= at_s < 1 << 37:
        raise ValueError(f"the time {at_s}")
    return at_s
