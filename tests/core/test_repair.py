# -*- test-case-name: tests.core.test_repair -*-
"""A member that has lost entries, until a leader has given them back."""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from dledger.core.state import effects as fx
from dledger.core.state import inputs as ev
from protocols.wire.ledger.codes import PushType
from protocols.wire.ledger.messages import (
    PushEntryRequest,
)
from tests.core.helpers import (
    Bench,
    ListLedger,
    batch,
    events,
    kinds,
    of_type,
    push,
    vote_request,
)
from tests.core.proving import proved


class RepairTests(SynchronousTestCase):
    """A damaged member neither votes nor leads until a leader has brought it past its old end."""

    def damaged(self, *terms: int, **options: Any) -> Bench:
        """A follower of n1 in term 3 that once ended at 4, and holds entries of C{terms} now."""
        return Bench.make(ListLedger.of(*terms), term=3, repair_end_index=4, **options)

    def compare(self, index: int, entry_term: int, term: int = 3) -> PushEntryRequest:
        """COMPARE of one entry."""
        return push(PushType.COMPARE, batch(index, entry_term), term=term)

    def test_ends_at_the_old_end(self) -> None:
        """Not before it; then it votes again."""
        bench = self.damaged(1, 1).follow("n1", 3)
        bench.request(self.compare(1, 1))
        self.assertEqual(kinds(bench.request(push(PushType.APPEND, batch(2, 1, 1), term=3))),
                         ["WriteEntries", "Reply SUCCESS"])
        self.assertTrue(bench.core.status().is_repairing)
        effects = bench.request(push(PushType.APPEND, batch(4, 1), term=3))
        self.assertEqual(kinds(effects), ["WriteEntries", "Reply SUCCESS", "EndRepair"])
        self.assertIn("repaired", events(effects))
        self.assertFalse(bench.core.status().is_repairing)
        bench.now_ms += 1_000
        answer = bench.ask(vote_request("n2", 4, end_index=9, end_term=3))
        self.assertEqual(answer.term, 4)
        self.assertEqual(bench.core.status().voted_for, "n2")

    def test_ends_with_an_entry_of_a_later_term(self) -> None:
        """That leader's ledger has everything that was committed with this member's help."""
        bench = self.damaged(1, 1).follow("n1", 4)
        bench.request(self.compare(1, 1, term=4))
        effects = bench.request(push(PushType.APPEND, batch(2, 4), term=4))
        self.assertEqual(kinds(effects)[-1], "EndRepair")

    def test_not_with_an_entry_of_a_term_that_it_knew(self) -> None:
        """In that one it may have acknowledged more."""
        bench = self.damaged(1, 1).follow("n1", 3)
        bench.request(self.compare(1, 1))
        bench.request(push(PushType.APPEND, batch(2, 3), term=3))
        self.assertTrue(bench.core.status().is_repairing)

    def test_a_truncation_ends_the_repair(self) -> None:
        """A leader whose ledger begins beyond the old end sets it there."""
        bench = self.damaged(1, 1).follow("n1", 3)
        proved(bench.core.handler, 9)
        effects = bench.request(push(PushType.TRUNCATE, batch(9, 1), term=3))
        self.assertEqual(kinds(effects), ["TruncateLedger", "Reply SUCCESS", "EndRepair"])

    def test_not_before_it_is_durable(self) -> None:
        """With C{sync} flushing the mark goes when the entries are on stable storage."""
        bench = self.damaged(1, 1, flush_disk_type="sync").follow("n1", 3)
        bench.request(self.compare(1, 1))
        effects = bench.request(push(PushType.APPEND, batch(2, 1, 1, 1), term=3))
        self.assertEqual(kinds(effects), ["WriteEntries", "FlushLedger"])
        (flush,) = of_type(effects, fx.FlushLedger)
        effects = bench.step(ev.EntriesFlushed(flush_id=flush.flush_id, end_index=flush.end_index))
        self.assertEqual(kinds(effects), ["Reply SUCCESS", "EndRepair"])

    def test_of_a_ledger_that_is_whole_already(self) -> None:
        """A crash before the mark was cleared: a leader that finds the end equal is enough."""
        bench = self.damaged(1, 1, 1, 1, 1).follow("n1", 3)
        self.assertEqual(kinds(bench.request(self.compare(3, 1))), ["Reply SUCCESS"])
        self.assertEqual(kinds(bench.request(self.compare(4, 1))), ["Reply SUCCESS", "EndRepair"])

    def test_not_below_its_end(self) -> None:
        """The entries after the equal one may be anybody's."""
        bench = Bench.make(ListLedger.of(1, 1, 1), term=3, repair_end_index=0).follow("n1", 3)
        bench.request(self.compare(1, 1))
        self.assertTrue(bench.core.status().is_repairing)

    def test_only_by_the_leader(self) -> None:
        """What another one pushes proves nothing."""
        bench = self.damaged(1, 1, 1, 1, 1).follow("n1", 3)
        bench.request(push(PushType.COMPARE, batch(4, 1), leader="n2", term=3))
        self.assertTrue(bench.core.status().is_repairing)

    def test_begins_with_a_truncation(self) -> None:
        """A leader cuts damaged entries that this member may have acknowledged: it owes them."""
        bench = Bench.make(ListLedger.of(1, 1, 1, 1), term=3).follow("n1", 3)
        bench.ledger.owes_after_cut = 3
        bench.request(push(PushType.TRUNCATE, batch(1, 1), term=3))
        self.assertTrue(bench.core.status().is_repairing)
        self.assertFalse(bench.core.member.may_lead)
        bench.request(push(PushType.APPEND, batch(2, 1, 1), term=3))
        self.assertFalse(bench.core.status().is_repairing)

    def test_of_the_very_first_entry(self) -> None:
        """Index 0 is an end like any other."""
        bench = Bench.make(term=3, repair_end_index=0).follow("n1", 3)
        effects = bench.request(push(PushType.TRUNCATE, batch(0, 1), term=3))
        self.assertEqual(kinds(effects)[-1], "EndRepair")

    def test_an_idle_leader_repairs_it(self) -> None:
        """A COMMIT to a member that must be compared first says so."""
        bench = self.damaged(1, 1).follow("n1", 3)
        self.assertEqual(kinds(bench.request(push(PushType.COMMIT, term=3))), ["Reply INCONSISTENT_STATE"])
