# -*- test-case-name: tests.runner.test_playing -*-
"""
Runs stages as processes, one or some at a time, and looks once more at each test that failed.

Rule: a stage's process leads its own group, which is killed at the stage's end, so that nothing outlives it.
"""

from __future__ import annotations

import io
import os
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import TextIO

import attrs

from tests.runner.counts import Count, failed_tests, judge, read_trial_strictly
from tests.runner.stages import HANGS_AFTER, ROOT, TRIAL, Stage
from tests.slowness import patient

#: With more failed tests than that, a stage is broken, not unsteady: none is run again.
AGAIN_MAX = 10
#: The nice value of a stage that runs beside another one.
_BESIDE_NICE = 15
#: Seconds after which a test that is run again, alone, is taken to hang.
AGAIN_S = 400.0


@attrs.frozen(kw_only=True)
class Result:
    """
    The end of a stage; C{note} may add to the numbers.

    @ivar output: of its command.
    @ivar unsteady: names of tests that failed, and passed when they were run once more.
    """

    stage: Stage
    count: Count
    seconds: float
    note: str = ""
    output: str = attrs.field(default="", repr=False)
    unsteady: tuple[str, ...] = ()

    @property
    def failed_tests(self) -> list[str]:
        """The names of the tests that failed for good; a stage may fail without naming any."""
        names = failed_tests(self.output, skips_count=self.stage.skips_fail)
        return [name for name in dict.fromkeys(names) if name not in self.unsteady]


def _pump(source: TextIO, out: TextIO, kept: list[str]) -> None:
    for line in source:
        kept.append(line)
        out.write(line)
        out.flush()


def _kill(process: subprocess.Popen[str]) -> None:
    """Kill the stage and everything that it started: it leads its own process group."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _give_way(pid: int) -> None:
    """Let a stage's process, which leads its session, and all that it starts use idle processors only."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PGRP, pid, _BESIDE_NICE)
    with suppress(OSError), open(f"/proc/{pid}/autogroup", "w", encoding="ascii") as file:
        file.write(str(_BESIDE_NICE))  # Linux may weigh whole sessions; a nice value counts within one only


#: The stages under way; they are killed when this program is ended.
_running: set[subprocess.Popen[str]] = set()


def end_all() -> None:
    """
    Kill the stages under way, with all their children. A signal's handler calls it, so it does not wait: the
    wait that the signal interrupted may hold the lock that another wait needs.
    """
    for process in tuple(_running):
        _kill(process)


def run_stage(stage: Stage, out: TextIO, *, limit_s: float | None = None) -> Result:
    """
    Run one stage, copying its output to C{out} as it arrives.

    @param limit_s: seconds after which it is ended; by default L{HANGS_AFTER} budgets, or more.
    """
    began = time.monotonic()
    limit_s = patient(HANGS_AFTER * stage.budget_s) if limit_s is None else limit_s
    try:
        process = subprocess.Popen(
            stage.command,
            cwd=ROOT,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
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
    if stage.joins:
        _give_way(process.pid)
    assert process.stdout is not None
    kept: list[str] = []
    pump = threading.Thread(target=_pump, args=(process.stdout, out, kept), daemon=True)
    pump.start()
    note = ""
    try:
        status = process.wait(timeout=limit_s)
    except subprocess.TimeoutExpired:
        status, note = -1, f"hung: ended after {limit_s:.0f} s"
    finally:
        # Also after an orderly end: a child that outlives its stage holds ports, and our pipe.
        _kill(process)
        process.wait()
        _running.discard(process)
    pump.join(timeout=10)
    output = "".join(kept)
    return Result(
        stage=stage, count=judge(stage.read, output, status), seconds=time.monotonic() - began, note=note,
        output=output,
    )


def batches(chosen: Sequence[Stage]) -> list[list[Stage]]:
    """The stages in order; those that run at the same time are in one list."""
    found: list[list[Stage]] = []
    for stage in chosen:
        if stage.joins and found:
            found[-1].append(stage)
        else:
            found.append([stage])
    return found


def run_together(together: Sequence[Stage], out: TextIO) -> list[Result]:
    """
    Run stages at the same time, then each of their failed tests once more.

    The first one's output is copied as it arrives, that of the others after it.
    """
    first, *others = together
    found: dict[str, Result] = {}
    texts = {stage.name: io.StringIO() for stage in others}

    def run_one(stage: Stage, to: TextIO) -> None:
        found[stage.name] = run_stage(stage, to)

    beside = [threading.Thread(target=run_one, args=(one, texts[one.name]), daemon=True) for one in others]
    for thread in beside:
        thread.start()
    run_one(first, out)
    for thread, stage in zip(beside, others, strict=True):
        thread.join()
        out.write(f"\n---- {stage.name}\n{texts[stage.name].getvalue()}")
        out.flush()
    return [once_more(found[stage.name], out) for stage in together]


def once_more(result: Result, out: TextIO) -> Result:
    """
    Run each failed test of a stage again, alone. One that passes now is unsteady, and not counted as failed.

    A stage that failed otherwise, or in many tests, is left as it is.
    """
    # A skip is no accident: the requirement is still missing the second time.
    times = Counter(failed_tests(result.output, skips_count=False))
    if not times or len(times) > AGAIN_MAX:
        return result
    unsteady: list[str] = []
    seconds = result.seconds
    for name in times:
        out.write(f"\n---- {name} once more, alone\n")
        out.flush()
        again = run_stage(
            Stage(name="again", command=(*TRIAL, "--temp-directory=_trial_temp_again", name), budget_s=0,
                  read=read_trial_strictly, counts="test"),
            out, limit_s=patient(AGAIN_S),
        )
        seconds += again.seconds
        if again.count == Count(passed=1):
            unsteady.append(name)
    recovered = min(sum(times[name] for name in unsteady), result.count.failed)
    count = attrs.evolve(
        result.count, passed=result.count.passed + len(unsteady), failed=result.count.failed - recovered
    )
    return attrs.evolve(result, count=count, unsteady=tuple(unsteady), seconds=seconds)
