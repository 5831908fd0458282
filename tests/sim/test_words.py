# -*- test-case-name: tests.sim.test_words -*-
"""What members say, said wrongly by hand in a group that is otherwise sound; each check must fail."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import attrs
from twisted.trial.unittest import SynchronousTestCase

from dledger.core.election.transfer import GivingUp
from dledger.core.replication.dispatcher import DispatcherState
from dledger.core.state import effects as fx
from dledger.core.state import inputs as ev
from dledger.testing.group.checks.require import InvariantError
from dledger.testing.group.members.cluster import GroupOptions, SimCluster
from dledger.testing.group.watching.outcomes import SOON_TICKS, OutcomeRules, WaiterRules
from dledger.testing.group.watching.words import before_step, commits_at_once
from protocols.ledger.connection import ServerConnection
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import PushType, VoteResult
from protocols.wire.ledger.messages import (
    HeartBeatRequest,
    HeartBeatResponse,
    LeadershipTransferRequest,
    LeadershipTransferResponse,
    MembershipRequest,
    MembershipResponse,
    PushEntryRequest,
    PushEntryResponse,
    Request,
    Response,
    VoteRequest,
    VoteResponse,
)


class GroupOfThree(SynchronousTestCase):
    """Three members, a leader, and three committed entries."""

    def setUp(self) -> None:
        """Let them elect and append."""
        settings = {"flush_disk_type": "sync", "term_start_entry": False, "bootstrap": True}
        self.cluster = SimCluster(GroupOptions(settings=settings), 1)
        self.cluster.start()
        self.cluster.run(4)
        leader = self.cluster.leader
        assert leader is not None
        self.leader = leader
        self.leader.call(lambda node: node.append((b"a", b"b", b"c")))
        self.cluster.run(2)
        self.follower = next(member for member in self.cluster.members.values() if member is not leader)
        self.state = self.follower.core.member

    def broken(self, number: int, check: Callable[[], object]) -> str:
        """The sentence of a failed check, which must have this number."""
        with self.assertRaises(InvariantError) as caught:
            check()
        self.assertEqual(caught.exception.number, number, caught.exception)
        return str(caught.exception)


class MessageTests(GroupOfThree):
    """Requests, and answers to them."""

    def asks(self, request: Request, *, is_leader: bool = True) -> None:
        """The leader, or a follower, sends this to another member."""
        member = self.leader if is_leader else self.follower
        other = next(one for one in self.cluster.members if one != member.member_id)
        state = member.core.member
        whole = attrs.evolve(request, remote_id=other, leader_id=request.leader_id or state.self_id)
        self.cluster.world.words.asks(member, before_step(state), other, whole)

    def answers(self, request: Request, response: Response) -> None:
        """The follower answers."""
        self.cluster.world.words.answers(
            self.follower, before_step(self.state), request, response, is_at_once=True
        )

    def push(self, **fields: object) -> PushEntryRequest:
        """A push of the last entry."""
        entries = self.leader.ledger.read_batch(2, max_count=1, max_bytes=1)
        given = {"term": self.state.term, "commit_index": 2, "entries": entries, **fields}
        return PushEntryRequest(**given)  # type: ignore[arg-type]

    def test_pushes_have_what_the_leader_has(self) -> None:
        """Its term, its commit index, its entries at their places, and its own name."""
        self.asks(self.push())
        self.assertIn("commit index", self.broken(18, lambda: self.asks(self.push(commit_index=1))))
        self.assertIn("term", self.broken(18, lambda: self.asks(self.push(term=9))))
        self.assertIn("leader", self.broken(18, lambda: self.asks(self.push(leader_id="n9"))))
        entries = self.push().entries
        assert entries is not None
        entries = attrs.evolve(entries, first_index=1)
        self.assertIn("first entry", self.broken(18, lambda: self.asks(self.push(entries=entries))))

    def test_candidates_name_their_own_end(self) -> None:
        """A candidate that claims another end of its log."""
        term = self.state.term
        request = VoteRequest(term=term + 1, ledger_end_index=2, ledger_end_term=term, pre_vote=True)
        self.asks(request, is_leader=False)
        shorter = attrs.evolve(request, ledger_end_index=1)
        self.assertIn("end", self.broken(18, lambda: self.asks(shorter, is_leader=False)))

    def test_heartbeats_have_the_interval_of_the_leader(self) -> None:
        """Another interval than that of its options."""
        request = HeartBeatRequest(term=self.state.term, heart_beat_interval_ms=1)
        self.assertIn("interval", self.broken(18, lambda: self.asks(request)))

    def test_voters_have_their_reasons(self) -> None:
        """A vote for a shorter log, and refusals for reasons that there are not."""
        term = self.state.term
        request = VoteRequest(
            term=term + 1, leader_id=self.leader.member_id, pre_vote=True, ledger_end_index=1,
            ledger_end_term=term,
        )
        for result, asked in (
            (VoteResult.ACCEPT, request),
            (VoteResult.REJECT_SMALL_LEDGER_END_INDEX, attrs.evolve(request, ledger_end_index=2)),
            (VoteResult.REJECT_EXPIRED_LEDGER_TERM, request), (VoteResult.REJECT_EXPIRED_VOTE_TERM, request),
            (VoteResult.REJECT_UNKNOWN_LEADER, request),
        ):
            response = VoteResponse(term=term, vote_result=result, pre_vote=True)
            reported = self.broken(18, partial(self.answers, asked, response))
            self.assertIn(result.name, reported)
        right = VoteResponse(vote_result=VoteResult.REJECT_SMALL_LEDGER_END_INDEX, pre_vote=True)
        self.answers(request, right)

    def test_followers_know_what_they_acknowledge(self) -> None:
        """Another end than the log's; a commit that was not learnt; an entry that it has, and denies."""
        sound = PushEntryResponse(term=self.state.term, begin_index=0, end_index=2)
        self.answers(self.push(), sound)
        shorter = attrs.evolve(sound, end_index=1)
        self.assertIn("end 1", self.broken(18, lambda: self.answers(self.push(), shorter)))
        self.state.committed_index = 1
        self.assertIn("commit of 2", self.broken(18, lambda: self.answers(self.push(), sound)))
        refused = attrs.evolve(sound, code=ResponseCode.INCONSISTENT_STATE)
        compare = self.push(type=PushType.COMPARE)
        self.assertIn("to have no 2", self.broken(18, lambda: self.answers(compare, refused)))

    def test_followers_name_whom_they_follow(self) -> None:
        """SUCCESS to another one, and reasons to refuse that there are not."""
        for code in (ResponseCode.SUCCESS, ResponseCode.EXPIRED_TERM, ResponseCode.INCONSISTENT_LEADER):
            leader_id = "n9" if code is ResponseCode.SUCCESS else self.leader.member_id
            request = HeartBeatRequest(term=self.state.term, leader_id=leader_id)
            response = HeartBeatResponse(term=self.state.term, code=code)
            self.assertIn(code.name, self.broken(18, partial(self.answers, request, response)))

    def test_facts_of_the_members_are_so(self) -> None:
        """METADATA with another role; a change of members that is nowhere; a hand-over to nobody."""
        facts = self.follower.core.metadata(None)  # type: ignore[arg-type]
        self.answers(Request(), facts)
        wrong = attrs.evolve(facts, role="king")
        self.assertIn("role", self.broken(18, lambda: self.answers(Request(), wrong)))
        change = MembershipResponse(code=ResponseCode.SUCCESS, index=2, voters={"n0": ""})
        self.assertIn("change at 2", self.broken(18, lambda: self.answers(MembershipRequest(), change)))
        order = LeadershipTransferRequest(transferee_id=self.follower.member_id, term=self.state.term)
        taken = LeadershipTransferResponse(code=ResponseCode.SUCCESS, term=9)
        self.assertIn("taken", self.broken(18, lambda: self.answers(order, taken)))

    def test_the_core_goes_by_the_end_of_the_log(self) -> None:
        """It missed that the log grew."""
        self.cluster.world.words.sees_its_end(self.follower)
        self.state.ledger_end_index = 1
        self.broken(18, lambda: self.cluster.world.words.sees_its_end(self.follower))

    def test_a_leader_leaves_to_one_that_follows(self) -> None:
        """It hands over, unasked, to a member whose log it still compares."""
        core, words = self.leader.core, self.leader.world.words
        core.transfer.giving = GivingUp(self.follower.member_id, core.member.term, 0, None, None)
        report = fx.Report(event="transfer-started")
        words.reports(self.leader, report)
        core.leading.dispatchers[self.follower.member_id].state = DispatcherState.COMPARE
        self.assertIn("hands over", self.broken(18, lambda: words.reports(self.leader, report)))

    def test_a_leader_commits_what_a_majority_has(self) -> None:
        """It knows that all have the last entry, and has not committed it."""
        core, mirror = self.leader.core, self.cluster.invariants.mirror(self.leader.member_id)
        commits_at_once(core, mirror, "n")
        core.member.committed_index = 1
        self.assertIn("a majority holds 2", self.broken(18, lambda: commits_at_once(core, mirror, "n")))


