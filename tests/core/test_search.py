# -*- test-case-name: tests.core.test_search -*-
"""
The hunt for the highest common index: a leader's dispatcher against a follower's handler, over random
pairs of ledgers.
"""

from __future__ import annotations

import attrs
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from dledger.core.replication.catch_up import TurnBudget
from dledger.core.replication.common_index import Search
from dledger.core.replication.dispatcher import DispatcherState, EntryDispatcher
from dledger.core.replication.handler import EntryHandler
from dledger.core.state import effects as fx
from dledger.core.state.beliefs import Quota
from dledger.core.state.member_state import MemberState, Role
from dledger.values.ledger.holes import Hole
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import PushType
from protocols.wire.ledger.messages import PushEntryRequest, PushEntryResponse
from tests.core.helpers import ListLedger, make_member, of_type, pushes
from tests.core.proving import proved

TERM = 1_000


def dumb_common_index(leader: list[int], follower: list[int]) -> int:
    """Walk up from the start as long as the terms are equal; -1 if nothing is."""
    common = -1
    for index, (mine, other) in enumerate(zip(leader, follower, strict=False)):
        if mine != other:
            break
        common = index
    return common


@attrs.define
class Pair:
    """
    A leader and a follower and nothing between them.

    @ivar compares, truncates: indexes that were asked about, and cut at.
    """

    leader: MemberState
    follower: MemberState
    dispatcher: EntryDispatcher
    handler: EntryHandler
    compares: list[int] = attrs.Factory(list)
    truncates: list[int] = attrs.Factory(list)
    held: list[int] = attrs.Factory(list)

    @classmethod
    def make(
        cls, leader_terms: list[int], follower_terms: list[int], *, committed_index: int = -1,
        leader_begin_index: int = 0, follower_begin_index: int = 0,
    ) -> Pair:
        """Two whole ledgers, of which the heads may have expired."""
        mine = ListLedger.of(*leader_terms[leader_begin_index:], begin_index=leader_begin_index)
        other = ListLedger.of(*follower_terms[follower_begin_index:], begin_index=follower_begin_index)
        leader = make_member(mine, self_id="n0", term=TERM)
        leader.role, leader.leader_id = Role.LEADER, "n0"
        follower = make_member(other, self_id="n1", term=TERM, committed_index=committed_index)
        follower.leader_id = "n0"
        held: list[int] = []
        dispatcher = EntryDispatcher(leader, "n1", _Acks(held), Quota(1 << 40), TurnBudget(leader.out))
        handler = EntryHandler(follower)
        handler.reset()
        proved(handler, mine.ledger_begin_index)
        return cls(leader, follower, dispatcher, handler, held=held)

    def run(self, grow: int = 0) -> Pair:
        """Until the follower holds all. The leader's ledger grows by C{grow} entries before each question."""
        self.dispatcher.dispatch()
        for _ in range(10_000):
            todo = pushes(self.leader.out.take())
            if not todo:
                assert self.dispatcher.state is DispatcherState.APPEND, self.dispatcher.state
                return self
            for one in todo:
                self._carry(one, grow)
        raise AssertionError("it never ends")

    def _carry(self, one: fx.SendRequest, grow: int) -> None:
        request = one.request
        assert isinstance(request, PushEntryRequest)
        if request.entries is not None:
            known = {PushType.COMPARE: self.compares, PushType.TRUNCATE: self.truncates}
            known.get(request.type, []).append(request.entries.first_index)
        self.handler.on_push(7, request, ResponseCode.SUCCESS)
        if grow and request.type is not PushType.APPEND:
            view = self.leader.view
            assert isinstance(view, ListLedger)
            view.entries.extend([(TERM, b"")] * grow)
            self.leader.refresh_end()
        self.dispatcher.on_response("n1", one.request_id, self._write())

    def _write(self) -> PushEntryResponse:
        """Run the follower's write, if there is one. @return: its answer."""
        follower, ledger = self.follower, self.follower.view
        assert isinstance(ledger, ListLedger)
        effects = list(follower.out.take())
        for effect in list(effects):
            if isinstance(effect, fx.TruncateLedger):
                ledger.truncate_to(effect.entries, anew=effect.anew)
                follower.refresh_end()
                self.handler.on_truncated()
            elif isinstance(effect, fx.WriteEntries):
                ledger.append_entries(effect.entries)
                follower.refresh_end()
                self.handler.on_written()
        (reply,) = of_type([*effects, *follower.out.take()], fx.Reply)
        assert isinstance(reply.response, PushEntryResponse)
        return reply.response

    @property
    def leader_terms(self) -> list[int]:
        """The leader's ledger as it is now, from its begin on."""
        assert isinstance(self.leader.view, ListLedger)
        return [term for term, _ in self.leader.view.entries]

    @property
    def follower_terms(self) -> list[int]:
        """The follower's ledger as it is now, from its begin on."""
        assert isinstance(self.follower.view, ListLedger)
        return [term for term, _ in self.follower.view.entries]


