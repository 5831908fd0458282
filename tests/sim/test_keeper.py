# -*- test-case-name: tests.sim.test_keeper -*-
"""An operator copies the log of a simulated group: copies are made and restored, wrong ones noticed."""

from __future__ import annotations

from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

from dledger.storage.backups import archive
from dledger.storage.files.reader import LogReader
from dledger.testing.group.focuses import FOCUSES
from dledger.testing.group.injection.faults import Nemesis
from dledger.testing.group.injection.keeper import CopyKeeper
from dledger.testing.group.members.cluster import GroupOptions, SimCluster
from dledger.testing.group.schedule import run_schedule
from dledger.testing.world.disk import SimDisk

_, RUNNING = FOCUSES["copies-of-a-running-group"]
_, EXPIRING = FOCUSES["copies-of-an-expiring-log"]


class CopiesTests(SynchronousTestCase):
    """In whole schedules."""

    def test_copies_and_restored_members(self) -> None:
        """Backups and archives are made, expire and are given back; some runs fail, each with a reason."""
        text = ""
        for seed in (7, 8, 9):
            for focus in (RUNNING, EXPIRING):
                outcome = run_schedule(seed, focus=focus, seconds=20, wants_all_lines=True)
                self.assertEqual(outcome.failure, "", seed)
                text += "\n".join(outcome.lines)
        for sign in ("begins with entries up to", "is not copied to", "a bit flipped in /kept"):
            self.assertIn(sign, text)

    def first_failure(self) -> str:
        """Of some schedules; empty: all pass."""
        for seed in (9, *range(1, 7)):
            for focus in (RUNNING, EXPIRING):
                failure = run_schedule(seed, focus=focus, seconds=20).failure
                if failure:
                    return failure
        return ""

    def test_copy_beyond_the_commit_is_noticed(self) -> None:
        """A backup with entries of which the member does not know that they are committed."""
        refresh = LogReader.refresh

        def too_far(reader: LogReader) -> None:
            refresh(reader)
            reader.committed_index = reader.end_index

        with mock.patch.object(LogReader, "refresh", too_far):
            self.assertIn("invariant 14", self.first_failure())

    def test_copy_of_another_history_is_noticed(self) -> None:
        """A copy goes on behind entries that its member does not have."""
        with mock.patch.object(archive, "check_same_end", lambda *_: None), \
                mock.patch.object(archive, "_expired", lambda *_: None):
            self.assertNotEqual(self.first_failure(), "")


class KeeperTests(SynchronousTestCase):
    """One operator."""

    def setUp(self) -> None:
        self.cluster = SimCluster(GroupOptions(settings={"mapped_file_size_for_entry_data": 1024}), 1)
        nemesis = Nemesis(self.cluster, self.cluster.random("faults"), seconds=10)
        self.keeper: CopyKeeper = nemesis.visits.keeper
        self.cluster.start()
        self.cluster.run(5)
        self.member = next(iter(self.cluster.members.values()))
        for _ in range(20):
            leader = self.cluster.leader
            assert leader is not None
            leader.call(lambda node: node.append(b"x" * 300))
            self.cluster.run(0.5)

    def test_copies_are_continued_and_judged(self) -> None:
        """Of both kinds, with what the group has committed."""
        for _ in range(20):
            self.keeper.keep(self.member)
        self.assertGreater(self.keeper.kept, 10)
        self.keeper.judge()
        ends = [copy.end_index for copy in self.keeper.copies]
        self.assertTrue(all(10 <= end <= self.cluster.invariants.last_committed for end in ends), ends)

    def test_lost_copy_is_noticed(self) -> None:
        """The files of a copy are gone, or another entry is in it."""
        for _ in range(6):
            self.keeper.keep(self.member)
        self.keeper.disk = SimDisk(self.cluster.random("another"))
        self.assertRaises(AssertionError, self.keeper.judge)

    def test_restored_directory_is_renamed_whole(self) -> None:
        """A directory with those in it gets another name, which must be free."""
        disk = SimDisk(self.cluster.random("disk"))
        disk.makedirs("/a/b/c")
        disk.write_file("/a/b/c/file", b"1")
        disk.makedirs("/d")
        self.assertRaises(FileExistsError, disk.rename, "/a/b", "/d")
        disk.rename("/a/b", "/d/e")
        self.assertEqual(disk.read_file("/d/e/c/file"), b"1")
        self.assertFalse(disk.exists("/a/b"))
