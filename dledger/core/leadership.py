# -*- test-case-name: tests.core.test_replica -*-
"""
The work of a member while it leads.

A leader sends heartbeats, replicates its entries (L{EntryDispatcher}), and commits the entries that a quorum
holds (L{QuorumAckChecker}).

Rule 1: a leader pushes an entry of its own only after C{EntriesWritten} has reported it.
Rule 2: entries of earlier terms commit together with an entry of this term. If there are such entries, the
leader writes a term-start entry.
Rule 3: when leadership ends, late answers to its requests are ignored, and all waiting callers are answered.

Source: DLedgerEntryPusher.QuorumAckChecker, Raft 5.4.2.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from dledger.core.election.changes import MembershipChanges
from dledger.core.election.transfer import LeadershipTransfer
from dledger.core.replication.appends import PendingAppends, QuorumAckChecker
from dledger.core.replication.catch_up import TurnBudget
from dledger.core.replication.dispatcher import EntryDispatcher, dispatch_to_members, take_turns
from dledger.core.replication.reads import HeartBeats, LinearizableReads
from dledger.core.state import effects as fx
from dledger.core.state import inputs as ev
from dledger.core.state.member_state import MemberState
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.own.own_entries import TERM_START_CHANNEL


@attrs.define
class Leadership:
    """
    The leadership of one member: one object for all terms in which it leads.

    Invariant: while the member leads, C{quorum} and C{beats} are set. While it does not, they are None, and
    C{dispatchers} is empty.

    @ivar step_down: ends the leadership; its argument is the reason.
    @ivar budget: the bytes that may be pushed in one turn of the reactor.
    @ivar is_ready: whether everything that an earlier leader may have committed is committed here.
    @ivar next_term_start_ms: when the entry that begins the term is written again, if it was refused.
    """

    member: MemberState
    appends: PendingAppends
    changes: MembershipChanges
    reads: LinearizableReads
    transfer: LeadershipTransfer
    budget: TurnBudget
    step_down: Callable[[str], None]
    dispatchers: dict[str, EntryDispatcher] = attrs.Factory(dict)
    quorum: QuorumAckChecker | None = None
    beats: HeartBeats | None = None
    is_ready: bool = False
    next_term_start_ms: int = 0

    @property
    def is_under_way(self) -> bool:
        """Whether the member leads."""
        return self.quorum is not None

    def begin(self) -> None:
        """Set up the parts of a leadership. The caller calls L{open} next."""
        member = self.member
        self.quorum = QuorumAckChecker(
            term=member.term, term_start_index=member.ledger_end_index + 1, membership=member.membership
        )
        self.beats = HeartBeats(
            member, self._round_confirmed, self._beat_refused, self._follower_heard,
            last_quorum_ms=member.out.now_ms,
        )
        dispatch_to_members(self.dispatchers, member, self, self.budget)
        # A new leader holds every committed entry. If all its entries are committed, it knows every commit.
        self.is_ready = member.committed_index == member.ledger_end_index

    def open(self) -> None:
        """Send the first heartbeats, write the term-start entry if it is needed, and begin to push."""
        assert self.beats is not None
        self.beats.start_round()
        self._write_term_start()
        for dispatcher in self.dispatchers.values():
            dispatcher.dispatch()

    def _write_term_start(self) -> None:
        """
        Write the term-start entry, unless the ledger has an entry of this term, or needs none: entries of
        earlier terms commit with it.
        """
        member = self.member
        assert self.quorum is not None
        if self.is_ready or not member.config.term_start_entry or member.successor_id is not None:
            return
        if member.ledger_end_index < self.quorum.term_start_index:
            self.next_term_start_ms = self.member.out.now_ms + member.config.max_wait_ack_time_ms
            self.member.out.write(fx.WriteBodies(
                first_index=member.ledger_end_index + 1, term=member.term, bodies=(member.term_start_body,),
                channels=(TERM_START_CHANNEL,),
            ))

    def end(self) -> None:
        """End the leadership, if there is one."""
        if self.quorum is None:
            return
        assert self.beats is not None
        self.member.successor_id = None
        # Late answers to requests of this leadership are ignored.
        self.beats.retire()
        for dispatcher in self.dispatchers.values():
            dispatcher.retire()
        self.quorum = self.beats = None
        self.dispatchers = {}
        self.is_ready = False
        self.member.leader_id = None
        self.changes.fail_all()
        self.appends.leadership_ended()
        self.reads.fail_all(ResponseCode.NOT_LEADER)

    # -- time ---------------------------------------------------------------------------------

    def lacks_quorum(self, patience_ms: int) -> bool:
        """
        Send heartbeats if they are due.

        @return: whether no quorum was heard for longer than C{patience_ms}.
        """
        assert self.beats is not None
        self.beats.tick()
        return self.beats.lack_quorum(patience_ms)

    def tick(self) -> None:
        """Let time-outs of pushes end, and write the term-start entry again if it was refused."""
        for dispatcher in self.dispatchers.values():
            dispatcher.tick()
        if self.member.out.now_ms >= self.next_term_start_ms:
            self._write_term_start()  # the first attempt was refused, for example by a full disk

    def on_turn_came(self, _: ev.TurnCame) -> None:
        """Push the entries that did not fit into the budget of earlier turns."""
        take_turns(self.dispatchers, self.budget)

    def reconnected(self, peer_id: str) -> None:
        """Begin with COMPARE again at a peer that has a new connection."""
        if (dispatcher := self.dispatchers.get(peer_id)) is not None:
            dispatcher.reconnected()

    # -- entries ------------------------------------------------------------------------------

    def on_written(self, written: ev.EntriesWritten) -> None:
        """Push the entries that this leader has written, and take up a membership among them."""
        member = self.member
        assert self.quorum is not None
        if self.quorum.membership is not member.membership:
            self.quorum.membership = member.membership
            dispatch_to_members(self.dispatchers, member, self, self.budget)
        self.appends.on_written(written)
        self.changes.on_written(member.ledger_end_index)
        for dispatcher in self.dispatchers.values():
            dispatcher.dispatch()
        if not member.config.is_sync:
            self.holds(member.ledger_end_index)

    def follower_holds(self, peer_id: str, index: int) -> None:
        """A follower acknowledged every entry up to C{index}."""
        assert self.quorum is not None
        if self.quorum.record(peer_id, index) and index > self.member.committed_index:
            self._update_committed_index()
        if self.transfer.giving is not None:
            self.transfer.advance(self.dispatchers)

    def holds(self, index: int) -> None:
        """This member holds every entry up to C{index}."""
        assert self.quorum is not None
        has_risen, membership = self.quorum.record(self.member.config.self_id, index), self.member.membership
        # With async flushing, this member holds entries as soon as they are written, and nobody else holds
        # them yet. So they can commit at once only if it is a quorum alone, or if the last entry is a
        # membership with a smaller quorum.
        if has_risen and (self.member.config.is_sync or membership.quorum == 1 or membership.index == index):
            self._update_committed_index()

    def _update_committed_index(self) -> None:
        assert self.quorum is not None and self.beats is not None
        member = self.member
        index = self.quorum.quorum_index
        if member.config.is_sync and member.has_java_peer:
            # A Java follower acknowledges from its page cache: one copy, this one, is to be on a disk.
            index = min(index, member.flushed_index)
            if index < self.quorum.term_start_index:
                return  # the flush ended before this term: earlier terms commit with an entry of this one
        if not member.commit(index):
            return
        self.appends.committed(index)
        self.changes.committed(index)
        if self.budget.probe is not None:
            self.budget.committed(index)
        if not self.is_ready and index >= self.quorum.term_start_index - 1:
            self.is_ready = True
            self.reads.ready(self.beats)

    # -- what followers say -------------------------------------------------------------------

    def _round_confirmed(self) -> None:
        if self.beats is not None:
            self.reads.confirmed(self.beats)

    def _beat_refused(self, code: ResponseCode) -> None:
        if code is ResponseCode.INCONSISTENT_LEADER:
            self.step_down("another leader in this term")

    def _follower_heard(self, peer_id: str) -> None:
        if peer_id in self.dispatchers:  # else it was removed meanwhile
            self.dispatchers[peer_id].reachable()
        if self.quorum is not None and self.quorum.quorum_index > self.member.committed_index:
            # A voter on a new connection may be a Java member, and kept this back until it was heard.
            self._update_committed_index()
