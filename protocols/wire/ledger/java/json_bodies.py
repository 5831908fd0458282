# -*- test-case-name: tests.wire.test_json_bodies -*-
"""
Messages as the JSON bodies of Java DLedger 0.3.1.2.

Each message is a table of keys: the name in JSON, the field of the value, how it is read and written,
and whether its default is written. Java's own keys follow Java exactly, so that our bytes equal Java's;
our additional keys are written only if they differ from the default, and Java ignores them.

Rule 1: keys that Java recomputes on receipt (C{batch}, C{count}, C{firstEntryIndex}, C{lastEntryIndex},
C{totalSize}) are written for parity and never read. Rule 2: entries become records, sized by their
bodies. Rule 3: a PUSH in the format of DLedger 0.4 is refused by name: reading it as one of 0.3 would
be dangerous.

Source: RequestOrResponse and its subclasses in DLedger 0.3.1.2; docs/wire-format.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum
from functools import partial
from operator import attrgetter

import attrs

from protocols.wire.codes import ResponseCode
from protocols.wire.errors import BodyError, IncompatibleError
from protocols.wire.fastjson import (
    INT_BITS,
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
from protocols.wire.ledger.bounds import check_bounds
from protocols.wire.ledger.codes import Consistency, PushType, RequestCode, VoteResult
from protocols.wire.ledger.java.java_shapes import (
    read_append,
    read_push,
    write_append_answer,
    write_push_answer,
)
from protocols.wire.ledger.java.json_entries import entries_of_json, json_int, json_long, json_of_entries
from protocols.wire.ledger.memberships import TOLD_CHARACTERS_MAX
from protocols.wire.ledger.message_table import MESSAGES
from protocols.wire.ledger.messages import (
    AppendOnceRequest,
    AppendResponse,
    LedgerMessage,
    PushEntryRequest,
    PushEntryResponse,
    Request,
    Response,
)

#: Values in a request of a stranger or a client, at most: an append of 65,000 bodies has as many. A PUSH of a
#: peer has ten for each entry, and may have L{VALUES_MAX}.
REQUEST_VALUES_MAX = 1 << 16

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


def _exact_long(value: object, name: str) -> int | None:
    """Of a key that Java does not have: a number that is cut or read from text would be another condition."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise BodyError(f"{name}={shown(value)} is not a whole number")
    return json_long(value, name)


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


