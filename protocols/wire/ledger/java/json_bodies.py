# -*- test-case-name: tests.wire.test_json_bodies -*-
"""
Messages as the JSON bodies of Java DLedger 0.3.1.2.

The keys of a message follow from its class: a field C{begin_index} has the key C{beginIndex}, its type says
how it is read and written. Java's own keys follow Java exactly, so that our bytes equal Java's; our
additional keys are written only if they differ from the default, and Java ignores them.

Rule 1: keys that Java recomputes on receipt (C{batch}, C{count}, C{firstEntryIndex}, C{lastEntryIndex},
C{totalSize}) are written for parity and never read. Rule 2: entries become records, sized by their
bodies. Rule 3: a PUSH in the format of DLedger 0.4 is refused by name: reading it as one of 0.3 would
be dangerous.

Source: RequestOrResponse and its subclasses in DLedger 0.3.1.2; docs/wire-format.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum
from operator import attrgetter
from types import NoneType, UnionType
from typing import get_args, get_type_hints

import attrs

from protocols.wire.codes import ResponseCode
from protocols.wire.errors import BodyError, IncompatibleError
from protocols.wire.fastjson import (
    INT_BITS,
    REQUEST_VALUES_MAX,
    JsonObject,
    canonical_keys,
    folded,
    read_object,
    shown,
    to_bool,
    to_bytes,
    to_enum,
    to_int,
    to_text,
    write_bytes,
    write_object,
)
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.bounds import check_bounds
from protocols.wire.ledger.codes import Consistency, PushType, RequestCode, VoteResult
from protocols.wire.ledger.java.java_shapes import (
    read_append,
    read_push,
    write_append_answer,
    write_push_answer,
)
from protocols.wire.ledger.java.json_entries import entries_of_json, json_int, json_long, json_of_entries
from protocols.wire.ledger.memberships import REPORTED_CHARACTERS_MAX
from protocols.wire.ledger.message_table import MESSAGES
from protocols.wire.ledger.messages import (
    AppendOnceRequest,
    AppendResponse,
    GetRequest,
    GetResponse,
    LeadershipTransferRequest,
    LedgerMessage,
    PullRequest,
    PullResponse,
    PushEntryRequest,
    PushEntryResponse,
    Request,
    Response,
    VoteRequest,
    VoteResponse,
)

#: Most bytes of a JSON request, except for those that carry content of clients or entries.
REQUEST_BYTES_MAX = 64 * 1024
WITH_CONTENT = frozenset({
    RequestCode.APPEND, RequestCode.APPEND_IF, RequestCode.APPEND_ONCE, RequestCode.SUBMIT,
    RequestCode.QUERY, RequestCode.PUSH,
})

#: Most bytes of a request that is not strict JSON. No Java member or client writes loose JSON.
REQUEST_TOLERANT_BYTES_MAX = 1024

#: Most members in one METADATA answer.
PEERS_MAX = 1024


def _same(value: object) -> object:
    return value


@attrs.frozen(kw_only=True)
class _Key:
    """
    One key of a body.

    @ivar read: from the JSON value and the key's name to the field's value; None keeps its default.
    @ivar always: whether the default is written too.
    """

    name: str
    field: str
    read: Callable[[object, str], object]
    write: Callable[..., object] = _same
    always: bool = False


def _exact(bits: int, *, or_null: bool) -> Callable[[object, str], int | None]:
    """
    The reader of a number whose key Java does not have: one that is cut, or read from a text, would be
    another one. @param or_null: null keeps the default.
    """
    end = 1 << (bits - 1)

    def read(value: object, name: str) -> int | None:
        if value is None and or_null:
            return None
        if not isinstance(value, int) or isinstance(value, bool):
            raise BodyError(f"{name}={shown(value)} is not a whole number")
        if not -end <= value < end:
            raise BodyError(f"{name}={value} has more than {bits} bits")
        return value

    return read


def _version(value: object, name: str) -> int | None:
    version = to_int(value, INT_BITS, name)
    if version is not None and version < 0:
        raise BodyError(f"{name}={version} is negative")
    return version


def _response_code(value: object, name: str) -> ResponseCode | None:
    number = to_int(value, INT_BITS, name)
    if number is None:
        return None
    return _RESPONSE_CODES.get(number, ResponseCode.UNKNOWN)


_RESPONSE_CODES = {int(code): code for code in ResponseCode}


def _push_type(value: object, name: str) -> PushType:
    push_type = to_enum(value, PushType, name)
    if push_type is None:
        raise BodyError(f"{name}={shown(value)} is not one of {', '.join(PushType.__members__)}")
    return push_type


def _hidden(value: object, name: str) -> tuple[int, ...] | None:
    """The numbers of hidden bodies, of a request with one body."""
    return (0,) if to_bool(value, name) else None


def _vote_result(value: object, name: str) -> VoteResult | None:
    return to_enum(value, VoteResult, name)


def _consistency(value: object, name: str) -> Consistency | None:
    if value is None:
        return None
    for member in Consistency:
        if value == member.value:
            return member
    raise BodyError(f"{name}={shown(value)} is not one of {', '.join(Consistency)}")


def _peers(value: object, name: str) -> dict[str, str] | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise BodyError(f"{name}={shown(value)} is not an object")
    if len(value) > PEERS_MAX:
        raise BodyError(f"{name} names {len(value)} members, at most {PEERS_MAX} are allowed")
    peers = {}
    for member_id, address in value.items():
        if not isinstance(address, str):
            raise BodyError(f"{name}: address={shown(address)} is not text")
        peers[to_text(member_id, name) or ""] = to_text(address, name) or ""
    return peers


def _reported(value: object, name: str) -> str | None:
    """The text of L{protocols.wire.ledger.memberships}, which may be longer than others."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise BodyError(f"{name}={shown(value)} is not text")
    if len(value) > REPORTED_CHARACTERS_MAX:
        raise BodyError(f"{name} has {len(value)} characters, at most {REPORTED_CHARACTERS_MAX} are allowed")
    return value.encode("utf-8", "replace").decode()


