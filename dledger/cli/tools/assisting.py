# -*- test-case-name: tests.commands.test_assisting -*-
"""
C{dledger help} and C{dledger completion}: what helps at the prompt.
"""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from dledger.cli.console.command import loaded, replace_file, say

_VARIABLE = "_DLEDGER_COMPLETE"
_NAME = "dledger"
#: Shell to the file that it reads for completions of this name: the variable that names the folder, the
#: folder below the home directory without it, and the rest.
_FILES = {
    "bash": ("XDG_DATA_HOME", ".local/share", "bash-completion/completions/dledger"),
    "fish": ("XDG_CONFIG_HOME", ".config", "fish/completions/dledger.fish"),
    "zsh": ("ZDOTDIR", "", ".zfunc/_dledger"),
}


@click.command("help")
@click.argument("names", nargs=-1, metavar="[COMMAND]...")
@click.pass_context
def help_command(context: click.Context, names: tuple[str, ...]) -> None:
    """Show what a command does, and its options."""
    assert context.parent is not None
    found, parent = context.parent.command, context.parent
    for name in names:
        inner = found.get_command(parent, name) if isinstance(found, click.Group) else None
        if inner is None:
            raise click.UsageError(f"{parent.command_path} has no command {name!r}: dledger help lists them")
        found = loaded(inner)
        parent = click.Context(found, info_name=name, parent=parent)
    click.echo(found.get_help(parent))


@click.command()
@click.argument("shell", type=click.Choice(sorted(_FILES)))
@click.option("--install", is_flag=True, help="Write it to the file that the shell reads, and say which.")
def completion(shell: str, install: bool) -> None:
    """Print what lets a shell complete commands, options and their values."""
    kind = get_completion_class(shell)
    assert kind is not None
    text = kind(_group(), {}, _NAME, _VARIABLE).source()
    if not install:
        click.echo(text)
        return
    variable, folder, rest = _FILES[shell]
    path = Path(os.environ.get(variable) or Path.home() / folder) / rest
    try:
        if path.exists() and _VARIABLE not in path.read_text("utf-8", "replace"):
            raise click.ClickException(f"{path} is not of this command: move it away, or leave --install out")
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, text + "\n")
    except OSError as error:
        raise click.ClickException(f"{path}: {error.strerror}") from None
    more = "; needs fpath=(~/.zfunc $fpath) before compinit in ~/.zshrc" if shell == "zsh" else ""
    say(f"{path}: written, for new shells{more}")


def _group() -> click.Command:
    context = click.get_current_context()
    return context.find_root().command
