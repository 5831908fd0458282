# -*- test-case-name: tests.spark.test_columnar -*-
"""
A small extension of Spark, in Java: a scan of the format C{dledger} reads only the columns that a query uses,
and hands Arrow's batches to Spark without making a row of each record. And a catalog, whose tables are logs.

Python plans the scan and reads the log, as without the extension, so the rows and the errors are the same.
PySpark's interface for sources in Python has neither of the two: docs/spark-reference.md, "Columns without
rows".

The extension calls parts of Spark that are not public, so it is for one series of versions.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

#: Built of C{src} by L{dledger.spark.jvm.build}.
JAR = Path(__file__).with_name("dledger-spark.jar")
#: For C{spark.sql.extensions}.
EXTENSION = "org.dledger.spark.LedgerExtensions"
#: For C{spark.sql.catalog.NAME}: logs as tables, docs/spark-reference.md, "Catalog".
CATALOG = "org.dledger.spark.LogCatalog"
#: The versions of Spark that the extension is for begin so.
SPARK_SERIES = "4.3."
#: Setting of a session; C{false}: scans are as without the extension.
SETTING = "spark.dledger.columnar"
#: Settings of Spark that are lists; what the user gives is kept.
_LISTS = ("spark.jars", "spark.sql.extensions")


def with_extension(settings: Mapping[str, str], spark_version: str) -> dict[str, str]:
    """
    Settings of a new session, with the extension if it is for this version of Spark.

    @param settings: the user's; C{spark.jars} and C{spark.sql.extensions} are added to.
    @param spark_version: as PySpark reports it, 4.3.0.
    """
    found = dict(settings)
    if not spark_version.startswith(SPARK_SERIES) or found.get(SETTING) == "false":
        return found
    for name, value in zip(_LISTS, (str(JAR), EXTENSION), strict=True):
        before = [one for one in found.get(name, "").split(",") if one]
        found[name] = ",".join([*before, *([] if value in before else [value])])
    return found
