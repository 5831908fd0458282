# -*- test-case-name: tests.wire.test_push,tests.wire.test_json_bodies -*-
"""Hypothesis strategies for every message, and the settings under which they run."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.bounds import INDEX_MAX, POSITION_MAX, TERM_MAX
from protocols.wire.ledger.codes import Consistency, PushType, RequestCode, VoteResult
from protocols.wire.ledger.entry import EntryHeader, encode_header
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
    LeadershipTransferRequest,
    LeadershipTransferResponse,
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
from protocols.wire.ledger.push_layout import KINDS

#: The same examples in every run, however slow the machine is.
house = settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

ints = st.integers(-(1 << 31), (1 << 31) - 1)
longs = st.integers(-(1 << 63), (1 << 63) - 1)
#: Numbers within the bounds of the protocol.
terms = st.integers(-(1 << 63), TERM_MAX)
indexes = st.integers(-(1 << 63), INDEX_MAX)
positions = st.integers(-(1 << 63), POSITION_MAX)
counts = st.integers(0, (1 << 31) - 1)
#: Anything but halves of surrogate pairs.
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
names = st.none() | texts
bodies = st.binary(max_size=40)


@st.composite
def batches(draw: Any, count_min: int = 1, count_max: int = 5) -> EntryBatch:
    """Sound batches: consecutive indexes, terms that never fall; positions and checksums are anything."""
    count = draw(st.integers(count_min, count_max))
    first_index = draw(st.integers(0, INDEX_MAX - count))
    entry_terms = sorted(draw(st.lists(st.integers(0, TERM_MAX), min_size=count, max_size=count)))
    records = b""
    for number, term in enumerate(entry_terms):
        body = draw(bodies)
        header = EntryHeader(
            magic=draw(ints), size=48 + len(body), index=first_index + number, term=term, pos=draw(positions),
            channel=draw(ints), chain_crc=draw(ints), body_crc=draw(ints), body_length=len(body),
        )
        records += encode_header(header) + body
    return EntryBatch(first_index=first_index, count=count, term=entry_terms[-1], records=records)


def _base() -> dict[str, st.SearchStrategy[Any]]:
    return {
        "group": names, "remote_id": names, "local_id": names, "leader_id": names, "term": terms,
        "wire_version": counts,
    }


def _answer() -> dict[str, st.SearchStrategy[Any]]:
    return {**_base(), "code": st.sampled_from(ResponseCode)}


def _pushes() -> st.SearchStrategy[PushEntryRequest]:
    one, several = batches(count_max=1), batches()
    anyhow = {**_base(), "commit_index": indexes}
    return st.one_of(
        st.builds(PushEntryRequest, **anyhow, type=st.just(PushType.APPEND), entries=one),
        st.builds(
            PushEntryRequest, **anyhow, type=st.just(PushType.APPEND), entries=several, is_batch=st.just(True)
        ),
        st.builds(PushEntryRequest, **anyhow, type=st.just(PushType.COMMIT)),
        st.builds(
            PushEntryRequest,
            **anyhow,
            type=st.sampled_from((PushType.COMPARE, PushType.TRUNCATE)),
            entries=one,
        ),
    )


_consistencies = st.sampled_from(Consistency)
_some = st.none() | batches()

#: Requests as both formats can carry them: an APPEND has at most one body.
REQUESTS: dict[RequestCode, st.SearchStrategy[Any]] = {
    RequestCode.METADATA: st.builds(MetadataRequest, **_base()),
    RequestCode.APPEND: st.builds(
        AppendRequest, **_base(), bodies=st.lists(bodies, max_size=1).map(tuple)
    ),
    RequestCode.GET: st.builds(
        GetRequest, **_base(), begin_index=st.none() | longs, max_size=ints, consistency=_consistencies
    ),
    RequestCode.PULL: st.builds(
        PullRequest, **_base(), node_id=names, begin_index=longs, end_index=longs, max_bytes=ints,
        wait_ms=ints, consistency=_consistencies,
    ),
    RequestCode.VOTE: st.builds(
        VoteRequest, **_base(), ledger_end_index=indexes, ledger_end_term=terms, pre_vote=st.booleans(),
        transfer=st.booleans(),
    ),
    RequestCode.HEART_BEAT: st.builds(HeartBeatRequest, **_base(), heart_beat_interval_ms=counts),
    RequestCode.PUSH: _pushes(),
    RequestCode.LEADERSHIP_TRANSFER: st.builds(
        LeadershipTransferRequest, **_base(), transfer_id=names, transferee_id=names,
        take_leadership_ledger_index=indexes,
    ),
    RequestCode.APPEND_ONCE: st.builds(
        AppendOnceRequest, **_base(), producer=texts, sequence=longs,
        bodies=st.lists(bodies, max_size=1).map(tuple),
    ),
}

RESPONSES: dict[RequestCode, st.SearchStrategy[Any]] = {
    RequestCode.METADATA: st.builds(
        MetadataResponse, **_answer(), peers=st.dictionaries(texts, texts, max_size=3), begin_index=indexes,
        end_index=indexes, committed_index=indexes, role=texts,
    ),
    RequestCode.APPEND: st.builds(AppendResponse, **_answer(), index=indexes, pos=positions, count=ints),
    RequestCode.GET: st.builds(GetResponse, **_answer(), entries=_some),
    RequestCode.PULL: st.builds(
        PullResponse, **_answer(), entries=_some, ledger_begin_index=indexes, committed_index=indexes
    ),
    RequestCode.VOTE: st.builds(
        VoteResponse, **_answer(), vote_result=st.sampled_from(VoteResult), pre_vote=st.booleans(),
        clock_ms=longs,
    ),
    RequestCode.HEART_BEAT: st.builds(HeartBeatResponse, **_answer(), clock_ms=longs),
    RequestCode.PUSH: st.builds(
        PushEntryResponse, **_answer(), index=st.none() | indexes, count=ints, begin_index=indexes,
        end_index=indexes,
    ),
    RequestCode.LEADERSHIP_TRANSFER: st.builds(LeadershipTransferResponse, **_answer()),
    RequestCode.APPEND_ONCE: st.builds(
        AppendOnceResponse, **_answer(), index=indexes, pos=positions, count=ints, is_repeated=st.booleans(),
        last_sequence=longs,
    ),
}

#: Messages that only JSON carries.
JSON_REQUESTS = {
    RequestCode.MEMBERSHIP: st.builds(
        MembershipRequest, **_base(), change=texts, member_id=texts, address=texts, is_dry=st.booleans(),
        is_forced=st.booleans(),
    ),
    RequestCode.APPEND_IF: st.builds(
        AppendIfRequest, **_base(), body=st.none() | bodies, expected_end=indexes
    ),
    RequestCode.SUBMIT: st.builds(
        SubmitRequest, **_base(), command=st.none() | bodies, producer=texts, sequence=longs,
        is_again=st.booleans(),
    ),
    RequestCode.QUERY: st.builds(
        QueryRequest, **_base(), query=st.none() | bodies, max_age_ms=ints
    ),
    RequestCode.READER: st.builds(
        ReaderRequest, **_base(), does=texts, name=texts, holder=texts, token=longs, index=longs,
        lease_ms=ints, share=ints,
    ),
    RequestCode.SKIP: st.builds(SkipRequest, **_base(), index=indexes),
    RequestCode.BEGIN_STATE: st.builds(BeginStateRequest, **_base(), insists=st.booleans()),
    RequestCode.RESET_TIMES: st.builds(ResetTimesRequest, **_base()),
    RequestCode.SEQUENCE: st.builds(SequenceRequest, **_base(), producer=texts),
    RequestCode.SNAPSHOT: st.builds(
        SnapshotRequest, **_base(), machine=texts, machine_version=ints, oldest_version=ints,
        index=indexes, index_term=indexes,
        offset=indexes,
    ),
}
JSON_RESPONSES = {
    RequestCode.MEMBERSHIP: st.builds(
        MembershipResponse, **_answer(), reason=texts, index=indexes,
        voters=st.dictionaries(texts, texts, max_size=3), learners=st.dictionaries(texts, texts, max_size=3),
    ),
    RequestCode.APPEND_IF: st.builds(
        AppendIfResponse, **_answer(), index=indexes, pos=positions, count=ints, end_index=indexes
    ),
    RequestCode.SUBMIT: st.builds(
        SubmitResponse, **_answer(), index=indexes, result=st.none() | bodies, reason=texts,
        last_sequence=indexes,
    ),
    RequestCode.QUERY: st.builds(
        QueryResponse, **_answer(), result=st.none() | bodies, applied_index=indexes, age_ms=ints,
        reason=texts,
    ),
    RequestCode.READER: st.builds(
        ReaderResponse, **_answer(), token=longs, begin_index=longs, end_index=longs, next_index=longs,
        committed_index=longs, readers=st.none() | bodies, more=ints, reason=texts,
    ),
    RequestCode.SKIP: st.builds(SkipResponse, **_answer(), index=indexes, reason=texts),
    RequestCode.BEGIN_STATE: st.builds(BeginStateResponse, **_answer(), index=indexes, reason=texts),
    RequestCode.RESET_TIMES: st.builds(ResetTimesResponse, **_answer(), index=indexes, reason=texts),
    RequestCode.SEQUENCE: st.builds(
        SequenceResponse, **_answer(), last_sequence=indexes, index=indexes, reason=texts
    ),
    RequestCode.SNAPSHOT: st.builds(
        SnapshotResponse, **_answer(), index=indexes, index_term=indexes, size=indexes, offset=indexes,
        data=st.none() | bodies, crc=st.integers(0, 0xFFFF_FFFF), reason=texts,
    ),
}

requests: st.SearchStrategy[Request] = st.one_of(*REQUESTS.values())
responses: st.SearchStrategy[Response] = st.one_of(*RESPONSES.values())
json_requests: st.SearchStrategy[Request] = st.one_of(*REQUESTS.values(), *JSON_REQUESTS.values())
json_responses: st.SearchStrategy[Response] = st.one_of(*RESPONSES.values(), *JSON_RESPONSES.values())

for _table, _kinds in (
    (REQUESTS, KINDS.keys()), (RESPONSES, KINDS.keys()),
    (JSON_REQUESTS, MESSAGES.keys() - KINDS.keys()), (JSON_RESPONSES, MESSAGES.keys() - KINDS.keys()),
):
    assert _table.keys() == _kinds, f"tests/wire/values.py: give an example of {_table.keys() ^ _kinds}"
