# -*- test-case-name: tests.wire.test_rocketmq_message -*-
"""Records of RocketMQ messages: bytes of a broker, every truncation, and what is said about damage."""

from __future__ import annotations

import random
import struct
import tracemalloc
import zlib
from typing import Any

import attrs
from construct import ConstructError, StreamError, Struct
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from protocols.wire.errors import WireError
from protocols.wire.rocketmq.layout import (
    BATCH_ITEM,
    BATCH_ITEM_DECLARATION,
    HEAD,
    HEAD_DECLARATION,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    MESSAGE_DECLARATION,
    MIDDLE_DECLARATIONS,
    MIDDLES,
    PROPERTIES_LENGTH,
    PROPERTIES_LENGTH_DECLARATION,
    START,
    START_DECLARATION,
    TOPIC_LENGTH_DECLARATIONS,
    TOPIC_LENGTHS,
    SysFlag,
)
from protocols.wire.rocketmq.message import (
    BatchItem,
    Host,
    Message,
    body_crc_of,
    check_message,
    decode_batch,
    decode_entry_body,
    decode_message,
    decode_properties,
    decode_start,
    encode_batch,
    encode_message,
    encode_properties,
    java_hash,
    make_message,
    plain_body,
    tags_code_of,
)
from tests.wire.values import house, ints, longs

#: Topic T1, queue 0, tag A, key k1, as a RocketMQ 4.9.8 broker stored it.
BROKER_RECORD = bytes.fromhex(
    "0000007b daa320a7 3610a686 00000000 00000000 0000000000000000 0000000000000000 00000000"
    "000001a1fba34b5a 7f000001 0000cc30 000001a1fba34b91 7f000001 000051af 00000000 0000000000000000"
    "00000005 68656c6c6f 02 5431 0019 4b455953016b3102 434c555354455201433102 5441475301 41"
)

V4, V6 = Host.of("10.0.0.1", 10911), Host.of("2001:db8::7", 10911)
PLAIN = make_message("T1", b"hello", properties={"KEYS": "k1 k2", "TAGS": "A"}, born_host=V4, store_host=V4)
#: One of each shape.
SHAPES = (
    PLAIN,
    attrs.evolve(PLAIN, version=2),
    make_message("t" * 200, b"", born_host=V6, store_host=V4, queue_id=7),
    make_message("größe", b"x" * 300, born_host=V4, store_host=V6, reconsume_times=3),
    make_message("", b"\0", born_host=V6, store_host=V6, physical_offset=1 << 40, sys_flag=SysFlag.COMMIT),
)


class GoldenTests(SynchronousTestCase):
    """What a real broker wrote."""

    def test_values(self) -> None:
        """Every field."""
        message = decode_message(BROKER_RECORD)
        self.assertEqual(
            message,
            Message(
                topic="T1", body=b"hello", properties_data=b"KEYS\x01k1\x02CLUSTER\x01C1\x02TAGS\x01A",
                version=1, body_crc=0x3610A686, queue_id=0, flag=0, queue_offset=0, physical_offset=0,
                sys_flag=0, born_timestamp=0x1A1FBA34B5A, born_host=Host(b"\x7f\0\0\1", 52272),
                store_timestamp=0x1A1FBA34B91, store_host=Host(b"\x7f\0\0\1", 20911), reconsume_times=0,
                prepared_transaction_offset=0,
            ),
        )
        self.assertEqual((message.keys, message.tags, message.tags_code), (("k1",), "A", 65))
        self.assertEqual(message.properties, {"KEYS": "k1", "CLUSTER": "C1", "TAGS": "A"})
        self.assertIsNone(message.unique_key)
        self.assertEqual(str(message.born_host), "127.0.0.1:52272")

    def test_bytes(self) -> None:
        """Written again they are the same; the size is known before."""
        message = decode_message(BROKER_RECORD)
        self.assertEqual(encode_message(message), BROKER_RECORD)
        self.assertEqual((message.size, check_message(BROKER_RECORD)), (123, 123))

    def test_message_id(self) -> None:
        """As the broker answered it to the producer."""
        self.assertEqual(decode_message(BROKER_RECORD).message_id, "7F000001000051AF0000000000000000")

    def test_made(self) -> None:
        """C{make_message} comes to the same checksum, version and flags."""
        message = decode_message(BROKER_RECORD)
        fields = {
            field.name: getattr(message, field.name)
            for field in attrs.fields(Message)
            if field.name not in ("topic", "body", "body_crc")
        }
        self.assertEqual(make_message("T1", b"hello", **fields), message)

    def test_checksum_has_31_bits(self) -> None:
        """The highest bit of the CRC-32 is not stored."""
        body = next(b"%d" % n for n in range(100) if zlib.crc32(b"%d" % n) & 0x80000000)
        self.assertEqual(body_crc_of(body), zlib.crc32(body) - 0x80000000)
        self.assertEqual(body_crc_of(b""), 0)


