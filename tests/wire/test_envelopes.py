# -*- test-case-name: tests.wire.test_envelopes -*-
"""Envelopes: what was put in comes out, and any other body is left as it is."""

from __future__ import annotations

from collections.abc import Mapping
from zlib import crc32

from construct import Bytes, ConstructError, FixedSized, GreedyBytes, GreedyRange, Struct, this
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from protocols.wire.ledger.envelopes import (
    ENVELOPE_BYTES_MAX,
    ENVELOPE_BYTES_MIN,
    ENVELOPE_DECLARATION,
    ENVELOPE_HEADER_DECLARATION,
    ENVELOPE_MAGIC,
    HEADER_NAME_BYTES_MAX,
    HEADERS_BYTES_MAX,
    HEADERS_MAX,
    TIME_MS_MAX,
    Envelope,
    decode_envelope,
    envelope_head,
    headers_problem,
    time_problem,
)

#: The time 2026-01-02T03:04:05.678Z, a header C{type} of C{order}, an empty header, and the body C{hello}.
GOLDEN = (
    "ff444c454e560d0a" "bbb31a17" "01" "01" "0010" "0000019b7ca98f2e"
    "04" "0005" "74797065" "6f72646572" "01" "0000" "78" "68656c6c6f"
)
#: Without a time and headers: a body that begins with the magic is wrapped like this.
GOLDEN_BARE = "ff444c454e560d0a" "e0708a00" "01" "00" "0000" "0000000000000000" "ff444c454e560d0a"

TIMES = st.none() | st.integers(0, TIME_MS_MAX)
NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=16).filter(
    lambda name: not headers_problem({name: b""})
)
HEADERS = st.dictionaries(NAMES, st.binary(max_size=40), max_size=4)
BODIES = st.binary(max_size=60) | st.binary(max_size=20).map(lambda rest: ENVELOPE_MAGIC + rest)

_WHOLE = Struct(
    *ENVELOPE_DECLARATION.subcons,
    "headers" / FixedSized(this.headers_length, GreedyRange(Struct(
        *ENVELOPE_HEADER_DECLARATION.subcons, "name" / Bytes(this.name_length),
        "value" / Bytes(this.value_length),
    ))),
    "body" / GreedyBytes,
)


def slow_envelope(time_ms: int | None, headers: Mapping[str, bytes], body: bytes) -> bytes:
    """As C{envelope_head}, by the declarations."""
    rows = [
        {"name_length": len(name.encode()), "value_length": len(value), "name": name.encode(), "value": value}
        for name, value in headers.items()
    ]
    fields = {
        "magic": int.from_bytes(ENVELOPE_MAGIC, "big"), "crc": 0, "version": 1,
        "flags": 0 if time_ms is None else 1, "time_ms": time_ms or 0, "headers": rows, "body": b"",
        "headers_length": sum(3 + row["name_length"] + row["value_length"] for row in rows),
    }
    bare: bytes = _WHOLE.build(fields)
    whole: bytes = _WHOLE.build({**fields, "crc": crc32(bare[12:]), "body": body})
    return whole


def slow_decode(body: bytes) -> Envelope | None:
    """Parse by the declarations, build again, and see whether it is the same."""
    try:
        found = _WHOLE.parse(body)
        names = [row.name.decode() for row in found.headers]
    except (ConstructError, UnicodeDecodeError):
        return None
    headers = {name: row.value for name, row in zip(names, found.headers, strict=True)}
    time_ms = found.time_ms if found.flags else None
    if headers_problem(headers) or time_problem(time_ms or 0) or len(headers) != len(names):
        return None
    if slow_envelope(time_ms, headers, found.body) != body:
        return None
    return Envelope(found.body, time_ms, headers)


