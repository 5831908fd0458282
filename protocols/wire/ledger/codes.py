# -*- test-case-name: tests.wire.test_codes -*-
"""
The numbers of the wire: request codes, vote results, push types; L{protocols.wire.codes} has the outcomes.

The numbers and names are those of Java DLedger 0.3.1.2, so that logs stay searchable and peers
understand each other. Rule: add no name that a Java peer would have to decode.

Source: DLedgerRequestCode, VoteResponse.RESULT, PushEntryRequest.Type.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from math import log2


class RequestCode(IntEnum):
    """Type of a request: the C{code} of a remoting header; a native frame maps it to its kind."""

    METADATA = 50000
    APPEND = 50001
    GET = 50002
    VOTE = 51001
    HEART_BEAT = 51002
    PULL = 51003
    PUSH = 51004
    LEADERSHIP_TRANSFER = 51005
    MEMBERSHIP = 51901  # ours, only in JSON
    APPEND_IF = 51902  # likewise
    APPEND_ONCE = 51903  # ours
    SUBMIT = 51911  # likewise
    QUERY = 51912  # likewise
    READER = 51913  # likewise
    SNAPSHOT = 51914  # likewise
    SKIP = 51915  # likewise


class VoteResult(IntEnum):
    """A voter's answer, in Java's ordinal order."""

    UNKNOWN = 0
    ACCEPT = 1
    REJECT_UNKNOWN_LEADER = 2
    REJECT_UNEXPECTED_LEADER = 3
    REJECT_EXPIRED_VOTE_TERM = 4
    REJECT_ALREADY_VOTED = 5
    REJECT_ALREADY_HAS_LEADER = 6
    REJECT_TERM_NOT_READY = 7
    REJECT_TERM_SMALL_THAN_LEDGER = 8
    REJECT_EXPIRED_LEDGER_TERM = 9
    REJECT_SMALL_LEDGER_END_INDEX = 10
    REJECT_TAKING_LEADERSHIP = 11


class PushType(IntEnum):
    """Type of a push, in Java's ordinal order."""

    APPEND = 0
    COMMIT = 1
    COMPARE = 2
    TRUNCATE = 3


#: Most members of one group, voters and learners together.
MEMBERS_MAX = 64


class Consistency(StrEnum):
    """
    Which entries a read may show.

    C{LINEARIZABLE}: the leader proves its leadership first (read index). C{COMMITTED}: any member
    shows the entries that it knows to be committed; it may lag behind.
    """

    LINEARIZABLE = "linearizable"
    COMMITTED = "committed"


#: The native wire version of this code, advertised to peers; 0 means "remoting only".
WIRE_VERSION = 1

#: The lowest 8 bits of a C{wire_version} are the version. Above them, members of ours set flags; members that
#: do not know them see a higher version, and go on as with version 1.
WIRE_VERSION_MASK = 0xFF
#: In an answer to a heartbeat: the disk of the sender is full, it stores no entries now.
WIRE_FLAG_DISK_FULL = 0x100
#: In an answer UNKNOWN to a vote: the vote is given, but the voter may have lost acknowledged entries. It
#: counts only if every member of the group gives its vote.
WIRE_FLAG_UNSURE_VOTE = 0x200
#: In an answer to a heartbeat: the sender knows configuration entries.
WIRE_FLAG_MEMBERSHIP = 0x400
#: In an answer to a push: the sender takes chunks of closed log (L{EntryChunk}) in native pushes.
WIRE_FLAG_CHUNKS = 0x800
#: In an answer to METADATA: the sender takes APPEND_IF.
WIRE_FLAG_APPEND_IF = 0x1000
#: In an answer to METADATA: the sender takes APPEND_ONCE.
WIRE_FLAG_APPEND_ONCE = 0x2000
#: In an answer to METADATA: the sender takes READER.
WIRE_FLAG_READERS = 0x8000
#: The C{wire_version} in an answer of this program to METADATA.
METADATA_WIRE_VERSION = WIRE_VERSION | WIRE_FLAG_APPEND_IF | WIRE_FLAG_APPEND_ONCE | WIRE_FLAG_READERS
#: In an answer to METADATA: the sender runs a state machine, and takes SUBMIT and QUERY.
WIRE_FLAG_MACHINE = 0x4000
#: There, too: the sender runs a state machine, sends its snapshots, and takes up those of others. (The bits
#: from 16 to 21 are those of a flush time.)
WIRE_FLAG_SNAPSHOTS = 1 << 22
#: There, too: the sender takes SUBMIT with a producer and a sequence.
WIRE_FLAG_SUBMIT_ONCE = 1 << 23
#: In an answer to a heartbeat: the state machine of the sender runs, and it may lead.
WIRE_FLAG_MACHINE_RUNS = 1 << 24
#: There, too: the sender knows open runs of producers (L{protocols.wire.ledger.producers}).
WIRE_FLAG_OPEN_RUNS = 1 << 25
#: There, too: the sender knows time entries (L{protocols.wire.ledger.own.time_entries}).
WIRE_FLAG_TIMES = 1 << 26
#: The C{wire_version} in an answer of this program to a heartbeat; other flags come to it.
HEART_BEAT_WIRE_VERSION = WIRE_VERSION | WIRE_FLAG_MEMBERSHIP | WIRE_FLAG_OPEN_RUNS | WIRE_FLAG_TIMES
#: In an answer to a heartbeat: the flush time of the sender, see L{flush_time_flags}.
WIRE_FLUSH_TIME_SHIFT = 16
WIRE_FLUSH_TIME_MASK = 0x3F


def flush_time_flags(time_ms: float | None) -> int:
    """
    A flush time as flags of a C{wire_version}: six bits, 0 for unknown, else 1 + 4 * log2(milliseconds),
    rounded, from 1 ms to about 46 s.

    @param time_ms: None: unknown.
    """
    if time_ms is None:
        return 0
    code = 1 + round(4 * log2(max(time_ms, 1.0)))
    return min(code, WIRE_FLUSH_TIME_MASK) << WIRE_FLUSH_TIME_SHIFT


def flush_time_of(wire_version: int) -> float | None:
    """The flush time in a C{wire_version}, milliseconds; None: not reported."""
    code = wire_version >> WIRE_FLUSH_TIME_SHIFT & WIRE_FLUSH_TIME_MASK
    return None if not code else float(2 ** ((code - 1) / 4))
