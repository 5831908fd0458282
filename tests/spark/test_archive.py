# -*- test-case-name: tests.spark.test_archive -*-
"""
An archive as a source: the rows of the member's directory up to the archived end, or an error.

Without a JVM: L{tests.spark.test_source} and L{tests.spark.test_stream} read one with Spark.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import attrs
from fsspec.implementations.memory import MemoryFileSystem
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from dledger.base.disk.disk import OsDisk
from dledger.spark.formats.log import DamageError, DataLossError, NotCommittedError, ReadError
from dledger.spark.formats.option_texts import OptionError
from dledger.spark.ledger import archive as archive_module
from dledger.spark.ledger.archive_files import ArchiveFiles
from dledger.spark.scans.scan import Scan
from dledger.spark.source import LogStreamReader
from dledger.storage.backups.place import opened_place
from dledger.storage.manifests.archive_manifest import SLOT_NAMES
from dledger.storage.manifests.archive_retention import ArchiveRetention, expire_archive
from protocols.wire.ledger.entry import pack_record
from tests.damage.readers import READINGS, Interrupted
from tests.spark.archives import memory_url, ship
from tests.spark.ledgers import Ledger, mixed_bodies, plain_rows, scanned, set_group
from tests.spark.test_scan import LedgerCase

QUICK = {"requestTimeoutMs": "1"}


class ArchiveCase(LedgerCase):
    """
    A member with an archive.

    @ivar archive: its directory.
    @ivar rows: what is in it.
    """

    def filled(self, count: int = 60) -> None:
        """C{count} entries, of which those in closed segments are archived."""
        self.ledger.fill(count)
        self.ledger.commit()
        self.shipped()

    def shipped(self) -> None:
        """Archive what is closed."""
        self.archive = os.path.abspath(f"{self.path}-archive")
        end = ship(self.path, self.archive).end_index + 1
        self.rows = plain_rows(self.path, end)
        self.assertEqual(self.rows[-1][0], end - 1)

    def pieces(self) -> list[Path]:
        """The segments in the archive, in order."""
        return sorted(Path(self.archive, "data").iterdir())

    def newest(self) -> Path:
        """The slot that counts."""
        return Path(self.archive, SLOT_NAMES[(len(self.pieces()) + 1) % 2])

    def manifests(self) -> list[Path]:
        """All copies."""
        slots = [Path(self.archive, name) for name in SLOT_NAMES]
        return slots + sorted(Path(self.archive, "generations").iterdir())

    def refused(self, kind: type[Exception], *words: str, **options: object) -> None:
        """Reading ends with this error."""
        # (A store has that long for each call, too, and the machine may be busy.)
        quick = {} if "://" in self.archive else QUICK
        error = self.assertRaises(kind, scanned, {"path": self.archive, **quick, **options})
        for word in words:
            self.assertIn(word, str(error))


class ReadTests(ArchiveCase):
    """Rows and parts."""

    def test_rows(self) -> None:
        """All rows and columns, from a directory and by URL, however the range is cut."""
        self.filled()
        url = memory_url()
        ship(self.path, url)
        for path in (self.archive, f"file://{self.archive}", url):
            for options in ({}, {"minPartitions": 7}, {"maxRecordsPerPartition": 3}, {"partitionBytes": 1},
                            {"partitionBytes": 2000, "fetchBytes": 100}, {"verifyCrc": "true"},
                            {"minPartitions": 500}):
                with self.subTest(path=path, options=options):
                    self.assertEqual(scanned({"path": path, **options}), self.rows)
            given = {"path": path, "startingOffsets": 7, "endingOffsets": 23}
            self.assertEqual(scanned({**given, "minPartitions": 3}), self.rows[7:23])
            self.assertEqual(scanned(given, [("index", "bigint")]), [row[:1] for row in self.rows[7:23]])

    def test_large_segments(self) -> None:
        """A segment of many times C{partitionBytes} is cut, into parts that are not too small for a walk."""
        self.filled()
        size = max(path.stat().st_size for path in self.pieces())
        for part_bytes, least in ((100, size // 2), (size // 3, 1)):
            with self.subTest(part_bytes=part_bytes), patch.object(archive_module, "_PART_BYTES", least):
                given = {"path": self.archive, "partitionBytes": part_bytes}
                parts = Scan.of({key: str(word) for key, word in given.items()}).plan()
                self.assertGreater(len(parts), len(self.pieces()))
                self.assertLess(len(parts), len(self.pieces()) * 4)
                self.assertEqual([part.begin for part in parts[1:]], [part.end for part in parts[:-1]])
                self.assertEqual(scanned(given), self.rows)
        self.assertEqual(archive_module._PART_BYTES // 2**20, 32)

    def test_parts(self) -> None:
        """A part is made of whole segments; planning reads none of them, and a task reads its own."""
        self.filled()
        read: list[str] = []
        plain = ArchiveFiles.read

        def noting(files: ArchiveFiles, name: str, begin: int, end: int) -> bytes:
            read.append(name)
            return plain(files, name, begin, end)

        scan = pickle.loads(pickle.dumps(Scan.of({"path": self.archive, "partitionBytes": "1"})))
        with patch.object(ArchiveFiles, "read", noting):
            parts = scan.plan()
            self.assertEqual((len(parts), read), (len(self.pieces()), []))
            batches = [next(scan.batches(parts[2]))]
        self.assertEqual(set(read), {f"data/{self.pieces()[2].name}"})
        self.assertEqual(batches[0].column(0).to_pylist(), [
            row[0] for row in self.rows if parts[2].begin <= row[0] < parts[2].end
        ])
        self.assertEqual(len(Scan.of({"path": self.archive}).plan()), 1)

    def test_grows(self) -> None:
        """The archive of a later run has the entries of before and more; a stream goes on with them."""
        self.filled(40)
        reader = LogStreamReader(Scan.of(
            {"path": self.archive, "startingOffsets": "earliest", **QUICK}, is_stream=True
        ))
        self.addCleanup(reader.stop)
        rows: list[Any] = []
        at = reader.initialOffset()
        for count, limit in ((0, ReadMaxRows(5)), (40, ReadMaxBytes(700)), (0, ReadAllAvailable())):
            if count:
                self.ledger.fill(count)
                self.ledger.commit()
                self.shipped()
            end = reader.latestOffset(at, limit)
            for part in reader.partitions(at, end):
                for batch in reader.read(part):
                    rows += zip(*[column.to_pylist() for column in batch.columns], strict=True)
            at = end
        self.assertEqual(rows, self.rows)
        self.assertEqual(reader.latestOffset(at, ReadAllAvailable()), at)
        # The same offset in the directory of a member has the same proof, so a query may move.
        member = LogStreamReader(Scan.of({"path": self.path, **QUICK}, is_stream=True))
        self.addCleanup(member.stop)
        self.assertGreater(member.latestOffset(at, ReadAllAvailable())["default"], at["default"])

    def test_a_backup(self) -> None:
        """It has the open segment, too; a reader that has planned on a part reads it in a longer one."""
        self.ledger.fill(40)
        self.ledger.commit()
        self.archive = os.path.abspath(f"{self.path}-archive")
        self.assertEqual(ship(self.path, self.archive, is_backup=True).end_index, 39)
        rows = plain_rows(self.path, 40)
        self.assertEqual(scanned({"path": self.archive}), rows)
        for fetched in ("100", "100000"):
            log = Scan.of({"path": self.archive, "fetchBytes": fetched}).log()
            self.addCleanup(log.close)
            end = log.extent().end
            part = Path(self.archive, "data", self.pieces()[-1].name)
            while part.exists():
                self.ledger.fill(1)
                self.ledger.commit()
                ship(self.path, self.archive, is_backup=True)
            found = sum(chunk.count for chunk in log.chunks(0, end, with_data=True))
            self.assertEqual(found, end)
            self.assertGreater(log.extent().end, end)
        end = log.extent().end
        self.assertEqual(scanned({"path": self.archive}), plain_rows(self.path, end))

    def test_another_part(self) -> None:
        """A last piece in whose place there is none that can go on with it: it is another archive."""
        self.filled(40)
        log = Scan.of({"path": self.archive}).log()
        self.addCleanup(log.close)
        log.extent()
        shutil.rmtree(self.archive)
        ship(self.path, self.archive, is_backup=True)
        log.extent()  # (the same, with a part more)
        found = log.seen()
        first, last = found.pieces[0], found.pieces[-1]
        longer = attrs.evolve(last, end_position=last.end_position + 9, last_index=last.last_index + 1)
        grown = attrs.evolve(found, pieces=(*found.pieces[:-1], longer))
        self.assertTrue(archive_module._continues(grown, found))
        for change in ({"position": last.position + 1}, {"first_index": last.first_index + 1},
                       {"first_term": last.first_term + 1}, {"last_term": last.last_term - 1},
                       {"end_position": last.end_position}, {"last_index": last.last_index}):
            other = attrs.evolve(found, pieces=(*found.pieces[:-1], attrs.evolve(longer, **change)))
            self.assertFalse(archive_module._continues(other, found), change)
        longer = attrs.evolve(first, end_position=first.end_position + 9, last_index=first.last_index + 1)
        self.assertFalse(archive_module._continues(attrs.evolve(found, pieces=(longer,)), found))

    def test_another_log(self) -> None:
        """A stream notices by the proof of its offset that the archive is another one, or went back."""
        self.filled()
        scan = Scan.of({"path": self.archive, "startingOffsets": "30", **QUICK}, is_stream=True)
        first = LogStreamReader(scan)
        start = first.initialOffset()
        shutil.rmtree(self.archive)
        other = Ledger(self.mktemp())
        self.addCleanup(other.close)
        other.append(mixed_bodies(80, seed=9))
        other.commit()
        ship(other.path, self.archive)
        for reader in (first, LogStreamReader(scan)):
            self.addCleanup(reader.stop)
            self.assertRaises(DataLossError, reader.latestOffset, start, ReadAllAvailable())
        self.refused(OptionError, "is after the committed end", endingOffsets=500)
        late = {**start, "default": 500}
        self.assertRaises(DataLossError, LogStreamReader(scan).latestOffset, late, ReadAllAvailable())
        self.assertRaises(NotCommittedError, LogStreamReader(scan).partitions, start, late)

    def test_begins_later(self) -> None:
        """A log whose first entries had expired before it was archived."""
        self.ledger.fill(80)
        self.ledger.commit()
        first = self.ledger.expire(2)
        self.shipped()
        self.assertEqual(scanned({"path": self.archive}), self.rows)
        self.assertEqual(self.rows[0][0], first)
        self.refused(DataLossError, f"offsets 0..{first - 1} have expired", startingOffsets=0)
        # Nothing before the first header covers it, so the whole segment is compared before it is shown.
        flipped(self.pieces()[0], 39)
        self.refused(DamageError, "its SHA-256", endingOffsets=first + 1, startingOffsets=first)

    def test_without_checksums(self) -> None:
        """Java's records: a changed byte is noticed by the checksum of the segment before it is shown."""
        self.ledger.append_without_checksums([b"a" * 100, b"b" * 100] * 12)
        self.ledger.commit()
        self.shipped()
        self.assertEqual(scanned({"path": self.archive}), self.rows)
        flipped(self.pieces()[0], 148 + 60)
        self.refused(DamageError, str(self.pieces()[0]), "SHA-256", endingOffsets=1)

    def test_exchanged(self) -> None:
        """A segment with other records of the same sizes, whose own checksums are sound."""
        self.filled()
        first = self.pieces()[0]
        sound = first.read_bytes()
        rows = [row for row in self.rows if row[2] < len(sound)]
        for shift, options in ((1024, {"endingOffsets": 3}), (0, {})):
            data, chain = b"", 0
            for row in rows:
                record, chain = pack_record(b"x" * len(row[7]), index=row[0], term=row[1], pos=row[2] + shift,
                                            previous_chain_crc=chain)
                data += record
            self.assertEqual(len(data), len(sound))
            first.write_bytes(data)
            self.refused(DamageError, str(first), "header does not fit" if shift else "SHA-256", **options)

    def test_empty(self) -> None:
        """An archive without a closed segment has no entry yet; nothing, or something else, is none."""
        self.ledger.append([b"one"])
        self.ledger.commit()
        target = self.mktemp()
        ship(self.path, target)
        self.assertEqual(scanned({"path": target}), [])
        self.archive = memory_url()
        self.refused(ReadError, f"{self.archive} holds no archive: there is no archive-0.json or archive-1")


