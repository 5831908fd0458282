# -*- test-case-name: tests.hostile.test_answers -*-
"""
A client of a name server that asks for one route at a time, in a process of its own.

Usage: C{python -m tests.hostile.good_finder HOST:PORT}. It works until its standard input ends, then writes
the line of JSON that L{tests.hostile.good_client} writes; C{acknowledged} is empty.
"""

from __future__ import annotations

import sys
import threading
import time

from tests.hostile.good_client import run
from tests.hostile.good_producer import PATIENCE_S
from tests.processes.brokers import Remoting

TOPIC = "Topic-000042"
ROUTE_OF_TOPIC = 105


def work(address: str, over: threading.Event) -> dict[str, object]:
    """Ask until C{over} is set. @return: the outcomes."""
    latencies: list[float] = []
    unknown: list[str] = []
    failed: list[str] = []
    connection = Remoting(address, seconds=PATIENCE_S)
    connection.ask(ROUTE_OF_TOPIC, {"topic": TOPIC})
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    began = time.monotonic()
    while not over.is_set():
        sent = time.monotonic()
        try:
            answer = connection.ask(ROUTE_OF_TOPIC, {"topic": TOPIC})
        except OSError as error:
            unknown.append(repr(error))
            break
        if answer.code == 0:
            latencies.append(time.monotonic() - sent)
        else:
            failed.append(f"{answer.code} {answer.remark}")
        time.sleep(0.001)
    connection.close()
    return {
        "seconds": time.monotonic() - began, "latencies_s": latencies, "unknown": unknown, "failed": failed,
        "acknowledged": {},
    }


if __name__ == "__main__":
    run(work)
