# -*- test-case-name: tests.core.test_beliefs -*-
"""Tests of what a member believes of its peers."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from dledger.core.state.beliefs import PeerBeliefs
from protocols.wire.ledger.codes import VoteResult


class KindTests(SynchronousTestCase):
    """Of Java, ours, or unheard."""

    def kind(self, beliefs: PeerBeliefs) -> str:
        """What C{n1} is taken for."""
        kinds = {"ours": beliefs.is_ours("n1"), "java": beliefs.is_java("n1"),
                 "unheard": beliefs.is_unheard("n1")}
        found = [kind for kind, is_it in kinds.items() if is_it]
        self.assertEqual(len(found), 1, kinds)
        return found[0]

    def test_each_peer_is_of_one_kind(self) -> None:
        """A connection makes a peer unheard; a message without a version does not make ours one of Java."""
        beliefs = PeerBeliefs(push_quota=1)
        self.assertEqual(self.kind(beliefs), "unheard")
        for version, kind in ((0, "java"), (1, "ours"), (0, "ours")):
            beliefs.heard("n1", version, now_ms=7)
            self.assertEqual(self.kind(beliefs), kind)
        beliefs.incompatible.add("n1")
        beliefs.connected("n1")
        self.assertEqual(self.kind(beliefs), "unheard")
        self.assertEqual((beliefs.incompatible, beliefs.last_heard_ms), (set(), {"n1": 7}))
        self.assertFalse(beliefs.is_ours(None))

    def test_a_refused_vote(self) -> None:
        """Two refusals say that the peer has, or knows, other members."""
        for result in VoteResult:
            beliefs = PeerBeliefs(push_quota=1)
            beliefs.heard_vote("n1", result)
            self.assertEqual(bool(beliefs.refused_by), result in (
                VoteResult.REJECT_ALREADY_HAS_LEADER, VoteResult.REJECT_UNKNOWN_LEADER))
