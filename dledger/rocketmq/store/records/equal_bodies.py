# -*- test-case-name: tests.broker.store.test_body_check -*-
"""
Checks the bodies of many records of one size at once, for
L{dledger.rocketmq.store.records.body_check}.

Messages of one producer often have one size. Their fields are compared byte column by byte column, with
slices that have a step, and the checksums are computed by C{map}: no step of Python is made per record.

Rule: only what the check record by record accepts is accepted. Everything else is left to it.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import chain
from struct import Struct

from protocols.wire.checksums import crc32
from protocols.wire.rocketmq.layout import BODY_PART, MAGIC_BLANK, SysFlag

#: A shorter run is not worth the preparations; a longer one is taken in pieces.
RUN_MIN = 48
RUN_MAX = 4096
#: With longer bodies the checksum itself takes most of the time.
BODY_SIZE_MAX = 4096

_V6 = int(SysFlag.BORN_HOST_V6) | int(SysFlag.STORE_HOST_V6)
#: Clears the sign bit of the first byte of a checksum.
_POSITIVE = bytes(byte & 0x7F for byte in range(256))


def _place_of(field: int) -> int:
    """Where a field of L{BODY_PART} begins."""
    return BODY_PART.pack(*(-1 if number == field else 0 for number in range(5))).index(0xFF)


_SIZE_AT, _MAGIC_AT, _CRC_AT, _FLAG_AT, _LENGTH_AT = map(_place_of, range(5))
_SAME = [at + byte for at in (_SIZE_AT, _MAGIC_AT, _FLAG_AT, _LENGTH_AT) for byte in range(4)]


@lru_cache(maxsize=64)
def _bodies(size: int, body_size: int) -> Struct:
    """Of a record of C{size} bytes, its body."""
    return Struct(f"{BODY_PART.size}x{body_size}s{size - BODY_PART.size - body_size}x")


@lru_cache(maxsize=64)
def _numbers(count: int) -> Struct:
    return Struct(f">{count}I")


def equal_records(view: memoryview, at: int) -> tuple[int, int]:
    """
    The number of records from C{at} on that seem to have one size and no IPv6 address, and their size; (0, 0)
    if there are too few. Only some of them are looked at: L{are_bodies_right} looks at all.
    """
    unpack, left = BODY_PART.unpack_from, len(view) - at
    if left < RUN_MIN * BODY_PART.size:
        return 0, 0
    size, magic, _, flags, body_size = unpack(view, at)
    if flags & _V6 or magic == MAGIC_BLANK or not 0 < body_size <= min(size - BODY_PART.size, BODY_SIZE_MAX):
        return 0, 0
    count = min(left // size, RUN_MAX)
    if count < RUN_MIN or any(unpack(view, at + number * size)[0] != size for number in (1, RUN_MIN - 1)):
        return 0, 0
    while count >= RUN_MIN and unpack(view, at + (count - 1) * size)[0] != size:
        count //= 2
    return (count, size) if count >= RUN_MIN else (0, 0)


def are_bodies_right(view: memoryview, at: int, count: int, size: int) -> bool:
    """Whether C{count} records of C{size} bytes from C{at} on are like the first one, with right bodies."""
    data = bytes(view[at : at + count * size])
    if not all(data[byte::size] == data[byte : byte + 1] * count for byte in _SAME):
        return False
    bodies = _bodies(size, BODY_PART.unpack_from(data)[-1]).iter_unpack(data)
    found = bytearray(_numbers(count).pack(*map(crc32, chain.from_iterable(bodies))))
    found[::4] = found[::4].translate(_POSITIVE)
    return all(found[byte::4] == data[_CRC_AT + byte :: size] for byte in range(4))
