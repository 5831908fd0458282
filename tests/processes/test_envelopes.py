# -*- test-case-name: tests.processes.test_envelopes -*-
"""Times and headers through real members, a killed leader, the command line, and the files."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

import dledger
from protocols.wire.ledger.envelopes import ENVELOPE_MAGIC, envelope_head
from tests.processes.members import ROOT, Group
from tests.spark.ledgers import plain_rows, scanned

#: Seconds that everything may take on a busy machine.
LONG_S = 120.0
HEADERS = {"type": b"order"}
COUNT = 100


class EnvelopeProcessTests(SynchronousTestCase):
    """Three members."""

    def cli(self, *args: str) -> str:
        """What a command writes."""
        done = subprocess.run(
            [sys.executable, "-c", "from dledger.cli.main import main; main()", "--peers",
             self.group.peers_text, "--timeout", str(LONG_S), *args],
            cwd=ROOT, capture_output=True, text=True, timeout=LONG_S, check=False,
        )
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout

    def test_life(self) -> None:
        """
        Entries keep time and headers when the leader is killed between; each is there once and in order; the
        files have envelope and body as one body.
        """
        held = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(held.cleanup)
        self.group = Group(Path(held.name))
        self.addCleanup(self.group.kill)
        self.group.start()
        began_ms = int(time.time() * 1000)
        with dledger.connect(
            self.group.peers_text, timeout=LONG_S, exactly_once=True, envelope=True
        ) as log:
            log.append_many((b"%d" % at for at in range(COUNT)), headers=HEADERS)
            killed = self.group.leader()
            self.group.members[killed].kill()
            log.append_many((b"%d" % at for at in range(COUNT, 2 * COUNT)), headers=HEADERS)
        with dledger.connect(self.group.peers_text, timeout=LONG_S) as log:
            last = log.append(ENVELOPE_MAGIC + b"raw").index
            entries = [one for one in log.tail(0) if one.body and not one.is_control]
        self.assertEqual([one.body for one in entries],
                         [*(b"%d" % at for at in range(2 * COUNT)), ENVELOPE_MAGIC + b"raw"])
        times = [one.timestamp for one in entries[:-1]]
        self.assertEqual(times, sorted(times, key=lambda time_ms: time_ms or 0))
        self.assertTrue(all(began_ms <= (one or 0) <= time.time() * 1000 + 1 for one in times))
        self.assertEqual([one.headers for one in entries], [*[HEADERS] * (2 * COUNT), {}])

        self.cli("append", "--envelope", "--header", "type=cli", "behind")
        said = self.cli("tail", "--since", str(times[-1]), "--json")
        shown = [json.loads(line) for line in said.splitlines()]
        self.assertEqual(shown[-1]["headers"], {"type": "cli"})
        self.assertEqual({one["body"] for one in shown if one.get("timestamp") == times[-1]},
                         {one.body.decode() for one in entries if one.timestamp == times[-1]})
        self.assertFalse([one for one in shown if one.get("timestamp", times[-1]) < (times[-1] or 0)])

        leader = self.group.leader(among=tuple(one for one in self.group.members if one != killed))
        self.group.stop()
        path = str(self.group.members[leader].ledger_path)
        bodies = {row[0]: row[-1] for row in plain_rows(path)}
        self.assertEqual(bodies[last], envelope_head(None, {}) + ENVELOPE_MAGIC + b"raw")
        first = entries[0]
        self.assertEqual(bodies[first.index], envelope_head(first.timestamp, HEADERS) + b"0")
        reported = dict(scanned(
            {"path": path, "envelopes": "true"}, [("index", "bigint"), ("body", "binary")]
        ))
        self.assertEqual([reported[one.index] for one in entries], [one.body for one in entries])
