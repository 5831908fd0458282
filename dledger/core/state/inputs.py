# -*- test-case-name: tests.core.test_replica -*-
"""
All inputs of a member, as values. C{DLedgerCore.step} takes one at a time.

An input that reports the outcome of an effect names that effect; an outcome that matches no
outstanding effect is ignored.
"""

from __future__ import annotations

from typing import NamedTuple

from dledger.values.ledger.membership import Membership
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.messages import Request, Response
from protocols.wire.values import value_class


@value_class
class Input:
    """An event that a member reacts to."""


@value_class
class Ticked(Input):
    """
    Time passed. The only source of time-outs; one LoopingCall feeds it every C{tick_ms}.

    @ivar clock_ms: what the clock of this member shows, milliseconds since 1970; -1: not known.
    """

    clock_ms: int = -1


@value_class
class Started(Input):
    """The first input of a member, fed once its effects can run."""


class Origin(NamedTuple):
    """
    Where bodies come from: the id of a producer, and the sequence of the first one.

    @ivar hidden: numbers of the bodies that readers leave out, rising from 0.
    @ivar owner: who appends, see L{protocols.wire.ledger.owners}.
    """

    producer: str
    sequence: int
    hidden: tuple[int, ...] = ()
    owner: str = ""


@value_class(kw_only=True)
class Proposal:
    """
    Bodies to append, from one caller or from several merged appends.

    @ivar token: identifies the caller to the driver; comes back in C{AnswerAppend}.
    @ivar requests: number of appends in it, counted against C{max_pending_requests_num}.
    @ivar expected_end: the bodies are taken only if no program has an entry after this one in the log;
        None: they are taken after any entry.
    @ivar origin: the bodies are taken only if the log has none of them yet; None: they have no sequence.
    @ivar channel: not 0: its single body is that of one of the log's own entries. The proposal is alone
        in its input.
    """

    token: int
    bodies: tuple[bytes, ...]
    requests: int = 1
    expected_end: int | None = None
    origin: Origin | None = None
    channel: int = 0


@value_class
class AppendProposed(Input):
    """All proposals of one reactor turn, in order of arrival."""

    proposals: tuple[Proposal, ...]


@value_class(kw_only=True)
class EntriesWritten(Input):
    """
    Entries are in the file (page cache) and visible in the view.

    @ivar first_index, count: index of the first entry, and number of entries.
    @ivar positions: stream offset of each record; empty for a follower's write.
    """

    first_index: int
    count: int
    positions: tuple[int, ...] = ()


@value_class(kw_only=True)
class WriteRefused(Input):
    """
    The store refused a write before it changed any file.

    @ivar code: DISK_FULL (space may be freed), or INCONSISTENT_STATE (index, pos or CRC do not fit).
    @ivar reason: explanation for the log.
    """

    code: ResponseCode
    reason: str


@value_class(kw_only=True)
class LedgerTruncated(Input):
    """
    The entry of a C{TruncateLedger} is now the last one, durably.

    @ivar repair_end_index: -1, or the end that this member must reach again before it votes: it has cut
        damaged entries that it may have acknowledged.
    """

    end_index: int
    end_term: int
    repair_end_index: int = -1


@value_class(kw_only=True)
class HoleHandled(Input):
    """
    The attempt to fill a hole of the ledger has ended.

    @ivar reason: why the hole is as large as before; empty if it has shrunk.
    """

    reason: str = ""


@value_class(kw_only=True)
class EntriesFlushed(Input):
    """
    An fsync succeeded.

    @ivar flush_id: id of the C{FlushLedger} effect.
    @ivar end_index: every entry up to this index was on stable storage when it ended.
    """

    flush_id: int
    end_index: int


@value_class
class RoomChecked(Input):
    """
    The room on the disk was measured.

    @ivar is_full: whether the store refuses entries for want of room.
    """

    is_full: bool


@value_class(kw_only=True)
class MachineChecked(Input):
    """
    The state machine of this member was looked at.

    @ivar runs: whether it runs.
    @ivar is_unfit: whether this member should not lead, because its machine has failed, has no state or is in
        doubt.
    """

    runs: bool
    is_unfit: bool


@value_class(kw_only=True)
class DirectoryDoubted(Input):
    """
    Another member remembers another directory of this member, which may so have lost entries. The store has
    recorded that this member is unsure.
    """

    reason: str


@value_class(kw_only=True)
class StoreFailed(Input):
    """A write, fsync, truncation or persist failed. The member stops and acknowledges no more."""

    reason: str


@value_class(kw_only=True)
class RequestReceived(Input):
    """
    A request of a peer or a client for the core: VOTE, HEART_BEAT, PUSH, LEADERSHIP_TRANSFER or MEMBERSHIP.

    @ivar token: identifies the request for the answer; every token is answered exactly once, unless
        its connection is lost first.
    @ivar channel: identifies the connection; 0 for a local caller. A channel carries the requests of one
        member, in the order in which that member sent them.
    """

    token: int
    request: Request
    channel: int = 0


@value_class(kw_only=True)
class RequestAbandoned(Input):
    """The connection of a request is lost: drop the request if it still waits."""

    token: int


@value_class(kw_only=True)
class PeerDisconnected(Input):
    """
    The connection from a peer is lost, and the peer has no newer one.

    Often the first sign of a leader's crash; never a proof of it.
    """

    peer_id: str


@value_class(kw_only=True)
class PeerConnected(Input):
    """
    A new connection to a peer is open. Another program may listen at its address now.

    Facts learned on an earlier connection hold until this input.
    """

    peer_id: str


@value_class(kw_only=True)
class MembersIntroduced(Input):
    """A known member has reported a list of members."""

    reporter_id: str
    membership: Membership


@value_class(kw_only=True)
class PeerIncompatible(Input):
    """The peer sent a request in another version of the protocol. It holds until L{PeerConnected}."""

    peer_id: str


@value_class(kw_only=True)
class ResponseReceived(Input):
    """A peer's answer to C{SendRequest}."""

    peer_id: str
    request_id: int
    response: Response


@value_class(kw_only=True)
class RequestFailed(Input):
    """
    A C{SendRequest} without a usable answer: connection lost, refused or timed out.

    @ivar is_incompatible: the peer answered in another version of the protocol, so it understands
        no push as long as that program runs.
    """

    peer_id: str
    request_id: int
    reason: str
    is_incompatible: bool = False


@value_class
class TurnCame(Input):
    """A later turn of the reactor, after C{ContinueLater}: other work of the reactor had its chance."""


@value_class
class ReadRequested(Input):
    """
    Linearizable reads; each token comes back in C{AnswerRead} with its read index.
    """

    tokens: tuple[int, ...]


@value_class(kw_only=True)
class StopRequested(Input):
    """The operator stops the member: hand leadership over, answer pending requests, then stop."""
