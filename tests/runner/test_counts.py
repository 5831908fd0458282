# -*- test-case-name: tests.runner.test_counts -*-
"""The counts from a program's output: nothing is counted as passed that did not pass."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.runner import counts
from tests.runner.counts import (
    Count,
    is_cut_short,
    judge,
    read_check,
    read_total,
    read_trial,
    read_trial_strictly,
)

LINE = "=" * 79
END = "-" * 79


def failure(kind: str, text: str, *names: str) -> str:
    """A failure as trial prints it."""
    return f"{LINE}\n[{kind}]\n{text}\n\n" + "".join(f"{name}\n" for name in names)


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
        output = "tests.x\n  test_a ... [OK]\n"
        self.assertIsNone(read_trial(output, 0))
        self.assertIsNone(read_trial_strictly(output, 0))
        self.assertEqual(judge(read_trial, output, 0), Count(failed=1))

    def test_trial_last_summary_wins(self) -> None:
        """A test that prints a summary cannot replace trial's own."""
        output = "PASSED (successes=99)\nnoise\nFAILED (errors=1, successes=1)\n"
        self.assertEqual(read_trial(output, 1), Count(passed=1, failed=1))

    def test_strict_trial(self) -> None:
        """Where a skip means a missing requirement, it is a failure."""
        self.assertEqual(read_trial_strictly("PASSED (skips=2, successes=3)\n", 0), Count(passed=3, failed=2))

    def test_total(self) -> None:
        """Programs that count for themselves end with one line."""
        read = read_total(counts.SUMMARY)
        self.assertEqual(read("seed 7\n200 schedules passed, 1 failed\n", 1), Count(passed=200, failed=1))
        self.assertEqual(read("12 passed, 0 failed\n", 0), Count(passed=12))
        self.assertEqual(read("12 tests passed, 1 failed, 3 skipped\n", 1), Count(12, 1, 3))
        self.assertIsNone(read("all is well\n", 0))
        read = read_total(counts.MUTANTS)
        output = "25 mutants, 21 noticed, 1 failed, 3 survived\n"
        self.assertEqual(read(output, 1), Count(passed=21, failed=1, skipped=3))

    def test_progress_is_not_counted(self) -> None:
        """Only the last summary counts, and failed things are not passed."""
        read = read_total(counts.SCHEDULES)
        output = "8 schedules, 0 failed, 4.0 schedules/s\n20 schedules, 2 failed, 4.1 schedules/s\n"
        self.assertEqual(read(output, 1), Count(passed=18, failed=2))

    def test_bad_end_without_failure(self) -> None:
        """A non-zero exit status is never a success, even when every count is fine."""
        self.assertEqual(judge(read_trial, "PASSED (successes=3)\n", 1), Count(passed=3, failed=1))

    def test_nothing_passed(self) -> None:
        """A program without any passed check has failed."""
        self.assertEqual(judge(read_trial, "PASSED\n", 0), Count(failed=1))
        self.assertEqual(judge(read_check, "", 0), Count(passed=1))

    def test_cut_short(self) -> None:
        """A program that failed as a whole, not in some of its checks."""
        for output, status, is_so in (
            ("", 0, True), ("PASSED (successes=3)\n", 1, True), ("PASSED\n", 0, True),
            ("FAILED (failures=1, successes=3)\n", 1, False), ("PASSED (successes=3)\n", 0, False),
        ):
            self.assertEqual(is_cut_short(read_trial, output, status), is_so, output)


class NameTests(SynchronousTestCase):
    """The names of tests in the output of trial."""

    OUTPUT = (
        "noise\n" + failure("FAIL", "Traceback: 1 != 2", "tests.x.y.Tests.test_a", "tests.x.y.Tests.test_b")
        + failure("ERROR", "Traceback: late", "tests.x.y.Tests.test_a")
        + failure("SKIPPED", "no javac", "tests.x.y.Tests.test_c") + f"{END}\nRan 3 tests\n"
    )

    def test_failed(self) -> None:
        """Each failure names its tests; one that failed in two ways is there twice."""
        names = ["tests.x.y.Tests.test_a", "tests.x.y.Tests.test_b", "tests.x.y.Tests.test_a"]
        self.assertEqual(counts.failed_tests(self.OUTPUT, skips_count=False), names)
        self.assertEqual(counts.failed_tests(self.OUTPUT, skips_count=True),
                         [*names, "tests.x.y.Tests.test_c"])

    def test_seconds(self) -> None:
        """The time of each test is read, also if the test printed something."""
        output = (
            "tests.x.y.Tests.test_a ... [OK]\n(0.007 secs)\n"
            "tests.x.y.Tests.test_b ... said: (nothing)\n[OK]\n(1.250 secs)\nRan 2 tests in 1.257s\n"
        )
        self.assertEqual(counts.test_seconds(output),
                         {"tests.x.y.Tests.test_a": 0.007, "tests.x.y.Tests.test_b": 1.25})