class TwinTests(SynchronousTestCase):
    """The derived structs, and the reader by hand, are the declared format."""

    def test_fixed_parts(self) -> None:
        """Equal on generated numbers and on every truncation."""
        pairs = [(START_DECLARATION, START), (HEAD_DECLARATION, HEAD), (BATCH_ITEM_DECLARATION, BATCH_ITEM),
                 (PROPERTIES_LENGTH_DECLARATION, PROPERTIES_LENGTH),
                 *((MIDDLE_DECLARATIONS[key], MIDDLES[key]) for key in MIDDLES),
                 *((TOPIC_LENGTH_DECLARATIONS[key], TOPIC_LENGTHS[key]) for key in (1, 2))]
        rng = random.Random(1)
        for declaration, derived in pairs:
            for _ in range(20):
                self.check_twins(declaration, derived, rng.randbytes(derived.size))

    def check_twins(self, declaration: Struct, derived: struct.Struct, data: bytes) -> None:
        """One piece of data of the right length."""
        parsed = declaration.parse(data)
        self.assertEqual(tuple(parsed[field.name] for field in declaration.subcons), derived.unpack(data))
        self.assertEqual(declaration.build(parsed), data)
        self.assertEqual(derived.pack(*derived.unpack(data)), data)
        for length in range(len(data)):
            self.assertRaises(struct.error, derived.unpack_from, data[:length])
            self.assertRaises(StreamError, declaration.parse, data[:length])

    @house
    @given(st.data())
    def test_whole_record(self, data: Any) -> None:
        """A generated message: construct reads what we write, and every truncation is refused by both."""
        message = data.draw(messages())
        record = encode_message(message)
        parsed = MESSAGE_DECLARATION.parse(record)
        self.assertEqual(MESSAGE_DECLARATION.build(parsed), record)
        self.assertEqual(
            (parsed.head.size, parsed.head.queue_offset, parsed.body, parsed.topic, parsed.properties),
            (len(record), message.queue_offset, message.body, message.topic.encode(),
             message.properties_data),
        )
        middle = parsed.middle
        self.assertEqual(
            (middle.store_timestamp, middle.prepared_transaction_offset, middle.store_port),
            (message.store_timestamp, message.prepared_transaction_offset, message.store_host.port),
        )
        self.assertEqual(decode_message(record), message)
        for length in range(len(record)):
            self.assertRaises(ConstructError, MESSAGE_DECLARATION.parse, record[:length])
            self.assertRaises(WireError, decode_message, record[:length])


@st.composite
def messages(draw: Any) -> Message:
    """Sound messages of every shape."""
    hosts = st.builds(Host, st.binary(min_size=4, max_size=4) | st.binary(min_size=16, max_size=16), ints)
    return make_message(
        draw(st.text(st.characters(exclude_categories=["Cs"]), max_size=12)),
        draw(st.binary(max_size=40)),
        properties_data=draw(st.binary(max_size=20)),
        version=draw(st.sampled_from((1, 2))),
        queue_id=draw(ints), flag=draw(ints), queue_offset=draw(longs), physical_offset=draw(longs),
        sys_flag=draw(ints), born_timestamp=draw(longs), born_host=draw(hosts), store_timestamp=draw(longs),
        store_host=draw(hosts), reconsume_times=draw(ints), prepared_transaction_offset=draw(longs),
    )


