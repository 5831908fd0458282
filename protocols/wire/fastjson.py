# -*- test-case-name: tests.wire.test_fastjson -*-
"""
JSON as Java's fastjson writes and reads it, reduced to the needs of our messages.

Writing: one object, UTF-8, no whitespace, keys in code point order, non-ASCII raw.

Reading: the standard library parses strict JSON; text that it refuses goes to a small tolerant parser
for the extensions of fastjson (unquoted and single-quoted text, comments, a trailing comma,
C{x'6162'}). Values are then converted as fastjson converts them: numbers from text and fractions,
enums by name in any case or by ordinal, Base64 with and without padding, keys in any case and with
C{_} or C{-} in them.

Rule 1: any bytes yield an object or L{BodyError}, nothing else. Rule 2: text that fastjson silently
decodes to wrong bytes (URL-safe Base64, stray newlines) is refused. Rule 3: the tolerant parser takes at
most L{TOLERANT_BYTES_MAX} bytes and L{DEPTH_MAX} levels; neither parser takes more than L{VALUES_MAX}
values, because each costs many times its bytes. Callers set lower bounds for bytes of strangers.

Source: fastjson 1.2.69 and 1.2.83 as observed; see docs/wire-format.md.
"""

from __future__ import annotations

import json
import re
from binascii import a2b_base64, b2a_base64
from collections.abc import Mapping
from decimal import Decimal
from enum import IntEnum
from typing import NoReturn, TypeAlias, TypeVar

from protocols.wire.errors import BodyError, LooseError

INT_BITS = 32
LONG_BITS = 64

#: Deepest nesting that the tolerant parser follows.
DEPTH_MAX = 64

#: The tolerant parser is slow, and no peer writes a large body that needs it.
TOLERANT_BYTES_MAX = 256 * 1024

#: About ten values for each entry of a batch: this allows a hundred thousand entries.
VALUES_MAX = 1 << 20

#: Values in a request of a stranger or a client, at most. Its reader takes some milliseconds for these.
REQUEST_VALUES_MAX = 1 << 15

#: Bound of names, addresses and similar texts, not of the bodies of entries.
TEXT_CHARACTERS_MAX = 4096

_E = TypeVar("_E", bound=IntEnum)

