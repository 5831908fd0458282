# -*- test-case-name: tests.storage.test_place -*-
"""Archives on stores of fsspec: as in a directory, and with faults at every step."""

from __future__ import annotations

import errno
import os
import random
import sys
import threading
from typing import Any

from fsspec import core
from twisted.trial.unittest import SynchronousTestCase

from dledger.storage.backups import place
from dledger.storage.backups.archive import ArchiveSummary, archive_log
from dledger.storage.backups.place import RemotePlace, opened_place
from dledger.storage.backups.place_worker import CallWorker
from dledger.storage.backups.reader import archive_batches, opened_archive, verify_archive
from dledger.storage.backups.restore import restore_archive
from dledger.storage.backups.source import ArchiveSource
from dledger.storage.manifests.archive_manifest import SLOT_NAMES, ArchiveTargetError, read_archive
from dledger.storage.manifests.archive_place import ArchivePlace, DirectoryPlace
from dledger.storage.store.file_store import FileStore
from dledger.testing.world.memory_disk import MemoryDisk
from dledger.values.errors import DirectoryError, StoreError
from dledger.values.ledger.group_name import GroupName
from protocols.wire.ledger.entry import iterate_records
from tests.storage.archive_store import AFTER, BEFORE, SHORT, TORN, FaultyStore, InThisThread, Killed
from tests.storage.archived_member import GROUP, ArchiveCase, body_of
from tests.storage.support import ROOT, HookedDisk, bodies_in, config_of

URL = "faulty://bucket/log"
#: Of faults at random; CI takes fewer than a search for errors would.
SEEDS = int(os.environ.get("DLEDGER_ARCHIVE_SEEDS", "20"))
FIRST_SEED = int(os.environ.get("DLEDGER_ARCHIVE_SEED", "1"))


class RemoteCase(ArchiveCase):
    """A member, and a store."""

    def setUp(self) -> None:
        super().setUp()
        self.files = FaultyStore()

    def remote(self, files: FaultyStore | None = None, worker: CallWorker | None = None) -> RemotePlace:
        """The place on the store."""
        return RemotePlace(self.files if files is None else files, URL, worker or InThisThread(20.0))

    def ship_to(
        self, place: ArchivePlace, disk: MemoryDisk | None = None, *, is_backup: bool = False
    ) -> ArchiveSummary:
        """One run."""
        source = ArchiveSource.open(self.disk if disk is None else disk, ROOT)
        try:
            return archive_log(source, place, is_backup=is_backup, taken_s=1)
        finally:
            source.close()

    def assert_whole(self, place: ArchivePlace, seed: int = 0, *, newest: int = 4) -> None:
        """Every file is there that a manifest lists: one that counts, or one of those before."""
        state = read_archive(place.disk, place.directory, reads_all=True)
        sizes = place.sizes()
        for manifest in sorted(set(state.manifests), key=lambda one: -one.generation)[:newest]:
            for one in (*manifest.pieces, *manifest.snapshots):
                self.assertEqual(sizes.get(one.name), one.size, (seed, manifest.generation))

    def bodies_at(self, place: ArchivePlace) -> list[bytes]:
        """In the archive, which must be sound."""
        self.assertEqual(verify_archive(place.disk, place.directory).findings, [])
        manifest = opened_archive(place.disk, place.directory)
        return [body for batch in archive_batches(place.disk, place.directory, manifest)
                for _, body in iterate_records(batch)]


