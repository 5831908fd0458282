# -*- test-case-name: tests.broker.admin.test_ha_resolve -*-
"""An operator decides about a slave that has stopped."""

from __future__ import annotations

import json
from typing import Any

from twisted.internet.defer import Deferred, fail, succeed
from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.broker.admin.ha_resolve import RESOLVE_HA, HAResolve
from dledger.rocketmq.replication.slave import LogRange
from dledger.rocketmq.replication.slave_session import SlaveSession
from protocols.wire.remoting import RemotingCommand
from tests.broker.asked import Asked
from tests.broker.ha.fakes import stream


class ResolveCase(SynchronousTestCase):
    """A slave whose log is another one than its master's."""

    def setUp(self) -> None:
        self.asked = Asked(is_slave=True)
        self.addCleanup(self.asked.close)
        self.ranges: list[Any] = [succeed(LogRange(begin_offset=0, end_offset=700))]
        self.asked.groups = [
            HAResolve(self.asked.ha, self.asked.store, self.asked.disk, master_range=self.range)
        ]
        self.client = self.asked.client()
        slave = self.asked.ha.slave
        assert slave is not None
        self.slave = slave

    def range(self) -> Deferred[LogRange]:
        """The master's answer."""
        found: Deferred[LogRange] = self.ranges.pop(0)
        return found

    def stop(self, *, theirs: bytes | None = None) -> None:
        """It holds 1000 bytes, and finds other ones at its master."""
        log = self.asked.store.log
        log.append_raw(0, stream(1000))
        session = SlaveSession(log)
        problem = "bad" if theirs else ""
        self.slave._stop_replication(session.difference(500, log.record_end_below(500), "", problem))

    def ask(self, **fields: object) -> RemotingCommand:
        """The one request."""
        return self.client.ask(RESOLVE_HA, fields)


class ShowTests(ResolveCase):
    """Nothing changes."""

    def test_both_sides(self) -> None:
        """The bounds of both logs, the difference, and what would be given up."""
        self.stop()
        log = self.asked.store.log
        common = log.record_end_below(500)
        answer = json.loads(self.ask().body)
        self.assertIn("both are sound", answer.pop("reason"))
        self.assertIn("replication has stopped", answer.pop("problem"))
        self.assertEqual(answer, {
            "master": "", "stopped": True, "decidable": True, "connected": False, "ourBegin": 0,
            "ourEnd": log.end_offset,
            "masterBegin": 0, "masterEnd": 700, "setAside": [], "differsAt": 500, "commonEnd": common,
            "ourProblem": "", "masterProblem": "", "bytes": log.end_offset - common,
            "messages": (log.end_offset - common) // (log.end_offset // 11), "countedTo": log.end_offset,
        })
        self.assertIsNotNone(self.slave.status().difference)

    def test_not_stopped(self) -> None:
        """There is nothing to decide, and a master that does not report its bounds is named as such."""
        self.ranges = [fail(OSError("no answer"))]
        answer = json.loads(self.ask(action="show").body)
        self.assertEqual((answer["stopped"], answer["masterEnd"]), (False, -1))
        for action in ("take-master", "try-again"):
            self.assertIn("nothing to decide", self.ask(action=action).remark or "")

    def test_refused(self) -> None:
        """An unknown action; a master."""
        self.assertIn("not one of show, take-master, try-again", self.ask(action="cut").remark or "")
        master = Asked()
        self.addCleanup(master.close)
        master.groups = [
            HAResolve(master.ha, master.store, master.disk, master_range=self.range)
        ]
        self.assertIn("is a master", master.client().ask(RESOLVE_HA, {}).remark or "")


class DecisionTests(ResolveCase):
    """Only what was seen can be decided."""

    def fields(self) -> dict[str, object]:
        """As the operator has seen it."""
        found = self.slave.status().difference
        assert found is not None
        return {"action": "take-master", "commonEnd": found.common_end, "ourEnd": found.our_end}

    def test_take_master(self) -> None:
        """The files are kept, and the log ends with the common part."""
        self.stop()
        fields = self.fields()
        answer = self.ask(**fields)
        self.assertEqual(json.loads(answer.body), {"directory": "base/commitlog.set-aside-1"})
        self.assertEqual(self.asked.store.log.end_offset, fields["commonEnd"])
        self.assertIsNone(self.slave.status().difference)

    def test_another_state(self) -> None:
        """An offset that is not the present one, or is missing, decides nothing."""
        self.stop()
        fields = self.fields()
        for wrong in ({"commonEnd": 0}, {"ourEnd": 7}):
            self.assertIn("look again", self.ask(**{**fields, **wrong}).remark or "")
        self.assertIn("commonEnd", self.ask(action="take-master").remark or "")
        self.assertIsNotNone(self.slave.status().difference)

    def test_hasty_operator(self) -> None:
        """While a decision is being carried out, a further one is refused."""
        self.stop()
        fields = self.fields()
        copying: Deferred[str] = Deferred()
        self.patch(type(self.asked.store.log), "set_aside", lambda *_: copying)
        self.client.send(RESOLVE_HA, fields)
        self.assertIn("wait for its end", self.ask(**fields).remark or "")
        self.assertIn("wait for its end", self.ask(action="try-again").remark or "")
        self.assertEqual(self.flushLoggedErrors(), [])

    def test_never_for_rot(self) -> None:
        """Our sound record is not given up for one that is not."""
        self.stop(theirs=b"x")
        self.assertIn("repair the master", self.ask(**self.fields()).remark or "")
        self.assertGreater(self.asked.store.log.end_offset, 900)

    def test_try_again(self) -> None:
        """No file changes."""
        self.stop()
        self.assertEqual(self.ask(action="try-again").code, 0)
        self.assertIsNone(self.slave.status().difference)
        self.assertGreater(self.asked.store.log.end_offset, 900)
