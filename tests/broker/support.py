# -*- test-case-name: tests.broker.store.test_store -*-
"""
For the broker's tests: small files, messages, threads that run when asked to, whole stores.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from twisted.internet.defer import Deferred, execute
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from dledger.base.disk.disk import Disk
from dledger.base.disk.hints import Hints
from dledger.rocketmq.broker.options.config import BrokerConfig
from dledger.rocketmq.broker.parts import BrokerParts
from dledger.rocketmq.broker.producing.tracing import MessageTrace
from dledger.rocketmq.broker.replication import HAReplication
from dledger.rocketmq.broker.surroundings import BrokerSurroundings
from dledger.rocketmq.store.commit_log_store import CommitLogStore
from dledger.rocketmq.store.log.commit_log import CommitLog
from dledger.rocketmq.store.log.log_start import inspect_log
from dledger.rocketmq.store.records.checkpoint import AbortFile, read_store_checkpoint
from dledger.rocketmq.store.records.events import BrokerEvents
from dledger.rocketmq.store.records.plain_records import PlainMessage, lay_out, plain_batch
from dledger.rocketmq.store.records.records import NewMessage
from dledger.rocketmq.store.records.store_config import StoreConfig
from protocols.wire.rocketmq.message import Host, Message, decode_message, encode_properties, make_message

#: Files so small that every test meets blanks and new files.
LOG_SIZE = 4096
QUEUE_SIZE = 200
INDEX_SLOTS, INDEX_ENTRIES = 16, 64

HOST = Host.of("127.0.0.1", 10911)

#: Written by a real 4.9.8 broker: body C{hello}, topic C{T1}, queue 0, tag A, key k1.
GOLDEN = bytes.fromhex(
    "0000007bdaa320a73610a68600000000000000000000000000000000000000000000000000000000"
    "000001a1fba34b5a7f0000010000cc30000001a1fba34b917f000001000051af0000000000000000"
    "000000000000000568656c6c6f02543100194b455953016b3102434c555354455201433102544147"
    "530141"
)


def config_of(root: str = "base", **options: Any) -> StoreConfig:
    """A configuration with small files."""
    values: dict[str, Any] = {
        "store_path_root_dir": root,
        "mapped_file_size_commit_log": LOG_SIZE,
        "mapped_file_size_consume_queue": QUEUE_SIZE,
        "max_hash_slot_num": INDEX_SLOTS, "max_index_num": INDEX_ENTRIES,
    }
    return StoreConfig(**{**values, **options})


def message(body: bytes = b"hello", *, topic: str = "T1", queue_id: int = 0, **fields: Any) -> NewMessage:
    """A message as a producer sends it."""
    properties = fields.pop("properties", {"TAGS": "A"})
    values: dict[str, Any] = {
        "topic": topic, "queue_id": queue_id, "body": body, "properties_data": encode_properties(properties),
        "flag": 0, "sys_flag": 0, "born_timestamp": 1_700_000_000_000, "born_host": HOST, "store_host": HOST,
    }
    return NewMessage(**{**values, **fields})


def some_message(rng: random.Random) -> NewMessage:
    """Any message: topics, queues, sizes, hosts, transactions, delays by chance."""
    properties = {"KEYS": f"k{rng.randrange(1000)}", "TAGS": rng.choice(["A", "TagB", "größe"])}
    topic, sys_flag = f"T{rng.randrange(3)}", 0
    chance = rng.random()
    if chance < 0.1:
        topic, properties["DELAY"] = "SCHEDULE_TOPIC_XXXX", str(rng.randrange(1, 25))
    elif chance < 0.3:
        sys_flag = rng.choice([0x4, 0x8, 0xC])
    return message(
        rng.randbytes(rng.choice([0, 1, 50, 300, 900])), topic=topic, queue_id=rng.randrange(3),
        sys_flag=sys_flag, properties=properties,
        born_host=rng.choice([HOST, Host.of("2001:db8::1", 7)]),
    )


def twin_of(new: NewMessage, *, offset: int, queue_offset: int, now_ms: int) -> Message:
    """The same message by the readable codec."""
    return make_message(
        new.topic, new.body, properties_data=new.properties_data, queue_id=new.queue_id, flag=new.flag,
        sys_flag=new.sys_flag, born_timestamp=new.born_timestamp, born_host=new.born_host,
        store_host=new.store_host, store_timestamp=now_ms, physical_offset=offset, queue_offset=queue_offset,
        reconsume_times=new.reconsume_times, prepared_transaction_offset=new.prepared_transaction_offset,
    )


def plain(*batches: Sequence[NewMessage]) -> list[PlainMessage]:
    """Messages in the form in which they are put; those of a batch stand in one file together."""
    return [one for batch in batches for one in plain_batch(batch)]


def packed(new: NewMessage, *, queue_offset: int, offset: int, now_ms: int) -> bytes:
    """The record of a message as a master lays it out."""
    writes, _, _ = lay_out(
        plain([new]), end=offset, file_size=1 << 50, now_ms=now_ms,
        queue_offsets={(new.topic, new.queue_id): queue_offset},
    )
    ((_, record),) = writes
    return record


def inline(call: Callable[[], None]) -> Deferred[None]:
    """A thread that has always run already."""
    return execute(call)


class Threads:
    """Threads whose calls wait until they are asked to run."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Callable[[], None], Deferred[None]]] = []

    def __call__(self, call: Callable[[], None]) -> Deferred[None]:
        done: Deferred[None] = Deferred()
        self.waiting.append((call, done))
        return done

    def run(self) -> None:
        """Run the call that has waited for longest."""
        call, done = self.waiting.pop(0)
        try:
            call()
        except OSError:
            done.errback(Failure())
        else:
            done.callback(None)


