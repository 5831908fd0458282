# -*- test-case-name: tests.core.test_replica -*-
"""One member as a whole: terms, roles, commitment, fsync, failure."""

from __future__ import annotations

from typing import Any

import attrs
from twisted.trial.unittest import SynchronousTestCase

from dledger.core.state import effects as fx
from dledger.core.state import inputs as ev
from dledger.values.errors import StoreError
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import WIRE_VERSION, PushType
from protocols.wire.ledger.messages import (
    AppendRequest,
    HeartBeatResponse,
    MetadataRequest,
    MetadataResponse,
    VoteRequest,
)
from protocols.wire.ledger.own.own_entries import TERM_START_CHANNEL
from tests.core.helpers import (
    Bench,
    ListLedger,
    batch,
    events,
    heart_beat,
    kinds,
    of_type,
    propose,
    push,
    pushed,
    pushes,
    quiet,
    sent,
    vote_request,
)


class TableTests(SynchronousTestCase):
    """The table of inputs."""

    def test_every_input_has_a_method(self) -> None:
        """No input is forgotten."""
        core = Bench.make().core
        self.assertEqual(set(core._on), set(ev.Input.__subclasses__()))

    def test_requests_for_others(self) -> None:
        """An APPEND that comes as a request was routed wrongly: our bug."""
        self.assertRaises(AssertionError, Bench.make().request, AppendRequest(bodies=(b"x",)))


class TimeTests(SynchronousTestCase):
    """The time of a step."""

    def test_time_never_runs_backwards(self) -> None:
        """An earlier time than the last one is not believed."""
        bench = Bench.make(ListLedger.of(1))
        for now_ms, known_ms in ((50_000, 50_000), (40_000, 50_000), (60_000, 60_000)):
            bench.core.step(ev.Ticked(), now_ms)
            self.assertEqual(bench.core.out.now_ms, known_ms)


class RecoveryTests(SynchronousTestCase):
    """What a member believes when it starts."""

    def test_a_start_believes_what_was_persisted(self) -> None:
        """Term, vote, ends and commit."""
        status = Bench.make(ListLedger.of(1, 2), term=5, voted_for="n2", committed_index=0).core.status()
        self.assertEqual(
            (status.term, status.voted_for, status.ledger_end_index, status.ledger_end_term,
             status.committed_index, status.flushed_index, status.role, status.leader_id),
            (5, "n2", 1, 2, 0, 1, "follower", None),
        )

    def test_ledger_ahead_of_the_term_file(self) -> None:
        """The ledger proves that there was such a term."""
        status = Bench.make(ListLedger.of(1, 7), term=5, voted_for="n2").core.status()
        self.assertEqual((status.term, status.voted_for), (7, None))

    def test_commit_beyond_the_ledger(self) -> None:
        """Who opens the store must not claim more than there is."""
        self.assertRaises(AssertionError, Bench.make, ListLedger.of(1), committed_index=1)


