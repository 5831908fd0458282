# -*- test-case-name: tests.spark.test_message_shapes -*-
"""
Logs whose messages are alike, and logs with one message that is not: these the fast roads must not mix up.

The slow road is the codec of the wire, asked for one message after the other.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
from twisted.trial.unittest import SynchronousTestCase

from dledger.spark.rocketmq.messages import MESSAGE_COLUMNS
from dledger.spark.rocketmq.properties import PropertyColumns
from protocols.wire.rocketmq.message import (
    Host,
    decode_message,
    decode_properties,
    encode_message,
    make_message,
)
from tests.spark.ledgers import scanned
from tests.spark.test_messages import row_of

_V4, _V6 = Host.of("10.0.0.7", 41000), Host.of("2001:db8::7", 41000)
_NAMES = ("KEYS", "TAGS", "UNIQ_KEY", "WAIT", "MSG_REGION", "TRACE_ON_AND_ON_", "PROPERTY_TRANSIENT_ID", "ü")


def slow_maps(stored: list[bytes]) -> list[Any]:
    """The answer of the codec."""
    return [list(decode_properties(one).items()) for one in stored]


def fast(stored: list[bytes]) -> PropertyColumns:
    """Decoded together."""
    return PropertyColumns.of(pa.array(stored, type=pa.binary()))


class PropertyShapeTests(SynchronousTestCase):
    """Batches of properties with the same names, and nearly so."""

    def check(self, stored: list[bytes]) -> None:
        """Maps, and the values under every name."""
        expected, found = slow_maps(stored), fast(stored)
        self.assertEqual(found.as_maps().to_pylist(), expected)
        found.as_maps().validate(full=True)
        for name in (*_NAMES, "KEY", "none"):
            values = found.of_name(name).to_pylist()
            self.assertEqual(values, [dict(one).get(name) for one in expected], name)

    def test_same_names(self) -> None:
        """With and without a separator at the end, names of all lengths, values of one byte at the end."""
        chance = random.Random(1)
        for number in range(200):
            names = chance.sample(_NAMES, chance.randrange(1, len(_NAMES) + 1))
            end = chance.choice(("", "\2"))
            stored = ["\2".join(f"{name}\1{'v' * chance.randrange(1, 4)}" for name in names) + end
                      for _ in range(chance.randrange(1, 9))]
            found = [one.encode() for one in stored]
            self.assertTrue(fast(found).is_uniform, number)
            self.check(found)

    def test_nearly_the_same(self) -> None:
        """One byte of one name, one length, one item more or less, another order, a name twice."""
        chance = random.Random(2)
        for _ in range(300):
            names = chance.sample(_NAMES, 4)
            rows = [[*names] for _ in range(6)]
            row = chance.choice(rows)
            at = chance.randrange(4)
            match chance.randrange(6):
                case 0:
                    place = chance.randrange(len(row[at]))
                    row[at] = row[at][:place] + "#" + row[at][place + 1 :]
                case 1:
                    row[at] += "x"
                case 2:
                    del row[at]
                case 3:
                    row.append("more")
                case 4:
                    row.reverse()
                case 5:
                    row[at] = row[at - 1]
            ends = [chance.choice(("", "\2")) for _ in rows]
            stored = [("\2".join(f"{name}\1v{number}" for number, name in enumerate(one)) + end).encode()
                      for one, end in zip(rows, ends, strict=True)]
            self.assertFalse(fast(stored).is_uniform)
            self.check(stored)

    def test_many_names(self) -> None:
        """More names than bits, with and without one that is there twice."""
        for name in ("n0", "other"):
            one = "".join(f"n{number}\1v\2" for number in range(80))
            self.check([(one + f"{name}\1w\2").encode(), b"n1\1v", b""])


class LogShapeTests(SynchronousTestCase):
    """Whole logs, of messages that have most of their shape in common."""

    def write(self, seed: int) -> list[tuple[Any, ...]]:
        """A log of one file, in C{self.path}. @return: its rows by the slow road."""
        chance = random.Random(seed)
        names = chance.sample(_NAMES[:-1], chance.randrange(5))
        odd = chance.choice(("none", "v6", "second", "names", "topic"))
        data, rows = b"", []
        odd_at = chance.randrange(40)
        for number in range(40):
            is_odd = number == odd_at
            own = [*names, "odd"] if is_odd and odd == "names" else names
            record = encode_message(make_message(
                "T" * 300 if is_odd and odd == "topic" else "orders", chance.randbytes(chance.randrange(60)),
                properties={name: f"v{number}" for name in own},
                version=2 if is_odd and odd == "second" else 1, queue_id=number % 3, queue_offset=number,
                physical_offset=len(data), flag=chance.randrange(-9, 9), born_host=_V4,
                store_host=_V6 if is_odd and odd == "v6" else _V4, reconsume_times=chance.randrange(9),
                born_timestamp=chance.randrange(2**41), store_timestamp=chance.randrange(2**41),
                prepared_transaction_offset=chance.randrange(-(2**62), 2**62),
            ))
            rows.append(row_of(decode_message(record), None, None))
            data += record
        self.path = os.path.abspath(self.mktemp())
        os.makedirs(f"{self.path}/commitlog")
        Path(f"{self.path}/commitlog", f"{0:020d}").write_bytes(data.ljust(64 * 1024, b"\0"))
        return rows

    def test_all_columns(self) -> None:
        """Each log whole, and in small chunks."""
        for seed in range(60):
            rows = self.write(seed)
            for fetch_bytes in (1000, 1 << 20):
                found = scanned({"path": self.path, "format": "rocketmq", "fetchBytes": fetch_bytes,
                                 "verifyCrc": seed % 2 == 0})
                self.assertEqual(found, rows, seed)

    def test_each_column(self) -> None:
        """The columns do not depend on each other."""
        rows = self.write(7)
        for number, column in enumerate(MESSAGE_COLUMNS):
            found = scanned({"path": self.path, "format": "rocketmq"}, [(column.name, column.ddl)])
            self.assertEqual(found, [(row[number],) for row in rows], column.name)
