# -*- test-case-name: tests.client.test_tail,tests.client.test_tail_losses -*-
"""
Reading committed entries from an index on, batch by batch, without a gap and without a repeat.

Rule 1: the reader keeps the next index; a member that sends any other index is left.
Rule 2: any member serves the entries that it knows to be committed, so a lost member is replaced by
another one: followers first, the leader last.
Rule 3: at most two batches are requested ahead of the reader; an idle reader is not sent more. The second
one is on its way while the first one is checked and taken apart.
Rule 4: all entries are of one group, by the id that its members report. In the log of a group that was
restored from a backup an index means another entry, so a tail ends there with an error. Within one group, a
member that has less than the reader is one that lags.

Rule 5: an entry counts as expired when each member has said so, or refuses for another reason. A member that
does not answer may have it, so it is waited for, but not for ever: it may never come back.

Our members are asked with PULL over native frames (long poll). Over remoting, entries are read one
by one with GET: our members return only committed ones; B{a Java leader also returns entries that are not
committed yet}, which may be gone later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import chain
from typing import Generic, NamedTuple, TypeVar

import attrs
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from dledger.base.sending.ahead import ReadingAhead
from dledger.base.sending.arguments import INDEX_MAX, patience, whole
from dledger.base.timing import Backoff, Gathering
from dledger.client.connect_options import ConnectOptions
from dledger.client.connection import MemberLink, RequestLost
from dledger.client.errors import reported
from dledger.client.look_back import entry_before, pulling, resets_of, shows_times
from dledger.client.members import Members, refuse_another_group
from dledger.client.tail_batch import ScannedPart, TailBatch, scan
from dledger.client.values import Entry, as_shown, entries_after, entries_of
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode
from protocols.wire.errors import WireError
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.codes import Consistency
from protocols.wire.ledger.entry import decode_header
from protocols.wire.ledger.messages import GetRequest, GetResponse, PullRequest, PullResponse, Response


@attrs.frozen(kw_only=True)
class TailOptions:
    """
    The entries that a L{Tail} gives, and how long it waits for them.

    @ivar from_index: first index; a negative one counts back from the committed end.
    @ivar follow: read for ever; else end at the committed index of the start.
    @ivar timeout_s: give up after that many seconds without a serving member; None: never.
    @ivar answer_timeout_s: a member that has not answered by then is left.
    @ivar batch_bytes_max: of the records in one answer, but at least one record.
    @ivar wait_ms: a member without a new entry waits that long for one before it answers.
    @ivar control: also show the log's own entries (C{Entry.is_control}).
    @ivar looks_back: find the time of the first entries, see L{dledger.client.look_back}.
    """

    from_index: int
    follow: bool
    timeout_s: float | None
    answer_timeout_s: float
    batch_bytes_max: int = 1 << 20
    wait_ms: int = 1_000
    control: bool = False
    looks_back: bool = True


def checked_options(
    known: ConnectOptions, from_index: int, follow: bool, *, timeout_s: float | None, batch_bytes_max: int,
    control: bool, looks_back: bool = True,
) -> TailOptions:
    """
    The options of a tail, by the arguments of L{LogClient.tail<dledger.client.client.LogClient.tail>}.

    @param known: of the client: the time-outs.
    @raise TypeError, ValueError: a number is none, or out of range.
    """
    timeout_s = patience("timeout_s", timeout_s)
    return TailOptions(
        from_index=whole("from_index", from_index, -INDEX_MAX), follow=follow,
        timeout_s=known.timeout_s if timeout_s is None and not follow else timeout_s,
        answer_timeout_s=min(known.answer_timeout_s, 2.0), control=control, looks_back=looks_back,
        batch_bytes_max=whole("batch_bytes_max", batch_bytes_max, 1, (1 << 31) - 1),
    )


#: Seconds for which a tail waits for members that do not answer, when others have deleted the entry.
ABSENT_S = 10.0

_NO_ANSWER = (ResponseCode.TIMEOUT, ResponseCode.NETWORK_ERROR)


@attrs.define
class DeletedEntries:
    """
    @ivar begins: by member, the first entry that is left of those that have deleted the needed one.
    """

    begins: dict[str, int] = attrs.Factory(dict)
    _silent: set[str] = attrs.Factory(set)

    def clear(self) -> None:
        """A member has served."""
        self.begins.clear()
        self._silent.clear()

    def left(self, member_id: str, error: Exception) -> None:
        """The tail leaves a member for this reason."""
        if isinstance(error, DLedgerError) and error.code not in _NO_ANSWER:
            self._silent.discard(member_id)
        else:
            self._silent.add(member_id)

    def check(self, index: int, waited_s: float, timeout_s: float | None) -> None:
        """
        Called when all members were asked for the entry C{index}.

        @param waited_s: since a member has served. @param timeout_s: of the tail, or None.
        @raise DLedgerError: INDEX_LESS_THAN_LOCAL_BEGIN: it has expired.
        """
        wait_s = ABSENT_S if timeout_s is None else min(ABSENT_S, timeout_s)
        if not self.begins or (self._silent and waited_s < wait_s):
            return
        first_index = min(self.begins.values())
        reason = f"entry {index} has expired; the first remaining entry is {first_index}"
        if self._silent:
            reason += f" (no answer of {', '.join(sorted(self._silent))} in {wait_s:g} s)"
        raise DLedgerError(
            ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN, index=index, first_index=first_index, reason=reason
        )


#: Number of GETs under way at once, where a member has no PULL.
_GETS_AT_ONCE = 32
#: Seconds before the end of the log is polled again, where there is no long poll.
_POLL_S = 0.1
#: Entries that are looked at in one piece to find the last ones that are shown, unless more are wanted.
_LOOK_BACK_MAX = 65_536


#: A batch in the form in which a program gets it.
_B = TypeVar("_B", bound=Sequence[Entry])


class _Asked(NamedTuple):
    """A PULL under way: whom it asks, from which index on, since when; its answer, or why there is none."""

    connection: MemberLink
    begin_index: int
    asked_s: float
    answer: Deferred[Response | BaseException]


class TailReading(ReadingAhead[_B], Generic[_B]):
    """
    Base class: asks for batches; a subclass says in which form a program gets them.

    @ivar next_index: index of the next entry that L{next_batch} will ask for; -1 until known.
    """

    log = Logger()

    def __init__(self, members: Members, clock: IReactorTime, options: TailOptions) -> None:
        super().__init__(self._nothing)
        self.options = options
        self.next_index = options.from_index if options.from_index >= 0 else -1
        self._members = members
        # An index that the program names is one of the log that it knows.
        self._group_id = members.group_id if options.from_index > 0 else ""
        self._clock = clock
        self._wait_ms = options.wait_ms if options.follow else 0
        self._before: Entry | None = None  # the one before C{next_index}; None: not known
        self._end_index = -1  # last index wanted, inclusive; -1: not known
        self._is_placed = False
        self._connection: MemberLink | None = None
        self._gets_only: set[str] = set()
        self._untried: deque[str] = deque()
        self._has_tried_all = False  # since a member has served
        self._left_id = ""
        self._deleted = DeletedEntries()
        self._problem: DLedgerError | None = None
        self._backoff = Backoff(rng=members.rng)
        self._served_s = clock.seconds()
        self._asked: _Asked | None = None

    @staticmethod
    def _nothing() -> _B:
        """A batch without entries: the end."""
        raise NotImplementedError

    def _opened(self, batches: list[EntryBatch]) -> tuple[_B, Entry]:
        """
        Batches as a program gets them, without what is not shown; and the last entry, shown or not.

        @raise WireError: a record is malformed, or differs from its checksum.
        """
        raise NotImplementedError

    def next_batch(self) -> Deferred[_B]:
        """
        @return: fires with one or more consecutive entries; with none at the end (never when
            following). Fails with L{Expired<dledger.client.errors.Expired>} (the fact C{first_index}
            is the first index that some member still has),
            L{Restored<dledger.client.errors.Restored>}, or the last problem when no member serves.
            RuntimeError if the batch before has not come yet. Cancelling ends the wait, and loses nothing:
            the next call gives that batch. L{close} ends the tail.
        """
        return self._next_batch()

    async def find_begin(self) -> int:
        """The index at which it begins. @raise DLedgerError: no member has reported in time."""
        try:
            while not self._is_placed:
                await self._place()
        except DLedgerError as error:
            raise reported(error) from None
        return self.next_index

    # One batch

    async def _read_on(self) -> _B:
        try:
            return await self._read_batch()
        except DLedgerError as error:
            raise reported(error) from None

    async def _read_batch(self) -> _B:
        self._served_s = self._clock.seconds()  # the time for which the program made a pause does not count
        while not self._is_done:
            if not self._is_placed:
                await self._place()
            if self._end_index >= 0 and self.next_index > self._end_index:
                break
            connection = await self._source()
            if connection is None:
                continue
            self._check_group(connection)
            batches: list[EntryBatch] | None
            try:
                if connection.native and connection.member_id not in self._gets_only:
                    batches = await self._pull_from(connection)
                else:
                    batches = await self._get_from(connection)
                if batches:
                    await self._ask_before(batches[0])
                    opened, last = self._opened(batches)
            except (RequestLost, DLedgerError) as error:
                self._leave(connection, error)
                continue
            except WireError as error:
                connection.abort(str(error))
                self._leave(connection, RequestLost(str(error)))
                continue
            if batches:
                if not await self._is_same_group(connection):
                    continue
                self.next_index = batches[-1].last_index + 1
                self._before = last
                self._served()
                if opened:
                    return opened
            if batches is None:
                break
        self._is_done = True
        self._forget_asked()
        return self._nothing()

    async def _ask_before(self, batch: EntryBatch) -> None:
        """
        An empty entry that comes first may be a leader's: that is known by the term of the entry before.

        @raise RequestLost, DLedgerError, WireError: the member did not say that.
        """
        first, connection = decode_header(batch.records), self._connection
        if first.body_length or first.channel or self._before or not first.index or connection is None:
            return
        index, who = first.index - 1, connection.member_id
        request: PullRequest | GetRequest = GetRequest(
            group=self._members.group, remote_id=who, begin_index=index, consistency=Consistency.COMMITTED,
        )
        if connection.native and who not in self._gets_only:
            request = PullRequest(
                group=self._members.group, remote_id=who, begin_index=index, end_index=index,
                max_bytes=1, wait_ms=0,
            )
        answer: Response = await connection.ask(request, self.options.answer_timeout_s)
        assert isinstance(answer, GetResponse | PullResponse)
        if answer.code is ResponseCode.SUCCESS and answer.entries is not None:
            before = entries_of(answer.entries)[-1]
            if before.index == index:
                self._before = before
        elif answer.code not in (ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN, ResponseCode.INDEX_OUT_OF_RANGE):
            raise DLedgerError(answer.code, member_id=who, index=index)

    def _check_group(self, connection: MemberLink) -> None:
        """@raise DLedgerError: GROUP_RESTORED."""
        refuse_another_group(connection, self._group_id, index=self.next_index)
        reported = connection.metadata
        if reported is not None and reported.is_group_known:
            self._group_id = reported.group_id

    async def _is_same_group(self, connection: MemberLink) -> bool:
        """Whether entries are of the group. A member that did not know its id when it was asked is asked."""
        reported = connection.metadata
        is_unknown = reported is not None and not reported.is_group_known
        if self._group_id and connection.wire_version and is_unknown:
            try:
                await self._members.metadata(connection)
            except (RequestLost, DLedgerError) as error:
                self._leave(connection, error)
                return False
        self._check_group(connection)
        return True

    def _served(self) -> None:
        self._served_s = self._clock.seconds()
        self._backoff.reset()
        self._untried.clear()
        self._has_tried_all = False
        self._deleted.clear()
        self._problem = None

    async def _place(self) -> None:
        """Find where to begin and, unless following, where to end."""
        if self.options.follow and self.options.from_index >= 0:
            self._is_placed = True
            return
        answers = await self._members.ask_all(self.options.answer_timeout_s)
        infos = [info for info in answers if not info.problem]
        if not infos:
            problems = "; ".join(f"{who}: {why}" for who, why in sorted(self._members.problems.items()))
            self._problem = DLedgerError(ResponseCode.NETWORK_ERROR, reason=f"no member answers ({problems})")
            await self._pause()
            return
        committed = max(info.committed_index for info in infos)
        if committed < -1:
            if self.options.from_index < 0:
                raise DLedgerError(
                    ResponseCode.UNSUPPORTED,
                    reason="these members do not report their end index: give a first index of 0 or more",
                )
        elif self.options.from_index < 0:
            begins = [info.begin_index for info in infos if info.begin_index >= 0]
            begin = max(min(begins, default=0), 0)
            self.next_index = max(committed + 1 + self.options.from_index, begin)
            if not self.options.control:
                self.next_index = await self._behind_control(committed, begin)
        self._is_placed = True
        if not self.options.follow and committed >= -1:
            self._end_index = committed
            if committed < max(self.next_index, 0):
                self._is_done = True

    async def _behind_control(self, committed: int, begin: int) -> int:
        """Index of the first of the last entries that are wanted, not counting those that are not shown."""
        wanted, first, step = -self.options.from_index, committed + 1, 0
        while wanted and first > begin:
            step = min(max(2 * step, wanted), max(wanted, _LOOK_BACK_MAX))
            end, first = first, max(first - step, begin)
            options = attrs.evolve(self.options, from_index=first, follow=False, control=False)
            part = type(self)(self._members, self._clock, options)
            part.next_index = first
            part._end_index = end - 1
            part._is_placed = True
            part._group_id = self._group_id
            shown: list[int] = []
            while entries := await part.next_batch():
                shown += [entry.index for entry in entries]
            self._group_id = part._group_id
            if len(shown) >= wanted:
                return shown[-wanted]
            wanted -= len(shown)
        return first

    async def _source(self) -> MemberLink | None:
        connection = self._connection
        if connection is not None and connection.is_connected:
            return connection
        if not self._untried:
            if self._has_tried_all:
                waited_s = self._clock.seconds() - self._served_s
                self._deleted.check(self.next_index, waited_s, self.options.timeout_s)
                await self._pause()
            self._has_tried_all = True
            self._untried.extend(self._in_order())
        member_id = self._untried.popleft()
        try:
            self._connection = await self._members.connection(member_id)
        except CancelledError:
            raise
        except Exception as error:
            self._note(member_id, error)
            return None
        return self._connection

    def _in_order(self) -> list[str]:
        """All members: followers by chance, then the leader, and last the one that has just failed."""
        leader_id, left_id = self._members.leader_id, self._left_id
        order = list(self._members.addresses)
        self._members.rng.shuffle(order)
        return sorted(order, key=lambda member_id: (member_id == left_id, member_id == leader_id))

    def _leave(self, connection: MemberLink, error: Exception) -> None:
        if isinstance(error, DLedgerError) and error.code is ResponseCode.TIMEOUT:
            connection.abort(str(error.facts.get("reason", "time-out")))
        self._connection = None
        self._left_id = connection.member_id
        self._forget_asked()
        self._note(connection.member_id, error)

    def _note(self, member_id: str, error: Exception) -> None:
        self._deleted.left(member_id, error)
        self.log.info("tail at {index} leaves {peer_id}: {reason}",
                      index=self.next_index, peer_id=member_id, reason=str(error))
        self._problem = (
            error if isinstance(error, DLedgerError)
            else DLedgerError(ResponseCode.NETWORK_ERROR, reason=f"{member_id}: {error}")
        )

    async def _pause(self) -> None:
        waited_s = self._clock.seconds() - self._served_s
        if self.options.timeout_s is not None and waited_s >= self.options.timeout_s:
            assert self._problem is not None
            raise self._problem
        await deferLater(self._clock, self._backoff.next_s())

    async def _pull_from(self, connection: MemberLink) -> list[EntryBatch]:
        asked = self._asked
        if asked is None or asked.connection is not connection or asked.begin_index != self.next_index:
            self._forget_asked()
            asked = self._ask(connection, self.next_index)
        self._asked = None
        answer = await asked.answer
        if isinstance(answer, BaseException):
            raise answer
        assert isinstance(answer, PullResponse)
        if answer.code is ResponseCode.UNSUPPORTED:
            self._gets_only.add(connection.member_id)
            return []
        if answer.code is ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN:
            self._deleted.begins[connection.member_id] = answer.ledger_begin_index
        if answer.code is not ResponseCode.SUCCESS:
            raise DLedgerError(answer.code, member_id=connection.member_id, index=self.next_index)
        if answer.entries is None:
            if answer.leader_id is None or self._end_index >= 0:
                # The member is cut off from its group, was removed, or lags behind the end index.
                raise RequestLost(f"{connection.member_id} has no entry after {answer.committed_index}")
            self._served()
            if self._clock.seconds() - asked.asked_s < self._wait_ms / 2000:
                await deferLater(self._clock, _POLL_S)  # too many readers wait there already: poll
            return []
        if answer.entries.first_index != self.next_index:
            raise WireError(f"asked for entry {self.next_index}, received {answer.entries.first_index}")
        following = answer.entries.last_index + 1
        is_wanted = self._end_index < 0 or following <= self._end_index
        if is_wanted and following <= answer.committed_index and not self._is_done:
            self._asked = self._ask(connection, following)
            # The question leaves when the read of this answer has been handled, and the rest is done then.
            await deferLater(self._clock, 0)
        await self._look_back(connection)
        return [answer.entries]

    def _ask(self, connection: MemberLink, begin_index: int) -> _Asked:
        answer = connection.ask(PullRequest(
            group=self._members.group, remote_id=connection.member_id, begin_index=begin_index,
            end_index=self._end_index, max_bytes=self.options.batch_bytes_max, wait_ms=self._wait_ms,
        ), self.options.answer_timeout_s + self._wait_ms / 1000)
        # (An answer that nobody waits for is no error.)
        return _Asked(connection, begin_index, self._clock.seconds(), answer.addErrback(_error_of))

    def _forget_asked(self) -> None:
        asked, self._asked = self._asked, None
        if asked is not None:
            asked.answer.cancel()

    def close(self) -> None:
        super().close()
        self._forget_asked()

    async def _look_back(self, connection: MemberLink) -> None:
        """
        A tail that begins in the middle of a log with times learns the entry before.

        @raise RequestLost, DLedgerError, WireError: the member did not say that.
        """
        if self._before is not None or self.next_index < 1 or not (
            self.options.looks_back and shows_times(connection)
        ):
            return
        self._before = await entry_before(
            self.next_index, pulling(connection, self._members.group, self.options.answer_timeout_s)
        )

    async def _get_from(self, connection: MemberLink) -> list[EntryBatch] | None:
        """As L{_pull_from}, with GET; None at the end."""
        is_java = connection.wire_version < 1
        if is_java and self._members.leader_id != connection.member_id:
            leader = await self._members.leader()
            if leader is None:
                raise RequestLost("no leader found")
            self._connection = connection = leader
        first = self.next_index
        last = first + _GETS_AT_ONCE - 1
        if self._end_index >= 0:
            last = min(last, self._end_index)
        asked = {
            str(index): connection.ask(
                GetRequest(
                    group=self._members.group, remote_id=connection.member_id, begin_index=index,
                    consistency=Consistency.COMMITTED,
                ),
                self.options.answer_timeout_s,
            )
            for index in range(first, last + 1)
        }
        answers = await Gathering(self._clock, asked, deadline_s=2 * self.options.answer_timeout_s).outcome
        batches: list[EntryBatch] = []
        for index in range(first, last + 1):
            answer = answers.get(str(index))
            if not isinstance(answer, GetResponse):
                if batches:
                    break
                raise RequestLost(f"{connection.member_id} did not answer GET")
            if answer.code is not ResponseCode.SUCCESS or answer.entries is None:
                if not batches:
                    return await self._no_entry(connection, answer)
                break
            if answer.entries.first_index != index:
                raise WireError(f"asked for entry {index}, received {answer.entries.first_index}")
            batches.append(answer.entries)
        return batches

    async def _no_entry(self, connection: MemberLink, answer: GetResponse) -> list[EntryBatch] | None:
        if answer.code in (ResponseCode.SUCCESS, ResponseCode.INDEX_OUT_OF_RANGE):
            if not self.options.follow:
                return None if self._end_index < 0 else []
            if answer.leader_id is None and connection.wire_version >= 1:
                raise RequestLost(f"{connection.member_id} is cut off from its group, or no member of it")
            self._served()
            await deferLater(self._clock, _POLL_S)
            return []
        if answer.code is ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN:
            # GET does not report the first remaining index; METADATA of our members does.
            member = await self._members.metadata(connection)
            self._deleted.begins[connection.member_id] = max(member.begin_index, self.next_index + 1)
        raise DLedgerError(answer.code, member_id=connection.member_id, index=self.next_index)


def _error_of(failure: Failure) -> BaseException:
    assert failure.value is not None
    return failure.value


class Tail(TailReading[list[Entry]]):
    """An asynchronous iterator over entries; also usable batch by batch."""

    def __init__(self, members: Members, clock: IReactorTime, options: TailOptions) -> None:
        super().__init__(members, clock, options)
        self._buffer: deque[Entry] = deque()

    def __aiter__(self) -> Tail:
        return self

    async def __anext__(self) -> Entry:
        while not self._buffer:
            self._buffer.extend(await self.next_batch())
            if not self._buffer:
                raise StopAsyncIteration
        return self._buffer.popleft()

    @staticmethod
    def _nothing() -> list[Entry]:
        return []

    def _opened(self, batches: list[EntryBatch]) -> tuple[list[Entry], Entry]:
        entries: list[Entry] = []
        for batch in batches:
            entries += entries_after(entries[-1] if entries else self._before, batch)
        entries = as_shown(entries, resets_of(self._connection))
        return _shown(entries, control=self.options.control), entries[-1]


def _shown(entries: list[Entry], *, control: bool) -> list[Entry]:
    return entries if control else [entry for entry in entries if not entry.is_control]


class BatchTail(TailReading[TailBatch]):
    """An asynchronous iterator over batches of entries, for programs that read many small ones."""

    def __aiter__(self) -> BatchTail:
        return self

    async def __anext__(self) -> TailBatch:
        batch = await self.next_batch()
        if not batch:
            raise StopAsyncIteration
        return batch

    @staticmethod
    def _nothing() -> TailBatch:
        return TailBatch((), (), -1, list)

    def _opened(self, batches: list[EntryBatch]) -> tuple[TailBatch, Entry]:
        before, control, resets = self._before, self.options.control, resets_of(self._connection)
        scans: list[ScannedPart] = []
        for batch in batches:
            scans.append(scan(batch, scans[-1].last if scans else before, control=control))

        def make() -> list[Entry]:
            found: list[Entry] = []
            for batch in batches:
                found += entries_after(found[-1] if found else before, batch)
            return _shown(as_shown(found, resets), control=control)

        bodies, indexes = scans[0].bodies, scans[0].indexes
        if len(scans) > 1:
            bodies = [body for one in scans for body in one.bodies]
            indexes = list(chain.from_iterable(one.indexes for one in scans))
        return TailBatch(bodies, indexes, batches[-1].last_index + 1, make), scans[-1].last
