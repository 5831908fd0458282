# -*- test-case-name: tests.wire.test_messages -*-
"""All messages by their codes."""

from __future__ import annotations

from collections.abc import Mapping

from protocols.wire.ledger.codes import RequestCode
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
    Response,
    SequenceRequest,
    SequenceResponse,
    VoteRequest,
    VoteResponse,
)

#: Request code to the classes of the request and of its answer.
MESSAGES: Mapping[RequestCode, tuple[type[Request], type[Response]]] = {
    RequestCode.METADATA: (MetadataRequest, MetadataResponse),
    RequestCode.APPEND: (AppendRequest, AppendResponse),
    RequestCode.GET: (GetRequest, GetResponse),
    RequestCode.PULL: (PullRequest, PullResponse),
    RequestCode.VOTE: (VoteRequest, VoteResponse),
    RequestCode.HEART_BEAT: (HeartBeatRequest, HeartBeatResponse),
    RequestCode.PUSH: (PushEntryRequest, PushEntryResponse),
    RequestCode.LEADERSHIP_TRANSFER: (LeadershipTransferRequest, LeadershipTransferResponse),
    RequestCode.MEMBERSHIP: (MembershipRequest, MembershipResponse),
    RequestCode.APPEND_IF: (AppendIfRequest, AppendIfResponse),
    RequestCode.APPEND_ONCE: (AppendOnceRequest, AppendOnceResponse),
    RequestCode.SUBMIT: (SubmitRequest, SubmitResponse),
    RequestCode.QUERY: (QueryRequest, QueryResponse),
    RequestCode.READER: (ReaderRequest, ReaderResponse),
    RequestCode.SNAPSHOT: (SnapshotRequest, SnapshotResponse),
    RequestCode.SKIP: (SkipRequest, SkipResponse),
    RequestCode.BEGIN_STATE: (BeginStateRequest, BeginStateResponse),
    RequestCode.SEQUENCE: (SequenceRequest, SequenceResponse),
}
