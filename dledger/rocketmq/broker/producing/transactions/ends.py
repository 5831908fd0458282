# -*- test-case-name: tests.broker.transactions.test_ends -*-
"""
Which transactions have ended, and how: each ends once.

A transaction is named by the queue offset of its first half message; the copies of it that its producer was
asked about have the same name. A master reads the ends from its two queues when it begins: half messages from
the first that has not ended, then the op messages from there.

Rule 1: until they are read, and while an end is being stored, no other end of that transaction is taken.
Rule 2: what is remembered is bounded. Below C{floor} the ends are forgotten: there only transactions that are
known to be open can end.
"""

from __future__ import annotations

from dledger.rocketmq.answering.refusals import Code, Refused

#: Values of C{commitOrRollback}, and that of an end whose kind is not known, as of an op message of Java's.
UNKNOWN_END, COMMIT, ROLLBACK = 0, 8, 12
_WORDS = {COMMIT: "is committed", ROLLBACK: "is rolled back", UNKNOWN_END: "has ended"}

#: Ends, and open transactions with copies, that are remembered.
ENDS_MAX = 262_144


class TransactionEnds:
    """
    Invariant: C{_kinds} has all transactions from C{floor} on that have ended. C{_copies} has the newest copy
    of open transactions.

    @ivar floor: the ends of transactions before it are not known.
    @ivar is_loaded: whether the ends of before are read.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Nothing is known."""
        self._kinds: dict[int, int] = {}
        self._copies: dict[int, int] = {}
        self._ending: set[int] = set()
        self.floor = 0
        self.is_loaded = False

    def kind_of(self, first: int) -> int | None:
        """How a transaction has ended; None if it has not, or is forgotten."""
        return self._kinds.get(first)

    def begin(self, first: int, kind: int) -> bool:
        """
        A transaction is about to end.

        @return: whether the end must be stored; False: it has ended so before.
        @raise Refused: it has ended otherwise, or this is not known.
        """
        if not self.is_loaded:
            raise Refused(Code.SYSTEM_BUSY, "this master still reads which transactions have ended: try "
                                            "again")
        before = self._kinds.get(first)
        if before is not None and before == kind:
            return False
        if before is not None:
            raise Refused(Code.ILLEGAL_OPERATION, f"the transaction {_WORDS[before]} already")
        if first in self._ending:
            raise Refused(Code.SYSTEM_BUSY, "another end of this transaction is being stored")
        if first < self.floor and first not in self._copies:
            raise Refused(Code.ILLEGAL_OPERATION, "the transaction has ended, or was given up, before the "
                                                  "oldest that are remembered")
        self._ending.add(first)
        return True

    def copy_of(self, first: int) -> int | None:
        """The queue offset of the newest copy of an open transaction; None without one."""
        return self._copies.get(first)

    def stored(self, first: int, kind: int, *, is_stored: bool) -> None:
        """The end of L{begin}."""
        self._ending.discard(first)
        if is_stored:
            self.add(first, kind)

    def add(self, first: int, kind: int) -> None:
        """A transaction has ended."""
        self._copies.pop(first, None)
        self._kinds[first] = kind
        if len(self._kinds) > ENDS_MAX:
            for old in sorted(self._kinds)[: ENDS_MAX // 8]:
                del self._kinds[old]
                self.floor = max(self.floor, old + 1)

    def copied(self, first: int, offset: int) -> None:
        """An open transaction has a newer copy, at this offset of the queue of half messages."""
        if first not in self._kinds and (first in self._copies or len(self._copies) < ENDS_MAX):
            self._copies[first] = offset

    def given_up(self, first: int) -> None:
        """Nobody is asked about it any more; it may still end."""
        self._copies.pop(first, None)
