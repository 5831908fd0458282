# -*- test-case-name: tests.broker.test_parts -*-
"""
The address of a broker, for the messages that it stores and for its registrations.

With port 0 the system assigns the port, so the address is known when the first port listens. The parts of the
broker are made before that, but read the address only when a request arrives, which is later.
"""

from __future__ import annotations

from dledger.values.addresses import parse_address
from protocols.wire.rocketmq.message import Host


class OwnAddress:
    """
    Invariant: it changes once, from unknown to known.

    @ivar text: C{host:port} for clients and name servers; empty while unknown.
    @ivar host: the same for messages; 0.0.0.0:0 while unknown.
    @ivar id_start: the first part of the id of each message: the host in hexadecimal.
    """

    def __init__(self) -> None:
        self.text = ""
        self._keep(Host.of("0.0.0.0", 0))

    def bind(self, host: str, port: int) -> None:
        """
        Set the address; called when the first port listens.

        @param host: IPv4 or IPv6 address for clients.
        @raise ValueError: C{host} is not an IP address.
        """
        assert not self.text, f"the address is {self.text} already"
        self.text = f"{bracketed(host)}:{port}"
        self._keep(Host.of(*parse_address(self.text)))

    def _keep(self, host: Host) -> None:
        self.host = host
        self.id_start = (host.address + host.port.to_bytes(4, "big")).hex().upper().encode()


def bracketed(host: str) -> str:
    """The host part of C{host:port}: an IPv6 address gets brackets."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