def _bodies(value: object, name: str) -> tuple[bytes, ...]:
    body = to_bytes(value, name)
    return () if body is None else (body,)


def _write_bodies(bodies: tuple[bytes, ...]) -> str:
    assert len(bodies) == 1, f"a remoting APPEND carries one body, not {len(bodies)}"
    return write_bytes(bodies[0])


def _name_of(member: IntEnum) -> str:
    return member.name


_CODE = _Key(name="code", field="code", read=_response_code, write=int, always=True)
#: How a field is read and written, by the type that its message declares.
_BY_TYPE: Mapping[object, tuple[Callable[[object, str], object], Callable[..., object]]] = {
    str: (to_text, _same), bool: (to_bool, _same), bytes: (to_bytes, write_bytes), int: (json_long, _same),
    Consistency: (_consistency, str), EntryBatch: (entries_of_json, json_of_entries),
    PushType: (_push_type, _name_of), VoteResult: (_vote_result, _name_of),
    tuple[bytes, ...]: (_bodies, _write_bodies), tuple[int, ...]: (_hidden, bool),
    Mapping[str, str]: (_peers, dict),
}
#: Numbers of 32 bits.
_INTS = frozenset({
    "age_ms", "count", "heart_beat_interval_ms", "lease_ms", "machine_version", "max_age_ms", "max_bytes",
    "max_size", "more", "oldest_version", "share", "wait_ms",
})
#: Messages that Java does not have: a number in them that is cut, or read from text, would be another one.
_FIRST_OF_OURS = RequestCode.MEMBERSHIP
#: Texts that may be longer than others.
_LONG_TEXTS = frozenset({(RequestCode.METADATA, "configuration"), (RequestCode.METADATA, "machine")})
#: Keys that are not the name of their field.
_OTHER_KEYS = {"bodies": "body", "hidden": "isHidden"}
#: Fields that are written even if they have their default, as Java does.
_ALWAYS: Mapping[type[LedgerMessage], frozenset[str]] = {
    LedgerMessage: frozenset({"term"}),
    GetRequest: frozenset({"max_size"}),
    PullRequest: frozenset({"begin_index"}),
    VoteRequest: frozenset({"ledger_end_index", "ledger_end_term"}),
    PushEntryRequest: frozenset({"type", "commit_index"}),
    LeadershipTransferRequest: frozenset({"take_leadership_ledger_index"}),
    AppendResponse: frozenset({"index", "pos"}),
    GetResponse: frozenset({"entries"}),
    PullResponse: frozenset({"entries"}),
    VoteResponse: frozenset({"vote_result"}),
    PushEntryResponse: frozenset({"count", "begin_index", "end_index"}),
}
#: Fields that have no key of their own: L{_write_push} writes them.
_NO_KEYS: Mapping[type[LedgerMessage], frozenset[str]] = {
    PushEntryRequest: frozenset({"entries", "is_batch"}),
}


def _camel(field: str) -> str:
    first, *others = field.split("_")
    return first + "".join(map(str.capitalize, others))


