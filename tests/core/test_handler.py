# -*- test-case-name: tests.core.test_handler -*-
"""A follower's side of replication."""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from dledger.core.replication.handler import EntryHandler
from dledger.core.state import effects as fx
from dledger.core.state import inputs as ev
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.codes import WIRE_VERSION, PushType
from protocols.wire.ledger.messages import PushEntryRequest, PushEntryResponse
from tests.core.helpers import (
    Bench,
    ListLedger,
    batch,
    events,
    heart_beat,
    kinds,
    make_member,
    of_type,
    push,
    quiet,
)
from tests.core.proving import proved

OK, NO = "Reply SUCCESS", "Reply INCONSISTENT_STATE"


def follower(*terms: int, begin_index: int = 0, **options: Any) -> Bench:
    """A follower of n1 in term 3."""
    ledger = ListLedger.of(*terms, begin_index=begin_index)
    return Bench.make(ledger, term=3, **options).follow("n1", 3)


def compare(index: int, entry_term: int, **fields: Any) -> PushEntryRequest:
    """COMPARE of one entry."""
    return push(PushType.COMPARE, batch(index, entry_term), **{"term": 3, **fields})


def truncate(index: int, entry_term: int, **fields: Any) -> PushEntryRequest:
    """TRUNCATE to one entry."""
    return push(PushType.TRUNCATE, batch(index, entry_term), **{"term": 3, **fields})


def append(first_index: int, *terms: int, **fields: Any) -> PushEntryRequest:
    """APPEND of entries."""
    return push(PushType.APPEND, batch(first_index, *terms), **{"term": 3, **fields})


def commit(index: int, **fields: Any) -> PushEntryRequest:
    """COMMIT."""
    return push(PushType.COMMIT, commit_index=index, **{"term": 3, **fields})


def answer(
    request: PushEntryRequest, code: ResponseCode, begin_index: int, end_index: int, *, term: int = 3
) -> PushEntryResponse:
    """The whole answer to a push."""
    entries = request.entries
    return PushEntryResponse(
        group="g", code=code, term=term, index=entries.first_index if entries else None,
        count=entries.count if entries else 0, begin_index=begin_index, end_index=end_index,
        wire_version=WIRE_VERSION,
    )


def terms_of(bench: Bench) -> list[int]:
    """What is in the ledger."""
    return [term for term, _ in bench.ledger.entries]


class CompareTests(SynchronousTestCase):
    """COMPARE is answered from the ledger and changes nothing of it."""

    def test_a_compare_is_answered_from_the_ledger(self) -> None:
        """Equal is SUCCESS, anything else is 406; begin and end always go along."""
        equal, differs = ResponseCode.SUCCESS, ResponseCode.INCONSISTENT_STATE
        for index, term, code in (
            (5, 2, equal), (2, 1, equal), (5, 1, differs), (3, 2, differs), (6, 2, differs), (1, 1, differs),
        ):
            bench = follower(1, 1, 2, 2, begin_index=2)
            request = compare(index, term)
            self.assertEqual(
                quiet(bench.request(request)),
                (fx.Reply(token=bench.last_token, response=answer(request, code, 2, 5)),), (index, term),
            )

    def test_an_empty_follower_has_nothing_equal(self) -> None:
        """It has nothing: 406, and -1 twice."""
        bench, request = follower(), compare(0, 1)
        self.assertEqual(bench.ask(request), answer(request, ResponseCode.INCONSISTENT_STATE, -1, -1))

    def test_equal_end_lets_appends_in(self) -> None:
        """After that, and not before."""
        bench = follower(1)
        self.assertEqual(kinds(bench.request(append(1, 3))), [NO])
        bench.request(compare(0, 1))
        self.assertEqual(kinds(bench.request(append(1, 3))), ["WriteEntries", OK])

    def test_equal_below_the_end_does_not(self) -> None:
        """The entries after it may not be the leader's."""
        bench = follower(1, 1)
        bench.request(compare(0, 1))
        self.assertEqual(kinds(bench.request(append(2, 3))), [NO])

    def test_difference_ends_being_in_step(self) -> None:
        """An APPEND that comes after it must wait for the next COMPARE."""
        bench = follower(1)
        bench.request(compare(0, 1))
        bench.request(compare(0, 2))
        self.assertEqual(kinds(bench.request(append(1, 3))), [NO])

    def test_commit_counts_up_to_what_is_equal(self) -> None:
        """A COMPARE in the middle commits no further than there."""
        bench = follower(1, 1, 1)
        self.assertEqual(
            quiet(bench.request(compare(1, 1, commit_index=2)))[0], fx.RecordCommit(committed_index=1)
        )

    def test_two_entries_or_none(self) -> None:
        """A COMPARE or TRUNCATE is about one entry; an APPEND about one at least."""
        bench = follower(1)
        requests = [
            push(type, entries, term=3) for type in (PushType.COMPARE, PushType.TRUNCATE)
            for entries in (None, batch(0, 1, 1))
        ]
        for request in [*requests, push(PushType.APPEND, term=3)]:
            self.assertEqual(kinds(bench.request(request)), ["Reply UNEXPECTED_ARGUMENT"])
        self.assertEqual(terms_of(bench), [1])


