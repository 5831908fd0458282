# -*- test-case-name: tests.sim.test_streams -*-
"""
The network of a group: byte streams between its members and clients.

It can hide from the members that they are of our make: it renames our keys in JSON, so that they take each
other for Java's.
"""

from __future__ import annotations

import random

from dledger.testing.clock import SimClock
from dledger.testing.streams import ByteNetwork, StreamEnd

#: Keys that Java does not know, and keys of the same length that nobody knows.
_HIDDEN = ((b'"wireVersion"', b'"xireVersion"'), (b'"heartBeatIntervalMs"', b'"xeartBeatIntervalMs"'))


class GroupNetwork(ByteNetwork):
    """
    @ivar members: hosts that are members.
    @ivar hides_make: whether to each other the members look like Java's.
    @ivar twice: chance that the requests of one write of a member reach another member twice.
    """

    def __init__(self, clock: SimClock, rng: random.Random, members: frozenset[str]) -> None:
        super().__init__(clock, rng)
        self.members = members
        self.hides_make = False
        self.twice = 0.0

    def on_the_way(self, end: StreamEnd, data: bytes) -> bytes:
        """See L{ByteNetwork.on_the_way}."""
        if (self.hides_make or self.twice) and end.host in self.members and end.other.host in self.members:
            if self.hides_make:
                for key, other in _HIDDEN:
                    data = data.replace(key, other)
            if end.number == 0 and self.twice and self.chance() < self.twice:
                data += data
        return data
