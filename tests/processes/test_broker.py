# -*- test-case-name: tests.processes.test_broker -*-
"""C{twistd -n dledger-broker} as an operator runs it: masters and slaves, stopped, killed, started again."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from protocols.wire.rocketmq.message import Message
from tests.processes.brokers import FILE_SIZE, QUEUES, SENT, Broker, Remoting
from tests.processes.children import free_triple, wait_until
from tests.processes.members import ROOT

TOPIC = "Numbers"
WINDOW = 16

#: Seconds between two messages: all of them are read again.
PAUSE_S = 0.003

_CLI = "from dledger.cli.main import main; main()"


class Producer:
    """
    Sends numbered messages until C{stop}; continues when its broker is back.

    @ivar acknowledged: numbers that were answered with C{codes}.
    @ivar sent: number of messages sent.
    """

    def __init__(self, broker: Broker, *, codes: tuple[int, ...]) -> None:
        self._broker = broker
        self._codes = codes
        self._chance = random.Random(3)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.acknowledged: list[int] = []
        self.sent = 0

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread and wait for its end."""
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._send(Remoting(self._broker.address))
            except OSError:
                self._stop.wait(0.05)

    def _send(self, connection: Remoting) -> None:
        waiting: dict[int, int] = {}
        try:
            while waiting or not self._stop.is_set():
                while len(waiting) < WINDOW and not self._stop.is_set():
                    number, self.sent = self.sent, self.sent + 1
                    waiting[connection.put(TOPIC, number % QUEUES, self.body(number))] = number
                answer = connection.next()
                number = waiting.pop(answer.opaque)
                if answer.code in self._codes:
                    self.acknowledged.append(number)
                self._stop.wait(PAUSE_S)
        finally:
            connection.close()

    def body(self, number: int) -> bytes:
        """The body of one message."""
        return b"%d %s" % (number, b"x" * (number % 700))


class BrokerCase(SynchronousTestCase):
    """A directory, and brokers that end with the test."""

    def setUp(self) -> None:
        held = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(held.cleanup)
        self.directory = Path(held.name)

    def broker(self, name: str, role: str, **more: Any) -> Broker:
        """A broker, not started."""
        broker = Broker(name, self.directory, role=role, port=free_triple(), **more)
        self.addCleanup(broker.kill)
        return broker

    def pair(self, role: str, **options: object) -> tuple[Broker, Broker]:
        """A master of this role and its slave, started."""
        master = self.broker("master", role, options=options)
        slave = self.broker("slave", "slave", master=master, options=options)
        for one in (master, slave):
            one.start()
        for one in (master, slave):
            one.wait_started()
        # A slave that connects later is sent the last file only, as in RocketMQ.
        wait_until(
            lambda: "holds the log to 0;" in master.log_path.read_text(), seconds=60, what="the slave came"
        )
        return master, slave

    def assert_same_logs(self, master: Broker, slave: Broker, messages: list[Message]) -> None:
        """The logs are equal, byte for byte, up to the last message."""
        end = max(one.physical_offset + one.size for one in messages)
        self.assertEqual(master.log(end), slave.log(end))

    def wait_for(self, producer: Producer, count: int) -> None:
        """Wait until C{count} more messages are acknowledged."""
        wanted = len(producer.acknowledged) + count
        wait_until(lambda: len(producer.acknowledged) >= wanted, seconds=60, what=f"{count} more messages")

    def numbers(self, messages: list[Message], producer: Producer) -> list[int]:
        """The numbers of the messages, whose bodies must be as sent."""
        found = []
        for one in messages:
            number = int(one.body.split(b" ")[0])
            self.assertEqual(one.body, producer.body(number))
            found.append(number)
        return sorted(found)


class LifeTests(BrokerCase):
    """A clean end loses no message, and a broker starts with few options."""

    def test_restart(self) -> None:
        """Messages of a master are on its slave; after a restart both still have them, and take more."""
        master, slave = self.pair("async-master")
        producer = Producer(master, codes=SENT)
        producer.start()
        self.wait_for(producer, 400)
        producer.stop()
        count = len(producer.acknowledged)
        self.assertEqual(count, producer.sent)
        for broker in (master, slave):
            self.assertEqual(self.numbers(broker.messages(TOPIC, count=count), producer), list(range(count)))
        for broker in (slave, master):
            broker.end()
        for broker in (master, slave):
            broker.start()
        for broker in (master, slave):
            broker.wait_started()
            self.assertEqual(self.numbers(broker.messages(TOPIC), producer), list(range(count)))
        connection = Remoting(master.address)
        connection.put(TOPIC, 0, producer.body(count))
        self.assertEqual(connection.next().code, 0)
        connection.put(TOPIC, 0, producer.body(count))
        late = Remoting(slave.address)
        late.put(TOPIC, 0, b"no")
        self.assertEqual(late.next().code, 14)
        messages = slave.messages(TOPIC, count=count + 1)
        for broker in (slave, master):
            broker.end()
        self.assert_same_logs(master, slave, messages)

    def test_wrong(self) -> None:
        """A directory in use, a port in use, an unknown option: one clear line, and status 1."""
        master = self.broker("master", "async-master")
        master.start()
        master.wait_started()
        second = Broker("second", self.directory, role="async-master", port=free_triple(),
                        extra=("--store", str(master.store)))
        taken = Broker("taken", self.directory, role="async-master", port=master.port)
        unknown = Broker("unknown", self.directory, role="async-master", port=free_triple(),
                         options={"brokerNam": "x"})
        for broker, words in (
            (second, "in use by another process"), (taken, "Couldn't listen on 127.0.0.1"),
            (unknown, "did you mean 'broker_name'"),
        ):
            self.addCleanup(broker.kill)
            broker.start()
            self.assertEqual(broker.wait(seconds=60), 1, broker.log_tail())
            self.assertIn(words, broker.log_path.read_text())
            self.assertNotIn("Traceback", broker.log_path.read_text())
        master.end()


