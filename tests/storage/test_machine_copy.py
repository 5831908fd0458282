# -*- test-case-name: tests.storage.test_machine_copy -*-
"""The snapshots of a state machine in backups and archives, and in members that are restored from them."""

from __future__ import annotations

import json
from hashlib import sha256

import attrs
from twisted.trial.unittest import SynchronousTestCase

from dledger.storage.backups.archive import archive_log
from dledger.storage.backups.reader import opened_archive, verify_archive
from dledger.storage.backups.restore import RestoreSummary, restore_archive
from dledger.storage.backups.source import ArchiveSource
from dledger.storage.files.snapshot_file import SnapshotHead, check_snapshot, write_snapshot
from dledger.storage.manifests.archive_manifest import decode_archive_manifest, encode_archive_manifest
from dledger.storage.manifests.archive_place import DirectoryPlace
from dledger.storage.manifests.archive_retention import ArchiveRetention, ExpirySummary, expire_archive
from dledger.storage.manifests.document import MalformedManifest, encode_document
from dledger.storage.manifests.kept_snapshot import KeptMachine, KeptSnapshot
from dledger.storage.store.file_store import FileStore
from dledger.values.errors import DirectoryError, DLedgerError, StoreError
from protocols.wire.ledger.entry import ENTRY_HEADER
from tests.storage.archived_member import PLACE, ArchiveCase
from tests.storage.support import ROOT, HookedDisk, config_of, entry_at
from tests.storage.test_restore import MEMBER, NEW

MACHINE = f"{ROOT}/machine"
RESTORED = "new/dledger-n5/machine"


class MachineCase(ArchiveCase):
    """A member whose log begins after entry 0, with a state machine."""

    def setUp(self) -> None:
        super().setUp()
        self.store.clean_close()
        self.store = FileStore.open(config_of(retention_bytes=5120), self.disk)
        self.append(45)
        while self.store.maintenance(1e9, 4, keep_from_index=44):
            pass
        self.append(15)
        while self.store.maintenance(1e9, 4, keep_from_index=59):
            pass
        self.commit()
        self.begin = self.store.ledger_begin_index
        self.assertGreater(self.begin, 20)
        self.disk.makedirs(MACHINE)

    def snapshot(
        self, index: int, *, term: int = 1, pieces: tuple[bytes, ...] = (b"kept", b"x" * 900)
    ) -> None:
        """The machine has written one."""
        chain_crc = 0
        if self.begin <= index <= self.store.ledger_end_index:
            chain_crc = ENTRY_HEADER.unpack_from(entry_at(self.store, index).records)[6]
        head = SnapshotHead(index=index, term=term, chain_crc=chain_crc, machine="kv", machine_version=1)
        write_snapshot(self.disk, f"{MACHINE}/snapshot-{index}-{term}", head, pieces, lambda: "")

    def kept(self) -> list[int]:
        """Indexes of the snapshots that the manifest lists."""
        machine = opened_archive(self.place, PLACE).machine
        return [] if machine is None else [one.index for one in machine.snapshots]

    def names(self) -> list[str]:
        """Files in the folder of the snapshots at the place."""
        folder = f"{PLACE}/machine"
        return [one for one in self.of_group(folder) if not one.startswith("group-")]

    def of_group(self, folder: str = f"{PLACE}/machine") -> list[str]:
        """All of them, those of the state of the group included."""
        return self.place.listdir(folder) if self.place.exists(folder) else []

    def restored(self, *, joins: bool = False) -> tuple[RestoreSummary, HookedDisk]:
        """A member that is made from what is at the place."""
        disk = HookedDisk()
        summary = restore_archive(self.place, PLACE, config_of(**MEMBER), disk, NEW, joins=joins)
        return summary, disk

    def assert_starts(self, index: int) -> None:
        """What is at the place is clean, and a restored member has the snapshot after this entry."""
        report = verify_archive(self.place, PLACE)
        self.assertEqual((report.findings, report.start_problem, report.left_over), ([], "", []))
        summary, disk = self.restored()
        self.assertEqual((summary.snapshot_index, disk.listdir(RESTORED)), (index, [f"snapshot-{index}-1"]))
        name = f"snapshot-{index}-1"
        self.assertEqual(disk.read_file(f"{RESTORED}/{name}"), self.disk.read_file(f"{MACHINE}/{name}"))
        check_snapshot(disk, f"{RESTORED}/{name}")


