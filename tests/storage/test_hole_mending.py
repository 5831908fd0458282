# -*- test-case-name: tests.storage.test_hole_mending -*-
"""What a peer gives for a hole is proved, then written, and never lost."""

from __future__ import annotations

import errno
from unittest import mock

import attrs

from dledger.base.disk.file_table import HOLES
from dledger.storage.files.hole_list import decode_holes
from dledger.storage.store.file_store import FileStore
from dledger.values.errors import DamagedEntryError, DLedgerError
from protocols.wire.ledger.batches import EntryBatch
from tests.storage.support import ROOT, HookedDisk, append_bare, config_of, entry_at
from tests.storage.test_holes import StoreCase, joined, ranges


class FillTests(StoreCase):
    """What a peer gives is proved before it is written."""

    def setUp(self) -> None:
        super().setUp()
        for index in (10, 11, 12):
            self.flip(index, 50)
        self.assertRaises(DamagedEntryError, entry_at, self.store, 10)
        self.assertEqual(ranges(self.store), [(10, 12)])
        self.before = self.disk.contents()

    def refused(self, entries: EntryBatch, *, is_committed: bool = False) -> None:
        """Nothing may have changed."""
        self.assertRaises(DLedgerError, self.store.fill_hole, entries, is_committed=is_committed)
        self.assertEqual(ranges(self.store), [(10, 12)])
        self.assertEqual(self.disk.contents(), self.before)

    def other(self, *, term: int = 1) -> EntryBatch:
        """Entries of the same sizes after the same ones, with other bodies."""
        store = FileStore.open(config_of(base="other"), HookedDisk())
        for index in range(10):
            store.append_entries(self.copies[index])
        for index in (10, 11, 12):
            store.append_bodies((b"z" * (20 + index % 7 * 9),), term)
        return joined([entry_at(store, index) for index in (10, 11, 12)])

    def synced(self) -> list[str]:
        """Directories of the files that were brought to stable storage, in order."""
        return [path.split("/")[2] for operation, path in self.disk.calls if operation == "datasync"]

    def test_a_proved_piece_fills_the_hole(self) -> None:
        """The record after proves all of them; they are on stable storage before the hole is closed."""
        self.disk.calls.clear()
        self.store.fill_hole(self.batch(10, 12), is_committed=False)
        calls = [path.rpartition("/")[2] if HOLES.name in path else path.split("/")[2]
                 for operation, path in self.disk.calls if operation in ("datasync", "write_file")]
        self.assertEqual(calls[0], "data")
        self.assertIn("index", calls)
        self.is_whole()

    def test_more_than_asked(self) -> None:
        """Entries after the hole are left out."""
        self.store.fill_hole(self.batch(10, 20), is_committed=False)
        self.is_whole()

    def test_other_entries_are_refused(self) -> None:
        """Other entries fit in every way but one: the record after does not continue from them."""
        self.refused(self.other())
        self.refused(self.other(), is_committed=True)

    def test_an_unproven_piece_must_be_committed(self) -> None:
        """A piece that does not reach the record after counts only if it is committed."""
        self.refused(self.batch(10, 11))
        self.disk.calls.clear()
        self.store.fill_hole(self.batch(10, 11), is_committed=True)
        self.assertEqual(ranges(self.store), [(12, 12)])
        self.assertEqual(set(self.synced()), {"data", "index"})  # it may be acknowledged now
        self.assertEqual(entry_at(self.store, 11), self.copies[11])
        self.store.fill_hole(self.copies[12], is_committed=False)
        self.is_whole()

    def test_any_hole_can_be_filled(self) -> None:
        """Also one that is not the first; entries that begin in the middle of a hole are refused."""
        for index in (20, 21):
            self.flip(index, 50)
        self.assertRaises(DamagedEntryError, entry_at, self.store, 20)
        self.assertEqual(ranges(self.store), [(10, 12), (20, 21)])
        self.assertFalse(self.store.look_again(21))
        self.assertRaises(DLedgerError, self.store.fill_hole, self.copies[21], is_committed=True)
        self.flip(20, 50)  # sound again
        self.assertTrue(self.store.look_again(20))
        self.assertEqual(ranges(self.store), [(10, 12), (21, 21)])
        self.store.fill_hole(self.copies[21], is_committed=False)
        self.assertEqual(ranges(self.store), [(10, 12)])
        self.assertRaises(DLedgerError, self.store.fill_hole, self.copies[21], is_committed=False)
        self.assertTrue(self.store.look_again(21))
        self.assertEqual(ranges(self.store), [(10, 12)])

    def test_the_list_is_written_when_there_is_room(self) -> None:
        """A full disk keeps the list of holes as it was; it is written later, though nothing else happens."""
        path = f"{ROOT}/{HOLES.name}"
        before = self.disk.read_file(path)
        with mock.patch.object(self.disk, "write_file", side_effect=OSError(errno.ENOSPC, "no space")):
            self.store.fill_hole(self.batch(10, 12), is_committed=False)
            self.store.maintenance(0, 0, keep_from_index=0)
        self.assertEqual((self.store.holes, self.disk.read_file(path)), ((), before))
        self.store.maintenance(0, 0, keep_from_index=0)
        self.assertEqual(decode_holes(self.disk.read_file(path)), ())

    def test_sound_record_in_the_hole(self) -> None:
        """A piece is proved by the record after it, also by one that nothing had confirmed before."""
        for index in (11, 12):
            self.flip(index, 50)  # sound again
        self.before = self.disk.contents()
        other = self.other().records[: len(self.copies[10].records)]
        self.refused(attrs.evolve(self.copies[10], records=other))
        self.store.fill_hole(self.copies[10], is_committed=False)
        self.assertEqual(ranges(self.store), [(11, 12)])
        self.disk.calls.clear()
        self.assertTrue(self.store.look_again())
        self.assertEqual(set(self.synced()), {"data", "index"})
        self.is_whole()

    def test_a_malformed_piece_is_refused(self) -> None:
        """Other indexes, cut records, changed bytes."""
        good = self.batch(10, 12)
        self.refused(self.batch(9, 12))
        self.refused(self.batch(11, 12), is_committed=True)
        self.refused(attrs.evolve(good, records=good.records[:-1]), is_committed=True)
        self.refused(attrs.evolve(good, count=2), is_committed=True)
        for at in range(len(good.records)):
            changed = bytearray(good.records)
            changed[at] ^= 0x21
            self.refused(attrs.evolve(good, records=bytes(changed)), is_committed=True)

    def test_neighbours_rot_meanwhile(self) -> None:
        """A record before or after that is damaged by now joins the hole."""
        self.flip(13, 3)
        self.flip(9, 4)
        self.store.parts.reads.recent.reset(60)
        for _ in range(4):
            try:
                self.store.fill_hole(self.batch(self.store.holes[0].first_index, 14), is_committed=True)
            except DLedgerError:
                continue
            break
        self.is_whole()

    def test_record_before_contradicts(self) -> None:
        """The checksum of the record before the hole is wrong: it joins the hole, too."""
        self.flip(9, 38)
        self.assertRaises(DLedgerError, self.store.fill_hole, self.batch(10, 12), is_committed=True)
        self.assertEqual(ranges(self.store), [(9, 12)])
        self.store.fill_hole(self.batch(9, 12), is_committed=False)
        self.is_whole()


