# -*- test-case-name: tests.spark.test_arrow -*-
"""A log as a stream of Arrow, for programs other than Spark; the recipes of the documents are run."""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from typing import Any

import pyarrow as pa

import dledger.spark
from dledger.spark.formats.log import DataLossError
from dledger.spark.formats.option_texts import OptionError
from tests.processes.members import ROOT
from tests.spark.ledgers import plain_rows
from tests.spark.test_scan import LedgerCase


def recipe(heading: str, number: int = 0, *, page: str = "spark-reference") -> str:
    """The indented pieces of code below a heading, by number."""
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    section = re.split(r"\n#+ ", text[text.index(f"\n{heading}\n") + 1 :].split("\n", 1)[1])[0]
    pieces = re.findall(r"(?:^    .*\n|^\n(?=    ))+", section, re.MULTILINE)
    found = [piece for piece in pieces if piece.strip()]
    return "\n".join(line[4:] for line in found[number].splitlines())


class StreamTests(LedgerCase):
    """The scan itself."""

    def setUp(self) -> None:
        super().setUp()
        self.ledger.fill(120)
        self.ledger.commit()
        self.rows = plain_rows(self.path)

    def test_table(self) -> None:
        """All rows and columns; some columns; more than once; of several parts and batches."""
        for options in ({}, {"fetchBytes": 500}, {"minPartitions": 4, "verifyCrc": True}):
            scan = dledger.spark.read(self.path, **options)
            for _again in range(2):
                table = pa.table(scan)
                self.assertEqual(list(zip(*table.to_pydict().values(), strict=True)), self.rows)
        scan = dledger.spark.read(self.path, columns=("BODY", "index"))
        table = pa.table(scan)
        self.assertEqual(table.schema.names, ["BODY", "index"])
        self.assertEqual(table.column(0).to_pylist(), [row[7] for row in self.rows])
        error = self.assertRaises(OptionError, dledger.spark.read, self.path, columns=("indx",))
        self.assertIn("unknown column indx (did you mean index?)", str(error))

    def test_frame(self) -> None:
        """As pandas."""
        frame: Any = dledger.spark.read(self.path, columns=("index", "body")).to_pandas()
        self.assertEqual(frame["index"].tolist(), [row[0] for row in self.rows])
        self.assertEqual(frame["body"].tolist(), [row[7] for row in self.rows])

    def test_errors(self) -> None:
        """What is not there is an error, not a shorter stream; a log without entries has a schema."""
        first = self.ledger.expire(3)
        self.assertRaises(DataLossError, pa.table, dledger.spark.read(self.path, startingOffsets=first - 1))
        empty = self.make()
        self.assertEqual(pa.table(dledger.spark.read(empty.path)).num_rows, 0)


class RecipeTests(LedgerCase):
    """The pieces of code of docs/spark-reference.md."""

    def setUp(self) -> None:
        super().setUp()
        self.ledger.append([b'{"user": "ann", "amount": 3}', b'{"user": "bob", "amount": 4}', b"\xff"])
        self.ledger.commit()
        os.makedirs("dledger-data", exist_ok=True)
        link = "dledger-data/dledger-n0"
        if os.path.islink(link):
            os.unlink(link)
        os.symlink(self.path, link)
        self.addCleanup(os.unlink, link)

    def run_recipe(self, number: int) -> dict[str, Any]:
        """Its names."""
        names: dict[str, Any] = {"print": lambda *_: None}
        exec(recipe("### pandas, Polars, DuckDB and Ray", number), names)
        return names

    def test_pandas(self) -> None:
        """The first one."""
        names = self.run_recipe(0)
        self.assertEqual((names["table"].num_rows, len(names["frame"])), (3, 3))

    if find_spec("polars") is not None:  # no requirement of ours

        def test_polars(self) -> None:
            """The second one."""
            self.assertEqual(self.run_recipe(1)["frame"].height, 3)

    def test_duckdb(self) -> None:
        """The third one."""
        self.assertEqual(self.run_recipe(2)["found"], [("ann", 3), ("bob", 4)])
