# -*- test-case-name: tests.spark.test_sink_staging -*-
"""Rows of a task: what is taken, and what is refused before anything is in the log."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from twisted.trial.unittest import SynchronousTestCase

from dledger.spark.sink.markers import MarkerKind, SinkMarker, encode_marker
from dledger.spark.sink.sink_log import SinkError, digest_of_all
from dledger.spark.sink.staging import StagedRows, body_column, rows_of_tasks, stage

_MAX = 4 * 1024 * 1024 - 48
MARKER = SinkMarker(kind=MarkerKind.DONE, sink="s", batch=1, run="0" * 16)


def staged(
    *batches: Sequence[object], kind: pa.DataType | None = None, bytes_max: int = 1 << 30
) -> StagedRows:
    """The rows of partition 5."""
    arrays = [pa.array(batch, type=kind or pa.binary()) for batch in batches]
    return stage((pa.record_batch([array], names=["Body"]) for array in arrays), "Body", 5, bytes_max)


class ColumnTests(SynchronousTestCase):
    """Which frames are taken."""

    def test_taken(self) -> None:
        """One of two names, one of two types."""
        for name in ("body", "BODY", "value"):
            for kind in ("binary", "string"):
                self.assertEqual(body_column([(name, kind)]), name)

    def test_refused(self) -> None:
        """Other columns by name, both names, none, other types."""
        for columns, said in (
            ([("body", "binary"), ("key", "binary")], "the frame has column key besides"),
            ([("x", "int"), ("y", "int")], "the frame has column x. "),
            ([("body", "binary"), ("value", "string")], "the frame has body and value. "),
            ([], "the frame has no column. "),
            ([("body", "int")], "column body is INT: BINARY and STRING are allowed"),
        ):
            error = self.assertRaises(SinkError, body_column, columns)
            self.assertIn(said, str(error))


class StagingTests(SynchronousTestCase):
    """Rows of one task."""

    def test_rows(self) -> None:
        """Rows of several batches in order, empty ones too; a text as UTF-8; a slice of a longer array."""
        found = staged([b"a", b"", b"bcd"], [], [b"e"])
        self.assertEqual(list(found.rows()), [b"a", b"", b"bcd", b"e"])
        self.assertEqual((found.count, found.digest), (4, digest_of_all([b"", b"e", b"bcd", b"a"])))
        self.assertEqual(list(staged(["é", ""], kind=pa.string()).rows()), ["é".encode(), b""])
        batch = pa.record_batch([pa.array([b"no", b"yes", b"no"])], names=["value"]).slice(1, 1)
        self.assertEqual(list(stage([batch], "value", 0, 9).rows()), [b"yes"])
        self.assertEqual(staged().count, 0)

    def test_tasks(self) -> None:
        """The rows of all tasks, in order, each time they are asked for; the digest is that of all."""
        rows = rows_of_tasks([staged([b"c", b"a"]), staged(), staged([b"b"])])
        for _ in range(2):
            self.assertEqual(list(rows.all()), [b"c", b"a", b"b"])
        self.assertEqual((rows.count, rows.digest), (3, digest_of_all([b"a", b"b", b"c"])))

    def test_refused(self) -> None:
        """The sentence names row and partition. What looks like a marker is a row."""
        for row, said in (
            (None, "has no body (null)"), (b"x" * (_MAX + 1), f"has a body of more than {_MAX} bytes"),
        ):
            error = self.assertRaises(SinkError, staged, [b"a", b"b"], [b"c", row])
            self.assertIn(f"row 3 of partition 5 {said}", str(error))
            self.assertIn("This run has appended nothing", str(error))
        self.assertEqual(staged([b"x" * _MAX, encode_marker(MARKER)]).count, 2)

    def test_bound(self) -> None:
        """A task has a bound in bytes."""
        self.assertEqual(staged([b"abc"], [b"de"], bytes_max=5).count, 2)
        error = self.assertRaises(SinkError, staged, [b"abc"], [b"def"], bytes_max=5)
        self.assertIn("partition 5 has more than 5 bytes of bodies (maxTaskBytes)", str(error))
