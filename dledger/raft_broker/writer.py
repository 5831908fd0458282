# -*- test-case-name: tests.raft_broker.test_writer -*-
"""
Appends messages to a raft log: the L{LogWriter} of a broker in DLedger mode.

A message is one entry. The messages of one put are one append of the member, so a batch is written as a
whole, at places that are known when the member has written it. The producer is answered when a majority has
the last of them.

Rule: nothing that may be in the log is answered like something that is not. No answer says that a message is
stored while it may be lost (RocketMQ's codes 10, 11 and 12).

Source: DLedgerCommitLog.asyncPutMessage, asyncPutMessages (4.9.8).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from twisted.logger import Logger
from twisted.python.failure import Failure

from dledger.node.node import Node
from dledger.node.requests.appends import AppendResult
from dledger.raft_broker.stamps import MessageStamps, PutPlaces, UnplacedRecord
from dledger.rocketmq.broker.producing.puts import NotPut, Put
from dledger.rocketmq.replication.put_status import PutStatus
from dledger.rocketmq.store.records.plain_records import Placed, PlainMessage
from dledger.rocketmq.store.records.records import NewMessage, size_of
from dledger.values.errors import DLedgerError
from protocols.wire.checksums import crc32
from protocols.wire.codes import ResponseCode
from protocols.wire.rocketmq.layout import PROPERTIES_LENGTH, TOPIC_BYTES_MAX

#: Codes of appends that are certainly not in the log.
_NOT_STORED = {
    ResponseCode.NOT_LEADER: PutStatus.SERVICE_NOT_AVAILABLE,
    ResponseCode.LEADER_TRANSFERRING: PutStatus.SERVICE_NOT_AVAILABLE,
    ResponseCode.DISK_FULL: PutStatus.SERVICE_NOT_AVAILABLE,
    ResponseCode.INCONSISTENT_STATE: PutStatus.SERVICE_NOT_AVAILABLE,
    ResponseCode.LEADER_PENDING_FULL: PutStatus.OS_PAGE_CACHE_BUSY,
}


def unplaced(message: PlainMessage, now_ms: int, place: PutPlaces) -> UnplacedRecord:
    """The record of a message, without its offsets, which C{place} will receive."""
    form, queue_id, born_timestamp, properties, body, _ = message
    body_size, properties_size = len(body), len(properties)
    record = UnplacedRecord(b"".join((
        form.fixed.pack(
            form.overhead + body_size + properties_size, form.magic, crc32(body) & 0x7FFFFFFF, queue_id,
            form.flag, 0, 0, form.sys_flag, born_timestamp, *form.before, now_ms, *form.after, body_size,
        ),
        body, form.topic_part, PROPERTIES_LENGTH.pack(properties_size), properties,
    )))
    record.queue = (form.topic, queue_id) if form.is_queued else None
    record.place = place
    return record


class RaftWriter:
    """Writes the messages of a broker into the ledger of its member (L{LogWriter})."""

    log = Logger()
    always_waits = True
    topic_characters_max = TOPIC_BYTES_MAX[1]

    def __init__(
        self, node: Node, stamps: MessageStamps, *, body_bytes_max: int, message_bytes_max: int,
        before: Callable[[], None],
    ) -> None:
        """
        @param before: called before an append: its topics may have to go first.
        @param stamps: open while this broker is the master.
        @param body_bytes_max: of a record, as the ledger takes it.
        @param message_bytes_max: of the body of a message.
        """
        self._node = node
        self._stamps = stamps
        self._body_bytes_max = self.together_bytes_max = body_bytes_max
        self._message_bytes_max = message_bytes_max
        self._before = before

    def refusal(self) -> NotPut | None:
        """See L{LogWriter.refusal}."""
        if not self._stamps.is_open:
            return NotPut(PutStatus.SERVICE_NOT_AVAILABLE, "messages are put to the slave")
        return None

    def check(self, messages: Sequence[NewMessage], *, are_copies: bool = False) -> int:
        """See L{LogWriter.check}."""
        total = 0
        for message in messages:
            if len(message.body) > self._message_bytes_max and not are_copies:
                raise ValueError(f"body of {len(message.body)} bytes; max_message_size="
                                 f"{self._message_bytes_max}")
            if b"\0" in message.properties_data or "\0" in message.topic:
                raise ValueError("a zero byte in the topic or properties")
            size = size_of(message)
            if len(message.topic.encode()) > TOPIC_BYTES_MAX[1]:
                raise ValueError(f"topic of {len(message.topic.encode())} bytes; {TOPIC_BYTES_MAX[1]} are "
                                 "allowed: members of RocketMQ 4.9 cannot read a longer one")
            if size > self._body_bytes_max:
                raise ValueError(
                    f"a record of {size} bytes; an entry of the log takes {self._body_bytes_max}"
                )
            total += size
        return total

    def append(self, messages: Sequence[PlainMessage], now_ms: int, *, waits: bool) -> Put:
        """See L{LogWriter.append}. Never raises; the result reports a refusal."""
        place = PutPlaces()
        placed = Placed(place.offsets, place.queue_offsets, 0, now_ms)
        bodies = [unplaced(message, now_ms, place) for message in messages]
        self._before()
        done = self._node.append(bodies).addCallbacks(_committed, self._not_committed)
        return Put(placed, done, is_placed=False)

    def _not_committed(self, failure: Failure) -> PutStatus:
        error = failure.value
        if isinstance(error, DLedgerError):
            return _NOT_STORED.get(error.code, PutStatus.UNKNOWN_ERROR)
        self.log.failure("an append failed", failure)
        return PutStatus.UNKNOWN_ERROR


def _committed(_: AppendResult) -> PutStatus:
    return PutStatus.PUT_OK
