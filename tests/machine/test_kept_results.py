# -*- test-case-name: tests.machine.test_kept_results -*-
"""The last results of each client are a fold of the log."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from dledger.machine import kept_results
from dledger.machine.kept_results import KeptResult, KeptResults, kept_in
from dledger.machine.state_machine import RefusedAnswer
from dledger.storage.files.snapshot_file import SnapshotRefused
from protocols.wire.errors import WireError
from protocols.wire.ledger.entry import EntryHeader
from protocols.wire.ledger.own.producer_entries import encode_producer_entry
from protocols.wire.ledger.producers import PRODUCER_CHANNEL, ProducerRun


def entry(index: int, body: bytes = b"x", *, term: int = 1, channel: int = 0) -> tuple[EntryHeader, bytes]:
    """An entry as it is read."""
    return EntryHeader(
        magic=1, size=48 + len(body), index=index, term=term, pos=0, channel=channel, chain_crc=0, body_crc=0,
        body_length=len(body),
    ), body


def announcement(index: int, *runs: ProducerRun, term: int = 1) -> tuple[EntryHeader, bytes]:
    """A producer entry."""
    return entry(index, encode_producer_entry(runs), term=term, channel=PRODUCER_CHANNEL)


class KeptTests(SynchronousTestCase):
    """What is announced, what came, and what is kept."""

    def setUp(self) -> None:
        self.kept = KeptResults()
        self.end = 0

    def commands(self, producer: str, sequence: int, *results: bytes, term: int = 1) -> None:
        """Announced, and applied, each in a batch of its own."""
        run = ProducerRun(producer, sequence, 1, len(results))
        self.kept.fold([announcement(self.end, run, term=term)], {})
        for result in results:
            self.end += 1
            self.kept.fold([entry(self.end, term=term)], {self.end: result})
        self.end += 1

    def found(self, producer: str, sequence: int) -> tuple[int, bytes | None]:
        """The last sequence, and the result."""
        last, kept = self.kept.find(producer, sequence)
        return last, None if kept is None else kept.result

    def test_results_are_found_by_their_sequence(self) -> None:
        """By producer and sequence; other entries count for nothing."""
        runs = (ProducerRun("p", 0, 2, 2), ProducerRun("q", 0, 5, 1))
        batch = [announcement(0, *runs), *map(entry, range(1, 7))]
        self.kept.fold(batch, {index: b"%d" % index for index in range(1, 7)})
        found = [self.found(*one) for one in (("p", 0), ("p", 1), ("q", 0), ("p", 2), ("r", 0))]
        self.assertEqual(found, [(1, b"2"), (1, b"3"), (0, b"5"), (1, None), (-1, None)])

    def test_another_term_takes_no_results(self) -> None:
        """What came in the place of announced entries is not theirs."""
        self.kept.fold([announcement(0, ProducerRun("p", 0, 1, 3))], {})
        self.kept.fold([entry(1), entry(2, term=2), entry(3)], {1: b"1", 2: b"2", 3: b"3"})
        self.assertEqual(self.found("p", 0), (0, b"1"))
        self.assertEqual(self.found("p", 1), (0, None))

    def test_an_open_run_goes_on(self) -> None:
        """An open run goes on until another term, or an entry that a member has made for itself."""
        ends = (
            entry(3, term=2), announcement(3), entry(3, b"RDNM", channel=PRODUCER_CHANNEL),
            entry(3, channel=7),
        )
        for end in ends:
            kept = KeptResults()
            kept.fold([announcement(0, ProducerRun("p", 0, 1, 0)), entry(1)], {1: b"1"})
            kept = KeptResults.decode(kept.encode())[0]
            kept.fold([entry(2), end, entry(4, term=end[0].term)], {2: b"2", 3: b"3", 4: b"4"})
            self.assertEqual(kept.find("p", 1)[1], KeptResult(1, 2, b"2"))
            self.assertEqual(kept.find("p", 2), (1, None))

    def test_other_control_entries(self) -> None:
        """An entry of that channel that is none, or of a later version, announces nothing."""
        self.kept.fold([entry(0, b"RDNM and so on", channel=PRODUCER_CHANNEL), entry(1)], {1: b"1"})
        self.assertEqual(self.kept, KeptResults())

    def test_kept_results_are_bounded(self) -> None:
        """Of results for each producer, of bytes, of producers; the last sequence stays."""
        self.commands("p", 0, *[b"%d" % number for number in range(kept_results.RESULTS_MAX + 3)])
        self.assertEqual(self.found("p", 2), (18, None))
        self.assertEqual(self.found("p", 3), (18, b"3"))
        self.patch(kept_results, "RESULT_BYTES_IN_ALL", 3 * (kept_results.RESULT_OVERHEAD + 100))
        self.commands("q", 0, bytes(100), bytes(100))
        self.commands("r", 0, bytes(100), bytes(100))
        self.assertEqual([self.found("p", 18), self.found("q", 0)], [(18, None), (1, None)])
        self.assertEqual([self.found("q", 1), self.found("r", 0)], [(1, bytes(100))] * 2)
        self.commands("s", 0, bytes(2000))
        self.assertEqual(self.found("s", 0), (0, bytes(2000)))
        self.assertEqual(self.found("r", 1), (1, None))
        self.patch(kept_results, "CLIENTS_MAX", 2)
        self.commands("t", 0, b"t")
        self.assertEqual([self.found(one, 0)[0] for one in "pqrst"], [-1, -1, -1, 0, 0])
        whole = sum(len(one.result) + 64 for client in self.kept.clients.values() for one in client.results)
        self.assertEqual(self.kept.held_bytes, whole)

    def test_a_producer_that_begins_again_has_none(self) -> None:
        """A producer that was forgotten and began with 0 has no results of before."""
        self.commands("p", 0, b"old 0", b"old 1")
        self.commands("p", 0, b"new 0")
        self.assertEqual([self.found("p", 0), self.found("p", 1)], [(0, b"new 0"), (0, None)])

    def test_results_survive_in_snapshots(self) -> None:
        """The same again, also between a producer entry and its entries; every cut is refused."""
        self.commands("p", 0, b"0", b"", RefusedAnswer(b"2"))
        self.commands("\xfc", 7, b"7")
        self.kept.fold([announcement(self.end, ProducerRun("p", 3, 2, 2))], {})
        data = self.kept.encode({9, 4})
        again, skips = kept_in(data)
        self.assertEqual(skips, {4, 9})
        self.assertEqual(again, self.kept)
        for kept in (self.kept, again):
            kept.fold([entry(self.end + at) for at in (1, 2, 3)], {self.end + 2: b"3", self.end + 3: b"4"})
        self.assertEqual(again, self.kept)
        self.assertEqual(self.found("p", 4), (4, b"4"))
        kinds = [type(one.result) for one in again.clients["p"].results]
        self.assertEqual(kinds, [bytes, bytes, RefusedAnswer, bytes, bytes])
        for cut in range(len(data)):
            self.assertRaises(WireError, KeptResults.decode, data[:cut])
        self.assertRaises(WireError, KeptResults.decode, data + b"x")
        self.assertRaises(SnapshotRefused, kept_in, b"x" * len(data))
