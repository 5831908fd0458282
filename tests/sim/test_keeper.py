# -*- test-case-name: tests.sim.test_keeper -*-
"""An operator copies the log of a simulated group: copies are made and restored, wrong ones noticed."""

from __future__ import annotations

from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

from dledger.base.disk.segment import SegmentList
from dledger.storage.backups import archive
from dledger.storage.files.reader import LogReader
from dledger.storage.files.state_file import STATE_NAME, StateFile
from dledger.storage.store.file_store import FileStore
from dledger.testing.group.checks.require import InvariantError
from dledger.testing.group.focuses import FOCUSES
from dledger.testing.group.injection.faults import Nemesis
from dledger.testing.group.injection.keeper import CopyKeeper
from dledger.testing.group.members.cluster import GroupOptions, SimCluster
from dledger.testing.group.schedule import run_schedule
from dledger.testing.world.disk import ProcessKilled, SimDisk
from tests.storage.test_chunk_sums import our_first

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

    def test_findings_that_a_member_knows(self) -> None:
        """A process ends while its log is cut to begin anew: the next owes entries, and has no damage."""
        member = self.member
        member.kill()
        store = FileStore.open(member.config, member.disk)
        first = our_first(store.ledger_end_index + 9, 40 * 1024)
        with mock.patch.object(SegmentList, "drop_last", side_effect=ProcessKilled):
            self.assertRaises(ProcessKilled, store.truncate_to, first, anew=True)
        states = StateFile(member.disk, f"{member.config.self_path}/{STATE_NAME}").read()
        member.disk.end_process()
        self.assertTrue(member.start())
        self.assertEqual(member.ledger.ledger_end_index, -1)
        self.assertGreater(states[0].place.entry_index, 0)
        self.assertGreater(member.ledger.repair_end_index, 0)
        member.records.look()
        files = member.disk.clone()
        self.keeper._verify(member, files)
        for name in ("checkpoint", "commitmark"):
            files.flip_bit(f"{member.config.self_path}/{name}", 40, 1)
            self.assertRaises(InvariantError, self.keeper._verify, member, files)
            files = member.disk.clone()
        self.cluster.run(5)
        self.assertEqual((member.ledger.ledger_begin_index, member.ledger.repair_end_index), (0, -1))
        self.keeper._verify(member, member.disk.clone())

    def test_rows_that_a_member_will_end(self) -> None:
        """A failed write has left a part of a row: that is known until the member keeps house."""
        files, path = self.member.disk.clone(), f"{self.member.config.self_path}/chunks"
        files.makedirs(path)
        files.write_file(f"{path}/{0:020d}", b"torn" * 20)
        self.assertRaises(InvariantError, self.keeper._verify, self.member, files)
        self.member.ledger.parts.sums.trouble = "a write failed"
        self.keeper._verify(self.member, files)

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
