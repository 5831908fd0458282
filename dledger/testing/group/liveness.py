# -*- test-case-name: tests.sim.test_liveness -*-
"""
Liveness while faults run: a majority that has been well for a while has a leader.

A member is well while its process runs and is not frozen, its disk works at its usual speed, and it may
vote at once: it is not repairing, sure of its ledger, and has no holes. A majority is well while all of its
members are, and the links between them are neither cut nor slow. The bound, L{LEADERLESS_US}, leaves time
for silent connections, attempts to connect, and several rounds of votes. A member that must not lead leads
for another one when it has waited for that one in vain, so a majority with such a member has twice as long.
So have members that take each other for Java's: they wait six to nine seconds for a leader.

One thing is not asked for: a leader among members that must not lead.
"""

from __future__ import annotations

from itertools import combinations

from dledger.core.state.member_state import Role
from dledger.testing.group.members.cluster import SECOND_US, NotLive, SimCluster
from dledger.testing.group.members.member import SimMember

#: A majority that is well for this time has had a leader in it.
LEADERLESS_US = 15 * SECOND_US

#: Between two looks.
LOOK_US = SECOND_US // 2


class LivenessWatch:
    """
    Looks at a group again and again.

    @ivar longest_us: the longest time so far for which a majority was well without a leader.
    """

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._voters: list[SimMember] = []
        self._quorum = 0
        self._majorities: list[tuple[SimMember, ...]] = []
        self._bounds_us: list[int] = []
        self._since_us: list[int] = []
        self.longest_us = 0
        known = cluster.invariants.membership.voters
        self._follow([member for member in cluster.members.values() if member.member_id in known])

    def _follow(self, voters: list[SimMember]) -> None:
        """The voters of the group are others: begin anew."""
        self._voters = voters
        self._quorum = len(voters) // 2 + 1
        self._majorities = [
            chosen for chosen in combinations(voters, self._quorum)
            if not all(member.config.never_lead for member in chosen)
        ]
        self._bounds_us = [LEADERLESS_US * (1 + self._is_patient(chosen)) for chosen in self._majorities]
        self._since_us = [self._cluster.clock.now_us] * len(self._majorities)

    def _is_patient(self, chosen: tuple[SimMember, ...]) -> bool:
        hides = self._cluster.options.hides_wire_version
        return hides or any(member.config.never_lead for member in chosen)

    def start(self) -> None:
        """Begin to look."""
        self._cluster.clock.after(LOOK_US, self._look)

    def _look(self) -> None:
        cluster = self._cluster
        now_us = cluster.clock.now_us
        cluster.clock.after(LOOK_US, self._look)
        known = cluster.invariants.membership.voters
        voters = [member for member in cluster.members.values() if member.member_id in known]
        if voters != self._voters or cluster.invariants.is_changing:
            self._follow(voters)
        well = {member for member in voters if self._is_well(member)}
        is_led = len(well) < self._quorum or cluster.network.spike > 0 or self._is_led()
        for at, majority in enumerate(self._majorities):
            if is_led or not (well.issuperset(majority) and self._is_linked(majority)):
                self._since_us[at] = now_us
                continue
            without_us = now_us - self._since_us[at]
            self.longest_us = max(self.longest_us, without_us)
            if without_us > self._bounds_us[at]:
                names = ", ".join(member.member_id for member in majority)
                raise NotLive(f"{names} have been well for {without_us / SECOND_US:g} s, and nobody leads: "
                              f"{cluster.describe()}")

    @staticmethod
    def _is_well(member: SimMember) -> bool:
        if not member.is_serving:
            return False
        state, disk = member.core.member, member.disk
        return not (disk.is_armed or disk.failing_reads or member.has_slow_disk or state.is_unsure
                    or state.repair_end_index >= 0 or state.view.holes)

    def _is_linked(self, majority: tuple[SimMember, ...]) -> bool:
        network = self._cluster.network
        return not any(
            network.is_cut(one.member_id, other.member_id) or network.is_cut(other.member_id, one.member_id)
            or network.is_slow(one.member_id, other.member_id)
            or network.is_slow(other.member_id, one.member_id)
            for one, other in combinations(majority, 2)
        )

    def _is_led(self) -> bool:
        """Whether a leader reaches a majority."""
        network, members = self._cluster.network, self._cluster.members.values()
        for leader in members:
            if leader.is_serving and leader.core.member.role is Role.LEADER:
                reached = [
                    member for member in self._voters if member.is_serving and not (
                        network.is_cut(leader.member_id, member.member_id)
                        or network.is_cut(member.member_id, leader.member_id))
                ]
                if len(reached) >= self._quorum:
                    return True
        return False
