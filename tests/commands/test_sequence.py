# -*- test-case-name: tests.commands.test_sequence -*-
"""C{dledger sequence}."""

from __future__ import annotations

import json

from dledger.client.errors import failure_of
from dledger.client.values import LastSequence
from protocols.wire.codes import ResponseCode
from tests.commands.fakes import CliCase


class SequenceTests(CliCase):
    """What the log has of a producer."""

    def test_last(self) -> None:
        """The number and its entry."""
        self.log.sequences["loader-7"] = LastSequence(99, 1234)
        self.assertExit(self.run_cli("sequence", "loader-7"), 0, "loader-7 is 99, the entry 1234")
        shown = json.loads(self.run_cli("sequence", "loader-7", "--json").stdout)
        self.assertEqual(shown, {"producer": "loader-7", "last_sequence": 99, "index": 1234})

    def test_never(self) -> None:
        """One that the log has never had is no failure."""
        self.assertExit(self.run_cli("sequence", "new"), 0, "new is new: its first sequence is 0")
        shown = json.loads(self.run_cli("sequence", "new", "--json").stdout)
        self.assertEqual((shown["last_sequence"], shown["index"]), (-1, -1))

    def test_forgotten(self) -> None:
        """One that may have been forgotten is."""
        self.log.sequences["old"] = failure_of(ResponseCode.PRODUCER_FORGOTTEN)
        self.assertExit(self.run_cli("sequence", "old"), 1, "PRODUCER_FORGOTTEN")
