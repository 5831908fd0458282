# -*- test-case-name: tests.storage.test_backup -*-
"""
Taking a backup of a member, running or stopped, ours or Java's, into a directory.

Only committed entries are copied, up to the commit that the member's mark records: they are the same at all
members and never change, so nothing has to be stopped or locked there. The files that come next are held
open, so the member's retention may delete them meanwhile. Every record is checked while it is copied: place,
index, term, checksums, and that it continues from the record before it.

Rule 1: a backup is only ever continued, with entries after its end, and only if the member holds the very
entry at which it ends. Anything else is refused, and the backup stays as it is.
Rule 2: what is in the manifest is on stable storage; see L{dledger.storage.manifests.backup_manifest}. The
manifest is replaced after each segment, so a backup that is cut short, by damage at the member for example,
keeps all segments before.
Rule 3: after the log, the newest snapshot of the member's state machine that this log reaches is copied, see
L{dledger.storage.backups.machine_copy}.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator

import attrs

from dledger.base.disk.disk import Disk, File
from dledger.storage.backups.backup_source import (
    BackupSource,
    check_begin,
    check_same_end,
    check_same_group,
    end_of,
    known_before,
    last_record,
)
from dledger.storage.backups.machine_copy import (
    MachineFiles,
    SnapshotTaking,
    TakenMachine,
    unlisted_snapshots,
    write_snapshot_file,
)
from dledger.storage.files.reader import HELD_BYTES_MAX
from dledger.storage.manifests.backup_manifest import (
    BACKUP_NAME,
    BackupManifest,
    Piece,
    encode_backup_manifest,
    piece_name,
    read_backup_manifest,
)
from dledger.storage.manifests.kept_snapshot import (
    MACHINE_DIRECTORY,
    KeptMachine,
    KeptSnapshot,
    snapshots_of,
    usable_snapshot,
    why_no_start,
)
from dledger.storage.manifests.part_file import PART_SUFFIX, PartFile, is_piece_name, remove_parts
from dledger.values.errors import DirectoryError, StoreError
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.entry import ENTRY_HEADER

_LOCK_NAME = "lock"
#: Bytes that are read, checked and written at a time, if a record is not longer.
RUN_BYTES = 1024 * 1024

#: Reported the bytes that are done and those to do.
CopyProgress = Callable[[int, int], None]
#: Called with each number of bytes read; may wait, so that the rate stays bounded.
CopyPace = Callable[[int], None]


def no_progress(done: int, total: int) -> None:
    """Inform nobody."""


def no_pace(count: int) -> None:
    """Do not wait."""


@attrs.frozen(kw_only=True)
class BackupSummary:
    """
    What a backup did.

    @ivar new_entries, new_bytes: copied by this backup.
    @ivar begin_index, end_index: entries in the backup now, inclusive.
    @ivar total_bytes: of the records in the backup now.
    @ivar snapshot_index: last entry in the snapshot of the state machine that is in the backup now and can be
        used; -1 for none.
    @ivar new_snapshot_bytes: of snapshots, copied by this backup.
    @ivar start_problem: why a state machine could not start from the backup; empty if it could.
    @ivar refused_snapshots: sentences about snapshots of the member that were left out.
    """

    directory: str
    new_entries: int
    new_bytes: int
    begin_index: int
    end_index: int
    total_bytes: int
    snapshot_index: int
    new_snapshot_bytes: int
    start_problem: str
    refused_snapshots: tuple[str, ...]


def take_backup(
    source: BackupSource, disk: Disk, directory: str, *, taken_s: int, progress: CopyProgress = no_progress,
    pace: CopyPace = no_pace,
) -> BackupSummary:
    """
    Copy what C{directory} lacks of the committed entries of C{source}.

    @param directory: an earlier backup, or one that does not exist or is empty.
    @param taken_s: the time now, in seconds since 1970.
    @raise DirectoryError: C{directory} is something else, or a backup of another log. Nothing has changed.
    @raise StoreError: an entry is damaged, which the message names, or a file cannot be read or written. The
        backup has all entries of before, and perhaps whole segments more.
    """
    directory = directory.rstrip("/") or "/"
    source.check_apart(directory)
    try:
        with_lock = _locked(disk, directory)
        try:
            manifest = read_backup_manifest(disk, directory)
            if manifest is None:
                _check_unused(disk, directory)
            else:
                _check_same_log(source, manifest, directory)
            disk.makedirs(f"{directory}/data")
            remove_parts(disk, directory)
            return _Copy(source, disk, directory, manifest, taken_s).run(progress, pace)
        finally:
            with_lock.close()
    except OSError as error:
        raise StoreError(f"{directory} cannot be written: {error}", path=directory) from error


def _locked(disk: Disk, directory: str) -> File:
    """Two backups at a time would write the same pieces."""
    if disk.exists(directory) and not disk.exists(f"{directory}/{BACKUP_NAME}"):
        _check_unused(disk, directory)
    disk.makedirs(directory)
    try:
        return disk.lock(f"{directory}/{_LOCK_NAME}")
    except BlockingIOError:
        raise DirectoryError(f"{directory} is in use by another backup: wait until that has ended") from None


def _check_unused(disk: Disk, directory: str) -> None:
    """What a first backup that was cut short leaves is no hindrance."""
    foreign = [name for name in disk.listdir(directory) if name not in (_LOCK_NAME, "data")]
    if not foreign and disk.exists(f"{directory}/data"):
        foreign = [
            f"data/{name}" for name in disk.listdir(f"{directory}/data")
            if not is_piece_name(name.removesuffix(PART_SUFFIX))
        ]
    foreign = [name for name in foreign if name != f"{BACKUP_NAME}.tmp"]
    if foreign:
        raise DirectoryError(f"{directory} holds {foreign[0]}, and no {BACKUP_NAME}: not a backup. Name "
                             "an earlier backup, or a directory that is empty or does not exist")


def _check_same_log(source: BackupSource, manifest: BackupManifest, directory: str) -> None:
    """@raise DirectoryError: the backup is of another log, or of a later state of this one."""
    kind = "a backup"
    check_same_group(source, manifest.group, manifest.group_id, manifest.data_file_size, directory, kind)
    check_same_end(source, manifest.end, directory, kind)


class _OpenPiece:
    """A piece that is being written, under a name that no manifest lists."""

    def __init__(self, disk: Disk, directory: str, position: int, first_index: int) -> None:
        self._directory = directory
        self._file = PartFile(disk, f"{directory}/{piece_name(position, position)}{PART_SUFFIX}")
        self._digest = hashlib.sha256()
        self.position = position
        self.end_position = position
        self._first_index = first_index

    def write(self, records: bytes) -> None:
        """Write after what is there."""
        self._file.write(records)
        self._digest.update(records)
        self.end_position += len(records)

    def finish(self, last_index: int) -> Piece:
        """Bring it to stable storage, and give it its name."""
        piece = Piece(position=self.position, end_position=self.end_position, first_index=self._first_index,
                      last_index=last_index, sha256=self._digest.hexdigest())
        self._file.finish(f"{self._directory}/{piece.name}")
        return piece

    def close(self) -> None:
        """Leave it unfinished."""
        self._file.close()


class _Copy:
    """One backup. Invariant: C{_manifest} is what the file says; C{_piece} holds whole records after it."""

    def __init__(
        self, source: BackupSource, disk: Disk, directory: str, manifest: BackupManifest | None, taken_s: int
    ) -> None:
        self._source = source
        self._disk = disk
        self._directory = directory
        self._manifest = manifest
        self._taken_s = taken_s
        self._piece: _OpenPiece | None = None
        self._done = self._total = 0

    def run(self, progress: CopyProgress, pace: CopyPace) -> BackupSummary:
        """Copy up to the commit."""
        reader, before = self._source.reader, self._manifest
        first_index = reader.begin_index if before is None else before.end.index + 1
        behind: tuple[int, int | None] = (-1, 0 if first_index == 0 else None)
        if before is not None:
            behind = before.end.term, before.end.chain_crc
        self._total = self._size_from(first_index)
        self._hold(first_index)
        last: EntryBatch | None = None

        def copied(count: int) -> None:
            self._done += count
            progress(self._done, max(self._total, self._done))
            pace(count)

        progress(0, self._total)
        try:
            for batch in self._batches(first_index, behind):
                if last is None and before is None:
                    check_begin(self._source, batch)
                position = ENTRY_HEADER.unpack_from(batch.records)[4]
                if self._piece is not None and position // reader.data_file_size != (
                    self._piece.position // reader.data_file_size
                ):
                    assert last is not None
                    self._finish(last)
                    self._hold(batch.first_index)
                if self._piece is None:
                    self._piece = _OpenPiece(self._disk, self._directory, position, batch.first_index)
                self._piece.write(batch.records)
                last = batch
                copied(len(batch.records))
            if last is not None:
                self._finish(last)
        finally:
            if self._piece is not None:
                self._piece.close()
        new_bytes = self._done
        self._take_group_state(copied)
        taken, now = self._take_machine(copied)
        usable = usable_snapshot(now.machine, now.begin_index, now.end.index)
        return BackupSummary(
            directory=self._directory, new_entries=now.end.index - first_index + 1, new_bytes=new_bytes,
            begin_index=now.begin_index, end_index=now.end.index, total_bytes=now.size,
            snapshot_index=-1 if usable is None else usable.index, new_snapshot_bytes=taken.copied_bytes,
            start_problem=why_no_start(now.machine, now.group_state, now.begin_index, now.end.index),
            refused_snapshots=taken.refused,
        )

    def _take_machine(self, pace: CopyPace) -> tuple[TakenMachine, BackupManifest]:
        """Copy snapshots of the machine, then list them, and remove those that are not listed."""
        now = self._manifest
        assert now is not None, "there is a committed entry"
        taken = self._taken(now, now.machine, self._source.machine, pace)
        if taken.machine != now.machine:
            self._manifest = now = attrs.evolve(now, machine=taken.machine, taken_s=self._taken_s)
            self._disk.write_file(f"{self._directory}/{BACKUP_NAME}", encode_backup_manifest(now))
        folder = f"{self._directory}/{MACHINE_DIRECTORY}"
        if self._disk.exists(folder):
            needed = [one.name for one in snapshots_of(now.machine, now.group_state)]
            for name in unlisted_snapshots(self._disk.listdir(folder), needed):
                self._disk.unlink(f"{self._directory}/{name}")
        return taken, now

    def _take_group_state(self, pace: CopyPace) -> None:
        now = self._manifest
        assert now is not None, "there is a committed entry"
        taken = self._taken(now, now.group_state, self._source.group_state, pace)
        if taken.machine != now.group_state:
            self._manifest = now = attrs.evolve(now, group_state=taken.machine, taken_s=self._taken_s)
            self._disk.write_file(f"{self._directory}/{BACKUP_NAME}", encode_backup_manifest(now))

    def _taken(
        self, now: BackupManifest, kept: KeptMachine | None, files: MachineFiles | None, pace: CopyPace
    ) -> TakenMachine:
        """Copy what is newer than C{kept}."""
        if files is None:
            return TakenMachine(kept)
        return SnapshotTaking(
            files=files, reader=self._source.reader, begin_index=now.begin_index,
            end_index=now.end.index, write=self._write_snapshot, pace=pace,
        ).run(filter(self._has, snapshots_of(kept)))

    def _has(self, one: KeptSnapshot) -> bool:
        """Whether the file of a snapshot is in the backup, with its length."""
        path = f"{self._directory}/{one.name}"
        return self._disk.exists(path) and self._disk.file_size(path) == one.size

    def _write_snapshot(self, name: str, parts: Iterator[bytes]) -> None:
        write_snapshot_file(self._disk, self._directory, name, parts)

    def _hold(self, index: int) -> None:
        unit = self._source.reader.unit(index)
        if unit is not None:
            self._source.reader.hold(unit[1], index)

    def _batches(self, first_index: int, behind: tuple[int, int | None]) -> Iterator[EntryBatch]:
        """@raise StoreError: an entry is damaged, or has expired meanwhile, which the message says."""
        reader = self._source.reader
        try:
            yield from reader.batches(first_index, max_bytes=RUN_BYTES, behind=behind)
        except StoreError as error:
            index = error.facts.get("index")
            reader.refresh()
            if isinstance(index, int) and index < reader.begin_index:
                raise StoreError(
                    f"{reader.path} begins with entry {reader.begin_index} now: its retention has deleted "
                    f"entry {index} before it was copied. The next {HELD_BYTES_MAX >> 30} GiB are held "
                    "meanwhile, so this member deletes faster than the backup copies: raise its "
                    "file_reserved_hours or retention_bytes, or --rate, or back up another member",
                    index=index, begin_index=reader.begin_index,
                ) from error
            raise

    def _size_from(self, first_index: int) -> int:
        """About the bytes to copy."""
        reader = self._source.reader
        first, last = reader.unit(first_index), reader.unit(reader.committed_index)
        return max(last[1] + last[2] - first[1], 0) if first is not None and last is not None else 0

    def _finish(self, last: EntryBatch) -> None:
        """The open piece ends with C{last}: list it."""
        assert self._piece is not None
        piece = self._piece.finish(last.last_index)
        self._piece = None
        source, before = self._source, self._manifest
        self._manifest = BackupManifest(
            group=source.group or (before.group if before is not None else ""),
            group_id=source.group_id or (before.group_id if before is not None else ""),
            member_id=source.member_id, data_file_size=source.reader.data_file_size,
            index_file_size=source.reader.index_file_size, taken_s=self._taken_s,
            end=end_of(last, last_record(last)),
            pieces=(*(before.pieces if before is not None else ()), piece),
            machine=known_before(None if before is None else before.machine, source.machine),
            group_state=known_before(None if before is None else before.group_state, source.group_state),
        )
        self._disk.write_file(f"{self._directory}/{BACKUP_NAME}", encode_backup_manifest(self._manifest))
