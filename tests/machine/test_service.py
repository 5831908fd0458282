# -*- test-case-name: tests.machine.test_service -*-
"""A member with a machine: that begins after the start, and ends before the store is closed."""

from __future__ import annotations

from tempfile import TemporaryDirectory

from twisted.internet.defer import Deferred

from dledger.base.disk.disk import OsDisk
from dledger.machine.loading import hosting_of
from dledger.machine.runner import MachineRunner
from dledger.node.host import MachineHost
from dledger.node.node import Node
from dledger.node.requests.machine_requests import Hosting
from dledger.node.service import STOP_TIME_OUT_S
from dledger.node.threads import MemberThreads
from tests.machine.machines import Journal
from tests.node.rig import FakeThread
from tests.node.test_service import FakeFlushThread, ServiceTestCase


class HostingTests(ServiceTestCase):
    """Up and down, with files."""

    def hosted(self, path: str) -> MachineRunner:
        """A member leads, and applies; two entries make a snapshot."""
        self.threads = FakeThread()
        self.runners: list[MachineRunner] = []

        def make(node: Node, _: object) -> Hosting:
            host = MachineHost(self_id="n0", clock=self.reactor, run_in_thread=self.threads.run)
            hosting = hosting_of(node, Journal, host, disk=OsDisk())
            assert isinstance(hosting.machine, MachineRunner)
            self.runners.append(hosting.machine)
            return hosting

        self.service = self.make(
            store_base_dir=path, machine_snapshot_entries=2, make_machine=make
        )
        self.service.startService()
        self.run_for(2)
        return self.runners[-1]

    def stop(self) -> Deferred[None]:
        """The end of the service."""
        stopped = self.service.stopService()
        self.run_for(5)
        return stopped

    def test_a_machine_lives_twice_on_its_files(self) -> None:
        """Twice, over the same files."""
        path = self.mktemp()
        runner = self.hosted(path)
        for body in (b"a", b"b", b"c"):
            self.node_of(self.service).append(body)
            self.run_for(0.1)
        self.assertEqual((runner.state, self.successResultOf(runner.query(b","))), ("running", b"a,b,c"))
        self.successResultOf(self.stop())
        self.assertEqual(runner.state, "stopped")
        again = self.hosted(path)
        answer = self.successResultOf(again.query(b","))
        self.assertEqual((answer, again.status().snapshot_index >= 1), (b"a,b,c", True))
        self.successResultOf(self.stop())

    def test_threads_end_with_their_machine(self) -> None:
        """Those of the machine begin and end with it: one for its calls, one for snapshots."""
        snapshots, calls = FakeFlushThread(), FakeFlushThread()
        threads = MemberThreads.of(self.reactor, flush=self.thread, snapshots=snapshots, calls=calls)
        self.patch(MemberThreads, "of", lambda reactor, flush: threads)
        service = self.make(store_base_dir=self.mktemp(), machine_snapshot_entries=2,
                            make_machine=lambda node, host: hosting_of(node, Journal, host, disk=OsDisk()))
        service.startService()
        self.run_for(2)
        self.assertEqual([snapshots.life, calls.life], [["started"], ["started"]])
        calls.is_lazy = True
        self.node_of(service).append(b"a")
        self.run_for(0.1)
        self.assertEqual((len(calls.waiting), len(snapshots.waiting)), (1, 0))
        calls.is_lazy = False
        calls.finish()
        stopped = service.stopService()
        self.run_for(5)
        self.successResultOf(stopped)
        self.assertEqual([snapshots.life, calls.life], [["started", "stopped"]] * 2)

    def test_end_does_not_wait_for_ever(self) -> None:
        """A program that never gives its snapshot does not keep the member from ending."""
        directory = TemporaryDirectory()  # (a mutant runs this test, too, outside the directories of trial)
        self.addCleanup(directory.cleanup)
        self.hosted(directory.name)
        self.threads.is_lazy = True
        for body in (b"a", b"b", b"c"):
            self.node_of(self.service).append(body)
            self.run_for(0.1)
        stopped = self.stop()
        self.run_for(STOP_TIME_OUT_S + 2)
        self.successResultOf(stopped)

    def test_the_end_waits_for_the_snapshot(self) -> None:
        """A snapshot that is being written holds up the end, until it gives up."""
        self.hosted(self.mktemp())
        self.threads.is_lazy = True
        for body in (b"a", b"b", b"c"):
            self.node_of(self.service).append(body)
            self.run_for(0.1)
        stopped = self.stop()
        self.assertNoResult(stopped)
        self.threads.finish()
        self.run_for(2)
        self.successResultOf(stopped)
