# -*- test-case-name: tests.test_run_all -*-
"""
Runs every check of the project, one stage after the other, and adds up their counts.

    python -m tests.run_all                 everything
    python -m tests.run_all --only unit,sim
    python -m tests.run_all --only unit tests.core.test_config
    python -m tests.run_all --list

A stage is a command, a time limit, and a reader of its output that counts passed and failed things. Rules: a
stage that ends badly without naming a failure counts as one failure; a stage that exceeds its limit is killed
with its children and ends badly; nothing skipped counts as passed, and where a skip means that the machine
lacks a requirement of the check, it counts as failed.

The last line is always C{N passed, M failed}, and the exit status is 0 only when C{M} is 0.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

import attrs

ROOT = Path(__file__).resolve().parent.parent

#: Parts of C{tests/} that are separate stages: slow, or in need of processes, a JVM or Spark.
SEPARATE = ("browser", "hostile", "interop", "mutants", "processes", "sim", "spark")

PYTHON = sys.executable
SOURCES = ("dledger", "protocols", "tests", "benchmarks", "demo", "examples", "twisted", "setup.py")


@attrs.frozen
class Count:
    """Numbers of checked things: passed, failed, and skipped (neither)."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __add__(self, other: Count) -> Count:
        return Count(self.passed + other.passed, self.failed + other.failed, self.skipped + other.skipped)


Reader = Callable[[str, int], Count]


@attrs.frozen(kw_only=True)
class Stage:
    """
    One step of the run.

    @ivar limit_s: seconds after which it is killed.
    @ivar read: from the whole output and the exit status to the count.
    @ivar counts: name of one unit of the count, for the table.
    @ivar joins: it runs beside the stage before it. Only for stages in which nothing depends on the time of
        day, and which give way if the other one's tests do depend on it.
    """

    name: str
    command: tuple[str, ...]
    limit_s: int
    read: Reader
    counts: str
    joins: bool = False


@attrs.frozen(kw_only=True)
class Result:
    """
    The end of a stage; C{note} may add to the numbers.

    @ivar output: of its command.
    """

    stage: Stage
    count: Count
    seconds: float
    note: str = ""
    output: str = attrs.field(default="", repr=False)


def read_check(output: str, status: int) -> Count:
    """A command that is one check: it succeeds or it does not."""
    return Count(passed=int(status == 0), failed=int(status != 0))


_TRIAL_END = re.compile(r"^(PASSED|FAILED)(?: \((?P<counts>[^)]*)\))?\s*$", re.MULTILINE)


def read_trial(output: str, status: int) -> Count:
    """trial's own C{PASSED (skips=1, successes=20)}; without such a line the stage has failed."""
    found = list(_TRIAL_END.finditer(output))
    if not found:
        return Count(failed=1)
    counts = {
        name: int(number) for name, number in re.findall(r"(\w+)=(\d+)", found[-1].group("counts") or "")
    }
    failed = counts.get("failures", 0) + counts.get("errors", 0) + counts.get("unexpectedSuccesses", 0)
    return Count(
        passed=counts.get("successes", 0) + counts.get("expectedFailures", 0),
        failed=failed,
        skipped=counts.get("skips", 0),
    )


def read_trial_strictly(output: str, status: int) -> Count:
    """As L{read_trial}, but a skipped test has failed: the machine lacks one of its requirements."""
    count = read_trial(output, status)
    return Count(passed=count.passed, failed=count.failed + count.skipped)


def read_total(pattern: str) -> Reader:
    """
    A reader of a program's own summary: the last line that matches; earlier ones tell the progress.

    @param pattern: a regular expression with the group C{failed}, and C{passed} or C{total}.
    """
    compiled = re.compile(pattern, re.MULTILINE)

    def read(output: str, status: int) -> Count:
        found = list(compiled.finditer(output))
        if not found:
            return Count(failed=1)
        numbers = {name: int(text) for name, text in found[-1].groupdict().items()}
        failed = numbers["failed"]
        passed = numbers["passed"] if "passed" in numbers else numbers["total"] - failed
        return Count(passed=passed, failed=failed)

    return read


