# -*- test-case-name: tests.wire.test_messages -*-
"""
The messages of the protocol as values, independent of their encoding.

Field names follow Java DLedger in snake_case. Messages are immutable. Fields that Java does not know
(they have safe defaults here and become extra JSON keys, which Java ignores) are marked I{ours}.
An index counts entries and is inclusive; -1 means "none". A C{term} of -1 means "not filled".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, TypedDict, final

import attrs

from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.codes import Consistency, PushType, RequestCode, VoteResult
from protocols.wire.values import value_class

#: A role of clients; L{dledger.values.rights.ClientRole} has the same.
Role = Literal["", "read", "append", "admin"]


class MessageFields(TypedDict):
    """The fields of every L{LedgerMessage}, for code that fills those of many kinds."""

    group: str
    remote_id: str
    local_id: str | None
    leader_id: str | None
    term: int
    wire_version: int


@value_class(kw_only=True)
class LedgerMessage:
    """
    Base fields of every request and response.

    @ivar group: name of the raft group.
    @ivar remote_id: member id that a request is addressed to.
    @ivar local_id: member id of the sender; empty from clients.
    @ivar leader_id: leader known to the sender (in a vote: the candidate).
    @ivar term: the sender's term, or the term that an answer is for.
    @ivar wire_version: I{ours}: native wire version that the sender understands; 0 if not advertised.
    """

    group: str | None = None
    remote_id: str | None = None
    local_id: str | None = None
    leader_id: str | None = None
    term: int = -1
    wire_version: int = 0


@value_class(kw_only=True)
class Request(LedgerMessage):
    """
    A request.

    @cvar kind: its code on the wire.
    @cvar role: that a client needs; empty: none. METADATA needs none because clients find the leader with it,
        the requests of members because the connections that make them are judged.
    @cvar price: of one in a native frame, in appends of one body.
    """

    kind: ClassVar[RequestCode]
    role: ClassVar[Role]
    price: ClassVar[int] = 1


@value_class(kw_only=True)
class Response(LedgerMessage):
    """An answer. C{kind} is the code of the request that it answers."""

    kind: ClassVar[RequestCode]
    code: ResponseCode = ResponseCode.SUCCESS


@value_class(kw_only=True)
class MetadataRequest(Request):
    """
    Ask for the members and the leader.

    @ivar group_id: I{ours}, only in JSON: the id of the sender's group, if it is a member and knows it.
    @ivar members: I{ours}, only in JSON: ids of the members in the sender's list, C{n0;n1;n2} in order; empty
        if it is not a member, or does not say.
    @ivar configuration: I{ours}, only in JSON: as of L{MetadataResponse}.
    @ivar lineage, met_lineage: I{ours}, only in JSON: the sender's directory and process, and those of the
        receiver as the sender met them last (L{dledger.values.ledger.lineage}); empty if it is not a member,
        or does not say.
    @ivar token: I{ours}, only in JSON: a client's, see L{dledger.base.serving.tokens}; empty for none. It is
        in no C{repr}.
    """

    kind: ClassVar[RequestCode] = RequestCode.METADATA
    role: ClassVar[Role] = ""
    price: ClassVar[int] = 4
    group_id: str = ""
    members: str = ""
    configuration: str = ""
    lineage: str = ""
    met_lineage: str = ""
    token: str = attrs.field(default="", repr=False)


@value_class(kw_only=True)
class MetadataResponse(Response):
    """
    @ivar peers: member id to C{host:port}.
    @ivar begin_index, end_index, committed_index: I{ours}: this member's ledger; -2 if not given.
    @ivar role: I{ours}: role of the answering member, lower case; empty if not given.
    @ivar admin: I{ours}, only in JSON: C{host:port} of the member's HTTP administration; empty without one.
    @ivar group_id, group_term, is_group_known: I{ours}, only in JSON: the id of the group, see
        L{dledger.values.ledger.group_name.GroupName}.
    @ivar configuration: I{ours}, only in JSON: the memberships of the group's log, see
        L{protocols.wire.ledger.memberships.encode_reported}; empty in a group that never changed its members.
    @ivar health: I{ours}, only in JSON: reason why it does not serve; empty if it serves, or does not say.
    @ivar lineage, met_lineage: I{ours}, only in JSON, to members: as of L{MetadataRequest}.
    @ivar machine: I{ours}, only in JSON: see L{protocols.wire.ledger.machines.decode_reported_machine}.
    @ivar has_times: I{ours}, only in JSON: the log has time entries, or will have
        (L{protocols.wire.ledger.own.time_entries}).
    @ivar time_resets: I{ours}, only in JSON: the resets of these times, see
        L{protocols.wire.ledger.own.time_entries.decode_resets}.
    @ivar state_digest: I{ours}, only in JSON: the digest of the state of the group that the member took last:
        index and term of the entry, and 16 hexadecimal digits, with C{:} between them; empty: it took none.
    @ivar is_rival: I{ours}, only in JSON: another process than the one that asked answers at the address of
        that member.
    @ivar version: I{ours}, only in JSON: of the member's software; empty if not given.
    """

    kind: ClassVar[RequestCode] = RequestCode.METADATA
    peers: Mapping[str, str] = attrs.Factory(dict)
    begin_index: int = -2
    end_index: int = -2
    committed_index: int = -2
    role: str = ""
    admin: str = ""
    health: str = ""
    group_id: str = ""
    group_term: int = -1
    is_group_known: bool = False
    configuration: str = ""
    lineage: str = ""
    met_lineage: str = ""
    is_rival: bool = False
    machine: str = ""
    has_times: bool = False
    time_resets: str = ""
    state_digest: str = ""
    version: str = ""


@value_class(kw_only=True)
class AppendRequest(Request):
    """
    @ivar bodies: one body per entry. A remoting frame carries exactly one; a request without a body
        (null in Java) has an empty tuple.
    """

    kind: ClassVar[RequestCode] = RequestCode.APPEND
    role: ClassVar[Role] = "append"
    bodies: tuple[bytes, ...] = ()


@value_class(kw_only=True)
class AppendResponse(Response):
    """
    @ivar index: index of the first entry; -1 unless SUCCESS (or 501, 502: the index that may commit).
    @ivar pos: stream offset in bytes of the first entry's record; -1 unless SUCCESS.
    @ivar count: I{ours}: number of entries of the answered append.
    """

    kind: ClassVar[RequestCode] = RequestCode.APPEND
    index: int = -1
    pos: int = -1
    count: int = 1


@value_class(kw_only=True)
class AppendIfRequest(Request):
    """
    Append a body if the log ends at an index.

    @ivar body: None: the request has none, and is refused.
    @ivar expected_end: last index of the leader's log when it takes the body; -1: the log is empty.
    """

    kind: ClassVar[RequestCode] = RequestCode.APPEND_IF
    role: ClassVar[Role] = "append"
    body: bytes | None = None
    expected_end: int = -1


@value_class(kw_only=True)
class AppendIfResponse(AppendResponse):
    """@ivar end_index: CONFLICT: last index of the leader's log; else -2."""

    kind: ClassVar[RequestCode] = RequestCode.APPEND_IF
    end_index: int = -2


