# -*- test-case-name: tests.sim.test_runner,tests.sim.test_pairs -*-
"""
Runs many schedules, on several processors, and reports the results: the common part of the two simulators.

Knows nothing of the schedules; see L{dledger.testing.group.runner} and L{dledger.testing.brokers.__main__}.
"""

from __future__ import annotations

import gc
import multiprocessing
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Protocol, TypeVar

import attrs
import click


class RunOutcome(Protocol):
    """The needed part of the outcome of one schedule."""

    @property
    def seed(self) -> int:
        """Seed of the schedule."""

    @property
    def failure(self) -> str:
        """What is wrong; empty if the schedule passed."""

    @property
    def lines(self) -> Sequence[str]:
        """The trace, or its end; empty if it was not asked for."""


_Outcome = TypeVar("_Outcome", bound=RunOutcome)
_Wanted = TypeVar("_Wanted")
_Result = TypeVar("_Result")

#: By this factor the seconds of the clock may be more than those of the processor: a bound for a machine that
#: has no time for us.
WALL_TIMES = 4.0


@attrs.define(kw_only=True)
class Tally:
    """
    The sums over the schedules so far.

    @ivar words: for each summed number of an outcome, its name in the sentence.
    """

    words: Mapping[str, str]
    schedules: int = 0
    failures: int = 0
    sums: dict[str, int] = attrs.Factory(lambda self: dict.fromkeys(self.words, 0), takes_self=True)

    def add(self, outcome: RunOutcome) -> None:
        """Add one schedule."""
        self.schedules += 1
        self.failures += bool(outcome.failure)
        for name in self.sums:
            self.sums[name] += getattr(outcome, name)

    def sentence(self, seconds: float) -> str:
        """The sums, for the progress line and the last line."""
        sums = ", ".join(f"{self.sums[name]} {word}" for name, word in self.words.items())
        return (
            f"{self.schedules} schedules, {self.failures} failed, "
            f"{self.schedules / max(seconds, 1e-9):.1f} schedules/s, {sums}"
        )


def each_in_jobs(
    run: Callable[[_Wanted], _Result], wanted: Iterable[_Wanted], *, jobs: int
) -> Iterator[_Result]:
    """
    The result for each of what is wanted, in its order.

    @param run: must be picklable.
    @param jobs: processes; 1: this one alone. A pool in a worker of C{trial -j} sends what is left in the
        buffer of that worker's pipe a second time, and the worker ends.
    """
    if jobs == 1:
        yield from map(run, wanted)
        return
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        yield from pool.imap(run, wanted)


def processor_s() -> float:
    """Seconds of the processor that this process has used, with those of its children that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def _costed(run: Callable[[_Wanted], _Result], wanted: _Wanted) -> tuple[_Result, float]:
    """The result of one call, and the seconds of the processor that it took."""
    began_s = processor_s()
    return run(wanted), processor_s() - began_s


@attrs.define(kw_only=True)
class Effort:
    """
    How much is played: a slow machine plays less, a busy one takes longer and plays the same.

    Results come in the order of what is wanted, so what was played is its beginning.

    @ivar within_s: seconds of the processor, of all processes; None: everything is played.
    @ivar at_least: this much is played, however long it takes.
    @ivar spent_s: seconds of the processor so far.
    """

    within_s: float | None = None
    at_least: int = 1
    spent_s: float = attrs.field(default=0.0, init=False)
    _seconds: Callable[[], float] = attrs.field(default=time.monotonic, repr=False)

    def played(
        self, run: Callable[[_Wanted], _Result], wanted: Iterable[_Wanted], *, jobs: int
    ) -> Iterator[_Result]:
        """See L{each_in_jobs}; the seconds of each are counted."""
        gc.set_threshold(50_000, 20, 100)  # a schedule makes many objects and keeps few
        for result, cost_s in each_in_jobs(partial(_costed, run), wanted, jobs=jobs):
            self.spent_s += cost_s
            yield result

    def bounded(self, found: Iterable[_Result]) -> Iterator[_Result]:
        """
        What is L{played}, until enough was: C{within_s} of the processor, or L{WALL_TIMES} of the clock.

        The result that comes late is still passed on.
        """
        end_s = None if self.within_s is None else self._seconds() + WALL_TIMES * self.within_s
        for number, result in enumerate(found, 1):
            yield result
            if self.within_s is None or end_s is None or number < self.at_least:
                continue
            if self.spent_s >= self.within_s or self._seconds() >= end_s:
                return


def notify(
    found: Iterable[_Outcome], tally: Tally, *, again: Callable[[_Outcome], str], is_traced: bool,
    stop_at: int,
) -> None:
    """
    Print the outcomes, progress on standard error, and end the program: with 1 if a schedule has failed.

    @param again: the command that runs a schedule again.
    @param is_traced: C{lines} of every schedule are printed, not only of those that failed.
    @param stop_at: give up after this many failures.
    """
    began = reported = time.monotonic()
    for outcome in found:
        tally.add(outcome)
        if is_traced and outcome.lines:
            click.echo("\n".join(outcome.lines))
        if outcome.failure:
            click.echo(f"seed {outcome.seed} FAILED: {outcome.failure}")
            for line in () if is_traced else outcome.lines:
                click.echo(f"  {line}")
            click.echo(f"  again: {again(outcome)}")
            if tally.failures >= stop_at:
                break
        now = time.monotonic()
        if now - reported > (1 if sys.stderr.isatty() else 10):
            reported = now
            click.echo(tally.sentence(now - began), err=True)
    click.echo(tally.sentence(time.monotonic() - began))
    sys.exit(1 if tally.failures else 0)
