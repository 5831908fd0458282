# -*- test-case-name: tests.core.test_proofs -*-
"""Entries are dropped in front of a new beginning only when the leader itself says that it lacks them."""

from __future__ import annotations

import attrs
from twisted.trial.unittest import SynchronousTestCase

from dledger.core.replication.handler import DIVERGED_AFTER
from dledger.core.state import effects as fx
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import PushType
from protocols.wire.ledger.messages import (
    GetRequest,
    GetResponse,
    HeartBeatRequest,
    MetadataRequest,
    MetadataResponse,
    PushEntryRequest,
    Response,
)
from tests.core.helpers import Bench, ListLedger, batch, events, heart_beat, kinds, of_type, push

OK, NO = "Reply SUCCESS", "Reply INCONSISTENT_STATE"


def truncate(index: int, entry_term: int = 3, **fields: int) -> PushEntryRequest:
    """TRUNCATE to one entry."""
    return push(PushType.TRUNCATE, batch(index, entry_term), term=3, **fields)


def metadata(begin_index: int, end_index: int, **fields: object) -> MetadataResponse:
    """What n1 says of itself as leader of term 3."""
    return MetadataResponse(**{  # type: ignore[arg-type]
        "leader_id": "n1", "term": 3, "wire_version": 1, "begin_index": begin_index, "end_index": end_index,
        **fields,
    })


class ProofTests(SynchronousTestCase):
    """A follower that holds the entries 0 to 3, of which 0 to 2 are committed."""

    def setUp(self) -> None:
        self.bench = Bench.make(ListLedger.of(1, 1, 1, 1), term=3, committed_index=2).follow("n1", 3)

    def questions(self) -> list[fx.SendRequest]:
        """Its questions to others."""
        return [one for one in of_type(self.bench.seen, fx.SendRequest)
                if not isinstance(one.request, HeartBeatRequest)]

    def answered(self, response: Response) -> None:
        """The last question is answered."""
        self.bench.answer(self.questions()[-1], response)

    def is_whole(self) -> None:
        """Nothing was dropped."""
        self.assertEqual(self.bench.ledger, ListLedger.of(1, 1, 1, 1))

    def test_a_follower_asks_the_leader_first(self) -> None:
        """The leader itself, over this member's own connection; the TRUNCATE is refused meanwhile."""
        effects = self.bench.request(truncate(1_000))
        self.assertEqual(kinds(effects), [NO, "n1<-MetadataRequest"])
        self.assertEqual(kinds(self.bench.request(truncate(1_000))), [NO])  # one question at a time
        self.is_whole()
        self.answered(metadata(900, 1_100))
        self.assertEqual(kinds(self.bench.request(truncate(1_000))), [NO, "n2<-MetadataRequest"])
        self.answered(metadata(0, 1_050, committed_index=1_010))
        self.assertEqual(kinds(self.bench.request(truncate(1_000, commit_index=1_000))),
                         ["TruncateLedger", "RecordCommit", OK])
        self.assertEqual(self.bench.ledger.ledger_begin_index, 1_000)

    def test_a_leader_that_has_them(self) -> None:
        """A forged TRUNCATE is refused however often it comes, each time after a question."""
        for begin_index in (0, 2, 3):
            self.setUp()
            for _ in range(10):
                self.assertIn(NO, kinds(self.bench.request(truncate(1_000))))
                if isinstance(self.questions()[-1].request, MetadataRequest):
                    self.answered(metadata(begin_index, 2_000))
            self.is_whole()
            self.assertTrue(self.bench.core.status().is_diverged)

    def test_beyond_its_end(self) -> None:
        """An index that the leader cannot have is refused, though its ledger begins after ours."""
        self.bench.request(truncate(10**12))
        self.answered(metadata(900, 1_100))
        effects = self.bench.request(truncate(10**12))
        self.assertIn(NO, kinds(effects))
        self.assertIn("truncate-refused", events(effects))
        self.is_whole()

    def test_what_is_no_proof(self) -> None:
        """Another leader, another term, a refusal, numbers that make no sense, no answer."""
        for response in (
            metadata(900, 1_100, leader_id="n2"), metadata(900, 1_100, leader_id=None),
            metadata(900, 1_100, term=2), metadata(900, 800), metadata(-2, -2),
            metadata(900, 1_100, code=ResponseCode.UNKNOWN_GROUP),
        ):
            self.setUp()
            self.bench.request(truncate(1_000))
            self.answered(response)
            self.assertEqual(kinds(self.bench.request(truncate(1_000))), [NO, "n1<-MetadataRequest"])
            self.is_whole()
        self.bench.fail(self.questions()[-1])
        self.assertEqual(kinds(self.bench.request(truncate(1_000))), [NO, "n1<-MetadataRequest"])

    def test_not_for_the_next_leader(self) -> None:
        """What a leader said ends with its term."""
        self.bench.request(truncate(1_000))
        self.answered(metadata(900, 1_100))
        self.bench.request(heart_beat("n1", 4))
        request = push(PushType.TRUNCATE, batch(1_000, 3), term=4)
        self.assertEqual(kinds(self.bench.request(request)), [NO, "n1<-MetadataRequest"])

    def test_an_empty_ledger_loses_nothing(self) -> None:
        """It loses nothing, but must not begin anywhere either."""
        self.bench = Bench.make(term=3).follow("n1", 3)
        self.assertEqual(kinds(self.bench.request(truncate(10**12))), [NO, "n1<-MetadataRequest"])
        self.answered(metadata(0, 100))
        self.assertIn(NO, kinds(self.bench.request(truncate(10**12))))
        self.assertEqual(kinds(self.bench.request(truncate(0))), ["TruncateLedger", OK])

    def test_a_java_leader_proves_it_by_419(self) -> None:
        """It says so with 419 to a GET of the first entry that it would have to have."""
        self.bench.core.member.peers.wire_versions.update({"n1": 0, "n2": 0})
        request = attrs.evolve(truncate(1_000), wire_version=0)
        self.assertEqual(kinds(self.bench.request(request)), [NO, "n1<-GetRequest"])
        question = self.questions()[-1].request
        assert isinstance(question, GetRequest)
        self.assertEqual(question.begin_index, 3)
        self.answered(GetResponse(code=ResponseCode.SUCCESS))
        self.assertEqual(kinds(self.bench.request(request)), [NO, "n1<-GetRequest"])
        self.is_whole()
        self.answered(GetResponse(code=ResponseCode.NOT_LEADER))
        self.assertEqual(kinds(self.bench.request(request)), [NO, "n1<-GetRequest"])
        self.answered(GetResponse(code=ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN))
        self.assertEqual(kinds(self.bench.request(request))[0], "TruncateLedger")


