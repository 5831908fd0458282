# -*- test-case-name: tests.storage.test_commit_mark,tests.broker.store.test_log_mark -*-
"""
A mark that survives torn writes: a small file with two slots of 512 bytes, written in turn by pwrite.

Each slot has a generation and a CRC-32 after its fields; the newest sound slot counts. Rule: the slot that
was last brought to stable storage is never written before the other one is on stable storage too, so a
torn write costs at most the newest mark. A durable write is copied to the other slot, so that a slot that
rots later costs nothing.

The file has its full length from the beginning, so a write within it needs no room on the disk.

This module does not know the meaning of a mark. An absent file is no error; a file without a sound slot is.
"""

from __future__ import annotations

from typing import Generic, Self, TypeVar

import attrs
from construct import Int16ub, Int32ub, Struct

from dledger.base.disk.disk import Disk, File
from dledger.values.errors import DirectoryError
from protocols.wire.checksums import crc32
from protocols.wire.fastjson import JsonObject
from protocols.wire.layout import struct_of

SLOT_SIZE = 512
_CRC = struct_of(Struct("crc" / Int32ub))
_LENGTH = struct_of(Struct("length" / Int16ub))
_HEAD = ("magic", "version", "generation")

_Mark = TypeVar("_Mark")


class SlotForm(Generic[_Mark]):
    """
    The format of one kind of mark.

    @ivar size: number of used bytes in a slot whose texts are empty.
    """

    def __init__(
        self, kind: type[_Mark], declaration: Struct, *, magic: int, version: int, unsound: str,
        texts: tuple[str, ...] = (), later: Struct | None = None, raised_version: int | None = None,
    ) -> None:
        """
        @param kind: an attrs class with the fields of the declaration; C{clean} is a bool there.
        @param declaration: C{magic}, C{version}, C{generation}, and then the fields.
        @param unsound: error text for two unsound slots, with the remedy; it follows the path.
        @param texts: further fields of C{kind}, texts: each follows as 16 bits of length and UTF-8.
        @param later: fields that came with a later program. They stand after the checksum, with one of
            their own, so that earlier programs read the rest; of a slot of theirs, and of one whose texts
            leave no room, these fields are -1.
        @param raised_version: a version with the same fields, for what programs that do not know this version
            must not open; see L{SlotFile.is_raised}.
        """
        self._raised_version = version if raised_version is None else raised_version
        names = tuple(subcon.name for subcon in declaration.subcons)
        assert names[:3] == _HEAD, names
        self._later = struct_of(later) if later is not None else None
        self._later_names = tuple(subcon.name for subcon in later.subcons) if later is not None else ()
        known = {*names[3:], *texts, *self._later_names}
        assert known == set(attrs.fields_dict(kind)), known  # type: ignore[arg-type]
        self._kind = kind
        self._texts = texts
        self._names = names[3:]
        self._body = struct_of(declaration)
        self._magic = magic
        self._version = version
        self._unsound = unsound
        self.size = self._body.size + _LENGTH.size * len(texts) + _CRC.size
        if self._later is not None:
            self.size += self._later.size + _CRC.size
        assert self.size <= SLOT_SIZE

    def encode(self, mark: _Mark, generation: int, *, is_raised: bool = False) -> bytes:
        """The bytes of one slot; the caller bounds the texts, so that they fit L{SLOT_SIZE}."""
        fields = [int(getattr(mark, name)) for name in self._names]
        version = self._raised_version if is_raised else self._version
        body = self._body.pack(self._magic, version, generation, *fields)
        for name in self._texts:
            text = getattr(mark, name).encode()
            body += _LENGTH.pack(len(text)) + text
        body += _CRC.pack(crc32(body))
        if self._later is not None and len(body) + self._later.size + _CRC.size <= SLOT_SIZE:
            body += self._later.pack(*[int(getattr(mark, name)) for name in self._later_names])
            body += _CRC.pack(crc32(body))
        assert len(body) <= SLOT_SIZE, "a text is too long for a slot"
        return body

    def decode(self, data: bytes) -> tuple[int, _Mark] | None:
        """Generation and content of one slot; None if the slot is not sound."""
        texts: list[bytes] = []
        at = self._body.size
        for _ in self._texts:
            (length,) = _LENGTH.unpack(data[at : at + _LENGTH.size].ljust(_LENGTH.size, b"\xff"))
            at += _LENGTH.size
            texts.append(data[at : at + length])
            at += length
        if len(data) < at + _CRC.size or _CRC.unpack_from(data, at)[0] != crc32(data[:at]):
            return None
        magic, version, generation, *values = self._body.unpack_from(data)
        if magic != self._magic or version not in (self._version, self._raised_version):
            return None
        fields: JsonObject = dict(zip(self._names, values, strict=True))
        if "clean" in fields:
            fields["clean"] = bool(fields["clean"])
        fields.update((name, text.decode()) for name, text in zip(self._texts, texts, strict=True))
        fields.update(self._decode_later(data, at + _CRC.size))
        return generation, self._kind(**fields)

    def _decode_later(self, data: bytes, at: int) -> JsonObject:
        if self._later is None:
            return {}
        end = at + self._later.size
        if len(data) < end + _CRC.size or _CRC.unpack_from(data, end)[0] != crc32(data[:end]):
            return dict.fromkeys(self._later_names, -1)
        return dict(zip(self._later_names, self._later.unpack_from(data, at), strict=True))

    def read(self, disk: Disk, path: str) -> tuple[int, _Mark, int] | None:
        """
        Generation, content and slot of the newest sound mark; None if there is no file.

        @raise DirectoryError: the file exists, and neither slot is sound.
        """
        if not disk.exists(path):
            return None
        found = self.newest(disk.read_file(path))
        if found is None:
            raise DirectoryError(f"{path}: {self._unsound}")
        return found

    def newest(self, content: bytes) -> tuple[int, _Mark, int] | None:
        """Generation, content and slot of the newest sound mark of a file; None without a sound slot."""
        sound = []
        for slot in (0, 1):
            decoded = self.decode(content[slot * SLOT_SIZE : (slot + 1) * SLOT_SIZE])
            if decoded is not None:
                sound.append((*decoded, slot))
        return max(sound, key=lambda found: found[0], default=None)


