# -*- test-case-name: tests.sim.test_random_mutants -*-
"""
Random mutants: who notices a fault that nobody thought of.

    python -m tests.mutants.random_run --count 40 --seed 7 [--room core] [--seconds 20]
    python -m tests.mutants.random_run --module dledger.core.replica:DLedgerCore --no-schedules
    python -m tests.mutants.random_run --count 40 --seed 7 --seconds 60 --schedules-alone
    make mutants-random N=200 SEED=7

Each is judged three times, in processes of its own, until it is noticed: by schedules as their seeds draw
them, by the unit tests that its module names, by all unit tests of its package. A hang is noticed. The
list of faults that nobody notices, with their places, shows tests that are missing, guards that are there
twice, and changes that change nothing; the last kind is in C{equivalent.txt}, each with its reason. The exit
status is 1 if there is another one.
"""

from __future__ import annotations

import collections
import multiprocessing
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn, Protocol

import attrs
import click

from tests.mutants import patching
from tests.mutants.hunting import NOTICED, OUTPUT, ROOT, SURVIVED, enter, failure_of_tests
from tests.mutants.sites import ROOMS, Splice, drawn

_PROCESSES = multiprocessing.get_context("forkserver")
EQUIVALENT = Path(__file__).with_name("equivalent.txt")
#: Longest time of one judgement, as a multiple of its limit of processor time, and seconds more.
_SLOWEST, _MORE_S = 12, 60
#: Seconds of the processor that a judgement may take: a multiple of its limit; a loop without end takes more.
_LONGEST = 4
#: Seconds of the processor for the unit tests of a module, and for those of one package.
_MODULE_S, _UNIT_S = 15.0, 60.0

SCHEDULES, UNITS, PACKAGE = "schedules", "unit tests", "its package"
NOBODY, EQUAL = "NOBODY", "nobody (equal)"
JUDGES = (SCHEDULES, UNITS, PACKAGE)


@attrs.frozen
class Finding:
    """Who noticed a mutant, and what was said."""

    splice: Splice
    by: str
    reported: str = ""


def equivalents() -> dict[str, str]:
    """Keys of changes that change nothing, and why."""
    found: dict[str, str] = {}
    for line in EQUIVALENT.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            key, _, reason = line.partition(" | ")
            found[key] = reason
    return found


class Outcome(Protocol):
    """The end of a schedule of any rig."""

    @property
    def failure(self) -> str:
        """Empty if it passed."""


def schedules_of(module: str) -> list[Callable[[int], Outcome]]:
    """The rigs that run a module, by whole schedules; they take turns."""
    if module.startswith("dledger.rocketmq"):
        from dledger.testing.brokers.pair_schedule import run_pair_schedule

        return [run_pair_schedule]
    if module.startswith("dledger.raft_broker"):
        from dledger.testing.raft_brokers.schedule import run_raft_schedule

        return [run_raft_schedule]
    from dledger.testing.group.focuses import run_drawn_schedule

    return [run_drawn_schedule]


def failure_of_schedules(module: str, seconds: float) -> str:
    """The error of the first schedule that fails; empty: none did."""
    from dledger.testing.world.bugs import be_quiet

    be_quiet()
    runs = schedules_of(module)
    began, seed = time.process_time(), 7001
    while time.process_time() - began < seconds:
        failure = runs[seed % len(runs)](seed).failure
        if failure:
            return f"schedule {seed}: {failure.strip().splitlines()[-1][:150]}"
        seed += 1
    return ""


def tests_of(module: str) -> list[str]:
    """The tests that a module names in its first line."""
    path = ROOT / (module.replace(".", "/") + ".py")
    named = re.match(r"# -\*- test-case-name: (\S+) -\*-", path.read_text(encoding="utf-8"))
    return named[1].split(",") if named else []


def package_tests(module: str) -> list[str]:
    """The packages of the tests that a module names; without any, that of the nearest folder with tests."""
    named = sorted({name.rpartition(".")[0] for name in tests_of(module)} - {"tests"})
    if named:
        return named
    parts = [part for part in module.split(".")[1:-1] if part != "rocketmq"]
    while parts and not ROOT.joinpath("tests", *parts, "__init__.py").exists():
        parts.pop()
    return [".".join(("tests", *(parts or ["broker"])))]


