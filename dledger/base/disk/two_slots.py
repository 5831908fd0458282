# -*- test-case-name: tests.storage.test_commit_mark,tests.broker.store.test_log_mark -*-
"""
A mark that survives torn writes: a small file with two slots of 1024 bytes, written in turn by pwrite.

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

SLOT_SIZE = 1024
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
        texts: tuple[str, ...] = (),
    ) -> None:
        """
        @param kind: an attrs class with the fields of the declaration; C{clean} is a bool there.
        @param declaration: C{magic}, C{version}, C{generation}, and then the fields.
        @param unsound: error text for two unsound slots, with the remedy; it follows the path.
        @param texts: further fields of C{kind}, texts: each follows as 16 bits of length and UTF-8.
        """
        names = tuple(subcon.name for subcon in declaration.subcons)
        assert names[:3] == _HEAD, names
        known = {*names[3:], *texts}
        assert known == set(attrs.fields_dict(kind)), known  # type: ignore[arg-type]
        self._kind = kind
        self._texts = texts
        self._names = names[3:]
        self._body = struct_of(declaration)
        self._magic = magic
        self._version = version
        self._unsound = unsound
        self.size = self._body.size + _LENGTH.size * len(texts) + _CRC.size
        assert self.size <= SLOT_SIZE

    def encode(self, mark: _Mark, generation: int) -> bytes:
        """The bytes of one slot; the caller bounds the texts, so that they fit L{SLOT_SIZE}."""
        fields = [int(getattr(mark, name)) for name in self._names]
        body = self._body.pack(self._magic, self._version, generation, *fields)
        for name in self._texts:
            text = getattr(mark, name).encode()
            body += _LENGTH.pack(len(text)) + text
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
        if (magic, version) != (self._magic, self._version):
            return None
        fields: JsonObject = dict(zip(self._names, values, strict=True))
        if "clean" in fields:
            fields["clean"] = bool(fields["clean"])
        fields.update((name, text.decode()) for name, text in zip(self._texts, texts, strict=True))
        return generation, self._kind(**fields)

    def read(self, disk: Disk, path: str) -> tuple[int, _Mark, int] | None:
        """
        Generation, content and slot of the newest sound mark; None if there is no file.

        @raise DirectoryError: the file exists, and neither slot is sound; or a later program wrote it.
        """
        if not disk.exists(path):
            return None
        content = disk.read_file(path)
        found = self.newest(content)
        if found is None:
            raise DirectoryError(f"{path}: {self._later_version(content) or self._unsound}")
        return found

    def _later_version(self, content: bytes) -> str:
        """If both slots have another version, which one flipped bit does not do: a sentence that says so."""
        heads = [content[at : at + 8] for at in (0, SLOT_SIZE)]
        magic, version = heads[0][:4], int.from_bytes(heads[0][4:], "big", signed=True)
        if heads[0] != heads[1] or magic != self._magic.to_bytes(4, "big") or version <= self._version:
            return ""
        return (f"it has version {version}, this program reads {self._version}: a later program wrote it. "
                "Go on with that one; to remove the file undoes nothing")

    def damage(self, content: bytes) -> str:
        """The damage in the bytes of a file; empty without any. One sound slot is enough for a start."""
        if self.newest(content) is None:
            return self._later_version(content) or self._unsound
        for number in (0, 1):
            slot = content[number * SLOT_SIZE : (number + 1) * SLOT_SIZE]
            found = self.decode(slot)
            if found is None:
                return f"slot {number} of two is damaged; the other counts, and is copied at the next write"
            if any(slot[len(self.encode(found[1], found[0])) :]) or len(slot) < SLOT_SIZE:
                return f"bytes after the content of slot {number} are not zero; they are not read"
        return ""

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

    def write(self, mark: _Mark) -> bytes:
        """
        Write without waiting for stable storage.

        @return: the bytes of the slot.
        @raise OSError: that failed; the durable slot is as it was, and a later write goes to the other one.
        """
        self._generation += 1
        self._is_synced = True  # until there is something that could be synced
        slot = self.form.encode(mark, self._generation).ljust(SLOT_SIZE, b"\0")
        self._file.pwrite(slot, (1 - self._durable_slot) * SLOT_SIZE)
        self._is_synced = False
        return slot

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
        slot = self.write(mark)
        self._file.datasync()
        self.synced(self._generation)
        self._file.pwrite(slot, (1 - self._durable_slot) * SLOT_SIZE)

    def close(self) -> None:
        """Release the handle."""
        self._file.close()
