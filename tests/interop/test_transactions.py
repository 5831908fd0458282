# -*- test-case-name: tests.interop.test_transactions -*-
"""
Java's producers of transactions and a broker of ours: ended at once, after a question, over a kill; and a
broker of Java's that finishes what ours began, and the other way round.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from tests.interop.ha import Broker, JavaBroker, OurBroker
from tests.interop.java import JavaMissing
from tests.interop.rocketmq import PATIENCE, Server, class_path, java_command
from tests.interop.test_ha_consumers import Consumers
from tests.processes.children import TalkingChild, free_ports, free_triple, wait_until

#: Half messages are asked about soon.
_SOON = {"transactionCheckInterval": 1000, "transactionTimeOut": 1000}
_LATE = {"transactionCheckInterval": 3_600_000, "transactionTimeOut": 1000}


class Producer(TalkingChild):
    """C{Transactions.java}."""

    def __init__(self, name_server: str, directory: Path, version: str) -> None:
        command = java_command(version, directory, "128m", "Transactions", name_server)
        super().__init__("transactions", command, log_path=directory / "transactions.log")

    def begin(self, local: str, checked: str, *bodies: str, topic: str = "paid") -> None:
        """Begin a transaction for each body; repeat it until the broker is known."""
        line = f"send {topic} {local} {checked} {' '.join(bodies)}"
        said: list[str] = []

        def is_sent() -> bool:
            said[:] = [self.ask(line, seconds=PATIENCE)]
            return not said[0].startswith("failed")

        wait_until(is_sent, seconds=PATIENCE, what=f"{line}: {said}", every=0.5)
        words = said[0].split(" ")[1:]
        assert all(word.startswith("SEND_OK/") for word in words), said

    def answer(self, checked: str, *bodies: str) -> None:
        """Brokers that ask from now on get another answer."""
        self.ask(f"answer {checked} {' '.join(bodies)}", seconds=PATIENCE)

    def asked(self) -> int:
        """The number of questions so far."""
        return int(self.ask("asked", seconds=PATIENCE))


class TransactionTests(SynchronousTestCase):
    """One name server, one broker at a time, on one store."""

    def begin(self, version: str) -> None:
        """A broker of ours, a producer and a consumer."""
        try:
            class_path(version)
        except JavaMissing as missing:
            raise SkipTest(str(missing)) from None
        held = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(held.cleanup)
        self.directory = Path(held.name)
        (name_port,) = free_ports(1)
        name_server = Server("namesrv", "namesrv.NamesrvStartup", {"listenPort": name_port},
                             self.directory / "namesrv", version)
        self.address, self.version = f"127.0.0.1:{name_port}", version
        self.port = free_triple()
        self.producer = Producer(self.address, self.directory, version)
        self.consumers = Consumers(self.address, self.directory, version)
        self.addCleanup(name_server.kill)
        name_server.start()
        name_server.wait_started(seconds=PATIENCE)
        self.broker: Broker = self.ours()
        self.run_broker(_SOON)
        for child in (self.producer, self.consumers):
            self.addCleanup(child.kill)
            child.start()
            child.wait_started(seconds=PATIENCE)
        self.seen: list[str] = []

    def ours(self) -> OurBroker:
        """On the store of the test."""
        return OurBroker("ours", self.directory / "ours", port=self.port, name_server=self.address,
                         store=self.directory / "store")

    def java(self) -> JavaBroker:
        """On the same store."""
        return JavaBroker("java", self.directory / "java", self.version, port=self.port,
                          name_server=self.address, store=self.directory / "store")

    def run_broker(self, options: dict[str, int]) -> None:
        """Start it, as a master."""
        self.addCleanup(self.broker.kill)
        self.broker.become("ASYNC_MASTER", **options)
        self.broker.start()
        self.broker.wait_started(seconds=PATIENCE)

    def consume(self, *bodies: str) -> None:
        """Wait until the consumer has all of these."""

        def are_there() -> bool:
            self.seen += [one.body for one in self.consumers.seen("reader", 1, seconds=1)]
            return set(bodies) <= set(self.seen)

        wait_until(are_there, seconds=PATIENCE, what=f"{bodies}; there are {self.seen}", every=0.2)

    def check(self) -> None:
        """The whole story."""
        producer = self.producer
        producer.begin("commit", "commit", "c1", "c2")
        producer.begin("rollback", "commit", "r1")
        self.consumers.push("reader", "paid")
        self.consume("c1", "c2")
        self.assertEqual(producer.asked(), 0)
        producer.begin("unknown", "commit", "u1")
        producer.begin("unknown", "rollback", "u2")
        self.consume("u1")
        # A broker that is killed between the two halves.
        producer.begin("unknown", "commit", "k1")
        self.broker.kill()
        self.run_broker(_LATE)
        producer.begin("unknown", "commit", "j1")
        producer.begin("unknown", "rollback", "j2")
        # A broker of Java's on the same directory asks about what ours has.
        self.broker.stop()
        self.broker = self.java()
        self.run_broker(_SOON)
        self.consume("k1", "j1")
        producer.begin("commit", "commit", "c3")
        self.consume("c3")
        self.broker.stop()
        self.run_broker(_LATE)
        producer.begin("unknown", "commit", "o1")
        self.broker.stop()
        self.broker = self.ours()
        self.run_broker(_SOON)
        self.consume("o1")
        self.assertEqual(set(self.seen), {"c1", "c2", "u1", "k1", "j1", "c3", "o1"})

    def test_4_9_8(self) -> None:
        """Clients and brokers of 4.9."""
        self.begin("4.9.8")
        self.check()

    def test_5_3_3(self) -> None:
        """Clients and brokers of 5.x."""
        self.begin("5.3.3")
        self.check()
