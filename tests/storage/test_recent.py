# -*- test-case-name: tests.storage.test_recent -*-
"""What is remembered of the latest entries."""

from __future__ import annotations

import random
from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

from dledger.storage.store import store_reads as recent
from dledger.storage.store.store_reads import RecentBatches, RecentEntries
from protocols.wire.ledger.batches import EntryBatch


def batch(first: int, count: int, term: int, size: int = 10) -> EntryBatch:
    """A batch whose content names its index."""
    records = b"".join(bytes([(first + at) % 256]) * size for at in range(count))
    return EntryBatch(first_index=first, count=count, term=term, records=records)


class RecentEntriesTests(SynchronousTestCase):
    """Positions and terms."""

    def test_against_a_list(self) -> None:
        """However entries come, are cut and are forgotten: what is known is right."""
        rng = random.Random(7)
        with mock.patch.object(recent, "ENTRIES_KEPT", 20):
            entries = RecentEntries()
            model: list[tuple[int, int]] = []
            term = 1
            for _ in range(3000):
                if rng.random() < 0.15 and model:
                    keep = rng.randrange(max(0, len(model) - 60), len(model) + 1)
                    del model[keep:]
                    entries.cut(keep)
                    term = model[-1][1] if model else 1
                else:
                    changes, positions = [], []
                    for _ in range(rng.randrange(1, 9)):
                        if rng.random() < 0.2:
                            term += 1
                        if not changes or changes[-1][1] != term:
                            changes.append((len(model), term))
                        model.append((len(model) * 7, term))
                        positions.append(model[-1][0])
                    entries.extend(positions, changes)
                self.assertEqual(entries.is_empty, entries.first_index == len(model))
                for index in range(entries.first_index, len(model)):
                    self.assertEqual((entries.position(index), entries.term(index)), model[index])
                for index in (entries.first_index - 1, len(model)):
                    self.assertEqual((entries.position(index), entries.term(index)), (-1, -1))
                self.assertLessEqual(len(model) - entries.first_index, 40)

    def test_a_reset_forgets_all(self) -> None:
        """Forgotten for another beginning."""
        entries = RecentEntries()
        entries.extend([0, 10], [(0, 1)])
        entries.reset(100)
        entries.extend([700], [(100, 3)])
        self.assertEqual((entries.position(100), entries.term(100), entries.position(1)), (700, 3, -1))


class RecentBatchesTests(SynchronousTestCase):
    """Bytes of the latest batches."""

    def setUp(self) -> None:
        self.batches = RecentBatches()
        for first, count, term in ((0, 2, 1), (2, 3, 1), (5, 1, 2), (6, 4, 2)):
            self.batches.add(batch(first, count, term))

    def test_long_batches_are_given_in_parts(self) -> None:
        """What was written in one go is given out in parts that fit a push, at record boundaries."""
        with mock.patch.object(recent, "PIECE_BYTES", 25):
            self.batches.clear()
            whole = batch(10, 7, 3)
            self.batches.add_written(whole, [10] * 7)
            for max_bytes, counts in ((30, [3, 3, 1]), (60, [6, 1]), (70, [7])):
                first, got = 10, []
                while first < 17:
                    part = self.batches.read(first, max_count=99, max_bytes=max_bytes)
                    assert part is not None
                    self.assertEqual(part.records, whole.records[(first - 10) * 10 :][: part.count * 10])
                    got.append(part.count)
                    first = part.last_index + 1
                self.assertEqual(got, counts)
            self.assertIsNone(self.batches.read(10, max_count=99, max_bytes=29))

    def test_neighbours_are_joined_in_reads(self) -> None:
        """Neighbours of one term are joined as far as they fit; single ones are not copied."""
        for first, max_count, max_bytes, count in (
            (0, 99, 999, 5), (0, 4, 999, 2), (0, 99, 49, 2), (2, 99, 999, 3), (5, 99, 999, 5), (6, 4, 40, 4)
        ):
            found = self.batches.read(first, max_count=max_count, max_bytes=max_bytes)
            assert found is not None
            self.assertEqual(found, batch(first, count, 1 if first < 5 else 2))
        self.assertIs(self.batches.read(2, max_count=9, max_bytes=999), self.batches.by_index[2])
        self.assertIs(self.batches.read(6, max_count=9, max_bytes=999), self.batches.by_index[6])

    def test_unknown_places_are_not_there(self) -> None:
        """Within a batch, too big, or unknown."""
        for first, max_count, max_bytes in ((1, 9, 999), (0, 1, 999), (0, 9, 19), (10, 9, 999)):
            self.assertIsNone(self.batches.read(first, max_count=max_count, max_bytes=max_bytes))
        self.batches.clear()
        self.assertIsNone(self.batches.read(0, max_count=9, max_bytes=999))

    def test_recent_batches_are_bounded(self) -> None:
        """In bytes and number; a huge batch is not kept."""
        with mock.patch.multiple(recent, BATCH_BYTES_KEPT=1000, BATCHES_KEPT=20):
            for first in range(10, 60):
                self.batches.add(batch(first, 1, 2, size=30))
            self.assertEqual(len(self.batches.by_index), 20)
            for first in range(60, 80):
                self.batches.add(batch(first, 1, 2, size=100))
            self.assertLessEqual(self.batches.held_bytes, 1000)
            self.assertEqual(self.batches.held_bytes,
                             sum(len(one.records) for one in self.batches.by_index.values()))
            self.batches.add(batch(80, 1, 2, size=250))
            self.assertIsNotNone(self.batches.read(80, max_count=9, max_bytes=999))
            self.batches.add(batch(81, 1, 2, size=251))
            self.assertIsNone(self.batches.read(80, max_count=9, max_bytes=999))
            self.batches.clear()
            for first in range(80, 90):
                self.batches.add(batch(first, 1, 2, size=100))
            self.assertEqual((len(self.batches.by_index), self.batches.held_bytes), (10, 1000))
            self.batches.add(batch(80, 1, 2, size=400))
            self.assertIsNone(self.batches.read(80, max_count=9, max_bytes=999))
            self.assertIsNone(self.batches.read(79, max_count=9, max_bytes=999))
