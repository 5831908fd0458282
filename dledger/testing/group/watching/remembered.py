# -*- test-case-name: tests.sim.test_remembered -*-
"""
What a process keeps in its memory, or forgets, with a step: compared with its log and disk at that step.

A member that takes too little for flushed, owed or equal is slow; one that takes too much for so is wrong
only when a rare fault follows. So each rule looks at the step itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import attrs

from dledger.core.replica import DLedgerCore
from dledger.core.state import inputs as ev
from dledger.core.state.member_state import MemberState
from dledger.testing.group.checks.apart import ApartInvariants
from dledger.testing.group.checks.checked_member import CheckedMember
from dledger.testing.group.checks.invariants import GroupInvariants
from dledger.testing.group.checks.mirror import Mirror
from dledger.testing.group.checks.moments import ANEW, CUT_BELOW_HOLE, Moments
from dledger.testing.group.checks.naming import NameRules
from dledger.testing.group.checks.require import require
from dledger.values.ledger.group_name import GroupName
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.memberships import decode_reported
from protocols.wire.ledger.messages import MetadataRequest, MetadataResponse, Request, VoteRequest

#: Numbers in docs/invariants.md.
CUTS, LISTS, NAMES, WORDS, RECORDS = 4, 9, 13, 18, 20


class RememberingWorld(Protocol):
    """The parts of the world that a rule needs."""

    invariants: GroupInvariants
    moments: Moments
    names: NameRules


@attrs.define
class MemoryRules:
    """
    The rules of one process.

    @ivar core: of the process. @ivar leaders: who has sent heartbeats in a term.
    """

    member: CheckedMember
    world: RememberingWorld
    core: DLedgerCore
    leaders: Mapping[int, str]
    _name: GroupName | None = None
    _led_term: int = -1
    _is_cut: Mirror | None = None
    _refused: set[str] = attrs.Factory(set)
    _asked: dict[int, str] = attrs.Factory(dict)

    @property
    def _state(self) -> MemberState:
        return self.core.member

    @property
    def _mirror(self) -> Mirror:
        return self.world.invariants.mirror(self.member.member_id)

    @property
    def _is_judged(self) -> bool:
        is_apart = isinstance(self.world.invariants, ApartInvariants)
        return not (is_apart or self.member.damaged)

    def asks(self, peer_id: str, request_id: int, request: Request) -> None:
        """
        A request goes out: for lists, if the peer had refused a vote, and the member knows its group and the
        version of the peer. Other parts ask for the same reports, and read other things in them.
        """
        state = self._state
        if type(request) is MetadataRequest and peer_id in self._refused and state.group_name.is_known:
            if state.peers.is_ours(peer_id):
                self._asked[request_id] = peer_id

    # -- before a step ----------------------------------------------------------------------------

    def before(self, happened: ev.Input) -> None:
        """The core will take an input, which the mirror of the log does not have yet."""
        self._led_term = -1
        self._refused = set()
        if type(happened) is ev.Ticked and self._state.peers.refused_by and self._state.leader_id is None:
            self._refused = {*self._state.peers.refused_by}
            self._asked = {one: peer for one, peer in self._asked.items() if peer not in self._refused}
        if isinstance(happened, ev.EntriesFlushed):
            self._flushed(happened)
        elif isinstance(happened, ev.LedgerTruncated):
            mirror = self._mirror
            self._is_cut = Mirror(mirror.begin_index, [*mirror.terms], [], {*mirror.lost})
        elif isinstance(happened, ev.RequestReceived):
            request = happened.request
            if isinstance(request, VoteRequest) and not request.pre_vote and self._state.is_leader and (
                not self.core.transfer.is_giving
            ):
                self._led_term = self._state.term

    def _flushed(self, happened: ev.EntriesFlushed) -> None:
        """A flush counts for no entry that the log lacks (20)."""
        end_index = self._mirror.end_index
        require(happened.end_index <= end_index, RECORDS, (
            f"{self.member.member_id} counts {happened.end_index} as flushed, its log ends at {end_index}"))

    def cut(self, end_index: int) -> None:
        """
        The log was cut, and the mirror knows it: who cannot read entries of the cut owes all that it had
        (20), and no entry went that the leader has at its place (4).
        """
        before, self._is_cut = self._is_cut, None
        if before is None:
            return
        now, name = self._mirror, self.member.member_id
        if now.begin_index != before.begin_index:
            self.world.moments.came(name, ANEW)
        elif before.lost and max(before.lost) > end_index:
            self.world.moments.came(name, CUT_BELOW_HOLE)
        if not before.terms or not self._is_judged:
            return
        if now.begin_index != before.begin_index:
            return  # (a log that begins anew)
        if before.lost and max(before.lost) > end_index:
            owed = self.member.ledger.repair_end_index
            require(owed >= before.end_index, RECORDS, (
                f"{name} had {before.end_index}, not all sound, is cut to {end_index}, and owes {owed}"))
        leader_id = self.leaders.get(self._state.term)
        if before.lost or leader_id is None:
            return
        leader = self.world.invariants.seen[leader_id]
        first_gone = end_index + 1
        held = before.term_of(first_gone)
        if held >= 0 and leader.term == leader.led_term == self._state.term and not leader.mirror.lost:
            require(leader.mirror.term_of(first_gone) != held, CUTS, (
                f"{name} cut ({first_gone}, t{held}), which its leader {leader_id} has"))

    # -- after a step -----------------------------------------------------------------------------

    def after(self, happened: ev.Input) -> None:
        """The core has taken an input."""
        state = self._state
        if state.group_name is not self._name:
            self._named()
        if self._led_term >= 0:
            require(state.term == self._led_term, WORDS, (
                f"{self.member.member_id} hands over to nobody, and gives way to a candidate"))
        if type(happened) is ev.Ticked:
            if state.membership.index > state.committed_index:
                self._knows_former()
            if self._refused and state.peers.refused_by:  # it asks them later
                self._asked = {one: peer for one, peer in self._asked.items() if peer not in self._refused}
        elif self._asked and isinstance(happened, ev.ResponseReceived):
            peer_id = self._asked.pop(happened.request_id, "")
            # (The last answer of a peer: one of them was for the question about lists.)
            if peer_id and peer_id not in self._asked.values() and (
                isinstance(happened.response, MetadataResponse)
            ):
                self._heard_lists(happened.response)

    def _named(self) -> None:
        """
        A member takes up a proposed id in the term of its leader alone, and knows one as soon as a majority
        of the voters has taken it up in one term (13).
        """
        state, name, rules = self._state, self._state.group_name, self.world.names
        is_first, self._name = self._name is None, name
        if isinstance(self.world.invariants, ApartInvariants):
            return
        taken = rules.taken.setdefault(self.member.member_id, set())
        is_known = bool(rules.known)
        if name.id:
            taken.add((name.id, name.term))
        if is_first or not name.id:
            return
        require(name.is_known or name.term == state.term, NAMES, (
            f"{self.member.member_id} takes up {name} in the term {state.term}"))
        if name.is_known and not is_known:
            holders = {one for one, names in rules.taken.items() if (name.id, name.term) in names}
            require(state.membership.is_quorum(holders), NAMES, (
                f"{self.member.member_id} knows {name}, which {sorted(holders)} alone have taken up"))

    def _knows_former(self) -> None:
        """While the entry of its members may be cut, a member believes those of the list before (9)."""
        state = self._state
        before = [one for one in self.member.ledger.memberships if one.index < state.membership.index]
        former = before[-1].addresses if before else state.config.peers
        require(former.keys() <= state.speakers | {state.self_id}, LISTS, (
            f"{self.member.member_id} believes {sorted(state.speakers)}; before {state.membership.index} the "
            f"members were {sorted(former)}"))

    def _heard_lists(self, response: MetadataResponse) -> None:
        """A member that hears of a later committed list without it does not count itself as a voter (9)."""
        state = self._state
        if response.code is not ResponseCode.SUCCESS or not response.configuration or not (
            state.group_name.is_known and response.group_id == state.group_name.id
        ) or isinstance(self.world.invariants, ApartInvariants):
            return
        reported = [one for one in decode_reported(response.configuration)
                    if one.index <= response.committed_index]
        if reported and reported[-1].index > state.membership.index:
            one = reported[-1].members
            is_gone = state.self_id not in {**one.voters, **one.learners}
            require(not (is_gone and state.is_voter), LISTS, (
                f"{state.self_id} has heard of the list at {reported[-1].index}, and calls itself a voter"))
