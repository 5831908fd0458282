# -*- test-case-name: tests.sim.test_ha -*-
"""
One seed, one schedule of master/slave replication: a master, its slaves, puts, faults, and the verdict::

    python -m dledger.testing.brokers.runner --schedules 1000 --seed 1 --jobs 2

The same seed gives the same run.
"""

from __future__ import annotations

import random
import traceback
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from zlib import crc32

import attrs
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from dledger.base.serving.endpoints import connect_with
from dledger.rocketmq.broker.ha.config import HAConfig
from dledger.rocketmq.broker.ha.put_status import PutStatus
from dledger.rocketmq.broker.ha.slave import DecisionUnderWay, HAFollower, LogRange
from dledger.rocketmq.broker.store.records.records import NewMessage
from dledger.rocketmq.broker.store.records.store_config import StoreConfig
from dledger.testing.brokers.desk import SimDesk
from dledger.testing.brokers.invariants import HAInvariants
from dledger.testing.brokers.member import FILE_SIZE, ROOT, HADisk, SimBroker
from dledger.testing.world.clock import SimClock
from dledger.testing.world.disk import MemberDied, PowerLoss, ProcessKilled
from dledger.testing.world.process import SimProcess
from dledger.testing.world.streams import ByteNetwork, StreamClient
from dledger.values.errors import DLedgerError, StoreError
from dledger.values.option_values import made_of, with_values
from protocols.rocketmq.ha import HAClient
from protocols.wire.rocketmq.message import Host

MASTER = "m"
KEPT_LINES = 30
SECONDS = 12.0
SETTLE_S = 60.0

_HOST = Host(address=bytes((127, 0, 0, 1)), port=10911)

