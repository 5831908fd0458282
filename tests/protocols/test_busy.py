# -*- test-case-name: tests.protocols.test_busy -*-
"""A connection that is written to without a pause."""

from __future__ import annotations

from unittest import mock

from protocols.wire.ledger.messages import AppendRequest
from tests.protocols.test_client_connection import ClientTestCase


class BusyTests(ClientTestCase):
    """Its transport is never drained."""

    def test_measured(self) -> None:
        """It is measured: only bytes that wait count."""
        self.open(wire="binary", unsent_bytes_max=2000)
        self.connection.pauseProducing()
        waiting = mock.Mock(return_value=950)
        assert self.connection.outlet is not None
        push = AppendRequest(group="g", bodies=(bytes(900),))
        with mock.patch.object(self.connection.outlet, "waiting_bytes", waiting):
            for token in range(12):
                self.assertTrue(self.connection.ask(push, token), token)
                self.end_turn()
            waiting.return_value = 2000
            for token in range(12, 15):
                self.connection.ask(push, token)
                self.end_turn()
            self.assertFalse(self.connection.ask(push, 15))
