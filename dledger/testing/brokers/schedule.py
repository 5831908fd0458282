# -*- test-case-name: tests.sim.test_ha -*-
"""
One seed, one schedule of master/slave replication: a master, its slaves, puts, faults, and the verdict::

    python -m dledger.testing.brokers --logs --schedules 1000 --seed 1 --jobs 2

The same seed gives the same run.
"""

from __future__ import annotations

import random
import traceback
from collections.abc import Mapping
from contextlib import suppress
from zlib import crc32

import attrs
from twisted.python.failure import Failure

from dledger.base.serving.endpoints import connect_with
from dledger.rocketmq.broker.producing.puts import NotPut
from dledger.rocketmq.replication.put_status import PutStatus
from dledger.rocketmq.replication.slave import DecisionUnderWay, HAFollower
from dledger.rocketmq.store.records.records import NewMessage
from dledger.testing.brokers.invariants import HAInvariants
from dledger.testing.brokers.member import FILE_SIZE, LOG_PATH, SimBroker, copied_disk
from dledger.testing.brokers.pair_faults import NAMES, PairFaults
from dledger.testing.brokers.parts.machine import SLAVE_PORT, BrokerMachine, BrokerWorld
from dledger.testing.brokers.parts.stray import Somebody, StrayClient
from dledger.testing.world.host import MachineDisk
from dledger.testing.world.process import SimProcess
from dledger.testing.world.streams import StreamClient
from dledger.values.errors import StoreError
from dledger.values.option_values import with_values
from protocols.rocketmq.ha import HAClient
from protocols.wire.rocketmq.message import Host

MASTER = NAMES[0]
SECONDS = 12.0
SETTLE_S = 60.0

_HOST = Host(address=bytes((127, 0, 0, 1)), port=10911)

#: Faults, and the faults of the power supply.
HA_PORT = f"{MASTER}:{SLAVE_PORT}"
FAULTS = (
    "kill_master", "kill_slave", "kill_in_write", "stop", "break", "cut_brokers", "darken", "half_open",
    "fill_disk", "disk_error", "stray", "slow_disk", "slow_links",
)
POWER = ("power_slave", "power_master", "lose_power_in_write")
#: Faults of the master's disk, which H3 and H7 exclude.
REPLACED = ("empty_master", "older_master", "flip_master")
#: A slave loses its disk, and comes back with an empty one.
EMPTIED = ("empty_slave", "empty_slave")


@attrs.frozen(kw_only=True)
class HAFocus:
    """
    Schedules that test one aspect.

    @ivar settings: fields of L{HAOptions} that the seed does not choose; C{master} and C{slave} are merged.
    @ivar faults: names of the only faults that happen; empty for the seed's own mix.
    @ivar pace_s: mean seconds between faults; 0 for the seed's own.
    """

    settings: Mapping[str, object] = attrs.Factory(dict)
    faults: tuple[str, ...] = ()
    pace_s: float = 0.0


@attrs.frozen(kw_only=True)
class HAOptions:
    """
    The options that the seed gives a master and its slaves.

    @ivar master, slave: fields of L{HAConfig}.
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


@attrs.frozen(kw_only=True)
class HAOutcome:
    """The end of a schedule; C{failure} is empty if it passed."""

    seed: int
    failure: str
    lines: tuple[str, ...]
    digest: int
    puts: int
    acknowledged: int
    restarts: int
    truncations: int
    resolved: int = 0
    mended: int = 0


def drawn_options(seed: int, focus: HAFocus) -> HAOptions:
    """The seed's options, overridden by those of the focus."""
    rng = random.Random(f"{seed} ha")
    slaves = rng.choice((1, 1, 2, 2, 3))
    both = {"ha_flush_interval": rng.choice((50, 200, 500))}
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
    has_power = rng.random() < 0.5
    usual: tuple[str, ...] = FAULTS + POWER if has_power else FAULTS
    if rng.random() < 0.3:
        usual += REPLACED
    if random.Random(f"{seed} empty slaves").random() < 0.5:
        usual += EMPTIED
    faults: tuple[str, ...] = focus.faults or usual
    options = HAOptions(
        slaves=slaves, master=master, slave=slave, put_us=rng.choice((60_000, 150_000, 400_000)),
        burst_max=rng.choice((1, 2, 8)), body_max=rng.choice((20, 200, 900)),
        pace_s=focus.pace_s or rng.choice((0.7, 1.5, 4.0)), delay_us=rng.choice((100, 1000, 10_000)),
        spread_us=rng.choice((100, 5000, 40_000)), piece_size=rng.choice((150, 1000, 65536)),
        flush_us=rng.choice((100, 1000, 20_000)), faults=faults,
    )
    settings = dict(focus.settings)
    of_master, of_slaves = settings.pop("master", {}), settings.pop("slave", {})
    assert isinstance(of_master, dict) and isinstance(of_slaves, dict)
    options = attrs.evolve(
        options, master={**options.master, **of_master}, slave={**options.slave, **of_slaves},
    )
    return with_values(options, settings)


