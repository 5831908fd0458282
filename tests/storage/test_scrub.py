# -*- test-case-name: tests.storage.test_scrub -*-
"""
The scrub finds what rots in closed segments of a member that runs; the member gets it back from its peers.

C{DLEDGER_SCRUB_FLIPS=10000} in the environment sets the number of flipped bits.
"""

from __future__ import annotations

import errno
import os
import random

import attrs
from twisted.trial.unittest import SynchronousTestCase

from dledger.storage.files.term_file import TermFile
from dledger.storage.start.verify import verify_directory
from dledger.storage.store.file_store import FileStore
from dledger.storage.store.scrub import ScrubStep
from dledger.testing.world.memory_disk import MemoryDisk
from dledger.values.errors import DLedgerError, StoreError
from protocols.wire.ledger.batches import EntryBatch
from tests.storage.archived_member import body_of
from tests.storage.support import (
    BROKEN,
    DATA_SIZE,
    INDEX_SIZE,
    ROOT,
    HookedCase,
    HookedDisk,
    append_bare,
    config_of,
)

FLIPS = int(os.environ.get("DLEDGER_SCRUB_FLIPS", "400"))
#: Steps of a pass, and of a repair; each goes on.
_STEPS_MAX = 1000


def one_pass(store: FileStore, bytes_max: int = 200) -> list[ScrubStep]:
    """Every step to the end of a pass."""
    steps = []
    for _ in range(_STEPS_MAX):
        steps.append(store.scrub(bytes_max))
        if steps[-1].is_end:
            return steps
    raise AssertionError("the pass does not end")


def repair(store: FileStore, twin: dict[int, EntryBatch]) -> bool:
    """The core's part in mending holes. @return: whether all are closed."""
    for _ in range(_STEPS_MAX):
        if not store.holes:
            return True
        if store.look_again():
            continue
        try:
            store.fill_hole(twin[store.holes[0].first_index], is_committed=True)
        except StoreError:
            raise
        except DLedgerError:
            pass  # the hole is wider now
    return False


