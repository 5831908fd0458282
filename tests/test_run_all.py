# -*- test-case-name: tests.test_run_all -*-
"""The run of all stages, and its last lines."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import attrs
from twisted.trial.unittest import SynchronousTestCase

from tests import run_all
from tests.run_all import run
from tests.runner.counts import read_trial, read_trial_strictly
from tests.runner.report import Report
from tests.runner.stages import Stage
from tests.runner.test_counts import END, failure
from tests.runner.test_playing import stage


class RunTests(SynchronousTestCase):
    """Running stages."""

    def setUp(self) -> None:
        """A root of their own, for their logs."""
        self.root = Path(self.mktemp())
        self.patch(run_all, "ROOT", self.root)

    def run_stages(self, *stages: Stage) -> tuple[int, list[str]]:
        """Number of failures, and the lines written."""
        out = io.StringIO()
        return run(stages, out), out.getvalue().splitlines()

    def test_last_line(self) -> None:
        """The last line has the sum of all stages; each has a line at its begin and at its end."""
        failed, lines = self.run_stages(stage("print('hello')"), stage("raise SystemExit(3)"))
        self.assertEqual(failed, 1)
        self.assertEqual(lines[-1], "1 passed, 1 failed")
        self.assertNotIn("hello", lines)
        self.assertEqual(lines[0], " 1/2 it: -c print('hello')")
        self.assertRegex(lines[1], r"^ +it: 1 passed, 0 failed, 0 skipped, \d+ s of 20$")

    def test_failures_come_last(self) -> None:
        """Failures are repeated after the table, without the output of passed tests before them."""
        self.patch(run_all, "run_together",
                   lambda *them: [run_all_stage(each, them[1]) for each in them[0]])
        block = failure("FAIL", "Traceback: 1 != 2", "tests.x.y.Tests.test_a")
        noise = "\n".join(f"noise {number}" for number in range(100))
        output = f"{noise}\n{block}{block.replace('_a', '_b')}{END}\nRan 2 tests\n"
        _failed, lines = self.run_stages(stage("pass"), stage(f"print({output!r}); raise SystemExit(1)"))
        end = lines[next(at for at, line in enumerate(lines) if line.startswith("stage")) :]
        self.assertEqual(end.count("tests.x.y.Tests.test_a"), 2)  # alone, and among the last lines
        self.assertEqual(end.count("tests.x.y.Tests.test_b"), 2)
        self.assertNotIn("noise 50", end)
        self.assertEqual([line for line in end if line.startswith("---- ")], [
            "---- it: its end", "---- it: failure 1", "---- it: failure 2",
        ])
        self.assertEqual(end[-3:], [
            "failed: tests.x.y.Tests.test_a", "failed: tests.x.y.Tests.test_b", "1 passed, 1 failed",
        ])

    def test_skips_are_named(self) -> None:
        """A skip is named where it counts as a failure; a stage without a test's name has its own."""
        skip = failure("SKIPPED", "no javac", "tests.x.y.Tests.test_c") + f"{END}\n"
        code = f"print({skip!r}); print('PASSED (skips=1, successes=1)')"
        _failed, lines = self.run_stages(stage(code, read=read_trial_strictly), stage("raise SystemExit(3)"))
        self.assertEqual(lines[-3:], [
            "failed: tests.x.y.Tests.test_c", "failed: stage it", "1 passed, 2 failed",
        ])
        lenient = attrs.evolve(stage(f"{code}; raise SystemExit(3)", read=read_trial), skips_fail=False)
        _failed, lines = self.run_stages(lenient)
        self.assertEqual(lines[-2:], ["failed: stage it", "1 passed, 1 failed"])

    def test_unsteady(self) -> None:
        """A test that failed and passed alone is named, counted beside the others, and makes nothing red."""

        def run_together(them: list[Stage], out: io.StringIO, _logs: Path) -> list[run_all.Result]:
            (result,) = [run_all_stage(each, out) for each in them]
            return [attrs.evolve(result, unsteady=("tests.x.y.Tests.test_a",))]

        self.patch(run_all, "run_together", run_together)
        failed, lines = self.run_stages(stage("pass"))
        self.assertEqual((failed, lines[-2:]), (0, [
            "unsteady: tests.x.y.Tests.test_a failed, and passed alone", "1 passed, 0 failed",
        ]))
        (row,) = [line for line in lines if line.startswith("it ")]
        self.assertEqual(row.split()[1:5], ["1", "0", "0", "1"])

    def test_failure_beside(self) -> None:
        """A stage that fails beside another one is reported."""
        beside = attrs.evolve(stage("raise SystemExit(2)"), name="beside", joins=True)
        failed, lines = self.run_stages(stage("pass"), beside)
        self.assertEqual((failed, lines[-1]), (1, "1 passed, 1 failed"))
        self.assertIn("---- beside: its end", lines)

    def test_report(self) -> None:
        """The report has the stages that ended, also of a run that is ended half-way."""
        path = Path(self.mktemp()) / "report.json"
        report = Report(path, "t", ["it", "last"])
        seen = f"import json; print(len(json.load(open({str(path.absolute())!r}))['stages']))"
        second = attrs.evolve(stage(seen), name="last")
        out = io.StringIO()
        run([stage("pass"), second], out, report=report)
        self.assertEqual((self.root / "build" / "logs" / "last.log").read_text(), "1\n")
        self.assertEqual(json.loads(path.read_text())["passed"], 2)


