# -*- test-case-name: tests.core.test_member_state,tests.core.test_dispatcher -*-
"""
The state of one member: role, term, vote, leader, the ends of its ledger, its commit index.

Rule 1: the term never falls; a new term forgets the vote and the leader, and is made durable by an
effect that comes before any message of that term.
Rule 2: C{committed_index} never falls and never passes the end.

The L{Outbox}, shared by all parts of the core, collects the effects of a step in order.

Source: MemberState.java; differs: term and vote are durable before they are answered (W4).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Protocol

import attrs

from dledger.core.state import effects as fx
from dledger.core.state.beliefs import FRESH_MS, IntroducedMembers, PeerBeliefs
from dledger.core.state.ports import LedgerView
from dledger.values.errors import DamagedEntryError
from dledger.values.ledger.config import DLedgerConfig
from dledger.values.ledger.group_name import GroupName
from dledger.values.ledger.membership import Membership
from protocols.wire.ledger.bounds import TERM_MAX
from protocols.wire.ledger.codes import WIRE_VERSION
from protocols.wire.ledger.messages import MessageFields, Request, Response


class Role(Enum):
    """The role of a member in its term."""

    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    LEADER = "leader"


class RequestOwner(Protocol):
    """A part of the core that sent a request and receives its outcome."""

    def on_response(self, peer_id: str, request_id: int, response: Response) -> None:
        """The peer answered."""

    def on_request_failed(self, peer_id: str, request_id: int, reason: str) -> None:
        """The request will not be answered."""


@attrs.define
class Outbox:
    """
    The effects of the current step, and the requests without an outcome.

    Invariant: an outcome reaches the owner of its request once; an outcome that matches no
    outstanding request is ignored.
    A step has at most one write of the ledger, and it is the last effect: a refused write would drop
    the effects after it.

    @ivar emit: adds an effect after the earlier ones.
    @ivar now_ms: of the step; it never falls.
    """

    request_time_out_ms: int
    now_ms: int = 0
    _effects: list[fx.Effect] = attrs.Factory(list)
    _write: fx.LedgerWrite | None = None
    _next_request_id: int = 1
    _owners: dict[int, tuple[str, RequestOwner, int]] = attrs.Factory(dict)
    emit: Callable[[fx.Effect], None] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.emit = self._effects.append

    def take(self) -> tuple[fx.Effect, ...]:
        """Take the effects of this step."""
        write, self._write = self._write, None
        taken = tuple(self._effects) if write is None else (*self._effects, write)
        del self._effects[:]
        return taken

    def write(self, effect: fx.LedgerWrite) -> None:
        """Set the step's write of the ledger; it stays the last effect of the step."""
        assert self._write is None, "one write in a step"
        self._write = effect

    def forget_write(self) -> None:
        """The member stops: drop the write of this step, if there is one."""
        self._write = None

    def persist(self, term: int, voted_for: str | None) -> None:
        """
        Make term and vote durable before all later effects.

        A vote in a term that this step entered is made durable together with the term: earlier is
        always safe, and one fsync is enough.
        """
        effect = fx.PersistTermVote(term=term, voted_for=voted_for)
        for at, known in enumerate(self._effects):
            if isinstance(known, fx.PersistTermVote) and known.term == term:
                self._effects[at] = effect
                return
        self.emit(effect)

    def report(self, event: str, **facts: object) -> None:
        """Report an event to the operator."""
        self.emit(fx.Report(event=event, facts=facts))

    def reply(self, token: int, response: Response) -> None:
        """Answer a request."""
        self.emit(fx.Reply(token=token, response=response))

    def send(self, peer_id: str, request: Request, owner: RequestOwner) -> int:
        """Send a request; its outcome goes to C{owner}. @return: its id."""
        request_id = self._next_request_id
        self._next_request_id += 1
        self._owners[request_id] = (peer_id, owner, self.now_ms)
        self.emit(fx.SendRequest(peer_id=peer_id, request_id=request_id, request=request))
        return request_id

    def answered(self, peer_id: str, request_id: int) -> RequestOwner | None:
        """Take out the request. @return: its owner; None if the request is not outstanding."""
        owners = self._owners
        if request_id not in owners or owners[request_id][0] != peer_id:
            return None
        return owners.pop(request_id)[1]

    def overdue(self) -> list[tuple[str, int, RequestOwner]]:
        """Take out the requests whose outcome is overdue. Ids rise with time, so only these are visited."""
        late: list[tuple[str, int, RequestOwner]] = []
        for request_id, (peer_id, owner, sent_ms) in self._owners.items():
            if self.now_ms - sent_ms < self.request_time_out_ms:
                break
            late.append((peer_id, request_id, owner))
        for _, request_id, _ in late:
            del self._owners[request_id]
        return late

    @property
    def outstanding(self) -> int:
        """Number of requests without an outcome."""
        return len(self._owners)


