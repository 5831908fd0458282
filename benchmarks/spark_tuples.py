# -*- test-case-name: tests.spark.test_benchmark -*-
"""
The comparison for L{benchmarks.spark_scan}: the same source, giving Spark a tuple for each entry.

It is its own module, because Spark's workers import it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from dledger.spark.basics.log import LogPart
from dledger.spark.scans.scan import Scan
from dledger.spark.source import DLedgerDataSource, LogBatchReader
from protocols.wire.ledger.entry import ENTRY_HEADER, ENTRY_HEADER_SIZE


class TupleDataSource(DLedgerDataSource):
    """Format C{dledger_tuples}: all columns, in the order of the source's own schema."""

    @classmethod
    def name(cls) -> str:
        """The name for C{format()}."""
        return "dledger_tuples"

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader with the source's own options."""
        return TupleReader(Scan.of(dict(self.options)))


class TupleReader(LogBatchReader):
    """Reads as the source does, but decodes the records one by one in a loop."""

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of one partition."""
        return tuples(self._scan, partition.value)


def tuples(scan: Scan, part: LogPart) -> Iterator[tuple[Any, ...]]:
    """A tuple for each entry of a part."""
    unpack = ENTRY_HEADER.unpack_from
    with closing(scan.log()) as log:
        for chunk in log.chunks(part.begin, part.end, with_data=True):
            assert chunk.data is not None
            data = memoryview(chunk.data)
            edges = chunk.starts.tolist()
            for first, last in zip(edges, edges[1:], strict=False):
                _magic, size, index, term, pos, channel, chain, body_crc, _length = unpack(data, first)
                body = bytes(data[first + ENTRY_HEADER_SIZE : last])
                yield index, term, pos, size, channel, chain, body_crc, body
