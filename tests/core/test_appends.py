# -*- test-case-name: tests.core.test_appends -*-
"""Proposals: refused, committed, or unknown; once each."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from dledger.core.replication.appends import PendingAppends
from dledger.core.state import effects as fx
from dledger.core.state import inputs as ev
from dledger.core.state.inputs import EntriesWritten, Proposal
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import PushType
from tests.core.helpers import (
    Bench,
    ListLedger,
    batch,
    heart_beat,
    kinds,
    make_member,
    of_type,
    propose,
    push,
    quiet,
)


def gate(**options: Any) -> PendingAppends:
    """Pending appends of leader n0 in term 3, whose ledger is empty."""
    member = make_member(ListLedger(), term=3, **options)
    member.leader_id = "n0"
    member.out.now_ms = 1_000
    return PendingAppends(member)


def proposal(token: int, *bodies: bytes) -> Proposal:
    """One caller's bodies."""
    return Proposal(token=token, bodies=bodies)


def written(appends: PendingAppends, first_index: int, *positions: int) -> None:
    """The write under way is in the file."""
    assert isinstance(appends.member.view, ListLedger)
    appends.member.view.entries.extend([(3, b"")] * len(positions))
    appends.member.refresh_end()
    appends.on_written(EntriesWritten(first_index=first_index, count=len(positions), positions=positions))


def answer(token: int, code: ResponseCode, **fields: Any) -> fx.AnswerAppend:
    """The whole answer to a proposal."""
    return fx.AnswerAppend(**{
        "token": token, "code": code, "term": 3, "count": 1, "leader_id": "n0", **fields
    })


