# -*- test-case-name: tests.core.test_reads -*-
"""
Heartbeats in rounds, and linearizable reads that wait until a round proves leadership (read index).

A read notes C{committed_index} on arrival, and may be answered when a quorum has answered a heartbeat
sent after its arrival. Many reads share a round. With reads waiting, the next round starts as soon as
a quorum has answered the current one.

Rule 1: until every entry of earlier terms is committed, the leader's C{committed_index} may be lower
than an index already acknowledged; reads wait until it is not (C{is_ready}).
Rule 2: a leader without an answer from a quorum for its followers' patience steps down (check-quorum).
Rule 3: at most L{BEATS_MAX} heartbeats to one peer wait for its answer: a peer that hangs, while the others
answer thousands of rounds, gets no more of them. When it answers it gets the heartbeat that it has missed.

Source: Raft 6.4; Java DLedger answers from any node that thinks it leads (W2, W3).
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from dledger.base.waiters import ThresholdWaiters
from dledger.core.state import effects as fx
from dledger.core.state.member_state import MemberState
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.messages import HeartBeatRequest, HeartBeatResponse, Response

#: See rule 3.
BEATS_MAX = 16


@attrs.define
class HeartBeats:
    """
    Rounds of one term of leadership.

    Invariant: C{confirmed_round <= last_round}; a peer's mark is the last round that it answered.
    C{_unanswered} counts C{_outstanding} by peer; C{_missed} has the peers that were not sent the last round.

    @ivar last_quorum_ms: time when the last confirmed round was sent, or leadership began.
    @ivar looked_ms: when L{lack_quorum} was asked last.
    @ivar excused_ms: C{last_quorum_ms} when this member stood still last.
    @ivar patient_until_ms: until when it hears out its peers after that.
    """

    member: MemberState
    confirmed: Callable[[], None]
    refused: Callable[[ResponseCode], None]
    heard: Callable[[str], None]
    last_quorum_ms: int
    last_round: int = 0
    confirmed_round: int = 0
    looked_ms: int = attrs.field(init=False)
    excused_ms: int = -1
    patient_until_ms: int = 0
    _last_sent_ms: int = -(1 << 40)
    _answered: dict[str, int] = attrs.Factory(dict)
    _sent_ms: dict[int, int] = attrs.Factory(dict)
    _outstanding: dict[int, int] = attrs.Factory(dict)
    _beat_soon: set[str] = attrs.Factory(set)
    _unanswered: dict[str, int] = attrs.Factory(dict)
    _missed: set[str] = attrs.Factory(set)

    def tick(self) -> None:
        """Time passed: start a round when the interval is over."""
        now_ms = self.member.out.now_ms
        if now_ms - self._last_sent_ms >= self.member.config.heart_beat_time_interval_ms:
            self.start_round()
        elif self._beat_soon:
            again, self._beat_soon = self._beat_soon, set()
            for peer_id in sorted(again):
                self._beat(peer_id)

    def __attrs_post_init__(self) -> None:
        self.looked_ms = self.member.out.now_ms

    def lack_quorum(self, patience_ms: int) -> bool:
        """
        Whether no quorum was heard for longer than this. A member that stood still (stopped process, long
        pause) has the answers of its peers unread: once for each, it hears out the heartbeats that it has
        just sent, an interval long.
        """
        now_ms, interval_ms = self.member.out.now_ms, self.member.config.heart_beat_time_interval_ms
        stalled_ms, self.looked_ms = now_ms - self.looked_ms, now_ms
        if stalled_ms > interval_ms and self.last_quorum_ms > self.excused_ms:
            self.excused_ms = self.last_quorum_ms
            self.patient_until_ms = now_ms + interval_ms
        return now_ms - self.last_quorum_ms > patience_ms and now_ms >= self.patient_until_ms

    def start_round(self) -> None:
        """Send a heartbeat to every peer."""
        self.last_round += 1
        self._last_sent_ms = self.member.out.now_ms
        self._sent_ms[self.last_round] = self._last_sent_ms
        self._beat_soon.clear()
        for peer_id in self.member.peer_ids:
            self._beat(peer_id)
        self._count()

    def _beat(self, peer_id: str) -> None:
        member, unanswered = self.member, self._unanswered.get(peer_id, 0)
        if unanswered >= BEATS_MAX:
            self._missed.add(peer_id)
            return
        self._missed.discard(peer_id)
        request = HeartBeatRequest(
            **member.base_fields(peer_id),
            heart_beat_interval_ms=member.config.heart_beat_time_interval_ms,
        )
        self._unanswered[peer_id] = unanswered + 1
        self._outstanding[member.out.send(peer_id, request, self)] = self.last_round

    def on_response(self, peer_id: str, request_id: int, response: Response) -> None:
        """A follower answered."""
        round_id = self._ended(peer_id, request_id)
        if round_id is None or not isinstance(response, HeartBeatResponse):
            return
        if peer_id in self._missed:
            self._beat(peer_id)
        if response.code is ResponseCode.SUCCESS:
            if round_id > self._answered.get(peer_id, 0):
                self._answered[peer_id] = round_id
            self.heard(peer_id)
            self._count()
        elif response.code is ResponseCode.TERM_NOT_READY:
            self._beat_soon.add(peer_id)  # Java needs two heartbeats to follow a leader of a new term
        else:
            self.refused(response.code)

    def on_request_failed(self, peer_id: str, request_id: int, reason: str) -> None:
        """A heartbeat got no answer; the next round asks again."""
        self._ended(peer_id, request_id)

    def _ended(self, peer_id: str, request_id: int) -> int | None:
        """@return: the round of a heartbeat that waits no more; None: it did not wait."""
        round_id = self._outstanding.pop(request_id, None)
        if round_id is not None:
            self._unanswered[peer_id] -= 1
        return round_id

    def retire(self) -> None:
        """Leadership is over: later answers are ignored."""
        self._outstanding.clear()

    def _count(self) -> None:
        marks = {**self._answered, self.member.self_id: self.last_round}
        proved = self.member.membership.held(marks, 0)
        if proved <= self.confirmed_round:
            return
        self.last_quorum_ms = max(self.last_quorum_ms, self._sent_ms[proved])
        self.confirmed_round = proved
        for round_id in [known for known in self._sent_ms if known <= proved]:
            del self._sent_ms[round_id]
        self.confirmed()


@attrs.define
class LinearizableReads:
    """
    Reads at the leader that wait for a confirmed round.

    Invariant: a token is in C{_early}, or in C{_waiting} and C{_read_index}, or answered.
    """

    member: MemberState
    _early: dict[int, int] = attrs.Factory(dict)
    _waiting: ThresholdWaiters = attrs.Factory(
        lambda self: ThresholdWaiters(capacity=self.member.config.max_pending_reads), takes_self=True
    )
    _read_index: dict[int, int] = attrs.Factory(dict)

    def __len__(self) -> int:
        """Number of waiting reads."""
        return len(self._early) + len(self._waiting)

    def request(self, tokens: tuple[int, ...], beats: HeartBeats | None, *, is_ready: bool) -> None:
        """Reads arrived. C{beats} is None unless this member leads."""
        member = self.member
        deadline_ms = member.out.now_ms + member.config.max_wait_ack_time_ms
        for token in tokens:
            if beats is None:
                self._answer(token, ResponseCode.NOT_LEADER)
            elif len(self) >= member.config.max_pending_reads:
                self._answer(token, ResponseCode.LEADER_PENDING_FULL)
            elif not is_ready:
                self._early[token] = deadline_ms
            else:
                self._read_index[token] = member.committed_index
                self._waiting.add(token, threshold=beats.last_round + 1, deadline_ms=deadline_ms)
        if beats is not None:
            self._keep_rounds_going(beats)

    def ready(self, beats: HeartBeats) -> None:
        """Every entry of earlier terms is committed now: early reads join a round."""
        early, self._early = self._early, {}
        for token, deadline_ms in early.items():
            self._read_index[token] = self.member.committed_index
            self._waiting.add(token, threshold=beats.last_round + 1, deadline_ms=deadline_ms)
        self._keep_rounds_going(beats)

    def _keep_rounds_going(self, beats: HeartBeats) -> None:
        if len(self._waiting) and beats.confirmed_round == beats.last_round:
            beats.start_round()

    def confirmed(self, beats: HeartBeats) -> None:
        """A quorum has answered round C{beats.confirmed_round}."""
        for token in self._waiting.reached(beats.confirmed_round):
            self.member.out.emit(fx.AnswerRead(
                token=token, code=ResponseCode.SUCCESS, read_index=self._read_index.pop(token),
                leader_id=self.member.leader_id,
            ))
        self._keep_rounds_going(beats)

    def expire(self) -> None:
        """Answer reads whose deadline has passed."""
        now_ms = self.member.out.now_ms
        for token in self._waiting.expired(now_ms):
            del self._read_index[token]
            self._answer(token, ResponseCode.NOT_LEADER)
        for token in [token for token, deadline_ms in self._early.items() if deadline_ms <= now_ms]:
            del self._early[token]
            self._answer(token, ResponseCode.LEADER_NOT_READY)

    def fail_all(self, code: ResponseCode) -> None:
        """Leadership is over, or the member stops."""
        for token in [*self._early, *self._waiting.take_all()]:
            self._answer(token, code)
        self._early.clear()
        self._read_index.clear()

    def _answer(self, token: int, code: ResponseCode) -> None:
        self.member.out.emit(fx.AnswerRead(token=token, code=code, leader_id=self.member.leader_id))
