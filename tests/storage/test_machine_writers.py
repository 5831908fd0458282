# -*- test-case-name: tests.storage.test_machine_writers -*-
"""Snapshots of a state machine in archives on stores: two writers, kills, faults, and retention."""

from __future__ import annotations

import random

from dledger.storage.backups.reader import verify_archive
from dledger.storage.backups.restore import restore_archive
from dledger.storage.files.snapshot_file import SnapshotHead, write_snapshot
from dledger.storage.manifests.archive_place import ArchivePlace, DirectoryPlace
from dledger.storage.manifests.archive_retention import ArchiveRetention, expire_archive
from dledger.values.errors import StoreError
from protocols.wire.ledger.entry import ENTRY_HEADER
from tests.storage.archive_store import AFTER, BEFORE, SHORT, TORN, FaultyStore, Killed
from tests.storage.support import ROOT, HookedDisk, config_of, entry_at
from tests.storage.test_place import SEEDS, URL
from tests.storage.test_restore import MEMBER, NEW
from tests.storage.test_writers import WritersCase


class MachineWritersCase(WritersCase):
    """Members with a state machine; each has its last two snapshots, the later one in the open segment."""

    def append(self, count: int, *, commits: bool = True, term: int = 1) -> None:
        """Entries, then snapshots."""
        super().append(count, commits=commits, term=term)
        self.disk.makedirs(f"{ROOT}/machine")
        for name in self.disk.listdir(f"{ROOT}/machine"):
            self.disk.unlink(f"{ROOT}/machine/{name}")
        for index in {self.closed(), self.store.ledger_end_index}:
            if index >= 0:
                _, _, _, term, _, _, chain_crc, _, _ = ENTRY_HEADER.unpack_from(
                    entry_at(self.store, index).records)
                head = SnapshotHead(index=index, term=term, chain_crc=chain_crc, machine="kv",
                                    machine_version=1)
                path = f"{ROOT}/machine/snapshot-{index}-{term}"
                write_snapshot(self.disk, path, head, (b"kept", b"%d" % index * 50), lambda: "")

    def assert_whole(self, place: ArchivePlace, seed: int = 0, *, newest: int = 4) -> None:
        """All is sound, too, except a manifest that was cut short."""
        super().assert_whole(place, seed, newest=newest)
        report = verify_archive(place.disk, place.directory)
        self.assertEqual([one.sentence for one in report.findings if "another copy" not in one.sentence], [],
                         seed)


class StoreTests(MachineWritersCase):
    """An archive on a store has what one in a directory has."""

    def test_there_and_back(self) -> None:
        """The same files; a member that is restored from it has the snapshot."""
        files, directory = FaultyStore(), DirectoryPlace(self.place, "log")
        for stage in self.stages:
            self.ship_to(self.remote(files), stage)
            self.ship_to(directory, stage)
        self.assertEqual(self.remote(files).sizes(), directory.sizes())
        names = [one for one in directory.sizes() if one.startswith("machine/")]
        self.assertEqual(len(names), 4)  # (two are of the manifest before)
        self.assert_whole(self.remote(files), 0)
        disk = HookedDisk()
        summary = restore_archive(self.remote(files).disk, URL, config_of(**MEMBER), disk, NEW)
        self.assertEqual(summary.snapshot_index, self.whole[-1] - 1)
        (name,) = disk.listdir("new/dledger-n5/machine")
        self.assertEqual(disk.read_file(f"new/dledger-n5/machine/{name}"),
                         self.disk.read_file(f"{ROOT}/machine/{name}"))

    def test_short_write(self) -> None:
        """A store that keeps a part of a file, and says that it was all: no manifest lists it."""
        whole = self.begun(0)
        self.ship_to(self.remote(whole), self.stages[1])
        short = 0
        for number in (at for at, call in enumerate(whole.calls) if call == "write"):
            files = self.copied(self.begun(0))
            files.faults = {number: SHORT}
            try:
                self.ship_to(self.remote(files), self.stages[1])
            except StoreError as error:
                short += "machine/" in str(error)
            self.assert_whole(self.remote(files), number)
        self.assertGreater(short, 2)

    def test_seeds(self) -> None:
        """Runs of several members, removals, faults and kills: each manifest has its snapshots."""
        for seed in range(1, SEEDS + 1):
            chance = random.Random(f"machine {seed}")
            files = self.begun(0)

            def one(chance: random.Random = chance, files: FaultyStore = files) -> None:
                stage = chance.randrange(len(self.stages))
                rule = ArchiveRetention(keep_bytes=chance.randrange(5000))
                try:
                    if chance.random() < 0.3:
                        expire_archive(self.remote(files), rule, now_s=2, deletes=True)
                    else:
                        self.ship_to(self.remote(files), self.stages[stage])
                except (StoreError, Killed):
                    pass

            for _ in range(chance.randrange(2, 8)):
                files.calls = []
                files.kills = chance.random() < 0.5
                files.faults = {chance.randrange(80): chance.choice((BEFORE, TORN, AFTER))
                                for _ in range(chance.randrange(2))}
                files.between = {chance.randrange(80): one for _ in range(chance.randrange(2))}
                one()
                files.faults, files.between = {}, {}
                self.assert_whole(self.remote(files), seed)
            summary = self.ship_to(self.remote(files), self.stages[-1])
            self.assertEqual((summary.snapshot_index, summary.start_problem), (self.whole[-1] - 1, ""))
            self.assert_whole(self.remote(files), seed)
