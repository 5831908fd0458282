# -*- test-case-name: tests.spark.test_sink -*-
"""The sink with a real Spark and real members: jobs, streams, recipes of the reference, refusals."""

from __future__ import annotations

from typing import Any

from click.testing import CliRunner
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.streaming import StreamingQuery

import dledger
from dledger.cli.main import cli
from dledger.client.errors import OutOfSequence, SequenceTaken
from dledger.spark.formats.options import options_of_tls
from dledger.spark.scans.scan import Scan
from dledger.spark.sink.sink_log import producer_of
from dledger.values.rights import ClientRole
from protocols.wire.ledger.own.own_entries import OwnKind
from tests.processes.members import Group
from tests.processes.test_tls import TlsCase
from tests.spark.ledgers import Ledger
from tests.spark.sessions import patiently, rows_of, spark
from tests.spark.test_groups import recipe
from tests.spark.test_live import LiveCase


def frame_of(count: int, partitions: int = 3) -> DataFrame:
    """Rows with the bodies 0, 1, 2, ..."""
    return spark().range(count, numPartitions=partitions).selectExpr("cast(id as string) AS body")


def numbers(count: int) -> list[bytes]:
    """Their bodies."""
    return [b"%d" % number for number in range(count)]


class SinkCase(LiveCase):
    """One member."""

    def setUp(self) -> None:
        super().setUp()
        self.group = Group(self.directory, size=1)
        self.addCleanup(self.group.kill)
        self.group.start()
        self.group.leader()
        self.members = self.group.peers_text

    def write(self, frame: DataFrame, mode: str = "append", **options: object) -> None:
        """A job."""
        given = {"bootstrap": self.members, **options}
        frame.write.format("dledger").options(**given).mode(mode).save()

    def read(self, **options: object) -> list[bytes]:
        """The bodies in the group."""
        log = spark().read.format("dledger").options(bootstrap=self.members, **options).load()
        return [row[1] for row in rows_of(log.select("index", "body"), "index")]

    def refused(self, said: str, frame: DataFrame, mode: str = "append", **options: object) -> None:
        """A job ends with a sentence."""
        error = self.assertRaises(PySparkException, self.write, frame, mode, **options)
        self.assertIn(said, str(error))


class JobTests(SinkCase):
    """C{df.write}."""

    def test_rows(self) -> None:
        """
        Rows in the order of the partitions, once; markers are hidden, by members, in the files, where the
        data files are not read, and from other clients.
        """
        self.write(frame_of(500))
        self.write(frame_of(3).withColumnRenamed("body", "value"), frameBytes=1)
        self.write(frame_of(0))
        expected = [*numbers(500), *numbers(3)]
        self.assertEqual(self.read(), expected)
        marked = self.read(includeMarkers="true")
        # One in front of the rows of each request, and one after the last row.
        self.assertEqual(len(marked), len(expected) + 2 + 4)
        self.group.wait_settled()
        path = str(self.group.members["n0"].ledger_path)
        out = str(self.directory / "out")
        done = CliRunner().invoke(cli, ["export", path, out])
        self.assertEqual(done.exit_code, 0, done.output)
        exported = [row[1] for row in rows_of(spark().read.parquet(out).select("index", "body"), "index")]
        self.assertEqual(exported, expected)
        with dledger.connect(self.members) as client:
            self.assertEqual([entry.body for entry in client.tail(0, follow=False)], expected)
        for options in ({"path": path}, {"bootstrap": self.members}):
            log = spark().read.format("dledger").options(**options).load()
            self.assertEqual(log.count(), len(expected))
            self.assertEqual(log.where("term >= 0").select("index").count(), len(expected))
            bare = spark().read.format("dledger").schema("index BIGINT").options(**options).load()
            self.assertEqual(sorted(bare.collect()), sorted(log.select("index").collect()))

    def test_again(self) -> None:
        """With a name and a number a job that runs again appends nothing; another number is another job."""
        for number in (4, 4, 5):
            self.write(frame_of(100), sinkId="nightly", batchId=number)
        self.assertEqual(self.read(), numbers(100) * 2)
        self.refused("comes after batch 5", frame_of(100), sinkId="nightly", batchId=4)
        before = self.group.members["n0"].metadata()
        self.refused("is in the log with 100 rows", frame_of(99), sinkId="nightly", batchId=5)
        after = self.group.members["n0"].metadata()
        assert before is not None and after is not None
        self.assertEqual(after.end_index, before.end_index)
        self.assertEqual(self.read(), numbers(100) * 2)

    def test_foreign_producer(self) -> None:
        """A program that appends under the id of the sink's producer does no harm to the sink."""
        self.write(frame_of(100), sinkId="nightly", batchId=4)
        with dledger.connect(self.members) as client:
            error = self.assertRaises(
                SequenceTaken, client.append, b"mine", producer=producer_of("nightly"), sequence=0
            )
            self.assertEqual(client.get(error.index).kind, OwnKind.SINK_MARKER)
            error = self.assertRaises(
                OutOfSequence, client.append, b"mine", producer=producer_of("nightly"), sequence=10**6
            )
            client.append(b"mine", producer=producer_of("nightly"), sequence=error.last_sequence + 1)
        self.write(frame_of(100), sinkId="nightly", batchId=4)
        self.write(frame_of(3), sinkId="nightly", batchId=5)
        self.assertEqual(self.read(), [*numbers(100), b"mine", *numbers(3)])

    def test_refused(self) -> None:
        """Modes, columns, options and rows; nothing is in the log."""
        frame = frame_of(10)
        self.refused("mode overwrite: a log is only appended to", frame, "overwrite")
        for mode in ("ignore", "errorifexists"):
            self.refused("UNSUPPORTED_DATA_SOURCE_SAVE_MODE", frame, mode)
        self.refused("the frame has column id besides", frame.selectExpr("body", "1 AS id"))
        self.refused("column body is BIGINT", spark().range(1).selectExpr("id AS body"))
        self.refused("the sink knows bootstrap, group, sinkId", frame, windowBytes=1)
        self.refused("option path (or save(PATH)", frame, path="x")
        null = spark().range(10, numPartitions=2).selectExpr("CASE WHEN id < 7 THEN 'x' END AS body")
        self.refused("row 2 of partition 1 has no body (null)", null)
        one = frame.coalesce(1)  # of several tasks that fail any may be the first
        self.refused("partition 0 has more than 2 bytes of bodies (maxTaskBytes)", one, maxTaskBytes=2)
        self.refused("no leader found", frame, bootstrap="n0-127.0.0.1:1", timeoutMs=100)
        self.refused("option bootstrap: ", frame, bootstrap="n0")
        self.assertEqual(self.read(includeMarkers="true"), [])

    def test_recipe(self) -> None:
        """The job of the documents."""
        frame = spark().range(2, numPartitions=1)
        exec(recipe("## Sink"), {"frame": frame, "members": self.members})  # noqa: S102
        self.assertEqual(self.read(), [b'{"id":0}', b'{"id":1}'])


