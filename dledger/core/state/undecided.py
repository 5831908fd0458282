# -*- test-case-name: tests.core.test_undecided -*-
"""
Appends that waited when this member's leadership ended. Their entries may still commit, under another leader;
this member sees it, because it follows that leader or leads again.

Rule 1: index and term name one entry. So an append is in the log when the ledger is committed up to its last
entry, and that entry has the term in which the append was written.
Rule 2: terms never fall along a ledger, and equal entries have equal entries before them. So once another
entry is committed in the place of the first one that waits, or an entry of a later term before it, nothing
of that leadership is added to the log any more.
Rule 3: an outcome that cannot be known within C{max_wait_ack_time_ms} stays unknown.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import attrs

from dledger.core.state.ports import LedgerView
from dledger.values.errors import DamagedEntryError
from protocols.wire.codes import ResponseCode


class WrittenProposal(NamedTuple):
    """A proposal in the log: its first entry, and the number of its entries, bytes and requests."""

    first_index: int
    entries: int
    pos: int
    size: int
    requests: int


#: A token, its proposal, and the outcome.
Decided: TypeAlias = tuple[int, WrittenProposal, ResponseCode]


@attrs.define
class UndecidedAppends:
    """
    The appends of one leadership that has ended.

    @ivar term: of the leadership.
    @ivar end_index: end of the ledger when it ended.
    @ivar deadline_ms: the appends that are left then stay unknown.
    @ivar waiting: by token, in log order.
    """

    term: int
    end_index: int
    deadline_ms: int
    waiting: dict[int, WrittenProposal]

    def decide(self, view: LedgerView, committed_index: int) -> list[Decided]:
        """
        Report the outcomes that follow from a commit index.

        @return: in log order, with SUCCESS, NOT_LEADER (not in the log) or TERM_CHANGED (unknown: only some
            of the entries are in the log). They do not wait any longer.
        """
        top = min(committed_index, self.end_index)
        first = next(iter(self.waiting.values())).first_index
        if top < view.ends.begin_index or first < view.ends.begin_index or top < 0:
            return []
        try:
            kept_index, is_over = self._kept(view, first, top)
        except DamagedEntryError:
            return []  # (a peer gives it back)
        decided = []
        for token, written in self.waiting.items():
            if written.first_index + written.entries - 1 <= kept_index:
                code = ResponseCode.SUCCESS
            elif not is_over:
                break
            elif written.first_index <= kept_index:
                code = ResponseCode.TERM_CHANGED
            else:
                code = ResponseCode.NOT_LEADER
            decided.append((token, written, code))
        for token, _, _ in decided:
            del self.waiting[token]
        return decided

    def _kept(self, view: LedgerView, first: int, top: int) -> tuple[int, bool]:
        """
        @param first: of the entries that wait. @param top: a committed index.
        @return: the last entry of this leadership that is known to be committed, C{first - 1} if none is; and
            whether the others never will be.
        """
        term = view.term_of(top)
        if term == self.term:
            return top, False
        if top < first:
            return first - 1, term > self.term
        if view.term_of(first) != self.term:
            return first - 1, True
        low = first
        while low + 1 < top:
            middle = (low + top) // 2
            if view.term_of(middle) == self.term:
                low = middle
            else:
                top = middle
        return low, True
