# -*- test-case-name: tests.wire.test_codes -*-
"""
The numbers of the ledger's messages: codes of requests, results of votes, types of pushes, and flags.

L{protocols.wire.codes} has the codes of answers. The numbers and names are those of Java DLedger 0.3.1.2,
except where a comment says that they are ours, so that peers understand each other, and one search finds an
event in the logs of both.

Rule: no Java peer has to understand a number of ours.

Source: DLedgerRequestCode, VoteResponse.RESULT, PushEntryRequest.Type.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from math import log2


class RequestCode(IntEnum):
    """
    The type of a request: the C{code} in the header of a JSON message.

    In a native frame the type has another number, its kind (L{protocols.wire.ledger.push_layout}).
    """

    METADATA = 50000
    APPEND = 50001
    GET = 50002
    VOTE = 51001
    HEART_BEAT = 51002
    PULL = 51003
    PUSH = 51004
    LEADERSHIP_TRANSFER = 51005
    # The others are ours: Java has no such requests. Only APPEND_ONCE has a native frame, too.
    MEMBERSHIP = 51901
    APPEND_IF = 51902
    APPEND_ONCE = 51903
    SUBMIT = 51911
    QUERY = 51912
    READER = 51913
    SNAPSHOT = 51914
    SKIP = 51915
    BEGIN_STATE = 51916
    SEQUENCE = 51917
    RESET_TIMES = 51918


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


#: The version of this program's messages between members, reported to peers; 0: Java. Members of ours with
#: another version do not belong to the group.
WIRE_VERSION = 1

#: The lowest 8 bits of C{wire_version} are the version. The bits above them are flags, states of the sender.
WIRE_VERSION_MASK = 0xFF

# Flags in an answer to a heartbeat. Bits 16 to 21 are a flush time, see flush_time_flags.

#: The disk of the sender is full, so it stores no entries now.
WIRE_FLAG_DISK_FULL = 0x100
#: The state machine of the sender runs, and the sender may lead.
WIRE_FLAG_MACHINE_RUNS = 1 << 24
#: The place of the flush time of the sender in C{wire_version}, and the mask of its six bits.
WIRE_FLUSH_TIME_SHIFT = 16
WIRE_FLUSH_TIME_MASK = 0x3F

# A flag in answers to votes and to METADATA.

#: In an answer UNKNOWN to a vote: the vote is given, but the voter may have lost entries that it had
#: acknowledged. The vote counts only if every member of the group gives its vote. In an answer to METADATA:
#: such would be its vote.
WIRE_FLAG_UNSURE_VOTE = 0x200

# Flags in an answer to METADATA.

#: The sender runs a state machine, and takes SUBMIT and QUERY.
WIRE_FLAG_MACHINE = 0x4000
#: The sender runs a state machine, sends its snapshots, and installs those of other members.
WIRE_FLAG_SNAPSHOTS = 1 << 22


def flush_time_flags(time_ms: float | None) -> int:
    """
    The six bits of a C{wire_version} that report a flush time.

    They have 0 if the time is unknown, else 1 + 4 * log2(milliseconds), rounded. Times below 1 ms count as
    1 ms, those above about 46 s as 46 s.

    @param time_ms: milliseconds; None: unknown.
    @return: the bits in their place, to be joined with other flags.
    """
    if time_ms is None:
        return 0
    code = 1 + round(4 * log2(max(time_ms, 1.0)))
    return min(code, WIRE_FLUSH_TIME_MASK) << WIRE_FLUSH_TIME_SHIFT


def flush_time_of(wire_version: int) -> float | None:
    """The flush time that a C{wire_version} reports, in milliseconds; None: it reports none."""
    code = wire_version >> WIRE_FLUSH_TIME_SHIFT & WIRE_FLUSH_TIME_MASK
    return None if not code else float(2 ** ((code - 1) / 4))
