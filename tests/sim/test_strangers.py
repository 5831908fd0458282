# -*- test-case-name: tests.sim.test_strangers -*-
"""Strangers say anything, and disturb nobody."""

from __future__ import annotations

import random
from collections import Counter

from twisted.trial.unittest import SynchronousTestCase

from dledger.testing.group.injection.strangers import (
    NOBODY,
    Stranger,
    any_clients_request,
    any_request,
)
from dledger.testing.group.members.cluster import GroupOptions, SimCluster
from protocols.wire.ledger.push import decode_frame, encode_request_frame


class StrangerTests(SynchronousTestCase):
    """A running group, and a stranger."""

    def test_any_request(self) -> None:
        """Every kind comes up, well-formed, and none in the name of a member."""
        rng = random.Random(1)
        seen = set()
        for number in range(300):
            request = any_request(rng, group="default", member_id="n0", term=3)
            seen.add(request.kind)
            self.assertEqual(decode_frame(encode_request_frame(request, number)), (number, request))
            self.assertEqual(request.leader_id, NOBODY)
            self.assertIn(request.local_id, (None, NOBODY))
        self.assertEqual(len(seen), 7)

    def test_any_request_of_a_client(self) -> None:
        """Every kind that appends, reads places, asks a machine or changes the group."""
        rng = random.Random(1)
        made = [any_clients_request(rng, group="default", member_id="n0", body=b"x") for _ in range(300)]
        self.assertEqual(len({request.kind for request in made}), 11)

    def test_asking_changes_no_members(self) -> None:
        """A stranger's appends may come into the log; no member is added, removed, or brought down."""
        cluster = SimCluster(GroupOptions(), 1)
        cluster.start()
        cluster.run(4)
        before = cluster.invariants.membership
        stranger = Stranger(cluster)
        for _ in range(60):
            stranger.ask()
            cluster.run(0.1)
        cluster.run(5)
        self.assertEqual(cluster.invariants.membership, before)
        for member in cluster.members.values():
            refusals = member.node.status().counts.refusals
            self.assertTrue({"FORBIDDEN", "UNKNOWN_GROUP", "UNEXPECTED_ARGUMENT"} <= refusals.keys())
        self.assertEqual([member.boots for member in cluster.members.values()], [1, 1, 1])
        cluster.settle()
        cluster.judge()

    def test_crowds_are_turned_away(self) -> None:
        """More than have a place, with bodies that are too long and many waits: members refuse, and go on."""
        cluster = SimCluster(GroupOptions(settings={"max_connections": 8}), 1)
        cluster.start()
        cluster.run(4)
        stranger = Stranger(cluster)
        for _ in range(12):
            stranger.crowd()
            cluster.run(0.5)
        refusals: Counter[str] = Counter()
        for member in cluster.members.values():
            refusals.update(member.node.status().counts.refusals)
        self.assertTrue({"TOO_MANY_CLIENTS", "UNEXPECTED_ARGUMENT", "LEADER_PENDING_FULL"} <= refusals.keys())
        cluster.run(25)
        self.assertEqual([member.boots for member in cluster.members.values()], [1, 1, 1])
        cluster.settle()
        cluster.judge()

    def test_no_harm(self) -> None:
        """The leader goes on leading in its term, and all connections end."""
        cluster = SimCluster(GroupOptions(), 1)
        cluster.start()
        cluster.run(4)
        leader, term = cluster.leader, cluster.members["n0"].core.member.term
        stranger = Stranger(cluster)
        for _ in range(100):
            stranger.speak()
            cluster.run(0.1)
        cluster.run(25)
        self.assertIs(cluster.leader, leader)
        self.assertEqual(cluster.members["n0"].core.member.term, term)
        incoming = [one.node.status().connections.incoming for one in cluster.members.values()]
        self.assertEqual(incoming, [2, 2, 2])
        cluster.settle()
        cluster.judge()
