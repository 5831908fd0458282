# -*- test-case-name: tests.sim.test_pairs -*-
"""
One schedule of a whole master and its slaves: clients send, pull, pop, end transactions and administrate,
while machines fail and roles change; then the promises B1 to B18, B21 to B25, B27 and B28 are judged::

    python -m dledger.testing.brokers --schedules 100 --seed 1

Half of the seeds have no clients, and more faults of disks: L{dledger.testing.brokers.replicated_logs}, which
has H1 to H8.

B11. A message that a SYNC_MASTER answers with success is in the log of a slave.
B12. A message that was answered with success is in the log of the next master, if it was at a slave, and in
that of its own master after a loss of power. (The slave with the longest log becomes the next master.)
B13. A broker ends by itself only if its disk fails.
B14. When all is over a message is taken, and a SYNC_MASTER answers it with success.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping
from functools import partial

import attrs
from twisted.internet.defer import Deferred

from dledger.rocketmq.broker.admin.ha_resolve import RESOLVE_HA
from dledger.rocketmq.broker.parts import BrokerParts
from dledger.rocketmq.broker.replication import HAReplication
from dledger.rocketmq.replication.put_status import PutStatus
from dledger.rocketmq.replication.slave import HAFollower
from dledger.testing.brokers.admin_traffic import KEPT, REMADE
from dledger.testing.brokers.asked_traffic import why_unsettled
from dledger.testing.brokers.client_world import (
    ClientsOutcome,
    clients_of,
    clients_outcome,
    draws,
)
from dledger.testing.brokers.group_traffic import POPPED_TOPIC
from dledger.testing.brokers.pair_faults import (
    BAD_LOGS,
    FAULTS,
    LOSSES,
    NAMES,
    POWER,
    READS,
    RETENTION,
    ROLES,
    SECOND_US,
    stop_without_index,
)
from dledger.testing.brokers.pairs import MakePlainBroker, follower_of
from dledger.testing.brokers.replicated_logs import ReplicatedLogs, bare_broker, bare_options
from dledger.testing.brokers.rig.accounts import UNSURE, ProducedMessage, TrafficRecord, require_pair
from dledger.testing.brokers.rig.machine import CLIENT_PORT, LARGE_FILE, BrokerMachine, BrokerWorld
from dledger.testing.brokers.rig.states import (
    OffsetKey,
    OffsetWatch,
    check_ahead,
    check_by_key,
    check_queues,
    log_difference,
    metadata_difference,
    records_of,
)
from dledger.testing.brokers.traffic import STORED
from dledger.testing.world.platter import PAGE_BYTES

#: They are deleted, and made again.
REMADE_TOPICS = frozenset({REMADE, POPPED_TOPIC})


@attrs.frozen(kw_only=True)
class PairFocus:
    """
    Schedules that test one aspect.

    @ivar faults: the only ones that happen; empty for the seed's own mix.
    @ivar role: of the master; empty for the seed's own.
    @ivar slaves: their number; 0 for the seed's own.
    @ivar ages: files become old enough to expire, also if the seed does not draw that.
    @ivar groups: the stories of L{dledger.testing.brokers.group_traffic} are played, too.
    @ivar bare: there are no clients, also if the seed does not draw that.
    @ivar settings: then, what the seed does not choose; see L{bare_options}.
    """

    faults: tuple[str, ...] = ()
    role: str = ""
    pace_s: float = 0.0
    slaves: int = 0
    ages: bool = False
    groups: bool = False
    bare: bool = False
    settings: Mapping[str, object] = attrs.Factory(dict)


@attrs.frozen(kw_only=True)
class PairOutcome(ClientsOutcome):
    """
    The end of a schedule.

    @ivar ages: files grew old. @ivar bare: there were no clients.
    @ivar promotions: number of slaves that became masters.
    @ivar resolved: number of decisions of the operator.
    @ivar puts: number of puts at the masters that waited and were answered with success.
    @ivar mended: number of damaged records of masters that were replaced by copies of slaves.
    """

    ages: bool
    bare: bool = False
    puts: int = 0
    mended: int = 0
    promotions: int = 0
    resolved: int = 0


class PairWorld(ReplicatedLogs):
    """A master, its slaves, and their clients."""

    has_copies = True

    def __init__(self, seed: int, focus: PairFocus, *, wants_all_lines: bool = False) -> None:
        is_bare = focus.bare or (focus == PairFocus() and random.Random(f"{seed} no clients").random() < 0.5)
        bare = bare_options(seed, focus.settings, focus.faults) if is_bare else None
        super().__init__(seed, bare, wants_all_lines=wants_all_lines)
        rng = self.fault_rng
        slaves = self._draw(focus)
        world = BrokerWorld(
            clock=self.clock, network=self.network, bugs=self.bugs, is_sync=self._is_sync,
        )
        self.machines |= {
            name: BrokerMachine(world, name, random.Random(f"{seed} {name}"), self._make(name, NAMES[0]))
            for name in NAMES[: 1 + slaves]
        }
        for machine in self.machines.values():
            machine.ends = self._ends
            machine.flush_us = self.flush_us
        #: Files that grow old, or are lost, and pages that cannot be read, are for other checks.
        if not (self.ages or {*READS, *LOSSES, *BAD_LOGS} & set(self.faults)):
            self.watch_logs()
        self.watch = OffsetWatch(lambda: self.clock.now_us)
        self.traffic = clients_of(self, self, put_s=rng.choice((0.06, 0.15, 0.4)), has_groups=focus.groups)
        self.promotions = 0
        #: Slaves that have had all that this master had when the slave, or the master, began.
        self._followed: set[str] = set()
        #: By machine: the end of its log when its last process ended, those that lost power or writes since,
        #: and the number of the last process that has opened its log.
        self._ended_at: dict[str, int] = {}
        self._lost_power: set[str] = set()
        self._opened: dict[str, int] = {}
        #: The highest end of a slave's log; how much each must get again after its disk was lost.
        self._slave_end = 0
        self._renewed_to: dict[str, int] = {}

    def _draw(self, focus: PairFocus) -> int:
        """Draw what a schedule has. @return: the number of slaves."""
        rng, seed = self.fault_rng, self.seed
        if self.bare is not None:
            self.ages = False
            self._is_sync = True
            self.role = str(self.bare.master["broker_role"])
            return self.bare.slaves
        has_power = self._is_sync = rng.random() < 0.5
        self.role = focus.role or rng.choice(("SYNC_MASTER", "SYNC_MASTER", "ASYNC_MASTER"))
        self.options = _drawn_options(rng, seed, has_groups=focus.groups)
        self.ages = focus.ages or "age" in focus.faults or (not focus.faults and draws(seed, "ages"))
        if self.ages:
            self.options |= RETENTION
        self.faults = focus.faults or _drawn_faults(seed, has_power=has_power, ages=self.ages)
        self.options |= _file_size(seed, self.faults, ages=self.ages)
        self.pace_s = focus.pace_s or rng.choice((0.7, 1.5, 4.0))
        return focus.slaves or random.Random(f"{seed} slaves").choice((1, 1, 1, 2, 2, 3))

    def _make(self, name: str, master: str) -> MakePlainBroker:
        if self.bare is not None:
            return bare_broker(self.bare, "" if name == master else master)
        role = self.role if name == master else "SLAVE"
        return MakePlainBroker(role=role, master="" if name == master else master, options=self.options)

    # -- what the stories ask --------------------------------------------------------------------

    def is_sound(self, target: str) -> bool:
        if target == self.master():
            return True
        follower = follower_of(self.machines[target.partition(":")[0]])
        status = None if follower is None else follower.status()
        return status is not None and status.is_connected and not (status.is_comparing or status.is_stopped)

    def placed(self, sent: ProducedMessage, code: int) -> None:
        """See L{dledger.testing.brokers.traffic.TrafficWorld}. B11."""
        sent.is_safe = code == 0 and self._is_sync
        sent.is_replicated = code == 0 and self.role == "SYNC_MASTER"
        if sent.losses != self.accounts.losses and not sent.is_safe:
            sent.may_be_lost = True
        if sent.is_replicated:
            end = max(self._slave_end, self._end_of_slave())
            require_pair(sent.offset < end, 11, f"{sent.key} at {sent.offset} was acknowledged, and the "
                                                f"slave's log ends at {end}")

    def reign(self) -> int:
        """See L{dledger.testing.brokers.traffic.TrafficWorld}: the accounts say it."""
        return 0

    def committing(self, target: str, key: OffsetKey, offset: int) -> Callable[[bool], None]:
        self.watch.committing(target.partition(":")[0], key, offset)
        return lambda is_done: None

    def resetting(self, target: str, key: OffsetKey, offset: int) -> Callable[[bool], None]:
        self.watch.freed(key)
        return lambda is_done: None

    def asking(self, target: str, key: OffsetKey) -> Callable[[int], None]:
        """See L{dledger.testing.brokers.traffic.TrafficWorld}: the watch sees more."""
        return lambda offset: None

    def deleting(self, topic: str) -> None:
        self.watch.deleting(topic)

    # -- life ------------------------------------------------------------------------------------

    def _end_of_slave(self) -> int:
        """The highest end of a slave's log so far."""
        for slave in self.slave_machines:
            if slave.parts is not None:
                self._slave_end = max(self._slave_end, slave.parts.store.log.end_offset)
        return self._slave_end

    def _ends(self, machine: BrokerMachine, power: bool) -> None:
        super()._ends(machine, power)
        self._end_of_slave()
        if machine.parts is not None:
            self._ended_at[machine.name] = machine.parts.store.log.end_offset
        if power or machine.disk.drops_writes:
            self._lost_power.add(machine.name)

    def _start(self, machine: BrokerMachine) -> None:
        super()._start(machine)
        parts, name = machine.parts, machine.name
        if parts is None or self._opened.get(name) == machine.boots:
            return
        self._opened[name] = machine.boots
        end, ended_at = parts.store.log.end_offset, self._ended_at.get(name, 0)
        if self.has_clients and name == self._master and end < ended_at:
            require_pair(name in self._lost_power, 12, f"{name} was killed with a log up to {ended_at}, and "
                                                       f"comes back with one up to {end}")
            self.accounts.lost_from(end, name)
            self._followed.clear()  # slaves may have more than the master now
        self._lost_power.discard(name)

    def _watch(self) -> None:
        self.clock.after(50_000, self._watch)
        self._end_of_slave()
        for slave in self.slave_machines:
            parts, wanted = slave.parts, self._renewed_to.get(slave.name, 0)
            if parts is not None and self.is_sound(slave.name) and parts.store.log.end_offset >= wanted:
                self._followed.add(slave.name)
        for name, machine in self.machines.items():
            parts = machine.parts
            if parts is not None and parts.store.is_ready:
                self.accounts.begins_at(parts.store.log.begin_offset)
                check_ahead(name, parts)
                if self.has_clients:
                    self.old_files.check(machine, self.machines.values())
                self.watch.look(name, machine.boots, parts, masters=name == self._master)
                if not self.is_loaded:
                    stop_without_index(machine)
            if not machine.is_up and self.has_clients:
                self.clock.after(SECOND_US, self._start, machine)  # one that ended by itself
        self.look_after()
        self.look_at_logs()
        if len(self.bad_logs.pages) or not self.has_clients:
            for slave in self.slave_machines:
                slave.call(_offer, slave)
        self.bugs.notify()

    # -- roles -----------------------------------------------------------------------------------

    def _renew_slave(self, _machine: BrokerMachine) -> None:
        """A slave loses its disk, and begins with an empty one."""
        slave = self._some_slave()
        if self.is_promoting or len(self.bad_logs.pages):
            return  # it may have the only copy
        if not self.has_clients and self.fault_rng.random() < 0.5:
            slave.lose_power()  # its master does not hear of it
        slave.kill()
        master = self.master_machine.parts
        if master is None and self.has_clients:
            self.again(slave)
            return
        slave.replace_disk(slave.new_disk(self.fault_rng.random()))
        if self.logs is not None:
            self.logs.slave_replaced(slave)
        self._renewed_to[slave.name] = 0 if master is None else master.store.log.end_offset
        self._followed.discard(slave.name)
        self.clock.after(int(self.fault_rng.uniform(0.05, 2.0) * SECOND_US), self._start, slave)

    def _promote(self, _machine: BrokerMachine) -> None:
        """A slave becomes the master of the others, which keep their logs, or get a new disk."""
        candidates = {
            one.name: one.parts.store.log.end_offset for one in self.slave_machines
            if one.parts is not None and one.parts.store.is_ready and not one.process.is_frozen
        }
        if not candidates or self.is_promoting or len(self.bad_logs.pages):
            return
        slave = self.machines[max(candidates, key=lambda name: candidates[name])]
        if slave.name not in self._followed or candidates[slave.name] < self._end_of_slave():
            return  # it may have another log, or lack what another slave has
        follower = follower_of(slave)
        if follower is not None and (follower.is_stopped or follower.to_decide() is not None):
            return
        old = self.master_machine
        old.kill()
        self.note(f"{slave.name} is promoted")
        self.promotions += 1
        if self.fault_rng.random() < 0.5:
            slave.stop()
        else:
            slave.kill()
        self.clock.after(int(2.5 * SECOND_US), self._promoted, slave, old)
        self.is_promoting = True

    def _promoted(self, slave: BrokerMachine, old: BrokerMachine) -> None:
        self.is_promoting = False
        for machine in self.machines.values():
            machine.kill()
            machine.disk.disarm()
        self._master = slave.name
        self._lost_power.clear()
        self._ended_at.clear()
        for machine in self.machines.values():
            machine.make = self._make(machine.name, self._master)
        if self.fault_rng.random() < 0.6:
            old.replace_disk(old.new_disk(self.fault_rng.random()))
        self._renewed_to = dict.fromkeys(self.machines, 1 << 60)
        self._slave_end = 0
        self._followed.clear()
        self.accounts.life += 1
        self.accounts.doubt()
        self.accounts.eras |= dict.fromkeys(REMADE_TOPICS, UNSURE)
        self.watch.promoted()
        if self.logs is not None:
            self.watch_logs(are_equal=False)
        slave.start()
        self.clock.after(1, self._count_losses)
        for machine in self.slave_machines:
            self.again(machine)

    def _count_losses(self) -> None:
        """B12: what the next master has not, and may have not."""
        parts = self.master_machine.parts
        if parts is None:
            self.clock.after(100_000, self._count_losses)
            return
        end = parts.store.log.end_offset
        self._renewed_to = dict.fromkeys(self.machines, end)
        _count_losses_with(self.accounts, parts)

    def _look_at(self, slave: BrokerMachine) -> None:
        client = self.traffic.client  # an operator asks a slave how it differs, and then decides
        asked = client.ask(f"{slave.name}:{CLIENT_PORT}", RESOLVE_HA, {"action": "show"})
        Deferred.fromCoroutine(asked).addCallback(lambda _: super(PairWorld, self)._look_at(slave))

    def _repairs(self, follower: HAFollower) -> bool:
        """Whether a page that cannot be read may be why replication has stopped: it is repaired first."""
        return self.bad_logs.repair_all() or super()._repairs(follower)

    # -- the end ---------------------------------------------------------------------------------

    def _answers_at_end(self) -> Collection[int]:
        return (0,) if self.role == "SYNC_MASTER" else STORED

    def unsettled(self) -> str:
        """What is still to come; empty if all is delivered, and equal."""
        found = {name: machine.parts for name, machine in self.machines.items()}
        running = {name: parts for name, parts in found.items() if parts is not None and parts.store.is_ready}
        if len(running) < len(found):
            return "a broker does not run"
        if len(self.bad_logs.pages):
            return "a log cannot be read"
        if (why := self.unsettled_logs()):
            return why
        if self.has_clients and (why := why_unsettled(self.traffic)):
            return why
        if behind := [name for name, parts in running.items() if _is_behind(parts)]:
            return f"{behind} have not dispatched their logs; {self._master} is the master"
        master = running.pop(self._master)
        was_promoted = self.accounts.life > 0 or self.lost_files.tables > 0
        differences = (log_difference(master, slave) or (metadata_difference(
            master.metadata, slave.metadata, was_promoted=was_promoted,
            committed=partial(self.watch.committed, name),
        ) if self.has_clients else "") for name, slave in running.items())
        return next(filter(None, differences), "")

    def _judge(self) -> None:
        self.judge_logs()
        # Headers of a slave that does not wait for its disk may have holes, and its queues begin late.
        for name, machine in self.machines.items() if self.has_clients else ():
            parts = machine.parts
            assert parts is not None
            # After a promotion nobody can say whether its last deletion counts.
            check_queues(name, parts, without=REMADE_TOPICS if self.accounts.life else frozenset())
            begins = {record.physical_offset for record in records_of(parts)}
            for sent in self.accounts.needed(frozenset(KEPT)):
                check_by_key(name, parts, sent, begins)


