# -*- test-case-name: tests.wire.test_own_entries -*-
"""
Whose an entry is: the C{channel} of its record says so, and nothing else does.

 - 0: a program's that has not numbered it. Its body may be empty.
 - negative: the log's own. A member wrote it for itself; the low byte is its kind, see L{OWN_KINDS}.
 - positive: a producer's. 22 bits are the I{slot} of the producer, which a session entry before has bound to
   its id (L{protocols.wire.ledger.own.session_entries}), 8 bits the low digits of the number that this entry
   has, as a check. The bit L{HIDDEN} marks what the producer wrote for itself: markers of the Spark sink.

Readers, state machines, Spark and counts leave out what is I{hidden}: the log's own entries, and those with
that bit (L{is_hidden}).

A channel counts only in a record with a C{chainCrc}. Java leaders record none, so an entry of theirs is
a program's with any C{channel}. Java copies both words of our records as they are.

Source: none, this is ours; docs/wire-format.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from protocols.wire.ledger.entry import HIDDEN as HIDDEN

#: The sign of a C{channel}: the log's own.
_OWN = -0x8000_0000
#: The body of a producer's hidden entry begins with this, so that no damage to a C{channel} hides another
#: one.
HIDDEN_MAGIC = b"dledger-"
_SLOT_SHIFT = 8
#: Highest slot. The lowest is 1, so that no entry of a producer has the channel 0.
SLOT_MAX = (1 << 22) - 1
#: The low digits of a number that its entry carries.
DIGITS_MASK = 0xFF


class OwnKind(StrEnum):
    """What an entry is that no reader is shown unless it asks."""

    TERM_START = "term start"
    CONFIGURATION = "configuration"
    SESSION = "session"
    READER = "reader"
    TIME = "time"
    MACHINE = "machine"
    AGE = "age"
    STATE = "state"
    SINK_MARKER = "sink marker"
    #: Members of a later version wrote it.
    UNKNOWN = "unknown"


TERM_START_CHANNEL = _OWN | 1
CONFIGURATION_CHANNEL = _OWN | 2
SESSION_CHANNEL = _OWN | 3
READER_CHANNEL = _OWN | 4
TIME_CHANNEL = _OWN | 5
MACHINE_CHANNEL = _OWN | 6
AGE_CHANNEL = _OWN | 7
STATE_CHANNEL = _OWN | 8

#: The log's own entries, by their channels.
OWN_KINDS: Mapping[int, OwnKind] = {
    TERM_START_CHANNEL: OwnKind.TERM_START,
    CONFIGURATION_CHANNEL: OwnKind.CONFIGURATION,
    SESSION_CHANNEL: OwnKind.SESSION,
    READER_CHANNEL: OwnKind.READER,
    TIME_CHANNEL: OwnKind.TIME,
    MACHINE_CHANNEL: OwnKind.MACHINE,
    AGE_CHANNEL: OwnKind.AGE,
    STATE_CHANNEL: OwnKind.STATE,
}


def is_hidden(channel: int, chain_crc: int) -> bool:
    """Whether readers leave an entry out, by two words of its record."""
    return chain_crc != 0 and (channel < 0 or channel >= HIDDEN)


def own_kind(channel: int, chain_crc: int) -> OwnKind | None:
    """What a hidden entry is; None: it is not hidden."""
    if not is_hidden(channel, chain_crc):
        return None
    return OWN_KINDS.get(channel, OwnKind.UNKNOWN) if channel < 0 else OwnKind.SINK_MARKER


def slot_channels(slot: int, number: int, count: int) -> list[int]:
    """The channels of C{count} entries of a producer that follow each other. @param number: of the first."""
    assert 0 < slot <= SLOT_MAX, slot
    base = slot << _SLOT_SHIFT
    return [*map(base.__or__, map(DIGITS_MASK.__and__, range(number, number + count)))]


def slot_of(channel: int) -> int:
    """The slot of a producer's entry; its C{channel} is positive."""
    return channel >> _SLOT_SHIFT & SLOT_MAX
