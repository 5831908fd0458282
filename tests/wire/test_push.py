# -*- test-case-name: tests.wire.test_push -*-
"""Native frames: captured once and for all, cut everywhere, and the same as their declarations."""

from __future__ import annotations

import struct
from typing import Any

import attrs
from construct import StreamError, Struct
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from protocols.ledger.connection import NativeReader
from protocols.wire.codes import ResponseCode
from protocols.wire.errors import WireError
from protocols.wire.layout import struct_of
from protocols.wire.ledger.batches import EntryChunk
from protocols.wire.ledger.bounds import INDEX_MAX, TERM_MAX
from protocols.wire.ledger.codes import Consistency, PushType, RequestCode, VoteResult
from protocols.wire.ledger.java.json_bodies import decode_request, encode_request
from protocols.wire.ledger.message_table import MESSAGES
from protocols.wire.ledger.messages import (
    AppendRequest,
    GetRequest,
    GetResponse,
    LeadershipTransferRequest,
    MetadataResponse,
    PullRequest,
    PushEntryRequest,
    PushEntryResponse,
    Request,
    Response,
    VoteRequest,
    VoteResponse,
)
from protocols.wire.ledger.push import (
    BODIES_MAX,
    FRAME_HEADER_SIZE,
    KINDS,
    NATIVE_FRAME_BYTES_MAX,
    PEERS_MAX,
    TEXT_BYTES_MAX,
    decode_frame,
    encode_request_frame,
    encode_request_parts,
    encode_response_frame,
    encode_response_parts,
)
from protocols.wire.ledger.push_layout import (
    PEER_DECLARATION,
    REQUEST_DECLARATIONS,
    RESPONSE_DECLARATIONS,
)
from protocols.wire.native import FRAME_HEADER, FRAME_HEADER_DECLARATION, NATIVE_FIRST_BYTE
from tests.protocols.fakes import read_native
from tests.wire.golden import BODIES, EXAMPLES, HELLO
from tests.wire.golden_native import NATIVE_FRAMES
from tests.wire.test_entry import three
from tests.wire.values import house, ints, longs, requests, responses

#: A push of one entry with opaque 7, written by hand: a change here is a change of the wire version.
PUSH = PushEntryRequest(
    group="g", remote_id="n1", local_id="n0", leader_id="n0", term=3, wire_version=1, commit_index=4,
    entries=HELLO,
)
PUSH_FRAME = bytes.fromhex(
    "d1 01 07 00 00000007 0000006e"  # header: PUSH, a request, opaque 7, 110 bytes follow
    "0000000000000003 00000001 0001 0002 0002 0002"  # term, wire version, lengths of the four texts
    "00 00 0000000000000004"  # APPEND, not a batch, commit index
    "0000000000000005 00000001 0000000000000003"  # first index, count, term of the last entry
    "67 6e31 6e30 6e30"  # g n1 n0 n0
) + HELLO.records

ANSWER = PushEntryResponse(
    group="g", term=3, code=ResponseCode.INCONSISTENT_STATE, index=5, count=1, begin_index=0, end_index=4
)
ANSWER_FRAME = bytes.fromhex(
    "d1 01 07 01 00000007 00000036"
    "0000000000000003 00000000 0001 ffff ffff ffff"
    "00000196 01 0000000000000005 00000001 0000000000000000 0000000000000004"
    "67"
)

APPEND = AppendRequest(group="g", remote_id="n0", bodies=(b"hello", b"", b"you"))
APPEND_FRAME = bytes.fromhex(
    "d1 01 02 00 ffffffff 0000002f"
    "ffffffffffffffff 00000000 0001 0002 ffff ffff"
    "00000003"
    "67 6e30"
    "00000005 00000000 00000003 68656c6c6f 796f75"
)


def encode(message: Request | Response, opaque: int = 1) -> bytes:
    """The frame of a message of either direction."""
    if isinstance(message, Request):
        return encode_request_frame(message, opaque)
    return encode_response_frame(message, opaque)


def relength(frame: bytes) -> bytes:
    """C{frame} with the right length in its header, so that the damage is elsewhere."""
    return frame[:8] + struct.pack(">i", len(frame) - FRAME_HEADER_SIZE) + frame[FRAME_HEADER_SIZE:]


def declaration_of(message: Request | Response) -> Struct:
    """What declares the fixed part of a message."""
    return (REQUEST_DECLARATIONS if isinstance(message, Request) else RESPONSE_DECLARATIONS)[message.kind]