class ShapeTests(SynchronousTestCase):
    """IPv4 and IPv6, versions 1 and 2, empty parts."""

    def test_there_and_back(self) -> None:
        """After others, before others, in any buffer."""
        for message in SHAPES:
            record = encode_message(message)
            self.assertEqual(len(record), message.size)
            for data in (record, memoryview(bytearray(record))):
                self.assertEqual(decode_message(data), message)
            self.assertEqual(decode_message(b"ab" + record + b"cd", 2), message)
            self.assertEqual(check_message(b"ab" + record + b"cd", 2), message.size)

    def test_every_truncation(self) -> None:
        """Refused, wherever the record starts."""
        for message in SHAPES:
            record = encode_message(message)
            for length in range(len(record)):
                self.assertRaises(WireError, decode_message, record[:length])
                self.assertRaises(WireError, check_message, b"ab" + record[:length], 2)

    def test_flags_follow_addresses(self) -> None:
        """C{make_message} sets the fields that the broker would set; a contradiction cannot be written."""
        self.assertEqual([message.sys_flag & 0x30 for message in SHAPES], [0, 0, 0x10, 0x20, 0x30])
        wrong = attrs.evolve(PLAIN, sys_flag=0x10)
        self.assertRaises(ValueError, encode_message, wrong)

    def test_version_follows_topic(self) -> None:
        """A topic of more than 127 bytes needs version 2; 32767 are the end."""
        self.assertEqual([message.version for message in SHAPES], [1, 2, 2, 1, 1])
        long = attrs.evolve(PLAIN, topic="t" * 128)
        self.assertIn("127 are allowed", str(self.assertRaises(ValueError, encode_message, long)))
        self.assertRaises(ValueError, make_message, "t" * 32768, b"")

    def test_hosts(self) -> None:
        """Text of both kinds; an identifier of 28 bytes with IPv6."""
        self.assertEqual((str(V4), str(V6)), ("10.0.0.1:10911", "[2001:db8::7]:10911"))
        self.assertEqual(len(SHAPES[3].message_id), 56)
        self.assertRaises(ValueError, Host.of, "localhost", 1)


