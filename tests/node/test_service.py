# -*- test-case-name: tests.node.test_service -*-
"""A member as a service: up in order, down in order, and what callers meet."""

from __future__ import annotations

import errno
import random
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import attrs
from twisted.application.service import Service
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred
from twisted.internet.error import CannotListenError
from twisted.internet.task import Clock
from twisted.internet.testing import MemoryReactorClock
from twisted.logger import LogLevel, capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from dledger.base.disk.disk import OsDisk
from dledger.base.serving.tokens import new_token
from dledger.node import service as service_module
from dledger.node import threads
from dledger.node.member_process import MemberEndpoints, MemberExtras, MemberProcess, system_wall_clock
from dledger.node.node import Node
from dledger.node.service import (
    LINGER_S,
    QUIET_S,
    STOP_TIME_OUT_S,
    MemberService,
)
from dledger.node.threads import HURRIED_BYTES, FlushThread, MemberThreads, Rests
from dledger.storage.files.snapshot_file import STEP_BYTES
from dledger.storage.start.configurations import COPY_SUFFIX, MEMBERS_NAME
from dledger.storage.store.file_store import FileStore
from dledger.values.errors import DirectoryError
from dledger.values.ledger.config import DLedgerConfig
from dledger.values.ledger.membership import Membership
from dledger.values.rights import ClientRole
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import RequestCode
from protocols.wire.ledger.messages import AppendRequest, HeartBeatRequest, MembershipRequest
from tests.node.rig import FakeThread
from tests.node.test_peers import FakeEndpoint
from tests.protocols.fakes import native_request, plug, remoting_request, sent_messages

PEERS = "n0-127.0.0.1:20911;n1-127.0.0.1:20912;n2-127.0.0.1:20913"



class RestTests(SynchronousTestCase):
    """The rests of a snapshot."""

    def test_bounded(self) -> None:
        """Three times as long as the step before, within bounds; when they are used up, steps are long."""
        for took_s, expected in ((0.01, [0.03] * 4), (30.0, [0.2, 0.2, 0.1, 0.0])):
            clock, rested = Clock(), list[float]()
            self.patch(threads, "time", SimpleNamespace(perf_counter=clock.seconds, sleep=rested.append))
            rest, steps = Rests(left_s=0.5), list[int]()
            for _ in expected:
                clock.advance(took_s)
                steps.append(rest())
            self.assertEqual([round(one, 6) for one in rested], expected)
            self.assertEqual(steps[:2], [STEP_BYTES] * 2)
            self.assertEqual(steps[-1], STEP_BYTES if took_s < 1 else HURRIED_BYTES)


class FakeFlushThread(FakeThread, FlushThread):
    """A flush thread that is none."""

    def __init__(self) -> None:
        FakeThread.__init__(self)
        self.life: list[str] = []

    def start(self) -> None:
        """Remember."""
        self.life.append("started")

    def stop(self) -> None:
        """Remember."""
        self.life.append("stopped")


def _listening_at(address: IPv4Address, *_args: object, **_options: object) -> Any:
    """A port there."""
    port = Mock()
    port.getHost.return_value, port.stopListening.return_value = address, None
    return port


