# -*- test-case-name: tests.sim.test_raft_brokers,tests.sim.test_raft_clients -*-
"""
Runs schedules of groups of brokers on raft logs, and reports those that fail::

    python -m dledger.testing.raft_brokers --seeds 1..100               # messages and metadata, put directly
    python -m dledger.testing.raft_brokers --clients --seeds 1..100     # the clients of masters and slaves
"""

from __future__ import annotations

import time
from functools import partial

import click

from dledger.testing.raft_brokers.client_schedule import RaftClientsOutcome, run_raft_clients
from dledger.testing.raft_brokers.schedule import run_seed
from dledger.testing.world.bugs import be_quiet
from dledger.testing.world.running import Effort, Tally, notify

_OF_CLIENTS = {name: name for name in ("acknowledged", "deliveries", "again", "restarts", "masters")}


def _range(text: str) -> range:
    first, dots, last = text.partition("..")
    try:
        return range(int(first), int(last if dots else first) + 1)
    except ValueError:
        raise click.BadParameter(f"{text!r}: write a seed, or FIRST..LAST") from None


def replay_raft_command(outcome: RaftClientsOutcome) -> str:
    """The command that runs a failed schedule again."""
    groups = "--groups " if outcome.groups else ""
    return f"python -m dledger.testing.raft_brokers --clients {groups}--trace --seeds {outcome.seed}"


@click.command()
@click.option("--seeds", default="1..50", show_default=True, help="one, or FIRST..LAST")
@click.option("--clients", is_flag=True, help="Play the clients of masters and slaves.")
@click.option("--groups", is_flag=True, help="With clients: more of their stories in every schedule.")
@click.option("--jobs", default=2, show_default=True, help="Processes, for clients.")
@click.option("--trace", is_flag=True, help="Print every fault of a schedule with clients.")
@click.option("--within", type=float,
              help="Seconds of the processor after which no outcome of clients is awaited.")
@click.option("--at-least", default=1, help="Number of schedules that are played in any case.")
def main(
    seeds: str, clients: bool, groups: bool, jobs: int, trace: bool, within: float | None, at_least: int
) -> None:
    """Play schedules; the exit status is 1 if an invariant does not hold."""
    be_quiet()
    if clients:
        run = partial(run_raft_clients, groups=groups, wants_all_lines=trace)
        effort = Effort(within_s=within, at_least=at_least)
        found = effort.played(run, _range(seeds), jobs=max(1, min(jobs, len(_range(seeds)))))
        notify(effort.bounded(found), Tally(words=_OF_CLIENTS), again=replay_raft_command, is_traced=trace,
             stop_at=5)
    begin_s, failed, acked, played = time.monotonic(), 0, 0, _range(seeds)
    for seed in played:
        try:
            acked += run_seed(seed).acked
        except AssertionError as error:
            failed += 1
            click.echo(f"seed {seed}: {type(error).__name__}: {error}\n"
                       f"    repeat: python -m dledger.testing.raft_brokers --seeds {seed}")
    took_s = time.monotonic() - begin_s
    click.echo(f"{len(played)} schedules, {failed} failed, {acked} messages acknowledged, "
               f"{len(played) / took_s:.1f} schedules/s")
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
