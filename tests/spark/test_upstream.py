# -*- test-case-name: tests.spark.test_upstream -*-
"""
Faults of PySpark that we work around, as they are today. A test that fails here brings good news: the fault
is mended, and what its docstring says can be done.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    Filter,
    InputPartition,
    LessThan,
)
from pyspark.sql.types import StructType
from twisted.trial.unittest import SynchronousTestCase

from tests.spark.sessions import spark

_SETTING = "spark.sql.python.filterPushdown.enabled"


class _Reader(DataSourceReader):
    """A hundred numbers; takes filters like C{x < 10} over."""

    def __init__(self) -> None:
        self._below = 100

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take what we can do, give the rest back."""
        for one in filters:
            if isinstance(one, LessThan) and isinstance(one.value, int):
                self._below = min(self._below, one.value)
            else:
                yield one

    def partitions(self) -> list[InputPartition]:
        """One."""
        return [InputPartition(self._below)]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """The numbers."""
        return iter([(number,) for number in range(partition.value)])


class Numbers(DataSource):
    """The smallest source that can show it."""

    @classmethod
    def name(cls) -> str:
        """Not one of ours."""
        return "dledger_upstream_numbers"

    def schema(self) -> str:
        """One column."""
        return "x INT"

    def reader(self, schema: StructType) -> DataSourceReader:
        """A new one each time."""
        return _Reader()


class UpstreamTests(SynchronousTestCase):
    """PySpark 4.3.0."""

    def test_pushed_filters_stay(self) -> None:
        """
        A filter that was pushed for one scan is used for a later one that has none: rows are missing. When
        this fails, C{pushFilters} on C{index} can be given to L{dledger.spark.source.LogBatchReader}.
        """
        session = spark()
        session.dataSource.register(Numbers)
        session.conf.set(_SETTING, "true")
        self.addCleanup(session.conf.unset, _SETTING)
        frame = session.read.format("dledger_upstream_numbers").load()
        self.assertEqual(frame.where("x < 10").count(), 10)
        self.assertEqual(frame.count(), 10, "it should be 100; if it is now, the fault is mended")

    def test_no_metrics(self) -> None:
        """
        A stream of a Python source reports no metrics to Spark. When this fails, the lag of
        L{dledger.spark.lag} can stand in the progress itself, as Kafka's does.
        """
        jvm = spark().sparkContext._jvm
        assert jvm is not None
        loader = jvm.Thread.currentThread().getContextClassLoader()

        def class_of(name: str) -> Any:
            return jvm.java.lang.Class.forName(f"org.apache.spark.sql.{name}", False, loader)

        reports = class_of("connector.read.streaming.ReportsSourceMetrics")
        python = "execution.datasources.v2.python.PythonMicroBatchStream"
        streams = class_of("connector.read.streaming.MicroBatchStream")
        self.assertTrue(streams.isAssignableFrom(class_of(python)), "the classes are the right ones")
        for kind in ("", "Base", "WithAdmissionControl", "WithTriggerAvailableNow"):
            self.assertFalse(reports.isAssignableFrom(class_of(python + kind)), kind)
