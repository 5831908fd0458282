# -*- test-case-name: tests.broker.sending.test_unique_ids -*-
"""Unique keys that the broker gives."""

from __future__ import annotations

import random
from datetime import datetime

from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.broker.options.own_address import OwnAddress
from dledger.rocketmq.broker.producing.sending.sends import UniqueIds, find_unique_key


class UniqueIdsTests(SynchronousTestCase):
    """A broker at 10.0.0.1."""

    def setUp(self) -> None:
        self.now_ms = 0
        self.own = OwnAddress()
        self.own.bind("10.0.0.1", 10911)
        self.ids = UniqueIds(self.own, wall_ms=lambda: self.now_ms, rng=random.Random(1))

    def key(self) -> bytes:
        """One more, as bytes."""
        found = self.ids.property()
        self.assertTrue(found.startswith(b"UNIQ_KEY\x01") and found.endswith(b"\x02"))
        self.assertEqual(found.upper(), found)
        return bytes.fromhex(found[9:-1].decode())

    def test_form(self) -> None:
        """Address, process and class, the time in the month, a count: 16 bytes, as of RocketMQ's clients."""
        for year, month in ((2026, 11), (2026, 12), (2027, 1), (2026, 11)):
            begin_ms = int(datetime(year, month, 1).timestamp()) * 1000
            self.now_ms = begin_ms + 86_400_123
            key = self.key()
            self.assertEqual((len(key), key[:4]), (16, b"\x0a\0\0\1"))
            self.assertEqual(int.from_bytes(key[10:14], "big"), 86_400_123, (year, month))

    def test_only_a_key_of_its_own_counts(self) -> None:
        """Not an empty one, and not the end of another name."""
        for properties, expected in (
            (b"", False), (b"UNIQ_KEY\x01k", True), (b"A\x01b\x02UNIQ_KEY\x01k\x02", True),
            (b"MY_UNIQ_KEY\x01k", False), (b"MY_UNIQ_KEY\x01k\x02UNIQ_KEY\x01k", True),
            (b"UNIQ_KEY\x01", False), (b"UNIQ_KEY\x01\x02A\x01b", False), (b"A\x01UNIQ_KEY\x01k", False),
        ):
            self.assertEqual(bool(find_unique_key(properties)), expected, properties)

    def test_differ(self) -> None:
        """Two of one millisecond, two brokers."""
        self.now_ms = 1_790_000_000_000
        first, second = self.key(), self.key()
        self.assertEqual(first[:14], second[:14])
        self.assertNotEqual(first[14:], second[14:])
        other = UniqueIds(self.own, wall_ms=lambda: self.now_ms, rng=random.Random(2))
        self.assertNotEqual(bytes.fromhex(other.property()[9:-1].decode())[4:10], first[4:10])
