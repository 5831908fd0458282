# -*- test-case-name: tests.wire.test_send_request -*-
"""
A fast path for a broker's most frequent request: SEND_MESSAGE_V2 as RocketMQ's Java client writes it.

The headers of one producer's requests differ in four places: queue, time of birth, properties, number. The
bytes around these are compared with an earlier request's instead of being decoded again; the first request of
a shape is decoded by the general path, L{protocols.wire.remoting.decode_command}. The lengths of the nine
pieces are those of the last request with the same first word, if these fit; else they are looked for.

Rule: any other spelling is left to the general path, and the results of both paths are equal; the tests
compare them.

Source: SendMessageRequestHeaderV2, RemotingCommand, fastjson's writer of HashMaps (RocketMQ 4.9.8, 5.3.3).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from struct import Struct
from typing import NamedTuple

import attrs

from protocols.wire.errors import WireError
from protocols.wire.remoting import FRAME_START, HEADER_WORD_SIZE, JSON, RemotingCommand, decode_command

#: At most this many shapes (topics, groups, flags of its producers) are remembered for one connection.
SHAPES_MAX = 16

#: And at most this many lengths of their pieces for each shape.
LAYOUTS_MAX = 32

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

    @ivar around: these bytes.
    @ivar layouts: by the first word of a frame: the lengths of all nine pieces, as in the last request with
        this word.
    @ivar command: the first of the requests, decoded by the general path; without its body.
    @ivar note: for the owner of the connection: facts about these requests.
    """

    __slots__ = ("around", "command", "layouts", "note")

    def __init__(self, around: tuple[bytes, bytes, bytes, bytes, bytes], command: RemotingCommand) -> None:
        self.around = around
        self.layouts: dict[bytes, Struct] = {}
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
    word = frame[:HEADER_WORD_SIZE]
    layout = shape.layouts.get(word) or _layout_of(shape, frame)
    if layout is None or len(frame) < layout.size:
        return None
    _, one, queue, two, born, three, text, four, opaque, five = layout.unpack_from(frame)
    if (one, two, three, four, five) != shape.around:
        # Another shape; or the same with other lengths that make the same sum.
        layout = _layout_of(shape, frame)
        if layout is None:
            return None
        _, one, queue, two, born, three, text, four, opaque, five = layout.unpack_from(frame)
    if not (queue.isdigit() and born.isdigit() and opaque.isdigit()) or b'"' in text:
        return None
    if opaque[0] == 48 and opaque != b"0":
        return None
    properties, number = _unescaped(text), int(opaque)
    if properties is None or number > 0x7FFFFFFF:
        return None
    return SendMessageRequest(shape, frame, number, int(queue), int(born), properties, frame[layout.size :])


def _layout_of(shape: SendShape, frame: bytes) -> Struct | None:
    """Find the lengths of the pieces of a request, and remember them; None if it has another shape."""
    one, two, three, four, five = shape.around
    places = []
    at = HEADER_WORD_SIZE
    for before, mark, most in ((one, b'"', 9), (two, b'"', 18), (three, b'"', len(frame)), (four, b",", 10)):
        if not frame.startswith(before, at):
            return None
        at += len(before)
        stop = frame.find(mark, at, at + most + 1)
        if stop < 0:
            return None
        places.append(stop - at)
        at = stop
    if not frame.startswith(five, at):
        return None
    size = at + len(five)
    if frame[0] != JSON or int.from_bytes(frame[1:HEADER_WORD_SIZE], "big") != size - HEADER_WORD_SIZE:
        return None
    queue, born, text, opaque = places
    layout = Struct(
        f">{HEADER_WORD_SIZE}s{len(one)}s{queue}s{len(two)}s{born}s{len(three)}s{text}s{len(four)}s{opaque}s"
        f"{len(five)}s"
    )
    if len(shape.layouts) >= LAYOUTS_MAX:
        shape.layouts.clear()
    shape.layouts[frame[:HEADER_WORD_SIZE]] = layout
    return layout


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

    def __init__(self, reported: Mapping[str, str], *, language: str, version: int) -> None:
        """
        @param reported: fields of every answer, besides those that locate its message.
        """
        texts = {name: json.dumps(text, ensure_ascii=False).replace("%", "%%") for name,
                 text in reported.items()}
        places = {"msgId": '"%b%016X"', "queueId": '"%d"', "queueOffset": '"%d"'}
        fields = ",".join(f'"{name}":{text}' for name, text in sorted({**texts, **places}.items()))
        self._form = (
            f'{{"code":%d,"extFields":{{{fields}}},"flag":1,"language":"{language}","opaque":%d,'
            f'"serializeTypeCurrentRPC":"JSON","version":{version}}}'
        ).encode()

    def frames(
        self, sends: Sequence[tuple[int, int, int]], code: int, id_start: bytes, offsets: Sequence[int],
        queue_offsets: Sequence[int],
    ) -> list[bytes]:
        """
        Encode answers, length words included.

        @param sends: of each request: its number, its queue, and the place of its message in the lists.
        @param id_start: first part of the message ids: the store host, in hexadecimal.
        @param offsets: log offsets of the records; the second part of the message ids.
        """
        form, pack, frames = self._form, FRAME_START.pack, []
        for opaque, queue_id, at in sends:
            header = form % (code, id_start, offsets[at], queue_id, queue_offsets[at], opaque)
            size = len(header)
            frames.append(pack(HEADER_WORD_SIZE + size, size) + header)
        return frames
