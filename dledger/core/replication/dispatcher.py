# -*- test-case-name: tests.core.test_dispatcher,tests.core.test_search -*-
"""
The leader's view of one follower, and the next push to send to it::

    COMPARE --equal at the follower's end-------------------+
       |  ^                                                 v
       |  +------------ refused, lost, late ----------- APPEND (COMMIT when idle)
       |  |                                                 ^
       +--+--> TRUNCATE --done------------------------------+

Rule 1: TRUNCATE is a command ("make this entry your last one"), so COMPARE must find the highest
common index, not merely a common one (L{dledger.core.replication.common_index}).
Rule 2: an answer counts only while its request is outstanding; a return to COMPARE forgets all requests.
Rule 3: pushes to one follower leave in log order on one connection; the acknowledgement of a batch
covers every entry below it. A new connection begins with COMPARE.

Knows nothing of connections; its only clock is C{now_ms}.

Source: EntryDispatcher in DLedgerEntryPusher.java (0.3.1.2); differs: docs/divergence.md W10, W12.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, Protocol

import attrs

from dledger.core.replication.catch_up import TurnBudget
from dledger.core.replication.common_index import Search
from dledger.core.state.beliefs import Quota
from dledger.core.state.member_state import MemberState
from dledger.values.errors import DamagedEntryError
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.batches import EntryBatch, EntryChunk
from protocols.wire.ledger.codes import WIRE_VERSION, PushType
from protocols.wire.ledger.messages import PushEntryRequest, PushEntryResponse, Response

#: An idle follower receives the commit index at least this often, in milliseconds; as in Java.
IDLE_COMMIT_INTERVAL_MS = 1000
#: After the first setback the next COMPARE leaves at once; each further one in a row adds a heartbeat
#: interval of waiting, up to this many intervals.
BACK_OFF_MAX = 8
#: Unanswered pushes to a follower after a set-back; each acknowledgement doubles them again, up to half of
#: the number that was too much, and then adds one.
PUSHES_AFTER_SETBACK = 2
#: Set-backs in a row for which a follower's damaged last entry is waited for, before it is cut.
DAMAGED_PATIENCE = 5
#: A follower that refuses this number of chunks is pushed no more of them on its connection.
CHUNKS_REFUSED_MAX = 2
#: While the group serves appends, a chunk waits until fewer pushes than this are unanswered: the pushes and
#: answers of appends should not wait behind chunks.
CHUNKS_BESIDE_APPENDS = 2
#: More bytes than any push has.
UNLIMITED_BYTES = 1 << 62
#: The throttle spares followers that are at most this many entries behind, as in Java; so does giving way.
THROTTLE_SPARES_ENTRIES = 1000


class DispatcherState(Enum):
    """The type of the next push."""

    COMPARE = "compare"
    TRUNCATE = "truncate"
    APPEND = "append"


class Acknowledgements(Protocol):
    """Receives the acknowledgements of followers: the replica."""

    def follower_holds(self, peer_id: str, index: int) -> None:
        """C{peer_id} holds every entry up to C{index}."""


class Inflight(NamedTuple):
    """
    A push without an answer.

    @ivar last_index: index of its last entry; for COMPARE and TRUNCATE the index asked about.
    @ivar size: total size of its records in bytes, and of the index units of a chunk.
    @ivar is_chunk: whether its entries are an L{EntryChunk}.
    """

    type: PushType
    last_index: int
    size: int
    sent_ms: int
    is_chunk: bool = False


@attrs.define
class EntryDispatcher:
    """
    Invariant: COMPARE and TRUNCATE have at most one push in flight; C{_inflight_bytes} is the sum
    over C{_inflight}; C{match_index < write_index} in APPEND.
    """

    member: MemberState
    peer_id: str
    acks: Acknowledgements
    quota: Quota
    budget: TurnBudget
    state: DispatcherState = DispatcherState.COMPARE
    match_index: int = -1
    write_index: int = 0
    search: Search = attrs.Factory(Search)
    _truncate_index: int = -1
    _inflight: dict[int, Inflight] = attrs.Factory(dict)
    _inflight_bytes: int = 0
    _last_push_ms: int = -(1 << 40)
    _commit_sent: int = -1
    _wait_until_ms: int = 0
    _setbacks: int = 0
    _pushes_max: int = attrs.Factory(lambda self: self.member.config.max_inflight_pushes, takes_self=True)
    _pushes_fine: int = attrs.Factory(lambda self: self.member.config.max_inflight_pushes, takes_self=True)
    _is_behind: bool = False
    _is_unreachable: bool = False
    _is_held_up: bool = False
    _chunks_from: int = 0
    _chunks_refused: int = 0

    @property
    def inflight(self) -> int:
        """Pushes without an answer."""
        return len(self._inflight)

    def dispatch(self) -> None:
        """Send every push that may be sent now."""
        if self.state is DispatcherState.APPEND:
            if self.write_index <= self.member.ledger_end_index and (
                not self._is_held_up or self.member.out.now_ms >= self._wait_until_ms
            ):
                self._is_held_up = False
                try:
                    self._append()
                except DamagedEntryError:
                    self._wait_for_entry()
        elif not self._inflight and self.member.out.now_ms >= self._wait_until_ms:
            if self.state is DispatcherState.TRUNCATE and self._truncate_index < (
                self.member.view.ends.begin_index
            ):
                self.restart()  # retention has removed the truncation point from our ledger
            try:
                if self.state is DispatcherState.COMPARE:
                    self._compare()
                else:
                    self._push(PushType.TRUNCATE, self._entry(self._truncate_index))
            except DamagedEntryError:
                self._wait_for_entry()

    def _wait_for_entry(self) -> None:
        """This leader has lost the next entry to push to damage: the follower waits until it has it again."""
        out = self.member.out
        self._is_held_up = True
        self._wait_until_ms = out.now_ms + self.member.config.heart_beat_time_interval_ms
        out.report("push-waits-for-damaged", peer_id=self.peer_id, write_index=self.write_index)

    def tick(self) -> None:
        """Time passed: give up late answers, send the commit index to an idle follower."""
        self._check_response_time()
        self.dispatch()
        out = self.member.out
        if self._inflight:
            return
        if self.state is not DispatcherState.APPEND:
            self._ask_version()
            return
        if self.write_index > self.member.ledger_end_index and (
            self._commit_sent < self.member.committed_index
            or out.now_ms - self._last_push_ms >= IDLE_COMMIT_INTERVAL_MS
        ):
            self._push(PushType.COMMIT, None)

    def _ask_version(self) -> None:
        """With an empty ledger there is nothing to compare: does a Java follower understand pushes at all?"""
        member = self.member
        is_due = member.out.now_ms - self._last_push_ms >= IDLE_COMMIT_INTERVAL_MS
        if member.ledger_end_index < 0 and is_due and member.peers.is_java(self.peer_id):
            self._push(PushType.COMMIT, None)  # commits nothing; DLedger 0.4 answers in its own form

    def _check_response_time(self) -> None:
        if not self._inflight:
            return
        oldest = next(iter(self._inflight.values()))
        patience = self.member.config.max_push_time_out_ms << min(self._setbacks, 3)
        if self.member.out.now_ms - oldest.sent_ms >= patience:
            self._set_back("time-out")

    # -- sending ----------------------------------------------------------------------------

    def _entry(self, index: int) -> EntryBatch:
        return self.member.view.read_batch(index, max_count=1, max_bytes=1)

    def _push(self, kind: PushType, entries: EntryBatch | None) -> Inflight:
        member, out = self.member, self.member.out
        request = PushEntryRequest(
            group=member.config.group, remote_id=self.peer_id, local_id=member.config.self_id,
            leader_id=member.leader_id, term=member.term, wire_version=WIRE_VERSION, type=kind,
            commit_index=member.committed_index,
            entries=entries,
            is_batch=entries is not None and entries.count > 1,
        )
        request_id = out.send(self.peer_id, request, self)
        last_index, size = (-1, 0) if entries is None else (entries.last_index, entries.size)
        is_chunk = type(entries) is EntryChunk
        pushed = self._inflight[request_id] = Inflight(kind, last_index, size, out.now_ms, is_chunk)
        self._inflight_bytes += size
        self._last_push_ms = out.now_ms
        if self._commit_sent < member.committed_index:
            self._commit_sent = member.committed_index
        return pushed

    def _compare(self) -> None:
        member = self.member
        end_index = member.ledger_end_index
        if end_index < 0:
            return  # an empty ledger has nothing to compare; its first entry starts the search
        begin_index = member.view.ends.begin_index
        search = self.search
        if not begin_index <= search.index <= end_index:
            self.search = search = Search(index=end_index)
        if search.index <= member.view.holes_end_index:
            search.leave_hole(member.view.holes, begin_index, end_index)
        self._push(PushType.COMPARE, self._entry(search.index))

    def _append(self) -> None:
        member, config = self.member, self.member.config
        end_index = member.ledger_end_index
        budget = None
        if self._is_behind:
            budget = self.budget
            if member.committed_index - self.write_index >= THROTTLE_SPARES_ENTRIES:
                budget.see(self.peer_id, len(self._inflight), member)
            else:
                budget.leave(self.peer_id)  # a commit may wait for these entries
        while (
            self.write_index <= end_index
            and len(self._inflight) < self._pushes_max
            and self._inflight_bytes < config.max_inflight_push_bytes
            and (budget is None or budget.may_push(self.peer_id))
        ):
            if self.write_index < member.view.ends.begin_index:
                self._set_back("expired")  # retention removed the next entry: compare again
                return
            is_near = end_index - self.write_index <= THROTTLE_SPARES_ENTRIES
            allowed = UNLIMITED_BYTES if is_near else self._allowed_bytes()
            if allowed <= 0:
                return
            batch = self._next_batch(allowed, budget)
            if batch is None:
                return
            pushed = self._push(PushType.APPEND, batch)
            self.quota.spend(pushed.size)
            self.write_index = pushed.last_index + 1
            if budget is not None:
                budget.spend(self.peer_id, batch)
        self._is_behind = self.write_index <= end_index

    def _next_batch(self, allowed: int, budget: TurnBudget | None) -> EntryBatch | None:
        """
        The next entries to push; None: they wait for the quota of the next second, or for answers to chunks.

        @param allowed: bytes that the quota leaves.
        """
        member, config = self.member, self.member.config
        count = config.max_batch_push_count if config.enable_batch_push else 1
        size = allowed if allowed < config.max_batch_push_bytes else config.max_batch_push_bytes
        if budget is not None:
            is_busy = member.committed_index < member.ledger_end_index or budget.serves
            if self.write_index < self._chunks_from:
                count = min(count, self._chunks_from - self.write_index)  # the one that was refused
            chunk = member.view.chunk_from(self.write_index) if self._takes_chunks() else None
            if chunk is not None and chunk.last_index <= member.committed_index:
                if chunk.first_index > self.write_index:
                    count = min(count, chunk.first_index - self.write_index)  # then the chunk is next
                elif is_busy and len(self._inflight) >= CHUNKS_BESIDE_APPENDS:
                    return None
                elif not budget.has_room(chunk.size):
                    return None
                elif chunk.size <= allowed:
                    entries = member.view.read_chunk(chunk)
                    if entries is not None:
                        return entries
                elif chunk.size <= self.quota.per_second:
                    return None
            most, room = budget.portion(self.peer_id)
            count, size = min(count, most), min(size, room)
        return member.view.read_batch(self.write_index, max_count=count, max_bytes=size)

    def _takes_chunks(self) -> bool:
        """Whether chunks of closed log may be pushed from here on."""
        member, config = self.member, self.member.config
        return (
            config.push_chunk_bytes > 0 and config.wire != "remoting"
            and self.write_index >= self._chunks_from and self._chunks_refused < CHUNKS_REFUSED_MAX
            and self._behind_bytes() > config.push_chunk_behind_bytes and member.peers.is_ours(self.peer_id)
        )

    def _behind_bytes(self) -> int:
        """Bytes of records that have not been sent."""
        view = self.member.view
        return view.position_of(self.member.ledger_end_index + 1) - view.position_of(self.write_index)

    def _allowed_bytes(self) -> int:
        member, config = self.member, self.member.config
        if self._behind_bytes() < config.peer_push_throttle_point:
            return UNLIMITED_BYTES
        return self.quota.left(member.out.now_ms)

    # -- answers ----------------------------------------------------------------------------

    def on_response(self, peer_id: str, request_id: int, response: Response) -> None:
        """The follower answered a push."""
        if request_id not in self._inflight:
            return
        pushed = self._inflight.pop(request_id)
        self._inflight_bytes -= pushed.size
        if type(response) is not PushEntryResponse:
            self._set_back("unexpected answer")
        elif pushed.type is PushType.COMPARE:
            self._on_compared(pushed, response)
        elif response.code is ResponseCode.SUCCESS:
            self._on_success(pushed)
        elif pushed.is_chunk and response.code is ResponseCode.UNSUPPORTED:
            self._chunk_refused(pushed)
        elif pushed.type is not PushType.COMMIT or response.code is ResponseCode.INCONSISTENT_STATE:
            # (Our followers refuse a COMMIT when they must be compared first; Java's never do.)
            self._set_back(f"{pushed.type.name} answered {response.code.name}")
        self.dispatch()

    def _chunk_refused(self, pushed: Inflight) -> None:
        """Its entries are pushed one by one: either their follower takes them, or a read finds the damage."""
        self._chunks_refused += 1
        self._chunks_from = pushed.last_index + 1
        self.member.out.report("chunk-refused", peer_id=self.peer_id, last_index=pushed.last_index,
                               refused=self._chunks_refused)
        self._set_back("a chunk was refused")

    def on_request_failed(self, peer_id: str, request_id: int, reason: str) -> None:
        """A push will not be answered."""
        if request_id in self._inflight:
            self._is_unreachable = True
            self._set_back(reason)

    def reachable(self) -> None:
        """The follower answers again: end a wait that was caused by its absence."""
        if self._is_unreachable:
            self._is_unreachable = False
            self._wait_until_ms = self.member.out.now_ms
            self.dispatch()

    def reconnected(self) -> None:
        """A new connection to the follower is open: nothing on it follows before a COMPARE."""
        self._is_unreachable = False
        self._setbacks = 0
        self._chunks_refused = 0
        self._wait_until_ms = self.member.out.now_ms
        self.restart()
        self.dispatch()

    def _on_success(self, pushed: Inflight) -> None:
        if pushed.type is PushType.TRUNCATE:
            self._enter_append(pushed.last_index)
            return
        self._setbacks = 0
        if pushed.type is PushType.APPEND:
            if self._pushes_max < self.member.config.max_inflight_pushes:
                more = self._pushes_max if self._pushes_max < self._pushes_fine else 1
                self._pushes_max = min(self._pushes_max + more, self.member.config.max_inflight_pushes)
            self._matched(pushed.last_index)

    def _matched(self, index: int) -> None:
        if index > self.match_index:
            self.match_index = index
            self.acks.follower_holds(self.peer_id, index)

    def _on_compared(self, pushed: Inflight, response: PushEntryResponse) -> None:
        search, asked = self.search, pushed.last_index
        if asked != search.index:
            return
        if response.code is ResponseCode.DISK_ERROR:
            if search.above(asked, min(response.end_index, self.member.ledger_end_index)):
                return
            if self._setbacks < DAMAGED_PATIENCE:
                self._set_back("COMPARE answered DISK_ERROR")
                return
        elif response.code not in (ResponseCode.SUCCESS, ResponseCode.INCONSISTENT_STATE):
            self._set_back(f"COMPARE answered {response.code.name}")
            return
        member = self.member
        begin_index = member.view.ends.begin_index
        if response.code is ResponseCode.SUCCESS:
            search.equal = asked
            if asked == response.end_index:
                self._enter_append(asked)
            elif asked == member.ledger_end_index or search.differs == asked + 1:
                self._enter_truncate(asked)
            else:
                search.between(min(response.end_index, member.ledger_end_index))
        elif response.end_index < begin_index or response.begin_index > member.ledger_end_index:
            self._enter_truncate(begin_index)  # no common entry: the follower starts at our begin
        elif asked > response.end_index:
            search.ends_at(response.end_index)
        else:
            last_common = search.below(asked, max(begin_index, response.begin_index), begin_index)
            if last_common is not None:
                self._enter_truncate(last_common)

    # -- changes of state -------------------------------------------------------------------

    def _enter_append(self, match_index: int) -> None:
        self._change_state(DispatcherState.APPEND)
        self._forget_inflight()
        self.write_index = match_index + 1
        self._is_behind = match_index < self.member.ledger_end_index  # until it has been sent everything
        self.match_index = -1
        self._matched(match_index)

    def _enter_truncate(self, index: int) -> None:
        self._truncate_index = index
        self._change_state(DispatcherState.TRUNCATE)

    def restart(self) -> None:
        """Start again with COMPARE: retention or a refusal made the known state uncertain."""
        self._change_state(DispatcherState.COMPARE)
        self._forget_inflight()
        self.search = Search()

    def retire(self) -> None:
        """Leadership is over: later answers are ignored."""
        self._forget_inflight()

    def _set_back(self, reason: str) -> None:
        """A push failed: COMPARE again, at once the first time, then after a growing wait."""
        out = self.member.out
        self._setbacks += 1
        if self.state is DispatcherState.APPEND and self._inflight:
            self._pushes_fine = max(PUSHES_AFTER_SETBACK, min(self._pushes_max, len(self._inflight)) // 2)
            self._pushes_max = min(PUSHES_AFTER_SETBACK, self.member.config.max_inflight_pushes)
        # No wait the first time: a restarted follower answers 406 and catches up in one round.
        wait = 0 if self._setbacks == 1 else self.member.config.heart_beat_time_interval_ms
        self._wait_until_ms = out.now_ms + wait * min(max(self._setbacks - 1, 1), BACK_OFF_MAX)
        out.report("push-set-back", peer_id=self.peer_id, state=self.state.value, reason=reason,
                   setbacks=self._setbacks, match_index=self.match_index)
        self.restart()

    def _forget_inflight(self) -> None:
        self._inflight.clear()
        self._inflight_bytes = 0
        self.budget.leave(self.peer_id)

    def _change_state(self, state: DispatcherState) -> None:
        if state is self.state:
            return
        self.member.out.report("dispatcher-state", peer_id=self.peer_id, old=self.state.value,
                               new=state.value, write_index=self.write_index)
        self.state = state


def take_turns(dispatchers: dict[str, EntryDispatcher], budget: TurnBudget) -> None:
    """
    Another turn came: dispatch until its budget is spent. The last one served is the last in the next turn.
    """
    budget.renew()
    for peer_id in list(dispatchers):
        dispatcher = dispatchers.pop(peer_id)
        dispatchers[peer_id] = dispatcher
        dispatcher.dispatch()
        if budget.is_spent:
            break


def dispatch_to_members(
    dispatchers: dict[str, EntryDispatcher], member: MemberState, acks: Acknowledgements, budget: TurnBudget
) -> None:
    """Have a dispatcher for each other member of the present membership, and none for any other."""
    for peer_id in [one for one in dispatchers if one not in member.peer_ids]:
        dispatchers.pop(peer_id).retire()
    for peer_id in member.peer_ids:
        if peer_id not in dispatchers:
            quota = member.peers.quota_of(peer_id)
            dispatchers[peer_id] = EntryDispatcher(member, peer_id, acks, quota, budget)
