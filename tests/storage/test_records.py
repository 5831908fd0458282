# -*- test-case-name: tests.storage.test_records -*-
"""Records are laid out as the specification says, and checked in every field."""

from __future__ import annotations

from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from dledger.storage.files.records import (
    DamagedRecord,
    Layout,
    Walk,
    check_batch,
    pack_bodies,
    record_fits,
    walk_records,
)
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.entry import ENTRY_HEADER, INDEX_UNIT, pack_record
from tests.storage.support import bare_record, batch_of, our_record

FILE = 1024
BODIES = st.lists(st.binary(max_size=300), min_size=1, max_size=30)


def twin(bodies: list[bytes], end_position: int, chain: int) -> tuple[list[bytes], dict[int, bytes]]:
    """The layout by the plain rule: records, and every byte written, by position."""
    records, written, pos = [], {}, end_position
    for index, body in enumerate(bodies, 5):
        size = 48 + len(body)
        room = FILE - pos % FILE
        if size + 8 > room:
            written[pos] = (-1).to_bytes(4, "big", signed=True) + room.to_bytes(4, "big")
            pos += room
        record, chain = pack_record(body, index=index, term=3, pos=pos, previous_chain_crc=chain)
        written[pos] = record
        records.append(record)
        pos += size
    return records, written


def spread(layout: Layout) -> dict[int, int]:
    """Byte by position."""
    return {pos + at: byte for pos, blob in layout.runs for at, byte in enumerate(blob)}


class PackTests(SynchronousTestCase):
    """A leader's batch."""

    @given(BODIES, st.integers(0, 1016), st.integers(-(2**31), 2**31 - 1))
    @settings(max_examples=150, deadline=None, derandomize=True)
    def test_as_the_plain_rule(self, bodies: list[bytes], end_position: int, chain: int) -> None:
        """The batch loop writes the bytes of the plain rule, and the follower's check agrees."""
        records, written = twin(bodies, end_position, chain)
        packed = pack_bodies(tuple(bodies), first_index=5, term=3, end_position=end_position,
                             previous_chain_crc=chain, file_size=FILE)
        flat = {pos + at: byte for pos, blob in written.items() for at, byte in enumerate(blob)}
        self.assertEqual(spread(packed), flat)
        self.assertEqual(packed.records, b"".join(records))
        checked = check_batch(batch_of(records), first_index=5, last_term=1, end_position=end_position,
                              previous_chain_crc=chain, file_size=FILE)
        self.assertEqual(checked, packed)
        units = list(INDEX_UNIT.iter_unpack(packed.units))
        self.assertEqual([unit[1] for unit in units], packed.positions)
        self.assertEqual([unit[3] for unit in units], list(range(5, 5 + len(bodies))))
        self.assertEqual([unit[2] for unit in units], [len(record) for record in records])
        for pos, blob in packed.runs:
            self.assertLessEqual(pos % FILE + len(blob), FILE, "a run crosses a file")

    def test_a_record_leaves_eight_bytes(self) -> None:
        """A record may leave exactly 8 bytes free, never fewer."""
        for size, end_position, position in (
            (FILE - 8, 0, 0), (FILE - 8, 8, FILE), (FILE - 15, 8, FILE), (FILE - 16, 8, 8),
        ):
            fits = pack_bodies((b"x" * (size - 48),), first_index=0, term=0, end_position=end_position,
                               previous_chain_crc=0, file_size=FILE)
            self.assertEqual(fits.positions, [position])

    def test_an_oversize_body_is_refused(self) -> None:
        """A body that no file, or no Java peer, can hold is refused."""
        for size, file_size in ((FILE - 55, FILE), (4 * 1024 * 1024 - 47, 1 << 30)):
            with self.assertRaises(DLedgerError) as caught:
                pack_bodies((b"", bytes(size)), first_index=0, term=0, end_position=0, previous_chain_crc=0,
                            file_size=file_size)
            self.assertIs(caught.exception.code, ResponseCode.DISK_ERROR)
        self.assertTrue(record_fits(4 * 1024 * 1024, 1 << 30))
        self.assertFalse(record_fits(4 * 1024 * 1024 + 1, 1 << 30))
        self.assertTrue(record_fits(FILE - 8, FILE))
        self.assertFalse(record_fits(FILE - 7, FILE))


