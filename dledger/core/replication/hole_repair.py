# -*- test-case-name: tests.core.test_hole_repair -*-
"""
Getting the entries of holes back: which member is asked, for what, and when.

A member with holes is a holder, a voter and a candidate for all that it verifiably holds: its end is known.
Three things it does not do: show, push or acknowledge an entry of a hole, and lead or acknowledge while an
entry of a hole is not known to be committed (L{MemberState.lacks_uncommitted}).

Rule 1: one hole is handled at a time, the first one first; if no member has its first entry, the next one
has its turn, because retention may have deleted at all others what is missing in the first. The bytes of a
hole are looked at again; then one member at a time is asked for at most L{ASK_BYTES}. The store proves the
records (L{dledger.storage.store.hole_mending}); this part only says whether both sides know them to be
committed.
Rule 2: a member of ours gives any sound entry; a Java member gives entries only while it leads, so a leader
that no member of ours could help hands over. Two members that neither lead nor stand may never have heard of
each other: then METADATA says whether the other one is of ours.
Rule 3: it is tried for ever. After each round of all holes in vain the wait grows, up to L{WAIT_MAX_MS}. An
entry that no member has is never replaced: the operator is informed who was asked.
"""

from __future__ import annotations

import attrs

from dledger.core.state import effects as fx
from dledger.core.state import inputs as ev
from dledger.core.state.member_state import MemberState
from dledger.values.ledger.holes import Hole
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.codes import WIRE_VERSION, Consistency
from protocols.wire.ledger.messages import (
    GetRequest,
    GetResponse,
    MetadataRequest,
    MetadataResponse,
    PullRequest,
    PullResponse,
    Response,
)

#: Bytes of records that one request asks for.
ASK_BYTES = 256 * 1024
#: Milliseconds between a request that helped and the next one: the rate of a repair is bounded.
PACE_MS = 20
#: Milliseconds after the first round of all holes in vain, and at most.
WAIT_MS = 500
WAIT_MAX_MS = 30_000


@attrs.frozen(kw_only=True)
class _Question:
    """
    Who was asked. C{led_term}: the term that it led then; -1 if it did not lead this member's.
    C{first_index}: the first missing entry of the hole then.
    """

    peer_id: str
    led_term: int
    first_index: int


