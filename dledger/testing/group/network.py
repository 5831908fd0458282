# -*- test-case-name: tests.sim.test_network -*-
"""
Connections between members, with the guarantees of TCP, and their faults.

Rule 1: within a connection bytes arrive in order or not at all. A living connection loses no bytes.
Rule 2: a link that is cut holds bytes back; they arrive when it heals, if the receiver still has the
connection. Neither side is told.
Rule 3: a connection breaks at its two ends at different times. Messages sent before may arrive after the
sender has opened the next connection: only the receiver can keep the two apart, by hearing a peer on one
connection at a time. While the old one lives (heard within C{live_us}) the new one is reset; then the old
one is closed when the new one speaks (C{closes_old}; a mutant turns it off).

A member has one connection to each peer for its own requests; answers come back on it. Messages
pass through the real codecs.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Protocol

import attrs

from dledger.testing.clock import SimClock
from protocols.framing import FrameBuffer
from protocols.wire.ledger import json_bodies, push
from protocols.wire.ledger.codes import PushType, RequestCode
from protocols.wire.ledger.messages import HeartBeatRequest, PushEntryRequest, Request, Response
from protocols.wire.remoting import RemotingCommand, decode_command, encode_command

#: Number on its connection, id of the request, message.
_Sent = tuple[int, int, Request | Response]

#: Requests that tell the receiver the sender's id.
_TELLING = (RequestCode.VOTE, RequestCode.HEART_BEAT, RequestCode.PUSH)


class Endpoint(Protocol):
    """A member as its connections see it."""

    @property
    def is_up(self) -> bool:
        """Whether its process runs."""

    def hold_back(self, action: Callable[..., None], arguments: tuple[object, ...]) -> bool:
        """Take an action of a paused process for later. @return: whether it is paused."""

    def request_came(self, connection: SimConnection, opaque: int, request: Request) -> None:
        """A request of a peer arrives."""

    def response_came(self, peer_id: str, request_id: int, response: Response) -> None:
        """An answer to a request of this member arrives."""

    def connection_opened(self, peer_id: str) -> None:
        """A connection for this member's requests is open."""

    def request_failed(self, peer_id: str, request_id: int, reason: str) -> None:
        """A request will not be answered."""

    def connection_closed(self, connection: SimConnection, *, is_last: bool) -> None:
        """
        An incoming connection is gone: requests on it are not answered any more.

        @param is_last: its client has no other connection open here.
        """


@attrs.define(eq=False)
class SimConnection:
    """
    One TCP connection.

    @ivar client, server: member ids; requests flow from the first to the second.
    @ivar knows_client, knows_server: whether this end takes the connection for open.
    @ivar outstanding: requests that the client waits for.
    @ivar last_us: arrival of the last bytes so far, per direction.
    @ivar extra_us: additional delay of requests on it.
    @ivar heard_us: when the server heard it last; -1 until its client introduced itself.
    @ivar stalled: messages that a cut link holds back, per direction.
    """

    number: int
    client: str
    server: str
    knows_client: bool = True
    knows_server: bool = True
    extra_us: int = 0
    heard_us: int = -1
    outstanding: set[int] = attrs.Factory(set)
    last_us: list[int] = attrs.Factory(lambda: [0, 0])
    stalled: tuple[list[_Sent], list[_Sent]] = attrs.Factory(lambda: ([], []))
    sent: list[int] = attrs.Factory(lambda: [0, 0])
    cut_after: list[int] = attrs.Factory(lambda: [1 << 60, 1 << 60])


