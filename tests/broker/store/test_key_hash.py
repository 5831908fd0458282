# -*- test-case-name: tests.broker.store.test_key_hash -*-
"""Hashes of keys are Java's."""

from __future__ import annotations

import random

from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.store.records.key_hash import (
    HEADS_MAX,
    QUAD_FACTOR,
    QUAD_SIZE,
    QUADS_MAX,
    USUAL_SIZE,
    KeyHashes,
    hash_of_key,
)
from protocols.wire.rocketmq.message import java_hash

#: Topics, keys, and what C{String.hashCode} of a JDK says of C{TOPIC#KEY}.
KNOWN = (
    ("T1", "k1", 79_072_524), ("", "", 35), ("T", "\U0001f600", 4_308_978), ("T", "größe", -1_658_319_582),
    ("T", "7F000001ABCD18B4AAC2012345670001", 502_694_350),
)
LEAST = -(2**31)


def dumb(topic: str, key: str) -> int:
    """The hash in the index, as Java's method makes it."""
    value = java_hash(f"{topic}#{key}")
    return 0 if value == LEAST else abs(value)


def key_with(topic: str, wanted: int) -> str:
    """A key of seven characters so that Java's hash is C{wanted}."""
    digits = "".join("!" for _ in range(7))
    rest = (wanted - java_hash(f"{topic}#{digits}")) % 2**32
    found = ""
    for _ in range(7):
        rest, digit = divmod(rest, 31)
        found = chr(33 + digit) + found
    return found


class HashTests(SynchronousTestCase):
    """The fast way and the plain one."""

    def test_hashes_are_those_of_java(self) -> None:
        """As a JDK says; also with pairs of surrogates."""
        hashes = KeyHashes()
        for topic, key, value in KNOWN:
            self.assertEqual(java_hash(f"{topic}#{key}"), value)
            self.assertEqual(hash_of_key(topic, key), abs(value))
            self.assertEqual(hashes.of(topic.encode(), key.encode()), abs(value))

    def test_the_least_number_counts_as_zero(self) -> None:
        """Java's least number has no absolute value: it counts as 0."""
        key = key_with("T", LEAST)
        self.assertEqual(java_hash(f"T#{key}"), LEAST)
        self.assertEqual(hash_of_key("T", key), 0)
        self.assertEqual(KeyHashes().of(b"T", key.encode()), 0)
        for value in (LEAST + 1, -1, 0, 1, 2**31 - 1):
            key = key_with("T", value)
            self.assertEqual(KeyHashes().of(b"T", key.encode()), abs(value))

    def test_any_text_is_hashed(self) -> None:
        """Of any length and any characters, seen before or not."""
        rng = random.Random(1)
        hashes = KeyHashes()
        for _ in range(2000):
            topic = "".join(rng.choices("TABCü", k=rng.choice((1, 2, 40))))
            size = rng.choice((0, 1, 7, 8, 9, 32, 255, 256, 257, 1000))
            key = "".join(rng.choices("abc0123" if rng.random() < 0.9 else "aüß\U0001f600", k=size))
            for _ in range(2):
                self.assertEqual(hashes.of(topic.encode(), key.encode()), dumb(topic, key))

    def test_usual_keys_are_learnt(self) -> None:
        """The hash of a usual key is the sum of its parts; of other texts nothing is kept."""
        rng, hashes = random.Random(1), KeyHashes()
        for number in range(200):
            topic = rng.choice(("T1", "a-topic"))
            key = "".join(rng.choices("0123456789ABCDEF", k=USUAL_SIZE))
            beginning = b"%d" % number
            hashes.learn(beginning, topic.encode(), key.encode())
            self.assertNotIn(beginning, hashes.beginnings)  # it is new
            hashes.of(topic.encode(), key.encode())
            hashes.learn(beginning, topic.encode(), key.encode())
            first, second = (hashes.quads[key[at:][:QUAD_SIZE].encode()] for at in (-8, -4))
            value = (hashes.beginnings[beginning] + first * QUAD_FACTOR + second) & 0xFFFFFFFF
            self.assertEqual(value if value < 2**31 else -value & 0x7FFFFFFF, dumb(topic, key))
        kept = len(hashes.beginnings), len(hashes.quads)
        for topic, text in (("Tü", key), ("T", "ü" * (USUAL_SIZE // 2))):
            hashes.of(topic.encode(), text.encode())
            hashes.learn(b"x", topic.encode(), text.encode())
        self.assertEqual((len(hashes.beginnings), len(hashes.quads)), kept)

    def test_learnt_keys_are_bounded(self) -> None:
        """What is kept is bounded."""
        hashes = KeyHashes()
        for number in range(HEADS_MAX + 5):
            hashes.of(b"T", b"%d-23456789" % number)
        self.assertEqual(len(hashes._heads), 5)
        for number in range(max(HEADS_MAX, QUADS_MAX) + 5):
            hashes.of(b"T", b"%032d" % number)
            hashes.learn(b"%d" % number, b"T", b"%032d" % number)
            self.assertLessEqual(len(hashes.beginnings), HEADS_MAX)
            self.assertLessEqual(len(hashes.quads), QUADS_MAX)
