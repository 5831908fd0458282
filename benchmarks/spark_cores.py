# -*- test-case-name: tests.spark.test_cores -*-
"""
What a second core brings to a reader of the log, and how much memory a worker takes.

    python -m benchmarks.spark_cores --quick
    python -m benchmarks.spark_cores --mebibytes 256 --rounds 5 --json cores.json

The same log is read with one core and with two, once each in every round: by processes without Spark, each of
which is bound to a core of its own and reads its share of the parts; and by Spark to its sink C{noop}, as
C{local[1]} and C{local[2]}. All columns, from the page cache.

C{ratio} is that of medians of the times by the clock, and C{best} that of the shortest ones; they mean
something only where two cores are free. C{got}, the share of their cores that the readers got, and the load
show whether they were. C{by cpu} is what the processor time of the readers allows: 2, less what two readers
cost more than one. The memory is the highest resident size of any Python worker of the Spark session, as
Linux records it.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import attrs
import click

from benchmarks.common import console, median, number, probe_machine, table, work_directory, write_json
from benchmarks.spark_scan import build, processor_seconds
from dledger.spark.scans.scan import Scan
from dledger.spark.session import session
from protocols.wire.rocketmq.layout import MAGIC_BLANK, START
from protocols.wire.rocketmq.message import encode_message, make_message

MIB = 1024 * 1024
_PARTS = 8
_BODY_BYTES = 100
#: Reads its share of the parts, reported in its arguments; prints its times.
_READER = """
import json, os, sys, time
from dledger.spark.scans.scan import Scan
options, cpu, of, number = json.loads(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
os.sched_setaffinity(0, {cpu})
scan = Scan.of(options)
parts = scan.plan()
for batch in scan.batches(parts[0]):
    pass
print("ready", flush=True)
sys.stdin.readline()
began, began_cpu, rows = time.perf_counter(), time.process_time(), 0
for part in parts[number::of]:
    for batch in scan.batches(part):
        rows += batch.num_rows
print(json.dumps([time.perf_counter() - began, time.process_time() - began_cpu, rows]), flush=True)
"""


@attrs.frozen(kw_only=True)
class Source:
    """A log to read: C{size} in bytes of records, C{options} of the source."""

    name: str
    size: int
    options: dict[str, str]


def build_messages(path: Path, size_bytes: int, file_bytes: int) -> int:
    """
    A broker's commit log of messages of about 200 bytes, with five topics and four properties.

    @return: bytes of records.
    """
    (path / "commitlog").mkdir(parents=True)
    chance, total, count = random.Random(1), 0, 0
    for base in range(0, size_bytes, file_bytes):
        data = bytearray()
        while True:
            record = encode_message(make_message(
                f"topic{count % 5}", chance.randbytes(16), queue_id=count % 4, queue_offset=count // 20,
                properties={"KEYS": f"k{count}", "UNIQ_KEY": f"7F000001{count:024X}",
                            "CLUSTER": "DefaultCluster", "TAGS": f"Tag{'ABC'[count % 3]}"},
                physical_offset=base + len(data), born_timestamp=1_700_000_000_000 + count,
                store_timestamp=1_700_000_000_001 + count,
            ))
            if len(data) + len(record) + START.size > file_bytes:
                break
            data += record
            count += 1
        total += len(data)
        data += START.pack(file_bytes - len(data), MAGIC_BLANK)
        Path(path, "commitlog", f"{base:020d}").write_bytes(bytes(data).ljust(file_bytes, b"\0"))
    return total


def sources(place: Path, mebibytes: int) -> list[Source]:
    """A log of each format, divided into eight parts."""
    log = build(place / "ledger", mebibytes * MIB, _BODY_BYTES)
    size = build_messages(place / "store", mebibytes * MIB, mebibytes * MIB // 2)
    common = {"minPartitions": str(_PARTS)}
    return [
        Source(name="dledger", size=log.size, options={"path": str(log.path), **common}),
        Source(name="rocketmq", size=size,
               options={"path": str(place / "store"), "format": "rocketmq", **common}),
    ]


def read_bare(source: Source, cores: int) -> tuple[float, float, int]:
    """
    Read with C{cores} processes.

    @return: seconds by the clock of the slowest, processor seconds of all, rows of all.
    """
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < cores:
        raise click.ClickException(f"this machine gives {len(allowed)} cores, and {cores} are measured")
    command = (sys.executable, "-c", _READER, json.dumps(source.options))
    readers = [
        subprocess.Popen((*command, str(allowed[number]), str(cores), str(number)), text=True,
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for number in range(cores)
    ]
    try:
        for reader in readers:
            assert reader.stdout is not None
            if reader.stdout.readline() != "ready\n":
                raise click.ClickException("a reader has ended before it began")
        told = []
        for reader in readers:
            assert reader.stdin is not None
            reader.stdin.write("\n")
            reader.stdin.flush()
        for reader in readers:
            assert reader.stdout is not None
            told.append(json.loads(reader.stdout.readline()))
    finally:
        for reader in readers:
            reader.kill()
            reader.communicate()
    return max(one[0] for one in told), sum(one[1] for one in told), sum(one[2] for one in told)


def worker_peak_bytes() -> int:
    """The highest resident size that a Python worker below this process has had; 0: there is none."""
    children: dict[int, list[int]] = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((place / "stat").read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(place.name))
    left, peak = list(children.get(os.getpid(), ())), 0
    while left:
        number = left.pop()
        left += children.get(number, ())
        try:
            command = Path(f"/proc/{number}/cmdline").read_bytes()
            status = Path(f"/proc/{number}/status").read_text()
        except OSError:
            continue
        if b"pyspark" in command and b"java" not in command.split(b"\0")[0]:
            peaks = [int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")]
            peak = max(peak, *peaks, 0) if peaks else peak
    return peak * 1024


def read_spark(source: Source, cores: int) -> tuple[float, float, int]:
    """
    Read with a session of C{cores}, after a read that does not count.

    @return: seconds by the clock, processor seconds of all processes, peak of a worker in bytes.
    """
    spark: Any = session("dledger cores", master=f"local[{cores}]", config={"spark.driver.memory": "2g"})
    try:
        frame = spark.read.format("dledger").options(**source.options)
        frame.load().write.format("noop").mode("overwrite").save()
        began, began_cpu = time.perf_counter(), processor_seconds()
        frame.load().write.format("noop").mode("overwrite").save()
        spent = time.perf_counter() - began, processor_seconds() - began_cpu
        return *spent, worker_peak_bytes()
    finally:
        spark.stop()


def measure(found: list[Source], rounds: int) -> list[dict[str, Any]]:
    """One row for each way and source; medians of the rounds."""
    rows: list[dict[str, Any]] = []
    for way, read in (("bare", read_bare), ("Spark", read_spark)):
        for source in found:
            times: dict[int, list[tuple[float, float, int]]] = {1: [], 2: []}
            loads = []
            for _round in range(rounds):
                for cores in times:
                    loads.append(os.getloadavg()[0])
                    times[cores].append(read(source, cores))
            one_s, two_s = (median([one[0] for one in times[cores]]) for cores in (1, 2))
            best = {cores: min(one[0] for one in some) for cores, some in times.items()}
            shares = {cores: median([cpu / spent / cores for spent, cpu, _ in times[cores]])
                      for cores in times}
            rows.append({
                "way": way, "format": source.name, "bytes": source.size, "one_s": one_s, "two_s": two_s,
                "ratio": one_s / two_s, "best_ratio": best[1] / best[2],
                "one_share": shares[1], "two_share": shares[2],
                "one_cpu_s": median([one[1] for one in times[1]]),
                "two_cpu_s": median([one[1] for one in times[2]]),
                "peak_bytes": max(one[2] for some in times.values() for one in some) if way == "Spark" else 0,
                "load": max(loads), "all": times,
            })
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    """Print the table."""
    table(
        "One core and two, all columns",
        ["way", "format", "1 core, MB/s", "2 cores, MB/s", "ratio", "best", "by cpu", "got, 1", "got, 2",
         "MiB", "load"],
        [
            [row["way"], row["format"], number(row["bytes"] / row["one_s"] / 1e6),
             number(row["bytes"] / row["two_s"] / 1e6), number(row["ratio"]), number(row["best_ratio"]),
             number(2 * row["one_cpu_s"] / row["two_cpu_s"]), f"{row['one_share']:.0%}",
             f"{row['two_share']:.0%}",
             number(row["peak_bytes"] / MIB) if row["peak_bytes"] else "-", number(row["load"])]
            for row in rows
        ], left=2,
    )
    for row in rows:
        if row["two_share"] < 0.9 and row["way"] == "bare":
            console.print(f"{row['format']}: two readers got {row['two_share']:.0%} of two cores: the "
                          "machine was busy, and the ratio says little")


@click.command()
@click.option("--quick", is_flag=True, help="64 MiB, one round.")
@click.option("--mebibytes", type=click.IntRange(min=1), default=256, show_default=True)
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True)
@click.option("--json", "json_path", type=click.Path(dir_okay=False), help="Write the figures to this file.")
@click.option("--dir", "parent", type=click.Path(file_okay=False), help="A directory on the disk to use.")
def main(quick: bool, mebibytes: int, rounds: int, json_path: str | None, parent: str | None) -> None:
    """Measure what a second core brings, and the memory of a worker."""
    if quick:
        mebibytes, rounds = 64, 1
    with work_directory(parent) as place:
        machine = probe_machine(place)
        found = sources(place, mebibytes)
        for source in found:  # from now on in the page cache
            rows_of = Scan.of(source.options).reader()
            console.print(f"{source.name}: {sum(batch.num_rows for batch in rows_of):,} rows")
        rows = measure(found, rounds)
    show(rows)
    console.print(machine.line())
    write_json(json_path, rows, machine)


if __name__ == "__main__":
    main(prog_name="python -m benchmarks.spark_cores")
