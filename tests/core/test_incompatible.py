# -*- test-case-name: tests.core.test_incompatible -*-
"""A leader whose pushes no quorum understands gives way, and waits until that may be otherwise."""

from __future__ import annotations

from collections.abc import Iterable

import attrs
from twisted.trial.unittest import SynchronousTestCase

from dledger.core.state import effects as fx
from dledger.core.state import inputs as ev
from protocols.wire.ledger.codes import PushType
from protocols.wire.ledger.messages import (
    HeartBeatResponse,
    LeadershipTransferRequest,
    MetadataRequest,
    VoteRequest,
)
from tests.core.helpers import (
    Bench,
    ListLedger,
    batch,
    events,
    granted,
    heart_beat,
    kinds,
    of_type,
    propose,
    push,
    pushes,
    vote_request,
)

WHY = "answer to PUSH has xIndex"


def last_push(bench: Bench, peer_id: str) -> fx.SendRequest:
    """What was pushed to C{peer_id} last."""
    return pushes(bench.seen, peer_id=peer_id)[-1]


def misunderstand(bench: Bench, *peer_ids: str) -> tuple[fx.Effect, ...]:
    """The latest push to each of these is answered in another version of the protocol."""
    effects: list[fx.Effect] = []
    for peer_id in peer_ids:
        effects += bench.fail(last_push(bench, peer_id), WHY, is_incompatible=True)
    return tuple(effects)


def leader(members: int = 3) -> Bench:
    """A leader of term 2 that has begun to push."""
    return Bench.make(ListLedger.of(1), members=members).lead()