class PlaceTests(RemoteCase):
    """An archive on a store is the same as in a directory."""

    def test_same_files(self) -> None:
        """Byte for byte; with the thread, too."""
        self.append(40)
        self.ship_to(self.remote(worker=CallWorker(60.0)))
        self.append(20)
        self.ship_to(self.remote())
        self.ship_to(DirectoryPlace(self.place, "log"))
        theirs = {path.removeprefix("/bucket/log/"): data for path, data in self.files.contents().items()}
        ours = {path.removeprefix("log/"): data for path, data in self.place.contents().items()
                if path != "log/lock"}
        self.assertEqual(sorted(theirs), sorted(ours))
        for name in ours:
            if name not in SLOT_NAMES:
                self.assertEqual(theirs[name], ours[name])
        self.assertEqual(self.bodies_at(self.remote()), list(map(body_of, range(self.closed() + 1))))

    def test_refusals(self) -> None:
        """Foreign files, changed files, and lost manifests, as in a directory; with the URL of the file."""
        self.append(40)
        self.files.pipe_file(f"{URL}/mine", b"1")
        error = self.assertRaises(DirectoryError, self.ship_to, self.remote())
        self.assertIn(f"{URL} holds mine", str(error))
        self.files.rm_file(f"{URL}/mine")
        self.ship_to(self.remote())
        manifest = read_archive(self.remote().disk, URL).manifest
        assert manifest is not None
        piece = f"{URL}/{manifest.pieces[1].name}"
        sound = self.files.contents()[FaultyStore._strip_protocol(piece)]
        for data, words in ((sound[:-1], "bytes, but"), (None, "is missing")):
            self.files.rm_file(piece)
            if data is not None:
                self.files.pipe_file(piece, data)
            self.assertIn(f"{piece} ", str(self.assertRaises(DirectoryError, self.ship_to, self.remote())))
            report = verify_archive(self.remote().disk, URL)
            self.assertEqual([one.file for one in report.findings], [piece], words)
        copies = self.remote().disk.listdir(f"{URL}/generations")
        for name in (*SLOT_NAMES, *(f"generations/{name}" for name in copies)):
            self.files.rm_file(f"{URL}/{name}")
        error = self.assertRaises(DirectoryError, self.ship_to, self.remote())
        self.assertIn("no sound manifest", str(error))

    def test_failing_store_is_not_empty(self) -> None:
        """A store that fails to answer is never taken for one without an archive."""
        self.append(40)
        self.ship_to(self.remote())
        before = self.files.contents()
        reads = len(self.files.calls)
        self.ship_to(self.remote())
        for number in range(len(self.files.calls) - reads):
            self.files.faults = {len(self.files.calls) + number: BEFORE}
            self.assertRaises(StoreError, self.ship_to, self.remote())
            self.assertEqual(self.files.contents(), before)

    def test_short_write(self) -> None:
        """A file that is not as long as what was shipped is not listed, although the store has said so."""
        self.append(40)
        whole = FaultyStore()
        self.ship_to(self.remote(whole))
        self.files.faults = {whole.calls.index("write"): SHORT}
        error = self.assertRaises(ArchiveTargetError, self.ship_to, self.remote())
        self.assertIn("is not listed", str(error))
        manifest = read_archive(self.remote().disk, URL).manifest
        assert manifest is not None
        self.assertEqual(manifest.pieces, ())
        self.files.faults = {}
        self.ship_to(self.remote())
        self.assertEqual(self.bodies_at(self.remote()), list(map(body_of, range(self.closed() + 1))))

    def test_half_written(self) -> None:
        """A file whose records end in damage is never finished by the store, neither then nor later."""
        self.append(40)
        position = self.store.position_of(25)
        path = f"{ROOT}/data/{position - position % 1024:020d}"
        self.disk.files[path].data[position % 1024 + 50] ^= 4
        self.assertRaises(StoreError, self.ship_to, self.remote())
        self.assertEqual(self.files.calls.count("discard"), 1)
        self.assertEqual(self.files.calls.count("close"), len(self.files.opened) - 1)
        self.assertTrue(self.files.opened[-1].closed)

    def test_restore(self) -> None:
        """A member begins with an archive on a store."""
        self.append(40)
        end = self.ship_to(self.remote()).end_index
        disk = HookedDisk()
        config = config_of("new", self_id="n5", peers="n0-h:1;n5-h:5")
        summary = restore_archive(self.remote().disk, URL, config, disk, GroupName(), joins=True)
        self.assertEqual((summary.end_index, summary.group_id), (end, GROUP.id))
        store = FileStore.open(config, disk)
        self.addCleanup(store.abandon)
        self.assertEqual(bodies_in(store), list(map(body_of, range(end + 1))))

    def test_deadline(self) -> None:
        """A store that does not answer ends the run in time, with an error of the target."""
        self.append(40)
        gate = threading.Event()
        self.addCleanup(gate.set)
        self.patch(self.files, "pipe_file", lambda *_, **__: gate.wait())
        error = self.assertRaises(ArchiveTargetError, self.ship_to, self.remote(worker=CallWorker(0.05)))
        self.assertIn("not answered within 0.05 s", str(error))

    def test_reads_ahead(self) -> None:
        """Any part of a file, in any order; from begin to end with one request."""
        data = bytes(range(256)) * 4
        self.files.pipe_file(f"{URL}/a", data)
        rng = random.Random(3)
        for ahead in (1, 100, 5000):
            self.patch(place, "_AHEAD_BYTES", ahead)
            file = self.remote().disk.open(f"{URL}/a")
            for _ in range(200):
                position, size = rng.randrange(1100), rng.randrange(300)
                self.assertEqual(file.pread(size, position), data[position : position + size])
        file = self.remote().disk.open(f"{URL}/a")
        before = self.files.calls.count("cat_file")
        self.assertEqual(b"".join(file.pread(100, at) for at in range(0, 1100, 100)), data)
        self.assertEqual(self.files.calls.count("cat_file") - before, 1)

    def test_directory_itself(self) -> None:
        """An empty file that a store keeps for a directory is no foreign file."""
        listed = self.files.ls

        def ls(path: str, **more: Any) -> Any:
            return [{"name": FaultyStore._strip_protocol(path) + "/", "size": 0, "type": "file"},
                    *listed(path, **more)]

        self.files.pipe_file(f"{URL}/data/x", b"")
        self.patch(self.files, "ls", ls)
        self.assertEqual(self.remote().sizes(), {"data/x": 0})

    def test_missing_directory(self) -> None:
        """A directory is made where the kind of store has them, but never those above it, nor a bucket."""
        made: list[str] = []

        def absent(path: str, *_: object, **__: object) -> None:
            if not made:
                raise FileNotFoundError(errno.ENOENT, "absent", path)

        def mkdir(path: str, create_parents: bool = True) -> None:
            self.assertFalse(create_parents)
            made.append(path)

        self.patch(self.files, "pipe_file", absent)
        self.patch(self.files, "mkdir", mkdir)
        self.remote().replace("a", b"1")
        self.assertEqual(made, [URL])
        made.clear()
        bucket = RemotePlace(self.files, "faulty://bucket", InThisThread(20.0))
        self.assertIn("make it first", str(self.assertRaises(FileNotFoundError, bucket.replace, "a", b"1")))
        self.assertEqual(made, [])

    def test_read_only(self) -> None:
        """The disk of a store changes nothing."""
        disk = self.remote().disk
        self.append(40)
        self.ship_to(self.remote())
        path = f"{URL}/{SLOT_NAMES[0]}"
        file = disk.open(path)
        for call in (
            lambda: disk.open(path, create=True), lambda: disk.write_file(path, b""),
            lambda: disk.unlink(path), lambda: disk.makedirs(path), lambda: disk.rename(path, path),
            lambda: disk.lock(path), lambda: disk.sync_directory(path), lambda: disk.space(path),
            lambda: file.pwrite(b"", 0), lambda: file.reserve(0, 1), file.datasync, file.modified_s,
        ):
            self.assertRaises(OSError, call)
        self.assertEqual(file.pread(5, file.size()), b"")
        self.assertEqual(disk.listdir(URL), ["archive-0.json", "archive-1.json", "data", "generations"])
        self.assertRaises(IsADirectoryError, disk.file_size, f"{URL}/data")


