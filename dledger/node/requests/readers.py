# -*- test-case-name: tests.node.test_readers -*-
"""
The requests of named readers: READER, see docs/readers.md.

Rule 1: the leader decides from the readers that are committed, and answers when its decision is committed and
counts: it names the decision before it, so that one from an older state does not count. What is answered
without an entry, a refusal too, is decided after the leader has proved that it leads (read index). One
decision about a reader is under way at a time.
Rule 2: a decision that does not count (somebody else's came first) is answered as not made; the client asks
again.
Rule 3: leaders count the time of a lease. Renewals write no entry, so a new leader begins with the whole
lease, or with what an entry says that is left: a leader writes one when nothing has come from the process for
two fifths of the lease, then after each sixteenth, and so does one that finds the last entry two terms old.
So a lease may last longer than it says, never shorter. A process whose lease is over can still commit, until
another one has got its entries.
Rule 4: what a reader has not done, and the entry that says so, is kept by expiry, up to a bound.
Rule 5: a renewal counts when it comes, and is answered when nothing earlier about its reader is under way and
this member has proved that it leads: else it could renew a lease whose entries were just given to another
process, here or by a later leader. It is an entry itself if the log says that some of the lease is over, or
may say so by an entry whose outcome is not known.
Rule 6: while the state of the group is not known, requests are refused and expiry keeps all entries, but
those that every other member has deleted, which nobody can give back and no reader needed.
Rule 7: no turn of the reactor takes longer with more readers: lists come in pages, and sweeps in slices.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from dledger.base.in_turn import InTurn
from dledger.core.replica import DLedgerCore
from dledger.node.connections.server import Note
from dledger.node.reporting.status import Counters, bytes_behind, count
from dledger.node.requests import reader_rules as rules
from dledger.node.requests.appends import AppendResult
from dledger.node.work.reads import Reads
from dledger.storage.store.file_store import FileStore
from dledger.values.errors import DLedgerError
from dledger.values.ledger.config import DLedgerConfig
from dledger.values.ledger.reader_table import KnownReader, ReaderTable, Room
from protocols.ledger.connection import ServerConnection
from protocols.ledger.interfaces import Ticket
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.messages import ReaderRequest, ReaderResponse
from protocols.wire.ledger.owners import is_account, may_use
from protocols.wire.ledger.readers import (
    NO_END,
    ReaderInfo,
    ReaderPart,
    ReaderState,
    encode_reader_entry,
    encode_readers,
)

_T = TypeVar("_T")
#: Most requests that are under way at once, in all and of one connection, and most lists among them.
ASKED_MAX, ASKED_OF_ONE_MAX, LISTS_MAX = 1024, 128, 8
#: Most readers in one answer to a list, in a slice of a sweep, and in the status of a member.
PAGE_MAX, SLICE_MAX, SHOWN_MAX = 64, 256, 64
#: Steps in which the log says how much of a lease is over that is in doubt.
STEPS = 16
#: A lease is in doubt if nothing came from its process in this term, and the last entry of its reader is this
#: many terms older.
STORM_TERMS = 2
#: Most characters of a reason in an answer.
REASON_CHARACTERS_MAX = 300


#: Refusals of an append that may be in the log, or come into it.
UNKNOWN_OUTCOMES = (ResponseCode.WAIT_QUORUM_ACK_TIMEOUT, ResponseCode.TERM_CHANGED)


class _Count(NamedTuple):
    """
    The count of one lease.

    @ivar silent_ms: what the part said when the count began.
    @ivar since_ms, left_ms: begin of the count, and how long the lease lasted from there.
    @ivar is_heard: it began with a word of the process.
    """

    silent_ms: int
    since_ms: int
    left_ms: int
    is_heard: bool


class _Leases:
    """
    How long each lease lasts, in one term of this member.

    @ivar doubtful: readers whose last entry may still come into the log, or not.
    @ivar _counts: by reader and token.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self.doubtful: set[str] = set()
        self._counts: dict[str, dict[int, _Count]] = {}
        self._term = -1

    def begin(self, term: int) -> None:
        """This member leads in C{term}."""
        if term != self._term:
            self._term = term
            self._counts = {}
            self.doubtful = set()  # (It was decided when this leader was ready.)

    def heard(self, name: str, part: ReaderPart) -> None:
        """The process of a part is there."""
        counts = self._counts.setdefault(name, {})
        counts[part.token] = _Count(part.silent_ms, self._now_ms(), part.lease_ms, True)

    def noted(self, name: str, part: ReaderPart, since_ms: int) -> None:
        """The log says since C{since_ms} how much of a lease is over."""
        left_ms = part.lease_ms - part.silent_ms
        self._counts.setdefault(name, {})[part.token] = _Count(part.silent_ms, since_ms, left_ms, False)

    def _count(self, name: str, part: ReaderPart) -> _Count:
        """That of a part. One of which nothing is known, or that the log has changed, begins now."""
        counts = self._counts.setdefault(name, {})
        found = counts.get(part.token)
        if found is None or found.silent_ms != part.silent_ms:
            self.noted(name, part, self._now_ms())
            found = counts[part.token]
        return found

    def is_live(self, name: str, part: ReaderPart) -> bool:
        """Whether the lease of a part is not over."""
        if not part.holder:
            return False
        count = self._count(name, part)
        return self._now_ms() < count.since_ms + count.left_ms

    def silence(self, name: str, part: ReaderPart, is_old: Callable[[], bool]) -> int:
        """
        How much of the lease of a part is over, if the log must say so now; else what it says.

        @param is_old: whether the last entry of the reader is L{STORM_TERMS} old.
        """
        if not part.holder:
            return part.silent_ms
        count, lease_ms = self._count(name, part), part.lease_ms
        over_ms = min(self._now_ms() - count.since_ms + lease_ms - count.left_ms, lease_ms)
        more_ms = over_ms - part.silent_ms
        is_due = over_ms == lease_ms or more_ms * 5 >= lease_ms * 2 or (
            more_ms * STEPS >= lease_ms and (part.silent_ms > 0 or (not count.is_heard and is_old()))
        )
        return over_ms if is_due else part.silent_ms

    def gone(self, known: Mapping[str, KnownReader]) -> list[str]:
        """Readers that were heard of, and are no more."""
        return [name for name in self._counts if name not in known]

    def keep(self, name: str, state: ReaderState | None) -> None:
        """
        Forget leases of a reader that are no more; begin those that were never heard of.

        @param state: None: it is no more.
        """
        if state is None:
            self._counts.pop(name, None)
            return
        self._counts[name] = {
            part.token: self._count(name, part) for part in state.parts if part.holder
        }