def outcast(members: int = 3) -> Bench:
    """A member that led term 2 until n1 and n2, of five also n3, did not understand it."""
    bench = leader(members)
    misunderstand(bench, *("n1", "n2", "n3")[: members // 2 + 1])
    assert bench.role == "follower"
    return bench


def asked(effects: Iterable[fx.Effect]) -> list[fx.SendRequest]:
    """Requests of an election."""
    return [
        effect for effect in of_type(effects, fx.SendRequest)
        if isinstance(effect.request, VoteRequest | MetadataRequest)
    ]


def ask_taker(index: int, term: int) -> LeadershipTransferRequest:
    """n1, which leads, asks n0 to take over."""
    return LeadershipTransferRequest(
        group="g", remote_id="n0", local_id="n1", leader_id="n1", term=term, transfer_id="n1",
        transferee_id="n0", take_leadership_ledger_index=index,
    )


class LeaderTests(SynchronousTestCase):
    """When a leader gives way."""

    def test_no_quorum_is_left(self) -> None:
        """
        At once, with the reason; readers are informed, writers wait a while, and nobody is claimed to lead.
        """
        bench = leader()
        (token,), _ = propose(bench, 1)
        bench.step(ev.ReadRequested((77,)))
        misunderstand(bench, "n1")
        self.assertEqual(bench.role, "leader")
        effects = misunderstand(bench, "n2")
        self.assertEqual(events(effects), ["push-set-back", "stepping-down", "role-changed"])
        (said,) = [one for one in of_type(effects, fx.Report) if one.event == "stepping-down"]
        self.assertEqual(said.facts, {
            "reason": "a quorum does not understand the pushes of this member", "term": 2,
        })
        self.assertEqual((bench.role, bench.core.leader_id, bench.term), ("follower", None, 2))
        self.assertEqual([(one.token, one.code.name) for one in of_type(effects, fx.AnswerRead)],
                         [(77, "NOT_LEADER")])
        effects += bench.run(2_500)
        self.assertEqual([(one.token, one.code.name) for one in of_type(effects, fx.AnswerAppend)],
                         [(token, "TERM_CHANGED")])

    def test_its_heartbeats_are_answered(self) -> None:
        """Which is no reason to stay: such peers answer them like any other."""
        bench = leader()
        for peer_id in ("n1", "n2"):
            bench.confirm(peer_id)
        misunderstand(bench, "n2", "n1")
        self.assertEqual(bench.role, "follower")

    def test_a_quorum_is_left(self) -> None:
        """One of three is set back as by any failure, and entries are committed without it."""
        bench = leader()
        effects = misunderstand(bench, "n1")
        self.assertEqual(events(effects), ["push-set-back"])
        bench.match("n2")
        self.assertEqual((bench.role, bench.core.committed_index), ("leader", 1))
        for _ in range(100):
            bench.tick()
            bench.confirm("n1")
            bench.confirm("n2")
        self.assertGreater(len(pushes(bench.seen, PushType.COMPARE, "n1")), 1)
        misunderstand(bench, "n1")
        self.assertEqual(bench.role, "leader")

    def test_each_counts_once(self) -> None:
        """Of five it takes three; one that says it three times is one."""
        bench = leader(members=5)
        for _ in range(3):
            misunderstand(bench, "n1")
            for peer_id in ("n1", "n2", "n3"):
                bench.confirm(peer_id)
            bench.run(400)
        self.assertGreater(len(pushes(bench.seen, PushType.COMPARE, "n1")), 3)
        misunderstand(bench, "n2")
        self.assertEqual(bench.role, "leader")
        misunderstand(bench, "n3")
        self.assertEqual(bench.role, "follower")

    def test_other_failures_do_not_mark_a_peer(self) -> None:
        """Say nothing about what a peer understands."""
        bench = leader()
        for peer_id in ("n1", "n2"):
            bench.fail(last_push(bench, peer_id), WHY)
            bench.confirm(peer_id)
        self.assertEqual(bench.role, "leader")
        bench.step(ev.Ticked())
        bench.match("n1")
        self.assertEqual(bench.core.committed_index, 1)

    def test_answers_to_nothing(self) -> None:
        """An answer to no open question is not believed."""
        bench = leader()
        for peer_id, other_id in (("n1", "n2"), ("n2", "n1")):
            bench.step(ev.RequestFailed(
                peer_id=other_id, request_id=last_push(bench, peer_id).request_id, reason=WHY,
                is_incompatible=True,
            ))
            bench.step(ev.RequestFailed(
                peer_id=peer_id, request_id=10**9, reason=WHY, is_incompatible=True
            ))
        self.assertEqual(bench.role, "leader")


class OutcastTests(SynchronousTestCase):
    """What a member does as long as no quorum understands it."""

    def test_does_not_stand(self) -> None:
        """However long nobody leads."""
        bench = outcast()
        self.assertEqual(asked(bench.run(60_000)), [])
        self.assertEqual((bench.role, bench.term), ("follower", 2))

    def test_an_outcast_still_votes(self) -> None:
        """For a member whose version it does not know to be another one."""
        bench = outcast(members=5)
        effects = bench.request(vote_request("n4", 3, end_index=1, end_term=2))
        self.assertEqual(kinds(effects), ["PersistTermVote", "Reply SUCCESS"])
        self.assertEqual(bench.core.status().voted_for, "n4")

    def test_neither_votes_for_nor_follows_those(self) -> None:
        """402 to their votes and heartbeats; their terms are not adopted, until there is a new connection."""
        bench = outcast()
        for request in (vote_request("n1", 9, end_index=9, end_term=8), heart_beat("n2", 9)):
            self.assertEqual(kinds(bench.request(request)), ["Reply UNEXPECTED_MEMBER"])
        self.assertEqual((bench.term, bench.core.leader_id), (2, None))
        bench.step(ev.PeerConnected(peer_id="n2"))
        self.assertEqual(kinds(bench.request(heart_beat("n2", 9))), ["PersistTermVote", "Reply SUCCESS"])

    def test_known_by_its_own_requests(self) -> None:
        """A push in another form reports as much as an answer."""
        bench = Bench.make(term=2)
        bench.step(ev.PeerIncompatible(peer_id="n1"))
        self.assertEqual(kinds(bench.request(heart_beat("n1", 3))), ["Reply UNEXPECTED_MEMBER"])
        self.assertEqual(kinds(bench.request(heart_beat("n2", 3))), ["PersistTermVote", "Reply SUCCESS"])

    def test_known_before_the_first_entry(self) -> None:
        """A leader with an empty ledger sends a Java member a COMMIT that commits nothing, for its answer."""
        bench = Bench.make(pre_vote=False, term_start_entry=False).lead()
        bench.core.member.peers.wire_versions.update(n1=0, n2=0)
        bench.core.elector.tick()
        effects = bench.tick()
        self.assertEqual([one.peer_id for one in pushes(effects, PushType.COMMIT)], ["n1", "n2"])
        for one in pushes(effects, PushType.COMMIT):
            bench.fail(one, WHY, is_incompatible=True)
        self.assertEqual(bench.role, "follower")

    def test_an_outcast_still_follows(self) -> None:
        """And stops claiming to know a leader that has fallen silent."""
        bench = outcast(members=5).follow("n4", 3)
        bench.run(500)
        self.assertEqual(bench.core.leader_id, "n4")
        self.assertEqual(asked(bench.run(20_000)), [])
        self.assertEqual((bench.core.leader_id, bench.term), (None, 3))

    def test_is_not_handed_leadership(self) -> None:
        """It would have to give way again. It says so at once, whatever it would have to wait for."""
        bench = outcast(members=5).follow("n4", 3)
        for index in (0, 9):
            request = attrs.evolve(ask_taker(index, 3), local_id="n4", leader_id="n4", transfer_id="n4")
            self.assertEqual(kinds(bench.request(request)), ["Reply TAKE_LEADERSHIP_FAILED"])
        self.assertEqual(bench.term, 3)

    def test_a_new_connection_clears_the_mark(self) -> None:
        """
        Another program may be listening there: it becomes a candidate again, and leads if it is understood
        now.
        """
        bench = outcast()
        bench.step(ev.PeerConnected(peer_id="n2"))
        bench.lead()
        bench.match("n2")
        self.assertEqual((bench.role, bench.core.committed_index), ("leader", 2))

    def test_new_connection_to_the_same_program(self) -> None:
        """One more election, one more answer, and it gives way again; the other one is still known."""
        bench = outcast()
        bench.step(ev.PeerConnected(peer_id="n2"))
        bench.lead()
        misunderstand(bench, "n2")
        self.assertEqual(bench.role, "follower")
        self.assertEqual(asked(bench.run(60_000)), [])

    def test_a_lost_connection_does_not_clear_the_mark(self) -> None:
        """Whoever is away has not changed; neither has one whose own connection to us ended."""
        bench = outcast()
        bench.step(ev.PeerDisconnected(peer_id="n1"))
        bench.step(ev.PeerDisconnected(peer_id="n2"))
        self.assertEqual(asked(bench.run(60_000)), [])

    def test_new_connections_of_others(self) -> None:
        """Concern nobody else: of five, three are still not understood."""
        bench = leader(members=5)
        misunderstand(bench, "n1", "n2", "n3")
        bench.step(ev.PeerConnected(peer_id="n4"))
        self.assertEqual(asked(bench.run(60_000)), [])
        bench.step(ev.PeerConnected(peer_id="n3"))
        self.assertNotEqual(asked(bench.run(60_000)), [])


class LateAnswerTests(SynchronousTestCase):
    """The answers come when the member leads no more."""

    def deposed(self) -> Bench:
        """It led term 2, and the first pushes are not answered yet; now it knows no leader in term 3."""
        bench = leader()
        bench.core._pass_term_gate(3, "an answer")
        assert (bench.role, bench.term, bench.core.leader_id) == ("follower", 3, None)
        return bench

    def test_late_answers_still_mark_peers(self) -> None:
        """It does not have to lead once more to learn the same again."""
        bench = self.deposed()
        self.assertNotIn("stepping-down", events(misunderstand(bench, "n1", "n2")))
        self.assertEqual(asked(bench.run(60_000)), [])

    def test_while_a_leader_is_followed(self) -> None:
        """It stays with it."""
        bench = self.deposed().follow("n1", 3)
        self.assertNotIn("stepping-down", events(misunderstand(bench, "n1", "n2")))
        self.assertEqual(bench.core.leader_id, "n1")

    def test_while_pre_votes_are_asked_for(self) -> None:
        """Votes that come afterwards elect nobody."""
        bench = self.deposed()
        asking = asked(bench.run_until(VoteRequest, 4_000))
        self.assertEqual([one.peer_id for one in asking], ["n1", "n2"])
        misunderstand(bench, "n1", "n2")
        for one in asking:
            effects = bench.answer(one, granted(3, pre_vote=True))
            self.assertEqual(kinds(effects), [])
        self.assertEqual((bench.role, bench.term), ("follower", 3))

    def test_while_votes_are_asked_for(self) -> None:
        """A candidate gives up, and does not ask again."""
        bench = self.deposed()
        bench.answer(asked(bench.run_until(VoteRequest, 4_000))[0], granted(3, pre_vote=True))
        asking = asked(bench.seen)[-2:]
        self.assertEqual((bench.role, bench.term), ("candidate", 4))
        effects = misunderstand(bench, "n1", "n2")
        self.assertIn("stepping-down", events(effects))
        for one in asking:
            bench.answer(one, granted(4))
        self.assertEqual((bench.role, bench.term), ("follower", 4))
        self.assertEqual(asked(bench.run(60_000)), [])

    def test_while_leadership_is_waited_for(self) -> None:
        """A transfer that waits for entries fails when they come; the member does not stand."""
        bench = self.deposed().follow("n1", 3)
        bench.request(push(PushType.TRUNCATE, batch(0, 1), term=3))
        bench.request(ask_taker(1, 3))
        token = bench.last_token
        misunderstand(bench, "n1", "n2")
        self.assertEqual(bench.replies(token), [])
        bench.step(ev.PeerConnected(peer_id="n1"))
        bench.core.member.peers.incompatible.update(("n0", "n2"))
        effects = bench.request(push(PushType.APPEND, batch(1, 3), term=3))
        self.assertEqual(asked(effects), [])
        self.assertEqual([reply.code.name for reply in bench.replies(token)], ["TAKE_LEADERSHIP_FAILED"])
        self.assertEqual(bench.term, 3)

    def test_heartbeats_of_others(self) -> None:
        """Are answered as ever."""
        bench = self.deposed()
        misunderstand(bench, "n1")
        self.assertEqual(kinds(bench.request(heart_beat("n2", 3))), ["PersistTermVote", "Reply SUCCESS"])
        self.assertIsInstance(bench.replies(bench.last_token)[0], HeartBeatResponse)
