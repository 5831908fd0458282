# -*- test-case-name: tests.storage.test_file_store -*-
"""The file store's bytes, its order of writing, and its behaviour when the disk fails."""

from __future__ import annotations

import errno
import os
import random
from unittest import mock

import attrs
from twisted.trial.unittest import SynchronousTestCase

from dledger.base.disk.disk import DiskSpace, OsDisk
from dledger.storage.start.directory import RESERVED_BYTES
from dledger.storage.store.file_store import FileStore
from dledger.testing.world.disk import SimDisk
from dledger.values.errors import DamagedEntryError, DLedgerError, StoreError
from dledger.values.ledger.config import DLedgerConfig
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.entry import bodies_of
from tests.storage.support import (
    BROKEN,
    DATA_SIZE,
    FIRST,
    INDEX_SIZE,
    NO_SPACE,
    ROOT,
    HookedCase,
    append_bare,
    batch_of,
    bodies_in,
    config_of,
    entry_at,
    flush,
    our_record,
)


class GoldenTests(HookedCase):
    """The bytes in the files are those of the specification."""

    def test_entries_of_java_have_golden_bytes(self) -> None:
        """Two entries of a Java leader: the example of the specification."""
        append_bare(self.store, [b"hello", b"world"], 1)
        self.assertEqual(self.data()[:107].hex(), (
            "00000001" "00000035" "0000000000000000" "0000000000000001"
            "0000000000000000" "00000000" "00000000" "00000000" "00000005" "68656c6c6f"
            "00000001" "00000035" "0000000000000001" "0000000000000001"
            "0000000000000035" "00000000" "00000000" "00000000" "00000005" "776f726c64" "00"))
        self.assertEqual(self.index()[:65].hex(), (
            "00000001" "0000000000000000" "00000035" "0000000000000000" "0000000000000001"
            "00000001" "0000000000000035" "00000035" "0000000000000001" "0000000000000001" "00"))

    def test_entries_of_ours_have_golden_bytes(self) -> None:
        """Ours have checksums in the two words that Java leaves 0, and are the same otherwise."""
        self.store.append_bodies((b"hello", b"world"), 1)
        self.assertEqual(self.data()[:106].hex(), (
            "00000001" "00000035" "0000000000000000" "0000000000000001"
            "0000000000000000" "00000000" "7e7ba407" "3610a686" "00000005" "68656c6c6f"
            "00000001" "00000035" "0000000000000001" "0000000000000001"
            "0000000000000035" "00000000" "a0a764f4" "3a771143" "00000005" "776f726c64"))

    def test_blank_and_roll(self) -> None:
        """A blank fills the rest: -1, its length, zeroes; the next file begins with the record."""
        self.store.append_bodies((bytes(900), b"next" * 10), 1)
        blank = self.data()[948:]
        self.assertEqual(blank, bytes.fromhex("ffffffff0000004c") + bytes(68))
        self.assertEqual(self.store.position_of(1), DATA_SIZE)
        self.assertEqual(len(self.data("00000000000000001024")), DATA_SIZE)

    def test_units_lie_at_their_index(self) -> None:
        """Unit i is at i times 32."""
        self.store.append_bodies((b"",) * 25, 1)
        names = [path.rpartition("/")[2] for path in self.disk.files if "/index/" in path]
        self.assertEqual(sorted(names), [f"{at:020d}" for at in (0, INDEX_SIZE, 2 * INDEX_SIZE)])
        self.assertEqual(self.index(f"{2 * INDEX_SIZE:020d}")[16:24], (20).to_bytes(8, "big"))

    def test_a_closed_directory_is_java_compatible(self) -> None:
        """Checkpoint, mark and names after an orderly stop; nothing foreign where Java would look."""
        self.store.append_bodies((b"a", b"b"), 3)
        self.store.record_commit(0)
        self.store.clean_close()
        self.assertEqual(
            self.disk.contents()[f"{ROOT}/checkpoint"], b"committedIndex=0\nendIndex=1\n#crc32 ba346545\n")
        self.assertEqual(sorted(self.disk.files), [
            f"{ROOT}/checkpoint", f"{ROOT}/commitmark", f"{ROOT}/data/{FIRST}",
            f"{ROOT}/groupstate", f"{ROOT}/identity", f"{ROOT}/index/{FIRST}", f"{ROOT}/lock"])
        mark = self.mark()
        self.assertEqual((mark.clean, mark.end_index, mark.end_term, mark.end_position), (True, 1, 3, 98))