class WireCodec:
    """Messages to bytes and back, as a connection of this kind would carry them."""

    def __init__(self, *, native: bool, hides_wire_version: bool = False) -> None:
        self.is_native = native
        self._hides = hides_wire_version

    def request_through(self, request: Request, opaque: int) -> Request:
        """The request as the receiver decodes it."""
        if self.is_native:
            _, message = push.decode_frame(push.encode_request_frame(request, opaque))
        else:
            body = json_bodies.encode_request(request)
            message = json_bodies.decode_request(request.kind, self._framed(request.kind, opaque, body, 0))
        assert isinstance(message, Request)
        if self._hides:
            if isinstance(message, HeartBeatRequest):
                return attrs.evolve(message, wire_version=0, heart_beat_interval_ms=0)
            return attrs.evolve(message, wire_version=0)
        return message

    def response_through(self, response: Response, opaque: int) -> Response:
        """The response as the asker decodes it."""
        if self.is_native:
            _, message = push.decode_frame(push.encode_response_frame(response, opaque))
        else:
            body = json_bodies.encode_response(response)
            message = json_bodies.decode_response(response.kind, self._framed(200, opaque, body, 1))
        assert isinstance(message, Response)
        return attrs.evolve(message, wire_version=0) if self._hides else message

    def _framed(self, code: int, opaque: int, body: bytes, flag: int) -> bytes:
        whole = encode_command(RemotingCommand(code=code, opaque=opaque, flag=flag, body=body))
        ((kind, frame),) = FrameBuffer().feed(whole)
        assert kind == "remoting"
        return decode_command(frame).body


