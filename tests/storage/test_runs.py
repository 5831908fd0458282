# -*- test-case-name: tests.storage.test_runs -*-
"""Runs of equal records are checked at once, with the result of the check record by record."""

from __future__ import annotations

import random
from contextlib import nullcontext
from unittest import mock

import attrs
from twisted.trial.unittest import SynchronousTestCase

from dledger.storage.files import records
from dledger.storage.files.records import (
    DamagedRecord,
    Layout,
    Walk,
    chain_of,
    check_batch,
    pack_bodies,
    walk_records,
)
from dledger.storage.files.runs import check_run
from dledger.values.errors import DLedgerError
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.entry import ENTRY_HEADER, ENTRY_HEADER_SIZE
from protocols.wire.ledger.own.own_entries import CONFIGURATION_CHANNEL, HIDDEN
from protocols.wire.ledger.runs import RUN_MAX, RUN_MIN, run_at

FILE = 1 << 20
PREVIOUS = 77


def packed(bodies: list[bytes], *, term: int = 3, position: int = 500, previous: int = PREVIOUS) -> Layout:
    """Records from index 10 on."""
    return pack_bodies(bodies, first_index=10, term=term, end_position=position,
                       previous_chain_crc=previous, file_size=FILE)


def bare(data: bytes, size: int) -> bytes:
    """The same records without checksums, as Java writes them."""
    found = bytearray(data)
    for at in range(0, len(data), size):
        found[at + 36 : at + 44] = bytes(8)
    return bytes(found)


def rechained(data: bytearray, size: int, from_record: int) -> None:
    """Correct the C{chainCrc} of every record from that one on."""
    for at in range(from_record * size, len(data), size):
        before = ENTRY_HEADER.unpack_from(data, at - size)[6] if at else PREVIOUS
        fields = list(ENTRY_HEADER.unpack_from(data, at))
        fields[6] = chain_of(bytes(data[at : at + ENTRY_HEADER_SIZE]), before)
        ENTRY_HEADER.pack_into(data, at, *fields)


def walked(data: bytes, *, count: int, one_term: bool, chain_crc: int | None, is_slow: bool) -> object:
    """What a walk finds, where it stops, and why."""
    walk = Walk(index=10, position=500, term=2, chain_crc=chain_crc)
    units: list[bytes] = []
    what = ""
    with mock.patch.object(records, "run_at", lambda *_: (0, 0)) if is_slow else nullcontext():
        try:
            walk_records(data, walk, max_count=count, one_term=one_term, size_max=FILE, units=units)
        except DamagedRecord as error:
            what = str(error.args), error.is_chain_broken  # type: ignore[assignment]
    return attrs.astuple(walk), b"".join(units), what


def checked(data: bytes, *, count: int, chain_crc: int | None, is_slow: bool, position: int = 500) -> object:
    """What a follower makes of a batch."""
    batch = EntryBatch(first_index=10, count=count, term=3, records=data)
    slow = mock.patch.multiple(records, run_at=lambda *_: (0, 0), _one_record=lambda *_: None)
    with slow if is_slow else nullcontext():
        try:
            found = check_batch(batch, first_index=10, last_term=2, end_position=position,
                                previous_chain_crc=chain_crc, file_size=FILE)
        except DLedgerError as error:
            return str(error)
    return found


