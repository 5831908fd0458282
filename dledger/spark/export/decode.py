# -*- test-case-name: tests.spark.test_decode -*-
"""
C{--decode json} in an export: the columns of L{dledger.spark.export.json_fields}, recorded with each part.

Rule: a part begins with the columns that its target has recorded, so a run after a crash makes the same ones.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Protocol

import pyarrow as pa

from dledger.spark.export.files import ExportError
from dledger.spark.export.json_fields import ARROW_OF, RESCUED, JsonFields, alike, is_column_name
from dledger.spark.export.writers import OpenPart

#: Formats of bodies.
DECODED = ("json",)
BODY = "body"


class FieldsTarget(Protocol):
    """@ivar fields: name and type of each column that is a field; recorded with the next part."""

    fields: tuple[tuple[str, str], ...]


def begin_fields(target: FieldsTarget, wanted: Iterable[tuple[str, str]], reserved: Collection[str]) -> None:
    """
    Give a target the fields that the user wants, besides those that it has.

    @param wanted: names and types.
    @param reserved: names of other columns.
    @raise ExportError: one cannot be a column, or is one with another type.
    """
    fields = dict(target.fields)
    others = {alike(name): name for name in (*reserved, RESCUED)}
    for name in fields:
        if alike(name) in others:
            raise ExportError(
                f"the export has column {name}, a field of the bodies: {others[alike(name)]} cannot be "
                "another column. Leave it out with --columns, or name a new directory"
            )
    known = {alike(name): name for name in (*others.values(), *fields)}
    for name, kind in wanted:
        if kind not in ARROW_OF:
            raise ExportError(f"--field {name}={kind}: allowed types are {', '.join(ARROW_OF)}")
        if fields.get(name, kind) != kind:
            raise ExportError(
                f"--field {name}={kind}: the export has it as {fields[name]}; name a new directory for "
                "another type"
            )
        if name in fields:
            continue
        if not is_column_name(name):
            raise ExportError(f"--field {name}: a column has up to 128 letters, digits, _, -, @ and $")
        if alike(name) in known:
            raise ExportError(f"--field {name}: there is a column {known[alike(name)]}")
        fields[name] = kind
        known[alike(name)] = name
    target.fields = tuple(fields.items())


class DecodedPart:
    """A part whose rows get the fields of their bodies."""

    def __init__(
        self, part: OpenPart, target: FieldsTarget, reserved: Collection[str], *, keeps_body: bool
    ) -> None:
        """@param reserved: names that no field may have, those of the other columns among them."""
        self._part = part
        self._target = target
        self._fields = JsonFields(target.fields, reserved)
        self._keeps_body = keeps_body

    @property
    def rows(self) -> int:
        """See L{OpenPart}."""
        return self._part.rows

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows of the log; the rows of the part have the fields, too."""
        decoded = self._fields.decode(batch.column(BODY).to_pylist())
        names = [name for name in batch.schema.names if self._keeps_body or name != BODY]
        kept = batch.select(names)
        schema = pa.schema([*kept.schema, *decoded.schema])
        self._part.write(pa.RecordBatch.from_arrays([*kept.columns, *decoded.columns], schema=schema))

    def close(self) -> list[tuple[str, str]]:
        """End the part; its target has the fields that the next commit records."""
        files = self._part.close()
        self._target.fields = tuple(self._fields.kinds.items())
        return files

    def abandon(self) -> None:
        """See L{OpenPart}."""
        self._part.abandon()
