# -*- test-case-name: tests.hostile.test_brokers -*-
"""A broker among strangers: it serves its producer, in bounded memory, and starts again."""

from __future__ import annotations

import contextlib
import random
import resource
import socket
import struct
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from protocols.wire.remoting import RemotingCommand, encode_command
from tests.hostile.target import (
    MIB,
    GoodClient,
    highest_resident_mib,
    notify,
    send_slowly,
    serve_through,
    until,
)
from tests.processes.brokers import PULL_MESSAGE, Broker, Remoting
from tests.processes.children import free_triple

SLAVE_NOT_AVAILABLE = 11
UPDATE_AND_CREATE_TOPIC = 17
GET_ALL_TOPIC_CONFIG = 21
GET_BROKER_RUNTIME_INFO = 28
#: Nobody connects from this address.
NOWHERE = "203.0.113.1"


class BrokerCase(SynchronousTestCase):
    """One master, started for each test."""

    role = "async-master"
    options: Mapping[str, object] = {}
    descriptors: int | None = None

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="dledger-hostile-", ignore_cleanup_errors=True)
        self.addCleanup(folder.cleanup)
        self.directory = Path(folder.name)
        self.broker = Broker(
            "a", self.directory, role=self.role, port=free_triple(), descriptors=self.descriptors,
            options={"mapped_file_size_commit_log": 16 * MIB, **self.options},
        )
        self.addCleanup(self.broker.kill)
        self.broker.start()
        self.broker.wait_started()
        self.client = GoodClient(
            self.broker.address, self.directory / "client.log", module="tests.hostile.good_producer"
        )

    def serve_through(self, attack: Callable[[], object], *, share: float) -> None:
        """The producer keeps C{share} of its throughput through an attack, see L{HostileCase}."""
        serve_through(self, self.client, attack, share=share, p99_ms=700.0, calm_s=1.5)

    def connect(self, distance: int = 0) -> socket.socket:
        """A plain connection to the port at this distance from that for clients; closed by the test's end."""
        connection = socket.create_connection(("127.0.0.1", self.broker.port + distance), timeout=10)
        self.addCleanup(connection.close)
        return connection

    def slave_port(self, data: bytes, *, seconds: float = 3.0) -> bytes:
        """
        What a stranger at the port for slaves gets for C{data}, until it is closed or the time is over.

        A broker that refuses the host may reset the connection before the stranger has it.
        """
        got = b""
        stop = time.monotonic() + seconds
        with contextlib.suppress(ConnectionResetError, ConnectionAbortedError, BrokenPipeError):
            connection = self.connect(1)
            connection.settimeout(0.2)
            connection.sendall(data)
            while time.monotonic() < stop:
                with contextlib.suppress(TimeoutError):
                    piece = connection.recv(65536)
                    if not piece:
                        return got
                    got += piece
        return got

    def log_bytes(self) -> int:
        """Size of its log."""
        return self.broker.log_path.stat().st_size

    def assert_whole(self) -> None:
        """The broker is alive without a traceback, ends in order, and starts again with all messages."""
        self.assertTrue(self.broker.is_running, self.broker.log_tail())
        self.assertNotIn("Traceback", self.broker.log_path.read_text(errors="replace"))
        self.broker.end()
        self.broker.start()
        self.broker.wait_started()


class SlavePortTests(BrokerCase):
    """The port for slaves of a master whose slaves are elsewhere."""

    role = "sync-master"
    options = {"ha_allowed_hosts": NOWHERE}

    def test_fake_slave(self) -> None:
        """It gets no byte of the log, and no message counts as stored by it."""
        producer = Remoting(self.broker.address)
        self.addCleanup(producer.close)
        producer.put("Good", 0, b"secret")
        self.assertEqual(producer.next().code, SLAVE_NOT_AVAILABLE)
        end = sum(path.stat().st_size for path in (self.broker.store / "commitlog").iterdir())
        for said in (0, 1, 200, end):
            got = self.slave_port(struct.pack(">q", said), seconds=1.0)
            self.assertEqual(got, b"", said)
            producer.put("Good", 0, b"more")
            self.assertEqual(producer.next().code, SLAVE_NOT_AVAILABLE)
        self.assert_whole()


class HandshakeTests(BrokerCase):
    """The port for slaves of a master that takes slaves of this host."""

    role = "sync-master"

    def test_strange_reports(self) -> None:
        """Of controllers, nonsense, beyond the end: nothing is sent, nothing counts, the log is bounded."""
        producer = Remoting(self.broker.address)
        self.addCleanup(producer.close)
        for _ in range(50):
            producer.put("Good", 0, b"x" * 1000)
            producer.next()
        before = self.log_bytes()
        chance = random.Random(1)
        strange = [
            struct.pack(">iqqq", 1, 0, 0, 2), struct.pack(">ihhq", 1, 0, 0, 2), struct.pack(">iq", 2, 100),
            *(struct.pack(">q", value) for value in (-1, -5, 2**40, 2**62, 2**63 - 1, -(2**63))),
            struct.pack(">qq", 2**33, 1), b"GET / HTTP/1.1\r\n\r\n", chance.randbytes(64),
        ]
        for data in strange * 5:
            got = self.slave_port(data, seconds=0.3)
            self.assertLess(len(got), 1000, data)
            self.assertNotIn(b"x" * 500, got, data)
            producer.put("Good", 0, b"y")
            self.assertEqual(producer.next().code, SLAVE_NOT_AVAILABLE, data)
        self.assertLess(self.log_bytes() - before, 10_000)
        self.assert_whole()