class EnvelopeTests(SynchronousTestCase):
    """What an envelope says."""

    def test_golden(self) -> None:
        """The bytes of version 1 do not change."""
        headers = {"type": b"order", "x": b""}
        head = envelope_head(1767323045678, headers)
        self.assertEqual((head + b"hello").hex(), GOLDEN)
        self.assertEqual(decode_envelope(bytes.fromhex(GOLDEN)), (b"hello", 1767323045678, headers))
        self.assertEqual((envelope_head(None, {}) + ENVELOPE_MAGIC).hex(), GOLDEN_BARE)
        self.assertEqual(decode_envelope(bytes.fromhex(GOLDEN_BARE)), (ENVELOPE_MAGIC, None, {}))

    @settings(max_examples=60)
    @given(TIMES, HEADERS, BODIES)
    def test_round_trip(self, time_ms: int | None, headers: dict[str, bytes], body: bytes) -> None:
        """All of it comes back, the order of headers too; the declarations say the same."""
        whole = envelope_head(time_ms, headers) + body
        self.assertEqual(whole, slow_envelope(time_ms, headers, body))
        found = decode_envelope(whole)
        assert found is not None
        self.assertEqual(found, (body, time_ms, headers))
        self.assertEqual(list(found.headers), list(headers))

    @settings(max_examples=30)
    @given(TIMES, HEADERS, BODIES)
    def test_nested(self, time_ms: int | None, headers: dict[str, bytes], body: bytes) -> None:
        """An envelope in an envelope is a body like any other."""
        inner = envelope_head(time_ms, headers) + body
        self.assertEqual(decode_envelope(envelope_head(None, {}) + inner), (inner, None, {}))

    @given(st.binary(max_size=200))
    def test_any_bytes(self, body: bytes) -> None:
        """They are no envelope, also after the magic."""
        for whole in (body, ENVELOPE_MAGIC + body):
            self.assertIsNone(decode_envelope(whole))

    @settings(max_examples=100)
    @given(TIMES, HEADERS, st.binary(max_size=9), st.data())
    def test_damaged(
        self, time_ms: int | None, headers: dict[str, bytes], body: bytes, data: st.DataObject
    ) -> None:
        """
        One wrong byte in an envelope makes it none, a wrong byte with the right CRC whatever the declarations
        say; neither fails.
        """
        head = envelope_head(time_ms, headers)
        at, byte = data.draw(st.integers(0, len(head) - 1)), data.draw(st.integers(0, 255))
        assume(head[at] != byte)
        wrong = head[:at] + bytes([byte]) + head[at + 1 :]
        self.assertIsNone(decode_envelope(wrong + body))
        length = int.from_bytes(wrong[14:16], "big")
        resealed = wrong[:8] + crc32((wrong + body)[12 : 24 + length]).to_bytes(4, "big") + wrong[12:] + body
        self.assertEqual(decode_envelope(resealed), slow_decode(resealed))

    @settings(max_examples=30)
    @given(TIMES, HEADERS)
    def test_cut(self, time_ms: int | None, headers: dict[str, bytes]) -> None:
        """A beginning of an envelope is none."""
        head = envelope_head(time_ms, headers)
        for length in range(len(head)):
            self.assertIsNone(decode_envelope(head[:length]))

    def test_forged(self) -> None:
        """With a right CRC, everything else is checked, too: no reader ever sees what no writer may write."""
        def sealed(rest: str, body: bytes = b"") -> bytes:
            raw = bytes.fromhex(rest)
            return ENVELOPE_MAGIC + crc32(raw).to_bytes(4, "big") + raw + body

        none, late = "00" * 8, (TIME_MS_MAX + 1).to_bytes(8, "big").hex()
        self.assertEqual(decode_envelope(sealed("01000000" + none, b"x")), (b"x", None, {}))
        for why, rest in (
            ("version 2", "02000000" + none), ("a flag without a meaning", "01020000" + none),
            ("a time without its flag", "01000000" + "00" * 7 + "01"), ("year 10000", "01010000" + late),
            ("before 1970", "01010000" + "ff" * 8), ("headers that end too late", "01000003" + none + "00"),
            ("a name without bytes", "01000003" + none + "000000"), ("a cut row", "01000002" + none + "0100"),
            ("a name that is not UTF-8", "01000004" + none + "010000ff"),
            ("a name with a line feed", "01000004" + none + "0100000a"),
            ("a value that ends too late", "01000004" + none + "01000161"),
            ("a name twice", "01000008" + none + "01000061" * 2),
        ):
            self.assertIsNone(decode_envelope(sealed(rest)), why)
            self.assertIsNone(slow_decode(sealed(rest)), why)
        long = b"\x01" + (HEADERS_BYTES_MAX - 3).to_bytes(2, "big") + b"a" + bytes(HEADERS_BYTES_MAX - 3)
        self.assertIsNone(decode_envelope(
            sealed("0100" + len(long).to_bytes(2, "big").hex() + none + long.hex())
        ))
        many = b"".join(b"\x02\0\0%02d" % number for number in range(HEADERS_MAX + 1))
        length = len(many).to_bytes(2, "big").hex()
        self.assertIsNone(decode_envelope(sealed("0100" + length + none + many.hex())))


class ProblemTests(SynchronousTestCase):
    """Headers and times that are refused, each with a sentence."""

    def test_headers(self) -> None:
        """What is wrong, and what is allowed."""
        for headers, said in (
            ([("a", b"b")], "mapping of str to bytes, not list"), ({1: b""}, "must be str, not int"),
            ({"a": "b"}, "value of header 'a' must be bytes, not str"), ({"a": None}, "not NoneType"),
            ({"": b""}, "has 0 bytes, 1 to 64"), ({"ä" * 33: b""}, "has 66 bytes, 1 to 64"),
            ({" a": b""}, "without blanks"), ({"a\n": b""}, "printable"), ({"\ud800": b""}, "printable"),
            ({f"{n}": b"" for n in range(33)}, "33 headers; at most 32"),
            ({"a": bytes(8_189)}, "of 8193 bytes"), ({"a" * 1000: b""}, "has 1000 bytes"),
        ):
            self.assertIn(said, headers_problem(headers), repr(headers))
            self.assertLess(len(headers_problem(headers)), 300)

    def test_bounds(self) -> None:
        """The largest ones are sound, and come back."""
        most = {"a" * HEADER_NAME_BYTES_MAX: bytes(HEADERS_BYTES_MAX - 3 - HEADER_NAME_BYTES_MAX)}
        for headers in (most, {f"{n}": b"x" for n in range(HEADERS_MAX)}, {}):
            self.assertEqual(headers_problem(headers), "")
            whole = envelope_head(TIME_MS_MAX, headers)
            self.assertEqual(decode_envelope(whole), (b"", TIME_MS_MAX, headers))
        self.assertEqual(len(envelope_head(0, most)), ENVELOPE_BYTES_MAX)
        self.assertEqual(len(envelope_head(None, {})), ENVELOPE_BYTES_MIN)

    def test_times(self) -> None:
        """From 1970 to the year 9999."""
        for time_ms in (0, TIME_MS_MAX):
            self.assertEqual(time_problem(time_ms), "")
        for time_ms in (-1, TIME_MS_MAX + 1):
            self.assertIn("is the clock of this machine right?", time_problem(time_ms))
