# -*- test-case-name: tests.machine.test_calls -*-
"""The machine runs in a thread of its own: what waits for it waits, and nothing else."""

from __future__ import annotations

from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock
from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from dledger.client.values import Entry
from dledger.machine.calls import LONG_S, MachineCalls
from dledger.machine.guarded import GuardedMachine
from dledger.node.host import MachineHost
from dledger.node.reporting.health import MACHINE_HANGS_S, health_problem
from dledger.testing.world.memory_disk import MemoryDisk
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.machines import QueryRequest, SubmitRequest
from protocols.wire.ledger.own.machine_entries import encode_skip
from protocols.wire.ledger.own.own_entries import MACHINE_CHANNEL
from tests.machine.machines import Journal
from tests.machine.rig import HostedRig
from tests.node.rig import FakeThread


class ThreadTests(SynchronousTestCase):
    """Batches and queries are handed over, in turn."""

    def setUp(self) -> None:
        self.calls = FakeThread()
        self.rig = HostedRig(disk=MemoryDisk(), run_machine=self.calls.run, snapshot_entries=2).run()
        self.calls.is_lazy = True

    def finish(self) -> None:
        """The next call ends."""
        self.calls.finish()
        self.rig.pass_turns()

    def test_log_goes_on(self) -> None:
        """While the machine works on a batch, entries are committed; then it gets them."""
        self.rig.append(b"1")
        self.rig.append(b"2", b"3")
        self.assertEqual((self.rig.node.committed_index, self.rig.runner.applied_index), (3, 0))
        self.assertEqual(len(self.calls.waiting), 1)
        self.finish()
        self.assertEqual(self.rig.runner.applied_index, 1)
        while self.calls.waiting:
            self.finish()
        self.assertEqual((self.rig.journal.batches, self.rig.runner.applied_index), ([1, 2], 3))

    def test_requests_wait_for_their_turn(self) -> None:
        """A command and a query, after the batch; an idle machine is asked in its thread, too."""
        client = self.rig.client()
        client.send(SubmitRequest(**self.rig.base(), command=b"1"),
                    QueryRequest(**self.rig.base(), query=b","))
        self.rig.pass_turns()
        self.assertEqual(client.answers(), [])
        while self.calls.waiting:
            self.finish()
        self.assertEqual([answer.result for answer in client.answers()], [b"1:1", b"1"])

    def test_snapshot_in_turn(self) -> None:
        """The view is taken between two batches, and has the results of that place."""
        self.rig.append(b"1")
        self.rig.append(b"2")
        while self.calls.waiting:
            self.finish()
        head = self.rig.snapshots.heads[0]
        self.assertEqual((head.index, list(self.rig.snapshots.read(head))[1:]), (1, [b"1"]))

    def test_snapshot_asked_for(self) -> None:
        """While the machine applies, it is not asked for its state: the snapshot follows the batch."""
        self.rig.append(b"1")
        self.assertTrue(self.rig.runner.is_applying)
        self.assertEqual(self.rig.node.ask_snapshot(), "")
        self.assertEqual(len(self.calls.waiting), 1)
        self.finish()
        while self.calls.waiting:
            self.finish()
        self.assertEqual([head.index for head in self.rig.snapshots.heads], [1])

    def test_a_failure_answers_no_query(self) -> None:
        """A query that waits after a batch that fails is not answered from half a state."""
        def fails(entry: Entry) -> None:
            raise SystemExit

        self.rig.journal.fails = fails
        self.rig.append(b"1")
        query = self.rig.runner.query(b",")
        self.finish()
        self.assertEqual(self.rig.runner.state, "failed")
        self.finish()
        error = self.failureResultOf(query, DLedgerError).value
        self.assertIs(error.code, ResponseCode.MACHINE_STOPPED)

    def test_a_stop_does_not_wait_for_calls(self) -> None:
        """A stop does not wait for a call; its result counts for nothing."""
        self.rig.append(b"1")
        self.successResultOf(self.rig.runner.stop())
        self.finish()
        self.assertEqual((self.rig.runner.state, self.rig.runner.applied_index), ("stopped", 0))

    def test_a_replaced_machine_counts_for_nothing(self) -> None:
        """The batch of a machine that is not the present one counts for nothing."""
        self.rig.append(b"1")
        self.finish()
        self.rig.node.handlers.appends.append_own(MACHINE_CHANNEL, encode_skip(1))
        self.rig.append(b"2")
        while self.calls.waiting:
            self.finish()
        self.assertEqual((self.rig.runner.state, self.rig.journal.bodies), ("running", [b"2"]))

    def test_a_long_call_is_reported(self) -> None:
        """A call that lasts is reported while it does: in the log, in the status, in the health."""
        self.calls.run = self.hangs  # type: ignore[method-assign]
        self.rig.runner.calls._run = self.hangs
        self.rig.append(b"1")
        with capturedLogs() as events:
            for _ in range(60):
                self.rig.clock.advance(0.1)
        reported = [event for event in events if "is in {call}" in str(event["log_format"])]
        self.assertEqual(len(reported), 3)
        self.assertEqual(reported[0]["call"], "apply() at the entry 1")
        status = self.rig.node.status()
        assert status.machine is not None
        self.assertGreater(status.machine.busy_s, MACHINE_HANGS_S)
        problem = health_problem(status)
        assert problem is not None
        self.assertIn("is in apply() at the entry 1 for", problem)
        before = self.rig.node.committed_index
        self.rig.append(b"2")
        self.assertEqual(self.rig.node.committed_index, before + 1)

    def hangs(self, call: object) -> Deferred[None]:
        """The thread is in a call that does not end."""
        self.rig.runner.calls._now = ("apply()", self.rig.clock.seconds())
        self.rig.runner.machine.entry = 1
        return Deferred()


class WatchTests(SynchronousTestCase):
    """The report of a call."""

    def test_a_short_call_is_not_reported(self) -> None:
        """Nothing of one that ends soon, nor of one that has ended."""
        clock = Clock()
        calls = MachineCalls(MachineHost(
            self_id="n0", clock=clock, run_in_thread=lambda work: succeed(work())
        ))
        machine = GuardedMachine(Journal)
        self.successResultOf(calls.call("query()", lambda: clock.advance(10)))
        calls.watch(machine)
        self.assertEqual((calls.busy_with, calls.busy_s), ("", 0.0))
        calls._now = ("query()", clock.seconds())
        clock.advance(LONG_S / 2)
        calls.watch(machine)
        self.assertEqual(calls.busy_s, 0.0)
        clock.advance(LONG_S)
        calls.watch(machine)
        self.assertEqual(calls.busy_with, "query()")
