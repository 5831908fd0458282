# -*- test-case-name: tests.broker.test_command_client,tests.node.test_service -*-
"""
Addresses as people write them: C{host:port}, where the host may be C{[IPv6]}.
"""

from __future__ import annotations


def host_and_port(address: str) -> tuple[str, int]:
    """Of an address that was checked when it came in."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def parse_address(text: str) -> tuple[str, int]:
    """
    Host and port.

    @raise ValueError: not of that form.
    """
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not (port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
        raise ValueError(f"{text!r} is no address: write host:port with a port of 1 to 65535")
    return host, int(port)
