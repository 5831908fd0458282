# -*- test-case-name: tests.broker.store.test_log_recovery -*-
"""
Inspects a commit log before it is opened: its files, whether its mark can be trusted, and where it ends.

Rule: nothing here changes a file. L{dledger.rocketmq.store.log.log_recovery} has the rules for the
end.

Source: CommitLog.load, recoverNormally, recoverAbnormally (4.9.8, 5.3.3).
"""

from __future__ import annotations

import attrs

from dledger.base.disk.disk import Disk
from dledger.base.disk.segment import SegmentList, file_name
from dledger.rocketmq.store.log.log_mark import LOG_MARK_NAME, LogMark, read_log_mark
from dledger.rocketmq.store.log.log_recovery import (
    OPTION,
    LogEnd,
    check_damage,
    check_first,
    check_nothing_follows,
    find_end,
    list_log_files,
    start_after_close,
    start_after_crash,
)
from dledger.rocketmq.store.log.mark_fit import contradiction
from dledger.rocketmq.store.records.checkpoint import decode_checkpoint
from dledger.rocketmq.store.records.store_config import StoreConfig
from dledger.values.errors import DirectoryError

#: For people: how a store is opened with a commit log that was put there.
_WAY_OUT = (
    "If the commit log is the right one (copied from another broker, or from a backup), move "
    f"{LOG_MARK_NAME}, checkpoint, consumequeue and index away: the start makes them again from the log. If "
    "it is older than what this broker has stored, restore the store from the other broker"
)


@attrs.frozen(kw_only=True)
class LogSeen:
    """
    The state of a log at a start, before any change.

    @ivar mark: the log mark, if it can be trusted; else None.
    @ivar stored_end: the end that our newest mark records, trusted or not; 0 without one.
    @ivar crashed: the last run did not end in order.
    @ivar offsets: offsets of the log's files.
    @ivar left_over: paths of files that a crash left behind.
    """

    mark: LogMark | None
    stored_end: int
    crashed: bool
    offsets: tuple[int, ...]
    left_over: tuple[str, ...]
    checkpoint: bytes | None

    @property
    def is_clean(self) -> bool:
        """Whether no file can have changed since the mark was written."""
        return self.mark is not None and self.mark.clean and not self.crashed


def inspect_log(config: StoreConfig, disk: Disk, *, checkpoint: bytes | None, is_aborted: bool) -> LogSeen:
    """
    Read mark and directory of a log; change nothing.

    @raise DirectoryError: mark, options or files do not fit together; the text says what to do.
    """
    path = f"{config.store_path_root_dir}/{LOG_MARK_NAME}"
    found = read_log_mark(disk, path)
    mark = found[1] if found is not None else None
    size = config.mapped_file_size_commit_log
    if mark is not None and mark.log_file_size != size:
        raise DirectoryError(
            f"{config.commit_log_path} was made with {OPTION}={mark.log_file_size}, now it is "
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
        mark = None  # another program has opened the store since
    offsets, left_over = list_log_files(
        disk, config.commit_log_path, size, None if mark is None else mark.end_offset
    )
    return LogSeen(
        mark=mark, stored_end=0 if found is None else found[1].end_offset, crashed=is_aborted,
        offsets=offsets, left_over=left_over, checkpoint=checkpoint,
    )


def find_log_end(segments: SegmentList, seen: LogSeen, *, is_slave: bool) -> LogEnd:
    """
    Find the end of the log.

    @param seen: the current state of the directory.
    @param is_slave: cut damage that no crash explains instead of refusing it: a master has the records.
    @raise DirectoryError: files or records that the mark records are gone, or damaged.
    @raise OSError: reading failed.
    """
    mark = seen.mark
    if mark is None:
        check_first(segments)
        if seen.crashed:
            safe = decode_checkpoint(seen.checkpoint or b"").safe_timestamp
            start = start_after_crash(segments, safe)
        else:
            start = start_after_close(segments)
        found = find_end(segments, start, crashed=seen.crashed, is_strict=is_slave)
        if not (is_slave or seen.crashed):
            check_nothing_follows(segments, found)
        if not is_slave:
            check_damage(segments, found, seen.stored_end)
        return found
    if segments.offsets and 0 <= mark.begin_offset < segments.offsets[0]:
        first = segments.path(mark.begin_offset)
        raise DirectoryError(
            f"{first} is gone: the log begins there, and no expiry has deleted it. Put the files before "
            f"{segments.path(segments.offsets[0])} back, or restore the store from the other broker; or "
            f"remove {LOG_MARK_NAME} to go on without the messages in them"
        )
    held = segments.offsets[-1] + segments.file_size if segments.offsets else 0
    if held < mark.end_offset or (segments.offsets and segments.offsets[0] > mark.end_offset):
        if not is_slave:
            last = segments.path(segments.base(max(mark.end_offset - 1, 0)))
            raise DirectoryError(
                f"{last} is gone: records up to {mark.end_offset} were on stable storage. Put the files "
                f"back, or restore the store from a slave; or remove {LOG_MARK_NAME} to open the rest"
            )
        start = start_after_close(segments)
        found = find_end(segments, start, crashed=True, is_strict=True)
        gone = f"files up to {mark.end_offset} are gone, of {file_name(mark.end_offset)}"
        return LogEnd(offset=found.offset, why=gone)
    misfit = contradiction(segments, mark.end_offset, is_clean=seen.is_clean)
    if misfit:
        raise DirectoryError(
            f"{LOG_MARK_NAME} says that the log ends at {mark.end_offset}, but {misfit}: it is the mark of "
            f"another log. {_WAY_OUT}"
        )
    if seen.is_clean:
        return LogEnd(offset=mark.end_offset)
    return find_end(segments, mark.end_offset, crashed=True, is_strict=True)