class SinkStreamTests(SinkCase):
    """C{df.writeStream}."""

    def setUp(self) -> None:
        super().setUp()
        self.source = Ledger(str(self.directory / "source"))
        self.addCleanup(self.source.close)
        self.checkpoint = str(self.directory / "checkpoint")

    def start(self, **options: object) -> StreamingQuery:
        """A query that ends when it has read all, in batches of 40 entries."""
        stream = (
            spark().readStream.format("dledger").option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", "40").load(self.source.path).select("body")
        )
        given: dict[str, Any] = {"bootstrap": self.members, "sinkId": "copy", **options}
        return (
            stream.writeStream.format("dledger").options(**given)
            .option("checkpointLocation", self.checkpoint).trigger(availableNow=True).start()
        )

    def run_query(self, **options: object) -> None:
        """To its end."""
        patiently(lambda: self.start(**options).awaitTermination())

    def test_restarted(self) -> None:
        """
        A query goes on where it was. A batch that Spark has not noted as done, though it is in the log, is
        not appended again; another query with the same name is refused.
        """
        self.source.append(numbers(100))
        self.source.commit()
        self.run_query()
        self.assertEqual(self.read(), numbers(100))
        self.forget_last()
        self.source.append(numbers(10))
        self.source.commit()
        self.run_query()
        self.assertEqual(self.read(), [*numbers(100), *numbers(10)])
        self.checkpoint += "-2"
        error = self.assertRaises(PySparkException, self.run_query)
        self.assertIn("sinkId belongs to another query", str(error))
        self.assertEqual(self.read(), [*numbers(100), *numbers(10)])

    def forget_last(self) -> None:
        """Spark does not know that its last batch is done."""
        commits = self.directory / "checkpoint" / "commits"
        last = max(commits.glob("[0-9]*"), key=lambda path: int(path.name))
        last.unlink()
        (commits / f".{last.name}.crc").unlink()

    def test_recipe(self) -> None:
        """The stream of the documents."""
        self.source.append(numbers(7))
        self.source.commit()
        stream = (spark().readStream.format("dledger").option("startingOffsets", "earliest")
                  .load(self.source.path))
        text = recipe("## Sink", 1).replace('"sink-checkpoint"', repr(self.checkpoint))
        self.assertIn(self.checkpoint, text)
        patiently(lambda: exec(text, {"stream": stream, "members": self.members}))  # noqa: S102
        self.assertEqual(self.read(), numbers(7))

    def test_refused(self) -> None:
        """A stream without a name."""
        error = self.assertRaises(PySparkException, lambda: self.start(sinkId="").awaitTermination())
        self.assertIn("option sinkId=''", str(error))


class SinkTlsTests(TlsCase):
    """Members that speak TLS."""

    def test_roles(self) -> None:
        """A certificate that may append; with one that may read there is nothing in the log."""
        self.begin()

        def write(role: ClientRole) -> dict[str, str]:
            keys = options_of_tls(self.room.client(str(role), role))
            options = {"bootstrap": self.group.peers_text, **keys}
            frame_of(50).write.format("dledger").options(**options).mode("append").save()
            return options

        error = self.assertRaises(PySparkException, write, ClientRole.READ)
        self.assertIn("the certificate has no role that may append", str(error))
        scan = Scan.of(write(ClientRole.APPEND))
        rows = [row for part in scan.plan() for batch in scan.batches(part)
                for row in batch.column("body").to_pylist() if row]
        self.assertEqual(rows, numbers(50))
