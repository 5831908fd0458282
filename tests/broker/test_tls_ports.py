# -*- test-case-name: tests.broker.test_tls_ports -*-
"""Which connections of a broker are by TLS, and its refusals without sound keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
from twisted.internet.address import IPv4Address
from twisted.internet.protocol import Factory, ServerFactory
from twisted.internet.task import Clock
from twisted.logger import capturedLogs
from twisted.test.iosim import FakeTransport, connect

from dledger.base.tls.certificates import make_authority
from dledger.base.tls.keys import TlsKeys
from dledger.base.tls.ports import SecuredPort
from dledger.rocketmq.broker.access.tls_ports import BrokerTls
from dledger.rocketmq.broker.options.config import BrokerConfig, broker_from_mapping
from dledger.rocketmq.broker.service import KEYS_TICKS, TICK_S
from dledger.values.rights import ClientRole
from dledger.values.tls_files import TlsFiles
from protocols.rocketmq.commands import CommandConnection, OnlyAsking
from protocols.wire.remoting import RemotingCommand
from tests.base.keys import KeyRoom
from tests.base.test_tls import End, Kept, TlsCase, dialled
from tests.broker.test_service import ServiceCase
from tests.protocols.fakes import turn_of


def options_of(files: TlsFiles) -> dict[str, Any]:
    """The options for these files."""
    return {f"tls_{name}": path for name, path in attrs.asdict(files).items()}


class Port:
    """An endpoint that keeps its factory."""

    def listen(self, factory: Any) -> None:
        """Remember."""
        self.factory = factory


class PortTests(TlsCase):
    """
    Both ends in memory.

    @ivar lost: how the last connection of the served side ended.
    """

    lost = ""

    def config(self, **options: Any) -> BrokerConfig:
        """A master with keys."""
        return broker_from_mapping({"store": "s", **options_of(self.room.member("broker")), **options})

    def talk(
        self, config: BrokerConfig, client: TlsFiles | None, *, for_slaves: bool = False
    ) -> bytes:
        """What a port has heard from a client; None: one without TLS."""
        mine, theirs, port = End(), End(), Port()
        secured = BrokerTls.of(config, self.clock).port(port, for_slaves=for_slaves)  # type: ignore[arg-type]
        assert secured is not None
        secured.listen(ServerFactory.forProtocol(lambda: mine))  # type: ignore[arg-type]
        built = port.factory.buildProtocol(IPv4Address("TCP", "10.0.0.7", 4711))
        outer: Any = theirs
        if client is not None:
            endpoint = Kept()
            TlsKeys(client).dial(endpoint, None).connect(  # type: ignore[arg-type]
                Factory.forProtocol(lambda: theirs))  # type: ignore[arg-type]
            outer = endpoint.built
        served, asking = FakeTransport(built, isServer=True), FakeTransport(outer, isServer=False)
        pump = connect(built, served, outer, asking)
        theirs.transport.write(b"hello")
        pump.flush()
        self.lost = mine.lost
        return mine.heard

    def test_modes(self) -> None:
        """By mode: who is heard by TLS, and who without."""
        client = self.room.client("app", ClientRole.APPEND)
        for mode, by_tls, plain in (("permissive", b"hello", b"hello"), ("enforcing", b"hello", b"")):
            config = self.config(tls_mode=mode)
            self.assertEqual(self.talk(config, client), by_tls, mode)
            self.assertEqual(self.talk(config, None), plain, mode)
        port = Port()
        disabled = BrokerTls.of(self.config(tls_enable=True), self.clock)
        self.assertIs(disabled.port(port), port)  # type: ignore[arg-type]
        self.assertIsNone(disabled.port(None))

    def test_certificates_of_clients(self) -> None:
        """Not asked for, unless the option says so."""
        stranger = KeyRoom(Path(self.mktemp()))
        stranger.authority = make_authority("another authority", days=30)
        both = Path(self.mktemp())
        both.write_bytes(stranger.authority.certificate + self.room.authority.certificate)
        believing = attrs.evolve(stranger.client("app", ClientRole.APPEND), authority=str(both))
        own = self.room.client("app", ClientRole.APPEND)
        for options, for_slaves, heard in (
            ({}, False, b"hello"), ({"tls_client_auth": "require"}, False, b""),
            ({"tls_slave_auth": "any"}, True, b""),
        ):
            config = self.config(tls_mode="enforcing", **options)
            self.assertEqual(self.talk(config, believing, for_slaves=for_slaves), heard, options)
            self.assertEqual(self.talk(config, own, for_slaves=for_slaves), b"hello", options)

    def test_certificates_of_slaves(self) -> None:
        """One of a broker, unless every one of the authority will do; never one of another authority."""
        stranger = KeyRoom(Path(self.mktemp()))
        stranger.authority = make_authority("another authority", days=30)
        both = Path(self.mktemp())
        both.write_bytes(stranger.authority.certificate + self.room.authority.certificate)
        foreign = attrs.evolve(stranger.broker("slave"), authority=str(both))
        for mode in ("enforcing", "permissive"):
            role, every = self.config(tls_mode=mode), self.config(tls_mode=mode, tls_slave_auth="any")
            for files, by_role, by_every in (
                (self.room.broker("slave"), b"hello", b"hello"),
                (self.room.client("ops", ClientRole.ADMIN), b"", b"hello"),
                (self.room.member("n0"), b"", b"hello"), (foreign, b"", b""),
            ):
                self.assertEqual(self.talk(role, files, for_slaves=True), by_role, files.certificate)
                said = self.lost
                self.assertEqual(self.talk(every, files, for_slaves=True), by_every, files.certificate)
                is_named = "does not name dledger:role:slave" in said
                self.assertEqual(is_named, by_role != by_every, said)

    def test_outgoing(self) -> None:
        """Masters and name servers have a switch each."""
        endpoints: dict[str, Kept] = {}

        def plain(address: str) -> Any:
            return endpoints.setdefault(address, Kept())

        slave = {"brokerRole": "SLAVE", "namesrv": "ns:9876;ns2:9876"}
        for options, secure in (
            ({"tls_enable": True}, {"m:10911", "m:10912"}),
            ({"tls_namesrv_enable": True}, {"ns:9876", "ns2:9876"}),
        ):
            endpoint_of = BrokerTls.of(self.config(**slave, **options), self.clock).endpoint_of(plain)
            for address in ("m:10911", "m:10912", "ns:9876", "ns2:9876"):
                self.assertEqual(endpoint_of(address) is not plain(address), address in secure, options)
        none = BrokerTls.of(self.config(tls_mode="permissive"), self.clock)
        self.assertIs(none.endpoint_of(plain), plain)

    def test_first_word(self) -> None:
        """A command that is written before the handshake is over does not stop the handshake."""
        mine, port = End(), Port()
        config = self.config(tls_mode="enforcing")
        secured = BrokerTls.of(config, self.clock).port(port)  # type: ignore[arg-type]
        assert isinstance(secured, SecuredPort)
        secured.listen(ServerFactory.forProtocol(lambda: mine))  # type: ignore[arg-type]
        built = port.factory.buildProtocol(IPv4Address("TCP", "10.0.0.7", 4711))
        clock = Clock()
        connection = CommandConnection(OnlyAsking(), turn_of(clock))
        keys = TlsKeys(self.room.client("app", ClientRole.READ))
        outer = dialled(keys, connection, "broker")  # type: ignore[arg-type]
        served, asking = FakeTransport(built, isServer=True), FakeTransport(outer, isServer=False)
        pump = connect(built, served, outer, asking)
        asked = connection.ask(RemotingCommand(code=28, opaque=0))
        clock.advance(0)
        pump.flush()
        self.assertIn(b'"code":28', mine.heard)
        connection.abort("enough")
        self.failureResultOf(asked)


class ConfigTests(TlsCase):
    """Options that make no sense together."""

    def test_refused(self) -> None:
        """Each with its reason."""
        keys = options_of(self.room.member("broker"))
        for options, words in (
            ({"tls_mode": "enforcing"}, "tls_mode=enforcing needs tls_certificate, tls_key and"),
            ({"tls_enable": "true"}, "tls_enable=true needs tls_certificate"),
            ({"tls_mode": "on", **keys}, "tls_mode"), (keys, "nothing uses it"),
            ({"tls_mode": "enforcing", **keys, "tls_key": ""}, "missing: tls_key"),
            ({"tls_client_auth": "require", "tls_enable": "true", **keys}, "needs tls_mode=permissive"),
            ({"useTLS": "true"}, "say tls_enable=true"),
        ):
            error = self.assertRaises(ValueError, broker_from_mapping, {"store": "s", **options})
            self.assertIn(words, str(error))


class ServiceTests(ServiceCase):
    """The life of a broker with keys."""

    def setUp(self) -> None:
        super().setUp()
        self.room = KeyRoom(Path(self.mktemp()))

    def test_missing(self) -> None:
        """Without sound keys it does not start, and makes no file."""
        files = self.room.member("broker")
        self.start(tls_mode="enforcing", **options_of(attrs.evolve(files, key="/nowhere/b.key")))
        self.assertIn("cannot start with TLS: tls_key=/nowhere/b.key: No such file", self.reasons[0])
        self.stop()

    def test_new_keys(self) -> None:
        """New files are in use without a restart; the log says so."""
        self.start(tls_mode="permissive", **options_of(self.room.member("broker")))
        self.room.member("broker", days=20)
        with capturedLogs() as events:
            self.settle((KEYS_TICKS + 1) * TICK_S)
        said = [event["log_format"].format(**event) for event in events if "owner" in event]
        self.assertTrue(any("ASYNC_MASTER b: new TLS keys are in use" in one for one in said), said)
        self.stop()
