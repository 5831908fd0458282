# -*- test-case-name: tests.sim.test_group_states -*-
"""
The kinds of states that a schedule reaches.

Many states are one kind. It has the set of the members' conditions, not who or how many are in each: the
role, whether something is pending or wrong at the member, whether its term, its end and its commit are behind
those of another one, and whether it has flushed all; and whether a way is cut. Two schedules that differ by
names, times and lengths alone reach the same kinds, so a new kind is worth another look. A kind is a number
of 18 bits: two kinds may have the same one, then the second goes unnoticed.
"""

from __future__ import annotations

from dledger.core.state.member_state import Role
from dledger.machine.runner import MachineRunner
from dledger.testing.group.members.cluster import SimCluster
from dledger.testing.group.members.member import SimMember

#: Numbers of kinds.
KINDS_MAX = 1 << 18

#: A member: its bits, its term, its end, and how far it has committed and flushed; 0 and -1 if it is down.
_Sight = tuple[int, int, int, int, int]

_ROLES = {Role.FOLLOWER: 1, Role.CANDIDATE: 2, Role.LEADER: 3}
_DOWN: _Sight = (0, -1, -1, -1, -1)


def _bits(member: SimMember) -> int:
    """Role, and what is pending, damaged or slow at a member that runs."""
    core, state, disk = member.core, member.core.member, member.disk
    bits = _ROLES[state.role] * 2 + (member.process.is_frozen or member.driver.is_stopped)
    bits = bits * 2 + bool(state.is_unsure or state.repair_end_index >= 0 or state.view.holes)
    bits = bits * 2 + (disk.is_armed or disk.are_reads_armed or member.has_slow_disk)
    bits = bits * 2 + bool(len(core.appends) or len(core.reads))
    bits = bits * 2 + (state.membership.index > state.committed_index)
    runner = member.node.machine_requests.machine
    return bits * 2 + (isinstance(runner, MachineRunner) and runner.state != "running")


class StateWatch:
    """
    Looks at a group after each step that changes it, as L{dledger.testing.world.trace.Trace.watch}.

    @ivar firsts: each kind that was reached, and when it was first, microseconds.
    """

    def __init__(self, cluster: SimCluster) -> None:
        self.firsts: dict[int, int] = {}
        self._cluster = cluster
        self._sights: list[_Sight] = []

    def noted(self) -> None:
        """Something happened outside of the members' steps: a fault, a start, an end."""
        self._sights = [self._sight(member) for member in self._cluster.members.values()]
        self._look()

    def stepped(self, number: int) -> None:
        """A member took a step."""
        if number >= len(self._sights):
            self.noted()
            return
        member = list(self._cluster.members.values())[number]
        sight = self._sight(member)
        if sight != self._sights[number]:
            self._sights[number] = sight
            self._look()

    @staticmethod
    def _sight(member: SimMember) -> _Sight:
        if not member.is_up or member.service.node is None:
            return _DOWN
        state = member.core.member
        return _bits(member), state.term, state.ledger_end_index, state.committed_index, state.flushed_index

    def _look(self) -> None:
        sights, network = self._sights, self._cluster.network
        term = max(sight[1] for sight in sights)
        end = max(sight[2] for sight in sights)
        committed = max(sight[3] for sight in sights)
        found = {
            bits * 16 + (term > its_term) * 8 + (end > its_end) * 4 + (committed > its_committed) * 2
            + (its_flushed < its_end)
            if bits else 0
            for bits, its_term, its_end, its_committed, its_flushed in sights
        }
        kind = int(network.has_cuts)
        for one in sorted(found):
            kind = (kind * 0x9E3779B1 + one + 1) % 0xFFFFFFFB
        kind = (kind ^ kind >> 16) % KINDS_MAX
        if kind not in self.firsts:
            self.firsts[kind] = self._cluster.clock.now_us
