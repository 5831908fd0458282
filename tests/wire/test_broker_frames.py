# -*- test-case-name: tests.wire.test_broker_frames -*-
"""A broker's native frames: captured once and for all, cut everywhere, and the same as their declarations."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import attrs
from construct import StreamError, Struct
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from protocols.wire.errors import WireError
from protocols.wire.framing import FrameBuffer
from protocols.wire.layout import struct_of
from protocols.wire.ledger.push import KINDS
from protocols.wire.native import FRAME_HEADER, FRAME_HEADER_SIZE, NATIVE_FRAME_BYTES_MAX
from protocols.wire.rocketmq.broker_frames import (
    BrokerAnswer,
    BrokerRequest,
    OffsetsAnswer,
    OffsetsRequest,
    PutAnswer,
    PutRequest,
    ReadAnswer,
    ReadRequest,
    answer_parts,
    decode_broker_frame,
    request_parts,
)
from protocols.wire.rocketmq.broker_layout import (
    BROKER_ANSWER_DECLARATIONS,
    BROKER_REQUEST_DECLARATIONS,
    PUT_BODIES_MAX,
    BrokerKind,
)
from tests.wire.values import ints, longs

Message = BrokerRequest | BrokerAnswer

#: Messages with opaque 7; a change here is another version of the format.
GOLDEN: tuple[tuple[Message, bytes], ...] = (
    (
        PutRequest(topic="T1", bodies=(b"hello", b""), queue_id=2, properties=b"TAGS\x01A\x02", flag=3,
                   sys_flag=1, born_timestamp=5),
        bytes.fromhex(
            "d1 01 21 00 00000007 00000032"
            "0002 0007 00000002 00000003 00000001 0000000000000005 00000002"
            "5431 54414753014102 00000005 00000000 68656c6c6f"
        ),
    ),
    (
        PutAnswer(code=10, queue_id=2, queue_offset=8, store_timestamp=6, offsets=(1, 2)),
        bytes.fromhex(
            "d1 01 21 01 00000007 0000002e"
            "0000000a 00000002 0000000000000008 0000000000000006 0000 00000002"
            "0000000000000001 0000000000000002"
        ),
    ),
    (
        PutAnswer(code=14, remark="a slave"),
        bytes.fromhex(
            "d1 01 21 01 00000007 00000025"
            "0000000e ffffffff ffffffffffffffff 0000000000000000 0007 00000000"
            "6120736c617665"
        ),
    ),
    (
        ReadRequest(begin_offset=9, max_bytes=10, wait_ms=11),
        bytes.fromhex("d1 01 22 00 00000007 00000010 0000000000000009 0000000a 0000000b"),
    ),
    (
        ReadAnswer(code=0, log_begin_offset=4, log_end_offset=300, begin_offset=10, next_offset=15,
                   records=b"abcde", remark="r"),
        bytes.fromhex(
            "d1 01 22 01 00000007 0000002c"
            "00000000 0000000000000004 000000000000012c 000000000000000a 000000000000000f 0001"
            "72 6162636465"
        ),
    ),
    (OffsetsRequest(), bytes.fromhex("d1 01 23 00 00000007 00000000")),
    (
        OffsetsAnswer(begin_offset=1, end_offset=2, flushed_offset=3, file_size=4, broker_id=5,
                      broker_name="b", broker_role="SLAVE", remark="r"),
        bytes.fromhex(
            "d1 01 23 01 00000007 00000039"
            "00000000 0000000000000001 0000000000000002 0000000000000003 0000000000000004 0000000000000005"
            "0001 0005 0001 62 534c415645 72"
        ),
    ),
)


def encoded(message: Message, opaque: int = 7) -> bytes:
    """The frame of a message."""
    if isinstance(message, PutRequest | ReadRequest | OffsetsRequest):
        return b"".join(request_parts(message, opaque))
    return b"".join(answer_parts(message, opaque))


def reframed(frame: bytes) -> bytes:
    """The same with the length that it has."""
    return frame[:8] + struct.pack(">i", len(frame) - FRAME_HEADER_SIZE) + frame[12:]


def with_number(frame: bytes, at: int, form: str, number: int) -> bytes:
    """The same with another number C{at} bytes after the header."""
    start = FRAME_HEADER_SIZE + at
    return frame[:start] + struct.pack(form, number) + frame[start + struct.calcsize(form) :]


class GoldenTests(SynchronousTestCase):
    """Bytes that stay as they are."""

    def test_both_ways(self) -> None:
        """Written and read."""
        for message, frame in GOLDEN:
            self.assertEqual(encoded(message).hex(" "), frame.hex(" "), message)
            self.assertEqual(decode_broker_frame(frame), (7, message))

    def test_every_message_is_there(self) -> None:
        """Each kind, request and answer."""
        seen = {(frame[2], frame[3]) for _, frame in GOLDEN}
        self.assertEqual(seen, {(kind, flags) for kind in BrokerKind for flags in (0, 1)})

    def test_kinds_are_none_of_a_ledger(self) -> None:
        """One number, one message, whoever listens."""
        self.assertFalse(set(KINDS.values()) & set(map(int, BrokerKind)))

    def test_every_truncation(self) -> None:
        """What is cut off is missed, whether the header knows of it or not."""
        for message, frame in GOLDEN:
            variable = len(message.records) if isinstance(message, ReadAnswer) else 0
            for size in range(len(frame)):
                self.assertRaises(WireError, decode_broker_frame, frame[:size])
                if FRAME_HEADER_SIZE <= size < len(frame) - variable:
                    self.assertRaises(WireError, decode_broker_frame, reframed(frame[:size]))

    def test_nothing_is_left_over(self) -> None:
        """A byte after the message; of records, a byte after what C{next_offset} allows."""
        for _, frame in GOLDEN:
            self.assertRaises(WireError, decode_broker_frame, frame + b"x")
            self.assertRaises(WireError, decode_broker_frame, reframed(frame + b"x"))

    def test_every_cut(self) -> None:
        """The framing hands the frames out however they are cut."""
        stream = b"".join(frame for _, frame in GOLDEN)
        for cut in range(1, len(stream)):
            buffer = FrameBuffer()
            frames = [*buffer.feed(stream[:cut]), *buffer.feed(stream[cut:])]
            self.assertEqual([decode_broker_frame(frame.data)[1] for frame in frames],
                             [message for message, _ in GOLDEN])


class RefusalTests(SynchronousTestCase):
    """Numbers that are out of bounds."""

    PUT = GOLDEN[0][1]
    ANSWER = GOLDEN[1][1]
    READ = GOLDEN[4][1]

    def refused(self, frame: bytes, word: str) -> None:
        """It is, with a reason that names the field."""
        error = self.assertRaises(WireError, decode_broker_frame, frame)
        self.assertIn(word, str(error))

    def test_header(self) -> None:
        """Another first byte, version, kind, flag, length."""
        for at, byte, word in ((0, 0xD2, "first"), (1, 2, "first"), (2, 7, "kind=7"), (2, 36, "kind=36"),
                               (3, 2, "flags=0x02"), (11, 1, "length=1")):
            self.refused(self.PUT[:at] + bytes((byte,)) + self.PUT[at + 1 :], word)

    def test_put(self) -> None:
        """Lengths of topic, properties and bodies; the count."""
        frame = self.PUT
        for at, form, number, word in (
            (0, ">h", -1, "topic"), (0, ">h", 40, "topic"), (2, ">h", -1, "properties"),
            (2, ">h", 99, "properties"), (24, ">i", -1, "count"), (24, ">i", PUT_BODIES_MAX + 1, "count"),
            (24, ">i", 5, "body lengths"), (24, ">i", 1, "bodies end"), (37, ">i", -1, "body_length=-1"),
            (37, ">i", 6, "bodies end"), (37, ">i", 4, "bodies end"),
        ):
            self.refused(with_number(frame, at, form, number), word)
        self.refused(frame[:40] + b"\xff\xff" + frame[42:], "topic is not UTF-8")

    def test_answers(self) -> None:
        """Count of offsets; records without their place, and a place without records."""
        for number, word in ((-1, "count"), (PUT_BODIES_MAX + 1, "count"), (3, "offsets"), (1, "8 bytes")):
            self.refused(with_number(self.ANSWER, 26, ">i", number), word)
        self.refused(with_number(self.READ, 20, ">q", -1), "begin_offset=-1")
        self.refused(with_number(self.READ, 28, ">q", 14), "next_offset=14")
        self.refused(reframed(self.READ[:-5]), "begin_offset=10 with 0")

    def test_what_we_write_is_bounded(self) -> None:
        """Too many bodies, too long a frame, too long a topic: bugs of the caller."""
        for request in (
            PutRequest(topic="t", bodies=(b"",) * (PUT_BODIES_MAX + 1)),
            PutRequest(topic="t", bodies=(bytes(NATIVE_FRAME_BYTES_MAX),)),
            PutRequest(topic="t" * 32768, bodies=()),
        ):
            self.assertRaises(AssertionError, encoded, request)

    def test_remarks_are_cut(self) -> None:
        """Whole characters of somebody's exception text; half a surrogate pair is no reason to fail."""
        read = decode_broker_frame(encoded(PutAnswer(code=1, remark="é" * 5000)))[1]
        assert isinstance(read, PutAnswer)
        self.assertEqual(read.remark, "é" * 2048)
        odd = decode_broker_frame(encoded(PutAnswer(code=1, remark="a\ud800")))[1]
        assert isinstance(odd, PutAnswer)
        self.assertEqual(odd.remark, "a?")