def _is_behind(parts: BrokerParts) -> bool:
    """Whether a broker has still to dispatch its log, or to put it into the index."""
    indexing = parts.store.indexing
    assert indexing is not None
    end = parts.store.log.record_end
    return parts.store.reput.offset < end or indexing.index.offset < end


def _offer(slave: BrokerMachine) -> None:
    """A slave offers its master copies of damaged records, more often than by itself."""
    replication = slave.parts.replication if slave.parts is not None else None
    if isinstance(replication, HAReplication) and replication.following is not None:
        if replication.following.offers is not None:
            replication.following.offers.tick()


def _drawn_faults(seed: int, *, has_power: bool, ages: bool) -> tuple[str, ...]:
    """The mix of a seed, one of which is drawn each time."""
    return (
        *FAULTS, *(POWER if has_power else ()), *ROLES, *(("age", "age") if ages else ()),
        *(READS if draws(seed, "reads") else ()), *(LOSSES if draws(seed, "losses") else ()),
        *(BAD_LOGS if draws(seed, "bad log pages") else ()),
    )


def _file_size(seed: int, faults: tuple[str, ...], *, ages: bool) -> dict[str, object]:
    """Of the files of logs, if it is not the usual one: files that grow old are small."""
    if "spoil_log" in faults and not ages:
        return {"mapped_file_size_commit_log": 4 * PAGE_BYTES}  # a page is a part of a file
    # Most sends take their short road only there.
    has_large = not ages and random.Random(f"{seed} large files").random() < 0.6
    return {"mapped_file_size_commit_log": LARGE_FILE} if has_large else {}


