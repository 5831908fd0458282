# -*- test-case-name: tests.broker.store.test_log_reads -*-
"""
The commit log for readers that follow it: whole records from an offset on, byte for byte.

Rule 1: answers contain only whole records with a valid size, magic, own offset and checksum of the body;
blanks and records with another checksum are skipped, these with a report.
Rule 2: a reader at the end waits for the time that it names, at most L{WAIT_MS_MAX}. At most L{READERS_MAX}
readers wait; the next one is answered empty at once.
Rule 3: a congested connection gets no records, and no reader gets records in a turn that has read
L{TURN_BYTES_MAX} bytes.

A reader may see records that no slave has and that are not flushed, like a consumer.
"""

from __future__ import annotations

import attrs
from twisted.internet.interfaces import IDelayedCall, IReactorTime

from dledger.rocketmq.store.records.bad_records import BadRecords
from dledger.rocketmq.store.records.body_check import body_problem
from dledger.rocketmq.store.records.message_log import MessageLog
from protocols.rocketmq.broker import BrokerConnection, NativeTicket
from protocols.turn import Turn
from protocols.wire.native import NATIVE_FRAME_BYTES_MAX
from protocols.wire.rocketmq.broker_frames import (
    PULL_OFFSET_MOVED,
    QUERY_NOT_FOUND,
    SUCCESS,
    SYSTEM_ERROR,
    ReadAnswer,
    ReadRequest,
)
from protocols.wire.rocketmq.layout import (
    HEAD_SIZE,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    MIN_MESSAGE_SIZE,
    START,
    START_SIZE,
    WALKED,
)

#: The most bytes of records in one answer.
READ_BYTES_MAX = 4 * 1024 * 1024
#: Bytes that are read for all waiting readers in one turn of the reactor.
TURN_BYTES_MAX = 16 * 1024 * 1024
#: The longest wait, ms.
WAIT_MS_MAX = 30_000
READERS_MAX = 1024

#: The most bytes of an answer besides its records.
_AROUND = 8192
#: The problem of a record whose body is damaged, but whose length leads to the next one.
_DAMAGED = "damaged"
_MAGICS = (MAGIC_V1, MAGIC_V2)


def _whole(data: bytes, offset: int, room: int, bad: BadRecords) -> tuple[int, str]:
    """
    The end of the last whole record in C{data} before the first damaged body.

    @param offset: of the first byte in the log, where a record begins.
    @param room: bytes from there to the end of its file.
    @return: the end; and why no record begins there, empty for a blank or an incomplete record.
    """
    at, size = 0, len(data)
    while size - at >= HEAD_SIZE:
        length, magic, own = WALKED.unpack_from(data, at)
        if magic not in _MAGICS or own != offset + at or not MIN_MESSAGE_SIZE <= length <= room - at:
            break
        if at + length > size:
            return at, ""
        wrong = body_problem(data, at, offset + at)
        if wrong:
            bad.note(offset + at, wrong)
            return at, "" if at else _DAMAGED
        at += length
    if _is_blank(data, at):
        return at, ""
    if size - at < HEAD_SIZE:
        return at, "" if at else f"no record begins at {offset}: {size} bytes are left"
    length, magic, own = WALKED.unpack_from(data, at)
    return at, f"no record begins at {offset + at}: size={length}, magic={magic & 0xFFFFFFFF:08x}, at={own}"


def _is_blank(data: bytes, at: int) -> bool:
    return len(data) - at >= START_SIZE and START.unpack_from(data, at)[1] == MAGIC_BLANK


def read_records(log: MessageLog, bad: BadRecords, offset: int, max_bytes: int) -> ReadAnswer:
    """
    Records from C{offset} on, up to the end of a file; at least one if there is one.

    @param bad: notes damaged records.
    @param max_bytes: of records; more only if the first one is longer.
    """
    begin, end, file_size = log.begin_offset, log.record_end, log.file_size

    def answer(code: int, following: int, remark: str = "") -> ReadAnswer:
        return ReadAnswer(code=code, log_begin_offset=begin, log_end_offset=end, next_offset=following,
                          remark=remark)

    if log.record_lead:
        return answer(QUERY_NOT_FOUND, offset, "this log is that of a raft group: read its entries there")
    if offset < begin:
        return answer(PULL_OFFSET_MOVED, begin, f"offset {offset} has expired; the log begins at {begin}")
    at = offset
    while at < end:
        room = file_size - at % file_size
        size = min(max(max_bytes, HEAD_SIZE), READ_BYTES_MAX, end - at)
        try:
            data = log.read(at, size)
            whole, problem = _whole(data, at, room, bad)
            if not whole and not problem and not _is_blank(data, 0):
                first = START.unpack_from(data)[0]
                if first > NATIVE_FRAME_BYTES_MAX - _AROUND:
                    return answer(SYSTEM_ERROR, at, f"record at {at}: too long for a frame: {first} bytes")
                data = log.read(at, first)
                whole, problem = _whole(data, at, room, bad)
        except OSError as error:
            return answer(SYSTEM_ERROR, at, f"the log cannot be read at {at}: {error}")
        if problem == _DAMAGED:
            at += START.unpack_from(data)[0]
            continue
        if not whole and not _is_blank(data, 0):
            return answer(QUERY_NOT_FOUND, at, problem or f"no whole record begins at {at}")
        following = at + room if whole == room or _is_blank(data, whole) else at + whole
        if whole:
            return ReadAnswer(
                code=SUCCESS, log_begin_offset=begin, log_end_offset=end, begin_offset=at,
                next_offset=following, records=data[:whole],
            )
        at = following
    return answer(SUCCESS, at)


