# -*- test-case-name: tests.sim.test_streams -*-
"""
The network of a group: byte streams between its members and clients.

It can hide from the members that they are of our make: it renames our keys in JSON, so that they take each
other for Java's.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Protocol

from dledger.testing.world.clock import SimClock
from dledger.testing.world.streams import ByteNetwork, StreamEnd

#: Keys that Java does not know, and keys of the same length that nobody knows.
_HIDDEN = ((b'"wireVersion"', b'"xireVersion"'), (b'"heartBeatIntervalMs"', b'"xeartBeatIntervalMs"'))
#: In METADATA; a key of this name in the answer to a push is Java's.
_END_INDEX = re.compile(rb'("committedIndex":-?\d+,(?:"configuration":"[^"]*",)?)"endIndex"')
#: A Java leader answers GET with 410 only for an index after its end; one of ours also for one that is not
#: committed, and then it says 404 here.
_NO_END = (b'"code":410', b'"code":404')


class Rewriter(Protocol):
    """Changes what members say to each other."""

    def on_the_way(self, end: StreamEnd, data: bytes) -> bytes:
        """The bytes that arrive instead of those that C{end} has written."""


class GroupNetwork(ByteNetwork):
    """
    @ivar members: hosts that are members.
    @ivar hides_make: whether to each other the members look like Java's.
    @ivar has_uncommitted: whether the ledger of a member has entries that are not committed.
    @ivar twice: chance that the requests of one write of a member reach another member twice.
    @ivar rewriters: each changes the bytes of all writes between members, in this order.
    """

    def __init__(self, clock: SimClock, rng: random.Random, members: frozenset[str]) -> None:
        super().__init__(clock, rng)
        self.members = members
        self.hides_make = False
        self.has_uncommitted: Callable[[str], bool] = lambda _: False
        self.twice = 0.0
        self.rewriters: list[Rewriter] = []

    @property
    def has_cuts(self) -> bool:
        """Whether a way is cut."""
        return bool(self._cut)

    def on_the_way(self, end: StreamEnd, data: bytes) -> bytes:
        changes = self.hides_make or self.twice or self.rewriters
        if changes and end.host in self.members and end.other.host in self.members:
            for rewriter in self.rewriters:
                data = rewriter.on_the_way(end, data)
            if self.hides_make:
                for key, other in _HIDDEN:
                    data = data.replace(key, other)
                data = _END_INDEX.sub(rb'\1"xndIndex"', data)
                if _NO_END[0] in data and self.has_uncommitted(end.host):
                    data = data.replace(*_NO_END)
            if end.number == 0 and self.twice and self.chance() < self.twice:
                data += data
        return data
