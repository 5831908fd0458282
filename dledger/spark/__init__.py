"""
The committed part of a ledger as columns: for Spark, in batch and as a stream, and for Arrow without Spark::

    import dledger.spark

    spark = dledger.spark.session()
    dledger.spark.register(spark)
    spark.read.format("dledger").load("store/dledger-n0").show()

C{dledger.spark.read("store/dledger-n0")}, a L{Scan<dledger.spark.scans.scan.Scan>}, is the same without
Spark. Nothing here needs Twisted: it runs on executors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dledger.spark.session import SparkMissing, make_known, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dledger.spark.scans.scan import Scan

__all__ = ("SparkMissing", "read", "register", "session")


def read(path: str = "", *, columns: tuple[str, ...] = (), **options: object) -> Scan:
    """
    A log for programs that take a stream of Arrow, without Spark: pyarrow, pandas, Polars, DuckDB.

    @param path: as C{load(path)}; or the option C{bootstrap} names members.
    @param columns: those wanted, in this order; none: all.
    @param options: of the source, see docs/spark-reference.md.
    @raise OptionError: an option or a column does not exist, or makes no sense.
    """
    # Imported here: a session does not need Arrow in this process.
    from dledger.spark.scans.scan import Scan

    given = {name: str(value).lower() if isinstance(value, bool) else str(value)
             for name, value in options.items()}
    scan = Scan.of({**given, "path": path} if path else given)
    return scan.only(columns) if columns else scan


def register(spark: SparkSession) -> None:
    """
    Make C{format("dledger")} known to a session.

    Needed only if Spark does not find C{pyspark_dledger}: see docs/spark-reference.md, "Sessions".

    @param spark: a C{SparkSession}.
    """
    make_known(spark)