@value_class(kw_only=True)
class AppendOnceRequest(Request):
    """
    Append bodies of a producer, each once however often it is sent.

    @ivar producer: its id, 1 to 64 bytes of UTF-8.
    @ivar sequence: of the first body; those of the others follow. The first one of a producer is 0.
    @ivar bodies: one per entry. A remoting frame carries exactly one.
    @ivar hidden: numbers of the bodies that readers leave out, rising from 0.
    """

    kind: ClassVar[RequestCode] = RequestCode.APPEND_ONCE
    role: ClassVar[Role] = "append"
    producer: str = ""
    sequence: int = 0
    bodies: tuple[bytes, ...] = ()
    hidden: tuple[int, ...] = ()


@value_class(kw_only=True)
class AppendOnceResponse(AppendResponse):
    """
    @ivar count: number of bodies that are answered, from the first one: SUCCESS may answer fewer than were
        sent, the rest is sent again.
    @ivar is_repeated: they were in the log before.
    @ivar last_sequence: SEQUENCE_GAP, SEQUENCE_FORGOTTEN, SEQUENCE_TAKEN: the last one of the producer;
        else -1. With SEQUENCE_TAKEN C{index} is that of the first body that is there.
    """

    kind: ClassVar[RequestCode] = RequestCode.APPEND_ONCE
    is_repeated: bool = False
    last_sequence: int = -1