#: Faults, and the faults of the power supply.
FAULTS = (
    "kill_master", "kill_slave", "kill_inside", "break", "cut", "darken", "half_open", "fill_disk",
    "disk_error", "stray", "slow_disk", "slow_link",
)
POWER = ("power_slave", "power_master", "power_inside")
#: Faults of the master's disk, which H3 and H7 exclude.
REPLACED = ("empty_master", "older_master", "flip_master")
#: An operator notices stopped replication after this time, in microseconds.
NOTICED_US = 1_500_000


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
    both = {
        "ha_send_heartbeat_interval": 500, "ha_housekeeping_interval": 2500, "slave_timeout": 1500,
        "sync_flush_timeout": 2500, "ha_flush_interval": rng.choice((50, 200, 500)), "ha_reconnect_min": 50,
        "ha_reconnect_max": 1000,
    }
    master: dict[str, object] = {
        **both, "broker_role": rng.choice(("SYNC_MASTER", "SYNC_MASTER", "SYNC_MASTER", "ASYNC_MASTER")),
        "flush_disk_type": rng.choice(("ASYNC_FLUSH", "SYNC_FLUSH")),
        "ha_transfer_batch_size": rng.choice((150, 1000, 32768)),
        "ha_transfer_flushed_only": rng.random() < 0.4, "ha_allowed_hosts": ("*",),
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


class _Stray:
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


class HAWorld:
    """One run."""

    def __init__(self, seed: int, options: HAOptions, *, wants_all_lines: bool = False) -> None:
        self.options = options
        self.clock = SimClock()
        self.lines: deque[str] = deque(maxlen=None if wants_all_lines else KEPT_LINES)
        self.digest = 0
        self.puts = 0
        self._seed = seed
        self._rng = random.Random(f"{seed} world")
        self._load_rng = random.Random(f"{seed} load")
        self._fault_rng = random.Random(f"{seed} faults")
        self._is_over = False
        network = self.network = ByteNetwork(self.clock, random.Random(f"{seed} network"))
        network.delay_us = options.delay_us
        network.spread_us = options.spread_us
        network.piece_bytes = options.piece_size
        self.store = StoreConfig(
            store_path_root_dir=ROOT, mapped_file_size_commit_log=FILE_SIZE, message_index_enable=False
        )
        self.master = self._broker(MASTER, options.master)
        self.slaves = [self._broker(f"s{number}", options.slave) for number in range(options.slaves)]
        self.invariants = HAInvariants(self.master, self.slaves)
        for slave in self.slaves:
            slave.desk = SimDesk(self.clock, self.master, slave, self.invariants, note=self.note)
        self.resolved = 0
        self._old_disk: tuple[HADisk, dict[int, int]] | None = None
        self._noticed: set[str] = set()

    def _broker(self, host: str, config: Mapping[str, object]) -> SimBroker:
        broker = SimBroker(
            host=host, config=made_of(HAConfig, config), store=self.store, clock=self.clock,
            network=self.network, rng=random.Random(f"{self._seed} {host}"), master=MASTER, note=self.note,
        )
        broker.flush_us = self.options.flush_us
        broker.happened = self._happened
        broker.ended = self._ended
        broker.master_range = self._master_range
        return broker

    def _master_range(self) -> LogRange:
        log = self.master.log if self.master.is_open else None
        if log is None:
            return LogRange()
        return LogRange(begin_offset=log.begin_offset, end_offset=log.end_offset)

    def note(self, text: str) -> None:
        """Add a line to the trace, and to the digest."""
        self.digest = crc32(f"{self.clock.now_us} {text}".encode(), self.digest)
        self.lines.append(f"{self.clock.now_us / 1e6:11.6f} {text}")

    def _happened(self, broker: SimBroker) -> None:
        if broker is self.master:
            self.invariants.master_event()
        else:
            self.invariants.slave_event(broker)

    # -- life -----------------------------------------------------------------------------------

    def start(self, broker: SimBroker) -> None:
        """Start a process, unless one runs."""
        if broker.is_up:
            return
        broker.happened = lambda _: None  # not before the checks have seen its start
        broker.start()
        broker.happened = self._happened
        if not broker.is_open:
            return
        if broker is self.master:
            self.invariants.master_started()
            if not self._is_over:
                self.clock.after(self._next_put_us(), self._put, broker.life)
        else:
            self.invariants.slave_started(broker)

    def _ended(self, broker: SimBroker) -> None:
        # A broker that stopped itself could not sync: unsynced bytes are lost, as after a power cut.
        self._tell_end(broker, power=not isinstance(broker.disk.death, ProcessKilled))
        self._restart_later(broker)

    def _tell_end(self, broker: SimBroker, *, power: bool) -> None:
        if broker is self.master:
            self.invariants.master_ends(power=power)
        else:
            self.invariants.slave_ends(broker, power=power)

    def _restart_later(self, broker: SimBroker) -> None:
        self.clock.after(int(10 ** (4 + 2.4 * self._fault_rng.random())), self.start, broker)

    # -- load -----------------------------------------------------------------------------------

    def _next_put_us(self) -> int:
        return int(self._load_rng.expovariate(1 / self.options.put_us)) + 1

    def _put(self, life: int) -> None:
        master = self.master
        if life != master.life or self._is_over:
            return
        self.clock.after(self._next_put_us(), self._put, life)
        for _ in range(1 + int(self._load_rng.random() * self.options.burst_max)):
            if master.refusal() is None:
                master.run(life, self._put_one)

    def _put_one(self) -> None:
        master = self.master
        self.puts += 1
        body = self._load_rng.randbytes(1 + int(self._load_rng.random() * self.options.body_max))
        message = NewMessage(
            topic="T", queue_id=0, body=body, properties_data=b"KEYS\x01%d" % self.puts, flag=0, sys_flag=0,
            born_timestamp=1 + self.clock.now_us // 1000, born_host=_HOST, store_host=_HOST,
        )
        try:
            stored = master.log.append([[message]], 1 + self.clock.now_us // 1000)
        except StoreError as error:
            master.fail(f"cannot append: {error}")
            return
        except DLedgerError:
            return  # no room: the log has not changed
        self.invariants.master_appended()
        put = self.invariants.put(stored.offsets[0], stored.end, self.clock.now_us / 1000)

        def answered(status: PutStatus) -> None:
            self.digest = crc32(b"%d %d" % (put.start, status.remoting_code), self.digest)
            self.invariants.answer(put, status, self.clock.now_us / 1000)

        def wrong(failure: Failure) -> None:
            self.broken = self.broken or failure.value

        master.service.submit(put.end).addCallback(answered).addErrback(wrong)

    broken: BaseException | None = None

    # -- faults ---------------------------------------------------------------------------------

    def fault_later(self) -> None:
        """Schedule the next fault."""
        self.clock.after(int(self._fault_rng.expovariate(1 / self.options.pace_s) * 1e6), self._fault)

    def _fault(self) -> None:
        if self._is_over:
            return
        self.fault_later()
        name = self._fault_rng.choice(self.options.faults)
        self.note(f"fault {name}")
        getattr(self, "_" + name)()

    def _someone(self) -> SimBroker:
        return self._fault_rng.choice([self.master, *self.slaves])

    def _some_slave(self) -> SimBroker:
        return self._fault_rng.choice(self.slaves)

    def _end(self, broker: SimBroker, *, power: bool) -> None:
        if not broker.is_up:
            return
        self._tell_end(broker, power=power)
        if power:
            broker.lose_power()
        else:
            broker.kill()
        self._restart_later(broker)

    def _kill_master(self) -> None:
        self._end(self.master, power=False)

    def _kill_slave(self) -> None:
        self._end(self._some_slave(), power=False)

    def _power_master(self) -> None:
        self._end(self.master, power=True)

    def _power_slave(self) -> None:
        self._end(self._some_slave(), power=True)

    def _kill_inside(self) -> None:
        self._someone().disk.arm(die_in=1 + int(self._fault_rng.random() * 20), death=ProcessKilled)

    def _power_inside(self) -> None:
        self._someone().disk.arm(die_in=1 + int(self._fault_rng.random() * 20), death=PowerLoss)

    def _break(self) -> None:
        self.network.break_between(self._some_slave().host, MASTER, late_us=2_000_000)

    def _darken(self) -> None:
        self.network.darken(self._some_slave().host, MASTER)

    def _half_open(self) -> None:
        self.network.half_open(self._some_slave().host, MASTER)

    def _cut(self) -> None:
        host = self._some_slave().host
        there, back = self._fault_rng.choice(((True, False), (False, True), (True, True)))
        if there:
            self.network.cut(host, MASTER)
        if back:
            self.network.cut(MASTER, host)
        self.clock.after(int(self._fault_rng.random() * 5e6), self.network.heal_all)

    def _fill_disk(self) -> None:
        disk = self._someone().disk
        disk.set_full(True)
        self.clock.after(int(self._fault_rng.random() * 3e6), disk.set_full, False)

    def _disk_error(self) -> None:
        disk = self._someone().disk
        if self._fault_rng.random() < 0.5:
            disk.arm(syncs=1)
        else:
            disk.arm(writes=1)

    def _slow_disk(self) -> None:
        broker = self._someone()
        broker.slow_disk(3_000_000)
        self.clock.after(int(self._fault_rng.random() * 4e6), broker.slow_disk, self.options.flush_us)

    def _slow_link(self) -> None:
        self.network.spread_us = 400_000
        self.clock.after(int(self._fault_rng.random() * 3e6), setattr, self.network, "spread_us",
                         self.options.spread_us)

    def _replaced(self, disk: HADisk, flips: Mapping[int, int]) -> None:
        """The master's process ends, and comes back on another disk with these flipped bits."""
        if self.master.is_up:
            self._tell_end(self.master, power=False)
            self.master.kill()
            self._restart_later(self.master)
        self.invariants.master_replaced(flips)
        self.master.replace_disk(disk)

    def _empty_master(self) -> None:
        self._replaced(HADisk(random.Random(self._fault_rng.random())), {})

    def _older_master(self) -> None:
        """The first time, the disk is copied; the next time, the copy comes back."""
        old, self._old_disk = self._old_disk, None
        if old is not None:
            self._replaced(*old)
        elif self.master.is_open:
            disk = self.master.disk.copied(random.Random(self._fault_rng.random()))
            self._old_disk = disk, dict(self.invariants.flips)

    def _flip_master(self) -> None:
        """One bit of one body of the master's log flips while its process is down."""
        history = bytes(self.invariants.history)
        at = history.find(b"KEYS\x01", int(self._fault_rng.random() * (len(history) + 1)))
        if at < 0:
            return
        at -= 1 + 1 + 2 + 1  # the last byte of the body: the topic and the length of properties come between
        if self.master.is_up:
            self._end(self.master, power=False)
        bit = int(self._fault_rng.random() * 8)
        self._flip(at, bit)
        self.invariants.master_flipped(at, 1 << bit)

    def _flip(self, at: int, bit: int) -> None:
        path = f"{ROOT}/commitlog/{at - at % FILE_SIZE:020d}"
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

    # -- an operator ----------------------------------------------------------------------------

    def _look_after(self) -> None:
        """Slaves whose replication has stopped are noticed, after a while."""
        for slave in self.slaves:
            follower = slave.service.slave if slave.is_open else None
            if follower is None or slave.host in self._noticed:
                continue
            # A master without bytes that its slave holds may get them back: wait until the faults are over.
            if follower.is_stopped or (self._is_over and follower.to_decide() is not None):
                self._noticed.add(slave.host)
                self.clock.after(NOTICED_US, self._resolve, slave)

    def _resolve(self, slave: SimBroker) -> None:
        self._noticed.discard(slave.host)
        follower = slave.service.slave if slave.is_open else None
        if follower is not None and follower.to_decide() is not None:
            self.resolved += 1
            difference = follower.to_decide()
            if difference is not None and difference.master_problem and not difference.our_problem:
                self.note("an operator repairs the master")
                self._repair_master()
                slave.run(slave.life, self._try_again, follower)
                return
            self.note(f"an operator lets {slave.host} take the master's log")
            self.invariants.resolving(slave)
            slave.run(slave.life, self._take_master, follower)

    def _try_again(self, follower: HAFollower) -> None:
        with suppress(DecisionUnderWay):
            follower.try_again()

    def _take_master(self, follower: HAFollower) -> None:
        def not_taken(failure: Failure) -> None:
            # The process is dead, the disk has no room, or the operator is hasty: there is another time.
            if not isinstance(failure.value, MemberDied):
                failure.trap(OSError, DLedgerError, DecisionUnderWay)

        Deferred.fromCoroutine(follower.take_master()).addErrback(not_taken)

    def _stray(self) -> None:
        offset = self._fault_rng.choice((1 << 40, len(self.invariants.history), 1, 0))
        said = self._fault_rng.choice((offset.to_bytes(8, "big"), b"GET / HTTP/1.1\r\n\r\n"))
        host = self._fault_rng.choice(("stray", self._some_slave().host))
        process = SimProcess(self.clock, self._fault_rng, _Somebody())
        endpoint = StreamClient(self.network, host, process, MASTER)
        connect_with(endpoint, HAClient(_Stray(said))).addErrback(lambda _: None)

    # -- a run ----------------------------------------------------------------------------------

    def run(self, seconds: float) -> None:
        """Run with faults for C{seconds}, then without, then judge."""
        for broker in (self.master, *self.slaves):
            self.clock.after(int(self._rng.random() * 500_000), self.start, broker)
        self.fault_later()
        self._run_until(seconds)
        self.note("the faults are over")
        self._is_over = True
        self.network.heal_all()
        self.network.spread_us = self.options.spread_us
        self._repair_master()
        for broker in (self.master, *self.slaves):
            broker.disk.disarm()
            broker.disk.new_process()
            broker.slow_disk(self.options.flush_us)
            self.clock.after(1_000_000, self.start, broker)
        end_s = seconds + SETTLE_S
        while not self.invariants.is_settled() and self.clock.now_us < end_s * 1e6:
            self._run_until(self.clock.now_us / 1e6 + 1)
            ends = [slave.log.end_offset for slave in self.slaves if slave.is_open]
            if self.master.refusal() is None and max(ends, default=0) > len(self.invariants.history):
                # Bytes that a slave has beyond its master stay until the master writes others there.
                self.master.run(self.master.life, self._put_one)
        self._run_until(self.clock.now_us / 1e6 + 3)
        self.invariants.overdue(self.clock.now_us / 1000, self.master.life)
        self.invariants.judge()

    def _run_until(self, end_s: float) -> None:
        while self.clock.now_us < end_s * 1e6:
            self.clock.run_until(min(self.clock.now_us + 250_000, int(end_s * 1e6)))
            if self.broken is not None:
                raise self.broken
            self._look_after()
            if self.master.is_open:
                self.invariants.overdue(self.clock.now_us / 1000, self.master.life)


class _Somebody:
    """A machine that never dies."""

    is_dying = False

    def event_ended(self) -> None:
        """Nothing to do."""


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
