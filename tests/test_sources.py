# -*- test-case-name: tests.test_sources -*-
"""The sources that all house rules share."""

from __future__ import annotations

import ast
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.sources import nodes_of, text_of, tree_of


class SourcesTests(SynchronousTestCase):
    """Each file is read and parsed once."""

    def test_once(self) -> None:
        """A second question has the same text and the same tree."""
        path = Path(self.mktemp())
        path.write_text("x = 1\n")
        source = text_of(path)
        path.unlink()
        self.assertIs(text_of(path), source)
        self.assertIs(tree_of("x = 1\n"), tree_of(source))

    def test_nodes(self) -> None:
        """They are those of C{ast.walk}, in its order."""
        source = text_of(Path(__file__))
        self.assertEqual(list(nodes_of(source)), list(ast.walk(tree_of(source))))
