# -*- test-case-name: tests.protocols.test_connection -*-
"""
What a connection tells its owner, and the values that pass between them.

A connection knows formats, not meanings: which member speaks, what may be answered and when
is for its owner to decide. Owners do not raise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

from protocols.wire.errors import BodyError, WireError
from protocols.wire.ledger.codes import RequestCode
from protocols.wire.ledger.messages import Request, Response

if TYPE_CHECKING:
    from protocols.connection import ClientConnection, ServerConnection

#: Where an answer goes on its connection: opaque number, whether the request came in a native
#: frame, what it asked for, and the bytes of its frame. A bare tuple: one is made per request.
Ticket: TypeAlias = tuple[int, bool, RequestCode, int]


class Dialect(Protocol):
    """One way to put messages into frames."""

    def request_parts(self, request: Request, opaque: int) -> Sequence[bytes]:
        """A request's frame, in pieces."""

    def response_parts(self, response: Response, opaque: int) -> Sequence[bytes]:
        """An answer's frame, in pieces."""


class RequestSink(Protocol):
    """Owner of connections that others made to us."""

    def connected(self, connection: ServerConnection) -> None:
        """A connection is ready."""

    def requests_received(
        self, connection: ServerConnection, requests: list[tuple[Ticket, Request]]
    ) -> None:
        """
        The requests of one read, in order. Each ticket is answered once, unless the connection
        is lost first.
        """

    def body_refused(self, connection: ServerConnection, ticket: Ticket, error: BodyError) -> None:
        """A sound frame with a body that is not the message it should be; the ticket wants an answer."""

    def drained(self, connection: ServerConnection) -> None:
        """The connection takes output again after L{ServerConnection.is_congested}."""

    def wire_broken(self, connection: ServerConnection, error: WireError) -> None:
        """The peer broke the format; the connection is being aborted."""

    def connection_lost(self, connection: ServerConnection, reason: str) -> None:
        """Nothing more will come, and answers go nowhere."""


class AnswerSink(Protocol):
    """Owner of connections that we make to others."""

    def connected(self, connection: ClientConnection) -> None:
        """A connection is ready for requests."""

    def answers_received(
        self, connection: ClientConnection, answers: list[tuple[int, Response]]
    ) -> None:
        """Answers of one read, each with the token of its request, in the order they came."""

    def requests_failed(
        self, connection: ClientConnection, tokens: list[int], reason: str, *, is_incompatible: bool = False
    ) -> None:
        """
        These requests will not be answered: refused without a body, timed out, connection lost.

        @param is_incompatible: they were answered, in another version of the protocol.
        """

    def wire_broken(self, connection: ClientConnection, error: WireError) -> None:
        """The peer broke the format; the connection is being aborted."""

    def connection_lost(self, connection: ClientConnection, reason: str) -> None:
        """Told after L{requests_failed} for everything outstanding."""
