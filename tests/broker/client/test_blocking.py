# -*- test-case-name: tests.broker.client.test_blocking -*-
"""A broker for programs without a reactor: real threads and sockets, a log in memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

from twisted.internet.protocol import ServerFactory
from twisted.trial.unittest import SynchronousTestCase

from dledger.base.reactor_thread import Outcome, ReactorThread
from dledger.rocketmq.client.blocking import Broker
from dledger.rocketmq.client.producer import PutLimits
from dledger.rocketmq.client.values import PutRefused, PutUnknown
from dledger.rocketmq.store.log_reads import LogReads
from dledger.rocketmq.store.records.bad_records import BadRecords
from dledger.testing.world.memory_disk import MemoryDisk
from dledger.values.errors import DLedgerError
from protocols.rocketmq.broker import BrokerConnection, NativeRequests
from protocols.rocketmq.commands import CommandConnection
from protocols.turn import Turn
from protocols.wire.codes import ResponseCode
from protocols.wire.errors import WireError
from protocols.wire.remoting import RemotingCommand
from protocols.wire.rocketmq.broker_frames import OffsetsAnswer, PutAnswer, PutRequest, ReadRequest
from protocols.wire.rocketmq.message import decode_message
from tests.broker.support import Reported, config_of, message, open_log


class LiveBroker(ServerFactory):
    """
    Listens in a reactor of its own.

    @ivar refuses: bodies that are not stored: to the code they are refused with.
    """

    noisy = False

    def __init__(self, *, is_java: bool = False) -> None:
        self._thread = ReactorThread("broker")
        self.reactor: Any = self._thread.reactor
        self.is_java = is_java
        self.refuses: dict[bytes, int] = {}
        reported = Reported()
        self.log = open_log(MemoryDisk(), config=config_of(mapped_file_size_commit_log=1 << 16),
                            events=reported)
        self._turn = Turn(self.reactor, lambda failure: failure.raiseException())
        self._reads = LogReads(self.log, clock=self.reactor, turn=self._turn, bad=BadRecords())
        reported.also.append(self._reads.grown)
        self._connections: set[CommandConnection] = set()
        self._port: Any = None
        self.port = 0
        self.listen()

    def listen(self) -> None:
        """On the port that it had before, if it had one."""
        def start() -> int:
            self._port = self.reactor.listenTCP(self.port, self, interface="127.0.0.1")
            return int(self._port.getHost().port)

        self.port = self.call(start)

    def leave(self) -> None:
        """Nobody listens, and every connection ends."""
        def end() -> None:
            self._port.stopListening()
            for connection in list(self._connections):
                connection.abort("the broker leaves")

        self.call(end)

    def call(self, function: Any) -> Any:
        """In its thread."""
        from twisted.internet.defer import maybeDeferred

        return self._thread.wait(lambda: maybeDeferred(function))

    def put(self, *bodies: bytes, topic: str = "T1") -> None:
        """Append messages."""
        self.call(lambda: self.log.append([[message(body, topic=topic)] for body in bodies], 5))

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"127.0.0.1:{self.port}"

    def stop(self) -> None:
        """End it."""
        self.leave()
        self._thread.stop(self._reads.answer_waiting)

    def buildProtocol(self, addr: Any) -> BrokerConnection:
        """See ServerFactory."""
        return BrokerConnection(self, self._turn, native=self)

    def connected(self, connection: CommandConnection) -> None:
        """See CommandSink."""
        self._connections.add(connection)

    def connection_lost(self, connection: CommandConnection, reason: str) -> None:
        """See CommandSink."""
        self._connections.discard(connection)

    def drained(self, connection: CommandConnection) -> None:
        """See CommandSink."""

    def wire_broken(self, connection: CommandConnection, error: WireError) -> None:
        """See CommandSink."""
        raise AssertionError(error)

    def no_place(self, connection: CommandConnection) -> str:
        """Everybody has one."""
        return ""

    def commands_received(self, connection: CommandConnection, commands: list[RemotingCommand]) -> None:
        """Only what version of native frames it understands."""
        for command in commands:
            if self.is_java:
                connection.answer_not_supported(command)
            else:
                connection.answer(command, ext_fields={"brokerWireVersion": "1"})

    def natives_received(self, connection: BrokerConnection, requests: NativeRequests) -> None:
        """Store, read, report."""
        for ticket, request in requests:
            if isinstance(request, ReadRequest):
                self._reads.read(connection, ticket, request)
            elif isinstance(request, PutRequest):
                connection.answer_native(ticket, self._put(request))
            else:
                connection.answer_native(ticket, OffsetsAnswer(
                    begin_offset=self.log.begin_offset, end_offset=self.log.record_end, broker_role="SLAVE"))

    def _put(self, request: PutRequest) -> PutAnswer:
        for body in request.bodies:
            if body in self.refuses:
                code = self.refuses[body]
                return PutAnswer(code=code, offsets=(-1,) * len(request.bodies) if code == 1 else ())
        stored = self.log.append([[message(body, topic=request.topic)] for body in request.bodies], 5)
        return PutAnswer(
            code=0, queue_id=0, queue_offset=0, store_timestamp=5, offsets=tuple(stored.offsets)
        )


class BrokerTests(SynchronousTestCase):
    """Calls that wait."""

    def setUp(self) -> None:
        self.live = LiveBroker()
        self.addCleanup(self.live.stop)

    def opened(self, **options: Any) -> Broker:
        """A client."""
        broker = Broker(self.live.address, **options)
        self.addCleanup(broker.close)
        return broker

    def test_put_and_read(self) -> None:
        """What was put is there."""
        with self.opened() as broker:
            stored = broker.put("T1", b"a", properties={"TAGS": "A"})
            self.assertEqual((stored.status, stored.offsets), ("PUT_OK", (0,)))
            summary = broker.put_many("T1", (b"%d" % at for at in range(1000)), window=100)
            self.assertEqual((summary.count, summary.statuses), (1000, {"PUT_OK": 1000}))
            found = [decode_message(record).body for batch in broker.tail() for _, record in batch.records()]
            self.assertEqual(found, [b"a", *(b"%d" % at for at in range(1000))])
            offsets = broker.offsets()
            self.assertEqual((offsets.role, offsets.begin_offset), ("SLAVE", 0))
            self.assertEqual(offsets.end_offset, batch_end(broker))

    def test_put_many_refused(self) -> None:
        """It ends, and says how many are stored; unknown if any is."""
        for code, kind in ((2, PutRefused), (1, PutUnknown)):
            self.live.refuses = {b"500": code}
            with self.opened() as broker:
                error = self.assertRaises(
                    kind, broker.put_many, "T1", [b"%d" % at for at in range(100_000)], window=40)
                acknowledged = error.facts["acknowledged"]
                assert isinstance(acknowledged, int)
                self.assertTrue(400 <= acknowledged <= 600, acknowledged)
        self.assertRaises(ValueError, self.opened().put_many, "T1", [], window=0)

    def test_put_many_leaves_no_hole(self) -> None:
        """After an unknown message nothing follows that was not sent with it, however much was pulled."""
        plain, live = self.live._put, self.live
        is_sent, all_pulled = threading.Event(), threading.Event()
        seen: list[PutRequest] = []

        def bodies() -> Iterator[bytes]:
            yield from (b"first" for _ in range(250))
            is_sent.wait(10.0)
            yield from (b"%d" % number for number in range(500))
            all_pulled.set()
            yield b"last"

        def put(request: PutRequest) -> PutAnswer:
            seen.append(request)
            is_sent.set()
            all_pulled.wait(10.0)
            live.refuses = {b"first": 1} if len(seen) == 1 else {}
            return plain(request)

        live._put = put  # type: ignore[method-assign]
        with self.opened(limits=PutLimits(frames_in_flight_max=1)) as broker:
            error = self.assertRaises(PutUnknown, broker.put_many, "T1", bodies(), window=1000)
        self.assertEqual((error.unknown, error.facts["acknowledged"]), (250, 0))
        self.assertGreaterEqual(error.refused, 250)
        self.assertEqual(len(seen), 1)

    def test_put_many_again(self) -> None:
        """The failure of one call does not end the next one."""
        self.live.refuses = {b"bad": 1}
        with self.opened() as broker:
            self.assertRaises(PutUnknown, broker.put_many, "T1", [b"bad"])
            self.assertEqual(broker.put_many("T1", [b"good"] * 9, window=4).count, 9)

    def test_follow(self) -> None:
        """Over the end of the broker: each message is seen once, and trouble is reported."""
        troubles: list[str] = []
        with self.opened() as broker:
            tail = broker.tail("begin", follow=True, on_trouble=troubles.append)
            seen: list[bytes] = []

            def read(count: int) -> None:
                while len(seen) < count:
                    seen.extend(decode_message(record).body for _, record in next(tail).records())

            self.live.put(b"1")
            read(1)
            self.live.leave()
            self.live.put(b"2", b"3")
            self.live.listen()
            read(3)
            tail.close()
        self.assertEqual(seen, [b"1", b"2", b"3"])
        self.assertEqual([bool(one) for one in troubles], [True, False])

    def test_an_interrupted_tail_goes_on(self) -> None:
        """Ctrl-C ends the wait, not the tail; one that is dropped leaves nothing behind."""
        with self.opened() as broker:
            self.live.put(b"1", b"2")
            tail = broker.tail("begin", follow=True)
            interrupted = self.patch(Outcome, "result", Mock(side_effect=KeyboardInterrupt))
            self.assertRaises(KeyboardInterrupt, next, tail)
            interrupted.restore()
            bodies = [decode_message(record).body for _, record in next(tail).records()]
            self.assertEqual(bodies, [b"1", b"2"])
            dropped = broker.tail("begin", follow=True)
            next(dropped)
            sources = [tail.source, dropped.source]
            tail.close()
            del dropped
            broker.offsets()
            self.assertEqual([source.is_closed for source in sources], [True, True])

    def test_nobody_there(self) -> None:
        """An error when the time is over."""
        self.live.leave()
        broker = self.opened(timeout=0.3)
        self.assertRaises(PutRefused, broker.put, "T1", b"a")
        error = self.assertRaises(DLedgerError, next, broker.tail())
        self.assertIs(error.code, ResponseCode.NETWORK_ERROR)

    def test_java(self) -> None:
        """It is informed that this is for brokers of ours."""
        self.live.is_java = True
        broker = self.opened()
        self.assertIs(self.assertRaises(DLedgerError, broker.offsets).code, ResponseCode.UNSUPPORTED)
        self.assertIs(self.assertRaises(PutRefused, broker.put, "T", b"").code, ResponseCode.UNSUPPORTED)

    def test_addresses(self) -> None:
        """What is none."""
        for text in ("", "host", "host:", ":1", "host:0", "host:65536", "host:x"):
            self.assertRaises(ValueError, Broker, text)


def batch_end(broker: Broker) -> int:
    """Where reading of everything ends."""
    last = 0
    for batch in broker.tail():
        last = batch.next_offset
    return last

