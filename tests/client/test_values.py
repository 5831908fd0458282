# -*- test-case-name: tests.client.test_values -*-
"""Entries out of records, and nothing else out of anything else."""

from __future__ import annotations

from unittest import mock

import attrs
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from dledger.client import values
from dledger.client.errors import AppendFailed, UnknownOutcome
from dledger.client.values import Appended, Entry, entries_of
from protocols.wire.codes import ResponseCode
from protocols.wire.errors import WireError
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.entry import ENTRY_HEADER, iterate_records, pack_record
from protocols.wire.ledger.own.own_entries import TIME_CHANNEL
from protocols.wire.ledger.own.time_entries import encode_time_entry
from tests.wire.marked import marked


def batch_of(*bodies: bytes, first: int = 5) -> EntryBatch:
    """A sound batch."""
    records, pos, chain = b"", 100, 0
    for number, body in enumerate(bodies):
        record, chain = pack_record(body, index=first + number, term=3, pos=pos, previous_chain_crc=chain)
        records += record
        pos += len(record)
    return EntryBatch(first_index=first, count=len(bodies), term=3, records=records)


class EntriesTests(SynchronousTestCase):
    """L{entries_of}."""

    def test_entries_come_from_records(self) -> None:
        """Every field comes from the record."""
        self.assertEqual(
            entries_of(batch_of(b"ab", b"")),
            [Entry(index=5, term=3, pos=100, body=b"ab"), Entry(index=6, term=3, pos=150, body=b"")],
        )

    @settings(derandomize=True, max_examples=50, deadline=None)
    @given(st.lists(st.binary(max_size=20), min_size=1, max_size=5))
    def test_both_readers_find_the_same(self, bodies: list[bytes]) -> None:
        """The same as the slow reader of the wire package finds."""
        batch = batch_of(*bodies)
        slow = [(header.index, header.term, header.pos, body) for header, body in iterate_records(batch)]
        fast = [(entry.index, entry.term, entry.pos, entry.body) for entry in entries_of(batch)]
        self.assertEqual(fast, slow)

    def test_every_truncation_is_noticed(self) -> None:
        """Every cut is noticed."""
        batch = batch_of(b"ab", b"cde")
        for length in range(len(batch.records)):
            with self.assertRaises(WireError, msg=f"{length}"):
                entries_of(attrs.evolve(batch, records=batch.records[:length]))

    def test_bytes_after_records_are_refused(self) -> None:
        """More than the records is refused."""
        batch = batch_of(b"ab")
        self.assertRaises(WireError, entries_of, attrs.evolve(batch, records=batch.records + b"x"))

    def test_index_out_of_line(self) -> None:
        """A record of another index is refused."""
        self.assertRaises(WireError, entries_of, attrs.evolve(batch_of(b"ab"), first_index=6))

    def test_a_wrong_checksum_is_noticed(self) -> None:
        """A body that is not what its checksum says is refused; no checksum, no question."""
        batch = batch_of(b"ab")
        damaged = batch.records[:-1] + b"x"
        self.assertRaises(WireError, entries_of, attrs.evolve(batch, records=damaged))
        fields = list(ENTRY_HEADER.unpack_from(damaged))
        fields[7] = 0
        entry = entries_of(attrs.evolve(batch, records=ENTRY_HEADER.pack(*fields) + b"ax"))[0]
        self.assertEqual(entry.body, b"ax")

    def test_length_that_lies(self) -> None:
        """A negative or wrong body length is refused before it is used."""
        batch = batch_of(b"ab")
        for length in (-1, 1, 3, 1 << 30):
            fields = list(ENTRY_HEADER.unpack_from(batch.records))
            fields[8] = length
            records = ENTRY_HEADER.pack(*fields) + b"ab"
            self.assertRaises(WireError, entries_of, attrs.evolve(batch, records=records))


class TimeTests(SynchronousTestCase):
    """The times of entries in a batch."""

    def times(self, *entries: tuple[int, int | None], **before: int) -> list[int | None]:
        """
        Of a batch: terms, and times of time entries.

        @param before: of the entry before.
        """
        records = b""
        for index, (term, time_ms) in enumerate(entries):
            body = b"x" if time_ms is None else encode_time_entry(time_ms)
            record = pack_record(body, index=index, term=term, pos=0, previous_chain_crc=0)[0]
            channel = TIME_CHANNEL if time_ms is not None else 0
            records += marked(record, channel)
        batch = EntryBatch(first_index=0, count=len(entries), term=entries[-1][0], records=records)
        return [entry.time_ms for entry in entries_of(batch, **before)]

    def test_times_count_in_their_term(self) -> None:
        """A time is that of the time entry before, in the same term; a later term has none before its own."""
        self.assertEqual(
            self.times((1, None), (1, 500), (1, None), (2, None), (2, 700), (2, None), (2, 701), (2, None)),
            [None, 500, 500, None, 700, 700, 701, 701],
        )

    def test_the_entry_before_counts(self) -> None:
        """The entry before counts, if it has the same term."""
        self.assertEqual(self.times((1, None), (2, None), term_before=1, time_before=7), [7, None])
        self.assertEqual(self.times((1, None), term_before=0, time_before=7), [None])
        self.assertEqual(self.times((1, None), time_before=7), [None])

    def test_a_damaged_time_says_nothing(self) -> None:
        """A time entry of a later version gives no time, rather than the one before."""
        with mock.patch.object(values, "decode_time_entry", side_effect=WireError("later")):
            self.assertEqual(self.times((1, 500), (1, None), term_before=1, time_before=7), [None, None])


class ResultTests(SynchronousTestCase):
    """Results and errors."""

    def test_the_last_index_is_inclusive(self) -> None:
        """Inclusive."""
        self.assertEqual(Appended(index=7, term=1, count=3).last_index, 9)

    def test_errors_carry_counts(self) -> None:
        """And facts, apart from them."""
        for kind in (AppendFailed, UnknownOutcome):
            error = kind(ResponseCode.DISK_FULL, failed=1, unknown=2, reason="no room")
            self.assertEqual((error.failed, error.unknown, error.appended), (1, 2, ()))
            self.assertEqual(error.facts, {"reason": "no room"})
