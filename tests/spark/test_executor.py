# -*- test-case-name: tests.spark.test_executor -*-
"""A machine of a cluster compares its package with the driver's, and its errors name the machine."""

from __future__ import annotations

import pickle
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

from twisted.trial.unittest import SynchronousTestCase

from dledger.spark.formats.log import ReadError
from dledger.spark.scans.executor import BUILD_PARTS, BuildMismatch, batches_in_task, build_of_package, unpack
from dledger.spark.scans.scan import Scan
from dledger.spark.source import DLedgerDataSource, LogBatchReader, LogStreamReader
from tests.processes.members import ROOT
from tests.spark.ledgers import Ledger

_SECONDS_MAX = 120


def _reported(script: str, *path: object) -> str:
    """What a Python with nothing but C{path} and the installed packages prints, or its last line of error."""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=_SECONDS_MAX, check=False,
        env={"PYTHONPATH": ":".join(map(str, path))}, cwd="/",
    )
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


class ExecutorTests(SynchronousTestCase):
    """Without Spark."""

    def ledger(self) -> str:
        """The directory of a ledger with one entry."""
        ledger = Ledger(self.mktemp())
        self.addCleanup(ledger.close)
        ledger.append([b"a"], term=1)
        ledger.commit()
        return ledger.path

    def test_other_build(self) -> None:
        """Another build is refused before its bytes are looked at; the error names both and the machine."""
        error = self.assertRaises(BuildMismatch, unpack, "0.0.1 (sources beef)", b"not a pickle")
        for part in ("0.0.1 (sources beef)", build_of_package(), socket.gethostname(), sys.executable):
            self.assertIn(part, str(error))

    def test_shipped(self) -> None:
        """What Spark sends is checked when it arrives, and keeps all but the open log."""
        path = self.ledger()
        batch = LogBatchReader(Scan.of({"path": path}))
        stream = LogStreamReader(Scan.of({"path": path}, is_stream=True))
        self.addCleanup(stream.stop)
        stream.initialOffset()
        for reader in (batch, stream):
            self.assertEqual(pickle.loads(pickle.dumps(reader))._scan, reader._scan)
        self.assertIsNone(pickle.loads(pickle.dumps(stream))._log)
        source = DLedgerDataSource({"path": path})
        self.assertEqual(dict(pickle.loads(pickle.dumps(source)).options), {"path": path})
        own = build_of_package().encode()
        for one in (batch, stream, source):
            packed = pickle.dumps(one)
            self.assertIn(own, packed)
            self.assertRaises(BuildMismatch, pickle.loads, packed.replace(own, own[:-4] + b"zzz)"))

    def test_installed_otherwise(self) -> None:
        """The same sources are the same build, however the package was installed."""
        own = build_of_package()
        packed = pickle.dumps((LogBatchReader, {"_scan": 7}))
        found = unpack("9.9.9 " + own[own.index("(") :], packed)
        self.assertIsInstance(found, LogBatchReader)
        self.assertEqual(vars(found), {"_scan": 7})
        archive = Path(self.mktemp()).absolute().with_suffix(".zip")
        with ZipFile(archive, "w") as file:
            for top in ("dledger", "protocols"):
                for source in (ROOT / top).rglob("*.py"):
                    file.write(source, source.relative_to(ROOT))
        build = "from dledger.spark.scans import executor as e; print(e.__file__, e.build_of_package())"
        reported = _reported(build, archive)
        self.assertIn(str(archive), reported)
        self.assertEqual(reported[reported.index("(") :], own[own.index("(") :])

    def test_parts(self) -> None:
        """A build has the sources of all modules of ours that a task loads."""
        names = (
            "import sys, dledger.spark.source; print(*(m.__file__ for n, m in sys.modules.items()"
            " if n.partition('.')[0] in ('dledger', 'protocols')))"
        )
        loaded = [str(Path(name).relative_to(ROOT)) for name in _reported(names, ROOT).split()]
        self.assertGreater(len(loaded), 40)
        outside = [name for name in loaded if not name.startswith(BUILD_PARTS)]
        self.assertEqual(sorted(outside), ["dledger/__init__.py", "protocols/__init__.py"])

    def test_without_package(self) -> None:
        """A machine without the package, or with one before this check, says its name and what to do."""
        packed = Path(self.mktemp()).absolute()
        packed.write_bytes(pickle.dumps(DLedgerDataSource({"path": "/x"})))
        load = f"import pickle; pickle.loads(open({str(packed)!r}, 'rb').read())"
        other = Path(self.mktemp()).absolute()
        (other / "dledger" / "spark" / "scans").mkdir(parents=True)
        reported = [_reported(f"import sys; sys.modules['dledger'] = None; {load}")]
        for package in ("dledger", "dledger/spark", "dledger/spark/scans"):
            (other / package / "__init__.py").touch()
        reported.append(_reported(load, other))
        begin = f"ImportError: the driver has dledger {build_of_package()}, but "
        for line, missing in zip(reported, ("'dledger.spark'", "'dledger.spark.scans.executor'"),
                                 strict=True):
            self.assertTrue(line.startswith(begin), line)
            for part in (sys.executable, socket.gethostname(), missing, "--py-files"):
                self.assertIn(part, line)

    def test_machine(self) -> None:
        """A task without the directory says on which machine."""
        path = self.ledger()
        scan = Scan.of({"path": path})
        (part,) = scan.plan()
        shutil.rmtree(path)
        with self.assertRaises(ReadError) as caught:
            list(batches_in_task(scan, part))
        self.assertIn(f"on machine {socket.gethostname()}: ", str(caught.exception))
        self.assertIn(path, str(caught.exception))
