# -*- test-case-name: tests.commands.test_bench -*-
"""C{dledger bench}, with a clock of the test's."""

from __future__ import annotations

import json
from typing import Any

from twisted.internet.task import Clock

from dledger.cli.ledger import bench
from dledger.client.errors import AppendFailed, UnknownOutcome
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode
from tests.commands.fakes import CliCase


class BenchTests(CliCase):
    """One client, so that all is in order."""

    def setUp(self) -> None:
        super().setUp()
        self.clock = Clock()
        self.took_s = 0.002
        self.answers: dict[int, DLedgerError] = {}
        self.appended: list[bytes] = []
        self.patch(bench, "_seconds", self.clock.seconds)
        self.patch(bench, "_sleep", self.clock.advance)
        log: Any = self.log
        log.append = self.append

    def append(self, body: bytes) -> None:
        """As L{dledger.client.blocking.Log.append}."""
        self.appended.append(body)
        self.clock.advance(self.took_s)
        if len(self.appended) in self.answers:
            raise self.answers[len(self.appended)]

    def bench(self, *arguments: str) -> Any:
        """A run of a second at 100/s."""
        return self.run_cli("bench", "--yes-write", "--clients", "1", "--seconds", "1", "--rate", "100",
                            *arguments)

    def test_pass(self) -> None:
        """At the rate, with the latencies."""
        result = self.bench("--size", "7")
        self.assertExit(result, 0)
        self.assertEqual(result.stdout, "100 entries, 100/s, p50 2.0 ms, p99 2.0 ms\nPASS\n")
        self.assertEqual(self.appended, [b"bbbbbbb"] * 101)  # the first is no part of the load

    def test_too_slow(self) -> None:
        """It ends in time; what waits for those before it is late."""
        self.took_s = 0.125
        result = self.bench()
        self.assertExit(result, 1, "8 entries, 8/s", "FAIL: 8/s is below 90% of 100/s",
                        "FAIL: p99 930.0 ms is above 100 ms")
        self.assertNotIn("PASS", result.stdout)

    def test_errors(self) -> None:
        """Any is a failure; an unknown outcome has a status of its own."""
        self.answers = {5: AppendFailed(ResponseCode.DISK_FULL, failed=1)}
        self.assertExit(self.bench(), 1, "FAIL: 1 appends failed, 0 have an unknown", "DISK_FULL")
        self.appended.clear()
        self.answers = {5: UnknownOutcome(ResponseCode.TERM_CHANGED, unknown=1)}
        result = self.bench("--json")
        self.assertExit(result, 2)
        document = json.loads(result.stdout)
        self.assertEqual((document["is_passed"], document["acknowledged"], document["unknown"]),
                         (False, 99, 1))

    def test_asks(self) -> None:
        """Nothing is written without a yes."""
        self.assertExit(self.run_cli("bench"), 64, "it writes to the log: give --yes-write")
        self.assertEqual(self.appended, [])