def _key_of(message: type[LedgerMessage], field: str, declared: object, kind: RequestCode | None) -> _Key:
    options = [one for one in get_args(declared) if one is not NoneType]
    if isinstance(declared, UnionType):
        declared = options[0]
    read, write = _BY_TYPE[declared]
    is_of_ours = kind is not None and kind >= _FIRST_OF_OURS
    if declared is int:
        if field == "wire_version":
            read = _version
        elif is_of_ours:
            read = _exact(INT_BITS if field in _INTS else 64, or_null=not issubclass(message, Request))
        elif field in _INTS:
            read = json_int
    elif (kind, field) in _LONG_TEXTS:
        read = _reported
    return _Key(
        name=_OTHER_KEYS.get(field) or _camel(field), field=field, read=read, write=write,
        always=field in _ALWAYS.get(message, ()),
    )


def _keys_of(message: type[LedgerMessage], kind: RequestCode | None = None) -> tuple[_Key, ...]:
    """The keys of the fields that a message has besides those of L{LedgerMessage} and the code."""
    base = () if message is LedgerMessage else (*attrs.fields_dict(LedgerMessage), "code")
    types = get_type_hints(message)
    return tuple(
        _key_of(message, field, types[field], kind) for field in attrs.fields_dict(message)
        if field not in base and field not in _NO_KEYS.get(message, ())
    )


class _Body:
    """The format of one class of message: its keys, and their accepted spellings."""

    def __init__(
        self, message: type[LedgerMessage], keys: tuple[_Key, ...], other_names: tuple[str, ...] = ()
    ) -> None:
        self.message: Callable[..., LedgerMessage] = message
        self.keys = keys
        names = (*(key.name for key in keys), *other_names)
        self.known = frozenset(names)
        self.names = {folded(name): name for name in names}
        fields = attrs.fields_dict(message)
        self._defaults: list[object] = [
            {} if key.read is _peers else fields[key.field].default for key in keys
        ]
        self._values: Callable[[LedgerMessage], tuple[object, ...]] = attrgetter(*(key.field for key in keys))

    def write(self, message: LedgerMessage) -> JsonObject:
        document: JsonObject = {}
        for key, value, default in zip(self.keys, self._values(message), self._defaults, strict=True):
            if key.always or value != default:
                document[key.name] = key.write(value)
        return document

    def open(self, body: bytes, **limits: int) -> JsonObject:
        document = read_object(body, **limits)
        if not document.keys() <= self.known:
            return canonical_keys(document, self.names)
        return document

    def read(self, document: JsonObject) -> JsonObject:
        fields: JsonObject = {}
        for key in self.keys:
            if key.name in document:
                value = key.read(document[key.name], key.name)
                if value is not None:
                    fields[key.field] = value
        return fields


_NO_0_4 = "a DLedger 0.4 peer cannot be in a 0.3 group"
#: Java writes it into every request. It says nothing, but a key that is not known would cost each request the
#: comparison of all its keys in any case.
_CODE_OF_REQUESTS = ("code",)
#: Keys that are read although no message has such a field: DLedger 0.4's, and those of entries.
_PUSH_SHAPE_0_4 = ("preLogIndex", "preLogTerm", "lastEntryTerm", "entries")
_OTHER_NAMES = {RequestCode.PUSH: ("entry", "batchEntry", *_PUSH_SHAPE_0_4)}
#: Keys that every answer to a PUSH has in DLedger 0.4, and none in 0.3.
_ANSWER_SHAPE_0_4 = ("xIndex", "xTerm")
_OTHER_ANSWER_NAMES = {RequestCode.PUSH: _ANSWER_SHAPE_0_4}


class _Bodies(dict[RequestCode, _Body]):
    """
    The formats of the requests or of the answers, by code. One is made when it is first asked for: all of
    them take a client longer than its first connection.
    """

    def __init__(self, make: Callable[[RequestCode], _Body]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, kind: RequestCode) -> _Body:
        return self.setdefault(kind, self._make(kind))


def _request_body(kind: RequestCode) -> _Body:
    message = MESSAGES[kind][0]
    return _Body(
        message, (*_keys_of(LedgerMessage), *_keys_of(message, kind)),
        (*_CODE_OF_REQUESTS, *_OTHER_NAMES.get(kind, ())),
    )


def _response_body(kind: RequestCode) -> _Body:
    message = MESSAGES[kind][1]
    return _Body(
        message, (*_keys_of(LedgerMessage), _CODE, *_keys_of(message, kind)),
        _OTHER_ANSWER_NAMES.get(kind, ()),
    )


_REQUEST_BODIES = _Bodies(_request_body)
_RESPONSE_BODIES = _Bodies(_response_body)


