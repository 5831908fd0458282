# -*- test-case-name: tests.machine.test_snapshots -*-
"""
The file of one snapshot: a header, then the pieces of a state, then an end. The first piece of a machine's
snapshot has the kept results (L{dledger.machine.kept_results}), the rest is the machine's.

Each piece has the checksum of all bytes of the state up to its own end, and the end reports their number: a
file that is cut anywhere, or has a bit flipped anywhere, is refused. The caller gives it its name when all of
it is on stable storage.

A backup and an archive hold such files as they are. Knows nothing of logs and machines, and keeps at most one
piece in memory.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import attrs
from construct import Int16ub, Int32sb, Int32ub, Int64sb, Int64ub, Struct

from dledger.base.disk.disk import Disk
from dledger.values.errors import DLedgerError
from protocols.wire.checksums import crc32
from protocols.wire.codes import ResponseCode
from protocols.wire.layout import struct_of

SNAPSHOT_MAGIC = 0x444C534E  # "DLSN"
SNAPSHOT_VERSION = 1
#: Most bytes of one piece of a state.
CHUNK_BYTES_MAX = 4 * 1024 * 1024
#: Bytes that are written before they are made durable.
STEP_BYTES = 64 * 1024

SNAPSHOT_HEADER_DECLARATION = Struct(
    "magic" / Int32sb,
    "version" / Int32sb,
    "index" / Int64sb,  # of the last entry in the state
    "term" / Int64sb,  # of that entry
    "chain_crc" / Int32sb,  # of that entry
    "machine_version" / Int32sb,
    "name_length" / Int16ub,  # bytes of the machine's name, which follows, and then a CRC-32 of all before it
)
SNAPSHOT_PIECE_DECLARATION = Struct(
    "length" / Int32ub,  # of the piece, which follows; L{END} after the last one
    "crc" / Int32ub,  # CRC-32 of the state up to the end of this piece
)
SNAPSHOT_END_DECLARATION = Struct("total" / Int64ub)  # bytes of the state
_HEADER = struct_of(SNAPSHOT_HEADER_DECLARATION)
_PIECE = struct_of(SNAPSHOT_PIECE_DECLARATION)
_TOTAL = struct_of(SNAPSHOT_END_DECLARATION)
_CRC = struct_of(Struct("crc" / Int32ub))
END = 0xFFFF_FFFF


class SnapshotRefused(DLedgerError):
    """A snapshot that must not be used, or could not be written. Nothing else is harmed."""

    def __init__(self, reason: str) -> None:
        super().__init__(ResponseCode.DISK_ERROR, reason=reason)

    def __str__(self) -> str:
        """Only the reason: it is a sentence for the operator."""
        return str(self.facts["reason"])


@attrs.frozen(kw_only=True)
class SnapshotHead:
    """
    What a snapshot is of.

    @ivar index, term, chain_crc: of the last entry in the state; C{chain_crc} 0 if that has none.
    @ivar machine, machine_version: name and version of the machine.
    """

    index: int
    term: int
    chain_crc: int
    machine: str
    machine_version: int

    def encode(self) -> bytes:
        """The header of the file."""
        name = self.machine.encode()
        header = _HEADER.pack(
            SNAPSHOT_MAGIC, SNAPSHOT_VERSION, self.index, self.term, self.chain_crc, self.machine_version,
            len(name),
        ) + name
        return header + _CRC.pack(crc32(header))


class SnapshotData(Protocol):
    """The bytes of a snapshot: an open L{dledger.base.disk.disk.File}, or L{SnapshotBytes}."""

    @property
    def path(self) -> str:
        """For sentences."""

    def pread(self, size: int, position: int) -> bytes:
        """Fewer bytes at the end."""

    def size(self) -> int:
        """In bytes."""

    def close(self) -> None:
        """Release it."""


@attrs.frozen
class SnapshotBytes:
    """A snapshot in memory."""

    path: str
    data: bytes

    def pread(self, size: int, position: int) -> bytes:
        """Fewer bytes at the end."""
        return self.data[position : position + size]

    def size(self) -> int:
        """In bytes."""
        return len(self.data)

    def close(self) -> None:
        """Nothing to do."""


def encoded_snapshot(head: SnapshotHead, chunks: Iterable[bytes]) -> Iterator[bytes]:
    """
    The bytes of the file, part by part.

    @raise SnapshotRefused: a piece is none.
    """
    yield head.encode()
    crc = total = 0
    for chunk in chunks:
        if not isinstance(chunk, bytes) or len(chunk) > CHUNK_BYTES_MAX:
            what = f"{len(chunk)} bytes" if isinstance(chunk, bytes) else f"a {type(chunk).__name__}"
            raise SnapshotRefused(
                f"snapshot() gave {what} as one piece: bytes objects of at most {CHUNK_BYTES_MAX} "
                "bytes are allowed"
            )
        crc = crc32(chunk, crc)
        total += len(chunk)
        yield _PIECE.pack(len(chunk), crc) + chunk
    yield _PIECE.pack(END, crc) + _TOTAL.pack(total)


def no_rest() -> int:
    """Go on at once. @return: L{STEP_BYTES}."""
    return STEP_BYTES


def write_snapshot(
    disk: Disk, path: str, head: SnapshotHead, chunks: Iterable[bytes], problem: Callable[[], str],
    rest: Callable[[], int] = no_rest,
) -> int:
    """
    Write a snapshot to a new file and make it durable. The caller gives it its name.

    The log is on the same disk, and its flushes wait for what was written before them: each step is made
    durable before the next one, and then the writer rests.

    @param problem: asked before each step; a reason to give up, or empty.
    @param rest: blocks for a while; returns the bytes of the next step.
    @return: bytes of the file.
    @raise SnapshotRefused: C{problem} had a reason, or a piece is none.
    @raise OSError: of the disk.
    """
    file = disk.open(path, create=True)
    try:
        at = durable = 0
        step_bytes = STEP_BYTES
        for part in encoded_snapshot(head, chunks):
            for start in range(0, len(part), STEP_BYTES):
                reason = problem()
                if reason:
                    raise SnapshotRefused(reason)
                step = memoryview(part)[start : start + STEP_BYTES]
                file.pwrite(step, at)
                at += len(step)
                if at - durable >= step_bytes:
                    file.datasync()
                    durable = at
                    step_bytes = rest()
        file.datasync()
        return at
    finally:
        file.close()


def _read(file: SnapshotData, size: int, at: int, what: str) -> bytes:
    data = file.pread(size, at)
    if len(data) != size:
        raise SnapshotRefused(f"{file.path} is cut: its {what} at {at} has {len(data)} of {size} bytes")
    return data


def _read_head(file: SnapshotData) -> tuple[SnapshotHead, bytes]:
    """@return: the header, and its bytes, after which the first piece begins."""
    fixed = _read(file, _HEADER.size, 0, "header")
    magic, version, index, term, chain_crc, machine_version, length = _HEADER.unpack(fixed)
    if magic != SNAPSHOT_MAGIC:
        raise SnapshotRefused(f"{file.path} is not a snapshot: it begins with {fixed[:4].hex()}")
    rest = _read(file, length + _CRC.size, _HEADER.size, "header")
    if _CRC.unpack_from(rest, length)[0] != crc32(fixed + rest[:length]):
        raise SnapshotRefused(f"{file.path} is damaged: the checksum of its header does not fit")
    if version != SNAPSHOT_VERSION:
        raise SnapshotRefused(f"{file.path} has the format {version}, this program reads {SNAPSHOT_VERSION}")
    return SnapshotHead(
        index=index, term=term, chain_crc=chain_crc, machine=rest[:length].decode("utf-8", "replace"),
        machine_version=machine_version,
    ), fixed + rest


def head_of_snapshot(file: SnapshotData) -> SnapshotHead:
    """Read the header only. @raise SnapshotRefused: it is damaged or cut. @raise OSError: of the disk."""
    return _read_head(file)[0]


def read_snapshot_head(disk: Disk, path: str) -> SnapshotHead:
    """Read the header of a file that is not open, see L{head_of_snapshot}."""
    file = disk.open(path)
    try:
        return head_of_snapshot(file)
    finally:
        file.close()


def checked_bytes(file: SnapshotData) -> Iterator[bytes]:
    """
    All bytes of the file, in parts of at most a piece; each part is checked before it is given.

    @raise SnapshotRefused: the file is damaged or cut here. @raise OSError: of the disk.
    """
    for part, _ in _parts(file):
        yield part


def state_pieces(file: SnapshotData) -> Iterator[bytes]:
    """
    The pieces of the state; each is checked before it is given.

    @raise SnapshotRefused: the file is damaged or cut here. @raise OSError: of the disk.
    """
    return (part[_PIECE.size :] for part, is_piece in _parts(file) if is_piece)


def read_pieces(disk: Disk, path: str) -> Iterator[bytes]:
    """Open a file for L{state_pieces}, and close it after the last one."""
    file = disk.open(path)
    try:
        yield from state_pieces(file)
    finally:
        file.close()


def _parts(file: SnapshotData) -> Iterator[tuple[bytes, bool]]:
    """The header, the pieces, the end; and whether it is a piece. See L{checked_bytes}."""
    path = file.path
    head = _read_head(file)[1]
    yield head, False
    at, crc, total = len(head), 0, 0
    while True:
        prefix = _read(file, _PIECE.size, at, "piece")
        length, reported = _PIECE.unpack(prefix)
        at += _PIECE.size
        if length == END:
            break
        if length > CHUNK_BYTES_MAX:
            raise SnapshotRefused(f"{path} is damaged: a piece of {length} bytes at {at}")
        chunk = _read(file, length, at, "piece")
        crc = crc32(chunk, crc)
        if crc != reported:
            raise SnapshotRefused(f"{path} is damaged: the checksum of the piece at {at} does not fit")
        at += length
        total += length
        yield prefix + chunk, True
    end = _read(file, _TOTAL.size, at, "end")
    (all_bytes,) = _TOTAL.unpack(end)
    if (reported, all_bytes) != (crc, total):
        raise SnapshotRefused(
            f"{path} is damaged: the trailer says {all_bytes} bytes, the file has {total}"
        )
    if file.size() != at + _TOTAL.size:
        raise SnapshotRefused(f"{path} is damaged: bytes follow its end at {at + _TOTAL.size}")
    yield prefix + end, False


def check_snapshot(disk: Disk, path: str) -> SnapshotHead:
    """
    Read a whole snapshot.

    @raise SnapshotRefused: it is not sound; the sentence says why.
    """
    try:
        head = read_snapshot_head(disk, path)
        for _ in read_pieces(disk, path):
            pass
    except OSError as error:
        if error.errno == errno.ENOENT:
            raise SnapshotRefused(f"{path} does not exist") from error
        raise SnapshotRefused(f"{path} cannot be read: {error}") from error
    return head
