# -*- test-case-name: tests.commands.test_archive -*-
"""C{dledger archive}, and C{dledger restore} of an archive."""

from __future__ import annotations

import errno
import json
import os
from typing import Any

from fsspec import core
from twisted.trial.unittest import SynchronousTestCase

import dledger.cli.data.archive
from dledger.base.disk.disk import OsDisk
from dledger.base.disk.hints import Hints
from dledger.cli.data.archive import ArchiveFollower
from dledger.storage.backups.place_worker import DeadlineMissed
from dledger.storage.manifests.archive_manifest import ArchiveBusy, ArchiveTargetError
from dledger.storage.manifests.archived_note import read_note
from dledger.values.errors import DirectoryError, StoreError
from tests.commands.test_backup import BODIES, NEW_PEERS, ArchivedCase
from tests.commands.test_group import THREE


class ArchiveCommandsTests(ArchivedCase):
    """C{dledger archive}, and C{dledger restore} of an archive."""

    def shipped(self, *more: str) -> dict[str, Any]:
        """The facts of a run."""
        done = self.run_cli("archive", self.path, self.place, "--json", *more)
        self.assertExit(done, 0)
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def test_machine(self) -> None:
        """An archive that a state machine could not start from says so; its segments stay until one could."""
        self.expire()
        self.append(*BODIES)
        words = "has no snapshot of the machine that these entries continue"
        self.assertExit(self.run_cli("archive", self.path, self.place), 0, words)
        self.assertExit(self.run_cli("archive", "--verify", self.place), 1, words, "1 finding")
        expire = ("archive", "--expire", self.place, "--keep-bytes", "0", "--delete")
        self.assertExit(self.run_cli(*expire), 0, "deleted 0 segments", "ones stay: the state")
        end = self.shipped()["end_index"]
        self.snapshot(end)
        self.assertExit(self.run_cli("archive", self.path, self.place), 0, f"snapshot after entry {end}")
        self.assertExit(self.run_cli(*expire), 0, " segments, ")
        self.assertExit(self.run_cli("archive", "--verify", self.place), 0, f"after entry {end}", "clean")

    def test_there_and_back(self) -> None:
        """Archive, again, more, its verification, and a new group with every entry of it."""
        first = self.shipped()
        self.assertGreater(first["new_segments"], 3)
        done = self.run_cli("archive", self.path, self.place)
        self.assertExit(done, 0, "nothing new", f"entries 0 to {first['end_index']},", "not closed")
        self.append(*BODIES)
        end = self.shipped()["end_index"]
        self.assertGreater(end, first["end_index"])
        self.assertExit(self.run_cli("archive", "--verify", self.place), 0, f"{end + 1} entries", "clean")
        self.assertExit(self.run_cli(*self.restore()), 0, f"entries 0 to {end}", "new group")

    def test_join(self) -> None:
        """A member of the same group, which is unsure."""
        end = self.shipped()["end_index"]
        arguments = ("restore", self.place, "--join", "--store", self.new_store, "--node-id", "n1", "--peers",
                     THREE)
        done = self.run_cli("--group", "other", *arguments)
        self.assertExit(done, 1, "is of group default", "dledger --group default restore")
        done = self.run_cli(*arguments)
        self.assertExit(done, 0, f"entries 0 to {end}, a member that joins the group default")
        self.assertIn("mapped_file_size_for_entry_data=4096", done.stdout)
        self.assertNotIn("new group", done.stdout)
        self.assertEqual(os.listdir(self.new_store), ["dledger-n1"])

    def test_damage(self) -> None:
        """Exit status 1, and the place: at the member, in an archive, and of one manifest."""
        self.shipped()
        self.append(*BODIES)
        last = sorted(os.listdir(f"{self.path}/data"))[-2]
        with open(f"{self.path}/data/{last}", "r+b") as file:
            file.seek(60)
            file.write(b"\xff")
        self.assertExit(self.run_cli("archive", self.path, self.place), 1, f"data/{last} at 0", "bodyCrc")
        self.assertExit(self.run_cli("archive", "--verify", self.place), 0, "clean")
        newest = max(json.load(open(f"{self.place}/archive-{number}.json"))["archive"]["generation"]
                     for number in (0, 1))
        os.truncate(f"{self.place}/archive-{newest % 2}.json", 100)
        done = self.run_cli("archive", "--verify", self.place)
        self.assertExit(done, 1, f"archive-{newest % 2}.json: no JSON", "another copy counts", "1 finding")
        self.assertExit(self.run_cli(*self.restore()), 0, "or the one before it, counts")
        first = sorted(os.listdir(f"{self.place}/data"))[0]
        os.truncate(f"{self.place}/data/{first}", 100)
        done = self.run_cli("archive", "--verify", self.place, "--json")
        self.assertEqual((done.exit_code, json.loads(done.stdout)["is_clean"]), (1, False))
        done = self.run_cli("archive", self.path, self.place)
        self.assertExit(done, 1, f"{first} has 100 bytes", "--verify")

    def test_note(self) -> None:
        """It says how far the archive goes, whoever shipped that."""
        end = self.shipped()["end_index"]
        self.assertIsNone(read_note(Hints(OsDisk()), self.path))
        self.shipped("--note")
        note = read_note(Hints(OsDisk()), self.path)
        assert note is not None
        self.assertEqual((note.end_index, note.target), (end, self.place))
        self.assertNotIn("archived", self.run_cli("verify", self.path).output)

    def test_note_of_a_backup(self) -> None:
        """The note ends with a closed segment, also if a backup has put more into the archive."""
        self.assertExit(self.run_cli("backup", self.path, self.place), 0)
        self.assertGreater(self.shipped("--note")["end_index"], 0)
        note = read_note(Hints(OsDisk()), self.path)
        assert note is not None
        other = self.mktemp()
        end = json.loads(self.run_cli("archive", self.path, other, "--json").stdout)["end_index"]
        self.assertEqual((note.end_index, note.target), (end, self.place))

    def test_expire(self) -> None:
        """Says what would go, and removes it only when asked to; a member goes on after it."""
        first = self.shipped()
        reported = self.run_cli("archive", "--expire", self.place, "--keep-bytes", "0")
        self.assertExit(reported, 0, f"would delete {first['segments'] - 1} segments", "Nothing was changed")
        self.assertExit(self.run_cli("archive", "--expire", self.place, "--keep-days", "1"), 0,
                        "would delete 0 segments")
        self.assertEqual(len(os.listdir(f"{self.place}/data")), first["segments"])
        done = self.run_cli("archive", "--expire", self.place, "--keep-bytes", "0", "--delete", "--json")
        self.assertExit(done, 0)
        gone = json.loads(done.stdout)
        self.assertEqual((gone["segments"], gone["end_index"], gone["is_dry_run"]),
                         (1, first["end_index"], False))
        self.assertEqual(len(os.listdir(f"{self.place}/data")), 1)
        self.append(*BODIES)
        self.assertEqual(self.shipped()["begin_index"], gone["begin_index"])
        self.assertExit(self.run_cli("archive", "--verify", self.place), 0, "clean")

    def test_wrong(self) -> None:
        """Each says what is allowed."""
        for arguments, status, words in (
            (("archive", self.path), 64, "MEMBER and TARGET"),
            (("archive", "--verify", self.place, self.path), 64, "no other directory"),
            (("archive", "--verify", self.place, "--follow"), 64, "no --follow"),
            (("archive", "--expire", self.place), 64, "--keep-days or --keep-bytes"),
            (("archive", "--expire", self.place, "--keep-days", "1", self.path), 64, "no other directory"),
            (("archive", "--expire", self.place, "--keep-days", "1"), 1, "no archive"),
            (("archive", self.path, self.place, "--keep-days", "1"), 64, "need --expire"),
            (("archive", "memory://a", self.place), 64, "is a URL"),
            (("archive", self.path, self.place, "-o", "x"), 64, "name=value"),
            (("archive", self.path, self.place, "-o", "x=1"), 1, "no options of a store"),
            (("archive", self.path, self.place, "--rate", "-1"), 64, "rate"),
            (("archive", self.path, self.place, "--deadline", "0"), 64, "deadline"),
            (("archive", self.place, self.path), 1, "does not exist"),
            (("archive", self.path, self.path), 1, "in the member's directory"),
            (("archive", self.path, "nowhere://a"), 1, "nowhere"),
            (("archive", "--verify", self.path), 1, "no archive"),
            (("archive", "--verify", "memory://nothing/there"), 1, "no archive-0.json"),
            (("restore", "absent", "--node-id", "n0", "--peers", NEW_PEERS), 64, "no directory absent"),
            (("restore", "memory://nothing", "--node-id", "n0", "--peers", NEW_PEERS), 1, "no archive"),
        ):
            self.assertExit(self.run_cli(*arguments), status, words)

    def test_options(self) -> None:
        """They go to fsspec, values as JSON where they can be."""
        seen: dict[str, object] = {}

        def url_to_fs(url: str, **options: object) -> None:
            seen.update(options, url=url)
            raise ValueError("seen")

        self.patch(core, "url_to_fs", url_to_fs)
        done = self.run_cli("archive", self.path, "s3://b/log", "-o", "endpoint_url=http://h:1",
                            "-o", "anon=true")
        self.assertExit(done, 1, "s3://b/log: seen", "--store-option")
        self.assertEqual(seen, {"url": "s3://b/log", "endpoint_url": "http://h:1", "anon": True})

    def test_follow(self) -> None:
        """Goes on until Ctrl-C: a line for each run that shipped something, and exit status 130."""
        slept: list[float] = []

        def sleep(seconds: float) -> None:
            slept.append(seconds)
            if len(slept) == 2:
                self.append(*BODIES)
            if len(slept) == 4:
                raise KeyboardInterrupt

        class Quick(ArchiveFollower):
            def __init__(self, turn: Any, **more: Any) -> None:
                super().__init__(turn, sleep=sleep, **more)

        self.patch(dledger.cli.data.archive, "ArchiveFollower", Quick)
        done = self.run_cli("archive", self.path, self.place, "--follow", "--interval", "2", "--json")
        self.assertExit(done, 130, "interrupted", "goes on")
        runs = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        self.assertEqual([run["new_segments"] > 0 for run in runs], [True, True])
        self.assertEqual(slept, [2.0] * 4)
        self.assertExit(self.run_cli("archive", "--verify", self.place), 0, "clean")