class TermGateTests(SynchronousTestCase):
    """A higher term is adopted, durably, whoever of the group reports it, before anything else."""

    def test_requests_of_members(self) -> None:
        """Votes, heartbeats, pushes; the persist is first."""
        for request in (
            vote_request("n1", 7, end_index=-1), heart_beat("n1", 7), push(PushType.COMMIT, term=7),
        ):
            bench = Bench.make(ListLedger.of(1), term=3)
            effects = quiet(bench.request(request))
            assert isinstance(effects[0], fx.PersistTermVote)
            self.assertEqual((effects[0].term, bench.term), (7, 7))

    def test_strangers_raise_nothing(self) -> None:
        """Who is not a member, or claims to be this one."""
        for stranger in ("n9", "n0"):
            for request in (
                vote_request(stranger, 7), heart_beat(stranger, 7),
                push(PushType.COMMIT, leader=stranger, term=7),
            ):
                bench = Bench.make(term=3)
                self.assertEqual(of_type(bench.request(request), fx.PersistTermVote), [])
                self.assertEqual(bench.term, 3)

    def test_answers_of_a_higher_term_do_not_count(self) -> None:
        """Even an answer that says SUCCESS counts for nothing then."""
        bench = Bench.make(ListLedger.of(1)).lead()
        (compare, _) = pushes(bench.seen, PushType.COMPARE)
        effects = bench.answer(compare, pushed(term=9, end_index=0))
        self.assertEqual(quiet(effects), (fx.PersistTermVote(term=9, voted_for=None),))
        self.assertEqual((bench.role, bench.term, bench.core.leader_id), ("follower", 9, None))

    def test_metadata_does_not_raise_the_term(self) -> None:
        """METADATA reports a term, but it binds nobody: nothing is adopted, nothing made durable."""
        bench = Bench.make(ListLedger.of(1), term=3)
        peer_id, request_id, _ = sent(bench.run_until(MetadataRequest), MetadataRequest)[0]
        effects = bench.step(ev.ResponseReceived(
            peer_id=peer_id, request_id=request_id, response=MetadataResponse(term=9, wire_version=1)
        ))
        self.assertEqual(kinds(effects), ["n1<-VoteRequest"])
        self.assertEqual(bench.term, 3)

    def test_answers_to_nothing(self) -> None:
        """An answer that matches no question is not even read."""
        bench = Bench.make(term=3)
        self.assertEqual(bench.step(ev.ResponseReceived(
            peer_id="n1", request_id=77, response=HeartBeatResponse(term=9)
        )), ())
        self.assertEqual(bench.term, 3)

    def test_leader_notifies_readers_first(self) -> None:
        """Reads end before the new term is entered; appends wait for their outcome."""
        bench = Bench.make(ListLedger.of(1)).lead()
        propose(bench, 1)
        bench.step(ev.ReadRequested((900,)))
        effects = quiet(bench.request(heart_beat("n1", 9)))
        self.assertEqual(kinds(effects), ["AnswerRead", "PersistTermVote", "Reply SUCCESS"])


