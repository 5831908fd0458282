# -*- test-case-name: tests.sim.test_streams -*-
"""Names of simulated machines, and of their ports: C{name}, or C{name:port} if it has several."""

from __future__ import annotations

from twisted.internet.address import IPv4Address

#: The port of a listening machine whose name has none.
PORT = 20911


def machine_of(name: str) -> str:
    """The machine of a name that may have a port."""
    return name.partition(":")[0]


def address_of(name: str) -> IPv4Address:
    """The address of a port."""
    host, _, port = name.partition(":")
    return IPv4Address("TCP", host, int(port or PORT))
