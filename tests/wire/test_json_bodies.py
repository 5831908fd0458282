# -*- test-case-name: tests.wire.test_json_bodies -*-
"""Bodies beyond the captured ones: keys of ours, Java's tolerance, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import attrs
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from protocols.wire.codes import ResponseCode
from protocols.wire.errors import BodyError
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.codes import Consistency, PushType, RequestCode, VoteResult
from protocols.wire.ledger.entry import decode_header
from protocols.wire.ledger.java.json_bodies import (
    PEERS_MAX,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from protocols.wire.ledger.machines import (
    QueryRequest,
    QueryResponse,
    SkipRequest,
    SkipResponse,
    SnapshotRequest,
    SnapshotResponse,
    SubmitRequest,
    SubmitResponse,
)
from protocols.wire.ledger.message_table import MESSAGES
from protocols.wire.ledger.messages import (
    AppendIfRequest,
    AppendIfResponse,
    AppendOnceRequest,
    AppendOnceResponse,
    AppendRequest,
    AppendResponse,
    BeginStateRequest,
    BeginStateResponse,
    GetRequest,
    GetResponse,
    HeartBeatRequest,
    HeartBeatResponse,
    MembershipRequest,
    MembershipResponse,
    MetadataRequest,
    MetadataResponse,
    PullRequest,
    PullResponse,
    PushEntryRequest,
    PushEntryResponse,
    ReaderRequest,
    ReaderResponse,
    Request,
    ResetTimesRequest,
    ResetTimesResponse,
    Response,
    SequenceRequest,
    SequenceResponse,
    VoteRequest,
    VoteResponse,
)
from tests.wire.golden import BODIES, EXAMPLES, HELLO
from tests.wire.test_entry import three
from tests.wire.values import house, json_requests, json_responses

#: Every key that Java DLedger 0.3.1.2 writes, by kind and direction; all others are ours.
JAVA_BASE = {"group", "remoteId", "localId", "leaderId", "code", "term"}
JAVA_KEYS: dict[tuple[RequestCode, bool], set[str]] = {
    (RequestCode.METADATA, True): {"peers"},
    (RequestCode.APPEND, False): {"body"},
    (RequestCode.APPEND, True): {"index", "pos"},
    (RequestCode.GET, False): {"beginIndex", "maxSize"},
    (RequestCode.GET, True): {"entries"},
    (RequestCode.PULL, False): {"nodeId", "beginIndex"},
    (RequestCode.PULL, True): {"entries"},
    (RequestCode.VOTE, False): {"ledgerEndIndex", "ledgerEndTerm"},
    (RequestCode.VOTE, True): {"voteResult"},
    (RequestCode.PUSH, False): {
        "type", "commitIndex", "entry", "batchEntry", "batch", "count", "firstEntryIndex", "lastEntryIndex",
        "totalSize",
    },
    (RequestCode.PUSH, True): {"index", "count", "beginIndex", "endIndex"},
    (RequestCode.LEADERSHIP_TRANSFER, False): {"transferId", "transfereeId", "takeLeadershipLedgerIndex"},
}


def read_request(kind: RequestCode, **document: Any) -> Any:
    """The request in this object."""
    return decode_request(kind, json.dumps(document).encode())


def read_response(kind: RequestCode, **document: Any) -> Any:
    """The answer in this object."""
    return decode_response(kind, json.dumps(document).encode())


def entry(**changes: Any) -> dict[str, Any]:
    """C{HELLO} in JSON, with changes; None takes a key away."""
    fields = {
        "body": "aGVsbG8=", "bodyCrc": 0, "chainCrc": 0, "channel": 0, "index": 5, "magic": 1, "pos": 265,
        "size": 53, "term": 3, **changes,
    }
    return {key: value for key, value in fields.items() if value is not None}


class RoundTripTests(SynchronousTestCase):
    """What is written is read, whatever the values."""

    @house
    @given(json_requests)
    def test_requests(self, request: Request) -> None:
        """Every request; C{code} is written though nobody reads it."""
        body = encode_request(request)
        self.assertEqual(decode_request(request.kind, body), request)
        self.assertEqual(json.loads(body)["code"], 200)

    @house
    @given(json_responses)
    def test_responses(self, response: Response) -> None:
        """Every answer."""
        self.assertEqual(decode_response(response.kind, encode_response(response)), response)

    @house
    @given(json_requests | json_responses)
    def test_shape(self, message: Request | Response) -> None:
        """One object, keys sorted, no blanks, no nulls, other scripts raw."""
        body = encode_request(message) if isinstance(message, Request) else encode_response(message)
        document = json.loads(body)
        self.assertNotIn(None, document.values())
        again = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        self.assertEqual(body, again.encode())

    def test_every_truncation(self) -> None:
        """No beginning of a body is a body."""
        for kind, body, message in [
            *((example.message.kind, example.body, example.message) for example in EXAMPLES),
            *BODIES,
        ]:
            decode = decode_request if isinstance(message, Request) else decode_response
            for length in range(len(body)):
                self.assertRaises(BodyError, decode, kind, body[:length])

    @house
    @given(st.sampled_from(RequestCode), st.binary(max_size=60))
    def test_garbage(self, kind: RequestCode, body: bytes) -> None:
        """A message or a L{BodyError}."""
        for decode in (decode_request, decode_response):
            for data in (body, b'{"term":' + body + b"}", b'{"entries":[{"body":' + body + b"}]}"):
                try:
                    decode(kind, data)
                except BodyError:
                    continue

    def test_strange_values_at_every_key(self) -> None:
        """Any kind of value at any key: a message or a L{BodyError}."""
        strange: tuple[Any, ...] = (
            None, True, 0, -1, 1 << 31, 1 << 63, 1.5, 1e300, "", "x", "null", [], [[]], [None], [{}], {},
            {"a": 1}, {"a": None}, "\ud800", "x" * 5000, [entry()], entry(),
        )
        for kind in RequestCode:
            for decode, is_answer in ((decode_request, False), (decode_response, True)):
                for key in JAVA_BASE | JAVA_KEYS.get((kind, is_answer), set()) | OURS.get(
                    (kind, is_answer), set()
                ):
                    for value in strange:
                        for also in ({}, {"entry": entry()}):
                            try:
                                decode(kind, json.dumps({**also, key: value}).encode())
                            except BodyError:
                                continue


#: Keys of ours, by kind and direction, and a message that has all of them.
OURS: dict[tuple[RequestCode, bool], set[str]] = {
    (RequestCode.METADATA, False): {"configuration", "lineage", "metLineage", "token"},
    (RequestCode.METADATA, True): {
        "beginIndex", "endIndex", "committedIndex", "role", "admin", "health", "configuration",
        "lineage", "metLineage", "isRival", "machine", "stateDigest", "timeResets", "version",
    },
    (RequestCode.APPEND, True): {"count"},
    (RequestCode.GET, False): {"consistency"},
    (RequestCode.PULL, False): {"endIndex", "maxBytes", "waitMs", "consistency"},
    (RequestCode.PULL, True): {"ledgerBeginIndex", "committedIndex"},
    (RequestCode.VOTE, False): {"preVote", "transfer"},
    (RequestCode.VOTE, True): {"preVote", "clockMs"},
    (RequestCode.HEART_BEAT, False): {"heartBeatIntervalMs"},
    (RequestCode.HEART_BEAT, True): {"clockMs"},
    (RequestCode.MEMBERSHIP, False): {"change", "memberId", "address", "isDry", "isForced"},
    (RequestCode.MEMBERSHIP, True): {"reason", "voters", "learners", "index"},
    (RequestCode.APPEND_IF, False): {"body", "expectedEnd"},
    (RequestCode.APPEND_IF, True): {"index", "pos", "count", "endIndex"},
    (RequestCode.APPEND_ONCE, False): {"body", "producer", "sequence", "isHidden"},
    (RequestCode.APPEND_ONCE, True): {"index", "pos", "count", "isRepeated", "lastSequence"},
    (RequestCode.SUBMIT, False): {"command", "producer", "sequence", "isAgain"},
    (RequestCode.SUBMIT, True): {"index", "result", "reason", "lastSequence"},
    (RequestCode.QUERY, False): {"query", "maxAgeMs"},
    (RequestCode.QUERY, True): {"result", "appliedIndex", "ageMs", "reason"},
    (RequestCode.SKIP, False): {"index"},
    (RequestCode.SKIP, True): {"index", "reason"},
    (RequestCode.BEGIN_STATE, False): {"insists"},
    (RequestCode.BEGIN_STATE, True): {"index", "reason"},
    (RequestCode.RESET_TIMES, False): set(),
    (RequestCode.RESET_TIMES, True): {"index", "reason"},
    (RequestCode.READER, False): {"does", "name", "holder", "token", "index", "leaseMs", "share", "secret"},
    (RequestCode.READER, True): {
        "token", "beginIndex", "endIndex", "nextIndex", "committedIndex", "readers", "more", "reason",
    },
    (RequestCode.SEQUENCE, False): {"producer"},
    (RequestCode.SEQUENCE, True): {"lastSequence", "index", "reason"},
    (RequestCode.SNAPSHOT, False): {
        "machine", "machineVersion", "oldestVersion", "index", "indexTerm", "offset"
    },
    (RequestCode.SNAPSHOT, True): {"index", "indexTerm", "size", "offset", "data", "crc", "reason"},
}
FULL: tuple[Request | Response, ...] = (
    MetadataRequest(configuration="{}", lineage="x", met_lineage="y", token="t"),
    MetadataResponse(
        begin_index=0, end_index=-1, committed_index=-1, role="leader", admin="h:1", health="behind",
        configuration="{}", lineage="x", met_lineage="y", is_rival=True, machine="{}",
        time_resets="7:5", state_digest="7:3:0123456789abcdef", version="1.2",
    ),
    AppendResponse(count=2),
    GetRequest(consistency=Consistency.COMMITTED),
    PullRequest(end_index=5, max_bytes=1, wait_ms=1, consistency=Consistency.LINEARIZABLE),
    PullResponse(ledger_begin_index=0, committed_index=0),
    VoteRequest(pre_vote=True, transfer=True),
    VoteResponse(pre_vote=True, clock_ms=5),
    HeartBeatRequest(heart_beat_interval_ms=100),
    HeartBeatResponse(clock_ms=5),
    MembershipRequest(change="add", member_id="n3", address="h:1", is_dry=True, is_forced=True),
    MembershipResponse(reason="done", voters={"n0": "h:1"}, learners={"n3": "h:2"}, index=7),
    AppendIfRequest(body=b"x", expected_end=3),
    AppendIfResponse(index=4, pos=48, count=2, end_index=3),
    AppendOnceRequest(producer="p", sequence=3, bodies=(b"x",), hidden=(0,)),
    AppendOnceResponse(index=4, pos=48, count=2, is_repeated=True, last_sequence=3),
    SubmitRequest(command=b"x", producer="p", sequence=3, is_again=True),
    SubmitResponse(index=4, result=b"x", reason="y", last_sequence=2),
    QueryRequest(query=b"x", max_age_ms=5),
    QueryResponse(result=b"x", applied_index=4, age_ms=5, reason="y"),
    SkipRequest(index=4),
    SkipResponse(index=4, reason="y"),
    BeginStateRequest(insists=True),
    BeginStateResponse(index=4, reason="y"),
    ResetTimesRequest(),
    ResetTimesResponse(index=4, reason="y"),
    ReaderRequest(does="take", name="a", holder="b", token=1, index=2, lease_ms=3, share=4, secret="s"),
    ReaderResponse(
        token=1, begin_index=2, end_index=3, next_index=4, committed_index=5, readers=b"[]", more=3,
        reason="y",
    ),
    SequenceRequest(producer="p"),
    SequenceResponse(last_sequence=3, index=4, reason="y"),
    SnapshotRequest(machine="kv", machine_version=1, oldest_version=0, index=2, index_term=3, offset=4),
    SnapshotResponse(index=2, index_term=3, size=9, offset=4, data=b"x", crc=5, reason="y"),
)


class OurKeysTests(SynchronousTestCase):
    """Extra keys say something or are not there."""

    def keys(self, message: Request | Response) -> set[str]:
        """The keys that are written and are not Java's."""
        is_answer = isinstance(message, Response)
        body = encode_response(message) if is_answer else encode_request(message)  # type: ignore[arg-type]
        return set(json.loads(body)) - JAVA_BASE - JAVA_KEYS.get((message.kind, is_answer), set())

    def test_defaults_are_silent(self) -> None:
        """A message in which nothing of ours is set has no key that Java lacks."""
        for request, response in MESSAGES.values():
            for message in (request(), response()):
                self.assertEqual(self.keys(message), set(), message)

    def test_a_hidden_body_is_there(self) -> None:
        """C{isHidden} is about the body."""
        text = b'{"producer":"p","sequence":3,"isHidden":true}'
        self.assertRaises(BodyError, decode_request, RequestCode.APPEND_ONCE, text)

    def test_every_key(self) -> None:
        """All of them, by their names."""
        found = {(message.kind, isinstance(message, Response)): self.keys(message) for message in FULL}
        self.assertEqual(found, OURS)

    def test_wire_version(self) -> None:
        """Any message may advertise, and only by saying so."""
        for request, response in MESSAGES.values():
            self.assertEqual(self.keys(request(wire_version=1)), {"wireVersion"})
            self.assertEqual(self.keys(response(wire_version=1)), {"wireVersion"})
        self.assertEqual(read_response(RequestCode.HEART_BEAT, term=3).wire_version, 0)
        self.assertEqual(read_response(RequestCode.HEART_BEAT, wireVersion=7).wire_version, 7)
        self.assertEqual(read_response(RequestCode.HEART_BEAT, wireVersion=None).wire_version, 0)
        self.assertRaises(BodyError, read_response, RequestCode.HEART_BEAT, wireVersion=-1)

    def test_exact_numbers(self) -> None:
        """A condition or a sequence is not cut, nor read from a text: it would be another one."""
        for kind, key in ((RequestCode.APPEND_IF, "expectedEnd"), (RequestCode.APPEND_ONCE, "sequence"),
                          (RequestCode.READER, "index"), (RequestCode.SKIP, "index"),
                          (RequestCode.SNAPSHOT, "offset")):
            for value in ("1.5", "1.0", '"1"', "true", "null", '""', "1e0"):
                with self.assertRaisesRegex(BodyError, f"{key}=.* is not a whole number"):
                    decode_request(kind, b'{"%s":%s}' % (key.encode(), value.encode()))
            with self.assertRaises(BodyError):
                decode_request(kind, b'{"%s":%d}' % (key.encode(), 1 << 63))
        for kind, key in ((RequestCode.READER, "leaseMs"), (RequestCode.READER, "share"),
                          (RequestCode.QUERY, "maxAgeMs")):
            self.assertRaises(BodyError, decode_request, kind, b'{"%s":"1"}' % key.encode())
            self.assertRaises(BodyError, decode_request, kind, b'{"%s":%d}' % (key.encode(), 1 << 31))
            decode_request(kind, b'{"%s":%d}' % (key.encode(), (1 << 31) - 1))

    def test_unknown_consistency(self) -> None:
        """A read that asks for something else is not answered with less."""
        self.assertRaises(BodyError, read_request, RequestCode.GET, consistency="eventual")
        read = read_request(RequestCode.GET, consistency="committed")
        self.assertIs(read.consistency, Consistency.COMMITTED)
        read = read_request(RequestCode.GET, consistency=None)
        self.assertIs(read.consistency, Consistency.LINEARIZABLE)


