# -*- test-case-name: tests.spark.test_sink_group_log -*-
"""
The log of a group for the sink: appends at the leader, reads from any member; blocking, without Twisted.

Rule 1: one request is under way at a time, on one connection.
Rule 2: numbered bodies are sent again until C{timeoutMs} is over, also after an outcome that is not known:
the log takes each number once, and says of a number that it has whether the bodies are the same.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import attrs
import numpy as np

from dledger.spark.formats.log import PAUSE_MAX_S, PAUSE_S
from dledger.spark.formats.record_headers import Place, sound_headers
from dledger.spark.ledger.leader_link import LeaderLink
from dledger.spark.ledger.member_connection import MemberConnection, MemberRefused, Trouble
from dledger.spark.ledger.members import MembersLog
from dledger.spark.sink.markers import SinkMarker, markers_in
from dledger.spark.sink.options import SinkOptions
from dledger.spark.sink.sink_log import FORGOTTEN, OutOfStepError, PlacedBodies, SinkError
from dledger.values.ledger.append_refusals import FINAL, OUT_OF_SEQUENCE, PASSING
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.entry import ENTRY_HEADER_SIZE
from protocols.wire.ledger.messages import AppendOnceResponse
from protocols.wire.ledger.own.own_entries import DIGITS_MASK, slot_channels, slot_of
from protocols.wire.ledger.producers import SEQUENCE_MAX

#: Refusals of a leader that will take the bodies later.
_OF_A_LEADER = (ResponseCode.LEADER_PENDING_FULL, ResponseCode.LEADER_NOT_READY)
#: Answers to a number that no producer has, which say what the last one is.
_ABOUT_LAST = (*OUT_OF_SEQUENCE, ResponseCode.SEQUENCE_FORGOTTEN)


@attrs.frozen
class _Refused(Exception):
    """Nothing was appended now; it may be later."""

    why: str


class _NoOutcome(_Refused):
    """What was sent may be in the log, now or later."""


class GroupLog:
    """
    See L{dledger.spark.sink.sink_log.SinkLog}. The caller closes it.

    Implements L{dledger.spark.sink.sink_log.SinkLog}.
    """

    def __init__(self, options: SinkOptions) -> None:
        """@raise OptionError: C{bootstrap} makes no sense."""
        self._options = options
        self._scan_options = options.for_reading
        self._log = MembersLog(self._scan_options)
        self._link = LeaderLink(self._scan_options)

    # -- appending ------------------------------------------------------------------------------

    def last_sequence(self, producer: str) -> int:
        answer = self._asked(producer, SEQUENCE_MAX, (b"",), ())  # (Its body is never taken.)
        if answer.code not in _ABOUT_LAST:
            raise SinkError(f"group {self._options.group!r} does not report what it knows of {producer!r}")
        return FORGOTTEN if answer.code is ResponseCode.PRODUCER_FORGOTTEN else answer.last_sequence

    def append(
        self, producer: str, sequence: int, bodies: Sequence[bytes], hidden: tuple[int, ...]
    ) -> PlacedBodies:
        answer = self._asked(producer, sequence, tuple(bodies), hidden)
        if answer.code in _ABOUT_LAST:
            raise OutOfStepError(
                f"{answer.code.name} for number {sequence} of {producer!r}, the last one is "
                f"{answer.last_sequence}",
                is_expired=answer.code is ResponseCode.SEQUENCE_FORGOTTEN,
            )
        if answer.code is ResponseCode.SEQUENCE_TAKEN:
            return PlacedBodies(index=answer.index, count=1, is_other=True)
        return PlacedBodies(index=answer.index, count=answer.count)

    def _asked(
        self, producer: str, sequence: int, bodies: tuple[bytes, ...], hidden: tuple[int, ...]
    ) -> AppendOnceResponse:
        """The answer of a leader."""
        deadline, pause = time.monotonic() + self._options.timeout_ms / 1000, PAUSE_S
        was_unknown = False
        while True:
            try:
                return self._ask(self._connected(), producer, sequence, bodies, hidden)
            except _Refused as refused:
                problem = refused.why
                was_unknown |= isinstance(refused, _NoOutcome)
            if time.monotonic() >= deadline:
                there = "; rows may be in the log" if was_unknown else ""
                raise SinkError(
                    f"group {self._options.group!r} has taken no rows for {self._options.timeout_ms} ms "
                    f"(timeoutMs): {problem}{there}. The batch is continued when it is run again"
                )
            time.sleep(pause)
            pause = min(2 * pause, PAUSE_MAX_S)

    def _ask(
        self, leader: MemberConnection, producer: str, sequence: int, bodies: tuple[bytes, ...],
        hidden: tuple[int, ...],
    ) -> AppendOnceResponse:
        try:
            answer = leader.append_once(producer, sequence, bodies, hidden)
        except Trouble as trouble:
            self._link.leave()
            raise _NoOutcome(f"{leader.member_id}: {trouble}") from None
        code = answer.code
        if code in _ABOUT_LAST:
            return answer
        is_there = code is ResponseCode.SUCCESS and 1 <= answer.count <= len(bodies)
        if answer.index >= 0 and (is_there or code is ResponseCode.SEQUENCE_TAKEN):
            return answer
        if code in PASSING:
            if code not in _OF_A_LEADER:
                self._link.leave()
            raise _Refused(f"{leader.member_id} refuses: {code.name}")
        if code in FINAL and code is not ResponseCode.SEQUENCE_TAKEN:
            raise SinkError(self._final(leader.member_id, code, max(map(len, bodies))))
        self._link.leave()
        raise _NoOutcome(f"{leader.member_id} answered {code.name}, count={answer.count}")

    def _final(self, member_id: str, code: ResponseCode, longest: int) -> str:
        """Why these bodies will never be taken."""
        what = f"member {member_id} of group {self._options.group!r} refuses rows: {code.name}"
        if code is ResponseCode.UNEXPECTED_ARGUMENT:
            return (f"{what}; the longest body of the request has {longest} bytes, which its segments "
                    "(mapped_file_size_for_entry_data) have no room for")
        if code is ResponseCode.FORBIDDEN:
            return f"{what}; the certificate has no role that may append"
        if code is ResponseCode.PRODUCERS_FULL:
            return (f"{what}; it remembers as many producers as it can, and takes no new sink until it "
                    "forgets some (producers_expire_hours)")
        if code is ResponseCode.SHARE_FULL:
            return f"{what}; the producers of this account or address take half of the room for all of them"
        if code is ResponseCode.UNSUPPORTED:
            return f"{what}; a broker alone appends to its log: send it messages"
        return what

    def _connected(self) -> MemberConnection:
        """The connection to the leader. @raise _Refused: there is none now. @raise SinkError: nor ever."""
        try:
            return self._link.connected()
        except MemberRefused as refused:
            raise SinkError(f"group {self._options.group!r} takes no rows: {refused}") from None
        except Trouble as trouble:
            raise _Refused(str(trouble)) from None

    # -- reading --------------------------------------------------------------------------------

    def first_index(self) -> int:
        return self._log.extent(needs_begin=True).begin

    def markers(self, begin: int, end: int) -> list[tuple[int, SinkMarker]]:
        return [
            (chunk.first + at, marker)
            for chunk in self._log.chunks(begin, end, with_data=True) for at, marker in markers_in(chunk)
        ]

    def rows_behind(self, index: int, count: int, end: int) -> list[bytes]:
        rows: list[bytes] = []
        place, term, slot = Place(), -1, 0
        for chunk in self._log.chunks(index, min(index + 1 + count, end), with_data=True):
            assert chunk.data is not None
            headers, _ = sound_headers(chunk, self._scan_options, place)
            is_marker = chunk.first == index
            if is_marker:
                term, slot = int(headers["term"][0]), slot_of(int(headers["channel"][0]))
            is_row = (headers["term"] == term) & (headers["chain_crc"] != 0)
            is_row &= (headers["channel"] & ~DIGITS_MASK) == slot_channels(slot, 0, 1)[0]
            others = np.flatnonzero(~is_row[is_marker:])
            after = int(others[0]) + is_marker if len(others) else chunk.count
            edges = chunk.starts.tolist()
            rows += [bytes(chunk.data[edges[at] + ENTRY_HEADER_SIZE : edges[at + 1]])
                     for at in range(is_marker, after)]
            if after < chunk.count:
                break
        return rows

    def close(self) -> None:
        """Release the connections."""
        self._link.leave()
        self._log.close()
