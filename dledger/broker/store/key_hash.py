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

#: Bytes at the end of a long key that are hashed each time, and the factor of each.
TAIL_SIZE = 8
TAIL_POWERS = tuple(pow(31, TAIL_SIZE - 1 - at, 1 << 32) for at in range(TAIL_SIZE))
#: Beginnings of keys whose hashes are kept, at most.
HEADS_MAX = 16_384

_WORD = 1 << 32
_MASK = _WORD - 1
_PIECE = 256
_POWERS = tuple(pow(31, _PIECE - 1 - at, _WORD) for at in range(_PIECE))
_PIECE_FACTOR = pow(31, _PIECE, _WORD)
_TAIL_FACTOR = pow(31, TAIL_SIZE, _WORD)


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

    Invariant: C{_heads} has, for topic and beginning of a key, both in ASCII and not empty, the hash of both
    with room for L{TAIL_SIZE} bytes.

    @ivar known: from topic and beginning to this hash; None if it is not known. The hash of the key is the
        sum of this one and that of the tail, by L{TAIL_POWERS}.
    """

    def __init__(self) -> None:
        self._heads: dict[tuple[bytes, bytes], int] = {}
        self.known = self._heads.get

    def of(self, topic: bytes, key: bytes) -> int:
        """The hash of a key in the index, C{0..2**31 - 1}. @param topic, key: as in the record, UTF-8."""
        if not (key.isascii() and topic.isascii()):
            return hash_of_key(topic.decode("utf-8", "replace"), key.decode("utf-8", "replace"))
        head = key[:-TAIL_SIZE]
        value = _hash_ascii(topic + b"#" + head)
        if head:
            if len(self._heads) >= HEADS_MAX:
                self._heads.clear()
            self._heads[topic, head] = value * _TAIL_FACTOR & _MASK
        return _unsigned(_hash_ascii(key[-TAIL_SIZE:], value))
