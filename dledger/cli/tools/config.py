# -*- test-case-name: tests.commands.test_config -*-
"""
C{dledger config}: the options of a member, a broker or a name server, before it is started.

The words are those of C{twistd}, and the checks those of the start: nothing is checked in a second place.
"""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Callable, Mapping
from typing import TypeVar

import click
from twisted.python.usage import UsageError

from dledger.cli.console.command import EXIT_USAGE, say, write_json
from dledger.cli.console.failures import complain
from dledger.values.addresses import parse_address
from dledger.values.option_values import DEFAULT, Setting

_KINDS = ("member", "broker", "namesrv")
_Command = TypeVar("_Command", bound=Callable[..., None])


def _of_a_service(command: _Command) -> _Command:
    for decorate in (
        click.argument("options", nargs=-1, type=click.UNPROCESSED),
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
        click.option("--of", "kind", type=click.Choice(_KINDS),
                     help="Whose options these are. [default: of every service that has a table in the file; "
                     "of a file without such tables, member]"),
    ):
        command = decorate(command)
    return command


def _parsed(kind: str | None, options: tuple[str, ...]) -> tuple[dict[str, tuple[Setting, ...]], list[str]]:
    """
    The options in force of each service, or what is wrong. A single service that was named, or is meant for
    want of tables, has the name C{""}.
    """
    from dledger.daemons.settings.options import tables_in  # other commands start without twistd

    words = list(options)
    if words and not words[0].startswith("-"):
        words.insert(0, "--config")
    try:
        tables = tables_in(words[1]) if kind is None and words[:1] in (["--config"], ["-c"]) else ()
    except UsageError as error:
        return {}, str(error).splitlines()
    if not tables:
        settings, findings = _of_one(kind or "member", words)
        return {"": settings}, findings
    if len(tables) > 1 and len(words) > 2:
        return {}, [f"{words[2]}: whose option is this? The file is for {', '.join(tables)}: say --of"]
    found = {table: _of_one(table, words) for table in tables}
    findings = [f"[{table}] {finding}" for table, (_, wrong) in found.items() for finding in wrong]
    return {table: settings for table, (settings, _) in found.items()}, findings


def _of_one(kind: str, words: list[str]) -> tuple[tuple[Setting, ...], list[str]]:
    from dledger.daemons.ledger import member
    from dledger.daemons.rocketmq import broker, namesrv

    makers = {"member": member.Options, "broker": broker.Options, "namesrv": namesrv.Options}
    parsed = makers[kind]()
    try:
        parsed.parseOptions(words)
    except UsageError as error:
        return (), str(error).splitlines()
    return parsed.in_force, []


def _refuse(context: click.Context, findings: list[str], *, as_json: bool) -> None:
    if as_json:
        write_json({"is_right": False, "findings": findings})
    for finding in findings:
        complain(finding)
    context.exit(EXIT_USAGE)


def _no_room(values: Mapping[str, object]) -> str:
    """Why no directory can be made where a member's files are to be; empty if one can."""
    place = values.get("store_base_dir")
    if not isinstance(place, str):
        return ""
    there = os.path.abspath(place)
    while not os.path.exists(there):
        there = os.path.dirname(there)
    try:
        os.rmdir(tempfile.mkdtemp(prefix=".dledger-check-", dir=there))
    except OSError as error:
        return f"store_base_dir={place!r}: nothing can be made in {there}: {error.strerror}"
    return ""


def _unresolved(values: Mapping[str, object]) -> list[str]:
    """The hosts in a list of members that have no address here."""
    peers, found = values.get("peers"), []
    for member_id, address in peers.items() if isinstance(peers, Mapping) else ():
        host = parse_address(str(address)).host
        try:
            socket.getaddrinfo(host, None)
        except OSError as error:
            found.append(f"peers: {member_id}: the host {host!r} has no address here: {error.strerror}")
    return found


_WORDS = {"ignore_unknown_options": True}


@click.group("config")
def config() -> None:
    """
    Check and show options of a server, before it is started.

    OPTIONS are a configuration file, or the options of twistd dledger (with --of broker: of twistd
    dledger-broker, with --of namesrv: of twistd dledger-namesrv), or a file and then options. Of a file with
    tables [member], [broker] and [namesrv], all are looked at, or with --of one. A running server shows its
    options on its administration, at /config.
    """


@config.command("check", context_settings=_WORDS)
@_of_a_service
@click.pass_context
def check_options(
    context: click.Context, kind: str | None, options: tuple[str, ...], as_json: bool
) -> None:
    """
    Say everything that is wrong with OPTIONS, one line each.

    Exit status 64 if anything is: the server would not start. Also tried: whether this user can write to the
    directory of a member's files, and, for warnings, whether the hosts of its members have an address here.
    """
    services, findings = _parsed(kind, options)
    values = [(name, {one.name: one.value for one in settings}) for name, settings in services.items()]
    if not findings:
        findings = [f"{name and f'[{name}] '}{wrong}" for name, found in values if (wrong := _no_room(found))]
    if findings:
        _refuse(context, findings, as_json=as_json)
    warnings = [f"{name and f'[{name}] '}{one}" for name, found in values for one in _unresolved(found)]
    if as_json:
        write_json({"is_right": True, "findings": [], "warnings": warnings})
        return
    for warning in warnings:
        say(f"warning: {warning}")
    for name, settings in services.items():
        given = sum(setting.origin != DEFAULT for setting in settings)
        click.echo(f"{name and f'[{name}] '}nothing is wrong; {given} of {len(settings)} options are given")


@config.command("show", context_settings=_WORDS)
@click.option("--given", "only_given", is_flag=True, help="Leave out options that have their defaults.")
@_of_a_service
@click.pass_context
def show_options(
    context: click.Context, kind: str | None, options: tuple[str, ...], as_json: bool, only_given: bool
) -> None:
    """
    Show every option as the server would have it: name, value, and where it was given.

    Of a file with tables, the name begins with that of the table, as in member.group; JSON has an object for
    each table.
    """
    services, findings = _parsed(kind, options)
    if findings:
        _refuse(context, findings, as_json=as_json)
    shown = {
        name: [one for one in settings if not only_given or one.origin != DEFAULT]
        for name, settings in services.items()
    }
    if as_json:
        found = {
            name: {one.name: {"value": one.value, "origin": one.origin} for one in settings}
            for name, settings in shown.items()
        }
        write_json(found.get("", found))
        return
    for name, settings in shown.items():
        for one in settings:
            click.echo(f"{name and f'{name}.'}{one.name}\t{_shown(one.value)}\t{one.origin}")


def _shown(value: object) -> object:
    """As a file has it."""
    return str(value).lower() if isinstance(value, bool) else value
