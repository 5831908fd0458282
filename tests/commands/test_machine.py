# -*- test-case-name: tests.commands.test_machine -*-
"""C{dledger machine}."""

from __future__ import annotations

import json

from dledger.client.values import MemberInfo
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.machines import ReportedMachine, encode_reported_machine
from tests.commands.fakes import CliCase


class MachineTests(CliCase):
    """Show, and skip."""

    def test_shown(self) -> None:
        """Of each member: a machine that has failed, none, nonsense, no answer."""
        reported = ReportedMachine(name="kv", version=2, state="failed", applied_index=9, failed_index=10)
        machine = encode_reported_machine(reported)
        self.log.infos = (
            MemberInfo(
                member_id="n0", address="a:1", role="leader", machine=machine, health="it has stopped"
            ),
            MemberInfo(member_id="n1", address="a:2", role="follower", machine="[]"),
            MemberInfo(member_id="n2", address="a:3", problem="no answer in 2 s"),
        )
        self.assertExit(self.run_cli("machine", "status"), 0, "n0", "kv 2", "failed", "9", "10",
                        "it has stopped", "no answer in 2 s")
        rows = json.loads(self.run_cli("machine", "status", "--json").stdout)
        self.assertEqual([row["member_id"] for row in rows], ["n0", "n1", "n2"])
        self.assertEqual(rows[0]["machine"]["failed_index"], 10)
        self.assertEqual([row["machine"] for row in rows[1:]], [None, None])

    def test_skipped(self) -> None:
        """The order, or the reason of the leader."""
        self.assertExit(self.run_cli("machine", "skip", "10"), 0,
                        "the entry 10 is skipped, by the order at 17")
        self.assertEqual(self.log.calls[-1], ("skip", 10))
        self.assertExit(self.run_cli("machine", "skip", "--", "-1"), 64)
        self.log.fails = DLedgerError(ResponseCode.UNEXPECTED_ARGUMENT, reason="it has failed at the entry 9")
        self.assertExit(self.run_cli("machine", "skip", "10"), 1, "it has failed at the entry 9")
