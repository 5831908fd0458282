# -*- test-case-name: tests.node.test_hosting -*-
"""
The requests to the state machine of a member: SUBMIT, QUERY and SKIP.

Rule 1: a command that was appended is answered with the result of its own entry, or with a code that means
"unknown": it is in the log, or may come to be. The wait for the result begins in the step that commits it.
A command of a producer is answered with the result of its first entry, however often it is sent: the state
reports it, else the log; between them they know all that is in the log.
Rule 2: a query at the leader is answered from a state that has every entry committed when it arrived: the
leader proves its leadership first (read index), then waits until the machine has come so far.
Rule 3: with a bound on the age, any member answers. A follower's committed index is as old as its last
push plus the patience, the longest time for which a leader leads without a quorum.
Rule 4: a connection that does not read its answers is refused before anything is done for it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Protocol

import attrs
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from dledger.core.state.inputs import MachineChecked, Origin
from dledger.core.status import MemberStatus
from dledger.ledger.config import DLedgerConfig
from dledger.ledger.producers import SequenceTable
from dledger.node.reporting.status import Counters, MachineStatus, count
from dledger.node.requests.appends import AppendResult
from dledger.node.requests.machine_watch import MachineWatch
from dledger.values.errors import DLedgerError
from protocols.ledger.connection import ServerConnection
from protocols.ledger.interfaces import Ticket
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import WIRE_FLAG_SUBMIT_ONCE
from protocols.wire.ledger.machines import ToldMachine, encode_told_machine
from protocols.wire.ledger.messages import (
    MESSAGES,
    MetadataResponse,
    QueryRequest,
    QueryResponse,
    Response,
    SkipRequest,
    SkipResponse,
    SnapshotRequest,
    SubmitRequest,
    SubmitResponse,
)
from protocols.wire.ledger.own.machine_entries import encode_skip
from protocols.wire.ledger.producers import producer_problem

#: Most characters of a reason in an answer.
REASON_CHARACTERS_MAX = 300


class GivenPiece(Protocol):
    """A piece of the file of a snapshot: L{dledger.machine.files.offering.SnapshotPiece}."""

    @property
    def index(self) -> int:
        """Last entry in the snapshot."""

    @property
    def term(self) -> int:
        """Of that entry."""

    @property
    def size(self) -> int:
        """Bytes of the whole file."""

    @property
    def offset(self) -> int:
        """Where the piece begins."""

    @property
    def data(self) -> bytes:
        """The piece."""


class HostedMachine(Protocol):
    """
    The state machine of this member: L{dledger.machine.runner.MachineRunner}.

    @ivar in_doubt: set from here: why its state may be wrong; empty if not.
    """

    in_doubt: str

    @property
    def refusal(self) -> DLedgerError | None:
        """Why it takes no commands and no queries; None if it does."""

    @property
    def needed_index(self) -> int:
        """The log must keep the entries after this index: only they and snapshots make the state."""

    @property
    def failed_index(self) -> int:
        """The entry at which it has failed, so that an order to skip it is waited for; -1: it has not."""

    def is_refusal(self, result: bytes) -> bool:
        """Whether a result is the reason of a refusal."""

    def told(self) -> ToldMachine:
        """What other members learn about it."""

    @property
    def gives_snapshots(self) -> bool:
        """Whether it keeps snapshots in files, gives them to other members, and takes up theirs."""

    def ask_snapshot(self) -> str:
        """Take a snapshot of the present state, soon. @return: why none is taken; empty if one is."""

    @property
    def proven_index(self) -> int:
        """Last entry in the oldest of at least two snapshots that were read as a whole; -1: there are not."""

    def piece_for(self, request: SnapshotRequest, max_bytes: int) -> GivenPiece:
        """A piece of a snapshot for another member. @raise DLedgerError: there is none."""

    def committed(self) -> None:
        """More entries are committed. In the middle of a step: it must only take note."""

    def result_of(self, index: int) -> Deferred[bytes]:
        """@return: the result of an entry; fails with a code that means "unknown", if it is not kept."""

    def kept_result(self, producer: str, sequence: int) -> tuple[int, bytes] | None:
        """
        Index and result of a command whose entry is in the state; None: it has none.

        @raise DLedgerError: SEQUENCE_FORGOTTEN: it has one, and its result is not kept.
        """

    def when_applied(self, index: int) -> Deferred[int]:
        """@return: fires with the applied index, which is at least C{index}."""

    def query(self, request: bytes) -> Deferred[bytes]:
        """Ask the machine. @return: fires with its answer; fails with L{DLedgerError}: it has none."""

    def sweep(self, now_s: float) -> None:
        """End the waits whose time is over; look again at entries that could not be read."""

    def status(self) -> MachineStatus:
        """The current status."""

    def start(self) -> None:
        """The member runs: take up the newest snapshot, then follow the log."""

    def stop(self) -> Deferred[None]:
        """@return: fires when nothing of the machine runs any more."""


class OtherMachines(Protocol):
    """The other members: L{dledger.node.requests.snapshots.SnapshotDesk}."""

    def told(self, peer_id: str) -> MetadataResponse | None:
        """What a member has reported last; None: nothing yet."""

    def ask_machines(self, now_s: float) -> None:
        """Ask them for their machines, now and then."""


class MachineDesk:
    """
    Answers the requests to the machine of this member.

    @ivar machine: None: the member runs none.
    """

    def __init__(
        self, config: DLedgerConfig, *, append: Callable[[bytes, Origin | None], Deferred[AppendResult]],
        read_index: Callable[[], Deferred[int]], status: Callable[[], MemberStatus],
        now_ms: Callable[[], int], broken: Callable[[BaseException], None], counters: Counters,
        producers: Callable[[], SequenceTable | None],
        append_order: Callable[[bytes], Deferred[AppendResult]],
        others: Callable[[], OtherMachines], feed: Callable[[MachineChecked], None],
        note: Callable[[str, Mapping[str, object]], None],
    ) -> None:
        """
        @param append: appends a command for a local caller, see L{AppendGate.append_command}.
        @param append_order: appends a machine entry.
        @param others: the machines of other members.
        @param feed: informs the core whether the machine here may lead.
        @param note: reports an event.
        @param producers: those that the log knows; None: not yet.
        @param broken: called with an exception that is a bug of ours.
        """
        self.machine: HostedMachine | None = None
        self._group = config.group
        self._append = append
        self._read_index = read_index
        self._status = status
        self._now_ms = now_ms
        # (A leader of this group leads without a quorum for this time, at most.)
        self._patience_ms = config.heart_beat_time_interval_ms * config.max_heart_beat_leak
        self._commands_max = config.max_pending_requests_num
        self._commands = 0
        self._broken = broken
        self._producers = producers
        self._append_order = append_order
        self._others = others
        self._feed = feed
        self._word = MachineChecked(runs=False, is_unfit=False)
        self._watch = MachineWatch(config.self_id, self._told_text, note)
        self._counters = counters

    @property
    def needed_index(self) -> int:
        """See L{HostedMachine.needed_index}; far above all entries without a machine."""
        return 1 << 62 if self.machine is None else self.machine.needed_index

    def status(self) -> MachineStatus | None:
        """The status of the machine; None without one."""
        if self.machine is None:
            return None
        return attrs.evolve(self.machine.status(), differs=self._watch.differs)

    def told(self) -> str:
        """The machine in METADATA; empty without one."""
        return "" if self.machine is None else encode_told_machine(self.machine.told())

    def committed(self) -> None:
        """See L{HostedMachine.committed}."""
        if self.machine is not None:
            self.machine.committed()

    def sweep(self, now_s: float) -> None:
        """See L{HostedMachine.sweep}. Then look whether this member may lead for the machine."""
        if self.machine is None:
            return
        self.machine.sweep(now_s)
        mine = self.machine.told()
        self._others().ask_machines(now_s)
        self._watch.look(mine, self._peer_ids())
        self.machine.in_doubt = self._watch.in_doubt
        is_unfit = mine.state in ("failed", "installing") or bool(
            self._watch.outdated or self._watch.in_doubt
        )
        word = MachineChecked(runs=mine.runs, is_unfit=is_unfit)
        if word != self._word:
            self._word = word
            self._feed(word)

    def _told_text(self, peer_id: str) -> str | None:
        told = self._others().told(peer_id)
        return None if told is None else told.machine

    def ask(
        self, connection: ServerConnection, ticket: Ticket,
        request: SubmitRequest | QueryRequest | SkipRequest,
    ) -> None:
        """Answer a request, now or later."""
        if not connection.may_answer:
            count(self._counters.refusals, ResponseCode.LEADER_PENDING_FULL.name)
            connection.answer(ticket, MESSAGES[request.kind][1](
                code=ResponseCode.LEADER_PENDING_FULL, group=self._group, leader_id=self._status().leader_id
            ))
            return
        answering: Coroutine[Deferred[object], object, Response]
        if isinstance(request, SubmitRequest):
            answering = self._submit(request)
        elif isinstance(request, QueryRequest):
            answering = self._query(connection, request)
        else:
            answering = self._skip(request)
        Deferred.fromCoroutine(self._answer(connection, ticket, answering)).addErrback(self._failed)

    def _failed(self, failure: Failure) -> None:
        assert failure.value is not None
        self._broken(failure.value)

    async def _answer(
        self, connection: ServerConnection, ticket: Ticket,
        answering: Coroutine[Deferred[object], object, Response],
    ) -> None:
        answer = await answering
        if answer.code is not ResponseCode.SUCCESS:
            count(self._counters.refusals, answer.code.name)
        connection.answer(ticket, answer)

    def _machine(self) -> HostedMachine:
        """@raise DLedgerError: there is none, or it takes no requests."""
        if self.machine is None:
            raise DLedgerError(ResponseCode.UNSUPPORTED, reason="this member runs no state machine")
        refusal = self.machine.refusal
        if refusal is not None:
            raise refusal
        return self.machine

    async def _submit(self, request: SubmitRequest) -> SubmitResponse:
        index = -1
        try:
            machine = self._machine()
            origin = _origin_of(request)
            assert request.command is not None
            kept = None if origin is None else machine.kept_result(origin.producer, origin.sequence)
            if kept is None:
                self._check_new(request)
                self._commands += 1
                try:
                    appended = await self._append(request.command, origin)
                    index = appended.index
                    kept = index, await self._result(machine, appended, origin)
                finally:
                    self._commands -= 1
        except DLedgerError as error:
            last_sequence = error.facts.get("last_sequence", -1)
            return SubmitResponse(
                code=error.code, group=self._group, leader_id=self._status().leader_id, index=index,
                reason=_reason(error), last_sequence=last_sequence if isinstance(last_sequence, int) else -1,
            )
        index, result = kept
        if self.machine is not None and self.machine.is_refusal(result):
            return SubmitResponse(
                code=ResponseCode.COMMAND_REFUSED, group=self._group, term=self._status().term, index=index,
                reason=result.decode("utf-8", "replace"),
            )
        return SubmitResponse(group=self._group, term=self._status().term, index=index, result=result)

    def _check_new(self, request: SubmitRequest) -> None:
        """@raise DLedgerError: the command must not be appended, or not now."""
        if self._commands >= self._commands_max:
            raise DLedgerError(
                ResponseCode.LEADER_PENDING_FULL, reason=f"{self._commands} commands are under way"
            )
        table = self._producers() if request.is_again else None
        if table is not None and table.may_have_forgotten(request.producer):
            raise DLedgerError(ResponseCode.SEQUENCE_FORGOTTEN, reason=(
                f"the log may have forgotten the producer {request.producer}, and the command may be in it"
            ))

    async def _result(self, machine: HostedMachine, appended: AppendResult, origin: Origin | None) -> bytes:
        try:
            return await machine.result_of(appended.index)
        except DLedgerError:
            # (The entry of an earlier attempt may have been applied while this one was under way.)
            kept = None if origin is None else machine.kept_result(origin.producer, origin.sequence)
            if kept is None:
                raise
            return kept[1]

    def ask_snapshot(self) -> str:
        """Let the machine take a snapshot. @return: why it takes none; empty if it does."""
        return "this member runs no state machine" if self.machine is None else self.machine.ask_snapshot()

    def skip(self, index: int) -> Deferred[SkipResponse]:
        """The same as a request to skip an entry, for a local caller. @return: fires with any code."""
        return Deferred.fromCoroutine(self._skip(SkipRequest(group=self._group, index=index)))

    async def _skip(self, request: SkipRequest) -> SkipResponse:
        """Write the order into the log, if the machine here waits for it and all members know such orders."""
        leader_id = self._status().leader_id
        try:
            problem = self._why_no_skip(request.index)
            if problem:
                raise DLedgerError(ResponseCode.UNEXPECTED_ARGUMENT, reason=problem)
            appended = await self._append_order(encode_skip(request.index))
        except DLedgerError as error:
            return SkipResponse(
                code=error.code, group=self._group, leader_id=leader_id, reason=_reason(error)
            )
        return SkipResponse(group=self._group, leader_id=leader_id, index=appended.index)

    def _why_no_skip(self, index: int) -> str:
        status = self._status()
        if self.machine is None:
            return "this member runs no state machine"
        if status.role != "leader":
            return f"this member does not lead, {status.leader_id or 'nobody known'} does"
        failed_index = self.machine.failed_index
        if failed_index < 0:
            return (
                f"the state machine of this leader is {self.machine.status().state}, it has not failed at "
                "an entry"
            )
        if failed_index != index:
            return f"the state machine of this leader has failed at the entry {failed_index}"
        return "; ".join(f"{one} {why}" for one in self._peer_ids() if (why := self._why_not_known(one)))

    def _peer_ids(self) -> list[str]:
        return [one.peer_id for one in self._status().peers]

    def _why_not_known(self, peer_id: str) -> str:
        told = self._others().told(peer_id)
        if told is None:
            return "has not said yet whether it knows such orders"
        is_able = bool(told.wire_version & WIRE_FLAG_SUBMIT_ONCE)
        return "" if is_able else "runs no state machine, or an earlier version, which does not skip"

    async def _query(self, connection: ServerConnection, request: QueryRequest) -> QueryResponse:
        try:
            machine = self._machine()
            if self._watch.outdated:
                raise DLedgerError(ResponseCode.LEADER_NOT_READY, reason=self._watch.outdated)
            if request.query is None:
                raise DLedgerError(ResponseCode.UNEXPECTED_ARGUMENT, reason="query is missing")
            status, age_ms = self._status(), 0
            if request.max_age_ms < 0 or status.role == "leader":
                applied_index = await machine.when_applied(await self._read_index())
            else:
                applied_index = await machine.when_applied(status.committed_index)
                age_ms = self._age_ms(status)
            if 0 <= request.max_age_ms < age_ms:
                raise DLedgerError(ResponseCode.FALL_BEHIND_TOO_MUCH, reason=(
                    f"this member's state may be {age_ms} ms old; the query allows {request.max_age_ms} ms"
                ))
            if not connection.may_answer:
                raise DLedgerError(ResponseCode.LEADER_PENDING_FULL, reason=(
                    "answers of before are not read yet: read them, then ask again"
                ))
            result = await machine.query(request.query)
        except DLedgerError as error:
            return QueryResponse(
                code=error.code, group=self._group, leader_id=self._status().leader_id, reason=_reason(error)
            )
        return QueryResponse(
            group=self._group, result=result, applied_index=applied_index, age_ms=age_ms
        )

    def _age_ms(self, status: MemberStatus) -> int:
        """Age of the committed index, milliseconds. @raise DLedgerError: it is not known."""
        if status.leader_committed_ms < 0 or status.commit_lag:
            raise DLedgerError(
                ResponseCode.FALL_BEHIND_TOO_MUCH, reason="this member does not know how old its state is"
            )
        return self._now_ms() - status.leader_committed_ms + self._patience_ms


def _origin_of(request: SubmitRequest) -> Origin | None:
    """The producer of a command, if it has one. @raise DLedgerError: the request is none."""
    problem = "" if request.command else "a command has at least one byte"
    if request.producer and not problem:
        problem = producer_problem(request.producer, request.sequence)
    if problem:
        raise DLedgerError(ResponseCode.UNEXPECTED_ARGUMENT, reason=problem)
    return Origin(request.producer, request.sequence) if request.producer else None


def _reason(error: DLedgerError) -> str:
    return " ".join(str(error.facts.get("reason", error)).split())[:REASON_CHARACTERS_MAX]
