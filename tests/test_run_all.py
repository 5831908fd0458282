# -*- test-case-name: tests.test_run_all -*-
"""The runner of all checks: it must not count anything as passed that did not pass."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import attrs
from twisted.trial.unittest import SynchronousTestCase

from tests import run_all
from tests.run_all import Count, Stage, judge, read_check, read_total, read_trial, read_trial_strictly, run


def stage(code: str, *, limit_s: int = 20, read: run_all.Reader = read_check) -> Stage:
    """A stage that runs a piece of Python."""
    return Stage(name="it", command=(sys.executable, "-c", code), limit_s=limit_s, read=read, counts="checks")


class ReaderTests(SynchronousTestCase):
    """The counts from a program's output."""

    def test_trial(self) -> None:
        """trial's own numbers are used; skipped tests are not passed."""
        output = "Ran 9 tests in 0.1s\n\nPASSED (skips=2, expectedFailures=1, successes=6)\n"
        self.assertEqual(read_trial(output, 0), Count(passed=7, failed=0, skipped=2))

    def test_trial_failed(self) -> None:
        """Failures, errors and unexpected successes are failures."""
        output = "FAILED (skips=1, unexpectedSuccesses=1, failures=2, errors=3, successes=4)\n"
        self.assertEqual(read_trial(output, 1), Count(passed=4, failed=6, skipped=1))

    def test_trial_without_summary(self) -> None:
        """A trial that ended without a summary has failed, with any output before."""
        self.assertEqual(read_trial("tests.x\n  test_a ... [OK]\n", 0), Count(failed=1))

    def test_trial_last_summary_wins(self) -> None:
        """A test that prints a summary cannot replace trial's own."""
        output = "PASSED (successes=99)\nnoise\nFAILED (errors=1, successes=1)\n"
        self.assertEqual(read_trial(output, 1), Count(passed=1, failed=1))

    def test_strict_trial(self) -> None:
        """Where a skip means a missing requirement, it is a failure."""
        self.assertEqual(read_trial_strictly("PASSED (skips=2, successes=3)\n", 0), Count(passed=3, failed=2))

    def test_total(self) -> None:
        """Programs that count for themselves end with one line."""
        read = read_total(run_all.SUMMARY)
        self.assertEqual(read("seed 7\n200 schedules passed, 1 failed\n", 1), Count(passed=200, failed=1))
        self.assertEqual(read("12 passed, 0 failed\n", 0), Count(passed=12))
        self.assertEqual(read("all is well\n", 0), Count(failed=1))
        read = read_total(run_all.MUTANTS)
        self.assertEqual(read("25 mutants, 24 noticed, 1 not\n", 1), Count(passed=24, failed=1))

    def test_progress_is_not_counted(self) -> None:
        """Only the last summary counts, and failed things are not passed."""
        read = read_total(run_all.SCHEDULES)
        output = "8 schedules, 0 failed, 4.0 schedules/s\n20 schedules, 2 failed, 4.1 schedules/s\n"
        self.assertEqual(read(output, 1), Count(passed=18, failed=2))

    def test_bad_end_without_failure(self) -> None:
        """A non-zero exit status is never a success, even when every count is fine."""
        trial = stage("", read=read_trial)
        self.assertEqual(judge(trial, "PASSED (successes=3)\n", 1), Count(passed=3, failed=1))

    def test_nothing_passed(self) -> None:
        """A stage without any passed check has failed."""
        trial = stage("", read=read_trial)
        self.assertEqual(judge(trial, "PASSED\n", 0), Count(failed=1))


