# -*- test-case-name: tests.namesrv.test_service -*-
"""The life of a name server: start, idle and slow connections, hostile bytes, the end."""

from __future__ import annotations

import zlib
from typing import Any

import attrs
from twisted.internet.defer import Deferred, fail
from twisted.internet.error import CannotListenError
from twisted.internet.task import Clock
from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from dledger.base.disk.disk import Disk
from dledger.rocketmq.answering.refusals import Code, Refused
from dledger.rocketmq.namesrv.config import name_server_from_mapping
from dledger.rocketmq.namesrv.service import NameServerService
from dledger.testing.world.memory_disk import MemoryDisk
from protocols.turn import READS_S
from protocols.wire.remoting import RemotingCommand, encode_command
from tests.broker.test_service import Endpoint, Threads
from tests.namesrv.support import KV, header_of
from tests.namesrv.test_commands import topics
from tests.protocols.fakes import FakeTransport, plug, sent_commands


class _Taken(Endpoint):
    """A port that another program has."""

    def listen(self, factory: Any) -> Deferred[Any]:
        """See IStreamServerEndpoint."""
        return fail(CannotListenError("", 9876, OSError(98, "Address already in use")))


class ServiceCase(SynchronousTestCase):
    """Name servers on one disk."""

    def setUp(self) -> None:
        self.disk: Disk = MemoryDisk()
        self.clock = Clock()
        self.reasons: list[str] = []

    def make(self, endpoint: Endpoint | None = None, **options: Any) -> NameServerService:
        """Not started."""
        self.threads = Threads()
        made: Any = endpoint or Endpoint(9876)
        reactor: Any = self.clock
        config = name_server_from_mapping({"kv": KV, "changeHosts": "192.168.1.1", **options})
        return NameServerService(
            config, reactor, made, disk=self.disk,
            failed=self.reasons.append, threads=self.threads, wall_s=lambda: 0.0,
        )

    def start(self, **options: Any) -> NameServerService:
        """Started."""
        service = self.make(**options)
        service.startService()
        self.settle()
        return service

    def settle(self, seconds: float = 0.1) -> None:
        """The reactor runs."""
        self.clock.pump([0.01] * round(seconds * 100))

    def stop(self, service: NameServerService) -> None:
        """In order."""
        stopped = service.stopService()
        self.settle(1.5)
        self.successResultOf(stopped)
        self.assertFalse(self.threads.is_running)

    def connect(self, service: NameServerService) -> tuple[Any, FakeTransport]:
        """A connection, which closes as a real one does."""
        connection: Any = service.side.buildProtocol(None)
        transport = plug(connection)
        self.patch(transport, "loseConnection", lambda: connection.abort("closed"))
        return connection, transport

    def ask(self, peer: tuple[Any, FakeTransport], code: int, fields: Any = None, body: bytes = b"") -> Any:
        """The last answer."""
        peer[0].dataReceived(encode_command(RemotingCommand(
            code=code, opaque=1, version=409, ext_fields=fields or {}, body=body
        )))
        self.settle()
        return sent_commands(peer[1].value())[-1]


class PlaceTests(ServiceCase):
    """The options for connections."""

    def test_share(self) -> None:
        """Of one address."""
        service = self.make(connectionsMax=100, connectionsShare=10)
        self.assertEqual((service.side.clients.places, service.side.clients.share), (84, 8))


