# -*- test-case-name: tests.wire.test_push -*-
"""
Native binary frames: every message of the protocol without JSON and without Base64::

    offset  size  field
    0       1     0xD1; neither remoting nor TLS starts with it
    1       1     version of this format, 1
    2       1     kind of message
    3       1     bit 0: an answer; the other bits are 0
    4       4     opaque, signed, copied into the answer
    8       4     bytes that follow
    12      ...   fixed part of the message, its texts, its payload

Each fixed part is declared with construct in L{protocols.wire.ledger.push_layout}. All its fields are
big-endian numbers, so the C{struct.Struct} derived from the declaration packs and unpacks it; a test
compares the two. A text is UTF-8 bytes; its length is in the fixed part, -1 for "none". The payload is
entry records as on disk, or bodies after their lengths, and reaches to the end of the frame.

Rule 1: every length is bounded before it is used, and no bytes may be left over. Rule 2: records are
checked here as far as possible without a ledger (L{check_records}).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import TypeAlias

from construct import Struct

from protocols.wire.codes import ResponseCode
from protocols.wire.errors import WireError
from protocols.wire.layout import struct_of
from protocols.wire.ledger.batches import EntryBatch, EntryChunk
from protocols.wire.ledger.bounds import INDEX_MAX, TERM_MAX, check_bounds
from protocols.wire.ledger.codes import Consistency, PushType, RequestCode, VoteResult
from protocols.wire.ledger.entry import ENTRY_HEADER_SIZE, INDEX_UNIT_SIZE
from protocols.wire.ledger.message_table import MESSAGES
from protocols.wire.ledger.messages import (
    AppendOnceRequest,
    AppendOnceResponse,
    AppendRequest,
    AppendResponse,
    GetRequest,
    GetResponse,
    HeartBeatRequest,
    HeartBeatResponse,
    LeadershipTransferRequest,
    LedgerMessage,
    MetadataResponse,
    PullRequest,
    PullResponse,
    PushEntryRequest,
    PushEntryResponse,
    Request,
    Response,
    VoteRequest,
    VoteResponse,
)
from protocols.wire.ledger.push_layout import (
    BODIES_MAX,
    BODY_LENGTH_DECLARATION,
    CHUNK_SUMS_DECLARATION,
    CHUNK_TYPE,
    HIDDEN_BODIES_MAX,
    HIDDEN_BODY_DECLARATION,
    KINDS,
    PEER_DECLARATION,
    PEERS_MAX,
    REQUEST_DECLARATIONS,
    RESPONSE_DECLARATIONS,
)
from protocols.wire.ledger.record_checks import check_records
from protocols.wire.native import (
    FLAG_RESPONSE,
    FRAME_HEADER,
    FRAME_HEADER_DECLARATION,
    FRAME_HEADER_SIZE,
    FRAME_VERSION,
    NATIVE_FIRST_BYTE,
    NATIVE_FRAME_BYTES_MAX,
    TEXT_BYTES_MAX,
    text_bytes,
    texts_bytes,
)
from protocols.wire.rest import Rest

__all__ = (
    "BODIES_MAX", "FRAME_HEADER", "FRAME_HEADER_SIZE", "FRAME_VERSION", "KINDS", "NATIVE_FIRST_BYTE",
    "NATIVE_FRAME_BYTES_MAX", "PEERS_MAX", "TEXT_BYTES_MAX", "decode_frame", "encode_request_frame",
    "encode_request_parts", "encode_response_frame", "encode_response_parts",
)

_CONSISTENCIES = (Consistency.LINEARIZABLE, Consistency.COMMITTED)
_CONSISTENCY_NUMBERS = {consistency: number for number, consistency in enumerate(_CONSISTENCIES)}
_RESPONSE_CODES = {int(code): code for code in ResponseCode}

_PEER = struct_of(PEER_DECLARATION)
_BODY_LENGTH = struct_of(BODY_LENGTH_DECLARATION)
_HIDDEN_BODY = struct_of(HIDDEN_BODY_DECLARATION)
_CHUNK_SUMS = struct_of(CHUNK_SUMS_DECLARATION)

#: A message beyond the base: numbers of its fixed part, then pieces of texts and payload.
_Written = tuple[tuple[int, ...], list[bytes]]


#: Fields of a message by name, for its constructor.
_Fields: TypeAlias = dict[str, object]
_Reader = Callable[[tuple[int, ...], Rest], _Fields]


def _batch_numbers(batch: EntryBatch | None) -> tuple[int, int, int]:
    return (-1, 0, -1) if batch is None else (batch.first_index, batch.count, batch.term)


def _batch_pieces(batch: EntryBatch | None) -> list[bytes]:
    return [] if batch is None else [batch.records]


def _entries(rest: Rest, first_index: int, count: int, term: int) -> EntryBatch | None:
    """The batch at the end of the frame."""
    if count == 0:
        if first_index != -1 or term != -1:
            raise WireError(f"native frame: first_index={first_index}, term={term} without entries")
        return None
    records = rest.take(len(rest.frame) - rest.at, "records")
    batch = EntryBatch(first_index=first_index, count=count, term=term, records=records)
    check_records(batch)
    return batch


def _flag(number: int, name: str) -> bool:
    if number > 1:
        raise WireError(f"native frame: {name}={number} is neither 0 nor 1")
    return number == 1


def _response_code(number: int) -> ResponseCode:
    return _RESPONSE_CODES.get(number, ResponseCode.UNKNOWN)


def _consistency(number: int) -> Consistency:
    if number >= len(_CONSISTENCIES):
        raise WireError(f"native frame: consistency={number}, known are 0..{len(_CONSISTENCIES) - 1}")
    return _CONSISTENCIES[number]


class _Codec:
    """
    The format of one class of message: its fixed part, and its content beyond the base.

    @ivar number, flags: of its frames.
    @ivar message: makes one of its fields.
    @ivar fixed, whole: its fixed part, without and with the header of the frame.
    @ivar write: from a message to the numbers after the base, and the pieces after the base's texts.
    @ivar read: from those numbers and the rest of the frame to the message's own fields.
    """

    def __init__(
        self,
        number: int,
        flags: int,
        message: Callable[..., Request | Response],
        fixed: Struct,
        write: Callable[..., _Written],
        read: _Reader,
    ) -> None:
        self.number = number
        self.flags = flags
        self.message = message
        self.fixed = struct_of(fixed)
        self.whole = struct_of(Struct(*FRAME_HEADER_DECLARATION.subcons, *fixed.subcons))
        self.fixed_size = self.fixed.size
        self.write = write
        self.read = read


def _nothing(message: LedgerMessage) -> _Written:
    return (), []


def _read_nothing(numbers: tuple[int, ...], rest: Rest) -> _Fields:
    return {}


def _only_code(message: Response) -> _Written:
    return (message.code,), []


def _read_code(numbers: tuple[int, ...], rest: Rest) -> _Fields:
    return {"code": _response_code(numbers[0])}


def _write_metadata_response(message: MetadataResponse) -> _Written:
    role_length, role = text_bytes(message.role)
    pieces = [role]
    assert len(message.peers) <= PEERS_MAX
    for member_id, address in message.peers.items():
        (id_length, raw_id), (address_length, raw_address) = text_bytes(member_id), text_bytes(address)
        pieces += [_PEER.pack(id_length, address_length), raw_id, raw_address]
    numbers = (
        message.code, message.begin_index, message.end_index, message.committed_index,
        role_length, len(message.peers),
    )
    return numbers, pieces


def _read_metadata_response(numbers: tuple[int, ...], rest: Rest) -> _Fields:
    code, begin_index, end_index, committed_index, role_length, peers_count = numbers
    role = rest.optional_text(role_length, "role")
    if not 0 <= peers_count <= PEERS_MAX:
        raise WireError(f"native frame: peers_count={peers_count} outside 0..{PEERS_MAX}")
    peers = {}
    for _ in range(peers_count):
        id_length, address_length = _PEER.unpack(rest.take(_PEER.size, "peer"))
        member_id = rest.optional_text(id_length, "id")
        address = rest.optional_text(address_length, "address")
        if member_id is None or address is None or member_id in peers:
            raise WireError(f"native frame: member {member_id!r} at {address!r} is incomplete or given twice")
        peers[member_id] = address
    return {
        "code": _response_code(code), "begin_index": begin_index, "end_index": end_index,
        "committed_index": committed_index, "role": role or "", "peers": peers,
    }


def _write_append_request(message: AppendRequest) -> _Written:
    bodies = message.bodies
    count = len(bodies)
    assert count <= BODIES_MAX, f"{count} bodies in one APPEND"
    return (count,), [struct.pack(f">{count}i", *map(len, bodies)), *bodies]


def _read_append_request(numbers: tuple[int, ...], rest: Rest) -> _Fields:
    return {"bodies": rest.bodies(numbers[0], BODIES_MAX)}


def _write_append_response(message: AppendResponse) -> _Written:
    return (message.code, message.index, message.pos, message.count), []


def _read_append_response(numbers: tuple[int, ...], rest: Rest) -> _Fields:
    code, index, pos, count = numbers
    return {"code": _response_code(code), "index": index, "pos": pos, "count": count}


def _write_append_once_request(message: AppendOnceRequest) -> _Written:
    producer_length, producer = text_bytes(message.producer)
    count, pieces = _write_append_request(AppendRequest(bodies=message.bodies))
    hidden = [_HIDDEN_BODY.pack(number) for number in message.hidden]
    return (producer_length, message.sequence, len(hidden), *count), [producer, *hidden, *pieces]


def _read_append_once_request(numbers: tuple[int, ...], rest: Rest) -> _Fields:
    producer_length, sequence, hidden_count, count = numbers
    producer = rest.optional_text(producer_length, "producer")
    if not 0 <= hidden_count <= HIDDEN_BODIES_MAX:
        raise WireError(f"native frame: hidden_count={hidden_count} outside 0..{HIDDEN_BODIES_MAX}")
    hidden = tuple(
        _HIDDEN_BODY.unpack(rest.take(_HIDDEN_BODY.size, "hidden"))[0] for _ in range(hidden_count)
    )
    if any(not before < number < count for before, number in zip((-1, *hidden), hidden, strict=False)):
        raise WireError(f"native frame: hidden={hidden} of {count} bodies")
    return {
        "producer": producer or "", "sequence": sequence, "hidden": hidden,
        "bodies": rest.bodies(count, BODIES_MAX),
    }


def _write_append_once_response(message: AppendOnceResponse) -> _Written:
    numbers, pieces = _write_append_response(message)
    return (*numbers, message.is_repeated, message.last_sequence), pieces


def _read_append_once_response(numbers: tuple[int, ...], rest: Rest) -> _Fields:
    *others, is_repeated, last_sequence = numbers
    return {
        **_read_append_response(tuple(others), rest), "is_repeated": _flag(is_repeated, "is_repeated"),
        "last_sequence": last_sequence,
    }


def _write_get_request(message: GetRequest) -> _Written:
    named = message.begin_index is not None
    numbers = (
        named, message.begin_index or 0, message.max_size, _CONSISTENCY_NUMBERS[message.consistency]
    )
    return numbers, []


def _read_get_request(numbers: tuple[int, ...], rest: Rest) -> _Fields:
    named, begin_index, max_size, consistency = numbers
    return {
        "begin_index": begin_index if _flag(named, "has_begin_index") else None,
        "max_size": max_size,
        "consistency": _consistency(consistency),
    }


def _write_get_response(message: GetResponse) -> _Written:
    return (message.code, *_batch_numbers(message.entries)), _batch_pieces(message.entries)


def _read_get_response(numbers: tuple[int, ...], rest: Rest) -> _Fields:
    return {"code": _response_code(numbers[0]), "entries": _entries(rest, *numbers[1:])}


def _write_pull_request(message: PullRequest) -> _Written:
    length, node_id = text_bytes(message.node_id)
    numbers = (
        length, message.begin_index, message.end_index, message.max_bytes, message.wait_ms,
        _CONSISTENCY_NUMBERS[message.consistency],
    )
    return numbers, [node_id]


def _read_pull_request(numbers: tuple[int, ...], rest: Rest) -> _Fields:
    length, begin_index, end_index, max_bytes, wait_ms, consistency = numbers
    return {
        "node_id": rest.optional_text(length, "node_id"), "begin_index": begin_index, "end_index": end_index,
        "max_bytes": max_bytes, "wait_ms": wait_ms, "consistency": _consistency(consistency),
    }


def _write_pull_response(message: PullResponse) -> _Written:
    numbers = (
        message.code, message.ledger_begin_index, message.committed_index, *_batch_numbers(message.entries)
    )
    return numbers, _batch_pieces(message.entries)


def _read_pull_response(numbers: tuple[int, ...], rest: Rest) -> _Fields:
    code, ledger_begin_index, committed_index, first_index, count, term = numbers
    return {
        "code": _response_code(code),
        "ledger_begin_index": ledger_begin_index,
        "committed_index": committed_index,
        "entries": _entries(rest, first_index, count, term),
    }


def _write_vote_request(message: VoteRequest) -> _Written:
    return (message.ledger_end_index, message.ledger_end_term, message.pre_vote, message.transfer), []


def _read_vote_request(numbers: tuple[int, ...], rest: Rest) -> _Fields:
    ledger_end_index, ledger_end_term, pre_vote, transfer = numbers
    return {
        "ledger_end_index": ledger_end_index,
        "ledger_end_term": ledger_end_term,
        "pre_vote": _flag(pre_vote, "pre_vote"),
        "transfer": _flag(transfer, "transfer"),
    }


def _write_vote_response(message: VoteResponse) -> _Written:
    return (message.code, message.vote_result, message.pre_vote, message.clock_ms), []


def _read_vote_response(numbers: tuple[int, ...], rest: Rest) -> _Fields:
    code, result, pre_vote, clock_ms = numbers
    vote_result = VoteResult(result) if result < len(VoteResult) else VoteResult.UNKNOWN
    return {
        "code": _response_code(code),
        "vote_result": vote_result,
        "pre_vote": _flag(pre_vote, "pre_vote"),
        "clock_ms": clock_ms,
    }


def _write_heart_beat_request(message: HeartBeatRequest) -> _Written:
    return (message.heart_beat_interval_ms,), []


def _read_heart_beat_request(numbers: tuple[int, ...], rest: Rest) -> _Fields:
    return {"heart_beat_interval_ms": numbers[0]}


def _write_heart_beat_response(message: HeartBeatResponse) -> _Written:
    return (message.code, message.clock_ms), []


def _read_heart_beat_response(numbers: tuple[int, ...], rest: Rest) -> _Fields:
    code, clock_ms = numbers
    return {"code": _response_code(code), "clock_ms": clock_ms}


def _write_push_request(message: PushEntryRequest) -> _Written:
    batch = message.entries
    if batch is None:
        return (message.type, message.is_batch, message.commit_index, *_batch_numbers(None)), []
    numbers = (
        message.type, message.is_batch, message.commit_index, batch.first_index, batch.count, batch.term
    )
    if type(batch) is EntryChunk:
        assert message.type is PushType.APPEND, message.type
        sums = _CHUNK_SUMS.pack(batch.records_crc, batch.units_crc)
        return (CHUNK_TYPE, *numbers[1:]), [sums, batch.units, batch.records]
    return numbers, [batch.records]


def _chunk(rest: Rest, first_index: int, count: int, term: int) -> EntryChunk:
    """The chunk at the end of the frame. The store checks its records, which takes no time per record."""
    records_crc, units_crc = _CHUNK_SUMS.unpack(rest.take(_CHUNK_SUMS.size, "sums of a chunk"))
    units = rest.take(count * INDEX_UNIT_SIZE, "index units of a chunk")
    records = rest.take(len(rest.frame) - rest.at, "records")
    if len(records) < count * ENTRY_HEADER_SIZE:
        raise WireError(f"native frame: {len(records)} bytes are too few for a chunk of {count} entries")
    if first_index < 0 or first_index + count - 1 > INDEX_MAX or not 0 <= term <= TERM_MAX:
        raise WireError(f"native frame: chunk of {count} entries, first_index={first_index}, term={term}; "
                        f"allowed are indexes 0..{INDEX_MAX} and terms 0..{TERM_MAX}")
    return EntryChunk(first_index=first_index, count=count, term=term, records=records, units=units,
                      records_crc=records_crc, units_crc=units_crc)


def _read_push_request(numbers: tuple[int, ...], rest: Rest) -> _Fields:
    push_type, is_batch, commit_index, first_index, count, term = numbers
    if push_type > CHUNK_TYPE:
        raise WireError(f"native frame: push type={push_type}, known are 0..{CHUNK_TYPE}")
    is_chunk = push_type == CHUNK_TYPE
    kind = PushType.APPEND if is_chunk else PushType(push_type)
    if count not in _ENTRY_COUNTS[push_type]:
        raise WireError(f"native frame: {kind.name} push with {count} entries")
    read = _chunk if is_chunk else _entries
    return {
        "type": kind,
        "is_batch": _flag(is_batch, "is_batch"),
        "commit_index": commit_index,
        "entries": read(rest, first_index, count, term),
    }


#: Allowed numbers of entries of each type of push, in the order of the types.
_ENTRY_COUNTS = (range(1, 1 << 31), range(0, 1), range(1, 2), range(1, 2), range(1, 1 << 31))


def _write_push_response(message: PushEntryResponse) -> _Written:
    numbers = (
        message.code, message.index is not None, message.index or 0, message.count, message.begin_index,
        message.end_index,
    )
    return numbers, []


def _read_push_response(numbers: tuple[int, ...], rest: Rest) -> _Fields:
    code, named, index, count, begin_index, end_index = numbers
    return {
        "code": _response_code(code), "index": index if _flag(named, "has_index") else None,
        "count": count, "begin_index": begin_index, "end_index": end_index,
    }


def _write_transfer_request(message: LeadershipTransferRequest) -> _Written:
    transfer_length, transfer_id = text_bytes(message.transfer_id)
    transferee_length, transferee_id = text_bytes(message.transferee_id)
    numbers = (transfer_length, transferee_length, message.take_leadership_ledger_index)
    return numbers, [transfer_id, transferee_id]


def _read_transfer_request(numbers: tuple[int, ...], rest: Rest) -> _Fields:
    transfer_length, transferee_length, index = numbers
    return {
        "transfer_id": rest.optional_text(transfer_length, "transfer_id"),
        "transferee_id": rest.optional_text(transferee_length, "transferee_id"),
        "take_leadership_ledger_index": index,
    }


_REQUESTS: Mapping[RequestCode, tuple[Callable[..., _Written], _Reader]] = {
    RequestCode.METADATA: (_nothing, _read_nothing),
    RequestCode.APPEND: (_write_append_request, _read_append_request),
    RequestCode.GET: (_write_get_request, _read_get_request),
    RequestCode.PULL: (_write_pull_request, _read_pull_request),
    RequestCode.VOTE: (_write_vote_request, _read_vote_request),
    RequestCode.HEART_BEAT: (_write_heart_beat_request, _read_heart_beat_request),
    RequestCode.PUSH: (_write_push_request, _read_push_request),
    RequestCode.LEADERSHIP_TRANSFER: (_write_transfer_request, _read_transfer_request),
    RequestCode.APPEND_ONCE: (_write_append_once_request, _read_append_once_request),
}
_RESPONSES: Mapping[RequestCode, tuple[Callable[..., _Written], _Reader]] = {
    RequestCode.METADATA: (_write_metadata_response, _read_metadata_response),
    RequestCode.APPEND: (_write_append_response, _read_append_response),
    RequestCode.GET: (_write_get_response, _read_get_response),
    RequestCode.PULL: (_write_pull_response, _read_pull_response),
    RequestCode.VOTE: (_write_vote_response, _read_vote_response),
    RequestCode.HEART_BEAT: (_write_heart_beat_response, _read_heart_beat_response),
    RequestCode.PUSH: (_write_push_response, _read_push_response),
    RequestCode.LEADERSHIP_TRANSFER: (_only_code, _read_code),
    RequestCode.APPEND_ONCE: (_write_append_once_response, _read_append_once_response),
}
_REQUEST_CODECS = {
    kind: _Codec(KINDS[kind], 0, MESSAGES[kind][0], declaration, *_REQUESTS[kind])
    for kind, declaration in REQUEST_DECLARATIONS.items()
}
_RESPONSE_CODECS = {
    kind: _Codec(KINDS[kind], FLAG_RESPONSE, MESSAGES[kind][1], declaration, *_RESPONSES[kind])
    for kind, declaration in RESPONSE_DECLARATIONS.items()
}
assert _REQUEST_CODECS.keys() == _RESPONSE_CODECS.keys() == KINDS.keys()

_BY_NUMBER: Mapping[tuple[int, int], _Codec] = {
    **{(KINDS[kind], 0): codec for kind, codec in _REQUEST_CODECS.items()},
    **{(KINDS[kind], FLAG_RESPONSE): codec for kind, codec in _RESPONSE_CODECS.items()},
}


_APPEND = KINDS[RequestCode.APPEND]
_APPEND_FIXED = struct_of(REQUEST_DECLARATIONS[RequestCode.APPEND])


@lru_cache(maxsize=256)
def _head_of_one(
    group: str | None, remote_id: str | None, local_id: str | None, leader_id: str | None, term: int,
    wire_version: int,
) -> bytes:
    """Fixed part and texts of an append with one body: constant for one client."""
    lengths, texts, _ = texts_bytes(group, remote_id, local_id, leader_id)
    return _APPEND_FIXED.pack(term, wire_version, *lengths, 1) + texts


def encode_request_frame(request: Request, opaque: int) -> bytes:
    """The whole frame of a request."""
    if isinstance(request, AppendRequest) and len(request.bodies) == 1:
        (body,) = request.bodies
        head = _head_of_one(
            request.group, request.remote_id, request.local_id, request.leader_id, request.term,
            request.wire_version,
        )
        size = len(body)
        length = len(head) + _BODY_LENGTH.size + size
        assert FRAME_HEADER_SIZE + length <= NATIVE_FRAME_BYTES_MAX, f"native frame of {length} bytes"
        header = FRAME_HEADER.pack(NATIVE_FIRST_BYTE, FRAME_VERSION, _APPEND, 0, opaque, length)
        return b"".join((header, head, _BODY_LENGTH.pack(size), body))
    return b"".join(encode_request_parts(request, opaque))


def encode_response_frame(response: Response, opaque: int) -> bytes:
    """The whole frame of an answer."""
    return b"".join(encode_response_parts(response, opaque))


def _encode(
    codecs: Mapping[RequestCode, _Codec], message: Request | Response, opaque: int
) -> list[bytes]:
    # A frame longer than NATIVE_FRAME_BYTES_MAX is a bug: the callers bound the payloads.
    codec = codecs[message.kind]
    lengths, texts, size = texts_bytes(message.group, message.remote_id, message.local_id, message.leader_id)
    numbers, pieces = codec.write(message)
    length = codec.fixed_size + size + (sum(map(len, pieces)) if pieces else 0)
    assert FRAME_HEADER_SIZE + length <= NATIVE_FRAME_BYTES_MAX, f"native frame of {length} bytes"
    head = codec.whole.pack(
        NATIVE_FIRST_BYTE, FRAME_VERSION, codec.number, codec.flags, opaque, length, message.term,
        message.wire_version, *lengths, *numbers,
    )
    return [head + texts, *filter(None, pieces)] if pieces else [head + texts]


#: From a request, or an answer, and its opaque number to its frame in pieces: bodies are not copied.
encode_request_parts: Callable[[Request, int], list[bytes]] = partial(_encode, _REQUEST_CODECS)
encode_response_parts: Callable[[Response, int], list[bytes]] = partial(_encode, _RESPONSE_CODECS)


def decode_frame(frame: bytes) -> tuple[int, Request | Response]:
    """
    The opaque number and the message of one whole frame.

    @raise WireError: not exactly one frame of this format.
    """
    if len(frame) < FRAME_HEADER_SIZE:
        raise WireError(f"native frame: {len(frame)} bytes, at least {FRAME_HEADER_SIZE} are needed")
    first_byte, version, kind, flags, opaque, length = FRAME_HEADER.unpack_from(frame)
    if first_byte != NATIVE_FIRST_BYTE or version != FRAME_VERSION:
        raise WireError(f"native frame: first byte {first_byte:#x}, version {version}")
    if length != len(frame) - FRAME_HEADER_SIZE:
        raise WireError(f"native frame: length={length}, {len(frame) - FRAME_HEADER_SIZE} bytes follow")
    codec = _BY_NUMBER.get((kind, flags))
    if codec is None:
        raise WireError(f"native frame: kind={kind}, flags={flags} is unknown")
    at = FRAME_HEADER_SIZE + codec.fixed.size
    if at > len(frame):
        raise WireError(f"native frame: {length} bytes, the fixed part of kind {kind} has {codec.fixed.size}")
    term, wire_version, group, remote_id, local_id, leader_id, *numbers = codec.fixed.unpack_from(
        frame, FRAME_HEADER_SIZE
    )
    if wire_version < 0:
        raise WireError(f"native frame: wire_version={wire_version} is negative")
    rest = Rest(frame, at, "native frame")
    message: Request | Response = codec.message(
        term=term,
        wire_version=wire_version,
        group=rest.optional_text(group, "group"),
        remote_id=rest.optional_text(remote_id, "remote_id"),
        local_id=rest.optional_text(local_id, "local_id"),
        leader_id=rest.optional_text(leader_id, "leader_id"),
        **codec.read(tuple(numbers), rest),
    )
    rest.end()
    check_bounds(message)
    return opaque, message
