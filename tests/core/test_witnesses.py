# -*- test-case-name: tests.core.test_witnesses -*-
"""No ledger is set aside on the word of one member."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from dledger.core.replication.handler import DIVERGED_AFTER
from dledger.core.state import effects as fx
from dledger.values.ledger.membership import Membership
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import PushType
from protocols.wire.ledger.messages import MetadataRequest, MetadataResponse, Response
from tests.core.helpers import Bench, ListLedger, batch, events, heart_beat, of_type, push

#: Where the leader says that its ledger begins, far after the end of ours.
BEGIN = 1_000


def said(begin_index: int, committed_index: int, **fields: object) -> MetadataResponse:
    """What a voter says of its ledger."""
    return MetadataResponse(**{  # type: ignore[arg-type]
        "leader_id": "n1", "term": 3, "wire_version": 1, "begin_index": begin_index,
        "end_index": max(committed_index, begin_index), "committed_index": committed_index, **fields,
    })


class WitnessTests(SynchronousTestCase):
    """A follower with the committed entries 0 to 3, whose leader says that its own ledger begins at 1,000."""

    def setUp(self) -> None:
        """Three members."""
        self.make(3)

    def make(self, members: int, *, committed_index: int = 3) -> None:
        """A group of some members."""
        self.bench = Bench.make(
            ListLedger.of(1, 1, 1, 1), members=members, term=3, committed_index=committed_index
        ).follow("n1", 3)

    def truncate(self, term: int = 3) -> bool:
        """
        The leader sends TRUNCATE to its first entry, and says on demand where it begins.

        @return: whether the member obeys.
        """
        request = push(PushType.TRUNCATE, batch(BEGIN, 3), term=term, commit_index=BEGIN + 50)
        for _ in range(2):
            if of_type(self.bench.request(request), fx.TruncateLedger):
                return True
            for question in self.questions("n1"):
                self.bench.answer(question, said(BEGIN, BEGIN + 50, term=term))
        return False

    def questions(self, *peer_ids: str) -> list[fx.SendRequest]:
        """Its questions to these members since the last look."""
        found = [one for one in of_type(self.bench.seen, fx.SendRequest)
                 if isinstance(one.request, MetadataRequest) and one.peer_id in peer_ids]
        self.bench.seen = [one for one in self.bench.seen if one not in found]
        return found

    def answer(self, **said_by: Response) -> None:
        """These voters answer."""
        questions = self.questions(*said_by)
        self.assertEqual({one.peer_id for one in questions}, set(said_by))
        for one in questions:
            self.bench.answer(one, said_by[one.peer_id])

    def test_one_word_is_not_enough(self) -> None:
        """The leader's word is not enough, however often it comes, and whatever is known to be committed."""
        for committed_index in (3, -1):
            self.make(3, committed_index=committed_index)
            for _ in range(10):
                self.assertFalse(self.truncate())
            self.assertEqual(self.bench.ledger, ListLedger.of(1, 1, 1, 1))

    def test_a_witness_can_deny_it(self) -> None:
        """The other member has the entries, and none as late as that: the leader is a liar."""
        self.assertFalse(self.truncate())
        for _ in range(DIVERGED_AFTER):
            self.answer(n2=said(0, 3))
            self.assertFalse(self.truncate())
        self.assertIn("truncate-refused", events(tuple(self.bench.seen)))
        self.assertTrue(self.bench.core.status().is_diverged)
        self.assertEqual(self.bench.ledger, ListLedger.of(1, 1, 1, 1))

    def test_lacks_them_too(self) -> None:
        """The other member's ledger begins after ours, too."""
        self.assertFalse(self.truncate())
        self.answer(n2=said(BEGIN - 10, BEGIN - 5))
        self.assertTrue(self.truncate())
        self.assertEqual(self.bench.ledger.ledger_begin_index, BEGIN)

    def test_has_them_all(self) -> None:
        """The other member keeps more than the leader, and has committed the leader's first entries."""
        self.assertFalse(self.truncate())
        self.answer(n2=said(0, BEGIN - 1))
        self.assertFalse(self.truncate())
        self.answer(n2=said(0, BEGIN))
        self.assertTrue(self.truncate())

    def test_the_first_missing_entry_counts(self) -> None:
        """A ledger that begins with the entry after ours lacks nothing that we need."""
        self.assertFalse(self.truncate())
        self.answer(n2=said(4, 90))
        self.assertFalse(self.truncate())
        self.answer(n2=said(5, 90))
        self.assertTrue(self.truncate())

    def test_five_members_need_two_witnesses(self) -> None:
        """A quorum without this member: the leader and two others."""
        self.make(5)
        self.assertFalse(self.truncate())
        self.answer(n2=said(BEGIN, BEGIN), n3=said(0, 3), n4=said(0, 3))
        self.assertFalse(self.truncate())
        self.answer(n3=said(BEGIN, BEGIN), n2=said(BEGIN, BEGIN), n4=said(0, 3))
        self.assertTrue(self.truncate())

    def test_two_members_have_no_witness(self) -> None:
        """In a group of two nobody is left to confirm it: that needs an operator."""
        self.make(2)
        for _ in range(10):
            self.assertFalse(self.truncate())
        self.assertTrue(self.bench.core.status().is_diverged)

    def test_java_members_are_not_asked(self) -> None:
        """A voter known to be Java's cannot be asked, and is not missed; one that was never heard of is."""
        self.bench.core.member.peers.wire_versions["n2"] = 0
        self.assertTrue(self.truncate())
        self.make(5)
        self.bench.core.member.peers.wire_versions.update({"n2": 0})
        self.assertFalse(self.truncate())
        self.answer(n3=said(0, 3), n4=said(BEGIN, BEGIN))
        self.assertTrue(self.truncate())

    def test_a_removed_voter_is_not_missed(self) -> None:
        """A voter of our old list that was removed is not missed; one that only says that it is unwell is."""
        gone = said(0, 3, health="removed: stop it")
        self.make(5)
        self.assertFalse(self.truncate())
        self.answer(n2=gone, n3=said(0, 3, health="unwell: removed"))
        self.assertFalse(self.truncate())
        self.answer(n4=said(BEGIN, BEGIN + 50))
        self.assertTrue(self.truncate())

    def test_a_silent_witness_is_asked_again(self) -> None:
        """A refusal, numbers that make no sense, no answer: each time it is asked again."""
        self.assertFalse(self.truncate())
        for nothing in (said(-2, BEGIN), said(BEGIN, -2), said(0, BEGIN, end_index=7),
                        said(BEGIN, BEGIN, code=ResponseCode.UNKNOWN_GROUP)):
            self.answer(n2=nothing)
            self.assertFalse(self.truncate())
        (question,) = self.questions("n2")
        self.bench.fail(question)
        self.assertFalse(self.truncate())
        self.answer(n2=said(BEGIN, BEGIN))
        self.assertTrue(self.truncate())

    def test_a_word_counts_in_its_term(self) -> None:
        """What was said counts in its term: in the next one another may be a stranger."""
        self.assertFalse(self.truncate())
        self.answer(n2=said(BEGIN, BEGIN))
        self.bench.request(heart_beat("n1", 4))
        self.assertFalse(self.truncate(term=4))
        self.answer(n2=said(BEGIN, BEGIN))
        self.assertTrue(self.truncate(term=4))

    def test_nothing_to_set_aside(self) -> None:
        """A member without entries takes the leader's word."""
        self.bench = Bench.make(ListLedger(), term=3).follow("n1", 3)
        self.assertTrue(self.truncate())

    def test_no_voters_known(self) -> None:
        """
        So does one that joins, and has not come to the entry that names the voters: one leader began it, and
        the next one, who begins further on, has nobody else to name.
        """
        member = self.bench.core.member
        member.membership, member.voter_ids = Membership(voters={}), ()
        self.assertTrue(self.truncate())
        self.assertEqual(self.bench.ledger.ledger_begin_index, BEGIN)
