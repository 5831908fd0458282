# -*- test-case-name: tests.commands.test_group -*-
"""The options of commands that work on the directory of a member that does not run."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeVar

import click

from dledger.cli.console.local_paths import NAMED_PATH
from dledger.values.ledger.config import DLedgerConfig, from_mapping

_Command = TypeVar("_Command", bound=Callable[..., None])


def of_a_member(command: _Command) -> _Command:
    """The options that name a member and its directory, as of C{twistd dledger}."""
    for option in reversed((
        click.option("--store", default="./dledger-data", type=NAMED_PATH, metavar="DIR", show_default=True,
                     help="Directory; files are in its dledger-<node-id>."),
        click.option("--node-id", required=True, metavar="ID", help="Id of this member, one of --peers."),
        click.option("--peers", "members", required=True, metavar="ID-HOST:PORT;...",
                     help="All members, as of twistd dledger."),
        click.option("--set", "settings", multiple=True, metavar="NAME=VALUE",
                     help="Another option of the member, such as the sizes of its files; may be repeated."),
    )):
        command = option(command)
    return command


def config_of_member(
    context: click.Context, store: str, node_id: str, members: str, settings: tuple[str, ...], **more: object
) -> DLedgerConfig:
    """What these options say. @raise UsageError: they are malformed."""
    values: dict[str, object] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals:
            raise click.UsageError(f"--set {setting}: write name=value")
        values[name] = value
    try:
        return from_mapping({
            **values, "store_base_dir": store, "self_id": node_id, "peers": members,
            "group": context.obj.group, **more,
        })
    except (ValueError, TypeError) as error:
        raise click.UsageError(str(error)) from None


def new_group_id() -> str:
    """A random one."""
    return f"{random.SystemRandom().getrandbits(128):032x}"
