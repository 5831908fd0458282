# -*- test-case-name: tests.hostile.test_soak -*-
"""
One client of the soak, in a process of its own.

Usage: C{python -m tests.soak.worker PEERS NAME SEED FILE}. It works until its standard input ends, and writes
a line of JSON for each call: kind, monotonic times in ns of its begin and end, outcome, index, body.

The first letter of its name gives its work:

    w   appends unique bodies, and makes linearizable reads
    p   is a producer: it appends the bodies 0, 1, 2, ... by number, each until it is acknowledged
    m   submits commands to the state machine, and asks it
    r   is one of the processes of the named reader L{READER}: it takes entries, and commits them
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from typing import TextIO

import dledger
from dledger.client.blocking import BlockingReader
from dledger.client.errors import AppendFailed, UnknownOutcome

#: Seconds that a call may take.
TIMEOUT_S = 8.0
#: Seconds between two calls, at most.
PAUSE_S = 0.02


#: Name of the reader.
READER = "soak"
_LEASE_S = 2.0


def numbered_body(producer: str, number: int) -> str:
    """The body that a producer has for a number: the same whenever it is sent."""
    return f"{producer}:{number}:" + "x" * (number * 37 % 211)


class Worker:
    """Makes the calls, one at a time."""

    def __init__(self, log: dledger.Log, name: str, chance: random.Random, file: TextIO) -> None:
        self._log = log
        self._name = name
        self._chance = chance
        self._file = file
        self._known = -1
        self._number = 0
        self._tried_end = self._tried_ns = 0  # numbers before this one may have been sent since then

    def _notify(self, kind: str, began: int, outcome: str, index: int = -1, body: str = "") -> None:
        self._file.write(json.dumps([kind, began, time.monotonic_ns(), outcome, index, body]) + "\n")
        self._file.flush()

    def call(self) -> None:
        """Make one call; a reader: some."""
        if self._name.startswith("p"):
            self._append_numbered()
        elif self._name.startswith("r"):
            self._read()
        elif self._name.startswith("m"):
            self._command() if self._chance.random() < 0.7 else self._query()
        elif self._known < 0 or self._chance.random() < 0.6:
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
        self._notify("append", began, outcome, index, body)
        self._known = max(self._known, index)

    def _append_numbered(self) -> None:
        """Append the next bodies. Now and then the log is asked for the last number, as after a crash."""
        if self._chance.random() < 0.05:
            try:
                last = self._log.last_sequence(self._name)
            except dledger.DLedgerError:
                return
            following = 0 if last is None else last.sequence + 1
            if following < self._number:
                now, why = time.monotonic_ns(), f"{self._number - 1} is acknowledged"
                self._notify("wrong", now, "wrong", following, why)
            self._number = following
        count = self._chance.choice((1, 1, 5))
        bodies = [numbered_body(self._name, self._number + at) for at in range(count)]
        if self._number >= self._tried_end:
            self._tried_ns = time.monotonic_ns()
        began, self._tried_end = self._tried_ns, max(self._tried_end, self._number + count)
        try:
            places = self._log.append_many(
                [body.encode() for body in bodies], producer=self._name, sequence=self._number
            )
        except (dledger.OutOfSequence, dledger.SequenceTaken) as error:
            self._notify("wrong", began, "wrong", self._number, repr(error))
            return
        except dledger.DLedgerError:
            return  # (The same numbers again.)
        for at, body in enumerate(bodies):
            self._notify("append", began, "ok", places.index_of(at), body)
        self._number += len(bodies)

    def _command(self) -> None:
        self._number += 1
        body = f"{self._name}:{self._number}"
        began, outcome, index = time.monotonic_ns(), "unknown", -1
        try:
            index = int(self._log.submit(body.encode()).partition(b":")[0])
            outcome = "ok"
        except AppendFailed:
            outcome = "failed"
        except dledger.DLedgerError:
            pass
        self._notify("append", began, outcome, index, body)
        self._known = max(self._known, index)

    def _query(self) -> None:
        """The answer has all that this program knows."""
        began = time.monotonic_ns()
        try:
            answer = self._log.query(b"").decode()
        except dledger.DLedgerError:
            return
        index = int(answer.partition(":")[0])
        if index < self._known:
            self._notify("wrong", began, "wrong", index, f"the machine knew {self._known}")
        self._notify("state", began, "ok", index, answer)
        self._known = max(self._known, index)

    def _read(self) -> None:
        """Take entries, and commit them in pieces; the last piece is often not committed."""
        session = f"{self._name}:{time.monotonic_ns()}"
        try:
            with self._log.reader(READER, follow=False, lease_s=_LEASE_S, timeout=TIMEOUT_S) as reader:
                began = time.monotonic_ns()
                for number, entry in enumerate(reader, 1):
                    self._notify("read", began, session, entry.index, entry.body.decode("latin-1"))
                    if number % self._chance.choice((7, 30)) == 0:
                        self._commit(reader, entry.index)
                    began = time.monotonic_ns()
        except dledger.DLedgerError:
            pass

    def _commit(self, reader: BlockingReader, index: int) -> None:
        began, outcome = time.monotonic_ns(), "unknown"
        self._notify("commit", began, outcome, index)  # (Before it: the process may be ended meanwhile.)
        reader.commit(index)
        self._notify("commit", began, "ok", index)

    def _get(self) -> None:
        newest = self._chance.random() < 0.6
        index = self._known + 1 if newest else int(self._chance.random() * (self._known + 1))
        began, outcome, body = time.monotonic_ns(), "unknown", ""
        try:
            body = self._log.get(index).body.decode("latin-1")
            outcome = "ok"
        except dledger.NotYet:
            outcome = "beyond"
        except dledger.DLedgerError:
            pass
        self._notify("get", began, outcome, index, body)
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
