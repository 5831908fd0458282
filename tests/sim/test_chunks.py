# -*- test-case-name: tests.sim.test_chunks -*-
"""Schedules push chunks, and their rules are checked."""

from __future__ import annotations

from unittest import mock

import attrs
from twisted.trial.unittest import SynchronousTestCase

from dledger.core.replication import catch_up, dispatcher
from dledger.core.replication.catch_up import TurnBudget
from dledger.testing.group.checks.chunks import ChunkRules
from dledger.testing.group.checks.require import InvariantError
from dledger.testing.group.members.cluster import SimCluster
from dledger.testing.group.schedule import run_schedule
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.batches import EntryChunk
from protocols.wire.ledger.codes import PushType
from protocols.wire.ledger.entry import ENTRY_HEADER
from protocols.wire.ledger.messages import PushEntryRequest, PushEntryResponse
from protocols.wire.ledger.own.own_entries import CONFIGURATION_CHANNEL


def chunk(channel: int = 0) -> EntryChunk:
    """One entry, 7."""
    record = ENTRY_HEADER.pack(1, 48, 7, 1, 0, channel, 0, 0, 0)
    return EntryChunk(
        first_index=7, count=1, term=1, records=record, units=bytes(32), records_crc=0, units_crc=0
    )


class ScheduleTests(SynchronousTestCase):
    """What seeds do."""

    def test_chunks_come_often(self) -> None:
        """Many schedules push many."""
        clusters: list[SimCluster] = []
        begin = SimCluster.__init__

        def begun(cluster: SimCluster, *args: object, **options: object) -> None:
            begin(cluster, *args, **options)  # type: ignore[arg-type]
            clusters.append(cluster)

        with mock.patch.object(SimCluster, "__init__", begun):
            for seed in range(1, 6):
                self.assertEqual(run_schedule(seed).failure, "")
        taken = [cluster.world.chunks.taken for cluster in clusters]
        self.assertGreater(sum(taken), 40)
        self.assertGreater(sum(count > 0 for count in taken), 1)


class PaceTests(SynchronousTestCase):
    """Members that lack two entries count as far behind in a busy group, and each push costs a pause."""

    def test_members_come_back(self) -> None:
        """Under faults as ever: nothing is lost, and every member is brought to the end."""
        pauses: list[str] = []
        may_push = TurnBudget.may_push

        def asked(budget: TurnBudget, peer_id: str) -> bool:
            may = may_push(budget, peer_id)
            if not may and not budget.is_spent:
                pauses.append(peer_id)
            return may

        with (
            mock.patch.object(dispatcher, "THROTTLE_SPARES_ENTRIES", 1),
            mock.patch.multiple(catch_up, ENTRY_COST_BYTES=8 << 20, SERVING_ENTRIES_MAX=1, CREDIT_MS=0),
            mock.patch.object(TurnBudget, "may_push", asked),
            mock.patch.object(TurnBudget, "serves", True),
        ):
            for seed in (1, 2):
                self.assertEqual(run_schedule(seed).failure, "")
        self.assertGreater(len(pauses), 30)


class RulesTests(SynchronousTestCase):
    """Each rule notices its breach."""

    def setUp(self) -> None:
        self.rules = ChunkRules()
        self.member = mock.Mock(member_id="n0")
        self.member.core.committed_index = 7
        self.invariants = mock.Mock(is_wire_sound=True)
        self.push = PushEntryRequest(type=PushType.APPEND, entries=chunk(), commit_index=7)

    def test_sound(self) -> None:
        """A sound one is counted."""
        self.rules.asks(self.member, self.push)
        self.rules.answers(self.member, self.push, PushEntryResponse(), self.invariants)
        self.assertEqual((self.rules.sent, self.rules.taken, self.rules.refused), (1, 1, 0))

    def test_not_committed(self) -> None:
        """Neither above the leader's commit, nor above that of the push."""
        push = attrs.evolve(self.push, commit_index=6)
        self.assertRaises(InvariantError, self.rules.asks, self.member, push)
        self.member.core.committed_index = 6
        self.assertRaises(InvariantError, self.rules.asks, self.member, self.push)

    def test_configuration(self) -> None:
        """A configuration entry is pushed as such."""
        push = attrs.evolve(self.push, entries=chunk(CONFIGURATION_CHANNEL))
        self.assertRaises(InvariantError, self.rules.asks, self.member, push)

    def test_refused(self) -> None:
        """Only rot, or a lie on the way, explains a refusal."""
        answer = PushEntryResponse(code=ResponseCode.UNSUPPORTED)
        reported = self.member, self.push, answer, self.invariants
        self.assertRaises(InvariantError, self.rules.answers, *reported)
        self.rules.is_rotten = True
        self.rules.answers(*reported)
        self.rules.is_rotten, self.invariants.is_wire_sound = False, False
        self.rules.answers(*reported)
        self.assertEqual(self.rules.refused, 3)
