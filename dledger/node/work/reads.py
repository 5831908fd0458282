# -*- test-case-name: tests.node.test_reads -*-
"""
Serves entries: single ones by GET, ranges by PULL, and both to local callers; and the last sequence of a
producer by SEQUENCE.

Rule 1: only committed entries are shown. A linearizable read is served up to its read index from the
core, any other read up to the committed index that this member knows.
Rule 2: all linearizable reads of a reactor turn are one input of the core.
Rule 3: no entries are read for a connection that is congested or holds its share of the budget of answers:
its reads are parked until it drains.
Rule 4: PULLs that wait for entries are bounded in number (C{PULL_WAITERS_MAX}, of one connection
C{PULL_WAITERS_OF_ONE_MAX}) and time (C{PULL_WAIT_MS_MAX}).
Rule 5: one reactor turn serves at most C{READS_PER_TURN} reads and C{READ_BYTES_PER_TURN} bytes, and begins
none later than C{READ_S_PER_TURN} after the first; the next ones are parked, and served in the next turn,
connection by connection.
Rule 6: a member that has lost entries to damage asks C{COMMITTED} on its own connection, and gets any sound
entry: it may have held the entry before that was committed, and compares it
(L{dledger.storage.store.hole_mending}).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeAlias

import attrs
from twisted.internet.defer import Deferred

from dledger.core.state.effects import AnswerRead
from dledger.core.state.inputs import ReadRequested
from dledger.node.reporting.status import Counters, count
from dledger.storage.store.file_store import FileStore
from dledger.values.errors import DLedgerError
from protocols.ledger.connection import ServerConnection
from protocols.ledger.interfaces import Ticket
from protocols.turn import Turn
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import Consistency
from protocols.wire.ledger.entry import ENTRY_HEADER_SIZE, bodies_of
from protocols.wire.ledger.messages import (
    UNCHECKED,
    GetRequest,
    GetResponse,
    PullRequest,
    PullResponse,
    SequenceRequest,
    SequenceResponse,
)
from protocols.wire.ledger.owners import may_use
from protocols.wire.ledger.producers import producer_problem

#: Most bytes of records in one answer to a PULL.
PULL_BYTES_MAX = 4 * 1024 * 1024

#: A PULL waits at most this long for entries; at most this many PULLs and local callers wait.
PULL_WAIT_MS_MAX = 30_000
PULL_WAITERS_MAX = 4096
#: At most this many PULLs of one connection wait.
PULL_WAITERS_OF_ONE_MAX = 256

#: Reads that one reactor turn serves, bytes of their records, and seconds for them: an entry of 1 MiB in JSON
#: takes 8 ms.
READS_PER_TURN = 256
READ_BYTES_PER_TURN = 8 * 1024 * 1024
READ_S_PER_TURN = 0.004


#: What is read.
Reading: TypeAlias = GetRequest | PullRequest | SequenceRequest


class Refuse(Protocol):
    """Turns an expected refusal into an answer."""

    def __call__(
        self, connection: ServerConnection, ticket: Ticket, request: Reading,
        error: DLedgerError,
    ) -> None:
        """Answer C{request} with the error's code."""


class _Asked(NamedTuple):
    """A read, and where its answer goes."""

    connection: ServerConnection
    ticket: Ticket
    request: Reading


#: A local caller: the requested index, and its Deferred; or a Deferred for the read index alone.
_LocalRead: TypeAlias = tuple[int, Deferred[bytes]] | Deferred[int]


@attrs.define
class _Waiter:
    """A PULL or a local caller that waits until C{index} is committed."""

    index: int
    deadline_s: float
    asked: _Asked | None = None
    local: Deferred[int] | None = None