class JavaTests(StoreCase):
    """Java's records have no checksums: only that both sides know them to be committed proves them."""

    def fill(self, store: FileStore) -> None:
        for index in range(60):
            append_bare(store, (bytes([index]) * (20 + index % 7 * 9),), 1 + index // 20)

    def test_java_entries_must_be_committed(self) -> None:
        """A wiped header is noticed; the entry that comes back must be committed."""
        self.flip(10, 4)
        self.assertRaises(DamagedEntryError, entry_at, self.store, 10)
        self.assertRaises(DLedgerError, self.store.fill_hole, self.copies[10], is_committed=False)
        self.store.fill_hole(self.copies[10], is_committed=True)
        self.is_whole()


class BeginningTests(StoreCase):
    """A ledger whose beginning has expired."""

    options = {"file_reserved_hours": 1}

    def test_the_first_record_is_held_to_the_mark(self) -> None:
        """Its header is held against the mark, which keeps its checksum."""
        self.store.record_commit(59)
        self.store.maintenance(1e10, 4, keep_from_index=60)
        begin = self.store.ledger_begin_index
        self.assertGreater(begin, 0)
        crc = self.store.parts.marks.begin_crc
        for at in (7, 37, 60):
            self.flip(begin, at)
            self.reopen()
            if at == 60:
                self.assertRaises(DamagedEntryError, entry_at, self.store, begin)
            self.assertEqual((self.store.ledger_begin_index, ranges(self.store)), (begin, [(begin, begin)]))
            self.assertEqual(self.store.parts.marks.begin_crc, crc)
            self.store.fill_hole(self.copies[begin], is_committed=True)
            self.assertEqual(entry_at(self.store, begin), self.copies[begin])
            self.reopen()
            self.assertEqual(entry_at(self.store, begin), self.copies[begin])
