# -*- test-case-name: tests.commands.test_contexts -*-
"""
C{dledger context}: list, show, choose, change and remove the contexts of L{dledger.cli.console.contexts}.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

from dledger.cli.console.command import replace_file, say, write_json
from dledger.cli.console.contexts import (
    FILES,
    KEYS,
    Contexts,
    check_name,
    checked,
    contexts_path,
    read_contexts,
    with_context,
    with_current,
    without_context,
)
from dledger.cli.console.local_paths import NAMED_PATH

_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_Command = TypeVar("_Command", bound=Callable[..., None])


@click.group("context")
def context_command() -> None:
    """
    Where groups and brokers are, under names in a file.

    The file is ~/.config/dledger/contexts.toml (XDG_CONFIG_HOME counts), or what DLEDGER_CONTEXTS names. Its
    current context stands in for options that are not given; --context NAME, or DLEDGER_CONTEXT, chooses
    another one. See docs/reference.md, "Contexts".
    """


def _path() -> Path:
    try:
        path = contexts_path()
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    if path is None:
        raise click.ClickException("DLEDGER_CONTEXTS is empty, so there are no contexts")
    return path


def _read(path: Path) -> Contexts:
    try:
        return read_contexts(path)
    except ValueError as error:
        raise click.ClickException(str(error)) from None


def _change(path: Path, change: Callable[[str], str]) -> None:
    """Write the file anew. @raise ClickException: it is not sound, or is written in another way."""
    _read(path)
    try:
        text = change(path.read_text("utf-8") if path.exists() else "")
    except ValueError as error:
        raise click.ClickException(f"{path}: {error}") from None
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, text)


@context_command.command("list")
@_json_option
def list_contexts(as_json: bool) -> None:
    """Show the names, the current one with a star, and where each is."""
    contexts = _read(_path())
    if as_json:
        write_json([{"name": name, "is_current": name == contexts.current, **values}
                    for name, values in contexts.by_name.items()])
        return
    for name, values in contexts.by_name.items():
        place = next((values[key] for key in ("peers", "admin", "namesrv", "broker") if key in values), "-")
        shown = place if isinstance(place, str) else " ".join(place)
        click.echo(f"{'*' if name == contexts.current else ' '} {name}\t{shown}")


@context_command.command("show")
@click.argument("name", default="")
@_json_option
def show_context(name: str, as_json: bool) -> None:
    """Show the context NAME, or the one that counts now."""
    path = _path()
    contexts = _read(path)
    name = name or os.environ.get("DLEDGER_CONTEXT") or contexts.current
    if not name:
        raise click.ClickException(f"{path}: no context is current: name one, or see dledger context use")
    try:
        values = contexts.get(name, path)
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        write_json({"name": name, "is_current": name == contexts.current, **values})
        return
    click.echo(f"name\t{name}")
    for key, value in values.items():
        click.echo(f"{key}\t{value if isinstance(value, str) else ' '.join(value)}")


@context_command.command("use")
@click.argument("name")
def use_context(name: str) -> None:
    """Make NAME the current context."""
    path = _path()
    contexts = _read(path)
    if name not in contexts.by_name:
        known = ", ".join(contexts.by_name) or "none"
        raise click.ClickException(f"{path}: no context {name!r}; there are {known}")
    _change(path, lambda text: with_current(text, name))
    say(f"{path}: {name} is the current context")


def _value_options(command: _Command) -> _Command:
    for key in reversed(KEYS):
        flag = "--" + key.replace("_", "-")
        helps = "a file" if key in FILES else "as the option of this name"
        kind = NAMED_PATH if key in FILES else None
        command = click.option(flag, key, multiple=key == "admin", type=kind, default=None, help=helps)(
            command)
    return command


@context_command.command("set")
@click.argument("name")
@_value_options
def set_context(name: str, **given: str | tuple[str, ...] | None) -> None:
    """
    Make the context NAME, or change what is given of it; an empty value takes one away.

    Secrets are not kept in the file, only the paths of the files that hold them.
    """
    path = _path()
    values = dict(_read(path).by_name.get(name, {}))
    is_new = not values
    try:
        check_name(name)
        for key, value in given.items():
            if value is None or value == ():
                continue
            if value in ("", ("",)):
                values.pop(key, None)
            else:
                if key in FILES and isinstance(value, str):
                    value = os.path.abspath(os.path.expanduser(value))
                values[key] = checked(key, value)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if not values:
        raise click.UsageError("a context needs a value: give --peers, --admin, --broker or --namesrv")
    _change(path, lambda text: with_context(text, name, values))
    say(f"{path}: {name} is " + (f"there; to make it the current one: dledger context use {name}"
                                 if is_new else "changed"))


@context_command.command("remove")
@click.argument("name")
def remove_context(name: str) -> None:
    """Take NAME out of the file. The files that it names stay."""
    path = _path()
    try:
        _read(path).get(name, path)
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    _change(path, lambda text: without_context(text, name))
    say(f"{path}: {name} is not a context any more")
