# -*- test-case-name: tests.test_layering -*-
"""
The imports of the project's modules, read from their sources, and circles among them.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path

import attrs

from tests.sources import text_of, tree_of

ROOT = Path(__file__).resolve().parent.parent

#: Top-level names that are ours. Nothing below imports C{tests}, C{benchmarks} or C{demo}.
OURS = ("dledger", "protocols", "pyspark_dledger", "tests", "benchmarks", "demo")

#: Directories (and single modules) whose modules must be covered by the table.
COVERED = ("dledger", "protocols", "pyspark_dledger", "twisted")


@cache
def module_names(root: Path, tops: tuple[str, ...] = COVERED) -> Mapping[str, Path]:
    """Dotted name to file of every module below the given directories, as they were at first."""
    found = {}
    for top in tops:
        for path in sorted((root / top).rglob("*.py")):
            parts = list(path.relative_to(root).with_suffix("").parts)
            if parts[-1] == "__init__":
                parts.pop()
            found[".".join(parts)] = path
    return found


@attrs.frozen(kw_only=True)
class Import:
    """
    One import statement's target.

    @ivar target: dotted name.
    @ivar in_function: it runs when the function is called.
    @ivar is_for_types: it is under C{TYPE_CHECKING}.
    """

    target: str
    line: int
    in_function: bool
    is_for_types: bool


def imports_in(
    tree: ast.AST, known: Mapping[str, object], in_function: bool = False, for_types: bool = False
) -> Iterator[Import | int]:
    """Every import in a tree; a bare line number is a relative one."""
    place = {"in_function": in_function, "is_for_types": for_types}
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(target=alias.name, line=node.lineno, **place)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                yield node.lineno
                continue
            assert node.module is not None
            for alias in node.names:
                # "from dledger.core import effects" imports a module, "from dledger import connect" does not;
                # for the standard library and third parties the longer name is used, which is never too
                # short.
                longer = f"{node.module}.{alias.name}"
                ours = node.module.split(".")[0] in OURS
                target = longer if longer in known or not ours else node.module
                yield Import(target=target, line=node.lineno, **place)
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield from imports_in(ast.Module(node.body, []), known, in_function, True)
            yield from imports_in(ast.Module(node.orelse, []), known, in_function, for_types)
        else:
            inside = in_function or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from imports_in(node, known, inside, for_types)


@cache
def imports_of(root: Path = ROOT, tops: tuple[str, ...] = COVERED) -> Mapping[str, set[str]]:
    """Every module of ours, and the modules of ours that it imports, in functions and for types, too."""
    known = module_names(root, tops)
    return {
        module: {
            found.target
            for found in imports_in(tree_of(text_of(path)), known)
            if isinstance(found, Import) and found.target in known and found.target != module
        }
        for module, path in known.items()
    }


def folder_of(module: str, packages: Collection[str] = ()) -> str:
    """The folder that a module is in; a package is its own."""
    return module if module in packages else module.rpartition(".")[0]


def folders_of(imports: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """
    Every folder, and the other folders that its modules import.

    The package of the package counts as a folder of its own only for its imports: its names are
    imported when they are first used.
    """
    packages = {name.rpartition(".")[0] for name in imports}
    folders: dict[str, set[str]] = {}
    for module, targets in imports.items():
        folder = folders.setdefault(folder_of(module, packages), set())
        folder.update(folder_of(target, packages) for target in targets)
    return {folder: targets - {folder} for folder, targets in folders.items()}


def cycle_in(graph: Mapping[str, set[str]]) -> list[str]:
    """
    One circle of arrows.

    @return: its nodes in order, the first again at the end; empty if there is none.
    """
    done: set[str] = set()
    path: list[str] = []

    def visit(node: str) -> list[str]:
        if node in path:
            return [*path[path.index(node):], node]
        if node in done:
            return []
        path.append(node)
        for target in sorted(graph.get(node, ())):
            if found := visit(target):
                return found
        path.pop()
        done.add(node)
        return []

    for node in sorted(graph):
        if found := visit(node):
            return found
    return []
