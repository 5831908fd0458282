# -*- test-case-name: tests.spark.test_tables_cli -*-
"""C{dledger export --to}: killed and started again, its refusals, and the recipes of the reference."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import sqlite3
import sys
import textwrap
import time
from contextlib import redirect_stdout
from pathlib import Path

import pyarrow as pa
from click.testing import CliRunner
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog.sql import SqlCatalog
from twisted.python.usage import UsageError

from dledger.cli.console.command import EXIT_FAILED, EXIT_USAGE
from dledger.cli.main import cli
from dledger.daemons.data.export import Options
from dledger.spark.export import iceberg_table
from dledger.spark.export.exporter import ExportSettings
from dledger.spark.export.files import ExportError
from dledger.spark.export.table_target import TableState
from tests.processes.members import ROOT
from tests.spark.ledgers import plain_rows
from tests.spark.tables import KINDS, CliCase, TableCase, commits, iceberg, read_table, rows

_HEADING = "### Tables"


def section() -> str:
    """What docs/spark-reference.md says about tables."""
    text = (ROOT / "docs" / "spark-reference.md").read_text(encoding="utf-8")
    text = text[text.index(f"\n{_HEADING}\n") + len(_HEADING) + 2 :]
    return text[: text.index("\n### ")]


def python_recipes() -> list[str]:
    """The blocks of Python in it."""
    blocks = re.findall(r"^(?:    .*\n|\n(?=    ))+", section(), re.MULTILINE)
    return [textwrap.dedent(block) for block in blocks if " import " in block]


class CommandTests(CliCase):
    """The command and the sidecar in this process."""

    def test_recipes(self) -> None:
        """The commands and the programs of the document."""
        commands = [line.split("#")[0].split()[1:] for line in section().splitlines()
                    if line.startswith("    dledger ")]
        self.assertEqual(len(commands), 3)
        for command in commands:
            done = CliRunner().invoke(cli, command)
            self.assertEqual(done.exit_code, 0, done.output)
        self.assertIn("compacted ", done.output)
        self.assertIn("deleted 0 files that no version of the last 7 days needs", done.output)
        expected = plain_rows(self.ledger.path)
        for kind, out in (("delta", "lake"), ("iceberg", "ice")):
            self.assertEqual(rows(read_table(kind, Path(out))), expected)
        self.assertEqual(len(DeltaTable("lake").file_uris()), 1)
        said = io.StringIO()
        with redirect_stdout(said):
            exec(python_recipes()[0], {})  # noqa: S102
        self.assertEqual(said.getvalue().splitlines(), ["[(40, 39)]"] * 2)

    def test_properties(self) -> None:
        """The document names the properties of a commit."""
        self.run_command(self.ledger.path, "lake", "--to", "delta")
        text, state = commits("delta", Path("lake"))[-1]
        self.assertRegex(text, r"^\d+-39$")
        for name in state:
            self.assertIn(f"`{name}`", section())

    def test_summary(self) -> None:
        """As for files; the second time nothing is new."""
        status, said = self.run_command(self.ledger.path, "lake", "--to", "delta", "--json")
        document = json.loads(said)
        self.assertEqual(status, 0)
        self.assertEqual((document["rows"], document["total_rows"], document["next"]), (40, 40, 40))
        self.assertIn("nothing new", self.run_command(self.ledger.path, "lake", "--to", "delta")[1])

    def test_refusals(self) -> None:
        """Whatever is wrong is one line that says what would be right, and nothing is written."""
        path = self.ledger.path
        for words, status, part in (
            (("--to", "hudi"), EXIT_USAGE, "'hudi' is not one of delta, iceberg"),
            (("--to", "delta", "--format", "jsonl"), EXIT_FAILED, "the files of a table are Parquet"),
            (("--to", "delta", "--engine", "spark"), EXIT_USAGE, "--to needs --engine arrow"),
            (("--compact",), EXIT_USAGE, "need --to"),
            (("--admin", "8080"), EXIT_USAGE, "--admin needs --follow"),
            (("--follow", "--admin", "tcp:80:interface=0.0.0.0"), EXIT_USAGE, "or say --insecure"),
            (("--follow", "--admin", "tcp:port"), EXIT_FAILED, "--admin 'tcp:port'"),
            (("--decode", "json", "--format", "jsonl"), EXIT_FAILED, "lines of JSON have none"),
            (("--table-per", "topic"), EXIT_USAGE, "-o format=rocketmq"),
            (("--to", "delta", "--expire-snapshots", "0"), EXIT_USAGE, "must be at least 1"),
        ):
            found, said = self.run_command(path, "out", *words)
            self.assertEqual(found, status, said)
            self.assertIn(part, said)
        self.assertFalse(list(Path().rglob("*.parquet")))
        self.run_command(path, "out")
        found, said = self.run_command(path, "out", "--to", "iceberg")
        self.assertEqual(found, EXIT_FAILED)
        self.assertIn("is not empty and holds no Iceberg table", said)

    def test_sidecar(self) -> None:
        """Its options name a table; a turn writes it."""
        for kind in ("delta", "iceberg"):
            options = Options()
            options.parseOptions(["--source", self.ledger.path, "--out", kind, "--to", kind,
                                  "--max-delay", "1"])
            with options.plan.open() as run:
                run.turn(0)
                run.turn(2000)
            self.assertEqual(rows(read_table(kind, Path(kind))), plain_rows(self.ledger.path))
        error = self.assertRaises(UsageError, Options().parseOptions,
                                  ["--source", "x", "--out", "y", "--to", "hudi"])
        self.assertIn("'hudi' is not one of delta, iceberg", str(error))


class RefusalTests(TableCase):
    """Places and tables that are refused, and with which words."""

    def test_kinds(self) -> None:
        """Tables that do not exist, and other files than Parquet."""
        error = self.assertRaises(ExportError, ExportSettings, to="hudi")
        self.assertEqual(str(error), "table 'hudi': allowed are delta, iceberg")
        error = self.assertRaises(ExportError, ExportSettings, to="delta", format="jsonl")
        self.assertIn("the files of a table are Parquet", str(error))

    def test_no_table(self) -> None:
        """Directories with other files, files, addresses, other tables."""
        self.fill(3)
        for kind in KINDS:
            with self.subTest(kind=kind):
                out = self.out(kind)
                out.mkdir()
                (out / "x.csv").touch()
                said = self.refusal(kind, out)
                self.assertIn(f"is not empty and holds no {kind.title()} table ('x.csv' is in it)", said)
                self.assertEqual(os.listdir(out), ["x.csv"])
                self.assertIn("cannot be written: ", self.refusal(kind, out / "x.csv"))
                self.assertIn("or a URL such as s3://bucket/out", self.refusal(kind, Path("s3://bucket/x")))
                other = self.out(kind)
                self.export(KINDS[kind == KINDS[0]], other)
                self.assertIn(f"holds no {kind.title()} table", self.refusal(kind, other))
        self.assertIn("paths without ?, # and %", self.refusal("iceberg", Path(self.mktemp() + "#1")))

    def test_damaged_tables(self) -> None:
        """Tables that the packages cannot read."""
        self.fill(3)
        out = self.out("delta")
        self.export("delta", out)
        for name in os.listdir(out / "_delta_log"):
            (out / "_delta_log" / name).write_text("{")
        self.assertIn(f"the Delta table {out.absolute()} cannot be read", self.refusal("delta", out))
        out = self.out("iceberg")
        out.mkdir()
        (out / "catalog.db").write_text("no database, but long enough to be read as the head of one" * 20)
        self.assertIn(f"the Iceberg table {out.absolute()} cannot be read", self.refusal("iceberg", out))
        error = self.assertRaises(ExportError, TableState.of_json, "{}", out)
        self.assertIn("so the progress of the export is unknown", str(error))
        error = self.assertRaises(ExportError, TableState.of_json, '{"version": 2}', out)
        self.assertIn("is of version 2 of this export; this program knows 1", str(error))

    def test_locked_catalog(self) -> None:
        """Another program holds the catalog: said, nothing is visible; afterwards the export goes on."""
        self.fill(10)
        out = self.out("iceberg")
        self.patch(iceberg_table, "CATALOG_WAIT_S", 0.01)
        self.export("iceberg", out, endingOffsets=5)
        other = sqlite3.connect(out / "catalog.db", isolation_level=None)
        self.addCleanup(other.close)
        other.execute("BEGIN IMMEDIATE")
        said = self.refusal("iceberg", out)
        self.assertIn("another program holds the lock of its catalog catalog.db", said)
        other.execute("ROLLBACK")
        with self.exporter("iceberg", out) as exporter:
            other.execute("BEGIN IMMEDIATE")
            error = self.assertRaises(ExportError, exporter.step, 0, is_last=True)
            other.execute("ROLLBACK")
        self.assertIn("cannot be committed to the Iceberg table", str(error))
        self.assertIn("another program holds the lock of its catalog catalog.db", str(error))
        self.assertEqual(len(rows(read_table("iceberg", out))), 5)
        self.assertEqual(self.export("iceberg", out), 5)

    def test_copied_table(self) -> None:
        """A copy of an Iceberg table would share the files of the original; a link to it is the original."""
        self.fill(3)
        out, link = self.out("iceberg"), self.out("link")
        self.export("iceberg", out, endingOffsets=2)
        copy = self.out("copy")
        shutil.copytree(out, copy)
        said = self.refusal("iceberg", copy)
        self.assertIn(f"holds the catalog of a table at {os.path.realpath(out)}/log", said)
        os.symlink(out.absolute(), link)
        with self.exporter("iceberg", link) as exporter:
            exporter.step(0, is_last=True)
            exporter.table.maintain(compacts=True, expire_days=0, now_s=time.time() + 60)
        self.assertEqual(rows(read_table("iceberg", out)), plain_rows(self.ledger.path))

    def test_foreign_tables(self) -> None:
        """A table with rows that no export wrote; an empty one is taken if it fits."""
        self.fill(3)
        good = pa.schema([("index", pa.int64()), ("body", pa.binary()), ("note", pa.string())])
        bad = pa.schema([("index", pa.string()), ("body", pa.binary())])
        needy = pa.schema([*good, pa.field("must", pa.int32(), nullable=False)])
        settings = {kind: ExportSettings(to=kind, columns=("index", "body")) for kind in KINDS}
        for kind in KINDS:
            for schema, count, words in (
                (good, 1, "has rows and no property dledger-export"),
                (bad, 0, "has column index of type string, and this export writes int64: allowed are"),
                (needy, 0, "has column must, which must not be null"), (good, 0, ""),
            ):
                with self.subTest(kind=kind, words=words):
                    out = self.out(kind)
                    made = schema.empty_table() if not count else pa.table(
                        {"index": [7], "body": [b"x"], "note": ["n"]}, schema=schema)
                    if kind == "delta":
                        write_deltalake(out, made)
                    else:
                        out.mkdir()
                        catalog = SqlCatalog("dledger", uri=f"sqlite:///{out.absolute()}/catalog.db")
                        catalog.create_namespace("dledger")
                        table = catalog.create_table("dledger.log", schema=schema,
                                                     location=f"file://{out.absolute()}/log")
                        if count:
                            table.append(made)
                    if words:
                        said = self.refusal(kind, out, settings[kind])
                        self.assertIn(words, said)
                        self.assertEqual(read_table(kind, out).num_rows, count)
                    else:
                        self.assertEqual(self.export(kind, out, settings[kind]), 3)

    def test_other_form(self) -> None:
        """Other partitions, other rows."""
        self.fill(3)
        for kind in KINDS:
            with self.subTest(kind=kind):
                out = self.out(kind)
                self.export(kind, out, endingOffsets=2)
                said = self.refusal(kind, out, ExportSettings(to=kind, partition_by=("term",)))
                self.assertIn("is partitioned by nothing, and this export by term", said)
                said = self.refusal(kind, out, envelopes=True)
                self.assertIn("is partitioned by nothing, and this export by day", said)
                columns = ExportSettings(to=kind, columns=("index", "term", "body"))
                said = self.refusal(kind, out, columns, format="rocketmq")
                self.assertIn("was begun with format=dledger, and now format=rocketmq", said)

    def test_renamed_columns(self) -> None:
        """Columns of the export that are gone, and features of tables that somebody would have to apply."""
        self.fill(3)
        out = self.out("iceberg")
        self.export("iceberg", out)
        with iceberg(out).update_schema() as change:
            change.rename_column("body", "payload")
        said = self.refusal("iceberg", out)
        self.assertIn("has no column body any more, which the export has written: allowed are", said)
        out = self.out("delta")
        self.export("delta", out)
        DeltaTable(out).alter.add_constraint({"small": '"index" < 100'})
        self.assertIn("allowed are tables without constraints", self.refusal("delta", out))

    def test_missing_packages(self) -> None:
        """The sentence names the extra."""
        self.fill(3)
        for kind, package in (("delta", "deltalake"), ("iceberg", "pyiceberg")):
            module = f"dledger.spark.export.{kind}_table"
            out = self.out(kind)
            held = {name: sys.modules.pop(name) for name in list(sys.modules) if name == module}
            hidden = {name: sys.modules[name] for name in list(sys.modules)
                      if name == package or name.startswith(package + ".")}
            sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
            try:
                said = self.refusal(kind, out)
            finally:
                sys.modules.update({**hidden, **held})
            self.assertIn(f"--to {kind} needs a package that is not installed", said)
            self.assertIn("pip install 'dledger[tables]'", said)
            self.assertFalse(out.exists())
