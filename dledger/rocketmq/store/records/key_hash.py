# -*- test-case-name: tests.broker.store.test_key_hash -*-
"""
Hashes of the keys of messages, as the index files of RocketMQ have them.

The hash is that of Java's text C{TOPIC#KEY}, without its sign. Producers make their unique keys of a long
beginning that stays and a short end that counts, so the hash of the beginning is kept.

Source: IndexService.buildKey, IndexFile.indexKeyHashMethod (4.9.8, 5.3.3), String.hashCode.
"""

from __future__ import annotations

from operator import mul

from protocols.wire.rocketmq.message import java_hash

#: Bytes at the end of a key whose hash is not kept.
TAIL_SIZE = 8
#: Bytes of half a tail, and the factor of the hash of the first half.
QUAD_SIZE = TAIL_SIZE // 2
QUAD_FACTOR = 31**QUAD_SIZE
#: Bytes of a unique key that RocketMQ's client makes on a host with an IPv4 address.
USUAL_SIZE = 32
#: Most beginnings of keys, and halves of tails, whose hashes are kept.
HEADS_MAX = 16_384
QUADS_MAX = 131_072

_WORD = 1 << 32
_MASK = _WORD - 1
_PIECE = 256
_POWERS = tuple(pow(31, _PIECE - 1 - at, _WORD) for at in range(_PIECE))
_PIECE_FACTOR = pow(31, _PIECE, _WORD)
#: For each number of bytes in a tail, the factor of the hash before it, and of each byte.
_TAIL_FACTORS = tuple(pow(31, size, _WORD) for size in range(TAIL_SIZE + 1))
_TAIL_POWERS = tuple(_POWERS[_PIECE - size :] for size in range(TAIL_SIZE + 1))


def _unsigned(value: int) -> int:
    """The absolute value of a hash in C{0.._MASK}, of which the upper half is negative; Java's least is 0."""
    if value < 0x80000000:
        return value
    return (_WORD - value) & 0x7FFFFFFF


def _hash_ascii(text: bytes, value: int = 0) -> int:
    """@param value: hash of what is before the text. @return: C{0.._MASK}."""
    for at in range(0, len(text), _PIECE):
        piece = text[at : at + _PIECE]
        size = len(piece)
        if size == _PIECE:
            value = value * _PIECE_FACTOR + sum(map(mul, piece, _POWERS))
        else:
            value = value * pow(31, size, _WORD) + sum(map(mul, piece, _POWERS[_PIECE - size :]))
    return value & _MASK


def hash_of_key(topic: str, key: str) -> int:
    """The hash of a key in the index, C{0..2**31 - 1}."""
    return _unsigned(java_hash(f"{topic}#{key}") & _MASK)


class KeyHashes:
    """
    Hashes the keys of records.

    Invariant: C{_heads} has, for topic and beginning of a key, both in ASCII, the hash of both.

    @ivar beginnings: from the bytes of a record between the length of its topic and the tail of its only key,
        a usual one, to the hash of what is before the tail, with room for the tail.
    @ivar quads: from half a tail to its hash. A key has the sum of the hashes of its beginning, of the first
        half times L{QUAD_FACTOR}, and of the second. What is found here is a sound key.
    """

    def __init__(self) -> None:
        self._heads: dict[tuple[bytes, bytes], int] = {}
        self.beginnings: dict[bytes, int] = {}
        self.quads: dict[bytes, int] = {}

    def of(self, topic: bytes, key: bytes) -> int:
        """The hash of a key in the index, C{0..2**31 - 1}. @param topic, key: as in the record, UTF-8."""
        tail = key[-TAIL_SIZE:]
        value, size = self._heads.get((topic, key[:-TAIL_SIZE])), len(tail)
        if value is None or not tail.isascii():
            return self._first(topic, key)
        value = (value * _TAIL_FACTORS[size] + sum(map(mul, tail, _TAIL_POWERS[size]))) & _MASK
        return value if value < 0x80000000 else _unsigned(value)

    def _first(self, topic: bytes, key: bytes) -> int:
        """As L{of}, of a topic and a beginning that are not known."""
        if not (key.isascii() and topic.isascii()):
            return hash_of_key(topic.decode("utf-8", "replace"), key.decode("utf-8", "replace"))
        if len(self._heads) >= HEADS_MAX:
            self._heads.clear()
        value = self._heads[topic, key[:-TAIL_SIZE]] = _hash_ascii(topic + b"#" + key[:-TAIL_SIZE])
        return _unsigned(_hash_ascii(key[-TAIL_SIZE:], value))

    def learn(self, beginning: bytes, topic: bytes, key: bytes) -> None:
        """
        Keep what makes the hash of a usual key, and of those like it. A key whose beginning was never seen,
        such as a random one, is not worth it.

        @param beginning: see C{beginnings}.
        """
        head = self._heads.get((topic, key[:-TAIL_SIZE]))
        if head is None or not key.isascii():
            return
        if len(self.beginnings) >= HEADS_MAX:
            self.beginnings.clear()
        self.beginnings[beginning] = head * _TAIL_FACTORS[TAIL_SIZE] & _MASK
        if len(self.quads) + 2 > QUADS_MAX:
            self.quads.clear()
        for quad in (key[-TAIL_SIZE:-QUAD_SIZE], key[-QUAD_SIZE:]):
            self.quads[quad] = _hash_ascii(quad)