class HAWorld(PairFaults):
    """One run."""

    targets = {
        "kill_master": ("kill", "master"), "kill_slave": ("kill", "slave"),
        "power_master": ("lose_power", "master"), "power_slave": ("lose_power", "slave"),
    }

    def __init__(self, seed: int, options: HAOptions, *, wants_all_lines: bool = False) -> None:
        self.options = options
        super().__init__(seed, wants_all_lines=wants_all_lines)
        self.faults = options.faults
        self.pace_s = options.pace_s
        self.flush_us = options.flush_us
        self.puts = 0
        self._seed = seed
        self._rng = random.Random(f"{seed} world")
        self._load_rng = random.Random(f"{seed} load")
        self._spread_us = self.network.spread_us = options.spread_us
        self.network.delay_us = options.delay_us
        self.network.piece_bytes = options.piece_size
        self.bugs.expects = lambda error: isinstance(error, OSError | StoreError)
        self._surroundings = BrokerWorld(
            clock=self.clock, network=self.network, bugs=self.bugs, is_sync=True
        )
        self.master = self._broker(MASTER, options.master)
        self.slaves = [
            self._broker(f"10.0.0.{2 + number}", options.slave) for number in range(options.slaves)
        ]
        self.machines |= {one.name: one for one in (self.master, *self.slaves)}
        self.invariants = HAInvariants(self.master, self.slaves)
        self._old_disk: tuple[MachineDisk, dict[int, int]] | None = None

    def _broker(self, host: str, config: Mapping[str, object]) -> SimBroker:
        broker = SimBroker(
            self._surroundings, host, random.Random(f"{self._seed} {host}"), options=config, master=MASTER,
            note=self.note,
        )
        broker.flush_us = self.options.flush_us
        broker.ends = self._ends
        broker.happened = self._happened
        broker.opened = self._opened
        broker.ended = self._ended
        return broker

    def _happened(self, broker: SimBroker) -> None:
        if broker is self.master:
            self.invariants.master_event()
        else:
            self.invariants.slave_event(broker)

    # -- life -----------------------------------------------------------------------------------

    def _opened(self, broker: SimBroker) -> None:
        if broker is self.master:
            taken = broker.store.mending
            taking = taken.take

            async def take(offset: int, record: bytes, *, source: str) -> str:
                self.invariants.offered(offset, record)
                kept = await taking(offset, record, source=source)
                if kept:
                    self.note(f"the master's record at {offset} was mended")
                    self.invariants.mended += 1
                    self.invariants.forget_mended()
                return kept

            taken.take = take  # type: ignore[method-assign]
            self.invariants.master_started()
            if self.is_loaded:
                self.clock.after(self._next_put_us(), self._put, broker.life)
        else:
            self.invariants.slave_started(broker)

    def _ended(self, broker: SimBroker, has_given_up: bool) -> None:
        if has_given_up:  # it could not sync: unsynced bytes are lost, as after a power cut
            self._ends(broker, True)
        self.again(broker)

    def again(self, machine: BrokerMachine, seconds: float = 2.0) -> None:
        """Most are back before a link notices."""
        self.clock.after(int(10 ** (4 + 2.4 * self.fault_rng.random())), self._start, machine)

    def _ends(self, broker: BrokerMachine, power: bool) -> None:
        if broker is self.master:
            self.invariants.master_ends(power=power)
        else:
            assert isinstance(broker, SimBroker)
            self.invariants.slave_ends(broker, power=power)

    # -- load -----------------------------------------------------------------------------------

    def _next_put_us(self) -> int:
        return int(self._load_rng.expovariate(1 / self.options.put_us)) + 1

    def _put(self, life: int) -> None:
        master = self.master
        if life != master.life or not self.is_loaded:
            return
        self.clock.after(self._next_put_us(), self._put, life)
        for _ in range(1 + int(self._load_rng.random() * self.options.burst_max)):
            if master.is_open:
                master.call(self._put_one)

    def _put_one(self) -> None:
        master = self.master
        body = self._load_rng.randbytes(1 + int(self._load_rng.random() * self.options.body_max))
        message = NewMessage(
            topic="T", queue_id=0, body=body, properties_data=b"KEYS\x01%d\x02" % self.puts, flag=0,
            sys_flag=0, born_timestamp=1 + self.clock.now_us // 1000, born_host=_HOST, store_host=_HOST,
        )
        parts = master.parts
        if parts is None or not parts.store.is_ready or parts.pipeline.refusal() is not None:
            return
        try:
            stored = parts.pipeline.put(parts.pipeline.checked([message]))
        except NotPut:
            return
        self.puts += 1
        self.invariants.master_appended()
        put = self.invariants.put(stored.placed.offsets[0], stored.placed.end, self.clock.now_us / 1000)

        def answered(status: PutStatus) -> None:
            self.digest = crc32(b"%d %d" % (put.start, status.remoting_code), self.digest)
            self.invariants.answer(put, status, self.clock.now_us / 1000)

        def wrong(failure: Failure) -> None:
            self.broken = self.broken or failure.value

        stored.done.addCallback(answered).addErrback(wrong)

    broken: BaseException | None = None

    # -- faults ---------------------------------------------------------------------------------

    def _replaced(self, disk: MachineDisk, flips: Mapping[int, int]) -> None:
        """The master's process ends, and comes back on another disk with these flipped bits."""
        if self.master.is_up:
            self._kill(self.master)
        self.invariants.master_replaced(flips)
        self.master.replace_disk(disk)

    def _empty_master(self, _machine: BrokerMachine) -> None:
        self._replaced(MachineDisk(random.Random(self.fault_rng.random())), {})

    def _empty_slave(self, _machine: BrokerMachine) -> None:
        slave = self._some_slave()
        assert isinstance(slave, SimBroker)
        if slave.is_up and self.fault_rng.random() < 0.5:
            slave.lose_power()  # its master does not hear of it
        else:
            slave.kill()
        self.invariants.slave_replaced(slave)
        slave.replace_disk(MachineDisk(random.Random(self.fault_rng.random())))
        self.again(slave)

    def _older_master(self, _machine: BrokerMachine) -> None:
        """The first time, the disk is copied; the next time, the copy comes back."""
        old, self._old_disk = self._old_disk, None
        if old is not None:
            self._replaced(*old)
        elif self.master.is_open:
            disk = copied_disk(self.master.disk, random.Random(self.fault_rng.random()))
            self._old_disk = disk, dict(self.invariants.flips)

    def _flip_master(self, _machine: BrokerMachine) -> None:
        """One bit of one body of the master's log flips while its process is down."""
        history = bytes(self.invariants.history)
        at = history.find(b"KEYS\x01", int(self.fault_rng.random() * (len(history) + 1)))
        if at < 0:
            return
        at -= 1 + 1 + 2 + 1  # the last byte of the body: the topic and the length of properties come between
        if self.master.is_up:
            self._kill(self.master)
        bit = int(self.fault_rng.random() * 8)
        self._flip(at, bit)
        self.invariants.master_flipped(at, 1 << bit)

    def _flip(self, at: int, bit: int) -> None:
        path = f"{LOG_PATH}/{at - at % FILE_SIZE:020d}"
        if self.master.disk.exists(path):
            self.master.disk.flip_bit(path, at % FILE_SIZE, bit)

    def _repair_master(self) -> None:
        """An operator repairs the master's disk."""
        self.invariants.forget_mended()
        for at, mask in list(self.invariants.flips.items()):
            for bit in range(8):
                if mask >> bit & 1:
                    self._flip(at, bit)
            self.invariants.master_flipped(at, mask)
        self.invariants.flips.clear()

    def _repairs(self, follower: HAFollower) -> bool:
        """The operator repairs a master that alone has a problem."""
        difference = follower.to_decide()
        if difference is None or difference.our_problem or not difference.master_problem:
            return False
        self.note("an operator repairs the master")
        self._repair_master()
        with suppress(DecisionUnderWay):
            follower.try_again()
        return True

    def _resolving(self, slave: BrokerMachine) -> None:
        assert isinstance(slave, SimBroker)
        self.invariants.resolving(slave)

    def _stray(self, _machine: BrokerMachine) -> None:
        offset = self.fault_rng.choice((1 << 40, len(self.invariants.history), 1, 0))
        said = self.fault_rng.choice((offset.to_bytes(8, "big"), b"GET / HTTP/1.1\r\n\r\n"))
        host = self.fault_rng.choice(("stray", self._some_slave().name))
        process = SimProcess(self.clock, self.fault_rng, Somebody())
        endpoint = StreamClient(self.network, host, process, HA_PORT)
        connect_with(endpoint, HAClient(StrayClient(said))).addErrback(lambda _: None)

    # -- a run ----------------------------------------------------------------------------------

    def run(self, seconds: float) -> None:
        """Run with faults for C{seconds}, then without, then judge."""
        with self.bugs.listening():
            self._run(seconds)

    def _run(self, seconds: float) -> None:
        for broker in (self.master, *self.slaves):
            self.clock.after(int(self._rng.random() * 500_000), broker.start)
        self.harm_later()
        self._run_until(seconds)
        self.heal()
        self._repair_master()
        end_s = seconds + SETTLE_S
        while not self.invariants.is_settled() and self.clock.now_us < end_s * 1e6:
            self._run_until(self.clock.now_us / 1e6 + 1)
            ends = [slave.log.end_offset for slave in self.slaves if slave.is_open]
            if max(ends, default=0) > len(self.invariants.history):
                # Bytes that a slave has beyond its master stay until the master writes others there.
                self.master.call(self._put_one)
        self._run_until(self.clock.now_us / 1e6 + 3)
        self.invariants.overdue(self.clock.now_us / 1000, self.master.life)
        self.invariants.judge()

    def _run_until(self, end_s: float) -> None:
        while self.clock.now_us < end_s * 1e6:
            self.clock.run_until(min(self.clock.now_us + 250_000, int(end_s * 1e6)))
            if self.broken is not None:
                raise self.broken
            self.look_after()
            if self.master.is_open:
                self.invariants.overdue(self.clock.now_us / 1000, self.master.life)


def run_ha_schedule(
    seed: int, *, seconds: float = SECONDS, focus: HAFocus | None = None, wants_all_lines: bool = False
) -> HAOutcome:
    """Run one seed to its verdict. Never raises for a failed check."""
    world = HAWorld(seed, drawn_options(seed, focus or HAFocus()), wants_all_lines=wants_all_lines)
    failure = ""
    try:
        world.run(seconds)
    except AssertionError as error:
        failure = str(error) or "".join(traceback.format_exception(error)[-4:])
    except Exception as error:  # any other exception of a simulated broker is a bug as well
        failure = "".join(traceback.format_exception(error))
    brokers = (world.master, *world.slaves)
    return HAOutcome(
        seed=seed, failure=failure, lines=tuple(world.lines) if failure or wants_all_lines else (),
        digest=world.digest, resolved=world.resolved, mended=world.invariants.mended, puts=world.puts,
        acknowledged=world.invariants.answered[PutStatus.PUT_OK],
        restarts=sum(broker.boots - 1 for broker in brokers),
        truncations=sum(
            slave.service.slave.follower.truncations for slave in world.slaves
            if slave.boots and slave.service.slave is not None
        ),
    )
