# -*- test-case-name: tests.broker.ha.test_put_status -*-
"""
The result of a put for its producer, and its combination from flush and replication.

A put is answered when both its flush and its replication have ended. If both have failed, the
replication's status counts, unless the flush ended with C{UNKNOWN_ERROR}.

Source: PutMessageStatus.java, SendMessageProcessor.handlePutMessageResult, thenCombine in
CommitLog.asyncPutMessage (4.9.8), handleDiskFlushAndHA (5.3.3).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from twisted.internet.defer import Deferred, succeed


class PutStatus(Enum):
    """
    RocketMQ's put statuses that concern replication and flushing.

    @ivar remoting_code: code of the answer to a producer, which takes 0, 10, 11 and 12 as sent.
    @ivar is_stored: whether the message is in the log, and readable.
    """

    remoting_code: int
    is_stored: bool

    PUT_OK = "PUT_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SERVICE_NOT_AVAILABLE = "SERVICE_NOT_AVAILABLE"
    OS_PAGE_CACHE_BUSY = "OS_PAGE_CACHE_BUSY"
    IN_SYNC_REPLICAS_NOT_ENOUGH = "IN_SYNC_REPLICAS_NOT_ENOUGH"
    UNKNOWN_ERROR = "UNKNOWN_ERROR"


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
})


for _status in PutStatus:  # plain attributes: every put reads them
    _status.remoting_code = _CODES[_status]
    _status.is_stored = _status in _STORED


def worse(flushed: PutStatus, replicated: PutStatus) -> PutStatus:
    """The answer to a put from the statuses of its flush and its replication."""
    if flushed is PutStatus.UNKNOWN_ERROR:
        # A failed disk is worse than any failed slave: its log is unusable.
        return flushed
    return flushed if replicated is PutStatus.PUT_OK else replicated


def combined(flushed: Deferred[PutStatus], replicated: Deferred[PutStatus]) -> Deferred[PutStatus]:
    """
    Combine flush and replication; the caller must not use either Deferred afterwards.

    @return: fires when both have fired, with the L{worse} of the two.
    """

    def and_then(flush: PutStatus) -> Deferred[PutStatus]:
        return replicated.addCallback(lambda replica: worse(flush, replica))

    return flushed.addCallback(and_then)


def done(status: PutStatus) -> Deferred[PutStatus]:
    """A Deferred that has fired with C{status}."""
    return succeed(status)
