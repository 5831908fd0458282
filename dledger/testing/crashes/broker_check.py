# -*- test-case-name: tests.sim.test_broker_crashes -*-
"""
What a broker's store must hold after a crash, and the check that it does.

The log that is found is a prefix of one that the workload had, at least as far as it was on stable storage;
after that, a slave's log may have holes that replication finds, see L{LogFlusher.doubtful}. Every whole
record is in its consume queue, once, and is found by its key.
"""

from __future__ import annotations

from zlib import crc32

import attrs
from twisted.internet.defer import Deferred, execute
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from dledger.rocketmq.store.commit_log_store import CommitLogStore
from dledger.rocketmq.store.index.indexing import DELAY_S, keys_of
from dledger.rocketmq.store.records.events import BrokerEvents
from dledger.rocketmq.store.records.key_hash import hash_of_key
from dledger.rocketmq.store.records.plain_records import plain_batch
from dledger.rocketmq.store.records.records import NewMessage, keyed_part_of, read_record
from dledger.rocketmq.store.records.set_aside import directories
from dledger.rocketmq.store.records.store_config import StoreConfig
from dledger.testing.crashes.disk import CrashDisk
from dledger.testing.crashes.engine import BadImage, demand
from dledger.values.errors import DLedgerError
from protocols.wire.errors import WireError
from protocols.wire.rocketmq.layout import MAGIC_BLANK, START, START_SIZE
from protocols.wire.rocketmq.message import Host

LOG_BYTES = 4096
QUEUE_BYTES = 80
ROOT = "base"

_HOST = Host(address=bytes((127, 0, 0, 1)), port=10911)
_TURNS_MAX = 10_000
_Units = dict[tuple[str, int], list[tuple[int, int, int]]]


def new_message(number: int, body_bytes: int) -> NewMessage:
    """The message of that number; they alternate between two topics, each with a queue."""
    return NewMessage(
        topic=f"T{number % 2}", queue_id=0, body=(b"%08d" % number * body_bytes)[:body_bytes],
        properties_data=b"KEYS\x01%d\x02" % number, flag=0, sys_flag=0, born_timestamp=1_000 + number,
        born_host=_HOST, store_host=_HOST,
    )


@attrs.frozen(eq=False, kw_only=True)
class StorePromise:
    """
    What was promised before the crash.

    @ivar streams: the bytes from offset 0 on of logs that may be found, or of longer ones.
    @ivar floor: the log reaches at least to here.
    @ivar begin_max: the log begins here at most.
    @ivar kept: bytes that are still in the log, or were set aside.
    """

    streams: tuple[bytearray, ...]
    floor: int = 0
    begin_max: int = 0
    kept: tuple[bytes, ...] = ()


class RunningStore(BrokerEvents):
    """
    A store with its clock; its threads end at once.

    @ivar failures: what the store said that its owner must know.
    """

    def __init__(self, disk: CrashDisk, *, is_slave: bool) -> None:
        self.clock = Clock()
        self.disk = disk
        self.failures: list[Failure] = []
        config = StoreConfig(
            store_path_root_dir=ROOT, mapped_file_size_commit_log=LOG_BYTES,
            mapped_file_size_consume_queue=QUEUE_BYTES, file_reserved_time_h=1,
            max_hash_slot_num=4, max_index_num=8,
        )
        self.store = CommitLogStore.open(
            config, disk, is_slave=is_slave, clock=self.clock, run_in_thread=_at_once,
            failed=self.failures.append, events=self,
        )
        self.store.start()
        self.settle()

    def grown(self) -> None:
        self.store.reput.wake()

    def cut(self, end_offset: int) -> None:
        self.store.log_was_cut(end_offset)

    def settle(self) -> None:
        """Let everything be dispatched."""
        for _ in range(_TURNS_MAX):
            if not any(call.getTime() <= self.clock.seconds() for call in self.clock.getDelayedCalls()):
                return
            self.clock.advance(0)
        raise AssertionError("it does not settle")

    def missing(self) -> list[int]:
        """Offsets of the messages that are not found by their key, when the index has had time."""
        indexing, log = self.store.indexing, self.store.log
        assert indexing is not None
        for _ in range(_TURNS_MAX):
            if not indexing.behind_bytes or indexing.index.why_failed:
                break
            self.clock.advance(DELAY_S)
        found, data, begin, at = [], self.log_bytes(), log.begin_offset, 0
        while at + START_SIZE <= log.record_end - begin:
            size, magic = START.unpack_from(data, at)
            if magic == MAGIC_BLANK:
                at += LOG_BYTES - (begin + at) % LOG_BYTES
                continue
            topic, properties, _, _ = keyed_part_of(data[at : at + size], begin + at)
            for key in keys_of(properties):
                key_hash = hash_of_key(topic.decode(), key.decode())
                if begin + at not in indexing.index.search(key_hash, 0, 1 << 62):
                    found.append(begin + at)
            at += size
        return found

    def append(self, message: NewMessage) -> None:
        """Store a message, and let it be dispatched and indexed."""
        self.store.append_plain(list(plain_batch([message])), 1_000_000)
        self.settle()
        self.clock.advance(DELAY_S)

    def log_bytes(self) -> bytes:
        """The log, from its beginning on."""
        log, parts, at = self.store.log, [], self.store.log.begin_offset
        while at < log.end_offset:
            parts.append(log.read(at, LOG_BYTES))
            at += len(parts[-1])
        return b"".join(parts)

    def units(self) -> _Units:
        """Index, offset and size of every unit of every queue that has any."""
        found: _Units = {}
        for key in self.store.queues.keys():
            queue = self.store.queues.get(*key)
            assert queue is not None
            for unit in queue.read(queue.begin_index, 1 << 20):
                found.setdefault(key, []).append((unit.queue_offset, unit.offset, unit.size))
        return found

    def expected_units(self) -> _Units:
        """The units of all whole records in the log."""
        data, begin, at = self.log_bytes(), self.store.log.begin_offset, 0
        units: _Units = {}
        while at + START_SIZE <= self.store.log.record_end - begin:
            offset = begin + at
            room = LOG_BYTES - offset % LOG_BYTES
            if START.unpack_from(data, at)[1] == MAGIC_BLANK:
                at += room
                continue
            one = read_record(data, at, offset, room, ())
            key = one.topic.decode(), one.queue_id
            units.setdefault(key, []).append((one.queue_offset, offset, one.size))
            at += one.size
        return units