class SimNetwork:
    """
    Every connection of a group.

    @ivar delay_us, spread_us: one way takes the first plus up to the second.
    @ivar spike: chance of a much longer way, up to C{spike_us}.
    @ivar closes_old, live_us: see rule 3.
    @ivar pushes: number of pushes of a kind from one member to another.
    """

    def __init__(self, clock: SimClock, rng: random.Random, codec: WireCodec) -> None:
        self.clock = clock
        self.delay_us = 300
        self.spread_us = 700
        self.spike = 0.0
        self.spike_us = 0
        self.backoff_us = 200_000
        self.closes_old = True
        self.live_us = 3_000_000
        self.pushes: dict[tuple[str, str, PushType], int] = {}
        self._rng = rng
        self.codec = codec
        self._endpoints: dict[str, Endpoint] = {}
        self._lives: dict[str, int] = {}
        self._outgoing: dict[tuple[str, str], SimConnection] = {}
        self._incoming: dict[tuple[str, str], list[SimConnection]] = {}
        self._next_attempt_us: dict[tuple[str, str], int] = {}
        self._next_extra_us: dict[tuple[str, str], int] = {}
        self._stalling: dict[int, SimConnection] = {}
        self._cut: set[tuple[str, str]] = set()
        self._number = 0

    def chance(self) -> float:
        """A number from 0 to 1, 1 not included."""
        return self._rng.random()

    def add(self, member_id: str, endpoint: Endpoint) -> None:
        """Register a member."""
        self._endpoints[member_id] = endpoint
        self._lives[member_id] = 0

    # -- faults ---------------------------------------------------------------------------------

    def is_cut(self, source: str, target: str) -> bool:
        """Whether bytes from C{source} to C{target} are held back."""
        return (source, target) in self._cut

    def cut(self, source: str, target: str) -> None:
        """Hold back the messages from C{source} to C{target} (one way)."""
        self._cut.add((source, target))

    def heal(self, source: str, target: str) -> None:
        """Let messages through again, those held back first."""
        if (source, target) not in self._cut:
            return
        self._cut.discard((source, target))
        for connection in list(self._stalling.values()):
            for way, ends in enumerate(((connection.client, connection.server),
                                        (connection.server, connection.client))):
                if ends == (source, target):
                    self._release(connection, way)
            if not connection.stalled[0] and not connection.stalled[1]:
                del self._stalling[connection.number]

    def heal_all(self) -> None:
        """Heal every link; no connection is slower than the others afterwards."""
        self._next_extra_us.clear()
        for connection in self._outgoing.values():
            connection.extra_us = 0
        for source, target in sorted(self._cut):
            self.heal(source, target)

    def _release(self, connection: SimConnection, way: int) -> None:
        held = list(connection.stalled[way])
        connection.stalled[way].clear()
        for number, opaque, message in held:
            self._arrive(connection, way, number, opaque, message)

    def break_between(self, client: str, server: str, *, late_us: int = 0) -> None:
        """
        Break the connection for C{client}'s requests: the client learns at once, the server later.

        @param late_us: messages under way still arrive within this many microseconds.
        """
        connection = self._outgoing.get((client, server))
        if connection is None:
            return
        rng = self._rng
        for way in (0, 1):
            if rng.random() < 0.5:
                connection.cut_after[way] = connection.sent[way] - int(rng.random() * 8)
        self._client_learns(connection, "connection lost")
        if late_us == 0 or rng.random() < 0.3:
            self._server_learns(connection)
        else:
            self.clock.after(int(rng.random() * late_us), self._server_learns, connection)

    def lose(self, client: str, server: str) -> None:
        """Drop the connection for C{client}'s requests at both ends, with all messages on it."""
        connection = self._outgoing.get((client, server))
        if connection is not None:
            connection.cut_after = [-1, -1]
            self._client_learns(connection, "connection lost")
            self._server_learns(connection)
            self._next_attempt_us.pop((client, server), None)

    def reconnect(self, client: str, server: str, *, late_us: int) -> None:
        """
        The client gives up its connection and opens another one; the server does not notice, and messages
        under way still arrive, for C{late_us} microseconds.
        """
        connection = self._outgoing.get((client, server))
        if connection is not None:
            self._client_learns(connection, "given up")
            self._next_attempt_us.pop((client, server), None)
            self.clock.after(late_us, self._server_learns, connection)

    def delay_connection(self, client: str, server: str, us: int) -> None:
        """Delay requests on C{client}'s connection (the next one if it has none) by C{us} more."""
        connection = self._outgoing.get((client, server))
        if connection is not None:
            connection.extra_us = us
        else:
            self._next_extra_us[client, server] = us

    def member_died(self, member_id: str, *, silently: bool) -> None:
        """
        A process ended.

        @param silently: the machine is gone, so no peer is told.
        """
        self._lives[member_id] += 1
        for (client, server), connection in list(self._outgoing.items()):
            if client == member_id:
                del self._outgoing[client, server]
                connection.knows_client = False
                connection.outstanding.clear()
                if not silently:
                    self._tell_later(connection, self._server_learns)
            elif server == member_id:
                connection.knows_server = False
                self._forget(connection)
                if not silently:
                    self._tell_later(connection, self._client_learns, "connection reset")
        for (_, server), connections in list(self._incoming.items()):
            if server == member_id:
                for connection in list(connections):
                    connection.knows_server = False
                    self._forget(connection)

    def _tell_later(self, connection: SimConnection, action: Callable[..., None], *arguments: object) -> None:
        self.clock.after(self.delay_us + int(self._rng.random() * 20_000), action, connection, *arguments)

    # -- the two ends ---------------------------------------------------------------------------

    def _client_learns(self, connection: SimConnection, reason: str) -> None:
        if not connection.knows_client:
            return
        endpoint = self._endpoints[connection.client]
        if endpoint.hold_back(self._client_learns, (connection, reason)):
            return
        connection.knows_client = False
        key = (connection.client, connection.server)
        if self._outgoing.get(key) is connection:
            del self._outgoing[key]
        waiting = sorted(connection.outstanding)
        connection.outstanding.clear()
        for request_id in waiting:
            endpoint.request_failed(connection.server, request_id, reason)

    def _server_learns(self, connection: SimConnection) -> None:
        if not connection.knows_server:
            return
        endpoint = self._endpoints[connection.server]
        if endpoint.hold_back(self._server_learns, (connection,)):
            return
        connection.knows_server = False
        self._forget(connection)
        others = self._incoming.get((connection.client, connection.server), [])
        endpoint.connection_closed(connection, is_last=not others)

    def _forget(self, connection: SimConnection) -> None:
        known = self._incoming.get((connection.client, connection.server), [])
        if connection in known:
            known.remove(connection)

    # -- messages -------------------------------------------------------------------------------

    def send_request(self, source: str, target: str, request_id: int, request: Request) -> None:
        """Send a request of C{source}; its outcome comes to the endpoint."""
        connection = self._outgoing.get((source, target)) or self._connect(source, target)
        if isinstance(connection, str):
            self.clock.after(1_000, self._refuse, source, self._lives[source], target, request_id, connection)
            return
        connection.outstanding.add(request_id)
        if isinstance(request, PushEntryRequest):
            key = (source, target, request.type)
            self.pushes[key] = self.pushes.get(key, 0) + 1
        self._send(connection, 0, request_id, self.codec.request_through(request, request_id))

    def _refuse(self, source: str, life: int, target: str, request_id: int, reason: str) -> None:
        endpoint = self._endpoints[source]
        if life != self._lives[source]:
            return
        if not endpoint.hold_back(self._refuse, (source, life, target, request_id, reason)):
            endpoint.request_failed(target, request_id, reason)

    def _connect(self, source: str, target: str) -> SimConnection | str:
        key = (source, target)
        if self.clock.now_us < self._next_attempt_us.get(key, 0):
            return "not connected"
        if not self._endpoints[target].is_up or key in self._cut or (target, source) in self._cut:
            self._next_attempt_us[key] = self.clock.now_us + int(self.backoff_us * (0.5 + self._rng.random()))
            return "connection refused"
        self._number += 1
        connection = SimConnection(self._number, source, target)
        connection.extra_us = self._next_extra_us.pop(key, 0)
        self._outgoing[key] = connection
        self._incoming.setdefault(key, []).append(connection)
        connection.last_us[0] = self.clock.now_us + 3 * self.delay_us
        self._endpoints[source].connection_opened(target)
        return connection

    def channel(self, source: str | None, target: str) -> int:
        """Number of the connection for C{source}'s requests to C{target}; 0 for none."""
        connection = None if source is None else self._outgoing.get((source, target))
        return 0 if connection is None else connection.number

    def reply(self, connection: SimConnection, opaque: int, response: Response) -> None:
        """Send an answer on the connection of its request."""
        if connection.knows_server:
            self._send(connection, 1, opaque, self.codec.response_through(response, opaque))

    def _send(self, connection: SimConnection, way: int, opaque: int, message: Request | Response) -> None:
        delay_us = self.delay_us + int(self._rng.random() * self.spread_us)
        if self.spike and self._rng.random() < self.spike:
            delay_us += int(self._rng.random() * self.spike_us)
        if way == 0:
            delay_us += connection.extra_us
        connection.sent[way] += 1
        self._schedule(connection, way, delay_us, connection.sent[way], opaque, message)

    def _schedule(
        self, connection: SimConnection, way: int, delay_us: int, number: int, opaque: int,
        message: Request | Response,
    ) -> None:
        when_us = max(self.clock.now_us + delay_us, connection.last_us[way] + 1)
        connection.last_us[way] = when_us
        self.clock.at(when_us, self._arrive, connection, way, number, opaque, message)

    def _arrive(
        self, connection: SimConnection, way: int, number: int, opaque: int, message: Request | Response
    ) -> None:
        if number > connection.cut_after[way]:
            return
        source, target = connection.client, connection.server
        if way:
            source, target = target, source
        stalled = connection.stalled[way]
        if stalled or (self._cut and (source, target) in self._cut):
            stalled.append((number, opaque, message))
            self._stalling[connection.number] = connection
            return
        if isinstance(message, Request):
            self._request_arrives(connection, opaque, message)
        else:
            self._response_arrives(connection, opaque, message)

    def _request_arrives(self, connection: SimConnection, opaque: int, message: Request) -> None:
        endpoint = self._endpoints[connection.server]
        if not connection.knows_server:
            if endpoint.is_up:
                self._tell_later(connection, self._client_learns, "connection reset")
            return
        if endpoint.hold_back(self._request_arrives, (connection, opaque, message)):
            return
        if self.closes_old and not self._is_heard(connection, message):
            return
        endpoint.request_came(connection, opaque, message)

    def _is_heard(self, connection: SimConnection, message: Request) -> bool:
        """Whether the server takes a request: its client has no other connection that lives."""
        if message.kind in _TELLING and connection.heard_us < 0:
            known = self._incoming[connection.client, connection.server]
            for other in [other for other in known if other.heard_us >= 0]:
                if self.clock.now_us - other.heard_us < self.live_us:
                    self._server_learns(connection)
                    self._tell_later(connection, self._client_learns, "connection reset")
                    return False
                self._server_learns(other)
            connection.heard_us = self.clock.now_us
        elif connection.heard_us >= 0:
            connection.heard_us = self.clock.now_us
        return True

    def _response_arrives(self, connection: SimConnection, opaque: int, message: Response) -> None:
        endpoint = self._endpoints[connection.client]
        if not connection.knows_client:
            return
        if endpoint.hold_back(self._response_arrives, (connection, opaque, message)):
            return
        if opaque in connection.outstanding:
            connection.outstanding.discard(opaque)
            endpoint.response_came(connection.server, opaque, message)
