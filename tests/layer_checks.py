# -*- test-case-name: tests.test_layering -*-
"""
Applies the table in L{tests.layering} to the imports of modules.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping

from tests.import_graph import OURS, Import, imports_in
from tests.layering import LAYERS, Layer
from tests.sources import nodes_of, tree_of

#: Layers that are given a generator and must neither make one nor use the global one.
SEEDED = ("core",)


def _within(module: str, prefix: str) -> bool:
    if prefix.endswith("*"):
        return module.startswith(prefix[:-1])
    return module == prefix or module.startswith(prefix + ".")


def _within_any(module: str, prefixes: tuple[str, ...]) -> bool:
    return any(_within(module, prefix) for prefix in prefixes)


def layer_of(module: str) -> Layer | None:
    """The row that covers C{module}; None if no row does."""
    for layer in LAYERS:
        for prefix in layer.covers:
            # The package is one module: a new package below it needs its own row.
            if module == prefix if prefix == "dledger" else _within(module, prefix):
                return layer
    return None


def _judge(found: Import, layer: Layer) -> str | None:
    """Why an import is not allowed; None if it is."""
    target = found.target
    top = target.split(".")[0]
    if _within_any(target, layer.refused):
        return f"{target} is refused here"
    if top in OURS:
        is_late = found.in_function or (found.is_for_types and layer.lazy)
        if (layer.lazy or _within_any(target, layer.late)) and not is_late:
            return f"{target} must be imported inside the function that needs it"
        # The package is one module: to be allowed it is not to be allowed everything below it.
        below = [prefix for prefix in (*layer.covers, *layer.ours) if prefix != "dledger"]
        if _within_any(target, tuple(below)) or (target == "dledger" and "dledger" in layer.ours):
            return None
        return f"{target} is not below this layer"
    if top in sys.stdlib_module_names:
        return None
    return None if _within_any(target, layer.third) else f"{target} is not a third party of this layer"


def _chance(source: str, *, seeded: bool) -> Iterator[tuple[int, str]]:
    """Uses of the global generator, and of generators made where one is given."""
    for node in nodes_of(source) if "random" in source.lower() else ():
        if isinstance(node, ast.ImportFrom) and node.module == "random":
            for alias in node.names:
                if alias.name not in ("Random", "SystemRandom"):
                    yield node.lineno, f"random.{alias.name} is the global generator"
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "random":
            if node.attr not in ("Random", "SystemRandom"):
                yield node.lineno, f"random.{node.attr} is the global generator"
        elif seeded and isinstance(node, ast.Call) and "Random" in ast.unparse(node.func).split("."):
            yield node.lineno, "a generator is an argument here, it is not made"


def room_of(module: str) -> str:
    """The name of the row that covers a module."""
    layer = layer_of(module)
    return "nowhere" if layer is None else layer.name


def rooms_of(imports: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Every room, and the rooms that its modules import."""
    rooms: dict[str, set[str]] = {}
    for module, targets in imports.items():
        room = rooms.setdefault(room_of(module), set())
        room.update(room_of(target) for target in targets)
    return {room: targets - {room} for room, targets in rooms.items()}


def check(module: str, source: str, known: Mapping[str, object]) -> list[str]:
    """
    Find the imports of one module that are not allowed.

    @param known: dotted names of all modules of ours.
    @return: sentences that begin with C{module:line}.
    """
    layer = layer_of(module)
    if layer is None:
        return [f"{module}: no row of the table covers it"]
    tree = tree_of(source)
    wrong = []
    for found in imports_in(tree, known):
        if isinstance(found, int):
            wrong.append(f"{module}:{found}: relative import; write the whole name")
            continue
        reason = _judge(found, layer)
        if reason is not None:
            wrong.append(f"{module}:{found.line}: layer {layer.name}: {reason}")
    for line, reason in _chance(source, seeded=layer.name in SEEDED):
        wrong.append(f"{module}:{line}: layer {layer.name}: {reason}")
    return wrong
