# -*- test-case-name: tests.sim.test_replicated_logs -*-
"""
The logs of a master and its slaves, which are watched event by event (H1 to H8), and the faults of their
disks.

Half of the seeds have no clients: messages are put straight into the master's log, options of replication are
of all kinds, and the master may come back empty, on an older disk, or with flipped bits, which nobody could
promise a client anything for. Such a schedule takes a tenth of the time.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from contextlib import suppress

import attrs

from dledger.base.serving.endpoints import connect_with
from dledger.rocketmq.broker.parts import BrokerParts
from dledger.rocketmq.broker.producing.puts import NotPut, Put
from dledger.rocketmq.replication.put_status import PutStatus
from dledger.rocketmq.replication.slave import DecisionUnderWay, HAFollower
from dledger.rocketmq.store.commit_log_store import CommitLogStore
from dledger.rocketmq.store.records.plain_records import PlainMessage
from dledger.rocketmq.store.records.records import NewMessage
from dledger.testing.brokers.client_world import BARE_S, ClientWorld
from dledger.testing.brokers.invariants import LOG_PATH, HAInvariants, WatchedPut, log_of
from dledger.testing.brokers.pair_faults import FAULTS, POWER
from dledger.testing.brokers.pairs import MakePlainBroker
from dledger.testing.brokers.rig.machine import SLAVE_PORT, BrokerMachine
from dledger.testing.brokers.rig.states import LOG_FILE_BYTES
from dledger.testing.world.host import MachineDisk
from dledger.testing.world.process import SimProcess
from dledger.testing.world.streams import StreamClient
from dledger.values.errors import StoreError
from dledger.values.option_values import with_values
from protocols.rocketmq.ha import HAClient
from protocols.wire.rocketmq.message import Host

_HOST = Host(address=bytes((127, 0, 0, 1)), port=10911)

#: Faults of schedules without clients, and of the power supply.
BARE_FAULTS = (*(one for one in FAULTS if one != "cut_client"), "stray")
BARE_POWER = (*POWER, "lose_power")
#: Faults of the master's disk, which H3 and H7 exclude.
REPLACED = ("empty_master", "older_master", "flip_master")
#: A slave loses its disk, and comes back with an empty one.
EMPTIED = ("renew_slave", "renew_slave")
#: The end of the longest time after which a broker looks at the room of its disk again.
QUIET_US = (BARE_S + 11) * 1_000_000
#: A full disk deletes no old files: what a log lacks is lost.
KEEPS_FILES = {"disk_space_clean_forcibly_ratio": 1.0}


@attrs.frozen(kw_only=True)
class BareOptions:
    """
    What the seed of a schedule without clients draws.

    @ivar master, slave: options of brokers, with C{broker_role}.
    @ivar put_us: mean time between puts.
    @ivar faults: names of the faults that may happen.
    """

    slaves: int
    master: Mapping[str, object]
    slave: Mapping[str, object]
    put_us: int
    burst_max: int
    body_max: int
    pace_s: float
    delay_us: int
    spread_us: int
    piece_size: int
    flush_us: int
    faults: tuple[str, ...]


def bare_options(seed: int, settings: Mapping[str, object], faults: tuple[str, ...] = ()) -> BareOptions:
    """
    The options of a seed.

    @param settings: fields that it does not draw; C{master} and C{slave} are merged.
    @param faults: the only ones that happen; empty for the seed's own mix.
    """
    rng = random.Random(f"{seed} ha")
    slaves = rng.choice((1, 1, 2, 2, 3))
    both = {"ha_flush_interval": rng.choice((50, 200, 500)), **KEEPS_FILES}
    master: dict[str, object] = {
        **both, "broker_role": rng.choice(("SYNC_MASTER", "SYNC_MASTER", "SYNC_MASTER", "ASYNC_MASTER")),
        "flush_disk_type": rng.choice(("ASYNC_FLUSH", "SYNC_FLUSH")),
        "ha_transfer_batch_size": rng.choice((150, 1000, 32768)),
        "ha_transfer_flushed_only": rng.random() < 0.4,
    }
    if rng.random() < 0.5:
        replicas = rng.randrange(1, slaves + 2)
        least = rng.randrange(1, replicas + 1)
        master |= {
            "sync_rule": "in_sync_replicas", "in_sync_replicas": replicas, "min_in_sync_replicas": least,
            "enable_auto_in_sync_replicas": rng.random() < 0.4,
            "ha_max_gap_not_in_sync": rng.choice((2000, 1 << 28)),
        }
    slave = {
        **both, "broker_role": "SLAVE", "flush_disk_type": rng.choice(("ASYNC_FLUSH", "SYNC_FLUSH")),
        "ha_full_history": rng.random() < 0.5, "ha_verify_size": rng.choice((1, 300, 65536)),
    }
    mix = (
        *BARE_FAULTS, *(BARE_POWER if rng.random() < 0.5 else ()),
        *(REPLACED if rng.random() < 0.3 else ()), *(EMPTIED if rng.random() < 0.5 else ()),
    )
    options = BareOptions(
        slaves=slaves, master=master, slave=slave, put_us=rng.choice((60_000, 150_000, 400_000)),
        burst_max=rng.choice((1, 2, 8)), body_max=rng.choice((20, 200, 900)),
        pace_s=rng.choice((0.7, 1.5, 4.0)), delay_us=rng.choice((100, 1000, 10_000)),
        spread_us=rng.choice((100, 5000, 40_000)), piece_size=rng.choice((150, 1000, 65536)),
        flush_us=rng.choice((100, 1000, 20_000)), faults=faults or mix,
    )
    merged = {name: {**getattr(options, name), **value} if isinstance(value, Mapping) else value
              for name, value in settings.items()}
    return with_values(options, merged)


class _StrayClient:
    """A stranger that connects to the port and sends one message."""

    def __init__(self, says: bytes) -> None:
        self._says = says

    def connected(self, client: HAClient) -> None:
        """Send the message."""
        client.transport.write(self._says)

    def transferred(self, client: HAClient, pieces: object) -> None:
        """Ignore it."""

    def connection_lost(self, client: HAClient, reason: str) -> None:
        """Ignore it."""


class _Somebody:
    """A machine that never dies."""

    is_dying = False

    def event_ended(self) -> None:
        """Nothing to do."""


def bare_broker(bare: BareOptions, master: str) -> MakePlainBroker:
    """The master, or a slave. @param master: that it follows; empty: it is the master."""
    options = dict(bare.slave if master else bare.master)
    role, flush = str(options.pop("broker_role")), options.pop("flush_disk_type")
    return MakePlainBroker(role=role, master=master, options={**options, "flushDiskType": flush})


class ReplicatedLogs(ClientWorld):
    """
    Logs of a master and its slaves, that are watched.

    Without clients, C{bare} has the options; else it is None.
    """

    def __init__(self, seed: int, bare: BareOptions | None, *, wants_all_lines: bool = False) -> None:
        super().__init__(seed, "pair", wants_all_lines=wants_all_lines)
        self.bare = bare
        self.has_clients = bare is None
        #: The promises of the present master; None: they are not judged.
        self.logs: HAInvariants | None = None
        #: What was wrong with an answer, whose process may die in the same event.
        self._broken: AssertionError | None = None
        self._load_rng = random.Random(f"{seed} load")
        self._puts = 0
        self._old_disk: tuple[MachineDisk, dict[int, int]] | None = None
        #: By machine, the number of the last process that has opened its log.
        self._watched: dict[str, int] = {}
        if bare is not None:
            self.faults = bare.faults
            self.pace_s = bare.pace_s
            self.flush_us = bare.flush_us
            self._spread_us = self.network.spread_us = bare.spread_us
            self.network.delay_us = bare.delay_us
            self.network.piece_bytes = bare.piece_size
            self.bugs.expects = lambda error: isinstance(error, OSError | StoreError)

    def watch_logs(self, *, are_equal: bool = True) -> None:
        """
        Judge the logs of the machines from now on. Called before they start.

        @param are_equal: slaves have no bytes that their master has not.
        """
        configs = {}
        for name, machine in self.machines.items():
            assert isinstance(machine.make, MakePlainBroker)
            configs[name] = machine.make.config(machine).ha
            machine.happened = self._happened
        self.logs = HAInvariants(self.master_machine, self.slave_machines, configs, are_equal=are_equal)
        self._watched.clear()

    # -- what happens to a process ----------------------------------------------------------------

    def _happened(self, machine: BrokerMachine) -> None:
        logs, is_master = self.logs, machine.name == self._master
        if logs is None:
            return
        log = log_of(machine)
        if self.has_clients and log.begin_offset > 0:
            self.logs = None  # a full disk has deleted files
            return
        if self._watched.get(machine.name) != machine.boots:
            self._watched[machine.name] = machine.boots
            self.note(f"{machine.name} has a log from {log.begin_offset} to {log.end_offset}")
            if is_master:
                assert machine.parts is not None
                self._hook(logs, machine.parts)
                logs.master_started()
            else:
                logs.slave_started(machine)
        elif is_master:
            logs.master_event()
        else:
            logs.slave_event(machine)

    def _hook(self, logs: HAInvariants, parts: BrokerParts) -> None:
        """See the puts of a master, and the copies of records that its slaves offer."""
        assert isinstance(parts.store, CommitLogStore)
        pipeline, mending = parts.pipeline, parts.store.mending
        putting, taking = pipeline.put, mending.take

        def put(messages: Sequence[PlainMessage], *, waits: bool = True) -> Put:
            made = putting(messages, waits=waits)
            logs.master_appended()
            known = logs.put(made.placed.offsets[0], made.placed.end, self.clock.now_us / 1000, waits=waits)
            if waits:
                made.done.addCallback(answered, known)
            return made

        def answered(status: PutStatus, known: WatchedPut) -> PutStatus:
            try:
                if self.logs is logs:
                    logs.answer(known, status, self.clock.now_us / 1000)
            except AssertionError as error:
                self._broken = self._broken or error
            return status

        async def take(offset: int, record: bytes, *, source: str) -> str:
            logs.offered(offset, record)
            kept = await taking(offset, record, source=source)
            if kept:
                self.note(f"the master's record at {offset} was mended")
                logs.mended += 1
                logs.forget_mended()
            return kept

        pipeline.put = put  # type: ignore[method-assign]
        mending.take = take  # type: ignore[method-assign]

    def look_at_logs(self) -> None:
        """@raise AssertionError: an answer was wrong, or is late."""
        if self._broken is not None:
            raise self._broken
        if self.logs is not None:
            self.logs.overdue(self.clock.now_us / 1000)

    def _ends(self, machine: BrokerMachine, power: bool) -> None:
        if self.logs is None:
            return
        is_lossy = power or machine.disk.drops_writes
        if machine.name == self._master:
            self.logs.master_ends(power=is_lossy)
        else:
            self.logs.slave_ends(machine, power=is_lossy)

    def _freeze(self, machine: BrokerMachine) -> None:
        super()._freeze(machine)
        if self.logs is not None and machine.name == self._master:
            self.logs.excuse()

    def again(self, machine: BrokerMachine, seconds: float = 2.0) -> None:
        """See L{PairFaults.again}. Without clients most are back before a link notices."""
        if self.bare is None:
            super().again(machine, seconds)
        else:
            self.clock.after(int(10 ** (4 + 2.4 * self.fault_rng.random())), self._start, machine)

    # -- puts without clients ---------------------------------------------------------------------

    def begin_load(self) -> None:
        if self.bare is None:
            super().begin_load()
        else:
            self._put_often(self.bare)

    def _put_often(self, bare: BareOptions) -> None:
        if not self.is_loaded:
            return
        rng = self._load_rng
        self.clock.after(int(rng.expovariate(1 / bare.put_us)) + 1, self._put_often, bare)
        for _ in range(1 + int(rng.random() * bare.burst_max)):
            self.master_machine.call(self.put_one, rng.randbytes(1 + int(rng.random() * bare.body_max)))

    def put_one(self, body: bytes = b"") -> None:
        """Put a message at the master, if it takes one. Called within its process."""
        parts = self.master_machine.parts
        message = NewMessage(
            topic="T", queue_id=0, body=body, properties_data=b"KEYS\x01%d\x02" % self._puts, flag=0,
            sys_flag=0, born_timestamp=1 + self.clock.now_us // 1000, born_host=_HOST, store_host=_HOST,
        )
        if parts is not None and parts.store.is_ready and parts.pipeline.refusal() is None:
            with suppress(NotPut):
                parts.pipeline.put(parts.pipeline.checked([message]))
                self._puts += 1

    # -- faults of disks --------------------------------------------------------------------------

    def _replaced(self, disk: MachineDisk, flips: Mapping[int, int]) -> None:
        """The master's process ends, and comes back on another disk with these flipped bits."""
        assert self.logs is not None
        master = self.master_machine
        if master.is_up:
            self._kill(master)
        self.logs.master_replaced(flips)
        master.replace_disk(disk)

    def _empty_master(self, machine: BrokerMachine) -> None:
        self._replaced(machine.new_disk(self.fault_rng.random()), {})

    def _older_master(self, _machine: BrokerMachine) -> None:
        """The first time, the disk is copied; the next time, the copy comes back."""
        assert self.logs is not None
        old, self._old_disk = self._old_disk, None
        if old is not None:
            self._replaced(*old)
        elif self.master_machine.parts is not None:
            twin = self.master_machine.new_disk(self.fault_rng.random())
            twin._directories = self.master_machine.disk.clone()._directories
            self._old_disk = twin, dict(self.logs.flips)

    def _flip_master(self, _machine: BrokerMachine) -> None:
        """One bit of one body of the master's log flips while its process is down."""
        assert self.logs is not None
        history = bytes(self.logs.history)
        at = history.find(b"KEYS\x01", int(self.fault_rng.random() * (len(history) + 1)))
        if at < 0:
            return
        at -= 1 + 1 + 2 + 1  # the last byte of the body: the topic and the length of properties come between
        if self.master_machine.is_up:
            self._kill(self.master_machine)
        bit = int(self.fault_rng.random() * 8)
        self._flip(at, bit)
        self.logs.master_flipped(at, 1 << bit)

    def _flip(self, at: int, bit: int) -> None:
        path, disk = f"{LOG_PATH}/{at - at % LOG_FILE_BYTES:020d}", self.master_machine.disk
        if disk.exists(path):
            disk.flip_bit(path, at % LOG_FILE_BYTES, bit)

    def repair_master(self) -> bool:
        """An operator repairs the master's disk. @return: whether that was necessary."""
        if self.logs is None:
            return False
        self.logs.forget_mended()
        flips = dict(self.logs.flips)
        for at, mask in flips.items():
            for bit in range(8):
                if mask >> bit & 1:
                    self._flip(at, bit)
            self.logs.master_flipped(at, mask)
        self.logs.flips.clear()
        return bool(flips)

    def heal(self) -> None:
        super().heal()
        if self.bare is not None:
            self.repair_master()

    def _repairs(self, follower: HAFollower) -> bool:
        """The operator repairs a master that alone has a problem."""
        difference = follower.to_decide()
        if difference is None or difference.our_problem or not difference.master_problem:
            return False
        self.note("an operator repairs the master")
        self.repair_master()
        with suppress(DecisionUnderWay):
            follower.try_again()
        return True

    def _resolving(self, slave: BrokerMachine) -> None:
        if self.logs is not None:
            self.logs.resolving(slave)

    def _stray(self, _machine: BrokerMachine) -> None:
        """Somebody connects to the master, and says what a slave may not say."""
        assert self.logs is not None
        rng = self.fault_rng
        offset = rng.choice((1 << 40, len(self.logs.history), 1, 0))
        said = rng.choice((offset.to_bytes(8, "big"), b"GET / HTTP/1.1\r\n\r\n"))
        process = SimProcess(self.clock, rng, _Somebody())
        endpoint = StreamClient(
            self.network, rng.choice(("stray", self._some_slave().name)), process,
            f"{self._master}:{SLAVE_PORT}",
        )
        connect_with(endpoint, HAClient(_StrayClient(said))).addErrback(lambda _: None)

    # -- the end ----------------------------------------------------------------------------------

    def unsettled_logs(self) -> str:
        """Without clients: why the logs are not equal yet; empty if they are."""
        if self.bare is None or self.logs is None:
            return ""
        ends = [log_of(slave).end_offset for slave in self.slave_machines if slave.parts is not None]
        end = len(self.logs.history)
        if max(ends, default=0) > end or end % LOG_FILE_BYTES == 0:
            # Bytes that a slave has beyond its master stay until the master writes others there; and an empty
            # slave may wait for the next file.
            self.master_machine.call(self.put_one)
        if self.clock.now_us < QUIET_US:
            return "a master may still take its disk for full"
        return "" if self.logs.is_settled() else self.logs.why_not_settled()

    def judge_logs(self) -> None:
        """H1 to H7, in the end."""
        self.look_at_logs()
        if self.bare is not None and self.logs is not None:
            self.logs.judge()
