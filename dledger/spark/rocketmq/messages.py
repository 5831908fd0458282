# -*- test-case-name: tests.spark.test_messages -*-
"""
C{format=rocketmq}: one row for each message, without a Python object for each message.

The place of each part of a message depends on the lengths before it, so the parts are found step by step,
each step for all messages of a chunk at once: fixed head, lengths of addresses by their flags, body length,
topic length, properties length. A message whose lengths do not add up is damaged. The rules are those of
L{protocols.wire.rocketmq.message}, which also gives the text of an error; tests compare the two.

Topics that are not UTF-8 are looked at one by one.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dledger.spark.formats.bodies import plain
from dledger.spark.formats.log import Chunk, DamageError, FixedParts, Offsets, ReadError
from dledger.spark.formats.options import ScanOptions
from dledger.spark.formats.record_headers import Place, gather, sound_headers
from dledger.spark.ledger.columns import Column, Decoder, native, slices
from dledger.spark.rocketmq.choice import by_properties, by_time, by_topic, has_choice
from dledger.spark.rocketmq.properties import MAP, PropertyColumns
from protocols.wire.checksums import crc32
from protocols.wire.errors import WireError
from protocols.wire.layout import dtype_of
from protocols.wire.ledger.entry import ENTRY_HEADER_SIZE
from protocols.wire.rocketmq.layout import (
    DLEDGER_BODY_OFFSET,
    HEAD_DECLARATION,
    HEAD_SIZE,
    MAGIC_V1,
    MAGIC_V2,
    MIN_MESSAGE_SIZE,
    TRANSACTION_MASK,
    SysFlag,
)
from protocols.wire.rocketmq.message import decode_message

assert DLEDGER_BODY_OFFSET == ENTRY_HEADER_SIZE
HEAD_DTYPE = np.dtype(dtype_of(HEAD_DECLARATION))
assert HEAD_DTYPE.itemsize == HEAD_SIZE
_BIG64, _BIG32, _BIG16, _SMALL = np.dtype(">i8"), np.dtype(">i4"), np.dtype(">i2"), np.dtype("i1")
#: The head, and what is after it where both addresses are of IPv4.
_FIXED_DTYPE = np.dtype([
    *HEAD_DTYPE.descr, ("born_host", "V8"), ("store_timestamp", ">i8"), ("store_host", "V8"),
    ("reconsume_times", ">i4"), ("prepared_transaction_offset", ">i8"), ("body_length", ">i4"),
])
_V6_FLAGS = int(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)
#: Bytes of an address and its port.
_V4_SIZE, _V6_SIZE = 8, 20
#: Limit for all unpacked bodies of one batch.
_UNPACKED_BYTES_MAX = 256 * 1024 * 1024
#: Milliseconds beyond this bound, in either direction, are not a time.
_MS_MAX = 2**62 // 1000

_TIME = pa.timestamp("us", tz="UTC")

#: C{format=rocketmq}. C{index} and C{term} are null if the log is a broker's commit log.
MESSAGE_COLUMNS: tuple[Column, ...] = (
    Column(name="index", arrow=pa.int64(), ddl="BIGINT"),
    Column(name="term", arrow=pa.int64(), ddl="BIGINT"),
    Column(name="topic", arrow=pa.string(), ddl="STRING"),
    Column(name="queueId", arrow=pa.int32(), ddl="INT"),
    Column(name="queueOffset", arrow=pa.int64(), ddl="BIGINT"),
    Column(name="physicalOffset", arrow=pa.int64(), ddl="BIGINT"),
    Column(name="keys", arrow=pa.string(), ddl="STRING"),
    Column(name="tags", arrow=pa.string(), ddl="STRING"),
    Column(name="bornTimestamp", arrow=_TIME, ddl="TIMESTAMP"),
    Column(name="storeTimestamp", arrow=_TIME, ddl="TIMESTAMP"),
    Column(name="flag", arrow=pa.int32(), ddl="INT"),
    Column(name="sysFlag", arrow=pa.int32(), ddl="INT"),
    Column(name="reconsumeTimes", arrow=pa.int32(), ddl="INT"),
    Column(name="preparedTransactionOffset", arrow=pa.int64(), ddl="BIGINT"),
    Column(name="bodyCrc", arrow=pa.int32(), ddl="INT"),
    Column(name="properties", arrow=MAP, ddl="MAP<STRING,STRING>"),
    Column(name="body", arrow=pa.binary(), ddl="BINARY"),
)
_HEAD_FIELDS = {"queueid": "queue_id", "queueoffset": "queue_offset", "physicaloffset": "physical_offset",
                "flag": "flag", "sysflag": "sys_flag", "bodycrc": "body_crc"}
_FROM_PROPERTIES = {"keys": "KEYS", "tags": "TAGS"}


@attrs.frozen(kw_only=True, eq=False)
class Found:
    """
    The places of the parts of messages, and the numbers in them, as arrays of one length. Values of unsound
    messages have no meaning.

    @ivar stored_ms: the broker's clock.
    @ivar topics: where they are known to be texts.
    """

    data: bytes | memoryview
    starts: Offsets
    ends: Offsets
    is_sound: NDArray[np.bool_]
    head: FixedParts
    stored_ms: NDArray[np.int64]
    reconsumed: NDArray[np.int32]
    prepared: NDArray[np.int64]
    body: Offsets
    body_ends: Offsets
    topic: Offsets
    topic_ends: Offsets
    properties: Offsets
    topics: pa.StringArray | None = None

    def only(self, chosen: NDArray[np.bool_]) -> Found:
        """The chosen messages."""
        if chosen.all():
            return self
        names = [field.name for field in attrs.fields(Found) if field.name not in ("data", "topics")]
        topics = None if self.topics is None else self.topics.filter(pa.array(chosen))
        return Found(data=self.data, topics=topics, **{name: getattr(self, name)[chosen] for name in names})


def _at(data: bytes | memoryview, offsets: Offsets, dtype: np.dtype[np.generic]) -> NDArray[np.int64]:
    """The numbers at C{offsets}; arbitrary where an offset is out of bounds."""
    bounded = np.clip(offsets, 0, max(len(data) - dtype.itemsize, 0))
    return gather(data, bounded, dtype).astype(np.int64)


def _middles(
    data: bytes | memoryview, starts: Offsets, fixed: FixedParts
) -> tuple[Offsets, NDArray[np.int64], NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
    """
    What is between the fixed head and the body.

    @return: where bodies begin; store times, numbers of redeliveries, offsets of transactions; lengths of
        bodies.
    """
    flags = fixed["sys_flag"].astype(np.int64)
    if not (flags & _V6_FLAGS).any():
        names = ("store_timestamp", "prepared_transaction_offset", "body_length")
        stored, prepared, length = (fixed[name].astype(np.int64) for name in names)
        reconsumed = fixed["reconsume_times"].astype(np.int32)
        return starts + _FIXED_DTYPE.itemsize, stored, reconsumed, prepared, length
    middle = starts + HEAD_SIZE + np.where(flags & SysFlag.BORN_HOST_V6, _V6_SIZE, _V4_SIZE)
    tail = middle + 8 + np.where(flags & SysFlag.STORE_HOST_V6, _V6_SIZE, _V4_SIZE)
    return (tail + 16, _at(data, middle, _BIG64), _at(data, tail, _BIG32).astype(np.int32),
            _at(data, tail + 4, _BIG64), _at(data, tail + 12, _BIG32))


def find(data: bytes | memoryview, starts: Offsets, ends: Offsets, physical: Offsets) -> Found:
    """
    Find the parts of messages.

    @param starts, ends: where each must begin and end; within C{data}, at least L{MIN_MESSAGE_SIZE} apart.
    @param physical: the C{physical_offset} that each must hold.
    """
    head = gather(data, starts, _FIXED_DTYPE)
    magic = head["magic"].astype(np.int32)
    is_second = magic == MAGIC_V2
    is_sound: NDArray[np.bool_] = (magic == MAGIC_V1) | is_second
    is_sound &= (head["size"] == ends - starts) & (head["physical_offset"] == physical)
    body, stored_ms, reconsumed, prepared, length = _middles(data, starts, head)
    topic_word = is_second + 1
    # Bytes left for the body, if topic and properties are empty.
    room = ends - 2 - topic_word - body
    is_sound &= (room >= 0) & (length >= 0) & (length <= room)
    body_ends = np.where(is_sound, body + length, body)
    topic = body_ends + topic_word
    topic_length = _at(data, body_ends, _SMALL)
    if is_second.any():
        topic_length = np.where(is_second, _at(data, body_ends, _BIG16), topic_length)
    is_sound &= (topic_length >= 0) & (topic_length <= ends - 2 - topic)
    topic_ends = np.where(is_sound, topic + topic_length, topic)
    properties = topic_ends + 2
    is_sound &= _at(data, topic_ends, _BIG16) == ends - properties
    return Found(data=data, starts=starts, ends=ends, is_sound=is_sound, head=head, stored_ms=stored_ms,
                 reconsumed=reconsumed, prepared=prepared, body=body, body_ends=body_ends, topic=topic,
                 topic_ends=topic_ends, properties=properties)


def cut_out(data: bytes | memoryview, begins: Offsets, ends: Offsets) -> pa.Array:
    """The bytes from each begin to its end; pieces are in order and do not overlap."""
    edges = np.empty(2 * len(begins), dtype=np.int32)
    edges[0::2], edges[1::2] = begins, ends
    if not len(begins):
        return pa.array([], type=pa.binary())
    # Every other piece is the gap between two of them.
    return slices(data, edges).take(pa.array(np.arange(0, 2 * len(begins) - 1, 2)))


def _texts(raw: pa.Array) -> pa.Array | None:
    """As strings; None if some are not UTF-8."""
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        return None


def _is_text(value: bytes) -> bool:
    try:
        value.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _times(ms: NDArray[np.int64]) -> pa.Array:
    is_none = np.abs(ms) > _MS_MAX
    return pa.array(np.where(is_none, 0, ms) * 1000, type=pa.int64(), mask=is_none).cast(_TIME)


class MessageDecoder(Decoder):
    """Decodes chunks of a ledger's entries, or of a broker's commit log, to rows."""

    kind = "messages"
    needs_data = True

    def __init__(self, options: ScanOptions, columns: Sequence[Column], *, in_entries: bool) -> None:
        """@param in_entries: records are entries of a ledger, and messages their bodies."""
        super().__init__(options, columns)
        self._in_entries = in_entries
        self._place = Place()
        self._chooses = has_choice(options)
        self._unpacks = options.decompress and "body" in self._names

    def decode(self, chunk: Chunk) -> pa.RecordBatch:
        """
        The rows of a chunk.

        @raise DamageError: C{failOnDamage} is set, and a message is damaged, or an entry with a body is not a
            message.
        """
        assert chunk.data is not None
        starts, ends = chunk.starts[:-1], chunk.starts[1:]
        headers: FixedParts | None = None
        kept = np.ones(chunk.count, dtype=np.bool_)
        is_message = kept
        if self._in_entries:
            headers, kept = sound_headers(chunk, self._options, self._place)
            self.damaged += int(np.count_nonzero(~kept))
            starts = starts + ENTRY_HEADER_SIZE
            is_message = kept & (ends > starts)
            physical = headers["pos"].astype(np.int64) + DLEDGER_BODY_OFFSET
        else:
            physical = chunk.first + starts if chunk.positions is None else chunk.positions
        numbers = np.flatnonzero(is_message)
        is_sound = np.zeros(chunk.count, dtype=np.bool_)
        large = numbers[(ends - starts)[numbers] >= MIN_MESSAGE_SIZE]
        found = find(chunk.data, starts[large], ends[large], physical[large])
        left_out = self._left_out(found)
        found, unpacked = self._checked(attrs.evolve(found, is_sound=found.is_sound & ~left_out))
        is_sound[large] = found.is_sound
        bad = is_message & ~is_sound
        bad[large] &= ~left_out
        if bad.any():
            self._note(chunk, np.flatnonzero(bad), starts, ends, physical)
        found = found.only(found.is_sound)
        if self._in_entries and self._options.include_internal:
            return self._spread(found, unpacked, headers, is_sound, kept & ~is_message)
        return self._batch(found, unpacked, headers[is_sound] if headers is not None else None)

    def _left_out(self, found: Found) -> NDArray[np.bool_]:
        """Which sound messages the options leave out."""
        left_out = np.zeros(len(found.starts), dtype=np.bool_)
        if self._in_entries and not self._options.include_internal:
            # With such a record a broker on a raft log begins a term; no consumer gets it.
            types = found.head["sys_flag"] & TRANSACTION_MASK
            left_out |= found.is_sound & (types == int(SysFlag.ROLLBACK))
        if not self._chooses:
            return left_out
        numbers = np.flatnonzero(found.is_sound & ~left_out)
        left = found.only(found.is_sound & ~left_out)
        left_out[numbers] = True
        # The cheap ones first.
        for choose in (self._by_time, self._by_topic, self._by_properties):
            chosen = choose(left)
            left, numbers = left.only(chosen), numbers[chosen]
        left_out[numbers] = False
        return left_out

    def _by_time(self, found: Found) -> NDArray[np.bool_]:
        return by_time(self._options, found.stored_ms)

    def _by_topic(self, found: Found) -> NDArray[np.bool_]:
        return by_topic(self._options, cut_out(found.data, found.topic, found.topic_ends))

    def _by_properties(self, found: Found) -> NDArray[np.bool_]:
        return by_properties(self._options, cut_out(found.data, found.properties, found.ends))

    def _checked(self, found: Found) -> tuple[Found, list[bytes]]:
        """
        Do the slow checks: CRCs of bodies, topics that must be text, bodies to unpack.

        @return: C{found} with C{is_sound} also false where a check failed; and the plain bodies of the sound
            messages that are compressed, in order, if bodies are unpacked.
        """
        is_sound = found.is_sound.copy()
        numbers = np.flatnonzero(is_sound)
        view = memoryview(found.data)
        if self._options.verify_crc:
            recorded = found.head["body_crc"]
            for at in numbers.tolist():
                first, last = found.body[at], found.body_ends[at]
                is_sound[at] = first == last or crc32(view[first:last]) & 0x7FFFFFFF == recorded[at]
        sound = found.only(is_sound)
        topics = cut_out(sound.data, sound.topic, sound.topic_ends)
        texts = _texts(topics)
        if texts is None:
            are_texts = [_is_text(topic) for topic in topics.to_pylist()]
            is_sound[np.flatnonzero(is_sound)] = are_texts
        elif is_sound.all():
            found = attrs.evolve(found, topics=texts)
        unpacked = self._unpack(found, is_sound) if self._unpacks else []
        return attrs.evolve(found, is_sound=is_sound), unpacked

    def _unpack(self, found: Found, is_sound: NDArray[np.bool_]) -> list[bytes]:
        """Plain bodies of the compressed messages; clears C{is_sound} where a body cannot be unpacked."""
        flags = found.head["sys_flag"]
        unpacked: list[bytes] = []
        view, left = memoryview(found.data), _UNPACKED_BYTES_MAX
        for at in np.flatnonzero(is_sound & ((flags & SysFlag.COMPRESSED) != 0)).tolist():
            try:
                body = plain(view[found.body[at] : found.body_ends[at]], int(flags[at]))
            except WireError:
                is_sound[at] = False
                continue
            left -= len(body)
            if left < 0:
                raise ReadError(f"the bodies in {self._options.fetch_bytes} bytes of log are more than "
                                f"{_UNPACKED_BYTES_MAX} bytes when unpacked: take a smaller fetchBytes, or "
                                "decompress=false")
            unpacked.append(body)
        return unpacked

    def _note(
        self, chunk: Chunk, bad: Offsets, starts: Offsets, ends: Offsets, physical: Offsets
    ) -> None:
        self.damaged += len(bad)
        if not self._options.fail_on_damage:
            return
        at = int(bad[0])
        assert chunk.data is not None
        record = bytes(memoryview(chunk.data)[int(starts[at]) : int(ends[at])])
        what = "lengths do not add up"
        try:
            message = decode_message(record, physical_offset=int(physical[at]))
            if len(record) != message.size:
                what = f"{len(record) - message.size} bytes after the message"
            elif message.is_compressed:
                plain(message.body, message.sys_flag)
        except WireError as error:
            what = str(error)
        name = f"entry {chunk.first + at}" if self._in_entries else f"the message at {physical[at]}"
        place_at = chunk.place_at + int(chunk.starts[at])
        place = f"{chunk.place} at {place_at if chunk.positions is None else int(physical[at])}"
        raise DamageError(f"{name} is not a sound message: {place}: {what}. If no broker wrote this log, "
                          "leave out format=rocketmq; with failOnDamage=false the message is skipped")

    def _batch(
        self, found: Found, unpacked: list[bytes], headers: FixedParts | None
    ) -> pa.RecordBatch:
        properties = None
        if self._names & {"properties", *_FROM_PROPERTIES}:
            properties = PropertyColumns.of(cut_out(found.data, found.properties, found.ends))
        arrays = [
            self._bodies(found, unpacked) if column.name.lower() == "body"
            else self._column(column, found, headers, properties) for column in self._columns
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _column(
        self, column: Column, found: Found, headers: FixedParts | None, properties: PropertyColumns | None
    ) -> pa.Array:
        name = column.name.lower()
        if name in ("index", "term"):
            if headers is None:
                return pa.nulls(len(found.starts), type=column.arrow)
            return native(headers[name], column.arrow)
        if name in _HEAD_FIELDS:
            return native(found.head[_HEAD_FIELDS[name]], column.arrow)
        if name in _FROM_PROPERTIES or name == "properties":
            assert properties is not None
            return (properties.as_maps() if name == "properties"
                    else properties.of_name(_FROM_PROPERTIES[name]))
        if name == "topic":
            if found.topics is not None:
                return found.topics
            return cut_out(found.data, found.topic, found.topic_ends).cast(pa.string())
        if name == "borntimestamp":
            return _times(found.head["born_timestamp"].astype(np.int64))
        if name == "storetimestamp":
            return _times(found.stored_ms)
        if name == "reconsumetimes":
            return pa.array(found.reconsumed)
        assert name == "preparedtransactionoffset", name
        return pa.array(found.prepared)

    def _bodies(self, found: Found, unpacked: list[bytes]) -> pa.Array:
        stored = cut_out(found.data, found.body, found.body_ends)
        if not unpacked:
            return stored
        rows = np.arange(len(stored))
        is_packed = (found.head["sys_flag"] & SysFlag.COMPRESSED) != 0
        rows[is_packed] = len(stored) + np.arange(len(unpacked))
        both = pa.concat_arrays([stored, pa.array(unpacked, type=pa.binary())])
        return both.take(pa.array(rows))

    def _spread(
        self, found: Found, unpacked: list[bytes], headers: FixedParts | None,
        is_sound: NDArray[np.bool_], is_internal: NDArray[np.bool_],
    ) -> pa.RecordBatch:
        """Messages and entries without one, in order; for the latter only index and term are not null."""
        assert headers is not None
        batch = self._batch(found, unpacked, headers[is_sound])
        shown = is_sound | is_internal
    # Row of each shown entry among the messages; null for entries without a message.
        rows = pa.array((np.cumsum(is_sound) - 1)[shown], mask=~is_sound[shown])
        arrays = []
        for column, array in zip(self._columns, batch.columns, strict=True):
            name = column.name.lower()
            of_entry = name in ("index", "term")
            arrays.append(native(headers[name][shown], column.arrow) if of_entry else array.take(rows))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)
