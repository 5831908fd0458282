# -*- test-case-name: tests.broker.ha.test_service -*-
"""One broker in one role: what a put is answered, and how the service lives and ends."""

from __future__ import annotations

import random
from typing import Any

from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.replication.config import HAConfig
from dledger.rocketmq.replication.master import GATHER_S
from dledger.rocketmq.replication.put_status import PutStatus
from dledger.rocketmq.replication.service import TICK_MS, HAService
from dledger.rocketmq.store.records.events import BrokerEvents
from dledger.values.errors import StoreError
from protocols.wire.rocketmq.ha import TRANSFER_HEADER, encode_report
from tests.broker.ha.fakes import MemoryLog, plug, stream
from tests.broker.ha.test_slave import FakeEndpoint


class FakePort:
    """A port."""

    def __init__(self) -> None:
        self.is_stopped = False

    def getHost(self) -> str:
        """For the log."""
        return "here"

    def stopListening(self) -> None:
        """Remember."""
        self.is_stopped = True


class FakeListener:
    """Listens when it is asked to."""

    def __init__(self) -> None:
        self.listening: Deferred[Any] = Deferred()
        self.port = FakePort()

    def listen(self, protocolFactory: Any) -> Deferred[Any]:
        """Later."""
        return self.listening


class ServiceCase(SynchronousTestCase):
    """A started service with a log in memory."""

    def make(self, **options: Any) -> HAService:
        """Running."""
        self.clock = Clock()
        self.commit_log = MemoryLog()
        self.commit_log.is_lazy = True
        self.reasons: list[str] = []
        self.listener = FakeListener()
        self.service = HAService(
            HAConfig(**{"ha_allowed_hosts": ("*",), **options}), self.commit_log, self.clock,
            rng=random.Random(1), failed=self.reasons.append, events=BrokerEvents(),
            listen=self.listener,  # type: ignore[arg-type]
        )
        self.service.startService()
        self.listener.listening.callback(self.listener.port)
        return self.service

    def pass_time(self, ms: int) -> None:
        """The reactor runs."""
        self.clock.pump([TICK_MS / 1000] * (ms // TICK_MS))

    def slave(self, host: str = "10.0.0.1") -> Any:
        """One that holds everything, and goes on reporting."""
        assert self.service.master is not None
        connection = self.service.master.buildProtocol(IPv4Address("TCP", host, 1))
        assert connection is not None
        plug(connection, host)
        connection.dataReceived(encode_report(self.commit_log.end_offset))
        return connection

    def put(self, *, waits: bool = True) -> Deferred[PutStatus]:
        """Ten bytes; the reactor turns once."""
        end = self.commit_log.put(bytes(10))
        if self.service.master is not None:
            self.service.master.appended()
        answer = self.service.submit(end, waits=waits)
        self.clock.advance(0)
        return answer

    def ack(self, connection: Any) -> None:
        """The slave has everything."""
        connection.dataReceived(encode_report(self.commit_log.end_offset))


class PutTests(ServiceCase):
    """What a producer hears."""

    def test_an_async_master_answers_at_once(self) -> None:
        """At once."""
        self.make()
        self.assertIs(self.successResultOf(self.put()), PutStatus.PUT_OK)

    def test_a_sync_master_waits_for_a_slave(self) -> None:
        """When a slave has it."""
        self.make(broker_role="SYNC_MASTER")
        slave = self.slave()
        answer = self.put()
        self.assertNoResult(answer)
        self.ack(slave)
        self.assertIs(self.successResultOf(answer), PutStatus.PUT_OK)

    def test_a_put_without_slaves_is_answered(self) -> None:
        """At once, under the rule of 4.9; after the time-out under that of 5.x."""
        self.make(broker_role="SYNC_MASTER")
        self.assertIs(self.successResultOf(self.put()), PutStatus.SLAVE_NOT_AVAILABLE)
        self.make(broker_role="SYNC_MASTER", sync_rule="in_sync_replicas", in_sync_replicas=2)
        answer = self.put()
        self.pass_time(2900)
        self.assertNoResult(answer)
        self.pass_time(100)
        self.assertIs(self.successResultOf(answer), PutStatus.FLUSH_SLAVE_TIMEOUT)

    def test_a_silent_slave_times_out(self) -> None:
        """One that never acknowledges: after three seconds."""
        self.make(broker_role="SYNC_MASTER")
        self.slave()
        answer = self.put()
        self.pass_time(2900)
        self.assertNoResult(answer)
        self.pass_time(100)
        self.assertIs(self.successResultOf(answer), PutStatus.FLUSH_SLAVE_TIMEOUT)

    def test_two_replicas_beside_the_master(self) -> None:
        """Two slaves, not one twice."""
        self.make(broker_role="SYNC_MASTER", sync_rule="in_sync_replicas", in_sync_replicas=3)
        one, again, two = self.slave(), self.slave(), self.slave("10.0.0.2")
        answer = self.put()
        self.ack(one)
        self.ack(again)
        self.assertNoResult(answer)
        self.ack(two)
        self.assertIs(self.successResultOf(answer), PutStatus.PUT_OK)

    def test_flush_and_replica(self) -> None:
        """Both have to come; either may be late, and the slave's word counts if both are."""
        for flushes, acks, expected in (
            (True, True, PutStatus.PUT_OK), (False, True, PutStatus.FLUSH_DISK_TIMEOUT),
            (True, False, PutStatus.FLUSH_SLAVE_TIMEOUT), (False, False, PutStatus.FLUSH_SLAVE_TIMEOUT),
        ):
            self.make(broker_role="SYNC_MASTER", flush_disk_type="SYNC_FLUSH")
            slave = self.slave()
            answer = self.put()
            self.assertNoResult(answer)
            if flushes:
                self.commit_log.finish_flush()
            if acks:
                self.ack(slave)
            if not (flushes and acks):
                self.assertNoResult(answer)
                self.pass_time(5000)
            self.assertIs(self.successResultOf(answer), expected)

    def test_does_not_want_to_wait(self) -> None:
        """WAIT=false: neither for the disk nor for slaves; they are sent it all the same."""
        self.make(broker_role="SYNC_MASTER", flush_disk_type="SYNC_FLUSH")
        slave = self.slave()
        slave.transport.take()
        self.assertIs(self.successResultOf(self.put(waits=False)), PutStatus.PUT_OK)
        self.assertEqual(len(slave.transport.take()), 12 + 10)

    def test_puts_are_refused_before_they_are_stored(self) -> None:
        """Before anything is stored: a slave, too few replicas, too many puts, the end."""
        self.make(broker_role="SLAVE")
        self.assertIs(self.service.refusal(), PutStatus.SERVICE_NOT_AVAILABLE)
        self.make(broker_role="SYNC_MASTER", sync_rule="in_sync_replicas", in_sync_replicas=2,
                  min_in_sync_replicas=2)
        self.assertIs(self.service.refusal(), PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH)
        self.slave()
        self.assertIsNone(self.service.refusal())
        self.make(broker_role="SYNC_MASTER", pending_max=3)
        self.slave()
        for _ in range(3):
            self.assertIsNone(self.service.refusal())
            self.put()
        self.assertIs(self.service.refusal(), PutStatus.OS_PAGE_CACHE_BUSY)
        self.service.stopService()
        self.assertIs(self.service.refusal(), PutStatus.SERVICE_NOT_AVAILABLE)

    def test_a_broken_disk_fails_the_put(self) -> None:
        """A flush that fails fails the put, ends the promises, and is shown to the owner once."""
        self.make(flush_disk_type="SYNC_FLUSH")
        answer = self.put()
        self.commit_log.finish_flush(StoreError("fsync"))
        self.assertIs(self.successResultOf(answer), PutStatus.UNKNOWN_ERROR)
        self.assertIs(self.service.refusal(), PutStatus.SERVICE_NOT_AVAILABLE)
        self.assertIs(self.successResultOf(self.put()), PutStatus.UNKNOWN_ERROR)
        self.assertEqual(len(self.reasons), 1)
        self.assertIn("fsync", self.reasons[0])


class LifeTests(ServiceCase):
    """Start, time and end."""

    def test_a_master_opens_and_closes_its_port(self) -> None:
        """A master listens; its port is closed in the end."""
        self.make()
        self.assertIs(self.service.port, self.listener.port)
        self.successResultOf(self.service.stopService())
        self.assertTrue(self.listener.port.is_stopped)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_an_owner_hears_of_a_taken_port(self) -> None:
        """The owner is informed."""
        self.listener = FakeListener()
        self.clock = Clock()
        service = HAService(
            HAConfig(), MemoryLog(), self.clock, rng=random.Random(1), failed=(reasons := []).append,
            events=BrokerEvents(), listen=self.listener,  # type: ignore[arg-type]
        )
        service.startService()
        self.listener.listening.errback(OSError("in use"))
        self.assertEqual(reasons, ["cannot listen for slaves: in use"])
        self.successResultOf(service.stopService())

    def test_master_flushes_by_the_clock(self) -> None:
        """What nobody waits for is flushed, too; slaves that get flushed bytes only are informed."""
        self.make(ha_transfer_flushed_only=True, ha_flush_interval=500)
        slave = self.slave()
        slave.transport.take()
        self.put()
        self.pass_time(600)
        self.assertEqual(slave.transport.take(), b"")
        self.commit_log.finish_flush()
        self.clock.advance(GATHER_S)
        self.assertEqual(len(slave.transport.take()), 12 + 10)
        self.put()
        self.pass_time(300)
        self.assertEqual(self.commit_log.flushes, [])
        self.pass_time(300)
        self.assertEqual(len(self.commit_log.flushes), 1)

    def test_a_slave_connects_to_its_master(self) -> None:
        """Connects to the master that it is given."""
        self.make(broker_role="SLAVE")
        endpoint = FakeEndpoint()
        self.service.follow(endpoint, "m:1")
        client, transport = endpoint.succeed()
        self.assertEqual(transport.take(), encode_report(0))
        self.pass_time(5000)
        self.assertEqual(transport.take(), encode_report(0))
        self.successResultOf(self.service.stopService())
        self.assertTrue(transport.is_aborted)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_stop_waits_for_the_flush(self) -> None:
        """The log must not be closed under it; puts that wait are answered at once."""
        self.make(flush_disk_type="SYNC_FLUSH")
        answer = self.put()
        stopped = self.service.stopService()
        self.assertIs(self.successResultOf(answer), PutStatus.FLUSH_DISK_TIMEOUT)
        self.assertNoResult(stopped)
        self.commit_log.finish_flush()
        self.successResultOf(stopped)

    def test_stop_of_a_slave_waits_for_the_flush(self) -> None:
        """The log must not be closed under it."""
        self.make(broker_role="SLAVE", flush_disk_type="SYNC_FLUSH")
        endpoint = FakeEndpoint()
        self.service.follow(endpoint, "m:1")
        client, _ = endpoint.succeed()
        sent = stream(100)
        client.dataReceived(TRANSFER_HEADER.pack(0, len(sent)) + sent)
        self.assertEqual(len(self.commit_log.flushes), 1)
        stopped = self.service.stopService()
        self.assertNoResult(stopped)
        self.commit_log.finish_flush()
        self.successResultOf(stopped)

    def test_tick_that_fails(self) -> None:
        """It is not silent: the owner is informed."""
        self.make()
        assert self.service.master is not None
        self.patch(self.service.master, "tick", lambda _now_ms: 1 / 0)
        self.pass_time(200)
        self.assertIn("division by zero", self.reasons[0])
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def test_both_roles_have_a_status(self) -> None:
        """Both roles."""
        self.make(broker_role="SYNC_MASTER")
        self.slave()
        self.put()
        status = self.service.status()
        self.assertEqual(
            (status.broker_role, status.end_offset, status.flushed_offset, len(status.slaves),
             status.in_sync_slaves, status.waiting_puts, status.follower),
            ("SYNC_MASTER", 10, 0, 1, 1, 1, None),
        )
        self.make(broker_role="SLAVE")
        status = self.service.status()
        self.assertEqual((status.slaves, status.in_sync_slaves), ((), 0))
        self.assertIsNotNone(status.follower)
