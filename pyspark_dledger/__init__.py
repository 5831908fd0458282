# -*- test-case-name: tests.spark.test_source -*-
"""
The top-level package in which Spark looks for the format C{dledger}: its name begins with C{pyspark_}.
"""

from __future__ import annotations

from dledger.spark.source import DLedgerDataSource as DefaultSource

__all__ = ("DefaultSource",)
