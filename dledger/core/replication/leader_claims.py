# -*- test-case-name: tests.core.test_unsure -*-
"""
When a member that may have lost acknowledged entries is sure of its ledger again.

With C{async} flushing a loss of power takes entries that this member has acknowledged. Until it holds all
that a leader has, it is I{unsure}: its vote counts only together with the votes of all members, see
L{dledger.core.election.elector}.

Rule: it asks the leader of its term where that leader's ledger ends. The answer is younger than this process,
so every entry that an earlier process acknowledged to that leader lies at or below that end. When the ledgers
are equal up to there, and with C{sync} flushed, nothing is missing. A Java leader does not report its end,
and sends COMMIT, by which a follower knows it, only after a second without a push: under load never. So it is
asked GET: 410, which only a leader answers, says that its ledger ended before that index. Entries of a term
that began after the start need no question: their leader was elected without a plain vote of this member.
(Not so if the member lost its directory: it does not know in which terms it voted and acknowledged.)

Source: KIP-966 of Kafka treats unclean shutdowns alike; Java DLedger has no such state.
DLedgerMmapFileStore.indexCheck for Java's answer.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from dledger.core.replication.handler import EntryHandler
from dledger.core.state import effects as fx
from dledger.core.state.inputs import DirectoryDoubted
from dledger.core.state.member_state import MemberState
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.bounds import TERM_MAX
from protocols.wire.ledger.codes import WIRE_VERSION
from protocols.wire.ledger.messages import (
    GetRequest,
    GetResponse,
    MetadataRequest,
    MetadataResponse,
    Response,
)

#: No index of a ledger is as high.
_INDEX_END = 1 << 62
#: Milliseconds from a question that did not reach the leader to the next one.
AGAIN_MS = 100


@attrs.define
class _EndSearch:
    """
    Where the ledger of a Java leader ends. It grows meanwhile, so each answer is a bound of its own time; all
    are younger than this process.

    Invariant: C{low} < C{asked} < C{high}.

    @ivar low: the last index that it had, or that has expired there; at first this member's end.
    @ivar high: an index after its end.
    """

    peer_id: str
    term: int
    low: int
    high: int = _INDEX_END
    step: int = 1
    asked: int = -1
    request_id: int = -1

    def next_index(self) -> int:
        """The index to ask for: twice as far as before, or between the two bounds."""
        if self.high == _INDEX_END:
            self.step, step = 2 * self.step, self.step
            self.asked = min(self.low + step, (self.low + self.high) // 2)
        else:
            self.asked = (self.low + self.high) // 2
        return self.asked


@attrs.define
class LeaderClaims:
    """
    @ivar end_index: the end of its ledger that the leader of C{_term} reported after this process began; -2:
        not reported yet.
    @ivar step_down: ends a leadership or a campaign, with the reason.
    """

    member: MemberState
    handler: EntryHandler
    step_down: Callable[[str], None]
    _term: int = -1
    end_index: int = -2
    _own_end_index: int = -1
    _asked_ms: int = -(1 << 40)
    _search: _EndSearch | None = None

    def tick(self) -> None:
        """Time passed: ask the leader, if its end is not known yet."""
        member = self.member
        if not member.is_unsure or member.leader_id is None:
            return
        if member.is_leader:
            self._sure_behind(self._own_end_index)
            return
        is_known = self._term == member.term and self.end_index >= -1
        if is_known or self._is_searching(member.leader_id) or (
            member.out.now_ms - self._asked_ms < member.config.heart_beat_time_interval_ms
        ):
            return
        self._asked_ms = member.out.now_ms
        member.out.send(member.leader_id, MetadataRequest(
            group=member.config.group, remote_id=member.leader_id, local_id=member.self_id,
            wire_version=WIRE_VERSION,
        ), self)

    def on_response(self, peer_id: str, request_id: int, response: Response) -> None:
        """A member answered. It counts if it leads this member's term."""
        if isinstance(response, GetResponse):
            self._java_answered(peer_id, request_id, response.code)
            return
        member = self.member
        if not (
            isinstance(response, MetadataResponse) and response.code is ResponseCode.SUCCESS
            and peer_id == response.leader_id == member.leader_id
        ):
            return
        if response.term == member.term and response.end_index >= -1:
            self._term = member.term
            self.end_index = response.end_index
            if response.end_index < 0 and member.ledger_end_index < 0:
                self.sure()  # neither has an entry, so no push will come
            self.check()  # the entries may have come before this answer
        elif response.wire_version < 1 and not self._is_searching(peer_id):  # Java does not report its term
            self._search = _EndSearch(peer_id, member.term, member.ledger_end_index)
            self._ask_java(self._search)

    def _is_searching(self, leader_id: str) -> bool:
        search = self._search
        return search is not None and (search.peer_id, search.term) == (leader_id, self.member.term)

    def _ask_java(self, search: _EndSearch) -> None:
        member = self.member
        search.request_id = member.out.send(search.peer_id, GetRequest(
            group=member.config.group, remote_id=search.peer_id, local_id=member.self_id,
            begin_index=search.next_index(),
        ), self)

    def _java_answered(self, peer_id: str, request_id: int, code: ResponseCode) -> None:
        """
        A Java leader answered GET.

        In any term of its leadership it holds all entries that are committed by then. So 410 bounds those
        that an earlier process of this member has acknowledged, whichever of its terms it answers in.
        """
        member, search = self.member, self._search
        if search is None or request_id != search.request_id:
            return
        if not (peer_id == member.leader_id and self._is_searching(peer_id) and member.is_unsure):
            self._search = None
            return
        if code is ResponseCode.INDEX_OUT_OF_RANGE:
            search.high = search.asked
        elif code in (ResponseCode.SUCCESS, ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN):
            search.low = search.asked
        else:
            self._search = None  # (It leads no more, or will say otherwise: it is asked again.)
            return
        if search.high > search.low + 1:
            self._ask_java(search)
            return
        self._search = None
        self._term = member.term
        self.end_index = search.low
        if search.low < 0 and member.ledger_end_index < 0:
            self.sure()  # neither has an entry, so no push will come
        self.check()

    def on_request_failed(self, peer_id: str, request_id: int, reason: str) -> None:
        """
        It is asked again soon.

        In the first second of a group connections are still being made. Until this member is sure, the group
        does not outlive the loss of another.
        """
        self._search = None
        self._asked_ms = min(
            self._asked_ms,
            self.member.out.now_ms - self.member.config.heart_beat_time_interval_ms + AGAIN_MS,
        )

    def heard_commit(self, is_java: bool, index: int) -> None:
        """A COMMIT of the leader found this member in step: a Java leader's ledger ended at C{index}."""
        if is_java:
            self._term = self.member.term
            self.end_index = index

    def check(self) -> None:
        """Entries came, were flushed, or the leader's end became known."""
        member, matched_index = self.member, self.handler.matched_index
        if not member.is_unsure or matched_index != member.ledger_end_index:
            return
        has_all = self._term == member.term and matched_index >= self.end_index >= -1
        if has_all or member.ledger_end_term > member.start_term:
            self._sure_behind(self.end_index if has_all else matched_index)

    def lead(self) -> None:
        """All members gave their votes: none has more entries than this one."""
        self._own_end_index = self.member.ledger_end_index
        self._sure_behind(self._own_end_index)

    def _sure_behind(self, index: int) -> None:
        """Nothing is missing up to C{index}. With C{sync} a loss of power must not take it once more."""
        if not self.member.config.is_sync or self.member.flushed_index >= index:
            self.sure()

    def sure(self) -> None:
        """Nothing is missing, or no member has more: votes count as usual from now on."""
        if self.member.is_unsure:
            self.member.is_unsure = False
            self.member.out.emit(fx.EndUnsure())
            self.member.out.report("sure-again", ledger_end_index=self.member.ledger_end_index)

    def on_doubted(self, doubted: DirectoryDoubted) -> None:
        """The directory is not the one that it was: terms, votes, entries may be missing. It is recorded."""
        member = self.member
        member.is_unsure = True
        member.start_term = TERM_MAX
        self._term = -1
        member.out.report("doubted", reason=doubted.reason, ledger_end_index=member.ledger_end_index)
        self.step_down(doubted.reason)

    def end_repair(self) -> None:
        """
        End the repair of a damaged member when its ledger equals a leader's up to its old end, or up
        to an entry of a term in which it had acknowledged nothing: up to there, that leader's ledger
        has every entry that was committed with this member's acknowledgement.
        """
        member = self.member
        if member.is_unsure:
            self.check()
        if member.repair_end_index < 0:
            return
        handler = self.handler
        held = min(handler.matched_index, member.flushed_index) if member.config.is_sync else (
            handler.matched_index)
        if held == member.ledger_end_index and (
            held >= member.repair_end_index or member.ledger_end_term > member.start_term
        ):
            member.repair_end_index = -1
            member.out.emit(fx.EndRepair())
            member.out.report("repaired", ledger_end_index=held)