class FindTests(ArchiveCase):
    """Records in the middle of a segment that is too long to be read from its begin."""

    def setUp(self) -> None:
        super().setUp()
        for name, value in (("_SURE_BYTES", 1200), ("_BACK_BYTES", 2400), ("_LOOK_BYTES", 300)):
            self.patch(archive_module, name, value)

    def make(self) -> Ledger:
        """With segments of 64 KiB."""
        ledger = Ledger(self.mktemp(), mapped_file_size_for_entry_data=65536,
                        mapped_file_size_for_entry_index=32 * 4096)
        self.addCleanup(ledger.close)
        return ledger

    def test_every_begin(self) -> None:
        """Each offset is found, and its proof is that of the directory, without reading what is before."""
        self.ledger.fill(900)
        self.ledger.commit()
        self.shipped()
        read: list[int] = []
        plain = ArchiveFiles.read

        def noting(files: ArchiveFiles, name: str, begin: int, end: int) -> bytes:
            read.append(end - begin)
            return plain(files, name, begin, end)

        with patch.object(ArchiveFiles, "read", noting):
            for index in range(0, len(self.rows) - 2, 37):
                given = {"path": self.archive, "startingOffsets": index, "endingOffsets": index + 2,
                         "fetchBytes": 1000}
                self.assertEqual(scanned(given), self.rows[index : index + 2])
                self.assertLess(sum(read), 16_000, index)
                read.clear()
        ours, theirs = Scan.of({"path": self.archive}).log(), Scan.of({"path": self.path}).log()
        self.addCleanup(ours.close)
        self.addCleanup(theirs.close)
        ours.extent()
        theirs.extent()
        for index in (0, 1, 333, len(self.rows) - 1, len(self.rows)):
            self.assertEqual(ours.proof(index), theirs.proof(index), index)

    def test_forged(self) -> None:
        """A body that looks like records with the right places is not taken for them."""
        position = 0
        for index in range(50):
            body, chain = b"", 7
            for number in range(19):  # (claiming to be the entries around this one, with sound checksums)
                place = position + 48 + len(body)
                record, chain = pack_record(b"x" * 10, index=max(index - 10 + number, 0), term=1, pos=place,
                                            previous_chain_crc=chain)
                body += record
            self.ledger.append([body])
            position += 48 + len(body)
        self.ledger.append([b"y" * 60_000, b"z"])
        self.ledger.commit()
        self.shipped()
        self.assertEqual(self.rows[49][2] + self.rows[49][3], position)
        for index in range(50):
            given = {"path": self.archive, "startingOffsets": index, "endingOffsets": index + 1}
            self.assertEqual(scanned(given), [self.rows[index]])


