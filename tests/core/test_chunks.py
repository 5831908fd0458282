# -*- test-case-name: tests.core.test_chunks -*-
"""Followers that are far behind are pushed chunks, and others are not; what a follower does with them."""

from __future__ import annotations

from typing import Any

import attrs
from twisted.trial.unittest import SynchronousTestCase

from dledger.core.replication.dispatcher import CHUNKS_REFUSED_MAX
from dledger.core.state import effects as fx
from dledger.core.state import inputs as ev
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.batches import EntryBatch, EntryChunk
from protocols.wire.ledger.codes import PushType
from protocols.wire.ledger.messages import PushEntryRequest, PushEntryResponse
from tests.core.helpers import Bench, ListLedger, batch, events, kinds, of_type, propose, push, pushed, pushes

KIB = 1024


def reported(code: ResponseCode = ResponseCode.SUCCESS, *, end_index: int = -1) -> PushEntryResponse:
    """The answer of a follower of ours."""
    return pushed(code, term=2, end_index=end_index)


def spans(effects: tuple[fx.Effect, ...]) -> list[tuple[int, int, bool]]:
    """First and last index of every APPEND, and whether it is a chunk."""
    found = []
    for one in pushes(effects, PushType.APPEND, "n1"):
        assert isinstance(one.request, PushEntryRequest) and one.request.entries is not None
        entries = one.request.entries
        found.append((entries.first_index, entries.last_index, isinstance(entries, EntryChunk)))
    return found


def indexes_in(found: list[tuple[int, int, bool]]) -> list[int]:
    """The indexes of all entries that were pushed."""
    return [at for first, last, _ in found for at in range(first, last + 1)]


