# -*- test-case-name: tests.node.test_router,tests.node.test_turned_away -*-
"""Answers to requests that are refused: the only place where a L{DLedgerError} becomes a response code."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from dledger.core.replica import DLedgerCore
from dledger.core.state.inputs import StoreFailed
from dledger.node.reporting.status import Counters, count
from dledger.values.errors import DLedgerError, StoreError
from protocols.ledger.connection import ServerConnection
from protocols.ledger.interfaces import Ticket
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import WIRE_VERSION
from protocols.wire.ledger.message_table import MESSAGES
from protocols.wire.ledger.messages import (
    MembershipResponse,
    MetadataResponse,
    ReaderResponse,
    Request,
    Response,
    SequenceResponse,
)


class Refusals:
    """Answers requests that are refused, for the router and for the parts that it routes to."""

    def __init__(self, core: DLedgerCore, feed: Callable[..., None], counters: Counters) -> None:
        self._core = core
        self._feed = feed
        self._counters = counters

    def refuse(
        self, connection: ServerConnection, ticket: Ticket, request: Request, error: DLedgerError
    ) -> None:
        """Answer with a refusal: base fields of the request, the code, and the leader if known."""
        count(self._counters.refusals, error.code.name)
        connection.answer(ticket, self.refusal_of(request, error))
        if isinstance(error, StoreError):
            self._feed(StoreFailed(reason=str(error)))

    def refusal_of(self, request: Request, error: DLedgerError) -> Response:
        """The answer that carries C{error}."""
        response_class = MESSAGES[request.kind][1]
        refusal = response_class(
            code=error.code, group=request.group, remote_id=request.remote_id, local_id=request.local_id,
            leader_id=self._core.leader_id, term=request.term, wire_version=WIRE_VERSION,
        )
        if isinstance(refusal, MetadataResponse) and error.code is ResponseCode.TOO_MANY_CLIENTS:
            return attrs.evolve(refusal, health=str(error.facts.get("reason", "")))
        if isinstance(refusal, MetadataResponse) and error.code is ResponseCode.NOT_LEADER:
            # This member stops: it may be the last one of those that the client knows.
            return attrs.evolve(refusal, peers=self._core.member.membership.addresses)
        if isinstance(refusal, MembershipResponse | ReaderResponse | SequenceResponse):
            return attrs.evolve(refusal, reason=str(error.facts.get("reason", "")))
        return refusal
