# -*- test-case-name: tests.broker.ha.test_slave_session -*-
"""
A slave's decisions on the frames of its master, one session (connection) after the other.

    empty ---- first frame ----> following <--- equal up to our end --- comparing
                                                                           |
                   session ends, log cut to the common part  <--- differs-+

Rule 1: every frame must begin where the last one ended. Any other frame ends the session and is not
written.
Rule 2: a session begins below our end, and bytes that we hold already are compared, not trusted: a slave
that crashed may hold less than it seems, a master that crashed may have come back with another tail. At a
difference the log is cut to the last whole record before it. If even the first record differs, the next
session begins further below.
Rule 3: a reported offset covers only bytes that equal the master's log and, with C{SYNC_FLUSH}, are on
stable storage.
Rule 4: an empty log begins where a file begins.

This module decides, and writes to the log. It knows nothing of connections and time.

Source: HAService.HAClient (4.9.8), DefaultHAClient (5.3.3); differs: docs/ha.md 7.3, 7.5, 7.6, 7.7.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import attrs

from dledger.broker.ha.ports import LogPort
from dledger.broker.ha.tail import FIRST_REPORT_MIN, first_difference, verification_start
from protocols.wire.errors import WireError
from protocols.wire.rocketmq.ha import Piece

#: Factor for the size of the next comparison after one that began with a difference.
WIDENING = 16

#: Maximum size of joined pieces, in bytes.
JOINED_SIZE_MAX = 256 * 1024

#: Number of consecutive sessions without a frame that count as network faults.
FRUITLESS_MAX = 2


class SessionEnded(Exception):
    """
    The connection must be closed, and another one opened. The message tells the reason.
    """


class Diverged(SessionEnded):
    """Our log differed from the master's, and has been cut to the common part."""


