# -*- test-case-name: tests.commands.test_since -*-
"""
C{dledger tail --since TIME}: the first entry of a log from a time on, found by halving.

L{Since} leaves out what is earlier: see L{dledger.base.time_search}.
"""

from __future__ import annotations

import attrs
import click

from dledger.base.errors import DLedgerError
from dledger.base.time_search import TimeSearch
from dledger.base.time_text import moment_ms
from dledger.client.blocking import Log
from dledger.client.values import Entry
from protocols.wire.ledger.codes import ResponseCode

#: Entries without a time that are read in a row.
LOOK_ENTRIES = 10_000


def read_since(context: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Milliseconds since 1970; None if the option was not given."""
    if value is None:
        return None
    try:
        return moment_ms(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@attrs.define
class Since:
    """
    Which entries are shown from a time on.

    @ivar since_ms: milliseconds since 1970.
    @ivar has_begun: an entry of this time or later was met; entries without a time are shown from there on.
    """

    since_ms: int
    has_begun: bool = False

    def is_shown(self, entry: Entry) -> bool:
        """Ask it of each entry, in order."""
        if entry.timestamp is None:
            return self.has_begun
        if entry.timestamp >= self.since_ms:
            self.has_begun = True
            return True
        return False


def first_since(log: Log, since_ms: int, timeout_s: float) -> int:
    """
    Index from which on entries have a time of C{since_ms} or later, as far as clocks agree; behind the last
    entry if all are earlier.

    @param timeout_s: longest wait for one entry.
    @raise DLedgerError: UNSUPPORTED: no entry that was looked at has a time, or the leader tells no end; or
        the entries cannot be read.
    """
    info = log.metadata()
    if info.committed_index < -1 or info.begin_index < -1:
        raise DLedgerError(ResponseCode.UNSUPPORTED, member_id=info.member_id, reason=(
            "a Java leader does not tell where its log begins and ends, which --since needs: give --from"
        ))
    begin, end = max(info.begin_index, 0), info.committed_index + 1
    search, looked = TimeSearch(begin, end, since_ms), 0
    while (look := search.look) is not None:
        first, behind = look
        last = min(behind, first + LOOK_ENTRIES) - 1
        entry, count = _first_timed(log, first, last, timeout_s)
        looked += count
        if entry is not None and entry.timestamp is not None:
            search.met(entry.index, entry.timestamp)
        else:
            search.met_none(last + 1)
    if begin < end and not search.has_times:
        raise DLedgerError(ResponseCode.UNSUPPORTED, reason=(
            f"none of {looked} entries between {begin} and {end - 1} has a time: entries have one if their "
            "client was opened with envelope=True (dledger append --envelope). Give --from INDEX"
        ))
    return search.found


def _first_timed(log: Log, first: int, last: int, timeout_s: float) -> tuple[Entry | None, int]:
    """@return: the first entry with a time from C{first} to C{last}, or None; the number of those read."""
    for entry in log.tail(first, follow=True, timeout=timeout_s, control=True):
        if entry.timestamp is not None or entry.index >= last:
            return entry if entry.timestamp is not None else None, entry.index - first + 1
    raise DLedgerError(ResponseCode.TIMEOUT, reason=f"no member served entry {first} within {timeout_s:g} s")