class TruncateTests(HookedCase):
    """Rule 3: lowered mark, zeroed cut, then the write; each durable before the next."""

    def setUp(self) -> None:
        super().setUp()
        for term in range(1, 6):
            self.store.append_bodies((bytes([term]) * 60,) * 10, term)
        flush(self.store)
        self.disk.calls.clear()

    def changes(self) -> list[str]:
        """What was called, shortly."""
        short = []
        for operation, path in self.disk.calls:
            part = next(part for part in ("commitmark", "/data", "/index") if part in path)
            if operation in ("pwrite", "datasync", "unlink", "sync_directory"):
                short.append(f"{operation} {part}")
        return [one for at, one in enumerate(short) if at == 0 or short[at - 1] != one]

    def test_a_truncation_keeps_its_order(self) -> None:
        """The mark is lowered first, files go from the last on, the entry is written to zeroes."""
        record = our_record(b"new", index=12, term=9, pos=self.store.position_of(12),
                            chain=int.from_bytes(entry_at(self.store, 11).records[36:40], "big", signed=True))
        self.disk.calls.clear()
        self.store.truncate_to(batch_of([record]))
        found = self.changes()
        self.assertEqual(found[:4], ["pwrite commitmark", "datasync commitmark", "pwrite commitmark",
                                     "unlink /data"])
        tail = found[found.index("pwrite /data"):]
        self.assertEqual(tail, [
            "pwrite /data",
            *("unlink /index", "sync_directory /index") * 3,
            "pwrite /index", "datasync /data", "datasync /index",
            "pwrite /data", "pwrite /index", "datasync /data", "datasync /index",
            "pwrite commitmark", "datasync commitmark", "pwrite commitmark"])

    def test_bytes_after_the_end_are_zero(self) -> None:
        """Nothing except zeroes is after the end, in data and index."""
        self.store.truncate_to(entry_at(self.store, 3))
        self.assertEqual(self.data()[self.store.end_position :].strip(b"\0"), b"")
        self.assertEqual(self.index()[4 * 32 :].strip(b"\0"), b"")
        self.assertEqual(sorted(path for path in self.disk.files if "/data/" in path or "/index/" in path),
                         [f"{ROOT}/data/{FIRST}", f"{ROOT}/index/{FIRST}"])
        self.assertEqual(self.mark().end_index, 3)

    def test_mark_is_lowered_before_the_cut(self) -> None:
        """If the cut fails half-way, the next start does not take what is gone for a loss."""
        for failing in (("unlink", "/data/"), ("pwrite", "/data/"), ("pwrite", "/index/")):
            self.disk.failures = {failing: BROKEN}
            with self.assertRaises(StoreError):
                self.store.truncate_to(entry_at(self.store, 5))
            self.assertEqual(self.reopen().repair_end_index, -1)
            self.assertGreaterEqual(self.store.ledger_end_index, 5)

    def test_fails_for_good(self) -> None:
        """A store that failed refuses everything, and is not closed as clean."""
        self.disk.failures = {("datasync", "/data/"): BROKEN}
        with self.assertRaises(StoreError):
            self.store.truncate_to(entry_at(self.store, 5))
        self.disk.failures.clear()
        for refused in (lambda: self.store.append_bodies((b"x",), 9),
                        lambda: self.store.check_point(force=True),
                        lambda: self.store.read_batch(0, max_count=1, max_bytes=1)):
            with self.assertRaises(StoreError):
                refused()
        self.store.clean_close()
        self.assertFalse(self.mark().clean)

    def test_present_end_is_made_durable(self) -> None:
        """TRUNCATE to the entry that is the last one already: durable when it returns."""
        self.store.append_bodies((b"x",), 6)
        self.store.truncate_to(entry_at(self.store, 50))
        self.assertEqual(self.mark().end_index, 50)

    def test_no_room_for_the_entry(self) -> None:
        """Where the entry needs a new file and there is none, nothing has changed."""
        self.store.truncate_to(entry_at(self.store, 8))
        before = self.disk.contents()
        self.disk.failures = {("create", "/data/"): NO_SPACE}
        record = our_record(bytes(900), index=9, term=9, pos=DATA_SIZE, chain=int.from_bytes(
            entry_at(self.store, 8).records[36:40], "big", signed=True))
        with self.assertRaises(DLedgerError) as caught:
            self.store.truncate_to(batch_of([record]))
        self.assertIs(caught.exception.code, ResponseCode.DISK_FULL)
        self.assertEqual(self.disk.contents(), before)
        self.disk.failures.clear()
        self.store.truncate_to(batch_of([record]))
        self.assertEqual(self.store.ledger_end_index, 9)

    def test_starting_anew_keeps_the_old_files(self) -> None:
        """They are moved, with every byte."""
        before = {path.rpartition("/")[2]: content for path, content in self.disk.contents().items()
                  if "/data/" in path}
        record = our_record(b"far", index=5000, term=9, pos=70 * DATA_SIZE, chain=99)
        self.store.truncate_to(batch_of([record]))
        kept = {one.path.rpartition("/")[2].partition(".")[0]: self.disk.read_file(one.path)
                for one in self.store.kept_files()}
        self.assertEqual(kept, {name: content for name, content in before.items() if content.strip(b"\0")})

    def test_starting_anew_without_room(self) -> None:
        """Refused before anything has changed: moved files do not make room."""
        before = self.disk.contents()
        record = our_record(b"far", index=5000, term=9, pos=70 * DATA_SIZE, chain=99)
        with mock.patch.object(self.disk, "space", lambda _: DiskSpace(total=9999, free=9, usable=9)):
            with self.assertRaises(DLedgerError) as caught:
                self.store.truncate_to(batch_of([record]))
        self.assertIs(caught.exception.code, ResponseCode.DISK_FULL)
        self.assertEqual(self.disk.contents(), before)

    def test_long_cut_is_kept(self) -> None:
        """Above the bound everything is set aside; below it nothing, see test_zeroed."""
        size, offset = self.store.end_position, self.store.position_of(4)
        contents = sorted(self.disk.contents().items())
        before = b"".join(content for path, content in contents if "/data/" in path)
        with mock.patch("dledger.storage.store.store_cuts.CUT_BYTES_MAX", size - offset - 1):
            self.store.truncate_to(entry_at(self.store, 3))
        kept = sorted(self.store.kept_files(), key=lambda one: one.path)
        whole = b"".join(self.disk.read_file(one.path) for one in kept[1:])
        self.assertEqual(self.disk.read_file(kept[0].path), before[offset:DATA_SIZE].rstrip(b"\0"))
        self.assertEqual(whole.rstrip(b"\0"), before[DATA_SIZE:].rstrip(b"\0"))

    def test_long_cut_without_room(self) -> None:
        """Refused before anything has changed."""
        before = self.disk.contents()
        self.disk.failures = {("create", "set-aside"): NO_SPACE}
        with mock.patch("dledger.storage.store.store_cuts.CUT_BYTES_MAX", 1):
            with self.assertRaises(DLedgerError) as caught:
                self.store.truncate_to(entry_at(self.store, 3))
        self.assertIs(caught.exception.code, ResponseCode.DISK_FULL)
        self.assertEqual(self.disk.contents(), before)

    def test_starting_anew_half_way(self) -> None:
        """A new beginning that a crash interrupts leaves the member repairing, not forgetful."""
        record = our_record(b"far", index=5000, term=9, pos=70 * DATA_SIZE, chain=99)
        self.disk.failures = {("rename", f"/data/{FIRST}"): BROKEN}
        with self.assertRaises(StoreError):
            self.store.truncate_to(batch_of([record]))
        store = self.reopen()
        self.assertEqual(store.repair_end_index, 49)
        self.assertLess(store.ledger_end_index, 49)
        store.truncate_to(batch_of([record]))
        self.assertEqual((self.reopen().ledger_begin_index, self.store.ledger_end_index), (5000, 5000))

    def test_starting_anew_is_interrupted(self) -> None:
        """
        Wherever it fails, the next start has the new beginning, and is healthy as nothing in front of it is
        owed any more; or it has not, and is repairing.
        """
        record = our_record(b"far", index=5000, term=9, pos=70 * DATA_SIZE, chain=99)
        self.store.truncate_to(batch_of([record]))
        seen = set()
        # (A read that fails is no interruption: it is tried again.)
        changes = [number for number, call in enumerate(self.disk.calls) if call[0] != "pread"]
        for number in changes:
            self.setUp()
            self.disk.fails_at = number
            with self.assertRaises(StoreError):
                self.store.truncate_to(batch_of([record]))
            self.disk.fails_at = -1
            for _start in range(2):
                store = self.reopen()
                found = store.ledger_begin_index, store.ledger_end_index, store.repair_end_index
                if found != (0, 49, -1):  # nothing has happened
                    self.assertEqual(found[2], -1 if found[0] == 5000 else 49, f"call {number}: {found}")
                seen.add(found)
        self.assertLessEqual({(0, 49, -1), (-1, -1, 49), (5000, 5000, -1)}, seen)

    def test_new_beginning_forgets_nothing_else(self) -> None:
        """A new beginning that ends well leaves a healthy member healthy."""
        record = our_record(b"far", index=5000, term=9, pos=70 * DATA_SIZE, chain=99)
        self.store.truncate_to(batch_of([record]))
        self.assertEqual(self.mark().repair_end_index, -1)
        self.assertEqual(self.reopen().repair_end_index, -1)
        self.assertEqual(bodies_in(self.store), [b"far"])
        self.assertEqual(self.store.committed_index, 4999)


