# -*- test-case-name: tests.broker.client.test_producer -*-
"""
What a client of a broker hands to its callers: where messages were stored, records of the log, and the two
ways in which a put fails.

Rule: a put that may be in the log is never reported as refused. L{PutRefused} says "certainly not stored",
L{PutUnknown} says "may be stored"; there is no third kind. What RocketMQ calls FLUSH_DISK_TIMEOUT,
SLAVE_NOT_AVAILABLE and FLUSH_SLAVE_TIMEOUT is stored, so it is a result, with a C{status} that says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import attrs

from dledger.base.errors import DLedgerError
from protocols.wire.errors import WireError
from protocols.wire.ledger.codes import ResponseCode
from protocols.wire.rocketmq.layout import HEAD, MAGIC_V1, MAGIC_V2, MIN_MESSAGE_SIZE

_MAGICS = (MAGIC_V1, MAGIC_V2)

#: RocketMQ's names of the codes that say that messages are stored.
STATUSES: Mapping[int, str] = {
    0: "PUT_OK", 10: "FLUSH_DISK_TIMEOUT", 11: "SLAVE_NOT_AVAILABLE", 12: "FLUSH_SLAVE_TIMEOUT",
}  # fmt: skip

#: RocketMQ's codes of refusals, by what comes closest here.
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
    Messages of one call that stand in one queue, with consecutive places there.

    @ivar status: C{PUT_OK}, or one of the others of L{STATUSES}: stored, but not as safely as was asked for.
    @ivar queue_offset: of the first one.
    @ivar offsets: of their records in the log, in order.
    @ivar store_timestamp: ms since 1970.
    @ivar first: which body of the call the first one is, from 0.
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
    A call of which not every message was stored.

    @ivar stored: what was stored all the same (only calls with many bodies).
    @ivar refused: number of messages that are certainly not stored.
    @ivar unknown: number of messages that may be.
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
    """What was not stored is certainly not there: putting it again is safe. C{broker_code} says why."""


class PutUnknown(PutError):
    """Something of the call may be stored: putting it again may store it twice. Never tried again here."""


def refusal_of(code: int, remark: str, address: str) -> DLedgerError:
    """What a broker's refusal is here."""
    return DLedgerError(
        _REFUSALS.get(code, ResponseCode.INTERNAL_ERROR), reason=f"{address}: {remark or 'refused'}",
        broker_code=code,
    )  # fmt: skip


@attrs.frozen(kw_only=True)
class LogRecords:
    """
    Whole records of a commit log, in the order of their offsets.

    @ivar next_offset: every record below has been handed out, here or before.
    @ivar data: the records, one behind the other. Each says where it stands in the log.
    """

    next_offset: int
    data: bytes

    def records(self) -> list[tuple[int, bytes]]:
        """
        Offset and bytes of each.

        @raise WireError: sizes that do not add up.
        """
        return list(split_records(self.data))


def split_records(data: bytes) -> Iterator[tuple[int, bytes]]:
    """
    Offset and bytes of each record.

    @raise WireError: sizes that do not add up.
    """
    at, end = 0, len(data)
    while at < end:
        if end - at < MIN_MESSAGE_SIZE:
            raise WireError(f"records: {end - at} bytes are too few for one")
        head = HEAD.unpack_from(data, at)
        size, magic, offset = head[0], head[1], head[6]
        if magic not in _MAGICS or not MIN_MESSAGE_SIZE <= size <= end - at:
            raise WireError(f"records: size={size}, magic={magic & 0xFFFFFFFF:08x}, {end - at} bytes left")
        yield offset, data[at : at + size]
        at += size


@attrs.frozen(kw_only=True)
class LogOffsets:
    """
    How far a broker's log reaches.

    @ivar begin_offset: the first one held.
    @ivar end_offset: behind the last whole record.
    @ivar flushed_offset: everything below is on stable storage; -1 if the broker did not say.
    @ivar file_size: bytes of each file; 0 if the broker did not say.
    @ivar role: C{ASYNC_MASTER}, C{SYNC_MASTER}, C{SLAVE}; empty if the broker did not say.
    """

    begin_offset: int
    end_offset: int
    flushed_offset: int = -1
    file_size: int = 0
    broker_id: int = 0
    broker_name: str = ""
    role: str = ""
