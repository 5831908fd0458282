# -*- test-case-name: tests.hostile.test_soak -*-
"""
One client of the soak, in a process of its own: appends of unique bodies, and linearizable reads.

Usage: C{python -m tests.soak.worker PEERS NAME SEED FILE}. It works until its standard input ends, and writes
a line of JSON for each call: kind, monotonic times in ns of its begin and end, outcome, index, body.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from typing import TextIO

import dledger
from dledger.client.answers.values import AppendFailed, UnknownOutcome

#: Seconds that a call may take.
TIMEOUT_S = 8.0
#: Seconds between two calls, at most.
PAUSE_S = 0.02


class Worker:
    """Makes the calls, one at a time."""

    def __init__(self, log: dledger.Log, name: str, chance: random.Random, file: TextIO) -> None:
        self._log = log
        self._name = name
        self._chance = chance
        self._file = file
        self._known = -1
        self._number = 0

    def _tell(self, kind: str, began: int, outcome: str, index: int = -1, body: str = "") -> None:
        self._file.write(json.dumps([kind, began, time.monotonic_ns(), outcome, index, body]) + "\n")
        self._file.flush()

    def call(self) -> None:
        """Make one call."""
        if self._known < 0 or self._chance.random() < 0.6:
            self._append()
        else:
            self._get()

    def _append(self) -> None:
        self._number += 1
        body = f"{self._name}:{self._number}:" + "x" * self._chance.choice((0, 20, 100, 700))
        began, outcome, index = time.monotonic_ns(), "unknown", -1
        try:
            index = self._log.append(body.encode()).index
            outcome = "ok"
        except AppendFailed:
            outcome = "failed"
        except UnknownOutcome:
            pass
        self._tell("append", began, outcome, index, body)
        self._known = max(self._known, index)

    def _get(self) -> None:
        newest = self._chance.random() < 0.6
        index = self._known + 1 if newest else int(self._chance.random() * (self._known + 1))
        began, outcome, body = time.monotonic_ns(), "unknown", ""
        try:
            body = self._log.get(index).body.decode()
            outcome = "ok"
        except dledger.NotYet:
            outcome = "beyond"
        except dledger.DLedgerError:
            pass
        self._tell("get", began, outcome, index, body)
        self._known = max(self._known, index if outcome == "ok" else -1)


def main() -> None:
    """Work until the standard input ends."""
    peers, name, seed, path = sys.argv[1:]
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    chance = random.Random(f"{seed} {name}")
    with open(path, "a") as file, dledger.connect(peers, timeout=TIMEOUT_S) as log:
        worker = Worker(log, name, chance, file)
        while not over.is_set():
            worker.call()
            time.sleep(chance.random() * PAUSE_S)


if __name__ == "__main__":
    main()
