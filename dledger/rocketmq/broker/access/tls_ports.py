# -*- test-case-name: tests.broker.test_tls_ports -*-
"""
TLS for a broker's connections, by wrapping its endpoints: the other parts know nothing of it.

Rule 1: its ports are those of L{dledger.base.tls.ports}.
Rule 2: clients may stay without a certificate (RocketMQ's default), unless C{tls_client_auth} says otherwise.
A slave that copies the log by TLS must show one of the authority that says that it is a slave's
(L{SLAVE_URI}): keys of clients are more, and in more hands. C{tls_slave_auth=any} takes every one.
Rule 3: a slave believes a master that shows a certificate of the authority, with any name: brokers have
addresses from name servers, not names.

Source: TlsSystemConfig (4.9.8, 5.3.3).
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
from twisted.internet.interfaces import IReactorTime, IStreamClientEndpoint, IStreamServerEndpoint

from dledger.base.tls.ports import secured_port
from dledger.base.tls.securing import Securing, secured
from dledger.rocketmq.broker.options.config import BrokerConfig
from dledger.values.rights import SLAVE_URI

EndpointOf = Callable[[str], IStreamClientEndpoint]


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
        if endpoint is None:
            return None
        config = self.config
        return secured_port(
            endpoint, self.keys, config.tls_mode, clock=self.clock,
            demands_certificate=for_slaves or config.tls_client_auth == "require",
            needed_uri=SLAVE_URI if for_slaves and config.tls_slave_auth == "role" else "",
        )

    def endpoint_of(self, plain: EndpointOf) -> EndpointOf:
        """From C{host:port} to the endpoint, by TLS if C{tls_enable} or C{tls_namesrv_enable} says so."""
        keys, config, name_servers = self.keys, self.config, self.config.name_servers
        if keys is None or not (config.tls_enable or config.tls_namesrv_enable):
            return plain

        def endpoint_of(address: str) -> IStreamClientEndpoint:
            is_secure = config.tls_namesrv_enable if address in name_servers else config.tls_enable
            return keys.dial(plain(address), None) if is_secure else plain(address)

        return endpoint_of
