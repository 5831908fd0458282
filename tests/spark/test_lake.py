# -*- test-case-name: tests.spark.test_lake -*-
"""
Files and tables on S3, as moto's server plays it, and Iceberg's catalogs: from end to end, with requests that
fail.
"""

from __future__ import annotations

import errno
import io
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
import pyarrow.parquet as pq
from botocore.exceptions import NoCredentialsError
from click.testing import CliRunner
from deltalake import DeltaTable
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.fsspec import FsspecFileIO
from twisted.python.usage import UsageError
from twisted.trial.unittest import SynchronousTestCase

from dledger.cli.main import cli
from dledger.daemons.data.export import Options
from dledger.spark.export.delta_table import split_options
from dledger.spark.export.exporter import Exporter, ExportSettings, ExportSource
from dledger.spark.export.files import ExportError
from dledger.spark.export.iceberg_catalog import StoreFileIO
from dledger.spark.export.store_files import StoreExport
from dledger.spark.export.tables import TableExporter, open_export
from protocols.wire.rocketmq.message import encode_message, make_message
from tests.spark.ledgers import Ledger, plain_rows
from tests.spark.rest_catalog import RestCatalogServer
from tests.spark.tables import rows
from tests.spark.test_messages import append_messages
from tests.storage.archive_store import AFTER, BEFORE
from tests.storage.s3_server import MISSING, S3Server, shared_server

FILES, DELTA, ICEBERG = "files", "delta", "iceberg"
KINDS = (FILES, DELTA, ICEBERG)


class LakeCase(SynchronousTestCase):
    """
    A ledger, S3, and a REST catalog.

    @cvar entries: in the ledger.
    """

    entries = 20
    if MISSING:
        skip = MISSING

    def setUp(self) -> None:
        """Small segments; an empty bucket, no tables."""
        self.server = shared_server()
        self.rest = RestCatalogServer(FsspecFileIO({
            "s3.endpoint": self.server.plain_url, "s3.access-key-id": "x", "s3.secret-access-key": "y",
            "s3.region": "us-east-1",
        }))
        self.addCleanup(self.rest.stop)
        self.ledger = Ledger(self.mktemp())
        self.addCleanup(self.ledger.close)
        self.fill(self.entries)
        self.fresh()

    def fill(self, count: int) -> None:
        """More committed entries."""
        self.ledger.fill(count)
        self.ledger.commit()

    def fresh(self) -> None:
        """Nothing is anywhere."""
        self.server.reset()
        self.rest.forget()

    def settings(self, kind: str, **more: Any) -> ExportSettings:
        """With the options of the store, and the catalog."""
        return ExportSettings(
            to="" if kind == FILES else kind, store_options=self.server.options,
            catalog=self.rest.url if kind == ICEBERG else "", **more,
        )

    def exporter(
        self, kind: str, out: str, settings: ExportSettings | None = None, **options: str
    ) -> Exporter:
        """Open an export of the ledger."""
        settings = settings or self.settings(kind)
        source = ExportSource.of({"path": self.ledger.path, **options}, (), settings.partition_by)
        return open_export(out, source, settings)

    def export(self, kind: str, out: str, settings: ExportSettings | None = None) -> int:
        """Run it to the end; rows written."""
        with self.exporter(kind, out, settings) as exporter:
            exporter.step(0, is_last=True)
            return exporter.progress.rows

    def table(self, kind: str, out: str) -> pa.Table:
        """All rows, by the package of the table, in the order of the log."""
        if kind == FILES:
            keys = [key for key in self.server.keys(f"{out.removeprefix('s3://bucket/')}/part-")]
            found = pa.concat_tables(pq.read_table(io.BytesIO(self.server.read(key))) for key in keys)
        elif kind == DELTA:
            found = self.delta(out).to_pyarrow_table()
        else:
            found = self.catalog().load_table("dledger.log").scan().to_arrow()
        return found.sort_by("index")

    def delta(self, out: str) -> DeltaTable:
        """The table."""
        return DeltaTable(out, storage_options={
            "aws_endpoint_url": self.server.plain_url, "aws_access_key_id": "x", "aws_secret_access_key": "y",
            "aws_allow_http": "true", "aws_region": "us-east-1",
        })

    def catalog(self) -> RestCatalog:
        """Another client."""
        return RestCatalog("other", **{
            "uri": self.rest.url, "s3.endpoint": self.server.plain_url, "s3.access-key-id": "x",
            "s3.secret-access-key": "y", "s3.region": "us-east-1",
        })

    def assertOnce(self, kind: str, out: str, what: object = "") -> None:
        """After another run each row is there once."""
        self.export(kind, out)
        self.assertEqual(rows(self.table(kind, out)), plain_rows(self.ledger.path), what)


