# -*- test-case-name: tests.machine.test_kept_results -*-
"""The last results of numbered commands are a fold of the log."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from dledger.machine import kept_results
from dledger.machine.kept_results import KeptResults, kept_in
from dledger.machine.state_machine import RefusedAnswer
from dledger.storage.files.snapshot_file import SnapshotRefused
from protocols.wire.errors import WireError
from protocols.wire.ledger.entry import EntryHeader
from protocols.wire.ledger.own.own_entries import SESSION_CHANNEL, slot_channels


def entry(index: int, channel: int = 0, *, chain_crc: int = 5) -> tuple[EntryHeader, bytes]:
    """An entry as it is read."""
    return EntryHeader(
        magic=1, size=49, index=index, term=1, pos=0, channel=channel, chain_crc=chain_crc, body_crc=0,
        body_length=1,
    ), b"x"


class KeptTests(SynchronousTestCase):
    """What is kept of what came."""

    def setUp(self) -> None:
        self.kept = KeptResults()
        self.end = 0

    def commands(self, slot: int, *results: bytes) -> list[int]:
        """Of one producer, applied. @return: their indexes."""
        first, self.end = self.end, self.end + len(results)
        indexes = range(first, self.end)
        channels = slot_channels(slot, first, len(results))
        self.kept.fold(list(map(entry, indexes, channels)), dict(zip(indexes, results, strict=True)))
        return [*indexes]

    def test_numbered_results_are_kept(self) -> None:
        """By the index of the entry; other entries, and those of a Java leader, count for nothing."""
        p, q = slot_channels(1, 0, 1)[0], slot_channels(2, 0, 1)[0]
        batch = [entry(0, SESSION_CHANNEL), entry(1, p), entry(2), entry(3, q), entry(4, p, chain_crc=0),
                 entry(5, p)]
        self.kept.fold(batch, {index: b"%d" % index for index in range(5)})
        found = [self.kept.find(index) for index in range(6)]
        self.assertEqual(found, [None, b"1", None, b"3", None, None])

    def test_kept_results_are_bounded(self) -> None:
        """Of results for each producer, of bytes, of producers."""
        first = self.commands(1, *[b"%d" % number for number in range(kept_results.RESULTS_MAX + 3)])
        self.assertEqual([self.kept.find(first[at]) for at in (2, 3)], [None, b"3"])
        self.patch(kept_results, "RESULT_BYTES_IN_ALL", 3 * (kept_results.RESULT_OVERHEAD + 100))
        second, third = self.commands(2, bytes(100), bytes(100)), self.commands(3, bytes(100), bytes(100))
        found = [self.kept.find(index) for index in (first[-1], *second, *third)]
        self.assertEqual(found, [None, None, bytes(100), bytes(100), bytes(100)])
        (long,) = self.commands(4, bytes(2000))
        self.assertEqual([self.kept.find(index) for index in (long, *third)], [bytes(2000), None, None])
        self.patch(kept_results, "SLOTS_MAX", 2)
        (last,) = self.commands(5, b"t")
        self.assertEqual((self.kept.slots.keys(), self.kept.find(last)), ({4, 5}, b"t"))
        whole = sum(len(one) + 64 for results in self.kept.slots.values() for one in results.values())
        self.assertEqual(self.kept.held_bytes, whole)

    def test_results_survive_in_snapshots(self) -> None:
        """The same again; every cut is refused."""
        indexes = self.commands(1, b"0", b"", RefusedAnswer(b"2"))
        self.commands(2, b"7")
        data = self.kept.encode({9, 4})
        again, skips = kept_in(data)
        self.assertEqual(skips, {4, 9})
        self.assertEqual((again, [*again.slots]), (self.kept, [*self.kept.slots]))
        kinds = [type(again.find(index)) for index in indexes]
        self.assertEqual(kinds, [bytes, bytes, RefusedAnswer])
        for cut in range(len(data)):
            self.assertRaises(WireError, KeptResults.decode, data[:cut])
        self.assertRaises(WireError, KeptResults.decode, data + b"x")
        self.assertRaises(SnapshotRefused, kept_in, b"x" * len(data))
