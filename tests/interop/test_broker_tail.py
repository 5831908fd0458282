# -*- test-case-name: tests.interop.test_broker_tail -*-
"""C{dledger tail --broker} at brokers that show queues only: messages in the order of the log."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from dledger.rocketmq.client.blocking import Broker as Client
from protocols.wire.rocketmq.message import decode_message
from tests.interop.ha_story import TOPIC, Story
from tests.interop.rocketmq import PATIENCE
from tests.processes.children import wait_until
from tests.processes.members import ROOT


class BrokerTailTests(Story):
    """A Java master, and our slave, whose log is read for comparison."""

    master, slave = "java", "ours"

    def logged(self) -> list[int]:
        """Offsets of the topic's messages in the slave's log, which is the master's."""
        self.check_equal()
        with Client(self.pair.slave.address) as client:
            return [offset for batch in client.tail() for offset, record in batch.records()
                    if decode_message(record).topic == TOPIC]

    def follow(self) -> Path:
        """Run C{dledger tail -f} at the master, its output in a file. @return: the file."""
        path = self.pair.directory / "followed"
        with path.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-c", "from dledger.cli.main import main; main()", "tail", "--broker",
                 self.pair.master.address, "--topic", TOPIC, "--from-offset", "begin", "-f", "--json"],
                stdout=output, stderr=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": str(ROOT)},
            )

        def end() -> None:
            process.kill()
            process.wait()

        self.addCleanup(end)
        return path

    @staticmethod
    def offsets(text: str) -> list[int]:
        """The offsets of the messages, from whole lines."""
        lines: list[dict[str, Any]] = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
        return [line["physical_offset"] for line in lines]

    def play_tail(self, version: str) -> None:
        """A tail over a kill of the master, one from an offset on, and a whole one agree with the log."""
        self.begin(version)
        pair = self.pair
        followed = self.follow()
        self.assertEqual(set(pair.send(TOPIC, 300, window=64)), {"SEND_OK"})
        pair.master.kill()
        pair.master.start()
        pair.master.wait_started()
        pair.wait_registered(pair.master)
        pair.wait(lambda: pair.send(TOPIC, 1) == ["SEND_OK"], "the master takes messages again")
        self.assertEqual(set(pair.send(TOPIC, 100, window=16)), {"SEND_OK"})
        expected = self.logged()
        self.assertGreaterEqual(len(expected), 400)
        wait_until(
            lambda: self.offsets(followed.read_text())[-1:] == expected[-1:], seconds=PATIENCE,
            what="the follower has the last message",
        )
        self.assertEqual(self.offsets(followed.read_text()), expected)
        words = ("tail", "--broker", pair.master.address, "--json")
        some = self.command(*words, "--topic", TOPIC, "--from-offset", str(expected[150] + 1))
        self.assertEqual(self.offsets(some), expected[151:])
        everything = self.offsets(self.command(*words))
        self.assertEqual(everything, sorted(everything))
        self.assertLessEqual(set(expected), set(everything))

    def test_4_9_8(self) -> None:
        """The last release before 5."""
        self.play_tail("4.9.8")

    def test_5_3_3(self) -> None:
        """The present release."""
        self.play_tail("5.3.3")
