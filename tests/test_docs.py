# -*- test-case-name: tests.test_docs -*-
"""
The names in the documents must exist: options, codes, weaknesses, links, tests, functions.

A name in backquotes that begins with a package of ours (C{dledger.values.quorum.held_by},
C{tests.core.test_quorum.HeldByTests}) is looked up in the source.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.mutants.catalogue import MUTANTS
from tests.sources import text_of, tree_of

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PACKAGES = ("dledger", "protocols", "tests", "benchmarks", "demo")

#: The weaknesses of Java DLedger that docs/divergence.md answers.
WEAKNESSES = range(1, 24)

_NAME = re.compile(rf"`((?:{'|'.join(PACKAGES)})(?:\.\w+)+)(?:\(\))?`")
_PATH = re.compile(r"`((?:tests|docs|demo|benchmarks)/[\w./-]+\.\w+)`")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def pages() -> list[Path]:
    """Every document of the project."""
    return [*sorted(ROOT.glob("*.md")), *sorted(DOCS.glob("*.md"))]


def anchors(text: str) -> set[str]:
    """The anchors of the headings, for links."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _assigned(node: ast.stmt) -> set[str]:
    """Names that a statement at module or class level gives a value or a type."""
    targets = node.targets if isinstance(node, ast.Assign) else []
    if isinstance(node, ast.AnnAssign):
        targets = [node.target]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _own_attributes(node: ast.ClassDef) -> set[str]:
    """Attributes that methods set (C{self.x = ...})."""
    return {
        target.attr
        for child in ast.walk(node)
        if isinstance(child, ast.Assign)
        for target in child.targets
        if isinstance(target, ast.Attribute)
    }


def _defines(module: ast.Module, body: list[ast.stmt], names: list[str], root: Path) -> bool:
    if not names:
        return True
    for node in body:
        if isinstance(node, ast.ClassDef) and node.name == names[0]:
            if _defines(module, node.body, names[1:], root):
                return True
            if len(names) == 2 and names[1] in _own_attributes(node):
                return True
            return any(_base_defines(module, ast.unparse(base), names[1:], root) for base in node.bases)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == names[0]:
            return len(names) == 1
        if names[0] in _assigned(node):
            return len(names) == 1
    return False


def _base_defines(module: ast.Module, base: str, names: list[str], root: Path) -> bool:
    """Whether a base class, of this module or imported from one of ours, defines the rest of a name."""
    for node in module.body:
        if isinstance(node, ast.ImportFrom) and node.module and base in [alias.name for alias in node.names]:
            return exists(".".join([node.module, base, *names]), root)
    return _defines(module, module.body, [base, *names], root)


def _exports(package: ast.Module, names: list[str], root: Path) -> bool:
    """Whether a package exports a name of another module of ours."""
    return any(
        exists(".".join([str(one.module), *names]), root)
        for node in package.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for one in node.body
        if isinstance(one, ast.ImportFrom) and names[0] in [alias.name for alias in one.names]
    )