def changed(message: Request | Response, **fields: int) -> bytes:
    """The frame of C{message} with other numbers in its fixed part."""
    frame = encode(message)
    declaration = declaration_of(message)
    end = FRAME_HEADER_SIZE + declaration.sizeof()
    numbers = declaration.parse(frame[FRAME_HEADER_SIZE:end])
    assert fields.keys() <= numbers.keys()
    fixed: bytes = declaration.build({**numbers, **fields})
    return frame[:FRAME_HEADER_SIZE] + fixed + frame[end:]


class GoldenTests(SynchronousTestCase):
    """Frames written by hand."""

    def test_both_ways(self) -> None:
        """They fit the encoder and the decoder."""
        for opaque, message, frame in (
            (7, PUSH, PUSH_FRAME), (7, ANSWER, ANSWER_FRAME), (-1, APPEND, APPEND_FRAME)
        ):
            self.assertEqual(encode(message, opaque), frame)
            self.assertEqual(decode_frame(frame), (opaque, message))

    def test_every_message_of_version_1(self) -> None:
        """None may change under its version, and all are there."""
        for message, frame in NATIVE_FRAMES:
            self.assertEqual(encode(message, 7), frame, message)
            self.assertEqual(decode_frame(frame), (7, message))
            self.assertEqual((frame[0], frame[1]), (NATIVE_FIRST_BYTE, 1))
        seen = {type(message) for message, _ in NATIVE_FRAMES}
        self.assertEqual(seen, {each for kind in KINDS for each in MESSAGES[kind]})


class RoundTripTests(SynchronousTestCase):
    """Every message in both directions."""

    @house
    @given(requests | responses, ints)
    def test_round_trip(self, message: Request | Response, opaque: int) -> None:
        """What is written is read, and the parts are the frame."""
        frame = encode(message, opaque)
        self.assertEqual(decode_frame(frame), (opaque, message))
        if isinstance(message, Request):
            self.assertEqual(b"".join(encode_request_parts(message, opaque)), frame)
        else:
            self.assertEqual(b"".join(encode_response_parts(message, opaque)), frame)

    @house
    @given(st.lists(st.binary(max_size=20), max_size=40))
    def test_many_bodies(self, bodies: list[bytes]) -> None:
        """Empty ones too."""
        request = AppendRequest(bodies=tuple(bodies))
        self.assertEqual(decode_frame(encode(request)), (1, request))

    def test_captured_messages(self) -> None:
        """What Java says can be said natively."""
        for message in [example.message for example in EXAMPLES] + [message for _, _, message in BODIES]:
            self.assertEqual(decode_frame(encode(message)), (1, message))

    def test_defaults(self) -> None:
        """A message with nothing set; only a push needs an entry."""
        for request, response in (MESSAGES[kind] for kind in KINDS):
            for message in (request(), response()):
                if not isinstance(message, PushEntryRequest):
                    self.assertEqual(decode_frame(encode(message)), (1, message))

    def test_payload_is_not_copied(self) -> None:
        """Records and bodies are pieces of their own."""
        for parts, payload in (
            (encode_request_parts(PUSH, 1), HELLO.records),
            (encode_response_parts(GetResponse(entries=HELLO), 1), HELLO.records),
            (encode_request_parts(APPEND, 1), APPEND.bodies[0]),
        ):
            self.assertTrue(any(part is payload for part in parts))
            self.assertNotIn(b"", parts)

    def test_unlisted_codes(self) -> None:
        """A code of a later version is UNKNOWN, and so is a later vote result."""
        _, message = decode_frame(changed(ANSWER, code=507))
        self.assertEqual(message, attrs.evolve(ANSWER, code=ResponseCode.UNKNOWN))
        vote = VoteResponse(vote_result=VoteResult.ACCEPT)
        _, message = decode_frame(changed(vote, vote_result=12))
        self.assertEqual(message, VoteResponse(vote_result=VoteResult.UNKNOWN))


