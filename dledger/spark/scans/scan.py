# -*- test-case-name: tests.spark.test_scan -*-
"""
A log as Arrow record batches: the base of the Spark source and of the export. Needs no Spark::

    scan = Scan.of({"path": "store/dledger-n0"})
    extent = scan.extent()
    for part in scan.parts(extent.begin, extent.end):
        for batch in scan.batches(part):
            ...

A scan is a value and can be pickled; every call opens its log and closes it again, except L{Scan.log}, for
callers that ask often. Parts can be read in any order, by any process, more than once: the rows are the same.
A scan is also a stream of Arrow (C{__arrow_c_stream__}): C{pyarrow.table(scan)}, C{polars.DataFrame(scan)}.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from typing import Protocol

import attrs
import pyarrow as pa

from dledger.base.time_search import FoundSpan, Search, TimeSearch, search_leaders
from dledger.spark.formats.log import (
    Chunk,
    DataLossError,
    Extent,
    LogPart,
    ReadError,
    ScannedLog,
    cut,
    lost,
    skipped,
)
from dledger.spark.formats.option_texts import EARLIEST, LATEST, OptionError
from dledger.spark.formats.options import DLEDGER, ROCKETMQ, ScanOptions
from dledger.spark.ledger.archive import ArchiveLog
from dledger.spark.ledger.archive_files import is_archive
from dledger.spark.ledger.columns import (
    CONTROL_COLUMN,
    ENTRY_COLUMNS,
    ENVELOPE_COLUMNS,
    TEXT_COLUMN,
    TIME_COLUMN,
    Column,
    EntryDecoder,
    projection,
    schema_of,
)
from dledger.spark.ledger.directory import DirectoryLog
from dledger.spark.ledger.member_tls import check_files
from dledger.spark.ledger.members import MembersLog, parse_bootstrap
from dledger.spark.ledger.seam import JoinedLog
from dledger.spark.rocketmq.commit_log import SparkCommitLog, commit_log_directory
from dledger.spark.rocketmq.messages import MESSAGE_COLUMNS, MessageDecoder
from dledger.storage.files.commit_mark import COMMIT_MARK_NAME

#: What a search by time reads, and the entries without a time of one look.
_INDEX, _TERM = ("index", "BIGINT"), ("term", "BIGINT")
_LEADERS, _CLIENTS = ("time", "TIMESTAMP"), ("timestamp", "TIMESTAMP")
_LOOK_ENTRIES = 10_000


class ChunkDecoder(Protocol):
    """Makes rows from chunks."""

    @property
    def needs_data(self) -> bool:
        """Whether the rows need more than index units."""

    def decode(self, chunk: Chunk) -> pa.RecordBatch:
        """The rows of a chunk. @raise DamageError: see L{dledger.spark.formats.log}."""

    def finish(self) -> None:
        """Warn about the damaged records that were skipped."""


def columns_of(options: ScanOptions) -> tuple[Column, ...]:
    """All columns that these options allow."""
    if options.format == ROCKETMQ:
        return MESSAGE_COLUMNS
    found = [*ENTRY_COLUMNS, *(ENVELOPE_COLUMNS if options.envelopes else ())]
    found += [TIME_COLUMN] if options.times else []
    found += [TEXT_COLUMN] if options.body_text else []
    return (*found, *([CONTROL_COLUMN] if options.include_control else []))


def open_log(options: ScanOptions) -> ScannedLog:
    """
    The log that the options name; the caller closes it.

    @raise ReadError: it cannot be read.
    @raise OptionError: an option does not belong to this log.
    """
    if options.archive:
        live = open_log(attrs.evolve(options, archive=""))
        if isinstance(live, ArchiveLog | SparkCommitLog):
            live.close()
            kind = "an archive itself" if isinstance(live, ArchiveLog) else "a broker's commit log"
            raise OptionError(f"option archive: {options.path} is {kind}; allowed are a member's directory, "
                              "or bootstrap")
        strict = attrs.evolve(options, archive="", fail_on_data_loss=True)
        return JoinedLog(options, live, live if options.fail_on_data_loss else open_log(strict))
    if options.by_queues and (options.bootstrap or options.data_path):
        raise OptionError("option byQueues reads the consume queues of a broker's store: it needs path")
    if options.bootstrap:
        return MembersLog(options)
    if not options.data_path and is_archive(options.path):
        return ArchiveLog(options)
    if options.format == ROCKETMQ and not options.data_path:
        path = options.path
        is_ledger = os.path.isdir(f"{path}/data") or os.path.isfile(f"{path}/{COMMIT_MARK_NAME}")
        directory = None if is_ledger else commit_log_directory(path)
        if directory is not None:
            return SparkCommitLog(options, directory)
    if options.by_queues:
        raise OptionError(f"option byQueues: {options.path} is not a broker's store with consume queues")
    return DirectoryLog(options)


def decoder_of(options: ScanOptions, columns: Sequence[Column], log: ScannedLog) -> ChunkDecoder:
    """The decoder for the log's chunks."""
    if options.format == ROCKETMQ:
        return MessageDecoder(options, columns, in_entries=not isinstance(log, SparkCommitLog))
    return EntryDecoder(options, columns, log)