class SenderTests(SynchronousTestCase):
    """Who may push."""

    def test_a_refused_sender_changes_nothing(self) -> None:
        """Nothing is read, cut, written or committed for them; the answer carries this member's term."""
        for leader, term, code in (
            ("n1", 2, ResponseCode.INCONSISTENT_TERM),
            ("n2", 3, ResponseCode.INCONSISTENT_LEADER),
            ("n9", 3, ResponseCode.UNKNOWN_MEMBER),
            ("n9", 50, ResponseCode.UNKNOWN_MEMBER),
            ("n0", 3, ResponseCode.UNEXPECTED_MEMBER),
        ):
            bench = follower(1, 2)
            bench.request(compare(1, 2))
            for request in (
                compare(1, 2, leader=leader, term=term), truncate(0, 1, leader=leader, term=term),
                append(2, 2, leader=leader, term=term), commit(1, leader=leader, term=term),
            ):
                self.assertEqual(
                    quiet(bench.request(request)),
                    (fx.Reply(token=bench.last_token, response=answer(request, code, 0, 1)),),
                )
            status = bench.core.status()
            self.assertEqual((terms_of(bench), status.committed_index, status.term), ([1, 2], -1, 3))

    def test_queue_of_the_leader_survives_a_stranger(self) -> None:
        """W9: a deposed leader's COMPARE does not wipe the true leader's window."""
        bench = follower(1)
        bench.request(compare(0, 1))
        bench.request(append(2, 3))
        bench.request(compare(0, 1, leader="n2", term=2))
        self.assertEqual(kinds(bench.request(append(1, 3))), ["WriteEntries", OK, "WriteEntries", OK])

    def test_a_push_of_a_higher_term_is_followed(self) -> None:
        """A push of a higher term is followed, durably first; nothing is known to be equal any more."""
        bench = follower(1)
        bench.request(compare(0, 1))
        self.assertEqual(
            kinds(bench.request(append(1, 3, leader="n2", term=4))), ["PersistTermVote", NO]
        )
        self.assertEqual(bench.core.leader_id, "n2")