class ServiceTestCase(SynchronousTestCase):
    """A service on a reactor that is none."""

    def setUp(self) -> None:
        self.reactor = MemoryReactorClock()
        self.failures: list[str] = []
        self.thread = FakeFlushThread()
        self.endpoints: dict[str, Any] = {}

    def make(self, *, make_admin: Any = None, make_machine: Any = None, **options: Any) -> MemberService:
        """A service with options of its own; by default one member."""
        options = {"store_base_dir": self.mktemp(), "mapped_file_size_for_entry_data": 65536,
                   "mapped_file_size_for_entry_index": 32000, **options}
        config = DLedgerConfig(**options)
        if len(config.peers) > 1:
            self.endpoints = {peer_id: FakeEndpoint() for peer_id in config.peers}
            del self.endpoints[config.self_id]
        return MemberService(
            config, self._process(self.reactor, self.thread),
            MemberEndpoints(dial=lambda peer_id, _: self.endpoints[peer_id]),
            MemberExtras(make_admin=make_admin, admin="tcp:8080", make_machine=make_machine),
        )

    def _process(self, reactor: Any, thread: FakeFlushThread) -> MemberProcess:
        return MemberProcess(
            reactor=reactor, disk=OsDisk(), rng=random.Random(1), failed=self.failures.append,
            threads=MemberThreads.of(reactor, flush=thread),
        )

    def run_for(self, seconds: float) -> None:
        """Time passes in ticks."""
        for _ in range(int(seconds / 0.02)):
            self.reactor.advance(0.02)

    def node_of(self, service: MemberService) -> Node:
        """It has one by now."""
        assert service.node is not None
        return service.node

    def connection(self) -> tuple[Any, Any]:
        """Somebody connects to the listening port."""
        connection = self.reactor.tcpServers[0][1].buildProtocol(None)
        return connection, plug(connection)


class SkipTests(ServiceTestCase):
    """An order of the administration to skip an entry."""

    def test_a_skip_needs_a_machine(self) -> None:
        """It is answered with the reason, and the member goes on."""
        service = self.make()
        service.startService()
        self.addCleanup(service.stopService)
        self.run_for(2)
        answer = self.successResultOf(self.node_of(service).skip(7))
        self.assertEqual(answer.code, ResponseCode.UNEXPECTED_ARGUMENT)
        self.assertIn("runs no state machine", answer.reason)
        self.run_for(1)
        self.assertEqual(self.node_of(service).state, "running")


class RereadTests(ServiceTestCase):
    """Options that are read again."""

    def test_limits_change_for_an_open_server(self) -> None:
        """Limits count for the open server, and others stay; before the start, too, they are taken."""
        service = self.make(max_answer_bytes=20 << 20)
        wanted = attrs.evolve(service.config, max_connections=100, scrub_bytes_per_s=7, tick_ms=15)
        early = attrs.evolve(service.config, max_connections=60)
        self.assertEqual(service.reread(early), {"max_connections"})
        service.startService()
        self.addCleanup(service.stopService)
        self.run_for(1)
        server = service._server
        assert server is not None
        self.assertEqual((server.connections_max, server.budgets.answers.bytes_max), (60, 20 << 20))
        self.assertEqual(service.reread(wanted), {"max_connections", "scrub_bytes_per_s"})
        self.assertEqual((server.connections_max, server.budgets.answers.bytes_max), (100, 20 << 20))
        self.assertEqual(self.node_of(service)._maintenance._scrubbing._rate, 7)
        self.assertEqual(self.node_of(service).config.tick_ms, service.config.tick_ms)

    def test_retention_changes_from_the_next_look(self) -> None:
        """A store of files expires by the new rules from the next look on."""
        service = self.make()
        service.startService()
        self.addCleanup(service.stopService)
        self.run_for(1)
        rules = service.store.parts.room.expiry.rules  # type: ignore[attr-defined]
        self.assertEqual((rules.retention_bytes, rules.reserved_hours), (0, 0))
        service.reread(attrs.evolve(service.config, retention_bytes=1 << 20, file_reserved_hours=9))
        rules = service.store.parts.room.expiry.rules  # type: ignore[attr-defined]
        self.assertEqual((rules.retention_bytes, rules.reserved_hours), (1 << 20, 9))


