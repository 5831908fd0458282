# -*- test-case-name: tests.processes.test_readers -*-
"""Named readers as real processes at real members; both are killed and paused."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path
from random import Random

from twisted.trial.unittest import SynchronousTestCase

import dledger
from tests.processes.children import Child, wait_until
from tests.processes.members import ROOT, Group

#: Seconds that everything may take on a busy machine.
LONG_S = 120.0
KILLS = int(os.environ.get("DLEDGER_READER_KILLS", "3"))


class ReaderCase(SynchronousTestCase):
    """Three members."""

    def setUp(self) -> None:
        held = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(held.cleanup)
        self.home = Path(held.name)
        self.group = Group(self.home)
        self.addCleanup(self.group.kill)
        self.group.start()
        self.group.leader()
        self.log = dledger.connect(self.group.peers_text, timeout=LONG_S)
        self.addCleanup(self.log.close)
        self.appended = 0

    def append(self, count: int) -> None:
        """Bodies with numbers."""
        with dledger.connect(self.group.peers_text, timeout=LONG_S, exactly_once=True) as log:
            log.append_many(b"%d" % (self.appended + at) for at in range(count))
        self.appended += count

    def program(self, number: int, share: int = 0) -> Child:
        """One that reads as "billing"."""
        child = Child(
            f"p{number}", [
                sys.executable, "-m", "tests.processes.reading", self.group.peers_text, "billing",
                str(self.home / f"out{number}"), str(share), "1.0",
            ], log_path=self.home / f"p{number}.log", environment={"PYTHONPATH": str(ROOT)},
        )
        self.addCleanup(child.kill)
        child.start()
        return child

    def lines(self, number: int) -> list[str]:
        """What a program has written, whole lines only."""
        path = self.home / f"out{number}"
        return path.read_text().split("\n")[:-1] if path.exists() else []

    def seen(self, count: int) -> list[tuple[int, int, int]]:
        """Token, index and number of each entry that was handed out."""
        return [
            (int(words[0]), int(words[1]), int(words[2]))
            for number in range(count) for line in self.lines(number)
            if len(words := line.split()) == 3
        ]

    def done(self, count: int) -> set[int]:
        """Indexes whose commit was acknowledged."""
        return {
            int(line.split()[1]) for number in range(count) for line in self.lines(number)
            if line.startswith("done")
        }

    def wait_for_all(self, count: int) -> None:
        """Until every body was handed out, and the reader has come to the end."""
        wait_until(
            lambda: {number for _, _, number in self.seen(count)} >= set(range(self.appended)),
            seconds=LONG_S, what=f"{self.appended} bodies",
        )


class KillTests(ReaderCase):
    """Nothing is left out, whoever is killed; nothing is done twice by one that has the lease."""

    def check(self, programs: int) -> None:
        """All bodies, and no entry that was committed was handed out with a later token."""
        seen = self.seen(programs)
        self.assertEqual({number for _, _, number in seen}, set(range(self.appended)))
        self.assertEqual(len({index for _, index, _ in seen}), self.appended)
        tokens: dict[int, list[int]] = {}
        for token, index, _ in seen:
            tokens.setdefault(index, []).append(token)
        for index, of_index in tokens.items():
            self.assertEqual(len(of_index), len(set(of_index)), f"entry {index} twice with one token")

    def _play(self, share: int) -> None:
        rng, programs = Random(7), 3
        running = [self.program(number, share) for number in range(programs)]
        for kill in range(KILLS):
            self.append(40)
            before = len(self.done(programs))
            wait_until(
                lambda before=before: len(self.done(programs)) > before + 5,  # type: ignore[misc]
                seconds=LONG_S, what="more entries done",
            )
            victim = rng.randrange(programs)
            running[victim].kill()
            leader = self.group.members[self.group.leader()] if kill % 2 else None
            if leader is not None:
                leader.kill()
            running[victim].start()
            if leader is not None:
                leader.start()
                self.group.leader(seconds=LONG_S)
        self.wait_for_all(programs)
        self.check(programs)
        wait_until(
            lambda: self.log.readers()[0].lag <= 1 + self.appended // 8, seconds=LONG_S, what="the end"
        )

    def test_one_reads(self) -> None:
        """With a lease on all of the log: entries are handed out in order of tokens."""
        self._play(0)
        last: dict[int, int] = {}
        for token, index, _ in sorted(self.seen(3)):
            self.assertGreater(index, last.get(token, -1))
            last[token] = index

    def test_shared(self) -> None:
        """With parts of seven entries."""
        self._play(7)


class DatabaseTests(ReaderCase):
    """The example that reads into a database."""

    def balances(self, path: Path) -> dict[str, int]:
        """The accounts; none before the program has made the tables."""
        if not path.exists():
            return {}
        opened = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=LONG_S)
        with contextlib.closing(opened) as database:
            try:
                return dict(database.execute("SELECT name, balance FROM accounts"))
            except sqlite3.OperationalError:
                return {}

    def test_killed(self) -> None:
        """However often it is killed, and the leader: each entry counts once."""
        rng, path, expected = Random(11), self.home / "accounts.sqlite", {"anna": 0, "bob": 0}
        program = ROOT / "examples" / "first-programs" / "accounts.py"
        child = Child(
            "accounts", [sys.executable, str(program), str(path)],
            log_path=self.home / "accounts.log",
            environment={"PYTHONPATH": str(ROOT), "DLEDGER_PEERS": self.group.peers_text},
        )
        self.addCleanup(child.kill)
        child.start()
        for kill in range(KILLS):
            before = sum(self.balances(path).values())
            amounts = [(rng.choice(("anna", "bob")), rng.randrange(1, 100)) for _ in range(100)]
            with dledger.connect(self.group.peers_text, timeout=LONG_S, exactly_once=True) as log:
                log.append_many(f"{name} {amount}".encode() for name, amount in amounts)
            for name, amount in amounts:
                expected[name] += amount
            enough = before + rng.randrange(1, 4000)  # (somewhere in what was appended)
            wait_until(
                lambda enough=enough: sum(self.balances(path).values()) >= min(  # type: ignore[misc]
                    enough, sum(expected.values())
                ), seconds=LONG_S, what="more balances",
            )
            child.kill()
            if kill % 3 == 2:
                leader = self.group.members[self.group.leader(seconds=LONG_S)]
                leader.kill()
                leader.start()
            child.start()
        wait_until(lambda: self.balances(path) == expected, seconds=LONG_S, what=f"{expected}")


class PauseTests(ReaderCase):
    """A process that stands still for longer than its lease."""

    def test_fenced(self) -> None:
        """Another one goes on; the first one learns that, and commits nothing any more."""
        self.append(30)
        first = self.program(0)
        wait_until(lambda: len(self.done(1)) == 30, seconds=LONG_S, what="all done by the first")
        first.pause()
        second = self.program(1)
        self.append(30)
        wait_until(lambda: len(self.done(2)) == 60, seconds=LONG_S, what="all done by the second")
        self.assertEqual(len(self.done(1)), 30)
        first.resume()
        wait_until(lambda: "lost" in self.lines(0), seconds=LONG_S, what="the first to learn it")
        place = self.log.readers()[0].next_index
        self.append(10)
        wait_until(lambda: len(self.done(2)) == 70, seconds=LONG_S, what="the rest")
        self.assertGreater(self.log.readers()[0].next_index, place)
        self.assertEqual(len(self.done(1)), 30)
        tokens = [token for token, _, _ in self.seen(2)]
        self.assertEqual(len(set(tokens)), 2)
        second.kill()
        first.kill()


class PlaceTests(ReaderCase):
    """Where it is kept."""

    def test_restart(self) -> None:
        """All members are killed at once, and started again; the command line names the same."""
        self.append(20)
        with self.log.reader("billing") as reader:
            for entry in reader:
                if entry.body == b"11":
                    break
            place = reader.commit()
        for member in self.group.members.values():
            member.kill()
        for member in self.group.members.values():
            member.start()
        self.group.leader(seconds=LONG_S)
        (info,) = self.log.readers()
        self.assertEqual((info.name, info.next_index), ("billing", place))
        reported = subprocess.run(
            [sys.executable, "-c", "from dledger.cli.main import main; main()", "--peers",
             self.group.peers_text, "readers", "--json"],
            capture_output=True, text=True, timeout=LONG_S, env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        self.assertIn(f'"next_index": {place}', reported.stdout, reported.stderr)
        with self.log.reader("billing", follow=False) as reader:
            bodies = [entry.body for entry in reader if entry.body]
        self.assertEqual(bodies, [b"%d" % number for number in range(12, 20)])
