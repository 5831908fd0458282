# -*- test-case-name: tests.wire.test_framing -*-
"""Bytes to frames, however the network cuts them."""

from __future__ import annotations

import random
import tracemalloc

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from protocols.wire.errors import WireError
from protocols.wire.framing import Frame, FrameBuffer, FrameError
from protocols.wire.ledger.push import encode_request_frame, encode_response_frame
from protocols.wire.native import FRAME_HEADER
from protocols.wire.remoting import FRAME_BYTES_MAX, RemotingCommand, encode_command
from tests.wire.golden import EXAMPLES
from tests.wire.values import house


def stream() -> tuple[bytes, list[Frame]]:
    """Every example in both formats, alternating, and the frames that it is."""
    data, frames = b"", []
    for opaque, example in enumerate(EXAMPLES):
        message = example.message
        if example.header.find(b'"flag":1') >= 0:
            native = encode_response_frame(message, opaque)  # type: ignore[arg-type]
        else:
            native = encode_request_frame(message, opaque)  # type: ignore[arg-type]
        data += example.frame + native
        frames += [Frame("remoting", example.frame[4:]), Frame("native", native)]
    return data, frames


STREAM, FRAMES = stream()


def fed(data: bytes, size: int, **bounds: int) -> list[Frame]:
    """The frames of C{data} in pieces of C{size}."""
    buffer = FrameBuffer(**bounds)
    frames = []
    for at in range(0, len(data), size):
        frames += buffer.feed(data[at : at + size])
    return frames


def outcome(data: bytes, pieces: list[int], bound: int = FRAME_BYTES_MAX) -> tuple[list[Frame], str, int]:
    """Frames, error, and what is kept at the end, for C{data} cut at C{pieces}."""
    buffer = FrameBuffer(frame_bytes_max=bound)
    frames: list[Frame] = []
    at = 0
    for end in [*sorted(pieces), len(data)]:
        try:
            frames += buffer.feed(data[at:end])
        except FrameError as error:
            return frames + error.frames, str(error), 0
        at = end
    return frames, "", buffer.kept_bytes


class FrameBufferTests(SynchronousTestCase):
    """Whole frames of both formats."""

    def test_any_fragmentation(self) -> None:
        """Frames are the same in pieces of any size."""
        for size in (*range(1, 400), len(STREAM)):
            self.assertEqual(fed(STREAM, size), FRAMES, f"cut every {size} bytes")

    def test_two_pieces(self) -> None:
        """A cut at any place, and nothing is kept in the end."""
        for at in range(len(STREAM) + 1):
            self.assertEqual(outcome(STREAM, [at]), (FRAMES, "", 0), f"cut at {at}")

    @house
    @given(st.binary(max_size=80), st.lists(st.integers(0, 80), max_size=6))
    def test_garbage_in_pieces(self, data: bytes, cuts: list[int]) -> None:
        """Any bytes: the same frames, the same error, the same rest, whole and in pieces."""
        cuts = [min(cut, len(data)) for cut in cuts]
        self.assertEqual(outcome(data, cuts), outcome(data, []))

    @house
    @given(
        st.lists(st.integers(0, len(STREAM)), max_size=6),
        st.integers(0, len(STREAM) - 1),
        st.integers(0, 255),
    )
    def test_damage_in_pieces(self, cuts: list[int], at: int, byte: int) -> None:
        """The same for a good stream with one wrong byte."""
        data = STREAM[:at] + bytes([byte]) + STREAM[at + 1 :]
        self.assertEqual(outcome(data, cuts, 4096), outcome(data, [], 4096))

    def test_truncated(self) -> None:
        """An unfinished frame is waited for, and no more than it is kept."""
        frame = EXAMPLES[0].frame
        for length in range(len(frame)):
            buffer = FrameBuffer()
            self.assertEqual(buffer.feed(frame[:length]), [])
            self.assertEqual(buffer.kept_bytes, length)

    def test_nothing(self) -> None:
        """An empty piece changes nothing."""
        buffer = FrameBuffer()
        self.assertEqual(buffer.feed(b""), [])
        self.assertEqual(buffer.feed(EXAMPLES[0].frame[:5]), [])
        self.assertEqual(buffer.feed(b""), [])
        self.assertEqual(len(buffer.feed(EXAMPLES[0].frame[5:])), 1)

    def test_frames_are_bytes(self) -> None:
        """What was cut does not change when the buffer goes on."""
        for frame in fed(STREAM, 7):
            self.assertIs(type(frame.data), bytes)


