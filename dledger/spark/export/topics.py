# -*- test-case-name: tests.spark.test_topics -*-
"""
C{--table-per topic}: the messages of each topic in a table, or a folder, of its own; the log is read once::

    OUT/_export.json            how far all tables are: rows of offsets before it are in their tables
    OUT/orders/                 the table of topic C{orders}, as an export of its own would make it
    OUT/~25RETRY~25billing/     that of C{%RETRY%billing}

Each part of the log is a part of each topic that has messages in it. These are committed one after the
other, then C{_export.json}. After a crash in between, the next run reads from there again, and leaves out
the rows that a table has by its own range. So each table has each row once. The ranges of one table join:
one begins where the one before ended, also if messages of others alone are there.

Knows nothing of clocks.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dledger.spark.export.decode import BODY
from dledger.spark.export.exporter import (
    Exporter,
    ExportSettings,
    ExportSource,
    ExportTarget,
    check_apart,
    ended_part,
    open_directory,
    part_of_files,
)
from dledger.spark.export.files import ExportDirectory, ExportError, ExportPart
from dledger.spark.export.table_target import ExportTable
from dledger.spark.export.tables import open_table, opener_of, part_of_table
from dledger.spark.export.writers import OpenPart
from dledger.spark.formats.proof import Proof
from dledger.values.addresses import is_url

#: Tables of one export: each has up to two open files, and a process has 1,024 by default.
TOPICS_MAX = 400
#: Characters of the names of folders; a longer topic has a digest in its place.
_NAME_MAX, _DIGEST = 200, 32


def folder_of(topic: str) -> str:
    """The name of a topic's folder: other characters than letters, digits, C{.}, C{-}, C{_} as C{~25}."""
    if not topic:
        return "~"
    name = re.sub(r"[^A-Za-z0-9._-]|^[._]", lambda match: "".join(f"~{one:02X}" for one in match[0].encode()),
                  topic)
    if len(name) <= _NAME_MAX:
        return name
    return f"{name[:_NAME_MAX - _DIGEST]}~~{hashlib.sha256(topic.encode()).hexdigest()[:_DIGEST]}"


def topic_of(folder: str) -> str | None:
    """The topic of a folder; None: its name is shortened, or no L{folder_of} gives it."""
    if folder == "~":
        return ""
    try:
        raw = re.sub(rb"~([0-9A-F]{2})", lambda match: bytes([int(match[1], 16)]), folder.encode())
        topic = raw.decode()
    except UnicodeError:
        return None
    return topic if folder_of(topic) == folder else None


class TopicsTarget:
    """
    All tables of an export. Implements L{ExportTarget}; see the module.

    @ivar opened: the tables that this run has used, by the names of their folders.
    @ivar closed: what the next L{commit} makes visible.
    """

    def __init__(self, directory: ExportDirectory, source: ExportSource, settings: ExportSettings) -> None:
        self.opened: dict[str, ExportTarget] = {}
        self.closed: list[tuple[ExportTarget, ExportPart]] = []
        self.path = directory.path
        self.fields: tuple[tuple[str, str], ...] = ()
        self._directory = directory
        self._source = source
        self._settings = settings
        self._folders = {
            name for name in os.listdir(self.path) if not name.startswith("_") and (self.path / name).is_dir()
        }

    @property
    def next_index(self) -> int | None:
        """Rows before it are in their tables."""
        return self._directory.next_index

    @property
    def first(self) -> int | None:
        """See L{ExportTarget}."""
        return self._directory.first

    @property
    def rows(self) -> int:
        """In all tables."""
        return self._directory.rows

    @property
    def proof(self) -> Proof:
        """See L{ExportTarget}."""
        return self._directory.proof

    def begin(self, index: int) -> None:
        """See L{ExportTarget}."""
        self._directory.begin(index)

    def stage(self, name: str) -> Path:
        """See L{ExportTarget}."""
        return self._directory.stage(name)

    def target(self, topic: str) -> ExportTarget:
        """The table of a topic, made if there is none. @raise ExportError: it cannot be; or too many."""
        name = folder_of(topic)
        found = self.opened.get(name)
        if found is not None:
            return found
        if name not in self._folders and len(self._folders) >= TOPICS_MAX:
            raise ExportError(
                f"{self.path} has tables of {TOPICS_MAX} topics, and {topic[:200]!r} is one more: "
                f"--table-per topic makes at most {TOPICS_MAX}. Export to a new directory without it"
            )
        path, rows = self.path / name, f"{self._source.scan.options.format} of topic {topic}"
        if self._settings.to:
            target: ExportTarget = open_table(path, self._source, self._settings, rows=rows)
        else:
            target = open_directory(path, self._source, self._settings, rows=rows)
        self._folders.add(name)
        self.opened[name] = target
        if target.next_index is None:
            assert self.next_index is not None
            target.begin(self.next_index)
        return target

    def commit(self, part: ExportPart, proof: Proof) -> None:
        """See L{ExportTarget}: each table, then how far all are."""
        for target, rows in self.closed:
            target.commit(rows, proof)
        self.closed = []
        self._directory.commit(part, proof)

    def close(self) -> None:
        """See L{ExportTarget}."""
        for target in self.opened.values():
            target.close()
        self._directory.close()