class Reads:
    """
    Invariant: a read is in exactly one of C{_asked}, C{waiting} and C{parked}, or it was answered;
    C{_tokens} are those of C{_asked} that the core has not been given yet. C{waits_of} counts the
    C{waiting} of each connection.

    @ivar waiting: PULLs and local callers that wait for entries.
    @ivar parked: reads that wait for room in the budget, by connection.
    @ivar request_reads: asks the core to prove that it leads.
    """

    def __init__(
        self,
        *,
        group: str,
        store: FileStore,
        committed_index: Callable[[], int],
        request_reads: Callable[[ReadRequested], None],
        turn: Turn,
        next_token: Callable[[], int],
        refuse: Refuse,
        owner_of: Callable[[ServerConnection], str],
        counters: Counters,
    ) -> None:
        """@param owner_of: of a connection, see L{protocols.wire.ledger.owners}."""
        self._owner_of = owner_of
        self._group = group
        self._store = store
        self._committed_index = committed_index
        self.request_reads = request_reads
        self._at_end_of_turn = turn.work
        self._next_token = next_token
        self._seconds = turn.seconds
        self._refuse = refuse
        self._counters = counters
        self._tokens: list[int] = []
        self._asked: dict[int, _Asked | _LocalRead] = {}
        self.waiting: list[_Waiter] = []
        self.parked: dict[ServerConnection, deque[tuple[Ticket, Reading, int]]] = {}
        self.waits_of: dict[ServerConnection, int] = {}
        self._reads_left = READS_PER_TURN
        self._bytes_left = READ_BYTES_PER_TURN
        self._began_s = 0.0
        self._is_wake_asked = False
        self._is_stopped = False

    def slowest_index(self) -> int:
        """Lowest index that a waiting reader will read next; far above all entries without one."""
        wanted = [waiter.index for waiter in self.waiting]
        wanted += [
            parked.begin_index or 0 for queue in self.parked.values() for _, parked, _ in queue
            if not isinstance(parked, SequenceRequest)
        ]
        return min(wanted, default=1 << 62)

    @property
    def waiters(self) -> int:
        """Number of PULLs and local callers that wait for entries."""
        return len(self.waiting)

    # -- questions ---------------------------------------------------------------------------

    def ask(self, connection: ServerConnection, ticket: Ticket, request: Reading) -> None:
        """Serve a GET, a SEQUENCE, or a PULL on a native frame."""
        if self._is_stopped:
            self._refuse(connection, ticket, request, DLedgerError(ResponseCode.NOT_LEADER))
        elif isinstance(request, SequenceRequest):
            self._ask_core(_Asked(connection, ticket, request))
        elif request.begin_index is None:
            error = DLedgerError(ResponseCode.UNEXPECTED_ARGUMENT, reason="beginIndex is missing")
            self._refuse(connection, ticket, request, error)
        elif request.consistency is Consistency.LINEARIZABLE:
            self._ask_core(_Asked(connection, ticket, request))
        elif isinstance(request, PullRequest) and self._must_wait(request):
            self._wait(_Asked(connection, ticket, request))
        else:
            self._serve(connection, ticket, request, self._committed_index())

    def read(self, index: int) -> Deferred[bytes]:
        """Read the body at C{index}, linearizably. Cancelling forgets the read."""
        waiter: Deferred[bytes] = Deferred(lambda _: None)
        if self._is_stopped:
            waiter.errback(DLedgerError(ResponseCode.NOT_LEADER))
        else:
            self._ask_core((index, waiter))
        return waiter

    def read_index(self) -> Deferred[int]:
        """
        Prove that this member leads.

        @return: fires with an index that is at least that of every entry committed before this call. Fails
            with L{DLedgerError}: C{NOT_LEADER}, ... Cancelling forgets the question.
        """
        waiter: Deferred[int] = Deferred(lambda _: None)
        if self._is_stopped:
            waiter.errback(DLedgerError(ResponseCode.NOT_LEADER))
        else:
            self._ask_core(waiter)
        return waiter

    def wait_for(self, index: int, time_out_ms: int) -> Deferred[int]:
        """
        Wait until this member knows that C{index} is committed.

        @return: fires with the committed index, which is lower than C{index} if the time ran out.
            Fails with C{LEADER_PENDING_FULL} if C{PULL_WAITERS_MAX} readers wait.
        """
        waiter: Deferred[int] = Deferred(lambda _: None)
        if self._is_stopped or self._committed_index() >= index:
            waiter.callback(self._committed_index())
        elif len(self.waiting) >= PULL_WAITERS_MAX:
            waiter.errback(DLedgerError(ResponseCode.LEADER_PENDING_FULL, waiters=len(self.waiting)))
        else:
            deadline_s = self._seconds() + time_out_ms / 1000
            self.waiting.append(_Waiter(index=index, deadline_s=deadline_s, local=waiter))
        return waiter

    def _ask_core(self, asked: _Asked | _LocalRead) -> None:
        token = self._next_token()
        self._asked[token] = asked
        if not self._tokens:
            self._at_end_of_turn(self._end_of_turn)
        self._tokens.append(token)

    def _end_of_turn(self) -> None:
        tokens, self._tokens = self._tokens, []
        if tokens:
            self.request_reads(ReadRequested(tuple(tokens)))

    def _must_wait(self, request: PullRequest) -> bool:
        return request.wait_ms > 0 and request.begin_index > self._committed_index() and (
            request.begin_index >= 0
        )

    def _wait(self, asked: _Asked) -> None:
        connection, ticket, request = asked
        assert isinstance(request, PullRequest)
        if len(self.waiting) >= PULL_WAITERS_MAX:
            error = DLedgerError(ResponseCode.LEADER_PENDING_FULL, waiters=len(self.waiting))
            self._refuse(connection, ticket, request, error)
            return
        waits = self.waits_of.get(connection, 0)
        if waits >= PULL_WAITERS_OF_ONE_MAX:
            error = DLedgerError(ResponseCode.LEADER_PENDING_FULL, waiters_of_connection=waits)
            self._refuse(connection, ticket, request, error)
            return
        self.waits_of[connection] = waits + 1
        deadline_s = self._seconds() + min(request.wait_ms, PULL_WAIT_MS_MAX) / 1000
        self.waiting.append(_Waiter(index=request.begin_index, deadline_s=deadline_s, asked=asked))

    # -- events -------------------------------------------------------------------------------

    def answered(self, answer: AnswerRead) -> None:
        """The core's answer to one linearizable read."""
        asked = self._asked.pop(answer.token, None)
        if asked is None:
            return
        if isinstance(asked, Deferred):
            self._notify_index(asked, answer)
            return
        if not isinstance(asked, _Asked):
            index, waiter = asked
            self._notify_local(index, waiter, answer)
            return
        connection, ticket, request = asked
        if answer.code is not ResponseCode.SUCCESS:
            error = DLedgerError(answer.code, leader_id=answer.leader_id)
            self._refuse(connection, ticket, request, error)
        else:
            self._serve(connection, ticket, request, answer.read_index)

    def _notify_index(self, waiter: Deferred[int], answer: AnswerRead) -> None:
        if waiter.called:
            return
        if answer.code is ResponseCode.SUCCESS:
            waiter.callback(answer.read_index)
        else:
            waiter.errback(DLedgerError(answer.code, leader_id=answer.leader_id))

    def _notify_local(self, index: int, waiter: Deferred[bytes], answer: AnswerRead) -> None:
        if waiter.called:
            return
        try:
            if answer.code is not ResponseCode.SUCCESS:
                raise DLedgerError(answer.code, leader_id=answer.leader_id)
            self._check_index(index, answer.read_index)
            (body,) = bodies_of(self._store.read_batch(index, max_count=1, max_bytes=1))
        except DLedgerError as error:
            waiter.errback(error)
        else:
            waiter.callback(body)

    def committed(self) -> None:
        """C{committed_index} rose, and some wait: wake them when the turn ends."""
        if not self._is_wake_asked:
            self._is_wake_asked = True
            self._at_end_of_turn(self._wake)

    def _wake(self) -> None:
        self._is_wake_asked = False
        committed_index = self._committed_index()
        self._end_waits(lambda waiter: waiter.index <= committed_index)

    def sweep(self, now_s: float) -> None:
        """End waits whose time is over, without entries; serve parked reads. Called regularly."""
        if self.parked:  # the budget may have been exhausted by other connections
            self._serve_parked(list(self.parked))
        if self.waiting:
            self._end_waits(lambda waiter: waiter.deadline_s <= now_s)

    def _end_waits(self, is_over: Callable[[_Waiter], bool]) -> None:
        over = [waiter for waiter in self.waiting if is_over(waiter)]
        if not over:
            return
        self.waiting = [waiter for waiter in self.waiting if not is_over(waiter)]
        committed_index = self._committed_index()
        for waiter in over:
            if waiter.asked is not None:
                self._waited(waiter.asked.connection)
                self._serve(*waiter.asked, committed_index)
            elif waiter.local is not None and not waiter.local.called:
                waiter.local.callback(committed_index)

    def _waited(self, connection: ServerConnection) -> None:
        waits = self.waits_of.get(connection, 0)
        if waits > 1:
            self.waits_of[connection] = waits - 1
        else:
            self.waits_of.pop(connection, None)

    def connection_lost(self, connection: ServerConnection) -> None:
        """The connection is lost: forget its parked and waiting reads."""
        self.parked.pop(connection, None)
        if self.waits_of.pop(connection, 0):
            self.waiting = [
                waiter
                for waiter in self.waiting
                if waiter.asked is None or waiter.asked.connection is not connection
            ]

    def drained(self, connection: ServerConnection) -> None:
        """The connection takes answers again: serve its parked reads."""
        if connection in self.parked:
            self._serve_parked([connection])

    def _may_serve(self, connection: ServerConnection) -> bool:
        if self._reads_left == READS_PER_TURN:
            self._began_s = self._seconds()
        elif self._reads_left <= 0 or self._bytes_left <= 0:
            return False
        elif self._seconds() - self._began_s >= READ_S_PER_TURN:
            return False
        return connection.may_answer

    def _spend(self, size: int) -> None:
        if self._reads_left == READS_PER_TURN:
            self._at_end_of_turn(self._next_turn)
        self._reads_left -= 1
        self._bytes_left -= size

    def _next_turn(self) -> None:
        """Another turn may serve as much again, parked reads first."""
        self._reads_left = READS_PER_TURN
        self._bytes_left = READ_BYTES_PER_TURN
        if self.parked:
            self._serve_parked(list(self.parked))

    def _serve_parked(self, connections: list[ServerConnection]) -> None:
        """Serve one parked read of each connection, then the next of each, while they may be served."""
        while connections:
            waiting, connections = connections, []
            for connection in waiting:
                parked = self.parked.get(connection)
                if parked is None or not self._may_serve(connection):
                    continue
                ticket, request, read_index = parked.popleft()
                if parked:
                    connections.append(connection)
                else:
                    del self.parked[connection]
                self._serve_now(connection, ticket, request, read_index)

    def stop(self) -> None:
        """The member has stopped: answer all reads that still wait."""
        self._is_stopped = True
        asked, self._asked, self._tokens = self._asked, {}, []
        for token in asked:
            self._asked[token] = asked[token]
            self.answered(AnswerRead(token=token, code=ResponseCode.NOT_LEADER))
        self._end_waits(lambda waiter: True)

    # -- answers ------------------------------------------------------------------------------

    def _serve(
        self, connection: ServerConnection, ticket: Ticket, request: Reading, read_index: int
    ) -> None:
        if connection.is_lost:
            return
        if connection in self.parked or not self._may_serve(connection):
            self.parked.setdefault(connection, deque()).append((ticket, request, read_index))
            return
        self._serve_now(connection, ticket, request, read_index)

    def _serve_now(
        self, connection: ServerConnection, ticket: Ticket, request: Reading, read_index: int
    ) -> None:
        try:
            if isinstance(request, PullRequest):
                self._serve_pull(connection, ticket, request, read_index)
            elif isinstance(request, SequenceRequest):
                self._serve_sequence(connection, ticket, request)
            else:
                self._serve_get(connection, ticket, request, read_index)
        except DLedgerError as error:
            self._refuse(connection, ticket, request, error)

    def _serve_get(
        self, connection: ServerConnection, ticket: Ticket, request: GetRequest, read_index: int
    ) -> None:
        index = request.begin_index
        assert index is not None
        if request.consistency is Consistency.COMMITTED and connection.peer_id is not None:
            read_index = self._store.ledger_end_index  # see rule 6
        self._check_index(index, read_index)
        entries = self._store.read_batch(index, max_count=1, max_bytes=1)
        self._counters.gets += 1
        self._spend(len(entries.records))
        connection.answer(ticket, GetResponse(group=self._group, entries=entries))

    def _serve_sequence(
        self, connection: ServerConnection, ticket: Ticket, request: SequenceRequest
    ) -> None:
        self._spend(0)
        group, name = self._store.group, request.producer
        problem = producer_problem(name, 0)
        if problem:
            raise DLedgerError(ResponseCode.UNEXPECTED_ARGUMENT, reason=problem)
        if group is None:
            raise DLedgerError(ResponseCode.LEADER_NOT_READY, reason=self._store.why_group_unknown)
        known = group.state.producer(name)
        if known is not None and not may_use(known.owner, self._owner_of(connection)):
            raise DLedgerError(ResponseCode.FORBIDDEN, reason=f"{name!r} is a producer of another account")
        if known is not None and known.runs:
            connection.answer(ticket, SequenceResponse(
                group=self._group, last_sequence=known.last, index=known.runs[-1].end_index - 1
            ))
        elif known is None and group.state.has_forgotten:
            raise DLedgerError(ResponseCode.PRODUCER_FORGOTTEN, reason=(
                f"the log does not know the producer {name!r}, and may have forgotten it"
            ))
        else:
            raise DLedgerError(
                ResponseCode.UNKNOWN_PRODUCER, reason=f"the log has never had the producer {name!r}"
            )

    def _check_index(self, index: int, read_index: int) -> None:
        begin_index = self._store.ledger_begin_index
        if index < 0 or index > min(read_index, self._store.ledger_end_index):
            raise DLedgerError(ResponseCode.INDEX_OUT_OF_RANGE, index=index, committed_index=read_index)
        if index < begin_index:
            raise DLedgerError(
                ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN, index=index, ledger_begin_index=begin_index
            )

    def _serve_pull(
        self, connection: ServerConnection, ticket: Ticket, request: PullRequest, read_index: int
    ) -> None:
        store, first = self._store, request.begin_index
        end_index = min(read_index, store.ledger_end_index)
        if request.consistency is Consistency.COMMITTED and connection.peer_id is not None:
            end_index = store.ledger_end_index  # see rule 6
        begin_index = store.ledger_begin_index
        entries = None
        code = ResponseCode.SUCCESS
        if first < 0:
            code = ResponseCode.INDEX_OUT_OF_RANGE
        elif first < begin_index:
            code = ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN
        elif first <= end_index:
            if request.end_index >= 0:
                end_index = min(end_index, max(first, request.end_index))
            max_bytes = min(max(request.max_bytes, ENTRY_HEADER_SIZE), PULL_BYTES_MAX)
            read = store.read_unchecked if request.node_id == UNCHECKED else store.read_range
            entries = read(first, end_index=end_index, max_bytes=max_bytes)
            self._counters.pulled_bytes += len(entries.records)
        self._counters.pulls += 1
        self._spend(0 if entries is None else len(entries.records))
        if code is not ResponseCode.SUCCESS:
            count(self._counters.refusals, code.name)
        connection.answer(ticket, PullResponse(
            code=code, group=self._group, entries=entries, ledger_begin_index=begin_index,
            committed_index=read_index,
        ))