class RunTests(SynchronousTestCase):
    """Running stages."""

    def run_stages(self, *stages: Stage, deadline_s: float = 60) -> tuple[int, list[str]]:
        """Number of failures, and the lines written."""
        out = io.StringIO()
        return run(stages, out, deadline_s=deadline_s), out.getvalue().splitlines()

    def test_last_line(self) -> None:
        """The last line has the sum of all stages, and the output of each is above it."""
        failed, lines = self.run_stages(stage("print('hello')"), stage("raise SystemExit(3)"))
        self.assertEqual(failed, 1)
        self.assertEqual(lines[-1], "1 passed, 1 failed")
        self.assertIn("hello", lines)

    def test_failures_come_last(self) -> None:
        """Failures are repeated behind the table, without the output of passed tests before them."""
        failure = "=" * 79 + "\n[FAIL]\nTraceback: 1 != 2\n\ntests.x.Tests.test_a\n"
        noise = "\n".join(f"noise {number}" for number in range(100))
        output = f"{noise}\n{failure}{failure.replace('_a', '_b')}" + "-" * 79 + "\nRan 2 tests\n"
        _failed, lines = self.run_stages(stage("pass"), stage(f"print({output!r}); raise SystemExit(1)"))
        end = lines[next(at for at, line in enumerate(lines) if line.startswith("stage")) :]
        self.assertEqual(end.count("tests.x.Tests.test_a"), 2)  # alone, and among the last lines
        self.assertEqual(end.count("tests.x.Tests.test_b"), 2)
        self.assertNotIn("noise 50", end)
        self.assertEqual([line for line in end if line.startswith("---- ")], [
            "---- it: its end", "---- it: failure 1", "---- it: failure 2",
        ])  # fmt: skip
        self.assertEqual(end[-3:], [
            "failed: tests.x.Tests.test_a", "failed: tests.x.Tests.test_b", "1 passed, 1 failed",
        ])  # fmt: skip

    def test_skips_are_named(self) -> None:
        """A skip is named where it counts as a failure; a stage without a test's name has its own."""
        skip = "=" * 79 + "\n[SKIPPED]\nno javac\n\ntests.x.Tests.test_c\n" + "-" * 79 + "\n"
        code = f"print({skip!r}); print('PASSED (skips=1, successes=1)')"
        _failed, lines = self.run_stages(stage(code, read=read_trial_strictly), stage("raise SystemExit(3)"))
        self.assertEqual(lines[-3:], [
            "failed: tests.x.Tests.test_c", "failed: stage it", "1 passed, 2 failed",
        ])  # fmt: skip
        _failed, lines = self.run_stages(stage(f"{code}; raise SystemExit(3)", read=read_trial))
        self.assertEqual(lines[-2:], ["failed: stage it", "1 passed, 1 failed"])

    def test_time_limit(self) -> None:
        """A stage that hangs is killed with its children."""
        code = (
            "import subprocess, sys, time\n"
            "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
            "time.sleep(60)"
        )
        failed, lines = self.run_stages(stage(code, limit_s=1))
        self.assertEqual(failed, 1)
        self.assertIn("killed after 1 s", "\n".join(lines))

    def test_deadline(self) -> None:
        """Stages without time left have failed; they are not left out."""
        failed, lines = self.run_stages(stage("pass"), stage("pass"), deadline_s=0)
        self.assertEqual(failed, 2)
        self.assertEqual(lines[-1], "0 passed, 2 failed")

    def test_together(self) -> None:
        """Stages that join run at the same time; all are counted, and their outputs do not mix."""
        meet = (
            "import pathlib, sys, time\n"
            "mine, other = map(pathlib.Path, ({mine!r}, {other!r}))\n"
            "mine.touch()\n"
            "deadline = time.monotonic() + 20\n"
            "while not other.exists() and time.monotonic() < deadline: time.sleep(0.01)\n"
            "print('{word} one'); print('{word} two'); sys.exit(not other.exists())"
        )
        a, b = (str(Path(self.mktemp()).resolve()) for _ in range(2))
        first = stage(meet.format(mine=a, other=b, word="first"))
        second = attrs.evolve(stage(meet.format(mine=b, other=a, word="second")), name="other", joins=True)
        failed, lines = self.run_stages(first, second)
        self.assertEqual((failed, lines[-1]), (0, "2 passed, 0 failed"))
        said = [line for line in lines if line.startswith(("first ", "second "))]
        self.assertEqual(said, ["first one", "first two", "second one", "second two"])

    def test_failure_beside(self) -> None:
        """A stage that fails beside another one is told."""
        beside = attrs.evolve(stage("raise SystemExit(2)"), name="beside", joins=True)
        failed, lines = self.run_stages(stage("pass"), beside)
        self.assertEqual((failed, lines[-1]), (1, "1 passed, 1 failed"))
        self.assertIn("---- beside: its end", lines)

    def test_missing_program(self) -> None:
        """A command that does not exist has failed, and the run continues."""
        missing = Stage(name="it", command=("./no-such",), limit_s=1, read=read_check, counts="checks")
        failed, lines = self.run_stages(missing, stage("pass"))
        self.assertEqual(lines[-1], "1 passed, 1 failed")


class StagesTests(SynchronousTestCase):
    """The stages of this project."""

    def test_limits(self) -> None:
        """An hour is promised, installation included; a slow day has a limit, and no stage may use it up."""
        self.assertLessEqual(run_all.PROMISE_S, 58 * 60)
        self.assertLessEqual(run_all.DEADLINE_S, 70 * 60)
        self.assertLess(max(each.limit_s for each in run_all.stages()), run_all.DEADLINE_S / 2)

    def test_every_test_package_has_a_stage(self) -> None:
        """Every package in C{tests/} is a unit test or has its own stage."""
        commands = " ".join(" ".join(each.command) for each in run_all.stages())
        for path in sorted((run_all.ROOT / "tests").iterdir()):
            if (path / "__init__.py").exists():
                self.assertTrue(
                    f"tests.{path.name}" in commands or f"tests.lanes {path.name}" in commands, path.name
                )

    def test_unit_suites_are_found(self) -> None:
        """A new module or package is found without a change; the separate ones are not among them."""
        root = Path(self.mktemp())
        for name in ("core", "interop", "scenarios"):
            (root / "tests" / name).mkdir(parents=True)
        for name in ("core/__init__.py", "interop/__init__.py", "test_tidy.py", "helper.py"):
            (root / "tests" / name).touch()
        self.assertEqual(run_all.unit_suites(root), ["tests.core", "tests.test_tidy"])
