# -*- test-case-name: tests.commands.test_ha_resolve -*-
"""
C{dledger ha-resolve}: what a slave of ours does after its replication has stopped.

Without a decision it only shows both sides.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import attrs
import click
from twisted.internet.defer import Deferred

from dledger.base.reactor_thread import ReactorThread
from dledger.cli.console.command import EXIT_FAILED, show_result
from dledger.cli.console.failures import complain
from dledger.cli.console.local_paths import LocalPath
from dledger.cli.console.target import Target
from dledger.cli.rocketmq.ha import asker_of, broker_address
from dledger.cli.rocketmq.log_copy import CopyRefused, copy_log
from dledger.rocketmq.client.ha_resolve import StoppedReplication, show_stopped, take_master, try_again
from dledger.rocketmq.client.ha_status import Ask
from dledger.values.errors import DLedgerError

_Result = TypeVar("_Result")

def _slave_address(context: click.Context, option: click.Parameter, value: str | None) -> str:
    return broker_address(context, option, value) or ""


#: Copying one file of the log may take long.
_DECISION_TIMEOUT_S = 600.0


@click.command("ha-resolve")
@click.option("--broker", callback=_slave_address, metavar="HOST:PORT", help="The slave.")
@click.option("--take-master", "takes_master", is_flag=True,
              help="Set aside the slave's files after the common part, and follow the master.")
@click.option("--try-again", "tries_again", is_flag=True,
              help="Compare the logs again, after the master was repaired. Changes no file.")
@click.option("--copy-log", "copied", nargs=2, type=LocalPath(path_type=Path), metavar="FROM TO",
              help="Give the stopped broker with the store TO the log of the stopped one with the store "
                   "FROM; its own files are set aside. Needs no --broker.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def ha_resolve(
    context: click.Context, broker: str, takes_master: bool, tries_again: bool,
    copied: tuple[Path, Path] | None, as_json: bool,
) -> None:
    """
    Show why a slave's replication has stopped, and decide how it goes on.

    Without --take-master or --try-again nothing changes. Exit status 1 while there is something to decide.
    """
    if (takes_master, tries_again, copied is not None).count(True) > 1:
        raise click.UsageError("give one of --take-master, --try-again and --copy-log")
    if copied is not None:
        _copy(context, *copied, as_json=as_json)
        return
    if not broker:
        raise click.UsageError("name the slave: --broker HOST:PORT")
    try:
        found = _run(context.obj.timeout, context.obj, lambda ask: show_stopped(ask, broker))
        directory = ""
        if not as_json:
            click.echo("\n".join(lines_of(found)))
        if takes_master and found.is_decidable:
            directory = _run(_DECISION_TIMEOUT_S, context.obj, lambda ask: take_master(ask, found))
        elif tries_again and found.is_stopped:
            _run(context.obj.timeout, context.obj, lambda ask: try_again(ask, broker))
    except DLedgerError as error:
        complain(str(error.facts.get("reason", error)))
        context.exit(EXIT_FAILED)
    lines = []
    if directory:
        lines.append(f"The slave follows the master; its old files are in {directory}.")
    elif tries_again and found.is_stopped:
        lines.append("The slave compares again; see dledger ha-status.")
    if as_json or lines:
        show_result({**attrs.asdict(found), "directory": directory}, *lines, as_json=as_json)
    if found.is_decidable and not (takes_master or tries_again):
        context.exit(EXIT_FAILED)


def _copy(context: click.Context, source: Path, target: Path, *, as_json: bool) -> None:
    """Copy a log, with progress for people."""
    try:
        with click.progressbar(length=100, label="copies and compares", file=sys.stderr,
                               hidden=as_json or not sys.stderr.isatty()) as bar:
            found = copy_log(
                source, target, progress=lambda done, size: bar.update(done * 100 // max(size, 1) - bar.pos)
            )
    except (CopyRefused, OSError) as error:
        complain(str(error))
        context.exit(EXIT_FAILED)
    lines = [f"{found.files} files, {found.size} bytes: {target} has the log of {source}, and it is equal."]
    if found.set_aside:
        lines.append(f"The files of before are in {found.set_aside}; delete them when nobody needs them.")
    lines.append("Start the broker there: it makes marks, queues and the index again.")
    show_result(attrs.asdict(found), *lines, as_json=as_json)


def _run(
    timeout_s: float, target: Target, call: Callable[[Ask], Awaitable[_Result]],
) -> _Result:
    thread = ReactorThread("dledger-ha-resolve")
    try:
        asker = asker_of(thread.reactor, target, timeout_s)

        async def run() -> _Result:
            return await call(asker.ask)

        return thread.wait(lambda: Deferred.fromCoroutine(run()))
    finally:
        thread.stop(lambda: None)


def _bounds(begin: int, end: int) -> str:
    return "not known" if end < 0 else f"{begin} to {end}"


def _sound(found: StoppedReplication, problem: str) -> str:
    if found.differs_at < 0:
        return "not compared"
    return f"not sound: {problem}" if problem else "sound by its checksum"


def lines_of(found: StoppedReplication) -> list[str]:
    """Both sides, for people."""
    lines = [
        f"slave {found.address}, master {found.master or 'not known'}",
        f"slave's log    {_bounds(found.our_begin, found.our_end)}",
        f"master's log   {_bounds(found.master_begin, found.master_end)}",
    ]
    lines += [f"set aside      {directory}" for directory in found.set_aside]
    if not found.is_decidable:
        return [*lines, found.problem or "Replication goes on: there is nothing to decide."]
    at_least = "" if found.counted_to >= found.our_end else "at least "
    lines += [
        f"reason         {found.problem}",
        f"differs at     {found.differs_at if found.differs_at >= 0 else 'an unknown offset'}; the common "
        f"part ends at {found.common_end}",
        f"slave's record there    {_sound(found, found.our_problem)}",
        f"master's record there   {_sound(found, found.master_problem)}",
    ]
    if found.master_problem and not found.our_problem:
        lines.append("Only the slave's record is sound: repair the master (the slave has a sound copy), then "
                     "--try-again. --take-master is refused.")
    else:
        lines.append(f"--take-master: the slave sets aside {found.lost_bytes} bytes, {at_least}"
                     f"{found.lost_messages} messages, and copies the master's log.")
    return lines
