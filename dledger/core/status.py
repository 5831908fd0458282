# -*- test-case-name: tests.core.test_replica -*-
"""The status of a member: frozen values, for status pages, metrics and tests."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from dledger.core.replication.dispatcher import EntryDispatcher
from dledger.core.state.member_state import MemberState
from dledger.core.state.ports import LedgerView
from dledger.values.ledger.holes import Hole
from protocols.wire.ledger.codes import WIRE_FLAG_UNSURE_VOTE, WIRE_VERSION
from protocols.wire.ledger.memberships import MemberLists, ReportedMembership, encode_reported
from protocols.wire.ledger.messages import MetadataResponse


@attrs.frozen(kw_only=True)
class PeerStatus:
    """
    The leader's view of one follower.

    @ivar state: C{compare}, C{truncate} or C{append}; C{unknown} unless this member leads.
    @ivar match_index: highest index that the peer is known to hold equal to ours; -1 if unknown.
    @ivar write_index: next index to send.
    @ivar inflight: number of unanswered pushes.
    @ivar last_heard_ms_ago: milliseconds since the peer's last message; -1 for never.
    @ivar wire_version: version that the peer advertised; 0 for none (Java), -1 if not heard from yet.
    """

    peer_id: str
    state: str
    match_index: int
    write_index: int
    inflight: int
    last_heard_ms_ago: int
    wire_version: int


@attrs.frozen(kw_only=True)
class MemberStatus:
    """
    The status of one member after a step. Indexes are inclusive, -1 for none.

    @ivar role: C{leader}, C{follower} or C{candidate}.
    @ivar flushed_index: every entry up to here is on stable storage.
    @ivar leader_committed_index: the leader's commit index, as it said last; -1 if it said none.
    @ivar leader_committed_ms: when it said so, on the clock of the member; -1 if it said none.
    @ivar is_unsure: whether a loss of power may have taken entries that the member acknowledged.
    @ivar repair_end_index: -1, or the end that the ledger of a damaged member must reach again.
    @ivar holes: damaged entries between sound ones, which are fetched from peers.
    @ivar hole_asked: peers that were asked for the hole in turn, and why they did not give it.
    @ivar voters, learners: ids of the members that count, and of those that only copy the log; a member that
        was removed, or joins, is in neither.
    @ivar membership_index: of the configuration entry that says so; -1 for the start list.
    @ivar is_dismissed: other members said that this one is not a member any more.
    @ivar is_diverged: it refuses what its leader pushes again and again: their ledgers contradict each other.
    """

    self_id: str
    group: str
    role: str
    term: int
    voted_for: str | None
    leader_id: str | None
    ledger_begin_index: int
    ledger_end_index: int
    ledger_end_term: int
    committed_index: int
    flushed_index: int
    repair_end_index: int
    is_diverged: bool
    leader_committed_index: int
    transferee_id: str | None
    pending_appends: int
    pending_reads: int
    peers: tuple[PeerStatus, ...]
    voters: tuple[str, ...] = ()
    learners: tuple[str, ...] = ()
    membership_index: int = -1
    is_dismissed: bool = False
    is_unsure: bool = False
    holes: tuple[Hole, ...] = ()
    hole_asked: Mapping[str, str] = attrs.Factory(dict)
    leader_committed_ms: int = -1

    @property
    def commit_lag(self) -> int:
        """Committed entries of the leader that this member does not know to be committed."""
        return 0 if self.role == "leader" else max(0, self.leader_committed_index - self.committed_index)

    @property
    def is_repairing(self) -> bool:
        """Whether the member lost part of its log to damage and has not recovered it yet."""
        return self.repair_end_index >= 0 or bool(self.holes)


def peer_statuses(
    member: MemberState, dispatchers: Mapping[str, EntryDispatcher]
) -> tuple[PeerStatus, ...]:
    """The leader's view of each peer, in order of ids. @param dispatchers: empty unless the member leads."""

    def of(peer_id: str) -> PeerStatus:
        dispatcher = dispatchers.get(peer_id)
        heard_ms = member.peers.last_heard_ms.get(peer_id)
        return PeerStatus(
            peer_id=peer_id,
            state="unknown" if dispatcher is None else dispatcher.state.value,
            match_index=-1 if dispatcher is None else dispatcher.match_index,
            write_index=-1 if dispatcher is None else dispatcher.write_index,
            inflight=0 if dispatcher is None else dispatcher.inflight,
            last_heard_ms_ago=-1 if heard_ms is None else member.out.now_ms - heard_ms,
            wire_version=member.peers.wire_versions.get(peer_id, -1),
        )

    return tuple(map(of, member.peer_ids))


def status_of(
    member: MemberState, dispatchers: Mapping[str, EntryDispatcher], *, is_diverged: bool,
    transferee_id: str | None, pending_appends: int, pending_reads: int, hole_asked: Mapping[str, str],
) -> MemberStatus:
    """The status of C{member}; the other parts of the core give the rest. Fields as of L{MemberStatus}."""
    return MemberStatus(
        self_id=member.self_id, group=member.config.group, role=member.role.value, term=member.term,
        voted_for=member.voted_for, leader_id=member.leader_id,
        ledger_begin_index=member.view.ends.begin_index, ledger_end_index=member.ledger_end_index,
        ledger_end_term=member.ledger_end_term, committed_index=member.committed_index,
        flushed_index=member.flushed_index, repair_end_index=member.repair_end_index,
        is_diverged=is_diverged, is_unsure=member.is_unsure, transferee_id=transferee_id,
        leader_committed_index=member.peers.leader_committed_index,
        leader_committed_ms=member.peers.leader_committed_ms, pending_appends=pending_appends,
        pending_reads=pending_reads, voters=tuple(sorted(member.membership.voters)),
        learners=tuple(sorted(member.membership.learners)), membership_index=member.membership.index,
        is_dismissed=member.dismissed_index > member.membership.index,
        peers=peer_statuses(member, dispatchers), holes=member.view.holes, hole_asked=dict(hole_asked),
    )


def metadata_of(member: MemberState) -> MetadataResponse:
    """The members and the leader, as known to C{member}."""
    return MetadataResponse(
        group=member.config.group, remote_id=None, leader_id=member.leader_id, term=member.term,
        wire_version=WIRE_VERSION | (WIRE_FLAG_UNSURE_VOTE if member.is_unsure else 0),
        peers=member.membership.addresses,
        role=member.role.value,
        begin_index=member.view.ends.begin_index, end_index=member.ledger_end_index,
        committed_index=member.committed_index, group_id=member.group_name.id,
        group_term=member.group_name.term, is_group_known=member.group_name.is_known,
        configuration=reported_memberships(member.view),
    )


def reported_memberships(view: LedgerView) -> str:
    """
    The memberships that METADATA reports, as a text: the one that was in force at the begin of the ledger,
    which another ledger needs that begins at the same entry, and the last one.

    @return: empty while the membership is that of the start list.
    """
    now = view.membership
    if now is None or not now.is_changed:
        return ""
    older = [one for one in view.memberships if 0 <= one.index < view.ends.begin_index]
    return encode_reported(
        ReportedMembership(one.index, one.term, MemberLists(dict(one.voters), dict(one.learners)))
        for one in (*older[-1:], *(() if now in older else (now,)))
    )
