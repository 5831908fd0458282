# -*- test-case-name: tests.broker.verify.test_store_check -*-
"""
Verification of a broker's store, ours or RocketMQ's, without changing it: each record of the commit log, each
consume queue against it, the index by key, checkpoint, mark, and the files of metadata.

For a store that no broker has open, or a copy: while one writes, its newest messages may be in the log, and
not in their queues, which is reported as C{undispatched}.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

import attrs

from dledger.base.disk.disk import Disk
from dledger.base.disk.file_table import (
    BROKER_CHECKPOINT,
    DISPATCHED,
    INDEXED,
    QUEUE_LIST,
    TABLES_APPLIED,
)
from dledger.base.disk.hints import HintFile, Hints
from dledger.base.disk.segment import SegmentReader
from dledger.rocketmq.metadata.changed_options import ChangedOptions
from dledger.rocketmq.metadata.offsets import ConsumerOffsets, DelayOffsets
from dledger.rocketmq.metadata.order_info import OrderInfos
from dledger.rocketmq.metadata.tables import FileTable, Groups, RequestModes, Topics
from dledger.rocketmq.metadata.tables_mark import place_of_tables
from dledger.rocketmq.store.index.index_file import (
    ENTRY,
    HEADER,
    IndexEntry,
    IndexHeader,
    IndexShape,
    header_problem,
)
from dledger.rocketmq.store.index.index_mark import is_whole_mark
from dledger.rocketmq.store.log.log_mark import LOG_MARK_NAME, log_mark_damage, read_log_mark
from dledger.rocketmq.store.queues.queue_list import decode_queue_list
from dledger.rocketmq.store.queues.unit_check import ReadLog
from dledger.rocketmq.store.records.checkpoint import (
    ABORT_NAME,
    CHECKPOINT_SIZE,
    decode_checkpoint,
)
from dledger.rocketmq.store.records.key_hash import hash_of_key
from dledger.rocketmq.store.records.records import read_record
from dledger.rocketmq.store.records.store_config import StoreConfig
from dledger.rocketmq.verify.log_check import LogFiles, LogWalk, list_log
from dledger.rocketmq.verify.queue_check import QueueCheck
from dledger.rocketmq.verify.report import Progress, StoreReport
from dledger.values.errors import DirectoryError
from protocols.wire.checksums import crc32
from protocols.wire.errors import BodyError, WireError
from protocols.wire.rocketmq.layout import DELETED_TOPIC
from protocols.wire.rocketmq.message import Message, decode_message

_ENTRIES_AT_ONCE = 65_536
#: Wrong entries of a file that are remembered until it is known whether the log was cut after them.
_DOUBTS_MAX = 64
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
    if _is_raft_store(disk, root):
        report.log = "raft log"
    elif not disk.exists(config.commit_log_path):
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
        _check_index(disk, config, report, config.commit_log_path)
    elif (path := _raft_log_of(disk, config)) and (files := list_log(disk, path, report)).offsets:
        # (dledger verify reads the log itself in the directory of its member.)
        report.begin_offset = files.offsets[0]
        report.end_offset = files.offsets[-1] + files.file_size
        with _reading(disk, path, files, report) as read:
            queues.compare(read, report.begin_offset, report.end_offset, config.delay_levels_ms)
        listed = HintFile(Hints(disk), QUEUE_LIST, root).read(decode_queue_list) or {}
        queues.compare_ends(listed if report.is_clean_close else {})
        _check_index(disk, config, report, path)
    return report


def _is_raft_store(disk: Disk, root: str) -> bool:
    return disk.exists(f"{root}/{DISPATCHED.name}") or bool(_members_in(disk, root))


def _members_in(disk: Disk, root: str) -> list[str]:
    """The logs of members in the directory of a store."""
    paths = [f"{root}/{name}/data" for name in disk.listdir(root) if name.startswith("dledger-")]
    return [path for path in paths if disk.exists(path)]


def _raft_log_of(disk: Disk, config: StoreConfig) -> str:
    """The directory of a raft log's data files; empty if it is not known."""
    if config.store_path_commit_log:
        return config.store_path_commit_log
    found = _members_in(disk, config.store_path_root_dir)
    return found[0] if len(found) == 1 else ""


@contextmanager
def _reading(disk: Disk, path: str, files: LogFiles, report: StoreReport) -> Iterator[ReadLog]:
    """Reads bytes of a log; none outside of it."""
    reader = SegmentReader(disk, path, handles_max=1)
    reader.show(files.offsets, files.file_size)
    try:
        yield lambda at, size: _read(reader, report, at, size)
    finally:
        reader.close()


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