def open_log(
    disk: Disk, *, is_slave: bool = False, run_in_thread: Any = inline, config: StoreConfig | None = None,
    events: BrokerEvents | None = None,
) -> CommitLog:
    """The commit log alone; the abort file is put as a store does."""
    config = config or config_of()
    root = config.store_path_root_dir
    disk.makedirs(root)
    abort = AbortFile(disk, root)
    seen = inspect_log(config, disk, checkpoint=read_store_checkpoint(Hints(disk), root),
                is_aborted=abort.is_there)
    abort.put("1")
    return CommitLog.open(
        config, disk, seen, is_slave=is_slave, run_in_thread=run_in_thread, events=events or BrokerEvents()
    )


def close_log(log: CommitLog, disk: Disk) -> None:
    """Close it in order, as a store does."""
    log.clean_close()
    AbortFile(disk, "base").remove()


def log_bytes(log: CommitLog) -> bytes:
    """Everything from the beginning to the end."""
    parts, at = [], log.begin_offset
    while at < log.end_offset:
        parts.append(log.read(at, 1000))
        at += len(parts[-1])
    return b"".join(parts)


def messages_in(log: CommitLog) -> list[Message]:
    """Every message, by the readable codec."""
    found, data, at = [], log_bytes(log), 0
    while at < log.record_end - log.begin_offset:
        if data[at + 4 : at + 8] == bytes.fromhex("cbd43194"):
            at += log.file_size - (log.begin_offset + at) % log.file_size
            continue
        found.append(decode_message(data, at, physical_offset=log.begin_offset + at))
        at += found[-1].size
    return found


class Reported(BrokerEvents):
    """
    Events that are remembered.

    @ivar grown_count: appends.
    @ivar cuts: ends of the log after each cut.
    @ivar queues: queues with new messages, of each event.
    @ivar also: called when the log has grown.
    """

    def __init__(self, *also: Callable[[], None]) -> None:
        self.grown_count = 0
        self.cuts: list[int] = []
        self.queues: list[set[tuple[str, int]]] = []
        self.also = list(also)

    def grown(self) -> None:
        """Remember."""
        self.grown_count += 1
        for call in self.also:
            call()

    def cut(self, end_offset: int) -> None:
        """Remember."""
        self.cuts.append(end_offset)

    def arrived(self, arrived: set[tuple[str, int]]) -> None:
        """Remember."""
        self.queues.append(arrived)


