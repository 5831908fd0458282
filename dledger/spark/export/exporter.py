# -*- test-case-name: tests.spark.test_export -*-
"""
A log into files without Spark: each row exactly once, despite interruptions::

    source = ExportSource.of({"path": "store/dledger-n0"})
    with Exporter.open("out", source, ExportSettings()) as exporter:
        exporter.step(now_ms=0, is_last=True)

The log is read in order and cut into parts: where one of its files ends (a segment), where a part has
C{part_bytes}, and, when the log is followed, where a part has been open for C{max_delay_ms}. A part stays
open from one L{Exporter.step} to the next, so a log that grows slowly is read once. After a crash the rows of
an open part are not visible; they are read again.

Rule: only L{ExportDirectory} says how far the export is. Entries of a committed log never change, so a run
that continues after a crash writes the same rows, perhaps cut at other places.

Knows nothing of clocks, signals and terminals.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import attrs
import pyarrow as pa

from dledger.spark.export.decode import BODY, DECODED, DecodedPart, begin_fields
from dledger.spark.export.files import ExportDirectory, ExportError, ExportPart, part_name
from dledger.spark.export.runs import Run, runs_of
from dledger.spark.export.store_files import StoreExport, store_place
from dledger.spark.export.table_target import TIME_COLUMNS, ExportTable
from dledger.spark.export.writers import COMPRESSIONS, FORMATS, PARQUET, OpenPart, PartWriter
from dledger.spark.formats.log import Extent, ReadError, ScannedLog, await_end
from dledger.spark.formats.option_texts import OptionError
from dledger.spark.formats.options import ROCKETMQ, ScanOptions
from dledger.spark.formats.proof import Proof, difference, of_group, of_record
from dledger.spark.ledger.columns import TIME_COLUMN
from dledger.spark.rocketmq.commit_log import SparkCommitLog
from dledger.spark.scans.scan import Scan, columns_of, decoder_of
from dledger.values.addresses import is_url
from dledger.values.exports import ExportProgress

#: The engine without Spark.
ARROW = "arrow"
#: Kinds of tables; see L{dledger.spark.export.tables}.
DELTA, ICEBERG = TABLES = ("delta", "iceberg")
#: The columns by which a row is given to the table of its topic: its offset is in one of the latter two.
TOPIC_COLUMNS = ("topic", "index", "physicalOffset")
#: Bytes of the log in one part: the same as one task of Spark's reads.
PART_BYTES = 128 * 1024 * 1024


@attrs.frozen(kw_only=True)
class ExportSettings:
    """
    The form of the files, and where they end.

    @ivar to: one of L{TABLES}, the kind of the table that the files belong to; empty: files alone.
    @ivar columns: in this order; empty: all columns.
    @ivar max_delay_ms: when a log is followed, a part ends at most this many milliseconds after its first
        row; 0: only when it is full.
    @ivar store_options: of the store, as fsspec's, if the target is a URL.
    @ivar catalog, table, catalog_options: of an Iceberg table in a catalog that others use, too; see
        L{dledger.spark.export.iceberg_catalog}.
    @ivar decode: C{json}: the fields of the bodies are columns; empty: they are not.
    @ivar fields: names and types of fields that are columns from the start.
    @ivar table_per: C{topic}: a table, or directory of files, for each topic; empty: one for all rows.
    """

    to: str = ""
    format: str = attrs.field(default=PARQUET)
    columns: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()
    compression: str = attrs.field(default="snappy")
    part_bytes: int = PART_BYTES
    max_delay_ms: int = 60_000
    store_options: Mapping[str, object] = attrs.field(factory=dict, repr=False)
    catalog: str = attrs.field(default="", repr=False)
    table: str = ""
    catalog_options: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    decode: str = ""
    fields: tuple[tuple[str, str], ...] = ()
    table_per: str = ""

    @property
    def needed(self) -> tuple[str, ...]:
        """Columns that are read, whether they are in the files or not."""
        return (*((BODY,) if self.decode else ()), *(TOPIC_COLUMNS if self.table_per else ()))

    def __attrs_post_init__(self) -> None:
        """@raise ExportError: a value makes no sense."""
        if self.format not in FORMATS:
            raise ExportError(f"format {self.format!r}: allowed are {', '.join(FORMATS)}")
        if self.compression not in COMPRESSIONS:
            raise ExportError(f"compression {self.compression!r}: allowed are {', '.join(COMPRESSIONS)}")
        if self.to and self.to not in TABLES:
            raise ExportError(f"table {self.to!r}: allowed are {', '.join(TABLES)}")
        if self.to and self.format != PARQUET:
            raise ExportError(f"format {self.format!r}: the files of a table are Parquet")
        if self.decode and self.decode not in DECODED:
            raise ExportError(f"decode {self.decode!r}: allowed are {', '.join(DECODED)}")
        if self.decode and self.format != PARQUET:
            raise ExportError(
                "--decode makes columns, and lines of JSON have none: use --format parquet, or --to"
            )
        if self.fields and not self.decode:
            raise ExportError("--field names a column of --decode json, which is not given")
        if self.table_per not in ("", "topic"):
            raise ExportError(f"table-per {self.table_per!r}: allowed is topic")
        if self.part_bytes < 1 or self.max_delay_ms < 0:
            raise ExportError("a part has at least one byte, and a delay is not negative")

    def kept(self) -> dict[str, object]:
        """The settings that all parts of a directory must have in common."""
        return {
            "format": self.format, "columns": list(self.columns), "partition_by": list(self.partition_by),
            "decode": self.decode, "to": self.to, "table_per": self.table_per,
        }


#: For each option of the source without effect on an export: the reason. Names in lower case.
_WITHOUT_EFFECT = {
    "partitionbytes": "the size of a part is --part-bytes",
    # They would have to be the same whenever the export is continued.
    **dict.fromkeys(("topics", "tags", "keys", "storedfrom", "storedbefore"),
                    "an export holds all messages; choose among them when you read the files"),
}
_WITHOUT_TASKS = {
    name: "the export has one task, which reads everything in order; --engine spark has several"
    for name in ("minpartitions", "maxrecordsperpartition")
}


def _check_options(read: ScanOptions, given: Mapping[str, str], engine: str, follows: bool) -> None:
    """@raise OptionError: an option has no effect on this export."""
    refused = dict(_WITHOUT_EFFECT)
    if engine == ARROW:
        refused |= _WITHOUT_TASKS
    if follows:
        refused["endingoffsets"] = "the export follows the log and has no end"
    if read.format != ROCKETMQ:
        refused |= dict.fromkeys(("decompress", "includeinternal"), "it belongs to format=rocketmq")
    if not read.bootstrap:
        refused["readfrom"] = "it belongs to bootstrap, and the log is a directory"
    for name in given:
        if name.lower() in refused:
            raise OptionError(f"option {name} has no effect on this export: {refused[name.lower()]}")


@attrs.frozen(kw_only=True)
class ExportSource:
    """
    A log, and the part of it to export.

    @ivar scan: reads the columns of the files, and those by which they are made.
    @ivar given: the source's options as the user gave them.
    @ivar names: columns of the files, in this order.
    """

    scan: Scan
    given: Mapping[str, str]
    names: tuple[str, ...]

    @property
    def schema(self) -> pa.Schema:
        """Of the rows of the log in the files."""
        return self.scan.only(self.names).schema

    @classmethod
    def of(
        cls, options: Mapping[str, str], columns: Sequence[str] = (), partition_by: Sequence[str] = (), *,
        engine: str = ARROW, follows: bool = False, needed: Sequence[str] = (),
    ) -> ExportSource:
        """
        @param options: of the source, see docs/spark-reference.md.
        @param columns: empty: all.
        @param engine: L{ARROW}, or C{spark}.
        @param follows: the export has no end.
        @param needed: columns that are read, whether they are in the files or not.
        @raise OptionError: an option or a column does not exist or makes no sense, also for this export.
        @raise ExportError: C{partition_by} is not possible with these columns.
        """
        _check_options(Scan.of(options).options, options, engine, follows)
        if not any(name.lower() == "verifycrc" for name in options):
            # The files outlive the log: damage in them could never be noticed again.
            options = {**options, "verifyCrc": "true"}
        known = {column.name: column.ddl for column in columns_of(Scan.of(options).options)}
        lacking = [name for name in needed if name not in known]
        if lacking:
            raise OptionError(
                f"--table-per topic needs column {lacking[0]}, which is there with -o format=rocketmq"
            )
        names = list(columns) or list(known)
        read = [*names, *(name for name in needed if name not in names)]
        scan = Scan.of(options, wanted=[(name, known.get(name, "?")) for name in read])
        for name in partition_by:
            if name not in names:
                raise ExportError(
                    f"--partition-by {name}: it is not one of the columns, which are {', '.join(names)}"
                )
            if known[name] not in ("BIGINT", "INT", "STRING"):
                raise ExportError(f"--partition-by {name}: a column of type {known[name]} is not a partition")
        if len(set(partition_by)) == len(names):
            raise ExportError("--partition-by names all columns, so no column is left for the files")
        if len(set(partition_by)) < len(partition_by):
            raise ExportError("--partition-by names a column twice")
        return cls(scan=scan, given=dict(options), names=tuple(names))


class ExportTarget(Protocol):
    """Where parts go; it knows how far the export is. L{ExportDirectory} says more of each."""

    @property
    def path(self) -> str | os.PathLike[str]:
        """The directory, or the URL."""

    @property
    def next_index(self) -> int | None:
        """Where the next part begins; None until the first L{begin}."""

    @property
    def first(self) -> int | None:
        """Where the export begins; None if it is not known."""

    @property
    def rows(self) -> int:
        """In all parts so far."""

    @property
    def proof(self) -> Proof:
        """Given with the last part."""

    #: As of L{FieldsTarget <dledger.spark.export.decode.FieldsTarget>}.
    fields: tuple[tuple[str, str], ...]

    def begin(self, index: int) -> None:
        """The first part begins at C{index}."""

    def stage(self, name: str) -> Path:
        """A new path for an unfinished file."""

    def commit(self, part: ExportPart, proof: Proof) -> None:
        """Make a part visible, durably. @raise OSError, ExportError: it is not, or not known to be."""

    def close(self) -> None:
        """Release the directory."""


class Exporter:
    """
    One run of an export.

    Invariant: rows of entries below C{directory.next_index} are visible, each once; rows from there to
    C{_next} are in the open part.

    @ivar on_progress: called after every batch.
    @ivar on_part: called with every part that has become visible.
    @ivar should_stop: asked before every batch.
    """

    def __init__(self, directory: ExportTarget, source: ExportSource, settings: ExportSettings) -> None:
        self.directory = directory
        self.on_progress: Callable[[ExportProgress], None] = lambda progress: None
        self.on_part: Callable[[ExportPart], None] = lambda part: None
        self.should_stop: Callable[[], bool] = lambda: False
        self._source = source
        self._settings = settings
        self._scan = _in_small_steps(source, settings)
        self._next: int | None = directory.next_index
        self._writer: OpenPart | None = None
        self._part_bytes = self._end_position = self._began_ms = 0
        #: The proof of the offset C{_next}, and the end of the log when it was last recognised by it.
        self._proof: Proof = directory.proof
        self._last: Run | None = None
        self._recognised_end = -1
        self._progress = ExportProgress(begin=0, next=0, end=0, rows=0, log_bytes=0)
        #: Bytes between C{_next} and the end of the log; None: not known.
        self._unread_bytes: int | None = None

    @classmethod
    def open(cls, out: str | os.PathLike[str], source: ExportSource, settings: ExportSettings) -> Self:
        """
        @param out: a directory or a URL.
        @raise ExportError: see L{ExportDirectory.open} and L{StoreExport.open}.
        @raise ReadError: the log cannot be read; then no directory was made.
        """
        check_apart(out, source.scan)
        source.scan.extent()
        return cls(open_directory(out, source, settings), source, settings)

    def __enter__(self) -> Self:
        """This exporter."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the exporter."""
        self.close()

    @property
    def progress(self) -> ExportProgress:
        """As of the last batch."""
        return self._progress

    def step(self, now_ms: int, *, is_last: bool) -> None:
        """
        Export the entries that are committed now.

        @param now_ms: monotonic.
        @param is_last: end the open part at the end of the log, even a small one.
        @raise ReadError: the log cannot be read; another step continues where this one stopped.
        @raise ExportError: the log is not the one exported before.
        @raise OSError: a file cannot be written.
        """
        scan = self._scan
        with closing(scan.log()) as log:
            extent, begin = self._begin(log, is_last)
            end = max(begin, scan.ending(extent))
            self._look_ahead(log, begin, end)
            decoder = decoder_of(scan.options, scan.columns, log)
            for chunk in log.chunks(begin, end, with_data=decoder.needs_data):
                if self.should_stop():
                    return
                for run in runs_of(log, chunk):
                    self._take(log, run, decoder.decode(run.chunk), now_ms)
                self._notify(end)
            decoder.finish()
            # Records at the end that were skipped, as an option allows, are done with, too.
            self._next = end
            self._unread_bytes = 0
            if end > begin:
                self._proof = _proof_of(log, end, self._last)
            self._notify(end)
            if self._writer is not None and (is_last or self._is_due(now_ms)):
                self._close_part(log, end)
                self._notify(end)

    def _begin(self, log: ScannedLog, is_last: bool) -> tuple[Extent, int]:
        """The extent of the log, and where this step begins in it; the log is the one exported before."""
        options = self._scan.options
        extent = log.extent(needs_begin=self._next is None)
        if self._next is None:
            self._next = self._scan.beginning(extent)
            self.directory.begin(self._next)
        if self._recognised_end < 0:
            check_from(self.directory, self._scan)
            self._progress = attrs.evolve(self._progress, begin=self._next)
        if extent.end < self._next:
            # A follower of the log looks again soon.
            options = options if is_last else attrs.evolve(options, request_timeout_ms=1)
            extent = await_end(log, options, self._next)
        if extent.end != self._recognised_end:
            recognise(self.directory.path, log, self._next, self._proof)
            self._recognised_end = extent.end
        return extent, self._next

    def _look_ahead(self, log: ScannedLog, begin: int, end: int) -> None:
        self._unread_bytes = 0 if begin == end else None
        self._progress = attrs.evolve(self._progress, are_bytes=isinstance(log, SparkCommitLog))
        with contextlib.suppress(ReadError):
            if begin < end:
                self._unread_bytes = max(log.position_of(end) - log.position_of(begin), 0)

    def _take(self, log: ScannedLog, run: Run, batch: pa.RecordBatch, now_ms: int) -> None:
        if self._writer is not None and self._end_position != run.position:
            assert self._next is not None
            self._close_part(log, self._next)
        if self._writer is None:
            self._writer = self._open_part()
            self._part_bytes = 0
            self._began_ms = now_ms
        if self._progress.oldest_ms is None and not self._writer.rows:
            self._progress = attrs.evolve(self._progress, oldest_ms=_first_time_ms(batch))
        self._writer.write(batch)
        self._last = run
        self._next = run.next
        self._end_position = run.position + run.size
        self._part_bytes += run.size
        if self._unread_bytes is not None:
            self._unread_bytes = max(self._unread_bytes - run.size, 0)
        self._progress = attrs.evolve(
            self._progress, rows=self._progress.rows + batch.num_rows,
            log_bytes=self._progress.log_bytes + run.size,
        )
        if self._part_bytes >= self._settings.part_bytes:
            self._close_part(log, run.next)

    def _open_part(self) -> OpenPart:
        return part_of_files(self.directory, self._source, self._settings)

    def _notify(self, end: int) -> None:
        assert self._next is not None
        open_bytes = self._part_bytes if self._writer is not None else 0
        self._progress = attrs.evolve(
            self._progress, next=self._next, end=end, visible=self.directory.next_index,
            lag_bytes=None if self._unread_bytes is None else self._unread_bytes + open_bytes,
        )
        self.on_progress(self._progress)

    def _is_due(self, now_ms: int) -> bool:
        delay_ms = self._settings.max_delay_ms
        return delay_ms > 0 and now_ms - self._began_ms >= delay_ms

    def _close_part(self, log: ScannedLog, end: int) -> None:
        """Make the open part visible. @param end: the offset after it."""
        writer, first, last = self._writer, self.directory.next_index, end - 1
        if writer is None:
            return
        assert first is not None
        # The log may not be readable now: then the part stays open.
        proof = _proof_of(log, end, self._last)
        self._writer = None
        part = self._ended(writer, first, last)
        self.directory.commit(part, proof)
        self._progress = attrs.evolve(self._progress, oldest_ms=None)
        self.on_part(part)

    def tables(self) -> list[ExportTable]:
        """Those that can be maintained."""
        return []

    def _ended(self, writer: OpenPart, first: int, last: int) -> ExportPart:
        return ended_part(writer, self.directory, last, self._settings.format)

    def finish(self) -> None:
        """
        Make the rows that were read visible, though their part is small: nobody exports more for now. Not if
        parts end only where they are full (C{max_delay_ms} is 0).

        @raise ReadError, ExportError, OSError: as L{step}.
        """
        if self._writer is not None and self._settings.max_delay_ms > 0:
            assert self._next is not None
            with closing(self._scan.log()) as log:
                self._close_part(log, self._next)

    def close(self) -> None:
        """Drop the open part and release the directory; the visible files remain."""
        if self._writer is not None:
            self._writer.abandon()
            self._writer = None
        self.directory.close()


