# -*- test-case-name: tests.core.test_origins -*-
"""
Appends of producers, at the leader: which are new, and the producer entry that announces them.

The producer entry comes in front of the entries that it announces, in one write and one term. So whoever
holds one of these holds it, too; and an entry of its term at an announced index is the announced one, as a
leader writes one entry at an index. No entry of a producer is in a log that does not report its sequence.

If all members know open runs, the last run of the entry may be open, for the writes that come: so a session
of one producer costs one entry. It ends with any other body, which comes after another producer entry.

Rule: what the ledger has, committed or not, is never appended again. An entry that is not committed yet may
still go: the append that repeats it waits, which costs the client another attempt.
"""

from __future__ import annotations

from typing import NamedTuple

import attrs

from dledger.core.state import effects as fx
from dledger.core.state.inputs import Origin, Proposal
from dledger.core.state.member_state import MemberState
from dledger.ledger.producers import Known, SequenceTable
from dledger.values.errors import DamagedEntryError
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.producers import (
    PRODUCER_HEADER_BYTES,
    RUN_BYTES_MAX,
    ProducerRun,
)

#: Most runs in one producer entry.
RUNS_IN_ENTRY_MAX = 1024

#: The answers to appends that are neither new nor in the ledger.
REFUSALS = {
    Known.GAP: ResponseCode.SEQUENCE_GAP,
    Known.FORGOTTEN: ResponseCode.SEQUENCE_FORGOTTEN,
    Known.UNKNOWN_PRODUCER: ResponseCode.UNKNOWN_PRODUCER,
}


class LastWrite(NamedTuple):
    """
    Whose the last entry is that a leader has written.

    @ivar end_index: its index: if the ledger goes on after it, nothing of this counts.
    @ivar producer: of its body; empty: it has none.
    @ivar is_open: whether a body of this producer may follow without a producer entry.
    """

    term: int = -1
    end_index: int = -1
    producer: str = ""
    is_open: bool = False


#: Most writes: no producer has the last body.
NOBODYS_WRITE = LastWrite()


@attrs.define
class Announcement:
    """
    The producer entry of one write.

    Invariant: C{_next} has the next sequence of each producer in C{runs}, and of the continued one.

    @ivar at: its number among the bodies of the write; -1: it is not needed.
    @ivar last_producer: of the body before the write, or of the last one taken so far.
    @ivar is_continued: whether this write continues an open run of that producer: any other body needs a
        producer entry in front of it.
    """

    member: MemberState
    last_producer: str = ""
    is_continued: bool = False
    at: int = -1
    runs: list[ProducerRun] = attrs.Factory(list)
    _next: dict[str, int] = attrs.Factory(dict)
    _follows: bool = False

    @classmethod
    def after(cls, member: MemberState, last: LastWrite) -> Announcement:
        """For the next write of a leader, whose last one was C{last}."""
        if last.end_index != member.ledger_end_index or last.term != member.term:
            return cls(member)
        return cls(member, last.producer, last.is_open)

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
        producer, self._next[origin.producer] = self.last_producer, origin.sequence + count
        self.last_producer = origin.producer
        if self.is_continued and producer == origin.producer:
            return
        self.separate(bodies)
        distance, last = len(bodies) - self.at, self.runs[-1] if self.runs else None
        if last is not None and last.producer == origin.producer and last.distance + last.entries == distance:
            self.runs[-1] = last._replace(entries=last.entries + count)
        else:
            self._follows = producer == origin.producer
            self.runs.append(ProducerRun(origin.producer, origin.sequence, distance, count))

    def separate(self, bodies: list[bytes]) -> None:
        """The next body is not of the open run, so there is a producer entry in front of it."""
        self.is_continued = False
        if self.at < 0:
            self.at = len(bodies)
            bodies.append(b"")  # its place

    def plain(self, bodies: list[bytes]) -> None:
        """A body without a producer comes next."""
        self.last_producer = ""
        if self.is_continued:
            self.separate(bodies)

    def end(self, entries: int) -> LastWrite:
        """
        The write is complete: its last run may be open.

        The first run of a session is; and one that goes on where the producer had the last entry: where
        others append between, an open run would cost an entry more.

        @param entries: number of bodies in the write.
        @return: it, once it is written.
        """
        is_open, run = self.is_continued, self.runs[-1] if self.runs else None
        if run is not None and self.at + run.distance + run.entries == entries and (
            (not run.sequence or self._follows) and self.member.may_leave_runs_open
        ):
            self.runs[-1], is_open = run._replace(entries=0), True
        end_index = self.member.ledger_end_index + entries
        return LastWrite(self.member.term, end_index, self.last_producer, is_open)
