# -*- test-case-name: tests.broker.verify.test_store_check -*-
"""
Verification of a broker's store, ours or RocketMQ's, without changing it: each record of the commit log, each
consume queue against it, the index by key, checkpoint, mark, and the files of metadata.

For a store that no broker has open, or a copy: while one writes, its newest messages may be in the log, and
not in their queues, which is reported as C{undispatched}.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import attrs

from dledger.base.disk.disk import Disk
from dledger.base.disk.file_table import BROKER_CHECKPOINT, INDEXED, QUEUE_LIST
from dledger.base.disk.segment import SegmentReader
from dledger.rocketmq.metadata.files import Metadata
from dledger.rocketmq.store.index.index_file import (
    ENTRY,
    HEADER,
    IndexEntry,
    IndexHeader,
    IndexShape,
    header_problem,
)
from dledger.rocketmq.store.index.index_mark import is_whole_mark
from dledger.rocketmq.store.log.log_mark import LOG_MARK_NAME, read_log_mark
from dledger.rocketmq.store.queues.queue_list import decode_queue_list
from dledger.rocketmq.store.records.checkpoint import (
    ABORT_NAME,
    CHECKPOINT_SIZE,
    decode_checkpoint,
)
from dledger.rocketmq.store.records.records import read_record
from dledger.rocketmq.store.records.store_config import StoreConfig
from dledger.rocketmq.verify.log_check import LogWalk, list_log
from dledger.rocketmq.verify.queue_check import QueueCheck
from dledger.rocketmq.verify.report import Progress, StoreReport
from dledger.values.errors import DirectoryError, StoreError
from protocols.wire.errors import BodyError, WireError
from protocols.wire.rocketmq.layout import DELETED_TOPIC
from protocols.wire.rocketmq.message import decode_message

_ENTRIES_AT_ONCE = 65_536
#: No small file of a store is longer; what is longer is not read.
SMALL_BYTES_MAX = 64 * 1024 * 1024


def is_store(disk: Disk, path: str) -> bool:
    """Whether a directory is a broker's, and not a member's."""
    return any(disk.exists(f"{path}/{name}") for name in ("commitlog", "consumequeue", LOG_MARK_NAME))


def verify_store(
    disk: Disk, config: StoreConfig, *, progress: Progress = lambda done, total: None
) -> StoreReport:
    """
    Check everything in a broker's store.

    @param config: paths, sizes of the index, and delay levels; the sizes of other files are as they are.
    """
    root = config.store_path_root_dir
    report = StoreReport(path=root)
    if not disk.exists(config.commit_log_path):
        names = (LOG_MARK_NAME, BROKER_CHECKPOINT.name, "index")
        own = [name for name in names if disk.exists(f"{root}/{name}")]
        if own:
            report.add(config.commit_log_path, f"the commit log is gone, and {' and '.join(own)} are there",
                       "put it back; a slave or the master has a copy")
        else:
            report.log = "raft log"
    report.is_clean_close = not disk.exists(f"{root}/{ABORT_NAME}")
    topics = _check_metadata(disk, config, report)
    _check_mark(disk, root, report)
    _check_own_files(disk, config, report)
    queues = QueueCheck(disk, config.consume_queue_path, report)
    if report.log == "commit log":
        newest_ms = _check_log(disk, config, report, queues, topics, progress)
        _check_checkpoint(disk, root, report, newest_ms)
        _check_index(disk, config, report)
    return report


def _small(disk: Disk, path: str, report: StoreReport) -> bytes | None:
    """The content of a small file; None, with a finding: it cannot be read, or is far too large."""
    try:
        size = disk.file_size(path)
        if size <= SMALL_BYTES_MAX:
            return disk.read_file(path)
        problem = f"it has {size} bytes; at most {SMALL_BYTES_MAX} are read"
    except OSError as error:
        problem = f"it cannot be read: {error.strerror}"
    report.add(path, problem, "give the right to read it, or move it away if it is none of the broker's")
    return None


def _check_metadata(disk: Disk, config: StoreConfig, report: StoreReport) -> Collection[str]:
    """The files of metadata. @return: the names of the topics."""
    metadata, is_readable = Metadata(disk, config.config_path, now_ms=0), True
    for table in metadata.tables:
        path = f"{config.config_path}/{table.file_name}"
        for one, other in ((path, path + ".bak"), (path + ".bak", path)):
            data = _small(disk, one, report) if disk.exists(one) else None
            is_readable = is_readable and (data is not None or not disk.exists(one))
            if data is None:
                continue
            try:
                table.load(data)
            except BodyError as error:
                has_other = disk.exists(other)
                report.add(one, f"it cannot be used: {error}",
                           f"{other} is there, and the next start takes it if it is sound" if has_other else
                           "a slave or the master has a copy; without one, remove it to begin without")
    try:
        if is_readable:
            metadata.load()
    except StoreError:
        return ()
    return metadata.topics.entries


def _check_mark(disk: Disk, root: str, report: StoreReport) -> None:
    path = f"{root}/{LOG_MARK_NAME}"
    if not disk.exists(path) or _small(disk, path, report) is None:
        return
    try:
        mark = read_log_mark(disk, path)
    except DirectoryError as error:
        report.add(path, str(error), "remove it: the next start reads the log to find its end")
        return
    checkpoint = f"{root}/{BROKER_CHECKPOINT.name}"
    content = _small(disk, checkpoint, StoreReport(path=root)) if disk.exists(checkpoint) else None
    if mark is not None and mark[1].fits(content, is_aborted=not report.is_clean_close):
        report.known_end_offset = mark[1].end_offset


def _check_own_files(disk: Disk, config: StoreConfig, report: StoreReport) -> None:
    """Our small files besides, each with a checksum. The next start goes on without an unsound one."""
    for path, is_sound, mend in (
        (f"{config.store_path_root_dir}/{QUEUE_LIST.name}", lambda data: decode_queue_list(data) is not None,
         "remove it: a broker writes it anew, and finds lost queues by it again after the next flush"),
        (f"{config.store_path_root_dir}/{INDEXED.name}", is_whole_mark,
         "remove it: the next start finds from the index itself where it ends"),
    ):
        data = _small(disk, path, report) if disk.exists(path) else None
        if data is not None and not is_sound(data):
            report.add(path, "its checksum is not right: it is damaged, or another program's", mend)


def _check_log(
    disk: Disk, config: StoreConfig, report: StoreReport, queues: QueueCheck, topics: Collection[str],
    progress: Progress,
) -> int:
    """@return: the newest store timestamp of its messages, ms since 1970; 0 without one."""
    files = list_log(disk, config.commit_log_path, report)
    newest_ms = 0
    reader = SegmentReader(disk, config.commit_log_path, handles_max=1)
    reader.show(files.offsets, files.file_size)
    deleted_at = _deletions(queues, reader)
    begins_at = {topic: deleted_at.get(topic, 0) for topic in topics}
    for offset, data in LogWalk(disk, files, report, progress).records():
        record = read_record(data, 0, offset, len(data), config.delay_levels_ms)
        report.messages += 1
        newest_ms = max(newest_ms, record.store_timestamp)
        if record.is_queued:
            queues.message(offset, record, begins_at)
    if report.known_end_offset > report.end_offset:
        report.add(config.commit_log_path, f"the log ends at {report.end_offset}, and its mark says that all "
                   f"before {report.known_end_offset} is on stable storage",
                   "put back the missing files; a slave or the master has a copy")
    try:
        begin, end = report.begin_offset, report.end_offset
        queues.finish(lambda at, size: _read(reader, report, at, size), begin, end)
    finally:
        reader.close()
    return newest_ms


def _deletions(queues: QueueCheck, reader: SegmentReader) -> Mapping[str, int]:
    """Where each topic was deleted last: see L{dledger.rocketmq.store.deleted_topics}."""
    found: dict[str, int] = {}
    for offset, size in queues.places(DELETED_TOPIC, 0):
        try:
            found[decode_message(reader.pread(size, offset)).body.decode()] = offset
        except (OSError, ValueError, WireError):
            continue  # it covers nothing; what is wrong with it is found below
    return found


def _read(reader: SegmentReader, report: StoreReport, at: int, size: int) -> bytes:
    """Bytes of the log, none outside."""
    size = min(size, report.end_offset - at)
    return reader.pread(size, at) if at >= report.begin_offset and size > 0 else b""


def _check_checkpoint(disk: Disk, root: str, report: StoreReport, newest_ms: int) -> None:
    path = f"{root}/{BROKER_CHECKPOINT.name}"
    if not disk.exists(path):
        return
    data = _small(disk, path, report)
    if data is None:
        return
    if len(data) < CHECKPOINT_SIZE:
        report.add(path, f"it has {len(data)} bytes, not {CHECKPOINT_SIZE}",
                   "remove it: the next start reads the whole log")
    checkpoint = decode_checkpoint(data)
    for name in ("physic_msg_timestamp", "logics_msg_timestamp"):
        if newest_ms and getattr(checkpoint, name) > newest_ms:
            report.add(path, f"{name}={getattr(checkpoint, name)} is after the newest message, {newest_ms}",
                       "messages at the end of the log may be missing: compare with a slave or the master")


def _check_index(disk: Disk, config: StoreConfig, report: StoreReport) -> None:
    directory = f"{config.store_path_root_dir}/index"
    shape = IndexShape(config.max_hash_slot_num, config.max_index_num)
    mend = ("with the broker stopped, move it away: messages before are found by their keys no more, unless "
            "the whole directory is moved away, which the next start makes again")
    for name in sorted(disk.listdir(directory)) if disk.exists(directory) else ():
        path = f"{directory}/{name}"
        if not name.isdecimal():
            continue  # the place of the index, and files of another size that were set aside
        try:
            size = disk.file_size(path)
        except OSError as error:
            report.add(path, f"it cannot be read: {error.strerror}", mend)
            continue
        if size != shape.file_size:
            report.add(path, f"it has {size} bytes, and files with these slots and entries {shape.file_size}",
                       "give --index-slots and --index-entries as the broker has them; else " + mend)
            continue
        report.index_files += 1
        problem = _index_problem(disk, path, shape, report)
        if problem:
            report.add(path, problem, mend)


def _index_problem(disk: Disk, path: str, shape: IndexShape, report: StoreReport) -> str:
    """What is wrong with a file of the index; empty: nothing."""
    file = disk.open(path)
    try:
        header = IndexHeader(*HEADER.unpack(file.pread(HEADER.size, 0)))
        problem = header_problem(header, shape)
        if problem:
            return problem
        for first in range(1, header.index_count, _ENTRIES_AT_ONCE):
            count = min(_ENTRIES_AT_ONCE, header.index_count - first)
            data = file.pread(count * ENTRY.size, shape.entry_at(first))
            for number, fields in enumerate(ENTRY.iter_unpack(data), first):
                entry = IndexEntry(*fields)
                if not 0 <= entry.previous < number:
                    return f"the entry {number} names {entry.previous} as the one before it"
                if not 0 <= entry.offset < max(report.end_offset, 1) or entry.key_hash < 0:
                    return (f"the entry {number} points to {entry.offset}, and the log ends at "
                            f"{report.end_offset}")
            report.index_entries += count
    finally:
        file.close()
    return ""


def store_document(report: StoreReport) -> Mapping[str, object]:
    """The report for programs."""
    return {**attrs.asdict(report), "is_clean": report.is_clean}
