# -*- test-case-name: tests.spark.test_source,tests.spark.test_stream -*-
"""
The format C{dledger} for Spark: a thin layer over L{dledger.spark.scans.scan.Scan}.

Rules of the engine that are not obvious:

 - C{read} runs in another process than the planning and is repeated when a task fails: it depends on its
   partition alone. Only objects that can be pickled are kept, except the log on a stream's driver side, which
   is opened at its first use and left out of the pickle.
 - C{latestOffset} never goes back: a member that lags behind is waited for. Every offset carries a proof, so
   that a log that was made anew is not taken for the one that was read.
 - After a crash the engine asks for the interrupted batch again with the offsets of its own log. Nothing of
   it is shown before it is committed where it is read.
 - There is no C{pushFilters}: Spark 4.3 keeps a plan with pushed filters for later scans that push nothing,
   and so gives wrong rows (C{tests.spark.test_upstream} says when that is fixed). The jar takes filters from
   Spark instead (L{dledger.spark.scans.pushed}).

PySpark 4.2 asks for offsets with a limit; 4.0 and 4.1 do not, so a stream has no limits there.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from dledger.spark.formats.log import (
    DataLossError,
    Extent,
    LogPart,
    NotCommittedError,
    ReadError,
    ScannedLog,
    await_end,
    cut,
    furthest,
    lost,
    skipped,
)
from dledger.spark.formats.option_texts import LATEST, OptionError
from dledger.spark.formats.options import ScanOptions
from dledger.spark.formats.proof import PROOF_KEY, difference
from dledger.spark.ledger.columns import ddl_of
from dledger.spark.ledger.reader_place import ReaderPlace
from dledger.spark.scans.arrival import Shipped
from dledger.spark.scans.executor import batches_in_task
from dledger.spark.scans.pushed import METADATA_KEY, Pushed, PushedScan
from dledger.spark.scans.scan import Scan, columns_of
from dledger.spark.sink.writers import LogBatchWriter, LogStreamWriter
from protocols.wire.fastjson import JsonObject

if TYPE_CHECKING:
    import pyarrow as pa

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


#: Environment variable by which processes that plan a query know how many tasks the session runs at once.
PROCESSORS_NAME = "DLEDGER_SPARK_PROCESSORS"


def _wanted(schema: StructType) -> list[tuple[str, str]]:
    for field in schema.fields:
        if not field.nullable:
            raise OptionError(f"column {field.name} is NOT NULL in the schema: every column of the source "
                              "may be null, leave NOT NULL out")
    return [(field.name, field.dataType.simpleString()) for field in schema.fields]


def _divided(scan: Scan) -> Scan:
    """A scan whose log is divided between the processors of its Spark session."""
    reported = os.environ.get(PROCESSORS_NAME, "")
    count = int(reported) if reported.isdecimal() else os.cpu_count() or 1
    return attrs.evolve(scan, options=attrs.evolve(scan.options, processors=max(count, 1)))


def _partitions(parts: Sequence[LogPart]) -> list[InputPartition]:
    return [InputPartition(part) for part in parts]


@functools.cache
def _settle() -> None:
    """
    Once in a worker: keep its modules out of later collections of garbage. Spark collects after every task,
    which takes 15 ms of processor time because of the modules alone.
    """
    gc.freeze()


def _read(scan: Scan | PushedScan, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    _settle()
    # If there are no partitions, Spark makes up one of its own.
    if partition.value is None:
        return iter(())
    assert isinstance(partition.value, LogPart)
    return batches_in_task(scan, partition.value)


class DLedgerDataSource(Shipped, DataSource):
    """See docs/spark-reference.md for options and columns."""

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
        _settle()
        asked = schema.fields[0].metadata.get(METADATA_KEY) if schema.fields else None
        if asked is None:
            return LogBatchReader(_divided(Scan.of(self._given(), wanted=_wanted(schema))))
        pushed = Pushed.of(asked)
        # The columns of an answer are no columns of the log; those of the data frame are checked instead.
        columns = StructType.fromJson(json.loads(asked["schema"])) if pushed.aggregates else schema
        scan = Scan.of(self._given(), wanted=_wanted(columns))
        return LogBatchReader(PushedScan(scan=_divided(scan), pushed=pushed))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """For C{spark.readStream}. @raise OptionError: an option or a column is not right."""
        return LogStreamReader(_divided(Scan.of(self._given(), wanted=_wanted(schema), is_stream=True)))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """For C{df.write}. @raise OptionError, SinkError: a mode, an option or a column is not right."""
        if overwrite:
            raise OptionError("mode overwrite: a log is only appended to; mode append is allowed")
        return LogBatchWriter(self._given(), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """For C{df.writeStream}. @raise OptionError, SinkError: as L{writer}."""
        if overwrite:
            raise OptionError("output mode complete: a log is only appended to; mode append is allowed")
        return LogStreamWriter(self._given(), schema)

    def _given(self) -> Mapping[str, str]:
        # Some versions of PySpark keep option names in lower case; messages use the names of the table.
        return dict(self.options)


class LogBatchReader(Shipped, DataSourceReader):
    """A range of committed records that is fixed when it is planned."""

    def __init__(self, scan: Scan | PushedScan) -> None:
        self._scan = scan

    def partitions(self) -> list[InputPartition]:
        """
        Asked once for each loaded data frame: all actions on it see the same range. With the jar, asked once
        for each scan, and a report for the jar comes first.
        """
        if isinstance(self._scan, Scan):
            return _partitions(self._scan.plan())
        planned = self._scan.plan()
        return [InputPartition(planned.report()), *_partitions(planned.parts)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition, as Arrow batches."""
        return _read(self._scan, partition)