class FaultTests(RemoteCase):
    """Nothing lost, nothing doubled, nothing half-written that counts."""

    def setUp(self) -> None:
        super().setUp()
        self.stages: list[HookedDisk] = []
        self.whole: list[int] = []
        for count in (5, 9, 2, 12, 7):
            self.append(count, term=1 + len(self.stages))
            stage = HookedDisk()
            stage.files, stage.directories = self.disk.clone().files, set(self.disk.directories)
            self.stages.append(stage)
            self.whole.append(self.closed() + 1)

    def entries_now(self, files: FaultyStore) -> int:
        """Entries in the archive; all that counts in it is sound, except a manifest that was cut short."""
        place = self.remote(files)
        state = read_archive(place.disk, URL, reads_all=True)
        if state.manifest is None:
            self.assertFalse([path for path in files.contents() if "/data/" in path])
            return 0
        report = verify_archive(place.disk, URL)
        self.assertEqual(len(report.findings), len(state.trouble), report.findings)
        self.assertEqual(report.entries, state.manifest.end_index + 1)
        return report.entries

    def test_every_step(self) -> None:
        """One fault at each step of a first run and of a later one, of each kind."""
        for stage, earlier in ((1, None), (3, 1)):
            begun = FaultyStore()
            if earlier is not None:
                self.ship_to(self.remote(begun), self.stages[earlier])
            least = self.entries_now(begun)
            whole = self.copied(begun)
            self.ship_to(self.remote(whole), self.stages[stage])
            for number in range(len(whole.calls)):
                for kind, kills in ((BEFORE, False), (TORN, True), (AFTER, False), (AFTER, True)):
                    if kind == TORN and whole.calls[number] not in ("write", "pipe_file"):
                        continue
                    files = self.copied(begun)
                    files.faults, files.kills = {number: kind}, kills
                    self.assertRaises(Killed if kills else ArchiveTargetError, self.ship_to,
                                      self.remote(files), self.stages[stage])
                    files.faults = {}
                    self.assertGreaterEqual(self.entries_now(files), least)
                    self.finish(files, stage)

    def copied(self, files: FaultyStore) -> FaultyStore:
        """Another store with the same files."""
        other = FaultyStore()
        for path, data in files.contents().items():
            other.pipe_file(path, data)
        other.calls = []
        return other

    def finish(self, files: FaultyStore, stage: int) -> None:
        """The next run completes the archive; every entry is in it once, and no file is left over."""
        place = self.remote(files)
        self.ship_to(place, self.stages[stage])
        self.ship_to(place, self.stages[-1])
        self.assertEqual(self.bodies_at(place), list(map(body_of, range(self.whole[-1]))))
        self.assertEqual(verify_archive(place.disk, URL).left_over, [])

    def test_seeds(self) -> None:
        """Archives and backups with faults at random, of a member that grows, into one place."""
        later = []
        for _ in range(2):
            self.append(1, term=9)
            later.append(self.cloned(self.disk))
        end = self.store.ledger_end_index
        for seed in range(FIRST_SEED, FIRST_SEED + SEEDS):
            rng = random.Random(seed)
            files, count, stage = FaultyStore(), 0, 0
            for _ in range(rng.randrange(2, 9)):
                stage = min(stage + rng.randrange(2), len(self.stages) - 1)
                files.kills = rng.random() < 0.5
                files.faults = {
                    len(files.calls) + rng.randrange(40): rng.choice((BEFORE, TORN, AFTER))
                    for _ in range(rng.randrange(3))
                }
                try:
                    self.ship_to(self.remote(files), self.stages[stage], is_backup=rng.random() < 0.5)
                except (ArchiveTargetError, Killed):
                    pass
                files.faults = {}
                now = self.entries_now(files)
                self.assertGreaterEqual(now, count, f"seed {seed}: entries are lost")
                count = now
                self.assert_whole(self.remote(files), seed)
            for disk in later:  # (the second run removes what the manifests before the first one listed)
                self.ship_to(self.remote(files), disk, is_backup=True)
            self.assertEqual(self.bodies_at(self.remote(files)), list(map(body_of, range(end + 1))), seed)
            self.assertEqual(verify_archive(self.remote(files).disk, URL).left_over, [], seed)