class LeaderTests(SynchronousTestCase):
    """Becoming one, being one, ceasing to be one."""

    def test_a_new_leader_beats_and_compares_first(self) -> None:
        """A round of heartbeats, a COMPARE to each, and the term's first entry: dispatched when written."""
        bench = Bench.make(ListLedger.of(1))
        bench.lead()
        first = [name for name in kinds(bench.seen) if "Vote" not in name]
        self.assertEqual(first, [
            "n1<-HeartBeatRequest", "n2<-HeartBeatRequest", "n1<-COMPARE", "n2<-COMPARE", "WriteBodies",
        ])
        self.assertEqual(of_type(bench.seen, fx.WriteBodies), [
            fx.WriteBodies(first_index=1, term=2, bodies=(b"",), channels=(TERM_START_CHANNEL,))
        ])

    def test_no_entry_if_all_is_committed(self) -> None:
        """There is nothing that it would commit."""
        bench = Bench.make(ListLedger.of(1), committed_index=0).lead()
        self.assertEqual(of_type(bench.seen, fx.WriteBodies), [])

    def test_no_entry_if_switched_off(self) -> None:
        """RocketMQ does not expect one."""
        bench = Bench.make(ListLedger.of(1), term_start_entry=False).lead()
        bench.run(5_000)
        self.assertEqual(of_type(bench.seen, fx.WriteBodies), [])

    def test_first_entry_is_tried_again(self) -> None:
        """A disk that was full when the term began gets another chance, now and then, until it is there."""
        ledger = ListLedger.of(1)
        ledger.refuse = ResponseCode.DISK_FULL
        bench = Bench.make(ledger, members=1, max_wait_ack_time_ms=500).lead()
        bench.run(2_000)
        self.assertEqual(ledger.ledger_end_index, 1)
        self.assertEqual(len(of_type(bench.seen, fx.WriteBodies)), 2)
        self.assertEqual(bench.core.committed_index, 1)

    def test_entries_are_dispatched_when_they_are_there(self) -> None:
        """Not with the proposal: a view does not show what was not written."""
        bench = Bench.make(ListLedger.of(1)).lead()
        bench.match("n1")
        effects = bench.core.step(
            ev.AppendProposed((ev.Proposal(token=1, bodies=(b"x",)),)), bench.now_ms
        )
        self.assertEqual(kinds(effects), ["WriteBodies"])

    def test_first_entry_is_written_once(self) -> None:
        """As long as it does not commit, it is not written again."""
        bench = Bench.make(ListLedger.of(1), max_wait_ack_time_ms=100).lead()
        for _ in range(10):
            bench.run(200)
            bench.confirm("n1")
        self.assertEqual(len(of_type(bench.seen, fx.WriteBodies)), 1)

    def test_step_down_ends_everything(self) -> None:
        """All that wait are informed, with no leader's name; a late acknowledgement commits nothing."""
        bench = Bench.make(ListLedger.of(1), max_push_time_out_ms=60_000).lead()
        bench.match("n1")
        (token,), effects = propose(bench, 1)
        (one,) = pushes(effects, PushType.APPEND, "n1")
        bench.step(ev.ReadRequested((900,)))
        effects = bench.run(1_100)
        self.assertIn("stepping-down", events(effects))
        self.assertEqual(
            [(answer.token, answer.code, answer.leader_id) for answer in quiet(effects)
             if isinstance(answer, fx.AnswerAppend | fx.AnswerRead)],
            [(900, ResponseCode.NOT_LEADER, None)],
        )
        bench.run(2_500)
        self.assertEqual([(one.token, one.code) for one in of_type(bench.seen, fx.AnswerAppend)],
                         [(token, ResponseCode.TERM_CHANGED)])
        self.assertEqual(bench.answer(one, pushed(term=2)), ())
        self.assertEqual(bench.core.committed_index, 1)

    def test_patience_after_stepping_down(self) -> None:
        """It lets others have a try before it asks for itself."""
        bench = Bench.make(ListLedger.of(1)).lead()
        while bench.role == "leader":
            bench.tick()
        before = len(sent(bench.seen, VoteRequest))
        bench.run(400)
        self.assertEqual(len(sent(bench.seen, VoteRequest)), before)
        bench.run(600)
        self.assertGreater(len(sent(bench.seen, VoteRequest)), before)

    def test_deadlines_pass_with_the_ticks(self) -> None:
        """An append that does not commit is answered 502 in time."""
        bench = Bench.make(max_wait_ack_time_ms=300).lead()
        propose(bench, 1)
        self.assertEqual(of_type(bench.tick(299), fx.AnswerAppend), [])
        self.assertEqual([answer.code for answer in of_type(bench.tick(1), fx.AnswerAppend)],
                         [ResponseCode.WAIT_QUORUM_ACK_TIMEOUT])

    def test_another_number_of_entries(self) -> None:
        """A store that wrote something else than it was given stops the member."""
        bench = Bench.make().lead()
        bench.core.step(ev.AppendProposed((ev.Proposal(token=1, bodies=(b"x",)),)), bench.now_ms)
        bench.ledger.append_bodies((b"x", b"y"), 2)
        self.assertRaises(
            AssertionError, bench.core.step, ev.EntriesWritten(first_index=0, count=1, positions=(0,)), 0
        )

    def test_step_down_forgets_its_followers(self) -> None:
        """Acknowledgements that come late commit nothing, and nothing more is sent."""
        bench = Bench.make(ListLedger.of(1)).lead()
        asked = pushes(bench.seen, PushType.COMPARE)
        bench.run(2_000)
        self.assertEqual(bench.role, "follower")
        for one in asked:
            self.assertEqual(bench.answer(one, pushed(term=2, end_index=1)), ())
        self.assertEqual((bench.core.committed_index, bench.core.leader_id), (-1, None))

    def test_acknowledgements_of_an_earlier_leadership(self) -> None:
        """A request of the last term answered in the next: not counted."""
        bench = Bench.make(ListLedger.of(1)).lead()
        old = pushes(bench.seen, PushType.COMPARE)[0]
        bench.request(heart_beat("n2", 3))
        bench.lead()
        bench.answer(old, pushed(term=2, end_index=1))
        self.assertEqual(bench.core.status().peers[0].match_index, -1)

    def test_overdue_requests_fail(self) -> None:
        """An outcome that never comes is a failure after twice the time-out: no table grows for ever."""
        bench = Bench.make(ListLedger.of(1), rpc_time_out_ms=500).lead()
        for _ in range(100):
            bench.run(200)
            bench.confirm("n1")
        self.assertLess(bench.core.out.outstanding, 30)


