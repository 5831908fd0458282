# -*- test-case-name: tests.core.test_changes -*-
"""Changes of the members, at the leader."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from dledger.core.state import effects as fx
from dledger.core.state import inputs as ev
from dledger.values.ledger.membership import Membership
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.bounds import INDEX_MAX
from protocols.wire.ledger.codes import MEMBERS_MAX
from protocols.wire.ledger.messages import (
    LeadershipTransferRequest,
    MembershipRequest,
    MembershipResponse,
    PushEntryRequest,
    VoteRequest,
)
from tests.core.helpers import Bench, ListLedger, of_type, sent


def change(what: str, member_id: str, address: str = "", *, dry: bool = False, forced: bool = False
           ) -> MembershipRequest:
    """A question to n0."""
    return MembershipRequest(group="g", remote_id="n0", change=what, member_id=member_id, address=address,
                             is_dry=dry, is_forced=forced)


class LeaderCase(SynchronousTestCase):
    """n0 leads a group of three; its peers have said that they read configuration entries."""

    def setUp(self) -> None:
        self.bench = Bench.make(ListLedger.of(1)).lead()  # so that it writes an entry of its term
        for peer_id in ("n1", "n2"):
            self.hear(peer_id)
            self.bench.match(peer_id)

    def hear(self, peer_id: str, wire_version: int = 1) -> None:
        """A peer answers a heartbeat."""
        member = self.bench.core.member
        member.peers.heard(peer_id, wire_version, member.out.now_ms)
        member.peers.heard_state(peer_id, wire_version, member.out.now_ms)

    def ask(self, request: MembershipRequest) -> MembershipResponse:
        """At once."""
        answer = self.bench.ask(request)
        assert isinstance(answer, MembershipResponse)
        return answer

    def make(self, what: str, member_id: str, address: str = "") -> MembershipResponse:
        """A change, up to its commit."""
        self.bench.request(change(what, member_id, address))
        token = self.bench.last_token
        for peer_id in ("n1", "n2"):
            self.bench.match(peer_id)
        (answer,) = self.bench.replies(token)
        assert isinstance(answer, MembershipResponse)
        return answer

    def assertRefused(self, request: MembershipRequest, code: ResponseCode, text: str) -> None:
        """With a reason; nothing is written."""
        end_index = self.bench.ledger.ledger_end_index
        answer = self.ask(request)
        self.assertEqual((answer.code, answer.index), (code, -1), answer.reason)
        self.assertIn(text, answer.reason)
        self.assertEqual(self.bench.ledger.ledger_end_index, end_index)


class AddTests(LeaderCase):
    """A learner is in the list at once, gets pushes, and does not count."""

    def test_in_force_when_written(self) -> None:
        """Answered when it is committed."""
        effects = self.bench.request(change("add", "n3", "127.0.0.1:9"))
        token = self.bench.last_token
        (follow,) = of_type(effects, fx.FollowMembership)
        self.assertEqual(sorted(follow.membership.learners), ["n3"])
        self.assertEqual(self.bench.replies(token), [])
        self.assertEqual(self.bench.core.status().learners, ("n3",))
        self.bench.run_until(PushEntryRequest)
        self.assertIn("n3", {one[0] for one in sent(self.bench.seen, PushEntryRequest)})
        self.bench.match("n1")
        (answer,) = self.bench.replies(token)
        assert isinstance(answer, MembershipResponse)
        end_index = self.bench.ledger.ledger_end_index
        self.assertEqual((answer.code, answer.index), (ResponseCode.SUCCESS, end_index))
        self.assertEqual(sorted(answer.learners), ["n3"])

    def test_adding_a_member_again_changes_nothing(self) -> None:
        """Nothing to change."""
        self.make("add", "n3", "127.0.0.1:9")
        answer = self.ask(change("add", "n3", "127.0.0.1:9"))
        self.assertEqual((answer.code, answer.reason, answer.index),
                         (ResponseCode.SUCCESS, "nothing to change: n3 is a member at 127.0.0.1:9", -1))
        for what, who, why in (
            ("remove", "n9", "no member has the id n9"), ("promote", "n1", "n1 is a voter"),
        ):
            answer = self.ask(change(what, who))
            self.assertEqual((answer.code, answer.reason),
                             (ResponseCode.SUCCESS, f"nothing to change: {why}"))

    def test_a_dry_run_reports_the_change(self) -> None:
        """Says what would be."""
        end_index = self.bench.ledger.ledger_end_index
        answer = self.ask(change("add", "n3", "127.0.0.1:9", dry=True))
        self.assertEqual((answer.code, sorted(answer.learners)), (ResponseCode.SUCCESS, ["n3"]))
        self.assertEqual(self.bench.ledger.ledger_end_index, end_index)

    def test_dry_in_a_new_term(self) -> None:
        """A change writes the entry of the term that it needs: it is not missed before."""
        bench = Bench.make(ListLedger.of(1, 1), term=1, committed_index=1, term_start_entry=False).lead()
        self.bench = bench
        for peer_id in ("n1", "n2"):
            self.hear(peer_id)
            bench.match(peer_id)
        self.assertLess(bench.core.committed_index, 2)
        end_index = bench.ledger.ledger_end_index
        answer = self.ask(change("add", "n3", "127.0.0.1:9", dry=True))
        self.assertEqual((answer.code, bench.ledger.ledger_end_index), (ResponseCode.SUCCESS, end_index))

    def test_an_outcome_is_unknown_when_leadership_ends(self) -> None:
        """501 when leadership ends: the change may be committed all the same."""
        self.bench.request(change("add", "n3", "127.0.0.1:9"))
        token = self.bench.last_token
        self.bench.follow("n1", self.bench.term + 1)
        (answer,) = self.bench.replies(token)
        self.assertIs(answer.code, ResponseCode.TERM_CHANGED)


class PromoteTests(LeaderCase):
    """From learner to voter."""

    def test_only_when_caught_up(self) -> None:
        """A silent learner is not promoted, nor one that lacks entries; one that has them is."""
        self.make("add", "n3", "127.0.0.1:9")
        for forced in (False, True):
            asked = change("promote", "n3", forced=forced)
            self.assertRefused(asked, ResponseCode.FALL_BEHIND_TOO_MUCH, "n3")
        self.hear("n3")
        self.assertRefused(change("promote", "n3"), ResponseCode.FALL_BEHIND_TOO_MUCH, "n3 lacks")
        self.bench.match("n3")
        self.assertIs(self.make("promote", "n3").code, ResponseCode.SUCCESS)
        self.assertEqual(self.bench.core.status().voters, ("n0", "n1", "n2", "n3"))

    def test_counts_from_then_on(self) -> None:
        """Three of four are needed."""
        self.make("add", "n3", "127.0.0.1:9")
        self.hear("n3")
        self.bench.match("n3")
        self.bench.request(change("promote", "n3"))
        token = self.bench.last_token
        self.bench.match("n1")
        self.assertEqual(self.bench.replies(token), [])
        self.bench.match("n3")
        self.assertEqual(len(self.bench.replies(token)), 1)


class RemoveTests(LeaderCase):
    """A member leaves."""

    def test_a_removed_follower_gets_no_pushes(self) -> None:
        """It gets no pushes any more, and its answers do not count."""
        self.assertIs(self.make("remove", "n2").code, ResponseCode.SUCCESS)
        self.assertEqual([peer.peer_id for peer in self.bench.core.status().peers], ["n1"])
        self.bench.seen.clear()
        self.bench.run(2_000)
        self.assertEqual({one[0] for one in sent(self.bench.seen, PushEntryRequest)}, {"n1"})

    def test_a_smaller_quorum_commits_at_once(self) -> None:
        """Entries that a majority of those who stay have are committed as soon as the removal is written."""
        self.make("add", "n3", "127.0.0.1:9")
        self.hear("n3")
        self.bench.match("n3")
        self.make("promote", "n3")
        self.bench.step(ev.AppendProposed((ev.Proposal(token=999, bodies=(b"x",)),)))
        self.bench.match("n1")
        end_index = self.bench.ledger.ledger_end_index
        self.assertEqual(self.bench.core.committed_index, end_index - 1)
        self.bench.request(change("remove", "n3"))
        self.assertEqual(self.bench.ledger.ledger_end_index, end_index + 1)
        self.assertEqual(self.bench.core.committed_index, end_index)

    def test_the_last_copy(self) -> None:
        """A removal that leaves a single voter must be forced; that of a learner beside it need not."""
        self.make("add", "n3", "127.0.0.1:9")
        self.make("remove", "n2")
        self.assertRefused(change("remove", "n1"), ResponseCode.UNEXPECTED_ARGUMENT, "a single voter, n0,")
        self.assertRefused(change("remove", "n1", dry=True), ResponseCode.UNEXPECTED_ARGUMENT, "force")
        self.bench.request(change("remove", "n1", forced=True))
        (answer,) = self.bench.replies(self.bench.last_token)
        assert isinstance(answer, MembershipResponse)
        self.assertEqual((answer.code, sorted(answer.voters)), (ResponseCode.SUCCESS, ["n0"]))
        self.assertIs(self.make("remove", "n3").code, ResponseCode.SUCCESS)

    def test_introduced_no_longer(self) -> None:
        """A member that another list reported is no stranger until the own ledger has a list as late."""
        reported = Membership(voters={"n0": "h:1", "n9": "h:9"}, index=0, term=1)
        self.bench.step(ev.MembersIntroduced(reporter_id="n1", membership=reported))
        self.assertTrue(self.bench.core.member.knows("n9"))
        self.assertEqual(self.bench.core.member.introductions.members, {"n9": "h:9"})
        self.assertIs(self.make("remove", "n2").code, ResponseCode.SUCCESS)
        self.assertFalse(self.bench.core.member.knows("n9"))
        self.assertNotIn("n9", self.bench.core.member.speakers)

    def test_a_false_list_hides_no_true_one(self) -> None:
        """Each member's word counts for itself: a false list hides no true one, and none fills the tables."""

        def notify(reporter_id: str, index: int, *ids: str) -> None:
            reported = Membership(voters=dict.fromkeys(ids, "h:1"), index=index, term=1)
            self.bench.step(ev.MembersIntroduced(reporter_id=reporter_id, membership=reported))

        members = self.bench.core.member
        full = [f"x{number}" for number in range(MEMBERS_MAX)]
        notify("n1", INDEX_MAX, *full)
        for number, one in enumerate(full):
            notify(one, INDEX_MAX, *(f"y{number}-{at}" for at in range(MEMBERS_MAX)))
        notify("stranger", 7, "n7")
        notify("n2", 5, "n9")
        self.assertEqual(len(members.introduced), 2 * MEMBERS_MAX)
        self.assertLessEqual({*full, "n9"}, set(members.introduced))
        notify("n1", 5, "n9")
        notify("n9", 6, "n8")
        self.assertEqual(set(members.introduced), {"n9", "n8"})

    def test_leader_hands_over(self) -> None:
        """It does not write its own removal: another one leads first."""
        self.assertRefused(change("remove", "n0"), ResponseCode.LEADER_TRANSFERRING, "hands over")
        self.assertTrue(sent(self.bench.seen, LeadershipTransferRequest))

    def test_a_dry_run_hands_nothing_over(self) -> None:
        """Nothing is handed over."""
        self.assertIn("hand over", self.ask(change("remove", "n0", dry=True)).reason)
        self.assertEqual(sent(self.bench.seen, LeadershipTransferRequest), [])