def flipped(path: Path, at: int) -> None:
    """Change a bit of a file."""
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)


def _zeroed(path: Path, chance: random.Random) -> None:
    data = bytearray(path.read_bytes())
    at = chance.randrange(len(data))
    while not any(data[at : at + 40]):
        at = chance.randrange(len(data))
    data[at : at + 40] = bytes(len(data[at : at + 40]))
    path.write_bytes(data)


def _shorter(path: Path, chance: random.Random) -> None:
    os.truncate(path, chance.randrange(path.stat().st_size))


def _swapped(path: Path, chance: random.Random) -> None:
    others = [other for other in path.parent.iterdir() if other != path and other.is_file()]
    shutil.copyfile(chance.choice(sorted(others)), path)


DAMAGE: dict[str, Callable[[Path, random.Random], object]] = {
    "missing": lambda path, chance: path.unlink(),
    "empty": lambda path, chance: os.truncate(path, 0),
    "shorter": _shorter,
    "shorter by one": lambda path, chance: os.truncate(path, path.stat().st_size - 1),
    "longer": lambda path, chance: path.write_bytes(path.read_bytes() + b"x"),
    "flipped": lambda path, chance: flipped(path, chance.randrange(path.stat().st_size)),
    "zeroed": _zeroed,
    "another file": _swapped,
}
FILES = (*SLOT_NAMES, "generations/last", "data/first", "data/middle", "data/last")