class BackupTests(MachineCase):
    """What a backup takes."""

    def test_the_newest_is_taken(self) -> None:
        """The newest one that the log reaches; the restored member has it, with all its bytes."""
        self.snapshot(self.begin)
        self.snapshot(50)
        summary = self.backup()
        self.assertEqual((summary.snapshot_index, summary.start_problem, summary.refused_snapshots),
                         (50, "", ()))
        self.assertEqual(summary.new_snapshot_bytes, self.disk.file_size(f"{MACHINE}/snapshot-50-1"))
        self.assert_starts(50)

    def test_just_before_the_log(self) -> None:
        """A snapshot after which the log begins, and none before that."""
        self.snapshot(self.begin - 2)
        self.assertIn("could not start", self.backup().start_problem)
        self.assertEqual(self.names(), [])
        self.snapshot(self.begin - 1)
        self.assertEqual(self.backup().start_problem, "")
        self.assert_starts(self.begin - 1)

    def test_a_group_without_a_machine_needs_none(self) -> None:
        """A member that has never run one has no directory of it: nothing is missing."""
        self.disk.directories.remove(MACHINE)
        self.assertEqual((self.backup().start_problem, self.names()), ("", []))
        self.assertIsNone(opened_archive(self.place, PLACE).machine)
        self.assertTrue(verify_archive(self.place, PLACE).is_clean)
        self.assertEqual(self.restored()[0].snapshot_index, -1)

    def test_a_missing_snapshot_is_reported(self) -> None:
        """The log begins after entry 0: the backup says so, its verification, too; no new group is made."""
        problem = f"begins with entry {self.begin}, but it has no snapshot of the machine"
        self.assertIn(problem, self.backup().start_problem)
        report = verify_archive(self.place, PLACE)
        self.assertEqual((report.findings, report.is_clean), ([], False))
        self.assertIn(problem, report.start_problem)
        disk = HookedDisk()
        error = self.assertRaises(
            DirectoryError, restore_archive, self.place, PLACE, config_of(**MEMBER), disk, NEW)
        for words in (problem, "Nothing was made", "another backup", "take this one again", "--join"):
            self.assertIn(words, str(error))
        self.assertEqual(disk.contents(), {})

    def test_a_member_that_joins(self) -> None:
        """The others give it a snapshot; it takes the one in the backup if there is one."""
        self.backup()
        self.assertEqual(self.restored(joins=True)[0].snapshot_index, -1)
        self.snapshot(50)
        self.backup()
        summary, disk = self.restored(joins=True)
        self.assertEqual((summary.snapshot_index, disk.listdir(RESTORED)), (50, ["snapshot-50-1"]))

    def test_from_the_first_entry(self) -> None:
        """A log that begins with entry 0 is enough for a machine."""
        self.begin_anew()
        self.append(10)
        self.disk.makedirs(MACHINE)
        self.assertEqual(self.backup().start_problem, "")
        self.assertTrue(verify_archive(self.place, PLACE).is_clean)
        self.assertEqual(self.restored()[0].snapshot_index, -1)

    def test_a_newer_one(self) -> None:
        """It takes the place of the one before, whose file goes when no manifest lists it any more."""
        self.snapshot(40)
        self.backup()
        self.append(20)
        self.snapshot(70)
        self.assertEqual(self.backup().snapshot_index, 70)
        self.assertEqual((self.kept(), self.names()), ([70], ["snapshot-40-1", "snapshot-70-1"]))
        self.assertEqual(self.backup().new_snapshot_bytes, 0)
        self.assert_starts(70)
        self.append(1)
        self.backup()
        self.assertEqual(self.names(), ["snapshot-70-1"])

    def test_ahead_of_the_commit(self) -> None:
        """One that the log does not reach yet is kept, too; the next backup uses it."""
        self.append(5, commits=False)
        self.snapshot(62)
        self.assertIn("after entry 62, which the log in it does not reach", self.backup().start_problem)
        self.snapshot(50)
        self.assertEqual((self.backup().snapshot_index, self.kept()), (50, [50, 62]))
        self.commit()
        self.append(5, commits=False)
        self.snapshot(67)
        self.assertEqual((self.backup().snapshot_index, self.kept()), (62, [62, 67]))
        self.assertLessEqual({"snapshot-62-1", "snapshot-67-1"}, set(self.names()))
        self.assert_starts(62)

    def test_ahead_for_good(self) -> None:
        """A loss of power took the entries of a snapshot, and others came: it is dropped."""
        self.snapshot(50)
        self.append(5, commits=False)
        self.snapshot(62)
        self.backup()
        self.store.truncate_to(entry_at(self.store, 59))
        self.append(5, term=2)
        del self.disk.files[f"{MACHINE}/snapshot-62-1"]
        self.assertEqual((self.backup().snapshot_index, self.kept()), (50, [50]))
        self.assert_starts(50)

    def test_damage_at_the_member(self) -> None:
        """A damaged snapshot is left out, with a sentence; the one before is taken."""
        self.snapshot(40)
        self.snapshot(50)
        self.disk.files[f"{MACHINE}/snapshot-50-1"].data[-30] ^= 1
        summary = self.backup()
        self.assertEqual((summary.snapshot_index, summary.start_problem), (40, ""))
        self.assertIn("snapshot-50-1 is damaged", *summary.refused_snapshots)
        self.assert_starts(40)

    def test_unreadable_at_the_member(self) -> None:
        """An error of the member's disk is none of the backup."""
        self.snapshot(40)
        self.snapshot(50)
        self.disk.failures["pread", "snapshot-50-1"] = 5
        summary = self.backup()
        self.assertEqual(summary.snapshot_index, 40)
        self.assertIn("snapshot-50-1 cannot be read", *summary.refused_snapshots)

    def test_of_another_log(self) -> None:
        """Its entry is another one here; or its name is of another entry."""
        self.snapshot(40)
        self.snapshot(50, term=3)
        self.disk.write_file(f"{MACHINE}/snapshot-52-1", self.disk.read_file(f"{MACHINE}/snapshot-40-1"))
        self.disk.write_file(f"{MACHINE}/notes", b"x")
        summary = self.backup()
        self.assertEqual(summary.snapshot_index, 40)
        self.assertIn("is of the entry 40", summary.refused_snapshots[0])
        self.assertIn("snapshot-50-3 is of another log", summary.refused_snapshots[1])
        self.assert_starts(40)

    def test_a_member_may_remove_it_meanwhile(self) -> None:
        """The member may remove its snapshots while the log is copied."""
        self.snapshot(40)
        self.snapshot(50)
        path = f"{MACHINE}/snapshot-50-1"

        def remove(_: int) -> None:
            if self.disk.exists(path):
                self.disk.unlink(path)

        self.assertEqual(self.backup(pace=remove).snapshot_index, 50)

    def test_a_snapshot_is_copied_in_parts(self) -> None:
        """It is copied in parts, at the pace of the rest, and shown as progress."""
        self.snapshot(50, pieces=(b"a" * 5000,) * 20)
        reported: list[tuple[int, int]] = []
        paced: list[int] = []
        summary = self.backup(progress=lambda *now: reported.append(now), pace=paced.append)
        groups = sum(self.place.file_size(f"{PLACE}/machine/{name}")
                     for name in self.of_group() if name.startswith("group-"))
        self.assertEqual(sum(paced), summary.new_bytes + summary.new_snapshot_bytes + groups)
        self.assertGreater(len(paced), 20)
        self.assertLessEqual(max(paced), 5008)
        self.assertEqual(reported[-1], (sum(paced), sum(paced)))

    def test_a_file_that_is_gone(self) -> None:
        """A listed file that is missing or cut is taken again."""
        self.snapshot(50)
        for size in (0, 100):
            self.backup()
            path = f"{PLACE}/machine/snapshot-50-1"
            data = self.place.read_file(path)
            self.place.unlink(path)
            if size:
                self.place.write_file(path, data[:size])
            self.assertIn("has 100 bytes, but the manifest says" if size else "cannot be read",
                          verify_archive(self.place, PLACE).findings[0].sentence)
            self.assertGreater(self.backup().new_snapshot_bytes, 0)
            self.assert_starts(50)


