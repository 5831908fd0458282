# -*- test-case-name: tests.spark.test_tables -*-
"""Tables for the tests: how they are opened by their own packages, and what is in them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from click.testing import CliRunner
from deltalake import DeltaTable
from deltalake.table import TableAlterer
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from twisted.trial.unittest import SynchronousTestCase

from dledger.cli.main import cli
from dledger.spark.export.exporter import Exporter, ExportSettings, ExportSource
from dledger.spark.export.files import ExportError
from dledger.spark.export.table_target import RANGE, STATE
from dledger.spark.export.tables import TableExporter, open_export
from tests.spark.ledgers import Ledger

KINDS = ("delta", "iceberg")


def iceberg(out: Path) -> Table:
    """The table, by a catalog of its own."""
    return SqlCatalog("dledger", uri=f"sqlite:///{out.absolute()}/catalog.db").load_table("dledger.log")


def read_table(kind: str, out: Path) -> pa.Table:
    """All rows by the package of the table and pyarrow, in the order of the log."""
    table = DeltaTable(out).to_pyarrow_table() if kind == "delta" else iceberg(out).scan().to_arrow()
    return table.sort_by("index" if "index" in table.schema.names else "physicalOffset")


def rows(table: pa.Table, *names: str) -> list[tuple[Any, ...]]:
    """The values of these columns, of all without names."""
    columns = [table.column(name) for name in names or table.schema.names]
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


def commits(kind: str, out: Path) -> list[tuple[str, dict[str, Any]]]:
    """Range and state of each commit of the export, the oldest first."""
    said: Iterable[dict[str, Any]]
    if kind == "delta":
        said = reversed(DeltaTable(out).history())
    else:
        said = [snapshot.summary.additional_properties for snapshot in iceberg(out).snapshots()
                if snapshot.summary is not None]
    return [(commit[RANGE], json.loads(commit[STATE])) for commit in said if STATE in commit]


def files(kind: str, out: Path) -> list[str]:
    """The data files of the newest version."""
    if kind == "delta":
        names = pa.table(DeltaTable(out).get_add_actions()).column("path").to_pylist()
        return sorted(f"{out.absolute()}/{unquote(name)}" for name in names)
    return sorted(task.file.file_path for task in iceberg(out).scan().plan_files())


class TableCase(SynchronousTestCase):
    """A ledger, and a directory for its table."""

    def setUp(self) -> None:
        """Small segments."""
        self.ledger = Ledger(self.mktemp())
        self.addCleanup(self.ledger.close)

    def fill(self, count: int) -> None:
        """More committed entries."""
        self.ledger.fill(count)
        self.ledger.commit()

    def exporter(
        self, kind: str, out: Path, settings: ExportSettings | None = None, **options: object
    ) -> TableExporter:
        """Open an export of the ledger."""
        settings = settings or ExportSettings(to=kind)
        given = {"path": self.ledger.path, **{name: str(value) for name, value in options.items()}}
        source = ExportSource.of(
            given, settings.columns, settings.partition_by, needed=settings.needed
        )
        exporter = open_export(out, source, settings)
        assert isinstance(exporter, TableExporter)
        return exporter

    def export(self, kind: str, out: Path, settings: ExportSettings | None = None, **options: object) -> int:
        """Run it to the end; rows written."""
        with self.exporter(kind, out, settings, **options) as exporter:
            exporter.step(0, is_last=True)
            return exporter.progress.rows

    def out(self, kind: str) -> Path:
        """A new path for a table."""
        return Path(f"{self.mktemp()}-{kind}")

    def refusal(self, kind: str, out: Path, settings: ExportSettings | None = None, **options: object) -> str:
        """Exporting fails so, and the table is as before."""
        return str(self.assertRaises(ExportError, self.export, kind, out, settings, **options))


class Killed(BaseException):
    """The process is gone."""


class KillCase(TableCase):
    """
    A run that ends at one of its steps: before or after a commit, between two writes, syncs and renames.

    @ivar left: steps until then; 0: it does not.
    @ivar die_at: a step at which it ends.
    @ivar killed_at: names of steps.
    """

    def setUp(self) -> None:
        """Steps of both kinds of tables."""
        super().setUp()
        self.left, self.die_at, self.killed_at = 0, "", set[str]()
        self.at_steps(os, "fsync")
        self.at_steps(os, "rename", after=True)
        self.at_steps(pq.ParquetWriter, "write_table")
        self.at_steps(DeltaTable, "create", after=True)
        self.at_steps(DeltaTable, "create_write_transaction", after=True)
        self.at_steps(TableAlterer, "add_columns", after=True)
        self.at_steps(SqlCatalog, "create_namespace", after=True)
        self.at_steps(SqlCatalog, "commit_table", after=True)

    def at_steps(self, owner: object, name: str, *, after: bool = False) -> None:
        """Count a step before each call, and one after it."""
        real = getattr(owner, name)

        def step(*words: object, **more: object) -> object:
            self.step(f"before {name}")
            made = real(*words, **more)
            if after:
                self.step(f"after {name}")
            return made

        self.patch(owner, name, step)

    def step(self, name: str) -> None:
        """Die here, if it is time."""
        self.left -= 1
        if self.left == 0 or name == self.die_at:
            self.killed_at.add(name)
            raise Killed

    def killed(self, exporter: Exporter | None) -> None:
        """What the end of a process ends: its locks."""
        targets = [exporter.directory] if exporter is not None else []
        for target in targets:
            targets.extend(getattr(target, "opened", {}).values())
            found = getattr(target, "_directory", target)
            os.close(getattr(found, "place", found)._lock)


class CliCase(SynchronousTestCase):
    """A member's directory under the name of the documents, which is the working directory."""

    def setUp(self) -> None:
        """With some entries."""
        place = self.mktemp()
        os.makedirs(f"{place}/dledger-data")
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(place)
        self.ledger = Ledger("dledger-data")
        self.addCleanup(self.ledger.close)
        self.ledger.fill(40)
        self.ledger.commit()

    def run_command(self, *words: str) -> tuple[int, str]:
        """Exit status, and what was said."""
        done = CliRunner().invoke(cli, ["export", *words])
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exc_info
        return done.exit_code, done.output
