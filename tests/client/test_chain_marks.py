# -*- test-case-name: tests.client.test_chain_marks -*-
"""Which members hold the same entries."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from dledger.client.values import ChainMark, diverging
from protocols.wire.ledger.messages import GetRequest
from tests.client.test_appender import GroupCase


def mark(member_id: str, chain_crc: int, *, is_leader: bool = False, problem: str = "") -> ChainMark:
    """One at entry 7 of term 3."""
    return ChainMark(member_id=member_id, index=7, term=3, chain_crc=chain_crc, is_leader=is_leader,
                     problem=problem)


class DivergingTests(SynchronousTestCase):
    """Who is named."""

    def test_diverging_members_are_named(self) -> None:
        """Who differs from the leader, or from most; what is not known is not judged."""
        for marks, named in (
            ((mark("n0", 5), mark("n1", 5, is_leader=True), mark("n2", 5)), ()),
            ((mark("n0", 5), mark("n1", 6, is_leader=True), mark("n2", 5)), ("n0", "n2")),
            ((mark("n0", 5), mark("n1", 6), mark("n2", 5)), ("n1",)),
            ((mark("n0", 5), mark("n1", 0), mark("n2", 9, problem="silent")), ()),
            ((), ()),
        ):
            self.assertEqual(diverging(marks), named)


class AskTests(GroupCase):
    """A group that answers."""

    def test_same_index_everywhere(self) -> None:
        """Each is asked for the entry that all have committed; who is silent says why."""
        self.group.log = [b"0", b"1", b"2"]
        waiter = self.client.chain_marks()
        self.group.settle()
        marks = self.successResultOf(waiter)
        self.assertEqual([one.member_id for one in marks], ["n0", "n1", "n2"])
        self.assertEqual({one.index for one in marks}, {2})
        self.assertEqual([one.problem for one in marks], ["", "", ""])
        self.assertEqual([one.is_leader for one in marks], [True, False, False])
        for member_id in ("n0", "n1", "n2"):
            (asked,) = [one for one in self.group[member_id].received if isinstance(one, GetRequest)]
            self.assertEqual(asked.begin_index, 2)
