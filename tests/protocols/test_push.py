# -*- test-case-name: tests.protocols.test_push -*-
"""The short ways for small appends say what the codec says, for every frame and every broken one."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from protocols.push import NativeDialect, NativeReader, appended
from protocols.wire.codes import RequestCode, ResponseCode
from protocols.wire.errors import WireError
from protocols.wire.messages import (
    AppendRequest,
    AppendResponse,
    EntryBatch,
    GetResponse,
    HeartBeatRequest,
    MetadataRequest,
    Request,
    Response,
)
from protocols.wire.push import decode_frame, encode_request_frame, encode_response_frame

TEXTS = st.none() | st.sampled_from(["", "n0", "default", "gr\u00fcn"])
APPENDS = st.builds(
    AppendRequest, group=TEXTS, remote_id=TEXTS, local_id=TEXTS, leader_id=TEXTS,
    term=st.integers(-1, 5), wire_version=st.integers(0, 2),
    bodies=st.lists(st.binary(max_size=20), max_size=3).map(tuple),
)
FRAMES = st.builds(encode_request_frame, APPENDS, st.integers(-(2**31), 2**31 - 1)) | st.just(
    encode_request_frame(MetadataRequest(group="g"), 5)
) | st.just(encode_response_frame(AppendResponse(index=3), 6))


def outcome(read: object, frame: bytes) -> object:
    """What a reader makes of a frame: the message, or that it is none."""
    try:
        return read(frame)  # type: ignore[operator]
    except WireError:
        return "refused"


@st.composite
def damaged_frames(draw: st.DrawFn) -> bytes:
    """A frame with a byte changed, its end cut, or something behind it."""
    frame = bytearray(draw(FRAMES))
    kind = draw(st.integers(0, 3))
    if kind == 1:
        frame[draw(st.integers(0, len(frame) - 1))] ^= draw(st.integers(1, 255))
    elif kind == 2:
        del frame[draw(st.integers(0, len(frame))):]
    elif kind == 3:
        frame += draw(st.binary(min_size=1, max_size=4))
    return bytes(frame)


class NativeReaderTests(SynchronousTestCase):
    """A reader that remembers reads as one that does not."""

    @settings(max_examples=300, deadline=None, derandomize=True)
    @given(st.lists(damaged_frames(), max_size=8))
    def test_as_the_codec(self, frames: list[bytes]) -> None:
        """Any sequence of frames, sound or not."""
        reader = NativeReader()
        for frame in frames:
            self.assertEqual(outcome(reader.read, frame), outcome(decode_frame, frame))

    def test_every_truncation_and_every_byte(self) -> None:
        """With the frame itself remembered, each cut and each changed byte is judged as the codec does."""
        frame = encode_request_frame(AppendRequest(group="g", remote_id="n0", bodies=(b"hello",)), 77)
        reader = NativeReader()
        reader.read(frame)
        for size in range(len(frame)):
            self.assertEqual(outcome(reader.read, frame[:size]), outcome(decode_frame, frame[:size]))
        for at in range(len(frame)):
            for bit in range(8):
                changed = bytearray(frame)
                changed[at] ^= 1 << bit
                reader = NativeReader()
                reader.read(frame)
                self.assertEqual(
                    outcome(reader.read, bytes(changed)), outcome(decode_frame, bytes(changed)), f"byte {at}"
                )

    def test_remembers_each_clients_own(self) -> None:
        """Another group between two appends is not taken for the first."""
        reader = NativeReader()
        for group in ("a", "b", "a", "b"):
            frame = encode_request_frame(AppendRequest(group=group, remote_id="n0", bodies=(b"x",)), 1)
            message = reader.read(frame)[1]
            assert isinstance(message, AppendRequest)
            self.assertEqual(message.group, group)


class AppendedTests(SynchronousTestCase):
    """The answer to a successful append in one pack."""

    @settings(max_examples=200, deadline=None, derandomize=True)
    @given(
        st.integers(-(2**31), 2**31 - 1), st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1),
        st.integers(0, 2**63 - 1), st.integers(1, 65536),
    )
    def test_as_the_codec(self, opaque: int, term: int, index: int, pos: int, count: int) -> None:
        """Byte for byte."""
        response = AppendResponse(
            code=ResponseCode.SUCCESS, term=term, index=index, pos=pos, count=count
        )
        self.assertEqual(appended(opaque, term, index, pos, count), encode_response_frame(response, opaque))


class NativeDialectTests(SynchronousTestCase):
    """Frames in pieces."""

    dialect = NativeDialect()

    def test_parts_are_the_frame(self) -> None:
        """Whatever the message, the pieces joined are what the codec writes."""
        entries = EntryBatch(first_index=0, count=1, term=1, records=bytes(48))
        requests: list[Request] = [HeartBeatRequest(group="g"), AppendRequest(bodies=(b"a", b"b"))]
        responses: list[Response] = [AppendResponse(index=1), GetResponse(entries=entries)]
        for request in requests:
            parts = self.dialect.request_parts(request, 3)
            self.assertEqual(b"".join(parts), encode_request_frame(request, 3))
        for response in responses:
            parts = self.dialect.response_parts(response, 3)
            self.assertEqual(b"".join(parts), encode_response_frame(response, 3))

    def test_records_are_not_copied(self) -> None:
        """The records of an answer are handed on as they are."""
        records = bytes(48)
        response = GetResponse(entries=EntryBatch(first_index=0, count=1, term=1, records=records))
        self.assertIs(self.dialect.response_parts(response, 3)[-1], records)
        self.assertEqual(response.kind, RequestCode.GET)
