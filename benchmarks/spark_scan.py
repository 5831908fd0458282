# -*- test-case-name: tests.spark.test_benchmark -*-
"""
The speed at which committed entries become rows: in Arrow, in Spark, and in Parquet files.

    python -m benchmarks.spark_scan --quick
    python -m benchmarks.spark_scan --mebibytes 512 --rounds 3 --json spark.json

For each body size one ledger is written and then read in rounds: every way once in each round, after a round
that does not count. Ratios compare medians of one run, so that other load on the machine affects all
ways alike. MB/s is bytes of records by seconds. Processor time is of all processes, those of Spark and its
workers too. Spark gives all columns of the rows to its sink C{noop}, on two cores, or answers a query over a
frame that is loaded for it, without a schema by hand. The Parquet files for comparison were written by Spark
from the same rows. C{bootstrap} reads from one member that runs on the same two cores as Spark.
"""

from __future__ import annotations

import base64
import contextlib
import io
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import click

from benchmarks.common import console, median, number, probe_machine, table, work_directory, write_json
from dledger.base.disk.disk import OsDisk
from dledger.spark.export.exporter import ExportSettings, ExportSource
from dledger.spark.export.tables import open_export
from dledger.spark.formats.log import LogPart
from dledger.spark.scans.scan import Scan
from dledger.spark.session import session
from dledger.storage.files.term_file import TermFile
from dledger.storage.store.file_store import FileStore
from dledger.values.ledger.config import DLedgerConfig
from protocols.wire.rocketmq.message import Host, Message, body_crc_of, encode_message
from tests.processes.children import ChildError, ending, free_ports, wait_until
from tests.processes.members import Member

_BATCH = 1024
_FLUSH_BYTES = 64 * 1024 * 1024
_INDEX_FILE_BYTES = 32 * 1024 * 1024
#: Queries that people write.
QUERIES: dict[str, Callable[[Any], object]] = {
    "count": lambda frame: frame.count(),
    "max(index)": lambda frame: frame.selectExpr("max(index)").collect(),
    "filter": lambda frame: frame.where("index % 10 = 3").selectExpr("sum(length(body))").collect(),
    "range": lambda frame: frame.where("index BETWEEN 9 AND 999").selectExpr("sum(length(body))").collect(),
    "like": lambda frame: frame.where("cast(body AS string) LIKE '%\"user\": \"u00%'").count(),
    "JSON": lambda frame: frame.selectExpr(
        "sum(from_json(cast(body AS string), 'user STRING, amount INT').amount)").collect(),
    "limit": lambda frame: frame.limit(20).collect(),
}
#: A way, the way that it is compared with, and the highest ratio of their times that meets the aim: with
#: bodies of 100 bytes, and of 1 KiB.
_AIMS = (
    ("Spark, path", "Spark, Parquet", 1.0, 0.6), ("Spark, bootstrap", "Spark, path", 1.3, 1.3),
    ("export to iceberg", "export to Parquet", 1.25, 1.25),
    ("export to iceberg", "Spark writes Iceberg", 1 / 3, 1 / 3),
    *((f"path: {query}", f"Parquet: {query}", *aims) for query, aims in {
        "count": (1.2, 1.2), "max(index)": (1.2, 1.2), "filter": (1.0, 0.6), "range": (1.0, 1.0),
        "like": (1.0, 0.6), "JSON": (1.0, 0.6), "limit": (1.0, 1.0),
    }.items()),
)
#: Aims for numpy -> Arrow on one core with bodies of 100 bytes, and for messages of 1 KiB in Spark.
_ARROW_AIM_MB_S, _MESSAGES_AIM_MB_S = 1000.0, 300.0


@attrs.frozen(kw_only=True)
class Log:
    """A ledger to read: number of entries, C{size} in bytes with headers, C{path} of the member."""

    base: Path
    path: Path
    body_bytes: int
    entries: int
    size: int


