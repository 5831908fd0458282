# -*- test-case-name: tests.sim.test_scenarios -*-
"""
Gives members requests of any content, in the name of another one.

A frame comes on that member's own connection, as if it had been the next on the way; without a connection
the injector opens one for a moment. Answers are heard where the driver gives them. The network must cut no
frame into pieces (C{cut_chance} is 0).
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.protocol import Protocol

from dledger.base.serving.endpoints import connect_with
from dledger.testing.group.members.cluster import SimCluster
from dledger.testing.group.members.member import SimMember
from dledger.testing.world.process import SimProcess
from dledger.testing.world.streams import StreamClient
from protocols.wire.ledger.messages import Request, Response
from protocols.wire.ledger.push import encode_request_frame

#: Numbers of requests from here on are not used by connections.
_OPAQUE = 0x7000_0000

#: A connection that the injector opens ends after this time.
MOMENT_US = 200_000


class _Speaker(Protocol):
    """A connection that speaks for a member for a moment."""

    def __init__(self) -> None:
        self.waiting: list[bytes] = []
        self.is_over = False

    def connectionMade(self) -> None:
        """Send the frames that wait."""
        self.say(b"")

    def say(self, frame: bytes) -> None:
        """Send a frame, now or when there is a connection."""
        self.waiting.append(frame)
        if self.transport is not None:
            self.transport.write(b"".join(self.waiting))
            self.waiting.clear()

    def stop(self) -> None:
        """The moment is over."""
        self.is_over = True
        if self.transport is not None:
            self.transport.loseConnection()


class Injector:
    """The messages by hand of one group."""

    is_dying = False

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._process = SimProcess(cluster.clock, cluster.random("injector"), self)
        self._sent = 0
        self._speakers: dict[tuple[str, str], _Speaker] = {}

    def event_ended(self) -> None:
        """See L{dledger.testing.world.process.ProcessOwner.event_ended}."""
        self._cluster.bugs.notify()

    def send(
        self, member: SimMember, speaker: str, request: Request, done: Callable[[Response], None]
    ) -> None:
        """C{member} gets C{request} from C{speaker}. @param done: gets the core's answer."""
        self._sent += 1
        frame = encode_request_frame(request, _OPAQUE + self._sent)
        member.driver.listen_for(request, done)
        network = self._cluster.network
        link = network.link_of(speaker, member.member_id)
        if link is not None and link.ends[1].knows and link.ends[1].protocol is not None:
            link.ends[1].put_in(frame)
            return
        known = self._speakers.get((speaker, member.member_id))
        if known is None or known.is_over:
            known = self._speakers[speaker, member.member_id] = _Speaker()
            there = StreamClient(network, f"as-{speaker}", self._process, member.member_id)
            connect_with(there, known)
            self._process.clock.after(MOMENT_US, self._process.run, self, known.stop)
        known.say(frame)
