# -*- test-case-name: tests.commands.test_since -*-
"""
C{dledger tail --since TIME --until TIME}, C{dledger get --at TIME}: entries by their times; the first one is
found by halving.

L{Since} leaves out entries that are earlier, L{Until} those that are later: see
L{dledger.base.time_search}.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import attrs
import click

from dledger.base.time_search import SKEW_MS
from dledger.base.time_text import moment_ms, time_text
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode

if TYPE_CHECKING:
    from dledger.client.blocking import Log
    from dledger.client.values import Entry

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


def moment_of(time_ms: int) -> datetime:
    """A time in milliseconds since 1970."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=time_ms)


@attrs.frozen
class Since:
    """
    Which entries are shown from a time on: all but those that are known to be earlier.

    @ivar since_ms: milliseconds since 1970.
    """

    since_ms: int

    def is_shown(self, entry: Entry) -> bool:
        """Ask it of each entry from the one on that L{Log.find_time} finds."""
        return entry.when_ms is None or entry.when_ms >= self.since_ms


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
        if entry.when_ms is None:
            return not self.has_ended
        if entry.when_ms >= self.until_ms:
            self.has_ended = True
            return False
        return True

    def is_last(self, entry: Entry) -> bool:
        """Whether all entries after this one are later, as far as clocks of clients agree; a leader's do."""
        if entry.time_ms is not None:
            return entry.time_ms >= self.until_ms
        return entry.timestamp is not None and entry.timestamp >= self.until_ms + SKEW_MS


def shown_until(entries: Iterator[Entry], until_ms: int) -> Iterator[Entry]:
    """Those that are earlier than a time; ends when no further one can be."""
    until = Until(until_ms)
    for entry in entries:
        if until.is_shown(entry):
            yield entry
        elif until.is_last(entry):
            return


def entry_at(log: Log, at_ms: int) -> Entry:
    """
    The first entry of a program of C{at_ms} or later, or that may be: one without a time.

    @raise DLedgerError: as of L{Log.find_time}; INDEX_OUT_OF_RANGE: there is none.
    """
    since = Since(at_ms)
    for entry in log.tail(log.find_time(moment_of(at_ms)), follow=False):
        if since.is_shown(entry):
            return entry
    raise DLedgerError(
        ResponseCode.INDEX_OUT_OF_RANGE, reason=f"no entry is of {time_text(at_ms)} (UTC) or later"
    )
