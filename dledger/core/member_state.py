# -*- test-case-name: tests.core.test_member_state -*-
"""
Who this member is and what it knows: role, term, vote, leader, the ends of its ledger, its commit.

Rule 1: the term never falls; a new term forgets the vote and the leader, and is persisted by the
effect that stands before anything said in it.
Rule 2: C{committed_index} never falls and never passes the end.

Effects are collected here, in order, by the L{Outbox} that all parts of the core share.

Source: MemberState.java; differs: term and vote are durable before they are answered (W4).
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol

import attrs

from dledger.config import DLedgerConfig
from dledger.core import effects as fx
from dledger.core.ports import LedgerView
from protocols.wire.ledger.codes import WIRE_VERSION
from protocols.wire.ledger.messages import Request, Response


class Role(Enum):
    """What a member does in its term."""

    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    LEADER = "leader"


class RequestOwner(Protocol):
    """A part of the core that sent a request and wants to know how it ended."""

    def on_response(self, peer_id: str, request_id: int, response: Response) -> None:
        """The peer answered."""

    def on_request_failed(self, peer_id: str, request_id: int, reason: str) -> None:
        """There will be no answer."""


@attrs.define
class Outbox:
    """
    The effects of the step under way, and the requests that are out.

    Invariant: an outcome reaches the owner of its request once; one that matches nothing
    outstanding is ignored (an answer must match a question that still stands).
    A step has one write of the ledger at most, and nothing stands behind it: a refused write drops
    what does.
    """

    request_time_out_ms: int
    now_ms: int = 0
    _effects: list[fx.Effect] = attrs.Factory(list)
    _write: fx.WriteBodies | fx.WriteEntries | fx.TruncateLedger | None = None
    _next_request_id: int = 1
    _owners: dict[int, tuple[str, RequestOwner, int]] = attrs.Factory(dict)

    def begin(self, now_ms: int) -> None:
        """A step starts. Time never runs backwards in here."""
        if now_ms > self.now_ms:
            self.now_ms = now_ms

    def take(self) -> tuple[fx.Effect, ...]:
        """The effects of this step."""
        effects = tuple(self._effects) if self._write is None else (*self._effects, self._write)
        self._effects.clear()
        self._write = None
        return effects

    def emit(self, effect: fx.Effect) -> None:
        """One more effect, behind those before it."""
        self._effects.append(effect)

    def write(self, effect: fx.WriteBodies | fx.WriteEntries | fx.TruncateLedger) -> None:
        """The step's write of the ledger; it stands last, whatever is emitted after it."""
        assert self._write is None, "one write in a step"
        self._write = effect

    def forget_write(self) -> None:
        """The member stops: the write of this step, if there is one, must not run."""
        self._write = None

    def persist(self, term: int, voted_for: str | None) -> None:
        """
        Make term and vote durable before all that follows.

        A vote in a term that this step entered is made durable with it: earlier is always safe, and
        one fsync is enough.
        """
        effect = fx.PersistTermVote(term=term, voted_for=voted_for)
        for at, known in enumerate(self._effects):
            if isinstance(known, fx.PersistTermVote) and known.term == term:
                self._effects[at] = effect
                return
        self._effects.append(effect)

    def report(self, event: str, **facts: object) -> None:
        """Something for the log."""
        self._effects.append(fx.Report(event=event, facts=facts))

    def reply(self, token: int, response: Response) -> None:
        """Answer a request."""
        self._effects.append(fx.Reply(token=token, response=response))

    def send(self, peer_id: str, request: Request, owner: RequestOwner) -> int:
        """Send a request; its outcome goes to C{owner}. @return: its id."""
        request_id = self._next_request_id
        self._next_request_id += 1
        self._owners[request_id] = (peer_id, owner, self.now_ms)
        self._effects.append(fx.SendRequest(peer_id=peer_id, request_id=request_id, request=request))
        return request_id

    def answered(self, peer_id: str, request_id: int) -> RequestOwner | None:
        """Who waits for this outcome; the request stops being outstanding."""
        found = self._owners.get(request_id)
        if found is None or found[0] != peer_id:
            return None
        del self._owners[request_id]
        return found[1]

    def overdue(self) -> list[tuple[str, int, RequestOwner]]:
        """Requests whose outcome never came; taken out. Ids rise with time, so no scan."""
        late: list[tuple[str, int, RequestOwner]] = []
        for request_id, (peer_id, owner, sent_ms) in self._owners.items():
            if self.now_ms - sent_ms < self.request_time_out_ms:
                break
            late.append((peer_id, request_id, owner))
        for _, request_id, _ in late:
            del self._owners[request_id]
        return late

    @property
    def outstanding(self) -> int:
        """Requests without an outcome so far."""
        return len(self._owners)


