# -*- test-case-name: tests.core.test_transfer -*-
"""Handing leadership over, from both sides."""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from dledger.core.election.transfer import FAILED_TRANSFER_PAUSE_MS, TRANSFER_PAUSE_MS
from dledger.core.state import effects as fx
from dledger.core.state import inputs as ev
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import PushType
from protocols.wire.ledger.messages import (
    LeadershipTransferRequest,
    LeadershipTransferResponse,
    VoteRequest,
)
from tests.core.helpers import (
    Bench,
    ListLedger,
    batch,
    granted,
    heart_beat,
    kinds,
    of_type,
    propose,
    push,
    quiet,
    sent,
)
from tests.core.proving import proved


def leader(*matched: str, **options: Any) -> Bench:
    """A leader of term 2 whose followers C{matched} hold all of its ledger."""
    bench = Bench.make(ListLedger.of(1), **options).lead()
    for peer_id in matched:
        bench.match(peer_id)
        bench.confirm(peer_id)
    return bench


def ask_leader(transferee: str | None = "n1", term: int = 2) -> LeadershipTransferRequest:
    """A client asks n0 to hand over."""
    return LeadershipTransferRequest(
        group="g", remote_id="n0", term=term, transfer_id="n0", transferee_id=transferee
    )


def ask_taker(index: int, *, leader: str = "n1", term: int = 3) -> LeadershipTransferRequest:
    """The leader asks n0 to take over."""
    return LeadershipTransferRequest(
        group="g", remote_id="n0", local_id=leader, leader_id=leader, term=term, transfer_id=leader,
        transferee_id="n0", take_leadership_ledger_index=index,
    )


def asks(effects: tuple[fx.Effect, ...]) -> list[tuple[str, int]]:
    """Who was asked to take over, and which index it must hold."""
    return [
        (peer_id, request.take_leadership_ledger_index)
        for peer_id, _, request in sent(effects, LeadershipTransferRequest)
        if request.transferee_id == peer_id
    ]


def reported(effects: tuple[fx.Effect, ...]) -> list[tuple[str, str | None]]:
    """The members that know who takes over."""
    return [
        (peer_id, request.transferee_id)
        for peer_id, _, request in sent(effects, LeadershipTransferRequest)
        if request.transferee_id != peer_id
    ]


def codes(bench: Bench, token: int) -> list[str]:
    """What was answered to a token so far."""
    return [response.code.name for response in bench.replies(token)]


def taken(bench: Bench, code: ResponseCode, term: int) -> tuple[fx.Effect, ...]:
    """The taker answers."""
    peer_id, request_id, _ = sent(bench.seen, LeadershipTransferRequest)[-1]
    return bench.step(ev.ResponseReceived(
        peer_id=peer_id, request_id=request_id,
        response=LeadershipTransferResponse(group="g", code=code, term=term, wire_version=1),
    ))


