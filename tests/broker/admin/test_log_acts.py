# -*- test-case-name: tests.broker.admin.test_log_acts -*-
"""Acts of a broker's pages on its commit log."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred, fail, succeed

from dledger.rocketmq.broker.admin.ha_resolve import HAResolve
from dledger.rocketmq.broker.admin.log_acts import FLUSH_S, LogActs
from dledger.rocketmq.broker.options.operators import NotDone
from dledger.values.errors import StoreError
from tests.broker.admin.test_ha_resolve import ResolveCase
from tests.broker.asked import Asked


class ActsTests(ResolveCase):
    """Of a slave."""

    def acts(self, asked: Asked | None = None) -> LogActs:
        """Of it, or of another broker."""
        of = asked or self.asked
        resolve = HAResolve(of.ha, of.store, of.disk, master_range=self.range)
        return LogActs(of.store.log, resolve, of.clock)

    def result(self, coming: Any) -> Any:
        """The answer at once."""
        return self.successResultOf(Deferred.fromCoroutine(coming))

    def refusal(self, coming: Any) -> str:
        """Why it is not done."""
        failure = self.failureResultOf(Deferred.fromCoroutine(coming), NotDone)
        return failure.getErrorMessage()

    def test_resolve(self) -> None:
        """Shown, then decided about what was shown; the files of before are kept."""
        self.stop()
        acts = self.acts()
        found = self.result(acts.stopped())
        self.assertTrue(found["stopped"])
        self.assertIn("look again", self.refusal(acts.resolve("take-master", common_end=0, our_end=-1)))
        done = self.result(acts.resolve(
            "take-master", common_end=found["commonEnd"], our_end=found["ourEnd"]
        ))
        self.assertEqual(done, {"directory": "base/commitlog.set-aside-1"})
        self.assertTrue(self.asked.disk.listdir("base/commitlog.set-aside-1"))
        self.assertIn("nothing to decide", self.refusal(acts.resolve("try-again", common_end=0, our_end=0)))

    def test_try_again(self) -> None:
        """The slave compares again."""
        self.stop()
        self.assertEqual(self.result(self.acts().resolve("try-again", common_end=-1, our_end=-1)), {})
        self.assertFalse(self.slave.is_stopped)

    def test_no_room(self) -> None:
        """Files that cannot be moved are a refusal."""
        self.stop()
        found = self.result(self.acts().stopped())
        self.patch(self.slave, "take_master", lambda: fail(OSError(28, "No space left on device")))
        said = self.refusal(self.acts().resolve(
            "take-master", common_end=found["commonEnd"], our_end=found["ourEnd"]
        ))
        self.assertIn("No space left", said)

    def test_master(self) -> None:
        """Has nothing to decide."""
        master = Asked()
        self.addCleanup(master.close)
        self.assertIn("is a master", self.refusal(self.acts(master).stopped()))
        self.assertIn("is a master", self.refusal(
            self.acts(master).resolve("try-again", common_end=-1, our_end=-1)
        ))

    def test_flush(self) -> None:
        """Done, failed, or too late."""
        log = self.asked.store.log
        self.patch(log, "flush", lambda: succeed(9))
        self.assertEqual(self.result(self.acts().flush()), 9)
        self.patch(log, "flush", lambda: fail(StoreError("the disk is broken")))
        self.assertIn("the disk is broken", self.refusal(self.acts().flush()))
        self.patch(log, "flush", lambda: Deferred())
        waiting = Deferred.fromCoroutine(self.acts().flush())
        self.asked.clock.advance(FLUSH_S - 0.1)
        self.assertNoResult(waiting)
        self.asked.clock.advance(0.2)
        self.assertIn("after 10 s", self.failureResultOf(waiting, NotDone).getErrorMessage())
