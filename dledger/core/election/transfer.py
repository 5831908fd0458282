# -*- test-case-name: tests.core.test_transfer,tests.core.test_room -*-
"""
Leadership transfer, on both sides.

The leader stops taking appends, waits until the taker holds its whole ledger, then asks it to take
over; the taker starts an election at once. A deadline ends every wait, and then appends continue.

The leader announces the taker to the members that speak our wire, because they refuse every other vote
while they hear it (L{dledger.core.election.voter}, rule 1): the announcement is a LEADERSHIP_TRANSFER that
names another taker than its receiver. Members that do not know it answer 411 and wait for their patience.

A client may ask for a transfer again only after a pause: while a transfer is under way no append is taken.

Source: DLedgerLeaderElector.handleLeadershipTransfer, handleTakeLeadership, DLedgerServer
.checkPreferredLeader; differs: the leader waits for the taker instead of the taker polling.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs

from dledger.core.election.elector import LeaderElector
from dledger.core.replication.dispatcher import DispatcherState, EntryDispatcher
from dledger.core.state.member_state import MemberState
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import WIRE_VERSION
from protocols.wire.ledger.messages import (
    LeadershipTransferRequest,
    LeadershipTransferResponse,
    Response,
)

#: Milliseconds between a leader's checks for a preferred leader that has caught up.
PREFERRED_CHECK_INTERVAL_MS = 1000
#: A leader that took over by a transfer gives leadership up for a client or a preferred member again after
#: this pause, milliseconds; a leader whose transfer failed after the second, because a failed one takes up to
#: two waits of C{leadership_transfer_wait_timeout}.
TRANSFER_PAUSE_MS = 3000
FAILED_TRANSFER_PAUSE_MS = 10_000

#: A leader with a full disk offers leadership to the same peer again after this many milliseconds. A Java
#: peer does not say whether its disk is full, so it is asked less often.
FULL_AGAIN_MS = 5_000
FULL_AGAIN_JAVA_MS = 120_000


@attrs.define
class GivingUp:
    """A transfer from this leader; C{token} and C{request} are None if the leader itself began it."""

    transferee_id: str
    term: int
    deadline_ms: int
    token: int | None
    request: LeadershipTransferRequest | None
    ask_id: int | None = None


@attrs.define
class Taking:
    """A transfer to this member: it waits until the ledger holds C{need_index}, then for its election."""

    token: int
    request: LeadershipTransferRequest
    need_index: int
    deadline_ms: int
    has_begun: bool = False


@attrs.define
class LeadershipTransfer:
    """
    Invariant: at most one transfer in each direction; every token is answered once.

    @ivar giving, taking: the transfer from this member, and the one to it, if one is under way.
    @ivar next_check_ms: when a leader looks again for a preferred leader that has caught up.
    """

    member: MemberState
    elector: LeaderElector
    ended: Callable[[ResponseCode], None]
    giving: GivingUp | None = None
    taking: Taking | None = None
    next_check_ms: int = 0
    _pause_until_ms: int = 0
    _offer_again_ms: dict[str, int] = attrs.Factory(dict)

    @property
    def transferee_id(self) -> str | None:
        """The member that leadership is being handed to; until the end appends are refused."""
        giving = self.giving
        return giving.transferee_id if giving is not None and giving.term == self.member.term else None

    @property
    def is_giving(self) -> bool:
        """Whether the end of a transfer from this member is awaited."""
        return self.giving is not None

    # -- requests ---------------------------------------------------------------------------

    def on_request(
        self, token: int, request: LeadershipTransferRequest, dispatchers: Mapping[str, EntryDispatcher]
    ) -> None:
        """A client asks the leader, or the leader asks the taker."""
        member = self.member
        if request.transfer_id == member.self_id:
            code = self._may_give(request, dispatchers)
            if code is None:
                assert request.transferee_id is not None
                self._begin(request.transferee_id, token, request, dispatchers)
            else:
                self._answer(token, request, code)
        elif request.transferee_id == member.self_id:
            self._take(token, request)
        elif member.knows(request.transferee_id) and request.transfer_id == member.leader_id:
            self._announced(token, request)
        else:
            self._answer(token, request, ResponseCode.UNEXPECTED_ARGUMENT)

    def _may_give(
        self, request: LeadershipTransferRequest, dispatchers: Mapping[str, EntryDispatcher]
    ) -> ResponseCode | None:
        member = self.member
        if request.transferee_id not in member.voter_ids:
            return ResponseCode.UNKNOWN_MEMBER
        if request.term not in (member.term, -1):
            return ResponseCode.INCONSISTENT_TERM
        if not member.is_leader:
            return ResponseCode.NOT_LEADER
        if self.giving is not None or member.out.now_ms < self._pause_until_ms:
            return ResponseCode.LEADER_TRANSFERRING
        silent_ms = member.out.now_ms - member.peers.last_heard_ms.get(request.transferee_id, -(1 << 40))
        if silent_ms >= self.elector.patience.allowed_ms():
            return ResponseCode.NETWORK_ERROR
        behind = member.ledger_end_index - dispatchers[request.transferee_id].match_index
        if behind >= member.config.max_leadership_transfer_wait_index:
            return ResponseCode.FALL_BEHIND_TOO_MUCH
        return None

    def _begin(
        self, transferee_id: str, token: int | None, request: LeadershipTransferRequest | None,
        dispatchers: Mapping[str, EntryDispatcher],
    ) -> None:
        member = self.member
        # Time for the taker to catch up, to win an election and to answer.
        deadline_ms = member.out.now_ms + 2 * member.config.leadership_transfer_wait_timeout
        self.giving = GivingUp(transferee_id, member.term, deadline_ms, token, request)
        member.out.report("transfer-started", transferee_id=transferee_id, term=member.term)
        self.elector.voter.expect(transferee_id, until_ms=deadline_ms)
        for peer_id in member.peer_ids:
            if peer_id != transferee_id and member.peers.is_ours(peer_id):
                member.out.send(peer_id, self._naming(peer_id, transferee_id), self)
        self.advance(dispatchers)

    def offer(self, dispatchers: Mapping[str, EntryDispatcher]) -> None:
        """Hand over to the live peer that is least behind, if there is one, because this member stops."""
        live = self._live(tuple(dispatchers), dispatchers)
        if live and self.giving is None:
            self._begin(live[0], None, None, dispatchers)

    def _live(
        self, peer_ids: tuple[str, ...], dispatchers: Mapping[str, EntryDispatcher]
    ) -> list[str]:
        """Those of C{peer_ids} that could take over; the closest first."""
        return [one for one in self.caught_up(peer_ids, dispatchers) if one in self.member.voter_ids]

    def caught_up(
        self, peer_ids: tuple[str, ...], dispatchers: Mapping[str, EntryDispatcher]
    ) -> list[str]:
        """Those of C{peer_ids} that were heard from lately and are not far behind; the closest first."""
        member, config = self.member, self.member.config
        # No peer can lack an entry of an empty ledger, and none is compared with it.
        is_empty = member.ledger_end_index < 0
        found = []
        for peer_id in peer_ids:
            dispatcher = dispatchers.get(peer_id)
            if dispatcher is None or not (is_empty or dispatcher.state is DispatcherState.APPEND):
                continue
            behind = member.ledger_end_index - dispatcher.match_index
            silent_ms = member.out.now_ms - member.peers.last_heard_ms.get(peer_id, -(1 << 40))
            if behind < config.max_leadership_transfer_wait_index and (
                silent_ms < self.elector.patience.allowed_ms()
            ):
                found.append((behind, peer_id))
        return [peer_id for _, peer_id in sorted(found)]

    # -- giving up --------------------------------------------------------------------------

    def advance(self, dispatchers: Mapping[str, EntryDispatcher]) -> None:
        """Ask the taker to take over if it has caught up."""
        giving, member = self.giving, self.member
        if giving is None or giving.ask_id is not None or giving.term != member.term or not member.is_leader:
            return
        if dispatchers[giving.transferee_id].match_index < member.ledger_end_index:
            return
        request = self._naming(giving.transferee_id, giving.transferee_id)
        giving.ask_id = member.out.send(giving.transferee_id, request, self)

    def _naming(self, peer_id: str, transferee_id: str) -> LeadershipTransferRequest:
        """To the taker: take over. To any other peer: that one takes over."""
        member = self.member
        return LeadershipTransferRequest(
            **member.base_fields(peer_id),
            transfer_id=member.self_id,
            transferee_id=transferee_id,
            take_leadership_ledger_index=member.ledger_end_index,
        )

    def _announced(self, token: int, request: LeadershipTransferRequest) -> None:
        """Our leader hands over to another member: its votes count although we hear this leader."""
        member = self.member
        if request.term != member.term:
            self._answer(token, request, ResponseCode.INCONSISTENT_TERM)
            return
        wait_ms = 2 * member.config.leadership_transfer_wait_timeout
        self.elector.voter.expect(request.transferee_id, until_ms=member.out.now_ms + wait_ms)
        self._answer(token, request, ResponseCode.SUCCESS)

    def on_response(self, peer_id: str, request_id: int, response: Response) -> None:
        """The taker answered. On success the term gate has already ended this leadership."""
        giving = self.giving
        if giving is None or giving.ask_id != request_id:
            return
        code = response.code if isinstance(response, LeadershipTransferResponse) else ResponseCode.UNKNOWN
        self._end_giving(code, term=response.term)

    def on_request_failed(self, peer_id: str, request_id: int, reason: str) -> None:
        """The taker cannot be asked."""
        if self.giving is not None and self.giving.ask_id == request_id:
            self._end_giving(ResponseCode.NETWORK_ERROR)

    def _end_giving(self, code: ResponseCode, *, term: int = -1) -> None:
        giving, self.giving = self.giving, None
        assert giving is not None
        if code is not ResponseCode.SUCCESS:
            # Overtaken is not failed: the taker may have led meanwhile, and given leadership back at once.
            was_overtaken = code is ResponseCode.EXPIRED_TERM and giving.term < self.member.term
            pause_ms = TRANSFER_PAUSE_MS if was_overtaken else FAILED_TRANSFER_PAUSE_MS
            self._pause_until_ms = self.member.out.now_ms + pause_ms
            self.elector.voter.expect(None)
        self.member.out.report("transfer-ended", transferee_id=giving.transferee_id, code=code.name)
        if giving.token is not None and giving.request is not None:
            self._answer(giving.token, giving.request, code, term=term)
        self.ended(code)

    # -- taking -----------------------------------------------------------------------------

    def _take(self, token: int, request: LeadershipTransferRequest) -> None:
        member = self.member
        if request.transfer_id != member.leader_id or member.leader_id is None:
            self._answer(token, request, ResponseCode.INCONSISTENT_LEADER)
        elif request.term != member.term:
            self._answer(token, request, ResponseCode.INCONSISTENT_TERM)
        elif not member.may_lead or member.is_unsure or self.taking is not None:
            self._answer(token, request, ResponseCode.TAKE_LEADERSHIP_FAILED)
        else:
            deadline_ms = member.out.now_ms + member.config.leadership_transfer_wait_timeout
            self.taking = Taking(token, request, request.take_leadership_ledger_index, deadline_ms)
            self.on_ledger_grew()

    def on_ledger_grew(self) -> None:
        """Start the election if the ledger has reached C{need_index}."""
        taking, member = self.taking, self.member
        if taking is None or taking.has_begun or member.ledger_end_index < taking.need_index:
            return
        is_current = taking.request.term == member.term and taking.request.transfer_id == member.leader_id
        if not (is_current and member.may_lead):
            self.taking_ended(ResponseCode.TAKE_LEADERSHIP_FAILED)
            return
        taking.has_begun = True
        self.elector.campaign_for_transfer()

    def taking_ended(self, code: ResponseCode) -> None:
        """The election that the old leader asked for has ended: answer the request."""
        if self.taking is None:
            return
        taking, self.taking = self.taking, None
        if code is ResponseCode.SUCCESS:
            self._pause_until_ms = self.member.out.now_ms + TRANSFER_PAUSE_MS
            self.member.peers.pace.transferred(self.member.out.now_ms)
        self._answer(taking.token, taking.request, code, term=self.member.term)

    # -- time -------------------------------------------------------------------------------

    def tick(self, dispatchers: Mapping[str, EntryDispatcher]) -> None:
        """Time passed: end overdue transfers, look for a preferred leader."""
        now_ms = self.member.out.now_ms
        if self.giving is not None and now_ms >= self.giving.deadline_ms:
            self._end_giving(ResponseCode.TAKE_LEADERSHIP_FAILED)
        if self.taking is not None and now_ms >= self.taking.deadline_ms:
            self.taking_ended(ResponseCode.TAKE_LEADERSHIP_FAILED)
        if self.member.is_leader and now_ms >= self.next_check_ms:
            self.next_check_ms = now_ms + PREFERRED_CHECK_INTERVAL_MS
            self._hand_over_to_successor(dispatchers)
            self.leave_if_full(dispatchers)
            self._leave_if_slow(dispatchers)
            self._check_preferred_leader(dispatchers)

    def _hand_over_to_successor(self, dispatchers: Mapping[str, EntryDispatcher]) -> None:
        """This member leads only until that one, or any other member, has its entries."""
        successor_id = self.member.successor_id
        if successor_id is None or self.giving is not None:
            return
        # (The one that asked may have died since, and another one may have come.)
        live = self._live((successor_id,), dispatchers) or self._live(tuple(dispatchers), dispatchers)
        if live:
            self._begin(live[0], None, None, dispatchers)

    def leave_if_full(self, dispatchers: Mapping[str, EntryDispatcher]) -> None:
        """
        A leader whose disk is full hands over to a live peer that is not known to be full, too; so does one
        that can get a lost entry back only from a Java leader, and one whose state machine should not lead.
        """
        member, now_ms = self.member, self.member.out.now_ms
        is_unfit = member.is_full or member.peers.seeks_java_leader or member.peers.machine.is_unfit
        if not (member.is_leader and is_unfit) or self.giving is not None:
            return
        live = self._live(tuple(dispatchers), dispatchers)
        # (A full disk is worse: without room nobody's command gets into the log.)
        for peer_id in live if member.is_full else member.peers.machine.able(live):
            if peer_id not in member.peers.full and now_ms >= self._offer_again_ms.get(peer_id, 0):
                is_java = not member.peers.is_ours(peer_id)
                self._offer_again_ms[peer_id] = now_ms + (FULL_AGAIN_JAVA_MS if is_java else FULL_AGAIN_MS)
                why = "leaving-damaged" if member.peers.seeks_java_leader else "leaving-machine"
                why = "leaving-full" if member.is_full else why
                member.out.report(why, transferee_id=peer_id, term=member.term)
                self._begin(peer_id, None, None, dispatchers)
                return

    def _leave_if_slow(self, dispatchers: Mapping[str, EntryDispatcher]) -> None:
        """A leader whose flushes take much longer than those of a live follower hands over to that one."""
        member, now_ms = self.member, self.member.out.now_ms
        able = member.peers.machine.able(self._live(tuple(dispatchers), dispatchers))
        live = [one for one in able if one not in member.peers.full]
        peer_id = member.peers.pace.better(live, now_ms, member.config.slow_flush_hand_over_ms)
        if peer_id is None or self.giving is not None or now_ms < self._pause_until_ms:
            return
        member.out.report(
            "leaving-slow-disk", transferee_id=peer_id, term=member.term,
            flush_ms=round(member.peers.pace.time_ms(now_ms) or 0),
            transferee_flush_ms=round(member.peers.pace.peer_ms(peer_id, now_ms) or 0),
        )
        member.peers.pace.transferred(now_ms)
        self._begin(peer_id, None, None, dispatchers)

    def _check_preferred_leader(self, dispatchers: Mapping[str, EntryDispatcher]) -> None:
        preferred = self.member.config.preferred_leader_ids
        if not preferred or self.member.self_id in preferred or self.giving is not None:
            return
        if self.member.out.now_ms < self._pause_until_ms:
            return
        member, now_ms = self.member, self.member.out.now_ms
        least_ms = member.config.slow_flush_hand_over_ms
        fit = tuple(
            peer_id for peer_id in member.peers.machine.able(preferred)
            if peer_id not in member.peers.full
            and not member.peers.pace.is_much_slower(peer_id, now_ms, least_ms)
        )
        live = self._live(fit, dispatchers)
        if live:
            self._begin(live[0], None, None, dispatchers)

    def abandon(self, token: int) -> None:
        """The connection of a request is lost: do not answer the request."""
        if self.taking is not None and self.taking.token == token:
            self.taking = None
        if self.giving is not None and self.giving.token == token:
            self.giving.token = None

    def fail_all(self) -> None:
        """The member stops."""
        if self.giving is not None:
            self._end_giving(ResponseCode.TAKE_LEADERSHIP_FAILED)
        self.taking_ended(ResponseCode.TAKE_LEADERSHIP_FAILED)

    def _answer(
        self, token: int, request: LeadershipTransferRequest, code: ResponseCode, *, term: int = -1
    ) -> None:
        member = self.member
        member.out.reply(token, LeadershipTransferResponse(
            code=code, group=request.group, remote_id=request.remote_id, local_id=request.local_id,
            leader_id=member.leader_id, term=term if term >= 0 else member.term, wire_version=WIRE_VERSION,
        ))