@attrs.define
class MemberState:
    """
    Invariant: C{committed_index <= ledger_end_index}; C{leader_id} belongs to C{term}.

    @ivar membership: the members of the group, by the last configuration entry of this ledger.
    @ivar peer_ids, voter_ids: the other members, and the other voters, in a fixed order.
    @ivar dismissed_index: index of a committed configuration entry that another member reported, in which
        this member is not a voter; -1 for none. A later entry of the own ledger overrides it.
    @ivar start_term: before this start the member acknowledged no entry of a later term: the term that it
        recovered with, or C{TERM_MAX} if it may have lost its directory, or that is doubted.
    @ivar flushed_index: every entry up to here is on stable storage.
    @ivar awake_ms: the tick before the last one; -1 before two. A process that was stopped finds messages
        that came meanwhile, before its first tick or after it: all that had come by this time was read.
    @ivar clock_ms: what the clock of this member showed at the last tick, see L{inputs.Ticked}.
    @ivar repair_end_index: -1, or the end that the ledger must reach before this member votes again.
    @ivar successor_id: the candidate for whose sake a member that must never lead leads all the same, until
        that one has its entries; None for none.
    @ivar is_unsure: whether a loss of power may have taken entries that this member acknowledged.
    @ivar group_name: the id of the group, as far as it is known, see L{dledger.core.election.naming}.
    @ivar is_full: whether the store refuses entries for want of room.
    @ivar term_start_body: body of the entry that a leader writes when its term begins.
    @ivar peers: what this member believes of the others.
    @ivar introductions: members that this ledger does not have yet.
    """

    config: DLedgerConfig
    view: LedgerView
    out: Outbox
    term: int
    voted_for: str | None
    committed_index: int
    repair_end_index: int
    start_term: int
    role: Role = Role.FOLLOWER
    leader_id: str | None = None
    ledger_end_index: int = -1
    ledger_end_term: int = -1
    flushed_index: int = -1
    awake_ms: int = -1
    _ticked_ms: int = -1
    clock_ms: int = -1
    successor_id: str | None = None
    is_unsure: bool = False
    group_name: GroupName = GroupName()
    is_full: bool = False
    peers: PeerBeliefs = attrs.field(init=False)
    introductions: IntroducedMembers = attrs.field(init=False)
    self_id: str = attrs.field(init=False)
    membership: Membership = attrs.field(init=False)
    peer_ids: tuple[str, ...] = attrs.field(init=False)
    voter_ids: tuple[str, ...] = attrs.field(init=False)
    dismissed_index: int = -1
    term_start_body: bytes = b""

    def __attrs_post_init__(self) -> None:
        self.self_id = self.config.self_id
        self.peers = PeerBeliefs(push_quota=self.config.peer_push_quota)
        self.introductions = IntroducedMembers(self.self_id, self.config.peers)
        self._follow(self.view.membership)

    def _follow(self, found: Membership | None) -> None:
        self.membership = found or Membership(voters=self.config.peers)
        self.peer_ids = tuple(sorted(self.membership.addresses.keys() - {self.self_id}))
        self.voter_ids = tuple(one for one in self.peer_ids if one in self.membership.voters)
        self.introductions.follow(self.membership)

    @property
    def is_leader(self) -> bool:
        """Whether this member leads its term."""
        return self.role is Role.LEADER

    @property
    def is_voter(self) -> bool:
        """Whether this member counts, by its own ledger, and by what others reported."""
        is_dismissed = self.dismissed_index > self.membership.index
        return self.self_id in self.membership.voters and not is_dismissed

    def had_members(self, ids: str) -> bool:
        """Whether the log has had this list of members, C{n0;n1;n2} in order, or may have begun with it."""
        known = [one for one in self.view.memberships if one.is_changed]
        lists = (self.config.peers, *(one.addresses for one in known))
        return any(ids == ";".join(sorted(one)) for one in lists) or (
            bool(known) and known[0].may_follow(ids.split(";"))
        )

    def knows(self, member_id: str | None) -> bool:
        """Whether C{member_id} may be another member of this group."""
        return member_id in self.introductions.known or (
            member_id != self.self_id and member_id in self.former
        )

    @property
    def introduced(self) -> Mapping[str, str]:
        """Id to C{host:port} of the members that others report, and this ledger does not have yet."""
        return self.introductions.members

    @property
    def former(self) -> Mapping[str, str]:
        """
        The list before the last, while the entry of the last may still be cut: one of those may lead the
        others, which never had that entry, and is to cut it here.
        """
        own = self.membership
        if own.index <= self.committed_index:
            return {}
        before = [one.addresses for one in self.view.memberships if one.index < own.index]
        return before[-1] if before else self.config.peers

    @property
    def speakers(self) -> frozenset[str]:
        """Ids of all that may speak as members."""
        return frozenset({*self.membership.addresses, *self.introduced, *self.former})

    @property
    def is_understood(self) -> bool:
        """Whether a quorum, this member included, may understand its pushes."""
        return self.membership.is_quorum(self.membership.voters.keys() - self.peers.incompatible)

    @property
    def has_java_peer(self) -> bool:
        """Whether a voter has not advertised our wire: it may acknowledge entries before it flushes them."""
        return any(self.peers.wire_versions.get(peer_id, 0) < 1 for peer_id in self.voter_ids)

    @property
    def may_lead(self) -> bool:
        """Whether this member may be a candidate."""
        return (
            (not self.config.never_lead or self.successor_id is not None)
            and self.is_voter and self.repair_end_index < 0 and self.is_understood
            and not self.lacks_uncommitted and self.view.is_end_proven
            and self.next_term <= TERM_MAX
        )

    @property
    def lacks_uncommitted(self) -> bool:
        """
        Whether a damaged entry of this ledger is not known to be committed. No other member may have it: this
        one does not lead, and acknowledges nothing after it, until it has the entry again or knows it to be
        committed.
        """
        return self.view.holes_end_index > self.committed_index

    def may_acknowledge(self, index: int) -> bool:
        """Whether no entry up to C{index} is damaged and not known to be committed."""
        return self.view.holes_end_index <= self.committed_index or not any(
            hole.first_index <= index and hole.last_index > self.committed_index for hole in self.view.holes
        )

    @property
    def next_term(self) -> int:
        """The term of this member's next candidacy."""
        return max(self.term, self.ledger_end_term) + 1

    def enter_term(self, term: int, *, voted_for: str | None = None) -> None:
        """Enter a higher term: forget vote and leader, and persist."""
        assert self.term < term <= TERM_MAX, "a term never falls nor starts twice, and is bounded"
        self.term = term
        self.voted_for = voted_for
        self.leader_id = None
        self.peers.clocks.forget()
        self.out.persist(term, voted_for)

    def vote(self, candidate_id: str) -> None:
        """Give this term's only vote."""
        assert self.voted_for in (None, candidate_id), "one vote in a term"
        if self.voted_for is None:
            self.voted_for = candidate_id
            self.out.persist(self.term, candidate_id)

    @property
    def is_settled(self) -> bool:
        """
        Whether it is known that no entry above C{committed_index} was ever committed in this log: the leader
        has committed its whole log, or, at a follower, an entry of its own term, and knows of no later one.

        (A leader's log has all that was committed in earlier terms, in front of its own first entry.)
        """
        index = self.committed_index
        if self.is_leader:
            return index == self.ledger_end_index
        if index < 0 or not self.view.ends.begin_index <= index == self.peers.leader_committed_index:
            return False
        try:
            return self.view.term_of(index) == self.term
        except DamagedEntryError:
            return False  # (A peer gives it back.)

    def ticked(self, clock_ms: int) -> None:
        """A tick has come. @param clock_ms: what the clock shows then, see L{inputs.Ticked}."""
        self.awake_ms = self._ticked_ms
        self._ticked_ms = self.out.now_ms
        self.clock_ms = clock_ms

    def majority_clock_ms(self, own_ms: int) -> int:
        """
        The latest time that the clocks of a majority have reached, as they said lately in this term, in
        milliseconds since 1970; -1: a majority has not said. @param own_ms: what the own clock shows.
        """
        fresh_ms = max(FRESH_MS, 4 * self.config.heart_beat_time_interval_ms)
        said = self.peers.clocks.now(self.out.now_ms, fresh_ms)
        return self.membership.held({**said, self.self_id: own_ms}, -1)

    def refresh_end(self) -> None:
        """Read the end of the changed ledger again."""
        ends = self.view.ends
        self.ledger_end_index = ends.end_index
        self.ledger_end_term = ends.end_term
        assert self.ledger_end_index >= self.committed_index, "the ledger lost committed entries"
        found = self.view.membership
        if found is not self.membership and (found is not None or self.membership.is_changed):
            self._follow(found)
            self.out.emit(fx.FollowMembership(membership=self.membership))
            self.out.report("membership", index=self.membership.index,
                            voters=";".join(sorted(self.membership.voters)),
                            learners=";".join(sorted(self.membership.learners)))

    @property
    def stands_last(self) -> bool:
        """Whether another member should lead, if one can."""
        return self.is_full or self.peers.machine.is_unfit or self.view.group is None

    def owes(self, end_index: int) -> None:
        """The ledger must reach this end before the member votes again; -1 for none."""
        self.repair_end_index = max(self.repair_end_index, end_index)

    def commit(self, index: int) -> bool:
        """Entries up to C{index} are committed. @return: whether C{committed_index} rose."""
        if index <= self.committed_index:
            return False
        assert index <= self.ledger_end_index, "a commit beyond the end"
        self.committed_index = index
        self.out.emit(fx.RecordCommit(committed_index=index))
        return True

    def base_fields(self, peer_id: str) -> MessageFields:
        """Base fields of a request to C{peer_id}."""
        return {
            "group": self.config.group,
            "remote_id": peer_id,
            "local_id": self.config.self_id,
            "leader_id": self.leader_id,
            "term": self.term,
            "wire_version": WIRE_VERSION,
        }
