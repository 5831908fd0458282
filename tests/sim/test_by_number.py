# -*- test-case-name: tests.sim.test_by_number -*-
"""Appends with numbers by hand: what is drawn, and answers that are wrong."""

from __future__ import annotations

import random

import attrs
from twisted.trial.unittest import SynchronousTestCase

from dledger.testing.group.checks.require import InvariantError
from dledger.testing.group.clients import Load, SimClient
from dledger.testing.group.members.cluster import GroupOptions, SimCluster
from dledger.testing.group.watching.by_number import BODIES_MAX, AskedByNumber, ByNumber
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.messages import AppendOnceResponse


class ByNumberTests(SynchronousTestCase):
    """One client, answered by hand."""

    def setUp(self) -> None:
        """Its first append is at 10."""
        self.numbers = iter(range(1000))
        self.by = ByNumber("c", random.Random(1), lambda: b"%d" % next(self.numbers))
        self.first = next(one for one in self.drawn() if len(one.bodies) == BODIES_MAX)
        self.answer = AppendOnceResponse(code=ResponseCode.SUCCESS, index=10, count=len(self.first.bodies))
        self.by.answered(self.first, self.answer)

    def drawn(self) -> list[AskedByNumber]:
        """Many that may come next."""
        return [self.by.draw() for _ in range(100)]

    def test_repeats_are_parts_of_the_last_one(self) -> None:
        """They never begin with the first sequence, and some ask for more than there is."""
        repeats = [one for one in self.drawn() if one.is_repeat]
        for one in repeats:
            at, same = one.sequence, int(one.is_other)
            self.assertGreater(at, 0)
            self.assertEqual(one.first_index, 10 + at)
            self.assertEqual(one.bodies[same : one.known], self.first.bodies[at + same : at + one.known])
            self.assertEqual(one.bodies[0] == self.first.bodies[at], not one.is_other)
        self.assertTrue(any(one.is_other for one in repeats))
        self.assertTrue(any(one.known < len(one.bodies) for one in repeats))

    def test_a_repeat_that_is_answered_wrongly(self) -> None:
        """At another index, as new, or with a body that the log lacks."""
        repeat = next(one for one in self.drawn() if one.is_repeat and not one.is_other)
        right = attrs.evolve(self.answer, index=repeat.first_index, count=repeat.known, is_repeated=True)
        self.by.answered(repeat, right)
        for fields in ({"index": 9}, {"is_repeated": False}, {"count": repeat.known + 1}):
            with self.assertRaises(InvariantError):
                self.by.answered(repeat, attrs.evolve(right, **fields))  # type: ignore[arg-type]

    def test_another_body_is_refused(self) -> None:
        """With the index of the one that has the number; a repeat of the same one is never."""
        drawn = self.drawn()
        other = next(one for one in drawn if one.is_other)
        repeat = next(one for one in drawn if one.is_repeat and not one.is_other)
        taken = attrs.evolve(self.answer, code=ResponseCode.SEQUENCE_TAKEN, index=other.first_index, count=0)
        self.by.answered(other, taken)
        right = attrs.evolve(self.answer, index=other.first_index, count=other.known, is_repeated=True)
        for asked, answer in ((other, attrs.evolve(taken, index=-1)), (other, right),
                              (repeat, attrs.evolve(taken, index=repeat.first_index))):
            with self.assertRaises(InvariantError):
                self.by.answered(asked, answer)

    def test_an_early_append_is_refused(self) -> None:
        """Success would leave a gap."""
        early = next(one for one in self.drawn() if one.is_early)
        self.by.answered(early, attrs.evolve(self.answer, code=ResponseCode.SEQUENCE_GAP))
        with self.assertRaises(InvariantError):
            self.by.answered(early, attrs.evolve(self.answer, count=1))

    def test_nobody_repeats_what_is_unknown(self) -> None:
        """After an unknown outcome another producer begins."""
        self.by.begin_anew()
        drawn = {(one.producer, one.sequence, one.first_index) for one in self.drawn()}
        self.assertEqual(drawn, {("c-n1", 0, -1)})


class HabitsTests(SynchronousTestCase):
    """Such appends in a group."""

    def _appended(self, **load: float) -> tuple[int, int]:
        """@return: appends of a client that were acknowledged, and bodies in the log."""
        cluster = SimCluster(GroupOptions(settings={"term_start_entry": False}), 1)
        cluster.start()
        cluster.run(4)
        nothing = {"appends": 1.0, "gets": 0.0, "follows": 0.0}
        client = SimClient(
            cluster, "c", Load(think_us=100_000, **{**nothing, **load}),  # type: ignore[arg-type]
            cluster.random("client"),
        )
        client.start()
        cluster.run(5)
        client.is_stopped = True
        cluster.run(1)
        cluster.judge()
        calls = [call for call in cluster.history.calls if call.outcome == "ok"]
        bodies = map(cluster.invariants.body_of, range(cluster.invariants.last_committed + 1))
        return len(calls), sum(body.startswith(b"c.") for body in bodies)

    def test_numbered_appends_are_in_the_log_once(self) -> None:
        """However often they are asked for."""
        acknowledged, held = self._appended(numbered=1.0)
        self.assertEqual(acknowledged, held)
        self.assertGreater(held, 20)

    def test_appends_together_are_all_answered(self) -> None:
        """Several at once, of several bodies each."""
        acknowledged, held = self._appended(together=1.0)
        self.assertEqual(acknowledged, held)
        self.assertGreater(held, 100)
