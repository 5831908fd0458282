# -*- test-case-name: tests.wire.test_framing -*-
"""
Cuts bytes into frames of both formats, within bounds. No Twisted.

The first byte of a frame reports its format, so both may alternate on one connection: 0xD1 starts a native
frame; 0x00 or 0x01 is the high byte of a remoting frame's length word.

Rule 1: a length is used only if it is within bounds, and garbage is detected at its first byte where
possible. Rule 2: all frames of one piece are cut in one pass, and each byte is copied a bounded number of
times, even if the pieces are small. Rule 3: at most one unfinished frame is kept, and after it nothing; of a
buffer with a bound of frames also the bytes that are not cut yet, until it is asked for more.

The contents of frames are not examined.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Literal, NamedTuple

from protocols.wire.errors import WireError
from protocols.wire.native import (
    FRAME_HEADER,
    FRAME_HEADER_SIZE,
    FRAME_VERSION,
    NATIVE_FIRST_BYTE,
)
from protocols.wire.remoting import FRAME_BYTES_MAX, HEADER_WORD_SIZE, LENGTH_WORD_SIZE

_NATIVE_START = bytes((NATIVE_FIRST_BYTE, FRAME_VERSION))
REMOTING_FIRST_BYTES = (0x00, 0x01)
_LEAST_REMOTING = LENGTH_WORD_SIZE + HEADER_WORD_SIZE
TLS_FIRST_BYTE = 0x16


class Frame(NamedTuple):
    """
    One frame.

    @ivar kind: its format.
    @ivar data: remoting: the bytes after the length word, for L{protocols.wire.remoting.decode_command};
        native: the whole frame, for L{protocols.wire.ledger.push.decode_frame}.
    """

    kind: Literal["remoting", "native"]
    data: bytes


class FrameError(WireError):
    """
    The bytes are not a frame; the connection cannot continue.

    @ivar frames: the valid frames before the error in the same piece.
    """

    def __init__(self, message: str, frames: list[Frame]) -> None:
        super().__init__(message)
        self.frames = frames


class FrameBuffer:
    """
    Cuts the bytes of one connection into frames.

    Invariant: C{kept} is the beginning of at most one frame; C{_needed} is the size at which it can be
    examined again: of the frame, or of the part that reports its length. While bytes are uncut, none are
    kept.

    @ivar has_uncut: whether bytes are uncut.
    @ivar kept: the bytes of the unfinished frame that have come; not to be changed.
    @ivar unfinished_serial: rises when another unfinished frame begins.
    """

    def __init__(self, *, frame_bytes_max: int = FRAME_BYTES_MAX, frames_max: int = sys.maxsize) -> None:
        """
        @param frame_bytes_max: largest frame in bytes, including its length word or header.
        @param frames_max: most frames that one call of L{feed} cuts.
        """
        self._frame_bytes_max = frame_bytes_max
        self._frames_max = self._piece_max = frames_max
        self._uncut: bytes | bytearray = b""
        self._at = 0
        self.has_uncut = False
        self.kept = bytearray()
        self._needed = 1
        self.unfinished_serial = 0
        self._failure: str | None = None

    @property
    def kept_bytes(self) -> int:
        """Bytes of the unfinished frame that have come."""
        return len(self.kept)

    @property
    def unfinished_bytes(self) -> int:
        """Bytes of the unfinished frame, as its length says; 0 if there is none."""
        return self._needed if self.kept else 0

    @property
    def uncut_bytes(self) -> int:
        """Bytes that have come, and are not cut yet, as there are too many frames."""
        return len(self._uncut) - self._at

    @property
    def is_native(self) -> bool:
        """Whether the unfinished frame is a native one."""
        return bool(self.kept) and self.kept[0] == NATIVE_FIRST_BYTE

    def feed(self, data: bytes) -> list[Frame]:
        """
        Take the next piece.

        @param data: empty while bytes are uncut: then they are the next.
        @return: the frames that it completes, in order; further ones may be uncut.
        @raise FrameError: garbage, or a length out of bounds; also on every later call.
        """
        if self._failure is not None:
            raise FrameError(self._failure, [])
        if self.has_uncut:
            assert not data, "the bytes before these are not cut yet"
            uncut, at = self._uncut, self._at
            self._uncut = b""
            self._at = 0
            self.has_uncut = False
            return self._cut(uncut, at)
        self._piece_max = self._frames_max
        if self.kept:
            self.kept += data
            if len(self.kept) < self._needed:
                return []
            joined = self.kept
            self.kept = bytearray()
            return self._cut(joined)
        size = len(data)
        if size >= FRAME_HEADER_SIZE and data[:2] == _NATIVE_START:
            # The usual read of a client that appends one entry at a time: one native frame alone.
            if FRAME_HEADER_SIZE + FRAME_HEADER.unpack_from(data)[5] == size <= self._frame_bytes_max:
                return [Frame("native", data)]
        elif _LEAST_REMOTING <= size <= self._frame_bytes_max and data[0] in REMOTING_FIRST_BYTES:
            # And that of a producer that sends one message at a time.
            if int.from_bytes(data[:LENGTH_WORD_SIZE], "big") == size - LENGTH_WORD_SIZE:
                return [Frame("remoting", data[LENGTH_WORD_SIZE:])]
        return self._cut(data)

    def drop(self) -> None:
        """The connection has ended: keep no bytes."""
        self._uncut = b""
        self._at = 0
        self.kept = bytearray()
        self.has_uncut = False

    def put_back(self, frames: Sequence[Frame], *, taken: int) -> None:
        """
        Take back the last frames of the last call of L{feed}: they are uncut again.

        @param taken: number of the others; the next pieces of the same data have no more frames.
        """
        self._piece_max = max(taken, 1)
        if self.has_uncut:
            self._at -= sum(
                len(data) + (LENGTH_WORD_SIZE if kind == "remoting" else 0) for kind, data in frames
            )
            return
        parts: list[bytes | bytearray] = []
        for kind, data in frames:
            if kind == "remoting":
                parts.append(len(data).to_bytes(LENGTH_WORD_SIZE, "big"))
            parts.append(data)
        self._uncut = b"".join([*parts, self.kept])
        self._at = 0
        self.has_uncut = True
        self.kept = bytearray()

    def _cut(self, data: bytes | bytearray, at: int = 0) -> list[Frame]:
        frames: list[Frame] = []
        end = len(data)
        view = memoryview(data)
        unpack, most = FRAME_HEADER.unpack_from, self._frame_bytes_max
        while at < end:
            if len(frames) >= self._piece_max:
                self._uncut = data
                self._at = at
                self.has_uncut = True
                break
            # Of a whole frame only its length is looked at.
            first, available = data[at], end - at
            if first in REMOTING_FIRST_BYTES and available >= _LEAST_REMOTING:
                upto = at + LENGTH_WORD_SIZE + int.from_bytes(data[at : at + LENGTH_WORD_SIZE], "big")
                if _LEAST_REMOTING <= upto - at <= most and upto <= end:
                    frames.append(Frame("remoting", bytes(view[at + LENGTH_WORD_SIZE : upto])))
                    at = upto
                    continue
            elif first == NATIVE_FIRST_BYTE and available >= FRAME_HEADER_SIZE:
                _, version, _, _, _, length = unpack(data, at)
                upto = at + FRAME_HEADER_SIZE + length
                if version == FRAME_VERSION and length >= 0 and upto - at <= most and upto <= end:
                    frames.append(Frame("native", bytes(view[at:upto])))
                    at = upto
                    continue
            try:
                self._needed = self._measure(data, at, available)
            except WireError as error:
                self._failure = str(error)
                raise FrameError(self._failure, frames) from None
            assert available < self._needed, (available, self._needed)
            self.kept = bytearray(view[at:])
            self.unfinished_serial += 1
            break
        return frames

    def _measure(self, data: bytes | bytearray, at: int, available: int) -> int:
        """
        The number of bytes that an unfinished frame needs to continue: those of the whole frame, or of the
        part that reports its length.

        @raise WireError: not a frame, or a length out of bounds.
        """
        first = data[at]
        if first == NATIVE_FIRST_BYTE:
            if available < 2:  # the version determines the rest of the header
                return 2
            if data[at + 1] != FRAME_VERSION:
                raise WireError(f"native frame: version={data[at + 1]}, known is {FRAME_VERSION}")
            if available < FRAME_HEADER_SIZE:
                return FRAME_HEADER_SIZE
            length = FRAME_HEADER.unpack_from(data, at)[5]
            if not 0 <= length <= self._frame_bytes_max - FRAME_HEADER_SIZE:
                raise self._out_of_bounds("native", length, 0, FRAME_HEADER_SIZE)
            return FRAME_HEADER_SIZE + int(length)
        if first in REMOTING_FIRST_BYTES:
            if available < LENGTH_WORD_SIZE:
                return LENGTH_WORD_SIZE
            length = int.from_bytes(data[at : at + LENGTH_WORD_SIZE], "big")
            if not HEADER_WORD_SIZE <= length <= self._frame_bytes_max - LENGTH_WORD_SIZE:
                raise self._out_of_bounds("remoting", length, HEADER_WORD_SIZE, LENGTH_WORD_SIZE)
            return LENGTH_WORD_SIZE + length
        if first == TLS_FIRST_BYTE:
            raise WireError("first byte 0x16: TLS on a plain connection")
        raise WireError(f"first byte {first:#04x}: a negative length, or another protocol")

    def _out_of_bounds(self, name: str, length: int, least: int, around: int) -> WireError:
        return WireError(f"{name} frame: length={length} outside {least}..{self._frame_bytes_max - around}")
