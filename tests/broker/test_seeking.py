# -*- test-case-name: tests.broker.test_seeking -*-
"""A slave that does not know its master asks for it, and soon."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.broker.send_support import Sending


class SeekingTests(SynchronousTestCase):
    """Whether a broker asks its name servers every few seconds."""

    def seeks(self, *learned: tuple[str, str], role: str = "SLAVE", **ha: str) -> bool:
        """What a broker says that has learned these addresses."""
        broker = Sending(broker_role=role, **ha)
        self.addCleanup(broker.stop)
        replication = broker.broker.replication
        if (following := replication.following) is not None:
            self.patch(following, "_endpoint_of", lambda address: address)  # the slave is not started
            self.addCleanup(following.stop)
        for master, ha_address in learned:
            replication.learned(master, ha_address)
        return replication.seeks_master()

    def test_slave(self) -> None:
        """Until it knows both addresses of its master."""
        self.assertTrue(self.seeks())
        self.assertTrue(self.seeks(("10.0.0.7:10911", "")))
        self.assertFalse(self.seeks(("10.0.0.7:10911", "10.0.0.7:10912")))

    def test_master(self) -> None:
        """It follows nobody."""
        self.assertFalse(self.seeks(role="ASYNC_MASTER"))