class TwinTests(SynchronousTestCase):
    """The packers of frames fit the declarations."""

    def twins(self, declaration: Struct) -> None:
        """Equal on generated values and on every truncation."""
        derived = struct_of(declaration)
        bounds = {"b": (-128, 127), "B": (0, 255), "h": (-(1 << 15), (1 << 15) - 1)}
        kinds = [subcon.subcon.fmtstr[1:] for subcon in declaration.subcons]
        names = [subcon.name for subcon in declaration.subcons]
        self.assertEqual(len(set(names)), len(names))

        @house
        @given(
            st.tuples(
                *(
                    longs if kind == "q" else st.integers(*bounds[kind]) if kind in bounds else ints
                    for kind in kinds
                )
            )
        )
        def compare(values: tuple[int, ...]) -> None:
            packed = derived.pack(*values)
            self.assertEqual(packed, declaration.build(dict(zip(names, values, strict=True))))
            parsed = declaration.parse(packed)
            self.assertEqual(tuple(parsed[name] for name in names), values)
            self.assertEqual(derived.unpack(packed), values)
            for length in range(len(packed)):
                self.assertRaises(struct.error, derived.unpack_from, packed[:length])
                self.assertRaises(StreamError, declaration.parse, packed[:length])

        compare()

    def test_frame_header(self) -> None:
        """12 bytes."""
        self.assertEqual(FRAME_HEADER_DECLARATION.sizeof(), FRAME_HEADER_SIZE)
        self.twins(FRAME_HEADER_DECLARATION)

    def test_fixed_parts(self) -> None:
        """Of every message, and of a peer."""
        self.twins(PEER_DECLARATION)
        for declarations in (REQUEST_DECLARATIONS, RESPONSE_DECLARATIONS):
            self.assertEqual(declarations.keys(), KINDS.keys())
            for declaration in declarations.values():
                self.twins(declaration)

    @house
    @given(requests | responses)
    def test_fields_have_their_names(self, message: Request | Response) -> None:
        """A declared field that is named as a field of the message holds it."""
        declaration = declaration_of(message)
        numbers = declaration.parse(encode(message)[FRAME_HEADER_SIZE:])
        values: dict[str, Any] = attrs.asdict(message, recurse=False)
        compared = 0
        for name in numbers.keys() & values.keys():
            value = values[name]
            if isinstance(value, int):
                self.assertEqual(numbers[name], value, name)
                compared += 1
            elif isinstance(value, Consistency):
                self.assertEqual(numbers[name], list(Consistency).index(value))
        for name in ("group", "remote_id", "local_id", "leader_id"):
            text = values[name]
            self.assertEqual(numbers[f"{name}_length"], -1 if text is None else len(text.encode()))
        self.assertGreaterEqual(compared, 2)


