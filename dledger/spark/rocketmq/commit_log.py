# -*- test-case-name: tests.spark.test_commit_log -*-
"""
Mode C{path} on a RocketMQ broker's commit log, Java's or ours, live or stopped. Offsets are bytes.

There is no index: a record says where the next one begins. The candidates of a block are found all at once,
by the magic and by the place that a message holds; where each ends at the next one, they are the records,
else (a body may hold the bytes of messages) the walk goes from one to the next. A range may begin at any
byte; its records are those that begin in it. To find the first one, the walk begins in the block before the
range, if the candidates of that block follow each other without a gap, and else with the file.

The log ends after its last whole record. A record that is not sound, with a sound one after it, is damage.
The broker may be writing the next one at this moment, so the last records are checked closely: lengths,
checksum of the body, and a last byte that is not zero (the properties are text). There is no commit:
docs/spark-reference.md says what that means. A log that ends before a message that the store's other files
name is damaged at its end (L{dledger.spark.rocketmq.queue_ends}).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import attrs
import numpy as np

from dledger.base.disk.disk import ReadOnlyDisk
from dledger.base.disk.segment import SegmentReader, offsets_in
from dledger.spark.formats.log import Chunk, DamageError, Extent, LogPart, Offsets, ReadError, lost, skipped
from dledger.spark.formats.option_texts import OptionError
from dledger.spark.formats.options import ScanOptions
from dledger.spark.formats.proof import Proof, of_bytes
from dledger.spark.formats.record_headers import gather
from dledger.spark.rocketmq.messages import HEAD_DTYPE
from dledger.spark.rocketmq.queue_ends import CHECKPOINT_NAME, ReportedEnd, reported_end, store_root
from dledger.spark.rocketmq.queue_road import QueueRoad
from protocols.wire.errors import WireError
from protocols.wire.rocketmq.layout import HEAD, HEAD_SIZE, MAGIC_BLANK, MAGIC_V1, MAGIC_V2, MIN_MESSAGE_SIZE
from protocols.wire.rocketmq.message import decode_message

#: At least the largest record that a broker takes by default (4 MiB and 64 KiB).
_BLOCK_BYTES = 8 * 1024 * 1024
#: Records at the end that are checked closely.
_LAST_RECORDS = 64
#: Most blocks at the end that are read for their times.
_LAST_BLOCKS = 8
#: Of the magic in a message.
_MAGIC_AT = 4
#: Bytes before an offset by which the log is recognised.
_PROOF_BYTES = 4096
_DISK = ReadOnlyDisk()
#: The bytes with which both magics begin.
_MAGIC_BEGIN = (MAGIC_V1 & 0xFFFFFFFF).to_bytes(4, "big")[:3]
assert (MAGIC_V2 & 0xFFFFFFFF).to_bytes(4, "big").startswith(_MAGIC_BEGIN)
_NOWHERE: Offsets = np.empty(0, dtype=np.int64)
_START: Offsets = np.zeros(1, dtype=np.int64)


def commit_log_directory(path: str) -> str | None:
    """The commit log of a broker's store: C{path}, or C{commitlog} in it; None if neither has its files."""
    for directory in (path, f"{path}/commitlog"):
        if _offsets_in(directory):
            return directory
    return None


def _offsets_in(directory: str) -> list[int]:
    try:
        return offsets_in(_DISK, directory)[0]
    except (FileNotFoundError, NotADirectoryError):
        return []


@attrs.frozen(kw_only=True)
class _Walked:
    """
    Whole records in a block.

    @ivar position: of the block's first byte, which is the first byte of its first record.
    @ivar data: up to the end of the last record.
    @ivar starts: of each record in C{data}, then the end of the last one.
    @ivar stop: why the block ends: C{more} (the log continues), C{blank} (the file is used up), or C{end}
        (no sound record follows).
    """

    position: int
    data: memoryview
    starts: Offsets
    stop: str

    @property
    def end(self) -> int:
        """Position after the last record."""
        return self.position + int(self.starts[-1])

    @property
    def count(self) -> int:
        """Number of records."""
        return len(self.starts) - 1


