# -*- test-case-name: tests.sim.test_older_copies -*-
"""
The directory of a simulated member becomes an older copy of itself: a snapshot of a virtual machine, or a
backup of the files, that is put back. What the member has acknowledged and voted since is gone.

The others notice it by the number of starts (L{dledger.values.ledger.lineage}), if the member was started
since the copy was taken, they have met it since then, and the copy is not started more often: only such
copies are put back (docs/operations.md). Within that, a copy counts as a lost directory:
a minority at a time, and until the member is sure of its ledger again.
"""

from __future__ import annotations

import random

from dledger.storage.start.identity import IDENTITY_NAME
from dledger.testing.group.injection.damage import Rot
from dledger.testing.group.injection.misfortunes import Misfortunes
from dledger.testing.group.members.cluster import SECOND_US, SimCluster
from dledger.testing.group.members.member import SimMember
from dledger.testing.world.host import DirectoryTree

#: Starts of the member since the copy was taken: so often the copy may be started unnoticed.
STARTS = 2


class OlderCopies:
    """
    See the module.

    @ivar put_back: copies that were put back.
    """

    def __init__(
        self, cluster: SimCluster, rng: random.Random, damage: Rot, misfortunes: Misfortunes
    ) -> None:
        self.put_back = 0
        self._cluster = cluster
        self._rng = rng
        self._damage = damage
        self._misfortunes = misfortunes
        #: By member: its lineage when the copy was taken, as incarnation and starts; and the copy.
        self._copies: dict[str, tuple[tuple[int, int], DirectoryTree]] = {}

    def strike(self, member: SimMember) -> None:
        """Copy the directory, or put a copy back."""
        path = member.config.self_path
        if member.is_away or member.member_id in self._damage.away or not member.is_serving or (
            not member.disk.exists(f"{path}/{IDENTITY_NAME}")
        ):
            return
        now = member.known_lineage
        if now is None:
            return
        copied, tree = self._copies.get(member.member_id, (None, None))
        if copied is None or tree is None or copied[0] != now[0]:
            member.note("an operator copies its directory")
            self._copies[member.member_id] = now, member.disk.copy_of(path)
            return
        if now[1] < copied[1] + STARTS or not self._is_met(member, now) or (
            not self._misfortunes.may_lose(member)
        ):
            return
        del self._copies[member.member_id]
        self.put_back += 1
        member.lose_directory()
        member.disk.put_back(path, tree)
        member.older_incarnation = now[0]
        member.note(f"gets an older copy of its directory, of start {copied[1]}; it had {now[1]}")
        self._cluster.restart_later(member, 1000 + int(3 * SECOND_US * self._rng.random() ** 2))

    def _is_met(self, member: SimMember, now: tuple[int, int]) -> bool:
        """Whether all others have met the process that runs."""
        for other in self._cluster.members.values():
            if other is member:
                continue
            met = other.ledger.identity.others.met.get(member.member_id) if other.is_up else None
            if met is None or (met.incarnation, met.starts) != now:
                return False
        return True
