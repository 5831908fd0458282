# -*- test-case-name: tests.processes.test_exactly_once -*-
"""Numbered appends to real members whose leaders are killed: nothing is lost, nothing is there twice."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

import dledger
from tests.processes.children import wait_until
from tests.processes.members import Group

#: Seconds that everything may take on a busy machine.
LONG_S = 120.0
KILLS = 4


class Writer(threading.Thread):
    """Appends 0, 1, 2, ... with a name in front."""

    def __init__(self, peers: str, name: str, is_stopped: threading.Event) -> None:
        super().__init__()
        self.name = name
        self.peers = peers
        self.placed: dict[bytes, int] = {}
        self.unknown = 0
        self.error: BaseException | None = None
        self._is_stopped = is_stopped

    def run(self) -> None:
        """Until it is asked to stop."""
        try:
            self.write()
        except BaseException as error:
            self.error = error

    def write(self) -> None:
        """One call after another."""
        raise NotImplementedError

    def body(self, number: int) -> bytes:
        """Of a number."""
        return f"{self.name} {number}".encode()


class NumberedByClient(Writer):
    """Eight in a call."""

    def write(self) -> None:
        with dledger.connect(self.peers, timeout=LONG_S, exactly_once=True) as log:
            number = 0
            while not self._is_stopped.is_set():
                bodies = [self.body(number + at) for at in range(8)]
                summary = log.append_many(bodies)
                for at, body in enumerate(bodies):
                    self.placed[body] = summary.index_of(at)
                number += 8


class NumberedByProgram(Writer):
    """Each number is also the sequence; a client gives up soon, and the next one goes on."""

    def write(self) -> None:
        number = 0
        while not self._is_stopped.is_set():
            with dledger.connect(self.peers, timeout=0.5) as log:
                try:
                    for _ in range(100):
                        appended = log.append(self.body(number), producer=self.name, sequence=number)
                        self.placed[self.body(number)] = appended.index
                        number += 1
                except (dledger.UnknownOutcome, dledger.NotLeader, dledger.Timeout):
                    self.unknown += 1


class ExactlyOnceTests(SynchronousTestCase):
    """Three members, four writers."""

    def test_kills(self) -> None:
        """All leaders are killed in turn, the last time all members at once."""
        held = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(held.cleanup)
        group = Group(Path(held.name))
        self.addCleanup(group.kill)
        group.start()
        group.leader()
        is_stopped = threading.Event()
        writers = [
            kind(group.peers_text, f"{kind.__name__}{at}", is_stopped)
            for kind in (NumberedByClient, NumberedByProgram) for at in range(2)
        ]
        self.addCleanup(is_stopped.set)
        for writer in writers:
            writer.start()

        def more(count: int, what: str) -> None:
            before = [len(writer.placed) for writer in writers]
            wait_until(
                lambda: all(
                    writer.error is not None or len(writer.placed) > at + count
                    for writer, at in zip(writers, before, strict=True)
                ), seconds=LONG_S, what=what,
            )

        for kill in range(KILLS):
            more(50, "fifty more of each")
            leader_id = group.leader()
            victims = sorted(group.members) if kill == KILLS - 1 else [leader_id]
            for victim in victims:
                group.members[victim].kill()
            if len(victims) == 1:
                more(10, "another leader")
            for victim in victims:
                group.members[victim].start()
        more(50, "the last fifty")
        is_stopped.set()
        for writer in writers:
            writer.join(LONG_S)
            self.assertIsNone(writer.error, writer.name)
        group.leader()
        with dledger.connect(group.peers_text) as log:
            entries = [entry for entry in log.tail(0) if entry.body and not entry.is_control]
        found = [(entry.body, entry.index) for entry in entries]
        there = dict(found)
        self.assertEqual(len(found), len(there), "a body is there twice")
        for writer in writers:
            numbers = [int(body.split()[1]) for body, _ in found if body.split()[0] == writer.name.encode()]
            self.assertEqual(numbers, list(range(len(numbers))), writer.name)
            self.assertEqual({body: there[body] for body in writer.placed}, writer.placed)