class TruncateTests(SynchronousTestCase):
    """TRUNCATE is a command: the entry becomes the last one. It is refused below what is certain."""

    def test_a_truncate_cuts_later_entries(self) -> None:
        """An entry that is there: the entries after it go, then the answer."""
        bench, request = follower(1, 1, 2, 2), truncate(1, 1)
        self.assertEqual(quiet(bench.request(request)), (
            fx.TruncateLedger(entries=batch(1, 1)),
            fx.Reply(token=bench.last_token, response=answer(request, ResponseCode.SUCCESS, 0, 1)),
        ))
        self.assertEqual(terms_of(bench), [1, 1])

    def test_lets_appends_in(self) -> None:
        """The end is the leader's now."""
        bench = follower(1, 1, 2)
        bench.request(truncate(1, 1))
        self.assertEqual(kinds(bench.request(append(2, 3, 3))), ["WriteEntries", OK])

    def test_commits_up_to_there(self) -> None:
        """And no further."""
        bench = follower(1, 1, 2)
        effects = bench.request(truncate(1, 1, commit_index=9))
        self.assertEqual(kinds(effects), ["TruncateLedger", "RecordCommit", OK])
        self.assertEqual(bench.core.committed_index, 1)

    def test_hears_the_leaders_commit(self) -> None:
        """Any push of its leader says how far this member is behind; no other member's push does."""
        bench = follower(1, 1, 2)
        self.assertEqual(bench.core.status().commit_lag, 0)
        bench.request(compare(90, 2, commit_index=99))
        self.assertEqual(bench.core.status().commit_lag, 100)
        bench.request(compare(90, 2, commit_index=500, leader="n2"))
        self.assertEqual(bench.core.status().leader_committed_index, 99)

    def test_age_of_the_leaders_commit(self) -> None:
        """A process that was stopped may read its first push before its first tick, or after it."""
        for ticks_first in (False, True):
            bench = follower(1, 1, 2)
            bench.request(compare(90, 2, commit_index=99))
            self.assertEqual(bench.core.status().leader_committed_ms, -1)
            bench.tick(100)
            bench.tick(100)
            awake_ms = bench.now_ms
            bench.now_ms += 5000
            if ticks_first:
                bench.tick(0)
            bench.request(compare(90, 2, commit_index=99))
            self.assertLessEqual(bench.core.status().leader_committed_ms, awake_ms)
            bench.tick(100)
            bench.tick(100)
            bench.request(compare(90, 2, commit_index=99))
            self.assertGreater(bench.core.status().leader_committed_ms, awake_ms)

    def test_nothing_to_cut(self) -> None:
        """The last entry is the one: no write."""
        self.assertEqual(kinds(follower(1, 1).request(truncate(1, 1))), [OK])

    def test_empty_follower_starts_at_the_entry(self) -> None:
        """Wherever the leader begins."""
        bench = follower()
        proved(bench.core.handler, 40)
        self.assertEqual(
            quiet(bench.request(truncate(40, 1)))[0], fx.TruncateLedger(entries=batch(40, 1))
        )
        self.assertEqual((bench.ledger.ledger_begin_index, bench.ledger.ledger_end_index), (40, 40))

    def test_what_stands_before_it_must_be_known(self) -> None:
        """
        An entry that is not there keeps what is before it only if that is committed or was found equal;
        else the ledger starts anew.
        """
        for index, committed_index, found_equal, anew in (
            (0, -1, None, False),  # nothing before it
            (2, -1, None, True),  # replaces an entry; 0 and 1 are anybody's
            (2, 1, None, False),
            (2, -1, 1, False),
            (2, 0, None, True),
            (3, -1, None, True),  # another last entry
            (3, 2, None, False),
            (4, -1, None, True),  # just after the end
            (4, 3, None, False),
            (4, -1, 3, False),
            (9, 3, None, True),  # a gap
        ):
            bench = follower(1, 1, 1, 1, committed_index=committed_index)
            if found_equal is not None:
                bench.request(compare(found_equal, 1))
            proved(bench.core.handler, index)
            effect = of_type(bench.request(truncate(index, 3)), fx.TruncateLedger)
            self.assertEqual(
                effect, [fx.TruncateLedger(entries=batch(index, 3), anew=anew)],
                (index, committed_index, found_equal),
            )
            self.assertEqual(bench.ledger.ledger_begin_index, index if anew else 0)

    def test_ledger_of_one_entry(self) -> None:
        """Also a single entry is something that must be known."""
        bench = follower(1)
        proved(bench.core.handler, 1)
        effects = bench.request(truncate(1, 3))
        self.assertEqual(of_type(effects, fx.TruncateLedger), [
            fx.TruncateLedger(entries=batch(1, 3), anew=True)
        ])

    def test_never_at_or_below_the_commit(self) -> None:
        """W14: neither below it, nor at it with another entry; the operator is informed."""
        for request in (truncate(0, 1), truncate(1, 2), truncate(0, 2)):
            bench = follower(1, 1, 1, committed_index=1)
            effects = bench.request(request)
            self.assertEqual(kinds(effects), [NO], request)
            self.assertIn("truncate-refused", events(effects))
            self.assertEqual(terms_of(bench), [1, 1, 1])

    def test_down_to_the_commit(self) -> None:
        """The committed entry itself may become the last one."""
        bench = follower(1, 1, 2, committed_index=1)
        self.assertEqual(kinds(bench.request(truncate(1, 1))), ["TruncateLedger", OK])

    def test_never_below_what_was_found_equal_in_the_term(self) -> None:
        """A late one of this very leader cuts nothing that was acknowledged to it."""
        bench = follower(1)
        bench.request(compare(0, 1))
        bench.request(append(1, 3, 3))
        effects = bench.request(truncate(1, 3))
        self.assertEqual((kinds(effects), terms_of(bench)), ([NO], [1, 3, 3]))
        self.assertIn("truncate-refused", events(effects))

    def test_not_even_after_the_leader_was_given_up_for_a_while(self) -> None:
        """A term has one leader: what equalled its ledger does so when it is heard again."""
        bench = follower(1)
        bench.request(compare(0, 1))
        bench.request(append(1, 3, 3))
        bench.run(3_000)
        self.assertIs(bench.core.leader_id, None)
        bench.request(heart_beat("n1", 3))
        self.assertEqual((kinds(bench.request(truncate(1, 3))), terms_of(bench)), ([NO], [1, 3, 3]))

    def test_a_new_term_may_cut_what_was_equal_in_the_last(self) -> None:
        """The next leader's ledger is another one."""
        bench = follower(1)
        bench.request(compare(0, 1))
        bench.request(append(1, 3, 3))
        self.assertEqual(
            kinds(bench.request(truncate(1, 3, leader="n2", term=4))),
            ["PersistTermVote", "TruncateLedger", OK],
        )

    def test_refused_by_the_store(self) -> None:
        """Nothing changed, 406, and no APPEND until the next COMPARE."""
        bench = follower(1, 1, 2)
        bench.ledger.refuse = ResponseCode.DISK_FULL
        effects = bench.request(truncate(1, 1))
        self.assertEqual(kinds(effects), ["TruncateLedger", NO])
        self.assertIn("push-refused", events(effects))
        self.assertEqual(kinds(bench.request(append(3, 3))), [NO])