class LogStreamReader(Shipped, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """
    Committed records as they are written. Offsets are C{{group: next, "proof.<group>": proof}}: the next
    offset to read, and the facts by which the log before it is recognised.

    Invariant: L{latestOffset} returns at least the start that it was given.
    """

    def __init__(self, scan: Scan, now_s: Callable[[], float] = time.monotonic) -> None:
        """@param now_s: a clock for C{maxTriggerDelay}."""
        self._scan = scan
        self._now_s = now_s
        #: When the last batch was given an end; None: no batch yet.
        self._triggered_s: float | None = None
        self._log: ScannedLog | None = None
        self._target: int | None = None
        self._initial: JsonObject | None = None
        self._said: set[str] = set()
        self._place: ReaderPlace | None = None
        #: Offsets that the log did not reach in time; with failOnDataLoss=false it is not awaited again.
        self._awaited: set[int] = set()

    def shipped_state(self) -> JsonObject:
        """All but the open log and the place, which the other machine does not need."""
        return {**self.__dict__, "_log": None, "_place": None}

    def _open(self) -> ScannedLog:
        if self._log is None:
            self._log = self._scan.log()
        return self._log

    def _extent(self, *, needs_begin: bool = False) -> Extent:
        return self._open().extent(needs_begin=needs_begin)

    def _offset(self, number: int) -> JsonObject:
        """The offset C{number} of the log, within the last extent, with its proof."""
        group = self._scan.options.group
        return {group: number, PROOF_KEY + group: dict(self._open().proof(number))}

    def _number(self, offset: Mapping[str, object]) -> int:
        group = self._scan.options.group
        if not isinstance(offset, Mapping) or not offset:
            raise DataLossError(
                f"the checkpoint has the offsets {str(offset)[:80]!r}: an object is expected. The file was "
                "changed by hand or is damaged: take another checkpoint directory"
            )
        number = offset.get(group)
        if group in offset and (not isinstance(number, int) or isinstance(number, bool) or number < 0):
            raise DataLossError(
                f"the checkpoint has offset {number!r} of group {group!r}: a number from 0 on is expected. "
                "The file was changed by hand or is damaged: take another checkpoint directory"
            )
        if not isinstance(number, int):
            groups = ", ".join(repr(name) for name in offset if not name.startswith(PROOF_KEY))
            raise DataLossError(
                f"the checkpoint is of group {groups}, option group is {group!r}: "
                "take another checkpoint directory, or the group that it was made with"
            )
        return number

    def _recognise(self, offset: Mapping[str, object]) -> None:
        """
        Check that this log is the one in which C{offset} was reached.

        @raise DataLossError: it is another one, and C{failOnDataLoss} is set.
        """
        number = self._number(offset)
        proof = offset.get(PROOF_KEY + self._scan.options.group)
        if not isinstance(proof, dict):
            return  # of a file that was changed by hand, or of a program's own call
        found = difference(proof, self._open().proof(number))
        if found:
            self._lost(
                f"{self._scan.options.source} is not the log that was read before: at offset {number} "
                f"{found}. The log was wiped, restored, or exchanged: take another checkpoint directory",
                f"reading continues at offset {number} of this log",
            )

    def _lost(self, what: str, otherwise: str) -> None:
        if self._scan.options.fail_on_data_loss:
            raise DataLossError(f"{what}. With option failOnDataLoss=false {otherwise}")
        self._say(f"{what}; {otherwise}")

    def _say(self, what: str) -> None:
        if what not in self._said:
            self._said.add(what)
            skipped(what)

    def _caught_up(self, number: int) -> Extent:
        """
        The extent, which reaches C{number}: a log that does not is given time, because it may lag behind.

        @raise DataLossError: it does not reach it in time, and C{failOnDataLoss} is set.
        """
        extent = self._extent()
        if extent.end >= number or number in self._awaited:
            return extent
        try:
            return await_end(self._open(), self._scan.options, number)
        except NotCommittedError as error:
            self._awaited.add(number)
            self._lost(str(error), "the query waits until it has")
            return extent

    def initialOffset(self) -> JsonObject:
        """Where a query without a checkpoint begins: C{startingOffsets}, by default C{latest} as in Kafka."""
        if self._initial is None:
            number = self._scan.starting(self._extent(needs_begin=True), default=LATEST)
            try:
                await_end(self._open(), self._scan.options, number)
            except NotCommittedError as error:
                what = f"option startingOffsets={number} is after the committed end: {error}"
                raise OptionError(what) from None
            self._initial = self._offset(number)
        return dict(self._initial)

    def getDefaultReadLimit(self) -> ReadLimit:
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

    def latestOffset(self, start: JsonObject | None = None, limit: ReadLimit | None = None) -> JsonObject:
        """
        The offset at which the next batch ends.

        @param start, limit: missing in PySpark 4.0 and 4.1, which know no limits.
        @raise DataLossError: this is not the log in which C{start} was reached, or it does not reach it, and
            C{failOnDataLoss} is set.
        """
        if start is None:
            extent = self._extent()
            return self._offset(extent.end if self._target is None else self._target)
        begin = self._number(start)
        extent = self._caught_up(begin)
        end = extent.end if self._target is None else self._target
        if extent.end >= begin:
            self._recognise(start)
        if end <= begin:
            # The very same offset: another proof of it would be a new batch without rows.
            return dict(start)
        if self._waits_for_more(max(begin, extent.begin), end):
            return dict(start)
        self._triggered_s = self._now_s()
        if limit is not None and not isinstance(limit, ReadAllAvailable):
            end = self._limited(max(begin, extent.begin), end, limit)
        return self._offset(end)

    def _waits_for_more(self, begin: int, end: int) -> bool:
        """
        Whether a batch up to C{end} would have fewer records than C{minOffsetsPerTrigger}, and may wait. The
        first batch of a query does not wait, nor does a query that ends by itself.
        """
        options = self._scan.options
        if not options.min_offsets_per_trigger or self._target is not None or self._triggered_s is None:
            return False
        if self._open().after(begin, end, options.min_offsets_per_trigger - 1) < end:
            return False
        return (self._now_s() - self._triggered_s) * 1000 < options.max_trigger_delay_ms

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

    def reportLatestOffset(self) -> JsonObject | None:
        """
        The end of the log with its proof, for the progress of the query and L{dledger.spark.lag}.

        @raise ReadError: the end cannot be found out.
        """
        end = self._extent().end
        try:
            return self._offset(end)
        except ReadError:
            # A report does not end a query that may be far from this record. Batches there will.
            return {self._scan.options.group: end, PROOF_KEY + self._scan.options.group: {}}

    def partitions(self, start: JsonObject, end: JsonObject) -> list[InputPartition]:
        """
        The parts of one batch, which may have been planned before a crash, and on another member.

        @raise NotCommittedError: the batch is not committed here, not even after C{requestTimeoutMs}.
        @raise DataLossError: the log begins after C{start}, or is not the one in which the batch was
            planned, and C{failOnDataLoss} is set.
        """
        begin, last = self._number(start), self._number(end)
        self._keep_place(begin)
        if begin > last:
            self._lost(f"the log of {self._scan.options.source} went back from offset {begin} to {last}",
                       "nothing is read")
        if begin >= last:
            return []
        extent = await_end(self._open(), self._scan.options, last)
        if begin < extent.begin:
            extent = self._extent(needs_begin=True)
        self._recognise(start)
        self._recognise(end)
        if begin < extent.begin:
            begin = lost(self._scan.options, begin, extent.begin, end=last, note=extent.note)
        return _partitions(cut(self._open(), self._scan.options, begin, last))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition, as in a batch. Runs in another process than the other methods."""
        return _read(self._scan, partition)

    def commit(self, end: JsonObject) -> None:
        """A batch is done: with option C{reader} the group keeps that."""
        self._keep_place(self._number(end))

    def _keep_place(self, number: int) -> None:
        """All before C{number} is done. A place that cannot be kept now is kept by a later batch."""
        options = self._scan.options
        if not options.reader:
            return
        if self._place is None:
            self._place = ReaderPlace(options)
        problem = self._place.keep(number)
        if problem:
            self._say(f"reader {options.reader!r}: its place was not kept, and a later batch tries it again: "
                      f"{problem}")

    def stop(self) -> None:
        """Close the log. Spark does not promise to call this."""
        log, self._log = self._log, None
        if log is not None:
            log.close()
        place, self._place = self._place, None
        if place is not None:
            place.close()
