# -*- test-case-name: tests.sim.test_pairs,tests.sim.test_ha -*-
"""
Runs many schedules of whole masters and slaves, on several processors, and reports the results::

    python -m dledger.testing.brokers --schedules 1000 --seed 1 --jobs 2
    python -m dledger.testing.brokers --logs --schedules 1000 --seed 1      # of their logs, event by event
    python -m dledger.testing.brokers --ages --schedules 100 --seed 1       # files expire under the clients

    python -m dledger.testing.brokers --groups --schedules 100 --seed 1     # members, dead letters, tools

Three seeds in ten draw C{--ages} themselves, others C{--groups}, read errors, or pages of logs that cannot be
read.

Schedule i has seed C{seed + i}. A failure prints its seed, what is wrong, the last events, and the command
that runs it again; the exit status is then 1.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import click

from dledger.testing.brokers.pair_schedule import PairFocus, PairOutcome, run_pair_schedule
from dledger.testing.brokers.schedule import HAOutcome, run_ha_schedule
from dledger.testing.world.bugs import be_quiet
from dledger.testing.world.running import Effort, Tally, notify

#: Figures of a summary.
_OF_CLIENTS = ("acknowledged", "deliveries", "again", "restarts", "promotions", "resolved")
_OF_LOGS = ("puts", "acknowledged", "restarts", "truncations", "resolved", "mended")


def replay_pair_command(outcome: PairOutcome | HAOutcome) -> str:
    """The command that runs a failed schedule again."""
    if isinstance(outcome, HAOutcome):
        kind = "--logs "
    else:
        kind = ("--ages " if outcome.ages else "") + ("--groups " if outcome.groups else "")
    return f"python -m dledger.testing.brokers {kind}--schedules 1 --seed {outcome.seed} --trace"


@click.command()
@click.option("--logs", is_flag=True, help="Look at the logs after every event, instead of clients.")
@click.option("--ages", is_flag=True, help="With clients: files grow old in every schedule.")
@click.option("--groups", is_flag=True, help="With clients: more of their stories in every schedule.")
@click.option("--schedules", default=100, show_default=True, help="Number of schedules.")
@click.option("--seed", default=1, show_default=True, help="Seed of the first; the others follow.")
@click.option("--jobs", default=2, show_default=True, help="Processes.")
@click.option("--trace", is_flag=True, help="Print every event.")
@click.option("--stop-at", default=5, show_default=True, help="Give up after this many failures.")
@click.option("--within", type=float, help="Seconds of the processor after which no outcome is awaited.")
@click.option("--at-least", default=1, help="Number of schedules that are played in any case.")
def main(
    logs: bool, ages: bool, groups: bool, schedules: int, seed: int, jobs: int, trace: bool, stop_at: int,
    within: float | None, at_least: int,
) -> None:
    """Run seeded schedules of a simulated master and its slaves, and check every promise."""
    be_quiet()
    play: Callable[..., PairOutcome | HAOutcome] = run_ha_schedule
    if not logs:
        play = partial(run_pair_schedule, focus=PairFocus(ages=ages, groups=groups))
    run = partial(play, wants_all_lines=trace)
    effort = Effort(within_s=within, at_least=at_least)
    found = effort.played(run, range(seed, seed + schedules), jobs=max(1, min(jobs, schedules)))
    words = {name: name for name in (_OF_LOGS if logs else _OF_CLIENTS)}
    notify(effort.bounded(found), Tally(words=words), again=replay_pair_command, is_traced=trace,
         stop_at=stop_at)


if __name__ == "__main__":
    main(prog_name="python -m dledger.testing.brokers")
