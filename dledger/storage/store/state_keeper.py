# -*- test-case-name: tests.storage.test_state_keeper -*-
"""
What a group knows beside its entries, as this ledger has it (L{dledger.values.ledger.group_state}): folded
while the ledger is written, saved beside it, folded on at a start.

Rule 1: the state is that of the file, or of another member, and all entries after it. A ledger that begins
after the state, or has a hole after it, has none: then nothing is folded, no producer may append and readers
are refused, until the hole is mended, L{StateKeeper.install} brings a state, or an operator's entry says that
it begins anew.
Rule 2: the file never counts further than what is committed and on stable storage. The files of the log go
only below the older of its two states.

Source: none, this is ours; docs/exactly-once.md, docs/readers.md, docs/times.md.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from dledger.base.disk.flush_job import FlushJob
from dledger.storage.files.records import chain_of, marks_in
from dledger.storage.files.state_file import (
    NO_STATE,
    STATE_NAME,
    StateEncoding,
    StateFile,
    StatePlace,
    StoredState,
)
from dledger.storage.start.open_ledger import MarkWriter, OpenLedger
from dledger.storage.store.store_reads import StoreReads
from dledger.values.errors import DamagedEntryError, DLedgerError
from dledger.values.ledger.group_state import GroupFold, GroupState, Marked, StateCapture, UnfitEntry
from protocols.wire.codes import ResponseCode
from protocols.wire.errors import WireError
from protocols.wire.ledger.entry import ENTRY_HEADER_SIZE, decode_header
from protocols.wire.ledger.own.own_entries import STATE_CHANNEL, is_hidden
from protocols.wire.ledger.own.state_entries import StateWord, decode_state_entry

_SCAN_BYTES = 1024 * 1024
#: The file is written when the ledger has grown by this, or into another data file: an archive, which ends
#: with a whole data file, finds a state before its end.
SAVE_EVERY_BYTES = 32 * 1024 * 1024
#: Entries that are looked at, from the end back, for the last one of a program.
_LOOK_BACK = 1024


class StateKeeper:
    """
    Invariant: C{fold} is None, or the fold of all entries of the ledger. Without one, C{_anew} is the first
    entry that is known here to begin the state anew; -1: there is none.

    @ivar fold: None: not known.
    @ivar is_saving: whether the flush under way writes the file.
    @ivar may_begin_unnumbered: Java wrote the directory, and no other member may have a state.
    @ivar why_unknown: the reason, for people; empty if it is known.
    """

    def __init__(self, ledger: OpenLedger, reads: StoreReads, marks: MarkWriter) -> None:
        self._ledger = ledger
        self._reads = reads
        self._marks = marks
        self._file = StateFile(ledger.disk, f"{ledger.config.self_path}/{STATE_NAME}")
        self.is_saving = False
        self._is_wanted = False
        self._is_void = False
        self._saved_position = 0
        self._saved_index = NO_STATE
        self.fold: GroupFold | None = GroupFold(GroupState())
        self.may_begin_unnumbered = self._is_foreign = False
        self.why_unknown = ""
        self._anew = -1
        self._folds_from = -1  # entries that are damaged from here on are needed; -1: none is
        self._last_program = -1
        self._is_last_sure = True

    # -- a start ---------------------------------------------------------------------------------

    def begin(self, *, is_foreign: bool = False) -> None:
        """
        Fold what the ledger, which was just opened, has.

        @param is_foreign: Java wrote the first entries, and no state of the group has begun since.
        @raise StoreError: it could not be read.
        """
        self._is_foreign = self._is_foreign or is_foreign
        ledger = self._ledger
        self._last_program = ledger.end_index
        self._is_last_sure = False
        with ledger.guard.storing("reading the state of the group failed"):
            stored = self._file.read()
        try:
            state = self._found(stored)
        except DamagedEntryError:
            return self._lack("an entry that the state of the group names is damaged",
                              folds_from=min(one.place.entry_index for one in stored))
        if state is None and max(ledger.begin_index, 0) == 0:
            state = GroupState()
        self.may_begin_unnumbered = state is None and self._is_foreign
        if state is None:
            self._lack(f"the log begins with the entry {ledger.begin_index}, and there is no state of the "
                       "group before it")
            self._anew = self._found_anew()
            self.commit_anew(ledger.committed_index)
        else:
            self._fold_on(state)

    def _found_anew(self) -> int:
        """
        The first entry near the end that begins the state anew; -1: there is none. (With the next flush or
        checkpoint after its commit the file has a state: one that is further back is not needed.)
        """
        ledger, index = self._ledger, max(self._ledger.begin_index, 0)
        try:
            index += bisect_left(range(index, ledger.end_index + 1), ledger.end_position - SAVE_EVERY_BYTES,
                                 key=self._reads.position_of)
            while index <= ledger.end_index:
                end_index, marks = self._read_marks(index)
                if (found := _begins_anew(marks)) >= 0:
                    return found
                index = end_index + 1
        except DamagedEntryError:
            pass  # (The hole after it would end the fold, too.)
        return -1

    def _read_marks(self, index: int) -> tuple[int, Sequence[Marked]]:
        """
        Look at some entries from C{index} on. @return: the last one, and the marks.

        @raise DamagedEntryError: the first one is damaged, so nobody knows whether it, or one after it, has
            a mark.
        """
        batch = self._reads.read_range(index, end_index=self._ledger.end_index, max_bytes=_SCAN_BYTES)
        return index + batch.count - 1, marks_in(batch)

    def begin_unnumbered(self) -> None:
        """
        Java wrote the entries before the log, and nobody has a state of the group. Producers that others led
        may be among them, so no producer is certainly new.
        """
        self._fold_anew(self._ledger.begin_index)

    def _fold_anew(self, index: int) -> None:
        """Nothing is known of the entries before C{index}; fold the others."""
        state = GroupState()
        state.index = index - 1
        state.has_forgotten = True
        self._fold_on(state)
        self._is_wanted = True  # (The next start finds files that are not Java's alone.)

    def _found(self, stored: Sequence[StoredState]) -> GroupState | None:
        """
        The newest state that is one of this ledger; others are void.

        @raise DamagedEntryError: it is not known whether one is.
        """
        found, damaged = [], None
        for one in stored:
            try:
                if self.is_of_this_ledger(one.place):
                    found.append(one.state)
                else:
                    self._file.void(one.generation)
            except DamagedEntryError as error:
                damaged = error
        if damaged is not None and not found:
            raise damaged
        return found[0] if found else None

    def is_of_this_ledger(self, place: StatePlace) -> bool:
        """
        Whether a state counts up to an entry of this ledger, or up to the one before its first.

        @raise DamagedEntryError: the entry is damaged.
        """
        ledger = self._ledger
        begin = ledger.begin_index if ledger.begin_index >= 0 else ledger.end_index + 1
        if place.entry_index < begin:
            return place.entry_index == begin - 1 and self._continues(place, begin)
        return place.entry_index <= ledger.end_index and place == self._place_of(place.entry_index)

    def _continues(self, place: StatePlace, begin: int) -> bool:
        """Whether the first entry may follow the one of a state; of a record by Java nobody can say."""
        if begin > self._ledger.end_index:
            return True
        head = self._reads.read_range(begin, end_index=begin, max_bytes=0).records[:ENTRY_HEADER_SIZE]
        return decode_header(head).chain_crc in (0, chain_of(head, place.chain_crc))

    def _place_of(self, index: int) -> StatePlace:
        if index < 0 or index < self._ledger.begin_index:
            return StatePlace(index, -1, -1, 0)
        header = decode_header(self._reads.read_range(index, end_index=index, max_bytes=0).records)
        return StatePlace(index, header.term, header.pos, header.chain_crc)

    def _fold_on(self, state: GroupState) -> None:
        """Fold the entries after a state."""
        ledger, fold, index = self._ledger, GroupFold(state), max(state.index + 1, 0)
        try:
            while index <= ledger.end_index:
                end_index, marks = self._read_marks(index)
                fold.take(marks)
                fold.commit(min(ledger.committed_index, end_index))
                index = end_index + 1
        except DamagedEntryError as error:
            return self._lack(f"damaged entries may name producers and readers: {error}",
                              folds_from=state.index + 1)
        except UnfitEntry as error:
            return self._lack(f"the log contradicts the state of the group: {error}")
        fold.commit(max(ledger.committed_index, state.index))
        self._has(fold)

    def _has(self, fold: GroupFold) -> None:
        self.fold = fold
        self.why_unknown = ""
        self._anew = self._folds_from = -1

    def void(self, why: str) -> None:
        """
        The state is wrong: it does not count, here and after a start.

        @raise StoreError: the file could not be removed.
        """
        self._lack(why)
        self._is_wanted = False
        self._saved_index = NO_STATE
        if self.is_saving:
            self._is_void = True  # (The flush would write it once more.)
        else:
            with self._ledger.guard.storing("removing the state of the group failed"):
                self._file.remove()

    def _lack(self, why: str, *, folds_from: int = -1) -> None:
        self.fold = None
        self.why_unknown = why
        self._folds_from = folds_from

    def hole_shrank(self) -> None:
        """An entry of a hole is back, or a hole was cut. @raise StoreError: the ledger could not be read."""
        if self._ledger.holes.end_index < self._folds_from:
            self.begin()

    # -- writes ----------------------------------------------------------------------------------

    def take(self, marks: Sequence[Marked]) -> None:
        """
        These entries are about to be written, see L{GroupFold.take}.

        @raise DLedgerError: INCONSISTENT_STATE: one does not fit; nothing has changed.
        """
        if self.fold is not None:
            try:
                self.fold.take(marks)
            except UnfitEntry as error:
                raise DLedgerError(ResponseCode.INCONSISTENT_STATE, index=marks[0].first_index,
                                   reason=str(error)) from None
        elif self._anew < 0:
            self._anew = _begins_anew(marks)

    def written(self, first_index: int, marks: Sequence[Marked]) -> None:
        """The ledger has grown by the entries from C{first_index} on; C{marks} are among them."""
        end = self._ledger.end_index
        for one in reversed(marks):
            if one.first_index + one.entries - 1 != end or not is_hidden(one.channel, 1):
                break
            end -= one.entries
        if end >= first_index:
            self._last_program = end
            self._is_last_sure = True

    @property
    def last_program_index(self) -> int:
        """
        Index of the last entry that is not hidden; -1: there is none. Too high where more than a thousand
        hidden ones follow it, and nobody has counted them.
        """
        looked = 0
        while not self._is_last_sure and self._last_program >= max(self._ledger.begin_index, 0):
            try:
                header = decode_header(self._reads.read_range(
                    self._last_program, end_index=self._last_program, max_bytes=0
                ).records)
            except DamagedEntryError:
                break
            looked += 1
            self._is_last_sure = not is_hidden(header.channel, header.chain_crc)
            if self._is_last_sure or looked > _LOOK_BACK:
                break
            self._last_program -= 1
        return self._last_program

    def commit_anew(self, committed_index: int) -> None:
        """The entries up to here are committed, and there is no fold: one of them may begin it anew."""
        if 0 <= self._anew <= committed_index:
            index, self._anew = self._anew, -1
            self._fold_anew(index)

    def cut(self, first_gone: int) -> None:
        """The ledger was cut, or the entries from here on were not written."""
        if self._last_program >= first_gone:
            self._last_program = first_gone - 1
            self._is_last_sure = False
        if self._anew >= first_gone:
            self._anew = -1
        if self.fold is not None:
            self.fold.cut(first_gone)

    def begin_anew(self, begin_index: int) -> None:
        """The ledger goes on at C{begin_index}, after entries that it never had."""
        self.may_begin_unnumbered = False
        self._anew = -1
        self._last_program = begin_index - 1
        self._is_last_sure = True
        if self.fold is not None and self.fold.state.index == begin_index - 1:
            self.fold.cut(begin_index)
        elif begin_index > 0:
            self._lack(f"the log begins with the entry {begin_index}, and another member has to give the "
                       "state of the group before it")
        else:
            self._has(GroupFold(GroupState()))

    def install(self, stored: StoredState) -> str:
        """
        Take up the state of another member, if it is of an entry of this ledger that is committed, and go on
        from there.

        @return: why it is of no use; empty if it was taken up.
        @raise StoreError: the ledger could not be read.
        """
        place, ledger = stored.place, self._ledger
        if place.entry_index > ledger.committed_index:
            return f"the log must be committed up to the entry {place.entry_index}"
        try:
            if not self.is_of_this_ledger(place):
                return f"its entry {place.entry_index} is not that of this log"
        except DamagedEntryError as error:
            return str(error)
        self._fold_on(stored.state)
        self._is_wanted = True  # (Members that all had it from others may lose power at once.)
        return self.why_unknown

    def encoding(self) -> tuple[StatePlace, StateEncoding]:
        """
        The last committed entry, and the state there, to be made bytes. The state is known.

        @raise DamagedEntryError: that entry is damaged.
        """
        assert self.fold is not None
        place = self._place_of(self.fold.state.index)
        return place, StateEncoding(self.fold.state.capture(), place)

    # -- the file --------------------------------------------------------------------------------

    def add_to(self, job: FlushJob) -> None:
        """Let a flush write the file, if it is due. L{flush_ended} follows."""
        position = self._ledger.end_position
        size = self._ledger.data.file_size
        is_due = (
            self._is_wanted or abs(position - self._saved_position) >= SAVE_EVERY_BYTES
            or position // size != self._saved_position // size
        )
        if is_due and (captured := self._captured()) is not None:
            self._saved_position = position
            self._is_wanted = False
            self.is_saving = True
            job.add_step(lambda: self._write(*captured))

    def flush_ended(self) -> None:
        """The flush that was given the file has ended."""
        self.is_saving = False
        if self._is_void:
            self._is_void = False
            with self._ledger.guard.storing("removing the state of the group failed"):
                self._file.remove()

    def _captured(self) -> tuple[StateCapture, StatePlace] | None:
        """The state as it is now; None: there is none, or the file has it."""
        if self.fold is None or self.is_saving or max(self._saved_index, -1) >= self.fold.state.index:
            return None
        try:
            return self.fold.state.capture(), self._place_of(self.fold.state.index)
        except DamagedEntryError:
            return None  # (Nothing could vouch for the state. A peer gives the entry back.)

    def check_point(self) -> None:
        """Write the file, if it is due and no flush has come. @raise StoreError: reading failed."""
        if self._is_wanted and not self.is_saving:
            saved_index = self._saved_index
            self.save()
            self._is_wanted = self._saved_index == saved_index

    def save(self) -> None:
        """
        Write the file, if it would differ, and the ledger is on stable storage as far.

        @raise StoreError: reading failed.
        """
        captured = self._captured()
        if captured is not None and captured[1].entry_index <= self._marks.durable.index:
            self._write(*captured)
            self._saved_position = self._ledger.end_position

    def before_expiry(self, last_index: int) -> bool:
        """
        The entries up to C{last_index} are about to be deleted.

        @return: whether both states of the file are of later ones.
        @raise StoreError: reading failed.
        """
        for _slot in range(2):
            if self._file.older_index < last_index:
                self._saved_index = min(self._saved_index, last_index - 1)
                self.save()
        self._is_wanted = self._file.older_index < last_index  # (By a flush, which goes as far as that.)
        return not self._is_wanted

    def _write(self, state: StateCapture, place: StatePlace) -> None:
        """If that fails, it is written later; retention keeps the entries after the older state."""
        try:
            self._file.write(state, place)
            self._saved_index = place.entry_index
        except OSError:  # (The disk of the log reports its failures itself.)
            pass


def _begins_anew(marks: Sequence[Marked]) -> int:
    """The first entry that begins the state anew; -1: none does."""
    for one in marks:
        if one.channel == STATE_CHANNEL:
            try:
                if decode_state_entry(one.body).word is StateWord.BEGIN_ANEW:
                    return one.first_index
            except WireError:
                continue  # (A member with the state refuses it.)
    return -1
