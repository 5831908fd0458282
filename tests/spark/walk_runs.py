# -*- test-case-name: tests.test_walks -*-
"""The runs of L{tests.walk_runs} that need Arrow."""

from __future__ import annotations

from dledger.spark.export.exporter import Exporter, ExportSettings, ExportSource
from dledger.spark.scans.scan import Scan
from tests.spark.ledgers import Ledger
from tests.walks import Calls


def rows(base: str) -> Calls:
    """A scan of a directory, without Spark."""
    ledger = Ledger(base)
    ledger.fill(100)
    ledger.commit()
    with Calls() as calls:
        scan = Scan.of({"path": ledger.path})
        for part in scan.plan():
            list(scan.batches(part))
    ledger.close()
    return calls


def export(base: str, out: str) -> Calls:
    """An export of a directory into Parquet files."""
    ledger = Ledger(base)
    ledger.fill(100)
    ledger.commit()
    with Calls() as calls, Exporter.open(
        out, ExportSource.of({"path": ledger.path}), ExportSettings()
    ) as exporter:
        exporter.step(0, is_last=True)
    ledger.close()
    return calls
