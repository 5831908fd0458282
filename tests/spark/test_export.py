# -*- test-case-name: tests.spark.test_export -*-
"""The export without Spark: every committed row once, over runs, segments, failures and growth."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from twisted.trial.unittest import SynchronousTestCase

from dledger.spark.export import exporter as exporter_module
from dledger.spark.export import writers as export_writers
from dledger.spark.export.exporter import Exporter, ExportSettings, ExportSource
from dledger.spark.export.files import ExportError
from dledger.spark.formats.log import DamageError, DataLossError, NotCommittedError, ReadError
from dledger.spark.formats.option_texts import OptionError
from tests.spark.ledgers import Ledger, Row, plain_rows

COLUMNS = ("index", "term", "pos", "size", "channel", "chain_crc", "body_crc", "body")


def data_files(out: Path) -> list[Path]:
    """What a reader of the data set sees, in order. A running export removes what is in C{_pending}."""
    found: list[Path] = []
    for folder, folders, names in os.walk(out):
        folders[:] = [name for name in folders if name != "_pending"]
        found += [Path(folder) / name for name in names if name.startswith("part-")]
    return sorted(found)


def parquet_rows(out: Path) -> list[Row]:
    """All rows of all files, file by file: sorted by name they must be in order."""
    rows: list[Row] = []
    for path in data_files(out):
        table = pq.read_table(path, partitioning=None)
        assert tuple(table.schema.names) == COLUMNS, table.schema.names
        rows += zip(*(column.to_pylist() for column in table.columns), strict=True)
    return rows


def ranges(out: Path) -> list[tuple[int, int]]:
    """First and last of each file, by its name."""
    found = []
    for path in data_files(out):
        _part, first, last = path.stem.split("-")
        found.append((int(first), int(last)))
    return found


class ExportCase(SynchronousTestCase):
    """A ledger, and a directory for its export."""

    def setUp(self) -> None:
        """Small segments."""
        self.ledger = Ledger(self.mktemp())
        self.addCleanup(self.ledger.close)
        self.out = Path(self.mktemp())

    def exporter(self, settings: ExportSettings | None = None, **options: object) -> Exporter:
        """Open an export of the ledger."""
        settings = settings or ExportSettings()
        given = {"path": self.ledger.path, **{name: str(value) for name, value in options.items()}}
        source = ExportSource.of(given, settings.columns, settings.partition_by)
        return Exporter.open(self.out, source, settings)

    def export(self, settings: ExportSettings | None = None, **options: object) -> int:
        """Run it to the end; rows written."""
        with self.exporter(settings, **options) as exporter:
            exporter.step(0, is_last=True)
            return exporter.progress.rows


class BatchTests(ExportCase):
    """To the end, and ready."""

    def test_value_by_value(self) -> None:
        """Everything committed, nothing else, a file for each segment."""
        self.ledger.fill(300)
        self.ledger.commit(279)
        self.assertEqual(self.export(), 280)
        expected = plain_rows(self.ledger.path, 280)
        self.assertEqual(parquet_rows(self.out), expected)
        segments = {row[2] // self.ledger.config.mapped_file_size_for_entry_data for row in expected}
        self.assertEqual(len(data_files(self.out)), len(segments))
        self.assertGreater(len(segments), 10)
        self.assertEqual(sorted(os.listdir(self.out))[:2], ["_export.json", "_lock"])

    def test_ranges(self) -> None:
        """Names of files join without a gap."""
        self.ledger.fill(200)
        self.ledger.commit()
        self.export()
        edges = ranges(self.out)
        self.assertEqual((edges[0][0], edges[-1][1]), (0, 199))
        self.assertTrue(all(one[1] + 1 == other[0] for one, other in zip(edges, edges[1:], strict=False)))

    def test_part_bytes(self) -> None:
        """A part is cut when it has its bytes, within what is fetched at once."""
        self.ledger.fill(100)
        self.ledger.commit()
        self.export(ExportSettings(part_bytes=1), fetchBytes=1)
        self.assertEqual(ranges(self.out), [(index, index) for index in range(100)])
        self.assertEqual(parquet_rows(self.out), plain_rows(self.ledger.path))

    def test_again(self) -> None:
        """A second run writes what is new; a third finds nothing."""
        self.ledger.fill(50)
        self.ledger.commit(39)
        self.assertEqual(self.export(), 40)
        before = {path: path.stat().st_mtime_ns for path in data_files(self.out)}
        self.ledger.commit(49)
        self.assertEqual(self.export(), 10)
        self.assertEqual(self.export(), 0)
        self.assertEqual(parquet_rows(self.out), plain_rows(self.ledger.path))
        after = {path: path.stat().st_mtime_ns for path in data_files(self.out)}
        self.assertEqual(before.items() - after.items(), set())

    def test_empty(self) -> None:
        """A log without entries leaves an export without files, that goes on later."""
        self.assertEqual((self.export(), data_files(self.out)), (0, []))
        self.ledger.fill(3)
        self.ledger.commit()
        self.assertEqual(self.export(), 3)
        self.assertEqual(parquet_rows(self.out), plain_rows(self.ledger.path))

    def test_json(self) -> None:
        """Lines with the columns that were asked for, in that order."""
        self.ledger.append([b"text", b"\xff", b""])
        self.ledger.commit()
        self.export(ExportSettings(format="jsonl", columns=("term", "body")))
        lines = [line for path in data_files(self.out) for line in path.read_text().splitlines()]
        self.assertEqual(lines, [
            '{"term": 1, "body": "text"}', '{"term": 1, "body_base64": "/w=="}', '{"term": 1, "body": ""}',
        ])

    def test_partitions(self) -> None:
        """A folder for each value, and a part's files of one range in several of them."""
        self.ledger.fill(120, per_term=7)
        self.ledger.commit()
        settings = ExportSettings(partition_by=("term",))
        self.export(settings)
        table = ds.dataset(self.out, partitioning="hive", format="parquet").to_table().sort_by("index")
        rows = list(zip(*(table.column(name).to_pylist() for name in COLUMNS), strict=True))
        self.assertEqual(rows, plain_rows(self.ledger.path))
        folders = {path.parent.name for path in data_files(self.out)}
        self.assertEqual(folders, {f"term={term}" for term in range(1, 2 + 119 // 7)})

    def test_starting_offset(self) -> None:
        """The first run begins where it is asked to; later ones where the last one ended."""
        self.ledger.fill(30)
        self.ledger.commit(19)
        self.assertEqual(self.export(startingOffsets=7), 13)
        self.ledger.commit()
        self.assertEqual(self.export(startingOffsets=7), 10)
        self.assertEqual(parquet_rows(self.out), plain_rows(self.ledger.path)[7:])

    def test_stop(self) -> None:
        """What was asked to stop leaves finished parts only, and the next run goes on after them."""
        self.ledger.fill(200)
        self.ledger.commit()
        with self.exporter() as exporter:
            asked = iter(range(1000))
            exporter.should_stop = lambda: next(asked) == 5
            exporter.step(0, is_last=True)
        rows = plain_rows(self.ledger.path)
        done = parquet_rows(self.out)
        self.assertEqual(done, rows[: len(done)])
        self.assertTrue(0 < len(done) < 200)
        self.assertEqual(self.export(), 200 - len(done))
        self.assertEqual(parquet_rows(self.out), rows)

    def test_progress(self) -> None:
        """It is notified after every batch and ends at the end; bytes are those of the log."""
        self.ledger.fill(100)
        self.ledger.commit()
        seen = []
        with self.exporter() as exporter:
            exporter.on_progress = seen.append
            exporter.step(0, is_last=True)
        self.assertEqual([one.next for one in seen], sorted(one.next for one in seen))
        self.assertGreater(len(seen), 10)
        last = seen[-1]
        self.assertEqual((last.begin, last.next, last.end, last.rows), (0, 100, 100, 100))
        self.assertEqual(last.log_bytes, sum(row[3] for row in plain_rows(self.ledger.path)))


class FollowTests(ExportCase):
    """Several steps while the log grows."""

    def test_segments_as_they_close(self) -> None:
        """Without a delay, a part becomes visible when its segment is full, and not before."""
        with self.exporter(ExportSettings(max_delay_ms=0)) as exporter:
            for count in range(1, 60):
                self.ledger.fill(1, seed=count)
                self.ledger.commit()
                exporter.step(count * 10**9, is_last=False)
            rows = plain_rows(self.ledger.path)
            size = self.ledger.config.mapped_file_size_for_entry_data
            closed = [row for row in rows if row[2] // size < rows[-1][2] // size]
            self.assertEqual(parquet_rows(self.out), closed)
            self.assertGreater(len(closed), 20)
            self.assertEqual(exporter.progress.rows, 59)
            exporter.step(0, is_last=True)
        self.assertEqual(parquet_rows(self.out), rows)
        self.assertEqual(len(data_files(self.out)), rows[-1][2] // size + 1)

    def test_delay(self) -> None:
        """A part that does not fill becomes visible when it is old enough, counted from its first row."""
        with self.exporter(ExportSettings(max_delay_ms=1000)) as exporter:
            exporter.finish()  # (nothing is open)
            exporter.step(0, is_last=False)
            self.ledger.append([b"a"])
            self.ledger.commit()
            exporter.step(5000, is_last=False)
            self.assertEqual(ranges(self.out), [])
            self.ledger.append([b"b"])
            self.ledger.commit()
            exporter.step(5999, is_last=False)
            self.assertEqual(ranges(self.out), [])
            exporter.step(6000, is_last=False)
            self.assertEqual(ranges(self.out), [(0, 1)])
            exporter.step(9000, is_last=False)
        self.assertEqual(ranges(self.out), [(0, 1)])

    def test_no_proof_now(self) -> None:
        """A part that ends while the log cannot be read stays open: its rows come with the next step."""
        self.ledger.fill(60)
        self.ledger.commit()
        proof_of, calls = exporter_module._proof_of, [0]

        def at_times(*words: Any) -> Any:
            calls[0] += 1
            if calls[0] % 3 == 1:
                raise ReadError("the members do not answer")
            return proof_of(*words)

        self.patch(exporter_module, "_proof_of", at_times)
        with self.exporter() as exporter:
            failed = 0
            while exporter.directory.next_index != 60:
                try:
                    exporter.step(0, is_last=True)
                except ReadError:
                    failed += 1
        self.assertGreater(failed, 2)
        self.assertEqual(parquet_rows(self.out), plain_rows(self.ledger.path))

    def test_finished_by_hand(self) -> None:
        """Rows that were read become visible at the end, also of half a step; the rest comes later."""
        self.ledger.fill(60)
        self.ledger.commit()
        with self.exporter(ExportSettings(max_delay_ms=1000), fetchBytes=200) as exporter:
            exporter.should_stop = lambda: exporter.progress.rows > 20
            exporter.step(0, is_last=False)
            read = exporter.progress.rows
            exporter.finish()
            self.assertEqual(parquet_rows(self.out), plain_rows(self.ledger.path)[:read])
        self.assertEqual(self.export(), 60 - read)
        self.assertEqual(parquet_rows(self.out), plain_rows(self.ledger.path))

    def test_whole_parts_by_hand(self) -> None:
        """Where parts end only when they are full, the end makes none."""
        self.ledger.fill(3)
        self.ledger.commit()
        with self.exporter(ExportSettings(max_delay_ms=0)) as exporter:
            exporter.step(0, is_last=False)
            exporter.finish()
        self.assertEqual(ranges(self.out), [])

    def test_open_part_is_read_once(self) -> None:
        """A part that stays open over many steps is not read again."""
        with self.exporter(ExportSettings(max_delay_ms=0)) as exporter:
            for _ in range(5):
                self.ledger.append([b"x"])
                self.ledger.commit()
                exporter.step(0, is_last=False)
            self.assertEqual(exporter.progress.rows, 5)

    def test_error_in_between(self) -> None:
        """What was read before an error is in the open part, and the next step goes on after it."""
        self.ledger.fill(40)
        self.ledger.commit()
        with self.exporter(ExportSettings(max_delay_ms=0), fetchBytes=200) as exporter:
            calls = iter(range(1000))

            def fail() -> bool:
                if next(calls) == 13:
                    raise ReadError("the network is down")
                return False

            exporter.should_stop = fail
            self.assertRaises(ReadError, exporter.step, 0, is_last=False)
            self.assertTrue(0 < exporter.progress.rows < 40)
            exporter.step(0, is_last=True)
        self.assertEqual(parquet_rows(self.out), plain_rows(self.ledger.path))


class RefusalTests(ExportCase):
    """What is refused, and with which words."""

    def assertSays(self, error: type[Exception], *parts: str, **changes: object) -> None:
        """Exporting fails so."""
        settings = changes.pop("settings", None)
        message = str(self.assertRaises(error, self.export, settings, **changes))
        for part in parts:
            self.assertIn(part, message)

    def test_options(self) -> None:
        """Options are those of the source, with the nearest name."""
        self.assertSays(OptionError, "did you mean verifyCrc", verifyCrcs=True)
        self.assertSays(OptionError, "did you mean term", settings=ExportSettings(columns=("terms",)))
        self.assertFalse(self.out.exists())

    def test_settings(self) -> None:
        """Formats and compressions that do not exist."""
        for changes in ({"format": "csv"}, {"compression": "lzo"}):
            error = self.assertRaises(ExportError, ExportSettings, **changes)
            self.assertIn("allowed are", str(error))
        self.assertRaises(ExportError, ExportSettings, part_bytes=0)

    def test_partition_columns(self) -> None:
        """Of columns that are not there, of bytes, of all, and of one twice."""
        for partition_by, columns, words in (
            (("topic",), (), "not one of the columns"), (("body",), (), "BINARY is not a partition"),
            (("term",), ("term",), "no column is left"), (("term", "term"), (), "twice"),
        ):
            settings = ExportSettings(partition_by=partition_by, columns=columns)
            self.assertSays(ExportError, words, settings=settings)

    def test_options_without_effect(self) -> None:
        """They are refused, with the reason."""
        self.ledger.fill(30)
        self.ledger.commit()
        for name, value, words in (
            ("minPartitions", 2, "one task"), ("maxRecordsPerPartition", 5, "one task"),
            ("partitionBytes", 100, "--part-bytes"), ("decompress", True, "belongs to format=rocketmq"),
            ("includeInternal", True, "belongs to format=rocketmq"),
            ("readFrom", "any", "belongs to bootstrap"),
        ):
            what = f"option {name} has no effect on this export"
            self.assertSays(OptionError, what, words, **{name: value})
        self.assertSays(OptionError, "option topics has no effect on this export", "choose among them",
                        topics="a", format="rocketmq")
        given = {"path": self.ledger.path}
        bounded = {**given, "endingOffsets": "5"}
        error = self.assertRaises(OptionError, ExportSource.of, bounded, follows=True)
        self.assertIn("follows the log and has no end", str(error))
        ExportSource.of({**given, "minPartitions": "2"}, engine="spark")
        self.assertFalse(self.out.exists())

    def test_offsets(self) -> None:
        """C{startingOffsets} and C{endingOffsets} are honoured; another beginning is refused later."""
        self.ledger.fill(30)
        self.ledger.commit()
        rows = plain_rows(self.ledger.path)
        self.assertSays(OptionError, "startingOffsets=31 is after the committed end 30", startingOffsets=31)
        self.assertEqual(self.export(startingOffsets=5, endingOffsets=12), 7)
        self.assertEqual(parquet_rows(self.out), rows[5:12])
        self.assertEqual(self.export(startingOffsets=5, endingOffsets=12), 0)
        self.assertSays(ExportError, "was begun at offset 5, and now startingOffsets=6", startingOffsets=6)
        self.assertSays(OptionError, "endingOffsets=31 is after the committed end 30", endingOffsets=31)
        self.assertEqual(self.export(), 18)
        self.assertEqual(parquet_rows(self.out), rows[5:])

    def test_addresses(self) -> None:
        """What is neither a path nor the URL of a store."""
        self.ledger.fill(3)
        self.ledger.commit()
        for address, part in (
            ("s3:/bucket/x", "write a path such as ./out, or a URL such as s3://bucket/out"),
            ("file:///x/y", "write its path alone"), ("s4://bucket/x", "Allowed are a directory, and a URL"),
            ("s3://", "names no bucket"),
        ):
            source = ExportSource.of({"path": self.ledger.path})
            self.assertIn(part, str(self.assertRaises(
                ExportError, Exporter.open, address, source, ExportSettings())))
            self.assertFalse(Path(address).exists())
        source = ExportSource.of({"path": self.ledger.path, "archive": "s3://bucket/log"})
        for address in ("s3://bucket/log", "s3://bucket//log/x/", "s3a://bucket/log/x"):
            self.assertIn(f"{address} is in the directory of the log, s3://bucket/log", str(self.assertRaises(
                ExportError, Exporter.open, address, source, ExportSettings())))

    def test_checksums(self) -> None:
        """Bodies are verified, unless one says that they are not."""
        self.ledger.fill(30)
        self.ledger.commit()
        row = next(row for row in plain_rows(self.ledger.path) if row[0] > 8 and row[7])
        with open(Path(self.ledger.path) / "data" / f"{row[2] // 1024 * 1024:020d}", "r+b") as file:
            file.seek(row[2] % 1024 + 48)
            file.write(bytes([row[7][0] ^ 1]))
        self.assertSays(DamageError, f"entry {row[0]} is damaged", "does not match its body_crc")
        self.assertEqual(self.export(verifyCrc=False), 30)

    def test_small_parts(self) -> None:
        """Parts are about as small as one says, although more is read at a time by default."""
        self.ledger.close()
        self.ledger = Ledger(self.mktemp(), mapped_file_size_for_entry_data=1 << 20)
        self.addCleanup(self.ledger.close)
        self.ledger.append([bytes(52)] * 200)
        self.ledger.commit()
        self.assertEqual(self.export(ExportSettings(part_bytes=2000)), 200)
        self.assertEqual(len(data_files(self.out)), 10)

    def test_log_that_went_back(self) -> None:
        """A log that is shorter than the export, and one that is made anew under an export that follows."""
        self.ledger.fill(100)
        self.ledger.commit()
        with self.exporter(requestTimeoutMs=50) as exporter:
            exporter.step(0, is_last=False)
            other = Ledger(self.mktemp())
            self.addCleanup(other.close)
            other.fill(60, seed=2)
            other.commit()
            shutil.rmtree(self.ledger.path)
            shutil.copytree(other.path, self.ledger.path)
            error = self.assertRaises(NotCommittedError, exporter.step, 0, is_last=False)
            self.assertIn("it ends at 60", str(error))
            other.fill(90, seed=3)
            other.commit()
            shutil.rmtree(self.ledger.path)
            shutil.copytree(other.path, self.ledger.path)
            error = self.assertRaises(ExportError, exporter.step, 0, is_last=False)
            self.assertIn("is the export of another log: before offset 100", str(error))

    def test_another_log(self) -> None:
        """An export does not go on with another log."""
        self.ledger.fill(10)
        self.ledger.commit()
        self.export()
        mine = self.ledger
        self.ledger = Ledger(self.mktemp())
        self.addCleanup(self.ledger.close)
        self.ledger.fill(20, seed=2)
        self.ledger.commit()
        self.assertSays(ExportError, "export of another log", "offset 10", "new directory")
        self.ledger = mine
        self.assertEqual(self.export(), 0)

    def test_out_in_the_log(self) -> None:
        """Files of an export would be foreign files of the member."""
        self.out = Path(self.ledger.path) / "data" / "out"
        self.assertSays(ExportError, "is in the directory of the log")
        self.out = Path(self.ledger.path)
        self.assertSays(ExportError, "is in the directory of the log")

    def test_no_ledger(self) -> None:
        """A directory that is not a member's."""
        self.ledger.close()
        os.makedirs("empty", exist_ok=True)
        self.assertSays(ReadError, "not a member's directory", path="empty")

    def test_expired(self) -> None:
        """Entries that have expired before they were exported are an error, or are passed over on request."""
        self.ledger.fill(200)
        self.ledger.commit(99)
        self.export()
        self.ledger.commit()
        names = os.listdir(Path(self.ledger.path) / "data")
        rows = plain_rows(self.ledger.path)
        begin = self.ledger.expire(sum(int(name) <= rows[119][2] for name in names) - 1)
        self.assertGreater(begin, 100)
        self.assertSays(DataLossError, f"offsets 100..{begin - 1} have expired", "failOnDataLoss=false")
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            self.export(failOnDataLoss=False)
        self.assertTrue(any("have expired" in str(one.message) for one in said))
        self.assertEqual(parquet_rows(self.out), rows[:100] + rows[begin:])
        state = json.loads((self.out / "_export.json").read_text())
        self.assertEqual((state["next"], state["rows"]), (200, 100 + 200 - begin))

    def test_full_disk(self) -> None:
        """A disk that is full is said, whatever else fails because of it; later the export goes on."""
        self.ledger.fill(200)
        self.ledger.commit()
        real = pq.ParquetWriter
        rooms = [None] * 9

        class Full(real):  # type: ignore[misc,valid-type]
            def write_table(self, *arguments: object, **more: object) -> None:
                if not rooms:
                    raise OSError(28, "No space left on device")
                rooms.pop()
                super().write_table(*arguments, **more)

            def close(self) -> None:
                was_open = self.is_open
                super().close()
                if not rooms and was_open:
                    raise OSError(28, "No space left on device, either")

        self.patch(export_writers, "ROW_GROUP_BYTES", 1)
        patch = self.patch(pq, "ParquetWriter", Full)
        error = self.assertRaises(OSError, self.export)
        self.assertEqual(error.strerror, "No space left on device")
        patch.restore()
        done = parquet_rows(self.out)
        self.assertTrue(done)
        self.assertEqual(done, plain_rows(self.ledger.path)[: len(done)])
        self.export()
        self.assertEqual(parquet_rows(self.out), plain_rows(self.ledger.path))

    def test_damaged(self) -> None:
        """A damaged record stops the export at its segment; what was finished before stays."""
        self.ledger.fill(100)
        self.ledger.commit()
        rows = plain_rows(self.ledger.path)
        self.ledger.close()
        size = self.ledger.config.mapped_file_size_for_entry_data
        pos = rows[60][2]
        path = Path(self.ledger.path) / "data" / f"{pos // size * size:020}"
        content = bytearray(path.read_bytes())
        content[pos % size + 8] ^= 1
        path.write_bytes(content)
        self.assertSays(ReadError, "entry 60 is damaged", str(path), f"at {pos % size}")
        done = parquet_rows(self.out)
        self.assertEqual(done, rows[: len(done)])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.export(failOnDamage=False)
        self.assertEqual(parquet_rows(self.out), rows[:60] + rows[61:])


class SchemaTests(ExportCase):
    """Types in the files."""

    def test_types(self) -> None:
        """As the source has them."""
        self.ledger.fill(3)
        self.ledger.commit()
        self.export(ExportSettings(columns=("body", "index")))
        self.assertEqual(
            pq.read_schema(data_files(self.out)[0]), pa.schema([("body", pa.binary()), ("index", pa.int64())])
        )
