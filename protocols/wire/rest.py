# -*- test-case-name: tests.wire.test_rest -*-
"""
Reads the texts, bodies and bytes after the fixed part of a native frame, front to back.

Rule 1: every length is bounded before it is used. Rule 2: no bytes may be left over (L{Rest.end}).

Used for a ledger's frames (L{protocols.wire.ledger.push}) and a broker's
(L{protocols.wire.rocketmq.broker_frames}).
"""

from __future__ import annotations

import struct

from protocols.wire.errors import WireError


class Rest:
    """
    The rest of one frame. Invariant: C{at <= len(frame)}.

    @ivar at: position of the first byte not taken yet.
    @ivar form: name of the format, for errors.
    """

    __slots__ = ("at", "form", "frame")

    def __init__(self, frame: bytes, at: int, form: str) -> None:
        self.frame = frame
        self.at = at
        self.form = form

    # Texts and lengths of bodies do not use C{take}, for speed: a frame has several of them, and there may
    # be a hundred thousand frames in a second.

    def take(self, length: int, name: str) -> bytes:
        """The next C{length} bytes. @raise WireError: negative, or fewer bytes are left."""
        at = self.at
        if not 0 <= length <= len(self.frame) - at:
            raise self._outside(length, name)
        self.at = at + length
        return self.frame[at : at + length]

    def text(self, length: int, name: str) -> str:
        """The next text, of C{length} bytes. @raise WireError: as L{take}, or not UTF-8."""
        at = self.at
        if not 0 <= length <= len(self.frame) - at:
            raise self._outside(length, name)
        self.at = at + length
        try:
            return self.frame[at : at + length].decode("utf-8")
        except UnicodeDecodeError:
            raise WireError(f"{self.form}: {name} is not UTF-8") from None

    def optional_text(self, length: int, name: str) -> str | None:
        """As L{text}; None if C{length} is -1."""
        return None if length == -1 else self.text(length, name)

    def bodies(self, count: int, most: int) -> tuple[bytes, ...]:
        """
        C{count} lengths, then C{count} bodies that reach to the end of the frame.

        @param most: maximum number of bodies.
        @raise WireError: too many bodies, or bodies that do not end with the frame.
        """
        if not 0 <= count <= most:
            raise WireError(f"{self.form}: count={count} outside 0..{most}")
        at, frame = self.at, self.frame
        if 4 * count > len(frame) - at:
            raise self._outside(4 * count, "body lengths")
        lengths = struct.unpack_from(f">{count}i", frame, at)
        at += 4 * count
        bodies = []
        for length in lengths:
            if length < 0:
                raise WireError(f"{self.form}: body_length={length} is negative")
            bodies.append(frame[at : at + length])
            at += length
        if at != len(frame):
            raise WireError(f"{self.form}: bodies end at byte {at}, the frame at byte {len(frame)}")
        self.at = at
        return tuple(bodies)

    def end(self) -> None:
        """@raise WireError: bytes are left."""
        if self.at != len(self.frame):
            raise WireError(f"{self.form}: {len(self.frame) - self.at} bytes after its message")

    def _outside(self, length: int, name: str) -> WireError:
        return WireError(f"{self.form}: {name} length={length} outside 0..{len(self.frame) - self.at}")