class LateMarkTests(HookedCase):
    """With C{sync} flushing mark and index are on stable storage some flushes after the entries."""

    options = {"flush_disk_type": "sync"}

    def test_damage_below_a_late_mark(self) -> None:
        """
        A power cut takes mark and index back to their state before the last flushes, and a record below is
        damaged: the entries after it in the data files all the same had been acknowledged, and stays.
        """
        record = 48 + 60
        for entries in (20, 60):  # in three files, and in seven
            for at in (70, 0, 4, 24):  # in its body, magic, size, pos
                self.setUp()
                self.store.append_bodies((b"x" * 60,) * 10, 1)
                flush(self.store)
                before = self.disk.contents()
                for _ in range(10, entries, 5):
                    self.store.append_bodies((b"x" * 60,) * 5, 1)
                    flush(self.store)
                self.store.abandon()
                for path in self.disk.contents():
                    if "/data/" not in path:
                        self.disk.unlink(path)
                        if path in before:
                            self.disk.write_file(path, before[path])
                data = bytearray(self.data())
                data[3 * record + at] ^= 0x40
                self.disk.write_file(f"{ROOT}/data/{FIRST}", bytes(data))
                store = FileStore.open(self.config, self.disk)
                self.assertEqual((store.ledger_end_index, store.repair_end_index), (entries - 1, -1))
                self.assertEqual([(hole.first_index, hole.last_index) for hole in store.holes], [(3, 3)])
                store.abandon()