@attrs.define
class MemberState:
    """
    Invariant: C{committed_index <= ledger_end_index}; C{leader_id} belongs to C{term}.

    @ivar peer_ids: the other members, in a fixed order.
    @ivar start_term: term that the member recovered with; it acknowledged nothing in a later one
        before this life.
    @ivar flushed_index: every entry up to here is on stable storage.
    @ivar repair_end_index: -1, or the end that the ledger must pass before this member votes again.
    @ivar wire_versions: what peers advertised; a peer that is missing was not heard of.
    @ivar incompatible: peers that answered a push in another version of the protocol, as far as the
        connections of the moment have shown. None of them ever counts for a commit.
    """

    config: DLedgerConfig
    view: LedgerView
    out: Outbox
    term: int
    voted_for: str | None
    committed_index: int
    repair_end_index: int
    start_term: int
    peer_ids: tuple[str, ...]
    role: Role = Role.FOLLOWER
    leader_id: str | None = None
    ledger_end_index: int = -1
    ledger_end_term: int = -1
    flushed_index: int = -1
    wire_versions: dict[str, int] = attrs.Factory(dict)
    last_heard_ms: dict[str, int] = attrs.Factory(dict)
    incompatible: set[str] = attrs.Factory(set)

    @property
    def self_id(self) -> str:
        """This member."""
        return self.config.self_id

    @property
    def is_leader(self) -> bool:
        """Whether this member leads its term."""
        return self.role is Role.LEADER

    @property
    def is_understood(self) -> bool:
        """Whether a quorum, this member included, may understand what it pushes."""
        return len(self.config.peers) - len(self.incompatible) >= self.config.quorum

    @property
    def has_java_peer(self) -> bool:
        """Whether a peer has not advertised our wire, and so may acknowledge what it has not flushed."""
        return any(self.wire_versions.get(peer_id, 0) < 1 for peer_id in self.peer_ids)

    @property
    def may_lead(self) -> bool:
        """Whether this member may stand for election; if not, it votes and follows only."""
        return not self.config.never_lead and self.repair_end_index < 0 and self.is_understood

    def enter_term(self, term: int, *, voted_for: str | None = None) -> None:
        """A higher term: forget vote and leader, and persist."""
        assert term > self.term, "a term never falls nor starts twice"
        self.term = term
        self.voted_for = voted_for
        self.leader_id = None
        self.out.persist(term, voted_for)

    def vote(self, candidate_id: str) -> None:
        """Give this term's only vote."""
        assert self.voted_for in (None, candidate_id), "one vote in a term"
        if self.voted_for is None:
            self.voted_for = candidate_id
            self.out.persist(self.term, candidate_id)

    def refresh_end(self) -> None:
        """The ledger changed: read its end again."""
        self.ledger_end_index = self.view.ledger_end_index
        self.ledger_end_term = self.view.ledger_end_term
        assert self.ledger_end_index >= self.committed_index, "the ledger lost committed entries"

    def commit(self, index: int) -> bool:
        """Entries up to C{index} are committed. @return: whether that is news."""
        if index <= self.committed_index:
            return False
        assert index <= self.ledger_end_index, "a commit beyond the end"
        self.committed_index = index
        self.out.emit(fx.RecordCommit(committed_index=index))
        return True

    def heard_from(self, peer_id: str, wire_version: int) -> None:
        """A message of C{peer_id} came."""
        self.last_heard_ms[peer_id] = self.out.now_ms
        if wire_version > 0 or peer_id not in self.wire_versions:
            self.wire_versions[peer_id] = wire_version

    def base_fields(self, peer_id: str) -> dict[str, object]:
        """Base fields of a request to C{peer_id}."""
        return {
            "group": self.config.group,
            "remote_id": peer_id,
            "local_id": self.config.self_id,
            "leader_id": self.leader_id,
            "term": self.term,
            "wire_version": WIRE_VERSION,
        }
