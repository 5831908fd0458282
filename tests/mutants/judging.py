# -*- test-case-name: tests.sim.test_mutants -*-
"""
Judges one mutant by its pin, and by other schedules: each hunt is a process of its own.

It is forked from a process that has other people's modules, but none of ours: those are imported with their
patches. Seconds are those of the processor: the load of the machine changes no result.
"""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Callable
from pathlib import Path

import attrs

from tests.mutants import hunting
from tests.mutants.catalogue import Mutant
from tests.mutants.hunting import NOTICED, OUT_OF_DATE, OUTPUT, SURVIVED, TOOK, Hunt
from tests.mutants.pins import Pin

#: Words for a mutant that was noticed, one that should have been for certain, and one that luck spared.
GOOD, FAILED, LUCKY = "noticed", "FAILED", "survived"
#: The first seed of the schedules that no pin was chosen from.
_UNPINNED_SEED = 1001

#: Where the children come from. Imports of other people's modules would be a third of their time.
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload([
    "attrs", "click", "construct", "twisted.application.internet", "twisted.application.service",
    "twisted.internet.endpoints", "twisted.internet.task", "twisted.trial.reporter", "twisted.trial.runner",
])


@attrs.frozen
class Verdict:
    """
    The result of one hunt.

    @ivar status: of the process; see L{hunting}.
    @ivar seconds: of the processor.
    @ivar reported: its last line.
    """

    name: str
    status: int
    seconds: float
    reported: str

    @property
    def pin(self) -> str:
        """The schedule or the test that noticed."""
        return self.reported.partition(":")[0].removeprefix("schedule ")


def judge(mutant: Mutant, how: Hunt) -> Verdict:
    """Hunt a mutant in a new process, and wait for it."""
    with tempfile.TemporaryDirectory(prefix="mutant-", ignore_cleanup_errors=True) as folder:
        process = _PROCESSES.Process(target=hunting.child, args=(mutant.name, how, folder))
        process.start()
        process.join(20 * how.seconds + 120)
        if process.is_alive():
            process.kill()
            process.join()
        output = Path(folder, OUTPUT)
        said = output.read_text(errors="replace").strip() if output.exists() else ""
    reported, _, took = said.rpartition(TOOK)
    if not reported or process.exitcode is None:
        return Verdict(mutant.name, -1, 0.0, said[-300:])
    return Verdict(mutant.name, process.exitcode, float(took), reported.strip().splitlines()[-1])


@attrs.frozen(kw_only=True)
class Play:
    """
    How mutants are played.

    @ivar seconds: of the processor, for the schedules of each.
    @ivar is_pinned: by their pins alone.
    @ivar sound, unfocused: see L{Hunt}.
    @ivar hunt: makes a verdict.
    """

    seconds: float = 60.0
    is_pinned: bool = False
    sound: bool = False
    unfocused: bool = False
    hunt: Callable[[Mutant, Hunt], Verdict] = judge

    def judge(self, mutant: Mutant, pin: Pin | None) -> tuple[str, Verdict] | None:
        """A word and a verdict; None: it has no pin, and is played by pins alone."""
        is_certain = mutant.is_certain or pin is not None
        verdict = None
        if is_certain and not self.unfocused:
            verdict = self.hunt(mutant, Hunt(pin="" if pin is None else pin.what, sound=self.sound))
            if self.is_pinned or mutant.is_certain or verdict.status != self._good:
                return self._word(verdict.status, is_certain), verdict
        if self.is_pinned:
            return None
        found = self.hunt(mutant, Hunt(seconds=self.seconds, first_seed=_UNPINNED_SEED, sound=self.sound,
                                       unfocused=self.unfocused))
        spent = found.seconds + (verdict.seconds if verdict else 0.0)
        return self._word(found.status, False), attrs.evolve(found, seconds=spent)

    @property
    def _good(self) -> int:
        return SURVIVED if self.sound else NOTICED

    def _word(self, status: int, is_certain: bool) -> str:
        if status == self._good:
            return GOOD if not self.sound else "passed"
        if status == SURVIVED and not is_certain:
            return LUCKY
        return {NOTICED: FAILED, SURVIVED: FAILED, OUT_OF_DATE: "OUT OF DATE"}.get(status, "CRASHED")
