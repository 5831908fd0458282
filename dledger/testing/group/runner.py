# -*- test-case-name: tests.sim.test_runner -*-
"""
Runs many schedules, on several processors, and reports the results::

    python -m dledger.testing --schedules 1000 --seed 1 --jobs 2

Schedule i has seed C{seed + i}; half of the seeds draw a focus, L{dledger.testing.group.focuses}. With
C{--corpus} half of the schedules are made of earlier ones, L{dledger.testing.group.corpus}. A failure prints
its seed, what is wrong, the last steps, and the command that runs it again; the exit status is then 1.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from functools import partial
from pathlib import Path

import attrs
import click

from dledger.testing.group.corpus import CorpusError, PlayedLine
from dledger.testing.group.corpus_run import CorpusRun, PlayedOutcome, play_line
from dledger.testing.group.focuses import FOCUSES, run_drawn_schedule
from dledger.testing.group.liars import LYING_S, run_lying_schedule
from dledger.testing.group.schedule import SECONDS, ScheduleOutcome
from dledger.testing.group.short_logs import run_machine_schedule
from dledger.testing.world.bugs import be_quiet
from dledger.testing.world.running import Effort, Tally, notify

_WORDS = {
    "steps": "steps", "acknowledged": "acknowledged appends", "elections": "elections",
    "restarts": "restarts",
}


def replay_group_command(
    outcome: ScheduleOutcome, *, seconds: float, members: int | None, kind: str = ""
) -> str:
    """The command that runs a failed schedule again. @param kind: an option; empty for none."""
    chosen = kind and f" {kind}"
    chosen += f" --members {members}" if members else ""
    command = "python -m dledger.testing --schedules 1"
    return f"{command} --seed {outcome.seed} --seconds {seconds:g}{chosen} --trace"


def replay_line_command(outcome: PlayedOutcome, *, seconds: float) -> str:
    """The command that plays the line of a failed schedule again."""
    return f'python -m dledger.testing --play "{outcome.line}" --seconds {seconds:g} --trace'


def _notify_played(found: Generator[PlayedOutcome], *, seconds: float, trace: bool, stop_at: int,
                 effort: Effort) -> None:
    """Print the outcomes of lines, and end the program."""
    with closing(found):
        notify(effort.bounded(found), Tally(words=_WORDS),
               again=partial(replay_line_command, seconds=seconds),
             is_traced=trace, stop_at=stop_at)


@attrs.frozen
class _Lines:
    """
    What the options say of lines of a corpus.

    @ivar path: its file, which is written if C{saves}. @ivar line: the only one; empty: those of the file.
    """

    path: Path | None
    saves: bool
    line: str

    def play(
        self, seconds: float, *, schedules: int, seed: int, jobs: int, trace: bool, stop_at: int,
        effort: Effort,
    ) -> None:
        """Play them, and end the program."""
        reported = partial(_notify_played, seconds=seconds, trace=trace, stop_at=stop_at, effort=effort)
        try:
            if self.path is None:
                line = PlayedLine.parse(self.line)
                reported(play_line(one, seconds=seconds, wants_all_lines=trace) for one in (line,))
                return
            run = CorpusRun(self.path, seconds=seconds, seed=seed, saves=self.saves)
        except CorpusError as error:
            raise click.ClickException(str(error)) from None
        try:
            reported(run.outcomes_of_jobs(schedules, jobs, effort))
        finally:
            click.echo(run.sentence)


@click.command()
@click.option("--schedules", default=200, show_default=True, help="Number of schedules.")
@click.option("--seed", default=1, show_default=True, help="Seed of the first; the others follow.")
@click.option("--seconds", type=float, help=f"Simulated seconds with faults, each; {SECONDS:g} by default, "
              f"{LYING_S:g} with --lying.")
@click.option("--lying", is_flag=True, help="In each schedule one member lies, or frames arrive changed.")
@click.option("--machines", is_flag=True, help="All members run machines and drop their log.")
@click.option("--focus", type=click.Choice(["drawn", "none", *FOCUSES]), default="drawn", show_default=True,
              help="Bias of each schedule: as its seed draws it, none, or this one.")
@click.option("--members", type=click.Choice(["3", "5", "7"]), help="Size of the group; else by seed.")
@click.option("--corpus", "path", type=click.Path(dir_okay=False, path_type=Path),
              help="File of schedules that reached new states: half of the schedules turn off from them, and "
              "those that reach new ones are added. Without the file, it is made.")
@click.option("--read-only", is_flag=True, help="The file of --corpus stays as it is.")
@click.option("--play", "line", default="", help="Play one line of a corpus, as a failure prints it.")
@click.option("--jobs", default=2, show_default=True, help="Processes.")
@click.option("--trace", is_flag=True, help="Print every step.")
@click.option("--stop-at", default=5, show_default=True, help="Give up after this many failures.")
@click.option("--within", type=float, help="Seconds of the processor after which no outcome is awaited.")
@click.option("--at-least", default=1, help="Number of schedules that are played in any case.")
def main(
    schedules: int, seed: int, seconds: float | None, lying: bool, machines: bool, focus: str,
    members: str | None, path: Path | None, read_only: bool, line: str, jobs: int, trace: bool,
    stop_at: int, within: float | None, at_least: int,
) -> None:
    """Run seeded schedules of a whole simulated group and check every promise."""
    be_quiet()
    size = int(members) if members else None
    effort = Effort(within_s=within, at_least=at_least)
    seconds = seconds or (LYING_S if lying else SECONDS)
    if path or line:
        if lying or machines or members or focus != "drawn" or (path and (line or trace)):
            raise click.UsageError("a line of a corpus has its own kind, focus and members; --corpus has no "
                                   "--play and no --trace")
        _Lines(path, not read_only, line).play(
            seconds, schedules=schedules, seed=seed, jobs=jobs, trace=trace, stop_at=stop_at, effort=effort
        )
    if lying and machines:
        raise click.UsageError("--lying and --machines are two kinds of schedules: give one of them")
    if focus != "drawn" and (lying or machines):
        raise click.UsageError("--focus is for schedules without --lying and --machines")
    drawn = partial(run_drawn_schedule, focus_name="" if focus == "none" else focus)
    run_one = run_lying_schedule if lying else run_machine_schedule if machines else drawn
    chosen = "" if focus == "drawn" else f"--focus {focus}"
    kind = "--lying" if lying else "--machines" if machines else chosen
    run = partial(run_one, seconds=seconds, members=size, wants_all_lines=trace)
    found = effort.played(run, range(seed, seed + schedules), jobs=max(1, min(jobs, schedules)))
    again = partial(replay_group_command, seconds=seconds, members=size, kind=kind)
    notify(effort.bounded(found), Tally(words=_WORDS), again=again, is_traced=trace, stop_at=stop_at)
