# -*- test-case-name: tests.storage.test_directory -*-
"""
Opening a data directory: inspect, lock, recover.

L{inspect_ledger} only reads. It refuses a directory that must not be opened, and says what to do.
L{recover_ledger} brings the files into a known state; see L{dledger.storage.start.recovery} for its rules.

C{config.self_path} holds files of ours beside Java's: C{lock}, C{commitmark}, and C{termvote} of
L{dledger.storage.files.term_file}.
"""

from __future__ import annotations

import errno

import attrs

from dledger.base.disk.disk import Disk, File
from dledger.base.disk.hints import Hints
from dledger.base.disk.segment import Listing, SegmentList, file_name, list_segments, wrong_length
from dledger.base.disk.set_aside import SetAside
from dledger.storage.files.commit_mark import COMMIT_MARK_NAME, CommitMark, MarkFile, is_superseded, read_mark
from dledger.storage.files.hole_list import HoleList
from dledger.storage.files.properties import read_checkpoint
from dledger.storage.start.recovery import (
    adjacent,
    begin_crc_of,
    check_beginning,
    cut_behind,
    find_ledger,
    highest_held,
    highest_indexed,
    without_torn_end,
)
from dledger.storage.start.scanner import FoundLedger
from dledger.values.errors import DirectoryError, StoreError
from dledger.values.ledger.config import DLedgerConfig

LEDGER_LOCK_NAME = "lock"
#: Most bytes of a file that are reserved at a time.
RESERVED_BYTES = 4 * 1024 * 1024
_DATA_OPTION = "mapped_file_size_for_entry_data"
_UNFIT = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.EISDIR)
_INDEX_OPTION = "mapped_file_size_for_entry_index"