def _first_time_ms(batch: pa.RecordBatch) -> int | None:
    """The time of the first row by the log, since 1970; None: it has none."""
    for name in (TIME_COLUMN.name, *TIME_COLUMNS):
        if name in batch.schema.names and batch.num_rows:
            found = batch.column(name)[0].cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).as_py()
            return None if found is None else found // 1000
    return None


def open_directory(
    out: str | os.PathLike[str], source: ExportSource, settings: ExportSettings, *, rows: str = ""
) -> ExportDirectory | StoreExport:
    """
    The directory, or place in a store, for files of these rows.

    @param rows: a name for these rows, if they are not all of the source.
    @raise ExportError: see L{ExportDirectory.open}.
    """
    kept, where = {**settings.kept(), "rows": rows or source.scan.options.format}, os.fspath(out)
    directory: ExportDirectory | StoreExport
    if is_url(where):
        directory = StoreExport.open(store_place(where, settings.store_options), kept)
    else:
        directory = ExportDirectory.open(where, kept)
    try:
        if settings.decode:
            begin_fields(directory, settings.fields, source.names)
    except ExportError:
        directory.close()
        raise
    return directory


def part_of_files(directory: ExportTarget, source: ExportSource, settings: ExportSettings) -> OpenPart:
    """A new part of files."""
    schema = source.schema
    part: OpenPart = PartWriter(
        directory.stage, schema, partition_by=settings.partition_by, style=settings.format,
        compression=settings.compression,
    )
    if settings.decode:
        part = DecodedPart(part, directory, schema.names, keeps_body=BODY in schema.names)
    return part