@attrs.define
class HoleRepair:
    """
    Invariant: at most one request or effect is under way; C{asked} is about the hole in turn, which begins
    with C{_first_index}, or did so before it shrank.
    C{_reported_committed} has the members of ours whose frames have no PULL,
    and the committed index that they
    reported; C{_polled} those of them that were asked for it in this round. C{_begins} has the first entry
    that a member still has, of those that have deleted a missing one, since the ledger lacks C{_least_index}.

    @ivar asked: peer id to why it did not give the first missing entry when it was asked last.
    """

    member: MemberState
    asked: dict[str, str] = attrs.Factory(dict)
    _reported: tuple[Hole, ...] = ()
    _first_index: int = -1
    _least_index: int = -1
    _request_id: int | None = None
    _question: _Question | None = None
    _tried: set[str] = attrs.Factory(set)
    _is_writing: bool = False
    _was_looked_at: bool = False
    _next_ms: int = 0
    _rounds: int = 0
    _lacking_since_ms: int | None = None
    _reported_committed: dict[str, int] = attrs.Factory(dict)
    _polled: set[str] = attrs.Factory(set)
    _begins: dict[str, int] = attrs.Factory(dict)

    def tick(self) -> None:
        """Time passed."""
        member = self.member
        holes = member.view.holes
        if holes != self._reported:
            self._notify(holes)
        self._note_lacking()
        if not holes or self._request_id is not None or self._is_writing:
            return
        if holes[0].first_index != self._least_index:
            self._least_index = holes[0].first_index
            self._begins.clear()
        if member.out.now_ms < self._next_ms:
            return
        hole = next((one for one in holes if one.last_index >= self._first_index), holes[0])
        if hole.first_index != self._first_index:
            self._begin(hole.first_index)
        if not self._was_looked_at:
            self._was_looked_at = self._is_writing = True
            member.out.emit(fx.LookAgain(first_index=hole.first_index))
            return
        self._ask(hole)

    def _notify(self, holes: tuple[Hole, ...]) -> None:
        """Report the begin and the end of a repair, and a hole that is new; not that one shrinks."""
        report = self.member.out.report
        for hole in holes:
            if not any(known.holds(hole.first_index) for known in self._reported):
                report("entries-damaged", first_index=hole.first_index, last_index=hole.last_index)
                if self._reported:  # A new one need not wait until the older ones have been tried once more.
                    self._begin(hole.first_index)
                    self._make_haste()
        if not holes:
            report("entries-mended", ledger_end_index=self.member.ledger_end_index)
            self.member.peers.seeks_java_leader = False
            self._first_index = self._least_index = -1
            self._make_haste()
            self.asked.clear()
        self._reported = holes

    def _make_haste(self) -> None:
        self._rounds = 0
        self._next_ms = min(self._next_ms, self.member.out.now_ms + PACE_MS)

    def _note_lacking(self) -> None:
        if not self.member.lacks_uncommitted:
            self._lacking_since_ms = None
        elif self._lacking_since_ms is None:
            self._lacking_since_ms = self.member.out.now_ms

    def is_stuck(self, patience_ms: int) -> bool:
        """Whether an entry that is not known to be committed has been missing for longer than this."""
        since_ms = self._lacking_since_ms
        return since_ms is not None and self.member.out.now_ms - since_ms > patience_ms

    def _begin(self, first_index: int) -> None:
        self._first_index = first_index
        self._was_looked_at = False
        self.asked.clear()
        self._tried.clear()
        self._polled.clear()

    @property
    def gone_elsewhere_index(self) -> int:
        """
        All other members have deleted the entries up to this one, and the first hole begins among them; -1:
        one may have them.
        """
        peer_ids, holes = self.member.peer_ids, self.member.view.holes
        if not peer_ids or not holes or not self._begins.keys() >= set(peer_ids):
            return -1
        gone_index = min(self._begins[peer_id] for peer_id in peer_ids) - 1
        return gone_index if gone_index >= holes[0].first_index else -1

    # -- questions ----------------------------------------------------------------------------

    def _ask(self, hole: Hole) -> None:
        member = self.member
        peer_id = next((one for one in self._in_turn() if one not in self._tried), None)
        if peer_id is None:
            self._wait(hole)
            return
        index, last_index = hole.first_index, hole.last_index
        if index <= member.committed_index < last_index:
            last_index = member.committed_index  # the rest may differ from the leader's, and will be cut
        request: PullRequest | GetRequest | MetadataRequest
        reported = self._reported_committed.get(peer_id)
        is_unknown = member.peers.is_unheard(peer_id)
        if is_unknown or (reported is not None and reported < index and peer_id not in self._polled):
            if not is_unknown:
                self._polled.add(peer_id)
            request = MetadataRequest(
                group=member.config.group, remote_id=peer_id, local_id=member.self_id,
                wire_version=WIRE_VERSION,
            )
        elif not member.peers.is_ours(peer_id) or reported is not None:
            request = GetRequest(
                group=member.config.group, remote_id=peer_id, local_id=member.self_id, begin_index=index,
                consistency=Consistency.COMMITTED,
            )
        else:
            request = PullRequest(
                group=member.config.group, remote_id=peer_id, local_id=member.self_id, begin_index=index,
                end_index=last_index, max_bytes=ASK_BYTES, wire_version=WIRE_VERSION,
            )
        leads = peer_id == member.leader_id
        self._question = _Question(peer_id=peer_id, led_term=member.term if leads else -1,
                                   first_index=index)
        self._tried.add(peer_id)
        self._request_id = member.out.send(peer_id, request, self)

    def _in_turn(self) -> tuple[str, ...]:
        """The peers that can be asked now, the leader first. A Java member answers only while it leads."""
        leader_id, peers = self.member.leader_id, self.member.peers
        able = [one for one in self.member.peer_ids if one == leader_id or not peers.is_java(one)]
        return tuple(sorted(able, key=lambda one: one != leader_id))

    def _wait(self, hole: Hole) -> None:
        """Every member was asked in vain: the next hole has its turn, the first one after a wait."""
        member = self.member
        wait_ms = PACE_MS
        if hole == member.view.holes[-1]:
            wait_ms = min(WAIT_MS << min(self._rounds, 6), WAIT_MAX_MS)
            self._rounds += 1
        if len(member.view.holes) > 1:
            self._first_index = hole.last_index + 1
        self._next_ms = member.out.now_ms + wait_ms
        member.peers.seeks_java_leader = member.is_leader and member.has_java_peer
        member.out.report("entries-not-found", first_index=hole.first_index, last_index=hole.last_index,
                          asked=", ".join(f"{peer}: {why}" for peer, why in sorted(self.asked.items())))
        self._tried.clear()
        self._polled.clear()
        self._was_looked_at = False

    # -- answers ------------------------------------------------------------------------------

    def on_response(self, peer_id: str, request_id: int, response: Response) -> None:
        """A member answered."""
        if request_id != self._request_id:
            return
        self._request_id = None
        member, question = self.member, self._question
        assert question is not None
        if isinstance(response, MetadataResponse):
            if peer_id in self._reported_committed:
                self._reported_committed[peer_id] = response.committed_index
            self._tried.discard(peer_id)
            self._question = None  # it was not asked for the entries
            return
        entries: EntryBatch | None = None
        if isinstance(response, (PullResponse, GetResponse)):
            entries = response.entries
        if response.code is not ResponseCode.SUCCESS or entries is None:
            if response.code is ResponseCode.UNSUPPORTED and isinstance(response, PullResponse):
                self._reported_committed[peer_id] = -1  # its frames are not native: GET is understood by all
                self._tried.discard(peer_id)
            else:
                self.asked[peer_id] = response.code.name
            self._note_begin(question, response)
            return
        if isinstance(response, PullResponse):
            is_committed = entries.last_index <= response.committed_index
        else:
            # It may not be committed. But the leader of this term has all that this member knows to be.
            reported = self._reported_committed.get(peer_id, -1)
            is_committed = question.led_term == member.term or entries.last_index <= reported
        self._is_writing = True
        member.out.emit(fx.FillHole(
            entries=entries, is_committed=is_committed and entries.last_index <= member.committed_index,
        ))

    def _note_begin(self, question: _Question, response: Response) -> None:
        if response.code is not ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN:
            return
        # An answer to GET does not say where the log begins: after the entry, at least.
        begin = question.first_index + 1
        if isinstance(response, PullResponse):
            begin = response.ledger_begin_index
        self._begins[question.peer_id] = max(self._begins.get(question.peer_id, -1), begin)

    def on_request_failed(self, peer_id: str, request_id: int, reason: str) -> None:
        """No answer."""
        if request_id == self._request_id:
            self._request_id = None
            self.asked[peer_id] = reason

    def on_handled(self, handled: ev.HoleHandled) -> None:
        """The store has looked at the hole, or filled it, or refused to."""
        reason = handled.reason
        self._is_writing = False
        question, self._question = self._question, None
        if not reason:
            self._next_ms = self.member.out.now_ms + PACE_MS
            self._rounds = 0
        elif question is not None:
            self.asked[question.peer_id] = reason