class OpenedTests(SynchronousTestCase):
    """From the words of an operator to a place."""

    def test_directories(self) -> None:
        """Also as a URL; options of a store are refused."""
        disk = MemoryDisk()
        for target, path in (("a/b/", "a/b"), ("file:///a", "/a"), ("local:///a", "/a")):
            self.assertEqual(opened_place(target, disk).directory, path)
            self.assertIsInstance(opened_place(target, disk), DirectoryPlace)
        error = self.assertRaises(DirectoryError, opened_place, "a", disk, options={"anon": True})
        self.assertIn("no options", str(error))

    def test_stores(self) -> None:
        """By fsspec; an unknown kind and a wrong option are reported."""
        place = opened_place("memory://a/log/", MemoryDisk())
        self.assertEqual(place.directory, "memory://a/log")
        error = self.assertRaises(DirectoryError, opened_place, "nowhere://a", MemoryDisk())
        self.assertIn("nowhere", str(error))

    def test_missing(self) -> None:
        """Without fsspec the extra is named; without a driver, what fsspec says."""
        self.addCleanup(sys.modules.__setitem__, "fsspec", sys.modules["fsspec"])
        sys.modules["fsspec"] = None  # type: ignore[assignment]
        error = self.assertRaises(DirectoryError, opened_place, "s3://b/log", MemoryDisk())
        self.assertIn("pip install 'dledger[archive]'", str(error))

    def test_missing_driver(self) -> None:
        """What fsspec says is reported."""
        def url_to_fs(url: str, **_options: object) -> None:
            raise ImportError(f"Install {url[:2]}fs")

        self.patch(core, "url_to_fs", url_to_fs)
        error = self.assertRaises(DirectoryError, opened_place, "s3://b/log", MemoryDisk())
        self.assertIn("Install s3fs", str(error))

    def test_unreachable(self) -> None:
        """A store that cannot be reached, or does not answer."""
        gate = threading.Event()
        self.addCleanup(gate.set)

        def refuse(url: str, **_options: object) -> None:
            raise ConnectionRefusedError(f"{url} refuses")

        for call, words in ((refuse, "refuses"), (lambda url: gate.wait(), "not answered within 0.05 s")):
            self.patch(core, "url_to_fs", call)
            error = self.assertRaises(DirectoryError, opened_place, "sftp://h/log", MemoryDisk(),
                                      deadline_s=0.05)
            self.assertIn(words, str(error))
