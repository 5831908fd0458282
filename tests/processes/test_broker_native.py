# -*- test-case-name: tests.processes.test_broker_native -*-
"""Our producer and C{dledger tail --broker}, while their brokers are killed."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
from typing import Any

from dledger.rocketmq.client.blocking import Broker as Client
from dledger.rocketmq.client.values import PutError
from protocols.wire.rocketmq.message import decode_message
from tests.processes.children import wait_until
from tests.processes.members import ROOT
from tests.processes.test_broker import BrokerCase

TOPIC = "Native"
#: Messages in one call.
RUN = 20

_DLEDGER = "from dledger.cli.main import main; main()"


class Writer:
    """
    Puts numbered messages until C{stop}, a run at a time; a message that may be stored is not put again.

    @ivar acknowledged: numbers of the messages of runs that were stored as a whole.
    @ivar partly: for each other run: its numbers, and how many of them are stored at least, and at most. They
        need not be the first ones: a run travels in several frames, and the broker may die between two.
    """

    def __init__(self, address: str) -> None:
        self._client = Client(address, timeout=20.0)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.acknowledged: list[int] = []
        self.partly: list[tuple[list[int], int, int]] = []
        self.failure: BaseException | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread and wait for its end."""
        self._stop.set()
        self._thread.join(60)
        self._client.close()
        assert not self._thread.is_alive() and self.failure is None, self.failure

    def wait_for(self, count: int) -> None:
        """Wait until C{count} more messages are acknowledged, or the writer has failed."""
        wanted = len(self.acknowledged) + count
        wait_until(
            lambda: len(self.acknowledged) >= wanted or self.failure is not None,
            seconds=90, what=f"{count} more messages",
        )

    def _run(self) -> None:
        next_number = 0
        chance = random.Random(4)
        try:
            while not self._stop.is_set():
                numbers = list(range(next_number, next_number + RUN))
                next_number += RUN
                bodies = [b"%d %s" % (number, b"x" * chance.randrange(900)) for number in numbers]
                try:
                    self._client.put_many(TOPIC, bodies, window=RUN)
                except PutError as error:
                    stored = error.facts["acknowledged"]
                    assert isinstance(stored, int)
                    self.partly.append((numbers, stored, stored + error.unknown))
                else:
                    self.acknowledged += numbers
                self._stop.wait(0.002)
        except BaseException as error:
            self.failure = error


class NativeBrokerTests(BrokerCase):
    """Real processes."""

    def tail(self, address: str, *options: str) -> tuple[Any, Any]:
        """Run C{dledger tail --broker}, its output in a file. @return: process and path."""
        path = self.directory / f"tail{len(list(self.directory.glob('tail*')))}"
        with path.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-c", _DLEDGER, "tail", "--broker", address, "--json", *options],
                stdout=output, stderr=subprocess.PIPE, cwd=ROOT,
            )

        def end() -> None:
            process.kill()
            process.communicate()

        self.addCleanup(end)
        return process, path

    @staticmethod
    def offsets(path: Any) -> list[int]:
        """The offsets of the messages, from whole lines."""
        text = path.read_text()
        return [json.loads(line)["offset"] for line in text[: text.rfind("\n") + 1].splitlines()]

    def everything(self, address: str) -> tuple[list[int], list[int]]:
        """Offsets and numbers of all messages in a broker's log."""
        offsets, numbers = [], []
        with Client(address) as client:
            for batch in client.tail():
                for offset, record in batch.records():
                    offsets.append(offset)
                    numbers.append(int(decode_message(record).body.split()[0]))
        return offsets, numbers

    def test_kills(self) -> None:
        """
        A follower sees every message once and in order while the broker is killed again and again; all
        acknowledged messages are there, and none was put twice.
        """
        master = self.broker("master", "async-master")
        master.start()
        master.wait_started()
        follower, path = self.tail(master.address, "--from-offset", "begin", "-f", "--topic", TOPIC)
        writer = Writer(master.address)
        writer.start()
        chance = random.Random(9)
        for _ in range(4):
            writer.wait_for(200)
            threading.Event().wait(chance.uniform(0, 0.1))
            master.kill()
            master.start()
            master.wait_started()
        writer.stop()
        offsets, numbers = self.everything(master.address)
        wait_until(lambda: self.offsets(path)[-1:] == offsets[-1:], seconds=60, what="the follower has all")
        self.assertEqual(self.offsets(path), offsets)
        self.assertEqual(len(numbers), len(set(numbers)))
        self.assertEqual(numbers, sorted(numbers))
        self.assertLessEqual(set(writer.acknowledged), set(numbers))
        found, may_be_there = set(numbers), set(writer.acknowledged)
        for part, least, most in writer.partly:
            self.assertIn(len(found.intersection(part)), range(least, most + 1))
            may_be_there.update(part)
        self.assertLessEqual(found, may_be_there)
        self.assertIsNone(follower.poll())
        master.end()

    def test_slave(self) -> None:
        """A slave shows the same log as its master; a slave takes no messages."""
        master, slave = self.pair("async-master")
        with Client(master.address) as client:
            summary = client.put_many(TOPIC, [b"%d" % number for number in range(3000)])
            self.assertEqual(summary.statuses, {"PUT_OK": 3000})
            end = client.offsets().end_offset
        with Client(slave.address) as client:
            wait_until(lambda: client.offsets().end_offset == end, seconds=60, what="the slave has all")
            self.assertEqual(client.offsets().role, "SLAVE")
            refused = self.assertRaises(PutError, client.put, TOPIC, b"no")
            self.assertEqual((refused.refused, refused.facts["broker_code"]), (1, 14))
        self.assertEqual(self.everything(slave.address), self.everything(master.address))
        process, path = self.tail(slave.address)
        self.assertEqual(process.wait(60), 0)
        self.assertEqual(len(self.offsets(path)), 3000)
        for broker in (slave, master):
            broker.end()