class EndTests(LakeCase):
    """As a user runs it."""

    def run_command(self, *words: str) -> tuple[int, str]:
        """With the options of the store. @return: exit status, and what was said."""
        given = [f"{name}={json.dumps(value) if isinstance(value, dict) else value}"
                 for name, value in self.server.options.items()]
        options = [word for one in given for word in ("--store-option", one)]
        done = CliRunner().invoke(cli, ["export", self.ledger.path, *words, *options])
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exc_info
        return done.exit_code, done.output

    def test_every_kind(self) -> None:
        """Value by value, continued, nothing new; then compacted, and old files deleted."""
        for kind in KINDS:
            with self.subTest(kind=kind):
                out = f"s3://bucket/{kind}/x"
                words = [out, *(("--to", kind) if kind != FILES else ())]
                if kind == ICEBERG:
                    words += ["--catalog", self.rest.url]
                for _ in range(2):
                    status, said = self.run_command(*words)
                    self.assertEqual(status, 0, said)
                    self.assertIn(f"{out} holds {self.ledger.store.ledger_end_index + 1}", said)
                    self.assertEqual(rows(self.table(kind, out)), plain_rows(self.ledger.path))
                    self.fill(10)
                self.assertIn("exported 10 rows", self.run_command(*words)[1])
                self.assertIn("nothing new", self.run_command(*words)[1])
                if kind != FILES:
                    status, said = self.run_command(*words, "--compact", "--expire-snapshots", "1")
                    self.assertEqual(status, 0, said)
                    self.assertRegex(said, r"compacted \d+ files into 1; deleted 0 files")
                    self.assertEqual(rows(self.table(kind, out)), plain_rows(self.ledger.path))

    def test_partitions(self) -> None:
        """Folders whose names are quoted, in files and tables; then compacted."""
        def make(at: int, number: int) -> bytes:
            return encode_message(make_message(("a/b %x=é", "T")[number % 2], b"x", physical_offset=at))

        self.ledger = Ledger(self.mktemp())
        self.addCleanup(self.ledger.close)
        append_messages(self.ledger, 4, make)
        self.ledger.commit()
        wanted = ["T", "T", "a/b %x=é", "a/b %x=é"]
        for kind in KINDS:
            with self.subTest(kind=kind):
                out = f"s3://bucket/parts-{kind}"
                settings = self.settings(kind, partition_by=("topic",))
                with self.exporter(kind, out, settings, format="rocketmq") as exporter:
                    exporter.step(0, is_last=True)
                    if kind == FILES:
                        keys = self.server.keys(f"parts-{kind}/topic=")
                        found = [key.split("/")[1] for key in keys]
                        self.assertEqual(found, ["topic=T", "topic=a%2Fb %25x%3D%C3%A9"])
                        continue
                    self.assertEqual(sorted(self.topics(kind, out)), wanted)
                    assert isinstance(exporter, TableExporter)
                    exporter.table.maintain(compacts=True, expire_days=0, now_s=time.time() + 60)
                self.assertEqual(sorted(self.topics(kind, out)), wanted)

    def topics(self, kind: str, out: str) -> list[str]:
        """Of all rows."""
        table = self.delta(out).to_pyarrow_table() if kind == DELTA else \
            self.catalog().load_table("dledger.log").scan().to_arrow()
        return [str(topic) for topic in table.column("topic").to_pylist()]

    def test_expired(self) -> None:
        """Files that no version needs are deleted, and no others."""
        for kind in (DELTA, ICEBERG):
            self.export(kind, "s3://bucket/out")
            with self.exporter(kind, "s3://bucket/out") as exporter:
                assert isinstance(exporter, TableExporter)
                self.server.s3.put_object(Bucket="bucket", Key="out/data/README", Body=b"")
                said = exporter.table.maintain(compacts=True, expire_days=0, now_s=time.time() + 60)
            self.assertRegex(said, r"compacted \d+ files into 1; deleted [1-9]\d* files")
            self.assertEqual(len([key for key in self.server.keys("out/") if key.endswith(".parquet")]), 1)
            self.assertEqual("out/data/README" in self.server.keys("out/"), kind == ICEBERG)
            self.assertOnce(kind, "s3://bucket/out")
            self.fresh()

    def test_files_of_others(self) -> None:
        """No table is made beside them, and those that came later outside of its folders stay."""
        put = self.server.s3.put_object
        put(Bucket="bucket", Key="out/sales.parquet", Body=b"")
        for kind in (DELTA, ICEBERG):
            said = str(self.assertRaises(ExportError, self.export, kind, "s3://bucket/out"))
            self.assertIn("'sales.parquet' is in it", said)
        self.assertEqual(self.server.keys(), ["out/sales.parquet"])
        self.fresh()
        put(Bucket="bucket", Key="out/metadata/00000-left-by-a-kill.metadata.json", Body=b"")
        self.export(ICEBERG, "s3://bucket/out")
        put(Bucket="bucket", Key="out/sales/2026.parquet", Body=b"")
        other = attrs.evolve(self.settings(ICEBERG), table="logs.other")
        self.assertIn("'data' is in it", str(self.assertRaises(
            ExportError, self.export, ICEBERG, "s3://bucket/out", other)))
        with self.exporter(ICEBERG, "s3://bucket/out") as exporter:
            assert isinstance(exporter, TableExporter)
            exporter.table.maintain(compacts=True, expire_days=0, now_s=time.time() + 60)
        self.assertIn("out/sales/2026.parquet", self.server.keys())
        self.assertNotIn("out/metadata/00000-left-by-a-kill.metadata.json", self.server.keys())

    def test_sidecar(self) -> None:
        """The service has the same options, and writes the same files."""
        options = Options()
        given = [f"{name}={json.dumps(value) if isinstance(value, dict) else value}"
                 for name, value in self.server.options.items()]
        words = ["--source", self.ledger.path, "--out", "s3://bucket/side", "--max-delay", "1"]
        options.parseOptions([*words, *(word for one in given for word in ("--store-option", one))])
        assert options.plan is not None
        run = options.plan.open()
        run.turn(0)
        run.end()
        run.close()
        self.assertEqual(rows(self.table(FILES, "s3://bucket/side")), plain_rows(self.ledger.path))
        self.assertIn("--catalog needs --to iceberg", str(self.assertRaises(
            UsageError, Options().parseOptions, [*words, "--catalog", "x", "--catalog-option", "a=b"])))

    def test_refused(self) -> None:
        """Each with the words for what is allowed."""
        for words, part in (
            (("s3://absent/x",), "s3://absent/x cannot be used: The specified bucket does not exist"),
            (("s3://absent/x", "--to", "delta"), "The specified bucket does not exist"),
            (("s3://bucket/x", "--to", "delta", "--store-option", "default_block_size=9"),
             "--store-option default_block_size: the package deltalake, which commits, has no such option"),
            (("s3://bucket/x", "--to", "iceberg"), "an Iceberg table at a URL needs --catalog"),
            (("s3://bucket/x", "--to", "iceberg", "--catalog", "nope"), "nope has no uri; allowed are"),
            (("s3://bucket/x", "--to", "iceberg", "--catalog", "nodb+x://h/d"), "nodb"),
            (("s3://bucket/x", "--table", "a.b"), "--table and --catalog-option need --catalog"),
            (("s3://bucket/x", "--to", "iceberg", "--catalog", "http://127.0.0.1:1"), "cannot be read: "),
            (("s3://bucket/x", "--to", "iceberg", "--catalog", "x", "--table", "b"), "write namespace.name"),
            (("s3://bucket/x", "--engine", "spark"), "--engine spark writes to a directory"),
        ):
            status, said = self.run_command(*words)
            self.assertNotEqual(status, 0)
            self.assertIn(part, said)
            self.assertNotIn("Traceback", said)
        self.assertEqual(self.server.keys(), [])

    def test_driver_error(self) -> None:
        """Of the store's package, as without credentials: a sentence, too."""
        def refuse(*_words: object) -> None:
            raise NoCredentialsError

        self.patch(StoreFileIO, "_get_fs", refuse)
        settings = attrs.evolve(self.settings(ICEBERG), catalog=f"sqlite:///{os.path.abspath('keyless.db')}")
        said = str(self.assertRaises(ExportError, self.export, ICEBERG, "s3://bucket/x", settings))
        self.assertIn("s3://bucket/x cannot be made: NoCredentialsError: Unable to locate credentials", said)

    def test_full_disk(self) -> None:
        """It is that of this machine, not the store."""
        def full(*_words: object) -> None:
            raise OSError(errno.ENOSPC, "no space")

        self.patch(StoreExport, "stage", full)
        status, said = self.run_command("s3://bucket/x")
        self.assertEqual(status, 1)
        self.assertIn(f"Parts wait in {tempfile.gettempdir()}, which is full", said)

    def test_options_of_delta(self) -> None:
        """Those of s3fs have other names there; its own are not given to s3fs."""
        theirs, ours = split_options("s3://b/x", {
            "key": "k", "anon": True, "client_kwargs": {"region_name": "r"}, "aws_x": "1",
            "endpoint_url": "http://h",
        })
        self.assertEqual(theirs, {
            "aws_access_key_id": "k", "aws_skip_signature": "true", "aws_region": "r", "aws_x": "1",
            "aws_endpoint_url": "http://h", "aws_allow_http": "true",
        })
        self.assertNotIn("aws_x", ours)
        self.assertEqual(split_options("gs://b/x", {"token": "t", "google_x": "1"}),
                         ({"google_x": "1"}, {"token": "t"}))


