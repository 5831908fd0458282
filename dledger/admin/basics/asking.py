# -*- test-case-name: tests.admin.test_asking -*-
"""
Asks administrations over HTTP, also by TLS and with a token.

Rule: a token is sent by TLS, or to the loopback interface; never elsewhere.
"""

from __future__ import annotations

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.web.client import URI, Agent, HTTPConnectionPool, _HTTP11ClientFactory
from twisted.web.http_headers import Headers
from twisted.web.iweb import IAgent, IAgentEndpointFactory, IBodyProducer, IResponse
from zope.interface import implementer

from dledger.base.process.reactor import Reactor
from dledger.base.serving.endpoints import HostEndpoint
from dledger.base.tls.securing import Dialling
from dledger.values.addresses import is_loopback


class _QuietFactory(_HTTP11ClientFactory):
    """Twisted logs the start and the end of each connection otherwise."""

    noisy = False


@implementer(IAgentEndpointFactory)
@attrs.frozen
class _Endpoints:
    """@ivar name: the name in the certificate of the other end; None: its host."""

    reactor: Reactor
    timeout_s: float
    trust: Dialling | None
    name: str | None

    def endpointForURI(self, uri: URI) -> IStreamClientEndpoint:
        """See L{IAgentEndpointFactory}."""
        host = uri.host.decode("ascii").strip("[]")
        endpoint = HostEndpoint(self.reactor, host, uri.port, self.timeout_s)
        if uri.scheme != b"https":
            return endpoint
        if self.trust is None:
            raise ValueError("it is asked by TLS, and no authority is known here")
        return self.trust.dial(endpoint, host if self.name is None else self.name)


@implementer(IAgent)
@attrs.frozen
class _WithToken:
    """Adds a token to each request."""

    agent: IAgent
    token: str

    def request(
        self, method: bytes, uri: bytes, headers: Headers | None = None,
        bodyProducer: IBodyProducer | None = None,
    ) -> Deferred[IResponse]:
        """See L{IAgent.request}."""
        parsed = URI.fromBytes(uri)
        if parsed.scheme != b"https" and not is_loopback(parsed.host.decode("ascii").strip("[]")):
            raise ValueError("the token is not sent without TLS: write https://")
        headers = Headers() if headers is None else headers.copy()
        headers.setRawHeaders("authorization", [f"Bearer {self.token}"])
        return self.agent.request(method, uri, headers, bodyProducer)


def admin_agent(
    reactor: Reactor, timeout_s: float, *, trust: Dialling | None = None, name: str | None = None,
    token: str = "",
) -> IAgent:
    """
    Asks administrations; each request has a connection of its own.

    @param timeout_s: for each attempt to connect.
    @param trust: for C{https}; None: such requests fail.
    @param name: that the certificate of the other end must have; None: the host in the URL.
    @param token: is sent with each request; empty: none.
    """
    pool = HTTPConnectionPool(reactor, persistent=False)
    pool._factory = _QuietFactory
    endpoints = _Endpoints(reactor, timeout_s, trust, name)
    agent: IAgent = Agent.usingEndpointFactory(reactor, endpoints, pool)
    return _WithToken(agent, token) if token else agent
