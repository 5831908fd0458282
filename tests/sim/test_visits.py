# -*- test-case-name: tests.sim.test_visits -*-
"""Faults that only focuses draw: each happens, the group survives it, and wrong answers are noticed."""

from __future__ import annotations

from unittest import mock

from twisted.internet.defer import Deferred, succeed
from twisted.trial.unittest import SynchronousTestCase

from dledger.core.replication.handler import EntryHandler
from dledger.machine.files.fetching import SnapshotFetch
from dledger.node.node import Node
from dledger.testing.group.focuses import FOCUSES
from dledger.testing.group.injection import insider, visits
from dledger.testing.group.injection.frames import Jumble
from dledger.testing.group.injection.insider import Insider
from dledger.testing.group.schedule import run_schedule


class HappenTests(SynchronousTestCase):
    """Each in some seeds of its focus."""

    def test_programs_inside_members_get_answers(self) -> None:
        """Reads, waits, batches, looks and options."""
        made: list[Insider] = []

        def make(*arguments: object) -> Insider:
            made.append(Insider(*arguments))  # type: ignore[arg-type]
            return made[-1]

        with mock.patch.object(visits, "Insider", make):
            for seed in (2, 5, 12):
                self.assertEqual(run_schedule(seed, focus=FOCUSES["programs-inside-members"][1]).failure, "")
        for kind in ("get", "wait", "batch", "ready", "taken"):
            self.assertGreater(sum(one.reported.get(kind, 0) for one in made), 5, kind)

    def test_pushes_overtake_each_other(self) -> None:
        """Some come before those that they follow, and wait for them."""
        queued: list[int] = []
        check = EntryHandler.check_abnormal_future

        def note(handler: EntryHandler) -> None:
            queued.append(handler.queued)
            check(handler)

        made: list[Jumble] = []

        def make(rng: object) -> Jumble:
            made.append(Jumble(rng))  # type: ignore[arg-type]
            return made[-1]

        with mock.patch.object(visits, "Jumble", make), \
                mock.patch.object(EntryHandler, "check_abnormal_future", note):
            for seed in (2, 3, 8):
                self.assertEqual(run_schedule(seed, focus=FOCUSES["pushes-out-of-order"][1]).failure, "")
        self.assertGreater(sum(one.jumbled for one in made), 20)
        self.assertGreater(sum(map(bool, queued)), 5)

    def test_late_members_fetch_snapshots(self) -> None:
        """Those of other members, because the log begins after their state."""
        fetched: list[SnapshotFetch] = []
        fetch = SnapshotFetch.fetch

        def note(self: SnapshotFetch) -> object:
            fetched.append(self)
            return fetch(self)

        with mock.patch.object(SnapshotFetch, "fetch", note):
            for seed in (1, 5, 6):
                self.assertEqual(run_schedule(seed, focus=FOCUSES["machines-of-late-members"][1]).failure, "")
                if len(fetched) > 2:
                    break
        self.assertGreater(len(fetched), 2)


class NoticeTests(SynchronousTestCase):
    """A member that answers a program within it wrongly fails the run."""

    def failure(self) -> str:
        """The first one of some seeds."""
        for seed in (2, 3, 4, 5):
            failure = run_schedule(seed, focus=FOCUSES["programs-inside-members"][1]).failure
            if failure:
                return failure
        return ""

    def test_wait_that_ends_early_is_noticed(self) -> None:
        """Neither with its entry, nor in its time."""
        def wait_for(node: Node, index: int, *, time_out_ms: int) -> Deferred[int]:
            return succeed(node.committed_index)

        with mock.patch.object(Node, "wait_for", wait_for):
            self.assertIn("invariant 7", self.failure())

    def test_stale_read_is_noticed(self) -> None:
        """A member reads its own entries, whether it leads or not."""
        read = Node.read

        def stale(node: Node, index: int) -> Deferred[bytes]:
            if index > node.committed_index:
                return read(node, 1 << 40)  # "beyond", asked of a leader that lives; else it is refused
            return succeed(b"another body")

        with mock.patch.object(Node, "read", stale):
            self.assertNotEqual(self.failure(), "")

    def test_false_readiness_is_noticed(self) -> None:
        """A member that knows no leader calls itself ready; one that settled does not."""
        with mock.patch.object(insider, "readiness_problems", lambda status: ()), \
                mock.patch.object(insider, "health_problem", lambda status: None):
            self.assertIn("invariant 15", self.failure())
        with mock.patch.object(insider, "readiness_problems", lambda status: ("why",)):
            self.assertIn("not ready when all faults are over", self.failure())