class DamageTests(MachineCase):
    """What is found, and what is refused."""

    def setUp(self) -> None:
        super().setUp()
        self.snapshot(50)
        self.backup()

    def test_every_damage_is_found(self) -> None:
        """Every flipped bit, every missing end, and a missing file."""
        self.assert_damage_is_found()

    def test_a_damaged_snapshot_is_not_restored(self) -> None:
        """A damaged snapshot is refused, and no member's directory is made."""
        content = self.place.files[f"{PLACE}/machine/snapshot-50-1"]
        for at in range(0, len(content.data), 7):
            content.data[at] ^= 1
            disk = HookedDisk()
            error = self.assertRaises(
                StoreError, restore_archive, self.place, PLACE, config_of(**MEMBER), disk, NEW)
            self.assertIn("snapshot-50-1", str(error))
            self.assertFalse(disk.exists("new/dledger-n5"))
            content.data[at] ^= 1
        self.restored()

    def test_another_sound_snapshot(self) -> None:
        """One of another entry under this name, and one with other bytes."""
        path = f"{PLACE}/machine/snapshot-50-1"
        sound = self.place.read_file(path)
        self.snapshot(51)
        self.place.write_file(path, self.disk.read_file(f"{MACHINE}/snapshot-51-1"))
        self.assertIn("not the snapshot that the manifest lists", verify_archive(
            self.place, PLACE).findings[0].sentence)
        self.snapshot_again(50, (b"kept", b"y" * 900))
        self.place.write_file(path, self.disk.read_file(f"{MACHINE}/snapshot-50-1"))
        self.assertIn("its checksum is not the one", verify_archive(self.place, PLACE).findings[0].sentence)
        self.place.write_file(path, sound)
        self.assertTrue(verify_archive(self.place, PLACE).is_clean)

    def snapshot_again(self, index: int, pieces: tuple[bytes, ...]) -> None:
        """Another one after the same entry."""
        self.disk.unlink(f"{MACHINE}/snapshot-{index}-1")
        self.snapshot(index, pieces=pieces)

    def test_of_another_log(self) -> None:
        """The log beside it says another term: verification finds it, a restore refuses it."""
        manifest = self.manifest()
        assert manifest.machine is not None
        (one,) = manifest.machine.snapshots
        path = f"{PLACE}/machine/snapshot-50-9"
        head = SnapshotHead(index=50, term=9, chain_crc=one.chain_crc, machine="kv", machine_version=1)
        self.place.unlink(f"{PLACE}/machine/snapshot-50-1")
        write_snapshot(self.place, path, head, (b"kept", b"x" * 900), lambda: "")
        data = self.place.read_file(path)
        one = attrs.evolve(one, term=9, size=len(data), sha256=sha256(data).hexdigest())
        self.place.write_file(f"{PLACE}/{manifest.slot_name}", encode_archive_manifest(
            attrs.evolve(manifest, machine=KeptMachine((one,)))))
        words = "snapshot-50-9 is of another log: there entry 50 is of term 9"
        self.assertIn(words, str(self.assertRaises(StoreError, self.restored)))
        self.assertIn(words, verify_archive(self.place, PLACE).findings[0].sentence)

    def test_malformed_manifests_are_refused(self) -> None:
        """A list of snapshots that is malformed is refused."""
        document = json.loads(encode_archive_manifest(self.manifest()))["archive"]
        one = document["machine"]["snapshots"][0]
        for machine in (7, {}, {"snapshots": [7]}, {"snapshots": [one, one]}, {"snapshots": [one] * 3},
                        {"snapshots": [{**one, "index": -1}]}, {"snapshots": [{**one, "sha256": "ab"}]}):
            data = encode_document("dledger-archive", 1, "archive", {**document, "machine": machine})
            self.assertRaises(MalformedManifest, decode_archive_manifest, data)
        del document["machine"]
        data = encode_document("dledger-archive", 1, "archive", document)
        self.assertRaises(MalformedManifest, decode_archive_manifest, data)


