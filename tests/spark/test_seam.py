# -*- test-case-name: tests.spark.test_seam -*-
"""Option C{archive}: older entries from an archive, newer ones from the log, each once, or an error."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from dledger.cli.main import cli
from dledger.daemons.data.export import Options
from dledger.spark.export.exporter import Exporter, ExportSettings, ExportSource
from dledger.spark.formats.log import DataLossError, LogPart, NotCommittedError, ReadError
from dledger.spark.formats.option_texts import OptionError
from dledger.spark.ledger.members import MembersLog
from dledger.spark.scans.scan import Scan
from dledger.spark.source import LogStreamReader
from protocols.wire.ledger.entry import ENTRY_HEADER, MAGIC, pack_record
from tests.damage.readers import exported
from tests.processes.members import ROOT
from tests.spark.archives import memory_url, ship
from tests.spark.ledgers import Ledger, Row, expire, plain_rows, scanned, set_group
from tests.spark.members import FakeMember
from tests.spark.test_archive import DAMAGE, ArchiveCase
from tests.spark.test_export import parquet_rows

QUICK = {"requestTimeoutMs": "1"}


def read(scan: Scan, parts: list[LogPart]) -> list[Row]:
    """The rows of parts."""
    rows: list[Any] = []
    for part in parts:
        for batch in scan.batches(part):
            rows += zip(*[column.to_pylist() for column in batch.columns], strict=True)
    return rows


class SeamCase(ArchiveCase):
    """
    A member that keeps less than its archive.

    @ivar all_rows: of both.
    """

    def setUp(self) -> None:
        super().setUp()
        self.filled()
        self.all_rows = plain_rows(self.path)

    def more(self, count: int) -> None:
        """More entries, all of which that can be are archived."""
        before = {row[0] for row in self.all_rows}
        self.ledger.fill(count)
        self.ledger.commit()
        self.shipped()
        self.all_rows += [row for row in plain_rows(self.path) if row[0] not in before]

    def given(self, **options: object) -> dict[str, str]:
        """Options of both sources."""
        given = {"path": self.path, "archive": self.archive, **QUICK, **options}
        return {name: str(value) for name, value in given.items() if value != ""}

    def records(self) -> list[bytes]:
        """All records."""
        return [ENTRY_HEADER.pack(MAGIC, row[3], row[0], row[1], row[2], *row[4:7], len(row[7])) + row[7]
                for row in self.all_rows]

    def member(self, records: list[bytes], *, begin: int) -> FakeMember:
        """A member that has them from C{begin} on."""
        member = FakeMember("n0", records)
        self.addCleanup(member.close)
        member.begin = begin
        return member

    def refused_both(self, kind: type[Exception], *words: str, **options: object) -> None:
        """Reading ends with this error."""
        error = self.assertRaises(kind, scanned, self.given(**options))
        for word in words:
            self.assertIn(word, str(error))


class BatchTests(SeamCase):
    """C{spark.read}, without Spark."""

    def test_every_seam(self) -> None:
        """However much has expired, up to all that is archived; by directory and by URL, with a backup."""
        url, saved = memory_url(), self.mktemp()
        ship(self.path, url)
        self.assertGreater(ship(self.path, saved, is_backup=True).end_index + 1, len(self.rows))
        for _ in self.pieces():
            first = self.ledger.expire(1)
            for options in ({}, {"partitionBytes": 1, "fetchBytes": 100}, {"archive": saved},
                            {"archive": url, "minPartitions": 9, "requestTimeoutMs": 20_000}):
                with self.subTest(first=first, options=options):
                    self.assertEqual(scanned(self.given(**options)), self.all_rows)
            around = self.given(startingOffsets=first - 2, endingOffsets=first + 2)
            self.assertEqual(scanned(around), self.all_rows[first - 2 : first + 2])
            parts = Scan.of(around).plan()
            self.assertEqual([(part.begin, part.is_archived) for part in parts],
                             [(first - 2, True), (first, False)])
        self.assertEqual(first, len(self.rows))

    def test_members(self) -> None:
        """From the members of a group; those are not asked for entries that they lack."""
        member = self.member(self.records(), begin=30)
        given = {"bootstrap": f"n0-{member.address}", "archive": self.archive, "requestTimeoutMs": "20000"}
        for options in ({}, {"minPartitions": "5"}):
            self.assertEqual(scanned({**given, **options}), self.all_rows)
        self.assertGreaterEqual(min(member.pulls), 30)
        scan = Scan.of(given)
        parts = scan.plan()
        member.begin = 50  # (tasks of the live log find that more has expired since)
        self.assertEqual(read(scan, parts), self.all_rows)
        lenient = Scan.of({**given, "failOnDataLoss": "false"})
        self.assertEqual(read(lenient, parts), self.all_rows)
        error = self.assertRaises(ReadError, scanned, {**given, "group": "g1"})
        self.assertIn("g1", str(error))
        other = Ledger(self.mktemp(), group="g2")
        self.addCleanup(other.close)
        other.fill(60)
        other.commit()
        ship(other.path, f"{other.path}-archive")
        error = self.assertRaises(ReadError, scanned, {**given, "archive": f"{other.path}-archive"})
        self.assertIn("is not an archive of group 'default'", str(error))
        self.assertIn("it is of group 'g2'", str(error))

    def test_expires_meanwhile(self) -> None:
        """Between planning and reading, and while a task reads."""
        scan = Scan.of(self.given(fetchBytes=100))
        parts = scan.plan()
        self.assertFalse(any(part.is_archived for part in parts))
        batches = scan.batches(parts[0])
        rows = list(zip(*[column.to_pylist() for column in next(batches).columns], strict=True))
        expire(self.path, 3)
        for batch in batches:
            rows += zip(*[column.to_pylist() for column in batch.columns], strict=True)
        self.assertEqual(rows, self.all_rows)
        self.assertEqual(read(scan, parts), self.all_rows)

    def test_gap(self) -> None:
        """What is in neither is an error that names both ends; entries after it can be read."""
        missing = len(self.rows)
        self.ledger.fill(40)
        self.ledger.commit()
        first = self.ledger.expire(len(self.pieces()) + 1)
        words = (self.archive, f"ends with entry {missing - 1}", f"begins with entry {first}")
        self.refused_both(DataLossError, *words)
        self.refused_both(DataLossError, *words, startingOffsets=missing - 3)
        live = plain_rows(self.path)
        self.assertEqual(scanned(self.given(startingOffsets=first)), live)
        said = self.warned()
        self.assertEqual(scanned(self.given(failOnDataLoss="false")), live)
        self.assertIn(words[2], "; ".join(said))
        reader = LogStreamReader(Scan.of(self.given(), is_stream=True))
        self.addCleanup(reader.stop)
        error = self.assertRaises(DataLossError, reader.partitions, {"default": 5}, {"default": first + 1})
        self.assertIn(words[1], str(error))

    def test_another_log(self) -> None:
        """With other entries, adjoining or not; of a group with another id; or an archive of an archive."""
        other = Ledger(self.mktemp())
        self.addCleanup(other.close)
        other.fill(60, seed=2)
        other.commit()
        for files in (1, 2):
            other.expire(files)
            self.refused_both(ReadError, f"option archive={self.archive!r} is not an archive of {other.path}",
                              path=other.path)
        records = self.records()
        count = len(self.rows)
        records[count], _ = pack_record(
            self.all_rows[count][7], index=count, term=self.all_rows[count][1], pos=self.all_rows[count][2],
            previous_chain_crc=5,
        )
        member = self.member(records, begin=count)
        given = {"path": "", "bootstrap": f"n0-{member.address}", "requestTimeoutMs": 20_000}
        self.refused_both(ReadError, f"entry {count}", "does not continue from the last one", **given)

    def test_another_group(self) -> None:
        """Ids of groups distinguish logs."""
        set_group(self.path, "a" * 32)
        shutil.rmtree(self.archive)
        self.shipped()
        self.ledger.expire(1)
        self.assertEqual(scanned(self.given()), self.all_rows)
        set_group(self.path, "b" * 32)
        self.refused_both(ReadError, "a" * 32, "b" * 32)

    def test_without_checksums(self) -> None:
        """Where no checksum proves that the log continues, only the id of the group does."""
        for group_id in ("", "a" * 32):
            ledger = self.make()
            if group_id:
                set_group(ledger.path, group_id)
            ledger.append_without_checksums([b"a" * 100] * 30)
            ledger.commit()
            archive = os.path.abspath(f"{ledger.path}-archive")
            count = ship(ledger.path, archive).end_index + 1
            rows = plain_rows(ledger.path)
            while plain_rows(ledger.path)[0][0] < count:
                ledger.expire(1)
            if group_id:
                self.assertEqual(scanned(self.given(path=ledger.path, archive=archive)), rows)
            else:
                self.refused_both(ReadError, "does not know the id", path=ledger.path, archive=archive)

    def test_behind(self) -> None:
        """A log that ends before its archive is waited for, then that is an error."""
        copy = os.path.abspath(self.mktemp())
        shutil.copytree(self.path, copy)
        self.more(40)
        words = f"but the archive {self.archive} with entry {len(self.rows) - 1}"
        self.refused_both(NotCommittedError, words, path=copy)

    def test_what_does_not_go_together(self) -> None:
        """An archive beside an archive; one without entries adds nothing."""
        self.refused_both(OptionError, "is an archive itself", path=self.archive)
        self.refused_both(OptionError, "is an archive itself: option archive", path="memory://x")
        self.refused_both(ReadError, "holds no archive", archive=memory_url(), requestTimeoutMs=20_000)
        early = self.make()
        early.append([b"a"])
        early.commit()
        target = self.mktemp()
        ship(early.path, target)
        self.assertEqual(scanned(self.given(archive=target)), self.all_rows)

    def test_damage(self) -> None:
        """Of the archive: the rows are equal, or an error names it."""
        self.ledger.expire(2)
        sound, refused = self.archive, 0
        for kind, damage in DAMAGE.items():
            for which in range(3):
                self.archive = os.path.abspath(self.mktemp())
                shutil.copytree(sound, self.archive)
                damage(self.pieces()[which], random.Random(f"{kind} {which}"))
                try:
                    self.assertEqual(scanned(self.given()), self.all_rows)
                except ReadError as error:
                    self.assertIn(self.archive, str(error))
                    refused += 1
        self.assertEqual(refused, 2 * len(DAMAGE))  # (the third segment is read in the log)


class StreamTests(SeamCase):
    """C{spark.readStream}, without Spark."""

    def reader(self, **options: object) -> LogStreamReader:
        """A new one, as after a restart of the query."""
        reader = LogStreamReader(Scan.of(self.given(**options), is_stream=True))
        self.addCleanup(reader.stop)
        return reader

    def test_entries_move(self) -> None:
        """Entries move between batches, and within one; a batch that is repeated is the same."""
        chance = random.Random(7)
        reader = self.reader(startingOffsets="earliest")
        at, rows = reader.initialOffset(), []
        expired = 0
        for turn in range(24):
            if turn % 3 == 0:
                self.more(10)
            if turn % 2 == 0:
                limit = len(self.pieces()) - expired
                files = chance.randrange(limit + 1)
                expire(self.path, files)
                expired += files
            if turn % 5 == 4:
                reader.stop()
                reader = self.reader()
            most = chance.choice((1, 9, 17))
            end = reader.latestOffset(at, ReadMaxRows(most))
            self.assertLessEqual(end["default"] - at["default"], most)
            batch = read(self.scan(), [part.value for part in reader.partitions(at, end)])
            self.assertEqual([row[0] for row in batch], list(range(at["default"], end["default"])))
            if expired < len(self.pieces()):
                expire(self.path, 1)
                expired += 1
                again = self.reader().partitions(at, end)
                self.assertEqual(read(self.scan(), [part.value for part in again]), batch)
            rows += batch
            at = end
        end = reader.latestOffset(at, ReadAllAvailable())
        rows += read(self.scan(), [part.value for part in reader.partitions(at, end)])
        self.assertEqual(rows, self.all_rows)

    def scan(self) -> Scan:
        """For tasks."""
        return Scan.of(self.given(fetchBytes=200), is_stream=True)

    def test_an_archive_comes_later(self) -> None:
        """A stream that began without option C{archive} goes on with it, where entries have expired since."""
        plain = LogStreamReader(Scan.of({"path": self.path, "startingOffsets": "5", **QUICK}, is_stream=True))
        self.addCleanup(plain.stop)
        at = plain.initialOffset()
        self.ledger.expire(2)
        self.assertRaises(DataLossError, plain.partitions, at, plain.latestOffset(at, ReadAllAvailable()))
        reader = self.reader()
        end = reader.latestOffset(at, ReadAllAvailable())
        found = read(self.scan(), [part.value for part in reader.partitions(at, end)])
        self.assertEqual(found, self.all_rows[5:])


class ExportTests(SeamCase):
    """C{dledger export}."""

    def test_export(self) -> None:
        """One export over both, which goes on where entries have moved."""
        out = self.mktemp()
        self.ledger.expire(2)
        for count in (0, 40):
            if count:
                self.more(count)
                self.ledger.expire(2)
            source = ExportSource.of(self.given())
            with Exporter.open(out, source, ExportSettings(format="jsonl")) as exporter:
                exporter.step(0, is_last=True)
            self.assertEqual(exported(out), self.all_rows)

    def test_recipe(self) -> None:
        """The commands of docs/spark-reference.md."""
        text = (ROOT / "docs" / "spark-reference.md").read_text(encoding="utf-8")
        section = text[text.index("\n## Archives\n") : text.index("\n## TLS\n")]
        commands = [line.split()[1:] for line in section.splitlines() if line.startswith("    dledger ")]
        self.assertEqual(len(commands), 3)
        place = self.mktemp()
        os.makedirs(f"{place}/dledger-data")
        os.symlink(self.path, f"{place}/dledger-data/dledger-n0")
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(place)
        for command in commands:
            if command[-1] == "archive=archive":
                self.ledger.expire(3)
            done = CliRunner().invoke(cli, command)
            self.assertEqual(done.exit_code, 0, done.output)
        self.assertEqual(parquet_rows(Path("out-archive")), self.rows)
        self.assertEqual(parquet_rows(Path("out-both")), self.all_rows)

    def test_sidecar(self) -> None:
        """Its options name an archive alone, or beside a log; its first turn says what is wrong."""
        self.ledger.expire(2)
        for words, rows in ((("--source", self.archive), self.rows),
                            (("--source", self.path, "--option", f"archive={self.archive}"), self.all_rows)):
            options, out = Options(), os.path.abspath(self.mktemp())
            options.parseOptions([*words, "--out", out, "--max-delay", "1"])
            with options.plan.open() as run:
                run.turn(0)
                run.turn(2000)
            self.assertEqual(parquet_rows(Path(out)), rows)
        options = Options()
        options.parseOptions(["--source", "nowhere://x", "--out", out])
        error = self.assertRaises(OptionError, options.plan.open)
        self.assertIn("Protocol not known", str(error))

    def test_the_log_of_members_is_not_opened_for_older_entries(self) -> None:
        """A task of older entries asks no member."""
        self.patch(MembersLog, "_connect", lambda *_: self.fail("a member was asked"))
        scan = Scan.of({"bootstrap": "n0-127.0.0.1:1", "archive": self.archive})
        part = LogPart(begin=0, end=9, size_bytes=0, is_archived=True)
        self.assertEqual(read(scan, [part]), self.all_rows[:9])


