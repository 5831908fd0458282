# -*- test-case-name: tests.sim.test_corpus_run -*-
"""Schedules that turn off from others, and the rounds that play them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from unittest import mock

import attrs
from twisted.trial.unittest import SynchronousTestCase

from dledger.testing.group.checks.require import InvariantError
from dledger.testing.group.corpus import Corpus, PlayedLine
from dledger.testing.group.corpus_run import (
    ROUND,
    CorpusRun,
    CorpusTask,
    PlayedOutcome,
    play_line,
)
from dledger.testing.group.members.cluster import SECOND_US, GroupOptions, SimCluster

_SECONDS = 6.0
_TURN_US = 4 * SECOND_US
_play = partial(play_line, seconds=_SECONDS, wants_all_lines=True)


def _times(outcome: PlayedOutcome) -> list[tuple[float, str]]:
    """The steps that a schedule took, each with its time."""
    return [(float(line[:11]), line) for line in outcome.lines]


class TurnTests(SynchronousTestCase):
    """A turn changes the rest of a schedule, and nothing before it."""

    def test_turn_keeps_the_beginning(self) -> None:
        """Up to the turn all steps are those of the schedule without it; then they are others."""
        plain, turned = _play(PlayedLine(3)), _play(PlayedLine(3, "", ((_TURN_US, 1),)))
        self.assertEqual((plain.failure, turned.failure), ("", ""))
        at_s = _TURN_US / 1e6
        self.assertEqual([line for at, line in _times(plain) if at < at_s],
                         [line for at, line in _times(turned) if at < at_s])
        self.assertNotEqual(plain.lines, turned.lines)
        early = {kind: at_us for kind, at_us in plain.reached.items() if at_us < _TURN_US}
        self.assertEqual(early, {kind: at_us for kind, at_us in turned.reached.items() if at_us < _TURN_US})
        self.assertGreater(len(early), 5)

    def test_same_line_same_steps(self) -> None:
        """A line with turns is played the same way again; another salt is another way."""
        line = PlayedLine(3, "retention", ((2 * SECOND_US, 5), (_TURN_US, 6)))
        first = play_line(line, seconds=_SECONDS)
        self.assertEqual(play_line(PlayedLine.parse(str(line)), seconds=_SECONDS), first)
        self.assertNotEqual(play_line(line.turned(_TURN_US, 7), seconds=_SECONDS).digest, first.digest)

    def test_turn_binds_later_streams(self) -> None:
        """A stream that begins after a turn, as that of a new machine, is another one as well."""
        plain, one, other = (SimCluster(GroupOptions(), 1) for _ in range(3))
        one.turn("5:1")
        other.turn("5:2")
        self.assertEqual(len({cluster.random("spare").random() for cluster in (plain, one, other)}), 3)

    def test_forked_as_played_alone(self) -> None:
        """Schedules that share their beginning end as each does when it is played alone."""
        task = CorpusTask(PlayedLine(4, "", ((SECOND_US, 9), (5 * SECOND_US, 1))), _TURN_US, (2, 3))
        outcomes = task.play(_SECONDS)
        lines = [PlayedLine(4, "", ((SECOND_US, 9), (_TURN_US, salt))) for salt in (2, 3)]
        self.assertEqual([outcome.line for outcome in outcomes], lines)
        self.assertEqual(outcomes, [play_line(line, seconds=_SECONDS) for line in lines])

    def test_failure_in_a_fork(self) -> None:
        """What fails after a turn fails with the line that plays it again; before it, with a shorter one."""
        def fails(*_: object) -> None:
            raise InvariantError(2, "made up")

        task = CorpusTask(PlayedLine(4), _TURN_US, (2, 3))
        with mock.patch("dledger.testing.group.corpus_run.SimCluster.settle", fails):
            outcomes = task.play(_SECONDS)
        self.assertEqual([str(outcome.line) for outcome in outcomes], ["4 - 4000000:2", "4 - 4000000:3"])
        self.assertEqual({outcome.failure for outcome in outcomes}, {"invariant 2: made up"})
        with mock.patch("dledger.testing.group.checks.invariants.GroupInvariants._committed", fails):
            outcomes = CorpusTask(PlayedLine(4), 100 * SECOND_US, (2, 3)).play(_SECONDS)
        self.flushLoggedErrors(InvariantError)
        self.assertEqual([str(outcome.line) for outcome in outcomes], ["4 -"])
        self.assertEqual(outcomes[0].failure, "invariant 2: made up")

    def test_fork_that_ends(self) -> None:
        """A process that ends without a word is a failure of its line."""
        def ends(*_: object) -> None:
            raise KeyboardInterrupt

        with mock.patch("dledger.testing.group.corpus_run.SimCluster.settle", ends):
            (outcome,) = CorpusTask(PlayedLine(4), _TURN_US, (2,)).play(_SECONDS)
        self.assertEqual(str(outcome.line), "4 - 4000000:2")
        self.assertIn("has ended", outcome.failure)


def _outcome(line: PlayedLine, *kinds: int, failure: str = "") -> PlayedOutcome:
    return PlayedOutcome(
        seed=line.seed, failure=failure, lines=(), digest=0, steps=0, acknowledged=0, committed=0,
        elections=0, restarts=0, line=line, reached=dict.fromkeys(kinds, SECOND_US),
    )


class RoundTests(SynchronousTestCase):
    """Half of a round is of the corpus."""

    def setUp(self) -> None:
        self.path = Path(self.mktemp())
        self.run_ = CorpusRun(self.path, seconds=40.0, seed=100)
        self.tasks: list[CorpusTask] = []

    def play(self, tasks: list[CorpusTask]) -> Iterator[list[PlayedOutcome]]:
        """A schedule of a seed reaches the kind of its number; seed 101 fails."""
        self.tasks += tasks
        for task in tasks:
            yield [
                _outcome(task.line.turned(task.at_us, salt) if task.salts else task.line, task.line.seed,
                         failure="bad" if task.line.seed == 101 else "")
                for salt in task.salts or (0,)
            ]

    def test_half_from_the_corpus(self) -> None:
        """Without entries all are of seeds; then half of them turn off from entries."""
        outcomes = [*self.run_.outcomes(2 * ROUND + 1, self.play)]
        self.assertEqual(len(outcomes), 4 * ROUND)
        plain = [task.line.seed for task in self.tasks if not task.salts]
        self.assertEqual(plain, [*range(100, 100 + 3 * ROUND)])
        turned = [task for task in self.tasks if task.salts]
        self.assertEqual(sum(len(task.salts) for task in turned), ROUND)
        self.assertTrue(all(task.line.seed < 100 + 2 * ROUND for task in turned))
        self.assertEqual({task.at_us for task in turned}, {SECOND_US + 1})

    def test_same_seed_same_tasks(self) -> None:
        """The tasks depend on the seed and the file alone."""
        again = CorpusRun(Path(self.mktemp()), seconds=40.0, seed=100)
        first = [*self.run_.outcomes(4 * ROUND, self.play)]
        self.assertEqual([*again.outcomes(4 * ROUND, self.play)], first)
        self.assertEqual(again.corpus.text(), self.run_.corpus.text())

    def test_read_only(self) -> None:
        """What is found on the way changes neither the file nor what is played."""
        before = Corpus(40.0)
        before.add(PlayedLine(1), {1: SECOND_US})
        before.save(self.path)
        played = []
        for failing in ("", "bad"):
            run = CorpusRun(self.path, seconds=40.0, seed=100, saves=False)
            self.tasks.clear()

            def play(tasks: list[CorpusTask], failure: str = failing) -> Iterator[list[PlayedOutcome]]:
                for outcomes in self.play(tasks):
                    yield [attrs.evolve(one, failure=failure) for one in outcomes]

            list(run.outcomes(4 * ROUND, play))
            played.append(list(self.tasks))
            self.assertEqual(run.corpus.text(), before.text())
        self.assertEqual(played[0], played[1])
        self.assertTrue(any(task.salts for task in played[0]))
        self.assertEqual(self.path.read_text(), before.text())

    def test_failed_ones_are_not_kept(self) -> None:
        """A schedule that failed is no entry; the others are, also when nobody wants more of the round."""
        found = self.run_.outcomes(2 * ROUND, self.play)
        for _ in range(3):
            next(found)
        found.close()  # type: ignore[attr-defined]
        kept = Corpus.load(self.path, 40.0)
        self.assertEqual([line.seed for line in kept.entries], [100, 102])