class FailureTests(HookedCase):
    """A disk that is full, or broken."""

    def test_a_full_disk_changes_nothing(self) -> None:
        """No room for the next file: refused with nothing changed, and it goes on when there is room."""
        self.store.append_bodies((bytes(900),), 1)
        for part in ("/data/", "/index/"):
            before, end = self.disk.contents(), self.store.ledger_end_index
            self.disk.failures = {("create", part): NO_SPACE}
            with self.assertRaises(DLedgerError) as caught:
                self.store.append_bodies((b"x",) * 40, 1)
            self.assertNotIsInstance(caught.exception, StoreError)
            self.assertIs(caught.exception.code, ResponseCode.DISK_FULL)
            self.assertEqual(self.disk.contents(), before)
            self.assertEqual((self.store.ledger_end_index, self.store.end_position), (end, 948))
            self.assertTrue(self.store.disk_full, "at once, and until somebody has looked again")
            self.store.maintenance(0, 0, keep_from_index=0)
            self.assertFalse(self.store.disk_full)
        self.disk.failures.clear()
        self.store.append_bodies((b"x",) * 40, 1)
        self.assertEqual(bodies_in(self.reopen()), [bytes(900)] + [b"x"] * 40)

    def test_input_output_error(self) -> None:
        """EIO ends the store."""
        for operation in ("create", "pwrite"):
            self.disk.failures = {(operation, "/data/"): BROKEN}
            with self.assertRaises(StoreError):
                self.store.append_bodies((bytes(1000 - 48),), 1)
            self.reopen()

    def test_a_read_error_is_damage(self) -> None:
        """EIO while reading is damage: only entries that cannot be read are refused, and the store lives."""
        bodies = [bytes([65 + number]) * 50 for number in range(40)]
        for body in bodies:
            self.store.append_bodies((body,), 1)
        store = self.reopen()
        self.disk.failures = {("pread", f"/data/{0:020d}"): BROKEN}
        with self.assertRaises(DamagedEntryError):
            store.read_batch(0, max_count=1, max_bytes=1)
        (hole,) = store.holes
        self.assertLess(hole.last_index, 30)
        behind = store.read_batch(hole.last_index + 1, max_count=1, max_bytes=900)
        self.assertEqual(bodies_of(behind), [bodies[hole.last_index + 1]])
        store.append_bodies((b"on",), 1)
        self.disk.failures.clear()
        self.assertTrue(store.look_again())  # the disk could read it at the second look
        self.assertEqual(bodies_in(store), [*bodies, b"on"])

    def test_other_read_error(self) -> None:
        """An error that is none of the medium ends the store."""
        self.store.append_bodies((b"x",), 1)
        self.reopen()
        self.disk.failures = {("pread", "/data/"): errno.EBADF}
        with self.assertRaises(StoreError):
            self.store.read_batch(0, max_count=1, max_bytes=1)

    def test_an_oversize_body_is_refused(self) -> None:
        """A body that no file can hold is refused, untouched (W21)."""
        before = self.disk.contents()
        with self.assertRaises(DLedgerError) as caught:
            self.store.append_bodies((b"x", bytes(DATA_SIZE - 55)), 1)
        self.assertIs(caught.exception.code, ResponseCode.DISK_ERROR)
        self.assertEqual(self.disk.contents(), before)
        self.store.append_bodies((bytes(self.config.body_bytes_max),), 1)

    def test_damage_found_by_reading(self) -> None:
        """Damage is reported with file and offset; only that entry cannot be read, now and after a start."""
        self.store.append_bodies((b"a" * 50,) * 20, 1)
        flush(self.store)
        self.reopen()
        path = f"{ROOT}/data/{FIRST}"
        position = self.store.position_of(4)
        self.disk.files[path].data[position + 60] ^= 1
        self.assertEqual(bodies_of(self.store.read_batch(0, max_count=4, max_bytes=999)), [b"a" * 50] * 4)
        self.assertEqual(self.store.read_batch(2, max_count=9, max_bytes=999).count, 2)
        for store in (self.store, None):
            store = store or self.reopen()
            with self.assertRaises(DamagedEntryError) as caught:
                store.read_batch(4, max_count=9, max_bytes=999)
            self.assertEqual(caught.exception.index, 4)
            self.assertEqual((store.ledger_end_index, store.repair_end_index), (19, -1))
            (hole,) = store.holes
            self.assertEqual((hole.first_index, hole.last_index, hole.position), (4, 4, position))
            self.assertEqual(bodies_of(store.read_batch(5, max_count=3, max_bytes=999)), [b"a" * 50] * 3)
        self.assertEqual(self.mark().damaged_index, -1)

    def test_damaged_index_unit(self) -> None:
        """A damaged index unit is written again when it is read: nothing is lost."""
        self.store.append_bodies((b"a" * 50,) * 20, 1)
        flush(self.store)
        self.reopen()
        self.store.parts.reads.recent.reset(20)
        self.disk.files[f"{ROOT}/index/{FIRST}"].data[5 * 32 + 20] ^= 1
        self.assertEqual(self.store.term_of(5), 1)
        self.assertEqual(self.store.holes, ())
        store = self.reopen()
        self.assertEqual((store.ledger_end_index, store.repair_end_index), (19, -1))
        self.assertEqual(self.store.parts.room.scanner.unit(5)[2:], (98, 5, 1))  # type: ignore[index]


