# -*- test-case-name: tests.spark.test_topics -*-
"""C{--table-per topic}: each message once, in the table of its topic, from one pass over the log."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from deltalake import DeltaTable
from twisted.trial.unittest import SynchronousTestCase

from dledger.spark.export import topics
from dledger.spark.export.engine import ExportPlan
from dledger.spark.export.exporter import ExportSettings, ExportSource
from dledger.spark.export.files import ExportError
from dledger.spark.export.follow import MAINTAIN_MS
from dledger.spark.export.topics import TopicsExporter, folder_of, topic_of
from dledger.spark.formats.option_texts import OptionError
from dledger.spark.ledger.directory import DirectoryLog
from protocols.wire.rocketmq.message import decode_message, encode_message, make_message
from tests.spark.ledgers import Ledger, plain_rows
from tests.spark.tables import KINDS, KillCase, Killed, commits, iceberg, read_table
from tests.spark.test_commit_log import BrokerLog
from tests.spark.test_messages import append_messages

FILES = ""
TOPICS = ("orders", "%RETRY%billing", "_Ünder", ".", "a/b~c")


class NameTests(SynchronousTestCase):
    """Names of folders."""

    def test_names(self) -> None:
        """They are safe, and the topic is found again."""
        for topic, folder in (
            ("orders-1_x.y", "orders-1_x.y"), ("%RETRY%g", "~25RETRY~25g"), ("", "~"), ("~", "~7E"),
            (".", "~2E"), ("..", "~2E."), ("_pending", "~5Fpending"), ("a/b\0", "a~2Fb~00"), ("é", "~C3~A9"),
        ):
            self.assertEqual(folder_of(topic), folder)
            self.assertEqual(topic_of(folder), topic)
        for folder in ("é", "a~2fb", "~41", "~FF", "~~"):
            self.assertIsNone(topic_of(folder))

    def test_long(self) -> None:
        """A longer topic has a digest, so two have two folders."""
        long = [folder_of("%" * 30_000), folder_of("%" * 30_000 + "x")]
        self.assertNotEqual(*long)
        self.assertEqual({len(folder) for folder in long}, {202})
        self.assertEqual([topic_of(folder) for folder in long], [None, None])


class TopicCase(KillCase):
    """Messages in a ledger."""

    def setUp(self) -> None:
        """With room for messages."""
        super().setUp()
        self.ledger.close()
        self.ledger = Ledger(self.mktemp(), mapped_file_size_for_entry_data=4_000)
        self.addCleanup(self.ledger.close)
        self.ledger.append([b""])
        self.sent = 0

    def send(self, names: Iterable[str]) -> None:
        """A message to each of these topics, committed; bodies are JSON."""
        sent = list(names)

        def make(at: int, number: int) -> bytes:
            body = json.dumps({"n": self.sent + number, f"only-{len(sent[number])}": "x"}).encode()
            return encode_message(make_message(
                sent[number], body, properties={"TAGS": "t"}, physical_offset=at, store_timestamp=1,
                version=2 if len(sent[number]) > 100 else 1,
            ))

        append_messages(self.ledger, len(sent), make)
        self.sent += len(sent)
        self.ledger.commit()

    def exporter(self, kind: str, out: Path, **more: Any) -> TopicsExporter:  # type: ignore[override]
        """Open the export."""
        fetch = more.pop("fetch_bytes", 10**6)
        settings = ExportSettings(**{"to": kind, "table_per": "topic", "columns": ("body",), **more})
        given = {"path": self.ledger.path, "format": "rocketmq", "fetchBytes": str(fetch)}
        source = ExportSource.of(given, settings.columns, settings.partition_by, needed=settings.needed)
        return TopicsExporter.open(out, source, settings)

    def run_once(self, kind: str, out: Path, **more: Any) -> int:
        """To the end; rows."""
        with self.exporter(kind, out, **more) as exporter:
            exporter.step(0, is_last=True)
            return exporter.progress.rows

    def expected(self) -> dict[str, list[bytes]]:
        """The bodies of each topic, by the plain reader and the codec."""
        found: dict[str, list[bytes]] = {}
        for row in plain_rows(self.ledger.path):
            if row[7]:
                message = decode_message(row[7])
                found.setdefault(message.topic, []).append(message.body)
        return found

    def found(self, kind: str, out: Path) -> dict[str, list[bytes]]:
        """The same from the tables."""
        found = {}
        for name in sorted(os.listdir(out)):
            if name.startswith("_"):
                continue
            topic = topic_of(name)
            assert topic is not None
            if kind:
                bodies = self.bodies(kind, out / name)
            else:
                bodies = [body for path in sorted((out / name).rglob("*.parquet"))
                          for body in pq.read_table(path).column("body").to_pylist()]
            found[topic] = bodies
        return found

    def bodies(self, kind: str, out: Path) -> list[bytes]:
        """Of one table, in the order of the log."""
        table = (
            DeltaTable(out).to_pyarrow_table() if kind == "delta" else iceberg(out).scan().to_arrow()
        )
        return sorted(table.column("body").to_pylist(), key=lambda body: json.loads(body)["n"])


class TopicTests(TopicCase):
    """Runs."""

    def test_each_topic(self) -> None:
        """A table for each topic, also for one that comes later; over runs each row once, ranges join."""
        for kind in (*KINDS, FILES):
            with self.subTest(kind=kind):
                out = self.out(kind)
                self.send(TOPICS[:3] * 5)
                self.run_once(kind, out, columns=())
                self.send([*TOPICS, *TOPICS])
                self.assertEqual(self.run_once(kind, out, columns=()), 10)
                self.assertEqual(self.run_once(kind, out, columns=()), 0)
                self.assertEqual(self.found(kind, out), self.expected())
                if kind:
                    edges = [tuple(map(int, text.split("-"))) for text, _ in commits(kind, out / "orders")]
                    self.assertGreater(len(edges), 1)
                    self.assertTrue(all(a[1] + 1 == b[0] for a, b in zip(edges, edges[1:], strict=False)))

    def test_follows(self) -> None:
        """Parts end together after a delay, and at the end; each table is maintained."""
        out = self.out("delta")
        given = {"table_per": ["topic"], "to": ["delta"], "option": ["format=rocketmq"], "max_delay": ["5"],
                 "compact": ["yes"]}
        said: list[str] = []
        with ExportPlan.of(self.ledger.path, out, given, follows=True).open() as run:
            run.on_maintained = said.append
            for now_ms, names in ((0, TOPICS[:2]), (5_000, TOPICS), (MAINTAIN_MS, TOPICS[2:])):
                self.send(names)
                run.turn(now_ms)
            while run.turn(now_ms) == 1:
                pass
            self.assertEqual(run.status(now_ms).lag_entries, 3)
            self.send(TOPICS)
            run.turn(now_ms + 1)
            run.end()
        self.assertEqual(self.found("delta", out), self.expected())
        self.assertEqual(len(said), len(TOPICS))

    def test_commit_log(self) -> None:
        """Offsets of a broker's store are bytes."""
        store = Path(self.mktemp())
        log = BrokerLog(f"{store}/commitlog")
        out = self.out("delta")
        for count in (20, 60):
            for number in range(count):
                log.append(number)
            given = {"table_per": ["topic"], "to": ["delta"], "option": ["format=rocketmq"],
                     "part_bytes": ["3000"]}
            with ExportPlan.of(str(store), out, given, follows=False).open() as run:
                run.turn(0)
        found: dict[str, list[int]] = {}
        for row in log.rows():
            found.setdefault(row[2], []).append(row[5])
        self.assertEqual(found, {
            topic_of(name): sorted(read_table("delta", out / name).column("physicalOffset").to_pylist())
            for name in os.listdir(out) if not name.startswith("_")
        })
        self.assertGreater(len(found), 3)

    def test_one_pass(self) -> None:
        """The log is read once, whatever the number of topics."""
        read = []
        chunks = DirectoryLog.chunks

        def counted(log: DirectoryLog, begin: int, end: int, *, with_data: bool) -> Any:
            read.append((begin, end))
            return chunks(log, begin, end, with_data=with_data)

        self.patch(DirectoryLog, "chunks", counted)
        self.send(f"t{number}" for number in range(20))
        self.run_once(FILES, self.out(FILES))
        self.assertEqual(read, [(0, 21)])

    def test_decoded(self) -> None:
        """Each table has the fields of its own messages."""
        self.send(TOPICS * 2)
        for kind in KINDS:
            with self.subTest(kind=kind):
                out = self.out(kind)
                self.run_once(kind, out, decode="json", columns=("index",))
                for topic in TOPICS:
                    table = read_table(kind, out / folder_of(topic))
                    self.assertEqual(table.schema.names, ["index", "_rescued", "n", f"only-{len(topic)}"])
                    self.assertEqual(table.num_rows, 2)

    def test_refusals(self) -> None:
        """What would mix tables, or give rows that have none."""
        self.send(TOPICS)
        out = self.out("delta")
        self.run_once("delta", out)
        for more, part in (
            ({"kind": FILES}, "begun with to=delta"),
            ({"kind": "delta", "table_per": ""}, "begun with table_per"),
        ):
            with self.assertRaisesRegex(ExportError, part):
                self.run_once(**{"out": out, **more})
        os.rename(out / "orders", out / "x")
        os.rename(out / "~2E", out / "orders")
        self.send(["orders"])
        with self.assertRaisesRegex(ExportError, r"begun with format=rocketmq of topic \., and now"):
            self.run_once("delta", out)
        with self.assertRaisesRegex(OptionError, "which is there with -o format=rocketmq"):
            ExportPlan.of(self.ledger.path, self.out(""), {"table_per": ["topic"]}, follows=False)
        with self.assertRaisesRegex(ExportError, "--table-per topic needs a directory"):
            self.exporter("delta", "s3://bucket/log")  # type: ignore[arg-type]
        given = {"table_per": ["topic"], "option": ["format=rocketmq", "includeInternal=true"]}
        with self.assertRaisesRegex(ExportError, "rows without a topic"):
            ExportPlan.of(self.ledger.path, self.out(""), given, follows=False).open()

    def test_too_many(self) -> None:
        """One topic more than there may be ends the export, and its rows are not lost to a later one."""
        self.patch(topics, "TOPICS_MAX", 3)
        out = self.out(FILES)
        self.send(TOPICS[:3])
        self.run_once(FILES, out)
        self.send(TOPICS[:4])
        with self.assertRaisesRegex(ExportError, r"has tables of 3 topics, and '\.' is one more"):
            self.run_once(FILES, out)
        self.patch(topics, "TOPICS_MAX", 4)
        self.run_once(FILES, out)
        self.assertEqual(self.found(FILES, out), self.expected())


class TopicKillTests(TopicCase):
    """Runs that end anywhere."""

    def test_kills(self) -> None:
        """Each row is there once, in all tables together."""
        kills = int(os.environ.get("DLEDGER_TABLE_KILLS", "50")) // 2
        chance = random.Random(int(os.environ.get("DLEDGER_TABLE_SEED", "1")))
        for kind in (*KINDS, FILES):
            out, count = self.out(kind), 0
            self.killed_at.clear()
            while count < kills:
                exporter = None
                try:
                    self.left = chance.randrange(1, 6 if count < 5 else 40)
                    exporter = self.exporter(kind, out, part_bytes=chance.choice((1, 2**20)),
                                             fetch_bytes=chance.choice((1, 2_000)))
                    exporter.step(0, is_last=True)
                except Killed:
                    count += 1
                    self.killed(exporter)
                else:
                    exporter.close()
                    self.left = 0
                    self.send(chance.choices(TOPICS, k=chance.randrange(1, 6)))
            self.left = 0
            self.run_once(kind, out)
            self.assertEqual(self.found(kind, out), self.expected())
