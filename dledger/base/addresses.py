# -*- test-case-name: tests.broker.test_command_client,tests.node.test_service -*-
"""
Addresses in text form: C{host:port}, where the host may be C{[IPv6]}.
"""

from __future__ import annotations


def host_and_port(address: str) -> tuple[str, int]:
    """Split an address that has been checked already."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def parse_address(text: str) -> tuple[str, int]:
    """
    Check and split an address.

    @return: host without brackets, and port.
    @raise ValueError: not C{host:port}, or a port outside 1 to 65535.
    """
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not (port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
        raise ValueError(f"{text!r} is not an address: write host:port with a port of 1 to 65535")
    return host, int(port)
