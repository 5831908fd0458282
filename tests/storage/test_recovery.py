# -*- test-case-name: tests.storage.test_recovery -*-
"""Where a ledger ends after a kill, a power cut, or damage."""

from __future__ import annotations

import random

import attrs
from twisted.trial.unittest import SynchronousTestCase

from dledger.base.disk.segment import SegmentList
from dledger.storage.files.commit_mark import read_mark
from dledger.storage.start.recovery import highest_held
from dledger.storage.store.file_store import FileStore
from dledger.testing.world.disk import SimDisk
from dledger.values.errors import DamagedEntryError, DirectoryError, StoreError
from protocols.wire.ledger.entry import bodies_of
from tests.storage.support import (
    BROKEN,
    DATA_SIZE,
    INDEX_SIZE,
    HookedDisk,
    batch_of,
    bodies,
    bodies_in,
    config_of,
    entry_at,
    flush,
    our_record,
)

ROOT = "base/dledger-n0"


class RecoveryCase(SynchronousTestCase):
    """Forty entries, the first thirty flushed, then a kill."""

    def setUp(self) -> None:
        self.disk = HookedDisk()
        self.store = FileStore.open(config_of(), self.disk)
        self.append(0, 30)
        flush(self.store)
        self.append(30, 40)
        self.position = {index: self.store.position_of(index) for index in range(41)}
        self.store.abandon()

    def append(self, start: int, end: int) -> None:
        """Entries one by one."""
        for body in bodies(start, end):
            self.store.append_bodies((body,), 1)

    def flip(self, position: int, bits: int = 1) -> None:
        """Damage a byte of the data stream."""
        base = position - position % DATA_SIZE
        self.disk.files[f"{ROOT}/data/{base:020d}"].data[position - base] ^= bits

    def open(self) -> FileStore:
        """Start again."""
        self.store = FileStore.open(config_of(), self.disk)
        return self.store

    def ends(self, end: int, repair: int) -> None:
        """The ledger must end here, with these entries, and nothing after them."""
        store = self.open()
        self.assertEqual((store.ledger_end_index, store.repair_end_index), (end, repair))
        self.assertEqual(bodies_in(store), bodies(0, end + 1))
        tail = store.end_position
        content = self.disk.contents()
        last = f"{ROOT}/data/{tail - tail % DATA_SIZE:020d}"
        if end < 0:
            self.assertEqual([path for path in content if "/data/" in path or "/index/" in path], [])
            return
        self.assertEqual(max(path for path in content if "/data/" in path), last)
        self.assertEqual(content[last][tail % DATA_SIZE :].strip(b"\0"), b"")
        index_at = (end + 1) * 32
        last = f"{ROOT}/index/{index_at - index_at % INDEX_SIZE:020d}"
        if last in content:
            self.assertEqual(content[last][index_at % INDEX_SIZE :].strip(b"\0"), b"")


