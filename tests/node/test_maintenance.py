# -*- test-case-name: tests.node.test_maintenance -*-
"""House-keeping that fails is logged once, and goes on."""

from __future__ import annotations

from twisted.logger import Logger, capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from dledger.node.maintenance import FileMaintenance
from dledger.node.reporting.status import Counters
from dledger.storage.store.store_room import DeletedSegment
from dledger.values.errors import StoreError


class _Store:
    """Deletes a segment each time, or fails."""

    error: Exception | None = None
    hints: dict[str, str] = {}  # noqa: RUF012

    def hint_news(self) -> dict[str, str]:
        """As a store."""
        news, self.hints = self.hints, {}
        return news

    def maintenance(
        self, now_s: float, local_hour: int, *, keep_from_index: int, drop_to_index: int = -1
    ) -> list[DeletedSegment]:
        """As a store."""
        if self.error is not None:
            raise self.error
        return [DeletedSegment(path=f"/{local_hour}", begin_index=keep_from_index, why="old")]


class MaintenanceTests(SynchronousTestCase):
    """One store."""

    def setUp(self) -> None:
        """A store, and who keeps house in it."""
        self.store, self.counters = _Store(), Counters()
        self.house = FileMaintenance("n0", self.store, self.counters, Logger())

    def keep(self) -> list[str]:
        """Keep house. @return: the levels of what was logged."""
        with capturedLogs() as events:
            self.house.keep((1.0, 4), keep_from_index=7, drop_to_index=-1)
        return [event["log_level"].name for event in events]

    def test_a_deleted_file_is_reported(self) -> None:
        """It is logged, counted and reported."""
        self.assertEqual(self.keep(), ["info"])
        self.assertEqual((self.house.begin_moved, self.counters.segments_deleted), ("/4 deleted: old", 1))

    def test_a_reason_is_logged_when_it_appears(self) -> None:
        """Each reason is logged when it appears, and again when it comes back."""
        self.store.error = OSError(5, "Input/output error")
        self.assertEqual([self.keep(), self.keep()], [["error"], []])
        self.store.error = OSError(13, "Permission denied")
        self.assertEqual(self.keep(), ["error"])
        self.store.error = None
        self.assertEqual(self.keep(), ["info"])
        self.store.error = OSError(13, "Permission denied")
        self.assertEqual(self.keep(), ["error"])

    def test_a_hint_is_reported(self) -> None:
        """A hint that could not be written is a warning, once."""
        self.store.hints = {"/checkpoint": "no room"}
        self.assertEqual([self.keep(), self.keep()], [["warn", "info"], ["info"]])

    def test_a_broken_store_is_left_to_its_owner(self) -> None:
        """A broken store is the owner's business."""
        self.store.error = StoreError("broken")
        self.assertRaises(StoreError, self.keep)
