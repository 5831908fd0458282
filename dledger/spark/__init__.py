"""
The committed part of a ledger as columns: for Spark, in batch and as a stream, and for Arrow without Spark.

    import dledger.spark

    spark = dledger.spark.session()
    dledger.spark.register(spark)
    spark.read.format("dledger").load("store/dledger-n0").show()

L{dledger.spark.scan.Scan} is the same without Spark. Nothing here needs Twisted: it runs on executors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dledger.spark.session import SparkMissing, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ("SparkMissing", "register", "session")


def register(spark: SparkSession) -> None:
    """
    Make C{format("dledger")} known to a session.

    Needed only if Spark does not find C{pyspark_dledger}: see docs/spark.md, "Registration".

    @param spark: a C{SparkSession}.
    """
    # Imported here: the Arrow export does not need PySpark.
    from dledger.spark.source import DLedgerDataSource

    spark.dataSource.register(DLedgerDataSource)
