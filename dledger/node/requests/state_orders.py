# -*- test-case-name: tests.node.test_state_orders -*-
"""
An operator's order to begin the state of the group anew, for a group in which no member has it any more.

Rule: what a member still has must not be lost by an order. It is refused while the leader knows the state, or
any other member that answers, unless the operator insists. A member that cannot be asked is passed over: the
group would wait for it for ever.
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.defer import Deferred

from dledger.core.status import MemberStatus
from dledger.node.requests.appends import AppendResult
from dledger.node.requests.snapshots import SnapshotHandler
from dledger.storage.store.file_store import FileStore
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.machines import SnapshotRequest, SnapshotResponse
from protocols.wire.ledger.messages import BeginStateRequest, BeginStateResponse, Response
from protocols.wire.ledger.own.own_entries import STATE_CHANNEL
from protocols.wire.ledger.own.state_entries import StateEntry, StateWord, encode_state_entry


class StateOrders:
    """Invariant: one order is under way at most."""

    def __init__(
        self, group: str, ledger: FileStore, *, status: Callable[[], MemberStatus], others: SnapshotHandler,
        append: Callable[[int, bytes], Deferred[AppendResult]] | None,
    ) -> None:
        """@param append: writes one of the log's own entries; None: a broker alone appends."""
        self._group = group
        self._ledger = ledger
        self._status = status
        self._others = others
        self._append = append
        self._is_ordering = False

    def begin_anew(self, request: BeginStateRequest) -> Deferred[Response]:
        """Write the order into the log, or refuse it. @return: fires with any code."""
        return Deferred.fromCoroutine(self._answer(request))

    async def _answer(self, request: BeginStateRequest) -> Response:
        index, code, reason = -1, ResponseCode.SUCCESS, ""
        try:
            if self._is_ordering:
                raise DLedgerError(ResponseCode.LEADER_PENDING_FULL, reason="another order is under way")
            self._is_ordering = True
            try:
                index = await self._ordered(request.insists)
            finally:
                self._is_ordering = False
        except DLedgerError as error:
            code, reason = error.code, str(error.facts.get("reason", error))
        return BeginStateResponse(
            code=code, group=self._group, leader_id=self._status().leader_id, index=index, reason=reason
        )

    async def _ordered(self, insists: bool) -> int:
        if self._append is None:
            raise DLedgerError(ResponseCode.UNSUPPORTED, reason="this group is the log of brokers")
        self._check(insists)
        if not insists:
            asked = {one: self._others.ask(one, SnapshotRequest()) for one in self._others.state_senders()}
            for peer_id, asking in asked.items():
                if await _knows(asking):
                    raise _refused(f"{peer_id} has the state of the group, or may have it, and gives it "
                                   "to this member soon")
            self._check(insists)
        return (await self._append(STATE_CHANNEL, encode_state_entry(StateEntry(StateWord.BEGIN_ANEW)))).index

    def _check(self, insists: bool) -> None:
        """@raise DLedgerError: this member may not give the order."""
        status = self._status()
        if status.role != "leader":
            raise _refused(f"this member does not lead, {status.leader_id or 'nobody known'} does")
        if self._ledger.group is not None and not insists:
            raise _refused("this leader has the state of the group: the group would lose it")


def _refused(reason: str) -> DLedgerError:
    return DLedgerError(ResponseCode.UNEXPECTED_ARGUMENT, reason=reason)


async def _knows(asking: Deferred[SnapshotResponse]) -> bool:
    """Whether a member may have the state; one that gives no answer cannot give the state either."""
    try:
        answer = await asking
    except DLedgerError:
        return False
    return answer.code is not ResponseCode.LEADER_NOT_READY