def build(base: Path, size_bytes: int, body_bytes: int) -> Log:
    """
    A ledger of about two segments, closed cleanly.

    Bodies are objects of JSON. None is repeated: of a few repeated bodies Parquet would store a dictionary,
    and its scan would read almost no bytes.
    """
    config = _config(base, 20911, size_bytes)
    store = FileStore.open(config, OsDisk())
    terms = TermFile(OsDisk(), config.self_path, member_ids=config.peers)
    terms.take_up(ledger_end_term=-1)
    terms.save(1, "n0")
    rng = random.Random(1)
    flushed = 0
    while store.end_position < size_bytes - _BATCH * (body_bytes + 48):
        store.append_bodies(tuple([_body(rng, body_bytes) for _ in range(_BATCH)]), 1)
        if store.end_position - flushed > _FLUSH_BYTES:
            flushed = store.end_position
            _commit(store)
    _commit(store)
    entries = store.ledger_end_index + 1
    store.clean_close()
    terms.close()
    return Log(base=base, path=base / "dledger-n0", body_bytes=body_bytes, entries=entries,
               size=entries * (body_bytes + 48))


def _body(rng: random.Random, size: int) -> bytes:
    """An object of JSON, filled up with text that does not compress well."""
    head = b'{"user": "u%03d", "amount": %d, "note": "' % (rng.randrange(1000), rng.randrange(10_000))
    return head + base64.b64encode(rng.randbytes(size))[: max(size - len(head) - 2, 0)] + b'"}'


def _config(base: Path, port: int, size_bytes: int) -> DLedgerConfig:
    return DLedgerConfig(
        store_base_dir=str(base), self_id="n0", peers=f"n0-127.0.0.1:{port}",
        mapped_file_size_for_entry_data=size_bytes // 2, mapped_file_size_for_entry_index=_INDEX_FILE_BYTES,
    )


def build_messages(base: Path, log: Log) -> None:
    """A broker's store of as many messages as C{log} has entries, with the same sizes of bodies."""
    rng, files = random.Random(2), base / "commitlog"
    files.mkdir(parents=True)
    host, made, position = Host(b"\x7f\0\0\x01", 10911), io.BytesIO(), 0
    for at in range(log.entries):
        body, now_ms = _body(rng, log.body_bytes), 1_700_000_000_000 + at
        data = encode_message(Message(
            topic="orders", body=body, body_crc=body_crc_of(body),
            properties_data=f"KEYS\x01k{at}\x02TAGS\x01paid\x02UNIQ_KEY\x01{at:032d}".encode(),
            queue_id=at % 4, queue_offset=at // 4, physical_offset=position,
            born_timestamp=now_ms, born_host=host, store_timestamp=now_ms, store_host=host,
        ))
        made.write(data)
        position += len(data)
    # One file; a broker makes files of one size, so this one has room at its end.
    (files / f"{0:020d}").write_bytes(made.getvalue() + bytes(2**20))


def _commit(store: FileStore) -> None:
    store.record_commit(store.ledger_end_index)
    job = store.prepare_flush()
    if job is not None:
        job.run()
        store.finish_flush(job)
    store.check_point()


@contextlib.contextmanager
def serving(log: Log) -> Iterator[str]:
    """Run a member on the ledger's directory, and yield the value for C{bootstrap}."""
    port = free_ports(1)[0]
    config = _config(log.base, port, 2**20)
    sizes = _config(log.base, port, 2 * max(file.stat().st_size for file in (log.path / "data").iterdir()))
    options = {
        name: getattr(sizes, name)
        for name in ("mapped_file_size_for_entry_data", "mapped_file_size_for_entry_index")
    }
    member = Member("n0", {"n0": f"127.0.0.1:{port}"}, log.base, group=config.group, options=options)

    def leads() -> bool:
        said = member.metadata(seconds=1.0)
        return said is not None and said.committed_index >= log.entries - 1

    with ending(member):
        member.start()
        try:
            wait_until(leads, seconds=120, what="a member that has committed the ledger", every=0.05)
        except ChildError as error:
            raise click.ClickException(f"{error}\n{member.log_tail()}") from None
        yield f"n0-127.0.0.1:{port}"


