# -*- test-case-name: tests.wire.test_broker_frames -*-
"""
Native frames between a broker and our producers and readers: put many messages, read the commit log.

The outer frame is that of a ledger's messages (L{protocols.wire.ledger.push}); the layouts inside are those
of L{protocols.wire.rocketmq.broker_layout}. Codes of answers are RocketMQ's.

Rule 1: every length is bounded before it is used, and no bytes may be left over.
Rule 2: an answer to PUT with a failure code and offsets means that the messages are in the log without any
guarantee; a failure code without offsets means that they are certainly not in the log.
Rule 3: the contents of records are not examined.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache

import attrs

from protocols.wire.errors import WireError
from protocols.wire.layout import struct_of
from protocols.wire.native import (
    FLAG_RESPONSE,
    FRAME_HEADER,
    FRAME_HEADER_SIZE,
    FRAME_VERSION,
    NATIVE_FIRST_BYTE,
    NATIVE_FRAME_BYTES_MAX,
    TEXT_BYTES_MAX,
)
from protocols.wire.rest import Rest
from protocols.wire.rocketmq.broker_layout import (
    BROKER_ANSWER_DECLARATIONS,
    BROKER_REQUEST_DECLARATIONS,
    PUT_BODIES_MAX,
    BrokerKind,
)

_REQUESTS = {kind: struct_of(declaration) for kind, declaration in BROKER_REQUEST_DECLARATIONS.items()}
_ANSWERS = {kind: struct_of(declaration) for kind, declaration in BROKER_ANSWER_DECLARATIONS.items()}
_PUT, _READ, _OFFSETS = BrokerKind.PUT, BrokerKind.READ, BrokerKind.OFFSETS
_PUT_REQUEST, _PUT_ANSWER = _REQUESTS[_PUT], _ANSWERS[_PUT]

#: RocketMQ's codes in these answers; an answer to PUT may have any other of RocketMQ's.
SUCCESS = 0
SYSTEM_ERROR = 1
PULL_OFFSET_MOVED = 21
QUERY_NOT_FOUND = 22


@attrs.frozen(kw_only=True)
class PutRequest:
    """
    Store messages of one topic that differ only in their bodies, in order.

    @ivar queue_id: queue of all messages; -1 if the broker chooses it.
    @ivar properties: as in a record: name, 0x01, value, 0x02.
    @ivar flag: the application's flag.
    @ivar sys_flag: as in a record: the bits for compressed bodies.
    @ivar born_timestamp: ms since 1970; 0 for the arrival of the request.
    """

    topic: str
    bodies: tuple[bytes, ...]
    queue_id: int = -1
    properties: bytes = b""
    flag: int = 0
    sys_flag: int = 0
    born_timestamp: int = 0

    kind = BrokerKind.PUT


@attrs.frozen(kw_only=True)
class PutAnswer:
    """
    The outcome of a PUT.

    @ivar code: RocketMQ's code; 0, 10, 11 and 12 mean stored.
    @ivar queue_offset: queue offset of the first message, the others follow; -1 if none is stored.
    @ivar store_timestamp: ms since 1970; 0 if none is stored.
    @ivar offsets: log offsets of the records, in order; empty if none is stored.
    @ivar remark: reason of a failure, for people.
    """

    code: int
    queue_id: int = -1
    queue_offset: int = -1
    store_timestamp: int = 0
    offsets: tuple[int, ...] = ()
    remark: str = ""

    kind = BrokerKind.PUT


@attrs.frozen(kw_only=True)
class ReadRequest:
    """
    Read whole records of the commit log, unchanged.

    @ivar begin_offset: log offset of a record, or of the end of the log.
    @ivar max_bytes: maximum bytes of records; one record is always sent.
    @ivar wait_ms: maximum wait for a first record, milliseconds. The broker may wait less.
    """

    begin_offset: int
    max_bytes: int = 1 << 20
    wait_ms: int = 0

    kind = BrokerKind.READ


@attrs.frozen(kw_only=True)
class ReadAnswer:
    """
    The answer to READ.

    @ivar code: L{SUCCESS}, with or without records; L{PULL_OFFSET_MOVED}: the requested offset is below
        C{log_begin_offset}; L{QUERY_NOT_FOUND}: no record begins there; L{SYSTEM_ERROR}.
    @ivar log_begin_offset: first offset that the log still has.
    @ivar log_end_offset: end of the last whole record, exclusive.
    @ivar begin_offset: log offset of the first record in this answer; it may be higher than the requested
        one, because the end of a file may be blank; -1 without records.
    @ivar next_offset: log offset for the next request.
    """

    code: int
    log_begin_offset: int
    log_end_offset: int
    next_offset: int
    begin_offset: int = -1
    records: bytes = b""
    remark: str = ""

    kind = BrokerKind.READ


@attrs.frozen(kw_only=True)
class OffsetsRequest:
    """Ask for the offsets of the log and for the identity of the broker."""

    kind = BrokerKind.OFFSETS


@attrs.frozen(kw_only=True)
class OffsetsAnswer:
    """
    The answer to OFFSETS.

    @ivar begin_offset: first offset that the log still has.
    @ivar end_offset: end of the last whole record, exclusive.
    @ivar flushed_offset: all bytes below this offset are on stable storage.
    @ivar file_size: bytes of each file of the log.
    @ivar broker_id: 0 for a master.
    @ivar broker_role: C{ASYNC_MASTER}, C{SYNC_MASTER} or C{SLAVE}.
    """

    code: int = SUCCESS
    begin_offset: int = 0
    end_offset: int = 0
    flushed_offset: int = 0
    file_size: int = 0
    broker_id: int = 0
    broker_name: str = ""
    broker_role: str = ""
    remark: str = ""

    kind = BrokerKind.OFFSETS


BrokerRequest = PutRequest | ReadRequest | OffsetsRequest
BrokerAnswer = PutAnswer | ReadAnswer | OffsetsAnswer


# -- writing -----------------------------------------------------------------------------------------


def _frame(kind: BrokerKind, flags: int, opaque: int, pieces: Sequence[bytes]) -> Sequence[bytes]:
    length = sum(map(len, pieces))
    assert FRAME_HEADER_SIZE + length <= NATIVE_FRAME_BYTES_MAX, f"native frame of 12 + {length} bytes"
    return (FRAME_HEADER.pack(NATIVE_FIRST_BYTE, FRAME_VERSION, kind, flags, opaque, length), *pieces)


@lru_cache(maxsize=256)  # the same topics repeat
def _text(text: str) -> bytes:
    raw = text.encode("utf-8")
    assert len(raw) <= TEXT_BYTES_MAX, f"text of {len(raw)} bytes"
    return raw


def _remark(text: str) -> bytes:
    # For people, and perhaps an exception text: a long one is cut, not refused.
    return text.encode("utf-8", "replace")[:4096].decode("utf-8", "ignore").encode("utf-8")


def request_parts(request: BrokerRequest, opaque: int) -> Sequence[bytes]:
    """
    The frame of a request, in pieces.

    Callers must not exceed L{NATIVE_FRAME_BYTES_MAX} bytes or L{PUT_BODIES_MAX} bodies.
    """
    if isinstance(request, PutRequest):
        count = len(request.bodies)
        assert count <= PUT_BODIES_MAX, f"{count} bodies in one PUT"
        topic, properties = _text(request.topic), request.properties
        fixed = _PUT_REQUEST.pack(
            len(topic), len(properties), request.queue_id, request.flag, request.sys_flag,
            request.born_timestamp, count,
        )
        lengths = struct.pack(f">{count}i", *map(len, request.bodies))
        return _frame(_PUT, 0, opaque, (fixed, topic, properties, lengths, *request.bodies))
    if isinstance(request, ReadRequest):
        fixed = _REQUESTS[_READ].pack(request.begin_offset, request.max_bytes, request.wait_ms)
        return _frame(_READ, 0, opaque, (fixed,))
    return _frame(_OFFSETS, 0, opaque, ())


def answer_parts(answer: BrokerAnswer, opaque: int) -> Sequence[bytes]:
    """The frame of an answer, in pieces, so that records are not copied."""
    remark = _remark(answer.remark)
    if isinstance(answer, PutAnswer):
        count = len(answer.offsets)
        fixed = _PUT_ANSWER.pack(
            answer.code, answer.queue_id, answer.queue_offset, answer.store_timestamp, len(remark), count
        )
        return _frame(
            _PUT, FLAG_RESPONSE, opaque, (fixed, remark, struct.pack(f">{count}q", *answer.offsets))
        )
    if isinstance(answer, ReadAnswer):
        fixed = _ANSWERS[_READ].pack(
            answer.code, answer.log_begin_offset, answer.log_end_offset, answer.begin_offset,
            answer.next_offset, len(remark),
        )
        return _frame(_READ, FLAG_RESPONSE, opaque, (fixed, remark, answer.records))
    name, role = _text(answer.broker_name), _text(answer.broker_role)
    fixed = _ANSWERS[_OFFSETS].pack(
        answer.code, answer.begin_offset, answer.end_offset, answer.flushed_offset, answer.file_size,
        answer.broker_id, len(name), len(role), len(remark),
    )
    return _frame(_OFFSETS, FLAG_RESPONSE, opaque, (fixed, name, role, remark))


# -- reading -----------------------------------------------------------------------------------------


def _put_request(numbers: tuple[int, ...], rest: Rest) -> PutRequest:
    topic_length, properties_length, queue_id, flag, sys_flag, born_timestamp, count = numbers
    topic = rest.text(topic_length, "topic")
    properties = rest.take(properties_length, "properties")
    return PutRequest(
        topic=topic, bodies=rest.bodies(count, PUT_BODIES_MAX), queue_id=queue_id, properties=properties,
        flag=flag, sys_flag=sys_flag, born_timestamp=born_timestamp,
    )


def _put_answer(numbers: tuple[int, ...], rest: Rest) -> PutAnswer:
    code, queue_id, queue_offset, store_timestamp, remark_length, count = numbers
    remark = rest.text(remark_length, "remark")
    if not 0 <= count <= PUT_BODIES_MAX:
        raise WireError(f"broker frame: count={count} outside 0..{PUT_BODIES_MAX}")
    offsets = struct.unpack(f">{count}q", rest.take(8 * count, "offsets"))
    return PutAnswer(
        code=code, queue_id=queue_id, queue_offset=queue_offset, store_timestamp=store_timestamp,
        offsets=offsets, remark=remark,
    )


def _read_answer(numbers: tuple[int, ...], rest: Rest) -> ReadAnswer:
    code, log_begin_offset, log_end_offset, begin_offset, next_offset, remark_length = numbers
    remark = rest.text(remark_length, "remark")
    records = rest.take(len(rest.frame) - rest.at, "records")
    if bool(records) != (begin_offset >= 0):
        raise WireError(f"broker frame: begin_offset={begin_offset} with {len(records)} bytes of records")
    if records and next_offset < begin_offset + len(records):
        raise WireError(f"broker frame: next_offset={next_offset} within records from {begin_offset} on")
    return ReadAnswer(
        code=code, log_begin_offset=log_begin_offset, log_end_offset=log_end_offset,
        begin_offset=begin_offset, next_offset=next_offset, records=records, remark=remark,
    )


def _offsets_answer(numbers: tuple[int, ...], rest: Rest) -> OffsetsAnswer:
    code, begin, end, flushed, file_size, broker_id, name_length, role_length, remark_length = numbers
    return OffsetsAnswer(
        code=code, begin_offset=begin, end_offset=end, flushed_offset=flushed, file_size=file_size,
        broker_id=broker_id, broker_name=rest.text(name_length, "broker_name"),
        broker_role=rest.text(role_length, "broker_role"), remark=rest.text(remark_length, "remark"),
    )


def decode_broker_frame(frame: bytes) -> tuple[int, BrokerRequest | BrokerAnswer]:
    """
    Decode one frame.

    @param frame: one whole frame, from the framing.
    @return: its opaque number and its message.
    @raise WireError: not exactly one frame of this format.
    """
    if len(frame) < FRAME_HEADER_SIZE:
        raise WireError(f"broker frame of {len(frame)} bytes: its header has {FRAME_HEADER_SIZE}")
    first_byte, version, number, flags, opaque, length = FRAME_HEADER.unpack_from(frame)
    if first_byte != NATIVE_FIRST_BYTE or version != FRAME_VERSION:
        raise WireError(f"broker frame: first bytes {first_byte:#04x} {version:#04x}")
    if length != len(frame) - FRAME_HEADER_SIZE:
        raise WireError(f"broker frame: length={length}, {len(frame) - FRAME_HEADER_SIZE} bytes follow")
    if flags & ~FLAG_RESPONSE or number not in _KINDS:
        raise WireError(f"broker frame: kind={number}, flags={flags:#04x} is unknown to a broker")
    kind = _KINDS[number]
    fixed = (_ANSWERS if flags else _REQUESTS)[kind]
    if length < fixed.size:
        raise WireError(f"broker frame: {length} bytes of {kind.name}, its fixed part has {fixed.size}")
    numbers = fixed.unpack_from(frame, FRAME_HEADER_SIZE)
    rest = Rest(frame, FRAME_HEADER_SIZE + fixed.size, "broker frame")
    message: BrokerRequest | BrokerAnswer
    if kind is _PUT:
        message = _put_answer(numbers, rest) if flags else _put_request(numbers, rest)
    elif kind is _READ:
        message = _read_answer(numbers, rest) if flags else ReadRequest(
            begin_offset=numbers[0], max_bytes=numbers[1], wait_ms=numbers[2]
        )
    else:
        message = _offsets_answer(numbers, rest) if flags else OffsetsRequest()
    rest.end()
    return opaque, message


_KINDS = {int(kind): kind for kind in BrokerKind}