def encode_request(request: Request) -> bytes:
    """
    The JSON body of a request.

    Callers must give an APPEND at most one body, and a PUSH without C{is_batch} at most one entry.
    """
    document = _REQUEST_BODIES[request.kind].write(request)
    document["code"] = 200
    if isinstance(request, PushEntryRequest):
        _write_push(request, document)
    return write_object(document)


def decode_request(
    kind: RequestCode, body: bytes, *, values_max: int = REQUEST_VALUES_MAX,
    tolerant_bytes_max: int = REQUEST_TOLERANT_BYTES_MAX,
) -> Request:
    """
    Decode the JSON body of a request.

    @param kind: the code in the remoting header.
    @param values_max, tolerant_bytes_max: see L{read_object}.
    @raise LooseError: longer than C{tolerant_bytes_max}, and not strict JSON.
    @raise BodyError: not such a request; its frame was valid, so it can be answered (411).
    @raise IncompatibleError: a push of DLedger 0.4.
    """
    if kind is RequestCode.PUSH and (push := read_push(body)) is not None:
        return push
    if kind is RequestCode.APPEND and (append := read_append(body)) is not None:
        return append
    shape = _REQUEST_BODIES[kind]
    document = shape.open(body, values_max=values_max, tolerant_bytes_max=tolerant_bytes_max)
    fields = shape.read(document)
    if kind is RequestCode.PUSH:
        _read_push(document, fields)
    request = shape.message(**fields)
    assert isinstance(request, Request)
    if isinstance(request, AppendOnceRequest) and len(request.hidden) > len(request.bodies):
        raise BodyError("isHidden is true, and there is no body")
    check_bounds(request)
    return request


def encode_response(response: Response) -> bytes:
    """The JSON body of an answer; its header code is always 200."""
    if type(response) is PushEntryResponse and (body := write_push_answer(response)) is not None:
        return body
    if type(response) is AppendResponse and (body := write_append_answer(response)) is not None:
        return body
    return write_object(_RESPONSE_BODIES[response.kind].write(response))


def decode_response(kind: RequestCode, body: bytes) -> Response:
    """
    Decode the JSON body of an answer.

    @param kind: code of the answered request.
    @raise BodyError: no body, or not such an answer.
    @raise IncompatibleError: an answer of DLedger 0.4.
    """
    shape = _RESPONSE_BODIES[kind]
    document = shape.open(body)
    foreign = [name for name in _ANSWER_SHAPE_0_4 if name in document] if kind is RequestCode.PUSH else []
    if foreign:
        # A 0.4 peer reads a COMPARE of 0.3 as that of an empty leader and answers SUCCESS: it holds nothing.
        raise IncompatibleError(f"answer to PUSH has {', '.join(foreign)}: {_NO_0_4}")
    response = shape.message(**shape.read(document))
    assert isinstance(response, Response)
    check_bounds(response)
    return response


def _write_push(request: PushEntryRequest, document: JsonObject) -> None:
    batch = request.entries
    entries = json_of_entries(batch)
    assert request.is_batch or len(entries) <= 1, f"{len(entries)} entries in a push that is not a batch"
    document["batch"] = request.is_batch
    document["batchEntry"] = entries if request.is_batch else []
    if batch is not None and not request.is_batch:
        document["entry"] = entries[0]
    document["count"] = len(entries)
    document["firstEntryIndex"] = -1 if batch is None else batch.first_index
    document["lastEntryIndex"] = -1 if batch is None else batch.last_index
    document["totalSize"] = len(batch.records) if batch is not None and request.is_batch else 0


def _read_push(document: JsonObject, fields: JsonObject) -> None:
    """
    Read the entries of a push into C{fields}.

    @raise BodyError: a push that needs an entry has none, or entries are malformed.
    @raise IncompatibleError: the entries are under the keys of DLedger 0.4.
    """
    push_type = fields.get("type", PushType.APPEND)
    foreign = [name for name in _PUSH_SHAPE_0_4 if name in document]
    if foreign and not document.get("entry") and not document.get("batchEntry"):
        raise IncompatibleError(f"PUSH body has {', '.join(foreign)}: {_NO_0_4}")
    if push_type is PushType.COMMIT:
        return
    if push_type is PushType.APPEND and document.get("batchEntry"):
        fields["is_batch"] = True
        fields["entries"] = entries_of_json(document["batchEntry"], "batchEntry")
    elif document.get("entry"):
        sized = push_type is not PushType.APPEND
        fields["entries"] = entries_of_json([document["entry"]], "entry", sized=sized)
    else:
        raise BodyError(f"PUSH {getattr(push_type, 'name', push_type)} without an entry")
