# -*- test-case-name: tests.processes.test_demo -*-
"""
The end of the demo: Spark reads the log from the members and counts it.

It is its own process, because a JVM writes to the terminal. It reads the group by C{bootstrap}, counts,
writes all entries to Parquet, reads them back, counts again, and writes the counts to a JSON file; L{verdict}
compares them with the acknowledged lines.

    python -m demo.spark_end BOOTSTRAP PARQUET RESULT
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

#: The number of the line in a record; none in a mark and in an empty term-start entry.
_NUMBER = "if(locate('\\t', text) > 0, try_cast(substring_index(text, '\\t', 1) as bigint), null)"
_FACTS = {
    "entries": "count(*)", "lines": "count(number)", "distinct_lines": "count(distinct number)",
    "first_line": "min(number)", "last_line": "max(number)", "last_index": "max(index)",
    "distinct_indexes": "count(distinct index)", "crc32_of_lines": "sum(if(number is null, 0, crc32(body)))",
}


def expectation(bodies: Sequence[bytes], entries: int) -> dict[str, int]:
    """The counts when all C{bodies} were acknowledged, in C{entries} that include marks and the like."""
    return {
        "entries": entries, "lines": len(bodies), "distinct_lines": len(bodies), "first_line": 0,
        "last_line": len(bodies) - 1, "last_index": entries - 1, "distinct_indexes": entries,
        "crc32_of_lines": sum(map(crc32, bodies)), "out_of_order": 0,
    }


def verdict(expected: Mapping[str, int], said: Mapping[str, Any]) -> list[str]:
    """The differences between Spark's counts and the expected ones, a sentence each."""
    return [
        f"Spark, {where}: {name} is {said[where].get(name)}, and {value} were acknowledged"
        for where in ("members", "parquet")
        for name, value in expected.items()
        if said[where].get(name) != value
    ]


def facts(frame: Any) -> dict[str, int]:
    """Counts over all entries of a data frame."""
    lines = frame.selectExpr("*", "cast(body as string) text").selectExpr("*", f"{_NUMBER} number")
    counts = lines.selectExpr(*(f"{what} {name}" for name, what in _FACTS.items()))
    found: dict[str, int] = counts.first().asDict()
    steps = lines.where("number is not null").selectExpr("number - lag(number) over (order by index) step")
    return {**found, "out_of_order": steps.where("step <> 1").count()}


def by_term(frame: Any) -> list[list[int]]:
    """Term, entries, bytes of bodies, first and last index."""
    frame.createOrReplaceTempView("entries")
    found = frame.sparkSession.sql(
        "select term, count(*), sum(length(body)), min(index), max(index) from entries "
        "group by term order by term"
    )
    return [list(row) for row in found.collect()]


def main(bootstrap: str, parquet: str, result: str) -> None:
    """Read, count, write, read back, count; the counts go to the file C{result}."""
    import dledger.spark

    begin_s = time.monotonic()
    spark = dledger.spark.session("dledger demo", config={
        "spark.driver.memory": "512m",
        # For a process that lives a few seconds.
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    })
    started_s = time.monotonic()
    # All entries are compared with the files of the members, the leaders' own, too.
    options = {"bootstrap": bootstrap, "minPartitions": "2", "includeControl": "true"}
    log = spark.read.format("dledger").options(**options).load()
    members = facts(log)
    read_s = time.monotonic()
    log.write.parquet(Path(parquet).absolute().as_uri())
    back = spark.read.parquet(Path(parquet).absolute().as_uri())
    said = {
        "members": members, "parquet": facts(back), "terms": by_term(back),
        "start_seconds": started_s - begin_s, "read_seconds": read_s - started_s,
        "parquet_seconds": time.monotonic() - read_s,
    }
    said["bytes"] = sum(path.stat().st_size for path in Path(parquet).glob("*.parquet"))
    Path(result).write_text(json.dumps(said))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
