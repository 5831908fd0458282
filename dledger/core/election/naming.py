# -*- test-case-name: tests.core.test_naming -*-
"""
The id of the group: random, made once, the same on every member, so that members of two groups with the same
names never mix.

A leader makes it, as a proposal of its term::

    ask the peers for their id  --quorum has one, or all answered-->  take the one of the highest term, or
                                                                      make one
    record it, ask again        --quorum has it-->                    it is known, and never changes

A follower asks the leader of its term, and records the answer durably before it reports it to others. An
answer counts only if it is of the asking member's term, and only an id that was proposed in that term, or is
known, is recorded. So two quorums cannot know two ids: this is one round of Paxos, with the terms as ballots.

A member without an id may have lost its directory, and with it an id that it had recorded. So its answer
counts for a quorum only where all voters have answered: a new group has all of them at its first election.

Java members have no id: a group with one of them gets none, or keeps the one that it has.

Source: none, this is ours; docs/divergence.md.
"""

from __future__ import annotations

import random

import attrs

from dledger.core.state import effects as fx
from dledger.core.state.member_state import MemberState
from dledger.values.ledger.group_name import GroupName, is_group_id
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import WIRE_VERSION
from protocols.wire.ledger.messages import MetadataRequest, MetadataResponse, Response

#: Bits of an id.
ID_BITS = 128


@attrs.define
class GroupNaming:
    """
    Invariant: C{_reported} has what peers answered in C{_term}, while this member led it. C{_heard} has their
    last answers: one is believed when it comes a second time. JSON has no checksum, and a wrong id, once it
    is recorded as known, keeps a member out for ever.

    @ivar rng: makes the id.
    """

    member: MemberState
    rng: random.Random
    _term: int = -1
    _reported: dict[str, GroupName] = attrs.Factory(dict)
    _heard: dict[str, GroupName] = attrs.Factory(dict)
    _asked_ms: int = -(1 << 40)

    def tick(self) -> None:
        """Time passed: propose, or ask, unless the id is known."""
        member = self.member
        if member.group_name.is_known or member.leader_id is None:
            return
        if member.is_leader:
            if member.has_java_peer:
                return
            if self._term != member.term:
                self._term = member.term
                self._reported.clear()
            self._propose()
        elif not member.peers.is_ours(member.leader_id):
            return
        if member.out.now_ms - self._asked_ms < member.config.heart_beat_time_interval_ms:
            return
        self._asked_ms = member.out.now_ms
        asked = member.peer_ids if member.is_leader else (member.leader_id,)
        for peer_id in (one for one in asked if one not in member.peers.incompatible):
            member.out.send(peer_id, MetadataRequest(
                group=member.config.group, remote_id=peer_id, local_id=member.self_id,
                wire_version=WIRE_VERSION,
            ), self)

    def _propose(self) -> None:
        member, name = self.member, self.member.group_name
        if name.term != member.term:
            reported = {**self._reported, member.self_id: name}
            best = max(reported.values(), key=lambda one: one.rank)
            named = {one for one, its in reported.items() if its.id}
            if not (best.is_known or member.membership.is_quorum(named)
                    or member.membership.is_all(reported)):
                return
            new_id = best.id or f"{self.rng.getrandbits(ID_BITS):0{ID_BITS // 4}x}"
            self._record(GroupName(new_id, member.term, best.is_known))
            name = member.group_name
        holders = {one for one, reported in self._reported.items()
                   if (reported.id, reported.term) == (name.id, name.term)}
        if not name.is_known and member.membership.is_quorum(holders | {member.self_id}):
            self._record(attrs.evolve(name, is_known=True))

    def on_response(self, peer_id: str, request_id: int, response: Response) -> None:
        """A member answered."""
        member = self.member
        if not isinstance(response, MetadataResponse) or response.code is not ResponseCode.SUCCESS or (
            response.term != member.term
        ):
            return
        if response.group_id and not is_group_id(response.group_id):
            return  # no member of ours makes such an id, and no file has room for a longer one
        reported = GroupName(response.group_id, response.group_term, response.is_group_known)
        if self._heard.get(peer_id) != reported:
            self._heard[peer_id] = reported
            return
        if member.is_leader:
            if self._term == member.term:
                self._reported[peer_id] = reported
        elif peer_id == response.leader_id == member.leader_id and reported.id and (
            reported != member.group_name and not member.group_name.is_known
            and (reported.is_known or reported.term == member.term)
        ):
            self._record(reported)

    def on_request_failed(self, peer_id: str, request_id: int, reason: str) -> None:
        """It is asked again."""

    def _record(self, name: GroupName) -> None:
        member = self.member
        member.group_name = name
        member.out.emit(fx.RecordGroup(name=name))
        if name.is_known:
            member.out.report("group-named", group_id=name.id)
