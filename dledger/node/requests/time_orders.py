# -*- test-case-name: tests.node.test_time_orders -*-
"""
Times of the log that are ahead of the clocks of a majority: reported by the leader, and reset by an order of
an operator, see docs/times.md.

Rule: a reset is written only by a leader that knows the clocks of a majority, and only if the last time of
the log is further ahead of them than C{entry_times_ahead_ms}: smaller errors end by themselves soon.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from twisted.internet.defer import Deferred

from dledger.core.status import MemberStatus
from dledger.node.requests.appends import AppendResult
from dledger.node.requests.group_clock import GroupClock
from dledger.storage.store.file_store import FileStore
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.messages import ResetTimesRequest, ResetTimesResponse, Response
from protocols.wire.ledger.own.own_entries import TIME_CHANNEL
from protocols.wire.ledger.own.time_entries import encode_time_entry, with_reset


class TimeOrders:
    """Of one member."""

    def __init__(
        self, group: str, ledger: FileStore, clock: GroupClock, *, status: Callable[[], MemberStatus],
        append: Callable[[int, bytes], Deferred[AppendResult]] | None, is_leader: Callable[[], bool],
        note: Callable[[str, Mapping[str, object]], None],
    ) -> None:
        """
        @param append: writes one of the log's own entries; None: a broker alone appends.
        @param note: writes an event down.
        """
        self._group = group
        self._ledger = ledger
        self._clock = clock
        self._status = status
        self._append = append
        self._is_leader = is_leader
        self._note = note

    @property
    def ahead_ms(self) -> int:
        """How far the last time of the log is ahead of the clocks of a majority; -1: it is not known here."""
        group = self._ledger.group
        if group is None or not self._is_leader():
            return -1
        said_ms = self._clock.majority_ms()
        if said_ms < 0:
            return -1
        return 0 if group.time is None else max(group.time.time_ms - said_ms, 0)

    def sweep(self) -> None:
        """Report times that are ahead."""
        ahead_ms = self.ahead_ms
        if ahead_ms > self._clock.ahead_max_ms:
            self._note("times-ahead", {"seconds": ahead_ms // 1000})

    def reset(self, _: ResetTimesRequest) -> Deferred[Response]:
        """Write the order into the log, or refuse it. @return: fires with any code."""
        return Deferred.fromCoroutine(self._answer())

    async def _answer(self) -> Response:
        index, code, reason = -1, ResponseCode.SUCCESS, ""
        try:
            index = await self._ordered()
        except DLedgerError as error:
            code, reason = error.code, str(error.facts.get("reason", error))
        return ResetTimesResponse(
            code=code, group=self._group, leader_id=self._status().leader_id, index=index, reason=reason
        )

    async def _ordered(self) -> int:
        group, ahead_ms = self._ledger.group, self.ahead_ms
        if self._append is None:
            raise DLedgerError(ResponseCode.UNSUPPORTED, reason="this group is the log of brokers")
        if not self._is_leader():
            leader_id = self._status().leader_id or "nobody known"
            raise _refused(f"this member does not lead, {leader_id} does")
        if ahead_ms < 0 or group is None:
            raise _refused("this leader does not know the state of the group, or the clocks of a majority: "
                           "ask again when a majority of the members run that are not of Java")
        if group.time is None or ahead_ms <= self._clock.ahead_max_ms:
            raise _refused(
                f"the last time of the log is {ahead_ms} ms ahead of the clocks of a majority; a reset needs "
                f"more than {self._clock.ahead_max_ms} (entry_times_ahead_ms)"
            )
        note = with_reset(group.time.resets, self._clock.majority_ms())
        return (await self._append(TIME_CHANNEL, encode_time_entry(*note))).index


def _refused(reason: str) -> DLedgerError:
    return DLedgerError(ResponseCode.UNEXPECTED_ARGUMENT, reason=reason)
