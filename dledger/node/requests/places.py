# -*- test-case-name: tests.node.test_router,tests.node.test_turned_away -*-
"""The places of clients, as the router sees them: who has one, and who gets one."""

from __future__ import annotations

from typing import Protocol

from protocols.ledger.connection import ServerConnection


class Places(Protocol):
    """The places of clients, see L{dledger.base.serving.listening.ListeningSide}."""

    def has_place(self, connection: ServerConnection) -> bool:
        """Whether there is one for a connection."""

    def no_place(self, connection: ServerConnection) -> str:
        """Give it one. @return: why there is none; empty: it has one from now on."""


class EndlessPlaces:
    """Everybody has a place."""

    def has_place(self, connection: ServerConnection) -> bool:
        """Yes."""
        return True

    def no_place(self, connection: ServerConnection) -> str:
        """No reason."""
        return ""
