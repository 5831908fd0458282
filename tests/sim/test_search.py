# -*- test-case-name: tests.sim.test_search -*-
"""The exhaustive search: complete within small bounds, blind for names, and it finds broken guards."""

from __future__ import annotations

from unittest import mock

from click.testing import CliRunner
from twisted.trial.unittest import SynchronousTestCase

from dledger.base.membership import Membership
from dledger.core.elector import LeaderElector
from dledger.core.handler import EntryHandler
from dledger.core.member_state import MemberState
from dledger.core.quorum import QuorumAckChecker
from dledger.testing.search.__main__ import main
from dledger.testing.search.explore import SearchResult, explore
from dledger.testing.search.group import Bounds, GroupState, SearchedGroup
from dledger.testing.search.local import MEMBER_IDS, RENAMINGS, freeze, hashes_of
from dledger.testing.search.member import SearchedEntry, SearchedLedger, SearchedTerms, batch_of, entries_in
from protocols.wire.ledger.codes import ResponseCode, VoteResult

#: Two terms, one entry; answers come at once.
SMALL = Bounds(terms_max=2, entries_max=1, messages_max=2, crashes=0, late=0, twice=0, is_atomic=True)


def bounds(**changes: object) -> Bounds:
    """L{SMALL} with changes."""
    names = ("terms_max", "entries_max", "messages_max", "crashes", "breaks", "late", "twice", "is_atomic",
             "is_sync", "term_start_entry", "pushes")
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
        """Behind the largest number of states the search is not complete."""
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
        with mock.patch.object(LeaderElector, "_judge_log", lambda *_: VoteResult.ACCEPT):
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


class NameTests(SynchronousTestCase):
    """States that differ in the names of the members only count once."""

    def after(self, group: SearchedGroup, moves: list[tuple[str, int]], names: tuple[int, ...]) -> GroupState:
        """The state behind some moves, with other names; C{what} of a move begins with the given words."""
        state = group.first()
        for what, number in moves:
            for old, new in enumerate(names):
                what = what.replace(f"from n{old}", f"from N{new}")
            what = what.replace("from N", "from n")
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


class LedgerTests(SynchronousTestCase):
    """The ledger of the search."""

    def test_batches(self) -> None:
        """Entries of one term at a time, and what they say."""
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
