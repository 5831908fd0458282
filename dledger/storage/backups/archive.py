# -*- test-case-name: tests.storage.test_archive,tests.storage.test_backup,tests.storage.test_archive_cuts -*-
"""
Archives and backups of a member, running or stopped, ours or Java's, in a directory or a store.

Both are one: L{dledger.storage.manifests.archive_manifest} has the format. An archive run ships closed
segments: those of which a committed entry lies in a later one. All their records are committed, are the same
at all members, and never change. A backup also ships what is committed of the open segment, and so has every
committed entry of its moment. Nothing is stopped or locked at the member; the files that come next are held
open, so its retention may delete them meanwhile. Every record is checked while it is shipped: place, index,
term, checksums, and that it continues from the record before it.

Rule 1: an archive is only ever continued, with entries after its end, and only if the member provably has
the same log: it holds the entry at which the archive ends, or begins with one that continues from it.
Anything else is refused, and the archive stays as it is.
Rule 2: a segment is listed when the whole file is there; see L{dledger.storage.manifests.archive_manifest}.
So a run that is cut short anywhere leaves the archive of before, or one that reaches further by whole
segments, and the next run goes on there.
Rule 3: a part of a segment, from a backup, is shipped again from its begin when there is more of it, into
another file, which begins with the very bytes of the part.
Rule 4: before each manifest the archive is looked at again, and the manifest takes a name that must be free:
of two programs that write there one goes on, and the other is refused; see
L{dledger.storage.manifests.archive_manifest.ArchiveManifest.name}.
Rule 5: a run replaces damaged and stale manifests, if one is sound, before it ships.
Rule 6: after the segments, snapshots of the member's state machine are shipped, see
L{dledger.storage.backups.machine_copy}.
Rule 7: older snapshots and parts of segments are removed when no manifest lists them that may count.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Mapping

import attrs

from dledger.storage.backups.machine_copy import MachineFiles, SnapshotTaking, TakenMachine
from dledger.storage.backups.source import (
    RUN_BYTES,
    ArchiveSource,
    CopyPace,
    CopyProgress,
    check_begin,
    check_same_end,
    check_same_group,
    end_of,
    known_before,
    last_record,
    no_pace,
    no_progress,
)
from dledger.storage.files.reader import HELD_BYTES_MAX
from dledger.storage.manifests.archive_commit import Commits
from dledger.storage.manifests.archive_manifest import (
    GENERATIONS,
    SLOT_NAMES,
    ArchiveManifest,
    ArchivePiece,
    ArchiveTargetError,
    is_begun_manifest,
    piece_name,
    piece_span,
    read_archive,
)
from dledger.storage.manifests.archive_place import ArchivePlace
from dledger.storage.manifests.kept_snapshot import (
    MACHINE_DIRECTORY,
    KeptMachine,
    parsed_snapshot_name,
    snapshots_of,
    usable_snapshot,
    why_no_start,
)
from dledger.values.errors import DirectoryError, StoreError
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.entry import ENTRY_HEADER


@attrs.frozen(kw_only=True)
class ArchiveSummary:
    """
    What a run did.

    @ivar new_segments: files of segments, or of parts of them, that were shipped.
    @ivar new_entries: that the archive had not.
    @ivar new_bytes: shipped; with those of entries whose part of a segment was replaced.
    @ivar begin_index, end_index: entries in the archive now, inclusive; -1 for none.
    @ivar segments, total_bytes: in the archive now.
    @ivar open_entries: committed ones that are not in the archive, because their segment is not closed.
    @ivar snapshot_index: last entry in the snapshot of the state machine that is in the archive now and can
        be used; -1 for none.
    @ivar new_snapshot_bytes: of snapshots of the machine, shipped by this run.
    @ivar start_problem: why a state machine could not start from the archive; empty if it could.
    @ivar refused_snapshots: sentences about snapshots of the member that were left out.
    """

    target: str
    new_segments: int
    new_entries: int
    new_bytes: int
    begin_index: int
    end_index: int
    segments: int
    total_bytes: int
    open_entries: int
    snapshot_index: int
    new_snapshot_bytes: int
    start_problem: str
    refused_snapshots: tuple[str, ...]


def closed_index(source: ArchiveSource) -> int:
    """
    The last entry in a closed segment all of whose entries are committed; -1 for none.

    @raise StoreError: the index is damaged.
    """
    reader = source.reader
    if reader.committed_index < 0:
        return -1
    base = _base(source, reader.committed_index)
    first = _first_from(source, base, reader.begin_index, reader.committed_index)
    return first - 1 if first > reader.begin_index else -1


def _position(source: ArchiveSource, index: int) -> int:
    """Stream offset of a record."""
    return _unit(source, index)[0]


def _base(source: ArchiveSource, index: int) -> int:
    """
    Stream offset of the file of a record.

    @raise StoreError: the file is gone.
    """
    reader, position = source.reader, _position(source, index)
    base = reader.data.base(position)
    if base < 0:
        raise StoreError(f"entry {index} cannot be read: {reader.path}/data has no file for it. Let the "
                         "member repair itself, or name another member", index=index)
    return base


def _unit(source: ArchiveSource, index: int) -> tuple[int, int]:
    """Stream offset and size of a record."""
    reader = source.reader
    with _member_read(source):
        unit = reader.unit(index)
    if unit is None:
        raise StoreError(f"entry {index} cannot be read: {reader.path}/index has no sound unit for it. Let "
                         "the member repair itself, or name another member", index=index)
    return unit[1], unit[2]


def _expired(source: ArchiveSource, index: int) -> DirectoryError | None:
    """Why an entry that is to be shipped is gone, if it has expired meanwhile."""
    reader = source.reader
    with _member_read(source):
        reader.refresh()
    if reader.begin_index <= index:
        return None
    return DirectoryError(
        f"{reader.path} begins with entry {reader.begin_index} by now: its retention has deleted entry "
        f"{index} before it was archived. The next {HELD_BYTES_MAX >> 30} GiB are held meanwhile, so this "
        "member deletes faster than it is archived: raise its file_reserved_hours or retention_bytes, or "
        "--rate, or name a member that still has the entry"
    )


@contextlib.contextmanager
def _member_read(source: ArchiveSource) -> Iterator[None]:
    """An error of the member's disk is none of the place."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"{source.reader.path} cannot be read: {error}", path=source.reader.path) from error