class AppendTests(SynchronousTestCase):
    """Entries in order, written before they are acknowledged."""

    def in_step(self, *terms: int, **options: Any) -> Bench:
        """A follower whose end is known to be the leader's."""
        bench = follower(*terms, **options)
        bench.request(compare(len(terms) - 1, terms[-1]))
        return bench

    def test_write_then_answer(self) -> None:
        """The answer echoes the request and says where the ledger ends now."""
        bench, request = self.in_step(1), append(1, 3, 3)
        self.assertEqual(quiet(bench.request(request)), (
            fx.WriteEntries(entries=batch(1, 3, 3)),
            fx.Reply(token=bench.last_token, response=answer(request, ResponseCode.SUCCESS, 0, 2)),
        ))

    def test_commit_comes_with_it(self) -> None:
        """Recorded when the entries are there, and capped by them."""
        bench = self.in_step(1)
        self.assertEqual(
            kinds(bench.request(append(1, 3, commit_index=7))), ["WriteEntries", "RecordCommit", OK]
        )
        self.assertEqual(bench.core.committed_index, 1)

    def test_out_of_order(self) -> None:
        """Pushes wait for those before them, and are each answered once, in order."""
        bench = self.in_step(1)
        for index in (4, 2, 3):
            self.assertEqual(kinds(bench.request(append(index, 3))), [])
        effects = bench.request(append(1, 3))
        self.assertEqual(kinds(effects), ["WriteEntries", OK] * 4)
        self.assertEqual([reply.token for reply in of_type(effects, fx.Reply)], [6, 4, 5, 3])
        self.assertEqual(bench.core.handler.queued_bytes, 0)

    def test_repeated_and_known(self) -> None:
        """An APPEND that is in the ledger already is acknowledged again, if it is the same."""
        bench = self.in_step(1)
        bench.request(append(1, 3, 3))
        self.assertEqual(kinds(bench.request(append(1, 3, 3))), [OK])
        self.assertEqual(kinds(bench.request(append(2, 3))), [OK])
        self.assertEqual(kinds(bench.request(append(1, 2))), [NO])
        self.assertEqual(kinds(bench.request(append(2, 3, 3))), [NO])

    def test_known_but_never_compared(self) -> None:
        """Being in the ledger is not enough: it must be known to be this leader's."""
        bench = follower(1, 1, 1)
        bench.request(compare(1, 1))
        bench.request(compare(2, 1))
        self.assertEqual(kinds(bench.request(append(1, 1))), [OK])
        bench = follower(1, 1, 1)
        self.assertEqual(kinds(bench.request(append(1, 1))), [NO])

    def test_known_but_expired(self) -> None:
        """What is before the begin cannot be compared: 406, not a crash."""
        bench = follower(3, 3, begin_index=5)
        bench.request(compare(6, 3))
        self.assertEqual(kinds(bench.request(append(4, 3))), [NO])

    def test_repeated_while_it_waits(self) -> None:
        """W10: the newer one takes its place, the older one is answered 413."""
        bench = self.in_step(1)
        bench.request(append(3, 3))
        effects = bench.request(append(3, 3))
        self.assertEqual(kinds(effects), ["Reply REPEATED_PUSH"])
        self.assertEqual(of_type(effects, fx.Reply)[0].token, 3)
        bench.request(append(1, 3, 3))
        self.assertEqual([code.name for code in self.codes(bench, 4)], ["SUCCESS"])
        self.assertEqual(bench.core.handler.queued_bytes, 0)

    def codes(self, bench: Bench, token: int) -> list[ResponseCode]:
        """Codes of the answers to a token."""
        return [response.code for response in bench.replies(token)]

    def test_refused_by_the_store(self) -> None:
        """406, everything that waited too, and no more until the next COMPARE."""
        bench = self.in_step(1)
        bench.request(append(2, 3))
        bench.ledger.refuse = ResponseCode.INCONSISTENT_STATE
        self.assertEqual(kinds(bench.request(append(1, 3))), ["WriteEntries", NO, NO])
        self.assertEqual(kinds(bench.request(append(1, 3))), [NO])
        bench.request(compare(0, 1))
        self.assertEqual(kinds(bench.request(append(1, 3))), ["WriteEntries", OK])

    def test_following_write_stands_last(self) -> None:
        """A refused one must not drop the fsync that the first one needs."""
        bench = self.in_step(1, flush_disk_type="sync")
        bench.request(append(2, 3))
        bench.core.step(ev.RequestReceived(token=90, request=append(1, 3)), bench.now_ms)
        bench.ledger.append_entries(batch(1, 3))
        effects = bench.core.step(ev.EntriesWritten(first_index=1, count=1), bench.now_ms)
        self.assertEqual(kinds(effects), ["FlushLedger", "WriteEntries"])
        assert isinstance(effects[-1], fx.WriteEntries)

    def test_a_comparison_purges_the_window(self) -> None:
        """What waited is answered 406: the leader begins anew."""
        bench = self.in_step(1)
        bench.request(append(2, 3))
        self.assertEqual(kinds(bench.request(compare(0, 1))), [NO, OK])
        bench.request(append(2, 3))
        self.assertEqual(kinds(bench.request(truncate(0, 1))), [NO, OK])


