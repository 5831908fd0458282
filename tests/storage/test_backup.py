# -*- test-case-name: tests.storage.test_backup -*-
"""Backups: taken, continued, verified; cut short at every file call; and their refusals."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import attrs
from twisted.trial.unittest import SynchronousTestCase

from dledger.storage.backups.backup import BackupSummary, take_backup
from dledger.storage.backups.backup_reader import backup_batches, opened_backup, verify_backup
from dledger.storage.backups.backup_source import BackupSource
from dledger.storage.files import reader
from dledger.storage.manifests.backup_manifest import (
    BACKUP_NAME,
    Piece,
    check_pieces,
    decode_backup_manifest,
    encode_backup_manifest,
    read_backup_manifest,
)
from dledger.storage.manifests.document import encode_document
from dledger.storage.store.file_store import FileStore
from dledger.testing.crashes.disk import CrashDisk
from dledger.testing.crashes.engine import Enumeration, demand
from dledger.values.errors import DirectoryError, StoreError
from dledger.values.ledger.group_name import GroupName
from protocols.wire.ledger.entry import ENTRY_HEADER_SIZE, iterate_records
from tests.storage.support import (
    NO_SPACE,
    ROOT,
    HookedCase,
    HookedDisk,
    append_bare,
    config_of,
)

GROUP = GroupName("a" * 32, 1, True)
PLACE = "backup"


def body_of(index: int) -> bytes:
    """Bodies of several lengths, so that the blanks differ."""
    return b"%d " % index + b"x" * (index * 37 % 210)


class BackupCase(HookedCase):
    """A member with entries in several segments; the backup is on a disk of its own."""

    def setUp(self) -> None:
        super().setUp()
        self.store.identity.record_group(GROUP)
        self.place = HookedDisk()

    def append(self, count: int, *, commits: bool = True, term: int = 1) -> None:
        """Entries, committed and on stable storage."""
        first = self.store.ledger_end_index + 1
        self.store.append_bodies(tuple(map(body_of, range(first, first + count))), term)
        if commits:
            self.commit()

    def commit(self) -> None:
        """All entries."""
        self.store.record_commit(self.store.ledger_end_index)
        self.store.check_point(force=True)

    def backup(self, place: HookedDisk | None = None, **options: Any) -> BackupSummary:
        """Of the running member."""
        source = BackupSource.open(self.disk, ROOT)
        self.addCleanup(source.close)
        place = self.place if place is None else place
        return take_backup(source, place, PLACE, **{"taken_s": 1_700_000_000, **options})

    def bodies(self, place: HookedDisk | None = None) -> list[bytes]:
        """In the backup, which must be sound."""
        place = self.place if place is None else place
        self.assertEqual(verify_backup(place, PLACE).findings, [])
        batches = backup_batches(place, PLACE, opened_backup(place, PLACE))
        return [body for batch in batches for _, body in iterate_records(batch)]

    def refused(self, kind: type[Exception], *words: str) -> None:
        """The next backup is refused with these words, and nothing has changed."""
        before = self.place.contents()
        error = self.assertRaises(kind, self.backup)
        for word in words:
            self.assertIn(word, str(error))
        after = self.place.contents()
        after.pop(f"{PLACE}/lock", None)
        before.pop(f"{PLACE}/lock", None)
        self.assertEqual(after, before)

    def assert_damage_is_found(self) -> None:
        """Each flipped bit, each missing end and each missing file at the place."""
        rng = random.Random(5)
        sound = self.place.contents()
        for path in sound:
            if path.endswith("/lock"):
                continue
            content = self.place.files[path]
            for _ in range(40):
                at = rng.randrange(len(content.data))
                content.data[at] ^= 1 << rng.randrange(8)
                self.assertFalse(self.is_sound(), (path, at))
                content.data[:] = sound[path]
            del content.data[-2:]
            content.size -= 2
            self.assertFalse(self.is_sound(), path)
            del self.place.files[path]
            self.assertFalse(self.is_sound(), path)
            self.place.write_file(path, sound[path])
        self.assertTrue(self.is_sound())

    def is_sound(self) -> bool:
        """As verified."""
        try:
            return verify_backup(self.place, PLACE).is_clean
        except DirectoryError:
            return False


class TakeTests(BackupCase):
    """What is in a backup."""

    def test_a_backup_has_all_committed_entries(self) -> None:
        """Every committed entry of a running member, and who it is of."""
        self.append(40)
        self.append(3, commits=False)
        reported: list[tuple[int, int]] = []
        paced: list[int] = []
        summary = self.backup(progress=lambda *now: reported.append(now), pace=paced.append)
        self.assertEqual((summary.begin_index, summary.end_index, summary.new_entries), (0, 39, 40))
        self.assertEqual(self.bodies(), list(map(body_of, range(40))))
        manifest = opened_backup(self.place, PLACE)
        self.assertEqual((manifest.group, manifest.group_id, manifest.member_id), ("default", GROUP.id, "n0"))
        self.assertEqual(manifest.data_file_size, self.config.mapped_file_size_for_entry_data)
        self.assertEqual((sum(paced), reported[-1][0]), (summary.new_bytes, summary.new_bytes))
        self.assertGreater(len(manifest.pieces), 3)
        self.assertEqual(verify_backup(self.place, PLACE).taken_s, 1_700_000_000)

    def test_only_what_is_new(self) -> None:
        """A later backup adds pieces, and writes no other one again."""
        self.append(17)
        self.backup()
        before = self.place.contents()
        for count in (1, 2, 30):
            self.append(count, term=2)
            self.assertEqual(self.backup().new_entries, count)
        after = self.place.contents()
        for path in before:
            if "/data/" in path:
                self.assertEqual(after[path], before[path])
        self.assertEqual(self.bodies(), list(map(body_of, range(50))))
        written = len(self.place.calls)
        summary = self.backup()
        self.assertEqual((summary.new_entries, summary.new_bytes, summary.end_index), (0, 0, 49))
        self.assertNotIn("pwrite", [call for call, _ in self.place.calls[written:]])

    def test_bare_records_are_backed_up(self) -> None:
        """Records of Java have no checksums; the manifest has one for each piece."""
        append_bare(self.store, map(body_of, range(20)), 1)
        self.commit()
        self.disk.unlink(f"{ROOT}/identity")
        self.backup()
        self.assertEqual(opened_backup(self.place, PLACE).group, "")
        append_bare(self.store, map(body_of, range(20, 25)), 1)
        self.commit()
        self.backup()
        self.assertEqual(self.bodies(), list(map(body_of, range(25))))

    def test_an_expired_begin_is_backed_up_from_there(self) -> None:
        """A log that begins later is backed up from there, if its first record is the recorded one."""
        self.store.clean_close()
        self.config = config_of(retention_bytes=2048)
        self.store = FileStore.open(self.config, self.disk)
        self.append(40)
        self.assertTrue(self.store.maintenance(1e9, 4, keep_from_index=39))
        self.commit()
        begin = self.store.ledger_begin_index
        self.assertEqual(self.backup().begin_index, begin)
        self.assertEqual(self.bodies(), list(map(body_of, range(begin, 40))))
        path = next(path for path in sorted(self.disk.files) if "/data/" in path)
        self.disk.files[path].data[33] ^= 1  # the channel: no checksum but the mark's covers it here
        self.place = HookedDisk()
        error = self.assertRaises(StoreError, self.backup)
        self.assertIn("not the first record that is on record", str(error))

    def test_another_member_continues_the_backup(self) -> None:
        """Committed entries are the same at all members: any of them continues a backup."""
        self.append(20)
        self.backup()
        batches = []
        index = 0
        while index < 20:
            batches.append(self.store.read_range(index, end_index=19, max_bytes=500))
            index = batches[-1].last_index + 1
        self.disk = HookedDisk()
        self.store.abandon()
        self.store = FileStore.open(self.config, self.disk)
        self.store.identity.record_group(GROUP)
        for batch in batches:
            self.store.append_entries(batch)
        self.append(5)
        self.assertEqual(self.backup().new_entries, 5)
        self.assertEqual(len(self.bodies()), 25)


class ExpiryTests(BackupCase):
    """The member's retention deletes files while they are copied."""

    def setUp(self) -> None:
        super().setUp()
        self.store.clean_close()
        self.config = config_of(retention_bytes=2048)
        self.store = FileStore.open(self.config, self.disk)
        self.append(60)
        self.begin = 0

    def expire(self, copied: int) -> None:
        """Retention deletes all that it may, as soon as anything is copied."""
        if not self.begin:
            while self.store.maintenance(1e9, 4, keep_from_index=59):
                self.begin = self.store.ledger_begin_index
            self.assertGreater(self.begin, 20)

    def test_held_files_are_copied(self) -> None:
        """What was held is copied; the backup is whole, and its source has less."""
        self.backup(pace=self.expire)
        self.assertEqual(self.bodies(), list(map(body_of, range(60))))
        self.assertGreater(self.begin, 0)

    def test_beyond_the_bound(self) -> None:
        """What was not held is gone: the message names the retention; what was copied before stays."""
        self.patch(reader, "HELD_FILES_MAX", 3)
        error = self.assertRaises(StoreError, self.backup, pace=self.expire)
        for words in ("its retention has deleted entry", f"begins with entry {self.begin}", "retention_bytes",
                      "--rate"):
            self.assertIn(words, str(error))
        self.assertEqual(self.bodies(), list(map(body_of, range(len(self.bodies())))))
        self.assertGreater(len(self.bodies()), 0)

    def test_files_are_closed(self) -> None:
        """Files after the copy are closed, so that their room is free."""
        source = BackupSource.open(self.disk, ROOT)
        self.patch(reader, "HELD_FILES_MAX", 3)
        most = []
        take_backup(source, self.place, PLACE, taken_s=1,
                    pace=lambda _: most.append(len(source.reader.data.handles)))
        self.assertLessEqual(max(most), 5)
        source.close()


