# -*- test-case-name: tests.protocols.test_connection -*-
"""
A dialect puts messages into frames; a ticket tells where an answer goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

from protocols.wire.ledger.codes import RequestCode
from protocols.wire.ledger.messages import Request, Response

#: Routes an answer on its connection: opaque number, whether the request came in a native frame, its
#: request code, and the bytes of its frame. A bare tuple, because one is made per request.
Ticket: TypeAlias = tuple[int, bool, RequestCode, int]


class Dialect(Protocol):
    """One encoding of messages in frames."""

    def request_parts(self, request: Request, opaque: int) -> Sequence[bytes]:
        """The frame of a request, in pieces."""

    def response_parts(self, response: Response, opaque: int) -> Sequence[bytes]:
        """The frame of an answer, in pieces."""
