# -*- test-case-name: tests.wire.test_time_entries -*-
"""Time entries as bytes."""

from __future__ import annotations

from zlib import crc32

from twisted.trial.unittest import SynchronousTestCase

from protocols.wire.errors import WireError
from protocols.wire.ledger.own.time_entries import (
    TIME_ENTRY_DECLARATION,
    TIME_MS_MAX,
    decode_time_entry,
    encode_time_entry,
)

#: 2026-01-02T03:04:05.678Z
NOW_MS = 1_767_323_045_678


class TimeEntryTests(SynchronousTestCase):
    """The only kind there is."""

    def test_bytes(self) -> None:
        """As they were at first, and as declared."""
        body = encode_time_entry(NOW_MS)
        self.assertEqual(body.hex(), "54494d4500000001" "9f25ea4d" "0000019b7ca98f2e")
        self.assertEqual(TIME_ENTRY_DECLARATION.parse(body).time_ms, NOW_MS)
        self.assertEqual(decode_time_entry(body), NOW_MS)

    def test_bounds(self) -> None:
        """1970 and the end of 9999; a time outside is refused, whoever wrote it."""
        for time_ms in (0, TIME_MS_MAX):
            self.assertEqual(decode_time_entry(encode_time_entry(time_ms)), time_ms)
        for time_ms in (-1, TIME_MS_MAX + 1):
            raw = time_ms.to_bytes(8, "big", signed=True)
            body = encode_time_entry(0)[:8] + crc32(raw).to_bytes(4, "big") + raw
            self.assertIn("are allowed", str(self.assertRaises(WireError, decode_time_entry, body)))

    def test_malformed(self) -> None:
        """Every cut, every bit, and another version."""
        body = encode_time_entry(NOW_MS)
        for size in range(len(body)):
            self.assertRaises(WireError, decode_time_entry, body[:size])
        for bit in range(8 * len(body)):
            wrong = bytearray(body)
            wrong[bit // 8] ^= 1 << bit % 8
            self.assertRaises(WireError, decode_time_entry, bytes(wrong))
        later = body[:7] + b"\x02" + body[8:]
        self.assertIn("upgrade", str(self.assertRaises(WireError, decode_time_entry, later)))