class RefusedTests(BackupCase):
    """What leaves a backup as it is."""

    def setUp(self) -> None:
        super().setUp()
        self.append(20)
        self.backup()

    def begin_anew(self) -> None:
        """Another directory of the same member."""
        self.store.abandon()
        self.disk = HookedDisk()
        self.store = FileStore.open(self.config, self.disk)

    def test_another_group_is_refused(self) -> None:
        """By its id, or its name."""
        self.store.identity.record_group(GroupName("b" * 32, 1, True))
        self.append(1)
        self.refused(DirectoryError, "the group with the id " + "a" * 32, "b" * 32, "stays as it is")
        self.begin_anew()
        self.store.abandon()
        self.disk = HookedDisk()
        self.store = FileStore.open(config_of(group="other"), self.disk)
        self.append(30)
        self.refused(DirectoryError, "group default", "is of other")

    def test_another_history_is_refused(self) -> None:
        """Other entries, or fewer."""
        self.begin_anew()
        self.append(10)
        self.refused(DirectoryError, "ends with entry 19", "with entry 9", "is behind")
        self.store.append_bodies((b"y",) * 20, 1)
        self.commit()
        self.refused(DirectoryError, "entry 19", "different histories")

    def test_a_gap_is_refused(self) -> None:
        """Entries that have expired before they were copied."""
        self.store.clean_close()
        self.store = FileStore.open(config_of(retention_bytes=2048), self.disk)
        self.append(40)
        self.store.maintenance(1e9, 4, keep_from_index=59)
        self.commit()
        self.refused(DirectoryError, "ends with entry 19", "begins with entry", "retention")

    def test_other_sizes_are_refused(self) -> None:
        """Positions depend on the size of the files."""
        self.store.abandon()
        self.disk = HookedDisk()
        self.store = FileStore.open(config_of(mapped_file_size_for_entry_data=2048), self.disk)
        self.append(30)
        self.refused(DirectoryError, "1024 bytes", "2048")

    def test_another_directory_is_not_touched(self) -> None:
        """A directory with anything else is not touched."""
        self.place = HookedDisk()
        self.place.makedirs(PLACE)
        self.place.write_file(f"{PLACE}/mine", b"1")
        self.refused(DirectoryError, "holds mine", "no backup")
        self.assertEqual(self.place.contents(), {f"{PLACE}/mine": b"1"})
        self.place = HookedDisk()
        self.place.makedirs(f"{PLACE}/data")
        self.place.write_file(f"{PLACE}/data/mine", b"1")
        self.refused(DirectoryError, "holds data/mine")

    def test_a_member_keeps_no_backup(self) -> None:
        """A directory in the member's own would keep it from starting, also by a link; beside it is fine."""
        data = self.mktemp()
        source = attrs.evolve(BackupSource.open(self.disk, ROOT), data_path=data)
        self.addCleanup(source.close)
        link = self.mktemp()
        os.symlink(os.path.abspath(data), link)
        within = (ROOT, f"{ROOT}/x", f"{ROOT}/data/x", f"{data}/x", f"{link}/x", f"{PLACE}/../{ROOT}/x")
        for directory in within:
            error = self.assertRaises(DirectoryError, source.check_apart, directory)
            self.assertIn("is in the member's directory", str(error))
        for directory in (PLACE, f"{ROOT}-old", "base", f"s3://bucket/{ROOT}/x"):
            source.check_apart(directory)
        before = self.place.contents()
        self.assertRaises(DirectoryError, take_backup, source, self.place, f"{ROOT}/x", taken_s=1)
        self.assertEqual(self.place.contents(), before)

    def test_a_backup_has_one_writer(self) -> None:
        """Two at a time would write the same pieces."""
        self.addCleanup(self.place.lock(f"{PLACE}/lock").close)
        self.refused(DirectoryError, "another backup")

    def test_an_empty_log_is_refused(self) -> None:
        """There is nothing to copy."""
        self.begin_anew()
        self.store.append_bodies((b"a",), 1)
        self.refused(DirectoryError, "no committed entry")

    def test_a_damaged_manifest_is_named(self) -> None:
        """It is named, and not replaced."""
        path = f"{PLACE}/{BACKUP_NAME}"
        sound = bytes(self.place.files[path].data)
        self.append(1)
        for data, word in (
            (sound[:-9], "no JSON"), (b"[]", "no manifest"), (sound.replace(b": 19", b": 18"), "checksum"),
            (sound.replace(b'"version": 1', b'"version": 2'), "damaged: version 2"),
            (sound.replace(b'"version": 1', b'"Version": 1'), "damaged: version None"),
            (encode_document("dledger-backup", 2, "backup", json.loads(sound)["backup"]),
             "version 2, but this program reads version 1"),
        ):
            self.place.write_file(path, data)
            self.refused(DirectoryError, path, word)
            self.assertRaises(DirectoryError, verify_backup, self.place, PLACE)

    def test_a_full_target_goes_on_later(self) -> None:
        """The backup stays usable, and goes on later."""
        self.append(20)
        self.place.failures[("pwrite", "")] = NO_SPACE
        self.assertRaises(StoreError, self.backup)
        self.assertEqual(len(self.bodies()), 20)
        self.place.failures.clear()
        self.assertEqual(self.backup().new_entries, 20)
        self.assertEqual(len(self.bodies()), 40)


