# -*- test-case-name: tests.broker.test_tls_ports -*-
"""
TLS for a broker's connections, by wrapping its endpoints: the other parts know nothing of it.

Rule 1: one port takes both kinds, as RocketMQ's do: the first byte of a connection tells. With C{enforcing}
the others end, with C{disabled} those by TLS do.
Rule 2: clients may stay without a certificate (RocketMQ's default), unless C{tls_client_auth} says otherwise.
A slave that copies the log by TLS must show one of the authority.
Rule 3: a slave believes a master that shows a certificate of the authority, with any name: brokers have
addresses from name servers, not names.

Source: NettyRemotingServer.HandshakeHandler, TlsSystemConfig (4.9.8, 5.3.3).
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import (
    IListeningPort,
    IProtocolFactory,
    IReactorTime,
    IStreamClientEndpoint,
    IStreamServerEndpoint,
)
from zope.interface import implementer

from dledger.base.tls.securing import Securing, secured
from dledger.broker.common.config import BrokerConfig

#: Every address, for connections without TLS.
_EVERYWHERE = ("0.0.0.0/0", "::/0")
EndpointOf = Callable[[str], IStreamClientEndpoint]


@implementer(IStreamServerEndpoint)
class SecuredPort:
    """Listens at an endpoint, with a factory that C{secure} makes of the given one."""

    def __init__(
        self, endpoint: IStreamServerEndpoint, secure: Callable[[IProtocolFactory], IProtocolFactory]
    ) -> None:
        self._endpoint = endpoint
        self._secure = secure

    def listen(self, protocolFactory: IProtocolFactory) -> Deferred[IListeningPort]:
        """See L{IStreamServerEndpoint.listen}."""
        listening: Deferred[IListeningPort] = self._endpoint.listen(self._secure(protocolFactory))
        return listening


@attrs.frozen
class BrokerTls:
    """
    The keys of one broker, and their uses.

    @ivar keys: None: no connection is by TLS.
    """

    config: BrokerConfig
    keys: Securing | None
    clock: IReactorTime

    @classmethod
    def of(cls, config: BrokerConfig, clock: IReactorTime) -> BrokerTls:
        """@raise ValueError: a package or a file is missing, or a file is not sound."""
        return cls(config, secured(config.tls_files), clock)

    def port(
        self, endpoint: IStreamServerEndpoint | None, *, for_slaves: bool = False
    ) -> IStreamServerEndpoint | None:
        """The endpoint with TLS as C{tls_mode} says; None stays None."""
        keys, config = self.keys, self.config
        if endpoint is None or keys is None or config.tls_mode == "disabled":
            return endpoint
        plain_hosts = _EVERYWHERE if config.tls_mode == "permissive" else ()
        demands_certificate = for_slaves or config.tls_client_auth == "require"

        def secure(factory: IProtocolFactory) -> IProtocolFactory:
            return keys.listen(
                factory, plain_hosts=plain_hosts, clock=self.clock, demands_certificate=demands_certificate
            )

        return SecuredPort(endpoint, secure)

    def endpoint_of(self, plain: EndpointOf) -> EndpointOf:
        """From C{host:port} to the endpoint, by TLS if C{tls_enable} or C{tls_namesrv_enable} says so."""
        keys, config, name_servers = self.keys, self.config, self.config.name_servers
        if keys is None or not (config.tls_enable or config.tls_namesrv_enable):
            return plain

        def endpoint_of(address: str) -> IStreamClientEndpoint:
            is_secure = config.tls_namesrv_enable if address in name_servers else config.tls_enable
            return keys.dial(plain(address), None) if is_secure else plain(address)

        return endpoint_of
