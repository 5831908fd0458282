# -*- test-case-name: tests.spark.test_scan -*-
"""A scan of a directory gives every committed entry once, value by value, and nothing else."""

from __future__ import annotations

import os
import random
import shutil
import struct
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
from twisted.trial.unittest import SynchronousTestCase

from dledger.base.disk.disk import OsDisk
from dledger.base.disk.two_slots import SLOT_SIZE
from dledger.spark.formats.log import DamageError, DataLossError, LogPart, ReadError, ScanWarning, halved
from dledger.spark.formats.option_texts import OptionError
from dledger.spark.ledger import ends
from dledger.spark.scans.scan import Scan
from dledger.storage.files.commit_mark import encode_mark, read_mark
from tests.spark.ledgers import Ledger, plain_rows, scanned
from tests.storage.support import flush


class LedgerCase(SynchronousTestCase):
    """A ledger in a directory of its own."""

    def setUp(self) -> None:
        self.ledger = self.make()
        self.path = self.ledger.path

    def make(self, **options: Any) -> Ledger:
        """A new one."""
        ledger = Ledger(self.mktemp(), **options)
        self.addCleanup(ledger.close)
        return ledger

    def warned(self) -> list[str]:
        """What scans said from now on; the list grows."""
        said: list[str] = []
        catcher = warnings.catch_warnings()
        catcher.__enter__()
        self.addCleanup(catcher.__exit__, None, None, None)
        warnings.simplefilter("always")

        def show(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
            if issubclass(category, ScanWarning):
                said.append(str(message))

        warnings.showwarning = show
        return said


class ReadTests(LedgerCase):
    """Value by value."""

    def test_mixed(self) -> None:
        """Many files, blanks, empty bodies, several terms, with and without checksums; and an open end."""
        self.ledger.fill(300)
        self.ledger.append_without_checksums([b"java", b"", bytes(200)], term=20)
        self.ledger.append([b"behind the commit"] * 5, term=20)
        self.ledger.commit(302)
        expected = plain_rows(self.path, 303)
        self.assertEqual(len(expected), 303)
        self.assertGreater(len(os.listdir(f"{self.path}/data")), 20)
        self.assertGreater(len(os.listdir(f"{self.path}/index")), 20)
        for options in (
            {}, {"fetchBytes": 1}, {"fetchBytes": 300}, {"minPartitions": 7}, {"partitionBytes": 1000},
            {"maxRecordsPerPartition": 11}, {"verifyCrc": "true"}, {"minPartitions": 10_000},
        ):
            with self.subTest(**options):
                self.assertEqual(scanned({"path": self.path, **options}), expected)

    def test_nothing(self) -> None:
        """A new ledger, and one of which nothing is known to be committed, have no rows."""
        self.assertEqual(scanned({"path": self.path}), [])
        self.ledger.append([b"a", b"b"])
        self.assertEqual(scanned({"path": self.path}), [])
        self.assertEqual(Scan.of({"path": self.path}).extent().begin, 0)

    def test_one(self) -> None:
        """One entry without a body."""
        self.ledger.append([b""])
        self.ledger.commit()
        self.assertEqual(scanned({"path": self.path}), plain_rows(self.path))
        self.assertEqual(len(scanned({"path": self.path})), 1)

    def test_stopped(self) -> None:
        """A stopped member's directory reads as a live one's; nothing in it is touched."""
        self.ledger.fill(60)
        self.ledger.commit(50)
        live = scanned({"path": self.path})
        self.ledger.store.clean_close()
        before = {path: path.read_bytes() for path in Path(self.path).rglob("*") if path.is_file()}
        self.assertEqual(scanned({"path": self.path}), live)
        after = {path: path.read_bytes() for path in Path(self.path).rglob("*") if path.is_file()}
        self.assertEqual(before, after)

    def test_older_mark(self) -> None:
        """Marks of a stopped member beside files that are newer are noticed, not taken for the end."""
        self.ledger.fill(60)
        self.ledger.commit()
        self.ledger.store.clean_close()
        names = [name for name in os.listdir(self.path) if os.path.isfile(f"{self.path}/{name}")]
        older = {name: Path(self.path, name).read_bytes() for name in names}
        again = Ledger(os.path.dirname(self.path.rstrip("/")))
        self.addCleanup(again.close)
        again.fill(40, seed=2)
        again.commit()
        self.assertEqual(len(scanned({"path": self.path})), 100)
        again.store.clean_close()
        self.assertEqual(len(scanned({"path": self.path})), 100)
        for name, content in older.items():
            Path(self.path, name).write_bytes(content)
        error = self.assertRaises(DamageError, scanned, {"path": self.path})
        self.assertIn("this member was stopped at entry 59, and the files have later ones", str(error))
        said = self.warned()
        self.assertEqual(len(scanned({"path": self.path, "failOnDamage": "false"})), 60)
        self.assertIn("is an older copy", said[0])

    def test_projection(self) -> None:
        """Some columns, in the user's order; without a body, and from the index alone."""
        self.ledger.fill(80)
        self.ledger.commit()
        rows = plain_rows(self.path)
        for names, columns in (
            (("body", "index"), (7, 0)), (("size", "pos", "term", "index"), (3, 2, 1, 0)),
            (("chain_crc",), (5,)), (("BODY_CRC", "Channel"), (6, 4)),
        ):
            types = ("bigint", "BIGINT", "bigint", "int", "int", "int", "int", "binary")
            wanted = [(name, types[column]) for name, column in zip(names, columns, strict=True)]
            with self.subTest(names=names):
                expected = [tuple(row[column] for column in columns) for row in rows]
                self.assertEqual(scanned({"path": self.path}, wanted), expected)

    def test_data_is_not_opened_for_the_index(self) -> None:
        """Columns that stand in the index cost nothing but the index."""
        self.ledger.fill(40)
        self.ledger.commit()
        rows = [row[:2] for row in plain_rows(self.path)]
        scan = Scan.of({"path": self.path}, wanted=[("index", "bigint"), ("term", "bigint")])
        (part,) = scan.parts(0, 40)
        found = []
        log = scan.log()
        self.addCleanup(log.close)
        for chunk in log.chunks(part.begin, part.end, with_data=False):
            self.assertIsNone(chunk.data)
        for batch in scan.batches(part):
            found += list(zip(*[column.to_pylist() for column in batch.columns], strict=True))
        self.assertEqual(found, rows)

    def test_parts_have_the_size(self) -> None:
        """Parts are cut by bytes: none is much larger than was asked for, and they are few."""
        self.ledger.append([bytes(10)] * 200)
        self.ledger.append([bytes(900)] * 40)
        self.ledger.commit()
        parts = Scan.of({"path": self.path, "partitionBytes": "8000"}).parts(0, 240)
        self.assertLessEqual(max(part.size_bytes for part in parts), 12_000)
        self.assertLess(len(parts), 3 * sum(part.size_bytes for part in parts) // 8000)
        self.assertEqual((parts[0].begin, parts[-1].end), (0, 240))

    def test_parts_of_skewed_entries(self) -> None:
        """A few large entries among many small ones do not make many small parts."""
        self.ledger.append([bytes(1)] * 300)
        self.ledger.append([bytes(900)] * 8)
        self.ledger.append([bytes(1)] * 300)
        self.ledger.commit()
        parts = Scan.of({"path": self.path, "minPartitions": "4"}).parts(0, 608)
        sizes = [part.size_bytes for part in parts]
        self.assertEqual(len(parts), 4)
        self.assertLess(max(sizes), 3 * min(sizes))

    def test_offsets(self) -> None:
        """C{startingOffsets} is inclusive, C{endingOffsets} exclusive; what is not there is an error."""
        self.ledger.fill(50)
        self.ledger.commit(39)

        def indexes(**options: object) -> list[int]:
            return [row[0] for row in scanned({"path": self.path, **options})]

        self.assertEqual(indexes(startingOffsets=7, endingOffsets=9), [7, 8])
        self.assertEqual(indexes(startingOffsets="latest"), [])
        self.assertEqual(indexes(startingOffsets='{"default": 38}'), [38, 39])
        self.assertEqual(indexes(STARTINGOFFSETS=39, endingOffsets="LATEST"), [39])
        self.assertRaisesRegex(OptionError, "endingOffsets=41 is after the committed end 40",
                               indexes, endingOffsets=41)
        self.assertRaisesRegex(OptionError, "startingOffsets=9 is after the end 8",
                               indexes, startingOffsets=9, endingOffsets=8)

    def test_a_range_that_has_expired(self) -> None:
        """A range of which nothing is left is a loss, or has no rows on request; an empty one is empty."""
        self.ledger.fill(300)
        self.ledger.commit(299)
        begin = self.ledger.expire(5)
        self.assertGreater(begin, 9)

        def indexes(**options: object) -> list[int]:
            return [row[0] for row in scanned({"path": self.path, **options})]

        for starting in ({}, {"startingOffsets": 0}, {"startingOffsets": "earliest"}):
            with self.assertRaisesRegex(DataLossError, "offsets 0..8 have expired"):
                indexes(endingOffsets=9, **starting)
            said = self.warned()
            self.assertEqual(indexes(endingOffsets=9, failOnDataLoss="false", **starting), [])
            self.assertIn("offsets 0..8 have expired", said[0])
        self.assertEqual(indexes(startingOffsets=3, endingOffsets=3), [])
        self.assertEqual(indexes(endingOffsets=0), [])
        self.assertRaisesRegex(OptionError, "startingOffsets=7 is after the end 5",
                               indexes, startingOffsets=7, endingOffsets=5)

    def test_wrong_places(self) -> None:
        """What is not a member's directory is refused with a sentence."""
        empty = os.path.abspath(self.mktemp())
        os.makedirs(empty)
        for path, words in (
            (os.path.dirname(self.path), "holds members' directories"),
            (os.path.dirname(os.path.dirname(self.path)), "name one of them .*/dledger-"),
            (f"{self.path}/nowhere", "does not exist"), (empty, "is not a member's directory"),
        ):
            with self.subTest(path=path):
                self.assertRaisesRegex(ReadError, words, Scan.of({"path": path}).extent)
        self.assertRaisesRegex(OptionError, "mounted file system", Scan.of,
                               {"path": "d", "dataPath": "s3://bucket/dir"})


class DamageTests(LedgerCase):
    """Damage is an error with a place, or skipped with a count; never a wrong row."""

    def setUp(self) -> None:
        super().setUp()
        self.ledger.fill(60)
        self.ledger.commit()
        self.rows = plain_rows(self.path)
        self.bad = self.rows[33]

    def spoil(self, at: int, word: bytes) -> tuple[str, int]:
        """Overwrite bytes of entry 33's record; returns file and offset of the record."""
        size = self.ledger.config.mapped_file_size_for_entry_data
        name = f"{self.path}/data/{self.bad[2] // size * size:020d}"
        with open(name, "r+b") as file:
            file.seek(self.bad[2] % size + at)
            file.write(word)
        return name, self.bad[2] % size

    def test_headers(self) -> None:
        """Each field that can be held against something is."""
        others = [row for row in self.rows if row[0] != 33]
        original = struct.pack(">iiqqqiiii", 1, *[self.bad[column] for column in (3, 0, 1, 2, 4, 5, 6)],
                               len(self.bad[7]))
        for name, at, word in (
            ("magic", 0, b"\0\0\0\2"), ("size", 4, b"\0\0\0\1"), ("index", 8, bytes(8)),
            ("term", 16, bytes(8)), ("pos", 24, b"\1" * 8), ("body_length", 44, b"\x7f\xff\xff\xff"),
        ):
            with self.subTest(name=name):
                file, offset = self.spoil(at, word)
                error = self.assertRaises(DamageError, scanned, {"path": self.path})
                self.assertIn(f"entry 33 is damaged: {file} at {offset}:", str(error))
                said = self.warned()
                self.assertEqual(scanned({"path": self.path, "failOnDamage": "false"}), others)
                self.assertEqual(said, ["1 damaged entries were skipped"])
                self.spoil(0, original)
        self.assertEqual(scanned({"path": self.path}), self.rows)

    def test_body(self) -> None:
        """A flipped bit in a body is found by C{verifyCrc}; so is a checksum that was wiped out."""
        self.bad = next(row for row in self.rows if row[0] >= 33 and row[7])
        self.spoil(48, bytes([self.bad[7][0] ^ 1]))
        scanned({"path": self.path})
        error = self.assertRaises(DamageError, scanned, {"path": self.path, "verifyCrc": "true"})
        self.assertIn(f"entry {self.bad[0]} is damaged", str(error))
        self.assertIn("body_crc", str(error))
        found = scanned({"path": self.path, "verifyCrc": "true", "failOnDamage": "false"})
        self.assertEqual(found, [row for row in self.rows if row[0] != self.bad[0]])
        self.spoil(48, self.bad[7][:1])
        scanned({"path": self.path, "verifyCrc": "true"})
        for at, size in ((36, 4), (40, 4), (36, 8), (32, 1)):
            file, offset = self.spoil(at, b"\1" if size == 1 else bytes(size))
            error = self.assertRaises(DamageError, scanned, {"path": self.path, "verifyCrc": "true"})
            self.assertRegex(str(error), f"entry ({self.bad[0]}|{self.bad[0] + 1}) is damaged")
            self.spoil(32, struct.pack(">iii", *self.bad[4:7]))

    def test_without_checksums(self) -> None:
        """Java's records have none, and there is nothing to compare; ours may follow them."""
        self.ledger.append_without_checksums([b"java", b""], term=9)
        self.ledger.append([b"ours", b"too"], term=9)
        self.ledger.commit()
        for options in ({}, {"fetchBytes": "1"}):
            found = scanned({"path": self.path, "verifyCrc": "true", **options})
            self.assertEqual(found, plain_rows(self.path))

    def test_index(self) -> None:
        """An index unit that is not sound: entry and index file are named; or one entry is skipped."""
        size = self.ledger.config.mapped_file_size_for_entry_index
        name = f"{self.path}/index/{33 * 32 // size * size:020d}"
        with open(name, "r+b") as file:
            file.seek(33 * 32 % size)
            file.write(bytes(32))
        # The one look at the end finds the end by halving; hold it where it was.
        error = self.assertRaises(DamageError, scanned, {"path": self.path})
        self.assertIn(f"entry 33 cannot be read: {name} at {33 * 32 % size}", str(error))
        said = self.warned()
        self.assertEqual(scanned({"path": self.path, "failOnDamage": "false"}),
                         [row for row in self.rows if row[0] != 33])
        self.assertIn("1 entries without a sound index unit were skipped", said[0])

    def test_sizes_in_the_index(self) -> None:
        """A unit that does not reach to the next one, or reaches beyond its file, also without the data."""
        wanted = [("index", "bigint"), ("size", "int")]
        size = self.ledger.config.mapped_file_size_for_entry_index
        data_size = self.ledger.config.mapped_file_size_for_entry_data
        last = next(row[0] for row, after in zip(self.rows[33:], self.rows[34:], strict=False)
                    if row[2] // data_size != after[2] // data_size)
        for index, word in ((33, 1), (33, -1), (33, 4000), (last, 4000)):
            with self.subTest(index=index, word=word):
                with open(f"{self.path}/index/{index * 32 // size * size:020d}", "r+b") as file:
                    file.seek(index * 32 % size + 12)
                    original = file.read(4)
                    file.seek(-4, os.SEEK_CUR)
                    file.write(struct.pack(">i", self.rows[index][3] + word))
                    file.flush()
                    for columns in (None, wanted):
                        error = self.assertRaises(DamageError, scanned, {"path": self.path}, columns)
                        self.assertIn(f"entry {index} cannot be read: {self.path}/index/", str(error))
                    self.warned()
                    found = scanned({"path": self.path, "failOnDamage": "false"}, wanted)
                    self.assertEqual(found, [(row[0], row[3]) for row in self.rows if row[0] != index])
                    file.seek(index * 32 % size + 12)
                    file.write(original)


class CutTests(SynchronousTestCase):
    """A range in parts."""

    def test_positions_that_are_wrong(self) -> None:
        """Parts are cut all the same, and are whole: reading them shows the damage."""
        for seed in range(300):
            rng = random.Random(seed)
            count = rng.randrange(1, 40)
            positions = [rng.randrange(5000) if rng.random() < 0.2 else 100 * at for at in range(count + 1)]
            options: Any = SimpleNamespace(
                min_partitions=rng.choice((0, 7)), processors=2, partition_bytes=rng.choice((150, 10_000)),
                max_records_per_partition=0,
            )
            log: Any = SimpleNamespace(position_of=positions.__getitem__)
            edges = [0]
            for part in halved(log, options, 0, count):
                self.assertEqual(part.begin, edges[-1])
                self.assertGreater(part.end, part.begin)
                edges.append(part.end)
            self.assertEqual(edges[-1], count)


class LiveTests(LedgerCase):
    """A member changes its files while they are looked at."""

    def setUp(self) -> None:
        super().setUp()
        self.ledger.fill(60)
        self.ledger.commit()

    def between_looks(self, change: Callable[[], object]) -> list[float]:
        """Do this before the second look; the pauses so far."""
        pauses: list[float] = []

        def pause(seconds: float) -> None:
            if not pauses:
                change()
            pauses.append(seconds)

        self.patch(ends.time, "sleep", pause)
        return pauses

    def test_a_contradiction_that_passes(self) -> None:
        """A mark that is being written, and Java's checkpoint that is being replaced, are looked at again."""
        mark, checkpoint = Path(f"{self.path}/commitmark"), Path(f"{self.path}/checkpoint")
        content = mark.read_bytes()
        mark.write_bytes(content[:40] + bytes(16) + content[56:])
        pauses = self.between_looks(lambda: mark.write_bytes(content))
        self.assertEqual(Scan.of({"path": self.path}).extent().end, 60)
        self.assertEqual(len(pauses), 1)
        mark.unlink()
        checkpoint.rename(f"{self.path}/checkpoint.tmp")
        pauses = self.between_looks(lambda: Path(f"{self.path}/checkpoint.tmp").rename(checkpoint))
        self.assertEqual(Scan.of({"path": self.path}).extent().end, 60)
        self.assertEqual(len(pauses), 1)

    def test_a_contradiction_that_stays(self) -> None:
        """It counts when the second look at the same files finds it again."""
        mark = Path(f"{self.path}/commitmark")
        content = mark.read_bytes()
        mark.write_bytes(content[:40] + bytes(16) + content[56:])
        pauses = self.between_looks(lambda: None)
        error = self.assertRaises(DamageError, Scan.of({"path": self.path}).extent)
        self.assertIn(f"{mark} at 0: this slot of the commit mark is not sound", str(error))
        self.assertEqual(len(pauses), 1)

    def test_nothing_says_how_far(self) -> None:
        """Entries without a mark and a checkpoint are an error, not an empty log."""
        for name in ("commitmark", "checkpoint"):
            os.unlink(f"{self.path}/{name}")
        self.patch(ends, "PASSING_S", 0.0)
        error = self.assertRaises(ReadError, Scan.of({"path": self.path}).extent)
        self.assertIn("neither commitmark nor checkpoint is there", str(error))

    def test_a_checkpoint_older_than_the_files(self) -> None:
        """Without our mark it may name too few entries: an error, which names the mark."""
        os.unlink(f"{self.path}/commitmark")
        self.patch(ends, "PASSING_S", 0.0)
        self.assertEqual(Scan.of({"path": self.path}).extent().end, 60)
        self.ledger.append([b"committed, perhaps"])
        flush(self.ledger.store)
        error = self.assertRaises(DamageError, Scan.of({"path": self.path}).extent)
        self.assertIn("commitmark: the commit mark of this directory is missing", str(error))
        self.assertIn("ends at entry 59, is older than the files", str(error))

    def test_a_malformed_checkpoint(self) -> None:
        """It may have named more entries than our mark does, so it is not passed over; or on request."""
        Path(f"{self.path}/checkpoint").write_text("committedIndex=x\n")
        error = self.assertRaises(DamageError, scanned, {"path": self.path})
        self.assertIn(f"{self.path}/checkpoint at 0: the checkpoint is malformed", str(error))
        said = self.warned()
        self.assertEqual(scanned({"path": self.path, "failOnDamage": "false"}), plain_rows(self.path, 60))
        self.assertIn("the checkpoint is malformed", said[0])

    def test_repairing(self) -> None:
        """A member that has lost entries and fetches them is no source until it has them."""
        name = f"{self.path}/commitmark"
        found = read_mark(OsDisk(), name)
        assert found is not None
        mark = attrs.evolve(found[1], committed_index=30, end_index=30, repair_end_index=59)
        Path(name).write_bytes(2 * encode_mark(mark, 99).ljust(SLOT_SIZE, b"\0"))
        self.patch(ends, "PASSING_S", 0.0)
        error = self.assertRaises(ReadError, Scan.of({"path": self.path}).extent)
        self.assertIn("the member is repairing: entries up to 59 were lost", str(error))


class ExpiryTests(LedgerCase):
    """Files that expire while they are read."""

    def setUp(self) -> None:
        super().setUp()
        self.ledger.fill(120)
        self.ledger.commit()
        self.rows = plain_rows(self.path)

    def expire(self, files: int) -> int:
        """Remove the oldest data files, as a live member does; the first index still there."""
        return self.ledger.expire(files)

    def test_before(self) -> None:
        """C{earliest} is what is still there; a named offset before it is lost."""
        first = self.expire(3)
        self.assertEqual(scanned({"path": self.path}), plain_rows(self.path))
        options = {"path": self.path, "startingOffsets": "2"}
        error = self.assertRaises(DataLossError, scanned, options)
        self.assertIn(f"offsets 2..{first - 1} have expired; the first one still there is {first}",
                      str(error))
        said = self.warned()
        self.assertEqual(scanned({**options, "failOnDataLoss": "false"}), plain_rows(self.path))
        self.assertEqual(len(said), 1)

    def test_during(self) -> None:
        """Between planning and reading: an error, or the rest."""
        strict, loose = Scan.of({"path": self.path}), Scan.of({"path": self.path, "failOnDataLoss": "false"})
        parts = strict.parts(0, 120)
        first = self.expire(4)
        self.assertRaises(DataLossError, lambda: [list(strict.batches(part)) for part in parts])
        said = self.warned()
        indexes = [index for part in parts for batch in loose.batches(part)
                   for index in batch.column(0).to_pylist()]
        self.assertEqual(indexes, list(range(first, 120)))
        self.assertIn(f"0..{first - 1} have expired", said[0])

    def test_under_the_hand(self) -> None:
        """Files that go while a part is being read."""
        scan = Scan.of({"path": self.path, "fetchBytes": "200", "failOnDataLoss": "false"})
        batches = scan.batches(LogPart(begin=0, end=120, size_bytes=0))
        seen = next(batches).column(0).to_pylist()
        self.warned()
        first = self.expire(6)
        for batch in batches:
            seen += batch.column(0).to_pylist()
        # The file that was open stays readable; after it reading goes on where the ledger begins now.
        self.assertEqual(seen, [*range(seen.index(first)), *range(first, 120)])
        self.assertLess(seen.index(first), first)

    def test_a_file_that_is_missing_in_the_middle(self) -> None:
        """That is damage, not expiry."""
        names = sorted(os.listdir(f"{self.path}/data"))
        shutil.move(f"{self.path}/data/{names[5]}", f"{self.path}/elsewhere")
        error = self.assertRaises(DamageError, scanned, {"path": self.path})
        self.assertIn("the data file that it names is not there", str(error))
