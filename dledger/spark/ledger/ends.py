# -*- test-case-name: tests.damage.test_slice -*-
"""
Where the ledger of a member's directory begins, and how far it is recorded as committed.

Rule: the records of the directory are believed, and the files must agree. The commit mark (ours) and the
checkpoint (Java's and ours) say how far the ledger is committed; the higher one counts, because a commit is
never taken back. A directory whose files do not reach that far, or whose first record cannot be found, is
damaged: there is no search for an end before the recorded one.

A live member changes its files while they are looked at. Its records are never ahead of its files, so they
are read first; a contradiction counts only when a second look at unchanged files finds it again.

Java's directories have a checkpoint without a checksum, and no record of their first file. There it cannot be
proved that the checkpoint's number is the one that Java wrote, nor that a missing first file has not expired.
"""

from __future__ import annotations

import time

import attrs
import numpy as np

from dledger.base.disk.disk import ReadOnlyDisk
from dledger.base.disk.file_table import LEDGER_CHECKPOINT
from dledger.base.disk.segment import SegmentReader, offsets_in
from dledger.base.disk.two_slots import SLOT_SIZE
from dledger.spark.formats.log import DamageError, FixedParts, ReadError, skipped
from dledger.storage.files.commit_mark import COMMIT_MARK_NAME, CommitMark, decode_mark, is_superseded
from dledger.storage.files.properties import decode_ledger_checkpoint
from dledger.storage.files.reader import require_ledger
from dledger.storage.start.identity import IDENTITY_NAME, read_identity
from dledger.values.errors import DirectoryError
from protocols.wire.checksums import crc32
from protocols.wire.layout import dtype_of
from protocols.wire.ledger.entry import (
    BLANK,
    BLANK_MAGIC,
    ENTRY_HEADER,
    ENTRY_HEADER_SIZE,
    INDEX_UNIT_DECLARATION,
    INDEX_UNIT_SIZE,
    MAGIC,
)

UNIT_DTYPE = np.dtype(dtype_of(INDEX_UNIT_DECLARATION))
assert UNIT_DTYPE.itemsize == INDEX_UNIT_SIZE
#: Index units in one read.
UNITS_AT_ONCE = 128 * 1024
#: Files of data, and of index, that stay open.
_HANDLES_MAX = 32
#: Pause before the second look at a contradiction, seconds.
LOOK_AGAIN_S = 0.002
#: A state that a live member passes through, such as a checkpoint that is being replaced, may last this long.
PASSING_S = 1.0
_DISK = ReadOnlyDisk()


class _Unfit(Exception):
    """
    The records and the files contradict each other.

    @ivar is_passing: a live member may be changing them at this moment.
    @ivar is_damage: false: nothing is known to be damaged, but the ledger's range is not known.
    """

    def __init__(self, what: str, *, is_passing: bool = False, is_damage: bool = True) -> None:
        super().__init__(what)
        self.is_passing = is_passing
        self.is_damage = is_damage


@attrs.frozen(kw_only=True)
class _Records:
    """The two files that say how far the ledger is committed; None: the file does not exist."""

    mark: bytes | None
    checkpoint: bytes | None


