# -*- test-case-name: tests.spark.test_benchmark -*-
"""
Spark writes a member's log into an Iceberg table: a part of L{benchmarks.spark_scan}, which runs it with a
PySpark for which Iceberg has a jar.

    python -m benchmarks.spark_iceberg JAR MEMBER WAREHOUSE

Writes once for each line of standard input, and prints the seconds.
"""

from __future__ import annotations

import sys
import time

import dledger.spark

_CATALOG = "spark.sql.catalog.ice"


def main() -> None:
    """Write again and again."""
    jar, member, warehouse = sys.argv[1:]
    spark = dledger.spark.session("dledger benchmark", master="local[2]", config={
        "spark.driver.memory": "2g", "spark.jars": jar, "spark.log.level": "ERROR",
        _CATALOG: "org.apache.iceberg.spark.SparkCatalog", f"{_CATALOG}.type": "hadoop",
        f"{_CATALOG}.warehouse": warehouse,
    })
    frame = spark.read.format("dledger").option("minPartitions", "2").load(member)
    for _ in sys.stdin:
        begin_s = time.perf_counter()
        frame.writeTo("ice.dledger.log").createOrReplace()
        sys.stdout.write(f"{time.perf_counter() - begin_s}\n")
        sys.stdout.flush()
    spark.stop()


if __name__ == "__main__":
    main()
