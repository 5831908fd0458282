# -*- test-case-name: tests.wire.test_state_entries -*-
"""State entries: the bytes of the order that begins a state anew."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from protocols.wire.checksums import crc32
from protocols.wire.errors import WireError
from protocols.wire.ledger.own.state_entries import check_begin_anew, encode_begin_anew

GOLDEN = bytes.fromhex("47535441" "00000001" "5643ef8a" "00000001")


class StateEntryTests(SynchronousTestCase):
    """The body of a state entry."""

    def test_bytes(self) -> None:
        """As of docs/wire-format.md."""
        self.assertEqual(encode_begin_anew().hex(), GOLDEN.hex())
        check_begin_anew(GOLDEN)

    def test_every_cut_and_flip_is_refused(self) -> None:
        """No byte may be another one, and none may be missing or more."""
        for at in range(len(GOLDEN)):
            wrong = bytearray(GOLDEN)
            wrong[at] ^= 1 << at % 8
            self.assertRaises(WireError, check_begin_anew, bytes(wrong))
            self.assertRaises(WireError, check_begin_anew, GOLDEN[:at])
        self.assertRaises(WireError, check_begin_anew, GOLDEN + b"\0")

    def test_another_order_says_what_to_do(self) -> None:
        """A member that does not know it must not go on."""
        rest = (2).to_bytes(4)
        wrong = GOLDEN[:8] + crc32(rest).to_bytes(4) + rest
        self.assertIn("upgrade", str(self.assertRaises(WireError, check_begin_anew, wrong)))