class CutTests(MachineCase):
    """A backup or a restore that is cut short at any call."""

    def test_a_cut_backup_keeps_the_older_one(self) -> None:
        """The older backup stays usable, and the next one is whole."""
        self.snapshot(40)
        self.backup()
        before = self.place
        self.append(20)
        self.snapshot(70)
        whole = self.copy_of(before)
        self.backup(whole)
        for number in range(len(whole.calls)):
            self.place = self.copy_of(before)
            self.place.fails_at = number
            try:
                self.backup()
            except DLedgerError:
                pass
            self.place.fails_at = -1
            self.place.locked.clear()
            report = verify_archive(self.place, PLACE)
            self.assertEqual((report.findings, report.start_problem), ([], ""), number)
            self.assertIn(self.restored()[0].snapshot_index, (40, 70))
            self.assertEqual((self.backup().snapshot_index, self.kept()), (70, [70]), number)
            self.assert_starts(70)

    @staticmethod
    def copy_of(disk: HookedDisk) -> HookedDisk:
        """Another disk with the same files."""
        found = HookedDisk()
        for path, data in disk.contents().items():
            found.makedirs(path.rpartition("/")[0])
            found.write_file(path, data)
        found.calls.clear()
        return found

    def test_a_cut_restore_leaves_nothing_half(self) -> None:
        """There is no member's directory, or one with the snapshot."""
        self.snapshot(50)
        self.backup()
        calls = len(self.restored()[1].calls)
        for number in range(0, calls, 3):
            disk = HookedDisk()
            disk.fails_at = number
            try:
                restore_archive(self.place, PLACE, config_of(**MEMBER), disk, NEW)
            except DLedgerError:
                self.assertFalse(disk.exists("new/dledger-n5"), number)
            if disk.exists("new/dledger-n5"):
                check_snapshot(disk, f"{RESTORED}/snapshot-50-1")


