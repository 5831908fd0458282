# -*- test-case-name: tests.broker.store.test_commit_log -*-
"""
RocketMQ's commit log: one stream of message records in files of equal size.

A master appends messages, each with its queue offset, its offset in the log and a timestamp. A slave appends
the master's bytes in pieces that may end inside a record but do not cross the end of a file. The slave tracks
the ends of records byte by byte, and refuses bytes that cannot be records before it writes them.

Rule 1: a write is laid out and checked before a file is touched; a refusal changes nothing.
Rule 2: a record does not cross the end of a file; a blank of at least 8 bytes fills the rest of the file.
Rule 3: a cut lowers the mark durably, and zeroes the cut bytes durably, before anything is written there.

The other parts of a log are L{dledger.rocketmq.store.log.log_flush} (flushes and the mark) and
L{dledger.rocketmq.store.log.log_start} (how a log is opened); they share one
L{dledger.rocketmq.store.log.open_log.OpenLog}. The log knows nothing of consume queues except the
queue offsets that it assigns, and nothing of replication.

Source: CommitLog.java, MappedFileQueue.java (4.9.8, 5.3.3); differs: no bytes remain after the end.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence

import attrs
from twisted.internet.defer import Deferred

from dledger.base.disk.disk import Disk
from dledger.base.disk.expiry import Expiry
from dledger.base.threads import RunInThread
from dledger.rocketmq.store.log import log_recovery
from dledger.rocketmq.store.log.log_flush import LogFlusher
from dledger.rocketmq.store.log.log_mark import LOG_MARK_NAME, LogMark, LogMarkFile
from dledger.rocketmq.store.log.log_mending import LogMending
from dledger.rocketmq.store.log.log_start import LogSeen, find_log_end
from dledger.rocketmq.store.log.mark_fit import contradiction
from dledger.rocketmq.store.log.open_log import LogSegments, OpenLog
from dledger.rocketmq.store.records.checkpoint import decode_checkpoint
from dledger.rocketmq.store.records.events import BrokerEvents
from dledger.rocketmq.store.records.plain_records import Placed, PlainMessage, lay_out, plain_batch
from dledger.rocketmq.store.records.records import MIN_BLANK_SIZE, NewMessage, problem_of, size_of
from dledger.rocketmq.store.records.store_config import RECORD_OVERHEAD_MAX, StoreConfig
from dledger.values.errors import DLedgerError, StoreError
from protocols.wire.checksums import crc32
from protocols.wire.codes import ResponseCode
from protocols.wire.errors import WireError
from protocols.wire.rocketmq.layout import START, START_SIZE

_READ_BYTES = 1024 * 1024
#: A tail of at most this many bytes that a crash left unsound is cut at the next start; a longer one is kept.
TORN_BYTES_MAX = 1024 * 1024
#: The longest record that L{CommitLog.problem_at} believes in, bytes.
RECORD_SIZE_MAX = 64 * 1024 * 1024 + RECORD_OVERHEAD_MAX
#: No write: offset and bytes.
_NOTHING = (-1, b"")
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE)


class CommitLog:
    """
    Invariant: C{begin_offset <= flushed_offset <= end_offset}, and C{begin_offset} is a multiple of
    C{file_size}; the log is empty when C{begin_offset == end_offset}. C{_newest} is the write of which
    C{grown} informs slaves, who read it at once: offset and bytes.

    @ivar file_size: bytes of every file of the log.
    @ivar flusher: brings the log to stable storage, and knows how much of it is there.
    @ivar mending: overwrites damaged records.
    @ivar queue_offsets: topic and queue to the offset of its next message; the store fills it from the
        consume queues before the first append.
    @ivar record_lead: no bytes are between two records, see L{MessageLog}.
    @ivar why_recovered: description of the damage that a start found after the end; empty if none.
    """

    def __init__(
        self, config: StoreConfig, log: OpenLog, flusher: LogFlusher, events: BrokerEvents, *,
        run_in_thread: RunInThread, why_recovered: str = "",
    ) -> None:
        self._config = config
        self._log = log
        self._segments = log.segments
        self.file_size = log.segments.file_size
        self._storing = log.guard.storing
        self._appending = self._storing("appending to the commit log")
        self.flusher = flusher
        self.mending = LogMending(log, run_in_thread)
        self.queue_offsets: dict[tuple[str, int], int] = {}
        self.record_lead = 0
        self._events = events
        self._run_in_thread = run_in_thread
        self._newest = _NOTHING
        self.why_recovered = why_recovered

    @classmethod
    def open(
        cls, config: StoreConfig, disk: Disk, seen: LogSeen, *, is_slave: bool, run_in_thread: RunInThread,
        events: BrokerEvents,
    ) -> CommitLog:
        """
        Find the end, bring everything before it to stable storage, and zero everything after it.

        @param seen: the current state of the directory.
        @param is_slave: cut damage that no crash explains instead of refusing it: a master has the records.
        @param events: hears of every append and cut after this returns.
        @raise DirectoryError: files that the mark records are gone; nothing was touched.
        @raise StoreError: reading or writing failed; another start may try again.
        """
        size = config.mapped_file_size_commit_log
        segments = LogSegments(disk, config.commit_log_path, size, seen.offsets)
        path = f"{config.store_path_root_dir}/{LOG_MARK_NAME}"
        initial = LogMark(log_file_size=size, queue_file_size=config.mapped_file_size_consume_queue)
        try:
            end = find_log_end(segments, seen, is_slave=is_slave)
            kept = _clear_left_over(disk, segments, seen)
            # A killed process may have left the names of mark, checkpoint and abort file in the cache only.
            disk.sync_directory(config.store_path_root_dir)
            mark_file, _ = LogMarkFile.open(disk, path, initial)
        except OSError as error:
            segments.close()
            raise StoreError(f"{config.commit_log_path} cannot be read: {error}") from error
        except BaseException:
            segments.close()
            raise
        dispatched = min(seen.mark.dispatched_offset, end.offset) if seen.mark is not None else -1
        crc = -1 if seen.checkpoint is None else crc32(seen.checkpoint)
        log = OpenLog(segments, end.offset)
        mark = attrs.evolve(initial, end_offset=end.offset, dispatched_offset=dispatched,
                            checkpoint_crc=crc, previous_checkpoint_crc=crc, begin_offset=log.begin_offset)
        sure_end = seen.mark.end_offset if is_slave and seen.crashed and seen.mark is not None else end.offset
        flusher = LogFlusher(log, mark_file, mark, run_in_thread, range(sure_end, end.offset))
        try:
            kept = _settle(log, flusher, seen) or kept
        except BaseException:
            segments.close()
            mark_file.close()
            raise
        why = f"{end.why or 'files were left over'}; the bytes after it are kept in {kept}"
        return cls(config, log, flusher, events, run_in_thread=run_in_thread,
                   why_recovered=why if kept else end.why)

    # -- reading ---------------------------------------------------------------------------------

    @property
    def begin_offset(self) -> int:
        """The lowest offset in the log; 0 for a log that never had a file."""
        return self._log.begin_offset

    @property
    def end_offset(self) -> int:
        """The first offset after the log; perhaps in the middle of a record."""
        return self._log.end

    @property
    def record_end(self) -> int:
        """End of the last whole record."""
        return self._log.walk.end

    @property
    def flushed_offset(self) -> int:
        """Every byte below this offset is on stable storage."""
        return self.flusher.flushed_offset

    @property
    def flushed_record_end(self) -> int:
        """End of the last whole record on stable storage."""
        return self.flusher.flushed_record_end

    @property
    def doubtful(self) -> range:
        """See L{LogFlusher}."""
        return self.flusher.doubtful

    def compared(self) -> None:
        """All bytes equal the master's: none is doubtful any more."""
        self.flusher.doubtful = range(0)

    @property
    def broken(self) -> str:
        """Why the log can no longer be used; empty while it can."""
        return self._log.guard.broken

    def read(self, offset: int, size: int) -> bytes:
        """
        Read C{size} bytes from C{offset} on, or fewer at the end of the file that holds C{offset} or at
        C{end_offset}.

        @param offset: C{begin_offset} to C{end_offset}.
        @raise ValueError: the offset is outside.
        @raise OSError: the file cannot be read.
        """
        newest_at, newest = self._newest
        if offset == newest_at and size == len(newest):
            return newest
        begin, end = self._log.begin_offset, self._log.end
        if not begin <= offset <= end:
            raise ValueError(f"offset {offset} outside {begin}..{end}")
        size = min(size, end - offset)
        if size <= 0:
            return b""
        data = self._segments.pread(size, offset)
        wanted = min(size, self.file_size - offset % self.file_size)
        if len(data) != wanted:
            raise OSError(f"{self._segments.path(self._segments.base(offset))} is shorter than it was")
        return data

    def contradiction(self, offset: int) -> str:
        """See L{dledger.rocketmq.store.log.mark_fit.contradiction}, of the end of some record."""
        with self._storing("looking for a record"):
            return contradiction(self._segments, offset, is_clean=False)

    def opened(self) -> None:
        """The store is open: from now on, whatever the disk cannot read is damage, however much it is."""
        self._segments.unreadable.opened()

    def file_at(self, offset: int) -> tuple[int, int] | None:
        """
        The file that holds C{offset}, for C{sendfile}: an open file descriptor, valid until control returns
        to the reactor, and the position in it. None if files have no descriptor.
        """
        if not self._segments.has(self._segments.base(offset)):
            return None
        descriptor = self._segments.descriptor(offset)
        return None if descriptor is None else (descriptor, offset % self.file_size)

    # -- appending -------------------------------------------------------------------------------

    def check(self, messages: Sequence[NewMessage], *, are_copies: bool = False) -> int:
        """
        Check that these messages can be stored consecutively in one file.

        @param are_copies: C{max_message_size} does not count. @return: total bytes of their records.
        @raise ValueError: they cannot; the text says why.
        """
        total = 0
        for message in messages:
            if len(message.body) > self._config.max_message_size and not are_copies:
                raise ValueError(f"body of {len(message.body)} bytes; max_message_size="
                                 f"{self._config.max_message_size}")
            if b"\0" in message.properties_data or "\0" in message.topic:
                # A crash may leave a record like this; see dledger.rocketmq.store.log.log_recovery.
                raise ValueError("a zero byte in the topic or properties")
            total += size_of(message)
        if total + MIN_BLANK_SIZE > self.file_size:
            raise ValueError(f"records of {total} bytes do not fit into a file of {self.file_size}")
        return total

    def append(self, batches: Sequence[Sequence[NewMessage]], now_ms: int) -> Placed:
        """As L{append_plain}, for batches; the records of each batch are in one file."""
        return self.append_plain([one for batch in batches for one in plain_batch(batch)], now_ms)

    def append_plain(self, messages: Sequence[PlainMessage], now_ms: int) -> Placed:
        """
        Store messages, in one write for each file.

        @param messages: at least one; each passes L{check}, together with those that must be in its file.
        @param now_ms: their store timestamp, ms since 1970.
        @return: their offsets; visible to readers now, on stable storage after L{flush}.
        @raise DLedgerError: DISK_FULL; nothing has changed.
        @raise StoreError: a write failed; the log is broken.
        """
        log = self._log
        assert log.walk.end == log.end, "the log ends in the middle of a record: cut it first"
        writes, taken, placed = lay_out(
            messages, end=log.end, file_size=self.file_size, now_ms=now_ms,
            queue_offsets=self.queue_offsets,
        )
        self._write(writes, placed.end)
        self.queue_offsets.update(taken)
        self._newest = writes[-1]
        try:
            self._events.grown()
        finally:
            self._newest = _NOTHING
        return placed

    def _write(self, writes: list[tuple[int, bytes]], end: int) -> None:
        segments = self._segments
        made = 0
        with self._appending:
            try:
                for offset, _ in writes:
                    if not segments.has(segments.base(offset)):
                        segments.create(segments.base(offset))
                        made += 1
                        self._secure_first()
            except OSError as error:
                for _ in range(made):
                    segments.drop_last()
                if error.errno not in _NO_ROOM:
                    raise
                raise DLedgerError(
                    ResponseCode.DISK_FULL, reason=f"no room for a file in {segments.directory}: {error}",
                    file_size=self.file_size,
                ) from error
            for offset, data in writes:
                segments.pwrite(data, offset)
        self._log.end = end
        self._log.walk.restart(end)

    def append_raw(self, offset: int, data: bytes | memoryview) -> None:
        """
        Write bytes from a master unchanged. They may end inside a record.

        @param offset: C{end_offset}; for an empty log, the beginning of any file, where the log then begins.
        @param data: at least one byte, none beyond the file of C{offset}.
        @raise ValueError: another offset, or too many bytes; nothing has changed.
        @raise WireError: the bytes are no records, or a body does not have its checksum; nothing has changed.
        @raise OSError: there is no room for another file; nothing has changed.
        @raise StoreError: the write failed; the log is broken.
        """
        log, segments, size = self._log, self._segments, self.file_size
        is_empty = log.begin_offset == log.end
        if offset != log.end and not (is_empty and offset >= 0 and offset % size == 0):
            raise ValueError(f"offset {offset}: {log.end} is needed"
                             + (f", or a multiple of {size}" if is_empty else ""))
        if not 0 < len(data) <= size - offset % size:
            raise ValueError(f"{len(data)} bytes at {offset}: 1 to {size - offset % size} are allowed")
        log.guard.check()
        walk = log.walk.copy()
        if offset != log.end:
            walk.restart(offset)
        bodies = log.bodies.copy()
        if bodies.fed != offset or walk.end == offset:
            bodies.restart(offset)
        walk.feed(data)
        bodies.feed(data)
        if offset != log.end:
            self._begin_at(offset)
        if not segments.has(segments.base(offset)):
            segments.create(segments.base(offset))
        with self._appending:
            self._secure_first()
            segments.pwrite(data, offset)
        log.end = offset + len(data)
        log.walk = walk
        log.bodies = bodies
        self._events.grown()

    def _secure_first(self) -> None:
        """
        Bring the first file of a log to stable storage before the first write to it. A power cut could remove
        it and leave later files; then a log that was never flushed would look like a log that lost its
        beginning.
        """
        segments = self._segments
        if len(segments.offsets) == 1 and segments.directory_dirty and self._log.end == segments.offsets[0]:
            segments.sync()

    def _begin_at(self, offset: int) -> None:
        """Let an empty log begin at C{offset}."""
        with self._storing("beginning a commit log"):
            while self._segments.offsets:
                self._segments.drop_last()
        self._log.empty_at = self._log.end = offset
        self._log.walk.restart(offset)
        self.flusher.begin_at(offset)
        self._events.cut(offset)

    # -- cutting ---------------------------------------------------------------------------------

    def cut(self, offset: int) -> int:
        """
        Cut the log at the end of the last record that ends at or below C{offset}. The bytes after it are
        zeroed and files after it are deleted, durably on return. A log that ends there already does not
        change. Records are parsed from the beginning of the file of C{offset}, so at most one file is read.

        @param offset: at least C{begin_offset}.
        @return: the new C{end_offset}.
        @raise ValueError: the offset is lower.
        @raise StoreError: reading or writing failed; the log is broken.
        """
        end = self.record_end_below(offset)
        if end != self._log.end:
            self._cut_at(end)
        return end

    def _cut_at(self, end: int, *, aside: str = "") -> None:
        """Cut at C{end}, the end of a record. @param aside: directory for the files that the log loses."""
        log, segments = self._log, self._segments
        with self._storing("cutting the commit log"):
            written_end, log.end = log.end, end
            self.flusher.lower(end)
            same_file = segments.base(written_end) == segments.base(end)
            segments.cut(end, written_end if same_file else None, aside=aside)
            log.empty_at = end
            log.walk.restart(end)
            self.flusher.sync()
            self.flusher.record()
        self._events.cut(end)

    def set_aside(self, offset: int) -> Deferred[str]:
        """
        Cut the log as L{cut} does, but keep all files that it loses or changes, in a directory beside it: see
        L{dledger.rocketmq.store.records.set_aside}. Nothing may be appended in the meantime.

        @param offset: at least C{begin_offset}.
        @return: fires with the directory. Fails with C{OSError}: copying failed, and the log has not changed;
            with L{DLedgerError} INCONSISTENT_STATE: the log has changed in the meantime; or with
            L{StoreError}: cutting failed, and the log is broken.
        """
        return Deferred.fromCoroutine(self._set_aside(offset))

    async def _set_aside(self, offset: int) -> str:
        segments, log = self._segments, self._log
        was = log.epoch, log.end
        end = self.record_end_below(offset)
        directory = segments.new_aside()
        segments.make_aside(directory)  # at once: nobody else may write to it
        if end % self.file_size:
            await self._run_in_thread(lambda: segments.copy_aside(end, directory))
        if (log.epoch, log.end) != was:
            raise DLedgerError(ResponseCode.INCONSISTENT_STATE, reason="the log has changed: try again")
        self._cut_at(end, aside=directory)
        return directory

    def problem_at(self, offset: int, data: bytes | bytearray | None = None) -> str | None:
        """
        Check the record or blank that begins at C{offset}.

        @param data: the bytes from there on, as another broker has them; None: ours.
        @return: why it is not sound; empty for a sound one; None if there are too few bytes to say.
        @raise OSError: reading failed.
        """
        room = self.file_size - offset % self.file_size
        if data is None:
            data = self.read(offset, START_SIZE)
            if len(data) == START_SIZE:
                size = START.unpack(data)[0]
                data = self.read(offset, min(max(size, START_SIZE), room, RECORD_SIZE_MAX))
        return problem_of(data, offset, room, RECORD_SIZE_MAX)

    def record_end_below(self, offset: int) -> int:
        """
        End of the last whole record that ends at or below C{offset}. Records are parsed from the beginning of
        the file of C{offset}.

        @param offset: at least C{begin_offset}.
        @raise ValueError: the offset is lower.
        @raise StoreError: reading failed; the log is broken.
        """
        if offset < self.begin_offset:
            raise ValueError(f"offset {offset} is below the beginning of the log, {self.begin_offset}")
        with self._storing("parsing the commit log"):
            return self._record_end_below(offset)

    def _record_end_below(self, offset: int) -> int:
        if offset >= self._log.walk.end:
            return self._log.walk.end
        walk = self._log.walk.copy()
        at = self._segments.base(offset)
        walk.restart(at)
        while at < offset:
            data = self._segments.pread(min(_READ_BYTES, offset - at), at)
            try:
                walk.feed(data)
            except WireError:  # damage: the records before it count
                return walk.end
            at += len(data)
        return walk.end

    @property
    def second_file(self) -> int | None:
        """Offset at which the second file begins; None if there is only one."""
        return self._segments.offsets[1] if len(self._segments.offsets) > 1 else None

    def measure_room(self, expiry: Expiry, disk: Disk) -> None:
        """Let C{expiry} measure the file systems of store and log. @raise OSError: measuring failed."""
        expiry.measure(disk, self._segments, self._config.store_path_root_dir)

    def wants_to_expire(self, expiry: Expiry, now_s: float, local_hour: int, *, free_to_go: bool) -> bool:
        """Whether the first file should go; see L{Expiry.wants}. @raise OSError: it cannot be examined."""
        return bool(expiry.wants(self._segments, now_s, local_hour, free_to_go=free_to_go))

    def start_after_crash(self, safe_timestamp_ms: int) -> int:
        """See L{dledger.rocketmq.store.log.log_recovery.start_after_crash}."""
        with self._storing("looking for a start"):
            return log_recovery.start_after_crash(self._segments, safe_timestamp_ms)

    def expire_first(self) -> str:
        """
        Delete the first file. The second file must begin at or below L{flushed_record_end}.

        @return: its path.
        @raise OSError: deleting failed, and nothing has changed.
        @raise StoreError: the mark could not be written.
        """
        assert len(self._segments.offsets) > 1, "the last file stays"
        assert self._segments.offsets[1] <= self.flushed_record_end, "the log would begin after its mark"
        path = self._segments.path(self._segments.offsets[0])
        self.flusher.expire(self._segments.offsets[1])
        self._segments.drop_first()
        return path

    # -- flush and end ---------------------------------------------------------------------------

    def flush(self) -> Deferred[int]:
        """
        Bring all bytes appended before the call to stable storage.

        @return: fires with L{flushed_offset}; fails with L{StoreError}: the log is broken, or with
            L{DLedgerError} LEADER_PENDING_FULL: too many callers wait already. Cancelling ends the wait, not
            the flush.
        """
        return self.flusher.flush()

    def idle(self) -> Deferred[None]:
        """@return: fires when no flush is under way; the log may then be closed."""
        return self.flusher.idle()

    def clean_close(self) -> None:
        """
        Bring everything to stable storage, mark the log as closed in order, release the files.

        An incomplete record at the end is cut. No flush may be under way.
        """
        if not self._log.guard.broken:
            self.cut(self._log.end)
            self.flusher.close_clean()
        self.abandon()

    def abandon(self) -> None:
        """Release the files without writing. May be called more than once."""
        self._log.guard.fail("it is closed")
        self._segments.close()
        self.flusher.abandon()


