# -*- test-case-name: tests.sim.test_remembered -*-
"""
What a state machine has beside its state: the results that it keeps for clients, and its snapshots on the
disk.
"""

from __future__ import annotations

import attrs

from dledger.machine.runner import MachineRunner
from dledger.testing.group.checks.require import require
from dledger.testing.world.disk import SimDisk

#: Number in docs/invariants.md.
MACHINES = 10
#: The kept results are compared at the multiples of this number, and when a snapshot was taken up.
_EVERY = 4


@attrs.define
class MachineFileRules:
    """The rules of one group."""

    _kept: dict[tuple[int, frozenset[int]], tuple[str, bytes]] = attrs.Factory(dict)
    _heads: dict[str, list[object]] = attrs.Factory(dict)

    def forget(self) -> None:
        """Other entries may come to the places of those that were committed."""
        self._kept.clear()

    def look(self, member_id: str, runner: MachineRunner, disk: SimDisk, *, is_new: bool) -> None:
        """The state of a machine has gone on. @param is_new: it is another one than at the last look."""
        index = runner.applied_index
        if index >= 0 and (is_new or not index % _EVERY):
            left_out = runner._skips.left_out
            kept = runner._kept.encode(left_out)
            reporter_id, reported = self._kept.setdefault((index, frozenset(left_out)), (member_id, kept))
            require(reported == kept, MACHINES, (
                f"{member_id} and {reporter_id} keep other results of clients after the entry {index}"))
        self.look_at_snapshots(member_id, runner, disk)

    def look_at_snapshots(self, member_id: str, runner: MachineRunner, disk: SimDisk) -> bool:
        """
        Snapshots that the member counts on are durable.

        @return: whether one that is newer than the state has come since the last look.
        """
        snapshots = runner._snapshots
        if snapshots is None or snapshots.heads == self._heads.get(member_id):
            return False
        before = self._heads.get(member_id, [])
        self._heads[member_id] = [*snapshots.heads]
        for head in snapshots.heads:
            if head not in before:
                path = f"{snapshots.path}/snapshot-{head.index}-{head.term}"
                size = len(disk.cached_content(path))
                require(disk.is_durable(path, 0, size), MACHINES, (
                    f"{member_id} counts on its snapshot after {head.index}, which is not on stable storage"))
        return any(one.index > runner.applied_index for one in snapshots.heads if one not in before)