class RepairTests(HookedCase):
    """Repairing, until a leader has brought back what was lost."""

    def setUp(self) -> None:
        super().setUp()
        self.store.append_bodies((b"a" * 50,) * 20, 1)
        flush(self.store)
        self.original = [entry_at(self.store, index) for index in range(20)]
        for index in range(7, 20):
            position = self.store.position_of(index)
            name = f"{position - position % DATA_SIZE:020d}"
            self.disk.files[f"{ROOT}/data/{name}"].data[position % DATA_SIZE + 50] ^= 1
        self.reopen()

    def test_repairing_lasts_over_restarts(self) -> None:
        """It lasts over restarts until it is ended, whatever was brought back."""
        self.assertEqual((self.store.ledger_end_index, self.store.repair_end_index), (6, 19))
        self.assertEqual(self.reopen().repair_end_index, 19)
        for entry in self.original[7:]:
            self.store.append_entries(entry)
        flush(self.store)
        self.assertEqual(self.reopen().repair_end_index, 19)
        self.store.end_repair()
        self.assertEqual(self.store.repair_end_index, -1)
        self.assertEqual(self.reopen().repair_end_index, -1)

    def test_end_repair_is_durable_with_the_entries(self) -> None:
        """The mark is cleared only with everything that was brought back on stable storage."""
        for entry in self.original[7:]:
            self.store.append_entries(entry)
        self.disk.calls.clear()
        self.store.end_repair()
        self.assertLess(self.disk.calls.index(("datasync", f"{ROOT}/data/{FIRST}")),
                        self.disk.calls.index(("datasync", f"{ROOT}/commitmark")))
        self.assertEqual(self.mark(), attrs.evolve(self.mark(), end_index=19, repair_end_index=-1))

    def test_a_second_damage_raises_the_end(self) -> None:
        """Damaged again while repairing: the higher end counts."""
        self.store.append_entries(self.original[7])
        flush(self.store)
        for index in range(8):
            self.disk.files[f"{ROOT}/data/{FIRST}"].data[self.store.position_of(index) + 50] ^= 1
        store = self.reopen()
        self.assertEqual((store.ledger_end_index, store.repair_end_index), (-1, 19))


