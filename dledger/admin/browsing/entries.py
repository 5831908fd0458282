# -*- test-case-name: tests.admin.test_browsing -*-
"""
The committed entries of one member, from an index or a time on.

Rule 1: only entries that the member knows to be committed are shown.
Rule 2: a turn of the reactor reads at most L{PAGE_BYTES_MAX} bytes, or one record; a search by time takes one
look in a turn. Searches follow one another.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
from twisted.internet.defer import DeferredLock
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater

from dledger.admin.browsing.query import PAGE_BYTES_MAX, Query, QueryProblem, preview_of, short
from dledger.admin.sites.member_source import StatusSource
from dledger.base.time_search import FoundSpan, Search, TimeSearch, search_leaders
from dledger.client.look_back import Part, entry_before
from dledger.client.values import Entry, as_shown, entries_after
from dledger.values.errors import DLedgerError, StoreError
from protocols.wire.errors import WireError

NAMES = ("from", "count", "as", "time")
#: Entries without a time that one look passes over, and bytes that it reads.
LOOK_ENTRIES = 64
LOOK_BYTES = 32 * 1024
#: Looks of a search: halving, and as many more as entries without a time may take.
LOOKS_MAX = 256


@attrs.frozen(kw_only=True)
class ShownEntry:
    """
    An entry.

    @ivar position: stream offset of its record, in bytes.
    @ivar kind: C{body}; C{control}: the members wrote it for themselves.
    @ivar time_ms: since 1970, when its leader wrote it, or by the clock of its client; None without one.
    @ivar body_bytes: size of the whole body.
    @ivar body: its beginning, as text or in hexadecimal.
    """

    index: int
    term: int
    position: int
    kind: str
    time_ms: int | None
    headers: Mapping[str, str]
    body_bytes: int
    body: str
    is_text: bool


@attrs.frozen(kw_only=True)
class ShownEntries:
    """
    A page of entries.

    @ivar begin_index, committed_index: of the member's log.
    @ivar first_index: the first that was asked for.
    @ivar next_index: after the last that is shown.
    """

    begin_index: int
    committed_index: int
    first_index: int
    next_index: int
    entries: tuple[ShownEntry, ...]


class EntryBrowser:
    """Reads the entries for pages."""

    def __init__(self, node: StatusSource, clock: IReactorTime) -> None:
        self._node = node
        self._clock = clock
        self._lock = DeferredLock()

    async def page(self, query: Query) -> ShownEntries:
        """
        The entries that a query asks for.

        @raise QueryProblem: the query is wrong, or the entries cannot be read.
        """
        count, moment, style = query.count(), query.moment_ms(), query.style()
        if moment is not None and query.text("from"):
            raise QueryProblem(400, "give either from or time, not both")
        await self._lock.acquire()
        try:
            await deferLater(self._clock, 0)  # (The lock lets the next one go on in the turn of the last.)
            begin, end = self._bounds()
            if moment is None:
                first = query.first(begin, end, count)
            else:
                first = await self._first_since(moment, begin, end)
            return await self._page(first, count, style)
        finally:
            self._lock.release()

    def _bounds(self) -> tuple[int, int]:
        member = self._node.status().member
        return max(member.ledger_begin_index, 0), member.committed_index + 1

    async def _page(self, first: int, count: int, style: str) -> ShownEntries:
        begin, end = self._bounds()
        if first < begin:
            raise QueryProblem(404, f"entry {first} was deleted: the log begins at {begin}")
        if first > end:
            raise QueryProblem(404, f"entry {first} is not committed: the last one is {end - 1}")
        before = await self._before(first)
        entries = self._read(first, PAGE_BYTES_MAX, before)[:count]
        return ShownEntries(
            begin_index=begin, committed_index=end - 1, first_index=first, next_index=first + len(entries),
            entries=tuple(_shown(entry, style) for entry in entries),
        )

    async def _before(self, index: int) -> Entry | None:
        """The entry before, with its time; None in a log without times."""
        if not self._node.has_times:
            return None
        begin, _end = self._bounds()

        async def pull(first: int, last: int, before: Entry | None) -> Part:
            if first < begin:
                return Part([], begin)
            await deferLater(self._clock, 0)
            found = self._read(first, PAGE_BYTES_MAX, before)
            return Part([entry for entry in found if entry.index <= last], begin)

        return await entry_before(index, pull)

    def _read(self, first: int, max_bytes: int, before: Entry | None = None) -> list[Entry]:
        try:
            batch = self._node.read_committed(first, max_bytes=max_bytes)
            found = entries_after(before, batch) if batch is not None else []
            return as_shown(found, self._node.time_resets)
        except (DLedgerError, StoreError, WireError, OSError) as error:
            raise QueryProblem(503, f"entries from {first} on cannot be read: {error}") from None

    async def _first_since(self, moment: int, begin: int, end: int) -> int:
        """The entry after the last one known to be earlier than C{moment}; C{end} if all of them are."""
        led = FoundSpan(begin, end)
        if self._node.has_times and begin < end:
            led = await self._by_leaders(search_leaders(begin, end, moment))
        if led.after == led.first:
            return led.after
        search = TimeSearch(*led, moment)
        for _look in range(LOOKS_MAX):
            if (look := search.look) is None:
                break
            timed, behind = await self._first_timed(*look)
            if timed is not None and timed.when_ms is not None:
                search.met(timed.index, timed.when_ms)
            else:
                search.met_none(behind)
            await deferLater(self._clock, 0)
        if led == (begin, end) and not search.has_times:
            raise QueryProblem(404, "the entries that were looked at have no time: entries have one if the "
                                    "members have entry_times_ms, or their client appends with envelope=True")
        return await self._exactly(moment, search.found, led.first)

    async def _by_leaders(self, search: Search) -> FoundSpan:
        """The result of a search. @raise QueryProblem: an entry cannot be read."""
        try:
            question = next(search)
            while True:
                await deferLater(self._clock, 0)
                before = await self._before(question.index) if question.needs_time else None
                entries = self._read(question.index, 1, before)
                if not entries:
                    raise QueryProblem(503, f"entry {question.index} cannot be read now")
                question = search.send((entries[0].term, entries[0].time_ms))
        except StopIteration as done:
            found: FoundSpan = done.value
            return found

    async def _exactly(self, moment: int, first: int, end: int) -> int:
        """
        Go on from the tolerance of clocks to the time itself: after the last entry that is known to be
        earlier, before the first one that is not, or before a page without times.

        @raise QueryProblem: after L{LOOKS_MAX} looks the search has to be continued.
        """
        before, after = await self._before(first), first
        for _look in range(LOOKS_MAX):
            entries = self._read(first, PAGE_BYTES_MAX, before) if first < end else []
            for entry in entries:
                if entry.when_ms is not None:
                    if entry.when_ms >= moment:
                        return after
                    after = entry.index + 1
            if not entries or after <= first:
                return after
            before = entries[-1]
            first = before.index + 1
            await deferLater(self._clock, 0)
        raise QueryProblem(503, f"not found up to entry {first}: too many entries are of the minute before; "
                                f"ask for a later time, or from={first}")

    async def _first_timed(self, first: int, end: int) -> tuple[Entry | None, int]:
        """@return: the first entry with a time among the next ones, and the index after those looked at."""
        found = self._read(first, LOOK_BYTES, await self._before(first))[:LOOK_ENTRIES]
        entries = [entry for entry in found if entry.index < end]
        for entry in entries:
            if entry.when_ms is not None:
                return entry, entry.index
        return None, entries[-1].index + 1 if entries else end


def _shown(entry: Entry, style: str) -> ShownEntry:
    body, is_text = preview_of(entry.body, style)
    return ShownEntry(
        index=entry.index, term=entry.term, position=entry.pos,
        kind="control" if entry.is_control else "body", time_ms=entry.when_ms,
        headers={name: short(preview_of(value)[0]) for name, value in entry.headers.items()},
        body_bytes=len(entry.body), body=body, is_text=is_text,
    )
