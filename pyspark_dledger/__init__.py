# -*- test-case-name: tests.spark.test_source -*-
"""
Where Spark finds the format C{dledger} by itself: a top-level package whose name begins with C{pyspark_}.
"""

from __future__ import annotations

from dledger.spark.source import DLedgerDataSource as DefaultSource

__all__ = ("DefaultSource",)
