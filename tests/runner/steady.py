# -*- test-case-name: tests.runner.test_steady -*-
"""
Runs one stage of C{make test-all} again and again, and says how often each test failed.

    python -m tests.runner.steady processes --times 5

Nothing is run a second time within a run: here every failure counts.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from typing import TextIO

from tests import slowness
from tests.runner.counts import failed_tests
from tests.runner.playing import end_all, run_stage
from tests.runner.stages import Stage, all_stages, quick_stages


def repeat(stage: Stage, times: int, out: TextIO) -> int:
    """
    Run a stage some times, with one line for each test that ever failed at the end.

    @return: number of runs that failed.
    """
    failures: Counter[str] = Counter()
    red = 0
    for number in range(times):
        result = run_stage(stage, out)
        if result.count.failed:
            red += 1
            names = set(failed_tests(result.output, skips_count=stage.skips_fail))
            failures.update(names or {f"stage {stage.name}"})
        count = result.count
        out.write(f"==== run {number + 1} of {times}: {count.passed} passed, {count.failed} failed, "
                  f"{result.seconds:.0f} s\n")
        out.flush()
    for name, count in failures.most_common():
        out.write(f"{count:>3} of {times} failed: {name}\n")
    out.write(f"{times - red} passed, {red} failed\n")
    return red


def _end(number: int, _frame: object) -> None:
    end_all()
    sys.exit(128 + number)


def main(arguments: Sequence[str] | None = None) -> int:
    """@return: the exit status: 0 if no run failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.runner.steady", description="Repeat a stage.")
    parser.add_argument("stage", help="name of a stage")
    parser.add_argument("--times", type=int, default=5, help="number of runs")
    parser.add_argument("--quick", action="store_true", help="the stage of make test, not of make test-all")
    options = parser.parse_args(arguments)
    known = {stage.name: stage for stage in (quick_stages() if options.quick else all_stages())}
    if options.stage not in known:
        parser.error(f"no stage {options.stage!r}; there are {', '.join(known)}")
    if options.times < 1:
        parser.error("--times is at least 1")
    signal.signal(signal.SIGTERM, _end)
    os.environ[slowness.VARIABLE] = str(slowness.measured())
    return 1 if repeat(known[options.stage], options.times, sys.stdout) else 0


if __name__ == "__main__":
    sys.exit(main())
