# -*- test-case-name: tests.commands.test_machine -*-
"""
C{dledger machine}: the state machines of a running group, and an entry that they cannot apply, see
docs/machines.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import click
from rich.console import Console
from rich.table import Table

from dledger.cli.console.command import EXIT_FAILED, show_result, write_json
from dledger.cli.console.contexts import admin_option
from dledger.cli.console.failures import complain
from dledger.cli.console.numbers import WholeRange
from dledger.cli.console.target import Target
from dledger.client.values import MemberInfo
from protocols.wire.errors import BodyError
from protocols.wire.ledger.machines import ReportedMachine, decode_reported_machine


@click.group("machine")
def machine() -> None:
    """Show the state machines of the members, let them write snapshots, or skip an entry."""


def _machine_of(info: MemberInfo) -> ReportedMachine | None:
    try:
        return decode_reported_machine(info.machine)
    except BodyError:
        return None


@machine.command("status")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def machine_status(context: click.Context, as_json: bool) -> None:
    """
    Show the state machine of each member: name and version, whether it runs, the last entry in its state.

    A machine that has failed at an entry waits for "dledger machine skip", or for a start with a mended one.
    Exit status 1 if no member answers.
    """
    with context.obj.open() as log:
        infos = log.status()
    if as_json:
        write_json([_row(info) for info in infos])
    else:
        _print_table(infos)
    if all(info.problem for info in infos):
        complain("no member answers")
        context.exit(EXIT_FAILED)


def _print_table(infos: Sequence[MemberInfo]) -> None:
    table = Table(box=None)
    for heading in ("member", "role", "machine", "state", "applied", "failed at", "remark"):
        table.add_column(heading, overflow="fold")
    for info in infos:
        reported = _machine_of(info)
        remark = info.problem or info.health
        if reported is None:
            table.add_row(info.member_id, info.role or "-", "-", "-", "-", "-", remark)
        else:
            failed = "-" if reported.failed_index < 0 else str(reported.failed_index)
            table.add_row(info.member_id, info.role or "-", f"{reported.name} {reported.version}",
                          reported.state,
                          str(reported.applied_index), failed, remark)
    Console().print(table)


def _row(info: MemberInfo) -> dict[str, object]:
    reported = _machine_of(info)
    return {
        "member_id": info.member_id, "role": info.role, "remark": info.problem or info.health,
        "machine": None if reported is None else {
            **attrs.asdict(reported), "digests": {str(index): one for index, one in reported.digests.items()}
        },
    }


@machine.command("snapshot")
@admin_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def take_snapshot(context: click.Context, urls: tuple[str, ...], as_json: bool) -> None:
    """
    Let state machines write a snapshot now. Needs a token.

    Each member that --admin names is asked. A long snapshot goes on after the answer; the page /status of the
    member has snapshot_index when it is written. Exit status 1 if a member has not begun one.
    """
    from dledger.cli.console.administration import end_with, post_all  # dledger machine needs no HTTP
    found, failures = post_all(context.obj.admin, urls, "/snapshot")
    show_result({"snapshots": found, "failed": failures}, *(
        f"{url}\t" + ("is being written" if page.get("is_writing") else
                      f"after the entry {page.get('snapshot_index')}, {page.get('snapshot_size')} bytes")
        for url, page in found.items()
    ), as_json=as_json)
    end_with(context, failures)


@machine.command("skip")
@click.argument("index", type=WholeRange(min=0))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def skip_entry(target: Target, index: int, as_json: bool) -> None:
    """
    Skip the entry at INDEX, at which the machine of the leader has failed.

    The order is written into the log, so that all members skip the same entry: also one that could apply it
    makes its state again without it. The command at INDEX is answered as refused from then on.
    """
    with target.open() as log:
        order = log.skip(index)
    said = f"the entry {index} is skipped, by the order at {order}"
    show_result({"index": index, "order_index": order}, said, as_json=as_json)
