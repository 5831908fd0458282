# -*- test-case-name: tests.core.test_appends -*-
"""
Proposals in progress: first being written, then waiting for the commit.

Rule 1: a proposal ends exactly once: refused (nothing of it is in the log), committed, or unknown
(502 when its deadline passes first; 501 when leadership ends, and its outcome is not seen in time either,
see L{dledger.core.state.undecided}; it may still commit).
Rule 2: a proposal counts against the bounds from the moment it is taken until it ends.
Rule 3: a proposal that expects an end is taken only if no program has an entry after it. An entry stays where
it is once it is committed, so of all that expect one end, at most one commits.
Rule 4: a proposal with an origin is taken only if the ledger has none of its bodies, see
L{dledger.core.replication.origins}.

Source: pending append closures in DLedgerEntryPusher.java; differs: docs/divergence.md W17.
"""

from __future__ import annotations

import attrs

from dledger.base.process.waiters import ThresholdWaiters
from dledger.core.replication.origins import NumberedWrite
from dledger.core.state import effects as fx
from dledger.core.state.inputs import EntriesWritten, Proposal
from dledger.core.state.member_state import MemberState
from dledger.core.state.undecided import UndecidedAppends, WrittenProposal
from protocols.wire.codes import ResponseCode


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
