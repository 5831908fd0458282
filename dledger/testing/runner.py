# -*- test-case-name: tests.sim.test_runner -*-
"""
Runs many schedules, on several processors, and tells how it went::

    python -m dledger.testing --schedules 1000 --seed 1 --jobs 2

Schedule i has seed C{seed + i}. A failure prints its seed, what is wrong, the last steps, and the
command that runs it again; the exit status is then 1.
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

from dledger.testing.schedule import Outcome, run_schedule


@attrs.define
class Tally:
    """What the schedules so far amount to."""

    schedules: int = 0
    failures: int = 0
    steps: int = 0
    acknowledged: int = 0
    elections: int = 0
    restarts: int = 0

    def add(self, outcome: Outcome) -> None:
        """One more schedule."""
        self.schedules += 1
        self.failures += bool(outcome.failure)
        self.steps += outcome.steps
        self.acknowledged += outcome.acknowledged
        self.elections += outcome.elections
        self.restarts += outcome.restarts

    def sentence(self, seconds: float) -> str:
        """For the progress line and the end."""
        return (
            f"{self.schedules} schedules, {self.failures} failed, {self.schedules / max(seconds, 1e-9):.1f} "
            f"schedules/s, {self.steps} steps, {self.acknowledged} acknowledged appends, "
            f"{self.elections} elections, {self.restarts} restarts"
        )


def outcomes(
    seeds: list[int], *, seconds: float, members: int | None, jobs: int, wants_all_lines: bool = False
) -> Iterator[Outcome]:
    """The outcome of every seed, as they come."""
    run = partial(run_schedule, seconds=seconds, members=members, wants_all_lines=wants_all_lines)
    gc.set_threshold(50_000, 20, 100)  # a schedule makes much and keeps little
    if jobs == 1:
        yield from map(run, seeds)
        return
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        yield from pool.imap_unordered(run, seeds, chunksize=4)


def replay_command(outcome: Outcome, *, seconds: float, members: int | None) -> str:
    """What to type to see a failure again."""
    chosen = f" --members {members}" if members else ""
    command = "python -m dledger.testing --schedules 1"
    return f"{command} --seed {outcome.seed} --seconds {seconds:g}{chosen} --trace"


@click.command()
@click.option("--schedules", default=200, show_default=True, help="How many to run.")
@click.option("--seed", default=1, show_default=True, help="Seed of the first; the others follow.")
@click.option("--seconds", default=60.0, show_default=True, help="Simulated seconds with faults, each.")
@click.option("--members", type=click.Choice(["3", "5"]), help="Size of the group; else by seed.")
@click.option("--jobs", default=2, show_default=True, help="Processes.")
@click.option("--trace", is_flag=True, help="Print every step.")
@click.option("--stop-at", default=5, show_default=True, help="Give up after so many failures.")
def main(
    schedules: int, seed: int, seconds: float, members: str | None, jobs: int, trace: bool, stop_at: int
) -> None:
    """Run seeded schedules of a whole simulated group and check every promise."""
    size = int(members) if members else None
    seeds = list(range(seed, seed + schedules))
    jobs = max(1, min(jobs, schedules))
    tally, began, told = Tally(), time.monotonic(), time.monotonic()
    for outcome in outcomes(seeds, seconds=seconds, members=size, jobs=jobs, wants_all_lines=trace):
        tally.add(outcome)
        if trace and outcome.lines:
            click.echo("\n".join(outcome.lines))
        if outcome.failure:
            _tell_failure(outcome, replay_command(outcome, seconds=seconds, members=size), traced=trace)
            if tally.failures >= stop_at:
                break
        now = time.monotonic()
        if now - told > (1 if sys.stderr.isatty() else 10):
            told = now
            click.echo(tally.sentence(now - began), err=True)
    click.echo(tally.sentence(time.monotonic() - began))
    sys.exit(1 if tally.failures else 0)


def _tell_failure(outcome: Outcome, command: str, *, traced: bool) -> None:
    click.echo(f"seed {outcome.seed} FAILED: {outcome.failure}")
    if not traced:
        for line in outcome.lines:
            click.echo(f"  {line}")
    click.echo(f"  again: {command}")
