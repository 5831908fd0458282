# -*- test-case-name: tests.node.test_endpoints -*-
"""Where a member listens, and how it reaches the others."""

from __future__ import annotations

from twisted.internet.abstract import isIPAddress, isIPv6Address
from twisted.internet.endpoints import HostnameEndpoint, quoteStringArgument
from twisted.internet.interfaces import IStreamClientEndpoint

from dledger.base.reactor import Reactor
from dledger.base.tls.securing import Dialling
from dledger.values.addresses import parse_address

#: Seconds that one attempt to connect may take.
CONNECT_TIME_OUT_S = 3.0

#: Seconds before the next address of a name is tried beside the first. Twisted's endpoint also reports no
#: failed attempt before this, even for a single address, and no other attempt begins meanwhile.
ATTEMPT_DELAY_S = 0.1


def listen_description(address: str) -> str:
    """
    The default endpoint of a member: the port of its own peer address, on that interface if the host is
    an IP address, else on all interfaces.
    """
    host, port = parse_address(address)
    if isIPAddress(host):
        return f"tcp:{port}:interface={host}"
    if isIPv6Address(host):
        return f"tcp6:{port}:interface={quoteStringArgument(host)}"
    return f"tcp:{port}"


def peer_endpoint(
    reactor: Reactor, dialling: Dialling | None, peer_id: str, address: str
) -> IStreamClientEndpoint:
    """The endpoint to another member. @param dialling: None without TLS."""
    host, port = parse_address(address)
    endpoint: IStreamClientEndpoint = HostnameEndpoint(
        reactor, host, port, timeout=CONNECT_TIME_OUT_S, attemptDelay=ATTEMPT_DELAY_S
    )
    return endpoint if dialling is None else dialling.dial(endpoint, peer_id)