class DamageTests(BackupCase):
    """Damage at the member, and in the backup."""

    def test_at_the_member(self) -> None:
        """Named with file and offset; the segments before it are kept."""
        self.append(40)
        position = self.store.position_of(30)
        base = position - position % 1024
        path = f"{ROOT}/data/{base:020d}"
        self.disk.files[path].data[position - base + 50] ^= 4
        error = self.assertRaises(StoreError, self.backup)
        self.assertIn(f"entry 30 cannot be read: {path} at {position - base}", str(error))
        kept = len(self.bodies())
        self.assertGreater(kept, 20)
        self.disk.files[path].data[position - base + 50] ^= 4
        self.assertEqual(self.backup().new_entries, 40 - kept)
        self.assertEqual(self.bodies(), list(map(body_of, range(40))))

    def test_first_new_record(self) -> None:
        """The chain goes on from the end of the backup: a header has no other checksum."""
        self.append(20)
        self.backup()
        self.append(5)
        position = self.store.position_of(20)
        path = f"{ROOT}/data/{position - position % 1024:020d}"
        self.disk.files[path].data[position % 1024 + 33] ^= 1
        self.assertIn("entry 20 cannot", str(self.assertRaises(StoreError, self.backup)))

    def test_damage_of_every_file_is_found(self) -> None:
        """Each flipped bit, each missing end and each missing file of a backup is found."""
        self.append(25)
        self.backup()
        self.append(10)
        self.backup()
        self.assert_damage_is_found()

    def test_each_piece_has_its_finding(self) -> None:
        """One for each piece, with its place; the others are read all the same."""
        self.append(40)
        self.backup()
        first, second = sorted(path for path in self.place.files if "/data/" in path)[1:3]
        self.place.files[first].data[60] ^= 1
        self.place.files[second].data[60] ^= 1
        report = verify_backup(self.place, PLACE)
        self.assertEqual([one.file for one in report.findings], [first, second])
        self.assertEqual(report.findings[0].offset, 0)
        self.assertIn("bodyCrc", report.findings[0].sentence)
        self.assertGreater(report.entries, 20)

    def test_impossible_manifests_are_refused(self) -> None:
        """What a manifest cannot say is refused, also with the right checksum."""
        self.append(40)
        self.backup()
        sound = opened_backup(self.place, PLACE)
        self.assertEqual(decode_backup_manifest(encode_backup_manifest(sound)), sound)
        for pieces in ((), sound.pieces[:-1], sound.pieces[::-1], sound.pieces[::2]):
            document = json.loads(encode_backup_manifest(sound))
            document["backup"]["pieces"] = [
                {name: getattr(one, name) for name in
                 ("position", "end_position", "first_index", "last_index", "sha256")} for one in pieces
            ]
            self.assertRefusedManifest(document)
        for name, value in (
            ("group", 1), ("end", None), ("pieces", {}), ("pieces", [1]), ("data_file_size", 0),
            ("data_file_size", -1), ("taken_s", "now"), ("index_file_size", True),
        ):
            document = json.loads(encode_backup_manifest(sound))
            document["backup"][name] = value
            self.assertRefusedManifest(document)

    def assertRefusedManifest(self, document: dict[str, Any]) -> None:
        """With its checksum made right."""
        content = json.dumps(document["backup"], sort_keys=True, separators=(",", ":"))
        document["sha256"] = sha256(content.encode()).hexdigest()
        self.assertRaises(ValueError, decode_backup_manifest, json.dumps(document).encode())