class ScrubTests(HookedCase):
    """A member with entries in several segments, all committed."""

    def setUp(self) -> None:
        super().setUp()
        self.fill(60)

    def fill(self, count: int) -> None:
        """Committed entries, and the twins that peers have of them."""
        first = self.store.ledger_end_index + 1
        self.store.append_bodies(tuple(map(body_of, range(first, first + count))), 1)
        self.store.record_commit(self.store.ledger_end_index)
        self.store.check_point(force=True)
        self.twin = {
            index: self.store.read_range(index, end_index=index, max_bytes=0)
            for index in range(self.store.ledger_begin_index, self.store.ledger_end_index + 1)
        }

    def rot(self, position: int, *, bit: int = 1) -> None:
        """Flip a bit of the log, and forget what was read before."""
        base = position - position % DATA_SIZE
        file = MemoryDisk.open(self.disk, f"{ROOT}/data/{base:020d}")
        file.pwrite(bytes([file.pread(1, position - base)[0] ^ bit]), position - base)

    def test_a_sound_ledger_is_not_written(self) -> None:
        """Every byte of the closed segments is read, and nothing is written."""
        calls = len(self.disk.calls)
        before = self.disk.contents()
        steps = one_pass(self.store)
        closed = self.store.end_position - self.store.end_position % DATA_SIZE
        self.assertEqual(sum(step.checked_bytes for step in steps), closed)
        self.assertEqual(sum(step.damaged + step.mended for step in steps), 0)
        self.assertEqual(self.disk.contents(), before)
        self.assertNotIn("pwrite", [call for call, _ in self.disk.calls[calls:]])
        self.assertEqual(len(one_pass(self.store)), len(steps))

    def test_a_pass_begins_anywhere(self) -> None:
        """The first pass begins with the segment at that share of all, the next one with the first."""
        closed = self.store.end_position // DATA_SIZE
        for share, count in ((0.0, closed), (0.5, closed - closed // 2), (0.999, 1)):
            self.store.scrub_from(share)
            for expected in (count, closed):
                checked = sum(step.checked_bytes for step in one_pass(self.store))
                self.assertEqual(checked, expected * DATA_SIZE)

    def test_a_damaged_record_makes_a_hole(self) -> None:
        """A flipped bit makes a hole of that entry; a peer has it."""
        self.rot(self.store.position_of(20) + 50)
        self.assertEqual(sum(step.damaged for step in one_pass(self.store)), 1)
        self.assertEqual([(hole.first_index, hole.last_index) for hole in self.store.holes], [(20, 20)])
        self.assertTrue(repair(self.store, self.twin))
        self.assertEqual(sum(step.damaged for step in one_pass(self.store)), 0)

    def test_a_known_hole_is_passed_over(self) -> None:
        """It is passed over, and what is after it is read."""
        for index in (12, 20):
            self.rot(self.store.position_of(index) + 50)
        one_pass(self.store)
        self.rot(self.store.position_of(30) + 50)
        self.assertEqual(sum(step.damaged for step in one_pass(self.store)), 1)
        self.assertEqual([hole.first_index for hole in self.store.holes], [12, 20, 30])

    def test_a_damaged_unit_is_mended(self) -> None:
        """A unit is written again from its record."""
        before = self.disk.contents()
        path = f"{ROOT}/index/{INDEX_SIZE:020d}"
        for at in (40, 70, 100):
            self.disk.files[path].data[at] ^= 2
        steps = one_pass(self.store)
        self.assertGreater(sum(step.mended for step in steps), 0)
        self.assertEqual(self.disk.contents(), before)
        self.assertEqual(self.store.holes, ())

    def test_a_damaged_unit_waits_for_room(self) -> None:
        """A full disk takes no write in place either: the member goes on, and a later pass mends the unit."""
        before, path = self.disk.contents(), f"{ROOT}/index/{INDEX_SIZE:020d}"
        self.disk.files[path].data[40] ^= 2
        rotten = self.disk.contents()
        self.disk.failures["pwrite", "/index/"] = errno.ENOSPC
        self.assertEqual([step.mended for step in one_pass(self.store) if step.mended], [])
        self.assertEqual(self.disk.contents(), rotten)
        self.disk.failures.clear()
        self.assertEqual(sum(step.mended for step in one_pass(self.store)), 1)
        self.assertEqual(self.disk.contents(), before)
        self.assertEqual(self.store.holes, ())

    def test_a_damaged_blank_is_mended(self) -> None:
        """It is written again: its first word, its length, and the zeroes."""
        before = self.disk.contents()
        ends = [self.store.position_of(index) + len(self.twin[index].records) for index in range(59)]
        end = next(end for index, end in enumerate(ends, 1) if self.store.position_of(index) > end + 9)
        for at in (0, 7, 9):
            self.rot(end + at)
            self.assertEqual(sum(step.mended for step in one_pass(self.store)), 1, at)
            self.assertEqual(self.disk.contents(), before)

    def test_bare_records_are_no_damage(self) -> None:
        """Records of Java: what has no checksum cannot be compared, and is no damage."""
        self.store.abandon()
        self.disk.files.clear()
        self.store = FileStore.open(self.config, self.disk)
        append_bare(self.store, map(body_of, range(40)), 1)
        self.store.record_commit(39)
        self.assertEqual(sum(step.damaged + step.mended for step in one_pass(self.store)), 0)
        self.rot(self.store.position_of(10) + 3)
        one_pass(self.store)
        self.assertTrue(self.store.holes)

    def test_not_the_open_segment(self) -> None:
        """Nor what is not committed."""
        self.rot(self.store.end_position - 1)
        self.store.append_bodies((b"x" * 400,) * 6, 1)
        self.assertEqual(sum(step.damaged for step in one_pass(self.store)), 1)
        self.rot(self.store.position_of(62) + 50)
        self.assertEqual(sum(step.damaged for step in one_pass(self.store)), 0)

    def test_an_expired_begin_is_compared(self) -> None:
        """The first record is compared with the mark; a pass goes on when the beginning moves."""
        self.store.clean_close()
        self.config = config_of(retention_bytes=4096)
        self.store = FileStore.open(self.config, self.disk)
        self.store.maintenance(1e9, 4, keep_from_index=59)
        begin = self.store.ledger_begin_index
        self.assertGreater(begin, 0)
        self.assertEqual(sum(step.damaged for step in one_pass(self.store)), 0)
        self.rot(self.store.position_of(begin) + 33)
        one_pass(self.store)
        self.assertEqual(self.store.holes[0].first_index, begin)
        self.assertTrue(repair(self.store, self.twin))
        self.store.scrub(200)
        self.fill(40)
        self.store.maintenance(1e9, 4, keep_from_index=99)
        self.assertGreater(self.store.ledger_begin_index, begin)
        self.assertEqual(sum(step.damaged for step in one_pass(self.store)), 0)

    def test_expired_under_it(self) -> None:
        """A segment goes while a pass is at any place in it, the blank at its end, too."""
        self.store.clean_close()
        self.config = config_of(retention_bytes=4096)
        for count in range(70):
            disk = self.disk
            self.disk = HookedDisk()
            self.disk.files, self.disk.directories = disk.clone().files, set(disk.directories)
            store = FileStore.open(self.config, self.disk)
            for _ in range(count):
                store.scrub(60)
            self.assertTrue(store.maintenance(1e9, 4, keep_from_index=59))
            self.assertEqual(sum(step.damaged + step.mended for step in one_pass(store)), 0)
            store.abandon()
            self.disk = disk

    def test_an_unreadable_record_is_damage(self) -> None:
        """What cannot be read is damage; the member goes on, and so does the pass."""
        self.rot(self.store.position_of(50) + 50)
        self.disk.failures[("pread", f"data/{DATA_SIZE:020d}")] = BROKEN
        steps = one_pass(self.store)
        self.assertEqual([step.trouble for step in steps if step.trouble], [])
        self.assertGreater(sum(step.damaged for step in steps), 1)
        self.disk.failures.clear()
        while self.store.look_again():
            pass
        self.assertEqual(len(self.store.holes), 1)
        self.assertEqual(self.store.append_bodies((b"on",), 1)[0], self.store.end_position - 50)

    def test_other_errors_are_reported(self) -> None:
        """Any other error of a read is reported; the member goes on, and so does the pass."""
        self.rot(self.store.position_of(50) + 50)
        self.disk.failures[("pread", f"data/{DATA_SIZE:020d}")] = errno.EBADF
        steps = one_pass(self.store)
        (trouble,) = [step.trouble for step in steps if step.trouble]
        self.assertIn(os.strerror(errno.EBADF), trouble)
        self.assertEqual(sum(step.damaged for step in steps), 1)
        self.disk.failures.clear()
        self.assertEqual(self.store.append_bodies((b"on",), 1)[0], self.store.end_position - 50)

    def test_an_empty_pass_ends(self) -> None:
        """A pass over nothing ends."""
        self.store.abandon()
        self.disk.files.clear()
        self.store = FileStore.open(self.config, self.disk)
        self.assertEqual(self.store.scrub(100), ScrubStep(is_end=True))

    def test_one_segment_has_no_pass(self) -> None:
        """Nor has a ledger of one segment, which is open, a place at which a pass could begin."""
        self.store.abandon()
        self.disk.files.clear()
        self.store = FileStore.open(self.config, self.disk)
        self.fill(3)
        self.store.scrub_from(0.5)
        self.assertEqual(self.store.scrub(100), ScrubStep(is_end=True))


@attrs.define
class _Tally:
    flips: int = 0
    repaired: int = 0
    lost: list[str] = attrs.Factory(list)


class FlipTests(SynchronousTestCase):
    """Bits flip in closed segments, data and index, while the member runs."""

    def setUp(self) -> None:
        disk = MemoryDisk()
        store = FileStore.open(config_of(), disk)
        store.append_bodies(tuple(map(body_of, range(40))), 1)
        store.append_bodies(tuple(map(body_of, range(40, 80))), 3)
        store.record_commit(79)
        self.twin = {n: store.read_range(n, end_index=n, max_bytes=0) for n in range(80)}
        self.closed = store.end_position - store.end_position % DATA_SIZE
        self.closed_count = sum(store.position_of(index) < self.closed for index in range(80))
        store.clean_close()
        terms = TermFile(disk, ROOT)
        terms.save(3, None)
        terms.close()
        self.image = disk

    def test_flipped_bits_come_back(self) -> None:
        """None is lost, and nearly all come back without a person; one to five at a time."""
        rng = random.Random(16)
        tally = _Tally()
        while tally.flips < FLIPS:
            self.round(rng, tally)
        self.assertEqual(tally.lost, [])
        self.assertGreaterEqual(tally.repaired, tally.flips * 0.99)

    def round(self, rng: random.Random, tally: _Tally) -> None:
        """A member runs, bits flip, and it is scrubbed twice."""
        disk = self.image.clone()
        store = FileStore.open(config_of(), disk)
        places = [self.place(rng) for _ in range(rng.choice((1, 1, 1, 2, 5)))]
        for path, at, bit in places:
            file = disk.open(path)
            file.pwrite(bytes([file.pread(1, at)[0] ^ bit]), at)
        tally.flips += len(places)
        for _ in range(2):
            one_pass(store, rng.choice((60, 300, 5000)))
            is_whole = repair(store, self.twin)
        for index, entry in self.twin.items():
            try:
                found = store.read_range(index, end_index=index, max_bytes=0).records
            except DLedgerError:
                is_whole = False  # refused, and so not lost: it is a hole
                continue
            if found != entry.records:
                tally.lost.append(f"{places}: entry {index} is another one")
        store.clean_close()
        if is_whole:
            is_whole = verify_directory(disk, ROOT).is_clean
        tally.repaired += len(places) * is_whole

    def place(self, rng: random.Random) -> tuple[str, int, int]:
        """A byte and a bit: of the data, or now and then of the index."""
        if rng.random() < 0.2:
            position, size, folder = rng.randrange(self.closed_count * 32), INDEX_SIZE, "index"
        else:
            position, size, folder = rng.randrange(self.closed), DATA_SIZE, "data"
        base = position - position % size
        return f"{ROOT}/{folder}/{base:020d}", position - base, 1 << rng.randrange(8)
