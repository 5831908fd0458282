# -*- test-case-name: tests.sim.test_logged_tables -*-
"""B26, broken by hand: tables of brokers that are not the fold of the metadata in their log."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from dledger.raft_broker.metadata_log import MetadataLog
from dledger.raft_broker.replication import RaftReplication
from dledger.rocketmq.broker.parts import BrokerParts
from dledger.rocketmq.metadata.tables import GroupConfig, TopicConfig
from dledger.rocketmq.store.records.plain_records import plain_batch
from dledger.rocketmq.store.records.records import NewMessage
from dledger.testing.brokers.rig.accounts import PairBroken
from dledger.testing.brokers.rig.machine import BrokerMachine
from dledger.testing.raft_brokers.logged_tables import look_at_tables
from dledger.testing.raft_brokers.raft import hand_over, node_of
from dledger.testing.raft_brokers.schedule import RaftWorld
from protocols.wire.rocketmq.message import Host

_HOST = Host.of("10.0.0.1", 10911)
_NOW_MS = 1_700_000_000_000


class LoggedTablesCase(SynchronousTestCase):
    """A group without faults and messages, that has a master."""

    def setUp(self) -> None:
        self.rig = RaftWorld(1, faults=("nothing",))
        for broker in self.rig.machines.values():
            broker.start()
        self.run_for(5.0)
        self.master, *self.slaves = sorted(
            self.rig.machines.values(), key=lambda one: self.parts_of(one).config.role.is_slave
        )
        self.change("g1", 7)
        self.run_for(2.0)
        self.look()

    def tearDown(self) -> None:
        self.flushLoggedErrors()

    def run_for(self, seconds: float) -> None:
        self.rig.clock.run_until(self.rig.clock.now_us + int(seconds * 1_000_000))

    def look(self) -> None:
        look_at_tables(self.rig.logged, self.rig.machines.values())

    @staticmethod
    def parts_of(broker: BrokerMachine) -> BrokerParts:
        assert broker.parts is not None
        return broker.parts

    def put(self, broker: BrokerMachine, name: str, tries: int) -> None:
        self.parts_of(broker).metadata.groups.put(
            GroupConfig(group_name=name, retry_max_times=tries), _NOW_MS
        )

    def change(self, name: str, tries: int) -> None:
        self.master.call(self.put, self.master, name, tries)


class SlaveTests(LoggedTablesCase):
    """The tables of slaves."""

    def test_sound_tables_are_compared(self) -> None:
        """Every entry in the log is compared once, and again after a start."""
        compared = self.rig.logged.compared
        self.assertGreater(compared, 10)
        self.look()
        self.assertEqual(self.rig.logged.compared, compared)
        self.slaves[0].kill()
        self.slaves[0].start()
        self.run_for(3.0)
        self.look()
        self.assertGreater(self.rig.logged.compared, compared + 5)

    def test_entry_that_is_not_applied(self) -> None:
        """A record that a slave passes over is noticed when it is dispatched there."""
        self.patch(MetadataLog, "apply", lambda log, record, offset, is_kept: True)
        self.change("g1", 8)
        self.run_for(2.0)
        error = self.assertRaises(PairBroken, self.look)
        self.assertIn("groups g1", str(error))

    def test_entry_that_a_start_has_lost(self) -> None:
        """All entries are compared when a process has caught up, also those with older records."""
        slave = self.slaves[0]
        slave.kill()
        slave.start()
        self.patch(RaftReplication, "metadata_logged", lambda self, *where, is_kept: None)
        self.run_for(3.0)
        self.parts_of(slave).metadata.groups.delete("g1", _NOW_MS)
        self.assertRaises(PairBroken, self.look)

    def test_offsets_of_a_deleted_topic(self) -> None:
        """They are over with the note of the deletion; a table that has them still is noticed."""
        offsets = self.parts_of(self.master).metadata.consumer_offsets
        self.master.call(offsets.commit, "made_g", "T", 0, 5, _NOW_MS)
        self.master.call(offsets.commit, "made_g", "U", 0, 6, _NOW_MS)
        self.run_for(2.0)
        slave = self.parts_of(self.slaves[0]).metadata.consumer_offsets
        self.assertEqual((slave.logged("T@made_g"), slave.logged("U@made_g")), ({"0": 5}, {"0": 6}))
        self.master.call(self.parts_of(self.master).note_deletion, "T")
        self.run_for(2.0)
        self.assertEqual((slave.logged("T@made_g"), slave.logged("U@made_g")), (None, {"0": 6}))
        self.look()
        slave._place_of = lambda topic: 0
        self.slaves[0].boots += 1  # all entries are compared again
        error = self.assertRaises(PairBroken, self.look)
        self.assertIn("consumerOffsets T@made_g is {'0': 5}, and None in the log", str(error))

    def test_a_queue_that_ends_too_early(self) -> None:
        """A queue of a slave goes as far as the log says."""
        master = self.parts_of(self.master)
        replication = master.replication
        assert isinstance(replication, RaftReplication)
        replication.stamps.queue_offsets["T", 7] = 5
        self.master.call(replication.metadata.begin, master.store.log.ledger_end)
        self.run_for(2.0)
        parts = self.parts_of(self.slaves[0])
        self.assertEqual(parts.store.queues.bounds("T", 7), (5, 5))
        parts.store.queues.destroy("T")
        error = self.assertRaises(PairBroken, self.look)
        self.assertIn("the queue T@7 is None, and ends at 5", str(error))

    def test_former_masters_are_not_judged_yet(self) -> None:
        """What was never committed stays until the next master has written it again."""
        former, slave = self.slaves
        role = self.parts_of(former).config.role
        role.become("SYNC_MASTER", 0)
        self.look()
        role.become("SLAVE", 1)
        for broker in self.slaves:
            broker.kill()
            broker.start()
        self.run_for(3.0)
        self.put(former, "g1", 9)
        self.look()
        slave.kill()
        slave.start()
        self.run_for(3.0)
        self.put(slave, "g1", 9)
        self.assertRaises(PairBroken, self.look)


    def test_a_reign_between_two_looks(self) -> None:
        """A master whose first changes were never committed, and which is none any more at the next look."""
        former = self.slaves[0]
        self.master.call(hand_over, self.master, former.name)
        while self.parts_of(former).config.role.is_slave:
            self.run_for(0.001)
        for broker in (self.master, *self.slaves):
            broker.kill()
        former.start()
        self.run_for(3.0)
        self.put(former, "g1", 9)
        compared = self.rig.logged.compared
        self.look()
        self.assertEqual(self.rig.logged.compared, compared)


class MasterTests(LoggedTablesCase):
    """What a master has written."""

    def test_log_has_all_entries(self) -> None:
        """An entry that has just changed may be missing; an older one may not."""
        parts = self.parts_of(self.master)
        self.assertEqual(self.rig.logged.lacks(parts), "")
        self.patch(MetadataLog, "tick", lambda log, begin_offset, log_end: None)
        self.change("g1", 9)
        self.assertEqual(self.rig.logged.lacks(parts), "")
        self.run_for(3.0)
        self.look()
        self.assertIn("lacks groups g1", self.rig.logged.lacks(parts))

    def test_new_master_writes_all(self) -> None:
        """Each entry is in a record of the master's own term."""
        parts, node = self.parts_of(self.master), node_of(self.master)
        assert node is not None
        self.assertEqual(self.rig.logged.unwritten(parts, node.term), "")
        self.assertIn("in no record", self.rig.logged.unwritten(parts, node.term + 1))

    def test_expired_entries_are_missed(self) -> None:
        """A record before the begin of the log is as good as none."""
        parts = self.parts_of(self.master)
        parts.store.log.begin_offset = parts.store.log.record_end  # type: ignore[misc]
        self.assertIn("lacks", self.rig.logged.lacks(parts))

    def test_topic_after_its_message(self) -> None:
        """A topic whose record follows its first message."""
        self.patch(MetadataLog, "topics_first", lambda log: None)
        self.master.call(self.send, "late")
        self.run_for(2.0)
        error = self.assertRaises(PairBroken, self.look)
        self.assertIn("topic late", str(error))

    def send(self, topic: str) -> None:
        parts = self.parts_of(self.master)
        parts.metadata.topics.put(TopicConfig(topic_name=topic), _NOW_MS)
        parts.pipeline.put(plain_batch([NewMessage(
            topic=topic, queue_id=0, body=b"", flag=0, sys_flag=0, properties_data=b"", born_timestamp=1,
            born_host=_HOST, store_host=_HOST,
        )]))