class GroupStateTests(MachineCase):
    """The state of the group, of a member whose log begins after entry 0."""

    def setUp(self) -> None:
        super().setUp()
        self.disk.directories.remove(MACHINE)

    def known(self, disk: HookedDisk) -> bool:
        """Whether a restored member knows its group."""
        store = FileStore.open(config_of(**MEMBER), disk)
        self.addCleanup(store.abandon)
        return store.group is not None

    def test_a_restored_group_knows_its_producers(self) -> None:
        """From a backup, and from an archive; their verification reads the state, too."""
        for take in (self.backup, self.ship):
            self.place = HookedDisk()
            take()
            report = verify_archive(self.place, PLACE)
            self.assertEqual((report.findings, report.start_problem, report.left_over), ([], "", []))
            self.assertTrue(self.known(self.restored()[1]))
            (name,) = [one for one in self.of_group() if one.startswith("group-")][:1]
            path = f"{PLACE}/machine/{name}"
            sound = self.place.read_file(path)
            self.place.write_file(path, sound[:-9] + b"?" + sound[-8:])
            self.assertIn(name, verify_archive(self.place, PLACE).findings[0].sentence)
            if take == self.backup:
                self.assertRaises(StoreError, self.restored)

    def test_without_a_state_nothing_is_made(self) -> None:
        """The backup says so, its verification, too; a member that joins gets it from the others."""
        self.disk.unlink(f"{ROOT}/groupstate")
        problem = "there is no state of the group that these entries continue"
        self.assertIn(problem, self.backup().start_problem)
        self.assertIn(problem, verify_archive(self.place, PLACE).start_problem)
        error = self.assertRaises(DirectoryError, self.restored)
        self.assertIn(problem, str(error))
        self.assertFalse(self.known(self.restored(joins=True)[1]))

    def test_of_java_none_is_needed(self) -> None:
        """Java numbers nothing: the restored group begins without producers, and may have forgotten some."""
        self.disk.unlink(f"{ROOT}/groupstate")
        self.disk.unlink(f"{ROOT}/identity")
        self.assertEqual(self.backup().start_problem, "")
        store = FileStore.open(config_of(**MEMBER), self.restored()[1])
        self.addCleanup(store.abandon)
        assert store.group is not None
        self.assertTrue(store.group.may_have_forgotten("p"))

    def test_expiry_keeps_what_the_state_needs(self) -> None:
        """No segment goes that comes after the state."""
        self.append(30)
        self.ship()
        gone = expire_archive(DirectoryPlace(self.place, PLACE), ArchiveRetention(keep_bytes=0), now_s=2e9,
                              deletes=True)
        self.assertGreater(gone.needed_segments, 0)
        self.assertEqual(verify_archive(self.place, PLACE).start_problem, "")
        self.assertTrue(self.known(self.restored()[1]))


