# -*- test-case-name: tests.sim.test_raft_clients -*-
"""
One schedule of a group of brokers on a raft log with the clients of pairs: they send, pull, pop, end
transactions and administrate while brokers fail and leaders change::

    python -m dledger.testing.raft_brokers --schedules 100 --seed 1

The promises are B1 to B10, B13 to B18, B21 to B25, B27 and B28 of L{dledger.testing.brokers}, and
stricter: an answer of a master counts whoever leads next, as long as a majority keeps its disks. In the place
of B11 and B12:

B19. See L{dledger.testing.raft_brokers.kept_offsets}.
B20. A message that is answered with success is at its place, in the log and in its queue, on every broker in
the end, once; one that is refused is nowhere; no answer says that it is stored and may be lost (10, 11, 12).
The places of a queue have no gap.
B26. See L{dledger.testing.raft_brokers.logged_tables}. A change that is acknowledged is in the log of its
term.
B29. See L{dledger.testing.raft_brokers.facts}.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping

import attrs

from dledger.base.disk.file_table import TABLES_APPLIED
from dledger.raft_broker.raft_log import RaftLog
from dledger.raft_broker.stamps import PutPlaces, UnplacedRecord, unseen_record
from dledger.rocketmq.broker.parts import BrokerParts
from dledger.rocketmq.metadata.tables_mark import LOGGED_FILES
from dledger.testing.brokers.admin_traffic import KEPT
from dledger.testing.brokers.asked_traffic import why_unsettled
from dledger.testing.brokers.client_world import (
    ClientsOutcome,
    ClientWorld,
    clients_of,
    clients_outcome,
    draws,
)
from dledger.testing.brokers.pair_faults import (
    BAD_LOGS,
    LOSSES,
    POWER,
    READS,
    RETENTION,
    SECOND_US,
    stop_without_index,
)
from dledger.testing.brokers.pairs import TIMING
from dledger.testing.brokers.rig.accounts import (
    PLAIN,
    REFUSED,
    PairBroken,
    ProducedMessage,
    require_pair,
)
from dledger.testing.brokers.rig.lost_files import TABLES
from dledger.testing.brokers.rig.machine import LARGE_FILE, BrokerMachine, BrokerWorld
from dledger.testing.brokers.rig.states import (
    NO_MESSAGE,
    OffsetKey,
    check_by_key,
    check_expired,
    check_queues,
    log_difference,
    records_of,
    table_difference,
)
from dledger.testing.raft_brokers.facts import AckedFacts
from dledger.testing.raft_brokers.kept_offsets import KeptOffsets
from dledger.testing.raft_brokers.logged_tables import (
    LoggedTables,
    log_path,
    look_at_tables,
    write_checkpoint,
)
from dledger.testing.raft_brokers.raft import MakeRaftBroker, hand_over, is_ledger_closed, node_of
from protocols.wire.rocketmq.layout import METADATA_TOPIC
from protocols.wire.rocketmq.message import Message

IDS = ("n0", "n1", "n2")
FAULTS = (
    "kill", "kill", "kill_in_write", "stop", "freeze", "cut_off", "cut_off", "cut_client", "break", "darken",
    "half_open", "slow_disk", "slow_links", "hand_over", "fill_disk", "disk_error",
    "kill_after_mark", "fail_saves", "hand_over_in_vain",
)
#: A client of the ledger appends what is not a message, or what only a later version reads.
STRANGERS = ("append_strangely", "append_strangely")
#: A master has changes without an answer when another one is elected.
CHANGES = "end_in_changes"

#: The queues follow the begin of a log within this time.
FOLLOWED_US = 1_500_000
#: So long after the faults files grow old once more.
AGED_US = 5_000_000


@attrs.frozen(kw_only=True)
class RaftOutcome(ClientsOutcome):
    """
    The end of a schedule.

    @ivar masters: how often a broker became master. @ivar changes: number of acknowledged ones of
        L{AckedFacts}.
    """

    masters: int = 0
    changes: int = 0


class RaftWorld(ClientWorld):
    """A group of brokers, and their clients."""

    lost_tables = (
        TABLES, ("config/subscriptionGroup", "config/consumerOrderInfo"),
        tuple(f"config/{name}" for name in (*LOGGED_FILES, TABLES_APPLIED.name)),
    )

    def __init__(
        self, seed: int, *, faults: tuple[str, ...] = (), groups: bool = False, wants_all_lines: bool = False
    ) -> None:
        """
        @param faults: the only ones that happen; empty for the seed's own mix.
        @param groups: the stories of L{dledger.testing.brokers.group_traffic} are played, too.
        """
        super().__init__(seed, "raft clients", wants_all_lines=wants_all_lines)
        rng = self.fault_rng
        self.is_sync = rng.random() < 0.5
        self.faults = faults or (*FAULTS, *(POWER if self.is_sync else ()))
        self.pace_s = rng.choice((0.7, 1.5, 4.0))
        world = BrokerWorld(clock=self.clock, network=self.network, bugs=self.bugs, is_sync=self.is_sync)
        ages = "age" in faults or (not faults and draws(seed, "ages"))
        if not faults:
            self.faults += (*(("age", "age") if ages else ()), *(READS if draws(seed, "reads") else ()),
                            *(BAD_LOGS if draws(seed, "bad log pages") else ()),
                            # (An entry may expire here before the unit of its message is durable.)
                            *(LOSSES if not ages and draws(seed, "losses") else ()),
                            *(STRANGERS if draws(seed, "strangers") else ()), CHANGES)
        make = MakeRaftBroker(IDS, {
            **(RETENTION if ages else {}), **(
                {"mapped_file_size_commit_log": LARGE_FILE}
                if draws(seed, "large files") and not (ages or "spoil_log" in self.faults) else {}
            ),
            **{name: value for name, value in TIMING.items() if not name.startswith(("ha", "slave", "sync"))},
            "enablePropertyFilter": True, "recallMessageEnable": True, "changeHosts": "*",
            "autoCreateTopicEnable": rng.random() < 0.5,
        }, scrubs="spoil_log" in self.faults)
        self.machines |= {
            name: BrokerMachine(world, name, random.Random(f"{seed} {name}"), make) for name in IDS
        }
        for machine in self.machines.values():
            machine.happened = self._hook
        self._master = IDS[0]
        self.traffic = clients_of(self, self, put_s=rng.choice((0.06, 0.15, 0.4)), has_groups=groups)
        self.masters = 0
        self.kept = KeptOffsets()
        self._may_age = True
        self.logged = LoggedTables(lambda: self.clock.now_us)
        self.facts = AckedFacts(self.acknowledged)
        self._own_draws = random.Random(f"{seed} changes")
        #: By name of a broker, the number of its process that has changes when it becomes the master.
        self._hooked: dict[str, int] = {}
        if CHANGES in self.faults:
            self.clock.after(1, self._change_often)
            self.clock.after(1, self.traffic.client.begin, self._send_anywhere())
        #: By name of a broker, the begin of its log, and since when.
        self._begins: dict[str, tuple[int, int]] = {}
        #: Of the newest master: its term, and the number of its process.
        self._term = self._boot = 0

    # -- what the stories ask --------------------------------------------------------------------

    def is_sound(self, target: str) -> bool:
        """See L{dledger.testing.brokers.traffic.TrafficWorld}: a broker shows committed messages only."""
        return True

    def placed(self, sent: ProducedMessage, code: int) -> None:
        """See L{dledger.testing.brokers.traffic.TrafficWorld}. B20."""
        require_pair(code == 0, 20, f"{sent.key} was answered with {code}")

    def reign(self) -> int:
        machine = self.master_machine
        parts, node = machine.parts, node_of(machine)
        if parts is None or node is None or parts.config.role.is_slave or machine.boots != self._boot:
            return -1
        return self._term if node.term == self._term else -1

    def _sure(self, target: str, setting: Callable[[bool], None]) -> Callable[[bool], None]:
        """The answer of a broker that was, or is, no master says nothing of the next one."""
        reign = self.reign() if target == self.master() else -1
        return lambda is_done: setting(is_done and 0 <= reign == self.reign())

    def committing(self, target: str, key: OffsetKey, offset: int) -> Callable[[bool], None]:
        group, topic, queue_id = key
        self.logged.committing(target.partition(":")[0], f"{topic}@{group}", queue_id, offset)
        return self._sure(target, self.kept.setting(key, offset))

    def resetting(self, target: str, key: OffsetKey, offset: int) -> Callable[[bool], None]:
        return self.committing(target, key, offset)

    def asking(self, target: str, key: OffsetKey) -> Callable[[int], None]:
        reign = self.reign() if target == self.master() else -1
        answered = self.kept.asking(key)

        def ended(offset: int) -> None:
            if 0 <= reign == self.reign():
                answered(offset)

        return ended

    def deleting(self, topic: str) -> None:
        ...

    # -- messages and changes at any broker --------------------------------------------------------

    async def _send_anywhere(self) -> None:
        """Slaves get messages, too, and former masters that do not know of the next one."""
        client, rng = self.traffic.client, self._own_draws
        while self.is_loaded:
            await client.pause(rng.expovariate(1 / 0.3))
            client.begin(self.traffic.send_to(self.any_of(rng)))

    def _change_often(self) -> None:
        if self.is_loaded:
            self.clock.after(int(self._own_draws.expovariate(1 / 300_000)) + 1, self._change_often)
            self._change(self._own_draws.choice(list(self.machines.values())))

    def _change(self, machine: BrokerMachine) -> None:
        parts = machine.parts
        if self.is_loaded and parts is not None and not (
            machine.process.is_frozen or parts.config.role.is_slave
        ):
            machine.call(self.facts.change, parts, self._own_draws)

    def _change_soon(self, machine: BrokerMachine, times: int, us: int) -> None:
        for _ in range(times if CHANGES in self.faults else 0):
            self.clock.after(1 + int(self._own_draws.random() ** 3 * us), self._change, machine)

    def acknowledged(self, parts: BrokerParts, table: str, name: str) -> None:
        """A change was acknowledged just now. B26: the log of this term has to say so."""
        for machine in self.machines.values():
            node = node_of(machine)
            if machine.parts is parts and node is not None and node.is_leader:
                self.logged.read(machine, log_path(machine))
                is_read = self.logged.end >= parts.store.log.record_end
                if is_read and not self.logged.says(table, name, node.term):
                    self.bugs.note(PairBroken(
                        f"B26: {machine.name}: a change of {table} {name} was acknowledged, and the log of "
                        f"term {node.term} does not have it"
                    ))

    def _hook(self, machine: BrokerMachine) -> None:
        """Let changes come just when a process becomes the master, and note its reign."""
        parts = machine.parts
        if parts is None or self._hooked.get(machine.name) == machine.boots:
            return
        self._hooked[machine.name] = machine.boots
        changed = parts.role_changed

        def role_changed() -> None:
            changed()
            node = node_of(machine)
            if node is not None and not parts.config.role.is_slave:
                self.logged.reigns(machine.name, node.term)
            self._change_soon(machine, self._own_draws.randrange(4), 100_000)

        parts.role_changed = role_changed  # type: ignore[method-assign]

    # -- faults of a group -----------------------------------------------------------------------

    def _cut_off(self, machine: BrokerMachine) -> None:
        rng = self.fault_rng
        for other in self.machines:
            if other != machine.name and rng.random() < 0.8:
                for ends in ((machine.name, other), (other, machine.name)):
                    if rng.random() < 0.8:
                        self.network.cut(*ends)
        self.clock.after(int(rng.uniform(0.2, 5.0) * SECOND_US), self.network.heal_all)

    def _hand_over(self, machine: BrokerMachine) -> None:
        others = [one for one in self.machines if one != machine.name]
        machine.call(hand_over, machine, self.fault_rng.choice(others))

    def _hand_over_in_vain(self, _machine: BrokerMachine) -> None:
        """A master hands over to a frozen member, and stays: it refuses messages and changes meanwhile."""
        master, other = self.master_machine, self._some_slave()
        other.freeze()
        self.clock.after(int(self.fault_rng.uniform(1.5, 4.0) * SECOND_US), other.thaw)
        master.call(hand_over, master, other.name)
        self._change_soon(master, 6, 800_000)

    def _end_in_changes(self, _machine: BrokerMachine) -> None:
        """A master has changes without an answer when another one is elected."""
        master = self.master_machine
        self._change_soon(master, 6, 20_000)
        end = self._own_draws.choice((self._kill, self._cut_off, self._hand_over))
        self.clock.after(1 + int(self._own_draws.random() * 20_000), end, master)

    def _kill_after_mark(self, machine: BrokerMachine) -> None:
        """The next start reads the log again from a mark on; the tables may have what is before it alone."""
        machine.call(write_checkpoint, machine)
        self.clock.after(int(self.fault_rng.random() * SECOND_US), self._kill, machine)

    def _lose_files(self, machine: BrokerMachine) -> None:
        """See L{PairFaults._lose_files}. Most times the mark counts what is lost: it is a moment old."""
        if self.fault_rng.random() < 0.7:
            machine.call(write_checkpoint, machine)
        self.clock.after(SECOND_US // 5, super()._lose_files, machine)

    def _fail_saves(self, machine: BrokerMachine) -> None:
        """Some tables cannot be written for some seconds, and a checkpoint is due; then the broker ends."""
        machine.may_fail = True
        rng = self.fault_rng
        machine.disk.fail_under(f"/store/config{rng.choice(('', '/topics', '/consumerOffset'))}")
        for _ in range(3):
            self.clock.after(int(rng.random() * 2 * SECOND_US), machine.call, write_checkpoint, machine)
        self.clock.after(int(2.2 * SECOND_US), self._kill, machine)
        self.clock.after(int(2.2 * SECOND_US), machine.disk.fail_under, "")

    def _append_strangely(self, _machine: BrokerMachine) -> None:
        """Nobody gets it, and every message around it comes: B6, B7 and B20."""
        bodies: list[bytes] = [NO_MESSAGE + bytes(self.fault_rng.randrange(200)) for _ in range(2)]
        if self.fault_rng.random() < 0.5:
            later = UnplacedRecord(unseen_record(METADATA_TOPIC, b'{"format": 99}', self.wall_ms()))
            later.queue = None
            later.place = PutPlaces()
            bodies.append(later)

        def append(machine: BrokerMachine) -> None:
            node = node_of(machine)
            if node is not None and node.is_running:
                node.append(bodies).addErrback(lambda _: None)

        self.master_machine.call(append, self.master_machine)

    @staticmethod
    def log_path(machine: BrokerMachine) -> str:
        return log_path(machine)

    @staticmethod
    def log_has_ended(machine: BrokerMachine) -> bool:
        return is_ledger_closed(machine)

    def _port_of_master(self) -> str:
        """Of its member, for the others; its clients' port has a number."""
        return self._master

    def heal(self) -> None:
        """See L{PairFaults.heal}: a disk can read again what no member has noticed until now."""
        super().heal()
        for machine in self.machines.values():
            machine.disk.forgive(self.log_path(machine))
        self._may_age = self._may_age and "age" in self.faults
        if self._may_age:
            self.clock.after(AGED_US, self._age_once_more)

    def _age_once_more(self) -> None:
        """Brokers that do not start again, and masters that stay, have to give up files, too."""
        for machine in self.machines.values() if self._may_age else ():
            self._age(machine, rounds=40)
        self._may_age = False

    def _age(self, machine: BrokerMachine, *, rounds: int = -1) -> None:
        """See L{PairFaults._age}. An operator lets the member read its options again, which keeps house."""
        super()._age(machine)
        # Each time some files go.
        for _ in range(self.fault_rng.choice((0, 1, 4, 10)) if rounds < 0 else rounds):
            machine.call(_reread_options, machine)

    # -- watching --------------------------------------------------------------------------------

    def _watch(self) -> None:
        self.clock.after(50_000, self._watch)
        look_at_tables(self.logged, self.machines.values())
        for name, machine in self.machines.items():
            parts, node = machine.parts, node_of(machine)
            if parts is not None and parts.store.is_ready:
                self.accounts.begins_at(parts.store.log.begin_offset)
                self.old_files.check(machine, self.machines.values())
                begin = parts.store.log.begin_offset
                if self._begins.get(name, (-1, 0))[0] != begin:
                    self._begins[name] = begin, self.clock.now_us
                if node is not None and not parts.config.role.is_slave and node.term > self._term:
                    self._master = name
                    self._term = node.term
                    self._boot = machine.boots
                    self.masters += 1
                    self.facts.check(name, parts.metadata)
                    self.note(f"{name} is the master of term {node.term}")
                if not self.is_loaded:
                    stop_without_index(machine)
            if not machine.is_up:
                self.clock.after(SECOND_US, self._start, machine)  # one that ended by itself
        self.bugs.notify()

    # -- the end ---------------------------------------------------------------------------------

    def unsettled(self) -> str:
        """What is still to come; empty if all is delivered, and equal."""
        ends: set[int] = set()
        all_parts: dict[str, BrokerParts] = {}
        for name, machine in self.machines.items():
            parts = machine.parts
            if parts is None or not parts.store.is_ready:
                return f"{name} does not run"
            all_parts[name] = parts
            log, indexing = parts.store.log, parts.store.indexing
            assert isinstance(log, RaftLog) and indexing is not None
            ends.update((log.record_end, log.ledger_end, parts.store.reput.offset, indexing.index.offset))
        masters = [name for name, parts in all_parts.items() if not parts.config.role.is_slave]
        if masters != [self._master]:
            return f"masters {masters}, known {self._master}"
        if (why := why_unsettled(self.traffic)):
            return why
        if len(ends) != 1:
            return f"ends {ends}"
        if self._may_age:
            return "files are to grow old once more"
        if any(self.clock.now_us - since_us < FOLLOWED_US for _, since_us in self._begins.values()):
            return "a log begins later than a moment ago"
        master = all_parts.pop(self._master)
        if (why := self.logged.lacks(master) or self.logged.unwritten(master, self._term)):
            return why
        for parts in all_parts.values():
            why = log_difference(master, parts) or table_difference(master.metadata, parts.metadata)
            if why:
                return why
        return ""

    def _judge(self) -> None:
        for name, machine in self.machines.items():
            parts = machine.parts
            assert parts is not None
            self.facts.check(name, parts.metadata)
            check_queues(name, parts)
            check_expired(name, parts)
            records = {record.physical_offset: record for record in records_of(parts)}
            check_once(name, self.accounts.sent, records.values())
            for sent in self.accounts.needed(frozenset(KEPT)):
                check_by_key(name, parts, sent, records.keys())
                self._check_place(name, sent, records)

    @staticmethod
    def _check_place(name: str, sent: ProducedMessage, records: dict[int, Message]) -> None:
        """B20."""
        record = records.get(sent.offset)
        found = "nothing" if record is None else (record.keys, record.queue_offset)
        require_pair(found == ((sent.key,), sent.queue_offset), 20,
                     f"{sent.key} was acknowledged at {sent.offset}, place {sent.queue_offset}, and {name} "
                     f"has {found} there")