class CatalogTests(LakeCase):
    """Catalogs that others use, too."""

    def test_sql(self) -> None:
        """A data base; the table in a directory, and in a store."""
        place = os.path.abspath(self.mktemp())
        os.mkdir(place)
        uri = f"sqlite:///{place}/c.db"
        for table, out in (("a.here", f"{place}/here"), ("a.there", "s3://bucket/there")):
            settings = attrs.evolve(self.settings(ICEBERG), catalog=uri, table=table)
            if table == "a.here":
                settings = attrs.evolve(settings, store_options={})
            self.assertEqual(self.export(ICEBERG, out, settings), 20)
            self.assertEqual(self.export(ICEBERG, out, settings), 0)
            other = SqlCatalog("dledger", **{"uri": uri, "s3.endpoint": self.server.plain_url,
                                             "s3.access-key-id": "x", "s3.secret-access-key": "y",
                                             "s3.region": "us-east-1"})
            found = other.load_table(table)
            self.assertEqual(rows(found.scan().to_arrow().sort_by("index")), plain_rows(self.ledger.path))
            other.close()
        self.assertIn("_lock", os.listdir(f"{place}/here"))
        said = str(self.assertRaises(ExportError, self.export, ICEBERG, "s3://bucket/elsewhere", settings))
        self.assertIn("the catalog has the table a.there at s3://bucket/there: name that as OUT", said)

    def test_configuration(self) -> None:
        """A name, and secrets, in PyIceberg's own configuration; its options for the store without ours."""
        place = self.mktemp()
        os.mkdir(place)
        Path(place, ".pyiceberg.yaml").write_text(
            f"catalog:\n  prod:\n    uri: {self.rest.url}\n    s3.endpoint: {self.server.url}\n"
            "    s3.access-key-id: x\n    s3.secret-access-key: y\n    s3.region: us-east-1\n"
        )
        self.patch(os, "environ", {**os.environ, "PYICEBERG_HOME": os.path.abspath(place)})
        settings = attrs.evolve(self.settings(ICEBERG), catalog="prod", store_options={})
        self.assertEqual(self.export(ICEBERG, "s3://bucket/out", settings), 20)
        self.assertEqual(rows(self.table(ICEBERG, "s3://bucket/out")), plain_rows(self.ledger.path))

    def test_deadline(self) -> None:
        """A REST catalog is asked with a time limit."""
        seen = []
        from requests.adapters import HTTPAdapter

        real = HTTPAdapter.send

        def send(adapter: HTTPAdapter, *words: Any, **more: Any) -> Any:
            seen.append(more["timeout"])
            return real(adapter, *words, **more)

        self.patch(HTTPAdapter, "send", send)
        self.export(ICEBERG, "s3://bucket/out")
        self.assertEqual(set(seen), {60.0})


