# -*- test-case-name: tests.commands.test_broker -*-
"""C{dledger tail --broker}."""

from __future__ import annotations

import json
import threading
import zlib
from typing import Any
from unittest import mock

from click.testing import CliRunner, Result
from twisted.trial.unittest import SynchronousTestCase

from dledger.cli.main import cli
from dledger.cli.rocketmq.broker import record_line
from dledger.rocketmq.client.blocking import Broker
from protocols.wire.rocketmq.message import encode_message, make_message
from tests.broker.client.test_blocking import LiveBroker


class RecordTests(SynchronousTestCase):
    """How one message is shown."""

    def record(self, body: bytes = b"hello\n", **fields: Any) -> bytes:
        """Of a message at 100."""
        return encode_message(make_message("T1", body, physical_offset=100, queue_id=3, queue_offset=17,
                                           properties={"TAGS": "A", "KEYS": "k1 k2"}, **fields))

    def test_line(self) -> None:
        """Its place and its content."""
        topic, line = record_line(self.record(), 100, "rocketmq")
        self.assertEqual(topic, "T1")
        self.assertEqual(line.decode().split("\t"), [
            "offset=100", "topic=T1", "queue=3", "queueOffset=17", "tags=A", "keys=k1 k2",
            'properties={"TAGS":"A","KEYS":"k1 k2"}', "body=hello\\n\n",
        ])

    def test_json(self) -> None:
        """An object with every field."""
        found = json.loads(record_line(self.record(), 100, "json")[1])
        self.assertEqual((found["offset"], found["physical_offset"], found["kind"], found["body"]),
                         (100, 100, "message", "hello\n"))
        self.assertEqual((found["topic"], found["keys"]), ("T1", ["k1", "k2"]))

    def test_compressed(self) -> None:
        """As it was sent; what cannot be unpacked, as it is stored, and that is said."""
        packed = self.record(zlib.compress(b"hello"), sys_flag=1)
        self.assertEqual(record_line(packed, 100, "raw")[1], b"hello\n")
        broken = record_line(self.record(b"hello", sys_flag=1), 100, "rocketmq")[1]
        self.assertIn(b"NOT UNPACKED: ", broken)

    def test_damaged(self) -> None:
        """Shown as a difference: another body, another place."""
        damaged = self.record().replace(b"hello", b"hallo")
        topic, line = record_line(damaged, 100, "rocketmq")
        self.assertEqual(topic, "")
        self.assertTrue(line.startswith(b"offset=100\tDAMAGED: "))
        self.assertEqual(json.loads(record_line(damaged, 100, "json")[1])["kind"], "damaged")
        self.assertIn(b"DAMAGED", record_line(self.record(), 101, "rocketmq")[1])


class TailBrokerTests(SynchronousTestCase):
    """The command, and a broker that listens."""

    def setUp(self) -> None:
        self.live = LiveBroker()
        self.addCleanup(self.live.stop)
        self.live.put(b"0", b"1")
        self.live.put(b"other", topic="T2")
        self.live.put(b"2", b"3")

    def run_cli(self, *arguments: str) -> Result:
        """C{dledger tail --broker}."""
        return CliRunner().invoke(cli, ["tail", "--broker", self.live.address, *arguments],
                                  standalone_mode=True)

    def bodies(self, *arguments: str) -> list[str]:
        """Shown bodies."""
        result = self.run_cli(*arguments)
        self.assertEqual(result.exit_code, 0, result.output)
        return [line.rpartition("body=")[2] for line in result.stdout.splitlines()]

    def test_all(self) -> None:
        """From the beginning; some; of some topics."""
        self.assertEqual(self.bodies(), ["0", "1", "other", "2", "3"])
        self.assertEqual(self.bodies("--format", "rocketmq", "-n", "2"), ["0", "1"])
        self.assertEqual(self.bodies("--topic", "T1", "-n", "3"), ["0", "1", "2"])
        self.assertEqual(self.bodies("--topic", "T2", "--topic", "T3"), ["other"])
        self.assertEqual(self.bodies("-n", "0"), [])

    def test_from(self) -> None:
        """Where a record begins, or an end of the log."""
        offset = json.loads(self.run_cli("--json").stdout.splitlines()[2])["offset"]
        self.assertEqual(self.bodies("--from-offset", str(offset)), ["other", "2", "3"])
        self.assertEqual(self.bodies("--from-offset", "end"), [])
        result = self.run_cli("--from-offset", "1")
        self.assertEqual(result.exit_code, 1)
        self.assertIn("no record begins at 1", result.stderr)

    def test_raw(self) -> None:
        """Bodies as they are."""
        self.assertEqual(self.run_cli("--format", "raw").stdout, "0\n1\nother\n2\n3\n")

    def test_usage(self) -> None:
        """What makes no sense together."""
        for arguments, word in (
            (["--from", "3"], "--from-offset"), (["--from-offset", "-1"], "not an offset"),
            (["--from-offset", "x"], "not an offset"), (["--format", "raw", "--json"], "--json"),
        ):
            result = self.run_cli(*arguments)
            self.assertEqual(result.exit_code, 64, result.output)
            self.assertIn(word, result.stderr)
        for arguments in (["--topic", "T"], ["--from-offset", "1"]):
            result = CliRunner().invoke(cli, ["tail", *arguments])
            self.assertEqual(result.exit_code, 64)
            self.assertIn("need --broker", result.stderr)
        result = CliRunner().invoke(cli, ["tail", "--broker", "nonsense"])
        self.assertIn("'nonsense' is not an address", result.stderr)

    def test_nobody_there(self) -> None:
        """One line, and the exit status."""
        self.live.leave()
        result = CliRunner().invoke(cli, ["--timeout", "0.2", "tail", "--broker", self.live.address])
        self.assertEqual(result.exit_code, 1)
        self.assertIn(f"NETWORK_ERROR (302): {self.live.address}: ", result.stderr)
        self.assertEqual(len(result.stderr.splitlines()), 1)

    def test_follow(self) -> None:
        """Messages are shown at once, over a restart of the broker, which is said beside them."""
        written: list[bytes] = []
        came = threading.Semaphore(0)
        batches = Broker.tail
        live = self.live

        def watched(broker: Broker, *arguments: Any, **options: Any) -> Any:
            for batch in batches(broker, *arguments, **options):
                yield batch
                written.append(b"")
                came.release()

        def play() -> None:
            came.acquire()
            live.leave()
            live.put(b"4")
            live.listen()
            came.acquire()
            live.put(b"5")

        player = threading.Thread(target=play)
        player.start()
        with mock.patch.object(Broker, "tail", watched):
            result = self.run_cli("-f", "--from-offset", "begin", "-n", "7")
        player.join()
        self.assertEqual(result.exit_code, 0, result.output)
        self.assertEqual([line.rpartition("body=")[2] for line in result.stdout.splitlines()],
                         ["0", "1", "other", "2", "3", "4", "5"])
        self.assertRegex(result.stderr, r"^dledger: 127\.0\.0\.1:\d+: .*; waiting\n"
                                        r"dledger: 127\.0\.0\.1:\d+ is back\n$")
