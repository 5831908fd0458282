# -*- test-case-name: tests.test_layering -*-
"""The direction of imports, checked on every module; and the checker, checked on bad ones."""

from __future__ import annotations

import re
import subprocess
import sys

from twisted.trial.unittest import SynchronousTestCase

from tests.import_graph import COVERED, ROOT, cycle_in, folders_of, imports_of, module_names
from tests.layer_checks import check, layer_of, room_of, rooms_of
from tests.layering import LAYERS, THREADS
from tests.sources import text_of

#: A module of a room with strict rules, and one of a room without Twisted.
ELECTOR = "dledger.core.election.elector"
FILE_STORE = "dledger.storage.store.file_store"


class TreeTests(SynchronousTestCase):
    """The tree as it is."""

    def test_every_module_keeps_to_its_layer(self) -> None:
        """No module imports a module that its row of the table does not allow."""
        modules = module_names(ROOT)
        known = module_names(ROOT, (*COVERED, "tests", "benchmarks", "demo"))
        wrong = [
            sentence
            for module, path in modules.items()
            for sentence in check(module, text_of(path), known)
        ]
        self.assertEqual(wrong, [], "\n" + "\n".join(wrong))

    def test_no_circle(self) -> None:
        """Imports never lead back: not from module to module, not from room to room, not for types only."""
        imports = imports_of()
        self.assertEqual(cycle_in(imports), [])
        self.assertEqual(cycle_in(rooms_of(imports)), [])

    def test_rooms_are_folders(self) -> None:
        """A row covers whole folders: a path says which rules a module keeps. The package is modules."""
        modules = module_names(ROOT)
        single = [
            name for layer in LAYERS for name in layer.covers
            if name in modules and modules[name].name != "__init__.py"
        ]
        self.assertEqual(single, ["dledger.version"])

    def test_faces_of_the_client(self) -> None:
        """Only that for asyncio imports asyncio, and it has no thread."""
        found = {
            name: set(re.findall(r"^ *(?:from|import) (\w+)", text_of(path), re.MULTILINE))
            for name, path in module_names(ROOT).items() if name.startswith("dledger.client.")
        }
        for_asyncio = {"dledger.client.aio", "dledger.client.event_loop"}
        self.assertEqual({name for name, imported in found.items() if "asyncio" in imported}, for_asyncio)
        for name in for_asyncio:
            self.assertEqual(found[name] & set(THREADS), set(), name)

    def test_folders_have_no_circle(self) -> None:
        """Folders are in an order, too, also the inner ones of a room."""
        self.assertEqual(cycle_in(folders_of(imports_of())), [])

    def test_two_products(self) -> None:
        """The ledger and the broker do not know each other, by whichever way; one room puts them together."""
        rooms = rooms_of(imports_of())
        ledger = {
            "core", "storage", "node", "node connections", "client", "protocols of the ledger",
            "values of the ledger", "wire of the ledger",
        }
        broker = {name for name in rooms if name.startswith(("broker", "name server", "RocketMQ"))} | {
            "protocols of RocketMQ", "wire of RocketMQ"
        }
        self.assertGreater(len(broker), 8)
        for room in ledger:
            self.assertEqual(rooms[room] & broker, set(), room)
        for room in broker:
            self.assertEqual(rooms[room] & ledger, set(), room)
        self.assertTrue({"node", "storage"} <= rooms["raft broker"] and "broker" in rooms["raft broker"])

    def test_packages_are_found(self) -> None:
        """The walk finds packages: with an empty list no rule could be broken."""
        modules = module_names(ROOT)
        for name in ("dledger", "dledger.core", "dledger.core.state.inputs", "protocols.wire.ledger.codes"):
            self.assertIn(name, modules)

    def test_core_brings_nothing_along(self) -> None:
        """Importing the core in a fresh interpreter loads no Twisted."""
        code = (
            "import sys, dledger.core.replica; dir(dledger); hasattr(dledger, 'nothing'); "
            "print([name for name in ('twisted', 'asyncio', 'logging') if name in sys.modules])"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
        )
        self.assertEqual((done.stdout.strip(), done.stderr), ("[]", ""))


