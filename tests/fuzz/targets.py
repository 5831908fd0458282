# -*- test-case-name: tests.fuzz.test_decoders -*-
"""
The fuzz targets: name to a function that does one execution with the given random generator.

The invariant of the decoders, in one sentence: any bytes yield messages or L{WireError} (of a body:
L{BodyError}), nothing else, whole and in pieces alike, with bounded memory; and a message that was read
can be written and read again.

An execution that finds an error raises; its steps depend on the seed of its generator alone.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from functools import partial
from zlib import crc32

import attrs

from protocols.ledger.connection import NativeReader
from protocols.wire.errors import BodyError, WireError
from protocols.wire.fastjson import read_object, write_object
from protocols.wire.framing import Frame, FrameBuffer, FrameError
from protocols.wire.ledger.batches import EntryBatch, EntryChunk
from protocols.wire.ledger.codes import PushType, RequestCode
from protocols.wire.ledger.entry import bodies_of, iterate_records
from protocols.wire.ledger.envelopes import ENVELOPE_MAGIC, decode_envelope, envelope_head, headers_problem
from protocols.wire.ledger.java.json_bodies import (
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from protocols.wire.ledger.messages import (
    AppendRequest,
    MetadataRequest,
    MetadataResponse,
    PushEntryRequest,
    Request,
    Response,
)
from protocols.wire.ledger.push import decode_frame, encode_request_frame, encode_response_frame
from protocols.wire.ledger.push_layout import KINDS
from protocols.wire.ledger.record_checks import check_records
from protocols.wire.native import FRAME_HEADER, FRAME_HEADER_SIZE
from protocols.wire.remoting import ROCKETMQ, RemotingCommand, decode_command, encode_command
from protocols.wire.rocketmq.broker_frames import decode_broker_frame
from protocols.wire.rocketmq.message import (
    check_message,
    decode_batch,
    decode_message,
    encode_batch,
    encode_message,
    plain_body,
)
from protocols.wire.rocketmq.send_request import SendReader
from tests.fuzz.chunks import fuzz_chunks
from tests.fuzz.group_state import fuzz_group_state
from tests.fuzz.ha import fuzz_ha
from tests.fuzz.mutation import EDGES, damaged, damaged_json, loosely
from tests.fuzz.name_server import fuzz_name_server
from tests.fuzz.recovery import fuzz_recovery
from tests.protocols.fakes import read_native
from tests.wire.golden import BODIES, EXAMPLES, HELLO, PUSHES_0_4
from tests.wire.test_broker_frames import GOLDEN as BROKER_FRAMES
from tests.wire.test_broker_frames import encoded
from tests.wire.test_entry import three
from tests.wire.test_json_bodies import FULL
from tests.wire.test_rocketmq_message import BROKER_RECORD, SHAPES
from tests.wire.test_rocketmq_message import BatchTests as _Batches
from tests.wire.test_send_request import java as java_send

Target = Callable[[random.Random], None]

_MESSAGES: tuple[Request | Response, ...] = (
    *(example.message for example in EXAMPLES),
    *(message for _, _, message in BODIES),
    *FULL,
    PushEntryRequest(group="größe", entries=three(), is_batch=True),
    PushEntryRequest(type=PushType.TRUNCATE, entries=HELLO),
)
_NATIVE_ONLY = (
    AppendRequest(group="g", bodies=(b"", b"hello", b"x" * 100)),
    PushEntryRequest(group="g", commit_index=9, is_batch=True, entries=EntryChunk(
        first_index=2, count=3, term=1, records=three().records, units=bytes(96), records_crc=1, units_crc=2,
    )),
)


def _native(message: Request | Response, opaque: int = 7) -> bytes:
    if isinstance(message, Request):
        return encode_request_frame(message, opaque)
    return encode_response_frame(message, opaque)


def _body(message: Request | Response) -> bytes:
    return encode_request(message) if isinstance(message, Request) else encode_response(message)


_NATIVE_FRAMES = tuple(_native(message) for message in (*_MESSAGES, *_NATIVE_ONLY)
    if message.kind in KINDS
)
_COMMANDS = (
    *(
        encode_command(RemotingCommand(code=200, opaque=1, flag=1, body=_body(message)))
        for message in _MESSAGES
    ),
    encode_command(RemotingCommand(code=3, opaque=-1, remark="nö", ext_fields={"a": "b", "topic": "t"})),
    encode_command(
        RemotingCommand(
            code=10, opaque=1, remark="nö", ext_fields={"a": "b", "topic": "t"}, serialize_type=ROCKETMQ,
            body=b"body",
        )
    ),
)
_BODIES = tuple(
    (message.kind, isinstance(message, Response), _body(message)) for message in _MESSAGES
) + tuple((RequestCode.PUSH, False, body) for body in PUSHES_0_4)
_JSON_BODIES = tuple(body for _, _, body in _BODIES)
_FRAMES = (*_NATIVE_FRAMES, *_COMMANDS)
_ROCKETMQ_RECORDS = (BROKER_RECORD, *map(encode_message, SHAPES))
_ROCKETMQ_BATCH = encode_batch(_Batches.ITEMS)
_KINDS = tuple(RequestCode)
_ENVELOPES = tuple(
    envelope_head(time_ms, headers) + body
    for time_ms in (None, 0, 1767323045678) for headers in ({}, {"type": b"order", "ä": b"\xff" * 9})
    for body in (b"", b"hello")
)


def _fed(data: bytes, cuts: list[int], bound: int) -> tuple[list[Frame], str]:
    """Frames and error of C{data} read in pieces; checks the bound of the memory."""
    buffer = FrameBuffer(frame_bytes_max=bound)
    frames: list[Frame] = []
    at = 0
    for end in [*cuts, len(data)]:
        try:
            frames += buffer.feed(data[at:end])
        except FrameError as error:
            return frames + error.frames, str(error)
        at = end
        assert buffer.kept_bytes <= min(at, bound), f"{buffer.kept_bytes} bytes kept"
    return frames, ""


def fuzz_framing(rng: random.Random) -> None:
    """A damaged stream of both formats, whole and in pieces; each frame is given to its decoder."""
    data = b"".join(rng.choices(_FRAMES, k=rng.randrange(1, 5)))
    if rng.random() < 0.8:
        data = damaged(data, _FRAMES, rng)
    bound = rng.choice((64, 256, 1024, 1 << 24))
    whole = _fed(data, [], bound)
    if rng.random() < 0.2:
        cuts = list(range(len(data)))
    else:
        cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randrange(8)))
    assert _fed(data, cuts, bound) == whole
    for kind, frame in whole[0]:
        try:
            if kind == "native":
                decode_frame(frame)
            else:
                decode_command(frame)
        except WireError:
            continue


def fuzz_remoting(rng: random.Random) -> None:
    """A damaged remoting frame after its length word."""
    data = damaged(rng.choice(_COMMANDS)[4:], _COMMANDS, rng)
    try:
        command = decode_command(data)
    except BodyError as error:
        raise AssertionError("a header is not a body") from error
    except WireError:
        return
    if command.language:  # an unknown language is not written back
        assert decode_command(encode_command(command)[4:]) == command


def _check_body(kind: RequestCode, is_answer: bool, body: bytes) -> None:
    try:
        message = decode_response(kind, body) if is_answer else decode_request(kind, body)
    except BodyError:
        return
    again = _body(message)
    read = decode_response(kind, again) if is_answer else decode_request(kind, again)
    assert read == message
    if message.kind not in KINDS:
        return
    # Only JSON carries these.
    if isinstance(message, MetadataResponse):
        message = attrs.evolve(
            message, admin="", health="", configuration="", lineage="", met_lineage="", is_rival=False,
            machine="", has_times=False, time_resets="", state_digest="", version="",
        )
    elif isinstance(message, MetadataRequest):
        message = attrs.evolve(
            message, group_id="", members="", configuration="", lineage="", met_lineage="", token=""
        )
    assert decode_frame(_native(message)) == (7, message)


def fuzz_json_bytes(rng: random.Random) -> None:
    """A body with damaged bytes, read as its own kind or as another one."""
    kind, is_answer, body = rng.choice(_BODIES)
    if rng.random() < 0.2:
        kind, is_answer = rng.choice(_KINDS), rng.random() < 0.5
    _check_body(kind, is_answer, damaged(body, _JSON_BODIES, rng))


def fuzz_json_values(rng: random.Random) -> None:
    """A body that is JSON, strict or loose, with changed values."""
    kind, is_answer, body = rng.choice(_BODIES)
    document = json.loads(body)
    for _ in range(rng.randrange(1, 4)):
        document = damaged_json(document, rng)
    text = json.dumps(document) if rng.random() < 0.3 else loosely(document, rng)
    _check_body(kind, is_answer, text.encode("utf-8", "surrogatepass"))


def fuzz_json_syntax(rng: random.Random) -> None:
    """A short text of characters that matter to the parser; its result can be written and read again."""
    text = "{" + "".join(rng.choices("{}[]:,'\"\\/*\nx'019eE.-+tfnu_ a\ufeffé", k=rng.randrange(30)))
    try:
        document = read_object((text + rng.choice(("", "}"))).encode())
    except BodyError:
        return
    assert isinstance(document, dict)
    if "x'" not in text and "." not in text and "e" not in text.lower():
        assert read_object(write_object(document)) == document


def fuzz_native(rng: random.Random) -> None:
    """A damaged native frame, mostly with a correct header."""
    data = damaged(rng.choice(_NATIVE_FRAMES), _NATIVE_FRAMES, rng)
    if len(data) >= FRAME_HEADER_SIZE and rng.random() < 0.9:
        _, _, kind, flags, opaque, _ = FRAME_HEADER.unpack_from(data)
        kind, flags = (kind if 1 <= kind <= 8 else rng.randrange(1, 9)), flags & 1
        data = FRAME_HEADER.pack(0xD1, 1, kind, flags, opaque, len(data) - 12) + data[12:]
    try:
        opaque, message = decode_frame(data)
    except WireError:
        return
    assert decode_frame(_native(message, opaque)) == (opaque, message)


def fuzz_broker(rng: random.Random) -> None:
    """A damaged frame of a broker, mostly with a correct header."""
    frames = tuple(frame for _, frame in BROKER_FRAMES)
    data = damaged(rng.choice(frames), frames, rng)
    if len(data) >= FRAME_HEADER_SIZE and rng.random() < 0.9:
        _, _, kind, flags, opaque, _ = FRAME_HEADER.unpack_from(data)
        kind, flags = (kind if 33 <= kind <= 35 else rng.randrange(33, 36)), flags & 1
        data = FRAME_HEADER.pack(0xD1, 1, kind, flags, opaque, len(data) - 12) + data[12:]
    try:
        opaque, message = decode_broker_frame(data)
    except WireError:
        return
    assert encoded(message, opaque) == data


def fuzz_appends(rng: random.Random) -> None:
    """Appends of one connection, some damaged: the fast reader gives the same as the general one."""
    reader = NativeReader()
    append = AppendRequest(group=rng.choice((None, "g")), term=3, bodies=(rng.randbytes(rng.randrange(20)),))
    for opaque in range(rng.randrange(2, 6)):
        frame = encode_request_frame(append, opaque)
        if rng.random() < 0.6:
            frame = damaged(frame, _NATIVE_FRAMES, rng)
        if len(frame) >= FRAME_HEADER_SIZE and rng.random() < 0.7:
            frame = frame[:8] + (len(frame) - FRAME_HEADER_SIZE).to_bytes(4, "big") + frame[12:]
        outcomes: list[object] = []
        for decode in (decode_frame, partial(read_native, reader)):
            try:
                outcomes.append(decode(frame))
            except WireError as error:
                outcomes.append(str(error))
        assert outcomes[0] == outcomes[1]


def fuzz_sends(rng: random.Random) -> None:
    """Sends of one connection, some damaged: the fast reader gives the same as the general one, or None."""
    reader = SendReader()
    sound = [
        java_send(opaque=at, e=at % 4, b=rng.choice(("T1", "T2")), i=f"KEYS\x01{at}\x02WAIT\x01true")
        for at in range(rng.randrange(1, 6))
    ]
    for frame in sound:
        data = damaged(frame, tuple(sound), rng) if rng.random() < 0.6 else frame
        found = reader.read(data)
        if found is None:
            continue
        command = decode_command(data)
        fields = dict(command.ext_fields)
        assert (found.opaque, found.body, command.flag) == (command.opaque, command.body, 0)
        assert (found.queue_id, found.born_timestamp) == (int(fields["e"]), int(fields["g"]))
        assert found.properties == fields["i"].encode()
        like = found.shape.command
        same = {name: fields[name] for name in ("e", "g", "i")}
        assert {**like.ext_fields, **same} == fields and like.version == command.version


def fuzz_records(rng: random.Random) -> None:
    """Damaged records: records that pass the check can be walked, by both walkers with the same result."""
    sound = rng.choice((HELLO, three()))
    records = damaged(sound.records, (HELLO.records,), rng) if rng.random() < 0.9 else sound.records
    count = rng.choice((sound.count, rng.choice(EDGES)))
    batch = EntryBatch(first_index=sound.first_index, count=count, term=sound.term, records=records)
    try:
        check_records(batch)
    except WireError:
        if count <= 1 << 16:  # the walkers rely on the count, which their callers bound
            for walk in (bodies_of, lambda batch: list(iterate_records(batch))):
                try:
                    walk(batch)
                except WireError:
                    continue
        return
    assert [body for _, body in iterate_records(batch)] == bodies_of(batch)


def fuzz_rocketmq(rng: random.Random) -> None:
    """A damaged message, or a damaged batch; the result can be written, and gives the same bytes."""
    offset = rng.choice((0, 0, 3, rng.randrange(200)))
    data = rng.randbytes(offset) + damaged(rng.choice(_ROCKETMQ_RECORDS), _ROCKETMQ_RECORDS, rng)
    try:
        message = decode_message(data, offset, verify_body=rng.random() < 0.5)
    except WireError:
        pass
    else:
        assert check_message(data, offset, verify_body=False) == message.size
        assert encode_message(message) == data[offset : offset + message.size]
        assert all(isinstance(text, str) for item in message.properties.items() for text in item)
        assert message.keys is not None and message.tags_code == message.tags_code and message.message_id
        try:
            assert len(plain_body(message, bytes_max=1000)) <= max(1000, len(message.body))
        except WireError:
            pass
    batch = damaged(_ROCKETMQ_BATCH, _ROCKETMQ_RECORDS, rng)
    try:
        items = decode_batch(batch)
    except WireError:
        return
    assert decode_batch(encode_batch(items)) == items and len(encode_batch(items)) == len(batch)


def fuzz_envelope(rng: random.Random) -> None:
    """A damaged envelope, often with a CRC that fits: it is one that a writer would write, or none."""
    body = damaged(rng.choice(_ENVELOPES), _ENVELOPES, rng)
    if rng.random() < 0.8 and len(body) >= 16:
        end = 24 + int.from_bytes(body[14:16], "big")
        body = ENVELOPE_MAGIC + crc32(body[12:end]).to_bytes(4, "big") + body[12:]
    found = decode_envelope(body)
    if found is not None:
        assert not headers_problem(found.headers)
        assert envelope_head(found.time_ms, found.headers) + found.body == body


#: The targets that decode bytes from a network or a file.
DECODERS = (
    "framing", "remoting", "json-bytes", "json-values", "json-syntax", "native", "broker", "appends",
    "sends", "records", "rocketmq", "ha", "name-server", "chunks", "envelope",
    "group-state",
)

#: Name on the command line to target. A target takes all its randomness from its argument.
TARGETS: Mapping[str, Target] = {
    "framing": fuzz_framing,
    "remoting": fuzz_remoting,
    "json-bytes": fuzz_json_bytes,
    "json-values": fuzz_json_values,
    "json-syntax": fuzz_json_syntax,
    "native": fuzz_native,
    "broker": fuzz_broker,
    "appends": fuzz_appends,
    "sends": fuzz_sends,
    "records": fuzz_records,
    "rocketmq": fuzz_rocketmq,
    "ha": fuzz_ha,
    "name-server": fuzz_name_server,
    "recovery": fuzz_recovery,
    "chunks": fuzz_chunks,
    "envelope": fuzz_envelope,
    "group-state": fuzz_group_state,
}
