# -*- test-case-name: tests.test_latency -*-
"""
The moments at which a process passes some points of an append.

    python -m benchmarks.trace_points FILE WORD ...

runs C{twistd WORD ...} with the points set, and writes them to FILE when it ends: JSON, a list of name and
nanoseconds of the system's monotonic clock, which all processes of a machine share.

The points are put around methods of the product's classes from here, so they cost nothing elsewhere.
"""

from __future__ import annotations

import functools
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from twisted.scripts.twistd import run

from dledger.storage.store.file_store import FileStore
from protocols.connection import AnsweringConnection, Connection
from protocols.outlet import Outlet

READ, STORE, STORED, SEND = "read", "store", "stored", "send"


class TracePoints:
    """
    @ivar moments: name and nanoseconds, in order.
    @cvar moments_max: how many are kept, the newest ones.
    """

    moments_max = 400_000

    def __init__(self) -> None:
        self.moments: list[tuple[str, int]] = []

    def set(self) -> None:
        """Set the points in the classes."""
        for kind in (Connection, AnsweringConnection):
            self.around(kind, "dataReceived", before=READ)
        # (Before: the other end may read the bytes before the call is back.)
        self.around(Outlet, "send", before=SEND)
        self.around(FileStore, "append_bodies", before=STORE, after=STORED)
        self.around(FileStore, "append_entries", before=STORE, after=STORED)

    def note(self, name: str) -> None:
        """The process passes a point now."""
        self.moments.append((name, time.perf_counter_ns()))
        if len(self.moments) > self.moments_max:
            del self.moments[: self.moments_max // 2]

    def around(self, owner: type, name: str, *, before: str = "", after: str = "") -> None:
        """
        Set points around a method.

        @param before, after: their names; empty: none is set there.
        """
        method: Callable[..., Any] = getattr(owner, name)

        @functools.wraps(method)
        def noted(*args: Any, **options: Any) -> Any:
            if before:
                self.note(before)
            result = method(*args, **options)
            if after:
                self.note(after)
            return result

        setattr(owner, name, noted)


def main() -> None:
    """Run the service."""
    from twisted.internet import reactor as _reactor

    reactor: Any = _reactor
    path, *words = sys.argv[1:]
    points = TracePoints()
    points.set()
    # (twistd ends by the signal that it got, without Python's own end.)
    reactor.addSystemEventTrigger(
        "after", "shutdown", lambda: Path(path).write_text(json.dumps(points.moments))
    )
    sys.argv = ["twistd", *words]
    run()


if __name__ == "__main__":
    main()
