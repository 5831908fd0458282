# -*- test-case-name: tests.broker.test_tls_ports,tests.namesrv.test_tls -*-
"""
TLS on a port of RocketMQ's kind, by wrapping its endpoint: the protocols behind it know nothing of it.

Rule: one port takes both kinds, as RocketMQ's do: the first byte of a connection shows. With C{enforcing}
plain ones end, with C{disabled} those by TLS do.

Source: NettyRemotingServer.HandshakeHandler, TlsSystemConfig (4.9.8, 5.3.3).
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import (
    IListeningPort,
    IProtocolFactory,
    IReactorTime,
    IStreamServerEndpoint,
)
from zope.interface import implementer

from dledger.base.tls.securing import Securing

#: Every address, for connections without TLS.
_EVERYWHERE = ("0.0.0.0/0", "::/0")


@implementer(IStreamServerEndpoint)
class SecuredPort:
    """Listens at an endpoint, with a factory that C{secure} makes of the given one."""

    def __init__(
        self, endpoint: IStreamServerEndpoint, secure: Callable[[IProtocolFactory], IProtocolFactory]
    ) -> None:
        self._endpoint = endpoint
        self._secure = secure

    def listen(self, protocolFactory: IProtocolFactory) -> Deferred[IListeningPort]:
        listening: Deferred[IListeningPort] = self._endpoint.listen(self._secure(protocolFactory))
        return listening


def secured_port(
    endpoint: IStreamServerEndpoint, keys: Securing | None, mode: str, *, demands_certificate: bool,
    clock: IReactorTime, needed_uri: str = "",
) -> IStreamServerEndpoint:
    """
    An endpoint with TLS.

    @param keys: None: it stays as it is.
    @param mode: one of L{TLS_MODES <dledger.values.tls_files.TLS_MODES>}.
    @param demands_certificate: whether the other end must show a certificate of the authority.
    @param needed_uri: a URI that it must name; empty: none.
    """
    if keys is None or mode == "disabled":
        return endpoint
    plain_hosts = _EVERYWHERE if mode == "permissive" else ()

    def secure(factory: IProtocolFactory) -> IProtocolFactory:
        return keys.listen(
            factory, plain_hosts=plain_hosts, clock=clock, demands_certificate=demands_certificate,
            needed_uri=needed_uri,
        )

    return SecuredPort(endpoint, secure)
