# -*- test-case-name: tests.spark.test_docs -*-
"""docs/spark-reference.md agrees with the code: options and their defaults, columns and their types."""

from __future__ import annotations

import re

from twisted.trial.unittest import SynchronousTestCase

from dledger.spark.formats.options import OPTIONS, ScanOptions
from dledger.spark.ledger.columns import ENTRY_COLUMNS, ENVELOPE_COLUMNS
from dledger.spark.rocketmq.messages import MESSAGE_COLUMNS
from protocols.wire.ledger.own.own_entries import OwnKind
from tests.processes.members import ROOT

TEXT = (ROOT / "docs" / "spark-reference.md").read_text(encoding="utf-8")


def named(heading: str) -> list[str]:
    """What is before the colon in each item of the first list after a heading."""
    section = TEXT[TEXT.index(f"\n{heading}\n") :]
    found = []
    for line in section[section.index("\n* ") + 1 :].splitlines():
        if not line.startswith("* "):
            break
        found.append(line.removeprefix("* ").partition(": ")[0])
    return found


_OPTION = re.compile(r"\* (`\w+`)(?: \((.*?)\))?: (.+)")


def options_of(heading: str) -> list[tuple[str, str]]:
    """Names and defaults, -: none, in the first list of options after a heading."""
    found: list[tuple[str, str]] = []
    for line in TEXT[TEXT.index(f"\n{heading}\n") :].splitlines():
        match = _OPTION.fullmatch(line)
        if match:
            found.append((match[1].strip("`"), match[2] or "-"))
        elif found:
            break
    return found


class DocumentTests(SynchronousTestCase):
    """Lists."""

    def test_options(self) -> None:
        """All options, in the order of the code, with their defaults."""
        self.assertEqual(options_of("## Options"), [(option.name, option.default) for option in OPTIONS])

    def test_defaults(self) -> None:
        """Each default of the list is one."""
        options = ScanOptions()
        for option in OPTIONS:
            value = getattr(options, option.field)
            if re.fullmatch(r"`\w+`", option.default) and option.name != "endingOffsets":
                self.assertEqual(option.read(option.name, option.default.strip("`")), value, option.name)
            else:
                self.assertIn(value, ("", 0, None, ()), option.name)

    def test_columns(self) -> None:
        """Names and types of both schemas."""
        for heading, columns in (("## Schema", ENTRY_COLUMNS), ("### RocketMQ messages", MESSAGE_COLUMNS),
                                 ("### Times and headers", ENVELOPE_COLUMNS)):
            self.assertEqual(named(heading), [f"`{column.name}` {column.ddl}" for column in columns])

    def test_own_entries(self) -> None:
        """All kinds of the log's own entries; one that is not known is an error there."""
        found = [kind.strip("`") for kind in named("### The log's own entries")]
        self.assertEqual(sorted(found), sorted(["null", *(set(OwnKind) - {OwnKind.UNKNOWN})]))
