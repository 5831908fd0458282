# -*- test-case-name: tests.interop.test_ha_tls -*-
"""Brokers of ours by TLS: Java's clients, a slave of ours, our own clients, and all of them without."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import attrs

from dledger.rocketmq.client import Broker, PutError
from dledger.values.rights import ClientRole
from dledger.values.tls_files import TlsFiles
from protocols.wire.rocketmq.ha import encode_report
from tests.base.keys import KeyRoom
from tests.interop.ha import Client
from tests.interop.name_servers import OurNameServer
from tests.interop.test_ha_access import AccessCase

TOPIC = "secret"


class TlsPairCase(AccessCase):
    """A master that takes nothing but TLS, and its slave."""

    name_server_tls = "permissive"
    keys: KeyRoom | None = None

    def settings(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Of the master, and of the slave, which takes both kinds."""
        self.keys = self.keys or KeyRoom(self.directory / "keys")
        master, slave = (
            {f"tls_{part}": path for part, path in attrs.asdict(self.keys.broker(name)).items()}
            for name in ("master", "slave")
        )
        return {**master, "tls_mode": "enforcing"}, {**slave, "tls_mode": "permissive", "tls_enable": True}

    def java(self, name: str, *, tls: bool) -> Client:
        """Java's clients."""
        home: Path = self.directory / name
        home.mkdir()
        client = Client(self.name_server, home, self.version, tls=tls)
        self.addCleanup(client.kill)
        client.start()
        client.wait_started(seconds=120)
        return client

    def play(self, version: str) -> None:
        """By TLS everything works, without it nothing."""
        self.begin(version)
        client = self.java("secure", tls=True)
        self.assertEqual(self.statuses(client, TOPIC, 0, 100), {"SEND_OK"})
        (status,) = self.statuses(self.java("plain", tls=False), TOPIC, 1000, 1)
        self.assertIn("FAILED", status)
        client.consume(TOPIC, "readers")
        self.assertEqual(client.received("readers", 100), (100, 0, 0))
        files = self.keys.client("app", ClientRole.APPEND)
        self.own_clients(files)
        self.wait_equal()
        self.assertEqual(self.strange_slave(), b"")
        # A slave serves both kinds.
        for tls in (files, None):
            with Broker(self.slave.address, tls=tls) as broker:
                records = [record for batch in broker.tail("begin") for _, record in batch.records()]
            self.assertEqual(len([record for record in records if b"message " in record]), 100)

    def own_clients(self, files: TlsFiles) -> None:
        """Our producer and the command line."""
        with Broker(self.master.address, tls=files) as broker:
            self.assertTrue(broker.put(TOPIC, b"ours"))
        other = KeyRoom(self.directory / "other").client("app", ClientRole.APPEND)
        for tls in (None, other):
            with Broker(self.master.address, timeout=2.0, tls=tls) as broker:
                self.assertRaises(PutError, broker.put, TOPIC, b"a stranger's")
        words = [word for name, path in attrs.asdict(files).items() for word in (f"--tls-{name}", path)]
        for given, status in ((words, 0), ([], 1)):
            done = self.dledger("--timeout", 5, *given, "ha-status", "--broker", self.master.address)
            self.assertEqual(done.returncode, status, done.stdout + done.stderr)

    def strange_slave(self) -> bytes:
        """What a slave without TLS is sent of the log."""
        heard = b""
        with socket.create_connection(("127.0.0.1", self.master.port + 1), timeout=10) as connection:
            connection.settimeout(2.0)
            try:
                connection.sendall(encode_report(0))
                while data := connection.recv(65536):
                    heard += data
            except OSError:
                pass
        return heard


class TlsTests(TlsPairCase):
    """With a name server of Java."""

    def test_4_9_8(self) -> None:
        """The last of the releases before 5."""
        self.play("4.9.8")

    def test_5_3_3(self) -> None:
        """The present release."""
        self.play("5.3.3")


class OurNameServerTests(TlsPairCase):
    """The same with a name server of ours, which takes nothing but TLS, as the brokers do."""

    def start_name_server(self) -> int:
        self.keys = KeyRoom(self.directory / "keys")
        directory = self.directory / "namesrv"
        directory.mkdir()
        keys = attrs.asdict(self.keys.member("namesrv"))
        words = [f"--set=tls_{name}={path}" for name, path in {**keys, "mode": "enforcing"}.items()]
        server = OurNameServer(directory, *words)
        self.addCleanup(server.kill)
        server.start()
        server.wait_started()
        return server.port

    def settings(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """See L{TlsPairCase.settings}: both brokers ask the name server by TLS."""
        master, slave = super().settings()
        return {**master, "tls_namesrv_enable": True}, {**slave, "tls_namesrv_enable": True}

    def own_clients(self, files: TlsFiles) -> None:
        """See L{TlsPairCase.own_clients}; and the name server by the command line."""
        super().own_clients(files)
        words = [word for name, path in attrs.asdict(files).items() for word in (f"--tls-{name}", path)]
        for given, status in ((words, 0), ([], 1)):
            done = self.dledger("--timeout", 5, *given, "ha-status", "--namesrv", self.name_server)
            self.assertEqual(done.returncode, status, done.stdout + done.stderr)

    def test_5_3_3(self) -> None:
        """One release is enough."""
        self.play("5.3.3")