def ended_part(writer: OpenPart, target: ExportTarget, last: int, suffix: str) -> ExportPart:
    """The next part of a target, with the final names of its files. @param last: its last offset."""
    first = target.next_index
    assert first is not None
    staged = writer.close()
    folders = [folder for _, folder in staged]
    files = [
        (name, os.path.join(folder, part_name(
            first, last, suffix, folders[:number].count(folder) if folders.count(folder) > 1 else -1
        )))
        for number, (name, folder) in enumerate(staged)
    ]
    return ExportPart(first=first, last=last, files=tuple(files), rows=writer.rows)


def _in_small_steps(source: ExportSource, settings: ExportSettings) -> Scan:
    """The scan, with chunks that are not larger than a part, unless the user has said how large they are."""
    scan = source.scan
    is_given = any(name.lower() == "fetchbytes" for name in source.given)
    if is_given or settings.part_bytes >= scan.options.fetch_bytes:
        return scan
    return attrs.evolve(scan, options=attrs.evolve(scan.options, fetch_bytes=settings.part_bytes))


def check_from(directory: ExportTarget, scan: Scan) -> None:
    """@raise ExportError: C{startingOffsets} names another offset than the one at which the export begins."""
    number = scan.options.number_of(scan.options.starting)
    if isinstance(number, int) and directory.first not in (None, number):
        raise ExportError(
            f"{directory.path} was begun at offset {directory.first}, and now startingOffsets={number} "
            "(--from) is asked for: leave it out, or name a new directory"
        )