class ArchiveMachineTests(MachineCase):
    """What an archive takes, and what stays in it."""

    def test_the_newest_is_shipped(self) -> None:
        """The newest that its closed segments reach."""
        self.snapshot(self.begin)
        self.snapshot(self.closed())
        summary = self.ship()
        self.assertEqual((summary.snapshot_index, summary.start_problem), (self.closed(), ""))
        self.assert_starts(self.closed())

    def test_in_the_open_segment(self) -> None:
        """Those in the open segment wait for its end: one is shipped, and used by a later run."""
        closed = self.closed()
        self.snapshot(closed + 1)
        self.snapshot(closed + 2)
        self.assertIn(f"after entry {closed + 1}, which the log in it does not reach yet",
                      self.ship().start_problem)
        for index in (closed + 1, closed + 2):
            self.disk.unlink(f"{MACHINE}/snapshot-{index}-1")
        self.append(30)
        self.snapshot(self.store.ledger_end_index)
        summary = self.ship()
        self.assertEqual((summary.snapshot_index, summary.start_problem), (closed + 1, ""))
        self.assertEqual(self.kept(), [closed + 1, self.store.ledger_end_index])
        self.assertTrue(verify_archive(self.place, PLACE).is_clean)

    def test_older_ones_go(self) -> None:
        """A snapshot goes when no manifest lists it that may count; there are never many."""
        for _ in range(6):
            self.append(30)
            self.snapshot(self.closed())
            summary = self.ship()
            self.assertEqual(summary.snapshot_index, self.closed())
            self.assertLessEqual(len(self.names()), 3)
            for number in range(2):  # (an older copy of the manifest counts where this one is damaged)
                name = f"{PLACE}/{('archive-0.json', 'archive-1.json')[number]}"
                listed = json.loads(self.place.read_file(name))["archive"]["machine"]["snapshots"]
                for one in listed:
                    self.assertIn(f"snapshot-{one['index']}-1", self.names())
        self.assertTrue(verify_archive(self.place, PLACE).is_clean)

    def test_of_another_writer(self) -> None:
        """A newer file that no manifest lists yet stays: another run may be about to list it."""
        self.snapshot(self.closed())
        self.ship()
        self.place.write_file(f"{PLACE}/machine/snapshot-900-1", b"x")
        self.place.write_file(f"{PLACE}/machine/snapshot-5-1", b"x")
        self.append(30)
        self.ship()
        self.assertIn("snapshot-900-1", self.names())
        self.assertNotIn("snapshot-5-1", self.names())
        self.assertEqual(verify_archive(self.place, PLACE).left_over, [f"{PLACE}/machine/snapshot-900-1"])

    def test_a_part_that_a_kill_left(self) -> None:
        """The next run removes it; what is no part of a snapshot stays."""
        self.snapshot(self.closed())
        self.ship()
        for name in ("snapshot-50-1.part", "mine.part"):
            self.place.write_file(f"{PLACE}/machine/{name}", b"x")
        self.ship()
        self.assertEqual(self.names(), ["mine.part", f"snapshot-{self.closed()}-1"])

    def expired(self) -> ExpirySummary:
        """As much goes as may."""
        return expire_archive(DirectoryPlace(self.place, PLACE), ArchiveRetention(keep_bytes=0), now_s=2e9,
                              deletes=True)

    def test_expiry_keeps_what_a_machine_needs(self) -> None:
        """No segment goes that a machine needs after its snapshot; without one none goes."""
        self.ship()
        gone = self.expired()
        self.assertEqual((gone.expired_segments, gone.needed_segments), (0, gone.segments - 1))
        self.append(30)
        self.snapshot(50)
        self.ship()
        gone = self.expired()
        self.assertGreater(gone.expired_segments, 0)
        self.assertGreater(gone.needed_segments, 0)
        self.assertLessEqual(gone.begin_index, 51)
        self.assert_starts(50)

    def test_expiry_of_the_last_one(self) -> None:
        """A segment goes if the snapshot has its last entry, not if it lacks that one alone."""
        self.snapshot(50)
        self.ship()
        piece = next(one for one in self.manifest().pieces if one.first_index > self.begin)
        for index, count in ((piece.last_index - 1, 1), (piece.last_index, 2)):
            self.place = HookedDisk()
            self.disk.files = {path: one for path, one in self.disk.files.items() if "machine" not in path}
            self.snapshot(index)
            self.ship()
            self.assertEqual(self.expired().expired_segments, count)
            self.assert_starts(index)

    def test_another_member_without_a_machine(self) -> None:
        """It ships segments; what is known of the machine stays."""
        self.snapshot(self.closed())
        kept = self.ship().snapshot_index
        del self.disk.files[f"{MACHINE}/snapshot-{kept}-1"]
        self.disk.directories.remove(MACHINE)
        self.append(30)
        self.assertEqual(self.ship().snapshot_index, kept)
        self.assertTrue(verify_archive(self.place, PLACE).is_clean)