class RefusalTests(SynchronousTestCase):
    """Everything in a frame is bounded, known, and used up."""

    def refused(self, frame: bytes, *words: str) -> None:
        """C{frame} is refused for a reason."""
        error = self.assertRaises(WireError, decode_frame, frame)
        for word in words:
            self.assertIn(word, str(error))

    @house
    @given(requests | responses)
    def test_every_truncation(self, message: Request | Response) -> None:
        """No beginning of a frame is one, even if its length says so."""
        frame = encode(message)
        for length in range(len(frame)):
            self.refused(frame[:length])
            if length >= FRAME_HEADER_SIZE:
                self.refused(relength(frame[:length]))

    @house
    @given(requests | responses, st.binary(min_size=1, max_size=4))
    def test_something_behind(self, message: Request | Response, more: bytes) -> None:
        """Whether the length counts it or not."""
        self.refused(encode(message) + more, "length=")
        self.refused(relength(encode(message) + more))

    @house
    @given(st.binary(max_size=60), st.integers(0, 9), st.integers(0, 2))
    def test_garbage(self, data: bytes, kind: int, flags: int) -> None:
        """A message or a L{WireError}."""
        for frame in (data, FRAME_HEADER.pack(0xD1, 1, kind, flags, 1, len(data)) + data):
            try:
                decode_frame(frame)
            except WireError:
                continue

    @house
    @given(requests | responses, st.data())
    def test_damage(self, message: Request | Response, data: st.DataObject) -> None:
        """One wrong byte: a message or a L{WireError}; and a message can be written again."""
        frame = bytearray(encode(message))
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
        try:
            opaque, other = decode_frame(bytes(frame))
        except WireError:
            return
        self.assertEqual(decode_frame(encode(other, opaque)), (opaque, other))

    def test_header(self) -> None:
        """First byte, version, kind, flags."""
        for at, byte, word in ((0, 0xD2, "0xd2"), (1, 2, "version 2"), (2, 0, "kind=0"), (2, 10, "kind=10"),
                               (3, 2, "flags=2"), (3, 0x81, "flags=129")):
            self.refused(PUSH_FRAME[:at] + bytes([byte]) + PUSH_FRAME[at + 1 :], word)

    def test_text_lengths(self) -> None:
        """From -1 to what is there."""
        for name in ("group", "remote_id", "local_id", "leader_id"):
            for length in (-2, -32768, 32767):
                self.refused(changed(ANSWER, **{f"{name}_length": length}), f"{name} length={length}")
        pull = PullRequest(node_id="n0")
        self.refused(changed(pull, node_id_length=3), "node_id length=3 outside 0..2")
        transfer = LeadershipTransferRequest(transfer_id="n0", transferee_id="n1")
        self.refused(changed(transfer, transferee_id_length=3), "transferee_id")
        self.refused(changed(transfer, transfer_id_length=-2), "transfer_id")

    def test_text_is_utf_8(self) -> None:
        """As everywhere."""
        self.refused(ANSWER_FRAME[:-1] + b"\xff", "group is not UTF-8")

    def test_wire_version(self) -> None:
        """Versions start at 0."""
        self.refused(changed(ANSWER, wire_version=-1), "wire_version=-1")

    def test_flags(self) -> None:
        """A flag is 0 or 1."""
        for message, name in (
            (VoteRequest(), "pre_vote"), (VoteRequest(), "transfer"), (VoteResponse(), "pre_vote"),
            (PUSH, "is_batch"), (ANSWER, "has_index"), (GetRequest(), "has_begin_index"),
        ):
            self.refused(changed(message, **{name: 2}), f"{name}=2")

    def test_consistency(self) -> None:
        """A read that asks for something else is not answered with less."""
        for message in (GetRequest(), PullRequest()):
            self.refused(changed(message, consistency=2), "consistency=2")

    def test_push_types(self) -> None:
        """Five of them, and each has its number of entries."""
        self.refused(changed(PUSH, type=5), "type=5")
        self.refused(changed(PUSH, type=PushType.COMMIT), "COMMIT push with 1 entries")
        for push_type in (PushType.COMPARE, PushType.TRUNCATE):
            request = PushEntryRequest(type=push_type, entries=HELLO)
            self.assertEqual(decode_frame(encode(request)), (1, request))
            self.refused(encode(attrs.evolve(request, entries=three())), "with 3 entries")
            self.refused(encode(attrs.evolve(request, entries=None)), "with 0 entries")
        self.refused(encode(PushEntryRequest()), "APPEND push with 0 entries")
        self.refused(changed(PUSH, count=-1), "with -1 entries")

    def test_records(self) -> None:
        """The fixed part counts and measures the records right."""
        get = GetResponse(entries=three())
        for message in (PushEntryRequest(entries=three(), is_batch=True), get):
            for name, value in (("first_index", 3), ("count", 2), ("count", 4), ("entries_term", 1),
                                ("count", 0x7FFFFFFF)):
                self.refused(changed(message, **{name: value}))
        self.refused(changed(get, count=-1), "count=-1")
        self.refused(changed(get, count=0), "without entries")
        self.refused(changed(GetResponse(), first_index=0), "first_index=0, term=-1 without entries")
        self.refused(changed(GetResponse(), entries_term=0), "without entries")

    def test_bodies(self) -> None:
        """Count and lengths are bounded before they are used."""
        for count in (-1, BODIES_MAX + 1, 0x7FFFFFFF):
            self.refused(changed(APPEND, count=count), f"count={count} outside 0..{BODIES_MAX}")
        self.refused(changed(APPEND, count=2), "bodies end at")
        self.refused(changed(APPEND, count=6), "body lengths length=24 outside 0..20")
        at = APPEND_FRAME.index(bytes.fromhex("00000005 00000000"))
        for length in (6, 4, 0x7FFFFFFF):
            frame = APPEND_FRAME[:at] + struct.pack(">i", length) + APPEND_FRAME[at + 4 :]
            self.refused(frame, "bodies end at")
        # Without the check of each length these two add up.
        frame = APPEND_FRAME[:at] + struct.pack(">3i", 9, -4, 3) + APPEND_FRAME[at + 12 :]
        self.refused(frame, "body_length=-4 is negative")

    def test_peers(self) -> None:
        """Bounded in number, complete, each once."""
        message = MetadataResponse(peers={"n0": "h:1", "n1": "h:2"})
        for count in (-1, PEERS_MAX + 1):
            self.refused(changed(message, peers_count=count), f"outside 0..{PEERS_MAX}")
        self.refused(changed(message, peers_count=3), "peer length")
        self.refused(changed(message, peers_count=1), "after its message")
        frame = encode(message)
        self.refused(frame.replace(b"n1", b"n0"), "twice")
        self.refused(frame.replace(b"\0\2\0\3n0", b"\xff\xff\0\5n0"), "incomplete")
        self.refused(frame.replace(b"\0\2\0\3n0h:1", b"\0\5\xff\xffn0h:1"), "incomplete")

    def test_too_much_to_write(self) -> None:
        """What a peer would refuse is our bug before it is sent."""
        for message in (
            AppendRequest(bodies=(b"",) * (BODIES_MAX + 1)),
            AppendRequest(bodies=(bytes(NATIVE_FRAME_BYTES_MAX),)),
            GetRequest(group="x" * (TEXT_BYTES_MAX + 1)),
            MetadataResponse(peers={f"n{number}": "" for number in range(PEERS_MAX + 1)}),
        ):
            self.assertRaises(AssertionError, encode, message)
        decode_frame(encode(AppendRequest(bodies=(b"",) * BODIES_MAX)))
        decode_frame(encode(GetRequest(group="x" * TEXT_BYTES_MAX)))

    def test_kinds(self) -> None:
        """Each number is given once, and fits its byte."""
        self.assertEqual(len(set(KINDS.values())), len(KINDS))
        self.assertEqual({number for number in KINDS.values() if not 0 < number < 256}, set())


