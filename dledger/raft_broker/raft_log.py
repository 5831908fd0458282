# -*- test-case-name: tests.raft_broker.test_raft_log -*-
"""
Lets a broker read the committed entries of a ledger as a L{StoredLog} of messages.

An entry is a header of 48 bytes and a record, its body. A blank fills the rest of a file that is too small
for the next entry. The member in this process owns the files, and alone writes them; this module opens them
a second time, to read.

Rule 1: L{RaftLog.read} and L{RaftLog.problem_at} return nothing that lies after the committed end. A
committed record never changes its place.
Rule 2: only a start reads entries that are not committed yet (L{RaftLog.read_any}), to see what a crash has
left.

Source: DLedgerCommitLog.java (4.9.8, 5.3.3).
"""

from __future__ import annotations

from twisted.internet.defer import Deferred, succeed

from dledger.base.disk.disk import Disk
from dledger.base.disk.segment import SegmentReader
from dledger.raft_broker.stamps import MessageStamps
from dledger.rocketmq.metadata.tables_mark import LogPlace
from dledger.rocketmq.store.records.records import problem_of
from dledger.storage.start.directory import data_path
from dledger.storage.store.file_store import FileStore
from dledger.values.errors import DamagedEntryError
from dledger.values.ledger.config import DLedgerConfig
from protocols.wire.checksums import crc32
from protocols.wire.ledger.entry import ENTRY_HEADER_SIZE
from protocols.wire.rocketmq.layout import START, START_SIZE

#: Bytes before an offset that name a log: several entries, each with its term and checksums.
TAIL_BYTES = 4_096


