# -*- test-case-name: tests.spark.test_choice -*-
"""The messages that options choose are those that a loop over all rows chooses."""

from __future__ import annotations

import random
from typing import Any

from dledger.spark.formats.log import DamageError
from dledger.spark.formats.option_texts import OptionError
from dledger.spark.formats.options import ScanOptions
from protocols.wire.rocketmq.message import encode_message, make_message
from tests.spark.ledgers import Ledger, scanned
from tests.spark.test_messages import append_messages
from tests.spark.test_scan import LedgerCase

_BASE_MS = 1_700_000_000_000
_KEYS = ("", "k1", "k1 k2", "k12", "k2")


def _message(pos: int, number: int) -> bytes:
    chance = random.Random(number)
    properties = {"TAGS": chance.choice(("", "TagA", "TagB"))}
    properties["KEYS"] = chance.choice(_KEYS)
    return encode_message(make_message(
        chance.choice(("orders", "payments", "Themen-ü")), b"x" * chance.randrange(50),
        properties={name: value for name, value in properties.items() if value},
        physical_offset=pos, queue_offset=number, store_timestamp=_BASE_MS + number,
    ))


class ChoiceTests(LedgerCase):
    """A hundred messages and an entry without one."""

    def make(self) -> Ledger:
        """Larger files than the other tests: a message must fit."""
        return Ledger(self.mktemp(), mapped_file_size_for_entry_data=8192)

    def setUp(self) -> None:
        super().setUp()
        append_messages(self.ledger, 100, _message)
        self.ledger.append([b""])
        self.ledger.commit()
        self.rows = self.chosen()

    def chosen(self, **options: object) -> list[tuple[Any, ...]]:
        """The rows."""
        return scanned({"path": self.path, "format": "rocketmq", **options})

    def test_each(self) -> None:
        """Topics, tags, keys and times, alone and together; a key is a word, not a part of one."""
        self.assertEqual(len(self.rows), 100)
        for options, is_wanted in (
            ({"topics": "orders"}, lambda row: row[2] == "orders"),
            ({"topics": "Themen-ü, payments"}, lambda row: row[2] != "orders"),
            ({"tags": "TagA"}, lambda row: row[7] == "TagA"),
            ({"tags": "TagA,TagB"}, lambda row: row[7] is not None),
            ({"keys": "k1"}, lambda row: "k1" in (row[6] or "").split()),
            ({"keys": "k12,k2"}, lambda row: bool({"k12", "k2"} & set((row[6] or "").split()))),
            ({"storedFrom": _BASE_MS + 7}, lambda row: row[4] >= 7),
            ({"storedBefore": _BASE_MS + 7}, lambda row: row[4] < 7),
            ({"topics": "orders", "tags": "TagB", "keys": "k1,k2", "storedFrom": _BASE_MS + 20},
             lambda row: row[2] == "orders" and row[7] == "TagB" and row[4] >= 20
             and bool({"k1", "k2"} & set((row[6] or "").split()))),
        ):
            expected = [row for row in self.rows if is_wanted(row)]
            self.assertNotEqual(expected, [])
            self.assertEqual(self.chosen(**options), expected, options)
        self.assertEqual(self.chosen(topics="none"), [])

    def test_damage(self) -> None:
        """A damaged message is an error, although its topic may be another one."""
        self.ledger.append([b"no message, but long enough to be one: " + b"x" * 100])
        self.ledger.commit()
        with self.assertRaisesRegex(DamageError, "entry 101 is not a sound message"):
            self.chosen(topics="none")
        self.assertEqual(self.chosen(topics="none", failOnDamage="false"), [])

    def test_refused(self) -> None:
        """Choices that make no sense name the reason."""
        for given, words in (
            ({"topics": "a"}, "option topics chooses messages: it needs format=rocketmq"),
            ({"storedFrom": "1", "format": "rocketmq", "includeInternal": "true"}, "take one of the two"),
            ({"storedFrom": "2", "storedBefore": "2", "format": "rocketmq"}, "leave no time between"),
            ({"tags": "a,,b", "format": "rocketmq"}, "names separated by commas"),
        ):
            with self.assertRaisesRegex(OptionError, words):
                ScanOptions.of({"path": self.path, **given})
