# -*- test-case-name: tests.commands.test_readers -*-
"""
C{dledger readers}: the named readers of a group, and how far each of them is behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import click
from rich.console import Console
from rich.table import Table

from dledger.cli.console.command import show_result, shown_time, write_json
from dledger.cli.console.since import moment_of, read_since
from dledger.cli.console.target import Target
from dledger.values.errors import DLedgerError
from protocols.wire.ledger.codes import Consistency

if TYPE_CHECKING:
    from dledger.client.blocking import Log
    from dledger.client.places import Place

#: Digits and sign of an index, at most.
_DIGITS_MAX = 18
#: Most readers whose next entry is asked for, and most names in an error.
_TIMES_MAX, _NAMES_MAX = 100, 20


@click.group("readers", invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def readers(context: click.Context, as_json: bool) -> None:
    """
    Show the named readers of the group, or move or forget one.

    "next is of" is shown for the 100 that are furthest behind.
    """
    if context.invoked_subcommand is not None:
        return
    with context.obj.open() as log:
        known = log.readers()
        behind = sorted((one.next_index, one.name) for one in known if one.lag)[:_TIMES_MAX]
        times = {name: _next_time(log, index) for index, name in behind}
    found = [(one, times.get(one.name)) for one in known]
    if as_json:
        write_json([{**attrs.asdict(one), "next_time_ms": time_ms} for one, time_ms in found])
        return
    table = Table(box=None)
    for heading in ("reader", "next", "lag", "bytes", "next is of", "held by"):
        table.add_column(heading, overflow="fold")
    for one, time_ms in found:
        lag_bytes = str(one.lag_bytes) if one.lag_bytes >= 0 else "-"
        table.add_row(
            one.name, str(one.next_index), str(one.lag), lag_bytes, shown_time(time_ms),
            ", ".join(one.holders) or "-",
        )
    Console().print(table if found else "no readers")


def _next_time(log: Log, next_index: int) -> int | None:
    """When the first entry was written that a reader has not done; None: it has no time."""
    try:
        return log.get(next_index, Consistency.COMMITTED).time_ms
    except DLedgerError:
        return None  # (It has expired, or no member answers now: the rest is shown.)


# (-10 is a place, no option.)
@readers.command("move", context_settings={"ignore_unknown_options": True})
@click.argument("name")
@click.argument("to", metavar="INDEX|-N|begin|end|TIME")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def move_reader(context: click.Context, name: str, to: str, as_json: bool) -> None:
    """
    Let reader NAME go on at an entry: INDEX, the last N entries of programs, the begin or the end of the log,
    or a TIME.

    TIME as of `tail --since`: 2026-01-31T12:00:00, or how long ago, such as 2h; entries of the minute before
    it may come first. It may go back: then entries that it has done are read again. The leases of its
    processes end.
    """
    with context.obj.open() as log:
        _check_known(name, log)
        following = log.move_reader(name, _place(context, to))
    show_result({"name": name, "next_index": following}, f"{name} goes on at {following}", as_json=as_json)


def _check_known(name: str, log: Log) -> None:
    """@raise ClickException: the group does not know this reader: a typo would make one."""
    known = [one.name for one in log.readers()]
    if name not in known:
        there = ", ".join(known[:_NAMES_MAX]) or "there are none"
        there += f", and {len(known) - _NAMES_MAX} more" if len(known) > _NAMES_MAX else ""
        raise click.ClickException(f"no reader has the name {name!r}, and nothing has changed: {there}")


def _place(context: click.Context, to: str) -> Place:
    if to in ("begin", "end"):
        return to
    if to.removeprefix("-").isdecimal():
        if len(to) > _DIGITS_MAX:
            raise click.UsageError(f"{to[:40]!r} is not the index of an entry: it is too large")
        return int(to)
    try:
        since_ms = read_since(context, context.command.params[1], to)
    except click.BadParameter as error:
        raise click.UsageError(
            f"{to!r}: write the index of an entry, -N for the last ones, begin or end, or a time: "
            f"{error.message}"
        ) from None
    assert since_ms is not None
    return moment_of(since_ms)


@readers.command("forget")
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def forget_reader(target: Target, name: str, as_json: bool) -> None:
    """
    Forget reader NAME: it holds no entry back any more.

    The leases of its processes end. A program that reads under this name later begins anew.
    """
    with target.open() as log:
        _check_known(name, log)
        log.forget_reader(name)
    show_result({"name": name, "is_forgotten": True}, f"{name} is forgotten", as_json=as_json)