class KillTests(BrokerCase):
    """SIGKILL of either side under load."""

    def test_sync_master(self) -> None:
        """Messages acknowledged with a slave are on both in the end, each once, in equal logs."""
        master, slave = self.pair("sync-master")
        producer = Producer(master, codes=(0,))
        producer.start()
        chance = random.Random(5)
        for victim in (master, slave, master, slave, master):
            self.wait_for(producer, 100)
            threading.Event().wait(chance.uniform(0, 0.2))
            victim.kill()
            victim.start()
            victim.wait_started()
        self.wait_for(producer, 100)
        producer.stop()
        messages = master.messages(TOPIC)
        found = self.numbers(messages, producer)
        self.assertEqual(len(found), len(set(found)))
        self.assertLessEqual(set(producer.acknowledged), set(found))
        self.assertEqual(self.numbers(slave.messages(TOPIC, count=len(found)), producer), found)
        for broker in (slave, master):
            broker.end()
        self.assert_same_logs(master, slave, messages)


class ReplacedTests(BrokerCase):
    """A master comes back without the messages that its slave has; the slave keeps them."""

    def full_pair(self, count: int = 300) -> tuple[Broker, Broker, Producer]:
        """A pair with C{count} messages on both, all acknowledged with the slave."""
        master, slave = self.pair("sync-master")
        producer = Producer(master, codes=(0,))
        producer.start()
        self.wait_for(producer, count)
        producer.stop()
        return master, slave, producer

    def dledger(self, *words: str) -> tuple[int, str]:
        """Run the command line. @return: its exit status and standard output."""
        done = subprocess.run(
            [sys.executable, "-c", _CLI, *words], capture_output=True, text=True, timeout=120,
            cwd=self.directory, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False,
        )
        return done.returncode, done.stdout + done.stderr

    def wait_stopped(self, slave: Broker) -> None:
        """Wait until the slave has stopped."""
        wait_until(lambda: "replication has stopped" in slave.log_path.read_text(), seconds=60,
                   what="the slave stopped")

    def put_some(self, master: Broker, body: bytes = b"other") -> None:
        """Other messages at the master."""
        connection = Remoting(master.address)
        for _ in range(5):
            connection.put(TOPIC, 0, body)
            self.assertIn(connection.next().code, SENT)
        connection.close()

    def assert_kept(self, slave: Broker, before: bytes, producer: Producer) -> None:
        """The slave has all its files and serves all its messages."""
        self.assertEqual(slave.log(len(before)), before)
        found = self.numbers(slave.messages(TOPIC), producer)
        self.assertLessEqual(set(producer.acknowledged), set(found))

    def test_empty_master(self) -> None:
        """The disk is replaced: the slave stops, serves, and follows when an operator has decided."""
        master, slave, producer = self.full_pair()
        before = slave.log(log_end(slave, producer))
        master.kill()
        master.store.rename(self.directory / "lost")
        master.start()
        master.wait_started()
        self.put_some(master)
        self.wait_stopped(slave)
        self.assert_kept(slave, before, producer)
        slave.kill()
        slave.start()
        slave.wait_started()
        self.assert_kept(slave, before, producer)
        status, said = self.dledger("ha-status", "--broker", slave.address)
        self.assertEqual(status, 1, said)
        self.assertIn("#Trouble", said)
        wait_until(lambda: slave.log_path.read_text().count("replication has stopped") > 1, seconds=60,
                   what="it stopped again")
        status, said = self.dledger("ha-resolve", "--broker", slave.address)
        self.assertEqual(status, 1, said)
        self.assertIn(f"sets aside {len(before)} bytes", said)
        self.assert_kept(slave, before, producer)
        status, said = self.dledger("ha-resolve", "--broker", slave.address, "--take-master")
        self.assertEqual(status, 0, said)
        aside = sorted((slave.store / "commitlog.set-aside-1").iterdir())
        self.assertEqual(b"".join(one.read_bytes() for one in aside)[: len(before)], before)
        found = slave.messages(TOPIC, count=5)
        self.assertEqual([one.body for one in found], [b"other"] * 5)

    def test_older_master(self) -> None:
        """A backup comes back and takes other messages: the slave's later messages stay."""
        master, slave, producer = self.full_pair()
        for one in (slave, master):
            one.end()
        shutil.copytree(master.store, self.directory / "backup")
        for one in (master, slave):
            one.start()
            one.wait_started()
        more = Producer(master, codes=(0,))
        more.sent = producer.sent
        more.start()
        self.wait_for(more, 50)
        more.stop()
        before = slave.log(log_end(slave, producer, more))
        master.kill()
        master.store.rename(self.directory / "lost")
        (self.directory / "backup").rename(master.store)
        master.start()
        master.wait_started()
        self.put_some(master, b"7 " + b"y" * 5)
        self.wait_stopped(slave)
        self.assertEqual(slave.log(len(before)), before)
        status, said = self.dledger("ha-resolve", "--broker", slave.address, "--take-master")
        self.assertEqual(status, 0, said)
        wait_until(lambda: slave.messages(TOPIC)[-1:] != [] and any(
            one.body == b"7 yyyyy" for one in slave.messages(TOPIC)
        ), seconds=60, what="the slave follows")

    def flip(self, master: Broker, *places: int) -> tuple[Path, bytes]:
        """
        Bits of the last record of a broker that is down flip.

        @param places: counted from the beginning of its body.
        @return: the file, and its former content.
        """
        victim = self.victim
        name = master.store / "commitlog" / f"{victim.physical_offset // FILE_SIZE * FILE_SIZE:020d}"
        content = name.read_bytes()
        data = bytearray(content)
        at = data.index(victim.body, victim.physical_offset % FILE_SIZE)
        for place in places:
            data[at + place] ^= 1
        name.write_bytes(data)
        return name, content

    def test_flipped_byte(self) -> None:
        """One byte of one body of the master is another one: it gets the record back from its slave."""
        master, slave, producer = self.full_pair()
        before = slave.log(log_end(slave, producer))
        self.victim = master.messages(TOPIC)[-1]
        master.end()
        name, content = self.flip(master, 0)
        master.start()
        master.wait_started()
        wait_until(lambda: name.read_bytes()[: len(before)] == content[: len(before)], seconds=60,
                   what="the master's record is sound again")
        wait_until(lambda: (master.store / "commitlog.damaged").exists(), seconds=120, what="the old bytes")
        kept = master.store / "commitlog.damaged" / f"{self.victim.physical_offset:020d}"
        self.assertEqual(len(kept.read_bytes()), self.victim.size)
        wait_until(lambda: "was replaced by the copy of slave" in master.log_path.read_text(), seconds=120,
                   what="a line about it")
        self.assert_kept(slave, before, producer)
        self.put_some(master, b"7 yyyyy")
        wait_until(lambda: any(one.body == b"7 yyyyy" for one in slave.messages(TOPIC)), seconds=60,
                   what="the slave follows by itself")
        self.assertIn(self.victim.body, [one.body for one in master.messages(TOPIC)])

    def test_flipped_bytes_of_head_and_body(self) -> None:
        """A record that may be another one is not replaced: the slave's sound copy stays, and an operator
        repairs the master."""
        master, slave, producer = self.full_pair()
        before = slave.log(log_end(slave, producer))
        self.victim = master.messages(TOPIC)[-1]
        master.end()
        name, content = self.flip(master, 0, -12)
        master.start()
        master.wait_started()
        self.wait_stopped(slave)
        self.assert_kept(slave, before, producer)
        wait_until(lambda: "does not take our sound copy" in slave.log_path.read_text(),
                   seconds=60, what="an offer")
        status, said = self.dledger("ha-resolve", "--broker", slave.address, "--take-master")
        self.assertEqual(status, 1, said)
        self.assertIn("repair the master", said)
        self.assert_kept(slave, before, producer)
        master.end()
        name.write_bytes(content)
        master.start()
        master.wait_started()
        status, said = self.dledger("ha-resolve", "--broker", slave.address, "--try-again")
        self.assertEqual(status, 0, said)
        self.put_some(master, b"7 yyyyy")
        wait_until(lambda: any(one.body == b"7 yyyyy" for one in slave.messages(TOPIC)), seconds=60,
                   what="the slave follows")


def log_end(slave: Broker, *producers: Producer) -> int:
    """End of the last message, when all that were acknowledged are in their queues."""
    found = slave.messages(TOPIC, count=sum(len(one.acknowledged) for one in producers))
    return max(one.physical_offset + one.size for one in found)