@attrs.define
class SlaveSession:
    """
    Invariant: in a session our log equals the master's from the start of the comparison to
    C{expected_offset}.

    @ivar expected_offset: offset at which the next frame must begin; -1: any (the log is empty).
    @ivar master_offset: next offset that the master sends; -1 before its first frame.
    @ivar frames: whether the current session has brought frames.
    @ivar truncations: number of cuts of our log.
    @ivar _size: C{verify_size}, or more while comparisons have begun with a difference.
    """

    log: LogPort
    reports_flushed: bool = False
    full_history: bool = False
    verify_size: int = 64 * 1024
    verify_size_at_start: int = 0
    expected_offset: int = attrs.field(init=False, default=-1)
    master_offset: int = attrs.field(init=False, default=-1)
    frames: bool = attrs.field(init=False, default=False)
    truncations: int = attrs.field(init=False, default=0)
    _size: int = attrs.field(init=False, default=0)
    _start_offset: int = attrs.field(init=False, default=0)
    _fruitless: int = attrs.field(init=False, default=0)
    _wants_offset: int = attrs.field(init=False, default=0)

    def __attrs_post_init__(self) -> None:
        self._size = max(self.verify_size, self.verify_size_at_start)

    @property
    def is_empty(self) -> bool:
        """Whether our log is empty."""
        return self.log.begin_offset == self.log.end_offset

    @property
    def is_comparing(self) -> bool:
        """Whether our log already holds the bytes that come next."""
        return 0 <= self.expected_offset < self.log.end_offset

    # -- a session ------------------------------------------------------------------------------

    def begin(self, master_begin_offset: int = -1) -> int:
        """
        Begin a session.

        @param master_begin_offset: begin of the master's log; -1 if unknown. Needed for
            C{full_history} if the master has deleted files already.
        @return: the offset of the first report.
        """
        self.master_offset = -1
        self.frames = False
        log = self.log
        if self.is_empty:
            self._start_offset = self._wants_offset or 0
            if self.full_history and master_begin_offset > 0:
                self._start_offset = master_begin_offset
            self.expected_offset = self._start_offset or -1
            return self._start_offset
        end = min(log.end_offset, log.flushed_offset) if self.reports_flushed else log.end_offset
        end = max(end, log.begin_offset)
        # After sessions without a frame: the master's log does not hold the start of our comparison. Either
        # it begins later (at the start of some file, as files are deleted whole), or it ends before.
        tries = max(self._fruitless - FRUITLESS_MAX, 0)
        size = self._size * WIDENING ** min(tries // 2, 8) if tries % 2 == 0 else self._size
        start = verification_start(log, below=end, size=size)
        if tries % 2:
            start = max(start, (end - 1) - (end - 1) % log.file_size)
        self._start_offset = self.expected_offset = start
        return start

    def end(self) -> None:
        """End the session."""
        self._fruitless = 0 if self.frames else self._fruitless + 1
        self.expected_offset = -1

    def take(self, offset: int, data: memoryview) -> None:
        """
        Take a frame, or a part of one.

        @param data: its bytes; empty for a heartbeat, or for a header alone.
        @raise SessionEnded: the frame does not fit, or our log differed and was cut.
        @raise WireError: the bytes cannot be part of a log.
        @raise OSError: the bytes could not be written; the session must end, too.
        """
        if self.expected_offset < 0:
            self._begin_log(offset)
        if offset != self.expected_offset:
            raise SessionEnded(f"a frame begins at {offset}, but {self.expected_offset} is next")
        size = len(data)
        self.master_offset = offset + size
        if not size:
            self.frames = self.frames or not self.is_comparing
            return
        self.frames = True
        log = self.log
        if offset % log.file_size + size > log.file_size:
            raise SessionEnded(
                f"a frame of {size} bytes at {offset} crosses the end of a file of {log.file_size} bytes: "
                "the master's commit log files have another size"
            )
        if offset == FIRST_REPORT_MIN and self.is_empty:
            # We reported 1, as 0 means an empty slave. Byte 0 is zero: records and blanks are below 16 MiB.
            log.append_raw(0, b"\0")
        held = min(log.end_offset - offset, size)
        if held > 0 and not self.is_empty:
            self._compare(offset, data[:held])
            data = data[held:]
        if data:
            log.append_raw(offset + size - len(data), data)
        self.expected_offset = offset + size

    def take_all(self, pieces: Sequence[Piece]) -> None:
        """
        Take the pieces of one read. Pieces behind our end are written in one call: for the disk, and for
        readers of the records, a few long pieces cost much less than many short ones.

        @raise SessionEnded: as of L{take}; pieces before the faulty one are kept.
        @raise WireError: as of L{take}; pieces before the faulty one are kept.
        @raise OSError: a piece could not be written; the session must end, too.
        """
        at = 0
        while at < len(pieces):
            count = self._run(pieces, at)
            if count > 1 and self._append_joined(pieces[at : at + count]):
                at += count
            else:
                self.take(*pieces[at])
                at += 1

    def _run(self, pieces: Sequence[Piece], at: int) -> int:
        """Number of consecutive pieces from C{at} on that extend our log within one file, size bounded."""
        log, expected = self.log, self.expected_offset
        if expected != log.end_offset or self.is_empty:
            return 0
        room = min(log.file_size - expected % log.file_size, JOINED_SIZE_MAX)
        count = 0
        for offset, data in islice(pieces, at, None):
            size = len(data)
            if offset != expected or not 0 < size <= room:
                break
            expected += size
            room -= size
            count += 1
        return count

    def _append_joined(self, pieces: Sequence[Piece]) -> bool:
        """@return: False if the bytes cannot be part of a log; then nothing was appended."""
        offset = pieces[0][0]
        data = b"".join([piece for _, piece in pieces])
        try:
            self.log.append_raw(offset, data)
        except WireError:
            return False
        self.frames = True
        self.expected_offset = self.master_offset = offset + len(data)
        return True

    def reportable(self) -> int:
        """The first offset of the master's log that we are not known to hold."""
        if self.expected_offset < 0 or self.is_empty:
            return self._start_offset
        held = min(self.expected_offset, self.log.end_offset)
        if self.reports_flushed:
            held = min(held, self.log.flushed_offset)
        return max(held, self._start_offset)

    # -- beginnings and differences -----------------------------------------------------------------

    def _begin_log(self, offset: int) -> None:
        if offset % self.log.file_size:
            raise SessionEnded(
                f"the first frame for an empty log begins at {offset}, within a file of "
                f"{self.log.file_size} bytes"
            )
        if self.full_history and offset > 0:
            self._wants_offset = FIRST_REPORT_MIN
            raise SessionEnded(
                f"the master begins with its last file, at {offset}, but ha_full_history is on"
            )
        self.expected_offset = offset

    def _compare(self, offset: int, theirs: memoryview) -> None:
        same = first_difference(self.log.read(offset, len(theirs)), theirs)
        if same == len(theirs):
            if offset + same >= self.log.end_offset:
                self._size = self.verify_size
            return
        self._cut(offset + same)

    def _cut(self, offset: int) -> None:
        log = self.log
        was = log.end_offset
        end = log.cut(max(offset, log.begin_offset))
        self.truncations += 1
        if end <= self._start_offset:
            # Not one whole record was equal: the difference may begin further below.
            self._size *= WIDENING
        raise Diverged(
            f"our log differs from the master's at {offset}; it ended at {was}, and was cut to {end}, "
            "the end of the last common whole record"
        )
