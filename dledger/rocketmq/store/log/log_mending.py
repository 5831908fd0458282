# -*- test-case-name: tests.broker.store.test_record_mending -*-
"""
Writes the sound bytes of one record over damaged ones, in the middle of an open log.

Rule: before the log changes, the damaged bytes are durable in a file beside the log. The file is in the
directory C{commitlog.damaged}; its name is the offset of the record, followed by C{-2}, C{-3} and so on if an
earlier file has that name. The broker neither reads nor overwrites the files in that directory.

L{dledger.rocketmq.store.log.record_mending} decides whether the bytes may be written.
"""

from __future__ import annotations

from dledger.base.threads import RunInThread
from dledger.rocketmq.store.log.open_log import OpenLog
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode


class LogMending:
    """Overwrites records of one open log."""

    def __init__(self, log: OpenLog, run_in_thread: RunInThread) -> None:
        self._log = log
        self._run_in_thread = run_in_thread

    async def overwrite(self, offset: int, damaged: bytes, sound: bytes) -> str:
        """
        Write C{sound} over the damaged bytes of a record.

        @param offset: of the first damaged byte in the log.
        @param damaged: the bytes that the log has there now; they are kept in a file.
        @param sound: the bytes that the log shall have there, as many as C{damaged}.
        @return: path of the file with the damaged bytes. The file and the log are durable then.
        @raise OSError: the damaged bytes could not be kept. The log has not changed.
        @raise DLedgerError: INCONSISTENT_STATE: while the damaged bytes were being kept, the log was opened
            again or cut, or the record expired. This method has not changed the log.
        @raise StoreError: writing to the log failed. Nothing is read from the log or written to it any more.
        """
        assert len(damaged) == len(sound), "a record stays in its place"
        log, segments = self._log, self._log.segments
        epoch, kept = log.epoch, []
        await self._run_in_thread(lambda: kept.append(segments.keep_damaged(offset, damaged)))
        log.guard.check()
        if not (log.epoch == epoch and log.begin_offset <= offset and offset + len(sound) <= log.walk.end):
            raise DLedgerError(ResponseCode.INCONSISTENT_STATE, reason="the log has changed: try again")
        with log.guard.storing("mending a damaged record"):
            segments.mend(sound, offset)
        try:
            await self._run_in_thread(lambda: segments.sync_file(offset))
        except FileNotFoundError:
            pass  # The file has expired meanwhile, so its record needs no mending any more.
        except OSError as error:
            raise log.guard.fail(f"mending a damaged record: fsync: {error}") from error
        return kept[0]
