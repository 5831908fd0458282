# -*- test-case-name: tests.core.test_member_state -*-
"""The outbox of a step, and what a member knows of itself."""

from __future__ import annotations

import attrs
from twisted.trial.unittest import SynchronousTestCase

from dledger.core.state import effects as fx
from dledger.core.state.inputs import MembersIntroduced
from dledger.core.state.member_state import MemberState, Outbox, Role
from dledger.storage.start.configurations import JOINING
from dledger.values.ledger.membership import Membership
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.messages import HeartBeatRequest, MetadataRequest, Response
from protocols.wire.ledger.own.configuration import encode_configuration
from tests.core.helpers import ListLedger, batch, make_member


@attrs.define
class Owner:
    """Hears of nothing here."""

    def on_response(self, peer_id: str, request_id: int, response: Response) -> None:
        """Not called."""

    def on_request_failed(self, peer_id: str, request_id: int, reason: str) -> None:
        """Not called."""


def some_write() -> fx.WriteEntries:
    """A write."""
    entries: EntryBatch = batch(0, 1)
    return fx.WriteEntries(entries=entries)


class OutboxTests(SynchronousTestCase):
    """The effects of one step and the requests that are out."""

    def setUp(self) -> None:
        self.out = Outbox(request_time_out_ms=100)

    def test_effects_leave_once_in_order(self) -> None:
        """A step's effects are those emitted since the last step."""
        first, second = fx.EndRepair(), fx.RecordCommit(committed_index=1)
        self.out.emit(first)
        self.out.emit(second)
        self.assertEqual(self.out.take(), (first, second))
        self.assertEqual(self.out.take(), ())

    def test_a_write_stands_last(self) -> None:
        """Nothing is after a write, so a refused one drops nothing."""
        write, repaired = some_write(), fx.EndRepair()
        self.out.write(write)
        self.out.emit(repaired)
        self.assertEqual(self.out.take(), (repaired, write))
        self.assertEqual(self.out.take(), ())

    def test_one_write_in_a_step(self) -> None:
        """Outcomes name no write: two at once could not be distinguished."""
        self.out.write(some_write())
        self.assertRaises(AssertionError, self.out.write, some_write())

    def test_a_stopping_member_does_not_write(self) -> None:
        """A member that stops does not write."""
        self.out.write(some_write())
        self.out.forget_write()
        self.assertEqual(self.out.take(), ())

    def test_term_and_its_vote_are_one_persist(self) -> None:
        """A vote in the term that was just entered is made durable with it, in its place."""
        self.out.persist(4, None)
        self.out.emit(fx.EndRepair())
        self.out.persist(4, "n2")
        self.assertEqual(
            self.out.take(), (fx.PersistTermVote(term=4, voted_for="n2"), fx.EndRepair())
        )

    def test_two_terms_are_two_persists(self) -> None:
        """A write for a later term is at the place of its request."""
        self.out.persist(4, None)
        self.out.persist(5, "n0")
        self.assertEqual(self.out.take(), (
            fx.PersistTermVote(term=4, voted_for=None), fx.PersistTermVote(term=5, voted_for="n0"),
        ))

    def test_an_answer_is_taken_once(self) -> None:
        """The second outcome of a request is nobody's."""
        owner = Owner()
        request_id = self.out.send("n1", MetadataRequest(), owner)
        self.assertEqual(self.out.outstanding, 1)
        self.assertIs(self.out.answered("n1", request_id), owner)
        self.assertIsNone(self.out.answered("n1", request_id))
        self.assertEqual(self.out.outstanding, 0)

    def test_an_answer_of_somebody_else(self) -> None:
        """Only the peer that was asked may answer; the question stays open."""
        request_id = self.out.send("n1", MetadataRequest(), Owner())
        self.assertIsNone(self.out.answered("n2", request_id))
        self.assertEqual(self.out.outstanding, 1)

    def test_an_overdue_request_leaves_the_table(self) -> None:
        """A request without an outcome leaves the table when its time is over, not before."""
        owner = Owner()
        self.out.now_ms = 1_000
        early = self.out.send("n1", MetadataRequest(), owner)
        self.out.now_ms = 1_050
        late = self.out.send("n2", MetadataRequest(), owner)
        self.out.now_ms = 1_099
        self.assertEqual(self.out.overdue(), [])
        self.out.now_ms = 1_100
        self.assertEqual(self.out.overdue(), [("n1", early, owner)])
        self.assertEqual(self.out.outstanding, 1)
        self.out.now_ms = 1_150
        self.assertEqual(self.out.overdue(), [("n2", late, owner)])


