# -*- test-case-name: tests.base.commands.test_java_json -*-
"""
Documents of RocketMQ's metadata, as fastjson writes them.

Read: strict JSON, or with unquoted integer keys (C{{0:5,1:6}}), as Java writes its maps of queues; of any
size that the caller allows. Other deviations from JSON belong to
L{protocols.wire.fastjson}.

Written: for the wire strict JSON, which fastjson reads, too; for files Java's own format, tabs included, so
that a file that we load and save again keeps its bytes.

Source: RemotingSerializable.toJson, JSON.toJSONString with PrettyFormat (fastjson 1.2.69, 1.2.83).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from itertools import islice
from math import isfinite

import attrs

from dledger.rocketmq.answering.pieces import ITEMS_A_PIECE, Pieces
from protocols.wire.documents import to_object
from protocols.wire.errors import BodyError
from protocols.wire.fastjson import LONG_BITS, REQUEST_VALUES_MAX, JsonObject, read_object, shown, to_int

#: The longest document to read: a remoting frame.
DOCUMENT_BYTES_MAX = 16 * 1024 * 1024

#: Bytes of a request that may be as loose as fastjson allows: the parser of loose JSON is slow, and RocketMQ
#: writes only the routes of topics with bare numbers as keys.
LOOSE_BYTES_MAX = 4 * 1024

_BARE_KEY = re.compile(rb'("(?:[^"\\]|\\.)*")|([{,]\s*)(-?[0-9]{1,19})(?=\s*:)')


#: A surrogate is always escaped, as unescaped text is UTF-8.
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def read_document(data: bytes) -> JsonObject:
    """
    One JSON object; integer keys become text.

    @raise BodyError: it is not an object, has half a surrogate pair, or more than L{DOCUMENT_BYTES_MAX}
        bytes.
    """
    if len(data) > DOCUMENT_BYTES_MAX:
        raise BodyError(f"document of {len(data)} bytes; {DOCUMENT_BYTES_MAX} are allowed")
    return _storable(read_object(_BARE_KEY.sub(_quoted, data)), data)


def read_request(body: bytes) -> JsonObject:
    """
    The JSON object of a request, which anybody may send: as L{read_document}, with a bound of its values, and
    strict unless it is short.

    @raise BodyError: malformed, or beyond a bound.
    """
    return _storable(read_object(
        body, values_max=REQUEST_VALUES_MAX, tolerant_bytes_max=LOOSE_BYTES_MAX
    ), body)


def _storable(document: JsonObject, data: bytes) -> JsonObject:
    if _SURROGATE.search(data) is not None:
        try:
            wire_json(document)
        except UnicodeEncodeError:
            # Such a text could neither be written to a file nor be sent.
            raise BodyError("a text holds half a surrogate pair") from None
    return document


def _quoted(match: re.Match[bytes]) -> bytes:
    text = match[1]  # quoted text stays unchanged
    return text if text is not None else match[2] + b'"' + match[3] + b'"'


def wire_json(document: Mapping[str, object] | list[object]) -> bytes:
    """Strict JSON without blanks; integer keys are quoted."""
    text = json.dumps(
        document, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_fraction
    )
    return text.encode("utf-8")


def wire_items(items: Iterable[object], count: int = ITEMS_A_PIECE // 4) -> Pieces[bytes]:
    """
    The items of an array, without its brackets; in pieces.

    @param count: items in one piece.
    """
    parts = []
    coming = iter(items)
    while some := list(islice(coming, count)):
        parts.append(wire_json(some)[1:-1])
        yield
    return b",".join(parts)


def wire_members(members: Mapping[str, object], count: int = ITEMS_A_PIECE // 4) -> Pieces[bytes]:
    """The members of an object, as they are now, without its braces; in pieces. See L{wire_items}."""
    parts = []
    coming = iter(list(members.items()))
    while some := dict(islice(coming, count)):
        parts.append(wire_json(some)[1:-1])
        yield
    return b",".join(parts)


def _fraction(value: object) -> object:
    """A fraction in the form in which it was read; as text if a double cannot hold it."""
    if not isinstance(value, Decimal):
        raise TypeError(f"{type(value).__name__} in a document")
    number = float(value)
    return number if isfinite(number) else str(value)


def file_json(document: Mapping[str, object]) -> bytes:
    """The text of a file as Java writes it. A mapping with integer keys is one line, keys unquoted."""
    return _pretty(document, 0).encode("utf-8")


class FileText(str):
    """A part of a file that is text already; see L{file_text}."""

    __slots__ = ()


def file_text(value: object, *, depth: int) -> FileText:
    """
    The text of a value inside a file, for a caller that writes it many times.

    @param depth: number of objects around it.
    """
    return FileText(_pretty(value, depth))


def _pretty(value: object, depth: int) -> str:
    if isinstance(value, FileText):
        return value
    if isinstance(value, Mapping):
        if not value:
            return "{}"
        end = "\n" + "\t" * depth + "}"
        if all(isinstance(key, int) for key in value):
            return "{" + ",".join(f"{key}:{_pretty(one, depth + 1)}" for key, one in value.items()) + end
        inner = "\n" + "\t" * (depth + 1)
        items = (f"{_text(key)}:{_pretty(one, depth + 1)}" for key, one in value.items())
        return "{" + inner + ("," + inner).join(items) + end
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(_pretty(one, depth + 1) for one in value) + "]"
    return _text(value)


#: One encoder for all: C{json.dumps} with these options makes one at each call.
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=_fraction).encode


def _text(value: object) -> str:
    if value.__class__ is int:
        return str(value)
    return _encode(value)


def to_long(value: object, name: str) -> int:
    """
    Check a number of 64 bits.

    @raise BodyError: C{value} is not one.
    """
    number = to_int(value, LONG_BITS, name)
    if number is None:
        raise BodyError(f"{name}={shown(value)} is not a number")
    return number


@attrs.frozen(kw_only=True)
class DataVersion:
    """
    The version of a table: equal versions mean equal tables; different ones have no order.

    @ivar timestamp: time of the last change, ms since 1970.
    @ivar counter: number of changes so far.
    @ivar state_version: a field of 5.x; None if the document lacks it.
    """

    timestamp: int = 0
    counter: int = 0
    state_version: int | None = 0

    def following(self, now_ms: int) -> DataVersion:
        """The version after one more change."""
        return attrs.evolve(self, timestamp=now_ms, counter=self.counter + 1)

    def is_same(self, other: DataVersion) -> bool:
        """Whether both name the same state."""
        ours, theirs = self.state_version or 0, other.state_version or 0
        return (self.timestamp, self.counter, ours) == (other.timestamp, other.counter, theirs)

    def document(self) -> dict[str, int]:
        """The object for files."""
        if self.state_version is None:
            return {"counter": self.counter, "timestamp": self.timestamp}
        return {"counter": self.counter, "stateVersion": self.state_version, "timestamp": self.timestamp}

    def wire_document(self) -> dict[str, int]:
        """The object for slaves, with all fields: a slave of 5.x fails on a missing one."""
        return attrs.evolve(self, state_version=self.state_version or 0).document()

    @classmethod
    def read(cls, value: object) -> DataVersion:
        """Read a version. @raise BodyError: C{value} is no version."""
        document = to_object(value, "dataVersion")
        state = document.get("stateVersion")
        return cls(
            timestamp=to_long(document.get("timestamp"), "timestamp"),
            counter=to_long(document.get("counter"), "counter"),
            state_version=None if state is None else to_long(state, "stateVersion"),
        )
