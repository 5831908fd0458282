# -*- test-case-name: tests.wire.test_state_entries -*-
"""State entries: the bytes of the order that begins a state anew."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from protocols.wire.checksums import crc32
from protocols.wire.errors import WireError
from protocols.wire.ledger.own.state_entries import (
    StateEntry,
    StateWord,
    decode_state_entry,
    encode_state_entry,
)

ENTRY = StateEntry(StateWord.DIGEST, 7, 3, 0x0001020304050607)
GOLDEN = bytes.fromhex(
    "47535441" "00000001" "410a36c2" "00000003" "0000000000000007" "0000000000000003"
    "0001020304050607"
)


class StateEntryTests(SynchronousTestCase):
    """The body of a state entry."""

    def test_bytes(self) -> None:
        """As of docs/wire-format.md."""
        self.assertEqual(encode_state_entry(ENTRY).hex(), GOLDEN.hex())
        for entry in (ENTRY, StateEntry(StateWord.BEGIN_ANEW), StateEntry(StateWord.TAKE_DIGEST)):
            self.assertEqual(decode_state_entry(encode_state_entry(entry)), entry)

    def test_every_cut_and_flip_is_refused(self) -> None:
        """No byte may be another one, and none may be missing or more."""
        for at in range(len(GOLDEN)):
            wrong = bytearray(GOLDEN)
            wrong[at] ^= 1 << at % 8
            self.assertRaises(WireError, decode_state_entry, bytes(wrong))
            self.assertRaises(WireError, decode_state_entry, GOLDEN[:at])
        self.assertRaises(WireError, decode_state_entry, GOLDEN + b"\0")

    def test_another_word_says_what_to_do(self) -> None:
        """A member that does not know it must not go on."""
        rest = (4).to_bytes(4) + GOLDEN[16:]
        wrong = GOLDEN[:8] + crc32(rest).to_bytes(4) + rest
        self.assertIn("upgrade", str(self.assertRaises(WireError, decode_state_entry, wrong)))

    def test_what_does_not_go_together(self) -> None:
        """A digest of no entry, and an entry for no digest."""
        for entry in (ENTRY._replace(entry_index=-1), ENTRY._replace(word=StateWord.BEGIN_ANEW)):
            self.assertRaises(WireError, decode_state_entry, encode_state_entry(entry))
