# -*- test-case-name: tests.commands.test_signals -*-
"""Entry point of the command C{dledger}: it can be interrupted while its modules are still loaded, too."""

from __future__ import annotations

import gc
import sys

from dledger.cli.console.signals import interrupted_by_sigterm

_INTERRUPTED = 130  # as L{dledger.cli.console.command.EXIT_INTERRUPTED}, which is not loaded yet


def main() -> None:
    """
    Run the command that C{sys.argv} names. Its modules stay to its end, so the garbage collector looks at
    them seldom.
    """
    gc.set_threshold(50_000, 10, 10)
    try:
        with interrupted_by_sigterm():
            from dledger.cli.main import main as run
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    run()