class DamageTests(ArchiveCase):
    """Each kind of file and of damage, each way to read: the rows are equal, or an error names a file."""

    def test_table(self) -> None:
        """Seeded; C{DLEDGER_ARCHIVE_SEEDS} makes more."""
        self.filled()
        sound = self.archive
        start = LogStreamReader(Scan.of({"path": sound, "startingOffsets": "20"}, is_stream=True))
        self.addCleanup(start.stop)
        begin = start.initialOffset()
        seeds = int(os.environ.get("DLEDGER_ARCHIVE_SEEDS", "1"))
        refused = 0
        for seed in range(seeds):
            for file in FILES:
                for kind in DAMAGE:
                    refused += self.damaged(sound, file, kind, begin, seed)
        # Only a manifest that lists fewer segments, as the other slot does, can be read at all.
        self.assertGreater(refused, seeds * len(FILES) * len(DAMAGE) * len(READINGS) * 3 // 4)

    def damaged(self, sound: str, file: str, kind: str, begin: dict[str, Any], seed: int) -> int:
        """Damage a copy, and read it in every way. @return: the number of errors."""
        self.archive = os.path.abspath(self.mktemp())
        shutil.copytree(sound, self.archive)
        path = self.manifests()[-1] if file.startswith("generations/") else Path(self.archive, file)
        if file.startswith("data/"):
            pieces = self.pieces()
            path = {"first": pieces[0], "middle": pieces[len(pieces) // 2], "last": pieces[-1]}[path.name]
        DAMAGE[kind](path, random.Random(f"{seed} {file} {kind}"))
        found = 0
        for name, reading in READINGS.items():
            with self.subTest(file=file, kind=kind, reading=name, seed=seed):
                wanted = [row[:4] if name == "batch-index" else row for row in self.rows]
                is_begun = name == "stream" and seed % 2 == 1
                try:
                    rows = reading(self.archive, f"{self.archive}-out", begin if is_begun else {})
                except Interrupted as interrupted:
                    self.assertEqual(interrupted.rows, self.rows[: len(interrupted.rows)])
                    self.assertIn(self.archive, str(interrupted.error))
                    self.assertIsInstance(interrupted.error, ReadError)
                    found += 1
                except ReadError as error:
                    self.assertIn(self.archive, str(error))
                    found += 1
                else:
                    self.assertEqual(rows, wanted[20:] if is_begun else wanted)
        return found

    def test_what_is_said(self) -> None:
        """The file, the place in it, what is wrong, and what can be done."""
        self.filled()
        first, second, *_ = self.pieces()
        newest = self.newest()
        size = second.stat().st_size
        flipped(second, 60)
        index = next(row[0] for row in self.rows if row[2] >= int(second.name[:20]))
        self.refused(DamageError, f"entry {index} is damaged: {second} at 0", "failOnDamage=false")
        os.truncate(second, 100)
        self.refused(DamageError, f"{second} at 100: it has 100 bytes, but the manifest lists it with {size}")
        second.unlink()
        self.refused(DamageError, f"{second} at 0: it is missing, but the manifest lists it")
        flipped(newest, 200)
        self.refused(DamageError, str(newest), "the manifest that is left ends with", "dledger archive again")
        for path in self.manifests():
            flipped(path, 100)
        self.refused(DamageError, *SLOT_NAMES, "no sound manifest")
        for path in self.manifests():
            path.unlink()
        self.refused(DamageError, f"{first} is there, but no manifest (archive-0.json or archive-1.json)")

    def test_is_skipped(self) -> None:
        """With C{failOnDamage=false} all other records are read, with warnings."""
        self.filled()
        _, second, third, *_ = self.pieces()
        newest = self.newest()
        flipped(second, 60)
        broken = next(row[0] for row in self.rows if row[2] >= int(second.name[:20]))
        third.unlink()
        begin, end = map(int, third.name.split("-"))
        left = [row for row in self.rows if row[0] != broken and not begin <= row[2] < end]
        for options in ({}, {"minPartitions": 9}, {"fetchBytes": 100}):
            said = self.warned()
            given = {"path": self.archive, "failOnDamage": "false", **QUICK, **options}
            self.assertEqual(scanned(given), left)
            self.assertIn("damaged entries were skipped", "; ".join(said))
        flipped(newest, 200)
        self.assertEqual(scanned(given), left)  # by the copy below generations
        flipped(max(Path(self.archive, "generations").iterdir()), 200)
        last = int(self.pieces()[-1].name[:20])
        self.assertEqual(scanned(given), [row for row in left if row[2] < last])
        self.assertIn("the manifest that is left ends with", "; ".join(said))


class OlderTests(ArchiveCase):
    """Manifests that went back, and segments that went by retention, without the log of a member."""

    def test_slots(self) -> None:
        """Older copies in both slots: the newer one below C{generations} is noticed, or counts."""
        self.filled(20)
        older = {path: path.read_bytes() for path in self.manifests()[:2]}
        self.ledger.fill(40)
        self.ledger.commit()
        self.shipped()
        for path, data in older.items():
            path.write_bytes(data)
        self.refused(DamageError, self.archive, "older copies")
        self.warned()
        self.assertEqual(scanned({"path": self.archive, "failOnDamage": "false", **QUICK}), self.rows)

    def test_went_back(self) -> None:
        """All manifests: a reader that has seen the newer ones notices."""
        self.filled(20)
        older = {path: path.read_bytes() for path in self.manifests()}
        self.ledger.fill(40)
        self.ledger.commit()
        self.shipped()
        log = Scan.of({"path": self.archive, **QUICK}).log()
        self.addCleanup(log.close)
        log.extent()
        for path in self.manifests():
            path.unlink()
        for path, data in older.items():
            path.write_bytes(data)
        self.assertIn("went back from generation", str(self.assertRaises(DamageError, log.extent)))

    def test_expired(self) -> None:
        """
        A reader that has planned with a segment that goes gets an error; C{failOnDataLoss=false} skips it.
        """
        self.ledger.fill(60)
        self.ledger.commit()
        self.ledger.store.parts.state.save()  # Up to there, the archive needs no entry.
        self.filled()
        given = {"path": self.archive, **QUICK}
        scans = [Scan.of({**given, "failOnDataLoss": word}) for word in ("true", "false")]
        logs = [scan.log() for scan in (*scans, *scans)]
        ends = [log.extent().end for log in logs]
        rule = ArchiveRetention(keep_bytes=1)
        place = opened_place(self.archive, OsDisk())
        gone = expire_archive(place, rule, now_s=0, deletes=True)
        self.assertGreater(gone.expired_segments, 3)
        for log in logs:
            self.addCleanup(log.close)
        self.assertRaises(DataLossError, logs[2].proof, 1)
        self.assertNotIn("term", logs[3].proof(1))
        error = self.assertRaises(DataLossError, list, logs[0].chunks(0, ends[0], with_data=True))
        self.assertIn("has expired in the archive meanwhile", str(error))
        said = self.warned()
        self.assertEqual([chunk.first for chunk in logs[1].chunks(0, ends[1], with_data=True)][0],
                         gone.begin_index)
        self.assertIn("has expired", "; ".join(said))
        self.refused(DataLossError, f"offsets 0..{gone.begin_index - 1} have expired", startingOffsets=0)


class StoreTests(ArchiveCase):
    """What a store, or its name, may do to a reader."""

    def test_names(self) -> None:
        """A kind of store that is not known or not installed, and options that do not fit."""
        self.archive = "nowhere://bucket/log"
        self.refused(OptionError, "option path='nowhere://bucket/log'", "s3://bucket", "Protocol not known")
        with patch.dict("sys.modules", {"fsspec": None}):
            self.archive = "s3://bucket/log"
            self.refused(OptionError, "pip install 'dledger[archive]'", "allowed are a directory")
        with patch.dict("sys.modules", {"s3fs": None}):
            self.refused(OptionError, "pip install 'dledger[s3]'", "s3fs")
        self.archive = self.mktemp()
        ship_nothing = {"path": self.archive, "archiveOptions": '{"a": 1}'}
        self.assertRaisesRegex(OptionError, "needs option archive, or", Scan.of, ship_nothing)
        error = self.assertRaises(OptionError, Scan.of, {"path": "s3://b/l", "archiveOptions": "key=secret"})
        self.assertIn("not an object of JSON", str(error))
        self.assertNotIn("secret", str(error))

    def test_another_group(self) -> None:
        """The manifest names the group; option C{group} must not name another one."""
        self.filled()
        set_group(self.path, "a" * 32)
        self.archive = self.mktemp()
        ship(self.path, self.archive)
        self.assertEqual(scanned({"path": self.archive}), self.rows)
        self.refused(ReadError, "is an archive of group 'default', and option group is 'g1'", group="g1")

    def test_later_version(self) -> None:
        """A manifest of a later version is no damage, and not read."""
        self.filled()
        for name in SLOT_NAMES:
            path = Path(self.archive, name)
            path.write_text(json.dumps({**json.loads(path.read_text()), "version": 2}))
        self.refused(ReadError, SLOT_NAMES[0], "version")

    def test_fails_for_a_while(self) -> None:
        """A call that fails is made again; a store that goes on failing is an error after the time."""
        self.filled()
        self.archive = memory_url()
        ship(self.path, self.archive)
        plain, left = MemoryFileSystem.cat_file, [0]

        def failing(files: MemoryFileSystem, *arguments: Any, **more: Any) -> Any:
            left[0] += 1
            if left[0] % 3 == 1 or left[0] > 1000:
                raise OSError("the store fails")
            return plain(files, *arguments, **more)

        with patch.object(MemoryFileSystem, "cat_file", failing):
            self.assertEqual(scanned({"path": self.archive}), self.rows)
            left[0] = 1000
            self.refused(ReadError, "the store fails", "requestTimeoutMs", requestTimeoutMs=1000)
