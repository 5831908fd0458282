# -*- test-case-name: tests.fuzz.test_decoders -*-
"""
Runs fuzz targets.

    python -m tests.fuzz.run --target all --executions 20000 --seed 1
    python -m tests.fuzz.run --target native --seed 1 --first 4711 --executions 1

Every execution has a number, and its own random generator, made from the seed and that number, so that a
failed one can be repeated alone. The last line counts the targets; the exit status is 0 if none failed.
"""

from __future__ import annotations

import argparse
import random
import sys
import traceback
from collections.abc import Sequence
from functools import partial
from typing import TextIO

import attrs

from dledger.testing.world.running import Effort
from tests.fuzz.targets import TARGETS, Target


@attrs.frozen(kw_only=True)
class Outcome:
    """
    The result of one target.

    @ivar failed_at: number of the execution that failed; None if none did.
    @ivar trace: its traceback.
    """

    executions: int
    seconds: float
    failed_at: int | None = None
    trace: str = ""


def chance_of(seed: int, number: int) -> random.Random:
    """The random generator of one execution."""
    return random.Random(seed << 40 | number)


def _trace(target: Target, seed: int, number: int) -> str:
    """The traceback of one execution; empty if it passed."""
    try:
        target(chance_of(seed, number))
    except Exception:
        return traceback.format_exc()
    return ""


def fuzz(
    target: Target, *, seed: int, first: int, executions: int, within_s: float | None = None
) -> Outcome:
    """
    Execute C{target} until it fails, at most C{executions} times, and at least once.

    @param within_s: seconds of the processor after which no further execution begins.
    """
    effort = Effort(within_s=within_s)
    traces = effort.played(partial(_trace, target, seed), range(first, first + executions), jobs=1)
    done, trace = 0, ""
    for trace in effort.bounded(traces):
        done += 1
        if trace:
            break
    return Outcome(
        executions=done, seconds=effort.spent_s, failed_at=first + done - 1 if trace else None, trace=trace
    )


def run(
    names: Sequence[str], out: TextIO, *, seed: int, first: int, executions: int,
    within_s: float | None = None,
) -> int:
    """
    Fuzz the named targets, one after the other.

    @param within_s: seconds of the processor for all of them, of which each gets the same share.
    @return: number of targets that failed.
    """
    failed = 0
    share_s = None if within_s is None else within_s / len(names)
    for name in names:
        outcome = fuzz(TARGETS[name], seed=seed, first=first, executions=executions,
                       within_s=share_s)
        speed = outcome.executions / max(outcome.seconds, 1e-9)
        out.write(
            f"{name:<12} {outcome.executions:>9} executions in {outcome.seconds:7.1f} s  {speed:9.0f}/s  "
            f"{'ok' if outcome.failed_at is None else 'FAILED'}\n"
        )
        if outcome.failed_at is not None:
            failed += 1
            out.write(outcome.trace)
            out.write(
                f"again: python -m tests.fuzz.run --target {name} --seed {seed} "
                f"--first {outcome.failed_at} --executions 1\n"
            )
        out.flush()
    out.write(f"{len(names) - failed} targets passed, {failed} failed\n")
    return failed


def main(arguments: Sequence[str] | None = None, out: TextIO = sys.stdout) -> int:
    """@return: the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.run", description="Run fuzz targets.")
    parser.add_argument("--target", default="all", help=f"all, or some of {', '.join(TARGETS)}, by commas")
    parser.add_argument("--executions", type=int, default=20_000, help="number of executions of each target")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first execution")
    parser.add_argument("--within", type=float, help="seconds of the processor for all targets together")
    options = parser.parse_args(arguments)
    names = list(TARGETS) if options.target == "all" else options.target.split(",")
    for name in names:
        if name not in TARGETS:
            parser.error(f"no target {name!r}; there are {', '.join(TARGETS)}")
    failed = run(names, out, seed=options.seed, first=options.first, executions=options.executions,
                 within_s=options.within)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