class UpTests(ServiceTestCase):
    """Start."""

    def test_listens_and_leads(self) -> None:
        """On its own peer address; then clients are served."""
        service = self.make()
        service.startService()
        self.addCleanup(service.stopService)
        port, factory, _, interface = self.reactor.tcpServers[0]
        self.assertEqual((port, interface), (20911, "127.0.0.1"))
        self.run_for(2)
        node = self.node_of(service)
        self.assertEqual((node.state, node.status().member.role), ("running", "leader"))
        connection, transport = self.connection()
        request = AppendRequest(group="default", remote_id="n0", bodies=(b"a",))
        connection.dataReceived(native_request(request, 1))
        self.reactor.advance(0)
        ((_, answer),) = sent_messages(transport.value())
        self.assertEqual((answer.code, answer.index), (200, 0))
        self.assertEqual(self.thread.life, ["started"])
        self.assertEqual(node.status().admin, "tcp:8080")

    def test_options_for_connections_are_used(self) -> None:
        """The options for connections."""
        service = self.make(max_connections=100, connections_share=10)
        service.startService()
        self.addCleanup(service.stopService)
        factory = self.reactor.tcpServers[0][1]
        self.assertEqual((factory.clients.places, factory.clients.share), (84, 8))

    def test_warned_of_a_plain_port(self) -> None:
        """Beyond the loopback interface, unless the operator has said so."""
        for host, options, is_warned in (
            ("10.0.0.7", {}, True), ("127.0.0.1", {}, False), ("10.0.0.7", {"insecure": True}, False),
        ):
            service = self.make(peers=f"n0-{host}:20911", **options)
            at = IPv4Address("TCP", host, 20911)
            self.patch(self.reactor, "listenTCP", partial(_listening_at, at))
            with capturedLogs() as events:
                service.startService()
            said = [event["log_format"] for event in events]
            self.assertEqual(any("without TLS" in one for one in said), is_warned, (host, options))
            service.stopService()

    def test_tokens_without_tls(self) -> None:
        """Only on the loopback interface, or by an operator's word; not with a file that is not sound."""
        path = Path(self.mktemp())
        path.write_text(new_token("app", ClientRole.READ)[1])
        for host, text, options, reason in (
            ("10.0.0.7", "", {}, "without TLS"), ("127.0.0.1", "", {}, ""),
            ("10.0.0.7", "", {"insecure": True}, ""), ("127.0.0.1", "nonsense", {}, "client_token_file="),
        ):
            path.write_text(text or new_token("app", ClientRole.READ)[1])
            service = self.make(peers=f"n0-{host}:20911", client_token_file=str(path), **options)
            self.patch(self.reactor, "listenTCP", partial(_listening_at, IPv4Address("TCP", host, 20911)))
            del self.failures[:]
            service.startService()
            self.assertEqual(len(self.failures), int(bool(reason)), (host, options))
            self.assertIn(reason, "".join(self.failures))
            if service.node is not None:
                self.assertTrue(service.node.router.access.is_guarded)
            service.stopService()

    def test_callers_need_a_certificate(self) -> None:
        """Who connects needs one; with tokens for clients it is asked for, and may be lacking."""
        path = Path(self.mktemp())
        path.write_text(new_token("app", ClientRole.READ)[1])
        for file, demands in ((None, True), (str(path), False)):
            keys = Mock(names=("n0",), expires_s=1e12)
            self.patch(service_module, "secured", lambda files, group, keys=keys: keys)
            service = self.make(**{} if file is None else {"client_token_file": file})
            service.startService()
            reported = keys.listen.call_args.kwargs
            self.assertEqual((reported["demands_certificate"], reported["asks_certificate"]),
                             (demands, not demands))
            service.stopService()

    def test_change_hosts_reach_the_member(self) -> None:
        """A member that listens knows who may change the group."""
        service = self.make(change_hosts="10.0.0.0/24")
        service.startService()
        self.addCleanup(service.stopService)
        self.run_for(1)
        for host, is_taken in (("10.0.0.7", True), ("10.0.1.7", False), ("127.0.0.1", True)):
            connection, transport = self.connection()
            transport.peerAddr = IPv4Address("TCP", host, 4711)
            connection.dataReceived(remoting_request(
                MembershipRequest(group="default", remote_id="n0", change="remove", member_id="n7"), 1))
            self.run_for(0.1)
            ((_, answer),) = sent_messages(transport.value(), {1: RequestCode.MEMBERSHIP})
            self.assertEqual(answer.code is not ResponseCode.FORBIDDEN, is_taken, host)

    def test_connects_to_the_others(self) -> None:
        """To each of them, once it listens."""
        service = self.make(peers=PEERS)
        service.startService()
        self.addCleanup(service.stopService)
        self.assertEqual([len(endpoint.attempts) for endpoint in self.endpoints.values()], [1, 1])

    def test_the_administration_lives_with_the_service(self) -> None:
        """Is given the node, and lives as long as the service."""
        made: list[tuple[Node, Service]] = []

        def make_admin(node: Node) -> Service:
            made.append((node, Service()))
            return made[0][1]

        service = self.make(make_admin=make_admin)
        service.startService()
        self.assertIs(made[0][0], service.node)
        self.assertTrue(made[0][1].running)
        stopped = service.stopService()
        self.run_for(3)
        self.successResultOf(stopped)
        self.assertFalse(made[0][1].running)

    def test_a_taken_port_ends_the_process(self) -> None:
        """One line in the log, nothing started, the directory released, the process to end."""
        path = self.mktemp()

        def taken(*args: object, **options: object) -> None:
            raise CannotListenError("127.0.0.1", 20911, OSError(errno.EADDRINUSE, "Address already in use"))

        self.reactor.listenTCP = taken  # type: ignore[method-assign, assignment]
        service = self.make(store_base_dir=path)
        with capturedLogs() as events:
            service.startService()
            self.reactor.advance(0)
        (failure,) = self.failures
        self.assertIn("20911", failure)
        self.assertEqual(len([event for event in events if event["log_level"] is LogLevel.critical]), 1)
        self.assertEqual([event for event in events if "log_failure" in event], [])
        stopped = service.stopService()
        self.run_for(0.1)
        self.successResultOf(stopped)
        self.assertEqual(self.thread.life, ["started", "stopped"])
        again = MemoryReactorClock()
        other = MemberService(service.config, self._process(again, FakeFlushThread()))
        other.startService()
        self.assertEqual(len(self.failures), 1)
        stopped = other.stopService()
        again.pump([0.02] * 200)
        self.successResultOf(stopped)

    def test_directory_of_somebody_else(self) -> None:
        """A member whose directory another member holds does not start, and nothing listens."""
        path = self.mktemp()
        first = self.make(store_base_dir=path)
        first.startService()
        second = self.make(store_base_dir=path)
        listening = len(self.reactor.tcpServers)
        with capturedLogs() as events:
            second.startService()
        self.assertEqual(len(self.reactor.tcpServers), listening)
        self.assertEqual(len(self.failures), 1)
        self.assertEqual(len([event for event in events if event["log_level"] is LogLevel.critical]), 1)
        self.successResultOf(second.stopService())
        stopped = first.stopService()
        self.run_for(3)
        self.successResultOf(stopped)

    def test_damaged_term_file(self) -> None:
        """The twin replaces it, and the log says so, in an event that every observer can read."""
        path = self.mktemp()
        for _ in range(2):
            service = self.make(store_base_dir=path)
            with capturedLogs() as events:
                service.startService()
            self.run_for(2)
            stopped = service.stopService()
            self.run_for(3)
            self.successResultOf(stopped)
            with open(f"{service.config.self_path}/currterm", "r+b") as file:
                file.write(b"x")
        (warning,) = [event for event in events if event["log_level"] is LogLevel.warn and "reason" in event]
        self.assertIn("malformed", warning["reason"])
        # (Twisted takes an event with a field of the name "warning" for one of Python's warnings.)
        self.assertNotIn("warning", warning)

    def test_directory_that_cannot_be_made(self) -> None:
        """Neither is that an exception for twistd to print."""
        path = self.mktemp()
        with open(path, "w"):
            pass
        self.make(store_base_dir=path).startService()
        self.assertEqual(len(self.failures), 1)


