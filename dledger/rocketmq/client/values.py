# -*- test-case-name: tests.broker.client.test_producer -*-
"""
Values that a broker's client returns: places of stored messages, records of the log, and the two errors of
a put.

Rule: a put that may be in the log is never reported as refused. L{PutRefused} says "certainly not stored",
L{PutUnknown} says "may be stored"; there is no third kind. RocketMQ stores messages that it
answers with FLUSH_DISK_TIMEOUT, SLAVE_NOT_AVAILABLE or FLUSH_SLAVE_TIMEOUT: these are results, distinguished
by C{status}.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import attrs

from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode
from protocols.wire.errors import WireError
from protocols.wire.rocketmq.layout import HEAD, MAGIC_V1, MAGIC_V2, MIN_MESSAGE_SIZE

_MAGICS = (MAGIC_V1, MAGIC_V2)

#: RocketMQ's names for the codes of stored messages.
STATUSES: Mapping[int, str] = {
    0: "PUT_OK", 10: "FLUSH_DISK_TIMEOUT", 11: "SLAVE_NOT_AVAILABLE", 12: "FLUSH_SLAVE_TIMEOUT",
}

#: RocketMQ's refusal codes, with the closest code here.
_REFUSALS: Mapping[int, ResponseCode] = {
    2: ResponseCode.LEADER_PENDING_FULL,
    13: ResponseCode.UNEXPECTED_ARGUMENT,
    14: ResponseCode.LEADER_NOT_READY,
    16: ResponseCode.UNEXPECTED_ARGUMENT,
    17: ResponseCode.UNEXPECTED_ARGUMENT,
}


@attrs.frozen(kw_only=True)
class Stored:
    """
    Messages of one call in one queue, with consecutive queue offsets.

    @ivar status: C{PUT_OK}, or another one of L{STATUSES}: stored, but less safely than requested.
    @ivar queue_offset: queue offset of the first message.
    @ivar offsets: log offsets of the records, in order.
    @ivar store_timestamp: milliseconds since 1970.
    @ivar first: position of the first body in the call, from 0.
    """

    status: str
    queue_id: int
    queue_offset: int
    offsets: tuple[int, ...]
    store_timestamp: int
    first: int = 0

    @property
    def count(self) -> int:
        """Number of messages."""
        return len(self.offsets)


class PutError(DLedgerError):
    """
    A call in which at least one message was not acknowledged as stored.

    @ivar stored: runs of stored messages (only in calls with many bodies).
    @ivar refused: number of messages that are certainly not stored.
    @ivar unknown: number of messages that may be stored.
    """

    def __init__(
        self, code: ResponseCode, *, stored: tuple[Stored, ...] = (), refused: int = 0, unknown: int = 0,
        **facts: object,
    ) -> None:
        super().__init__(code, **facts)
        self.stored = stored
        self.refused = refused
        self.unknown = unknown


class PutRefused(PutError):
    """
    The missing messages are certainly not stored: putting them again is safe. If the broker refused them,
    the fact C{broker_code} says why.
    """


class PutUnknown(PutError):
    """Messages of the call may be stored: putting them again may store them twice. Never retried here."""


def refusal_of(code: int, remark: str, address: str) -> DLedgerError:
    """The error for a broker's refusal."""
    return DLedgerError(
        _REFUSALS.get(code, ResponseCode.INTERNAL_ERROR), reason=f"{address}: {remark or 'refused'}",
        broker_code=code,
    )


@attrs.frozen(kw_only=True)
class LogRecords:
    """
    Whole records of a commit log, in the order of their offsets.

    @ivar next_offset: offset below which every record has been handed out, in this batch or before.
    @ivar data: the consecutive bytes of the records. Each record contains its log offset.
    """

    next_offset: int
    data: bytes

    def records(self) -> list[tuple[int, bytes]]:
        """
        Offset and bytes of each record.

        @raise WireError: the sizes do not add up.
        """
        return list(split_records(self.data))


def split_records(data: bytes) -> Iterator[tuple[int, bytes]]:
    """
    Offset and bytes of each record.

    @raise WireError: the sizes do not add up.
    """
    at, end = 0, len(data)
    while at < end:
        if end - at < MIN_MESSAGE_SIZE:
            raise WireError(f"records: {end - at} bytes are too few for a record")
        head = HEAD.unpack_from(data, at)
        size, magic, offset = head[0], head[1], head[6]
        if magic not in _MAGICS or not MIN_MESSAGE_SIZE <= size <= end - at:
            raise WireError(f"records: size={size}, magic={magic & 0xFFFFFFFF:08x}, {end - at} bytes left")
        yield offset, data[at : at + size]
        at += size


@attrs.frozen(kw_only=True)
class LogOffsets:
    """
    Extent of a broker's log.

    @ivar begin_offset: first offset in the log.
    @ivar end_offset: offset after the last whole record.
    @ivar flushed_offset: everything below is on stable storage; -1 if not reported.
    @ivar file_size: bytes of each file; 0 if not reported.
    @ivar role: C{ASYNC_MASTER}, C{SYNC_MASTER}, C{SLAVE}; empty if not reported.
    """

    begin_offset: int
    end_offset: int
    flushed_offset: int = -1
    file_size: int = 0
    broker_id: int = 0
    broker_name: str = ""
    role: str = ""
