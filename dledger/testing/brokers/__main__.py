# -*- test-case-name: tests.sim.test_pairs -*-
"""
Runs many schedules of whole masters and slaves, on several processors, and reports the results::

    python -m dledger.testing.brokers --schedules 1000 --seed 1 --jobs 2
    python -m dledger.testing.brokers --bare --schedules 1000 --seed 1      # no clients, more faults
    python -m dledger.testing.brokers --ages --schedules 100 --seed 1       # files expire under the clients

    python -m dledger.testing.brokers --groups --schedules 100 --seed 1     # members, dead letters, tools

Half of the seeds draw C{--bare} themselves; of the others three in ten C{--ages}, others C{--groups}, read
errors, or pages of logs that cannot be read.

Schedule i has seed C{seed + i}. A failure prints its seed, what is wrong, the last events, and the command
that runs it again; the exit status is then 1.
"""

from __future__ import annotations

from functools import partial

import click

from dledger.testing.brokers.pair_schedule import PairFocus, PairOutcome, run_pair_schedule
from dledger.testing.world.bugs import be_quiet
from dledger.testing.world.running import Effort, Tally, notify

#: Figures of a summary.
_WORDS = {name: name for name in (
    "acknowledged", "deliveries", "again", "puts", "restarts", "promotions", "resolved", "mended",
)}


def replay_pair_command(outcome: PairOutcome) -> str:
    """The command that runs a failed schedule again."""
    kinds = [f"--{name} " for name in ("bare", "ages", "groups") if getattr(outcome, name)]
    return f"python -m dledger.testing.brokers {''.join(kinds)}--schedules 1 --seed {outcome.seed} --trace"


@click.command()
@click.option("--bare", is_flag=True, help="Messages are put without clients in every schedule.")
@click.option("--ages", is_flag=True, help="Files grow old in every schedule.")
@click.option("--groups", is_flag=True, help="More of the clients' stories in every schedule.")
@click.option("--schedules", default=100, show_default=True, help="Number of schedules.")
@click.option("--seed", default=1, show_default=True, help="Seed of the first; the others follow.")
@click.option("--jobs", default=2, show_default=True, help="Processes.")
@click.option("--trace", is_flag=True, help="Print every event.")
@click.option("--stop-at", default=5, show_default=True, help="Give up after this many failures.")
@click.option("--within", type=float, help="Seconds of the processor after which no outcome is awaited.")
@click.option("--at-least", default=1, help="Number of schedules that are played in any case.")
def main(
    bare: bool, ages: bool, groups: bool, schedules: int, seed: int, jobs: int, trace: bool, stop_at: int,
    within: float | None, at_least: int,
) -> None:
    """Run seeded schedules of a simulated master and its slaves, and check every promise."""
    be_quiet()
    focus = PairFocus(bare=bare, ages=ages, groups=groups)
    run = partial(run_pair_schedule, focus=focus, wants_all_lines=trace)
    effort = Effort(within_s=within, at_least=at_least)
    found = effort.played(run, range(seed, seed + schedules), jobs=max(1, min(jobs, schedules)))
    notify(effort.bounded(found), Tally(words=_WORDS), again=replay_pair_command, is_traced=trace,
         stop_at=stop_at)


if __name__ == "__main__":
    main(prog_name="python -m dledger.testing.brokers")
