# -*- test-case-name: tests.spark.test_table_kills -*-
"""Exports into tables that end at any of their steps, and go on."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

from tests.spark.ledgers import plain_rows
from tests.spark.tables import KINDS, CliCase, KillCase, Killed, commits, read_table, rows
from tests.spark.test_export_cli import Export

_HEADING = "### Tables"


class KillTests(KillCase):
    """DLEDGER_TABLE_KILLS sets how often for each kind, DLEDGER_TABLE_SEED where."""

    def test_kills(self) -> None:
        """Every row is there once, and the ranges of all commits join."""
        kills = int(os.environ.get("DLEDGER_TABLE_KILLS", "50"))
        chance = random.Random(int(os.environ.get("DLEDGER_TABLE_SEED", "1")))
        self.fill(2)
        for kind in KINDS:
            out, count = self.out(kind), 0
            self.killed_at.clear()
            while count < kills:
                self.left = 0
                exporter = None
                most = 6 if count < 5 else 16
                try:
                    self.left = chance.randrange(1, most)
                    exporter = self.exporter(kind, out)
                    exporter.step(0, is_last=True)
                except Killed:
                    count += 1
                    self.killed(exporter)
                else:
                    exporter.close()
                    self.left = 0
                    self.fill(chance.randrange(2, 9))
            self.left = 0
            self.export(kind, out)
            self.assertEqual(rows(read_table(kind, out)), plain_rows(self.ledger.path))
            edges = [tuple(map(int, text.split("-"))) for text, _ in commits(kind, out)]
            self.assertEqual((edges[0][0], edges[-1][1]), (0, self.ledger.store.ledger_end_index))
            self.assertTrue(all(a[1] + 1 == b[0] for a, b in zip(edges, edges[1:], strict=False)))
            name = "create_write_transaction" if kind == "delta" else "commit_table"
            self.assertLessEqual({f"before {name}", f"after {name}", "before fsync", "before write_table"},
                                 self.killed_at)

    def test_kills_of_maintenance(self) -> None:
        """Compaction and expiry, killed at each of their steps in turn: the rows are the same."""
        out = self.out("iceberg")
        self.fill(40)
        self.export("iceberg", out)
        expected = plain_rows(self.ledger.path)
        self.at_steps(os, "unlink")
        self.killed_at.clear()
        is_done, number = False, 0
        while not is_done:
            number += 1
            exporter = self.exporter("iceberg", out)
            try:
                self.left = number
                exporter.table.maintain(compacts=True, expire_days=0, now_s=time.time() + 60)
                is_done = True
            except Killed:
                self.killed(exporter)
            else:
                self.left = 0
                exporter.close()
            self.left = 0
            self.assertEqual(rows(read_table("iceberg", out)), expected)
        self.assertEqual(self.export("iceberg", out), 0)
        self.assertEqual(len(list(out.rglob("*.parquet"))), 1)
        self.assertLessEqual({"before unlink", "after commit_table", "before fsync"}, self.killed_at)


class SignalTests(CliCase):
    """SIGKILL after a line that says that a part is finished, so in the middle of the next one."""

    def test_kill(self) -> None:
        """A process is killed; the next one goes on."""
        self.ledger.fill(120)
        self.ledger.commit()
        child = Export(self.ledger.path, "ice", "--to", "iceberg", "-o", "fetchBytes=300")
        for _ in range(2):
            self.assertTrue(child.line().startswith("exported"))
        status, said = child.end(signal.SIGKILL)
        self.assertEqual(status, -signal.SIGKILL, said)
        done = read_table("iceberg", Path("ice")).num_rows
        self.assertTrue(0 < done < self.ledger.store.ledger_end_index)
        status, said = self.run_command(self.ledger.path, "ice", "--to", "iceberg")
        self.assertEqual(status, 0, said)
        self.assertEqual(rows(read_table("iceberg", Path("ice"))), plain_rows(self.ledger.path))
