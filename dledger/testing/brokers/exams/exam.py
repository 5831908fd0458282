# -*- test-case-name: tests.sim.test_exams -*-
"""All papers of the exam, at once."""

from __future__ import annotations

from collections.abc import Callable, Collection

from dledger.testing.brokers.exams.examiner import Examiner, ExamVoid, Paper
from dledger.testing.brokers.exams.filter_papers import filter_paper
from dledger.testing.brokers.exams.late_papers import delay_paper, end_paper
from dledger.testing.brokers.exams.popping_papers import (
    back_paper,
    order_paper,
    pop_paper,
    share_paper,
)
from dledger.testing.brokers.exams.reading_papers import place_paper, read_paper, refusal_paper

#: By name.
PAPERS: dict[str, Callable[[Examiner], Paper]] = {
    one.__name__: one for one in (
        read_paper, place_paper, refusal_paper, filter_paper, pop_paper, share_paper, order_paper, back_paper,
        delay_paper, end_paper,
    )
}


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
            await PAPERS[name](self._examiner)
        except ExamVoid:
            self.void.add(name)
        self.open.discard(name)
