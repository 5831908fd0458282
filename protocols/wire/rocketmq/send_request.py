# -*- test-case-name: tests.wire.test_send_request -*-
"""
A fast path for a broker's most frequent request: SEND_MESSAGE_V2 as RocketMQ's Java client writes it.

The headers of one producer's requests differ in four places: queue, time of birth, properties, number. The
bytes around these are compared with an earlier request's instead of being decoded again; the first request of
a shape is decoded by the general path, L{protocols.wire.remoting.decode_command}.

Rule: any other spelling is left to the general path, and the results of both paths are equal; the tests
compare them.

Source: SendMessageRequestHeaderV2, RemotingCommand, fastjson's writer of HashMaps (RocketMQ 4.9.8, 5.3.3).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import NamedTuple

import attrs

from protocols.wire.errors import WireError
from protocols.wire.remoting import FRAME_START, HEADER_WORD_SIZE, JSON, RemotingCommand, decode_command

#: At most this many shapes (topics, groups, flags of its producers) are remembered for one connection.
SHAPES_MAX = 16

_TEXT = rb'[^"\\\x00-\x1f]*'
_INT = rb"-?[0-9]{1,9}"
_SEND = re.compile(
    rb'(\{"code":310,"extFields":\{"a":"' + _TEXT + rb'","b":"' + _TEXT + rb'","c":"' + _TEXT
    + rb'","d":"' + _INT + rb'","e":")([0-9]{1,9})(","f":"' + _INT + rb'","g":")([0-9]{1,18})(","h":"'
    + _INT + rb'","i":")([^"]*)("'
    # None of the names above may come again.
    + rb'(?:,"[j-z][a-zA-Z]{0,30}":"' + _TEXT + rb'"){0,16}\},"flag":0,"language":"[A-Z]{1,16}","opaque":)'
    + rb'([0-9]{1,10})(,"serializeTypeCurrentRPC":"JSON","version":[0-9]{1,6}\})'
)
_START = b'{"code":310,'


class SendShape:
    """
    The bytes around the four places in requests of one shape.

    @ivar command: the first of the requests, decoded by the general path; without its body.
    @ivar note: for the owner of the connection: facts about these requests.
    """

    __slots__ = ("command", "five", "four", "note", "one", "three", "two")

    def __init__(self, around: tuple[bytes, bytes, bytes, bytes, bytes], command: RemotingCommand) -> None:
        self.one, self.two, self.three, self.four, self.five = around
        self.command = command
        self.note: object = None


class SendMessageRequest(NamedTuple):
    """
    A request, in pieces.

    @ivar frame: the whole frame, from the framing.
    @ivar queue_id: field C{e}. @ivar born_timestamp: field C{g}, ms since 1970.
    @ivar properties: field C{i}, encoded as in a record.
    """

    shape: SendShape
    frame: bytes
    opaque: int
    queue_id: int
    born_timestamp: int
    properties: bytes
    body: bytes


class SendReader:
    """
    Reads the requests of one connection.

    Invariant: C{_shapes} are at most L{SHAPES_MAX} shapes of earlier requests, the newest first.
    """

    def __init__(self) -> None:
        self._shapes: list[SendShape] = []

    def read(self, frame: bytes) -> SendMessageRequest | None:
        """
        @param frame: all bytes after the length word.
        @return: None if it is another request, or has another spelling.
        """
        for shape in self._shapes:
            if frame.startswith(shape.one, HEADER_WORD_SIZE):
                found = _read_like(shape, frame)
                if found is not None:
                    return found
        if frame.startswith(_START, HEADER_WORD_SIZE) and frame[0] == JSON:
            shape_of_frame = _shape_of(frame)
            if shape_of_frame is not None:
                self._shapes.insert(0, shape_of_frame)
                del self._shapes[SHAPES_MAX:]
                return _read_like(shape_of_frame, frame)
        return None


def _shape_of(frame: bytes) -> SendShape | None:
    end = HEADER_WORD_SIZE + int.from_bytes(frame[1:HEADER_WORD_SIZE], "big")
    if end > len(frame):
        return None
    found = _SEND.fullmatch(frame, HEADER_WORD_SIZE, end)
    if found is None:
        return None
    try:
        command = decode_command(frame)
    except WireError:
        return None
    one, _, two, _, three, _, four, _, five = found.groups()
    return SendShape((one, two, three, four, five), attrs.evolve(command, body=b""))


def _read_like(shape: SendShape, frame: bytes) -> SendMessageRequest | None:
    """A request of this shape; None if it has another shape."""
    at = HEADER_WORD_SIZE + len(shape.one)
    stop = frame.find(b'"', at, at + 10)
    queue = frame[at:stop]
    if not (frame.startswith(shape.two, stop) and queue.isdigit()):
        return None
    at = stop + len(shape.two)
    stop = frame.find(b'"', at, at + 19)
    born = frame[at:stop]
    if not (frame.startswith(shape.three, stop) and born.isdigit()):
        return None
    at = stop + len(shape.three)
    stop = frame.find(b'"', at)
    if not frame.startswith(shape.four, stop):
        return None
    properties = _unescaped(frame[at:stop])
    at = stop + len(shape.four)
    stop = frame.find(b",", at, at + 11)
    opaque = frame[at:stop]
    end = stop + len(shape.five)
    if (
        properties is None or not opaque.isdigit() or (opaque[0] == 48 and len(opaque) > 1)
        or not frame.startswith(shape.five, stop)
        or frame[0] != JSON or int.from_bytes(frame[1:HEADER_WORD_SIZE], "big") != end - HEADER_WORD_SIZE
    ):
        return None
    number = int(opaque)
    if number > 0x7FFFFFFF:
        return None
    return SendMessageRequest(shape, frame, number, int(queue), int(born), properties, frame[end:])


def _unescaped(text: bytes) -> bytes | None:
    """Properties from a JSON string; None if the general path must decode them."""
    try:
        if not text.decode("utf-8").isprintable():
            return None
    except UnicodeDecodeError:
        return None
    if b"\\" not in text:
        return text
    # After an escaped backslash the same letters are not an escape; then a backslash is left and found below.
    raw = text.replace(b"\\u0001", b"\x01").replace(b"\\u0002", b"\x02")
    return None if b"\\" in raw else raw


class SentAnswers:
    """Encodes answers to requests whose message is stored, as the general path would."""

    def __init__(self, told: Mapping[str, str], *, language: str, version: int) -> None:
        """
        @param told: fields of every answer, besides those that locate its message.
        """
        texts = {name: json.dumps(text, ensure_ascii=False).replace("%", "%%") for name, text in told.items()}
        places = {"msgId": '"%b%016X"', "queueId": '"%d"', "queueOffset": '"%d"'}
        fields = ",".join(f'"{name}":{text}' for name, text in sorted({**texts, **places}.items()))
        self._form = (
            f'{{"code":%d,"extFields":{{{fields}}},"flag":1,"language":"{language}","opaque":%d,'
            f'"serializeTypeCurrentRPC":"JSON","version":{version}}}'
        ).encode()

    def frame(
        self, opaque: int, code: int, id_start: bytes, offset: int, queue_id: int, queue_offset: int
    ) -> bytes:
        """
        One answer, length word included.

        @param id_start: first part of the message id: the store host, in hexadecimal.
        @param offset: log offset of the record; the second part of the message id.
        """
        header = self._form % (code, id_start, offset, queue_id, queue_offset, opaque)
        return FRAME_START.pack(HEADER_WORD_SIZE + len(header), len(header)) + header
