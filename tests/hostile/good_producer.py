# -*- test-case-name: tests.hostile.test_brokers -*-
"""
A producer with one message at a time, in a process of its own: the attackers of a test do not slow it down.

Usage: C{python -m tests.hostile.good_producer HOST:PORT}. It works until its standard input ends, then writes
the line of JSON that L{tests.hostile.good_client} writes; C{acknowledged} has bodies by number.
"""

from __future__ import annotations

import sys
import threading
import time

from tests.hostile.good_client import run
from tests.processes.brokers import SENT, Remoting

TOPIC = "Good"
#: A message that has no answer after this time failed.
PATIENCE_S = 10.0


def work(address: str, over: threading.Event) -> dict[str, object]:
    """Send until C{over} is set. @return: the outcomes."""
    latencies: list[float] = []
    unknown: list[str] = []
    failed: list[str] = []
    acknowledged: dict[int, str] = {}
    connection = Remoting(address, seconds=PATIENCE_S)
    connection.put(TOPIC, 0, b"first")
    connection.next()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    began = time.monotonic()
    number = 0
    while not over.is_set():
        number += 1
        body = f"good {number}"
        sent = time.monotonic()
        try:
            connection.put(TOPIC, 0, body.encode())
            answer = connection.next()
        except OSError as error:
            unknown.append(repr(error))
            break
        if answer.code in SENT:
            latencies.append(time.monotonic() - sent)
            acknowledged[number] = body
        else:
            failed.append(f"{answer.code} {answer.remark}")
        time.sleep(0.001)
    connection.close()
    return {
        "seconds": time.monotonic() - began, "latencies_s": latencies, "unknown": unknown, "failed": failed,
        "acknowledged": acknowledged,
    }


if __name__ == "__main__":
    run(work)
