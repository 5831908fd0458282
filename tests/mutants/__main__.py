# -*- test-case-name: tests.sim.test_mutants -*-
"""
Runs every mutant under the simulator until it is noticed.

    python -m tests.mutants [--only NAME] [--seconds 60] [--jobs 2]

Each runs in its own process. Seconds are those of the processor: the load of the machine changes no result.
The exit status is 1 if a mutant survives, or if the text that it changes is no
longer in the source.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import attrs
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


def hunt(mutant: Mutant, *, seconds: float, first_seed: int = 1, sound: bool = False) -> int:
    """
    Run schedules on the mutated system in this process, for C{seconds} of the processor.

    @param sound: leave the system as it is; then no schedule may fail.
    @return: an exit status.
    """
    try:
        patching.check(mutant.patches)
    except patching.PatternNotFound as error:
        click.echo(f"out of date: {error}")
        return OUT_OF_DATE
    if not sound:
        patching.install(mutant.patches)
    if mutant.script or mutant.test or mutant.search is not None:
        return _hunt_once(mutant, seconds)
    run = _ha_run_of(mutant) if mutant.is_ha else _run_of(mutant)
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


def _run_of(mutant: Mutant) -> Callable[[int], str]:
    from dledger.testing.bugs import be_quiet
    from dledger.testing.group.schedule import Focus, run_schedule

    be_quiet()
    focus = Focus(settings=mutant.settings, faults=mutant.faults, load=mutant.load, pace_s=mutant.pace_s,
                  group=mutant.group)
    return lambda seed: run_schedule(seed, focus=focus, seconds=40).failure


def _ha_run_of(mutant: Mutant) -> Callable[[int], str]:
    from dledger.testing.brokers.schedule import HAFocus, run_ha_schedule
    from dledger.testing.bugs import be_quiet

    be_quiet()
    focus = HAFocus(settings=mutant.settings, faults=mutant.faults, pace_s=mutant.pace_s)
    return lambda seed: run_ha_schedule(seed, focus=focus).failure


def _judge(mutant: Mutant, seconds: float, sound: bool) -> Verdict:
    command = [sys.executable, "-m", "tests.mutants", "--child", mutant.name, "--seconds", str(seconds)]
    command += ["--sound"] if sound else []
    child = subprocess.run(command, capture_output=True, text=True, timeout=20 * seconds + 120,
                           check=False, cwd=ROOT)
    told, _, took = child.stdout.strip().rpartition(TOOK)
    if not took:
        return Verdict(mutant.name, child.returncode, 0.0, child.stderr.strip()[-300:])
    return Verdict(mutant.name, child.returncode, float(took), told.strip())


@click.command()
@click.option("--only", multiple=True, help="Name of a mutant; may be given more than once.")
@click.option("--seconds", default=60.0, show_default=True, help="Longest time of the processor for each.")
@click.option("--jobs", default=2, show_default=True, help="Processes.")
@click.option("--sound", is_flag=True, help="Break nothing: the same schedules must all pass.")
@click.option("--child", hidden=True)
def main(only: tuple[str, ...], seconds: float, jobs: int, sound: bool, child: str | None) -> None:
    """Break one guard at a time; the simulator must notice."""
    by_name = {mutant.name: mutant for mutant in MUTANTS}
    if child is not None:
        status = hunt(by_name[child], seconds=seconds, sound=sound)
        click.echo(f"{TOOK}{time.process_time():.1f}")
        sys.exit(status)
    unknown = [name for name in only if name not in by_name]
    if unknown:
        raise click.UsageError(f"no mutant {unknown[0]!r}; there are {', '.join(by_name)}")
    chosen = [by_name[name] for name in only] or list(MUTANTS)
    noticed = 0
    with ThreadPoolExecutor(jobs) as pool:
        for verdict in pool.map(lambda mutant: _judge(mutant, seconds, sound), chosen):
            noticed += verdict.is_good is not sound
            word = {NOTICED: "FAILED" if sound else "noticed", SURVIVED: "passed" if sound else "SURVIVED",
                    OUT_OF_DATE: "OUT OF DATE"}
            became = word.get(verdict.status, "CRASHED")
            click.echo(f"{verdict.name:28} {became:12} {verdict.seconds:5.1f} s  {verdict.told}")
    good = "passed" if sound else "noticed"
    click.echo(f"{len(chosen)} mutants, {noticed} {good}, {len(chosen) - noticed} not")
    sys.exit(0 if noticed == len(chosen) else 1)


if __name__ == "__main__":
    main(prog_name="python -m tests.mutants")
