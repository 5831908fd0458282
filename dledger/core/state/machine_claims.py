# -*- test-case-name: tests.core.test_machine_claims -*-
"""
Which members could lead for the state machine of the group, in the eyes of one member.

Rule: a leader whose machine has no state hands over to a member that has said that its machine runs, and is a
candidate last. With a machine that runs, leadership goes to no other member by itself.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from dledger.core.state.inputs import MachineChecked
from protocols.wire.ledger.codes import WIRE_FLAG_MACHINE_RUNS


@attrs.define
class MachineClaims:
    """
    @ivar runs: whether the machine of this member runs; False without one.
    @ivar is_unfit: whether this member runs a machine that should not lead: it has failed, has no state, or
        is in doubt.
    """

    runs: bool = False
    is_unfit: bool = False
    _running: set[str] = attrs.Factory(set)

    def checked(self, checked: MachineChecked) -> None:
        """The machine of this member was looked at."""
        self.runs = checked.runs
        self.is_unfit = checked.is_unfit

    def heard(self, peer_id: str, wire_version: int) -> None:
        """A peer answered a heartbeat."""
        if wire_version & WIRE_FLAG_MACHINE_RUNS:
            self._running.add(peer_id)
        else:
            self._running.discard(peer_id)

    @property
    def flags(self) -> int:
        """For answers to heartbeats."""
        return WIRE_FLAG_MACHINE_RUNS if self.runs and not self.is_unfit else 0

    def able(self, peer_ids: Iterable[str]) -> tuple[str, ...]:
        """Those of C{peer_ids} that could lead for the machine; all of them in a group without one."""
        is_needed = self.runs or self.is_unfit
        return tuple(one for one in peer_ids if not is_needed or one in self._running)