class TwoTests(LakeCase):
    """Two exports of one log to one table, started on two machines."""

    def test_one_wins(self) -> None:
        """Both have seen the same version; the second commit is refused, and its rows are there once."""
        for kind in (DELTA, ICEBERG):
            with self.subTest(kind=kind):
                out = f"s3://bucket/two-{kind}"
                self.export(kind, out)
                self.fill(5)
                with self.exporter(kind, out, attrs.evolve(self.settings(kind), part_bytes=1)) as first:
                    self.assertEqual(self.export(kind, out), 5)
                    said = str(self.assertRaises(ExportError, first.step, 0, is_last=True))
                self.assertIn(f"another export writes to the {kind.title()} table {out}", said)
                self.assertOnce(kind, out)

    def test_other_begins(self) -> None:
        """Another export makes the table, and writes to it, while this one makes it."""
        for kind in (DELTA, ICEBERG):
            out = f"s3://bucket/begun-{kind}"
            with self.exporter(kind, out) as first:
                self.export(kind, out)
                said = str(self.assertRaises(ExportError, first.step, 0, is_last=True))
            self.assertIn(f"another export writes to the {kind.title()} table {out}: it has come to "
                          "offset 20, this one to 0", said)
            self.assertOnce(kind, out)

    def test_at_the_same_moment(self) -> None:
        """The pointer of a catalog moves between the check of a commit and its effect."""
        self.export(ICEBERG, "s3://bucket/out")
        self.fill(5)
        overtaken = []

        def overtake() -> None:
            self.rest.before_commit = lambda: None
            overtaken.append(self.export(ICEBERG, "s3://bucket/out"))

        self.rest.before_commit = overtake
        said = str(self.assertRaises(ExportError, self.export, ICEBERG, "s3://bucket/out"))
        self.assertIn("another export writes to the Iceberg table", said)
        self.assertEqual(overtaken, [5])
        self.assertOnce(ICEBERG, "s3://bucket/out")

    def test_both_make_the_table(self) -> None:
        """One finds that the other has made it meanwhile."""
        for kind in (DELTA, ICEBERG):
            with self.subTest(kind=kind):
                out = f"s3://bucket/made-{kind}"
                with self.exporter(kind, out) as first:
                    assert isinstance(first, TableExporter)
                    with self.exporter(kind, out) as second:
                        assert isinstance(second, TableExporter)
                        second.table.begin(0)
                    load, seen = first.table.load, []

                    def late(load: Callable[[], bool] = load, seen: list[int] = seen) -> bool:
                        seen.append(1)
                        return len(seen) > 1 and load()

                    self.patch(first.table, "load", late)
                    first.table.begin(0)
                    self.assertEqual(len(seen), 2)
                self.assertOnce(kind, out)

    def test_names(self) -> None:
        """No run of an export into Delta writes to a file of another run."""
        settings = attrs.evolve(self.settings(DELTA), compression="none")
        self.export(DELTA, "s3://bucket/out")
        self.fill(5)
        with self.exporter(DELTA, "s3://bucket/out", settings) as first:
            self.export(DELTA, "s3://bucket/out")
            self.assertRaises(ExportError, first.step, 0, is_last=True)
        self.assertOnce(DELTA, "s3://bucket/out")
        added = pa.table(self.delta("s3://bucket/out").get_add_actions())
        for path, size in zip(added.column("path").to_pylist(), added.column("size_bytes").to_pylist(),
                              strict=True):
            self.assertEqual(len(self.server.read(f"out/{path}")), size, path)