class CommitRuleTests(SynchronousTestCase):
    """A leader commits by counting entries of its own term only, and only what a majority holds."""

    def holds(self, bench: Bench, peer_id: str, index: int) -> tuple[fx.Effect, ...]:
        """The follower is found to end, equal, at C{index}."""
        seen = pushes(bench.seen, PushType.COMPARE, peer_id)
        effects = bench.answer(seen[-1], pushed(
            code=ResponseCode.INCONSISTENT_STATE, term=bench.term, end_index=index
        ))
        (asked,) = pushes(effects, PushType.COMPARE, peer_id)
        return bench.answer(asked, pushed(term=bench.term, end_index=index))

    def test_entries_of_earlier_terms_are_not_counted(self) -> None:
        """Raft figure 8 (W1): all members hold index 1 of term 1, and it is not committed."""
        bench = Bench.make(ListLedger.of(1, 1), term_start_entry=False).lead()
        for peer_id in ("n1", "n2"):
            (compare,) = pushes(bench.seen, PushType.COMPARE, peer_id)
            bench.answer(compare, pushed(term=2, end_index=1))
        self.assertEqual([peer.match_index for peer in bench.core.status().peers], [1, 1])
        self.assertEqual(bench.core.committed_index, -1)

    def test_they_commit_with_the_first_of_this_term(self) -> None:
        """Then all of them at once."""
        bench = Bench.make(ListLedger.of(1, 1)).lead()
        self.assertEqual(of_type(bench.match("n1"), fx.RecordCommit), [fx.RecordCommit(committed_index=2)])

    def test_a_minority_is_not_enough(self) -> None:
        """One of four followers."""
        bench = Bench.make(members=5).lead()
        propose(bench, 1)
        bench.match("n1")
        self.assertEqual(bench.core.committed_index, -1)
        bench.match("n2")
        self.assertEqual(bench.core.committed_index, 0)

    def test_old_entries_of_a_majority_and_a_new_one_of_a_minority(self) -> None:
        """What is committed is the highest of this term that a majority holds: none here."""
        bench = Bench.make(ListLedger.of(1, 1), members=5).lead()
        self.holds(bench, "n1", 1)
        self.holds(bench, "n2", 1)
        bench.match("n3")
        self.assertEqual(bench.core.committed_index, -1)

    def test_term_is_that_of_the_election(self) -> None:
        """An index that a majority held under another leader counts anew."""
        bench = Bench.make(ListLedger.of(1)).lead()
        bench.match("n1")
        self.assertEqual(bench.core.committed_index, 1)
        propose(bench, 1)
        bench.request(heart_beat("n1", 3))
        bench.lead()
        self.assertEqual(bench.core.committed_index, 1)


