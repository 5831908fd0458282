# -*- test-case-name: tests.test_moved -*-
"""Old names of modules: the same modules, with a warning."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
import warnings

from twisted.trial.unittest import SynchronousTestCase

from dledger.moved import MODULES, PACKAGES, new_name
from tests.import_graph import ROOT, module_names


class OldNameTests(SynchronousTestCase):
    """Programs that were written for 0.1."""

    def test_every_target_is_there(self) -> None:
        """No row of the table leads to a module that does not exist, and no old name is a module of today."""
        modules = module_names(ROOT)
        old = [f"{before}.{name.partition('=')[0]}" for before, _, names in MODULES for name in names.split()]
        self.assertGreater(len(old), 250)
        for name in (*old, *PACKAGES):
            self.assertIn(new_name(name), modules, name)
        self.assertEqual([name for name in (*old, *PACKAGES) if name in modules], [])

    def test_same_module(self) -> None:
        """There is one module, whose own name and spec are the new ones; the warning says which."""
        for old, new in (
            ("dledger.broker.client.blocking", "dledger.rocketmq.broker.client.blocking"),
            ("dledger.base.errors", "dledger.values.errors"),
            ("dledger.broker.store.records", "dledger.rocketmq.broker.store.records.records"),
            ("dledger.core.effects", "dledger.core.state.effects"),
        ):
            sys.modules.pop(old, None)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                module = importlib.import_module(old)
            self.assertIs(module, importlib.import_module(new))
            self.assertEqual((module.__name__, getattr(module.__spec__, "name", None)), (new, new))
            self.assertIn(
                f"{old} is now {new}; the old name goes with dledger 0.3",
                [str(one.message) for one in caught if one.category is DeprecationWarning],
            )

    def test_order_of_imports(self) -> None:
        """In a fresh program: classes are the same by either name, whichever is first."""
        code = (
            "from dledger.twisted import LogService as a; from dledger.deferred import LogService as b; "
            "from dledger.broker.client import Broker as c; "
            "from dledger.rocketmq.broker.client import Broker as d; "
            "import dledger.namesrv.status; print(a is b, c is d, dledger.namesrv.status.__name__)"
        )
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code], cwd=ROOT, capture_output=True, text=True,
            timeout=60, check=False,
        )
        self.assertEqual(done.stderr, "")
        self.assertEqual(done.stdout.strip(), "True True dledger.rocketmq.namesrv.status")

    def test_run(self) -> None:
        """An old name can be run as a program; one that was never a module is missing, in one sentence."""
        for name, said in (
            ("dledger.commands.main", ""),
            ("dledger.commands", "No module named dledger.commands.__main__"),
            ("dledger.commands.never", "No module named dledger.commands.never"),
        ):
            done = subprocess.run(
                [sys.executable, "-W", "ignore", "-m", name], cwd=ROOT, capture_output=True, text=True,
                timeout=60, check=False,
            )
            self.assertNotIn("Traceback", done.stderr, name)
            if said.startswith("No"):
                self.assertIn(said, done.stderr)
            else:
                self.assertEqual((done.returncode, done.stderr), (0, ""), name)

    def test_no_module(self) -> None:
        """A name below an old folder that no module has is found nowhere, and brings no warning."""
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            self.assertIsNone(importlib.util.find_spec("dledger.values.never"))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.assertIsNone(importlib.util.find_spec("dledger.commands.never"))
            self.assertIsNotNone(importlib.util.find_spec("dledger.commands.basics.common"))
            error = self.assertRaises(ImportError, importlib.import_module, "dledger.commands.never")
        self.assertEqual(error.name, "dledger.commands.never")

    def test_names_of_today(self) -> None:
        """They are not touched, and bring no warning."""
        for name in ("dledger.core.replica", "dledger.spark", "attrs", "dledger.brokers"):
            self.assertEqual(new_name(name), name)