class Settling:
    """A store and a clock that drives it."""

    store: CommitLogStore
    clock: Clock

    def settle(self) -> None:
        """Let everything be dispatched, at once."""
        hurried_to = -1
        for _ in range(10_000):
            if self.store.reput.behind_bytes and self.store.log.end_offset != hurried_to:
                hurried_to = self.store.log.end_offset
                self.store.reput.caught_up()
            if not any(call.getTime() <= self.clock.seconds() for call in self.clock.getDelayedCalls()):
                return
            self.clock.advance(0)
        raise AssertionError("it does not settle")

    def units(self) -> dict[tuple[str, int], list[tuple[int, int, int, int]]]:
        """All units of all queues."""
        found = {}
        for topic, queue_id in self.store.queues.keys():
            queue = self.store.queues.get(topic, queue_id)
            assert queue is not None
            found[topic, queue_id] = [
                tuple(unit) for unit in queue.read(queue.begin_index, queue.next_index - queue.begin_index)
            ]
        return found


class Opened(Settling, BrokerEvents):
    """
    A store without a broker, its clock, and its events.

    @ivar failures: all calls of C{failed}.
    @ivar queues: what arrived.
    """

    def __init__(
        self, disk: Disk, *, is_slave: bool = False, run_in_thread: Any = inline, **options: Any
    ) -> None:
        self.clock = Clock()
        self.failures: list[Failure] = []
        self.queues: list[set[tuple[str, int]]] = []
        self.store = CommitLogStore.open(
            config_of(**options), disk, is_slave=is_slave, clock=self.clock, run_in_thread=run_in_thread,
            failed=self.failures.append, events=self,
        )
        self.started = self.store.start()

    def grown(self) -> None:
        """As a broker does."""
        self.store.reput.wake()

    def cut(self, end_offset: int) -> None:
        """As a broker does."""
        self.store.log_was_cut(end_offset)

    def arrived(self, arrived: set[tuple[str, int]]) -> None:
        """Remember."""
        self.queues.append(arrived)

    def close(self) -> None:
        """Close in order."""
        closed = self.store.close()
        self.settle()
        assert closed.called
        closed.addErrback(self.failures.append)


class Made(Settling):
    """
    A whole broker as production makes it, without ports: its store is started, and its address known.

    @ivar reasons: why it could not go on.
    @cvar trace: of its messages.
    """

    trace: MessageTrace | None = None

    def __init__(self, config: BrokerConfig, disk: Disk, clock: Clock, *, wall_ms: int) -> None:
        """@param wall_ms: when the clock starts, ms since 1970."""
        self.config = config
        self.disk = disk
        self.clock = clock
        self.reasons: list[str] = []
        self._wall_ms = wall_ms
        self.broker = BrokerParts(config, BrokerSurroundings(
            reactor=clock, disk=disk, rng=random.Random(1), wall_s=lambda: self.wall_ms() / 1000,
            run_in_thread=inline, endpoint_of=_no_endpoint, failed=self.reasons.append,
            trace=self.trace,
        ))
        assert isinstance(self.broker.replication, HAReplication)
        self.ha = self.broker.replication.ha
        store = self.broker.store
        assert isinstance(store, CommitLogStore)
        self.store = store
        self.metadata = self.broker.metadata
        self.inside = self.broker.inside
        self.store.start()
        self.settle()
        self.broker.own.bind(config.broker_ip1, 10911)

    def wall_ms(self) -> int:
        """The time of day goes on with the clock."""
        return self._wall_ms + round(self.clock.seconds() * 1000)

    def set_clock(self, away_ms: int) -> None:
        """Somebody sets the clock of the computer: the time of day is another one from now on."""
        self._wall_ms += away_ms


def _no_endpoint(address: str) -> Any:
    raise ValueError(f"nobody is at {address}")