class _TopicsPart:
    """The rows of all topics; those that a table has are left out. @ivar parts: by topic."""

    def __init__(self, targets: TopicsTarget, source: ExportSource, settings: ExportSettings) -> None:
        self.parts: dict[str, tuple[ExportTarget, OpenPart]] = {}
        self._targets = targets
        self._source = source
        self._settings = settings
        self._kept = [
            name for name in source.scan.schema.names
            if name in source.names or (settings.decode and name == BODY)
        ]

    @property
    def rows(self) -> int:
        return sum(part.rows for _, part in self.parts.values())

    def write(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        indexes = batch.column("index")
        offsets = indexes if not indexes.null_count else batch.column("physicalOffset")
        topics = batch.column("topic").dictionary_encode()
        numbers = topics.indices.to_numpy()
        order = np.argsort(numbers, kind="stable")
        edges = [0, *(np.flatnonzero(np.diff(numbers[order])) + 1).tolist(), len(order)]
        for begin, end in zip(edges, edges[1:], strict=False):
            places = pa.array(order[begin:end])
            target, part = self._part(topics.dictionary[int(numbers[order[begin]])].as_py())
            rows, own = batch.select(self._kept).take(places), offsets.take(places)
            if own[0].as_py() < target.next_index:
                rows = rows.filter(pc.greater_equal(own, target.next_index))
            if rows.num_rows:
                part.write(rows)

    def _part(self, topic: str) -> tuple[ExportTarget, OpenPart]:
        found = self.parts.get(topic)
        if found is None:
            target = self._targets.target(topic)
            if isinstance(target, ExportTable):
                part = part_of_table(target, self._source, self._settings)
            else:
                part = part_of_files(target, self._source, self._settings)
            found = self.parts[topic] = target, part
        return found

    def close(self) -> list[tuple[str, str]]:
        """See L{TopicsExporter}, which ends the parts."""
        return []

    def abandon(self) -> None:
        for _, part in self.parts.values():
            part.abandon()


class TopicsExporter(Exporter):
    """One run of an export into a table for each topic."""

    directory: TopicsTarget

    @classmethod
    def open(cls, out: str | os.PathLike[str], source: ExportSource, settings: ExportSettings) -> Self:
        """
        @raise ExportError: see L{ExportDirectory.open}.
        @raise ReadError: the log cannot be read; then no directory was made.
        """
        if is_url(os.fspath(out)):
            raise ExportError(f"--table-per topic needs a directory, and {os.fspath(out)!r} is a URL")
        if source.scan.options.include_internal:
            raise ExportError(
                "option includeInternal gives rows without a topic, for which --table-per topic has no table"
            )
        check_apart(out, source.scan)
        source.scan.extent()
        if settings.to:
            opener_of(settings.to)
        root = open_directory(out, source, settings, rows=source.scan.options.format)
        assert isinstance(root, ExportDirectory)
        return cls(TopicsTarget(root, source, settings), source, settings)

    def tables(self) -> list[ExportTable]:
        """Those that this run has written to."""
        return [table for table in self.directory.opened.values() if isinstance(table, ExportTable)]

    def _open_part(self) -> OpenPart:
        return _TopicsPart(self.directory, self._source, self._settings)

    def _ended(self, writer: OpenPart, first: int, last: int) -> ExportPart:
        assert isinstance(writer, _TopicsPart)
        self.directory.closed = [
            (target, ended_part(part, target, last, self._settings.format))
            for _, (target, part) in sorted(writer.parts.items()) if part.rows
        ]
        return ExportPart(first=first, last=last, files=(), rows=writer.rows)
