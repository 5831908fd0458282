# -*- test-case-name: tests.spark.test_cluster -*-
"""
A job for a cluster: writes its findings to a file, as JSON. Needs none of the other tests, so that it can be
sent alone.

    python cluster_job.py RESULT PATH BOOTSTRAP STORE PART... [--master URL] [--set NAME=VALUE]...

Without C{--master} the session is the one of C{spark-submit}, or of the Connect server in C{SPARK_REMOTE}.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

#: For the stream, in seconds.
_STREAM_S = 200
#: Executors that are killed in one query, and the tasks that end before each.
_KILLS, _TASKS_OF_KILL = 2, 8
_TOO_BUSY = "Python worker failed to connect back"


@attrs.frozen
class Job:
    """
    The parts of a job, each by the name of its method.

    @ivar path, bootstrap, store: a ledger's directory, members, a broker's store.
    """

    spark: SparkSession
    path: str
    bootstrap: str
    store: str

    def _load(self, place: str, value: str, **options: str) -> DataFrame:
        # Two tasks at least, so that both executors have work.
        reader = self.spark.read.format("dledger").options(**options)
        return reader.option(place, value).option("minPartitions", "2").load()

    def directory(self) -> list[int]:
        """A batch of a member's directory."""
        return _summary(self._load("path", self.path))

    def members(self) -> list[int]:
        """A batch over the network."""
        return _summary(self._load("bootstrap", self.bootstrap))

    def messages(self) -> list[int]:
        """A batch of a broker's messages."""
        return _numbers(self._load("path", self.store, format="rocketmq"), "count(*)", "sum(physicalOffset)")

    def named(self) -> list[int]:
        """A batch of a table that is configured in the session."""
        self.spark.conf.set("spark.sql.catalog.log", "org.dledger.spark.LogCatalog")
        self.spark.conf.set("spark.sql.catalog.log.billing.path", self.path)
        return _summary(self.spark.sql("SELECT * FROM log.billing"))

    def directory_stream(self) -> list[int]:
        """A stream of a member's directory."""
        return self._stream("path", self.path)

    def members_stream(self) -> list[int]:
        """A stream over the network."""
        return self._stream("bootstrap", self.bootstrap)

    def rows(self) -> list[list[int]]:
        """Batches without the extension."""
        self.spark.conf.set("spark.dledger.columnar", "false")
        try:
            return [self.directory(), self.members(), self.messages()]
        finally:
            self.spark.conf.set("spark.dledger.columnar", "true")

    def frames(self) -> dict[str, object]:
        """The ways from a data frame to pandas and Arrow."""
        log = self._load("path", self.path)
        return {
            "toPandas": int(log.toPandas()["index"].sum()),
            "pandas_api": int(log.select("index").pandas_api()["index"].sum()),
            "mapInArrow": sum(row.rows for row in log.mapInArrow(_sizes, "rows long").collect()),
        }

    def columnar(self) -> bool:
        """Whether scans go through the extension."""
        reported = io.StringIO()
        with contextlib.redirect_stdout(reported):
            self._load("path", self.path).select("index").explain()
        return "ColumnarToRow" in reported.getvalue()

    def gone(self) -> str:
        """The error of tasks that do not find the directory with which the driver planned."""
        # One frame: another one would be planned again, on the driver.
        log = self._load("path", self.path).selectExpr("index", "length(body)")
        log.collect()
        os.rename(self.path, f"{self.path}.away")
        try:
            return _error_of(log)
        finally:
            os.rename(f"{self.path}.away", self.path)

    def killed(self) -> list[list[int]]:
        """A batch and a stream whose executors are killed as their tasks end."""
        found = []
        for read in (lambda **few: _summary(self._load("path", self.path, **few)),
                     lambda **few: self._stream("path", self.path, **few)):
            with _killing(self.spark):
                found.append(read(maxRecordsPerPartition="5"))
        return found

    def errors(self) -> list[str]:
        """The errors of a batch, one for each Python of workers in C{DLEDGER_TEST_PYTHONS}."""
        import dledger.spark

        found = []
        for python in os.environ["DLEDGER_TEST_PYTHONS"].split(os.pathsep):
            # A source keeps the Python with which it was registered.
            self.spark.sparkContext.pythonExec = python
            dledger.spark.register(self.spark)
            found.append(_error_of(self._load("path", self.path)))
        return found

    def _stream(self, place: str, value: str, **options: str) -> list[int]:
        out = tempfile.mkdtemp(prefix="dledger-cluster-")
        reader = self.spark.readStream.format("dledger").options(**options)
        reader = reader.option(place, value).option("minPartitions", "2")
        query = (
            reader.option("startingOffsets", "earliest").load().selectExpr("index").writeStream
            .format("parquet").option("path", f"{out}/rows")
            .option("checkpointLocation", f"{out}/checkpoint").trigger(availableNow=True).start()
        )
        if not query.awaitTermination(_STREAM_S):
            raise TimeoutError(f"a stream did not end within {_STREAM_S} s")
        return _numbers(self.spark.read.parquet(f"{out}/rows"), "count(*)", "sum(index)")