class CheckTests(SynchronousTestCase):
    """A follower's check of what a leader sent."""

    def check(self, batch: EntryBatch, *, chain: int | None = 0, file_size: int = FILE) -> Layout:
        """Check after an entry 6 of term 2 that ends at 100."""
        return check_batch(batch, first_index=7, last_term=2, end_position=100, previous_chain_crc=chain,
                           file_size=file_size)

    def test_every_wrong_field_is_refused(self) -> None:
        """A wrong value in any field is refused as inconsistent."""
        good = our_record(b"hello", index=7, term=2, pos=100)
        self.check(batch_of([good]))
        fields = list(ENTRY_HEADER.unpack_from(good))
        for at, value in ((0, 2), (0, -1), (1, 54), (1, -1), (2, 8), (3, 1), (4, 101), (5, 1), (6, 5), (6, 0),
                          (7, 5), (8, 6), (8, -48)):
            wrong = list(fields)
            wrong[at] = value
            batch = EntryBatch(first_index=7, count=1, term=2, records=ENTRY_HEADER.pack(*wrong) + b"hello")
            with self.assertRaises(DLedgerError) as caught:
                self.check(batch)
            self.assertIs(caught.exception.code, ResponseCode.INCONSISTENT_STATE, f"field {at}={value}")

    def test_one_checksum_of_two(self) -> None:
        """A body's checksum beside no chain: somebody wiped the chain out, and perhaps the term before it."""
        fields = list(ENTRY_HEADER.unpack_from(our_record(b"hello", index=7, term=2, pos=100)))
        fields[6] = 0
        batch = EntryBatch(first_index=7, count=1, term=2, records=ENTRY_HEADER.pack(*fields) + b"hello")
        with self.assertRaises(DLedgerError) as refused:
            self.check(batch, chain=None)
        self.assertIn("the record has no chainCrc", str(refused.exception))
        at = Walk(index=7, position=100, term=2)
        with self.assertRaises(DamagedRecord) as damaged:
            walk_records(batch.records, at, max_count=1, one_term=False, size_max=900)
        self.assertIn("a bodyCrc without a chainCrc", str(damaged.exception))

    def test_chain_of_zero(self) -> None:
        """Once in four thousand million records the checksum is 0, which would say that there is none."""
        with mock.patch("dledger.storage.files.records.crc32", lambda *_: 0):
            layout = pack_bodies((b"hello",), first_index=7, term=2, end_position=100, previous_chain_crc=5,
                                 file_size=FILE)
            self.assertEqual(ENTRY_HEADER.unpack_from(layout.records)[6], 1)
            self.check(EntryBatch(first_index=7, count=1, term=2, records=layout.records), chain=5)
            walk = Walk(index=7, position=100, term=2, chain_crc=5)
            walk_records(layout.records, walk, max_count=1, one_term=False, size_max=900)
            self.assertEqual(walk.count, 1)

    def test_every_field_of_java(self) -> None:
        """Without checksums, too, a wrong value is refused (the body's bytes are nobody's to judge)."""
        good = bare_record(b"hello", index=7, term=2, pos=100)
        self.check(batch_of([good]))
        fields = list(ENTRY_HEADER.unpack_from(good))
        for at, value in ((0, 2), (0, 0), (0, -1), (1, 54), (1, 52), (1, 0), (2, 8), (2, 6), (3, 1), (4, 101),
                          (4, 1024), (8, 6), (8, 4), (8, -1)):
            wrong = list(fields)
            wrong[at] = value
            for tail in (b"hello", b"hello!"):
                batch = EntryBatch(first_index=7, count=1, term=2, records=ENTRY_HEADER.pack(*wrong) + tail)
                with self.assertRaises(DLedgerError, msg=f"field {at}={value}"):
                    self.check(batch)
                at_ = Walk(index=7, position=100, term=2, chain_crc=0)
                with self.assertRaises(DamagedRecord, msg=f"field {at}={value}"):
                    walk_records(batch.records, at_, max_count=1, one_term=False, size_max=900)
        negative = ENTRY_HEADER.pack(1, 43, 7, 2, 100, 0, 0, 0, -5)
        with self.assertRaises(DLedgerError):
            self.check(EntryBatch(first_index=7, count=1, term=2, records=negative))

    def test_every_flipped_bit_is_noticed(self) -> None:
        """With both checksums there, no flipped bit passes."""
        good = our_record(b"hello", index=7, term=2, pos=100, chain=99)
        self.check(batch_of([good]), chain=99)
        for bit in range(len(good) * 8):
            flipped = bytearray(good)
            flipped[bit // 8] ^= 1 << bit % 8
            batch = EntryBatch(first_index=7, count=1, term=2, records=bytes(flipped))
            with self.assertRaises(DLedgerError, msg=f"bit {bit}"):
                self.check(batch, chain=99)

    def test_every_truncation_is_refused(self) -> None:
        """A batch that is cut anywhere is refused, and so is one with bytes after it."""
        records = [our_record(b"ab", index=7, term=2, pos=100),
                   bare_record(b"", index=8, term=2, pos=150)]
        whole = batch_of(records).records
        for size in range(len(whole)):
            with self.assertRaises(DLedgerError):
                self.check(EntryBatch(first_index=7, count=2, term=2, records=whole[:size]))
        with self.assertRaises(DLedgerError):
            self.check(EntryBatch(first_index=7, count=2, term=2, records=whole + b"\0"))

    def test_java_records_pass_unchecked(self) -> None:
        """Zero checksums are not checked; several terms may stand in one batch."""
        layout = self.check(batch_of([bare_record(b"a", index=7, term=2, pos=100),
                                      bare_record(b"b", index=8, term=5, pos=149)]), chain=77)
        self.assertEqual(layout.terms, [(8, 5)])
        self.assertEqual(layout.chain_crc, 0)

    def test_chain_breaks_and_begins_again(self) -> None:
        """After a record without a chain the next one chains from 0."""
        bare = bare_record(b"a", index=7, term=2, pos=100)
        self.check(batch_of([bare, our_record(b"b", index=8, term=2, pos=149)]), chain=5)
        with self.assertRaises(DLedgerError):
            self.check(batch_of([bare, our_record(b"b", index=8, term=2, pos=149, chain=5)]), chain=5)
        self.check(batch_of([our_record(b"b", index=7, term=2, pos=100, chain=123)]), chain=None)

    def test_other_file_size(self) -> None:
        """Positions that follow from another file size are refused (W13)."""
        record = bare_record(bytes(500), index=7, term=2, pos=100)
        behind = bare_record(bytes(500), index=8, term=2, pos=648)
        with self.assertRaises(DLedgerError):
            self.check(batch_of([record, behind]))
        self.check(batch_of([record, behind]), file_size=2048)

    def test_an_oversize_record_is_refused(self) -> None:
        """A record that no file of ours can hold is refused before anything is written."""
        record = bare_record(bytes(FILE - 55), index=7, term=2, pos=FILE)
        with self.assertRaises(DLedgerError):
            self.check(batch_of([record]))


class WalkTests(SynchronousTestCase):
    """Walking over stored records."""

    RECORDS = (our_record(b"a", index=3, term=1, pos=10), bare_record(b"bb", index=4, term=2, pos=59),
               bare_record(b"", index=5, term=2, pos=109))

    def walk(self, data: bytes, **options: object) -> Walk:
        """Walk from entry 3 at 10."""
        at = Walk(index=3, position=10, chain_crc=0)
        values: dict[str, object] = {"max_count": 9, "one_term": False, "size_max": 900, **options}
        walk_records(data, at, **values)  # type: ignore[arg-type]
        return at

    def test_every_cut_ends_the_walk(self) -> None:
        """A record that is cut is not passed, and not called damaged."""
        data = b"".join(self.RECORDS)
        for size in range(len(data) + 1):
            whole = (size >= 49) + (size >= 99) + (size >= 147)
            self.assertEqual(self.walk(data[:size]).count, whole, size)

    def test_bounds_end_the_walk(self) -> None:
        """Count and term end the walk."""
        data = b"".join(self.RECORDS)
        self.assertEqual(self.walk(data, max_count=2).length, 99)
        self.assertEqual(self.walk(data, one_term=True).count, 1)
        at = self.walk(data)
        self.assertEqual((at.index, at.position, at.term, at.chain_crc), (6, 157, 2, 0))

    def test_every_damage_is_found(self) -> None:
        """Every flipped bit of a record with checksums is damage, at the right place."""
        data = b"".join(self.RECORDS)
        for bit in range(49 * 8):
            flipped = bytearray(data)
            flipped[bit // 8] ^= 1 << bit % 8
            with self.assertRaises(DamagedRecord, msg=f"bit {bit}") as caught:
                self.walk(bytes(flipped))
            self.assertEqual(caught.exception.position, 10)

    def test_a_falling_term_is_damage(self) -> None:
        """A term below the one before is damage."""
        data = bare_record(b"", index=3, term=4, pos=10) + bare_record(b"", index=4, term=3, pos=58)
        with self.assertRaises(DamagedRecord) as caught:
            self.walk(data)
        self.assertEqual(caught.exception.index, 4)
