# -*- test-case-name: tests.spark.test_envelopes -*-
"""Times and headers of entries as columns, on request; and bodies of the sink that look like envelopes."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from dledger.client.values import entries_of
from dledger.spark.export.exporter import Exporter, ExportSettings, ExportSource
from dledger.spark.formats.envelopes import guarded_bodies, open_bodies
from dledger.spark.formats.log import DataLossError
from dledger.spark.formats.option_texts import OptionError
from dledger.spark.ledger.columns import ENTRY_COLUMNS, ENVELOPE_COLUMNS
from dledger.spark.scans.scan import Scan
from dledger.spark.sink.sink_log import SinkError, digest_of_all
from dledger.spark.source import LogStreamReader
from protocols.wire.ledger.envelopes import ENVELOPE_MAGIC, envelope_head
from protocols.wire.ledger.own.own_entries import TERM_START_CHANNEL
from tests.client.test_values import batch_of
from tests.spark.ledgers import plain_rows, scanned
from tests.spark.test_scan import LedgerCase
from tests.spark.test_sink_staging import staged

#: 2026-01-02T03:04:05.678Z
NOW_MS = 1767323045678
NOW = datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)
HEADERS = {"type": b"order", "id": b"\xff"}
WHOLE = envelope_head(NOW_MS, HEADERS) + b"a"
#: Bodies of records, and their parts: body, time, headers.
BODIES = (
    (WHOLE, (b"a", NOW, list(HEADERS.items()))), (b"plain", (b"plain", None, [])), (b"", (b"", None, [])),
    (envelope_head(NOW_MS, {}), (b"", NOW, [])),
    (envelope_head(None, {"k": b"", "key": b"u7"}) + b"b", (b"b", None, [("k", b""), ("key", b"u7")])),
    (ENVELOPE_MAGIC + b"damaged", (ENVELOPE_MAGIC + b"damaged", None, [])),
    (envelope_head(None, {}) + WHOLE, (WHOLE, None, [])),
)


class ColumnsTests(LedgerCase):
    """Option C{envelopes}."""

    def setUp(self) -> None:
        super().setUp()
        self.ledger.append([body for body, _ in BODIES] * 3)
        self.ledger.commit()

    def test_default(self) -> None:
        """Without it, schema and bodies are those of the records."""
        self.assertEqual(Scan.of({"path": self.path}).columns, ENTRY_COLUMNS)
        self.assertEqual(scanned({"path": self.path}), plain_rows(self.path))

    def test_rows(self) -> None:
        """With it, three columns more, and bodies as programs have appended them; in parts as in one."""
        given = {"path": self.path, "envelopes": "true"}
        self.assertEqual(Scan.of(given).columns, (*ENTRY_COLUMNS, *ENVELOPE_COLUMNS))
        expected = [
            (*row[:-1], *reported, dict(reported[2]).get("key"))
            for row, (_, reported) in zip(plain_rows(self.path), BODIES * 3, strict=True)
        ]
        for options in ({}, {"minPartitions": 4}, {"fetchBytes": 1}, {"verifyCrc": "true"}):
            self.assertEqual(scanned({**given, **options}), expected)

    def test_projection(self) -> None:
        """Each column on its own."""
        given = {"path": self.path, "envelopes": "true"}
        wanted = [("headers", "map<string,binary>"), ("timestamp", "timestamp")]
        reported = [reported for _, reported in BODIES] * 3
        self.assertEqual(scanned(given, wanted), [(one[2], one[1]) for one in reported])
        self.assertEqual(scanned(given, wanted[1:]), [(one[1],) for one in reported])
        keys = [(b"u7" if one[0] == b"b" else None,) for one in reported]
        self.assertEqual(scanned(given, [("key", "binary")]), keys)
        self.assertEqual(scanned(given, [("body", "binary")]), [(one[0],) for one in reported])
        self.assertEqual(scanned(given, [("index", "bigint")]), [(index,) for index in range(len(reported))])

    def test_starting_timestamp(self) -> None:
        """Option C{startingTimestamp}: batches, parts, streams; the times of entries rise from here on."""
        first = len(BODIES) * 3
        for minute in range(40):
            body = envelope_head(NOW_MS + 60_000 * minute, {}) + b"x" if minute % 3 else b"untimed"
            self.ledger.append([body])
        self.ledger.commit()
        given = {"path": self.path, "envelopes": "true"}
        everything = scanned(given)
        for minute in (2, 10, 11, 12, 38):
            ms = NOW_MS + 60_000 * (minute + 1)  # (clocks may differ by a minute)
            found = minute if (minute - 1) % 3 else minute - 1  # (without a time, it may be of that minute)
            for options in ({}, {"minPartitions": 4}, {"fetchBytes": 1}):
                rows = scanned({**given, **options, "startingTimestamp": ms})
                self.assertEqual(rows, everything[first + found :], (minute, options))
        reader = LogStreamReader(Scan.of({**given, "startingTimestamp": str(ms)}, is_stream=True))
        self.assertEqual(reader.initialOffset()["default"], len(everything) - 2)
        later = {**given, "startingTimestamp": NOW_MS + 10**9}
        self.assertEqual(scanned(later), everything[-1:])  # (the last one has no time)
        self.assertEqual(scanned({**given, "startingTimestamp": 10**12}), everything)

    def test_starting_timestamp_behind_a_loss(self) -> None:
        """What is missing before the first entry, and has not expired, may be of the time that is wanted."""
        for minute in range(200):
            self.ledger.append([envelope_head(NOW_MS + 60_000 * minute, {}) + b"x" * 50])
        self.ledger.commit()
        first = min((Path(self.path) / "data").iterdir())
        first.unlink()
        given = {"path": self.path, "envelopes": "true", "startingTimestamp": NOW_MS}
        self.assertIn("is missing", str(self.assertRaises(DataLossError, scanned, given)))
        begin = len(BODIES) * 3
        later = scanned({**given, "startingTimestamp": NOW_MS + 60_000 * 191})
        self.assertEqual([row[0] for row in later], list(range(begin + 190, begin + 200)))
        said = self.warned()
        self.assertLess(100, len(scanned({**given, "failOnDataLoss": "false"})))
        self.assertIn("is missing", said[0])

    def test_starting_timestamp_without_times(self) -> None:
        """A log without times says so; an empty one has nothing to say."""
        for count in (0, 30):
            ledger = self.make()
            if count:
                ledger.append([b"plain"] * count)
            ledger.commit()
            given = {"path": ledger.path, "envelopes": "true", "startingTimestamp": NOW_MS}
            if count:
                self.assertIn("have no time", str(self.assertRaises(OptionError, scanned, given)))
            else:
                self.assertEqual(scanned(given), [])

    def test_of_producers(self) -> None:
        """Those in entries of a producer are opened; what is hidden is shown as it is."""
        first = self.ledger.store.ledger_end_index + 1
        self.ledger.append_once("p", [WHOLE, b"plain"])
        self.ledger.append([WHOLE], channels=[TERM_START_CHANNEL])
        self.ledger.commit()
        given = {"path": self.path, "envelopes": "true", "startingOffsets": first}
        wanted = [("body", "BINARY"), ("timestamp", "TIMESTAMP")]
        reported = [(b"a", NOW), (b"plain", None), (WHOLE, None)]
        self.assertEqual(scanned(given, wanted), reported[:2])
        self.assertEqual(scanned({**given, "includeControl": "true"}, wanted)[1:], reported)

    def test_errors(self) -> None:
        """Messages have no envelopes; without the option there are no such columns."""
        error = self.assertRaises(
            OptionError, Scan.of, {"path": "d", "envelopes": "true", "format": "rocketmq"}
        )
        self.assertIn("needs format=dledger", str(error))
        error = self.assertRaises(
            OptionError, Scan.of, {"path": "d"}, wanted=[("timestamp", "timestamp")]
        )
        self.assertIn("envelopes=true", str(error))

    def test_export(self) -> None:
        """An export takes the option, too: Parquet has the same columns, JSON lines have texts and Base64."""
        columns = ("body", "timestamp", "headers")
        given = {"path": self.path, "envelopes": "true"}
        for style in ("parquet", "jsonl"):
            out, options = Path(self.mktemp()), ExportSettings(format=style, columns=columns)
            with Exporter.open(out, ExportSource.of(given, columns), options) as exporter:
                exporter.step(0, is_last=True)
            files = sorted(out.rglob("part-*"))
            if style == "parquet":
                table = pa.concat_tables(pq.read_table(path) for path in files)
                rows = list(zip(*(column.to_pylist() for column in table.columns), strict=True))
                self.assertEqual(rows, [reported for _, reported in BODIES] * 3)
            else:
                lines = [json.loads(line) for path in files for line in path.read_text().splitlines()]
                self.assertEqual(lines[:2], [
                    {"body": "a", "timestamp": "2026-01-02T03:04:05.678Z", "headers": {"type": "order"},
                     "headers_base64": {"id": "/w=="}}, {"body": "plain", "headers": {}},
                ])

    @settings(max_examples=40, deadline=None)
    @given(st.lists(st.binary(max_size=20) | st.binary(max_size=20).map(lambda rest: ENVELOPE_MAGIC + rest) |
                    st.builds(lambda body, time_ms: envelope_head(time_ms, HEADERS) + body,
                              st.binary(max_size=9), st.none() | st.integers(0, 10**14)), min_size=1))
    def test_as_the_client(self, bodies: list[bytes]) -> None:
        """Spark shows the same as the client."""
        found = open_bodies(pa.array(bodies, pa.binary()), np.ones(len(bodies), dtype=np.bool_))
        entries = entries_of(batch_of(*bodies))
        self.assertEqual(found.bodies.to_pylist(), [one.body for one in entries])
        self.assertEqual(found.times.cast(pa.int64()).to_pylist(),
                         [None if one.timestamp is None else one.timestamp * 1000 for one in entries])
        self.assertEqual(found.headers.to_pylist(), [list(one.headers.items()) for one in entries])


class SinkTests(SynchronousTestCase):
    """The sink is a writer of ours: its rows are read as they were."""

    def test_guarded(self) -> None:
        """A row that begins as an envelope is put into one; all others stay as they are."""
        rows = [b"a", ENVELOPE_MAGIC, WHOLE, b""]
        sent = guarded_bodies(pa.array(rows, pa.binary())).to_pylist()
        self.assertEqual([one.body for one in entries_of(batch_of(*sent))], rows)
        self.assertEqual((sent[0], sent[3]), (b"a", b""))
        found = staged(rows)
        self.assertEqual(list(found.rows()), sent)
        self.assertEqual(found.digest, digest_of_all(sent))
        plain = pa.array([b"a", b"\xff", None], pa.binary())
        self.assertIs(guarded_bodies(plain), plain)

    def test_null_beside_one(self) -> None:
        """The usual refusal."""
        error = self.assertRaises(SinkError, staged, [ENVELOPE_MAGIC, None])
        self.assertIn("row 1 of partition 5 has no body", str(error))
