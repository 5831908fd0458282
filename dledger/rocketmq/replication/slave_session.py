# -*- test-case-name: tests.broker.ha.test_slave_session -*-
"""
A slave's decisions on the frames of its master, one session (connection) after the other::

    empty ---- first frame ----> following <--- equal up to our end --- comparing
                                                                           |
         session ends, never reported bytes are cut  <--- differs ---------+---> replication stops

Rule 1: every frame must begin where the last one ended. Any other frame ends the session and is not
written.
Rule 2: a session begins below our end, and bytes that we hold already are compared, not trusted: a slave
that crashed may hold less than it seems, a master that crashed may have come back with another tail. If even
the first record differs, the next session begins further below.
Rule 2a: at a difference the log is cut to the last whole record before it, if the master's record is sound
and no whole record that we lose was ever reported. (What a process finds at its start counts as reported.)
Rule 2b: it is cut, too, by at most L{TORN_CUT_MAX} bytes, if our record was not on stable storage when we
crashed, and is the master's with holes: a power cut leaves zeroes where it lost a part of a write.
Rule 2c: it is cut, too, if our log ends with a blank where the master has a message. A blank holds nothing,
and RocketMQ drops one at the end of its log when it recovers from a crash.
Otherwise the log stays as it is and replication stops until an operator decides: our record may be the only
copy of an acknowledged message.
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

from dledger.rocketmq.replication.ports import LogPort
from dledger.rocketmq.replication.tail import FIRST_REPORT_MIN, first_difference, verification_start
from protocols.wire.errors import WireError
from protocols.wire.rocketmq.ha import Piece
from protocols.wire.rocketmq.layout import MAGIC_BLANK, START, START_SIZE

#: Factor for the size of the next comparison after one that began with a difference.
WIDENING = 16

#: Maximum size of joined pieces, in bytes.
JOINED_SIZE_MAX = 256 * 1024

#: Number of consecutive sessions without a frame that count as network faults.
FRUITLESS_MAX = 2

#: A difference counts as the first one after this many sessions without a frame at the lowest offset.
LOWEST_TRIES_MAX = 3


#: At most this many bytes are cut for a record with a hole that a power cut has left.
TORN_CUT_MAX = 1024 * 1024

_CHUNK = 512


def _has_holes(ours: bytes, theirs: bytes | bytearray) -> bool:
    """
    Whether our bytes are theirs, except for zeroes. A single bit is not a hole: it may have flipped in
    theirs.
    """
    bits = 0
    for at in range(0, len(ours), _CHUNK):
        one, two = ours[at : at + _CHUNK], theirs[at : at + _CHUNK]
        if one != two:
            differing = [(mine, other) for mine, other in zip(one, two, strict=True) if mine != other]
            if any(mine for mine, _ in differing):
                return False
            bits += sum(other.bit_count() for _, other in differing)
    return bits > 1


class SessionEnded(Exception):
    """
    The connection must be closed, and another one opened. The message names the reason.
    """


class Diverged(SessionEnded):
    """Our log differed from the master's, and has been cut to the common part."""


@attrs.frozen(kw_only=True)
class Difference:
    """
    The reason why replication has stopped.

    @ivar reason: a sentence for people.
    @ivar offset: the first byte that differs; -1 if no byte could be compared.
    @ivar common_end: an operator who takes the master's log gives up everything from here on.
    @ivar our_begin, our_end: our log when replication stopped.
    @ivar our_problem, master_problem: why the record there is not sound; empty for a sound one.
    """

    reason: str
    offset: int
    common_end: int
    our_begin: int
    our_end: int
    our_problem: str = ""
    master_problem: str = ""


class ReplicationStopped(SessionEnded):
    """Only an operator can decide. @ivar difference: what is known."""

    def __init__(self, difference: Difference) -> None:
        super().__init__(difference.reason)
        self.difference = difference