class RefusalTests(LeaderCase):
    """With a code and a reason."""

    def test_a_follower_refuses_and_names_the_leader(self) -> None:
        """A follower names its leader."""
        bench = Bench.make().follow()
        answer = bench.ask(change("remove", "n2"))
        self.assertEqual((answer.code, answer.leader_id), (ResponseCode.NOT_LEADER, "n1"))

    def test_a_wrong_change_is_refused_with_a_sentence(self) -> None:
        """The sentence of L{Membership.changed}."""
        self.assertRefused(change("add", "n1", "h:9"), ResponseCode.UNEXPECTED_ARGUMENT, "move it")

    def test_one_at_a_time(self) -> None:
        """While the last one is not committed."""
        self.bench.request(change("add", "n3", "127.0.0.1:9"))
        asked = change("add", "n4", "127.0.0.1:8")
        self.assertRefused(asked, ResponseCode.LEADER_PENDING_FULL, "not committed")

    def test_own_term_first(self) -> None:
        """A leader without an entry of its term writes one."""
        self.bench = Bench.make(ListLedger.of(1), committed_index=0, term_start_entry=False).lead()
        for peer_id in ("n1", "n2"):
            self.hear(peer_id)
            self.bench.match(peer_id)
        answer = self.ask(change("remove", "n2"))
        self.assertIs(answer.code, ResponseCode.LEADER_NOT_READY)
        self.assertEqual(self.bench.ledger.entries[-1], (self.bench.term, b""))
        self.assertEqual(self.ask(change("remove", "n2")).code, ResponseCode.LEADER_NOT_READY)
        self.bench.match("n1")
        self.bench.match("n2")
        self.assertIs(self.make("remove", "n2").code, ResponseCode.SUCCESS)

    def test_a_java_member_cannot_be_added(self) -> None:
        """It would take a configuration entry for an entry; one that is removed may be of any kind."""
        self.bench.step(ev.PeerConnected(peer_id="n2"))
        self.hear("n2", 0)
        asked = change("add", "n3", "127.0.0.1:9")
        self.assertRefused(asked, ResponseCode.UNSUPPORTED, "n2: members of Java")
        self.assertIs(self.make("remove", "n2").code, ResponseCode.SUCCESS)

    def test_member_not_heard(self) -> None:
        """Nobody knows the id; after the first change it is believed."""
        self.bench.step(ev.PeerConnected(peer_id="n2"))
        asked = change("add", "n3", "127.0.0.1:9")
        self.assertRefused(asked, ResponseCode.LEADER_NOT_READY, "n2: not heard")
        self.hear("n2")
        self.make("add", "n3", "127.0.0.1:9")
        self.bench.step(ev.PeerConnected(peer_id="n2"))
        self.bench.match("n2")
        self.assertIs(self.make("add", "n4", "127.0.0.1:8").code, ResponseCode.SUCCESS)

    def test_no_live_quorum(self) -> None:
        """Of the two that stay one is silent; the operator may force it."""
        self.bench.core.member.peers.last_heard_ms["n1"] = -100_000
        self.assertRefused(change("remove", "n2"), ResponseCode.FALL_BEHIND_TOO_MUCH, "only n0 are alive")
        self.bench.request(change("remove", "n2", forced=True))
        self.assertEqual(self.bench.core.status().voters, ("n0", "n1"))

    def test_a_change_needs_the_id_of_the_group(self) -> None:
        """Members know each other by the id of the group; a voter that keeps it from one can be removed."""
        self.bench.core.member.group_name = type(self.bench.core.member.group_name)()
        add = change("add", "n4", "127.0.0.1:8")
        self.assertRefused(add, ResponseCode.LEADER_NOT_READY, "no id yet: each voter must answer once")
        self.bench.core.member.peers.last_heard_ms["n2"] = -100_000
        self.assertRefused(add, ResponseCode.LEADER_NOT_READY, "n2 does not: start it")
        self.bench.request(change("remove", "n2"))
        self.assertEqual(self.bench.core.status().voters, ("n0", "n1"))


class OutsiderTests(SynchronousTestCase):
    """Members that do not count."""

    def outsider(self, voters: str = "n1;n2") -> Bench:
        """n0, whose last entry names other voters."""
        ledger = ListLedger.of(1)
        ledger.append_configuration(Membership(voters=dict.fromkeys(voters.split(";"), "h:1"),
                                               learners={"n0": "h:9"}), 1)
        return Bench.make(ledger)

    def test_learner_does_not_stand(self) -> None:
        """However long it hears nothing."""
        bench = self.outsider()
        bench.run(60_000)
        self.assertEqual(sent(bench.seen, VoteRequest), [])

    def test_cut_change_is_undone(self) -> None:
        """The start list counts again, and the member becomes a candidate."""
        bench = self.outsider()
        bench.ledger.entries.pop()
        bench.core.member.refresh_end()
        bench.core.out.take()
        self.assertEqual(bench.core.status().membership_index, -1)
        for peer_id in ("n1", "n2"):
            bench.core.member.peers.heard(peer_id, 1, bench.core.member.out.now_ms)
        bench.run_until(VoteRequest)
