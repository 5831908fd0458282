# -*- test-case-name: tests.sim.test_runner -*-
"""The command that runs schedules."""

from __future__ import annotations

import os
from pathlib import Path
from unittest import mock

from click.testing import CliRunner
from twisted.trial.unittest import SynchronousTestCase

from dledger.testing.group.checks.require import InvariantError
from dledger.testing.group.runner import main
from dledger.testing.world import running
from dledger.testing.world.running import Effort


class EffortTests(SynchronousTestCase):
    """How much is played."""

    def played(self, within_s: float | None, *, at_least: int = 1, wall_s: float = 0.0) -> list[int]:
        """Those of ten things that are played, each of which takes a second of the processor."""
        clocks = {"processor": 0.0, "wall": 0.0}

        def act(number: int) -> int:
            clocks["processor"] += 1.0
            clocks["wall"] += wall_s
            return number

        self.patch(running, "processor_s", lambda: clocks["processor"])
        effort = Effort(within_s=within_s, at_least=at_least, seconds=lambda: clocks["wall"])
        return list(effort.bounded(effort.played(act, range(10), jobs=1)))

    def test_seconds_of_the_processor(self) -> None:
        """They bound what is played; the one that comes late counts."""
        self.assertEqual(self.played(None), [*range(10)])
        self.assertEqual(self.played(3.0), [0, 1, 2])
        self.assertEqual(self.played(2.5), [0, 1, 2])

    def test_other_programs_change_nothing(self) -> None:
        """On a busy machine the same takes longer, up to a bound."""
        self.assertEqual(self.played(3.0, wall_s=3.9), [0, 1, 2])
        self.assertEqual(self.played(3.0, wall_s=running.WALL_TIMES * 1.5), [0, 1])

    def test_at_least(self) -> None:
        """The first ones are played however long it takes."""
        self.assertEqual(self.played(0.0, at_least=4, wall_s=100.0), [0, 1, 2, 3])

    def test_in_order(self) -> None:
        """Several processes give the results in the order of what is wanted, and their seconds count."""
        effort = Effort(within_s=1e6)
        found = list(effort.bounded(effort.played(_worked, [300_000, 1, 2, 3], jobs=2)))
        self.assertEqual(found, [300_000, 1, 2, 3])
        self.assertGreater(effort.spent_s, 0.0)

    def test_children_count(self) -> None:
        """Processes that one of them forks are its own."""
        effort = Effort()
        list(effort.played(_forked, [3_000_000], jobs=1))
        self.assertGreater(effort.spent_s, 0.02)


def _worked(number: int) -> int:
    sum(range(number))
    return number


def _forked(number: int) -> int:
    child = os.fork()
    if child == 0:
        _worked(number)
        os._exit(0)
    os.waitpid(child, 0)
    return number


class RunnerTests(SynchronousTestCase):
    """Exit status, seeds, and what is printed."""

    def run_main(self, *arguments: str) -> tuple[int, str]:
        """Exit status and output."""
        result = CliRunner().invoke(main, ["--jobs", "1", "--seconds", "5", *arguments])
        return result.exit_code, result.output

    def test_good(self) -> None:
        """Status 0, and a line that says how many."""
        status, output = self.run_main("--schedules", "2", "--seed", "5", "--members", "3")
        self.assertEqual(status, 0)
        self.assertIn("2 schedules, 0 failed", output)

    def test_within(self) -> None:
        """With no time at all, one schedule is played and counted, or as many as must be."""
        arguments = ("--schedules", "3", "--seed", "5", "--members", "3", "--within", "0")
        for more, played in (((), 1), (("--at-least", "2"), 2)):
            status, output = self.run_main(*arguments, *more)
            self.assertEqual(status, 0)
            self.assertIn(f"{played} schedules, 0 failed", output)

    def test_bad(self) -> None:
        """Status 1, the seed, the sentence, the last steps, and how to see it again."""
        def fails(*_: object) -> None:
            raise InvariantError(2, "made up")

        with mock.patch("dledger.testing.group.checks.invariants.GroupInvariants._committed", fails):
            arguments = ("--schedules", "3", "--seed", "5", "--stop-at", "1", "--members", "3")
            status, output = self.run_main(*arguments)
        self.flushLoggedErrors(InvariantError)
        self.assertEqual(status, 1)
        self.assertIn("seed 5 FAILED: invariant 2: made up", output)
        again = "python -m dledger.testing --schedules 1 --seed 5 --seconds 5 --members 3 --trace"
        self.assertIn(again, output)
        self.assertIn("1 schedules, 1 failed", output)

    def test_kinds(self) -> None:
        """A kind is a part of the command that plays it again; two at once are none."""
        def fails(*_: object) -> None:
            raise InvariantError(10, "made up")

        with mock.patch("dledger.testing.group.checks.machines.MachineRules.check", fails):
            status, output = self.run_main("--schedules", "1", "--seed", "5", "--machines")
        self.assertEqual(status, 1)
        self.assertIn("--seed 5 --seconds 5 --machines --trace", output)
        self.assertEqual(self.run_main("--machines", "--lying")[0], 2)

    def test_corpus_grows_and_is_read(self) -> None:
        """Schedules with new states are added to the file; with C{--read-only} it stays as it is."""
        path = Path(self.mktemp())
        arguments = ("--schedules", "1", "--seed", "5", "--within", "0", "--corpus", str(path))
        status, output = self.run_main(*arguments)
        self.assertEqual(status, 0)
        self.assertIn("1 schedules, 0 failed", output)
        self.assertRegex(output, r"\n[1-9]\d* kinds of states, by 1 schedules\n")
        text = path.read_text()
        self.assertIn("\n5 ", text)
        status, output = self.run_main("--read-only", *arguments)
        self.assertEqual((status, path.read_text()), (0, text))

    def test_corpus_that_is_broken(self) -> None:
        """Status 1, and the number of the line."""
        path = Path(self.mktemp())
        path.write_text("# dledger schedules of 5 s\n5 nonsense | 1 | AAA\n")
        status, output = self.run_main("--corpus", str(path))
        self.assertEqual(status, 1)
        self.assertIn("line 2: 'nonsense' is no focus", output)
        self.assertEqual(self.run_main("--play", "5")[0], 1)
        self.assertEqual(self.run_main("--play", "5 -", "--members", "3")[0], 2)
        self.assertEqual(self.run_main("--play", "5 -", "--corpus", str(path))[0], 2)

    def test_failed_line_is_played_again(self) -> None:
        """A failure of a line prints the command that plays it again."""
        def fails(*_: object) -> None:
            raise InvariantError(2, "made up")

        line = "5 - 2000000:7"
        with mock.patch("dledger.testing.group.checks.invariants.GroupInvariants._committed", fails):
            status, output = self.run_main("--play", line)
        self.flushLoggedErrors(InvariantError)
        self.assertEqual(status, 1)
        self.assertIn(f'again: python -m dledger.testing --play "{line}" --seconds 5 --trace', output)
        status, output = self.run_main("--play", line, "--trace")
        self.assertEqual(status, 0)
        self.assertIn("Started() -> #started", output)

    def test_trace(self) -> None:
        """Every step is printed."""
        _, output = self.run_main("--schedules", "1", "--seed", "5", "--trace")
        self.assertIn("Started() -> #started", output)
