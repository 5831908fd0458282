# -*- test-case-name: tests.test_sentences -*-
"""
The names of tests are sentences: C{test_a_gap_is_refused}, not C{test_gap}.

A list of the names of a room's tests then says what the room promises. A machine cannot find the verb, so the
rule is that a name has at least L{WORDS_MIN} words after C{test_}. It holds for the L{ROOMS}.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from twisted.trial.unittest import SynchronousTestCase

from tests.sources import nodes_of, text_of
from tests.tidy import ROOT

#: Folders of tests whose names are sentences.
ROOMS = (
    "tests/core", "tests/node", "tests/storage", "tests/client", "tests/machine", "tests/raft_broker",
    "tests/broker/store", "tests/broker/ha", "tests/broker/popping", "tests/broker/transactions",
)
#: Words of a name, at least.
WORDS_MIN = 3


def short_names(source: str) -> Iterator[str]:
    """The names of tests in a module that are too short for a sentence, as C{Class.test_name}."""
    for node in nodes_of(source):
        if not isinstance(node, ast.ClassDef):
            continue
        for method in node.body:
            if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) and method.name.startswith("test_"):
                if len(method.name.split("_")) - 1 < WORDS_MIN:
                    yield f"{node.name}.{method.name}"


class SentenceTests(SynchronousTestCase):
    """The names of the tree, and the rule itself."""

    def test_names_are_sentences(self) -> None:
        """No test of these rooms has a name that is too short."""
        found, short = 0, []
        for room in ROOMS:
            for path in sorted((ROOT / room).rglob("test_*.py")):
                source = text_of(path)
                found += source.count("def test_")
                short += [f"{path.relative_to(ROOT)}: {name}" for name in short_names(source)]
        self.assertGreater(found, 2_500)
        self.assertEqual(short, [], "\n".join(["write a sentence: test_a_gap_is_refused", *short]))

    def test_short_names_are_found(self) -> None:
        """Two words are too few; methods that are no tests have any name."""
        source = (
            "class A:\n    def test_gap(self): ...\n    def test_two_words(self): ...\n"
            "    async def test_three_short_words(self): ...\n    def gap(self): ...\n"
            "def test_x(): ...\n"
        )
        self.assertEqual(list(short_names(source)), ["A.test_gap", "A.test_two_words"])
