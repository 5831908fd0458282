# -*- test-case-name: tests.core.test_replica,tests.core.test_repair,tests.core.test_group -*-
"""
One member of a raft group: inputs in, effects out.

C{DLedgerCore.step} looks an input up in a table and hands it to the responsible part: elections
(L{LeaderElector}), leading (L{Leadership}), following (L{EntryHandler}), proposals, reads, transfer, fsync,
the end (L{Stopping}). This module connects the parts and carries out role changes.

Rule 1: the term gate comes first, once. Of messages with a higher term than the member's, the parts
see only pre-votes, leadership transfers, metadata, and requests of strangers.
Rule 2: after C{StoreFailed} the member only answers its waiting appends and reads.

Source: DLedgerServer.java, MemberState.java (0.3.1.2); the shape is etcd/raft's.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from dledger.core.election import admission
from dledger.core.election.changes import MembershipChanges
from dledger.core.election.dismissal import Dismissal
from dledger.core.election.elector import Campaign, LeaderElector
from dledger.core.election.naming import GroupNaming
from dledger.core.election.transfer import LeadershipTransfer
from dledger.core.leadership import Leadership
from dledger.core.replication.appends import PendingAppends
from dledger.core.replication.catch_up import TurnBudget
from dledger.core.replication.flusher import Flusher
from dledger.core.replication.handler import EntryHandler
from dledger.core.replication.hole_repair import HoleRepair
from dledger.core.replication.leader_claims import LeaderClaims
from dledger.core.replication.reads import LinearizableReads
from dledger.core.state import effects as fx
from dledger.core.state import inputs as ev
from dledger.core.state.member_state import MemberState, Outbox, Role
from dledger.core.state.ports import LedgerView
from dledger.core.state.recovered import RecoveredState
from dledger.core.status import MemberStatus, metadata_of, status_of
from dledger.core.stopping import Stopping
from dledger.values.ledger.config import DLedgerConfig
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.bounds import TERM_MAX
from protocols.wire.ledger.codes import PushType
from protocols.wire.ledger.messages import (
    GetResponse,
    HeartBeatRequest,
    HeartBeatResponse,
    LeadershipTransferRequest,
    LedgerMessage,
    MembershipRequest,
    MetadataRequest,
    MetadataResponse,
    PullResponse,
    PushEntryRequest,
    Request,
    VoteRequest,
    VoteResponse,
)

_OF_PEERS = (VoteRequest, HeartBeatRequest, PushEntryRequest)
_INFORMATION = (MetadataResponse, GetResponse, PullResponse)


class DLedgerCore:
    """
    The algorithm of one member.

    Invariant: C{leading} is under way exactly while the role is C{LEADER}. Only L{step} changes the
    parts; between two steps the node, the simulators and the search read them.

    @ivar member: the state that all parts share: term, members of the group, ends of the ledger.
    @ivar elector, transfer, changes: the election, a handing over, a change of members.
    @ivar leading, handler: replication, as the leader and as a follower.
    @ivar appends, reads, flusher, holes: appends, linearizable reads and fsyncs that wait; damaged entries.
    @ivar leader_claims: when an unsure member is sure again.
    @ivar out: the effects of the step under way, and the requests without an outcome.
    """

    def __init__(
        self, *, config: DLedgerConfig, view: LedgerView, rng: random.Random, recovered: RecoveredState,
        term_start_body: bytes = b"",
    ) -> None:
        """
        @param view: the recovered ledger. @param rng: the only source of randomness of this member.
        @param recovered: everything else that the member knew when it ended.
        @param term_start_body: see L{MemberState}.
        @raise DirectoryError: the recovered term is absurd, see L{admission.check_start}.
        """
        term, voted_for = recovered.term, recovered.voted_for
        out = Outbox(request_time_out_ms=2 * config.rpc_time_out_ms)
        admission.check_start(term, view.ends.end_term, config.self_path)
        if view.ends.end_term > term:
            term, voted_for = view.ends.end_term, None
        self.member = MemberState(
            config=config, view=view, out=out, term=term, voted_for=voted_for,
            committed_index=recovered.committed_index, repair_end_index=recovered.repair_end_index,
            is_unsure=recovered.is_unsure, start_term=TERM_MAX if recovered.forgot_terms else term,
            group_name=recovered.group_name, term_start_body=term_start_body,
        )
        self.member.refresh_end()
        self.member.flushed_index = self.member.ledger_end_index  # recovery has flushed all
        self.out = out
        self._refused = admission.RefusedMessages(self.member)
        self.elector = LeaderElector(self.member, rng, self)
        self.handler = EntryHandler(self.member)
        self.leader_claims = LeaderClaims(self.member, self.handler, self._step_down)
        self._naming = GroupNaming(self.member, rng)
        self.holes = HoleRepair(self.member)
        self.flusher = Flusher(self.member)
        self.appends = PendingAppends(self.member)
        self.reads = LinearizableReads(self.member)
        self._dismissal = Dismissal(self.member)
        self.transfer = LeadershipTransfer(self.member, self.elector, self._transfer_ended)
        self.changes = MembershipChanges(self.member, self.transfer)
        self.leading = Leadership(
            self.member, self.appends, self.changes, self.reads, self.transfer, TurnBudget(out),
            self._step_down,
        )
        self._stopping = Stopping(
            self.member, self.appends, self.changes, self.reads, self.transfer, self.handler
        )
        self._on = self._input_table()

    def _input_table(self) -> dict[type[ev.Input], Callable[..., None]]:
        return {
            ev.Ticked: self._on_ticked, ev.Started: self._on_started,
            ev.AppendProposed: self._on_append_proposed, ev.ReadRequested: self._on_read_requested,
            ev.EntriesWritten: self._on_entries_written, ev.WriteRefused: self._on_write_refused,
            ev.LedgerTruncated: self._on_ledger_truncated, ev.EntriesFlushed: self._on_entries_flushed,
            ev.HoleHandled: self.holes.on_handled, ev.RoomChecked: self._on_room_checked,
            ev.DirectoryDoubted: self.leader_claims.on_doubted, ev.StopRequested: self._on_stop_requested,
            ev.RequestReceived: self._on_request_received, ev.RequestAbandoned: self._on_request_abandoned,
            ev.PeerDisconnected: self._on_peer_disconnected, ev.PeerConnected: self._on_peer_connected,
            ev.PeerIncompatible: self._on_peer_incompatible, ev.StoreFailed: self._on_store_failed,
            ev.MembersIntroduced: self.member.introductions.on_introduced,
            ev.RequestFailed: self._on_request_failed, ev.ResponseReceived: self._on_response_received,
            ev.MachineChecked: self.member.peers.machine.checked, ev.TurnCame: self.leading.on_turn_came,
        }

    def step(self, happened: ev.Input, now_ms: int) -> tuple[fx.Effect, ...]:
        """
        Take one input.

        @param now_ms: monotonic milliseconds. @return: effects to run, in this order.
        @raise StoreError: the view could not be read; the caller feeds C{StoreFailed}.
        """
        if self._stopping.is_stopped:
            if isinstance(happened, ev.StoreFailed):
                # An effect of the last step failed, so its StopMember was dropped: emit it again.
                return (fx.StopMember(reason=happened.reason, clean=False),)
            return ()
        out = self.out
        if now_ms > out.now_ms:
            out.now_ms = now_ms
        self._on[type(happened)](happened)
        if self.appends.undecided:
            self.appends.decide()
        return out.take()

    # -- life -------------------------------------------------------------------------------

    def _on_started(self, _: ev.Started) -> None:
        member = self.member
        self.elector.start()
        self.out.report("started", term=member.term, ledger_end_index=member.ledger_end_index,
                         committed_index=member.committed_index, repair_end_index=member.repair_end_index)
        if member.repair_end_index >= 0:
            self.out.report("repairing", ledger_end_index=member.ledger_end_index,
                             repair_end_index=member.repair_end_index)
        if member.is_unsure:
            self.out.report("unsure", ledger_end_index=member.ledger_end_index)

    def _on_ticked(self, ticked: ev.Ticked) -> None:
        self.member.ticked(ticked.clock_ms)
        for peer_id, request_id, owner in self.out.overdue():
            owner.on_request_failed(peer_id, request_id, "no outcome in time")
        if not self._stopping.is_stopped:  # a failed transfer completes a stop that waited for it
            self._tick_parts()

    def _tick_parts(self) -> None:
        self.elector.tick()
        self.handler.check_abnormal_future()
        for part in (self.leader_claims, self._naming, self.holes, self._dismissal):
            part.tick()
        if self.leading.is_under_way:
            self._tick_leader()
        self.transfer.tick(self.leading.dispatchers)
        if not self._stopping.is_stopped:
            self.appends.expire()
            self.changes.expire()
            self.reads.expire()
            self.flusher.wanted()
            self._stopping.if_ready()

    def _tick_leader(self) -> None:
        patience_ms = self.elector.patience.allowed_ms()
        if self.leading.lacks_quorum(patience_ms):
            # The followers' patience is over too: they may follow another leader by now.
            return self._step_down("no quorum")
        if self.holes.is_stuck(patience_ms):
            return self._step_down("an entry that may not be committed is damaged, and no peer gave it back")
        self.leading.tick()

    def _on_store_failed(self, failed: ev.StoreFailed) -> None:
        self.out.report("store-failed", reason=failed.reason)
        self._stopping.stop(failed.reason, clean=False)

    def _transfer_ended(self, _: ResponseCode) -> None:
        self._stopping.if_ready()

    def _on_stop_requested(self, _: ev.StopRequested) -> None:
        self._stopping.request(self.leading.dispatchers)

    # -- role changes -----------------------------------------------------------------------

    def become_leader(self) -> None:
        """A quorum voted for this member in this term."""
        member = self.member
        member.role = Role.LEADER
        member.leader_id = member.self_id
        self.elector.led()
        self.leader_claims.lead()
        self.handler.reset()
        self.leading.begin()
        self._report_role()
        self.leading.open()

    def become_follower(self, leader_id: str | None) -> None:
        """Follow C{leader_id} in this term; None for no leader yet."""
        self.leading.end()
        member = self.member
        member.role = Role.FOLLOWER
        member.leader_id = leader_id
        self.handler.reset()
        if leader_id is not None:
            member.successor_id = None
            self.elector.followed()
            self.transfer.taking_ended(ResponseCode.TAKE_LEADERSHIP_FAILED)
        self._report_role()

    def become_candidate(self) -> None:
        """The term was raised and a vote is in progress."""
        self.leading.end()
        self.member.role = Role.CANDIDATE
        self.member.leader_id = None
        self.handler.reset()
        self._report_role()

    def take_leadership_ended(self, code: ResponseCode) -> None:
        """The election that the old leader asked for has ended."""
        self.transfer.taking_ended(code)

    def _step_down(self, reason: str) -> None:
        """Stop leading, or give up a campaign, and follow no leader yet."""
        self.out.report("stepping-down", reason=reason, term=self.member.term)
        self.become_follower(None)
        self.elector.lost_leader()

    def _report_role(self) -> None:
        member = self.member
        self.out.report("role-changed", role=member.role.value, term=member.term,
                         leader_id=member.leader_id, ledger_end_index=member.ledger_end_index,
                         committed_index=member.committed_index)

    # -- the term gate ----------------------------------------------------------------------

    def _pass_term_gate(self, term: int, reason: str) -> None:
        """Adopt any higher term, as a follower without a leader."""
        member = self.member
        if term <= member.term:
            return
        was, had_leader = member.role, member.leader_id is not None
        self.leading.end()
        member.enter_term(term)
        member.role = Role.FOLLOWER
        self.handler.reset()
        if was is not Role.FOLLOWER:
            self._report_role()
        self.elector.lost_leader(had_leader=had_leader)
        self.transfer.taking_ended(ResponseCode.EXPIRED_TERM)
        self.out.report("term-adopted", term=term, reason=reason)

    def _note_refused(self, sender_id: str, message: LedgerMessage, fault: str) -> None:
        if (term := self._refused.note(sender_id, message, fault)) is not None:
            self._pass_term_gate(term, "far behind")

    def _on_request_received(self, received: ev.RequestReceived) -> None:
        request, token = received.request, received.token
        if not isinstance(request, _OF_PEERS):
            return self._on_other_request(token, request)
        member, leader_id = self.member, request.leader_id
        if leader_id is not None and member.knows(leader_id):
            fault = admission.fault_of(member, request)
            if fault is not None:
                self.out.reply(token, admission.refusing_answer(member, request, fault))
                self._note_refused(leader_id, request, fault)
                return
            member.peers.heard(leader_id, request.wire_version, member.out.now_ms)
            if type(request) is VoteRequest and self.elector.voter.turns_away(token, request):
                return
            if request.term > member.term and not (isinstance(request, VoteRequest) and request.pre_vote):
                self._pass_term_gate(request.term, type(request).__name__)
        if type(request) is PushEntryRequest:
            accepted = self.elector.accept_leader(leader_id, request.term)
            self.handler.on_push(token, request, accepted, channel=received.channel)
            if request.type is PushType.COMMIT and self.handler.is_in_step:
                self.leader_claims.heard_commit(request.wire_version < 1, self.handler.matched_index)
            if member.is_unsure or member.repair_end_index >= 0:
                self.leader_claims.end_repair()  # The ledger may be complete, and this push have proved it.
        elif isinstance(request, VoteRequest):
            self.elector.voter.on_vote(token, request)
        else:
            self.elector.on_heart_beat(token, request)

    def _on_other_request(self, token: int, request: Request) -> None:
        if isinstance(request, MetadataRequest):
            return self.out.reply(token, self.metadata(request))
        if isinstance(request, LeadershipTransferRequest):
            return self.transfer.on_request(token, request, self.leading.dispatchers)
        assert isinstance(request, MembershipRequest), request
        leading = self.leading
        self.changes.on_request(
            token, request, leading.quorum, leading.dispatchers, self._append_refusal()
        )

    def _on_response_received(self, received: ev.ResponseReceived) -> None:
        owner = self.out.answered(received.peer_id, received.request_id)
        if owner is None:
            return
        response, peer_id, member = received.response, received.peer_id, self.member
        is_ahead = response.term > member.term
        if is_ahead and admission.is_too_far(member, response.term):
            self._note_refused(peer_id, response, "term")
            owner.on_request_failed(peer_id, received.request_id, "its term is out of bounds")
            return
        member.peers.heard(peer_id, response.wire_version, member.out.now_ms)
        if type(response) is HeartBeatResponse:
            member.peers.heard_state(peer_id, response.wire_version, member.out.now_ms, response.code)
            member.peers.clocks.heard(peer_id, response.clock_ms, member.out.now_ms)
        elif type(response) is VoteResponse:
            member.peers.clocks.heard(peer_id, response.clock_ms, member.out.now_ms)
        if is_ahead and not isinstance(response, _INFORMATION):  # nothing that binds
            self._pass_term_gate(response.term, type(response).__name__)
        owner.on_response(peer_id, received.request_id, response)

    def _on_request_failed(self, failed: ev.RequestFailed) -> None:
        if (owner := self.out.answered(failed.peer_id, failed.request_id)) is not None:
            owner.on_request_failed(failed.peer_id, failed.request_id, failed.reason)
            if failed.is_incompatible:
                self._not_understood(failed.peer_id)

    def _not_understood(self, peer_id: str) -> None:
        """
        The peer cannot understand pushes: if that denies this member a quorum, it steps down.

        Such peers still answer heartbeats, so no other check detects them; the other members may
        understand each other. A new connection clears the mark: another program may listen there.
        """
        member = self.member
        member.peers.incompatible.add(peer_id)
        is_busy = member.is_leader or self.elector.campaign is not Campaign.NONE
        if is_busy and not member.is_understood:
            self._step_down("a quorum does not understand the pushes of this member")

    def _on_request_abandoned(self, abandoned: ev.RequestAbandoned) -> None:
        self.handler.abandon(abandoned.token)
        self.transfer.abandon(abandoned.token)

    def _on_peer_disconnected(self, disconnected: ev.PeerDisconnected) -> None:
        self.elector.peer_disconnected(disconnected.peer_id)

    def _on_peer_incompatible(self, incompatible: ev.PeerIncompatible) -> None:
        self.member.peers.incompatible.add(incompatible.peer_id)

    def _on_peer_connected(self, connected: ev.PeerConnected) -> None:
        self.member.peers.connected(connected.peer_id)
        self.leading.reconnected(connected.peer_id)

    # -- the ledger -------------------------------------------------------------------------

    def _on_append_proposed(self, proposed: ev.AppendProposed) -> None:
        self.appends.propose(proposed.proposals, self._append_refusal())

    def _append_refusal(self) -> ResponseCode | None:
        member, is_stopping = self.member, self._stopping.is_requested
        if member.role is not Role.LEADER:
            return ResponseCode.NOT_LEADER
        is_giving = self.transfer.giving is not None and self.transfer.transferee_id is not None
        if is_stopping or member.successor_id is not None or is_giving:
            return ResponseCode.LEADER_TRANSFERRING
        return None

    def _on_entries_written(self, written: ev.EntriesWritten) -> None:
        member = self.member
        member.refresh_end()
        assert written.first_index + written.count - 1 == member.ledger_end_index
        if self.leading.quorum is None:
            self.handler.on_written()
            if self.transfer.taking is not None:
                self.transfer.on_ledger_grew()
            if member.is_unsure or member.repair_end_index >= 0:
                self.leader_claims.end_repair()
            if self.handler.queued_bytes:  # (Not before: the election above would empty the queue.)
                self.handler.write_following()
        else:
            self.leading.on_written(written)
        if member.config.is_sync:
            self.flusher.wanted()

    def _on_room_checked(self, checked: ev.RoomChecked) -> None:
        if checked.is_full != self.member.is_full:
            self._room_changed(checked.is_full)

    def _room_changed(self, is_full: bool) -> None:
        self.member.is_full = is_full
        self.out.report("disk-full" if is_full else "disk-has-room")

    def _on_write_refused(self, refused: ev.WriteRefused) -> None:
        if refused.code is ResponseCode.DISK_FULL and not self.member.is_full:
            self._room_changed(is_full=True)
        if self.leading.quorum is not None:
            self.out.report("append-refused", code=refused.code.name, reason=refused.reason)
            self.appends.on_write_refused(refused.code)
            self.changes.on_write_refused(refused.code, refused.reason)
            self.transfer.leave_if_full(self.leading.dispatchers)
        else:
            self.handler.on_write_refused(refused.code, refused.reason)

    def _on_ledger_truncated(self, truncated: ev.LedgerTruncated) -> None:
        self.member.refresh_end()
        self.member.owes(truncated.repair_end_index)
        self.flusher.on_truncated()
        self.handler.on_truncated()
        self.handler.on_flushed(self.member.flushed_index)
        if self.transfer.taking is not None:
            self.transfer.on_ledger_grew()
        self.leader_claims.end_repair()

    def _on_entries_flushed(self, flushed: ev.EntriesFlushed) -> None:
        member = self.member
        if self.flusher.on_flushed(flushed.flush_id, flushed.end_index):
            if self.leading.quorum is None:
                self.handler.on_flushed(member.flushed_index)
                if member.is_unsure or member.repair_end_index >= 0:
                    self.leader_claims.end_repair()
            elif member.config.is_sync:
                self.leading.holds(member.flushed_index)
        if member.config.is_sync and member.ledger_end_index > member.flushed_index:
            self.flusher.wanted()

    # -- reads and heartbeats ---------------------------------------------------------------

    def _on_read_requested(self, requested: ev.ReadRequested) -> None:
        self.reads.request(requested.tokens, self.leading.beats, is_ready=self.leading.is_ready)

    # -- questions from outside -------------------------------------------------------------

    def metadata(self, request: MetadataRequest) -> MetadataResponse:
        """The members and the leader, as known to this member."""
        return metadata_of(self.member)

    @property
    def committed_index(self) -> int:
        """Highest index known to be committed, inclusive."""
        return self.member.committed_index

    @property
    def is_full(self) -> bool:
        """Whether the store refuses entries for want of room, as far as the core knows."""
        return self.member.is_full

    @property
    def ledger_end_index(self) -> int:
        """Last index of this member's ledger, inclusive; -1 if it is empty."""
        return self.member.ledger_end_index

    @property
    def leader_id(self) -> str | None:
        """Leader of the current term, if known."""
        return self.member.leader_id

    @property
    def gone_elsewhere_index(self) -> int:
        """See L{HoleRepair.gone_elsewhere_index}."""
        return self.holes.gone_elsewhere_index

    @property
    def is_diverged(self) -> bool:
        """Whether this member and its leader cannot agree, see L{EntryHandler}."""
        return self.handler.is_diverged and not self.member.is_leader

    def status(self) -> MemberStatus:
        """The status of this member after the last step."""
        return status_of(
            self.member, self.leading.dispatchers, is_diverged=self.is_diverged,
            transferee_id=self.transfer.transferee_id, pending_appends=len(self.appends),
            pending_reads=len(self.reads), hole_asked=self.holes.asked,
        )
