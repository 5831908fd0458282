# -*- test-case-name: tests.sim.test_mutants -*-
"""
The hunt for one mutant, in a process of its own.

No module of the mutated system may be imported before it begins.
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import attrs
import click

from tests.mutants import patching
from tests.mutants.catalogue import MUTANTS, Mutant

ROOT = Path(__file__).parent.parent.parent

#: States of a search, at most.
_STATES_MAX = 180_000

#: Seconds of the processor that a child may take: a multiple of those of its schedules.
_LONGEST = 4

#: The file of a child's output, and the beginning of its last line: seconds of the processor.
OUTPUT, TOOK = "output", "took "

#: Exit statuses of a child.
NOTICED, SURVIVED, OUT_OF_DATE = 0, 3, 4


@attrs.frozen(kw_only=True)
class Hunt:
    """
    How a mutant is hunted.

    @ivar pin: the seed of the only schedule, in digits, or the name of a test or of a module of tests. Empty:
        what the mutant names, or schedules until one notices.
    @ivar seconds: of the processor, after which no further schedule begins.
    @ivar first_seed: of these schedules.
    @ivar sound: leave the system as it is; then nothing may be noticed.
    @ivar unfocused: schedules as their seeds draw them, whatever else the mutant names.
    """

    pin: str = ""
    seconds: float = 60.0
    first_seed: int = 1
    sound: bool = False
    unfocused: bool = False


def hunt(mutant: Mutant, how: Hunt) -> int:
    """Hunt the mutant in this process. @return: an exit status."""
    try:
        patching.check(mutant.patches)
    except patching.PatternNotFound as error:
        click.echo(f"out of date: {error}")
        return OUT_OF_DATE
    if not how.sound:
        patching.install(mutant.patches)
    reported = _reported_of(mutant, how)
    click.echo(reported or "survived")
    return NOTICED if reported else SURVIVED


def _reported_of(mutant: Mutant, how: Hunt) -> str:
    """What is noticed, in a line; empty: nothing."""
    if how.unfocused:
        from tests.mutants.random_run import failure_of_schedules

        return failure_of_schedules(mutant.patches[0].module, how.seconds)
    if how.pin.isdecimal():
        return _reported_by_schedules(mutant, int(how.pin), 0.0)
    if how.pin or mutant.test:
        return failure_of_tests([how.pin or mutant.test])
    if mutant.is_certain:
        reported = _scenario_of(mutant) if mutant.script else _search_of(mutant)
        return reported.strip().splitlines()[0][:150] if reported else ""
    return _reported_by_schedules(mutant, how.first_seed, how.seconds)


def _reported_by_schedules(mutant: Mutant, first_seed: int, seconds: float) -> str:
    """By one schedule at least. @param seconds: of the processor, after which no further one begins."""
    run = _runs_of(mutant)(mutant)
    began, seed = time.process_time(), first_seed
    while True:
        failure = run(seed)
        if failure:
            return f"schedule {seed}: {failure.strip().splitlines()[-1][:150]}"
        seed += 1
        if time.process_time() - began >= seconds:
            return ""


def _scenario_of(mutant: Mutant) -> str:
    from dledger.testing.group.scenario import Scenario

    script = ROOT / "tests" / "scenarios" / f"{mutant.script}.txt"
    try:
        Scenario(script.read_text(), name=script.name).run()
    except AssertionError as failed:
        return str(failed) or "an assertion failed"
    return ""


def failure_of_tests(names: Sequence[str]) -> str:
    """The first test that fails, and its error; empty: none did."""
    from hypothesis import Phase, settings
    from twisted.trial.reporter import TestResult
    from twisted.trial.runner import TestLoader

    # Drawn cases are the same in each run, and the first one that fails is enough.
    settings.register_profile("certain", derandomize=True, database=None,
                              phases=(Phase.explicit, Phase.generate))
    settings.load_profile("certain")
    for name in names:
        result = TestResult()
        TestLoader().loadByName(name, recurse=True).run(result)
        if not result.wasSuccessful():
            test, failure = (*result.failures, *result.errors)[0]
            said = failure if isinstance(failure, str) else failure.getErrorMessage()
            return f"{test.id()}: {said.strip().splitlines()[-1][:120] if said.strip() else ''}"
    return ""


def _search_of(mutant: Mutant) -> str:
    from dledger.testing.search.explore import explore
    from dledger.testing.search.group import Bounds

    assert mutant.search is not None
    bounds = Bounds(**mutant.search)  # type: ignore[arg-type]
    found = explore(bounds, states_max=_STATES_MAX)
    return f"{found.broken}, after {len(found.way)} moves" if found.broken else ""


def _runs_of(mutant: Mutant) -> Callable[[Mutant], Callable[[int], str]]:
    """Makes the player of schedules in which a mutant is noticed."""
    if mutant.is_pair:
        return _pair_run_of
    return _raft_run_of if mutant.is_raft else _run_of


def _run_of(mutant: Mutant) -> Callable[[int], str]:
    from dledger.testing.group.schedule import Focus, run_schedule
    from dledger.testing.world.bugs import be_quiet

    be_quiet()
    focus = Focus(settings=mutant.settings, faults=mutant.faults, load=mutant.load, pace_s=mutant.pace_s,
                  group=mutant.group, readers=mutant.readers)
    return lambda seed: run_schedule(seed, focus=focus, seconds=40).failure


def _pair_run_of(mutant: Mutant) -> Callable[[int], str]:
    from dledger.testing.brokers.pair_schedule import PairFocus, run_pair_schedule
    from dledger.testing.world.bugs import be_quiet

    be_quiet()
    focus = PairFocus(faults=mutant.faults, pace_s=mutant.pace_s, **mutant.settings)  # type: ignore[arg-type]
    return lambda seed: run_pair_schedule(seed, focus=focus).failure


def _raft_run_of(mutant: Mutant) -> Callable[[int], str]:
    from dledger.testing.raft_brokers.schedule import run_raft_schedule
    from dledger.testing.world.bugs import be_quiet

    be_quiet()
    return lambda seed: run_raft_schedule(seed, faults=mutant.faults).failure


def enter(folder: str, longest_s: int) -> None:
    """
    Make this process one that judges a mutant.

    @param folder: for all that it writes; its output goes to the file L{OUTPUT} there.
    @param longest_s: seconds of the processor after which the system ends it: a loop without end.
    """
    with open(Path(folder, OUTPUT), "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    os.chdir(folder)
    tempfile.tempdir = folder
    resource.setrlimit(resource.RLIMIT_CPU, (longest_s, longest_s + 5))
    sys.path.insert(0, str(ROOT))


def child(name: str, how: Hunt, folder: str) -> NoReturn:
    """Hunt one mutant in this process. @param folder: see L{enter}."""
    enter(folder, int(_LONGEST * how.seconds))
    status = hunt({mutant.name: mutant for mutant in MUTANTS}[name], how)
    click.echo(f"{TOOK}{time.process_time():.1f}")
    sys.stdout.flush()
    os._exit(status)
