# -*- test-case-name: tests.storage.test_holes -*-
"""
The holes of an open ledger, and the small file that remembers them: C{holes}, beside the commit mark.

The file has a checksum and is replaced as a whole. It is a memory, not a promise: every read checks its
record, and a start finds the holes of the part that it scans anew. An unsound file only costs a scan of
everything.
"""

from __future__ import annotations

from construct import Int32sb, Int32ub, Int64sb, Struct

from dledger.base.disk.file_table import HOLES
from dledger.base.disk.hints import HintFile, Hints
from dledger.values.ledger.holes import HOLES_MAX, Hole, joined_holes
from protocols.wire.checksums import crc32
from protocols.wire.layout import struct_of

_MAGIC, _VERSION = 0x444C484F, 1  # "DLHO"
_HEAD = struct_of(Struct("magic" / Int32sb, "version" / Int32sb, "count" / Int32sb))
_HOLE = struct_of(Struct(
    "first_index" / Int64sb, "last_index" / Int64sb, "position" / Int64sb, "end_position" / Int64sb,
))
_CRC = struct_of(Struct("crc" / Int32ub))


def encode_holes(holes: tuple[Hole, ...]) -> bytes:
    """The content of the file."""
    data = _HEAD.pack(_MAGIC, _VERSION, len(holes)) + b"".join(
        _HOLE.pack(hole.first_index, hole.last_index, hole.position, hole.end_position) for hole in holes
    )
    return data + _CRC.pack(crc32(data))


def decode_holes(data: bytes) -> tuple[Hole, ...] | None:
    """The holes in a file; None if it is not sound."""
    body, crc = data[: -_CRC.size], data[-_CRC.size :]
    if len(body) < _HEAD.size or len(crc) < _CRC.size or _CRC.unpack(crc)[0] != crc32(body):
        return None
    magic, version, count = _HEAD.unpack_from(body)
    if (magic, version) != (_MAGIC, _VERSION) or not 0 <= count <= HOLES_MAX:
        return None
    if len(body) != _HEAD.size + count * _HOLE.size:
        return None
    return tuple(
        Hole(first_index=first, last_index=last, position=position, end_position=end)
        for first, last, position, end in _HOLE.iter_unpack(body[_HEAD.size :])
    )


class HoleList:
    """
    Invariant: C{holes} rise, do not touch, and are at most L{HOLES_MAX}; C{end_index} is the last index of
    the last one, -1 without any.

    @ivar is_late: the file has other holes: it could not be written last time.
    """

    def __init__(self, hints: Hints, directory: str, holes: tuple[Hole, ...] = ()) -> None:
        self._disk = hints.disk
        self._file = HintFile(hints, HOLES, directory)
        self.is_late = False
        self.holes: tuple[Hole, ...] = ()
        self.end_index = -1
        self._set(joined_holes(holes))

    def _set(self, holes: tuple[Hole, ...]) -> None:
        self.holes = holes
        self.end_index = holes[-1].last_index if holes else -1

    @classmethod
    def recorded(cls, hints: Hints, directory: str) -> tuple[Hole, ...] | None:
        """The holes that the file remembers, none without a file; None if it is not sound."""
        file = HintFile(hints, HOLES, directory)
        return file.read(decode_holes) if hints.disk.exists(file.path) else ()

    def at(self, index: int) -> Hole | None:
        """The hole that C{index} lies in."""
        if index > self.end_index:
            return None
        return next((hole for hole in self.holes if hole.holds(index)), None)

    def readable_to(self, first_index: int, last_index: int) -> int:
        """Last index of the sound entries from C{first_index} on, which is sound, at most C{last_index}."""
        for hole in self.holes:
            if hole.first_index > first_index:
                return min(last_index, hole.first_index - 1)
        return last_index

    def add(self, hole: Hole) -> None:
        """Remember another one."""
        self._set(joined_holes((*self.holes, hole)))
        self.write()

    def found(
        self, holes: tuple[Hole, ...], *, begin_index: int, scanned_from_index: int, end_index: int
    ) -> None:
        """
        A start has scanned the ledger C{begin_index..end_index} from C{scanned_from_index} on: there it has
        C{holes}. Holes before are still remembered.
        """
        before = tuple(
            hole for hole in self.holes
            if max(begin_index, 0) <= hole.first_index <= hole.last_index < min(scanned_from_index, end_index)
        )
        was = self.holes
        self._set(joined_holes((*before, *holes)))
        if self.holes != was:
            self.write()

    def replace(self, old: Hole, new: Hole | None) -> None:
        """
        C{old} has shrunk to C{new}; None: it is closed.

        Only a closed hole is forgotten by the file: the bytes of the others may not be on stable storage yet.
        """
        kept = tuple(hole for hole in self.holes if hole != old)
        self._set(joined_holes(kept if new is None else (*kept, new)))
        if new is None:
            self.write()

    def cut(self, next_index: int) -> None:
        """C{next_index} and the entries after it are gone. No hole reaches over it."""
        kept = tuple(hole for hole in self.holes if hole.last_index < next_index)
        if kept != self.holes:
            self._set(kept)
            self.write()

    def begin_at(self, begin_index: int, position: int) -> None:
        """The entries before C{begin_index}, whose record begins at C{position}, are gone."""
        kept = tuple(
            hole if hole.first_index >= begin_index
            else Hole(first_index=begin_index, last_index=hole.last_index, position=position,
                      end_position=hole.end_position)
            for hole in self.holes if hole.last_index >= begin_index
        )
        if kept != self.holes:
            self._set(kept)
            self.write()

    def write(self) -> None:
        """Write the file, durably, if the disk lets it."""
        is_needed = bool(self.holes) or self._disk.exists(self._file.path)
        self.is_late = is_needed and not self._file.write(encode_holes(self.holes))
