# -*- test-case-name: tests.sim.test_ha -*-
"""
Runs many schedules of master/slave replication, on several processors, and tells how it went::

    python -m dledger.testing.ha_runner --schedules 1000 --seed 1 --jobs 2

Schedule i has seed C{seed + i}. A failure prints its seed, what is wrong, the last events, and the command
that runs it again; the exit status is then 1.
"""

from __future__ import annotations

import gc
import multiprocessing
import sys
import time
from collections.abc import Iterator
from functools import partial

import attrs
import click
from twisted.logger import globalLogBeginner

from dledger.testing.ha_schedule import SECONDS, HAOutcome, run_ha_schedule


@attrs.define
class HATally:
    """What the schedules so far amount to."""

    schedules: int = 0
    failures: int = 0
    puts: int = 0
    acknowledged: int = 0
    restarts: int = 0
    truncations: int = 0

    def add(self, outcome: HAOutcome) -> None:
        """One more schedule."""
        self.schedules += 1
        self.failures += bool(outcome.failure)
        self.puts += outcome.puts
        self.acknowledged += outcome.acknowledged
        self.restarts += outcome.restarts
        self.truncations += outcome.truncations

    def sentence(self, seconds: float) -> str:
        """For the progress line and the end."""
        return (
            f"{self.schedules} schedules, {self.failures} failed, {self.schedules / max(seconds, 1e-9):.1f} "
            f"schedules/s, {self.puts} puts, {self.acknowledged} acknowledged, {self.restarts} restarts, "
            f"{self.truncations} truncations"
        )


def be_quiet() -> None:
    """What simulated brokers log is nobody's business; the trace says it."""
    globalLogBeginner.beginLoggingTo([], discardBuffer=True, redirectStandardIO=False)


def outcomes(seeds: list[int], *, seconds: float, jobs: int, wants_all_lines: bool) -> Iterator[HAOutcome]:
    """The outcome of every seed, as they come."""
    run = partial(run_ha_schedule, seconds=seconds, wants_all_lines=wants_all_lines)
    gc.set_threshold(50_000, 20, 100)  # a schedule makes much and keeps little
    if jobs == 1:
        yield from map(run, seeds)
        return
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        yield from pool.imap_unordered(run, seeds, chunksize=4)


@click.command()
@click.option("--schedules", default=200, show_default=True, help="How many to run.")
@click.option("--seed", default=1, show_default=True, help="Seed of the first; the others follow.")
@click.option("--seconds", default=SECONDS, show_default=True, help="Simulated seconds with faults, each.")
@click.option("--jobs", default=2, show_default=True, help="Processes.")
@click.option("--trace", is_flag=True, help="Print every event.")
@click.option("--stop-at", default=5, show_default=True, help="Give up after so many failures.")
def main(schedules: int, seed: int, seconds: float, jobs: int, trace: bool, stop_at: int) -> None:
    """Run seeded schedules of a simulated master with its slaves, and check every promise."""
    if jobs > 1:
        be_quiet()
    tally, began, told = HATally(), time.monotonic(), time.monotonic()
    seeds = list(range(seed, seed + schedules))
    for outcome in outcomes(seeds, seconds=seconds, jobs=max(1, min(jobs, schedules)), wants_all_lines=trace):
        tally.add(outcome)
        for line in outcome.lines:
            click.echo(f"  {line}")
        if outcome.failure:
            again = f"python -m dledger.testing.ha_runner --schedules 1 --seed {outcome.seed}"
            click.echo(f"seed {outcome.seed} FAILED: {outcome.failure}")
            click.echo(f"  again: {again} --seconds {seconds:g} --trace")
            if tally.failures >= stop_at:
                break
        now = time.monotonic()
        if now - told > (1 if sys.stderr.isatty() else 10):
            told = now
            click.echo(tally.sentence(now - began), err=True)
    click.echo(tally.sentence(time.monotonic() - began))
    sys.exit(1 if tally.failures else 0)


if __name__ == "__main__":
    main(prog_name="python -m dledger.testing.ha_runner")