@value_class(kw_only=True)
class BeginStateRequest(Request):
    """
    Let the state of the group begin anew, see docs/exactly-once.md.

    @ivar insists: also if a member has the state: what it says of producers and readers is lost.
    """

    kind: ClassVar[RequestCode] = RequestCode.BEGIN_STATE
    role: ClassVar[Role] = "admin"
    price: ClassVar[int] = 8
    insists: bool = False


@value_class(kw_only=True)
class BeginStateResponse(Response):
    """
    @ivar index: of the order in the log; -1 unless SUCCESS.
    @ivar reason: why it is refused.
    """

    kind: ClassVar[RequestCode] = RequestCode.BEGIN_STATE
    index: int = -1
    reason: str = ""


@value_class(kw_only=True)
class ResetTimesRequest(Request):
    """Let the times of the log go on from what a majority of the clocks show, see docs/times.md."""

    kind: ClassVar[RequestCode] = RequestCode.RESET_TIMES
    role: ClassVar[Role] = "admin"
    price: ClassVar[int] = 8


@value_class(kw_only=True)
class ResetTimesResponse(BeginStateResponse):
    """Fields as of L{BeginStateResponse}."""

    kind: ClassVar[RequestCode] = RequestCode.RESET_TIMES


@value_class(kw_only=True)
class SequenceRequest(Request):
    """
    Ask the leader for the last sequence of a producer, linearizably.

    @ivar producer: its id.
    """

    kind: ClassVar[RequestCode] = RequestCode.SEQUENCE
    role: ClassVar[Role] = "read"
    price: ClassVar[int] = 2
    producer: str = ""


@value_class(kw_only=True)
class SequenceResponse(Response):
    """
    UNKNOWN_PRODUCER: the log has never had a sequence of this producer. PRODUCER_FORGOTTEN: it may have had
    some.

    @ivar last_sequence, index: SUCCESS: the last one that is committed, and the index of its entry, which may
        have expired; else -1.
    @ivar reason: why there is none.
    """

    kind: ClassVar[RequestCode] = RequestCode.SEQUENCE
    last_sequence: int = -1
    index: int = -1
    reason: str = ""


@value_class(kw_only=True)
class ReaderRequest(Request):
    """
    Keep the place of a named reader, see docs/readers.md.

    @ivar does: C{take} a part of the log to read; C{renew} its lease; C{commit} that its entries up to an
        index are done; C{release} it; C{move} the reader to an index; C{forget} it; C{list} all readers.
    @ivar name: of the reader; to list: those after this name are listed.
    @ivar holder: to take: id of the process.
    @ivar token: to renew, commit and release: that of the part.
    @ivar index: to commit: the last entry that is done; to move: the next one; to take: where a reader begins
        that the group does not know, see L{dledger.node.requests.reader_rules.begin_of}.
    @ivar lease_ms: to take: how long the part is kept without a word from its process, milliseconds.
    @ivar share: to take: entries of the part at most; 0: the part goes on with the log.
    @ivar secret: to take, renew, commit and release: known to the process alone, by which it is known again.
    """

    kind: ClassVar[RequestCode] = RequestCode.READER
    role: ClassVar[Role] = "append"
    price: ClassVar[int] = 8
    does: str = ""
    name: str = ""
    holder: str = ""
    token: int = -1
    index: int = 0
    lease_ms: int = 0
    share: int = 0
    secret: str = ""

    @property
    def is_change(self) -> bool:
        """Whether it changes the reader for all of its processes."""
        return self.does in ("move", "forget")


