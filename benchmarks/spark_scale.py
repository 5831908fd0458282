# -*- test-case-name: tests.spark.test_scale -*-
"""
What planning a query costs on very large logs: time, calls to the disk or the store, memory of the driver.

    python -m benchmarks.spark_scale
    python -m benchmarks.spark_scale --segments 1024 --json scale.json

The logs are sparse: each file has its full length, but of the data only the first header is written, which is
all that planning reads of it; the index is whole. Nothing is read from them but what planning reads.
"""

from __future__ import annotations

import pickle
import time
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from unittest import mock
from zlib import crc32

import attrs
import click
import numpy as np

from benchmarks.common import number, probe_machine, table, work_directory, write_json
from dledger.base.disk.disk import OsDisk, OsFile
from dledger.spark.ledger.ends import UNIT_DTYPE
from dledger.spark.scans.scan import Scan
from dledger.storage.files.commit_mark import COMMIT_MARK_NAME, CommitMark, encode_mark
from dledger.storage.manifests.archive_manifest import (
    SLOT_NAMES,
    ArchiveManifest,
    ArchivePiece,
    encode_archive_manifest,
    generation_name,
)
from protocols.wire.ledger.entry import ENTRY_HEADER, INDEX_UNIT_SIZE, MAGIC

SEGMENT_BYTES = 1 << 30
RECORD_BYTES = 1 << 20
#: Records of a segment; what is left of it is blank.
PER_SEGMENT = SEGMENT_BYTES // RECORD_BYTES - 1
#: Units of one index file.
PER_INDEX_FILE = 64 * 1024
MIB = 1024 * 1024
_SLOT_BYTES = 512


def make_directory(path: Path, segments: int) -> None:
    """A member's directory of this many sparse segments of 1 GiB, all committed."""
    (path / "data").mkdir(parents=True)
    (path / "index").mkdir()
    count = segments * PER_SEGMENT
    first = ENTRY_HEADER.pack(MAGIC, RECORD_BYTES, 0, 1, 0, 0, 1, 1, RECORD_BYTES - ENTRY_HEADER.size)
    for segment in range(segments):
        with open(path / "data" / f"{segment * SEGMENT_BYTES:020d}", "wb") as file:
            if segment == 0:
                file.write(first)
            file.truncate(SEGMENT_BYTES)
    for begin in range(0, count, PER_INDEX_FILE):
        indexes = np.arange(begin, min(begin + PER_INDEX_FILE, count), dtype=np.int64)
        units = np.zeros(len(indexes), dtype=UNIT_DTYPE)
        units["magic"], units["size"], units["index"], units["term"] = MAGIC, RECORD_BYTES, indexes, 1
        units["pos"] = indexes // PER_SEGMENT * SEGMENT_BYTES + indexes % PER_SEGMENT * RECORD_BYTES
        with open(path / "index" / f"{begin * INDEX_UNIT_SIZE:020d}", "wb") as file:
            file.write(units.tobytes())
            file.truncate(PER_INDEX_FILE * INDEX_UNIT_SIZE)
    end_position = (segments - 1) * SEGMENT_BYTES + PER_SEGMENT * RECORD_BYTES
    mark = CommitMark(
        committed_index=count - 1, end_index=count - 1, end_term=1, end_position=end_position,
        begin_position=0, begin_crc=crc32(first), index_end_position=end_position,
        data_file_size=SEGMENT_BYTES, index_file_size=PER_INDEX_FILE * INDEX_UNIT_SIZE,
    )
    slots = (encode_mark(mark, generation).ljust(_SLOT_BYTES, b"\0") for generation in (2, 1))
    (path / COMMIT_MARK_NAME).write_bytes(b"".join(slots))


