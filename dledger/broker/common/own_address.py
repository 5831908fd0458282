# -*- test-case-name: tests.broker.test_parts -*-
"""
The address of a broker: in every message that it stores, and in its registrations.

With port 0 the system assigns the port, so the address is known when the first port listens. Parts of the
broker are made before that; they read the address when a request comes, which is after that.
"""

from __future__ import annotations

from dledger.base.addresses import parse_address
from protocols.wire.rocketmq.message import Host


class OwnAddress:
    """
    Invariant: it changes once, from unknown to known.

    @ivar text: C{host:port} as clients and name servers are told; empty while it is unknown.
    @ivar host: the same as part of messages; 0.0.0.0:0 while it is unknown.
    @ivar id_start: the first part of the id of each message: the host in hexadecimal.
    """

    def __init__(self) -> None:
        self.text = ""
        self._keep(Host.of("0.0.0.0", 0))

    def bind(self, host: str, port: int) -> None:
        """
        The broker listens.

        @param host: IPv4 or IPv6 address under which clients reach it.
        @raise ValueError: not an address.
        """
        assert not self.text, f"the address is {self.text} already"
        self.text = f"{bracketed(host)}:{port}"
        self._keep(Host.of(*parse_address(self.text)))

    def _keep(self, host: Host) -> None:
        self.host = host
        self.id_start = (host.address + host.port.to_bytes(4, "big")).hex().upper().encode()


def bracketed(host: str) -> str:
    """An address as part of C{host:port}: IPv6 in brackets."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