def _told(value: object, name: str) -> str | None:
    """The text of L{protocols.wire.ledger.memberships}, which may be longer than others."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise BodyError(f"{name}={shown(value)} is not text")
    if len(value) > TOLD_CHARACTERS_MAX:
        raise BodyError(f"{name} has {len(value)} characters, at most {TOLD_CHARACTERS_MAX} are allowed")
    return value.encode("utf-8", "replace").decode()


def _bodies(value: object, name: str) -> tuple[bytes, ...]:
    body = to_bytes(value, name)
    return () if body is None else (body,)


def _write_bodies(bodies: tuple[bytes, ...]) -> str:
    assert len(bodies) == 1, f"a remoting APPEND carries one body, not {len(bodies)}"
    return write_bytes(bodies[0])


def _name_of(member: IntEnum) -> str:
    return member.name


_text_key = partial(_Key, read=to_text)
_int_key = partial(_Key, read=json_int)
_long_key = partial(_Key, read=json_long)
_exact_long_key = partial(_Key, read=_exact_long)
_bool_key = partial(_Key, read=to_bool)
_bytes_key = partial(_Key, read=to_bytes, write=write_bytes)
_consistency_key = partial(_Key, name="consistency", field="consistency", read=_consistency, write=str)
_entries_key = partial(_Key, name="entries", field="entries", read=entries_of_json, write=json_of_entries)

_BASE = (
    _text_key(name="group", field="group"),
    _text_key(name="remoteId", field="remote_id"),
    _text_key(name="localId", field="local_id"),
    _text_key(name="leaderId", field="leader_id"),
    _long_key(name="term", field="term", always=True),
    _Key(name="wireVersion", field="wire_version", read=_version),
)
_CODE = _Key(name="code", field="code", read=_response_code, write=int, always=True)
_REQUESTS: Mapping[RequestCode, tuple[_Key, ...]] = {
    RequestCode.METADATA: (
        _text_key(name="groupId", field="group_id"),
        _text_key(name="members", field="members"),
        _Key(name="configuration", field="configuration", read=_told),
        _text_key(name="lineage", field="lineage"),
        _text_key(name="metLineage", field="met_lineage"),
        _text_key(name="token", field="token"),
    ),
    RequestCode.APPEND: (_Key(name="body", field="bodies", read=_bodies, write=_write_bodies),),
    RequestCode.GET: (
        _long_key(name="beginIndex", field="begin_index"),
        _int_key(name="maxSize", field="max_size", always=True),
        _consistency_key(),
    ),
    RequestCode.PULL: (
        _text_key(name="nodeId", field="node_id"),
        _long_key(name="beginIndex", field="begin_index", always=True),
        _long_key(name="endIndex", field="end_index"),
        _int_key(name="maxBytes", field="max_bytes"),
        _int_key(name="waitMs", field="wait_ms"),
        _consistency_key(),
    ),
    RequestCode.VOTE: (
        _long_key(name="ledgerEndIndex", field="ledger_end_index", always=True),
        _long_key(name="ledgerEndTerm", field="ledger_end_term", always=True),
        _bool_key(name="preVote", field="pre_vote"),
        _bool_key(name="transfer", field="transfer"),
    ),
    RequestCode.HEART_BEAT: (_int_key(name="heartBeatIntervalMs", field="heart_beat_interval_ms"),),
    RequestCode.PUSH: (
        _Key(name="type", field="type", read=_push_type, write=_name_of, always=True),
        _long_key(name="commitIndex", field="commit_index", always=True),
    ),
    RequestCode.LEADERSHIP_TRANSFER: (
        _text_key(name="transferId", field="transfer_id"),
        _text_key(name="transfereeId", field="transferee_id"),
        _long_key(name="takeLeadershipLedgerIndex", field="take_leadership_ledger_index", always=True),
    ),
    RequestCode.MEMBERSHIP: (
        _text_key(name="change", field="change"),
        _text_key(name="memberId", field="member_id"),
        _text_key(name="address", field="address"),
        _bool_key(name="isDry", field="is_dry"),
        _bool_key(name="isForced", field="is_forced"),
    ),
    RequestCode.APPEND_IF: (
        _bytes_key(name="body", field="body"), _exact_long_key(name="expectedEnd", field="expected_end"),
    ),
    RequestCode.APPEND_ONCE: (
        _Key(name="body", field="bodies", read=_bodies, write=_write_bodies),
        _text_key(name="producer", field="producer"),
        _exact_long_key(name="sequence", field="sequence"),
        _Key(name="isHidden", field="hidden", read=_hidden, write=bool),
    ),
    RequestCode.SUBMIT: (
        _bytes_key(name="command", field="command"),
        _text_key(name="producer", field="producer"),
        _exact_long_key(name="sequence", field="sequence"),
        _bool_key(name="isAgain", field="is_again"),
    ),
    RequestCode.QUERY: (
        _bytes_key(name="query", field="query"),
        _int_key(name="maxAgeMs", field="max_age_ms"),
    ),
    RequestCode.READER: (
        _text_key(name="does", field="does"),
        _text_key(name="name", field="name"),
        _text_key(name="holder", field="holder"),
        _long_key(name="token", field="token"),
        _exact_long_key(name="index", field="index"),
        _int_key(name="leaseMs", field="lease_ms"),
        _int_key(name="share", field="share"),
        _text_key(name="secret", field="secret"),
    ),
    RequestCode.SNAPSHOT: (
        _text_key(name="machine", field="machine"),
        _int_key(name="machineVersion", field="machine_version"),
        _int_key(name="oldestVersion", field="oldest_version"),
        _long_key(name="index", field="index"),
        _long_key(name="indexTerm", field="index_term"),
        _exact_long_key(name="offset", field="offset"),
    ),
    RequestCode.SKIP: (_exact_long_key(name="index", field="index"),),
    RequestCode.BEGIN_STATE: (_bool_key(name="insists", field="insists"),),
    RequestCode.SEQUENCE: (_text_key(name="producer", field="producer"),),
}
_RESPONSES: Mapping[RequestCode, tuple[_Key, ...]] = {
    RequestCode.METADATA: (
        _Key(name="peers", field="peers", read=_peers, write=dict),
        _long_key(name="beginIndex", field="begin_index"),
        _long_key(name="endIndex", field="end_index"),
        _long_key(name="committedIndex", field="committed_index"),
        _text_key(name="role", field="role"),
        _text_key(name="admin", field="admin"),
        _text_key(name="health", field="health"),
        _text_key(name="groupId", field="group_id"),
        _long_key(name="groupTerm", field="group_term"),
        _bool_key(name="groupKnown", field="is_group_known"),
        _Key(name="configuration", field="configuration", read=_told),
        _text_key(name="lineage", field="lineage"),
        _text_key(name="metLineage", field="met_lineage"),
        _bool_key(name="isRival", field="is_rival"),
        _Key(name="machine", field="machine", read=_told),
        _bool_key(name="hasTimes", field="has_times"),
        _text_key(name="stateDigest", field="state_digest"),
    ),
    RequestCode.APPEND: (
        _long_key(name="index", field="index", always=True),
        _long_key(name="pos", field="pos", always=True),
        _int_key(name="count", field="count"),
    ),
    RequestCode.GET: (_entries_key(always=True),),
    RequestCode.PULL: (
        _entries_key(always=True),
        _long_key(name="ledgerBeginIndex", field="ledger_begin_index"),
        _long_key(name="committedIndex", field="committed_index"),
    ),
    RequestCode.VOTE: (
        _Key(
            name="voteResult", field="vote_result", read=_vote_result, write=_name_of, always=True
        ),
        _bool_key(name="preVote", field="pre_vote"),
    ),
    RequestCode.HEART_BEAT: (),
    RequestCode.PUSH: (
        _long_key(name="index", field="index"),
        _int_key(name="count", field="count", always=True),
        _long_key(name="beginIndex", field="begin_index", always=True),
        _long_key(name="endIndex", field="end_index", always=True),
    ),
    RequestCode.LEADERSHIP_TRANSFER: (),
    RequestCode.MEMBERSHIP: (
        _text_key(name="reason", field="reason"),
        _Key(name="voters", field="voters", read=_peers, write=dict),
        _Key(name="learners", field="learners", read=_peers, write=dict),
        _long_key(name="index", field="index"),
    ),
    RequestCode.APPEND_IF: (
        _long_key(name="index", field="index"),
        _long_key(name="pos", field="pos"),
        _int_key(name="count", field="count"),
        _long_key(name="endIndex", field="end_index"),
    ),
    RequestCode.APPEND_ONCE: (
        _long_key(name="index", field="index"),
        _long_key(name="pos", field="pos"),
        _int_key(name="count", field="count"),
        _bool_key(name="isRepeated", field="is_repeated"),
        _long_key(name="lastSequence", field="last_sequence"),
    ),
    RequestCode.SUBMIT: (
        _long_key(name="index", field="index"),
        _bytes_key(name="result", field="result"),
        _text_key(name="reason", field="reason"),
        _long_key(name="lastSequence", field="last_sequence"),
    ),
    RequestCode.QUERY: (
        _bytes_key(name="result", field="result"),
        _long_key(name="appliedIndex", field="applied_index"),
        _int_key(name="ageMs", field="age_ms"),
        _text_key(name="reason", field="reason"),
    ),
    RequestCode.READER: (
        _long_key(name="token", field="token"),
        _long_key(name="beginIndex", field="begin_index"),
        _long_key(name="endIndex", field="end_index"),
        _long_key(name="nextIndex", field="next_index"),
        _long_key(name="committedIndex", field="committed_index"),
        _bytes_key(name="readers", field="readers"),
        _int_key(name="more", field="more"),
        _text_key(name="reason", field="reason"),
    ),
    RequestCode.SKIP: (
        _long_key(name="index", field="index"),
        _text_key(name="reason", field="reason"),
    ),
    RequestCode.SEQUENCE: (
        _long_key(name="lastSequence", field="last_sequence"),
        _long_key(name="index", field="index"), _text_key(name="reason", field="reason"),
    ),
    RequestCode.BEGIN_STATE: (
        _long_key(name="index", field="index"),
        _text_key(name="reason", field="reason"),
    ),
    RequestCode.SNAPSHOT: (
        _long_key(name="index", field="index"),
        _long_key(name="indexTerm", field="index_term"),
        _exact_long_key(name="size", field="size"),
        _exact_long_key(name="offset", field="offset"),
        _bytes_key(name="data", field="data"),
        _exact_long_key(name="crc", field="crc"),
        _text_key(name="reason", field="reason"),
    ),
}


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
_REQUEST_BODIES = {
    kind: _Body(
        classes[0], _BASE + _REQUESTS[kind], (*_CODE_OF_REQUESTS, *_OTHER_NAMES.get(kind, ()))
    )
    for kind, classes in MESSAGES.items()
}
_RESPONSE_BODIES = {
    kind: _Body(classes[1], (*_BASE, _CODE, *_RESPONSES[kind]), _OTHER_ANSWER_NAMES.get(kind, ()))
    for kind, classes in MESSAGES.items()
}


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
