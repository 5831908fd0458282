# -*- test-case-name: tests.test_reference -*-
"""The tables of docs/reference.md are those of the code."""

from __future__ import annotations

import attrs
from twisted.trial.unittest import SynchronousTestCase

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


class PageTests(SynchronousTestCase):
    """docs/reference.md, with its tables."""

    def test_tables(self) -> None:
        """They are in their places."""
        made = page(PAGE.read_text(encoding="utf-8"))
        self.assertNotIn("*(table: ", made)
        section = made.split("\n## Response codes\n")[1].split("\n## ")[0]
        self.assertIn("\n| 415 | DISK_FULL |", section)

    def test_whole(self) -> None:
        """A table that is gone, there twice, or unknown, is an error that names it."""
        text = PAGE.read_text(encoding="utf-8")
        for wrong in (
            text.replace("*(table: codes)*", ""), text + "*(table: codes)*\n",
            text.replace("table: codes", "table: colours"),
        ):
            self.assertIn("codes", str(self.assertRaises(ValueError, page, wrong)))


class CompleteTests(SynchronousTestCase):
    """Everything is explained, and nothing else."""

    def test_codes(self) -> None:
        """Each code has a cause, except success, and no code that there is not."""
        self.assertEqual(sorted(CODE_HELP), sorted(ResponseCode))
        self.assertEqual([code.name for code, reported in CODE_HELP.items() if not reported.cause],
                         ["SUCCESS"])

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
        error = self.assertRaises(ValueError, fields_table, attrs.make_class("Bare", ["four"]))
        self.assertIn("Bare", str(error))
        self.assertIn("['four']", str(error))
