# -*- test-case-name: tests.test_overrides -*-
"""
Which methods need no docstring of their own: those that override one which a base class documents.

A base of ours is looked up in the source, one of a library is imported. A class that fits a port without
naming it as a base says C{Implements L{...}} in its docstring, a port of a class C{A part of L{...}}; an
interface of zope is in the decorator.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from zope.interface.interface import InterfaceClass

from tests.import_graph import ROOT
from tests.sources import text_of, tree_of

#: Packages whose classes are looked up in the source.
OURS = ("dledger", "protocols", "pyspark_dledger", "benchmarks", "demo", "tests")


@cache
def _module(name: str, root: Path) -> tuple[dict[str, ast.ClassDef], dict[str, str]]:
    """As L{classes_of}; empty if there is no such module."""
    place = root.joinpath(*name.split("."))
    for path in (place.with_suffix(".py"), place / "__init__.py"):
        if path.exists():
            return classes_of(tree_of(text_of(path)))
    return {}, {}


def classes_of(tree: ast.Module) -> tuple[dict[str, ast.ClassDef], dict[str, str]]:
    """The classes at the top of a module, and local to whole names of the things that it imports."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
        elif isinstance(node, ast.Import):
            names |= {one.asname: one.name for one in node.names if one.asname}
            names |= {head: head for one in node.names if not one.asname for head in one.name.split(".")[:1]}
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}, names


def _has(node: ast.ClassDef, method: str) -> bool:
    """Whether the class itself documents the method."""
    return any(
        isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) and one.name == method
        and ast.get_docstring(one) is not None for one in node.body
    )


def documented_by_base(
    node: ast.ClassDef, method: str, names: dict[str, str], local: dict[str, ast.ClassDef], root: Path = ROOT
) -> bool:
    """
    Whether a base of a class documents C{method}.

    @param names, local: of the module of the class, see L{classes_of}.
    """
    for plain in _bases(node):
        head, _, rest = plain.partition(".")
        if plain in local and plain != node.name:
            if _has(local[plain], method) or documented_by_base(local[plain], method, names, local, root):
                return True
        elif head in names and documented(names[head] + ("." + rest if rest else ""), method, root):
            return True
        elif head in OURS and head not in names and documented(plain, method, root):
            return True
    return False


def _bases(node: ast.ClassDef) -> Iterator[str]:
    """The names of the classes whose methods a class has: its bases, and the ports that it implements."""
    for base in node.bases:
        yield ast.unparse(base.value if isinstance(base, ast.Subscript) else base)
    for decorator in node.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "implementer":
            yield from map(ast.unparse, decorator.args)
    doc = ast.get_docstring(node) or ""
    for reported in re.findall(r"(?:Implements|A part of) ((?:L\{[\w.]+\}(?:,? (?:and )?)?)+)", doc):
        yield from re.findall(r"L\{([\w.]+)\}", reported)


@cache
def documented(name: str, method: str, root: Path = ROOT) -> bool:
    """Whether the class C{name} (dotted), or a base of it, documents C{method}."""
    module, _, last = name.rpartition(".")
    if name.partition(".")[0] in OURS:
        local, names = _module(module, root)
        if last in local:
            return _has(local[last], method) or documented_by_base(local[last], method, names, local, root)
        return last in names and names[last] != name and documented(names[last], method, root)
    try:
        kind = getattr(importlib.import_module(module), last)
    except (ImportError, AttributeError, ValueError):
        return False
    found = kind.get(method) if isinstance(kind, InterfaceClass) else getattr(kind, method, None)
    return bool(getattr(found, "__doc__", None))
