"""
The committed part of a ledger as columns: for Spark, in batch and as a stream, and for Arrow without Spark.

    import dledger.spark

    spark = dledger.spark.session()
    dledger.spark.register(spark)
    spark.read.format("dledger").load("store/dledger-n0").show()

L{dledger.spark.scan.Scan} is the same without Spark. Nothing here needs Twisted: it runs on executors.
"""

from __future__ import annotations

from dledger.spark.session import SparkMissing, register, session

__all__ = ("SparkMissing", "register", "session")
