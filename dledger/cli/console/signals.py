# -*- test-case-name: tests.commands.test_signals -*-
"""
Ctrl-C and SIGTERM, as supervisors and containers send it: commands end in order.

Rule: a signal that the caller ignores stays ignored, as C{nohup} and shells in the background want it.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator, Sequence
from types import FrameType


@contextlib.contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """SIGTERM raises C{KeyboardInterrupt}, as Ctrl-C does: locks are released, and counts are said."""

    def asked(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with _handled((signal.SIGTERM,), asked):
        yield


@contextlib.contextmanager
def stopped_by(signals: Sequence[signal.Signals], stop: threading.Event) -> Iterator[None]:
    """One of C{signals} sets C{stop}; if it is set already, it raises C{KeyboardInterrupt}."""

    def asked(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    with _handled(signals, asked):
        yield


@contextlib.contextmanager
def _handled(
    signals: Sequence[signal.Signals], asked: signal._HANDLER,
) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard = [number for number in signals if signal.getsignal(number) != signal.SIG_IGN]
    before = [(number, signal.signal(number, asked)) for number in heard]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
