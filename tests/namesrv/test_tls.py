# -*- test-case-name: tests.namesrv.test_tls -*-
"""A name server with TLS: whom it hears, and its life with keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
from twisted.application.service import Service
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred, succeed
from twisted.internet.protocol import Factory
from twisted.logger import capturedLogs, formatEvent
from twisted.test.iosim import FakeTransport, connect

from dledger.base.tls.keys import TlsKeys
from dledger.rocketmq.namesrv.config import name_server_from_mapping
from dledger.rocketmq.namesrv.service import KEYS_S, NameServerService
from dledger.values.rights import ClientRole
from dledger.values.tls_files import TlsFiles
from protocols.wire.remoting import RemotingCommand, encode_command
from tests.base.keys import KeyRoom
from tests.base.test_tls import End, Kept
from tests.broker.test_service import Endpoint
from tests.namesrv.test_service import ServiceCase


class Listening(Endpoint):
    """Keeps what listens."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        super().__init__(9876)
        self.port.host = host  # type: ignore[attr-defined]
        self.factory: Any = None

    def listen(self, protocolFactory: Any) -> Deferred[Any]:
        """See IStreamServerEndpoint."""
        self.factory = protocolFactory
        return succeed(self.port)


def options_of(files: TlsFiles) -> dict[str, Any]:
    """The options for these files."""
    return {f"tls_{name}": path for name, path in attrs.asdict(files).items()}


