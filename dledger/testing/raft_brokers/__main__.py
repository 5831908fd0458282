# -*- test-case-name: tests.sim.test_raft_brokers -*-
"""C{python -m dledger.testing.raft_brokers}: schedules of groups of brokers on raft logs."""

from __future__ import annotations

import time

import click

from dledger.testing.raft_brokers.schedule import run_seed
from dledger.testing.world.bugs import be_quiet


def _range(text: str) -> range:
    first, dots, last = text.partition("..")
    try:
        return range(int(first), int(last if dots else first) + 1)
    except ValueError:
        raise click.BadParameter(f"{text!r}: write a seed, or FIRST..LAST") from None


@click.command()
@click.option("--seeds", default="1..50", show_default=True, help="one, or FIRST..LAST")
def main(seeds: str) -> None:
    """Play schedules; the exit status is 1 if an invariant does not hold."""
    be_quiet()
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
