# -*- test-case-name: tests.storage.test_machine_copy -*-
"""
Copying the snapshots of a member's state machine, and of the state of the group, into an archive, and
reading them there.

A member that has ever run a machine has a directory C{machine}: by that the manifest knows that the group has
one. Its snapshots are opened before the log is copied, so the member may replace them meanwhile.

Rule 1: which snapshots are taken, and which stay, is in L{dledger.storage.manifests.kept_snapshot}. One whose
entry the member's log has must be of that log.
Rule 2: a snapshot is checked piece by piece while it is copied, and no more than a piece is in memory. One
that is damaged is left out, and the next older one is tried.
Rule 3: a file counts when the manifest lists it. Until then what was listed before counts, and stays.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator

import attrs

from dledger.base.disk.disk import Disk
from dledger.storage.files.reader import LogReader
from dledger.storage.files.snapshot_file import (
    CHUNK_BYTES_MAX,
    SnapshotBytes,
    SnapshotData,
    SnapshotHead,
    SnapshotRefused,
    checked_bytes,
    encoded_snapshot,
    head_of_snapshot,
    state_pieces,
)
from dledger.storage.files.state_file import STATE_NAME, StateFile, StoredState, decode_state, encode_state
from dledger.storage.manifests.kept_snapshot import (
    MACHINE_DIRECTORY,
    KeptMachine,
    KeptSnapshot,
    parsed_snapshot_name,
    snapshot_name,
)
from dledger.storage.start.identity import IDENTITY_NAME
from dledger.values.errors import StoreError
from protocols.wire.errors import WireError
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.entry import iterate_records

#: Snapshots of a member that are opened; it keeps two, and few more for a while.
_OPENED_MAX = 4

#: Write a file of this name from these bytes, durably; if the bytes fail, no manifest lists it.
WriteFile = Callable[[str, Iterator[bytes]], None]


@attrs.frozen
class MachineFiles:
    """
    The snapshots of a member, held open.

    @ivar files: index and term by their names, and the files, by rising index.
    """

    files: tuple[tuple[int, int, SnapshotData], ...]

    @classmethod
    def open(cls, disk: Disk, member: str) -> MachineFiles | None:
        """
        @param member: its directory.
        @return: None if it has never run a machine.
        @raise OSError: of the disk.
        """
        directory = f"{member}/{MACHINE_DIRECTORY}"
        if not disk.exists(directory):
            return None
        found = sorted(filter(None, map(parsed_snapshot_name, disk.listdir(directory))))
        files: list[tuple[int, int, SnapshotData]] = []
        for index, term in found[-_OPENED_MAX:]:
            try:
                files.append((index, term, disk.open(f"{member}/{snapshot_name(index, term)}")))
            except FileNotFoundError:
                continue  # the member has a newer one, and has removed this one just now
        return cls(tuple(files))

    def close(self) -> None:
        """Release the files."""
        for _index, _term, file in self.files:
            file.close()


def group_files(disk: Disk, member: str) -> MachineFiles | None:
    """
    The states of the group that a member has, as snapshots of a machine without a name.

    @param member: its directory.
    @return: None if the member is not one of ours.
    @raise OSError: of the disk.
    """
    if not disk.exists(f"{member}/{IDENTITY_NAME}"):
        return None
    files: dict[int, tuple[int, int, SnapshotData]] = {}
    for stored in StateFile(disk, f"{member}/{STATE_NAME}").read():
        index, term, _, chain_crc = stored.place
        if index >= 0 and index not in files:
            path = snapshot_name(index, term, is_of_group=True)
            data = encode_state(stored.state, stored.place)
            parts = (data[at : at + CHUNK_BYTES_MAX] for at in range(0, len(data), CHUNK_BYTES_MAX))
            head = SnapshotHead(index=index, term=term, chain_crc=chain_crc, machine="", machine_version=1)
            files[index] = index, term, SnapshotBytes(path, b"".join(encoded_snapshot(head, parts)))
    return MachineFiles(tuple(files[index] for index in sorted(files)))


def state_of_group(parts: Iterable[bytes]) -> StoredState:
    """
    The state in the parts of a snapshot of the group.

    @raise StoreError: it is of a later version.
    """
    try:
        return decode_state(b"".join(state_pieces(SnapshotBytes("group", b"".join(parts)))))
    except (SnapshotRefused, WireError) as error:
        raise StoreError(str(error)) from error


@attrs.frozen
class TakenMachine:
    """
    What an archive holds of the machine now.

    @ivar machine: for the manifest.
    @ivar copied_bytes: of the snapshots that were copied.
    @ivar refused: sentences about snapshots of the member that were left out.
    """

    machine: KeptMachine | None
    copied_bytes: int = 0
    refused: tuple[str, ...] = ()


@attrs.define(kw_only=True)
class SnapshotTaking:
    """
    One run.

    @ivar begin_index, end_index: of the log in it, inclusive.
    @ivar write: writes a file at the place.
    @ivar pace: see L{dledger.storage.backups.source.CopyPace}.
    """

    files: MachineFiles
    reader: LogReader
    begin_index: int
    end_index: int
    write: WriteFile
    pace: Callable[[int], None]
    _copied_bytes: int = 0
    _refused: list[str] = attrs.Factory(list)

    def run(self, listed: Iterable[KeptSnapshot]) -> TakenMachine:
        """
        Copy what is newer.

        @param listed: the snapshots in the manifest whose files are at the place.
        @raise OSError: of the place. @raise StoreError: the log of the member cannot be read.
        """
        kept = [one for one in listed if one.index >= self.begin_index - 1 and self._is_of_log(one)]
        usable = next((one for one in reversed(kept) if one.index <= self.end_index), None)
        later = next((one for one in kept if one.index > self.end_index), None)
        for index, term, file in reversed(self.files.files):
            if index > self.end_index:
                continue
            if index < self.begin_index - 1 or (usable is not None and index <= usable.index):
                break
            found = self._taken(index, term, file)
            if found is not None:
                usable = found
                break
        for index, term, file in self.files.files:
            if later is None and index > self.end_index:
                later = self._taken(index, term, file)
        snapshots = tuple(one for one in (usable, later) if one is not None)
        return TakenMachine(KeptMachine(snapshots), self._copied_bytes, tuple(self._refused))

    def _is_of_log(self, one: KeptSnapshot) -> bool:
        """Whether the log of the member does not say that a snapshot is of another log."""
        reader = self.reader
        known_index = max(reader.committed_index, min(self.end_index, reader.end_index))
        if not reader.begin_index <= one.index <= known_index:
            return True
        (batch,) = reader.batches(one.index, end_index=one.index)
        return not why_other_log(one, batch)

    def _taken(self, index: int, term: int, file: SnapshotData) -> KeptSnapshot | None:
        """A copy; None: the snapshot is not sound, or of another log."""
        try:
            try:
                head, size = head_of_snapshot(file), file.size()
            except OSError as error:
                raise SnapshotRefused(f"{file.path} cannot be read: {error}") from error
            if (head.index, head.term) != (index, term):
                raise SnapshotRefused(f"{file.path} is of the entry {head.index} of term {head.term}")
            kept = kept_snapshot(head, size, "0" * 64)
            if not self._is_of_log(kept):
                raise SnapshotRefused(f"{file.path} is of another log than the one beside it")
            digest = hashlib.sha256()
            self.write(kept.name, self._copied(file, digest))
        except SnapshotRefused as refused:
            self._refused.append(str(refused))
            return None
        self._copied_bytes += size
        return attrs.evolve(kept, sha256=digest.hexdigest())

    def _copied(self, file: SnapshotData, digest: hashlib._Hash) -> Iterator[bytes]:
        parts = checked_bytes(file)
        while True:
            try:
                part = next(parts, None)
            except OSError as error:  # of the member, not of the place
                raise SnapshotRefused(f"{file.path} cannot be read: {error}") from error
            if part is None:
                return
            digest.update(part)
            yield part
            self.pace(len(part))


def kept_snapshot(head: SnapshotHead, size: int, sha256: str) -> KeptSnapshot:
    """The entry in a manifest for a file."""
    return KeptSnapshot(
        index=head.index, term=head.term, chain_crc=head.chain_crc, machine=head.machine,
        machine_version=head.machine_version, size=size, sha256=sha256,
    )


def why_other_log(one: KeptSnapshot, batch: EntryBatch) -> str:
    """
    Why a snapshot is not of the log with these entries; empty if they do not say so.

    @param batch: any entries of the log.
    """
    if not batch.first_index <= one.index <= batch.last_index:
        return ""
    entry = next(header for header, _ in iterate_records(batch) if header.index == one.index)
    chain_crc = entry.chain_crc if one.chain_crc else 0
    if (entry.term, chain_crc) == (one.term, one.chain_crc if entry.chain_crc else 0):
        return ""
    return (f"{one.name} is of another log: there entry {one.index} is of term {one.term} and has the chain "
            f"checksum {one.chain_crc}, here {entry.term} and {entry.chain_crc}")


def snapshot_bytes(
    disk: Disk, directory: str, one: KeptSnapshot, pace: Callable[[int], None]
) -> Iterator[bytes]:
    """
    The bytes of a snapshot in an archive. Each part is checked before it is given; the whole is compared with
    the manifest after the last one.

    @raise StoreError: it is missing, damaged, or another one.
    """
    path = f"{directory}/{one.name}"
    try:
        file = disk.open(path)
        try:
            if file.size() != one.size:
                raise StoreError(f"{path} has {file.size()} bytes, but the manifest says {one.size}",
                                 file=path)
            if kept_snapshot(head_of_snapshot(file), one.size, one.sha256) != one:
                raise StoreError(f"{path} is not the snapshot that the manifest lists", file=path)
            digest = hashlib.sha256()
            for part in checked_bytes(file):
                digest.update(part)
                yield part
                pace(len(part))
            if digest.hexdigest() != one.sha256:
                raise StoreError(f"{path}: its checksum is not the one in the manifest", file=path)
        finally:
            file.close()
    except SnapshotRefused as refused:
        raise StoreError(str(refused), file=path) from refused
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error}", file=path) from error
