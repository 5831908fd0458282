# -*- test-case-name: tests.client.test_look_back -*-
"""
The entry before an index, with its time: where a reader begins in the middle of the log, the time entry that
counts there comes earlier (L{protocols.wire.ledger.own.time_entries}).

Rule 1: few entries are read at first, then more, back to the time entry, to the begin of the term, or to what
the log still has.
Rule 2: no more than L{LOOK_BACK_ENTRIES} entries and about L{LOOK_BACK_BYTES} bytes are read: without a time
entry among them, the time is not known.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

import attrs

from dledger.client.answers.values import Entry, entries_of
from dledger.client.links.connection import MemberLink
from dledger.client.links.members import Members
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode
from protocols.wire.errors import WireError
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.messages import PullRequest, PullResponse, Response
from protocols.wire.ledger.own.time_entries import LOOK_BACK_BYTES, LOOK_BACK_ENTRIES

_FIRST_SPAN = 4
_GROWTH = 8
_PULL_BYTES = 1024 * 1024


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


def entries_after(before: Entry | None, batch: EntryBatch) -> list[Entry]:
    """The entries of a batch, as of L{entries_of}. @param before: the one before them; None: not known."""
    if before is None:
        return entries_of(batch)
    return entries_of(batch, term_before=before.term, time_before=before.time_ms)


def shows_times(link: MemberLink) -> bool:
    """Whether a member has said that its log has times, and can be asked for entries."""
    return link.native and link.metadata is not None and link.metadata.has_times


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
        return Part(entries_after(before, answer.entries), answer.ledger_begin_index)

    return pull


async def entry_before(index: int, pull: Pull) -> Entry | None:
    """
    The entry at C{index - 1}, whose C{time_ms} also the entries after it have up to the next time entry;
    None: the member does not have it.
    """
    found: Entry | None = None
    first, span, left_bytes = index, _FIRST_SPAN, LOOK_BACK_BYTES
    while first > 0 and left_bytes > 0 and index - first < LOOK_BACK_ENTRIES:
        at, end, last = max(0, index - span), first - 1, None
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
        if found.time_ms is not None or begin_term != found.term or begin > max(0, index - span):
            return found
        first, span = begin, span * _GROWTH
    return found