class RefusalTests(SynchronousTestCase):
    """When a leader does not begin."""

    def test_refusals_come_in_the_order_of_java(self) -> None:
        """In Java's order, the answer at once and nothing else."""
        for request, code in (
            (ask_leader("n9"), ResponseCode.UNKNOWN_MEMBER),
            (ask_leader("n0"), ResponseCode.UNKNOWN_MEMBER),
            (ask_leader(None), ResponseCode.UNKNOWN_MEMBER),
            (ask_leader(term=1), ResponseCode.INCONSISTENT_TERM),
            (ask_leader(term=3), ResponseCode.INCONSISTENT_TERM),
        ):
            bench = leader("n1", "n2")
            self.assertEqual(quiet(bench.request(request)), (fx.Reply(
                token=bench.last_token,
                response=LeadershipTransferResponse(
                    code=code, group="g", remote_id="n0", leader_id="n0", term=2, wire_version=1
                ),
            ),))

    def test_not_the_leader(self) -> None:
        """404 and who is."""
        answer = Bench.make(term=2).follow("n1", 2).ask(ask_leader())
        self.assertEqual((answer.code, answer.leader_id), (ResponseCode.NOT_LEADER, "n1"))

    def test_too_far_behind(self) -> None:
        """417: it would take too long."""
        bench = leader("n2", max_leadership_transfer_wait_index=2)
        self.assertEqual(kinds(bench.request(ask_leader())), ["Reply FALL_BEHIND_TOO_MUCH"])

    def test_one_at_a_time(self) -> None:
        """506 for the second."""
        bench = leader("n2")
        bench.request(ask_leader())
        self.assertEqual(kinds(bench.request(ask_leader("n2"))), ["Reply LEADER_TRANSFERRING"])

    def test_for_somebody_else(self) -> None:
        """411: neither the giver nor the taker."""
        request = LeadershipTransferRequest(group="g", term=2, transfer_id="n1", transferee_id="n2")
        self.assertEqual(kinds(leader().request(request)), ["Reply UNEXPECTED_ARGUMENT"])


    def test_not_to_a_silent_member(self) -> None:
        """302: no append would be taken until the deadline."""
        bench = leader("n1", "n2")
        bench.now_ms += 900
        bench.confirm("n2")
        bench.now_ms += 100
        self.assertEqual(kinds(bench.request(ask_leader())), ["Reply NETWORK_ERROR"])

    def test_again_and_again(self) -> None:
        """A leader that took over by a transfer keeps its place for a while, whatever clients ask for."""
        bench = Bench.make(ListLedger.of(1), term=3).follow("n1", 3)
        bench.request(push(PushType.COMPARE, batch(0, 1), term=3))
        bench.request(ask_taker(0))
        peer_id, request_id, _ = sent(bench.seen, VoteRequest)[0]
        bench.step(ev.ResponseReceived(peer_id=peer_id, request_id=request_id, response=granted(4)))
        bench.match("n1")
        for at_ms, code in ((0, "LEADER_TRANSFERRING"), (TRANSFER_PAUSE_MS - 1, "LEADER_TRANSFERRING")):
            bench.now_ms += at_ms
            self.assertEqual(kinds(bench.request(ask_leader(term=4))), [f"Reply {code}"])
        bench.now_ms += 1
        bench.core.member.peers.last_heard_ms["n1"] = bench.now_ms
        self.assertEqual(asks(bench.request(ask_leader(term=4))), [("n1", 1)])

    def test_orderly_stop_is_not_limited(self) -> None:
        """Its operator wants it to go."""
        bench = leader("n1", "n2")
        bench.core.transfer._pause_until_ms = bench.now_ms + 9_999
        self.assertEqual(len(asks(bench.step(ev.StopRequested()))), 1)


