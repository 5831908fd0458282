# -*- test-case-name: tests.wire.test_ha -*-
"""The replication stream: bytes as Java sends them, every cut, every truncation, every bad number."""

from __future__ import annotations

import random
import struct

from construct import StreamError
from twisted.trial.unittest import SynchronousTestCase

from protocols.wire.errors import WireError
from protocols.wire.rocketmq.ha import (
    BODY_SIZE_MAX,
    OFFSET_REPORT,
    OFFSET_REPORT_DECLARATION,
    TRANSFER_HEADER,
    TRANSFER_HEADER_DECLARATION,
    Piece,
    ReportReader,
    TransferHeader,
    TransferReader,
    decode_transfer_header,
    encode_report,
    encode_transfer_header,
)

#: What a Java pair says: an empty slave, one with 326 bytes, a heartbeat at 326, a header for 326 bytes at 0.
REPORT_0 = bytes.fromhex("0000000000000000")
REPORT_326 = bytes.fromhex("0000000000000146")
HEARTBEAT_326 = bytes.fromhex("0000000000000146" "00000000")
HEADER_326_AT_0 = bytes.fromhex("0000000000000000" "00000146")


def fed(reader: TransferReader, data: bytes) -> list[Piece]:
    """The pieces of one read."""
    pieces: list[Piece] = []
    reader.feed(data, pieces)
    return pieces


class GoldenTests(SynchronousTestCase):
    """Bytes of the original."""

    def test_reports(self) -> None:
        """Written as Java writes them."""
        self.assertEqual(encode_report(0), REPORT_0)
        self.assertEqual(encode_report(326), REPORT_326)

    def test_headers(self) -> None:
        """Written as Java writes them, and read back."""
        for golden, header in (
            (HEARTBEAT_326, TransferHeader(offset=326, body_size=0)),
            (HEADER_326_AT_0, TransferHeader(offset=0, body_size=326)),
        ):
            self.assertEqual(encode_transfer_header(header), golden)
            self.assertEqual(decode_transfer_header(golden), header)


class TwinTests(SynchronousTestCase):
    """The packed twin agrees with the declaration, on generated values and every truncation."""

    def test_header(self) -> None:
        """Both ways; a truncated header is read by neither."""
        rng = random.Random(1)
        for _ in range(200):
            fields = {"offset": rng.getrandbits(63) - rng.getrandbits(62), "body_size": rng.getrandbits(31)}
            whole = TRANSFER_HEADER_DECLARATION.build(fields)
            self.assertEqual(TRANSFER_HEADER.pack(fields["offset"], fields["body_size"]), whole)
            parsed = TRANSFER_HEADER_DECLARATION.parse(whole)
            self.assertEqual((parsed.offset, parsed.body_size), TRANSFER_HEADER.unpack(whole))
            for size in range(len(whole)):
                self.assertRaises(StreamError, TRANSFER_HEADER_DECLARATION.parse, whole[:size])
                self.assertRaises(struct.error, TRANSFER_HEADER.unpack, whole[:size])

    def test_report(self) -> None:
        """Both ways."""
        for offset in (0, 1, 326, 2**40, 2**63 - 1, -1):
            whole = OFFSET_REPORT_DECLARATION.build({"offset": offset})
            self.assertEqual(OFFSET_REPORT.pack(offset), whole)
            self.assertEqual(OFFSET_REPORT.unpack(whole), (OFFSET_REPORT_DECLARATION.parse(whole).offset,))


class ReportTests(SynchronousTestCase):
    """What a master reads."""

    STREAM = b"".join(encode_report(offset) for offset in (0, 5, 7, 2**40))

    def test_any_fragmentation(self) -> None:
        """However the network cuts them: each read gives its newest whole report, the last is the last."""
        for size in range(1, len(self.STREAM) + 1):
            reader = ReportReader()
            seen = [reader.feed(self.STREAM[at : at + size]) for at in range(0, len(self.STREAM), size)]
            reported = [offset for offset in seen if offset is not None]
            self.assertEqual(reported[-1], 2**40, size)
            self.assertEqual(reported, sorted(reported), size)
            if size <= 8:
                self.assertEqual(reported, [0, 5, 7, 2**40], size)

    def test_newest_counts(self) -> None:
        """Of several in one read the last one, as Java does."""
        self.assertEqual(ReportReader().feed(encode_report(9) + encode_report(3)), 3)

    def test_below_zero(self) -> None:
        """No offset is negative: this is somebody else's protocol."""
        error = self.assertRaises(WireError, ReportReader().feed, encode_report(-1))
        self.assertIn("offset=-1 below 0", str(error))

    def test_bounded(self) -> None:
        """Nothing whole is kept."""
        reader = ReportReader()
        reader.feed(bytes(8 * 1000 + 7))
        self.assertEqual(len(reader._kept), 7)


