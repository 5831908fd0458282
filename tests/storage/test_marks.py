# -*- test-case-name: tests.storage.test_marks -*-
"""The same marked entries are found in records one by one, in columns, and in chunks."""

from __future__ import annotations

import random

from twisted.trial.unittest import SynchronousTestCase

from dledger.storage.files.chunk_checks import check_chunk
from dledger.storage.files.records import Layout, check_batch, marks_in, marks_of_run, pack_bodies
from dledger.values.ledger.group_state import Marked
from protocols.wire.checksums import crc32
from protocols.wire.ledger.batches import EntryBatch, EntryChunk
from protocols.wire.ledger.own.own_entries import HIDDEN, TERM_START_CHANNEL, TIME_CHANNEL, slot_channels
from protocols.wire.ledger.own.time_entries import encode_time_entry

FILE = 1 << 20


def packed(bodies: list[bytes], channels: list[int]) -> Layout:
    """Records from index 10 on, as a leader writes them."""
    return pack_bodies(bodies, first_index=10, term=3, end_position=500, previous_chain_crc=77,
                       file_size=FILE, channels=channels)


def batch_of(layout: Layout, count: int) -> EntryBatch:
    """As a follower gets them."""
    return EntryBatch(first_index=10, count=count, term=3, records=layout.records)


def each_of(marks: tuple[Marked, ...]) -> list[Marked]:
    """One mark for each entry: a batch that is checked in parts has more marks than it needs."""
    found = []
    for one in marks:
        if one.channel < 0:
            found.append(one)
            continue
        for number, digits in enumerate(slot_channels(1, one.channel & 0xFF, one.entries)):
            channel = one.channel & ~0xFF | digits & 0xFF
            found.append(Marked(one.first_index + number, one.term, channel))
    return found


class AlikeTests(SynchronousTestCase):
    """The leader's own marks are those that all others find."""

    def assertAlike(self, bodies: list[bytes], channels: list[int]) -> tuple[Marked, ...]:
        """Of a batch, of a chunk, and of a run if the sizes are equal. @return: the marks."""
        layout, count = packed(bodies, channels), len(bodies)
        batch = batch_of(layout, count)
        taken = check_batch(batch, first_index=10, last_term=3, end_position=500, previous_chain_crc=77,
                            file_size=FILE)
        chunk = EntryChunk(
            first_index=10, count=count, term=3, records=layout.records, units=layout.units,
            records_crc=crc32(layout.records), units_crc=crc32(layout.units),
        )
        chunked = check_chunk(chunk, first_index=10, last_term=3, end_position=500, previous_chain_crc=77,
                              file_size=FILE)
        found = [layout.marked, taken.marked, chunked.marked, marks_in(batch)]
        if len({*map(len, bodies)}) == 1:
            found.append(marks_of_run(layout.records, count, 48 + len(bodies[0]), 10, 3))
        for other in found[1:]:
            self.assertEqual(each_of(other), each_of(found[0]), channels)
        return found[0]

    def test_plain_entries_have_no_marks(self) -> None:
        """Of any body."""
        self.assertEqual(self.assertAlike([b"a", b"", b"TIME"], [0, 0, 0]), ())

    def test_one_producer_is_one_mark(self) -> None:
        """Also where the digits begin again, and in more records than a run needs."""
        for count in (1, 70, 300):
            (one,) = self.assertAlike([b"body"] * count, slot_channels(5, 200, count))
            self.assertEqual((one.first_index, one.term, one.entries), (10, 3, count))

    def test_all_kinds_in_any_order(self) -> None:
        """Two producers, markers, the log's own, entries of nobody, digits that do not follow; any sizes."""
        rng = random.Random(3)
        for _ in range(200):
            bodies, channels, size = list[bytes](), list[int](), rng.choice((0, 16))
            while len(channels) < 5 or rng.random() < 0.8:
                count = rng.choice((1, 2, 80))
                kind = rng.randrange(6)
                if kind < 2:
                    more = slot_channels(kind + 1, rng.randrange(256), count)
                elif kind == 2:
                    more = [HIDDEN | one for one in slot_channels(1, rng.randrange(256), count)]
                elif kind == 3:
                    more = [TERM_START_CHANNEL]
                else:
                    more = [0] * count
                channels += more
                bodies += [bytes([rng.randrange(256)]) * (size or rng.randrange(9)) for _ in more]
            self.assertAlike(bodies, channels)

    def test_of_java_nothing_is_marked(self) -> None:
        """A record without a chain checksum, with any channel."""
        layout = packed([b"a", encode_time_entry(7)], [slot_channels(1, 0, 1)[0], TIME_CHANNEL])
        records = bytearray(layout.records)
        for at in (0, 49):
            records[at + 36 : at + 40] = bytes(4)
        batch = EntryBatch(first_index=10, count=2, term=3, records=bytes(records))
        self.assertEqual(marks_in(batch), ())
        self.assertEqual(len(marks_in(batch_of(layout, 2))), 2)
