# -*- test-case-name: tests.base.test_addresses -*-
"""
Addresses in text form, for every option, argument and answer that holds one::

    host:port                           one address
    n0-host:port;n1-host:port           the members of a group, each with its id; commas separate, too

Rule 1: the port follows the last colon; it has ASCII digits and is 1 to 65535. An option that lets a listener
choose its port (0) is a number or a Twisted endpoint, not an address.
Rule 2: a host has no blanks, brackets, slashes or separators. A host with a colon is an IPv6 address; we
write it in brackets, Java writes it without.
Rule 3: a member's id ends at the first dash.
Rule 4: a URL names its kind before C{://}. No kind has a dash, as members with their ids do.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from ipaddress import IPv6Address
from typing import NamedTuple

#: Separators of members, and other characters that neither an id nor a host contains.
_SEPARATORS = re.compile("[;,]")
_REFUSED = re.compile(r"[\s;,/\[\]]")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+._]*://")


class Address(NamedTuple):
    """
    A host and a port. C{str} gives C{host:port}, with brackets around an IPv6 address.

    @ivar host: name or IP address, without brackets.
    @ivar port: 1 to 65535.
    """

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


#: The group of one that C{twistd dledger} starts without options, and that a client without members asks.
DEFAULT_MEMBERS = "n0-127.0.0.1:20911"


def _is_host(host: str) -> bool:
    if not host or _REFUSED.search(host):
        return False
    if ":" not in host:
        return True
    try:
        IPv6Address(host)
    except ValueError:
        return False
    return True


def is_url(text: str) -> bool:
    """Whether C{text} begins as a URL."""
    return _URL.match(text) is not None


def parse_address(text: str) -> Address:
    """
    Check and split an address.

    @raise ValueError: C{text} is not C{host:port}, or its port is not 1 to 65535.
    """
    host, _, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]") and ":" in host:
        host = host[1:-1]
    is_port = port.isascii() and port.isdecimal() and len(port) <= 5 and 0 < int(port) < 65536
    if not (is_port and _is_host(host)):
        raise ValueError(f"{text!r} is not an address: write host:port with a port of 1 to 65535")
    return Address(host, int(port))


def parse_members(text: str, option: str = "peers") -> dict[str, str]:
    """
    Check and split C{n0-host:port;n1-host:port}.

    @param option: name of the option that holds C{text}, for the errors.
    @return: member id to C{host:port}, in the order of C{text}.
    @raise ValueError: no member, an id or an address twice, or a part that is not C{id-host:port}.
    """
    found: dict[str, str] = {}
    for part in filter(None, map(str.strip, _SEPARATORS.split(text))):
        member_id, _, address = part.partition("-")
        if not member_id or _REFUSED.search(member_id):
            raise _not_a_member(part, option)
        try:
            parse_address(address)
        except ValueError:
            raise _not_a_member(part, option) from None
        if member_id in found:
            raise ValueError(f"{option}: member {member_id!r} is given twice")
        found[member_id] = address
    if not found:
        raise ValueError(f"{option}: no member named; write id-host:port;id-host:port")
    return _distinct(found, option)


def checked_members(peers: str | Mapping[str, str], option: str = "peers") -> dict[str, str]:
    """
    As L{parse_members}, also for members that are given as a mapping of member id to C{host:port}.

    @raise ValueError: see L{parse_members}.
    """
    if isinstance(peers, str):
        return parse_members(peers, option)
    if not isinstance(peers, Mapping):
        raise ValueError(
            f"{option}={peers!r}: write id-host:port;id-host:port, or a table of id = host:port"
        )
    for member_id, address in peers.items():
        try:
            parse_address(address if isinstance(address, str) else "")
        except ValueError:
            raise ValueError(
                f"{option}: member {member_id!r}: {address!r} is not an address: write host:port with a port "
                "of 1 to 65535"
            ) from None
    return _distinct(dict(peers), option)


def _distinct(members: dict[str, str], option: str) -> dict[str, str]:
    """@raise ValueError: two members have one address."""
    seen: dict[Address, str] = {}
    for member_id, text in members.items():
        address = parse_address(text)
        if address.host.lower() == "localhost":  # one place with two names
            address = Address("127.0.0.1", address.port)
        if address in seen:
            raise ValueError(f"{option}: {seen[address]!r} and {member_id!r} have one address, {text}")
        seen[address] = member_id
    return members


def _not_a_member(part: str, option: str) -> ValueError:
    return ValueError(f"{option}: {part!r} is not id-host:port with a port of 1 to 65535 "
                      "(as in n0-127.0.0.1:20911)")


def is_loopback(host: str) -> bool:
    """Whether a host is this machine's loopback interface. @param host: an IP address, or a name."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host == "localhost"
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)
