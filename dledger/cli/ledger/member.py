# -*- test-case-name: tests.commands.test_member -*-
"""
C{dledger member}: the members of a running group, and their changes, see docs/membership.md.

Any member may be named with C{--peers}; the leader makes the change. A change that is in force already is
no error, so a command whose outcome is unknown, which ends with status 2, is given again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import click

from dledger.cli.console.command import say, show_result, write_json
from dledger.cli.console.failures import remark
from dledger.cli.console.numbers import RealRange, WholeRange
from dledger.client.values import MemberInfo
from dledger.values.errors import DLedgerError
from dledger.values.ledger.membership import ADD, MOVE, PROMOTE, REMOVE
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.memberships import decode_reported
from protocols.wire.ledger.messages import MembershipResponse

if TYPE_CHECKING:
    import dledger
    from dledger.cli.console.target import Target

#: Seconds between two looks at a member that catches up.
_LOOK_S = 1.0

_Command = TypeVar("_Command", bound=Callable[..., None])


class _How(NamedTuple):
    """The options of every change."""

    is_dry: bool
    is_forced: bool
    as_json: bool


def _changing(command: _Command) -> _Command:
    for option in reversed((
        click.option("--dry-run", "is_dry", is_flag=True, help="Only ask the leader whether, and what."),
        click.option("--force", "is_forced", is_flag=True,
                     help="Also if no quorum of the new members is known to be alive and caught up: then the "
                     "group takes no appends until enough of them are. Also if a single voter is left."),
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
    )):
        command = option(command)
    return command


_wait_option = click.option(
    "--wait", "wait_s", type=RealRange(min=0), default=300.0, show_default=True, metavar="SECONDS",
    help="How long to wait until the new member has caught up.",
)


@click.group("member")
def member() -> None:
    """
    Show and change the members of a running group.

    A new member starts with an empty directory, with --peers that name it and the present members, and with
    --set join=true. Then: add it, promote it, and, if it takes another one's place, remove that one.
    "replace" does all three. Groups with Java members cannot be changed.
    """


@member.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def list_members(context: click.Context, as_json: bool) -> None:
    """Show the members as the leader knows them: voters count, learners copy the log."""
    with context.obj.open() as log:
        rows = _members(log)
    if as_json:
        write_json(rows)
        return
    for row in rows:
        lag = f"lacks {row['lag']} entries" if isinstance(row["lag"], int) else str(row["lag"])
        click.echo(f"{row['member_id']}\t{row['kind']}\t{row['role'] or '-'}\t{lag}\t{row['address']}")


def _members(log: dledger.Log) -> list[dict[str, object]]:
    leader = log.metadata()
    infos = {info.member_id: info for info in log.status()}
    reported = decode_reported(leader.configuration)
    if reported:
        kinds = {one: (kind, address) for kind, members in zip(
            ("voter", "learner"), reported[-1].members, strict=True) for one, address in members.items()}
    else:
        kinds = {one: ("voter", address) for one, address in leader.peers.items()}
    return [
        {"member_id": one, "kind": kind, "role": infos[one].role if one in infos else "",
         "lag": _lag(infos.get(one), leader), "address": address}
        for one, (kind, address) in sorted(kinds.items())
    ]


def _lag(info: MemberInfo | None, leader: MemberInfo) -> int | str:
    if info is None or info.problem:
        return "no answer" if info is None else info.problem
    if info.end_index < -1 or leader.end_index < -1:
        return "its end is not known: a Java member does not report it"
    return max(0, leader.end_index - info.end_index)


@member.command()
@click.argument("member_id")
@click.argument("address")
@_changing
@click.pass_context
def add(
    context: click.Context, member_id: str, address: str, is_dry: bool, is_forced: bool, as_json: bool
) -> None:
    """Add MEMBER_ID at ADDRESS (host:port) as a learner: it copies the log, and does not count."""
    with context.obj.open() as log:
        _notify(_change(log, ADD, member_id, address, _How(is_dry, is_forced, as_json)), as_json)


@member.command()
@click.argument("member_id")
@_wait_option
@_changing
@click.pass_context
def promote(
    context: click.Context, member_id: str, wait_s: float, is_dry: bool, is_forced: bool, as_json: bool
) -> None:
    """Make the learner MEMBER_ID a voter, once it has nearly all entries."""
    with context.obj.open() as log:
        _notify(_promote(log, member_id, wait_s, _How(is_dry, is_forced, as_json)), as_json)


@member.command()
@click.argument("member_id")
@_changing
@click.pass_context
def remove(
    context: click.Context, member_id: str, is_dry: bool, is_forced: bool, as_json: bool
) -> None:
    """Remove MEMBER_ID. A leader hands over first. Stop its process when this command is done."""
    with context.obj.open() as log:
        _notify(_change(log, REMOVE, member_id, "", _How(is_dry, is_forced, as_json)), as_json)


@member.command()
@click.argument("member_id")
@click.argument("address")
@_changing
@click.pass_context
def move(
    context: click.Context, member_id: str, address: str, is_dry: bool, is_forced: bool, as_json: bool
) -> None:
    """
    Inform the group that MEMBER_ID is at ADDRESS from now on.

    Restart the member with that address in its own --peers directly afterwards: until then it is not reached.
    """
    with context.obj.open() as log:
        _notify(_change(log, MOVE, member_id, address, _How(is_dry, is_forced, as_json)), as_json)


@member.command()
@click.argument("old_id")
@click.argument("new_id")
@click.argument("address")
@_wait_option
@_changing
@click.pass_context
def replace(
    context: click.Context, old_id: str, new_id: str, address: str, wait_s: float, is_dry: bool,
    is_forced: bool, as_json: bool,
) -> None:
    """Add NEW_ID at ADDRESS, wait until it has caught up, promote it, and remove OLD_ID."""
    how = _How(is_dry, is_forced, as_json)
    with context.obj.open() as log:
        answer = _change(log, ADD, new_id, address, how._replace(is_dry=True))
        others = {**answer.voters, **answer.learners}.keys() - {new_id}
        if old_id not in others and new_id not in answer.voters:
            raise click.UsageError(f"{old_id} is not a member, so {new_id} would take no place of another; "
                                   f"members are {', '.join(sorted(others))}")
        if not is_dry:
            if new_id not in answer.voters:  # else this command is repeated
                _change(log, ADD, new_id, address, how)
                say(f"{new_id} is a learner")
                _promote(log, new_id, wait_s, how)
            say(f"{new_id} is a voter")
            answer = _change(log, REMOVE, old_id, "", how)
        _notify(answer, as_json)


def _change(log: dledger.Log, change: str, member_id: str, address: str, how: _How) -> MembershipResponse:
    if how.is_forced and not how.is_dry:
        _warn(log, change, member_id, address)
    return log.change_members(change, member_id, address, is_dry=how.is_dry, is_forced=how.is_forced)


def _warn(log: dledger.Log, change: str, member_id: str, address: str) -> None:
    """Say why the leader would not make a change that is forced."""
    try:
        log.change_members(change, member_id, address, is_dry=True, is_forced=False)
    except DLedgerError as error:
        if error.code in (ResponseCode.FALL_BEHIND_TOO_MUCH, ResponseCode.UNEXPECTED_ARGUMENT):
            say(f"warning: forced although: {error.facts.get('reason', '')}")
            if error.code is ResponseCode.FALL_BEHIND_TOO_MUCH:
                say("warning: after the change the group takes no appends, and no further change, until a "
                    "majority of the new voters is alive and caught up")


def _promote(log: dledger.Log, member_id: str, wait_s: float, how: _How) -> MembershipResponse:
    until_s = time.monotonic() + wait_s
    reported = ""
    while True:
        try:
            return _change(log, PROMOTE, member_id, "", how)
        except DLedgerError as error:
            reason = str(error.facts.get("reason", ""))
            left_s = until_s - time.monotonic()
            if error.code is not ResponseCode.FALL_BEHIND_TOO_MUCH or how.is_dry or left_s <= 0:
                raise
            if reason != reported:
                say(f"waiting: {reason}")
                reported = reason
            time.sleep(min(_LOOK_S, left_s))


def _notify(answer: MembershipResponse, as_json: bool) -> None:
    kinds = {"voters": dict(answer.voters), "learners": dict(answer.learners)}
    lines = [
        f"{kind:<9} " + ", ".join(f"{one} {there}" for one, there in sorted(members.items()))
        for kind, members in kinds.items() if members
    ]
    document = {"reason": answer.reason, "index": answer.index, **kinds}
    show_result(document, answer.reason, *lines, as_json=as_json)


@click.command()
@click.argument("to")
@click.option("--term", type=WholeRange(), default=None, help="The leader's term; needed for a Java leader.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def transfer(target: Target, to: str, term: int | None, as_json: bool) -> None:
    """Hand leadership over to member TO."""
    with target.open() as log:
        try:
            new_term = log.transfer(to, term)
        except DLedgerError as error:
            if error.code in (ResponseCode.NETWORK_ERROR, ResponseCode.TIMEOUT):
                remark("it is unknown whether leadership has moved; see dledger status")
            raise
    said = f"{to} leads" + (f", term {new_term}" if new_term >= 0 else "")
    show_result({"leader_id": to, "term": new_term if new_term >= 0 else None}, said, as_json=as_json)
