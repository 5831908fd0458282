# -*- test-case-name: tests.base.test_securing -*-
"""
The files of a TLS identity, and the hosts that may do without. The contents of the files are read by
L{dledger.base.tls.keys}.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

import attrs
from attrs.validators import instance_of

#: Addresses.
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@attrs.frozen(kw_only=True)
class TlsFiles:
    """
    Paths of three PEM files.

    @ivar certificate: the own certificate; certificates between it and the authority may follow.
    @ivar key: its private key, without a password.
    @ivar authority: certificates of the authorities that are believed.
    """

    certificate: str = attrs.field(validator=instance_of(str))
    key: str = attrs.field(validator=instance_of(str))
    authority: str = attrs.field(validator=instance_of(str))


def tls_files(*, certificate: str, key: str, authority: str) -> TlsFiles | None:
    """
    @return: None if no file is named.
    @raise ValueError: some are named, but not all three.
    """
    named = {"certificate": certificate, "key": key, "authority": authority}
    missing = [name for name, path in named.items() if not path]
    if len(missing) == len(named):
        return None
    if missing:
        raise ValueError(f"TLS needs three files; missing: {', '.join(f'tls_{name}' for name in missing)}")
    return TlsFiles(**named)


def networks_of(hosts: Iterable[str]) -> tuple[Network, ...]:
    """
    The networks of the option C{tls_plain_hosts}.

    @param hosts: IP addresses or networks; an IPv4 address in the form of IPv6 (C{::ffff:10.0.0.7}) is one
        of IPv4.
    @raise ValueError: an entry is neither an address nor a network.
    """
    return tuple(map(_network, hosts))


def _network(host: str) -> Network:
    try:
        network = ipaddress.ip_network(host)
    except ValueError as error:
        raise ValueError(
            f"tls_plain_hosts: {host!r} is neither an IP address nor a network ({error})"
        ) from None
    if isinstance(network, ipaddress.IPv6Network) and network.prefixlen >= 96:
        mapped = network.network_address.ipv4_mapped
        if mapped is not None:
            return ipaddress.IPv4Network((mapped, network.prefixlen - 96))
    return network
