# -*- test-case-name: tests.sim.test_invariants -*-
"""Every invariant, broken by hand in a group that is otherwise sound; each check must fail."""

from __future__ import annotations

from collections.abc import Callable

import attrs
from twisted.trial.unittest import SynchronousTestCase

from dledger.core.state import effects as fx
from dledger.core.state.member_state import Role
from dledger.testing.group.checks.mirror import Mirror
from dledger.testing.group.checks.require import InvariantError
from dledger.testing.group.members.cluster import GroupOptions, SimCluster
from dledger.testing.group.members.equal_files import FileJudge
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import PushType, VoteResult
from protocols.wire.ledger.messages import (
    HeartBeatRequest,
    HeartBeatResponse,
    PushEntryRequest,
    PushEntryResponse,
    VoteRequest,
    VoteResponse,
)


class InvariantTests(SynchronousTestCase):
    """Three members, sync flushing, a leader, and three committed entries."""

    def setUp(self) -> None:
        """Let them elect and append."""
        settings = {"flush_disk_type": "sync", "term_start_entry": False}
        self.cluster = SimCluster(GroupOptions(settings={"bootstrap": True, **settings}), 1)
        self.cluster.start()
        self.cluster.run(4)
        leader = self.cluster.leader
        assert leader is not None
        self.leader = leader
        self.leader.call(lambda node: node.append((b"a", b"b", b"c")))
        self.cluster.run(2)
        self.follower = next(member for member in self.cluster.members.values() if member is not leader)
        self.state = self.follower.core.member
        self.invariants = self.cluster.invariants
        self.assertEqual(self.state.committed_index, 2)

    def broken(self, number: int, check: Callable[[], object]) -> str:
        """The sentence of a failed check, which must have this number."""
        with self.assertRaises(InvariantError) as caught:
            check()
        self.assertEqual(caught.exception.number, number, caught.exception)
        return str(caught.exception)

    def stepped(self) -> None:
        """The check after a step of the follower."""
        self.invariants.stepped(self.follower, self.state)

    def test_sound(self) -> None:
        """As it is, nothing is wrong."""
        self.stepped()

    def test_term_falls(self) -> None:
        """1: a term never falls."""
        self.state.term -= 1
        self.assertIn("fell", self.broken(1, self.stepped))

    def test_two_leaders(self) -> None:
        """1: one leader in a term."""
        self.state.role = Role.LEADER
        self.assertIn("both lead", self.broken(1, self.stepped))

    def test_two_votes(self) -> None:
        """1: one vote in a term."""
        request = VoteRequest(term=self.state.term, leader_id="n9")
        response = VoteResponse(term=self.state.term, vote_result=VoteResult.ACCEPT)
        reported = self.broken(1, lambda: self.invariants.answers(self.follower, request, response))
        self.assertIn("voted", reported)

    def test_a_vote_counts_after_its_member_is_lost(self) -> None:
        """9: for the candidate that has it, and if it counted alone."""
        others = [one for one in self.cluster.members.values() if one is not self.leader]

        def elected() -> None:
            self.invariants.seen[self.leader.member_id].led_term = -1
            self.invariants.stepped(self.leader, self.leader.core.member)

        for other in others:
            self.invariants.forget(other)
        elected()
        self.invariants._lost_votes = {(*key, "n9") for *key, _ in self.invariants._lost_votes}
        self.assertIn("by votes of", self.broken(9, elected))

    def test_an_unsure_vote_that_is_lost(self) -> None:
        """9: it counts with all others only, as before."""
        self.invariants._unsure_votes.update((one, self.state.term) for one in self.cluster.members)
        for one in self.cluster.members.values():
            self.invariants.forget(one)
        self.assertEqual(self.invariants._lost_votes, set())

    def test_commit_falls(self) -> None:
        """2: a commit index never falls."""
        self.state.committed_index = 1
        self.broken(2, self.stepped)

    def test_commit_beyond_the_end(self) -> None:
        """2: nor passes the end."""
        self.state.committed_index = 3
        self.broken(2, self.stepped)

    def test_other_bytes(self) -> None:
        """3: equal index and term are equal bytes."""
        record, before = self.invariants.records[1, 1]
        self.invariants.records[1, 1] = (record[:-1] + b"z", before)
        self.assertIn("other bytes", self.broken(3, lambda: self.invariants.started(self.follower)))

    def test_other_history(self) -> None:
        """3: and equal entries at every lower index."""
        record, _ = self.invariants.records[1, 1]
        self.invariants.records[1, 1] = (record, 0)
        self.assertIn("before", self.broken(3, lambda: self.invariants.started(self.follower)))

    def test_gap(self) -> None:
        """3: entries are written one after the other."""
        self.broken(3, lambda: self.invariants.written(self.follower, 4, 1))

    def test_other_commit(self) -> None:
        """4: what is committed at an index is so for ever."""
        self.invariants.committed[2] = 9
        self.invariants.started(self.follower)
        self.assertIn("was committed before", self.broken(4, self.stepped))

    def test_cut(self) -> None:
        """4: a committed entry is not cut."""
        self.assertIn("cut", self.broken(4, lambda: self.invariants.truncated(self.follower, 1)))

    def test_incomplete_leader(self) -> None:
        """4: a leader of a later term has every committed entry."""
        self.state.term += 1
        self.state.role = Role.LEADER
        self.invariants.mirror(self.follower.member_id).cut_to(1)
        self.assertIn("without the committed entry", self.broken(4, self.stepped))

    def test_acknowledged_but_not_committed(self) -> None:
        """4: SUCCESS is said of committed entries only, and of the right ones."""
        self.broken(4, lambda: self.invariants.acknowledged(self.leader, 3, (b"x",)))
        self.broken(4, lambda: self.invariants.acknowledged(self.leader, 1, (b"x",)))

    def test_repaired_too_early(self) -> None:
        """4: a damaged member is whole only when it holds all entries that it may have helped to commit."""
        self.invariants.seen[self.follower.member_id].repair_end_index = 2
        self.state.start_term = 1
        self.invariants.mirror(self.follower.member_id).cut_to(1)
        self.assertIn("repaired", self.broken(4, self.stepped))

    def test_commit_of_an_earlier_term(self) -> None:
        """5: a leader commits by an entry of its own term."""
        state = self.leader.core.member
        self.invariants.seen[self.leader.member_id].committed_index = -1
        state.term += 1
        self.leader.persisted_term = state.term
        self.broken(5, lambda: self.invariants.stepped(self.leader, state))

    def test_commit_without_quorum(self) -> None:
        """6: a majority holds what is committed, on stable storage."""
        for member_id in self.cluster.members:
            if member_id != self.leader.member_id:
                self.invariants.seen[member_id].mirror = Mirror()
        self.invariants.seen[self.leader.member_id].committed_index = -1
        state = self.leader.core.member
        self.broken(6, lambda: self.invariants.stepped(self.leader, state))

    def test_holders_of_what_was_committed_may_have_deleted_it(self) -> None:
        """6: a leader learns late that an entry is committed, which has expired at the others meanwhile."""
        for member_id in self.cluster.members:
            if member_id != self.leader.member_id:
                self.invariants.seen[member_id].mirror = Mirror(begin_index=100)
        self.invariants.seen[self.leader.member_id].committed_index = -1
        self.invariants.stepped(self.leader, self.leader.core.member)

    def test_repairing_members_owe(self) -> None:
        """6: but a damaged one that remembers that it held the entry counts."""
        for member_id in self.cluster.members:
            if member_id != self.leader.member_id:
                self.invariants.seen[member_id].mirror = Mirror()
        self.follower.ledger.parts.ledger.repair_end_index = 2
        self.invariants.seen[self.leader.member_id].committed_index = -1
        self.invariants.stepped(self.leader, self.leader.core.member)

    def test_acknowledged_before_durable(self) -> None:
        """6: a follower says that it holds what a power cut cannot take any more."""
        entries = self.leader.ledger.read_batch(2, max_count=1, max_bytes=1)
        request = PushEntryRequest(type=PushType.APPEND, term=1, entries=entries)
        response = PushEntryResponse(term=1)
        self.invariants.answers(self.follower, request, response)
        path = f"/store/dledger-{self.follower.member_id}/data/{0:020d}"
        end = self.invariants.mirror(self.follower.member_id).ends[2]
        self.follower.disk.open(path).pwrite(b"z", end - 1)
        self.broken(6, lambda: self.invariants.answers(self.follower, request, response))

    def test_vote_before_durable(self) -> None:
        """6: a vote is on stable storage before it is said."""
        self.follower.persisted_term = 7
        request = VoteRequest(term=7, leader_id="n0")
        response = VoteResponse(term=7, vote_result=VoteResult.ACCEPT)
        self.broken(6, lambda: self.invariants.answers(self.follower, request, response))

    def test_repairing_vote(self) -> None:
        """6: a repairing member gives no vote."""
        self.follower.ledger.parts.ledger.repair_end_index = 9
        request = VoteRequest(term=1, leader_id="n0")
        response = VoteResponse(term=1, vote_result=VoteResult.ACCEPT)
        self.broken(6, lambda: self.invariants.answers(self.follower, request, response))

    def test_speaking_in_a_term_that_is_not_persisted(self) -> None:
        """6: nothing is said in a term before it is on stable storage; a pre-vote says nothing."""
        term = self.state.term + 1
        request = HeartBeatRequest(term=term)
        self.broken(6, lambda: self.invariants.asks(self.follower, request))
        self.broken(6, lambda: self.invariants.answers(self.follower, request, HeartBeatResponse(term=term)))
        self.invariants.asks(self.follower, VoteRequest(term=term, pre_vote=True))

    def test_answered_twice(self) -> None:
        """7: an append is answered once, and for all of its bodies; so is a read."""
        driver = self.leader.driver
        answer = fx.AnswerAppend(token=999, code=ResponseCode.SUCCESS, term=1, count=1, first_index=0)
        self.broken(7, lambda: driver.answered_append(answer))
        driver.appends[5] = (b"a", b"b")
        self.broken(7, lambda: driver.answered_append(attrs.evolve(answer, token=5)))
        self.broken(7, lambda: driver.answered_read(fx.AnswerRead(token=999, code=ResponseCode.SUCCESS)))

    def test_stale_read(self) -> None:
        """4: a read shows all that was in the log before it came, and nothing that is not committed."""
        driver = self.leader.driver
        self.assertEqual(self.invariants.known_index, 2)
        answer = fx.AnswerRead(token=5, code=ResponseCode.SUCCESS, read_index=1)
        driver.reads[5] = 1
        driver.answered_read(answer)
        driver.reads[5] = 2
        self.assertIn("before it came", self.broken(4, lambda: driver.answered_read(answer)))
        driver.reads[5] = 2
        beyond = attrs.evolve(answer, read_index=3)
        self.assertIn("has not committed", self.broken(4, lambda: driver.answered_read(beyond)))

    def test_term_goes_on_unsaved(self) -> None:
        """6: a step that changes the term saves it."""
        self.state.term += 1
        self.broken(6, lambda: self.invariants.settled(self.follower, self.state))

    def test_saved_is_durable(self) -> None:
        """6: term and vote that were saved are on stable storage."""
        self.invariants.persisted(self.follower, self.state.term, self.state.voted_for)
        self.broken(6, lambda: self.invariants.persisted(self.follower, self.state.term + 1, None))

    def test_never_answered(self) -> None:
        """7: at the end of a run nothing is left unanswered."""
        self.leader.driver.appends[5] = (b"a",)
        self.broken(7, self.cluster.judge)

    def test_different_files(self) -> None:
        """3: at the end of a run the files are equal, byte for byte."""
        path = f"/store/dledger-{self.follower.member_id}/index/{0:020d}"
        self.follower.disk.flip_bit(path, 70, 1)
        self.assertIn("differ", self.broken(3, self.cluster.judge))

    def test_shown_damage(self) -> None:
        """3: a damaged record is refused, never shown; only the damaged one is."""
        self.follower.damaged.add(1)
        FileJudge(self.cluster).compare()
        path = f"/store/dledger-{self.follower.member_id}/data/{0:020d}"
        self.follower.disk.flip_bit(path, self.invariants.mirror(self.follower.member_id).ends[0] - 1, 1)
        self.follower.kill()
        self.follower.start()
        (hole,) = self.follower.ledger.holes
        self.assertEqual((hole.first_index, hole.last_index), (0, 0))

    def test_bounds(self) -> None:
        """8: tables are bounded."""
        self.leader.core.appends._requests = self.leader.config.max_pending_requests_num + 1
        self.broken(8, lambda: self.invariants.bounded(self.leader))
