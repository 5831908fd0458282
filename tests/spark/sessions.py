# -*- test-case-name: tests.spark.test_source -*-
"""The one Spark session of the suite: two cores, a small heap, stopped when the process ends."""

from __future__ import annotations

import atexit
import functools
import tempfile
from collections.abc import Callable
from typing import Any, TypeVar

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from twisted.trial.unittest import SynchronousTestCase

import dledger.spark
from tests.spark import jvms
from tests.spark.ledgers import Ledger

T = TypeVar("T")

#: For every JVM of the tests: it starts a second faster and stays small.
CONFIG = {
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": jvms.options(),
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.stopTimeout": "60000",
    # Tests provoke errors; the exceptions say what there is to know, pages of stack traces hide the rest.
    "spark.log.level": "OFF",
}


@functools.cache
def spark() -> SparkSession:
    """The session, started when it is first asked for."""
    warehouse = tempfile.mkdtemp(prefix="dledger-spark-")
    session = dledger.spark.session(
        "dledger tests", master="local[2]", config={**CONFIG, "spark.sql.warehouse.dir": warehouse}
    )
    atexit.register(session.stop)
    return session


def patiently(run: Callable[[], T]) -> T:
    """
    Run a streaming query, again if the machine was too busy: Spark gives the process that it starts for
    a query ten seconds to connect, which cannot be changed.
    """
    for _attempt in range(9):
        try:
            return run()
        except StreamingQueryException as error:
            if "Python worker failed to connect back" not in str(error):
                raise
    return run()


def rows_of(frame: DataFrame, *order: str) -> list[tuple[Any, ...]]:
    """All rows, as tuples of Python values."""
    ordered = frame.orderBy(*order) if order else frame
    return [tuple(bytes(value) if isinstance(value, bytearray) else value for value in row)
            for row in ordered.collect()]


class SparkCase(SynchronousTestCase):
    """
    A test with the session and a ledger.

    @ivar path: of the ledger.
    """

    def setUp(self) -> None:
        self.spark = spark()
        self.ledger = self.make()
        self.path = self.ledger.path

    def make(self, **options: Any) -> Ledger:
        """A new ledger."""
        ledger = Ledger(self.mktemp(), **options)
        self.addCleanup(ledger.close)
        return ledger

    def log_stream(self, **options: object) -> DataFrame:
        """A stream of the ledger, from its begin."""
        reader = self.spark.readStream.format("dledger").option("startingOffsets", "earliest")
        for name, value in options.items():
            reader = reader.option(name, str(value))
        return reader.load(self.path)

    def read(self, path: str = "", schema: str = "", **options: object) -> DataFrame:
        """A data frame of a directory."""
        reader = self.spark.read.format("dledger")
        if schema:
            reader = reader.schema(schema)
        for name, value in options.items():
            reader = reader.option(name, str(value).lower() if isinstance(value, bool) else str(value))
        return reader.load(path) if path else reader.load()