class TermAndVoteTests(SynchronousTestCase):
    """Terms rise, and a term has one vote."""

    def test_a_new_term_forgets_and_persists(self) -> None:
        """Vote and leader belong to their term."""
        member = make_member(term=3, voted_for="n1")
        member.leader_id = "n1"
        member.enter_term(5)
        self.assertEqual((member.term, member.voted_for, member.leader_id), (5, None, None))
        self.assertEqual(member.out.take(), (fx.PersistTermVote(term=5, voted_for=None),))

    def test_a_term_never_falls_nor_starts_twice(self) -> None:
        """Neither an older term nor the same one can be entered."""
        member = make_member(term=3)
        self.assertRaises(AssertionError, member.enter_term, 3)
        self.assertRaises(AssertionError, member.enter_term, 2)

    def test_the_vote_is_persisted(self) -> None:
        """A vote is durable before what depends on it."""
        member = make_member(term=3)
        member.vote("n2")
        self.assertEqual(member.out.take(), (fx.PersistTermVote(term=3, voted_for="n2"),))

    def test_the_same_vote_again(self) -> None:
        """Repeating a vote needs no fsync."""
        member = make_member(term=3, voted_for="n2")
        member.vote("n2")
        self.assertEqual(member.out.take(), ())

    def test_one_vote_in_a_term(self) -> None:
        """A second vote is our bug."""
        member = make_member(term=3, voted_for="n2")
        self.assertRaises(AssertionError, member.vote, "n1")


class LedgerTests(SynchronousTestCase):
    """Ends and commit."""

    def test_end_is_read_from_the_view(self) -> None:
        """The core's end is that of the ledger."""
        ledger = ListLedger([(1, b""), (1, b""), (2, b"")])
        member = make_member(ledger, term=2)
        self.assertEqual((member.ledger_end_index, member.ledger_end_term), (2, 2))
        ledger.entries.append((2, b""))
        self.assertEqual(member.ledger_end_index, 2)
        member.refresh_end()
        self.assertEqual(member.ledger_end_index, 3)

    def test_committed_entries_cannot_be_lost(self) -> None:
        """A ledger that ends below the commit stops the member."""
        ledger = ListLedger.of(1, 1, 1)
        member = make_member(ledger, committed_index=2)
        del ledger.entries[2]
        self.assertRaises(AssertionError, member.refresh_end)

    def test_a_higher_commit_is_recorded(self) -> None:
        """A higher commit is news, and recorded."""
        member = make_member(ListLedger.of(1, 1, 1), committed_index=0)
        self.assertTrue(member.commit(2))
        self.assertEqual(member.out.take(), (fx.RecordCommit(committed_index=2),))

    def test_commit_never_falls(self) -> None:
        """A lower or equal one changes nothing."""
        member = make_member(ListLedger.of(1, 1, 1), committed_index=1)
        self.assertFalse(member.commit(0))
        self.assertFalse(member.commit(1))
        self.assertEqual((member.committed_index, member.out.take()), (1, ()))

    def test_commit_beyond_the_end(self) -> None:
        """What is not there cannot be committed."""
        self.assertRaises(AssertionError, make_member(ListLedger.of(1)).commit, 1)


class PeerTests(SynchronousTestCase):
    """What is known of peers."""

    def test_wire_version_is_remembered(self) -> None:
        """A message that does not say a version does not unsay one."""
        member = make_member()
        member.out.now_ms = 7
        member.peers.heard("n1", 0, member.out.now_ms)
        self.assertEqual((member.peers.wire_versions, member.peers.last_heard_ms), ({"n1": 0}, {"n1": 7}))
        member.peers.heard("n1", 1, member.out.now_ms)
        member.peers.heard("n1", 0, member.out.now_ms)
        self.assertEqual(member.peers.wire_versions, {"n1": 1})

    def test_requests_name_their_sender_and_receiver(self) -> None:
        """Every request names its sender, its receiver, and the sender's knowledge."""
        member = make_member(term=4)
        member.role, member.leader_id = Role.LEADER, "n0"
        request = HeartBeatRequest(**member.base_fields("n2"))  # type: ignore[arg-type]
        self.assertEqual(request, HeartBeatRequest(
            group="g", remote_id="n2", local_id="n0", leader_id="n0", term=4, wire_version=1
        ))
        self.assertTrue(member.is_leader)