class TailTests(RecoveryCase):
    """After the recorded end a bad record is a torn tail; at or below it something was lost."""

    def test_a_kill_loses_nothing(self) -> None:
        """Nothing that was written is lost by a kill."""
        self.ends(39, -1)

    def test_a_torn_tail_is_cut(self) -> None:
        """A record that came through in part is cut, with all after it; nobody was promised them."""
        for part in (0, 7, 8, 30, 47, 60, 97):
            self.setUp()
            self.flip(self.position[35] + part)
            self.ends(34, -1)

    def test_a_recorded_loss_needs_repair(self) -> None:
        """Of the last recorded entry, the member comes up repairing, up to its last recorded entry."""
        self.flip(self.position[29] + 60)
        self.ends(28, 39)

    def test_records_alone_show_the_end(self) -> None:
        """
        Without mark and index of them, records after the recorded end show how far the ledger reached, from
        file to file; those after a gap, or of another place, do not.
        """
        mark = read_mark(self.disk, f"{ROOT}/commitmark")[1]  # type: ignore[index]
        offsets = tuple(range(0, self.position[40], DATA_SIZE))
        data = SegmentList(self.disk, f"{ROOT}/data", DATA_SIZE, offsets)
        second = min(index for index, at in self.position.items() if at >= DATA_SIZE)
        for first in (1, 5, second):
            known = attrs.evolve(mark, end_index=first - 1, end_position=self.position[first])
            self.assertEqual(highest_held(data, known), 39)
        known = attrs.evolve(mark, end_index=2, end_position=self.position[3])
        for at in (0, 15, 31):  # magic, index, position
            self.flip(self.position[5] + at)
            self.assertEqual(highest_held(data, known), 4)
            self.flip(self.position[5] + at)
        self.assertEqual(highest_held(data, known), 39)
        # A file whose first record is the next one counts only after a blank.
        known = attrs.evolve(mark, end_index=second - 1, end_position=self.position[second - 1])
        self.assertEqual(highest_held(data, known), second - 1)
        data.close()

    def test_loss_before_sound_records(self) -> None:
        """A damaged record costs that record: what is after it stays, and nothing is set aside."""
        for index in (28, 20, 1, 0):
            for at in (0, 3, 4, 7, 12, 15, 20, 30, 37, 41, 60):
                self.setUp()
                self.flip(self.position[index] + at)
                self.lacks(index, index)

    def test_lost_sectors_need_repair(self) -> None:
        """So does a run of zeroes, whatever it covers, with and without the index units of its entries."""
        for first, last in ((3, 3), (5, 9), (0, 2), (8, 27), (0, 25)):
            for wipes_index in (False, True):
                self.setUp()
                for position in range(self.position[first], self.position[last + 1]):
                    self.wipe("data", position, DATA_SIZE)
                if wipes_index:
                    for position in range(first * 32, (last + 2) * 32):
                        self.wipe("index", position, INDEX_SIZE)
                # Without the index the first sound header only vouches for the next one.
                self.lacks(first, last + wipes_index)

    def wipe(self, directory: str, position: int, size: int) -> None:
        """One byte is lost."""
        path = f"{ROOT}/{directory}/{position - position % size:020d}"
        data = self.disk.files[path].data
        if position % size < len(data):
            data[position % size] = 0

    def lacks(self, first: int, last: int) -> None:
        """Only these are missing after a start; the next start says the same."""
        for _ in range(2):
            store = self.open()
            self.assertEqual((store.ledger_end_index, store.repair_end_index), (39, -1))
            (hole,) = store.holes
            self.assertEqual((hole.first_index, hole.last_index), (first, last))
            self.assertLessEqual(hole.position, self.position[first])
            self.assertEqual(hole.end_position, self.position[last + 1])
            for index, body in enumerate(bodies(0, 40)):
                if hole.holds(index):
                    self.assertRaises(DamagedEntryError, entry_at, store, index)
                else:
                    self.assertEqual(bodies_of(entry_at(store, index)), [body])
            self.assertEqual(store.set_aside, [])
            store.abandon()

    def test_zeroed_records_are_a_loss(self) -> None:
        """Zeroes are no end of the ledger where one is on record."""
        path = f"{ROOT}/data/{DATA_SIZE:020d}"
        self.disk.files[path].data = bytearray(DATA_SIZE)
        lost = [index for index, position in self.position.items() if position // DATA_SIZE == 1]
        self.lacks(lost[0], lost[-1])

    def test_lost_files_are_a_loss(self) -> None:
        """Missing files are a loss, too."""
        for name in [path for path in self.disk.files if "/data/" in path]:
            self.disk.unlink(name)
        store = self.open()
        self.assertEqual((store.ledger_begin_index, store.ledger_end_index), (-1, -1))
        self.assertEqual(store.repair_end_index, 39)
        store.truncate_to(batch_of([our_record(b"again", index=0, term=2, pos=0)]))
        self.assertEqual(bodies_in(store), [b"again"])

    def test_mark_before_the_cut(self) -> None:
        """That something was lost is durable before anything is cut."""
        self.flip(self.position[29] + 60)
        self.disk.calls.clear()
        self.open()
        changes = [(operation, path) for operation, path in self.disk.calls
                   if operation in ("pwrite", "unlink") and ("/data/" in path or "commitmark" in path)]
        self.assertIn("commitmark", changes[0][1])
        first_cut = self.disk.calls.index(next(call for call in changes if "/data/" in call[1]))
        self.assertIn(("datasync", f"{ROOT}/commitmark"), self.disk.calls[:first_cut])

    def test_cut_that_fails(self) -> None:
        """A start that fails half-way is repeated with the same result."""
        for failing in (("rename", "/data/"), ("create", "/data.set-aside/"), ("pwrite", "/data/"),
                        ("datasync", "/data/"), ("pwrite", "/index/"), ("unlink", "/index/")):
            self.setUp()
            self.flip(self.position[29] + 60)
            self.disk.failures = {failing: BROKEN}
            with self.assertRaises(StoreError):
                self.open()
            self.disk.failures.clear()
            self.ends(28, 39)

    def test_what_is_cut_is_kept(self) -> None:
        """Everything after the last recorded entry, which is damaged: its file's rest, and more files."""
        before = {path: content for path, content in self.disk.contents().items() if "/data/" in path}
        self.flip(self.position[29] + 60)
        store = self.open()
        self.assertEqual((store.ledger_end_index, store.repair_end_index), (28, 39))
        base = self.position[29] - self.position[29] % DATA_SIZE
        kept = {one.path.rpartition("/")[2]: self.disk.read_file(one.path) for one in store.kept_files()}
        self.assertEqual(store.kept_files(), sorted(store.set_aside, key=lambda one: one.path))
        for path, content in before.items():
            offset = int(path.rpartition("/")[2])
            if offset > base:
                self.assertEqual(kept.pop(f"{offset:020d}.set-aside-1"), content)
        ((name, content),) = kept.items()
        self.assertEqual(name, f"{base:020d}.from-{self.position[29] - base}.set-aside-1")
        self.assertEqual(len(content), len(before[f"{ROOT}/data/{base:020d}"][self.position[29] - base:]
                                           .rstrip(b"\0")))

    def test_torn_tail_is_not_kept(self) -> None:
        """It was never acknowledged."""
        self.flip(self.position[39] + 60)
        store = self.open()
        self.assertEqual((store.ledger_end_index, store.repair_end_index), (38, -1))
        self.assertEqual(store.kept_files(), [])

    def test_recovered_tail_is_durable(self) -> None:
        """What was found is synced before it is on record: a kill leaves it in the cache only."""
        self.disk.calls.clear()
        self.open()
        for path in ("/data/", "/index/"):
            calls = list(enumerate(self.disk.calls))
            synced = max(at for at, call in calls if call[0] == "datasync" and path in call[1])
            marked = max(at for at, call in calls if call == ("pwrite", f"{ROOT}/commitmark"))
            self.assertLess(synced, marked)
        self.assertIn(("sync_directory", f"{ROOT}/data"), self.disk.calls)
        found = read_mark(self.disk, f"{ROOT}/commitmark")
        assert found is not None
        self.assertEqual((found[1].end_index, found[1].clean), (39, False))

    def test_stale_records_behind_a_cut(self) -> None:
        """Sound records after the first bad one do not come back at the next start."""
        self.flip(self.position[35] + 60)
        self.open().abandon()
        self.flip(self.position[35] + 60, 0)
        self.ends(34, -1)


class BlankTests(RecoveryCase):
    """Blanks say where the next record is to be looked for."""

    def test_a_damaged_blank_is_mended(self) -> None:
        """No record is missing, so the blank is mended and nothing is lost."""
        blank = next(self.position[index] for index in range(41) if self.position[index] % DATA_SIZE == 0
                     and index) - DATA_SIZE
        last = max(index for index, position in self.position.items() if position < blank + DATA_SIZE)
        at = self.position[last] + 98
        for position, bits in ((at, 0x10), (at + 3, 1), (at + 7, 1), (at + 9, 1)):
            self.flip(position, bits)
            self.ends(39, -1)
            self.store.abandon()
            room = DATA_SIZE - at % DATA_SIZE
            content = self.disk.contents()[f"{ROOT}/data/{at - at % DATA_SIZE:020d}"]
            if position < at + 4:
                self.assertEqual(content[at % DATA_SIZE :][:8].hex(), f"ffffffff{room:08x}")

    def test_blank_without_a_next_file(self) -> None:
        """The crash came between the blank and the next file."""
        self.store = self.open()
        self.store.truncate_to(entry_at(self.store, 8))
        end = self.store.end_position
        self.store.parts.data.pwrite(b"\xff\xff\xff\xff" + (DATA_SIZE - end).to_bytes(4, "big"), end)
        self.store.abandon()
        self.ends(8, -1)
        self.append(9, 12)
        self.assertEqual(bodies_in(self.store), bodies(0, 12))

    def test_next_file_is_empty(self) -> None:
        """The crash came between the next file and its first record."""
        self.store = self.open()
        self.store.truncate_to(entry_at(self.store, 8))
        end = self.store.end_position
        self.store.parts.data.pwrite(b"\xff\xff\xff\xff" + (DATA_SIZE - end).to_bytes(4, "big"), end)
        self.store.parts.data.create(DATA_SIZE)
        self.store.abandon()
        self.ends(8, -1)


class BeginningTests(RecoveryCase):
    """The first record of a ledger whose beginning has expired has no predecessor to vouch for it."""

    def setUp(self) -> None:
        super().setUp()
        self.open()
        self.store.record_commit(39)
        for _ in range(2):
            self.store.parts.data.drop_first()
        first = self.store.parts.room.scanner.first_record(self.store.parts.data.offsets[0])
        assert first is not None
        self.store.parts.ledger.begin_index = first[0]
        self.store.parts.marks.note_begin()
        self.store.parts.marks.write()
        self.first = self.store.ledger_begin_index
        self.store.abandon()

    def test_a_sound_begin_is_opened(self) -> None:
        """It opens where it begins."""
        store = self.open()
        self.assertEqual((store.ledger_begin_index, store.ledger_end_index), (self.first, 39))
        self.assertEqual(bodies_in(store), bodies(self.first, 40))

    def test_every_bit_of_the_first_header(self) -> None:
        """No flipped bit of it goes unnoticed."""
        start = self.position[self.first]
        clean = self.disk.clone()
        for bit in range(48 * 8):
            self.disk.files = clean.clone().files
            self.flip(start + bit // 8, 1 << bit % 8)
            store = self.open()
            self.assertEqual((store.ledger_end_index, store.repair_end_index), (39, -1), f"bit {bit}")
            self.assertEqual([(hole.first_index, hole.last_index) for hole in store.holes],
                             [(self.first, self.first)], f"bit {bit}")
            self.assertEqual(store.ledger_begin_index, self.first)
            store.abandon()


class WipedChecksumTests(RecoveryCase):
    """A record whose two checksums were wiped out looks like one of Java's, which nobody can judge."""

    def wipe(self, index: int) -> None:
        """Channel and both checksums, as one run of zeroes would."""
        position = self.position[index]
        content = self.disk.files[f"{ROOT}/data/{position - position % DATA_SIZE:020d}"].data
        at = position % DATA_SIZE
        content[at + 32 : at + 44] = bytes(12)

    def test_in_the_middle(self) -> None:
        """The one after it says that it had one: neither is believed."""
        self.wipe(20)
        store = self.open()
        self.assertEqual((store.ledger_end_index, store.repair_end_index), (39, -1))
        self.assertEqual([(hole.first_index, hole.last_index) for hole in store.holes], [(20, 20)])

    def test_after_the_recorded_end(self) -> None:
        """It goes with the one after it, and the ledger ends with the one before it."""
        self.wipe(35)
        self.ends(34, -1)

    def test_at_the_end(self) -> None:
        """Nothing is after the last one."""
        self.wipe(39)
        self.assertEqual(self.open().ledger_end_index, 39)

    def test_a_wiped_first_record_is_refused(self) -> None:
        """With nothing on record there is nothing to begin with, and nothing is touched."""
        self.wipe(0)
        self.disk.unlink(f"{ROOT}/commitmark")
        self.disk.files[f"{ROOT}/index/{0:020d}"].data.clear()
        before = self.disk.contents()
        with self.assertRaises(DirectoryError):
            self.open()
        self.assertEqual(self.disk.contents(), before)


class FirstEntryTests(SynchronousTestCase):
    """The very first entry stays although the next one was torn."""

    def test_a_torn_second_keeps_the_first(self) -> None:
        """Flushed, but the mark and the index of it were lost with the power."""
        disk = HookedDisk()
        store = FileStore.open(config_of(), disk)
        mark = bytes(disk.files[f"{ROOT}/commitmark"].data)
        store.append_bodies((b"first", b"second"), 1)
        flush(store)
        store.abandon()
        disk.files[f"{ROOT}/commitmark"].data[:] = mark
        disk.files[f"{ROOT}/index/{0:020d}"].data.clear()
        disk.files[f"{ROOT}/data/{0:020d}"].data[53 + 50] ^= 1
        self.assertEqual(bodies_in(FileStore.open(config_of(), disk)), [b"first"])


class PowerCutTests(SynchronousTestCase):
    """Power cuts at random moments, on a disk that loses and tears what was not synced."""

    def test_what_was_flushed_is_there(self) -> None:
        """Whatever else is lost: flushed entries are there, cut ones are not, and nothing else is."""
        for seed in range(150):
            rng = random.Random(seed)
            disk = SimDisk(rng)
            config = config_of(flush_disk_type=rng.choice(("sync", "async")))
            model: list[bytes] = []
            flushed = cut_to = 0
            for _ in range(4):
                store = FileStore.open(config, disk)
                found = bodies_in(store)
                self.assertEqual(store.repair_end_index, -1, f"seed {seed}")
                self.assertEqual(found, model[: len(found)], f"seed {seed}")
                self.assertGreaterEqual(len(found), min(flushed, cut_to), f"seed {seed}")
                model, flushed, cut_to = found, len(found), len(found)
                term = max(store.ledger_end_term, 0)
                for _ in range(rng.randrange(12)):
                    chance = rng.random()
                    if chance < 0.6:
                        new = [rng.randbytes(rng.randrange(300)) for _ in range(rng.randrange(1, 8))]
                        term += rng.randrange(2)
                        store.append_bodies(tuple(new), term)
                        model.extend(new)
                        cut_to = len(model)
                    elif chance < 0.8:
                        flush(store)
                        flushed = len(model)
                    elif chance < 0.9 and model:
                        keep = rng.randrange(max(store.committed_index, 0), len(model))
                        store.truncate_to(entry_at(store, keep))
                        del model[keep + 1 :]
                        flushed = cut_to = len(model)
                    else:
                        store.record_commit(min(flushed, len(model)) - 1)
                        store.check_point(force=rng.random() < 0.5)
                disk.lose_power()
