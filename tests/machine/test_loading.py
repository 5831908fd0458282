# -*- test-case-name: tests.machine.test_loading -*-
"""The name of a machine: what is taken, and what is said of the others."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from dledger.machine import StateMachine
from dledger.machine.loading import load_factory
from tests.machine.machines import Journal

HERE = "tests.machine.machines"


class LoadingTests(SynchronousTestCase):
    """C{package.module:factory}."""

    def test_a_factory_makes_the_machine(self) -> None:
        """A class, or a function, that makes a machine."""
        factory = load_factory(f"{HERE}:Journal")
        self.assertIs(factory, Journal)
        self.assertIsInstance(factory(), StateMachine)

    def test_a_wrong_name_is_refused(self) -> None:
        """The sentence names the text, what is wrong, and what is allowed."""
        for text, says in (
            ("", "write package.module:factory"),
            ("tests.machine.machines", "write package.module:factory"),
            (f"{HERE}:Journal()", "write package.module:factory"),
            ("tests.no_such_module:Journal", "cannot be imported (ModuleNotFoundError"),
            (f"{HERE}:Nobody", "has no function or class 'Nobody': write"),
            (f"{HERE}:not_a_machine", "made a object: write"),
            (f"{HERE}:raising", "raised OSError: no room: it must make a machine without arguments"),
            (f"{HERE}:exiting", "raised SystemExit: usage"),
            (f"{HERE}:Nameless", "its name='' must have 1 to 255 bytes"),
        ):
            error = self.assertRaises(ValueError, load_factory, text)
            self.assertIn(f"machine={text!r}", str(error))
            self.assertIn(says, str(error))
