# -*- test-case-name: tests.sim.test_search -*-
"""The exhaustive search: complete within small bounds, blind for names, and it finds broken guards."""

from __future__ import annotations

import os
from collections.abc import Mapping
from unittest import mock

from click.testing import CliRunner
from twisted.trial.unittest import SynchronousTestCase

from dledger.core.election.changes import MembershipChanges
from dledger.core.election.vote_judge import VoteJudge
from dledger.core.replication.appends import QuorumAckChecker
from dledger.core.replication.handler import EntryHandler
from dledger.core.state.member_state import MemberState
from dledger.testing.search.__main__ import main
from dledger.testing.search.explore import SearchResult, explore
from dledger.testing.search.group import Bounds, SearchedGroup, SearchedState
from dledger.testing.search.local import MEMBER_IDS, RENAMINGS, freeze, hashes_of
from dledger.testing.search.member import SearchedEntry, SearchedLedger, SearchedTerms, batch_of, entries_in
from dledger.values.ledger.membership import Membership
from dledger.values.quorum import held_by
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import VoteResult

#: Two terms, one entry; answers come at once.
SMALL = Bounds(terms_max=2, entries_max=1, messages_max=2, crashes=0, late=0, twice=0, is_atomic=True)


def bounds(**changes: object) -> Bounds:
    """L{SMALL} with changes."""
    names = ("terms_max", "entries_max", "messages_max", "crashes", "breaks", "late", "twice", "changes",
             "is_atomic", "is_sync", "term_start_entry", "pushes")
    return Bounds(**{**{name: getattr(SMALL, name) for name in names}, **changes})


class CompleteTests(SynchronousTestCase):
    """Every state within small bounds holds the invariants. The numbers change with the core's behaviour."""

    def sound(self, found: SearchResult) -> None:
        """Nothing is broken, and nothing is left out."""
        self.assertEqual((found.broken, found.is_complete), ("", True))

    def test_two_terms(self) -> None:
        """Two elections and an entry."""
        found = explore(SMALL, states_max=1_000_000)
        self.sound(found)
        self.assertGreater(found.states, 20_000)

    def test_messages_on_the_way(self) -> None:
        """One election and an entry; every message on its own, late, twice, or lost."""
        found = explore(bounds(terms_max=1, messages_max=3, twice=1, is_atomic=False), states_max=1_000_000)
        self.sound(found)
        self.assertGreater(found.states, 5_000)

    def test_loss_of_power(self) -> None:
        """Acknowledgements after fsync, and a member that loses the others."""
        found = explore(bounds(terms_max=1, crashes=1, is_sync=True), states_max=1_000_000)
        self.sound(found)
        self.assertGreater(found.states, 1_000)

    def test_broken_connections(self) -> None:
        """A connection breaks; pushes on it are lost."""
        found = explore(bounds(terms_max=1, breaks=1, late=1, term_start_entry=True, pushes=2),
                        states_max=1_000_000)
        self.sound(found)

    def test_limit(self) -> None:
        """After the largest number of states the search is not complete."""
        found = explore(bounds(terms_max=3), states_max=500)
        self.assertFalse(found.is_complete)
        self.assertLess(found.states, 600)


class BrokenGuardTests(SynchronousTestCase):
    """A guard that is gone is found, with the way there."""

    def finds(self, number: str, **changes: object) -> list[str]:
        """The invariant with this number is broken. @return: the way."""
        found = explore(bounds(**changes), states_max=100_000)
        self.assertTrue(found.broken.startswith(f"{number}: "), found.broken)
        return found.way

    def test_commit_of_an_earlier_term(self) -> None:
        """A leader that counts copies of an entry of an earlier term (Raft figure 8)."""
        def record(checker: QuorumAckChecker, member_id: str, index: int) -> bool:
            if index <= checker.watermark(member_id):
                return False
            checker._by_member[member_id] = index
            return True

        with mock.patch.object(QuorumAckChecker, "record", record):
            way = self.finds("5", entries_max=2)
        self.assertEqual(way[0], "n0: patience")

    def test_any_log_gets_the_vote(self) -> None:
        """A voter that does not compare the logs."""
        with mock.patch.object(VoteJudge, "_by_log", lambda *_: VoteResult.ACCEPT):
            self.finds("4")

    def test_vote_is_forgotten(self) -> None:
        """Term and vote that are not written."""
        with mock.patch.object(SearchedTerms, "save", lambda *_: None):
            self.finds("1", terms_max=1, crashes=1)

    def test_quorum_of_one(self) -> None:
        """A leader that needs nobody."""
        with mock.patch.object(Membership, "quorum", property(lambda _: 1)):
            self.finds("4", terms_max=1)

    def test_acknowledged_before_the_fsync(self) -> None:
        """A follower that answers from the page cache although it must not."""
        def at_once(handler: EntryHandler, token: int, request: object, index: int) -> None:
            handler._answer(token, request, ResponseCode.SUCCESS)  # type: ignore[arg-type]

        with mock.patch.object(EntryHandler, "_answer_when_durable", at_once):
            self.finds("4", terms_max=1, entries_max=2, is_sync=True)

    def test_assertion(self) -> None:
        """An assertion of the core ends the search."""
        with mock.patch.object(MemberState, "vote", side_effect=AssertionError("one vote in a term")):
            found = explore(SMALL, states_max=1000)
        self.assertEqual(found.broken, "n1: AssertionError: one vote in a term")


