# -*- test-case-name: tests.spark.test_live -*-
"""Spark beside real members: ours, whose leader is killed in the middle of a job, and Java's."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from click.testing import CliRunner
from twisted.trial.unittest import SkipTest, SynchronousTestCase

import dledger
from dledger.cli.main import cli
from dledger.spark.formats.options import options_of_tls
from dledger.spark.scans.scan import Scan
from dledger.values.rights import ClientRole
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.messages import AppendRequest
from tests.interop import rocketmq
from tests.interop.java import JavaMember, JavaMissing, class_path
from tests.processes.asking import Asker
from tests.processes.children import free_ports, free_triple, wait_until
from tests.processes.members import Group
from tests.processes.test_tls import TlsCase
from tests.spark.ledgers import mixed_bodies, plain_rows, scanned
from tests.spark.sessions import patiently, rows_of, spark

_BROKER = "5.3.3"
_SMALL = {"mapped_file_size_for_entry_data": 1 << 16, "mapped_file_size_for_entry_index": 32 * 256}


class LiveCase(SynchronousTestCase):
    """A directory for members."""

    def setUp(self) -> None:
        held = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(held.cleanup)
        self.directory = Path(held.name)


class GroupTests(LiveCase):
    """Three members of ours."""

    def setUp(self) -> None:
        super().setUp()
        self.group = Group(self.directory, options=_SMALL)
        self.addCleanup(self.group.kill)
        self.group.start()
        self.bootstrap = self.group.peers_text
        self.out, self.checkpoint = str(self.directory / "out"), str(self.directory / "checkpoint")

    def append(self, count: int, seed: int) -> None:
        """Entries in one request to the leader; all are committed."""
        bodies = tuple(mixed_bodies(count, seed=seed))
        leader_id = self.group.leader(among=self.running())
        with Asker(self.group.peers[leader_id], native=True, seconds=30.0) as asker:
            answer = asker.ask(AppendRequest(group="default", remote_id=leader_id, bodies=bodies))
        self.assertEqual((answer.code, answer.count), (ResponseCode.SUCCESS, count))

    def running(self) -> tuple[str, ...]:
        """Members that run."""
        return tuple(member_id for member_id, member in self.group.members.items() if member.is_running)

    def stream(self) -> None:
        """All there is now, into Parquet."""
        patiently(self.stream_once)

    def stream_once(self) -> None:
        """As L{stream}, once."""
        query = (
            spark().readStream.format("dledger").option("bootstrap", self.bootstrap)
            .option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "1500")
            .option("reader", "etl").load()
            .writeStream.format("parquet").option("path", self.out)
            .option("checkpointLocation", self.checkpoint).trigger(availableNow=True).start()
        )
        self.assertTrue(query.awaitTermination(240))
        offsets = Path(self.checkpoint) / "offsets"
        last = max(offsets.glob("[0-9]*"), key=lambda path: int(path.name))
        self.assertRegex(last.read_text(), r'"proof.default": ?\{"group_id": ?"[0-9a-f]{32}", ?"term"')

    def place(self) -> int:
        """Where the group says that the stream is."""
        with dledger.connect(self.bootstrap, timeout=60.0) as log:
            (reader,) = log.readers()
        self.assertEqual(reader.name, "etl")
        return reader.next_index

    def test_leader_is_killed(self) -> None:
        """
        A scan and a Spark job that read from the leader go on from the others when it is killed in the
        middle; a stream goes on under the next leader. Every row is there once, and is what members have.
        """
        self.append(4000, seed=1)
        end = self.group.wait_settled() + 1
        leader_id = self.group.leader()
        options = {"bootstrap": self.bootstrap, "readFrom": "leader", "minPartitions": "4"}
        self.stream()
        scan = Scan.of({**options, "fetchBytes": "20000"})
        (part, *_) = scan.parts(0, end)
        batches = scan.batches(part)
        indexes = next(batches).column(0).to_pylist()
        reader = spark().read.format("dledger")
        for name, value in options.items():
            reader = reader.option(name, value)
        job = reader.load().toLocalIterator()  # one partition after the other
        rows = [tuple(next(job))]
        self.group.members[leader_id].kill()
        for batch in batches:
            indexes += batch.column(0).to_pylist()
        self.assertEqual(indexes, list(range(part.begin, part.end)))
        rows += [tuple(row) for row in job]
        follower = next(self.group.members[member_id] for member_id in self.running())
        expected = plain_rows(str(follower.ledger_path))
        self.assertEqual(sorted(tuple(map(_plain, row)) for row in rows), expected[:end])
        self.assertIn(self.place(), range(1, end + 1))
        self.append(1000, seed=2)
        self.stream()
        self.assertGreaterEqual(self.place(), end)
        expected = plain_rows(str(follower.ledger_path))
        self.assertGreaterEqual(len(expected), 5000)
        found = rows_of(spark().read.parquet(self.out), "index")
        of_programs = [row for row in expected if not row[4]]  # not those of the reader
        self.assertEqual(found, of_programs[: len(found)])
        self.assertGreaterEqual(sum(bool(row[7]) for row in found), sum(bool(row[7]) for row in of_programs))
        self.assertEqual(scanned({"path": follower.ledger_path, "endingOffsets": end}), expected[:end])


class TlsTests(TlsCase):
    """Three members of ours that speak TLS."""

    def test_read(self) -> None:
        """Spark and the export read with a certificate that may read, and with no other."""
        self.begin()
        bodies = mixed_bodies(2000, seed=3)
        log = self.log(ClientRole.APPEND)
        log.append_many(bodies)
        self.settled(log)
        options = {"bootstrap": self.group.peers_text, "minPartitions": "3"}
        reader = self.room.client("reader", ClientRole.READ)
        nobody = self.room.client("nobody")
        frame = spark().read.format("dledger").options(**options, **options_of_tls(reader)).load()
        read = [bytes(row.body) for row in frame.orderBy("index").collect() if row.body]
        self.assertEqual(read, [body for body in bodies if body])
        with self.assertRaisesRegex(Exception, "FORBIDDEN"):
            spark().read.format("dledger").options(**options, **options_of_tls(nobody)).load().count()
        out = str(self.directory / "out")
        for roles, status in (((), 1), ((ClientRole.READ,), 0)):
            keys = self.room.client("exporter", *roles)
            done = CliRunner().invoke(cli, [
                "--tls-certificate", keys.certificate, "--tls-key", keys.key, "--tls-authority",
                keys.authority, "export", self.group.peers_text, out,
            ])
            self.assertEqual(done.exit_code, status, done.output)
        self.assertEqual(len([row for row in rows_of(spark().read.parquet(out), "index") if row[7]]),
                         len(read))


def _plain(value: object) -> object:
    return bytes(value) if isinstance(value, bytearray) else value


class JavaTests(LiveCase):
    """A Java member's directory."""

    def test_live_and_stopped(self) -> None:
        """Its committed entries, while it runs and when it has stopped."""
        try:
            class_path()
        except JavaMissing as missing:
            raise SkipTest(str(missing)) from None
        peers = {"n0": f"127.0.0.1:{free_ports(1)[0]}"}
        member = JavaMember("n0", peers, self.directory / "n0", options={
            "mappedFileSizeForEntryData": 1 << 16, "mappedFileSizeForEntryIndex": 32 * 256,
        })
        self.addCleanup(member.kill)
        member.start()
        member.wait_started()
        wait_until(lambda: member.status()["role"].lower() == "leader", seconds=60, what="a Java leader")
        bodies = [body or b"-" for body in mixed_bodies(1500, seed=9)]
        with Asker(peers["n0"], seconds=60.0) as asker:
            asked = [asker.send(AppendRequest(group="default", remote_id="n0", bodies=(body,)))
                     for body in bodies]
            codes = {asker.collect(opaque).code for opaque in asked}
        self.assertEqual(codes, {ResponseCode.SUCCESS})
        path = str(self.directory / "n0" / "dledger-n0")
        scan = Scan.of({"path": path})
        # Java says every three seconds how far it is; until the first time, the scan refuses.
        checkpoint = Path(path) / "checkpoint"
        wait_until(lambda: checkpoint.is_file() and scan.extent().end == 1500, seconds=60,
                   what="Java's checkpoint", every=0.2)
        expected = plain_rows(path)
        self.assertEqual(sorted(row[7] for row in expected), sorted(bodies))
        self.assertGreater(len(os.listdir(f"{path}/data")), 2)
        for options in ({}, {"minPartitions": 3, "verifyCrc": "true"}):
            self.assertEqual(scanned({"path": path, **options}), expected)
        member.stop()
        found = rows_of(spark().read.format("dledger").load(path), "index")
        self.assertEqual(found, expected)