@attrs.define(eq=False)
class _Reader:
    connection: BrokerConnection
    ticket: NativeTicket
    request: ReadRequest
    deadline_s: float


class LogReads:
    """
    Invariant: C{_waiting} are the requests without an answer, in the order of arrival; C{_timer} runs while
    there are any, and ends with the first deadline at the latest.
    """

    def __init__(self, log: MessageLog, *, clock: IReactorTime, turn: Turn, bad: BadRecords) -> None:
        """@param bad: notes damaged records."""
        self._log = log
        self._bad = bad
        self._clock = clock
        self._turn = turn
        self._waiting: list[_Reader] = []
        self._timer: IDelayedCall | None = None
        self._is_asked = False
        self._left = TURN_BYTES_MAX

    @property
    def waiting(self) -> int:
        """Number of readers that wait for records."""
        return len(self._waiting)

    def read(self, connection: BrokerConnection, ticket: NativeTicket, request: ReadRequest) -> None:
        """Answer now, or when records arrive, or at the reader's deadline."""
        wait_ms = min(max(request.wait_ms, 0), WAIT_MS_MAX) if len(self._waiting) < READERS_MAX else 0
        reader = _Reader(connection, ticket, request, self._clock.seconds() + wait_ms / 1000)
        if self._answer(reader, is_late=wait_ms == 0):
            return
        self._waiting.append(reader)
        self._watch()

    def grown(self) -> None:
        """The log has grown, or a connection takes output again: check the readers at the turn's end."""
        if self._waiting and not self._is_asked:
            self._is_asked = True
            self._turn.work(self._serve)

    def answer_waiting(self) -> None:
        """Answer all waiting readers with nothing; later ones are served as before."""
        waiting, self._waiting = self._waiting, []
        for reader in waiting:
            self._answer(reader, is_late=True)
        self._watch()

    def _answer(self, reader: _Reader, *, is_late: bool) -> bool:
        """@return: whether it was answered, or its connection is lost."""
        connection, request = reader.connection, reader.request
        if connection.is_lost:
            return True
        at = request.begin_offset
        if not connection.may_answer or self._left <= 0:
            if not is_late:
                return False
            answer = ReadAnswer(
                code=SUCCESS, log_begin_offset=self._log.begin_offset, log_end_offset=self._log.record_end,
                next_offset=at,
            )
        else:
            answer = read_records(self._log, self._bad, at, request.max_bytes)
            if answer.code == SUCCESS and not answer.records and not is_late:
                return False
            self._spend(len(answer.records))
        connection.answer_native(reader.ticket, answer)
        return True

    def _spend(self, size: int) -> None:
        if self._left == TURN_BYTES_MAX and size:
            self._turn.work(self._refill)
        self._left -= size

    def _refill(self) -> None:
        self._left = TURN_BYTES_MAX
        self.grown()

    def _serve(self) -> None:
        self._is_asked = False
        now_s = self._clock.seconds()
        waiting, self._waiting = self._waiting, []
        self._waiting = [
            reader for reader in waiting
            if not self._answer(reader, is_late=now_s >= reader.deadline_s)
        ]
        self._watch()

    def _watch(self) -> None:
        if not self._waiting:
            if self._timer is not None and self._timer.active():
                self._timer.cancel()
            self._timer = None
            return
        first_s = min(reader.deadline_s for reader in self._waiting)
        if self._timer is None or not self._timer.active():
            self._timer = self._clock.callLater(max(0.0, first_s - self._clock.seconds()), self._serve)
        elif first_s < self._timer.getTime():
            self._timer.reset(max(0.0, first_s - self._clock.seconds()))