class TwinTests(SynchronousTestCase):
    """Fast and slow road, on the same bytes."""

    def assertAlike(self, data: bytes, count: int, what: object = "") -> None:
        """Both roads, with and without a known record before, find the same."""
        for chain_crc in (PREVIOUS, None, 5):
            for one_term in (True, False):
                fast, slow = (
                    walked(data, count=count, one_term=one_term, chain_crc=chain_crc, is_slow=is_slow)
                    for is_slow in (False, True)
                )
                self.assertEqual(fast, slow, what)
            fast, slow = (checked(data, count=count, chain_crc=chain_crc, is_slow=is_slow)
                          for is_slow in (False, True))
            self.assertEqual(fast, slow, what)

    def test_sound_runs_read_the_same(self) -> None:
        """Of many sizes and numbers, with checksums and without, cut anywhere near the end."""
        for body in (0, 1, 52, 300):
            for count in (1, RUN_MIN - 1, RUN_MIN, RUN_MIN + 1, 3 * RUN_MIN):
                data = packed([bytes([number]) * body for number in range(count)]).records
                for one in (data, bare(data, body + 48)):
                    self.assertAlike(one, count)
                    self.assertAlike(one, count + 1)
                    self.assertAlike(one, count - 1)
                    self.assertAlike(one[:-1], count)
                    self.assertAlike(one + bytes(100), count + 100)

    def test_one_wrong_record_is_noticed(self) -> None:
        """With any field wrong, under right checksums or not; with any bit wrong; at the end of a file."""
        for body in (b"", b"body"):
            sound = packed([body]).records
            for number in range(9):
                for value in (0, 1, 2, 4, len(sound), 500, CONFIGURATION_CHANNEL, HIDDEN + 257):
                    fields = list(ENTRY_HEADER.unpack_from(sound))
                    fields[number] = value
                    data = bytearray(ENTRY_HEADER.pack(*fields) + body)
                    self.assertAlike(bytes(data), 1, (number, value))
                    rechained(data, len(data), 0)
                    self.assertAlike(bytes(data), 1, (number, value))
            for bit in range(8 * len(sound)):
                data = bytearray(sound)
                data[bit // 8] ^= 1 << bit % 8
                self.assertAlike(bytes(data), 1, bit)
            for free in range(len(sound) + 10):
                for file_size in (FILE, 2 * FILE):
                    there = pack_bodies([body], first_index=10, term=3, end_position=FILE - free,
                                        previous_chain_crc=PREVIOUS, file_size=file_size)
                    roads = [checked(there.records, count=1, chain_crc=PREVIOUS, is_slow=is_slow,
                                     position=FILE - free) for is_slow in (False, True)]
                    self.assertEqual(*roads, (free, file_size))

    def test_longer_than_a_piece(self) -> None:
        """A walk takes piece after piece; a batch of this size goes record by record."""
        data = packed([b""] * (RUN_MAX + 100)).records
        self.assertAlike(data, RUN_MAX + 100)

    def test_all_wrong_alike(self) -> None:
        """All records of a run have one wrong field, under right checksums."""
        body, count = 9, RUN_MIN + 1
        size = body + 48
        sound = packed([bytes([number]) * body for number in range(count)]).records
        for field, value in ((0, 2), (1, size + 1), (1, size - 1), (3, 1), (8, body + 1), (8, body - 1)):
            data = bytearray(sound)
            for at in range(0, len(data), size):
                fields = list(ENTRY_HEADER.unpack_from(data, at))
                fields[field] = value
                ENTRY_HEADER.pack_into(data, at, *fields)
            rechained(data, size, 0)
            for one in (bytes(data), bare(bytes(data), size)):
                self.assertAlike(one, count, (field, value))
                found = check_run(one, 0, count=count, size=size, index=10, position=500, term_min=2,
                                  chain_crc=PREVIOUS)
                self.assertIsNone(found, (field, value))

    def test_every_damaged_byte(self) -> None:
        """Of a record in the middle, and of the first and the last."""
        for body, numbers in ((0, (0, 20, RUN_MIN)), (9, (7,))):
            count, size = RUN_MIN + 1, body + 48
            data = packed([bytes([number]) * body for number in range(count)]).records
            for kind in (data, bare(data, size)):
                for number in numbers:
                    for at in range(number * size, number * size + size):
                        damaged = bytearray(kind)
                        damaged[at] ^= 0x11
                        self.assertAlike(bytes(damaged), count, (body, number, at))

    def test_changed_and_chained_anew(self) -> None:
        """A field that the chain covers is another one, and the chain is right: the fields decide."""
        count = RUN_MIN + 4
        data = packed([b""] * count).records
        for field in (0, 1, 2, 3, 4, 5, 7, 8):
            for value in (0, 1, 2, 4, 48, 49, 1 << 20):
                changed = bytearray(data)
                fields = list(ENTRY_HEADER.unpack_from(changed, 9 * 48))
                fields[field] = value
                ENTRY_HEADER.pack_into(changed, 9 * 48, *fields)
                rechained(changed, 48, 9)
                self.assertAlike(bytes(changed), count, (field, value))

    def test_mixed_records_read_the_same(self) -> None:
        """Other sizes, terms, and Java's records in between, by chance."""
        rng = random.Random(5)
        for _ in range(200):
            bodies = [bytes(rng.choice((0, 0, 7))) for _ in range(rng.randrange(1, 200))]
            if rng.random() < 0.5:
                bodies.sort(key=len)
            first = packed(bodies)
            second = pack_bodies(
                [b""] * 80, first_index=10 + len(bodies), term=4, end_position=first.end_position,
                previous_chain_crc=first.chain_crc, file_size=FILE,
            )
            tail = bare(second.records, 48) if rng.random() < 0.5 else second.records
            self.assertAlike(first.records + tail, len(bodies) + 80)

    def test_runs_between_others(self) -> None:
        """Runs with single records between them, as producer entries are; sound, damaged, at a file's end."""
        for seed in range(60):
            rng = random.Random(seed)
            bodies: list[bytes] = []
            for _ in range(rng.randrange(1, 5)):
                bodies += [rng.randbytes(rng.randrange(200)) for _ in range(rng.choice((0, 1, 1, 2, 6)))]
                bodies += [rng.randbytes(52)] * rng.choice((0, 1, RUN_MIN - 1, RUN_MIN, 3 * RUN_MIN + 7))
            if not bodies:
                continue
            position = rng.choice((500, FILE - rng.randrange(8, 30_000)))
            layout = packed(bodies, position=position)
            data = bytearray(layout.records)
            if seed % 3 == 0:
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            count, found = len(bodies), bytes(data)
            fast, slow = (
                checked(found, count=count, chain_crc=PREVIOUS, is_slow=is_slow, position=position)
                for is_slow in (False, True)
            )
            self.assertEqual(fast, slow, seed)
            with mock.patch.object(records, "_batch_of_runs", lambda *_: None):
                plain = checked(found, count=count, chain_crc=PREVIOUS, is_slow=True, position=position)
            self.assertEqual(fast, plain, seed)
            if seed % 3:
                self.assertEqual(fast[0], layout.runs, seed)  # type: ignore[index]

    def test_end_of_a_file(self) -> None:
        """A batch that does not fit into the file is laid out with a blank."""
        for left in (0, 8, 47, 48, 60, RUN_MIN * 48, RUN_MIN * 48 + 8):
            position = FILE - left
            data = packed([b""] * RUN_MIN, position=position).records
            fast, slow = (checked(data, count=RUN_MIN, chain_crc=PREVIOUS, is_slow=is_slow, position=position)
                          for is_slow in (False, True))
            self.assertEqual(fast, slow, left)


class RunTests(SynchronousTestCase):
    """The fast road is taken."""

    def test_the_fast_road_is_taken(self) -> None:
        """By runs of one size, whole or in front of other records."""
        data = packed([b"x"] * 200 + [b"yy"] * 5).records
        count, size = run_at(data, 0, 1000)
        self.assertEqual((count, size), (200, 49))
        found = check_run(data, 0, count=count, size=size, index=10, position=500, term_min=3,
                          chain_crc=PREVIOUS)
        assert found is not None
        self.assertEqual((len(found.positions), found.term), (200, 3))

    def test_the_fast_road_is_not_taken(self) -> None:
        """Too few, too short, too long for the data."""
        data = packed([b"x"] * 200).records
        self.assertEqual(run_at(data, 0, RUN_MIN - 1), (0, 0))
        self.assertEqual(run_at(data[: RUN_MIN * 49 - 1], 0, 1000), (0, 0))
        self.assertEqual(run_at(b"", 0, 1000), (0, 0))
        self.assertEqual(run_at(bytes(5000), 0, 1000), (0, 0))
