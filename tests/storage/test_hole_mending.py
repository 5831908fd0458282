# -*- test-case-name: tests.storage.test_hole_mending -*-
"""Holes of a store whose disk fails while they are filled; see L{tests.storage.test_holes} for the rest."""

from __future__ import annotations

import errno

import attrs

from dledger.storage.files.hole_list import Hole
from dledger.storage.store.file_store import FileStore
from dledger.values.errors import DamagedEntryError, DLedgerError, StoreError
from protocols.wire.ledger.entry import ENTRY_HEADER_SIZE, MIN_BLANK_SIZE
from tests.storage import test_holes
from tests.storage.support import DATA_SIZE, entry_at
from tests.storage.test_holes import StoreCase, ranges


class MoreTests(StoreCase):
    """A peer sends more than the hole lacks."""

    def test_only_lacking_entries_are_taken(self) -> None:
        """Only what is lacking is taken, and looked at: the rest may be of another log."""
        for index in (10, 11, 12):
            self.flip(index, 50)
        self.assertRaises(DamagedEntryError, entry_at, self.store, 10)
        self.assertEqual(ranges(self.store), [(10, 12)])
        more = self.batch(10, 14)
        end = len(self.batch(10, 12).records)
        spoilt = attrs.evolve(more, records=more.records[: end + 60] + b"?" + more.records[end + 61 :])
        self.store.fill_hole(spoilt, is_committed=False)
        self.is_whole()


    def test_a_filled_end_is_proven_again(self) -> None:
        """A hole at the end: once it is filled, the end is proven again."""
        self.flip(58, 60)
        self.flip(59, 38)
        self.reopen()
        self.assertEqual((ranges(self.store), self.store.is_end_proven), ([(58, 58)], False))
        self.store.fill_hole(self.batch(58, 59), is_committed=True)
        self.assertRaises(DamagedEntryError, entry_at, self.store, 59)
        self.store.fill_hole(self.batch(59, 59), is_committed=True)
        self.assertTrue(self.store.is_end_proven)
        self.is_whole()


class BareTests(test_holes.JavaTests):
    """Records without checksums."""

    def test_a_second_look_decides(self) -> None:
        """It proves none of them, though nothing is wrong with them now."""
        self.flip(10, 4)
        self.assertRaises(DamagedEntryError, entry_at, self.store, 10)
        self.flip(10, 4)
        self.assertFalse(self.store.look_again())
        self.assertEqual(ranges(self.store), [(10, 10)])


class BlankTests(StoreCase):
    """The first entry of a file cannot be read for a moment, where the blank before it has 8 bytes alone."""

    def fill(self, store: FileStore) -> None:
        """Sixty entries, eight of them in a file."""
        for index in range(60):
            store.append_bodies((bytes([index]) * ((DATA_SIZE - MIN_BLANK_SIZE) // 8 - ENTRY_HEADER_SIZE),),
                                1 + index // 20)

    def test_a_second_look_decides(self) -> None:
        """A second look finds it after the blank."""
        record = (DATA_SIZE - MIN_BLANK_SIZE) // 8
        self.assertEqual((self.position[7], self.position[8]), (7 * record, DATA_SIZE))
        self.store.parts.ledger.holes.add(Hole(
            first_index=8, last_index=8, position=8 * record, end_position=self.position[9]
        ))
        self.assertRaises(DamagedEntryError, entry_at, self.store, 8)
        self.assertTrue(self.store.look_again())
        self.is_whole()


class NoRoomTests(StoreCase):
    """File systems that need room to overwrite."""

    def test_no_room_in_place(self) -> None:
        """The hole stays, and is filled when there is room."""
        for index in (10, 11, 12):
            self.flip(index, 50)
        self.assertRaises(DamagedEntryError, entry_at, self.store, 10)
        for part in ("/data/", "/index/"):
            self.disk.failures = {("pwrite", part): errno.ENOSPC}
            with self.assertRaises(DLedgerError) as caught:
                self.store.fill_hole(self.batch(10, 12), is_committed=True)
            self.assertNotIsInstance(caught.exception, StoreError)
            self.assertEqual(ranges(self.store), [(10, 12)])
        self.disk.failures = {}
        self.store.fill_hole(self.batch(10, 12), is_committed=False)
        self.is_whole()
