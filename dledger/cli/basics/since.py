# -*- test-case-name: tests.commands.test_since -*-
"""
C{dledger tail --since TIME --until TIME}, C{dledger get --at TIME}: entries by their times; the first one is
found by halving.

L{Since} leaves out entries that are earlier, L{Until} those that are later: see
L{dledger.base.process.time_search}.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import attrs
import click

from dledger.base.process.time_search import SKEW_MS, TimeSearch
from dledger.base.process.time_text import moment_ms, time_text
from dledger.client.answers.values import Entry
from dledger.client.blocking import Log
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode

#: Entries without a time that are read in a row.
LOOK_ENTRIES = 10_000

_AGO = re.compile(r"([0-9]{1,7})([smhd])")
_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def read_since(context: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Milliseconds since 1970; None if the option was not given."""
    if value is None:
        return None
    ago = _AGO.fullmatch(value)
    if ago is not None:
        return max(now_ms() - int(ago[1]) * _UNITS_MS[ago[2]], 0)
    try:
        return moment_ms(value)
    except ValueError as error:
        raise click.BadParameter(f"{error}; or how long ago, such as 90s, 10m, 2h or 7d") from None


def now_ms() -> int:
    """Of this machine's clock, milliseconds since 1970."""
    return int(time.time() * 1000)


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


@attrs.define
class Until:
    """
    Which entries are shown up to a time.

    @ivar until_ms: milliseconds since 1970; entries of this time are not shown.
    @ivar has_ended: an entry of this time or later was met: those without a time are not shown from there on.
    """

    until_ms: int
    has_ended: bool = False

    def is_shown(self, entry: Entry) -> bool:
        """Ask it of each entry, in order."""
        if entry.timestamp is None:
            return not self.has_ended
        if entry.timestamp >= self.until_ms:
            self.has_ended = True
            return False
        return True

    def is_last(self, entry: Entry) -> bool:
        """Whether all entries after this one are later, as far as clocks agree."""
        return entry.timestamp is not None and entry.timestamp >= self.until_ms + SKEW_MS


def shown_until(entries: Iterator[Entry], until_ms: int) -> Iterator[Entry]:
    """Those that are earlier than a time; ends when no further one can be."""
    until = Until(until_ms)
    for entry in entries:
        if until.is_shown(entry):
            yield entry
        elif until.is_last(entry):
            return


def entry_at(log: Log, at_ms: int, timeout_s: float) -> Entry:
    """
    The first entry of a program that has a time of C{at_ms} or later.

    @raise DLedgerError: as of L{first_since}; INDEX_OUT_OF_RANGE: there is none.
    """
    since = Since(at_ms)
    for entry in log.tail(first_since(log, at_ms, timeout_s), follow=False):
        if since.is_shown(entry):
            return entry
    raise DLedgerError(
        ResponseCode.INDEX_OUT_OF_RANGE, reason=f"no entry is of {time_text(at_ms)} (UTC) or later"
    )


def first_since(log: Log, since_ms: int, timeout_s: float) -> int:
    """
    Index from which on entries have a time of C{since_ms} or later, as far as clocks agree; after the last
    entry if all are earlier.

    @param timeout_s: longest wait for one entry.
    @raise DLedgerError: UNSUPPORTED: no entry that was looked at has a time, or the leader reports no end; or
        the entries cannot be read.
    """
    info = log.metadata()
    if info.committed_index < -1 or info.begin_index < -1:
        raise DLedgerError(ResponseCode.UNSUPPORTED, member_id=info.member_id, reason=(
            "a Java leader does not report where its log begins and ends, which --since needs: give --from"
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