@value_class(kw_only=True)
class ReaderResponse(Response):
    """
    @ivar token: of the part; -1: none is given, because there is nothing to read.
    @ivar begin_index, end_index: of the part, C{end_index} is after its last entry; -1 without one.
    @ivar next_index: every entry before this one is done; -1 unless SUCCESS.
    @ivar committed_index: of the leader.
    @ivar readers: to list: the first ones of them, see L{protocols.wire.ledger.readers.decode_readers}; else
        None.
    @ivar more: to list: number of readers after these.
    @ivar reason: why it is refused.
    """

    kind: ClassVar[RequestCode] = RequestCode.READER
    token: int = -1
    begin_index: int = -1
    end_index: int = -1
    next_index: int = -1
    committed_index: int = -1
    readers: bytes | None = None
    more: int = 0
    reason: str = ""


@value_class(kw_only=True)
class GetRequest(Request):
    """
    @ivar begin_index: index of the requested entry; None if the request did not give it.
    @ivar max_size: written by Java, ignored.
    @ivar consistency: I{ours}.
    """

    kind: ClassVar[RequestCode] = RequestCode.GET
    role: ClassVar[Role] = "read"
    price: ClassVar[int] = 2
    begin_index: int | None = None
    max_size: int = 0
    consistency: Consistency = Consistency.LINEARIZABLE


@value_class(kw_only=True)
class GetResponse(Response):
    """
    @ivar entries: a batch of one entry, or None.
    """

    kind: ClassVar[RequestCode] = RequestCode.GET
    entries: EntryBatch | None = None


#: C{node_id} of a PULL for records read from the files without checks: the client checks them.
UNCHECKED = "unchecked"


@value_class(kw_only=True)
class PullRequest(Request):
    """
    A range of committed entries as raw records. Native wire only; over remoting it is answered 303.

    @ivar node_id: a field of Java's; here only L{UNCHECKED} has a meaning, and a member may ignore it.
    @ivar begin_index: first requested index.
    @ivar end_index: last requested index, inclusive; -1 for all committed entries.
    @ivar max_bytes: maximum bytes of records; one entry is always sent.
    @ivar wait_ms: maximum wait for a first entry before an empty answer, milliseconds.
    """

    kind: ClassVar[RequestCode] = RequestCode.PULL
    role: ClassVar[Role] = "read"
    price: ClassVar[int] = 4
    node_id: str | None = None
    begin_index: int = -1
    end_index: int = -1
    max_bytes: int = 1 << 20
    wait_ms: int = 0
    consistency: Consistency = Consistency.COMMITTED


@value_class(kw_only=True)
class PullResponse(Response):
    """
    @ivar entries: the records; None if there are none (yet).
    @ivar ledger_begin_index: first index that the member still has.
    @ivar committed_index: highest index that the member knows to be committed.
    """

    kind: ClassVar[RequestCode] = RequestCode.PULL
    entries: EntryBatch | None = None
    ledger_begin_index: int = -1
    committed_index: int = -1


@value_class(kw_only=True)
class VoteRequest(Request):
    """
    @ivar ledger_end_index, ledger_end_term: the candidate's last entry; -1 if it has none.
    @ivar pre_vote: I{ours}: asks whether a vote would be given, without binding the voter. Never sent
        to a peer that did not advertise a wire version: Java would count it as a vote.
    @ivar transfer: I{ours}: the old leader asked for this election; stickiness does not apply.
    """

    kind: ClassVar[RequestCode] = RequestCode.VOTE
    role: ClassVar[Role] = ""
    ledger_end_index: int = -1
    ledger_end_term: int = -1
    pre_vote: bool = False
    transfer: bool = False


@value_class(kw_only=True)
class VoteResponse(Response):
    """
    @ivar vote_result: the voter's answer; C{term} is the voter's term.
    @ivar pre_vote: I{ours}: this answers a pre-vote.
    @ivar clock_ms: I{ours}: what the clock of the voter shows, milliseconds since 1970; -1: it does not say.
    """

    kind: ClassVar[RequestCode] = RequestCode.VOTE
    vote_result: VoteResult = VoteResult.UNKNOWN
    pre_vote: bool = False
    clock_ms: int = -1