class LeaderTests(SynchronousTestCase):
    """A leader of 1000 entries of a kibibyte, in chunks of 100; a follower holds the first one."""

    def leader(self, *, committed_index: int = 999, stale: tuple[int, ...] = (), **options: Any) -> Bench:
        """It leads term 2."""
        ledger = ListLedger([(1, b"x" * (KIB - 24))] * 1000, chunk_entries=100, stale_chunks=stale)
        options = {"push_chunk_behind_bytes": 300 * KIB, "max_inflight_push_bytes": 1 << 30, **options}
        return Bench.make(ledger, term_start_entry=False, committed_index=committed_index, **options).lead()

    def caught_up(self, bench: Bench, answer: PushEntryResponse | None = None) -> tuple[fx.Effect, ...]:
        """The follower says that it ends at 0, and is found equal there; then turn after turn comes."""
        at_end = pushes(bench.seen, PushType.COMPARE, "n1")[-1]
        answer = answer or reported(ResponseCode.INCONSISTENT_STATE, end_index=0)
        bench.answer(at_end, answer)
        at_zero = pushes(bench.seen, PushType.COMPARE, "n1")[-1]
        effects = bench.answer(at_zero, attrs.evolve(answer, code=ResponseCode.SUCCESS))
        return effects + self.turns(bench)

    def turns(self, bench: Bench) -> tuple[fx.Effect, ...]:
        """All turns that are asked for."""
        effects: tuple[fx.Effect, ...] = ()
        while bench.core.leading.budget.is_spent:
            effects += bench.step(ev.TurnCame())
        return effects

    def test_a_follower_far_behind_gets_chunks(self) -> None:
        """Entries up to the next chunk come one by one, then chunks, and at the end entries again."""
        found = spans(self.caught_up(self.leader()))
        chunks = [(at, at + 99, True) for at in range(100, 700, 100)]
        self.assertEqual([one for one in found if one[2]], chunks)
        self.assertEqual(found[0], (1, 99, False))
        self.assertEqual(indexes_in(found), list(range(1, 1000)))

    def test_one_chunk_a_turn(self) -> None:
        """A chunk counts by its bytes: heartbeats and votes do not wait for the next one."""
        bench = self.leader()
        bench.ledger.entries = [(1, b"x" * (20 * KIB))] * 1000
        self.caught_up(bench)
        bench = self.leader()
        bench.ledger.entries = [(1, b"x" * (20 * KIB))] * 1000
        (at_end,) = pushes(bench.seen, PushType.COMPARE, "n1")
        bench.answer(at_end, reported(ResponseCode.INCONSISTENT_STATE, end_index=99))
        effects = bench.answer(pushes(bench.seen, PushType.COMPARE, "n1")[-1], reported(end_index=99))
        self.assertEqual(spans(effects), [(100, 199, True)])
        self.assertEqual(len(of_type(effects, fx.ContinueLater)), 1)
        self.assertEqual(spans(bench.step(ev.TurnCame())), [(200, 299, True)])

    def test_uncommitted_entries_are_pushed_one_by_one(self) -> None:
        """A chunk with an entry that may not be committed is pushed entry by entry."""
        bench = self.leader(committed_index=450)
        found = spans(self.acknowledged(bench, self.caught_up(bench)))
        self.assertEqual([one[:2] for one in found if one[2]], [(100, 199), (200, 299), (300, 399)])

    def test_java_gets_no_chunks(self) -> None:
        """A Java member, which may listen where one of ours did, gets none."""
        bench = self.leader()
        self.caught_up(bench)
        bench.seen.clear()
        bench.step(ev.PeerConnected(peer_id="n1"))
        answer = attrs.evolve(reported(ResponseCode.INCONSISTENT_STATE, end_index=0), wire_version=0)
        self.assertFalse(any(one[2] for one in spans(self.caught_up(bench, answer))))

    def test_chunks_need_their_option_and_native_frames(self) -> None:
        """Neither without chunks, nor in JSON, nor a little behind."""
        for options in ({"push_chunk_bytes": 0}, {"wire": "remoting"}, {"push_chunk_behind_bytes": 1 << 20}):
            self.assertFalse(any(one[2] for one in spans(self.caught_up(self.leader(**options)))), options)

    def test_a_stale_chunk_is_pushed_entry_by_entry(self) -> None:
        """A chunk whose checksums are of other bytes is pushed entry by entry."""
        found = spans(self.caught_up(self.leader(stale=(300,))))
        chunks = [first for first, _, is_chunk in found if is_chunk]
        self.assertEqual(chunks[:2], [100, 200])
        self.assertNotIn(300, chunks)
        self.assertEqual(indexes_in(found), list(range(1, 1000)))

    def refuse(self, bench: Bench, number: int, end_index: int) -> tuple[fx.Effect, ...]:
        """The follower refuses a chunk, and is compared again."""
        appends = [(one, one.request) for one in pushes(bench.seen, PushType.APPEND, "n1")]
        chunk = [one for one, request in appends
                 if isinstance(request, PushEntryRequest) and isinstance(request.entries, EntryChunk)][number]
        bench.seen.clear()
        bench.now_ms += 100
        effects = bench.answer(chunk, reported(ResponseCode.UNSUPPORTED, end_index=end_index))
        for _ in range(100):
            if pushes(bench.seen, PushType.COMPARE, "n1"):
                break
            bench.core.leading.beats.last_quorum_ms = bench.now_ms  # type: ignore[union-attr]
            bench.tick(100)
        (compare,) = pushes(bench.seen, PushType.COMPARE, "n1")
        bench.answer(compare, reported(ResponseCode.INCONSISTENT_STATE, end_index=end_index))
        compare = pushes(bench.seen, PushType.COMPARE, "n1")[-1]
        effects += bench.answer(compare, reported(end_index=end_index)) + self.turns(bench)
        return self.acknowledged(bench, effects)

    def acknowledged(self, bench: Bench, effects: tuple[fx.Effect, ...]) -> tuple[fx.Effect, ...]:
        """The follower acknowledges all pushes, until there are no more. @return: all effects."""
        answered = 0
        while len(found := pushes(effects, PushType.APPEND, "n1")) > answered:
            effects += bench.answer(found[answered], reported()) + self.turns(bench)
            answered += 1
        return effects

    def test_appends_come_first(self) -> None:
        """While an entry waits for its commit, few chunks are on the way; none waits for ever."""
        bench = self.leader()
        propose(bench, 10)
        effects = self.caught_up(bench)
        self.assertEqual(spans(effects), [(1, 99, False), (100, 199, True)])
        effects = self.acknowledged(bench, effects)
        self.assertEqual(indexes_in(spans(effects)), list(range(1, 1001)))
        self.assertEqual(sum(one[2] for one in spans(effects)), 7)

    def test_a_refused_chunk_is_pushed_entry_by_entry(self) -> None:
        """A refused chunk is pushed entry by entry, and reported; after some, all of them are."""
        bench = self.leader()
        self.caught_up(bench)
        effects = self.refuse(bench, 1, 199)
        self.assertIn("chunk-refused", events(effects))
        found = spans(effects)
        self.assertEqual([first for first, _, is_chunk in found if is_chunk], [300, 400, 500, 600])
        self.assertEqual(indexes_in(found), list(range(200, 1000)))
        self.assertEqual(CHUNKS_REFUSED_MAX, 2)
        bench = self.leader()
        self.caught_up(bench)
        bench.core.leading.dispatchers["n1"]._chunks_refused = 1
        self.assertFalse(any(one[2] for one in spans(self.refuse(bench, 1, 199))))
        bench.step(ev.PeerConnected(peer_id="n1"))  # another program may listen there now
        self.assertTrue(any(one[2] for one in spans(self.caught_up(bench))))

    def test_a_chunk_waits_for_the_quota(self) -> None:
        """A chunk waits for the second that has room for it; one that never fits is pushed in pieces."""
        options = {"peer_push_throttle_point": 0, "peer_push_quota": 250 * KIB, "max_push_time_out_ms": 9000}
        bench = self.leader(**options)
        bench.ledger.entries *= 4
        bench.core.member.refresh_end()
        bench.core.member.committed_index = bench.ledger.ledger_end_index
        found = spans(self.caught_up(bench))
        self.assertEqual(found, [(1, 99, False), (100, 199, True)])
        bench.core.leading.beats.last_quorum_ms = bench.now_ms + 1000  # type: ignore[union-attr]
        second = (*bench.tick(1000), *self.turns(bench))
        self.assertEqual(spans(second), [(200, 299, True), (300, 399, True)])
        bench = self.leader(**{**options, "peer_push_quota": 60 * KIB})
        bench.ledger.entries *= 4
        bench.core.member.refresh_end()
        bench.core.member.committed_index = bench.ledger.ledger_end_index
        found = spans(self.caught_up(bench))
        self.assertFalse(any(one[2] for one in found))
        self.assertLessEqual(sum(last - first + 1 for first, last, _ in found), 61)


