# -*- test-case-name: tests.admin.test_asking -*-
"""
An HTTP agent for requests to the admin pages of members, brokers and name servers.

It connects by TLS for C{https}, and can send a token with each request.

Rule: a token is sent by TLS, or to the loopback interface of this machine; never elsewhere.
"""

from __future__ import annotations

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IProtocol, IProtocolFactory, IStreamClientEndpoint
from twisted.internet.protocol import Factory
from twisted.web.client import URI, Agent, HTTPConnectionPool
from twisted.web.http_headers import Headers
from twisted.web.iweb import IAgent, IAgentEndpointFactory, IBodyProducer, IResponse
from zope.interface import implementer

from dledger.base.reactor import Reactor
from dledger.base.serving.endpoints import HostEndpoint
from dledger.base.tls.securing import Dialling
from dledger.values.addresses import is_loopback


@implementer(IStreamClientEndpoint)
@attrs.frozen
class _Quiet:
    """Keeps Twisted from logging the start and the end of each connection to an endpoint."""

    endpoint: IStreamClientEndpoint

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        if isinstance(protocolFactory, Factory):
            protocolFactory.noisy = False
        return self.endpoint.connect(protocolFactory)


@implementer(IAgentEndpointFactory)
@attrs.frozen
class _Endpoints:
    """
    Makes the endpoint for each request.

    @ivar timeout_s: for each attempt to connect.
    @ivar trust: connects by TLS; None: a request for C{https} fails.
    @ivar name: the name that the certificate of the other end must have; None: the host in the URL.
    """

    reactor: Reactor
    timeout_s: float
    trust: Dialling | None
    name: str | None

    def endpointForURI(self, uri: URI) -> IStreamClientEndpoint:
        """
        Make the endpoint for one request (L{IAgentEndpointFactory}).

        @raise ValueError: the URL asks for TLS, and no authority is known.
        """
        host = uri.host.decode("ascii").strip("[]")
        endpoint = HostEndpoint(self.reactor, host, uri.port, self.timeout_s)
        if uri.scheme != b"https":
            return _Quiet(endpoint)
        if self.trust is None:
            raise ValueError("it is asked by TLS, and no authority is known here")
        return _Quiet(self.trust.dial(endpoint, host if self.name is None else self.name))


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
        """
        Send one request with the token (L{IAgent.request}).

        @raise ValueError: the token would leave this machine without TLS.
        """
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
    An agent that opens a connection for each request.

    @param timeout_s: for each attempt to connect.
    @param trust: for C{https}; None: such requests fail.
    @param name: that the certificate of the other end must have; None: the host in the URL.
    @param token: is sent with each request; empty: no token is sent.
    """
    pool = HTTPConnectionPool(reactor, persistent=False)
    endpoints = _Endpoints(reactor, timeout_s, trust, name)
    agent: IAgent = Agent.usingEndpointFactory(reactor, endpoints, pool)
    return _WithToken(agent, token) if token else agent
