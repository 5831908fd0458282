# -*- test-case-name: tests.storage.test_file_store -*-
"""
The ledger in Java's files, written so that acknowledged entries survive.

Rule 1: a write is laid out and checked before a file is touched; a refusal has changed nothing.
Rule 2: any later failure is a L{StoreError}; the store then refuses everything but L{FileStore.abandon}.

This module appends. The other parts of a store are L{dledger.storage.store.store_cuts},
L{dledger.storage.store.store_reads}, L{dledger.storage.store.store_flush},
L{dledger.storage.store.store_room} and L{dledger.storage.start.open_ledger}; they share one
L{dledger.storage.start.open_ledger.OpenLedger}. Of terms the store knows only that they never fall from one
entry to the next; it knows nothing of votes and roles.

Source: DLedgerMmapFileStore.java (0.3.1.2); differs: docs/divergence.md W5, W13, W14, W16, W18, W21.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Self

from dledger.base.disk.disk import Disk, File
from dledger.base.disk.hints import Hints
from dledger.base.disk.set_aside import KeptFile, kept_files
from dledger.storage.files.chunk_checks import CHECKS
from dledger.storage.files.commit_mark import COMMIT_MARK_NAME, MarkFile
from dledger.storage.files.records import BodyStamps, Layout, configurations_in, pack_bodies
from dledger.storage.files.state_file import StateEncoding, StatePlace, StoredState
from dledger.storage.start.configurations import (
    MEMBERS_NAME,
    ConfigurationList,
    begin_joining,
    has_list,
    read_memberships,
)
from dledger.storage.start.directory import RecoveredLedger, inspect_ledger, lock_ledger, recover_ledger
from dledger.storage.start.identity import (
    MemberIdentity,
    begin_identity,
    identity_now,
    is_without_records,
    recorded_identity,
)
from dledger.storage.start.open_ledger import MarkWriter, OpenLedger
from dledger.storage.store.chunk_sums import ChunkSums
from dledger.storage.store.hole_finder import HoleFinder
from dledger.storage.store.hole_mending import HoleMending
from dledger.storage.store.scrub import SegmentScrub
from dledger.storage.store.state_keeper import StateKeeper
from dledger.storage.store.store_cuts import StoreCuts, StoreParts
from dledger.storage.store.store_flush import StoreFlush
from dledger.storage.store.store_reads import PIECE_BYTES, StoreReads
from dledger.storage.store.store_room import DeletedSegment, StoreRoom
from dledger.values.errors import DamagedEntryError, DLedgerError, StoreError
from dledger.values.ledger.chunks import ChunkSum
from dledger.values.ledger.config import DLedgerConfig
from dledger.values.ledger.group_state import GroupFold
from dledger.values.ledger.holes import Hole
from dledger.values.ledger.membership import Membership
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.batches import EntryBatch, EntryChunk
from protocols.wire.ledger.entry import ENTRY_HEADER_SIZE, INDEX_UNIT_SIZE
from protocols.wire.ledger.own.configuration import encode_configuration
from protocols.wire.ledger.own.own_entries import CONFIGURATION_CHANNEL


class FileStore:
    """
    See the module; the invariants are those of L{OpenLedger} and of the parts.

    Implements L{dledger.core.state.ports.LedgerView}, L{StoreReads}, L{StoreFlush}, L{StoreRoom}.

    @ivar ends: where it begins and ends, for the core.
    @ivar parts: its files, with the readers and writers of them: to look at, or to damage, in tests.
    @ivar identity: whose ledger this is, and what is recorded about it.
    @ivar read_batch: see L{StoreReads.read_batch}.
    @ivar prepare_flush, finish_flush, flush_failed: see L{StoreFlush}.
    @ivar scrub, scrub_from: see L{SegmentScrub.step}, L{SegmentScrub.begin_at}.
    """

    def __init__(
        self, config: DLedgerConfig, hints: Hints, lock: File, mark_file: MarkFile, recovered: RecoveredLedger
    ) -> None:
        disk = hints.disk
        ledger = self._ledger = OpenLedger.of(config, hints, recovered)
        self.ends = ledger
        self._lock = lock
        self._data = recovered.data
        self._index = recovered.index
        self._storing = ledger.guard.storing
        self._marks = MarkWriter(ledger, mark_file, recovered.mark)
        finder = HoleFinder(ledger, self._marks)
        self._reads = reads = StoreReads(ledger, self._marks, recovered.found.scanned_from_index, finder)
        self.read_batch = reads.read_batch
        self._mending = HoleMending(ledger, finder)
        scrub = SegmentScrub(ledger, self._marks, finder)
        self.scrub = scrub.step
        self.scrub_from = scrub.begin_at
        self._sums = ChunkSums(ledger)
        self.identity = MemberIdentity(config, hints, ledger.guard)
        path = f"{config.self_path}/{MEMBERS_NAME}"
        self._members = ConfigurationList(
            disk, path, read_memberships(disk, path), ledger.guard, self.identity.record_listed
        )
        self._state = StateKeeper(ledger, self._reads, self._marks)
        self._flush = flush = StoreFlush(ledger, self._marks, self._state)
        self.prepare_flush = flush.prepare_flush
        self.finish_flush = flush.finish_flush
        self.flush_failed = flush.flush_failed
        self._room = StoreRoom(ledger, self._marks, self._state.before_expiry)
        self.parts = StoreParts(
            ledger=ledger, data=self._data, index=self._index, marks=self._marks, reads=self._reads,
            sums=self._sums, members=self._members, state=self._state, room=self._room,
            flush=self._flush,
        )
        self._cuts = StoreCuts(self.parts, self._write)

    @classmethod
    def open(cls, config: DLedgerConfig, disk: Disk, *, boot_id: str = "") -> Self:
        """
        Lock, check and recover the directory C{config.self_path}; it is made if absent.

        @param boot_id: of this boot of the machine, see L{dledger.storage.start.identity}; empty if not
            known.
        @raise DirectoryError: the directory must not be opened as it is.
        @raise StoreError: reading or repairing the directory failed.
        """
        hints = Hints(disk)
        directory = inspect_ledger(config, hints)
        lock = lock_ledger(config, disk)
        try:
            # Look again: before we held the lock, another process may have changed the directory.
            directory = inspect_ledger(config, hints)
            recorded = recorded_identity(config, disk)
            is_clean = directory.mark is not None and directory.mark.clean
            had_mark = disk.exists(f"{config.self_path}/{COMMIT_MARK_NAME}")
            is_new = recorded is None and not directory.has_files and is_without_records(config, disk)
            begin_joining(config, disk, is_new=is_new)
            if is_new:
                begin_identity(config, disk, boot_id)
            recovered, mark_file = recover_ledger(config, hints, directory)
            store = cls(config, hints, lock, mark_file, recovered)
            store.identity.had_entries = had_mark and max(store.ledger_end_index, store.repair_end_index) >= 0
            store.identity.begin(identity_now(
                config, recorded, boot_id, is_clean=is_clean, is_new=is_new,
                is_empty=max(store.ledger_end_index, store.repair_end_index) < 0,
                is_listed=has_list(disk, f"{config.self_path}/{MEMBERS_NAME}")))
            store._members.keep_those_in(store._ledger, store.term_of)
            was_foreign = recorded is not None and bool(recorded.is_foreign)
            store._state.begin(is_foreign=was_foreign or (not had_mark and directory.has_files))
            store.identity.note_foreign(store._state.may_begin_unnumbered)
            return store
        except OSError as error:
            lock.close()
            raise StoreError(f"{config.self_path} cannot be opened: {error}") from error
        except BaseException:
            lock.close()
            raise

    def use(self, stamps: BodyStamps) -> None:
        """Stamp the bodies of all later writes."""
        self._ledger.stamps = stamps

    @property
    def ledger_begin_index(self) -> int:
        """First index present; -1 when empty."""
        return self._ledger.begin_index

    @property
    def ledger_end_index(self) -> int:
        """Last index present; -1 when empty."""
        return self._ledger.end_index

    @property
    def ledger_end_term(self) -> int:
        """Term of the last entry; -1 when empty."""
        return self._ledger.end_term

    @property
    def committed_index(self) -> int:
        """Last index known to be committed; -1 for none. At a start: of the last checkpoint."""
        return self._ledger.committed_index

    @property
    def repair_end_index(self) -> int:
        """-1: healthy. Else entries up to here were lost, and a leader must bring them back."""
        return self._ledger.repair_end_index

    @property
    def holes(self) -> tuple[Hole, ...]:
        """Damaged entries between sound ones, in order."""
        return self._ledger.holes.holes

    #: Last index of the last hole; -1 without any. (This and the next are asked in each step.)
    holes_end_index: int = property(attrgetter("_ledger.holes.end_index"))  # type: ignore[assignment]
    #: The members by the last configuration entry; None without any.
    membership: Membership | None = property(attrgetter("_members.current"))  # type: ignore[assignment]

    @property
    def is_end_proven(self) -> bool:
        return self._ledger.is_end_proven

    def look_again(self, index: int = -1) -> bool:
        """See L{HoleMending.look_again}."""
        has_shrunk = self._mending.look_again(index)
        self._hole_shrank()
        return has_shrunk

    def fill_hole(self, entries: EntryBatch, *, is_committed: bool) -> None:
        """See L{HoleMending.fill}."""
        self._mending.fill(entries, is_committed=is_committed)
        self._hole_shrank()

    def _hole_shrank(self) -> None:
        """Compare the last record with the one before it, if that has come back."""
        self._state.hole_shrank()
        ledger = self._ledger
        if ledger.is_end_proven or ledger.holes.end_index >= ledger.end_index - 1:
            return
        try:
            self._reads.read_range(ledger.end_index, end_index=ledger.end_index, max_bytes=0)
        except DamagedEntryError:
            return  # it is in a hole now
        ledger.is_end_proven = True

    @property
    def end_position(self) -> int:
        """Stream offset in bytes after the last record."""
        return self._ledger.end_position

    def term_of(self, index: int) -> int:
        return self._reads.term_of(index)

    def position_of(self, index: int) -> int:
        return self._reads.position_of(index)

    def read_range(self, first_index: int, *, end_index: int, max_bytes: int) -> EntryBatch:
        return self._reads.read_range(first_index, end_index=end_index, max_bytes=max_bytes)

    def read_unchecked(self, first_index: int, *, end_index: int, max_bytes: int) -> EntryBatch:
        return self._reads.read_unchecked(first_index, end_index=end_index, max_bytes=max_bytes)

    def holds(self, entry: EntryBatch) -> bool:
        return self._reads.holds(entry)

    def chunk_from(self, index: int) -> ChunkSum | None:
        return self._sums.behind(index, self._reads.position_of(index))

    def read_chunk(self, chunk: ChunkSum) -> EntryChunk | None:
        """See L{ChunkSums.read}."""
        return self._sums.read(chunk)

    @property
    def memberships(self) -> tuple[Membership, ...]:
        """The memberships that the ledger is known to have had, by index."""
        return self._members.known

    @property
    def group(self) -> GroupFold | None:
        return self._state.fold

    @property
    def why_group_unknown(self) -> str:
        """See L{StateKeeper.why_unknown}."""
        return self._state.why_unknown

    def encoding_group(self) -> tuple[StatePlace, StateEncoding]:
        """See L{StateKeeper.encoding}."""
        return self._state.encoding()

    def install_group(self, stored: StoredState) -> str:
        """See L{StateKeeper.install}."""
        return self._state.install(stored)

    def void_group(self, why: str) -> None:
        """See L{StateKeeper.void}."""
        self._state.void(why)

    @property
    def may_begin_group_anew(self) -> bool:
        """See L{StateKeeper}."""
        return self._state.may_begin_unnumbered

    def begin_group_anew(self) -> None:
        """See L{StateKeeper.begin_unnumbered}."""
        self._state.begin_unnumbered()

    @property
    def last_program_index(self) -> int:
        """See L{StateKeeper.last_program_index}."""
        return self._state.last_program_index

    # -- append ----------------------------------------------------------------------------------

    def append_configuration(self, membership: Membership, term: int) -> tuple[int, ...]:
        """Write a configuration entry after the end, as L{append_bodies} writes one body."""
        body = encode_configuration(membership.voters, membership.learners)
        if len(body) > self._ledger.config.body_bytes_max:
            raise DLedgerError(ResponseCode.INCONSISTENT_STATE, reason="too many members for a data file",
                               body_bytes=len(body), allowed=self._ledger.config.body_bytes_max)
        return self.append_bodies((body,), term, channels=(CONFIGURATION_CHANNEL,))

    def append_bodies(
        self, bodies: tuple[bytes, ...], term: int, *, channels: Sequence[int] = ()
    ) -> tuple[int, ...]:
        """
        Write bodies as entries after the end.

        @param term: term of every entry; not below that of the last entry.
        @param channels: see L{pack_bodies}.
        @return: stream offset of each record.
        @raise DLedgerError: DISK_FULL, and nothing has changed.
        @raise StoreError: a write failed.
        """
        ledger = self._ledger
        assert bodies and term >= ledger.end_term, (len(bodies), term, ledger.end_term)
        if self._room.expiry.why_full:
            self._room.check(len(bodies), len(bodies[0]), term)
        first, stamp = ledger.end_index + 1, ledger.stamps.begin()
        layout = pack_bodies(
            bodies, first_index=first, term=term, end_position=ledger.end_position,
            previous_chain_crc=ledger.chain_crc, file_size=self._data.file_size, channels=channels,
            stamp=stamp,
        )
        self._write(first, term, layout)
        whole = EntryBatch(first_index=first, count=len(bodies), term=term, records=layout.records)
        if len(layout.records) <= PIECE_BYTES:
            self._reads.batches.add(whole)
        else:
            self._reads.batches.add_written(whole, [ENTRY_HEADER_SIZE + len(body) for body in bodies])
        if stamp is not None:
            ledger.stamps.written()
        return tuple(layout.positions)

    def append_entries(self, entries: EntryBatch) -> None:
        """
        Check a leader's records and write them unchanged after the end.

        @raise DLedgerError: INCONSISTENT_STATE (index, term, pos or a checksum does not fit) or
            DISK_FULL, and nothing has changed.
        @raise StoreError: a write failed.
        """
        ledger = self._ledger
        if self._room.expiry.why_full:
            self._room.check(entries.count, len(entries.records) - ENTRY_HEADER_SIZE, entries.term)
        first = ledger.end_index + 1
        if entries.first_index != first:
            raise DLedgerError(ResponseCode.INCONSISTENT_STATE, reason="entries do not follow the end",
                               first_index=entries.first_index, ledger_end_index=ledger.end_index)
        layout = CHECKS[type(entries)](
            entries, first_index=first, last_term=ledger.end_term, end_position=ledger.end_position,
            previous_chain_crc=ledger.chain_crc if ledger.is_end_proven else None,
            file_size=self._data.file_size,
        )
        terms = layout.terms
        self._write(first, terms[-1][1] if terms else ledger.end_term, layout)
        one_term = not terms or (len(terms) == 1 and terms[0][0] == first)
        if one_term and layout.sums is None:
            self._reads.batches.add(entries)
        else:
            self._reads.batches.clear()

    def _write(self, first: int, term: int, layout: Layout, *, lists: bool = True) -> None:
        """@param lists: list configuration entries before; then all is durable on return."""
        ledger, marked = self._ledger, layout.marked
        if ledger.guard.broken:
            ledger.guard.check()
        listed = configurations_in(marked) if marked and lists else ()
        try:
            self._room.make(first, layout)
            if marked:
                self._state.take(marked)
            try:
                if listed:
                    self._members.note(listed)
                self._room.write(first, layout)
            except DLedgerError:
                self._members.cut(first)
                self._state.cut(first)
                raise
        except OSError as error:  # (as guard.storing, which would take two calls more)
            raise ledger.guard.fail(f"writing failed: {error}") from error
        if ledger.begin_index < 0:
            ledger.begin_index = first
            self._marks.note_begin()
        count = len(layout.units) // INDEX_UNIT_SIZE
        ledger.end_index = first + count - 1
        term_before, ledger.end_term = ledger.end_term, term
        ledger.end_position = layout.end_position
        ledger.chain_crc = layout.chain_crc
        ledger.is_end_proven = True
        if layout.sums is None:
            self._reads.recent.extend(layout.positions, layout.terms, term_before)
        else:  # a chunk; its index units are read when somebody asks
            self._reads.recent.reset(first + layout.entries)
        self._sums.written(first, count, term, layout, is_listed=bool(listed))
        self._state.written(first, marked)
        if listed:
            self._flush.sync()

    def truncate_to(
        self, entry: EntryBatch, *, anew: bool = False, reported: tuple[Membership, ...] = ()
    ) -> None:
        """
        Make this single entry the last one, durably.

        Present: cut after it. Within the ledger or just after it, but not present: cut at its index
        and write it. Out of the ledger's reach: start anew with it, if it is the first record of a
        file (else a reader could not find the beginning again) and no committed entry goes: either the
        ledger is empty, or all of it lies below a leader's beginning.

        @param anew: restart even if the entry would fit after the end.
        @param reported: the leader's memberships; of use when the ledger begins after configuration entries.
        @raise DLedgerError: INCONSISTENT_STATE or DISK_FULL, and nothing has changed.
        @raise StoreError: a write or fsync failed.
        """
        self._cuts.truncate_to(entry, anew=anew, reported=reported)
        self._state.hole_shrank()

    def record_commit(self, committed_index: int) -> None:
        """Record the last index that readers may see; the next flush or checkpoint writes it."""
        ledger = self._ledger
        assert committed_index <= ledger.end_index, (committed_index, ledger.end_index)
        if committed_index > ledger.committed_index:
            ledger.committed_index = committed_index
            fold = self._state.fold
            if fold is not None:
                fold.commit(committed_index)
            else:
                self._state.commit_anew(committed_index)

    def end_repair(self) -> None:
        """Clear the repairing mark, durably, with all that was brought back."""
        self._ledger.repair_end_index = -1
        self._flush.sync()

    def check_point(self, *, force: bool = False) -> None:
        self.identity.check_point()
        self._flush.check_point(force=force)
        self._state.check_point()

    def kept_files(self) -> list[KeptFile]:
        """
        Everything that was ever set aside from this ledger, by this process or earlier ones.

        @raise StoreError: it cannot be listed.
        """
        with self._storing("listing the files that were set aside failed"):
            return kept_files(self._ledger.disk, self._data.directory)

    def hint_news(self) -> dict[str, str]:
        """See L{Hints.news}."""
        return self._ledger.hints.news()

    @property
    def set_aside(self) -> list[KeptFile]:
        """What this process has set aside, in order."""
        return self._ledger.aside.kept

    @property
    def disk_full(self) -> bool:
        """Whether appends are refused for want of room; refreshed by L{maintenance}."""
        return self._room.disk_full

    @property
    def disk_nearly_full(self) -> bool:
        """Whether appends soon will be refused for want of room; refreshed by L{maintenance}."""
        return self._room.disk_nearly_full

    def reread(self, config: DLedgerConfig) -> None:
        self._room.reread(config)

    def maintenance(
        self, now_s: float, local_hour: int, *, keep_from_index: int, drop_to_index: int = -1
    ) -> list[DeletedSegment]:
        if self._ledger.holes.is_late:
            self._ledger.holes.write()  # There may be room now.
        self._sums.try_again()
        deleted = self._room.maintenance(now_s, local_hour, keep_from_index, drop_to_index)
        if deleted:
            self._sums.files_gone()
            self._hole_shrank()  # (One may have gone with a file.)
        return deleted

    def clean_close(self) -> None:
        """Bring everything to stable storage, mark the directory clean, release it."""
        assert self._flush.job is None, "a flush is under way"
        self._sums.close()
        # A mark that says "clean" beside an older checkpoint would look like a directory that Java has used.
        if not self._ledger.guard.broken and self._flush.write_checkpoint():
            self._state.save()
            self._marks.close_clean()
        self.abandon()

    def abandon(self) -> None:
        """Release all handles without writing. More than once is harmless."""
        self._ledger.guard.fail("it is closed")
        self._data.close()
        self._index.close()
        self._sums.abandon()
        if self._flush.job is None:
            self._marks.close()
        self.identity.close()
        self._lock.close()
