# -*- test-case-name: tests.sim.test_producer_folds -*-
"""The second fold of producers: by hand, and against tables that are wrong."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from dledger.ledger.producers import OPEN_ENTRIES, NotedRun, SequenceTable
from dledger.testing.group.checks.mirror import Mirror
from dledger.testing.group.checks.producer_folds import (
    PRODUCERS_HEADER_BYTES,
    LastEntry,
    file_problem,
    fold,
    producers_problem,
)
from protocols.wire.fastjson import write_object
from protocols.wire.ledger.entry import ENTRY_HEADER
from protocols.wire.ledger.own.configuration import CONFIGURATION_CHANNEL
from protocols.wire.ledger.own.producer_entries import encode_producer_entry
from protocols.wire.ledger.producers import PRODUCER_CHANNEL, ProducerRun


def record(index: int, term: int, channel: int = 0, body: bytes = b"x") -> bytes:
    """As a ledger has it; checksums and position count for nothing here."""
    return ENTRY_HEADER.pack(1, 48 + len(body), index, term, 0, channel, 0, 0, len(body)) + body


def told(index: int, term: int, *runs: ProducerRun) -> bytes:
    """A producer entry."""
    return record(index, term, PRODUCER_CHANNEL, encode_producer_entry(runs))


class FoldTests(SynchronousTestCase):
    """The rules, and what differs from them."""

    def setUp(self) -> None:
        """An open run of p that a configuration entry ends, then one of q with two of three entries."""
        self.log = [
            record(0, 1), told(1, 1, ProducerRun("r", 4, 1, 1), ProducerRun("p", 0, 2, 0)),
            *(record(index, 1) for index in range(2, 6)), record(6, 1, CONFIGURATION_CHANNEL), record(7, 1),
            told(8, 1, ProducerRun("q", 0, 1, 3)), record(9, 1), record(10, 1), record(11, 2), record(12, 2),
        ]
        self.mirror = Mirror(terms=[1] * 11 + [2] * 2)
        self.table = SequenceTable()
        for run in (NotedRun("r", 4, 2, 1, 1), NotedRun("p", 0, 3, 3, 1, 1), NotedRun("q", 0, 9, 2, 8)):
            self.table.note(run)

    def problem(self) -> str:
        """How the table differs from the log."""
        records = {
            (index, self.mirror.terms[index]): (one, -1) for index, one in enumerate(self.log)
        }
        return producers_problem(self.table, self.mirror, records)

    def test_rules(self) -> None:
        """An entry is reported by its producer entry, in its term, up to the next entry of a member's own."""
        expected = {"r": LastEntry(4, 2, 1), "p": LastEntry(2, 5, 1), "q": LastEntry(1, 10, 8)}
        self.assertEqual(fold(self.log), expected)
        self.log[1] = record(1, 1, PRODUCER_CHANNEL, b"RDNM")
        self.assertEqual(list(fold(self.log)), ["q"])

    def test_same(self) -> None:
        """Nothing to report; nor while entries are damaged, or if as many others came later."""
        self.assertEqual(self.problem(), "")
        self.table = SequenceTable(2)
        for run in (NotedRun("p", 0, 3, 3, 1, 1), NotedRun("q", 0, 9, 2, 8)):
            self.table.note(run)
        self.assertEqual(self.problem(), "")
        self.table.cut(0)
        self.assertIn("sequence 1 of q is at 10, the table says UNKNOWN", self.problem())
        self.mirror.lost.add(3)
        self.assertEqual(self.problem(), "")

    def test_differs(self) -> None:
        """A run that goes on too long, one that is not known, one at another place."""
        self.table.note(NotedRun("p", 3, 6, OPEN_ENTRIES, 6, 1))
        self.assertIn("last 9", self.problem())
        self.table.cut(6)
        self.assertIn("sequence 1 of q is at 10", self.problem())
        self.table.note(NotedRun("q", 0, 8, 3, 8))
        self.assertIn("at 9", self.problem())

    def in_file(self, index: int, *rows: list[object]) -> str:
        """What is wrong with a file of these producers."""
        records = {(at, self.mirror.terms[at]): (one, -1) for at, one in enumerate(self.log)}
        text = write_object({"index": index, "producers": [*rows]})
        return file_problem(bytes(PRODUCERS_HEADER_BYTES) + text, self.mirror, records, 9)

    def test_file_of_the_past(self) -> None:
        """It says what the log says up to its index, and ends no run after that."""
        r, p, q = ["r", 4, 2, 1, 1, -1], ["p", 0, 3, 3, 1, 1], ["q", 0, 9, 2, 8, -1]
        self.assertEqual(self.in_file(7, r, p), "")
        self.assertEqual(self.in_file(10, r, p, q), "")
        self.assertIn("up to 10", self.in_file(9, r, p, q))
        self.assertIn("of q is at 10", self.in_file(10, r, p))
        self.assertEqual(self.in_file(99, r), "")