class TlsServiceTests(ServiceCase):
    """Clients in memory, real handshakes."""

    def setUp(self) -> None:
        super().setUp()
        self.room = KeyRoom(Path(self.mktemp()))
        self.files = self.room.member("namesrv")
        self.endpoint = Listening()

    def begin(self, **options: Any) -> NameServerService:
        """A name server that listens."""
        service = self.make(self.endpoint, **options)
        service.startService()
        self.settle()
        self.addCleanup(self.stop, service)
        return service

    def ask(self, client: TlsFiles | None, code: int = 106) -> bytes:
        """The answer to a question, by default for all clusters. @param client: None: without TLS."""
        theirs = End()
        outer: Any = theirs
        if client is not None:
            kept = Kept()
            TlsKeys(client).dial(kept, None).connect(  # type: ignore[arg-type]
                Factory.forProtocol(lambda: theirs))  # type: ignore[arg-type]
            outer = kept.built
        built = self.endpoint.factory.buildProtocol(IPv4Address("TCP", "10.0.0.7", 4711))
        served, asking = FakeTransport(built, isServer=True), FakeTransport(outer, isServer=False)
        pump = connect(built, served, outer, asking)
        theirs.transport.write(encode_command(RemotingCommand(code=code, opaque=7, version=409)))
        for _ in range(3):
            pump.flush()
            self.settle()
        for side in (served, asking):
            side.abortConnection()
        pump.flush()
        return theirs.heard

    def test_modes(self) -> None:
        """By mode: who is answered by TLS, and who without."""
        client = self.room.client("app", ClientRole.READ)
        for options, by_tls, plain in (
            ({}, False, True),
            ({"tls_mode": "permissive", **options_of(self.files)}, True, True),
            ({"tlsMode": "enforcing", **options_of(self.files)}, True, False),
        ):
            service = self.make(self.endpoint, **options)
            service.startService()
            self.settle()
            self.assertEqual(b"clusterAddrTable" in self.ask(client), by_tls, options)
            self.assertEqual(b"clusterAddrTable" in self.ask(None), plain, options)
            self.stop(service)

    def test_certificates_of_clients(self) -> None:
        """Those of another authority are refused if certificates are asked for."""
        self.begin(tls_mode="enforcing", tls_client_auth="require", **options_of(self.files))
        other = KeyRoom(Path(self.mktemp())).client("eve", ClientRole.ADMIN)
        both = Path(self.mktemp())
        both.write_bytes(Path(other.authority).read_bytes() + Path(self.files.authority).read_bytes())
        believing = attrs.evolve(other, authority=str(both))
        self.assertEqual(self.ask(believing), b"")
        self.assertIn(b"clusterAddrTable", self.ask(self.room.client("app")))

    def test_names_of_brokers(self) -> None:
        """By the certificate of each connection, where everybody shows one."""
        for auth, asks in (("none", False), ("require", True)):
            service = self.make(self.endpoint, tls_mode="enforcing", tls_client_auth=auth,
                                **options_of(self.files))
            service.startService()
            self.settle()
            self.assertEqual(service.commands.uris_of is not None, asks)
            self.stop(service)
        seen: list[object] = []
        service = self.begin(tls_mode="enforcing", tls_client_auth="require", **options_of(self.files))
        uris_of = service.commands.uris_of
        assert uris_of is not None
        self.patch(service.side, "commands_received", lambda connection, _: seen.append(uris_of(connection)))
        self.ask(self.room.broker("bk-1", brokers=["bk"]))
        self.assertEqual(seen, [{"dledger:role:slave", "dledger:broker:bk"}])

    def test_changes(self) -> None:
        """From another machine they need a certificate of the client, not only TLS."""
        client = self.room.client("app")
        for auth, is_taken in (("none", False), ("require", True)):
            service = self.make(self.endpoint, tls_mode="permissive", tls_client_auth=auth,
                                **options_of(self.files))
            service.startService()
            self.settle()
            self.assertEqual(b"is a change" not in self.ask(client, 216), is_taken, auth)
            self.assertIn(b"is a change", self.ask(None, 216))
            self.stop(service)

    def test_missing_keys(self) -> None:
        """It does not start."""
        files = attrs.evolve(self.files, key="/nowhere/n.key")
        service = self.make(self.endpoint, tls_mode="enforcing", **options_of(files))
        service.startService()
        self.assertIn("cannot start with TLS: tls_key=/nowhere/n.key", self.reasons[0])
        self.assertIsNone(self.endpoint.factory)
        self.stop(service)

    def test_missing_tokens(self) -> None:
        """Nor does it without the file of tokens of its pages."""

        def make_admin(_service: NameServerService) -> Service:
            raise ValueError("admin_token_file=t: No such file")

        reactor: Any = self.clock
        made: Any = self.endpoint
        service = NameServerService(
            name_server_from_mapping({}), reactor, made, disk=self.disk, failed=self.reasons.append,
            threads=self.make().options and self.threads, wall_s=lambda: 0.0, make_admin=make_admin,
        )
        service.startService()
        self.assertIn("cannot start the administration: admin_token_file=t", self.reasons[0])
        self.stop(service)

    def test_new_keys(self) -> None:
        """They are in use without a restart, and the end of the certificate is known."""
        service = self.begin(tls_mode="permissive", **options_of(self.files))
        before = service.status().tls_expires_s
        self.room.member("namesrv", days=20)
        with capturedLogs() as events:
            self.settle(KEYS_S + 1.0)
        self.assertIn("name server: new TLS keys are in use", [formatEvent(one) for one in events])
        self.assertLess(service.status().tls_expires_s, before)

    def test_warning(self) -> None:
        """A plain port beyond the loopback interface is reported, unless the operator has said so."""
        for host, options, is_warned in (
            ("0.0.0.0", {}, True), ("127.0.0.1", {}, False), ("0.0.0.0", {"insecure": "true"}, False),
            ("0.0.0.0", {"tls_mode": "permissive", **options_of(self.files)}, False),
        ):
            self.endpoint = Listening(host)
            with capturedLogs() as events:
                service = self.make(self.endpoint, **options)
                service.startService()
                self.settle()
            said = [str(formatEvent(event)) for event in events]
            self.assertEqual(any("without TLS" in one for one in said), is_warned, (host, options))
            self.assertEqual(service.status().tls_expires_s == -1.0, "tls_mode" not in options)
            self.stop(service)
