# -*- test-case-name: tests.storage.test_commit_mark,tests.broker.store.test_log_mark -*-
"""
A mark that survives torn writes: a small file with two slots of 512 bytes, written in turn by pwrite.

Each slot has a generation and a CRC-32 behind its fields; the newest sound slot counts. Rule: the slot that
was last brought to stable storage is never written before the other one is on stable storage too, so a
torn write costs at most the newest mark.

This module does not know the meaning of a mark. An absent file is no error; a file without a sound slot is.
"""

from __future__ import annotations

from typing import Generic, Self, TypeVar
from zlib import crc32

import attrs
from construct import Int32ub, Struct

from dledger.base.disk.disk import Disk, File
from dledger.base.errors import DirectoryError
from protocols.wire.fastjson import JsonObject
from protocols.wire.layout import struct_of

SLOT_SIZE = 512
_CRC = struct_of(Struct("crc" / Int32ub))
_HEAD = ("magic", "version", "generation")

_Mark = TypeVar("_Mark")


class SlotForm(Generic[_Mark]):
    """
    The format of one kind of mark.

    @ivar size: number of used bytes in a slot.
    """

    def __init__(
        self, kind: type[_Mark], declaration: Struct, *, magic: int, version: int, unsound: str
    ) -> None:
        """
        @param kind: an attrs class with the fields of the declaration; C{clean} is a bool there.
        @param declaration: C{magic}, C{version}, C{generation}, and then the fields.
        @param unsound: error text for two unsound slots, with the remedy; it follows the path.
        """
        names = tuple(subcon.name for subcon in declaration.subcons)
        assert names[:3] == _HEAD, names
        assert set(names[3:]) == set(attrs.fields_dict(kind)), names  # type: ignore[arg-type]
        self._kind = kind
        self._names = names[3:]
        self._body = struct_of(declaration)
        self._magic = magic
        self._version = version
        self._unsound = unsound
        self.size = self._body.size + _CRC.size
        assert self.size <= SLOT_SIZE

    def encode(self, mark: _Mark, generation: int) -> bytes:
        """The bytes of one slot."""
        fields = [int(getattr(mark, name)) for name in self._names]
        body = self._body.pack(self._magic, self._version, generation, *fields)
        return body + _CRC.pack(crc32(body))

    def decode(self, data: bytes) -> tuple[int, _Mark] | None:
        """Generation and content of one slot; None if the slot is not sound."""
        body_size = self._body.size
        if len(data) < self.size or _CRC.unpack_from(data, body_size)[0] != crc32(data[:body_size]):
            return None
        magic, version, generation, *values = self._body.unpack_from(data)
        if magic != self._magic or version != self._version:
            return None
        fields: JsonObject = dict(zip(self._names, values, strict=True))
        fields["clean"] = bool(fields["clean"])
        return generation, self._kind(**fields)

    def read(self, disk: Disk, path: str) -> tuple[int, _Mark, int] | None:
        """
        Generation, content and slot of the newest sound mark; None if there is no file.

        @raise DirectoryError: the file exists, and neither slot is sound.
        """
        if not disk.exists(path):
            return None
        content = disk.read_file(path)
        sound = []
        for slot in (0, 1):
            decoded = self.decode(content[slot * SLOT_SIZE : (slot + 1) * SLOT_SIZE])
            if decoded is not None:
                sound.append((*decoded, slot))
        if not sound:
            raise DirectoryError(f"{path}: {self._unsound}")
        return max(sound, key=lambda found: found[0])


class SlotFile(Generic[_Mark]):
    """
    An open mark file. A subclass sets the form.

    Invariant: slot C{_durable_slot} holds a sound mark on stable storage and is not written.
    """

    form: SlotForm[_Mark]

    def __init__(self, file: File, generation: int, durable_slot: int) -> None:
        self._file = file
        self._generation = generation
        self._durable_slot = durable_slot
        self._is_synced = True

    @classmethod
    def open(cls, disk: Disk, path: str, initial: _Mark) -> tuple[Self, _Mark | None]:
        """
        Open the file, or create it durably with C{initial} in it.

        @return: the file and the mark in it; None instead of the mark if the file was created.
        """
        found = cls.form.read(disk, path)
        if found is None:
            disk.write_file(path, cls.form.encode(initial, 1).ljust(2 * SLOT_SIZE, b"\0"))
            return cls(disk.open(path), 1, 0), None
        generation, mark, slot = found
        file = disk.open(path)
        file.datasync()  # the mark just read may not be durable yet
        return cls(file, generation, slot), mark

    @property
    def generation(self) -> int:
        """Number of the newest write."""
        return self._generation

    @property
    def needs_sync(self) -> bool:
        """Whether a power failure may lose the newest mark."""
        return not self._is_synced

    def write(self, mark: _Mark) -> None:
        """Write without waiting for stable storage."""
        self._generation += 1
        self._is_synced = False
        self._file.pwrite(self.form.encode(mark, self._generation), (1 - self._durable_slot) * SLOT_SIZE)

    def datasync(self) -> None:
        """Bring the file to stable storage; call L{synced} afterwards. May run in another thread."""
        self._file.datasync()

    def synced(self, generation: int) -> None:
        """Note the end of a datasync that began after write number C{generation}."""
        if generation == self._generation and not self._is_synced:
            self._durable_slot = 1 - self._durable_slot
            self._is_synced = True

    def write_durably(self, mark: _Mark) -> None:
        """Write, and wait for stable storage."""
        self.write(mark)
        self._file.datasync()
        self.synced(self._generation)

    def close(self) -> None:
        """Release the handle."""
        self._file.close()
