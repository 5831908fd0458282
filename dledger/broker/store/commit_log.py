# -*- test-case-name: tests.broker.store.test_commit_log -*-
"""
RocketMQ's commit log: one stream of message records in files of equal size.

A master appends messages, each with its queue offset, its place in the log and a timestamp. A slave appends
the master's bytes as they come, cut anywhere but at the end of a file; where records end is followed byte
by byte, and bytes that cannot be records are refused before they are written.

Rule 1: a write is laid out and checked before a file is touched; a refusal has changed nothing.
Rule 2: a record does not cross the end of a file; a blank of at least 8 bytes does what is left.
Rule 3: a cut lowers the mark durably, and zeroes what it cuts durably, before anything is written there.

Flushes and the mark stand in L{dledger.broker.store.log_flush}, the start in
L{dledger.broker.store.log_recovery}. Knows nothing of consume queues beyond the offsets it gives out in
them, and nothing of replication.

Source: CommitLog.java, MappedFileQueue.java (4.9.8, 5.3.3); differs: no bytes are left behind the end.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from typing import NamedTuple
from zlib import crc32

import attrs

from dledger.base.disk.disk import Disk
from dledger.base.disk.expiry import Expiry
from dledger.base.disk.segment import SegmentList, file_name
from dledger.base.errors import DirectoryError, DLedgerError, StoreError
from dledger.base.threads import RunInThread
from dledger.broker.store import log_recovery
from dledger.broker.store.checkpoint import decode_checkpoint
from dledger.broker.store.log_flush import LogFlush
from dledger.broker.store.log_mark import LOG_MARK_NAME, LogMark, LogMarkFile, read_log_mark
from dledger.broker.store.plain_records import Placed, PlainMessage, lay_out
from dledger.broker.store.records import MIN_BLANK_SIZE, NewMessage, blank, pack, size_of
from dledger.broker.store.store_config import StoreConfig
from protocols.wire.errors import WireError
from protocols.wire.ledger.codes import ResponseCode

_READ_BYTES = 1024 * 1024
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class Appended(NamedTuple):
    """
    Where a message stands.

    @ivar offset: of its record in the log.
    @ivar size: of its record, bytes.
    @ivar queue_offset: in its consume queue; 0 if it has no place there.
    @ivar store_timestamp: ms since 1970.
    """

    offset: int
    size: int
    queue_offset: int
    store_timestamp: int


@attrs.frozen(kw_only=True)
class LogSeen:
    """
    What a start found; nothing has been changed yet.

    @ivar mark: what is recorded of the log, if that can be trusted.
    @ivar crashed: the last run did not end in order.
    @ivar left_over: paths of files that a crash left behind.
    """

    mark: LogMark | None
    crashed: bool
    offsets: tuple[int, ...]
    left_over: tuple[str, ...]
    checkpoint: bytes | None

    @property
    def is_clean(self) -> bool:
        """Whether nothing can have been written since the mark was."""
        return self.mark is not None and self.mark.clean and not self.crashed


class _LogSegments(SegmentList):
    """The files of the log, and their descriptors."""

    def descriptor(self, position: int) -> int | None:
        """Descriptor of the file that holds C{position}; None where files have none."""
        fileno = getattr(self._file(self.base(position)), "fileno", None)
        return None if fileno is None else int(fileno())


def look(config: StoreConfig, disk: Disk, *, checkpoint: bytes | None, is_aborted: bool) -> LogSeen:
    """
    Read what is there, change nothing.

    @raise DirectoryError: it must not be opened as it is.
    """
    path = f"{config.store_path_root_dir}/{LOG_MARK_NAME}"
    found = read_log_mark(disk, path)
    mark = found[1] if found is not None else None
    size = config.mapped_file_size_commit_log
    if mark is not None and mark.log_file_size != size:
        raise DirectoryError(
            f"{config.commit_log_path} was made with {log_recovery.OPTION}={mark.log_file_size}, now it is "
            f"{size}: start with {mark.log_file_size}; a master and its slaves must have the same"
        )
    queue_size = config.mapped_file_size_consume_queue
    if mark is not None and mark.queue_file_size != queue_size:
        raise DirectoryError(
            f"{config.consume_queue_path} was made with "
            f"mapped_file_size_consume_queue={mark.queue_file_size}, now it is {queue_size}: start with "
            f"{mark.queue_file_size}"
        )
    if mark is not None and not mark.fits(checkpoint, is_aborted=is_aborted):
        mark = None  # RocketMQ has had the store open since
    offsets, left_over = log_recovery.look(
        disk, config.commit_log_path, size, None if mark is None else mark.end_offset
    )
    return LogSeen(mark=mark, crashed=is_aborted, offsets=offsets, left_over=left_over, checkpoint=checkpoint)


class CommitLog(LogFlush):
    """
    Invariant: C{begin_offset <= flushed_offset <= end_offset}, and C{begin_offset} is a multiple of
    C{file_size}; the log is empty when C{begin_offset == end_offset}.

    @ivar queue_offsets: topic and queue to the offset of its next message; whoever has read the consume
        queues fills it before the first append.
    @ivar on_cut: called with the new end when the log was cut.
    @ivar on_grown: called when there are new bytes.
    @ivar why_recovered: what a start found behind the end; empty if nothing.
    """

    _segments: _LogSegments

    def __init__(
        self, config: StoreConfig, segments: SegmentList, mark_file: LogMarkFile, mark: LogMark, end: int,
        run_in_thread: RunInThread,
    ) -> None:
        super().__init__(segments, mark_file, mark, end, run_in_thread)
        self._config = config
        self._empty_at = end
        self.queue_offsets: dict[tuple[str, int], int] = {}
        self.on_cut: Callable[[int], None] = _ignore
        self.on_grown: Callable[[], None] = lambda: None
        self.why_recovered = ""

    @classmethod
    def open(
        cls, config: StoreConfig, disk: Disk, seen: LogSeen, *, is_slave: bool, run_in_thread: RunInThread
    ) -> CommitLog:
        """
        Find the end, bring what stands before it to stable storage, and zero what stands behind.

        @param seen: of the directory as it is now.
        @param is_slave: damage that no crash explains is cut, not refused: a master has the records.
        @raise DirectoryError: files that the mark records are gone; nothing was touched.
        @raise StoreError: reading or writing failed; another start may try again.
        """
        size = config.mapped_file_size_commit_log
        segments = _LogSegments(disk, config.commit_log_path, size, seen.offsets)
        path = f"{config.store_path_root_dir}/{LOG_MARK_NAME}"
        initial = LogMark(log_file_size=size, queue_file_size=config.mapped_file_size_consume_queue)
        try:
            end = _find_end(segments, seen, is_slave=is_slave)
            for left in seen.left_over:
                disk.unlink(left)
                disk.sync_directory(config.commit_log_path)
            mark_file, _ = LogMarkFile.open(disk, path, initial)
        except OSError as error:
            segments.close()
            raise StoreError(f"{config.commit_log_path} cannot be read: {error}") from error
        except BaseException:
            segments.close()
            raise
        dispatched = min(seen.mark.dispatched_offset, end.offset) if seen.mark is not None else -1
        crc = -1 if seen.checkpoint is None else crc32(seen.checkpoint)
        mark = attrs.evolve(initial, end_offset=end.offset, dispatched_offset=dispatched,
                            checkpoint_crc=crc, previous_checkpoint_crc=crc)
        try:
            log = cls(config, segments, mark_file, mark, end.offset, run_in_thread)
            log.why_recovered = end.why
            log._settle(seen)
        except BaseException:
            segments.close()
            mark_file.close()
            raise
        return log

    def _settle(self, seen: LogSeen) -> None:
        """Zero what is behind the end; bring what is before it, and the mark, to stable storage."""
        segments, mark, end = self._segments, self._mark, self._end
        with self._storing("recovering the commit log"):
            if seen.mark is not None and end < seen.mark.end_offset:
                self._mark_file.write_durably(mark)  # first of all, nobody may count on what is cut
            clean = seen.is_clean and seen.mark is not None and seen.mark.end_offset == end
            if not clean or (segments.offsets and segments.offsets[-1] > end):
                segments.cut(end)
            if not clean:  # a killed process has left names and bytes in the cache only
                late = log_recovery.start_after_close(segments)
                segments.touch_from(seen.mark.end_offset if seen.mark is not None else late)
            segments.sync()
            self._mark_file.write_durably(mark)

    # -- reading ---------------------------------------------------------------------------------

    @property
    def file_size(self) -> int:
        """Bytes of every file of the log."""
        return self._segments.file_size

    @property
    def begin_offset(self) -> int:
        """The lowest offset that is held; 0 for a log that never had a file."""
        return self._segments.offsets[0] if self._segments.offsets else self._empty_at

    def read(self, offset: int, size: int) -> bytes:
        """
        Up to C{size} bytes from C{offset} on, none of them beyond the file that holds C{offset}, none
        beyond C{end_offset}; never fewer than these limits allow.

        @param offset: C{begin_offset} to C{end_offset}.
        @raise ValueError: another offset.
        @raise OSError: it cannot be read.
        """
        if not self.begin_offset <= offset <= self._end:
            raise ValueError(f"offset {offset} outside {self.begin_offset}..{self._end}")
        size = min(size, self._end - offset)
        if size <= 0:
            return b""
        data = self._segments.pread(size, offset)
        wanted = min(size, self.file_size - offset % self.file_size)
        if len(data) != wanted:
            raise OSError(f"{self._segments.path(self._segments.base(offset))} is shorter than it was")
        return data

    def file_at(self, offset: int) -> tuple[int, int] | None:
        """
        Where C{offset} stands on the file system, for C{sendfile}: an open file descriptor, valid until
        the call returns to the reactor, and the position in it. None where there is no such thing.
        """
        if not self._segments.has(self._segments.base(offset)):
            return None
        descriptor = self._segments.descriptor(offset)
        return None if descriptor is None else (descriptor, offset % self.file_size)

    # -- appending -------------------------------------------------------------------------------

    def check(self, messages: Sequence[NewMessage]) -> int:
        """
        That these messages can be stored, one behind the other in one file.

        @return: bytes of their records.
        @raise ValueError: they cannot; the message says why.
        """
        total = 0
        for message in messages:
            if len(message.body) > self._config.max_message_size:
                raise ValueError(f"body of {len(message.body)} bytes; max_message_size="
                                 f"{self._config.max_message_size}")  # fmt: skip
            if b"\0" in message.properties_data or "\0" in message.topic:
                # What a crash leaves of a record looks like this; see dledger.broker.store.log_recovery.
                raise ValueError("a zero byte in the topic or properties")
            total += size_of(message)
        if total + MIN_BLANK_SIZE > self.file_size:
            raise ValueError(f"records of {total} bytes do not fit into a file of {self.file_size}")
        return total

    def append(self, batches: Sequence[Sequence[NewMessage]], now_ms: int) -> list[tuple[Appended, ...]]:
        """
        Store messages, in one write for each file.

        @param batches: messages that stand in one file together; a single message is a batch of one. Each was
            found sound by L{check}.
        @param now_ms: their store timestamp, ms since 1970.
        @return: where they stand; visible to readers now, on stable storage after L{flush}.
        @raise DLedgerError: DISK_FULL, and nothing has changed.
        @raise StoreError: a write failed; the log is broken.
        """
        assert self._walk.end == self._end, "the log ends in the middle of a record: cut it first"
        size = self.file_size
        end = self._end
        taken: dict[tuple[str, int], int] = {}
        writes: list[tuple[int, bytes]] = []
        parts: list[bytes] = []
        start = end
        results = []
        for messages in batches:
            sizes = [size_of(message) for message in messages]
            room = size - end % size
            if sum(sizes) + MIN_BLANK_SIZE > room:
                parts.append(blank(room))
                writes.append((start, b"".join(parts)))
                end += room
                start, parts = end, []
            result = []
            for message, length in zip(messages, sizes, strict=True):
                queue_offset = self._next_queue_offset(message, taken)
                parts.append(pack(message, length, queue_offset=queue_offset, offset=end, now_ms=now_ms))
                result.append(Appended(end, length, queue_offset, now_ms))
                end += length
            results.append(tuple(result))
        writes.append((start, b"".join(parts)))
        self._write(writes, end)
        self.queue_offsets.update(taken)
        return results

    def append_plain(self, messages: Sequence[PlainMessage], now_ms: int) -> Placed:
        """
        As L{append}, of messages that need not stand in one file together.

        @param messages: at least one.
        """
        assert self._walk.end == self._end, "the log ends in the middle of a record: cut it first"
        writes, taken, placed = lay_out(
            messages, end=self._end, file_size=self.file_size, now_ms=now_ms, queue_offsets=self.queue_offsets
        )
        self._write(writes, placed.end)
        self.queue_offsets.update(taken)
        return placed

    def _next_queue_offset(self, message: NewMessage, taken: dict[tuple[str, int], int]) -> int:
        if not message.is_queued:
            return 0
        key = (message.topic, message.queue_id)
        offset = taken.get(key)
        if offset is None:
            offset = self.queue_offsets.get(key, 0)
        taken[key] = offset + 1
        return offset

    def _write(self, writes: list[tuple[int, bytes]], end: int) -> None:
        segments = self._segments
        made = 0
        with self._storing("appending to the commit log"):
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
        self._end = end
        self._walk.restart(end)
        self.on_grown()

    def append_raw(self, offset: int, data: bytes | memoryview) -> None:
        """
        Write bytes that came from a master, as they are. They need not end where a record ends.

        @param offset: C{end_offset}; in an empty log, the beginning of any file: the log begins there then.
        @param data: at least one byte, none beyond the file of C{offset}.
        @raise ValueError: not such an offset, or too many bytes; nothing has changed.
        @raise WireError: these are no records; nothing has changed.
        @raise OSError: there is no room for another file; nothing has changed.
        @raise StoreError: the write failed; the log is broken.
        """
        segments, size = self._segments, self.file_size
        is_empty = self.begin_offset == self._end
        if offset != self._end and not (is_empty and offset >= 0 and offset % size == 0):
            raise ValueError(f"offset {offset}: {self._end} is needed"
                             + (f", or a multiple of {size}" if is_empty else ""))  # fmt: skip
        if not 0 < len(data) <= size - offset % size:
            raise ValueError(f"{len(data)} bytes at {offset}: 1 to {size - offset % size} are allowed")
        if self._broken:
            raise StoreError(f"the commit log has failed before: {self._broken}")
        walk = self._walk.copy()
        if offset != self._end:
            walk.restart(offset)
        walk.feed(data)
        if offset != self._end:
            self._begin_at(offset)
        if not segments.has(segments.base(offset)):
            segments.create(segments.base(offset))
        with self._storing("appending to the commit log"):
            self._secure_first()
            segments.pwrite(data, offset)
        self._end = offset + len(data)
        self._walk = walk
        self.on_grown()

    def _secure_first(self) -> None:
        """
        The first file of a log is on stable storage before anything is written to it. A power cut could take
        it and leave later ones, and a log that has never been flushed could not be told from one whose
        beginning was lost.
        """
        segments = self._segments
        if len(segments.offsets) == 1 and segments.directory_dirty and self._end == segments.offsets[0]:
            segments.sync()

    def _begin_at(self, offset: int) -> None:
        """An empty log begins elsewhere."""
        with self._storing("beginning a commit log"):
            while self._segments.offsets:
                self._segments.drop_last()
        self._epoch += 1
        self._empty_at = self._end = self._flushed = self._flushed_record_end = offset
        self._mark = attrs.evolve(self._mark, dispatched_offset=offset)
        self._write_mark(durably=True)
        self.on_cut(offset)

    # -- cutting ---------------------------------------------------------------------------------

    def cut(self, offset: int) -> int:
        """
        Let the log end where the last record that ends at or below C{offset} ends. What stood behind is
        zero afterwards, files behind are gone, and that is durable on return. Nothing happens to a log that
        ends there already. Records are found from the beginning of the file of C{offset}, so the cost is
        at most one file.

        @param offset: at least C{begin_offset}.
        @return: the new C{end_offset}.
        @raise ValueError: another offset.
        @raise StoreError: reading or writing failed; the log is broken.
        """
        if offset < self.begin_offset:
            raise ValueError(f"offset {offset} is below the beginning of the log, {self.begin_offset}")
        with self._storing("cutting the commit log"):
            end = self._record_end_below(offset)
            if end == self._end:
                return end
            written_end = self._end
            self._epoch += 1
            self._end = end
            self._flushed = min(self._flushed, end)
            self._flushed_record_end = min(self._flushed_record_end, end)
            self._mark = attrs.evolve(self._mark, dispatched_offset=min(self._mark.dispatched_offset, end))
            self._write_mark(durably=True)
            segments = self._segments
            same_file = segments.base(written_end) == segments.base(end)
            segments.cut(end, written_end if same_file else None)
            segments.sync()
            self._walk.restart(end)
            self._flushed = self._flushed_record_end = end
            self._write_mark(durably=True)
        self.on_cut(end)
        return end

    def _record_end_below(self, offset: int) -> int:
        """End of the last whole record that ends at or below C{offset}."""
        if offset >= self._walk.end:
            return self._walk.end
        walk = self._walk.copy()
        at = self._segments.base(offset)
        walk.restart(at)
        while at < offset:
            data = self._segments.pread(min(_READ_BYTES, offset - at), at)
            try:
                walk.feed(data)
            except WireError:  # damage: everything before it stands
                return walk.end
            at += len(data)
        return walk.end

    @property
    def second_file(self) -> int | None:
        """Where the second file begins; None if there is only one."""
        return self._segments.offsets[1] if len(self._segments.offsets) > 1 else None

    def look_at_room(self, expiry: Expiry, disk: Disk) -> None:
        """Let C{expiry} measure the file systems of the store and the log. @raise OSError: it failed."""
        expiry.look(disk, self._segments, self._config.store_path_root_dir)

    def wants_to_expire(self, expiry: Expiry, now_s: float, local_hour: int, *, free_to_go: bool) -> bool:
        """Whether the first file should go; see L{Expiry.wants}. @raise OSError: it cannot be looked at."""
        return expiry.wants(self._segments, now_s, local_hour, free_to_go=free_to_go)

    def start_after_crash(self, safe_timestamp_ms: int) -> int:
        """See L{dledger.broker.store.log_recovery.start_after_crash}."""
        with self._storing("looking for a start"):
            return log_recovery.start_after_crash(self._segments, safe_timestamp_ms)

    def expire_first(self) -> str:
        """
        Delete the first file; what stands behind it is on stable storage.

        @return: its path.
        @raise StoreError: it failed.
        """
        assert len(self._segments.offsets) > 1, "the last file stays"
        assert self._segments.offsets[1] <= self._flushed_record_end, "the log would begin behind its mark"
        path = self._segments.path(self._segments.offsets[0])
        self._write_mark(durably=True)
        with self._storing("deleting an old file"):
            self._segments.drop_first()
        return path

    # -- end -------------------------------------------------------------------------------------

    def clean_close(self) -> None:
        """
        Bring everything to stable storage, mark the log as closed in order, release the files.

        A record that is not whole is cut. No flush may be under way.
        """
        assert self._job is None, "a flush is under way"
        if not self._broken:
            self.cut(self._end)
            self.sync()
            self._write_mark(durably=True, clean=True)
        self.abandon()

    def abandon(self) -> None:
        """Release the files without writing. More than once is harmless."""
        self._broken = self._broken or "it is closed"
        self._segments.close()
        if self._job is None:
            self._mark_file.close()


def _ignore(_: int) -> None:
    pass


def _find_end(segments: SegmentList, seen: LogSeen, *, is_slave: bool) -> log_recovery.LogEnd:
    mark = seen.mark
    if mark is None:
        log_recovery.check_first(segments)
        if seen.crashed:
            safe = decode_checkpoint(seen.checkpoint or b"").safe_timestamp
            start = log_recovery.start_after_crash(segments, safe)
        else:
            start = log_recovery.start_after_close(segments)
        found = log_recovery.find_end(segments, start, crashed=seen.crashed, is_strict=is_slave)
        if not (is_slave or seen.crashed):
            log_recovery.check_nothing_follows(segments, found)
        return found
    held = segments.offsets[-1] + segments.file_size if segments.offsets else 0
    if held < mark.end_offset or (segments.offsets and segments.offsets[0] > mark.end_offset):
        if not is_slave:
            last = segments.path(segments.base(max(mark.end_offset - 1, 0)))
            raise DirectoryError(
                f"{last} is gone: records up to {mark.end_offset} were on stable storage. Put the files "
                f"back, or restore the store from a slave; or remove {LOG_MARK_NAME} to open what is left"
            )
        start = log_recovery.start_after_close(segments)
        found = log_recovery.find_end(segments, start, crashed=True, is_strict=True)
        gone = f"files up to {mark.end_offset} are gone, of {file_name(mark.end_offset)}"
        return log_recovery.LogEnd(offset=found.offset, why=gone)
    if seen.is_clean:
        return log_recovery.LogEnd(offset=mark.end_offset)
    return log_recovery.find_end(segments, mark.end_offset, crashed=True, is_strict=True)
