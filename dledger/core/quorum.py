# -*- test-case-name: tests.core.test_quorum -*-
"""
The watermarks of one term, and the commit index that follows from them by L{dledger.base.quorum.held_by}.

Rule: a leader commits by counting only entries of its own term (Raft 5.4.2). Marks below the first
index of the term are not recorded, so the rule needs no second check.

Source: QuorumAckChecker in DLedgerEntryPusher.java, which counts entries of any term (W1).
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from dledger.base.quorum import held_by


@attrs.define
class QuorumAckChecker:
    """
    Watermarks of one leader's term.

    Invariant: a mark never falls, and is -1 or at least C{term_start_index}. Every member has a mark
    from the start.

    @ivar term: the leader's term.
    @ivar term_start_index: index of the first entry of this term, written or not yet.
    """

    term: int
    term_start_index: int
    _needed: int
    _by_member: dict[str, int]

    @classmethod
    def for_term(
        cls, *, term: int, term_start_index: int, members: Iterable[str], needed: int
    ) -> QuorumAckChecker:
        """Fresh marks, all -1."""
        return cls(term, term_start_index, needed, dict.fromkeys(members, -1))

    def record(self, member_id: str, index: int) -> bool:
        """
        C{member_id} holds every entry up to C{index}, as durably as its flush mode promises.

        @return: whether the mark rose.
        """
        if index < self.term_start_index or index <= self._by_member[member_id]:
            return False
        self._by_member[member_id] = index
        return True

    @property
    def quorum_index(self) -> int:
        """Highest index of this term that a quorum holds; -1 if there is none."""
        return held_by(self._by_member.values(), self._needed)

    def watermark(self, member_id: str) -> int:
        """The mark of one member; -1 if it holds no entry of this term."""
        return self._by_member[member_id]