class TransferTests(SynchronousTestCase):
    """What a slave reads."""

    BODY = bytes(range(1, 201))
    STREAM = (
        encode_transfer_header(TransferHeader(offset=1000, body_size=120)) + BODY[:120]
        + encode_transfer_header(TransferHeader(offset=1120, body_size=0))
        + encode_transfer_header(TransferHeader(offset=1120, body_size=80)) + BODY[120:]
        + encode_transfer_header(TransferHeader(offset=1200, body_size=0))
    )

    def read(self, size: int) -> list[tuple[int, bytes]]:
        """All pieces, the stream cut every C{size} bytes."""
        reader = TransferReader()
        pieces = []
        for at in range(0, len(self.STREAM), size):
            pieces += [(offset, bytes(data)) for offset, data in fed(reader, self.STREAM[at : at + size])]
        self.assertFalse(reader.is_inside_body)
        return pieces

    def test_whole(self) -> None:
        """One read: bodies in one piece each, heartbeats without bytes."""
        self.assertEqual(
            self.read(len(self.STREAM)),
            [(1000, self.BODY[:120]), (1120, b""), (1120, self.BODY[120:]), (1200, b"")],
        )

    def test_any_fragmentation(self) -> None:
        """However the network cuts it: the same bytes at the same offsets, both heartbeats seen."""
        for size in range(1, len(self.STREAM)):
            log = bytearray()
            for offset, data in self.read(size):
                self.assertEqual(offset, 1000 + len(log), size)
                log += data
            self.assertEqual(bytes(log), self.BODY, size)
            self.assertEqual(self.read(size)[-1], (1200, b""), size)

    def test_header_alone(self) -> None:
        """A header is reported before its body comes."""
        reader = TransferReader()
        self.assertEqual(fed(reader, self.STREAM[:12]), [(1000, b"")])
        self.assertTrue(reader.is_inside_body)
        ((offset, data),) = fed(reader, self.STREAM[12:50])
        self.assertEqual((offset, len(data)), (1000, 38))

    def test_views(self) -> None:
        """Bodies are not copied."""
        data = self.STREAM[:132]
        ((_, body),) = fed(TransferReader(), data)
        self.assertIs(body.obj, data)

    def test_every_truncation(self) -> None:
        """A stream that ends anywhere yields a prefix, and never raises."""
        for size in range(len(self.STREAM)):
            pieces = fed(TransferReader(), self.STREAM[:size])
            self.assertTrue(self.BODY.startswith(b"".join(bytes(data) for _, data in pieces)), size)

    def test_bad_size(self) -> None:
        """A size below 0 or beyond the limits of Java; the error has the number and the limits."""
        for size in (-1, BODY_SIZE_MAX + 1):
            header = TRANSFER_HEADER.pack(0, size)
            error = self.assertRaises(WireError, fed, TransferReader(), header)
            self.assertIn(f"body_size={size} outside 0..{BODY_SIZE_MAX}", str(error))
            self.assertRaises(WireError, decode_transfer_header, header)
        longest = decode_transfer_header(TRANSFER_HEADER.pack(0, BODY_SIZE_MAX))
        self.assertEqual(longest.body_size, BODY_SIZE_MAX)

    def test_bad_offset(self) -> None:
        """An offset below 0; the part before it has been delivered."""
        seen: list[Piece] = []
        data = HEARTBEAT_326 + TRANSFER_HEADER.pack(-5, 1)
        error = self.assertRaises(WireError, TransferReader().feed, data, seen)
        self.assertIn("offset=-5 below 0", str(error))
        self.assertEqual([offset for offset, _ in seen], [326])

    def test_bad_header_in_two_reads(self) -> None:
        """A header that came in two pieces is checked as one that came in one."""
        reader = TransferReader()
        header = TRANSFER_HEADER.pack(0, -1)
        self.assertEqual(fed(reader, header[:5]), [])
        self.assertRaises(WireError, fed, reader, header[5:])
