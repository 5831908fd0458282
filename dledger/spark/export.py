# -*- test-case-name: tests.spark.test_export -*-
"""
A log into files without Spark: rows once, whatever interrupts.

    source = ExportSource.of({"path": "store/dledger-n0"})
    with Exporter.open("out", source, ExportSettings()) as exporter:
        exporter.step(now_ms=0, is_last=True)

The log is read in order and cut into parts: where one of its files ends (a segment), where a part has
C{part_bytes}, and, when it is followed, where a part has been open for C{max_delay_ms}. A part stays open
from one L{Exporter.step} to the next, so a log that grows slowly is read once. What a crash leaves of an open
part is not visible, and is read again.

Rule: only L{ExportDirectory} says how far the export is. Entries of a committed log never change, so whoever
goes on after a crash writes the same rows, perhaps cut at other places.

Knows nothing of clocks, signals and terminals.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

import attrs
import numpy as np
import pyarrow as pa

from dledger.spark.export_files import ExportDirectory, ExportError, Part, part_name
from dledger.spark.export_writers import COMPRESSIONS, FORMATS, PARQUET, PartWriter
from dledger.spark.log import Extent
from dledger.spark.log import Part as Range
from dledger.spark.options import EARLIEST
from dledger.spark.scan import Scan, columns_of

#: Bytes of the log in one part: as much as one task of Spark's reads.
PART_BYTES = 128 * 1024 * 1024
#: Where a record stands and how long it is, by the names of the columns of each kind of log.
_PLACES = (("index", "pos"), ("physicalOffset", "physicalOffset"))


@attrs.frozen(kw_only=True)
class ExportSettings:
    """
    How files look and where they end.

    @ivar columns: in this order; none: all that there are.
    @ivar max_delay_ms: when a log is followed, a part is finished so long after its first row at the latest;
        0: only when it is full.
    """

    format: str = attrs.field(default=PARQUET)
    columns: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()
    compression: str = attrs.field(default="snappy")
    part_bytes: int = PART_BYTES
    max_delay_ms: int = 60_000

    def __attrs_post_init__(self) -> None:
        """@raise ExportError: what makes no sense."""
        if self.format not in FORMATS:
            raise ExportError(f"format {self.format!r}: allowed are {', '.join(FORMATS)}")
        if self.compression not in COMPRESSIONS:
            raise ExportError(f"compression {self.compression!r}: allowed are {', '.join(COMPRESSIONS)}")
        if self.part_bytes < 1 or self.max_delay_ms < 0:
            raise ExportError("a part has at least one byte, and a delay is not negative")

    def kept(self) -> dict[str, object]:
        """What all parts of a directory must have in common."""
        return {
            "format": self.format, "columns": list(self.columns), "partition_by": list(self.partition_by)
        }


@attrs.frozen(kw_only=True)
class ExportSource:
    """
    Which log, and what is needed of it.

    @ivar scan: with the columns for the files, and those by which places and sizes are known.
    @ivar names: of the columns for the files.
    @ivar key: column with the offset of a row.
    @ivar position: column with the byte where its record stands.
    @ivar kind: the option C{format}: what the rows are.
    @ivar given: the options as they were given.
    """

    scan: Scan
    given: Mapping[str, str]
    names: tuple[str, ...]
    key: str
    position: str
    kind: str

    @classmethod
    def of(
        cls, options: Mapping[str, str], columns: Sequence[str] = (), partition_by: Sequence[str] = ()
    ) -> ExportSource:
        """
        @param options: of the source, see docs/spark.md.
        @param columns: none: all.
        @raise OptionError: an option or a column that does not exist or makes no sense.
        """
        every = Scan.of(options)
        known = {column.name: column.ddl for column in columns_of(every.options)}
        names = list(columns) or list(known)
        wanted = [(name, known.get(name, "?")) for name in names]
        Scan.of(options, wanted=wanted)  # says what is wrong with them
        for name in partition_by:
            if name not in names:
                raise ExportError(
                    f"--partition-by {name}: that is none of the columns, which are {', '.join(names)}"
                )
            if known[name] not in ("BIGINT", "INT", "STRING"):
                raise ExportError(f"--partition-by {name}: a column of type {known[name]} is no partition")
        if len(set(partition_by)) == len(names):
            raise ExportError("--partition-by names all columns, so nothing is left for the files")
        if len(set(partition_by)) < len(partition_by):
            raise ExportError("--partition-by names a column twice")
        key, position = next(place for place in _PLACES if place[0] in known)
        hidden = [name for name in dict.fromkeys((key, position, "size")) if name not in names]
        scan = Scan.of(options, wanted=[*wanted, *((name, known[name]) for name in hidden)])
        return cls(
            scan=scan, given=dict(options), names=tuple(names), key=key, position=position,
            kind=every.options.format,
        )

    @property
    def proof_names(self) -> dict[str, int]:
        """Columns, if they are there, by whose values a row of another log is told from one of this."""
        return dict.fromkeys((self.key, self.position, "size", "term"), 0)

    def next_of(self, row: Mapping[str, int]) -> int:
        """The offset behind a row."""
        return row[self.key] + (row["size"] if self.key == self.position else 1)


@attrs.frozen(kw_only=True)
class Progress:
    """
    How far it is.

    @ivar begin, next, end: first offset of this run, the one to be read next, and the end when it was last
        looked at.
    @ivar rows, log_bytes: written in this run, visible or not; bytes of the log.
    """

    begin: int
    next: int
    end: int
    rows: int
    log_bytes: int


class Exporter:
    """
    One run of an export.

    Invariant: rows of entries below C{directory.next_index} are visible, each once; rows from there to
    C{_next} are in the open part.

    @ivar on_progress: called after every batch.
    @ivar on_part: called with every part that became visible.
    @ivar should_stop: asked before every batch.
    """

    def __init__(self, directory: ExportDirectory, source: ExportSource, settings: ExportSettings) -> None:
        self.directory = directory
        self.on_progress: Callable[[Progress], None] = lambda progress: None
        self.on_part: Callable[[Part], None] = lambda part: None
        self.should_stop: Callable[[], bool] = lambda: False
        self._source = source
        self._settings = settings
        self._next: int | None = directory.next_index
        self._writer: PartWriter | None = None
        self._part_bytes = self._part_end = self._began_ms = 0
        self._last: dict[str, int] = {}
        self._is_recognised = False
        self._progress = Progress(begin=0, next=0, end=0, rows=0, log_bytes=0)

    @classmethod
    def open(cls, out: str | os.PathLike[str], source: ExportSource, settings: ExportSettings) -> Exporter:
        """
        @raise ExportError: see L{ExportDirectory.open}.
        @raise ReadError: the log cannot be read; nothing was made then.
        """
        check_apart(out, source.scan)
        source.scan.extent()
        directory = ExportDirectory.open(out, {**settings.kept(), "rows": source.kind})
        return cls(directory, source, settings)

    def __enter__(self) -> Exporter:
        """Itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    @property
    def progress(self) -> Progress:
        """As of the last batch."""
        return self._progress

    def step(self, now_ms: int, *, is_last: bool) -> None:
        """
        Export what is committed now.

        @param now_ms: monotonic.
        @param is_last: finish the open part at the end, however small it is.
        @raise ReadError: the log cannot be read; another step goes on where this one stopped.
        @raise ExportError: this is another log than before.
        @raise OSError: nothing can be written.
        """
        extent = self._source.scan.extent()
        begin = self._begin(extent)
        if begin < extent.end:
            for batch in self._source.scan.batches(Range(begin=begin, end=extent.end, size_bytes=0)):
                if self.should_stop():
                    return
                for piece in self._pieces(batch):
                    self._take(piece, now_ms)
                self._tell(extent)
            # What stood at the end and was left out, as an option allows, is done with, too.
            self._next = extent.end
        self._tell(extent)
        if self._writer is not None and (is_last or self._is_due(now_ms)):
            self._close_part(extent.end - 1)

    def _begin(self, extent: Extent) -> int:
        if self._next is not None:
            if not self._is_recognised:
                recognise(self.directory, self._source, extent)
                self._is_recognised = True
                self._progress = attrs.evolve(self._progress, begin=self._next)
            return self._next
        self._next = self._source.scan.starting(extent, default=EARLIEST)
        self.directory.begin(self._next)
        self._is_recognised = True
        self._progress = attrs.evolve(self._progress, begin=self._next)
        return self._next

    def _pieces(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Cut where files of the log end: a gap between one record and the next."""
        if not batch.num_rows:
            return
        positions = batch.column(self._source.position).to_numpy()
        ends = positions + batch.column("size").to_numpy()
        edges = [0, *(np.flatnonzero(ends[:-1] != positions[1:]) + 1).tolist(), batch.num_rows]
        if self._writer is not None and self._part_end != positions[0]:
            self._close_part(self._source.next_of(self._last) - 1)
        for first, last in zip(edges, edges[1:], strict=False):
            yield batch.slice(first, last - first)
            if last < batch.num_rows:
                self._close_part(self._source.next_of(self._last) - 1)

    def _take(self, piece: pa.RecordBatch, now_ms: int) -> None:
        if self._writer is None:
            schema = self._source.scan.schema
            self._writer = PartWriter(
                self.directory.stage, pa.schema([schema.field(name) for name in self._source.names]),
                partition_by=self._settings.partition_by, style=self._settings.format,
                compression=self._settings.compression,
            )
            self._part_bytes, self._began_ms = 0, now_ms
        self._writer.write(piece.select(list(self._source.names)))
        last = piece.num_rows - 1
        self._last = _facts(piece, last, self._source.proof_names)
        first_position = piece.column(self._source.position)[0].as_py()
        self._part_end = self._last[self._source.position] + self._last["size"]
        size = self._part_end - first_position
        self._part_bytes += size
        self._next = self._source.next_of(self._last)
        self._progress = attrs.evolve(
            self._progress, rows=self._progress.rows + piece.num_rows,
            log_bytes=self._progress.log_bytes + size,
        )
        if self._part_bytes >= self._settings.part_bytes:
            self._close_part(self._next - 1)

    def _tell(self, extent: Extent) -> None:
        assert self._next is not None
        self._progress = attrs.evolve(self._progress, next=self._next, end=extent.end)
        self.on_progress(self._progress)

    def _is_due(self, now_ms: int) -> bool:
        delay_ms = self._settings.max_delay_ms
        return delay_ms > 0 and now_ms - self._began_ms >= delay_ms

    def _close_part(self, last: int) -> None:
        """Make the open part visible. @param last: the last offset that it stands for."""
        writer, first = self._writer, self.directory.next_index
        if writer is None:
            return
        assert first is not None
        self._writer = None
        files = [
            (staged, os.path.join(folder, part_name(first, last, self._settings.format)))
            for staged, folder in writer.close()
        ]
        part = Part(first=first, last=last, files=tuple(files), rows=writer.rows)
        self.directory.commit(part, self._last)
        self.on_part(part)

    def close(self) -> None:
        """Leave what is visible, drop the open part, let others in."""
        if self._writer is not None:
            self._writer.abandon()
            self._writer = None
        self.directory.close()


def _facts(batch: pa.RecordBatch, row: int, names: Mapping[str, Any]) -> dict[str, int]:
    """Numbers of a row, of those of the columns that are there."""
    return {
        name: int(batch.column(name)[row].as_py()) for name in names if name in batch.schema.names
    }


def recognise(directory: ExportDirectory, source: ExportSource, extent: Extent) -> None:
    """
    The last row that was exported must be in this log, if it is still there.

    @raise ExportError: it is not.
    """
    proof = dict(directory.proof)
    at = proof.get(source.key, -1)
    if not extent.begin <= at < extent.end:
        return
    found = proof_at(source, at, at + 1, proof)
    if found and found != proof:
        raise ExportError(
            f"{directory.path} holds another log: its last row is {_shown(proof)}, and this log has "
            f"{_shown(found)}. Name a new directory"
        )


def proof_at(
    source: ExportSource, begin: int, end: int, names: Mapping[str, Any] | None = None
) -> dict[str, int]:
    """What the last row of a range is recognised by; nothing if the range has no row."""
    found: dict[str, int] = {}
    for batch in source.scan.batches(Range(begin=begin, end=end, size_bytes=0)):
        if batch.num_rows:
            found = _facts(batch, batch.num_rows - 1, names if names is not None else source.proof_names)
    return found


def _shown(facts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {value}" for name, value in facts.items()) or "nothing there"


def check_apart(out: str | os.PathLike[str], scan: Scan) -> None:
    """@raise ExportError: the files would stand between those of the log."""
    path = os.path.realpath(out)
    for held in (scan.options.path, scan.options.data_path):
        if held and (path + "/").startswith(os.path.realpath(held) + "/"):
            raise ExportError(f"{out} is in the directory of the log, {held}: name another place")
