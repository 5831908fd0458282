# -*- test-case-name: tests.sim.test_words -*-
"""
What a member says is so: its requests to others, and its answers to them, fit its state, its log and the
request that they answer.

The other invariants look at what becomes of a message. A wrong one is often without harm: it is refused, or
comes again, and something happens later than it could. So a message is looked at when it leaves.
"""

from __future__ import annotations

from typing import NamedTuple

import attrs

from dledger.core.election.java_elections import PROBE_TERM
from dledger.core.replica import DLedgerCore
from dledger.core.replication.dispatcher import DispatcherState
from dledger.core.state import effects as fx
from dledger.core.state import inputs as ev
from dledger.core.state.member_state import MemberState, Role
from dledger.testing.group.checks.apart import ApartInvariants
from dledger.testing.group.checks.checked_member import CheckedMember
from dledger.testing.group.checks.invariants import GroupInvariants
from dledger.testing.group.checks.mirror import Mirror
from dledger.testing.group.checks.require import InvariantError, require
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import WIRE_FLAG_DISK_FULL, PushType, VoteResult
from protocols.wire.ledger.entry import ENTRY_HEADER
from protocols.wire.ledger.messages import (
    HeartBeatRequest,
    HeartBeatResponse,
    LeadershipTransferRequest,
    LeadershipTransferResponse,
    MembershipRequest,
    MembershipResponse,
    MetadataResponse,
    PushEntryRequest,
    PushEntryResponse,
    Request,
    Response,
    VoteRequest,
    VoteResponse,
)

#: Number in docs/invariants.md.
WORDS = 18
#: A field of a message, what it says, and whether that is so.
Said = tuple[str, object, bool]


class BeforeStep(NamedTuple):
    """The state of a member when its present step began: messages are made before it changes, or after."""

    term: int = 0
    role: Role = Role.FOLLOWER
    leader_id: str | None = None
    committed_index: int = -1


def before_step(state: MemberState) -> BeforeStep:
    """The present state of a member, for the step that begins."""
    return BeforeStep(state.term, state.role, state.leader_id, state.committed_index)


def is_heartbeat_of_follower(happened: ev.Input) -> bool:
    """Whether a follower has answered a heartbeat: its leader looks at all that it knows."""
    return (
        isinstance(happened, ev.ResponseReceived) and isinstance(happened.response, HeartBeatResponse)
        and happened.response.code is ResponseCode.SUCCESS
    )


