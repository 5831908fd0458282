# -*- test-case-name: tests.wire.test_remoting -*-
"""Frames of RocketMQ remoting: headers of both types, and what is refused."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from protocols.wire.errors import BodyError, WireError
from protocols.wire.remoting import (
    BINARY_HEADER_DECLARATION,
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    FRAME_BYTES_MAX,
    FRAME_START_DECLARATION,
    JSON,
    LANGUAGES,
    REMOTING_SUCCESS,
    ROCKETMQ,
    RemotingCommand,
    decode_command,
    encode_answer,
    encode_command,
)
from tests.wire.golden import EXAMPLES
from tests.wire.values import house, ints, texts

shorts = st.integers(-(1 << 15), (1 << 15) - 1)
_anyhow = {
    "opaque": ints,
    "flag": ints,
    "language": st.sampled_from(LANGUAGES),
    "ext_fields": st.dictionaries(texts, texts, max_size=3),
    "body": st.binary(max_size=30),
}
json_commands = st.builds(
    RemotingCommand,
    **_anyhow,
    code=ints,
    version=ints,
    remark=st.none() | texts,
    serialize_type=st.just(JSON),
)
binary_commands = st.builds(
    RemotingCommand,
    **_anyhow,
    code=shorts,
    version=shorts,
    remark=st.none() | texts.filter(bool),
    serialize_type=st.just(ROCKETMQ),
)


def framed(header: bytes, body: bytes = b"", serialize_type: int = JSON) -> bytes:
    """The bytes after the length word."""
    return (serialize_type << 24 | len(header)).to_bytes(4, "big") + header + body


class RoundTripTests(SynchronousTestCase):
    """What is written is read."""

    @house
    @given(json_commands | binary_commands)
    def test_round_trip(self, command: RemotingCommand) -> None:
        """Both types of header, and the length word counts the rest."""
        frame = encode_command(command)
        start = FRAME_START_DECLARATION.parse(frame)
        self.assertEqual(start.length, len(frame) - 4)
        self.assertEqual(start.header_word >> 24, command.serialize_type)
        self.assertEqual(decode_command(frame[4:]), command)

    @house
    @given(json_commands)
    def test_every_truncation_of_the_header(self, command: RemotingCommand) -> None:
        """A header cut short is refused, whether the frame or its own length cuts it."""
        self.every_truncation(command)

    @house
    @given(binary_commands)
    def test_every_truncation_of_the_binary_header(self, command: RemotingCommand) -> None:
        """The same for the binary one."""
        self.every_truncation(command)

    def every_truncation(self, command: RemotingCommand) -> None:
        """No beginning of the header is one."""
        frame = encode_command(command)[4:]
        header = frame[4 : len(frame) - len(command.body)]
        for length in range(len(header)):
            self.assertRaises(WireError, decode_command, frame[: 4 + length])
            self.assertRaises(WireError, decode_command, framed(header[:length], b"", command.serialize_type))

    def test_answers(self) -> None:
        """The shorter way for answers makes the same bytes."""
        for opaque, body in ((0, b""), (7, b"{}"), (-(1 << 31), b"x" * 70_000)):
            command = RemotingCommand(code=REMOTING_SUCCESS, flag=FLAG_RESPONSE, opaque=opaque, body=body)
            self.assertEqual(encode_answer(opaque, body), encode_command(command))
        self.assertRaises(AssertionError, encode_answer, 1, bytes(FRAME_BYTES_MAX))

    def test_flags(self) -> None:
        """Bit 0 and bit 1."""
        plain = RemotingCommand(code=1, opaque=1)
        self.assertFalse(plain.is_response or plain.is_oneway)
        self.assertTrue(RemotingCommand(code=1, opaque=1, flag=FLAG_RESPONSE).is_response)
        self.assertTrue(RemotingCommand(code=1, opaque=1, flag=FLAG_ONEWAY).is_oneway)
        self.assertEqual((FLAG_RESPONSE, FLAG_ONEWAY), (1, 2))


class JsonHeaderTests(SynchronousTestCase):
    """The header that DLedger uses."""

    def test_written(self) -> None:
        """Key order, no blanks, nothing that is null."""
        self.assertEqual(
            encode_command(RemotingCommand(code=51004, opaque=-7))[8:],
            b'{"code":51004,"flag":0,"language":"PYTHON","opaque":-7,"serializeTypeCurrentRPC":"JSON",'
            b'"version":0}',
        )

    def test_written_with_everything(self) -> None:
        """C{extFields} and C{remark} stand where the alphabet puts them; other scripts are raw."""
        command = RemotingCommand(
            code=3, opaque=1, flag=1, language="JAVA", version=433, remark="größer/„\n", ext_fields={"b": "1"}
        )
        self.assertEqual(
            encode_command(command)[8:].decode(),
            '{"code":3,"extFields":{"b":"1"},"flag":1,"language":"JAVA","opaque":1,"remark":"größer/„\\n",'
            '"serializeTypeCurrentRPC":"JSON","version":433}',
        )

    def read(self, header: bytes) -> RemotingCommand:
        """The command with this header."""
        return decode_command(framed(header))

    def test_missing_keys(self) -> None:
        """Java's field defaults; even the opaque may be missing."""
        self.assertEqual(self.read(b"{}"), RemotingCommand(code=0, opaque=0, language="JAVA"))

    def test_nulls(self) -> None:
        """As missing, except the language."""
        read = self.read(b'{"code":null,"opaque":null,"language":null,"remark":null,"extFields":null}')
        self.assertEqual(read, RemotingCommand(code=0, opaque=0, language=""))

    def test_java_s_tolerance(self) -> None:
        """Other spellings of keys and numbers, unknown keys, unquoted text."""
        read = self.read(b"{Code:'51001', 'o_paque':7.0, FLAG:1, \"else\":[1,{}], serialize_type:\"?\", }")
        self.assertEqual(read, RemotingCommand(code=51001, opaque=7, flag=1, language="JAVA"))

    def test_languages(self) -> None:
        """By name in any case, by number, unknown names harmlessly."""
        for text, language in (
            (b'"GO"', "GO"), (b'"rust"', "RUST"), (b"3", "PYTHON"), (b'"KLINGON"', ""), (b"13", "NODE_JS"),
        ):
            self.assertEqual(self.read(b'{"language":' + text + b"}").language, language)
        for text in (b"14", b"-1", b"[]", b"1.5"):
            self.assertRaises(WireError, self.read, b'{"language":' + text + b"}")

    def test_minimal_answer(self) -> None:
        """What Java accepts from a foreign follower."""
        read = self.read(b'{"code":200,"flag":1,"opaque":12}')
        self.assertTrue(read.is_response)
        self.assertEqual((read.code, read.opaque), (200, 12))

    def test_ext_fields(self) -> None:
        """Text to text; a null is dropped, a number becomes its text."""
        read = self.read(b'{"extFields":{"topic":"t","id":5,"none":null,"no":false}}')
        self.assertEqual(read.ext_fields, {"topic": "t", "id": "5", "no": "false"})

    def test_long_ext_field(self) -> None:
        """Message properties can be long."""
        read = self.read(b'{"extFields":{"properties":"' + b"x" * 30000 + b'"}}')
        self.assertEqual(len(read.ext_fields["properties"]), 30000)

    def test_long_remark(self) -> None:
        """Somebody's stack trace is cut, not refused."""
        self.assertEqual(self.read(b'{"remark":"' + b"x" * 5000 + b'"}').remark, "x" * 4096)

    def test_refused(self) -> None:
        """Each is the peer's fault and costs it the connection, so none is a mere L{BodyError}."""
        for header in (
            b"", b"null", b"[]", b'"code"', b"{", b'{"code":}', b"\xff\xfe", b'{"code":"x"}',
            b'{"code":2147483648}', b'{"opaque":-2147483649}', b'{"version":[]}', b'{"remark":{}}',
            b'{"extFields":[]}', b'{"extFields":{"a":[]}}', b'{"code":1}x', b'{"remark":"\\ud800"}',
            b'{"extFields":{"a":"\\ud800"}}', b'{"extFields":{"\\ud800":"a"}}', b'{"code":NaN}',
        ):
            error = self.assertRaises(WireError, self.read, header)
            self.assertNotIsInstance(error, BodyError)
            self.assertIn("remoting header", str(error))


