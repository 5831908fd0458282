# -*- test-case-name: tests.runner.test_playing -*-
"""
Runs stages as processes, one or some at a time, and looks once more at each thing that failed, alone.

The output of a stage goes to its log. Standard output has a line when a stage begins and when it ends, and
one a minute in between.

Rule: a stage's process leads its own group, which is killed at the stage's end, so that nothing outlives it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Protocol, TextIO

import attrs

from tests.runner.again import Again
from tests.runner.counts import Count, failed_tests, failure_blocks, is_cut_short, judge
from tests.runner.stages import HANGS_AFTER, ROOT, Stage
from tests.slowness import patient

#: With more failures than that, a stage is broken, not unsteady: none is looked at again.
AGAIN_MAX = 10
#: The nice value of a stage that runs beside another one.
_BESIDE_NICE = 15
#: Seconds after which a thing that is looked at again, alone, is taken to hang.
AGAIN_S = 400.0
#: Seconds between two lines about the stages under way.
NOTIFY_S = 60.0
#: Letters of the line.
_COLUMNS = 110


class Log(Protocol):
    """Takes the output of a stage."""

    def write(self, text: str, /) -> object:
        """Add text, a line at a time."""

    def flush(self) -> object:
        """Make it visible to others."""


@attrs.define
class LastLine:
    """
    A log that remembers its last line.

    Implements L{Log}.

    @ivar line: the last one that is not blank.
    """

    _file: TextIO
    line: str = ""

    def write(self, text: str) -> None:
        self._file.write(text)
        self.line = text.strip() or self.line

    def flush(self) -> None:
        self._file.flush()


@attrs.frozen(kw_only=True)
class Result:
    """
    The end of a stage; C{note} may add to the numbers.

    @ivar output: of its command.
    @ivar is_cut_short: it ended before it had counted everything.
    @ivar unsteady: names of the things that failed, and passed when they were looked at once more.
    """

    stage: Stage
    count: Count
    seconds: float
    note: str = ""
    output: str = attrs.field(default="", repr=False)
    is_cut_short: bool = False
    unsteady: tuple[str, ...] = ()

    @property
    def failures(self) -> list[str]:
        """The names of the things that failed for good; a stage may fail without naming any."""
        names = [
            *failed_tests(self.output, skips_count=self.stage.skips_fail),
            *(each.name for each in self.stage.again(self.output)),
        ]
        return [name for name in dict.fromkeys(names) if name not in self.unsteady]


def _pump(source: TextIO, log: Log, kept: list[str]) -> None:
    for line in source:
        kept.append(line)
        log.write(line)
        log.flush()


def _kill(process: subprocess.Popen[str]) -> None:
    """Kill the stage and everything that it started: it leads its own process group."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _weigh(pid: int, nice: int) -> None:
    """
    Let a stage's process, which leads its session, and all that it starts give way to others, or no more.

    It stays as it is where this user may not choose: Linux lets root alone take a nice value back.
    """
    with suppress(OSError):
        os.setpriority(os.PRIO_PGRP, pid, nice)
    with suppress(OSError), open(f"/proc/{pid}/autogroup", "w", encoding="ascii") as file:
        file.write(str(nice))  # Linux may weigh whole sessions; a nice value counts within one only


#: The stages under way; they are killed when this program is ended.
_running: set[subprocess.Popen[str]] = set()


def end_all() -> None:
    """
    Kill the stages under way, with all their children. A signal's handler calls it, so it does not wait: the
    wait that the signal interrupted may hold the lock that another wait needs.
    """
    for process in tuple(_running):
        _kill(process)


