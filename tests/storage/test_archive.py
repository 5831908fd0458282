# -*- test-case-name: tests.storage.test_archive -*-
"""Archives: shipped, continued, verified; cut short at every file call; and their refusals."""

from __future__ import annotations

import json
import os
from hashlib import sha256
from typing import Any

import attrs
from twisted.trial.unittest import SynchronousTestCase

from dledger.storage.backups.archive import archive_log, closed_index
from dledger.storage.backups.reader import opened_archive, verify_archive
from dledger.storage.backups.source import ArchiveSource
from dledger.storage.files.reader import LogReader
from dledger.storage.manifests import archive_manifest
from dledger.storage.manifests.archive_manifest import (
    SLOT_NAMES,
    ArchivePiece,
    ArchiveTargetError,
    check_pieces,
    decode_archive_manifest,
    encode_archive_manifest,
)
from dledger.storage.manifests.archive_place import DirectoryPlace
from dledger.storage.manifests.document import encode_document
from dledger.storage.store.file_store import FileStore
from dledger.values.errors import DirectoryError, StoreError
from dledger.values.ledger.group_name import GroupName
from protocols.wire.ledger.entry import ENTRY_HEADER_SIZE
from tests.storage.archived_member import GROUP, PLACE, ArchiveCase, body_of
from tests.storage.support import NO_SPACE, ROOT, HookedDisk, append_bare, config_of