class RefusalTests(SynchronousTestCase):
    """What no frame can start with, and what is too long."""

    def refused(self, data: bytes, *words: str, **bounds: int) -> FrameError:
        """C{data} is refused, and so is everything after it."""
        buffer = FrameBuffer(**bounds)
        error: FrameError = self.assertRaises(FrameError, buffer.feed, data)
        for word in words:
            self.assertIn(word, str(error))
        again = self.assertRaises(WireError, buffer.feed, EXAMPLES[0].frame)
        self.assertEqual(str(again), str(error))
        return error

    def test_first_bytes(self) -> None:
        """Of all first bytes three may go on."""
        for first in range(256):
            if first in (0x00, 0x01, 0xD1):
                self.assertEqual(FrameBuffer().feed(bytes([first])), [])
            else:
                self.refused(bytes([first]), f"{first:#04x}")

    def test_tls(self) -> None:
        """A TLS greeting on a plain port is named as such."""
        self.refused(b"\x16\x03\x01", "TLS")

    def test_remoting_lengths(self) -> None:
        """From the header word alone to the longest frame; Java's limit includes the length word."""
        for length in (0, 3, 16777213, 0x01FFFFFF):
            self.refused(length.to_bytes(4, "big"), f"length={length}", "4..16777212")
        for length in (4, 16777212):
            self.assertEqual(FrameBuffer().feed(length.to_bytes(4, "big")), [])
        self.refused((97).to_bytes(4, "big"), "4..96", frame_bytes_max=100)
        self.assertEqual(FrameBuffer(frame_bytes_max=100).feed((96).to_bytes(4, "big")), [])

    def test_negative_remoting_length(self) -> None:
        """Refused with its first byte."""
        self.refused(b"\xff", "negative length")

    def test_native_lengths(self) -> None:
        """From nothing to the longest frame."""
        for length in (-1, 16777205, 0x7FFFFFFF):
            self.refused(FRAME_HEADER.pack(0xD1, 1, 1, 0, 1, length), f"length={length}", "0..16777204")
        self.assertEqual(FrameBuffer().feed(FRAME_HEADER.pack(0xD1, 1, 1, 0, 1, 16777204)), [])
        header = FRAME_HEADER.pack(0xD1, 1, 1, 0, 1, 0)
        self.assertEqual(FrameBuffer().feed(header), [Frame("native", header)])
        self.refused(FRAME_HEADER.pack(0xD1, 1, 1, 0, 1, 89), "0..88", frame_bytes_max=100)

    def test_native_version(self) -> None:
        """Another version has another header: refused as soon as it is seen."""
        self.refused(b"\xd1\x02", "version=2", "known is 1")
        self.refused(b"\xd1\x00", "version=0")

    def test_sound_frames_before_garbage(self) -> None:
        """They come with the error, so that it makes no difference where the cut was."""
        error = self.refused(STREAM + b"\xff")
        self.assertEqual(error.frames, FRAMES)