def _arrow(log: Log, columns: Sequence[tuple[str, str]] | None) -> None:
    scan = Scan.of({"path": str(log.path)}, wanted=columns)
    whole = LogPart(begin=0, end=log.entries, size_bytes=log.size)
    rows = sum(batch.num_rows for batch in scan.batches(whole))
    if rows != log.entries:
        raise click.ClickException(f"{rows} rows of {log.entries}")


def _export(log: Log, out: Path, to: str) -> None:
    """An export with its own options' defaults. @param to: C{delta}, C{iceberg}, or empty: Parquet files."""
    shutil.rmtree(out, ignore_errors=True)
    source = ExportSource.of({"path": str(log.path)})
    with open_export(out, source, ExportSettings(to=to)) as exporter:
        exporter.step(0, is_last=True)
        if exporter.progress.rows < log.entries:
            raise click.ClickException(f"{exporter.progress.rows} rows of {log.entries}")


@attrs.frozen
class Iceberg:
    """
    A PySpark that can write Iceberg tables.

    @ivar jar: Iceberg's runtime for its version.
    @ivar home: the directory of its packages; empty: it is the one here.
    """

    jar: str
    home: str

    def start(self, log: Log, directory: Path) -> subprocess.Popen[str]:
        """L{benchmarks.spark_iceberg} on this log."""
        other = {"PYTHONPATH": self.home, "SPARK_HOME": f"{self.home}/pyspark"} if self.home else {}
        # (Variables of this process are those of its own Spark.)
        environment = {name: value for name, value in os.environ.items()
                       if not name.startswith(("SPARK", "PYSPARK", "PYTHONPATH"))}
        words = ("benchmarks.spark_iceberg", self.jar, str(log.path), str(directory / "ice"))
        return subprocess.Popen([sys.executable, "-m", *words], env={**environment, **other}, text=True,
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def _one_write(writer: subprocess.Popen[str]) -> None:
    assert writer.stdin and writer.stdout
    writer.stdin.write("\n")
    writer.stdin.flush()
    if not writer.stdout.readline():
        raise click.ClickException("Spark does not write an Iceberg table")


class Ways:
    """Every way to read one ledger; C{by_name} in the order of the table."""

    def __init__(
        self, spark: Any, log: Log, bootstrap: str, directory: Path, iceberg: Iceberg | None = None
    ) -> None:
        """@param iceberg: None: Spark writes no Iceberg table."""
        self._spark = spark
        self._log = log
        parquet = directory / "parquet"
        # A small ledger would be one task, and one of the two cores would be idle.
        end = {"endingOffsets": str(log.entries), "minPartitions": "2"}
        path = {"path": str(log.path), **end}
        self.frames: dict[str, Callable[[], Any]] = {
            "Spark, Parquet": lambda: spark.read.parquet(parquet.as_uri()),
            "Spark, path": lambda: self._load("dledger", path),
            "Spark, bootstrap": lambda: self._load("dledger", {"bootstrap": bootstrap, **end}),
            "Spark, path, index and term": lambda: self._load("dledger", path, "index BIGINT, term BIGINT"),
        }
        store = directory / "messages"
        build_messages(store, log)
        messages = {"path": str(store), "format": "rocketmq", "minPartitions": "2"}
        self._load("dledger", path).write.mode("overwrite").parquet(parquet.as_uri())
        self.by_name: dict[str, Callable[[], object]] = {
            "numpy -> Arrow": lambda: _arrow(log, None),
            **{f"export to {to or 'Parquet'}": lambda to=to: _export(log, directory / f"out{to}", to)
               for to in ("", "delta", "iceberg")},
            **{name: lambda frame=frame: _consume(frame()) for name, frame in self.frames.items()},
            "Spark, RocketMQ": lambda: _consume(self._load("dledger", messages)),
        }
        self._writer = iceberg.start(log, directory) if iceberg is not None else None
        if (writer := self._writer) is not None:
            self.by_name["Spark writes Iceberg"] = lambda: _one_write(writer)
        #: Bytes of ways that read another log.
        self.bytes = {"Spark, RocketMQ": (store / "commitlog" / f"{0:020d}").stat().st_size - 2**20}
        for name, query in QUERIES.items():
            # One right after the other: other load on the machine changes.
            for way in ("Parquet", "path", "bootstrap"):
                self.by_name[f"{way}: {name}"] = (
                    lambda frame=self.frames[f"Spark, {way}"], query=query: query(frame()))

    def _load(self, style: str, options: dict[str, str], schema: str = "") -> Any:
        reader = self._spark.read.format(style).options(**options)
        return (reader.schema(schema) if schema else reader).load()

    def close(self) -> None:
        """End the other Spark."""
        if self._writer is not None:
            self._writer.communicate()

    def check(self) -> None:
        """@raise ClickException: two ways do not give the same rows."""
        found = {}
        for name, frame in self.frames.items():
            wanted = ["count(*)", "sum(index)", "sum(term)"]
            if "term" not in name:
                wanted += ["sum(pos)", "sum(size)", "sum(chain_crc)", "sum(crc32(body))"]
            (row,) = frame().selectExpr(*wanted).collect()
            found[name] = tuple(row)
        full = {name: row for name, row in found.items() if len(row) > 3}
        if len(set(full.values())) != 1 or len({row[:3] for row in found.values()}) != 1:
            raise click.ClickException(f"not the same rows: {found}")


def _consume(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def processor_seconds() -> float:
    """Processor time of this process and all its descendants, as far as Linux reports it."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (place / "stat").read_text().rsplit(")", 1)[1].split()
            children.setdefault(int(fields[1]), []).append(int(place.name))
            ticks[int(place.name)] = sum(map(int, fields[11:15]))
    found, left = 0, [os.getpid()]
    while left:
        number = left.pop()
        found += ticks.get(number, 0)
        left += children.get(number, [])
    return found / os.sysconf("SC_CLK_TCK")


def measure(
    spark: Any, log: Log, directory: Path, rounds: int, iceberg: Iceberg | None = None
) -> list[dict[str, Any]]:
    """Seconds of every way, by the clock and of processor time: medians of the rounds."""
    spans: dict[str, list[tuple[float, float]]] = {}
    with serving(log) as bootstrap:
        ways = Ways(spark, log, bootstrap, directory, iceberg)
        ways.check()
        for at in range(rounds + 1):
            for name, way in ways.by_name.items():
                begin_s, begin_cpu_s = time.perf_counter(), processor_seconds()
                way()
                spent_s, cpu_s = time.perf_counter() - begin_s, processor_seconds() - begin_cpu_s
                if at:  # the first round warms caches and compilers
                    spans.setdefault(name, []).append((spent_s, cpu_s))
                sys.stderr.write(f"{log.body_bytes} B, round {at} of {rounds}, {name}: {spent_s:.2f} s\n")
        ways.close()
    return [
        {
            "what": name, "body_bytes": log.body_bytes, "entries": log.entries,
            "bytes": ways.bytes.get(name, log.size),
            "seconds": median([spent_s for spent_s, _ in found]),
            "cpu_seconds": median([cpu_s for _, cpu_s in found]), "all_seconds": [one for one, _ in found],
        }
        for name, found in spans.items()
    ]


def show(results: Sequence[dict[str, Any]]) -> None:
    """Print a table for each body size, and whether the aims were reached."""
    for body_bytes in sorted({row["body_bytes"] for row in results}):
        rows = {row["what"]: row for row in results if row["body_bytes"] == body_bytes}
        base_s = rows["Spark, Parquet"]["seconds"]
        some = next(iter(rows.values()))
        table(
            f"{some['bytes'] / 2**20:.0f} MiB, {some['entries']:,} entries of {body_bytes} bytes",
            ["way", "seconds", "of processors", "MB/s", "million rows/s", "Parquet = 1"],
            [
                [name, number(row["seconds"]), number(row["cpu_seconds"]),
                 number(row["bytes"] / row["seconds"] / 1e6),
                 number(row["entries"] / row["seconds"] / 1e6), number(row["seconds"] / base_s)]
                for name, row in rows.items()
            ],
        )
        for way, yardstick, *aims in _AIMS:
            if way not in rows or yardstick not in rows:
                continue
            aim = aims[body_bytes >= 1024]
            ratio = rows[way]["seconds"] / rows[yardstick]["seconds"]
            verdict = "reached" if ratio <= aim else "MISSED"
            work = rows[way]["cpu_seconds"] / rows[yardstick]["cpu_seconds"]
            console.print(f"{body_bytes} B: {way} / {yardstick} = {ratio:.2f}, aim {aim:.3g}: {verdict} "
                          f"({work:.2f} of its processor time)")
        rate = rows["Spark, RocketMQ"]["bytes"] / rows["Spark, RocketMQ"]["seconds"] / 1e6
        if body_bytes >= 1024:
            verdict = "reached" if rate >= _MESSAGES_AIM_MB_S else "MISSED"
            console.print(f"{body_bytes} B: messages in Spark {rate:,.0f} MB/s, aim "
                          f"{_MESSAGES_AIM_MB_S:,.0f}: {verdict}")
        if body_bytes == 100:
            arrow = rows["numpy -> Arrow"]
            rate, cpu_rate = (arrow["bytes"] / arrow[kind] / 1e6 for kind in ("seconds", "cpu_seconds"))
            verdict = "reached" if rate >= _ARROW_AIM_MB_S else "MISSED"
            console.print(f"100 B: numpy -> Arrow {rate:,.0f} MB/s, aim {_ARROW_AIM_MB_S:,.0f}: {verdict} "
                          f"({cpu_rate:,.0f} MB a second of processor time)")


@click.command()
@click.option("--quick", is_flag=True, help="64 MiB, one round")
@click.option("--json", "json_path", type=click.Path(dir_okay=False), help="write the results to this file")
@click.option("--mebibytes", default=512, show_default=True)
@click.option("--body-bytes", "bodies", type=click.IntRange(min=1), multiple=True, default=(100, 1024),
              show_default=True)
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--iceberg-jar", default="", help="Iceberg's runtime for Spark; without it Spark writes none")
@click.option("--iceberg-home", default="", help="packages with a PySpark that fits it, if not the one here")
@click.option("--dir", "parent", type=click.Path(file_okay=False), help="a directory on the disk to measure")
def main(
    quick: bool, json_path: str | None, mebibytes: int, bodies: tuple[int, ...], rounds: int,
    iceberg_jar: str, iceberg_home: str, parent: str | None,
) -> None:
    """Measure how fast committed entries become rows."""
    iceberg = Iceberg(iceberg_jar, iceberg_home) if iceberg_jar else None
    if quick:
        mebibytes, rounds = 64, 1
    results: list[dict[str, Any]] = []
    with work_directory(parent) as place:
        machine = probe_machine(place)
        config = {"spark.driver.memory": "2g", "spark.sql.warehouse.dir": str(place / "warehouse")}
        spark = session("dledger benchmark", master="local[2]", config=config)
        try:
            for body_bytes in bodies:
                directory = place / str(body_bytes)
                directory.mkdir()
                log = build(directory / "store", mebibytes * 2**20, body_bytes)
                results += measure(spark, log, directory, rounds, iceberg)
                shutil.rmtree(directory)
        finally:
            spark.stop()
    show(results)
    console.print(machine.line())
    write_json(json_path, results, machine)


if __name__ == "__main__":
    main()
