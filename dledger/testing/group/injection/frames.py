# -*- test-case-name: tests.sim.test_liars -*-
"""
Changes messages on the way between members: whole messages, or bytes of their frames.

A write of a member holds whole frames. L{MessageChanger} decodes each, lets a caller change its message, and
encodes it again in its own format; a frame that it cannot decode goes through as it is.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from dledger.testing.world.streams import StreamEnd
from protocols.wire.errors import WireError
from protocols.wire.ledger.codes import PushType, RequestCode
from protocols.wire.ledger.java.json_bodies import (
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from protocols.wire.ledger.messages import PushEntryRequest, Request, Response
from protocols.wire.ledger.push import decode_frame, encode_request_frame, encode_response_frame
from protocols.wire.native import FRAME_HEADER, FRAME_HEADER_SIZE, NATIVE_FIRST_BYTE
from protocols.wire.remoting import (
    LENGTH_WORD_SIZE,
    RemotingCommand,
    decode_command,
    encode_answer,
    encode_command,
)

#: Returns the message that is sent instead.
Change = Callable[[Request | Response], Request | Response]

_CODES = {int(code): code for code in RequestCode}


def cut_frames(data: bytes) -> Iterator[bytes]:
    """The frames of one write; what is after the last whole one is a piece of its own."""
    at = 0
    while at < len(data):
        if data[at] == NATIVE_FIRST_BYTE and len(data) - at >= FRAME_HEADER_SIZE:
            size = FRAME_HEADER_SIZE + FRAME_HEADER.unpack_from(data, at)[5]
        else:
            size = LENGTH_WORD_SIZE + int.from_bytes(data[at : at + LENGTH_WORD_SIZE], "big")
        yield data[at : at + size]
        at += size


class MessageChanger:
    """
    Knows which request each number of a JSON answer belongs to: the answer does not say.

    @ivar changed: number of messages that were changed.
    """

    def __init__(self) -> None:
        self.changed = 0
        self._asked: dict[tuple[int, int], RequestCode] = {}

    def listen(self, end: StreamEnd, data: bytes) -> None:
        """The client's C{end} sends these requests."""
        for frame in cut_frames(data):
            if frame[0] != NATIVE_FIRST_BYTE:
                command = _command_of(frame)
                if command is not None and not command.is_response and command.code in _CODES:
                    self._asked[end.link.number, command.opaque] = _CODES[command.code]

    def change(self, end: StreamEnd, data: bytes, change: Change) -> bytes:
        """The bytes that are sent instead of these."""
        return b"".join(self._changed(end, frame, change) for frame in cut_frames(data))

    def _changed(self, end: StreamEnd, frame: bytes, change: Change) -> bytes:
        is_native = frame[0] == NATIVE_FIRST_BYTE
        found = self._native(frame) if is_native else self._remoting(end, frame)
        if found is None:
            return frame
        opaque, message = found
        instead = change(message)
        if instead is message:
            return frame
        self.changed += 1
        return _encoded(instead, opaque, is_native=is_native)

    @staticmethod
    def _native(frame: bytes) -> tuple[int, Request | Response] | None:
        try:
            return decode_frame(frame)
        except WireError:
            return None

    def _remoting(self, end: StreamEnd, frame: bytes) -> tuple[int, Request | Response] | None:
        command = _command_of(frame)
        if command is None:
            return None
        try:
            if command.is_response:
                kind = self._asked.pop((end.link.number, command.opaque), None)
                return None if kind is None else (command.opaque, decode_response(kind, command.body))
            return command.opaque, decode_request(_CODES[command.code], command.body)
        except (WireError, KeyError):
            return None


def _command_of(frame: bytes) -> RemotingCommand | None:
    try:
        return decode_command(frame[LENGTH_WORD_SIZE:])
    except WireError:
        return None


def _encoded(message: Request | Response, opaque: int, *, is_native: bool) -> bytes:
    if isinstance(message, Request):
        if is_native:
            return encode_request_frame(message, opaque)
        code, body = int(message.kind), encode_request(message)
        return encode_command(RemotingCommand(code=code, opaque=opaque, ext_fields={}, body=body))
    if is_native:
        return encode_response_frame(message, opaque)
    return encode_answer(opaque, encode_response(message))


class Jumble:
    """
    Pushes of entries overtake each other, as those of a Java leader do, whose requests run in many threads.

    @ivar chance: share of the pushes that wait for the next write of their connection.
    @ivar jumbled: pushes that came late so far.
    """

    def __init__(self, rng: random.Random) -> None:
        self.chance = 0.0
        self.jumbled = 0
        self._rng = rng
        self._held: dict[StreamEnd, bytes] = {}

    def on_the_way(self, end: StreamEnd, data: bytes) -> bytes:
        """See L{dledger.testing.group.members.network.Rewriter}."""
        late = self._held.pop(end, b"")
        if not self.chance or end.number:
            return data + late
        passed = []
        for frame in cut_frames(data):
            if not late and self._rng.random() < self.chance and _is_append(frame):
                late = frame
                self.jumbled += 1
            else:
                passed.append(frame)
                if late:
                    passed.append(late)
                    late = b""
        if late:
            self._held[end] = late
        return b"".join(passed)


def _is_append(frame: bytes) -> bool:
    """Whether a frame is a push with entries."""
    try:
        if frame[0] == NATIVE_FIRST_BYTE:
            message: object = decode_frame(frame)[1]
        else:
            command = decode_command(frame[LENGTH_WORD_SIZE:])
            message = None if command.is_response else decode_request(_CODES[command.code], command.body)
    except (WireError, KeyError):
        return False
    return isinstance(message, PushEntryRequest) and message.type is PushType.APPEND


def corrupt(data: bytes, rng: random.Random) -> bytes:
    """
    One byte of one frame of a write is another one, or bits of it are: a bit that TCP did
    not notice, or that flipped in the memory of a machine.
    """
    frames = list(cut_frames(data))
    at = int(rng.random() * len(frames))
    frame = bytearray(frames[at])
    place = int(rng.random() * len(frame))
    frame[place] ^= 1 << int(rng.random() * 8) if rng.random() < 0.7 else 1 + int(rng.random() * 255)
    frames[at] = bytes(frame)
    return b"".join(frames)
