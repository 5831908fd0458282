# -*- test-case-name: tests.broker.ha.test_allowed -*-
"""
The hosts whose slaves a master accepts.

The wire has no identity: each connection gets the whole log, and its reports acknowledge puts. Without
C{ha_allowed_hosts} only slaves on the master's own host are accepted: over the loopback interface, or from
the address at which the connection arrived.
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

ANYONE = "*"


def _address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)
    return mapped or address


class AllowedHosts:
    """The meaning of C{ha_allowed_hosts}. Names must have been resolved to addresses before."""

    def __init__(self, hosts: Sequence[str]) -> None:
        """@param hosts: addresses, networks such as C{10.0.0.0/8}, or L{ANYONE}; empty: only this host."""
        self._hosts = tuple(hosts)
        self._networks: list[IPv4Network | IPv6Network] = []
        for host in hosts:
            try:
                self._networks.append(ip_network(host, strict=False))
            except ValueError:
                continue  # a name, or anyone

    @property
    def is_anyone(self) -> bool:
        """Whether every host is allowed."""
        return ANYONE in self._hosts

    def refusal(self, host: str, local_host: str) -> str:
        """
        The reason why a slave is not accepted; empty if it is.

        @param host: its address.
        @param local_host: our end of the connection.
        """
        if self.is_anyone or host in self._hosts:
            return ""
        address = _address(host)
        if address is not None and any(address in network for network in self._networks):
            return ""
        if self._hosts:
            return f"ha_allowed_hosts allows only {', '.join(self._hosts)}"
        if address is not None and (address.is_loopback or address == _address(local_host)):
            return ""
        return "only slaves on this host are allowed: name its address in ha_allowed_hosts"

    def sentence(self) -> str:
        """The rule, for the log at the start."""
        if self.is_anyone:
            return "from any host: anyone who reaches the port gets the log and counts as a slave"
        return f"from {', '.join(self._hosts)}" if self._hosts else "from this host only (ha_allowed_hosts)"