def run_pair_schedule(
    seed: int, *, focus: PairFocus | None = None, wants_all_lines: bool = False
) -> PairOutcome:
    """Run one seed to its verdict. Never raises for a broken promise."""
    world = PairWorld(seed, focus or PairFocus(), wants_all_lines=wants_all_lines)
    found = clients_outcome(world)
    logs = world.logs
    puts, mended = (0, 0) if logs is None else (logs.answered[PutStatus.PUT_OK], logs.mended)
    return PairOutcome(
        **attrs.asdict(found, recurse=False), ages=world.ages, bare=world.bare is not None,
        promotions=world.promotions, resolved=world.resolved, puts=puts, mended=mended,
    )


def _drawn_options(rng: random.Random, seed: int, *, has_groups: bool) -> dict[str, object]:
    """Those of all brokers of a schedule."""
    found: dict[str, object] = {
        "enablePropertyFilter": True, "recallMessageEnable": True, "haFullHistory": True,
        "sync_rule": "any_slave",
        "ha_transfer_flushed_only": rng.random() < 0.3, "ha_verify_size": rng.choice((1, 300, 65536)),
        "ha_flush_interval": rng.choice((50, 200, 500)), "autoCreateTopicEnable": rng.random() < 0.5,
    }
    if has_groups or draws(seed, "more stories"):
        # The names of topics for retries are those of RocketMQ without C{enableRetryTopicV2}.
        found["enableRetryTopicV2"] = random.Random(f"{seed} retries").random() < 0.5
    return found


def _count_losses_with(accounts: TrafficRecord, parts: BrokerParts) -> None:
    """B12: what the next master has not, and may have not. @param parts: of the next master."""
    end = parts.store.log.end_offset
    begin = parts.store.log.begin_offset
    # The next master may have other records there: those that a loss of power took from the last one.
    records = list(records_of(parts))
    held = {record.physical_offset: record.keys for record in records}
    accounts.keep_ends(records)
    for sent in accounts.sent.values():
        if sent.outcome and sent.offset >= begin and (sent.key,) != held.get(sent.offset):
            require_pair(not sent.is_replicated, 12, f"{sent.key} was acknowledged at {sent.offset}, and "
                                                     f"the log of the next master, {begin} to {end}, has "
                                                     f"{held.get(sent.offset, ())} there")
            sent.may_be_lost = True
        elif not sent.outcome:
            sent.may_be_lost = True
