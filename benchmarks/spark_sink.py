# -*- test-case-name: tests.spark.test_benchmark -*-
"""
The speed at which rows of Spark become entries of a group, beside that of a client without Spark.

    python -m benchmarks.spark_sink
    python -m benchmarks.spark_sink --rows 500000 --rounds 5 --json sink.json

A group of three members, Spark with two cores and the client share the machine. Each way once in each round,
after a round that does not count; ratios compare medians of one run.
"""

from __future__ import annotations

import time
from typing import Any

import click

import dledger
from benchmarks.common import console, median, number, probe_machine, table, work_directory, write_json
from dledger.spark.session import session
from tests.processes.members import Group

_SINK, _CLIENT, _NUMBERED = "Spark, sink", "append_many", "append_many, numbered"


def measure(spark: Any, bootstrap: str, count: int, body_bytes: int, rounds: int) -> list[dict[str, Any]]:
    """Rows of one size by both ways."""
    frame = spark.range(count, numPartitions=8).selectExpr(
        f"cast(lpad(cast(id as string), {body_bytes}, 'x') as binary) AS body").cache()
    frame.count()
    bodies = [(b"%d" % at).rjust(body_bytes, b"x") for at in range(count)]
    seconds: dict[str, list[float]] = {_SINK: [], _CLIENT: [], _NUMBERED: []}
    with dledger.connect(bootstrap, timeout=60.0) as log:
        for at in range(rounds + 1):
            started_s = time.monotonic()
            frame.write.format("dledger").option("bootstrap", bootstrap).mode("append").save()
            seconds[_SINK].append(time.monotonic() - started_s)
            started_s = time.monotonic()
            log.append_many(bodies)
            seconds[_CLIENT].append(time.monotonic() - started_s)
            started_s = time.monotonic()
            log.append_many(bodies, window=10_000, producer=f"bare-{body_bytes}-{at}", sequence=0)
            seconds[_NUMBERED].append(time.monotonic() - started_s)
    frame.unpersist()
    found = []
    for way, taken in seconds.items():
        middle = median(taken[1:])
        found.append({
            "way": way, "body_bytes": body_bytes, "rows": count, "seconds": middle, "least_s": min(taken[1:]),
            "rows_per_s": count / middle, "mb_per_s": count * body_bytes / middle / 1e6,
        })
    return found


def show(results: list[dict[str, Any]]) -> None:
    """One line for each way and size."""
    rows = [(one["way"], str(one["body_bytes"]), number(one["seconds"]), number(one["rows_per_s"]),
             number(one["mb_per_s"]), number(one["rows"] * one["body_bytes"] / one["least_s"] / 1e6))
            for one in results]
    table("rows of Spark into three members", ("way", "bytes", "s", "rows/s", "MB/s", "best"), rows)


@click.command()
@click.option("--rows", default=200_000, show_default=True)
@click.option("--bodies", default="100,1024", show_default=True, help="Sizes of bodies, in bytes.")
@click.option("--rounds", default=3, show_default=True)
@click.option("--json", "json_path", default=None, help="File for the figures.")
@click.option("--directory", "parent", default=None, help="Where the members' directories are made.")
def main(rows: int, bodies: str, rounds: int, json_path: str | None, parent: str | None) -> None:
    """Measure how fast rows become entries."""
    results: list[dict[str, Any]] = []
    with work_directory(parent) as place:
        machine = probe_machine(place)
        group = Group(place / "group")
        config = {"spark.driver.memory": "2g", "spark.sql.warehouse.dir": str(place / "warehouse")}
        try:
            group.start()
            group.leader()
            spark = session("dledger benchmark", master="local[2]", config=config)
            for size in bodies.split(","):
                results += measure(spark, group.peers_text, rows, int(size), rounds)
            spark.stop()
        finally:
            group.kill()
    show(results)
    console.print(machine.line())
    write_json(json_path, results, machine)


if __name__ == "__main__":
    main()
