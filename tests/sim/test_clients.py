# -*- test-case-name: tests.sim.test_clients -*-
"""Clients note the answers to them, no more."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from dledger.testing.group.checks.history import NEVER, Call
from dledger.testing.group.checks.require import InvariantError
from dledger.testing.group.clients import Load, SimClient
from dledger.testing.group.members.cluster import GroupOptions, SimCluster


class SimClientTests(SynchronousTestCase):
    """One client of one kind of call."""

    def setUp(self) -> None:
        """A group that has elected."""
        self.cluster = SimCluster(GroupOptions(settings={"term_start_entry": False}), 1)
        self.cluster.start()
        self.cluster.run(4)

    def client(self, **load: float) -> SimClient:
        """A client that makes such calls only."""
        nothing = {"appends": 0.0, "gets": 0.0, "follows": 0.0}
        client = SimClient(
            self.cluster, "c", Load(think_us=100_000, **{**nothing, **load}),  # type: ignore[arg-type]
            self.cluster.random("client"),
        )
        client.start()
        return client

    def calls(self, kind: str) -> list[Call]:
        """What is in the history."""
        return [call for call in self.cluster.history.calls if call.kind == kind]

    def test_appends(self) -> None:
        """Bodies are unique, answers come with their index."""
        self.client(appends=1.0)
        self.cluster.run(5)
        calls = self.calls("append")
        done = [call for call in calls if call.outcome == "ok"]
        self.assertGreater(len(done), 10)
        self.assertEqual([call.index for call in done], list(range(len(done))))
        self.assertEqual(len({call.body for call in calls}), len(calls))

    def test_conditions(self) -> None:
        """Some appends expect an end: acknowledged after it, or refused because another client was first."""
        clients = [self.client(appends=1.0, conditions=1.0) for _ in range(2)]
        self.cluster.run(20)
        outcomes = [call.outcome for call in self.calls("append")]
        self.assertEqual(sum(client.kept for client in clients), outcomes.count("ok"))
        self.assertGreater(outcomes.count("ok"), 50)
        self.assertGreater(outcomes.count("failed"), 0)

    def test_no_answer_is_unknown(self) -> None:
        """A client whose call is not answered gives up, and does not know."""
        self.client(appends=1.0, patience_us=1_000_000)
        self.cluster.run(2)
        for member in self.cluster.members.values():
            member.pause()
        self.cluster.run(5)
        unknown = [call for call in self.calls("append") if call.outcome == "unknown"]
        self.assertEqual(unknown[0].ended, NEVER)

    def test_reads(self) -> None:
        """Gets are found or beyond."""
        writer = self.client(appends=1.0)
        self.cluster.run(3)
        writer.is_stopped = True
        self.client(gets=1.0)
        self.cluster.run(5)
        self.assertEqual({call.outcome for call in self.calls("get")} - {"failed"}, {"ok", "beyond"})

    def test_strays(self) -> None:
        """Calls past the client are noted as well; some are refused by members that do not lead."""
        self.client(appends=0.5, gets=0.5, wander=1.0)
        self.cluster.run(10)
        for kind in ("append", "get"):
            outcomes = {call.outcome for call in self.calls(kind)}
            self.assertLessEqual({"ok", "failed"}, outcomes)

    def test_killed(self) -> None:
        """A client that is killed leaves a call without an outcome; its successor goes on."""
        for member in self.cluster.members.values():
            member.pause()
        client = self.client(appends=1.0)
        self.cluster.run(1)
        self.assertTrue(client.is_busy)
        client.kill()
        for member in self.cluster.members.values():
            member.resume()
        self.cluster.run(5)
        calls = self.calls("append")
        self.assertEqual(calls[0].outcome, "unknown")
        self.assertIn("ok", {call.outcome for call in calls[1:]})

    def test_followers_show_the_log(self) -> None:
        """What a follower shows is compared with what is committed."""
        writer = self.client(appends=1.0)
        self.cluster.run(3)
        writer.is_stopped = True
        self.cluster.run(2)
        self.cluster.invariants.committed[0] = 77
        self.cluster.invariants.records[0, 77] = (bytes(48) + b"other", -1)
        self.client(follows=1.0)
        self.assertRaises(InvariantError, self.cluster.run, 3)
