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

from dledger.admin.sites.reports import (
    MemberReport,
    followed_url,
    gone_members,
    group_problems,
    report_of_info,
    with_lag,
)
from dledger.cli.console.command import EXIT_FAILED, write_json
from dledger.cli.console.contexts import admin_option
from dledger.cli.console.failures import complain
from dledger.cli.console.target import AdminAccess, Target

if TYPE_CHECKING:
    from dledger.client.values import MemberInfo


def gather_reports(target: Target, urls: tuple[str, ...]) -> tuple[MemberReport, ...]:
    """As L{gather_group}, without the name of the group."""
    return gather_group(target, urls)[1]


def gather_group(
    target: Target, urls: tuple[str, ...], *, is_quiet: bool = False
) -> tuple[str, tuple[MemberReport, ...]]:
    """
    The name of the group, and the reports of all members, in order of ids. A process that does not answer,
    and is not a member any more as the leader says, is left out, and named on the standard error.

    @param target: see L{Target}.
    @param urls: administrations to ask; all other members are asked on their log ports.
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
        for info in infos:
            reports.setdefault(info.member_id, report_of_info(info))
    if not reports:
        raise click.ClickException("no member answers")
    for member_id in gone_members(reports.values()):
        del reports[member_id]
        if not is_quiet:
            complain(f"{member_id} is not a member of the group any more: leave it out of --peers")
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
    ordered = gather_reports(context.obj, urls)
    if as_json:
        write_json([attrs.asdict(report) for report in ordered])
    else:
        from dledger.cli.ledger.members_table import print_members  # scripts need no table
        print_members(ordered)
    end_with_problems(context, group_problems(ordered))


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
