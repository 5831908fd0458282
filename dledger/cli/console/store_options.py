# -*- test-case-name: tests.commands.test_archive -*-
"""The options of commands that read or write an object store."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TypeVar

import click

from dledger.cli.console.numbers import RealRange

_Command = TypeVar("_Command", bound=Callable[..., None])


def of_a_store(command: _Command) -> _Command:
    """The options of an object store."""
    for option in reversed((
        click.option("-o", "--option", "options", multiple=True, metavar="NAME=VALUE", callback=_options,
                     help="An option of fsspec for this kind of store, such as "
                          "endpoint_url=http://host:9000; may be repeated. No secrets here: other users of "
                          "this machine can see them."),
        click.option("--deadline", type=RealRange(min=0.1), default=120.0, show_default=True,
                     metavar="SECONDS", help="Time in which each call of a store has to return."),
    )):
        command = option(command)
    return command


def _options(
    _context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, object]:
    """Values are JSON where they can be: C{anon=true}."""
    found: dict[str, object] = {}
    for text in values:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{text!r}: write name=value")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found