class Asker(NamedTuple):
    """
    The caller.

    @ivar owner: its account, see L{protocols.wire.ledger.owners}.
    @ivar is_admin: it may change the group.
    """

    owner: str
    is_admin: bool

    def may_ask(self, request: ReaderRequest, state: ReaderState) -> bool:
        """
        Whether a reader is its own, or nobody's. To move and to forget one of nobody, or of another account,
        is for an operator.
        """
        if request.is_change:
            return self.is_admin or (is_account(self.owner) and state.owner == self.owner)
        return may_use(state.owner, self.owner)


#: Where nobody has an account, and changes come from hosts that may make them.
NOBODY = Asker("", True)


class ReaderHandler:
    """
    Answers the requests of readers at this member.

    Invariant: C{under_way} has the readers about which something is under way; C{_pages} the pages of the
    list that were made for the log with C{_pages_of} as committed, first and last index, by the name before.

    @ivar append: appends an entry of a reader; None: the log is a broker's, which alone appends.
    @ivar reads: prove that this member still leads.
    @ivar hold_bytes: bytes at the end of the log that a reader may keep from expiry; 0: no bound.
    @ivar under_way: the requests of each reader, which take turns.
    """

    log = Logger()

    def __init__(
        self, *, config: DLedgerConfig, ledger: FileStore, core: DLedgerCore, reads: Reads,
        append: Callable[[bytes], Deferred[AppendResult]] | None, now_ms: Callable[[], int],
        broken: Callable[[BaseException], None], note: Note, counters: Counters,
    ) -> None:
        """
        @param broken: called with an exception that is a bug of ours.
        @param note: reports an event.
        """
        self._note = note
        self._group = config.group
        self.hold_bytes = config.reader_bytes_held
        self._ledger = ledger
        self._core = core
        self.append = append
        self.reads = reads
        self._broken = broken
        self._counters = counters
        self._now_ms = now_ms
        self._leases = _Leases(now_ms)
        self.under_way: dict[str, InTurn] = {}
        self._asked = 0
        self._asked_by: dict[ServerConnection, int] = {}
        self._lists = 0
        self._pages: dict[str, tuple[bytes, int]] = {}
        self._pages_of = -2, -2, -2
        self._to_sweep: list[str] = []

    def ask(
        self, connection: ServerConnection, ticket: Ticket, request: ReaderRequest, asker: Asker = NOBODY
    ) -> None:
        """Answer a request, now or later."""
        of_one = self._asked_by.get(connection, 0)
        if self._asked >= ASKED_MAX or of_one >= ASKED_OF_ONE_MAX or not connection.may_answer:
            count(self._counters.refusals, ResponseCode.LEADER_PENDING_FULL.name)
            connection.answer(ticket, self._refusal(DLedgerError(ResponseCode.LEADER_PENDING_FULL, reason=(
                f"{self._asked} requests about readers are under way, {of_one} of this connection; "
                f"{ASKED_MAX} and {ASKED_OF_ONE_MAX} are allowed: ask again when one was answered"
            ))))
            return
        self._asked += 1
        self._asked_by[connection] = of_one + 1
        Deferred.fromCoroutine(self._answer(connection, ticket, request, asker)).addErrback(self._failed)

    def _failed(self, failure: Failure) -> None:
        assert failure.value is not None
        self._broken(failure.value)

    async def _answer(
        self, connection: ServerConnection, ticket: Ticket, request: ReaderRequest, asker: Asker
    ) -> None:
        try:
            answer = await self._outcome(request, asker)
        except DLedgerError as error:
            count(self._counters.refusals, error.code.name)
            answer = self._refusal(error)
        finally:
            self._asked -= 1
            self._asked_by[connection] -= 1
            if not self._asked_by[connection]:
                del self._asked_by[connection]
        connection.answer(ticket, answer)

    def _refusal(self, error: DLedgerError) -> ReaderResponse:
        reason = " ".join(str(error.facts.get("reason", "")).split())[:REASON_CHARACTERS_MAX]
        return ReaderResponse(
            code=error.code, group=self._group, leader_id=self._core.leader_id, reason=reason
        )

    async def _write(self, state: ReaderState, previous: int) -> AppendResult:
        """Append the next state of a reader, which follows its entry at C{previous}."""
        assert self.append is not None, "a broker's log is never asked for it"
        doubtful = self._leases.doubtful
        doubtful.add(state.name)
        try:
            result = await self.append(encode_reader_entry(state._replace(previous=previous)))
        except DLedgerError as error:
            if error.code not in UNKNOWN_OUTCOMES:
                doubtful.discard(state.name)
            raise
        doubtful.discard(state.name)
        return result

    async def _outcome(self, request: ReaderRequest, asker: Asker) -> ReaderResponse:
        """@raise DLedgerError: it is refused, or its outcome is not known."""
        if self.append is None:
            raise DLedgerError(
                ResponseCode.UNSUPPORTED, reason="a broker alone appends to this log: consume its messages"
            )
        if request.does not in ("take", "renew", "commit", "release", "move", "forget", "list"):
            raise _unexpected(f"does={request.does!r}")
        problem = rules.reader_problem(request)
        if problem:
            raise _unexpected(problem)
        if request.does == "list":
            return await self._list(request.name)
        if request.does == "renew":
            self._leases.heard(request.name, self._leased(request)[1])
            return await self._alone(request.name, lambda: self._renew(request))
        return await self._alone(request.name, lambda: self._decide(request, asker))

    async def _list(self, after: str) -> ReaderResponse:
        """Readers after a name. Few are under way, and a page is made once for each state of the log."""
        if self._lists >= LISTS_MAX:
            raise DLedgerError(
                ResponseCode.LEADER_PENDING_FULL, reason=f"{LISTS_MAX} lists of readers are under way"
            )
        self._lists += 1
        try:
            await self.reads.read_index()
            known = self._known()
        finally:
            self._lists -= 1
        ledger = self._ledger
        now = self._core.committed_index, ledger.ledger_begin_index, ledger.ledger_end_index
        if self._pages_of != now or len(self._pages) >= LISTS_MAX:
            self._pages_of = now
            self._pages = {}
        if after not in self._pages:
            shown, cells = list[KnownReader](), 0
            for one in known.after(after, PAGE_MAX):
                cells += 1 + len(one.state.parts)
                if shown and cells > PAGE_MAX:
                    break
                shown.append(one)
            more = known.count_after(after) - len(shown)
            self._pages[after] = encode_readers(self._infos(shown)), more
        text, more = self._pages[after]
        return ReaderResponse(group=self._group, readers=text, more=more)

    async def _alone(self, name: str, ask: Callable[[], Coroutine[Deferred[object], object, _T]]) -> _T:
        """The result of C{ask}, which begins when everything earlier about this reader has ended."""
        turns = self.under_way.setdefault(name, InTurn())
        try:
            return await turns.run(lambda: Deferred.fromCoroutine(ask()))
        finally:
            if not turns.outstanding:
                self.under_way.pop(name, None)

    async def _decide(self, request: ReaderRequest, asker: Asker) -> ReaderResponse:
        """See rule 1."""
        try:
            known, decision = self._judged(request, asker)
            needs_proof = decision.state is None
        except DLedgerError:
            needs_proof = True
        if needs_proof:
            await self.reads.read_index()
            known, decision = self._judged(request, asker)
        return await self._carry_out(request.name, known, decision)

    def _known(self) -> ReaderTable:
        """@raise DLedgerError: LEADER_NOT_READY, they are not known."""
        group = self._ledger.group
        if group is None:
            raise DLedgerError(ResponseCode.LEADER_NOT_READY, reason=self._ledger.why_group_unknown)
        self._leases.begin(self._core.member.term)
        return group.state.readers

    def _leased(self, request: ReaderRequest) -> tuple[ReaderState, ReaderPart]:
        """@raise DLedgerError: NOT_LEADER; LEASE_LOST: nobody has this lease."""
        known = self._known().get(request.name)
        if not self._core.member.is_leader:
            raise DLedgerError(ResponseCode.NOT_LEADER)
        if known is None:
            raise _unknown(request.name, ResponseCode.LEASE_LOST)
        return known.state, rules.part_of(known.state, request)

    async def _renew(self, request: ReaderRequest) -> ReaderResponse:
        """See rule 5."""
        await self.reads.read_index()
        state, part = self._leased(request)
        known, decision = self._known().get(request.name), rules.Decision(None, part)
        if part.silent_ms or request.name in self._leases.doubtful:
            decision = rules.heard(state, part)
        return await self._carry_out(request.name, known, decision)

    def _reported(self, state: ReaderState, part: ReaderPart | None) -> ReaderResponse:
        token, begin, end = (-1, -1, -1) if part is None else (part.token, part.begin, part.end)
        return ReaderResponse(
            group=self._group, term=self._core.member.term, token=token, begin_index=begin, end_index=end,
            next_index=state.next_index, committed_index=self._core.committed_index,
        )

    def _judged(
        self, request: ReaderRequest, asker: Asker
    ) -> tuple[KnownReader | None, rules.Decision]:
        """@return: what is known of the reader, and the decision. @raise DLedgerError: it is refused."""
        name, known = request.name, self._known().get(request.name)
        if known is not None and not known.state.is_forgotten and not asker.may_ask(request, known.state):
            raise DLedgerError(ResponseCode.FORBIDDEN, reason=(
                f"{name} is a reader of another account" if is_account(known.state.owner) else
                f"{name} is a reader of nobody: an operator (role admin) alone moves and forgets it"
            ))
        span = rules.Span(self._ledger.ledger_begin_index, self._core.committed_index)
        decision = self._decision(request, known, span, asker.owner)
        if decision.state is not None:
            self._check_room(decision.state)
        part = decision.part
        if part is not None and (part.silent_ms or (not decision.state and name in self._leases.doubtful)):
            assert known is not None, "it has a part"
            decision = rules.heard(decision.state or known.state, part)
        return known, decision

    async def _carry_out(
        self, name: str, known: KnownReader | None, decision: rules.Decision
    ) -> ReaderResponse:
        if decision.state is None:
            state, part = known.state if known is not None else ReaderState(name, -1, -1), decision.part
        else:
            before = -1 if known is None else known.entry_index
            result = await self._write(decision.state, before)
            known = self._known().get(name)
            if known is None or known.entry_index != result.index:
                raise DLedgerError(
                    ResponseCode.LEADER_NOT_READY, reason=f"another decision about {name} came first"
                )
            state, part = known.state, decision.part
            if part is not None and part.token < 0:
                part = part._replace(token=result.index)
        if part is not None:
            self._leases.heard(name, part)
        return self._reported(state, part)

    def _check_room(self, state: ReaderState) -> None:
        """@raise DLedgerError: READERS_FULL, SHARE_FULL."""
        room = self._known().room_for(state)
        if room is Room.ALL_TAKEN:
            raise DLedgerError(ResponseCode.READERS_FULL, reason=(
                "the readers of the group take all the room that there is for them: forget some (dledger "
                "readers forget)"
            ))
        if room is Room.SHARE_TAKEN:
            raise DLedgerError(ResponseCode.SHARE_FULL, reason=(
                f"the readers of {state.owner or 'this process'} take half of the room that there is for all "
                "readers: forget some (dledger readers forget)"
            ))

    def _share_end(self, begin: int, share: int) -> int:
        assert self._ledger.group is not None, "it is known while a decision is made"
        return self._ledger.group.state.share_end(begin, share)

    def _decision(
        self, request: ReaderRequest, known: KnownReader | None, span: rules.Span, owner: str
    ) -> rules.Decision:
        """@raise DLedgerError: it is refused."""
        name, does = request.name, request.does
        state = None if known is None or known.state.is_forgotten else known.state
        is_new = state is None
        if state is None:
            if does in ("release", "forget"):
                return rules.Decision(None)
            if does == "commit":
                raise _unknown(name, ResponseCode.LEASE_LOST)
            state = ReaderState(name, -1, rules.begin_of(request.index, span), owner=owner)
            if does == "move":
                return rules.Decision(state)
        if does == "take":
            decision = rules.take(
                state, request, span, lambda part: self._leases.is_live(name, part), self._share_end
            )
            # (Where a new reader begins is kept, also if there is nothing to read yet.)
            return rules.Decision(state) if is_new and decision.state is None else decision
        if does == "commit":
            return rules.commit(state, request, span)
        if does == "release":
            return rules.release(state, request)
        return rules.moved(state, request.index, span) if does == "move" else rules.forgotten(state)

    # -- for the node -----------------------------------------------------------------------------

    def infos(self) -> tuple[ReaderInfo, ...]:
        """
        Of the readers that this member knows those that are furthest behind, L{SHOWN_MAX} at most, by name;
        empty if they are not known.
        """
        group = self._ledger.group
        if group is None:
            return ()
        return self._infos(sorted(group.state.readers.furthest_behind(SHOWN_MAX), key=_name))

    @property
    def count(self) -> int:
        """Number of readers that this member knows."""
        group = self._ledger.group
        return 0 if group is None else group.state.readers.count

    def _infos(self, readers: Sequence[KnownReader]) -> tuple[ReaderInfo, ...]:
        group, found = self._ledger.group, list[ReaderInfo]()
        assert group is not None
        for one in readers:
            lag = group.state.lag(one)
            lag_bytes = bytes_behind(self._ledger, one.state.next_index - 1) if lag else 0
            holders = [part.holder for part in one.state.parts if part.holder and part.begin < part.end]
            found.append(ReaderInfo(one.state.name, one.state.next_index, lag, tuple(holders), lag_bytes))
        return tuple(found)

    def reread(self, config: DLedgerConfig) -> None:
        """Go on with these options."""
        self.hold_bytes = config.reader_bytes_held

    def needed_index(self, *, is_nearly_full: bool = False) -> int:
        """
        Expiry keeps the entries after this index: a reader needs them, within the bound.

        @param is_nearly_full: the disk is: no reader keeps anything.
        """
        group = self._ledger.group
        if group is None:
            return self._core.gone_elsewhere_index
        needed = group.state.readers.needed_index
        if needed is None:
            return NO_END
        if is_nearly_full:
            if group.state.has_entries(needed):
                (one,) = group.state.readers.furthest_behind(1)
                self._note("readers-let-go", {"reader": one.state.name, "next_index": needed})
            return NO_END
        if not self.hold_bytes:
            return needed - 1
        return max(needed, self._bounded_index()) - 1

    def _bounded_index(self) -> int:
        """First entry after which the ledger has at most C{hold_bytes} bytes."""
        ledger = self._ledger
        low, high = max(ledger.ledger_begin_index, 0), ledger.ledger_end_index + 1
        while low < high:
            middle = (low + high) // 2
            if bytes_behind(ledger, middle - 1) > self.hold_bytes:
                low = middle + 1
            else:
                high = middle
        return low

    def sweep(self) -> None:
        """Take note of leases."""
        group = self._ledger.group
        if group is None or not self._core.member.is_leader or self.append is None:
            return
        self._leases.begin(self._core.member.term)
        known = group.state.readers
        if not self._to_sweep:
            self._to_sweep = [*known, *self._leases.gone(known)]
        names, self._to_sweep = self._to_sweep[:SLICE_MAX], self._to_sweep[SLICE_MAX:]
        for name in names:
            one = known.get(name)
            is_gone = one is None or one.state.is_forgotten
            self._leases.keep(name, None if one is None or is_gone else one.state)
            if one is not None and not is_gone and len(self.under_way) < ASKED_MAX and (
                name not in self.under_way and self._silences(one)
            ):
                note = self._alone(name, partial(self._note_silence, name))
                Deferred.fromCoroutine(note).addErrback(self._failed)

    def _silences(self, one: KnownReader) -> ReaderState | None:
        """A state in which more of the leases is over, if the log must say so."""
        def is_old() -> bool:
            try:
                return self._core.member.term - self._ledger.term_of(one.entry_index) >= STORM_TERMS
            except DLedgerError:
                return True  # It has expired, or is damaged.

        state = one.state
        silent = [self._leases.silence(state.name, part, is_old) for part in state.parts]
        if all(part.silent_ms == one_ms for part, one_ms in zip(state.parts, silent, strict=True)):
            return None
        return state._replace(parts=tuple(
            part._replace(silent_ms=one_ms) for part, one_ms in zip(state.parts, silent, strict=True)
        ))

    async def _note_silence(self, name: str) -> None:
        """See rule 3. What is refused is due again."""
        one, now_ms = self._known().get(name), self._now_ms()
        state = None if one is None or one.state.is_forgotten else self._silences(one)
        if one is None or state is None:
            return
        try:
            result = await self._write(state, one.entry_index)
        except DLedgerError:
            return
        after = self._known().get(name)
        if after is not None and after.entry_index == result.index:
            for before, part in zip(one.state.parts, state.parts, strict=True):
                if part != before:
                    self._leases.noted(name, part, now_ms)


def _name(known: KnownReader) -> str:
    return known.state.name


def _unexpected(reason: str) -> DLedgerError:
    return DLedgerError(ResponseCode.UNEXPECTED_ARGUMENT, reason=reason)


def _unknown(name: str, code: ResponseCode) -> DLedgerError:
    return DLedgerError(code, reason=f"the group does not know the reader {name}: it was forgotten")
