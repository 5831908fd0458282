# -*- test-case-name: tests.base.commands.test_held -*-
"""Requests that wait: by key, by connection, and once each when they are woken."""

from __future__ import annotations

from typing import Any, cast

from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.answering.held import HeldRequest, HeldRequests
from protocols.rocketmq.commands import CommandConnection
from protocols.wire.remoting import RemotingCommand

ONE, OTHER = cast(CommandConnection, "one"), cast(CommandConnection, "other")


def a_request(connection: CommandConnection = ONE, deadline_s: float = 1.0) -> HeldRequest:
    """Of a connection."""
    return HeldRequest(connection, cast(RemotingCommand, object()), deadline_s)


class HeldTests(SynchronousTestCase):
    """The table."""

    def setUp(self) -> None:
        """Two requests for one key, one for another of another connection."""
        self.table: HeldRequests[str, HeldRequest] = HeldRequests()
        self.first, self.second, self.third = a_request(), a_request(deadline_s=2), a_request(OTHER, 3)
        for key, held in (("q", self.first), ("q", self.second), ("r", self.third)):
            self.table.hold(key, held)

    def test_held(self) -> None:
        """Each is found by its key and by its connection, in the order of arrival."""
        self.assertEqual(list(self.table), [self.first, self.second, self.third])
        self.assertEqual((len(self.table), list(self.table.by_key)), (3, ["q", "r"]))
        self.assertEqual(list(self.table.of("q")), [self.first, self.second])
        self.assertEqual(list(self.table.of("s")), [])
        self.assertEqual(self.table.of_connection(OTHER), [self.third])
        self.assertIn(self.first, self.table)
        self.assertNotIn(a_request(), self.table)

    def test_released(self) -> None:
        """It is nowhere any more; the last one of a key is reported, and leaves nothing."""
        self.assertFalse(self.table.release(self.first))
        self.assertNotIn(self.first, self.table)
        self.assertEqual((list(self.table.of("q")), self.table.of_connection(ONE)), ([self.second],) * 2)
        self.assertTrue(self.table.release(self.second))
        self.assertTrue(self.table.release(self.third))
        self.assertEqual((len(self.table), list(self.table.by_key)), (0, []))
        fields = cast(Any, self.table)
        self.assertEqual((fields.by_key, fields._by_connection, fields._keys), ({}, {}, {}))

    def test_released_meanwhile(self) -> None:
        """An answer may end a connection, and so release others before their turn."""
        seen = []
        for held in self.table:
            seen.append(held)
            if self.second in self.table:
                self.table.release(self.second)
        self.assertEqual(seen, [self.first, self.third])

    def test_due(self) -> None:
        """A deadline is over when it is reached."""
        self.assertEqual(list(self.table.due(2.0)), [self.first, self.second])

    def test_woken(self) -> None:
        """Once each, in the order of waking, those that are still held, with a bound for each time."""
        for held in (self.second, self.first, self.second, self.third):
            self.table.wake(held)
        self.table.release(self.first)
        self.assertEqual(list(self.table.woken(2)), [self.second])
        self.assertTrue(self.table.has_woken)
        self.assertEqual(list(self.table.woken(9)), [self.third])
        self.assertFalse(self.table.has_woken)

    def test_woken_again(self) -> None:
        """One that is woken while it is looked at comes the next time; an owner may stop half-way."""
        self.table.wake(self.first)
        self.table.wake(self.second)
        for held in self.table.woken(9):
            self.table.wake(held)
            break
        self.assertEqual(list(self.table.woken(9)), [self.second, self.first])

    def test_forgotten(self) -> None:
        """When the owner stops, nothing is looked at again."""
        self.table.wake(self.first)
        self.table.forget_woken()
        self.assertEqual(list(self.table.woken(9)), [])
