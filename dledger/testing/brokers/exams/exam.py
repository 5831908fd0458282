# -*- test-case-name: tests.sim.test_exams -*-
"""All papers of the exam, at once."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from typing import Protocol, cast

from dledger.testing.brokers.exams.again_papers import member_paper, remade_paper, reset_paper
from dledger.testing.brokers.exams.copy_papers import copy_paper, table_paper
from dledger.testing.brokers.exams.examiner import (
    EXAMINER,
    OTHER_EXAMINER,
    Examiner,
    ExamVoid,
    ExamWorld,
    Paper,
)
from dledger.testing.brokers.exams.filter_papers import filter_paper
from dledger.testing.brokers.exams.lasting_papers import Loan, file_paper, loan_paper
from dledger.testing.brokers.exams.late_papers import delay_paper, end_paper
from dledger.testing.brokers.exams.memory_papers import memory_paper
from dledger.testing.brokers.exams.native_papers import native_paper
from dledger.testing.brokers.exams.popping_papers import (
    back_paper,
    order_paper,
    pop_paper,
    share_paper,
)
from dledger.testing.brokers.exams.reading_papers import place_paper, read_paper, refusal_paper
from dledger.testing.brokers.rig.accounts import require_pair
from dledger.testing.brokers.rig.asking import ClientMachine
from dledger.testing.world.bugs import BugWatch
from dledger.testing.world.clock import SimClock
from dledger.testing.world.streams import ByteNetwork

_SECOND_US = 1_000_000
#: Simulated seconds until all papers are written, at most.
EXAM_S = 60
#: By name.
PAPERS: dict[str, Callable[[Examiner], Paper]] = {
    one.__name__: one for one in (
        read_paper, place_paper, refusal_paper, filter_paper, pop_paper, share_paper, order_paper, back_paper,
        delay_paper, end_paper, native_paper, remade_paper, member_paper, reset_paper, table_paper,
    )
}
#: Those that are written when the others are over.
LAST_PAPERS: dict[str, Callable[[Examiner], Paper]] = {
    one.__name__: one for one in (copy_paper, loan_paper, file_paper, memory_paper)
}
#: Papers that a schedule does not play: each takes time.
LEFT_OUT = 5


def drawn_papers(seed: int) -> tuple[str, ...]:
    """Those of a seed: the last ones, and most of the others."""
    names = random.Random(f"{seed} papers").sample(sorted(PAPERS), len(PAPERS) - LEFT_OUT)
    return (*names, *LAST_PAPERS)


class Exam:
    """@ivar open: names of papers that are not over. @ivar void: those that a new master has cut short."""

    def __init__(self, examiner: Examiner, names: Collection[str]) -> None:
        self._examiner = examiner
        self.open = set(names)
        self.void: set[str] = set()

    def begin(self) -> None:
        """Let all papers begin."""
        for name in sorted(self.open):
            self._examiner.client.begin(self._write(name))

    async def _write(self, name: str) -> None:
        try:
            await (PAPERS | LAST_PAPERS)[name](self._examiner)
        except ExamVoid:
            self.void.add(name)
        self.open.discard(name)


class CalmWorld(Protocol):
    """A schedule whose faults are over, which is an L{ExamWorld}, too."""

    seed: int
    clock: SimClock
    network: ByteNetwork
    bugs: BugWatch


def examine(
    world: CalmWorld, names: Collection[str] = (*PAPERS, *LAST_PAPERS), loan: Loan | None = None
) -> None:
    """
    Let the papers of these names be written, the last ones one by one.

    @param loan: of a queue, which has begun before; None: there is none.
    @raise AssertionError: B25, or another promise, is broken.
    """
    client, other = (ClientMachine(
        name, clock=world.clock, network=world.network, rng=random.Random(f"{world.seed} exam {own}"),
        wrong=world.bugs.note,
    ) for name, own in ((EXAMINER, "client"), (OTHER_EXAMINER, "other client")))
    examiner = Examiner(cast(ExamWorld, world), client, other, loan)
    last = [[name] for name in LAST_PAPERS if name in names]
    for some in ([name for name in names if name in PAPERS], *last):
        exam, began_us = Exam(examiner, some), world.clock.now_us
        exam.begin()
        while exam.open:
            world.clock.run_until(world.clock.now_us + _SECOND_US // 4)
            require_pair(world.clock.now_us < began_us + EXAM_S * _SECOND_US, 25,
                         f"after {EXAM_S} s {sorted(exam.open)} are not over")
