# -*- test-case-name: tests.spark.test_sink -*-
"""
The sink for Spark: tasks check their rows and hand them to the driver; the driver's commit appends them.

Rules of the engine that are not obvious:

 - A task may run twice, and a batch of a stream again after a crash of the driver. A task touches nothing but
   its answer, so only L{BatchAppend} has to know which rows are in the log.
 - Each commit of a stream runs in a writer of its own: nothing can be remembered from one batch to the next.
 - Answers come in the order of the partitions; of a task that ran twice, one.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing

import attrs
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from dledger.spark.formats.log import ReadError
from dledger.spark.formats.option_texts import OptionError
from dledger.spark.ledger.member_tls import check_files
from dledger.spark.ledger.members import parse_bootstrap
from dledger.spark.scans.arrival import Shipped
from dledger.spark.sink.batch_append import BatchAppend, SinkBatch, SinkPatience
from dledger.spark.sink.group_log import GroupLog
from dledger.spark.sink.options import SinkOptions
from dledger.spark.sink.staging import StagedRows, body_column, rows_of_tasks, stage

try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter

    HAS_STREAM_WRITER = True
except ImportError:  # PySpark 4.0
    HAS_STREAM_WRITER = False

    class DataSourceStreamArrowWriter:  # type: ignore[no-redef]
        """A placeholder for a class that this PySpark does not have."""


@attrs.frozen
class TaskRows(WriterCommitMessage):
    """The answer of a task."""

    staged: StagedRows


class _Writer(Shipped):
    """The common part of both writers."""

    def __init__(self, given: Mapping[str, str], schema: StructType, *, is_stream: bool) -> None:
        """@raise OptionError, SinkError: an option or a column is not right."""
        self._options = SinkOptions.of(given, is_stream=is_stream).with_paths(os.path.abspath)
        parse_bootstrap(self._options.bootstrap)
        if self._options.tls is not None:
            try:
                check_files(self._options.tls)
            except ReadError as error:
                raise OptionError(str(error)) from None
        self._column = body_column([(field.name, field.dataType.simpleString()) for field in schema.fields])
        self._name = self._options.sink_id or f"job-{secrets.token_hex(8)}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskRows:
        """The rows of one task; in a process of an executor, perhaps more than once."""
        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        return TaskRows(stage(iterator, self._column, partition, self._options.max_task_bytes))

    def append(self, messages: Sequence[WriterCommitMessage | None], batch: int) -> None:
        """Append the batch. @raise SinkError, ReadError: not all of it is in the log."""
        tasks = [message.staged for message in messages if isinstance(message, TaskRows)]
        options = self._options
        with closing(GroupLog(options)) as log:
            BatchAppend(
                log, rows_of_tasks(tasks),
                SinkBatch(sink=self._name, number=batch, is_new=not options.sink_id),
                new_run=lambda: secrets.token_hex(8),
                patience=SinkPatience(sleep=time.sleep),
                frame_bytes=options.frame_bytes, is_strict=options.fail_on_data_loss,
            ).run()


class LogBatchWriter(_Writer, DataSourceArrowWriter):
    """C{df.write}: all rows, or an error."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        """@raise OptionError, SinkError: an option or a column is not right."""
        super().__init__(given, schema, is_stream=False)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All tasks are done."""
        self.append(messages, max(self._options.batch_id, 0))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing to do: tasks leave nothing behind."""


class LogStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """C{df.writeStream}: each batch once."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        """@raise OptionError, SinkError: an option or a column is not right."""
        if not HAS_STREAM_WRITER:
            raise OptionError("a stream into the sink needs PySpark 4.1 or newer: use foreachBatch and "
                              "df.write with sinkId and batchId")
        super().__init__(given, schema, is_stream=True)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """All tasks of a batch are done; of a batch that was interrupted, once more."""
        self.append(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing to do: tasks leave nothing behind."""