class GivingTests(SynchronousTestCase):
    """A leader hands over."""

    def test_asks_at_once_who_holds_all(self) -> None:
        """With the index that it must hold."""
        bench = leader("n1", "n2")
        effects = bench.request(ask_leader())
        self.assertEqual((asks(effects), reported(effects)), ([("n1", 1)], [("n2", "n1")]))
        self.assertEqual(quiet(effects)[1:], (fx.SendRequest(
            peer_id="n1", request_id=sent(bench.seen, LeadershipTransferRequest)[-1][1],
            request=LeadershipTransferRequest(
                group="g", remote_id="n1", local_id="n0", leader_id="n0", term=2, wire_version=1,
                transfer_id="n0", transferee_id="n1", take_leadership_ledger_index=1,
            ),
        ),))

    def test_without_the_term(self) -> None:
        """A client need not know it."""
        self.assertEqual(asks(leader("n1", "n2").request(ask_leader(term=-1))), [("n1", 1)])

    def test_waits_until_the_taker_holds_all(self) -> None:
        """And asks then, once."""
        bench = leader("n2")
        self.assertEqual(asks(bench.request(ask_leader())), [])
        self.assertEqual(asks(bench.match("n1")), [("n1", 1)])
        bench.core.transfer.advance(bench.core.leading.dispatchers)
        self.assertEqual(asks(bench.core.step(ev.Ticked(), bench.now_ms)), [])

    def test_takes_no_appends_meanwhile(self) -> None:
        """506, so that the taker can catch up."""
        bench = leader("n1", "n2")
        bench.request(ask_leader())
        _, effects = propose(bench, 1)
        self.assertEqual([one.code for one in of_type(effects, fx.AnswerAppend)],
                         [ResponseCode.LEADER_TRANSFERRING])

    def test_a_transfer_adopts_the_term_of_the_taker(self) -> None:
        """The taker's new term is adopted, durably, before its answer is passed on."""
        bench = leader("n1", "n2")
        bench.request(ask_leader())
        token = bench.last_token
        effects = taken(bench, ResponseCode.SUCCESS, 3)
        self.assertEqual(quiet(effects), (
            fx.PersistTermVote(term=3, voted_for=None),
            fx.Reply(token=token, response=LeadershipTransferResponse(
                code=ResponseCode.SUCCESS, group="g", remote_id="n0", term=3, wire_version=1
            )),
        ))
        self.assertEqual(bench.role, "follower")

    def test_the_takers_vote_comes_first(self) -> None:
        """It asks for votes before it answers: the answer is still passed on."""
        bench = leader("n1", "n2")
        bench.request(ask_leader())
        token = bench.last_token
        bench.request(heart_beat("n1", 3))
        self.assertEqual((bench.role, codes(bench, token)), ("follower", []))
        taken(bench, ResponseCode.SUCCESS, 3)
        self.assertEqual(codes(bench, token), ["SUCCESS"])

    def test_refused_by_the_taker(self) -> None:
        """Passed on, and the leader goes on leading."""
        bench = leader("n1", "n2")
        bench.request(ask_leader())
        token = bench.last_token
        taken(bench, ResponseCode.TAKE_LEADERSHIP_FAILED, 2)
        self.assertEqual(codes(bench, token), ["TAKE_LEADERSHIP_FAILED"])
        _, effects = propose(bench, 1)
        self.assertEqual(kinds(effects)[0], "WriteBodies")

    def test_taker_cannot_be_reached(self) -> None:
        """302, and the leader goes on."""
        bench = leader("n1", "n2")
        bench.request(ask_leader())
        token = bench.last_token
        peer_id, request_id, _ = sent(bench.seen, LeadershipTransferRequest)[-1]
        bench.step(ev.RequestFailed(peer_id=peer_id, request_id=request_id, reason="gone"))
        self.assertEqual(codes(bench, token), ["NETWORK_ERROR"])
        self.assertIs(bench.core.status().transferee_id, None)

    def test_a_transfer_that_hangs_ends(self) -> None:
        """A transfer that hangs ends, answered, and appends go on; a late answer is nobody's."""
        for matched in (("n1", "n2"), ("n2",)):
            bench = leader(*matched, leadership_transfer_wait_timeout=200)
            bench.request(ask_leader())
            token = bench.last_token
            bench.tick(399)
            self.assertEqual(codes(bench, token), [])
            bench.tick(1)
            self.assertEqual(codes(bench, token), ["TAKE_LEADERSHIP_FAILED"], matched)
            self.assertEqual(bench.replies(token)[0].term, 2)
            self.assertIs(bench.core.status().transferee_id, None)
            if asks(tuple(bench.seen)):
                taken(bench, ResponseCode.TAKE_LEADERSHIP_FAILED, 2)
            self.assertEqual(codes(bench, token), ["TAKE_LEADERSHIP_FAILED"], matched)

    def test_not_with_an_older_leadership(self) -> None:
        """A transfer that began in an earlier term asks nobody in a later one, and refuses no append."""
        bench = leader("n2")
        bench.request(ask_leader())
        bench.request(heart_beat("n1", 3))
        bench.lead()
        self.assertEqual(bench.term, 4)
        self.assertIs(bench.core.status().transferee_id, None)
        self.assertEqual(asks(bench.match("n1")), [])

    def test_answers_to_an_earlier_attempt(self) -> None:
        """They end nothing of the one under way, and a failure neither."""
        for is_failure in (False, True):
            bench = leader("n1", "n2", leadership_transfer_wait_timeout=200)
            bench.request(ask_leader("n1"))
            peer_id, request_id, _ = sent(bench.seen, LeadershipTransferRequest)[-1]
            for _ in range(2):
                bench.tick(200)
            bench.now_ms += FAILED_TRANSFER_PAUSE_MS - 1
            self.assertEqual(kinds(bench.request(ask_leader("n2"))), ["Reply LEADER_TRANSFERRING"])
            bench.now_ms += 1
            bench.core.member.peers.last_heard_ms["n2"] = bench.now_ms
            bench.request(ask_leader("n2"))
            token = bench.last_token
            bench.step(
                ev.RequestFailed(peer_id=peer_id, request_id=request_id, reason="gone") if is_failure
                else ev.ResponseReceived(peer_id=peer_id, request_id=request_id, response=(
                    LeadershipTransferResponse(code=ResponseCode.TAKE_LEADERSHIP_FAILED, term=2)
                ))
            )
            self.assertEqual((codes(bench, token), bench.core.status().transferee_id), ([], "n2"))

    def test_a_taker_that_gave_back_is_no_failure(self) -> None:
        """The taker led, and gave leadership back before it answered: the long pause is for failures."""
        for code, pause_ms in (
            (ResponseCode.EXPIRED_TERM, TRANSFER_PAUSE_MS),
            (ResponseCode.TAKE_LEADERSHIP_FAILED, FAILED_TRANSFER_PAUSE_MS),
        ):
            bench = leader("n1", "n2")
            bench.request(ask_leader())
            peer_id, request_id, _ = sent(bench.seen, LeadershipTransferRequest)[-1]
            bench.request(heart_beat("n1", 3))
            bench.lead()
            bench.step(ev.ResponseReceived(peer_id=peer_id, request_id=request_id, response=(
                LeadershipTransferResponse(group="g", code=code, term=4)
            )))
            for before_ms, answer in ((pause_ms - 1, ["Reply LEADER_TRANSFERRING"]), (1, [])):
                bench.now_ms += before_ms
                bench.core.member.peers.last_heard_ms["n1"] = bench.now_ms
                effects = bench.request(ask_leader(term=4))
                self.assertEqual([one for one in kinds(effects) if one.startswith("Reply")], answer, code)

    def test_a_transfer_goes_on_without_its_client(self) -> None:
        """The transfer goes on without anybody to report."""
        bench = leader("n1", "n2")
        bench.request(ask_leader())
        token = bench.last_token
        bench.step(ev.RequestAbandoned(token=token))
        taken(bench, ResponseCode.SUCCESS, 3)
        self.assertEqual(codes(bench, token), [])


