# -*- test-case-name: tests.spark.test_tables -*-
"""Exports into Delta and Iceberg tables: every row once, ranges in properties, what is refused."""

from __future__ import annotations

import json
import os
import time
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.schema import Schema
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from twisted.trial.unittest import SynchronousTestCase

from dledger.spark.export import writers
from dledger.spark.export.engine import ExportPlan
from dledger.spark.export.exporter import ExportSettings
from dledger.spark.export.files import ExportError
from dledger.spark.export.follow import MAINTAIN_MS
from dledger.spark.export.table_target import STATE, TableState, with_day
from protocols.wire.ledger.envelopes import envelope_head
from protocols.wire.rocketmq.message import encode_message, make_message
from tests.spark.archives import ship
from tests.spark.ledgers import Ledger, plain_rows, set_group
from tests.spark.tables import KINDS, TableCase, commits, files, iceberg, read_table, rows
from tests.spark.test_messages import append_messages

_DAY_MS = 86_400_000
_NEW_YEAR_MS = 1_767_225_600_000


class RowTests(TableCase):
    """What is in the table."""

    def test_value_by_value(self) -> None:
        """Everything committed, nothing else, a commit for each segment, over several runs."""
        self.ledger.fill(60)
        self.ledger.commit(39)
        expected = plain_rows(self.ledger.path, 60)
        for kind in KINDS:
            with self.subTest(kind=kind):
                out = self.out(kind)
                self.ledger.commit(39)
                self.assertEqual(self.export(kind, out, endingOffsets=40), 40)
                self.assertEqual(rows(read_table(kind, out)), expected[:40])
                self.ledger.commit()
                self.assertEqual(self.export(kind, out), 20)
                said = commits(kind, out)
                self.assertEqual(self.export(kind, out), 0)
                self.assertEqual(commits(kind, out), said)
                table = read_table(kind, out)
                self.assertEqual(rows(table), expected)
                count = duckdb.sql('select count(*), sum("index"), sum(octet_length(body)) from "table"')
                total = sum(len(row[7]) for row in expected)
                self.assertEqual(count.fetchall(), [(60, sum(range(60)), total)])
                edges = [tuple(map(int, text.split("-"))) for text, _ in said]
                self.assertEqual((edges[0][0], edges[-1][1]), (0, 59))
                self.assertTrue(all(a[1] + 1 == b[0] for a, b in zip(edges, edges[1:], strict=False)))
                self.assertEqual([state["next"] - 1 for _, state in said], [last for _, last in edges])
                self.assertEqual(said[-1][1]["rows"], 60)
                self.assertGreater(len(said), 5)

    def test_files_alone(self) -> None:
        """DuckDB and pyarrow read the files that a table names, which hold nothing else."""
        self.fill(20)
        for kind in KINDS:
            out = self.out(kind)
            self.export(kind, out)
            paths = [name.removeprefix("file://") for name in files(kind, out)]
            found = duckdb.sql(f'select count(*), max("index") from read_parquet({paths})').fetchall()
            self.assertEqual(found, [(20, 19)])
            self.assertEqual(sum(pq.read_metadata(path).num_rows for path in paths), 20)

    def test_statistics(self) -> None:
        """A reader of Delta skips files by the bounds of their columns."""
        self.patch(writers, "ROW_GROUP_BYTES", 1)
        self.fill(40)
        out = self.out("delta")
        self.export("delta", out)
        found = pa.table(DeltaTable(out).get_add_actions(flatten=True)).to_pylist()
        expected = [tuple(map(int, text.split("-"))) for text, _ in commits("delta", out)]
        self.assertEqual(sorted((one["min.index"], one["max.index"]) for one in found), expected)
        self.assertEqual({one["null_count.index"] for one in found}, {0})
        self.assertEqual(sum(one["num_records"] for one in found), 40)

    def test_days_of_messages(self) -> None:
        """Tables of messages are partitioned by the day of the broker's time, and by what one names."""
        def make(at: int, number: int) -> bytes:
            return encode_message(make_message(
                ("a/b %x=é", "T")[number % 2], b"x", properties={"TAGS": "t"}, physical_offset=at,
                store_timestamp=_NEW_YEAR_MS + number * _DAY_MS // 4,
            ))

        append_messages(self.ledger, 9, make)
        self.ledger.append([b""])
        self.ledger.commit()
        days = [date(2026, 1, 1 + number // 4) for number in range(9)]
        for kind in KINDS:
            with self.subTest(kind=kind):
                out = self.out(f" ä{kind}")
                settings = ExportSettings(to=kind, partition_by=("topic",), part_bytes=1)
                self.export(kind, out, settings, format="rocketmq", includeInternal=True, fetchBytes=1)
                table = read_table(kind, out)
                topics = ["a/b %x=é", "T"] * 4 + ["a/b %x=é"]
                found = sorted(rows(table, "index", "topic", "day"))
                self.assertEqual(found, [*zip(range(9), topics, days, strict=True), (9, None, None)])
                self.assertEqual(table.schema.names[-1], "day")
                days_of_files = {
                    (path.split("day=")[1].split("/")[0], path.split("topic=")[1].split("/")[0])
                    for path in files(kind, out)
                }
                self.assertEqual(len(days_of_files), 6)
                there = [os.path.exists(path.removeprefix("file://")) for path in files(kind, out)]
                self.assertTrue(all(there))
                with self.exporter(kind, out, settings, format="rocketmq", includeInternal=True) as exporter:
                    exporter.table.maintain(compacts=True, expire_days=0, now_s=time.time() + 60)
                self.assertEqual(sorted(rows(read_table(kind, out), "index", "topic", "day")), found)
                self.assertEqual(len(files(kind, out)), 6)

    def test_no_rows(self) -> None:
        """A range without rows is a commit, too; a log without entries is an empty table."""
        outs = {kind: self.out(kind) for kind in KINDS}
        for count in range(3):
            for kind, out in outs.items():
                self.assertEqual(self.export(kind, out, format="rocketmq"), 0)
                self.assertEqual((len(commits(kind, out)), read_table(kind, out).num_rows), (count, 0))
            self.ledger.append([b""])
            self.ledger.commit()

    def test_days_of_envelopes(self) -> None:
        """Entries with a time have a day; those without, and impossible times, have none."""
        times = (_NEW_YEAR_MS, None, _NEW_YEAR_MS + _DAY_MS)
        self.ledger.append([envelope_head(at, {"k": b"\xff"}) + b"a" for at in times])
        self.ledger.commit()
        for kind in KINDS:
            with self.subTest(kind=kind):
                out = self.out(kind)
                self.export(kind, out, envelopes=True)
                table = read_table(kind, out)
                self.assertEqual(rows(table, "body", "day"), [
                    (b"a", date(2026, 1, 1)), (b"a", None), (b"a", date(2026, 1, 2)),
                ])
                self.assertEqual(table.column("headers").to_pylist(), [[("k", b"\xff")]] * 3)
                self.assertEqual(table.column("timestamp").to_pylist()[1:], [
                    None, datetime(2026, 1, 2, tzinfo=UTC)])

    def test_years(self) -> None:
        """A day has a year of four digits, whatever a client's clock says."""
        times = pa.array([-2**62, 2**62, 0, None], pa.timestamp("us", tz="UTC"))
        schema = pa.schema([("timestamp", times.type), ("day", pa.date32())])
        batch = pa.record_batch([times], names=["timestamp"])
        found = with_day(batch, schema).column("day").to_pylist()
        self.assertEqual(found, [None, None, date(1970, 1, 1), None])

    def test_more_columns(self) -> None:
        """A later run may write more columns, which are null before; others may have added theirs."""
        self.fill(10)
        for kind in KINDS:
            with self.subTest(kind=kind):
                out = self.out(kind)
                few = ExportSettings(to=kind, columns=("index", "body"))
                self.export(kind, out, few, endingOffsets=4)
                note = pa.schema([("note", pa.string())])
                if kind == "delta":
                    DeltaTable(out).alter.add_columns(list(Schema.from_arrow(note).fields))
                else:
                    with iceberg(out).update_schema() as change:
                        change.union_by_name(note)
                more = ExportSettings(to=kind, columns=("term", "body", "index"))
                self.assertEqual(self.export(kind, out, more), 6)
                expected = [(row[0], row[1] if row[0] > 3 else None, row[7], None)
                            for row in plain_rows(self.ledger.path)]
                self.assertEqual(rows(read_table(kind, out), "index", "term", "body", "note"), expected)
                self.assertIn("and now term is missing: allowed are", self.refusal(kind, out, few))

    def test_follow(self) -> None:
        """A log that grows: parts become visible when they are old enough."""
        settings = {kind: ExportSettings(to=kind, max_delay_ms=1000) for kind in KINDS}
        outs = {kind: self.out(kind) for kind in KINDS}
        exporters = [self.exporter(kind, outs[kind], settings[kind]) for kind in KINDS]
        for exporter in exporters:
            exporter.step(0, is_last=False)
        self.fill(2)
        for exporter in exporters:
            exporter.step(5000, is_last=False)
        self.assertEqual([commits(kind, outs[kind]) for kind in KINDS], [[], []])
        for exporter in exporters:
            exporter.step(6000, is_last=False)
            exporter.close()
        self.assertEqual([commits(kind, outs[kind])[0][0] for kind in KINDS], ["0-1", "0-1"])

    def test_archive(self) -> None:
        """What has expired in the log is taken from the archive beside it."""
        self.fill(60)
        expected = plain_rows(self.ledger.path)
        archive = os.path.abspath(self.mktemp())
        ship(self.ledger.path, archive)
        outs = {kind: self.out(kind) for kind in KINDS}
        for kind, out in outs.items():
            self.export(kind, out, endingOffsets=3)
        self.assertGreater(self.ledger.expire(2), 3)
        for kind, out in outs.items():
            self.assertEqual(self.export(kind, out, archive=archive), 57)
            self.assertEqual(rows(read_table(kind, out)), expected)

    def test_maintenance(self) -> None:
        """Files are compacted, versions expire, on request alone; rows and progress are the same."""
        self.fill(30)
        expected = plain_rows(self.ledger.path)
        for kind in KINDS:
            with self.subTest(kind=kind):
                out = self.out(kind)
                with self.exporter(kind, out) as exporter:
                    self.assertEqual(exporter.table.maintain(compacts=True, expire_days=1, now_s=0),
                                     "the table has no rows yet")
                self.export(kind, out)
                if kind == "delta":
                    self.assertEqual(DeltaTable(out).metadata().configuration,
                                     {"delta.enableExpiredLogCleanup": "false"})
                before = sorted(out.rglob("*.parquet"))
                (out / ("stray.parquet" if kind == "delta" else "log/data/stray.parquet")).touch()
                with self.exporter(kind, out) as exporter:
                    now_s = time.time()
                    said = exporter.table.maintain(compacts=True, expire_days=None, now_s=now_s)
                    self.assertEqual(said, f"compacted {len(before)} files into 1")
                    self.assertEqual(rows(read_table(kind, out)), expected)
                    self.assertLess(set(before), set(out.rglob("*.parquet")))
                    said = exporter.table.maintain(compacts=False, expire_days=1, now_s=now_s)
                    self.assertIn("deleted 0 files", said)
                    exporter.table.expire(0, time.time() + 1)
                    self.assertEqual(len(list(out.rglob("*.parquet"))), 1)
                self.assertEqual(rows(read_table(kind, out)), expected)
                self.assertEqual(self.export(kind, out), 0)


class SafetyTests(TableCase):
    """Commits whose outcome is not known, other writers, other logs."""

    def let_fail(self, owner: object, name: str, failures: list[Exception], *, is_made: bool) -> None:
        """Let calls fail, before or after their work."""
        real = getattr(owner, name)

        def failing(*words: object, **more: object) -> object:
            made = real(*words, **more) if is_made or not failures else None
            if failures:
                raise failures.pop()
            return made

        self.patch(owner, name, failing)

    def test_unknown_outcome(self) -> None:
        """A commit that fails after it was made is not made again; one that fails before it is made once."""
        self.fill(8)
        expected = plain_rows(self.ledger.path)
        for kind, owner, name, failures_of in (
            ("delta", DeltaTable, "create_write_transaction", {
                True: OSError(5, "lost"), False: OSError(5, "lost"),
            }),
            ("iceberg", SqlCatalog, "commit_table", {
                # The package deletes files when it learns that a commit was not made.
                True: CommitStateUnknownException("lost"), False: CommitFailedException("lost"),
            }),
        ):
            for is_made, failure in failures_of.items():
                with self.subTest(kind=kind, is_made=is_made):
                    out = self.out(kind)
                    failures: list[Exception] = []
                    self.let_fail(owner, name, failures, is_made=is_made)
                    self.export(kind, out, endingOffsets=3)
                    failures.append(failure)
                    self.assertEqual(self.export(kind, out), 5)
                    self.assertEqual((failures, rows(read_table(kind, out))), ([], expected))

    def test_no_commit(self) -> None:
        """A commit that fails again and again is an error; later the export goes on."""
        self.fill(8)
        for kind, owner, name in (("delta", DeltaTable, "create_write_transaction"),
                                  ("iceberg", SqlCatalog, "commit_table")):
            out = self.out(kind)
            self.export(kind, out, endingOffsets=7)
            failures: list[Exception] = [OSError(28, "No space left on device")] * 4
            self.let_fail(owner, name, failures, is_made=False)
            said = self.refusal(kind, out)
            self.assertIn("offsets 7 to 7 cannot be committed", said)
            self.assertIn("No space left on device", said)
            self.assertEqual(len(rows(read_table(kind, out))), 7)
            self.assertEqual((failures, self.export(kind, out)), ([], 1))

    def test_two_exports(self) -> None:
        """The lock keeps a second one away; without it, as on two machines, the slower one is refused."""
        self.fill(20)
        for kind in KINDS:
            with self.subTest(kind=kind):
                out = self.out(kind)
                self.export(kind, out, endingOffsets=5)
                with self.exporter(kind, out) as slow:
                    self.assertIn("is being written by another export", self.refusal(kind, out))
                    os.unlink(out / "_lock")
                    self.assertEqual(self.export(kind, out), 15)
                    error = self.assertRaises(ExportError, slow.step, 0, is_last=True)
                    self.assertIn("another export writes to the", str(error))
                    self.assertIn("it has come to offset 20, this one to 5", str(error))
                self.assertEqual(rows(read_table(kind, out)), plain_rows(self.ledger.path))

    def test_two_exports_that_change_the_table(self) -> None:
        """What must be changed before a commit does not hide the commit of another export."""
        self.fill(20)
        few = {kind: ExportSettings(to=kind, columns=("index", "body")) for kind in KINDS}
        more = {kind: ExportSettings(to=kind, columns=("index", "body", "term")) for kind in KINDS}
        for kind in KINDS:
            with self.subTest(kind=kind):
                out = self.out(kind)
                self.export(kind, out, few[kind], endingOffsets=5)
                if kind == "iceberg":
                    # Without it the package tries a commit again by itself.
                    with iceberg(out).transaction() as change:
                        change.remove_properties("commit.retry.num-retries")
                with self.exporter(kind, out, more[kind]) as slow:
                    os.unlink(out / "_lock")
                    self.export(kind, out, few[kind])
                    error = self.assertRaises(ExportError, slow.step, 0, is_last=True)
                    self.assertIn("it has come to offset 20, this one to 5", str(error))
                self.assertEqual([row[0] for row in rows(read_table(kind, out), "index")], list(range(20)))

    def test_other_programs(self) -> None:
        """What others commit to the table meanwhile does not stop the export."""
        self.fill(20)
        for kind in KINDS:
            with self.subTest(kind=kind):
                out = self.out(kind)
                self.export(kind, out, endingOffsets=10)
                with self.exporter(kind, out) as exporter:
                    if kind == "delta":
                        DeltaTable(out).delete("\"index\" = 3")
                    else:
                        iceberg(out).delete("index = 3")
                    exporter.step(0, is_last=True)
                found = [row[0] for row in rows(read_table(kind, out))]
                self.assertEqual(found, [number for number in range(20) if number != 3])

    def test_empty_last_commit(self) -> None:
        """Delta's log may end with an empty file after a power cut: that is no commit."""
        self.fill(10)
        out = self.out("delta")
        self.export("delta", out, endingOffsets=5)
        newest = DeltaTable(out).version()
        self.assertEqual(self.export("delta", out), 5)
        for name in sorted(os.listdir(out / "_delta_log"))[newest + 2 :]:
            os.unlink(out / "_delta_log" / name)
        (out / "_delta_log" / f"{newest + 1:020d}.json").write_text("")
        self.assertEqual(self.export("delta", out), 5)
        self.assertEqual(rows(read_table("delta", out)), plain_rows(self.ledger.path))

    def test_stable_storage(self) -> None:
        """Whatever a commit names is in stable storage before it, and all files after it."""
        self.fill(3)
        real, synced = os.fsync, set[int]()

        def fsync(number: int) -> None:
            synced.add(os.fstat(number).st_ino)
            real(number)

        self.patch(os, "fsync", fsync)
        for kind, owner, name in (("delta", DeltaTable, "create_write_transaction"),
                                  ("iceberg", SqlCatalog, "commit_table")):
            out = self.out(kind).absolute()
            synced.clear()
            commit = getattr(owner, name)

            def before(*words: object, out: Path = out, commit: Any = commit, **more: object) -> object:
                there = [*out.rglob("*.parquet"), *out.rglob("*.avro")]
                self.assertLessEqual({path.stat().st_ino for path in there}, synced)
                self.assertLessEqual({path.parent.stat().st_ino for path in there}, synced)
                return commit(*words, **more)

            self.patch(owner, name, before)
            self.export(kind, out, endingOffsets=2)
            with self.exporter(kind, out) as exporter:
                exporter.step(0, is_last=True)
                self.assertEqual(exporter.table.compact(), (2, 1))
            kept = [path for path in out.rglob("*") if path.suffix in (".parquet", ".json", ".avro")]
            self.assertGreater(len(kept), 2)
            self.assertLessEqual({path.stat().st_ino for path in kept}, synced)

    def test_rolled_back(self) -> None:
        """A table that went back is not continued after a gap."""
        self.fill(10)
        for kind in KINDS:
            with self.subTest(kind=kind):
                out = self.out(kind)
                self.export(kind, out, endingOffsets=5)
                if kind == "delta":
                    version = DeltaTable(out).version()
                    self.export(kind, out)
                    DeltaTable(out).restore(version)
                    words = "was restored to an older version"
                else:
                    snapshot = iceberg(out).current_snapshot()
                    assert snapshot is not None
                    self.export(kind, out)
                    iceberg(out).manage_snapshots().rollback_to_snapshot(snapshot.snapshot_id).commit()
                    words = "was rolled back before offset 10"
                self.assertIn(words, self.refusal(kind, out))
                self.assertLess(len(rows(read_table(kind, out))), 10)

    def test_expired_snapshots(self) -> None:
        """Iceberg's properties remember the progress when others have forgotten the export's snapshots."""
        self.fill(10)
        out = self.out("iceberg")
        self.export("iceberg", out, endingOffsets=5)
        iceberg(out).delete("index = 3")
        iceberg(out).maintenance.expire_snapshots().older_than(datetime.now(UTC)).commit()
        self.assertEqual(commits("iceberg", out), [])
        self.assertEqual(self.export("iceberg", out), 5)
        self.assertEqual(len(rows(read_table("iceberg", out))), 9)

    def test_another_log(self) -> None:
        """The table records the group and the last record; another log is refused, the same one is not."""
        set_group(self.ledger.path, "11" * 16)
        self.fill(10)
        mine = self.ledger
        outs = {kind: self.out(kind) for kind in KINDS}
        for kind, out in outs.items():
            self.export(kind, out)
            self.assertEqual(commits(kind, out)[-1][1]["proof"]["group_id"], "11" * 16)
        for group_id, words in (("22" * 16, "it had group_id 1111"), ("11" * 16, "it had ")):
            self.ledger = Ledger(self.mktemp())
            self.addCleanup(self.ledger.close)
            set_group(self.ledger.path, group_id)
            self.ledger.fill(20, seed=2)
            self.ledger.commit()
            for kind, out in outs.items():
                said = self.refusal(kind, out)
                self.assertIn("is the export of another log: before offset 10", said)
                self.assertIn(words, said)
        self.ledger = mine
        for kind, out in outs.items():
            self.assertEqual(self.export(kind, out), 0)
            self.assertIn("was begun at offset 0", self.refusal(kind, out, startingOffsets=2))


class StateTests(SynchronousTestCase):
    """The property of a commit."""

    def test_both_ways(self) -> None:
        """As it was written."""
        state = TableState(first=3, next=9, rows=5, proof={"offset": 8, "group_id": "g"}, source="dledger",
                           columns=("index", "body"))
        self.assertEqual(TableState.of_json(state.to_json(), Path("t")), state)
        self.assertEqual(json.loads(state.to_json())["version"], 1)
        self.assertEqual(STATE, "dledger-export")


class FollowTests(TableCase):
    """Tables that are maintained while they grow."""

    def test_maintained(self) -> None:
        """Compaction and expiry come between commits, with a part open: each row is there once."""
        for kind in KINDS:
            with self.subTest(kind=kind):
                out = self.out(kind)
                given = {"to": [kind], "compact": ["yes"], "expire_snapshots": ["1"], "max_delay": ["5"],
                         "decode": ["json"]}
                plan = ExportPlan.of(self.ledger.path, out, given, follows=True)
                said: list[str] = []
                with plan.open() as run:
                    run.on_maintained = said.append
                    now_ms = 0
                    for number in range(9):
                        self.ledger.append([b'{"f%d": 1}' % number])
                        self.ledger.commit()
                        now_ms += 10_000 if number % 3 else MAINTAIN_MS
                        run.turn(now_ms)
                        run.turn(now_ms + 1)
                    self.assertEqual(run.status(now_ms).errors, 0)
                    run.end()
                self.assertEqual(len(said), 2)
                self.assertRegex(said[0], r"^compacted \d+ files into \d+; deleted \d+ files")
                self.assertRegex(said[1], r"^compacted \d+ files into 1$")
                self.assertLess(len(files(kind, out)), 5)
                expected = plain_rows(self.ledger.path)
                table = read_table(kind, out)
                self.assertEqual(rows(table, "index"), [row[:1] for row in expected])
                self.assertEqual(rows(table, "body"), [row[7:] for row in expected])

    def test_ended(self) -> None:
        """Delays are commit intervals: no row waits longer for its commit, full parts do not wait."""
        out = self.out("delta")
        plan = ExportPlan.of(
            self.ledger.path, out, {"to": ["delta"], "max_delay": ["5"], "part_bytes": ["300"]}, follows=True
        )
        seen = []
        with plan.open() as run:
            for now_ms, size in ((0, 10), (4_999, 10), (5_000, 10), (6_000, 400), (7_000, 10), (12_000, 10)):
                self.ledger.append([b"x" * size])
                self.ledger.commit()
                run.turn(now_ms)
                seen.append(run.status(now_ms).commits)
        self.assertEqual(seen, [0, 0, 1, 2, 2, 3])
