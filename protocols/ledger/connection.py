# -*- test-case-name: tests.protocols,tests.protocols.test_remoting -*-
"""
The two ends of a connection between members, or between a client and a member.

Both formats are welcome on one connection, frame by frame; an answer comes in the format of its request.
Requests may be pipelined and answered in any order. The rules of L{protocols.connection} hold.

A connection knows formats, not meanings: its owner (a sink) decides which member speaks and what is
answered when. Owners do not raise.

A remoting request with a DLedger code is answered with header code 200 and a body, even if it failed: Java
ignores the header code, and waits for ever for a missing body.

In native frames records are sent exactly as they are on disk. A frame is handed to the transport in pieces,
so that a batch of records for several peers is not copied for each. Small appends and pushes of entries have
a fast path with the same results as the codec: a client that does not gather its bodies sends a frame for
each, perhaps a hundred thousand in a second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

import attrs
from construct import Struct

from protocols.budgets import Budgets
from protocols.connection import (
    IDLE_S,
    STRANGER_FRAME_BYTES_MAX,
    UNANSWERED_BYTES_MAX,
    UNANSWERED_MAX,
    UNSENT_BYTES_MAX,
    AnsweringConnection,
    Connection,
)
from protocols.ledger.interfaces import Dialect, Ticket
from protocols.turn import Turn
from protocols.wire.codes import ResponseCode
from protocols.wire.errors import BodyError, IncompatibleError, LooseError, WireError
from protocols.wire.fastjson import REQUEST_VALUES_MAX, VALUES_MAX
from protocols.wire.framing import Frame
from protocols.wire.layout import struct_of
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.bounds import INDEX_MAX, POSITION_MAX, TERM_MAX
from protocols.wire.ledger.codes import WIRE_VERSION, WIRE_VERSION_MASK, PushType, RequestCode
from protocols.wire.ledger.java.json_bodies import (
    REQUEST_BYTES_MAX,
    WITH_CONTENT,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
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
    BODIES_MAX,
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
from protocols.wire.remoting import FLAG_RESPONSE as REMOTING_RESPONSE
from protocols.wire.remoting import (
    FRAME_BYTES_MAX,
    NOT_SUPPORTED_REMARK,
    REQUEST_CODE_NOT_SUPPORTED,
    RemotingCommand,
    decode_command,
    encode_answer,
    encode_command,
)
from protocols.wire.rest import Rest

#: The request codes of DLedger, by number.
KNOWN_CODES = {int(code): code for code in RequestCode}


class RemotingDialect:
    """JSON bodies in remoting frames, as in Java. Implements L{protocols.ledger.interfaces.Dialect}."""

    def request_parts(self, request: Request, opaque: int) -> Sequence[bytes]:
        return (
            encode_command(
                RemotingCommand(
                    code=int(request.kind), opaque=opaque, ext_fields={}, body=encode_request(request)
                )
            ),
        )

    def response_parts(self, response: Response, opaque: int) -> Sequence[bytes]:
        return (encode_answer(opaque, encode_response(response)),)


def not_supported(opaque: int, code: int) -> bytes:
    """
    Java's answer to an unknown request code.

    Source: NettyRemotingAbstract.processRequestCommand.
    """
    return encode_command(
        RemotingCommand(
            code=REQUEST_CODE_NOT_SUPPORTED,
            opaque=opaque,
            flag=REMOTING_RESPONSE,
            remark=NOT_SUPPORTED_REMARK.format(code),
            ext_fields={},
        )
    )


_APPEND = KINDS[RequestCode.APPEND]
_APPEND_START = bytes((NATIVE_FIRST_BYTE, FRAME_VERSION, _APPEND, 0))
_OPAQUE_AND_LENGTH = struct_of(Struct(*FRAME_HEADER_DECLARATION.subcons[4:]))
START_SIZE = _OPAQUE_AT = len(_APPEND_START)
_BODY_LENGTH = struct_of(BODY_LENGTH_DECLARATION)
_BODY_LENGTH_SIZE = _BODY_LENGTH.size
_APPEND_TEXTS_AT = FRAME_HEADER_SIZE + APPEND_REQUEST_DECLARATION.sizeof()
_COUNT = struct_of(Struct(APPEND_REQUEST_DECLARATION.subcons[-1]))

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

    The appends of one client differ only in their opaque number and bodies: the other bytes are compared with
    those of the last append, instead of being decoded again. Pushes and their answers differ in their
    numbers, but not in the ids of group and members.

    Invariant: C{_append_base} are the bytes before the number of bodies, C{_append_texts} those between this
    number and their lengths, C{_append_of_one} both and the number 1, and C{_like} is their decoded form;
    C{_lengths_at} is 0 before the first append.
    The fields for pushes and their answers hold only the texts.

    @ivar short: by the first L{START_SIZE} bytes of a frame: decodes one that is like the last one, with the
        result of L{learn}; None for another; raises L{WireError} as L{learn} does.
    """

    def __init__(self) -> None:
        self._append_base = self._append_texts = self._append_of_one = b""
        self._lengths_at = 0
        self._like = AppendRequest()
        self._push_lengths: _Lengths | None = None
        self._push_texts = b""
        self._records_at = _PUSH_TEXTS_AT
        self._push_like = PushEntryRequest(type=PushType.APPEND)
        self._answer_lengths: _Lengths | None = None
        self._answer_texts = b""
        self._answer_like = PushEntryResponse()
        self.short: dict[bytes, Callable[[bytes], tuple[int, Request | Response] | None]] = {
            _APPEND_START: self._append, _PUSH_START: self._push, _PUSH_ANSWER_START: self._push_answer,
            _APPEND_ANSWER_START: _append_answer,
        }

    def learn(self, frame: bytes) -> tuple[int, Request | Response]:
        """
        Decode one frame as L{decode_frame}, and learn how the next ones like it are decoded.

        @raise WireError: not exactly one frame of this format.
        """
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
        bodies = message.bodies
        self._lengths_at = len(frame) - sum(map(len, bodies)) - _BODY_LENGTH_SIZE * len(bodies)
        self._append_base = frame[FRAME_HEADER_SIZE : _APPEND_TEXTS_AT - _COUNT.size]
        self._append_texts = frame[_APPEND_TEXTS_AT : self._lengths_at]
        self._append_of_one = self._append_base + _COUNT.pack(1) + self._append_texts
        self._like = attrs.evolve(message, bodies=())

    def _append(self, frame: bytes) -> tuple[int, AppendRequest] | None:
        at, size = self._lengths_at, len(frame)
        if not at or size < at + _BODY_LENGTH_SIZE:
            return None
        opaque, length = _OPAQUE_AND_LENGTH.unpack_from(frame, _OPAQUE_AT)
        if length != size - FRAME_HEADER_SIZE:
            return None
        if frame.startswith(self._append_of_one, FRAME_HEADER_SIZE):
            at += _BODY_LENGTH_SIZE
            if _BODY_LENGTH.unpack_from(frame, at - _BODY_LENGTH_SIZE)[0] != size - at:
                return None
            bodies: tuple[bytes, ...] = (frame[at:],)
        elif (
            frame.startswith(self._append_base, FRAME_HEADER_SIZE)
            and frame.startswith(self._append_texts, _APPEND_TEXTS_AT)
        ):
            (count,) = _COUNT.unpack_from(frame, _APPEND_TEXTS_AT - _COUNT.size)
            bodies = Rest(frame, at, "native frame").bodies(count, BODIES_MAX)
        else:
            return None
        like = self._like
        return opaque, AppendRequest(
            group=like.group, remote_id=like.remote_id, local_id=like.local_id,
            leader_id=like.leader_id, term=like.term, wire_version=like.wire_version, bodies=bodies,
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


#: Requests that a client may have outstanding.
OUTSTANDING_MAX = 65536

#: Frames of one piece of a read, at most, and the price of their requests together: an append in a native
#: frame costs 1, which is about 20 us of processor time.
FRAMES_MAX = 64
PIECE_PRICE = 128

#: What a request in a remoting frame costs besides, and one that is refused for its body or its code.
_REMOTING_PRICE, _REFUSED_PRICE = 1, 4

#: Identifies a request for its sender; comes back with the answer or the failure.
_Token = TypeVar("_Token")

_NATIVE = "native"
_native_dialect: Dialect = NativeDialect()
_remoting_dialect: Dialect = RemotingDialect()


class RequestSink(Protocol):
    """Owner of incoming connections."""

    def connected(self, connection: ServerConnection) -> None:
        """A connection is ready."""

    def requests_received(
        self, connection: ServerConnection, requests: list[tuple[Ticket, Request]]
    ) -> None:
        """
        The requests of one read, in order. Each ticket is answered once, unless the connection
        is lost first.
        """

    def body_refused(self, connection: ServerConnection, ticket: Ticket, error: BodyError) -> None:
        """A valid frame with a malformed body; the ticket must be answered."""

    def drained(self, connection: ServerConnection) -> None:
        """The connection takes output again after L{ServerConnection.is_congested}."""

    def wire_broken(self, connection: ServerConnection, error: WireError) -> None:
        """The peer broke the format; the connection is being aborted."""

    def connection_lost(self, connection: ServerConnection, reason: str) -> None:
        """The connection has ended; later answers are dropped."""


class AnswerSink(Protocol[_Token]):
    """Owner of outgoing connections."""

    def connected(self, connection: ClientConnection[_Token]) -> None:
        """A connection is ready for requests."""

    def answers_received(
        self, connection: ClientConnection[_Token], answers: list[tuple[_Token, Response]]
    ) -> None:
        """The answers of one read, each with the token of its request, in order of arrival."""

    def requests_failed(
        self, connection: ClientConnection[_Token], tokens: list[_Token], reason: str, *,
        is_incompatible: bool = False, answer: RemotingCommand | None = None,
    ) -> None:
        """
        These requests will not be answered: refused without a body, timed out, connection lost.

        @param is_incompatible: whether they were answered in another version of the protocol.
        @param answer: the answer without a valid body, if one came.
        """

    @property
    def read_ended(self) -> Callable[[ClientConnection[_Token]], None] | None:
        """All answers and failures of one read have been handed over; None: the owner need not know."""

    def wire_broken(self, connection: ClientConnection[_Token], error: WireError) -> None:
        """The peer broke the format; the connection is being aborted."""

    def connection_lost(self, connection: ClientConnection[_Token], reason: str) -> None:
        """The connection has ended; called after L{requests_failed} for all outstanding requests."""


class ServerConnection(AnsweringConnection):
    """
    The end that answers.

    @ivar serial: rises with each connection that the listening side accepted.
    @ivar peer_id: the member at the other end, once it has identified itself; None for clients.
    """

    _stranger_frame_bytes_max = STRANGER_FRAME_BYTES_MAX
    _frames_max = FRAMES_MAX

    def __init__(
        self,
        sink: RequestSink,
        turn: Turn,
        *,
        serial: int = 0,
        unanswered_max: int = UNANSWERED_MAX,
        unanswered_bytes_max: int = UNANSWERED_BYTES_MAX,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        idle_s: float = IDLE_S,
        budgets: Budgets | None = None,
    ) -> None:
        super().__init__(
            turn, unanswered_max=unanswered_max, unanswered_bytes_max=unanswered_bytes_max,
            frame_bytes_max=frame_bytes_max, idle_s=idle_s, budgets=budgets,
        )
        self._reader = NativeReader()
        self._sink: RequestSink = sink
        self.serial = serial
        self.peer_id: str | None = None

    @property
    def is_urgent(self) -> bool:
        """Heartbeats, votes and pushes do not wait for clients."""
        return self.peer_id is not None

    def connectionMade(self) -> None:
        super().connectionMade()
        self._sink.connected(self)

    def was_heard(self) -> bool:
        """Whether bytes came since the last call. While it does not read, the other end counts as heard."""
        was_heard, self._was_heard = self._was_heard, False
        return was_heard or not self._is_reading

    def answer(self, ticket: Ticket, response: Response) -> None:
        """Answer a request in its own format. Nothing happens on a lost connection."""
        if self.is_lost:
            return
        opaque, is_native, _, size = ticket
        self.unanswered -= 1
        self.unanswered_bytes -= size
        self.write((_native_dialect if is_native else _remoting_dialect).response_parts(response, opaque))

    def answer_appended(self, ticket: Ticket, term: int, index: int, pos: int, count: int) -> None:
        """Answer with success an append that came in a native frame."""
        if self.is_lost:
            return
        self.unanswered -= 1
        self.unanswered_bytes -= ticket.size
        self._out.append(appended(ticket.opaque, term, index, pos, count))
        if not self._is_flush_asked:
            self._is_flush_asked = True
            self.turn.output(self._flush)

    def _frames_received(self, frames: list[Frame]) -> WireError | None:
        requests: list[tuple[Ticket, Request]] = []
        refused: list[tuple[Ticket, BodyError]] = []
        learn, short = self._reader.learn, self._reader.short
        broken, left = None, PIECE_PRICE
        try:
            for number, (form, frame) in enumerate(frames):
                if left <= 0:
                    self._buffer.put_back(frames[number:], taken=number)
                    break
                if form == _NATIVE:
                    start = frame[:START_SIZE]
                    opaque, message = (start in short and short[start](frame)) or learn(frame)
                    if isinstance(message, Request):
                        kind, size = message.kind, len(frame)
                        requests.append((Ticket(opaque, True, kind, size), message))
                        self.unanswered_bytes += size
                        left -= message.price
                else:
                    left -= self._remoting_frame(frame, requests, refused)
        except WireError as error:
            broken = error
        self.unanswered += len(requests)
        if refused:
            self.unanswered += len(refused)
        if requests:
            self._sink.requests_received(self, requests)
        for ticket, refusal in refused:
            self._sink.body_refused(self, ticket, refusal)
        if (
            self.unanswered > self._few or self.unanswered_bytes > self._few_bytes or self.account.asked_bytes
            or self.is_congested or self.put_off.is_waiting or not self._is_reading
        ):
            self.regulate()
        return broken

    def _remoting_frame(
        self,
        frame: bytes,
        requests: list[tuple[Ticket, Request]],
        refused: list[tuple[Ticket, BodyError]],
    ) -> int:
        """@return: the price."""
        command = self._loose.command(frame)
        if command.is_response:
            return _REMOTING_PRICE  # this end sends no requests
        kind = KNOWN_CODES.get(command.code)
        if kind is None:
            self.write((not_supported(command.opaque, command.code),))
            return _REFUSED_PRICE
        ticket = Ticket(command.opaque, False, kind, len(frame))
        self.unanswered_bytes += ticket.size
        try:
            request = self._decode(kind, command.body)
        except BodyError as error:
            refused.append((ticket, error))
            return _REFUSED_PRICE
        requests.append((ticket, request))
        return _REMOTING_PRICE + request.price

    def _decode(self, kind: RequestCode, body: bytes) -> Request:
        if len(body) > REQUEST_BYTES_MAX and kind not in WITH_CONTENT:
            raise BodyError(f"the body has {len(body)} bytes, {REQUEST_BYTES_MAX} are allowed")
        values_max = REQUEST_VALUES_MAX if self.peer_id is None else VALUES_MAX
        try:
            return decode_request(kind, body, values_max=values_max, tolerant_bytes_max=0)
        except LooseError:
            self._loose.use()
            return decode_request(kind, body, values_max=values_max)

    def _ended(self, reason: str) -> None:
        self._sink.connection_lost(self, reason)


class ClientConnection(Connection, Generic[_Token]):
    """
    The end that asks.

    @param wire: C{auto}: native frames once the other end advertised them in an answer, except METADATA:
        that is JSON; C{remoting}: never; C{binary}: always.
    @ivar peer_wire_version: highest version that the other end advertised in an answer; -1 before any.
    @ivar next_opaque: number of the next request.
    """

    def __init__(
        self,
        sink: AnswerSink[_Token],
        turn: Turn,
        *,
        wire: str = "auto",
        outstanding_max: int = OUTSTANDING_MAX,
        unsent_bytes_max: int = UNSENT_BYTES_MAX,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        idle_s: float = IDLE_S,
    ) -> None:
        assert wire in ("auto", "remoting", "binary"), wire
        super().__init__(turn, frame_bytes_max=frame_bytes_max, idle_s=idle_s)
        self._reader = NativeReader()
        self._sink = sink
        self._read_ended = sink.read_ended
        self._wire = wire
        self._outstanding: dict[int, tuple[_Token, RequestCode, float]] = {}
        self._outstanding_max = outstanding_max
        self._unsent_bytes_max = unsent_bytes_max
        self.next_opaque = 1
        self._heard_s = turn.seconds()
        self._swept_serial = 0
        self.is_native = wire == "binary"
        self.peer_wire_version = -1

    @property
    def outstanding(self) -> int:
        """Number of requests without an answer."""
        return len(self._outstanding)

    def connectionMade(self) -> None:
        super().connectionMade()
        self._heard_s = self.turn.seconds()
        self._sink.connected(self)

    def ask(self, request: Request, token: _Token, *, is_sign_of_life: bool = False) -> bool:
        """
        Send a request after the earlier ones.

        @param token: identifies the request; comes back with the answer or the failure.
        @param is_sign_of_life: nobody reads the answer.
        @return: False if it was not sent and has no outcome: the connection is lost, or too many
            requests are outstanding, or too many bytes unsent.
        """
        if (
            self.is_lost
            or self.is_closing
            or len(self._outstanding) >= self._outstanding_max
            or (self.is_congested and self._has_unsent(self._unsent_bytes_max))
        ):
            return False
        opaque, kind = self.next_opaque, request.kind
        self.next_opaque = opaque + 1 if opaque < 0x7FFFFFFF else 1
        self._outstanding[opaque] = (token, kind, self.turn.seconds())
        # The layout of a native METADATA answer has no room for what we report besides Java's keys.
        is_native = self.is_native and kind in KINDS and (
            kind is not RequestCode.METADATA or is_sign_of_life or self._wire == "binary"
        )
        self._out += (_native_dialect if is_native else _remoting_dialect).request_parts(request, opaque)
        if not self._is_flush_asked:
            self._is_flush_asked = True
            self.turn.output(self._flush)
        return True

    def _has_unsent(self, bytes_max: int) -> bool:
        """
        Whether this number of bytes waits for the other end, which is congested. A transport that is never
        drained, because more is written while it sends, is measured.
        """
        if self.unsent_bytes >= bytes_max and self.outlet is not None:
            self.unsent_bytes = self.outlet.waiting_bytes(self.unsent_bytes)
        return self.unsent_bytes >= bytes_max

    def sweep(self, now_s: float, time_out_s: float) -> None:
        """
        Fail requests older than C{time_out_s}; then abort the connection if it was silent all that time, or
        one frame has not ended: its length may be damaged, and swallow all answers. Called regularly.
        """
        serial = self._buffer.unfinished_serial
        if self._was_heard and not (self._buffer.kept_bytes and serial == self._swept_serial):
            self._heard_s = now_s
        self._was_heard = False
        self._swept_serial = serial
        late = []
        for opaque, (_, _, sent_s) in self._outstanding.items():
            if now_s - sent_s < time_out_s:
                break
            late.append(opaque)
        if not late:
            return
        tokens = [self._outstanding.pop(opaque)[0] for opaque in late]
        self._sink.requests_failed(self, tokens, f"no answer in {time_out_s:g} s")
        if now_s - self._heard_s >= time_out_s:
            what = "in the middle of a frame" if self._buffer.kept_bytes else "silent"
            self.abort(f"{what} for {time_out_s:g} s with requests outstanding")

    def _frames_received(self, frames: list[Frame]) -> WireError | None:
        answers: list[tuple[_Token, Response]] = []
        failed: list[tuple[_Token, BodyError, RemotingCommand]] = []
        outstanding, short = self._outstanding, self._reader.short
        broken = None
        try:
            for form, frame in frames:
                if form != _NATIVE:
                    self._remoting_frame(frame, answers, failed)
                    continue
                start = frame[:START_SIZE]
                opaque, message = (start in short and short[start](frame)) or self._reader.learn(frame)
                if opaque not in outstanding:
                    continue
                token, kind, _ = outstanding[opaque]
                if not isinstance(message, Response) or message.kind != kind:
                    raise WireError(f"native frame: the message for {opaque} is not an answer to {kind.name}")
                del outstanding[opaque]
                answers.append((token, message))
        except WireError as error:
            broken = error
        if answers:
            for _, answer in answers:
                if answer.wire_version > self.peer_wire_version:
                    self._learn(answer.wire_version)
            self._sink.answers_received(self, answers)
        for token, refusal, refusing in failed:
            reason = f"{refusal} (header code {refusing.code}, remark {refusing.remark!r})"
            is_incompatible = isinstance(refusal, IncompatibleError)
            self._sink.requests_failed(
                self, [token], reason, is_incompatible=is_incompatible, answer=refusing
            )
        if self._read_ended is not None:
            self._read_ended(self)
        return broken

    def _remoting_frame(
        self, frame: bytes, answers: list[tuple[_Token, Response]],
        failed: list[tuple[_Token, BodyError, RemotingCommand]],
    ) -> None:
        command = decode_command(frame)
        if not command.is_response:
            return  # this end answers no requests
        found = self._outstanding.pop(command.opaque, None)
        if found is None:
            return
        token, kind, _ = found
        try:
            answers.append((token, decode_response(kind, command.body)))
        except BodyError as error:
            failed.append((token, error, command))

    def _learn(self, wire_version: int) -> None:
        """The other end has advertised a higher version."""
        self.peer_wire_version = wire_version
        self.is_native = self._wire == "binary" or (
            self._wire == "auto" and wire_version & WIRE_VERSION_MASK == WIRE_VERSION
        )

    def _wire_broken(self, error: WireError) -> None:
        self._sink.wire_broken(self, error)

    def _ended(self, reason: str) -> None:
        tokens = [token for token, _, _ in self._outstanding.values()]
        self._outstanding.clear()
        if tokens:
            self._sink.requests_failed(self, tokens, f"connection lost: {reason}")
        self._sink.connection_lost(self, reason)