@attrs.frozen
class _Backups:
    """Two backups of one member; what is promised is the number of entries in the finished ones."""

    take: Callable[[Any], BackupSummary]
    append: Callable[[], None]
    name: str = "backups"

    def run(self, disk: CrashDisk, promised: Callable[[int], None]) -> None:
        """A first one, entries, and another."""
        promised(0)
        promised(self.take(disk).end_index + 1)
        self.append()
        promised(self.take(disk).end_index + 1)

    def check(self, disk: CrashDisk, promise: int, *, boots: int, goes_on: Callable[[], bool]) -> None:
        """It is sound, has what was promised, and the next backup completes it."""
        manifest = read_backup_manifest(disk, PLACE) if disk.exists(PLACE) else None
        demand((0 if manifest is None else manifest.count) >= promise, f"less than {promise} entries")
        demand(manifest is None or verify_backup(disk, PLACE).is_clean, "it is not sound")
        self.take(disk)
        demand(verify_backup(disk, PLACE).entries == 24, "the next backup does not complete it")


class CutShortTests(BackupCase):
    """Cut short at every file call."""

    def test_every_crash_leaves_a_backup(self) -> None:
        """By the end of the process, and by a power cut that keeps any part of what was not synced."""
        self.append(9)
        story = _Backups(self.backup, lambda: self.append(15))
        tally = Enumeration(story, second_share=0.02).run()
        self.assertEqual(tally.bad, [])
        self.assertGreater(tally.images, 200)

    def test_every_failed_call_leaves_a_backup(self) -> None:
        """
        The backup is the one of before or reaches further, each time sound; and the next one completes it.
        """
        self.append(15)
        self.backup()
        self.append(20)
        before = self.place
        whole = HookedDisk()
        whole.files, whole.directories = before.clone().files, set(before.directories)
        self.backup(whole)
        for number in range(len(whole.calls)):
            place = HookedDisk()
            place.files, place.directories = before.clone().files, set(before.directories)
            place.fails_at = number
            self.assertRaises(StoreError, self.backup, place)
            place.fails_at = -1
            place.locked.clear()
            self.assertGreaterEqual(len(self.bodies(place)), 15)
            self.backup(place)
            self.assertEqual(self.bodies(place), list(map(body_of, range(35))), number)

    def test_a_failed_first_backup_is_not_damaged(self) -> None:
        """A first backup that fails at any of its steps leaves nothing that reads as a damaged backup."""
        self.append(20)
        whole = HookedDisk()
        self.backup(whole)
        for number in range(len(whole.calls)):
            place = HookedDisk()
            place.fails_at = number
            self.assertRaises(StoreError, self.backup, place)
            place.fails_at = -1
            place.locked.clear()
            if read_backup_manifest(place, PLACE) is not None:
                self.bodies(place)
            self.backup(place)
            self.assertEqual(len(self.bodies(place)), 20)