class PreferredTests(SynchronousTestCase):
    """A leader gives way to a preferred one that has caught up and is alive."""

    def test_a_leader_hands_over_to_the_preferred(self) -> None:
        """By itself, within a second or so."""
        bench = leader("n1", "n2", preferred_leader_ids=("n2",))
        self.assertEqual(asks(bench.run(1_000)), [("n2", 1)])

    def test_the_closest_preferred_member_is_taken(self) -> None:
        """Of several."""
        bench = leader("n1", "n2", preferred_leader_ids=("n1", "n2"))
        propose(bench, 1)
        bench.match("n2")
        bench.core.transfer.next_check_ms = 0
        self.assertEqual(asks(bench.tick()), [("n2", 2)])

    def test_not_to_the_silent_the_far_or_the_unknown(self) -> None:
        """Who has not been heard of, is far behind, or not compared yet stays a follower."""
        bench = leader("n1", preferred_leader_ids=("n2",), max_heart_beat_leak=50)
        self.assertEqual(asks(bench.run(2_000)), [])
        for entries, chosen in ((ListLedger.of(1), None), (ListLedger.of(), "n2")):
            bench = Bench.make(
                entries, preferred_leader_ids=("n2",), max_heart_beat_leak=50, term_start_entry=False
            ).lead()
            for peer_id in ("n1", "n2"):
                bench.confirm(peer_id)
            bench.core.transfer.next_check_ms = 0
            bench.tick()
            self.assertEqual(bench.core.status().transferee_id, chosen)
        bench = leader("n1", "n2", preferred_leader_ids=("n2",), max_heart_beat_leak=2)
        bench.core.transfer.next_check_ms = bench.now_ms + 900
        for _ in range(10):
            bench.run(200)
            bench.confirm("n1")
        self.assertEqual(asks(tuple(bench.seen)), [])
        bench = leader("n1", "n2", preferred_leader_ids=("n2",), max_leadership_transfer_wait_index=2)
        propose(bench, 1, 1)
        bench.core.transfer.next_check_ms = 0
        bench.tick()
        self.assertIs(bench.core.status().transferee_id, None)

    def test_not_while_another_transfer_is_under_way(self) -> None:
        """What a client asked for goes first, and its answer is not lost."""
        bench = leader("n1", "n2", preferred_leader_ids=("n2",))
        bench.request(ask_leader("n1"))
        token = bench.last_token
        bench.core.transfer.next_check_ms = 0
        self.assertEqual(asks(bench.tick()), [])
        taken(bench, ResponseCode.SUCCESS, 3)
        self.assertEqual(codes(bench, token), ["SUCCESS"])

    def test_not_from_a_preferred_one(self) -> None:
        """It stays where it is."""
        bench = leader("n1", "n2", preferred_leader_ids=("n0", "n2"))
        self.assertEqual(asks(bench.run(2_000)), [])


