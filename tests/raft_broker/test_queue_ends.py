# -*- test-case-name: tests.raft_broker.test_queue_ends -*-
"""Queues none of whose messages the log has any more go on where they ended, whoever is the master."""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from dledger.base.disk.hints import Hints
from dledger.raft_broker.queue_ends import QueueEnds
from dledger.rocketmq.store.queues.consume_queues import ConsumeQueues
from dledger.rocketmq.store.queues.unit_check import TornUnits
from dledger.testing.world.memory_disk import MemoryDisk
from protocols.wire.errors import BodyError
from protocols.wire.rocketmq.layout import METADATA_TOPIC
from protocols.wire.rocketmq.message import decode_message
from tests.broker.send_support import send_of
from tests.broker.support import config_of
from tests.raft_broker.rig import RaftCase


class TableTests(SynchronousTestCase):
    """The table alone."""

    def setUp(self) -> None:
        self.queues = ConsumeQueues(config_of(), Hints(MemoryDisk()))
        self.addCleanup(self.queues.close)
        self.given_out = {("T1", 0): 7, ("T1", 1): 0, ("T@2", 3): 9}
        self.table = QueueEnds(self.queues, lambda: self.given_out)

    def apply(self, **changes: Any) -> None:
        """Of one queue."""
        self.table.apply({"T1@0": 5, **changes}, None)

    def test_a_master_lists_what_it_gave_out(self) -> None:
        """Each queue with a message, by its topic and number."""
        self.assertEqual({name: self.table.logged(name) for name in self.table.names()},
                         {"T1@0": 7, "T@2@3": 9})
        self.assertEqual((self.table.logged("T9@0"), self.table.logged_version()), (None, None))

    def test_a_queue_without_messages_goes_on(self) -> None:
        """Its next message has the offset of the entry, also after a restart of the queues."""
        self.apply()
        self.assertEqual(self.queues.bounds("T1", 0), (5, 5))
        self.assertTrue(self.queues.put("T1", 0, 5, 1000, 100, 0))
        self.assertEqual(self.queues.bounds("T1", 0), (5, 6))

    def test_a_queue_with_messages_stays(self) -> None:
        """And so does one that is further."""
        self.queues.put("T1", 0, 0, 1000, 100, 0)
        self.apply()
        self.assertEqual(self.queues.bounds("T1", 0), (0, 1))
        self.queues.expire(2000)
        self.table.apply({"T1@0": 1}, None)
        self.assertEqual(self.queues.bounds("T1", 0), (1, 1))
        self.apply()
        self.assertEqual(self.queues.bounds("T1", 0), (5, 5))

    def test_malformed_entries_change_nothing(self) -> None:
        """Neither those before them; a name that no topic can have is passed over."""
        for changes in ({"T1": 1}, {"T1@": 1}, {"T1@x": 1}, {"T1@-1": 1}, {"T1@1": -1}, {"T1@1": "x"},
                        {"T1@1": None}, {"T1@1": {}}, {"T1@1": 1 << 63}, {f"T1@{1 << 31}": 1}):
            self.assertRaises(BodyError, self.apply, **changes)
        self.assertEqual(self.queues.keys(), [])
        self.apply(**{"a/b@1": 5, "../x@0": 5})
        self.assertEqual(self.queues.keys(), [("T1", 0)])

    def test_the_list_of_queues_keeps_it(self) -> None:
        """A start finds the place in the list, without a file of the queue."""
        disk = MemoryDisk()
        queues = ConsumeQueues(config_of(), Hints(disk))
        QueueEnds(queues, dict).apply({"T1@0": 5}, None)
        for step in queues.prepare_flush():
            step()
        queues.finish_flush()
        queues.close()
        twin = ConsumeQueues.open(
            config_of(), Hints(disk), log_begin=0, log_end=0, is_trusted=False, crashed=False,
            torn=TornUnits(lambda at, size: b"", range(0), 0),
        )
        self.addCleanup(twin.close)
        self.assertEqual(twin.bounds("T1", 0), (5, 5))


class BrokerTests(RaftCase):
    """A whole broker."""

    def test_a_master_writes_the_ends(self) -> None:
        """When it becomes one, and again when the log has lost that."""
        self.start()
        self.ask(send_of(b"one"), send_of(b"two"))
        self.assertEqual(self.written(), [])
        self.replication.metadata.tick(self.broker.store.log.ledger_end, self.broker.store.log.ledger_end)
        self.settle(1)
        (found,) = self.written()
        self.assertIn(b'"tables":{"queueEnds":{"dataVersion":null,"entries":{"T1@0":2', found)
        self.stop()
        self.start()
        self.settle(1)
        self.assertEqual(len(self.written()), 2)
        self.stop()

    def written(self) -> list[bytes]:
        """All records with this table."""
        store, found = self.raft.member.store, []
        for index in range(store.ledger_end_index + 1):
            batch = store.read_range(index, end_index=index, max_bytes=1)
            if METADATA_TOPIC.encode() in batch.records and b"queueEnds" in batch.records:
                found.append(decode_message(batch.records[48:]).body)
        return found