class SyncTests(SynchronousTestCase):
    """With C{sync} flushing a leader counts itself when its own fsync has ended."""

    def flushed(self, bench: Bench) -> tuple[fx.Effect, ...]:
        """The fsync under way ends well."""
        flush = of_type(bench.seen, fx.FlushLedger)[-1]
        return bench.step(ev.EntriesFlushed(flush_id=flush.flush_id, end_index=flush.end_index))

    def leader(self, **options: Any) -> Bench:
        """A leader with an empty ledger."""
        return Bench.make(flush_disk_type="sync", **options).lead()

    def test_own_fsync_counts(self) -> None:
        """Acknowledged by one follower, it waits for this member's disk; the push does not."""
        bench = self.leader()
        _, effects = propose(bench, 1)
        self.assertEqual(kinds(effects), ["WriteBodies", "n1<-COMPARE", "n2<-COMPARE", "FlushLedger"])
        bench.match("n1")
        self.assertEqual(bench.core.committed_index, -1)
        self.assertEqual(kinds(self.flushed(bench))[:2], ["RecordCommit", "AnswerAppend"])

    def test_followers_are_a_majority_too(self) -> None:
        """Two of three disks are enough, whichever they are."""
        bench = self.leader()
        for peer_id in ("n1", "n2"):
            bench.core.member.peers.heard(peer_id, 1, bench.core.member.out.now_ms)
        propose(bench, 1)
        bench.match("n1")
        bench.match("n2")
        self.assertEqual(bench.core.committed_index, 0)

    def test_java_followers_do_not_flush(self) -> None:
        """Their word comes from the page cache: with one of them in the group the own fsync is waited for."""
        bench = self.leader()
        bench.core.member.peers.wire_versions["n2"] = 0
        propose(bench, 1)
        bench.match("n1")
        todo = list(pushes(bench.seen, peer_id="n2"))
        while todo:
            answer = pushed(term=bench.term, end_index=bench._end_for(todo[0]))
            todo = [*todo[1:], *pushes(
                bench.answer(todo[0], attrs.evolve(answer, wire_version=0)), peer_id="n2"
            )]
        self.assertEqual(bench.core.leading.quorum.watermark("n2"), 0)
        self.assertEqual(bench.core.committed_index, -1)
        self.assertEqual(kinds(self.flushed(bench))[:2], ["RecordCommit", "AnswerAppend"])
        self.assertEqual(bench.core.committed_index, 0)

    def test_kept_back_until_all_voters_are_heard(self) -> None:
        """One that was not heard on its connection may be Java's; then it answers, and is none."""
        bench = self.leader(members=5)
        bench.core.member.peers.connected("n4")
        propose(bench, 1)
        for peer_id in ("n1", "n2", "n3"):
            bench.match(peer_id)
        self.assertEqual((bench.core.committed_index, kinds(bench.confirm("n4"))[0]), (-1, "RecordCommit"))

    def test_a_lone_member_answers_after_its_fsync(self) -> None:
        """Nothing is answered before the fsync."""
        bench = self.leader(members=1)
        _, effects = propose(bench, 1)
        self.assertEqual(kinds(effects), ["WriteBodies", "FlushLedger"])
        self.assertEqual(kinds(self.flushed(bench)), ["RecordCommit", "AnswerAppend"])

    def test_only_up_to_what_was_there_when_it_began(self) -> None:
        """What was written meanwhile shares the next fsync."""
        bench = self.leader(members=1)
        propose(bench, 1)
        propose(bench, 1)
        self.assertEqual(kinds(self.flushed(bench)), ["RecordCommit", "AnswerAppend", "FlushLedger"])
        self.assertEqual(bench.core.committed_index, 0)

    def test_async_counts_the_page_cache(self) -> None:
        """Java's rule."""
        bench = Bench.make(members=1).lead()
        _, effects = propose(bench, 1)
        self.assertEqual(kinds(effects), ["WriteBodies", "RecordCommit", "AnswerAppend"])

    def test_async_flushes_with_the_ticks(self) -> None:
        """Nobody waits for it."""
        bench = Bench.make(members=1, flush_file_interval=10).lead()
        propose(bench, 1)
        self.assertEqual(kinds(bench.tick()), ["FlushLedger"])
        self.flushed(bench)
        self.assertEqual(bench.core.status().flushed_index, 0)

    def test_failed_fsync_is_fatal(self) -> None:
        """No answer but "unknown", and no word after it."""
        bench = self.leader()
        propose(bench, 1)
        bench.match("n1")
        effects = bench.step(ev.StoreFailed(reason="fsync: EIO"))
        self.assertEqual(kinds(effects), ["AnswerAppend", "StopMember"])
        self.assertEqual(of_type(effects, fx.AnswerAppend)[0].code, ResponseCode.TERM_CHANGED)
        self.assertEqual(bench.match("n2"), ())


