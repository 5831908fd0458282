# -*- test-case-name: tests.test_reference -*-
"""The tables of docs/reference.md are those of the code."""

from __future__ import annotations

import attrs
from twisted.trial.unittest import SynchronousTestCase

from dledger.ledger.config import DLedgerConfig
from dledger.ledger.option_help import OPTION_HELP
from dledger.values.option_fields import options_of
from protocols.wire.code_help import CODE_HELP
from protocols.wire.codes import ResponseCode
from tests.reference import (
    PAGE,
    PRINTED,
    all_commands,
    field_meanings,
    fields_table,
    markdown,
    member_metrics,
    page,
    shown_default,
    table,
)
from tests.reference_remarks import COMMAND_REMARKS, METRIC_REMARKS


class CurrentTests(SynchronousTestCase):
    """docs/reference.md."""

    def test_current(self) -> None:
        """C{python -m tests.reference --write} would change nothing."""
        text = PAGE.read_text(encoding="utf-8")
        self.assertEqual(text, page(text), "python -m tests.reference --write")

    def test_stale(self) -> None:
        """A row that is missing, or changed by hand, is noticed; the text around the tables is free."""
        text = PAGE.read_text(encoding="utf-8")
        self.assertEqual(page(text.replace("_heart_beat_leak` | 5 |", "_heart_beat_leak` | 4 |")), text)
        self.assertEqual(page(text.replace("| 415 | DISK_FULL |", "| 416 | DISK_FULL |")), text)
        self.assertIn("\nby hand", page(text + "by hand\n"))

    def test_whole(self) -> None:
        """A table that is gone, there twice, unknown, or without an end, is an error that names it."""
        text = PAGE.read_text(encoding="utf-8")
        for wrong in (
            text.replace("<!-- printed: codes -->", ""), text + "<!-- printed: codes -->\n",
            text.replace("printed: codes", "printed: colours"),
        ):
            self.assertIn("codes", str(self.assertRaises(ValueError, page, wrong)))
        last = text.rindex("<!-- end -->")
        self.assertIn("has no line <!-- end -->", str(self.assertRaises(ValueError, page, text[:last])))


class CompleteTests(SynchronousTestCase):
    """Everything is explained, and nothing else."""

    def test_options(self) -> None:
        """Each option of a member has its help."""
        self.assertEqual(sorted(OPTION_HELP), sorted(options_of(DLedgerConfig)))
        self.assertEqual([name for name, told in OPTION_HELP.items() if len(told.meaning) < 10], [])

    def test_codes(self) -> None:
        """Each code has a cause, except success, and no code that there is not."""
        self.assertEqual(sorted(CODE_HELP), sorted(ResponseCode))
        self.assertEqual([code.name for code, told in CODE_HELP.items() if not told.cause], ["SUCCESS"])

    def test_remarks(self) -> None:
        """Each remark is about a metric or a command that there is."""
        self.assertEqual(set(METRIC_REMARKS) - set(member_metrics()), set())
        self.assertEqual(set(COMMAND_REMARKS) - {name for name, _ in all_commands()}, set())

    def test_every_program(self) -> None:
        """Of each table there is more than the line of its heads."""
        self.assertEqual([name for name, make in PRINTED.items() if make().count("\n") < 5], [])


class TextTests(SynchronousTestCase):
    """From code to cells."""

    def test_defaults(self) -> None:
        """As operators write them."""
        for value, shown in (
            (True, "`true`"), (0.7, "0.70"), (5, "5"), ("", "empty"), ((), "none"), ("async", "`async`"),
            ({"n0": "h:1", "n1": "h:2"}, "`n0-h:1;n1-h:2`"), (attrs.NOTHING, ""),
        ):
            self.assertEqual(shown_default(value), shown)

    def test_cells(self) -> None:
        """A bar, a new line or a bracket does not break the table."""
        made = table(["a"], iter([("x|y\nz <b> `<c>`",)]))
        self.assertEqual(made, "| a |\n|---|\n| x\\|y z &lt;b> `<c>` |\n")

    def test_marks(self) -> None:
        """Those of docstrings become backquotes; a reference is shown by its text."""
        self.assertEqual(markdown("C{a}\n   and L{the member <x.y>}"), "`a` and `the member`")

    def test_fields(self) -> None:
        """One text may be about several fields; one without a text is an error."""

        @attrs.frozen
        class Example:
            """
            @ivar one, two: as I{said}
                here.
            @ivar three: alone.

            Further.
            """

            one: int = 1
            two: int = 2

        self.assertEqual(field_meanings(Example)["two"], "as `said` here.")
        self.assertEqual(field_meanings(Example)["three"], "alone.")
        self.assertIn("| `two` | 2 | as `said` here. |", fields_table(Example))
        self.assertRaises(KeyError, fields_table, attrs.make_class("Bare", ["four"]))
