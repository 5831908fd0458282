# -*- test-case-name: tests.sim.test_liars -*-
"""A member that lies, and frames that arrive changed: nobody dies, and the group comes back."""

from __future__ import annotations

import random

import attrs
from twisted.trial.unittest import SynchronousTestCase

from dledger.testing.group.checks.apart import ApartInvariants
from dledger.testing.group.checks.require import InvariantError
from dledger.testing.group.injection.frames import corrupt, cut_frames
from dledger.testing.group.injection.lies import SUBJECTS, Lies
from dledger.testing.group.liars import LyingCluster, run_lying_schedule
from dledger.testing.group.members.cluster import GroupOptions
from protocols.wire.ledger.bounds import check_bounds
from protocols.wire.ledger.messages import HeartBeatRequest, MetadataResponse, PushEntryRequest, Request
from protocols.wire.ledger.push import decode_frame, encode_request_frame
from protocols.wire.ledger.record_checks import check_records


class ScheduleTests(SynchronousTestCase):
    """Some seeds, of which each once showed a bug."""

    def test_seeds(self) -> None:
        """103: an id of the group that no file has room for. 100091: a length that swallows all answers."""
        for seed in (103, 100091):
            self.assertEqual(run_lying_schedule(seed, wants_all_lines=True).failure, "", seed)

    def test_lies_are_reported(self) -> None:
        """The same seed gives the same run, and the liar is heard."""
        first, second = (run_lying_schedule(17, seconds=8, wants_all_lines=True) for _ in range(2))
        self.assertEqual((first.failure, first.digest), ("", second.digest))
        self.assertIn("lies about", first.lines[0])

    def test_a_death_is_seen(self) -> None:
        """A process that ends by itself fails the run, and so does one that cannot start."""
        cluster = LyingCluster(GroupOptions(settings={}), 1)
        cluster.start()
        cluster.run(4)
        member = cluster.members["n1"]
        with self.assertRaises(InvariantError):
            cluster.process_ended(member, asked=False)
        with self.assertRaises(InvariantError):
            cluster.start_failed(member)


class SplitTests(SynchronousTestCase):
    """When two members cannot agree any more."""

    def test_split(self) -> None:
        """One has committed an entry where the other one holds another."""
        cluster = LyingCluster(GroupOptions(settings={}), 1)
        cluster.start()
        cluster.run(5)
        cluster.settle()
        invariants, ids = cluster.invariants, list(cluster.members)
        assert isinstance(invariants, ApartInvariants)
        self.assertEqual(invariants.split(ids), "")
        invariants.of("n1").mirror("n1").terms[0] += 1
        self.assertIn("holds another entry", invariants.split(ids))


class LiesTests(SynchronousTestCase):
    """Every lie is well-formed."""

    def test_well_formed(self) -> None:
        """Its frame can be decoded, and its numbers are within the bounds."""
        lies = Lies(random.Random(1), group="g", self_id="n0", ids=("n0", "n1"), near=lambda: (5, 20))
        types = tuple(kind for kinds in SUBJECTS.values() for kind in kinds)
        reported: set[type[Request]] = set()
        for _ in range(1000):
            request = lies.request("n1", types)
            assert request is not None
            reported.add(type(request))
            check_bounds(request)
            if isinstance(request, PushEntryRequest) and request.entries is not None:
                check_records(request.entries)
            self.assertEqual(decode_frame(encode_request_frame(request, 1))[0], 1)
        self.assertEqual(len(reported), 5)
        self.assertIsNone(lies.request("n1", (MetadataResponse,)))


class FrameTests(SynchronousTestCase):
    """Frames in a write."""

    def test_cut_and_corrupt(self) -> None:
        """The frames are found; another write has one byte changed."""
        beat = HeartBeatRequest(group="g", term=1)
        frames = [encode_request_frame(attrs.evolve(beat, term=term), term) for term in (1, 2)]
        data = b"".join(frames)
        self.assertEqual(list(cut_frames(data)), frames)
        for seed in range(50):
            spoilt = corrupt(data, random.Random(seed))
            self.assertEqual(sum(a != b for a, b in zip(data, spoilt, strict=True)), 1)
