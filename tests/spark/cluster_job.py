# -*- test-case-name: tests.spark.test_cluster -*-
"""
A job for a cluster: what it found is one line of JSON, the last of its output.

    python -m tests.spark.cluster_job JOB PATH BOOTSTRAP [--master URL] [--set NAME=VALUE]...

Without C{--master} the session is the plain one of C{spark-submit}, or of the Connect server in
C{SPARK_REMOTE}.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession


def _load(spark: SparkSession, place: str, value: str) -> DataFrame:
    # Two parts, so that both executors have work.
    return spark.read.format("dledger").option(place, value).option("minPartitions", "2").load()


def _summary(frame: DataFrame) -> list[int]:
    row = frame.selectExpr("count(*)", "sum(index)", "sum(length(body))", "sum(crc32(body))").first()
    assert row is not None
    return [int(value) for value in row]


def _stream(spark: SparkSession, bootstrap: str) -> int:
    out = tempfile.mkdtemp(prefix="dledger-cluster-")
    query = (
        spark.readStream.format("dledger").option("bootstrap", bootstrap)
        .option("startingOffsets", "earliest").load().selectExpr("index").writeStream.format("parquet")
        .option("path", f"{out}/rows").option("checkpointLocation", f"{out}/checkpoint")
        .trigger(availableNow=True).start()
    )
    query.awaitTermination(120)
    return spark.read.parquet(f"{out}/rows").distinct().count()


def _sizes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.record_batch({"rows": pa.array([batch.num_rows], pa.int64())})


def read(spark: SparkSession, path: str, bootstrap: str) -> dict[str, Any]:
    """Both modes, as a batch and as a stream."""
    return {
        "path": _summary(_load(spark, "path", path)),
        "bootstrap": _summary(_load(spark, "bootstrap", bootstrap)),
        "stream": _stream(spark, bootstrap),
    }


def frames(spark: SparkSession, path: str, bootstrap: str) -> dict[str, Any]:
    """The ways from a data frame to pandas and Arrow."""
    log = _load(spark, "path", path)
    return {
        "toPandas": int(log.toPandas()["index"].sum()),
        "pandas_api": int(log.select("index").pandas_api()["index"].sum()),
        "mapInArrow": sum(row.rows for row in log.mapInArrow(_sizes, "rows long").collect()),
        "bootstrap": _load(spark, "bootstrap", bootstrap).count(),
    }


def fail(spark: SparkSession, path: str, bootstrap: str) -> dict[str, Any]:
    """The error of a count."""
    try:
        return {"rows": _summary(_load(spark, "path", path))}
    except Exception as error:
        return {"error": str(error)}


def rowwise(spark: SparkSession, path: str, bootstrap: str) -> dict[str, Any]:
    """Without the extension."""
    spark.conf.set("spark.dledger.columnar", "false")
    try:
        return {"path": _summary(_load(spark, "path", path))}
    finally:
        spark.conf.set("spark.dledger.columnar", "true")


def gone(spark: SparkSession, path: str, bootstrap: str) -> dict[str, Any]:
    """The error of a task that does not find the directory with which the driver planned."""
    # One frame: another one would be planned again, on the driver.
    log = _load(spark, "path", path).selectExpr("index", "length(body)")
    log.collect()
    os.rename(path, f"{path}.away")
    try:
        return {"rows": len(log.collect())}
    except Exception as error:
        return {"error": str(error)}
    finally:
        os.rename(f"{path}.away", path)


JOBS = {"read": (read,), "frames": (frames,), "fail": (fail,), "all": (read, frames, rowwise, gone)}


def main() -> None:
    """Run a job."""
    parser = argparse.ArgumentParser()
    parser.add_argument("job", choices=sorted(JOBS))
    parser.add_argument("path")
    parser.add_argument("bootstrap")
    parser.add_argument("--master")
    parser.add_argument("--set", action="append", default=[])
    options = parser.parse_args()
    builder = SparkSession.builder
    if options.master:
        from dledger.spark.jvm import with_extension
        from tests.spark.sessions import CONFIG

        given = {**CONFIG, "spark.ui.enabled": "false", **dict(one.split("=", 1) for one in options.set)}
        builder = builder.master(options.master)
        for name, value in with_extension(given, "4.3.0").items():
            builder = builder.config(name, value)
    spark = builder.getOrCreate()
    if options.master:
        from dledger.spark import register

        register(spark)
    found = {}
    for job in JOBS[options.job]:
        found[job.__name__] = job(spark, options.path, options.bootstrap)
    spark.stop()
    print("\n" + json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
