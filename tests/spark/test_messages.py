# -*- test-case-name: tests.spark.test_messages -*-
"""
C{format=rocketmq}: rows are what the codec of the wire, asked for one message after the other, says.
"""

from __future__ import annotations

import os
import random
import zlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from twisted.trial.unittest import SynchronousTestCase

from dledger.spark.formats.log import DamageError
from dledger.spark.rocketmq.messages import MESSAGE_COLUMNS
from dledger.spark.rocketmq.properties import PropertyColumns
from protocols.wire.errors import WireError
from protocols.wire.rocketmq.layout import TERM_START_TOPIC, SysFlag
from protocols.wire.rocketmq.message import (
    Host,
    Message,
    decode_message,
    decode_properties,
    encode_message,
    make_message,
    plain_body,
)
from tests.spark.ledgers import Ledger, plain_rows, scanned
from tests.spark.test_scan import LedgerCase

_V4, _V6 = Host.of("10.0.0.7", 41000), Host.of("2001:db8::7", 41000)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PROPERTIES = (
    {}, {"TAGS": "TagA"}, {"KEYS": "k1 k2", "TAGS": "B", "UNIQ_KEY": "7F00"}, {"näme": "wert ☃"},
    {f"name{number}": "v" * number for number in range(1, 30)},
)


def message_at(physical_offset: int, number: int, *, chance: random.Random) -> bytes:
    """A message of some shape: both versions, all addresses, empty and long parts."""
    flags = chance.choice((0, 0, 1, 0x301, 8))
    body = chance.randbytes(chance.choice((0, 1, 100, chance.randrange(3000))))
    return encode_message(make_message(
        chance.choice(("T", "orders", "topic-" + "x" * 100, "t" * 200, "Themen-ü")),
        zlib.compress(body) if flags & 1 else body,
        properties=chance.choice(_PROPERTIES), version=chance.choice((1, 1, 2)),
        queue_id=number % 4, queue_offset=number // 4, physical_offset=physical_offset,
        flag=chance.randrange(-5, 5), sys_flag=flags,
        born_host=chance.choice((_V4, _V6)), store_host=chance.choice((_V4, _V6)),
        born_timestamp=1_700_000_000_000 + number, store_timestamp=chance.randrange(2**41),
        reconsume_times=chance.randrange(3), prepared_transaction_offset=chance.randrange(2**40),
    ))


def time_of(ms: int) -> datetime:
    """As Arrow gives it."""
    return _EPOCH + timedelta(milliseconds=ms)


def row_of(message: Message, index: int | None, term: int | None) -> tuple[Any, ...]:
    """What a row must hold."""
    properties = decode_properties(message.properties_data)
    return (
        index, term, message.topic, message.queue_id, message.queue_offset, message.physical_offset,
        properties.get("KEYS"), properties.get("TAGS"), time_of(message.born_timestamp),
        time_of(message.store_timestamp), message.flag, message.sys_flag, message.reconsume_times,
        message.prepared_transaction_offset, message.body_crc, list(properties.items()), plain_body(message),
    )


def append_messages(ledger: Ledger, count: int, make: Callable[[int, int], bytes]) -> None:
    """Entries whose bodies are messages; each is made for its place."""
    for number in range(count):
        # The position depends on the size alone, so the record is made twice.
        size = 48 + len(make(0, number))
        end, file_size = ledger.store.end_position, ledger.config.mapped_file_size_for_entry_data
        room = file_size - end % file_size
        pos = end if size + 8 <= room else end + room
        ledger.append([make(pos + 48, number)])