@attrs.frozen(kw_only=True)
class Scan:
    """
    @ivar columns: the wanted ones, in this order.
    """

    options: ScanOptions
    columns: tuple[Column, ...]

    @classmethod
    def of(
        cls, given: Mapping[str, str], *, wanted: Sequence[tuple[str, str]] | None = None,
        is_stream: bool = False,
    ) -> Scan:
        """
        @param given: options of docs/spark-reference.md, names in any case.
        @param wanted: name and Spark type of the columns wanted; None: all.
        @raise OptionError: an option or a column does not exist or makes no sense.
        """
        options = ScanOptions.of(given, is_stream=is_stream)
        if options.path:
            # Workers may have another working directory than the caller.
            options = attrs.evolve(
                options, path=_absolute(options.path),
                data_path=_local("dataPath", _absolute(options.data_path)),
            )
        else:
            _check_members(options)
            options = options.with_paths(os.path.abspath)
        options = attrs.evolve(options, archive=_absolute(options.archive))
        return cls(options=options, columns=projection(columns_of(options), wanted))

    def only(self, names: Sequence[str]) -> Scan:
        """
        These columns, in this order.

        @raise OptionError: one does not exist, or is named twice.
        """
        types = {column.name.lower(): column.ddl for column in self.columns}
        wanted = [(name, types.get(name.lower(), "")) for name in names]
        return attrs.evolve(self, columns=projection(self.columns, wanted))

    @property
    def schema(self) -> pa.Schema:
        """The schema of the batches."""
        return schema_of(self.columns)

    def log(self) -> ScannedLog:
        """The open log; the caller closes it. @raise ReadError: it cannot be read."""
        return open_log(self.options)

    def extent(self) -> Extent:
        """The range that can be read now, C{end} exclusive. @raise ReadError: the log cannot be read."""
        with closing(self.log()) as log:
            return log.extent()

    def bounds(self, extent: Extent) -> tuple[int, int]:
        """
        The range that C{startingOffsets} and C{endingOffsets} of a batch name, C{end} exclusive.

        @raise DataLossError: it begins before the extent, and C{failOnDataLoss} is set.
        @raise OptionError: it ends after the extent or before its own beginning.
        """
        end = self.ending(extent)
        if end < extent.begin and self.options.starting_timestamp is None:  # nothing of it is there
            named = self._number(self.options.starting, attrs.evolve(extent, begin=0), EARLIEST)
            if named < end:
                return lost(self.options, named, extent.begin, end=end, note=extent.note), end
            begin = named
        else:
            begin = self.starting(extent, default=EARLIEST)
        if begin > end:
            raise OptionError(f"option startingOffsets={begin} is after the end {end}")
        return begin, end

    def ending(self, extent: Extent) -> int:
        """
        The offset that C{endingOffsets} names, exclusive.

        @raise OptionError: it is after the extent.
        """
        end = self._number(self.options.ending, extent, LATEST)
        if end > extent.end:
            raise OptionError(f"option endingOffsets={end} is after the committed end {extent.end}")
        return end

    def starting(self, extent: Extent, *, default: str) -> int:
        """
        The offset that C{startingOffsets} or C{startingTimestamp} names.

        @raise OptionError: no entry has a time.
        @raise DataLossError: the offset is before the extent, and C{failOnDataLoss} is set.
        """
        if self.options.starting_timestamp is not None:
            begin = self._since(self.options.starting_timestamp, extent)
            # What is missing before the first entry may be wanted, unless an entry here is earlier.
            is_first = begin == extent.begin
        else:
            begin = self._number(self.options.starting, extent, default)
            if begin < extent.begin:
                return lost(self.options, begin, extent.begin, note=extent.note)
            starting = self.options.starting if self.options.starting is not None else default
            is_first = self.options.number_of(starting) == EARLIEST
        if extent.note and is_first:
            what = f"{self.options.source}: the first offset is {begin}{extent.note}"
            if extent.is_lost and self.options.fail_on_data_loss:
                raise DataLossError(f"{what}. With option failOnDataLoss=false reading begins at {begin}")
            skipped(what)
        return begin

    def beginning(self, extent: Extent) -> int:
        """
        Where an export begins, see L{starting}.

        @raise OptionError: it is after the extent, also.
        """
        begin = self.starting(extent, default=EARLIEST)
        if begin > extent.end:
            raise OptionError(f"option startingOffsets={begin} is after the committed end {extent.end}")
        return begin

    def _since(self, moment_ms: int, extent: Extent) -> int:
        """
        The entry after the last one that is known to be earlier than a time.

        @param moment_ms: since 1970.
        @raise OptionError: no entry that was looked at has a time.
        """
        led = FoundSpan(extent.begin, extent.end)
        if self.options.times and extent.begin < extent.end:
            led = self.by_leaders(search_leaders(extent.begin, extent.end, moment_ms))
        search = TimeSearch(*led, moment_ms)
        times = self
        if self.options.envelopes:
            times = attrs.evolve(self, columns=projection(columns_of(self.options), (_INDEX, _CLIENTS)))
        while self.options.envelopes and (look := search.look) is not None:
            begin, behind = look
            behind = min(behind, begin + _LOOK_ENTRIES)
            timed = times._first_timed(begin, behind)
            if timed is not None:
                search.met(*timed)
            else:
                search.met_none(behind)
        if extent.begin < extent.end and led == (extent.begin, extent.end) and not search.has_times:
            raise OptionError("option startingTimestamp: the entries that were looked at have no time; they "
                              "have one if the members have entry_times_ms (times=true), or if their client "
                              "was opened with envelope=True (envelopes=true)")
        return search.found

    def by_leaders(self, search: Search) -> FoundSpan:
        """The result of a search by times of leaders. @raise ReadError: an entry cannot be read."""
        looks = [self.looking(wanted) for wanted in ((_TERM,), (_TERM, _LEADERS))]
        with closing(self.log()) as log:
            log.extent()
            try:
                question = next(search)
                while True:
                    question = search.send(looks[question.needs_time].entry(log, question.index))
            except StopIteration as done:
                found: FoundSpan = done.value
                return found

    def looking(self, wanted: Sequence[tuple[str, str]] = (_TERM,)) -> Scan:
        """A scan for L{entry}, of entries of all kinds, whatever the format is."""
        options = attrs.evolve(self.options, format=DLEDGER, include_control=True)
        return attrs.evolve(self, options=options, columns=projection(columns_of(options), wanted))

    def entry(self, log: ScannedLog, index: int) -> tuple[int, int | None]:
        """
        Term and time, ms, of one entry. C{columns}: these, or the first one.

        @param log: an open ledger, whose extent was asked for.
        @raise ReadError: it cannot be read.
        """
        decoder = decoder_of(self.options, self.columns, log)
        for chunk in log.chunks(index, index + 1, with_data=decoder.needs_data):
            batch = decoder.decode(chunk)
            if batch.num_rows:
                term = int(batch.column(0)[0].as_py())
                moment = batch.column(1).cast(pa.int64())[0].as_py() if batch.num_columns > 1 else None
                return term, None if moment is None else moment // 1000
        raise ReadError(f"{self.options.source}: entry {index} cannot be read, so its time is not known")

    def _first_timed(self, begin: int, end: int) -> tuple[int, int] | None:
        """Index and time, ms, of the first entry of a range that has a time. C{columns}: the two."""
        for part in self.parts(begin, end):
            for batch in self.batches(part):
                timed = batch.filter(batch.column(1).is_valid())
                if timed.num_rows:
                    time_us: int = timed.column(1).cast(pa.int64())[0].as_py()
                    return timed.column(0)[0].as_py(), time_us // 1000
        return None

    def _number(self, value: str | int | dict[str, int] | None, extent: Extent, default: str) -> int:
        named = self.options.number_of(value if value is not None else default)
        if named == EARLIEST:
            return extent.begin
        if named == LATEST:
            return extent.end
        assert isinstance(named, int)
        return named

    def parts(self, begin: int, end: int) -> list[LogPart]:
        """
        The range cut into parts for tasks, in order, without gaps.

        @raise ReadError: the log cannot be read.
        """
        with closing(self.log()) as log:
            log.extent()
            return cut(log, self.options, begin, end)

    def plan(self, opened: ScannedLog | None = None) -> list[LogPart]:
        """
        The parts of the range that the options name now.

        @param opened: the log, if it is open already.
        @raise ReadError, OptionError: see L{bounds}, L{parts}.
        """
        with closing(self.log()) if opened is None else nullcontext(opened) as log:
            begin, end = self.bounds(log.extent())
            if isinstance(log, SparkCommitLog):
                begin, end = log.narrowed(begin, end)
                return log.wanted(cut(log, self.options, begin, end))
            return cut(log, self.options, begin, end)

    def reader(self) -> pa.RecordBatchReader:
        """
        The rows of the range that the options name now, one part after the other.

        @raise ReadError, OptionError: see L{plan}; while it is read, as L{batches}.
        """
        parts = self.plan()
        return pa.RecordBatchReader.from_batches(
            self.schema, (batch for part in parts for batch in self.batches(part))
        )

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """
        As L{reader}, for pyarrow, pandas, Polars, DuckDB and others that take a stream of Arrow.

        @param requested_schema: of the consumer; types that Arrow can cast to.
        """
        return self.reader().__arrow_c_stream__(requested_schema)

    def to_pandas(self) -> object:
        """The rows as a C{pandas.DataFrame}."""
        return self.reader().read_pandas()

    def _log_of(self, part: LogPart) -> ScannedLog:
        return ArchiveLog(self.options, self.options.archive) if part.is_archived else self.log()

    def batches(self, part: LogPart, *, first_look: int = 0, growth: int = 1) -> Iterator[pa.RecordBatch]:
        """
        The rows of a part, in order.

        @param first_look: for a caller that may stop early: number of records to read first; 0: all.
        @param growth: how much longer each further look is.
        @raise ReadError: the log cannot be read; L{dledger.spark.formats.log} defines its kinds.
        """
        with closing(self._log_of(part)) as log:
            decoder = decoder_of(self.options, self.columns, log)
            # In a broker's commit log, offsets do not count records.
            begin, look = part.begin, 0 if isinstance(log, SparkCommitLog) else first_look
            while begin < part.end:
                end = min(begin + look, part.end) if look else part.end
                for chunk in log.chunks(begin, end, with_data=decoder.needs_data):
                    yield decoder.decode(chunk)
                begin, look = end, look * growth
        decoder.finish()


def _check_members(options: ScanOptions) -> None:
    parse_bootstrap(options.bootstrap)
    if options.tls is not None:
        try:
            check_files(options.tls)
        except ReadError as error:
            raise OptionError(str(error)) from None


def _absolute(path: str) -> str:
    """A directory from the root on; a URL as it is."""
    for scheme in ("file://", "local://", "file:"):
        path = path.removeprefix(scheme)
    if "://" in path or not path:
        return path
    return os.path.abspath(path)


def _local(name: str, path: str) -> str:
    if "://" in path:
        raise OptionError(f"option {name}={path!r}: only a directory of a mounted file system can be read")
    return path
