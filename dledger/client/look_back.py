# -*- test-case-name: tests.client.test_look_back -*-
"""
The entry before an index, with its time: where a reader begins in the middle of the log, the time entry that
counts there comes earlier (L{protocols.wire.ledger.own.time_entries}).

Rule 1: few entries are read at first, then more, back to the time entry, to the begin of the term, or to what
the log still has.
Rule 2: an error does not say that there is no time. The entries are asked for again, also at another
member, until the time of the call is over.
Rule 3: no more than L{LOOK_BACK_ENTRIES} entries and about L{LOOK_BACK_BYTES} bytes are read: without a time
entry among them, the time is not known.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

import attrs
from twisted.internet.defer import CancelledError
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater

from dledger.base.timing import Backoff
from dledger.client.connection import MemberLink, RequestLost
from dledger.client.errors import reported
from dledger.client.members import Members
from dledger.client.values import Entry, as_shown, entries_after
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode
from protocols.wire.errors import WireError
from protocols.wire.ledger.messages import PullRequest, PullResponse, Response
from protocols.wire.ledger.own.time_entries import (
    LOOK_BACK_BYTES,
    LOOK_BACK_ENTRIES,
    TimeReset,
    decode_resets,
)

_FIRST_SPAN = 4
_GROWTH = 8
_PULL_BYTES = 1024 * 1024
#: Terms of which it is remembered that they have no times.
_TERMS_MAX = 256


class Part(NamedTuple):
    """
    Entries that a member has given.

    @ivar entries: consecutive ones from the index that was asked for; empty: it has none of these.
    @ivar begin_index: the first one that the member has.
    """

    entries: list[Entry]
    begin_index: int


#: From first and last index, both inclusive, and the entry before the first one (None: not known) to what a
#: member gives of them: it may give fewer.
Pull = Callable[[int, int, Entry | None], Awaitable[Part]]


def shows_times(link: MemberLink) -> bool:
    """Whether a member has said that its log has times, and can be asked for entries."""
    return link.native and link.metadata is not None and link.metadata.has_times


def resets_of(link: MemberLink | None) -> tuple[TimeReset, ...]:
    """The resets of times that a member has said last."""
    return () if link is None or link.metadata is None else decode_resets(link.metadata.time_resets)


def timed_link(members: Members) -> MemberLink | None:
    """A live connection to a member that can be asked for times; the leader's if possible."""
    leader_first = sorted(members.addresses, key=lambda member_id: member_id != members.leader_id)
    links = (members.connected(member_id) for member_id in leader_first)
    return next((link for link in links if link is not None and shows_times(link)), None)


def pulling(link: MemberLink, group: str, timeout_s: float) -> Pull:
    """
    Ask the member at the other end of a connection for the entries.

    @param timeout_s: seconds for each answer.
    """
    async def pull(begin: int, end: int, before: Entry | None) -> Part:
        """@raise RequestLost, DLedgerError: no answer, or a refusal. @raise WireError: it is malformed."""
        answer: Response = await link.ask(PullRequest(
            group=group, remote_id=link.member_id, begin_index=begin, end_index=end, max_bytes=_PULL_BYTES,
            wait_ms=0,
        ), timeout_s)
        assert isinstance(answer, PullResponse)
        if answer.code not in (ResponseCode.SUCCESS, ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN):
            raise DLedgerError(answer.code, member_id=link.member_id, index=begin)
        if answer.entries is None or answer.code is not ResponseCode.SUCCESS:
            return Part([], answer.ledger_begin_index)
        if answer.entries.first_index != begin:
            raise WireError(f"asked for entry {begin}, received {answer.entries.first_index}")
        entries = as_shown(entries_after(before, answer.entries), resets_of(link))
        return Part(entries, answer.ledger_begin_index)

    return pull


async def entry_before(index: int, pull: Pull, lowest: int = 0) -> Entry | None:
    """
    The entry at C{index - 1}, whose C{time_ms} also the entries after it have up to the next time entry;
    None: the member does not have it.

    @param lowest: the entries of its term before this one have no time.
    """
    found: Entry | None = None
    first, span, left_bytes = index, _FIRST_SPAN, LOOK_BACK_BYTES
    while first > lowest and left_bytes > 0 and index - first < LOOK_BACK_ENTRIES:
        at, end, last = max(lowest, index - span), first - 1, None
        begin, begin_term = at, -1
        while at <= end:
            part = await pull(at, end, last)
            if not part.entries:
                if at != begin or not at < part.begin_index <= end:
                    return found
                at = begin = part.begin_index
                continue
            begin_term = part.entries[0].term if begin_term < 0 else begin_term
            last = part.entries[-1]
            at = last.index + 1
            left_bytes -= sum(len(entry.body) for entry in part.entries)
        assert last is not None
        if found is None:
            found = last
        elif found.term == last.term:
            found = attrs.evolve(found, time_ms=last.time_ms)
        if found.time_ms is not None or begin_term != found.term or begin > max(lowest, index - span):
            return found
        first, span = begin, span * _GROWTH
    return found


class TimesBefore:
    """Looks back for single entries, which are asked for again and again in terms that have no times."""

    def __init__(
        self, members: Members, clock: IReactorTime, *, answer_timeout_s: float, timeout_s: float
    ) -> None:
        """
        @param answer_timeout_s: seconds for one answer.
        @param timeout_s: seconds in which the time of an entry is found, or an error says why not.
        """
        self._members = members
        self._clock = clock
        self._answer_timeout_s = answer_timeout_s
        self._timeout_s = timeout_s
        self._has_times = False
        self._untimed: dict[int, int] = {}  # by term: the last entry that is known to have no time

    async def of(self, index: int, term: int) -> Entry | None:
        """
        The entry before one, with the time that both have; None: the one at C{index} has none from before.

        @param term: of the entry at C{index}.
        @raise DLedgerError: no member has said it in time.
        """
        self._has_times = self._has_times or timed_link(self._members) is not None
        last = self._untimed.get(term, -1)
        if not index or not self._has_times or index <= last:
            return None
        before = await self._before(index, last + 1)
        if before is not None and (before.term != term or before.time_ms is None):
            if len(self._untimed) >= _TERMS_MAX:
                self._untimed.clear()
            self._untimed[term] = index
        return before

    async def _before(self, index: int, lowest: int) -> Entry | None:
        deadline_s, backoff = self._clock.seconds() + self._timeout_s, Backoff(rng=self._members.rng)
        while True:
            link = None
            try:
                link = timed_link(self._members) or await self._connected()
                if link is None:
                    return None
                return await entry_before(
                    index, pulling(link, self._members.group, self._answer_timeout_s), lowest
                )
            except (RequestLost, WireError) as lost:
                error = DLedgerError(ResponseCode.NETWORK_ERROR, index=index, reason=str(lost))
            except DLedgerError as refused:
                error = refused
            if link is not None:
                link.abort(str(error))
            wait_s = backoff.next_s()
            if self._clock.seconds() + wait_s >= deadline_s:
                raise reported(error)
            await deferLater(self._clock, wait_s)

    async def _connected(self) -> MemberLink | None:
        """
        A member that can be asked for times; None: members answer, but none of them can be.

        @raise DLedgerError: no member answers.
        """
        is_any = False
        for member_id in list(self._members.addresses):
            try:
                link = await self._members.connection(member_id)
            except CancelledError:
                raise
            except Exception:
                continue  # noted in problems
            is_any = True
            if shows_times(link):
                return link
        if not is_any:
            raise DLedgerError(ResponseCode.NETWORK_ERROR, reason="no member answers")
        return None
