# -*- test-case-name: tests.core.test_replica -*-
"""
Everything that can happen to a member, as values. C{DLedgerCore.step} takes one at a time.

An input that reports the outcome of an effect names what it is about; an outcome that answers
nothing outstanding is ignored.
"""

from __future__ import annotations

import attrs

from protocols.wire.ledger.codes import ResponseCode
from protocols.wire.ledger.messages import Request, Response


@attrs.frozen
class Input:
    """Something that happened."""


@attrs.frozen
class Ticked(Input):
    """Time passed. The only source of time-outs; fed by one LoopingCall every C{tick_ms}."""


@attrs.frozen
class Started(Input):
    """First input of a member's life, after its effects can be run."""


@attrs.frozen(kw_only=True)
class Proposal:
    """
    Bodies that one caller, or several neighbours, want appended.

    @ivar token: identifies the caller to the driver; comes back in C{AnswerAppend}.
    @ivar requests: how many appends it holds, as they are counted against the bound of pending ones.
    """

    token: int
    bodies: tuple[bytes, ...]
    requests: int = 1


@attrs.frozen
class AppendProposed(Input):
    """All proposals of one reactor turn, in order of arrival."""

    proposals: tuple[Proposal, ...]


@attrs.frozen(kw_only=True)
class EntriesWritten(Input):
    """
    Entries are in the file (page cache) and visible in the view.

    @ivar first_index, count: the entries.
    @ivar positions: stream offset of each record; empty for a follower's write.
    """

    first_index: int
    count: int
    positions: tuple[int, ...] = ()


@attrs.frozen(kw_only=True)
class WriteRefused(Input):
    """
    The store refused a write before it touched a file; nothing has changed.

    @ivar code: DISK_FULL (room may return), or INCONSISTENT_STATE (index, pos or CRC do not fit).
    @ivar reason: a sentence for the log.
    """

    code: ResponseCode
    reason: str


@attrs.frozen(kw_only=True)
class LedgerTruncated(Input):
    """The entry of a C{TruncateLedger} is the last one now, durably."""

    end_index: int
    end_term: int


@attrs.frozen(kw_only=True)
class EntriesFlushed(Input):
    """
    An fsync ended well.

    @ivar flush_id: of the C{FlushLedger} that asked for it.
    @ivar end_index: every entry up to here was on stable storage when it ended.
    """

    flush_id: int
    end_index: int


@attrs.frozen(kw_only=True)
class StoreFailed(Input):
    """A write, fsync, truncation or persist failed. The member stops: it never acks again."""

    reason: str


@attrs.frozen(kw_only=True)
class RequestReceived(Input):
    """
    A request of a peer or client for the core (VOTE, HEART_BEAT, PUSH, LEADERSHIP_TRANSFER).

    @ivar token: where the answer goes; every token is answered exactly once unless its connection
        is lost first.
    """

    token: int
    request: Request


@attrs.frozen(kw_only=True)
class RequestAbandoned(Input):
    """The connection that a queued request came on is gone: drop it, do not act on it later."""

    token: int


@attrs.frozen(kw_only=True)
class PeerDisconnected(Input):
    """
    The connection that a peer spoke on is gone, and the peer has no newer one.

    Often the first sign of a leader's death; never a proof of it.
    """

    peer_id: str


@attrs.frozen(kw_only=True)
class PeerConnected(Input):
    """
    There is a new connection to a peer. Another program may be listening there now.

    Until there is one, what an earlier connection has shown stays known.
    """

    peer_id: str


@attrs.frozen(kw_only=True)
class ResponseReceived(Input):
    """A peer's answer to C{SendRequest}."""

    peer_id: str
    request_id: int
    response: Response


@attrs.frozen(kw_only=True)
class RequestFailed(Input):
    """
    A C{SendRequest} that will not be answered: connection lost, refused, timed out.

    @ivar is_incompatible: it was answered, in another version of the protocol: nothing that is pushed
        there is understood, as long as that program runs.
    """

    peer_id: str
    request_id: int
    reason: str
    is_incompatible: bool = False


@attrs.frozen
class ReadRequested(Input):
    """
    Linearizable reads; each token comes back in C{AnswerRead} with the index that it may read.
    """

    tokens: tuple[int, ...]


@attrs.frozen(kw_only=True)
class StopRequested(Input):
    """The operator wants the member to stop: hand leadership over, answer what is pending."""
