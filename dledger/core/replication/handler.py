# -*- test-case-name: tests.core.test_handler,tests.core.test_durable -*-
"""
The follower's side of replication: how a push is handled, and when it is answered.

Rule 1: an entry is appended only if the end of the ledger is known to equal the leader's, in this
term and on this connection, by an earlier COMPARE, TRUNCATE or APPEND: a new connection begins with COMPARE.
Rule 2: commit information counts only up to the highest index known to equal this leader's, and only on a
connection on which a COMPARE or TRUNCATE of this term succeeded.
Rule 3: entries found equal in a term are never cut in it: the leader's ledger only grows, so such a
TRUNCATE is late or wrong. No entry at or below C{committed_index} is ever cut. The ledger starts anew after
committed entries only when the leader itself has said that its own begins after them (L{BeginProof}), and a
quorum without this member confirms it (L{BeginWitnesses}).
Rule 4: every push is answered exactly once, unless its connection is lost. With C{sync} flushing
the answer "I hold these entries" waits until they are on stable storage.

Pushes out of order wait in a bounded window, by first index; L{EntryHandler.check_abnormal_future}
answers those that can no longer be written in order.

Source: EntryHandler in DLedgerEntryPusher.java (0.3.1.2); differs: docs/divergence.md W8, W9, W10, W14.
"""

from __future__ import annotations

import attrs

from dledger.base.waiters import ThresholdWaiters
from dledger.core.replication.proofs import BeginProof
from dledger.core.replication.witnesses import BeginWitnesses
from dledger.core.state import effects as fx
from dledger.core.state.member_state import MemberState
from dledger.values.errors import DamagedEntryError
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.batches import EntryBatch, EntryChunk
from protocols.wire.ledger.codes import WIRE_VERSION, PushType
from protocols.wire.ledger.messages import PushEntryRequest, PushEntryResponse

#: Deadline of a wait that ends only with an fsync or a change of leader.
NEVER_MS = 1 << 62

#: Refused pushes in a row after which a member counts as diverged: a leader repeats a push that was refused
#: by mischance, and the second or third time succeeds.
DIVERGED_AFTER = 3


@attrs.frozen
class QueuedPush:
    """An APPEND that arrived before its predecessor."""

    token: int
    request: PushEntryRequest
    entries: EntryBatch
    arrived_ms: int


