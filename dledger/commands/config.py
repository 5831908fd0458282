# -*- test-case-name: tests.commands.test_config -*-
"""
C{dledger config}: the options of a member, a broker or a name server, before it is started.

The words are those of C{twistd}, and the checks those of the start: nothing is checked in a second place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import click
from twisted.python.usage import UsageError

from dledger.base.option_values import DEFAULT, Setting
from dledger.commands.common import EXIT_USAGE, say, write_json

_KINDS = ("member", "broker", "namesrv")
_Command = TypeVar("_Command", bound=Callable[..., None])


def _of_a_service(command: _Command) -> _Command:
    for decorate in (
        click.argument("options", nargs=-1, type=click.UNPROCESSED),
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
        click.option("--of", "kind", type=click.Choice(_KINDS), default="member", show_default=True,
                     help="Whose options these are."),
    ):
        command = decorate(command)
    return command


def _parsed(kind: str, options: tuple[str, ...]) -> tuple[tuple[Setting, ...], list[str]]:
    """The options in force, or what is wrong."""
    from dledger.twistd import broker, member, namesrv  # other commands start without them

    makers = {"member": member.Options, "broker": broker.Options, "namesrv": namesrv.Options}
    words = list(options)
    if words and not words[0].startswith("-"):
        words.insert(0, "--config")
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
        say(f"dledger: {finding}")
    context.exit(EXIT_USAGE)


_WORDS = {"ignore_unknown_options": True}


@click.group("config")
def config() -> None:
    """
    Check and show options of a server, before it is started.

    OPTIONS are a configuration file, or the options of twistd dledger (with --of broker: of twistd
    dledger-broker, with --of namesrv: of twistd dledger-namesrv), or a file and then options. A running
    server shows its options on its administration, at /config.
    """


@config.command("check", context_settings=_WORDS)
@_of_a_service
@click.pass_context
def check_options(context: click.Context, kind: str, options: tuple[str, ...], as_json: bool) -> None:
    """
    Say everything that is wrong with OPTIONS, one line each.

    Exit status 64 if anything is: the server would not start.
    """
    settings, findings = _parsed(kind, options)
    if findings:
        _refuse(context, findings, as_json=as_json)
    if as_json:
        write_json({"is_right": True, "findings": []})
    else:
        given = sum(setting.origin != DEFAULT for setting in settings)
        click.echo(f"nothing is wrong; {given} of {len(settings)} options are given")


@config.command("show", context_settings=_WORDS)
@click.option("--given", "only_given", is_flag=True, help="Leave out options that have their defaults.")
@_of_a_service
@click.pass_context
def show_options(
    context: click.Context, kind: str, options: tuple[str, ...], as_json: bool, only_given: bool
) -> None:
    """Show every option as the server would have it: name, value, and where it was given."""
    settings, findings = _parsed(kind, options)
    if findings:
        _refuse(context, findings, as_json=as_json)
    shown = [one for one in settings if not only_given or one.origin != DEFAULT]
    if as_json:
        write_json({one.name: {"value": one.value, "origin": one.origin} for one in shown})
        return
    for one in shown:
        click.echo(f"{one.name}\t{one.value}\t{one.origin}")