def child(splice: Splice, by: str, seconds: float, folder: str) -> NoReturn:
    """One judgement, in this process. @param folder: see L{enter}."""
    enter(folder, int(_LONGEST * seconds))
    patching.install([splice])
    try:
        if by == SCHEDULES:
            reported = failure_of_schedules(splice.module, seconds)
        else:
            reported = failure_of_tests(tests_of(splice.module) if by == UNITS
                                        else package_tests(splice.module))
    except BaseException as error:
        reported = f"{type(error).__name__}: {error}"[:150]
    click.echo(reported)
    sys.stdout.flush()
    os._exit(NOTICED if reported else SURVIVED)


def _judged(splice: Splice, by: str, seconds: float) -> str:
    """What was noticed; empty: nothing."""
    limit_s = _SLOWEST * seconds + _MORE_S
    with tempfile.TemporaryDirectory(prefix="mutant-", ignore_cleanup_errors=True) as folder:
        process = _PROCESSES.Process(target=child, args=(splice, by, seconds, folder))
        process.start()
        process.join(limit_s)
        if process.is_alive():
            process.kill()
            process.join()
            return f"does not end within {limit_s:g} s"
        if process.exitcode == SURVIVED:
            return ""
        if process.exitcode == -signal.SIGXCPU:
            return f"does not end within {_LONGEST * seconds:g} s of the processor"
        lines = Path(folder, OUTPUT).read_text(errors="replace").strip().splitlines()
        return lines[-1][:150] if lines else f"exit status {process.exitcode}"


def judge(splice: Splice, seconds: float, judges: Sequence[str] = JUDGES) -> Finding:
    """Who notices a mutant first. @param judges: those that are asked, of L{JUDGES}."""
    for by in judges:
        reported = _judged(splice, by, {SCHEDULES: seconds, UNITS: _MODULE_S, PACKAGE: _UNIT_S}[by])
        if reported:
            return Finding(splice, by, reported)
    return Finding(splice, EQUAL if splice.key in equivalents() else NOBODY)


@click.command()
@click.option("--count", default=40, show_default=True, help="Number of mutants.")
@click.option("--seed", default=1, show_default=True, help="Draws them.")
@click.option("--room", "rooms", multiple=True, type=click.Choice(ROOMS), help="[default: all]")
@click.option("--module", "places", multiple=True, help="A module, a package or module:function: in these.")
@click.option("--seconds", default=20.0, show_default=True, help="Of the processor, for schedules of each.")
@click.option("--jobs", default=2, show_default=True, help="Processes.")
@click.option("--no-schedules", is_flag=True, help="Ask the unit tests alone.")
@click.option("--schedules-alone", is_flag=True, help="Do not ask the unit tests.")
@click.option("--show", is_flag=True, help="Only say which are drawn.")
def main(
    count: int, seed: int, rooms: tuple[str, ...], places: tuple[str, ...], seconds: float, jobs: int,
    no_schedules: bool, schedules_alone: bool, show: bool,
) -> None:
    """Put random small faults into the product, and see who notices."""
    judges = (SCHEDULES,) if schedules_alone else JUDGES[1:] if no_schedules else JUDGES
    chosen = drawn(ROOT, rooms or ROOMS, count, seed, places or ("",))
    if show:
        for splice in chosen:
            click.echo(splice.key)
        return
    found: collections.Counter[str] = collections.Counter()
    with ThreadPoolExecutor(jobs) as pool:
        for number, finding in enumerate(pool.map(lambda one: judge(one, seconds, judges), chosen), 1):
            found[finding.by] += 1
            click.echo(f"{number:4} {finding.by:14} {finding.splice.key[:150]}")
            if finding.reported:
                click.echo(f"     {'':14} {finding.reported[:150]}")
    total = sum(found.values())
    shares = (f"{number} {by} ({100 * number / total:.0f} %)" for by, number in found.most_common())
    click.echo(", ".join(shares))
    sys.exit(1 if found[NOBODY] else 0)


if __name__ == "__main__":
    main(prog_name="python -m tests.mutants.random_run")
