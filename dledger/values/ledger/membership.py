# -*- test-case-name: tests.core.test_membership -*-
"""
The members of a group at one place of its log: a value that core, storage and node share.

This is the one place that answers "is this a quorum". Voters count; learners copy the log and do not count.

The start list (C{--peers}) is the membership of index -1. Every later one is a configuration entry of the
log: in force as soon as it is written, and no longer when it is cut. Two neighbours differ by one voter at
most, so each majority of one meets each majority of the other (Raft dissertation, 4.1).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import cached_property

import attrs

from dledger.values.addresses import parse_address
from dledger.values.quorum import held_by
from protocols.wire.ledger.codes import MEMBERS_MAX
from protocols.wire.ledger.memberships import decode_reported

#: Changes of a membership.
ADD, PROMOTE, REMOVE, MOVE = "add", "promote", "remove", "move"
CHANGES = (ADD, PROMOTE, REMOVE, MOVE)


@attrs.frozen(kw_only=True)
class Membership:
    """
    @ivar voters, learners: id to C{host:port}. Without voters: this member joins a group that it does not
        know yet.
    @ivar index, term: of the configuration entry; -1 for the start list.
    """

    voters: Mapping[str, str]
    learners: Mapping[str, str] = attrs.Factory(dict)
    index: int = -1
    term: int = -1

    def __attrs_post_init__(self) -> None:
        """@raise ValueError: one is not an address; nobody could connect to it."""
        for address in self.addresses.values():
            parse_address(address)

    @property
    def addresses(self) -> dict[str, str]:
        """All members."""
        return {**self.voters, **self.learners}

    @cached_property
    def quorum(self) -> int:
        """Number of voters that form a majority."""
        return len(self.voters) // 2 + 1

    @cached_property
    def is_changed(self) -> bool:
        """Whether the log of the group has a configuration entry."""
        return self.index >= 0

    def may_follow(self, member_ids: Collection[str]) -> bool:
        """
        Whether these may be the members of the list before, which differs by one at most. A member that
        joined has no other trace of the start list than the first entry that changed it.
        """
        return len(set(self.addresses).symmetric_difference(member_ids)) <= 1

    def held(self, marks: Mapping[str, int], absent: int) -> int:
        """
        The highest number that a quorum has reached; C{absent} without voters.

        @param marks: member id to its mark; those of others than voters do not count.
        @param absent: the mark of a voter that has none.
        """
        if not self.voters:
            return absent
        return held_by([marks[one] if one in marks else absent for one in self.voters], self.quorum)

    def is_quorum(self, member_ids: Collection[str]) -> bool:
        """Whether these members form a quorum."""
        return self.held(dict.fromkeys(member_ids, 1), 0) == 1

    def is_all(self, member_ids: Collection[str]) -> bool:
        """Whether every voter is among these."""
        return bool(self.voters) and all(voter in member_ids for voter in self.voters)

    def changed(self, change: str, member_id: str, address: str = "") -> Membership | None:
        """
        The membership after one change, without index and term.

        @param change: of L{CHANGES}: C{add} a learner, C{promote} a learner, C{remove} a member, C{move} a
            member to another address.
        @return: None if there is nothing to change.
        @raise ValueError: it is no possible change; the text says why.
        """
        if change not in CHANGES:
            raise ValueError(f"{change[:40]!r} is not one of {', '.join(CHANGES)}")
        known = self.addresses
        if change in (ADD, MOVE):
            _check_member(member_id, address)
            if known.get(member_id) == address:
                return None
            taken = next((one for one, there in known.items() if there == address and one != member_id), None)
            if taken is not None:
                raise ValueError(f"{address} is the address of member {taken}")
        if change == ADD:
            if member_id in known:
                raise ValueError(f"{member_id} is a member at {known[member_id]}: to change that, move it")
            if len(known) >= MEMBERS_MAX:
                raise ValueError(f"the group has {len(known)} members, at most {MEMBERS_MAX} are allowed")
            return Membership(voters=self.voters, learners={**self.learners, member_id: address})
        if member_id not in known:
            if change == REMOVE:
                return None
            raise ValueError(f"{member_id!r} is not a member; members are {', '.join(sorted(known))}")
        if change == MOVE:
            voters, learners = (
                {**there, member_id: address} if member_id in there else there
                for there in (self.voters, self.learners)
            )
            return Membership(voters=voters, learners=learners)
        if change == PROMOTE:
            if member_id in self.voters:
                return None
            return Membership(voters={**self.voters, member_id: known[member_id]},
                              learners=_without(self.learners, member_id))
        if set(self.voters) == {member_id}:
            raise ValueError(f"{member_id} is the only voter: a group without voters commits nothing")
        return Membership(
            voters=_without(self.voters, member_id), learners=_without(self.learners, member_id)
        )


def _without(members: Mapping[str, str], member_id: str) -> dict[str, str]:
    return {one: address for one, address in members.items() if one != member_id}


def _check_member(member_id: str, address: str) -> None:
    if not member_id or re.search(r"[-;/\s]", member_id) or len(member_id.encode()) > 255:
        raise ValueError(f"{member_id[:40]!r} is not an id of a member: 1 to 255 bytes, without '-', ';', "
                         f"'/' "
                         "and blanks")
    parse_address(address)


def decoded_memberships(text: str) -> tuple[Membership, ...]:
    """The memberships that METADATA reports; none if a later version wrote them."""
    try:
        return tuple(
            Membership(index=one.index, term=one.term,
                       **one.members._asdict()) for one in decode_reported(text)
        )
    except ValueError:
        return ()  # (The entry itself is refused with a reason.)
