# -*- test-case-name: tests.sim.test_broker_crashes -*-
"""
The workloads of a broker's store: each makes every changing disk call of one activity.

A message may be lost until a flush; a cut may be done or not until it returns.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from dledger.testing.crashes.broker_check import (
    LOG_BYTES,
    RunningStore,
    StorePromise,
    check_store,
    check_store_goes_on,
    new_message,
)
from dledger.testing.crashes.disk import CrashDisk
from dledger.testing.crashes.engine import Story

_BODY_BYTES = 300
_LATER_S = 1e9


class StoreActor:
    """
    A store at work, and the promises that it has made.

    @ivar streams: the bytes of its logs: each cut begins another one.
    """

    def __init__(
        self, disk: CrashDisk, promised: Callable[[StorePromise], None], *, is_slave: bool
    ) -> None:
        self.disk = disk
        self.is_slave = is_slave
        self.streams = [bytearray()]
        self._promised = promised
        self._serial = self._floor = self._begin = 0
        self._kept: tuple[bytes, ...] = ()
        self.running = RunningStore(disk, is_slave=is_slave)
        self._promise()

    def _promise(self, *streams: bytearray) -> None:
        self._promised(StorePromise(
            streams=streams or (self.streams[-1],), floor=self._floor, begin_max=self._begin, kept=self._kept,
        ))

    def _note(self) -> None:
        log, stream = self.running.store.log, self.streams[-1]
        stream += self.running.log_bytes()[len(stream) - log.begin_offset :]

    def append(self, count: int, *, body_bytes: int = _BODY_BYTES) -> None:
        """Store messages, one after the other."""
        for _ in range(count):
            self._serial += 1
            self.running.append(new_message(self._serial, body_bytes))
            self._note()

    def write_queues(self) -> None:
        """Write the units, without a sync."""
        self.running.store.queues.write()

    def flush(self) -> None:
        """Bring the log to stable storage."""
        self.running.store.log.flush()
        self._floor = self.running.store.log.flushed_record_end
        self._promise()

    def checkpoint(self) -> None:
        """Bring log, queues and checkpoint to stable storage."""
        self.running.store.checkpoint()
        self.running.settle()
        self._floor = self.running.store.log.flushed_record_end
        self._promise()

    def copy(self, source: bytes, sizes: tuple[int, ...]) -> None:
        """Append a master's bytes in pieces of these sizes, again and again."""
        log, turn = self.running.store.log, 0
        while log.end_offset < len(source):
            at = log.end_offset
            size = min(sizes[turn % len(sizes)], LOG_BYTES - at % LOG_BYTES)
            log.append_raw(at, source[at : at + size])
            self.running.settle()
            self._note()
            turn += 1

    def cut(self, offset: int) -> None:
        """Cut the log."""
        end = self.running.store.log.record_end_below(offset)
        old, new = self.streams[-1], self.streams[-1][:end]
        self.streams.append(new)
        self._floor = min(self._floor, end)
        self._promise(old)
        self.running.store.log.cut(offset)
        self._promise()

    def give_up(self, offset: int) -> None:
        """Set the log aside from C{offset} on, as after an operator's word."""
        log = self.running.store.log
        end = log.record_end_below(offset)
        old, new = self.streams[-1], self.streams[-1][:end]
        self._kept = (bytes(old[end : min(self._floor, end - end % LOG_BYTES + LOG_BYTES)]),)
        self.streams.append(new)
        self._floor = min(self._floor, end)
        self._promise(old)
        log.set_aside(offset)
        self._floor = end
        self._promise()

    def expire(self) -> None:
        """Delete the first files."""
        log = self.running.store.log
        self._begin = log.end_offset - log.end_offset % LOG_BYTES
        self._promise()
        self.running.store.maintenance(_LATER_S, 4, keep_from=1 << 60)

    def restart(self, *, cleanly: bool) -> None:
        """Close or kill, and start again."""
        if cleanly:
            self.running.store.close()
            self.running.settle()
            self._floor = len(self.streams[-1])
            self._promise()
        else:
            self.running.store.abandon()
        self.running = RunningStore(self.disk, is_slave=self.is_slave)
        self._promise()


@attrs.frozen(eq=False)
class BrokerStory:
    """A workload of a broker. Implements L{Story}."""

    name: str
    work: Callable[[StoreActor], None]
    is_slave: bool

    def run(self, disk: CrashDisk, promised: Callable[[StorePromise], None]) -> None:
        promised(StorePromise(streams=(bytearray(),)))
        self.work(StoreActor(disk, promised, is_slave=self.is_slave))

    def check(
        self, disk: CrashDisk, promise: StorePromise, *, boots: int, goes_on: Callable[[], bool]
    ) -> None:
        running = check_store(disk, promise, is_slave=self.is_slave)
        if goes_on():
            check_store_goes_on(disk, running, is_slave=self.is_slave)
        running.store.abandon()


def _append(actor: StoreActor) -> None:
    actor.append(2)
    actor.flush()
    actor.append(2)
    actor.write_queues()
    actor.flush()
    actor.append(1)


def _roll(actor: StoreActor) -> None:
    actor.append(3, body_bytes=1500)
    actor.flush()
    actor.append(3, body_bytes=1500)
    actor.write_queues()
    actor.append(1, body_bytes=1500)
    actor.checkpoint()


def _checkpoint(actor: StoreActor) -> None:
    for _ in range(3):
        actor.append(3)
        actor.write_queues()
        actor.append(1)
        actor.checkpoint()
    actor.append(2)
    actor.write_queues()


def _restart(actor: StoreActor) -> None:
    actor.append(3)
    actor.restart(cleanly=False)
    actor.append(2)
    actor.restart(cleanly=True)
    actor.append(2)
    actor.checkpoint()
    actor.restart(cleanly=False)


def _cut(actor: StoreActor) -> None:
    actor.append(6, body_bytes=1200)
    actor.checkpoint()
    actor.append(2)
    actor.cut(3000)
    actor.append(2)
    actor.flush()
    actor.cut(4000)
    actor.append(1)


def _give_up(actor: StoreActor) -> None:
    actor.append(6, body_bytes=1200)
    actor.checkpoint()
    actor.give_up(2000)
    actor.append(3, body_bytes=1200)
    actor.checkpoint()


def _expire(actor: StoreActor) -> None:
    actor.append(8, body_bytes=1500)
    actor.checkpoint()
    actor.append(1)
    actor.expire()
    actor.append(2)
    actor.checkpoint()


def _copy(actor: StoreActor) -> None:
    disk = CrashDisk()
    master = RunningStore(disk, is_slave=False)
    for number in range(7):
        master.append(new_message(number, 900))
    source = master.log_bytes()
    actor.copy(source[:2300], (700, 450))
    actor.flush()
    actor.copy(source[:3700], (333,))
    actor.write_queues()
    actor.checkpoint()
    actor.copy(source, (900, 60))


def broker_stories() -> list[Story[StorePromise]]:
    """Every workload, of masters and slaves."""
    works = (_append, _roll, _checkpoint, _restart, _cut, _give_up, _expire)
    stories: list[Story[StorePromise]] = [
        BrokerStory(f"broker{work.__name__.replace('_', '-')}", work, False) for work in works
    ]
    stories.append(BrokerStory("slave-copy", _copy, True))
    stories.append(BrokerStory("slave-restart", _restart, True))
    stories.append(BrokerStory("slave-give-up", _give_up, True))
    return stories