@value_class(kw_only=True)
class HeartBeatRequest(Request):
    """
    @ivar heart_beat_interval_ms: I{ours}: this leader's interval, milliseconds; 0 if not given (Java).
    """

    kind: ClassVar[RequestCode] = RequestCode.HEART_BEAT
    role: ClassVar[Role] = ""
    heart_beat_interval_ms: int = 0


@value_class(kw_only=True)
class HeartBeatResponse(Response):
    """@ivar clock_ms: I{ours}: as of L{VoteResponse}."""

    kind: ClassVar[RequestCode] = RequestCode.HEART_BEAT
    clock_ms: int = -1


@final
@value_class(kw_only=True)
class PushEntryRequest(Request):
    """
    @ivar type: COMPARE, TRUNCATE, APPEND or COMMIT.
    @ivar commit_index: the leader's committed index when the push was made, in every type.
    @ivar entries: one entry for COMPARE and TRUNCATE, one or more for APPEND, None for COMMIT.
    @ivar is_batch: in remoting bodies, whether entries are written as C{batchEntry}, not C{entry}.
    """

    kind: ClassVar[RequestCode] = RequestCode.PUSH
    role: ClassVar[Role] = ""
    type: PushType = PushType.APPEND
    commit_index: int = -1
    entries: EntryBatch | None = None
    is_batch: bool = False


@value_class(kw_only=True)
class PushEntryResponse(Response):
    """
    A follower's answer; C{term} echoes the request's term.

    @ivar index: first index of the request; None for COMMIT.
    @ivar count: number of entries in the request.
    @ivar begin_index, end_index: the follower's ledger, inclusive; -1 if it is empty.
    """

    kind: ClassVar[RequestCode] = RequestCode.PUSH
    index: int | None = None
    count: int = 0
    begin_index: int = 0
    end_index: int = 0


@value_class(kw_only=True)
class LeadershipTransferRequest(Request):
    """
    @ivar transfer_id: member that gives leadership up.
    @ivar transferee_id: member that takes leadership.
    @ivar take_leadership_ledger_index: the taker must hold this index first; 0 from clients.
    """

    kind: ClassVar[RequestCode] = RequestCode.LEADERSHIP_TRANSFER
    role: ClassVar[Role] = "admin"
    transfer_id: str | None = None
    transferee_id: str | None = None
    take_leadership_ledger_index: int = 0


@value_class(kw_only=True)
class LeadershipTransferResponse(Response):
    """C{term} is the new term on SUCCESS."""

    kind: ClassVar[RequestCode] = RequestCode.LEADERSHIP_TRANSFER


@value_class(kw_only=True)
class MembershipRequest(Request):
    """
    I{Ours}, only in JSON: change the members of the group.

    @ivar change: of L{dledger.values.ledger.membership.CHANGES}.
    @ivar member_id: the member that is added, promoted, removed, or moved to another address.
    @ivar address: C{host:port} of a member that is added or moved.
    @ivar is_dry: only say what would happen.
    @ivar is_forced: also if no quorum of the new members is known to be alive and caught up.
    """

    kind: ClassVar[RequestCode] = RequestCode.MEMBERSHIP
    role: ClassVar[Role] = "admin"
    change: str = ""
    member_id: str = ""
    address: str = ""
    is_dry: bool = False
    is_forced: bool = False


@value_class(kw_only=True)
class MembershipResponse(Response):
    """
    @ivar reason: why it was refused; or what has happened, or would happen.
    @ivar voters, learners: the members then; empty unless SUCCESS.
    @ivar index: of the configuration entry; -1 if none was written.
    """

    kind: ClassVar[RequestCode] = RequestCode.MEMBERSHIP
    reason: str = ""
    voters: Mapping[str, str] = attrs.Factory(dict)
    learners: Mapping[str, str] = attrs.Factory(dict)
    index: int = -1
