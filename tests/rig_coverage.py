# -*- test-case-name: tests.sim.test_rig_coverage -*-
"""
Which lines of the product the simulators execute: a rig finds no fault where none of its schedules goes.

    python -m tests.rig_coverage                             # percent of each room; ten minutes
    python -m tests.rig_coverage --only group --schedules 5
    coverage report --data-file build/rigs.coverage -m --include 'dledger/core/*'      # lines that are left
    coverage html --data-file build/rigs.coverage --show-contexts -d build/coverage    # who executes a line

A rig plays each of its kinds once, a focus for example, then schedules as its seeds draw them: the figure is
of all that can be played, not of thirty draws. The context of a line is the rig that executed it.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Mapping
from pathlib import Path

import click
from coverage import Coverage

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "build" / "rigs.coverage"
#: Folders of the report.
ROOMS = ("core", "machine", "node", "raft_broker", "storage", "rocketmq")


def _group(seed: int) -> None:
    from dledger.testing.group.focuses import run_drawn_schedule

    run_drawn_schedule(seed)


def _pairs(seed: int) -> None:
    from dledger.testing.brokers.pair_schedule import run_pair_schedule

    run_pair_schedule(seed)


def _raft(seed: int) -> None:
    from dledger.testing.raft_brokers.schedule import run_raft_schedule

    run_raft_schedule(seed)


def _crashes(seed: int) -> None:
    from dledger.testing.crashes.__main__ import CutsWanted, cut_story, story_names

    number = seed % len(story_names())
    cut_story(CutsWanted(number=number, seed=seed, share=0.003, second_share=0.003))


#: By the name in the table: plays the schedule of a seed.
RIGS: Mapping[str, Callable[[int], None]] = {
    "group": _group, "pairs": _pairs, "raft": _raft, "crashes": _crashes,
}


def _scenario(path: Path) -> None:
    from dledger.testing.group.scenario import Scenario

    Scenario(path.read_text(encoding="utf-8"), name=path.name).run()


def _group_kinds() -> list[Callable[[], object]]:
    """Every scenario; each focus, with machines and with a liar: two seeds of each."""
    from dledger.testing.group.focuses import FOCUSES, run_drawn_schedule
    from dledger.testing.group.liars import run_lying_schedule
    from dledger.testing.group.short_logs import run_machine_schedule

    runs: list[Callable[[int], object]] = [
        *(functools.partial(run_drawn_schedule, focus_name=name) for name in FOCUSES),
        run_machine_schedule, run_lying_schedule,
    ]
    scenarios = sorted((ROOT / "tests" / "scenarios").glob("*.txt"))
    return [
        *(functools.partial(_scenario, path) for path in scenarios),
        *(functools.partial(run, seed) for number, run in enumerate(runs)
          for seed in (number, 1000 + number)),
    ]


def _crash_kinds() -> list[Callable[[], object]]:
    """Every workload, and some flips of every directory."""
    from dledger.testing.crashes.__main__ import FlipsWanted, flip_situation, story_names
    from dledger.testing.crashes.ledger_flips import situations

    flips = [functools.partial(flip_situation, FlipsWanted(number=number, every=101, offset=0))
             for number, _ in enumerate(situations())]
    return [*(functools.partial(_crashes, number) for number, _ in enumerate(story_names())), *flips]


def _pair_kinds() -> list[Callable[[], object]]:
    """
    Pairs without clients; old files, disks that cannot read, and the stories of groups, which not every seed
    draws; slaves that become masters.
    """
    from dledger.testing.brokers.pair_schedule import PairFocus, run_pair_schedule

    focuses = (
        *[PairFocus(bare=True)] * 8, PairFocus(ages=True, slaves=2),
        PairFocus(faults=("spoil_queue", "read_error", "kill"), pace_s=0.7),
        PairFocus(faults=("promote", "age", "kill", "fill_disk"), slaves=2, pace_s=1.0),
        PairFocus(faults=("spoil_log", "cut_client", "spoil_log"), pace_s=1.0),
        PairFocus(faults=("spoil_log", "spoil_queue", "kill", "lose_power"), pace_s=0.7),
        PairFocus(faults=("nothing",), groups=True),
        PairFocus(groups=True), PairFocus(groups=True, slaves=2),
        PairFocus(faults=("kill", "promote", "cut_client"), groups=True, pace_s=1.5),
        PairFocus(faults=("fail_start", "stop", "lose_files", "spoil_queue"), pace_s=0.7),
    )
    return [functools.partial(run_pair_schedule, seed, focus=focus) for seed, focus in enumerate(focuses, 1)]


def _raft_kinds() -> list[Callable[[], object]]:
    """As L{_pair_kinds}, of groups on raft logs."""
    from dledger.testing.raft_brokers.schedule import run_raft_schedule

    kinds = (
        (("spoil_queue", "read_error", "kill"), False), (("age", "hand_over", "cut_off", "fill_disk"), False),
        (("nothing",), True), ((), True), ((), True),
        (("spoil_log", "spoil_log", "kill", "hand_over"), False),
        (("append_strangely", "kill", "hand_over"), False), (("age", "age", "kill", "spoil_log"), False),
        (("spoil_log", "lose_files", "kill"), False), (("fail_start", "stop", "lose_files"), False),
        (("fail_start", "stop", "stop"), False),
        (("lose_files", "lose_files", "hand_over_in_vain"), False),
    )
    return [functools.partial(run_raft_schedule, seed, faults=faults, groups=groups)
            for seed, (faults, groups) in enumerate(kinds, 1)]


#: By the name of a rig: makes the plays of all its kinds, one each. A rig that is not here has one kind.
KINDS: dict[str, Callable[[], list[Callable[[], object]]]] = {
    "group": _group_kinds, "pairs": _pair_kinds, "raft": _raft_kinds,
    "crashes": _crash_kinds,
}


def _be_quiet() -> None:
    """The first import of the rigs."""
    from dledger.testing.world.bugs import be_quiet

    be_quiet()


def play(rig: str, seeds: range) -> None:
    """Play a rig: each of its kinds, then the schedules of seeds."""
    for kind in KINDS[rig]() if rig in KINDS else ():
        kind()
    for seed in seeds:
        RIGS[rig](seed)


def measured(plays: Mapping[str, Callable[[], object]], data: Path) -> Coverage:
    """
    Play, and write which lines were executed.

    @param plays: by their contexts.
    @param data: the file, which is made anew.
    """
    found = Coverage(data_file=str(data), config_file=False, source=[str(ROOT / "dledger")],
                     omit=[str(ROOT / "dledger" / "testing" / "*")])
    found.erase()
    found.start()
    try:
        for context, play_all in plays.items():
            found.switch_context(context)
            play_all()
    finally:
        found.stop()
        found.save()
    return found


@click.command()
@click.option("--only", multiple=True, type=click.Choice(list(RIGS)), help="[default: all rigs]")
@click.option("--schedules", default=30, show_default=True, help="Of each rig, after those of its kinds.")
@click.option("--seed", default=1, show_default=True, help="Of the first schedule.")
def main(only: tuple[str, ...], schedules: int, seed: int) -> None:
    """Print which share of the lines of each room the simulators execute."""
    DATA.parent.mkdir(exist_ok=True)
    seeds = range(seed, seed + schedules)
    plays = {rig: functools.partial(play, rig, seeds) for rig in only or RIGS}
    found = measured({"imports": _be_quiet, **plays}, DATA)
    for room in ROOMS:
        share = found.report(file=io.StringIO(), include=[f"{ROOT}/dledger/{room}/*"])
        click.echo(f"{room}: {share:.0f} %")


if __name__ == "__main__":
    main(prog_name="python -m tests.rig_coverage")