class RoomTests(SynchronousTestCase):
    """Room is reserved before it is written to, a little at a time."""

    def test_a_first_entry_reserves_little(self) -> None:
        """With Java's file sizes the first entry takes a few mebibytes, and the files have their length."""
        base = os.path.abspath(self.mktemp())
        store = FileStore.open(DLedgerConfig(store_base_dir=base), OsDisk())
        store.append_bodies((b"x",), 1)
        store.clean_close()
        taken = 0
        for name, size in (("data", 1 << 30), ("index", 160 << 20)):
            found = os.stat(f"{base}/dledger-n0/{name}/{FIRST}")
            self.assertEqual(found.st_size, size)
            taken += found.st_blocks * 512
        self.assertLessEqual(taken, 2 * RESERVED_BYTES + 65536)

    def test_full_within_a_file(self) -> None:
        """A disk that fills up within a file refuses the write; the store goes on when there is room."""
        for sync in (False, True):
            disk = SimDisk(random.Random(1))
            disk.makedirs("base")
            config = config_of(flush_disk_type="sync" if sync else "async")
            store = FileStore.open(config, disk)
            store.append_bodies((b"a",), 1)
            disk.set_full(True)
            count = 1
            with self.assertRaises(DLedgerError) as caught:
                while True:
                    store.append_bodies((b"b" * 20,), 1)
                    count += 1
            self.assertNotIsInstance(caught.exception, StoreError)
            self.assertLess(store.end_position, DATA_SIZE - 100, "the first file is not full")
            self.assertEqual(len(bodies_in(store)), count)
            disk.set_full(False)
            store.maintenance(0, 0, keep_from_index=0)
            store.append_bodies((b"c" * 20,) * 30, 1)
            flush(store)
            disk.lose_power()
            self.assertEqual(len(bodies_in(FileStore.open(config, disk))), count + 30)

    def test_every_write_has_its_room(self) -> None:
        """No write needs more than was reserved: with batches, blanks, cuts and starts in between."""
        disk = SimDisk(random.Random(2))
        disk.makedirs("base")
        rng = random.Random(3)
        store = FileStore.open(config_of(), disk)
        for _ in range(300):
            disk.set_full(False)
            store.maintenance(0, 0, keep_from_index=0)
            if rng.random() < 0.1 and store.ledger_end_index > 3:
                store.truncate_to(entry_at(store, store.ledger_end_index - 2))
            if rng.random() < 0.1:
                store.clean_close()
                store = FileStore.open(config_of(), disk)
            disk.set_full(rng.random() < 0.5)
            bodies = tuple(bytes(rng.randrange(300)) for _ in range(rng.randrange(1, 9)))
            try:
                store.append_bodies(bodies, 1)
            except DLedgerError as error:
                self.assertIs(error.code, ResponseCode.DISK_FULL)
