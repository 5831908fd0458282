# -*- test-case-name: tests.wire.test_golden -*-
"""Bytes captured from Java DLedger 0.3.1.2, read and written."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from protocols.wire.errors import IncompatibleError
from protocols.wire.framing import Frame, FrameBuffer
from protocols.wire.ledger.codes import RequestCode
from protocols.wire.ledger.java import json_bodies
from protocols.wire.ledger.java.json_bodies import (
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from protocols.wire.ledger.messages import Request, Response
from protocols.wire.ledger.push_layout import KINDS
from protocols.wire.remoting import RemotingCommand, decode_command, encode_command
from tests.wire.golden import (
    BODIES,
    EXAMPLES,
    PUSH_ANSWERS_0_4,
    PUSHES_0_4,
    REQUEST_HEADERS,
    Example,
)


def decode(kind: RequestCode, body: bytes, like: Request | Response) -> Request | Response:
    """The message in C{body}, of the direction of C{like}."""
    return decode_request(kind, body) if isinstance(like, Request) else decode_response(kind, body)


def encode(message: Request | Response) -> bytes:
    """The body of a message of either direction."""
    return encode_request(message) if isinstance(message, Request) else encode_response(message)


def command_of(example: Example) -> RemotingCommand:
    """The command that the example is."""
    is_answer = isinstance(example.message, Response)
    opaque = int(example.header.split(b'"opaque":')[1].split(b",")[0])
    return RemotingCommand(
        code=200 if is_answer else int(example.message.kind),
        flag=int(is_answer),
        opaque=opaque,
        language="JAVA",
        body=example.body,
    )


class GoldenTests(SynchronousTestCase):
    """Our bytes are Java's bytes."""

    def test_captured_header(self) -> None:
        """The header in each request is the one that went over the network."""
        found = {
            example.message.kind: example.header
            for example in EXAMPLES
            if isinstance(example.message, Request)
        }
        self.assertEqual(found, REQUEST_HEADERS)

    def test_every_kind_in_both_directions(self) -> None:
        """No message is without an example, except the answer to PULL, which Java never gives."""
        seen = {(example.message.kind, isinstance(example.message, Response)) for example in EXAMPLES}
        wanted = {(kind, is_answer) for kind in RequestCode for is_answer in (False, True)}
        ours = {
            (kind, is_answer) for kind in (set(RequestCode) - KINDS.keys() | {RequestCode.APPEND_ONCE})
            for is_answer in (False, True)
        }
        self.assertEqual(wanted - seen, {(RequestCode.PULL, True), *ours})

    def test_frames_are_read(self) -> None:
        """From bytes to command to message."""
        for example in EXAMPLES:
            (frame,) = FrameBuffer().feed(example.frame)
            self.assertEqual(frame, Frame("remoting", example.frame[4:]))
            command = decode_command(frame.data)
            self.assertEqual(command, command_of(example))
            self.assertEqual(decode(example.message.kind, command.body, example.message), example.message)

    def test_frames_are_written(self) -> None:
        """From message to command to bytes."""
        for example in EXAMPLES:
            self.assertEqual(encode(example.message), example.body)
            self.assertEqual(encode_command(command_of(example)), example.frame)

    def test_java_keys_are_known(self) -> None:
        """No key of Java is compared in any case, pushes aside: that takes longer than reading."""
        self.patch(json_bodies, "canonical_keys", lambda *_: self.fail("a key of Java's is not known"))
        for example in EXAMPLES:
            if example.message.kind is not RequestCode.PUSH:
                decode(example.message.kind, example.body, example.message)

    def test_bodies(self) -> None:
        """Bodies of a live group, both ways."""
        for kind, body, message in BODIES:
            self.assertEqual(decode(kind, body, message), message, body)
            self.assertEqual(encode(message), body)

    def test_keys_that_change_nothing(self) -> None:
        """Keys that nobody knows, and those of other versions and of fastjson itself."""
        for example in EXAMPLES:
            more = b'{"@type":"x.y.Z","indexList":[1],"zIndex":3,"other":{"a":[null]},' + example.body[1:]
            self.assertEqual(decode(example.message.kind, more, example.message), example.message)

    def test_pushes_of_0_4_are_refused_by_name(self) -> None:
        """A mixed group would be dangerous, so the refusal says what is wrong."""
        for body in PUSHES_0_4:
            error = self.assertRaises(IncompatibleError, decode_request, RequestCode.PUSH, body)
            self.assertIn("DLedger 0.4 peer", str(error))

    def test_answers_of_0_4_are_refused_by_name(self) -> None:
        """Such a follower says SUCCESS to a COMPARE that it has not understood."""
        for body in PUSH_ANSWERS_0_4:
            error = self.assertRaises(IncompatibleError, decode_response, RequestCode.PUSH, body)
            self.assertIn("DLedger 0.4 peer", str(error))