class ProposalTests(SynchronousTestCase):
    """All proposals of a turn become one write."""

    def test_proposals_of_a_turn_share_one_write(self) -> None:
        """In order of arrival, after the end."""
        appends = gate()
        appends.propose((proposal(1, b"a"), proposal(2, b"b", b"c")), None)
        self.assertEqual(
            appends.member.out.take(), (fx.WriteBodies(first_index=0, term=3, bodies=(b"a", b"b", b"c")),)
        )

    def test_an_expected_end_must_be_the_end(self) -> None:
        """
        Taken after exactly that end, with what is in front of it in the same write; else answered with the
        end.
        """
        def expects(token: int, end_index: int) -> Proposal:
            return Proposal(token=token, bodies=(b"%d" % token,), expected_end=end_index)

        appends = gate()
        appends.propose(
            (expects(1, 0), proposal(2, b"a"), expects(3, -1), expects(4, 0), expects(5, 0)), None
        )
        self.assertEqual(appends.member.out.take(), (
            answer(1, ResponseCode.CONFLICT, end_index=-1), answer(3, ResponseCode.CONFLICT, end_index=0),
            answer(5, ResponseCode.CONFLICT, end_index=1),
            fx.WriteBodies(first_index=0, term=3, bodies=(b"a", b"4")),
        ))
        self.assertEqual(len(appends), 2)
        written(appends, 0, 0, 100)
        appends.propose((expects(6, 1),), None)
        self.assertEqual(appends.member.out.take(), (fx.WriteBodies(first_index=2, term=3, bodies=(b"6",)),))
        written(appends, 2, 200)
        appends.propose((expects(7, 9),), ResponseCode.NOT_LEADER)
        self.assertEqual(appends.member.out.take(), (answer(7, ResponseCode.NOT_LEADER),))

    def test_callers_are_answered_when_their_last_body_commits(self) -> None:
        """Each hears where its first body is, in the order of the log, when its last one is committed."""
        appends = gate()
        appends.propose((proposal(1, b"a"), proposal(2, b"b", b"c"), proposal(3, b"d")), None)
        written(appends, 0, 0, 100, 200, 300)
        appends.member.out.take()
        appends.committed(1)
        self.assertEqual(appends.member.out.take(), (
            answer(1, ResponseCode.SUCCESS, first_index=0, pos=0),
        ))
        appends.committed(9)
        self.assertEqual(appends.member.out.take(), (
            answer(2, ResponseCode.SUCCESS, first_index=1, pos=100, count=2),
            answer(3, ResponseCode.SUCCESS, first_index=3, pos=300),
        ))

    def test_a_proposal_without_a_body_is_refused(self) -> None:
        """420, and nothing is written for it."""
        appends = gate()
        appends.propose((proposal(1),), None)
        self.assertEqual(appends.member.out.take(), (
            answer(1, ResponseCode.REQUEST_WITH_EMPTY_BODYS, count=0),
        ))

    def test_an_empty_body_is_a_body(self) -> None:
        """An entry may be empty."""
        appends = gate()
        appends.propose((proposal(1, b""),), None)
        self.assertEqual(kinds(appends.member.out.take()), ["WriteBodies"])

    def test_a_refusal_is_shown_to_every_caller(self) -> None:
        """Why this member takes nothing is shown to everybody."""
        appends = gate()
        appends.propose((proposal(1, b"a"), proposal(2, b"b")), ResponseCode.LEADER_TRANSFERRING)
        self.assertEqual(appends.member.out.take(), (
            answer(1, ResponseCode.LEADER_TRANSFERRING), answer(2, ResponseCode.LEADER_TRANSFERRING),
        ))

    def test_refusal_comes_first(self) -> None:
        """A member that does not lead does not say that it is full, nor what is wrong with the request."""
        appends = gate(max_pending_requests_num=1, max_pending_bytes=1)
        appends.propose((proposal(1, b"xx"),), None)
        written(appends, 0, 0)
        appends.member.out.take()
        appends.propose((proposal(2), proposal(3, b"y")), ResponseCode.NOT_LEADER)
        self.assertEqual(
            [one.code for one in of_type(appends.member.out.take(), fx.AnswerAppend)],
            [ResponseCode.NOT_LEADER] * 2,
        )

    def test_one_write_at_a_time(self) -> None:
        """The outcome of a write comes before anything else."""
        appends = gate()
        appends.propose((proposal(1, b"a"),), None)
        appends.member.out.take()
        self.assertRaises(AssertionError, appends.propose, (proposal(2, b"b"),), None)

    def test_another_number_of_entries(self) -> None:
        """A store that wrote something else than the given entries stops the member."""
        appends = gate()
        appends.propose((proposal(1, b"a"),), None)
        self.assertRaises(AssertionError, written, appends, 0, 0, 100)

    def test_term_start_entry(self) -> None:
        """Nobody waits for an entry that nobody proposed."""
        appends = gate()
        written(appends, 0, 0)
        appends.on_write_refused(ResponseCode.DISK_FULL)
        appends.committed(0)
        self.assertEqual(appends.member.out.take(), ())


