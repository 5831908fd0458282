# -*- test-case-name: tests.spark.test_own_rows -*-
"""The log's own entries are no rows, whatever columns are read and wherever the entries come from."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from unittest import mock

from dledger.base.disk.segment import SegmentReader
from dledger.spark.formats.log import DamageError
from dledger.spark.formats.option_texts import OptionError
from dledger.spark.ledger.own_rows import GAP_BYTES
from dledger.spark.scans.scan import Scan
from dledger.spark.sink.markers import MARKER_BYTES, MarkerKind, SinkMarker, encode_marker
from protocols.wire.ledger.entry import CHANNEL_AT, ENTRY_HEADER_SIZE
from protocols.wire.ledger.envelopes import envelope_head
from protocols.wire.ledger.own.own_entries import AGE_CHANNEL, HIDDEN, OwnKind, own_kind
from tests.processes.ledgers import read_records
from tests.spark.archives import ship
from tests.spark.ledgers import plain_rows, scanned
from tests.spark.members import FakeMember
from tests.spark.test_scan import LedgerCase

INDEX = [("index", "BIGINT")]
BODY = [("body", "BINARY")]
MARKER = encode_marker(SinkMarker(kind=MarkerKind.DONE, sink="s", batch=1, run="0" * 16))


class HiddenTests(LedgerCase):
    """A log with entries of every kind."""

    def setUp(self) -> None:
        super().setUp()
        self.rows = self.ledger.append_own()
        self.ledger.commit()
        self.all = plain_rows(self.path)
        self.kinds = [own_kind(row[4], row[5]) for row in self.all]
        self.shown = [row for kind, row in zip(self.kinds, self.all, strict=True) if kind is None]
        self.assertEqual([row[7] for row in self.shown], self.rows)
        self.assertEqual(set(self.kinds), {None, *OwnKind} - {OwnKind.UNKNOWN})

    def assertHidden(self, **given: object) -> None:
        """Rows of programs alone, of all columns and of each kind of choice of them."""
        options = {"path": self.path, **given}
        for split in ({}, {"minPartitions": 9}, {"maxRecordsPerPartition": 1}, {"fetchBytes": 1}):
            named = {**options, **split}
            self.assertEqual(scanned(named), self.shown)
            self.assertEqual(scanned(named, INDEX), [(row[0],) for row in self.shown])
            self.assertEqual(scanned(named, BODY), [(body,) for body in self.rows])

    def test_directory(self) -> None:
        """From the files, with and without data, from any entry on."""
        self.assertHidden()
        for first in range(len(self.all)):
            rows = scanned({"path": self.path, "startingOffsets": first}, INDEX)
            self.assertEqual(rows, [(row[0],) for row in self.shown if row[0] >= first], first)

    def test_members(self) -> None:
        """From a member."""
        member = FakeMember("n0", [record.raw for record in read_records(Path(self.path))])
        self.addCleanup(member.close)
        given = {"bootstrap": f"n0-{member.address}"}
        self.assertEqual(scanned(given), self.shown)
        one_by_one = {**given, "maxRecordsPerPartition": 1}
        self.assertEqual(scanned(one_by_one, INDEX), [(row[0],) for row in self.shown])

    def test_archive(self) -> None:
        """From an archive, and from both."""
        target = os.path.abspath(self.mktemp())
        end = ship(self.path, target).end_index + 1
        shown = [row for row in self.shown if row[0] < end]
        for split in ({}, {"maxRecordsPerPartition": 1}):
            self.assertEqual(scanned({"path": target, **split}, INDEX), [(row[0],) for row in shown])
        self.ledger.expire(3)
        for split in ({}, {"maxRecordsPerPartition": 1}):
            self.assertEqual(scanned({"path": self.path, "archive": target, **split}), self.shown)

    def test_shown(self) -> None:
        """C{includeControl} shows all, with a column for their kind; C{includeMarkers} markers."""
        names = [("index", "BIGINT"), ("control", "STRING")]
        reported = [(row[0], kind and str(kind)) for row, kind in zip(self.all, self.kinds, strict=True)]
        given = {"path": self.path, "includeControl": "true"}
        self.assertEqual(scanned(given, names), reported)
        self.assertEqual(scanned({**given, "maxRecordsPerPartition": 1}, names), reported)
        self.assertEqual(scanned(given, INDEX), [(row[0],) for row in self.all])
        self.assertEqual([row[:8] for row in scanned(given)], self.all)
        self.assertEqual(Scan.of({k: str(v) for k, v in given.items()}).schema.names[-1], "control")
        marked = [(row[0],) for row, kind in zip(self.all, self.kinds, strict=True)
                  if kind in (None, OwnKind.SINK_MARKER)]
        for wanted in (INDEX, [*INDEX, ("channel", "INT")]):
            found = scanned({"path": self.path, "includeMarkers": "true"}, wanted)
            self.assertEqual([row[:1] for row in found], marked)


class TextTests(LedgerCase):
    """Bodies as text."""

    def test_text(self) -> None:
        """With C{bodyText}: null where a body is not UTF-8; without the envelope where there is one."""
        rows = [b"plain", b"", "gr\u00fcn".encode(), b"\xff\xfe", b"\0"]
        head = envelope_head(headers={"a": b"1"}, time_ms=1)
        self.ledger.append([rows[0], rows[2]])
        self.ledger.append([*rows, head + b"inside"])
        self.ledger.commit()
        wanted = [("body_text", "STRING")]
        given = {"path": self.path, "bodyText": "true", "envelopes": "true"}
        texts = [("plain",), ("gr\u00fcn",), ("plain",), ("",), ("gr\u00fcn",), (None,), ("\0",), ("inside",)]
        self.assertEqual(scanned(given, wanted), texts)
        self.assertEqual(scanned({**given, "fetchBytes": 1}, wanted), texts)
        both = scanned({**given, "endingOffsets": 2}, [*wanted, *BODY])
        self.assertEqual(both, [("plain", b"plain"), ("gr\u00fcn", rows[2])])
        error = self.assertRaises(OptionError, scanned, {"path": self.path}, wanted)
        self.assertIn("there is one with option bodyText=true", str(error))


class DamageTests(LedgerCase):
    """Damage neither hides a row nor makes one."""

    def damage(self, index: int, at: int, data: bytes) -> None:
        """Write into the record of an entry."""
        position = plain_rows(self.path)[index][2]
        name = max(name for name in os.listdir(f"{self.path}/data") if int(name) <= position)
        with open(f"{self.path}/data/{name}", "r+b") as file:
            file.seek(position - int(name) + at)
            file.write(data)

    def assertDamaged(self, index: int, says: str, rows: int) -> None:
        """Any scan reports it; a scan that passes over damage leaves this record out."""
        for wanted in (INDEX, BODY):
            error = self.assertRaises(DamageError, scanned, {"path": self.path}, wanted)
            self.assertIn(f"entry {index} is damaged", str(error))
            self.assertIn(says, str(error))
            self.assertEqual(len(self.skipping(wanted)), rows)

    def skipping(self, wanted: Any) -> list[Any]:
        """The rows that are left."""
        rows = scanned({"path": self.path, "failOnDamage": "false"}, wanted)
        self.assertEqual(len(self.flushWarnings()), 1)
        return rows

    def test_channel(self) -> None:
        """A channel that was 0, and one that does not fit its body, hide nothing in silence."""
        self.ledger.append([b"a" * 40, b"SESS", b"c"])
        self.ledger.commit()
        for value in (b"\x80\0\0\0", b"SESS", (HIDDEN | 256).to_bytes(4), (1 << 31 | 7).to_bytes(4)):
            self.damage(2, CHANNEL_AT, value)
            self.assertDamaged(2, "its channel does not fit its body", 2)

    def assertVerified(self, index: int, says: str, rows: int) -> None:
        """Any scan that compares checksums reports it; one that passes over damage leaves the record out."""
        given = {"path": self.path, "verifyCrc": "true"}
        for wanted in (INDEX, BODY):
            error = self.assertRaises(DamageError, scanned, given, wanted)
            self.assertIn(f"entry {index} is damaged", str(error))
            self.assertIn(says, str(error))
            self.assertEqual(len(scanned({**given, "failOnDamage": "false"}, wanted)), rows)
            self.assertEqual(len(self.flushWarnings()), 1)

    def test_marker(self) -> None:
        """A marker with a changed byte is damage, wherever it is changed; a body like one is a row."""
        self.ledger.append([b"a"])
        self.ledger.append_once("sink:s", [MARKER], hidden=[0])
        self.ledger.append([b"b", MARKER, b"c"])
        self.ledger.commit()
        for wanted in (INDEX, BODY):
            self.assertEqual(len(scanned({"path": self.path}, wanted)), 4)
        for at in (0, 14, 16, 40, MARKER_BYTES - 1):
            self.damage(2, ENTRY_HEADER_SIZE + at, b"!")
            self.assertVerified(2, "does not match its body_crc", 4)
            self.damage(2, ENTRY_HEADER_SIZE + at, MARKER[at : at + 1])

    def test_of_java(self) -> None:
        """Java writes no checksums, so its entries are programs', whatever their channels are."""
        self.ledger.append_without_checksums([b"a", b"b", MARKER])
        self.ledger.commit()
        for channel in (AGE_CHANNEL, HIDDEN | 256):
            self.damage(1, CHANNEL_AT, channel.to_bytes(4, signed=True))
            self.damage(2, CHANNEL_AT, channel.to_bytes(4, signed=True))
            for wanted in (INDEX, BODY):
                self.assertEqual(len(scanned({"path": self.path}, wanted)), 3)

    def test_header(self) -> None:
        """A record that is looked up has to fit its index unit."""
        self.ledger.append([b"a"])
        self.ledger.append_once("sink:s", [MARKER], hidden=[0])
        self.ledger.append([b"b", b"c"])
        self.ledger.commit()
        self.damage(2, 8, b"\x01")
        error = self.assertRaises(DamageError, scanned, {"path": self.path}, INDEX)
        self.assertIn("entry 2 is damaged", str(error))
        self.assertEqual(len(self.skipping(INDEX)), 3)