class DamageTests(SynchronousTestCase):
    """What is wrong is said."""

    def refused(self, record: bytes, *words: str, **options: Any) -> None:
        """C{decode_message} raises, with these words in the message; so does C{check_message}."""
        error = self.assertRaises(WireError, decode_message, record, **options)
        for word in words:
            self.assertIn(word, str(error))

    def with_number(self, at: int, form: str, value: int) -> bytes:
        """The broker's record with another number."""
        record = bytearray(BROKER_RECORD)
        struct.pack_into(form, record, at, value)
        return bytes(record)

    def test_magic(self) -> None:
        """Both that are known are named; a blank is none."""
        self.refused(self.with_number(4, ">i", 1), "magic=00000001", "daa320a7", "daa320ab")
        self.refused(self.with_number(4, ">i", MAGIC_BLANK), "magic=cbd43194")

    def test_size(self) -> None:
        """Too small, negative, or more than there is."""
        for size in (0, 90, -1, 124, 0x7FFFFFFF, -(1 << 31)):
            self.refused(self.with_number(0, ">i", size), f"size={size} outside 91..123")

    def test_size_that_is_smaller(self) -> None:
        """The lengths no longer add up."""
        self.refused(self.with_number(0, ">i", 122), "propertiesLength=25", "leaves 24")

    def test_lengths(self) -> None:
        """Of body, topic and properties."""
        for length in (-1, 33, 0x7FFFFFFF, -(1 << 31)):
            self.refused(self.with_number(84, ">i", length), f"bodyLength={length} outside 0..32")
        for length in (-1, 28, 127):
            self.refused(self.with_number(93, ">b", length), f"topicLength={length} outside 0..27")
        for length in (-1, 0, 24, 26, 32767):
            self.refused(self.with_number(96, ">h", length), f"propertiesLength={length}, but", "leaves 25")

    def test_body(self) -> None:
        """The checksum; it can be left alone."""
        record = BROKER_RECORD.replace(b"hello", b"hallo")
        self.refused(record, "bodyCRC=3610a686", "its body has")
        self.assertRaises(WireError, check_message, record)
        self.assertEqual(decode_message(record, verify_body=False).body, b"hallo")
        self.assertEqual(check_message(record, verify_body=False), 123)

    def test_checksum_of_an_empty_body(self) -> None:
        """Java does not look at it."""
        record = bytearray(encode_message(make_message("t", b"")))
        record[8:12] = b"\0\0\0\x07"
        self.assertEqual(decode_message(bytes(record)).body_crc, 7)

    def test_addresses_that_do_not_fit(self) -> None:
        """The flags promise 24 bytes more than there are."""
        record = bytearray(encode_message(make_message("", b"")))
        record[36:40] = b"\0\0\0\x30"
        self.refused(bytes(record), "too small for its addresses", "0x30")

    def test_topic(self) -> None:
        """Java's recovery does not look at its bytes, so the check passes what cannot be decoded."""
        record = BROKER_RECORD.replace(b"T1", b"\xff1")
        self.refused(record, "topic is not UTF-8")
        self.assertEqual(check_message(record), 123)

    def test_offsets(self) -> None:
        """Outside of the data there is nothing."""
        for offset in (-1, 120, 123, 1 << 40):
            self.assertRaises(WireError, decode_message, BROKER_RECORD, offset)
        self.assertIn("0 bytes at 200", str(self.assertRaises(WireError, decode_start, BROKER_RECORD, 200)))

    def test_physical_offset(self) -> None:
        """The place that it names."""
        self.refused(BROKER_RECORD, "physicalOffset=0, 48 is needed", physical_offset=48)
        self.assertEqual(decode_message(BROKER_RECORD, physical_offset=0).topic, "T1")

    def test_every_bit(self) -> None:
        """One wrong bit anywhere: another message, or C{WireError}, and never a longer one."""
        for at in range(8 * len(BROKER_RECORD)):
            record = bytearray(BROKER_RECORD)
            record[at // 8] ^= 1 << at % 8
            try:
                message = decode_message(bytes(record))
            except WireError:
                continue
            self.assertEqual(message.size, len(BROKER_RECORD))
            self.assertNotEqual(message, decode_message(BROKER_RECORD))
            self.assertEqual(encode_message(message), bytes(record))


class EntryTests(SynchronousTestCase):
    """The body of an entry in DLedger mode."""

    def test_position(self) -> None:
        """48 bytes after the entry's own."""
        message = attrs.evolve(PLAIN, physical_offset=1048)
        record = encode_message(message)
        self.assertEqual(decode_entry_body(record, 1000), message)
        self.assertRaises(WireError, decode_entry_body, record, 1048)

    def test_something_behind_it(self) -> None:
        """One entry, one message."""
        record = encode_message(attrs.evolve(PLAIN, physical_offset=48))
        error = self.assertRaises(WireError, decode_entry_body, record + b"xy", 0)
        self.assertIn("2 bytes after it", str(error))

    def test_empty(self) -> None:
        """A term-start entry is not a message."""
        self.assertRaises(WireError, decode_entry_body, b"", 0)


class StartTests(SynchronousTestCase):
    """The first two words name the rest."""

    def test_kinds(self) -> None:
        """Messages, blanks, other things."""
        for magic, is_message, is_blank in ((MAGIC_V1, True, False), (MAGIC_V2, True, False),
                                            (MAGIC_BLANK, False, True), (0, False, False)):
            start = decode_start(b"x" + START.pack(9, magic), 1)
            self.assertEqual((start.size, start.is_message, start.is_blank), (9, is_message, is_blank))

    def test_blank_bytes(self) -> None:
        """As it is in files."""
        self.assertTrue(decode_start(bytes.fromhex("0000b874" "cbd43194")).is_blank)


class PropertiesTests(SynchronousTestCase):
    """Names and values in one text."""

    def test_decode(self) -> None:
        """With and without the last 0x02; what is no pair is passed over; the last of equal names counts."""
        for data, expected in (
            (b"", {}),
            (b"a\x01b", {"a": "b"}),
            (b"a\x01b\x02", {"a": "b"}),
            (b"a\x01b\x02c\x01d\x02", {"a": "b", "c": "d"}),
            (b"a\x02b\x01\x02\x01c\x02\x02d\x01e\x01f\x02g\x01h", {"d": "e\x01f", "g": "h"}),
            (b"a\x011\x02a\x012", {"a": "2"}),
            ("größe\x01é".encode(), {"größe": "é"}),
            (b"a\x01\xff", {"a": "\ufffd"}),
            (b"\0" * 20, {}),
        ):
            self.assertEqual(decode_properties(data), expected, data)

    def test_encode(self) -> None:
        """In the order of the mapping, ended or not."""
        properties = {"KEYS": "k1", "TAGS": "A"}
        self.assertEqual(encode_properties(properties), b"KEYS\x01k1\x02TAGS\x01A\x02")
        self.assertEqual(encode_properties(properties, is_ended=False), b"KEYS\x01k1\x02TAGS\x01A")
        self.assertEqual((encode_properties({}), encode_properties({}, is_ended=False)), (b"", b""))

    def test_there_and_back(self) -> None:
        """Whatever can be written."""
        texts = ("a", "é\U0001f600", " ", "\0", "x" * 100)
        properties = {name: value for name in texts for value in texts}
        for is_ended in (True, False):
            again = decode_properties(encode_properties(properties, is_ended=is_ended))
            self.assertEqual(again, properties)

    def test_refused(self) -> None:
        """What could not be read again, or is too long."""
        for properties in ({"": "a"}, {"a": ""}, {"a\x01": "b"}, {"a": "b\x02"}, {"a": "x" * 32767}):
            self.assertRaises(ValueError, encode_properties, properties)
        longest = encode_properties({"a": "x" * 32764})
        self.assertEqual(len(longest), 32767)
        message = make_message("t", b"", properties_data=longest)
        self.assertEqual(decode_message(encode_message(message)), message)
        self.assertRaises(ValueError, make_message, "t", b"", properties_data=longest + b"y")

    def test_helpers(self) -> None:
        """Keys are words; what is not there is None or empty."""
        message = make_message("t", b"", properties={"KEYS": " k1  k2 ", "UNIQ_KEY": "u", "TAGS": "TagA"})
        self.assertEqual((message.keys, message.unique_key, message.tags), (("k1", "k2"), "u", "TagA"))
        bare = make_message("t", b"")
        self.assertEqual((bare.keys, bare.unique_key, bare.tags, bare.tags_code), ((), None, None, 0))


class HashTests(SynchronousTestCase):
    """Java's C{String.hashCode}."""

    def test_known(self) -> None:
        """As Java says."""
        for text, expected in (("", 0), ("A", 65), ("TagA", 2598919), ("é", 233),
                               ("polygenelubricants", -(1 << 31)),
                               ("\U0001f600", 0xD83D * 31 + 0xDE00), ("\ud800", 0xD800)):
            self.assertEqual(java_hash(text), expected, text)

    def test_tags(self) -> None:
        """No tags: 0."""
        self.assertEqual([tags_code_of(tags) for tags in (None, "", "A")], [0, 0, 65])


class FlagTests(SynchronousTestCase):
    """What C{sys_flag} says."""

    def test_transactions(self) -> None:
        """Two bits are one number."""
        kinds = [attrs.evolve(PLAIN, sys_flag=flag).transaction for flag in (0, 4, 8, 12)]
        self.assertEqual(kinds, ["none", "prepared", "commit", "rollback"])

    def test_batches(self) -> None:
        """A batch that is stored as one message."""
        self.assertFalse(PLAIN.is_inner_batch)
        self.assertTrue(attrs.evolve(PLAIN, sys_flag=0xC0).is_inner_batch)

    def test_compressions(self) -> None:
        """Only with the first bit; the kind was not always recorded."""
        for flag, kind in ((0, "none"), (0x300, "none"), (1, "zlib"), (0x301, "zlib"), (0x101, "lz4"),
                           (0x201, "zstd"), (0x401, "4")):
            self.assertEqual(attrs.evolve(PLAIN, sys_flag=flag).compression, kind)


class PlainBodyTests(SynchronousTestCase):
    """Unpacking, bounded."""

    def packed(self, data: bytes, flag: int = 1) -> Message:
        """A message with this body as stored."""
        return make_message("t", data, sys_flag=flag)

    def test_zlib(self) -> None:
        """As the producer sent it."""
        self.assertEqual(plain_body(self.packed(zlib.compress(b"hello"))), b"hello")
        self.assertEqual(plain_body(self.packed(zlib.compress(b"hello"), 0x301)), b"hello")
        self.assertEqual(plain_body(self.packed(b"hello", 0)), b"hello")

    def test_bound(self) -> None:
        """A small body may hold much."""
        message = self.packed(zlib.compress(b"\0" * 1_000_000))
        self.assertEqual(len(plain_body(message, bytes_max=1_000_000)), 1_000_000)
        error = self.assertRaises(WireError, plain_body, message, bytes_max=999_999)
        self.assertIn("more than 999999", str(error))

    def test_memory(self) -> None:
        """What is too large is not made first and refused then."""
        message = self.packed(zlib.compress(b"\0" * 20_000_000))
        tracemalloc.start()
        self.addCleanup(tracemalloc.stop)
        self.assertRaises(WireError, plain_body, message, bytes_max=1000)
        self.assertLess(tracemalloc.get_traced_memory()[1], 1_000_000)

    def test_damaged(self) -> None:
        """Not zlib, or cut; and what we cannot unpack is named."""
        self.assertIn("compressed body", str(self.assertRaises(WireError, plain_body, self.packed(b"hello"))))
        cut = self.packed(zlib.compress(b"hello")[:-1])
        self.assertIn("in the middle", str(self.assertRaises(WireError, plain_body, cut)))
        self.assertIn("lz4", str(self.assertRaises(WireError, plain_body, self.packed(b"x", 0x101))))


class BatchTests(SynchronousTestCase):
    """The body of a batch request."""

    ITEMS = [BatchItem(flag=1, body=b"hello", properties_data=b"a\x01b"),
             BatchItem(flag=0, body=b"", properties_data=b"")]

    def test_bytes(self) -> None:
        """As Java's clients write it."""
        data = encode_batch(self.ITEMS[:1])
        self.assertEqual(data.hex(), "0000001e" "00000000" "00000000" "00000001" "00000005"
                         + b"hello".hex() + "0003" + b"a\x01b".hex())
        self.assertEqual(decode_batch(data), self.ITEMS[:1])

    def test_several(self) -> None:
        """One after the other; none at all."""
        self.assertEqual(decode_batch(encode_batch(self.ITEMS)), self.ITEMS)
        self.assertEqual(decode_batch(b""), [])

    def test_damaged(self) -> None:
        """Every truncation in an item, and wrong lengths."""
        data = encode_batch(self.ITEMS)
        for length in range(1, len(data)):
            if length != 30:
                self.assertRaises(WireError, decode_batch, data[:length])
        for at, form, value in ((0, ">i", 0), (0, ">i", -1), (0, ">i", 1 << 30), (16, ">i", -1),
                                (16, ">i", 9), (25, ">h", 4), (25, ">h", -1)):
            wrong = bytearray(data)
            struct.pack_into(form, wrong, at, value)
            self.assertRaises(WireError, decode_batch, bytes(wrong))

    def test_negative_length(self) -> None:
        """One that makes the lengths add up: the flag would be taken for the length of the properties."""
        self.assertRaises(WireError, decode_batch, struct.pack(">iiiiih", 22, 0, 0, 6, -6, 0))

    def test_too_long(self) -> None:
        """Properties have a bound here, too."""
        item = BatchItem(flag=0, body=b"", properties_data=b"x" * 32768)
        self.assertRaises(ValueError, encode_batch, [item])
