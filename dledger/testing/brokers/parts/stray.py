# -*- test-case-name: tests.sim.test_ha -*-
"""Strangers that connect to the port of a master's slaves."""

from __future__ import annotations

from protocols.rocketmq.ha import HAClient


class StrayClient:
    """A stranger that connects to the port and sends one message."""

    def __init__(self, says: bytes) -> None:
        self._says = says

    def connected(self, client: HAClient) -> None:
        """Send the message."""
        client.transport.write(self._says)

    def transferred(self, client: HAClient, pieces: object) -> None:
        """Ignore it."""

    def connection_lost(self, client: HAClient, reason: str) -> None:
        """Ignore it."""


class Somebody:
    """A machine that never dies."""

    is_dying = False

    def event_ended(self) -> None:
        """Nothing to do."""
