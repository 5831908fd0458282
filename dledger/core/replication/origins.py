# -*- test-case-name: tests.core.test_origins -*-
"""
Appends of producers, at the leader: which are new, and the channels of the entries of one write.

The entries of a producer carry its slot and the low digits of their numbers. A session entry in front of a
write gives slots to the producers that have none.

Rule: what the ledger has, committed or not, is never appended again. An entry that is not committed yet may
still go: the append that repeats it waits, which costs the client another attempt.
"""

from __future__ import annotations

import attrs

from dledger.core.state import effects as fx
from dledger.core.state.inputs import Origin, Proposal
from dledger.core.state.member_state import MemberState
from dledger.values.errors import DamagedEntryError
from dledger.values.ledger.group_state import Known, Verdict, cost_of
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