class DivergedTests(SynchronousTestCase):
    """A member that cannot agree with its leader says so."""

    def follower(self) -> Bench:
        """It holds entries 0 and 1, both committed."""
        return Bench.make(ListLedger.of(1, 1), term=3, committed_index=1).follow("n1", 3)

    def test_refused_truncates_in_a_row_are_reported(self) -> None:
        """In a row; it is reported once, and over when an entry of the leader is taken."""
        bench = self.follower()
        reported = []
        for times in range(1, 6):
            reported += [event for event in events(bench.request(truncate(0))) if event == "diverged"]
            self.assertEqual(bench.core.status().is_diverged, times >= DIVERGED_AFTER)
        self.assertEqual(reported, ["diverged"])
        bench.request(push(PushType.COMPARE, batch(1, 1), term=3))
        self.assertTrue(bench.core.status().is_diverged)
        effects = bench.request(push(PushType.APPEND, batch(2, 3), term=3))
        self.assertIn("agrees-again", events(effects))
        self.assertFalse(bench.core.status().is_diverged)

    def test_a_commit_in_step_ends_it(self) -> None:
        """Also while nothing is appended."""
        bench = self.follower()
        for _ in range(DIVERGED_AFTER):
            bench.request(truncate(0))
        bench.request(push(PushType.COMPARE, batch(1, 1), term=3))
        bench.request(push(PushType.COMMIT, term=3, commit_index=1))
        self.assertFalse(bench.core.status().is_diverged)

    def test_writes_that_do_not_fit(self) -> None:
        """A leader with other file sizes never gets an entry in; a full disk is another matter."""
        for code, is_diverged in ((ResponseCode.INCONSISTENT_STATE, True), (ResponseCode.DISK_FULL, False)):
            bench = self.follower()
            for _ in range(DIVERGED_AFTER):
                bench.request(push(PushType.COMPARE, batch(1, 1), term=3))
                bench.ledger.refuse = code
                bench.request(push(PushType.APPEND, batch(2, 3), term=3))
            self.assertEqual(bench.core.status().is_diverged, is_diverged)

    def test_a_leader_is_not_diverged(self) -> None:
        """It has nobody to agree with."""
        bench = self.follower()
        for _ in range(DIVERGED_AFTER):
            bench.request(truncate(0))
        self.assertTrue(bench.core.is_diverged)
        bench.lead()
        self.assertFalse(bench.core.is_diverged)
