# -*- test-case-name: tests.runner.test_playing -*-
"""Stages as processes, and the second look at failed tests."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from pathlib import Path
from unittest import mock

import attrs
from twisted.trial.unittest import SynchronousTestCase

from tests.runner import playing
from tests.runner.counts import Count, Reader, read_check, read_trial_strictly
from tests.runner.playing import AGAIN_MAX, Result, once_more, run_stage, run_together
from tests.runner.stages import Stage
from tests.runner.test_counts import END, failure

A, B = "tests.x.y.Tests.test_a", "tests.x.y.Tests.test_b"


def stage(code: str, *, read: Reader = read_check) -> Stage:
    """A stage that runs a piece of Python."""
    return Stage(name="it", command=(sys.executable, "-c", code), budget_s=20, read=read, counts="checks")


class StageTests(SynchronousTestCase):
    """One stage, or some at a time."""

    def test_hangs(self) -> None:
        """A stage that hangs is killed with its children."""
        code = (
            "import subprocess, sys, time\n"
            "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
            "time.sleep(60)"
        )
        result = run_stage(stage(code), io.StringIO(), limit_s=0.5)
        self.assertEqual((result.count, result.note), (Count(failed=1), "hung: ended after 0 s"))

    def test_missing_program(self) -> None:
        """A command that does not exist has failed."""
        missing = attrs.evolve(stage(""), command=("./no-such",))
        self.assertEqual(run_stage(missing, io.StringIO()).count, Count(failed=1))

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
        logs, out = Path(self.mktemp()) / "logs", io.StringIO()
        self.assertEqual([each.count.passed for each in run_together([first, second], out, logs)], [1, 1])
        self.assertEqual((logs / "it.log").read_text(), "first one\nfirst two\n")
        self.assertEqual((logs / "other.log").read_text(), "second one\nsecond two\n")
        self.assertNotIn("first one", out.getvalue())

    def test_progress(self) -> None:
        """Now and then a line has the last one of each stage that runs."""
        reported = Path(self.mktemp())

        class Out(io.StringIO):
            """Lets the stage end once it was reported."""

            def write(self, text: str) -> int:
                if "it: one of two" in text:
                    reported.touch()
                return super().write(text)

        code = (
            "import pathlib, time\nprint('one of two')\n"
            f"while not pathlib.Path({str(reported.absolute())!r}).exists(): time.sleep(0.01)"
        )
        self.patch(playing, "NOTIFY_S", 0.01)
        (result,) = run_together([stage(code)], Out(), Path(self.mktemp()))
        self.assertEqual(result.count, Count(passed=1))

    def test_stages_beside_others_give_way(self) -> None:
        """By the nice value of the process, which its children inherit; the first one keeps ours."""
        ours = os.getpriority(os.PRIO_PROCESS, 0)
        seen = Path(self.mktemp()).absolute()
        wait = (
            "import os, pathlib, time\n"
            "deadline = time.monotonic() + 20\n"
            "while {} and time.monotonic() < deadline: time.sleep(0.01)\n"
            "print('nice', os.getpriority(os.PRIO_PROCESS, 0))\n"
            f"pathlib.Path({str(seen)!r}).touch()"
        )
        first = stage(wait.format(f"not pathlib.Path({str(seen)!r}).exists()"))
        gives_way = stage(wait.format("os.getpriority(os.PRIO_PROCESS, 0) < 15"))
        logs = Path(self.mktemp())
        run_together([first, attrs.evolve(gives_way, name="other", joins=True)], io.StringIO(), logs)
        self.assertEqual((logs / "it.log").read_text(), f"nice {ours}\n")
        self.assertEqual((logs / "other.log").read_text(), f"nice {max(15, ours)}\n")

    def test_until_the_first_has_ended(self) -> None:
        """Then they do what the first one did: a busy machine would leave them nothing."""
        weights, logs = list[int](), Path(self.mktemp()).absolute()
        seen = logs.with_suffix(".seen")

        def weigh(_pid: int, nice: int) -> None:
            weights.append(nice)
            if nice == 0:
                seen.touch()

        self.patch(playing, "_weigh", weigh)
        until_seen = f"import os, time\nwhile not os.path.exists({str(seen)!r}): time.sleep(0.01)"
        beside = attrs.evolve(stage(until_seen), name="other", joins=True)
        run_together([stage("pass"), beside], io.StringIO(), logs)
        self.assertEqual(weights, [15, 0])


class OnceMoreTests(SynchronousTestCase):
    """A test that failed is run once more, alone."""

    def setUp(self) -> None:
        """Count the second looks, which only A passes."""
        self.asked: list[str] = []

        def run_again(stage: Stage, _out: object, *, limit_s: float | None = None) -> Result:
            name = stage.command[-1]
            self.asked.append(name)
            count = Count(passed=1) if name in (A, "pass") else Count(failed=1)
            return Result(stage=stage, count=count, seconds=2.0)

        self.patch(playing, "run_stage", run_again)

    def look_again(self, output: str, count: Count, *, note: str = "", is_cut_short: bool = False) -> Result:
        """The result after the second looks."""
        result = Result(stage=stage("pass", read=read_trial_strictly), count=count, seconds=10.0,
                        output=output, note=note, is_cut_short=is_cut_short)
        return once_more(result, io.StringIO(), io.StringIO())

    def test_unsteady(self) -> None:
        """One that passes alone is unsteady and not failed; one that fails again has failed."""
        result = self.look_again(failure("FAIL", "1 != 2", A, B) + END + "\n", Count(passed=5, failed=2))
        self.assertEqual(self.asked, [A, B])
        self.assertEqual((result.count, result.unsteady), (Count(passed=6, failed=1), (A,)))
        self.assertEqual((result.failures, result.seconds), ([B], 14.0))

    def test_failed_in_two_ways(self) -> None:
        """A test that trial counts twice is looked at once, and counted as one that passed."""
        output = failure("FAIL", "1 != 2", A) + failure("ERROR", "dirty", A) + END + "\n"
        result = self.look_again(output, Count(passed=5, failed=2))
        self.assertEqual((self.asked, result.count), ([A], Count(passed=6)))

    def test_other_failures(self) -> None:
        """A failure beside the tests stays one: a program that died is not mended by a test that passes."""
        result = self.look_again(failure("FAIL", "1 != 2", A) + END + "\n", Count(passed=5, failed=2))
        self.assertEqual(result.count, Count(passed=6, failed=1))

    def test_skips(self) -> None:
        """A skip that counts as a failure is no accident: it is not tried again."""
        result = self.look_again(failure("SKIPPED", "no javac", A) + END + "\n", Count(failed=1))
        self.assertEqual((self.asked, result.count, result.failures), ([], Count(failed=1), [A]))

    def test_broken(self) -> None:
        """Many failures are no accident either."""
        names = [f"{A}{number}" for number in range(AGAIN_MAX + 1)]
        result = self.look_again(failure("FAIL", "1 != 2", *names) + END + "\n", Count(failed=len(names)))
        self.assertEqual((self.asked, result.count.failed), ([], len(names)))

    def test_cut_short(self) -> None:
        """A stage that hung, or ended before its summary, has failed, even if a test that it named passes."""
        output = failure("FAIL", "1 != 2", A) + END + "\n"
        for note in ("hung", ""):
            result = self.look_again(output, Count(failed=1), note=note, is_cut_short=True)
            self.assertEqual((result.count.failed, result.unsteady), (1, (A,)))

    def test_other_programs_of_lanes(self) -> None:
        """A test that passes does not mend a program that breaks again."""
        output = failure("FAIL", "1 != 2", A) + END + "\n[ 1 s] again: python -m twisted.trial tests.core\n"
        result = self.look_again(output, Count(passed=5, failed=1))
        self.assertEqual((self.asked, result.count.failed), ([A, "tests.core"], 1))

    def test_whole_stage(self) -> None:
        """A stage that names no failure is run once more; one that hung has had its time."""
        result = self.look_again("Killed\n", Count(failed=1), is_cut_short=True)
        self.assertEqual((self.asked, result.count), (["pass"], Count(passed=1)))
        self.assertEqual(result.unsteady, ("stage it",))
        result = self.look_again("", Count(failed=1), note="hung", is_cut_short=True)
        self.assertEqual((self.asked, result.count), (["pass"], Count(failed=1)))

    def test_sound(self) -> None:
        """Without a failure there is nothing to look at."""
        result = self.look_again("PASSED (successes=5)\n", Count(passed=5))
        self.assertEqual((self.asked, result.count), ([], Count(passed=5)))


class EndTests(SynchronousTestCase):
    """The end by a signal."""

    def test_the_end_waits_for_no_stage(self) -> None:
        """A handler's wait would need the lock of the wait that it interrupts: stages are killed only."""
        process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, text=True,
                                   start_new_session=True)
        assert process.stdin is not None
        self.addCleanup(process.stdin.close)
        self.patch(playing, "_running", {process})
        with mock.patch.object(process, "wait", side_effect=AssertionError("a handler waits")):
            playing.end_all()
        self.assertEqual(process.wait(timeout=60), -signal.SIGKILL)