class PieceTests(SynchronousTestCase):
    """A bound of the frames that one call cuts."""

    def cut(self, data: bytes, *, backs: int = 0) -> list[list[Frame]]:
        """What each call cuts; C{backs} frames of each are put back the first time."""
        buffer = FrameBuffer(frames_max=3)
        found = [buffer.feed(data)]
        while True:
            if backs and len(found[-1]) > backs:
                buffer.put_back(found[-1][-backs:], taken=len(found[-1]) - backs)
                found[-1] = found[-1][:-backs]
            if not buffer.has_uncut:
                self.assertEqual(buffer.uncut_bytes, 0)
                return found
            left = buffer.uncut_bytes
            found.append(buffer.feed(b""))
            self.assertLess(buffer.uncut_bytes, left)

    def test_pieces(self) -> None:
        """All frames come, in order, and a bounded number at once."""
        found = self.cut(STREAM)
        self.assertEqual(sum(found, []), FRAMES)
        self.assertEqual({len(piece) for piece in found[:-1]}, {3})

    def test_put_back(self) -> None:
        """Frames that were put back come again; nothing is lost or doubled, whatever is after them."""
        for backs in (1, 2):
            self.assertEqual(sum(self.cut(STREAM, backs=backs), []), FRAMES)
        buffer = FrameBuffer(frames_max=100)
        frames = buffer.feed(STREAM + STREAM[:10])
        buffer.put_back(frames[1:], taken=1)
        size = sum(len(data) + 4 * (kind == "remoting") for kind, data in FRAMES[1:])
        self.assertEqual((buffer.uncut_bytes, buffer.kept_bytes), (size + 10, 0))
        self.assertEqual([frame for _ in FRAMES[1:] for frame in buffer.feed(b"")], FRAMES[1:])
        self.assertEqual([buffer.feed(b""), buffer.kept_bytes], [[], 10])
        self.assertEqual(buffer.feed(STREAM[10:]), FRAMES)

    def test_garbage_behind(self) -> None:
        """It is found when it is reached."""
        buffer = FrameBuffer(frames_max=3)
        buffer.feed(FRAMES[1].data * 4 + b"\xff")
        self.assertRaises(FrameError, buffer.feed, b"")

    def test_ended(self) -> None:
        """An ended connection keeps nothing."""
        buffer = FrameBuffer(frames_max=3)
        buffer.feed(STREAM)
        buffer.drop()
        self.assertEqual((buffer.uncut_bytes, buffer.kept_bytes, buffer.has_uncut), (0, 0, False))


class CountingBuffer(FrameBuffer):
    """Counts the bytes that it looks through to cut frames."""

    def __init__(self) -> None:
        super().__init__()
        self.looked_through = 0

    def _cut(self, data: bytes | bytearray, at: int = 0) -> list[Frame]:
        self.looked_through += len(data) - at
        return super()._cut(data, at)


class CostTests(SynchronousTestCase):
    """Work grows with the bytes, memory with the longest frame."""

    def test_single_bytes(self) -> None:
        """A long frame in single bytes is looked through once, not once for each byte."""
        frame = encode_command(RemotingCommand(code=50001, opaque=1, body=bytes(1 << 18)))
        buffer = CountingBuffer()
        frames = [cut for at in range(len(frame)) for cut in buffer.feed(frame[at : at + 1])]
        self.assertEqual(frames, [Frame("remoting", frame[4:])])
        self.assertLess(buffer.looked_through, len(frame) + 100)

    def test_longest_frame(self) -> None:
        """16 MiB in pieces of 4 KiB."""
        frame = encode_command(RemotingCommand(code=50001, opaque=1, body=bytes(FRAME_BYTES_MAX - 107)))
        self.assertEqual(len(frame), FRAME_BYTES_MAX)
        self.assertEqual(fed(frame, 4096), [Frame("remoting", frame[4:])])

    def test_many_frames_in_one_piece(self) -> None:
        """They are cut in one pass."""
        buffer = CountingBuffer()
        self.assertEqual(buffer.feed(STREAM), FRAMES)
        self.assertEqual(buffer.looked_through, len(STREAM))

    def test_memory(self) -> None:
        """A peer that only claims a long frame costs the bytes that it sent."""
        tracemalloc.start()
        self.addCleanup(tracemalloc.stop)
        buffer = FrameBuffer()
        buffer.feed((16777212).to_bytes(4, "big"))
        chance = random.Random(1)
        for _ in range(100):
            buffer.feed(chance.randbytes(1000))
        self.assertEqual(buffer.kept_bytes, 100_004)
        self.assertLess(tracemalloc.get_traced_memory()[1], 1_000_000)