class FollowerTests(SynchronousTestCase):
    """A follower of n1 in term 3 that holds one entry, and is found equal there."""

    def setUp(self) -> None:
        self.bench = Bench.make(ListLedger.of(3), term=3).follow("n1", 3)
        self.bench.request(push(PushType.COMPARE, batch(0, 3), term=3))

    def chunk(self, commit_index: int = 9) -> PushEntryRequest:
        """Entries 1 and 2 as a chunk."""
        entries: EntryBatch = batch(1, 3, 3)
        chunk = EntryChunk(first_index=1, count=2, term=3, records=entries.records, units=bytes(64),
                           records_crc=0, units_crc=0)
        return push(PushType.APPEND, chunk, term=3, commit_index=commit_index)

    def test_a_chunk_is_taken_like_an_append(self) -> None:
        """As the APPEND that it is: written, answered, committed."""
        effects = self.bench.request(self.chunk())
        self.assertEqual(kinds(effects), ["WriteEntries", "RecordCommit", "Reply SUCCESS"])
        self.assertEqual(self.bench.core.committed_index, 2)

    def test_not_in_step(self) -> None:
        """A chunk needs a COMPARE before it, like any APPEND."""
        bench = Bench.make(ListLedger.of(3), term=3).follow("n1", 3)
        self.assertEqual(kinds(bench.request(self.chunk())), ["Reply INCONSISTENT_STATE"])

    def test_above_the_commit(self) -> None:
        """A chunk of entries that are not committed is none of our leader's."""
        self.assertEqual(kinds(self.bench.request(self.chunk(commit_index=1))), ["Reply UNSUPPORTED"])

    def test_refused_by_the_store(self) -> None:
        """The leader is asked to push the entries; this member does not count as diverged."""
        for _ in range(5):
            self.bench.request(push(PushType.COMPARE, batch(0, 3), term=3))
            self.bench.ledger.refuse = ResponseCode.INCONSISTENT_STATE
            self.assertEqual(kinds(self.bench.request(self.chunk())), ["WriteEntries", "Reply UNSUPPORTED"])
        self.assertFalse(self.bench.core.is_diverged)
        effects = self.bench.request(self.chunk())
        self.assertEqual(kinds(effects), ["Reply INCONSISTENT_STATE"], "a COMPARE comes first")

    def test_a_full_disk_says_nothing_about_chunks(self) -> None:
        """A full disk says nothing about chunks."""
        self.bench.ledger.refuse = ResponseCode.DISK_FULL
        effects = self.bench.request(self.chunk())
        self.assertEqual(kinds(effects), ["WriteEntries", "Reply INCONSISTENT_STATE"])

    def test_durable_before_it_counts(self) -> None:
        """With C{sync} flushing the answer waits for the disk."""
        self.bench = Bench.make(ListLedger.of(3), term=3, flush_disk_type="sync").follow("n1", 3)
        self.bench.request(push(PushType.COMPARE, batch(0, 3), term=3))
        effects = self.bench.request(self.chunk())
        self.assertNotIn("Reply SUCCESS", kinds(effects))
        (flush,) = of_type(effects, fx.FlushLedger)
        effects = self.bench.step(ev.EntriesFlushed(flush_id=flush.flush_id, end_index=2))
        self.assertEqual(kinds(effects), ["Reply SUCCESS"])

    def test_a_repeated_chunk_is_compared_and_answered(self) -> None:
        """A chunk that came twice is compared, and answered."""
        self.bench.request(self.chunk())
        self.assertEqual(kinds(self.bench.request(self.chunk())), ["Reply SUCCESS"])