class FailureTests(SynchronousTestCase):
    """A ledger that cannot be read."""

    def test_what_was_decided_before_is_still_said(self) -> None:
        """A step that breaks off leaves its effects for the next one, except the write."""
        bench = Bench.make(ListLedger.of(1)).lead()
        bench.match("n1")
        (token,), _ = propose(bench, 1)
        (append,) = [one for one in pushes(bench.seen, PushType.APPEND, "n1")][-1:]
        bench.ledger.entries.append((2, b""))
        bench.core.member.refresh_end()
        bench.ledger.broken = True
        self.assertRaises(StoreError, bench.answer, append, pushed(term=2))
        effects = bench.core.step(ev.StoreFailed(reason="gone"), bench.now_ms)
        self.assertEqual(kinds(effects), ["RecordCommit", "AnswerAppend", "StopMember"])
        self.assertEqual([(one.token, one.code) for one in of_type(effects, fx.AnswerAppend)],
                         [(token, ResponseCode.SUCCESS)])

    def test_no_write_after_a_failure(self) -> None:
        """The write of the step that broke off does not run."""
        bench = Bench.make(members=1).lead()
        bench.core.out.write(fx.WriteBodies(first_index=0, term=2, bodies=(b"x",)))
        effects = bench.core.step(ev.StoreFailed(reason="gone"), bench.now_ms)
        self.assertEqual(kinds(effects), ["StopMember"])

    def test_a_failed_ledger_stops_the_member(self) -> None:
        """The reason goes along; peers are not answered."""
        bench = Bench.make(ListLedger.of(1), term=3).follow("n1", 3)
        bench.request(push(PushType.COMPARE, batch(0, 1), term=3))
        bench.request(push(PushType.APPEND, batch(5, 3), term=3))
        effects = bench.step(ev.StoreFailed(reason="EIO"))
        self.assertEqual(quiet(effects), (fx.StopMember(reason="EIO", clean=False),))


class StatusTests(SynchronousTestCase):
    """What a member says of itself."""

    def test_damage_is_reported_at_the_start(self) -> None:
        """An operator hears that a member is not whole; a whole one says nothing of it."""
        for repair_end_index, reported in ((-1, ["started"]), (9, ["started", "repairing"])):
            bench = Bench.make(ListLedger.of(1, 1), term=3, repair_end_index=repair_end_index)
            self.assertEqual(events(bench.seen)[:2], reported)

    def test_metadata_changes_nothing(self) -> None:
        """In any role, at any time, without changing anything."""
        bench = Bench.make(ListLedger.of(1, 1), term=3, committed_index=0).follow("n1", 3)
        self.assertEqual(bench.ask(MetadataRequest(group="g", remote_id="n0", term=99)), MetadataResponse(
            group="g", leader_id="n1", term=3, wire_version=WIRE_VERSION,
            peers=bench.config.peers, role="follower", begin_index=0, end_index=1, committed_index=0,
            group_id="a" * 32, group_term=1, is_group_known=True,
        ))
        self.assertEqual(bench.term, 3)

    def test_a_leader_reports_its_peers(self) -> None:
        """A leader knows where they stand."""
        bench = Bench.make(ListLedger.of(1)).lead()
        bench.match("n1")
        bench.now_ms += 50
        first, second = bench.core.status().peers
        self.assertEqual(
            (first.peer_id, first.state, first.match_index, first.write_index, first.inflight),
            ("n1", "append", 1, 2, 0),
        )
        self.assertEqual((second.peer_id, second.state, second.match_index), ("n2", "compare", -1))
        bench = Bench.make(ListLedger.of(1)).follow("n1", 3)
        for peer in bench.core.status().peers:
            self.assertEqual((peer.state, peer.match_index, peer.write_index, peer.inflight),
                             ("unknown", -1, -1, 0))

    def test_who_was_heard(self) -> None:
        """A request says what its sender speaks."""
        bench = Bench.make().follow("n1", 1)
        bench.tick(30)
        first, second = bench.core.status().peers
        self.assertEqual((first.wire_version, first.last_heard_ms_ago), (1, 30))
        self.assertEqual((second.wire_version, second.last_heard_ms_ago), (-1, -1))

    def test_roles_are_reported(self) -> None:
        """Every change, once."""
        bench = Bench.make(ListLedger.of(1)).lead()
        bench.request(heart_beat("n1", 9))
        roles = [
            report.facts["role"] for report in of_type(bench.seen, fx.Report)
            if report.event == "role-changed"
        ]
        self.assertEqual(roles, ["candidate", "leader", "follower", "follower"])
