# -*- test-case-name: tests.broker.test_log_mark -*-
"""
The log mark: a small file of ours beside RocketMQ's, that says how much of a commit log is known to be good.

RocketMQ finds the end of its log by parsing, with a checksum that covers bodies only; a record whose
properties were cut by a crash passes, and a slave that resumes behind it differs from its master for
ever. So the end of the last record that reached stable storage is written down here.

Two slots of 512 bytes are written in turn, each with a generation and a CRC; the newest sound one
counts. The slot that is on stable storage is not written before the other one is.

Rule: the mark is trusted only if nobody else has opened the store since. Whoever closes a store
rewrites C{checkpoint}, so the mark remembers what we last wrote there (and, as the two files cannot change
at once, what we wrote before).
"""

from __future__ import annotations

from zlib import crc32

import attrs
from construct import Int32sb, Int32ub, Int64sb, Struct

from dledger.errors import DirectoryError
from dledger.storage.disk import Disk, File
from protocols.wire.layout import struct_of

LOG_MARK_NAME = "commitlogmark"
SLOT_SIZE = 512
_MAGIC = 0x444C484D  # "DLHM"
_VERSION = 1

LOG_MARK_DECLARATION = Struct(
    "magic" / Int32sb,
    "version" / Int32sb,
    "generation" / Int64sb,  # grows with every write
    "end_offset" / Int64sb,  # end of a record; every byte before it is on stable storage
    "dispatched_offset" / Int64sb,  # consume queue units of all records before it are on stable storage
    "log_file_size" / Int64sb,
    "queue_file_size" / Int64sb,
    "checkpoint_crc" / Int64sb,  # CRC-32 of the checkpoint that was, or is about to be written; -1: none
    "previous_checkpoint_crc" / Int64sb,  # of the one before
    "clean" / Int32sb,  # 1: closed in order, nothing was written since
)
_BODY = struct_of(LOG_MARK_DECLARATION)
_CRC = struct_of(Struct("crc" / Int32ub))
assert _BODY.size + _CRC.size <= SLOT_SIZE


@attrs.frozen(kw_only=True)
class LogMark:
    """What a slot says; fields as in the declaration."""

    end_offset: int = 0
    dispatched_offset: int = 0
    log_file_size: int
    queue_file_size: int
    checkpoint_crc: int = -1
    previous_checkpoint_crc: int = -1
    clean: bool = False

    def fits(self, checkpoint: bytes | None, *, is_aborted: bool) -> bool:
        """
        Whether we were the last who had the store open.

        @param checkpoint: content of the file, None if it is absent.
        @param is_aborted: the abort file is there.
        """
        # While we have a store open the abort file stands: without it somebody has tidied up after us.
        if not self.clean and not is_aborted:
            return False
        found = -1 if checkpoint is None else crc32(checkpoint)
        return found in (self.checkpoint_crc, self.previous_checkpoint_crc)


def encode_log_mark(mark: LogMark, generation: int) -> bytes:
    """The bytes of one slot."""
    body = _BODY.pack(
        _MAGIC, _VERSION, generation, mark.end_offset, mark.dispatched_offset, mark.log_file_size,
        mark.queue_file_size, mark.checkpoint_crc, mark.previous_checkpoint_crc, int(mark.clean),
    )
    return body + _CRC.pack(crc32(body))


def decode_log_mark(data: bytes) -> tuple[int, LogMark] | None:
    """Generation and content of one slot; None if it is not sound."""
    size = _BODY.size
    if len(data) < size + _CRC.size or _CRC.unpack_from(data, size)[0] != crc32(data[:size]):
        return None
    magic, version, generation, end, dispatched, log_size, queue_size, crc, previous, clean = (
        _BODY.unpack_from(data)
    )
    if magic != _MAGIC or version != _VERSION:
        return None
    return generation, LogMark(
        end_offset=end, dispatched_offset=dispatched, log_file_size=log_size, queue_file_size=queue_size,
        checkpoint_crc=crc, previous_checkpoint_crc=previous, clean=bool(clean),
    )


def read_log_mark(disk: Disk, path: str) -> tuple[int, LogMark, int] | None:
    """
    Generation, content and slot of the newest sound mark; None if there is no file.

    @raise DirectoryError: there is a file and neither slot is sound.
    """
    if not disk.exists(path):
        return None
    content = disk.read_file(path)
    sound = []
    for slot in (0, 1):
        decoded = decode_log_mark(content[slot * SLOT_SIZE : (slot + 1) * SLOT_SIZE])
        if decoded is not None:
            sound.append((*decoded, slot))
    if not sound:
        raise DirectoryError(
            f"{path}: neither slot of the log mark is sound, so it is not known how far this commit log was "
            "good. Remove this one file to open the store as RocketMQ would: by parsing, which does not "
            "notice damage in topics and properties"
        )
    return max(sound, key=lambda found: found[0])


class LogMarkFile:
    """
    The open file.

    Invariant: C{_durable_slot} holds a sound mark on stable storage and is not written.
    """

    def __init__(self, file: File, generation: int, durable_slot: int) -> None:
        self._file = file
        self._generation = generation
        self._durable_slot = durable_slot
        self._is_synced = True

    @classmethod
    def open(cls, disk: Disk, path: str, initial: LogMark) -> LogMarkFile:
        """Open the file; make it, with C{initial} in it, durably, if there is none."""
        found = read_log_mark(disk, path)
        if found is None:
            disk.write_file(path, encode_log_mark(initial, 1).ljust(2 * SLOT_SIZE, b"\0"))
            return cls(disk.open(path), 1, 0)
        file = disk.open(path)
        file.datasync()  # what was read may not have been durable yet
        return cls(file, found[0], found[2])

    @property
    def generation(self) -> int:
        """Number of the newest write."""
        return self._generation

    @property
    def needs_sync(self) -> bool:
        """Whether the newest mark may be lost with the power."""
        return not self._is_synced

    def write(self, mark: LogMark) -> None:
        """Write without waiting for stable storage."""
        self._generation += 1
        self._is_synced = False
        self._file.pwrite(encode_log_mark(mark, self._generation), (1 - self._durable_slot) * SLOT_SIZE)

    def datasync(self) -> None:
        """May run in another thread; tell L{synced} when it is done."""
        self._file.datasync()

    def synced(self, generation: int) -> None:
        """A datasync that began after write number C{generation} has ended."""
        if generation == self._generation and not self._is_synced:
            self._durable_slot = 1 - self._durable_slot
            self._is_synced = True

    def write_durably(self, mark: LogMark) -> None:
        """Write, and wait for stable storage."""
        self.write(mark)
        self._file.datasync()
        self.synced(self._generation)

    def close(self) -> None:
        """Release the handle."""
        self._file.close()
