# -*- test-case-name: tests.sim.test_mutants -*-
"""
Finds the pins of mutants, and writes them: each that holds stays, so a search that was ended goes on later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import attrs
import click

from tests.mutants.catalogue import MUTANTS, Mutant
from tests.mutants.hunting import NOTICED, Hunt
from tests.mutants.judging import Verdict, judge
from tests.mutants.pins import Pin, read_pins, write_pins
from tests.mutants.random_run import tests_of

#: Seconds of the processor that a pin, or what a mutant names, may take.
PIN_S = 5.0
#: A schedule that takes less is not worth a search for a quicker one.
_QUICK_S = 1.5
#: Number of schedules from which the quickest is taken.
_CANDIDATES = 3
#: Seconds of a search before the unit tests are asked: a change elsewhere makes other runs of all seeds, and
#: a mutant that few schedules notice loses its pin then.
_COMMON_S = 3.0
#: Modules that a mutant changes so that its fault comes more often.
_RIGS = "dledger.testing."


@attrs.frozen(kw_only=True)
class Finder:
    """
    Finds the pin of one mutant.

    @ivar seconds: of the processor, for a search by schedules.
    @ivar hunt: makes a verdict.
    """

    seconds: float = 60.0
    hunt: Callable[[Mutant, Hunt], Verdict] = judge

    def holds(self, mutant: Mutant, pin: str) -> Pin | None:
        """The pin, if it notices the mutant in time. @param pin: empty for what the mutant names."""
        verdict = self.hunt(mutant, Hunt(pin=pin))
        if verdict.status == NOTICED and verdict.seconds <= PIN_S:
            return Pin(pin, verdict.seconds)
        return None

    def find(self, mutant: Mutant) -> Pin | None:
        """
        A common schedule, or else a unit test of what the mutant changes, or else a rare schedule.

        A test may notice one patch of several, which only backs the guard that is meant; then any schedule
        is better.
        """
        is_single = len(mutant.patches) == 1
        first_s = min(self.seconds, _COMMON_S) if is_single else self.seconds
        found = self._schedule_of(mutant, first_s) or self._test_of(mutant)
        return found or (self._schedule_of(mutant, self.seconds) if is_single else None)

    def _schedule_of(self, mutant: Mutant, seconds: float) -> Pin | None:
        """The quickest of the first schedules that notice it."""
        found: list[Pin] = []
        first_seed = 1
        while seconds > 0 and len(found) < _CANDIDATES:
            verdict = self.hunt(mutant, Hunt(seconds=seconds, first_seed=first_seed))
            seconds -= verdict.seconds
            if verdict.status != NOTICED:
                break
            pin = self.holds(mutant, verdict.pin)
            if pin is not None:
                found.append(pin)
                if pin.seconds <= _QUICK_S:
                    break
            first_seed = int(verdict.pin) + 1
        return min(found, key=lambda pin: pin.seconds, default=None)

    def _test_of(self, mutant: Mutant) -> Pin | None:
        """The first failure of the unit tests that the changed modules name."""
        modules = {patch.module: None for patch in mutant.patches if not patch.module.startswith(_RIGS)}
        for name in [name for module in modules for name in tests_of(module)]:
            verdict = self.hunt(mutant, Hunt(pin=name))
            if verdict.status == NOTICED:
                pin = self.holds(mutant, verdict.pin)
                if pin is not None:
                    return pin
        return None


def renew(chosen: Sequence[Mutant], jobs: int, finder: Finder) -> int:
    """
    Look for pins where there is none that holds; the file is written after each mutant.

    @return: the number of mutants that nothing notices in time.
    """
    pinned = {mutant.name for mutant in MUTANTS if not mutant.is_certain}
    pins = {name: pin for name, pin in read_pins().items() if name in pinned}

    def renewed(mutant: Mutant) -> tuple[Pin | None, str]:
        if mutant.is_certain:
            return finder.holds(mutant, ""), "named"
        old = pins.get(mutant.name)
        if old is not None and finder.holds(mutant, old.what):
            return old, "kept"
        return finder.find(mutant), "new"

    lacking = 0
    with ThreadPoolExecutor(jobs) as pool:
        for mutant, (pin, word) in zip(chosen, pool.map(renewed, chosen), strict=True):
            lacking += pin is None
            if not mutant.is_certain:
                pins[mutant.name] = pin
                write_pins(pins)
            what = "NOTHING" if pin is None else f"{pin.seconds:5.1f} s  {pin.what}"
            click.echo(f"{mutant.name:28} {word:6} {what}")
    click.echo(f"{len(chosen)} mutants, {lacking} that nothing notices within {PIN_S:g} s")
    return lacking