class EntryTests(LedgerCase):
    """Messages in a ledger: a broker in DLedger mode."""

    def make(self) -> Ledger:
        """With room for messages."""
        ledger = Ledger(self.mktemp(), mapped_file_size_for_entry_data=20_000)
        self.addCleanup(ledger.close)
        return ledger

    def fill(self, count: int, seed: int = 1) -> None:
        """Messages of all shapes after a term-start entry, and another such entry at the end."""
        self.ledger.append([b""])
        append_messages(
            self.ledger, count,
            lambda at, number: message_at(at, number, chance=random.Random(seed * 10**6 + number)),
        )
        self.ledger.append([b""], term=2)
        self.ledger.commit()

    def expected(self) -> list[tuple[Any, ...]]:
        """Row by row."""
        return [row_of(decode_message(row[7], physical_offset=row[2] + 48), row[0], row[1])
                for row in plain_rows(self.path) if row[7]]

    def test_value_by_value(self) -> None:
        """Every column of every message, whatever the cuts."""
        self.fill(400)
        expected = self.expected()
        self.assertEqual(len(expected), 400)
        self.assertGreater(len(os.listdir(f"{self.path}/data")), 10)
        for options in ({}, {"fetchBytes": "1"}, {"minPartitions": "5"}, {"verifyCrc": "true"}):
            with self.subTest(**options):
                self.assertEqual(scanned({"path": self.path, "format": "rocketmq", **options}), expected)

    def test_projection(self) -> None:
        """Each column alone."""
        self.fill(50)
        expected = self.expected()
        for number, column in enumerate(MESSAGE_COLUMNS):
            with self.subTest(column=column.name):
                found = scanned({"path": self.path, "format": "ROCKETMQ"}, [(column.name, column.ddl)])
                self.assertEqual(found, [(row[number],) for row in expected])

    def test_as_stored(self) -> None:
        """Compressed bodies, if one wants them so."""
        self.fill(60)
        found = scanned({"path": self.path, "format": "rocketmq", "decompress": "false"},
                        [("sysFlag", "int"), ("body", "binary")])
        stored = [decode_message(row[7]) for row in plain_rows(self.path) if row[7]]
        self.assertEqual(found, [(message.sys_flag, message.body) for message in stored])
        self.assertGreater(sum(message.is_compressed for message in stored), 5)

    def test_bodies_that_cannot_be_unpacked(self) -> None:
        """Flags that lie: an error with a reason, or skipped."""
        self.fill(20)
        append_messages(self.ledger, 1, lambda at, _: encode_message(
            make_message("T", b"plain", sys_flag=1, physical_offset=at)))
        self.ledger.commit()
        options = {"path": self.path, "format": "rocketmq"}
        error = self.assertRaises(DamageError, scanned, options)
        self.assertIn("entry 22 is not a sound message", str(error))
        self.assertIn("compressed body: Error -3", str(error))
        self.warned()
        self.assertEqual(len(scanned({**options, "failOnDamage": "false"})), 20)
        self.assertEqual(scanned({**options, "decompress": "false"}, [("body", "binary")])[-1], (b"plain",))

    def test_internal(self) -> None:
        """Entries without a message, on request: an index, a term, and nulls."""
        self.fill(5)
        nothing = (None,) * (len(MESSAGE_COLUMNS) - 2)
        found = scanned({"path": self.path, "format": "rocketmq", "includeInternal": "true"})
        self.assertEqual(found, [(0, 1, *nothing), *self.expected(), (6, 2, *nothing)])

    def test_term_start(self) -> None:
        """The record with which a broker on a raft log begins a term is no row, except on request."""
        self.fill(5)
        append_messages(self.ledger, 1, lambda at, _: encode_message(
            make_message(TERM_START_TOPIC, b"", sys_flag=int(SysFlag.ROLLBACK), physical_offset=at)))
        self.ledger.commit()
        options = {"path": self.path, "format": "rocketmq"}
        columns = [("topic", "string")]
        for chosen in ({}, {"storedFrom": "0"}):
            found = scanned({**options, **chosen}, columns)
            self.assertEqual(len(found), 5)
            self.assertNotIn((TERM_START_TOPIC,), found)
        internal = scanned({**options, "includeInternal": "true"}, columns)
        self.assertIn((TERM_START_TOPIC,), internal)

    def test_no_message(self) -> None:
        """Entries that are no message are errors with the codec's words, or skipped."""
        self.fill(5)
        for body, words in (
            (b"text", "4 bytes at 0, 8 are needed"), (bytes(100), "magic=00000000"),
            (message_at(0, 1, chance=random.Random(5)), "physicalOffset=0"),
        ):
            with self.subTest(words=words):
                index = self.ledger.store.ledger_end_index + 1
                self.ledger.append([body])
                self.ledger.commit()
                options = {"path": self.path, "format": "rocketmq"}
                error = self.assertRaises(DamageError, scanned, {**options, "startingOffsets": index})
                self.assertIn(f"entry {index} is not a sound message: {self.path}/data/", str(error))
                self.assertIn(words, str(error))
        said = self.warned()
        self.assertEqual(len(scanned({**options, "failOnDamage": "false"})), 5)
        self.assertEqual(said, ["3 damaged messages were skipped"])

    def test_a_topic_of_negative_length(self) -> None:
        """It would end in the body, where by chance a length of properties is that adds up."""
        def make(at: int, _: int) -> bytes:
            record = bytearray(encode_message(make_message(
                "T", b"body\0", properties={"a": "v" * 248}, physical_offset=at)))
            record[93] = 0xFE
            self.assertEqual(len(record) - 94, 0xFE)
            return bytes(record)

        append_messages(self.ledger, 1, make)
        self.ledger.commit()
        error = self.assertRaises(DamageError, scanned, {"path": self.path, "format": "rocketmq"})
        self.assertIn("topicLength=-2", str(error))
        self.warned()
        options = {"path": self.path, "format": "rocketmq", "failOnDamage": "false"}
        self.assertEqual(scanned(options), [])

    def test_damage_one_byte_at_a_time(self) -> None:
        """Whatever byte of a message is changed, rows are those that the codec gives, or none."""
        self.fill(3)
        rows = plain_rows(self.path)
        index, pos, body = rows[2][0], rows[2][2], rows[2][7]
        chance = random.Random(7)
        others = [row for row in self.expected() if row[0] != index]
        size = self.ledger.config.mapped_file_size_for_entry_data
        name = f"{self.path}/data/{pos // size * size:020d}"
        self.warned()
        with open(name, "r+b", buffering=0) as file:
            for at in [*range(min(len(body), 120)), *range(max(len(body) - 80, 120), len(body))]:
                changed = bytearray(body)
                changed[at] ^= 1 << chance.randrange(8)
                file.seek(pos % size + 48)
                file.write(changed)
                try:
                    message = decode_message(bytes(changed), verify_body=False, physical_offset=pos + 48)
                    expected = [row_of(message, index, 1)] if message.size == len(changed) else []
                except WireError:
                    expected = []
                except OverflowError:
                    continue  # a time that Python cannot say
                found = scanned({"path": self.path, "format": "rocketmq", "failOnDamage": "false"})
                self.assertEqual([row for row in found if row[0] == index], expected, f"byte {at}")
                self.assertEqual([row for row in found if row[0] != index], others)


