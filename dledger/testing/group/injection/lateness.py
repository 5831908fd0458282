# -*- test-case-name: tests.sim.test_lateness -*-
"""
Members of a simulated group that come back when the log has gone on without them, and crashes after that.

A member is down, frozen, cut off, or without its directory until the log of the leader begins after its end.
Then it begins its log anew, and its state machine with the snapshot of another member. A leader keeps what a
member lacks that it heard in the last minute, so another one has to lead; and what lets the log go on takes
long by itself, so a client appends long bodies, and the operator lets the members keep house. Or it is the
member that has gone on alone, and one of its entries rots before the next leader cuts them.

Moments that come so seldom are often followed by a crash (L{Aftermath}): a start shows the facts that a
member has forgotten, or not written.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import attrs

from dledger.node.node import Node
from dledger.node.requests.appends import AppendResult
from dledger.testing.group.injection.damage import Rot
from dledger.testing.group.injection.misfortunes import Misfortunes
from dledger.testing.group.members.cluster import SECOND_US, SimCluster
from dledger.testing.group.members.member import SimMember
from dledger.testing.world.disk import PowerLoss, ProcessKilled

#: A member that is to be late for the log is away for no longer.
LATE_US = 15 * SECOND_US
#: The log goes on in steps of this time.
STEP_US = 300_000
#: In these steps the group changes its members, and in every third one its leader, if it has to.
CHANGE_STEPS, TRANSFER_STEP = (1, 5), 3
#: After this number of steps without a leader the member comes back at once.
LEADERLESS_STEPS = 8
#: So long after it is cut off a leader stops whose entries are to rot.
APART_US = 2 * SECOND_US
#: Bytes of a file besides the longest body that fits.
FILE_OVERHEAD = 60
#: Share of the moments that a crash follows.
CRASHES = 0.7


@attrs.define(eq=False)
class _Absence:
    """
    A member is away.

    @ivar boots: number of its processes when it went. @ivar comes: brings it back.
    @ivar step: steps that the log has made since. @ivar leaderless: the last ones, without a leader.
    """

    member: SimMember
    boots: int
    until_us: int
    comes: Callable[[], None]
    step: int = 0
    leaderless: int = 0


class Lateness:
    """
    See the module.

    @ivar change: changes the members of the group; None: they do not change.
    @ivar until_us: nobody is away for longer.
    """

    def __init__(self, cluster: SimCluster, damage: Rot, misfortunes: Misfortunes) -> None:
        self.change: Callable[[], None] | None = None
        self.until_us = 1 << 62
        self._cluster = cluster
        self._clock = cluster.clock
        self._rng = cluster.random("lateness")
        self._damage = damage
        self._misfortunes = misfortunes
        self._bodies = self._absent = 0

    def outlast(self, *, only_down: bool = False) -> None:
        """
        A member is away until the log of the leader begins after its end: it needs more than the log.

        @param only_down: its process ends; it is neither frozen nor cut off, and keeps its directory.
        """
        leader, now = self._cluster.leader, self._cluster.active
        members = [one for one in now if one.is_up and one is not leader and not one.is_paused
                   and one.member_id not in self._damage.away and self._misfortunes.leaves_most(one)]
        if leader is None or not members or self._absent:
            return
        member = self._rng.choice(members)
        self._absent = 1
        chance = 0.0 if only_down else self._rng.random()
        if chance < 0.5:
            member.kill()
            comes = self._starts(member)
        elif chance < 0.7:
            member.pause()
            comes = member.resume
        elif chance < 0.85 or not self._misfortunes.may_be_wiped(member):
            comes = self._cut_off(member)
        else:
            member.lose_directory()
            self._misfortunes.name_present_members(member)
            comes = self._starts(member)
        until_us = min(self._clock.now_us + LATE_US, self.until_us)
        absence = _Absence(member, member.boots, until_us, comes)
        self._clock.after(STEP_US, self._go_on, absence)

    def rot_apart(self, tries: int = 3) -> None:
        """
        A leader is cut off with entries that nobody else has, and one of them rots while it is down: it owes
        the entries that it cannot read, and the next leader cuts them.

        @param tries: number of hand-overs to a member that may lose entries of its own.
        """
        cluster, rng, leader = self._cluster, self._rng, self._cluster.leader
        members = [one for one in cluster.active if self._damage.may_rot(one) and one.is_serving]
        if leader is None or not members or self._clock.now_us > self.until_us - 2 * APART_US:
            return
        if leader not in members:
            cluster.transfer(rng.choice(members).member_id)
            if tries:
                self._clock.after(SECOND_US, self.rot_apart, tries - 1)
            return
        heal = self._cut_off(leader, lose=True)
        for number in range(6):
            self._clock.after(int(APART_US / 8 * (number + rng.random())), self._append, leader, 40)
        self._clock.after(APART_US, leader.stop)
        self._clock.after(APART_US + STEP_US, self._rot, leader, leader.boots)
        self._clock.after(2 * APART_US + int(3 * SECOND_US * rng.random()), heal)

    def _rot(self, member: SimMember, boots: int) -> None:
        if not member.is_up and member.boots == boots:
            self._damage.rot_uncommitted(member)

    def _starts(self, member: SimMember) -> Callable[[], None]:
        return lambda: self._cluster.restart_later(member, 1000)

    def _cut_off(self, member: SimMember, *, lose: bool = False) -> Callable[[], None]:
        """@param lose: connections are lost, with all that is on the way. @return: ends it."""
        network, name = self._cluster.network, member.member_id
        pairs = [pair for other in self._cluster.members if other != name
                 for pair in ((name, other), (other, name))]
        for source, target in pairs:
            network.cut(source, target)
            if lose:
                network.lose(source, target)
            self._clock.after(LATE_US + STEP_US, network.heal, source, target)

        def heal() -> None:
            for source, target in pairs:
                network.heal(source, target)

        return heal

    def _go_on(self, absence: _Absence) -> None:
        """One step of the log, without the member that is away."""
        leader, mirror, member = self._cluster.leader, self._cluster.invariants.mirror, absence.member
        if member.boots != absence.boots:
            self._absent = 0
            return  # another fault, or its end, has brought it back
        is_late = leader is not None and leader is not member and (
            mirror(leader.member_id).begin_index > mirror(member.member_id).end_index + 1)
        absence.leaderless = absence.leaderless + 1 if leader is None else 0
        if is_late or absence.leaderless > LEADERLESS_STEPS or self._clock.now_us >= absence.until_us:
            self._absent = 0
            self._clock.after(int(SECOND_US * self._rng.random() ** 3), absence.comes)
            return
        absence.step += 1
        others = [one for one in self._cluster.members.values() if one is not member and one.is_serving]
        if absence.step in CHANGE_STEPS and self.change is not None and self._rng.random() < 0.7:
            self.change()
        if absence.step % TRANSFER_STEP == 0 and self._is_needed(leader, member) and others:
            self._cluster.transfer(self._rng.choice(others).member_id)
        if leader is not None and leader is not member:
            self._append(leader)
        if absence.step % 3 == 2:
            for one in others:
                one.call(partial(self._reread, one))
        self._clock.after(STEP_US, self._go_on, absence)

    @staticmethod
    def _reread(member: SimMember, _: Node) -> None:
        """The operator lets a member read its options again: then it keeps house."""
        member.service.reread(member.service.config)

    @staticmethod
    def _is_needed(leader: SimMember | None, member: SimMember) -> bool:
        """Whether the leader keeps the log for the member, because it has heard it."""
        if leader is None or leader is member:
            return False
        return any(peer.peer_id == member.member_id and peer.last_heard_ms_ago >= 0
                   for peer in leader.core.status().peers)

    def _append(self, leader: SimMember, size: int = 0) -> None:
        """Somebody appends a body. C{size}: of it; 0: a long one, whose file is soon full."""
        longest = leader.config.mapped_file_size_for_entry_data - FILE_OVERHEAD
        size = size or int(longest * (0.3 + 0.6 * self._rng.random()))
        self._bodies += 1
        body = f"long.{self._bodies}.".encode().ljust(size, b".")
        history = self._cluster.history
        call = history.begin("append", client="long", body=body)

        def appended(result: AppendResult) -> None:
            history.end(call, "ok", index=result.index)

        leader.call(lambda node: node.append(body).addCallbacks(appended, lambda _: None))


class Aftermath:
    """Crashes of members just after something that comes seldom, in the schedules of one group."""

    def __init__(self, cluster: SimCluster, misfortunes: Misfortunes, *, until_us: int) -> None:
        """@param until_us: no crash is later."""
        self._cluster = cluster
        self._misfortunes = misfortunes
        self._until_us = until_us
        self._rng: random.Random = cluster.random("aftermath")
        cluster.world.moments.listener = self.came

    def came(self, member_id: str, kind: str) -> None:
        """Something came to a member, see L{dledger.testing.group.checks.moments}."""
        cluster, rng = self._cluster, self._rng
        member = cluster.members[member_id]
        if cluster.clock.now_us >= self._until_us:
            return
        if rng.random() >= CRASHES:
            return
        chance, power = rng.random(), rng.random() < 0.5
        if chance < 0.4:
            death = PowerLoss if power and cluster.is_sync else ProcessKilled
            member.disk.arm(die_in=1 + int(8 * rng.random() ** 2), death=death)
        else:
            us = int(20_000 * rng.random()) if chance < 0.7 else int(SECOND_US * rng.random() ** 2)
            cluster.clock.after(1 + us, self._strike, member, member.boots, power)

    def _strike(self, member: SimMember, boots: int, power: bool) -> None:
        if member.boots != boots or not member.is_up:
            return
        if power and (self._cluster.is_sync or self._misfortunes.may_lose(member)):
            member.lose_power()
        else:
            member.kill()
        self._cluster.restart_later(member, 1000 + int(2 * SECOND_US * self._rng.random() ** 2))
