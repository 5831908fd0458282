# -*- test-case-name: tests.core.test_replica -*-
"""
What a step wants done, in this order. The first effect that fails drops the rest of its tuple.

Effects are instantaneous, or their outcome comes back as an input (named in each docstring).
Rule: an effect that promises something to somebody stands behind the effect that makes it true.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from protocols.wire.ledger.codes import ResponseCode
from protocols.wire.ledger.messages import EntryBatch, Request, Response


@attrs.frozen
class Effect:
    """Something to do."""


@attrs.frozen(kw_only=True)
class PersistTermVote(Effect):
    """
    Make term and vote durable (file, rename, directory: all fsynced) before anything that follows.

    Failure comes back as C{StoreFailed}.
    """

    term: int
    voted_for: str | None


@attrs.frozen(kw_only=True)
class WriteBodies(Effect):
    """
    Leader's append: pack headers for C{bodies} behind the end and write them.

    Outcome: C{EntriesWritten} (with positions), C{WriteRefused} or C{StoreFailed}, before any
    other input.
    """

    first_index: int
    term: int
    bodies: tuple[bytes, ...]


@attrs.frozen(kw_only=True)
class WriteEntries(Effect):
    """
    Follower's append: check index, pos and CRCs of every record, then write the bytes as they are.

    Outcome: C{EntriesWritten}, C{WriteRefused} or C{StoreFailed}, before any other input.
    """

    entries: EntryBatch


@attrs.frozen(kw_only=True)
class TruncateLedger(Effect):
    """
    Make the single entry the last one: cut behind it and zero the tail; write it if it is not
    there; start anew at its C{pos} if the ledger does not reach it. Durable when it returns.

    Outcome: C{LedgerTruncated}, C{WriteRefused} or C{StoreFailed}, before any other input.

    @ivar anew: drop everything and start with this entry, even if it would fit behind the end
        (what stands there is not known to be the leader's).
    """

    entries: EntryBatch
    anew: bool = False


@attrs.frozen(kw_only=True)
class FlushLedger(Effect):
    """
    Bring every entry up to C{end_index} to stable storage, off the reactor.

    Outcome, later: C{EntriesFlushed} with the same C{flush_id}, or C{StoreFailed}. At most one is
    under way at a time.
    """

    flush_id: int
    end_index: int


@attrs.frozen(kw_only=True)
class RecordCommit(Effect):
    """C{committed_index} rose: readers may see up to here. The store notes it at its leisure."""

    committed_index: int


@attrs.frozen(kw_only=True)
class EndRepair(Effect):
    """A leader has brought a damaged member past its old end: clear the mark durably."""


@attrs.frozen(kw_only=True)
class SendRequest(Effect):
    """
    Send a request to a peer, in order with others to that peer.

    Outcome, later: C{ResponseReceived} or C{RequestFailed} with the same C{request_id}. The core
    keeps its own deadline and forgets the request when it has passed.
    """

    peer_id: str
    request_id: int
    request: Request


@attrs.frozen(kw_only=True)
class Reply(Effect):
    """Answer the request that came with C{token}; a token that is gone is ignored."""

    token: int
    response: Response


@attrs.frozen(kw_only=True)
class AnswerAppend(Effect):
    """
    One proposal's outcome.

    SUCCESS: committed. WAIT_QUORUM_ACK_TIMEOUT and TERM_CHANGED: written here, may still commit
    (unknown). Every other code: not in the log.

    @ivar first_index, pos: of the first body; -1 when nothing was written.
    @ivar count: number of bodies.
    """

    token: int
    code: ResponseCode
    term: int
    count: int
    first_index: int = -1
    pos: int = -1
    leader_id: str | None = None


@attrs.frozen(kw_only=True)
class AnswerRead(Effect):
    """
    A linearizable read's outcome: on SUCCESS, every entry up to C{read_index} may be shown.
    """

    token: int
    code: ResponseCode
    read_index: int = -1
    leader_id: str | None = None


@attrs.frozen(kw_only=True)
class Report(Effect):
    """
    Something an operator may want to know. The driver turns it into a log event and a metric.

    @ivar event: a constant, kebab-case name (C{role-changed}, C{dispatcher-state}, ...).
    """

    event: str
    facts: Mapping[str, object] = attrs.Factory(dict)


@attrs.frozen(kw_only=True)
class StopMember(Effect):
    """This member must not go on. C{clean}: it was asked to stop; else something broke."""

    reason: str
    clean: bool = False
