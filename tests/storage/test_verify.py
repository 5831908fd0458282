# -*- test-case-name: tests.storage.test_verify -*-
"""Verification finds every damage, says where, and finds nothing in a sound directory."""

from __future__ import annotations

import errno
import random
from unittest import mock

import attrs
from twisted.trial.unittest import SynchronousTestCase

from dledger.storage.files.commit_mark import MarkFile, read_mark
from dledger.storage.files.snapshot_file import SnapshotHead, write_snapshot
from dledger.storage.files.state_file import StateFile, StatePlace
from dledger.storage.files.term_file import TermFile
from dledger.storage.start.verify import FINDINGS_MAX, VerifyReport, verify_directory
from dledger.storage.store.file_store import FileStore
from dledger.testing.world.memory_disk import MemoryDisk
from dledger.values.errors import DirectoryError
from dledger.values.ledger.group_state import GroupState
from dledger.values.ledger.lineage import Lineage, Standing
from dledger.values.ledger.membership import Membership
from tests.storage.support import DATA_SIZE, INDEX_SIZE, append_bare, config_of, entry_at, flush

ROOT = "base/dledger-n0"


class VerifyTests(SynchronousTestCase):
    """A directory with sixty entries."""

    def setUp(self) -> None:
        self.disk = MemoryDisk()
        self.store = FileStore.open(config_of(), self.disk)
        for number in range(60):
            self.store.append_bodies((bytes([number]) * (number * 31 % 150),), 1 + number // 10)
        TermFile(self.disk, ROOT).save(6, "n0")
        self.position = {index: self.store.position_of(index) for index in range(61)}

    def close(self) -> None:
        """An orderly stop."""
        self.store.record_commit(50)
        self.store.clean_close()

    def verify(self) -> VerifyReport:
        """The report, which says nothing that is not counted."""
        report = verify_directory(self.disk, ROOT)
        self.assertEqual(report.findings_count, len(report.findings))
        return report

    def flip(self, path: str, offset: int, bits: int = 1) -> None:
        """Damage."""
        data = self.disk.files[f"{ROOT}/{path}"].data
        data.extend(bytes(max(offset + 1 - len(data), 0)))
        data[offset] ^= bits

    def data_file(self, position: int) -> str:
        """Path of the data file below the root."""
        return f"data/{position - position % DATA_SIZE:020d}"

    def found(self, path: str, *, index: int | None = None, offset: int | None = None) -> None:
        """Something must be found there."""
        report = self.verify()
        self.assertFalse(report.is_clean)
        first = report.findings[0]
        self.assertEqual(first.file, f"{ROOT}/{path}", first)
        if index is not None:
            self.assertEqual(first.index, index, first)
        if offset is not None:
            self.assertEqual(first.offset, offset, first)

    def test_a_file_that_cannot_be_read(self) -> None:
        """It is named with the reason, and the other files are looked at."""
        self.close()
        self.flip("identity", 20)
        real = self.disk.read_file

        def read_file(path: str) -> bytes:
            if path.endswith(("termvote", "commitmark")):
                raise OSError(errno.EIO, "Input/output error", path)
            return real(path)

        with mock.patch.object(self.disk, "read_file", read_file):
            report = self.verify()
        found = {one.file.rpartition("/")[2]: one.sentence for one in report.findings}
        self.assertLessEqual({"termvote", "commitmark", "identity"}, {*found})
        for name in ("termvote", "commitmark"):
            self.assertIn("it cannot be read: Input/output error", found[name])

    def test_a_sound_ledger_has_no_finding(self) -> None:
        """Nothing to find after a clean stop."""
        self.close()
        report = self.verify()
        self.assertEqual(report.findings, [])
        self.assertEqual((report.entries, report.begin_index, report.end_index, report.committed_index),
                         (60, 0, 59, 50))
        self.assertEqual((report.without_body_crc, report.without_chain_crc, report.settled_index),
                         (1, 0, 59), "the CRC of the empty body is 0")
        self.assertEqual(report.blanks, len(self.store.parts.data.offsets) - 1)
        self.assertEqual(report.data_bytes, sum(48 + number * 31 % 150 for number in range(60)))

    def test_live_and_killed(self) -> None:
        """Nothing to find in a directory that is in use, or was left so."""
        self.assertEqual(self.verify().findings, [])
        flush(self.store)
        self.store.append_bodies((b"x",), 6)
        self.assertEqual(self.verify().findings, [])
        self.store.abandon()
        self.flip(self.data_file(self.store.end_position), self.store.end_position % DATA_SIZE - 1)
        report = self.verify()
        self.assertEqual((report.findings, report.end_index, report.settled_index), ([], 59, 59))

    def test_records_without_checksums_are_counted(self) -> None:
        """Records without checksums are counted."""
        self.store.truncate_to(entry_at(self.store, 9))
        append_bare(self.store, [b"java"] * 5, 6)
        self.store.abandon()
        self.disk.unlink(f"{ROOT}/commitmark")
        self.disk.write_file(f"{ROOT}/checkpoint", b"committedIndex=14\nendIndex=14\n")
        report = self.verify()
        self.assertEqual(report.findings, [])
        self.assertEqual((report.entries, report.without_chain_crc, report.settled_index), (15, 5, 14))

    def test_damage_of_every_record_is_found(self) -> None:
        """A flipped bit anywhere in a record is found at that record, and the rest is checked."""
        self.close()
        for index in (0, 1, 17, 33, 59):
            for part in (0, 6, 14, 22, 30, 34, 38, 42, 46):
                position = self.position[index]
                path, offset = self.data_file(position), position % DATA_SIZE
                self.flip(path, offset + part)
                report = self.verify()
                self.assertFalse(report.is_clean, f"entry {index} byte {part}")
                self.assertEqual(report.findings[0].index, index, report.findings[0])
                self.assertEqual(report.findings[0].offset, offset)
                self.assertGreaterEqual(report.entries, 58)
                self.flip(path, offset + part)
        self.assertTrue(self.verify().is_clean)

    def test_a_wrong_unit_is_found(self) -> None:
        """A unit that is not that of its record."""
        self.close()
        for part in range(32):
            self.flip(f"index/{INDEX_SIZE:020d}", 3 * 32 + part)
            self.found(f"index/{INDEX_SIZE:020d}", index=13, offset=96)
            self.flip(f"index/{INDEX_SIZE:020d}", 3 * 32 + part)

    def test_a_wrong_blank_is_found(self) -> None:
        """A blank of another length, with something in it, or none at all."""
        self.close()
        last = max(index for index in range(60) if self.position[index] < DATA_SIZE)
        at = self.position[last] + 48 + last * 31 % 150
        for part in (3, 7, 9):
            self.flip(self.data_file(0), at + part)
            self.found(self.data_file(0), index=last + 1)
            self.flip(self.data_file(0), at + part)

    def test_behind_the_end(self) -> None:
        """Bytes where zeroes should be."""
        self.close()
        end = self.position[60]
        self.flip(self.data_file(end), end % DATA_SIZE + 70)
        self.found(self.data_file(end), offset=end % DATA_SIZE)

    def test_wrong_files_are_found(self) -> None:
        """A missing file, a file of another length."""
        self.close()
        self.disk.unlink(f"{ROOT}/data/{2 * DATA_SIZE:020d}")
        self.found(f"data/{3 * DATA_SIZE:020d}")
        self.disk.write_file(f"{ROOT}/data/{2 * DATA_SIZE:020d}", bytes(500))
        self.found(f"data/{2 * DATA_SIZE:020d}")
        self.disk.write_file(f"{ROOT}/data/foreign", b"")
        self.assertIn("data/foreign", self.verify().findings[0].sentence)

    def test_every_kind_of_file(self) -> None:
        """Lengths and gaps, of data and of index, with a mark and without."""
        self.close()
        clean = self.disk.clone()
        for directory, size in (("data", DATA_SIZE), ("index", INDEX_SIZE)):
            for mark in (True, False):
                for name, length, sentence in (
                    (f"{size:020d}", size + 1, f"{size + 1} bytes: it must have {size}"),
                    (f"{size:020d}", None, f"missing between 0 and {2 * size}"),
                    (f"{size * 9 // 2:020d}", size, "a multiple of"),
                ):
                    self.disk.files = clean.clone().files
                    path = f"{ROOT}/{directory}/{name}"
                    self.disk.unlink(path) if length is None else self.disk.write_file(path, bytes(length))
                    if not mark:
                        self.disk.unlink(f"{ROOT}/commitmark")
                    sentences = [one.sentence for one in self.verify().findings]
                    self.assertTrue(any(sentence in one for one in sentences), (path, sentences))

    def test_a_zeroed_file_is_found(self) -> None:
        """Nothing where records are on record; what follows is checked all the same."""
        self.close()
        self.disk.files[f"{ROOT}/data/{DATA_SIZE:020d}"].data = bytearray(DATA_SIZE)
        report = self.verify()
        lost = sum(1 for index in range(60) if DATA_SIZE <= self.position[index] < 2 * DATA_SIZE)
        self.assertEqual((report.entries, report.end_index), (60 - lost, 59))
        self.assertEqual(report.findings[0].sentence, "no record")

    def test_scribbled_files_end_verification(self) -> None:
        """Whatever is in them, verification ends, and says something."""
        self.close()
        rng = random.Random(5)
        clean = self.disk.clone()
        for _ in range(200):
            self.disk.files = clean.clone().files
            for path in [path for path in self.disk.files if "/data/" in path]:
                data = bytearray(self.disk.read_file(path))
                at = rng.randrange(DATA_SIZE - 60)
                data[at : at + 60] = rng.randbytes(60)
                self.disk.files[path].data = data
            self.assertFalse(self.verify().is_clean)

    def test_big_records_are_verified(self) -> None:
        """Records longer than what is read at a time."""
        config = config_of("big", mapped_file_size_for_entry_data=1 << 23)
        store = FileStore.open(config, self.disk)
        store.append_bodies((bytes(3 << 20), b"x", bytes(3 << 20), bytes(3 << 20)), 1)
        store.clean_close()
        report = verify_directory(self.disk, config.self_path)
        self.assertEqual((report.entries, [one.file for one in report.findings]),
                         (4, [f"{config.self_path}/currterm"]))

    def test_java_in_motion(self) -> None:
        """After what Java's checkpoint records, records and units may be unfinished."""
        append_bare(self.store, [b"java"] * 5, 6)
        self.store.abandon()
        self.disk.unlink(f"{ROOT}/commitmark")
        self.disk.write_file(f"{ROOT}/checkpoint", b"committedIndex=60\nendIndex=62\n")
        self.flip(f"index/{63 * 32 // INDEX_SIZE * INDEX_SIZE:020d}", 63 * 32 % INDEX_SIZE + 20)
        self.assertEqual(self.verify().findings, [])
        position = self.store.position_of(64)
        self.flip(self.data_file(position), position % DATA_SIZE + 7)
        report = self.verify()
        self.assertEqual((report.findings, report.end_index), ([], 63))
        self.flip(f"index/{62 * 32 // INDEX_SIZE * INDEX_SIZE:020d}", 62 * 32 % INDEX_SIZE + 20)
        self.assertEqual(self.verify().findings[0].index, 62)

    def test_noted_damage_is_found(self) -> None:
        """A damaged entry that reading has noted."""
        flush(self.store)
        self.store.abandon()
        self.flip(self.data_file(0), self.position[1] + 50)
        store = FileStore.open(config_of(file_reserved_hours=1), self.disk.clone())
        store.abandon()
        found = read_mark(self.disk, f"{ROOT}/commitmark")
        assert found is not None
        mark_file, _ = MarkFile.open(self.disk, f"{ROOT}/commitmark", found[1])
        mark_file.write_durably(attrs.evolve(found[1], damaged_index=1))
        self.assertIn("noted while reading", self.verify().findings[0].sentence)

    def test_an_empty_member_is_verified(self) -> None:
        """A member that has stored nothing yet."""
        disk = MemoryDisk()
        FileStore.open(config_of(), disk).clean_close()
        report = verify_directory(disk, ROOT)
        self.assertEqual((report.findings, report.entries, report.end_index), ([], 0, -1))

    def test_a_damaged_begin_is_found(self) -> None:
        """Neither index nor record says where the ledger begins."""
        self.close()
        for path in [path for path in self.disk.files if "/index/" in path]:
            self.disk.unlink(path)
        self.flip(self.data_file(0), 0)
        report = self.verify()
        self.assertIn("no record at the beginning", report.findings[0].sentence)
        self.assertEqual(report.entries, 0)

    def test_end_that_is_missing(self) -> None:
        """The ledger is shorter than what is on record."""
        self.close()
        for offset in self.store.parts.data.offsets[2:]:
            self.disk.unlink(f"{ROOT}/data/{offset:020d}")
        self.assertTrue(any("is recorded up to 59" in one.sentence for one in self.verify().findings))

    def test_a_wrong_checkpoint_is_found(self) -> None:
        """A checkpoint after the end, or without sense."""
        self.store.clean_close()
        self.disk.write_file(f"{ROOT}/checkpoint", b"committedIndex=99\nendIndex=59\n")
        self.assertIn(f"{ROOT}/checkpoint", [one.file for one in self.verify().findings])
        self.disk.write_file(f"{ROOT}/checkpoint", b"rubbish")
        self.found("checkpoint")

    def test_set_aside_files_are_listed(self) -> None:
        """Files that were set aside are listed, and are no findings."""
        self.store.clean_close()
        self.disk.makedirs(f"{ROOT}/data.set-aside")
        self.disk.write_file(f"{ROOT}/data.set-aside/x.set-aside-3", b"abc")
        report = self.verify()
        self.assertEqual([(one.path, one.size) for one in report.set_aside],
                         [(f"{ROOT}/data.set-aside/x.set-aside-3", 3)])

    def test_a_wrong_term_file_is_found(self) -> None:
        """Missing, senseless, or below the last entry's term."""
        self.close()
        for content in (b"", b"voteLeader=\ncurrTerm=5\n"):
            self.disk.write_file(f"{ROOT}/currterm", content)
            self.found("currterm")
        self.disk.unlink(f"{ROOT}/currterm")
        self.found("currterm")

    def test_a_wrong_mark_is_found(self) -> None:
        """Damaged, or with something to say."""
        flush(self.store)
        self.store.abandon()
        last = self.position[59]
        self.flip(self.data_file(last), last % DATA_SIZE + 50)
        FileStore.open(config_of(), self.disk).abandon()
        report = self.verify()
        self.assertEqual(report.repair_end_index, 59)
        self.assertIn("repairing", report.findings[0].sentence)
        self.disk.files[f"{ROOT}/commitmark"].data = bytearray(1024)
        self.found("commitmark")

    def test_a_hole_is_named(self) -> None:
        """It is named, and so is what is after it; an unsound file of holes is reported, too."""
        flush(self.store)
        self.store.abandon()
        self.flip(self.data_file(0), self.position[1] + 50)
        FileStore.open(config_of(), self.disk).abandon()
        report = self.verify()
        self.assertEqual([(hole.first_index, hole.last_index) for hole in report.holes], [(1, 1)])
        self.assertIn("1 entries from 1 on are noted as damaged", report.findings[0].sentence)
        self.assertIn("entry 2 is after them", report.findings[0].sentence)
        self.assertEqual((report.end_index, report.repair_end_index), (59, -1))
        self.disk.files[f"{ROOT}/holes"].data[9] ^= 1
        self.found("holes")

    def full_directory(self) -> list[str]:
        """One with every file. @return: their names, the log's left out."""
        self.store.identity.others.meet("n1", Lineage(incarnation=7, starts=5, run=1,
                                                      standing=Standing.TRUSTED))
        self.store.append_configuration(Membership(voters={"n0": "h:1", "n1": "h:2"}), 6)
        self.store.record_commit(60)
        self.store.clean_close()
        terms = TermFile(self.disk, ROOT)
        terms.save(7, "n0")
        terms.close()
        head = SnapshotHead(index=50, term=6, chain_crc=1, machine="m", machine_version=1)
        self.disk.makedirs(f"{ROOT}/machine")
        write_snapshot(self.disk, f"{ROOT}/machine/snapshot-50-6", head, [b"a", b"b"], lambda: "")
        names = [path.removeprefix(f"{ROOT}/") for path in self.disk.files]
        return [name for name in names if not name.startswith(("data/", "index/", "chunks/", "lock"))]

    def test_every_flipped_bit_of_a_small_file_is_found(self) -> None:
        """Also where it does no harm; and what is missing, if a start would miss it."""
        rng = random.Random(7)
        names = self.full_directory()
        self.assertEqual(sorted(names), [
            "checkpoint", "commitmark", "currterm", "groupstate", "identity", "machine/snapshot-50-6",
            "members", "members.copy", "met", "termvote",
        ])
        self.assertEqual(self.verify().findings, [])
        for name in names:
            size = len(self.disk.files[f"{ROOT}/{name}"].data)
            places = range(size) if size < 200 else sorted(rng.sample(range(size), 60))
            for at in places:
                bit = 1 << rng.randrange(8)
                self.flip(name, at, bit)
                found = [one.file for one in self.verify().findings]
                self.assertTrue(any(f"{ROOT}/{name}" in one for one in found), (name, at))
                self.flip(name, at, bit)
        for name, is_needed in (("members", True), ("members.copy", True), ("identity", True), ("met", False),
                                ("checkpoint", False)):
            content = self.disk.files.pop(f"{ROOT}/{name}")
            self.assertEqual([one.file for one in self.verify().findings],
                             [f"{ROOT}/{name}"] * is_needed, name)
            self.disk.files[f"{ROOT}/{name}"] = content

    def test_a_state_of_another_log_is_found(self) -> None:
        """It is void."""
        self.full_directory()
        place = StatePlace(50, 6, 1, 1)
        StateFile(self.disk, f"{ROOT}/groupstate").write(GroupState().capture(), place)
        self.assertIn("entry 50 is of another log", self.verify().findings[0].sentence)

    def test_a_file_that_is_being_written_is_no_damage(self) -> None:
        """A running member may write while it is read."""
        self.close()
        path, read = f"{ROOT}/commitmark", self.disk.read_file
        sound = read(path)
        torn = [bytes([number]) + sound[1:] for number in range(3)]

        def reading(asked: str) -> bytes:
            return torn.pop() if asked == path and torn else read(asked)

        with mock.patch.object(self.disk, "read_file", reading):
            self.assertEqual(self.verify().findings, [])

    def test_progress_is_reported_in_bytes(self) -> None:
        """Bytes done and bytes to do."""
        self.close()
        seen: list[tuple[int, int]] = []
        verify_directory(self.disk, ROOT, progress=lambda done, total: seen.append((done, total)))
        total = len(self.store.parts.data.offsets) * DATA_SIZE
        self.assertEqual({one[1] for one in seen}, {total})
        self.assertEqual(seen, sorted(seen))

    def test_verification_changes_nothing(self) -> None:
        """Whatever is found."""
        self.close()
        self.flip(self.data_file(0), 70)
        before = {path: bytes(content.data) for path, content in self.disk.files.items()}
        self.verify()
        self.assertEqual({path: bytes(content.data) for path, content in self.disk.files.items()}, before)

    def test_a_missing_directory_is_refused(self) -> None:
        """That is no report."""
        with self.assertRaises(DirectoryError):
            verify_directory(self.disk, "elsewhere")

    def test_many_findings_are_counted(self) -> None:
        """All are counted, a bounded number is kept."""
        report = VerifyReport(path="x")
        for _ in range(FINDINGS_MAX + 5):
            report.add("f", "s")
        self.assertEqual((report.findings_count, len(report.findings)), (FINDINGS_MAX + 5, FINDINGS_MAX))

    def test_read_error_is_a_reason(self) -> None:
        """The disk cannot read any small file: each is named, and that the records were not looked at."""
        self.close()
        with mock.patch.object(self.disk, "read_file", side_effect=OSError(errno.EIO, "no sector")):
            report = self.verify()
        *small, last = report.findings
        self.assertGreater(len(small), 2)
        self.assertEqual({one.sentence for one in small}, {"it cannot be read: no sector"})
        self.assertIn("its records were not looked at", last.sentence)
