# -*- test-case-name: tests.broker.client.test_ha_resolve -*-
"""What an operator learns about a slave that has stopped."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.client.ha_resolve import read_stopped, show_stopped, take_master, try_again
from dledger.values.errors import DLedgerError
from protocols.wire.errors import BodyError
from tests.broker.client.test_ha_status import Brokers

ADDRESS = "10.0.0.2:10911"
SHOWN = (
    b'{"master":"10.0.0.1:10912","problem":"replication has stopped: x","stopped":true,"decidable":true,'
    b'"connected":false,'
    b'"ourBegin":0,"ourEnd":1000,"masterBegin":0,"masterEnd":700,"setAside":["d"],"differsAt":500,'
    b'"commonEnd":450,"ourProblem":"","masterProblem":"","bytes":550,"messages":6,"countedTo":1000}'
)
_Result = TypeVar("_Result")


class ResolveTests(SynchronousTestCase):
    """The requests."""

    def run_it(self, coming: Awaitable[_Result]) -> _Result:
        """The result."""

        async def run() -> _Result:
            return await coming

        result: _Result = self.successResultOf(Deferred.fromCoroutine(run()))
        return result

    def test_show(self) -> None:
        """Both sides."""
        found = self.run_it(show_stopped(Brokers({(ADDRESS, 90907): SHOWN}).ask, ADDRESS))
        self.assertEqual(
            (found.our_end, found.master_end, found.differs_at, found.common_end, found.lost_bytes,
             found.lost_messages, found.is_stopped, found.set_aside),
            (1000, 700, 500, 450, 550, 6, True, ("d",)),
        )

    def test_decisions(self) -> None:
        """They name what was shown."""
        brokers = Brokers({(ADDRESS, 90907): b'{"directory":"aside"}'})
        found = read_stopped(ADDRESS, SHOWN)
        self.assertEqual(self.run_it(take_master(brokers.ask, found)), "aside")
        self.run_it(try_again(brokers.ask, ADDRESS))

    def test_refused(self) -> None:
        """A broker that does not know it, refuses, is gone, or answers nonsense, is named with the reason."""
        for answer, words in ((3, "only our brokers"), (1, ": no"), (b"[]", ADDRESS), (b"{}", "setAside"),
                              (OSError("gone"), "gone")):
            brokers = Brokers({(ADDRESS, 90907): answer})  # type: ignore[dict-item]

            async def run(brokers: Brokers = brokers) -> object:
                return await show_stopped(brokers.ask, ADDRESS)

            failure = self.failureResultOf(Deferred.fromCoroutine(run()), DLedgerError)
            self.assertIn(words, str(failure.value.facts["reason"]))
        self.assertRaises(BodyError, read_stopped, ADDRESS, b'{"setAside":[],"ourEnd":"x"}')