class MemoryTests(BrokerCase):
    """Input that does not end, and output that is not read."""

    def test_half_frames(self) -> None:
        """60 frames of 8 MiB without their last byte."""

        def attack() -> None:
            head = struct.pack(">ii", 8 * MIB, 100) + b"{" * 100
            for _ in range(60):
                connection = self.connect()
                send_slowly(connection, head + b"x" * (8 * MIB - 200), seconds=0.1)
            time.sleep(1.0)

        self.serve_through(attack, share=0.2)
        highest = highest_resident_mib(self.broker.pid)
        notify(f"at most {highest:.0f} MiB resident")
        self.assertLess(highest, 300)
        self.assert_whole()

    def test_unread_pulls(self) -> None:
        """20 connections pipeline 200 pulls of 8 MiB each, and read nothing."""
        filler = Remoting(self.broker.address)
        for _ in range(16):
            filler.put("Large", 0, b"x" * MIB)
            self.assertEqual(filler.next().code, 0)
        filler.close()
        fields = {
            "consumerGroup": "g", "topic": "Large", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32",
            "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*",
            "subVersion": "0", "expressionType": "TAG",
        }
        pulls = b"".join(
            encode_command(RemotingCommand(code=PULL_MESSAGE, opaque=number, ext_fields=fields))
            for number in range(200)
        )

        def attack() -> None:
            for _ in range(20):
                send_slowly(self.connect(), pulls, seconds=0.5)
            time.sleep(2.0)

        self.serve_through(attack, share=0.2)
        highest = highest_resident_mib(self.broker.pid)
        notify(f"at most {highest:.0f} MiB resident")
        self.assertLess(highest, 500)
        self.assert_whole()


class CostlyTests(BrokerCase):
    """Requests that take the broker long."""

    def test_many_that_ask(self) -> None:
        """
        A thousand topics are made by requests of which five hundred come at once. Then sixty connections ask
        for facts and for the table of topics, four hundred times each and in one piece, and read no answer:
        the producer waits for a few of them, not for all.
        """
        maker = Remoting(self.broker.address)
        for first in (0, 500):
            for number in range(first, first + 500):
                maker.send(UPDATE_AND_CREATE_TOPIC, {
                    "topic": f"T{number}", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6",
                })
            self.assertEqual({maker.next().code for _ in range(500)}, {0})
        maker.close()
        asked = b"".join(
            encode_command(RemotingCommand(code=code, opaque=number))
            for number, code in enumerate((GET_BROKER_RUNTIME_INFO, GET_ALL_TOPIC_CONFIG) * 200)
        )

        def attack() -> None:
            held = [self.connect() for _ in range(60)]
            for connection in held:
                connection.sendall(asked)
            time.sleep(3.0)
            for connection in held:
                connection.close()

        self.serve_through(attack, share=0.2)
        self.assertLess(highest_resident_mib(self.broker.pid), 600)
        self.assert_whole()


class DescriptorTests(BrokerCase):
    """256 descriptors."""

    descriptors = 256

    def test_many_topics(self) -> None:
        """400 topics are made by messages; it serves, stops, and starts again under the same limit."""
        producer = Remoting(self.broker.address)
        for number in range(400):
            producer.put(f"T{number}", number % 4, b"x")
            self.assertEqual(producer.next().code, 0, number)
        producer.close()
        self.assert_whole()
        self.assertEqual(len(self.broker.messages("T399", count=1)), 1)
        self.broker.kill()
        self.broker.start()
        self.broker.wait_started()
        self.assertEqual(len(self.broker.messages("T0", count=1)), 1)

    def test_many_connections(self) -> None:
        """2,000 come and none takes the producer's place, or the store's; then there is room again."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))

        def attack() -> None:
            strangers = []
            for _ in range(2000):
                with contextlib.suppress(OSError):
                    strangers.append(socket.create_connection(("127.0.0.1", self.broker.port), timeout=2))
            time.sleep(1.0)
            for one in strangers:
                one.close()

        self.serve_through(attack, share=0.2)

        def has_room() -> bool:
            with contextlib.suppress(OSError):
                connection = Remoting(self.broker.address, seconds=2.0)
                with contextlib.closing(connection):
                    return connection.ask(43, {}).code == 0
            return False

        self.assertTrue(until(has_room, seconds=15))
        self.assertLess(self.log_bytes(), 50_000)
        self.assertNotIn("Too many open files", self.broker.log_path.read_text(errors="replace"))
        self.assert_whole()


class NoiseTests(BrokerCase):
    """Bytes without a meaning, and requests that nobody answers."""

    def test_garbage(self) -> None:
        """On every port, and unknown codes: each is refused, the log is bounded."""
        before = self.log_bytes()
        chance = random.Random(2)

        def attack() -> None:
            for round_number in range(150):
                for distance in (0, -2, 1):
                    data = chance.choice((
                        chance.randbytes(chance.randrange(1, 300)), b"GET / HTTP/1.1\r\n\r\n",
                        struct.pack(">i", -1), struct.pack(">ii", 50, 2**24 + 40) + b"{" * 46,
                        b"\xd1" + chance.randbytes(40), struct.pack(">ii", 20, 16) + b'{"code":310,"a":' ,
                    ))
                    with contextlib.suppress(OSError):
                        self.connect(distance).sendall(data)
                codes = [chance.randrange(-5, 100_000) for _ in range(20)]
                send_slowly(self.connect(), b"".join(
                    encode_command(RemotingCommand(code=code, opaque=number, ext_fields={"group": "g"}))
                    for number, code in enumerate(codes)
                ), seconds=1.0)
                if round_number % 50 == 0:
                    time.sleep(0.1)

        self.serve_through(attack, share=0.1)
        notify(f"the log grew by {self.log_bytes() - before} bytes")
        self.assertLess(self.log_bytes() - before, 100_000)
        self.assertTrue(self.broker.is_running, self.broker.log_tail())
        self.assert_whole()
