# -*- test-case-name: tests.sim.test_mutants -*-
"""Mutants of state machines. Of the mutated packages this module knows only their text."""

from __future__ import annotations

from collections.abc import Mapping

from tests.mutants.patching import Patch

_FILE = "dledger.machine.snapshot_file"
_DIRECTORY = "dledger.machine.snapshots"
_RUNNER = "dledger.machine.runner"
_DESK = "dledger.node.hosting"
_CLIENT = "dledger.client.machines"
_REQUESTS = "tests.node.test_hosting"

MACHINE_MUTANTS: tuple[tuple[str, str, tuple[Patch, ...], Mapping[str, object]], ...] = (
    ("snapshot-named-too-early", "a snapshot gets its name before it is on stable storage", (
        Patch(_FILE, "        file.datasync()\n", ""),
    ), {"test": "tests.machine.test_snapshots.CrashTests"}),
    ("snapshot-end-not-checked", "a snapshot that is cut between two pieces is taken for a whole one", (
        Patch(_FILE, "        if (told, all_bytes) != (crc, total):", "        if False:"),
    ), {"test": "tests.machine.test_snapshots.SnapshotTests.test_every_cut_and_bit"}),
    ("snapshot-of-any-log", "a snapshot of another log is taken up", (
        Patch(_RUNNER, "        if (entry.term, chain_crc) != (",
              "        if False and (entry.term, chain_crc) != ("),
    ), {"test": "tests.machine.test_runner.SnapshotTests"}),
    ("refused-snapshot-replaced", "a snapshot that was refused is overwritten", (
        Patch(_DIRECTORY, "            disk.rename(path, self._free_name(path))",
              "            disk.unlink(path)"),
    ), {"test": "tests.machine.test_snapshots.SnapshotTests.test_falls_back"}),
    ("half-restored-machine", "a machine that could not restore a snapshot goes on with half of it", (
        Patch(_RUNNER, "                self._machine = self._factory()\n", "                pass\n"),
    ), {"test": "tests.machine.test_runner.SnapshotTests.test_restore_raises"}),
    ("expiry-before-snapshot", "expiry deletes entries that are in no snapshot", (
        Patch("dledger.node.node", ", self.desk.needed_index]", "]"),
    ), {"test": "tests.machine.test_runner.SnapshotTests.test_taken"}),
    ("query-before-apply", "a linearizable query does not wait for the machine", (
        Patch(_DESK, "await machine.when_applied(await self._read_index())", "await self._read_index()"),
    ), {"test": f"{_REQUESTS}.QueryTests"}),
    ("young-followers", "a follower forgets that its leader may lead nobody", (
        Patch(_DESK, "status.leader_committed_ms + self._patience_ms", "status.leader_committed_ms"),
    ), {"test": f"{_REQUESTS}.AgeTests"}),
    ("machine-hogs-the-reactor", "a slow machine never gives way", (
        Patch(_RUNNER, "if self._clock.seconds() - began_s >= TURN_S:", "if False:"),
    ), {"test": "tests.machine.test_runner.FollowTests.test_gives_way"}),
    ("late-command-refused", "a command in the log without a result counts as refused", (
        Patch(_RUNNER, "    return DLedgerError(ResponseCode.WAIT_QUORUM_ACK_TIMEOUT, reason=reason)",
              "    return DLedgerError(ResponseCode.MACHINE_STOPPED, reason=reason)"),
    ), {"test": f"{_REQUESTS}.SubmitTests"}),
    ("machine-not-asked-for", "a leader without a machine is sent commands", (
        Patch(_CLIENT, "    if not member.has_machine:", "    if False:"),
    ), {"test": "tests.client.test_machines.SubmitTests.test_no_machine"}),
)
