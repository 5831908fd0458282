# -*- test-case-name: tests.core.test_origins -*-
"""
Appends of producers, at the leader: which are new, and the producer entry that announces them.

The producer entry comes in front of the entries that it announces, in one write and one term. So whoever
holds one of these holds it, too; and an entry of its term at an announced index is the announced one, as a
leader writes one entry at an index. No entry of a producer is in a log that does not tell its sequence.

Rule: what the ledger has, committed or not, is never appended again. An entry that is not committed yet may
still go: the append that repeats it waits, which costs the client another attempt.
"""

from __future__ import annotations

import attrs

from dledger.base.errors import DamagedEntryError
from dledger.base.producers import Known, SequenceTable
from dledger.core import effects as fx
from dledger.core.inputs import Origin, Proposal
from dledger.core.member_state import MemberState
from protocols.wire.ledger.codes import ResponseCode
from protocols.wire.ledger.producers import (
    PRODUCER_HEADER_BYTES,
    RUN_BYTES_MAX,
    ProducerRun,
)

#: Runs in one producer entry, at most.
RUNS_IN_ENTRY_MAX = 1024

#: The answers to appends that are neither new nor in the ledger.
REFUSALS = {
    Known.GAP: ResponseCode.SEQUENCE_GAP,
    Known.FORGOTTEN: ResponseCode.SEQUENCE_FORGOTTEN,
    Known.UNKNOWN_PRODUCER: ResponseCode.UNKNOWN_PRODUCER,
}


@attrs.define
class Announcement:
    """
    The producer entry of one write.

    Invariant: C{_next} has the next sequence of each producer in C{runs}.

    @ivar at: its number among the bodies of the write; -1: it is not needed.
    """

    member: MemberState
    at: int = -1
    runs: list[ProducerRun] = attrs.Factory(list)
    _next: dict[str, int] = attrs.Factory(dict)

    def refusal(self, proposal: Proposal, origin: Origin) -> fx.AnswerAppend | None:
        """The answer to a proposal that is not to be written; None: it is new, or refused for this turn."""
        member, count = self.member, len(proposal.bodies)
        table = member.view.producers
        if table is None:
            return self._answer(proposal, ResponseCode.LEADER_NOT_READY)
        if origin.producer in self._next:
            is_next = origin.sequence == self._next[origin.producer]
            return None if is_next else self._answer(proposal, ResponseCode.LEADER_NOT_READY)
        return self._judged(proposal, origin, table, count)

    def _judged(
        self, proposal: Proposal, origin: Origin, table: SequenceTable, count: int
    ) -> fx.AnswerAppend | None:
        member = self.member
        known, index, found, last = table.judge(
            origin.producer, origin.sequence, count, member.ledger_end_index
        )
        if known is Known.NEW:
            return None
        if known is not Known.REPEATED:
            return self._answer(proposal, REFUSALS[known], last_sequence=last)
        if index + found - 1 > member.committed_index:
            return self._answer(proposal, ResponseCode.LEADER_NOT_READY)
        term, pos = -1, -1
        if index >= member.view.ledger_begin_index:
            try:
                term, pos = member.view.term_of(index), member.view.position_of(index)
            except DamagedEntryError:
                return self._answer(proposal, ResponseCode.LEADER_NOT_READY)  # (A peer gives it back.)
        return fx.AnswerAppend(
            token=proposal.token, code=ResponseCode.SUCCESS, term=term, count=found, first_index=index,
            pos=pos, leader_id=member.leader_id, is_repeated=True,
        )

    def _answer(
        self, proposal: Proposal, code: ResponseCode, *, last_sequence: int = -1
    ) -> fx.AnswerAppend:
        return fx.AnswerAppend(
            token=proposal.token, code=code, term=self.member.term, count=len(proposal.bodies),
            leader_id=self.member.leader_id, last_sequence=last_sequence,
        )

    @property
    def is_full(self) -> bool:
        """Whether the entry takes no further run."""
        room = self.member.config.body_bytes_max - PRODUCER_HEADER_BYTES
        return len(self.runs) >= min(RUNS_IN_ENTRY_MAX, room // RUN_BYTES_MAX)

    def announce(self, origin: Origin, count: int, bodies: list[bytes]) -> None:
        """C{count} bodies of a producer come next; C{bodies}: those before them in the write."""
        if self.at < 0:
            self.at = len(bodies)
            bodies.append(b"")  # its place
        distance, last = len(bodies) - self.at, self.runs[-1] if self.runs else None
        if last is not None and last.producer == origin.producer and last.distance + last.entries == distance:
            self.runs[-1] = last._replace(entries=last.entries + count)
        else:
            self.runs.append(ProducerRun(origin.producer, origin.sequence, distance, count))
        self._next[origin.producer] = origin.sequence + count
