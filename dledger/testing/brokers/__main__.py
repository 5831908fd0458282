# -*- test-case-name: tests.sim.test_pairs -*-
"""
Runs many schedules of whole masters and slaves, on several processors, and reports the results::

    python -m dledger.testing.brokers --schedules 1000 --seed 1 --jobs 2

Schedule i has seed C{seed + i}. A failure prints its seed, what is wrong, the last events, and the command
that runs it again; the exit status is then 1.
"""

from __future__ import annotations

from functools import partial

import click

from dledger.testing.brokers.pair_schedule import PairOutcome, run_pair_schedule
from dledger.testing.world.bugs import be_quiet
from dledger.testing.world.running import Tally, in_time, outcomes, tell

_WORDS = {
    "acknowledged": "acknowledged", "deliveries": "deliveries", "again": "again", "restarts": "restarts",
    "promotions": "promotions", "resolved": "resolved",
}


def replay_pair_command(outcome: PairOutcome) -> str:
    """The command that runs a failed schedule again."""
    return f"python -m dledger.testing.brokers --schedules 1 --seed {outcome.seed} --trace"


@click.command()
@click.option("--schedules", default=100, show_default=True, help="Number of schedules.")
@click.option("--seed", default=1, show_default=True, help="Seed of the first; the others follow.")
@click.option("--jobs", default=2, show_default=True, help="Processes.")
@click.option("--trace", is_flag=True, help="Print every event.")
@click.option("--stop-at", default=5, show_default=True, help="Give up after this many failures.")
@click.option("--within", type=float, help="Seconds after which no further outcome is awaited.")
def main(schedules: int, seed: int, jobs: int, trace: bool, stop_at: int, within: float | None) -> None:
    """Run seeded schedules of a simulated master, its slave and their clients, and check every promise."""
    be_quiet()
    run = partial(run_pair_schedule, wants_all_lines=trace)
    found = outcomes(run, range(seed, seed + schedules), jobs=max(1, min(jobs, schedules)))
    tell(in_time(found, within), Tally(words=_WORDS), again=replay_pair_command, is_traced=trace,
         stop_at=stop_at)


if __name__ == "__main__":
    main(prog_name="python -m dledger.testing.brokers")
