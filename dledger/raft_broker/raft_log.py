# -*- test-case-name: tests.raft_broker.test_raft_log -*-
"""
The committed part of a ledger as a L{StoredLog}: the messages of a broker.

Each entry has one record, after a header of 48 bytes; a blank fills the rest of a file. The files are read
through handles of their own: they are those of the member in this process, which alone writes.

Rule: nothing after the committed end is shown. A record below it never changes its place.

Source: DLedgerCommitLog.java (4.9.8, 5.3.3).
"""

from __future__ import annotations

from typing import Protocol

from twisted.internet.defer import Deferred, succeed

from dledger.base.disk.disk import Disk
from dledger.base.disk.segment import SegmentReader
from dledger.ledger.config import DLedgerConfig
from dledger.raft_broker.stamps import MessageStamps
from dledger.rocketmq.broker.store.records.records import problem_of
from dledger.storage.start.directory import data_path
from protocols.wire.ledger.entry import ENTRY_HEADER_SIZE
from protocols.wire.rocketmq.layout import START, START_SIZE


class CommittedLedger(Protocol):
    """The part of a store that is needed here."""

    @property
    def ledger_begin_index(self) -> int:
        """First index; -1 when empty."""

    @property
    def ledger_end_index(self) -> int:
        """Last index; -1 when empty."""

    @property
    def end_position(self) -> int:
        """Stream offset after the last record."""

    def position_of(self, index: int) -> int:
        """Stream offset of the record at C{index}."""


class RaftLog:
    """
    A L{StoredLog}; the member alone flushes and closes the ledger.

    Invariant: C{begin_offset <= record_end}.

    @ivar record_end: end of the last entry that is known to be committed.
    @ivar begin_offset: stream offset of the first entry.
    """

    record_lead = ENTRY_HEADER_SIZE

    def __init__(
        self, config: DLedgerConfig, disk: Disk, ledger: CommittedLedger, stamps: MessageStamps, *,
        committed_index: int, record_size_max: int,
    ) -> None:
        self._ledger = ledger
        self._stamps = stamps
        self._record_size_max = record_size_max
        self.file_size = config.mapped_file_size_for_entry_data
        self._files = SegmentReader(disk, data_path(config))
        self.begin_offset = self.record_end = 0
        self._begin_index = self._committed_index = -1
        self._shown = (-1, -1)
        self.committed(committed_index)

    @property
    def queue_offsets(self) -> dict[tuple[str, int], int]:
        """Topic and queue to the offset of its next message; exact while this broker is the master."""
        return self._stamps.queue_offsets

    @queue_offsets.setter
    def queue_offsets(self, found: dict[tuple[str, int], int]) -> None:
        self._stamps.queue_offsets = found

    @property
    def end_offset(self) -> int:
        """As C{record_end}: of the ledger's other entries nobody knows whether they stay."""
        return self.record_end

    @property
    def flushed_offset(self) -> int:
        """As C{record_end}: the member knows what is on stable storage."""
        return self.record_end

    def committed(self, committed_index: int) -> bool:
        """Entries up to C{committed_index} are committed. @return: whether there is more to read."""
        ledger = self._ledger
        if ledger.ledger_begin_index != self._begin_index:
            self._begin_index = ledger.ledger_begin_index
            if self._begin_index >= 0:
                self.begin_offset = ledger.position_of(self._begin_index)
                self.record_end = max(self.record_end, self.begin_offset)
        end_index = min(committed_index, ledger.ledger_end_index)
        if end_index <= self._committed_index:
            return False
        self._committed_index = end_index
        is_last = end_index == ledger.ledger_end_index
        end = ledger.end_position if is_last else self._end_of(end_index)
        if end <= self.record_end:
            return False
        self.record_end = end
        return True

    def _end_of(self, index: int) -> int:
        """End of an entry that another one follows, without the blank that may be between them."""
        begin, following = self._ledger.position_of(index), self._ledger.position_of(index + 1)
        if following % self.file_size:
            return following
        self._show(following)
        header = self._files.pread(START_SIZE, begin)
        return begin + START.unpack(header)[1] if len(header) == START_SIZE else following

    @property
    def ledger_end(self) -> int:
        """End of the last entry, committed or not."""
        return max(self._ledger.end_position, self.begin_offset)

    def show_to(self, offset: int) -> None:
        """A start: everything before C{offset} was dispatched, so it is committed."""
        self.record_end = max(self.record_end, min(offset, self.ledger_end))

    def read_any(self, offset: int, size: int) -> bytes:
        """As L{read}, also after the committed end: what a crash left is looked at before it is shown."""
        self._show(self.ledger_end)
        return self._files.pread(size, offset)

    def _show(self, end: int) -> None:
        """Look at the files up to an offset, and at those that are needed anyway."""
        size = self.file_size
        bounds = (self.begin_offset - self.begin_offset % size, end - end % size)
        if bounds != self._shown:
            self._shown = bounds
            self._files.show(range(bounds[0], bounds[1] + size, size), size)

    def read(self, offset: int, size: int) -> bytes:
        """
        See L{MessageLog.read}. Where entries have expired there is nothing: the member deletes files before
        the queues follow.
        """
        begin, end = self.begin_offset, self.record_end
        if not 0 <= offset <= end:
            raise ValueError(f"offset {offset} outside {begin}..{end}")
        if offset < begin:
            return b""
        self._show(end)
        size = min(size, end - offset)
        return self._files.pread(size, offset) if size > 0 else b""

    def problem_at(self, offset: int) -> str | None:
        """See L{MessageLog.problem_at}."""
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