class PiecesTests(SynchronousTestCase):
    """How the pieces of a log follow each other."""

    def test_only_the_rest_of_a_segment_may_lack(self) -> None:
        """The rest of a segment may be left out, and nothing else; a piece is never before the last one."""
        def piece(position: int, end: int, first: int) -> Piece:
            return Piece(position=position, end_position=end, first_index=first, last_index=first, sha256="")

        for position, end, is_right in (
            (300, 400, True), (1000, 1100, True), (2000, 2100, True),
            (301, 401, False), (500, 600, False), (1500, 1600, False), (0, 100, False), (200, 300, False),
        ):
            pieces = [piece(0, 300, 0), piece(position, end, 1)]
            if is_right:
                check_pieces(1000, 320, pieces)
            else:
                self.assertRaises(ValueError, check_pieces, 1000, 320, pieces)

    def test_a_piece_has_the_next_entries(self) -> None:
        """A piece has the next entries, one or more, each with a header, and all of one segment."""
        def piece(position: int, end: int, first: int, last: int) -> Piece:
            return Piece(position=position, end_position=end, first_index=first, last_index=last, sha256="")

        least = ENTRY_HEADER_SIZE
        for position, end, first, last, is_right in (
            (300, 300 + least, 5, 5, True), (300, 299 + least, 5, 5, False),
            (300, 300 + 2 * least, 5, 6, True), (300, 299 + 2 * least, 5, 6, False),
            (300, 400, 5, 4, False), (300, 400, 4, 4, False), (300, 400, 6, 6, False),
            (300, 1000, 5, 5, True), (300, 1001, 5, 5, False), (1000, 2000, 5, 5, True),
            (1000, 2001, 5, 5, False),
        ):
            pieces = [piece(0, 300, 0, 4), piece(position, end, first, last)]
            if is_right:
                check_pieces(1000, 320, pieces)
            else:
                self.assertRaises(ValueError, check_pieces, 1000, 320, pieces)
        self.assertRaises(ValueError, check_pieces, 1000, 320, [piece(300, 400, 0, 0)])
        for sizes in ((0, 320), (1000, 0)):
            self.assertRaises(ValueError, check_pieces, *sizes, [piece(0, 300, 0, 4)])
