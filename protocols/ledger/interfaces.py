# -*- test-case-name: tests.protocols.test_connection -*-
"""
A dialect puts messages into frames; a ticket says where an answer goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from protocols.wire.ledger.codes import RequestCode
from protocols.wire.ledger.messages import Request, Response


class Ticket(NamedTuple):
    """
    Routes an answer on its connection.

    @ivar opaque: number of the request.
    @ivar is_native: whether the request came in a native frame.
    @ivar kind: its request code.
    @ivar size: bytes of its frame.
    """

    opaque: int
    is_native: bool
    kind: RequestCode
    size: int


class Dialect(Protocol):
    """One encoding of messages in frames."""

    def request_parts(self, request: Request, opaque: int) -> Sequence[bytes]:
        """The frame of a request, in pieces."""

    def response_parts(self, response: Response, opaque: int) -> Sequence[bytes]:
        """The frame of an answer, in pieces."""