def unit_suites(root: Path = ROOT) -> list[str]:
    """The parts of C{tests/} that are unit tests: all except L{SEPARATE}, so that none is forgotten."""
    found = []
    for path in sorted((root / "tests").iterdir()):
        if path.is_dir() and (path / "__init__.py").exists() and path.name not in SEPARATE:
            found.append(f"tests.{path.name}")
        elif path.suffix == ".py" and path.name.startswith("test_"):
            found.append(f"tests.{path.stem}")
    return found


#: Summary of the simulator, which stops early after a few failures.
SCHEDULES = r"^(?P<total>\d+) schedules, (?P<failed>\d+) failed\b"

#: Seconds that all stages together should take, so that they and the installation need less than an hour.
PROMISE_S = 3480
#: Seconds after which the rest is given up: a machine that has a slow day ends late, but it ends.
DEADLINE_S = 4200

#: Summary of the mutants: those that the simulator noticed, and those that it did not.
MUTANTS = r"^\d+ mutants, (?P<passed>\d+) noticed, (?P<failed>\d+) not\s*$"

#: Summary of all other programs that count for themselves.
SUMMARY = r"^(?P<passed>\d+) (?:[a-z ]+ )?passed, (?P<failed>\d+) failed\s*$"


def stages(suites: Sequence[str] = ()) -> list[Stage]:
    """
    Every stage, cheap ones first. The limits are generous; all stages together have L{DEADLINE_S}.

    @param suites: unit tests to run instead of all.
    """
    trial, lanes = (PYTHON, "-m", "twisted.trial"), (PYTHON, "-m", "tests.lanes")
    sources = tuple(source for source in SOURCES if (ROOT / source).exists())
    # A slow machine plays fewer schedules: the hour is promised, and the last line counts what was played.
    drawn = ("--schedules", "1000", "--seed", "1", "--jobs", "2", "--within")
    simulate = ("dledger.testing", *drawn, "60")
    simulate_ha = ("dledger.testing.brokers.runner", *drawn, "60")
    fuzz = ("tests.fuzz.run", "--executions", "20000", "--seed", "1")
    of_trial = {"read": read_trial_strictly, "counts": "tests"}
    summed_up = {"read": read_total(SUMMARY)}
    of_lanes = {**summed_up, "counts": "tests"}
    return [
        Stage(name="lint", command=(PYTHON, "-m", "ruff", "check", *sources), limit_s=60,
              read=read_check, counts="check"),
        Stage(name="unit", command=(*trial, "--reporter=text", *(suites or unit_suites())), limit_s=900,
              read=read_trial, counts="tests"),
        # Half of the time of the unit tests: beside them, as one program uses one processor.
        Stage(name="unit-sim", command=(*trial, "--reporter=text", "--temp-directory=_trial_temp_sim",
                                        "tests.sim"),
              limit_s=900, read=read_trial, counts="tests", joins=True),
        Stage(name="types", command=(PYTHON, "-m", "mypy"), limit_s=400, read=read_check, counts="check",
              joins=True),
        Stage(name="damage", command=(PYTHON, "-m", "tests.damage", "--cases", "10000", "--seed", "1"),
              limit_s=900, counts="cases", joins=True, **summed_up),
        Stage(name="fuzz", command=(PYTHON, "-m", *fuzz), limit_s=900, counts="targets", joins=True,
              **summed_up),
        Stage(name="sim", command=(PYTHON, "-m", *simulate), limit_s=400, read=read_total(SCHEDULES),
              counts="schedules"),
        Stage(name="sim-ha", command=(PYTHON, "-m", *simulate_ha), limit_s=400,
              read=read_total(SCHEDULES), counts="schedules"),
        Stage(name="mutants", command=(PYTHON, "-m", "tests.mutants"), limit_s=700,
              read=read_total(MUTANTS), counts="mutants"),
        Stage(name="processes", command=(*lanes, "processes"), limit_s=1000, **of_lanes),
        Stage(name="hostile", command=(*lanes, "hostile"), limit_s=600, **of_lanes),
        Stage(name="browser", command=(*trial, "tests.browser"), limit_s=240, **of_trial),
        # Without PySpark the test modules cannot be imported, which counts as a failure.
        Stage(name="spark", command=(*lanes, "spark"), limit_s=1200, **of_lanes),
        Stage(name="interop", command=(PYTHON, "-m", "tests.interop"), limit_s=1400, **of_lanes),
    ]


