# -*- test-case-name: tests.storage.test_record_writer -*-
"""
Writes records and index units after the end of an open ledger.

Room is reserved before (L{dledger.storage.store.store_room}), but file systems that never overwrite in place,
and thin volumes, may have none all the same. Such a write is refused, and the store lives: the part of it
that was written is zeroed again, so that no start can find an entry that is not in the log for its client.
"""

from __future__ import annotations

from dledger.base.disk.disk import is_no_room
from dledger.storage.files.records import Layout
from dledger.storage.start.open_ledger import OpenLedger
from dledger.storage.store.store_room import StoreRoom
from protocols.wire.ledger.entry import INDEX_UNIT_SIZE


class RecordWriter:
    """The writes of one open ledger."""

    def __init__(self, ledger: OpenLedger, room: StoreRoom) -> None:
        self._ledger = ledger
        self._room = room

    def write(self, first: int, layout: Layout) -> None:
        """
        Write a layout, for which files were made.

        @param first: index of its first entry.
        @raise DLedgerError: DISK_FULL; nothing that a start could find was written.
        @raise OSError: a write failed, or its traces could not be removed.
        """
        ledger, units, units_at = self._ledger, layout.units, first * INDEX_UNIT_SIZE
        try:
            for position, blob in layout.runs:
                ledger.data.pwrite(blob, position)
            room = ledger.index.file_size - units_at % ledger.index.file_size
            while len(units) > room:
                ledger.index.pwrite(units[:room], units_at)
                units, units_at, room = units[room:], units_at + room, ledger.index.file_size
            ledger.index.pwrite(units, units_at)
        except OSError as error:
            if not is_no_room(error):
                raise
            self._undo(first, layout)
            size = sum(len(blob) for _position, blob in layout.runs)
            raise self._room.refused(f"no room to write in place: {error}", size) from error

    def _undo(self, first: int, layout: Layout) -> None:
        """Make the bytes after the end zeros again. @raise OSError: some of them may be a record."""
        for position, blob in layout.runs:
            self._ledger.data.zero(position, position + len(blob))
        index, position = self._ledger.index, first * INDEX_UNIT_SIZE
        units_end = position + len(layout.units)
        while position < units_end:
            end = min(units_end, index.base(position) + index.file_size)
            index.zero(position, end)
            position = end
