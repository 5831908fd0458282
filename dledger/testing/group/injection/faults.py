# -*- test-case-name: tests.sim.test_faults -*-
"""
The faults of a schedule and their times, all from the seed.

Each schedule draws its own mix and weights: some kinds of faults are absent, some frequent (swarm testing
finds more than all kinds at their average). Every fault ends after a while. The promises of a run limit the
faults: power cuts of everything only where acks wait for fsync (else of a minority that is not sure of its
ledger), and damage as L{dledger.testing.group.injection.damage} says.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from dledger.testing.group.injection.damage import Rot
from dledger.testing.group.injection.lateness import Aftermath
from dledger.testing.group.injection.misfortunes import KINDS, Misfortunes
from dledger.testing.group.injection.strangers import Stranger
from dledger.testing.group.injection.visits import VISITS, Visits
from dledger.testing.group.members.cluster import SECOND_US, SimCluster
from dledger.testing.group.members.member import SimMember
from dledger.testing.world.disk import PowerLoss, ProcessKilled, SimDisk
from dledger.values.ledger.membership import ADD, PROMOTE, REMOVE

#: How often the faults are in a mix that need others before them, at least: members that come back late for
#: the log, and entries that rot before they are cut.
LATE = 3
#: Seconds without faults in which such a group changes its members for the first time.
CALM_S = 3


class Nemesis:
    """
    The source of faults of one schedule.

    @ivar until_us: no fault begins after this time.
    @ivar visits: faults that few seeds draw by themselves, but some focuses do.
    @ivar aftermath: crashes after moments that come seldom.

    C{only} are names of the faults that may happen (methods without the underscore); by default the
    seed draws them. C{pace_s} is the mean time between two; by default the seed draws it.
    """

    def __init__(
        self, cluster: SimCluster, rng: random.Random, *, seconds: float, only: tuple[str, ...] = (),
        pace_s: float = 0.0,
    ) -> None:
        self._cluster = cluster
        self._rng = rng
        self._clock = cluster.clock
        changes = 0.9 if cluster.drops_log else 0.7
        self._changes_members = (
            not only and not cluster.options.hides_wire_version and rng.random() < changes
        ) or "change_members" in only
        self.until_us = int(seconds * SECOND_US)
        self.damage = Rot(
            cluster, rng, changes_members=self._changes_members, is_wanted="rot_apart" in only)
        self.misfortunes = Misfortunes(cluster, rng, self.damage, changes_members=self._changes_members)
        self.visits = Visits(cluster, rng, self.damage, self.misfortunes)
        self.visits.lateness.change = self._change_members if self._changes_members else None
        self.visits.lateness.until_us = self.until_us
        self.aftermath = Aftermath(cluster, self.misfortunes, until_us=self.until_us)
        self._stranger = Stranger(cluster)
        drawn_s = rng.choice((0.7, 1.5, 3.0, 6.0))
        self._mean_us = int((pace_s or (min(drawn_s, 1.5) if cluster.drops_log else drawn_s)) * SECOND_US)
        self._kinds: list[Callable[[], None]] = [self._kind(name) for name in only] or self._mix()
        self._weights = [1.0 if only else 0.1 + rng.random() for _ in self._kinds]

    def _kind(self, name: str) -> Callable[[], None]:
        if name in KINDS:
            return self.misfortunes.kind(name)
        if name in VISITS:
            visit: Callable[[], None] = getattr(self.visits, name)
            return visit
        found: Callable[[], None] = getattr(self, f"_{name}")
        return found

    def _mix(self) -> list[Callable[[], None]]:
        kinds: list[Callable[[], None]] = [
            self._cut_link, self._isolate, self._heal_slowly, self._split, self._break, self._break_late,
            self._pause, self._suspend, self._starve, self._depose, self._spikes, self._transfer,
            self._cut_client, self._kill_client, self._twice, self._speak,
        ]
        kinds += [self._kill, self._kill_all, self._stop, self._kill_inside, self._disk_error,
                  self._fill_disk, self._slow_disk, self._damage, self._rot, self._kill, self._hang_fsync,
                  self._use_disk, self._few_descriptors, self._jump_clock, self._reconfigure]
        if self._cluster.is_sync:
            kinds += [self._cut_power, self._cut_power, self._cut_power_everywhere, self._lose_power_inside,
                      self._lose_power_inside]
        else:
            kinds += [self._cut_power, self._cut_power]
        kinds += [self.misfortunes.kind(name) for name in self.misfortunes.names]
        rng = self._rng
        share = rng.choice((0.2, 0.5, 0.5, 0.8))
        chosen = [kind for kind in kinds if rng.random() < share]
        chosen = chosen or kinds
        if self._cluster.drops_log:
            chosen += [self.visits.outlast] * max(LATE, len(chosen) // 2)
        if any(map(self.damage.may_rot, self._members)):
            chosen += [self.visits.rot_apart] * LATE
        return [*chosen, self._change_members, self._change_apart] if self._changes_members else chosen

    @property
    def _members(self) -> list[SimMember]:
        return list(self._cluster.members.values())

    def start(self) -> None:
        """Begin; the first fault leaves time for the first election."""
        first_s = 1 + 3 * self._rng.random()
        if self._cluster.drops_log and self._change_members in self._kinds:
            # The log is to drop lists of members, and the first change needs an answer of each voter.
            first_s += CALM_S
            self._clock.after(2 * SECOND_US, self._change_early)
        self._clock.after(int(first_s * SECOND_US), self._strike)

    def _change_early(self) -> None:
        if self._cluster.invariants.membership.index < 0 and self._clock.now_us < 10 * SECOND_US:
            self._change_members()
            self._clock.after(SECOND_US // 2, self._change_early)

    def _strike(self) -> None:
        if self._clock.now_us >= self.until_us:
            return
        (kind,) = self._rng.choices(self._kinds, self._weights)
        self._note(kind.__name__.strip("_"))
        kind()
        self._clock.after(int(self._mean_us * 2 * self._rng.random()), self._strike)

    def _note(self, text: str) -> None:
        self._cluster.trace.note(self._clock.now_us, f"fault: {text}")

    # -- choosing -------------------------------------------------------------------------------------

    def _member(self) -> SimMember:
        leader = self._cluster.leader
        if leader is not None and self._rng.random() < 0.4:
            return leader
        return self._rng.choice(self._members)

    def _pair(self) -> tuple[str, str]:
        one, other = self._rng.sample(self._members, 2)
        return one.member_id, other.member_id

    def _while_us(self, longest_s: float) -> int:
        return int(longest_s * SECOND_US * self._rng.random() ** 2) + 1000

    def _down_for(self, member: SimMember) -> None:
        self._cluster.restart_later(member, self._while_us(12))

    # -- the network ------------------------------------------------------------------------------------

    def _cut(self, pairs: list[tuple[str, str]], longest_s: float) -> None:
        network, us = self._cluster.network, self._while_us(longest_s)
        for source, target in pairs:
            network.cut(source, target)
            self._clock.after(us, network.heal, source, target)
        if self._rng.random() < 0.3:
            for source, target in pairs:
                network.break_between(source, target, late_us=us)

    def _cut_link(self) -> None:
        one, other = self._pair()
        both = self._rng.random() < 0.5
        self._cut([(one, other), (other, one)] if both else [(one, other)], 10)

    def _isolate(self) -> None:
        victim = self._member().member_id
        others = [member.member_id for member in self._members if member.member_id != victim]
        away, back = [(victim, other) for other in others], [(other, victim) for other in others]
        chance = self._rng.random()
        self._cut(away + back if chance < 0.6 else away if chance < 0.8 else back, 15)

    def _heal_slowly(self) -> None:
        """
        A leader is cut off long enough to be deposed; after that the connections to it are slow at first,
        and their clients reconnect while old requests are still under way.
        """
        leader = self._cluster.leader
        if leader is None:
            return
        network, victim = self._cluster.network, leader.member_id
        others = [member.member_id for member in self._members if member is not leader]
        us = int((3 + 4 * self._rng.random()) * SECOND_US)
        for other in others:
            for source, target in ((victim, other), (other, victim)):
                network.cut(source, target)
                network.lose(source, target)
                self._clock.after(us, network.heal, source, target)
            slow_us = int((0.1 + 2 * self._rng.random()) * SECOND_US)
            self._clock.after(us - 1, self._delay, other, victim, slow_us)
            self._clock.after(us + int(4 * slow_us * self._rng.random()), self._late, other, victim, slow_us)

    def _delay(self, source: str, target: str, us: int) -> None:
        if self._clock.now_us < self.until_us:  # later no fault would end the delay
            self._cluster.network.delay_connection(source, target, us)

    def _split(self) -> None:
        ids = [member.member_id for member in self._members]
        self._rng.shuffle(ids)
        at = 1 + int(self._rng.random() * (len(ids) - 1))
        pairs = [(one, other) for one in ids[:at] for other in ids[at:]]
        self._cut(pairs + [(other, one) for one, other in pairs], 15)

    def _break(self) -> None:
        self._cluster.network.break_between(*self._pair())

    def _break_late(self) -> None:
        """A connection becomes slow; its client opens another one while old requests are under way."""
        source, target = self._pair()
        leader = self._cluster.leader
        if leader is not None and leader.member_id != target and self._rng.random() < 0.7:
            source = leader.member_id
        us = self._while_us(3)
        self._cluster.network.delay_connection(source, target, us)
        self._clock.after(int(us * (0.5 + 2.5 * self._rng.random())), self._late, source, target, us)

    def _late(self, source: str, target: str, us: int) -> None:
        self._cluster.network.reconnect(source, target, late_us=2 * us)

    def _spikes(self) -> None:
        network = self._cluster.network
        network.spike = self._rng.choice((0.02, 0.2))
        network.spike_us = self._while_us(3)
        self._clock.after(self._while_us(10), self._no_spikes)

    def _no_spikes(self) -> None:
        self._cluster.network.spike = 0.0

    def _cut_client(self) -> None:
        """A client and a member do not reach each other, one way or both."""
        clients = self._cluster.clients
        if clients:
            one, other = self._rng.choice(clients).name, self._member().member_id
            ways = [(one, other), (other, one)]
            self._cut(ways if self._rng.random() < 0.5 else [self._rng.choice(ways)], 10)

    def _twice(self) -> None:
        """Requests of members reach the others twice."""
        self._cluster.network.twice = self._rng.choice((0.05, 0.5))
        self._clock.after(self._while_us(10), self._once)

    def _once(self) -> None:
        self._cluster.network.twice = 0.0

    def _speak(self) -> None:
        """Somebody who is not a member speaks to one."""
        self._stranger.speak()

    # -- processes and machines ---------------------------------------------------------------------------

    def _kill(self) -> None:
        member = self._member()
        member.kill()
        self._down_for(member)

    def _kill_all(self) -> None:
        for member in self._members:
            member.kill()
            self._down_for(member)

    def _stop(self) -> None:
        self._member().stop()

    def _pause(self) -> None:
        member = self._member()
        member.pause()
        self._clock.after(self._while_us(12), self._resume, member, member.boots)

    def _suspend(self) -> None:
        """A virtual machine is suspended for a while: its clock stands still."""
        member = self._member()
        member.suspend()
        self._clock.after(self._while_us(12), self._resume, member, member.boots)

    def _starve(self) -> None:
        """The turns of a member take long."""
        member = self._member()
        member.starve(self._rng.choice((20_000, 100_000, 300_000)))
        self._clock.after(self._while_us(10), self._feed, member)

    def _feed(self, member: SimMember) -> None:
        member.starve(0)

    def _jump_clock(self) -> None:
        """A member's wall clock jumps by hours or days."""
        self._member().jump_clock((self._rng.random() - 0.3) * self._rng.choice((3600, 86400, 1e6)))

    def _reset_times(self) -> None:
        """An operator resets the times of the log; it is refused unless they are ahead."""
        leader = self._cluster.leader
        if leader is not None:
            leader.call(lambda node: node.reset_times().addErrback(lambda _: None))

    def _reconfigure(self) -> None:
        """A member is stopped, and starts again with other options."""
        member, rng = self._member(), self._rng
        settings: dict[str, object] = {
            "pre_vote": rng.random() < 0.7, "enable_batch_push": rng.random() < 0.7,
            "max_batch_push_count": rng.choice((1, 8, 1000)), "max_inflight_pushes": rng.choice((1, 4, 64)),
            "heart_beat_time_interval_ms": rng.choice((450, 600, 750)),
            "check_point_interval": rng.choice((1000, 10_000)), "term_start_entry": rng.random() < 0.7,
        }
        if self._cluster.wire == "auto":
            settings["wire"] = rng.choice(("auto", "remoting"))
        member.reconfigure({name: value for name, value in settings.items() if rng.random() < 0.5})
        member.stop()

    def _kill_client(self) -> None:
        """A client's process ends, with a call under way."""
        if self._cluster.clients:
            self._rng.choice(self._cluster.clients).kill()

    def _depose(self) -> None:
        """Pause a leader until another one has led for a while: it wakes up and believes that it leads."""
        member = self._cluster.leader
        if member is not None:
            member.pause()
            self._await_other(member, member.boots, self._clock.now_us + 15 * SECOND_US)

    def _await_other(self, member: SimMember, boots: int, until_us: int) -> None:
        if member.boots != boots or not member.is_paused:
            return
        if self._cluster.leader is not None or self._clock.now_us >= until_us:
            self._clock.after(int(2 * SECOND_US * self._rng.random()), self._resume, member, boots)
        else:
            self._clock.after(200_000, self._await_other, member, boots, until_us)

    def _resume(self, member: SimMember, boots: int) -> None:
        if member.boots == boots:
            member.resume()

    def _cut_power(self) -> None:
        member = self._member()
        if not self._may_lose_power(member):
            return
        member.lose_power()
        self._down_for(member)

    def _may_lose_power(self, member: SimMember) -> bool:
        """With async flushing a minority at a time: as long as a majority has lost none, nothing is lost."""
        return self._cluster.is_sync or self.misfortunes.may_lose(member)

    def _cut_power_everywhere(self) -> None:
        for member in self._members:
            member.lose_power()
            self._down_for(member)

    def _kill_inside(self) -> None:
        self._member().disk.arm(die_in=1 + int(self._rng.random() * 12), death=ProcessKilled)

    def _lose_power_inside(self) -> None:
        self._member().disk.arm(die_in=1 + int(self._rng.random() * 12), death=PowerLoss)

    def _transfer(self) -> None:
        self._cluster.transfer(self._rng.choice(self._members).member_id)

    # -- the members of the group ---------------------------------------------------------------

    def _change_members(self) -> None:
        """An operator adds, promotes or removes a member; three voters stay at least."""
        cluster, rng = self._cluster, self._rng
        now = cluster.invariants.membership
        chance, is_forced = rng.random(), rng.random() < 0.3
        if now.learners and chance < 0.5:
            cluster.change_members(PROMOTE, rng.choice(sorted(now.learners)), is_forced=is_forced)
        elif len(now.voters) > 3 and chance < 0.75:
            leader = cluster.leader
            member_id = rng.choice(sorted(now.addresses))
            if leader is not None and rng.random() < 0.2:
                member_id = leader.member_id
            cluster.change_members(REMOVE, member_id, is_forced=is_forced)
        elif now.learners and chance < 0.8:
            cluster.change_members(REMOVE, rng.choice(sorted(now.learners)))
        else:
            away = [one for one in self._members if one.member_id not in now.addresses]
            added = rng.choice(away) if away and rng.random() < 0.5 else cluster.install_spare()
            added = added or (rng.choice(away) if away else None)
            if added is not None:
                cluster.change_members(ADD, added.member_id)

    def _change_apart(self) -> None:
        """A leader is cut off, and asked for a change of the members at once: its entry is cut later."""
        self._heal_slowly()
        self._change_members()

    # -- disks --------------------------------------------------------------------------------

    def _disk_error(self) -> None:
        disk = self._member().disk
        chance = self._rng.random()
        if chance < 0.4:
            disk.arm(syncs=1)
        elif chance < 0.7:
            disk.arm(writes=1)
        else:
            disk.arm(reads=1)

    def _fill_disk(self) -> None:
        disk = self._member().disk
        while_us = self._while_us(8)
        disk.set_full(True, copies_on_write=while_us % 2 == 0)
        self._clock.after(while_us, disk.set_full, False)

    def _few_descriptors(self) -> None:
        """Some files cannot be opened."""
        self._member().disk.arm(opens=1 + int(self._rng.random() * 3))

    def _use_disk(self) -> None:
        """Other programs fill most of a disk: what can be deleted is, or appends are refused."""
        disk = self._member().disk
        disk.used_ratio = 0.7 + 0.29 * self._rng.random()
        self._clock.after(10 * SECOND_US + self._while_us(15), self._free_disk, disk)

    def _free_disk(self, disk: SimDisk) -> None:
        disk.used_ratio = 0.5

    def _hang_fsync(self) -> None:
        """An fsync takes many seconds."""
        member = self._member()
        member.slow_disk(5 * SECOND_US)
        self._clock.after(self._while_us(5), self._fast_disk, member)

    def _slow_disk(self) -> None:
        """Its fsyncs take long; of half of them, its reads do, too."""
        member, us = self._member(), self._while_us(1.5)
        member.slow_disk(us)
        member.disk.read_us = us // 20 if us % 2 else 0
        self._clock.after(self._while_us(10), self._fast_disk, member)

    def _fast_disk(self, member: SimMember) -> None:
        member.slow_disk(0)
        member.disk.read_us = 0

    def _damage(self) -> None:
        member = self.damage.strike()
        if member is not None:
            member.kill()
            self._down_for(member)

    def _rot(self) -> None:
        for member in self.damage.rot():
            member.kill()
            self._down_for(member)