class JavaToleranceTests(SynchronousTestCase):
    """What fastjson does to a body before Java sees it."""

    def test_absent_and_null(self) -> None:
        """Both keep the default."""
        for kind, (request, response) in MESSAGES.items():
            if kind is not RequestCode.PUSH:
                self.assertEqual(decode_request(kind, b"{}"), request())
            self.assertEqual(decode_response(kind, b"{}"), response())
            nulls = b'{"term":null,"code":null,"group":null,"count":null,"index":null,"entries":null}'
            self.assertEqual(decode_response(kind, nulls), response())

    def test_no_body(self) -> None:
        """Java would hang or fail on these; we say what is wrong."""
        for kind in RequestCode:
            for body in (b"", b"null", b"[]", b"1"):
                self.assertRaises(BodyError, decode_request, kind, body)
                self.assertRaises(BodyError, decode_response, kind, body)

    def test_spelling(self) -> None:
        """Keys and numbers in other spellings."""
        body = b"{Group:'g', ledger_end_index:'12', \"LEDGERENDTERM\":2.0, term:3e0, unknown:{a:[1]}, /**/}"
        self.assertEqual(
            decode_request(RequestCode.VOTE, body),
            VoteRequest(group="g", ledger_end_index=12, ledger_end_term=2, term=3),
        )

    def test_exact_key_and_others(self) -> None:
        """The last spelling wins, as with equal keys."""
        self.assertEqual(read_request(RequestCode.VOTE, term=1, Term=2).term, 2)

    def test_out_of_range(self) -> None:
        """A parse error in Java."""
        self.assertRaises(BodyError, read_request, RequestCode.VOTE, term=1 << 63)
        self.assertRaises(BodyError, read_request, RequestCode.GET, maxSize=1 << 31)

    def test_response_codes(self) -> None:
        """Unlisted numbers are UNKNOWN; a code that is not a number is not an answer."""
        self.assertIs(read_response(RequestCode.GET, code=404).code, ResponseCode.NOT_LEADER)
        for code in (0, 1, 507, 2147483647, -2):
            self.assertIs(read_response(RequestCode.GET, code=code).code, ResponseCode.UNKNOWN)
        self.assertRaises(BodyError, read_response, RequestCode.GET, code="x")
        self.assertRaises(BodyError, read_response, RequestCode.GET, code=1 << 31)

    def test_vote_results(self) -> None:
        """Unknown names are UNKNOWN (Java: null, and it stumbles); ordinals count."""
        for value, result in (
            ("ACCEPT", VoteResult.ACCEPT), ("accept", VoteResult.ACCEPT),
            (6, VoteResult.REJECT_ALREADY_HAS_LEADER), ("REJECT_NEW", VoteResult.UNKNOWN),
            ("", VoteResult.UNKNOWN), (None, VoteResult.UNKNOWN),
        ):
            self.assertIs(read_response(RequestCode.VOTE, voteResult=value).vote_result, result)
        self.assertRaises(BodyError, read_response, RequestCode.VOTE, voteResult=12)

    def test_append_bodies(self) -> None:
        """None, an empty one, and those that are not Base64."""
        self.assertEqual(read_request(RequestCode.APPEND).bodies, ())
        self.assertEqual(read_request(RequestCode.APPEND, body=None).bodies, ())
        self.assertEqual(read_request(RequestCode.APPEND, body="").bodies, (b"",))
        self.assertEqual(read_request(RequestCode.APPEND, body=[104, 105]).bodies, (b"hi",))
        self.assertEqual(
            decode_request(RequestCode.APPEND, b"{body:x'6162'}"), AppendRequest(bodies=(b"ab",))
        )
        self.assertRaises(BodyError, read_request, RequestCode.APPEND, body="-_-_")
        self.assertNotIn(b"body", encode_request(AppendRequest()))

    def test_get_without_index(self) -> None:
        """An index that was not named is none, not 0."""
        self.assertIsNone(read_request(RequestCode.GET).begin_index)
        self.assertIsNone(read_request(RequestCode.GET, beginIndex=None).begin_index)
        self.assertEqual(read_request(RequestCode.GET, beginIndex="0", indexList=[1]).begin_index, 0)

    def test_peers(self) -> None:
        """Text to text, and not too many."""
        peers: Any
        self.assertEqual(read_response(RequestCode.METADATA, peers={"n0": "h:1"}).peers, {"n0": "h:1"})
        for peers in ([], "n0", {"n0": 1}, {"n0": None}, {"n0": []}, {"\ud800": "h:1"}):
            self.assertRaises(BodyError, read_response, RequestCode.METADATA, peers=peers)
        many = {f"n{number}": "h:1" for number in range(PEERS_MAX + 1)}
        self.assertRaises(BodyError, read_response, RequestCode.METADATA, peers=many)
        many.popitem()
        self.assertEqual(read_response(RequestCode.METADATA, peers=many).peers, many)


