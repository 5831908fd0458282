# -*- test-case-name: tests.sim.test_words -*-
"""
What a core says of appends and reads: where they are, and why they are refused.

A client repeats what was refused, or waits for longer, so a wrong reason, or a right one that comes late, is
seen by nobody else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Protocol

import attrs

from dledger.core.state import effects as fx
from dledger.core.state import inputs as ev
from dledger.core.state.member_state import Role
from dledger.testing.group.checks.apart import ApartInvariants
from dledger.testing.group.checks.checked_member import CheckedMember
from dledger.testing.group.checks.group_folds import fold, held_records
from dledger.testing.group.checks.invariants import GroupInvariants
from dledger.testing.group.checks.require import require
from dledger.testing.group.watching.words import BeforeStep
from protocols.ledger.connection import ServerConnection
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.entry import ENTRY_HEADER

#: Number in docs/invariants.md.
OUTCOMES = 19
#: A turn of a starved process takes two ticks.
SOON_TICKS = 6


class WaitingReads(Protocol):
    """The readers that wait at a member: L{dledger.node.work.reads.Reads}."""

    @property
    def parked(self) -> Mapping[ServerConnection, object]:
        """Reads that wait for room."""

    @property
    def waits_of(self) -> Mapping[ServerConnection, int]:
        """Numbers of those that wait for entries, by connection."""

    @property
    def waiters(self) -> int:
        """Number of all that do."""

    def slowest_index(self) -> int:
        """The lowest index that one waits for."""


@attrs.define
class WaiterRules:
    """
    A reader that waits for entries at a member hears of them soon.

    @ivar known: the commit index at the last ticks.
    """

    known: deque[int] = attrs.Factory(lambda: deque(maxlen=SOON_TICKS))

    def look(self, name: str, reads: WaitingReads, committed_index: int) -> None:
        """At a tick."""
        if not reads.parked and len(self.known) == SOON_TICKS:
            index, known = reads.slowest_index(), self.known[0]
            require(index > known, OUTCOMES,
                    f"{name} has known {known} to be committed for {SOON_TICKS} ticks: {index} is waited for")
        counted = sum(reads.waits_of.values())
        require(counted <= reads.waiters and 0 not in reads.waits_of.values(), OUTCOMES,
                f"{name} has {reads.waiters} waiting reads, and counts {counted} of connections")
        self.known.append(committed_index)


@attrs.frozen
class AskedOfCore:
    """
    An append or a read that the core was given.

    @ivar since_ms: when, by its clock. @ivar awake_ms: how long the process had run until then.
    @ivar proposal: None: it is a read. @ivar behind: most entries that one write has before it.
    @ivar is_given: the leader was handing over to another member.
    """

    since_ms: int
    awake_ms: int
    proposal: ev.Proposal | None = None
    behind: int = 0
    is_given: bool = False


@attrs.define
class OutcomeRules:
    """
    The rules of one process.

    Invariant: C{asked} has the tokens that the core was given and has not answered.

    @ivar member: it; C{invariants}: what the group holds.
    @ivar before: it when the present step began. @ivar now_ms: of that step.
    """

    member: CheckedMember
    invariants: GroupInvariants
    asked: dict[int, AskedOfCore] = attrs.Factory(dict)
    before: BeforeStep = BeforeStep()
    now_ms: int = 0
    _awake_ms: int = 0
    _ticked_ms: int = 0

    def proposed(self, proposals: Sequence[ev.Proposal]) -> None:
        """Appends came."""
        behind = 1  # (a producer entry may come first)
        giving = self.member.core.transfer.giving
        is_given = giving is not None and giving.term == self.member.core.member.term
        for proposal in proposals:
            self.asked[proposal.token] = AskedOfCore(
                self.now_ms, self._awake_ms, proposal, behind, is_given)
            behind += len(proposal.bodies) + 1

    def origin_of(self, token: int) -> ev.Origin | None:
        """The producer of an append, and the number of its first body; None: it has none."""
        asked = self.asked.get(token)
        return asked.proposal.origin if asked is not None and asked.proposal is not None else None

    def requested(self, tokens: Sequence[int]) -> None:
        """Reads came."""
        for token in tokens:
            self.asked[token] = AskedOfCore(self.now_ms, self._awake_ms)

    def _says(self, answer: fx.AnswerAppend | fx.AnswerRead, why: str, is_so: object) -> None:
        if not is_so:
            state = self.member.core.member
            require(is_so, OUTCOMES, (
                f"{self.member.member_id} answers {answer}: {why}; it is {state.role.value} of term "
                f"{state.term}, {state.ledger_end_index}/{state.committed_index}"
            ))

    # -- appends ----------------------------------------------------------------------------------

    def appended(self, answer: fx.AnswerAppend, *, is_stopping: bool) -> None:
        """An append is answered."""
        asked = self.asked.pop(answer.token, None)
        if asked is None or asked.proposal is None or isinstance(self.invariants, ApartInvariants):
            return
        state, code = self.member.core.member, answer.code
        leaders = (self.before.leader_id, state.leader_id, None)
        self._says(answer, f"the leader is of {leaders}", answer.leader_id in leaders)
        if code is ResponseCode.SUCCESS:
            self._says(answer, "it was handing over when the append came",
                       answer.is_repeated or not asked.is_given)
            self._is_at_its_place(answer, asked.proposal)
        elif code is ResponseCode.WAIT_QUORUM_ACK_TIMEOUT:
            waited_ms, last = self.now_ms - asked.since_ms, answer.first_index + answer.count - 1
            is_over = waited_ms >= state.config.max_wait_ack_time_ms or is_stopping
            self._says(answer, f"it waited {waited_ms} ms", is_over and last > self.before.committed_index)
        elif code is ResponseCode.TERM_CHANGED:
            self._says(answer, "its leadership goes on", is_stopping or not (
                state.role is Role.LEADER and state.term == answer.term))
        elif code is ResponseCode.NOT_LEADER:
            self._says(answer, "it leads", answer.term < state.term or is_stopping or not (
                self.before.role is Role.LEADER and state.role is Role.LEADER))
        elif code is ResponseCode.CONFLICT:
            self._is_in_conflict(answer, asked, asked.proposal)
        elif code is ResponseCode.SEQUENCE_GAP:
            self._is_a_gap(answer, asked.proposal)

    def _is_at_its_place(self, answer: fx.AnswerAppend, proposal: ev.Proposal) -> None:
        """Term and position are those of the committed entry, and it is answered when it is committed."""
        invariants, first, state = self.invariants, answer.first_index, self.member.core.member
        term = invariants.committed[first]
        if answer.is_repeated:
            begin_index = self.member.ledger.ledger_begin_index
            self._says(answer, f"the log begins at {begin_index}", answer.term >= 0 or first < begin_index)
            if answer.term < 0:
                return
        else:
            expected = proposal.expected_end
            between = range(first if expected is None else expected + 1, first)
            self._says(answer, f"it was to be after {expected}", all(map(invariants.is_hidden, between)))
            is_new = first + answer.count - 1 > self.before.committed_index
            leads_on = state.role is Role.LEADER and state.term == answer.term
            self._says(answer, "it was committed before", is_new or not leads_on)
        place = term, ENTRY_HEADER.unpack_from(invariants.records[first, term][0])[4]
        self._says(answer, f"term and position are {place}", (answer.term, answer.pos) == place)

    def _is_in_conflict(self, answer: fx.AnswerAppend, asked: AskedOfCore, proposal: ev.Proposal) -> None:
        end_index = self.invariants.mirror(self.member.member_id).end_index
        is_end = end_index <= answer.end_index <= end_index + asked.behind
        self._says(answer, f"the log ends at {end_index}, expected is {proposal.expected_end}",
                   is_end and proposal.expected_end not in (None, answer.end_index))

    def _is_a_gap(self, answer: fx.AnswerAppend, proposal: ev.Proposal) -> None:
        mirror, origin = self.invariants.mirror(self.member.member_id), proposal.origin
        records = None if origin is None or mirror.lost else held_records(self.invariants, mirror)
        if origin is None or records is None:
            return
        known = fold(records).producers.get(origin.producer)
        last = -1 if known is None else len(known.places) - 1
        self._says(answer, f"the last one is {last}", answer.last_sequence == last < origin.sequence - 1)

    # -- reads ------------------------------------------------------------------------------------

    def read(self, answer: fx.AnswerRead, *, is_stopping: bool) -> None:
        """A linearizable read is answered."""
        asked = self.asked.pop(answer.token, None)
        if asked is None or isinstance(self.invariants, ApartInvariants):
            return
        state, waited_ms = self.member.core.member, self.now_ms - asked.since_ms
        leaders = (self.before.leader_id, state.leader_id, None)
        self._says(answer, f"the leader is of {leaders}", answer.leader_id in leaders)
        is_over = waited_ms >= state.config.max_wait_ack_time_ms or is_stopping
        if answer.code is ResponseCode.NOT_LEADER:
            led_on = self.before.role is Role.LEADER and state.role is Role.LEADER
            self._says(answer, f"it leads, and waited {waited_ms} ms", is_over or not led_on)
        elif answer.code is ResponseCode.LEADER_NOT_READY:
            is_ready = self.member.core.leading.is_ready
            self._says(answer, f"it waited {waited_ms} ms", is_over and not is_ready)
        elif answer.code is ResponseCode.SUCCESS:
            self._says(answer, "another one leads", state.role is Role.LEADER)

    def ticks(self) -> None:
        """A tick comes: what the last one found to be overdue was answered. The oldest comes first."""
        config = self.member.config
        longest_ms = 2 * config.max_wait_ack_time_ms + 6 * config.tick_ms
        for token, asked in self.asked.items():
            waited_ms = self._awake_ms - asked.awake_ms
            require(waited_ms <= longest_ms, OUTCOMES,
                    f"{self.member.member_id} has not answered {token} for {waited_ms} ms: {asked}")
            break
        # (A process that stood still has not waited.)
        self._awake_ms += min(self.now_ms - self._ticked_ms, 2 * config.tick_ms)
        self._ticked_ms = self.now_ms
