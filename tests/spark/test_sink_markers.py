# -*- test-case-name: tests.spark.test_sink_markers -*-
"""The markers of the sink: their bytes, and what is none."""

from __future__ import annotations

import attrs
from twisted.trial.unittest import SynchronousTestCase

from dledger.spark.formats.log import Chunk
from dledger.spark.ledger.member_connection import record_starts
from dledger.spark.sink.markers import (
    MARKER_BYTES,
    MARKER_MAGIC,
    MarkerKind,
    SinkMarker,
    decode_marker,
    encode_marker,
    is_sink_id,
    markers_in,
)
from protocols.wire.ledger.own.own_entries import AGE_CHANNEL, HIDDEN
from tests.spark.members import records_of
from tests.wire.marked import marked

MARKER = SinkMarker(kind=MarkerKind.PIECE, sink="orders", batch=7, run="0123456789abcdef", count=3, since=90)
#: As docs/wire-format.md shows it, without the blanks at its end.
GOLDEN = (
    b'dledger-sink/1 c811b10f {"kind":"piece","sink":"orders","batch":7,"run":"0123456789abcdef","count":3,'
    b'"since":90,"digest":"0000000000000000"}'
)


class MarkerTests(SynchronousTestCase):
    """One marker."""

    def test_bytes(self) -> None:
        """The text of the documents, blanks up to the length, and the way back."""
        body = encode_marker(MARKER)
        self.assertEqual(len(body), MARKER_BYTES)
        self.assertEqual(body.rstrip(b" "), GOLDEN)
        self.assertEqual(decode_marker(body), MARKER)
        self.assertEqual(decode_marker(memoryview(body)), MARKER)

    def test_longest(self) -> None:
        """The longest values fit."""
        longest = SinkMarker(kind=MarkerKind.DONE, sink="x" * 64, batch=2**63 - 1, run="f" * 16,
                             count=2**63 - 1, since=2**63 - 1, digest="f" * 16)
        self.assertEqual(decode_marker(encode_marker(longest)), longest)

    def test_every_bit(self) -> None:
        """A body that differs in one bit, or is cut anywhere, is no marker."""
        body = encode_marker(MARKER)
        for at in range(len(body)):
            changed = bytearray(body)
            changed[at] ^= 1 << (at % 8)
            self.assertIsNone(decode_marker(bytes(changed)), at)
            self.assertIsNone(decode_marker(body[:at]), at)
        self.assertIsNone(decode_marker(body + b" "))

    def test_magic_alone(self) -> None:
        """A user's body that begins like a marker, and has its length, is none."""
        self.assertIsNone(decode_marker(MARKER_MAGIC.ljust(MARKER_BYTES, b"x")))

    def test_values(self) -> None:
        """What no sink writes is refused, with the name of the field."""
        for changes, said in (
            ({"sink": "a b"}, "sink='a b'"), ({"sink": ""}, "sink=''"), ({"batch": -1}, "batch=-1"),
            ({"run": "g" * 16}, "run="), ({"count": 2**63}, "count="), ({"since": True}, "since=True"),
        ):
            error = self.assertRaises(ValueError, attrs.evolve, MARKER, **changes)
            self.assertIn(said, str(error))

    def test_ids(self) -> None:
        """Names of sinks."""
        for text, is_one in (("a", True), ("A.b-c_9", True), ("x" * 64, True), ("x" * 65, False),
                             ("", False), ("a/b", False), ("é", False), ("a\n", False)):
            self.assertEqual(is_sink_id(text), is_one, text)

    def test_in_chunk(self) -> None:
        """Hidden entries of a producer with such a body: neither the body alone, nor the channel."""
        body, slot = encode_marker(MARKER), 7 << 8
        records = records_of(
            [b"", body, b"x" * MARKER_BYTES, body, b"row", body, body, b"x" * MARKER_BYTES],
            [0, slot | HIDDEN, slot, slot | HIDDEN, 0, 0, slot, slot | HIDDEN],
        )
        records.append(marked(records[1], AGE_CHANNEL))
        data = b"".join(records)
        chunk = Chunk(data=data, starts=record_starts(memoryview(data), 9), first=10, place="test")
        self.assertEqual(markers_in(chunk), [(1, MARKER), (3, MARKER)])