def _clear_left_over(disk: Disk, segments: LogSegments, seen: LogSeen) -> str:
    """Remove files that a crash left behind. @return: the directory for those with bytes; empty: none."""
    kept = tuple(left for left in seen.left_over if segments.holds_bytes(left))
    directory = segments.new_aside() if kept else ""
    if kept:
        segments.move_aside(kept, directory)
    for left in seen.left_over:
        if left not in kept:
            disk.unlink(left)
            segments.sync_directory()
    return directory


def _touch(segments: LogSegments, seen: LogSeen) -> None:
    """
    Bring what a killed process may have left in the cache to stable storage with the next sync: what is after
    the mark; without one, what is after the checkpoint, file by file, for it may be all.
    """
    if seen.mark is not None:
        segments.touch_from(seen.mark.end_offset)
        return
    safe = decode_checkpoint(seen.checkpoint or b"").safe_timestamp
    first = min(log_recovery.start_after_crash(segments, safe), log_recovery.start_after_close(segments))
    for offset in [offset for offset in segments.offsets if offset >= first]:
        segments.touch(offset, offset + 1)
        segments.sync()
    segments.directory_dirty = bool(segments.offsets)


def _settle(log: OpenLog, flusher: LogFlusher, seen: LogSeen) -> str:
    """
    Zero everything after the end; bring everything before it, and the mark, to stable storage.

    @return: the directory that keeps the bytes after the end; empty if they are at most the torn end of a
        crash.
    """
    segments, end = log.segments, log.end
    aside = ""
    with log.guard.storing("recovering the commit log"):
        if seen.mark is not None and end < seen.mark.end_offset:
            flusher.record()  # first: the mark must not record bytes that will be cut
        clean = seen.is_clean and seen.mark is not None and seen.mark.end_offset == end
        if not clean or (segments.offsets and segments.offsets[-1] > end):
            dropped = segments.last_written(end) - end
            is_short = seen.crashed and dropped <= TORN_BYTES_MAX
            if dropped and not (is_short and not log_recovery.record_follows(segments, end, dropped)):
                aside = segments.new_aside()
                segments.make_aside(aside)
                if end % segments.file_size:
                    segments.copy_aside(end, aside)
            segments.cut(end, aside=aside)
        if not clean:  # a killed process may have left names and bytes in the cache only
            _touch(segments, seen)
        segments.sync()
        flusher.record()
    return aside
