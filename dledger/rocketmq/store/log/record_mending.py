# -*- test-case-name: tests.broker.store.test_record_mending -*-
"""
Decides whether the copy of a record that a slave offers replaces a damaged record of this log.

Rule 1: a sound record is never replaced, and the copy must be sound itself: lengths, own offset, checksum.
Rule 2: the copy must be of this very record. Either the head of our damaged record, which holds its place in
log and queue, its times and the checksum of its body, is equal to that of the copy; or everything after the
head is equal, and a sound record follows ours. A record that differs in both parts needs an operator.
Rule 3: one record is mended at a time. The damaged bytes are kept, see
L{dledger.rocketmq.store.log.log_mending}.
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.logger import Logger

from dledger.rocketmq.store.log.commit_log import CommitLog
from dledger.rocketmq.store.records.bad_records import BadRecords
from dledger.rocketmq.store.records.records import fixed_size_of
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode
from protocols.wire.rocketmq.layout import START, START_SIZE


def _unfit(offset: int, reason: str) -> DLedgerError:
    return DLedgerError(ResponseCode.INCONSISTENT_STATE, offset=offset, reason=reason)


class RecordMending:
    """
    Mends damaged records of one log.

    @ivar mended: number of records mended since the start.
    """

    log = Logger()

    def __init__(self, commit_log: CommitLog, bad: BadRecords, *, check_from: Callable[[int], None]) -> None:
        """
        @param check_from: called with the offset of a record whose head was mended: damage after it could
            not be seen while its length was not known.
        """
        self._log = commit_log
        self._bad = bad
        self._check_from = check_from
        self._is_busy = False
        self.mended = 0

    async def take(self, offset: int, record: bytes, *, source: str) -> str:
        """
        Replace our damaged record at C{offset} by C{record}.

        @param source: the address of the slave that offers it, for the log.
        @return: path of the file that keeps the damaged bytes; empty if our record equals the copy: another
            slave was faster.
        @raise DLedgerError: INCONSISTENT_STATE, the copy does not fit, or another record is being mended;
            the log has not changed.
        @raise OSError: reading failed, or the damaged bytes cannot be kept; the log has not changed.
        @raise StoreError: writing failed; the log is broken.
        """
        if self._is_busy:
            raise _unfit(offset, "another record is being mended: try again")
        damaged, problem = self._fitting(offset, record)
        if damaged == record:
            return ""
        self._is_busy = True
        try:
            kept = await self._log.mending.overwrite(offset, damaged, record)
        finally:
            self._is_busy = False
        self.mended += 1
        self._bad.mended(offset)
        if damaged[:START_SIZE] != record[:START_SIZE]:
            self._check_from(offset)
        self.log.warn(
            "the damaged record at {offset} ({problem}) was replaced by the copy of slave {source}; its old "
            "bytes are kept in {kept}", offset=offset, problem=problem, source=source, kept=kept,
        )
        return kept

    def _fitting(self, offset: int, record: bytes) -> tuple[bytes, str]:
        """@return: our damaged bytes, and what is wrong with them. @raise DLedgerError: the copy is unfit."""
        log, size = self._log, len(record)
        if offset < log.begin_offset or offset + size > log.record_end:
            raise _unfit(offset, f"we hold records from {log.begin_offset} to {log.record_end}")
        fixed = fixed_size_of(record)
        theirs = log.problem_at(offset, record)
        if theirs != "" or not fixed or START.unpack_from(record)[0] != size:
            raise _unfit(offset, f"the copy is not one sound record: {theirs or 'its length is another one'}")
        damaged, problem = log.read(offset, size), log.problem_at(offset)
        if damaged == record:
            return damaged, ""
        if problem is None:
            problem = "by its size it would end after the log"
        if not problem:
            raise _unfit(offset, "our record there is sound, and another one")
        if damaged[:fixed] != record[:fixed]:
            if damaged[fixed:] != record[fixed:]:
                raise _unfit(offset, "the copy differs from our damaged record in its head and after it")
            following = offset + size
            if following < log.record_end and log.problem_at(following) != "":
                raise _unfit(offset, f"no sound record follows at {following}")
        return damaged, problem
