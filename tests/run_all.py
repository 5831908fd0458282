# -*- test-case-name: tests.test_run_all -*-
"""
Runs the checks of the project, one stage after the other, and adds up their counts.

    python -m tests.run_all                             every kind of check, in 12 minutes: make test
    python -m tests.run_all --all                       every check: make test-all
    python -m tests.run_all --all --resume              without the stages that were green on the same tree
    python -m tests.run_all --only unit,sim
    python -m tests.run_all --only unit tests.core.test_config
    python -m tests.run_all --list

A stage is a command, a budget, and a reader of its output that counts passed and failed things. Rules: a
stage that ends badly without naming a failure counts as one failure; nothing skipped counts as passed, and
where a skip means that the machine lacks a requirement of the check, it counts as failed; what failed (a
test, a schedule, a case, a mutant) is looked at once more, alone, and if it passes then, it is named as
unsteady.

A stage has a line at its begin and one at its end; its output is in C{build/logs/STAGE.log}. The last line is
always C{N passed, M failed}, and the exit status is 0 only when C{M} is 0.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import TextIO

from tests import slowness
from tests.runner.counts import failure_blocks
from tests.runner.playing import Result, batches, end_all, run_together
from tests.runner.report import Report, tested_tree
from tests.runner.stages import PROMISE_S, ROOT, Stage, all_stages, quick_stages

#: Lines that are shown of one failure; and of the end of a stage, which may have all of its failures.
SHOWN_LINES = 40
END_LINES = 200


def table(results: Sequence[Result]) -> str:
    """The table at the end, one line for each stage."""
    lines = [
        f"{'stage':<10} {'passed':>7} {'failed':>7} {'skipped':>7} {'unsteady':>8} {'seconds':>8} "
        f"{'budget':>7}  what"
    ]
    for result in results:
        count = result.count
        what = result.stage.counts + (f" ({result.note})" if result.note else "")
        lines.append(
            f"{result.stage.name:<10} {count.passed:>7} {count.failed:>7} {count.skipped:>7} "
            f"{len(result.unsteady):>8} {result.seconds:>8.1f} {result.stage.budget_s:>7}  {what}"
        )
    return "\n".join(lines)


def sentence(result: Result) -> str:
    """The line at the end of a stage."""
    count, stage = result.count, result.stage
    note = f" ({result.note})" if result.note else ""
    return (f"{stage.name}: {count.passed} passed, {count.failed} failed, {count.skipped} skipped, "
            f"{result.seconds:.0f} s of {stage.budget_s}{note}")


def complaints(result: Result) -> list[str]:
    """The complaints of a failed stage, shortened: its last lines, and its failures if trial printed some."""
    blocks = failure_blocks(result.output, skips_count=result.stage.skips_fail)
    shown = SHOWN_LINES if blocks else END_LINES
    lines = [f"---- {result.stage.name}: its end", *result.output.rstrip().splitlines()[-shown:]]
    for number, block in enumerate(blocks, 1):
        lines += [f"---- {result.stage.name}: failure {number}", *block.rstrip().splitlines()[-SHOWN_LINES:]]
    return lines


def run(chosen: Sequence[Stage], out: TextIO, *, report: Report | None = None, slow: float = 1.0) -> int:
    """
    Run the stages in order, also after failures, then write the table and the last line.

    @param report: is written after each stage.
    @param slow: the measured slowness, for the report.
    @return: number of failed things.
    """
    began = time.monotonic()
    results: list[Result] = []
    for together in batches(chosen):
        for number, stage in enumerate(together, len(results) + 1):
            out.write(f"{number:>2}/{len(chosen)} {stage.name}: {' '.join(stage.command[1:])}\n")
        out.flush()
        ended = run_together(together, out, ROOT / "build" / "logs")
        out.write("".join(f"      {sentence(result)}\n" for result in ended))
        results += ended
        if report is not None:
            for result in ended:
                report.add(result)
            report.write(seconds=time.monotonic() - began, slowness=slow)
    failed = sum(result.count.failed for result in results)
    unsteady = [name for result in results for name in result.unsteady]
    out.write(f"\n{table(results)}\n\nall stages took {time.monotonic() - began:.0f} s\n\n")
    red = [result for result in results if result.count.failed]
    for result in [*red, *(result for result in results if result.unsteady and result not in red)]:
        out.write("\n".join([*complaints(result), "", ""]))
    for name in unsteady:
        out.write(f"unsteady: {name} failed, and passed alone\n")
    for result in red:
        names = result.failures or [f"stage {result.stage.name}"]
        out.write("".join(f"failed: {name}\n" for name in names))
    out.write(f"{sum(result.count.passed for result in results)} passed, {failed} failed\n")
    out.flush()
    return failed


def _end(number: int, _frame: object) -> None:
    """Leave in an orderly way: the present stages are killed with all their children."""
    end_all()
    sys.exit(128 + number)


def _choose(parser: argparse.ArgumentParser, stages: Sequence[Stage], only: str, skip: str) -> list[Stage]:
    known = {stage.name: stage for stage in stages}
    wanted = [name for name in only.split(",") if name] or list(known)
    unwanted = [name for name in skip.split(",") if name]
    for name in (*wanted, *unwanted):
        if name not in known:
            parser.error(f"no stage {name!r}; there are {', '.join(known)}")
    return [known[name] for name in wanted if name not in unwanted]


def main(arguments: Sequence[str] | None = None) -> int:
    """@return: the exit status: 0 if nothing failed, 1 otherwise."""
    parser = argparse.ArgumentParser(prog="python -m tests.run_all", description="Run the checks.")
    parser.add_argument("--all", action="store_true",
                        help=f"every check there is, instead of what ends in {PROMISE_S // 60} minutes")
    parser.add_argument("--only", help="names of stages, split by commas", default="")
    parser.add_argument("--skip", help="names of stages to leave out, split by commas", default="")
    parser.add_argument("--resume", action="store_true",
                        help="leave out the stages that were green on the same tree")
    parser.add_argument("--list", action="store_true", help="show the stages and stop")
    parser.add_argument("suites", nargs="*", help="unit tests to run instead of all")
    options = parser.parse_args(arguments)
    known = (all_stages if options.all else quick_stages)(options.suites)
    chosen = _choose(parser, known, options.only, options.skip)
    if options.list:
        for stage in chosen:
            sys.stdout.write(f"{stage.name:<10} {stage.budget_s:>4} s  {' '.join(stage.command[1:])}\n")
        return 0
    signal.signal(signal.SIGTERM, _end)
    slow = slowness.measured()
    os.environ[slowness.VARIABLE] = str(slow)
    report = None
    if not options.suites:  # a part of a stage is no stage
        name = "test-all-report.json" if options.all else "test-report.json"
        report = Report(ROOT / "build" / name, tested_tree(), [stage.name for stage in known])
        report.load()
    if options.resume and report is not None:
        chosen = [stage for stage in chosen if not report.is_green(stage.name)]
    names = ", ".join(stage.name for stage in chosen)
    sys.stdout.write(f"{names}; time limits of tests with real processes: times {slow:g}\n")
    return 1 if run(chosen, sys.stdout, report=report, slow=slow) else 0


if __name__ == "__main__":
    sys.exit(main())