def chunk_push(records: bytes = HELLO.records * 3, **fields: int) -> PushEntryRequest:
    """An APPEND of a chunk of three entries. Only a store can check its records."""
    values = {"first_index": 5, "count": 3, "term": 2, "records_crc": 0xFFFFFFFE, "units_crc": 7, **fields}
    units = bytes(range(32)) * max(values["count"], 0)
    return PushEntryRequest(
        type=PushType.APPEND, commit_index=99, is_batch=True,
        entries=EntryChunk(records=records, units=units, **values),  # type: ignore[arg-type]
    )


class ChunkTests(SynchronousTestCase):
    """A push of type 4 is an APPEND of a chunk: its sums, its index units, its records."""

    def test_layout(self) -> None:
        """The bytes after the fixed part, whole and read by a connection."""
        request = chunk_push()
        frame = encode_request_frame(request, 3)
        assert isinstance(request.entries, EntryChunk)
        behind = bytes.fromhex("fffffffe 00000007") + request.entries.units + request.entries.records
        self.assertTrue(frame.endswith(behind))
        self.assertEqual(decode_frame(frame), (3, request))
        self.assertEqual(read_native(NativeReader(), frame), (3, request))
        self.assertEqual(b"".join(encode_request_parts(request, 3)), frame)

    def test_no_copies(self) -> None:
        """Records and units are not copied into the frame."""
        request = chunk_push()
        assert isinstance(request.entries, EntryChunk)
        parts = encode_request_parts(request, 3)
        self.assertTrue(any(part is request.entries.records for part in parts))
        self.assertTrue(any(part is request.entries.units for part in parts))

    def test_cut(self) -> None:
        """No beginning of it is a frame."""
        frame = encode_request_frame(chunk_push(), 3)
        for size in range(len(frame)):
            self.assertRaises(WireError, decode_frame, frame[:size])

    def test_bounds(self) -> None:
        """Every number has its bound, and nothing is allocated before it is checked."""
        frame = encode_request_frame(chunk_push(), 3)
        for count in (0, -1, 4, 1 << 30, (1 << 31) - 1):
            self.assertRaises(WireError, decode_frame, changed_push(frame, count=count))
        for fields in ({"first_index": -1}, {"first_index": INDEX_MAX}, {"entries_term": -1},
                       {"entries_term": TERM_MAX + 1}):
            self.assertRaises(WireError, decode_frame, changed_push(frame, **fields))
        self.assertRaises(WireError, decode_frame, encode_request_frame(chunk_push(bytes(3 * 48 - 1)), 3))

    def test_as_json(self) -> None:
        """To a connection without native frames it is a push of its entries."""
        batch = three()
        chunk = EntryChunk(first_index=batch.first_index, count=3, term=batch.term, records=batch.records,
                           units=bytes(96), records_crc=1, units_crc=2)
        body = encode_request(PushEntryRequest(type=PushType.APPEND, is_batch=True, entries=chunk))
        read = decode_request(RequestCode.PUSH, body)
        assert isinstance(read, PushEntryRequest)
        self.assertEqual(read.entries, batch)


def changed_push(frame: bytes, **fields: int) -> bytes:
    """The frame with other numbers in its fixed part."""
    fixed = struct_of(REQUEST_DECLARATIONS[RequestCode.PUSH])
    names = [field.name for field in REQUEST_DECLARATIONS[RequestCode.PUSH].subcons]
    values = dict(zip(names, fixed.unpack_from(frame, FRAME_HEADER_SIZE), strict=True))
    changed_frame = bytearray(frame)
    fixed.pack_into(changed_frame, FRAME_HEADER_SIZE, *{**values, **fields}.values())
    return bytes(changed_frame)