def run_all_stage(each: Stage, out: io.StringIO) -> run_all.Result:
    """One stage, without a second look at its failed tests, which exist only in their names here."""
    from tests.runner.playing import run_stage

    return run_stage(each, out)


class MainTests(SynchronousTestCase):
    """The command line."""

    def setUp(self) -> None:
        """Two stages, and a root of their own."""
        self.root = Path(self.mktemp())
        self.out = io.StringIO()
        self.patch(sys, "stdout", self.out)
        self.patch(run_all, "ROOT", self.root)
        self.patch(run_all, "tested_tree", lambda: "t")
        self.patch(run_all.signal, "signal", lambda *_: None)
        self.patch(run_all.os, "environ", {})
        self.patch(run_all.slowness, "measured", lambda: 1.0)
        named = [attrs.evolve(stage("pass"), name="a"), attrs.evolve(stage("raise SystemExit(1)"), name="b")]
        self.patch(run_all, "all_stages", lambda _suites: named)
        self.patch(run_all, "quick_stages", lambda _suites: named[:1])

    def last(self) -> str:
        """The last line."""
        return self.out.getvalue().splitlines()[-1]

    def test_resume(self) -> None:
        """What was green on this tree is left out, on request only; what was red is run again."""
        self.assertEqual((run_all.main(["--all"]), self.last()), (1, "1 passed, 1 failed"))
        self.assertEqual((run_all.main(["--all", "--resume"]), self.last()), (1, "0 passed, 1 failed"))
        self.assertEqual((run_all.main(["--all"]), self.last()), (1, "1 passed, 1 failed"))
        self.assertEqual((run_all.main([]), self.last()), (0, "1 passed, 0 failed"))
        self.assertEqual(sorted(path.name for path in (self.root / "build").iterdir()),
                         ["logs", "test-all-report.json", "test-report.json"])

    def test_only(self) -> None:
        """Some stages are chosen, or left out."""
        self.assertEqual((run_all.main(["--all", "--only", "a"]), self.last()), (0, "1 passed, 0 failed"))
        self.assertEqual((run_all.main(["--all", "--skip", "b"]), self.last()), (0, "1 passed, 0 failed"))
        self.patch(sys, "stderr", io.StringIO())
        self.assertRaises(SystemExit, run_all.main, ["--only", "c"])

    def test_list(self) -> None:
        """The stages are shown, and nothing runs."""
        self.assertEqual(run_all.main(["--all", "--list"]), 0)
        self.assertEqual([line.split()[:2] for line in self.out.getvalue().splitlines()],
                         [["a", "20"], ["b", "20"]])
