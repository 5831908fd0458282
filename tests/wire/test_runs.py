# -*- test-case-name: tests.wire.test_runs -*-
"""Runs of records of one size are found and checked at once, with the verdict of the check of each record."""

from __future__ import annotations

import random
from unittest import mock

import attrs
from twisted.trial.unittest import SynchronousTestCase

from protocols.wire.errors import WireError
from protocols.wire.ledger import record_checks
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.entry import CHANNEL_AT, ENTRY_HEADER, ENTRY_HEADER_SIZE, pack_record
from protocols.wire.ledger.record_checks import check_records
from protocols.wire.ledger.runs import (
    CRC_AT,
    RUN_MAX,
    RUN_MIN,
    bodies_of_run,
    checksums,
    column,
    has_hidden,
    is_run,
    run_at,
)


def batch_of(bodies: list[bytes], *, first_index: int = 7, term: int = 3, pos: int = 900) -> EntryBatch:
    """Records of these bodies, of one term."""
    records, crc = [], 0
    for index, body in enumerate(bodies, first_index):
        record, crc = pack_record(body, index=index, term=term, pos=pos, previous_chain_crc=crc)
        records.append(record)
        pos += len(record)
    return EntryBatch(first_index=first_index, count=len(bodies), term=term, records=b"".join(records))


def joined(*batches: EntryBatch) -> EntryBatch:
    """Batches that follow each other, as one."""
    return EntryBatch(
        first_index=batches[0].first_index, count=sum(batch.count for batch in batches),
        term=batches[-1].term, records=b"".join(batch.records for batch in batches),
    )


def verdict(batch: EntryBatch, *, is_slow: bool = False) -> str:
    """The error of the check; empty: it is sound."""
    slow = mock.patch.object(record_checks, "run_at", lambda *_: (0, 0))
    try:
        if is_slow:
            with slow:
                check_records(batch)
        else:
            check_records(batch)
    except WireError as error:
        return str(error)
    return ""


class RunTests(SynchronousTestCase):
    """A run, and the parts of it."""

    def test_run_is_found_up_to_the_first_other_size(self) -> None:
        """And never a longer one than L{RUN_MAX}, nor one that is too short to be worth it."""
        run = batch_of([b"four"] * RUN_MIN).records
        size = ENTRY_HEADER_SIZE + 4
        self.assertEqual(run_at(run, 0, RUN_MIN), (RUN_MIN, size))
        self.assertEqual(run_at(run, 0, RUN_MIN - 1), (0, 0))
        self.assertEqual(run_at(run[:-1], 0, RUN_MIN), (0, 0))
        self.assertEqual(run_at(run, size, RUN_MIN), (0, 0))
        longer = batch_of([b"four"] * (RUN_MIN + 3) + [b"12345"] * RUN_MIN).records
        self.assertEqual(run_at(longer, 0, 1000), (RUN_MIN + 3, size))
        self.assertEqual(run_at(batch_of([b""] * (RUN_MAX + 1)).records, 0, RUN_MAX + 1), (RUN_MAX, 48))

    def test_size_below_a_header_is_no_run(self) -> None:
        """The size comes from elsewhere: it may be 0, or negative."""
        for size in (0, -1, 47):
            record = ENTRY_HEADER.pack(1, size, 7, 3, 0, 0, 0, 0, 0)
            self.assertEqual(run_at(record * RUN_MIN, 0, RUN_MIN), (0, 0))

    def test_parts_of_a_run_are_those_of_its_records(self) -> None:
        """Bodies and checksums, in order; a channel is noticed in any record."""
        bodies = [b"%04d" % number for number in range(RUN_MIN)]
        batch = batch_of(bodies)
        size = ENTRY_HEADER_SIZE + 4
        self.assertTrue(is_run(batch.records, count=RUN_MIN, size=size, index=7))
        self.assertEqual(bodies_of_run(batch.records, size), bodies)
        self.assertEqual(column(batch.records, CRC_AT, size), checksums(bodies))
        self.assertFalse(has_hidden(batch.records, size))
        for number in (0, 5, RUN_MIN - 1):
            for first_byte, hides in ((0x3F, False), (0x40, True), (0x80, True), (0xFF, True)):
                marked = bytearray(batch.records)
                marked[number * size + CHANNEL_AT] = first_byte
                self.assertIs(has_hidden(bytes(marked), size), hides)

    def test_index_that_leaves_the_numbers_is_no_run(self) -> None:
        """The first index comes from elsewhere, too: it may be the highest number of eight bytes."""
        records = batch_of([b"four"] * RUN_MIN).records
        for index in (-1, (1 << 63) - 1, (1 << 63) - RUN_MIN + 1):
            self.assertFalse(is_run(records, count=RUN_MIN, size=ENTRY_HEADER_SIZE + 4, index=index))


