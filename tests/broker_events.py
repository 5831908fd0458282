# -*- test-case-name: tests.broker.test_parts -*-
"""
The table of the events inside a broker, in docs/put-path.md, made of the source.

    python -m tests.broker_events            say whether the page is current
    python -m tests.broker_events --write    bring it up to date

A sender is a function that calls the event, or that is given it as a callable. A listener is a call in the
method of L{BrokerParts}, in the order of the source; private methods of the parts are followed.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
import typing
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from dledger.rocketmq.broker import parts as parts_module
from dledger.rocketmq.broker.parts import BrokerParts
from dledger.rocketmq.broker.replication import LogKind
from dledger.rocketmq.store.records.events import BrokerEvents
from tests.import_graph import ROOT, module_names
from tests.sources import text_of, tree_of

PAGE = ROOT / "docs" / "put-path.md"
BEGIN, END = "<!-- events: begin -->", "<!-- events: end -->"
EVENTS = tuple(name for name in vars(BrokerEvents) if not name.startswith("_"))
#: Where the senders are.
_ROOMS = ("dledger/rocketmq", "dledger/raft_broker")
#: Names of the attributes that hold the interface.
_HOLDERS = frozenset({"_events", "events", "_notify"})


def _dotted(found: Any) -> str:
    return f"{found.__module__}.{found.__qualname__}"


@cache
def _attributes(owner: type) -> dict[str, ast.Call]:
    """The calls whose results methods of a class, or of its bases, keep as attributes."""
    found: dict[str, ast.Call] = {}
    for base in reversed(owner.__mro__[:-1]):
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(base)))):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                for target in node.targets:
                    if isinstance(target, ast.Attribute):
                        found[target.attr] = node.value
    return found


def _type_of(owner: type, attribute: str) -> type:
    """The class of an attribute that is made by a call. @raise KeyError: it is not."""
    called = _attributes(owner)[attribute].func
    names = vars(sys.modules[owner.__module__])
    if isinstance(called, ast.Name):
        return typing.cast(type, names[called.id])
    assert isinstance(called, ast.Attribute), ast.unparse(called)
    if ast.unparse(called.value) == "kind":  # one of two: its interface
        return typing.cast(type, typing.get_type_hints(getattr(LogKind, called.attr))["return"])
    return typing.cast(type, names[ast.unparse(called.value)])  # a class method that makes one


def _calls(body: Sequence[ast.stmt]) -> Iterator[ast.Call]:
    """The calls that are statements, or whose result is kept, in the order of the source."""
    for node in body:
        value = getattr(node, "value", None)
        if isinstance(node, ast.Expr | ast.Assign) and isinstance(value, ast.Call):
            yield value
        elif isinstance(node, ast.If):
            yield from _calls(node.body)
            yield from _calls(node.orelse)


def _narrowed(method: ast.FunctionDef, value: str) -> type | None:
    """The class that the method asserts a value to be of."""
    for node in method.body:
        test = node.test if isinstance(node, ast.Assert) else None
        if isinstance(test, ast.Call) and ast.unparse(test.args[0]) == value:
            return typing.cast(type, getattr(parts_module, ast.unparse(test.args[1])))
    return None


@cache
def listeners(event: str) -> list[str]:
    """The dotted names of what hears an event in a broker, in order."""
    method = ast.parse(textwrap.dedent(inspect.getsource(getattr(BrokerParts, event)))).body[0]
    assert isinstance(method, ast.FunctionDef)
    found: list[str] = []
    for call in _calls(method.body):
        called = call.func
        if isinstance(called, ast.Name):
            found.append(_dotted(getattr(parts_module, called.id)))
            continue
        assert isinstance(called, ast.Attribute), ast.unparse(called)
        owner: type = BrokerParts
        way = ast.unparse(called.value).split(".")[1:]
        if not way:
            found += listeners(called.attr)
            continue
        for attribute in way:
            owner = _type_of(owner, attribute)
        owner = _narrowed(method, ast.unparse(called.value)) or owner
        found.append(_dotted(getattr(owner, called.attr)))
    return list(dict.fromkeys(found))


@cache
def _handed_on() -> list[tuple[str, str, frozenset[str]]]:
    """Events that the parts give to others as callables: event, module of the receiver, names there."""
    found = []
    for node in ast.walk(ast.parse(inspect.getsource(parts_module))):
        for keyword in node.keywords if isinstance(node, ast.Call) else ():
            event = ast.unparse(keyword.value).removeprefix("self.")
            if event in EVENTS and keyword.arg:
                assert isinstance(node, ast.Call)
                receiver = getattr(parts_module, ast.unparse(node.func))
                found.append((event, receiver.__module__, frozenset({keyword.arg, f"_{keyword.arg}"})))
    return found


def _emits(node: ast.AST, event: str, callables: frozenset[str]) -> bool:
    """Whether a node calls the event, on the interface or as one of these callables."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return False
    holder = node.func.value
    name = holder.attr if isinstance(holder, ast.Attribute) else getattr(holder, "id", "")
    return (name in _HOLDERS and node.func.attr == event) or node.func.attr in callables


def _senders_in(
    body: Sequence[ast.stmt], event: str, callables: frozenset[str], within: str
) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from _senders_in(node.body, event, callables, f"{within}.{node.name}")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if any(_emits(inner, event, callables) for inner in ast.walk(node)):
                yield f"{within}.{node.name}"


@cache
def senders(event: str) -> list[str]:
    """The dotted names of the functions that emit an event."""
    found: list[str] = []
    handed_on = _handed_on()
    for module, path in module_names(ROOT, _ROOMS).items():
        names = [names for one, receiver, names in handed_on if (one, receiver) == (event, module)]
        tree = tree_of(text_of(path))
        found += _senders_in(tree.body, event, frozenset().union(*names), module)
    return found


def table() -> str:
    """The rows, as Markdown."""
    lines = ["| Event | Senders | Listeners, in this order |", "|---|---|---|"]
    for event in EVENTS:
        cells = ["; ".join(f"`{name}`" for name in names) for names in (senders(event), listeners(event))]
        lines.append(f"| `{event}` | {cells[0]} | {cells[1]} |")
    return "\n".join(lines)


def page(text: str) -> str:
    """
    The text with the current table between its two marks.

    @raise ValueError: the marks are missing.
    """
    before, begin, rest = text.partition(BEGIN)
    _old, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{PAGE.name}: the table belongs between {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


def main(arguments: Sequence[str]) -> int:
    """Compare the page, or write it. @return: the exit status."""
    text = PAGE.read_text(encoding="utf-8")
    wanted = page(text)
    if "--write" in arguments and text != wanted:
        PAGE.write_text(wanted, encoding="utf-8")
        sys.stdout.write("docs/put-path.md: written\n")
        return 0
    return 0 if text == wanted else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
