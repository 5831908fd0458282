# -*- test-case-name: tests.storage.test_writers -*-
"""Two programs that write to one archive, on a store without a lock: one goes on, none damages it."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

from dledger.storage.backups.reader import verify_archive
from dledger.storage.manifests.archive_commit import Commits
from dledger.storage.manifests.archive_manifest import (
    SLOT_NAMES,
    ArchiveBusy,
    read_archive,
)
from dledger.values.errors import StoreError
from tests.storage.archive_store import AFTER, BEFORE, FaultyStore, Killed
from tests.storage.archived_member import body_of
from tests.storage.support import HookedDisk
from tests.storage.test_place import SEEDS, URL, RemoteCase


class WritersCase(RemoteCase):
    """Members of one group, the later ones of which have more entries."""

    def setUp(self) -> None:
        super().setUp()
        self.stages: list[HookedDisk] = []
        self.whole: list[int] = []
        for count in (9, 12, 7, 14):
            self.append(count, term=1 + len(self.stages))
            stage = HookedDisk()
            stage.files, stage.directories = self.disk.clone().files, set(self.disk.directories)
            self.stages.append(stage)
            self.whole.append(self.closed() + 1)

    def entries(self, files: FaultyStore) -> int:
        """In the archive, all of which is sound."""
        report = verify_archive(self.remote(files).disk, URL)
        self.assertEqual(report.findings, [])
        return report.entries

    def copied(self, files: FaultyStore) -> FaultyStore:
        """Another store with the same files."""
        other = self.begun(-1)
        for path, data in files.contents().items():
            other.pipe_file(path, data)
        other.calls = []
        return other

    def begun(self, stage: int) -> FaultyStore:
        """A store to which a stage was shipped; nothing with -1. Uploads show when they are whole."""
        files = FaultyStore()
        files.is_atomic = True
        if stage >= 0:
            self.ship_to(self.remote(files), self.stages[stage])
        files.calls = []
        return files


class TwoWritersTests(WritersCase):
    """One writes while the other one is anywhere."""

    def test_every_place(self) -> None:
        """Another run, of another member, at each step of one: what that one shipped stays, all is sound."""
        refused = 0
        for stage, earlier, other in ((0, -1, 1), (2, 1, 3)):
            begun = self.begun(earlier)
            whole = self.copied(begun)
            self.ship_to(self.remote(whole), self.stages[stage])
            for number in range(len(whole.calls)):
                files = self.copied(begun)
                files.between[number] = partial(self.ship_to, self.remote(files), self.stages[other])
                try:
                    self.ship_to(self.remote(files), self.stages[stage])
                except ArchiveBusy as error:
                    self.assertIn("another program", str(error))
                    refused += 1
                except StoreError as error:  # (it began after what its member has)
                    self.assertIn("this member is behind", str(error))
                self.assertEqual(self.counted(files), self.whole[other], number)
                self.ship_to(self.remote(files), self.stages[-1])
                self.assertEqual(self.entries(files), self.whole[-1])
                self.assertEqual(self.bodies_at(self.remote(files)),
                                 list(map(body_of, range(self.whole[-1]))))
        self.assertGreater(refused, 30)

    def counted(self, files: FaultyStore) -> int:
        """Entries that count, whatever an old slot says."""
        manifest = read_archive(self.remote(files).disk, URL).manifest
        assert manifest is not None
        return manifest.end_index + 1

    def test_slept(self) -> None:
        """A writer that slept before it wrote its slot puts an old manifest there, which does not count."""
        begun = self.begun(0)
        whole = self.copied(begun)
        self.ship_to(self.remote(whole), self.stages[1])
        writes = [number for number, call in enumerate(whole.calls) if call == "pipe_file"]
        for number in writes:
            files = self.copied(begun)

            def several(files: FaultyStore = files) -> None:
                for stage in self.stages[1:]:
                    self.ship_to(self.remote(files), stage)

            files.between[number] = several
            try:
                self.ship_to(self.remote(files), self.stages[1])
            except ArchiveBusy:
                pass
            self.assertEqual(self.counted(files), self.whole[-1], number)
            self.ship_to(self.remote(files), self.stages[-1])
            self.assertEqual(self.entries(files), self.whole[-1])

    def test_one_manifest(self) -> None:
        """Others have gone on by three: a manifest that goes on from the one of before is refused."""
        begun = self.begun(0)
        writes = self.committed(self.copied(begun))
        listed = next(number for number, call in enumerate(writes) if call == "pipe_file") + 2
        self.assertGreater(listed, 5)
        for number in range(listed):
            files = self.copied(begun)

            def others(files: FaultyStore = files) -> None:
                files.between = {}
                commits = Commits(self.remote(files))
                for _ in range(3):
                    assert commits.manifest is not None
                    commits.commit(commits.manifest)

            with self.assertRaises(ArchiveBusy):
                self.committed(files, {number: others})
            self.assertEqual(read_archive(self.remote(files).disk, URL, reads_all=True).trouble, ())
            if number < 3:
                self.assertNotIn("pipe_file", files.calls[:listed])

    def committed(
        self, files: FaultyStore, between: dict[int, Callable[[], object]] | None = None
    ) -> list[str]:
        """A run writes one manifest. @return: its calls."""
        commits = Commits(self.remote(files))
        assert commits.manifest is not None
        files.calls, files.between = [], between or {}
        commits.commit(commits.manifest)
        return files.calls

    def test_ended(self) -> None:
        """A program that was killed at any step keeps no other one out."""
        begun = self.begun(0)
        whole = self.copied(begun)
        self.ship_to(self.remote(whole), self.stages[2])
        for number in range(len(whole.calls)):
            for kind in (BEFORE, AFTER):
                files = self.copied(begun)
                files.faults, files.kills = {number: kind}, True
                self.assertRaises(Killed, self.ship_to, self.remote(files), self.stages[2])
                files.faults = {}
                self.ship_to(self.remote(files), self.stages[3])
                self.assertEqual(self.entries(files), self.whole[3])

    def test_seeds(self) -> None:
        """Two writers in turns, of archives or backups, with kills and faults; no entry is lost."""
        for seed in range(1, SEEDS + 1):
            chance = random.Random(f"writers {seed}")
            files, count = self.begun(-1), 0
            for _ in range(chance.randrange(2, 8)):
                files.calls = []
                files.kills = chance.random() < 0.5
                files.faults = {chance.randrange(60): chance.choice((BEFORE, AFTER))
                                for _ in range(chance.randrange(2))}
                other, backups = chance.randrange(len(self.stages)), [chance.random() < 0.5 for _ in "ab"]
                files.between = {chance.randrange(60): partial(self.tried, files, other, backups[0])}
                self.tried(files, chance.randrange(len(self.stages)), backups[1])
                files.faults, files.between = {}, {}
                now = read_archive(self.remote(files).disk, URL).manifest
                entries = 0 if now is None else now.end_index + 1
                self.assertGreaterEqual(entries, count, seed)
                count = entries
                # (one that slept may have put an old manifest into a slot, where it does not count)
                self.assert_whole(self.remote(files), seed, newest=2)
            self.ship_to(self.remote(files), self.stages[-1], is_backup=True)
            self.assertEqual(self.entries(files), self.store.ledger_end_index + 1, seed)

    def tried(self, files: FaultyStore, stage: int, is_backup: bool) -> None:
        """A run, however it ends."""
        try:
            self.ship_to(self.remote(files), self.stages[stage], is_backup=is_backup)
        except (StoreError, Killed):
            pass

    def test_answer_lost(self) -> None:
        """A store whose client tries again, and finds its own file: that is no other program."""
        create = self.files.pipe_file

        def twice(path: str, value: bytes, mode: str = "overwrite") -> None:
            create(path, value, mode=mode)
            if mode == "create":
                create(path, value, mode=mode)

        self.patch(self.files, "pipe_file", twice)
        self.ship_to(self.remote(), self.stages[2])
        self.assertEqual(self.entries(self.files), self.whole[2])

    def test_no_conditional_writes(self) -> None:
        """A store that ignores the mode: a file of another program is noticed when it is read again."""
        write = self.files.pipe_file

        def blind(path: str, value: bytes, mode: str = "overwrite") -> None:
            write(path, value)
            if "generations" in path and "3.json" in path:
                write(path, value.replace(b"n0", b"n1"))

        self.patch(self.files, "pipe_file", blind)
        self.assertRaises(ArchiveBusy, self.ship_to, self.remote(), self.stages[2])


class StaleTests(WritersCase):
    """Older copies of manifests, without the log of a member."""

    def put_back(self, older: FaultyStore, newer: FaultyStore, *names: str) -> None:
        """Older files of these names, and no newer one of them."""
        kept = older.contents()
        for path in list(newer.contents()):
            if any(name in path for name in names):
                newer.rm_file(path)
        for path, data in kept.items():
            if any(name in path for name in names):
                newer.pipe_file(path, data)

    def test_slots(self) -> None:
        """Both slots: the manifest below C{generations} counts, that is a finding, and a run mends it."""
        for earlier in (0, 1, 2):
            files = self.begun(3)
            self.put_back(self.begun(earlier), files, *SLOT_NAMES)
            state = read_archive(self.remote(files).disk, URL)
            assert state.manifest is not None
            self.assertEqual(state.manifest.end_index + 1, self.whole[3])
            self.assertIn("older copies", "; ".join(state.trouble))
            report = verify_archive(self.remote(files).disk, URL)
            self.assertEqual((report.is_clean, report.end_index + 1), (False, self.whole[3]))
            self.ship_to(self.remote(files), self.stages[3])
            self.assertEqual(self.entries(files), self.whole[3])

    def test_generations(self) -> None:
        """The files below C{generations}: the slots count, and one of the others is missing."""
        files = self.begun(3)
        self.put_back(self.begun(1), files, "generations/")
        state = read_archive(self.remote(files).disk, URL)
        assert state.manifest is not None
        self.assertEqual(state.manifest.end_index + 1, self.whole[3])
        self.assertIn("is missing", "; ".join(state.trouble))

    def test_slot(self) -> None:
        """With one of the two slots lost, the report names that one."""
        for lost in SLOT_NAMES:
            files = self.begun(3)
            files.rm_file(f"{URL}/{lost}")
            state = read_archive(self.remote(files).disk, URL)
            (reported,) = state.trouble
            self.assertIn(f"{lost} is missing", reported)

    def test_all(self) -> None:
        """All manifests: the segments after their end show it, if there are two."""
        files = self.begun(3)
        self.put_back(self.begun(1), files, *SLOT_NAMES, "generations/")
        report = verify_archive(self.remote(files).disk, URL)
        self.assertIn("all manifests are older copies", report.findings[0].sentence)
        self.ship_to(self.remote(files), self.stages[3])
        self.assertEqual(self.entries(files), self.whole[3])
