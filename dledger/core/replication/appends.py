# -*- test-case-name: tests.core.test_appends,tests.core.test_origins,tests.core.test_quorum -*-
"""
Proposals in progress: first being written, then waiting for the commit; and the watermarks that commit them.

Rule 1: a proposal ends exactly once: refused (nothing of it is in the log), committed, or unknown
(502 when its deadline passes first; 501 when leadership ends, and its outcome is not seen in time either,
see L{dledger.core.state.undecided}; it may still commit).
Rule 2: a proposal counts against the bounds from the moment it is taken until it ends.
Rule 3: a proposal that expects an end is taken only if no program has an entry after it. An entry stays where
it is once it is committed, so of all that expect one end, at most one commits.
Rule 4: what the ledger has of a producer, committed or not, is never appended again. An entry that is not
committed yet may still go: the append that repeats it waits, which costs the client another attempt.

The entries of a producer carry its slot and the low digits of their numbers. A session entry in front of a
write gives slots to the producers that have none.

Source: pending append closures in DLedgerEntryPusher.java; differs: docs/divergence.md W17.
"""

from __future__ import annotations

import attrs

from dledger.base.waiters import ThresholdWaiters
from dledger.core.state import effects as fx
from dledger.core.state.inputs import EntriesWritten, Origin, Proposal
from dledger.core.state.member_state import MemberState
from dledger.core.state.undecided import UndecidedAppends, WrittenProposal
from dledger.values.errors import DamagedEntryError
from dledger.values.ledger.group_state import Known, Verdict, cost_of
from dledger.values.ledger.membership import Membership
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.entry import bodies_of
from protocols.wire.ledger.envelopes import without_time
from protocols.wire.ledger.own.own_entries import HIDDEN, SESSION_CHANNEL, slot_channels
from protocols.wire.ledger.own.session_entries import (
    SESSION_BYTES_MAX,
    SESSION_HEADER_BYTES,
    SESSIONS_MAX,
    Session,
    encode_session_entry,
)
from protocols.wire.ledger.owners import may_use


@attrs.define
class QuorumAckChecker:
    """
    The watermarks of one term, and the commit index that follows from them by the membership of the ledger.

    Rule: a leader commits by counting only entries of its own term (Raft 5.4.2). Marks below the first index
    of the term are not recorded, so the rule needs no second check.

    Source: QuorumAckChecker in DLedgerEntryPusher.java, which counts entries of any term (W1).

    Invariant: a mark never falls, and is at least C{term_start_index}; a member without a mark has -1.

    @ivar term: the leader's term.
    @ivar term_start_index: index of the first entry of this term, written or not yet.
    @ivar membership: the members whose marks count.
    """

    term: int
    term_start_index: int
    membership: Membership
    _by_member: dict[str, int] = attrs.Factory(dict)

    def record(self, member_id: str, index: int) -> bool:
        """
        C{member_id} holds every entry up to C{index}, as durably as its flush mode promises.

        @return: whether the mark rose.
        """
        marks = self._by_member
        known = marks[member_id] if member_id in marks else -1
        if index < self.term_start_index or index <= known:
            return False
        marks[member_id] = index
        return True

    @property
    def quorum_index(self) -> int:
        """Highest index of this term that a quorum holds; -1 if there is none."""
        return self.membership.held(self._by_member, -1)

    def watermark(self, member_id: str) -> int:
        """The mark of one member; -1 if it holds no entry of this term."""
        return self._by_member.get(member_id, -1)


#: The answers to appends that are neither new nor in the ledger.
REFUSALS = {
    Known.GAP: ResponseCode.SEQUENCE_GAP,
    Known.FORGOTTEN: ResponseCode.SEQUENCE_FORGOTTEN,
    Known.UNKNOWN_PRODUCER: ResponseCode.UNKNOWN_PRODUCER,
    Known.FORGOTTEN_PRODUCER: ResponseCode.PRODUCER_FORGOTTEN,
    Known.FULL: ResponseCode.PRODUCERS_FULL,
    Known.SHARE_FULL: ResponseCode.SHARE_FULL,
    Known.FOREIGN: ResponseCode.FORBIDDEN,
}


