# -*- test-case-name: tests.test_glossary -*-
"""One name for one thing: no public class or function name of the product exists twice."""

from __future__ import annotations

import ast
from collections import defaultdict

from twisted.trial.unittest import SynchronousTestCase

from tests.import_graph import ROOT, module_names
from tests.sources import text_of, tree_of

PRODUCT = ("dledger", "protocols", "pyspark_dledger")

#: Names that a program of its own or an interface of Twisted prescribes.
PRESCRIBED = {"main", "connect", "makeService", "make_service", "Options"}

#: Names that still exist twice; none may be added.
TWICE: set[str] = set()


def public_names() -> dict[str, list[str]]:
    """Every public class and function at the top of a module, and the modules that define it."""
    found = defaultdict(list)
    for module, path in module_names(ROOT, PRODUCT).items():
        for node in tree_of(text_of(path)).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                if not node.name.startswith("_"):
                    found[node.name].append(module)
    return found


class NamesTests(SynchronousTestCase):
    """The product's names."""

    def test_unique(self) -> None:
        """A name that is defined twice means two things."""
        twice = {
            name: modules for name, modules in public_names().items()
            if len(modules) > 1 and name not in PRESCRIBED | TWICE
        }
        self.assertEqual(twice, {})

    def test_names_are_found(self) -> None:
        """The walk sees classes and functions of both products."""
        names = public_names()
        for name in ("DLedgerCore", "BrokerService", "held_by", "HAConnection"):
            self.assertEqual(len(names[name]), 1, name)
