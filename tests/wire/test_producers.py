# -*- test-case-name: tests.wire.test_producers -*-
"""Producer entries: what is written is read, and nothing else is."""

from __future__ import annotations

from zlib import crc32

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from protocols.wire.errors import WireError
from protocols.wire.ledger.own.producer_entries import decode_producer_entry, encode_producer_entry
from protocols.wire.ledger.producers import (
    PRODUCER_CHANNEL,
    PRODUCER_HEADER_BYTES,
    RUN_BYTES_MAX,
    SEQUENCE_MAX,
    ProducerRun,
    producer_problem,
)

RUNS = (ProducerRun("p", 0, 1, 3), ProducerRun("ä" * 32, 2**62, 4, 1), ProducerRun("p", 3, 9, 2))


@st.composite
def runs(draw: st.DrawFn) -> tuple[ProducerRun, ...]:
    """Runs that follow each other."""
    found, behind = [], 1
    for _ in range(draw(st.integers(0, 4))):
        distance, entries = behind + draw(st.integers(0, 3)), draw(st.integers(1, 1000))
        name = draw(st.text(st.characters(codec="utf-8"), min_size=1, max_size=16))
        found.append(ProducerRun(name, draw(st.integers(0, SEQUENCE_MAX)), distance, entries))
        behind = distance + entries
    if found and draw(st.booleans()):
        found[-1] = found[-1]._replace(entries=0)
    return tuple(found)


class ProducerEntryTests(SynchronousTestCase):
    """The body of a producer entry."""

    @given(runs())
    def test_round_trip(self, drawn: tuple[ProducerRun, ...]) -> None:
        """All runs come back, and the bound of their bytes holds."""
        body = encode_producer_entry(drawn)
        self.assertEqual(decode_producer_entry(body), drawn)
        self.assertLessEqual(len(body), PRODUCER_HEADER_BYTES + len(drawn) * RUN_BYTES_MAX)

    def test_versions(self) -> None:
        """Only an open run, and an entry that ends one, need the second version."""
        told = ((RUNS, 1), (RUNS[:1], 1), ((), 2), ((RUNS[0]._replace(entries=0),), 2))
        self.assertEqual([encode_producer_entry(runs)[7] for runs, _ in told], [one for _, one in told])

    def test_every_cut_and_flip(self) -> None:
        """A body that is cut, longer, or has another bit is refused."""
        body = encode_producer_entry(RUNS)
        for end in range(len(body)):
            self.assertRaises(WireError, decode_producer_entry, body[:end])
        self.assertRaises(WireError, decode_producer_entry, body + b"x")
        for bit in range(8 * len(body)):
            flipped = bytearray(body)
            flipped[bit // 8] ^= 1 << bit % 8
            self.assertRaises(WireError, decode_producer_entry, bytes(flipped))

    def test_wrong_runs(self) -> None:
        """With a right checksum, too."""
        for run in (
            ProducerRun("p", 0, 0, 1), ProducerRun("p", 0, 1, -1), ProducerRun("p", -1, 1, 1),
            ProducerRun("p", SEQUENCE_MAX + 1, 1, 1),
        ):
            self.assertRaises(WireError, decode_producer_entry, encode_producer_entry((run,)))
        runs = (ProducerRun("p", 0, 1, 0), ProducerRun("q", 0, 2, 1))  # Only the last one may be open.
        self.assertRaises(WireError, decode_producer_entry, encode_producer_entry((*runs, runs[0])))
        closed = bytearray(encode_producer_entry(runs[:1]))
        closed[7] = 1
        self.assertRaises(WireError, decode_producer_entry, bytes(closed))
        overlapping = (ProducerRun("p", 0, 1, 2), ProducerRun("q", 0, 2, 1))
        self.assertRaises(WireError, decode_producer_entry, encode_producer_entry(overlapping))
        text = encode_producer_entry((ProducerRun("p", 0, 1, 1),))[PRODUCER_HEADER_BYTES:-1] + b"\xff"
        head = PRODUCER_CHANNEL.to_bytes(4, "big") + (1).to_bytes(4, "big") + crc32(text).to_bytes(4, "big")
        with self.assertRaisesRegex(WireError, "UTF-8"):
            decode_producer_entry(head + (1).to_bytes(4, "big") + text)

    def test_later_version(self) -> None:
        """It says what to do."""
        body = bytearray(encode_producer_entry(RUNS))
        body[7] = 3
        with self.assertRaisesRegex(WireError, "upgrade this member"):
            decode_producer_entry(bytes(body))

    def test_problems(self) -> None:
        """What is wrong with an id or a sequence, and what is allowed."""
        self.assertEqual(producer_problem("ä" * 32, SEQUENCE_MAX), "")
        self.assertIn("0 bytes, 1 to 64", producer_problem("", 0))
        self.assertIn("66 bytes", producer_problem("ä" * 33, 0))
        self.assertIn("sequence=-1", producer_problem("p", -1))
        self.assertIn(str(SEQUENCE_MAX), producer_problem("p", SEQUENCE_MAX + 1))
