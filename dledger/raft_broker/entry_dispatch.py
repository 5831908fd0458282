# -*- test-case-name: tests.raft_broker.test_entry_dispatch -*-
"""
Dispatches the messages of committed entries into their consume queues.

Rule 1: an entry whose body is not a message is passed over, alone; the log names it. RocketMQ passes over all
entries of the same read.
Rule 2: bytes that are no entry hold the dispatch up until the member has a sound copy from another one. The
log says so; the broker serves what is dispatched, and does not become master.
Rule 3: a member that was behind may get a log that begins after the place of its dispatch. The queues give up
the units before that begin first, or a queue would put the next message at the index of one that is gone.

Source: DLedgerCommitLog.checkMessageAndReturnSize, ReputMessageService (4.9.8).
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence

from twisted.logger import Logger

from dledger.rocketmq.store.queues.reput import SLICE_BYTES_MAX, DispatchedLog, Dispatcher, Puts
from dledger.rocketmq.store.records.events import Arrived, BrokerEvents
from dledger.rocketmq.store.records.records import read_plain_record, read_record
from dledger.values.errors import StoreError
from protocols.wire.errors import WireError
from protocols.wire.ledger.entry import BLANK, BLANK_MAGIC, ENTRY_HEADER, ENTRY_HEADER_SIZE, MAGIC
from protocols.wire.rocketmq.layout import METADATA_TOPIC, START_SIZE

_NEVER = 1 << 63
_METADATA_TOPIC = METADATA_TOPIC.encode()


class EntryDispatch(Dispatcher):
    """
    A L{Dispatcher} of a raft log.

    @ivar passed_over: number of entries without a message.
    """

    log_events = Logger()
    passed_over = 0

    def __init__(
        self, log: DispatchedLog, queues: Puts, delay_levels_ms: Sequence[int], *, offset: int,
        held: int = 0, events: BrokerEvents, expire: Callable[[int], None] = lambda log_begin: None,
    ) -> None:
        """
        @param held: metadata in the log before this offset are in the tables; the ends of queues among them
            are not. The tables keep them, as the log lacks later changes by a master of RocketMQ.
        @param events: hears of the metadata in the log.
        @param expire: lets the queues give up the units before the log's begin; see rule 3.
        """
        super().__init__(log, queues, delay_levels_ms, offset=offset)
        self._expire = expire
        self._held = held
        self._events = events

    @property
    def applied_offset(self) -> int:
        """Metadata in the log before it are in the tables."""
        return max(self.offset, self._held)

    def step(self, *, bound: int, bytes_max: int = SLICE_BYTES_MAX) -> Arrived:
        """See L{Dispatcher.step}. @raise OSError: also if the log is damaged here."""
        try:
            return super().step(bound=bound, bytes_max=bytes_max)
        except StoreError as error:
            if isinstance(error.__cause__, WireError):
                raise OSError(errno.EBADMSG, str(error.__cause__)) from error
            raise

    def _step(self, bound: int, bytes_max: int) -> Arrived:
        if self.offset < self._log.begin_offset:
            self._expire(self._log.begin_offset)
        return super()._step(bound, bytes_max)

    def another(self, queues: Puts, offset: int) -> Dispatcher:
        return EntryDispatch(
            self._log, queues, self._delay_levels_ms, offset=offset, held=_NEVER, events=self._events
        )

    def _first(self, data: bytes) -> int:
        if len(data) < START_SIZE:
            return 0
        magic, size = BLANK.unpack_from(data)
        return -1 if magic == BLANK_MAGIC else max(size, 0)

    def _slice(self, data: bytes, base: int, room: int, arrived: Arrived) -> int:
        at, end = 0, len(data)
        put, levels, topics = self._queues.put, self._delay_levels_ms, self._topics
        while end - at >= ENTRY_HEADER_SIZE:
            magic, size = BLANK.unpack_from(data, at)
            if magic == BLANK_MAGIC:
                break
            if magic != MAGIC or size < ENTRY_HEADER_SIZE:
                raise WireError(f"no entry begins at {base + at}: magic={magic}, size={size}")
            if at and size > end - at:
                break  # the next read begins here
            body_size = size - ENTRY_HEADER_SIZE
            record = read_plain_record(data, at + ENTRY_HEADER_SIZE, body_size, levels)
            if record is not None and record[0] == body_size:
                _, raw, queue_id, index, code, self.store_timestamp, is_queued = record
                if is_queued:
                    topic = topics.get(raw) or self._topic(raw)
                    if put(topic, queue_id, index, base + at + ENTRY_HEADER_SIZE, body_size, code):
                        arrived.add((topic, queue_id))
                elif raw == _METADATA_TOPIC and self._held < _NEVER:
                    self._metadata(data[at : at + size], base + at)
                self.dispatched += 1
            else:
                self._entry(data, at, base + at, size, arrived)
            at += size
            self.offset = base + at
        return at

    def _metadata(self, entry: bytes, offset: int) -> None:
        """An entry with metadata of a master."""
        self._events.metadata_logged(
            entry[ENTRY_HEADER_SIZE:], offset + ENTRY_HEADER_SIZE, ENTRY_HEADER.unpack_from(entry)[3],
            is_kept=offset < self._held,
        )

    def _entry(self, data: bytes, at: int, offset: int, size: int, arrived: Arrived) -> None:
        """An entry of any kind."""
        body_at, offset = at + ENTRY_HEADER_SIZE, offset + ENTRY_HEADER_SIZE
        size -= ENTRY_HEADER_SIZE
        try:
            record = read_record(data, body_at, offset, size, self._delay_levels_ms)
            problem = "" if record[0] == size else f"its message has {record[0]} of {size} bytes"
        except WireError as error:
            problem = str(error)
        if problem:
            self.passed_over += 1
            self.log_events.warn(
                "skipping the entry with a message at {offset}: {reason}", offset=offset, reason=problem
            )
            return
        self._put(record, offset, arrived)