class FaultTests(LakeCase):
    """
    Each request that changes something fails, before and after its effect; then the program dies, or goes on.

    DLEDGER_LAKE_FAULTS=all also has those that only read fail, and all of maintenance.
    """

    entries = 3
    is_all = os.environ.get("DLEDGER_LAKE_FAULTS") == "all"

    def play(self, kind: str, owner: S3Server | RestCatalogServer, ways: tuple[tuple[str, bool], ...]) -> int:
        """@param ways: fault, and whether the program dies. @return: the number of requests."""
        out = "s3://bucket/out"
        self.fresh()
        self.export(kind, out)
        self.fresh()
        self.order(owner, {}, kills=False)
        self.export(kind, out)
        calls = self.revive(owner)
        chosen = [number for number, call in enumerate(calls)
                  if not call.startswith(("GET", "HEAD")) or self.is_all]
        for number in chosen:
            for fault, kills in ways:
                self.fresh()
                self.order(owner, {number: fault}, kills=kills)
                try:
                    self.export(kind, out)
                except (ExportError, OSError):
                    pass
                self.revive(owner)
                self.assertOnce(kind, out, (number, calls[number], fault, kills))
        return len(chosen)

    def test_maintenance(self) -> None:
        """Compaction and expiry die after some of their requests: the rows are the same."""
        for kind, least in ((DELTA, 3), (ICEBERG, 6)):
            calls = self.maintain(kind, -1)
            chosen = [number for number, call in enumerate(calls) if not call.startswith(("GET", "HEAD"))]
            self.assertGreaterEqual(len(chosen), least)
            for number in chosen[:: 1 if self.is_all else 4]:
                self.maintain(kind, number)
                self.assertOnce(kind, "s3://bucket/out", (kind, number, calls[number]))

    def maintain(self, kind: str, number: int) -> list[str]:
        """Of a table with several small files. @return: the requests of it."""
        self.fresh()
        out = "s3://bucket/out"
        self.export(kind, out, attrs.evolve(self.settings(kind), part_bytes=1))
        with self.exporter(kind, out) as exporter:
            assert isinstance(exporter, TableExporter)
            self.server.fail({number: AFTER}, kills=True)
            try:
                exporter.table.maintain(compacts=True, expire_days=0, now_s=time.time() + 60)
            except ExportError:
                self.assertGreaterEqual(number, 0)
            return self.server.revive()

    def order(self, owner: S3Server | RestCatalogServer, faults: dict[int, str], *, kills: bool) -> None:
        """From now on."""
        if isinstance(owner, S3Server):
            owner.fail(faults, kills=kills)
        else:
            owner.calls.clear()
            owner.faults, owner.kills = faults, kills

    def revive(self, owner: S3Server | RestCatalogServer) -> list[str]:
        """@return: the requests since L{order}."""
        if isinstance(owner, S3Server):
            return owner.revive()
        owner.revive()
        return list(owner.calls)

    def test_store(self) -> None:
        """Requests to S3."""
        for kind, least in ((FILES, 10), (DELTA, 3), (ICEBERG, 3)):
            with self.subTest(kind=kind):
                # (Files have more faults in tests.spark.test_export_stores.)
                ways = ((AFTER, True), (BEFORE, False))[:1 if kind == FILES else 2]
                self.assertGreaterEqual(self.play(kind, self.server, ways), least)

    def test_catalog(self) -> None:
        """Requests to a REST catalog."""
        ways = ((AFTER, True), (BEFORE, False), (AFTER, False))
        self.assertGreaterEqual(self.play(ICEBERG, self.rest, ways), 3)
