# -*- test-case-name: tests.test_walks -*-
"""The walks of docs/ are those of real runs."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib.util import find_spec
from types import ModuleType
from unittest import SkipTest

from twisted.trial.unittest import SynchronousTestCase

from tests import walk_runs
from tests.test_docs import DOCS
from tests.walks import Calls, code_of, problem_of, stations

PAGE = DOCS / "walks.md"
PUT_PATH, APPEND_PATH = DOCS / "put-path.md", DOCS / "append-path.md"


def _with_arrow() -> ModuleType:
    if find_spec("pyarrow") is None:
        raise SkipTest("no pyarrow: make venv installs what unit tests need, make test everything")
    return importlib.import_module("tests.spark.walk_runs")


class PageTests(SynchronousTestCase):
    """Each list has the functions of its run, in the order of their first calls."""

    def check(self, names: list[str], run: Callable[[], Calls]) -> None:
        """Compare a list; no two neighbours of it could change places."""
        codes = run().codes
        self.assertEqual(problem_of(names, codes), "")
        self.assertGreater(len(names), 8)
        for place in range(1, len(names)):
            swapped = [*names]
            swapped[place - 1 : place + 1] = names[place], names[place - 1]
            self.assertNotEqual(problem_of(swapped, codes), "", swapped[place - 1 : place + 1])

    def test_append(self) -> None:
        """An append, in a simulated group."""
        self.check(stations(APPEND_PATH, "The stations"), walk_runs.append)

    def test_member_change(self) -> None:
        """A promotion, in a simulated group."""
        self.check(stations(PAGE, "A change of the members"), walk_runs.member_change)

    def test_command(self) -> None:
        """A command, in a simulated group."""
        self.check(stations(PAGE, "A command to the state machine"), walk_runs.command)

    def test_put(self) -> None:
        """A message, to a simulated master with a slave."""
        self.check(stations(PUT_PATH, "1. The walk"), walk_runs.put)

    def test_pop(self) -> None:
        """A POP, in a broker in memory."""
        self.check(stations(PAGE, "A POP"), walk_runs.pop)

    def test_transaction(self) -> None:
        """A half message that is asked about, in a broker in memory."""
        self.check(stations(PAGE, "A transaction"), walk_runs.transaction)

    def test_rows(self) -> None:
        """A scan of a directory."""
        self.check(stations(PAGE, "A record to a Spark row"), lambda: _with_arrow().rows(self.mktemp()))

    def test_export(self) -> None:
        """An export of a directory."""
        self.check(stations(PAGE, "An export"), lambda: _with_arrow().export(self.mktemp(), self.mktemp()))


class OrderTests(SynchronousTestCase):
    """What counts as a difference."""

    A, B, C = (f"tests.test_walks.OrderTests.{name}" for name in ("test_again", "test_missing", "test_order"))

    def problem(self, names: str, calls: str) -> str:
        """Of stations and calls, each one letter."""
        named = {"a": self.A, "b": self.B, "c": self.C}
        return problem_of([named[one] for one in names], [code_of(named[one]) for one in calls])

    def test_order(self) -> None:
        """The first calls since the first station count; others may be between them."""
        self.assertEqual(self.problem("abc", "aabcab"), "")
        self.assertEqual(self.problem("abc", "bcabc"), "")
        self.assertEqual(self.problem("abc", "acbc"), f"3: {self.C} is called before {self.B}")

    def test_missing(self) -> None:
        """A station that is not called."""
        self.assertEqual(self.problem("abc", "ab"), f"3: {self.C} is not called")

    def test_again(self) -> None:
        """A station that comes twice is looked for after the one before it."""
        self.assertEqual(self.problem("aba", "abba"), "")
        self.assertEqual(self.problem("aba", "aab"), f"3: {self.A} is not called")

    def test_no_function(self) -> None:
        """A name of anything else is an error."""
        self.assertRaises(LookupError, code_of, "tests.walks.ROOT")
        self.assertRaises(LookupError, stations, PAGE, "A walk that nobody has written")