def _first_from(source: ArchiveSource, position: int, low: int, high: int) -> int:
    """The first entry from C{low} to C{high} whose record is not before C{position}; C{high} is one."""
    while low < high:
        middle = (low + high) // 2
        if _position(source, middle) < position:
            low = middle + 1
        else:
            high = middle
    return low


def archive_log(
    source: ArchiveSource, place: ArchivePlace, *, is_backup: bool, taken_s: int,
    progress: CopyProgress = no_progress, pace: CopyPace = no_pace,
) -> ArchiveSummary:
    """
    Ship what the archive lacks.

    @param source: with a committed entry.
    @param place: an archive, or nothing yet.
    @param is_backup: all that is committed; else closed segments alone.
    @param taken_s: the time now, in seconds since 1970.
    @raise DirectoryError: C{place} holds something else, an archive of another log, or a changed file; or
        the member has expired entries that the archive lacks. Nothing has changed.
    @raise ArchiveBusy: another program writes to C{place}. The archive has what that one ships.
    @raise ArchiveTargetError: the place failed. The archive has all entries of before, and perhaps whole
        segments more.
    @raise StoreError: an entry at the member is damaged, which the message names. The archive has all
        entries of before, and perhaps whole segments more.
    """
    source.check_apart(place.directory)
    try:
        _check_usable(place)
        release = place.hold()
        try:
            return _Shipping(source, place, is_backup, taken_s, progress, pace).run()
        finally:
            release()
    except OSError as error:
        raise ArchiveTargetError(f"{place.directory} cannot be used: {error}",
                                 target=place.directory) from error


def _check_usable(place: ArchivePlace) -> None:
    """@raise DirectoryError: there is no sound archive, but something else than the begin of one."""
    if read_archive(place.disk, place.directory).manifest is not None:
        return
    where = place.directory
    found = place.sizes()
    if found and read_archive(place.disk, place.directory).manifest is not None:
        return  # another program has begun it between the two
    pieces = sorted(name for name in found if name.startswith("data/"))
    if pieces:
        raise DirectoryError(
            f"{where} holds {pieces[0]}, but no sound manifest ({' or '.join(SLOT_NAMES)}): it was an "
            "archive and is damaged, or is something else. Nothing was changed. Put a copy of a manifest "
            "back, or take the next archive to another place"
        )
    begun = [name for name in found if name == SLOT_NAMES[1] or name.startswith(f"{GENERATIONS}/")]
    foreign = sorted(found.keys() - begun) or [
        name for name in begun if not is_begun_manifest(_bytes_of(place, name))
    ]
    if foreign:
        raise DirectoryError(f"{where} holds {foreign[0]}, and no archive. Name an earlier archive or "
                             "backup, or a place that is empty or does not exist")


