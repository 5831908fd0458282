# -*- test-case-name: tests.hostile -*-
"""
A client with one append at a time, in a process of its own: the attackers of a test do not slow it down.

Usage: C{python -m tests.hostile.good_client PEERS}. It works until its standard input ends, then writes one
line of JSON: seconds, latencies, times of acknowledgements, unknown, failed, acknowledged bodies by index.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable

import dledger
from dledger.client.errors import AppendFailed, UnknownOutcome


def work(peers: str, over: threading.Event) -> dict[str, object]:
    """Append until C{over} is set. @return: the outcomes."""
    latencies: list[float] = []
    ends: list[float] = []
    unknown: list[str] = []
    failed: list[str] = []
    acknowledged: dict[int, str] = {}
    with dledger.connect(peers, timeout=10.0) as log:
        log.append(b"first")
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        began = time.monotonic()
        number = 0
        while not over.is_set():
            number += 1
            body = f"good {number}"
            sent = time.monotonic()
            try:
                index = log.append(body.encode()).index
            except UnknownOutcome as error:
                unknown.append(str(error))
            except AppendFailed as error:
                failed.append(str(error))
            else:
                ends.append(time.monotonic())
                latencies.append(ends[-1] - sent)
                acknowledged[index] = body
            time.sleep(0.001)
        seconds = time.monotonic() - began
    return {
        "seconds": seconds, "latencies_s": latencies, "ends_s": ends, "unknown": unknown,
        "failed": failed, "acknowledged": acknowledged,
    }


def run(work: Callable[[str, threading.Event], dict[str, object]]) -> None:
    """Run C{work} with the first argument of the command line until the standard input ends."""
    over = threading.Event()
    found: list[dict[str, object]] = []
    thread = threading.Thread(target=lambda: found.append(work(sys.argv[1], over)))
    thread.start()
    sys.stdin.read()
    over.set()
    thread.join()
    json.dump(found[0], sys.stdout)


if __name__ == "__main__":
    run(work)
