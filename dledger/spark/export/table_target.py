# -*- test-case-name: tests.spark.test_tables,tests.spark.test_tables_cli,tests.spark.test_table_kills -*-
"""
What tables of every kind have in common as targets of an export.

Each commit of the export adds the rows of a range of offsets, and in the same commit records two properties::

    dledger-range    0-99                                 first and last offset of this commit, both inclusive
    dledger-export   {"next": 100, "proof": {...}, ...}   how far the export is, see L{TableState}

Rule 1: only the table says how far the export is: the next range begins where the newest commit of the
export says. In a directory a lock keeps other exports of this machine away; all others meet the check of the
kind of table that nobody has committed since.
Rule 2: a commit that fails is looked up in the table. If it is there it has not failed; if the table has not
changed it is tried again; anything else is an error.
Rule 3: nothing is ever deleted, except by L{ExportTable.expire}.

The column C{day}, the day (UTC) of the log's time, partitions the table if there is a time.

Knows nothing of ledgers and Spark, nor of the packages for tables.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from dledger.spark.export.files import ExportError, ExportPart
from dledger.spark.export.json_fields import RESCUED, JsonFields
from dledger.spark.export.table_place import TablePlace
from dledger.spark.export.writers import OpenPart
from protocols.wire.fastjson import as_int

#: Properties of a commit.
RANGE, STATE = "dledger-range", "dledger-export"
#: The column by which tables are partitioned.
DAY = "day"
#: The columns with a time by which days are counted; a log has at most one of them.
TIME_COLUMNS = ("storeTimestamp", "timestamp")
_VERSION = 1
#: Commits of one part, while nothing of the export changes but others commit to the table.
_ATTEMPTS = 4
#: Days outside of these years are null: Python, which writes paths of partitions, has no others.
_YEARS = (1, 9999)


@attrs.frozen(kw_only=True)
class TableState:
    """
    How far the export is.

    @ivar first, next: where the export began, and where its next range begins.
    @ivar rows: in all commits of the export.
    @ivar proof: the log is recognised by it.
    @ivar source: rows of C{dledger} or C{rocketmq}.
    @ivar columns: of the log.
    @ivar fields: name and type of each column that is a field of the bodies; None: bodies are not decoded.
    """

    first: int
    next: int
    rows: int
    proof: Mapping[str, int | str]
    source: str
    columns: tuple[str, ...]
    fields: tuple[tuple[str, str], ...] | None = None

    @property
    def written(self) -> set[str]:
        """Columns of the table so far."""
        fields = () if self.fields is None else (RESCUED, *dict(self.fields))
        return {DAY, *self.columns, *fields}

    def to_json(self) -> str:
        """The value of the property L{STATE}."""
        return json.dumps({"version": _VERSION, **attrs.asdict(self)})

    @classmethod
    def of_json(cls, text: str, path: str) -> TableState:
        """@raise ExportError: the text is not one of ours."""
        try:
            found = json.loads(text)
            if found["version"] != _VERSION:
                raise ExportError(
                    f"the newest commit of the table {path} is of version {found['version']} of this export; "
                    f"this program knows {_VERSION}"
                )
            return cls(
                first=as_int(found["first"]), next=as_int(found["next"]), rows=as_int(found["rows"]),
                proof=dict(found["proof"]), source=str(found["source"]), columns=tuple(found["columns"]),
                fields=_pairs(found["fields"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise ExportError(
                f"the property {STATE} of the newest commit of the table {path} is damaged "
                f"({type(error).__name__}: {error}), so the progress of the export is unknown: export to a "
                "new directory"
            ) from None


def _pairs(found: object) -> tuple[tuple[str, str], ...] | None:
    if found is None:
        return None
    if not isinstance(found, list):
        raise TypeError("fields is not a list")
    return tuple((str(name), str(kind)) for name, kind in found)


@attrs.frozen(kw_only=True)
class TableForm:
    """
    What a table must look like.

    @ivar schema: of the log, then L{DAY} if the log has a time, then the fields of the bodies.
    @ivar columns: those of the log.
    @ivar partition_by: L{DAY}, if there is one, and what the user names.
    @ivar source, fields: as in L{TableState}.
    """

    schema: pa.Schema
    columns: tuple[str, ...]
    partition_by: tuple[str, ...]
    source: str
    compression: str
    fields: tuple[tuple[str, str], ...] | None = None

    @classmethod
    def of(
        cls, schema: pa.Schema, partition_by: Sequence[str], *, source: str, compression: str
    ) -> TableForm:
        """The form for rows with this schema."""
        columns = tuple(schema.names)
        if time_column(schema) is not None:
            schema = schema.append(pa.field(DAY, pa.date32()))
            partition_by = (DAY, *partition_by)
        return cls(
            schema=schema, columns=columns, partition_by=tuple(partition_by), source=source,
            compression=compression,
        )

    def with_fields(self, fields: Sequence[tuple[str, str]]) -> TableForm:
        """The form with these fields of the bodies."""
        names = {*self.columns, DAY}
        own = [field for field in self.schema if field.name in names]
        schema = pa.schema([*own, *JsonFields(fields, names).schema])
        return attrs.evolve(self, schema=schema, fields=tuple(fields))


def time_column(schema: pa.Schema) -> str | None:
    """The column whose days partition the table."""
    return next((name for name in TIME_COLUMNS if name in schema.names), None)


def with_day(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with its L{DAY}, if C{schema} has one. @param schema: that of a L{TableForm}."""
    name = time_column(batch.schema)
    if DAY not in schema.names or name is None:
        return batch
    times = batch.column(name)
    years = pc.year(times)
    is_known = pc.and_(pc.greater_equal(years, _YEARS[0]), pc.less_equal(years, _YEARS[1]))
    days = pc.if_else(is_known, times, None).cast(pa.date32(), safe=False)
    return pa.RecordBatch.from_arrays([*batch.columns, days], schema=schema)


