# -*- test-case-name: tests.spark.test_exactly_once -*-
"""
A streaming query in a process of its own, to be killed.

    python -m tests.spark.query SOURCE OUT CHECKPOINT LIMIT

SOURCE is a directory, or members as in option C{bootstrap}. Runs until it is killed, unless C{--to-the-end}.
"""

from __future__ import annotations

import argparse

import dledger.spark
from tests.spark.sessions import CONFIG, patiently


def main() -> None:
    """Run the query."""
    parser = argparse.ArgumentParser()
    parser.add_argument("source")
    parser.add_argument("out")
    parser.add_argument("checkpoint")
    parser.add_argument("limit")
    parser.add_argument("--to-the-end", action="store_true")
    options = parser.parse_args()
    # A task is tried four times: a worker that is killed ends nothing.
    session = dledger.spark.session("dledger query", master="local[2,4]", config=CONFIG)
    place = "path" if options.source.startswith("/") else "bootstrap"
    frame = (
        session.readStream.format("dledger").option(place, options.source)
        .option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", options.limit)
        .option("minPartitions", "2").load()
    )
    writer = (
        frame.writeStream.format("parquet").option("path", options.out)
        .option("checkpointLocation", options.checkpoint)
    )
    if options.to_the_end:
        writer = writer.trigger(availableNow=True)
    patiently(lambda: writer.start().awaitTermination())
    session.stop()


if __name__ == "__main__":
    main()
