# -*- test-case-name: tests.spark.test_source,tests.spark.test_stream -*-
"""
The format C{dledger} for Spark: a thin layer over L{dledger.spark.scan.Scan}.

Rules of the engine that are not obvious:

 - C{read} runs in another process than the planning and is repeated when a task fails: it depends on its
   partition alone. Only objects that can be pickled are kept, except the log on a stream's driver side, which
   is opened at its first use and left out of the pickle.
 - C{latestOffset} never goes back: a member that lags behind means "nothing new", not data loss.
 - After a crash the engine asks for the interrupted batch again with the offsets of its own log.
 - There is no C{pushFilters}: Spark 4.3 keeps a plan with pushed filters for later scans that push nothing,
   and so gives wrong rows (C{tests.spark.test_upstream} tells when that is fixed).

PySpark 4.2 asks for offsets with a limit; 4.0 and 4.1 do not, so a stream has no limits there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from dledger.spark.columns import ddl_of
from dledger.spark.log import DataLossError, Extent, LogPart, ScannedLog, cut, furthest, lost
from dledger.spark.options import LATEST, ScanOptions
from dledger.spark.scan import Scan, columns_of
from protocols.wire.fastjson import JsonObject

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )

    HAS_LIMITS = True
except ImportError:  # PySpark 4.0 and 4.1
    HAS_LIMITS = False

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """A placeholder for a class that this PySpark does not have."""


def _wanted(schema: StructType) -> list[tuple[str, str]]:
    return [(field.name, field.dataType.simpleString()) for field in schema.fields]


def _partitions(parts: Sequence[LogPart]) -> list[InputPartition]:
    return [InputPartition(part) for part in parts]


def _read(scan: Scan, partition: InputPartition) -> Iterator[Any]:
    # If there are no partitions, Spark makes up one of its own.
    if partition.value is None:
        return iter(())
    assert isinstance(partition.value, LogPart)
    return scan.batches(partition.value)


class DLedgerDataSource(DataSource):
    """See docs/spark.md for options and columns."""

    @classmethod
    def name(cls) -> str:
        """The name for C{format()}."""
        return "dledger"

    def schema(self) -> str:
        """All columns that these options allow; the user's own schema takes some of them."""
        # Batch or stream is not known here, so the readers check options that only one of them allows.
        return ddl_of(columns_of(ScanOptions.of(self._given(), is_stream=None)))

    def reader(self, schema: StructType) -> DataSourceReader:
        """For C{spark.read}. @raise OptionError: an option or a column is not right."""
        return LogBatchReader(Scan.of(self._given(), wanted=_wanted(schema)))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """For C{spark.readStream}. @raise OptionError: an option or a column is not right."""
        return LogStreamReader(Scan.of(self._given(), wanted=_wanted(schema), is_stream=True))

    def _given(self) -> Mapping[str, str]:
        # Some versions of PySpark keep option names in lower case; messages use the names of the table.
        return dict(self.options)


class LogBatchReader(DataSourceReader):
    """A range of committed records that is fixed when it is planned."""

    def __init__(self, scan: Scan) -> None:
        self._scan = scan

    def partitions(self) -> list[InputPartition]:
        """Asked once for each loaded data frame: all actions on it see the same range."""
        return _partitions(self._scan.plan())

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of one partition, as Arrow batches."""
        return _read(self._scan, partition)


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """
    Committed records as they are written. Offsets are C{{group: next}}: the next offset to read.

    Invariant: L{latestOffset} returns at least the start that it was given.
    """

    def __init__(self, scan: Scan) -> None:
        self._scan = scan
        self._log: ScannedLog | None = None
        self._target: int | None = None

    def __getstate__(self) -> JsonObject:
        return {**self.__dict__, "_log": None}

    def _open(self) -> ScannedLog:
        if self._log is None:
            self._log = self._scan.log()
        return self._log

    def _extent(self) -> Extent:
        return self._open().extent()

    def _offset(self, number: int) -> dict[str, int]:
        return {self._scan.options.group: number}

    def _number(self, offset: Mapping[str, Any]) -> int:
        group = self._scan.options.group
        if group not in offset:
            raise DataLossError(
                f"the checkpoint is of group {', '.join(map(repr, offset))}, option group is {group!r}: "
                "take another checkpoint directory, or the group that it was made with"
            )
        return int(offset[group])

    def initialOffset(self) -> dict[str, int]:
        """Where a query without a checkpoint begins: C{startingOffsets}, by default C{latest} as in Kafka."""
        return self._offset(self._scan.starting(self._extent(), default=LATEST))

    def getDefaultReadLimit(self) -> Any:
        """One limit of the options; if both are set, L{latestOffset} applies both."""
        options = self._scan.options
        if options.max_offsets_per_trigger:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """The query ends with the records that are committed now."""
        self._target = self._extent().end

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, int]:
        """
        The offset at which the next batch ends.

        @param start, limit: missing in PySpark 4.0 and 4.1, which know no limits.
        """
        extent = self._extent()
        end = extent.end if self._target is None else self._target
        if start is None:
            return self._offset(end)
        begin = self._number(start)
        if end <= begin:
            return self._offset(begin)
        if limit is not None and not isinstance(limit, ReadAllAvailable):
            end = self._limited(max(begin, extent.begin), end, limit)
        return self._offset(end)

    def _limited(self, begin: int, end: int, limit: ReadLimit) -> int:
        options = self._scan.options
        max_rows, max_bytes = options.max_offsets_per_trigger, options.max_bytes_per_trigger
        if isinstance(limit, ReadMaxRows):
            max_rows = limit.max_rows
        elif isinstance(limit, ReadMaxBytes):
            max_bytes = limit.max_bytes
        if max_rows:
            end = self._open().after(begin, end, max_rows)
        if max_bytes:
            end = furthest(self._open(), begin, end, max_bytes)
        return end

    def reportLatestOffset(self) -> dict[str, int] | None:
        """The end of the log, for the progress of the query."""
        return self._offset(self._extent().end)

    def partitions(self, start: JsonObject, end: JsonObject) -> list[InputPartition]:
        """
        The parts of one batch.

        @raise DataLossError: the log begins behind C{start}, and C{failOnDataLoss} is set.
        """
        begin, last = self._number(start), self._number(end)
        if begin >= last:
            return []
        extent = self._extent()
        if begin < extent.begin:
            lost(self._scan.options, begin, min(extent.begin, last))
            begin = min(extent.begin, last)
        return _partitions(cut(self._open(), self._scan.options, begin, last))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of one partition, as in a batch. Runs in another process than the other methods."""
        return _read(self._scan, partition)

    def commit(self, end: JsonObject) -> None:
        """Nothing to do: a ledger keeps its entries whether they were read or not."""

    def stop(self) -> None:
        """Close the log. Spark does not promise to call this."""
        log, self._log = self._log, None
        if log is not None:
            log.close()