class FollowerTests(SynchronousTestCase):
    """Which failures end it."""

    def setUp(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []
        self.reported: list[str] = []
        self.errors: list[BaseException | None] = []

    def follower(self) -> ArchiveFollower:
        """On a clock of the test's; its turns end as listed, then by Ctrl-C."""
        def turn() -> None:
            error = self.errors.pop(0) if self.errors else KeyboardInterrupt()
            if error is not None:
                raise error

        def sleep(seconds: float) -> None:
            self.slept.append(seconds)
            self.now += seconds

        return ArchiveFollower(turn, interval_s=5.0, patience_s=60.0, seconds=lambda: self.now, sleep=sleep,
                               notify=self.reported.append)

    def test_fails(self) -> None:
        """The target, the disk of the member, a second writer: longer waits; a success begins anew."""
        fails = ArchiveTargetError("gone")
        self.errors = [fails, StoreError("damage"), ArchiveBusy("another"), None, fails, None]
        self.assertRaises(KeyboardInterrupt, self.follower().run)
        self.assertEqual(self.slept, [5.0, 10.0, 20.0, 5.0, 5.0, 5.0])
        self.assertEqual(self.reported[:2], [
            "dledger: gone; trying again in 5 s", "dledger: damage; trying again in 10 s",
        ])

    def test_patience(self) -> None:
        """A target that fails for too long ends it."""
        fails = ArchiveTargetError("gone")
        self.errors = [fails] * 99
        self.assertIs(self.assertRaises(ArchiveTargetError, self.follower().run), fails)
        self.assertEqual(self.slept, [5.0, 10.0, 20.0, 40.0])

    def test_at_once(self) -> None:
        """A refusal does, and a call that has missed its deadline: it may still do its work."""
        late = ArchiveTargetError("late")
        late.__cause__ = DeadlineMissed(errno.ETIMEDOUT, "late")
        for error in (DirectoryError("another group"), late):
            self.errors = [error]
            self.assertIs(self.assertRaises(type(error), self.follower().run), error)
        self.assertEqual(self.slept, [])