@attrs.define
class NumberedWrite:
    """
    The producers of one write.

    Invariant: C{_next} has slot and next number of each producer with bodies in the write; C{sessions} slot
    and owner of those that the ledger does not know, C{_begun} the bytes of these by owner.
    """

    member: MemberState
    sessions: dict[str, tuple[int, str]] = attrs.Factory(dict)
    _channels: list[int] = attrs.Factory(list)
    _next: dict[str, tuple[int, int]] = attrs.Factory(dict)
    _begun: dict[str, int] = attrs.Factory(dict)
    _begun_bytes: int = 0

    def refusal(self, proposal: Proposal, origin: Origin) -> fx.AnswerAppend | None:
        """The answer to a proposal that is not to be written; None: it is new."""
        group = self.member.view.group
        if group is None:
            return self._answer(proposal, ResponseCode.LEADER_NOT_READY)
        session = self.sessions.get(origin.producer)
        if session is not None and not may_use(session[1], origin.owner):
            return self._answer(proposal, ResponseCode.FORBIDDEN)
        begun = self._begun_bytes, self._begun.get(origin.owner, 0)
        verdict = group.judge(origin.producer, origin.sequence, len(proposal.bodies), origin.owner, begun)
        known = self._next.get(origin.producer)
        if known is not None and verdict.known is not Known.FOREIGN:
            is_next = origin.sequence == known[1]
            return None if is_next else self._answer(proposal, ResponseCode.LEADER_NOT_READY)
        if verdict.known is Known.NEW:
            has_room = verdict.last >= 0 or self._take_slot(origin)
            return None if has_room else self._answer(proposal, ResponseCode.LEADER_PENDING_FULL)
        if verdict.known is Known.REPEATED:
            return self._repeated(proposal, origin, verdict)
        return self._answer(proposal, REFUSALS[verdict.known], last_sequence=verdict.last)

    def _take_slot(self, origin: Origin) -> bool:
        """Whether the producer has a slot, or can be given one in this write."""
        group, name = self.member.view.group, origin.producer
        assert group is not None
        if group.producer(name) is not None or name in self.sessions:
            return True
        room = self.member.config.body_bytes_max - SESSION_HEADER_BYTES
        if len(self.sessions) >= min(SESSIONS_MAX, room // SESSION_BYTES_MAX):
            return False
        taken = [slot for slot, _ in self.sessions.values()]
        free = next((slot for slot in group.free_slots(len(taken) + 1) if slot not in taken), 0)
        if free:
            self.sessions[name] = free, origin.owner
            cost = cost_of(name, origin.owner)
            self._begun[origin.owner] = self._begun.get(origin.owner, 0) + cost
            self._begun_bytes += cost
        return free > 0

    def _repeated(self, proposal: Proposal, origin: Origin, verdict: Verdict) -> fx.AnswerAppend:
        member, view = self.member, self.member.view
        _, index, found, last = verdict
        if index + found - 1 > member.committed_index:
            return self._answer(proposal, ResponseCode.LEADER_NOT_READY)
        if index < view.ends.begin_index:
            return self._answer(proposal, ResponseCode.SEQUENCE_FORGOTTEN, last_sequence=last)
        try:
            batch = view.read_batch(index, max_count=found,
                                    max_bytes=sum(map(len, proposal.bodies)) + 64 * found)
            pos = view.position_of(index)
        except DamagedEntryError:
            return self._answer(proposal, ResponseCode.LEADER_NOT_READY)  # (A peer gives it back.)
        found = batch.count
        there = map(without_time, bodies_of(batch))
        if any(one != other for one, other in zip(map(without_time, proposal.bodies), there, strict=False)):
            return self._answer(proposal, ResponseCode.SEQUENCE_TAKEN, last_sequence=last, first_index=index)
        return fx.AnswerAppend(
            token=proposal.token, code=ResponseCode.SUCCESS, term=batch.term, count=found, first_index=index,
            pos=pos, leader_id=member.leader_id, is_repeated=True,
        )

    def _answer(
        self, proposal: Proposal, code: ResponseCode, *, last_sequence: int = -1, first_index: int = -1
    ) -> fx.AnswerAppend:
        return fx.AnswerAppend(
            token=proposal.token, code=code, term=self.member.term, count=len(proposal.bodies),
            leader_id=self.member.leader_id, last_sequence=last_sequence, first_index=first_index,
        )

    def add(self, origin: Origin, count: int, entries: int) -> None:
        """C{count} bodies of a producer come after C{entries} others in the write."""
        slot = self._slot_of(origin.producer)
        self._channels += [0] * (entries - len(self._channels))
        channels = slot_channels(slot, origin.sequence, count)
        for number in origin.hidden:
            channels[number] |= HIDDEN
        self._channels += channels
        self._next[origin.producer] = slot, origin.sequence + count

    def _slot_of(self, name: str) -> int:
        if name in self._next:
            return self._next[name][0]
        group = self.member.view.group
        assert group is not None
        producer = group.producer(name)
        return producer.slot if producer is not None else self.sessions[name][0]

    def written(self, bodies: list[bytes]) -> tuple[tuple[bytes, ...], tuple[int, ...]]:
        """The bodies of the write, with a session entry in front if one is needed, and their channels."""
        if not self._channels:
            return tuple(bodies), ()
        channels = self._channels + [0] * (len(bodies) - len(self._channels))
        if not self.sessions:
            return tuple(bodies), tuple(channels)
        entry = encode_session_entry(
            Session(slot, name, owner) for name, (slot, owner) in self.sessions.items()
        )
        return (entry, *bodies), (SESSION_CHANNEL, *channels)


@attrs.define
class PendingAppends:
    """
    Invariant: C{_by_token} has exactly the waiting tokens; C{_bytes} is the sum of the sizes of the
    waiting proposals, of those in C{_writing}, which come with their sizes, and in C{undecided};
    C{_requests} is the sum of their appends.

    @ivar undecided: the proposals of ended leaderships that wait.
    """

    member: MemberState
    _waiting: ThresholdWaiters = attrs.Factory(
        lambda self: ThresholdWaiters(capacity=self.member.config.max_pending_requests_num),
        takes_self=True,
    )
    _by_token: dict[int, WrittenProposal] = attrs.Factory(dict)
    _writing: tuple[tuple[Proposal, int], ...] | None = None
    _own_in_front: int = 0  # entries of the current write before its first proposal
    undecided: list[UndecidedAppends] = attrs.Factory(list)
    _decided_index: int = -1
    _bytes: int = 0
    _requests: int = 0

    def __len__(self) -> int:
        """Number of appends without an outcome; as in Java, each request counts as one."""
        return self._requests

    def propose(self, proposals: tuple[Proposal, ...], refusal: ResponseCode | None) -> None:
        """
        Take the proposals that fit within the bounds into one write; answer the rest.

        @param refusal: the code if this member takes no appends now (not leader, transferring), or None.
        """
        member, config = self.member, self.member.config
        taken: list[tuple[Proposal, int]] = []
        bodies: list[bytes] = []
        numbered = NumberedWrite(member)
        for proposal in proposals:
            code, origin = refusal, proposal.origin
            if code is None and not proposal.bodies:
                code = ResponseCode.REQUEST_WITH_EMPTY_BODYS
            if code is None and origin is not None:
                answer = numbered.refusal(proposal, origin)
                if answer is not None:
                    member.out.emit(answer)
                    continue
            if code is None and self._requests + proposal.requests > config.max_pending_requests_num:
                code = ResponseCode.LEADER_PENDING_FULL
            size = sum(map(len, proposal.bodies)) + 64 * len(proposal.bodies)
            if code is None and self._bytes and self._bytes + size > config.max_pending_bytes:
                code = ResponseCode.LEADER_PENDING_FULL
            if code is not None:
                self._refuse(proposal, code)
                continue
            if proposal.expected_end is not None:
                end_index = member.ledger_end_index + len(bodies)
                last_index = end_index if bodies else member.view.last_program_index
                if not last_index <= proposal.expected_end <= end_index:
                    self._refuse(proposal, ResponseCode.CONFLICT, end_index)
                    continue
            self._bytes += size
            self._requests += proposal.requests
            if origin is not None:
                numbered.add(origin, len(proposal.bodies), len(bodies))
            taken.append((proposal, size))
            bodies.extend(proposal.bodies)
        if bodies:
            assert self._writing is None, "one write at a time"
            own = taken[0][0].channel
            assert not own or len(bodies) == 1, "one of the log's own entries is alone in its write"
            self._writing = tuple(taken)
            written, channels = numbered.written(bodies)
            self._own_in_front = len(written) - len(bodies)
            member.out.write(fx.WriteBodies(
                first_index=member.ledger_end_index + 1, term=member.term, bodies=written,
                channels=(own,) if own else channels,
            ))

    def on_written(self, written: EntriesWritten) -> None:
        """The current write is in the file."""
        if self._writing is None:
            return  # a term-start entry: no proposal waits for it
        proposals, self._writing = self._writing, None
        deadline_ms = self.member.out.now_ms + self.member.config.max_wait_ack_time_ms
        at = self._own_in_front
        index = written.first_index + at
        for proposal, size in proposals:
            count = len(proposal.bodies)
            self._by_token[proposal.token] = WrittenProposal(
                index, count, written.positions[at], size, proposal.requests
            )
            index, at = index + count, at + count
            self._waiting.add(proposal.token, threshold=index - 1, deadline_ms=deadline_ms)
        assert at == written.count, "the store wrote another number of entries"

    def on_write_refused(self, code: ResponseCode) -> None:
        """The store refused the current write as a whole."""
        if self._writing is None:
            return
        proposals, self._writing = self._writing, None
        for proposal, size in proposals:
            self._bytes -= size
            self._requests -= proposal.requests
            self._refuse(proposal, code)

    def committed(self, committed_index: int) -> None:
        """Answer the committed proposals, in log order."""
        for token in self._waiting.reached(committed_index):
            self._end(token, ResponseCode.SUCCESS)

    def expire(self) -> None:
        """Answer the proposals whose deadline passed; they may commit later."""
        for token in self._waiting.expired(self.member.out.now_ms):
            self._end(token, ResponseCode.WAIT_QUORUM_ACK_TIMEOUT)
        while self.undecided and self.undecided[0].deadline_ms <= self.member.out.now_ms:
            self._give_up(self.undecided.pop(0))

    def leadership_ended(self) -> None:
        """The proposals wait on, for the commit of another leader."""
        member = self.member
        assert self._writing is None, "the outcome of a write comes before anything else"
        if self._by_token:
            deadline_ms = member.out.now_ms + member.config.max_wait_ack_time_ms
            self.undecided.append(UndecidedAppends(
                member.term, member.ledger_end_index, deadline_ms, self._by_token
            ))
            self._by_token = {}
            self._waiting.take_all()
            self._decided_index = -1

    def decide(self) -> None:
        """Answer the proposals of ended leaderships whose outcome follows from the commit index."""
        member = self.member
        if member.committed_index == self._decided_index:
            return
        self._decided_index = member.committed_index
        for ended in self.undecided:
            for token, written, code in ended.decide(member.view, member.committed_index):
                self._answer(token, written, code, ended.term)
        self.undecided = [ended for ended in self.undecided if ended.waiting]

    def fail_all(self, code: ResponseCode) -> None:
        """The member stops: whether the proposals will commit is unknown."""
        while self.undecided:
            self._give_up(self.undecided.pop(0))
        for token in self._waiting.take_all():
            self._end(token, code)
        if self._writing is not None:
            # The write failed half-way or its outcome never came: it may be in the file.
            proposals, self._writing = self._writing, None
            for proposal, _size in proposals:
                self._refuse(proposal, code)
            self._bytes = self._requests = 0

    def _give_up(self, ended: UndecidedAppends) -> None:
        for token, written in ended.waiting.items():
            self._answer(token, written, ResponseCode.TERM_CHANGED, ended.term)

    def _end(self, token: int, code: ResponseCode) -> None:
        self._answer(token, self._by_token.pop(token), code, self.member.term)

    def _answer(self, token: int, written: WrittenProposal, code: ResponseCode, term: int) -> None:
        self._bytes -= written.size
        self._requests -= written.requests
        is_in_log = code is not ResponseCode.NOT_LEADER
        self.member.out.emit(fx.AnswerAppend(
            token=token, code=code, term=term, count=written.entries,
            first_index=written.first_index if is_in_log else -1, pos=written.pos if is_in_log else -1,
            leader_id=self.member.leader_id,
        ))

    def _refuse(self, proposal: Proposal, code: ResponseCode, end_index: int = -2) -> None:
        self.member.out.emit(fx.AnswerAppend(
            token=proposal.token, code=code, term=self.member.term, count=len(proposal.bodies),
            leader_id=self.member.leader_id, end_index=end_index,
        ))
