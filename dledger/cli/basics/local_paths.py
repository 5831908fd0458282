# -*- test-case-name: tests.commands.test_local_paths -*-
"""Files and directories of this machine as options and arguments: a URL is an error of the command line."""

from __future__ import annotations

import os
from typing import IO, Any

import click

from dledger.values.local_paths import check_local_path


def _name_of(param: click.Parameter | None) -> str:
    """As people write it: C{--store}, or C{BACKUP} of an argument."""
    if isinstance(param, click.Option):
        return max(param.opts, key=len)
    return "PATH" if param is None else param.human_readable_name


class LocalPath(click.Path):
    """As C{click.Path}, and no URL."""

    def __init__(self, *, hint: str = "", **options: Any) -> None:
        """
        @param hint: see L{check_local_path}.
        @param options: of C{click.Path}.
        """
        super().__init__(**options)
        self._hint = hint

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        """@raise click.UsageError: it is a URL, or C{click.Path} refuses it."""
        try:
            check_local_path(_name_of(param), os.fspath(value), self._hint)
        except ValueError as error:
            raise click.UsageError(str(error), ctx) from None
        return super().convert(value, param, ctx)


#: The path of a file or directory that another part of the program opens, and speaks of.
NAMED_PATH = LocalPath(readable=False)


class LocalFile(click.File):
    """As C{click.File}, and no URL."""

    def convert(
        self, value: str | os.PathLike[str] | IO[Any], param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> IO[Any]:
        """@raise click.UsageError: it is a URL, or cannot be opened."""
        if isinstance(value, str):
            try:
                check_local_path(_name_of(param), value)
            except ValueError as error:
                raise click.UsageError(str(error), ctx) from None
        return super().convert(value, param, ctx)
