# -*- test-case-name: tests.test_ratchet -*-
"""
How big the parts of the product are, and how often its tests read private names, against limits, with the
exceptions that there are.

A part beyond a limit is in C{ratchet.txt} with its figure, which may only fall. A new part beyond one, and a
line for a part that is within the limit, are complaints. C{python -m tests.ratchet --write} writes lower
figures down; it never raises one.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.import_graph import ROOT, module_names
from tests.sources import nodes_of, text_of, tree_of

TABLE = Path(__file__).with_name("ratchet.txt")

#: What is measured, and its limit: lines of a module besides its imports; fields of a class; arguments of its
#: constructor, if it is written out; branches of a function; reads of private names in a folder of tests.
LIMITS: Mapping[str, int] = {"lines": 450, "fields": 20, "arguments": 8, "branches": 12, "private": 0}

#: Names with an underscore that are public: those of named tuples, and one of C{os}.
PUBLIC = frozenset(("_replace", "_asdict", "_fields", "_make", "_exit"))

#: By this many lines a module may be shorter than the table says, before the table has to follow.
SLACK = 9

#: Modules whose classes have the fields of a format, or the options of operators: they grow with these.
GIVEN_FIELDS = re.compile(r"protocols\.wire\.|dledger\.testing\.|dledger\.([\w.]+\.)?(config|options)\.")

_BRANCHES = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.match_case)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_SCOPES = (*_FUNCTIONS, ast.ClassDef, ast.Lambda)

#: What is measured, and the dotted name of the part.
Key = tuple[str, str]


def measured(module: str, source: str) -> dict[Key, int]:
    """Every figure of a module."""
    tree = tree_of(source)
    imports = sum(
        (node.end_lineno or node.lineno) - node.lineno + 1
        for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)
    )
    found: dict[Key, int] = {("lines", module): len(source.splitlines()) - imports}
    for name, node in _scopes(tree, module):
        if isinstance(node, ast.ClassDef):
            found["fields", name] = len(_fields(node))
        else:
            found["branches", name] = sum(isinstance(one, _BRANCHES) for one in _own_nodes(node))
            if node.name == "__init__":
                arguments = node.args
                found["arguments", name.removesuffix(".__init__")] = (
                    len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs) - 1
                )
    return found


def _scopes(
    parent: ast.AST, where: str
) -> Iterator[tuple[str, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{where}.{node.name}"
            yield name, node
            yield from _scopes(node, name)
        else:
            yield from _scopes(node, where)


def _own_nodes(parent: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function, without those of functions in it."""
    for node in ast.iter_child_nodes(parent):
        if not isinstance(node, _SCOPES):
            yield node
            yield from _own_nodes(node)


def _fields(node: ast.ClassDef) -> set[str]:
    """The names of its own fields: those that C{attrs} makes, and those that its methods set."""
    decorators = {ast.unparse(one).split("(")[0].split(".")[0] for one in node.decorator_list}
    fields = set()
    if decorators & {"attrs", "attr", "dataclass"}:
        fields = {
            ast.unparse(one.target) for one in node.body
            if isinstance(one, ast.AnnAssign) and "ClassVar" not in ast.unparse(one.annotation)
        }
    for method in node.body:
        if isinstance(method, _FUNCTIONS):
            fields |= {
                one.attr for one in ast.walk(method)
                if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store)
                and ast.unparse(one.value) == "self"
            }
    return fields


def private_reads(source: str) -> int:
    """How often a module reads or sets a private attribute of an object that is not C{self} or its class."""
    return sum(
        isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__")
        and node.attr not in PUBLIC and ast.unparse(node.value) not in ("self", "cls", "super()")
        for node in nodes_of(source)
    )


def beyond(figures: Mapping[Key, int]) -> dict[Key, int]:
    """Those of C{figures} that are beyond their limits."""
    return {
        (kind, name): figure for (kind, name), figure in figures.items()
        if figure > LIMITS[kind] and not (kind == "fields" and GIVEN_FIELDS.match(name))
    }


def complaints(found: Mapping[Key, int], table: Mapping[Key, int]) -> Iterator[str]:
    """
    What is wrong, in sentences.

    @param found: the figures that are beyond their limits.
    @param table: the known exceptions.
    """
    for key in sorted(found.keys() | table.keys()):
        kind, name = key
        if key not in table:
            remedy = "read what is public" if kind == "private" else "cut it by idea"
            yield f"{name} has {found[key]} {kind}; {LIMITS[kind]} are allowed: {remedy}"
        elif key not in found:
            yield f"{name} has no more than {LIMITS[kind]} {kind} any more: take it off the table"
        elif found[key] > table[key]:
            yield f"{name} has {found[key]} {kind}; it had {table[key]}, which may only fall"
        elif found[key] < table[key] - (SLACK if kind == "lines" else 0):
            yield f"{name} has {found[key]} {kind} now: write that down instead of {table[key]}"


def read_table(text: str) -> dict[Key, int]:
    """The known exceptions: a line for each, its kind, name and figure."""
    rows = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    return {(kind, name): int(figure) for kind, name, figure in rows}


def table_text(table: Mapping[Key, int]) -> str:
    """The text of L{read_table}."""
    head = "# Parts beyond the limits of tests/ratchet.py. A figure may only fall; add no line.\n"
    return head + "".join(f"{kind} {name} {figure}\n" for (kind, name), figure in sorted(table.items()))


def figures_of_the_product() -> dict[Key, int]:
    """Every figure of every module of the product, and of every folder of its tests."""
    found: dict[Key, int] = {}
    for module, path in module_names(ROOT).items():
        found |= measured(module, text_of(path))
    for path in module_names(ROOT, ("tests",)).values():
        key = "private", ".".join(path.relative_to(ROOT).parent.parts)
        found[key] = found.get(key, 0) + private_reads(text_of(path))
    return found


def lowered(found: Mapping[Key, int], table: Mapping[Key, int]) -> dict[Key, int]:
    """The table with the figures that have fallen, without those that are within the limit now."""
    return {key: min(figure, found[key]) for key, figure in table.items() if key in found}


if __name__ == "__main__":
    _found, _table = beyond(figures_of_the_product()), read_table(TABLE.read_text("utf-8"))
    if sys.argv[1:] == ["--write"]:
        TABLE.write_text(table_text(_table := lowered(_found, _table)), "utf-8")
    _wrong = list(complaints(_found, _table))
    sys.exit("\n".join(_wrong) if _wrong else 0)
