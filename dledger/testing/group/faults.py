# -*- test-case-name: tests.sim.test_faults -*-
"""
The faults of a schedule and their times, all from the seed.

Each schedule draws its own mix: some kinds of faults are absent, some frequent (swarm testing finds
more than all kinds at their average). Every fault ends after a while. The promises of a run limit the faults:
power cuts of everything only where acks wait for fsync (else of a minority that is not sure of its ledger),
damage only at a minority, and to records only below the end that
the member's commit mark records as durable, or behind everything that the member has acknowledged. Committed
records rot at any member, as long as another member has a sound copy, and a sound record is behind them.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from dledger.base.disk.two_slots import SLOT_SIZE
from dledger.storage.commit_mark import COMMIT_MARK_NAME, decode_mark
from dledger.storage.properties import LEDGER_CHECKPOINT_NAME
from dledger.storage.term_file import TERM_FILE_NAME, TERM_TWIN_NAME, decode_term_twin
from dledger.testing.disk import PowerLoss, ProcessKilled
from dledger.testing.group.cluster import SECOND_US, SimCluster
from dledger.testing.group.member import SimMember
from protocols.wire.ledger.entry import INDEX_UNIT_SIZE


class Nemesis:
    """
    The source of faults of one schedule.

    @ivar until_us: no fault begins after this time.

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
        self._members = list(cluster.members.values())
        self.until_us = int(seconds * SECOND_US)
        minority = (len(self._members) - 1) // 2
        self._may_be_damaged = {
            member.member_id for member in rng.sample(self._members, int(rng.random() * (minority + 1)))
        }
        if any(member.config.never_lead for member in self._members):
            # A member that must not lead may be the only whole holder of the last entries: no leader then.
            self._may_be_damaged = set()
        # Of one member either records and index units rot, or its small files: both at once can hide a loss.
        self._rots_small = {member_id for member_id in sorted(self._may_be_damaged) if rng.random() < 0.4}
        self._mean_us = int((pace_s or rng.choice((1.0, 2.5, 5.0, 10.0))) * SECOND_US)
        self._kinds: list[Callable[[], None]] = [getattr(self, f"_{name}") for name in only] or self._mix()

    def _mix(self) -> list[Callable[[], None]]:
        kinds: list[Callable[[], None]] = [
            self._cut_link, self._isolate, self._heal_slowly, self._split, self._break, self._break_late,
            self._pause, self._depose, self._spikes, self._transfer,
        ]
        if self._members[0].config.store_type == "file":
            kinds += [self._kill, self._kill_all, self._stop, self._kill_inside, self._disk_error,
                      self._fill_disk, self._slow_disk, self._damage, self._rot, self._kill]
        if self._cluster.is_sync:
            kinds += [self._cut_power, self._cut_power, self._cut_power_everywhere, self._lose_power_inside,
                      self._lose_power_inside]
        elif self._members[0].config.store_type == "file":
            kinds += [self._cut_power, self._cut_power]
        rng = self._rng
        chosen = [kind for kind in kinds if rng.random() < 0.5]
        return chosen or kinds

    def start(self) -> None:
        """Begin; the first fault leaves time for the first election."""
        self._clock.after(int((1 + 3 * self._rng.random()) * SECOND_US), self._strike)

    def _strike(self) -> None:
        if self._clock.now_us >= self.until_us:
            return
        kind = self._rng.choice(self._kinds)
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
            slow_us = int((0.1 + self._rng.random()) * SECOND_US)
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
        network.spike, network.spike_us = self._rng.choice((0.02, 0.2)), self._while_us(3)
        self._clock.after(self._while_us(10), self._no_spikes)

    def _no_spikes(self) -> None:
        self._cluster.network.spike = 0.0

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
        self._clock.after(self._while_us(12), self._resume, member, member.life)

    def _depose(self) -> None:
        """Pause a leader until another one has led for a while: it wakes up and believes that it leads."""
        member = self._cluster.leader
        if member is not None:
            member.pause()
            self._await_other(member, member.life, self._clock.now_us + 15 * SECOND_US)

    def _await_other(self, member: SimMember, life: int, until_us: int) -> None:
        if member.life != life or not member.is_paused:
            return
        if self._cluster.leader is not None or self._clock.now_us >= until_us:
            self._clock.after(int(2 * SECOND_US * self._rng.random()), self._resume, member, life)
        else:
            self._clock.after(200_000, self._await_other, member, life, until_us)

    def _resume(self, member: SimMember, life: int) -> None:
        if member.life == life:
            member.resume()

    def _cut_power(self) -> None:
        member = self._member()
        if not self._may_lose_power(member):
            return
        member.lose_power()
        self._down_for(member)

    def _may_lose_power(self, member: SimMember) -> bool:
        """With async flushing a minority at a time: as long as a majority has lost none, nothing is lost."""
        if self._cluster.is_sync:
            return True
        doubtful = {one.member_id for one in self._members if one.is_doubtful} | {member.member_id}
        return len(doubtful) <= (len(self._members) - 1) // 2 and not self._may_be_damaged

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
        disk.set_full(True)
        self._clock.after(self._while_us(8), disk.set_full, False)

    def _slow_disk(self) -> None:
        member = self._member()
        member.slow_flush_us = self._while_us(1.5)
        self._clock.after(self._while_us(10), self._fast_disk, member)

    def _fast_disk(self, member: SimMember) -> None:
        member.slow_flush_us = 0

    def _damage(self) -> None:
        """Flip a bit of an index unit, of a record (durable, or not acknowledged), or of a small file."""
        candidates = [member for member in self._members if member.member_id in self._may_be_damaged]
        if not candidates:
            return
        member = self._rng.choice(candidates)
        chance = self._rng.random()
        if member.member_id in self._rots_small:
            flipped, dies = self._flip_small(member), True
        elif chance < 0.2:
            flipped, dies = self._flip_index(member), self._rng.random() < 0.6
        elif chance < 0.35:
            flipped, dies = self._flip_unacknowledged(member), True
        else:
            flipped, dies = self._flip_data(member), self._rng.random() < 0.6
        if flipped and dies:
            member.kill()
            self._down_for(member)

    def _rot(self) -> None:
        """Flip a bit of committed records with a sound one behind, with a sound copy at another member."""
        members = [member for member in self._members if member.member_id not in self._rots_small]
        if not members or any(member.config.never_lead for member in self._members):
            return
        if self._cluster.options.hides_wire_version:
            return  # Java members give entries only while they lead, and that takes the longest log
        for member in self._rng.sample(members, 1 + int(self._rng.random() * len(members))):
            self._rot_one(member)

    def _rot_one(self, member: SimMember) -> None:
        invariants = self._cluster.invariants
        mirror, durable = invariants.mirror(member.member_id), self._durable_ends(member)
        last = mirror.begin_index + durable - 1
        if durable < 2 or last in member.damaged:
            return
        index = mirror.begin_index + int(self._rng.random() * (durable - 1))
        copies = [
            other for other in self._members
            if other is not member and other.member_id not in self._may_be_damaged
            and self._has_sound(other, index)
        ]
        if index >= invariants.last_committed or index in member.damaged or not copies:
            return
        if self._flip_record(member, index) and self._rng.random() < 0.4:
            member.kill()
            self._down_for(member)

    def _has_sound(self, member: SimMember, index: int) -> bool:
        invariants, near = self._cluster.invariants, (index - 1, index, index + 1)
        term = invariants.mirror(member.member_id).term_of(index)
        return term == invariants.committed.get(index) and not member.damaged.intersection(near)

    def _flip_small(self, member: SimMember) -> bool:
        """
        Flip a bit of C{currterm}, its twin, the commit mark or the checkpoint. Of two slots one stays sound,
        and nothing is pending that a power cut could tear.
        """
        name, decode = self._rng.choice((
            (TERM_FILE_NAME, None), (TERM_TWIN_NAME, decode_term_twin), (COMMIT_MARK_NAME, decode_mark),
            (LEDGER_CHECKPOINT_NAME, None),
        ))
        path = f"{member.config.self_path}/{name}"
        if not member.disk.exists(path):
            return False
        content = member.disk.cached_content(path)
        size = len(content)
        if decode is not None:
            is_sound = decode(content[:SLOT_SIZE]) is not None and decode(content[SLOT_SIZE:]) is not None
            if not is_sound or member.disk.durable_content(path) != content:
                return False
            size = 2 * SLOT_SIZE
        if not size:
            return False
        at = int(self._rng.random() * size)
        self._note(f"{member.member_id} bit flipped in {path} at {at}")
        member.disk.flip_bit(path, at, int(self._rng.random() * 8))
        member.is_small_damaged = True
        return True

    def _flip_unacknowledged(self, member: SimMember) -> bool:
        """Flip a bit of a record that was not acknowledged, behind the mark: it looks like a torn one."""
        mirror = self._cluster.invariants.mirror(member.member_id)
        if not member.is_up or not self._cluster.is_sync:
            return False
        first = max(member.core.status().flushed_index + 1, mirror.begin_index)
        if first > mirror.end_index:
            return False
        index = first + int(self._rng.random() * (mirror.end_index + 1 - first))
        return self._flip_record(member, index)

    def _flip_data(self, member: SimMember) -> bool:
        """Flip a bit of a record that would survive a power cut now, together with its commit mark."""
        mirror, durable = self._cluster.invariants.mirror(member.member_id), self._durable_ends(member)
        if not durable:
            return False
        at = durable - 1 if self._rng.random() < 0.5 else int(self._rng.random() * durable)
        return self._flip_record(member, mirror.begin_index + at)

    def _durable_ends(self, member: SimMember) -> int:
        """Number of records that would survive a power cut now, together with a commit mark that has them."""
        content = member.disk.durable_content(f"{member.config.self_path}/{COMMIT_MARK_NAME}") or b""
        slots = (decode_mark(content[:SLOT_SIZE]), decode_mark(content[SLOT_SIZE:]))
        marks = [mark for found in slots if found is not None for mark in (found[1],)]
        mirror = self._cluster.invariants.mirror(member.member_id)
        if not marks or not mirror.terms:
            return 0
        behind = min(mark.end_position for mark in marks)
        return sum(end <= behind for end in mirror.ends)

    def _flip_record(self, member: SimMember, index: int) -> bool:
        mirror = self._cluster.invariants.mirror(member.member_id)
        size = self._cluster.invariants.record_size(member.member_id, index)
        position = mirror.ends[index - mirror.begin_index] - size + int(self._rng.random() * size)
        member.damaged.add(index)
        directory = f"{member.config.self_path}/data"
        return self._flip(member, directory, position, member.config.mapped_file_size_for_entry_data)

    def _flip_index(self, member: SimMember) -> bool:
        directory = f"{member.config.self_path}/index"
        if not member.disk.exists(directory):
            return False
        mirror = self._cluster.invariants.mirror(member.member_id)
        if not mirror.terms:
            return False
        index = mirror.begin_index + int(self._rng.random() * len(mirror.terms))
        member.damaged.add(index)
        position = index * INDEX_UNIT_SIZE + int(self._rng.random() * INDEX_UNIT_SIZE)
        return self._flip(member, directory, position, member.config.mapped_file_size_for_entry_index)

    def _flip(self, member: SimMember, directory: str, position: int, file_size: int) -> bool:
        base = position - position % file_size
        path = f"{directory}/{base:020d}"
        if not member.disk.exists(path) or position - base >= member.disk.file_size(path):
            return False  # not made yet, or only partly, because the process was killed
        self._note(f"{member.member_id} bit flipped in {path} at {position - base}")
        member.disk.flip_bit(path, position - base, int(self._rng.random() * 8))
        return True
