# -*- test-case-name: tests.protocols.test_connection -*-
"""Owners of connections that only remember their calls, and a transport that can be full."""

from __future__ import annotations

from typing import Any

from twisted.internet.error import ConnectionAborted, ConnectionDone
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure

from protocols.connection import Connection
from protocols.ledger.connection import START_SIZE, ClientConnection, NativeReader, ServerConnection
from protocols.ledger.interfaces import Ticket
from protocols.turn import Turn
from protocols.wire.errors import BodyError, WireError
from protocols.wire.framing import FrameBuffer
from protocols.wire.ledger.java.json_bodies import decode_response, encode_request, encode_response
from protocols.wire.ledger.messages import AppendRequest, HeartBeatRequest, MetadataRequest, Request, Response
from protocols.wire.ledger.push import decode_frame, encode_request_frame, encode_response_frame
from protocols.wire.remoting import RemotingCommand, decode_command, encode_command

#: Requests of a client and of a member.
ASK = MetadataRequest(group="g", remote_id="n0")
APPEND = AppendRequest(group="g", remote_id="n0", bodies=(b"hello",))
BEAT = HeartBeatRequest(group="g", remote_id="n0", local_id="n1", leader_id="n1", term=3)


class FakeTransport(StringTransport):
    """Remembers each write; C{abortConnection} and C{loseConnection} do not call back by themselves."""

    def __init__(self) -> None:
        super().__init__(lenient=True)
        self.writes: list[bytes] = []

    def write(self, data: bytes) -> None:
        """One call, one entry in C{writes}."""
        self.writes.append(data)
        super().write(data)


class SeenRequests:
    """A RequestSink."""

    def __init__(self) -> None:
        self.connections: list[ServerConnection] = []
        self.calls: list[list[tuple[Ticket, Request]]] = []
        self.refused: list[tuple[Ticket, BodyError]] = []
        self.drains = 0
        self.broken: list[WireError] = []
        self.lost: list[str] = []

    @property
    def requests(self) -> list[tuple[Ticket, Request]]:
        """All of them."""
        return [request for call in self.calls for request in call]

    def connected(self, connection: ServerConnection) -> None:
        """Remember."""
        self.connections.append(connection)

    def requests_received(
        self, connection: ServerConnection, requests: list[tuple[Ticket, Request]]
    ) -> None:
        """Remember."""
        self.calls.append(requests)

    def body_refused(self, connection: ServerConnection, ticket: Ticket, error: BodyError) -> None:
        """Remember."""
        self.refused.append((ticket, error))

    def drained(self, connection: ServerConnection) -> None:
        """Count."""
        self.drains += 1

    def wire_broken(self, connection: ServerConnection, error: WireError) -> None:
        """Remember."""
        self.broken.append(error)

    def connection_lost(self, connection: ServerConnection, reason: str) -> None:
        """Remember."""
        self.lost.append(reason)


class SeenAnswers:
    """An AnswerSink."""

    def __init__(self) -> None:
        self.connections: list[ClientConnection[int]] = []
        self.calls: list[list[tuple[int, Response]]] = []
        self.failed: list[tuple[int, str]] = []
        self.incompatible: list[int] = []
        self.without_body: list[int] = []
        self.reads: list[int] = []
        self.broken: list[WireError] = []
        self.lost: list[str] = []

    @property
    def answers(self) -> list[tuple[int, Response]]:
        """All of them."""
        return [answer for call in self.calls for answer in call]

    def connected(self, connection: ClientConnection) -> None:
        """Remember."""
        self.connections.append(connection)

    def answers_received(
        self, connection: ClientConnection[int], answers: list[tuple[int, Response]]
    ) -> None:
        """Remember."""
        self.calls.append(answers)

    def requests_failed(
        self, connection: ClientConnection[int], tokens: list[int], reason: str, *,
        is_incompatible: bool = False, answer: RemotingCommand | None = None,
    ) -> None:
        """Remember."""
        self.failed += [(token, reason) for token in tokens]
        self.incompatible += tokens if is_incompatible else []
        self.without_body += [] if answer is None else [answer.code]

    def read_ended(self, connection: ClientConnection[int]) -> None:
        """Remember how much came before."""
        self.reads.append(len(self.answers) + len(self.failed))

    def wire_broken(self, connection: ClientConnection[int], error: WireError) -> None:
        """Remember."""
        self.broken.append(error)

    def connection_lost(self, connection: ClientConnection[int], reason: str) -> None:
        """Remember."""
        self.lost.append(reason)


def turn_of(clock: Clock) -> Turn:
    """A turn whose failures are errors of the test."""

    def failed(failure: Failure) -> None:
        failure.raiseException()

    return Turn(clock, failed)


def plug(connection: Connection) -> FakeTransport:
    """Connect it to a transport of its own."""
    transport = FakeTransport()
    connection.makeConnection(transport)  # type: ignore[arg-type]
    return transport


def unplug(connection: Connection, *, aborted: bool = False) -> None:
    """The connection ends."""
    connection.connectionLost(Failure(ConnectionAborted() if aborted else ConnectionDone()))


def remoting_request(request: Request, opaque: int, *, flag: int = 0) -> bytes:
    """A request as Java sends it."""
    return encode_command(RemotingCommand(
        code=int(request.kind), opaque=opaque, flag=flag, body=encode_request(request)
    ))


def remoting_response(response: Response, opaque: int) -> bytes:
    """An answer as Java sends it."""
    return encode_command(RemotingCommand(code=200, opaque=opaque, flag=1, body=encode_response(response)))


native_request = encode_request_frame
native_response = encode_response_frame


def sent_commands(data: bytes) -> list[RemotingCommand]:
    """The remoting frames in C{data}."""
    return [decode_command(frame.data) for frame in FrameBuffer().feed(data) if frame.kind == "remoting"]


def sent_messages(data: bytes, kinds: dict[int, Any] | None = None) -> list[tuple[int, Any]]:
    """
    All messages in C{data} with their opaque; remoting answers are decoded as the request code that
    C{kinds} has for their opaque says, and left as commands otherwise.
    """
    found: list[tuple[int, Any]] = []
    for frame in FrameBuffer().feed(data):
        if frame.kind == "native":
            found.append(decode_frame(frame.data))
            continue
        command = decode_command(frame.data)
        kind = (kinds or {}).get(command.opaque)
        if kind is not None and command.is_response and command.body:
            found.append((command.opaque, decode_response(kind, command.body)))
        else:
            found.append((command.opaque, command))
    return found


def read_native(reader: NativeReader, frame: bytes) -> tuple[int, Request | Response]:
    """Decode a native frame as the connections do."""
    start = frame[:START_SIZE]
    return (start in reader.short and reader.short[start](frame)) or reader.learn(frame)
