# -*- test-case-name: tests.client.test_places -*-
"""
Places in the log that a program names: an index, the begin, the end, a time.

A time is found by halving (L{dledger.base.time_search}): entries are read at about log2(n) places.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Protocol, TypeAlias, TypeGuard

from twisted.internet.defer import Deferred

from dledger.base.sending.arguments import INDEX_MAX, whole
from dledger.base.time_search import FoundSpan, Search, TimeSearch, search_leaders
from dledger.client.values import Entry, MemberInfo
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.readers import NO_END

#: An index (a negative one counts the last entries of programs), C{"begin"}, C{"end"}, or a time with a zone.
Place: TypeAlias = int | str | datetime
#: Entries without a time that are read in a row.
LOOK_ENTRIES = 10_000

_WORDS = {"begin": 0, "end": NO_END}


def place(name: str, value: object) -> int | datetime:
    """
    A place that a program gives.

    @param name: of the parameter.
    @raise TypeError, ValueError: it is none; the message says what is allowed.
    """
    if isinstance(value, datetime):
        return checked_time(name, value)
    if isinstance(value, str):
        if value not in _WORDS:
            raise ValueError(f"{name}={value!r}: write 'begin', 'end', an index, or a datetime with its zone")
        return _WORDS[value]
    return whole(name, value, -INDEX_MAX)


def is_index(found: int | datetime) -> TypeGuard[int]:
    """Whether a place is an index, which need not be searched."""
    return isinstance(found, int) and found >= 0


def checked_time(name: str, value: object) -> datetime:
    """A time with its zone. @raise TypeError, ValueError: it is none."""
    if not isinstance(value, datetime):
        raise TypeError(f"{name}={value!r}: write a datetime with its zone, such as datetime.now(UTC)")
    if value.utcoffset() is None:
        raise ValueError(f"{name}={value!r} has no zone: write datetime.now(UTC), or value.astimezone()")
    return value


def milliseconds(moment: datetime) -> int:
    """Since 1970; 0 for earlier times."""
    return max(int(moment.timestamp() * 1000), 0)


class TimedTail(Protocol):
    """Entries, one after the other."""

    def __aiter__(self) -> AsyncIterator[Entry]:
        """Itself."""

    async def find_begin(self) -> int:
        """The index at which it begins."""

    def close(self) -> None:
        """No more are wanted."""


class TimedLog(Protocol):
    """A log that is searched."""

    @property
    def has_times(self) -> bool:
        """Whether it has times of leaders, as far as is known."""

    def metadata(self) -> Deferred[MemberInfo]:
        """The leader's own status."""

    def tail(
        self, from_index: int, follow: bool, *, timeout_s: float | None, control: bool,
        looks_back: bool = True,
    ) -> TimedTail:
        """Entries from an index on, the log's own, too. @param looks_back: the first one has its time."""


async def find_begin(log: TimedLog, wanted: int | datetime, timeout_s: float) -> int:
    """
    The index of a time, or of the first of the last -C{wanted} entries of programs.

    @raise DLedgerError: as of L{find_time}, or no member has reported in time.
    """
    if isinstance(wanted, datetime):
        return await find_time(log, milliseconds(wanted), timeout_s)
    tail = log.tail(wanted, True, timeout_s=timeout_s, control=False)
    try:
        return await tail.find_begin()
    finally:
        tail.close()


async def find_time(log: TimedLog, since_ms: int, timeout_s: float) -> int:
    """
    The index after the last entry that is known to be earlier than C{since_ms}; the begin of the log if none
    is. So no entry is left out that is of this time or later, and entries without a time that may be, are in.

    By times of leaders exactly; by those of clients as far as clocks agree, and entries of the minute before
    may come first.

    @param timeout_s: longest wait for one entry.
    @raise DLedgerError: UNSUPPORTED: no entry that was looked at has a time, or the leader does not say its
    end; or the entries cannot be read.
    """
    info = await log.metadata()
    if info.committed_index < -1 or info.begin_index < -1:
        raise DLedgerError(ResponseCode.UNSUPPORTED, member_id=info.member_id, reason=(
            "a Java leader does not say where its log begins and ends, which a search by time needs: give "
            "an index instead of a time"
        ))
    begin, end = max(info.begin_index, 0), info.committed_index + 1
    led = FoundSpan(begin, end)
    if log.has_times and begin < end:
        led = await _by_leaders(log, search_leaders(begin, end, since_ms), timeout_s)
    # Where no leader has noted a time, entries may have times of clients.
    return await _by_clients(log, led, since_ms, timeout_s, is_all=led == (begin, end))


async def _by_leaders(log: TimedLog, search: Search, timeout_s: float) -> FoundSpan:
    """The result of a search."""
    try:
        question = next(search)
        while True:
            tail = log.tail(
                question.index, True, timeout_s=timeout_s, control=True, looks_back=question.needs_time
            )
            try:
                entry = await anext(aiter(tail))
            except StopAsyncIteration:
                raise DLedgerError(
                    ResponseCode.TIMEOUT, reason=f"no member served entry {question.index}"
                ) from None
            finally:
                tail.close()
            question = search.send((entry.term, entry.time_ms))
    except StopIteration as done:
        found: FoundSpan = done.value
        return found


async def _by_clients(
    log: TimedLog, led: FoundSpan, since_ms: int, timeout_s: float, *, is_all: bool
) -> int:
    """
    See L{find_time}, by times of clients.

    @param led: the entries that are searched.
    @param is_all: there are no times of leaders.
    """
    begin, end = led
    search, looked = TimeSearch(begin, end, since_ms), 0
    while (look := search.look) is not None:
        first, after = look
        last = min(after, first + LOOK_ENTRIES) - 1
        entry, count = await _first_timed(log, first, last, timeout_s)
        looked += count
        if entry is not None and entry.when_ms is not None:
            search.met(entry.index, entry.when_ms)
        else:
            search.met_none(last + 1)
    if begin < end and is_all and not search.has_times:
        raise DLedgerError(ResponseCode.UNSUPPORTED, reason=(
            f"none of {looked} entries between {begin} and {end - 1} has a time: entries have one from when "
            "all members take entry_times_ms on, or if their client was opened with envelope=True (dledger "
            "append --envelope). Give an index instead of a time"
        ))
    return search.found


async def _first_timed(
    log: TimedLog, first: int, last: int, timeout_s: float
) -> tuple[Entry | None, int]:
    """@return: the first entry with a time from C{first} to C{last}, or None; the number of those read."""
    tail = log.tail(first, True, timeout_s=timeout_s, control=True)
    try:
        async for entry in tail:
            if entry.when_ms is not None or entry.index >= last:
                return entry if entry.when_ms is not None else None, entry.index - first + 1
    finally:
        tail.close()
    raise DLedgerError(ResponseCode.TIMEOUT, reason=f"no member served entry {first} within {timeout_s:g} s")
