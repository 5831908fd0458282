# -*- test-case-name: tests.sim.test_raft_brokers -*-
"""
One schedule of a group of brokers on a raft log: producers put messages, machines fail, and in the end every
acknowledged message must be at the place in its producer's answer, on all brokers.

    python -m dledger.testing.raft_brokers --seeds 1..100

Invariant 1: no two acknowledged messages have the same place in a queue, or in the log.
Invariant 2: no put is answered like a stored one that may be lost (codes 10, 11, 12).
Invariant 3: a refused put is not in the log (unless the broker says that it does not know).
Invariant 4: in the end the logs are equal up to the commit; the queues are equal on all brokers, dense, and
have every acknowledged message at its place; and every broker finds it by its key.
Invariant 5: in the end there is a master, and it takes messages.
Invariant 6: a master knows every topic, group and offset that was acknowledged before, and no topic or group
whose deletion was.
Invariant 7: see B26 in L{dledger.testing.raft_brokers.logged_tables}; an acknowledged deletion, also of what
the master does not know, is in the log of its term.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import attrs

from dledger.raft_broker.raft_log import RaftLog
from dledger.rocketmq.broker.parts import BrokerParts
from dledger.rocketmq.broker.producing.puts import NotPut
from dledger.rocketmq.replication.put_status import PutStatus
from dledger.rocketmq.store.records.key_hash import hash_of_key
from dledger.rocketmq.store.records.plain_records import Placed, plain_batch
from dledger.rocketmq.store.records.records import NewMessage
from dledger.testing.brokers.parts.machine import BrokerMachine, BrokerWorld
from dledger.testing.raft_brokers.facts import AckedFacts, differing_place
from dledger.testing.raft_brokers.logged_tables import (
    LoggedTables,
    log_path,
    look_at_tables,
    write_checkpoint,
)
from dledger.testing.raft_brokers.raft import MakeRaftBroker, hand_over, node_of
from dledger.testing.world.bugs import BugWatch
from dledger.testing.world.clock import SimClock
from dledger.testing.world.disk import PowerLoss, ProcessKilled
from dledger.testing.world.streams import ByteNetwork
from protocols.wire.rocketmq.message import Host, decode_message, encode_properties

SECOND_US = 1_000_000
TOPICS, QUEUES = ("T1", "T2"), 2
#: Simulated seconds with faults, and after them at most until all is equal.
FAULTS_S, SETTLE_S = 20, 60
#: And then, at most, until a message is taken.
TAKES_S = 10
_HOST = Host.of("10.0.0.1", 10911)


class QueuesBroken(AssertionError):
    """An invariant does not hold."""


@attrs.frozen
class Acked:
    """The place of an acknowledged message, as its producer knows it."""

    topic: str
    queue_id: int
    queue_offset: int
    offset: int


@attrs.frozen(kw_only=True)
class RaftBrokersOutcome:
    """
    Counts of one schedule.

    @ivar acked, unknown, refused: messages by outcome; the rest had none.
    @ivar masters: number of times that a broker became master.
    """

    seed: int
    acked: int
    unknown: int
    refused: int
    masters: int
    faults: int
    simulated_s: float


class RaftBrokers:
    """One group, and its producers."""

    def __init__(self, seed: int, *, members: int = 3) -> None:
        self.seed = seed
        self.rng = random.Random(f"{seed} schedule")
        self.clock = SimClock()
        self.bugs = BugWatch()
        network = ByteNetwork(self.clock, random.Random(f"{seed} network"))
        ids = [f"n{number}" for number in range(members)]
        self.is_sync = self.rng.random() < 0.5
        world = BrokerWorld(clock=self.clock, network=network, bugs=self.bugs, is_sync=self.is_sync)
        make = MakeRaftBroker(tuple(ids), {})
        self.network = network
        self.brokers = {one: BrokerMachine(world, one, random.Random(f"{seed} {one}"), make) for one in ids}
        self.acked: dict[str, Acked] = {}
        self.refused_keys: set[str] = set()
        self.unknown = self.faults = self.masters = 0
        self.logged = LoggedTables(lambda: self.clock.now_us, has_clients=False)
        self.facts = AckedFacts(self.is_reported)
        self._hooked: dict[str, int] = {}
        self._masters: dict[str, bool] = {}
        self._number = 0
        self._is_loaded = True

    # -- producers -------------------------------------------------------------------------------

    def _produce(self) -> None:
        if not self._is_loaded:
            return
        self.clock.after(int(self.rng.expovariate(1 / 30_000)) + 1, self._produce)
        broker = self.brokers[self.rng.choice(list(self.brokers))]
        if broker.is_up and not broker.process.is_frozen:
            broker.call(self._put, broker)

    def _put(self, sim: BrokerMachine) -> None:
        broker = sim.parts
        if broker is None:
            return
        messages: list[NewMessage] = []
        for _ in range(self.rng.choice((1, 1, 2, 5))):
            self._number += 1
            messages.append(NewMessage(
                topic=self.rng.choice(TOPICS), queue_id=self.rng.randrange(QUEUES),
                body=bytes(self.rng.choice((0, 10, 200, 900))), flag=0, sys_flag=0,
                properties_data=encode_properties({"KEYS": f"m{self._number}"}),
                born_timestamp=1, born_host=_HOST, store_host=_HOST,
            ))
        keys = [f"m{self._number - len(messages) + 1 + number}" for number in range(len(messages))]
        try:
            put = broker.pipeline.put(plain_batch(messages))
        except NotPut as error:
            if not error.status.is_stored and error.status is not PutStatus.UNKNOWN_ERROR:
                self.refused_keys.update(keys)
            return
        put.done.addCallback(self._ended, messages, keys, put.placed)

    def _ended(
        self, status: PutStatus, messages: list[NewMessage], keys: list[str], placed: Placed
    ) -> None:
        if status is PutStatus.PUT_OK:
            if not len(placed.offsets) == len(placed.queue_offsets) == len(messages):
                self.bugs.note(QueuesBroken(f"{len(placed.offsets)} places for {len(messages)} messages"))
            for at, (one, key) in enumerate(zip(messages, keys, strict=True)):
                self.acked[key] = Acked(one.topic, one.queue_id, placed.queue_offsets[at], placed.offsets[at])
        elif status.is_stored:
            self.bugs.note(QueuesBroken(f"a put was answered {status.name}"))
        elif status is PutStatus.UNKNOWN_ERROR:
            self.unknown += len(messages)
        else:
            self.refused_keys.update(keys)

    # -- administrators and consumers ----------------------------------------------------------------

    def _administrate(self) -> None:
        if not self._is_loaded:
            return
        self.clock.after(int(self.rng.expovariate(1 / 300_000)) + 1, self._administrate)
        self._change(self.brokers[self.rng.choice(list(self.brokers))])

    def is_reported(self, parts: BrokerParts, table: str, name: str) -> None:
        """A change was acknowledged just now: the log of this term has to say so."""
        for machine in self.brokers.values():
            node = node_of(machine)
            if machine.parts is parts and node is not None and node.is_leader:
                self.logged.read(machine, log_path(machine))
                is_read = self.logged.end >= parts.store.log.record_end
                if is_read and not self.logged.says(table, name, node.term):
                    self.bugs.note(QueuesBroken(
                        f"{machine.name}: a change of {table} {name} was acknowledged, and the log of term "
                        f"{node.term} does not have it"
                    ))

    def _hook(self, broker: BrokerMachine, parts: BrokerParts) -> None:
        """Let changes come just when a process becomes the master."""
        if self._hooked.get(broker.name) == broker.boots:
            return
        self._hooked[broker.name] = broker.boots
        changed = parts.role_changed

        def role_changed() -> None:
            changed()
            if not parts.config.is_slave and self._is_loaded:
                for _ in range(self.rng.randrange(4)):
                    self.clock.after(1 + int(self.rng.random() ** 3 * 100_000), self._change, broker)

        parts.role_changed = role_changed  # type: ignore[method-assign]

    def _change(self, broker: BrokerMachine) -> None:
        parts = broker.parts
        if broker.is_up and not broker.process.is_frozen and parts is not None and not parts.config.is_slave:
            broker.call(self.facts.change, parts, self.rng)

    # -- faults ----------------------------------------------------------------------------------

    def _harm(self) -> None:
        if not self._is_loaded:
            return
        rng = self.rng
        self.clock.after(int(rng.uniform(0.2, 2.0) * SECOND_US), self._harm)
        broker = self.brokers[rng.choice(list(self.brokers))]
        kinds: list[Callable[[BrokerMachine], None]] = [
            self._kill, self._kill, self._kill_in_write, self._freeze, self._cut_off, self._stop,
            self._hand_over, self._slow_disk, self._kill_after_mark, self._end_in_changes,
            self._hand_over_in_vain,
        ]
        if self.is_sync:
            kinds += [self._lose_power, self._lose_power_in_write]
        self.faults += 1
        rng.choice(kinds)(broker)

    def _again(self, broker: BrokerMachine, seconds: float = 2.0) -> None:
        self.clock.after(int(self.rng.uniform(0.1, seconds) * SECOND_US), broker.start)

    def _kill(self, broker: BrokerMachine) -> None:
        broker.kill()
        self._again(broker)

    def _lose_power(self, broker: BrokerMachine) -> None:
        broker.lose_power()
        self._again(broker)

    def _kill_in_write(self, broker: BrokerMachine) -> None:
        broker.disk.arm(die_in=1 + int(self.rng.random() * 12), death=ProcessKilled)

    def _lose_power_in_write(self, broker: BrokerMachine) -> None:
        broker.disk.arm(die_in=1 + int(self.rng.random() * 12), death=PowerLoss)

    def _freeze(self, broker: BrokerMachine) -> None:
        broker.freeze()
        self.clock.after(int(self.rng.uniform(0.2, 5.0) * SECOND_US), broker.thaw)

    def _cut_off(self, broker: BrokerMachine) -> None:
        for other in self.brokers:
            if other != broker.name and self.rng.random() < 0.8:
                for ends in ((broker.name, other), (other, broker.name)):
                    if self.rng.random() < 0.8:
                        self.network.cut(*ends)
        self.clock.after(int(self.rng.uniform(0.2, 5.0) * SECOND_US), self.network.heal_all)

    def _stop(self, broker: BrokerMachine) -> None:
        broker.stop()
        self._again(broker, 8.0)

    def _hand_over(self, broker: BrokerMachine) -> None:
        broker.call(hand_over, broker, self.rng.choice([one for one in self.brokers if one != broker.name]))

    def _hand_over_in_vain(self, _broker: BrokerMachine) -> None:
        """A master hands over to a frozen member, and stays: changes of this time are refused at first."""
        for broker in self.brokers.values():
            parts = broker.parts
            if parts is None or parts.config.is_slave:
                continue
            other = self.brokers[self.rng.choice([one for one in self.brokers if one != broker.name])]
            other.freeze()
            self.clock.after(int(self.rng.uniform(1.5, 4.0) * SECOND_US), other.thaw)
            broker.call(hand_over, broker, other.name)
            for _ in range(6):
                self.clock.after(1 + int(self.rng.random() * 800_000), self._change, broker)

    def _kill_after_mark(self, broker: BrokerMachine) -> None:
        """The next start reads the log again from a mark on; the tables may have what is before it alone."""
        broker.call(write_checkpoint, broker)
        self.clock.after(int(self.rng.random() * SECOND_US), self._kill, broker)

    def _end_in_changes(self, _broker: BrokerMachine) -> None:
        """A master has changes without an answer when another one is elected."""
        for broker in self.brokers.values():
            parts = broker.parts
            if parts is not None and not parts.config.is_slave:
                for _ in range(6):
                    self.clock.after(1 + int(self.rng.random() * 20_000), self._change, broker)
                end = self.rng.choice((self._kill, self._cut_off, self._hand_over))
                self.clock.after(1 + int(self.rng.random() * 20_000), end, broker)

    def _slow_disk(self, broker: BrokerMachine) -> None:
        broker.slow_disk(self.rng.choice((200, 500, 20_000)))

    # -- watching --------------------------------------------------------------------------------

    def _watch(self) -> None:
        self.clock.after(50_000, self._watch)
        look_at_tables(self.logged, self.brokers.values())
        for peer_id, broker in self.brokers.items():
            parts = broker.parts
            if parts is not None:
                self._hook(broker, parts)
            is_master = parts is not None and not parts.config.is_slave
            if is_master and not self._masters.get(peer_id):
                self.masters += 1
                self._check_facts(peer_id)
            self._masters[peer_id] = is_master
            if not broker.is_up:
                self.clock.after(SECOND_US, broker.start)  # one that ended by itself
        self.bugs.notify()

    # -- the end ---------------------------------------------------------------------------------

    def run(self) -> RaftBrokersOutcome:
        """
        Play the schedule.

        @raise AssertionError: an invariant does not hold, or the code under test has failed.
        """
        with self.bugs.listening():
            for broker in self.brokers.values():
                self.clock.after(int(self.rng.random() * 50_000), broker.start)
            self.clock.after(1, self._produce)
            self.clock.after(1, self._administrate)
            self.clock.after(3 * SECOND_US, self._harm)
            self.clock.after(1, self._watch)
            self.clock.run_until(FAULTS_S * SECOND_US)
            self._is_loaded = False
            self.network.heal_all()
            for broker in self.brokers.values():
                broker.disk.disarm()
                broker.flush_us = 500
                broker.thaw()
                broker.start()
            end_us = self.clock.now_us + SETTLE_S * SECOND_US
            why = "not looked at"
            while why:
                if self.clock.now_us >= end_us:
                    raise QueuesBroken(f"after {SETTLE_S} s without faults: {why}")
                self.clock.run_until(self.clock.now_us + SECOND_US // 2)
                why = self._difference()
            self._check()
            for peer_id in self.brokers:
                self._check_facts(peer_id)
            self.check_takes()
        problems = [reason for broker in self.brokers.values() for reason in broker.reasons]
        if problems:
            raise QueuesBroken(f"ended by themselves: {problems}")
        return RaftBrokersOutcome(
            seed=self.seed, acked=len(self.acked), unknown=self.unknown, refused=len(self.refused_keys),
            masters=self.masters, faults=self.faults, simulated_s=self.clock.now_us / SECOND_US,
        )

    def _difference(self) -> str:
        """What is still to come; empty if all brokers run and have caught up."""
        ends = set()
        masters = 0
        for peer_id, broker in self.brokers.items():
            parts, node = broker.parts, node_of(broker)
            if parts is None or node is None or not parts.store.is_ready:
                return f"{peer_id} does not run"
            log = parts.store.log
            assert isinstance(log, RaftLog)
            masters += not parts.config.is_slave
            indexing = parts.store.indexing
            assert indexing is not None
            ends.add((log.record_end, log.ledger_end, parts.store.reput.offset, indexing.index.offset))
        if masters != 1:
            return f"{masters} masters"
        if len(ends) != 1 or len(set(*ends)) != 1:
            return f"ends {ends}"
        master = next(one for one in self.brokers.values() if not _parts_of(one).config.is_slave)
        parts, node = _parts_of(master), node_of(master)
        assert node is not None
        return self.logged.lacks(parts) or self.logged.unwritten(parts, node.term)

    def _queues(self, broker: BrokerMachine) -> dict[tuple[str, int], list[tuple[int, int, str]]]:
        """Queue to queue offset, offset in the log and key of its messages."""
        parts = broker.parts
        assert parts is not None
        found: dict[tuple[str, int], list[tuple[int, int, str]]] = {}
        for key in parts.store.queues.keys():
            queue = parts.store.queues.get(*key)
            assert queue is not None
            units = queue.read(queue.begin_index, queue.next_index - queue.begin_index)
            messages = [decode_message(parts.store.log.read(unit.offset, unit.size)) for unit in units]
            found[key] = [(one.queue_offset, one.physical_offset, one.keys[0]) for one in messages]
        return found

    def _check(self) -> None:
        queues = {peer_id: self._queues(broker) for peer_id, broker in self.brokers.items()}
        first, *others = queues
        for peer_id in others:
            if queues[peer_id] != queues[first]:
                where = differing_place(queues[peer_id], queues[first])
                raise QueuesBroken(f"the queues of {peer_id} and {first} differ: {where}")
        places: dict[str, Acked] = {}
        for (topic, queue_id), messages in queues[first].items():
            if [place for place, _, _ in messages] != list(range(len(messages))):
                raise QueuesBroken(f"queue {topic}/{queue_id} is not dense")
            for place, offset, key in messages:
                if key in places:
                    raise QueuesBroken(f"{key} is in the queues twice")
                places[key] = Acked(topic, queue_id, place, offset)
        for key, acked in self.acked.items():
            if places.get(key) != acked:
                raise QueuesBroken(f"{key} was acknowledged at {acked}, and is at {places.get(key)}")
            for peer_id in self.brokers:
                if acked.offset not in self._by_key(peer_id, acked.topic, key):
                    raise QueuesBroken(f"{key} was acknowledged at {acked}, and {peer_id} has no such key")
        stored = self.refused_keys & places.keys()
        if stored:
            raise QueuesBroken(f"refused, but stored: {sorted(stored)[:5]}")

    def _check_facts(self, peer_id: str) -> None:
        parts = self.brokers[peer_id].parts
        forgotten = self.facts.forgotten(parts.metadata) if parts is not None else ""
        if forgotten:
            raise QueuesBroken(f"{peer_id}: {forgotten}")

    def _by_key(self, peer_id: str, topic: str, key: str) -> list[int]:
        """Offsets of the messages that a broker finds by a key."""
        parts = self.brokers[peer_id].parts
        assert parts is not None and parts.store.indexing is not None
        return list(parts.store.indexing.index.search(hash_of_key(topic, key), 0, 1 << 62))

    def check_takes(self) -> None:
        """After all faults the group takes a message within its time."""
        # A leader that heard of no majority during the faults may step down only now.
        before, end_us = len(self.acked), self.clock.now_us + TAKES_S * SECOND_US
        while len(self.acked) == before:
            if self.clock.now_us >= end_us:
                raise QueuesBroken("the master takes no messages")
            for broker in self.brokers.values():
                broker.call(self._put, broker)
            self.clock.run_until(self.clock.now_us + 2 * SECOND_US)


def _parts_of(broker: BrokerMachine) -> BrokerParts:
    assert broker.parts is not None
    return broker.parts


def run_seed(seed: int) -> RaftBrokersOutcome:
    """Play the schedule of a seed. @raise AssertionError: see L{RaftBrokers.run}."""
    return RaftBrokers(seed).run()
