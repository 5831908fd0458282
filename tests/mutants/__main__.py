# -*- test-case-name: tests.sim.test_mutants -*-
"""
Plays the mutants: each must be noticed by its pin, and should be by other schedules.

    python -m tests.mutants [--only NAME] [--seconds 60] [--jobs 2]
    python -m tests.mutants --pinned --within 80        by pins alone; a sample that the git tree draws
    python -m tests.mutants --renew                     look for pins where one is needed, and write them
    python -m tests.mutants --sound --pinned            the same schedules on the unbroken system
    python -m tests.mutants --unfocused --only NAME     by schedules without a hint

A mutant that its pin (L{tests.mutants.pins}), its test, its scenario or its search does not notice has
failed, and so has one whose text is no longer in the source; then the exit status is 1. One that other
schedules do not notice has survived, which is luck, and no failure.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import click

from tests.mutants.catalogue import MUTANTS, Mutant
from tests.mutants.judging import FAILED, GOOD, LUCKY, Play, Verdict
from tests.mutants.pins import read_pins
from tests.mutants.renewing import Finder, renew
from tests.runner.report import tested_tree


def _play(chosen: Sequence[Mutant], play: Play, jobs: int, within: float | None) -> int:
    """Play these, and print each verdict. @return: the number of those that failed."""
    pins = read_pins()
    spent = 0.0

    def judge_in_time(mutant: Mutant) -> tuple[str, Verdict] | None:
        nonlocal spent
        if within is not None and spent >= within:
            return None
        judged = play.judge(mutant, pins.get(mutant.name))
        spent += judged[1].seconds if judged else 0.0
        return judged

    words: Counter[str] = Counter()
    with ThreadPoolExecutor(jobs) as pool:
        for judged in pool.map(judge_in_time, chosen):
            if judged is not None:
                word, verdict = judged
                words[word] += 1
                click.echo(f"{verdict.name:28} {word:12} {verdict.seconds:5.1f} s  {verdict.reported}")
    unpinned = [one.name for one in chosen if not one.is_certain and pins.get(one.name) is None]
    if unpinned:
        click.echo(f"{len(unpinned)} without a pin: {', '.join(unpinned)}")
    click.echo(f"{spent:.0f} s of the processor")
    good = "passed" if play.sound else GOOD
    failed = words.total() - words[good] - words[LUCKY]
    if words[FAILED] and not play.sound:
        click.echo("If a change made another run of the seed, --renew finds another pin.")
    click.echo(f"{words.total()} mutants, {words[good]} {good}, {failed} failed, {words[LUCKY]} {LUCKY}")
    return failed


@click.command()
@click.option("--only", multiple=True, help="Name of a mutant; may be given more than once.")
@click.option("--seconds", default=60.0, show_default=True, help="Of the processor, for schedules of each.")
@click.option("--jobs", default=2, show_default=True, help="Processes.")
@click.option("--pinned", is_flag=True, help="Play the pins alone: nothing is left to luck.")
@click.option("--renew", "renews", is_flag=True, help="Look for pins where none notices.")
@click.option("--sound", is_flag=True, help="Break nothing: the same schedules must all pass.")
@click.option("--within", type=float, help="Seconds of the processor after which no further mutant begins.")
@click.option("--drawn", type=int, help="The seed of the order with --within.  [default: of the git tree]")
@click.option("--unfocused", is_flag=True, help="Only schedules as their seeds draw them, from 7001.")
def main(
    only: tuple[str, ...], seconds: float, jobs: int, pinned: bool, renews: bool, sound: bool,
    within: float | None, drawn: int | None, unfocused: bool,
) -> None:
    """Break one guard at a time; its pin, and the simulator, must notice."""
    by_name = {mutant.name: mutant for mutant in MUTANTS}
    unknown = [name for name in only if name not in by_name]
    if unknown:
        raise click.UsageError(f"no mutant {unknown[0]!r}; there are {', '.join(by_name)}")
    chosen = [by_name[name] for name in only] or list(MUTANTS)
    if renews:
        sys.exit(1 if renew(chosen, jobs, Finder(seconds=seconds)) else 0)
    if within is not None:
        drawn = int(tested_tree()[:7] or "1", 16) if drawn is None else drawn
        click.echo(f"in the order that --drawn {drawn} gives")
        random.Random(drawn).shuffle(chosen)
    play = Play(seconds=seconds, is_pinned=pinned, sound=sound, unfocused=unfocused)
    sys.exit(1 if _play(chosen, play, jobs, within) else 0)


if __name__ == "__main__":
    main(prog_name="python -m tests.mutants")