class JoiningLedger(ListLedger):
    """Without a configuration entry, that of a member that joins."""

    @property
    def membership(self) -> Membership | None:
        return super().membership or JOINING


class PastTests(SynchronousTestCase):
    """A member reads the lists of the past before it reaches the present one."""

    def reach(self, member: MemberState, ledger: ListLedger, voters: str) -> None:
        """The next entry of the ledger names these voters."""
        body = encode_configuration(dict.fromkeys(voters.split(), "h:1"), {})
        ledger.entries.append((1, body))
        member.refresh_end()

    def reported(self, reporter_id: str, index: int, voters: str) -> MembersIntroduced:
        """A member reports a list."""
        membership = Membership(voters=dict.fromkeys(voters.split(), "h:1"), index=index, term=1)
        return MembersIntroduced(reporter_id=reporter_id, membership=membership)

    def test_all_of_the_past_are_gone(self) -> None:
        """A member that joins knows those that were named at its start, and those whom they name."""
        for is_reported in (True, False):
            ledger = JoiningLedger()
            member = make_member(ledger)
            if is_reported:
                member.introductions.on_introduced(self.reported("n1", 2, "n1 n2 n7"))
            for past in ("p0 p1 p2", "p1 p2 n1"):
                self.reach(member, ledger, past)
                self.assertTrue(member.knows("n1") and member.knows("n2") and member.knows("p1"))
                self.assertEqual(member.knows("n7"), is_reported)
            again = make_member(ledger)  # after a restart in the middle
            self.assertTrue(again.knows("n1") and again.knows("n2"))
            again.introductions.on_introduced(self.reported("n2", 2, "n1 n2 n7 n0"))
            self.assertTrue(again.knows("n7"))
            self.reach(again, ledger, "n1 n7 n0")
            self.assertTrue(again.knows("p1"))  # in the list before, which may count again
            again.committed_index = again.ledger_end_index
            self.assertFalse(again.knows("n2") or again.knows("p1") or again.knows("n0"))

    def test_removal_that_is_not_committed(self) -> None:
        """Who is removed by it may lead the others, and cut it: its word is heard until it is committed."""
        for first in (None, "n0 n1 n2 n3"):
            ledger = ListLedger()
            member = make_member(ledger)
            if first is not None:
                self.reach(member, ledger, first)
                member.committed_index = member.ledger_end_index
            gone = "n2" if first is None else "n3"
            self.reach(member, ledger, "n0 n1")
            self.assertTrue(member.knows(gone))
            self.assertIn(gone, member.speakers)
            self.assertFalse(member.knows("n9") or member.knows("n0"))
            self.assertNotIn(gone, member.peer_ids)
            member.committed_index = member.ledger_end_index
            self.assertFalse(member.knows(gone) or gone in member.speakers)

    def test_reporter_leaves_and_comes_back(self) -> None:
        """Its word counts, though a list in between lacks it."""
        ledger = ListLedger()
        member = make_member(ledger)
        member.introductions.on_introduced(self.reported("n1", 1, "n0 n1 n7"))
        self.reach(member, ledger, "n0 n2")
        self.assertTrue(member.knows("n7") and member.knows("n1"))
        member.introductions.on_introduced(self.reported("n9", 1, "n0 n8"))
        self.assertFalse(member.knows("n8"))
        self.reach(member, ledger, "n0 n1")
        self.assertFalse(member.knows("n7"))


class SettledTests(SynchronousTestCase):
    """Whether an entry above the commit index may be committed in this log."""

    def test_a_leader_is_settled_once_all_is_committed(self) -> None:
        """Not once all that it has is committed."""
        member = make_member(ListLedger([(1, b""), (1, b""), (2, b"")]), term=2, committed_index=1)
        member.role = Role.LEADER
        self.assertFalse(member.is_settled)
        member.committed_index = 2
        self.assertTrue(member.is_settled)

    def test_a_follower_is_settled_by_a_commit_of_its_leader(self) -> None:
        """Not once its leader has committed an entry of its own term, and says so."""
        member = make_member(ListLedger([(1, b""), (1, b""), (2, b"")]), term=2, committed_index=1)
        for reported in (-1, 1, 2):
            member.peers.leader_committed_index = reported
            self.assertFalse(member.is_settled, reported)
        member.committed_index = 2
        self.assertTrue(member.is_settled)
        member.peers.leader_committed_index = 3
        self.assertFalse(member.is_settled)
        self.assertFalse(make_member(ListLedger(), term=2).is_settled)
