# -*- test-case-name: tests.processes.test_machines -*-
"""C{examples/kv} on real members: killed under load, restarted from snapshots, and over HTTP."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

import dledger
from dledger.client.errors import AppendError, UnknownOutcome
from dledger.client.values import Entry
from dledger.storage.files.snapshot_file import CHUNK_BYTES_MAX
from protocols.wire.ledger.machines import QueryRequest, QueryResponse
from tests.processes.asking import ask
from tests.processes.children import Child, free_ports, wait_until
from tests.processes.members import ROOT, TWISTD, Group, Member

KV = ROOT / "examples" / "kv"


def _store() -> Any:
    """The module of the example."""
    spec = importlib.util.spec_from_file_location("kv_store", KV / "store.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


STORE = _store()


def fold(entries: list[Entry]) -> dict[str, str]:
    """The state by a plain reading of the log, without the store's own code."""
    state: dict[str, str] = {}
    for entry in entries:
        try:
            asked = json.loads(entry.body)
        except ValueError:
            continue
        key = asked["key"]
        is_met = asked["does"] == "set_if" and state.get(key) == asked["expected"]
        if asked["does"] == "put" or is_met:
            state[key] = asked["value"]
        elif asked["does"] == "delete":
            state.pop(key, None)
    return state


class _Writer(threading.Thread):
    """
    Submits commands one after the other until it is asked to stop.

    @ivar acknowledged: number of the command to its index.
    @ivar unknown: numbers of those without an outcome.
    """

    def __init__(self, peers: str, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.peers = peers
        self.acknowledged: dict[int, int] = {}
        self.unknown: set[int] = set()
        self.problems: list[str] = []
        self.is_over = threading.Event()

    def run(self) -> None:
        """Put, compare and set, delete, in turn, over a few keys."""
        with dledger.connect(self.peers, timeout=90.0) as log:
            number = 0
            while not self.is_over.is_set():
                number += 1
                key = f"{self.name}-{number % 17}"
                does = ("put", "put", "set_if", "delete")[number % 4]
                more = {} if does == "delete" else {"value": f"{self.name} {number}"}
                if does == "set_if":
                    more["expected"] = f"{self.name} {number - 17}"
                try:
                    reported = json.loads(log.submit(STORE.command(does, key, **more)))
                    self.acknowledged[number] = reported["index"]
                except UnknownOutcome:
                    self.unknown.add(number)
                except AppendError as error:
                    self.problems.append(str(error))


class KeyValueTests(SynchronousTestCase):
    """Three members with a key-value store."""

    def setUp(self) -> None:
        held = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(held.cleanup)
        self.home = Path(held.name)
        self.kv = self.group_of_stores()
        self.kv.start()

    def group_of_stores(self) -> Group:
        """A group whose members run the store, with their administration."""
        group = Group(self.home, size=3)
        self.ports = dict(zip(group.peers, free_ports(len(group.peers)), strict=True))
        for peer_id in group.peers:
            group.members[peer_id] = Member(
                peer_id, group.peers, self.home / peer_id, modules=KV,
                options={"machine_snapshot_entries": 50},
                extra=("--machine", "store:KeyValueStore",
                       "--admin", f"tcp:{self.ports[peer_id]}:interface=127.0.0.1"),
            )
        self.addCleanup(group.kill)
        return group

    def machine(self, peer_id: str) -> dict[str, Any]:
        """The machine in the status of a member; empty if it does not answer."""
        try:
            url = f"http://127.0.0.1:{self.ports[peer_id]}/status"
            with urllib.request.urlopen(url, timeout=120) as page:
                found: dict[str, Any] = json.loads(page.read())["machine"]
                return found
        except OSError:
            return {}

    def states(self) -> dict[str, dict[str, str]]:
        """What each member's machine says, once all have applied everything."""
        end_index = self.kv.wait_settled()
        wait_until(
            lambda: {self.machine(one).get("applied_index") for one in self.kv.peers} == {end_index},
            seconds=30, what="machines at the end of the log",
        )
        found = {}
        for peer_id, address in self.kv.peers.items():
            answer = ask(address, QueryRequest(
                group="default", remote_id=peer_id, query=b"", max_age_ms=60_000
            ))
            assert isinstance(answer, QueryResponse) and answer.result is not None, answer
            found[peer_id] = json.loads(answer.result)
        return found

    def test_kill_under_load(self) -> None:
        """
        The leader is killed under load, and comes back from its snapshot: every member holds the state that
        the log makes, and every acknowledged command is there.
        """
        self.kv.leader()
        writers = [_Writer(self.kv.peers_text, f"w{number}") for number in range(3)]
        for writer in writers:
            writer.start()
        for _ in range(2):
            before = sum(len(writer.acknowledged) for writer in writers)
            wait_until(
                lambda before=before: sum(len(w.acknowledged) for w in writers) > before + 150,
                seconds=60, what="150 commands",
            )
            killed = self.kv.leader()
            self.kv.members[killed].kill()
            self.kv.leader(among=tuple(one for one in self.kv.peers if one != killed))
            self.kv.members[killed].start()
            wait_until(
                lambda killed=killed: self.machine(killed).get("state") == "running",
                seconds=30, what="a member that is back",
            )
            machine = self.machine(killed)
            self.assertGreater(machine["snapshot_index"], 0)
        for writer in writers:
            writer.is_over.set()
            writer.join(60)
            self.assertEqual(writer.problems, [])
        states = self.states()
        with dledger.connect(self.kv.peers_text, timeout=90.0) as log:
            entries = list(log.tail(0))
            self.assertEqual(json.loads(log.query(b"")), fold(entries))
        for peer_id in self.kv.peers:
            self.assertEqual(states[peer_id], fold(entries), peer_id)
            machine = self.machine(peer_id)
            found = (machine["state"], machine["lag"], machine["snapshot_problem"])
            self.assertEqual(found, ("running", 0, ""))
            kept = list((self.kv.members[peer_id].ledger_path / "machine").iterdir())
            self.assertEqual(len(kept), 2, kept)
        bodies = {entry.index: entry.body for entry in entries}
        for writer in writers:
            self.assertGreater(len(writer.acknowledged), 50)
            for number, index in writer.acknowledged.items():
                self.assertEqual(json.loads(bodies[index])["key"], f"{writer.name}-{number % 17}")

    def test_http(self) -> None:
        """The calls of the page, and their answers."""
        self.kv.leader()
        (port,) = free_ports(1)
        web = Child(
            "web",
            [sys.executable, str(KV / "web.py"), self.kv.peers_text, f"tcp:{port}:interface=127.0.0.1"],
            log_path=self.home / "web.log", environment={"PYTHONPATH": f"{ROOT}:{KV}"},
        )
        self.addCleanup(web.kill)
        web.start()
        wait_until(lambda: "listens on" in web.log_tail(), seconds=30, what="the HTTP face")

        def call(method: str, path: str, body: bytes | None = None) -> tuple[int, str]:
            asked = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body, method=method)
            try:
                with urllib.request.urlopen(asked, timeout=120) as answer:
                    return answer.status, answer.read().decode()
            except urllib.error.HTTPError as error:
                with error:
                    return error.code, error.read().decode()

        self.assertEqual(call("GET", "/colour"), (404, "no such key"))
        self.assertEqual(call("PUT", "/colour", b"blue")[0], 200)
        self.assertEqual(call("GET", "/colour"), (200, "blue"))
        wait_until(
            lambda: call("GET", "/colour?max_age=60") == (200, "blue"), seconds=30,
            what="the value at any member",
        )
        self.assertEqual(call("PUT", "/colour?expected=red", b"green"), (409, "another value"))
        self.assertEqual(call("PUT", "/colour?expected=blue", b"green")[0], 200)
        self.assertEqual(call("PUT", "/colour?expected_none=1", b"x"), (409, "another value"))
        self.assertEqual(asyncio.run(self.asked_by_asyncio()), ("true", "green"))
        self.assertEqual(call("DELETE", "/colour")[0], 200)
        self.assertEqual(call("DELETE", "/colour"), (404, "no such key"))
        self.assertEqual(call("GET", "/colour?max_age=old")[0], 400)
        self.assertEqual(call("POST", "/colour", b"x")[0], 405)

    async def asked_by_asyncio(self) -> tuple[str, str]:
        """The face for asyncio, too."""
        async with dledger.AsyncLog(self.kv.peers_text, timeout=90.0) as log:
            reported = json.loads(await log.submit(STORE.command("put", "size", value="big")))
            found = json.loads(await log.query(b"colour"))
        return json.dumps(reported["done"]), found["value"]

    def test_bad_name(self) -> None:
        """A machine that cannot be found is one line, and what is allowed."""
        done = subprocess.run(
            [sys.executable, "-c", TWISTD, "-n", "--pidfile=", "dledger", "--machine", "store:Nobody"],
            capture_output=True, text=True, timeout=240, cwd=self.home,
            env={"PYTHONPATH": f"{ROOT}:{KV}"},
        )
        self.assertNotEqual(done.returncode, 0)
        says = "has no function or class 'Nobody': write package.module:factory"
        self.assertIn(says, done.stdout + done.stderr)


