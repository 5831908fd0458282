# -*- test-case-name: tests.commands.test_times -*-
"""C{dledger times}."""

from __future__ import annotations

from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode
from tests.commands.fakes import CliCase


class ResetTests(CliCase):
    """Reset."""

    def test_ordered(self) -> None:
        """By a flag alone; or the reason of the leader."""
        self.assertExit(self.run_cli("times", "--reset"), 0, "by the order at 19")
        self.assertExit(self.run_cli("times", "--reset", "--json"), 0, '"order_index": 19')
        self.assertEqual(self.log.calls, [("reset_times",)] * 2)
        self.assertExit(self.run_cli("times"), 64, "--reset")
        self.log.fails = DLedgerError(ResponseCode.UNEXPECTED_ARGUMENT, reason="12 ms ahead")
        self.assertExit(self.run_cli("times", "--reset"), 1, "12 ms ahead")