def check_once(name: str, known: Mapping[str, ProducedMessage], records: Iterable[Message]) -> None:
    """
    B20, of the log of a broker.

    @param known: what was sent, by its key. @param records: all messages in the log.
    """
    places: dict[tuple[str, int], int] = {}
    once: set[str] = set()
    for record in records:
        queue = record.topic, record.queue_id
        place = places.get(queue, record.queue_offset)
        # The topic may have been made again.
        require_pair(record.queue_offset in (place, 0), 20,
                     f"{name}: {queue} has place {record.queue_offset} where {place} is next")
        places[queue] = record.queue_offset + 1
        for key in record.keys:
            sent = known.get(key)
            if sent is not None:
                require_pair(sent.outcome != REFUSED, 20, f"{name} has {key}, which was refused")
                require_pair(key not in once or sent.kind != PLAIN or record.topic != sent.topic, 20,
                             f"{name} has {key} twice")
                once.update(record.keys if record.topic == sent.topic else ())


def _reread_options(machine: BrokerMachine) -> None:
    node = node_of(machine)
    if node is not None and node.is_running:
        node.reread(node.config)


def run_raft_schedule(
    seed: int, *, faults: tuple[str, ...] = (), groups: bool = False, wants_all_lines: bool = False
) -> RaftOutcome:
    """Run one seed to its verdict. Never raises for a broken promise."""
    world = RaftWorld(seed, faults=faults, groups=groups, wants_all_lines=wants_all_lines)
    found = clients_outcome(world)
    return RaftOutcome(**attrs.asdict(found, recurse=False), masters=world.masters,
                       changes=world.facts.judged)
