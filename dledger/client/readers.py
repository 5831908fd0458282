# -*- test-case-name: tests.client.test_readers -*-
"""
Named readers: programs that read the log from where the last one of their name has left off.

The group keeps the place of a reader, see docs/readers.md. A L{NamedReader} takes a lease from the leader,
renews it, reads the entries of its part like a L{Tail}, and commits what its program has done.

Rule 1: an entry is handed out only while, by this client's own clock, the lease was renewed within its time;
else it is renewed first. A commit with a lost lease is refused by the group in any case.
Rule 2: every request to the leader can be sent again: it answers a repeated one as the first.
Rule 3: what is handed out and not committed is handed out again, to the next process of this name.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from os import getpid
from random import Random
from socket import gethostname

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger

from dledger.base.sending.arguments import whole
from dledger.base.timing import Backoff
from dledger.client.connection import MemberLink, RequestLost
from dledger.client.errors import failure_of, reported
from dledger.client.lone_appends import LoneAppends
from dledger.client.tails import Tail
from dledger.client.values import Entry
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.messages import ReaderRequest, ReaderResponse, Response
from protocols.wire.ledger.readers import NO_END, ReaderInfo, decode_readers, reader_name_problem

#: More readers than a group has room for.
READERS_MAX = 50_000
#: A request that fails with one of these codes is sent again until the deadline.
_PASSING = frozenset({
    ResponseCode.TIMEOUT, ResponseCode.NETWORK_ERROR, ResponseCode.METADATA_ERROR, ResponseCode.NOT_LEADER,
    ResponseCode.TERM_CHANGED, ResponseCode.WAIT_QUORUM_ACK_TIMEOUT, ResponseCode.LEADER_PENDING_FULL,
    ResponseCode.LEADER_NOT_READY, ResponseCode.LEADER_TRANSFERRING, ResponseCode.DISK_FULL,
    ResponseCode.TOO_MANY_CLIENTS,
})


@attrs.frozen
class ReaderCalls:
    """
    The requests of the readers of one client.

    @ivar client: how that one finds its leader, and how long it waits.
    """

    client: LoneAppends

    async def ask(self, request: ReaderRequest) -> ReaderResponse:
        """
        Ask the leader until the deadline.

        @raise DLedgerError: it has refused, or nobody has answered; the change may have been made then.
        """
        client, clock, members = self.client, self.client.clock, self.client.members
        deadline_s = clock.seconds() + client.timeout_s
        backoff, has_looked_again = Backoff(rng=members.rng), False
        while True:
            leader: MemberLink | None = None
            try:
                leader = await client.find_leader()
                answer = await self._answer_of(leader, request, deadline_s)
                if answer.code is ResponseCode.SUCCESS:
                    return answer
                error = DLedgerError(answer.code, reason=answer.reason, member_id=leader.member_id)
            except RequestLost as lost:
                error = DLedgerError(ResponseCode.NETWORK_ERROR, reason=str(lost))
            except DLedgerError as refused:
                error = refused
                if refused.code is ResponseCode.TIMEOUT and leader is not None:
                    leader.abort("a reader was not answered")
            if error.code in _PASSING or error.code is ResponseCode.UNSUPPORTED:
                members.leader_id = None
            if error.code is ResponseCode.UNSUPPORTED and not has_looked_again and not client.is_closed():
                has_looked_again = True  # (It may lead no more, which a Java member does not say.)
                continue
            wait_s = backoff.next_s()
            is_over = client.is_closed() or clock.seconds() + wait_s >= deadline_s
            if is_over or error.code not in _PASSING:
                raise failure_of(error.code, **error.facts)
            await deferLater(clock, wait_s)

    async def _answer_of(
        self, leader: MemberLink, request: ReaderRequest, deadline_s: float
    ) -> ReaderResponse:
        if not leader.is_ours:
            raise DLedgerError(ResponseCode.UNSUPPORTED, member_id=leader.member_id, reason=(
                f"{leader.member_id} keeps no readers: it is a Java member. Let a "
                "member of ours lead (dledger transfer)"
            ))
        if request.does != "list":
            self.client.members.check_group(leader, name=request.name)
        asked = attrs.evolve(request, group=self.client.members.group, remote_id=leader.member_id)
        left_s = min(self.client.answer_timeout_s, deadline_s - self.client.clock.seconds())
        answer: Response = await leader.ask(asked, max(0.01, left_s))
        assert isinstance(answer, ReaderResponse)
        return answer

    async def infos(self) -> tuple[ReaderInfo, ...]:
        """
        The readers of the group, by name. They come in pages, so one that is moved, begun or forgotten
        meanwhile is shown as before or after.

        @raise DLedgerError: no leader has reported.
        """
        found: list[ReaderInfo] = []
        while True:
            last = found[-1].name if found else ""
            answer = await self.ask(ReaderRequest(does="list", name=last))
            page = decode_readers(answer.readers)
            names = [last, *(one.name for one in page)]
            if names != sorted(set(names)) or (answer.more and not page) or len(found) > READERS_MAX:
                raise failure_of(ResponseCode.INTERNAL_ERROR, reason="the list of readers has no order")
            found += page
            if not answer.more:
                return tuple(found)

    async def move(self, name: str, index: int) -> int:
        """See L{dledger.client.client.LogClient.move_reader}."""
        refuse_problem(reader_name_problem(name))
        return (await self.ask(ReaderRequest(does="move", name=name, index=index))).next_index

    async def forget(self, name: str) -> None:
        """See L{dledger.client.client.LogClient.forget_reader}."""
        refuse_problem(reader_name_problem(name))
        await self.ask(ReaderRequest(does="forget", name=name))


def refuse_problem(problem: str) -> None:
    """@raise DLedgerError: UNEXPECTED_ARGUMENT, for a problem that is not empty."""
    if problem:
        raise failure_of(ResponseCode.UNEXPECTED_ARGUMENT, reason=problem)


#: Least seconds between two commits that nobody waits for.
LATE_COMMIT_S = 1.0


class LateCommits:
    """
    Commits of a named reader that nobody waits for: one a second has them all. A place is kept until it was
    committed or the lease is over; an answer that was lost is asked for again.

    Invariant: with a place (C{_index} >= 0), either a call is planned or a commit is under way.
    """

    log = Logger()

    def __init__(
        self, clock: IReactorTime, name: str,
        commit: Callable[[int], Coroutine[Deferred[object], object, int]],
    ) -> None:
        """
        @param name: of the reader, for messages.
        @param commit: commits a place.
        """
        self._clock = clock
        self._name = name
        self._commit = commit
        self._index = -1
        self._call: IDelayedCall | None = None
        self._is_under_way = False
        self._is_troubled = False

    def note(self, index: int) -> None:
        """All entries up to one are done; the group knows it about a second later."""
        self._index = max(self._index, index)
        self._plan()

    def done(self, index: int) -> None:
        """All up to C{index} was committed."""
        if index >= self._index:
            self.take()

    def take(self) -> int:
        """@return: the place that nobody has committed; -1: none. It is not kept any more."""
        index, self._index = self._index, -1
        call, self._call = self._call, None
        if call is not None and call.active():
            call.cancel()
        return index

    def _plan(self) -> None:
        if self._call is None and not self._is_under_way:
            self._call = self._clock.callLater(LATE_COMMIT_S, self._send)

    def _send(self) -> None:
        self._call = None
        self._is_under_way = True
        Deferred.fromCoroutine(self._sent())

    async def _sent(self) -> None:
        try:
            await self._commit(self._index)
            self._is_troubled = False
        except DLedgerError as error:
            # (The reader reports a lost lease; and a place that was taken meanwhile is no trouble.)
            if self._index >= 0 and not self._is_troubled and error.code is not ResponseCode.LEASE_LOST:
                self._is_troubled = True
                self.log.warn("reader {name}: its place {index} is not committed yet, it is tried again: "
                              "{reason}", name=self._name, index=self._index, reason=str(error))
        finally:
            self._is_under_way = False
            if self._index >= 0:
                self._plan()


#: Most seconds between two questions for something to read.
_POLL_MAX_S = 1.0
#: Renewals in the time of one lease.
_RENEWALS = 3


@attrs.frozen(kw_only=True)
class ReaderOptions:
    """
    The part that a program takes in a reader, see L{dledger.client.client.LogClient.reader}.

    @ivar name: of the reader. C{holder}: of the process; empty: a random one.
    @ivar begin: where a reader begins that the group does not know.
    @ivar share: entries of the process at a time; 0: all.
    """

    name: str
    begin: int = 0
    share: int = 0
    lease_s: float = 10.0
    follow: bool = True
    timeout_s: float | None = None
    holder: str = ""


class NamedReader:
    """
    One process of a reader: an asynchronous iterator of entries. Call L{close} at the end.

    Invariant: C{_part_end} is -1 without a lease; C{_token} is that of the lease.

    @ivar name: of the reader.
    @ivar handed_index: last entry that the program got; -1: none since the lease began.
    """

    log = Logger()

    def __init__(
        self, calls: ReaderCalls, tail_from: Callable[[int], Tail],
        find_begin: Callable[[], Awaitable[int]] | None, options: ReaderOptions,
    ) -> None:
        """
        @param tail_from: makes a tail that follows the log.
        @param find_begin: finds the index where a new reader begins; None: that is C{options.begin}.
        """
        self.name = name = options.name
        self._calls = calls
        self._tail_from = tail_from
        self._find_begin = find_begin
        self._options = options
        self._clock = calls.client.clock
        self._request = ReaderRequest(
            name=name, holder=options.holder or _new_holder(calls.client.members.rng),
            lease_ms=int(options.lease_s * 1000), share=options.share, index=options.begin,
            secret=f"{calls.client.members.rng.getrandbits(128):032x}",
        )
        refuse_problem(reader_name_problem(name) or reader_name_problem(self._request.holder, "holder"))
        self._stop_index: int | None = None
        self._token = -1
        self._part_end = -1
        self._read_index = -1
        self._done_index = -1
        self.handed_index = -1
        self._renewed_s = 0.0
        self._tail: Tail | None = None
        self._buffer: deque[Entry] = deque()
        self.renewal: IDelayedCall | None = None
        self._pause: Deferred[None] | None = None
        self._problem: DLedgerError | None = None
        self._is_closed = False
        self._late = LateCommits(self._clock, name, self._commit)

    @property
    def token(self) -> int:
        """
        Fencing token of the lease: an index, which is higher for each later lease. Give it to systems that
        refuse lower ones. -1 without a lease.
        """
        return self._token

    @property
    def done_index(self) -> int:
        """Last entry of the part that this process has committed, or that was done when it got it."""
        return self._done_index

    @property
    def holder(self) -> str:
        """Id of this process."""
        return self._request.holder or ""

    # -- reading ----------------------------------------------------------------------------------

    def __aiter__(self) -> NamedReader:
        return self

    async def __anext__(self) -> Entry:
        if not await self._fill():
            raise StopAsyncIteration
        entry = self._buffer.popleft()
        self.handed_index = entry.index
        return entry

    def next_batch(self) -> Deferred[list[Entry]]:
        """
        @return: fires with entries, in order; with none at the end. Set C{handed_index} to the one that the
            program has got. Fails with L{LeaseLost<dledger.client.errors.LeaseLost>},
            L{LeaseHeld<dledger.client.errors.LeaseHeld>} or
            L{Expired<dledger.client.errors.Expired>}.
        """
        return Deferred.fromCoroutine(self._next_batch())

    async def _next_batch(self) -> list[Entry]:
        if not await self._fill():
            return []
        entries = list(self._buffer)
        self._buffer.clear()
        return entries

    async def _fill(self) -> bool:
        """
        Have entries in the buffer, and the lease for them. They stay there if the renewal of the lease fails,
        or the caller does not wait any longer: the tail gives nothing twice.

        @return: whether there are some; False at the end.
        """
        while not self._is_over():
            await self._check_lease()
            if self._buffer:
                return True
            if self._part_end < 0 and not await self._begin_part():
                return False
            if self._stop_index is not None and self._stop_index < self._read_index:
                return False
            if self._read_index >= self._part_end:
                await self._finish_part()
                continue
            if self._tail is None:
                self._tail = self._tail_from(self._read_index)
            batch = await self._tail.next_batch()
            if not batch:
                continue  # closed, or the lease is lost
            end = min(self._part_end, NO_END if self._stop_index is None else self._stop_index + 1)
            self._read_index = min(batch[-1].index + 1, self._part_end)
            self._buffer.extend(one for one in batch if one.index < end and not one.is_control)
        return False

    async def _begin_part(self) -> bool:
        """Take a part. @return: whether there is one; False at the end."""
        began_s, pause_s = self._clock.seconds(), 0.1
        if self._find_begin is not None:
            self._request = attrs.evolve(self._request, index=await self._find_begin())
            self._find_begin = None
        while not self._is_over():
            asked_s = self._clock.seconds()
            held: DLedgerError | None = None
            try:
                answer = await self._calls.ask(attrs.evolve(self._request, does="take"))
            except DLedgerError as error:
                if error.code is not ResponseCode.LEASE_HELD:
                    raise
                held = error
            else:
                self._stop_at(answer.committed_index)
                if answer.token >= 0:
                    if self._is_over():
                        self._token = answer.token
                        await self._give_back(True)
                        return False
                    self._begin(answer, asked_s)
                    return True
                if not self._options.follow:
                    return False
            waited_s = self._clock.seconds() - began_s
            limit_s = self._options.timeout_s
            if limit_s is None and not self._options.follow:
                limit_s = self._calls.client.timeout_s
            if limit_s is not None and waited_s >= limit_s:
                if held is None:
                    return False
                raise held
            await self._rest(pause_s)
            pause_s = min(2 * pause_s, _POLL_MAX_S)
        return False

    def _is_over(self) -> bool:
        return self._is_closed

    def _stop_at(self, committed_index: int) -> None:
        if not self._options.follow and self._stop_index is None:
            self._stop_index = committed_index

    async def _rest(self, pause_s: float) -> None:
        """Wait; L{close} ends it."""
        pause = self._pause = Deferred()
        call = self._clock.callLater(pause_s, pause.callback, None)
        try:
            await pause
        finally:
            self._pause = None
            if call.active():
                call.cancel()

    def _begin(self, answer: ReaderResponse, asked_s: float) -> None:
        self._token = answer.token
        self._part_end = answer.end_index
        self._read_index = answer.begin_index
        self._done_index = answer.begin_index - 1
        self.handed_index = -1
        self._renewed_s = asked_s
        self._plan_renewal()

    async def _finish_part(self) -> None:
        """All of the part was handed out, and the program asks for more: it is done with it."""
        if self._done_index < self._part_end - 1:
            await self._commit(self._part_end - 1)
        self._leave_part()

    def _leave_part(self) -> None:
        self._part_end = -1
        self._late.take()
        self._drop_tail()
        renewal, self.renewal = self.renewal, None
        if renewal is not None and renewal.active():
            renewal.cancel()

    def _drop_tail(self) -> None:
        tail, self._tail = self._tail, None
        if tail is not None:
            tail.close()

    # -- the lease ----------------------------------------------------------------------------------

    def _plan_renewal(self) -> None:
        self.renewal = self._clock.callLater(self._options.lease_s / _RENEWALS, self._renew_in_time)

    def _renew_in_time(self) -> None:
        self.renewal = None
        Deferred.fromCoroutine(self._renew()).addErrback(lambda _: None)  # (The next request shows.)

    async def _renew(self) -> None:
        token, asked_s = self._token, self._clock.seconds()
        try:
            await self._calls.ask(attrs.evolve(self._request, does="renew", token=token))
            self._renewed_s = max(self._renewed_s, asked_s)
        except DLedgerError as error:
            if token == self._token and self._part_end >= 0:
                self._note(error)
            raise
        finally:
            if token == self._token and self._part_end >= 0 and self.renewal is None and not self._is_closed:
                self._plan_renewal()

    def _note(self, error: DLedgerError) -> None:
        if error.code is ResponseCode.LEASE_LOST and self._problem is None:
            self._problem = error
            reason = str(error.facts.get("reason", ""))
            self.log.warn("reader {name}: {reason}", name=self.name, reason=reason)
            self._buffer.clear()
            self._leave_part()

    @property
    def must_check(self) -> bool:
        """Whether L{check_lease} must be called before an entry of a batch is used."""
        return self._problem is not None or (
            self._part_end >= 0 and self._clock.seconds() - self._renewed_s >= self._options.lease_s
        )

    def check_lease(self) -> Deferred[None]:
        """@return: fails with L{LeaseLost<dledger.client.errors.LeaseLost>} if the lease is lost."""
        return Deferred.fromCoroutine(self._check_lease())

    async def _check_lease(self) -> None:
        """@raise LeaseLost: this process does not have its part any more."""
        if self._problem is None and self.must_check:
            await self._renew()
        if self._problem is not None:
            raise failure_of(self._problem.code, **self._problem.facts)

    # -- what is done ---------------------------------------------------------------------------------

    def commit(self, index: int | None = None, *, wait: bool = True) -> Deferred[int]:
        """
        All entries up to one are done. Asking twice does no harm.

        @param index: the last one; None: the last one that was handed out. One beyond that is left out.
        @param wait: False: for many small steps. The place is committed within about a second, together with
            those that follow, and by L{close}; after a crash, what was done since is handed out again.
            C{index} must have been handed out. Fires at once; a later call fails if the lease was lost.
        @return: fires with the next index of the reader: all before it is done, by all its processes. Fails
            with L{LeaseLost<dledger.client.errors.LeaseLost>}: nothing was committed, another process
            has these entries or may get them; UNEXPECTED_ARGUMENT: it goes back, or no lease was taken yet;
            L{NotYet<dledger.client.errors.NotYet>}: it is not in the log. After
            L{Timeout<dledger.client.errors.Timeout>} it may have been committed: commit again.
        @raise TypeError, ValueError: C{index} is not a whole number, or negative.
        """
        index = self.handed_index if index is None else whole("index", index)
        return Deferred.fromCoroutine(self._commit(index) if wait else self._commit_late(index))

    async def _commit_late(self, index: int) -> int:
        self._check_begun()
        if index > self.handed_index:
            refuse_problem(
                f"index={index}, the last entry that was handed out has {self.handed_index}: commit with "
                "wait=True what is left out"
            )
        if index > self._done_index:
            if self._part_end < 0:
                return await self._commit(index)  # (It is closed: the group says whether that is too late.)
            self._late.note(index)
        return self._done_index + 1

    def _check_begun(self) -> None:
        if self._problem is not None:
            raise failure_of(self._problem.code, **self._problem.facts)
        if self._token < 0:
            refuse_problem("nothing was read yet: commit what this reader has handed out")

    async def _commit(self, index: int) -> int:
        self._check_begun()
        if index == -1:
            index = self._done_index
        asked_s, token = self._clock.seconds(), self._token
        try:
            answer = await self._calls.ask(attrs.evolve(
                self._request, does="commit", token=token, index=index
            ))
        except DLedgerError as error:
            if token == self._token:
                self._note(error)
            raise
        if token == self._token:
            self._done_index = max(self._done_index, index)
            self._renewed_s = max(self._renewed_s, asked_s)
            self._late.done(index)
            self._skip_to(index + 1)
        return answer.next_index

    def _skip_to(self, index: int) -> None:
        """Hand out nothing before C{index}."""
        while self._buffer and self._buffer[0].index < index:
            self._buffer.popleft()
        if index > self._read_index:
            self._read_index = index
            self._drop_tail()

    def close(self) -> Deferred[None]:
        """
        Read no more, and give the lease back, so that another process need not wait for its end. Nothing is
        committed, but what L{commit} was given with C{wait=False}.

        @return: fires when that is so, or was not possible. Never fails.
        """
        if self._is_closed:
            return Deferred.fromCoroutine(_nothing())
        self._is_closed = True
        had_part, late_index = self._part_end >= 0, self._late.take()
        self._leave_part()
        if self._pause is not None and not self._pause.called:
            self._pause.callback(None)
        return Deferred.fromCoroutine(self._give_back(had_part, late_index))

    async def _give_back(self, had_part: bool, late_index: int = -1) -> None:
        if not had_part or self._problem is not None:
            return
        if self._calls.client.is_closed():
            if late_index >= 0:
                self.log.warn("reader {name}: the log was closed first: its place {index} is not committed",
                              name=self.name, index=late_index)
        else:
            try:
                if late_index >= 0:
                    await self._commit(late_index)
                await self._calls.ask(attrs.evolve(self._request, does="release", token=self._token))
            except DLedgerError as error:
                self.log.warn("reader {name}: its lease was not given back: {reason}", name=self.name,
                              reason=str(reported(error)))


def _new_holder(rng: Random) -> str:
    """An id that shows people where the process is, and that no other reader has."""
    host = "".join(one for one in gethostname() if one.isalnum() or one in "-.")[:24]
    return f"{host}:{getpid()}:{rng.getrandbits(64):016x}"


async def _nothing() -> None:
    return None