class TakingTests(SynchronousTestCase):
    """A follower takes over."""

    def follower(self, **options: Any) -> Bench:
        """A follower of n1 in term 3 that holds entry 0 and is in step."""
        bench = Bench.make(ListLedger.of(1), term=3, **options).follow("n1", 3)
        bench.request(push(PushType.COMPARE, batch(0, 1), term=3))
        return bench

    def votes(self, bench: Bench) -> list[tuple[str, int, VoteRequest]]:
        """The votes that it asked for."""
        return sent(bench.seen, VoteRequest)

    def test_campaigns_at_once(self) -> None:
        """No patience, no pre-vote; term and own vote durable before votes are asked for."""
        bench = self.follower()
        effects = bench.request(ask_taker(0))
        self.assertEqual(kinds(effects), ["PersistTermVote", "n1<-VoteRequest", "n2<-VoteRequest"])
        self.assertEqual(of_type(effects, fx.PersistTermVote), [fx.PersistTermVote(term=4, voted_for="n0")])
        self.assertTrue(all(vote.transfer and not vote.pre_vote for _, _, vote in self.votes(bench)))

    def test_success_is_reported_when_it_leads(self) -> None:
        """200 with the new term."""
        bench = self.follower()
        bench.request(ask_taker(0))
        token = bench.last_token
        self.assertEqual(codes(bench, token), [])
        peer_id, request_id, _ = self.votes(bench)[0]
        bench.step(ev.ResponseReceived(peer_id=peer_id, request_id=request_id, response=granted(4)))
        (answer,) = bench.replies(token)
        self.assertEqual((answer.code, answer.term, bench.role), (ResponseCode.SUCCESS, 4, "leader"))

    def test_success_is_reported_even_if_the_disk_is_full(self) -> None:
        """The answer is before the write of the term's first entry, which may be refused."""
        bench = self.follower()
        bench.request(ask_taker(0))
        peer_id, request_id, _ = self.votes(bench)[0]
        effects = bench.core.step(
            ev.ResponseReceived(peer_id=peer_id, request_id=request_id, response=granted(4)), bench.now_ms
        )
        self.assertIn("Reply SUCCESS", kinds(effects)[:-1])
        self.assertEqual(kinds(effects)[-1], "WriteBodies")

    def test_waits_for_the_index(self) -> None:
        """It must hold all entries of the leader."""
        bench = self.follower()
        self.assertEqual(kinds(bench.request(ask_taker(1))), [])
        effects = bench.request(push(PushType.APPEND, batch(1, 3), term=3))
        self.assertEqual(
            kinds(effects),
            ["WriteEntries", "Reply SUCCESS", "PersistTermVote", "n1<-VoteRequest", "n2<-VoteRequest"],
        )

    def test_truncation_may_bring_the_index(self) -> None:
        """However the ledger grew."""
        bench = self.follower()
        bench.request(ask_taker(7))
        proved(bench.core.handler, 7)
        effects = bench.request(push(PushType.TRUNCATE, batch(7, 3), term=3))
        self.assertEqual(kinds(effects)[:3], ["TruncateLedger", "Reply SUCCESS", "PersistTermVote"])

    def test_writes_nothing_more_of_the_old_term(self) -> None:
        """A queued push is answered 406, not written after the campaign."""
        bench = self.follower()
        bench.request(ask_taker(1))
        bench.request(push(PushType.APPEND, batch(2, 3), term=3))
        queued = bench.last_token
        effects = bench.request(push(PushType.APPEND, batch(1, 3), term=3))
        self.assertEqual(kinds(effects).count("WriteEntries"), 1)
        self.assertEqual(codes(bench, queued), ["INCONSISTENT_STATE"])
        self.assertEqual(bench.ledger.ledger_end_index, 1)

    def test_a_taker_refuses_wrong_requests(self) -> None:
        """From whom, for which term, and who cannot lead."""
        for options, request, code in (
            ({}, ask_taker(0, leader="n2"), ResponseCode.INCONSISTENT_LEADER),
            ({}, ask_taker(0, term=2), ResponseCode.INCONSISTENT_TERM),
            ({}, ask_taker(0, term=4), ResponseCode.INCONSISTENT_TERM),
            ({"never_lead": True}, ask_taker(0), ResponseCode.TAKE_LEADERSHIP_FAILED),
            ({"repair_end_index": 9}, ask_taker(0), ResponseCode.TAKE_LEADERSHIP_FAILED),
            ({"repair_end_index": 1}, ask_taker(0), ResponseCode.TAKE_LEADERSHIP_FAILED),
        ):
            bench = self.follower(**options)
            self.assertEqual(kinds(bench.request(request)), [f"Reply {code.name}"])
            self.assertEqual(bench.term, 3)

    def test_a_taker_needs_a_leader(self) -> None:
        """A request from nobody is not one from the leader."""
        bench = Bench.make(term=3)
        request = LeadershipTransferRequest(group="g", term=3, transfer_id=None, transferee_id="n0")
        self.assertEqual(kinds(bench.request(request)), ["Reply INCONSISTENT_LEADER"])

    def test_one_at_a_time(self) -> None:
        """The second is refused, the first goes on."""
        bench = self.follower()
        bench.request(ask_taker(5))
        self.assertEqual(kinds(bench.request(ask_taker(0))), ["Reply TAKE_LEADERSHIP_FAILED"])

    def test_a_taker_gives_up_at_its_deadline(self) -> None:
        """Entries that do not come, or votes: 418 after the wait."""
        for index in (5, 0):
            bench = self.follower(leadership_transfer_wait_timeout=300)
            bench.request(ask_taker(index))
            token = bench.last_token
            for _ in range(3):
                bench.tick(99)
                if index:
                    bench.request(heart_beat("n1", 3))
            self.assertEqual(codes(bench, token), [])
            bench.tick(3)
            self.assertEqual(codes(bench, token), ["TAKE_LEADERSHIP_FAILED"], index)

    def test_another_leader_wins(self) -> None:
        """418 when it follows somebody in the term it wanted; 403 when the term has passed."""
        for term, code in ((4, "TAKE_LEADERSHIP_FAILED"), (5, "EXPIRED_TERM")):
            bench = self.follower()
            bench.request(ask_taker(0))
            token = bench.last_token
            bench.request(heart_beat("n2", term))
            self.assertEqual(codes(bench, token), [code])

    def test_leader_given_up_while_waiting(self) -> None:
        """The leader that asked is gone when the entries come: no campaign on its behalf."""
        bench = self.follower(leadership_transfer_wait_timeout=60_000)
        bench.request(ask_taker(1))
        token = bench.last_token
        bench.run(2_000)
        self.assertIs(bench.core.leader_id, None)
        bench.ledger.entries.append((3, b""))
        bench.core.member.refresh_end()
        bench.core.transfer.on_ledger_grew()
        bench.step(ev.Ticked())
        self.assertEqual((codes(bench, token), bench.term), (["TAKE_LEADERSHIP_FAILED"], 3))

    def test_an_election_goes_on_without_the_client(self) -> None:
        """Nobody to answer; the election goes on."""
        bench = self.follower()
        bench.request(ask_taker(0))
        token = bench.last_token
        bench.step(ev.RequestAbandoned(token=token))
        bench.run(3_000)
        self.assertEqual(codes(bench, token), [])

    def test_somebody_elses_connection(self) -> None:
        """Only the token that is gone is forgotten, on either side."""
        bench = self.follower()
        bench.request(ask_taker(5))
        token = bench.last_token
        bench.step(ev.RequestAbandoned(token=token + 1))
        bench.tick(2_000)
        self.assertEqual(codes(bench, token), ["TAKE_LEADERSHIP_FAILED"])
        bench = leader("n1", "n2")
        bench.request(ask_leader())
        token = bench.last_token
        bench.step(ev.RequestAbandoned(token=token + 1))
        taken(bench, ResponseCode.SUCCESS, 3)
        self.assertEqual(codes(bench, token), ["SUCCESS"])