def recognise(path: str | os.PathLike[str], log: ScannedLog, offset: int, recorded: Proof) -> None:
    """
    Check that the log is the one that was exported up to C{offset}.

    @param path: of the export, for the message.
    @param log: open, and asked for its extent; C{offset} is within it, or before it.
    @param recorded: what L{_proof_of} gave then.
    @raise ExportError: the log has another record there.
    """
    at = recorded.get("offset", -1)
    if not isinstance(at, int) or at < 0:
        return
    contradiction = difference(recorded, log.proof(at + 1))
    if contradiction:
        raise ExportError(
            f"{path} is the export of another log: before offset {offset} {contradiction}. Name a new "
            "directory, or read the log that was exported"
        )


def _proof_of(log: ScannedLog, offset: int, last: Run | None) -> Proof:
    """The proof of an offset. @param last: the records that were read last, which need not be read again."""
    if last is not None and last.next == offset and last.chunk.data is not None and last.is_ledgers:
        starts = last.chunk.starts
        record = memoryview(last.chunk.data)[int(starts[-2]) : int(starts[-1])]
        found = of_record(record, offset - 1) or {}
        return {"offset": offset - 1, **of_group(log.group_id()), **found}
    return {"offset": offset - 1, **log.proof(offset)}


def check_apart(out: str | os.PathLike[str], scan: Scan) -> None:
    """@raise ExportError: the files would be in the directory of the log, or in its archive."""
    where = os.fspath(out)
    if not is_url(where) and re.match(r"[A-Za-z][A-Za-z0-9+._-]*:/", where):
        raise ExportError(
            f"{where!r} is neither a directory nor a URL: write a path such as ./out, or a URL such as "
            "s3://bucket/out"
        )
    for held in (scan.options.path, scan.options.data_path, scan.options.archive):
        if held and is_url(held) == is_url(where) and f"{_plain(where)}/".startswith(f"{_plain(held)}/"):
            raise ExportError(f"{where} is in the directory of the log, {held}: name another place")


def _plain(where: str) -> str:
    """A path without links, or a URL without needless slashes and other names of S3."""
    if not is_url(where):
        return os.path.realpath(where)
    return re.sub("(?<!:)/+", "/", re.sub("^s3[an]:", "s3:", where)).rstrip("/")
