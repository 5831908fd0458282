# -*- test-case-name: tests.storage.test_holes -*-
"""Holes: remembered, found by reads, and filled with what a peer has."""

from __future__ import annotations

import errno
from typing import Any
from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

from dledger.base.disk.file_table import HOLES
from dledger.base.disk.hints import Hints
from dledger.storage.files.hole_list import HoleList, decode_holes, encode_holes
from dledger.storage.start import scanner
from dledger.storage.store import hole_finder, hole_mending
from dledger.storage.store.file_store import FileStore
from dledger.values.errors import DamagedEntryError, DLedgerError
from dledger.values.ledger.holes import HOLES_MAX, Hole, joined_holes
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.entry import CHANNEL_AT, ENTRY_HEADER, bodies_of
from protocols.wire.ledger.own.own_entries import SESSION_CHANNEL, slot_channels
from protocols.wire.ledger.own.session_entries import Session, encode_session_entry
from tests.storage.support import (
    DATA_SIZE,
    HookedDisk,
    bodies_in,
    config_of,
    entry_at,
    flush,
)

ROOT = "base/dledger-n0"
NO_ROOM = OSError(errno.ENOSPC, "No space left on device")


def hole(first: int, last: int) -> Hole:
    """A hole of records of a hundred bytes."""
    return Hole(first_index=first, last_index=last, position=first * 100, end_position=last * 100 + 100)


def ranges(store: FileStore) -> list[tuple[int, int]]:
    """First and last index of every hole."""
    return [(one.first_index, one.last_index) for one in store.holes]


def joined(entries: list[EntryBatch]) -> EntryBatch:
    """One batch of single entries."""
    return EntryBatch(first_index=entries[0].first_index, count=len(entries), term=entries[-1].term,
                      records=b"".join(one.records for one in entries))


class JoinTests(SynchronousTestCase):
    """Holes that touch are one; so are the closest ones beyond the bound."""

    def test_touching_holes_are_joined(self) -> None:
        """Overlapping, adjacent, contained."""
        self.assertEqual(joined_holes((hole(5, 6), hole(1, 2), hole(3, 3), hole(6, 9), hole(7, 7))),
                         (hole(1, 3), hole(5, 9)))

    def test_holes_apart_stay_apart(self) -> None:
        """A sound record between them keeps them apart."""
        self.assertEqual(joined_holes((hole(3, 3), hole(1, 1))), (hole(1, 1), hole(3, 3)))

    def test_the_number_of_holes_is_bounded(self) -> None:
        """The closest two are joined first."""
        many = tuple(hole(10 * number, 10 * number) for number in range(HOLES_MAX)) + (hole(5, 5),)
        joined = joined_holes(many)
        self.assertEqual(len(joined), HOLES_MAX)
        self.assertIn(joined[0], (hole(0, 5), hole(0, 0)))
        self.assertEqual(sum(one.last_index - one.first_index + 1 for one in joined), HOLES_MAX + 5)