class BrokerTests(LiveCase):
    """A RocketMQ broker that is not a member of any group: its commit log."""

    def test_live_and_stopped(self) -> None:
        """What a Java producer has sent, message by message, while the broker runs and afterwards."""
        try:
            rocketmq.class_path(_BROKER)
        except JavaMissing as missing:
            raise SkipTest(str(missing)) from None
        (name_port,) = free_ports(1)
        home = self.directory / "broker"
        servers = (
            rocketmq.Server("namesrv", "namesrv.NamesrvStartup", {"listenPort": name_port},
                            self.directory / "namesrv", _BROKER),
            rocketmq.Server("broker", "broker.BrokerStartup", {
                "brokerClusterName": "tests", "brokerName": "b", "listenPort": free_triple(),
                "brokerIP1": "127.0.0.1", "namesrvAddr": f"127.0.0.1:{name_port}",
                "storePathRootDir": home / "store", "storePathCommitLog": home / "store" / "commitlog",
                "mappedFileSizeCommitLog": 1 << 16, "mappedFileSizeConsumeQueue": 20 * 1000,
                "maxHashSlotNum": 1000, "maxIndexNum": 4000, "diskMaxUsedSpaceRatio": 95,
                "timerWheelEnable": False, "defaultTopicQueueNums": 4, "brokerFastFailureEnable": False,
            }, home, _BROKER),
        )
        for server in servers:
            self.addCleanup(server.kill)
            server.start()
            server.wait_started()
        producer = rocketmq.Messages(f"127.0.0.1:{name_port}", self.directory, _BROKER)
        self.addCleanup(producer.kill)
        producer.start()
        producer.wait_started()
        sent = {each.unique_key: each for each in producer.produce(0, 400)}
        expected = sorted((each.queue_id, each.queue_offset, key, rocketmq.body_of(each.number))
                          for key, each in sent.items())
        path = str(home / "store")
        wanted = [("queueId", "int"), ("queueOffset", "bigint"), ("properties", "map<string,string>"),
                  ("body", "binary"), ("topic", "string")]
        self.assertGreater(len(os.listdir(f"{path}/commitlog")), 2)
        for is_live in (True, False):
            rows = scanned({"path": path, "format": "rocketmq", "verifyCrc": "true"}, wanted)
            found = sorted((row[0], row[1], dict(row[2])["UNIQ_KEY"], row[3]) for row in rows
                           if row[4] == rocketmq.TOPIC)
            self.assertEqual(found, expected)
            if is_live:
                producer.stop(seconds=rocketmq.PATIENCE)
                servers[1].stop(seconds=rocketmq.PATIENCE)