def make_archive(path: Path, segments: int) -> int:
    """An archive whose manifest lists this many segments, none of which is there. @return: its bytes."""
    size = PER_SEGMENT * RECORD_BYTES
    pieces = tuple(
        ArchivePiece(
            position=number * SEGMENT_BYTES, end_position=number * SEGMENT_BYTES + size,
            first_index=number * PER_SEGMENT, last_index=(number + 1) * PER_SEGMENT - 1, sha256="a" * 64,
            first_term=1, last_term=1, chain_crc=1, last_record_sha256="b" * 64, shipped_s=1_700_000_000,
        )
        for number in range(segments)
    )
    manifest = ArchiveManifest(
        generation=segments + 1, group="g", group_id="c" * 32, member_id="n0", data_file_size=SEGMENT_BYTES,
        index_file_size=PER_INDEX_FILE * INDEX_UNIT_SIZE, taken_s=1_700_000_000, pieces=pieces,
    )
    before = attrs.evolve(manifest, generation=segments, pieces=pieces[:-1])
    (path / "generations").mkdir(parents=True)
    for one in (before, manifest):
        data = encode_archive_manifest(one)
        (path / SLOT_NAMES[one.generation % 2]).write_bytes(data)
        (path / generation_name(one.generation)).write_bytes(data)
    return len(data)


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Count the calls that read from a disk; each of an archive would be a request to a store."""
    calls: Counter[str] = Counter()

    def counting(owner: type, name: str) -> AbstractContextManager[object]:
        plain = getattr(owner, name)

        def call(*given: object, **named: object) -> object:
            calls[name] += 1
            return plain(*given, **named)

        return mock.patch.object(owner, name, call)

    with ExitStack() as held:
        held.enter_context(counting(OsFile, "pread"))
        for name in ("read_file", "exists", "listdir", "file_size"):
            held.enter_context(counting(OsDisk, name))
        yield calls


@attrs.frozen(kw_only=True)
class Planned:
    """
    What planning cost.

    @ivar calls: by kind.
    @ivar peak_bytes: of the memory that Python gave out.
    @ivar sent_bytes: of the parts, as the driver keeps them and sends them to tasks.
    """

    parts: int
    seconds: float
    calls: dict[str, int]
    peak_bytes: int
    sent_bytes: int


def plan(options: dict[str, str]) -> Planned:
    """Plan twice: for the time, and for calls and memory, whose counting takes time."""
    begin_s = time.perf_counter()
    parts = Scan.of(options).plan()
    seconds = time.perf_counter() - begin_s
    tracemalloc.start()
    try:
        with counted() as calls:
            Scan.of(options).plan()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    sent = sum(len(pickle.dumps(part)) for part in parts)
    return Planned(parts=len(parts), seconds=seconds, calls=dict(calls), peak_bytes=peak, sent_bytes=sent)


def measure(home: Path, segments: int, part_mib: tuple[int, ...]) -> list[dict[str, object]]:
    """One row for each kind of place and size of parts."""
    rows: list[dict[str, object]] = []
    make_directory(home / "directory", segments)
    manifest_bytes = make_archive(home / "archive", segments)
    for kind in ("directory", "archive"):
        for mib in part_mib:
            planned = plan({"path": str(home / kind), "partitionBytes": str(mib * MIB)})
            rows.append({
                "place": kind, "segments": segments, "part_mib": mib,
                "manifest_bytes": manifest_bytes if kind == "archive" else 0, **attrs.asdict(planned),
            })
    return rows


@click.command()
@click.option("--segments", type=click.IntRange(2, 100_000), multiple=True, default=(1024, 10_000),
              show_default=True, help="Of 1 GiB; may be given more than once.")
@click.option("--part-mib", type=click.IntRange(1), multiple=True, default=(128, 1024), show_default=True,
              help="Option partitionBytes, in MiB; may be given more than once.")
@click.option("--directory", help="Where the sparse files are made.  [default: the system's]")
@click.option("--json", "json_path", help="Write the figures to this file.")
def main(
    segments: tuple[int, ...], part_mib: tuple[int, ...], directory: str | None, json_path: str | None
) -> None:
    """Measure what planning costs on sparse logs."""
    rows: list[dict[str, object]] = []
    with work_directory(directory) as home:
        machine = probe_machine(home)
        for count in segments:
            rows += measure(home / str(count), count, part_mib)
    columns = ("place", "segments", "MiB a part", "parts", "s", "calls", "driver MiB", "sent MiB")
    table("Planning, sparse logs with segments of 1 GiB", columns, [
        (str(row["place"]), f"{row['segments']:,}", f"{row['part_mib']:,}", f"{row['parts']:,}",
         number(row["seconds"]), f"{sum(row['calls'].values()):,}", number(row["peak_bytes"] / MIB),
         number(row["sent_bytes"] / MIB))  # type: ignore[attr-defined,arg-type,operator]
        for row in rows
    ])
    write_json(json_path, rows, machine)


if __name__ == "__main__":
    main(prog_name="python -m benchmarks.spark_scale")
