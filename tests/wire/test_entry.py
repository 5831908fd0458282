# -*- test-case-name: tests.wire.test_entry -*-
"""Records of entries, the numbers before them, and how declarations become structs."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable

import attrs
from construct import Bytes, Int8ub, Int16sb, Int32sb, Int32sl, StreamError, Struct
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from protocols.wire.errors import WireError
from protocols.wire.layout import dtype_of, struct_of, struct_of_some
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.bounds import INDEX_MAX, POSITION_MAX
from protocols.wire.ledger.entry import (
    BLANK,
    BLANK_DECLARATION,
    ENTRY_HEADER,
    ENTRY_HEADER_DECLARATION,
    INDEX_UNIT,
    INDEX_UNIT_DECLARATION,
    EntryHeader,
    bodies_of,
    decode_header,
    encode_header,
    iterate_records,
    pack_record,
)
from protocols.wire.ledger.record_checks import check_any_number, check_records
from tests.wire.golden import HELLO
from tests.wire.values import batches, bodies, house, ints, longs

#: Index 0, term 0, position 0, body C{a}, as Java writes it: no checksums.
JAVA_RECORD = bytes.fromhex(
    "00000001" "00000031" "0000000000000000" "0000000000000000" "0000000000000000"
    "00000000" "00000000" "00000000" "00000001" "61"
)


def three(first_index: int = 4) -> EntryBatch:
    """Three entries of one term."""
    records, pos, crc = b"", 100, 0
    for index in range(first_index, first_index + 3):
        record, crc = pack_record(b"x" * index, index=index, term=2, pos=pos, previous_chain_crc=crc)
        records += record
        pos += len(record)
    return EntryBatch(first_index=first_index, count=3, term=2, records=records)


class RecordTests(SynchronousTestCase):
    """One record."""

    def test_java_record(self) -> None:
        """The header of a record that Java wrote."""
        header = decode_header(JAVA_RECORD)
        self.assertEqual(
            header,
            EntryHeader(
                magic=1, size=49, index=0, term=0, pos=0, channel=0, chain_crc=0, body_crc=0, body_length=1
            ),
        )
        self.assertEqual(encode_header(header) + b"a", JAVA_RECORD)

    @house
    @given(bodies, st.integers(0, 1 << 62), st.integers(0, 1 << 62), st.integers(0, 1 << 62), ints)
    def test_pack_record(self, body: bytes, index: int, term: int, pos: int, previous: int) -> None:
        """The packed record has the given values, and its checksums are those of the definition."""
        record, chain = pack_record(body, index=index, term=term, pos=pos, previous_chain_crc=previous)
        header = decode_header(record)
        self.assertEqual((header.magic, header.size, header.body_length), (1, 48 + len(body), len(body)))
        self.assertEqual((header.index, header.term, header.pos, header.channel), (index, term, pos, 0))
        self.assertEqual(record[48:], body)
        self.assertEqual(header.body_crc & 0xFFFFFFFF, zlib.crc32(body))
        without = encode_header(attrs.evolve(header, chain_crc=0))
        self.assertEqual(header.chain_crc & 0xFFFFFFFF, zlib.crc32(struct.pack(">i", previous) + without))
        self.assertEqual(chain, header.chain_crc)

    def test_header_too_short(self) -> None:
        """A truncated header is not a header, wherever it starts."""
        for length in range(48):
            self.assertRaises(WireError, decode_header, JAVA_RECORD[:length])
            self.assertRaises(WireError, decode_header, b"12" + JAVA_RECORD[:length], 2)


class TwinTests(SynchronousTestCase):
    """The derived structs and the construct declarations are the same format."""

    def check_twins(
        self, declaration: Struct, derived: struct.Struct, numbers: Callable[[str], st.SearchStrategy[int]]
    ) -> None:
        """Equal on generated values and on every truncation."""
        names = [subcon.name for subcon in declaration.subcons]

        @house
        @given(st.tuples(*(numbers(subcon.subcon.fmtstr[1:]) for subcon in declaration.subcons)))
        def compare(values: tuple[int, ...]) -> None:
            packed = derived.pack(*values)
            self.assertEqual(packed, declaration.build(dict(zip(names, values, strict=True))))
            parsed = declaration.parse(packed)
            self.assertEqual(tuple(parsed[name] for name in names), values)
            self.assertEqual(derived.unpack(packed), values)
            for length in range(len(packed)):
                self.assertRaises(struct.error, derived.unpack_from, packed[:length])
                self.assertRaises(StreamError, declaration.parse, packed[:length])

        compare()

    def test_entry_header(self) -> None:
        """48 bytes."""
        self.check_twins(ENTRY_HEADER_DECLARATION, ENTRY_HEADER, lambda kind: longs if kind == "q" else ints)

    def test_index_unit(self) -> None:
        """32 bytes."""
        self.check_twins(INDEX_UNIT_DECLARATION, INDEX_UNIT, lambda kind: longs if kind == "q" else ints)

    def test_blank(self) -> None:
        """8 bytes."""
        self.check_twins(BLANK_DECLARATION, BLANK, lambda kind: ints)

    def test_little_endian_is_refused(self) -> None:
        """Everything is big-endian here."""
        self.assertRaises(TypeError, struct_of, Struct("number" / Int32sl))

    def test_variable_size_is_refused(self) -> None:
        """Only numbers have a struct character."""
        self.assertRaises(TypeError, struct_of, Struct("raw" / Bytes(4)))

    def test_some_fields(self) -> None:
        """Only those that were named, at their places; the others are passed over."""
        declaration = Struct("one" / Int8ub, "two" / Int16sb, "four" / Int32sb)
        some = struct_of_some(declaration, "four", "one")
        self.assertEqual((some.size, some.unpack(b"\1\0\2\0\0\0\4")), (7, (1, 4)))
        self.assertEqual(struct_of_some(declaration, "two").unpack(b"\1\0\2\0\0\0\4"), (2,))
        self.assertRaises(AssertionError, struct_of_some, declaration, "three")
        self.assertRaises(TypeError, struct_of_some, Struct("raw" / Bytes(4)), "raw")

    def test_dtype(self) -> None:
        """Names, sizes and byte order as in the declaration."""
        self.assertEqual(
            dtype_of(Struct("one" / Int8ub, "two" / Int16sb, "four" / Int32sb)),
            [("one", "u1"), ("two", ">i2"), ("four", ">i4")],
        )
        self.assertEqual(
            dtype_of(INDEX_UNIT_DECLARATION),
            [("magic", ">i4"), ("pos", ">i8"), ("size", ">i4"), ("index", ">i8"), ("term", ">i8")],
        )


class BatchTests(SynchronousTestCase):
    """Many records, one after the other."""

    def refused(self, batch: EntryBatch, *words: str) -> None:
        """C{batch} does not pass, and the message says why."""
        error = self.assertRaises(WireError, check_records, batch)
        for word in words:
            self.assertIn(word, str(error))

    def changed(self, number: int, **fields: int) -> EntryBatch:
        """A sound batch with some fields of one header changed."""
        batch = three()
        at = sum(48 + length for length in (4, 5, 6)[:number])
        header = attrs.evolve(decode_header(batch.records, at), **fields)
        records = batch.records[:at] + encode_header(header) + batch.records[at + 48 :]
        return attrs.evolve(batch, records=records)

    def test_bodies(self) -> None:
        """Both ways to the bodies agree."""
        batch = three()
        self.assertEqual(bodies_of(batch), [b"xxxx", b"xxxxx", b"xxxxxx"])
        self.assertEqual([body for _, body in iterate_records(batch)], bodies_of(batch))
        self.assertEqual([header.index for header, _ in iterate_records(batch)], [4, 5, 6])
        self.assertEqual(bodies_of(HELLO), [b"hello"])

    @house
    @given(batches())
    def test_sound_batches_pass(self, batch: EntryBatch) -> None:
        """The check refuses nothing that is right."""
        check_records(batch)

    def test_every_truncation(self) -> None:
        """No cut of a batch is a batch, for any of the three readers."""
        batch = three()
        for length in range(len(batch.records)):
            cut = attrs.evolve(batch, records=batch.records[:length])
            self.refused(cut)
            self.assertRaises(WireError, bodies_of, cut)
            self.assertRaises(WireError, list, iterate_records(cut))

    def test_something_behind(self) -> None:
        """Records may not be followed by anything."""
        longer = attrs.evolve(three(), records=three().records + b"\0" * 60)
        self.refused(longer, "60 bytes after")
        self.assertRaises(WireError, bodies_of, longer)
        self.assertRaises(WireError, list, iterate_records(longer))

    def test_count(self) -> None:
        """A wrong count is noticed, an absurd one before anything is looped over."""
        self.refused(attrs.evolve(three(), count=2))
        self.refused(attrs.evolve(three(), count=4))
        self.refused(attrs.evolve(three(), count=0), "count=0")
        self.refused(attrs.evolve(three(), count=-1), "count=-1")
        self.refused(attrs.evolve(three(), count=(1 << 31) - 1), "too few")

    def test_sizes(self) -> None:
        """Size and length of the body are bounded, and agree."""
        self.refused(self.changed(1, size=52), "entry 5", "size=52")
        self.refused(self.changed(1, body_length=-1), "body_length=-1")
        self.refused(self.changed(1, body_length=-1, size=47), "body_length=-1")
        self.refused(self.changed(1, size=-5), "size=-5")
        self.refused(self.changed(2, size=1 << 30, body_length=(1 << 30) - 48), "entry 6")
        for batch in (self.changed(1, size=52), self.changed(1, body_length=-1, size=47)):
            self.assertRaises(WireError, bodies_of, batch)
            self.assertRaises(WireError, list, iterate_records(batch))

    def walked(self, records: bytes, count: int) -> None:
        """Both walkers refuse these records for what one of them says of itself, not for how they end."""
        batch = EntryBatch(first_index=0, count=count, term=0, records=records)
        for walk in (bodies_of, lambda batch: list(iterate_records(batch))):
            self.assertIn("entry 0: size=", str(self.assertRaises(WireError, walk, batch)))

    def test_walkers_bound_every_size(self) -> None:
        """Although everything else would add up."""
        sound = decode_header(JAVA_RECORD)
        # The length of the body disagrees.
        self.walked(encode_header(attrs.evolve(sound, body_length=0)) + b"a", 1)
        # A negative one, with which the next record begins before the end of this header.
        negative = encode_header(attrs.evolve(sound, size=47, body_length=-1))
        self.walked(negative[:47] + b"\xff" + JAVA_RECORD[1:], 2)
        # More than there is.
        self.walked(JAVA_RECORD[:-1], 1)

    def test_indexes(self) -> None:
        """Consecutive, from the first that the batch names, and none below 0."""
        self.refused(self.changed(1, index=6), "entry 6 where entry 5 belongs")
        self.refused(self.changed(2, index=5), "entry 5 where entry 6 belongs")
        self.refused(attrs.evolve(three(), first_index=3), "entry 4 where entry 3 belongs")
        self.refused(attrs.evolve(three(), first_index=-1), "first_index=-1")

    def test_terms(self) -> None:
        """Never falling, never negative, and the last one is the batch's."""
        self.refused(self.changed(1, term=1), "term=1, at least 2")
        self.refused(self.changed(0, term=-1), "term=-1")
        self.refused(self.changed(2, term=3), "term=2", "its last entry has 3")
        check_records(attrs.evolve(self.changed(2, term=3), term=3))

    def test_one_as_any_number(self) -> None:
        """A batch of one entry has a shorter check, with the result of the longer one."""
        sound = three().records[:52]

        def verdict(batch: EntryBatch, check: Callable[[EntryBatch], None] = check_records) -> str:
            try:
                check(batch)
            except WireError as error:
                return str(error)
            return ""

        numbers = (-1, 0, 3, 4, 5, 47, 48, 52, 53, INDEX_MAX + 1, POSITION_MAX + 1)
        names = ("size", "index", "term", "pos", "body_length")
        for name, number in ((name, number) for name in names for number in numbers):
            if name in ("size", "body_length") and number > 100:
                continue
            header = encode_header(attrs.evolve(decode_header(sound), **{name: number}))
            for first_index, term in ((4, 2), (number, 2), (4, number)):
                batch = EntryBatch(first_index=first_index, count=1, term=term, records=header + b"xxxx")
                for one in (batch, attrs.evolve(batch, records=header), attrs.evolve(batch, records=b"")):
                    expected = verdict(one, check_any_number)
                    self.assertEqual(verdict(one), expected, (name, number))
        check_records(EntryBatch(first_index=4, count=1, term=2, records=sound))
