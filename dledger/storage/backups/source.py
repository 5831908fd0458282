# -*- test-case-name: tests.storage.test_archive -*-
"""The member that is archived: its directory, and whether its log is the one that an archive has."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable

import attrs

from dledger.base.disk.disk import Disk
from dledger.storage.backups.machine_copy import MachineFiles, group_files
from dledger.storage.files.reader import LogReader
from dledger.storage.manifests.archive_manifest import ArchiveEnd, ArchiveManifest
from dledger.storage.manifests.kept_snapshot import KeptMachine
from dledger.storage.start.identity import IDENTITY_NAME, read_identity
from dledger.values.errors import DirectoryError, StoreError
from protocols.wire.checksums import crc32
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.entry import ENTRY_HEADER, ENTRY_HEADER_SIZE

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
class ArchiveSource:
    """
    A member's directory.

    @ivar reader: as it was found now; entries that commit later are of the next run.
    @ivar group, group_id, member_id: empty where the directory does not say.
    @ivar machine: the snapshots of its state machine; None if it has never run one.
    @ivar group_state: those of the state of the group; None if it is not one of ours.
    """

    reader: LogReader
    data_path: str
    group: str
    group_id: str
    member_id: str
    machine: MachineFiles | None
    group_state: MachineFiles | None

    def close(self) -> None:
        """Release all files."""
        self.reader.close()
        if self.machine is not None:
            self.machine.close()

    def check_apart(self, directory: str) -> None:
        """@raise DirectoryError: C{directory} is in this one, and would keep the member from starting."""
        if "://" in directory:
            return
        path = os.path.realpath(directory) + "/"
        for held in (self.reader.path, self.data_path):
            if path.startswith(os.path.realpath(held) + "/"):
                raise DirectoryError(f"{directory} is in the member's directory {held}: name another place")

    @classmethod
    def open(
        cls, disk: Disk, path: str, *, data_path: str = "", may_be_empty: bool = False
    ) -> ArchiveSource:
        """
        @param path: C{<store_base_dir>/dledger-<self_id>}.
        @param data_path: directory of the data files; empty: C{<path>/data}.
        @param may_be_empty: nothing need be committed.
        @raise DirectoryError: this is not a member's directory, or nothing is committed there.
        @raise StoreError: it cannot be read.
        """
        try:
            # before the log, whose end then is after most of them
            machine, group_state = MachineFiles.open(disk, path), group_files(disk, path)
        except OSError as error:
            raise StoreError(f"{path} cannot be read: {error}", path=path) from error
        opened: list[MachineFiles | LogReader] = [] if machine is None else [machine]
        try:
            reader = LogReader.open(path, data_path=data_path, disk=disk)
            opened.append(reader)
            found = read_identity(disk, f"{reader.path}/{IDENTITY_NAME}")
            if reader.committed_index < 0 and not may_be_empty:
                raise DirectoryError(f"{path} records no committed entry: there is nothing to copy")
        except (OSError, StoreError) as error:
            for one in opened:
                one.close()
            if isinstance(error, StoreError):
                raise
            raise StoreError(f"{path} cannot be read: {error}", path=path) from error
        data_path = data_path or f"{reader.path}/data"
        if found is None:
            return cls(reader=reader, data_path=data_path, group="", group_id="", member_id="",
                       machine=machine, group_state=group_state)
        identity = found[1]
        return cls(reader=reader, data_path=data_path, group=identity.group, member_id=identity.member_id,
                   group_id=identity.group_id if identity.is_group_known else "", machine=machine,
                   group_state=group_state)


def check_same_group(source: ArchiveSource, manifest: ArchiveManifest, directory: str) -> None:
    """
    @param manifest: of the archive at C{directory}.
    @raise DirectoryError: it is of another group than C{source}, or of data files of another size.
    """
    reader, kept = source.reader, _kept(directory)
    for what, ours, theirs in (
        ("group", source.group, manifest.group),
        ("the group with the id", source.group_id, manifest.group_id),
    ):
        if ours and theirs and ours != theirs:
            raise DirectoryError(f"{directory} is an archive of {what} {theirs}, but {reader.path} is of "
                                 f"{ours}: {kept}")
    if reader.data_file_size != manifest.data_file_size:
        raise DirectoryError(f"{directory} is an archive of data files of {manifest.data_file_size} bytes, "
                             f"but those of {reader.path} have {reader.data_file_size}: {kept}")


def check_same_end(source: ArchiveSource, end: ArchiveEnd, directory: str, group_id: str) -> None:
    """
    @param end: of the archive at C{directory}. The log of C{source} holds its entry, or begins with the very
        entry after it, which provably continues from it.
    @param group_id: of the archive; empty if it is not known.
    @raise DirectoryError: neither is so.
    @raise StoreError: the log cannot be read.
    """
    reader, kept = source.reader, _kept(directory)
    if reader.end_index < end.index:
        raise DirectoryError(
            f"{directory} ends with entry {end.index}, but {reader.path} with entry {reader.end_index}: this "
            f"member is behind, or has another history. {directory} stays as it is. Wait, or name another "
            "member"
        )
    if reader.begin_index == end.index + 1:
        _check_adjoining(source, end, directory, kept, is_same_group=bool(group_id and source.group_id))
        return
    if reader.begin_index > end.index:
        raise DirectoryError(
            f"{directory} ends with entry {end.index}, but {reader.path} begins with entry "
            f"{reader.begin_index}: the entries between may be lost to retention. {kept}"
        )
    (batch,) = reader.batches(end.index, end_index=end.index)
    if end_of(batch, batch.records) != end:
        raise DirectoryError(f"entry {end.index} of {reader.path} is another one than in {directory}: the "
                             f"two have different histories. {kept}")


def _kept(directory: str) -> str:
    return f"{directory} stays as it is. Name another target"


def _check_adjoining(
    source: ArchiveSource, end: ArchiveEnd, directory: str, kept: str, *, is_same_group: bool
) -> None:
    """The entry of C{end} has expired; the checksum of the next record covers that of the record before."""
    reader = source.reader
    try:
        (batch,) = reader.batches(reader.begin_index, end_index=reader.begin_index,
                                  behind=(end.term, end.chain_crc))
    except StoreError as error:
        raise DirectoryError(
            f"{reader.path} begins with entry {reader.begin_index}, which does not continue from entry "
            f"{end.index}, the last one in {directory} ({error.facts['reason']}): the two have different "
            f"histories, or the entry is damaged. {kept}, or name another member"
        ) from None
    header = ENTRY_HEADER.unpack_from(batch.records)
    is_proven = is_same_group or bool(end.chain_crc and header[6])
    if header[4] % reader.data_file_size or header[4] < end.position or not is_proven:
        raise DirectoryError(
            f"{reader.path} begins with entry {reader.begin_index}, after the last one in {directory}; "
            f"nothing in its record proves that it continues from there. {kept}, or name another member"
        )


def end_of(batch: EntryBatch, record: bytes) -> ArchiveEnd:
    """The end of a log. @param record: the last one of C{batch}."""
    _, size, index, term, position, _, chain_crc, _, _ = ENTRY_HEADER.unpack_from(record)
    assert (index, size) == (batch.last_index, len(record))
    return ArchiveEnd(index=index, term=term, position=position + size, chain_crc=chain_crc,
                     record_sha256=hashlib.sha256(record).hexdigest())


def last_record(batch: EntryBatch) -> bytes:
    """The last record of a batch that was checked."""
    at = 0
    for _ in range(batch.count - 1):
        at += ENTRY_HEADER.unpack_from(batch.records, at)[1]
    return batch.records[at:]


def check_begin(source: ArchiveSource, batch: EntryBatch) -> None:
    """
    The first record of a log whose beginning has expired continues from nothing; the mark knows it.

    @param batch: begins with that record.
    @raise StoreError: it is another one.
    """
    reader = source.reader
    mark, position = reader.mark, ENTRY_HEADER.unpack_from(batch.records)[4]
    header = batch.records[:ENTRY_HEADER_SIZE]
    if mark is not None and mark.begin_position == position and mark.begin_crc != crc32(header):
        path = reader.data.path(position)
        raise StoreError(f"entry {batch.first_index} cannot be read: {path} at 0: not the first record "
                         "that is on record", file=path, offset=0, index=batch.first_index)


def known_before(before: KeptMachine | None, files: MachineFiles | None) -> KeptMachine | None:
    """What a manifest says of a machine, or of the state of the group, before snapshots are copied."""
    return KeptMachine() if before is None and files is not None else before
