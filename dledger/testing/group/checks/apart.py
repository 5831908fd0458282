# -*- test-case-name: tests.sim.test_liars -*-
"""
What holds of a member whatever the other members say: each member is judged by itself.

The checks are those of L{dledger.testing.group.checks.invariants}, with one set of records for each member:
its term never falls, it votes once in a term, it cuts no entry that it knows to be committed, its answers
follow its disk, its tables have bounds. That members agree with each other is not asked for.
"""

from __future__ import annotations

from dledger.core.state.member_state import MemberState
from dledger.testing.group.checks.checked_member import CheckedMember
from dledger.testing.group.checks.invariants import GroupInvariants
from dledger.testing.group.checks.mirror import Mirror
from protocols.wire.ledger.messages import Request, Response


class OwnInvariants(GroupInvariants):
    """
    The checks of one member.

    A commit index that a process has learnt binds that process, and as far as the commit mark has it also the
    next one.
    """

    is_wire_sound = False

    def started(self, member: CheckedMember) -> None:
        known = member.ledger.committed_index
        self.committed = {index: term for index, term in self.committed.items() if index <= known}
        self.last_committed = max(self.committed, default=-1)
        self.known_index = -1
        super().started(member)

    def truncated(self, member: CheckedMember, end_index: int) -> None:
        """See L{GroupInvariants.truncated}. A lying leader of one term may push other entries of it next."""
        self.records = {
            (index, term): record for (index, term), record in self.records.items()
            if index < end_index or self.committed.get(index) == term
        }
        super().truncated(member, end_index)

    def _quorum_holds(self, leader: CheckedMember, state: MemberState, first_new: int, index: int) -> None:
        """Only the group knows."""


class ApartInvariants(GroupInvariants):
    """The checks of a group in which one member lies; each member has its own."""

    def __init__(self, member_ids: list[str], *, is_sync: bool) -> None:
        super().__init__(member_ids, is_sync=is_sync)
        self._own = {member_id: OwnInvariants([member_id], is_sync=is_sync) for member_id in member_ids}

    def of(self, member_id: str) -> OwnInvariants:
        """The checks of one member."""
        return self._own[member_id]

    def forget(self, member: CheckedMember) -> None:
        """A member gets an empty directory: it is another one from now on."""
        self._own[member.member_id] = OwnInvariants([member.member_id], is_sync=self.is_sync)
        self._own[member.member_id].add(member)

    def split(self, member_ids: list[str]) -> str:
        """
        Two of these members that cannot agree any more, because one holds another entry where the other one
        has committed; empty if there are none.
        """
        for one in member_ids:
            for other in member_ids:
                mirror = self._own[other].mirror(other)
                for index, term in self._own[one].committed.items():
                    theirs = mirror.term_of(index)
                    if theirs >= 0 and (
                        theirs != term or self._own[one].records[index, term] != (
                            self._own[other].records[index, term])
                    ):
                        return f"{one} committed ({index}, t{term}), {other} holds another entry there"
        return ""

    # -- as GroupInvariants ---------------------------------------------------------------------

    @property
    def elections(self) -> int:
        return max(own.elections for own in self._own.values())

    def add(self, member: CheckedMember) -> None:
        self._own[member.member_id].add(member)

    def mirror(self, member_id: str) -> Mirror:
        return self._own[member_id].mirror(member_id)

    def record_size(self, member_id: str, index: int) -> int:
        return self._own[member_id].record_size(member_id, index)

    def is_safe(self, member_id: str, index: int) -> bool:
        return self._own[member_id].is_safe(member_id, index)

    def started(self, member: CheckedMember) -> None:
        self._own[member.member_id].started(member)

    def holes_changed(self, member: CheckedMember) -> None:
        self._own[member.member_id].holes_changed(member)

    def written(self, member: CheckedMember, first_index: int, count: int) -> None:
        self._own[member.member_id].written(member, first_index, count)

    def truncated(self, member: CheckedMember, end_index: int) -> None:
        self._own[member.member_id].truncated(member, end_index)

    def expired(self, member: CheckedMember) -> None:
        self._own[member.member_id].expired(member)

    def stepped(self, member: CheckedMember, state: MemberState) -> None:
        own = self._own[member.member_id]
        own.stepped(member, state)
        self.last_committed = max(self.last_committed, own.last_committed)

    def settled(self, member: CheckedMember, state: MemberState) -> None:
        self._own[member.member_id].settled(member, state)

    def asks(self, member: CheckedMember, request: Request) -> None:
        self._own[member.member_id].asks(member, request)

    def answers(self, member: CheckedMember, request: Request, response: Response) -> None:
        self._own[member.member_id].answers(member, request, response)

    def persisted(self, member: CheckedMember, term: int, voted_for: str | None) -> None:
        self._own[member.member_id].persisted(member, term, voted_for)

    def bounded(self, member: CheckedMember) -> None:
        self._own[member.member_id].bounded(member)

    def acknowledged(self, member: CheckedMember, first_index: int, bodies: tuple[bytes, ...]) -> None:
        self._own[member.member_id].acknowledged(member, first_index, bodies)

    def shows(self, member: CheckedMember, read_index: int, known_index: int) -> None:
        self._own[member.member_id].shows(member, read_index, -1)
