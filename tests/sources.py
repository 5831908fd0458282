# -*- test-case-name: tests.test_sources -*-
"""
The sources of the project, each read and parsed once in a process: every house rule looks at all of them.

The trees of all modules need half a gigabyte, so a program of house rules has nothing else to do. Nobody
changes a tree.
"""

from __future__ import annotations

import ast
import gc
from functools import cache
from pathlib import Path


@cache
def text_of(path: Path) -> str:
    """The text of a file, as it was when it was asked for first."""
    return path.read_text(encoding="utf-8")


@cache
def tree_of(source: str) -> ast.Module:
    """The syntax tree of a module."""
    return ast.parse(source)


@cache
def nodes_of(source: str) -> tuple[ast.AST, ...]:
    """All nodes of L{tree_of}, in the order of C{ast.walk}, which takes twice the time."""
    found: list[ast.AST] = [tree_of(source)]
    for node in found:
        for value in node.__dict__.values():
            if isinstance(value, ast.AST):
                found.append(value)
            elif isinstance(value, list):
                found += [one for one in value if isinstance(one, ast.AST)]
    gc.freeze()  # they stay until the end: to look through them again and again would take half of the time
    return tuple(found)