def checked_tables() -> tuple[FileTable, ...]:
    """A table of each kind, the topics first."""
    return (Topics(0), Groups(0), ConsumerOffsets(0), DelayOffsets(0), RequestModes(), ChangedOptions(),
            OrderInfos())


def _check_metadata(disk: Disk, config: StoreConfig, report: StoreReport) -> Collection[str]:
    """The files of metadata. @return: the names of the topics."""
    tables = checked_tables()
    for table in tables:
        path = f"{config.config_path}/{table.file_name}"
        for one, other in ((path + ".bak", path), (path, path + ".bak")):  # what is loaded last, counts
            data = _small(disk, one, report) if disk.exists(one) else None
            if data is None:
                continue
            try:
                table.load(data)
            except BodyError as error:
                has_other = disk.exists(other)
                report.add(one, f"it cannot be used: {error}",
                           f"{other} is there, and the next start takes it if it is sound" if has_other else
                           "a slave or the master has a copy; without one, remove it to begin without")
    topics = tables[0]
    assert isinstance(topics, Topics)
    return topics.entries


def _check_mark(disk: Disk, root: str, report: StoreReport) -> None:
    path = f"{root}/{LOG_MARK_NAME}"
    data = _small(disk, path, report) if disk.exists(path) else None
    if data is None:
        return
    if damage := log_mark_damage(data):
        report.add(path, damage, "remove it if neither slot is sound: the next start reads the log to find "
                   "its end; else the next write mends it")
    try:
        mark = read_log_mark(disk, path)
    except DirectoryError:
        return
    checkpoint = f"{root}/{BROKER_CHECKPOINT.name}"
    content = _small(disk, checkpoint, StoreReport(path=root)) if disk.exists(checkpoint) else None
    if mark is not None and mark[1].fits(content, is_aborted=not report.is_clean_close):
        report.known_end_offset = mark[1].end_offset
    elif mark is not None and not damage:
        report.add(checkpoint, f"it is not the one that {LOG_MARK_NAME} knows: it is damaged or gone, or "
                   "RocketMQ has used the store since",
                   "nothing: the next start finds the end by parsing the log")


def _check_own_files(disk: Disk, config: StoreConfig, report: StoreReport) -> None:
    """Our small files besides, each with a checksum. The next start goes on without an unsound one."""
    for path, is_sound, mend in (
        (f"{config.store_path_root_dir}/{QUEUE_LIST.name}", lambda data: decode_queue_list(data) is not None,
         "remove it: a broker writes it anew, and finds lost queues by it again after the next flush"),
        (f"{config.store_path_root_dir}/{INDEXED.name}", is_whole_mark,
         "remove it: the next start finds from the index itself where it ends"),
        (f"{config.store_path_root_dir}/{DISPATCHED.name}", _ends_in_checksum,
         "remove it: the next start builds all queues again"),
        (f"{config.config_path}/{TABLES_APPLIED.name}", _ends_in_checksum,
         "remove it: the next start reads all metadata in the log again"),
    ):
        data = _small(disk, path, report) if disk.exists(path) else None
        if data is not None and not is_sound(data):
            report.add(path, "its checksum is not right: it is damaged, or another program's", mend)
    if disk.exists(f"{config.config_path}/{TABLES_APPLIED.name}"):
        found = place_of_tables(Hints(disk), config.config_path)
        if isinstance(found, str) and not report.findings_count:
            report.add(config.config_path, found,
                       "nothing: the next start reads all metadata in the log again")


def _ends_in_checksum(data: bytes) -> bool:
    return len(data) > 4 and int.from_bytes(data[-4:], "big") == crc32(data[:-4])


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


def _check_index(disk: Disk, config: StoreConfig, report: StoreReport, log_path: str) -> None:
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
        with _reading(disk, log_path, list_log(disk, log_path, StoreReport(path=path)), report) as read:
            problem = _index_problem(disk, path, shape, report, read)
        if problem:
            report.add(path, problem, mend)


