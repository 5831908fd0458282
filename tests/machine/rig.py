# -*- test-case-name: tests.machine.test_runner -*-
"""A node of one member with a state machine: no files, sockets, threads or real time."""

from __future__ import annotations

from dledger.base.threads import RunInThread
from dledger.client.values import Entry
from dledger.machine.files.snapshots import SnapshotDirectory
from dledger.machine.requests import MachineHandler
from dledger.machine.runner import MachineRunner
from dledger.machine.state_machine import MachineFactory
from dledger.machine.waiting import WaitBounds
from dledger.machine.writing import SnapshotsDue
from dledger.node.host import MachineHost
from dledger.node.requests.machine_requests import Hosting
from dledger.testing.world.memory_disk import MemoryDisk
from protocols.wire.ledger.own.own_entries import TERM_START_CHANNEL
from tests.machine.machines import Journal
from tests.node.rig import FakeThread, Rig


class HostedRig(Rig):
    """
    A node and its machine.

    @ivar handler: answers the requests to it.
    @ivar made: the machines that the factory made, in order.
    """

    def __init__(
        self, *, factory: MachineFactory = Journal, disk: MemoryDisk | None = None, snapshot_entries: int = 0,
        snapshot_bytes: int = 0, waits_max: int = 100, run_machine: RunInThread | None = None,
        **options: object,
    ) -> None:
        super().__init__(**{"flush_disk_type": "sync", **options})
        self.disk = disk or MemoryDisk()
        self.disk.makedirs("s")
        self.machine_thread = FakeThread()
        self.made: list[Journal] = []

        def make() -> Journal:
            made = factory()
            assert isinstance(made, Journal)
            self.made.append(made)
            return made

        example = factory()
        self.snapshots = SnapshotDirectory(
            self.disk, "s/machine", machine=example.name, machine_version=example.version,
            oldest_version=example.oldest_version,
        )
        self.runner = MachineRunner(
            make, self.node, MachineHost(
                self_id="n0", clock=self.clock, run_in_thread=self.machine_thread.run, run_machine=run_machine
            ), waits=WaitBounds(waits_max=waits_max, wait_ms=1000), snapshots=self.snapshots,
            due=SnapshotsDue(entries=snapshot_entries, of_bytes=snapshot_bytes),
        )
        self.handler = MachineHandler(self.config, self.runner, self.node.handlers.machine_surroundings)
        self.node.machine_requests.hosting = Hosting(machine=self.runner, handler=self.handler)

    @property
    def journal(self) -> Journal:
        """The machine that was made last."""
        return self.made[-1]

    def lead(self) -> HostedRig:
        """Lead, with an entry 0 of the log's own."""
        super().lead()
        if self.store.ledger_end_index < 0:
            self.node.handlers.appends.append_own(TERM_START_CHANNEL, b"")
            self.pass_turns()
        return self

    def run(self) -> HostedRig:
        """Lead, and take up the machine."""
        self.lead()
        self.runner.start()
        self.pass_turns()
        return self

    def fail_machine(self) -> None:
        """An entry at which the machine raises, so it stops."""

        def fails(entry: Entry) -> None:
            raise ValueError("a test")

        self.journal.fails = fails
        self.append(b"an entry")
        self.pass_turns()

    def pass_turns(self, count: int = 20) -> None:
        """Turns of the reactor, without time."""
        for _ in range(count):
            self.clock.advance(0)

    def append(self, *bodies: bytes) -> None:
        """Entries of one append, committed."""
        self.node.append(bodies)
        self.pass_turns()
