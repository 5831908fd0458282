# -*- test-case-name: tests.core.test_peer_knowledge -*-
"""Which kinds of entries the peers know."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from dledger.core.state.peer_knowledge import PeerKnowledge
from protocols.wire.ledger.codes import (
    HEART_BEAT_WIRE_VERSION,
    WIRE_FLAG_OPEN_RUNS,
    WIRE_FLAG_TIMES,
    WIRE_VERSION,
)


class KnowledgeTests(SynchronousTestCase):
    """Their last word counts."""

    def test_each_version_reports_its_knowledge(self) -> None:
        """This version knows both kinds, an earlier one may know none, Java takes any entry."""
        known = PeerKnowledge()
        for peer_id, version in (("n1", HEART_BEAT_WIRE_VERSION), ("n2", WIRE_VERSION), ("java", 0)):
            known.heard(peer_id, version)
        self.assertEqual((known.open_runs, known.times), ({"n1"}, {"n1", "java"}))
        self.assertTrue(known.all_take_times(["n1", "java"]))
        self.assertFalse(known.all_take_times(["n1", "n2"]))
        self.assertFalse(known.all_take_times(["n3"]))

    def test_an_older_version_takes_its_word_back(self) -> None:
        """A member that goes back to an earlier version knows them no more."""
        known = PeerKnowledge()
        known.heard("n1", HEART_BEAT_WIRE_VERSION)
        known.heard("n1", HEART_BEAT_WIRE_VERSION & ~WIRE_FLAG_TIMES)
        self.assertEqual((known.open_runs, known.times), ({"n1"}, set()))
        known.heard("n1", HEART_BEAT_WIRE_VERSION & ~WIRE_FLAG_OPEN_RUNS)
        self.assertEqual((known.open_runs, known.times), (set(), {"n1"}))
