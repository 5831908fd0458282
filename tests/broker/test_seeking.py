# -*- test-case-name: tests.broker.test_seeking -*-
"""A slave that does not know its master asks for it, and soon; until then it serves its own log."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from dledger.testing.world.memory_disk import MemoryDisk
from tests.broker.send_support import Sending, send_of


class SeekingTests(SynchronousTestCase):
    """Whether a broker asks its name servers every few seconds."""

    def seeks(self, *learned: tuple[str, str], role: str = "SLAVE", **ha: str) -> bool:
        """What a broker says that has learned these addresses."""
        broker = Sending(broker_role=role, **ha)
        self.addCleanup(broker.stop)
        replication = broker.broker.replication
        if (following := replication.following) is not None:
            self.patch(following, "_endpoint_of", lambda address: address)  # the slave is not started
            self.addCleanup(following.unfollow)
            for master, ha_address in learned:
                following.learned(master, ha_address)
        return following is not None and following.seeks_master()

    def test_slave(self) -> None:
        """Until it knows both addresses of its master."""
        self.assertTrue(self.seeks())
        self.assertTrue(self.seeks(("10.0.0.7:10911", "")))
        self.assertFalse(self.seeks(("10.0.0.7:10911", "10.0.0.7:10912")))

    def test_master(self) -> None:
        """It follows nobody."""
        self.assertFalse(self.seeks(role="ASYNC_MASTER"))


class OwnTopicsTests(SynchronousTestCase):
    """A slave that was stopped before it had copied a new topic."""

    def test_served(self) -> None:
        """It has the messages, and says so; its table is not changed."""
        disk = MemoryDisk()
        master = Sending(disk)
        (answer,) = master.connect().send(send_of(b"held", topic="New", queueId=1))
        self.assertEqual(answer.code, 0)
        master.settle()
        master.store.abandon()
        slave = Sending(disk, broker_role="SLAVE")
        self.addCleanup(slave.stop)
        topics = slave.broker.metadata.topics
        version = topics.version
        topics.entries.pop("New", None)
        slave.broker.lost_topics.restore()
        found = topics.get("New")
        assert found is not None
        self.assertGreaterEqual(found.read_queue_nums, 2)
        self.assertEqual(topics.version, version)
