# -*- test-case-name: tests.storage.test_backup -*-
"""
The manifest of a backup: what is in its directory, and how far the log in it goes.

    backup.json                       the manifest
    data/<position>-<end position>    a I{piece}: whole records of one segment, without blanks
    machine/...                       snapshots, see L{dledger.storage.manifests.kept_snapshot}

The log in a backup grows by pieces and by nothing else: no piece is written a second time. A file counts as
soon as the manifest lists it, and the manifest is replaced as a whole when all files in it are on stable
storage. So a backup that is cut short anywhere is the backup of before, or one that reaches further.

The manifest has a checksum, and one for each piece. Positions are those of the log (stream offsets), so the
bytes of a piece are those of every member's segments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

import attrs

from dledger.base.disk.disk import Disk
from dledger.storage.manifests.document import (
    MalformedManifest,
    decode_document,
    digest_in,
    encode_document,
    field_in,
    place_in,
)
from dledger.storage.manifests.kept_snapshot import KeptMachine, snapshots_in
from dledger.values.errors import DirectoryError, StoreError
from protocols.wire.fastjson import JsonObject
from protocols.wire.ledger.bounds import INDEX_MAX, POSITION_MAX
from protocols.wire.ledger.entry import ENTRY_HEADER_SIZE

BACKUP_NAME = "backup.json"
_FORMAT, _VERSION = "dledger-backup", 1


@attrs.frozen(kw_only=True)
class Piece:
    """
    A file of records.

    @ivar position, end_position: stream offsets of the first record, and after the last one.
    @ivar first_index, last_index: entries in it, inclusive.
    @ivar sha256: of the file, in hexadecimal digits.
    """

    position: int
    end_position: int
    first_index: int
    last_index: int
    sha256: str

    @property
    def size(self) -> int:
        """Length in bytes."""
        return self.end_position - self.position

    @property
    def name(self) -> str:
        """Path of the file, below the directory of the backup."""
        return piece_name(self.position, self.end_position)

    def difference(self, first_term: int, last_term: int, chain_crc: int | None) -> str:
        """How the records in the file differ from what is listed besides; empty: they do not."""
        return ""


def piece_name(position: int, end_position: int) -> str:
    """Path of a piece, below the directory of the backup."""
    return f"data/{position:020d}-{end_position:020d}"


@attrs.frozen(kw_only=True)
class BackupEnd:
    """
    The last entry of a backup, by which the next backup knows the log again.

    @ivar position: stream offset after the record.
    @ivar chain_crc: its C{chainCrc}, 0 if it has none.
    @ivar record_sha256: of the whole record, in hexadecimal digits.
    """

    index: int
    term: int
    position: int
    chain_crc: int
    record_sha256: str


@attrs.frozen(kw_only=True)
class BackupManifest:
    """
    Content of the manifest.

    @ivar group, group_id, member_id: as the member's identity says; empty where it says nothing. The member
        is the one of the last backup: all members of a group have the same committed records.
    @ivar data_file_size, index_file_size: of the member's files, in bytes.
    @ivar taken_s: time of the last backup, in seconds since 1970.
    @ivar end: the last entry.
    @ivar pieces: in the order of the log, at least one. No entry is missing between them.
    @ivar machine: None: no member of which it was taken has run a state machine.
    @ivar group_state: None: no member of which it was taken was one of ours.
    """

    group: str
    group_id: str
    member_id: str
    data_file_size: int
    index_file_size: int
    taken_s: int
    end: BackupEnd
    pieces: tuple[Piece, ...]
    machine: KeptMachine | None = None
    group_state: KeptMachine | None = None

    @property
    def begin_index(self) -> int:
        """Index of the first entry."""
        return self.pieces[0].first_index

    @property
    def count(self) -> int:
        """Number of entries."""
        return self.end.index - self.begin_index + 1

    @property
    def size(self) -> int:
        """Bytes of all pieces."""
        return sum(piece.size for piece in self.pieces)


def encode_backup_manifest(manifest: BackupManifest) -> bytes:
    """The bytes of the file."""
    return encode_document(_FORMAT, _VERSION, "backup", attrs.asdict(manifest))


def read_backup_manifest(disk: Disk, directory: str) -> BackupManifest | None:
    """
    The manifest of a backup; None if there is none.

    @raise DirectoryError: there is one, and it is not sound, or of a later version.
    @raise StoreError: it cannot be read.
    """
    path = f"{directory}/{BACKUP_NAME}"
    try:
        if not disk.exists(path):
            return None
        data = disk.read_file(path)
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error}", file=path) from error
    try:
        return decode_backup_manifest(data)
    except ValueError as error:
        raise DirectoryError(
            f"{path}: {error}. Nothing was changed; take the next backup to another directory"
        ) from None


def decode_backup_manifest(data: bytes) -> BackupManifest:
    """@raise ValueError: these bytes are no sound manifest; the text says why."""
    manifest = _manifest_in(decode_document(data, _FORMAT, _VERSION, "backup"))
    check_pieces(manifest.data_file_size, manifest.index_file_size, manifest.pieces)
    last = manifest.pieces[-1]
    if (last.last_index, last.end_position) != (manifest.end.index, manifest.end.position):
        raise MalformedManifest("the pieces do not reach the end")
    return manifest


def pieces_in(content: JsonObject) -> list[JsonObject]:
    """The pieces of a manifest. @raise ValueError: they are no list of objects."""
    pieces = content.get("pieces")
    if not isinstance(pieces, list):
        raise MalformedManifest("it has no pieces")
    for piece in pieces:
        if not isinstance(piece, dict):
            raise MalformedManifest(f"a piece is {piece!r}")
    return pieces


class PieceFields(TypedDict):
    """The fields of a L{Piece}."""

    position: int
    end_position: int
    first_index: int
    last_index: int
    sha256: str


def piece_fields(piece: JsonObject) -> PieceFields:
    """The fields of a L{Piece}. @raise ValueError: one is missing or malformed."""
    return {
        "position": place_in(piece, "position", POSITION_MAX),
        "end_position": place_in(piece, "end_position", POSITION_MAX),
        "first_index": place_in(piece, "first_index", INDEX_MAX),
        "last_index": place_in(piece, "last_index", INDEX_MAX), "sha256": digest_in(piece, "sha256"),
    }


def _manifest_in(content: JsonObject) -> BackupManifest:
    end, found = content.get("end"), [Piece(**piece_fields(piece)) for piece in pieces_in(content)]
    if not isinstance(end, dict) or not found:
        raise MalformedManifest("it has no end, or no pieces")
    return BackupManifest(
        group=field_in(content, "group", str), group_id=field_in(content, "group_id", str),
        member_id=field_in(content, "member_id", str),
        data_file_size=place_in(content, "data_file_size", POSITION_MAX),
        index_file_size=place_in(content, "index_file_size", POSITION_MAX),
        taken_s=field_in(content, "taken_s", int), pieces=tuple(found),
        end=BackupEnd(
            index=place_in(end, "index", INDEX_MAX), term=place_in(end, "term", INDEX_MAX),
            position=place_in(end, "position", POSITION_MAX), chain_crc=field_in(end, "chain_crc", int),
            record_sha256=digest_in(end, "record_sha256"),
        ),
        machine=snapshots_in(content, "machine"),
        group_state=snapshots_in(content, "group_state"),
    )


def check_pieces(data_file_size: int, index_file_size: int, pieces: Sequence[Piece]) -> None:
    """
    @param pieces: of one log, whose files have these sizes; at least one.
    @raise ValueError: the pieces do not follow each other, or are no parts of segments.
    """
    size = data_file_size
    if not size or not index_file_size:
        raise MalformedManifest("a file size is 0")
    before = None
    for piece in pieces:
        count = piece.last_index - piece.first_index + 1
        is_in_order = before is None or (
            piece.first_index == before.last_index + 1
            and (piece.position == before.end_position
                 or (piece.position > before.end_position and piece.position % size == 0))
        )
        if (
            not is_in_order or count < 1 or piece.size < count * ENTRY_HEADER_SIZE
            or piece.position // size != (piece.end_position - 1) // size
        ):
            raise MalformedManifest(f"the piece {piece.name} does not fit the one before it, or no segment")
        before = piece
    if pieces[0].position % size:
        raise MalformedManifest("the pieces do not begin with a segment")