class SparkCommitLog:
    """A broker's commit log. Implements L{dledger.spark.formats.log.ScannedLog}."""

    def __init__(self, options: ScanOptions, directory: str) -> None:
        """@raise OptionError: an option makes no sense where offsets are bytes."""
        if options.max_records_per_partition:
            raise OptionError("option maxRecordsPerPartition counts entries, but the offsets of a broker's "
                              "commit log are bytes: take partitionBytes")
        self._options = options
        #: One file open at a time: an open file that the broker has deleted takes room on its disk.
        self._files = SegmentReader(_DISK, directory, handles_max=1)
        #: After the last record found sound; the next search for the end begins there.
        self._known_end = -1
        #: An end after which no message was found.
        self._clear_end = -1
        #: What the store's other files report is compared once, with the first end that is found.
        self._is_compared = False
        #: Files that were searched to their ends once; a file that was empty then is read from its beginning.
        self._looked_through: set[int] = set()
        self._road: QueueRoad | None = None

    def _list(self) -> None:
        offsets = _offsets_in(self._files.directory)
        if not offsets:
            raise ReadError(f"{self._files.directory}: no commit log files (20 digits) are left there")
        try:
            file_size = _DISK.file_size(self._files.path(offsets[0]))
        except OSError as error:
            raise ReadError(f"{self._files.directory} cannot be read: {error}") from None
        self._files.show(offsets, file_size)

    def extent(self, *, needs_begin: bool = True) -> Extent:
        root = None if self._is_compared else store_root(self._files.directory)
        try:
            reported = reported_end(root) if root is not None else None  # before the log, which grows first
        except OSError as error:
            raise ReadError(f"{root}: consume queues or checkpoint cannot be read: {error}") from None
        found = self._extent()
        if reported is not None:
            self._compare(reported, found.end, found.begin)
        self._is_compared = True
        return found

    def _compare(self, reported: ReportedEnd, end: int, begin: int) -> None:
        """@raise DamageError: the log ends before C{reported}, and C{failOnDamage} is set."""
        what = ""
        if reported.end > end:
            what = f"{reported.place} names a message that ends at {reported.end}"
        elif reported.stored_ms and self._last_stored_ms(begin, end) < reported.stored_ms:
            what = (f"{store_root(self._files.directory)}/{CHECKPOINT_NAME} records a message with the "
                    f"storeTimestamp {reported.stored_ms}, and the last ones of the log are older")
        if not what:
            return
        what = (f"{self._files.directory}: the log ends at {end}, but {what}: files at its end are missing, "
                "cut or zeroed, or the machine lost power: then start the broker once")
        if self._options.fail_on_damage:
            raise DamageError(f"{what}. With option failOnDamage=false the messages that are there are read")
        skipped(what)

    def _last_stored_ms(self, begin: int, end: int) -> int:
        """The latest store time of the last messages; 0 without one. The broker's clock may go back."""
        found, blocks = [0], 0
        while end > begin and len(found) <= _LAST_RECORDS and blocks < _LAST_BLOCKS:
            blocks += 1
            first = max(begin, end - _BLOCK_BYTES, self._files.base(end - 1))
            starts, ends = _candidates(self._files.pread(end - first, first), first)
            sizes = (ends - starts)[-_LAST_RECORDS:].tolist()
            for start, size in zip(starts[-_LAST_RECORDS:].tolist(), sizes, strict=True):
                try:
                    found.append(decode_message(self._files.pread(size, first + start)).store_timestamp)
                except WireError:
                    continue  # bytes in the body of another one
            end = first
        return max(found)

    def _extent(self) -> Extent:
        self._list()
        begin = self._files.offsets[0]
        # From the newest file back to the first that has a record: brokers make files ahead.
        for base in reversed(self._files.offsets):
            known = max(self._known_end, base) if self._known_end <= base + self._files.file_size else base
            if known == base and base not in self._looked_through:
                self._looked_through.add(base)
                known = self._late_start(base)
            end = known if known == base + self._files.file_size else self._sound_end(self._end_from(known))
            if end > base:
                self._known_end = end
                return Extent(begin=begin, end=end)
        return Extent(begin=begin, end=begin)

    def group_id(self) -> str:
        """See L{dledger.spark.formats.log.ScannedLog.group_id}: a broker's files record none."""
        return ""

    def proof(self, offset: int) -> Proof:
        """
        See L{dledger.spark.formats.log.ScannedLog.proof}: of the bytes before C{offset}, whatever begins
        there.
        """
        self._files.close()  # a file of this name may be another one since
        base = self._files.base(offset - 1)
        if base < 0:
            return {}
        first = max(base, offset - _PROOF_BYTES)
        return of_bytes(self._files.pread(offset - first, first))

    def _sound_end(self, end: int) -> int:
        """
        The end of a file's records, found at C{end}. A sound message after it means that the one at C{end}
        is damaged, unless the broker has written both in the meantime.

        @raise DamageError: it is, and C{failOnDamage} is set.
        """
        while end != self._clear_end:
            behind = self._message_behind(end)
            if behind < 0:
                self._clear_end = end
                break
            again = self._end_from(end)
            if again == end and self._options.fail_on_damage:
                base = self._files.base(end)
                raise DamageError(
                    f"{self._files.path(base)} at {end - base}: there is no sound message, but one follows "
                    f"at {behind - base}. With option failOnDamage=false the rest of the file is skipped"
                )
            end = again if again > end else self._end_from(behind)
        return end

    def _message_behind(self, position: int) -> int:
        """The position of a sound message after C{position}, in its file and not far away; -1 for none."""
        data = self._files.pread(_BLOCK_BYTES, position)
        found = []
        for magic in (MAGIC_V1, MAGIC_V2):
            word = (magic & 0xFFFFFFFF).to_bytes(4, "big")
            at = data.find(word, _MAGIC_AT + 1)
            while at >= 0 and not self._is_message(position + at - _MAGIC_AT):
                at = data.find(word, at + 1)
            if at >= 0:
                found.append(position + at - _MAGIC_AT)
        return min(found, default=-1)

    def _is_message(self, position: int) -> bool:
        """Whether a sound message begins at C{position}."""
        head = self._files.pread(HEAD_SIZE, position)
        if len(head) < HEAD_SIZE:
            return False
        length, _magic, _, _, _, _, physical, _, _ = HEAD.unpack(head)
        if physical != position or not MIN_MESSAGE_SIZE <= length <= self._files.file_size:
            return False
        return self._is_written(position, length)

    def _end_from(self, position: int) -> int:
        """The position after the last whole record of one file, walking from C{position}."""
        last: deque[int] = deque(maxlen=_LAST_RECORDS)
        while True:
            walked = self._walk(position, _BLOCK_BYTES)
            last.extend((walked.position + walked.starts[:-1][-_LAST_RECORDS:]).tolist())
            position = walked.end
            if walked.stop == "blank":
                return self._files.base(walked.position) + self._files.file_size
            if walked.stop == "end" or not walked.count:
                break
        while last:
            start = last.pop()
            if self._is_written(start, position - start):
                break
            position = start
        return position

    def _is_written(self, start: int, size: int) -> bool:
        try:
            message = decode_message(self._files.pread(size, start))
        except WireError:
            return False
        # The record ends with text: the properties, or the topic if the properties are empty.
        return not (message.properties_data or message.topic.encode()).endswith(b"\0")

    def _walk(self, position: int, size: int) -> _Walked:
        """Read whole records from C{position}, where one must begin, in about C{size} bytes of one file."""
        base = self._files.base(position)
        file_end = base + self._files.file_size if base >= 0 else position
        data = self._files.pread(max(size, HEAD_SIZE), position)
        follow = _followers(data, position, file_end)
        starts, at, stop = [], int(follow[-1]), "more"
        unpack, total = HEAD.unpack_from, len(data)
        is_cut = total < min(max(size, HEAD_SIZE), file_end - position)
        while at < total:
            if at + HEAD_SIZE > total:
                if position + total == file_end:
                    stop = "blank" if _is_blank(data, at) else "end"
                break
            length, magic, _, _, _, _, physical, _, _ = unpack(data, at)
            if magic not in (MAGIC_V1, MAGIC_V2):
                stop = "blank" if magic == MAGIC_BLANK else "end"
                break
            if length < MIN_MESSAGE_SIZE or position + at + length > file_end or physical != position + at:
                stop = "end"
                break
            if at + length > total:
                if at == 0 and not is_cut:
                    return self._walk(position, length)
                break
            at += length
            starts.append(at)
        if at == 0 and stop == "more":
            stop = "end"  # no file, or a file that was cut
        return _Walked(
            position=position, data=memoryview(data)[:at], stop=stop,
            starts=np.append(follow, np.array(starts, dtype=np.int64)),
        )

    def narrowed(self, begin: int, end: int) -> tuple[int, int]:
        """
        The files of a range that may hold messages from C{storedFrom} to C{storedBefore}, if the broker's
        clock has not gone back by more than C{clockBackMs}: messages before another one are at most that much
        newer, and messages after it at most that much older.
        """
        options = self._options
        back_ms, since, before = options.clock_back_ms, options.stored_from, options.stored_before
        if back_ms is None:
            return begin, end
        for base in [offset for offset in self._files.offsets if begin < offset < end]:
            stored_ms = self._first_stored_ms(base)
            if stored_ms < 0:
                continue
            if before is not None and stored_ms - back_ms >= before:
                return begin, base
            if since is not None and stored_ms + back_ms < since:
                begin = base
        return begin, end

    def _queue_road(self) -> QueueRoad:
        if self._road is None:
            self._road = QueueRoad(self._options, self._files, self._first_stored_ms)
        return self._road

    def wanted(self, parts: list[LogPart]) -> list[LogPart]:
        """The parts in which there may be messages of the topics, by the queues if C{byQueues} is set."""
        return self._queue_road().wanted(parts) if self._options.by_queues else parts

    def _first_stored_ms(self, base: int) -> int:
        """Store time of the first message of a file; -1: it is not sound."""
        head = self._files.pread(HEAD_SIZE, base)
        if len(head) < HEAD_SIZE:
            return -1
        length, _magic, _, _, _, _, physical, _, _ = HEAD.unpack(head)
        if physical != base or not MIN_MESSAGE_SIZE <= length <= self._files.file_size:
            return -1
        try:
            return decode_message(self._files.pread(length, base)).store_timestamp
        except WireError:
            return -1

    def position_of(self, offset: int) -> int:
        return offset

    def after(self, begin: int, end: int, count: int) -> int:
        left, position = count, self._first_from(begin, end)
        while position < end:
            walked = self._walk(position, _BLOCK_BYTES)
            if walked.count >= left:
                return min(walked.position + int(walked.starts[left]), end)
            left -= walked.count
            position = self._next(walked, end)
        return end

    def _first_from(self, begin: int, end: int) -> int:
        """The position of the first record that begins at or after C{begin}."""
        base = self._files.base(begin)
        if base < 0 or begin == base:
            return begin
        near = self._start_before(begin)
        found = self._first_of_walk(near, begin, end)
        if found < 0 and near > base:
            found = self._first_of_walk(base, begin, end)
        return found if found >= 0 else begin

    def _first_of_walk(self, position: int, begin: int, end: int) -> int:
        """The first record at or after C{begin}, walking from C{position}; -1: the walk ends before it."""
        while position < begin:
            walked = self._walk(position, _BLOCK_BYTES)
            reached = int(np.searchsorted(walked.starts[1:], begin - walked.position))
            if reached < walked.count:
                return walked.position + int(walked.starts[1 + reached])
            if walked.stop == "end":
                return -1
            position = self._next(walked, end)
        return position

    def _start_before(self, position: int) -> int:
        """
        A place before C{position}, in its file, where a record begins, to walk from: in the block before it
        if the candidates there follow each other without a gap, so that none is in the body of another; else
        the beginning of the file.
        """
        base = self._files.base(position)
        block = position - _BLOCK_BYTES
        if block <= base:
            return base
        data = self._files.pread(_BLOCK_BYTES, block)
        starts, ends = _candidates(data, block)
        if not len(starts) or (ends[:-1] != starts[1:]).any():
            return base
        return block + int(starts[0])

    def _late_start(self, base: int) -> int:
        """
        A place in the file C{base} where a record begins, to look for the end from there: near the last block
        that holds one. Every block after it is read: a damaged stretch does not hide the records after it.
        """
        for number in range(-(-self._files.file_size // _BLOCK_BYTES) - 1, 0, -1):
            position = base + number * _BLOCK_BYTES
            data = self._files.pread(_BLOCK_BYTES, position)
            if not np.frombuffer(data, dtype=np.uint8).any():
                continue
            starts, _ = _candidates(data, position)
            if len(starts):
                before = self._files.pread(_BLOCK_BYTES, position - _BLOCK_BYTES)
                is_apart = not len(_candidates(before, position - _BLOCK_BYTES)[0])
                return position + int(starts[0]) if is_apart else self._start_before(position)
        return base

    def _next(self, walked: _Walked, end: int) -> int:
        if walked.stop == "blank":
            return self._files.base(walked.position) + self._files.file_size
        return walked.end if walked.stop == "more" else end

    def chunks(self, begin: int, end: int, *, with_data: bool) -> Iterator[Chunk]:
        self._list()
        if begin < self._files.offsets[0]:
            begin = lost(self._options, begin, self._files.offsets[0], end=end)
        if self._options.by_queues:
            begin = yield from self._queue_road().chunks(begin, end)
        position, unreadable = self._first_from(begin, end), 0
        while position < end:
            walked = self._walk(position, self._options.fetch_bytes)
            starts = walked.starts
            count = int(np.searchsorted(starts[:-1], end - position))
            if count:
                base = self._files.base(position)
                size = int(starts[count])
                yield Chunk(
                    data=memoryview(walked.data)[:size], starts=starts[: count + 1], first=position,
                    place=self._files.path(base), place_at=position - base,
                )
                position += size
            elif walked.stop == "blank":
                position = self._files.base(position) + self._files.file_size
            else:
                following = self._after_trouble(position, end)
                unreadable += following - position
                position = following
        if unreadable:
            skipped(f"{self._files.directory}: {unreadable} bytes after damaged records were skipped")

    def _after_trouble(self, position: int, end: int) -> int:
        """
        The position at which reading continues when there is no record at C{position}.

        @raise DataLossError: the bytes at C{position} have expired, and C{failOnDataLoss} is set.
        @raise DamageError: they are damaged, and C{failOnDamage} is set.
        """
        base, before = self._files.base(position), self._files.offsets
        self._list()
        if position < self._files.offsets[0]:
            return lost(self._options, position, self._files.offsets[0], end=end)
        if self._files.offsets != before and self._files.base(position) != base:
            return position
        path = self._files.path(max(base, 0))
        what = f"{path} at {position - max(base, 0)}: there is no sound message"
        if self._options.fail_on_damage:
            raise DamageError(f"{what}. With option failOnDamage=false the rest of the file is skipped")
        return min(base + self._files.file_size if base >= 0 else end, end)

    def close(self) -> None:
        if self._road is not None:
            self._road.close()
        self._files.close()


def _candidates(data: bytes, position: int) -> tuple[Offsets, Offsets]:
    """
    Where messages may begin in C{data}, which is at C{position} of the log: they have a magic and the right
    place, which bytes in a body can have, too. And where each of them ends, perhaps after C{data}.
    """
    room = len(data) - HEAD_SIZE + 1
    if room <= 0:
        return _NOWHERE, _NOWHERE
    octets = np.frombuffer(data, dtype=np.uint8)
    starts = np.flatnonzero(octets[_MAGIC_AT : _MAGIC_AT + room] == _MAGIC_BEGIN[0])
    for at, octet in enumerate(_MAGIC_BEGIN[1:], _MAGIC_AT + 1):
        starts = np.compress(octets[starts + at] == octet, starts)
    heads = gather(data, starts, HEAD_DTYPE)
    magic = heads["magic"].astype(np.int32)
    is_fit = (magic == MAGIC_V1) | (magic == MAGIC_V2)
    is_fit &= (heads["physical_offset"] == position + starts) & (heads["size"] >= MIN_MESSAGE_SIZE)
    starts = starts[is_fit]
    return starts, starts + heads["size"][is_fit]


def _followers(data: bytes, position: int, file_end: int) -> Offsets:
    """
    The whole messages that follow each other from the first byte of C{data} on: where each begins, then where
    the last one ends. There may be more after them.
    """
    starts, ends = _candidates(data, position)
    if not len(starts) or starts[0] != 0:
        return _START
    # A candidate follows the one before it, and is whole.
    count = int(np.argmin(np.append(ends[:-1] == starts[1:], False))) + 1
    count = min(count, int(np.searchsorted(ends[:count], min(len(data), file_end - position), side="right")))
    return np.append(starts[:count], ends[count - 1]) if count else _START


def _is_blank(data: bytes, at: int) -> bool:
    return data[at + 4 : at + 8] == (MAGIC_BLANK & 0xFFFFFFFF).to_bytes(4, "big")
