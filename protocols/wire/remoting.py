# -*- test-case-name: tests.wire.test_remoting -*-
"""
Frames of RocketMQ remoting: a length word, a header word, a header (JSON or ROCKETMQ), a body::

    offset  size  field
    0       4     bytes that follow this word
    4       1     encoding of the header: 0 JSON, 1 ROCKETMQ
    5       3     length of the header
    8       n     header
    8+n     m     body, may be empty

Rule: a malformed header is the peer's fault and ends its connection, as in Java. Bodies are not
examined here.

Source: RemotingCommand, RocketMQSerializable, LanguageCode in rocketmq-remoting 4.9.4.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping

import attrs
from construct import Int8ub, Int16sb, Int16ub, Int32sb, Int32ub, Struct

from protocols.wire.errors import BodyError, LooseError, WireError
from protocols.wire.fastjson import (
    INT_BITS,
    TEXT_CHARACTERS_MAX,
    JsonObject,
    canonical_keys,
    folded,
    read_object,
    shown,
    to_int,
    to_text,
    write_object,
)
from protocols.wire.layout import struct_of
from protocols.wire.values import value_class

# At most nine digits, which always fit.
_NUMBER = rb"(0|-?[1-9][0-9]{0,8})"
# The header that Java writes around most bodies: keys in fastjson's order, no remark, no extFields.
_HEADER = re.compile(
    rb'\{"code":' + _NUMBER + rb',"flag":' + _NUMBER + rb',"language":"([A-Z_]{1,16})","opaque":'
    + _NUMBER + rb',"serializeTypeCurrentRPC":"JSON","version":' + _NUMBER + rb'\}'
)

#: Bytes of a whole frame, length word included, at most; as com.rocketmq.remoting.frameMaxLength.
FRAME_BYTES_MAX = 16777216
LENGTH_WORD_SIZE = 4
HEADER_WORD_SIZE = 4
#: Most values in a header, and bytes of one that is not strict JSON.
_HEADER_VALUES_MAX = 4096
_HEADER_TOLERANT_BYTES_MAX = 1024
HEADER_BYTES_MAX = 0xFFFFFF

JSON = 0
ROCKETMQ = 1

#: Bits of C{flag}.
FLAG_RESPONSE = 1
FLAG_ONEWAY = 2

#: Codes in the header of a reply.
REMOTING_SUCCESS = 200
SYSTEM_BUSY = 2
REQUEST_CODE_NOT_SUPPORTED = 3

#: Java's remark about an unknown request code, leading blank included.
NOT_SUPPORTED_REMARK = " request type {} not supported"

#: Java's LanguageCode, in the order of its numbers.
LANGUAGES = (
    "JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO", "PHP", "OMS",
    "RUST", "NODE_JS",
)

FRAME_START_DECLARATION = Struct(
    "length" / Int32sb,  # bytes that follow this word
    "header_word" / Int32ub,  # high byte: encoding of the header; low 24 bits: its length
)
FRAME_START = struct_of(FRAME_START_DECLARATION)
_HEADER_WORD = struct_of(Struct("header_word" / Int32ub))

BINARY_HEADER_DECLARATION = Struct(
    "code" / Int16sb,
    "language" / Int8ub,
    "version" / Int16sb,
    "opaque" / Int32sb,
    "flag" / Int32sb,
)
_BINARY_HEADER = struct_of(BINARY_HEADER_DECLARATION)
_LENGTH_16 = struct_of(Struct("length" / Int16ub))
_LENGTH_32 = struct_of(Struct("length" / Int32sb))


@value_class(kw_only=True)
class RemotingCommand:
    """
    One frame: a request or an answer.

    @ivar code: code of the request; in an answer, the outcome.
    @ivar opaque: number that pairs an answer with its request; signed 32 bits, wraps.
    @ivar flag: bit 0: this is an answer; bit 1: the request is one-way.
    @ivar language: name from Java's LanguageCode; empty if the peer sent an unknown one.
    @ivar version: version of the sender's RocketMQ; not interpreted.
    @ivar remark: text of a remoting error.
    @ivar ext_fields: text to text; RocketMQ's own requests have them, DLedger's do not.
    @ivar serialize_type: encoding of the header, L{JSON} or L{ROCKETMQ}.
    @ivar body: body for the handler; empty if there is none.
    """

    code: int
    opaque: int
    flag: int = 0
    language: str = "PYTHON"
    version: int = 0
    remark: str | None = None
    ext_fields: Mapping[str, str] = attrs.Factory(dict)
    serialize_type: int = JSON
    body: bytes = b""

    @property
    def is_response(self) -> bool:
        """Whether this is an answer."""
        return bool(self.flag & FLAG_RESPONSE)

    @property
    def is_oneway(self) -> bool:
        """Whether the sender expects no answer. (DLedger answers anyway.)"""
        return bool(self.flag & FLAG_ONEWAY)


def encode_command(command: RemotingCommand) -> bytes:
    """
    The whole frame, length word included.

    Callers must bound bodies so that the frame does not exceed L{FRAME_BYTES_MAX}.
    """
    return b"".join(command_parts(command))


def command_parts(command: RemotingCommand) -> tuple[bytes, bytes]:
    """The frame, with its body by itself: a large one is not copied."""
    header = _json_header(command) if command.serialize_type == JSON else _binary_header(command)
    length = HEADER_WORD_SIZE + len(header) + len(command.body)
    # This also bounds the header to its 24 bits.
    assert LENGTH_WORD_SIZE + length <= FRAME_BYTES_MAX, f"remoting frame of 4 + {length} bytes"
    return FRAME_START.pack(length, command.serialize_type << 24 | len(header)) + header, command.body


def encode_answer(opaque: int, body: bytes) -> bytes:
    """The frame of an answer with header code 200, as L{encode_command} would encode it, but faster."""
    header = (
        b'{"code":200,"flag":1,"language":"PYTHON","opaque":%d,"serializeTypeCurrentRPC":"JSON","version":0}'
        % opaque
    )
    length = HEADER_WORD_SIZE + len(header) + len(body)
    assert LENGTH_WORD_SIZE + length <= FRAME_BYTES_MAX, f"remoting frame of 4 + {length} bytes"
    return FRAME_START.pack(length, JSON << 24 | len(header)) + header + body


def decode_command(frame: bytes, *, tolerant_bytes_max: int = _HEADER_TOLERANT_BYTES_MAX) -> RemotingCommand:
    """
    Decode one frame.

    @param frame: all bytes after the length word.
    @param tolerant_bytes_max: most bytes of a header that is not strict JSON.
    @raise LooseError: longer than that, and not strict JSON.
    @raise WireError: not a header of either encoding.
    """
    if len(frame) < HEADER_WORD_SIZE:
        raise WireError(f"remoting frame of {len(frame)} bytes: at least {HEADER_WORD_SIZE} are needed")
    (word,) = _HEADER_WORD.unpack_from(frame)
    serialize_type = word >> 24
    end = HEADER_WORD_SIZE + (word & HEADER_BYTES_MAX)
    if end > len(frame):
        raise WireError(f"remoting header ends at byte {end}, the frame at byte {len(frame)}")
    header = frame[HEADER_WORD_SIZE:end]
    if serialize_type == JSON:
        return _read_json_header(header, frame[end:], tolerant_bytes_max)
    if serialize_type == ROCKETMQ:
        return _read_binary_header(header, frame[end:])
    raise WireError(f"remoting header: type={serialize_type}, known are 0 (JSON) and 1 (ROCKETMQ)")


def _json_header(command: RemotingCommand) -> bytes:
    if command.remark is None and not command.ext_fields and command.language in LANGUAGES:
        return (
            f'{{"code":{command.code:d},"flag":{command.flag:d},"language":"{command.language}",'
            f'"opaque":{command.opaque:d},"serializeTypeCurrentRPC":"JSON","version":{command.version:d}}}'
        ).encode("ascii")
    document: JsonObject = {
        "code": int(command.code),
        "flag": command.flag,
        "opaque": command.opaque,
        "serializeTypeCurrentRPC": "JSON",
        "version": command.version,
    }
    if command.ext_fields:
        document["extFields"] = dict(command.ext_fields)
    if command.language:
        document["language"] = command.language
    if command.remark is not None:
        document["remark"] = command.remark
    return write_object(document)


_LANGUAGES = frozenset(LANGUAGES)
_HEADER_KEYS = ("code", "extFields", "flag", "language", "opaque", "remark", "version")
_HEADER_NAMES = {folded(name): name for name in _HEADER_KEYS}
_KNOWN_KEYS = frozenset((*_HEADER_KEYS, "serializeTypeCurrentRPC"))


def read_header(header: bytes) -> tuple[int, int, str, int, int] | None:
    """
    A header without remark and extFields.

    @return: code, flag, language, opaque, version; None if C{header} is anything else. The language may be
        one that nobody knows.
    """
    match = _HEADER.fullmatch(header)
    if match is None:
        return None
    code, flag, language, opaque, version = match.groups()
    return int(code), int(flag), language.decode(), int(opaque), int(version)


def _read_json_header(header: bytes, body: bytes, tolerant_bytes_max: int) -> RemotingCommand:
    if (said := read_header(header)) is not None and said[2] in LANGUAGES:
        code, flag, language, opaque, version = said
        return RemotingCommand(
            code=code, opaque=opaque, flag=flag, language=language, version=version, ext_fields={}, body=body
        )
    try:
        document = read_object(header, values_max=_HEADER_VALUES_MAX, tolerant_bytes_max=tolerant_bytes_max)
        if not document.keys() <= _KNOWN_KEYS:
            document = canonical_keys(document, _HEADER_NAMES)
        return RemotingCommand(
            code=_int(document, "code"),
            opaque=_int(document, "opaque"),
            flag=_int(document, "flag"),
            language=_language(document.get("language", "JAVA")),
            version=_int(document, "version"),
            remark=_remark(document.get("remark")),
            ext_fields=_ext_fields(document.get("extFields")),
            serialize_type=JSON,
            body=body,
        )
    except LooseError as error:
        raise LooseError(f"remoting header: {error}") from None
    except BodyError as error:
        raise WireError(f"remoting header: {error}") from None


def _int(document: JsonObject, name: str) -> int:
    value = document.get(name)
    if type(value) is int and -0x80000000 <= value <= 0x7FFFFFFF:
        return value
    return to_int(value, INT_BITS, name) or 0


def _language(value: object) -> str:
    if isinstance(value, str):
        if value in _LANGUAGES:
            return value
        return value.upper() if value.upper() in LANGUAGES else ""
    if isinstance(value, int) and 0 <= value < len(LANGUAGES):
        return LANGUAGES[value]
    if value is None:
        return ""
    raise BodyError(f"language={shown(value)} is neither a known number nor a name")


def _remark(value: object) -> str | None:
    # A remark may be an exception text: a long one is cut, not refused.
    return to_text(value[:4096] if isinstance(value, str) else value, "remark")


def _ext_fields(value: object) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BodyError(f"extFields={shown(value)} is not an object")
    try:
        # The usual case: only ASCII texts, so no half surrogate pairs.
        texts, names = "".join(value.values()), "".join(value)
        if texts.isascii() and names.isascii() and len(names) <= TEXT_CHARACTERS_MAX:
            return value
    except TypeError:
        pass  # a value that is not text: check them one by one
    fields = {}
    for key, item in value.items():
        name, text = to_text(key, "key in extFields"), _long_text(item)
        if name is not None and text is not None:
            fields[name] = text
    return fields


def _long_text(value: object) -> str | None:
    """Text of an extField, bounded only by the frame: RocketMQ puts message properties into them."""
    if isinstance(value, str):
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            raise BodyError(f"extFields: {shown(value)} holds half a surrogate pair") from None
        return value
    return to_text(value, "value in extFields")


def _binary_header(command: RemotingCommand) -> bytes:
    assert -0x8000 <= command.code <= 0x7FFF, f"code {command.code} does not fit a ROCKETMQ header"
    language = LANGUAGES.index(command.language if command.language in LANGUAGES else "OTHER")
    remark = (command.remark or "").encode("utf-8")
    fields = bytearray()
    for key, value in command.ext_fields.items():
        raw_key, raw_value = key.encode("utf-8"), value.encode("utf-8")
        fields += _LENGTH_16.pack(len(raw_key)) + raw_key + _LENGTH_32.pack(len(raw_value)) + raw_value
    fixed = _BINARY_HEADER.pack(command.code, language, command.version, command.opaque, command.flag)
    pieces = (fixed, _LENGTH_32.pack(len(remark)), remark, _LENGTH_32.pack(len(fields)), fields)
    return b"".join(pieces)


def _read_binary_header(header: bytes, body: bytes) -> RemotingCommand:
    if len(header) < _BINARY_HEADER.size:
        raise WireError(f"remoting header: {len(header)} bytes, {_BINARY_HEADER.size} are needed")
    code, language, version, opaque, flag = _BINARY_HEADER.unpack_from(header)
    remark, at = _cut(header, _BINARY_HEADER.size, _LENGTH_32, "remark")
    packed, at = _cut(header, at, _LENGTH_32, "extFields")
    if at != len(header):
        raise WireError(f"remoting header: {len(header) - at} bytes after its end")
    return RemotingCommand(
        code=code,
        opaque=opaque,
        flag=flag,
        language=LANGUAGES[language] if language < len(LANGUAGES) else "",
        version=version,
        remark=_utf8(remark, "remark") if remark else None,
        ext_fields=_unpack_fields(packed),
        serialize_type=ROCKETMQ,
        body=body,
    )


def _unpack_fields(packed: bytes) -> dict[str, str]:
    fields, at = {}, 0
    while at < len(packed):
        key, at = _cut(packed, at, _LENGTH_16, "key in extFields")
        value, at = _cut(packed, at, _LENGTH_32, "value in extFields")
        fields[_utf8(key, "key in extFields")] = _utf8(value, "value in extFields")
    return fields


def _cut(data: bytes, at: int, length_word: struct.Struct, name: str) -> tuple[bytes, int]:
    start = at + length_word.size
    if start > len(data):
        raise WireError(f"remoting header: no length of {name} at byte {at} of {len(data)}")
    (length,) = length_word.unpack_from(data, at)
    if not 0 <= length <= len(data) - start:
        raise WireError(f"remoting header: length of {name}={length} outside 0..{len(data) - start}")
    return data[start : start + length], start + length


def _utf8(raw: bytes, name: str) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise WireError(f"remoting header: {name} is not UTF-8") from None
