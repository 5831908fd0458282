# -*- test-case-name: tests.core.test_durable -*-
"""A follower's answers with fsync."""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from dledger.core.state import effects as fx
from dledger.core.state import inputs as ev
from tests.core.helpers import Bench, heart_beat, kinds, of_type, vote_request
from tests.core.proving import proved
from tests.core.test_handler import NO, OK, append, compare, follower, truncate


class DurableTests(SynchronousTestCase):
    """With C{sync} flushing, "I hold this" waits for stable storage."""

    def in_step(self, **options: Any) -> Bench:
        """A follower that holds entry 0, flushed."""
        bench = follower(1, flush_disk_type="sync", **options)
        bench.request(compare(0, 1))
        return bench

    def flushed(self, bench: Bench) -> tuple[fx.Effect, ...]:
        """The fsync under way ends well."""
        flush = of_type(bench.seen, fx.FlushLedger)[-1]
        return bench.step(ev.EntriesFlushed(flush_id=flush.flush_id, end_index=flush.end_index))

    def test_an_answer_waits_for_the_flush(self) -> None:
        """Written, then flushed, then answered."""
        bench = self.in_step()
        self.assertEqual(kinds(bench.request(append(1, 3))), ["WriteEntries", "FlushLedger"])
        self.assertEqual(kinds(self.flushed(bench)), [OK])

    def test_later_writes_share_the_next_flush(self) -> None:
        """What was written while an fsync ran shares the next one, and is not answered by the first."""
        bench = self.in_step()
        bench.request(append(1, 3))
        for index in (2, 3):
            self.assertEqual(kinds(bench.request(append(index, 3))), ["WriteEntries"])
        self.assertEqual(kinds(self.flushed(bench)), [OK, "FlushLedger"])
        self.assertEqual(kinds(self.flushed(bench)), [OK, OK])

    def test_compare_waits_too(self) -> None:
        """Equal but not flushed is not yet an acknowledgement."""
        bench = self.in_step()
        bench.request(append(1, 3))
        self.assertEqual(kinds(bench.request(compare(1, 3))), [])
        self.assertEqual(kinds(self.flushed(bench)), [OK, OK])

    def test_known_entries_wait_too(self) -> None:
        """A repeated APPEND is no faster than the first."""
        bench = self.in_step()
        bench.request(append(1, 3))
        self.assertEqual(kinds(bench.request(append(1, 3))), [])

    def test_starting_anew_refuses_who_waits(self) -> None:
        """What is dropped is not confirmed, though a higher index is on stable storage afterwards."""
        bench = self.in_step()
        bench.request(append(1, 3))
        proved(bench.core.handler, 9)
        done = kinds(bench.request(truncate(9, 3)))
        self.assertEqual([kind for kind in done if kind in (NO, OK, "TruncateLedger")],
                         [NO, "TruncateLedger", OK])

    def test_truncation_is_durable_by_itself(self) -> None:
        """Its answer need not wait, and releases those that it made durable."""
        bench = follower(1, 1, 2, flush_disk_type="sync")
        self.assertEqual(kinds(bench.request(truncate(1, 1))), ["TruncateLedger", OK])

    def test_truncation_releases_what_it_made_durable(self) -> None:
        """Answers that waited for the fsync under way need not wait for another."""
        bench = self.in_step()
        bench.request(append(1, 3, 3))
        bench.request(heart_beat("n2", 4))
        self.assertEqual(kinds(bench.request(compare(1, 3, leader="n2", term=4))), [])
        self.assertEqual(
            kinds(bench.request(truncate(1, 3, leader="n2", term=4))), ["TruncateLedger", OK, OK]
        )

    def test_waiting_answers_are_given_to_a_new_leader(self) -> None:
        """Answers that waited are given, as 406; the flush that comes later answers nothing."""
        bench = self.in_step()
        bench.request(append(1, 3))
        effects = bench.request(heart_beat("n2", 4))
        self.assertIn(NO, kinds(effects))
        self.assertEqual(kinds(self.flushed(bench)), [])

    def test_waiting_answers_are_given_without_a_leader(self) -> None:
        """Given up, or deposed by a candidate: answers that waited are given, as 406."""
        bench = self.in_step()
        bench.request(append(1, 3))
        self.assertIn(NO, kinds(bench.run(2_000)))
        bench = self.in_step()
        bench.request(append(1, 3))
        bench.now_ms += 1_000  # the leader is silent
        effects = bench.request(vote_request("n2", 4))
        self.assertEqual(kinds(effects), ["PersistTermVote", NO, OK])

    def test_a_lost_connection_is_not_answered(self) -> None:
        """Nobody to answer any more."""
        bench = self.in_step()
        bench.request(append(1, 3))
        bench.step(ev.RequestAbandoned(token=bench.last_token))
        self.assertEqual(kinds(self.flushed(bench)), [])
        self.assertEqual(bench.core.handler.queued, 0)

    def test_the_number_of_waiting_answers_is_bounded(self) -> None:
        """More answers than fit do not wait: 421, and the leader compares again."""
        bench = self.in_step(max_queued_pushes=2)
        replies = [kinds(bench.request(append(index, 3)))[1:] for index in (1, 2, 3)]
        self.assertEqual(replies, [["FlushLedger"], [], ["Reply PUSH_REQUEST_IS_FULL"]])

    def test_async_does_not_wait(self) -> None:
        """Java's way: acknowledged from the page cache."""
        bench = follower(1)
        bench.request(compare(0, 1))
        self.assertEqual(kinds(bench.request(append(1, 3))), ["WriteEntries", OK])
