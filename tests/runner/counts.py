# -*- test-case-name: tests.runner.test_counts -*-
"""
Counts of passed, failed and skipped things, read from what programs print, and the names of the tests in it.

Rule: nothing skipped counts as passed. A program that ends badly without naming a failure has one failure.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import attrs


@attrs.frozen
class Count:
    """Numbers of checked things: passed, failed, and skipped (neither)."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __add__(self, other: Count) -> Count:
        return Count(self.passed + other.passed, self.failed + other.failed, self.skipped + other.skipped)


#: From the whole output and the exit status to the count; None if the output ends before its summary.
Reader = Callable[[str, int], Count | None]


def read_check(output: str, status: int) -> Count:
    """A command that is one check: it succeeds or it does not."""
    return Count(passed=int(status == 0), failed=int(status != 0))


_TRIAL_END = re.compile(r"^(PASSED|FAILED)(?: \((?P<counts>[^)]*)\))?\s*$", re.MULTILINE)


def read_trial(output: str, status: int) -> Count | None:
    """trial's own C{PASSED (skips=1, successes=20)}."""
    found = list(_TRIAL_END.finditer(output))
    if not found:
        return None
    counts = {
        name: int(number) for name, number in re.findall(r"(\w+)=(\d+)", found[-1].group("counts") or "")
    }
    failed = counts.get("failures", 0) + counts.get("errors", 0) + counts.get("unexpectedSuccesses", 0)
    return Count(
        passed=counts.get("successes", 0) + counts.get("expectedFailures", 0),
        failed=failed,
        skipped=counts.get("skips", 0),
    )


def read_trial_strictly(output: str, status: int) -> Count | None:
    """As L{read_trial}, but a skipped test has failed: the machine lacks one of its requirements."""
    count = read_trial(output, status)
    return count and Count(passed=count.passed, failed=count.failed + count.skipped)


def read_total(pattern: str) -> Reader:
    """
    A reader of a program's own summary: the last line that matches; earlier ones report the progress.

    @param pattern: a regular expression with the group C{failed}, and C{passed} or C{total}; C{skipped} may
        be there.
    """
    compiled = re.compile(pattern, re.MULTILINE)

    def read(output: str, status: int) -> Count | None:
        found = list(compiled.finditer(output))
        if not found:
            return None
        numbers = {name: int(text or 0) for name, text in found[-1].groupdict().items()}
        failed = numbers["failed"]
        passed = numbers["passed"] if "passed" in numbers else numbers["total"] - failed
        return Count(passed=passed, failed=failed, skipped=numbers.get("skipped", 0))

    return read


#: Summary of the simulator, which stops early after a few failures.
SCHEDULES = r"^(?P<total>\d+) schedules, (?P<failed>\d+) failed\b"

#: Summary of the mutants: a survivor of schedules that nothing pins has neither passed nor failed.
MUTANTS = r"^\d+ mutants, (?P<passed>\d+) noticed, (?P<failed>\d+) failed, (?P<skipped>\d+) survived\s*$"

#: Summary of all other programs that count for themselves.
SUMMARY = r"^(?P<passed>\d+) (?:[a-z ]+ )?passed, (?P<failed>\d+) failed(?:, (?P<skipped>\d+) skipped)?\s*$"


def judge(read: Reader, output: str, status: int) -> Count:
    """The count of a program; a bad end counts as a failure, and so does one at which nothing passed."""
    count = read(output, status) or Count()
    return attrs.evolve(count, failed=1) if is_cut_short(read, output, status) else count


def is_cut_short(read: Reader, output: str, status: int) -> bool:
    """Whether a program has failed as a whole: without its summary, or badly without naming a failure."""
    count = read(output, status)
    return count is None or ((status != 0 or count.passed == 0) and count.failed == 0)


#: A failure as trial prints it, from its kind to the names of its tests; another one follows, or the end.
_TRIAL_FAILURE = re.compile(
    r"^={79}\n(\[(?:FAIL|ERROR|UNEXPECTED|SKIPPED)[^=].*?)(?=^[=-]{79}$)", re.MULTILINE | re.DOTALL
)
_TEST_NAME = re.compile(r"^tests(?:\.\w+){3,}$", re.MULTILINE)
_SKIPPED = "[SKIP"

#: A test's name and the seconds that trial's timing reporter prints for it; its own output may be in between.
_TIMED = re.compile(r"^(tests(?:\.\w+){3,}) \.\.\..*?\((\d+\.\d+) secs\)$", re.MULTILINE | re.DOTALL)


def failure_blocks(output: str, *, skips_count: bool) -> list[str]:
    """
    What trial printed of each failure.

    @param skips_count: also of each skip, because it counts as a failure.
    """
    found: list[str] = _TRIAL_FAILURE.findall(output)
    return [block for block in found if skips_count or not block.startswith(_SKIPPED)]


def failed_tests(output: str, *, skips_count: bool) -> list[str]:
    """The names of the tests that failed, in order; twice if a test failed in two ways."""
    blocks = failure_blocks(output, skips_count=skips_count)
    return [name for block in blocks for name in _TEST_NAME.findall(block)]


def test_seconds(output: str) -> dict[str, float]:
    """How long each test took, by name, where trial's timing reporter says so."""
    return {name: float(seconds) for name, seconds in _TIMED.findall(output)}
