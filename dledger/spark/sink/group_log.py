# -*- test-case-name: tests.spark.test_sink_group_log -*-
"""
The log of a group for the sink: appends at the leader, reads from any member; blocking, without Twisted.

Rule 1: one request is under way at a time, on one connection.
Rule 2: numbered bodies are sent again until C{timeoutMs} is over, also after an outcome that is not known:
the log takes each number once. The answer then says that there was such an outcome.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import attrs
import numpy as np

from dledger.ledger.append_refusals import FINAL, OUT_OF_SEQUENCE, PASSING
from dledger.spark.basics.log import PAUSE_MAX_S, PAUSE_S
from dledger.spark.basics.record_headers import Place, sound_headers
from dledger.spark.ledger.leader_link import LeaderLink
from dledger.spark.ledger.member_connection import MemberConnection, Trouble
from dledger.spark.ledger.members import MembersLog
from dledger.spark.sink.markers import SinkMarker, markers_in
from dledger.spark.sink.options import SinkOptions
from dledger.spark.sink.sink_log import OutOfStepError, PlacedBodies, SinkError
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.entry import ENTRY_HEADER_SIZE
from protocols.wire.ledger.messages import AppendOnceResponse
from protocols.wire.ledger.producers import SEQUENCE_MAX

#: Refusals of a leader that will take the bodies later.
_OF_A_LEADER = (ResponseCode.LEADER_PENDING_FULL, ResponseCode.LEADER_NOT_READY)
#: Answers to a number that no producer has, which say what the last one is.
_ABOUT_LAST = (*OUT_OF_SEQUENCE, ResponseCode.SEQUENCE_FORGOTTEN)
#: Bytes of the newest entries in which a sink that the group does not know is looked for. More may be read
#: where the oldest of them are longer than the others, at most twice as many and one answer of a member.
NEWEST_BYTES = 8 * 1024 * 1024


@attrs.frozen
class _Refused(Exception):
    """Nothing was appended now; it may be later."""

    why: str


class _NoOutcome(_Refused):
    """What was sent may be in the log, now or later."""


class GroupLog:
    """See L{dledger.spark.sink.sink_log.SinkLog}. The caller closes it."""

    def __init__(self, options: SinkOptions) -> None:
        """@raise OptionError: C{bootstrap} makes no sense."""
        self._options = options
        self._scan_options = options.for_reading
        self._log = MembersLog(self._scan_options)
        self._link = LeaderLink(self._scan_options)

    # -- appending ------------------------------------------------------------------------------

    def last_sequence(self, producer: str) -> int:
        """See L{dledger.spark.sink.sink_log.SinkLog.last_sequence}."""
        answer, _ = self._asked(producer, SEQUENCE_MAX, (b"",))  # (Its body is never taken.)
        if answer.code not in _ABOUT_LAST:
            raise SinkError(f"group {self._options.group!r} does not report what it knows of {producer!r}")
        return answer.last_sequence

    def append(self, producer: str, sequence: int, bodies: Sequence[bytes]) -> PlacedBodies:
        """See L{dledger.spark.sink.sink_log.SinkLog.append}."""
        answer, was_unknown = self._asked(producer, sequence, tuple(bodies))
        if answer.code in _ABOUT_LAST:
            raise OutOfStepError(f"{answer.code.name} for number {sequence} of {producer!r}, the last one is "
                                 f"{answer.last_sequence}")
        return PlacedBodies(index=answer.index, count=answer.count, is_repeated=answer.is_repeated,
                      was_unknown=was_unknown)

    def _asked(
        self, producer: str, sequence: int, bodies: tuple[bytes, ...]
    ) -> tuple[AppendOnceResponse, bool]:
        """The answer of a leader, and whether an attempt before had no known outcome."""
        deadline, pause = time.monotonic() + self._options.timeout_ms / 1000, PAUSE_S
        was_unknown = False
        while True:
            try:
                return self._ask(self._connected(), producer, sequence, bodies), was_unknown
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
        self, leader: MemberConnection, producer: str, sequence: int, bodies: tuple[bytes, ...]
    ) -> AppendOnceResponse:
        try:
            answer = leader.append_once(producer, sequence, bodies)
        except Trouble as trouble:
            self._link.leave()
            raise _NoOutcome(f"{leader.member_id}: {trouble}") from None
        code = answer.code
        if code in _ABOUT_LAST:
            return answer
        if code is ResponseCode.SUCCESS and 1 <= answer.count <= len(bodies) and answer.index >= 0:
            return answer
        if code in PASSING:
            if code not in _OF_A_LEADER:
                self._link.leave()
            raise _Refused(f"{leader.member_id} refuses: {code.name}")
        if code in FINAL:
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
        if code is ResponseCode.UNSUPPORTED:
            return f"{what}; a broker alone appends to its log: send it messages"
        return what

    def _connected(self) -> MemberConnection:
        """The connection to the leader. @raise _Refused: there is none now."""
        try:
            return self._link.connected()
        except Trouble as trouble:
            raise _Refused(str(trouble)) from None

    # -- reading --------------------------------------------------------------------------------

    def first_index(self) -> int:
        """See L{dledger.spark.sink.sink_log.SinkLog.first_index}."""
        return self._log.extent(needs_begin=True).begin

    def markers(self, begin: int, end: int) -> list[tuple[int, SinkMarker]]:
        """See L{dledger.spark.sink.sink_log.SinkLog.markers}."""
        return [
            (chunk.first + at, marker)
            for chunk in self._log.chunks(begin, end, with_data=True) for at, marker in markers_in(chunk)
        ]

    def newest_markers(self) -> list[tuple[int, SinkMarker]]:
        """See L{dledger.spark.sink.sink_log.SinkLog.newest_markers}. L{NEWEST_BYTES} are looked at."""
        extent = self._log.extent()
        end, step, size = extent.end, 1, 0
        found: list[tuple[int, SinkMarker]] = []
        while end > extent.begin and size < NEWEST_BYTES:
            begin = max(end - step, extent.begin)
            for chunk in self._log.chunks(begin, end, with_data=True):
                found += [(chunk.first + at, marker) for at, marker in markers_in(chunk)]
                size += int(chunk.starts[-1])
                if size >= 2 * NEWEST_BYTES:  # The entries became longer; the next reader begins anew.
                    break
            end, step = begin, 2 * step
        return found

    def rows_behind(self, index: int, count: int, end: int) -> list[bytes]:
        """See L{dledger.spark.sink.sink_log.SinkLog.rows_behind}."""
        rows: list[bytes] = []
        place, term = Place(), -1
        for chunk in self._log.chunks(index, min(index + 1 + count, end), with_data=True):
            assert chunk.data is not None
            headers, _ = sound_headers(chunk, self._scan_options, place)
            term = int(headers["term"][0]) if chunk.first == index else term
            same = int(np.count_nonzero(headers["term"] == term))  # terms do not fall
            edges = chunk.starts.tolist()
            rows += [bytes(chunk.data[edges[at] + ENTRY_HEADER_SIZE : edges[at + 1]])
                     for at in range(chunk.first == index, same)]
            if same < chunk.count:
                break
        return rows

    def close(self) -> None:
        """Release the connections."""
        self._link.leave()
        self._log.close()
