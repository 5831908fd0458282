# -*- test-case-name: tests.spark.test_decode -*-
"""C{--decode json} in exports: files and tables whose columns grow, and the same rows after any kill."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from deltalake import DeltaTable

from dledger.spark.export.decode import begin_fields
from dledger.spark.export.exporter import Exporter, ExportSettings, ExportSource
from dledger.spark.export.files import ExportError
from dledger.spark.export.json_fields import RESCUED
from dledger.spark.export.tables import open_export
from protocols.wire.ledger.envelopes import envelope_head
from tests.spark.ledgers import plain_rows
from tests.spark.tables import KINDS, KillCase, Killed, TableCase, commits, iceberg, read_table
from tests.spark.test_json_fields import drawn_body, facts_of, found_again

FILES = ""


def settings_of(kind: str, **more: Any) -> ExportSettings:
    """Decoded, with the index alone."""
    return ExportSettings(**{"to": kind, "decode": "json", "columns": ("index",), **more})


def open_decoded(path: str, out: Path, settings: ExportSettings, **options: str) -> Exporter:
    """An export of the ledger at C{path}."""
    source = ExportSource.of(
        {"path": path, **options}, settings.columns, settings.partition_by, needed=settings.needed
    )
    return open_export(out, source, settings)


def read(kind: str, out: Path) -> pa.Table:
    """All rows in order, whatever holds them."""
    if kind:
        return read_table(kind, out)
    paths = sorted(out.rglob("part-*.parquet"))
    schema = pa.unify_schemas([pq.read_schema(path) for path in paths])
    return ds.dataset(paths, schema=schema).to_table().sort_by("index")


def fields_recorded(kind: str, out: Path) -> dict[str, str]:
    """The columns that the newest commit records."""
    if kind:
        return dict(commits(kind, out)[-1][1]["fields"])
    return dict(json.loads((out / "_export.json").read_text())["fields"])


class DecodeCase(TableCase):
    """JSON in the ledger."""

    def add(self, *bodies: object) -> None:
        """Committed entries."""
        self.ledger.append([one if isinstance(one, bytes) else json.dumps(one).encode() for one in bodies])
        self.ledger.commit()

    def run_once(self, kind: str, out: Path, settings: ExportSettings | None = None, **options: str) -> int:
        """Export to the end; rows."""
        with open_decoded(self.ledger.path, out, settings or settings_of(kind), **options) as exporter:
            exporter.step(0, is_last=True)
            return exporter.progress.rows

    def check(self, kind: str, out: Path) -> None:
        """Each row is there once, and says what its body says."""
        found = read(kind, out).to_pylist()
        expected = plain_rows(self.ledger.path)
        self.assertEqual([row["index"] for row in found], [row[0] for row in expected])
        kinds = fields_recorded(kind, out)
        for row, entry in zip(found, expected, strict=True):
            self.assertEqual(found_again(row, kinds), facts_of(entry[7]))


class GrowthTests(DecodeCase):
    """Columns that are there when a field first comes."""

    def test_growth(self) -> None:
        """New fields in a part, in later parts and in later runs are columns; earlier rows have null."""
        for kind in (*KINDS, FILES):
            with self.subTest(kind=kind):
                out = self.out(kind)
                first = self.ledger.store.ledger_end_index + 1
                self.add({"a": 1}, {"a": 2, "b": "x"}, {"a": "no"})
                self.run_once(kind, out, settings_of(kind, part_bytes=1), fetchBytes="1")
                self.add({"c": [1]}, {"b": "y", "a": 3})
                self.run_once(kind, out)
                self.assertEqual(self.run_once(kind, out), 0)
                self.check(kind, out)
                table = read(kind, out)
                self.assertEqual(table.schema.names, ["index", RESCUED, "a", "b", "c"])
                rows = [row for row in table.to_pylist() if row["index"] >= first]
                self.assertEqual([tuple(row.values())[1:] for row in rows], [
                    (None, 1, None, None), (None, 2, "x", None), ('{"a":"no"}', None, None, None),
                    (None, None, None, "[1]"), (None, 3, "y", None),
                ])

    def test_growth_in_a_part(self) -> None:
        """A part whose columns grow is one commit, of several files if there are files."""
        self.add(*({f"f{number // 8}": number} for number in range(20)))
        for kind in (*KINDS, FILES):
            with self.subTest(kind=kind):
                out = self.out(kind)
                self.run_once(kind, out, settings_of(kind), fetchBytes="1")
                self.check(kind, out)
                if kind:
                    ranges = [text for text, _ in commits(kind, out)]
                    self.assertLess(len(ranges), 20)
                names = sorted(path.name for path in out.glob("part-*.parquet"))
                if kind == "iceberg":
                    continue
                self.assertTrue(any("-00001.parquet" in name for name in names), names)

    def test_one_commit(self) -> None:
        """No version of a table has rows whose columns it lacks; Iceberg has both in one commit."""
        self.add({"a": 1})
        for kind in KINDS:
            self.run_once(kind, self.path_of(kind))
        self.add({"b": 1})
        for kind in KINDS:
            self.run_once(kind, self.path_of(kind))
        delta = DeltaTable(self.path_of("delta"))
        seen = []
        for version in range(delta.version() + 1):
            delta.load_as_version(version)
            seen.append((delta.schema().to_arrow().names[2:], delta.to_pyarrow_table().num_rows))
        self.assertEqual(seen, [([], 0), (["a"], 0), (["a"], 1), (["a", "b"], 1), (["a", "b"], 2)])
        table = iceberg(self.path_of("iceberg"))
        counts = [len(table.schemas()[one.schema_id].fields) for one in table.snapshots()]
        self.assertEqual(counts, [3, 4])

    def path_of(self, kind: str) -> Path:
        """One path for each kind."""
        if not hasattr(self, "_base"):
            self._base = self.mktemp()
        return Path(f"{self._base}-{kind}")

    def test_partitions_and_days(self) -> None:
        """Beside partitions, times and days of the log, of which fields cannot take the names."""
        heads = [envelope_head(1_767_225_600_000 + number, {}) for number in range(4)]
        bodies = [{"timestamp": 5, "storeTimestamp": 6, "day": 7, "n": number} for number in range(4)]
        self.add(*(head + json.dumps(body).encode() for head, body in zip(heads, bodies, strict=True)))
        for kind in (*KINDS, FILES):
            with self.subTest(kind=kind):
                out = self.out(kind)
                settings = settings_of(kind, columns=("index", "term", "timestamp"), partition_by=("term",))
                self.run_once(kind, out, settings, envelopes="true")
                table = read(kind, out)
                self.assertEqual(table.column("n").to_pylist(), [0, 1, 2, 3])
                rescued = ['{"timestamp":5,"day":7}' if kind else '{"timestamp":5}'] * 4
                self.assertEqual(table.column(RESCUED).to_pylist(), rescued)
                self.assertEqual(table.column("storeTimestamp").to_pylist(), [6] * 4)

    def test_day(self) -> None:
        """A table without days has no field of that name either; files may."""
        for kind in (*KINDS, FILES):
            out = self.out(kind)
            for number in range(2):
                self.add({"day": number, "timestamp": "x"})
                self.run_once(kind, out)
            self.check(kind, out)
            names = read(kind, out).schema.names
            self.assertEqual(names, ["index", RESCUED, *([] if kind else ["day"]), "timestamp"])

    def test_body(self) -> None:
        """All columns of the log, the body too, are there unless columns are chosen."""
        self.add({"a": 1})
        for kind in (*KINDS, FILES):
            out = self.out(kind)
            self.run_once(kind, out, settings_of(kind, columns=()))
            self.assertEqual(read(kind, out).column("body").to_pylist(), [b'{"a": 1}'])
            self.assertEqual(read(kind, out).schema.names[:2], ["index", "term"])

    def test_chosen_types(self) -> None:
        """C{--field} makes columns before any row, with types that the first value would not give."""
        self.add({"price": 1}, {"price": 1.5})
        for kind in (*KINDS, FILES):
            with self.subTest(kind=kind):
                out = self.out(kind)
                wanted = (("price", "DOUBLE"), ("later", "JSON"))
                self.run_once(kind, out, settings_of(kind, fields=wanted))
                self.assertEqual(read(kind, out).column("price").to_pylist(), [1.0, 1.5])
                self.assertEqual(fields_recorded(kind, out), dict(wanted))
                self.run_once(kind, out, settings_of(kind, fields=(("more", "STRING"),)))
                with self.assertRaisesRegex(ExportError, "has it as DOUBLE"):
                    self.run_once(kind, out, settings_of(kind, fields=(("price", "BIGINT"),)))
                with self.assertRaisesRegex(ExportError, "not given|decode"):
                    self.run_once(kind, out, ExportSettings(to=kind, columns=("index",)))

    def test_reserved_later(self) -> None:
        """A field that is a column cannot become a column of the log."""
        self.add({"Term": 1})
        for kind in KINDS:
            out = self.out(kind)
            self.run_once(kind, out)
            with self.assertRaisesRegex(ExportError, "column Term, a field of the bodies: term cannot be"):
                self.run_once(kind, out, settings_of(kind, columns=("index", "term")))

    def test_dropped(self) -> None:
        """A column that somebody has dropped or made another is noticed."""
        self.add({"a": 1})
        out = self.out("iceberg")
        self.run_once("iceberg", out)
        with iceberg(out).update_schema() as change:
            change.delete_column("a")
        with self.assertRaisesRegex(ExportError, "has no column a any more"):
            self.add({"b": 1})
            self.run_once("iceberg", out)

    def test_begin_fields(self) -> None:
        """What C{--field} refuses."""
        class Target:
            fields = (("a", "BIGINT"),)

        for wanted, part in (
            (("x", "INT"), "allowed types are BIGINT"), (("x y", "STRING"), "a column has up to 128"),
            (("A", "BIGINT"), "there is a column a"), (("INDEX", "BIGINT"), "there is a column index"),
            (("_Rescued", "BIGINT"), "there is a column _rescued"),
        ):
            with self.assertRaisesRegex(ExportError, part):
                begin_fields(Target(), [wanted], ("index",))

    def test_settings(self) -> None:
        """What does not go together."""
        for more, part in (
            ({"decode": "avro"}, "allowed are json"), ({"format": "jsonl"}, "lines of JSON have none"),
            ({"decode": "", "fields": (("a", "STRING"),)}, "which is not given"),
        ):
            with self.assertRaisesRegex(ExportError, part):
                settings_of("", **more)


class DecodeKillTests(KillCase, DecodeCase):
    """Hostile bodies, and runs that end anywhere: the rows are those of a run that nobody ends."""

    def test_kills(self) -> None:
        """Rows and columns are the same, each row once."""
        kills = int(os.environ.get("DLEDGER_TABLE_KILLS", "50")) // 2
        chance = random.Random(int(os.environ.get("DLEDGER_TABLE_SEED", "1")))
        for kind in (*KINDS, FILES):
            out, count = self.out(kind), 0
            self.killed_at.clear()
            while count < kills:
                exporter = None
                try:
                    self.left = chance.randrange(1, 6 if count < 5 else 16)
                    exporter = open_decoded(
                        self.ledger.path, out, settings_of(kind, part_bytes=chance.choice((1, 2**20))),
                        fetchBytes=str(chance.choice((1, 300))),
                    )
                    exporter.step(0, is_last=True)
                except Killed:
                    count += 1
                    self.killed(exporter)
                else:
                    exporter.close()
                    self.left = 0
                    bodies = [drawn_body(chance)[:400] for _ in range(chance.randrange(2, 6))]
                    new = [{f"new{chance.randrange(99)}": chance.randrange(9)} for _ in range(3)]
                    self.add(new[0], *bodies, *new[1:])
            self.left = 0
            self.run_once(kind, out)
            self.check(kind, out)
            fresh = self.out(kind)
            self.run_once(kind, fresh)
            self.assertEqual(read(kind, out).to_pylist(), read(kind, fresh).to_pylist())
            self.assertEqual(fields_recorded(kind, out), fields_recorded(kind, fresh))
            names = {"delta": {"before add_columns", "after add_columns"}, "iceberg": {"after commit_table"},
                     FILES: {"before rename", "after rename"}}
            self.assertTrue(names[kind] & self.killed_at, (kind, self.killed_at))

    def test_between_columns_and_rows(self) -> None:
        """A Delta table that has got its columns, but no rows: the same rows come."""
        out = self.out("delta")
        self.add({"a": 1})
        self.run_once("delta", out)
        self.add({"b": 1, "c": "x"})
        exporter = open_decoded(self.ledger.path, out, settings_of("delta"))
        with self.assertRaises(Killed):
            self.die_at = "after add_columns"
            exporter.step(0, is_last=True)
        self.killed(exporter)
        self.die_at = ""
        self.assertEqual(read("delta", out).schema.names, ["index", RESCUED, "a", "b", "c"])
        self.run_once("delta", out)
        self.check("delta", out)
