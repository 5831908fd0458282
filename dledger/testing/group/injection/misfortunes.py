# -*- test-case-name: tests.sim.test_misfortunes -*-
"""
Faults of whole directories, machines and operators, beside those of
L{dledger.testing.group.injection.faults}.

A member loses its directory and starts with an empty one: as a loss of power with C{async}, that is survived
while a majority is sure of its ledger, see L{Misfortunes.may_lose}. Two directories are exchanged, or a
member is started with options that do not fit: it refuses to start, and changes nothing. One small file is an
older copy of itself, or a record is again an older one: a write that the disk has lost. With C{async}
the power fails everywhere: then acknowledged entries may be gone, but not those that a member knows to be
committed, or that a mark on a disk calls so.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from dledger.base.disk.file_table import LEDGER_CHECKPOINT
from dledger.storage.files.commit_mark import COMMIT_MARK_NAME, decode_mark
from dledger.storage.files.term_file import (
    TERM_FILE_NAME,
    TERM_TWIN_NAME,
    TermVote,
    decode_term,
    decode_term_twin,
)
from dledger.storage.start.identity import IDENTITY_NAME
from dledger.testing.group.checks.require import require
from dledger.testing.group.injection.damage import Rot
from dledger.testing.group.injection.keeper import CopyKeeper
from dledger.testing.group.members.cluster import SECOND_US, SimCluster
from dledger.testing.group.members.member import SimMember
from dledger.testing.world.disk import PowerLoss, ProcessKilled

#: Files of which a member can have an older copy, one at a time.
_COPIED = (TERM_FILE_NAME, TERM_TWIN_NAME, COMMIT_MARK_NAME, LEDGER_CHECKPOINT.name)

#: Options with which a directory that was made without them is refused.
_UNFIT: tuple[dict[str, object], ...] = (
    {"group": "another"}, {"mapped_file_size_for_entry_data": 1 << 15},
    {"mapped_file_size_for_entry_index": 32 * 256},
)


#: Every kind there is. No seed draws the last one: the product does not notice a lost write if another valid
#: record was in the same place before, see docs/trust.md.
KINDS = ("wipe", "exchange", "copy_back", "black_out", "misconfigure", "limp", "lose_write")


class Misfortunes:
    """
    The source of these faults in one schedule.

    @ivar names: of all kinds that this group can have.
    @ivar members: of the group.
    """

    def __init__(
        self, cluster: SimCluster, rng: random.Random, damage: Rot, *, changes_members: bool
    ) -> None:
        """
        @param changes_members: members leave, so that a minority may become a majority: one member at a time
            is in doubt.
        """
        self._cluster = cluster
        self._rng = rng
        self._clock = cluster.clock
        self._most = 1 if changes_members else (len(cluster.members) - 1) // 2
        self._damage = damage
        self._copies: dict[tuple[str, str], bytes] = {}
        self._away = damage.away
        is_whole = not any(member.config.never_lead for member in self.members)
        self.names: tuple[str, ...] = ("limp",)
        self.names += ("exchange", "misconfigure")
        is_sound = not (damage.minority or cluster.options.hides_wire_version)
        if is_sound and is_whole:
            self.names += ("wipe", "wipe")
            if not (cluster.is_sync or changes_members):
                self.names += ("black_out",)
        elif damage.rots_small:
            self.names += ("copy_back", "copy_back")

    @property
    def members(self) -> list[SimMember]:
        """The members of the cluster."""
        return list(self._cluster.members.values())

    def kind(self, name: str) -> Callable[[], None]:
        """The fault with this name; none if this group cannot have it."""
        found: Callable[[], None] = getattr(self, name if name in (*self.names, "lose_write") else "spare")
        return found

    def spare(self) -> None:
        """No fault."""

    def _note(self, text: str) -> None:
        self._cluster.trace.note(self._clock.now_us, f"fault: {text}")

    def may_lose(self, member: SimMember) -> bool:
        """Whether a majority of members without any damage is sure of its ledger even without C{member}."""
        return not self._is_rotten(member) and self.leaves_most(member)

    def leaves_most(self, member: SimMember) -> bool:
        """
        Whether a majority has neither lost entries nor is late for a log, even without C{member}. (Where the
        logs of all others begin after their ends, members wait for an operator.)
        """
        doubtful = {one.member_id for one in self.members if one.is_doubtful or self._is_late(one)}
        return len(doubtful | {member.member_id}) <= self._most and not self._damage.minority

    def _is_late(self, member: SimMember) -> bool:
        mirror = self._cluster.invariants.mirror
        end = mirror(member.member_id).end_index
        return any(mirror(other.member_id).begin_index > end + 1 for other in self.members)

    def _is_rotten(self, *losers: SimMember) -> bool:
        """Whether any other member has a damaged entry, of which C{losers} may have the only sound copy."""
        return any(one.damaged for one in self.members if one not in losers or len(losers) > 1)

    def _back_later(self, member: SimMember, longest_s: float = 8.0) -> None:
        self._cluster.restart_later(member, 1000 + int(longest_s * SECOND_US * self._rng.random() ** 2))

    # -- directories --------------------------------------------------------------------------------

    def wipe(self, keeper: CopyKeeper | None = None) -> None:
        """A member has a new disk. @param keeper: gives it the entries of a copy."""
        member = self._rng.choice(self.members)
        if member.member_id not in self._away and self.may_lose(member) and self._is_state_elsewhere(member):
            member.lose_directory()
            self.name_present_members(member)
            if keeper is not None:
                keeper.give_back(member)
            self._back_later(member)

    def may_be_wiped(self, member: SimMember) -> bool:
        """Whether this group can have the fault at all, and now."""
        return "wipe" in self.names and member.member_id not in self._away and (
            self.may_lose(member) and self._is_state_elsewhere(member))

    def _is_state_elsewhere(self, member: SimMember) -> bool:
        """
        Whether another member knows the state of the group, and another one can make the state of the
        machines for all: it has a snapshot, or its log from the beginning, and its log comes to where those
        of the others begin.
        """
        if not any(one.is_up and one.ledger.group is not None
                   for one in self._cluster.active if one is not member):
            return False
        if self._cluster.world.machines is None:
            return True
        others = [one for one in self._cluster.active if one is not member]
        mirror = self._cluster.invariants.mirror
        reach = max((mirror(one.member_id).begin_index for one in others), default=0)
        return any(
            mirror(one.member_id).end_index >= reach - 1
            and _newest_snapshot(one) >= mirror(one.member_id).begin_index - 1
            for one in others if mirror(one.member_id).terms and one.member_id not in self._away
        )

    def name_present_members(self, member: SimMember) -> None:
        """A group that drops its log forgets former members: the operator names the present ones."""
        now = self._cluster.invariants.membership.addresses
        if self._cluster.world.machines is not None and member.member_id in now:
            peers = {one: self._cluster.addresses[one] for one in now}
            preferred = tuple(one for one in member.config.preferred_leader_ids if one in peers)
            member.reconfigure({"peers": peers, "preferred_leader_ids": preferred})

    def exchange(self) -> None:
        """The disks of two machines are exchanged for a while: neither member starts."""
        one, other = pair = self._rng.sample(self.members, 2)
        for member in pair:
            if member.member_id in self._away or not member.disk.exists(
                f"{member.config.self_path}/{IDENTITY_NAME}"
            ):
                return
        for member in pair:
            self._away.add(member.member_id)
            member.kill()
            self._cluster.restart_later(member, 1000)
        self._swap(one, other)
        self._note(f"{one.member_id} and {other.member_id} have each other's directory")
        found = [self._content(member) for member in pair]
        us = int((1 + 4 * self._rng.random()) * SECOND_US)
        self._clock.after(us, self._exchange_back, one, other, found)

    def _swap(self, one: SimMember, other: SimMember) -> None:
        one.is_away = other.is_away = not one.is_away
        mine, theirs = (member.disk.take_away(member.config.self_path) for member in (one, other))
        one.disk.put_back(one.config.self_path, theirs)
        other.disk.put_back(other.config.self_path, mine)

    def _content(self, member: SimMember) -> tuple[int, dict[str, bytes]]:
        return member.disk.power_cuts, member.disk.files_below(member.config.self_path)

    def _exchange_back(
        self, one: SimMember, other: SimMember, found: list[tuple[int, dict[str, bytes]]]
    ) -> None:
        for member, (power_cuts, before) in zip((one, other), found, strict=True):
            require(not member.is_up, 1, f"{member.member_id} runs on another member's directory")
            now = self._content(member)
            require(power_cuts != now[0] or before == now[1], 3,
                    f"{member.member_id} changed the directory of another member")
            self._away.discard(member.member_id)
        self._swap(one, other)
        self._note(f"{one.member_id} and {other.member_id} have their directories back")

    # -- older copies -------------------------------------------------------------------------------

    def copy_back(self) -> None:
        """A small file becomes an older copy of itself, or is copied for a later time."""
        ids = sorted(self._damage.rots_small)
        member = self._cluster.members[self._rng.choice(ids)]
        if member.member_id in self._away or any(one.is_small_damaged for one in self.members):
            return
        name = self._rng.choice(_COPIED)
        path = f"{member.config.self_path}/{name}"
        if not member.disk.exists(path):
            return
        now = member.disk.read_anyway(path)
        copy = self._copies.pop((member.member_id, name), None)
        if copy is None or copy == now:
            self._copies[member.member_id, name] = now
            return
        if name == COMMIT_MARK_NAME and not _fits(copy, now):
            return
        if name in (TERM_FILE_NAME, TERM_TWIN_NAME) and not self._twins_agree(member):
            return  # the other one may wait for room, or for a descriptor
        self._note(f"{member.member_id} gets an older {name}")
        member.kill()
        member.disk.replace(path, copy)
        if name in (TERM_FILE_NAME, TERM_TWIN_NAME):
            self._damage.older_terms[member.member_id] = member.boots
        self._back_later(member)

    @staticmethod
    def _twins_agree(member: SimMember) -> bool:
        disk = member.disk
        both = (decode_term(disk.read_anyway(member.term_path)) if disk.exists(member.term_path) else None,
                decode_term_twin(disk.read_anyway(member.twin_path)))
        return both[0] == both[1] == TermVote(member.persisted_term, member.persisted_vote)

    def lose_write(self) -> None:
        """A durable record is again an older one."""
        member = self._damage.revert()
        if member is not None and self._rng.random() < 0.7:
            member.kill()
            self._back_later(member)

    # -- machines and operators -------------------------------------------------------------------

    def black_out(self) -> None:
        """The power fails everywhere, though acknowledged entries are not flushed."""
        if self._is_rotten(*self.members):
            return
        for member in self.members:
            member.lose_power()
            self._back_later(member, 4.0)
        self._cluster.forget_acknowledged()

    def misconfigure(self) -> None:
        """An operator starts a member with options that do not fit its directory, then with right ones."""
        member = self._rng.choice(self.members)
        if member.member_id in self._away or not member.disk.exists(
            f"{member.config.self_path}/{COMMIT_MARK_NAME}"
        ):
            return
        wrong = self._rng.choice(_UNFIT)
        right = {name: getattr(member.config, name) for name in wrong}
        if right == wrong:
            return
        self._away.add(member.member_id)
        member.kill()
        member.is_away = True
        member.reconfigure(wrong)
        self._cluster.restart_later(member, 1000)
        self._clock.after(int((1 + 3 * self._rng.random()) * SECOND_US), self._configure, member, right)

    def _configure(self, member: SimMember, right: dict[str, object]) -> None:
        require(not member.is_up, 3, f"{member.member_id} runs with options that do not fit its directory")
        self._away.discard(member.member_id)
        member.is_away = False
        member.reconfigure(right)

    def limp(self) -> None:
        """One member has every kind of trouble for some seconds, and is honest."""
        member = self._rng.choice(self.members)
        for number in range(int(4 + 12 * self._rng.random())):
            us = int(number * 0.4 * SECOND_US * (0.5 + self._rng.random()))
            self._clock.after(us, self._stumble, member)

    def _stumble(self, member: SimMember) -> None:
        if self._cluster.is_calm:
            return
        rng, network, disk = self._rng, self._cluster.network, member.disk
        other = rng.choice([one.member_id for one in self.members if one is not member])
        chance = rng.random()
        if chance < 0.3:
            network.break_between(member.member_id, other, late_us=SECOND_US)
        elif chance < 0.5:
            member.pause()
            self._clock.after(int(1.5 * SECOND_US * rng.random()), self._go_on, member, member.boots)
        elif chance < 0.6:
            death = PowerLoss if self._cluster.is_sync and rng.random() < 0.5 else ProcessKilled
            disk.arm(die_in=1 + int(rng.random() * 9), death=death)
        elif chance < 0.8:
            disk.arm(writes=int(rng.random() * 2), syncs=int(rng.random() * 2), reads=int(rng.random() * 2))
        else:
            member.kill()
            self._back_later(member, 2.0)

    def _go_on(self, member: SimMember, boots: int) -> None:
        if member.boots == boots:
            member.resume()


def _newest_snapshot(member: SimMember) -> int:
    """The last entry in a snapshot of its state machine; -1: it has none."""
    path = f"{member.config.self_path}/machine"
    found = [name.split("-") for name in (member.disk.listdir(path) if member.disk.exists(path) else ())]
    return max((int(parts[1]) for parts in found if len(parts) == 3 and parts[2].isdigit()), default=-1)


def _fits(copy: bytes, now: bytes) -> bool:
    """
    Whether an older mark reports the same beginning, and forgets no repair: retention may have deleted the
    beginning, and nothing else remembers an owed end.
    """
    before, after = decode_mark(copy), decode_mark(now)
    if before is None or after is None:
        return False
    return before[1].begin_position == after[1].begin_position and after[1].repair_end_index < 0
