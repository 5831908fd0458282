# -*- test-case-name: tests.broker.metadata.test_tables_mark -*-
"""
The mark of the tables: the place in a raft log up to which the files of the tables hold its metadata. It is a
small file beside them; a plain log has no metadata, and no mark.

Rule: the mark has the checksum of each file. While files are replaced, it has those of their old and of their
new content, and the place of the old ones, which holds for both. So it is right whenever the process ends; a
file that is neither was lost, is another copy, or was written by another program, and says nothing about any
place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from construct import Int32ub, Int64sb, Struct

from dledger.base.disk.file_table import TABLES_APPLIED
from dledger.base.disk.hints import HintFile, Hints
from dledger.base.disk.unreadable import read_copy
from dledger.rocketmq.metadata.offsets import ConsumerOffsets, DelayOffsets
from dledger.rocketmq.metadata.order_info import OrderInfos
from dledger.rocketmq.metadata.tables import Groups, RequestModes, Topics
from protocols.wire.checksums import crc32
from protocols.wire.layout import struct_of

#: Files of the tables whose changes are in a raft log.
LOGGED_FILES = tuple(
    table.file_name for table in (Topics, Groups, ConsumerOffsets, DelayOffsets, RequestModes, OrderInfos)
)
#: Two checksums for each of L{LOGGED_FILES} follow, of its old and its new content.
TABLES_MARK_DECLARATION = Struct("offset" / Int64sb, "tail_check" / Int32ub)
_MARK = struct_of(Struct(
    *TABLES_MARK_DECLARATION.subcons,
    *(f"{age} {name}" / Int32ub for name in LOGGED_FILES for age in ("old", "new")),
))
_CRC = struct_of(Struct("crc" / Int32ub))
#: Checksum of a file that does not exist.
NO_FILE = crc32(b"")

#: By name of a file, the checksums of its old and its new content.
Sums = Mapping[str, tuple[int, int]]


class LogPlace(NamedTuple):
    """
    A place in a raft log.

    @ivar offset: in bytes.
    @ivar tail_check: checksum of the log's last bytes before it.
    """

    offset: int
    tail_check: int


class FollowedLog(NamedTuple):
    """
    The raft log that tables follow.

    @ivar applied: returns the place up to which the tables have its metadata now.
    @ivar held: the place up to which their files had them at the start.
    """

    applied: Callable[[], LogPlace]
    held: LogPlace


def encode_tables_mark(place: LogPlace, sums: Sums) -> bytes:
    """The bytes of the file. @param sums: of all L{LOGGED_FILES}."""
    data = _MARK.pack(*place, *(one for name in LOGGED_FILES for one in sums[name]))
    return data + _CRC.pack(crc32(data))


def decode_tables_mark(data: bytes) -> tuple[LogPlace, Sums] | None:
    """The content of the mark; None: it is damaged."""
    size = _MARK.size
    if len(data) != size + _CRC.size or _CRC.unpack_from(data, size)[0] != crc32(data[:size]):
        return None
    offset, tail_check, *sums = _MARK.unpack_from(data)
    pairs = zip(sums[::2], sums[1::2], strict=True)
    return LogPlace(offset, tail_check), dict(zip(LOGGED_FILES, pairs, strict=True))


def place_of_tables(hints: Hints, directory: str) -> LogPlace | str:
    """
    Up to which place in the log the files of the tables hold its metadata.

    @param directory: C{config} in the store's root.
    @return: a text: they hold nothing for certain, and why.
    @raise OSError: reading failed.
    """
    disk, file = hints.disk, HintFile(hints, TABLES_APPLIED, directory)
    found = file.read(decode_tables_mark)
    if found is None:
        return f"{file.path} is missing or damaged"
    place, sums = found
    for name in LOGGED_FILES:
        path = f"{directory}/{name}"
        if (crc32(read_copy(disk, path)) if disk.exists(path) else NO_FILE) not in sums[name]:
            return f"{path} is not the file that was written last"
    return place