def _pump(source: TextIO, out: TextIO, kept: list[str]) -> None:
    for line in source:
        kept.append(line)
        out.write(line)
        out.flush()


def _kill(process: subprocess.Popen[str]) -> None:
    """Kill the stage and everything that it started: it leads its own process group."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


#: The stages under way; they are killed when this program is ended.
_running: set[subprocess.Popen[str]] = set()


def run_stage(stage: Stage, out: TextIO, *, limit_s: float) -> Result:
    """
    Run one stage, copying its output to C{out} as it arrives.

    @param limit_s: longest time, in seconds; at most its own limit.
    """
    began = time.monotonic()
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    try:
        process = subprocess.Popen(
            stage.command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        return Result(stage=stage, count=Count(failed=1), seconds=0.0, note=f"cannot start: {error}")
    _running.add(process)
    assert process.stdout is not None
    kept: list[str] = []
    pump = threading.Thread(target=_pump, args=(process.stdout, out, kept), daemon=True)
    pump.start()
    note = ""
    try:
        status = process.wait(timeout=limit_s)
    except subprocess.TimeoutExpired:
        status, note = -1, f"killed after {limit_s:.0f} s"
    finally:
        # Also after an orderly end: a child that outlives its stage holds ports, and our pipe.
        _kill(process)
        _running.discard(process)
    pump.join(timeout=10)
    output = "".join(kept)
    return Result(
        stage=stage, count=judge(stage, output, status), seconds=time.monotonic() - began, note=note,
        output=output,
    )


def judge(stage: Stage, output: str, status: int) -> Count:
    """The count of a stage; a bad end without a failure counts as one."""
    count = stage.read(output, status)
    if (status != 0 or count.passed == 0) and count.failed == 0:
        return attrs.evolve(count, failed=1)
    return count


def table(results: Sequence[Result]) -> str:
    """The table at the end, one line for each stage."""
    lines = [f"{'stage':<10} {'passed':>7} {'failed':>7} {'skipped':>7} {'seconds':>8}  what"]
    for result in results:
        count = result.count
        what = result.stage.counts + (f" ({result.note})" if result.note else "")
        lines.append(
            f"{result.stage.name:<10} {count.passed:>7} {count.failed:>7} {count.skipped:>7} "
            f"{result.seconds:>8.1f}  {what}"
        )
    return "\n".join(lines)


#: A failure as trial prints it, from its kind to the names of its tests; another one follows, or the end.
_TRIAL_FAILURE = re.compile(
    r"^={79}\n(\[(?:FAIL|ERROR|UNEXPECTED|SKIPPED)[^=].*?)(?=^[=-]{79}$)", re.MULTILINE | re.DOTALL
)
_TEST_NAME = re.compile(r"^tests(?:\.\w+){3,}$", re.MULTILINE)

#: Lines that are repeated of one failure, and of the end of a stage without such failures.
SHOWN_LINES = 40


def failures(result: Result) -> list[str]:
    """What trial printed of each failure of a stage, and of each skip where a skip counts as a failure."""
    found: list[str] = _TRIAL_FAILURE.findall(result.output)
    return [block for block in found if not block.startswith("[SKIP") or result.stage.read is not read_trial]


def complaints(result: Result) -> list[str]:
    """The complaints of a failed stage, shortened: its last lines, and its failures if trial printed some."""
    blocks = failures(result)
    lines = [f"---- {result.stage.name}: its end", *result.output.rstrip().splitlines()[-SHOWN_LINES:]]
    for number, block in enumerate(blocks, 1):
        lines += [f"---- {result.stage.name}: failure {number}", *block.rstrip().splitlines()[-SHOWN_LINES:]]
    return lines


def failed_names(result: Result) -> list[str]:
    """One line for each failed test of a failed stage, or one for the stage if it names no test."""
    names = [name for block in failures(result) for name in _TEST_NAME.findall(block)]
    return [f"failed: {name}" for name in names or [f"stage {result.stage.name}"]]


def batches(chosen: Sequence[Stage]) -> list[list[Stage]]:
    """The stages in order; those that run at the same time are in one list."""
    found: list[list[Stage]] = []
    for stage in chosen:
        if stage.joins and found:
            found[-1].append(stage)
        else:
            found.append([stage])
    return found


def run_together(together: Sequence[Stage], out: TextIO, *, left_s: float) -> list[Result]:
    """
    Run stages at the same time. The first one's output is copied as it arrives, that of the others behind it.

    @param left_s: longest time of each; at most its own limit.
    """
    first, *others = together
    found: dict[str, Result] = {}
    texts = {stage.name: io.StringIO() for stage in others}

    def run_one(stage: Stage, to: TextIO) -> None:
        found[stage.name] = run_stage(stage, to, limit_s=min(stage.limit_s, left_s))

    beside = [threading.Thread(target=run_one, args=(one, texts[one.name]), daemon=True) for one in others]
    for thread in beside:
        thread.start()
    run_one(first, out)
    for thread, stage in zip(beside, others, strict=True):
        thread.join()
        out.write(f"\n---- {stage.name}\n{texts[stage.name].getvalue()}")
        out.flush()
    return [found[stage.name] for stage in together]


def run(chosen: Sequence[Stage], out: TextIO, *, deadline_s: float) -> int:
    """
    Run the stages in order, also after failures, then write the table and the last line.

    @param deadline_s: seconds for all stages; a stage gets the rest, if that is less than its limit.
    @return: number of failed things.
    """
    began = time.monotonic()
    results: list[Result] = []
    for together in batches(chosen):
        names = " and ".join(stage.name for stage in together)
        number = len(results) + len(together)
        out.write(f"\n==== {number}/{len(chosen)} {names} " + "=" * max(0, 60 - len(names)) + "\n")
        out.flush()
        left_s = deadline_s - (time.monotonic() - began)
        if left_s <= 0:
            results += [Result(stage=stage, count=Count(failed=1), seconds=0.0, note="no time left")
                        for stage in together]
            continue
        results += run_together(together, out, left_s=left_s)
    failed = sum(result.count.failed for result in results)
    took_s = time.monotonic() - began
    late = f", more than the {PROMISE_S} s that are promised" if took_s > PROMISE_S else ""
    out.write(f"\n{table(results)}\n\nall stages took {took_s:.0f} s{late}\n\n")
    red = [result for result in results if result.count.failed]
    # Repeated, because readers of a log begin at its end, and the first mention is far above.
    for result in red:
        out.write("\n".join([*complaints(result), "", ""]))
    for result in red:
        out.write("\n".join([*failed_names(result), ""]))
    out.write(f"{sum(result.count.passed for result in results)} passed, {failed} failed\n")
    out.flush()
    return failed


def _end(number: int, _frame: object) -> None:
    """Leave in an orderly way: the present stages are killed with all their children."""
    for process in tuple(_running):
        _kill(process)
    sys.exit(128 + number)


def main(arguments: Sequence[str] | None = None) -> int:
    """@return: the exit status: 0 if nothing failed, 1 otherwise."""
    parser = argparse.ArgumentParser(prog="python -m tests.run_all", description="Run every check.")
    parser.add_argument("--only", help="names of stages, split by commas", default="")
    parser.add_argument("--skip", help="names of stages to leave out, split by commas", default="")
    parser.add_argument("--list", action="store_true", help="show the stages and stop")
    parser.add_argument("--deadline", type=float, default=DEADLINE_S, help="seconds for all stages together")
    parser.add_argument("suites", nargs="*", help="unit tests to run instead of all")
    options = parser.parse_args(arguments)
    known = {stage.name: stage for stage in stages(options.suites)}
    only = [name for name in options.only.split(",") if name] or list(known)
    skip = [name for name in options.skip.split(",") if name]
    for name in (*only, *skip):
        if name not in known:
            parser.error(f"no stage {name!r}; there are {', '.join(known)}")
    chosen = [known[name] for name in only if name not in skip]
    if options.list:
        for stage in chosen:
            sys.stdout.write(f"{stage.name:<10} {stage.limit_s:>4} s  {' '.join(stage.command[1:])}\n")
        return 0
    signal.signal(signal.SIGTERM, _end)
    return 1 if run(chosen, sys.stdout, deadline_s=options.deadline) else 0


if __name__ == "__main__":
    sys.exit(main())
