# -*- test-case-name: tests.test_overrides -*-
"""A method that overrides a documented one needs no docstring."""

from __future__ import annotations

import ast
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.overrides import classes_of, documented, documented_by_base
from tests.tidy import public_docstrings


class DocumentedTests(SynchronousTestCase):
    """Where the docstring of a method is looked for."""

    def setUp(self) -> None:
        """A project of two modules."""
        self.root = Path(self.mktemp())
        package = self.root / "dledger"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
        (package / "a.py").write_text(
            "class Base:\n    def said(self):\n        'Yes.'\n    def bare(self): ...\n"
            "class Middle(Base): ...\n"
        )
        (package / "b.py").write_text("from dledger.a import Middle as Between\n")

    def found(self, source: str, method: str) -> bool:
        """Whether a base of the last class of a module documents the method."""
        local, names = classes_of(ast.parse(source))
        return documented_by_base(list(local.values())[-1], method, names, local, self.root)

    def test_ours(self) -> None:
        """In a base, a base of it, a base that is imported under another name, or from another place."""
        for head, base in (
            ("from dledger.a import Base", "Base"), ("from dledger.a import Middle", "Middle"),
            ("from dledger.a import Middle as M", "M"), ("import dledger.a", "dledger.a.Base"),
            ("from dledger.b import Between", "Between"), ("from dledger import a", "a.Base"),
            ("from dledger.a import Base\nclass B(Base): ...", "B[int]"),
        ):
            head = f"{head}\nclass A({base}): ..."
            self.assertTrue(self.found(head, "said"), head)
            self.assertFalse(self.found(head, "bare"), head)
            self.assertFalse(self.found(head, "other"), head)

    def test_ports(self) -> None:
        """In a port that the docstring of the class names, or an interface of its decorator."""
        for text, is_found in (
            ("Implements L{Base}.", True), ("Implements L{dledger.a.Middle}.", True), ("See L{Base}.", False),
        ):
            source = f"from dledger.a import Base\nclass A:\n    'It. {text}'"
            self.assertIs(self.found(source, "said"), is_found, text)
            self.assertFalse(self.found(source, "bare"))
        head = "from zope.interface import implementer\nfrom twisted.internet.interfaces import ITransport\n"
        self.assertTrue(self.found(head + "@implementer(ITransport)\nclass A: ...", "write"))
        self.assertFalse(self.found(head + "@implementer(ITransport)\nclass A: ...", "nothing"))

    def test_others(self) -> None:
        """Those of libraries have docstrings, or not."""
        self.assertTrue(documented("twisted.internet.protocol.Protocol", "dataReceived"))
        self.assertFalse(documented("twisted.internet.protocol.Protocol", "nothing"))
        self.assertFalse(documented("no.such.module", "f"))
        self.assertFalse(self.found("class A(Unknown): ...", "said"))

    def test_rule(self) -> None:
        """The house rule asks for docstrings of the others only."""
        source = (
            "from twisted.internet.protocol import Protocol\n"
            "class A(Protocol):\n    '''It.'''\n    def dataReceived(self, data): ...\n"
            "    def other(self): ...\n"
        )
        self.assertEqual([line for line, _ in public_docstrings(source)], [5])
