# -*- test-case-name: tests.protocols.test_connection -*-
"""
A dialect puts messages into frames; a ticket tells where an answer goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

from protocols.wire.ledger.codes import RequestCode
from protocols.wire.ledger.messages import Request, Response

#: Where an answer goes on its connection: opaque number, whether the request came in a native
#: frame, what it asked for, and the bytes of its frame. A bare tuple: one is made per request.
Ticket: TypeAlias = tuple[int, bool, RequestCode, int]


class Dialect(Protocol):
    """One way to put messages into frames."""

    def request_parts(self, request: Request, opaque: int) -> Sequence[bytes]:
        """A request's frame, in pieces."""

    def response_parts(self, response: Response, opaque: int) -> Sequence[bytes]:
        """An answer's frame, in pieces."""
