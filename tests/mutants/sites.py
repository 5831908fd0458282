# -*- test-case-name: tests.sim.test_random_mutants -*-
"""
Places at which a random mutant may change the code, found in the syntax tree: each is a small fault of the
kind that people make.

A comparison is turned, or loses its equality; 1 is added to a number or taken away, C{and} becomes C{or},
C{not} goes, a truth value is turned, a statement that does something, a C{return} without a value or a
C{continue} is left out, a function without a result ends early, two arguments change places. Assertions and
log lines stay as they are: a fault there is none of the product.
"""

from __future__ import annotations

import ast
import collections
import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import attrs

#: Rooms, by name, and their modules.
ROOMS = (
    "base", "core", "storage", "machine", "node", "client", "admin", "raft_broker", "rocketmq/replication",
    "rocketmq/store", "rocketmq/metadata", "rocketmq/namesrv", "rocketmq/broker/producing",
    "rocketmq/broker/consuming",
)

_TURNED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}
#: Calls whose arguments may change places.
_EVEN = frozenset({"min", "max"})
#: Calls whose absence changes only what people read.
_SAYING = frozenset({"debug", "info", "warn", "error", "critical", "failure", "report", "_note", "echo"})


@attrs.frozen
class Splice:
    """
    A change of one place, as L{tests.mutants.patching.install} takes it.

    @ivar begin, end: bytes of the source in UTF-8.
    @ivar old: they are now.
    @ivar number: which of the places of its function that have the same C{old} and C{new}, from 1.
    """

    module: str
    function: str
    begin: int
    end: int
    old: str
    new: str
    number: int = 1

    @property
    def key(self) -> str:
        """The same for as long as the function has this text; another one for each place."""
        text = " ".join(f"{self.module}:{self.function}: {self.old} -> {self.new}".split())
        return text if self.number == 1 else f"{text} (#{self.number})"

    def apply(self, source: str) -> str:
        """The source with the change."""
        data = source.encode()
        assert data[self.begin : self.end].decode() == self.old, self.key
        return (data[: self.begin] + self.new.encode() + data[self.end :]).decode()


class _Finder:
    """All places of one module."""

    def __init__(self, module: str, source: str) -> None:
        self._module = module
        self._data = source.encode()
        self._ends_early = False
        self._starts = [0]
        for line in self._data.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def _place(self, line: int, column: int) -> int:
        return self._starts[line - 1] + column

    def _splice(self, function: str, node: ast.expr | ast.stmt, new: str) -> Splice:
        assert node.end_lineno is not None and node.end_col_offset is not None
        begin = self._place(node.lineno, node.col_offset)
        end = self._place(node.end_lineno, node.end_col_offset)
        return Splice(self._module, function, begin, end, self._data[begin:end].decode(), new)

    def in_functions(self, tree: ast.AST, name: str = "") -> Iterator[Splice]:
        """Those in all functions of a tree."""
        for node in ast.iter_child_nodes(tree):
            if isinstance(node, ast.ClassDef):
                yield from self.in_functions(node, f"{name}{node.name}.")
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                self._ends_early = _is_without_result(node)
                for statement in node.body:
                    yield from self._in_statement(statement, name + node.name)

    def _in_statement(self, node: ast.AST, function: str) -> Iterator[Splice]:
        if isinstance(node, (ast.Assert, ast.Raise)) or _is_saying(node):
            return
        if isinstance(node, ast.Expr):
            if isinstance(node.value, ast.Constant):
                return  # a docstring
            if isinstance(node.value, (ast.Call, ast.Await)):
                yield self._splice(function, node, "pass")
                if self._ends_early:
                    yield self._splice(function, node, "return")
        elif isinstance(node, ast.Continue) or (isinstance(node, ast.Return) and node.value is None):
            yield self._splice(function, node, "pass")
        elif isinstance(node, (ast.Assign, ast.AugAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if all(isinstance(one, (ast.Attribute, ast.Subscript)) for one in targets):
                yield self._splice(function, node, "pass")
        elif isinstance(node, ast.expr):
            yield from self._in_expression(node, function)
        inner = "annotation", "returns", "args", "decorator_list", "type_comment"
        for name, value in ast.iter_fields(node):
            if name in inner and not isinstance(node, ast.Call):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from self._in_statement(child, function)

    def _in_expression(self, node: ast.expr, function: str) -> Iterator[Splice]:
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            turned = ast.Compare(node.left, [_TURNED[type(node.ops[0])]()], node.comparators)
            yield self._splice(function, node, f"({ast.unparse(turned)})")
        elif isinstance(node, ast.BoolOp):
            other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield self._splice(function, node, f"({ast.unparse(ast.BoolOp(other, node.values))})")
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield self._splice(function, node, f"({ast.unparse(node.operand)})")
        elif isinstance(node, ast.Constant) and type(node.value) is int:
            yield self._splice(function, node, str(node.value + 1))
            if node.value > 0:
                yield self._splice(function, node, str(node.value - 1))
        elif isinstance(node, ast.Constant) and type(node.value) is bool:
            yield self._splice(function, node, str(not node.value))
        elif isinstance(node, ast.Call) and len(node.args) >= 2:
            first, second, *rest = node.args
            if isinstance(node.func, ast.Name) and node.func.id in _EVEN:
                return
            if ast.dump(first) != ast.dump(second) and not isinstance(first, ast.Starred):
                swapped = ast.Call(node.func, [second, first, *rest], node.keywords)
                if not isinstance(second, ast.Starred):
                    yield self._splice(function, node, ast.unparse(swapped))


def _is_without_result(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """It returns and yields nothing; one with functions inside counts as another."""
    others = ast.Yield, ast.YieldFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda
    return not any(
        isinstance(node, others) or (isinstance(node, ast.Return) and node.value is not None)
        for statement in function.body for node in ast.walk(statement)
    )


def _is_saying(node: ast.AST) -> bool:
    call = node.value if isinstance(node, ast.Expr) else None
    return (
        isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in _SAYING
    )


def sites_in(module: str, source: str) -> list[Splice]:
    """The places in one module, in their order."""
    numbers: collections.Counter[str] = collections.Counter()
    found = []
    for splice in _Finder(module, source).in_functions(ast.parse(source)):
        numbers[splice.key] += 1
        found.append(attrs.evolve(splice, number=numbers[splice.key]))
    return found


def compiles(splice: Splice, source: str) -> bool:
    """Whether the result is Python: a part of an f-string may not be."""
    try:
        compile(splice.apply(source), splice.module, "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return True


def drawn(
    root: Path, rooms: tuple[str, ...], count: int, seed: int, places: tuple[str, ...] = ("",)
) -> list[Splice]:
    """
    Some places, drawn by a seed: each is as likely as any other.

    @param root: of the checkout.
    @param places: begins of keys, such as modules or C{module:function}; only these are drawn.
    """
    found: list[Splice] = []
    sources: dict[str, str] = {}
    for room in rooms:
        for path in sorted((root / "dledger" / room).rglob("*.py")):
            module = ".".join(path.relative_to(root).with_suffix("").parts)
            sources[module] = path.read_text(encoding="utf-8")
            found += (one for one in sites_in(module, sources[module]) if one.key.startswith(places))
    random.Random(seed).shuffle(found)
    return list(islice((one for one in found if compiles(one, sources[one.module])), count))
