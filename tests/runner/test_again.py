# -*- test-case-name: tests.runner.test_again -*-
"""What failed in a stage, and the commands that look at it once more."""

from __future__ import annotations

import sys

from twisted.trial.unittest import SynchronousTestCase

from tests.runner.again import TRIAL, again_of_lines, again_of_mutants, again_of_trial
from tests.runner.counts import Count, judge, read_check
from tests.runner.stages import all_stages, quick_stages
from tests.runner.test_counts import END, failure

NAME = "tests.x.y.Tests.test_a"
SCHEDULES = """seed 5 FAILED: invariant 2: made up
  12.0 n0 Started()
  again: python -m dledger.testing --play "5 - 2000000:7" --seconds 5 --trace
  again: run it
8 schedules, 1 failed, 4.0 schedules/s
"""


class AgainTests(SynchronousTestCase):
    """From the output of each kind of stage."""

    def test_tests(self) -> None:
        """Each failure of a test, twice if it failed in two ways; a skip is none."""
        output = failure("FAIL", "1 != 2", NAME) + failure("ERROR", "dirty", NAME)
        output += failure("SKIPPED", "no javac", "tests.x.y.Tests.test_b") + END + "\n"
        found = again_of_trial(output)
        self.assertEqual([each.name for each in found], [NAME, NAME])
        self.assertEqual(found[0].command, (*TRIAL, "--temp-directory=_trial_temp_again", NAME))
        self.assertEqual(judge(found[0].read, "PASSED (skips=1)\n", 0), Count(failed=1))

    def test_programs_of_lanes(self) -> None:
        """A program that broke is run again; what a test printed is not."""
        output = SCHEDULES + "[  60 s] again: python -m twisted.trial tests.core tests.wire\n"
        (found,) = again_of_trial(output)
        self.assertEqual(found.command, (sys.executable, "-m", "twisted.trial", "tests.core", "tests.wire"))

    def test_schedules(self) -> None:
        """The command that the program prints, if it is one of ours."""
        (found,) = again_of_lines(SCHEDULES)
        self.assertEqual(found.command, (
            sys.executable, "-m", "dledger.testing", "--play", "5 - 2000000:7", "--seconds", "5", "--trace",
        ))
        self.assertIs(found.read, read_check)

    def test_mutants(self) -> None:
        """Each that nobody noticed."""
        output = (
            "double-vote                  noticed        1.7 s  schedule 1: B10: FAILED\n"
            "late-mark                    FAILED        60.0 s  99 schedules\n"
            "no-sync                      CRASHED        0.0 s  Killed\n3 mutants, 1 noticed, 2 not\n"
        )
        self.assertEqual([each.name for each in again_of_mutants(output)],
                         ["mutant late-mark", "mutant no-sync"])
        self.assertEqual(again_of_mutants(output)[0].command[-3:], ("--pinned", "--only", "late-mark"))

    def test_every_stage(self) -> None:
        """The stages whose failures are no tests know where to look for theirs."""
        for stage in (*quick_stages(), *all_stages()):
            is_tests = stage.counts in ("tests", "check")
            self.assertEqual(stage.again is again_of_trial, is_tests, stage.name)
            self.assertEqual(stage.again is again_of_mutants, stage.counts == "mutants")
