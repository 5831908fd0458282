# -*- test-case-name: tests.storage.test_hole_mending -*-
"""Holes of a store whose disk fails while they are filled; see L{tests.storage.test_holes} for the rest."""

from __future__ import annotations

import errno

from dledger.values.errors import DamagedEntryError, DLedgerError, StoreError
from tests.storage.support import entry_at
from tests.storage.test_holes import StoreCase, ranges


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