class UsableTests(SynchronousTestCase):
    """Which snapshot a machine starts from."""

    def test_the_newest_within_bounds(self) -> None:
        """The newest from just before the first entry to the last one."""
        kept = KeptMachine(tuple(
            KeptSnapshot(index=index, term=1, chain_crc=0, machine="m", machine_version=1, size=1, sha256="")
            for index in (10, 20)
        ))
        for begin, end, index in ((0, 9, None), (0, 10, 10), (11, 19, 10), (12, 19, None), (5, 20, 20),
                                  (21, 30, 20), (22, 30, None)):
            found = kept.usable(begin, end)
            self.assertEqual(None if found is None else found.index, index, (begin, end))


class SourceTests(MachineCase):
    """The member's files."""

    def test_few_are_opened(self) -> None:
        """The newest few; all are closed in the end."""
        for index in range(40, 50):
            self.snapshot(index)
        source = ArchiveSource.open(self.disk, ROOT)
        assert source.machine is not None
        self.assertEqual([index for index, _, _ in source.machine.files], [46, 47, 48, 49])
        self.disk.calls.clear()
        source.close()
        closed = [path for call, path in self.disk.calls if call == "close" and "machine" in path]
        self.assertEqual(len(closed), 4)

    def test_closed_on_a_refusal(self) -> None:
        """Where there is no ledger, nothing stays open."""
        self.snapshot(50)
        self.disk.failures["read_file", "commitmark"] = 5
        self.disk.calls.clear()
        self.assertRaises(StoreError, ArchiveSource.open, self.disk, ROOT)
        self.assertIn(("close", f"{MACHINE}/snapshot-50-1"), self.disk.calls)

    def test_each_backup_can_be_started_from(self) -> None:
        """A backup at each step is one that a machine can start from."""
        for _ in range(5):
            self.append(7)
            self.snapshot(self.store.committed_index)
            source = ArchiveSource.open(self.disk, ROOT)
            archive_log(source, DirectoryPlace(self.place, PLACE), is_backup=True, taken_s=1)
            source.close()
            self.assert_starts(self.store.committed_index)

