# -*- test-case-name: tests.raft_broker.test_stamps -*-
"""
Gives messages their offsets when the ledger writes them.

A record of RocketMQ contains its offset in the log and its offset in its queue. A master learns the first
when its member writes the entry, and gives out the second in the order of the entries. So both are written
into the record then, before the checksums of the entry are computed.

Rule 1: queue offsets are given out by a master alone: between L{MessageStamps.open} and
L{MessageStamps.close}. A message that is written at another time is refused, and with it all of its write.
Rule 2: a refused write gives its queue offsets back.

Source: DLedgerCommitLog.asyncPutMessage (4.9.8).
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
from construct import Int64sb, Struct

from dledger.storage.files.records import BodyStamps, Stamp
from dledger.values.errors import DLedgerError
from protocols.wire.checksums import crc32
from protocols.wire.codes import ResponseCode
from protocols.wire.layout import struct_of
from protocols.wire.ledger.entry import ENTRY_HEADER_SIZE
from protocols.wire.rocketmq.layout import (
    FIXED_PARTS,
    MAGIC_V1,
    PROPERTIES_LENGTH,
    TERM_START_TOPIC,
    TOPIC_LENGTHS,
    SysFlag,
)

#: The two offsets are neighbours in L{HEAD_DECLARATION}.
_OFFSETS = struct_of(Struct("queue_offset" / Int64sb, "physical_offset" / Int64sb))
_OFFSETS_AT = 20
_OFFSETS_END = _OFFSETS_AT + _OFFSETS.size


def unseen_record(topic: str, body: bytes = b"", now_ms: int = 0) -> bytes:
    """
    A record that RocketMQ stores and dispatches, and puts into no queue and no index: its type is that of a
    transaction that was rolled back.

    @param now_ms: its store time, ms since 1970.
    """
    name = topic.encode()
    form = FIXED_PARTS[False, False]
    size = form.size + len(body) + 1 + len(name) + PROPERTIES_LENGTH.size
    checksum = crc32(body) & 0x7FFFFFFF
    head = form.pack(
        size, MAGIC_V1, checksum, 0, 0, 0, 0, int(SysFlag.ROLLBACK), 0, 0, 0, now_ms, 0, 0, 0, 0, len(body)
    )
    return b"".join((head, body, TOPIC_LENGTHS[1].pack(len(name)), name, PROPERTIES_LENGTH.pack(0)))


def term_start_record() -> bytes:
    """The first record of a term. An empty entry would make RocketMQ skip the messages after it."""
    return unseen_record(TERM_START_TOPIC)


@attrs.define(eq=False)
class PutPlaces:
    """
    The offsets of the messages of one put; filled when they are written.

    @ivar offsets: of the records in the log.
    @ivar queue_offsets: in their queues; 0 for messages that are in no queue.
    """

    offsets: list[int] = attrs.Factory(list)
    queue_offsets: list[int] = attrs.Factory(list)


class UnplacedRecord(bytes):
    """
    A record without its two offsets.

    @ivar queue: topic and number of its queue; None: it is in no queue.
    @ivar place: receives its offsets.
    """

    queue: tuple[str, int] | None
    place: PutPlaces


class MessageStamps(BodyStamps):
    """
    Invariant: C{_taken} are the queue offsets that the current write gives out; C{_stamped} its messages.

    @ivar queue_offsets: topic and queue to the offset of its next message; exact while it is open.
    """

    def __init__(self) -> None:
        self.term_start_body = term_start_record()
        self.queue_offsets: dict[tuple[str, int], int] = {}
        self._is_open = False
        self._taken: dict[tuple[str, int], int] = {}
        self._stamped: list[tuple[PutPlaces, int, int]] = []

    def open(self, queue_offsets: Mapping[tuple[str, int], int]) -> None:
        """This broker is the master now, and every message before is in its queue."""
        self.queue_offsets = dict(queue_offsets)
        self._is_open = True

    @property
    def is_open(self) -> bool:
        """Whether messages get queue offsets now."""
        return self._is_open

    def close(self) -> None:
        """Another broker may be the master now."""
        self._is_open = False

    def begin(self) -> Stamp:
        self._taken = {}
        self._stamped = []
        return self._stamp

    def _stamp(self, body: bytes, position: int) -> bytes:
        offset = position + ENTRY_HEADER_SIZE
        place = 0
        if isinstance(body, UnplacedRecord):
            if not self._is_open:
                raise DLedgerError(
                    ResponseCode.INCONSISTENT_STATE, reason="this broker is not the master any more"
                )
            key = body.queue
            if key is not None:
                known = self._taken.get(key)
                place = self.queue_offsets.get(key, 0) if known is None else known
                self._taken[key] = place + 1
            self._stamped.append((body.place, offset, place))
        elif body != self.term_start_body:
            return body
        return body[:_OFFSETS_AT] + _OFFSETS.pack(place, offset) + body[_OFFSETS_END:]

    def written(self) -> None:
        self.queue_offsets.update(self._taken)
        for place, offset, queue_offset in self._stamped:
            place.offsets.append(offset)
            place.queue_offsets.append(queue_offset)
        self._taken = {}
        self._stamped = []
