# -*- test-case-name: tests.broker.store.test_record_mending -*-
"""
Writes the sound bytes of one record over damaged ones, in the middle of an open log.

Rule: the damaged bytes are durable in a file of their own, beside the log, before the log changes. Its name
is the offset of the record in the directory C{commitlog.damaged}; nothing there is ever overwritten or read.

L{dledger.rocketmq.broker.store.log.record_mending} decides whether the bytes may be written.
"""

from __future__ import annotations

from dledger.base.process.threads import RunInThread
from dledger.rocketmq.broker.store.log.open_log import OpenLog
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode


class LogMending:
    """Overwrites records of one open log."""

    def __init__(self, log: OpenLog, run_in_thread: RunInThread) -> None:
        self._log = log
        self._run_in_thread = run_in_thread

    async def overwrite(self, offset: int, damaged: bytes, sound: bytes) -> str:
        """
        Replace C{damaged}, the bytes of the log from C{offset} on, by C{sound}, which is as long.

        @return: path of the file that keeps the damaged bytes; everything is durable.
        @raise OSError: they could not be kept; the log has not changed.
        @raise DLedgerError: INCONSISTENT_STATE, the log has changed meanwhile; it was left alone.
        @raise StoreError: writing failed; the log is broken.
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
            pass  # it has expired, and needs no mending any more
        except OSError as error:
            raise log.guard.fail(f"mending a damaged record: fsync: {error}") from error
        return kept[0]
