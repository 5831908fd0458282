# -*- test-case-name: tests.spark.test_export_cli -*-
"""C{dledger export} as a program: killed at any moment and started again, every row is there once."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

import pyarrow.dataset as ds
from click.testing import CliRunner
from twisted.trial.unittest import SynchronousTestCase

from dledger.cli.console.command import EXIT_FAILED, EXIT_USAGE
from dledger.cli.data import export as export_module
from dledger.cli.main import cli
from dledger.spark.export.engine import source_options
from dledger.spark.export.follow import Follower
from dledger.spark.export.writers import ParquetWriter
from tests.processes.children import prepare_child
from tests.processes.members import ROOT
from tests.spark.ledgers import plain_rows
from tests.spark.test_export import COLUMNS, ExportCase, data_files, parquet_rows, ranges

_MAIN = "from dledger.cli.main import main; main()"
#: A child that says nothing for so long hangs.
_SECONDS_MAX = 120


def fail_with(error: OSError) -> None:
    """Raise it."""
    raise error


class Export:
    """One process of C{dledger export -v}, whose lines are read as they come."""

    def __init__(self, *words: str, seconds: float = _SECONDS_MAX) -> None:
        """@param seconds: it is killed then."""
        self._process = subprocess.Popen(
            [sys.executable, "-c", _MAIN, "export", "-v", *words], stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}, start_new_session=True,
            preexec_fn=prepare_child,
        )
        self._watchdog = threading.Timer(seconds, self._process.kill)
        self._watchdog.start()

    def line(self) -> str:
        """The next line of its standard error; empty at the end."""
        assert self._process.stderr is not None
        return self._process.stderr.readline()

    def end(self, number: signal.Signals | None = None) -> tuple[int, str]:
        """Send a signal, wait for the end; the status and its last lines."""
        if number is not None:
            self._process.send_signal(number)
        _nothing, said = self._process.communicate()
        self._watchdog.cancel()
        return self._process.returncode, said


class KillTests(ExportCase):
    """SIGKILL after a line that says that a part is finished, so in the middle of the next one."""

    def play(self, *words: str) -> int:
        """Run and kill until it ends by itself, the log growing meanwhile; how often it was killed."""
        chance = random.Random(7)
        self.ledger.fill(400)
        self.ledger.commit()
        killed = 0
        for _run in range(200):
            child = Export(self.ledger.path, str(self.out), "-o", "fetchBytes=300", *words)
            left = chance.choice((0, 1, 1, 2, 5))
            while left and child.line().startswith("exported"):
                left -= 1
            status, said = child.end(signal.SIGKILL if killed < 12 else None)
            if status != -signal.SIGKILL:
                self.assertEqual(status, 0, said)
                if killed >= 12:
                    return killed
            else:
                killed += 1
            self.ledger.fill(30, seed=killed)
            self.ledger.commit()
        self.fail("the export does not come to its end")

    def test_parquet(self) -> None:
        """Parquet."""
        self.play()
        self.assertEqual(parquet_rows(self.out), plain_rows(self.ledger.path))
        edges = ranges(self.out)
        self.assertTrue(all(one[1] + 1 == other[0] for one, other in zip(edges, edges[1:], strict=False)))

    def test_json_with_partitions(self) -> None:
        """Lines, each part in several files."""
        self.play("--format", "jsonl", "--partition-by", "term", "--columns", "index,term,pos,body_crc")
        found = []
        for path in data_files(self.out):
            term = int(path.parent.name.removeprefix("term="))
            for line in path.read_text().splitlines():
                row = json.loads(line)
                found.append((row["index"], term, row["pos"], row["body_crc"]))
        expected = [(index, term, pos, crc) for index, term, pos, *_, crc, _ in plain_rows(self.ledger.path)]
        self.assertEqual(sorted(found), expected)

    def test_follow(self) -> None:
        """A process that follows a log, killed and started again, and then stopped in good order."""
        words = ("--follow", "--interval", "0.01", "--max-delay", "0.01")
        for number in range(4):
            child = Export(self.ledger.path, str(self.out), *words)
            self.ledger.fill(20, seed=number)
            self.ledger.commit()
            self.assertTrue(child.line().startswith("exported"))
            self.ledger.fill(20, seed=number)
            self.ledger.commit()
            status, said = child.end(signal.SIGKILL if number < 3 else signal.SIGTERM)
            self.assertEqual(status, -signal.SIGKILL if number < 3 else 0, said)
        done = parquet_rows(self.out)
        self.assertEqual(done, plain_rows(self.ledger.path)[: len(done)])
        self.assertEqual(Export(self.ledger.path, str(self.out)).end()[0], 0)
        self.assertEqual(parquet_rows(self.out), plain_rows(self.ledger.path))


class CommandTests(ExportCase):
    """The command in this process."""

    def run_command(self, *words: str) -> tuple[int, str]:
        """Exit status, and what was said; click shows its own errors."""
        done = CliRunner().invoke(cli, ["export", *words])
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exc_info
        return done.exit_code, done.output

    def test_summary(self) -> None:
        """How much, how fast, and its place; the second time nothing is new."""
        self.ledger.fill(100)
        self.ledger.commit()
        status, said = self.run_command(self.ledger.path, str(self.out))
        self.assertEqual(status, 0, said)
        self.assertRegex(said, r"^exported 100 rows in .* MB/s of log\); .* holds 100, up to offset 99\n$")
        status, said = self.run_command(self.ledger.path, str(self.out), "--json")
        document = json.loads(said)
        self.assertEqual((document["rows"], document["total_rows"], document["next"]), (0, 100, 100))
        status, said = self.run_command(self.ledger.path, str(self.out))
        self.assertIn("nothing new", said)

    def test_pages(self) -> None:
        """With --admin they say how far the export is, as long as it follows."""
        said: list[str] = []
        found: list[dict[str, object]] = []
        self.patch(export_module, "say", said.append)
        turn = Follower.turn

        def turn_and_ask(follower: Follower, now_ms: int) -> int:
            wait_ms = turn(follower, now_ms)
            place = said[0].removeprefix("dledger: pages at ")
            with urllib.request.urlopen(f"{place}status", timeout=30) as answer:
                found.append(json.load(answer))
            os.kill(os.getpid(), signal.SIGTERM)
            return wait_ms

        self.patch(Follower, "turn", turn_and_ask)
        status, _ = self.run_command(self.ledger.path, str(self.out), "--follow", "--admin", "tcp:0")
        self.assertEqual((status, len(said)), (0, 1))
        end = self.ledger.store.ledger_end_index + 1
        self.assertEqual((found[0]["end"], found[0]["problems"]), (end, []))

    def test_follow_ends_in_order(self) -> None:
        """Ctrl-C, or SIGTERM: what was read is visible, and the summary counts it."""
        turn = Follower.turn
        for number, sent in enumerate((signal.SIGINT, signal.SIGTERM), 1):
            self.ledger.fill(50)
            self.ledger.commit()

            def turn_and_stop(follower: Follower, now_ms: int, sent: int = sent) -> int:
                wait_ms = turn(follower, now_ms)
                os.kill(os.getpid(), sent)
                return wait_ms

            self.patch(Follower, "turn", turn_and_stop)
            status, said = self.run_command(self.ledger.path, str(self.out), "--follow")
            self.assertEqual(status, 0, said)
            self.assertRegex(said, rf"^exported 50 rows in .*holds {50 * number}, ")
        self.assertEqual(parquet_rows(self.out), plain_rows(self.ledger.path))

    def test_full_disk(self) -> None:
        """A sentence that names the place and the reason, whatever Arrow says."""
        self.ledger.fill(50)
        self.ledger.commit()
        full = OSError(errno.ENOSPC, "Error writing bytes. Detail: [errno 28] No space left on device")
        self.patch(ParquetWriter, "write", lambda *_rows: fail_with(full))
        status, said = self.run_command(self.ledger.path, str(self.out))
        self.assertEqual(status, 1)
        self.assertEqual(said, f"Error: {self.out} cannot be written: No space left on device\n")

    def test_options(self) -> None:
        """Columns, partitions, the first index, and options of the source."""
        self.ledger.fill(60)
        self.ledger.commit()
        status, said = self.run_command(
            self.ledger.path, str(self.out), "--columns", "index,term", "--columns", "body",
            "--partition-by", "term", "--from", "10", "-o", "verifyCrc=true", "--compression", "zstd",
        )
        self.assertEqual(status, 0, said)
        table = ds.dataset(self.out, partitioning="hive", format="parquet").to_table().sort_by("index")
        self.assertEqual(set(table.schema.names), {"index", "term", "body"})
        rows = [dict(zip(COLUMNS, row, strict=True)) for row in plain_rows(self.ledger.path)[10:]]
        for name in table.schema.names:
            self.assertEqual(table.column(name).to_pylist(), [row[name] for row in rows])

    def test_refusals(self) -> None:
        """Whatever is wrong is one line that says what would be right, and nothing is written."""
        path, out = self.ledger.path, str(self.out)
        for words, status, part in (
            ((path,), EXIT_USAGE, "Missing argument 'OUT'"),
            (("nowhere", out), EXIT_USAGE, "neither a directory, nor a URL of an archive, nor a list"),
            ((str(ROOT / "docs"), out), EXIT_FAILED, "not a member's directory"),
            ((path, out, "--format", "csv"), EXIT_USAGE, "'csv' is not one of parquet, jsonl"),
            ((path, out, "-o", "verifyCrcs=true"), EXIT_USAGE, "did you mean verifyCrc"),
            ((path, out, "-o", "verifyCrc"), EXIT_USAGE, "write name=value"),
            ((path, out, "--columns", "terms"), EXIT_USAGE, "did you mean term"),
            ((path, out, "--partition-by", "body"), EXIT_FAILED, "is not a partition"),
            ((path, out, "--part-bytes", "0"), EXIT_USAGE, "must be at least 1"),
            ((path, out, "--engine", "spark", "--follow"), EXIT_USAGE, "--follow needs --engine arrow"),
            ((path, out, "--master", "local"), EXIT_USAGE, "need --engine spark"),
            ((path, path), EXIT_FAILED, "in the directory of the log"),
        ):
            found, said = self.run_command(*words)
            self.assertEqual(found, status, said)
            self.assertIn(part, said)
            self.assertNotIn("Traceback", said)
        self.assertFalse(self.out.exists())

    def test_sources(self) -> None:
        """Members as everywhere else; a directory is a directory even if it looks like one."""
        found = {"bootstrap": "n0-127.0.0.1:1;n1-h-2.x:22", "group": "g"}
        self.assertEqual(source_options("n0-127.0.0.1:1; n1-h-2.x:22;", "g"), found)
        self.assertEqual(source_options(self.ledger.path, "g"), {"path": self.ledger.path})


class MissingTests(SynchronousTestCase):
    """Without Arrow."""

    def run_python(self, text: str) -> subprocess.CompletedProcess[str]:
        """In a fresh interpreter that has no Arrow and no PySpark."""
        head = "import sys\nsys.modules['pyarrow'] = sys.modules['pyspark'] = sys.modules['numpy'] = None\n"
        return subprocess.run(
            [sys.executable, "-c", head + text], cwd=ROOT, capture_output=True, text=True, timeout=60,
            check=False,
        )

    def test_command(self) -> None:
        """The command says what to install; the others work."""
        done = self.run_python("sys.argv = ['dledger', 'version']\n" + _MAIN)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        held = self.mktemp()
        Path(held).mkdir()
        done = self.run_python(f"sys.argv = ['dledger', 'export', {held!r}, {held + '/out'!r}]\n" + _MAIN)
        self.assertEqual(done.returncode, 1)
        self.assertIn("pip install 'dledger[spark]'", done.stderr)
        self.assertNotIn("Traceback", done.stderr)