@attrs.define
class SlaveSession:
    """
    Invariant: in a session our log equals the master's from the start of the comparison to
    C{expected_offset}.

    @ivar expected_offset: offset at which the next frame must begin; -1: any (the log is empty).
    @ivar master_offset: next offset that the master sends; -1 before its first frame.
    @ivar frames: whether the current session has brought frames.
    @ivar truncations: number of cuts of our log.
    @ivar reported_offset: nothing from here on was ever reported as held, to any master.
    @ivar _size: C{verify_size}, or more while comparisons have begun with a difference.
    @ivar _disputed: the master's bytes from C{_disputed_at} on, while its record there is incomplete.
    @ivar _lowest_tries: sessions that began as low as possible and brought nothing.
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
    reported_offset: int = attrs.field(init=False, default=0)
    _size: int = attrs.field(init=False, default=0)
    _start_offset: int = attrs.field(init=False, default=0)
    _fruitless: int = attrs.field(init=False, default=0)
    _wants_offset: int = attrs.field(init=False, default=0)
    _disputed: bytearray = attrs.field(init=False, factory=bytearray)
    _disputed_at: int = attrs.field(init=False, default=-1)
    _differs_at: int = attrs.field(init=False, default=-1)
    _lowest_tries: int = attrs.field(init=False, default=0)

    def __attrs_post_init__(self) -> None:
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forget all sessions. All bytes that the log holds may have been reported by an earlier process."""
        self._size = max(self.verify_size, self.verify_size_at_start)
        self._fruitless = self._wants_offset = self._lowest_tries = 0
        self.reported_offset = self.log.end_offset

    @property
    def is_empty(self) -> bool:
        """Whether our log is empty."""
        return self.log.begin_offset == self.log.end_offset

    @property
    def is_comparing(self) -> bool:
        """Whether our log already holds the bytes that come next."""
        return 0 <= self.expected_offset < self.log.end_offset

    @property
    def is_fruitless(self) -> bool:
        """Whether the last session brought no frame."""
        return self._fruitless > 0

    def reported(self, offset: int) -> None:
        """Note a report. @param offset: the first byte that we did not report as held."""
        self.reported_offset = max(self.reported_offset, offset)

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
        if not self.frames and self._start_offset <= self._lowest:
            self._lowest_tries += 1
        if not self.frames and self._start_offset:
            # The offset was of an earlier master: one that has come back empty refuses it.
            self._wants_offset = 0
        self.expected_offset = self._disputed_at = self._differs_at = -1
        self._disputed.clear()

    @property
    def _lowest(self) -> int:
        """The lowest offset at which a comparison can begin."""
        return max(self.log.begin_offset, FIRST_REPORT_MIN)

    def take(self, offset: int, data: memoryview) -> None:
        """
        Take a frame, or a part of one.

        @param data: its bytes; empty for a heartbeat, or for a header alone.
        @raise SessionEnded: the frame does not fit, our log differed and was cut, or replication stops.
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
        if self._differs_at < 0:
            held = min(log.end_offset - offset, size)
            if held > 0 and not self.is_empty:
                self._compare(offset, data[:held])
                data = data[held:] if self._differs_at < 0 else data
            if data and self._differs_at < 0:
                log.append_raw(offset + size - len(data), data)
        self.expected_offset = offset + size
        if self._differs_at >= 0:
            self._judge(offset, data)

    def take_all(self, pieces: Sequence[Piece]) -> None:
        """
        Take the pieces of one read. Pieces after our end are written in one call: for the disk, and for
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
        if expected != log.end_offset or self.is_empty or self._differs_at >= 0:
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
        held = self.expected_offset if self._differs_at < 0 else self._differs_at
        held = min(held, self.log.end_offset)
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
        if same < len(theirs):
            self._differs_at = offset + same
            self._disputed_at = self.log.record_end_below(max(offset + same, self.log.begin_offset))
        elif offset + same >= self.log.end_offset:
            self._size = self.verify_size
            self._lowest_tries = 0
            self.log.compared()

    def _judge(self, offset: int, data: memoryview) -> None:
        """Gather the master's record at the difference, and decide when it is complete."""
        at = self._disputed_at + len(self._disputed)
        while at < offset:  # equal to ours
            self._disputed += self.log.read(at, offset - at)
            at = self._disputed_at + len(self._disputed)
        self._disputed += data[at - offset :]
        problem = self.log.problem_at(self._disputed_at, self._disputed)
        if problem is None:
            problem = self._size_problem()
        if problem is not None:
            self._decide(problem)

    def _size_problem(self) -> str | None:
        """
        The master's record goes on, by its size.

        @return: why it is not sound, if only its size differs from our sound record; None if more must come.
        """
        theirs = self._disputed
        ours = self.log.read(self._disputed_at, START_SIZE)
        if len(ours) < START_SIZE:
            return None
        size = START.unpack(ours)[0]
        if not START_SIZE < size <= len(theirs) or self.log.problem_at(self._disputed_at) != "":
            return None
        if self.log.read(self._disputed_at, size)[START_SIZE:] != theirs[START_SIZE:size]:
            return None
        return f"size={START.unpack_from(theirs)[0]}, but all else is that of a sound record of {size} bytes"

    def _decide(self, master_problem: str) -> None:
        log, at, common_end = self.log, self._differs_at, self._disputed_at
        our_problem = log.problem_at(common_end)
        if not master_problem and self._was_never_reported(common_end, our_problem):
            self._cut(at, "were never reported as held")
        if not master_problem and self._is_torn(common_end):
            self._cut(at, "were not on stable storage when this slave crashed")
        if not master_problem and self._is_last_blank(common_end):
            self._cut(at, "were a blank, without any message")
        lowest = self._lowest
        if common_end <= self._start_offset and self._start_offset > lowest:
            # Not one whole record was equal: the first difference may be further below.
            if self._lowest_tries < LOWEST_TRIES_MAX:
                self._size *= WIDENING
                raise SessionEnded(f"our log differs from the master's at {at}: looking for the first one")
        raise ReplicationStopped(self.difference(at, common_end, our_problem or "", master_problem))

    def _was_never_reported(self, common_end: int, our_problem: str | None) -> bool:
        """Whether no whole record from C{common_end} on was ever reported as held."""
        reported = min(self.reported_offset, self.log.end_offset)
        if reported <= common_end:
            return True
        # After a record that is not sound, no end of a record is known.
        return not our_problem and self.log.record_end_below(reported) == common_end

    def _is_torn(self, common_end: int) -> bool:
        """Whether our record at C{common_end} is the master's, with holes that our power cut has left."""
        log = self.log
        size, magic = START.unpack_from(self._disputed)
        if magic == MAGIC_BLANK:
            size = log.file_size - common_end % log.file_size
        doubtful, end = log.doubtful, common_end + size
        if not doubtful.start <= common_end < end <= doubtful.stop:
            return False
        if log.end_offset - common_end > TORN_CUT_MAX:
            return False
        size = min(size, len(self._disputed))  # of a blank, the rest may not have come yet
        return _has_holes(log.read(common_end, size), self._disputed[:size])

    def _is_last_blank(self, common_end: int) -> bool:
        """Whether our log ends with a blank at C{common_end}, as far as we have it."""
        log = self.log
        room = log.file_size - common_end % log.file_size
        start = log.read(common_end, START_SIZE)
        return (
            len(start) == START_SIZE and START.unpack(start) == (room, MAGIC_BLANK)
            and log.end_offset <= common_end + room
        )

    def difference(self, at: int, common_end: int, our_problem: str, master_problem: str) -> Difference:
        """What is known of a difference at C{at}, in words."""
        log = self.log
        where = f"our log differs from the master's at {at}, in the record at {common_end}"
        if master_problem and not our_problem:
            why = f"{where}: ours is sound, the master's is not ({master_problem}): repair the master"
        elif our_problem and not master_problem:
            why = f"{where}: the master's is sound, ours is not ({our_problem})"
        elif our_problem:
            why = f"{where}: neither is sound (ours: {our_problem}; the master's: {master_problem})"
        else:
            why = f"{where}: both are sound, so the master is another one, or has lost bytes that we reported"
        return Difference(
            reason=why, offset=at, common_end=common_end, our_begin=log.begin_offset, our_end=log.end_offset,
            our_problem=our_problem, master_problem=master_problem,
        )

    def _cut(self, offset: int, why: str) -> None:
        log = self.log
        was = log.end_offset
        end = log.cut(max(offset, log.begin_offset))
        self.truncations += 1
        if end <= self._start_offset:
            # Not one whole record was equal: the difference may begin further below.
            self._size *= WIDENING
        raise Diverged(
            f"our log differs from the master's at {offset}; it ended at {was}, and was cut to {end}, "
            f"the end of the last common whole record; the bytes after it {why}"
        )