class DownTests(ServiceTestCase):
    """Stop."""

    def test_a_stop_closes_the_log_cleanly(self) -> None:
        """The log is there at the next start, cleanly closed."""
        path = self.mktemp()
        service = self.make(store_base_dir=path)
        service.startService()
        self.run_for(2)
        result = self.node_of(service).append(b"kept")
        self.reactor.advance(0)
        self.assertEqual(self.successResultOf(result).index, 0)
        stopped = service.stopService()
        self.run_for(3)
        self.successResultOf(stopped)
        self.assertEqual(self.node_of(service).state, "stopped")
        self.assertEqual((self.failures, self.thread.life), ([], ["started", "stopped"]))
        self.assertEqual(self.reactor.getDelayedCalls(), [])
        again = self.make(store_base_dir=path)
        again.startService()
        self.run_for(2)
        read = self.node_of(again).read(0)
        self.reactor.advance(0)
        self.assertEqual(self.successResultOf(read), b"kept")
        stopped = again.stopService()
        self.run_for(3)
        self.successResultOf(stopped)

    def test_answers_before_connections_end(self) -> None:
        """What was asked before is answered; then the connection is closed, not aborted."""
        service = self.make()
        service.startService()
        self.run_for(2)
        connection, transport = self.connection()
        request = AppendRequest(group="default", remote_id="n0", bodies=(b"a",))
        connection.dataReceived(native_request(request, 1))
        stopped = service.stopService()
        self.reactor.advance(0)
        self.assertEqual(len(sent_messages(transport.value())), 1)
        self.run_for(QUIET_S / 2)
        self.assertFalse(transport.disconnecting)
        connection.dataReceived(native_request(request, 2))
        self.reactor.advance(0)
        (_, (_, refused)) = sent_messages(transport.value())
        self.assertIs(refused.code, ResponseCode.NOT_LEADER)
        self.run_for(QUIET_S / 2)
        self.assertFalse(transport.disconnecting, "the client was still there")
        self.run_for(QUIET_S)
        self.assertTrue(transport.disconnecting)
        self.assertFalse(transport.disconnected)
        self.assertNoResult(stopped)
        self.run_for(2)
        self.successResultOf(stopped)
        self.assertTrue(transport.disconnected)

    def test_a_client_that_stays(self) -> None:
        """Hears so often that the leader is elsewhere, and then leaves with the connection."""
        service = self.make()
        service.startService()
        self.run_for(2)
        connection, transport = self.connection()
        request = AppendRequest(group="default", remote_id="n0", bodies=(b"a",))
        stopped = service.stopService()
        for number in range(int(LINGER_S / 0.05) - 2):
            connection.dataReceived(native_request(request, number + 1))
            self.run_for(0.05)
        self.assertFalse(transport.disconnecting)
        self.run_for(0.5)
        self.assertTrue(transport.disconnecting)
        self.run_for(2)
        self.successResultOf(stopped)

    def test_peers_do_not_hold_it_up(self) -> None:
        """They go on with heartbeats and pushes; a member that only they ask stops without the wait."""
        service = self.make(peers=PEERS)
        service.startService()
        self.run_for(0.1)
        connection, transport = self.connection()
        beat = HeartBeatRequest(group="default", remote_id="n0", local_id="n1", leader_id="n1", term=1)
        connection.dataReceived(native_request(beat, 1))
        stopped = service.stopService()
        for number in range(4):
            self.run_for(QUIET_S / 2)
            connection.dataReceived(native_request(beat, number + 2))
        self.assertTrue(transport.disconnecting)
        self.run_for(3)
        self.successResultOf(stopped)

    def test_waits_for_the_fsync_under_way(self) -> None:
        """The files are not closed under it."""
        service = self.make(flush_disk_type="sync")
        service.startService()
        self.run_for(2)
        self.thread.is_lazy = True
        pending = self.node_of(service).append(b"a")
        self.reactor.advance(0)
        stopped = service.stopService()
        self.run_for(10)
        self.assertNoResult(stopped)
        self.failureResultOf(pending)
        self.thread.is_lazy = False
        self.thread.finish()
        self.successResultOf(stopped)

    def test_a_stop_has_a_deadline(self) -> None:
        """A member that does not come to an end is ended, and its files are left to recovery."""
        service = self.make()
        service.startService()
        self.run_for(2)
        node = self.node_of(service)
        node.driver.feed = lambda *inputs: None  # type: ignore[method-assign]
        stopped = service.stopService()
        self.run_for(STOP_TIME_OUT_S - 1)
        self.assertNoResult(stopped)
        self.run_for(3)
        self.successResultOf(stopped)
        self.assertEqual(node.state, "failed")

    def test_a_failed_member_is_reported_once(self) -> None:
        """Is reported, once; its store is let go without a word written to it."""
        service = self.make(flush_disk_type="sync")
        service.startService()
        self.run_for(2)
        store: Any = service._store
        closes: list[str] = []
        self.patch(store, "clean_close", lambda: closes.append("clean"))
        self.patch(store, "abandon", lambda: closes.append("abandoned"))
        self.thread.is_lazy = True
        pending = self.node_of(service).append(b"a")
        self.reactor.advance(0)
        self.thread.finish(OSError(errno.EIO, "Input/output error"))
        self.reactor.advance(0)
        self.failureResultOf(pending)
        self.assertEqual(len(self.failures), 1)
        self.assertIn("Input/output error", self.failures[0])
        stopped = service.stopService()
        self.run_for(3)
        self.successResultOf(stopped)
        self.assertEqual((closes, len(self.failures)), (["abandoned"], 1))

    def test_a_stop_ends_connections_to_peers(self) -> None:
        """Are ended as well, by force if they must."""
        service = self.make(peers=PEERS)
        service.startService()
        _, transport = self.endpoints["n1"].succeed()
        self.endpoints["n2"].fail()
        stopped = service.stopService()
        self.reactor.advance(0)
        self.assertTrue(transport.disconnecting)
        self.run_for(5)
        self.assertTrue(transport.disconnected)
        self.successResultOf(stopped)


