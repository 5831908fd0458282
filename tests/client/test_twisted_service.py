# -*- test-case-name: tests.client.test_twisted_service -*-
"""A log as a service of an application."""

from __future__ import annotations

from twisted.application.service import IService, MultiService
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from dledger.client.answers.values import AppendFailed, Entry
from dledger.deferred import LogService
from tests.client.fakes import FakeGroup


class LogServiceTests(SynchronousTestCase):
    """Started and stopped with its application."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.group = FakeGroup(self.clock)
        self.application = MultiService()
        self.log = LogService(
            self.group.peers, reactor=self.clock, endpoint_for=self.group.endpoint_for,
        )
        self.log.setServiceParent(self.application)

    def test_each_call_reaches_the_group(self) -> None:
        """Each call reaches the group."""
        verifyObject(IService, self.log)
        self.application.startService()
        one, many = self.log.append(b"one"), self.log.append_many([b"two", b"three"])
        self.group.settle()
        self.assertEqual(self.successResultOf(one).index, 0)
        self.assertEqual([run.count for run in self.successResultOf(many)], [2])
        entry, status, leader = self.log.get(2), self.log.status(), self.log.metadata()
        self.group.run(3.0)
        self.assertEqual(self.successResultOf(entry).body, b"three")
        self.assertEqual(len(self.successResultOf(status)), 3)
        self.assertEqual(self.successResultOf(leader).member_id, "n0")
        found: list[Entry] = []

        async def read() -> None:
            async for one in self.log.tail(-2, follow=False):
                found.append(one)

        done = Deferred.fromCoroutine(read())
        self.group.run(3.0)
        self.successResultOf(done)
        self.assertEqual([one.body for one in found], [b"two", b"three"])
        moved = self.log.transfer("n0")
        self.group.run(3.0)
        self.successResultOf(moved)
        self.application.stopService()

    def test_a_stopped_service_fails_calls(self) -> None:
        """What waits fails; later calls say what to do; it can be started again."""
        self.assertIn("does not run", str(self.assertRaises(RuntimeError, self.log.append, b"x")))
        self.application.startService()
        waiting = self.log.append(b"one")
        self.application.stopService()
        self.group.settle()
        self.failureResultOf(waiting, AppendFailed)
        self.assertRaises(RuntimeError, self.log.get, 0)
        self.application.startService()
        again = self.log.append(b"two")
        self.group.settle()
        self.successResultOf(again)
        self.application.stopService()

    def test_bad_peers_are_reported(self) -> None:
        """Reported when the service starts."""
        log = LogService("n0", reactor=self.clock)
        self.assertRaises(ValueError, log.startService)