class ShipTests(ArchiveCase):
    """What is in an archive."""

    def test_closed_segments_are_shipped(self) -> None:
        """All entries of closed segments, and no other; the manifest says whose they are, and their chain."""
        self.append(40)
        self.append(3, commits=False)
        reported: list[tuple[int, int]] = []
        paced: list[int] = []
        summary = self.ship(progress=lambda *now: reported.append(now), pace=paced.append)
        closed = self.manifest().end_index
        ends = summary.begin_index, summary.end_index, summary.new_entries
        self.assertEqual(ends, (0, closed, closed + 1))
        self.assertEqual(summary.open_entries, 39 - closed)
        self.assertEqual(self.bodies(), list(map(body_of, range(closed + 1))))
        manifest = self.manifest()
        self.assertEqual((manifest.group, manifest.group_id, manifest.member_id), ("default", GROUP.id, "n0"))
        self.assertEqual((sum(paced), reported[-1]), (summary.new_bytes, (summary.new_bytes,) * 2))
        self.assertEqual((summary.segments, manifest.generation), (len(manifest.pieces),
                                                                   len(manifest.pieces) + 1))
        self.assertGreater(len(manifest.pieces), 3)
        for piece in manifest.pieces:
            self.assertEqual((piece.position % 1024, piece.first_term, piece.last_term), (0, 1, 1))
            self.assertNotEqual(piece.chain_crc, 0)
        self.assertEqual(verify_archive(self.place, PLACE).entries, closed + 1)

    def test_one_segment_a_piece(self) -> None:
        """As entries come, the archive is that of a single run at the end; no piece is written again."""
        counts = (1, 2, 9, 1, 1, 14, 5)
        for count in counts:
            self.append(count)
            before = self.place.contents()
            summary = self.ship()
            self.assertEqual(summary.end_index, self.closed())
            for path, data in before.items():
                if "/data/" in path:
                    self.assertEqual(self.place.contents()[path], data)
        other = HookedDisk()
        self.ship(other)
        self.assertEqual(self.manifest(other).pieces, self.manifest().pieces)
        written = len(self.place.calls)
        self.assertEqual((self.ship().new_segments, self.ship().new_bytes), (0, 0))
        names = {call for call, _ in self.place.calls[written:]}
        self.assertEqual(names & {"pwrite", "write_file", "unlink", "rename"}, set())

    def test_an_archive_may_be_empty(self) -> None:
        """The archive begins; it has no entry yet."""
        self.append(2)
        summary = self.ship()
        self.assertEqual((summary.segments, summary.end_index, summary.open_entries), (0, -1, 2))
        report = verify_archive(self.place, PLACE)
        self.assertEqual((report.is_clean, report.entries, report.group), (True, 0, "default"))
        error = self.assertRaises(DirectoryError, opened_archive, self.place, PLACE)
        self.assertIn("no segment was closed", str(error))
        self.append(30)
        self.assertEqual(self.ship().begin_index, 0)

    def test_several_terms_fit_in_a_segment(self) -> None:
        """Several in one segment."""
        self.append(3)
        self.append(3, term=4)
        self.append(20, term=9)
        self.ship()
        first = self.manifest().pieces[0]
        self.assertEqual(first.first_term, 1)
        self.assertGreater(first.last_term, 1)
        self.assertEqual(verify_archive(self.place, PLACE).findings, [])

    def test_bare_records_are_shipped(self) -> None:
        """Records of Java have no checksums; the manifest has one for each piece."""
        append_bare(self.store, map(body_of, range(20)), 1)
        self.commit()
        self.disk.unlink(f"{ROOT}/identity")
        self.ship()
        self.assertEqual((self.manifest().group, self.manifest().pieces[0].chain_crc), ("", 0))
        append_bare(self.store, map(body_of, range(20, 35)), 1)
        self.commit()
        self.assertGreater(self.ship().new_segments, 0)
        self.assertEqual(self.bodies(), list(map(body_of, range(self.manifest().end_index + 1))))

    def test_another_member_continues_the_archive(self) -> None:
        """Committed entries are the same at all members: any of them continues an archive."""
        self.append(20)
        self.ship()
        batches, index = [], 0
        while index < 20:
            batches.append(self.store.read_range(index, end_index=19, max_bytes=500))
            index = batches[-1].last_index + 1
        self.begin_anew()
        self.store.identity.record_group(GROUP)
        for batch in batches:
            self.store.append_entries(batch)
        self.append(15)
        self.ship()
        self.assertEqual(self.bodies(), list(map(body_of, range(self.closed() + 1))))

    def test_a_short_log_continues_the_archive(self) -> None:
        """A member that keeps only what is not archived continues the archive; its chain proves it."""
        self.append(40)
        end = self.ship().end_index
        self.expire(end + 1)
        self.assertEqual(self.store.ledger_begin_index, end + 1)
        self.append(20)
        self.assertGreater(self.ship().new_segments, 1)
        self.assertEqual(self.bodies(), list(map(body_of, range(self.closed() + 1))))

    def test_an_expired_begin_is_archived_from_there(self) -> None:
        """A log that begins later is archived from there."""
        self.append(40)
        self.expire(39)
        begin = self.store.ledger_begin_index
        self.append(20)
        self.assertEqual(self.ship().begin_index, begin)
        self.assertEqual(self.bodies(), list(map(body_of, range(begin, self.closed() + 1))))

    def test_a_false_begin_is_refused(self) -> None:
        """The first record of a log that begins later continues from nothing; the mark knows it."""
        self.append(40)
        self.expire(30)
        self.append(20)
        path = next(path for path in sorted(self.disk.files) if "/data/" in path)
        self.disk.files[path].data[33] ^= 1  # the channel: no checksum but the mark's covers it here
        self.assertIn("not the first record that is on record", str(self.assertRaises(StoreError, self.ship)))

    def test_an_unfinished_file_is_removed(self) -> None:
        """A file that a kill has left unfinished is removed by the next run."""
        self.append(40)
        self.ship()
        path = f"{PLACE}/data/{0:020d}-{5:020d}.part"
        self.place.write_file(path, b"12345")
        self.ship()
        self.assertFalse(self.place.exists(path))

    def test_a_left_over_file_is_reported(self) -> None:
        """A file that no manifest lists does not count, and is reported."""
        self.append(40)
        self.ship()
        path = f"{PLACE}/data/{0:020d}-{5:020d}"
        self.place.write_file(path, b"12345")
        report = verify_archive(self.place, PLACE)
        self.assertEqual((report.is_clean, report.left_over), (True, [path]))

    def test_the_closed_index_fits_every_log(self) -> None:
        """For every length of a log."""
        for _ in range(25):
            self.append(1)
            source = ArchiveSource.open(self.disk, ROOT)
            self.assertEqual(closed_index(source), self.closed())
            source.close()