class TwinTests(SynchronousTestCase):
    """The check of a batch has one verdict, with runs and without."""

    def test_sound_batches_pass(self) -> None:
        """Of one size, of several, with single records between runs, over two terms."""
        run = [b"four"] * (2 * RUN_MIN)
        later = batch_of(run, first_index=7 + 2 * RUN_MIN, term=5)
        for batch in (
            batch_of(run), batch_of([*run, b"1", *run]), batch_of([b"1", b"22", *run, b"333"]),
            batch_of([bytes(number % 5) for number in range(300)]), joined(batch_of(run), later),
        ):
            self.assertEqual(verdict(batch), "")
            self.assertEqual(verdict(batch, is_slow=True), "")

    def test_any_changed_field_has_the_same_verdict(self) -> None:
        """In the first, the last and any other record, also at the edge of a run."""
        bodies = [b"four"] * RUN_MIN + [b"1"] + [b"four"] * RUN_MIN
        sound = batch_of(bodies)
        offsets = [0]
        for body in bodies[:-1]:
            offsets.append(offsets[-1] + ENTRY_HEADER_SIZE + len(body))
        values = (-1, 0, 1, 2, 4, 48, 52, 1 << 30)
        refused = 0
        for record in (0, 1, RUN_MIN - 1, RUN_MIN, RUN_MIN + 1, 2 * RUN_MIN):
            for field in range(9):
                for value in values:
                    data = bytearray(sound.records)
                    fields = list(ENTRY_HEADER.unpack_from(data, offsets[record]))
                    fields[field] = value
                    ENTRY_HEADER.pack_into(data, offsets[record], *fields)
                    batch = attrs.evolve(sound, records=bytes(data))
                    self.assertEqual(verdict(batch), verdict(batch, is_slow=True), (record, field, value))
                    refused += bool(verdict(batch))
        self.assertGreater(refused, 100)

    def test_falling_term_between_runs_is_refused(self) -> None:
        """The term of a run is compared with that of the record before it."""
        run = [b"four"] * RUN_MIN
        batch = joined(batch_of(run, term=5), batch_of(run, first_index=7 + RUN_MIN, term=4))
        self.assertIn("term=4, at least 5", verdict(batch))
        self.assertEqual(verdict(batch), verdict(batch, is_slow=True))

    def test_numbers_of_the_batch_have_the_same_verdict(self) -> None:
        """Its first index, its count and its term; bytes that miss or are too many."""
        sound = batch_of([b"four"] * (RUN_MIN + 2))
        rng = random.Random(5)
        for _ in range(300):
            batch = attrs.evolve(
                sound, first_index=rng.choice([7, 7, 6, 0, -1, (1 << 63) - 1]),
                count=rng.choice([sound.count, RUN_MIN, RUN_MIN + 1, sound.count + 1, 0, 1 << 40]),
                term=rng.choice([3, 3, 2, 4, -1]),
                records=rng.choice([sound.records, sound.records[:-1], sound.records + b"x", b""]),
            )
            self.assertEqual(verdict(batch), verdict(batch, is_slow=True))
