# -*- test-case-name: tests.core.test_changes -*-
"""
Changes of the members of a group, at its leader: one voter at a time, as entries of the log.

Rule 1: a change is written only when the last one is committed, and when an entry of the leader's own term is
committed. Then the majorities of every two memberships that can be in force at once have a member in common
(Raft dissertation, 4.1, with the correction of 2015: the second condition).
Rule 2: a learner is promoted when it is alive and has nearly all entries. A change that would leave no quorum
of live members with nearly all entries is refused, unless the operator forces it; so is the removal that
leaves a single voter, the only copy that counts.
Rule 3: a leader that is to be removed hands over first; the next leader removes it. So a leader is a voter.
Rule 4: no member is of Java, which does not read configuration entries. Before the first change of a group,
every member that stays must have answered this leader.
Rule 5: a change that is in force already is answered SUCCESS: after an unknown outcome it is asked for again.

Source: Raft dissertation, chapter 4; docs/membership.md.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from dledger.core.election.transfer import LeadershipTransfer
from dledger.core.replication.appends import QuorumAckChecker
from dledger.core.replication.dispatcher import EntryDispatcher
from dledger.core.state import effects as fx
from dledger.core.state.member_state import MemberState
from dledger.values.ledger.membership import ADD, MOVE, PROMOTE, REMOVE, Membership
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import WIRE_VERSION
from protocols.wire.ledger.messages import MembershipRequest, MembershipResponse
from protocols.wire.ledger.own.own_entries import TERM_START_CHANNEL


@attrs.define
class _Pending:
    """A change that is being written, or waits for its commit. C{index}: -1 until it is written."""

    token: int
    request: MembershipRequest
    wanted: Membership
    deadline_ms: int
    index: int = -1


class ChangeRefused(Exception):
    """A change is not made now. @ivar code: for the answer."""

    def __init__(self, code: ResponseCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


@attrs.define
class MembershipChanges:
    """
    Invariant: at most one change waits; every token is answered once.
    """

    member: MemberState
    transfer: LeadershipTransfer
    _pending: _Pending | None = None

    def on_request(
        self, token: int, request: MembershipRequest, quorum: QuorumAckChecker | None,
        dispatchers: Mapping[str, EntryDispatcher], refusal: ResponseCode | None,
    ) -> None:
        """
        An operator asks for a change.

        @param quorum: of this leader's term; None unless this member leads.
        @param refusal: why this member takes no appends now; None if it takes them.
        """
        member = self.member
        try:
            if refusal is not None or quorum is None:
                raise ChangeRefused(refusal or ResponseCode.NOT_LEADER, "this member takes no changes now")
            wanted = self._wanted(request)
            if wanted is None:
                why = f"nothing to change: {_why_nothing(request)}"
                self._answer(token, request, ResponseCode.SUCCESS, why, member.membership)
                return
            self._check_capable(request)
            self._may_begin(request, quorum)
            self._check(request, wanted, dispatchers)
            is_own = request.change == REMOVE and request.member_id == member.self_id
            if request.is_dry:
                what = "the leader would hand over first" if is_own else "the change would be made"
                self._answer(token, request, ResponseCode.SUCCESS, what, wanted)
                return
            if is_own:
                self._hand_over(dispatchers)
        except ChangeRefused as refused:
            self._answer(token, request, refused.code, str(refused))
            return
        deadline_ms = member.out.now_ms + member.config.max_wait_ack_time_ms
        self._pending = _Pending(token, request, wanted, deadline_ms)
        member.out.write(fx.WriteConfiguration(
            first_index=member.ledger_end_index + 1, term=member.term, membership=wanted,
        ))

    # -- conditions -------------------------------------------------------------------------

    def _wanted(self, request: MembershipRequest) -> Membership | None:
        try:
            return self.member.membership.changed(request.change, request.member_id, request.address)
        except ValueError as error:
            raise ChangeRefused(ResponseCode.UNEXPECTED_ARGUMENT, str(error)) from None

    def _may_begin(self, request: MembershipRequest, quorum: QuorumAckChecker) -> None:
        """
        @raise ChangeRefused: rule 1, or the group has no id yet, by which its members know each other. A
            voter that never answers keeps it from getting one, so a removal needs none.
        """
        member = self.member
        if self._pending is not None or member.membership.index > member.committed_index:
            raise ChangeRefused(ResponseCode.LEADER_PENDING_FULL, "the last change is not committed yet")
        # (A change writes that entry, a dry run does not.)
        if member.committed_index < quorum.term_start_index and not request.is_dry:
            if member.ledger_end_index < quorum.term_start_index:
                member.out.write(fx.WriteBodies(
                    first_index=member.ledger_end_index + 1, term=member.term,
                    bodies=(member.term_start_body,), channels=(TERM_START_CHANNEL,),
                ))
            raise ChangeRefused(ResponseCode.LEADER_NOT_READY, "no entry of the leader's term is committed")
        if not member.group_name.is_known and request.change != REMOVE:
            long_ago = member.out.now_ms - 10 * member.config.heart_beat_time_interval_ms
            heard = member.peers.last_heard_ms
            silent = ", ".join(one for one in member.voter_ids if heard.get(one, long_ago) <= long_ago)
            raise ChangeRefused(ResponseCode.LEADER_NOT_READY, (
                "the group has no id yet: each voter must answer once"
                + (f", and {silent} does not: start it, also with an empty directory, or remove it"
                   if silent else "")
            ))

    def _others(self, request: MembershipRequest) -> list[str]:
        """The other members that stay."""
        is_removal, target = request.change == REMOVE, request.member_id
        return [one for one in self.member.peer_ids if not (is_removal and one == target)]

    def _check_capable(self, request: MembershipRequest) -> None:
        """
        Before anything that passes with time: such a group never gets an id, and waiting does not help.

        @raise ChangeRefused: rule 4, a member that stays is of Java.
        """
        member, others = self.member, self._others(request)
        incapable = [one for one in others if member.peers.is_java(one)]
        if incapable:
            raise ChangeRefused(ResponseCode.UNSUPPORTED, (
                f"{', '.join(incapable)}: members of Java, which do not read configuration entries"
            ))

    def _check(
        self, request: MembershipRequest, wanted: Membership, dispatchers: Mapping[str, EntryDispatcher]
    ) -> None:
        """@raise ChangeRefused: rules 2 and 4."""
        member, target, others = self.member, request.member_id, self._others(request)
        unheard = [one for one in others if member.peers.is_unheard(one)]
        if unheard and not member.membership.is_changed:
            raise ChangeRefused(ResponseCode.LEADER_NOT_READY, (
                f"{', '.join(unheard)}: not heard by this leader yet. Before the first change every member "
                "that stays must have answered, so that it is known not to be of Java"
            ))
        close = set(self.transfer.caught_up(tuple(dispatchers), dispatchers))
        if request.change == PROMOTE and target not in close:
            behind = member.ledger_end_index - dispatchers[target].match_index
            reason = f"{target} lacks {behind} entries, or is silent"
            raise ChangeRefused(ResponseCode.FALL_BEHIND_TOO_MUCH, reason)
        if request.change == ADD or request.is_forced:
            return
        if len(wanted.voters) == 1 < len(member.membership.voters):
            raise ChangeRefused(ResponseCode.UNEXPECTED_ARGUMENT, (
                f"without {target} a single voter, {''.join(wanted.voters)}, would be left, and with it the "
                "only copy that counts: add and promote another member first, or force the change"
            ))
        alive = (close | {member.self_id}) - ({target} if request.change in (MOVE, REMOVE) else set())
        if not wanted.is_quorum(alive):
            raise ChangeRefused(ResponseCode.FALL_BEHIND_TOO_MUCH, (
                f"of the new voters {', '.join(sorted(wanted.voters))} only "
                f"{', '.join(sorted(alive & wanted.voters.keys())) or 'none'} are alive and caught up, and "
                f"{wanted.quorum} are needed: repair the others first, or force the change"
            ))

    def _hand_over(self, dispatchers: Mapping[str, EntryDispatcher]) -> None:
        """@raise ChangeRefused: always; this leader does not write its own removal."""
        self.transfer.offer(dispatchers)
        if not self.transfer.is_giving:
            raise ChangeRefused(ResponseCode.FALL_BEHIND_TOO_MUCH, "no other voter is alive and caught up")
        raise ChangeRefused(ResponseCode.LEADER_TRANSFERRING, "the leader hands over first; ask the next one")

    # -- outcomes ---------------------------------------------------------------------------

    def on_written(self, index: int) -> None:
        """An entry of this leader is in the file: the change, if one is being written."""
        if self._pending is not None and self._pending.index < 0:
            self._pending.index = index

    def on_write_refused(self, code: ResponseCode, reason: str) -> None:
        """The store refused this leader's write."""
        if self._pending is not None and self._pending.index < 0:
            self._end(code, reason)

    def committed(self, committed_index: int) -> None:
        """The commit index rose."""
        if self._pending is not None and 0 <= self._pending.index <= committed_index:
            self._end(ResponseCode.SUCCESS, "done", self._pending.wanted)

    def expire(self) -> None:
        """Answer a change whose deadline passed; it may be committed later."""
        if self._pending is not None and self.member.out.now_ms >= self._pending.deadline_ms:
            self._end(ResponseCode.WAIT_QUORUM_ACK_TIMEOUT, "not committed in time; it may be later")

    def fail_all(self) -> None:
        """Leadership ended: whether the change will be committed is unknown."""
        if self._pending is not None:
            self._end(ResponseCode.TERM_CHANGED, "leadership ended; the change may be committed all the same")

    def _end(self, code: ResponseCode, reason: str, then: Membership | None = None) -> None:
        pending, self._pending = self._pending, None
        assert pending is not None
        self._answer(pending.token, pending.request, code, reason, then, index=pending.index)

    def _answer(
        self, token: int, request: MembershipRequest, code: ResponseCode, reason: str,
        then: Membership | None = None, *, index: int = -1,
    ) -> None:
        member = self.member
        if code is not ResponseCode.SUCCESS or not request.is_dry:
            member.out.report("membership-asked", change=request.change, member_id=request.member_id,
                              code=code.name, reason=reason)
        member.out.reply(token, MembershipResponse(
            group=request.group, remote_id=request.remote_id, local_id=request.local_id, code=code,
            reason=reason, leader_id=member.leader_id, term=member.term, wire_version=WIRE_VERSION,
            voters={} if then is None else then.voters, learners={} if then is None else then.learners,
            index=index,
        ))


def _why_nothing(request: MembershipRequest) -> str:
    """Why a change is in force already."""
    who = request.member_id[:255]
    if request.change == REMOVE:
        return f"no member has the id {who}"
    return f"{who} is a voter" if request.change == PROMOTE else f"{who} is a member at {request.address}"