class CostTests(LedgerCase):
    """What a count costs, in calls of files."""

    options = {"mapped_file_size_for_entry_data": 1 << 24, "mapped_file_size_for_entry_index": 32 * 100_000}

    def reads(self, sizes: list[int]) -> list[int]:
        """Bytes of each read of data by a count of entries with bodies of these sizes."""
        ledger = self.make(**self.options)
        ledger.append([b"x" * size for size in sizes])
        ledger.commit()
        calls: list[int] = []
        original = SegmentReader.pread

        def counted(files: SegmentReader, size: int, position: int) -> bytes:
            if files.directory.endswith("/data"):
                calls.append(size)
            return original(files, size, position)

        with mock.patch.object(SegmentReader, "pread", counted):
            self.assertEqual(len(scanned({"path": ledger.path}, INDEX)), len(sizes))
        return calls

    def test_sizes(self) -> None:
        """Whatever sizes the records have, a count costs the same reads."""
        sizes = ([340] * 2000, [340, MARKER_BYTES] * 1000, [MARKER_BYTES] * 2000, [0, MARKER_BYTES] * 1000)
        costs = [len(self.reads(each)) for each in sizes]
        self.assertLess(max(costs), 10)
        self.assertEqual(len(set(costs)), 1, costs)

    def test_large(self) -> None:
        """Of long records, the heads alone are read: one read each, however long they are."""
        some = self.reads([GAP_BYTES + 100] * 100)
        more = self.reads([8 * GAP_BYTES] * 100)
        self.assertLess(max(len(some), len(more)), 115)
        self.assertLess(max(sum(some), sum(more)), 115 * 1000)
