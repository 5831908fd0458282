# -*- test-case-name: tests.node.test_router -*-
"""
The requests that the core answers: every one is answered exactly once, with a code in a body, unless its
connection is lost; then the core receives C{RequestAbandoned} for its unanswered requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from twisted.internet.defer import Deferred

from dledger.core.state.inputs import Input, RequestAbandoned, RequestReceived
from dledger.node.reporting.status import count
from dledger.node.requests.merging import Merged, merge
from dledger.node.run.inside import MemberInside
from dledger.values.errors import DLedgerError
from protocols.ledger.connection import ServerConnection
from protocols.ledger.interfaces import Ticket
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.message_table import MESSAGES
from protocols.wire.ledger.messages import Request, Response, VoteResponse

#: The origin of a request to the core: one request, or several merged ones.
_Asked = tuple[ServerConnection, Ticket | Merged]


class CoreQuestions:
    """
    Invariant: C{_questions}, and C{_callers} of this process, have the tokens that the core has not answered;
    C{_tokens} has those of each open connection.
    """

    def __init__(self, inside: MemberInside, next_token: Callable[[], int]) -> None:
        """@param next_token: makes a number for each question."""
        self._group = inside.config.group
        self._core = inside.core
        self._feed = inside.feed
        self._counters = inside.counters
        self._next_token = next_token
        self._questions: dict[int, _Asked] = {}
        self._callers: dict[int, Deferred[Response]] = {}
        self._tokens: dict[ServerConnection, set[int]] = {}

    @property
    def unanswered(self) -> int:
        """Number of requests that the core has not answered."""
        return len(self._questions) + len(self._callers)

    def connected(self, connection: ServerConnection) -> None:
        """A connection has begun."""
        self._tokens[connection] = set()

    def lost(self, connection: ServerConnection) -> set[int]:
        """A connection has ended. @return: its requests without an answer, for L{abandon}."""
        tokens = self._tokens.pop(connection, set())
        for token in tokens:
            del self._questions[token]
        return tokens

    def abandon(self, tokens: set[int]) -> None:
        """Inform the core that nobody waits for these answers any more."""
        if tokens:
            self._counters.requests_abandoned += len(tokens)
            # In the order of their arrival.
            self._feed(*[RequestAbandoned(token=token) for token in sorted(tokens)])

    def ask(self, connection: ServerConnection, asked: list[tuple[Ticket, Request]]) -> None:
        """Ask the core for a connection."""
        questions: list[Input] = []
        tokens = self._tokens[connection]
        merged: Iterable[tuple[Ticket | Merged, Request]]
        merged = asked if len(asked) == 1 else merge(asked, self._core.ledger_end_index + 1)
        for whence, request in merged:
            token = self._next_token()
            self._questions[token] = (connection, whence)
            tokens.add(token)
            questions.append(RequestReceived(token=token, request=request, channel=connection.serial))
        self._feed(*questions)

    def ask_here(self, request: Request) -> Deferred[Response]:
        """Ask the core for a local caller. Cancelling forgets the request."""
        token = self._next_token()

        def forget(_: Deferred[Response]) -> None:
            self._callers.pop(token, None)

        waiter: Deferred[Response] = Deferred(forget)
        self._callers[token] = waiter
        self._feed(RequestReceived(token=token, request=request))
        return waiter

    def reply(self, token: int, response: Response) -> None:
        """Pass on the core's answer; an unknown token is ignored."""
        if token not in self._questions:
            if token in self._callers:
                self._callers.pop(token).callback(response)
            return
        connection, whence = self._questions.pop(token)
        self._tokens[connection].discard(token)
        if type(response) is VoteResponse:
            count(self._counters.votes, response.vote_result.name)
        if response.code is not ResponseCode.SUCCESS:
            asked_times = len(whence.parts) if isinstance(whence, Merged) else 1
            count(self._counters.refusals, response.code.name, asked_times)
        if type(whence) is Merged:
            for ticket, answer in whence.answers(response):
                connection.answer(ticket, answer)
        else:
            assert type(whence) is Ticket
            connection.answer(whence, response)

    def stop(self) -> None:
        """The member has stopped: answer the requests that the core left unanswered."""
        questions, self._questions = self._questions, {}
        for connection, whence in questions.values():
            self._tokens[connection].clear()
            tickets = [part[0] for part in whence.parts] if isinstance(whence, Merged) else [whence]
            for ticket in tickets:
                connection.answer(ticket, MESSAGES[ticket.kind][1](
                    code=ResponseCode.ILLEGAL_MEMBER_STATE, group=self._group
                ))
        callers, self._callers = self._callers, {}
        for caller in callers.values():
            caller.errback(DLedgerError(ResponseCode.ILLEGAL_MEMBER_STATE, reason="the member has stopped"))