class BinaryHeaderTests(SynchronousTestCase):
    """The header that RocketMQ may use for other requests."""

    #: A response with code 200 and opaque 7, as Java writes it.
    EMPTY = bytes.fromhex("00c8 00 0000 00000007 00000001 00000000 00000000")
    FULL = bytes.fromhex("00c8 0a 01b1 00000007 00000001 00000002 6869 0000000b 0001 61 00000004 31323334")

    def test_empty(self) -> None:
        """21 bytes, both ways."""
        command = RemotingCommand(code=200, opaque=7, flag=1, language="JAVA", serialize_type=ROCKETMQ)
        self.assertEqual(decode_command(framed(self.EMPTY, serialize_type=ROCKETMQ)), command)
        self.assertEqual(encode_command(command)[8:], self.EMPTY)
        self.assertEqual(BINARY_HEADER_DECLARATION.sizeof() + 8, 21)

    def test_full(self) -> None:
        """With a remark and a field."""
        command = RemotingCommand(
            code=200, opaque=7, flag=1, language="PHP", version=433, remark="hi", ext_fields={"a": "1234"},
            serialize_type=ROCKETMQ, body=b"body",
        )
        self.assertEqual(decode_command(framed(self.FULL, b"body", ROCKETMQ)), command)
        self.assertEqual(encode_command(command)[8:], self.FULL + b"body")

    def test_unknown_language(self) -> None:
        """Harmless, and written as OTHER."""
        read = decode_command(framed(self.EMPTY[:2] + b"\xff" + self.EMPTY[3:], serialize_type=ROCKETMQ))
        self.assertEqual(read.language, "")
        self.assertEqual(encode_command(read)[10], LANGUAGES.index("OTHER"))

    def refused(self, header: bytes, *words: str) -> None:
        """C{header} is refused for a reason."""
        error = self.assertRaises(WireError, decode_command, framed(header, serialize_type=ROCKETMQ))
        for word in words:
            self.assertIn(word, str(error))

    def test_refused(self) -> None:
        """Lengths out of bounds, text that is none, something after it."""
        fixed = self.EMPTY[:13]
        self.refused(fixed + b"\xff\xff\xff\xff" + bytes(4), "length of remark=-1 outside 0..4")
        self.refused(fixed + b"\0\0\0\5" + bytes(4), "length of remark=5 outside 0..4")
        self.refused(fixed + bytes(4) + b"\xff\xff\xff\xff", "length of extFields=-1")
        self.refused(self.EMPTY + b"x", "1 bytes after")
        self.refused(fixed + b"\0\0\0\1\xff" + bytes(4), "remark is not UTF-8")
        self.refused(fixed + bytes(4) + b"\0\0\0\1" + b"x", "key in extFields")
        self.refused(fixed + bytes(4) + b"\0\0\0\3" + b"\0\1a", "value in extFields")
        self.refused(fixed + bytes(4) + b"\0\0\0\7" + b"\0\1a" + b"\x7f\xff\xff\xff", "value in extFields")
        self.refused(fixed + bytes(4) + b"\0\0\0\7" + b"\0\1\xff" + bytes(4), "not UTF-8")

    def test_dledger_codes_do_not_fit(self) -> None:
        """50000 in 16 signed bits would arrive as -15536."""
        command = RemotingCommand(code=50000, opaque=1, serialize_type=ROCKETMQ)
        self.assertRaises(AssertionError, encode_command, command)