class WindowTests(SynchronousTestCase):
    """The reorder window is bounded, and nothing stays in it for ever."""

    def in_step(self, **options: Any) -> Bench:
        """A follower that holds entry 0."""
        bench = follower(1, **options)
        bench.request(compare(0, 1))
        return bench

    def test_the_window_bounds_the_number_of_pushes(self) -> None:
        """One more than fits is answered 421 at once."""
        bench = self.in_step(max_queued_pushes=2)
        replies = [kinds(bench.request(append(index, 3))) for index in (2, 3, 4)]
        self.assertEqual(replies, [[], [], ["Reply PUSH_REQUEST_IS_FULL"]])

    def test_the_window_bounds_the_bytes_of_pushes(self) -> None:
        """A push beyond the bytes that fit is answered 421; they are free again when the pushes have left."""
        bench = self.in_step(max_inflight_push_bytes=100)
        big = EntryBatch(first_index=2, count=1, term=3, records=batch(2, (3, b"x" * 150)).records)
        self.assertEqual(kinds(bench.request(push(PushType.APPEND, big, term=3))), [])
        self.assertEqual(kinds(bench.request(append(3, 3, 3))), ["Reply PUSH_REQUEST_IS_FULL"])
        for request in (compare(0, 1), append(1, 3)):
            bench.request(request)
        self.assertEqual(bench.core.handler.queued_bytes, 0)

    def test_behind_a_gap(self) -> None:
        """A push whose turn does not come is answered 406 after the leader's patience, not before."""
        bench = self.in_step(max_push_time_out_ms=500)
        bench.request(append(2, 3))
        self.assertEqual(kinds(bench.tick(499)), [])
        self.assertEqual(kinds(bench.tick(1)), [NO])
        self.assertEqual(kinds(bench.tick(5_000)), [])

    def test_passed_by_the_ledger(self) -> None:
        """A push that overlaps what came another way is compared, and leaves the window."""
        bench = self.in_step()
        bench.request(append(2, 3))
        bench.request(append(3, 2))
        bench.request(append(1, 3, 3, 3))
        self.assertEqual(kinds(of_type(bench.tick(), fx.Reply)), [OK, NO])
        self.assertEqual(bench.core.handler.queued, 0)
        self.assertEqual(bench.core.handler.queued_bytes, 0)

    def test_a_lost_connection_drops_its_pushes(self) -> None:
        """What came on it is dropped: neither written nor answered."""
        bench = self.in_step()
        bench.request(append(2, 3))
        bench.request(append(3, 3))
        bench.step(ev.RequestAbandoned(token=bench.last_token))
        self.assertEqual(kinds(bench.request(append(1, 3))), ["WriteEntries", OK] * 2)
        self.assertEqual(bench.core.handler.queued_bytes, 0)

    def test_a_new_leader_drops_the_pushes_of_the_old(self) -> None:
        """What waited for the old one is answered, and never written."""
        bench = self.in_step()
        bench.request(append(2, 3))
        self.assertEqual(
            kinds(bench.request(heart_beat("n2", 4))), ["PersistTermVote", NO, OK]
        )
        self.assertEqual(bench.core.handler.queued, 0)