class EndTests(SynchronousTestCase):
    """How a proposal ends if it does not commit."""

    def waiting(self, **options: Any) -> PendingAppends:
        """Two proposals wait for the commit."""
        appends = gate(**options)
        appends.propose((proposal(1, b"a"), proposal(2, b"b")), None)
        written(appends, 0, 0, 100)
        appends.member.out.take()
        return appends

    def test_a_refused_write_leaves_nothing(self) -> None:
        """Nothing of it is in the log: the store's word, no index."""
        appends = gate()
        appends.propose((proposal(1, b"a"), proposal(2, b"b")), None)
        appends.member.out.take()
        appends.on_write_refused(ResponseCode.DISK_FULL)
        self.assertEqual(appends.member.out.take(), (
            answer(1, ResponseCode.DISK_FULL), answer(2, ResponseCode.DISK_FULL),
        ))
        self.assertEqual((len(appends), appends._bytes), (0, 0))

    def test_an_append_is_answered_at_its_deadline(self) -> None:
        """502 with the index that may yet commit; not before its time; and never a second answer."""
        appends = self.waiting(max_wait_ack_time_ms=500)
        appends.member.out.now_ms = 1_499
        appends.expire()
        self.assertEqual(appends.member.out.take(), ())
        appends.member.out.now_ms = 1_500
        appends.expire()
        self.assertEqual(appends.member.out.take(), (
            answer(1, ResponseCode.WAIT_QUORUM_ACK_TIMEOUT, first_index=0, pos=0),
            answer(2, ResponseCode.WAIT_QUORUM_ACK_TIMEOUT, first_index=1, pos=100),
        ))
        appends.committed(1)
        appends.fail_all(ResponseCode.TERM_CHANGED)
        self.assertEqual(appends.member.out.take(), ())

    def test_appends_are_answered_when_leadership_ends(self) -> None:
        """501 for what is written, and for what was being written."""
        appends = self.waiting()
        appends.propose((proposal(3, b"c"),), None)
        appends.member.out.take()
        appends.fail_all(ResponseCode.TERM_CHANGED)
        self.assertEqual(appends.member.out.take(), (
            answer(1, ResponseCode.TERM_CHANGED, first_index=0, pos=0),
            answer(2, ResponseCode.TERM_CHANGED, first_index=1, pos=100),
            answer(3, ResponseCode.TERM_CHANGED),
        ))
        appends.fail_all(ResponseCode.TERM_CHANGED)
        self.assertEqual(appends.member.out.take(), ())
        self.assertEqual(appends._bytes, 0)


class BoundTests(SynchronousTestCase):
    """A leader has a bound, and says so."""

    def codes(self, appends: PendingAppends) -> list[tuple[int, str]]:
        """Who was answered what."""
        return [(one.token, one.code.name) for one in of_type(appends.member.out.take(), fx.AnswerAppend)]

    def test_the_number_of_appends_is_bounded(self) -> None:
        """A bounded number of proposals waits; the next is refused, until one has ended."""
        appends = gate(max_pending_requests_num=2)
        appends.propose(tuple(proposal(token, b"x") for token in (1, 2, 3)), None)
        self.assertEqual(self.codes(appends), [(3, "LEADER_PENDING_FULL")])
        written(appends, 0, 0, 100)
        appends.propose((proposal(4, b"x"),), None)
        self.assertEqual(self.codes(appends), [(4, "LEADER_PENDING_FULL")])
        appends.committed(0)
        appends.propose((proposal(5, b"x"),), None)
        self.assertEqual(self.codes(appends), [(1, "SUCCESS")])

    def test_neighbours_count_one_by_one(self) -> None:
        """A proposal of several requests is counted as that number of appends, and gives them all back."""
        appends = gate(max_pending_requests_num=5)
        shared = Proposal(token=1, bodies=(b"x",) * 4, requests=4)
        appends.propose((shared, Proposal(token=2, bodies=(b"x",) * 2, requests=2), proposal(3, b"x")), None)
        self.assertEqual(self.codes(appends), [(2, "LEADER_PENDING_FULL")])
        self.assertEqual(len(appends), 5)
        written(appends, 0, 0, 100, 200, 300, 400)
        appends.committed(3)
        self.assertEqual(len(appends), 1)
        appends.propose((Proposal(token=4, bodies=(b"x",) * 4, requests=4),), None)
        appends.on_write_refused(ResponseCode.DISK_FULL)
        self.assertEqual(len(appends), 1)
        appends.fail_all(ResponseCode.TERM_CHANGED)
        self.assertEqual(len(appends), 0)

    def test_the_bytes_of_appends_are_bounded(self) -> None:
        """The bytes that wait are bounded; one append beyond the bound is taken when nothing else waits."""
        appends = gate(max_pending_bytes=100)
        appends.propose((proposal(1, b"x" * 500), proposal(2, b"x")), None)
        self.assertEqual(self.codes(appends), [(2, "LEADER_PENDING_FULL")])
        written(appends, 0, 0)
        appends.committed(0)
        appends.propose((proposal(3, b"x"),), None)
        self.assertEqual(self.codes(appends), [(1, "SUCCESS")])

    @settings(derandomize=True, max_examples=200)
    @given(st.lists(st.sampled_from(("propose", "write", "refuse", "commit", "late", "fail")), max_size=40))
    def test_each_token_once_whatever_happens(self, events: list[str]) -> None:
        """Every proposal is answered exactly once, and the bytes come out even."""
        appends, token, is_writing, asked = gate(max_pending_requests_num=6), 0, False, 0
        seen: list[fx.Effect] = []
        for event in [*events, "fail"]:
            end_index = appends.member.ledger_end_index
            if event == "propose" and not is_writing:
                appends.propose(tuple(proposal(token + at, b"x" * at, b"y") for at in range(4)), None)
                token += 4
                write = appends.member.out._write
                is_writing = isinstance(write, fx.WriteBodies)
                asked = len(write.bodies) if isinstance(write, fx.WriteBodies) else 0
            elif event == "write" and is_writing:
                written(appends, end_index + 1, *range(asked))
                is_writing = False
            elif event == "refuse" and is_writing:
                appends.on_write_refused(ResponseCode.DISK_FULL)
                is_writing = False
            elif event == "commit":
                appends.committed(end_index - 1)
            elif event == "late":
                appends.member.out.now_ms += 2_000
                appends.expire()
            elif event == "fail":
                appends.fail_all(ResponseCode.TERM_CHANGED)
                is_writing = False
            seen.extend(appends.member.out.take())
        self.assertEqual(sorted(one.token for one in of_type(seen, fx.AnswerAppend)), list(range(token)))
        self.assertEqual((appends._bytes, appends._by_token), (0, {}))


