# -*- test-case-name: tests.core.test_replica -*-
"""
The effects of a step, in the order to run them. If one fails, the rest of its tuple is dropped.

Effects complete at once, or their outcome comes back as an input (named in each docstring).
Rule: an effect that makes a promise to a peer or client comes after the effect that makes it true.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from dledger.values.ledger.group_name import GroupName
from dledger.values.ledger.membership import Membership
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.messages import Request, Response
from protocols.wire.values import value_class


@value_class
class Effect:
    """An action for the driver."""


@value_class(kw_only=True)
class PersistTermVote(Effect):
    """
    Make term and vote durable (file, rename, directory: all fsynced) before anything that follows.

    A failure comes back as C{StoreFailed}.
    """

    term: int
    voted_for: str | None


@value_class(kw_only=True)
class WriteBodies(Effect):
    """
    A leader's append: pack a header for each of C{bodies} and write the records after the end.

    @ivar channels: of each record; none: 0 for all.

    Outcome: C{EntriesWritten} (with positions), C{WriteRefused} or C{StoreFailed}, before any
    other input.
    """

    first_index: int
    term: int
    bodies: tuple[bytes, ...]
    channels: tuple[int, ...] = ()


@value_class(kw_only=True)
class WriteConfiguration(Effect):
    """
    A leader's configuration entry: as C{WriteBodies} with one body; the view has its membership then.

    Outcome: as of C{WriteBodies}.
    """

    first_index: int
    term: int
    membership: Membership


@value_class(kw_only=True)
class WriteEntries(Effect):
    """
    A follower's append: check index, pos and CRCs of every record, then write the bytes unchanged.

    Outcome: C{EntriesWritten}, C{WriteRefused} or C{StoreFailed}, before any other input.
    """

    entries: EntryBatch


@value_class(kw_only=True)
class TruncateLedger(Effect):
    """
    Make the single entry the last one: cut the ledger after it and zero the tail; write the entry
    if the ledger lacks it; if the ledger ends before its C{pos}, start again there. Durable on return.

    Outcome: C{LedgerTruncated}, C{WriteRefused} or C{StoreFailed}, before any other input.

    @ivar anew: drop all entries and begin with this one, even if it would fit after the end
        (the entries before it are not known to be the leader's).
    @ivar reported: the leader's memberships; of use when the ledger begins after configuration entries.
    """

    entries: EntryBatch
    anew: bool = False
    reported: tuple[Membership, ...] = ()


#: The effects that change the ledger; a step has one at most.
LedgerWrite = WriteBodies | WriteConfiguration | WriteEntries | TruncateLedger


@value_class(kw_only=True)
class FlushLedger(Effect):
    """
    Bring every entry up to C{end_index} to stable storage, off the reactor.

    Outcome, later: C{EntriesFlushed} with the same C{flush_id}, or C{StoreFailed}. At most one flush
    runs at a time.
    """

    flush_id: int
    end_index: int


@value_class(kw_only=True)
class RecordCommit(Effect):
    """C{committed_index} rose: readers may see entries up to it. The store records it later."""

    committed_index: int


@value_class(kw_only=True)
class LookAgain(Effect):
    """
    Look at the bytes of a hole again: records at its beginning may be sound.

    Outcome: C{HoleHandled}, with or without success, or C{StoreFailed}, before any other input.

    @ivar first_index: the first missing entry of the hole.
    """

    first_index: int


@value_class(kw_only=True)
class FillHole(Effect):
    """
    Check the records of a peer and write them into the hole that begins with them; durable when that is
    closed.

    Outcome: as of L{LookAgain}.

    @ivar is_committed: the entries are known to be committed, here and by the peer.
    """

    entries: EntryBatch
    is_committed: bool


@value_class(kw_only=True)
class EndRepair(Effect):
    """The repair of a damaged member is complete: clear its mark durably."""


@value_class(kw_only=True)
class EndUnsure(Effect):
    """A member that may have lost acknowledged entries is sure of its ledger: record it durably."""


@value_class(kw_only=True)
class RecordGroup(Effect):
    """The id of the group, as this member knows it now: record it durably."""

    name: GroupName


@value_class(kw_only=True)
class FollowMembership(Effect):
    """The members of the group are others now: connect to them."""

    membership: Membership


@value_class(kw_only=True)
class SendRequest(Effect):
    """
    Send a request to a peer; requests to one peer stay in order.

    Outcome, later: C{ResponseReceived} or C{RequestFailed} with the same C{request_id}. The core
    keeps its own deadline and forgets the request when that has passed.
    """

    peer_id: str
    request_id: int
    request: Request


@value_class
class ContinueLater(Effect):
    """
    There is more to push than one reactor turn may read.

    Outcome: C{TurnCame}, in a later turn of the reactor. At most one is under way.
    """


@value_class(kw_only=True)
class Reply(Effect):
    """Answer the request that came with C{token}; an unknown token is ignored."""

    token: int
    response: Response


@value_class(kw_only=True)
class AnswerAppend(Effect):
    """
    The outcome of one proposal.

    SUCCESS: committed. WAIT_QUORUM_ACK_TIMEOUT and TERM_CHANGED: may be in the log, may still commit
    (unknown). Every other code: not in the log.

    @ivar first_index, pos: index and pos of the first body; -1 if none was written. SEQUENCE_TAKEN: index
        of the first body that is there.
    @ivar count: number of bodies.
    @ivar end_index: CONFLICT: last index of the log; else -2.
    @ivar is_repeated: the bodies were in the log before; then C{count} may be less than was proposed.
    @ivar last_sequence: SEQUENCE_GAP, SEQUENCE_FORGOTTEN, SEQUENCE_TAKEN: the last one of the producer;
        else -1.
    """

    token: int
    code: ResponseCode
    term: int
    count: int
    first_index: int = -1
    pos: int = -1
    leader_id: str | None = None
    end_index: int = -2
    is_repeated: bool = False
    last_sequence: int = -1


@value_class(kw_only=True)
class AnswerRead(Effect):
    """
    The outcome of a linearizable read: on SUCCESS, entries up to C{read_index} may be shown.
    """

    token: int
    code: ResponseCode
    read_index: int = -1
    leader_id: str | None = None


@value_class(kw_only=True)
class Report(Effect):
    """
    An event for the operator. The driver turns it into a log event and a metric.

    @ivar event: a constant, kebab-case name (C{role-changed}, C{dispatcher-state}, ...).
    """

    event: str
    facts: Mapping[str, object] = attrs.Factory(dict)


@value_class(kw_only=True)
class StopMember(Effect):
    """This member must stop. C{clean}: the operator asked for it; otherwise an effect failed."""

    reason: str
    clean: bool = False
