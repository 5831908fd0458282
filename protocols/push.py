# -*- test-case-name: tests.protocols.test_push -*-
"""
Our own binary frames as one of the two dialects of a connection.

Records travel as they stand on disk: a frame is handed to the transport in pieces, so that a
batch of records that goes to several peers is not copied for each.

Small appends have a short way of their own in both directions, which yields what the codec would,
byte for byte and message for message (the tests compare them): a client that does not gather its
bodies costs a frame each, and there may be a hundred thousand of them in a second.
"""

from __future__ import annotations

from collections.abc import Sequence

from construct import Struct

from protocols.wire.codes import RequestCode, ResponseCode
from protocols.wire.layout import struct_of
from protocols.wire.messages import AppendRequest, Request, Response
from protocols.wire.push import (
    decode_frame,
    encode_request_parts,
    encode_response_frame,
    encode_response_parts,
)
from protocols.wire.push_layout import (
    APPEND_REQUEST_DECLARATION,
    APPEND_RESPONSE_DECLARATION,
    BODY_LENGTH_DECLARATION,
    FLAG_RESPONSE,
    FRAME_HEADER_DECLARATION,
    FRAME_HEADER_SIZE,
    FRAME_VERSION,
    KINDS,
    NATIVE_FIRST_BYTE,
)

#: Answers that may carry records.
_WITH_RECORDS = frozenset({RequestCode.GET, RequestCode.PULL})

_APPEND = KINDS[RequestCode.APPEND]
_APPEND_START = bytes((NATIVE_FIRST_BYTE, FRAME_VERSION, _APPEND, 0))
_OPAQUE_AND_LENGTH = struct_of(Struct(*FRAME_HEADER_DECLARATION.subcons[4:]))
_OPAQUE_AT = len(_APPEND_START)
_BODY_LENGTH = struct_of(BODY_LENGTH_DECLARATION)
_APPEND_FIXED_SIZE = APPEND_REQUEST_DECLARATION.sizeof()

_APPEND_ANSWER = struct_of(Struct(*FRAME_HEADER_DECLARATION.subcons, *APPEND_RESPONSE_DECLARATION.subcons))
_APPEND_ANSWER_LENGTH = APPEND_RESPONSE_DECLARATION.sizeof()
_SUCCESS = int(ResponseCode.SUCCESS)


class NativeDialect:
    """Binary frames, to peers that said that they understand them."""

    is_native = True

    def request_parts(self, request: Request, opaque: int) -> Sequence[bytes]:
        """See L{protocols.interfaces.Dialect.request_parts}."""
        return encode_request_parts(request, opaque)

    def response_parts(self, response: Response, opaque: int) -> Sequence[bytes]:
        """See L{protocols.interfaces.Dialect.response_parts}."""
        if response.kind in _WITH_RECORDS:
            return encode_response_parts(response, opaque)
        return (encode_response_frame(response, opaque),)


def appended(opaque: int, term: int, index: int, pos: int, count: int) -> bytes:
    """The frame of a successful AppendResponse that names nobody."""
    return _APPEND_ANSWER.pack(
        NATIVE_FIRST_BYTE, FRAME_VERSION, _APPEND, FLAG_RESPONSE, opaque, _APPEND_ANSWER_LENGTH,
        term, 0, -1, -1, -1, -1, _SUCCESS, index, pos, count,
    )  # fmt: skip


class NativeReader:
    """
    Reads one connection's native frames.

    The appends of one client differ in nothing but their number and their body: what stands
    between the two is compared with the last one's, instead of being read again.

    Invariant: C{_same} is the fixed part and the texts of an append with one body, and C{_like} what they
    say; both empty before the first.
    """

    def __init__(self) -> None:
        self._same = b""
        self._body_at = 0
        self._like = AppendRequest()

    def read(self, frame: bytes) -> tuple[int, Request | Response]:
        """
        As L{decode_frame}.

        @raise WireError: not exactly one frame of this format.
        """
        at = self._body_at
        if at and frame.startswith(self._same, FRAME_HEADER_SIZE) and frame.startswith(_APPEND_START):
            size = len(frame)
            opaque, length = _OPAQUE_AND_LENGTH.unpack_from(frame, _OPAQUE_AT)
            if (
                size >= at
                and length == size - FRAME_HEADER_SIZE
                and _BODY_LENGTH.unpack_from(frame, at - _BODY_LENGTH.size)[0] == size - at
            ):
                like = self._like
                return opaque, AppendRequest(
                    group=like.group, remote_id=like.remote_id, local_id=like.local_id,
                    leader_id=like.leader_id, term=like.term, wire_version=like.wire_version,
                    bodies=(frame[at:],),
                )
        opaque, message = decode_frame(frame)
        if isinstance(message, AppendRequest) and len(message.bodies) == 1:
            self._body_at = len(frame) - len(message.bodies[0])
            self._same = frame[FRAME_HEADER_SIZE : self._body_at - _BODY_LENGTH.size]
            assert len(self._same) >= _APPEND_FIXED_SIZE
            self._like = AppendRequest(
                group=message.group, remote_id=message.remote_id, local_id=message.local_id,
                leader_id=message.leader_id, term=message.term, wire_version=message.wire_version,
            )
        return opaque, message