def _index_problem(
    disk: Disk, path: str, shape: IndexShape, report: StoreReport, read: ReadLog
) -> str:
    """What is wrong with a file of the index; empty: nothing."""
    file = disk.open(path)
    newest, taken = array("i", bytes(4 * shape.slots)), 0
    try:
        header = IndexHeader(*HEADER.unpack(file.pread(HEADER.size, 0)))
        problem = header_problem(header, shape)
        if problem:
            return problem
        entry, doubts = IndexEntry(0, header.end_offset, 0, 0), _Doubts(header, read)
        for first in range(1, header.index_count, _ENTRIES_AT_ONCE):
            count = min(_ENTRIES_AT_ONCE, header.index_count - first)
            data = file.pread(count * ENTRY.size, shape.entry_at(first))
            for number, fields in enumerate(ENTRY.iter_unpack(data), first):
                entry = IndexEntry(*fields)
                if entry.key_hash < 0 or entry.previous != newest[entry.key_hash % shape.slots]:
                    return f"the entry {number} names {entry.previous} as the one before it"
                if not 0 <= entry.offset < max(report.end_offset, 1):
                    return (f"the entry {number} points to {entry.offset}, and the log ends at "
                            f"{report.end_offset}")
                if number == 1 and entry.offset != header.begin_offset:
                    return f"its header begins at {header.begin_offset}, not at its first entry"
                if entry.offset >= report.begin_offset and not report.is_lost(entry.offset):
                    doubts.look(number, entry)
                taken += not entry.previous
                newest[entry.key_hash % shape.slots] = number
            report.index_entries += count
        if entry.offset != header.end_offset:
            return f"its header ends at {header.end_offset}, not at its last entry"
        if doubts.first:
            return doubts.first
        for offset, timestamp in ((header.begin_offset, header.begin_timestamp),
                                  (header.end_offset, header.end_timestamp)):
            message = _message_at(read, offset) if header.index_count > 1 else None
            if message is not None and message.store_timestamp != timestamp:
                return f"its header has another time than the message at {offset}"
        slots = array("i", file.pread(4 * shape.slots, shape.slot_at(0)))
        slots.byteswap()
        if slots != newest:
            return "a slot does not name its last entry"
        if taken != header.slot_count:
            return f"hashSlotCount={header.slot_count}, and {taken} slots have entries"
    finally:
        file.close()
    return ""


def _message_at(read: ReadLog, offset: int) -> Message | None:
    """The message there; None: none that is sound, or it has expired."""
    size = int.from_bytes(read(offset, 4), "big", signed=True)
    try:
        return decode_message(read(offset, size)) if size > 0 else None
    except WireError:
        return None


class _Doubts:
    """
    Compares entries with their records. A cut of the log leaves entries of records that are gone: entries of
    earlier ones, or of all keys of another record at the same place, follow them.
    """

    def __init__(self, header: IndexHeader, read: ReadLog) -> None:
        self._header = header
        self._read = read
        self._doubts: list[tuple[int, str]] = []
        self._at = -1
        self._keys: frozenset[int] = frozenset()
        self._left: set[int] = set()
        self._message: Message | None = None

    @property
    def first(self) -> str:
        """What the first wrong entry says wrongly; empty: all are right."""
        return self._doubts[0][1] if self._doubts else ""

    def look(self, number: int, entry: IndexEntry) -> None:
        """The next entry, of a record that the log should have."""
        if entry.offset != self._at:
            self._at = entry.offset
            message = self._message = _message_at(self._read, entry.offset)
            keys = () if message is None else (*message.keys, message.properties.get("UNIQ_KEY", ""))
            topic = "" if message is None else message.topic
            self._keys = frozenset(hash_of_key(topic, key) for key in keys if key)
            self._left = set(self._keys)
        wrong = self._wrong(entry)
        if wrong and len(self._doubts) < _DOUBTS_MAX:
            self._doubts.append((entry.offset, f"the entry {number} {wrong}"))
        self._left.discard(-1 if wrong else entry.key_hash)
        if self._keys and not self._left:
            self._doubts = [doubt for doubt in self._doubts if doubt[0] < entry.offset]

    def _wrong(self, entry: IndexEntry) -> str:
        message = self._message
        if message is None:
            return f"points to {entry.offset}, where no sound message is"
        if entry.key_hash not in self._keys:
            return f"points to the message at {entry.offset}, which has no such key"
        if entry.seconds != max(message.store_timestamp - self._header.begin_timestamp, 0) // 1000:
            return f"has another time than the message at {entry.offset}"
        return ""


def store_document(report: StoreReport) -> Mapping[str, object]:
    """The report for programs."""
    return {**attrs.asdict(report), "is_clean": report.is_clean}