class MembersInTheLogTests(ServiceTestCase):
    """A directory whose log names the members."""

    def test_new_members_by_option(self) -> None:
        """
        Would do nothing, and is refused with the way to go. Where the list of members is lost, they would
        count: it is refused, too.
        """
        options = {"store_base_dir": self.mktemp(), "peers": "n0-127.0.0.1:1"}
        config = DLedgerConfig(
            mapped_file_size_for_entry_data=65536, mapped_file_size_for_entry_index=32000,
            **options,  # type: ignore[arg-type]
        )
        store = FileStore.open(config, OsDisk())
        store.append_configuration(Membership(voters=config.peers), 1)
        store.clean_close()
        for is_lost in (False, True):
            self.make(accept_new_members=True, **options).startService()
            failure = self.failures.pop()
            self.assertIn("dledger member", failure)
            if is_lost:
                self.assertRaises(DirectoryError, FileStore.open, config, OsDisk())
            else:
                FileStore.open(config, OsDisk()).clean_close()  # its lock was released
                for name in (MEMBERS_NAME, MEMBERS_NAME + COPY_SUFFIX):
                    OsDisk().unlink(f"{config.self_path}/{name}")


class WallClockTests(SynchronousTestCase):
    """The clock that expiry uses."""

    def test_the_wall_clock_has_seconds_and_hour(self) -> None:
        """Seconds since 1970 and an hour."""
        now_s, hour = system_wall_clock()
        self.assertGreater(now_s, 1.6e9)
        self.assertIn(hour, range(24))


class EndTests(SynchronousTestCase):
    """How a process ends when its member cannot go on."""



class ThreadTests(SynchronousTestCase):
    """The real flush thread, with a reactor that is none."""

    def test_the_flush_runs_in_another_thread(self) -> None:
        """And comes back through the reactor."""
        reactor: Any = MemoryReactorClock()
        calls: list[Any] = []
        reactor.callFromThread = lambda call, *args, **options: calls.append((call, args, options))
        thread = FlushThread(reactor)
        thread.start()
        ran: list[int] = []
        done: Deferred[None] = thread.run(lambda: ran.append(1))
        thread.stop()
        self.assertEqual(ran, [1])
        self.assertNoResult(done)
        for call, args, options in calls:
            call(*args, **options)
        self.successResultOf(done)