class FrameTests(SynchronousTestCase):
    """The two framing words."""

    def test_header_longer_than_frame(self) -> None:
        """Its length is bounded by the frame's."""
        self.assertRaises(WireError, decode_command, b"\x00\x00\x00\x03{}")
        self.assertRaises(WireError, decode_command, b"\x00\xff\xff\xff" + EXAMPLES[0].header)

    def test_unknown_type(self) -> None:
        """Neither JSON nor ROCKETMQ."""
        for serialize_type in (2, 22, 255):
            error = self.assertRaises(WireError, decode_command, framed(b"{}", b"", serialize_type))
            self.assertIn(f"type={serialize_type}", str(error))

    def test_too_short(self) -> None:
        """There is no frame without a header word."""
        for length in range(4):
            self.assertRaises(WireError, decode_command, bytes(length))

    @house
    @given(st.binary(max_size=60))
    def test_garbage(self, data: bytes) -> None:
        """A command or a L{WireError}."""
        for start in (b"", b"\0\0\0" + bytes([len(data)]), b"\1\0\0" + bytes([len(data)])):
            try:
                decode_command(start + data)
            except WireError:
                continue

    def test_oversize_is_a_bug(self) -> None:
        """Bodies are bounded where they are made; a frame that every peer refuses is never sent."""
        command = RemotingCommand(code=1, opaque=1, body=bytes(FRAME_BYTES_MAX))
        self.assertRaises(AssertionError, encode_command, command)
