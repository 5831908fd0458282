# -*- test-case-name: tests.storage.test_commit_mark -*-
"""
The commit mark: a small file beside Java's, that says how far the ledger is known to be good.

Two slots of 512 bytes are written in turn, by pwrite; each has a generation and a CRC, the newest
sound one counts. Rule: the slot that was last brought to stable storage is never written before the
other one has been brought there too, so a torn write costs at most the newest mark.

Knows nothing of ledgers. Absent (Java's directory) is not an error; damaged in both slots is.
"""

from __future__ import annotations

from zlib import crc32

import attrs
from construct import Int32sb, Int32ub, Int64sb, Struct

from dledger.errors import DirectoryError
from dledger.storage.disk import Disk, File
from protocols.wire.layout import struct_of

COMMIT_MARK_NAME = "commitmark"
SLOT_SIZE = 512
_MAGIC = 0x444C434D  # "DLCM"
_VERSION = 1

COMMIT_MARK_DECLARATION = Struct(
    "magic" / Int32sb,
    "version" / Int32sb,
    "generation" / Int64sb,  # grows with every write
    "committed_index" / Int64sb,  # never above end_index
    "end_index" / Int64sb,  # last entry known to be on stable storage
    "end_term" / Int64sb,
    "end_position" / Int64sb,  # stream offset behind it
    "begin_position" / Int64sb,  # stream offset of the first data file; -1: not recorded
    "begin_crc" / Int64sb,  # CRC-32 of the 48-byte header that stands there
    "index_end_position" / Int64sb,  # index units of records below it are on stable storage
    "repair_end_index" / Int64sb,  # -1: healthy
    "damaged_index" / Int64sb,  # an entry that was found damaged while reading; -1: none
    "data_file_size" / Int64sb,
    "index_file_size" / Int64sb,
    "clean" / Int32sb,  # 1: closed in order, nothing was written since
)
_BODY = struct_of(COMMIT_MARK_DECLARATION)
_CRC = struct_of(Struct("crc" / Int32ub))
MARK_SIZE = _BODY.size + _CRC.size
assert MARK_SIZE <= SLOT_SIZE


@attrs.frozen(kw_only=True)
class CommitMark:
    """What a slot says; fields as in the declaration. Indexes are inclusive, -1 for none."""

    committed_index: int = -1
    end_index: int = -1
    end_term: int = -1
    end_position: int = 0
    begin_position: int = -1
    begin_crc: int = 0
    index_end_position: int = 0
    repair_end_index: int = -1
    damaged_index: int = -1
    data_file_size: int
    index_file_size: int
    clean: bool = False

    @property
    def recorded_end_index(self) -> int:
        """What the ledger must reach, or something was lost."""
        return max(self.end_index, self.committed_index)


def encode_mark(mark: CommitMark, generation: int) -> bytes:
    """The bytes of one slot."""
    body = _BODY.pack(
        _MAGIC, _VERSION, generation, mark.committed_index, mark.end_index, mark.end_term,
        mark.end_position, mark.begin_position, mark.begin_crc, mark.index_end_position,
        mark.repair_end_index, mark.damaged_index, mark.data_file_size,
        mark.index_file_size, int(mark.clean),
    )
    return body + _CRC.pack(crc32(body))


def decode_mark(data: bytes) -> tuple[int, CommitMark] | None:
    """Generation and content of one slot; None if it is not sound."""
    if len(data) < MARK_SIZE or _CRC.unpack_from(data, _BODY.size)[0] != crc32(data[: _BODY.size]):
        return None
    (
        magic, version, generation, committed, end, term, position, begin_position, begin_crc,
        index_position, repair, damaged, data_size, index_size, clean,
    ) = _BODY.unpack_from(data)
    if magic != _MAGIC or version != _VERSION:
        return None
    return generation, CommitMark(
        committed_index=committed, end_index=end, end_term=term, end_position=position,
        begin_position=begin_position, begin_crc=begin_crc,
        index_end_position=index_position, repair_end_index=repair, damaged_index=damaged,
        data_file_size=data_size, index_file_size=index_size, clean=bool(clean),
    )


def read_mark(disk: Disk, path: str) -> tuple[int, CommitMark, int] | None:
    """
    Generation, content and slot of the newest sound mark; None if there is no file.

    @raise DirectoryError: there is a file and neither slot is sound.
    """
    if not disk.exists(path):
        return None
    content = disk.read_file(path)
    sound = []
    for slot in (0, 1):
        decoded = decode_mark(content[slot * SLOT_SIZE : (slot + 1) * SLOT_SIZE])
        if decoded is not None:
            sound.append((*decoded, slot))
    if not sound:
        raise DirectoryError(
            f"{path}: neither slot of the commit mark is sound, so it is not known how far this member's "
            "ledger was good. Restore the member from its peers (empty its directory but for currterm); or "
            "remove this one file to open the ledger as it is, accepting that a lost tail goes unnoticed"
        )
    return max(sound, key=lambda found: found[0])


def is_superseded(mark: CommitMark, checkpoint: tuple[int, int] | None) -> bool:
    """
    Whether somebody else (Java) has worked in the directory since: we closed it in order, and the
    checkpoint is not the one that we wrote then.

    @param checkpoint: C{committedIndex} and C{endIndex}, -2 where it does not say; None if there is none.
    """
    if not mark.clean or checkpoint is None or checkpoint[1] == -2:
        return False
    return checkpoint != (mark.committed_index, mark.end_index)


class MarkFile:
    """
    The open file.

    Invariant: C{_durable_slot} holds a sound mark on stable storage and is not written.
    """

    def __init__(self, file: File, generation: int, durable_slot: int) -> None:
        self._file = file
        self._generation = generation
        self._durable_slot = durable_slot
        self._synced = True

    @classmethod
    def open(cls, disk: Disk, path: str, initial: CommitMark) -> tuple[MarkFile, CommitMark | None]:
        """
        Open or make the file.

        @return: the file, and what it said; None if it was made now, with C{initial} in it, durably.
        """
        found = read_mark(disk, path)
        if found is None:
            disk.write_file(path, encode_mark(initial, 1).ljust(2 * SLOT_SIZE, b"\0"))
            return cls(disk.open(path), 1, 0), None
        generation, mark, slot = found
        file = disk.open(path)
        file.datasync()  # what was read may not have been durable yet
        return cls(file, generation, slot), mark

    @property
    def generation(self) -> int:
        """Number of the newest write."""
        return self._generation

    @property
    def needs_sync(self) -> bool:
        """Whether the newest mark may be lost with the power."""
        return not self._synced

    def write(self, mark: CommitMark) -> None:
        """Write without waiting for stable storage."""
        self._generation += 1
        self._synced = False
        self._file.pwrite(encode_mark(mark, self._generation), (1 - self._durable_slot) * SLOT_SIZE)

    def datasync(self) -> None:
        """May run in another thread; tell L{synced} when it is done."""
        self._file.datasync()

    def synced(self, generation: int) -> None:
        """A datasync that started after write number C{generation} has ended."""
        if generation == self._generation and not self._synced:
            self._durable_slot = 1 - self._durable_slot
            self._synced = True

    def write_durably(self, mark: CommitMark) -> None:
        """Write, and wait for stable storage."""
        self.write(mark)
        self._file.datasync()
        self.synced(self._generation)

    def close(self) -> None:
        """Release the handle."""
        self._file.close()
