# -*- test-case-name: tests.commands.test_local_paths -*-
"""Files and directories of this machine as options and arguments: a URL is an error of the command line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO

import click

from dledger.values.local_paths import check_local_path


def require_local(name: str, value: str | os.PathLike[str]) -> None:
    """Check a value that may not be a URL, see L{check_local_path}. @raise click.UsageError: it is one."""
    try:
        check_local_path(name, os.fspath(value))
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _name_of(param: click.Parameter | None) -> str:
    """As people write it: C{--store}, or C{OUT} of an argument."""
    if isinstance(param, click.Option):
        return max(param.opts, key=len)
    return "PATH" if param is None else param.human_readable_name


class LocalPath(click.Path):
    """As C{click.Path}, and no URL."""

    def __init__(
        self, *, exists: bool = False, file_okay: bool = True, dir_okay: bool = True, readable: bool = True,
        path_type: type[Path] | None = None,
    ) -> None:
        """The parameters of C{click.Path}."""
        super().__init__(exists=exists, file_okay=file_okay, dir_okay=dir_okay, readable=readable,
                         path_type=path_type)

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        """@raise click.UsageError: it is a URL, or C{click.Path} refuses it."""
        require_local(_name_of(param), value)
        return super().convert(value, param, ctx)


#: The path of a file or directory that another part of the program opens, and speaks of.
NAMED_PATH = LocalPath(readable=False)


class LocalFile(click.File):
    """As C{click.File}, and no URL."""

    def convert(
        self, value: str | os.PathLike[str] | IO[bytes], param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> IO[bytes]:
        """@raise click.UsageError: it is a URL, or cannot be opened."""
        if isinstance(value, str):
            require_local(_name_of(param), value)
        return super().convert(value, param, ctx)
