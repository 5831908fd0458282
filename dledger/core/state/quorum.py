# -*- test-case-name: tests.core.test_quorum -*-
"""
The watermarks of one term, and the commit index that follows from them by the membership of the ledger.

Rule: a leader commits by counting only entries of its own term (Raft 5.4.2). Marks below the first
index of the term are not recorded, so the rule needs no second check.

Source: QuorumAckChecker in DLedgerEntryPusher.java, which counts entries of any term (W1).
"""

from __future__ import annotations

import attrs

from dledger.values.ledger.membership import Membership


@attrs.define
class QuorumAckChecker:
    """
    Watermarks of one leader's term.

    Invariant: a mark never falls, and is at least C{term_start_index}; a member without a mark has -1.

    @ivar term: the leader's term.
    @ivar term_start_index: index of the first entry of this term, written or not yet.
    @ivar membership: the members whose marks count.
    """

    term: int
    term_start_index: int
    membership: Membership
    _by_member: dict[str, int] = attrs.Factory(dict)

    def record(self, member_id: str, index: int) -> bool:
        """
        C{member_id} holds every entry up to C{index}, as durably as its flush mode promises.

        @return: whether the mark rose.
        """
        marks = self._by_member
        known = marks[member_id] if member_id in marks else -1
        if index < self.term_start_index or index <= known:
            return False
        marks[member_id] = index
        return True

    @property
    def quorum_index(self) -> int:
        """Highest index of this term that a quorum holds; -1 if there is none."""
        return self.membership.held(self._by_member, -1)

    def watermark(self, member_id: str) -> int:
        """The mark of one member; -1 if it holds no entry of this term."""
        return self._by_member.get(member_id, -1)
