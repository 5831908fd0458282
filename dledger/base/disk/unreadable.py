# -*- test-case-name: tests.base.test_unreadable -*-
"""
Parts of files that the disk cannot read.

A failed read is tried again in blocks, and what still fails reads as L{FILLER}: bytes that no format of ours
begins with. So a bad sector costs what a flipped bit costs, the records that it touches, and not the store. A
read error says nothing about other bytes, unlike a failed write or fsync, after which nothing is known.

Rule 1: while a directory is opened, little may be unreadable (L{OPENING_MAX_BYTES}): a disk that fails as a
whole must not look like a log that is damaged as a whole, which would be set aside.
Rule 2: one read tries at most L{FAILED_MAX} bad blocks, as a disk may take seconds for each; what is left of
the read counts as unreadable then.
"""

from __future__ import annotations

import errno
import math

from dledger.base.disk.disk import Disk, File

#: Bytes that are tried at a time: a sector of a disk, or a page of the system's memory.
BLOCK = 4096
#: Read in the place of bytes that cannot be read.
FILLER = b"\xbd" * BLOCK
#: Its first four bytes, as a signed number of a header.
FILLER_WORD = int.from_bytes(FILLER[:4], "big", signed=True)
#: Bad blocks that one read tries.
FAILED_MAX = 8
#: Bytes that may be unreadable while a directory is opened.
OPENING_MAX_BYTES = 1024 * 1024

#: The disk has no such bytes, or not those that it had (file systems with checksums).
_ERRORS = frozenset((errno.EIO, errno.EBADMSG, errno.EILSEQ, errno.ENODATA))


def is_unreadable(error: OSError) -> bool:
    """Whether this error of a read is one of the medium."""
    return error.errno in _ERRORS


def read_copy(disk: Disk, path: str) -> bytes:
    """
    A small file of which there is a second copy: one that the disk cannot read is as damaged as one of
    zeroes.

    @return: nothing if the medium fails. @raise OSError: it failed otherwise.
    """
    try:
        return disk.read_file(path)
    except OSError as error:
        if not is_unreadable(error):
            raise
        return b""


class Unreadable:
    """
    Counts what could not be read in one directory.

    @ivar bytes_max: with more unreadable bytes than these, the error of the disk is raised.
    @ivar failed_bytes: unreadable bytes so far; those that were asked for twice count twice.
    @ivar failures: reads that met some.
    @ivar parts: bounds of the blocks that the last of these reads could not read, in bytes of its file; the
        last one may end beyond the file.
    """

    def __init__(self) -> None:
        self.bytes_max: float = OPENING_MAX_BYTES
        self.failed_bytes = 0
        self.failures = 0
        self.parts: list[tuple[int, int]] = []

    def opened(self) -> None:
        """The directory is open, and all that is read from now on is checked: any damage is borne."""
        self.bytes_max = math.inf

    def read_around(self, file: File, size: int, start: int) -> bytes:
        """
        What can be read of C{size} bytes at C{start}, and L{FILLER} in the place of the rest.

        @raise OSError: more is unreadable than C{bytes_max}, or the read failed otherwise.
        """
        self.parts = []
        pieces: list[bytes] = []
        at, end, failed = start, start + size, 0
        while at < end:
            until = min((at // BLOCK + 1) * BLOCK, end)
            try:
                piece = file.pread(until - at, at)
            except OSError as error:
                if not is_unreadable(error):
                    raise
                failed += 1
                if failed == FAILED_MAX:
                    until = max(until, min(end, file.size()))
                self.parts.append((at - at % BLOCK, -(-until // BLOCK) * BLOCK))
                self._failed(file, until - at, error)
                pieces.append(FILLER * ((until - at) // BLOCK) + FILLER[: (until - at) % BLOCK])
            else:
                pieces.append(piece)
                if len(piece) < until - at:
                    break  # the end of the file
            at = until
        return b"".join(pieces)

    def _failed(self, file: File, size: int, error: OSError) -> None:
        self.failed_bytes += size
        self.failures += 1
        if self.failed_bytes > self.bytes_max:
            raise OSError(
                error.errno, f"more than {self.bytes_max} bytes cannot be read: the disk fails", file.path
            )