class EntriesTests(SynchronousTestCase):
    """Entries in JSON and records."""

    def read(self, **changes: Any) -> EntryBatch:
        """The batch in a GET answer with one changed entry."""
        batch = read_response(RequestCode.GET, entries=[entry(**changes)]).entries
        assert isinstance(batch, EntryBatch)
        return batch

    def refused(self, *words: str, **changes: Any) -> None:
        """An answer with this entry is refused for a reason."""
        error = self.assertRaises(BodyError, self.read, **changes)
        for word in words:
            self.assertIn(word, str(error))

    def test_fields_are_copied(self) -> None:
        """Checksums, channel, magic and position are the leader's, whatever they are."""
        batch = self.read(magic=0, channel=-7, chainCrc=-2147483648, bodyCrc=2147483647, pos=1 << 62)
        header = decode_header(batch.records)
        self.assertEqual((header.magic, header.channel, header.pos), (0, -7, 1 << 62))
        self.assertEqual((header.chain_crc, header.body_crc), (-2147483648, 2147483647))

    def test_other_spellings(self) -> None:
        """Keys and numbers of an entry as anywhere."""
        batch = decode_response(
            RequestCode.GET,
            b"{entries:[{Body:'aGVsbG8', INDEX:'5', magic:1.0, Pos:265, term:'3', size:53, chain_crc:0,}]}",
        )
        self.assertEqual(batch, GetResponse(entries=HELLO))

    def test_missing_fields(self) -> None:
        """0, as in Java; but there is no entry without a body."""
        header = decode_header(
            self.read(magic=None, pos=None, channel=None, chainCrc=None, bodyCrc=None).records
        )
        self.assertEqual((header.magic, header.pos, header.channel), (0, 0, 0))
        self.assertEqual(decode_header(self.read(index=None, term=None).records).index, 0)
        self.refused("without a body", body=None)
        self.assertEqual(decode_header(self.read(body="", size=48).records).body_length, 0)

    def test_size_is_recomputed(self) -> None:
        """Where Java ignores it."""
        self.assertEqual(self.read(size=7), HELLO)
        self.assertEqual(self.read(size=None), HELLO)
        self.assertEqual(read_request(RequestCode.PUSH, entry=entry(size=7)).entries, HELLO)

    def test_refused(self) -> None:
        """What cannot be a record."""
        self.refused("index", index=1 << 63)
        self.refused("magic", magic=1 << 31)
        self.refused("pos", pos="x")
        self.refused("term", term=[])
        self.refused("first_index=-1", index=-1)
        self.refused("term=-1", term=-1)
        entries: Any
        for entries in ([1], ["x"], [None], {}, "x", [[]], [entry(), None]):
            self.assertRaises(BodyError, read_response, RequestCode.GET, entries=entries)

    def test_batches(self) -> None:
        """Consecutive indexes, terms that never fall."""
        read = read_response(RequestCode.GET, entries=[entry(term=2), entry(index=6)]).entries
        self.assertEqual((read.first_index, read.count, read.term), (5, 2, 3))
        for second in ({"index": 7}, {"index": 5}, {"index": 6, "term": 2}):
            self.assertRaises(
                BodyError, read_response, RequestCode.GET, entries=[entry(), entry(**second)]
            )


