# -*- test-case-name: tests.node.test_redial -*-
"""The attempts to reach one member, and their waits."""

from __future__ import annotations

import random

from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import Clock
from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from dledger.node.connections.redial import HURRY_S, RETRY_MAX_S, Redial, retry_policy
from tests.node.test_peers import FakeEndpoint


class PolicyTests(SynchronousTestCase):
    """The waits."""

    def test_pauses_between_attempts_grow(self) -> None:
        """They grow, are bounded, and differ between members."""
        wait_s = retry_policy(random.Random(1))
        self.assertTrue(all(0 < wait_s(attempt) <= RETRY_MAX_S for attempt in range(2000)))
        self.assertLess(wait_s(0), 0.06)
        self.assertGreaterEqual(wait_s(100), RETRY_MAX_S / 2)
        self.assertNotEqual(wait_s(100), wait_s(100))


class RedialTests(SynchronousTestCase):
    """One member."""

    def setUp(self) -> None:
        self.clock, self.endpoint = Clock(), FakeEndpoint()
        self.redial = Redial("n1", self.endpoint, self.clock, random.Random(1))
        self.addCleanup(self.redial.stop)

    def start(self) -> None:
        """Begin."""
        self.redial.start(Factory.forProtocol(Protocol))

    def test_only_the_first_failure_is_logged(self) -> None:
        """Only the first failed attempt since the last connection is logged."""
        with capturedLogs() as events:
            self.start()
            for _ in range(3):
                self.endpoint.fail()
                self.clock.advance(RETRY_MAX_S)
        self.assertEqual([event["peer_id"] for event in events], ["n1"])
        self.redial.connected()
        with capturedLogs() as events:
            self.endpoint.fail()
        self.assertEqual(len(events), 1)

    def test_unanswered_connections_count_as_failed(self) -> None:
        """Connections that are not answered count as failed attempts: the waits go on growing."""
        self.redial.unheard = 100
        self.start()
        self.endpoint.fail()
        self.clock.advance(RETRY_MAX_S / 2 - 0.01)
        self.assertEqual(self.endpoint.attempts, [])
        self.clock.advance(RETRY_MAX_S / 2 + 0.01)
        self.assertEqual(len(self.endpoint.attempts), 1)

    def test_first_of_them(self) -> None:
        """It knows the first connection since the last answer, and its end."""
        self.assertEqual([self.redial.connected(), self.redial.lost()], [True, True])
        self.assertEqual([self.redial.connected(), self.redial.lost()], [False, False])
        self.redial.unheard = 0
        self.assertEqual([self.redial.connected(), self.redial.lost()], [True, True])

    def test_a_hurry_ends_one_wait(self) -> None:
        """It ends a wait, at most once in a time."""
        self.redial.unheard = 100
        self.start()
        self.endpoint.fail()
        self.redial.hurry(100.0)
        self.assertEqual(len(self.endpoint.attempts), 1)
        self.endpoint.fail()
        self.redial.hurry(100.0 + HURRY_S / 2)
        self.assertEqual(self.endpoint.attempts, [])
        self.redial.hurry(100.0 + HURRY_S)
        self.assertEqual(len(self.endpoint.attempts), 1)

    def test_a_hurry_during_an_attempt(self) -> None:
        """The attempt goes on. If it fails, the next one begins at once, and only that one."""
        self.redial.unheard = 100
        self.start()
        for now_s in (100.0, 100.0 + HURRY_S / 2):
            self.redial.hurry(now_s)
            self.assertEqual(len(self.endpoint.attempts), 1)
        self.endpoint.fail()
        self.clock.advance(0)
        self.assertEqual(len(self.endpoint.attempts), 1)
        self.endpoint.fail()
        self.clock.advance(0)
        self.assertEqual(self.endpoint.attempts, [])

    def test_a_hurry_during_a_successful_attempt(self) -> None:
        """It is over when the attempt has succeeded: it does not shorten a later wait."""
        self.redial.unheard = 100
        self.start()
        self.redial.hurry(100.0)
        self.redial.connected()
        self.endpoint.fail()
        self.clock.advance(0)
        self.assertEqual(self.endpoint.attempts, [])

    def test_a_redial_never_started_has_nothing_to_stop(self) -> None:
        """There is nothing to stop or to hurry."""
        self.redial.hurry(100.0)
        self.successResultOf(self.redial.stop())
        self.assertEqual(self.endpoint.attempts, [])
