# -*- test-case-name: tests.storage.test_expiry,tests.storage.test_no_room -*-
"""
Room on the disk of a ledger: when appends are refused for want of it, and which old files go.

Room is reserved before a write; file systems that never overwrite in place, and thin volumes, may have none
all the same. Such a write is refused, and the store lives: the part of it that was written is zeroed again,
so that no start can find an entry that is not in the log for its client.

Rule: what is not committed, or not on stable storage, stays; so does the last committed entry, and what a
follower, a reader or an archive still needs. The mark records the new beginning before a file goes: a start
that misses an earlier file knows that it was not deleted here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import attrs

from dledger.base.disk.disk import is_no_room
from dledger.base.disk.expiry import Expiry, ExpiryRules
from dledger.base.disk.segment import SegmentList
from dledger.storage.files.records import Layout
from dledger.storage.manifests.archived_note import read_note
from dledger.storage.start.open_ledger import MarkWriter, OpenLedger
from dledger.storage.start.scanner import Scanner
from dledger.values.errors import DLedgerError
from dledger.values.ledger.config import DLedgerConfig
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.entry import INDEX_UNIT_SIZE

#: Bytes that are written over at once.
_CHUNK = 256 * 1024


def expiry_rules(config: DLedgerConfig) -> ExpiryRules:
    """The options of a member that concern room on the disk."""
    forces = config.enable_disk_force_clean
    return ExpiryRules(
        full_ratio=config.disk_full_ratio,
        full_ratio_name="disk_full_ratio",
        reserved_hours=config.file_reserved_hours,
        delete_hours=frozenset(int(hour) for hour in config.delete_when.split(";")),
        check_ratio=config.disk_space_ratio_to_check_expired,
        force_ratio=config.disk_space_ratio_to_force_clean if forces else None,
        retention_bytes=config.retention_bytes,
    )


@attrs.frozen(kw_only=True)
class DeletedSegment:
    """A data file that went. C{begin_index}: where the ledger begins now; C{why}: the reason."""

    path: str
    begin_index: int
    why: str


class StoreRoom:
    """
    The room of one open ledger.

    @ivar expiry: its C{why_full} says why L{check} is to be asked; empty: it need not be.
    @ivar scanner: reads the first record of a file.
    """

    def __init__(
        self, ledger: OpenLedger, marks: MarkWriter, before_expiry: Callable[[int], bool]
    ) -> None:
        """
        @param before_expiry: called with the last index of a file that is about to be deleted; whether it
            may go.
        """
        self._ledger = ledger
        self._before_expiry = before_expiry
        self._marks = marks
        self.scanner = Scanner(ledger.data, ledger.index)
        self.expiry = Expiry(expiry_rules(ledger.config))

    def reread(self, config: DLedgerConfig) -> None:
        """Other L{expiry_rules} from now on."""
        self.expiry.rules = expiry_rules(config)

    @property
    def disk_full(self) -> bool:
        """Whether appends are refused for want of room: see L{Expiry.disk_full}."""
        return self.expiry.disk_full

    @property
    def disk_nearly_full(self) -> bool:
        """Whether they soon will be: see L{Expiry.is_nearly_full}."""
        return self.expiry.is_nearly_full

    def refused(self, why: str, wanted_bytes: int) -> DLedgerError:
        """A write found no room for C{wanted_bytes}. @return: the error that says so."""
        self.expiry.refused(why, wanted_bytes)
        return DLedgerError(ResponseCode.DISK_FULL, reason=why)

    def or_refused(self, call: Callable[[], object], doing: str, wanted_bytes: int = 0) -> None:
        """
        Call.

        @raise DLedgerError: DISK_FULL: it found no room.
        @raise OSError: it failed for another reason.
        """
        try:
            call()
        except OSError as error:
            if is_no_room(error):
                raise self.refused(f"no room to {doing}: {error.strerror}", wanted_bytes) from error
            raise

    def require(self, wanted_bytes: int) -> None:
        """@raise DLedgerError: DISK_FULL, now, or after C{wanted_bytes} more."""
        self.check()
        ledger = self._ledger
        for path in (ledger.config.self_path, ledger.data.directory):
            if ledger.disk.exists(path) and ledger.disk.space(path).usable < wanted_bytes:
                raise self.refused(f"{wanted_bytes} bytes are needed in {path}", wanted_bytes)

    def require_in_place(self, segments: SegmentList, position: int, end: int) -> None:
        """
        Check that the bytes from C{position} to C{end}, within one file, can be written over: a file system
        that copies on write may have no room for that. If there is less room than that, they are written
        once more as they are.

        @raise DLedgerError: DISK_FULL.
        @raise OSError: it failed for another reason.
        """
        if self._ledger.disk.space(segments.directory).usable < end - position:
            while position < end:
                size = min(_CHUNK, end - position)
                data = segments.pread(size, position)
                self.or_refused(partial(segments.mend, data, position), "write over what a leader cuts", size)
                position += size

    def check(self, count: int = 0, body_bytes: int = 0, term: int = -1) -> None:
        """
        Check that entries may be written. The entry that a leader writes when its term begins is taken as
        long as the files at hand have room for it: readers wait for its commit.

        @param count, body_bytes, term: number of entries, size of the first body, term of the first entry.
        @raise DLedgerError: DISK_FULL.
        """
        if not self.expiry.why_full:
            return
        ledger = self._ledger
        is_term_start = (
            count == 1 and term > ledger.end_term and body_bytes == len(ledger.stamps.term_start_body)
        )
        if not is_term_start:
            raise DLedgerError(ResponseCode.DISK_FULL, reason=self.expiry.why_full)

    def make(self, first: int, layout: Layout) -> None:
        """
        Make all files that a write needs and reserve its room, or make none of them.

        @param first: index of the first entry of the layout.
        @raise DLedgerError: DISK_FULL, and nothing has changed.
        @raise OSError: it failed for another reason.
        """
        ledger = self._ledger
        units_end = first * INDEX_UNIT_SIZE + len(layout.units)
        if layout.end_position <= ledger.data.reserved_end and units_end <= ledger.index.reserved_end:
            return
        made: list[SegmentList] = []
        try:
            self._make_files(first, units_end - INDEX_UNIT_SIZE, layout, made)
            for position, blob in layout.runs:
                ledger.data.reserve(position, position + len(blob))
            position, size = first * INDEX_UNIT_SIZE, ledger.index.file_size
            while position < units_end:
                end = min(units_end, ledger.index.base(position) + size)
                ledger.index.reserve(position, end)
                position = end
        except OSError as error:
            for back in reversed(made):
                back.drop_last()
            if is_no_room(error):
                raise self.refused(
                    f"no room for more entries: {error}", ledger.data.step + ledger.index.step
                ) from error
            raise

    def _make_files(self, first: int, last_unit: int, layout: Layout, made: list[SegmentList]) -> None:
        """Make the files that a write needs; C{made} lists them."""
        ledger, wanted = self._ledger, []
        for position, _ in layout.runs:
            if not ledger.data.has(ledger.data.base(position)):
                wanted.append((ledger.data, ledger.data.base(position)))
        base = ledger.index.base(first * INDEX_UNIT_SIZE)
        while base <= last_unit:
            if not ledger.index.has(base):
                wanted.append((ledger.index, base))
            base += ledger.index.file_size
        for segments, offset in wanted:
            segments.create(offset)
            made.append(segments)

    def write(self, first: int, layout: Layout) -> None:
        """
        Write a layout, for which files were made.

        @param first: index of its first entry.
        @raise DLedgerError: DISK_FULL; nothing that a start could find was written.
        @raise OSError: a write failed, or its traces could not be removed.
        """
        ledger, units, units_at = self._ledger, layout.units, first * INDEX_UNIT_SIZE
        try:
            for position, blob in layout.runs:
                ledger.data.pwrite(blob, position)
            room = ledger.index.file_size - units_at % ledger.index.file_size
            while len(units) > room:
                ledger.index.pwrite(units[:room], units_at)
                units, units_at, room = units[room:], units_at + room, ledger.index.file_size
            ledger.index.pwrite(units, units_at)
        except OSError as error:
            if not is_no_room(error):
                raise
            self._undo(first, layout)
            size = sum(len(blob) for _position, blob in layout.runs)
            raise self.refused(f"no room to write in place: {error}", size) from error

    def _undo(self, first: int, layout: Layout) -> None:
        """Make the bytes after the end zeros again. @raise OSError: some of them may be a record."""
        for position, blob in layout.runs:
            self._ledger.data.zero(position, position + len(blob))
        index, position = self._ledger.index, first * INDEX_UNIT_SIZE
        units_end = position + len(layout.units)
        while position < units_end:
            end = min(units_end, index.base(position) + index.file_size)
            index.zero(position, end)
            position = end

    def maintenance(
        self, now_s: float, local_hour: int, keep_from_index: int, drop_to_index: int
    ) -> list[DeletedSegment]:
        """
        Measure the room on the disk, delete expired files.

        @param now_s: seconds since 1970.
        @param local_hour: 0 to 23.
        @param keep_from_index: a follower or a reader still needs the entries from here on.
        @param drop_to_index: snapshots have the entries up to here, and they are to go; -1: none are.
        @return: the deleted files.
        @raise OSError: reading, measuring or deleting failed, and nothing has changed; a later call tries it
            again.
        @raise StoreError: the mark could not be written: the store is broken.
        """
        ledger = self._ledger
        deleted: list[DeletedSegment] = []
        ledger.guard.check()
        try:
            self._measure()
            keep_from_index = min(keep_from_index, self._archived_index() + 1)
            while len(deleted) < Expiry.FILES_MAX and len(ledger.data.offsets) > 1:
                following = self.scanner.first_record(ledger.data.offsets[1])
                if following is None or following[0] > ledger.end_index:
                    break
                last_index = following[0] - 1
                why = self._why_to_go(last_index, now_s, local_hour, keep_from_index, drop_to_index)
                if not why:
                    break
                path = ledger.data.path(ledger.data.offsets[0])
                if not self._before_expiry(last_index) or not self._moves_begin(ledger.data.offsets[1]):
                    break
                ledger.data.drop_first()
                ledger.begin_index = following[0]
                ledger.holes.begin_at(following[0], following[2])
                deleted.append(DeletedSegment(path=path, begin_index=following[0], why=why))
            base = ledger.index.base(max(ledger.begin_index, 0) * INDEX_UNIT_SIZE)
            while ledger.index.offsets and ledger.index.offsets[0] < base:
                ledger.index.drop_first()
            if deleted:
                self._measure()
        except OSError:
            if not deleted:
                raise
        return deleted

    def _moves_begin(self, position: int) -> bool:
        """Record that the log will begin at C{position}. @return: False: no room to do so; no file may go."""
        with self._ledger.guard.storing("house keeping failed"):
            try:
                self._marks.begin_will_be(position)
            except OSError as error:
                if not is_no_room(error):
                    raise
                return False
        return True

    def _archived_index(self) -> int:
        """The last entry that may go because an archive has it; the last one of all if none is needed."""
        ledger = self._ledger
        if not ledger.config.expire_only_archived:
            return ledger.end_index
        note = read_note(ledger.hints, ledger.config.self_path)
        if note is None or not ledger.begin_index <= note.end_index < ledger.end_index:
            return -1
        # A copied note, or one of a log that was here before, speaks of another record.
        behind = ledger.data.base(note.end_position + ledger.data.file_size - 1)
        following = self.scanner.first_record(behind)
        return note.end_index if following is not None and following[0] == note.end_index + 1 else -1

    def _why_to_go(
        self, last_index: int, now_s: float, local_hour: int, keep_from_index: int, drop_to_index: int
    ) -> str:
        """Why the first file, which ends with C{last_index}, goes now; empty if it stays."""
        committed, durable = self._ledger.committed_index, self._marks.durable.index
        # The last committed entry itself stays, too: a leader and a member with a tail of its own have at
        # least that one in common.
        if last_index >= min(committed, durable, keep_from_index):
            return ""
        if last_index <= drop_to_index:
            keep = self._ledger.config.machine_keep_entries
            return f"snapshots of the state machine have its entries: machine_keep_entries={keep}"
        return self.expiry.wants(self._ledger.data, now_s, local_hour, free_to_go=True)

    def _measure(self) -> None:
        self.expiry.measure(self._ledger.disk, self._ledger.data, self._ledger.config.self_path)