class PushTests(SynchronousTestCase):
    """The one message with a shape of its own."""

    def test_single_and_batch(self) -> None:
        """The same entry travels as either, and comes back unchanged."""
        single = PushEntryRequest(entries=HELLO)
        batch = attrs.evolve(single, is_batch=True)
        for request, key in ((single, "entry"), (batch, "batchEntry")):
            document = json.loads(encode_request(request))
            self.assertTrue(document[key])
            self.assertEqual(decode_request(RequestCode.PUSH, encode_request(request)), request)
        self.assertEqual(json.loads(encode_request(single))["totalSize"], 0)
        self.assertEqual(json.loads(encode_request(batch))["totalSize"], 53)

    def test_derived_keys_are_not_read(self) -> None:
        """Java recomputes them, and so do we."""
        read = read_request(
            RequestCode.PUSH, entry=entry(), batch=True, count=9, firstEntryIndex=1, lastEntryIndex=2,
            totalSize="x", batchEntry=None,
        )
        self.assertEqual(read, PushEntryRequest(entries=HELLO))

    def test_batch_wins(self) -> None:
        """With both keys, an APPEND is a batch, as in Java; COMPARE looks at C{entry} only."""
        both = {"entry": entry(index=9), "batchEntry": [entry()]}
        batch = PushEntryRequest(entries=HELLO, is_batch=True)
        self.assertEqual(read_request(RequestCode.PUSH, **both), batch)
        compare = read_request(RequestCode.PUSH, type="COMPARE", **both)
        self.assertEqual((compare.entries.first_index, compare.is_batch), (9, False))

    def test_entry_is_needed(self) -> None:
        """In all types but COMMIT, which ignores it."""
        nothing: dict[str, Any]
        for kind in ("APPEND", "COMPARE", "TRUNCATE"):
            for nothing in ({}, {"entry": None}, {"entry": {}}, {"batchEntry": []}, {"entry": None}):
                error = self.assertRaises(BodyError, read_request, RequestCode.PUSH, type=kind, **nothing)
                self.assertIn("without an entry", str(error))
                self.assertNotIn("0.4", str(error))
        for kind in ("COMPARE", "TRUNCATE"):
            self.assertRaises(BodyError, read_request, RequestCode.PUSH, type=kind, batchEntry=[entry()])
        commit = read_request(RequestCode.PUSH, type="COMMIT", commitIndex=3, entry=entry())
        self.assertEqual(commit, PushEntryRequest(type=PushType.COMMIT, commit_index=3))

    def test_size_counts_in_comparisons(self) -> None:
        """Java compares it, so an entry with a wrong one is another entry."""
        for kind in ("COMPARE", "TRUNCATE"):
            self.assertEqual(read_request(RequestCode.PUSH, type=kind, entry=entry()).entries, HELLO)
            for size in (52, 0, None):
                wrong = entry(size=size)
                self.assertRaises(BodyError, read_request, RequestCode.PUSH, type=kind, entry=wrong)

    def test_types(self) -> None:
        """By name in any case or ordinal; missing is APPEND; unknown is nothing to guess at."""
        value: Any
        for value, push_type in (("append", PushType.APPEND), (2, PushType.COMPARE)):
            self.assertIs(read_request(RequestCode.PUSH, type=value, entry=entry()).type, push_type)
        self.assertIs(read_request(RequestCode.PUSH, entry=entry()).type, PushType.APPEND)
        for value in ("SNAPSHOT", "", None, 4, -1):
            self.assertRaises(BodyError, read_request, RequestCode.PUSH, type=value, entry=entry())

    def test_0_4_keys_beside_an_entry(self) -> None:
        """An unknown key is ignored when the shape is ours."""
        read = read_request(RequestCode.PUSH, entry=entry(), preLogIndex=1)
        self.assertEqual(read, PushEntryRequest(entries=HELLO))
        read = read_request(RequestCode.PUSH, batchEntry=[entry()], preLogIndex=1)
        self.assertEqual(read, PushEntryRequest(entries=HELLO, is_batch=True))
        error = self.assertRaises(BodyError, read_request, RequestCode.PUSH, type="COMMIT", preLogIndex=1)
        self.assertIn("DLedger 0.4 peer", str(error))

    def test_several_entries_need_a_batch(self) -> None:
        """To send them as one would lose the others."""
        self.assertRaises(AssertionError, encode_request, PushEntryRequest(entries=three()))
        self.assertRaises(AssertionError, encode_request, AppendRequest(bodies=(b"a", b"b")))

    def test_answer_without_index(self) -> None:
        """COMMIT answers have none; 0 is an index."""
        self.assertIsNone(read_response(RequestCode.PUSH, count=0).index)
        self.assertNotIn(b'"index"', encode_response(PushEntryResponse()))
        self.assertIn(b'"index":0', encode_response(PushEntryResponse(index=0)))
