# -*- test-case-name: tests.storage.test_archive -*-
"""
Reading an archive or a backup: its entries, each checked, and the verification of all of it. Nothing is
changed. L{dledger.storage.manifests.archive_manifest} has the format.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import attrs

from dledger.base.disk.disk import Disk, File
from dledger.storage.backups.machine_copy import snapshot_bytes, why_other_log
from dledger.storage.backups.source import (
    RUN_BYTES,
    CopyPace,
    CopyProgress,
    last_record,
    no_pace,
    no_progress,
)
from dledger.storage.files.records import DamagedRecord, Walk, record_fits, walk_records
from dledger.storage.manifests.archive_manifest import (
    SLOT_NAMES,
    ArchiveManifest,
    ArchivePiece,
    ArchiveState,
    piece_span,
    read_archive,
)
from dledger.storage.manifests.archive_place import PART_SUFFIX
from dledger.storage.manifests.kept_snapshot import MACHINE_DIRECTORY, parsed_snapshot_name, why_no_start
from dledger.storage.start.verify import Finding
from dledger.values.errors import DirectoryError, StoreError
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.entry import BLANK, ENTRY_HEADER, ENTRY_HEADER_SIZE


@attrs.define(kw_only=True)
class ArchiveReport:
    """
    Result of a verification.

    @ivar findings: at most one for each piece and each snapshot.
    @ivar start_problem: why a state machine could not start from all this; empty if it could, or the group
        has none.
    @ivar snapshots: indexes of the last entries in the sound snapshots of the machine.
    @ivar entries, data_bytes: in sound pieces.
    @ivar begin_index, end_index: by the manifest; -1 for no entry.
    @ivar taken_s: time of the last run that added something, in seconds since 1970.
    @ivar left_over: files that no manifest lists; they are no findings, and may be deleted.
    """

    directory: str
    findings: list[Finding] = attrs.Factory(list)
    entries: int = 0
    data_bytes: int = 0
    begin_index: int = -1
    end_index: int = -1
    group: str = ""
    group_id: str = ""
    taken_s: int = 0
    left_over: list[str] = attrs.Factory(list)
    start_problem: str = ""
    snapshots: list[int] = attrs.Factory(list)

    @property
    def is_clean(self) -> bool:
        """Whether there are no findings, and a state machine could start."""
        return not self.findings and not self.start_problem


def opened_archive(disk: Disk, directory: str) -> ArchiveManifest:
    """
    The manifest of an archive with an entry.

    @raise DirectoryError: there is none, its manifest is not sound, or it lists no entry.
    @raise StoreError: it cannot be read.
    """
    manifest = _sound(read_archive(disk, directory), directory)
    if not manifest.pieces:
        raise DirectoryError(f"{directory} is an archive without an entry: no segment was closed yet")
    return manifest


def _sound(state: ArchiveState, directory: str) -> ArchiveManifest:
    """@raise DirectoryError: there is no sound manifest."""
    if state.manifest is not None:
        return state.manifest
    if state.trouble:
        raise DirectoryError(f"{directory} has no sound manifest: {'; '.join(state.trouble)}. Put a copy of "
                             "one back, or name another target")
    raise DirectoryError(f"{directory} is neither a backup nor an archive: there is no "
                         f"{' or '.join(SLOT_NAMES)}")


def archive_batches(
    disk: Disk, directory: str, manifest: ArchiveManifest, *, progress: CopyProgress = no_progress,
    pace: CopyPace = no_pace,
) -> Iterator[EntryBatch]:
    """
    All entries of an archive, in order, each checked. The checksum of a piece is compared after its last one.

    @raise StoreError: a piece is missing or not sound; the message names file and offset.
    """
    done, walk = 0, _begin_of(manifest)
    for piece in manifest.pieces:
        for batch in _piece_batches(disk, directory, manifest, piece, walk):
            yield batch
            done += len(batch.records)
            progress(done, manifest.size)
            pace(len(batch.records))


def _begin_of(manifest: ArchiveManifest) -> Walk:
    begin, position = manifest.begin_index, manifest.pieces[0].position if manifest.pieces else 0
    return Walk(index=begin, position=position, chain_crc=0 if begin == 0 else None)


def _piece_batches(
    disk: Disk, directory: str, manifest: ArchiveManifest, piece: ArchivePiece, walk: Walk
) -> Iterator[EntryBatch]:
    """@param walk: after the last record of the piece before; moved to the end of this one."""
    path = f"{directory}/{piece.name}"
    try:
        file = disk.open(path)
        try:
            if file.size() != piece.size:
                raise StoreError(f"{path} has {file.size()} bytes, but the manifest says {piece.size}",
                                 file=path)
            walk.index = piece.first_index
            walk.position = piece.position
            yield from _checked(file, manifest, piece, walk)
        finally:
            file.close()
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error}", file=path) from error


def _checked(file: File, manifest: ArchiveManifest, piece: ArchivePiece, walk: Walk) -> Iterator[EntryBatch]:
    digest, at, first_term = hashlib.sha256(), 0, -1
    batch: EntryBatch | None = None
    while at < piece.size:
        data = file.pread(min(RUN_BYTES, piece.size - at), at)
        size = BLANK.unpack_from(data)[1] if len(data) >= ENTRY_HEADER_SIZE else 0
        if size > len(data) and record_fits(size, manifest.data_file_size) and size <= piece.size - at:
            data = file.pread(size, at)
        first, walk.count, walk.length = walk.index, 0, 0
        try:
            walk_records(data, walk, max_count=piece.last_index - first + 1, one_term=False,
                         size_max=manifest.data_file_size)
        except DamagedRecord as damage:
            raise _bad(file.path, damage.position - piece.position, damage.index, damage.what) from None
        if not walk.count:
            raise _bad(file.path, at, first, "no whole record")
        if not at:
            first_term = ENTRY_HEADER.unpack_from(data)[3]
        digest.update(data[: walk.length])
        batch = EntryBatch(first_index=first, count=walk.count, term=walk.term, records=data[: walk.length])
        at += walk.length
        yield batch
    assert batch is not None, "a piece has a record"
    what = ""
    if walk.index != piece.last_index + 1:
        what = f"it ends with entry {walk.index - 1}, but the manifest says {piece.last_index}"
    elif digest.hexdigest() != piece.sha256:
        what = "its checksum is not the one in the manifest"
    elif piece.last_record_sha256 != hashlib.sha256(last_record(batch)).hexdigest():
        what = "its last record is not the one in the manifest"
    elif (first_term, walk.term) != (piece.first_term, piece.last_term):
        what = (f"its terms are {first_term} to {walk.term}, but the manifest says {piece.first_term} to "
                f"{piece.last_term}")
    elif walk.chain_crc != piece.chain_crc:
        what = "its last chainCrc is not the one in the manifest"
    if what:
        raise _bad(file.path, at, walk.index - 1, what)


def _bad(path: str, offset: int, index: int, what: str) -> StoreError:
    return StoreError(f"{path} at {offset}, entry {index}: {what}", file=path, offset=offset, index=index)


def verify_archive(
    disk: Disk, directory: str, *, progress: CopyProgress = no_progress, pace: CopyPace = no_pace
) -> ArchiveReport:
    """
    Read all of an archive or a backup, and compare it with its manifest and every record with its checksums.

    @raise DirectoryError: there is none, or its manifest is not sound.
    @raise StoreError: the manifest cannot be read.
    """
    directory = directory.rstrip("/") or "/"
    state = read_archive(disk, directory, reads_all=True)
    manifest = _sound(state, directory)
    report = ArchiveReport(
        directory=directory, begin_index=manifest.begin_index, end_index=manifest.end_index,
        group=manifest.group, group_id=manifest.group_id, taken_s=manifest.taken_s,
        left_over=_left_over(disk, directory, state),
        start_problem=why_no_start(manifest.machine, manifest.group_state, manifest.begin_index,
                                   manifest.end_index),
    )
    _compare(disk, directory, manifest, report, progress, pace)
    end = manifest.pieces[-1].end_position if manifest.pieces else 0
    spans = (piece_span(path.removeprefix(f"{directory}/")) for path in report.left_over)
    after = sorted({span[0] for span in spans if span is not None and span[0] >= end})
    if len(after) > 1:
        report.findings.append(Finding(
            file=directory, offset=-1, index=-1,
            sentence=f"{len(after)} segments lie after the end, entry {manifest.end_index}, and no manifest "
            f"lists them, from position {after[0]} on. A run that is cut short leaves one: all manifests are "
            "older copies. Put newer ones back, or let dledger archive list them again while a member has "
            "them",
        ))
    again = f"another copy counts, and ends with entry {manifest.end_index}; the next run mends this one"
    report.findings.extend(
        Finding(file=directory, offset=-1, index=-1, sentence=f"{text}: {again}") for text in state.trouble
    )
    return report


def _compare(
    disk: Disk, directory: str, manifest: ArchiveManifest, report: ArchiveReport, progress: CopyProgress,
    pace: CopyPace,
) -> None:
    """Read all listed files; C{report} gets what is found."""
    done, walk, foreign = 0, _begin_of(manifest), dict[str, str]()
    for piece in manifest.pieces:
        read = 0
        try:
            for batch in _piece_batches(disk, directory, manifest, piece, walk):
                read += len(batch.records)
                progress(done + read, manifest.size)
                pace(len(batch.records))
                for one in manifest.snapshots:
                    foreign[one.name] = foreign.get(one.name) or why_other_log(one, batch)
        except StoreError as error:
            report.findings.append(_finding(error, f"{directory}/{piece.name}"))
            walk.chain_crc = None
            walk.term = -1
        else:
            report.entries += piece.last_index - piece.first_index + 1
            report.data_bytes += piece.size
        done += piece.size
    for one in manifest.snapshots:
        try:
            for _ in snapshot_bytes(disk, directory, one, pace):
                pass
            if foreign.get(one.name):
                raise StoreError(f"{directory}/{foreign[one.name]}")
        except StoreError as error:
            report.findings.append(_finding(error, f"{directory}/{one.name}"))
        else:
            if one.machine:
                report.snapshots.append(one.index)


def _finding(error: StoreError, path: str) -> Finding:
    facts = error.facts
    offset, index = (one if isinstance(one, int) else -1 for one in (facts.get("offset"), facts.get("index")))
    return Finding(file=path, offset=offset, index=index, sentence=str(facts["reason"]))


def _left_over(disk: Disk, directory: str, state: ArchiveState) -> list[str]:
    """Files, also unfinished ones, that no manifest lists."""
    listed, found = {name for manifest in state.manifests for name in manifest.names()}, []
    for folder in ("data", MACHINE_DIRECTORY):
        path = f"{directory}/{folder}"
        try:
            names = disk.listdir(path) if disk.exists(path) else []
        except OSError:
            continue  # the files in it are missing, which is said of each
        found += [f"{path}/{name}" for name in names if f"{folder}/{name}" not in listed and (
            folder == "data" or parsed_snapshot_name(name.removesuffix(PART_SUFFIX)))]
    return found
