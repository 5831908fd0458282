# -*- test-case-name: tests.sim.test_machines -*-
"""
State machines of simulated members, and their rule: the state of every member is the fold of the committed
entries up to its applied index, through drops of the log, installs and restarts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from zlib import crc32

import attrs
from twisted.internet.interfaces import IReactorTime

from dledger.base.disk.disk import Disk
from dledger.base.threads import RunInThread
from dledger.client.values import Entry
from dledger.machine.loading import runner_of
from dledger.machine.runner import MachineRunner
from dledger.machine.state_machine import RefusedCommand, StateMachine
from dledger.node.node import Node
from dledger.testing.group.invariants import GroupInvariants, require
from protocols.wire.ledger.entry import ENTRY_HEADER, decode_header

#: A piece of a snapshot besides the state, and how often it comes: the file is sent in several pieces.
PADDING = (b"p" * 3000, 5)


def _fold(state: int, index: int, body: bytes) -> int:
    return crc32(b"%d " % index + body, state)


def is_refused(body: bytes) -> bool:
    """Whether the machine refuses a command."""
    return crc32(body) % 7 == 0


class ChainMachine(StateMachine):
    """
    Its state is a checksum over the indexes and bodies of all entries, in their order, but those that it
    refuses.
    """

    name = "chain"

    def __init__(self) -> None:
        self.state = 0

    def apply(self, entries: Sequence[Entry]) -> Iterator[bytes]:
        """The state behind each entry."""
        for entry in entries:
            if is_refused(entry.body):
                raise RefusedCommand("one in seven")
            self.state = _fold(self.state, entry.index, entry.body)
            yield b"%d" % self.state

    def query(self, request: bytes) -> bytes:
        """The state."""
        return b"%d" % self.state

    def snapshot(self) -> Iterable[bytes]:
        """The state, and padding."""
        return [b"%d" % self.state, *[PADDING[0]] * PADDING[1]]

    def restore(self, chunks: Iterable[bytes]) -> None:
        """The state again."""
        self.state = int(next(iter(list(chunks))))


@attrs.define
class MachineRules:
    """
    @ivar installed: snapshots of other members that were taken up so far.
    @ivar applied: number of checks with another applied index than before.
    """

    invariants: GroupInvariants
    installed: int = 0
    applied: int = 0
    _folds: list[int] = attrs.Factory(list)
    _seen: dict[str, tuple[int, int, str]] = attrs.Factory(dict)

    def make(
        self, node: Node, run_in_thread: RunInThread, run_machine: RunInThread, *, disk: Disk,
        clock: IReactorTime,
    ) -> MachineRunner:
        """The runner of a machine for the node of a new process."""
        return runner_of(
            node, ChainMachine, disk=disk, clock=clock, run_in_thread=run_in_thread, run_machine=run_machine
        )

    def check(self, member_id: str, node: Node) -> None:
        """Something happened at a member: compare its state."""
        runner = node.desk.machine
        assert isinstance(runner, MachineRunner)
        if runner.is_applying and runner.state == "running":
            return  # its state is ahead of its index
        seen = (id(runner), runner.applied_index, runner.state)
        before = self._seen.get(member_id)
        if seen == before:
            return
        self._seen[member_id] = seen
        require(runner.state != "failed", 10, f"the machine of {member_id} failed: {runner.reason}")
        if runner.state != "running":
            return
        if before is not None and before[0] == seen[0]:
            self.installed += before[2] == "installing"
            require(seen[1] >= before[1], 10,
                    f"the machine of {member_id} goes back from {before[1]} to {seen[1]}")
        self.applied += 1
        state, due = int(runner.machine.query(b"")), self.fold(runner.applied_index)
        require(state == due, 10,
                f"the machine of {member_id} has the state {state} at {runner.applied_index}, not {due}")

    def fold(self, index: int) -> int:
        """The state that the committed entries up to C{index} make."""
        folds, invariants = self._folds, self.invariants
        while len(folds) <= index:
            at, state = len(folds), folds[-1] if folds else 0
            require(at in invariants.committed, 10, f"the entry {at} was applied, and is not committed")
            record = invariants.records[at, invariants.committed[at]][0]
            body = record[ENTRY_HEADER.size :]
            if body and not decode_header(record).channel and not is_refused(body):
                state = _fold(state, at, body)
            folds.append(state)
        return folds[index] if index >= 0 else 0

    def behind(self, nodes: Mapping[str, Node]) -> dict[str, str]:
        """The machines that have not applied all that their members know to be committed."""
        found = {}
        for member_id, node in nodes.items():
            runner = node.desk.machine
            assert isinstance(runner, MachineRunner)
            status = runner.status()
            if runner.state != "running" or status.lag:
                found[member_id] = f"{runner.state} at {runner.applied_index} {status.installing}".strip()
        return found
