# -*- test-case-name: tests.wire.test_ha -*-
"""
RocketMQ's replication stream: offset reports one way, pieces of the commit log the other way.

A slave sends only 8-byte offsets. A master sends a 12-byte header, then the number of raw bytes of its
commit log that the header shows; a heartbeat has none. There is no greeting, no version and no checksum;
4.9 and 5.x (without controller) use the same format.

Rule: bodies are not gathered. Each part of a body is handed on as a view of its read.

Source: HAConnection.java and HAService.HAClient (4.9.8), DefaultHAConnection and DefaultHAClient (5.3.3).
"""

from __future__ import annotations

from typing import TypeAlias

import attrs
from construct import Int32sb, Int64sb, Struct

from protocols.wire.errors import WireError
from protocols.wire.layout import struct_of

OFFSET_REPORT_DECLARATION = Struct(
    "offset" / Int64sb,  # the first byte that the slave lacks
)
TRANSFER_HEADER_DECLARATION = Struct(
    "offset" / Int64sb,  # log offset of the body's first byte
    "body_size" / Int32sb,  # bytes that follow; 0: a heartbeat
)
OFFSET_REPORT = struct_of(OFFSET_REPORT_DECLARATION)
TRANSFER_HEADER = struct_of(TRANSFER_HEADER_DECLARATION)
OFFSET_REPORT_SIZE = 8
TRANSFER_HEADER_SIZE = 12
assert OFFSET_REPORT.size == OFFSET_REPORT_SIZE
assert TRANSFER_HEADER.size == TRANSFER_HEADER_SIZE

#: A Java slave has a read buffer of 4 MiB: it could never read a longer frame.
BODY_SIZE_MAX = 4 * 1024 * 1024 - TRANSFER_HEADER_SIZE

#: RocketMQ's default size of the body of one frame (haTransferBatchSize), bytes.
TRANSFER_BATCH_SIZE = 32 * 1024

#: The log offset of the first byte, and the bytes; no bytes for a heartbeat or a bare header.
Piece: TypeAlias = tuple[int, memoryview]

_EMPTY = memoryview(b"")


@attrs.frozen(kw_only=True)
class TransferHeader:
    """
    The header in front of a body.

    @ivar offset: log offset of the body's first byte; in a heartbeat, of the next transfer.
    @ivar body_size: size of the body in bytes; 0 in a heartbeat.
    """

    offset: int
    body_size: int


def encode_report(offset: int) -> bytes:
    """
    The bytes of a report.

    @param offset: log offset of the first byte that the slave lacks.
    """
    return OFFSET_REPORT.pack(offset)


def encode_transfer_header(header: TransferHeader) -> bytes:
    """The bytes of a header."""
    return TRANSFER_HEADER.pack(header.offset, header.body_size)


def decode_transfer_header(data: bytes, *, body_size_max: int = BODY_SIZE_MAX) -> TransferHeader:
    """
    Decode a header.

    @param data: exactly L{TRANSFER_HEADER_SIZE} bytes.
    @raise WireError: an offset below 0, or a size outside C{0..body_size_max}.
    """
    assert len(data) == TRANSFER_HEADER_SIZE
    offset, body_size = TRANSFER_HEADER.unpack(data)
    _check_header(offset, body_size, body_size_max)
    return TransferHeader(offset=offset, body_size=body_size)


def _check_header(offset: int, body_size: int, body_size_max: int) -> None:
    if not 0 <= body_size <= body_size_max:
        raise WireError(f"transfer header: body_size={body_size} outside 0..{body_size_max}")
    if offset < 0:
        raise WireError(f"transfer header: offset={offset} below 0")


class ReportReader:
    """
    Reads offset reports from bytes in pieces of any size.

    Invariant: fewer than 8 bytes are kept.

    @ivar first: the very first report; -1 before it.
    """

    def __init__(self) -> None:
        self._kept = b""
        self.first = -1

    def feed(self, data: bytes) -> int | None:
        """
        Take the next piece.

        @return: the newest complete report, as in RocketMQ (earlier ones are superseded); None if no
            report is complete.
        @raise WireError: an offset below 0.
        """
        if self._kept:
            data = self._kept + data
        whole = len(data) // OFFSET_REPORT_SIZE * OFFSET_REPORT_SIZE
        self._kept = bytes(data[whole:])
        if not whole:
            return None
        (offset,) = OFFSET_REPORT.unpack_from(data, whole - OFFSET_REPORT_SIZE)
        if offset < 0:
            raise WireError(f"offset report: offset={offset} below 0")
        if self.first < 0:
            (first,) = OFFSET_REPORT.unpack_from(data)
            if first < 0:
                raise WireError(f"offset report: offset={first} below 0")
            self.first = int(first)
        return int(offset)


class TransferReader:
    """
    Reads pieces of the commit log from bytes in pieces of any size.

    Invariant: fewer than 12 bytes are kept; C{_left} bytes of a body are missing, from C{_offset} on.
    """

    def __init__(self, *, body_size_max: int = BODY_SIZE_MAX) -> None:
        self._body_size_max = body_size_max
        self._kept = b""
        self._offset = 0
        self._left = 0

    @property
    def is_inside_body(self) -> bool:
        """Whether the bytes so far end in the middle of a frame."""
        return self._left > 0 or bool(self._kept)

    def feed(self, data: bytes | memoryview, pieces: list[Piece]) -> None:
        """
        Add the pieces in C{data}, in order, as views of it. A header at the end of C{data} and a heartbeat
        come as a piece without bytes, so that the caller can check the offset.

        @raise WireError: a header with an impossible offset or size; the pieces before it were added.
        """
        view = memoryview(data)
        at, end = 0, len(data)
        if self._left == 0 and self._kept:
            at = min(TRANSFER_HEADER_SIZE - len(self._kept), end)
            self._kept += view[:at]
            if len(self._kept) < TRANSFER_HEADER_SIZE:
                return
            header, self._kept = self._kept, b""
            if self._begin(header, 0) == 0 or at == end:
                pieces.append((self._offset, _EMPTY))
        while at < end:
            if self._left:
                size = min(self._left, end - at)
                offset = self._offset
                self._offset += size
                self._left -= size
                pieces.append((offset, view[at : at + size]))
                at += size
            elif end - at < TRANSFER_HEADER_SIZE:
                self._kept = bytes(view[at:])
                return
            else:
                size = self._begin(data, at)
                at += TRANSFER_HEADER_SIZE
                if size == 0 or at == end:
                    pieces.append((self._offset, _EMPTY))

    def _begin(self, data: bytes | memoryview, at: int) -> int:
        offset, body_size = TRANSFER_HEADER.unpack_from(data, at)
        _check_header(offset, body_size, self._body_size_max)
        self._offset = offset
        self._left = body_size
        return self._left
