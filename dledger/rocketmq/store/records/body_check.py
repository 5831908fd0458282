# -*- test-case-name: tests.broker.store.test_body_check -*-
"""
Checks the checksums of bodies in a master's bytes before a slave stores them, for pieces of any size.

L{dledger.rocketmq.store.records.records.RecordWalk} checks where records begin and end; this walk
assumes that it has seen the bytes first.

Messages of one producer often have one size. Their fields are compared byte column by byte column, with
slices that have a step, and the checksums are computed by C{map}: no step of Python is made per record. Only
what the check record by record accepts is accepted so; everything else is left to it.

Source: CommitLog.checkMessageAndReturnSize (4.9.8), which RocketMQ's slaves do not call.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import chain
from struct import Struct

from protocols.wire.checksums import crc32
from protocols.wire.errors import WireError
from protocols.wire.rocketmq.layout import (
    BODY_PART,
    FIXED_PARTS,
    MAGIC_BLANK,
    MAGIC_V1,
    MIN_MESSAGE_SIZE,
    SOUND_PART,
    START,
    START_SIZE,
    SysFlag,
)

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
_OWN_AT = SOUND_PART.pack(0, 0, 0, -1, 0, 0).index(0xFF)
_SAME = [at + byte for at in (_SIZE_AT, _MAGIC_AT, _FLAG_AT, _LENGTH_AT) for byte in range(4)]


@lru_cache(maxsize=64)
def _bodies(size: int, body_size: int) -> Struct:
    """Of a record of C{size} bytes, its body."""
    return Struct(f"{BODY_PART.size}x{body_size}s{size - BODY_PART.size - body_size}x")


@lru_cache(maxsize=64)
def _numbers(count: int) -> Struct:
    return Struct(f">{count}I")


@lru_cache(maxsize=64)
def _offsets(count: int) -> Struct:
    return Struct(f">{count}q")


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


_BORN_V6, _STORE_V6 = int(SysFlag.BORN_HOST_V6), int(SysFlag.STORE_HOST_V6)
_V6 = _BORN_V6 | _STORE_V6

#: Bytes from the start of a record to its body, with IPv4 addresses.
_SHORT = BODY_PART.size


class BodyCheck:
    """
    Invariant: the current record ends at C{_end}; C{_left} bytes of its body are missing, and C{_crc} is the
    checksum of the others. C{_head} holds the bytes of the next record while they are too few to show the
    length of its body.

    @ivar fed: offset after the bytes taken so far.
    """

    __slots__ = ("_crc", "_end", "_file_size", "_head", "_left", "_start", "_wanted", "fed")

    def __init__(self, file_size: int, end: int) -> None:
        self._file_size = file_size
        self.restart(end)

    def restart(self, end: int) -> None:
        """The next byte is at offset C{end}, where a record begins."""
        self.fed = self._start = self._end = end
        self._head = b""
        self._left = self._crc = self._wanted = 0

    def copy(self) -> BodyCheck:
        """An independent walk from the same state."""
        twin = BodyCheck.__new__(BodyCheck)
        twin._file_size = self._file_size
        twin.fed = self.fed
        twin._head = self._head
        twin._start = self._start
        twin._end = self._end
        twin._head = self._head
        twin._left = self._left
        twin._crc = self._crc
        twin._wanted = self._wanted
        return twin

    def feed(self, data: bytes | memoryview) -> None:
        """
        Take the next bytes, which must not cross the end of a file.

        @raise WireError: a body does not have its checksum; the walk is then unusable.
        """
        start, view = self.fed, memoryview(data)
        if self._head:
            start -= len(self._head)
            view = memoryview(self._head + bytes(data))
            self._head = b""
        size = len(view)
        at = self._take(view, 0) if self._left else 0
        at = max(at, min(self._end - start, size))
        while at < size:
            count, length = equal_records(view, at)
            while count and are_bodies_right(view, at, count, length):
                at += count * length
                count, length = equal_records(view, at)
            at = self._short_road(view, at, start)
            if at < size:
                at = self._begin(view, at, start)
        self.fed = start + size

    def _short_road(self, view: memoryview, at: int, start: int) -> int:
        """Check the usual records that are whole in C{view}. @return: index of the first other one."""
        unpack, size = BODY_PART.unpack_from, len(view)
        last = size - _SHORT
        while at <= last:
            length, magic, wanted, sys_flag, body = unpack(view, at)
            following = at + length
            if following > size or sys_flag & _V6 or magic == MAGIC_BLANK:
                break
            body_at = at + _SHORT
            if not 0 <= body <= length - _SHORT:
                raise WireError(f"log at {start + at}: bodyLength={body} in a record of {length}")
            if body and crc32(view[body_at : body_at + body]) & 0x7FFFFFFF != wanted:
                raise _wrong(start + at, wanted, crc32(view[body_at : body_at + body]))
            at = following
        return at

    def _begin(self, view: memoryview, at: int, start: int) -> int:
        """Begin any record. @return: index after the bytes that are used up."""
        size, left = len(view), len(view) - at
        if left >= START_SIZE and START.unpack_from(view, at)[1] == MAGIC_BLANK:
            offset = start + at
            self._end = offset - offset % self._file_size + self._file_size
            return size
        body_at = _SHORT
        if left >= _SHORT:
            length, _, wanted, sys_flag, body = BODY_PART.unpack_from(view, at)
            if sys_flag & _V6:
                form = FIXED_PARTS[bool(sys_flag & _BORN_V6), bool(sys_flag & _STORE_V6)]
                body_at = form.size
                body = form.unpack_from(view, at)[-1] if left >= body_at else 0
        if left < body_at:
            self._end = start + at
            self._head = bytes(view[at:])
            return size
        if not 0 <= body <= length - body_at:
            raise WireError(f"log at {start + at}: bodyLength={body} in a record of {length}")
        following = at + int(length)
        self._start = start + at
        self._end = start + following
        self._left = body
        self._crc = 0
        self._wanted = wanted
        if body:
            self._take(view, at + body_at)
        return min(following, size)

    def _take(self, view: memoryview, at: int) -> int:
        """Take the body's bytes from C{at} on. @return: index after them."""
        body = view[at : at + self._left]
        self._crc = crc32(body, self._crc)
        self._left -= len(body)
        if not self._left and self._crc & 0x7FFFFFFF != self._wanted:
            raise _wrong(self._start, self._wanted, self._crc)
        return at + len(body)