def _bytes_of(place: ArchivePlace, name: str) -> bytes:
    """Of a small file; none of one that another program has removed since."""
    try:
        return place.disk.read_file(f"{place.directory}/{name}")
    except FileNotFoundError:
        return b""


@attrs.define
class _Segment:
    """Records that are being shipped, of one segment. Invariant: they follow each other without a gap."""

    position: int
    end_position: int
    digest: hashlib._Hash = attrs.Factory(hashlib.sha256)
    first_term: int = -1
    last: EntryBatch | None = None

    def add(self, batch: EntryBatch) -> None:
        """@raise StoreError: the batch does not follow."""
        header = ENTRY_HEADER.unpack_from(batch.records)
        if header[4] != self.end_position:
            raise StoreError(f"entry {batch.first_index} cannot be archived: it begins at {header[4]}, but "
                             f"the one before it ends at {self.end_position}", index=batch.first_index)
        if self.last is None:
            self.first_term = header[3]
        self.digest.update(batch.records)
        self.end_position += len(batch.records)
        self.last = batch


class _Shipping:
    """One run. Invariant: C{_manifest} is the one that counts at the place."""

    def __init__(
        self, source: ArchiveSource, place: ArchivePlace, is_backup: bool, taken_s: int,
        progress: CopyProgress, pace: CopyPace,
    ) -> None:
        self._source = source
        self._place = place
        self._is_backup = is_backup
        self._taken_s = taken_s
        self._progress = progress
        self._pace = pace
        self._done = self._total = 0
        self._manifest = self._begun()

    def run(self) -> ArchiveSummary:
        """Ship up to the last closed segment, or up to the commit."""
        reader, before = self._source.reader, self._manifest
        wanted = reader.committed_index if self._is_backup else closed_index(self._source)
        known = self._part_before(wanted)
        after = before.end_index + 1 if before.pieces else reader.begin_index
        index, count = after if known is None else known.first_index, 0
        if wanted >= after:
            self._total = sum(_unit(self._source, wanted)) - _position(self._source, index)
        self._progress(0, self._total)
        while after <= wanted and index <= wanted:
            index = self._ship(index, wanted, known) + 1
            known, count = None, count + 1
        self._progress(self._done, self._done)  # (the total of before had the blanks)
        new_bytes, taken, now = self._done, self._take_machine(), self._manifest
        usable = usable_snapshot(now.machine, now.begin_index, now.end_index)
        return ArchiveSummary(
            target=self._place.directory, new_segments=count, new_entries=max(index - after, 0),
            new_bytes=new_bytes, begin_index=now.begin_index, end_index=now.end_index,
            segments=len(now.pieces), total_bytes=now.size,
            open_entries=max(reader.committed_index - max(index, after) + 1, 0),
            snapshot_index=-1 if usable is None else usable.index, new_snapshot_bytes=taken.copied_bytes,
            start_problem=why_no_start(now.machine, now.group_state, now.begin_index, now.end_index),
            refused_snapshots=taken.refused,
        )

    def _part_before(self, wanted: int) -> ArchivePiece | None:
        """The last piece, if it is a part of a segment of which more is to be shipped."""
        if wanted <= self._manifest.end_index or not self._manifest.pieces:
            return None
        last = self._manifest.pieces[-1]
        return last if _base(self._source, last.last_index + 1) == last.position else None

    def _take_machine(self) -> TakenMachine:
        """
        Ship snapshots of the machine and of the group, then list them. The first run without a segment ships
        none.
        """
        now, source = self._manifest, self._source
        if not now.pieces:
            return TakenMachine(now.machine)
        sizes = self._place.sizes()
        group_state = self._taken(now.group_state, source.group_state, sizes)
        taken = self._taken(now.machine, source.machine, sizes)
        if (taken.machine, group_state.machine) != (now.machine, now.group_state):
            self._manifest = self._commits.commit(attrs.evolve(
                now, machine=taken.machine, group_state=group_state.machine, taken_s=self._taken_s))
        self._remove_replaced(sizes)
        return taken

    def _taken(
        self, kept: KeptMachine | None, files: MachineFiles | None, sizes: Mapping[str, int]
    ) -> TakenMachine:
        """Ship what is newer than C{kept}. @param sizes: of the files at the place."""
        if files is None:
            return TakenMachine(kept)
        return SnapshotTaking(
            files=files, reader=self._source.reader, begin_index=self._manifest.begin_index,
            end_index=self._manifest.end_index, write=self._put_snapshot, pace=self._moved,
        ).run(one for one in snapshots_of(kept) if sizes.get(one.name) == one.size)

    def _put_snapshot(self, name: str, parts: Iterator[bytes]) -> None:
        written = 0

        def counted() -> Iterator[bytes]:
            nonlocal written
            for part in parts:
                written += len(part)
                yield part

        self._place.put(name, counted())
        self._check_size(name, written)

    def _check_size(self, name: str, size: int) -> None:
        """@raise ArchiveTargetError: the place has said that a file was written, but a part is missing."""
        path = f"{self._place.directory}/{name}"
        found = self._place.disk.file_size(path)
        if found != size:
            raise ArchiveTargetError(f"{path} has {found} bytes after it was written, but {size} were "
                                     "shipped: it is not listed in the manifest")

    def _moved(self, count: int) -> None:
        """Bytes of a snapshot are shipped."""
        self._done += count
        self._progress(self._done, self._done)
        self._pace(count)

    def _remove_replaced(self, found: Mapping[str, int]) -> None:
        """
        Remove parts of segments of which a listed piece has all records, and snapshots that are older than
        what is listed, if no manifest lists them. (Another writer may have put newer ones there just now.)
        """
        now, state = self._manifest, read_archive(self._place.disk, self._place.directory, reads_all=True)
        listed = {name for one in (now, *state.manifests) for name in one.names()}
        oldest = {
            is_of_group: min((one.index for one in snapshots_of(kept)), default=-1)
            for is_of_group, kept in ((False, now.machine), (True, now.group_state))
        }
        ends = {piece.position: piece.end_position for piece in now.pieces}
        for name in sorted(found.keys() - listed):
            folder, _, file = name.rpartition("/")
            index = parsed_snapshot_name(file) if folder == MACHINE_DIRECTORY else None
            span = piece_span(name)
            is_older = index is not None and index[0] < oldest[file.startswith("group-")]
            if is_older or (span is not None and span[1] < ends.get(span[0], -1)):
                self._place.remove(name)

    def _begun(self) -> ArchiveManifest:
        """The manifest that counts; the first one, written now, if there is none."""
        source, place = self._source, self._place
        _check_usable(place)  # before we held it, another program may have written there
        self._commits = Commits(place)
        found = self._commits.manifest
        if found is not None:
            self._check_same_log(found)
            return self._commits.mended()
        first = self._commits.commit(ArchiveManifest(
            generation=0, group=source.group, group_id=source.group_id, member_id=source.member_id,
            data_file_size=source.reader.data_file_size, index_file_size=source.reader.index_file_size,
            taken_s=self._taken_s, machine=known_before(None, source.machine),
            group_state=known_before(None, source.group_state),
        ))
        # (one that was cut short took the first name: then the other slot would look like a lost one)
        return first if first.generation == 1 else self._commits.commit(first)

    def _check_same_log(self, manifest: ArchiveManifest) -> None:
        """@raise DirectoryError: the archive is of another log, or one of its files was changed."""
        source, where = self._source, self._place.directory
        check_same_group(source, manifest, where)
        if not manifest.pieces:
            return
        with _member_read(source):
            check_same_end(source, manifest.pieces[-1].end, where, manifest.group_id)
        found = self._place.sizes()
        for piece in manifest.pieces:
            size = found.get(piece.name)
            if size != piece.size:
                raise DirectoryError(
                    f"{where}/{piece.name} " + ("is missing" if size is None else f"has {size} bytes") +
                    f", but the manifest lists it with {piece.size} bytes: the archive was changed or "
                    "damaged, and stays as it is. Put the file back from a copy, or take the next "
                    "archive to another place; dledger archive --verify names all such files"
                )

    def _ship(self, first: int, wanted: int, known: ArchivePiece | None) -> int:
        """
        Ship the segment that begins with entry C{first}, up to entry C{wanted} at most.

        @param known: the part of it that is there already.
        @return: its last entry.
        """
        source, reader, last = self._source, self._source.reader, wanted
        try:
            position, base = _position(source, first), _base(source, first)
            if _position(source, wanted) >= base + reader.data_file_size:
                last = _first_from(source, base + reader.data_file_size, first, wanted) - 1
            name = piece_name(position, sum(_unit(source, last)))
        except StoreError as error:
            raise _expired(source, first) or error from None
        reader.hold(position, first)
        kept = self._manifest.pieces if known is None else self._manifest.pieces[:-1]
        segment = _Segment(position, position)
        self._place.put(name, self._records(segment, first, last, kept, known))
        if segment.last is None or segment.last.last_index != last:
            raise StoreError(f"entry {first} cannot be archived: of its segment, up to entry {last}, "
                             f"{reader.path} has not all. Let the member repair itself, or name "
                             "another member", index=first)
        end = end_of(segment.last, last_record(segment.last))
        piece = ArchivePiece(
            position=position, end_position=segment.end_position, first_index=first, last_index=last,
            sha256=segment.digest.hexdigest(), first_term=segment.first_term, last_term=end.term,
            chain_crc=end.chain_crc, last_record_sha256=end.record_sha256, shipped_s=self._taken_s,
        )
        if piece.name != name:
            raise StoreError(f"entry {last} cannot be archived: it ends at {piece.end_position}, but "
                             f"{reader.path}/index says otherwise. Let the member repair itself, or name "
                             "another member", index=last)
        self._check_size(name, piece.size)
        self._list(kept, piece)
        return last

    def _records(
        self, segment: _Segment, first: int, last: int, kept: tuple[ArchivePiece, ...],
        known: ArchivePiece | None,
    ) -> Iterator[bytes]:
        """Checked records. @raise StoreError: one is damaged, or the member cannot be read."""
        behind: tuple[int, int | None] = (-1, 0 if first == 0 else None)
        if kept:
            behind = kept[-1].last_term, kept[-1].chain_crc
        if known is not None:
            yield from self._checked(segment, first, known.last_index, behind, has_begin=not kept)
            if segment.digest.hexdigest() != known.sha256:
                path, where = self._source.reader.path, self._place.directory
                raise StoreError(f"{path} has other entries from {first} to {known.last_index} than {where}, "
                                 "which stays as it is: they are damaged, or the two have different "
                                 "histories. Let the member repair itself, or name another one", index=first)
            first, behind = known.last_index + 1, (known.last_term, known.chain_crc)
        yield from self._checked(segment, first, last, behind, has_begin=not kept)

    def _checked(
        self, segment: _Segment, first: int, last: int, behind: tuple[int, int | None], *, has_begin: bool
    ) -> Iterator[bytes]:
        """Records from C{first} to C{last}. @param has_begin: the archive begins with the first one."""
        batches = self._source.reader.batches(first, end_index=last, max_bytes=RUN_BYTES, behind=behind)
        while True:
            try:
                batch = next(batches, None)
            except (OSError, StoreError) as error:
                raise self._unreadable(error, first) from error
            if batch is None:
                return
            if has_begin and segment.last is None:
                check_begin(self._source, batch)
            segment.add(batch)
            yield batch.records
            self._done += len(batch.records)
            self._progress(self._done, max(self._total, self._done))
            self._pace(len(batch.records))

    def _unreadable(self, error: OSError | StoreError, first: int) -> StoreError:
        """Why the member's segment cannot be read: it has expired meanwhile, or is damaged."""
        expired = _expired(self._source, first)
        if expired is not None:
            return expired
        if isinstance(error, StoreError):
            return StoreError(f"{error.facts['reason']}. The archive keeps all segments before it: let the "
                              "member repair itself, or name another member",
                              **{name: fact for name, fact in error.facts.items() if name != "reason"})
        path = self._source.reader.path
        return StoreError(f"{path} cannot be read: {error}", path=path)

    def _list(self, kept: tuple[ArchivePiece, ...], piece: ArchivePiece) -> None:
        """Let the piece count, after C{kept}."""
        source, before = self._source, self._manifest
        try:
            self._manifest = self._commits.commit(attrs.evolve(
                before, group=source.group or before.group, group_id=source.group_id or before.group_id,
                member_id=source.member_id, taken_s=self._taken_s, pieces=(*kept, piece),
                machine=known_before(before.machine, source.machine),
                group_state=known_before(before.group_state, source.group_state),
            ))
        except ValueError as error:
            raise StoreError(f"the segment with entry {piece.first_index} does not fit: {error}") from None