@attrs.define
class EntryHandler:
    """
    Invariant: C{matched_index} is at most the ledger's end; C{queued_bytes} is the sum over
    C{_queue}; C{_writing} is set only between a write effect and its outcome; C{_answers}
    and C{_durable} have the same tokens.

    @ivar matched_index: highest index known to equal the ledger of this term's leader; -1 for none.
    @ivar queued_bytes: size of the pushes that arrived before their predecessors and wait for these.
    @ivar is_diverged: this member and its leader cannot agree: it refused L{DIVERGED_AFTER} pushes that ask
        for a change of its ledger, and took none since.
    @ivar is_in_step: whether the ledger ends at that index, so that an APPEND may follow on the channel of
        the last successful COMPARE or TRUNCATE.
    """

    member: MemberState
    matched_index: int = -1
    is_in_step: bool = False
    is_diverged: bool = False
    _refused: int = 0
    _proof: BeginProof = attrs.Factory(lambda self: BeginProof(self.member), takes_self=True)
    _witnesses: BeginWitnesses = attrs.Factory(lambda self: BeginWitnesses(self.member), takes_self=True)
    _matched_term: int = -1
    _matched_channel: int = -1
    _channel: int = -1
    _queue: dict[int, QueuedPush] = attrs.Factory(dict)
    queued_bytes: int = 0
    _writing: tuple[int, PushEntryRequest] | None = None
    _durable: ThresholdWaiters = attrs.Factory(
        lambda self: ThresholdWaiters(capacity=self.member.config.max_queued_pushes), takes_self=True
    )
    _answers: dict[int, PushEntryRequest] = attrs.Factory(dict)

    # -- arrival ----------------------------------------------------------------------------

    def on_push(
        self, token: int, request: PushEntryRequest, accepted: ResponseCode, *, channel: int = 0
    ) -> None:
        """
        A push arrived.

        @param accepted: the elector's verdict on the sender; SUCCESS if it is our leader.
        @param channel: the connection that it came on.
        """
        self._channel = channel
        if accepted is not ResponseCode.SUCCESS:
            self._refuse_sender(token, request, accepted)
            return
        member, entries, type = self.member, request.entries, request.type
        member.peers.leader_committed_index = request.commit_index
        member.peers.leader_committed_ms = member.awake_ms
        if type is PushType.COMMIT:
            self._learn_commit(request)
            # A follower out of step (after a restart, say) would receive commit indexes for ever and
            # commit nothing. On this code our leader compares again; Java ignores this answer.
            code = ResponseCode.SUCCESS if self._is_in_step_here else ResponseCode.INCONSISTENT_STATE
            if code is ResponseCode.SUCCESS:
                self._agreed()
            self._answer(token, request, code)
            return
        if entries is None or (type is not PushType.APPEND and entries.count != 1):
            self._answer(token, request, ResponseCode.UNEXPECTED_ARGUMENT)
        elif type is PushType.APPEND:
            self._on_append(token, request, entries)
        else:
            self._purge()
            if type is PushType.COMPARE:
                self._on_compare(token, request, entries)
            else:
                self._on_truncate(token, request, entries)

    @property
    def _is_in_step_here(self) -> bool:
        """Whether an APPEND may follow on the channel of the current push."""
        return self.is_in_step and self._channel == self._matched_channel

    def _refuse_sender(self, token: int, request: PushEntryRequest, code: ResponseCode) -> None:
        if code is ResponseCode.EXPIRED_TERM:
            code = ResponseCode.INCONSISTENT_TERM
        # The term is ours, not the request's: a deposed leader learns of the new term from it.
        self._answer(token, request, code, term=self.member.term)

    # -- COMPARE ----------------------------------------------------------------------------

    def _on_compare(self, token: int, request: PushEntryRequest, entries: EntryBatch) -> None:
        member = self.member
        index = entries.first_index
        begin_index, end_index = member.view.ends.begin_index, member.ledger_end_index
        self.is_in_step = False
        try:
            is_equal = 0 <= begin_index <= index <= end_index and member.view.holds(entries)
        except DamagedEntryError:
            self._answer(token, request, ResponseCode.DISK_ERROR)  # equal or not, it cannot be said
            return
        if not is_equal:
            self._answer(token, request, ResponseCode.INCONSISTENT_STATE)
            return
        self._found_equal(index)
        self.is_in_step = index == end_index
        self._learn_commit(request)
        self._answer_when_durable(token, request, index)

    # -- TRUNCATE ---------------------------------------------------------------------------

    def _on_truncate(self, token: int, request: PushEntryRequest, entries: EntryBatch) -> None:
        member = self.member
        index, end_index = entries.first_index, member.ledger_end_index
        begin_index = member.view.ends.begin_index
        try:
            holds = 0 <= begin_index <= index <= end_index and member.view.holds(entries)
        except DamagedEntryError:
            self._answer(token, request, ResponseCode.DISK_ERROR)
            return
        # A majority holds the committed entries, so a member that wants them cut is not our leader.
        # Paired with the store's own refusal.
        cuts_committed = index < member.committed_index or (index == member.committed_index and not holds)
        # An entry that this ledger lacks proves nothing about the entries before it. Only entries that are
        # committed or were found equal are known to be the leader's; no others may be kept in front of it.
        known_index = max(member.committed_index, self.matched_index)
        anew = not holds and index - 1 > known_index
        if cuts_committed or index < self.matched_index:
            self._refuse_truncate(token, request, index)
        elif anew and not self._may_start_at(index, known_index):
            if self._proof.lacks(known_index + 1) is not None:
                self._refuse_truncate(token, request, index)
            else:
                self._answer(token, request, ResponseCode.INCONSISTENT_STATE)
            self._proof.ask(known_index + 1)
        elif anew and not self._is_confirmed(index, known_index):
            if self._witnesses.unheard:
                self._answer(token, request, ResponseCode.INCONSISTENT_STATE)
            else:
                self._refuse_truncate(token, request, index)
            self._witnesses.ask()
        elif holds and index == end_index:
            self._truncated(token, request)
        else:
            self._writing = (token, request)
            member.out.report("truncating", index=index, ledger_end_index=end_index,
                              committed_index=member.committed_index, leader_id=request.leader_id)
            if anew:
                self._refuse_waiting()  # the entries that those answers confirm will be dropped
            reported = self._proof.reported(index) if anew else None
            member.out.write(fx.TruncateLedger(
                entries=entries, anew=anew and end_index >= 0, reported=reported or ()
            ))

    def _may_start_at(self, index: int, known_index: int) -> bool:
        """Whether the leader has said that it lacks the entry after C{known_index} and may have C{index}."""
        proof = self._proof
        begins_there = proof.lacks(known_index + 1) is True and proof.reaches(index)
        return begins_there and proof.reported(index) is not None

    def _is_confirmed(self, index: int, known_index: int) -> bool:
        """Whether nothing is set aside, so that the leader's word is enough, or others confirm it."""
        member = self.member
        # (A member that joins knows no voters before it has come to the entry that names them: nobody has
        # counted on its entries, which leaders have reported it as now. One of them may begin further on.)
        if member.ledger_end_index < 0 or not member.membership.voters:
            return True
        # Whether entries are committed is not asked: a mark may be lost, or never have been written.
        return self._witnesses.confirm(lacks_index=known_index + 1, begin_index=index)

    def _refuse_truncate(self, token: int, request: PushEntryRequest, index: int) -> None:
        member = self.member
        member.out.report(
            "truncate-refused", leader_id=request.leader_id, term=request.term, index=index,
            committed_index=member.committed_index, matched_index=self.matched_index,
        )
        self._disagreed(request)
        self._answer(token, request, ResponseCode.INCONSISTENT_STATE)

    def _disagreed(self, request: PushEntryRequest) -> None:
        self._refused += 1
        if self._refused >= DIVERGED_AFTER and not self.is_diverged:
            self.is_diverged = True
            self.member.out.report("diverged", leader_id=request.leader_id, term=request.term,
                                   committed_index=self.member.committed_index)

    def _agreed(self) -> None:
        """The ledger equals the leader's up to its end, and the leader knows."""
        self._refused = 0
        if self.is_diverged:
            self.is_diverged = False
            self.member.out.report("agrees-again", leader_id=self.member.leader_id, term=self.member.term)

    def on_truncated(self) -> None:
        """The store has truncated the ledger durably."""
        assert self._writing is not None
        (token, request), self._writing = self._writing, None
        self._truncated(token, request)

    def _truncated(self, token: int, request: PushEntryRequest) -> None:
        index = self.member.ledger_end_index
        self.matched_index = index
        self._matched_channel = self._channel
        self.is_in_step = True
        self._learn_commit(request)
        self._answer_when_durable(token, request, index)

    # -- APPEND -----------------------------------------------------------------------------

    def _on_append(self, token: int, request: PushEntryRequest, entries: EntryBatch) -> None:
        member = self.member
        next_index = member.ledger_end_index + 1
        if not self._is_in_step_here:
            self._answer(token, request, ResponseCode.INCONSISTENT_STATE)
        elif isinstance(entries, EntryChunk) and entries.last_index > request.commit_index:
            self._answer(token, request, ResponseCode.UNSUPPORTED)
        elif entries.first_index == next_index:
            self._write(token, request, entries)
        elif entries.first_index < next_index:
            self._answer_known(token, request, entries)
        else:
            self._enqueue(token, request, entries)

    def _write(self, token: int, request: PushEntryRequest, entries: EntryBatch) -> None:
        assert self._writing is None, "one write at a time"
        self._writing = (token, request)
        self.member.out.write(fx.WriteEntries(entries=entries))

    def on_written(self) -> None:
        """The entries of the current write are in the file."""
        assert self._writing is not None
        (token, request), self._writing = self._writing, None
        index, entries = self.member.ledger_end_index, request.entries
        assert entries is not None and entries.first_index + entries.count - 1 == index
        self.matched_index = index
        if self._refused or self.is_diverged:
            self._agreed()
        self._learn_commit(request)
        self._answer_when_durable(token, request, index)

    def write_following(self) -> None:
        """Write the queued APPEND that is next in order, if there is one."""
        following = self._queue.pop(self.member.ledger_end_index + 1, None)
        if following is not None:
            self.queued_bytes -= following.entries.size
            self._write(following.token, following.request, following.entries)

    def on_write_refused(self, code: ResponseCode, reason: str) -> None:
        """The store refused the current write or truncation as a whole."""
        assert self._writing is not None
        (token, request), self._writing = self._writing, None
        self.is_in_step = False
        self.member.out.report("push-refused", code=code.name, reason=reason, type=request.type.name)
        is_chunk = isinstance(request.entries, EntryChunk)
        if code is not ResponseCode.DISK_FULL and not is_chunk:
            self._disagreed(request)
        is_unfit = is_chunk and code is ResponseCode.INCONSISTENT_STATE
        # A chunk that does not fit says nothing about the entries: the leader is to push them one by one.
        answer = ResponseCode.UNSUPPORTED if is_unfit else ResponseCode.INCONSISTENT_STATE
        self._answer(token, request, answer)
        self._purge()

    def _answer_known(self, token: int, request: PushEntryRequest, entries: EntryBatch) -> None:
        """Answer a push of entries that this member already has (repeated after a lost answer)."""
        if entries.last_index <= self.matched_index and self._holds_all(entries):
            self._answer_when_durable(token, request, entries.last_index)
        else:
            self._answer(token, request, ResponseCode.INCONSISTENT_STATE)

    def _holds_all(self, entries: EntryBatch) -> bool:
        view, index = self.member.view, entries.first_index
        if index < view.ends.begin_index:
            return False
        try:
            mine = view.read_batch(index, max_count=entries.count, max_bytes=len(entries.records))
        except DamagedEntryError:
            return False
        return mine.records == entries.records

    def _enqueue(self, token: int, request: PushEntryRequest, entries: EntryBatch) -> None:
        config = self.member.config
        older = self._queue.pop(entries.first_index, None)
        if older is not None:
            self.queued_bytes -= older.entries.size
            self._answer(older.token, older.request, ResponseCode.REPEATED_PUSH)
        size = entries.size
        if (
            len(self._queue) >= config.max_queued_pushes
            or self.queued_bytes + size > 2 * config.max_inflight_push_bytes
        ):
            self._answer(token, request, ResponseCode.PUSH_REQUEST_IS_FULL)
            return
        self.queued_bytes += size
        self._queue[entries.first_index] = QueuedPush(token, request, entries, self.member.out.now_ms)

    # -- time -------------------------------------------------------------------------------

    def check_abnormal_future(self) -> None:
        """
        Answer queued pushes that can no longer be written in order: compare those that the ledger
        has passed (fast-forward), answer 406 to those too long after a gap (fall-behind).

        Source: checkAbnormalFuture; differs: every such push is answered and leaves the window.
        """
        if not self._queue:
            return
        member = self.member
        patience = member.config.max_push_time_out_ms
        for first_index, queued in sorted(self._queue.items()):
            passed = first_index <= member.ledger_end_index
            if not passed and member.out.now_ms - queued.arrived_ms < patience:
                continue
            del self._queue[first_index]
            self.queued_bytes -= queued.entries.size
            if passed:
                self._answer_known(queued.token, queued.request, queued.entries)
            else:
                self._answer(queued.token, queued.request, ResponseCode.INCONSISTENT_STATE)

    def on_flushed(self, flushed_index: int) -> None:
        """Entries up to C{flushed_index} are on stable storage: send the answers that waited for them."""
        for token in self._durable.reached(flushed_index):
            self._answer(token, self._answers.pop(token), ResponseCode.SUCCESS)

    # -- the end of a leadership ------------------------------------------------------------

    def reset(self) -> None:
        """
        Leader, role or term changed: refuse all queued pushes and waiting answers.

        Within a term C{matched_index} stays: a term has one leader, whose ledger only grows.
        """
        if self._matched_term != self.member.term:
            self._matched_term = self.member.term
            self.matched_index = -1
        self.is_in_step = False
        self._matched_channel = -1
        self._purge()
        self._refuse_waiting()

    def _refuse_waiting(self) -> None:
        """Refuse the pushes whose answers wait for an fsync."""
        for token in self._durable.take_all():
            self._answer(token, self._answers.pop(token), ResponseCode.INCONSISTENT_STATE)

    def abandon(self, token: int) -> None:
        """The connection of a push is lost: drop the push."""
        for first_index, queued in self._queue.items():
            if queued.token == token:
                del self._queue[first_index]
                self.queued_bytes -= queued.entries.size
                break
        if self._durable.remove(token):
            del self._answers[token]

    def _purge(self) -> None:
        """Answer and forget every queued APPEND."""
        queue, self._queue = self._queue, {}
        self.queued_bytes = 0
        for queued in queue.values():
            self._answer(queued.token, queued.request, ResponseCode.INCONSISTENT_STATE)

    # -- commits and answers ----------------------------------------------------------------

    @property
    def queued(self) -> int:
        """Number of pushes in the window and of answers that wait for an fsync."""
        return len(self._queue) + len(self._durable)

    def _found_equal(self, index: int) -> None:
        self.matched_index = max(self.matched_index, index)
        self._matched_channel = self._channel

    def _learn_commit(self, request: PushEntryRequest) -> None:
        if self._channel == self._matched_channel:
            self.member.commit(min(request.commit_index, self.matched_index))

    def _answer_when_durable(self, token: int, request: PushEntryRequest, index: int) -> None:
        if not self.member.may_acknowledge(index):
            # The leader would count this member as a holder of an entry that it has lost to damage.
            self._answer(token, request, ResponseCode.PUSH_REQUEST_IS_FULL)
        elif not self.member.config.is_sync or index <= self.member.flushed_index:
            self._answer(token, request, ResponseCode.SUCCESS)
        elif len(self._answers) >= self._durable.capacity:
            self._answer(token, request, ResponseCode.PUSH_REQUEST_IS_FULL)
        else:
            self._durable.add(token, threshold=index, deadline_ms=NEVER_MS)
            self._answers[token] = request

    def _answer(
        self, token: int, request: PushEntryRequest, code: ResponseCode, *, term: int | None = None
    ) -> None:
        member, entries = self.member, request.entries
        member.out.reply(token, PushEntryResponse(
            group=request.group,
            code=code,
            term=request.term if term is None else term,
            index=None if entries is None else entries.first_index,
            count=0 if entries is None else entries.count,
            begin_index=member.view.ends.begin_index if member.ledger_end_index >= 0 else -1,
            end_index=member.ledger_end_index,
            wire_version=WIRE_VERSION,
        ))