def commits_at_once(core: DLedgerCore, mirror: Mirror, name: str) -> None:
    """
    A leader has committed an entry that it knows a majority to hold when it has heard a follower, or flushed.

    @raise InvariantError: it does not.
    """
    leading, state = core.leading, core.member
    quorum, config = leading.quorum, state.config
    if quorum is None:
        return
    own = state.flushed_index if config.is_sync else state.ledger_end_index
    dispatchers = leading.dispatchers
    voters = state.membership.voters
    marks = sorted((
        own if voter == state.self_id else -1 if voter not in dispatchers else dispatchers[voter].match_index
        for voter in voters
    ), reverse=True)
    index = marks[len(voters) // 2]
    if config.is_sync and state.has_java_peer:
        index = min(index, state.flushed_index)
    if index > state.committed_index and mirror.term_of(index) == state.term:
        raise InvariantError(WORDS, (
            f"{name} leads, and knows that a majority holds {index}: it has committed {state.committed_index}"
        ))


@attrs.define
class WordRules:
    """
    The rules of one group.

    @ivar invariants: the records of its members.
    @ivar leaders: who has sent heartbeats in a term.
    """

    invariants: GroupInvariants
    leaders: dict[int, str] = attrs.Factory(dict)

    def _judge(self, member: CheckedMember, message: Request | Response, said: list[Said]) -> None:
        for what, value, is_so in said:
            if not is_so:
                state = member.core.member
                raise InvariantError(WORDS, (
                    f"{member.member_id} says {what} {value} in {message}; it is {state.role.value} of term "
                    f"{state.term} under {state.leader_id}, {state.ledger_end_index}/{state.committed_index}"
                ))

    def sees_its_end(self, member: CheckedMember) -> None:
        """The core of a member knows the end of its log."""
        state, mirror = member.core.member, self.invariants.mirror(member.member_id)
        known = state.ledger_end_index, state.ledger_end_term
        held = mirror.end_index, mirror.term_of(mirror.end_index)
        require(known == held, WORDS, f"{member.member_id} goes by the end {known}, and holds {held}")

    def reports(self, member: CheckedMember, report: fx.Report) -> None:
        """Who hands over of its own accord names a member that takes its entries."""
        core = member.core
        giving = core.transfer.giving
        if report.event != "transfer-started" or giving is None or giving.request is not None:
            return
        dispatcher = core.leading.dispatchers.get(giving.transferee_id)
        is_so = core.member.ledger_end_index < 0 or (
            dispatcher is not None and dispatcher.state is DispatcherState.APPEND)
        require(is_so, WORDS, f"{member.member_id} hands over to {giving.transferee_id}, which it searches")

    # -- requests -------------------------------------------------------------------------------

    def asks(self, member: CheckedMember, before: BeforeStep, peer_id: str, request: Request) -> None:
        """A member sends a request to another."""
        if isinstance(self.invariants, ApartInvariants):
            return
        state = member.core.member
        said: list[Said] = [("to", request.remote_id, request.remote_id == peer_id)]
        if isinstance(request, PushEntryRequest):
            said += self._of_leader(before, state, request)
            said.append(("commit index", request.commit_index,
                         before.committed_index <= request.commit_index <= state.committed_index))
            if request.entries is not None:
                said += self._of_entries(member, request)
        elif isinstance(request, HeartBeatRequest):
            said += self._of_leader(before, state, request)
            self.leaders[request.term] = member.member_id
            interval_ms = request.heart_beat_interval_ms
            said.append(("interval", interval_ms,
                         interval_ms == state.config.heart_beat_time_interval_ms))
        elif isinstance(request, VoteRequest):
            said += self._of_candidate(member, before, request)
        elif isinstance(request, LeadershipTransferRequest):
            said += self._of_leader(before, state, request)
            index = request.take_leadership_ledger_index
            said.append(("index", index, index == state.ledger_end_index))
        self._judge(member, request, said)

    def _of_leader(self, before: BeforeStep, state: MemberState, request: Request) -> list[Said]:
        return [
            ("leader", request.leader_id, request.leader_id == state.self_id),
            ("term", request.term, request.term in (before.term, state.term)),
        ]

    def _of_entries(self, member: CheckedMember, request: PushEntryRequest) -> list[Said]:
        """The first and the last entry are those of the leader's log, at their places."""
        entries, mirror = request.entries, self.invariants.mirror(member.member_id)
        assert entries is not None
        if mirror.lost or member.damaged:
            return []
        first, last = entries.first_index, entries.last_index
        reported = ENTRY_HEADER.unpack_from(entries.records)[2:4]
        return [
            ("first entry", first, reported == (first, mirror.term_of(first))),
            ("last term", entries.term, entries.term == mirror.term_of(last)),
        ]

    def _of_candidate(
        self, member: CheckedMember, before: BeforeStep, request: VoteRequest
    ) -> list[Said]:
        state, mirror = member.core.member, self.invariants.mirror(member.member_id)
        end = request.ledger_end_index, request.ledger_end_term
        above = 1 if request.pre_vote else 0
        return [
            ("candidate", request.leader_id, request.leader_id == state.self_id),
            ("end", end, end == (mirror.end_index, mirror.term_of(mirror.end_index))),
            ("term", request.term,
             request.term in (before.term + above, state.term + above, PROBE_TERM)),
        ]

    # -- answers --------------------------------------------------------------------------------

    def answers(
        self, member: CheckedMember, before: BeforeStep, request: Request, response: Response, *,
        is_at_once: bool,
    ) -> None:
        """A member answers. @param is_at_once: in the step in which the request came."""
        if isinstance(self.invariants, ApartInvariants):
            return
        said: list[Said] = []
        if isinstance(response, PushEntryResponse):
            assert isinstance(request, PushEntryRequest)
            said = self._of_follower(member, request, response, is_at_once=is_at_once)
        elif isinstance(response, VoteResponse):
            assert isinstance(request, VoteRequest)
            said = self._of_voter(member, before, request, response)
        elif isinstance(response, HeartBeatResponse):
            said = self._of_heart(member, before, request, response)
        elif isinstance(response, MetadataResponse):
            said = self._of_facts(member, before, response)
        elif isinstance(response, MembershipResponse):
            assert isinstance(request, MembershipRequest)
            said = self._of_change(member, request, response)
        elif isinstance(response, LeadershipTransferResponse):
            assert isinstance(request, LeadershipTransferRequest)
            said = self._of_transfer(member, request, response)
        self._judge(member, response, said)

    def _of_follower(
        self, member: CheckedMember, request: PushEntryRequest, response: PushEntryResponse, *,
        is_at_once: bool,
    ) -> list[Said]:
        """
        Where its log begins and ends; SUCCESS: it knows the commit that came with the entries; a refused
        COMPARE: it has another entry.
        """
        state, mirror = member.core.member, self.invariants.mirror(member.member_id)
        begin, end = response.begin_index, response.end_index
        said: list[Said] = [("end", end, end == mirror.end_index)]
        if mirror.terms:
            said.append(("begin", begin, begin == member.ledger.ledger_begin_index))
        entries = request.entries
        if response.code is ResponseCode.SUCCESS:
            reached = mirror.end_index if entries is None else entries.last_index
            known = min(request.commit_index, reached)
            said.append(("success of a commit of", known, state.committed_index >= known))
        elif entries is not None and request.type is PushType.COMPARE and is_at_once and (
            response.code is ResponseCode.INCONSISTENT_STATE and not (mirror.lost or member.damaged)
        ):
            index = entries.first_index
            record = self.invariants.records.get((index, mirror.term_of(index)), (b"", -1))[0]
            said.append(("to have no", index, record != entries.records))
        return said

    def _of_voter(
        self, member: CheckedMember, before: BeforeStep, request: VoteRequest, response: VoteResponse
    ) -> list[Said]:
        """The reason of a voter is one."""
        state, result, candidate = member.core.member, response.vote_result, request.leader_id
        mirror = self.invariants.mirror(member.member_id)
        own = mirror.term_of(mirror.end_index), mirror.end_index
        its = request.ledger_end_term, request.ledger_end_index
        if result is VoteResult.ACCEPT:
            is_so = its >= own and (
                request.term > before.term if request.pre_vote else request.term == state.term)
        elif result is VoteResult.REJECT_EXPIRED_LEDGER_TERM:
            is_so = its[0] < own[0]
        elif result is VoteResult.REJECT_SMALL_LEDGER_END_INDEX:
            is_so = its[0] == own[0] and its[1] < own[1]
        elif result is VoteResult.REJECT_EXPIRED_VOTE_TERM:
            is_so = request.term <= state.term if request.pre_vote else request.term < state.term
        elif result is VoteResult.REJECT_ALREADY_VOTED:
            is_so = state.voted_for not in (None, candidate)
        elif result is VoteResult.REJECT_ALREADY_HAS_LEADER:
            others = {before.leader_id, state.leader_id} - {None}
            is_so = bool(others if request.pre_vote else others - {candidate})
        elif result is VoteResult.REJECT_UNKNOWN_LEADER:
            is_so = not self._surely_knows(member, candidate)
        else:
            return []
        return [("vote", result.name, is_so)]

    def _surely_knows(self, member: CheckedMember, other_id: str | None) -> bool:
        """Whether the log of a member names another one, or, while it names nobody, its options do."""
        state = member.core.member
        known = other_id in self.invariants.membership_of(member.member_id).addresses
        return known and (state.membership.index >= 0 or other_id in state.config.peers)

    def _of_heart(
        self, member: CheckedMember, before: BeforeStep, request: Request, response: HeartBeatResponse
    ) -> list[Said]:
        """Whom it follows, and whether its disk is full."""
        state, code, leader_id = member.core.member, response.code, request.leader_id
        if code is ResponseCode.SUCCESS:
            is_so = (state.leader_id, state.term) == (leader_id, request.term)
        elif code is ResponseCode.EXPIRED_TERM:
            is_so = request.term < state.term
        elif code is ResponseCode.UNKNOWN_MEMBER:
            is_so = not self._surely_knows(member, leader_id)
        elif code is ResponseCode.INCONSISTENT_LEADER:
            is_so = leader_id not in (state.leader_id, None)
        else:
            return []
        is_full = bool(response.wire_version & WIRE_FLAG_DISK_FULL)
        return [("heartbeat", code.name, is_so), ("full", is_full, is_full == state.is_full)]

    def _of_facts(
        self, member: CheckedMember, before: BeforeStep, response: MetadataResponse
    ) -> list[Said]:
        state, mirror = member.core.member, self.invariants.mirror(member.member_id)
        name = state.group_name
        group = response.group_id, response.group_term, response.is_group_known
        return [
            ("leader", response.leader_id, response.leader_id == state.leader_id),
            ("term", response.term, response.term == state.term),
            ("role", response.role, response.role == state.role.value),
            ("end", response.end_index, response.end_index == mirror.end_index),
            ("commit", response.committed_index, response.committed_index == state.committed_index),
            ("group", group, group == (name.id, name.term, name.is_known)),
            ("members", response.peers, response.peers == state.membership.addresses),
        ]

    def _of_change(
        self, member: CheckedMember, request: MembershipRequest, response: MembershipResponse
    ) -> list[Said]:
        """SUCCESS: these are the members, by a committed entry or as they are already; or would be."""
        state, code = member.core.member, response.code
        if code is ResponseCode.NOT_LEADER:
            return [("change", code.name, state.role is not Role.LEADER)]
        if code is not ResponseCode.SUCCESS or (request.is_dry and response.index < 0):
            return []
        index, now = response.index, self.invariants.membership_of(member.member_id)
        if index >= 0:
            term = self.invariants.committed.get(index, -1)
            found = self.invariants.configurations.get((index, term))
            if found is None or index > state.committed_index:
                return [("change at", index, False)]
            now = found
        return [("voters", response.voters, response.voters.keys() == now.voters.keys()),
                ("learners", response.learners, response.learners.keys() == now.learners.keys())]

    def _of_transfer(
        self, member: CheckedMember, request: LeadershipTransferRequest, response: LeadershipTransferResponse
    ) -> list[Said]:
        """SUCCESS: the taker has led the term that the answer names; a taker that has won does not say no."""
        state, code = member.core.member, response.code
        taker_id = request.transferee_id
        if code is ResponseCode.SUCCESS:
            if taker_id == member.member_id:
                return [("taken", code.name, state.role is Role.LEADER and response.term == state.term)]
            if request.transfer_id == member.member_id:  # (the client asks the leader)
                return [("given", response.term, self.leaders.get(response.term) == taker_id)]
        elif taker_id == member.member_id and code is ResponseCode.TAKE_LEADERSHIP_FAILED:
            has_won = state.role is Role.LEADER and request.term < state.term
            return [("taken", code.name, not has_won)]
        return []
