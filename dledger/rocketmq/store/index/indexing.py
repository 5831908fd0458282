# -*- test-case-name: tests.broker.store.test_indexing -*-
"""
Puts the keys of dispatched records into the index, after the dispatch.

It reads the log again, in slices of its own, and gives way: while the dispatch has a backlog, the index
waits, until it is L{BEHIND_BYTES_MAX} behind the dispatch. A message can be found by its key about
L{DELAY_S} after it can be consumed.

A record has the key in property C{UNIQ_KEY}, and each word of property C{KEYS}. Rolled back transactions have
none. Damage in the log below the dispatched offset is passed over, and the log names it: the next record with
its own offset in it is where the index goes on.

Source: IndexService.buildIndex (4.9.8, 5.3.3).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from dledger.rocketmq.store.index.key_index import KeyIndex
from dledger.rocketmq.store.records.key_hash import (
    QUAD_FACTOR,
    QUAD_SIZE,
    TAIL_SIZE,
    USUAL_SIZE,
    KeyHashes,
)
from dledger.rocketmq.store.records.message_log import MessageLog
from dledger.rocketmq.store.records.records import keyed_part_of, property_of
from protocols.wire.errors import WireError
from protocols.wire.rocketmq.layout import (
    HEAD_SIZE,
    INDEXED_PART,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    MIN_MESSAGE_SIZE,
    START,
    START_SIZE,
    TRANSACTION_MASK,
    WALKED,
    SysFlag,
)

#: Seconds from the dispatch of a record to the index: many records in one slice cost less.
DELAY_S = 0.02
#: Bytes of a slice, one or two milliseconds of work with small messages; more if the index is too far behind.
SLICE_BYTES = 128 * 1024
SLICE_BYTES_MAX = 512 * 1024
#: Bytes between index and dispatch from which on the index does not wait for the dispatch.
BEHIND_BYTES_MAX = 64 * 1024 * 1024
#: Bytes of the dispatch's backlog for which the index waits.
BUSY_BYTES = 256 * 1024
#: Slices that an orderly end works through at most.
LAST_SLICES_MAX = 1024
#: Seconds until the index goes on that lacked room or could not read.
SCARCE_S = 1.0

_UNIQ_KEY, _KEYS = b"UNIQ_KEY\x01", b"KEYS\x01"
_UNIQ_SIZE, _KEYS_SIZE = len(_UNIQ_KEY), len(_KEYS)
#: Bytes from C{_UNIQ_KEY} to the tail of a key of the usual length.
_TAIL_AT = _UNIQ_SIZE + USUAL_SIZE - TAIL_SIZE
_ROLLBACK = int(SysFlag.ROLLBACK)
_UNUSUAL = int(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6) | TRANSACTION_MASK
_MAGICS = tuple((magic & 0xFFFFFFFF).to_bytes(4, "big") for magic in (MAGIC_V1, MAGIC_V2))
#: Bytes of a record that are read to find its keys.
FIXED_SIZE = INDEXED_PART.size


class Ahead(Protocol):
    """The dispatch."""

    @property
    def offset(self) -> int:
        """Every record before this offset is in its queue; one ends there."""

    @property
    def behind_bytes(self) -> int:
        """Bytes that are not dispatched."""


def keys_of(properties: bytes) -> Sequence[bytes]:
    """The keys in the properties of a message, as the index has them."""
    unique = property_of(properties, _UNIQ_KEY)
    words = property_of(properties, _KEYS)
    keys = [] if unique is None else [unique]
    return keys if words is None else [*keys, *filter(None, words.split(b" "))]


class KeyIndexing:
    """
    Invariant: C{_call} is the slice that is scheduled, or None.

    @ivar index: the index.
    """

    log_events = Logger()

    def __init__(self, index: KeyIndex, log: MessageLog, *, clock: IReactorTime) -> None:
        self.index = index
        self._log = log
        self._clock = clock
        self._hashes = KeyHashes()
        self._ahead: Ahead | None = None
        self._call: IDelayedCall | None = None
        self._last: Deferred[None] | None = None
        self._slices_left = 0
        self._passed_to = -1

    @property
    def behind_bytes(self) -> int:
        """Bytes between index and dispatch."""
        return 0 if self._ahead is None else max(self._ahead.offset - self.index.offset, 0)

    def start(self, ahead: Ahead) -> None:
        """Follow the dispatch from now on."""
        self._ahead = ahead
        self.wake()

    def wake(self) -> None:
        """Records are dispatched."""
        if self._call is None and self._ahead is not None and self.behind_bytes and not self.index.why_failed:
            self._call = self._clock.callLater(DELAY_S, self._turn)

    def hurry(self) -> None:
        """Somebody waits for what is dispatched: go on at once."""
        if self._call is not None and not self.index.is_stuffed and self._last is None:
            self._call.reset(0)
        elif self._call is None:
            self.wake()

    def tick(self) -> None:
        """Write the entries in memory; look for dispatched records. Called twice a second."""
        try:
            self.index.write()
        except OSError as error:
            self.index.failed(error)
        self.wake()

    def close(self, *, is_clean: bool) -> None:
        """Stop, and release the files; see L{KeyIndex.close}. May be repeated."""
        self.stop()
        try:
            self.index.close(is_clean=is_clean)
        except OSError as error:
            self.index.failed(error)

    def stop(self) -> None:
        """Put nothing any more."""
        self._ahead = None
        if self._call is not None:
            self._call.cancel()
            self._call = None
        self._end()

    def finish(self) -> Deferred[None]:
        """
        The store is closed.

        @return: fires when the index has caught up with the dispatch, or after L{LAST_SLICES_MAX} slices.
        """
        if not self.behind_bytes or self.index.why_failed:
            self.stop()
            return succeed(None)
        last = self._last = Deferred()
        self._slices_left = LAST_SLICES_MAX
        if self._call is not None:
            self._call.cancel()
        self._call = self._clock.callLater(0, self._turn)
        return last

    def _end(self) -> None:
        last, self._last = self._last, None
        if last is not None:
            last.callback(None)

    def _turn(self) -> None:
        self._call = None
        ahead, behind = self._ahead, self.behind_bytes
        if ahead is None or not behind or self.index.why_failed:
            self._end()
            return
        if self._last is None and behind < BEHIND_BYTES_MAX and ahead.behind_bytes > BUSY_BYTES:
            delay_s = DELAY_S
        else:
            delay_s = self._try_slice(ahead.offset, behind)
        self._slices_left -= 1
        if self._last is not None and (not self._slices_left or delay_s):
            self._end()
        elif self.behind_bytes:
            self._call = self._clock.callLater(delay_s, self._turn)
        else:
            self._end()

    def _try_slice(self, bound: int, behind: int) -> float:
        """@return: seconds until the next slice."""
        if self.index.is_stuffed:
            return SCARCE_S
        try:
            self.step(bound, SLICE_BYTES if behind < BEHIND_BYTES_MAX else SLICE_BYTES_MAX)
        except OSError as error:
            self.index.failed(error)
            return SCARCE_S
        except WireError as error:
            return self._pass_over(bound, str(error))
        return 0.0

    def _pass_over(self, bound: int, reason: str) -> float:
        """Go on after damage. @return: seconds until the next slice."""
        index = self.index
        offset = max(index.offset, self._log.begin_offset)
        try:
            end = min(self._next_record(offset, bound), bound)
        except OSError as error:
            index.failed(error)
            return SCARCE_S
        if offset != self._passed_to:
            self.log_events.warn("index: skipping the records from {offset} on: {reason}",
                                 offset=offset, reason=reason)
        index.put((), end)
        self._passed_to = end
        return 0.0

    def _next_record(self, offset: int, bound: int) -> int:
        """
        Where a record seems to begin after C{offset}, in the same file; if none does in L{SLICE_BYTES_MAX}
        bytes, the end of what was searched.

        @raise OSError: reading failed.
        """
        room = self._log.file_size - offset % self._log.file_size
        data = self._log.read(offset, min(SLICE_BYTES_MAX, room, bound - offset))
        begins = [at for magic in _MAGICS for at in _places(data, magic) if len(data) - at >= HEAD_SIZE]
        for at in sorted(begins):
            size, _, own = WALKED.unpack_from(data, at)
            if own == offset + at and MIN_MESSAGE_SIZE <= size <= room - at:
                return offset + at
        is_all = len(data) in (0, room, bound - offset)
        return offset + (max(len(data), 1) if is_all else max(len(data) - HEAD_SIZE, 1))

    def log_was_cut(self, log_end: int) -> None:
        """The log ends at C{log_end} now; an empty one begins there."""
        index, log = self.index, self._log
        try:
            if log.begin_offset == log_end:
                index.clear(log_end)
            else:
                index.cut(log_end)
        except OSError as error:
            index.failed(error)

    # -- a slice -----------------------------------------------------------------------------------

    def step(self, bound: int, bytes_max: int) -> None:
        """
        Put the keys of the records in C{bytes_max} bytes, but of at least one, before C{bound}, where a
        record ends.

        @raise WireError: the log is damaged there.
        @raise OSError: reading or writing failed.
        """
        log, index = self._log, self.index
        offset = max(index.offset, log.begin_offset)
        room = log.file_size - offset % log.file_size
        data = log.read(offset, min(max(bytes_max, START_SIZE), room, bound - offset))
        found, size = self._records(data, offset, room)
        if not size and data:
            size = self._size(data)
            if not len(data) < size <= room:
                raise WireError(f"no record of {size} bytes begins at {offset}")
            data = log.read(offset, size)
            found, size = self._records(data, offset, room)
        if not size:
            raise WireError(f"the log ends at {offset}, before {bound}")
        index.put(self._keys(data, offset, found), min(offset + size, bound))

    def _size(self, data: bytes) -> int:
        """Bytes of the record at the start of C{data}, with what is before it; 0: there are too few bytes."""
        return START.unpack_from(data)[0] if len(data) >= START_SIZE else 0

    def _records(
        self, data: bytes, offset: int, room: int
    ) -> tuple[list[tuple[int, int, tuple[int, ...]]], int]:
        """
        The whole records in C{data}, which is from C{offset} of the log on.

        @return: where each begins and ends, and the fields of its L{INDEXED_PART}; and the bytes of all, to
            the end of the file after the last one.
        @raise WireError: no record begins where one must.
        """
        found: list[tuple[int, int, tuple[int, ...]]] = []
        at, end, unpack, put = 0, len(data), INDEXED_PART.unpack_from, found.append
        while end - at >= FIXED_SIZE:
            fields = unpack(data, at)
            behind = at + fields[0]
            if fields[1] == MAGIC_BLANK or behind > end:
                break
            if behind - at < MIN_MESSAGE_SIZE:
                if found:
                    break  # the next slice meets it
                raise WireError(f"no record begins at {offset + at}: size={fields[0]}")
            put((at, behind, fields))
            at = behind
        if end - at >= START_SIZE and START.unpack_from(data, at)[1] == MAGIC_BLANK:
            at = room
        return found, at

    def _keys(
        self, data: bytes, offset: int, records: list[tuple[int, int, tuple[int, ...]]]
    ) -> list[tuple[int, int, int]]:
        """The keys of records, see L{IndexFile.put}. C{data} is from C{offset} of the log on."""
        keys: list[tuple[int, int, int]] = []
        put, find_last, hashes = keys.append, data.rfind, self._hashes
        beginnings, quads = hashes.beginnings, hashes.quads
        for at, end, (_, magic, _, _, flags, timestamp, body_length) in records:
            length_at = at + FIXED_SIZE + body_length
            if magic != MAGIC_V1 or flags & _UNUSUAL or body_length < 0 or length_at + 4 > end:
                keys += self._unusual(data[at:end], offset + at)
                continue
            properties_at = length_at + 1 + data[length_at]
            unique = find_last(_UNIQ_KEY, properties_at, end)
            words = find_last(_KEYS, properties_at, end)
            if unique < 0 and words < 0:
                continue
            tail = unique + _TAIL_AT
            rest = tail + TAIL_SIZE
            if words < 0 and (rest == end or (rest < end and data[rest] == 2)):
                try:  # the fast path of KeyHashes.of
                    value = (
                        beginnings[data[length_at:tail]]
                        + quads[data[tail : tail + QUAD_SIZE]] * QUAD_FACTOR
                        + quads[data[tail + QUAD_SIZE : rest]]
                    ) & 0xFFFFFFFF
                except KeyError:
                    pass
                else:
                    put((value if value < 0x80000000 else -value & 0x7FFFFFFF, offset + at, timestamp))
                    continue
            texts = _usual_keys(data, properties_at + 2, end, unique, words)
            if texts is None:
                texts = keys_of(data[properties_at + 2 : end])
            elif words < 0 and len(texts[0]) == USUAL_SIZE:
                hashes.learn(data[length_at:tail], data[length_at + 1 : properties_at], texts[0])
            for key in texts:
                put((hashes.of(data[length_at + 1 : properties_at], key), offset + at, timestamp))
        return keys

    def _unusual(self, record: bytes, offset: int) -> list[tuple[int, int, int]]:
        """The keys of a record of any kind; none if it is damaged: it cannot be read by its key, either."""
        try:
            topic, properties, transaction, timestamp = keyed_part_of(record, offset)
        except WireError:
            return []
        texts = keys_of(properties) if transaction != _ROLLBACK else ()
        return [(self._hashes.of(topic, key), offset, timestamp) for key in texts]


def _places(data: bytes, magic: bytes) -> Iterator[int]:
    """Where records with this magic may begin, after the first byte."""
    found = data.find(magic, 5)
    while found >= 0:
        yield found - 4
        found = data.find(magic, found + 1)


def _usual_keys(data: bytes, begin: int, end: int, unique: int, words: int) -> Sequence[bytes] | None:
    """
    As L{keys_of}, of the properties from C{begin} to C{end} of C{data}; None: use that.

    @param unique, words: where the names of the two were found last; -1: nowhere, of one only.
    """
    first = second = b"-"
    if unique >= 0:
        last = data.find(2, unique, end)
        first = data[unique + _UNIQ_SIZE : last] if last >= 0 else data[unique + _UNIQ_SIZE : end]
        if unique != begin and data[unique - 1] != 2:
            first = b""
    if words >= 0:
        last = data.find(2, words, end)
        second = data[words + _KEYS_SIZE : last] if last >= 0 else data[words + _KEYS_SIZE : end]
        if words != begin and data[words - 1] != 2:
            second = b""
    if not first or not second or 1 in first or 1 in second or 32 in second:
        return None
    return (second,) if unique < 0 else (first,) if words < 0 else (first, second)
