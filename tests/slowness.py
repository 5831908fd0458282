# -*- test-case-name: tests.runner.test_slowness -*-
"""
How much slower this machine is at present than an idle one with two slow cores: one factor for all time-outs
of tests with real processes, so that a busy machine makes a run slow and not red.

The runner measures it once, at its start, and hands it down in the environment. A test that is run by hand
has the factor 1.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

#: The environment variable in which the factor is handed to all programs of a run.
VARIABLE = "DLEDGER_TEST_SLOWNESS"

#: What a reference machine needs, idle: seconds for L{_work}, and for a process that does nothing.
WORK_S = 0.03
FORK_S = 0.025
#: A machine that is slower than this is not waited for any longer.
SLOWNESS_MAX = 12.0
_TIMES = 7


def slowness() -> float:
    """The factor of this run, 1 or more."""
    try:
        return min(max(float(os.environ.get(VARIABLE, "1")), 1.0), SLOWNESS_MAX)
    except ValueError:
        return 1.0


def patient(seconds: float) -> float:
    """@return: as many seconds as this machine needs for what an idle one does in C{seconds}."""
    return seconds * slowness()


def measured(*, clock: Callable[[], float] = time.monotonic) -> float:
    """
    Measure the factor: a fixed amount of work, and the start of a process, some times each.

    The means count: programs beside this one take whole turns of the scheduler, which a best value hides.
    """
    work = statistics.mean(_timed(_work, clock) for _time in range(_TIMES))
    fork = statistics.mean(_timed(_fork, clock) for _time in range(_TIMES))
    return round(min(max(work / WORK_S, fork / FORK_S, 1.0), SLOWNESS_MAX), 2)


def _timed(act: Callable[[], object], clock: Callable[[], float]) -> float:
    began = clock()
    act()
    return clock() - began


def _work() -> int:
    """A loop of the interpreter, as nearly all of our work is."""
    total = 0
    for number in range(400_000):
        total += number & 7
    return total


def _fork() -> None:
    subprocess.run([sys.executable, "-S", "-I", "-c", ""], check=True, stdin=subprocess.DEVNULL)