def _parsed(declaration: Struct, data: bytes) -> dict[str, Any]:
    return {name: value for name, value in declaration.parse(data).items() if name != "_io"}


class DeclarationTests(SynchronousTestCase):
    """What packs is what is declared."""

    @given(st.data())
    def test_twins(self, data: Any) -> None:
        """construct and struct agree on values, and on every truncation of the fixed part."""
        kind = data.draw(st.sampled_from(list(BrokerKind)))
        declarations = data.draw(
            st.sampled_from((BROKER_REQUEST_DECLARATIONS, BROKER_ANSWER_DECLARATIONS)))
        declaration = declarations[kind]
        packed = struct_of(declaration)
        limits = {2: st.integers(-(2**15), 2**15 - 1), 4: ints, 8: longs}
        values = {field.name: data.draw(limits[field.sizeof()]) for field in declaration.subcons}
        raw = packed.pack(*values.values())
        self.assertEqual(raw, declaration.build(values))
        self.assertEqual(_parsed(declaration, raw), values)
        for size in range(packed.size):
            self.assertRaises(StreamError, declaration.parse, raw[:size])
            self.assertRaises(struct.error, packed.unpack, raw[:size])

    @given(
        st.text(max_size=20), st.lists(st.binary(max_size=40), max_size=5), st.binary(max_size=40), ints,
        st.integers(-(2**31), 2**31 - 1),
    )
    def test_put(self, topic: str, bodies: list[bytes], properties: bytes, number: int, opaque: int) -> None:
        """Any request is read as it was written."""
        request = PutRequest(topic=topic, bodies=tuple(bodies), properties=properties, queue_id=number,
                             flag=number, sys_flag=number, born_timestamp=number)
        self.assertEqual(decode_broker_frame(encoded(request, opaque)), (opaque, request))

    def test_header_is_that_of_the_ledger(self) -> None:
        """One framing for both."""
        for _, frame in GOLDEN:
            self.assertEqual(FRAME_HEADER.unpack_from(frame)[5], len(frame) - FRAME_HEADER_SIZE)

    def test_values_are_frozen(self) -> None:
        """Nobody changes what a transport may still hold."""
        change: Callable[[], None] = lambda: setattr(GOLDEN[0][0], "topic", "x")  # noqa: E731
        self.assertRaises(attrs.exceptions.FrozenInstanceError, change)
