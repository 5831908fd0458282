# -*- test-case-name: tests.broker.test_service -*-
"""A whole broker without sockets: how it starts, serves, fails and ends."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from twisted.application.service import IService
from twisted.internet.defer import Deferred, execute, fail, succeed
from twisted.internet.error import CannotListenError
from twisted.internet.task import Clock
from twisted.logger import capturedLogs, formatEvent
from twisted.trial.unittest import SynchronousTestCase

from dledger.base.disk.disk import Disk
from dledger.rocketmq.broker.following import Following
from dledger.rocketmq.broker.options.config import broker_from_mapping
from dledger.rocketmq.broker.parts import BrokerParts
from dledger.rocketmq.broker.replication import HAReplication
from dledger.rocketmq.broker.service import BrokerPorts, BrokerProcess, BrokerService
from dledger.rocketmq.replication.slave import LogRange
from dledger.rocketmq.replication.slave_session import Difference
from dledger.testing.world.memory_disk import MemoryDisk
from dledger.values.errors import DLedgerError, StoreError
from protocols.wire.remoting import RemotingCommand, encode_command
from tests.broker.send_support import send_of
from tests.protocols.fakes import FakeTransport, plug, sent_commands

WALL_S = 1_700_000_000.0


class Port:
    """A listening port."""

    def __init__(self, number: int) -> None:
        self.port = number
        self.host = "127.0.0.1"
        self.is_stopped = False

    def getHost(self) -> Port:
        """Its address."""
        return self

    def stopListening(self) -> None:
        """Remember."""
        self.is_stopped = True


class Endpoint:
    """Listens at once, or fails to; or takes connections and never answers."""

    def __init__(self, number: int) -> None:
        self.port = Port(number)
        self.fails: Exception | None = None
        self.is_asked = False
        self.connects = 0

    def listen(self, protocolFactory: Any) -> Deferred[Any]:
        """See IStreamServerEndpoint."""
        self.is_asked = True
        return fail(self.fails) if self.fails is not None else succeed(self.port)

    def connect(self, protocolFactory: Any) -> Deferred[Any]:
        """See IStreamClientEndpoint."""
        self.connects += 1
        return Deferred()


class Threads:
    """Calls run at once."""

    def __init__(self) -> None:
        self.is_running = False

    def start(self) -> None:
        """Remember."""
        self.is_running = True

    def run(self, call: Any) -> Deferred[None]:
        """Now."""
        assert self.is_running
        return execute(call)

    def stop(self) -> None:
        """Remember."""
        self.is_running = False


class ServiceCase(SynchronousTestCase):
    """Brokers on one disk."""

    def setUp(self) -> None:
        self.disk: Disk = MemoryDisk()

    #: Makes the service of the pages.
    make_admin: Callable[[BrokerService], IService] | None = None

    def make(self, **options: Any) -> BrokerService:
        """Not started."""
        self.clock = Clock()
        self.reasons: list[str] = []
        self.endpoints = [Endpoint(10911), Endpoint(10909), Endpoint(10912)]
        self.asked: dict[str, Endpoint] = {}
        self.threads = Threads()
        config = broker_from_mapping({
            "store": "base", "name": "b", "brokerIP1": "10.0.0.1", "mapped_file_size_commit_log": 4096,
            "mapped_file_size_consume_queue": 200, "max_hash_slot_num": 16, "max_index_num": 64,
            "changeHosts": "*", **options,
        })
        listen, fast, ha = self.endpoints
        ports = BrokerPorts(clients=listen, fast=fast, slaves=ha)  # type: ignore[arg-type]
        self.service = BrokerService(
            config, BrokerProcess(
                reactor=self.clock, disk=self.disk, rng=random.Random(1), failed=self.reasons.append,
                wall_s=lambda: WALL_S + self.clock.seconds(), threads=self.threads,  # type: ignore[arg-type]
                endpoint_of=self.endpoint_of,
            ), ports, make_admin=self.make_admin,
        )
        return self.service

    @property
    def broker(self) -> BrokerParts:
        """Of the service that was started last."""
        assert self.service.broker is not None
        return self.service.broker

    def endpoint_of(self, address: str) -> Any:
        """The other ends."""
        return self.asked.setdefault(address, Endpoint(0))

    def start(self, **options: Any) -> BrokerService:
        """Started, and settled."""
        service = self.make(**options)
        service.startService()
        self.settle()
        return service

    def settle(self, seconds: float = 0.1) -> None:
        """The reactor runs."""
        self.clock.pump([0.01] * round(seconds * 100))

    def stop(self, seconds: float = 1.5) -> None:
        """In order."""
        stopped = self.service.stopService()
        self.settle(seconds)
        self.successResultOf(stopped)
        self.assertFalse(self.threads.is_running)

    def connect(self) -> FakeTransport:
        """A client. Its connection closes as a real one does."""
        self.connection: Any = self.broker.router.buildProtocol(None)
        transport = plug(self.connection)
        self.patch(transport, "loseConnection", lambda: self.connection.abort("closed"))
        return transport

    def ask(self, *commands: RemotingCommand) -> list[RemotingCommand]:
        """Over a connection of its own; answers come within a moment."""
        transport = self.connect()
        self.connection.dataReceived(b"".join(map(encode_command, commands)))
        self.settle()
        found = sent_commands(transport.value())
        self.connection.abort("done")
        return found

    def pull(self, topic: str = "T1") -> RemotingCommand:
        """The first messages of queue 0."""
        (answer,) = self.ask(RemotingCommand(code=11, opaque=1, ext_fields={
            "consumerGroup": "g", "topic": topic, "queueId": "0", "queueOffset": "0", "maxMsgNums": "32",
            "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*",
            "subVersion": "0", "expressionType": "TAG",
        }))
        return answer


class MasterTests(ServiceCase):
    """From the start to the end of a master."""

    def test_acts(self) -> None:
        """Its pages can do something as long as it serves."""
        service = self.make()
        self.assertIsNone(service.acts)
        service.startService()
        self.settle()
        flushed = Deferred.fromCoroutine(service.acts.flush())
        self.settle()
        self.assertEqual(self.successResultOf(flushed), self.broker.store.log.end_offset)
        self.stop()
        self.assertIsNone(service.acts)

    def test_life(self) -> None:
        """It listens, takes messages, gives them, stops in order, and has them at the next start."""
        self.start()
        self.assertEqual(self.broker.own.text, "10.0.0.1:10911")
        asked = self.ask(send_of(b"one", opaque=1), send_of(b"two", opaque=2))
        answers = sorted(asked, key=lambda one: one.opaque)
        self.assertEqual([(one.opaque, one.code) for one in answers], [(1, 0), (2, 0)])
        self.assertIn(b"two", self.pull().body)
        self.stop()
        self.assertTrue(all(one.port.is_stopped for one in self.endpoints))
        self.assertFalse(self.disk.exists("base/abort"))
        self.assertEqual(self.reasons, [])
        self.start()
        self.assertIn(b"two", self.pull().body)
        (answer,) = self.ask(send_of(b"three"))
        self.assertEqual(answer.ext_fields["queueOffset"], "2")
        self.stop()

    def test_places(self) -> None:
        """One address has its share of the connections."""
        self.start(connectionsShare=25)
        clients = self.broker.router.clients
        self.assertEqual(clients.share, clients.places // 4)
        self.stop()

    def test_open_port(self) -> None:
        """Beyond the loopback interface without TLS it warns once, unless the operator has said insecure."""
        for host, options, warnings in (("127.0.0.1", {}, 0), ("10.0.0.1", {}, 1),
                                        ("10.0.0.1", {"insecure": True}, 0)):
            service = self.make(**options)
            self.endpoints[0].port.host = self.endpoints[1].port.host = host
            with capturedLogs() as events:
                service.startService()
                self.settle()
            said = [formatEvent(event) or "" for event in events]
            self.assertEqual(sum("listens without TLS" in one for one in said), warnings, (host, options))
            self.stop()

    def test_open_port_with_accounts(self) -> None:
        """With access control the warning does not say that everybody may read."""
        with open(file := self.mktemp(), "w") as accounts:
            accounts.write("accounts: []\n")
        service = self.make(aclEnable=True, aclFile=file)
        self.endpoints[0].port.host = "10.0.0.1"
        with capturedLogs() as events:
            service.startService()
            self.settle()
        (warning,) = [said for event in events if "without TLS" in (said := formatEvent(event) or "")]
        self.assertIn("everybody who hears a request can send it again", warning)
        self.stop()

    def test_killed(self) -> None:
        """What was answered is there at the next start, and its topic."""
        self.start()
        self.ask(send_of(b"one"))
        store = self.broker.store
        assert store is not None
        store.abandon()
        self.start()
        self.assertIn(b"one", self.pull().body)
        self.stop()

    def test_topics(self) -> None:
        """Those of every master, and as its options say."""
        self.start(default_topic_queue_nums=3)
        found = self.broker.metadata.topics.get("TBW102")
        assert found is not None
        self.assertEqual((found.write_queue_nums, found.perm), (3, 7))
        self.stop()
        self.start(autoCreateTopicEnable="false", clusterTopicEnable="false")
        self.assertIsNone(self.broker.metadata.topics.get("TBW102"))
        topics = self.broker.metadata.topics
        cluster, broker = topics.get("DefaultCluster"), topics.get("b")
        assert cluster is not None and broker is not None
        self.assertEqual((cluster.perm, broker.perm), (1, 7))
        self.stop()

    def test_changed_options(self) -> None:
        """They stay after the next start, whether it stopped in order or not."""
        self.start()
        (answer,) = self.ask(RemotingCommand(code=25, opaque=1, body=b"brokerPermission=4\ntopicsMax=9\n"))
        self.assertEqual(answer.code, 0)
        self.crash()
        self.start()
        self.assertEqual((self.broker.config.broker_permission, self.broker.config.topics_max), (4, 9))
        self.stop()
        self.start(topicsMax=10)  # the file is younger
        self.assertEqual((self.broker.config.broker_permission, self.broker.config.topics_max), (4, 10))
        self.stop()

    def test_slaves_ask(self) -> None:
        """Their requests are answered."""
        self.start()
        answers = self.ask(*(RemotingCommand(code=code, opaque=code) for code in (21, 43, 45, 201, 402)))
        self.assertEqual({one.opaque: one.code for one in answers}, dict.fromkeys((21, 43, 45, 201, 402), 0))
        self.stop()

    def test_topic_is_kept(self) -> None:
        """A new topic is written within a second."""
        self.start()
        self.ask(send_of(topic="New"))
        self.settle(1.1)
        self.assertIn(b"New", self.disk.read_file("base/config/topics.json"))
        self.stop()

    def crash(self) -> None:
        """The broker does no more work on files."""
        self.broker.saver.close()
        self.broker.store.abandon()

    def test_topic_survives_a_crash(self) -> None:
        """Before its table was written: its queues report it, even if a second start is stopped at once."""
        self.start(default_topic_queue_nums=3)
        self.ask(send_of(b"one", topic="New", queueId=2), send_of(b"two", topic="%RETRY%G"))
        self.crash()
        self.make().startService()
        self.stop()
        self.assertFalse(self.disk.exists("base/config/topics.json"))
        self.start(default_topic_queue_nums=3)
        self.assertEqual(self.broker.metadata.topics.entries["New"].write_queue_nums, 3)
        self.assertEqual(self.broker.metadata.topics.entries["%RETRY%G"].read_queue_nums, 1)
        self.settle(1.1)
        self.assertIn(b"New", self.disk.read_file("base/config/topics.json"))
        self.assertIn(b"two", self.pull("%RETRY%G").body)
        self.ask(RemotingCommand(code=215, opaque=1, ext_fields={"topic": "New"}))
        self.crash()
        self.start()
        self.assertIsNone(self.broker.metadata.topics.get("New"))
        self.stop()

    def test_one_save_at_a_time(self) -> None:
        """A disk that is slow is not asked again and again; what changed meanwhile follows."""
        self.start()
        saves: list[Deferred[None]] = []

        def save(run_in_thread: object) -> Deferred[None]:
            # As a lock does it: fired already, and waiting all the same.
            saves.append(Deferred())
            waits = saves[-1]
            return succeed(None).addCallback(lambda _: waits)

        self.patch(self.broker.metadata, "save", save)
        for _ in range(3):
            self.broker.topics_changed()
            self.settle(6.0)
        self.assertEqual(len(saves), 1)
        saves[0].callback(None)
        self.settle(6.0)
        self.assertEqual(len(saves), 2)
        saves[1].callback(None)
        self.patch(self.broker.metadata, "save", lambda run_in_thread: succeed(None))
        self.stop()

    def test_stop_while_starting(self) -> None:
        """Before the store was ready: no port is opened any more, and the directory is free."""
        self.start()
        self.ask(send_of(b"one"))
        self.broker.store.abandon()
        service = self.make()
        service.startService()
        self.stop()
        self.assertFalse(self.endpoints[0].is_asked)
        self.assertEqual(self.reasons, [])
        self.assertFalse(self.disk.exists("base/abort"))
        self.start()
        self.assertIn(b"one", self.pull().body)
        self.stop()

    def test_stop_while_dispatching(self) -> None:
        """What is not in the consume queues when the time is over is put there by the next start."""
        service = self.start(stopTimeout=1000)
        self.ask(send_of(b"one"))
        reput = self.broker.store.reput
        caught_up = reput.caught_up
        self.patch(reput, "caught_up", Deferred)
        stopped = service.stopService()
        self.settle(0.9)
        self.assertNoResult(stopped)
        self.settle(0.5)
        self.successResultOf(stopped)
        self.assertTrue(self.disk.exists("base/abort"))
        self.patch(reput, "caught_up", caught_up)
        self.start()
        self.assertIn(b"one", self.pull().body)
        self.stop()

    def test_stop_answers_what_waits(self) -> None:
        """A put that waits for a slave has its answer before its connection ends."""
        self.start(role="sync-master", sync_rule="in_sync_replicas", in_sync_replicas=2)
        transport = self.connect()
        self.connection.dataReceived(encode_command(send_of()))
        self.settle()
        self.assertEqual(transport.value(), b"")
        stopped = self.service.stopService()
        self.settle(1.0)
        self.assertNoResult(stopped)
        (late,) = self.ask(send_of(b"more"))
        self.assertEqual((late.code, late.remark), (14, "service not available now: the broker stops"))
        self.settle(4.0)
        self.successResultOf(stopped)
        self.assertEqual([one.code for one in sent_commands(transport.value())], [12])


class FailureTests(ServiceCase):
    """What ends a broker, and how it is said."""

    def failed(self, words: str) -> None:
        """It has said so, once; the store is left alone at the end."""
        self.assertEqual(len(self.reasons), 1, self.reasons)
        self.assertIn(words, self.reasons[0])
        self.stop(7.0)
        self.assertEqual(len(self.reasons), 1)

    def test_in_use(self) -> None:
        """Two brokers in one directory."""
        self.start()
        first = self.broker
        self.start()
        self.failed("in use by another process")
        first.store.abandon()

    def test_bad_metadata(self) -> None:
        """A table that makes no sense."""
        self.disk.makedirs("base/config")
        self.disk.write_file("base/config/topics.json", b"{")
        self.start()
        self.failed("topics.json")

    def test_port_is_taken(self) -> None:
        """Any of the three."""
        for number in range(3):
            self.make()
            self.endpoints[number].fails = CannotListenError("127.0.0.1", 1, OSError("taken"))
            self.service.startService()
            self.settle()
            self.failed("listen")

    def test_broken_store(self) -> None:
        """A write fails: nothing is promised any more, files are left as a crash leaves them."""
        self.start()

        def broken(*_: object) -> None:
            raise StoreError("no such device")

        self.patch(self.broker.store.log, "append_plain", broken)
        (answer,) = self.ask(send_of())
        self.assertEqual(answer.code, 1)
        self.failed("no such device")
        self.assertTrue(self.disk.exists("base/abort"))

    def test_broken_tick(self) -> None:
        """A sweep that raises is a mistake of ours: better no broker than half of one."""
        self.start()
        self.patch(self.broker.router, "sweep", lambda now_s: 1 // 0)
        self.settle(2.0)
        self.flushLoggedErrors(ZeroDivisionError)
        self.failed("tick of the broker")

    def test_metadata_cannot_be_written(self) -> None:
        """It is tried again each second, said once, and is no end."""
        self.start()
        real = self.disk.write_file

        def full(path: str, data: bytes) -> None:
            raise OSError(28, "no space left")

        self.patch(self.disk, "write_file", full)
        self.ask(send_of(topic="New"))
        self.settle(3.5)
        self.assertEqual(len(self.flushLoggedErrors(StoreError)), 1)
        self.patch(self.disk, "write_file", real)
        self.settle(2.0)
        self.assertIn(b"New", self.disk.read_file("base/config/topics.json"))
        self.assertEqual(self.reasons, [])
        self.stop()


class SlaveTests(ServiceCase):
    """A slave finds its master."""

    @property
    def following(self) -> Following:
        """Of the slave."""
        assert isinstance(self.broker.replication, HAReplication)
        assert self.broker.replication.following is not None
        return self.broker.replication.following

    def test_by_options(self) -> None:
        """Its log from one port, its metadata from the one below."""
        self.start(role="slave", haMasterAddress="m:10912")
        self.settle(4.0)
        self.assertEqual(self.asked["m:10912"].connects, 1)
        self.assertGreaterEqual(self.asked["m:10911"].connects, 1)
        (answer,) = self.ask(send_of())
        self.assertEqual(answer.code, 14)
        self.assertEqual(self.broker.metadata.topics.entries, {})
        self.stop(8.0)

    def test_stopped_keeps_its_files(self) -> None:
        """While replication is stopped, no old file is deleted: it may be the only copy."""
        self.start(role="slave", haMasterAddress="m:10912")
        asked: list[int] = []
        self.patch(self.broker.store, "maintenance", lambda *_, **__: asked.append(1) or [])
        self.broker.replication.maintain()
        assert isinstance(self.broker.replication, HAReplication)
        slave = self.broker.replication.ha.slave
        assert slave is not None
        slave._stop_replication(Difference(reason="x", offset=3, common_end=0, our_begin=0, our_end=9))
        self.broker.replication.maintain()
        self.assertEqual(asked, [1])
        self.stop(8.0)

    def test_maintenance_fails(self) -> None:
        """It is logged once, and tried again; only a broken store ends the broker."""
        self.start(role="slave", haMasterAddress="m:10912")
        errors: list[Exception] = [OSError(5, "Input/output error")]

        def failing(*_: object, **__: object) -> list[str]:
            raise errors[0]

        self.patch(self.broker.store, "maintenance", failing)
        with capturedLogs() as events:
            self.broker.replication.maintain()
            self.broker.replication.maintain()
        reported = [event for event in events if "house-keeping" in event["log_format"]]
        self.assertEqual([event["reason"] for event in reported], ["[Errno 5] Input/output error"])
        self.stop(8.0)

    def test_by_name_server(self) -> None:
        """As it says, and again when it says something else."""
        self.start(role="slave", namesrv="n:9876")
        following = self.following
        following.learned("m:20911", "m:20912")
        self.settle(1.0)
        self.assertEqual(self.asked["m:20912"].connects, 1)
        self.assertEqual(following.synchronize.master_address, "m:20911")
        following.learned("k:1", "k:2")
        self.settle(1.0)
        self.assertEqual(self.asked["k:2"].connects, 1)
        self.assertEqual(following.synchronize.master_address, "k:1")
        self.stop(8.0)

    def test_options_count(self) -> None:
        """A name server does not change given options; the others are taken from its answer."""
        self.start(role="slave", haMasterAddress="m:10912", namesrv="n:9876")
        self.following.learned("k:20911", "k:20912")
        self.settle(1.0)
        self.assertNotIn("k:20912", self.asked)
        self.assertEqual(self.following.synchronize.master_address, "k:20911")
        self.stop(8.0)

    def test_reached(self) -> None:
        """Offsets wait until our log has the master's end, for some seconds."""
        self.start(role="slave", haMasterAddress="m:10912")
        following, ends = self.following, [0, 200, 200]

        async def master_range() -> LogRange:
            return LogRange(begin_offset=0, end_offset=ends.pop(0))

        self.patch(following, "master_range", master_range)
        self.successResultOf(Deferred.fromCoroutine(following.reached()))
        waiting = Deferred.fromCoroutine(following.reached())
        self.clock.advance(1)
        self.assertNoResult(waiting)
        self.patch(following, "_log", LogRange(begin_offset=0, end_offset=200))
        self.clock.advance(1)
        self.successResultOf(waiting)
        following._log = LogRange(begin_offset=0, end_offset=199)  # type: ignore[assignment]
        late = Deferred.fromCoroutine(following.reached())
        self.clock.pump([1.0] * 7)
        self.assertIn("they wait until", str(self.failureResultOf(late, DLedgerError).value))
        self.stop(8.0)

    def test_where_the_master_begins(self) -> None:
        """It is asked, and what is no answer is an error."""
        self.start(role="slave", haMasterAddress="m:10912")
        following = self.following
        asked: list[tuple[str, int]] = []
        answers = [
            RemotingCommand(code=0, opaque=1, body=json.dumps(
                {"table": {"commitLogMinOffset": "4096", "commitLogMaxOffset": "5000"}}
            ).encode()),
            RemotingCommand(code=0, opaque=1, body=b'{"table":{}}'),
            RemotingCommand(code=0, opaque=1, body=b'{"table":{"commitLogMinOffset":1e999}}'),
            RemotingCommand(code=0, opaque=1, body=b'{"table":' + b"[" * 100_000),
            RemotingCommand(code=1, opaque=1, remark="no"),
        ]

        class Client:
            """Answers in turn."""

            def ask(self, address: str, command: RemotingCommand, *, timeout_s: float) -> Deferred[Any]:
                asked.append((address, command.code))
                return succeed(answers.pop(0))

        self.patch(following, "_client", Client())
        self.assertEqual(self.successResultOf(Deferred.fromCoroutine(following.master_range())),
                         LogRange(begin_offset=4096, end_offset=5000))
        for words in ("commitLogMinOffset", "outside the 64-bit range", "levels", "no"):
            failure = self.failureResultOf(Deferred.fromCoroutine(following.master_range()), DLedgerError)
            self.assertIn(words, str(failure.value))
        following.synchronize.master_address = None
        failure = self.failureResultOf(Deferred.fromCoroutine(following.master_range()), DLedgerError)
        self.assertIn("not known", str(failure.value))
        self.assertEqual(asked, [("m:10911", 28)] * 5)
        self.stop(8.0)

    def test_own_address(self) -> None:
        """A slave does not ask itself."""
        self.start(role="slave", namesrv="n:9876")
        self.following.learned("10.0.0.1:10911", None)
        self.assertIsNone(self.following.synchronize.master_address)
        self.stop(8.0)
