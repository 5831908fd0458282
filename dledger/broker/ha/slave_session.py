# -*- test-case-name: tests.broker.ha.test_slave_session -*-
"""
What a slave makes of what its master sends, one session (connection) after the other.

    empty ---- first frame ----> following <--- equal up to our end --- comparing
                                                                           |
                     session ends, log cut to what is common  <--- differs-+

Rule 1: every frame must begin where the last one ended. Whatever else comes ends the session; nothing
of it is written.
Rule 2: a session begins below our end, and what we hold already is compared, not believed: a slave that
crashed may hold less than it seems, a master that crashed may have come back with another tail. At a
difference the log is cut to the last whole record before it. If even the first record differs, the next
session begins further below.
Rule 3: a report says what is equal to the master's log, and, with C{SYNC_FLUSH}, on stable storage.
Rule 4: an empty log begins where a file begins.

Decides, and writes to the log; knows nothing of connections, and of time only what it is told.

Source: HAService.HAClient (4.9.8), DefaultHAClient (5.3.3); differs: docs/ha.md 7.3, 7.5, 7.6, 7.7.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import attrs

from dledger.broker.ha.ports import CommitLog
from dledger.broker.ha.tail import FIRST_REPORT_MIN, first_difference, verification_start
from protocols.wire.errors import WireError
from protocols.wire.rocketmq.ha import Piece

#: A comparison that begins with a difference is repeated from so many times as far below.
WIDENING = 16

#: Pieces are joined to no more than this.
JOINED_SIZE_MAX = 256 * 1024

#: So many sessions without a frame may be the network's fault.
FRUITLESS_MAX = 2


class SessionEnded(Exception):
    """
    The connection must be closed, and another one opened.

    The message says why, for the log.
    """


class Diverged(SessionEnded):
    """Our log was not the master's, and has been cut to what is common."""


@attrs.define
class Follower:
    """
    Invariant: in a session our log is the master's below C{expected_offset}, as far as was compared.

    @ivar expected_offset: where the next frame must begin; -1: anywhere (the log is empty).
    @ivar master_offset: what the master sends next, as far as it has told; -1 in the beginning.
    @ivar frames: whether anything came in the present session.
    @ivar truncations: how often our log was cut.
    @ivar _size: C{verify_size}, or more while comparisons have begun with a difference.
    """

    log: CommitLog
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
        """Whether we hold nothing."""
        return self.log.begin_offset == self.log.end_offset

    @property
    def is_comparing(self) -> bool:
        """Whether what comes is something that we hold already."""
        return 0 <= self.expected_offset < self.log.end_offset

    # -- a session ------------------------------------------------------------------------------

    def begin(self, master_begin_offset: int = -1) -> int:
        """
        A session begins.

        @param master_begin_offset: where the master's log begins, if that is known. Needed where
            C{full_history} is wanted and the master has deleted files already.
        @return: the first report.
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
        # Sessions without a single frame: the master's log does not reach to where we compare. Its beginning
        # is higher (but it has what begins with a file, as files are deleted whole), or its end is lower.
        tries = max(self._fruitless - FRUITLESS_MAX, 0)
        size = self._size * WIDENING ** min(tries // 2, 8) if tries % 2 == 0 else self._size
        start = verification_start(log, below=end, size=size)
        if tries % 2:
            start = max(start, (end - 1) - (end - 1) % log.file_size)
        self._start_offset = self.expected_offset = start
        return start

    def end(self) -> None:
        """The session is over."""
        self._fruitless = 0 if self.frames else self._fruitless + 1
        self.expected_offset = -1

    def take(self, offset: int, data: memoryview) -> None:
        """
        A frame, or a part of one, has come.

        @param data: no bytes for a heartbeat, or for a header alone.
        @raise SessionEnded: it does not fit.
        @raise WireError: it cannot be a piece of a log.
        @raise OSError: it could not be written; the session must end as well.
        """
        if self.expected_offset < 0:
            self._begin_log(offset)
        if offset != self.expected_offset:
            raise SessionEnded(f"a frame begins at {offset}, and {self.expected_offset} comes next")
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
            # We asked for 1, as 0 asks for something else; a record or blank is shorter than 16 MiB.
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
        What one read brought. Pieces that go behind our end are written in one call: for the disk, and for
        whoever follows the records, a few long pieces cost much less than many short ones.

        @raise SessionEnded: as L{take}; what stood before the piece at fault is kept.
        @raise WireError: the same.
        @raise OSError: something could not be written; the session must end as well.
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
        """How many pieces from C{at} on go behind our end, one behind the other, in one file; not many."""
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
        """@return: False if there is something in them that is no log; nothing was appended then."""
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
        """What we hold of the master's log, as far as we know: the first byte that we do not."""
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
                f"the master begins with its last file, at {offset}; its whole history is wanted"
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
            # Not one whole record was equal: who knows where the difference begins.
            self._size *= WIDENING
        raise Diverged(
            f"our log differs from the master's at {offset}; it ended at {was}, and was cut to {end}, "
            "behind the last whole record in common"
        )
