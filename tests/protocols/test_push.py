# -*- test-case-name: tests.protocols.test_push -*-
"""The short ways for appends and for pushes agree with the codec, about sound frames and broken ones."""

from __future__ import annotations

from functools import partial

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from protocols.ledger import connection as push
from protocols.ledger.connection import NativeDialect, NativeReader, appended
from protocols.wire.codes import ResponseCode
from protocols.wire.errors import WireError
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.codes import PushType, RequestCode
from protocols.wire.ledger.entry import ENTRY_HEADER
from protocols.wire.ledger.messages import (
    AppendRequest,
    AppendResponse,
    GetResponse,
    HeartBeatRequest,
    MetadataRequest,
    PushEntryRequest,
    PushEntryResponse,
    Request,
    Response,
)
from protocols.wire.ledger.push import (
    decode_frame,
    encode_request_frame,
    encode_request_parts,
    encode_response_frame,
)
from tests.protocols.fakes import read_native

TEXTS = st.none() | st.sampled_from(["", "n0", "default", "gr\u00fcn"])
APPENDS = st.builds(
    AppendRequest, group=TEXTS, remote_id=TEXTS, local_id=TEXTS, leader_id=TEXTS,
    term=st.integers(-1, 5), wire_version=st.integers(0, 2),
    bodies=st.lists(st.binary(max_size=20), max_size=3).map(tuple),
)
OPAQUES = st.integers(-(2**31), 2**31 - 1)


def batch_of(first_index: int, bodies: list[bytes]) -> EntryBatch:
    """Entries of term 2."""
    records = b"".join([
        ENTRY_HEADER.pack(1, 48 + len(body), first_index + at, 2, 0, 0, 0, 0, len(body)) + body
        for at, body in enumerate(bodies)
    ])
    return EntryBatch(first_index=first_index, count=len(bodies), term=2, records=records)


BATCHES = st.builds(batch_of, st.integers(0, 3), st.lists(st.binary(max_size=9), min_size=1, max_size=2))
BASE = {"group": TEXTS, "remote_id": TEXTS, "local_id": TEXTS, "leader_id": TEXTS,
        "term": st.integers(-1, 5), "wire_version": st.integers(0, 2)}
PUSHES = st.builds(
    PushEntryRequest, **BASE, type=st.just(PushType.APPEND), is_batch=st.booleans(),
    commit_index=st.integers(-1, 9), entries=BATCHES,
) | st.builds(PushEntryRequest, **BASE, type=st.just(PushType.COMMIT), commit_index=st.integers(-1, 9))
ANSWERS = st.builds(
    PushEntryResponse, **BASE, code=st.sampled_from(list(ResponseCode)),
    index=st.none() | st.integers(0, 9), count=st.integers(0, 3), begin_index=st.integers(-1, 3),
    end_index=st.integers(-1, 9),
)
APPENDED = st.builds(
    AppendResponse, group=TEXTS, leader_id=st.none() | st.just("n1"), term=st.integers(-1, 5),
    code=st.sampled_from(list(ResponseCode)), index=st.integers(-1, 9), pos=st.integers(-1, 9),
    count=st.integers(0, 3),
)
FRAMES = (
    st.builds(encode_request_frame, APPENDS | PUSHES, OPAQUES)
    | st.builds(encode_response_frame, ANSWERS | APPENDED, OPAQUES)
    | st.just(encode_request_frame(MetadataRequest(group="g"), 5))
    | st.just(encode_response_frame(AppendResponse(index=3), 6))
)
NAMES = {"group": "g", "remote_id": "n0", "local_id": "n1", "leader_id": "n1"}
#: A frame of each kind that has a short way.
SHORT = (
    encode_request_frame(AppendRequest(group="g", remote_id="n0", bodies=(b"hello",)), 77),
    encode_request_frame(PushEntryRequest(
        **NAMES, type=PushType.APPEND, commit_index=3, entries=batch_of(4, [b"a", b"bc"]), is_batch=True,
        term=2, wire_version=1,
    ), 78),
    encode_response_frame(PushEntryResponse(
        **NAMES, index=4, count=2, begin_index=0, end_index=5, term=2, wire_version=1
    ), 79),
    appended(80, 2, 4, 400, 1),
)


def outcome(read: object, frame: bytes) -> object:
    """What a reader makes of a frame: the message, or that it is none."""
    try:
        return read(frame)  # type: ignore[operator]
    except WireError:
        return "refused"


@st.composite
def damaged_frames(draw: st.DrawFn) -> bytes:
    """A frame with a byte changed, its end cut, or something after it."""
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
            self.assertEqual(outcome(partial(read_native, reader), frame), outcome(decode_frame, frame))

    def test_every_truncation_and_every_byte(self) -> None:
        """With the frame itself remembered, each cut and each changed byte is judged as the codec does."""
        for frame in SHORT:
            self.damage(frame)

    def damage(self, frame: bytes) -> None:
        """See L{test_every_truncation_and_every_byte}."""
        reader = NativeReader()
        read_native(reader, frame)
        for size in range(len(frame)):
            cut = frame[:size]
            self.assertEqual(outcome(partial(read_native, reader), cut), outcome(decode_frame, cut))
        for at in range(len(frame)):
            for bit in range(8):
                changed = frame[:at] + bytes([frame[at] ^ 1 << bit]) + frame[at + 1 :]
                reader = NativeReader()
                read_native(reader, frame)
                found = outcome(partial(read_native, reader), changed)
                self.assertEqual(found, outcome(decode_frame, changed), f"byte {at}")

    def test_short_ways_are_taken(self) -> None:
        """What was read once is not handed to the codec again."""
        for frame in SHORT:
            reader = NativeReader()
            known = read_native(reader, frame)
            self.patch(push, "decode_frame", None)
            self.assertEqual(read_native(reader, frame), known)
            self.patch(push, "decode_frame", decode_frame)

    def test_no_records_are_kept(self) -> None:
        """A connection that is idle does not hold on to its last push."""
        reader = NativeReader()
        read_native(reader, SHORT[1])
        self.assertIsNone(reader._push_like.entries)

    def test_remembers_each_clients_own(self) -> None:
        """Another group between two appends is not taken for the first."""
        reader = NativeReader()
        for group in ("a", "b", "a", "b"):
            frame = encode_request_frame(AppendRequest(group=group, remote_id="n0", bodies=(b"x",)), 1)
            message = read_native(reader, frame)[1]
            assert isinstance(message, AppendRequest)
            self.assertEqual(message.group, group)


class AppendFrameTests(SynchronousTestCase):
    """An append with one body is written by a short way."""

    @settings(max_examples=200, deadline=None, derandomize=True)
    @given(APPENDS, OPAQUES)
    def test_as_its_parts(self, request: AppendRequest, opaque: int) -> None:
        """The frame is what its parts are."""
        parts = encode_request_parts(request, opaque)
        self.assertEqual(encode_request_frame(request, opaque), b"".join(parts))


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
        """Of any message, the pieces joined are the bytes of the codec."""
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