def exists(name: str, root: Path = ROOT) -> bool:
    """Whether a dotted name is a package, a module, or defined in a module."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        base = root.joinpath(*parts[:length])
        for path in (base.with_suffix(".py"), base / "__init__.py"):
            if path.exists():
                module = tree_of(text_of(path))
                names = parts[length:]
                return _defines(module, module.body, names, root) or (
                    path.name == "__init__.py" and bool(names) and _exports(module, names, root)
                )
        if base.is_dir() and length == len(parts):
            return True
    return False


class DivergenceTests(SynchronousTestCase):
    """docs/divergence.md answers every weakness."""

    def test_every_weakness(self) -> None:
        """W1 to W23 have a heading or a row each, in order."""
        text = (DOCS / "divergence.md").read_text("utf-8")
        found = [int(number) for number in re.findall(r"^(?:\| ?|#+ )\**W(\d+)\b", text, re.MULTILINE)]
        self.assertEqual(found, list(WEAKNESSES))

    def test_each_is_shown(self) -> None:
        """Each is shown by tests, scenarios or mutants, except the one that we do not have."""
        text = (DOCS / "divergence.md").read_text("utf-8")
        shown = re.findall(r"^\* \*\*Shown by\*\*: (.)", text, re.MULTILINE)
        self.assertEqual(shown, ["`"] * (len(WEAKNESSES) - 1) + ["n"])

    def test_mutants(self) -> None:
        """The named mutants are in the catalogue."""
        text = (DOCS / "divergence.md").read_text("utf-8")
        parts = re.findall(r"mutants? ((?:`[a-z-]+`,?\s*)+)", text)
        named = {name for part in parts for name in re.findall(r"`(.*?)`", part)}
        self.assertGreater(len(named), 10)
        self.assertEqual(named - {mutant.name for mutant in MUTANTS}, set())


class NamesTests(SynchronousTestCase):
    """Names and links have targets."""

    def test_names(self) -> None:
        """Every dotted name in backquotes is defined in the source."""
        missing = [
            f"{page.name}: {name}"
            for page in pages()
            for name in _NAME.findall(page.read_text("utf-8"))
            if not exists(name)
        ]
        self.assertEqual(missing, [], "\n" + "\n".join(missing))

    def test_paths(self) -> None:
        """Every file of ours that is named in backquotes exists."""
        missing = [
            f"{page.name}: {path}"
            for page in pages()
            for path in _PATH.findall(page.read_text("utf-8"))
            if not (ROOT / path).exists()
        ]
        self.assertEqual(missing, [], "\n" + "\n".join(missing))

    def test_links(self) -> None:
        """Every relative link has a file, and a heading if it names one."""
        broken = []
        for page in pages():
            for target in _LINK.findall(page.read_text("utf-8")):
                if re.match(r"[a-z]+:", target):
                    continue
                path, _, anchor = target.partition("#")
                there = page.parent / path if path else page
                if not there.exists():
                    broken.append(f"{page.name}: {target}")
                elif anchor and anchor not in anchors(there.read_text("utf-8")):
                    broken.append(f"{page.name}: {target}")
        self.assertEqual(broken, [], "\n" + "\n".join(broken))

    def test_index(self) -> None:
        """The README links to every document."""
        text = (ROOT / "README.md").read_text("utf-8")
        for page in DOCS.glob("*.md"):
            self.assertIn(f"(docs/{page.name})", text)


class CheckerTests(SynchronousTestCase):
    """The look-up itself."""

    def test_exists(self) -> None:
        """Packages, modules, classes, methods, constants, attributes."""
        for name in (
            "dledger.core", "dledger.core.state.inputs", "dledger.core.state.inputs.Ticked",
            "dledger.core.driver.Driver.feed",
            "dledger.values.ledger.config.FLUSH_SYNC", "dledger.values.ledger.config.DLedgerConfig.group",
            "tests.scenarios", "protocols.wire.ledger.messages.VoteRequest.leader_id",
        ):
            self.assertTrue(exists(name), name)

    def test_does_not_exist(self) -> None:
        """A typing error anywhere in the name is found."""
        for name in (
            "dledger.cor", "dledger.core.input", "dledger.core.state.inputs.Tocked",
            "dledger.core.driver.Driver.feet",
            "dledger.values.ledger.config.FLUSH", "dledger.core.driver.Driver.feed.more",
        ):
            self.assertFalse(exists(name), name)

    def test_anchors(self) -> None:
        """Anchors are those of the usual viewers."""
        self.assertEqual(anchors("# Disk full\n## 2. W1, commit"), {"disk-full", "2-w1-commit"})

    def test_links_and_names_are_found(self) -> None:
        """The patterns match links and names."""
        text = "see [there](docs/a.md#b) and `dledger.values.quorum.held_by`, `self.x`"
        self.assertEqual(_LINK.findall(text), ["docs/a.md#b"])
        self.assertEqual(_NAME.findall(text), ["dledger.values.quorum.held_by"])
