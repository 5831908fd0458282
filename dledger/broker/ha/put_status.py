# -*- test-case-name: tests.broker.ha.test_put_status -*-
"""
What a producer is told of its message, and how the two halves of the answer become one.

A put is answered when its flush and its replication have both come to an end. Where both have
failed the word of the replicas counts.

Source: PutMessageStatus.java, SendMessageProcessor.handlePutMessageResult, thenCombine in
CommitLog.asyncPutMessage (4.9.8), handleDiskFlushAndHA (5.3.3).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from twisted.internet.defer import Deferred, succeed


class PutStatus(Enum):
    """RocketMQ's names, as far as replication and flushing are concerned."""

    PUT_OK = "PUT_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SERVICE_NOT_AVAILABLE = "SERVICE_NOT_AVAILABLE"
    OS_PAGE_CACHE_BUSY = "OS_PAGE_CACHE_BUSY"
    IN_SYNC_REPLICAS_NOT_ENOUGH = "IN_SYNC_REPLICAS_NOT_ENOUGH"
    UNKNOWN_ERROR = "UNKNOWN_ERROR"

    @property
    def remoting_code(self) -> int:
        """What stands in the answer to a producer; 0, 10, 11 and 12 count as sent there."""
        return _CODES[self]

    @property
    def is_stored(self) -> bool:
        """Whether the message is in the log, and readable, all the same."""
        return self in _STORED


_CODES: Mapping[PutStatus, int] = {
    PutStatus.PUT_OK: 0,
    PutStatus.FLUSH_DISK_TIMEOUT: 10,
    PutStatus.SLAVE_NOT_AVAILABLE: 11,
    PutStatus.FLUSH_SLAVE_TIMEOUT: 12,
    PutStatus.SERVICE_NOT_AVAILABLE: 14,
    PutStatus.OS_PAGE_CACHE_BUSY: 2,
    PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH: 1,
    PutStatus.UNKNOWN_ERROR: 1,
}
_STORED = frozenset({
    PutStatus.PUT_OK, PutStatus.FLUSH_DISK_TIMEOUT, PutStatus.SLAVE_NOT_AVAILABLE,
    PutStatus.FLUSH_SLAVE_TIMEOUT,
})  # fmt: skip


def worse(flushed: PutStatus, replicated: PutStatus) -> PutStatus:
    """The answer to a put whose halves ended so."""
    if flushed is PutStatus.UNKNOWN_ERROR:
        # A disk that failed is worse than any slave: nothing may be promised on it any more.
        return flushed
    return flushed if replicated is PutStatus.PUT_OK else replicated


def combined(flushed: Deferred[PutStatus], replicated: Deferred[PutStatus]) -> Deferred[PutStatus]:
    """
    @return: fires when both have fired, with the L{worse} of the two. Both halves belong to it.
    """

    def and_then(flush: PutStatus) -> Deferred[PutStatus]:
        return replicated.addCallback(lambda replica: worse(flush, replica))

    return flushed.addCallback(and_then)


def done(status: PutStatus) -> Deferred[PutStatus]:
    """A half that has nothing to wait for."""
    return succeed(status)
