# -*- test-case-name: tests.commands.test_group -*-
"""
C{dledger group}: the directory of a member that does not run. It begins a new group, joins one, or goes on
without a majority that is lost for good.
"""

from __future__ import annotations

import attrs
import click

from dledger.base.disk.disk import OsDisk, ReadOnlyDisk
from dledger.cli.console.command import EXIT_FAILED, show_result, write_json
from dledger.cli.console.failures import complain
from dledger.cli.console.member_options import config_of_member, new_group_id, of_a_member
from dledger.storage.backups.group_setup import (
    MemberSeen,
    check_group_id,
    force_new_group,
    prepare_member,
    seen_member,
    survivor,
)
from dledger.values.ledger.config import DLedgerConfig
from dledger.values.ledger.group_name import GroupName


def _id_option(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    try:
        return check_group_id(value) if value else ""
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.group("group")
def group() -> None:
    """
    Begin a group, join one, or go on without a lost majority.

    Each command works on the directory of one member that does not run. No command is needed for a first
    start: the members of a new group elect a leader when all of them are up, and a member with an empty
    directory joins a group that has a leader.
    """


@group.command()
@of_a_member
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def show(
    context: click.Context, store: str, node_id: str, members: str, settings: tuple[str, ...], as_json: bool
) -> None:
    """Show what a member's directory records about its group. Nothing is changed."""
    seen = seen_member(config_of_member(context, store, node_id, members, settings), ReadOnlyDisk())
    if as_json:
        write_json(attrs.asdict(seen))
    else:
        click.echo("\n".join(_lines(seen)))


@group.command()
@of_a_member
@click.option("--id", "group_id", default="", callback=_id_option, metavar="ID",
              help="Id of the group; without it one is proposed.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def create(
    context: click.Context, store: str, node_id: str, members: str, settings: tuple[str, ...], group_id: str,
    as_json: bool,
) -> None:
    """
    Make a member's directory as one of a new group.

    Its vote counts at once, so a majority of members that were made like this elects a leader without
    waiting for the others. Never for a member whose disk was lost: that one joins.
    """
    config = config_of_member(context, store, node_id, members, settings, bootstrap=True)
    name = GroupName(group_id, 0, True) if group_id else GroupName(new_group_id(), 0)
    prepare_member(config, OsDisk(), name)
    _notify_prepared(config, name, "of a new group of", as_json=as_json)


@group.command()
@of_a_member
@click.option("--id", "group_id", default="", callback=_id_option, metavar="ID",
              help="Id of the group, as dledger group show prints it: the member then joins no other one.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def join(
    context: click.Context, store: str, node_id: str, members: str, settings: tuple[str, ...], group_id: str,
    as_json: bool,
) -> None:
    """
    Make a member's directory as one that joins a group.

    Its vote counts only with those of all members, until it holds all that a leader has. A start with an
    empty directory does the same; this command also reports the id of the group.
    """
    config = config_of_member(context, store, node_id, members, settings)
    name = GroupName(group_id, 0, True) if group_id else GroupName()
    prepare_member(config, OsDisk(), name)
    _notify_prepared(config, name, "joins the group of", as_json=as_json)


def _notify_prepared(config: DLedgerConfig, name: GroupName, what: str, *, as_json: bool) -> None:
    members = sorted(config.peers)
    document = {
        "path": config.self_path, "member_id": config.self_id, "group": config.group,
        "group_id": name.id or None, "members": members,
    }
    said = f"{config.self_path}: member {config.self_id} {what} {', '.join(members)}"
    show_result(document, said, as_json=as_json)


@group.command("force-new")
@of_a_member
@click.option("--yes", "is_sure", is_flag=True, help="Do it. Without it, the command only says what it does.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def force_new(
    context: click.Context, store: str, node_id: str, members: str, settings: tuple[str, ...], is_sure: bool,
    as_json: bool,
) -> None:
    """
    Make a member's ledger that of a new group, when a majority of the old one is lost for good.

    Of several survivors take the one with the highest end. What only lost members held is gone. Members of
    the old group can never mix with the new one: its id is another. The other members of --peers start with
    empty directories.
    """
    config = config_of_member(context, store, node_id, members, settings)
    seen = survivor(config, ReadOnlyDisk())
    if not as_json:
        click.echo("\n".join(_lines(seen)))
        click.echo(f"new members    {', '.join(sorted(config.peers))}")
        click.echo(
            "Given up: entries that only other members hold, also those that they committed after the end of "
            "this ledger. Kept: every entry of this ledger, also those that were never acknowledged."
        )
    reported: dict[str, object] = {
        "is_done": is_sure, "survivor": attrs.asdict(seen), "members": sorted(config.peers),
    }
    if not is_sure:
        if as_json:
            write_json(reported)
        complain("nothing has changed; --yes does it")
        context.exit(EXIT_FAILED)
    name = GroupName(new_group_id(), 0, True)
    end_index = force_new_group(config, OsDisk(), name)
    show_result(
        {**reported, "group_id": name.id, "end_index": end_index},
        f"new group      {name.id}; its ledger ends at {end_index}",
        "Start this member with the new --peers.", as_json=as_json,
    )


def _lines(seen: MemberSeen) -> list[str]:
    """For people."""
    lines = [f"directory      {seen.path}"]
    identity = seen.identity
    if identity is None:
        lines.append("recorded       nothing: " + (
            "a ledger of Java" if seen.has_ledger else "no member has run here"))
    else:
        state = {0: "none yet", 1: "proposed"}[int(bool(identity.group_id))]
        state = "known" if identity.is_group_known else state
        lines += [
            f"member         {identity.member_id} of group {identity.group}",
            f"group id       {identity.group_id or '-'} ({state})",
            f"members        {'named by its log; at first ' if identity.is_listed else ''}"
            f"{identity.members.replace(';', ', ')}",
        ]
        if identity.incarnation >= 0:
            lines.append(f"incarnation    {identity.incarnation:016x}, started {identity.starts} times")
        if identity.unsure:
            lines.append("unsure         its vote counts only with those of all members")
    ends = f"ends at {seen.end_index}, committed up to {seen.committed_index}, by its mark"
    lines.append(f"ledger         {ends}")
    if seen.repair_end_index >= 0:
        lines.append(f"repairing      entries up to {seen.repair_end_index} were lost to damage")
    return lines


