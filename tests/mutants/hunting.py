# -*- test-case-name: tests.sim.test_mutants -*-
"""
The hunt for one mutant, in a process of its own.

No module of the mutated system may be imported before it begins.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import click

from tests.mutants import patching
from tests.mutants.catalogue import MUTANTS, Mutant

ROOT = Path(__file__).parent.parent.parent

#: States of a search that a second is good for, at least.
_STATES_PER_SECOND = 3000

#: The last line of a child: seconds of the processor.
TOOK = "took "

#: Exit statuses of a child.
NOTICED, SURVIVED, OUT_OF_DATE = 0, 3, 4


def hunt(
    mutant: Mutant, *, seconds: float, first_seed: int = 0, sound: bool = False, unfocused: bool = False
) -> int:
    """
    Run schedules on the mutated system in this process, for C{seconds} of the processor.

    @param first_seed: instead of the mutant's own.
    @param sound: leave the system as it is; then no schedule may fail.
    @param unfocused: schedules as their seeds draw them, whatever else the mutant names.
    @return: an exit status.
    """
    try:
        patching.check(mutant.patches)
    except patching.PatternNotFound as error:
        click.echo(f"out of date: {error}")
        return OUT_OF_DATE
    if not sound:
        patching.install(mutant.patches)
    if unfocused:
        return _hunt_unfocused(mutant, seconds)
    if mutant.script or mutant.test or mutant.search is not None:
        return _hunt_once(mutant, seconds)
    run = _runs_of(mutant)(mutant)
    first_seed = first_seed or mutant.seed
    began, seed = time.process_time(), first_seed
    while time.process_time() - began < seconds:
        failure = run(seed)
        if failure:
            sentence = failure.strip().splitlines()[-1][:150]
            click.echo(f"schedule {seed - first_seed + 1}: {sentence}")
            return NOTICED
        seed += 1
    click.echo(f"survived {seed - first_seed} schedules")
    return SURVIVED


def _hunt_unfocused(mutant: Mutant, seconds: float) -> int:
    """As L{hunt}, by the rigs that run the first changed module."""
    from tests.mutants.random_run import failure_of_schedules

    failure = failure_of_schedules(mutant.patches[0].module, seconds)
    click.echo(failure or "survived")
    return NOTICED if failure else SURVIVED


def _hunt_once(mutant: Mutant, seconds: float) -> int:
    """As L{hunt}, for a mutant with a scenario, a test or a search, which need no second attempt."""
    if mutant.script:
        failure = _scenario_of(mutant)
    else:
        failure = _test_of(mutant) if mutant.test else _search_of(mutant, seconds)
    click.echo(failure.strip().splitlines()[0][:150] if failure else "survived")
    return NOTICED if failure else SURVIVED


def _scenario_of(mutant: Mutant) -> str:
    from dledger.testing.group.scenario import Scenario

    script = ROOT / "tests" / "scenarios" / f"{mutant.script}.txt"
    try:
        Scenario(script.read_text(), name=script.name).run()
    except AssertionError as failed:
        return str(failed) or "an assertion failed"
    return ""


def _test_of(mutant: Mutant) -> str:
    from twisted.trial.reporter import TestResult
    from twisted.trial.runner import TestLoader

    result = TestResult()
    TestLoader().loadByName(mutant.test).run(result)
    if result.wasSuccessful():
        return ""
    test, failure = (*result.failures, *result.errors)[0]
    said = failure if isinstance(failure, str) else failure.getErrorMessage()
    return f"{test.id()}: {said}"


def _search_of(mutant: Mutant, seconds: float) -> str:
    from dledger.testing.search.explore import explore
    from dledger.testing.search.group import Bounds

    assert mutant.search is not None
    bounds = Bounds(**mutant.search)  # type: ignore[arg-type]
    found = explore(bounds, states_max=int(seconds * _STATES_PER_SECOND))
    return f"{found.broken}, after {len(found.way)} moves" if found.broken else ""


def _runs_of(mutant: Mutant) -> Callable[[Mutant], Callable[[int], str]]:
    """Makes the player of schedules in which a mutant is noticed."""
    if mutant.is_ha:
        return _ha_run_of
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


def _ha_run_of(mutant: Mutant) -> Callable[[int], str]:
    from dledger.testing.brokers.schedule import HAFocus, run_ha_schedule
    from dledger.testing.world.bugs import be_quiet

    be_quiet()
    focus = HAFocus(settings=mutant.settings, faults=mutant.faults, pace_s=mutant.pace_s)
    return lambda seed: run_ha_schedule(seed, focus=focus).failure


def _pair_run_of(mutant: Mutant) -> Callable[[int], str]:
    from dledger.testing.brokers.pair_schedule import PairFocus, run_pair_schedule
    from dledger.testing.world.bugs import be_quiet

    be_quiet()
    focus = PairFocus(faults=mutant.faults, pace_s=mutant.pace_s, **mutant.settings)  # type: ignore[arg-type]
    return lambda seed: run_pair_schedule(seed, focus=focus).failure


def _raft_run_of(mutant: Mutant) -> Callable[[int], str]:
    from dledger.testing.raft_brokers.client_schedule import run_raft_clients
    from dledger.testing.world.bugs import be_quiet

    be_quiet()
    return lambda seed: run_raft_clients(seed, faults=mutant.faults).failure


def child(name: str, seconds: float, sound: bool, output: str, unfocused: bool) -> NoReturn:
    """Hunt one mutant in this process, which writes its findings to a file."""
    with open(output, "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    status = hunt({mutant.name: mutant for mutant in MUTANTS}[name], seconds=seconds, sound=sound,
                  unfocused=unfocused)
    click.echo(f"{TOOK}{time.process_time():.1f}")
    sys.exit(status)
