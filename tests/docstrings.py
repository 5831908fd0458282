# -*- test-case-name: tests.test_site -*-
"""
Docstrings that are no epytext, of which the pages of the API are made. Prints place and problem of each::

    python -m tests.docstrings dledger protocols

A program of its own: what pydoctor registers with docutils, Sphinx in the same process warns about.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from pydoctor.epydoc.markup import ParseError, epytext


def unsound_docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Each of a module: its line, and what is wrong."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        problems: list[ParseError] = []
        with suppress(ParseError):  # the list has it, too
            epytext.parse(ast.get_docstring(node) or "", problems)
        for problem in problems:
            yield node.body[0].lineno, str(problem)


if __name__ == "__main__":
    for path in [path for top in sys.argv[1:] for path in sorted(Path(top).rglob("*.py"))]:
        for line, found in unsound_docstrings(path.read_text("utf-8")):
            sys.stdout.write(f"{path}:{line}: {found}\n")