_ENCODER = json.JSONEncoder(sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


_DECODER = json.JSONDecoder(parse_float=Decimal, parse_constant=_refuse_constant)


def shown(value: object) -> str:
    """C{value} for an error message, cut to a bounded length."""
    if isinstance(value, (list, dict)):
        return f"{'an array' if isinstance(value, list) else 'an object'} of {len(value)}"
    if isinstance(value, (str, bytes)) and len(value) > 40:
        return f"{value[:40]!r}... ({len(value)} long)"
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "..."


def shown_bare(text: str) -> str:
    """C{text} for an error message in RocketMQ's words, C{[text]}: as L{shown}, without the quotes."""
    return text if len(text) <= 127 and text.isprintable() else shown(text)


#: A JSON object as it was read: a reader checks the type of each value before it uses it.
JsonObject: TypeAlias = dict[str, object]


def write_object(document: Mapping[str, object]) -> bytes:
    """
    The bytes that fastjson writes for C{document}.

    @param document: keys to text, integers, booleans, lists and objects; no None.
    """
    return _ENCODER.encode(document).encode("utf-8")


def read_object(
    body: bytes, *, values_max: int = VALUES_MAX, tolerant_bytes_max: int = TOLERANT_BYTES_MAX
) -> JsonObject:
    """
    Parse one JSON object, strictly or as tolerantly as fastjson.

    @param values_max: most commas and opening brackets.
    @param tolerant_bytes_max: most bytes of a body that is not strict JSON.
    @raise LooseError: not strict JSON, and longer than C{tolerant_bytes_max}.
    @raise BodyError: not an object, too many values, or malformed.
    """
    if not body:
        raise BodyError("no body: a JSON object is needed")
    if len(body) > values_max and (count := sum(map(body.count, (b",", b"[", b"{")))) > values_max:
        raise BodyError(f"body has {count} values, at most {values_max} are allowed")
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BodyError(f"body is not UTF-8 at byte {error.start}") from None
    try:
        document = _DECODER.decode(text)
    except (ValueError, ArithmeticError, RecursionError):
        if len(body) > tolerant_bytes_max:
            raise LooseError(f"body of {len(body)} bytes is not strict JSON") from None
        document = _Tolerant(text).document()
    if not isinstance(document, dict):
        raise BodyError(f"body is not a JSON object but {shown(document)}")
    return document


def read_value(text: str, at: int) -> tuple[object, int]:
    """
    One value in strict JSON.

    @param at: where it begins.
    @return: the value, and where it ends.
    @raise BodyError: malformed.
    """
    try:
        return _DECODER.raw_decode(text, at)
    except (ValueError, ArithmeticError, RecursionError) as error:
        raise BodyError(f"body is not JSON: {error}") from None


def folded(name: str) -> str:
    """A key as fastjson compares it when no key matches exactly."""
    return name.replace("_", "").replace("-", "").lower()


def canonical_keys(document: JsonObject, names: Mapping[str, str]) -> JsonObject:
    """
    C{document} with its known keys in canonical spelling.

    @param names: folded name to canonical name of all known keys; other keys are dropped.
    """
    canonical: JsonObject = {}
    for key, value in document.items():
        name = names.get(folded(key))
        if name is not None:
            canonical[name] = value
    return canonical


_NUMBER_TEXT = re.compile(r"([+-]?[0-9]{1,20})(?:\.0+)?")


def to_int(value: object, bits: int, name: str) -> int | None:
    """
    A Java int or long, truncated as Java does.

    @param bits: L{INT_BITS} or L{LONG_BITS}.
    @return: None if fastjson would keep the default: null, and text that is empty or C{null}.
    @raise BodyError: not a number, or outside the range.
    """
    if isinstance(value, int):
        number = int(value)
    elif value is None or value == "" or value == "null":
        return None
    elif isinstance(value, Decimal) and value.is_finite():
        if value.adjusted() > 19:  # before int(): 1e999999 has a million digits
            raise BodyError(f"{name}={shown(value)} is outside the {bits}-bit range")
        number = int(value) if value.adjusted() >= 0 else 0
    elif isinstance(value, str) and (match := _NUMBER_TEXT.fullmatch(value)):
        number = int(match[1])
    else:
        raise BodyError(f"{name}={shown(value)} is not a number")
    if not -(1 << bits - 1) <= number < 1 << bits - 1:
        raise BodyError(f"{name}={shown(number)} is outside the {bits}-bit range")
    return number


def to_bool(value: object, name: str) -> bool | None:
    """
    A Java boolean.

    @return: None if fastjson would keep the default: null.
    @raise BodyError: neither true nor false, 0 nor 1.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and value in (0, 1):
        return value == 1
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise BodyError(f"{name}={shown(value)} is neither true nor false")


def to_text(value: object, name: str) -> str | None:
    """
    A Java String of bounded length; numbers and booleans become their text.

    @raise BodyError: an array or object, too long, or half a surrogate pair.
    """
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, Decimal)):
        value = str(value)
    if not isinstance(value, str):
        raise BodyError(f"{name}={shown(value)} is not text")
    if len(value) > TEXT_CHARACTERS_MAX:
        raise BodyError(f"{name} has {len(value)} characters, at most {TEXT_CHARACTERS_MAX} are allowed")
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            raise BodyError(f"{name}={shown(value)} holds half a surrogate pair") from None
    return value


def to_enum(value: object, enum: type[_E], name: str) -> _E | None:
    """
    A member of C{enum} by name in any letter case, or by ordinal.

    @return: None for null and for unknown names, as fastjson.
    @raise BodyError: an unknown ordinal, or neither name nor number.
    """
    if value is None:
        return None
    if isinstance(value, str):
        return enum.__members__.get(value.upper())
    if isinstance(value, int) and not isinstance(value, bool):
        for member in enum:
            if member == value:
                return member
    raise BodyError(f"{name}={shown(value)} is not one of {', '.join(enum.__members__)}")


def as_int(value: object) -> int:
    """A number, or the text of one, in a document of our own. @raise TypeError, ValueError: it is neither."""
    if not isinstance(value, (int, str, bytes, float, Decimal)):
        raise TypeError(f"{shown(value)} is not a number")
    return int(value)


def as_list(value: object) -> list[object]:
    """An array in a document of our own. @raise TypeError: it is none."""
    if not isinstance(value, list):
        raise TypeError(f"{shown(value)} is not an array")
    return value


def as_object(value: object) -> JsonObject:
    """An object in a document of our own. @raise TypeError: it is none."""
    if not isinstance(value, dict):
        raise TypeError(f"{shown(value)} is not an object")
    return value


def write_bytes(value: bytes) -> str:
    """Encode C{byte[]} as fastjson does: standard Base64 on one line."""
    return b2a_base64(value, newline=False).decode("ascii")


def to_bytes(value: object, name: str) -> bytes | None:
    """
    Decode C{byte[]} from Base64 (padded or not, with CRLF after every 76 characters), numbers, or
    C{x'..'}.

    @raise BodyError: any other value, notably Base64 that fastjson would decode to wrong bytes.
    """
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        try:
            return a2b_base64(value, strict_mode=True)
        except ValueError:
            return _loose_base64(value, name)
    if isinstance(value, list):
        if not all(isinstance(item, int) and -128 <= item <= 255 for item in value):
            raise BodyError(f"{name} is not an array of bytes")
        return bytes([item & 0xFF for item in value])
    raise BodyError(f"{name}={shown(value)} is neither Base64 nor an array of bytes")


def _loose_base64(value: str, name: str) -> bytes:
    lines = value.split("\r\n")
    if len(lines) > 1 and (any(len(line) != 76 for line in lines[:-1]) or len(lines[-1]) > 76):
        raise BodyError(f"{name}: Base64 may have CRLF only after every 76 characters")
    joined = "".join(lines)
    if len(joined) % 4 and not joined.endswith("="):
        joined += "=" * (-len(joined) % 4)
    try:
        return a2b_base64(joined, strict_mode=True)
    except ValueError:
        raise BodyError(f"{name}={shown(value)} is not Base64") from None


_SPACE = re.compile(r"(?:[ \t\r\n\f\b]+|/\*.*?\*/|//[^\n]*)*", re.DOTALL)
_NUMBER = re.compile(r"(-?[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)[LSB]?")
_WORD = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")
_HEX = re.compile(r"x'((?:[0-9A-Fa-f]{2})*)'")
_ESCAPE = re.compile(r"u([0-9A-Fa-f]{4})|x([0-9A-Fa-f]{2})|(.)", re.DOTALL)
_RUN = {quote: re.compile(rf"[^{quote}\\]*") for quote in "'\""}
_ESCAPED = {
    "b": "\b", "t": "\t", "n": "\n", "v": "\v", "f": "\f", "F": "\f", "r": "\r",
    '"': '"', "'": "'", "\\": "\\", "/": "/",
    "0": "\0", "1": "\1", "2": "\2", "3": "\3", "4": "\4", "5": "\5", "6": "\6", "7": "\7",
}
_WORDS = {"true": True, "false": False, "null": None, "undefined": None}


class _Tolerant:
    """A parser for one text. Invariant: C{_at} never falls, and each call either moves it or raises."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 1 if text.startswith("\ufeff") else 0

    def document(self) -> object:
        """
        Parse the only value in the text.

        @raise BodyError: text that fastjson does not accept.
        """
        value = self._value(0)
        self._skip_space()
        if self._at != len(self._text):
            raise self._error("text after the closing brace")
        return value

    def _error(self, what: str) -> BodyError:
        return BodyError(f"body is not JSON: {what} at character {self._at}")

    def _skip_space(self) -> None:
        match = _SPACE.match(self._text, self._at)
        assert match is not None  # it may be empty
        self._at = match.end()

    def _peek(self) -> str:
        self._skip_space()
        return self._text[self._at : self._at + 1]

    def _value(self, depth: int) -> object:
        if depth > DEPTH_MAX:
            raise self._error(f"more than {DEPTH_MAX} levels")
        first = self._peek()
        if first == "{":
            return self._object(depth)
        if first == "[":
            return self._array(depth)
        if first and first in "'\"":
            return self._string(first)
        if match := _HEX.match(self._text, self._at):
            self._at = match.end()
            return bytes.fromhex(match[1])
        if match := _NUMBER.match(self._text, self._at):
            self._at = match.end()
            return self._number(match[1])
        if (match := _WORD.match(self._text, self._at)) and match[0] in _WORDS:
            self._at = match.end()
            return _WORDS[match[0]]
        raise self._error("no value")

    def _number(self, text: str) -> int | Decimal:
        try:
            return int(text) if text.lstrip("-").isdigit() else Decimal(text)
        except (ValueError, ArithmeticError):
            raise self._error("a number out of range") from None

    def _object(self, depth: int) -> JsonObject:
        self._at += 1
        members: JsonObject = {}
        while (first := self._peek()) != "}":
            key = self._key(first)
            if self._peek() != ":":
                raise self._error("no colon")
            self._at += 1
            members[key] = self._value(depth + 1)
            self._separator("}")
        self._at += 1
        return members

    def _array(self, depth: int) -> list[object]:
        self._at += 1
        items: list[object] = []
        while self._peek() != "]":
            items.append(self._value(depth + 1))
            self._separator("]")
        self._at += 1
        return items

    def _separator(self, closing: str) -> None:
        following = self._peek()
        if following == ",":
            self._at += 1
        elif following != closing:
            raise self._error(f"neither comma nor {closing}")

    def _key(self, first: str) -> str:
        if first and first in "'\"":
            return self._string(first)
        match = _WORD.match(self._text, self._at) or _NUMBER.match(self._text, self._at)
        if match is None:
            raise self._error("no key")
        self._at = match.end()
        return match[0]

    def _string(self, quote: str) -> str:
        self._at += 1
        pieces: list[str] = []
        while True:
            match = _RUN[quote].match(self._text, self._at)
            assert match is not None  # it may be empty
            pieces.append(match[0])
            self._at = match.end() + 1
            ended_by = self._text[match.end() : self._at]
            if ended_by == quote:
                return "".join(pieces)
            pieces.append(self._escape())  # raises if the text has ended

    def _escape(self) -> str:
        match = _ESCAPE.match(self._text, self._at)
        if match is None:
            raise self._error("a text without an end")
        self._at = match.end()
        digits = match[1] or match[2]
        if digits:
            return chr(int(digits, 16))
        if match[3] not in _ESCAPED:
            raise self._error(f"unknown escape {match[3]!r}")
        return _ESCAPED[match[3]]
