# -*- test-case-name: tests.sim.test_mutants -*-
"""
Runs every mutant under the simulator until it is noticed.

    python -m tests.mutants [--only NAME] [--seconds 60] [--jobs 2]
    python -m tests.mutants --within 40 --drawn 1       a sample, in an order that the seed 1 draws
    python -m tests.mutants --unfocused --only NAME     by schedules without a hint

Each runs in its own process, forked from one that has other people's modules, but none of ours: those are
imported with their patches. Seconds are those of the processor: the load of the machine changes no result.
The exit status is 1 if a mutant survives, or if the text that it changes is no
longer in the source.
"""

from __future__ import annotations

import multiprocessing
import random
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import attrs
import click

from tests.mutants import hunting
from tests.mutants.catalogue import MUTANTS, Mutant
from tests.mutants.hunting import NOTICED, OUT_OF_DATE, SURVIVED, TOOK

#: Where the children come from. Imports of other people's modules would be a third of their time.
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload([
    "attrs", "click", "construct", "twisted.application.internet", "twisted.application.service",
    "twisted.internet.endpoints", "twisted.internet.task", "twisted.trial.reporter", "twisted.trial.runner",
])


@attrs.frozen
class Verdict:
    """The result of one mutant. @ivar seconds: of the processor."""

    name: str
    status: int
    seconds: float
    told: str

    @property
    def is_good(self) -> bool:
        """Whether it was noticed."""
        return self.status == NOTICED


def _judge(mutant: Mutant, seconds: float, sound: bool, unfocused: bool) -> Verdict:
    with tempfile.NamedTemporaryFile("r") as output:
        process = _PROCESSES.Process(
            target=hunting.child, args=(mutant.name, seconds, sound, output.name, unfocused)
        )
        process.start()
        process.join(20 * seconds + 120)
        if process.is_alive():
            process.kill()
            process.join()
        said = output.read().strip()
    told, _, took = said.rpartition(TOOK)
    if not told or process.exitcode is None:
        return Verdict(mutant.name, -1, 0.0, said[-300:])
    return Verdict(mutant.name, process.exitcode, float(took), told.strip().splitlines()[-1])


@click.command()
@click.option("--only", multiple=True, help="Name of a mutant; may be given more than once.")
@click.option("--seconds", default=60.0, show_default=True, help="Longest time of the processor for each.")
@click.option("--jobs", default=2, show_default=True, help="Processes.")
@click.option("--sound", is_flag=True, help="Break nothing: the same schedules must all pass.")
@click.option("--within", type=float, help="Seconds after which no further mutant begins.")
@click.option("--unfocused", is_flag=True, help="Only schedules as their seeds draw them, from 7001.")
@click.option("--drawn", type=int, help="The seed of a random order.")
def main(
    only: tuple[str, ...], seconds: float, jobs: int, sound: bool, within: float | None, drawn: int | None,
    unfocused: bool,
) -> None:
    """Break one guard at a time; the simulator must notice."""
    by_name = {mutant.name: mutant for mutant in MUTANTS}
    unknown = [name for name in only if name not in by_name]
    if unknown:
        raise click.UsageError(f"no mutant {unknown[0]!r}; there are {', '.join(by_name)}")
    chosen = [by_name[name] for name in only] or list(MUTANTS)
    if drawn is not None:
        random.Random(drawn).shuffle(chosen)
    end_s = None if within is None else time.monotonic() + within

    def judge_in_time(mutant: Mutant) -> Verdict | None:
        if end_s is not None and time.monotonic() >= end_s:
            return None
        return _judge(mutant, seconds, sound, unfocused)

    judged = noticed = 0
    with ThreadPoolExecutor(jobs) as pool:
        for verdict in pool.map(judge_in_time, chosen):
            if verdict is None:
                continue
            judged += 1
            noticed += verdict.is_good is not sound
            word = {NOTICED: "FAILED" if sound else "noticed", SURVIVED: "passed" if sound else "SURVIVED",
                    OUT_OF_DATE: "OUT OF DATE"}
            became = word.get(verdict.status, "CRASHED")
            click.echo(f"{verdict.name:28} {became:12} {verdict.seconds:5.1f} s  {verdict.told}")
    good = "passed" if sound else "noticed"
    click.echo(f"{judged} mutants, {noticed} {good}, {judged - noticed} not")
    sys.exit(0 if noticed == judged else 1)


if __name__ == "__main__":
    main(prog_name="python -m tests.mutants")
