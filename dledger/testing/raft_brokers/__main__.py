# -*- test-case-name: tests.sim.test_raft_clients -*-
"""
Runs many schedules of groups of brokers on raft logs, on several processors, and reports the results::

    python -m dledger.testing.raft_brokers --schedules 100 --seed 1 --jobs 2

Schedule i has seed C{seed + i}. The exit status is 1 if a promise is broken.
"""

from __future__ import annotations

from functools import partial

import click

from dledger.testing.raft_brokers.schedule import RaftOutcome, run_raft_schedule
from dledger.testing.world.bugs import be_quiet
from dledger.testing.world.running import Effort, Tally, notify

_WORDS = {name: name for name in ("acknowledged", "deliveries", "again", "restarts", "masters", "changes")}


def replay_raft_command(outcome: RaftOutcome) -> str:
    """The command that runs a failed schedule again."""
    groups = "--groups " if outcome.groups else ""
    return f"python -m dledger.testing.raft_brokers {groups}--schedules 1 --seed {outcome.seed} --trace"


@click.command()
@click.option("--groups", is_flag=True, help="More of the clients' stories in every schedule.")
@click.option("--schedules", default=50, show_default=True, help="Number of schedules.")
@click.option("--seed", default=1, show_default=True, help="Seed of the first; the others follow.")
@click.option("--jobs", default=2, show_default=True, help="Processes.")
@click.option("--trace", is_flag=True, help="Print every fault.")
@click.option("--within", type=float, help="Seconds of the processor after which no outcome is awaited.")
@click.option("--at-least", default=1, help="Number of schedules that are played in any case.")
def main(
    groups: bool, schedules: int, seed: int, jobs: int, trace: bool, within: float | None, at_least: int
) -> None:
    """Run seeded schedules of a simulated group of brokers, and check every promise."""
    be_quiet()
    run = partial(run_raft_schedule, groups=groups, wants_all_lines=trace)
    effort = Effort(within_s=within, at_least=at_least)
    found = effort.played(run, range(seed, seed + schedules), jobs=max(1, min(jobs, schedules)))
    notify(effort.bounded(found), Tally(words=_WORDS), again=replay_raft_command, is_traced=trace, stop_at=5)


if __name__ == "__main__":
    main(prog_name="python -m dledger.testing.raft_brokers")
