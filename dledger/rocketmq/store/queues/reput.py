# -*- test-case-name: tests.broker.store.test_reput -*-
"""
Dispatches the records of the commit log into their consume queues after they are appended.

L{Dispatcher} dispatches one slice of the log, record by record. L{ReputMessageService} runs it on the
reactor, a slice per turn, whenever the log has grown.

Rule 1: a record is put when it is whole and ends at or below the bound. An incomplete record at the end of
the log is no damage: its rest arrives later.
Rule 2: bytes that cannot become a record stop the service and fail the store. Damage is not treated as
the end of the log.
Rule 3: prepared and rolled back transactions are skipped. Bodies are not examined.

Source: ReputMessageService in DefaultMessageStore.java (4.9.8, 5.3.3).
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from typing import Protocol

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from dledger.rocketmq.store.queues.consume_queues import UNWRITTEN_MAX
from dledger.rocketmq.store.records.events import Arrived
from dledger.rocketmq.store.records.records import read_plain_record, read_record
from dledger.values.errors import StoreError
from protocols.wire.errors import WireError
from protocols.wire.rocketmq.layout import MAGIC_BLANK, START, START_SIZE

#: Bounds of a slice, dispatched in one turn of the reactor. It is short, as a slave's report or its bytes may
#: be waiting; but a quarter of the backlog within these bounds, or dispatching would fall behind producers.
SLICE_RECORDS_MIN = 128
SLICE_RECORDS_MAX = 1024
SLICE_BYTES_MAX = 1024 * 1024
BACKLOG_TURNS = 4

#: Seconds for which slaves have precedence, and for which records gather that nobody waits for: a turn for
#: each put would cost a lone put a tenth of its time. (RocketMQ looks for new records every millisecond.)
DEFERRED_S = 0.002

#: A slave copies the log in bulk if the log has grown by this since the last turn: by nearly all that a turn
#: can read.
BULK_BYTES = 240 * 1024

#: Turns for which a copy counts as bulk afterwards: a slave that is faster than its master sometimes waits.
BULK_PAUSE_TURNS = 8

#: During a bulk copy, one turn of this number dispatches, and only L{SLICE_RECORDS_MIN} records.
BULK_TURNS = 32

#: Seconds until dispatching goes on that lacked descriptors.
SCARCE_S = 1.0


class DispatchedLog(Protocol):
    """The part of a commit log that dispatching reads."""

    @property
    def file_size(self) -> int:
        """Bytes of every file."""

    @property
    def begin_offset(self) -> int:
        """The lowest offset in the log."""

    @property
    def record_end(self) -> int:
        """End of the last whole record."""

    def read(self, offset: int, size: int) -> bytes:
        """Up to C{size} bytes of one file from C{offset} on."""


class Puts(Protocol):
    """
    A part of L{dledger.rocketmq.store.queues.consume_queues.ConsumeQueues}: dispatching fills them.
    """

    unwritten: int

    def put(self, topic: str, queue_id: int, index: int, offset: int, size: int, tags_code: int) -> bool:
        ...

    def write(self) -> None:
        ...


class Dispatcher:
    """
    Invariant: every record before C{offset} has been dispatched, and one begins there.

    @ivar offset: offset of the next record.
    @ivar store_timestamp: of the last dispatched record, ms; 0 for none.
    @ivar dispatched: number of records so far.
    """

    def __init__(
        self, log: DispatchedLog, queues: Puts, delay_levels_ms: Sequence[int], *, offset: int,
        log_path: str = "",
    ) -> None:
        """@param log_path: of the log, for people."""
        self._log = log
        self._log_path = log_path
        self._queues = queues
        self._delay_levels_ms = delay_levels_ms
        self._topics: dict[bytes, str] = {}
        self.offset = offset
        self.store_timestamp = 0
        self.dispatched = 0

    def step(self, *, bound: int, bytes_max: int = SLICE_BYTES_MAX) -> Arrived:
        """
        Dispatch records that end at or below C{bound}: at least one, then no more than C{bytes_max} bytes.

        @return: the queues that have new messages; may be empty.
        @raise StoreError: no record begins where one must, or reading or writing failed.
        @raise OSError: descriptors or room are lacking; a later call repeats the last record.
        """
        try:
            return self._step(bound, bytes_max)
        except WireError as error:
            raise StoreError(
                f"the commit log {self._log_path} is damaged: {error}. If its disk fails, give the broker "
                "another one; dledger verify lists the damage, and a slave or the master has the record",
                offset=self.offset,
            ) from error
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT):
                raise  # it ends by itself
            raise StoreError(f"dispatching: {error}", offset=self.offset) from error

    def _step(self, bound: int, bytes_max: int) -> Arrived:
        log = self._log
        arrived: Arrived = set()
        bound = min(bound, log.record_end)
        self.offset = max(self.offset, log.begin_offset)
        left = bytes_max
        while self.offset < bound and left > 0:
            base = self.offset
            room = log.file_size - base % log.file_size
            data = log.read(base, min(max(left, START_SIZE), bound - base))
            size = self._first(data)
            if size < 0:
                self.offset += room
                continue
            if bound - base < min(max(size, START_SIZE), room):
                break  # the bound is inside a record
            if len(data) < size <= room:
                data = log.read(base, size)
            left -= self._slice(data, base, room, arrived)
        if self._queues.unwritten >= UNWRITTEN_MAX:  # else the store writes: a write costs more
            self._queues.write()
        return arrived

    def _first(self, data: bytes) -> int:
        """Bytes of the record at the start of C{data}; -1: a blank; 0: there are too few bytes."""
        if len(data) < START_SIZE:
            return 0
        size, magic = START.unpack_from(data)
        return -1 if magic == MAGIC_BLANK else max(size, 0)

    def _put(
        self, record: tuple[int, bytes, int, int, int, int, bool], offset: int, arrived: Arrived
    ) -> None:
        """Put the unit of one record at C{offset} of the log."""
        size, raw, queue_id, index, code, self.store_timestamp, is_queued = record
        if is_queued:
            topic = self._topics.get(raw) or self._topic(raw)
            if self._queues.put(topic, queue_id, index, offset, size, code):
                arrived.add((topic, queue_id))
        self.dispatched += 1

    def _slice(self, data: bytes, base: int, room: int, arrived: Arrived) -> int:
        """Dispatch the whole records in C{data}, the first of which is whole. @return: their bytes."""
        at, end = 0, len(data)
        put, levels = self._queues.put, self._delay_levels_ms
        topics = self._topics
        while end - at >= START_SIZE:
            record = read_plain_record(data, at, room - at, levels)
            if record is None:
                size, magic = START.unpack_from(data, at)
                if magic == MAGIC_BLANK or (at and 0 < size > end - at):
                    break  # the next read begins here
                record = read_record(data, at, base + at, room - at, levels)
            size, raw, queue_id, index, code, self.store_timestamp, is_queued = record
            if is_queued:
                topic = topics.get(raw) or self._topic(raw)
                if put(topic, queue_id, index, base + at, size, code):
                    arrived.add((topic, queue_id))
            self.dispatched += 1
            at += size
            self.offset = base + at
        return at

    def _topic(self, raw: bytes) -> str:
        topic = raw.decode("utf-8", "replace")
        if len(self._topics) < 65536:
            self._topics[raw] = topic
        return topic

    def another(self, queues: Puts, offset: int) -> Dispatcher:
        """A dispatcher of the same log, from C{offset} on, into other queues; nothing else hears of it."""
        return Dispatcher(self._log, queues, self._delay_levels_ms, offset=offset)

    def cut(self, log_end: int) -> None:
        """The log now ends at C{log_end}, the end of a record; the queues are already cut."""
        self.offset = min(self.offset, log_end)


class ReputMessageService:
    """
    Invariant: C{_call} is the turn that is scheduled, or None.

    @ivar bound: returns the offset up to which records may become visible; called at each turn.
    """

    log = Logger()

    def __init__(
        self, dispatcher: Dispatcher, *, clock: IReactorTime, bound: Callable[[], int],
        arrived: Callable[[Arrived], None], failed: Callable[[Failure], None], gives_way: bool = False,
        is_awaited: Callable[[], bool] = lambda: True,
    ) -> None:
        """
        @param arrived: called after a turn that made messages visible.
        @param failed: called once, with a L{StoreError}, when dispatching has failed.
        @param gives_way: on a slave: dispatch little while the log is copied in bulk, as dispatching would
            slow the copy down.
        @param is_awaited: whether a reader waits for new messages; if not, one turn takes those of many puts.
        """
        self._dispatcher = dispatcher
        self._clock = clock
        self._failed = failed
        self._call: IDelayedCall | None = None
        self._is_running = False
        self._waiters: list[Deferred[None]] = []
        self._last_bound = bound()
        self._record_size = SLICE_BYTES_MAX // SLICE_RECORDS_MAX
        self._passed_turns = 0
        self._bulk_turns = 0
        self._is_deferred = self._waits_for_slaves = self._reported_scarce = False
        self._gives_way = gives_way
        self._arrived = arrived
        self.bound = bound
        self._is_awaited = is_awaited

    @property
    def offset(self) -> int:
        """The offset before which every record is in its queue."""
        return self._dispatcher.offset

    @property
    def behind_bytes(self) -> int:
        """Bytes below the bound that are not dispatched."""
        return max(self.bound() - self._dispatcher.offset, 0)

    def start(self) -> None:
        """Dispatch from now on."""
        self._is_running = True
        self.wake()

    def wake(self, *, defers: bool = False) -> None:
        """
        The log has grown, or the bound has risen: dispatch in a later turn, within L{DEFERRED_S}.

        @param defers: slaves copy the new bytes, and a producer may wait for them: wait for L{release}.
        """
        if self._is_running and self._call is None:
            is_awaited = self._is_awaited()
            self._waits_for_slaves = defers and is_awaited
            self._is_deferred = defers or not is_awaited
            self._schedule(DEFERRED_S if self._is_deferred else 0)

    def release(self) -> None:
        """The slaves have the new bytes, and the producers their answers."""
        if self._waits_for_slaves:
            self._hurry()

    def _hurry(self) -> None:
        """The reason to defer has ended: dispatch in a later turn."""
        if self._is_deferred and self._call is not None:
            self._is_deferred = self._waits_for_slaves = False
            self._call.reset(0)

    def show(self) -> None:
        """Somebody asks: records that gather are dispatched now, so that a producer finds its last ones."""
        if self._is_deferred and self._call is not None:
            self._call.cancel()
            self._turn()

    def _schedule(self, delay_s: float) -> None:
        self._call = self._clock.callLater(delay_s, self._turn)

    def _turn(self) -> None:
        self._call = None
        self._is_deferred = self._waits_for_slaves = False
        before, count, bound = self._dispatcher.offset, self._dispatcher.dispatched, self.bound()
        records = self._share(bound)
        if not records:
            self._schedule(0)
            return
        try:
            arrived = self._dispatcher.step(
                bound=bound, bytes_max=min(records * self._record_size, SLICE_BYTES_MAX)
            )
        except OSError as error:
            if not self._reported_scarce:
                self._reported_scarce = True
                self.log.error("dispatching at {offset}: {error}; it is tried again",
                               offset=self._dispatcher.offset, error=str(error))
            self._schedule(SCARCE_S)
            return
        except StoreError:
            self.stop()
            failure = Failure()
            self.log.failure("dispatching has stopped at {offset}", failure, offset=self._dispatcher.offset)
            self._failed(failure)
            return
        count = self._dispatcher.dispatched - count
        if count > 0:
            self._record_size = (self._dispatcher.offset - before) // count
        if before != self._dispatcher.offset < self.bound():
            self._schedule(0)
        else:
            self._notify()
        if arrived:
            self._arrived(arrived)

    def _share(self, bound: int) -> int:
        """Number of records to dispatch in this turn; 0: leave the turn to the copy of the log."""
        grown, self._last_bound = bound - self._last_bound, bound
        self._bulk_turns = BULK_PAUSE_TURNS if grown >= BULK_BYTES else max(self._bulk_turns - 1, 0)
        if self._gives_way and self._bulk_turns:
            self._passed_turns = (self._passed_turns + 1) % BULK_TURNS
            return 0 if self._passed_turns else SLICE_RECORDS_MIN
        self._passed_turns = 0
        backlog = (bound - self._dispatcher.offset) // self._record_size // BACKLOG_TURNS
        return min(max(backlog, SLICE_RECORDS_MIN), SLICE_RECORDS_MAX)

    def caught_up(self) -> Deferred[None]:
        """@return: fires when every whole record below the bound is in its queue, or the service stops."""
        waiter: Deferred[None] = Deferred()
        if not self._is_running:
            waiter.callback(None)
        else:
            self._waiters.append(waiter)
            self.wake()
            self._hurry()
        return waiter

    def _notify(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.callback(None)

    def stop(self) -> None:
        """Stop dispatching; dispatched messages stay."""
        self._is_running = False
        if self._call is not None:
            self._call.cancel()
            self._call = None
            self._is_deferred = self._waits_for_slaves = False
        self._notify()
