# -*- test-case-name: tests.storage.test_s3 -*-
"""
An archive on S3, as L{tests.storage.s3_server} plays it; skipped without its packages.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from typing import Any

from dledger.base.disk.disk import OsDisk
from dledger.storage.backups.place import RemotePlace, opened_place
from dledger.storage.store.file_store import FileStore
from dledger.values.ledger.config import DLedgerConfig
from tests.commands.fakes import CliCase
from tests.storage.s3_server import MISSING, shared_server

#: Of a data file: an upload of several parts, which S3 wants to have five MiB at least.
SEGMENT_BYTES = 12 * 1024 * 1024


class S3Tests(CliCase):
    """The command, from end to end."""

    if MISSING:
        skip = MISSING

    def setUp(self) -> None:
        """A server with a bucket, and a member with two closed segments."""
        super().setUp()
        server = shared_server()
        server.reset()
        self.s3 = server.s3
        self.options = ("-o", f"endpoint_url={server.url}", "-o", "default_block_size=5242880", "-o", "key=x",
                        "-o", "secret=y")
        self.config = DLedgerConfig(
            store_base_dir=self.mktemp(), bootstrap=True, mapped_file_size_for_entry_data=SEGMENT_BYTES,
            mapped_file_size_for_entry_index=32 * 4096,
        )
        self.member = FileStore.open(self.config, OsDisk())
        self.addCleanup(self.member.abandon)
        self.append(30)

    def append(self, count: int) -> None:
        """Batches of a MiB, about."""
        for _ in range(count):
            self.member.append_bodies((b"x" * 10_000,) * 100, 1)
        self.member.record_commit(self.member.ledger_end_index)
        self.member.check_point(force=True)

    def run_s3(self, *arguments: str) -> Any:
        """A command with the options of the store."""
        return self.run_cli(*arguments, *self.options)

    def test_there_and_back(self) -> None:
        """Shipped, continued, verified, restored; a bucket that is missing is not made."""
        path = str(self.config.self_path)
        self.assertExit(self.run_s3("archive", path, "s3://bucket/log"), 0, "copied 2 segments")
        self.append(15)
        done = self.run_s3("archive", path, "s3://bucket/log", "--json")
        self.assertExit(done, 0)
        summary = json.loads(done.stdout)
        self.assertEqual((summary["new_segments"], summary["segments"]), (1, 3))
        self.assertExit(self.run_s3("archive", path, "s3://bucket/log"), 0, "nothing new")
        self.assertExit(self.run_s3("backup", path, "s3://bucket/log"), 0, "copied 1 segment", "to 4499")
        self.assertExit(self.run_s3("backup", path, "s3://bucket/log"), 0, "nothing new")
        for command in ("archive", "backup"):
            self.assertExit(self.run_s3(command, "--verify", "s3://bucket/log"), 0, "clean")
        self.assertExit(self.run_s3(
            "restore", "s3://bucket/log", "--join", "--store", self.mktemp(), "--node-id", "n0", "--peers",
            "n0-h:1",
        ), 0, "entries 0 to 4499")
        for target in ("s3://absent/log", "s3://absent"):
            self.assertExit(self.run_s3("archive", path, target), 1, "exist")
        self.assertEqual([one["Name"] for one in self.s3.list_buckets()["Buckets"]], ["bucket"])

    def test_names_are_taken_once(self) -> None:
        """By a conditional write, so of two writers one gets the next manifest."""
        options = dict(word.split("=", 1) for word in self.options[1::2])
        place = opened_place("s3://bucket/log", OsDisk(), options={
            **options, "default_block_size": 5242880})
        assert isinstance(place, RemotePlace)
        self.addCleanup(place.close)
        place.create("generations/1", b"one")
        self.assertRaises(FileExistsError, place.create, "generations/1", b"two")
        write = place._files.pipe_file
        self.assertRaises(FileExistsError, write, "s3://bucket/log/generations/1", b"two", mode="create")
        self.assertEqual(place.disk.read_file("s3://bucket/log/generations/1"), b"one")
        place.remove("generations/1")
        self.assertFalse(place.disk.exists("s3://bucket/log/generations/1"))

    def test_half_written(self) -> None:
        """Damage in the middle of an upload leaves no object, and no upload."""
        path = str(self.config.self_path)
        position = self.member.position_of(self.member.ledger_end_index * 11 // 15)
        self.assertLess(position, 2 * SEGMENT_BYTES)
        self.assertGreater(position % SEGMENT_BYTES, 6 * 1024 * 1024)  # one part was sent
        name = f"{path}/data/{position - position % SEGMENT_BYTES:020d}"
        with open(name, "r+b") as file:
            file.seek(position % SEGMENT_BYTES + 60)
            file.write(b"\xff")
        self.assertExit(self.run_s3("archive", path, "s3://bucket/log"), 1, name, "bodyCrc")
        found = [one["Key"] for one in self.s3.list_objects_v2(Bucket="bucket")["Contents"]]
        self.assertEqual(len([key for key in found if "/data/" in key]), position // SEGMENT_BYTES, found)
        self.assertEqual(self.s3.list_multipart_uploads(Bucket="bucket").get("Uploads", []), [])
        self.assertExit(self.run_s3("archive", "--verify", "s3://bucket/log"), 0, "clean")

    def test_read(self) -> None:
        """Option C{path} of Spark's source and of an export, by ranges; and a bucket that is missing."""
        if find_spec("pyarrow") is None:
            self.skipTest("pyarrow is not installed")
        from dledger.spark.formats.log import ReadError
        from dledger.spark.scans.scan import Scan

        self.assertExit(self.run_s3("archive", str(self.config.self_path), "s3://bucket/log"), 0, "copied")
        reported = dict(word.split("=", 1) for word in self.options[1::2])
        given = {"path": "s3://bucket/log", "requestTimeoutMs": "20000", "fetchBytes": "1000000",
                 "archiveOptions": json.dumps({**reported, "default_block_size": 5242880})}
        scan = Scan.of(given)
        rows = [size for part in scan.plan() for batch in scan.batches(part)
                for size in map(len, batch.column("body").to_pylist())]
        self.assertEqual(set(rows), {10_000})
        self.assertEqual(len(rows), scan.extent().end)
        self.assertGreater(len(rows), 2000)
        for url in ("s3://bucket/nothing", "s3://missing/log"):
            error = self.assertRaises(ReadError, Scan.of({**given, "path": url}).extent)
            self.assertIn(f"{url} holds no archive", str(error))
