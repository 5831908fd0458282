# -*- test-case-name: tests.commands.test_backup -*-
"""A bar for commands that read or write many bytes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn


@contextlib.contextmanager
def bytes_shown(what: str, *, shows: bool | None = None) -> Iterator[Callable[[int, int], None]]:
    """
    A bar on standard error, for a function that is called with the bytes done and the bytes to do.

    @param shows: whether there is a bar; None: on a terminal.
    """
    console = Console(stderr=True)
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    is_shown = console.is_terminal if shows is None else shows
    with Progress(*columns, console=console, transient=True, disable=not is_shown) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
