# -*- test-case-name: tests.spark.test_export_engine -*-
"""The one engine and the one table of options behind every face of an export."""

from __future__ import annotations

import click
from twisted.trial.unittest import SynchronousTestCase

from dledger.cli.data.export import export
from dledger.daemons.data.export import Options
from dledger.spark.export.engine import ExportPlan
from dledger.spark.formats.option_texts import OptionError
from dledger.values.exports import EXPORT_OPTIONS, read_options
from tests.spark.ledgers import plain_rows
from tests.spark.test_export import ExportCase, parquet_rows


class OptionTests(SynchronousTestCase):
    """The table, and the two command lines that are made from it."""

    def test_faces(self) -> None:
        """Both have every option, with the same default and help; the service none that needs an end."""
        shown = {option.name: option for option in export.params if isinstance(option, click.Option)}
        reported = {name: (default, text) for name, _, default, text in Options.optParameters}
        for option in EXPORT_OPTIONS:
            self.assertEqual(shown[option.key].help, option.help)
            if option.once:
                self.assertNotIn(option.name, reported)
            elif option.kind == "NAME=VALUE":
                self.assertTrue(hasattr(Options, f"opt_{option.key}"), option.name)
            elif option.is_flag:
                self.assertIn([option.name, None, option.help], Options.optFlags)
            else:
                self.assertEqual(reported[option.name], (option.default, option.help))

    def test_values(self) -> None:
        """Defaults, several texts of one option, and numbers."""
        found = read_options({"columns": ["index,term", "body"], "max_delay": ["2.5"], "option": ["a=b=c"]})
        self.assertEqual(found["columns"], (("index", "term"), ("body",)))
        self.assertEqual((found["max_delay"], found["option"], found["from"]), (2.5, (("a", "b=c"),), None))
        self.assertEqual((found["format"], found["part_bytes"], found["to"]), ("parquet", 1 << 27, None))

    def test_refused(self) -> None:
        """The sentence names the option, and what is allowed."""
        for key, text, part in (
            ("format", "csv", "--format: 'csv' is not one of parquet, jsonl"),
            ("part_bytes", "0", "--part-bytes: 0 must be at least 1"),
            ("part_bytes", "9" * 19, "of 64 bits"),
            ("interval", "nan", "--interval: nan must be at least 0.001"),
            ("option", "x", "--option: 'x': write name=value"),
            ("store_option", "x", "--store-option: 'x': write name=value"),
            ("field", "x", "--field: 'x': write name=TYPE"),
            ("table_per", "tag", "--table-per: 'tag' is not one of topic"),
        ):
            self.assertIn(part, str(self.assertRaises(ValueError, read_options, {key: [text]})))

    def test_together(self) -> None:
        """Options that belong to a kind of target."""
        for out, given, part in (
            ("out", {"store_option": ["a=1"]}, "--store-option is for a store, and out is a directory"),
            ("s3://b/x", {"engine": ["spark"]}, "--engine spark writes to a directory that all machines see"),
        ):
            self.assertIn(part, str(self.assertRaises(
                OptionError, ExportPlan.of, "s3://b/log", out, given, follows=False)))


class RunTests(ExportCase):
    """Runs of a plan."""

    def test_once(self) -> None:
        """One turn, and the report."""
        self.ledger.fill(50)
        self.ledger.commit()
        with ExportPlan.of(self.ledger.path, self.out, {"from": ["10"]}, follows=False).open() as run:
            self.assertIsNone(run.turn(0))
            report = run.report(2.0)
        self.assertEqual(parquet_rows(self.out), plain_rows(self.ledger.path)[10:])
        self.assertEqual((report.rows, report.begin, report.next, report.end, report.total_rows),
                         (40, 10, 50, 50, 40))
        self.assertIn("exported 40 rows in 2.0 s", report.sentence)

    def test_follows(self) -> None:
        """Turn after turn; the end makes visible what was read."""
        plan = ExportPlan.of(self.ledger.path, self.out, {"interval": ["0.5"]}, follows=True)
        with plan.open() as run:
            for count in (20, 30):
                self.ledger.fill(count)
                self.ledger.commit()
                self.assertEqual(run.turn(0), 500)
            run.end()
        self.assertEqual(parquet_rows(self.out), plain_rows(self.ledger.path))

    def test_not_together(self) -> None:
        """Options that exclude each other."""
        for given, follows, part in (
            ({"engine": ["spark"]}, True, "needs --engine arrow"),
            ({"conf": ["a=b"]}, False, "need --engine spark"),
            ({"engine": ["spark"], "to": ["delta"]}, False, "--to needs --engine arrow"),
            ({"compact": ["yes"]}, False, "need --to"),
            ({"engine": ["spark"], "decode": ["json"]}, False, "--decode needs --engine arrow"),
            ({"engine": ["spark"], "table_per": ["topic"]}, False, "--table-per needs --engine arrow"),
            ({"admin": ["8080"]}, False, "--admin needs --follow"),
            ({"max_lag": ["5"]}, False, "--max-lag needs --follow"),
        ):
            error = self.assertRaises(
                OptionError, ExportPlan.of, self.ledger.path, self.out, given, follows=follows
            )
            self.assertIn(part, str(error))