class ExportTable(ABC):
    """
    An open table in a place of its own.

    @cvar kind: its name for people.
    @cvar errors: what the package raises when a commit fails.
    @ivar path: the directory or URL.
    """

    kind: str

    @property
    @abstractmethod
    def errors(self) -> tuple[type[Exception], ...]:
        """See the class."""

    def __init__(self, place: TablePlace, form: TableForm) -> None:
        """
        Open the table, if there is one.

        @param place: closed at the end, also if this fails.
        @raise ExportError: the directory is in use or has other files; its table has another form, belongs to
            nobody we know, or has changed in a way that does not allow to continue.
        """
        self.place = place
        self.path = place.where
        self.form = form
        self._begin: int | None = None
        self._state: TableState | None = None
        try:
            self._check_names()
            place.hold()
            if self.load():
                self._state = self.recorded()
                self._check()
        except OSError as error:
            self.close()
            raise ExportError(f"{self.path} cannot be written: {error.strerror}") from error
        except BaseException:
            self.close()
            raise

    def _check_names(self) -> None:
        if self.is_there():
            return
        foreign = [name for name in self.place.names() if not name.startswith(("_", "."))]
        if foreign:
            raise ExportError(
                f"{self.path} is not empty and holds no {self.kind} table ({foreign[0]!r} is in it): "
                "name a new directory, or that of a table which an export has begun"
            )

    @property
    def next_index(self) -> int | None:
        """Where the next part begins; None until the first L{begin}."""
        return self._begin if self._state is None else self._state.next

    @property
    def first(self) -> int | None:
        """Where the export begins; None until the first L{begin}."""
        return self._begin if self._state is None else self._state.first

    @property
    def rows(self) -> int:
        """In all commits of the export."""
        return 0 if self._state is None else self._state.rows

    @property
    def proof(self) -> Mapping[str, int | str]:
        """Given with the last part."""
        return {} if self._state is None else self._state.proof

    @property
    def fields(self) -> tuple[tuple[str, str], ...]:
        """Name and type of each column that is a field of the bodies; recorded with the next part."""
        recorded = None if self._state is None else self._state.fields
        return (recorded if self.form.fields is None else self.form.fields) or ()

    @fields.setter
    def fields(self, fields: tuple[tuple[str, str], ...]) -> None:
        self.form = self.form.with_fields(fields)

    # -- what each kind does ----------------------------------------------------------------------

    @abstractmethod
    def is_there(self) -> bool:
        """Whether the place holds a table of this kind, or a beginning of one."""

    @abstractmethod
    def load(self) -> bool:
        """Read the newest version of the table. @return: whether there is one. @raise ExportError."""

    @abstractmethod
    def create(self) -> None:
        """Make an empty table of the form."""

    @abstractmethod
    def recorded(self) -> TableState | None:
        """The state in the newest commit of the export, as of the last L{load}; None: there is none."""

    @abstractmethod
    def layout(self) -> tuple[pa.Schema, tuple[str, ...], bool]:
        """The table's schema, its partition columns, and whether it has rows, as of the last L{load}."""

    @abstractmethod
    def new_part(self) -> OpenPart:
        """Rows of the form, not visible yet."""

    @abstractmethod
    def prepare(self, added: list[pa.Field]) -> bool:
        """
        Change the table as far as L{append} cannot.

        @param added: columns that the table lacks.
        @return: whether there was something to change.
        """

    @abstractmethod
    def append(self, part: ExportPart, added: list[pa.Field], properties: Mapping[str, str]) -> None:
        """
        Make a part visible if nobody has committed since the last L{load}, or fail and leave the table as it
        was.

        @param added: columns that the table lacks.
        @raise Exception: one of L{errors}; perhaps the part is visible nevertheless.
        """

    @abstractmethod
    def compact(self) -> tuple[int, int]:
        """Write small files together. @return: files before and after."""

    @abstractmethod
    def expire(self, days: float, now_s: float) -> int:
        """
        Forget versions that are older, and delete files that no other version needs.

        @return: the number of deleted files.
        """

    @abstractmethod
    def version(self) -> str:
        """The newest one, as of the last L{load}."""

    def said(self, error: Exception) -> str:
        """The first line of an error of a package, which may have many."""
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return f"{type(error).__name__}: {lines[0] if lines else '-'}"

    # -- what all do ------------------------------------------------------------------------------

    def begin(self, index: int) -> None:
        """The first part begins at C{index}; makes the table. @raise ExportError: it cannot be made."""
        assert self._state is None, "only a new export begins"
        self._begin = index
        if self.load():
            return
        try:
            self.create()
        except self.errors as error:
            # (Another program may have made it; or it was made, and the answer is lost.)
            if not self.load():
                raise ExportError(
                    f"the {self.kind} table {self.path} cannot be made: {self.said(error)}"
                ) from error
            return
        self.load()

    def stage(self, name: str) -> Path:
        """A new path for an unfinished file."""
        return self.place.stage(name)

    def commit(self, part: ExportPart, proof: Mapping[str, int | str]) -> None:
        """
        Make a part visible.

        @raise ExportError: the table cannot be written, or another export writes to it.
        """
        first, before = self.first, self._state
        assert first is not None and part.first == self.next_index, "parts follow one another"
        state = TableState(
            first=first, next=part.last + 1, rows=self.rows + part.rows, proof=dict(proof),
            source=self.form.source, columns=self.form.columns, fields=self.form.fields,
        )
        properties = {RANGE: f"{part.first}-{part.last}", STATE: state.to_json()}
        failure: Exception | None = None
        for _attempt in range(_ATTEMPTS):
            try:
                added = self._check()
                # After a change of the table, look again whether another export has committed meanwhile.
                if not self.prepare(added):
                    self.append(part, added, properties)
            except self.errors as error:
                failure = error
            self.load()
            found = self.recorded()
            if found == state:
                self._state = state
                return
            if found != before:
                raise self._lost(found)
        raise ExportError(
            f"offsets {part.first} to {part.last} cannot be committed to the {self.kind} table {self.path}: "
            f"{self.said(failure) if failure is not None else 'the table does not show the commit'}"
        ) from failure

    def maintain(self, *, compacts: bool, expire_days: float | None, now_s: float) -> str:
        """
        Write small files together, and then forget old versions.

        @param expire_days: None: forget nothing.
        @param now_s: since 1970.
        @return: what was done.
        @raise ExportError: it cannot be done; the rows of the table are the same.
        """
        if self._state is None:
            return "the table has no rows yet"
        done = []
        try:
            if compacts:
                before, after = self.compact()
                done.append(f"compacted {before} files into {after}")
            if expire_days is not None:
                gone = self.expire(expire_days, now_s)
                done.append(f"deleted {gone} files that no version of the last {expire_days:g} days needs")
        except self.errors as error:
            raise ExportError(
                f"the {self.kind} table {self.path} cannot be maintained: {self.said(error)}"
            ) from error
        return "; ".join(done)

    def _lost(self, other: TableState | None) -> ExportError:
        return ExportError(
            f"another export writes to the {self.kind} table {self.path}: it has come to offset "
            f"{other.next if other else '?'}, this one to {self.next_index}. Let one of them go on"
        )

    def _check(self) -> list[pa.Field]:
        """
        Compare the table with the form.

        @return: columns that the table lacks.
        @raise ExportError: they do not go together.
        """
        schema, partition_by, has_rows = self.layout()
        what = f"the {self.kind} table {self.path}"
        if self._state is None and has_rows:
            other = self.recorded()
            if other is not None:  # since this one has begun
                raise self._lost(other)
            raise ExportError(
                f"{what} has rows and no property {STATE}, so no export has written them: name a new "
                "directory, or an empty table"
            )
        if partition_by != self.form.partition_by:
            raise ExportError(
                f"{what} is partitioned by {_names(partition_by)}, and this export by "
                f"{_names(self.form.partition_by)}: use the same columns, or name a new directory"
            )
        if self._state is not None:
            self._check_state(what, self._state)
        added = []
        for field in self.form.schema:
            if field.name not in schema.names:
                if self._state is not None and field.name in self._state.written:
                    raise ExportError(
                        f"{what} has no column {field.name} any more, which the export has written: allowed "
                        "are further columns, none renamed or dropped. Name a new directory"
                    )
                added.append(field)
                continue
            there = plain_type(schema.field(field.name).type)
            if there != plain_type(field.type):
                raise ExportError(
                    f"{what} has column {field.name} of type {there}, and this export writes {field.type}: "
                    "allowed are the same types, and columns that the table does not have yet. Name a new "
                    "directory, or leave the column out with --columns"
                )
        for field in schema:
            if field.name not in self.form.schema.names and not field.nullable:
                raise ExportError(
                    f"{what} has column {field.name}, which must not be null and which this export does not "
                    "write: allowed are further columns that may be null"
                )
        return added

    def _check_state(self, what: str, state: TableState) -> None:
        if state.source != self.form.source:
            raise ExportError(
                f"{what} was begun with format={state.source}, and now format={self.form.source} is asked "
                "for: use the same as before, or name a new directory"
            )
        missing = [name for name in state.columns if name not in self.form.columns]
        if missing:
            raise ExportError(
                f"{what} was written with columns {_names(state.columns)}, and now {missing[0]} is missing: "
                "allowed are the same columns and more of them, or a new directory"
            )

    def check_undecoded(self) -> None:
        """@raise ExportError: the bodies of earlier rows are decoded."""
        if self._state is not None and self._state.fields is not None:
            raise ExportError(
                f"the {self.kind} table {self.path} has columns of decoded bodies: give --decode json as "
                "before, or name a new directory"
            )

    def close(self) -> None:
        """Remove the files that are not committed, and release the place."""
        self.place.close()


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type without differences in memory alone: large and small offsets, names of UTC."""
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_timestamp(kind) and kind.tz in ("+00:00", "Etc/UTC"):
        return pa.timestamp(kind.unit, tz="UTC")
    if pa.types.is_map(kind):
        return pa.map_(plain_type(kind.key_type), plain_type(kind.item_type))
    return kind


def _names(columns: Sequence[str]) -> str:
    return ",".join(columns) or "nothing"
