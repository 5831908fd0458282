# -*- test-case-name: tests.sim.test_ha -*-
"""
Runs many schedules of master/slave replication, on several processors, and reports the results::

    python -m dledger.testing.brokers.runner --schedules 1000 --seed 1 --jobs 2

Schedule i has seed C{seed + i}. A failure prints its seed, what is wrong, the last events, and the command
that runs it again; the exit status is then 1.
"""

from __future__ import annotations

from functools import partial

import click

from dledger.testing.brokers.schedule import SECONDS, HAOutcome, run_ha_schedule
from dledger.testing.world.bugs import be_quiet
from dledger.testing.world.running import Tally, in_time, outcomes, tell

_WORDS = {
    "puts": "puts", "acknowledged": "acknowledged", "restarts": "restarts", "truncations": "truncations",
    "resolved": "resolved", "mended": "mended",
}


def replay_brokers_command(outcome: HAOutcome, *, seconds: float) -> str:
    """The command that runs a failed schedule again."""
    command = "python -m dledger.testing.brokers.runner --schedules 1"
    return f"{command} --seed {outcome.seed} --seconds {seconds:g} --trace"


@click.command()
@click.option("--schedules", default=200, show_default=True, help="Number of schedules.")
@click.option("--seed", default=1, show_default=True, help="Seed of the first; the others follow.")
@click.option("--seconds", default=SECONDS, show_default=True, help="Simulated seconds with faults, each.")
@click.option("--jobs", default=2, show_default=True, help="Processes.")
@click.option("--trace", is_flag=True, help="Print every event.")
@click.option("--stop-at", default=5, show_default=True, help="Give up after this many failures.")
@click.option("--within", type=float, help="Seconds after which no further outcome is awaited.")
def main(
    schedules: int, seed: int, seconds: float, jobs: int, trace: bool, stop_at: int, within: float | None
) -> None:
    """Run seeded schedules of a simulated master with its slaves, and check every promise."""
    if jobs > 1:
        be_quiet()
    run = partial(run_ha_schedule, seconds=seconds, wants_all_lines=trace)
    found = outcomes(run, range(seed, seed + schedules), jobs=max(1, min(jobs, schedules)))
    again = partial(replay_brokers_command, seconds=seconds)
    tell(in_time(found, within), Tally(words=_WORDS), again=again, is_traced=trace, stop_at=stop_at)


if __name__ == "__main__":
    main(prog_name="python -m dledger.testing.brokers.runner")