class FileTests(SynchronousTestCase):
    """The file that remembers them."""

    def test_holes_are_written_and_read(self) -> None:
        """What was written is read."""
        many = tuple(hole(10 * number, 10 * number) for number in range(HOLES_MAX))
        for holes in ((), (hole(1, 2),), many):
            self.assertEqual(decode_holes(encode_holes(holes)), holes)

    def test_every_flipped_bit_is_noticed(self) -> None:
        """No flipped bit, no cut, goes unnoticed."""
        data = encode_holes((hole(1, 2), hole(7, 7)))
        for bit in range(len(data) * 8):
            changed = bytearray(data)
            changed[bit // 8] ^= 1 << bit % 8
            self.assertIsNone(decode_holes(bytes(changed)))
        for size in range(len(data)):
            self.assertIsNone(decode_holes(data[:size]))

    def test_a_full_disk_forgets_no_hole(self) -> None:
        """It says so, and knows the holes all the same."""
        disk = HookedDisk()
        disk.makedirs(ROOT)
        hints = Hints(disk)
        holes = HoleList(hints, ROOT)
        with mock.patch.object(disk, "write_file", side_effect=NO_ROOM):
            holes.add(hole(1, 2))
        self.assertTrue(holes.is_late)
        self.assertIn("No space", hints.news()[f"{ROOT}/holes"])
        self.assertEqual((holes.holes, holes.end_index), ((hole(1, 2),), 2))
        holes.add(hole(7, 7))
        self.assertFalse(holes.is_late)
        self.assertEqual(HoleList.recorded(Hints(disk), ROOT), (hole(1, 2), hole(7, 7)))

    def test_cut_and_begin(self) -> None:
        """Holes after a cut, and before the beginning, are gone."""
        disk = HookedDisk()
        disk.makedirs(ROOT)
        holes = HoleList(Hints(disk), ROOT, (hole(1, 2), hole(5, 7), hole(9, 9)))
        holes.cut(9)
        self.assertEqual(holes.holes, (hole(1, 2), hole(5, 7)))
        holes.begin_at(6, 600)
        self.assertEqual(holes.holes, (hole(6, 7),))
        self.assertEqual(holes.end_index, 7)
        self.assertEqual(HoleList.recorded(Hints(disk), ROOT), (hole(6, 7),))


class StoreCase(SynchronousTestCase):
    """Sixty flushed entries of three terms, in several files; a copy of each."""

    options: dict[str, Any] = {}

    def setUp(self) -> None:
        self.disk = HookedDisk()
        self.store = FileStore.open(config_of(**self.options), self.disk)
        self.fill(self.store)
        flush(self.store)
        self.store.check_point(force=True)
        self.copies = [entry_at(self.store, index) for index in range(60)]
        self.position = [self.store.position_of(index) for index in range(61)]
        self.reopen()

    def fill(self, store: FileStore) -> None:
        """Bodies of different lengths."""
        for index in range(60):
            store.append_bodies((bytes([index]) * (20 + index % 7 * 9),), 1 + index // 20)

    def reopen(self) -> FileStore:
        """Start again, and forget the latest entries."""
        self.store.abandon()
        with mock.patch.object(scanner, "SCAN_BACK_BYTES", 300):
            self.store = FileStore.open(config_of(**self.options), self.disk)
        return self.store

    def flip(self, index: int, at: int, bits: int = 0x41) -> None:
        """Damage a byte of a record."""
        self.change(self.position[index] + at, bits)

    def change(self, position: int, bits: int) -> None:
        """Damage a byte of the data."""
        name = f"{position - position % DATA_SIZE:020d}"
        self.disk.files[f"{ROOT}/data/{name}"].data[position % DATA_SIZE] ^= bits

    def wipe(self, first: int, last: int) -> None:
        """Zeroes instead of these records."""
        for position in range(self.position[first], self.position[last + 1]):
            name = f"{position - position % DATA_SIZE:020d}"
            self.disk.files[f"{ROOT}/data/{name}"].data[position % DATA_SIZE] = 0

    def batch(self, first: int, last: int) -> EntryBatch:
        """A peer's records."""
        return joined(self.copies[first : last + 1])

    def is_whole(self) -> None:
        """All entries can be read, before and after a start, and the files are as they were."""
        for store in (self.store, None):
            store = store or self.reopen()
            self.assertEqual(store.holes, ())
            self.assertEqual([entry_at(store, index) for index in range(60)], self.copies)
            self.assertEqual(store.repair_end_index, -1)


class ReadTests(StoreCase):
    """A read of a damaged record makes a hole, and everything else goes on."""

    def test_every_damaged_byte_makes_a_hole(self) -> None:
        """Of a record in the middle of old files: only that entry is lost, and it is given back."""
        clean = self.disk.clone()
        for index in (0, 7, 25):
            for at in range(self.position[index + 1] - self.position[index]):
                if at >= len(self.copies[index].records):
                    break  # a blank
                self.disk.files = clean.clone().files
                self.reopen()
                self.flip(index, at)
                self.assertRaises(DamagedEntryError, entry_at, self.store, index)
                self.assertEqual(ranges(self.store), [(index, index)], f"byte {at} of {index}")
                self.assertEqual(entry_at(self.store, index + 1), self.copies[index + 1])
                self.store.fill_hole(self.copies[index], is_committed=False)
                self.assertEqual(entry_at(self.store, index), self.copies[index])
        self.is_whole()

    def test_read_stops_before(self) -> None:
        """A longer read shows what is sound, up to the hole."""
        self.flip(5, 60)
        self.assertEqual(self.store.read_range(2, end_index=12, max_bytes=9999).count, 3)
        self.assertEqual(self.store.read_range(2, end_index=12, max_bytes=9999).count, 3)
        self.assertEqual(self.store.read_unchecked(2, end_index=12, max_bytes=9999).count, 3)
        for read in (self.store.read_range, self.store.read_unchecked):
            self.assertRaises(DamagedEntryError, read, 5, end_index=12, max_bytes=9999)
            self.assertEqual(read(6, end_index=7, max_bytes=9999).count, 2)

    def test_header_behind_a_hole(self) -> None:
        """No chain covers it: it is shown as it was, or refused, and comes back."""
        for index in (20, 59):
            for at in range(48):
                self.setUp()
                self.flip(index - 1, 50)
                self.assertRaises(DamagedEntryError, entry_at, self.store, index - 1)
                self.flip(index, at)
                self.reopen()
                if self.store.ledger_end_index < 59:
                    continue  # the last one is damaged: that is not a hole
                self.assertEqual(self.store.is_end_proven, index != 59)
                found, why = [], ""
                for _ in range(6):
                    try:
                        while self.store.holes:
                            if not self.store.look_again():
                                first = self.store.holes[0].first_index
                                self.store.fill_hole(self.copies[first], is_committed=True)
                        found = [entry_at(self.store, one) for one in range(60)]
                    except DLedgerError as error:  # it is one more
                        why = str(error)
                        continue
                    break
                self.assertEqual(found, self.copies, f"byte {at} of {index}: {why}")
                self.is_whole()
                self.assertTrue(self.store.is_end_proven)
                last = ENTRY_HEADER.unpack_from(self.copies[59].records)
                self.assertEqual(self.store.parts.ledger.chain_crc, last[6])

    def test_first_header_names_another_entry(self) -> None:
        """A flipped index in the first header is no place to walk from: the index keeps the truth about the
        entry that it names (seed 4201566)."""
        self.flip(11, 60)
        self.assertRaises(DamagedEntryError, entry_at, self.store, 11)
        self.flip(0, 15, 0x02)
        self.flip(12, 60)
        for _ in range(2):  # the walk to 12 comes to 0 first
            self.assertRaises(DamagedEntryError, entry_at, self.store, 12)
        for index in range(1, 11):
            self.assertEqual(entry_at(self.store, index), self.copies[index])
        self.assertEqual(ranges(self.store), [(0, 0), (11, 12)])

    def test_shown_behind_a_hole(self) -> None:
        """While the hole is there, the record after it is shown as it was, or refused."""
        for at in range(48):
            self.setUp()
            self.flip(19, 50)
            self.assertRaises(DamagedEntryError, entry_at, self.store, 19)
            self.assertEqual(entry_at(self.store, 20), self.copies[20])
            self.flip(20, at)
            self.store.parts.reads._read_on = (-1, -1, 0)
            self.assertRaises(DamagedEntryError, entry_at, self.store, 20)
            self.assertEqual(entry_at(self.store, 22), self.copies[22])

    def test_index_learns_nothing_behind_a_hole(self) -> None:
        """A header that no chain covers does not change the index, which knows better."""
        self.flip(19, 50)
        self.assertRaises(DamagedEntryError, entry_at, self.store, 19)
        self.flip(20, 22, 1)  # its term
        for index in (21, 22, 20):
            self.flip(index, 60, 2)
            self.assertRaises(DamagedEntryError, entry_at, self.store, index)
            unit = self.store.parts.reads.scanner.unit(20)
            assert unit is not None
            self.assertEqual(unit[4], 2)

    def test_append_behind_an_unproven_end(self) -> None:
        """A follower takes entries although its last C{chainCrc} may be damaged, and mends that."""
        self.store.append_bodies((b"next", b"more"), 3)
        following = [entry_at(self.store, index) for index in (60, 61)]
        self.store.truncate_to(self.copies[59])
        self.store.check_point(force=True)
        self.flip(58, 60)
        self.flip(59, 38)
        self.reopen()
        self.assertEqual((self.store.ledger_end_index, self.store.is_end_proven), (59, False))
        for entry in following:
            self.store.append_entries(entry)
        self.assertTrue(self.store.is_end_proven)
        for _ in range(9):
            try:
                if self.store.holes:
                    first = self.store.holes[0].first_index
                    self.store.fill_hole(self.copies[first], is_committed=True)
                self.assertEqual(entry_at(self.store, 59), self.copies[59])
            except DLedgerError:
                continue
            break
        self.assertEqual([entry_at(self.store, index) for index in (60, 61)], following)
        self.is_whole()

    def test_others_go_on(self) -> None:
        """Appends, flushes and reads."""
        self.flip(5, 60)
        self.assertRaises(DamagedEntryError, self.store.holds, self.copies[5])
        self.store.append_bodies((b"more",), 3)
        flush(self.store)
        self.store.check_point(force=True)
        self.assertEqual(bodies_of(entry_at(self.store, 60)), [b"more"])
        self.assertEqual(ranges(self.reopen()), [(5, 5)])
        self.assertEqual(self.store.ledger_end_index, 60)

    def test_next_file_takes_its_number(self) -> None:
        """
        The last record of a file is damaged, and the first one of the next file claims its index: that is
        another damaged record, no proof that the place of the first one was a blank.
        """
        first = next(index for index in range(1, 60) if self.position[index] % DATA_SIZE == 0)
        self.flip(first - 1, 48)
        self.flip(first, 15, bits=first ^ (first - 1))
        before = self.disk.contents()
        self.store.abandon()
        self.store = FileStore.open(config_of(), self.disk)
        self.assertEqual((self.store.holes[0].first_index, self.store.holes[0].position),
                         (first - 1, self.position[first - 1]))
        name = f"{ROOT}/data/{self.position[first] - DATA_SIZE:020d}"
        self.assertEqual(self.disk.contents()[name], before[name])
        while self.store.holes:
            if not self.store.look_again():
                hole = self.store.holes[0]
                self.store.fill_hole(self.batch(hole.first_index, hole.last_index), is_committed=True)
        self.is_whole()

    def test_a_read_looks_a_bounded_way(self) -> None:
        """A read has a bound, then the hole reaches to the next file; a second look shrinks it."""
        self.wipe(3, 5)
        with mock.patch.multiple(hole_finder, UNITS_MAX=2, BYTES_MAX=64):
            self.assertRaises(DamagedEntryError, entry_at, self.store, 4)
        ((first, last),) = ranges(self.store)
        self.assertEqual(first, 3)
        self.assertGreater(last, 5)
        self.assertFalse(self.store.look_again())
        self.store.fill_hole(self.batch(3, 5), is_committed=True)
        self.assertEqual(ranges(self.store), [(6, last)])
        self.assertTrue(self.store.look_again())
        self.is_whole()

    def test_second_look_in_steps(self) -> None:
        """It takes a bounded number of bytes at a time."""
        self.store.parts.ledger.holes.add(Hole(first_index=2, last_index=50, position=self.position[2],
                                          end_position=self.position[51]))
        self.assertRaises(DamagedEntryError, entry_at, self.store, 9)  # not proven yet
        looks = 0
        with mock.patch.object(hole_mending, "LOOK_BYTES", 600), mock.patch.object(scanner, "_CHUNK", 600):
            while self.store.holes:
                self.assertTrue(self.store.look_again())
                looks += 1
        self.assertGreater(looks, 5)
        self.is_whole()

    def test_the_last_entry_may_be_a_hole(self) -> None:
        """The end of the ledger is known: its last entries are a hole like another one, until a start."""
        self.flip(58, 60)
        self.flip(59, 60)
        with mock.patch.object(self.store.parts.reads.batches, "read", return_value=None):
            self.assertRaises(DamagedEntryError, entry_at, self.store, 58)
        self.assertEqual(ranges(self.store), [(58, 59)])
        self.assertEqual((self.store.ledger_end_index, self.store.ledger_end_term), (59, 3))
        other = FileStore.open(config_of(base="other"), HookedDisk())
        for index in range(58):
            other.append_entries(self.copies[index])
        other.append_bodies((b"z" * 38, b"z" * 47), 3)
        wrong = joined([entry_at(other, index) for index in (58, 59)])
        self.assertRaises(DLedgerError, self.store.fill_hole, wrong, is_committed=False)
        self.store.fill_hole(self.batch(58, 59), is_committed=False)
        self.is_whole()

    def test_unproven_but_remembered(self) -> None:
        """Whatever is remembered of an entry: what lies in a hole is not shown."""
        self.store.parts.ledger.holes.add(Hole(first_index=57, last_index=58, position=self.position[57],
                                          end_position=self.position[59]))
        for index in (57, 58):
            self.assertRaises(DamagedEntryError, entry_at, self.store, index)
        self.assertTrue(self.store.look_again())
        self.is_whole()

    def test_many_holes_are_found_again(self) -> None:
        """A bounded number is kept apart; the sound records between them are found again."""
        with mock.patch.object(hole_finder, "BACK_MAX", 4):
            for index in range(1, 59, 2):
                self.flip(index, 60)
                self.assertRaises(DamagedEntryError, entry_at, self.store, index)
        self.assertEqual(len(self.store.holes), 29)
        joined = joined_holes(self.store.holes, 5)
        self.store.parts.ledger.holes._set(joined)
        while self.store.holes:
            if not self.store.look_again():
                self.store.fill_hole(self.copies[self.store.holes[0].first_index], is_committed=True)
        self.is_whole()

    def test_no_room_for_the_memory(self) -> None:
        """The mark remembers that there was damage: the next start looks at everything."""
        self.flip(5, 60)
        with mock.patch.object(self.disk, "write_file", side_effect=NO_ROOM):
            self.assertRaises(DamagedEntryError, entry_at, self.store, 5)
        self.store.abandon()
        self.assertEqual(ranges(self.reopen()), [(5, 5)])

    def test_an_unsound_file_makes_a_hole(self) -> None:
        """So does a file that rots."""
        self.flip(5, 60)
        self.assertRaises(DamagedEntryError, entry_at, self.store, 5)
        self.disk.files[f"{ROOT}/{HOLES.name}"].data[20] ^= 1
        self.assertEqual(ranges(self.reopen()), [(5, 5)])

    def test_cut_of_a_hole(self) -> None:
        """It goes with the entries that a leader cuts; a cut inside it is refused."""
        self.flip(30, 60)
        self.flip(50, 60)
        for index in (30, 50):
            self.assertRaises(DamagedEntryError, entry_at, self.store, index)
        self.assertRaises(DamagedEntryError, self.store.truncate_to, self.copies[30])
        self.store.truncate_to(self.copies[40])
        self.assertEqual(ranges(self.store), [(30, 30)])
        self.assertEqual(ranges(self.reopen()), [(30, 30)])
        self.store.truncate_to(self.copies[20])
        self.assertEqual(self.store.holes, ())
        self.assertEqual(len(bodies_in(self.store)), 21)

    def test_hole_before_a_later_term(self) -> None:
        """An entry of a later term than our last one is not in the hole: a leader may put it there. The
        member owes its old end then (seed 4201224)."""
        other = FileStore.open(config_of(base="other"), HookedDisk())
        for index in range(50):
            other.append_entries(self.copies[index])
        other.append_bodies((b"later",), 4)
        self.flip(50, 60)
        self.assertRaises(DamagedEntryError, self.store.holds, self.copies[50])
        self.assertFalse(self.store.holds(entry_at(other, 50)))
        self.store.truncate_to(entry_at(other, 50))
        self.assertEqual((self.store.holes, self.store.repair_end_index), ((), 59))
        self.assertEqual(entry_at(self.store, 50), entry_at(other, 50))

    def test_cut_of_a_hole_is_owed(self) -> None:
        """The entry may have been acknowledged: the member owes its old end, and remembers that."""
        self.store.truncate_to(self.copies[55])
        self.assertEqual(self.store.repair_end_index, -1)
        self.flip(50, 60)
        self.assertRaises(DamagedEntryError, entry_at, self.store, 50)
        self.store.truncate_to(self.copies[40])
        self.assertEqual(self.store.repair_end_index, 55)
        self.assertEqual(self.reopen().repair_end_index, 55)
        for index in range(41, 56):
            self.store.append_entries(self.copies[index])
        self.store.end_repair()
        self.assertEqual(self.reopen().repair_end_index, -1)


class ProducerReadTests(StoreCase):
    """So it is where all entries are of one producer, and no channel is 0."""

    def fill(self, store: FileStore) -> None:
        """A session, and its entries."""
        store.append_bodies((encode_session_entry([Session(1, "p")]),), 1, channels=[SESSION_CHANNEL])
        for number in range(59):
            store.append_bodies(
                (bytes([number]) * (20 + number % 7 * 9),), 1 + number // 20,
                channels=slot_channels(1, number, 1),
            )

    def test_every_damaged_byte_makes_a_hole(self) -> None:
        """Only that entry is lost, and it is given back."""
        clean = self.disk.clone()
        for index in (0, 7, 25):
            for at in range(len(self.copies[index].records)):
                self.disk.files = clean.clone().files
                self.reopen()
                self.flip(index, at)
                self.assertRaises(DamagedEntryError, entry_at, self.store, index)
                self.assertEqual(entry_at(self.store, index + 1), self.copies[index + 1], (index, at))
                self.assertEqual(ranges(self.store), [(index, index)], f"byte {at} of {index}")
                self.store.fill_hole(self.copies[index], is_committed=False)
                self.assertEqual(entry_at(self.store, index), self.copies[index])
        self.is_whole()

    def test_a_channel_that_became_0_is_damage(self) -> None:
        """Also where the record before is damaged, too."""
        for index in (2, 30):
            for is_alone in (True, False):
                self.setUp()
                for at, byte in enumerate(slot_channels(1, index - 1, 1)[0].to_bytes(4)):
                    self.flip(index, CHANNEL_AT + at, byte)
                if not is_alone:
                    self.flip(index - 1, CHANNEL_AT + 1)
                    self.assertRaises(DamagedEntryError, entry_at, self.store, index - 1)
                self.assertRaises(DamagedEntryError, entry_at, self.store, index)
                self.assertEqual(entry_at(self.store, index + 1), self.copies[index + 1])