class MemberFiles:
    """
    A member's directory, read only.

    @ivar data, index: the files, as of the last L{look}.
    @ivar begin_index: the first entry that is still there; 0 if there is no record.
    @ivar committed_index: the last entry that is recorded as committed; -1 for none.
    @ivar missing: why entries before C{begin_index} are lost and have not expired; empty if they are not.
    """

    def __init__(self, path: str, data_path: str, *, fail_on_damage: bool) -> None:
        """@raise ReadError: C{path} is not a member's directory, or it cannot be read."""
        self.path = path.rstrip("/") or "/"
        self._fail_on_damage = fail_on_damage
        data_path = data_path or f"{self.path}/data"
        try:
            require_ledger(_DISK, self.path, data_path)
        except DirectoryError as error:
            raise ReadError(str(error)) from None
        except OSError as error:
            raise ReadError(f"{path} cannot be read: {error}") from None
        self.data = SegmentReader(_DISK, data_path, handles_max=_HANDLES_MAX)
        self.index = SegmentReader(_DISK, f"{self.path}/index", handles_max=_HANDLES_MAX)
        self.begin_index = 0
        self.committed_index = -1
        self.missing = ""
        self._said: set[str] = set()

    def look(self) -> None:
        """
        Find again where the ledger begins, and how far it is committed.

        @raise DamageError: the files do not agree with the records, and C{failOnDamage} is set.
        @raise ReadError: the directory cannot be read, or nothing says how far it is committed.
        """
        before: object = None
        deadline = time.monotonic() + PASSING_S
        while True:
            try:
                self._look()
                return
            except _Unfit as unfit:
                problem = unfit
            except FileNotFoundError as error:  # a file has expired since it was listed
                problem = _Unfit(str(error), is_passing=True, is_damage=False)
            except (DirectoryError, OSError) as error:
                raise ReadError(f"{self.path} cannot be read: {error}") from None
            now = self._snapshot()
            may_pass = problem.is_passing or now != before
            if not may_pass or time.monotonic() >= deadline:
                raise self._error(problem)
            before = now
            time.sleep(LOOK_AGAIN_S)

    def _error(self, problem: _Unfit) -> ReadError:
        if not problem.is_damage:
            return ReadError(str(problem))
        return DamageError(f"{problem}. With option failOnDamage=false the rest is read, with a warning")

    def _unfit(self, what: str, *, is_passing: bool = False) -> None:
        """Report a contradiction: as an error, or once as a warning if C{failOnDamage} is not set."""
        if self._fail_on_damage:
            raise _Unfit(what, is_passing=is_passing)
        if what not in self._said:
            self._said.add(what)
            skipped(what)

    def _snapshot(self) -> object:
        """A value that differs when the files or the records have changed."""
        return self._records(), tuple(self.data.offsets), tuple(self.index.offsets)

    def _look(self) -> None:
        # Files of the same name may be others since, if the directory was made anew.
        self.close()
        # In this order: the records are never ahead of the files.
        records = self._records()
        mark, checkpoint = self._mark(records), self._checkpoint(records)
        _list(self.data, mark.data_file_size if mark is not None else 0)
        _list(self.index, mark.index_file_size if mark is not None else 0)
        recorded = max(mark.committed_index if mark else -1, checkpoint[0] if checkpoint else -1)
        if mark is not None and mark.repair_end_index > mark.committed_index:
            self._repairing(mark)
        first = self._first_header()
        if mark is None and checkpoint is None and any(first[1]):
            raise self._unrecorded()
        if mark is None and checkpoint is not None:
            self._check_age(checkpoint)
        is_ours = mark is not None and recorded >= 0 and not is_superseded(mark, checkpoint)
        self.missing = self._missing_file() if is_ours else ""
        if mark is not None and is_ours:
            self._check_first_header(mark, *first)
            self._check_closed(mark)
        begin = self._begin(first, recorded)
        self.begin_index = begin
        self.committed_index = self._end(begin, recorded) if recorded >= begin else -1

    # -- what is recorded -----------------------------------------------------------------------

    def _records(self) -> _Records:
        return _Records(
            mark=self._content(COMMIT_MARK_NAME), checkpoint=self._content(LEDGER_CHECKPOINT.name)
        )

    def _content(self, name: str) -> bytes | None:
        try:
            return _DISK.read_file(f"{self.path}/{name}")
        except FileNotFoundError:
            return None

    def _mark(self, records: _Records) -> CommitMark | None:
        if records.mark is None:
            return None
        sound = []
        for at in (0, SLOT_SIZE):
            decoded = decode_mark(records.mark[at : at + SLOT_SIZE])
            if decoded is not None:
                sound.append(decoded)
                continue
            self._unfit(
                f"{self.path}/{COMMIT_MARK_NAME} at {at}: this slot of the commit mark is not sound, so the "
                "newest mark may be lost: start the member once, which writes it again, or read another one"
            )
        return max(sound, key=lambda found: found[0])[1] if sound else None

    def _checkpoint(self, records: _Records) -> tuple[int, int] | None:
        path = f"{self.path}/{LEDGER_CHECKPOINT.name}"
        if records.checkpoint is None:
            # Java deletes the file before it renames the new one.
            if any(_DISK.exists(path + suffix) for suffix in (".tmp", ".bak")) and records.mark is None:
                self._unfit(f"{path}: the checkpoint is missing, and only what Java keeps beside it is there",
                            is_passing=True)
            return None
        found = decode_ledger_checkpoint(records.checkpoint)
        if found is None:
            self._unfit(f"{path} at 0: the checkpoint is malformed, committedIndex=<number> and "
                        "endIndex=<number> are expected")
        return found

    def _repairing(self, mark: CommitMark) -> None:
        what = (f"{self.path}/{COMMIT_MARK_NAME}: the member is repairing: entries up to "
                f"{mark.repair_end_index} were lost, and a leader has brought them back up to "
                f"{mark.committed_index}: read another member, or wait")
        if self._fail_on_damage:
            raise _Unfit(what, is_damage=False, is_passing=True)
        self._unfit(what)

    def _unrecorded(self) -> _Unfit:
        return _Unfit(
            f"{self.path} holds entries, but neither {COMMIT_MARK_NAME} nor {LEDGER_CHECKPOINT.name} is "
            "there to say how far they are committed: start the member, or read another one (a Java member "
            "writes its checkpoint three seconds after its first start)", is_damage=False, is_passing=True,
        )

    def _check_age(self, checkpoint: tuple[int, int]) -> None:
        """Without the mark that a directory of ours must have, the checkpoint must be as new as the files."""
        mark, end = f"{self.path}/{COMMIT_MARK_NAME}", checkpoint[1]
        is_ours = _DISK.exists(f"{self.path}/{IDENTITY_NAME}") and not _DISK.exists(mark)
        if is_ours and end >= 0 and self.unit(end + 1) is not None:
            self._unfit(f"{mark}: the commit mark of this directory is missing, and the checkpoint, which "
                        f"ends at entry {end}, is older than the files: entries after it may be committed. "
                        "Start the member once, or read another one")

    def _missing_file(self) -> str:
        """
        Why the files do not begin where the ledger does; empty if they do. A file that expires is recorded
        before it goes, so the mark that was written last counts.
        """
        mark = self._mark(self._records())
        offsets, recorded = self.data.offsets, mark.begin_position if mark is not None else -1
        if not offsets or not 0 <= recorded < offsets[0]:
            return ""
        return (f"{self.data.path(recorded)} at 0: this data file is missing and has not expired: the commit "
                f"mark records that the ledger begins with it, and the first file is {offsets[0]:020d}")

    # -- what the files hold --------------------------------------------------------------------

    def _first_header(self) -> tuple[int, bytes]:
        """Stream offset and bytes of the first header; no bytes if there is no file."""
        for offset in self.data.offsets:
            header = self.data.pread(ENTRY_HEADER_SIZE, offset)
            is_blank = len(header) >= BLANK.size and BLANK.unpack_from(header) == (
                BLANK_MAGIC, self.data.file_size)
            if not is_blank:
                return offset, header
        return 0, b""

    def _check_first_header(self, mark: CommitMark, offset: int, header: bytes) -> None:
        """The chain of checksums begins after this header, so the mark has one of its own for it."""
        is_recorded = mark.begin_crc != 0 and self.data.offsets[:1] == [mark.begin_position]
        if is_recorded and len(header) == ENTRY_HEADER_SIZE and crc32(header) != mark.begin_crc:
            self._unfit(f"{self.data.path(offset)} at 0: the first header of the ledger does not match the "
                        "checksum of it in the commit mark")

    def _check_closed(self, mark: CommitMark) -> None:
        """A member that was stopped in order has nothing after the end that its mark records."""
        if mark.clean and mark.end_index >= 0 and self.unit(mark.end_index + 1) is not None:
            self._unfit(f"{self.path}/{COMMIT_MARK_NAME}: this member was stopped at entry {mark.end_index}, "
                        "and the files have later ones: the mark is an older copy than they are, and entries "
                        "after it may be committed. Start the member once, or read another one")

    def _begin(self, first: tuple[int, bytes], recorded: int) -> int:
        """The first entry: its header and its index unit confirm each other, or one of them is believed."""
        offset, header = first
        if not header and recorded >= 0:
            self._unfit(f"{self.data.directory}: there is no data file with entries, but entries up to "
                        f"{recorded} are recorded as committed")
            return recorded + 1
        if not any(header):
            return self._indexed_begin(offset, recorded) if recorded >= 0 else 0
        found = _index_in(header, offset)
        unit = self.unit(found) if found >= 0 else None
        if unit is not None and unit[1] == offset:
            return found
        if recorded < 0:
            return max(found, 0)
        return self._indexed_begin(offset, recorded, default=found)

    def _indexed_begin(self, offset: int, recorded: int, *, default: int = -1) -> int:
        """
        The entry whose index unit says that it begins at C{offset}.

        @param default: result if there is none; -1: that is a contradiction.
        """
        first_sound = -1
        at = self.index.offsets[0] // INDEX_UNIT_SIZE if self.index.offsets else recorded + 1
        while at <= recorded:
            units, is_sound = self.units(at, min(recorded + 1 - at, UNITS_AT_ONCE))
            if not len(units):
                break
            if first_sound < 0 and is_sound.any():
                first_sound = at + int(np.argmax(is_sound))
            fits = is_sound & (units["pos"] == offset)
            if fits.any():
                return at + int(np.argmax(fits))
            at += len(units)
        if default >= 0:
            return default
        self._unfit(f"{self.data.path(offset)} at 0: there is no sound record at the beginning, and no index "
                    "unit points to it")
        return first_sound if first_sound >= 0 else recorded + 1

    def _end(self, begin: int, recorded: int) -> int:
        """The last entry to read: C{recorded}, whose index unit must be there."""
        if self.unit(recorded) is not None:
            return recorded
        last = self._last_unit(begin, recorded)
        position = (last + 1) * INDEX_UNIT_SIZE
        base = self.index.base(position)
        place = f"{self.index.path(base)} at {position - base}" if base >= 0 else (
            f"{self.index.directory} at {position}, where no file is")
        self._unfit(f"entry {last + 1} cannot be found, but entries up to {recorded} are recorded as "
                    f"committed: {place}: no sound index unit")
        return last if last >= begin else -1

    def _last_unit(self, begin: int, recorded: int) -> int:
        """The last entry up to C{recorded} with a sound index unit; C{begin - 1} if there is none."""
        for base in reversed(self.index.offsets):
            first = base // INDEX_UNIT_SIZE
            at = max(first, begin)
            last = -1
            end = min(first + self.index.file_size // INDEX_UNIT_SIZE, recorded + 1)
            while at < end:
                units, is_sound = self.units(at, min(end - at, UNITS_AT_ONCE))
                if not len(units):
                    break
                if is_sound.any():
                    last = at + int(np.flatnonzero(is_sound)[-1])
                at += len(units)
            if last >= 0:
                return last
        return begin - 1

    # -- reading --------------------------------------------------------------------------------

    def unit(self, index: int) -> tuple[int, int, int, int, int] | None:
        """Magic, pos, size, index and term of an index unit; None if it is absent or not sound."""
        units, is_sound = self.units(index, 1)
        if not is_sound.any():
            return None
        magic, pos, size, number, term = map(int, units[0])
        return magic, pos, size, number, term

    def units(self, index: int, count: int) -> tuple[FixedParts, FixedParts]:
        """Units from C{index} on, at most C{count} and up to the end of their file; and which are sound."""
        data = self.index.pread(count * INDEX_UNIT_SIZE, index * INDEX_UNIT_SIZE)
        units = np.frombuffer(data, dtype=UNIT_DTYPE, count=len(data) // INDEX_UNIT_SIZE)
        is_sound = (units["magic"] == MAGIC) & (units["size"] >= ENTRY_HEADER_SIZE) & (units["pos"] >= 0)
        is_sound &= units["index"] == np.arange(index, index + len(units), dtype=np.int64)
        return units, is_sound

    def group_id(self) -> str:
        """
        The id of the group that the directory belongs to; empty if it records none that a quorum holds.

        @raise ReadError: the record is damaged.
        """
        try:
            found = read_identity(_DISK, f"{self.path}/{IDENTITY_NAME}")
        except (DirectoryError, OSError) as error:
            raise ReadError(f"{self.path}: the group of this directory is not known: {error}") from None
        return found[1].group_id if found is not None and found[1].is_group_known else ""

    def close(self) -> None:
        """Release all handles."""
        self.data.close()
        self.index.close()


def _list(files: SegmentReader, file_size: int) -> None:
    """List a directory of segments again. @param file_size: as recorded; 0: not recorded."""
    directory = files.directory
    offsets, foreign = offsets_in(_DISK, directory) if _DISK.exists(directory) else ([], "")
    if foreign:
        raise DirectoryError(f"{directory}/{foreign} is not a ledger's file (names are 20 digits)")
    if offsets:
        file_size = file_size or _DISK.file_size(files.path(offsets[0]))
    # A live member may be creating the last file.
    if len(offsets) > 1 and _DISK.file_size(files.path(offsets[-1])) != file_size:
        offsets.pop()
    files.show(offsets, file_size or files.file_size)


def _index_in(header: bytes, offset: int) -> int:
    """The index in a record's header at stream offset C{offset}; -1 if the header does not fit there."""
    if len(header) < ENTRY_HEADER_SIZE:
        return -1
    magic, size, index, _term, pos, _channel, _chain, _crc, length = ENTRY_HEADER.unpack(header)
    is_sound = magic == MAGIC and pos == offset and size == length + ENTRY_HEADER_SIZE and length >= 0
    return int(index) if is_sound and index >= 0 else -1
