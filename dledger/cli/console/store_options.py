# -*- test-case-name: tests.commands.test_archive -*-
"""The options of commands that read or write an object store."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import click

from dledger.cli.console.numbers import RealRange
from dledger.values.exports import STORE_OPTION_HELP, store_option

_Command = TypeVar("_Command", bound=Callable[..., None])


def of_a_store(command: _Command) -> _Command:
    """The options of an object store."""
    for option in reversed((
        click.option("-o", "--store-option", "options", multiple=True, metavar="NAME=VALUE",
                     callback=_options, help=STORE_OPTION_HELP),
        click.option("--deadline", type=RealRange(min=0.1), default=120.0, show_default=True,
                     metavar="SECONDS", help="Time in which each call of a store has to return."),
    )):
        command = option(command)
    return command


def _options(
    _context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, object]:
    try:
        return dict(map(store_option, values))
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
