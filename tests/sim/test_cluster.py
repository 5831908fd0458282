# -*- test-case-name: tests.sim.test_cluster -*-
"""A simulated group: it lives, dies, comes back, and its verdict is a verdict."""

from __future__ import annotations

from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from dledger.node.requests.appends import AppendResult
from dledger.testing.group.clients import Load, SimClient
from dledger.testing.group.members.cluster import GroupOptions, NotLive, SimCluster
from dledger.testing.world.disk import PowerLoss, ProcessKilled
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode


class ClusterTestCase(SynchronousTestCase):
    """A running group of three."""

    def group(self, seed: int = 1, **settings: object) -> SimCluster:
        """A group that has elected."""
        cluster = SimCluster(GroupOptions(settings=settings), seed)
        cluster.start()
        cluster.run(4)
        self.assertIsNotNone(cluster.leader)
        return cluster

    def append(self, cluster: SimCluster, *bodies: bytes) -> list[tuple[ResponseCode, int]]:
        """Append at the leader; the list gets the answer."""
        answers: list[tuple[ResponseCode, int]] = []
        leader = cluster.leader
        assert leader is not None

        def reported(result: AppendResult) -> None:
            answers.append((ResponseCode.SUCCESS, result.index))

        def failed(failure: Failure) -> None:
            assert isinstance(failure.value, DLedgerError)
            answers.append((failure.value.code, -1))

        leader.call(lambda node: node.append(bodies).addCallbacks(reported, failed))
        return answers


class LifeTests(ClusterTestCase):
    """Members come and go."""

    def test_append_and_converge(self) -> None:
        """An append is acknowledged, and the run is judged good."""
        cluster = self.group()
        answers = self.append(cluster, b"a", b"b")
        cluster.run(1)
        self.assertEqual(answers, [(ResponseCode.SUCCESS, 0)])
        cluster.settle()
        cluster.judge()

    def test_one_seed_one_history(self) -> None:
        """The same seed gives the same steps, another one others."""
        def digest(seed: int) -> int:
            cluster = self.group(seed)
            self.append(cluster, b"a")
            cluster.run(3)
            return cluster.trace.digest

        self.assertEqual(digest(1), digest(1))
        self.assertNotEqual(digest(1), digest(2))

    def test_death_in_the_middle_of_a_read(self) -> None:
        """A read that finds damage writes a note of it, and may die of that: the run goes on."""
        cluster = self.group(flush_disk_type="sync", term_start_entry=False)
        self.append(cluster, b"a", b"b")
        cluster.run(4)
        leader = cluster.leader
        assert leader is not None
        leader.disk.flip_bit(f"/store/dledger-{leader.member_id}/data/{0:020d}", 48, 1)
        leader.disk.arm(die_in=1, death=PowerLoss)
        leader.call(lambda node: node.read(0).addErrback(lambda _: None))
        cluster.run(1)
        self.assertEqual(leader.boots, 1)
        cluster.run(5)
        self.assertEqual(leader.boots, 2)
        cluster.settle()
        cluster.judge()

    def test_killed_members_and_their_clients(self) -> None:
        """Calls without an answer end, with an outcome that is not known."""
        cluster = self.group()
        client = SimClient(cluster, "c", Load(appends=1, gets=0, follows=0, think_us=50_000),
                           cluster.random("client"))
        client.start()
        cluster.run(2)
        cluster.restarts_us = None
        client.is_stopped = True
        for member in cluster.members.values():
            member.kill()
        cluster.run(8)
        self.assertFalse(client.is_busy)

    def test_death_inside_a_call(self) -> None:
        """A process that dies inside a disk call is started again, and all is well."""
        for death in (PowerLoss, ProcessKilled):
            cluster = self.group(flush_disk_type="sync")
            leader = cluster.leader
            assert leader is not None
            leader.disk.arm(die_in=2, death=death)
            self.append(cluster, b"a")
            cluster.run(5)
            self.assertEqual(leader.boots, 2)
            cluster.settle()
            cluster.judge()

    def test_orderly_stop(self) -> None:
        """A stopped member is down, and was asked to be."""
        cluster = self.group()
        cluster.restarts_us = None
        leader = cluster.leader
        assert leader is not None
        leader.stop()
        cluster.run(3)
        self.assertFalse(leader.is_up)
        other = cluster.leader
        assert other is not None
        self.assertNotEqual(other.member_id, leader.member_id)

    def test_stop_waits_for_the_flush(self) -> None:
        """The store is closed when the fsync under way has ended."""
        cluster = SimCluster(GroupOptions(settings={"flush_disk_type": "sync"}, flush_us=300_000), 1)
        cluster.restarts_us = None
        cluster.start()
        cluster.run(6)
        leader = cluster.leader
        assert leader is not None
        follower = next(member for member in cluster.members.values() if member is not leader)
        while follower.node.flusher.idle().called:
            self.append(cluster, b"a")
            cluster.run(0.01)
        follower.stop()
        cluster.run(0.1)
        self.assertTrue(follower.is_up)
        cluster.run(2)
        self.assertFalse(follower.is_up)

    def test_pause(self) -> None:
        """A paused member does nothing; resumed, it reads what came."""
        cluster = self.group()
        leader = cluster.leader
        assert leader is not None
        follower = next(member for member in cluster.members.values() if member is not leader)
        follower.pause()
        self.append(cluster, b"a")
        cluster.run(1)
        self.assertEqual(cluster.invariants.mirror(follower.member_id).end_index, -1)
        follower.resume()
        cluster.run(1)
        self.assertEqual(cluster.invariants.mirror(follower.member_id).end_index, 0)

    def test_member_that_cannot_start_tries_again(self) -> None:
        """A store that cannot be opened is tried until it can be."""
        cluster = self.group()
        member = cluster.members["n1"]
        member.kill()
        member.disk.set_full(True)
        member.disk.arm(reads=5)
        cluster.restart_later(member, 1000)
        cluster.run(1)
        self.assertFalse(member.is_up)
        self.assertIn("cannot open the store", member.start_error)
        self.assertIn("n1 down", cluster.describe())
        member.disk.disarm()
        member.disk.failing_reads = 0
        cluster.run(4)
        self.assertTrue(member.is_up)


class VerdictTests(ClusterTestCase):
    """A group that is not well is not judged well."""

    def test_not_live(self) -> None:
        """Two members that never come back are a failure, after a bounded time."""
        cluster = self.group()
        for member_id in ("n0", "n1"):
            cluster.members[member_id].kill()
        self.assertRaises(NotLive, cluster.settle)
        self.assertLess(cluster.clock.now_us, 120_000_000)

    def test_faults_end(self) -> None:
        """After C{end_faults} everything that was broken works again."""
        cluster = self.group()
        cluster.network.cut("n0", "n1")
        cluster.members["n0"].kill()
        cluster.members["n1"].pause()
        cluster.members["n2"].disk.set_full(True)
        cluster.end_faults()
        cluster.settle()
        cluster.judge()
        self.assertTrue(cluster.is_converged())
