# -*- test-case-name: tests.processes.test_load -*-
"""
A member of a PySyncObj group (C{pip install pysyncobj}), for comparison; it takes commands on standard input.

Tuned for latency as its users do: commands are sent at once instead of every 100 ms, with a journal file.
It acknowledges from the page cache and has no client protocol, so the load runs inside the leader.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import click

from benchmarks.load import ROOT, Meter


def member_command(address: str, addresses: list[str], journal: Path) -> list[str]:
    """
    The command line of one member.

    @raise ImportError: PySyncObj is not installed.
    """
    import pysyncobj  # noqa: F401

    others = ",".join(other for other in addresses if other != address)
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import benchmarks.pysyncobj_member as m; m.main()"
    return [sys.executable, "-c", code, address, others, str(journal)]


def _log_class() -> Any:
    from pysyncobj import SyncObj, replicated

    class Log(SyncObj):  # type: ignore[misc]
        """A replicated list that counts bodies and drops them: only the log below it is measured."""

        def __init__(self, address: str, others: list[str], conf: Any) -> None:
            super().__init__(address, others, conf)
            self.count = 0

        @replicated
        def append(self, body: bytes) -> int:
            """Count one more body."""
            self.count += 1
            return self.count

    return Log


def _load(log: Any, body: bytes, window: int, warm_up_s: float, seconds: float) -> Meter:
    """Keep C{window} commands outstanding. Callbacks run in PySyncObj's own thread."""
    begin_s = time.perf_counter() + warm_up_s
    meter = Meter(begin_s=begin_s, end_s=begin_s + seconds)
    done = threading.Semaphore(window)

    def finished(sent_s: float) -> Callable[[Any, Any], None]:
        def callback(_result: Any, error: Any) -> None:
            if error:
                meter.not_done(str(error))
            else:
                meter.acknowledged(sent_s, time.perf_counter())
            done.release()

        return callback

    while time.perf_counter() < meter.end_s:
        if done.acquire(timeout=0.1):
            log.append(body, callback=finished(time.perf_counter()))
    for _ in range(window):
        done.acquire(timeout=5.0)
    return meter


@click.command()
@click.argument("address")
@click.argument("others")
@click.argument("journal")
def main(address: str, others: str, journal: str) -> None:
    """Run one member until the input ends."""
    from pysyncobj import SyncObjConf

    conf = SyncObjConf(
        journalFile=journal, appendEntriesUseBatch=False, appendEntriesPeriod=0.01,
        dynamicMembershipChange=False, commandsQueueSize=1_000_000,
    )
    log = _log_class()(address, others.split(","), conf)
    sys.stdout.write("started\n")
    sys.stdout.flush()
    for line in sys.stdin:
        words = line.split()
        if words[0] == "leads":
            answer = "yes" if log._isLeader() else "no"
        elif words[0] == "load":
            meter = _load(log, b"x" * int(words[1]), int(words[2]), float(words[3]), float(words[4]))
            answer = json.dumps(attrs.asdict(meter.sample()))
        else:
            answer = "stopped"
        sys.stdout.write(answer + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
