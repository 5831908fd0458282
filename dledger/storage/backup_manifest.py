# -*- test-case-name: tests.storage.test_backup -*-
"""
The manifest of a backup: what is in its directory, and how far the log in it goes.

    backup.json                       the manifest
    data/<position>-<end position>    a I{piece}: whole records of one segment, without blanks

A backup grows by pieces and by nothing else: no piece is written a second time. A piece counts as soon as the
manifest lists it, and the manifest is replaced as a whole when all pieces in it are on stable storage. So a
backup that is cut short anywhere is the backup of before, or one that reaches further.

The manifest has a checksum, and one for each piece. Positions are those of the log (stream offsets), so the
bytes of a piece are those of every member's segments.
"""

from __future__ import annotations

import json
from hashlib import sha256
from typing import TypeVar

import attrs

from dledger.base.disk.disk import Disk
from dledger.base.errors import DirectoryError, StoreError
from protocols.wire.fastjson import JsonObject
from protocols.wire.ledger.bounds import INDEX_MAX, POSITION_MAX
from protocols.wire.ledger.entry import ENTRY_HEADER_SIZE

BACKUP_NAME = "backup.json"
_FORMAT, _VERSION = "dledger-backup", 1
_DIGEST_LENGTH = 64

_Value = TypeVar("_Value", int, str)


class _Malformed(ValueError):
    """The manifest has its checksum, but says what cannot be."""


@attrs.frozen(kw_only=True)
class Piece:
    """
    A file of records.

    @ivar position, end_position: stream offsets of the first record, and behind the last one.
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


def piece_name(position: int, end_position: int) -> str:
    """Path of a piece, below the directory of the backup."""
    return f"data/{position:020d}-{end_position:020d}"


@attrs.frozen(kw_only=True)
class BackupEnd:
    """
    The last entry of a backup, by which the next backup knows the log again.

    @ivar position: stream offset behind the record.
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
    """

    group: str
    group_id: str
    member_id: str
    data_file_size: int
    index_file_size: int
    taken_s: int
    end: BackupEnd
    pieces: tuple[Piece, ...]

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
    content = attrs.asdict(manifest)
    document = {"format": _FORMAT, "version": _VERSION, "sha256": _digest(content), "backup": content}
    return (json.dumps(document, indent=1) + "\n").encode()


def _digest(content: object) -> str:
    return sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


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
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _Malformed(f"no JSON: {error}") from None
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise _Malformed(f"no manifest of a backup: it has no \"format\": \"{_FORMAT}\"")
    if document.get("version") != _VERSION:
        raise _Malformed(f"version {document.get('version')!r}, but this program reads version {_VERSION}")
    content = document.get("backup")
    if not isinstance(content, dict) or document.get("sha256") != _digest(content):
        raise _Malformed("damaged: its checksum is another one")
    manifest = _manifest_in(content)
    _check_pieces(manifest)
    return manifest


def _field(content: JsonObject, name: str, kind: type[_Value]) -> _Value:
    value = content.get(name)
    if type(value) is not kind:
        raise _Malformed(f"{name} is {value!r}")
    return value


def _place(content: JsonObject, name: str, most: int) -> int:
    value = _field(content, name, int)
    if not 0 <= value <= most:
        raise _Malformed(f"{name} is {value}")
    return value


def _record_of_digest(content: JsonObject, name: str) -> str:
    text = _field(content, name, str)
    if len(text) != _DIGEST_LENGTH:
        raise _Malformed(f"{name} is {text!r}")
    return text


def _manifest_in(content: JsonObject) -> BackupManifest:
    end, pieces = content.get("end"), content.get("pieces")
    if not isinstance(end, dict) or not isinstance(pieces, list) or not pieces:
        raise _Malformed("it has no end, or no pieces")
    found = []
    for piece in pieces:
        if not isinstance(piece, dict):
            raise _Malformed(f"a piece is {piece!r}")
        found.append(Piece(
            position=_place(piece, "position", POSITION_MAX),
            end_position=_place(piece, "end_position", POSITION_MAX),
            first_index=_place(piece, "first_index", INDEX_MAX),
            last_index=_place(piece, "last_index", INDEX_MAX), sha256=_record_of_digest(piece, "sha256"),
        ))
    return BackupManifest(
        group=_field(content, "group", str), group_id=_field(content, "group_id", str),
        member_id=_field(content, "member_id", str),
        data_file_size=_place(content, "data_file_size", POSITION_MAX),
        index_file_size=_place(content, "index_file_size", POSITION_MAX),
        taken_s=_field(content, "taken_s", int), pieces=tuple(found),
        end=BackupEnd(
            index=_place(end, "index", INDEX_MAX), term=_place(end, "term", INDEX_MAX),
            position=_place(end, "position", POSITION_MAX), chain_crc=_field(end, "chain_crc", int),
            record_sha256=_record_of_digest(end, "record_sha256"),
        ),
    )


def _check_pieces(manifest: BackupManifest) -> None:
    """@raise ValueError: the pieces do not follow each other, or are no parts of segments."""
    size = manifest.data_file_size
    if not size or not manifest.index_file_size:
        raise _Malformed("a file size is 0")
    before = None
    for piece in manifest.pieces:
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
            raise _Malformed(f"the piece {piece.name} does not fit the one before it, or no segment")
        before = piece
    last = manifest.pieces[-1]
    if manifest.pieces[0].position % size or (last.last_index, last.end_position) != (
        manifest.end.index, manifest.end.position
    ):
        raise _Malformed("the pieces do not begin with a segment, or do not reach the end")
