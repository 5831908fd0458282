# -*- test-case-name: tests.node.test_house_keeping -*-
"""
House-keeping of a member's store: measuring its room, deleting expired files.

It never ends the member: what failed is logged once, and tried again at the next time. Only a failed write
breaks the store, which then says so itself.
"""

from __future__ import annotations

from typing import Protocol

from twisted.logger import Logger

from dledger.node.reporting.status import Counters
from dledger.storage.store.store_room import DeletedSegment


class KeptStore(Protocol):
    """The part of a store needed here."""

    def house_keeping(
        self, now_s: float, local_hour: int, *, keep_from_index: int, drop_to_index: int = -1
    ) -> list[DeletedSegment]:
        """See L{dledger.storage.store.store_room.StoreRoom.house_keeping}."""


class MemberHouse:
    """
    @ivar begin_moved: the file that was deleted last, and why; empty: none was.
    """

    def __init__(self, self_id: str, store: KeptStore, counters: Counters, log: Logger) -> None:
        """@param log: of the member."""
        self._self_id = self_id
        self._store = store
        self._counters = counters
        self._log = log
        self._trouble = ""
        self.begin_moved = ""

    def keep(self, clock: tuple[float, int], *, keep_from_index: int, drop_to_index: int) -> None:
        """
        Keep house now.

        @param clock: seconds since 1970, and the local hour.
        @raise StoreError: the store is broken.
        """
        trouble, deleted = "", list[DeletedSegment]()
        try:
            deleted = self._store.house_keeping(
                *clock, keep_from_index=keep_from_index, drop_to_index=drop_to_index
            )
        except OSError as error:
            trouble = str(error)
        if trouble and trouble != self._trouble:
            self._log.error("house-keeping: {reason}; it is tried again", reason=trouble,
                            self_id=self._self_id)  # fmt: skip
        self._trouble = trouble
        for one in deleted:
            self.begin_moved = f"{one.path} deleted: {one.why}"
            self._log.info(
                "segment {path} deleted: {why}; the ledger begins at {begin_index} now", path=one.path,
                why=one.why, begin_index=one.begin_index, self_id=self._self_id,
            )
        self._counters.segments_deleted += len(deleted)