class SlotFile(Generic[_Mark]):
    """
    An open mark file. A subclass sets the form.

    Invariant: slot C{_durable_slot} holds a sound mark on stable storage and is not written.

    @ivar is_raised: whether marks are written with the raised version.
    """

    form: SlotForm[_Mark]
    is_raised = False

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
            return cls.create(disk, path, initial), None
        generation, mark, slot = found
        file = disk.open(path)
        file.datasync()  # the mark just read may not be durable yet
        return cls(file, generation, slot), mark

    @classmethod
    def create(cls, disk: Disk, path: str, initial: _Mark) -> Self:
        """Make the file durably, with C{initial} in both slots; a file of that name is replaced."""
        disk.write_file(path, 2 * cls.form.encode(initial, 1).ljust(SLOT_SIZE, b"\0"))
        return cls(disk.open(path), 1, 0)

    @property
    def generation(self) -> int:
        """Number of the newest write."""
        return self._generation

    @property
    def needs_sync(self) -> bool:
        """Whether a power failure may lose the newest mark."""
        return not self._is_synced

    def write(self, mark: _Mark) -> None:
        """
        Write without waiting for stable storage.

        @raise OSError: that failed; the durable slot is as it was, and a later write goes to the other one.
        """
        self._generation += 1
        self._is_synced = True  # until there is something that could be synced
        content = self.form.encode(mark, self._generation, is_raised=self.is_raised)
        self._file.pwrite(content, (1 - self._durable_slot) * SLOT_SIZE)
        self._is_synced = False

    def datasync(self) -> None:
        """Bring the file to stable storage; call L{synced} afterwards. May run in another thread."""
        self._file.datasync()

    def synced(self, generation: int) -> None:
        """Note the end of a datasync that began after write number C{generation}."""
        if generation == self._generation and not self._is_synced:
            self._durable_slot = 1 - self._durable_slot
            self._is_synced = True

    def write_durably(self, mark: _Mark) -> None:
        """Write, wait for stable storage, and copy it to the other slot without waiting."""
        self.write(mark)
        self._file.datasync()
        self.synced(self._generation)
        copy = self.form.encode(mark, self._generation, is_raised=self.is_raised)
        self._file.pwrite(copy, (1 - self._durable_slot) * SLOT_SIZE)

    def close(self) -> None:
        """Release the handle."""
        self._file.close()
