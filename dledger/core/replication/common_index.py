# -*- test-case-name: tests.core.test_dispatcher,tests.core.test_search -*-
"""
The search for the highest index at which the ledgers of a leader and a follower are equal.

It gallops: from the follower's end down in doubling steps to an entry that both hold, then it halves the gap.
Equality is monotone (log matching). It knows nothing of messages: the dispatcher asks, and passes answers on.
"""

from __future__ import annotations

import attrs

from dledger.values.ledger.holes import Hole


@attrs.define
class Search:
    """
    The search for the highest common index.

    @ivar equal: highest index known to be equal; -1 if none yet.
    @ivar differs: lowest index known to differ; None if none yet.
    @ivar index: next index to ask about; -1 to begin at the leader's end.
    @ivar theirs: last index of the follower's ledger; None: not heard yet.
    """

    index: int = -1
    equal: int = -1
    differs: int | None = None
    step: int = 1
    theirs: int | None = None

    def leave_hole(self, holes: tuple[Hole, ...], begin_index: int, end_index: int) -> None:
        """
        Ask about an entry beside the leader's hole instead of one in it, if that still shows something.

        @param begin_index, end_index: of the leader's ledger.
        """
        hole = next((hole for hole in holes if hole.holds(self.index)), None)
        if hole is None:
            return
        highest = end_index if self.differs is None else self.differs - 1
        if self.theirs is not None:
            highest = min(highest, self.theirs)  # above it, the follower can only say again where it ends
        if hole.last_index < highest:
            self.index = hole.last_index + 1
        elif hole.first_index - 1 > self.equal and hole.first_index > begin_index:
            self.index = hole.first_index - 1

    def ends_at(self, theirs: int) -> None:
        """The follower's ledger ends before the entry asked about: whether they differ, it does not say."""
        self.index = self.theirs = theirs

    def above(self, asked: int, highest: int) -> bool:
        """
        The follower has lost the entry asked about to damage: ask about the next one instead.

        @param highest: last index that both ledgers have.
        @return: whether there is a next one. If that differs, or there is none, the follower cannot keep
            C{asked}: the search goes on below, and the TRUNCATE makes it owe the entries that it may have
            acknowledged.
        """
        if self.differs is not None:
            highest = min(highest, self.differs - 1)
        if asked >= highest:
            return False
        self.index = asked + 1
        return True

    def between(self, highest: int) -> None:
        """
        The ledgers are equal at C{equal}: search above it.

        @param highest: last index that both ledgers have.
        """
        if self.differs is None:
            # The follower's ledger is longer: ask about the highest index that both have.
            self.index = highest
        else:
            self.index = (self.equal + self.differs) // 2

    def below(self, differs: int, lowest: int, begin_index: int) -> int | None:
        """
        The ledgers differ at C{differs}: search below it, in doubling steps or by halves.

        @param lowest: first index that both ledgers have.
        @param begin_index: of the leader's ledger.
        @return: the highest common index, or C{begin_index} if there is none; None: it is not found yet.
        """
        self.differs = differs
        if self.equal >= 0:
            if differs == self.equal + 1:
                return self.equal
            self.index = (self.equal + differs) // 2
        elif differs <= lowest:
            return begin_index
        else:
            self.index = max(lowest, differs - self.step)
            self.step *= 2
        return None
