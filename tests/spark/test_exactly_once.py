# -*- test-case-name: tests.spark.test_exactly_once -*-
"""
A stream into Parquet under SIGKILL: driver, JVM and workers die together, workers die alone, and the log
grows and rolls meanwhile. In the end every entry is there once.

The tests wait for the rows that the query has written; nothing depends on how fast it does.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path

from tests.processes.children import Child, wait_until
from tests.processes.members import ROOT
from tests.spark.ledgers import mixed_bodies, plain_rows
from tests.spark.sessions import SparkCase, rows_of

_SECONDS = 600.0


def session_of(leader: int) -> dict[int, str]:
    """Processes of a session, which all that it started belongs to, and their command lines."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        with contextlib.suppress(OSError, IndexError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == leader and fields[0] != "Z":
                found[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ")
    return found


class QueryChild(Child):
    """L{tests.spark.query} with all its processes."""

    def __init__(self, source: str, out: Path, checkpoint: Path, limit: int, *extra: str) -> None:
        self.checkpoint = checkpoint
        command = [sys.executable, "-m", "tests.spark.query", source, str(out), str(checkpoint), str(limit)]
        super().__init__("query", [*command, *extra], log_path=checkpoint.parent / "query.log",
                         environment={"PYTHONPATH": str(ROOT)})

    def kill(self) -> None:
        """SIGKILL to driver, JVM and workers."""
        if self.is_running:
            self.kill_all("")
        super().kill()

    def kill_all(self, word: str) -> int:
        """SIGKILL to those whose command line has C{word}; how many."""
        count = 0
        for pid, command in session_of(self.pid).items():
            if word in command:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    count += 1
        return count

    def batches(self, kind: str) -> int:
        """How many batches are planned (C{offsets}) or done (C{commits})."""
        try:
            return sum(1 for name in os.listdir(self.checkpoint / kind) if name.isdecimal())
        except FileNotFoundError:
            return 0

    def wait_for(self, kind: str, count: int) -> None:
        """Until there is that number of batches."""
        def there() -> bool:
            if not self.is_running:
                raise AssertionError(f"the query has ended\n{self.log_tail(60)}")
            return self.batches(kind) >= count

        wait_until(there, seconds=_SECONDS, what=f"{count} batches in {kind}", every=0.01)


class ExactlyOnceTests(SparkCase):
    """Each entry is in the output once after the processes of the query were killed."""

    def test_kills(self) -> None:
        """Killed in the middle of batches, restarted from its checkpoint with another limit, and finished."""
        directory = Path(os.path.abspath(self.mktemp()))
        directory.mkdir()
        out, checkpoint = directory / "out", directory / "checkpoint"
        ledger = self.make(mapped_file_size_for_entry_data=65_536, mapped_file_size_for_entry_index=64_000)
        ledger.append(mixed_bodies(3000, seed=1))
        ledger.commit()
        query = QueryChild(ledger.path, out, checkpoint, 70)
        self.addCleanup(query.kill)
        query.start()
        query.wait_for("offsets", 3)
        query.kill()
        planned = query.batches("offsets")
        self.assertGreater(planned, 2)
        ledger.append(mixed_bodies(2000, seed=2))
        ledger.append([b"not committed"])
        ledger.commit(4999)
        query = QueryChild(ledger.path, out, checkpoint, 90)
        self.addCleanup(query.kill)
        query.start()
        query.wait_for("commits", planned + 2)
        self.assertGreater(query.kill_all("pyspark.daemon"), 0)
        query.wait_for("commits", query.batches("commits") + 2)
        query.kill()
        ledger.append(mixed_bodies(2000, seed=3))
        ledger.commit()
        query = QueryChild(ledger.path, out, checkpoint, 100_000, "--to-the-end")
        self.addCleanup(query.kill)
        query.start()
        self.assertEqual(query.wait(seconds=_SECONDS), 0, query.log_tail(40))
        expected = plain_rows(ledger.path)
        self.assertEqual(len(expected), 7001)
        self.assertGreater(len(os.listdir(f"{ledger.path}/data")), 8)
        self.assertEqual(rows_of(self.spark.read.parquet(str(out)), "index"), expected)
