# -*- test-case-name: tests.spark.test_bodies -*-
"""Bodies are unpacked as RocketMQ packs them, and never to more than is allowed."""

from __future__ import annotations

import zlib

import pyarrow as pa
from twisted.trial.unittest import SynchronousTestCase

from dledger.spark.formats.bodies import plain
from protocols.wire.errors import WireError

BODY = b"a body of some length; " * 400


def packed(codec: str) -> bytes:
    """As the stream of a codec of Arrow's."""
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        stream.write(BODY)
    return bytes(sink.getvalue())


class PlainTests(SynchronousTestCase):
    """L{plain}."""

    def test_every_kind(self) -> None:
        """zlib with and without its number, LZ4 frames, Zstandard."""
        for body, flag in ((zlib.compress(BODY), 0x1), (zlib.compress(BODY), 0x301),
                           (packed("lz4"), 0x101), (packed("zstd"), 0x201 | 0x10)):
            self.assertEqual(plain(body, flag), BODY)
            self.assertEqual(plain(memoryview(body), flag, bytes_max=len(BODY)), BODY)

    def test_bounded(self) -> None:
        """One byte more than is allowed is refused."""
        for body, flag in ((zlib.compress(BODY), 0x1), (packed("lz4"), 0x101), (packed("zstd"), 0x201)):
            self.assertRaisesRegex(WireError, "more than", plain, body, flag, bytes_max=len(BODY) - 1)

    def test_damaged(self) -> None:
        """What cannot be unpacked is an error of the format, whatever is wrong."""
        for flag in (0x1, 0x101, 0x201):
            self.assertRaisesRegex(WireError, "compressed body", plain, b"nothing of the kind", flag)
        self.assertRaisesRegex(WireError, "in the middle", plain, zlib.compress(BODY)[:-9], 0x1)
        self.assertRaisesRegex(WireError, "kind 5 is unknown", plain, b"", 0x501)
