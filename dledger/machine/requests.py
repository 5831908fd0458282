# -*- test-case-name: tests.machine.test_requests -*-
"""
Answers the requests to the state machine of a member: SUBMIT, QUERY and SKIP.

Rule 1: a command that was appended is answered with the result of its own entry, or with a code that means
"unknown": it is in the log, or may come to be. The wait for the result begins in the step that commits it.
A command of a producer is answered with the result of its first entry, however often it is sent: the log
knows the entry, the state its result.
Rule 2: a query at the leader is answered from a state that has every
entry committed when it arrived: the leader proves its leadership first (read index), then waits until the
machine has come so far.
Rule 3: with a bound on the age, any member answers. A follower's committed index is
as old as its last push plus the patience, the longest time for which a leader leads without a quorum.

Knows nothing of connections: L{dledger.node.requests.machine_requests} has them.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine

import attrs
from twisted.internet.defer import Deferred

from dledger.machine.runner import MachineRunner
from dledger.machine.watch import MachineWatch
from dledger.node.reporting.status import MachineStatus
from dledger.node.requests.appends import AppendResult
from dledger.node.requests.machine_requests import (
    REASON_CHARACTERS_MAX,
    MachineRequest,
    MachineSurroundings,
)
from dledger.values.errors import DLedgerError
from dledger.values.ledger.config import DLedgerConfig
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import WIRE_FLAG_MACHINE
from protocols.wire.ledger.machines import (
    QueryRequest,
    QueryResponse,
    SkipRequest,
    SkipResponse,
    SubmitRequest,
    SubmitResponse,
    encode_reported_machine,
)
from protocols.wire.ledger.messages import Response
from protocols.wire.ledger.own.machine_entries import encode_skip
from protocols.wire.ledger.producers import producer_problem


class MachineHandler:
    """
    Answers the requests to the state machine of one member.

    It is the L{MachineAnswers<dledger.node.requests.machine_requests.MachineAnswers>} of a member that runs a
    machine.

    Implements L{dledger.node.requests.machine_requests.MachineAnswers}.
    """

    def __init__(self, config: DLedgerConfig, machine: MachineRunner, around: MachineSurroundings) -> None:
        self._group = config.group
        self._machine = machine
        self._around = around
        # (A leader of this group leads without a quorum for this time, at most.)
        self._patience_ms = config.heart_beat_time_interval_ms * config.max_heart_beat_leak
        self._commands_max = config.max_pending_requests_num
        self._commands = 0
        self._judged = (False, False)
        self._watch = MachineWatch(config.self_id, self._reported_text, around.note)

    def status(self) -> MachineStatus:
        return attrs.evolve(self._machine.status(), differs=self._watch.differs)

    def reported(self) -> str:
        return encode_reported_machine(self._machine.reported())

    def sweep(self, now_s: float) -> None:
        """
        See L{dledger.node.requests.machine_requests.MachineAnswers.sweep}. Then look whether this member may
        lead for the machine.
        """
        machine = self._machine
        machine.sweep(now_s)
        mine = machine.reported()
        self._around.others.ask_machines(now_s)
        self._watch.look(mine, self._peer_ids())
        machine.in_doubt = self._watch.in_doubt
        is_unfit = mine.state in ("failed", "installing") or bool(
            self._watch.outdated or self._watch.in_doubt
        )
        judged = (mine.runs, is_unfit)
        if judged != self._judged:
            self._judged = judged
            self._around.judged(runs=mine.runs, is_unfit=is_unfit)

    def _reported_text(self, peer_id: str) -> str | None:
        reported = self._around.others.reported(peer_id)
        return None if reported is None else reported.machine

    def answer(
        self, request: MachineRequest, may_answer: Callable[[], bool], owner: str = ""
    ) -> Deferred[Response]:
        answering: Coroutine[Deferred[object], object, Response]
        if isinstance(request, SubmitRequest):
            answering = self._submit(request, owner)
        elif isinstance(request, QueryRequest):
            answering = self._query(request, may_answer)
        else:
            answering = self._skip(request)
        return Deferred.fromCoroutine(answering)

    def _check_runs(self) -> None:
        """@raise DLedgerError: the machine takes no requests."""
        refusal = self._machine.refusal
        if refusal is not None:
            raise refusal

    async def _submit(self, request: SubmitRequest, owner: str) -> SubmitResponse:
        index, machine = -1, self._machine
        try:
            self._check_runs()
            _check_command(request)
            assert request.command is not None
            self._check_new(request)
            self._commands += 1
            try:
                appended = await self._around.append(
                    request.command, request.producer, request.sequence, owner
                )
                index = appended.index
                result = await self._result(appended)
            finally:
                self._commands -= 1
        except DLedgerError as error:
            last_sequence = error.facts.get("last_sequence", -1)
            return SubmitResponse(
                code=error.code, group=self._group, leader_id=self._around.status().leader_id, index=index,
                reason=_reason(error), last_sequence=last_sequence if isinstance(last_sequence, int) else -1,
            )
        if machine.is_refusal(result):
            return SubmitResponse(
                code=ResponseCode.COMMAND_REFUSED, group=self._group, term=self._around.status().term,
                index=index, reason=result.decode("utf-8", "replace"),
            )
        return SubmitResponse(group=self._group, term=self._around.status().term, index=index, result=result)

    def _check_new(self, request: SubmitRequest) -> None:
        """@raise DLedgerError: the command must not be appended, or not now."""
        if self._commands >= self._commands_max:
            raise DLedgerError(
                ResponseCode.LEADER_PENDING_FULL, reason=f"{self._commands} commands are under way"
            )
        group = self._around.group() if request.is_again else None
        if group is not None and group.may_have_forgotten(request.producer):
            raise DLedgerError(ResponseCode.SEQUENCE_FORGOTTEN, reason=(
                f"the log may have forgotten the producer {request.producer}, and the command may be in it"
            ))

    async def _result(self, appended: AppendResult) -> bytes:
        try:
            return await self._machine.result_of(appended.index)
        except DLedgerError:
            kept = self._machine.kept_result(appended.index)
            if kept is not None:
                return kept
            if appended.is_repeated and appended.index <= self._machine.applied_index:
                raise DLedgerError(ResponseCode.SEQUENCE_FORGOTTEN, reason=(
                    f"the command is applied, at the entry {appended.index}, and its result is no longer kept"
                )) from None
            raise

    async def _skip(self, request: SkipRequest) -> SkipResponse:
        """Write the order into the log, if the machine here waits for it and all members know such orders."""
        leader_id = self._around.status().leader_id
        try:
            self._check_skip(request.index)
            try:
                await self._machine.note_skip(request.index, self._around.status().term)
            except OSError as error:
                reason = f"the order cannot be noted on the disk: {error}"
                raise DLedgerError(ResponseCode.DISK_ERROR, reason=reason) from error
            self._check_skip(request.index)
            appended = await self._around.append_order(encode_skip(request.index))
        except DLedgerError as error:
            return SkipResponse(
                code=error.code, group=self._group, leader_id=leader_id, reason=_reason(error)
            )
        return SkipResponse(group=self._group, leader_id=leader_id, index=appended.index)

    def _check_skip(self, index: int) -> None:
        """@raise DLedgerError: this member may not order to skip this entry."""
        problem = self._why_no_skip(index)
        if problem:
            raise DLedgerError(ResponseCode.UNEXPECTED_ARGUMENT, reason=problem)

    def _why_no_skip(self, index: int) -> str:
        status = self._around.status()
        if status.role != "leader":
            return f"this member does not lead, {status.leader_id or 'nobody known'} does"
        failed_index = self._machine.failed_index
        if failed_index < 0:
            return (
                f"the state machine of this leader is {self._machine.status().state}, it has not failed at "
                "an entry"
            )
        if failed_index != index:
            return f"the state machine of this leader has failed at the entry {failed_index}"
        return "; ".join(f"{one} {why}" for one in self._peer_ids() if (why := self._why_not_known(one)))

    def _peer_ids(self) -> list[str]:
        return [one.peer_id for one in self._around.status().peers]

    def _why_not_known(self, peer_id: str) -> str:
        reported = self._around.others.reported(peer_id)
        if reported is None:
            return "has not said yet whether it knows such orders"
        is_able = bool(reported.wire_version & WIRE_FLAG_MACHINE)
        return "" if is_able else "runs no state machine"

    async def _query(self, request: QueryRequest, may_answer: Callable[[], bool]) -> QueryResponse:
        machine = self._machine
        try:
            self._check_runs()
            if self._watch.outdated:
                raise DLedgerError(ResponseCode.LEADER_NOT_READY, reason=self._watch.outdated)
            if request.query is None:
                raise DLedgerError(ResponseCode.UNEXPECTED_ARGUMENT, reason="query is missing")
            status, age_ms = self._around.status(), 0
            if request.max_age_ms < 0 or status.role == "leader":
                applied_index = await machine.when_applied(await self._around.read_index())
            else:
                applied_index = await machine.when_applied(status.committed_index)
                age_ms = self._age_ms(status.leader_committed_ms, status.commit_lag)
            if 0 <= request.max_age_ms < age_ms:
                raise DLedgerError(ResponseCode.FALL_BEHIND_TOO_MUCH, reason=(
                    f"this member's state may be {age_ms} ms old; the query allows {request.max_age_ms} ms"
                ))
            if not may_answer():
                raise DLedgerError(ResponseCode.LEADER_PENDING_FULL, reason=(
                    "answers of before are not read yet: read them, then ask again"
                ))
            result = await machine.query(request.query)
        except DLedgerError as error:
            return QueryResponse(
                code=error.code, group=self._group, leader_id=self._around.status().leader_id,
                reason=_reason(error),
            )
        return QueryResponse(
            group=self._group, result=result, applied_index=applied_index, age_ms=age_ms
        )

    def _age_ms(self, leader_committed_ms: int, commit_lag: int) -> int:
        """Age of the committed index, milliseconds. @raise DLedgerError: it is not known."""
        if leader_committed_ms < 0 or commit_lag:
            raise DLedgerError(
                ResponseCode.FALL_BEHIND_TOO_MUCH, reason="this member does not know how old its state is"
            )
        return self._around.now_ms() - leader_committed_ms + self._patience_ms


def _check_command(request: SubmitRequest) -> None:
    """@raise DLedgerError: the command is empty, or numbered in a wrong way."""
    problem = "" if request.command else "a command has at least one byte"
    if request.producer and not problem:
        problem = producer_problem(request.producer, request.sequence)
    if problem:
        raise DLedgerError(ResponseCode.UNEXPECTED_ARGUMENT, reason=problem)


def _reason(error: DLedgerError) -> str:
    return " ".join(str(error.facts.get("reason", error)).split())[:REASON_CHARACTERS_MAX]