def maps_of(stored: list[bytes]) -> list[Any]:
    """Properties, decoded together."""
    found: list[Any] = PropertyColumns.of(pa.array(stored, type=pa.binary())).as_maps().to_pylist()
    return found


class PropertyTests(SynchronousTestCase):
    """Properties as maps."""

    def test_as_the_codec(self) -> None:
        """Any bytes: the findings of the codec, in its order, in a batch and alone."""
        chance = random.Random(3)
        pieces = (b"a", b"b", b"TAGS", b"\x01", b"\x02", b"\x01", b"\x02", b"\xc3\xbc", b"x y", b"")
        texts = [b"", b"a\x01b", b"a\x01b\x02", b"a\x01b\x02a\x01c\x02", b"\x01\x02", b"a\x01\x02", b"\x01b"]
        texts += [b"".join(chance.choices(pieces, k=chance.randrange(12))) for _ in range(500)]
        texts += [b"\xff\x01b\x02"]
        for some in ([text] for text in texts):
            expected = [list(decode_properties(text).items()) for text in some]
            self.assertEqual(maps_of(some), expected, some)
        distinct = [text for text in texts if text.count(b"a") < 2 and text.count(b"\xff") == 0]
        plain = [text for text in distinct if all(
            item.count(b"\x01") == 1 for item in text.removesuffix(b"\x02").split(b"\x02") if text)]
        for some in (texts, distinct, plain, [b""], []):
            expected = [list(decode_properties(text).items()) for text in some]
            self.assertEqual(maps_of(some), expected)
