# -*- test-case-name: tests.spark.test_sink_staging -*-
"""
The rows of one task on their way to the driver: bodies without a gap, and the length of each.

Everything that can be wrong with a row is found here, in the task, before anything is in the log.

Knows nothing of Spark and of the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dledger.spark.formats.envelopes import guarded_bodies
from dledger.spark.sink.sink_log import BatchRows, SinkError, digest_of_all
from protocols.wire.ledger.entry import ENTRY_HEADER_SIZE, MAX_RECORD_BYTES

#: Largest body that a member with segments of the usual size can store.
_BODY_BYTES_MAX = MAX_RECORD_BYTES - ENTRY_HEADER_SIZE
_COLUMNS = ("body", "value")
_TYPES = ("binary", "string")


def body_column(columns: Sequence[tuple[str, str]]) -> str:
    """
    The column with the bodies.

    @param columns: names and Spark types.
    @raise SinkError: there is none, or there are others.
    """
    found = [name for name, _ in columns if name.lower() in _COLUMNS]
    others = [name for name, _ in columns if name.lower() not in _COLUMNS]
    if others or len(found) != 1:
        what = f"column {others[0]}" if others else " and ".join(found) or "no column"
        raise SinkError(
            f"the sink takes one column: body, or value as for Kafka, BINARY or STRING; the frame has {what}"
            f"{' besides' if others and found else ''}. Make one of several, as with "
            'selectExpr("to_json(struct(*)) AS body")'
        )
    kind = dict(columns)[found[0]]
    if not kind.startswith(_TYPES):
        raise SinkError(f"column {found[0]} is {kind.upper()}: BINARY and STRING are allowed, cast it")
    return found[0]


@attrs.frozen(kw_only=True)
class StagedRows:
    """
    The rows of one task.

    @ivar lengths: of the bodies, 4 bytes each, little-endian.
    @ivar bodies: one after the other.
    @ivar digest: sum of the digests of the rows.
    """

    lengths: bytes
    bodies: bytes
    digest: int

    @property
    def count(self) -> int:
        """Number of rows."""
        return len(self.lengths) // 4

    def rows(self) -> Iterator[bytes]:
        """The bodies in order."""
        at = 0
        for length in np.frombuffer(self.lengths, dtype="<i4").tolist():
            yield self.bodies[at : at + length]
            at += length


def rows_of_tasks(tasks: Sequence[StagedRows]) -> BatchRows:
    """The rows of all tasks, in the order of the partitions."""
    return BatchRows(
        count=sum(task.count for task in tasks), digest=sum(task.digest for task in tasks) % (1 << 64),
        all=lambda: (row for task in tasks for row in task.rows()),
    )


def stage(batches: Iterable[pa.RecordBatch], column: str, partition: int, bytes_max: int) -> StagedRows:
    """
    The rows of a task, checked.

    @param partition: number of the task's partition, for messages.
    @raise SinkError: a body is null or too long; or all are more than C{bytes_max}.
    """
    lengths: list[bytes] = []
    pieces: list[bytes] = []
    count = size = digest = 0
    for batch in batches:
        bodies = guarded_bodies(batch.column(batch.schema.get_field_index(column)).cast(pa.binary()))
        _check(bodies, f"of partition {partition}", count)
        found = pc.binary_length(bodies)
        size += int(pc.sum(found).as_py() or 0)
        if size > bytes_max:
            raise SinkError(
                f"partition {partition} has more than {bytes_max} bytes of bodies (maxTaskBytes), which the "
                "driver must hold: repartition() the frame, let a stream read less at a time "
                "(maxBytesPerTrigger), or raise maxTaskBytes and the memory of the driver"
            )
        rows = bodies.to_pylist()
        lengths.append(np.asarray(found, dtype="<i4").tobytes())
        pieces.append(b"".join(rows))
        digest += digest_of_all(rows)
        count += len(rows)
    return StagedRows(lengths=b"".join(lengths), bodies=b"".join(pieces), digest=digest % (1 << 64))


def _check(bodies: pa.BinaryArray, where: str, before: int) -> None:
    """@param before: rows of the partition in front of these."""
    for found, problem in (
        (pc.is_null(bodies), "has no body (null): filter such rows, or give them an empty body"),
        (pc.greater(pc.binary_length(bodies), _BODY_BYTES_MAX),
         f"has a body of more than {_BODY_BYTES_MAX} bytes, which no member can store"),
    ):
        at = int(pc.index(found, True).as_py())
        if at >= 0:
            raise SinkError(f"row {before + at} {where} {problem}. This run has appended nothing")