class ChangeTests(SynchronousTestCase):
    """The members of the group change; each rule that is gone is found, with the way there."""

    def test_one_term(self) -> None:
        """Two changes under one leader, in every order with an entry."""
        found = explore(bounds(terms_max=1, entries_max=3, changes=2), states_max=1_000_000)
        self.assertEqual((found.broken, found.is_complete), ("", True))
        self.assertGreater(found.states, 10_000)

    def test_elections(self) -> None:
        """A change, and leaders that have it or not; of a larger search the beginning."""
        states = int(os.environ.get("DLEDGER_SEARCHED_STATES", "8000"))
        found = explore(bounds(terms_max=3, entries_max=3, changes=2), states_max=states)
        self.assertEqual(found.broken, "")

    def finds(self, **changes: object) -> tuple[str, list[str]]:
        """What is broken, and the way there."""
        found = explore(bounds(**{"entries_max": 3, "changes": 2, **changes}), states_max=100_000)
        self.assertTrue(found.broken, f"{found.states} states, and nothing is broken")
        return found.broken, found.way

    def test_two_changes_at_once(self) -> None:
        """Two majorities without a common member, in eight moves."""
        with mock.patch.object(MembershipChanges, "_may_begin", lambda *_, **__: None):
            broken, way = self.finds()
        self.assertIn("leads term 2 with (), without the committed", broken)
        self.assertEqual(len([what for what in way if "remove" in what]), 2, way)

    def test_quorum_of_the_old_list(self) -> None:
        """A leader counts by the list with which it was elected."""
        real = QuorumAckChecker.__setattr__

        def once(checker: QuorumAckChecker, name: str, value: object) -> None:
            if name != "membership" or not hasattr(checker, name):
                real(checker, name, value)

        with mock.patch.object(QuorumAckChecker, "__setattr__", once):
            broken, _way = self.finds(terms_max=1)
        self.assertIn("is committed by", broken)

    def test_learner_counts(self) -> None:
        """The copies of a learner help to commit."""
        def held(members: Membership, marks: Mapping[str, int], absent: int) -> int:
            return held_by([marks.get(one, absent) for one in members.addresses], members.quorum)

        with mock.patch.object(Membership, "held", held):
            broken, _way = self.finds(terms_max=1)
        self.assertIn("is committed by", broken)

    def test_cut(self) -> None:
        """A change that is cut is in force no longer."""
        entry = SearchedEntry(1, "n0", frozenset(("n0", "n1")), frozenset(("n2",)))
        ledger = SearchedLedger("n0", (SearchedEntry(1, "n0"), entry))
        assert ledger.membership is not None
        self.assertEqual((ledger.membership.index, set(ledger.membership.voters)), (1, {"n0", "n1"}))
        self.assertEqual(entries_in(batch_of(1, (entry,))), (entry,))
        ledger.truncate_to(batch_of(0, (SearchedEntry(1, "n0"),)))
        self.assertIsNone(ledger.membership)