class LifeTests(ServiceCase):
    """From start to end."""

    def test_restart(self) -> None:
        """Brokers register again; the KV configuration is kept."""
        service = self.start()
        self.assertEqual((service.status().problem, service.port), ("", 9876))
        peer = self.connect(service)
        self.ask(peer, 103, header_of(), topics("A", "B"))
        self.ask(peer, 100, {"namespace": "N", "key": "k", "value": "v"})
        self.assertEqual((service.status().brokers, next(service.brokers()).broker_ids), (1, (0,)))
        self.stop(service)
        self.assertTrue(peer[0].is_lost)
        again = self.start()
        self.assertEqual((again.status().brokers, again.values.get("N", "k")), (0, "v"))
        self.stop(again)
        self.assertEqual(self.reasons, [])

    def test_changes(self) -> None:
        """Only from hosts that may."""
        service = self.start(changeHosts="")
        peer = self.connect(service)
        answer = self.ask(peer, 100, {"namespace": "N", "key": "k", "value": "v"})
        self.assertEqual((answer.code, service.values.get("N", "k")), (16, None))
        self.stop(service)

    def test_stop_waits_for_the_write(self) -> None:
        """A change that is under way is in the file, and answered."""
        service = self.start()
        writes: list[tuple[Any, Deferred[None]]] = []

        def later(call: Any) -> Deferred[None]:
            writes.append((call, Deferred()))
            return writes[-1][1]

        self.patch(service.values, "_run_in_thread", later)
        peer = self.connect(service)
        peer[0].dataReceived(encode_command(RemotingCommand(
            code=100, opaque=1, ext_fields={"namespace": "N", "key": "k", "value": "v"}
        )))
        stopped = service.stopService()
        self.settle()
        self.assertNoResult(stopped)
        call, done = writes.pop()
        call()
        done.callback(None)
        self.settle(1.5)
        self.successResultOf(stopped)
        self.assertEqual([one.code for one in sent_commands(peer[1].value())], [0])
        self.assertIn(b'"k":"v"', self.disk.read_file(KV))

    def test_cannot_start(self) -> None:
        """A damaged file, a file in use, a port in use: the process ends, with the reason."""
        first = self.start()
        second = self.make()
        second.startService()
        self.assertIn("another name server uses this KV configuration", self.reasons.pop())
        self.stop(second)
        self.stop(first)
        taken = self.make(_Taken(9876))
        taken.startService()
        self.settle()
        self.assertIn("cannot listen", self.reasons.pop())
        self.assertIn("cannot listen", taken.status().problem)
        self.stop(taken)
        self.disk.write_file(KV, b"{")
        damaged = self.make()
        damaged.startService()
        self.assertIn("move the file away", self.reasons.pop())
        self.stop(damaged)

    def test_expiry(self) -> None:
        """A broker that is connected and silent is forgotten after 120 s; its connection was idle, too."""
        service = self.start()
        peer = self.connect(service)
        self.ask(peer, 103, header_of(), topics("A", "B"))
        for _ in range(119):
            self.clock.advance(1)
        self.assertEqual(service.status().brokers, 1)
        for _ in range(8):
            self.clock.advance(1)
        self.assertEqual(service.status().brokers, 0)
        self.assertTrue(peer[0].is_lost)
        self.stop(service)

    def test_idle(self) -> None:
        """A connection without traffic ends after the option's time."""
        service = self.start(serverChannelMaxIdleTimeSeconds=10)
        peer = self.connect(service)
        self.ask(peer, 206)
        for _ in range(9):
            self.clock.advance(1)
        self.assertFalse(peer[0].is_lost)
        for _ in range(3):
            self.clock.advance(1)
        self.assertTrue(peer[0].is_lost)
        self.stop(service)

    def test_frozen(self) -> None:
        """What brokers sent while this process was frozen is read before they are judged; then they are."""
        service = self.start()
        peer, silent = self.connect(service), self.connect(service)
        self.ask(peer, 103, header_of(), topics("A", "B"))
        self.ask(silent, 103, header_of(address="s:1", broker_id=1), topics("A", "B"))
        self.clock.advance(500)
        self.assertEqual((service.status().brokers, peer[0].is_lost), (2, False))
        self.ask(peer, 103, header_of(), topics("A", "B"))
        for _ in range(6):
            self.clock.advance(1)
        self.assertEqual((list(service.routes.live), peer[0].is_lost), ([("C", "127.0.0.1:1")], False))
        self.assertTrue(silent[0].is_lost)
        self.stop(service)

    def test_always_late(self) -> None:
        """Only the first of several late ticks waits: a silent broker does not live for ever."""
        service = self.start()
        self.ask(self.connect(service), 103, header_of(), topics("A", "B"))
        for _ in range(40):
            self.clock.advance(5)
        self.assertEqual(service.status().brokers, 0)
        self.stop(service)

    def test_traffic_is_no_registration(self) -> None:
        """A broker whose connection is used, but that does not register, is forgotten all the same."""
        service = self.start()
        peer = self.connect(service)
        self.ask(peer, 103, header_of(), topics("A", "B"))
        for _ in range(127):
            self.clock.advance(1)
            if not peer[0].is_lost:
                peer[0].dataReceived(encode_command(RemotingCommand(code=106, opaque=1)))
        self.assertEqual((service.status().brokers, service.status().brokers_expired), (0, 1))
        self.stop(service)

    def test_tick_fails(self) -> None:
        """A bug there ends the process instead of letting brokers live for ever."""
        service = self.start()
        self.patch(service.side, "sweep", lambda now_s: 1 // 0)
        self.settle(1.0)
        self.assertIn("tick of the name server", self.reasons[0])
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        self.stop(service)


class HostileTests(ServiceCase):
    """Bytes of strangers."""

    def test_reread(self) -> None:
        """Limits and what mqadmin may change are taken while it runs; the rest needs a restart."""
        service = self.start()
        config = service.options.config
        wanted = attrs.evolve(
            config, connections_max=64, connections_share=20, order_message_enable=True,
            kv_config_path="other",
        )
        taken = service.reread(wanted)
        self.assertEqual(taken, {"connections_max", "connections_share", "order_message_enable"})
        self.assertEqual((service.side.clients.share_percent, service.side.connections_max), (20, 64))
        self.assertEqual(service.options.config.kv_config_path, config.kv_config_path)
        self.stop(service)

    def test_bodies(self) -> None:
        """Bombs, counts, nesting: each is refused with a sentence, and the next request is answered."""
        service = self.start()
        peer = self.connect(service)
        packed = {**header_of(), "compressed": "true"}
        for fields, body in (
            (packed, zlib.compress(bytes(20 << 20))), (packed, zlib.compress(b"\0\0\0\0\x7f\xff\xff\xff")),
            (packed, b"x"), (header_of(), b"[" * 100_000), (header_of(), b'{"a":' * 100_000),
            (header_of(), b'{"topicConfigSerializeWrapper":{"dataVersion":{"counter":1e999999999}}}'),
            (header_of(), b"\xff" * 1000),
        ):
            answer = self.ask(peer, 103, fields, body)
            self.assertEqual(answer.code, 1)
            self.assertIn("Failed to decode RegisterBrokerBody", answer.remark)
        self.assertEqual(service.status().brokers, 0)
        self.assertEqual(self.ask(peer, 206).body, b'{"topicList":[]}')
        self.ask(peer, 99_999)
        self.assertEqual({code: n for code, n in service.requests().items() if n}, {103: 7, 206: 1})
        self.assertEqual(service.status().failed_requests, 0)
        self.assertEqual(service.request_times().count, 8)  # (Unknown codes are not timed.)
        self.stop(service)

    def test_seconds(self) -> None:
        """Requests are timed by the clock, those that are refused, too."""
        service = self.start()
        peer = self.connect(service)

        def slow(connection: Any, command: Any) -> None:
            self.clock.rightNow += 0.25
            raise Refused(Code.SYSTEM_ERROR, "no")

        service.side.handlers_by_code[105] = slow
        self.ask(peer, 105, {"topic": "T"})
        times = service.request_times()
        self.assertEqual((times.count, times.total), (1, 0.25))
        self.stop(service)

    def test_frames(self) -> None:
        """Half frames and no frames end their own connection only."""
        service = self.start()
        half = self.connect(service)
        half[0].dataReceived(encode_command(RemotingCommand(code=206, opaque=1))[:-1])
        with capturedLogs():
            for data in (b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\x04\x7f\xff\xff\xff", b"\xff" * 8):
                peer = self.connect(service)
                peer[0].dataReceived(data)
                self.settle()
                self.assertTrue(peer[0].is_lost, data)
        self.assertFalse(half[0].is_lost)
        for _ in range(40):
            self.clock.advance(1)
        self.assertTrue(half[0].is_lost)  # its frame was not complete in time
        self.stop(service)

    def test_pipelined_lists(self) -> None:
        """Many requests for a large list in one read: few are answered until the client reads the answers."""
        service = self.start()
        peer = self.connect(service)
        names = [f"{number:05}" + "x" * 200 for number in range(20_000)]
        self.assertEqual(self.ask(peer, 103, header_of(), topics(*names)).code, 0)
        other = self.connect(service)
        other[0].dataReceived(b"".join(
            encode_command(RemotingCommand(code=206, opaque=number)) for number in range(30)
        ))
        other[0].pauseProducing()
        self.settle()
        self.assertLess(len(sent_commands(other[1].value())), 5)
        other[0].resumeProducing()
        self.settle()
        self.assertEqual([one.code for one in sent_commands(other[1].value())], [0] * 30)
        self.stop(service)


class CostlyRequestTests(ServiceCase):
    """Every request takes more than half of the time that the reads of one turn have."""

    def setUp(self) -> None:
        super().setUp()
        self.service = self.start()
        self.handled: list[int] = []

        def handle(connection: Any, request: RemotingCommand) -> None:
            self.handled.append(request.opaque)
            self.clock.rightNow += 0.6 * READS_S
            connection.answer(request)

        self.service.side.handlers_by_code[206] = handle

    def requests(self, first: int, count: int) -> bytes:
        """Requests of one read."""
        return b"".join(
            encode_command(RemotingCommand(code=206, opaque=first + number)) for number in range(count)
        )

    def test_others_come_between(self) -> None:
        """Of many requests of one client two are handled in a turn; a client with a single one passes it."""
        flooding, single = self.connect(self.service), self.connect(self.service)
        flooding[0].dataReceived(self.requests(100, 20))
        self.assertEqual(self.handled, [100, 101])
        single[0].dataReceived(self.requests(1, 1))
        flooding[0].dataReceived(self.requests(120, 3))
        self.settle()
        self.assertEqual(self.handled[2], 1)
        self.assertEqual([one for one in self.handled if one > 1], list(range(100, 123)))
        self.assertEqual([one.opaque for one in sent_commands(flooding[1].value())], list(range(100, 123)))
        self.assertAlmostEqual(flooding[0].spent_s, 23 * 0.6 * READS_S)

    def test_connection_lost(self) -> None:
        """Its requests are dropped, and nothing refers to it."""
        connection, _transport = self.connect(self.service)
        connection.dataReceived(self.requests(100, 20))
        connection.abort("lost")
        self.settle()
        self.assertEqual((self.handled, self.service.side.unread), ([100, 101], {}))

    def test_ended_by_a_request(self) -> None:
        """The requests after it are not handled."""
        def end(connection: Any, _request: RemotingCommand) -> None:
            self.clock.rightNow += 0.02
            connection.abort("ended")

        self.service.side.handlers_by_code[206] = end
        connection, _transport = self.connect(self.service)
        connection.dataReceived(self.requests(100, 20))
        self.assertEqual(self.service.side.unread, {})