def run_stage(stage: Stage, log: Log, *, limit_s: float | None = None) -> Result:
    """
    Run one stage, copying its output to C{log} as it arrives.

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
        return Result(stage=stage, count=Count(failed=1), seconds=0.0, note=f"cannot start: {error}",
                      is_cut_short=True)
    _running.add(process)
    if stage.joins:
        _weigh(process.pid, _BESIDE_NICE)
    assert process.stdout is not None
    kept: list[str] = []
    pump = threading.Thread(target=_pump, args=(process.stdout, log, kept), daemon=True)
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
        output=output, is_cut_short=bool(note) or is_cut_short(stage.read, output, status),
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


def run_together(together: Sequence[Stage], out: TextIO, logs: Path) -> list[Result]:
    """
    Run stages at the same time, then look at each of their failures once more.

    @param out: gets a line at the begin and at the end of each, and one a minute.
    @param logs: the directory of their outputs: C{STAGE.log}.
    """
    logs.mkdir(parents=True, exist_ok=True)
    found: dict[str, Result] = {}
    with ExitStack() as held:
        kept = {
            stage.name: LastLine(held.enter_context((logs / f"{stage.name}.log").open("w", errors="replace")))
            for stage in together
        }

        def run_one(stage: Stage) -> None:
            found[stage.name] = run_stage(stage, kept[stage.name])

        threads = {stage.name: threading.Thread(target=run_one, args=(stage,), daemon=True)
                   for stage in together}
        try:
            for thread in threads.values():
                thread.start()
            threads[together[0].name].join(NOTIFY_S)
            _watch(threads, kept, out)
        finally:
            end_all()  # this program is interrupted, or there are none
        return [once_more(found[stage.name], kept[stage.name], out) for stage in together]


def _watch(threads: dict[str, threading.Thread], kept: dict[str, LastLine], out: TextIO) -> None:
    """Wait for stages, the first of which has the first call on the processors."""
    first = next(iter(threads.values()))
    for thread in threads.values():
        while thread.is_alive():
            for name, each in threads.items():
                if each.is_alive():
                    out.write(f"     {name}: {kept[name].line}"[:_COLUMNS] + "\n")
            out.flush()
            thread.join(NOTIFY_S)
        if thread is first:
            for process in tuple(_running):
                _weigh(process.pid, 0)


def _things(result: Result) -> Counter[Again]:
    """What can be looked at once more, and how often it failed; a stage without names is one thing."""
    stage = result.stage
    named = Counter(stage.again(result.output))
    # Skips, and modules that cannot be imported, are no accidents; and a stage that hung has had its time.
    blocks = failure_blocks(result.output, skips_count=stage.skips_fail)
    if not named and not blocks and not result.note and result.count.failed:
        return Counter([Again(f"stage {stage.name}", stage.command, stage.read)])
    return named


def once_more(result: Result, log: Log, out: TextIO) -> Result:
    """
    Look at each failure of a stage again, alone. One that passes now is unsteady, and not counted as failed.

    What the stage did not name stays failed, and so does a stage with many failures.
    """
    things = _things(result)
    if len(things) > AGAIN_MAX:
        return result
    unsteady: list[Again] = []
    seconds = result.seconds
    for thing in things:
        log.write(f"\n---- {thing.name} once more, alone\n")
        again = run_stage(
            Stage(name="again", command=thing.command, budget_s=0, read=thing.read, counts="test"), log,
            limit_s=patient(max(AGAIN_S, 2.0 * result.stage.budget_s)),
        )
        seconds += again.seconds
        if again.count.failed == 0:
            unsteady.append(thing)
            if thing.command == result.stage.command:
                return attrs.evolve(result, count=again.count, seconds=seconds, unsteady=(thing.name,))
        out.write(f"     {thing.name}: {'failed' if again.count.failed else 'passed'} once more, alone\n")
        out.flush()
    recovered = min(sum(things[thing] for thing in unsteady), result.count.failed)
    left = max(result.count.failed - recovered, len(things) - len(unsteady), int(result.is_cut_short))
    count = attrs.evolve(result.count, passed=result.count.passed + len(unsteady), failed=left)
    return attrs.evolve(
        result, count=count, unsteady=tuple(thing.name for thing in unsteady), seconds=seconds
    )