class LeaderTests(SynchronousTestCase):
    """From the proposal to the answer, through the core."""

    def test_dispatched_when_written(self) -> None:
        """A leader sends entries that it has written, and answers when a majority holds them."""
        bench = Bench.make(ListLedger.of(1)).lead()
        bench.match("n1")
        tokens, effects = propose(bench, 5)
        self.assertEqual(kinds(effects), ["WriteBodies", "n1<-APPEND"])
        (done,) = of_type(bench.match("n1"), fx.AnswerAppend)
        self.assertEqual(done, fx.AnswerAppend(
            token=tokens[0], code=ResponseCode.SUCCESS, term=2, count=1, first_index=2,
            pos=2048, leader_id="n0",
        ))

    def test_commit_is_recorded_before_it_is_reported(self) -> None:
        """Readers see an entry when its writer hears of it."""
        bench = Bench.make().lead()
        bench.match("n1")
        propose(bench, 5)
        self.assertEqual(kinds(bench.match("n1"))[:2], ["RecordCommit", "AnswerAppend"])

    def test_not_the_leader(self) -> None:
        """404, with the leader's name if it is known."""
        bench = Bench.make().follow("n2", 1)
        (token,), effects = propose(bench, 5)
        self.assertEqual(quiet(effects), (fx.AnswerAppend(
            token=token, code=ResponseCode.NOT_LEADER, term=1, count=1, leader_id="n2"
        ),))

    def deposed(self) -> tuple[Bench, int]:
        """A leader of term 2 with one append that waits at index 0, and that hears of a leader of term 9."""
        bench = Bench.make().lead()
        bench.match("n1")
        (token,), _ = propose(bench, 5)
        effects = bench.request(heart_beat("n2", 9))
        self.assertEqual(kinds(effects), ["PersistTermVote", "Reply SUCCESS"])
        self.assertEqual(of_type(bench.match("n1"), fx.AnswerAppend), [])
        return bench, token

    def test_deposed_and_committed(self) -> None:
        """The new leader has the entry: success, with the term in which it was written."""
        bench, token = self.deposed()
        bench.request(push(PushType.COMPARE, batch(0, bench.ledger.entries[0]), leader="n2", term=9))
        effects = bench.request(push(PushType.COMMIT, leader="n2", term=9, commit_index=0))
        self.assertEqual(of_type(effects, fx.AnswerAppend), [fx.AnswerAppend(
            token=token, code=ResponseCode.SUCCESS, term=2, count=1, first_index=0, pos=0, leader_id="n2",
        )])
        self.assertEqual(bench.core.status().pending_appends, 0)

    def test_deposed_and_cut(self) -> None:
        """The new leader has another entry there: certainly not in the log, once that one is committed."""
        bench, token = self.deposed()
        bench.request(push(PushType.TRUNCATE, batch(0, 9), leader="n2", term=9))
        effects = bench.request(push(PushType.APPEND, batch(1, 9), leader="n2", term=9))
        self.assertEqual(of_type(effects, fx.AnswerAppend), [])
        effects = bench.request(push(PushType.COMMIT, leader="n2", term=9, commit_index=0))
        self.assertEqual(of_type(effects, fx.AnswerAppend), [fx.AnswerAppend(
            token=token, code=ResponseCode.NOT_LEADER, term=2, count=1, leader_id="n2",
        )])

    def test_deposed_and_never_reported(self) -> None:
        """501 after C{max_wait_ack_time_ms}, and never a second answer."""
        bench, token = self.deposed()
        effects = bench.run(2_400)
        self.assertEqual(of_type(effects, fx.AnswerAppend), [])
        (reported,) = of_type(bench.run(200), fx.AnswerAppend)
        self.assertEqual((reported.token, reported.code, reported.term, reported.first_index),
                         (token, ResponseCode.TERM_CHANGED, 2, 0))
        self.assertEqual(bench.core.status().pending_appends, 0)

    def test_an_outcome_is_seen_after_leading_again(self) -> None:
        """It sees the outcome as a leader, too."""
        bench, token = self.deposed()
        bench.run(1_000)  # (n2 is silent)
        bench.lead()
        bench.match("n1")
        self.assertIn((token, ResponseCode.SUCCESS, 2),
                      [(one.token, one.code, one.term) for one in of_type(bench.seen, fx.AnswerAppend)])

    def test_stop_waits_for_outcomes(self) -> None:
        """But not longer than they do."""
        bench, token = self.deposed()
        self.assertEqual(kinds(bench.step(ev.StopRequested())), [])
        effects = bench.run(2_600)
        self.assertEqual(kinds(effects)[-1], "StopMember")
        self.assertEqual([one.token for one in of_type(effects, fx.AnswerAppend)], [token])
        bench, token = self.deposed()
        bench.step(ev.StopRequested())
        bench.request(push(PushType.COMPARE, batch(0, bench.ledger.entries[0]), leader="n2", term=9))
        bench.request(push(PushType.COMMIT, leader="n2", term=9, commit_index=0))
        effects = bench.tick()
        self.assertEqual(kinds(effects)[-1], "StopMember")

    def test_a_leader_goes_on_after_a_full_disk(self) -> None:
        """415, and the leader goes on: the next one is written."""
        bench = Bench.make(members=1).lead()
        bench.ledger.refuse = ResponseCode.DISK_FULL
        _, effects = propose(bench, 5)
        self.assertEqual([one.code for one in of_type(effects, fx.AnswerAppend)], [ResponseCode.DISK_FULL])
        _, effects = propose(bench, 5)
        self.assertEqual([one.code for one in of_type(effects, fx.AnswerAppend)], [ResponseCode.SUCCESS])

    def test_a_failed_store_stops_the_member(self) -> None:
        """A write that failed half-way: unknown, and the member stops."""
        bench = Bench.make(members=1).lead()
        bench.core.step(ev.AppendProposed((Proposal(token=1, bodies=(b"x",)),)), bench.now_ms)
        effects = bench.core.step(ev.StoreFailed(reason="EIO"), bench.now_ms)
        self.assertEqual(kinds(effects), ["AnswerAppend", "StopMember"])
        self.assertEqual(of_type(effects, fx.AnswerAppend)[0].code, ResponseCode.TERM_CHANGED)