def _at_once(call: object) -> Deferred[None]:
    return execute(call)  # type: ignore[arg-type]


def _hole(found: bytes, begin: int, stream: bytearray) -> int:
    """Offset of the first byte that is not the stream's; -1: none."""
    wanted = stream[begin : begin + len(found)]
    if found == wanted:
        return -1
    return begin + next((at for at, byte in enumerate(wanted) if found[at] != byte), len(wanted))


def _without_holes(running: RunningStore, promise: StorePromise) -> None:
    """
    Compare the log, and cut a slave's at its first hole, as replication does.

    @raise BadImage: the log is none of the promised ones, or too short.
    """
    log, found = running.store.log, running.log_bytes()
    begin, why = log.begin_offset, []
    demand(begin <= promise.begin_max, f"the log begins at {begin}, not at {promise.begin_max} or before")
    for stream in promise.streams:
        at = _hole(found, begin, stream)
        if at < 0:
            return
        wanted = stream[begin : begin + len(found)]
        is_hole = len(wanted) == len(found) and all(
            mine == other or (not mine and begin + index in log.doubtful)
            for index, (mine, other) in enumerate(zip(found, wanted, strict=True))
        )
        if is_hole:
            log.cut(at)
            running.settle()
            return
        why.append(f"it differs at {at}")
    raise BadImage(f"the log {begin}..{log.end_offset} is not one of the possible ones: {'; '.join(why)}")


def check_store(disk: CrashDisk, promise: StorePromise, *, is_slave: bool) -> RunningStore:
    """
    Start on what a crash left, and check it.

    @raise BadImage: a promise is broken, or it does not start.
    """
    try:
        running = RunningStore(disk, is_slave=is_slave)
    except (DLedgerError, OSError, AssertionError) as error:
        raise BadImage(f"it does not start: {type(error).__name__}: {error}") from error
    demand(not running.failures, f"it has failed: {[one.getErrorMessage() for one in running.failures]}")
    log = running.store.log
    _without_holes(running, promise)
    demand(log.end_offset >= promise.floor, f"the log ends at {log.end_offset}, below {promise.floor}")
    demand(log.record_end == log.end_offset, f"the log ends at {log.end_offset}, inside a record")
    demand(running.store.is_ready, "it takes no message")
    try:
        wanted = running.expected_units()
    except WireError as error:
        raise BadImage(f"no record: {error}") from error
    found = running.units()
    demand(found == wanted, f"the queues have {found}, not {wanted}")
    missing = running.missing()
    demand(not missing, f"the messages at {missing} are not found by their keys")
    contents = [*disk.image().contents().items()] if promise.kept else []
    places = (f"{ROOT}/commitlog/", *(f"{one}/" for one in directories(disk, f"{ROOT}/commitlog")))
    for piece in promise.kept:
        demand(any(piece in content for path, content in contents if path.startswith(places)),
               f"bytes with checksum {crc32(piece):08x} are in no file")
    return running


def check_store_goes_on(disk: CrashDisk, running: RunningStore, *, is_slave: bool) -> None:
    """
    A recovered store takes a message, and has it after a flush, a checkpoint and a kill.

    @raise BadImage: it does not.
    """
    running.append(new_message(999, 50))
    running.store.checkpoint()
    running.settle()
    log, units = running.log_bytes(), running.units()
    demand(not running.failures, "it fails later")
    running.store.abandon()
    again = RunningStore(disk, is_slave=is_slave)
    demand(again.log_bytes() == log, "after one more message and a kill the log differs")
    found = again.units()
    demand(found == units, f"after one more message and a kill the queues have {found}, not {units}")
    again.store.abandon()
