# -*- test-case-name: tests.spark.test_export_sources -*-
"""An export of what is not a member's directory: members over the network, a broker's commit log."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow.parquet as pq

from dledger.spark.export.exporter import Exporter, ExportSettings, ExportSource
from dledger.spark.export.files import ExportError
from dledger.spark.formats.log import NotCommittedError
from tests.processes.ledgers import read_records
from tests.spark.ledgers import plain_rows
from tests.spark.members import FakeMember, records_of
from tests.spark.test_commit_log import SIZE, BrokerLog
from tests.spark.test_export import ExportCase, data_files, parquet_rows, ranges


class _Case(ExportCase):
    def run_export(self, settings: ExportSettings | None = None, **given: str) -> int:
        """Export to the end; rows written."""
        settings = settings or ExportSettings()
        source = ExportSource.of(given, settings.columns, settings.partition_by)
        with Exporter.open(self.out, source, settings) as exporter:
            exporter.step(0, is_last=True)
            return exporter.progress.rows


class MembersTests(_Case):
    """Mode bootstrap."""

    def setUp(self) -> None:
        """A member that answers with the records of the ledger, whatever files they are in."""
        super().setUp()
        self.ledger.fill(200)
        self.ledger.commit()
        self.rows = plain_rows(self.ledger.path)
        self.member = FakeMember("n0", [record.raw for record in read_records(Path(self.ledger.path))])
        self.addCleanup(self.member.close)
        self.members = f"n0-{self.member.address}"

    def test_segments(self) -> None:
        """Parts end where the member's files do, although its answers do not."""
        self.assertEqual(self.run_export(bootstrap=self.members), 200)
        self.assertEqual(parquet_rows(self.out), self.rows)
        segments = {row[2] // self.ledger.config.mapped_file_size_for_entry_data for row in self.rows}
        self.assertEqual(len(data_files(self.out)), len(segments))
        self.assertLess(len(self.member.pulls), len(segments))

    def test_both_ways(self) -> None:
        """What was begun from a directory goes on from members, and the other way round."""
        self.member.committed = 99
        self.assertEqual(self.run_export(bootstrap=self.members, fetchBytes="500"), 100)
        self.ledger.commit()
        self.assertEqual(self.run_export(path=self.ledger.path), 100)
        self.ledger.fill(50, seed=3)
        self.ledger.commit()
        records = [record.raw for record in read_records(Path(self.ledger.path))]
        self.member.records, self.member.committed = records, 249
        self.assertEqual(self.run_export(bootstrap=self.members), 50)
        self.assertEqual(parquet_rows(self.out), plain_rows(self.ledger.path))

    def test_another_log(self) -> None:
        """It is noticed here, too."""
        self.run_export(path=self.ledger.path)
        self.member.records = records_of([b"another"] * 201)
        self.member.committed = 200
        error = self.assertRaises(ExportError, self.run_export, bootstrap=self.members)
        self.assertIn("export of another log", str(error))

    def test_lagging_member(self) -> None:
        """A member that has less than was exported is given time, then it is an error; nothing is doubled."""
        self.run_export(path=self.ledger.path)
        self.member.committed = 120
        error = self.assertRaises(
            NotCommittedError, self.run_export, bootstrap=self.members, requestTimeoutMs="60"
        )
        self.assertIn("it ends at 121, and has not reached them for 60 ms", str(error))
        self.assertEqual(parquet_rows(self.out), self.rows)
        self.assertEqual(json.loads((self.out / "_export.json").read_text())["next"], 200)


class CommitLogTests(_Case):
    """Messages of a broker."""

    def setUp(self) -> None:
        """A broker's store."""
        super().setUp()
        self.store = os.path.abspath(self.mktemp())
        self.log = BrokerLog(f"{self.store}/commitlog", first=2 * SIZE)
        for number in range(120):
            self.log.append(number)

    def offsets(self) -> list[int]:
        """Where the exported messages stand."""
        return [
            offset for path in data_files(self.out)
            for offset in pq.read_table(path, partitioning=None).column("physicalOffset").to_pylist()
        ]

    def test_messages(self) -> None:
        """Every message once, a part for each file, over two runs; offsets are bytes."""
        self.assertEqual(self.run_export(path=self.store, format="rocketmq"), 120)
        for number in range(120, 150):
            self.log.append(number)
        self.assertEqual(self.run_export(path=self.store, format="rocketmq"), 30)
        self.assertEqual(self.offsets(), self.log.written)
        edges = ranges(self.out)
        self.assertEqual((edges[0][0], edges[-1][1]), (2 * SIZE, self.log.end - 1))
        self.assertTrue(all(one[1] + 1 == other[0] for one, other in zip(edges, edges[1:], strict=False)))
        files = {offset // SIZE for offset in self.log.written}
        self.assertEqual(len({first // SIZE for first, _last in edges} | files), len(files))

    def test_topics(self) -> None:
        """A folder for each topic, and JSON with properties and times."""
        settings = ExportSettings(
            format="jsonl", partition_by=("topic",),
            columns=("topic", "physicalOffset", "storeTimestamp", "properties"),
        )
        self.run_export(settings, path=self.store, format="rocketmq")
        found = []
        for path in data_files(self.out):
            self.assertTrue(path.parent.name.startswith("topic="))
            found += [json.loads(line) for line in path.read_text().splitlines()]
        self.assertEqual(sorted(row["physicalOffset"] for row in found), self.log.written)
        self.assertTrue(all(isinstance(row.get("properties", {}), dict) for row in found))
        self.assertTrue(all(row["storeTimestamp"].endswith("Z") for row in found))

    def test_another_log(self) -> None:
        """A broker whose last message is not the one that was exported."""
        self.run_export(path=self.store, format="rocketmq")
        other = BrokerLog(f"{self.store}-other/commitlog", first=2 * SIZE)
        for number in range(200):
            other.append(number, seed=9)
        error = self.assertRaises(
            ExportError, self.run_export, path=f"{self.store}-other", format="rocketmq"
        )
        self.assertIn("export of another log", str(error))

    def test_log_that_went_back(self) -> None:
        """A broker whose log ends before the export does."""
        self.run_export(path=self.store, format="rocketmq")
        other = BrokerLog(f"{self.store}-other/commitlog", first=2 * SIZE)
        for number in range(60):
            other.append(number)
        error = self.assertRaises(
            NotCommittedError, self.run_export, path=f"{self.store}-other", format="rocketmq",
            requestTimeoutMs="50",
        )
        self.assertIn(f"it ends at {other.end}", str(error))

    def test_not_the_same_rows(self) -> None:
        """Entries and messages do not go into one directory."""
        self.run_export(path=self.store, format="rocketmq")
        self.ledger.fill(3)
        self.ledger.commit()
        error = self.assertRaises(ExportError, self.run_export, path=self.ledger.path)
        self.assertIn("rows=rocketmq", str(error))
