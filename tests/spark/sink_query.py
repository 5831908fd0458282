# -*- test-case-name: tests.spark.test_sink_kills -*-
"""
A stream from a ledger into a group, in a process of its own, to be killed.

    python -m tests.spark.sink_query PATH BOOTSTRAP CHECKPOINT

Ends when all that was committed at its start is in the group. A query that fails is started again, as a
supervisor would do, a number of times. In some batches the first attempt of a task fails.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Any

from pyspark import TaskContext
from pyspark.errors import StreamingQueryException

import dledger.spark
from tests.spark.sessions import CONFIG

SINK_ID = "kills"
#: Small requests, so that a batch is many of them.
SMALL = {"sinkId": SINK_ID, "frameBytes": "250"}
_STARTS_MAX = 30


def failing_first(batches: Iterator[Any]) -> Iterator[Any]:
    """The rows as they are, once the task is tried again."""
    context = TaskContext.get()
    assert context is not None
    for batch in batches:
        yield batch
        row = int(batch.column(0)[0].as_py()[:6])
        if context.partitionId() == 1 and not context.attemptNumber() and row % 1000 < 150:
            raise RuntimeError("the first attempt of this task fails after its rows")


def main() -> None:
    """Run the query."""
    parser = argparse.ArgumentParser()
    parser.add_argument("path")
    parser.add_argument("bootstrap")
    parser.add_argument("checkpoint")
    options = parser.parse_args()
    session = dledger.spark.session("dledger sink", master="local[2,4]", config=CONFIG)
    frame = (
        session.readStream.format("dledger").option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "150").option("minPartitions", "3").load(options.path)
        .where("length(body) > 0").select("body").mapInArrow(failing_first, "body BINARY")
    )
    writer = (
        frame.writeStream.format("dledger").option("bootstrap", options.bootstrap).options(**SMALL)
        .option("checkpointLocation", options.checkpoint).trigger(availableNow=True)
    )
    for _ in range(_STARTS_MAX):
        try:
            writer.start().awaitTermination()
            session.stop()
            return
        except StreamingQueryException as error:
            sys.stderr.write(f"failed: {error}\n")
    raise SystemExit("the query fails again and again")


if __name__ == "__main__":
    main()