class OutcomeTests(SynchronousTestCase):
    """Outcomes belong to a write that is under way; one that does not is our bug, not a crash later."""

    def handler(self) -> EntryHandler:
        """A handler in step, with no write under way."""
        member = make_member(ListLedger.of(1), term=3)
        handler = EntryHandler(member)
        handler.reset()
        handler.on_push(1, compare(0, 1), ResponseCode.SUCCESS)
        return handler

    def test_without_a_write(self) -> None:
        """Nothing was asked of the store."""
        handler = self.handler()
        self.assertRaises(AssertionError, handler.on_written)
        self.assertRaises(AssertionError, handler.on_truncated)
        self.assertRaises(AssertionError, handler.on_write_refused, ResponseCode.DISK_FULL, "full")

    def test_one_write_at_a_time(self) -> None:
        """A second APPEND cannot be written before the first one's outcome."""
        handler = self.handler()
        handler.on_push(2, append(1, 3), ResponseCode.SUCCESS)
        handler.member.out.take()
        self.assertRaises(
            AssertionError, handler.on_push, 3, append(1, 3), ResponseCode.SUCCESS
        )

    def test_another_end_than_the_one_written(self) -> None:
        """A store that wrote something else is not acknowledged."""
        handler = self.handler()
        handler.on_push(2, append(1, 3, 3), ResponseCode.SUCCESS)
        assert isinstance(handler.member.view, ListLedger)
        handler.member.view.entries.append((3, b""))
        handler.member.refresh_end()
        self.assertRaises(AssertionError, handler.on_written)


class CommitTests(SynchronousTestCase):
    """Commit information."""

    def test_up_to_what_is_known_to_be_equal(self) -> None:
        """W8: not to the end, of which nothing is known."""
        bench = follower(1, 1, 1)
        bench.request(compare(1, 1))
        self.assertEqual(kinds(bench.request(commit(2))), ["RecordCommit", NO])
        self.assertEqual(bench.core.committed_index, 1)

    def test_nothing_commits_before_a_compare(self) -> None:
        """Nothing committed; and the leader hears that it has to compare first."""
        bench = follower(1, 1, 1)
        self.assertEqual(kinds(bench.request(commit(2))), [NO])
        self.assertEqual(bench.core.committed_index, -1)

    def test_a_commit_is_recorded_before_its_answer(self) -> None:
        """Recorded before the answer, which names no entry."""
        bench, request = follower(1, 1, 1), commit(2)
        bench.request(compare(2, 1))
        self.assertEqual(quiet(bench.request(request)), (
            fx.RecordCommit(committed_index=2),
            fx.Reply(token=bench.last_token, response=answer(request, ResponseCode.SUCCESS, 0, 2)),
        ))

    def test_the_committed_index_never_falls(self) -> None:
        """A lower one is no news."""
        bench = follower(1, 1, 1, committed_index=1)
        bench.request(compare(2, 1))
        self.assertEqual(kinds(bench.request(commit(0))), [OK])
        self.assertEqual(bench.core.committed_index, 1)