def _fits_and_is_ours(data: bytes, offset: int, size: int, count: int) -> bool:
    """Whether records that are like the first one have their own offsets, and lengths like its."""
    own = _offsets(count).pack(*range(offset, offset + count * size, size))
    topic_at = _SHORT + BODY_PART.unpack_from(data)[-1]
    lengths_at = topic_at + 1 + data[topic_at]
    return (
        all(own[byte::8] == data[_OWN_AT + byte : count * size : size] for byte in range(8))
        and all(data[at : count * size : size] == data[at : at + 1] * count
                for at in (topic_at, lengths_at, lengths_at + 1))
    )


def sound_run(data: bytes, offset: int) -> tuple[int, int]:
    """
    The number of records at the beginning of C{data} that have one size and are all as L{is_usual_and_sound}
    wants them, and their size; (0, 0) if they are few, or one is not so.

    @param offset: of the first in the log; no bytes are between two of them.
    """
    view = memoryview(data)
    count, size = equal_records(view, 0)
    if (
        not count or not is_usual_and_sound(data[:size], offset)
        or not _fits_and_is_ours(data, offset, size, count) or not are_bodies_right(view, 0, count, size)
    ):
        return 0, 0
    return count, size


def is_usual_and_sound(record: bytes, offset: int) -> bool:
    """
    The fast path of a broker that serves a record: whether it has the usual form (V1, IPv4 addresses), the
    offset where it is, a body with its checksum, and lengths that end where it ends: a reader goes by them to
    the next record. False says nothing of the record.

    @param offset: of the record in the log.
    """
    length = len(record)
    if length < MIN_MESSAGE_SIZE:
        return False
    size, magic, wanted, own, sys_flag, body = SOUND_PART.unpack_from(record)
    if (size, magic, own) != (length, MAGIC_V1, offset) or sys_flag & _V6 or not 0 <= body <= size - _SHORT:
        return False
    topic_at = _SHORT + body
    left = size - topic_at - 3 - record[topic_at] if topic_at < size else -1
    if left < 0 or int.from_bytes(record[size - left - 2 : size - left]) != left:
        return False
    return not body or crc32(record[_SHORT:topic_at]) & 0x7FFFFFFF == wanted


def body_problem(record: bytes, at: int, offset: int) -> str:
    """
    Check the body of the record at C{at}, whose length is known to be right.

    @param offset: of the record in the log.
    @return: why it is not sound; empty if it is.
    """
    length, _, wanted, sys_flag, body = BODY_PART.unpack_from(record, at)
    body_at = at + _SHORT
    if sys_flag & _V6:
        form = FIXED_PARTS[bool(sys_flag & _BORN_V6), bool(sys_flag & _STORE_V6)]
        body_at = at + form.size
        body = form.unpack_from(record, at)[-1] if body_at <= at + length else -1
    if not 0 <= body <= at + length - body_at:
        return f"log at {offset}: bodyLength={body} in a record of {length}"
    if body and crc32(memoryview(record)[body_at : body_at + body]) & 0x7FFFFFFF != wanted:
        return str(_wrong(offset, wanted, crc32(memoryview(record)[body_at : body_at + body])))
    return ""


def _wrong(offset: int, wanted: int, crc: int) -> WireError:
    return WireError(
        f"log at {offset}: bodyCRC={wanted & 0xFFFFFFFF:08x}, but its body has {crc & 0x7FFFFFFF:08x}"
    )
