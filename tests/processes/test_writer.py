# -*- test-case-name: tests.processes.test_writer -*-
"""The writer process records an outcome for every append, and ends on C{stop}."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.processes.children import TalkingChild, wait_until
from tests.processes.histories import History, check_history
from tests.processes.ledgers import read_records
from tests.processes.members import ROOT, Group


class WriterTests(SynchronousTestCase):
    """A writer at a group of one."""

    def test_history(self) -> None:
        """The outcomes agree with the log."""
        held = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(held.cleanup)
        directory = Path(held.name)
        group = Group(directory, size=1)
        self.addCleanup(group.kill)
        group.start()
        group.leader()
        path = directory / "history"
        writer = TalkingChild(
            "writer",
            [sys.executable, "-m", "tests.processes.writer", "--peers", group.peers_text,
             "--history", str(path), "--rate", "500", "--body-bytes", "64"],
            log_path=directory / "writer.log", environment={"PYTHONPATH": str(ROOT)},
        )
        self.addCleanup(writer.kill)
        writer.start()
        writer.wait_started()
        history = History(path)

        def enough() -> bool:
            history.read_on()
            return len(history.outcomes) > 200

        wait_until(enough, seconds=120, what="200 appends")
        self.assertEqual(writer.stop(), 0, writer.log_tail())
        history.read_on()
        group.wait_settled()
        log = {record.index: record.body for record in read_records(group.members["n0"].ledger_path)}
        self.assertEqual(check_history(history.outcomes, log, body_bytes=64), [])
        self.assertEqual({attempt.writer for attempt in history.outcomes}, {0, 1})
        self.assertEqual(len([body for body in log.values() if body]), len(history.outcomes))
