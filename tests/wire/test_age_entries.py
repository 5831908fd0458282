# -*- test-case-name: tests.wire.test_age_entries -*-
"""Age entries as bytes."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from protocols.wire.errors import WireError
from protocols.wire.ledger.own.age_entries import AgeEntry, decode_age_entry, encode_age_entry

CLOCK_MS, LIMIT_MS = 1_767_323_045_678, 604_800_000


class AgeEntryTests(SynchronousTestCase):
    """The body of an age entry."""

    def test_round_trip(self) -> None:
        """Both numbers come back."""
        self.assertEqual(decode_age_entry(encode_age_entry(CLOCK_MS, LIMIT_MS)), AgeEntry(CLOCK_MS, LIMIT_MS))

    def test_malformed(self) -> None:
        """Every cut, every bit, another version, numbers out of range."""
        body = encode_age_entry(CLOCK_MS, LIMIT_MS)
        for size in range(len(body)):
            self.assertRaises(WireError, decode_age_entry, body[:size])
        for bit in range(8 * len(body)):
            wrong = bytearray(body)
            wrong[bit // 8] ^= 1 << bit % 8
            self.assertRaises(WireError, decode_age_entry, bytes(wrong))
        self.assertIn("upgrade", str(self.assertRaises(WireError, decode_age_entry,
                                                       body[:7] + b"\2" + body[8:])))
        for numbers in ((-1, 1), (1, 0), (1, -5)):
            self.assertRaises(WireError, decode_age_entry, encode_age_entry(*numbers))