class NameTests(SynchronousTestCase):
    """States that differ in the names of the members only count once."""

    def after(
        self, group: SearchedGroup, moves: list[tuple[str, int]], names: tuple[int, ...]
    ) -> SearchedState:
        """The state after some moves, with other names; C{what} of a move begins with the given words."""
        state = group.first()
        for what, number in moves:
            for old, new in enumerate(names):
                what = what.replace(f" n{old}", f" N{new}")
            what = what.replace(" N", " n")
            (move,) = [one for one in group.moves(state)
                       if one.what == what and one.member == names[number]][:1]
            state = group.after(state, move)
        return state

    def test_every_renaming(self) -> None:
        """An election, an entry and its way to one follower."""
        group = SearchedGroup(bounds(is_atomic=False, messages_max=4))
        story = [("patience", 0), ("request from n0", 2), ("response from n2", 0), ("append", 0),
                 ("push from n0", 1), ("response from n1", 0), ("push from n0", 1)]
        for count in range(1, len(story) + 1):
            keys = {group.key(self.after(group, story[:count], names)) for names in RENAMINGS}
            self.assertEqual(len(keys), 1, story[:count])

    def test_every_renaming_of_a_change(self) -> None:
        """An election, a change and its way to one follower."""
        group = SearchedGroup(bounds(is_atomic=False, messages_max=4, entries_max=3, changes=2))
        story = [("patience", 0), ("request from n0", 1), ("response from n1", 0), ("remove n2", 0),
                 ("push from n0", 1), ("response from n1", 0), ("push from n0", 1)]
        for count in range(1, len(story) + 1):
            keys = {group.key(self.after(group, story[:count], names)) for names in RENAMINGS}
            self.assertEqual(len(keys), 1, story[:count])

    def test_other_states_differ(self) -> None:
        """One vote is another state than two."""
        group = SearchedGroup(bounds(is_atomic=False, messages_max=4))
        one = self.after(group, [("patience", 0), ("request from n0", 2)], (0, 1, 2))
        two = self.after(group, [("patience", 0), ("request from n0", 2), ("request from n0", 1)], (0, 1, 2))
        self.assertNotEqual(group.key(one), group.key(two))

    def test_frozen(self) -> None:
        """Names in any place are renamed; the order of a set does not count."""
        swapped = RENAMINGS.index((1, 0, 2))
        one = hashes_of(freeze({"n0": ("x", frozenset(("n1", "n2"))), "n1": 3}))
        other = hashes_of(freeze({"n1": ("x", frozenset(("n2", "n0"))), "n0": 3}))
        self.assertEqual(one[swapped], other[0])
        self.assertNotEqual(one[0], other[0])
        entry = SearchedEntry(1, "n0", frozenset(("n0", "n2")), frozenset(("n1",)))
        same = SearchedEntry(1, "n1", frozenset(("n2", "n1")), frozenset(("n0",)))
        self.assertEqual(hashes_of(freeze(entry))[swapped], hashes_of(freeze(same))[0])
        self.assertNotEqual(hashes_of(freeze(entry))[0], hashes_of(freeze(same))[0])


class LedgerTests(SynchronousTestCase):
    """The ledger of the search."""

    def test_batches(self) -> None:
        """Entries of one term at a time, and their content."""
        entries = (SearchedEntry(1, "n0"), SearchedEntry(1, "n0"), SearchedEntry(2, "n1"))
        ledger = SearchedLedger("n0", entries)
        batch = ledger.read_batch(0, max_count=9, max_bytes=9)
        self.assertEqual((batch.count, batch.term, entries_in(batch)), (2, 1, entries[:2]))
        self.assertTrue(ledger.holds(batch_of(2, entries[2:])))
        self.assertFalse(ledger.holds(batch_of(2, (SearchedEntry(2, "n2"),))))

    def test_fsync_that_began_before_a_cut(self) -> None:
        """It proves nothing."""
        ledger = SearchedLedger("n0", (SearchedEntry(1, "n0"),) * 3)
        ledger.truncate_to(batch_of(0, (SearchedEntry(1, "n0"),)))
        ledger.append_entries(batch_of(1, (SearchedEntry(2, "n1"), SearchedEntry(2, "n1"))))
        ledger.flushed(2)
        self.assertEqual(ledger.durable, 1)


class SearchCommandTests(SynchronousTestCase):
    """The program."""

    def test_sound(self) -> None:
        """The sums."""
        done = CliRunner().invoke(main, ["--terms", "1", "--entries", "1", "--atomic", "--states", "2000"])
        self.assertEqual(done.exit_code, 0, done.output)
        self.assertRegex(done.output, r"\n\d+ states passed, 0 failed\n$")

    def test_broken(self) -> None:
        """The way, one move a line."""
        with mock.patch.object(SearchedTerms, "save", lambda *_: None):
            done = CliRunner().invoke(main, ["--terms", "1", "--atomic"])
        self.assertEqual(done.exit_code, 1)
        self.assertIn("BROKEN 1: ", done.output)
        self.assertIn(f"    1 {MEMBER_IDS[0]}: patience\n", done.output)
