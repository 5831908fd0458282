# -*- test-case-name: tests.base.test_sparse -*-
"""
Holes of sparse files: ranges that no block backs. They read as zeroes, so whoever looks for bytes that are
none need not read them.
"""

from __future__ import annotations

import errno
import os

from dledger.base.disk.disk import File


def next_data(file: File, position: int, end: int) -> int:
    """
    Where the next bytes are that may be no zeroes.

    @param end: not beyond this; the file has at least as many bytes.
    @return: C{position} itself where the file system does not know its holes; C{end}: only a hole follows.
    """
    descriptor = getattr(file, "fileno", None)
    if descriptor is None or position >= end:
        return min(position, end)
    try:
        return min(max(os.lseek(descriptor(), position, os.SEEK_DATA), position), end)
    except OSError as error:
        # ENXIO: nothing but a hole follows. Anything else: it does not know.
        return end if error.errno == errno.ENXIO else position


def data_pieces(file: File, position: int, end: int, size: int) -> list[int]:
    """
    Where pieces begin that have all bytes which may be no zeroes. All are found before one is read, because
    reading ahead turns reserved room, a hole until then, into data.

    @param size: of a piece, which may end earlier, at C{end}.
    """
    found: list[int] = []
    while (position := next_data(file, position, end)) < end:
        found.append(position)
        position += size
    return found