class OutcomeTests(GroupOfThree):
    """What a leader says of appends and reads."""

    def setUp(self) -> None:
        """The second of three bodies came alone."""
        super().setUp()
        state = self.leader.core.member
        self.rules = OutcomeRules(self.leader, self.cluster.invariants)
        self.rules.before = before_step(state)._replace(committed_index=0)
        pos = self.leader.ledger.position_of(1)
        self.answer = fx.AnswerAppend(token=5, code=ResponseCode.SUCCESS, term=state.term, count=1,
                                      first_index=1, pos=pos, leader_id=state.self_id)

    def appended(self, **fields: object) -> Callable[[], None]:
        """The append is answered with these fields instead of the right ones."""
        self.rules.proposed([ev.Proposal(token=5, bodies=(b"b",))])
        answer = attrs.evolve(self.answer, **fields)  # type: ignore[arg-type]
        return lambda: self.rules.appended(answer, is_stopping=False)

    def test_an_append_is_where_its_answer_says(self) -> None:
        """Another position, another term; or its answer comes later than its commit."""
        self.appended()()
        self.assertIn("position", self.broken(19, self.appended(pos=0)))
        self.assertIn("position", self.broken(19, self.appended(is_repeated=True, term=9)))
        self.rules.before = self.rules.before._replace(committed_index=1)
        self.assertIn("committed before", self.broken(19, self.appended()))

    def test_refusals_of_appends_have_reasons(self) -> None:
        """A time-out at once; the end of a leadership that goes on; a conflict with nothing."""
        for code in (
            ResponseCode.WAIT_QUORUM_ACK_TIMEOUT, ResponseCode.TERM_CHANGED, ResponseCode.NOT_LEADER,
            ResponseCode.CONFLICT,
        ):
            self.assertIn(code.name, self.broken(19, self.appended(code=code)))
        self.assertIn("leader is of", self.broken(19, self.appended(leader_id="n9")))

    def test_who_hands_over_takes_no_append(self) -> None:
        """An append that came while another member was to lead, and was taken all the same."""
        core = self.leader.core
        core.transfer.giving = GivingUp("n9", core.member.term, 0, None, None, ask_id=4)
        self.assertIn("handing over", self.broken(19, self.appended()))

    def test_reads_are_refused_for_a_reason(self) -> None:
        """A leader that says it is none, before a deadline; one that is ready, and denies it."""
        for code in (ResponseCode.NOT_LEADER, ResponseCode.LEADER_NOT_READY):
            self.rules.requested([6])
            answer = fx.AnswerRead(token=6, code=code, leader_id=self.leader.member_id)
            reported = self.broken(19, partial(self.rules.read, answer, is_stopping=False))
            self.assertIn(code.name, reported)

    def test_nothing_waits_for_ever(self) -> None:
        """A read that was not answered for many ticks; that the process stood still does not count."""
        self.rules.now_ms = 1000
        self.rules.ticks()
        self.rules.requested([6])
        self.rules.now_ms += 60_000
        self.rules.ticks()
        self.rules.ticks()

        def tick_on() -> None:
            for _ in range(60):
                self.rules.now_ms += self.leader.config.tick_ms
                self.rules.ticks()

        self.assertIn("has not answered 6", self.broken(19, tick_on))


@attrs.define
class _Waiting:
    """Readers that wait for an index."""

    index: int = 5
    waiters: int = 1
    waits_of: dict[ServerConnection, int] = attrs.Factory(dict)
    parked: dict[ServerConnection, object] = attrs.Factory(dict)

    def slowest_index(self) -> int:
        """See L{Reads.slowest_index}."""
        return self.index


class WaiterTests(SynchronousTestCase):
    """Readers that wait at a member."""

    def test_readers_hear_of_a_commit_soon(self) -> None:
        """One that waits for what is known to be committed for many ticks."""
        rules, waiting = WaiterRules(), _Waiting()
        for _ in range(SOON_TICKS):
            rules.look("n", waiting, 4)
        for _ in range(SOON_TICKS):
            rules.look("n", waiting, 5)
        with self.assertRaises(InvariantError):
            rules.look("n", waiting, 5)

    def test_counts_of_connections_fit(self) -> None:
        """More are counted than wait."""
        waiting = _Waiting()
        waiting.waits_of[object()] = 2  # type: ignore[index]
        with self.assertRaises(InvariantError):
            WaiterRules().look("n", waiting, 0)
