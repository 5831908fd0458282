# -*- test-case-name: tests.base.test_hosts -*-
"""
Options that name hosts by address, and the one that says who may ask for changes.

A port without TLS and without accounts knows nobody by name. So what changes a group, a broker, or a name
server for all, is taken there from this machine's loopback interface, and from the hosts of C{change_hosts}:
an operator has the machine, or an address that somebody has named.

Rule 1: an IPv4 address in the form of IPv6 (C{::ffff:10.0.0.7}) is one of IPv4; a zone does not count.
Rule 2: an end without a host is a socket of the file system, so of this machine. A host that is not an IP
address is allowed by C{*} alone.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from dledger.values.addresses import is_loopback
from dledger.values.option_values import listed

#: Addresses.
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

#: Every host, and no host, in C{change_hosts}.
ANY_HOST, NO_HOST = "*", "none"


def networks_of(hosts: Iterable[str], option: str) -> tuple[Network, ...]:
    """
    The networks that an option names.

    @param hosts: IP addresses or networks (C{10.0.0.0/24}).
    @param option: its name, for the error.
    @raise ValueError: an entry is neither an address nor a network.
    """
    return tuple(_network(host, option) for host in hosts)


def host_list(value: str | Iterable[str]) -> tuple[str, ...]:
    """The value of an option that lists hosts. @param value: C{a;b}, or a list."""
    return listed(value) if isinstance(value, str) else tuple(value)


def _network(host: object, option: str) -> Network:
    try:
        if not isinstance(host, str):  # a number would be an address, too
            raise ValueError("it is not a text")
        network = ipaddress.ip_network(host)
    except ValueError as error:
        raise ValueError(f"{option}: {host!r} is neither an IP address nor a network ({error})") from None
    if isinstance(network, ipaddress.IPv6Network) and network.prefixlen >= 96:
        mapped = network.network_address.ipv4_mapped
        if mapped is not None:
            return ipaddress.IPv4Network((mapped, network.prefixlen - 96))
    return network


def end_host(end: object) -> str:
    """
    The host of one end of a connection; empty if there is none.

    @param end: what its transport shows, such as C{getPeer()}. That of a socket of the file system has a
        C{name} instead of a host.
    """
    host = getattr(end, "host", None)
    return ("localhost" if hasattr(end, "name") else "") if host is None else str(host)


def host_text(host: str) -> str:
    """The usual form of an IP address: IPv4 in IPv6 is IPv4, without a zone. Other text stays as it is."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    return str(getattr(address, "ipv4_mapped", None) or address)


def shared_address(host: str) -> str:
    """
    The address by which the share of a client is counted: IPv4 whole, IPv6 as its network of 64 bits, which
    a customer of a provider has at least. All addresses of this machine are one. Other text stays as it is.
    """
    text = host_text(host)
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return text
    if address.is_loopback:
        return "127.0.0.1"
    if address.version == 4:
        return text
    return str(ipaddress.IPv6Network((int(address) >> 64 << 64, 64)))


def is_within(host: str, networks: Iterable[Network]) -> bool:
    """Whether a host is in one of these networks. @param host: an IP address; other text is in none."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return any((mapped or address) in network for network in networks)


class ChangeHosts:
    """The meaning of C{change_hosts}: who may ask for changes without TLS and without an account."""

    def __init__(self, hosts: Iterable[str] = (), option: str = "change_hosts") -> None:
        """
        @param hosts: IP addresses, networks, or L{ANY_HOST}, besides the loopback interface; or L{NO_HOST}
            alone: not even that.
        @param option: as this server spells it, for the sentences.
        @raise ValueError: an entry is none of these.
        """
        listed = tuple(hosts)
        self._option = option
        self._is_any = ANY_HOST in listed
        self._is_none = NO_HOST in listed
        if self._is_none and len(listed) > 1:
            raise ValueError(f"{option}: {NO_HOST!r} allows no host, so it is alone")
        self._networks = networks_of((one for one in listed if one not in (ANY_HOST, NO_HOST)), option)

    def allows(self, host: str) -> bool:
        """@param host: of the other end of a connection, without its port."""
        return not self._is_none and (
            self._is_any or is_loopback(host) or is_within(host, self._networks)
        )

    def refusal(self, host: str, what: str) -> str:
        """
        Why C{host} may not ask for a change; empty if it may.

        @param what: the change, as the subject of the sentence.
        """
        if self.allows(host):
            return ""
        if self._is_none:
            return f"{what} is a change, and {self._option}={NO_HOST} takes none without TLS and accounts"
        return (
            f"{what} is a change, and {host} may ask for none: without TLS and accounts only this machine's "
            f"loopback interface and the hosts of the option {self._option} may. Ask from there, or name "
            f"{host} in {self._option}"
        )