class CheckerTests(SynchronousTestCase):
    """Every rule of the checker, broken once."""

    KNOWN = {
        name: None
        for name in (
            "dledger", "dledger.core", "dledger.core.state.effects", "dledger.core.status",
            "dledger.node", "dledger.core.driver", "dledger.base.disk.disk",
            "dledger.client", "dledger.client.client", "dledger.storage.store.file_store",
            "dledger.rocketmq.broker.service",
            "dledger.spark", "dledger.spark.export", "dledger.spark.export.exporter",
            "protocols.wire", "protocols.wire.ledger.entry", "protocols.wire.ledger.messages",
            "protocols.wire.ledger.push",
            "tests.layering",
        )
    }

    def assertRefused(self, module: str, source: str, reason: str) -> None:
        """There is one sentence, and it has the reason."""
        wrong = check(module, source, self.KNOWN)
        self.assertEqual(len(wrong), 1, wrong)
        self.assertIn(reason, wrong[0])

    def assertAllowed(self, module: str, source: str) -> None:
        """There is no complaint."""
        self.assertEqual(check(module, source, self.KNOWN), [])

    def test_relative_import(self) -> None:
        """The meaning of an import must not depend on the place of its module."""
        self.assertRefused(ELECTOR, "from . import inputs", "relative import")
        self.assertRefused(ELECTOR, "from .inputs import Ticked", "relative import")

    def test_uncovered_module(self) -> None:
        """A new package needs a row before it can be used."""
        self.assertRefused("dledger.novelty.thing", "", "no row of the table")

    def test_core_is_pure(self) -> None:
        """The core has neither time nor I/O nor threads nor logging, in no place of a module."""
        for name in ("time", "os", "logging", "threading", "asyncio", "socket", "datetime"):
            self.assertRefused(ELECTOR, f"import {name}", f"{name} is refused")
            self.assertRefused(ELECTOR, f"def f():\n    import {name}", f"{name} is refused")
        self.assertRefused(ELECTOR, "from os import path", "os.path is refused")
        self.assertRefused(ELECTOR, "from twisted.python import log", "not a third party")
        self.assertRefused(ELECTOR, "import construct", "not a third party")

    def test_core_and_the_wire(self) -> None:
        """The core knows messages, codes and entries, not frames."""
        self.assertAllowed(ELECTOR, "from protocols.wire.ledger.messages import VoteRequest")
        for statement in (
            "from protocols.wire.ledger.runs import RUN_MIN", "from protocols.wire.ledger import runs",
            "from dledger.base.disk import disk",
        ):
            self.assertRefused(ELECTOR, statement, "not below")

    def test_chance_is_an_argument(self) -> None:
        """The type may be named; the global generator and new generators may not be used."""
        self.assertAllowed(ELECTOR, "import random\ndef f(rng: random.Random) -> None: ...")
        self.assertRefused(ELECTOR, "import random\nrandom.random()", "global generator")
        self.assertRefused(ELECTOR, "import random\nx = random.randint", "global generator")
        self.assertRefused(ELECTOR, "from random import choice", "global generator")
        self.assertRefused(ELECTOR, "import random\nr = random.Random(1)", "is not made")
        self.assertRefused("dledger.client.client", "import random\nrandom.random()", "global generator")
        self.assertAllowed("dledger.client.client", "import random\nr = random.Random()")

    def test_wire_is_the_bottom(self) -> None:
        """Layer 0 knows neither ledgers nor Twisted."""
        self.assertRefused("protocols.wire.ledger.push", "from dledger.core import effects", "not below")
        self.assertRefused("protocols.wire.ledger.push", "import twisted", "not a third party")
        self.assertRefused("protocols.wire.framing", "import twisted", "not a third party")
        self.assertRefused("protocols.ledger.connection", "import dledger", "not below")
        self.assertAllowed("protocols.ledger.connection", "from twisted.internet.protocol import Protocol")

    def test_storage_below_twisted(self) -> None:
        """Storage knows neither the core nor Twisted."""
        self.assertRefused(FILE_STORE, "from dledger.core import effects", "not below")
        self.assertRefused(FILE_STORE, "from twisted.internet import defer", "not a third")

    def test_connections_and_storage_do_not_meet(self) -> None:
        """The rest of the node introduces them to each other."""
        peers = "dledger.node.connections.peers"
        self.assertRefused(peers, "from dledger.storage import file_store", "not below")
        self.assertRefused(peers, "from dledger.core import effects", "not below")

    def test_driver_runs_in_a_simulation(self) -> None:
        """The driver runs without Twisted, as the core does; the node does not."""
        self.assertRefused("dledger.core.driver", "from twisted.internet import defer", "not a third party")
        self.assertAllowed("dledger.node.node", "from twisted.internet import defer")

    def test_nobody_looks_up(self) -> None:
        """Lower layers never import client, admin or tests."""
        self.assertRefused("dledger.node.node", "from dledger import client", "not below")
        self.assertRefused("dledger.node.node", "from tests import layering", "not below")

    def test_top_level_is_lazy(self) -> None:
        """C{import dledger.core} runs C{dledger/__init__.py}, which must not import the client."""
        self.assertRefused("dledger", "from dledger.client import client", "inside the function")
        self.assertAllowed("dledger", "def connect():\n    from dledger.client import client")

    def test_top_level_has_types(self) -> None:
        """Type checkers see its imports. They count like any other, but they are not executed."""
        for_types = "if TYPE_CHECKING:\n    from dledger.{0} import {1}"
        self.assertAllowed("dledger", for_types.format("client", "client"))
        self.assertRefused("dledger", for_types.format("node", "node"), "not below")
        executed = "if TYPE_CHECKING:\n    pass\nelse:\n    from dledger.client import client"
        self.assertRefused("dledger", executed, "inside the function")
        for_others = "if not TYPE_CHECKING:\n    import dledger.client"
        self.assertRefused("dledger", for_others, "inside the function")
        self.assertRefused(
            "dledger.cli.data.export", "if TYPE_CHECKING:\n    from dledger.spark import export",
            "inside the function",
        )

    def test_export_is_late(self) -> None:
        """Every command but the export must do without Arrow; the export asks for it when it runs."""
        statement = "from dledger.spark import export"
        self.assertRefused("dledger.cli.data.export", statement, "inside the function")
        self.assertRefused("dledger.daemons.data.export", statement, "inside the function")
        self.assertAllowed("dledger.cli.data.export", f"def run():\n    {statement}")
        self.assertRefused("dledger.cli.main", f"def run():\n    {statement}", "not below")
        self.assertRefused("dledger.cli.data.export", "from dledger.core import effects", "not below")

    def test_status_values_only(self) -> None:
        """The admin pages see the member's status values, not the core behind it."""
        self.assertRefused("dledger.admin.resource", "from dledger.core import effects", "not below")
        self.assertRefused("dledger.admin.resource", "from dledger.core import driver", "not below")

    def test_rows_are_distinct(self) -> None:
        """Two rows with one name would make a complaint ambiguous."""
        names = [layer.name for layer in LAYERS]
        self.assertEqual(len(names), len(set(names)))
        wire = layer_of("protocols.wire.ledger.push")
        assert wire is not None
        self.assertEqual(wire.name, "wire of the ledger")
        self.assertEqual(room_of("dledger.base.disk.disk"), "base disk")
        imports: dict[str, set[str]] = {"a.b.c": {"a.d"}, "a.b": {"a.b.c"}, "a.d": set()}
        self.assertEqual(folders_of(imports), {"a.b": {"a"}, "a": set()})
        self.assertEqual(room_of("dledger.novelty"), "nowhere")

    def test_circles_are_found(self) -> None:
        """The first one in alphabetical order, with its beginning at both ends."""
        self.assertEqual(cycle_in({"a": {"b", "c"}, "b": {"c"}, "c": set()}), [])
        self.assertEqual(cycle_in({"a": {"b"}, "b": {"c"}, "c": {"b"}}), ["b", "c", "b"])

    def test_products_are_apart(self) -> None:
        """Neither product imports a room of the other."""
        broker = "dledger.rocketmq.broker.service"
        self.assertRefused(broker, "from dledger.core import effects", "not below")
        self.assertRefused(broker, "from dledger.storage import file_store", "not below")
        self.assertRefused("dledger.node.node", "from dledger.rocketmq.broker import service", "not below")
