# -*- test-case-name: tests.sim.test_by_number -*-
"""
Appends that a client numbers by hand: new ones, the last one again, some before their turn, and some with
another body than the one that has the number.

The real client asks again only when an answer is late, which is seldom, and never for a part of an append.
These ask at once for a part of what was acknowledged, and for more than there is.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

import attrs

from dledger.testing.group.checks.require import require
from dledger.testing.group.watching.outcomes import OUTCOMES
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.messages import AppendOnceResponse

#: Most new bodies in one append.
BODIES_MAX = 4
#: Share of the repeats that have another body.
OTHERS = 0.2


class AskedByNumber(NamedTuple):
    """
    One append.

    @ivar first_index: where its first body is, if it is a repeat; else -1.
    @ivar known: how many of the bodies, from the first one, may be answered.
    @ivar is_other: the number of its first body is that of another one.
    """

    producer: str
    sequence: int
    bodies: tuple[bytes, ...]
    known: int
    first_index: int = -1
    is_other: bool = False

    @property
    def is_repeat(self) -> bool:
        """Whether the log has the first body."""
        return self.first_index >= 0

    @property
    def is_early(self) -> bool:
        """Whether bodies before the first one are missing."""
        return not self.known


@attrs.define
class ByNumber:
    """
    The producers of one client, one after the other: a new one begins when an outcome is unknown.

    Invariant: C{_last} was acknowledged, and C{_next} follows it.

    @ivar body: makes a body that is unique in the run.
    @ivar others: says which repeats have another body.
    """

    name: str
    rng: random.Random
    body: Callable[[], bytes]
    others: random.Random = attrs.field(kw_only=True, factory=lambda: random.Random(0))
    _lives: int = 0
    _next: int = 0
    _last: AskedByNumber | None = None

    def draw(self) -> AskedByNumber:
        """The next append; C{is_repeat} and C{is_early} ones are in no history."""
        rng, last, producer = self.rng, self._last, f"{self.name}-n{self._lives}"
        chance = rng.random()
        if last is not None and chance < 0.4:
            at = rng.randrange(len(last.bodies))
            if last.sequence + at:  # (A forgotten producer may begin again with 0.)
                count = rng.randint(1, len(last.bodies) - at)
                more = (self.body(),) if at + count == len(last.bodies) and rng.random() < 0.5 else ()
                asked = AskedByNumber(producer, last.sequence + at, last.bodies[at : at + count] + more,
                                      count, last.first_index + at)
                if self.others.random() >= OTHERS:
                    return asked
                return asked._replace(bodies=(b"other " + asked.bodies[0], *asked.bodies[1:]), is_other=True)
        if last is not None and chance < 0.6:
            return AskedByNumber(producer, self._next + rng.randint(1, 3), (self.body(),), 0)
        bodies = tuple(self.body() for _ in range(rng.randint(1, BODIES_MAX)))
        return AskedByNumber(producer, self._next, bodies, len(bodies))

    def answered(self, asked: AskedByNumber, answer: AppendOnceResponse) -> None:
        """
        Judge an answer with success; what is new is the last one from now on.

        @raise InvariantError: a repeat is elsewhere, or longer than the log has it; an early one was taken,
            or one with another body; the same body was refused as another one.
        """
        reported = f"{self.name} sent {len(asked.bodies)} from {asked.sequence} on, and heard {answer}"
        if answer.code is ResponseCode.SEQUENCE_TAKEN:
            require(asked.is_other and answer.index == asked.first_index, OUTCOMES,
                    f"{reported}: the log has the same body at {asked.first_index}")
        if answer.code is not ResponseCode.SUCCESS:
            return
        require(not asked.is_other, OUTCOMES, f"{reported}: the number is that of another body")
        require(not asked.is_early, OUTCOMES, f"{reported}: those before are missing")
        require(0 < answer.count <= asked.known, OUTCOMES, f"{reported}: the log has {asked.known}")
        require(answer.is_repeated == asked.is_repeat, OUTCOMES, f"{reported}: repeated: {asked.is_repeat}")
        if asked.is_repeat:
            require(answer.index == asked.first_index, OUTCOMES, f"{reported}: it is at {asked.first_index}")
        else:
            self._last = asked._replace(first_index=answer.index)
            self._next = asked.sequence + len(asked.bodies)

    def begin_anew(self) -> None:
        """An outcome is unknown: another producer."""
        self._lives += 1
        self._next = 0
        self._last = None
