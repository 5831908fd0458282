# -*- test-case-name: tests.core.test_term_witnesses -*-
"""Whom a member follows that does not know in which terms it voted."""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from dledger.core.state import effects as fx
from dledger.values.ledger.membership import Membership
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import WIRE_FLAG_UNSURE_VOTE, WIRE_VERSION, PushType
from protocols.wire.ledger.memberships import MemberLists, ReportedMembership, encode_reported
from protocols.wire.ledger.messages import (
    HeartBeatResponse,
    MetadataRequest,
    MetadataResponse,
    PushEntryResponse,
)
from tests.core.helpers import Bench, ListLedger, batch, heart_beat, of_type, push, vote_request


def lost(**options: Any) -> Bench:
    """One of five members, with an empty directory."""
    return Bench.make(**{"members": 5, "term": 0, "is_unsure": True, "forgot_terms": True, **options})


class TermWitnessTests(SynchronousTestCase):
    """The leader n1 of term 3 speaks to a member that has lost its directory."""

    def setUp(self) -> None:
        self.bench = lost()
        self.asked: dict[str, fx.SendRequest] = {}
        self.assertIs(self.beat(), ResponseCode.TERM_NOT_READY)

    def beat(self, term: int = 3) -> ResponseCode:
        """The code for a heartbeat."""
        response = self.bench.ask(heart_beat("n1", term, 200))
        assert isinstance(response, HeartBeatResponse)
        return response.code

    def questions(self) -> dict[str, fx.SendRequest]:
        """The questions since the last look, by member."""
        found = {one.peer_id: one for one in of_type(self.bench.seen, fx.SendRequest)
                 if isinstance(one.request, MetadataRequest)}
        self.bench.seen.clear()
        self.asked.update(found)
        return found

    def say(self, *peer_ids: str, term: int = 3, **fields: Any) -> None:
        """These members answer."""
        self.questions()
        for peer_id in peer_ids:
            self.bench.answer(self.asked.pop(peer_id), MetadataResponse(**{
                "term": term, "leader_id": "n1", "wire_version": WIRE_VERSION, **fields,
            }))

    def test_a_quorum_without_itself(self) -> None:
        """Three of the four others are in the term, the leader counted; then it follows later ones, too."""
        self.say("n1", "n2")
        self.assertIs(self.beat(), ResponseCode.TERM_NOT_READY)
        self.assertIsNone(self.bench.core.leader_id)
        self.say("n3")
        self.assertIs(self.beat(), ResponseCode.SUCCESS)
        self.assertEqual(self.bench.core.leader_id, "n1")
        self.assertIs(self.beat(4), ResponseCode.SUCCESS)

    def test_a_push_is_no_proof(self) -> None:
        """It is refused, and changes nothing."""
        response = self.bench.ask(push(PushType.TRUNCATE, batch(0, 3), term=3))
        assert isinstance(response, PushEntryResponse)
        self.assertIs(response.code, ResponseCode.TERM_NOT_READY)
        self.assertEqual(of_type(self.bench.seen, fx.TruncateLedger), [])

    def test_another_term(self) -> None:
        """A voter in a later term may follow another leader; one in an earlier term may do so soon."""
        for term in (2, 4):
            self.say("n2", "n3", "n4", term=term)
            self.assertIs(self.beat(), ResponseCode.TERM_NOT_READY)
        self.say("n2", "n3")
        self.assertIs(self.beat(4), ResponseCode.TERM_NOT_READY)
        self.say("n2", "n3", term=4)
        self.assertIs(self.beat(4), ResponseCode.SUCCESS)

    def test_unsure_witnesses(self) -> None:
        """They have forgotten, too: all others must be in the term."""
        self.say("n2", "n3", wire_version=WIRE_VERSION | WIRE_FLAG_UNSURE_VOTE)
        self.assertIs(self.beat(), ResponseCode.TERM_NOT_READY)
        self.say("n4")
        self.assertIs(self.beat(), ResponseCode.SUCCESS)

    def test_no_answer(self) -> None:
        """It is asked again, and once at a time."""
        questions = self.questions()
        self.assertEqual(sorted(questions), ["n1", "n2", "n3", "n4"])
        self.beat()
        self.assertEqual(self.questions(), {})
        self.bench.fail(questions["n2"])
        self.bench.answer(questions["n3"], MetadataResponse(
            code=ResponseCode.UNKNOWN_GROUP, term=3, wire_version=WIRE_VERSION))
        self.beat()
        self.assertEqual(sorted(self.questions()), ["n2", "n3"])

    def test_java_voters_are_not_missed(self) -> None:
        """They report no term."""
        self.say("n2", "n3", term=-1, wire_version=0)
        self.assertIs(self.beat(), ResponseCode.SUCCESS)

    def test_a_later_list_of_the_leader(self) -> None:
        """Its voters count: those of an old list may be gone."""
        for peer_id, code in (("n2", ResponseCode.TERM_NOT_READY), ("n1", ResponseCode.SUCCESS)):
            self.say(peer_id, configuration=(
                encode_reported([ReportedMembership(7, 2, MemberLists({"n0": "h:1", "n1": "h:2"}, {}))])))
            self.assertIs(self.beat(), code)


class OtherTests(SynchronousTestCase):
    """Members that need no witness."""

    def test_a_leader_that_it_has_elected(self) -> None:
        """In this process: the leader asked for votes after the loss."""
        bench = lost()
        bench.request(vote_request("n1", 3, end_index=-1, end_term=-1))
        bench.follow("n1", 3)
        bench = lost(ledger=ListLedger.of(1), term=3, voted_for="n1")
        response = bench.ask(heart_beat("n1", 3, 200))
        assert isinstance(response, HeartBeatResponse)
        self.assertIs(response.code, ResponseCode.TERM_NOT_READY)

    def test_the_directory_is_there(self) -> None:
        """A loss of power takes no term, no vote."""
        lost(forgot_terms=False).follow("n1", 3)

    def test_a_member_that_does_not_count(self) -> None:
        """A learner, or a member that joins: nobody counts it."""
        ledger = ListLedger()
        ledger.append_configuration(Membership(voters={"n1": "h:1", "n2": "h:2"}, learners={"n0": "h:3"}), 1)
        lost(ledger=ledger).follow("n1", 3)
