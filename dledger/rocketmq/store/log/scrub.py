# -*- test-case-name: tests.broker.store.test_scrub -*-
"""
Reads the log again in the background, slowly, and notes the records that have become damaged.

It begins with the last L{START_FILES} files, as RocketMQ checks these when it starts, then goes round the
whole log, again and again. Only records on stable storage are checked. Files are read in another thread.

Source: CommitLog.recoverNormally (4.9.8), for the first files.
"""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from dledger.base.disk.disk import Disk
from dledger.base.disk.segment import file_name
from dledger.base.threads import RunInThread
from dledger.rocketmq.store.log.commit_log import CommitLog
from dledger.rocketmq.store.records.bad_records import BadRecords
from dledger.rocketmq.store.records.records import problem_of
from protocols.wire.rocketmq.layout import MAGIC_BLANK, START, START_SIZE

START_FILES = 3
#: The log of the start is read at this many times the usual rate at first. Later records were checked before
#: they were written, and a slave that copies a whole log has no time for more.
START_FACTOR = 8
#: The longest record that is believed in, bytes.
_RECORD_BYTES_MAX = 64 * 1024 * 1024 + 64 * 1024


def check_piece(data: bytes, offset: int, file_size: int) -> tuple[int, list[int], int]:
    """
    Check the records in a piece of one file of the log.

    @param offset: of the piece, where a record begins.
    @return: the offset after the checked records; the offsets of the damaged ones; and the bytes that the
        next record needs, 0 if unknown. After a record with a damaged length its file cannot be checked.
    """
    at = 0
    bad: list[int] = []
    while True:
        room = file_size - (offset + at) % file_size
        if room == file_size and at:
            return offset + at, bad, 0
        left = data[at : at + START_SIZE]
        if len(left) < START_SIZE:
            return offset + at, bad, START_SIZE
        size, magic = START.unpack(left)
        if magic == MAGIC_BLANK:
            return offset + at + room, bad, 0
        problem = problem_of(data[at : at + max(size, 0)], offset + at, room, _RECORD_BYTES_MAX)
        if problem is None:
            return offset + at, bad, size
        if problem:
            bad.append(offset + at)
            if "bodyCRC" not in problem:
                return offset + at + room, bad, 0
        at += size


class Scrub:
    """
    Invariant: at most one piece is being read; a record begins at C{offset}.

    @ivar offset: everything before it was checked in this round.
    @ivar rounds: number of times that the end of the log was reached.
    """

    log = Logger()

    def __init__(
        self, commit_log: CommitLog, bad: BadRecords, disk: Disk, directory: str, *,
        bytes_per_s: int, run_in_thread: RunInThread,
    ) -> None:
        """
        @param directory: of the log's files.
        @param bytes_per_s: the rate; 0 for none.
        """
        self._log = commit_log
        self._bad = bad
        self._disk = disk
        self._directory = directory
        self._rate = bytes_per_s
        self._run_in_thread = run_in_thread
        self._needs = 0
        self._wanted = -1
        self._is_reading = False
        self._problem = ""
        size = commit_log.file_size
        last = max(commit_log.record_end - 1, 0)
        self.offset = max(last - last % size - (START_FILES - 1) * size, commit_log.begin_offset)
        self.rounds = 0
        self._start_end = commit_log.record_end

    def tick(self) -> None:
        """Check the next piece. Called once a second."""
        log = self._log
        if self._is_reading or not self._rate or log.broken:
            return
        if 0 <= self._wanted < self.offset:
            self.offset = self._wanted
            self._needs = 0
        self._wanted = -1
        if self.offset < log.begin_offset:
            self.offset = log.begin_offset
            self._needs = 0
        end = log.flushed_record_end
        if self.offset >= end:
            if self.rounds == 0 or self.offset > log.begin_offset:
                self.rounds += 1
            self.offset = log.begin_offset
            self._needs = 0
            return
        self._is_reading = True
        is_start = not self.rounds and self.offset < self._start_end
        rate = self._rate * (START_FACTOR if is_start else 1)
        room = log.file_size - self.offset % log.file_size
        size = min(max(rate, self._needs), room, end - self.offset)
        reading = Deferred.fromCoroutine(self._check(self.offset, size))
        reading.addErrback(self._failed).addBoth(self._done)

    def check_from(self, offset: int) -> None:
        """Check the records from C{offset} on, where a record begins, before the others of this round."""
        self._wanted = offset if self._wanted < 0 else min(offset, self._wanted)

    async def _check(self, offset: int, size: int) -> None:
        base = offset - offset % self._log.file_size
        path = f"{self._directory}/{file_name(base)}"
        found: list[tuple[int, list[int], int]] = []

        def read() -> None:
            file = self._disk.open(path)
            try:
                found.append(check_piece(file.pread(size, offset - base), offset, self._log.file_size))
            finally:
                file.close()

        await self._run_in_thread(read)
        following, bad, self._needs = found[0]
        log = self._log
        for at in bad:
            # The log may have been cut, or may have expired, in the meantime.
            if log.begin_offset <= at < log.flushed_record_end and (problem := log.problem_at(at)):
                self._bad.note(at, problem)
        self.offset = following
        self._problem = ""

    def _failed(self, failure: Failure) -> None:
        """A file that cannot be read is passed over; reported once."""
        failure.trap(OSError)
        problem = failure.getErrorMessage()
        if isinstance(failure.value, FileNotFoundError):
            problem = self._problem  # the file has just expired
        if problem != self._problem:
            self.log.error("checking the log at {offset}: {reason}", offset=self.offset, reason=problem)
        self._problem = problem
        size = self._log.file_size
        self.offset = self.offset - self.offset % size + size
        self._needs = 0

    def _done(self, _: object) -> None:
        self._is_reading = False
