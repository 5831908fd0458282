# -*- test-case-name: tests.broker.store.test_bad_records -*-
"""Damaged records are counted and reported once each."""

from __future__ import annotations

from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.store.records import bad_records
from dledger.rocketmq.store.records.bad_records import BadRecords


class BadRecordsTests(SynchronousTestCase):
    """What a broker remembers."""

    def test_once_each_and_bounded(self) -> None:
        """The log of a disk that rots does not grow without end."""
        self.patch(bad_records, "REPORTED_MAX", 3)
        bad = BadRecords()
        with capturedLogs() as events:
            for offset in (1, 1, 2, 3, 4, 5):
                bad.note(offset, "why")
        self.assertEqual((bad.count, bad.offsets(), len(events)), (3, [1, 2, 3], 3))

    def test_a_cut_forgets_later_records(self) -> None:
        """Other records come after a cut."""
        bad = BadRecords()
        for offset in (1, 2, 3):
            bad.note(offset, "why")
        bad.forget(2)
        self.assertEqual(bad.offsets(), [1])
