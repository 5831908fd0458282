# -*- test-case-name: tests.sim.test_faults -*-
"""
Damage to the files of the members of a group, within the promises of a run.

Only a minority is damaged, and of one member either records and index units, or the small files: both at once
can hide a loss. Of two slots of a small file one stays sound. Records are damaged below the end that the
member's commit mark records as durable, or after everything that the member has acknowledged. Committed
records rot at any member, as long as another member has a sound copy, and a sound record is after them; one,
or all that a bad sector takes.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from dledger.base.disk.file_table import HOLES, LEDGER_CHECKPOINT
from dledger.base.disk.segment import file_name
from dledger.base.disk.two_slots import SLOT_SIZE
from dledger.base.disk.unreadable import BLOCK
from dledger.storage.files.commit_mark import COMMIT_MARK_NAME, decode_mark
from dledger.storage.files.term_file import TERM_FILE_NAME, TERM_TWIN_NAME, decode_term_twin
from dledger.storage.start.identity import IDENTITY_NAME, decode_identity
from dledger.testing.group.members.cluster import SimCluster
from dledger.testing.group.members.member import SimMember
from protocols.wire.ledger.entry import INDEX_UNIT_SIZE, decode_header

#: Whether a file of two slots is sound in both; None for a file that may rot anywhere.
_SLOTS: dict[str, Callable[[bytes], object] | None] = {
    TERM_FILE_NAME: None, TERM_TWIN_NAME: decode_term_twin, COMMIT_MARK_NAME: decode_mark,
    LEDGER_CHECKPOINT.name: None, HOLES.name: None, IDENTITY_NAME: decode_identity,
    f"chunks/{file_name(0)}": None,
}


class Rot:
    """
    Damages files.

    @ivar minority: the ids of members that may lose records or small files.
    @ivar away: the ids of members whose directory is at another machine now: they are spared.
    @ivar older_terms: members one of whose two files of the term is an older one, with their C{boots}: until
        they start, the other file must stay sound.
    @ivar rots_small: those of them that may lose small files, and no records.
    @ivar has_lost_blocks: a sector of some member could not be read.
    """

    def __init__(
        self, cluster: SimCluster, rng: random.Random, *, changes_members: bool, is_wanted: bool = False
    ) -> None:
        """
        @param changes_members: members leave, so that a minority may become a majority.
        @param is_wanted: one member at least may lose records.
        """
        self._cluster = cluster
        self._rng = rng
        self._members = list(cluster.members.values())
        most = 1 if changes_members else (len(self._members) - 1) // 2
        self.minority = {
            member.member_id for member in rng.sample(
                self._members, max(int(rng.random() * (most + 1)), int(is_wanted)))
        }
        self.away: set[str] = set()
        self.older_terms: dict[str, int] = {}
        self.has_lost_blocks = False
        self._deletes = any(
            member.config.retention_bytes or member.config.file_reserved_hours
            or member.config.enable_disk_force_clean for member in self._members
        )
        self._leads_everywhere = not any(member.config.never_lead for member in self._members)
        if not self._leads_everywhere:
            # A member that must not lead may be the only whole holder of the last entries: no leader then.
            self.minority = set()
        self.rots_small = {member_id for member_id in sorted(self.minority) if rng.random() < 0.4}
        if is_wanted:
            self.rots_small = set()

    def _note(self, text: str) -> None:
        self._cluster.trace.note(self._cluster.clock.now_us, f"fault: {text}")

    # -- one member of the minority -----------------------------------------------------------------

    def strike(self) -> SimMember | None:
        """
        Damage an index unit, a record (durable, or not acknowledged), or a small file.

        @return: a member that should end now, if any.
        """
        candidates = [
            member for member in self._members if member.member_id in self.minority - self.away
        ]
        if not candidates:
            return None
        member = self._rng.choice(candidates)
        chance = self._rng.random()
        if member.member_id in self.rots_small:
            flipped, dies = self._flip_small(member), True
        elif chance < 0.2:
            flipped, dies = self._flip_index(member), self._rng.random() < 0.6
        elif chance < 0.35:
            flipped, dies = self._flip_unacknowledged(member), True
        else:
            flipped, dies = self._flip_data(member), self._rng.random() < 0.6
        return member if flipped and dies else None

    def _flip_small(self, member: SimMember) -> bool:
        """
        Damage C{currterm}, its twin, the commit mark, the checkpoint or the list of holes. Of two slots one
        stays sound, and nothing is pending that a power cut could tear.
        """
        name, decode = self._rng.choice(list(_SLOTS.items()))
        if name in (TERM_FILE_NAME, TERM_TWIN_NAME) and (
            self.older_terms.get(member.member_id) == member.boots
        ):
            return False
        path = f"{member.config.self_path}/{name}"
        if not member.disk.exists(path):
            return False
        content = member.disk.read_anyway(path)
        size = len(content)
        if decode is not None:
            is_sound = decode(content[:SLOT_SIZE]) is not None and decode(content[SLOT_SIZE:]) is not None
            if not is_sound or member.disk.durable_content(path) != content:
                return False
            size = 2 * SLOT_SIZE
        if not size:
            return False
        at = int(self._rng.random() * size)
        self._spoil(member, path, at, 1)
        member.is_small_damaged = True
        return True

    def _flip_unacknowledged(self, member: SimMember) -> bool:
        """Flip a bit of a record that was not acknowledged, after the mark: it looks like a torn one."""
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
        mirror, durable = self._cluster.invariants.mirror(member.member_id), self.durable_ends(member)
        if not durable:
            return False
        at = durable - 1 if self._rng.random() < 0.5 else int(self._rng.random() * durable)
        return self._flip_record(member, mirror.begin_index + at)

    def may_rot(self, member: SimMember) -> bool:
        """Whether records of the member may rot that nobody else has."""
        return member.member_id in self.minority - self.rots_small - self.away

    def rot_uncommitted(self, member: SimMember) -> bool:
        """Damage a record that is not committed, and that the mark calls durable. @return: if any."""
        invariants = self._cluster.invariants
        mirror = invariants.mirror(member.member_id)
        durable = mirror.terms[:self.durable_ends(member)]
        found = [index for index, term in enumerate(durable, mirror.begin_index)
                 if invariants.committed.get(index) != term]
        if not self.may_rot(member) or not found:
            return False
        return self._flip_record(member, self._rng.choice(found))

    def durable_ends(self, member: SimMember) -> int:
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
        at = int(self._rng.random() * size)
        position = mirror.ends[index - mirror.begin_index] - size + at
        member.damaged.add(index)
        directory = f"{member.config.self_path}/data"
        file_size = member.config.mapped_file_size_for_entry_data
        return self._flip(member, directory, position, file_size, size - at)

    def _flip_index(self, member: SimMember) -> bool:
        directory = f"{member.config.self_path}/index"
        if not member.disk.exists(directory):
            return False
        mirror = self._cluster.invariants.mirror(member.member_id)
        if not mirror.terms:
            return False
        index = mirror.begin_index + int(self._rng.random() * len(mirror.terms))
        member.damaged.add(index)
        at = int(self._rng.random() * INDEX_UNIT_SIZE)
        file_size = member.config.mapped_file_size_for_entry_index
        return self._flip(member, directory, index * INDEX_UNIT_SIZE + at, file_size, INDEX_UNIT_SIZE - at)

    def _flip(self, member: SimMember, directory: str, position: int, file_size: int, most: int) -> bool:
        base = position - position % file_size
        path = f"{directory}/{base:020d}"
        if not member.disk.exists(path) or position - base >= member.disk.file_size(path):
            return False  # not made yet, or only partly, because the process was killed
        self._spoil(member, path, position - base, most)
        return True

    def _spoil(self, member: SimMember, path: str, at: int, most: int) -> None:
        """
        Flip a bit; or let up to C{most} bytes be zeros, or those of another place: a write that was lost, or
        that went astray.
        """
        disk, chance = member.disk, self._rng.random()
        self._cluster.world.chunks.is_rotten = True
        content = disk.read_anyway(path)
        size = 1 + int(self._rng.random() * min(most, len(content) - at))
        if chance < 0.7:
            reported, spoilt = "bit flipped", bytes([content[at] ^ 1 << int(self._rng.random() * 8)])
        elif chance < 0.85:
            reported, spoilt = "zeros", bytes(size)
        else:
            place = int(self._rng.random() * (len(content) - size + 1))
            reported, spoilt = f"bytes of {place}", content[place : place + size]
        if spoilt == content[at : at + len(spoilt)]:
            reported, spoilt = "bit flipped", bytes([content[at] ^ 1])
        self._note(f"{member.member_id} {reported} in {path} at {at}, {len(spoilt)} bytes")
        disk.overwrite(path, at, spoilt)

    def revert(self) -> SimMember | None:
        """
        A durable record becomes one that some member once had in its place, and that was cut.

        @return: the member, if there was such a record.
        """
        ids = sorted(self.minority - self.rots_small - self.away)
        if not ids:
            return None
        member = self._cluster.members[self._rng.choice(ids)]
        invariants = self._cluster.invariants
        mirror, durable = invariants.mirror(member.member_id), self.durable_ends(member)
        for (index, term), (record, _) in invariants.records.items():
            at = index - mirror.begin_index
            if not 0 <= at < durable or mirror.terms[at] == term:
                continue
            size = invariants.record_size(member.member_id, index)
            position = mirror.ends[at] - size
            if decode_header(record).pos != position or index in member.damaged:
                continue
            file_size = member.config.mapped_file_size_for_entry_data
            path = f"{member.config.self_path}/data/{position - position % file_size:020d}"
            if member.disk.exists(path) and position % file_size + size <= member.disk.file_size(path):
                self._note(f"{member.member_id} has an older record {index}")
                member.damaged.add(index)
                member.disk.overwrite(path, position % file_size, record[:size])
                return member
        return None

    # -- any member ---------------------------------------------------------------------------------

    def rot(self) -> list[SimMember]:
        """
        Damage committed records with a sound one after them and a sound copy at another member.

        @return: members that should end now.
        """
        members = [
            member for member in self._members if member.member_id not in self.rots_small | self.away
        ]
        if not members or not self._leads_everywhere:
            return []
        if self._cluster.options.hides_wire_version:
            return []  # Java members give entries only while they lead, and that takes the longest log
        chosen = self._rng.sample(members, 1 + int(self._rng.random() * len(members)))
        return [member for member in chosen if self._rot_one(member)]

    def rot_after(self, member: SimMember, index: int) -> bool:
        """
        Damage committed records of a member after C{index}, as L{rot} does: some, that another one lacks.

        @return: whether any was.
        """
        hides = self._cluster.options.hides_wire_version
        if member.member_id in self.rots_small | self.away or not self._leads_everywhere or hides:
            return False
        before = len(member.damaged)
        for _ in range(1 + int(self._rng.random() * 4)):
            self._rot_one(member, index + 1)
        return len(member.damaged) > before

    def rot_beside(self, member: SimMember) -> None:
        """
        Damage the surroundings of sound, committed records of closed files: an index unit, or the blank at
        the end of a file. The records have all that is needed to write both again.
        """
        mirror, durable = self._cluster.invariants.mirror(member.member_id), self.durable_ends(member)
        if member.member_id in self.rots_small | self.away or durable < 4 or not member.is_up:
            return
        at = 1 + int(self._rng.random() * (durable - 3))
        index, near = mirror.begin_index + at, range(mirror.begin_index + at - 2, mirror.begin_index + at + 3)
        if any(one.damaged.intersection(near) for one in self._members):
            return
        size = member.config.mapped_file_size_for_entry_data
        if self._rng.random() < 0.5:
            place, units = int(self._rng.random() * INDEX_UNIT_SIZE), f"{member.config.self_path}/index"
            if self._flip(member, units, index * INDEX_UNIT_SIZE + place,
                          member.config.mapped_file_size_for_entry_index, INDEX_UNIT_SIZE - place):
                member.damaged.add(index)
            return
        base = mirror.ends[at] - mirror.ends[at] % size
        behind = [end for end in mirror.ends[:durable] if end <= base]
        if base and behind and behind[-1] < base:
            place = behind[-1] + int(self._rng.random() * min(base - behind[-1], 16))
            if self._flip(member, f"{member.config.self_path}/data", place, size, 1):
                member.damaged.add(mirror.begin_index + len(behind) - 1)

    def _rot_one(self, member: SimMember, first: int = 0) -> bool:
        """C{first}: index of the first record that may rot."""
        invariants = self._cluster.invariants
        mirror, durable = invariants.mirror(member.member_id), self.durable_ends(member)
        last = mirror.begin_index + durable - 1
        if durable < 2 or last in member.damaged:
            return False
        first = max(first, mirror.begin_index)
        if first >= last:
            return False
        index = first + int(self._rng.random() * (last - first))
        copies = [
            other for other in self._members
            if other is not member and other.member_id not in self.minority
            and self._has_sound(other, index)
        ]
        ends = [invariants.mirror(other.member_id).end_index for other in self._members]
        if self._deletes and min(ends) < index:
            return False  # the sound copies may be deleted before that member has got one
        if index >= invariants.last_committed or index in member.damaged or not copies:
            return False
        if index % 3 == 0 and self._lose_block(member, index, copies):
            return False
        return self._flip_record(member, index) and self._rng.random() < 0.4

    def _lose_block(self, member: SimMember, index: int, copies: list[SimMember]) -> bool:
        """
        A sector with a part of a record cannot be read any more.

        @param copies: members with a sound copy of it.
        @return: whether all that is lost with it may be lost.
        """
        mirror = self._cluster.invariants.mirror(member.member_id)
        file_size = member.config.mapped_file_size_for_entry_data
        position = mirror.ends[index - mirror.begin_index] - 1
        base = position - position % file_size
        first = base + (position - base) // BLOCK * BLOCK
        last = min(first + BLOCK, base + file_size)
        lost = [
            mirror.begin_index + at for at, end in enumerate(mirror.ends)
            if end > first and end - self._cluster.invariants.record_size(
                member.member_id, mirror.begin_index + at) < last
        ]
        behind = mirror.begin_index + self.durable_ends(member) - 1
        path = f"{member.config.self_path}/data/{base:020d}"
        if (
            lost[-1] >= min(behind, self._cluster.invariants.last_committed)
            or (self._deletes and min(one.end_index for one in map(
                self._cluster.invariants.mirror, self._cluster.members)) < lost[-1])
            or not member.damaged.isdisjoint(lost) or not member.disk.exists(path)
            or not any(all(self._has_sound(other, one) for one in lost) for other in copies)
        ):
            return False
        what = f"entries {lost[0]} to {lost[-1]}"
        self._note(f"{member.member_id} cannot read {path} at {first - base}: {what}")
        member.damaged.update(lost)
        self.has_lost_blocks = True
        member.disk.spoil(path, position - base)
        return True

    def _has_sound(self, member: SimMember, index: int) -> bool:
        invariants, near = self._cluster.invariants, (index - 1, index, index + 1)
        term = invariants.mirror(member.member_id).term_of(index)
        return term == invariants.committed.get(index) and not member.damaged.intersection(near)