class StoreTests(SynchronousTestCase):
    """The example by itself."""

    def test_foreign_commands(self) -> None:
        """Whatever anybody appends changes nothing, and stops nothing."""
        store = STORE.KeyValueStore()
        bodies = [b"\xff", b"[]", b"{}", b"1", b'"x"', b'{"does": "put", "key": 1}',
                  b'{"does": "x", "key": "y"}', b"[" * 100_000]
        entries = [Entry(index=at, term=1, pos=0, body=body) for at, body in enumerate(bodies)]
        results = [json.loads(result) for result in store.apply(entries)]
        self.assertEqual([result["done"] for result in results], [False] * len(bodies))
        self.assertEqual(json.loads(store.query(b"")), {})

    def test_snapshot(self) -> None:
        """What is restored is what was there, and later commands are not in it."""
        store, again = STORE.KeyValueStore(), STORE.KeyValueStore()

        def put(first: int, count: int) -> None:
            list(store.apply([
                Entry(index=at, term=1, pos=0, body=STORE.command("put", f"k{at}", value=f"v{at}"))
                for at in range(first, first + count)
            ]))

        put(0, 2500)
        long = ('{"does": "put", "key": "long", "value": "' + "\u00e9" * 2_000_000 + '"}').encode("utf-8")
        (reported,) = store.apply([Entry(index=2499, term=1, pos=0, body=long)])
        self.assertTrue(json.loads(reported)["done"])
        before = store.query(b"")
        pieces = store.snapshot()
        put(2500, 10)
        found = list(pieces)
        self.assertGreater(sum(map(len, found)), CHUNK_BYTES_MAX)
        self.assertLessEqual(max(map(len, found)), STORE.PIECE_BYTES)
        again.restore(found)
        self.assertEqual(again.query(b""), before)
        self.assertEqual(json.loads(again.query(b"k7")), {"value": "v7", "index": 7})
        with self.assertRaises(ValueError):
            STORE.KeyValueStore().restore([*found[:-1], found[-1][:-1]])
