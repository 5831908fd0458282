# -*- test-case-name: tests.protocols.test_push -*-
"""
Our own binary frames, one of the two dialects of a connection.

Records are sent exactly as they are on disk. A frame is handed to the transport in pieces, so that a
batch of records for several peers is not copied for each.

Small appends and pushes of entries have a fast path with the same results as the codec (the tests compare
them): a client that does not gather its bodies sends a frame for each, perhaps a hundred thousand in a
second; and reading the frames of the pushes took a tenth of the time of one append to an idle member.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
from construct import Struct

from protocols.wire.codes import ResponseCode
from protocols.wire.layout import struct_of
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.bounds import INDEX_MAX, POSITION_MAX, TERM_MAX
from protocols.wire.ledger.codes import PushType, RequestCode
from protocols.wire.ledger.messages import (
    AppendRequest,
    AppendResponse,
    PushEntryRequest,
    PushEntryResponse,
    Request,
    Response,
)
from protocols.wire.ledger.push import (
    decode_frame,
    encode_request_parts,
    encode_response_parts,
)
from protocols.wire.ledger.push_layout import (
    APPEND_REQUEST_DECLARATION,
    APPEND_RESPONSE_DECLARATION,
    BODY_LENGTH_DECLARATION,
    KINDS,
    PUSH_REQUEST_DECLARATION,
    PUSH_RESPONSE_DECLARATION,
)
from protocols.wire.ledger.record_checks import check_records
from protocols.wire.native import (
    FLAG_RESPONSE,
    FRAME_HEADER_DECLARATION,
    FRAME_HEADER_SIZE,
    FRAME_VERSION,
    NATIVE_FIRST_BYTE,
)

_APPEND = KINDS[RequestCode.APPEND]
_APPEND_START = bytes((NATIVE_FIRST_BYTE, FRAME_VERSION, _APPEND, 0))
_OPAQUE_AND_LENGTH = struct_of(Struct(*FRAME_HEADER_DECLARATION.subcons[4:]))
_OPAQUE_AT = len(_APPEND_START)
_BODY_LENGTH = struct_of(BODY_LENGTH_DECLARATION)
_BODY_LENGTH_SIZE = _BODY_LENGTH.size
_APPEND_FIXED_SIZE = APPEND_REQUEST_DECLARATION.sizeof()

_APPEND_ANSWER = struct_of(Struct(*FRAME_HEADER_DECLARATION.subcons, *APPEND_RESPONSE_DECLARATION.subcons))
_APPEND_ANSWER_LENGTH = APPEND_RESPONSE_DECLARATION.sizeof()
_APPEND_ANSWER_SIZE = FRAME_HEADER_SIZE + _APPEND_ANSWER_LENGTH
_APPEND_ANSWER_START = bytes((NATIVE_FIRST_BYTE, FRAME_VERSION, _APPEND, FLAG_RESPONSE))
_SUCCESS = int(ResponseCode.SUCCESS)

_PUSH = KINDS[RequestCode.PUSH]
_PUSH_START = bytes((NATIVE_FIRST_BYTE, FRAME_VERSION, _PUSH, 0))
_PUSH_ANSWER_START = bytes((NATIVE_FIRST_BYTE, FRAME_VERSION, _PUSH, FLAG_RESPONSE))
_BEHIND_START = FRAME_HEADER_DECLARATION.subcons[4:]
_PUSH_NUMBERS = struct_of(Struct(*_BEHIND_START, *PUSH_REQUEST_DECLARATION.subcons))
_PUSH_TEXTS_AT = FRAME_HEADER_SIZE + PUSH_REQUEST_DECLARATION.sizeof()
_PUSH_ANSWER_NUMBERS = struct_of(Struct(*_BEHIND_START, *PUSH_RESPONSE_DECLARATION.subcons))
_PUSH_ANSWER_TEXTS_AT = FRAME_HEADER_SIZE + PUSH_RESPONSE_DECLARATION.sizeof()
_APPEND_TYPE = int(PushType.APPEND)
_CODES = {int(code): code for code in ResponseCode}

_NOBODY = [-1, -1, -1, -1]

#: Lengths in bytes of group, remote, local and leader id; negative for a missing text.
_Lengths = tuple[int, int, int, int]


class NativeDialect:
    """Binary frames, for peers that advertised them."""

    def __init__(self) -> None:
        self.request_parts = encode_request_parts
        self.response_parts = encode_response_parts


def appended(opaque: int, term: int, index: int, pos: int, count: int) -> bytes:
    """The frame of a successful AppendResponse without group and member ids."""
    return _APPEND_ANSWER.pack(
        NATIVE_FIRST_BYTE, FRAME_VERSION, _APPEND, FLAG_RESPONSE, opaque, _APPEND_ANSWER_LENGTH,
        term, 0, -1, -1, -1, -1, _SUCCESS, index, pos, count,
    )


class NativeReader:
    """
    Reads the native frames of one connection.

    The appends of one client differ only in their opaque number and body: the bytes between the two are
    compared with those of the last append, instead of being decoded again. Pushes and their answers differ
    in their numbers, but not in the ids of group and members.

    Invariant: C{_same} is the fixed part and the texts of an append with one body, and C{_like} is their
    decoded form; both are empty before the first append. The fields for pushes and their answers hold
    only the texts.
    """

    def __init__(self) -> None:
        self._same = b""
        self._body_at = 0
        self._like = AppendRequest()
        self._push_lengths: _Lengths | None = None
        self._push_texts = b""
        self._records_at = _PUSH_TEXTS_AT
        self._push_like = PushEntryRequest(type=PushType.APPEND)
        self._answer_lengths: _Lengths | None = None
        self._answer_texts = b""
        self._answer_like = PushEntryResponse()
        self._short = {
            _APPEND_START: self._append, _PUSH_START: self._push, _PUSH_ANSWER_START: self._push_answer,
            _APPEND_ANSWER_START: _append_answer,
        }

    def read(self, frame: bytes) -> tuple[int, Request | Response]:
        """
        Decode one frame, with the result of L{decode_frame}.

        @raise WireError: not exactly one frame of this format.
        """
        start = frame[:_OPAQUE_AT]
        if start in self._short:
            found = self._short[start](frame)
            if found is not None:
                return found
        opaque, message = decode_frame(frame)
        if isinstance(message, AppendRequest):
            self._learn_append(frame, message)
        elif isinstance(message, PushEntryRequest):
            self._push_lengths, self._push_texts = _texts_of(
                frame, _PUSH_NUMBERS.unpack_from(frame, _OPAQUE_AT), _PUSH_TEXTS_AT
            )
            self._records_at = _PUSH_TEXTS_AT + len(self._push_texts)
            self._push_like = attrs.evolve(message, entries=None)
        elif isinstance(message, PushEntryResponse):
            self._answer_lengths, self._answer_texts = _texts_of(
                frame, _PUSH_ANSWER_NUMBERS.unpack_from(frame, _OPAQUE_AT), _PUSH_ANSWER_TEXTS_AT
            )
            self._answer_like = message
        return opaque, message

    def _learn_append(self, frame: bytes, message: AppendRequest) -> None:
        if len(message.bodies) == 1:
            self._body_at = len(frame) - len(message.bodies[0])
            self._same = frame[FRAME_HEADER_SIZE : self._body_at - _BODY_LENGTH_SIZE]
            assert len(self._same) >= _APPEND_FIXED_SIZE
            self._like = AppendRequest(
                group=message.group, remote_id=message.remote_id, local_id=message.local_id,
                leader_id=message.leader_id, term=message.term, wire_version=message.wire_version,
            )

    def _append(self, frame: bytes) -> tuple[int, AppendRequest] | None:
        at, size = self._body_at, len(frame)
        if not at or size < at or frame[FRAME_HEADER_SIZE : at - _BODY_LENGTH_SIZE] != self._same:
            return None
        opaque, length = _OPAQUE_AND_LENGTH.unpack_from(frame, _OPAQUE_AT)
        if (
            length != size - FRAME_HEADER_SIZE
            or _BODY_LENGTH.unpack_from(frame, at - _BODY_LENGTH_SIZE)[0] != size - at
        ):
            return None
        like = self._like
        return opaque, AppendRequest(
            group=like.group, remote_id=like.remote_id, local_id=like.local_id,
            leader_id=like.leader_id, term=like.term, wire_version=like.wire_version,
            bodies=(frame[at:],),
        )

    def _push(self, frame: bytes) -> tuple[int, PushEntryRequest] | None:
        """Read an APPEND with entries. @return: None for any other frame, which the codec decodes."""
        size, records_at = len(frame), self._records_at
        if self._push_lengths is None or size <= records_at:
            return None
        (
            opaque, length, term, wire_version, group, remote_id, local_id, leader_id,
            push_type, is_batch, commit_index, first_index, count, entries_term,
        ) = _PUSH_NUMBERS.unpack_from(frame, _OPAQUE_AT)
        if (
            push_type != _APPEND_TYPE
            or count < 1
            or length != size - FRAME_HEADER_SIZE
            or (group, remote_id, local_id, leader_id) != self._push_lengths
            or frame[_PUSH_TEXTS_AT:records_at] != self._push_texts
            or is_batch > 1
            or wire_version < 0
            or term > TERM_MAX
            or commit_index > INDEX_MAX
        ):
            return None
        batch = EntryBatch(
            first_index=first_index, count=count, term=entries_term, records=frame[records_at:],
        )
        check_records(batch)
        like = self._push_like
        return opaque, PushEntryRequest(
            group=like.group, remote_id=like.remote_id, local_id=like.local_id, leader_id=like.leader_id,
            term=term, wire_version=wire_version, type=PushType.APPEND, is_batch=is_batch == 1,
            commit_index=commit_index, entries=batch,
        )

    def _push_answer(self, frame: bytes) -> tuple[int, PushEntryResponse] | None:
        size = len(frame)
        if self._answer_lengths is None or size < _PUSH_ANSWER_TEXTS_AT:
            return None
        (
            opaque, length, term, wire_version, group, remote_id, local_id, leader_id,
            code, named, index, count, begin_index, end_index,
        ) = _PUSH_ANSWER_NUMBERS.unpack_from(frame, _OPAQUE_AT)
        if (
            length != size - FRAME_HEADER_SIZE
            or (group, remote_id, local_id, leader_id) != self._answer_lengths
            or frame[_PUSH_ANSWER_TEXTS_AT:] != self._answer_texts
            or named > 1
            or wire_version < 0
            or term > TERM_MAX
            or index > INDEX_MAX
            or begin_index > INDEX_MAX
            or end_index > INDEX_MAX
        ):
            return None
        like = self._answer_like
        return opaque, PushEntryResponse(
            group=like.group, remote_id=like.remote_id, local_id=like.local_id, leader_id=like.leader_id,
            term=term, wire_version=wire_version, index=index if named else None, count=count,
            begin_index=begin_index, end_index=end_index,
            code=_CODES[code] if code in _CODES else ResponseCode.UNKNOWN,
        )


def _append_answer(frame: bytes) -> tuple[int, AppendResponse] | None:
    """Read an answer without group and member ids, as L{appended} writes it; None for any other frame."""
    if len(frame) != _APPEND_ANSWER_SIZE:
        return None
    _, _, _, _, opaque, length, term, wire_version, *lengths, code, index, pos, count = (
        _APPEND_ANSWER.unpack(frame)
    )
    if length != _APPEND_ANSWER_LENGTH or lengths != _NOBODY or wire_version < 0:
        return None
    if term > TERM_MAX or index > INDEX_MAX or pos > POSITION_MAX:
        return None
    return opaque, AppendResponse(
        term=term, wire_version=wire_version, code=_CODES[code] if code in _CODES else ResponseCode.UNKNOWN,
        index=index, pos=pos, count=count,
    )


def _texts_of(frame: bytes, numbers: Sequence[int], at: int) -> tuple[_Lengths, bytes]:
    """
    The texts of a decoded frame: their lengths and their bytes.

    @param numbers: opaque, length, and the fixed part.
    @param at: start of the texts in the frame.
    """
    group, remote_id, local_id, leader_id = numbers[4:8]
    size = sum([length for length in (group, remote_id, local_id, leader_id) if length > 0])
    return (group, remote_id, local_id, leader_id), frame[at : at + size]
