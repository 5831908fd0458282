# -*- test-case-name: tests.runner.test_again -*-
"""
What failed in a stage, from its output, and the command that looks at each once more, alone.

Tests are named by trial. Programs that play schedules, cases or targets print C{again:} and the command that
repeats one of them; the lanes print the same of a program that broke.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable

import attrs

from tests.runner.counts import Reader, failed_tests, read_check, read_trial_strictly

#: trial, as the stages run it.
TRIAL = (sys.executable, "-m", "twisted.trial", "--reporter=timing")

_AGAIN = re.compile(r"^\s*(?:\[ *\d+ s\] )?again: python (-m (?:dledger\.testing|tests|twisted)\b.*)$",
                    re.MULTILINE)
_MUTANT = re.compile(r"^(\S+) +(?:FAILED|CRASHED|OUT OF DATE)\b", re.MULTILINE)


@attrs.frozen
class Again:
    """
    A thing that failed.

    @ivar name: for people.
    @ivar command: looks at it once more.
    @ivar read: from the output of the command to its count; it passes if nothing failed.
    """

    name: str
    command: tuple[str, ...]
    read: Reader = read_check


#: From the whole output of a stage to the things that failed; one that failed in two ways is there twice.
Finder = Callable[[str], list[Again]]


def trial_again(name: str) -> Again:
    """One test. A skip is no second success."""
    return Again(name, (*TRIAL, "--temp-directory=_trial_temp_again", name), read_trial_strictly)


def again_of_trial(output: str) -> list[Again]:
    """
    Tests that failed, and programs of the lanes that broke.

    A skip is no accident, even where it counts as a failure: the requirement is missing the second time, too.
    """
    tests = [trial_again(name) for name in failed_tests(output, skips_count=False)]
    return [*tests, *(each for each in again_of_lines(output) if "twisted.trial" in each.command)]


def again_of_lines(output: str) -> list[Again]:
    """What the program itself says how to repeat."""
    return [
        Again(f"python {words}", (sys.executable, *shlex.split(words))) for words in _AGAIN.findall(output)
    ]


def again_of_mutants(output: str) -> list[Again]:
    """Mutants that their pins did not notice."""
    return [
        Again(f"mutant {name}", (sys.executable, "-m", "tests.mutants", "--pinned", "--only", name))
        for name in _MUTANT.findall(output)
    ]
