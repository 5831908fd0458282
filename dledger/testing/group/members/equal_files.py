# -*- test-case-name: tests.sim.test_cluster -*-
"""
The last look at the files of a settled group: those of sound members are equal, byte for byte; a member with
damage shows none of it, and gets back what another member has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from dledger.testing.group.checks.invariants import GroupInvariants
from dledger.testing.group.checks.require import require
from dledger.testing.group.members.member import SimMember
from dledger.testing.world.clock import SimClock
from dledger.testing.world.disk import SimDisk
from dledger.values.errors import DamagedEntryError
from dledger.values.ledger.holes import Hole
from protocols.wire.ledger.entry import CHAIN_CRC_AT, INDEX_UNIT_SIZE

#: C{chainCrc} and the body's checksum in a record.
_CHECKSUMS = slice(CHAIN_CRC_AT, CHAIN_CRC_AT + 8)
#: Longest time for a damaged entry to come back.
_REPAIRED_US = 60_000_000


class SettledGroup(Protocol):
    """The parts of a group that are looked at."""

    clock: SimClock
    invariants: GroupInvariants

    @property
    def active(self) -> list[SimMember]:
        """Its members."""

    def owed_holes(self, member: SimMember) -> list[Hole]:
        """Holes of a member whose entries another member has."""

    def run(self, seconds: float) -> None:
        """Let time pass."""

    def describe(self) -> str:
        """The state of every member in a few words."""


def holes_to_mend(member: SimMember, running: Sequence[SimMember]) -> list[Hole]:
    """
    Holes of a member whose first entry another running member has: it must get that back. (That entry may be
    damaged at one member, and at another one that had it when retention deleted it at the third.)
    """
    others = [other.ledger for other in running if other is not member]
    return [
        hole for hole in member.ledger.holes
        if any(
            max(other.ledger_begin_index, 0) <= hole.first_index <= other.ledger_end_index
            and not any(one.holds(hole.first_index) for one in other.holes) for other in others
        )
    ]


class FileJudge:
    """Compares the files of one group."""

    def __init__(self, cluster: SettledGroup) -> None:
        self._cluster = cluster

    def compare(self) -> None:
        """@raise InvariantError: they differ, or damage is shown or not repaired."""
        members = self._cluster.active
        sound = [member for member in members if not member.damaged]
        invariants = self._cluster.invariants
        first = max([invariants.mirror(member.member_id).begin_index for member in sound], default=0)
        contents = {member.member_id: self._content(member, first) for member in sound}
        model = next(iter(contents), "")
        for member_id, content in contents.items():
            require(content == contents[model], 3,
                    f"the files of {member_id} and {model} differ from {first} on")
        for member in members:
            if member.damaged:
                self._shows_no_damage(member)

    def _shows_no_damage(self, member: SimMember) -> None:
        """An entry with a flipped bit that was not read since is read, or refused and comes back."""
        if not self._refused_entries(member):
            return
        cluster = self._cluster
        deadline_us = cluster.clock.now_us + _REPAIRED_US
        while cluster.owed_holes(member) and cluster.clock.now_us < deadline_us:
            cluster.run(0.5)
        reported = f"not repaired 60 s after all faults: {cluster.describe()}"
        require(not cluster.owed_holes(member), 4, reported)
        lost = {at for hole in member.ledger.holes for at in range(hole.first_index, hole.last_index + 1)}
        refused = [index for index in self._refused_entries(member) if index not in lost]
        require(not refused, 4, f"{member.member_id} is repaired, but cannot read {refused}")

    def _refused_entries(self, member: SimMember) -> list[int]:
        """Read all entries. @return: those that the member refused to show."""
        invariants = self._cluster.invariants
        invariants.expired(member)
        mirror, refused = invariants.mirror(member.member_id), []
        for index in range(mirror.begin_index, mirror.end_index + 1):
            try:
                batch = member.ledger.read_range(index, end_index=index, max_bytes=1)
            except DamagedEntryError:
                first, last = self._hole_at(member, index)
                near = member.damaged.intersection(range(first - 1, last + 2))
                require(near, 3, f"{member.member_id} cannot read {index}, which is sound")
                refused.append(index)
                continue
            record = invariants.records[index, invariants.committed[index]][0]
            shown = batch.records
            if not any(shown[_CHECKSUMS]):  # then it looks like Java's, until the next one is read
                record = record[: _CHECKSUMS.start] + bytes(8) + record[_CHECKSUMS.stop :]
            if index == mirror.begin_index > 0:  # channel and chainCrc: their witness has expired
                shown, record = (one[:32] + one[40:] for one in (shown, record))
            require(shown == record, 3, f"{member.member_id} shows damage at {index}")
        return refused

    def _hole_at(self, member: SimMember, index: int) -> tuple[int, int]:
        """The hole that was found at an entry, with sound entries after the damage, too; else the entry."""
        hole = next((one for one in member.ledger.holes if one.holds(index)), None)
        return (index, index) if hole is None else (hole.first_index, hole.last_index)

    def _content(self, member: SimMember, first: int) -> tuple[bytes, bytes]:
        ledger, config = member.ledger, member.config
        start, end = ledger.position_of(first), ledger.end_position
        size = config.mapped_file_size_for_entry_data
        data = _stream(member.disk, f"{config.self_path}/data", size, start, end)
        size = config.mapped_file_size_for_entry_index
        last = ledger.ledger_end_index
        index = _stream(member.disk, f"{config.self_path}/index", size, first * INDEX_UNIT_SIZE,
                        (last + 1) * INDEX_UNIT_SIZE)
        return data, index


def _stream(disk: SimDisk, directory: str, file_size: int, start: int, end: int) -> bytes:
    """Bytes C{start} to C{end} of a stream that is split into files of one size."""
    pieces = []
    while start < end:
        base = start - start % file_size
        stop = min(end, base + file_size)
        pieces.append(disk.cached_content(f"{directory}/{base:020d}")[start - base : stop - base])
        start = stop
    return b"".join(pieces)
