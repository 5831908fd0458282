# -*- test-case-name: tests.spark.test_executor -*-
"""An executor compares its package with the driver's, and its errors name the machine."""

from __future__ import annotations

import pickle
import shutil
import socket

from twisted.trial.unittest import SynchronousTestCase

from dledger.spark.executor import BuildMismatch, batches_in_task, build_of_package, pack, unpack
from dledger.spark.log import ReadError
from dledger.spark.scan import Scan
from dledger.spark.source import LogBatchReader, LogStreamReader
from tests.spark.ledgers import Ledger


class ExecutorTests(SynchronousTestCase):
    """Without Spark."""

    def test_same(self) -> None:
        """The same build reads what was packed."""
        self.assertEqual(unpack(*pack({"a": 1})), {"a": 1})

    def test_installed_otherwise(self) -> None:
        """The same sources are the same build, however the package was installed."""
        build, packed = pack(7)
        self.assertEqual(unpack("9.9.9 " + build[build.index("(") :], packed), 7)

    def test_other_build(self) -> None:
        """Another build is refused before its bytes are looked at; the error names both and the machine."""
        error = self.assertRaises(BuildMismatch, unpack, "0.0.1 (sources beef)", b"not a pickle")
        for part in ("0.0.1 (sources beef)", build_of_package(), socket.gethostname()):
            self.assertIn(part, str(error))

    def test_readers(self) -> None:
        """Both readers are checked, and keep all but the open log."""
        ledger = Ledger(self.mktemp())
        self.addCleanup(ledger.close)
        ledger.append([b"a"], term=1)
        ledger.commit()
        batch = LogBatchReader(Scan.of({"path": ledger.path}))
        stream = LogStreamReader(Scan.of({"path": ledger.path}, is_stream=True))
        self.addCleanup(stream.stop)
        stream.initialOffset()
        for reader in (batch, stream):
            own = build_of_package().encode()
            packed = pickle.dumps(reader)
            self.assertIn(own, packed)
            self.assertEqual(pickle.loads(packed)._scan, reader._scan)
            other = packed.replace(own, own[:-4] + b"zzz)")
            self.assertRaises(BuildMismatch, pickle.loads, other)
        self.assertIsNone(pickle.loads(pickle.dumps(stream))._log)

    def test_machine(self) -> None:
        """A task without the directory says on which machine."""
        ledger = Ledger(self.mktemp())
        ledger.append([b"a"], term=1)
        ledger.commit()
        scan = Scan.of({"path": ledger.path})
        (part,) = scan.plan()
        ledger.close()
        shutil.rmtree(ledger.path)
        with self.assertRaises(ReadError) as caught:
            list(batches_in_task(scan, part))
        self.assertIn(f"on machine {socket.gethostname()}: ", str(caught.exception))
        self.assertIn(ledger.path, str(caught.exception))