@contextlib.contextmanager
def _killing(spark: SparkSession) -> Iterator[None]:
    """
    Meanwhile, SIGKILL to C{_KILLS} executors, each when C{_TASKS_OF_KILL} more tasks have ended.

    @raise AssertionError: none was killed.
    """
    killed, is_over = list[int](), threading.Event()

    def run() -> None:
        tracker, ended = spark.sparkContext.statusTracker(), dict[int, int]()
        while len(killed) < _KILLS and not is_over.wait(0.01):
            for stage in tracker.getActiveStageIds():
                count = getattr(tracker.getStageInfo(stage), "numCompletedTasks", 0)
                ended[stage] = max(count, ended.get(stage, 0))
            executors = _executors(spark)
            if sum(ended.values()) >= _TASKS_OF_KILL * (1 + len(killed)) and executors:
                killed.append(executors[0])
                os.kill(executors[0], signal.SIGKILL)

    killer = threading.Thread(target=run)
    killer.start()
    try:
        yield
    finally:
        is_over.set()
        killer.join()
    assert killed, "no executor was killed"


def _executors(spark: SparkSession) -> list[int]:
    """The processes of this application's executors, oldest first."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = place.read_text().split("\0")
            if "org.apache.spark.executor.CoarseGrainedExecutorBackend" in words \
                    and spark.sparkContext.applicationId in words:
                found.append(int(place.parent.name))
    return sorted(found)


def _patiently(run: Callable[[], object]) -> object:
    """
    Run a part of a job, again if the machine was too busy: Spark gives some of its Python processes ten
    seconds to connect, which cannot be changed.
    """
    for _attempt in range(9):
        try:
            return run()
        except Exception as error:
            if _TOO_BUSY not in str(error):
                raise
    return run()


def _numbers(frame: DataFrame, *columns: str) -> list[int]:
    row = frame.selectExpr(*columns).first()
    assert row is not None
    return [int(value) for value in row]


def _summary(frame: DataFrame) -> list[int]:
    return _numbers(frame, "count(*)", "sum(index)", "sum(length(body))", "sum(crc32(body))")


def _sizes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.record_batch({"rows": pa.array([batch.num_rows], pa.int64())})


def _error_of(frame: DataFrame) -> str:
    try:
        return f"no error but {len(frame.collect())} rows"
    except Exception as error:
        if _TOO_BUSY in str(error):
            raise
        return str(error)


def _session(master: str | None, settings: list[str]) -> SparkSession:
    if master:
        import dledger.spark

        return dledger.spark.session(
            "cluster", master=master, config=dict(one.split("=", 1) for one in settings)
        )
    spark = SparkSession.builder.getOrCreate()
    if "SPARK_REMOTE" not in os.environ:
        import dledger.spark

        dledger.spark.register(spark)
    return spark


def main() -> None:
    """Run a job."""
    parser = argparse.ArgumentParser()
    parser.add_argument("result")
    parser.add_argument("path")
    parser.add_argument("bootstrap")
    parser.add_argument("store")
    parser.add_argument("part", nargs="+")
    parser.add_argument("--master")
    parser.add_argument("--set", action="append", default=[])
    options = parser.parse_args()
    spark = _session(options.master, options.set)
    job = Job(spark, options.path, options.bootstrap, options.store)
    found = {}
    for name in options.part:
        found[name] = _patiently(getattr(job, name))
    spark.stop()
    Path(options.result).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