class RaftLog:
    """
    The committed entries of a ledger. Offsets are bytes since the log began. The member alone flushes and
    closes the ledger.

    Invariant: C{begin_offset <= record_end}.

    @ivar record_end: end of the last entry that is known to be committed.
    @ivar begin_offset: offset of the first entry; C{record_end} does not fall below it when entries expire.
    @ivar file_size: bytes of every file.
    """

    record_lead = ENTRY_HEADER_SIZE

    def __init__(
        self, config: DLedgerConfig, disk: Disk, ledger: FileStore, stamps: MessageStamps, *,
        committed_index: int, record_size_max: int,
    ) -> None:
        """
        @param ledger: the store of the member; it is open.
        @param stamps: gives messages their queue offsets.
        @param committed_index: the highest index that is known to be committed now; -1: none.
        @param record_size_max: bytes of a record; a longer one is not sound.
        """
        self._ledger = ledger
        self._stamps = stamps
        self._record_size_max = record_size_max
        self.file_size = config.mapped_file_size_for_entry_data
        self._files = SegmentReader(disk, data_path(config))
        self._files.unreadable.opened()  # the ledger is open, and readers check all records
        self.begin_offset = self.record_end = 0
        self._begin_index = self._committed_index = -1
        self._listed = (-1, -1)
        self.committed(committed_index)

    @property
    def queue_offsets(self) -> dict[tuple[str, int], int]:
        """
        The offset of the next message of each queue, by topic and number of the queue. It is exact only while
        this broker is the master.
        """
        return self._stamps.queue_offsets

    @queue_offsets.setter
    def queue_offsets(self, found: dict[tuple[str, int], int]) -> None:
        self._stamps.queue_offsets = found

    @property
    def end_offset(self) -> int:
        """The same as C{record_end}, because another leader may replace the entries after it."""
        return self.record_end

    @property
    def flushed_offset(self) -> int:
        """
        The same as C{record_end}, because the member flushes its ledger itself, and the broker has nothing to
        flush. With C{ASYNC_FLUSH} a crash of this computer may still take bytes before it here; the member
        then copies them from the leader again.
        """
        return self.record_end

    def committed(self, committed_index: int) -> bool:
        """
        Take note of the committed index, and of entries that have expired since.

        @param committed_index: the highest index that is known to be committed.
        @return: whether C{record_end} has risen because of it, so that there is more to read.
        """
        ledger = self._ledger
        if ledger.ledger_begin_index != self._begin_index:
            self._begin_index = ledger.ledger_begin_index
            if self._begin_index >= 0:
                self.begin_offset = self._begin_of(self._begin_index)
                self.record_end = max(self.record_end, self.begin_offset)
        end_index = min(committed_index, ledger.ledger_end_index)
        if end_index <= self._committed_index:
            return False
        is_last = end_index == ledger.ledger_end_index
        try:
            end = ledger.end_position if is_last else self._end_of(end_index)
        except DamagedEntryError:
            return False  # a later call knows more: other members mend it, or a later entry is committed
        self._committed_index = end_index
        if end <= self.record_end:
            return False
        self.record_end = end
        return True

    def first_index_from(self, offset: int) -> int:
        """
        The first entry that begins at an offset or after it; the entry after the last one if there is none.
        Beside damaged entries, which have no place, it may be an earlier one.
        """
        low, high = max(self._ledger.ledger_begin_index, 0), self._ledger.ledger_end_index + 1
        while low < high:
            middle = (low + high) // 2
            try:
                is_before = self._ledger.position_of(middle) < offset
            except DamagedEntryError:
                is_before = False
            low, high = (middle + 1, high) if is_before else (low, middle)
        return low

    def _begin_of(self, index: int) -> int:
        """Begin of the first entry, which may be damaged."""
        try:
            return self._ledger.position_of(index)
        except DamagedEntryError:
            found = [hole.position for hole in self._ledger.holes
                     if hole.first_index <= index <= hole.last_index]
            if not found:
                raise
            return found[0]

    def _end_of(self, index: int) -> int:
        """
        End of an entry that is not the last one. The next entry begins there, unless a blank lies between
        them: then the next entry is the first of a file, and the size of this record gives the end.
        """
        begin, following = self._ledger.position_of(index), self._ledger.position_of(index + 1)
        if following % self.file_size:
            return following
        self._list_files(following)
        header = self._files.pread(START_SIZE, begin)
        return begin + START.unpack(header)[1] if len(header) == START_SIZE else following

    @property
    def ledger_end(self) -> int:
        """End of the last entry, committed or not; C{begin_offset} if there is no entry."""
        return max(self._ledger.end_position, self.begin_offset)

    def show_to(self, offset: int) -> None:
        """
        Take everything before an offset for committed. A start calls it, because only committed records were
        dispatched.

        @param offset: the broker had dispatched all records before it when it ended.
        """
        self.record_end = max(self.record_end, min(offset, self.ledger_end))

    def read_any(self, offset: int, size: int) -> bytes:
        """
        Read bytes of the ledger, committed or not.

        @return: up to C{size} bytes of one file from C{offset} on; fewer at the end of the file. Bytes after
            the end of the ledger mean nothing.
        @raise OSError: the file cannot be read.
        """
        self._list_files(self.ledger_end)
        return self._files.pread(size, offset)

    def tail_check(self, offset: int) -> int:
        """
        A checksum that names this log: another one with entries up to the same offset has another.

        @return: the checksum of the bytes before C{offset}: up to L{TAIL_BYTES} of the file that ends there,
            without those before C{begin_offset}; 0 if there are none.
        @raise OSError: the file cannot be read.
        """
        file_begin = max(offset - 1, 0) // self.file_size * self.file_size
        begin = max(self.begin_offset, file_begin, offset - TAIL_BYTES)
        return crc32(self.read_any(begin, offset - begin)) if begin < offset <= self.ledger_end else 0

    def has(self, place: LogPlace) -> bool:
        """
        Whether this log has these bytes before a place, or begins after it: a member that was away gets a log
        that begins later.

        @raise OSError: the file cannot be read.
        """
        return place.offset < self.begin_offset or (
            place.offset <= self.ledger_end and self.tail_check(place.offset) == place.tail_check
        )

    def _list_files(self, end: int) -> None:
        """Let the reader know the files, from the one with the first entry to the one that holds C{end}."""
        size = self.file_size
        bounds = (self.begin_offset - self.begin_offset % size, end - end % size)
        if bounds != self._listed:
            self._listed = bounds
            self._files.show(range(bounds[0], bounds[1] + size, size), size)

    def read(self, offset: int, size: int) -> bytes:
        """
        Read committed bytes (L{MessageLog.read}).

        @return: up to C{size} bytes of one file from C{offset} on; fewer at the end of the file, or at the
            committed end; none before C{begin_offset}. The queues may still refer to entries there, because
            they give up their units only after the member has deleted its files.
        @raise ValueError: the offset is negative, or after the committed end.
        @raise OSError: the file cannot be read.
        """
        begin, end = self.begin_offset, self.record_end
        if not 0 <= offset <= end:
            raise ValueError(f"offset {offset} outside {begin}..{end}")
        if offset < begin:
            return b""
        self._list_files(end)
        size = min(size, end - offset)
        return self._files.pread(size, offset) if size > 0 else b""

    def problem_at(self, offset: int) -> str | None:
        """
        Check the record or blank at an offset (L{MessageLog.problem_at}).

        @return: why it is not sound; empty: it is sound; None: not known.
        @raise ValueError: the offset is negative, or after the committed end.
        @raise OSError: the file cannot be read.
        """
        room = self.file_size - offset % self.file_size
        data = self.read(offset, START_SIZE)
        if len(data) == START_SIZE:
            data = self.read(offset, min(max(START.unpack(data)[0], START_SIZE), self._record_size_max))
        return problem_of(data, offset, room, self._record_size_max)

    # -- StoredLog -------------------------------------------------------------------------------

    def flush(self) -> Deferred[int]:
        """See L{StoredLog}: the member flushes."""
        return succeed(self.flushed_offset)

    def idle(self) -> Deferred[None]:
        """See L{StoredLog}: no flush is ever under way here."""
        return succeed(None)

    def clean_close(self) -> None:
        """See L{StoredLog}: there is nothing to record."""
        self.abandon()

    def abandon(self) -> None:
        """See L{StoredLog}."""
        self._files.show((), self.file_size)
