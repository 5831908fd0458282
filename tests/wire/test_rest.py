# -*- test-case-name: tests.wire.test_rest -*-
"""What follows the fixed part of a native frame is bounded, and is used up."""

from __future__ import annotations

import struct

from twisted.trial.unittest import SynchronousTestCase

from protocols.wire.errors import WireError
from protocols.wire.rest import Rest


class RestTests(SynchronousTestCase):
    """Taken from the front, and never beyond the frame."""

    def rest(self, data: bytes) -> Rest:
        """After two bytes that are somebody else's."""
        return Rest(b"\xff\xff" + data, 2, "some frame")

    def refusal(self, call: object, *arguments: object) -> str:
        """What is said against it."""
        assert callable(call)
        return str(self.assertRaises(WireError, call, *arguments))

    def test_in_order(self) -> None:
        """Each call goes on where the one before ended, up to the very end."""
        rest = self.rest("äb".encode() + b"\x00\x01")
        self.assertEqual(rest.text(2, "first"), "ä")
        self.assertEqual(rest.optional_text(-1, "none"), None)
        self.assertEqual(rest.optional_text(1, "second"), "b")
        self.assertEqual(self.refusal(rest.end), "some frame: 2 bytes after its message")
        self.assertEqual(rest.take(2, "bytes"), b"\x00\x01")
        rest.end()

    def test_lengths(self) -> None:
        """A length that is negative, or beyond the end, takes nothing."""
        rest = self.rest(b"abc")
        for take in (rest.take, rest.text, rest.optional_text):
            for length in (4, -2):
                expected = f"some frame: topic length={length} outside 0..3"
                self.assertEqual(self.refusal(take, length, "topic"), expected)
        for take in (rest.take, rest.text):
            self.assertEqual(self.refusal(take, -1, "topic"), "some frame: topic length=-1 outside 0..3")
        self.assertEqual(rest.take(3, "all"), b"abc")

    def test_not_utf_8(self) -> None:
        """A text is UTF-8."""
        self.assertEqual(self.refusal(self.rest(b"\xff").text, 1, "id"), "some frame: id is not UTF-8")

    def test_bodies(self) -> None:
        """Lengths, then bodies, to the end of the frame; there may be none."""
        rest = self.rest(struct.pack(">3i", 2, 0, 1) + b"abc")
        self.assertEqual(rest.bodies(3, 3), (b"ab", b"", b"c"))
        rest.end()
        self.assertEqual(self.rest(b"").bodies(0, 3), ())

    def test_bodies_out_of_bounds(self) -> None:
        """Too many, a negative length, and lengths that end before or after the frame."""
        two = struct.pack(">2i", 1, 2)
        for data, count, expected in (
            (two + b"abc", 4, "count=4 outside 0..3"),
            (two + b"abc", -1, "count=-1 outside 0..3"),
            (two[:7], 2, "body lengths length=8 outside 0..7"),
            (struct.pack(">2i", 4, -1) + b"abc", 2, "body_length=-1 is negative"),
            (two + b"ab", 2, "bodies end at byte 13, the frame at byte 12"),
            (two + b"abcd", 2, "bodies end at byte 13, the frame at byte 14"),
        ):
            self.assertEqual(self.refusal(self.rest(data).bodies, count, 3), f"some frame: {expected}")
