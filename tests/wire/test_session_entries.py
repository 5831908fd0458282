# -*- test-case-name: tests.wire.test_session_entries -*-
"""Session entries: what is written is read, and nothing else is."""

from __future__ import annotations

from zlib import crc32

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from protocols.wire.errors import WireError
from protocols.wire.ledger.own.own_entries import SLOT_MAX
from protocols.wire.ledger.own.session_entries import (
    SESSION_BYTES_MAX,
    SESSION_HEADER_BYTES,
    SESSION_MAGIC,
    Session,
    decode_session_entry,
    encode_session_entry,
)

SESSIONS = (Session(1, "p"), Session(SLOT_MAX, "ä" * 32), Session(7, "q", "alice"))
_NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=16)


class SessionEntryTests(SynchronousTestCase):
    """The body of a session entry."""

    @given(st.lists(st.builds(Session, st.integers(1, SLOT_MAX), _NAMES, _NAMES), max_size=5).map(tuple))
    def test_round_trip(self, drawn: tuple[Session, ...]) -> None:
        """All sessions come back, and the bound of their bytes holds."""
        body = encode_session_entry(drawn)
        self.assertEqual(decode_session_entry(body), drawn)
        self.assertLessEqual(len(body), SESSION_HEADER_BYTES + len(drawn) * SESSION_BYTES_MAX)

    def test_bytes(self) -> None:
        """As they were at first."""
        self.assertEqual(encode_session_entry(SESSIONS[:1]).hex(),
                         "53455353" "0001" "0001" "7417a310" "00000001" "01" "00" "70")

    def test_every_cut_and_flip(self) -> None:
        """A body that is cut, longer, or has another bit is refused."""
        body = encode_session_entry(SESSIONS)
        for end in range(len(body)):
            self.assertRaises(WireError, decode_session_entry, body[:end])
        self.assertRaises(WireError, decode_session_entry, body + b"x")
        for bit in range(8 * len(body)):
            flipped = bytearray(body)
            flipped[bit // 8] ^= 1 << bit % 8
            self.assertRaises(WireError, decode_session_entry, bytes(flipped))

    def test_wrong_sessions(self) -> None:
        """With a right checksum, too."""
        for text, why in (
            (b"\0\0\0\0\x01\0p", "slot=0"), ((SLOT_MAX + 1).to_bytes(4, "big") + b"\x01\0p", "slot="),
            (b"\0\0\0\1\0\0", "0 bytes"), (b"\0\0\0\1\x01\0\xff", "UTF-8"), (b"\0\0\0\1\x02\0p", "malformed"),
            (b"\0\0\0\1\x01\x41p" + b"a" * 65, "malformed"),
            (b"\0\0", "0 sessions of 1"),
        ):
            head = SESSION_MAGIC.to_bytes(4, "big") + b"\0\1\0\1" + crc32(text).to_bytes(4, "big")
            with self.assertRaisesRegex(WireError, why):
                decode_session_entry(head + text)

    def test_later_version(self) -> None:
        """It says what to do."""
        body = bytearray(encode_session_entry(SESSIONS))
        body[5] = 2
        with self.assertRaisesRegex(WireError, "upgrade this member"):
            decode_session_entry(bytes(body))
