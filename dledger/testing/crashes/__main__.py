# -*- test-case-name: tests.sim.test_crashes -*-
"""
Crashes of a member's store and of a broker's, and flipped bits of a member's, all of them::

    python -m dledger.testing.crashes cuts --jobs 2                       # 10 minutes of a processor
    python -m dledger.testing.crashes cuts --jobs 2 --second-share 1      # an hour
    python -m dledger.testing.crashes flips --jobs 2

The exit status is 1 if a promise is broken anywhere.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

import attrs
import click

from dledger.testing.crashes.broker_stories import broker_stories
from dledger.testing.crashes.engine import CrashTally, Enumeration, Story
from dledger.testing.crashes.ledger_flips import Flipping, FlipTally, situations
from dledger.testing.crashes.ledger_stories import ledger_stories
from dledger.testing.world.running import each_in_jobs

_Promise = TypeVar("_Promise")

#: Parts of one situation's flips that different processes take.
_FLIP_PARTS = 4


@attrs.frozen(kw_only=True)
class CutsWanted:
    """One workload: its number, and the options."""

    number: int
    seed: int
    share: float
    second_share: float


@attrs.frozen(kw_only=True)
class FlipsWanted:
    """A part of the flips of one situation."""

    number: int
    every: int
    offset: int


def story_names() -> list[str]:
    """The names of the workloads of a ledger, and after them of those of a broker's store."""
    return [*(story.name for story in ledger_stories()), *(story.name for story in broker_stories())]


def _cut(story: Story[_Promise], wanted: CutsWanted) -> tuple[str, CrashTally]:
    run = Enumeration(story, seed=wanted.seed, share=wanted.share, second_share=wanted.second_share)
    return story.name, run.run()


def cut_story(wanted: CutsWanted) -> tuple[str, CrashTally, float]:
    """Look at all crashes of one workload. @return: its name, the sums and the seconds of this processor."""
    began = time.process_time()
    of_ledger, of_broker = ledger_stories(), broker_stories()
    at = wanted.number - len(of_ledger)
    name, tally = _cut(of_ledger[wanted.number], wanted) if at < 0 else _cut(of_broker[at], wanted)
    return name, tally, time.process_time() - began


def flip_situation(wanted: FlipsWanted) -> tuple[str, FlipTally, float]:
    """Flip bits of one directory. @return: its name, the sums and the seconds of this processor."""
    began = time.process_time()
    found = list(situations())[wanted.number]
    kind = "async" if found.name.endswith("async") else "sync"
    tally = Flipping(found, kind=kind).run(every=wanted.every, offset=wanted.offset)
    return found.name, tally, time.process_time() - began


def _chosen(names: Sequence[str], only: Sequence[str]) -> Iterator[int]:
    unknown = [one for one in only if not any(name.startswith(one) for name in names)]
    if unknown:
        raise click.UsageError(f"nothing is called {unknown[0]!r}; there are {', '.join(names)}")
    for number, name in enumerate(names):
        if not only or any(name.startswith(one) for one in only):
            yield number


@click.group()
def main() -> None:
    """Crash a member or a broker in every changing call of its disk, or flip bits of a member's files."""


@main.command()
@click.option("--only", multiple=True, help="Beginning of a workload's name; may be given more than once.")
@click.option("--seed", default=1, show_default=True, help="Of the samples where there are too many subsets.")
@click.option("--share", default=1.0, show_default=True, help="Of the states, at random: 0.1 is a tenth.")
@click.option("--second-share", default=0.1, show_default=True,
              help="Of the states after a second crash, in the recovery; 0: none.")
@click.option("--jobs", default=2, show_default=True, help="Processes.")
def cuts(only: tuple[str, ...], seed: int, share: float, second_share: float, jobs: int) -> None:
    """Crashes and power cuts in every changing disk call of every workload."""
    names = story_names()
    wanted = [CutsWanted(number=number, seed=seed, share=share, second_share=second_share)
              for number in _chosen(names, only)]
    whole, seconds = CrashTally(), 0.0
    for name, tally, took in each_in_jobs(cut_story, wanted, jobs=jobs):
        whole.add(tally)
        seconds += took
        click.echo(f"{name:24} {tally.calls:6} calls {tally.images:8} images, of second crashes "
                   f"{tally.second_images:8} {len(tally.bad):4} bad {took:8.1f} s")
        for sentence in tally.bad:
            click.echo(f"  BAD {sentence}")
    click.echo(f"{len(wanted)} workloads, {whole.calls} calls, {whole.images} images, {whole.second_images} "
               f"images of second crashes, {seconds:.0f} CPU seconds")
    images = whole.images + whole.second_images
    click.echo(f"{images - len(whole.bad)} images passed, {len(whole.bad)} failed")
    sys.exit(1 if whole.bad else 0)


@main.command()
@click.option("--only", multiple=True, help="Beginning of a directory's name; may be given more than once.")
@click.option("--every", default=1, show_default=True, help="Flip one in so many bits.")
@click.option("--jobs", default=2, show_default=True, help="Processes.")
def flips(only: tuple[str, ...], every: int, jobs: int) -> None:
    """Every single flipped bit in every file of several directories."""
    names = [found.name for found in situations()]
    wanted = [FlipsWanted(number=number, every=every * _FLIP_PARTS, offset=every * part)
              for number in _chosen(names, only) for part in range(_FLIP_PARTS)]
    whole, seconds = FlipTally(), 0.0
    for name, tally, took in each_in_jobs(flip_situation, wanted, jobs=jobs):
        whole.add(tally)
        seconds += took
        click.echo(f"{name:14} {tally.flips:7} flips {tally.untouched:7} harmless {tally.repaired:7} "
                   f"repaired {tally.refused:5} refused {len(tally.bad):4} bad {took:8.1f} s")
        for sentence in tally.bad:
            click.echo(f"  BAD {sentence}")
    sound = whole.untouched + whole.repaired
    click.echo(f"{whole.flips} flips: {whole.untouched} harmless, {whole.repaired} repaired, {whole.refused} "
               f"need a person ({100 * sound / max(whole.flips, 1):.2f} % do not), {seconds:.0f} CPU seconds")
    for sentence in whole.refusals[:3]:
        click.echo(f"  refused: {sentence}")
    click.echo(f"{whole.flips - len(whole.bad)} flips passed, {len(whole.bad)} failed")
    sys.exit(1 if whole.bad else 0)


if __name__ == "__main__":
    main(prog_name="python -m dledger.testing.crashes")
