# -*- test-case-name: tests.commands.test_state -*-
"""C{dledger state}."""

from __future__ import annotations

from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode
from tests.commands.fakes import CliCase


class BeginAnewTests(CliCase):
    """Begin anew."""

    def test_ordered(self) -> None:
        """Or the reason of the leader; the state is lost by a flag alone."""
        self.assertExit(self.run_cli("state", "begin-anew"), 0, "begins anew, by the order at 18")
        self.assertEqual(self.log.calls[-1], ("begin_state", False))
        self.assertExit(self.run_cli("state", "begin-anew", "--lose-state", "--json"), 0, '"order_index": 18')
        self.assertEqual(self.log.calls[-1], ("begin_state", True))
        self.log.fails = DLedgerError(ResponseCode.UNEXPECTED_ARGUMENT, reason="n2 has the state")
        self.assertExit(self.run_cli("state", "begin-anew"), 1, "n2 has the state")