class RefusedRunTests(ArchiveCase):
    """What leaves an archive as it is."""

    def setUp(self) -> None:
        super().setUp()
        self.append(40)
        self.end = self.ship().end_index

    def test_another_group_is_refused(self) -> None:
        """By its id, or its name."""
        self.store.identity.record_group(GroupName("b" * 32, 1, True))
        self.append(20)
        self.refused_run(DirectoryError, "an archive of the group with the id " + "a" * 32, "b" * 32,
                         "stays as it is")
        self.begin_anew(group="other")
        self.append(60)
        self.refused_run(DirectoryError, "group default", "is of other")

    def test_another_group_while_empty(self) -> None:
        """The first manifest says whose the archive is."""
        self.place = HookedDisk()
        self.begin_anew(group="other")
        self.append(1)
        self.ship()
        self.begin_anew()
        self.append(60)
        self.refused_run(DirectoryError, "group other")

    def test_another_history_is_refused(self) -> None:
        """Other entries, or fewer."""
        self.begin_anew()
        self.append(10)
        self.refused_run(DirectoryError, f"ends with entry {self.end}", "with entry 9", "name another member")
        self.store.append_bodies((b"y",) * 60, 1)
        self.commit()
        self.refused_run(DirectoryError, f"entry {self.end}", "different histories")

    def expired(self, keep_from_index: int) -> None:
        """A member that begins with a later entry."""
        self.append(60)
        self.store.clean_close()
        self.store = FileStore.open(config_of(retention_bytes=1024), self.disk)
        self.store.maintenance(1e9, 4, keep_from_index=keep_from_index)
        self.commit()

    def test_a_gap_is_refused(self) -> None:
        """Entries that have expired before they were shipped."""
        self.expired(95)
        self.refused_run(DirectoryError, f"ends with entry {self.end}", "begins with entry", "retention")

    def test_an_adjoining_log_must_prove_itself(self) -> None:
        """A log that begins right after the archive's end, but does not provably continue from it."""
        self.expired(self.end + 1)
        self.assertEqual(self.store.ledger_begin_index, self.end + 1)
        sound = self.manifest()
        for chain_crc, group_id, words in (
            (sound.pieces[-1].chain_crc ^ 1, GROUP.id, ("does not continue", "chainCrc")),
            (0, GROUP.id, ("does not continue", "chainCrc")),
        ):
            last = attrs.evolve(sound.pieces[-1], chain_crc=chain_crc)
            false = attrs.evolve(sound, group_id=group_id, pieces=(*sound.pieces[:-1], last))
            self.place.write_file(f"{PLACE}/{sound.slot_name}", encode_archive_manifest(false))
            self.refused_run(DirectoryError, *words)

    def test_manifests_have_a_bound(self) -> None:
        """One that is too long is not read, and none is written: the archive stays as it is."""
        self.expired(self.end + 1)
        before, read = self.manifest(), self.place.read_file
        self.patch(archive_manifest, "MANIFEST_BYTES_MAX", 10)
        self.patch(
            self.place, "read_file", lambda path: self.fail(path) if path.endswith(".json") else read(path))
        self.refused_run(DirectoryError, "bytes, and 10 are allowed")
        self.assertIn("let old segments go", str(
            self.assertRaises(DirectoryError, encode_archive_manifest, before)))

    def test_bare_records_need_the_group_id(self) -> None:
        """Records of Java prove nothing; the id of the group does, if both sides know it."""
        self.begin_anew()
        self.place = HookedDisk()
        append_bare(self.store, map(body_of, range(40)), 1)
        self.commit()
        end = self.ship().end_index
        append_bare(self.store, map(body_of, range(40, 60)), 1)
        self.store.clean_close()
        self.store = FileStore.open(config_of(retention_bytes=1024), self.disk)
        self.store.maintenance(1e9, 4, keep_from_index=end + 1)
        self.commit()
        self.assertEqual(self.store.ledger_begin_index, end + 1)
        self.refused_run(DirectoryError, f"begins with entry {end + 1}", "nothing in its record proves")
        self.store.identity.record_group(GROUP)
        self.refused_run(DirectoryError, "nothing in its record proves")
        sound = self.manifest()
        known = encode_archive_manifest(attrs.evolve(sound, group_id=GROUP.id))
        self.place.write_file(f"{PLACE}/{sound.slot_name}", known)
        self.assertGreater(self.ship().new_segments, 0)

    def test_other_sizes_are_refused(self) -> None:
        """Positions depend on the size of the files."""
        self.begin_anew(mapped_file_size_for_entry_data=2048)
        self.append(60)
        self.refused_run(DirectoryError, "1024 bytes", "2048")

    def test_another_directory_is_not_touched(self) -> None:
        """A directory with anything else is not touched."""
        for name in ("mine", SLOT_NAMES[0], SLOT_NAMES[1], "data/mine"):
            self.place = HookedDisk()
            self.place.makedirs(f"{PLACE}/{name}".rpartition("/")[0])
            self.place.write_file(f"{PLACE}/{name}", b"1")
            self.refused_run(DirectoryError, f"holds {name}", "no")
            self.assertEqual(self.place.contents(), {f"{PLACE}/{name}": b"1"})

    def test_a_member_keeps_no_archive(self) -> None:
        """A directory in the member's own would keep it from starting, also by a link; beside it is fine."""
        data = self.mktemp()
        source = attrs.evolve(ArchiveSource.open(self.disk, ROOT), data_path=data)
        self.addCleanup(source.close)
        link = self.mktemp()
        os.symlink(os.path.abspath(data), link)
        within = (ROOT, f"{ROOT}/x", f"{ROOT}/data/x", f"{data}/x", f"{link}/x", f"{PLACE}/../{ROOT}/x")
        for directory in within:
            error = self.assertRaises(DirectoryError, source.check_apart, directory)
            self.assertIn("is in the member's directory", str(error))
        for directory in (PLACE, f"{ROOT}-old", "base", f"s3://bucket/{ROOT}/x"):
            source.check_apart(directory)
        before, place = self.place.contents(), DirectoryPlace(self.place, f"{ROOT}/data/x")
        self.assertRaises(DirectoryError, archive_log, source, place, is_backup=False, taken_s=1)
        self.assertEqual(self.place.contents(), before)

    def test_an_archive_is_no_member(self) -> None:
        """An archive is not read as a member's directory."""
        error = self.assertRaises(DirectoryError, LogReader.open, PLACE, disk=self.place)
        self.assertIn(f"{PLACE} is an archive or a backup", str(error))
        self.assertIn("dledger restore", str(error))

    def test_an_empty_log_is_refused(self) -> None:
        """There is nothing to copy."""
        self.begin_anew()
        self.store.append_bodies((b"a",), 1)
        self.refused_run(DirectoryError, "no committed entry")

    def test_an_archive_has_one_writer(self) -> None:
        """A directory has one writer."""
        self.append(20)
        self.addCleanup(self.place.lock(f"{PLACE}/lock").close)
        self.refused_run(DirectoryError, "another dledger archive")

    def test_a_changed_file_is_named(self) -> None:
        """A missing file, and one of another length, are named; other contents are found by verification."""
        self.append(20)
        piece = self.manifest().pieces[1]
        path = f"{PLACE}/{piece.name}"
        sound = self.place.contents()[path]
        self.place.unlink(path)
        self.refused_run(DirectoryError, f"{path} is missing", "--verify")
        self.place.write_file(path, sound[:-1])
        self.refused_run(DirectoryError, f"{path} has {piece.size - 1} bytes", f"{piece.size} bytes")
        self.place.write_file(path, sound[:70] + bytes([sound[70] ^ 1]) + sound[71:])
        (finding,) = verify_archive(self.place, PLACE).findings
        self.assertEqual(finding.file, path)

    def test_lost_manifests_are_not_replaced(self) -> None:
        """An archive that has lost them, or all of which are damaged, is not begun again."""
        self.append(20)
        sound = self.place.contents()
        names = (*SLOT_NAMES, *(path.removeprefix(f"{PLACE}/") for path in sound if "/generations/" in path))
        self.assertEqual(len(names), 4)
        for data in (None, b"", b"{}", sound[f"{PLACE}/{SLOT_NAMES[0]}"][:-4]):
            for name in names:
                if data is None:
                    self.place.unlink(f"{PLACE}/{name}")
                else:
                    self.place.write_file(f"{PLACE}/{name}", data)
            self.refused_run(DirectoryError, "no sound manifest", "another place")
            self.assertRaises(DirectoryError, verify_archive, self.place, PLACE)

    def test_a_later_version_is_refused(self) -> None:
        """Not even if the other slot could be read."""
        path = f"{PLACE}/{self.manifest().slot_name}"
        data = self.place.contents()[path]
        later = encode_document("dledger-archive", 2, "archive", json.loads(data)["archive"])
        self.place.write_file(path, later)
        self.refused_run(DirectoryError, path, "version 2")

    def test_a_damaged_version_is_no_later_one(self) -> None:
        """Whichever bit of a slot has flipped: the other one counts."""
        path, generation = f"{PLACE}/{self.manifest().slot_name}", self.manifest().generation
        data = self.place.contents()[path]
        at = 8 * data.index(b'"version": 1')
        for bit in range(at, at + 8 * len(b'"version": 1')):
            damaged = bytearray(data)
            damaged[bit // 8] ^= 1 << bit % 8
            self.place.write_file(path, bytes(damaged))
            self.assertIn(self.manifest().generation, (generation, generation - 1), damaged[:60])

    def test_a_second_writer_is_noticed(self) -> None:
        """Where there is no lock, a writer notices another one before its manifest."""
        self.append(30)
        other = HookedDisk()
        other.files, other.directories = self.place.clone().files, set(self.place.directories)
        place = DirectoryPlace(self.place, PLACE)
        place.hold = lambda: lambda: None  # type: ignore[method-assign]
        put, seen = place.put, []

        def put_while_another_writes(name: str, chunks: Any) -> None:
            put(name, chunks)
            if not seen:
                seen.append(name)
                self.ship()

        place.put = put_while_another_writes  # type: ignore[method-assign]
        source = ArchiveSource.open(self.disk, ROOT)
        self.addCleanup(source.close)
        error = self.assertRaises(DirectoryError, archive_log, source, place, is_backup=False, taken_s=1)
        self.assertIn("another program", str(error))
        self.assertEqual(self.bodies(), list(map(body_of, range(self.closed() + 1))))

    def test_a_full_target_goes_on_later(self) -> None:
        """The archive stays usable, and goes on later; the error is one of the target."""
        self.append(20)
        self.place.failures[("pwrite", "")] = NO_SPACE
        self.assertIn(PLACE, str(self.assertRaises(ArchiveTargetError, self.ship)))
        self.assertEqual(len(self.bodies()), self.end + 1)
        self.place.failures.clear()
        self.ship()
        self.assertEqual(self.bodies(), list(map(body_of, range(self.closed() + 1))))

    def test_a_failing_member_is_named(self) -> None:
        """An error of the member's disk is none of the target."""
        self.append(20)
        for part in ("/index/", "/data/"):
            self.disk.failures[("pread", part)] = NO_SPACE
            error = self.assertRaises(StoreError, self.ship)
            self.assertNotIsInstance(error, ArchiveTargetError)
            self.disk.failures.clear()


class DamagedTests(ArchiveCase):
    """Damage at the member, and in the archive."""

    def test_at_the_member(self) -> None:
        """Named with file and offset; the segments before it are kept, and the file is not listed."""
        self.append(40)
        position = self.store.position_of(25)
        path = f"{ROOT}/data/{position - position % 1024:020d}"
        self.disk.files[path].data[position % 1024 + 50] ^= 4
        error = self.assertRaises(StoreError, self.ship)
        self.assertIn(f"entry 25 cannot be read: {path} at {position % 1024}", str(error))
        self.assertIn("keeps all segments before", str(error))
        self.assertGreater(len(self.bodies()), 10)
        self.assertLess(self.manifest().end_index, 25)
        self.disk.files[path].data[position % 1024 + 50] ^= 4
        self.ship()
        self.assertEqual(self.bodies(), list(map(body_of, range(self.closed() + 1))))

    def test_first_new_record(self) -> None:
        """The chain goes on from the end of the archive: a header has no other checksum."""
        self.append(40)
        end = self.ship().end_index
        self.append(20)
        path = f"{ROOT}/data/{self.store.position_of(end + 1):020d}"
        self.disk.files[path].data[33] ^= 1
        self.assertIn(f"entry {end + 1} cannot", str(self.assertRaises(StoreError, self.ship)))

    def test_a_copied_slot_does_not_count(self) -> None:
        """A manifest in the slot of the other one does not count."""
        self.append(40)
        self.ship()
        whole = self.manifest()
        other = next(name for name in SLOT_NAMES if name != whole.slot_name)
        self.place.write_file(f"{PLACE}/{other}", self.place.contents()[f"{PLACE}/{whole.slot_name}"])
        (finding,) = verify_archive(self.place, PLACE).findings
        self.assertIn("belongs into the other slot", finding.sentence)
        self.assertEqual(self.manifest(), whole)

    def test_hole_in_a_segment(self) -> None:
        """Records that do not follow each other without a gap are not shipped."""
        self.append(40)
        batches = LogReader.batches

        def gapped(reader: LogReader, first_index: int, **more: Any) -> Any:
            for batch in batches(reader, first_index, **{**more, "max_bytes": 1}):
                if batch.first_index != 2:
                    yield batch

        self.patch(LogReader, "batches", gapped)
        self.assertIn("the one before it ends at", str(self.assertRaises(StoreError, self.ship)))
        self.assertEqual(self.manifest().pieces, ())

    def test_each_piece_has_its_finding(self) -> None:
        """One for each piece, with its place; the others are read all the same."""
        self.append(40)
        self.ship()
        first, second = sorted(path for path in self.place.files if "/data/" in path)[1:3]
        self.place.files[first].data[60] ^= 1
        self.place.files[second].data[60] ^= 1
        report = verify_archive(self.place, PLACE)
        self.assertEqual([one.file for one in report.findings], [first, second])
        self.assertEqual(report.findings[0].offset, 0)
        self.assertIn("bodyCrc", report.findings[0].sentence)
        self.assertGreater(report.entries, 10)

    def test_damage_of_every_file_is_found(self) -> None:
        """Each flipped bit, each missing end and each missing file is found."""
        self.append(25)
        self.ship()
        self.append(25)
        self.ship()
        self.assert_damage_is_found()

    def test_one_sound_slot_is_enough(self) -> None:
        """The copy of it counts, which is a finding; the next run makes both sound again."""
        self.append(40)
        self.ship()
        whole = self.manifest()
        for damage in (lambda data: data[:-9], lambda data: b"", lambda data: data.replace(b"n0", b"n7")):
            path = f"{PLACE}/{self.manifest().slot_name}"
            self.place.write_file(path, damage(self.place.contents()[path]))
            report = verify_archive(self.place, PLACE)
            self.assertEqual(len(report.findings), 1)
            self.assertIn(path, report.findings[0].sentence)
            self.assertEqual(report.end_index, whole.end_index)
            self.ship()
            self.assertEqual(self.manifest().pieces, whole.pieces)
            self.assertTrue(verify_archive(self.place, PLACE).is_clean)

    def test_slot_and_copy(self) -> None:
        """Without the newest manifest in either place, the one before counts, and the next run goes on."""
        self.append(40)
        self.ship()
        whole = self.manifest()
        for name in (whole.slot_name, whole.name):
            self.place.write_file(f"{PLACE}/{name}", b"{")
        report = verify_archive(self.place, PLACE)
        self.assertEqual((len(report.findings), report.end_index), (2, whole.pieces[-2].last_index))
        self.assertEqual(self.ship().new_segments, 1)
        self.assertEqual(self.manifest().pieces, whole.pieces)
        self.assertTrue(verify_archive(self.place, PLACE).is_clean)

    def test_impossible_manifests_are_refused(self) -> None:
        """What a manifest cannot say is refused, also with the right checksum."""
        self.append(40)
        self.ship()
        sound = self.manifest()
        self.assertEqual(decode_archive_manifest(encode_archive_manifest(sound)), sound)
        wrong: list[tuple[str, object]] = [
            ("group", 1), ("pieces", {}), ("pieces", [1]), ("data_file_size", 0), ("generation", -1),
            ("generation", "1"), ("taken_s", "now"), ("index_file_size", True),
        ]
        pieces = json.loads(encode_archive_manifest(sound))["archive"]["pieces"]
        wrong += [("pieces", pieces[::-1]), ("pieces", pieces[::2]),
                  ("pieces", [{**pieces[0], "chain_crc": ""}]),
                  ("pieces", [{**pieces[0], "first_term": 2}]), ("pieces", [{**pieces[0], "last_term": -1}])]
        for name, value in wrong:
            document = json.loads(encode_archive_manifest(sound))
            document["archive"][name] = value
            content = json.dumps(document["archive"], sort_keys=True, separators=(",", ":"))
            document["sha256"] = sha256(content.encode()).hexdigest()
            self.assertRaises(ValueError, decode_archive_manifest, json.dumps(document).encode())

    def test_listed_values_are_compared(self) -> None:
        """Terms and chain of a piece are compared, too."""
        self.append(40)
        self.ship()
        sound = self.manifest()
        for change in ({"first_term": 0}, {"last_term": 7}, {"chain_crc": 5},
                       {"last_record_sha256": "0" * 64}, {"sha256": "0" * 64}):
            last = attrs.evolve(sound.pieces[-1], **change)  # type: ignore[arg-type]
            false = attrs.evolve(sound, pieces=(*sound.pieces[:-1], last))
            self.place.write_file(f"{PLACE}/{sound.slot_name}", encode_archive_manifest(false))
            self.assertEqual(len(verify_archive(self.place, PLACE).findings), 1, change)

    def test_member_without_a_segment(self) -> None:
        """A file between others is gone: the run gives the reason, and ships those before it."""
        self.append(80)
        for offset in (2048, self.store.position_of(self.closed()) // 1024 * 1024):
            self.place = HookedDisk()
            path = f"{ROOT}/data/{offset:020d}"
            sound = self.disk.read_file(path)
            self.disk.unlink(path)
            self.assertIn("repair itself", str(self.assertRaises(StoreError, self.ship)))
            kept = self.manifest().pieces
            self.assertTrue(all(piece.end_position <= offset for piece in kept), kept)
            self.assertEqual(verify_archive(self.place, PLACE).findings, [])
            self.disk.write_file(path, sound)


def piece(position: int, end: int, first: int, last: int) -> ArchivePiece:
    """With these places and entries."""
    return ArchivePiece(position=position, end_position=end, first_index=first, last_index=last, sha256="",
                        first_term=1, last_term=1, chain_crc=0, last_record_sha256="", shipped_s=0)


class PiecesTests(SynchronousTestCase):
    """How the pieces of a log follow each other."""

    def test_a_piece_is_of_one_later_segment(self) -> None:
        """It begins with a segment, after the one before, and has the next entries, each with a header."""
        least = ENTRY_HEADER_SIZE
        for position, end, first, last, is_right in (
            (1000, 1100, 5, 5, True), (2000, 2100, 5, 5, True), (1000, 2000, 5, 5, True),
            (1000, 2001, 5, 5, False), (1001, 1100, 5, 5, False), (300, 400, 5, 5, False),
            (0, 400, 5, 5, False),
            (1000, 1000 + least, 5, 5, True), (1000, 999 + least, 5, 5, False),
            (1000, 1000 + 2 * least, 5, 6, True), (1000, 999 + 2 * least, 5, 6, False),
            (1000, 1100, 5, 4, False), (1000, 1200, 4, 4, False), (1000, 1200, 6, 6, False),
        ):
            pieces = [piece(0, 300, 0, 4), piece(position, end, first, last)]
            if is_right:
                check_pieces(1000, 320, pieces)
            else:
                self.assertRaises(ValueError, check_pieces, 1000, 320, pieces)
        self.assertRaises(ValueError, check_pieces, 1000, 320, [piece(300, 400, 0, 0)])
        for sizes in ((0, 320), (1000, 0)):
            self.assertRaises(ValueError, check_pieces, *sizes, [piece(0, 300, 0, 4)])
