# -*- test-case-name: tests.client.test_appender -*-
"""
What a refusal of an append says about the log. A code that is in neither set, and no answer at all, mean
"unknown": the bodies may be in the log, now or later.
"""

from __future__ import annotations

from protocols.wire.codes import ResponseCode

#: Temporary refusals, before any write: the same bodies may be sent again.
PASSING = frozenset(
    {
        ResponseCode.NOT_LEADER,
        ResponseCode.LEADER_PENDING_FULL,
        ResponseCode.LEADER_NOT_READY,
        ResponseCode.LEADER_TRANSFERRING,
        ResponseCode.TOO_MANY_CLIENTS,
    }
)
#: The log lacks a body of the same producer that comes before: this one is not written.
OUT_OF_SEQUENCE = frozenset({
    ResponseCode.SEQUENCE_GAP, ResponseCode.UNKNOWN_PRODUCER, ResponseCode.PRODUCER_FORGOTTEN,
})
#: Final refusals, before any write.
FINAL = frozenset(
    {
        ResponseCode.UNSUPPORTED,
        ResponseCode.UNKNOWN_GROUP,
        ResponseCode.UNKNOWN_MEMBER,
        ResponseCode.UNEXPECTED_ARGUMENT,
        ResponseCode.FORBIDDEN,
        ResponseCode.CONFLICT,
        ResponseCode.MACHINE_STOPPED,
        ResponseCode.DISK_FULL,
        ResponseCode.REQUEST_WITH_EMPTY_BODYS,
        ResponseCode.SEQUENCE_TAKEN,
        ResponseCode.PRODUCERS_FULL,
        ResponseCode.SHARE_FULL,
        *OUT_OF_SEQUENCE,
    }
)