@attrs.frozen
class _Acks:
    held: list[int]

    def follower_holds(self, peer_id: str, index: int) -> None:
        """One acknowledgement."""
        self.held.append(index)


@st.composite
def ledgers(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """
    Terms of two ledgers for which log matching holds: equal up to some index, and from there on no
    index with equal terms.
    """
    common = sorted(draw(st.lists(st.integers(1, 9), max_size=30)))
    tails = []
    for parity in (0, 1):
        size = draw(st.integers(0, 60))
        tails.append(sorted(2 * draw(st.integers(5, 12)) + parity for _ in range(size)))
    return common + tails[0], common + tails[1]


class TwinTests(SynchronousTestCase):
    """It finds what a walk from the start finds, in a few round trips."""

    @settings(derandomize=True, max_examples=400, deadline=None)
    @given(ledgers(), st.integers(0, 2))
    def test_any_pair_becomes_equal(self, pair: tuple[list[int], list[int]], grow: int) -> None:
        """
        The follower is cut at the highest common index and nowhere else, and ends up as the leader,
        also while the leader's ledger grows.
        """
        leader_terms, follower_terms = pair
        if not leader_terms:
            return  # an empty leader compares nothing
        common = dumb_common_index(leader_terms, follower_terms)
        ran = Pair.make(leader_terms, follower_terms).run(grow)
        self.assertEqual(ran.follower_terms, ran.leader_terms)
        if common < 0:
            expected = [0]
        else:
            expected = [] if common == len(follower_terms) - 1 else [common]
        self.assertEqual(ran.truncates, expected)
        self.assertEqual(ran.held[0], max(common, 0))
        self.assertEqual(ran.held[-1], len(ran.leader_terms) - 1)
        self.assertLessEqual(len(ran.compares), 2 * len(follower_terms).bit_length() + 4)

    @settings(derandomize=True, max_examples=400, deadline=None)
    @given(ledgers(), st.data())
    def test_expired_heads_become_equal(self, pair: tuple[list[int], list[int]], data: st.DataObject) -> None:
        """
        Whatever the two have forgotten of their committed heads: no entry stays at the follower that is
        not the leader's, not even in front of the leader's begin.
        """
        leader_terms, follower_terms = pair
        if not leader_terms:
            return
        common = dumb_common_index(leader_terms, follower_terms)
        committed = data.draw(st.integers(-1, common), label="committed at the follower")
        follower_begin = data.draw(st.integers(0, max(committed, 0)), label="follower's begin")
        leader_begin = data.draw(st.integers(0, len(leader_terms) - 1), label="leader's begin")
        if leader_begin < follower_begin and common < follower_begin:
            return
        ran = Pair.make(
            leader_terms, follower_terms, committed_index=committed,
            leader_begin_index=leader_begin, follower_begin_index=follower_begin,
        ).run()
        ledger = ran.follower.view
        self.assertEqual(ran.follower_terms, leader_terms[ledger.ledger_begin_index :])
        self.assertEqual(ledger.ledger_end_index, len(leader_terms) - 1)
        if leader_begin <= committed + 1:
            self.assertEqual(ledger.ledger_begin_index, follower_begin if follower_terms else leader_begin)


class CostTests(SynchronousTestCase):
    """Round trips."""

    def test_long_divergent_tail(self) -> None:
        """A hundred thousand entries that nobody else has cost at most forty questions."""
        tail = 100_000
        for common, leader_tail in ((500, 10), (70_000, tail), (1, 1), (500, 2 * tail)):
            ran = Pair.make([1] * common + [3] * leader_tail, [1] * common + [2] * tail).run()
            self.assertLessEqual(len(ran.compares), 40)
            self.assertEqual(ran.truncates, [common - 1])

    def test_short_tail_costs_little(self) -> None:
        """One entry too many, the usual case after a change of leader: three questions."""
        ran = Pair.make([1] * 100_000 + [3], [1] * 100_000 + [2]).run()
        self.assertLessEqual(len(ran.compares), 3)

    def test_follower_that_is_only_behind(self) -> None:
        """It says where its end is; one more question and it is fed."""
        ran = Pair.make([1] * 1_000, [1] * 400).run()
        self.assertEqual((ran.compares, ran.truncates), ([999, 399], []))

    def test_follower_that_has_all(self) -> None:
        """One question."""
        ran = Pair.make([1] * 1_000, [1] * 1_000).run()
        self.assertEqual((ran.compares, ran.truncates), ([999], []))

    def test_an_empty_follower_starts_at_the_begin(self) -> None:
        """It starts at the leader's begin."""
        ran = Pair.make([1] * 10, [], leader_begin_index=4).run()
        self.assertEqual((ran.compares, ran.truncates), ([9], [4]))


class HeadTests(SynchronousTestCase):
    """The leader has forgotten the place where the two part."""

    def test_divergent_entries_before_the_leaders_begin(self) -> None:
        """They do not survive in front of the entry that the leader starts the follower with."""
        ran = Pair.make(
            [1] * 5 + [3] * 25, [1] * 5 + [2] * 15, committed_index=4, leader_begin_index=10
        ).run()
        self.assertEqual(ran.follower.view.ledger_begin_index, 10)
        self.assertEqual(ran.follower_terms, [3] * 20)

    def test_committed_entries_before_it_stay(self) -> None:
        """What is committed is the leader's too: no need to start anew."""
        ran = Pair.make(
            [1] * 5 + [3] * 25, [1] * 5 + [2] * 15, committed_index=4, leader_begin_index=5
        ).run()
        self.assertEqual(ran.follower.view.ledger_begin_index, 0)
        self.assertEqual(ran.follower_terms, [1] * 5 + [3] * 25)


class HoleTests(SynchronousTestCase):
    """The leader has lost the entry that it should ask about."""

    hole = Hole(first_index=2, last_index=3, position=100, end_position=200)

    def left(self, search: Search) -> int:
        """The index that a leader of the entries 0 to 9 asks about instead."""
        search.leave_hole((self.hole,), 0, 9)
        return search.index

    def test_entry_behind_the_hole_first(self) -> None:
        """It may show at once that the follower has all before it; after that, the one before the hole."""
        self.assertEqual(self.left(Search(index=3)), 4)
        self.assertEqual(self.left(Search(index=3, differs=4)), 1)

    def test_never_above_the_followers_end(self) -> None:
        """There the follower could only say again where it ends: they would ask and answer for ever."""
        search = Search(index=9)
        search.ends_at(3)
        self.assertEqual(self.left(search), 1)
        search.equal, search.index = 1, 3
        self.assertEqual(self.left(search), 3, "it waits until the entry is back")