def reserved_step(file_size: int) -> int:
    """
    Bytes of a file that are reserved at a time. Files are sparse after them: a file of Java's size takes
    little room for its first entry.
    """
    small = min(file_size // 4, RESERVED_BYTES // 4)
    return max(small, min(file_size // 256, RESERVED_BYTES), 1)


def data_path(config: DLedgerConfig) -> str:
    """Directory of the data files."""
    return config.data_store_path or f"{config.self_path}/data"


def index_path(config: DLedgerConfig) -> str:
    """Directory of the index files."""
    return f"{config.self_path}/index"


@attrs.frozen(kw_only=True)
class LedgerSeen:
    """
    A directory that may be opened.

    @ivar mark: the commit mark, if it can be trusted.
    @ivar repair_end_index: value in the mark, trusted or not.
    @ivar committed_index: of the mark, trusted or not; without a mark of the checkpoint, which has no
        checksum: a flipped digit of it must not make entries committed.
    @ivar data, index: offsets of the files that belong to the ledger; the index may be empty.
    @ivar left_over: paths of files that a crash left behind, last first.
    """

    mark: CommitMark | None
    repair_end_index: int
    committed_index: int
    checkpoint: tuple[int, int] | None
    data: tuple[int, ...]
    index: tuple[int, ...]
    left_over: tuple[str, ...]

    @property
    def has_files(self) -> bool:
        """Whether there is any file of a ledger."""
        return bool(self.data or self.index or self.left_over) or self.checkpoint is not None


@attrs.frozen(kw_only=True)
class RecoveredLedger:
    """A ledger ready for use."""

    data: SegmentList
    index: SegmentList
    found: FoundLedger
    committed_index: int
    repair_end_index: int
    mark: CommitMark
    holes: HoleList
    aside: SetAside


def inspect_ledger(config: DLedgerConfig, hints: Hints) -> LedgerSeen:
    """
    Examine the directory without changing it.

    @raise DirectoryError: the directory must not be opened as it is.
    @raise StoreError: the directory cannot be read.
    """
    try:
        return _inspect(config, hints)
    except NotADirectoryError as error:
        raise DirectoryError(f"{config.self_path} is not a directory: {error}") from error
    except PermissionError as error:
        raise DirectoryError(f"{config.self_path} must be accessible to this user: {error}") from error
    except OSError as error:
        raise StoreError(f"{config.self_path} cannot be read: {error}") from error


def _inspect(config: DLedgerConfig, hints: Hints) -> LedgerSeen:
    disk = hints.disk
    if "," in config.data_store_path:
        raise DirectoryError(
            f"data_store_path={config.data_store_path!r} names several directories, which is not "
            "supported: put all data files into one"
        )
    checkpoint = read_checkpoint(hints, config.self_path)
    recorded = _recorded_mark(config, disk)
    repair_end = recorded.repair_end_index if recorded is not None else -1
    mark = recorded if recorded is not None and not is_superseded(recorded, checkpoint) else None
    size = config.mapped_file_size_for_entry_data
    directory = data_path(config)
    listing = list_segments(disk, directory, size, _DATA_OPTION)
    if listing.unfinished and not _explained(listing, mark):
        path = f"{directory}/{file_name(listing.unfinished[0])}"
        raise wrong_length(path, listing.unfinished_size, size, _DATA_OPTION)
    data = adjacent(listing, size, directory, mark)
    _check_first_file(data, directory, mark)
    left_over = _left_over(directory, listing, data)
    size = config.mapped_file_size_for_entry_index
    directory = index_path(config)
    listing = list_segments(disk, directory, size, _INDEX_OPTION)
    if listing.unfinished and mark is None and not _explained(listing, None):
        path = f"{directory}/{file_name(listing.unfinished[0])}"
        raise wrong_length(path, listing.unfinished_size, size, _INDEX_OPTION)
    index = listing.offsets
    if any(b != a + size for a, b in zip(index, index[1:], strict=False)):
        index = ()  # recovery rebuilds it from the data
    left_over += _left_over(directory, listing, index)
    committed = recorded.committed_index if recorded is not None else checkpoint[0] if checkpoint else -1
    return LedgerSeen(mark=mark, repair_end_index=repair_end, committed_index=committed,
                      checkpoint=checkpoint, data=data, index=index, left_over=left_over)


def _check_first_file(offsets: tuple[int, ...], directory: str, mark: CommitMark | None) -> None:
    """Retention records the new beginning before a file goes: a later beginning is a file that is missing."""
    if mark is not None and offsets and 0 <= mark.begin_position < offsets[0]:
        raise DirectoryError(
            f"{directory}: the ledger begins at offset {mark.begin_position}, but the first file is "
            f"{file_name(offsets[0])}; retention has not deleted the files before it. Put them back, or "
            f"restore this member from its peers; or remove {COMMIT_MARK_NAME} to go on with the files at "
            "hand, accepting that the entries before them are gone and that a lost tail goes unnoticed"
        )


def _explained(listing: Listing, mark: CommitMark | None) -> bool:
    """Whether a crash while the files were made explains the short file and the files after it."""
    if mark is None:
        return listing.unfinished_size == 0 and len(listing.unfinished) == 1
    return mark.settled_position <= listing.unfinished[0]


def _left_over(directory: str, listing: Listing, kept: tuple[int, ...]) -> tuple[str, ...]:
    offsets = [offset for offset in (*listing.offsets, *listing.unfinished) if offset not in set(kept)]
    return tuple(f"{directory}/{file_name(offset)}" for offset in reversed(offsets))


def _recorded_mark(config: DLedgerConfig, disk: Disk) -> CommitMark | None:
    found = read_mark(disk, f"{config.self_path}/{COMMIT_MARK_NAME}")
    if found is None:
        return None
    mark = found[1]
    for name, ours, theirs in (
        (_DATA_OPTION, mark.data_file_size, config.mapped_file_size_for_entry_data),
        (_INDEX_OPTION, mark.index_file_size, config.mapped_file_size_for_entry_index),
    ):
        if ours != theirs:
            raise DirectoryError(
                f"{config.self_path} was made with {name}={ours}, but is opened with {theirs}: start with "
                f"{ours}; file sizes cannot be changed, and must be the same on every member"
            )
    return mark


def lock_ledger(config: DLedgerConfig, disk: Disk) -> File:
    """
    Lock the directory for this process.

    @raise DirectoryError: another process holds the lock, or this user cannot write to the directory.
    @raise StoreError: the lock file cannot be locked.
    """
    path = f"{config.self_path}/{LEDGER_LOCK_NAME}"
    try:
        disk.makedirs(config.self_path)
        return disk.lock(path)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EAGAIN):
            raise DirectoryError(
                f"{config.self_path} is in use by another process (it holds {path}): stop that process, "
                "or give this member another store_base_dir or self_id"
            ) from error
        if error.errno in _UNFIT:
            raise DirectoryError(
                f"{config.self_path} must be a directory that this user can write to: {error}"
            ) from error
        raise StoreError(f"{path} cannot be locked: {error}") from error


def recover_ledger(
    config: DLedgerConfig, hints: Hints, seen: LedgerSeen
) -> tuple[RecoveredLedger, MarkFile]:
    """
    Bring the files into a known state.

    @raise StoreError, OSError: reading or writing failed; another start may try again.
    @raise DirectoryError: there is no trusted mark, and the first record is damaged.
    """
    initial = CommitMark(data_file_size=config.mapped_file_size_for_entry_data,
                         index_file_size=config.mapped_file_size_for_entry_index)
    disk = hints.disk
    aside = SetAside(disk)
    data, index = (
        SegmentList(disk, directory, size, offsets, step=reserved_step(size))
        for directory, size, offsets in (
            (data_path(config), initial.data_file_size, seen.data),
            (index_path(config), initial.index_file_size, seen.index),
        )
    )
    opened: list[SegmentList | MarkFile] = [data, index]
    try:
        if seen.mark is None:
            check_beginning(data, index)
        # Names of files that a killed process made here may be in the system's cache only.
        disk.sync_directory(config.self_path)
        _clear(seen, config, disk, aside)
        mark_file, _ = MarkFile.open(disk, f"{config.self_path}/{COMMIT_MARK_NAME}", initial)
        opened.append(mark_file)
        remembered = HoleList.recorded(hints, config.self_path)
        if remembered is None and seen.mark is not None:
            # A scan of everything finds the holes again.
            seen = attrs.evolve(seen, mark=attrs.evolve(seen.mark, damaged_index=0))
        recovered = _recover(
            seen, initial, mark_file, data, index, aside, HoleList(hints, config.self_path, remembered or ())
        )
        return recovered, mark_file
    except BaseException:
        for one in opened:
            one.close()
        raise


def _clear(seen: LedgerSeen, config: DLedgerConfig, disk: Disk, aside: SetAside) -> None:
    """Set the data files aside that a crash left behind, and delete such index files."""
    term = seen.mark.end_term if seen.mark is not None else -1
    for path in seen.left_over:
        if path.startswith(f"{data_path(config)}/"):
            aside.file(path, term)
        else:
            disk.unlink(path)
            disk.sync_directory(path.rpartition("/")[0])


def _recover(
    seen: LedgerSeen, initial: CommitMark, mark_file: MarkFile, data: SegmentList, index: SegmentList,
    aside: SetAside, holes: HoleList,
) -> RecoveredLedger:
    mark = seen.mark
    repair_end = seen.repair_end_index
    # Java's checkpoint also records the committed index; it may lag, but is never ahead.
    recorded = mark.recorded_end_index if mark is not None else seen.checkpoint[0] if seen.checkpoint else -1
    indexed = highest_indexed(index, mark.recorded_end_index) if mark is not None else -1

    def lost() -> None:
        # Before anything else, record durably that entries were lost.
        nonlocal repair_end
        held = highest_held(data, mark) if mark is not None else -1
        repair_end = max(repair_end, recorded, indexed, held)
        mark_file.write_durably(attrs.evolve(mark or initial, repair_end_index=repair_end, clean=False))

    found = find_ledger(data, index, mark, lost)
    if mark is not None:
        found = without_torn_end(data, index, mark, found)
    if found.end_index < recorded:
        lost()
    else:
        repair_end = seen.repair_end_index  # nothing is missing after all
        if repair_end < found.begin_index:
            # On a leader's order the ledger restarted after every entry it owed, but could not record that.
            repair_end = -1
    untouched = (
        mark is not None and mark.clean and not found.why
        and (found.end_index, found.end_position) == (mark.end_index, mark.end_position)
    )
    if not untouched or (data.offsets and data.offsets[-1] > found.end_position):
        cut_behind(data, index, found, aside, is_damaged=found.end_index < recorded)
    if not untouched:  # names and bytes of a killed process may be in the system's cache only
        data.touch_from(mark.settled_position if mark is not None else _late(data))
        index.touch_from(_late(index))
    data.sync()
    index.sync()
    committed = max(min(seen.committed_index, found.end_index), found.begin_index - 1, -1)
    mark = attrs.evolve(
        initial, committed_index=committed, end_index=found.end_index, end_term=found.end_term,
        end_position=found.end_position, index_end_position=found.end_position, repair_end_index=repair_end,
    )
    holes.found(found.holes, begin_index=found.begin_index, scanned_from_index=found.walked_from_index,
                end_index=found.end_index)
    if data.offsets:
        # The header of a first record that is damaged is not the one to expect.
        is_begin_lost = seen.mark is not None and holes.at(found.begin_index) is not None
        begin_crc = seen.mark.begin_crc if is_begin_lost and seen.mark is not None else begin_crc_of(data)
        mark = attrs.evolve(mark, begin_position=data.offsets[0], begin_crc=begin_crc)
    if holes.is_late:
        mark = attrs.evolve(mark, damaged_index=holes.holes[0].first_index if holes.holes else -1)
    mark_file.write_durably(mark)
    return RecoveredLedger(data=data, index=index, found=found, committed_index=committed,
                           repair_end_index=repair_end, mark=mark, holes=holes, aside=aside)


def _late(segments: SegmentList) -> int:
    """Offset of the third file from the end: earlier files were synced long ago."""
    return segments.offsets[max(len(segments.offsets) - 3, 0)] if segments.offsets else 0
