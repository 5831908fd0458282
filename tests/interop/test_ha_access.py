# -*- test-case-name: tests.interop.test_ha_access -*-
"""Access control of our brokers, with Java's producers and consumers, a slave of ours, and our own client."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from dledger.rocketmq.client import Broker, Credentials, PutError
from tests.interop.ha import Client, OurBroker
from tests.interop.java import JavaMissing
from tests.interop.rocketmq import PATIENCE, Server, class_path
from tests.processes.children import ChildError, free_ports, free_triple, wait_until
from tests.processes.members import ROOT

TOPIC, GROUP = "protected", "readers"
ACCOUNTS = f"""
accounts:
- accessKey: producing
  secretKey: secret-of-producing
  topicPerms: [{TOPIC}=PUB]
- accessKey: consuming
  secretKey: secret-of-consuming
  topicPerms: [{TOPIC}=SUB]
  groupPerms: [{GROUP}=SUB]
- accessKey: following
  secretKey: secret-of-following
- accessKey: operating
  secretKey: secret-of-operating
  admin: true
"""
_DLEDGER = "from dledger.cli.main import main; main()"


def keys_of(name: str) -> tuple[str, str]:
    """Of an account of L{ACCOUNTS}."""
    return name, f"secret-of-{name}"


class AccessCase(SynchronousTestCase):
    """A master of ours, its slave, and Java's name server."""

    name_server_tls = "disabled"

    def settings(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Options of the master and of the slave."""
        raise NotImplementedError

    def begin(self, version: str) -> None:
        """Start them."""
        try:
            class_path(version)
        except JavaMissing as error:
            raise SkipTest(str(error)) from None
        held = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(held.cleanup)
        self.directory, self.version = Path(held.name), version
        name_port = self.start_name_server()
        self.name_server = f"127.0.0.1:{name_port}"
        self.master, self.slave = (
            OurBroker(name, self.directory / name, port=free_triple(), name_server=self.name_server)
            for name in ("master", "slave")
        )
        of_master, of_slave = self.settings()
        self.master.become("ASYNC_MASTER", **of_master)
        self.slave.become("SLAVE", **of_slave)
        for broker in (self.master, self.slave):
            self.addCleanup(broker.kill)
            broker.start()
            self.wait_said(broker, "listens at")

    def start_name_server(self) -> int:
        """Start it, Java's unless a subclass takes another. @return: its port."""
        (name_port,) = free_ports(1)
        server = Server("namesrv", "namesrv.NamesrvStartup", {"listenPort": name_port},
                        self.directory / "namesrv", self.version, tls_mode=self.name_server_tls)
        self.addCleanup(server.kill)
        server.start()
        server.wait_started()
        return name_port

    def wait_said(self, broker: OurBroker, words: str) -> None:
        """Wait until C{words} are in the log of a broker."""
        def has_said() -> bool:
            if not broker.is_running:
                raise ChildError(f"{broker.name} ended\n{broker.log_tail(30)}")
            return words in broker.log_path.read_text(errors="replace")

        wait_until(has_said, seconds=PATIENCE, what=f"{words} of {broker.name}", every=0.1)

    def statuses(self, client: Client, topic: str, first: int, count: int) -> set[str]:
        """The broker's answers to sends; a route may be missing at first."""
        found: set[str] = set()

        def is_known() -> bool:
            found.clear()
            found.update(sent.status for sent in client.produce(topic, first, count, window=4))
            return not any("No_route_info" in status for status in found)

        wait_until(is_known, seconds=PATIENCE, what="a route", every=0.5)
        return found

    def dledger(self, *words: object) -> subprocess.CompletedProcess[str]:
        """Run C{dledger}."""
        return subprocess.run(
            [sys.executable, "-c", _DLEDGER, *map(str, words)], capture_output=True, text=True,
            timeout=PATIENCE, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False,
        )

    def wait_equal(self) -> None:
        """Wait until the slave has the master's log."""
        def files(broker: OurBroker) -> list[bytes]:
            return [path.read_bytes() for path in sorted((broker.store / "commitlog").glob("[0-9]*"))]

        wait_until(lambda: files(self.master) == files(self.slave) != [], seconds=PATIENCE,
                   what="equal logs", every=0.2, notify=self.slave.log_tail)


class AccessTests(AccessCase):
    """With accounts."""

    def settings(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The same accounts; the slave asks its master with one of them."""
        (self.directory / "plain_acl.yml").write_text(ACCOUNTS)
        for name in ("following", "operating"):
            (self.directory / f"{name}.yml").write_text(f"accessKey: {name}\nsecretKey: secret-of-{name}\n")
        accounts = {"aclEnable": True, "acl_file": self.directory / "plain_acl.yml"}
        return accounts, {**accounts, "acl_credentials_file": self.directory / "following.yml"}

    def client(self, keys: tuple[str, str] | None) -> Client:
        """Java's clients with these keys."""
        home = self.directory / (keys[0] + keys[1] if keys else "stranger")
        home.mkdir(exist_ok=True)
        client = Client(self.name_server, home, self.version, keys=keys)
        self.addCleanup(client.kill)
        client.start()
        client.wait_started(seconds=PATIENCE)
        return client

    def play(self, version: str) -> None:
        """Who may, can; who may not, changes nothing."""
        self.begin(version)
        producer = self.client(keys_of("producing"))
        self.assertEqual(self.statuses(producer, TOPIC, 0, 100), {"SEND_OK"})
        for keys, words in (
            (None, "No_accessKey_is_configured"), (("producing", "another-secret"), "Check_signature_failed"),
            (keys_of("consuming"), f"No_permission_for_topic_'{TOPIC}'"),
        ):
            (status,) = self.statuses(self.client(keys), TOPIC, 1000, 1)
            self.assertIn(words, status)
        (status,) = self.statuses(producer, "another", 2000, 1)
        self.assertIn("No_permission_for_topic_'another'", status)
        consumer = self.client(keys_of("consuming"))
        consumer.consume(TOPIC, GROUP)
        self.assertEqual(consumer.received(GROUP, 100), (100, 0, 0))
        stranger = self.client(None)
        stranger.consume(TOPIC, "strangers")
        producer.produce(TOPIC, 100, 50, window=4)
        self.assertEqual(consumer.received(GROUP, 150), (150, 0, 0))
        self.assertEqual(stranger.received("strangers", 1, seconds=1), (0, 0, 0))
        self.own_clients()
        # The slave asks its master for the metadata with its own account.
        topics = self.slave.store / "config" / "topics.json"
        wait_until(lambda: topics.exists() and TOPIC in topics.read_text(), seconds=PATIENCE,
                   what="the slave's topics", every=0.2, notify=self.slave.log_tail)

    def own_clients(self) -> None:
        """Our producer and reader, and the command line."""
        with Broker(self.master.address, credentials=Credentials(*keys_of("producing"))) as broker:
            self.assertTrue(broker.put(TOPIC, b"ours"))
            error = self.assertRaises(PutError, broker.put, "another", b"ours")
            self.assertIn("No permission for topic 'another'", str(error))
        with Broker(self.master.address) as broker:
            self.assertRaises(PutError, broker.put, TOPIC, b"a stranger's")
        with Broker(self.master.address, credentials=Credentials(*keys_of("operating"))) as broker:
            records = [record for batch in broker.tail("begin") for _, record in batch.records()]
        self.assertEqual(len([record for record in records if b"message " in record]), 150)
        self.assertTrue(any(b"ours" in record for record in records))
        self.assertFalse(any(b"a stranger's" in record for record in records))
        keys = self.directory / "operating.yml"
        for words, status in ((("--broker-credentials", keys), 0), ((), 1)):
            done = self.dledger(*words, "ha-status", "--broker", self.master.address)
            self.assertEqual(done.returncode, status, done.stdout + done.stderr)

    def test_4_9_8(self) -> None:
        """The last of the releases before 5."""
        self.play("4.9.8")

    def test_5_3_3(self) -> None:
        """The present release."""
        self.play("5.3.3")
