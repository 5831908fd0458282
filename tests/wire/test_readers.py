# -*- test-case-name: tests.wire.test_readers -*-
"""Reader entries: what is written is read, and nothing else is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from protocols.wire.errors import BodyError, WireError
from protocols.wire.ledger.readers import (
    NO_END,
    READER_PARTS_MAX,
    ReaderInfo,
    ReaderPart,
    ReaderState,
    decode_reader_entry,
    decode_readers,
    encode_reader_entry,
    encode_readers,
    reader_name_problem,
)

STATE = ReaderState("ä billing", 7, 20, (
    ReaderPart(3, 5, 4, 10_000, "p1"), ReaderPart(5, 5, 8, 500, "p2"), ReaderPart(9, 20, -1, 0, ""),
))
GOLDEN = (
    "52444e4d00000001db0b9379" "0000000000000007" "0000000000000014" "00" "0001" "0001" "0000" "61"
    "0000000000000003" "0000000000000014" "ffffffffffffffff" "00000bb8" "0000000000000000" "000000fa" "0002"
    "7031"
)


@st.composite
def states(draw: st.DrawFn) -> ReaderState:
    """Any that a leader may write."""
    parts, behind = [], 0
    for _ in range(draw(st.integers(0, 4))):
        begin = behind + draw(st.integers(0, 3))
        behind = begin + draw(st.integers(0, 1000))
        lease_ms = draw(st.integers(0, 3_600_000))
        parts.append(ReaderPart(
            begin, behind, draw(st.integers(-1, 2**62)), lease_ms,
            draw(st.text(st.sampled_from("pq-9ä"), max_size=8)), draw(st.integers(-(2**63), 2**63 - 1)),
            draw(st.integers(0, lease_ms)),
        ))
    given = NO_END if draw(st.booleans()) else behind + draw(st.integers(0, 9))
    name = draw(st.text(st.sampled_from("abä_ /"), min_size=1, max_size=20).map(lambda text: f"r{text}s"))
    owner = draw(st.text(st.sampled_from("abä"), max_size=8))
    return ReaderState(name, draw(st.integers(-1, 2**62)), given, tuple(parts), draw(st.booleans()), owner)


class ReaderEntryTests(SynchronousTestCase):
    """The body of a reader entry."""

    @given(states())
    def test_round_trip(self, state: ReaderState) -> None:
        """All of it comes back."""
        body = encode_reader_entry(state)
        self.assertEqual(decode_reader_entry(body), state)

    def test_golden(self) -> None:
        """The bytes are those that wire-format.md describes."""
        state = ReaderState("a", 7, 20, (ReaderPart(3, 20, -1, 3000, "p1", silent_ms=250),))
        body = encode_reader_entry(state)
        self.assertEqual(body.hex(), GOLDEN)
        self.assertEqual(decode_reader_entry(bytes.fromhex(GOLDEN)), state)

    def test_every_cut_and_flip(self) -> None:
        """A body that is cut, longer, or has another bit is refused."""
        body = encode_reader_entry(STATE)
        for end in range(len(body)):
            self.assertRaises(WireError, decode_reader_entry, body[:end])
        self.assertRaises(WireError, decode_reader_entry, body + b"x")
        for bit in range(8 * len(body)):
            flipped = bytearray(body)
            flipped[bit // 8] ^= 1 << bit % 8
            self.assertRaises(WireError, decode_reader_entry, bytes(flipped))

    def test_malformed(self) -> None:
        """With a right checksum, too."""
        for state in (
            STATE._replace(parts=STATE.parts[::-1]),
            STATE._replace(given_index=10),
            STATE._replace(given_index=NO_END + 1),
            STATE._replace(previous=-2),
            STATE._replace(name="a\n"),
            STATE._replace(parts=(ReaderPart(5, 4, 1, 1, "p"),)),
            STATE._replace(parts=(ReaderPart(1, 4, -2, 1, "p"),)),
            STATE._replace(parts=(ReaderPart(1, 4, 2, -1, "p"),)),
            STATE._replace(parts=(ReaderPart(1, 4, 2, 1, "p\n"),)),
            STATE._replace(parts=(ReaderPart(1, 4, 2, 1, "p", silent_ms=2),)),
            STATE._replace(parts=(ReaderPart(1, 4, 2, 1, "p", silent_ms=-1),)),
        ):
            self.assertRaises(WireError, decode_reader_entry, encode_reader_entry(state))
        full = tuple(ReaderPart(at, at, 1, 1, "p") for at in range(READER_PARTS_MAX))
        body = encode_reader_entry(STATE._replace(given_index=99, parts=full))
        self.assertEqual(len(decode_reader_entry(body).parts), READER_PARTS_MAX)

    def test_later_version(self) -> None:
        """It says what to do."""
        body = bytearray(encode_reader_entry(STATE))
        body[7] = 2
        with self.assertRaisesRegex(WireError, "upgrade this member"):
            decode_reader_entry(bytes(body))

    def test_next_index(self) -> None:
        """The first entry that is not done; parts that are done do not count."""
        self.assertEqual(STATE.next_index, 3)
        self.assertEqual(STATE._replace(parts=STATE.parts[1:]).next_index, 9)
        self.assertEqual(STATE._replace(parts=()).next_index, 20)

    def test_names(self) -> None:
        """Their problems, in words."""
        self.assertEqual(reader_name_problem("billing/EU 2"), "")
        self.assertIn("has 0 bytes, 1 to 64", reader_name_problem(""))
        self.assertIn("has 66 bytes", reader_name_problem("ä" * 33))
        self.assertIn("without blanks", reader_name_problem("a "))


class ListTests(SynchronousTestCase):
    """The readers in an answer."""

    def test_round_trip(self) -> None:
        """All of them."""
        rows = (ReaderInfo("ä", 3, 7, ("p1", "p2"), 700), ReaderInfo("b", 0, 0, ()))
        self.assertEqual(decode_readers(encode_readers(rows)), rows)
        for text in (b'[["b",0,0,[]]]', b'[["b",0,0,[],-1,"later"]]'):  # of an earlier, and a later version
            self.assertEqual(decode_readers(text), rows[1:])
        self.assertEqual(decode_readers(None), ())

    def test_malformed(self) -> None:
        """An error of the peer, whatever it sent."""
        for text in (
            b"{", b"[1]", b'[["a"]]', b'[["a",1,2,3]]', b'[["a","x",2,[]]]', b'[["a",1,2,[],"x"]]', b"7",
            b"\xff",
        ):
            self.assertRaises(BodyError, decode_readers, text)
