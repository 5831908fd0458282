# -*- test-case-name: tests.broker.ha.test_slave -*-
"""A slave's connection to its master: reports, flushes, waits, ends."""

from __future__ import annotations

import random
from typing import Any

from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.error import ConnectionRefusedError
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.internet.task import Clock
from twisted.logger import LogLevel, capturedLogs
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from dledger.rocketmq.replication.config import HAConfig
from dledger.rocketmq.replication.slave import DecisionUnderWay, HAFollower, LogRange
from dledger.values.errors import StoreError
from protocols.rocketmq.ha import HAClient
from protocols.wire.rocketmq.ha import TRANSFER_HEADER, encode_report
from tests.broker.ha.fakes import FILE_SIZE, BadLog, HATransport, MemoryLog, plug, stream, unplug


@implementer(IStreamClientEndpoint)
class FakeEndpoint:
    """Attempts wait for L{succeed} or L{fail}."""

    def __init__(self) -> None:
        self.attempts: list[tuple[Any, Deferred[Any]]] = []
        self.cancelled = 0

    def connect(self, protocolFactory: Any) -> Deferred[Any]:
        """Remember."""
        def cancel(_: Deferred[Any]) -> None:
            self.cancelled += 1

        attempt: Deferred[Any] = Deferred(cancel)
        self.attempts.append((protocolFactory, attempt))
        return attempt

    def succeed(self) -> tuple[HAClient, HATransport]:
        """The newest attempt succeeds."""
        factory, attempt = self.attempts.pop()
        client = factory.buildProtocol(None)
        transport = plug(client)
        attempt.callback(client)
        return client, transport

    def fail(self) -> None:
        """The newest attempt fails."""
        self.attempts.pop()[1].errback(Failure(ConnectionRefusedError()))


class ClientCase(SynchronousTestCase):
    """A slave with a log in memory, an endpoint in our hand and a clock that stands still."""

    def make(self, log: MemoryLog | None = None, **options: Any) -> HAFollower:
        """A started slave that has begun to connect."""
        self.clock = Clock()
        self.commit_log = MemoryLog() if log is None else log
        self.failures: list[Failure] = []
        self.endpoint = FakeEndpoint()
        begin = options.pop("master_range", None)
        self.slave = HAFollower(
            HAConfig(broker_role="SLAVE", **options), self.commit_log, self.clock, rng=random.Random(1),
            failed=self.failures.append, master_range=begin,
        )
        self.slave.start()
        self.slave.follow(self.endpoint, "m:10912")
        return self.slave

    def pass_time(self, ms: int) -> None:
        """Tick all the while."""
        for _ in range(ms // 100):
            self.clock.advance(0.1)
            self.slave.tick(self.slave._now_ms())

    def send(self, client: HAClient, offset: int, body: bytes = b"") -> None:
        """A frame of the master."""
        client.dataReceived(TRANSFER_HEADER.pack(offset, len(body)) + body)


class ReportTests(ClientCase):
    """The reports to the master, and when they are sent."""

    def test_a_slave_reports_on_connecting(self) -> None:
        """On connecting."""
        self.make()
        _, transport = self.endpoint.succeed()
        self.assertEqual(transport.take(), encode_report(0))

    def test_after_every_read(self) -> None:
        """One report for all frames of a read; none for heartbeats."""
        self.make()
        client, transport = self.endpoint.succeed()
        transport.take()
        data = stream(1000)
        client.dataReceived(
            TRANSFER_HEADER.pack(0, 500) + data[:500] + TRANSFER_HEADER.pack(500, 200) + data[500:700]
        )
        self.assertEqual(transport.take(), encode_report(700))
        self.send(client, 700)
        self.assertEqual(transport.take(), b"")
        self.assertEqual((self.commit_log.data, self.commit_log.append_calls), (data[:700], 2))

    def test_every_five_seconds(self) -> None:
        """Although there is nothing new."""
        self.make()
        client, transport = self.endpoint.succeed()
        transport.take()
        for _ in range(3):
            self.pass_time(4900)
            self.assertEqual(transport.take(), b"")
            self.send(client, 0)
            self.pass_time(100)
            self.assertEqual(transport.take(), encode_report(0))

    def test_only_flushed_bytes_are_reported(self) -> None:
        """Only bytes on stable storage; those that arrive during a flush are in the next one."""
        self.make(flush_disk_type="SYNC_FLUSH")
        self.commit_log.is_lazy = True
        client, transport = self.endpoint.succeed()
        transport.take()
        data = stream(1000)
        self.send(client, 0, data[:100])
        self.send(client, 100, data[100:300])
        self.assertEqual((transport.take(), len(self.commit_log.flushes)), (b"", 1))
        self.commit_log.finish_flush()
        self.assertEqual((transport.take(), len(self.commit_log.flushes)), (encode_report(100), 1))
        self.commit_log.finish_flush()
        self.assertEqual((transport.take(), self.commit_log.flushes), (encode_report(300), []))

    def test_an_async_slave_flushes_by_the_clock(self) -> None:
        """By the clock, and only where there is something to flush."""
        self.make(ha_flush_interval=500)
        self.commit_log.is_lazy = True
        client, _ = self.endpoint.succeed()
        self.pass_time(1000)
        self.assertEqual(self.commit_log.flushes, [])
        self.send(client, 0, stream(100)[:50])
        self.send(client, 50, stream(100)[50:60])
        self.assertEqual(len(self.commit_log.flushes), 1)
        self.commit_log.finish_flush()
        self.pass_time(400)
        self.assertEqual(self.commit_log.flushes, [])
        self.pass_time(100)
        self.assertEqual(len(self.commit_log.flushes), 1)


class ConnectionTests(ClientCase):
    """Attempts, waits and ends."""

    def test_waits_between_attempts_grow(self) -> None:
        """From the least to the most, spread a little; a session that brought something begins anew."""
        self.make(ha_reconnect_min=200, ha_reconnect_max=5000)
        waits = []
        for _ in range(8):
            self.endpoint.fail()
            before = self.clock.seconds()
            self.clock.advance(self.clock.getDelayedCalls()[0].getTime() - before)
            waits.append(self.clock.seconds() - before)
        for wait, middle in zip(waits, (0.2, 0.4, 0.8, 1.6, 3.2, 5, 5, 5), strict=True):
            self.assertTrue(0.75 * middle <= wait <= 1.25 * middle, waits)
        client, _ = self.endpoint.succeed()
        self.send(client, 0, stream(100)[:100])
        unplug(client)
        self.clock.advance(0.26)
        self.assertEqual(len(self.endpoint.attempts), 1)

    def test_a_refused_session_makes_a_pause(self) -> None:
        """A master that closes at once is not asked again and again without a pause."""
        self.make(ha_reconnect_max=5000)
        for _ in range(6):
            client, _ = self.endpoint.succeed()
            unplug(client)
            self.clock.advance(self.clock.getDelayedCalls()[0].getTime() - self.clock.seconds())
        self.endpoint.fail()
        self.assertGreater(self.clock.getDelayedCalls()[0].getTime() - self.clock.seconds(), 3)

    def test_a_silent_master_is_left(self) -> None:
        """Twenty seconds without a byte; our own reports are no sign of life of his."""
        self.make()
        client, transport = self.endpoint.succeed()
        self.pass_time(10_000)
        self.send(client, 0)
        self.pass_time(20_000)
        self.assertFalse(transport.is_aborted)
        self.pass_time(200)
        self.assertTrue(transport.is_aborted)
        self.assertIn("silent", self.slave.status().last_reason)

    def test_a_misfitting_frame_ends_the_session(self) -> None:
        """A frame that does not fit ends the session; the reason is logged."""
        self.make()
        client, transport = self.endpoint.succeed()
        with capturedLogs() as events:
            self.send(client, 77, b"abc")
        self.assertTrue(transport.is_aborted)
        errors = [event["reason"] for event in events if event["log_level"] is LogLevel.error]
        self.assertIn("the first frame for an empty log begins at 77", errors[0])
        self.assertEqual(self.commit_log.data, b"")

    def test_bytes_without_records_end_the_session(self) -> None:
        """A log that takes the bytes for no records ends the session, not the broker."""
        self.make(BadLog())
        client, transport = self.endpoint.succeed()
        self.send(client, 0, b"abc")
        self.assertTrue(transport.is_aborted)
        self.assertEqual(self.failures, [])
        self.assertEqual(len(self.clock.getDelayedCalls()), 1)

    def test_a_full_disk_is_tried_again(self) -> None:
        """Tried again, later."""
        self.make()
        client, transport = self.endpoint.succeed()
        self.commit_log.fails = OSError(28, "No space left on device")
        self.send(client, 0, stream(100))
        self.assertTrue(transport.is_aborted)
        self.assertIn("No space left", self.slave.status().last_reason)
        self.clock.advance(1)
        client, _ = self.endpoint.succeed()
        self.send(client, 0, stream(100))
        self.assertEqual(self.commit_log.data, stream(100))

    def test_a_broken_log_reports_nothing_more(self) -> None:
        """A write or a flush that failed for good: reported to the owner, and nothing more to the master."""
        for way in ("write", "flush"):
            self.make(flush_disk_type="SYNC_FLUSH")
            self.commit_log.is_lazy = True
            client, transport = self.endpoint.succeed()
            transport.take()
            if way == "write":
                self.commit_log.fails = StoreError("EIO")
                self.send(client, 0, stream(100))
            else:
                self.send(client, 0, stream(100))
                self.commit_log.finish_flush(StoreError("EIO"))
            self.assertTrue(transport.is_aborted)
            self.assertEqual((len(self.failures), transport.take()), (1, b""))
            self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_divergence_is_repaired(self) -> None:
        """Cut, connected again soon, and fetched."""
        data = stream(3000)
        self.make(MemoryLog(data[:1000] + bytes(50)), ha_verify_size=100)
        client, transport = self.endpoint.succeed()
        start = int.from_bytes(transport.take(), "big")
        with capturedLogs() as events:
            self.send(client, start, data[start:1200])
        self.assertTrue(transport.is_aborted)
        self.assertTrue(any("differs from the master's" in str(event.get("reason")) for event in events))
        self.clock.advance(0.3)
        client, transport = self.endpoint.succeed()
        start = int.from_bytes(transport.take(), "big")
        self.send(client, start, data[start:])
        self.assertEqual(self.commit_log.data, data)
        self.assertEqual(self.slave.status().truncations, 1)

    def test_a_stalled_comparison_ends(self) -> None:
        """A master that has nothing where we compare sends heartbeats for ever: not with us."""
        self.make(MemoryLog(stream(3000)), ha_verify_size=100)
        client, transport = self.endpoint.succeed()
        start = int.from_bytes(transport.take(), "big")
        for _ in range(5):
            self.send(client, start)
            self.pass_time(5000)
        self.assertTrue(transport.is_aborted)
        self.assertIn("its log is shorter, or begins later", self.slave.status().last_reason)

    def test_an_empty_slave_asks_for_the_begin(self) -> None:
        """The master is asked where its log begins, once we have nothing."""
        asked: list[int] = []

        def master_range() -> Deferred[LogRange]:
            asked.append(1)
            return succeed(LogRange(begin_offset=FILE_SIZE, end_offset=2 * FILE_SIZE))

        self.make(ha_full_history=True, master_range=master_range)
        client, transport = self.endpoint.succeed()
        self.assertEqual(transport.take(), encode_report(FILE_SIZE))
        self.send(client, FILE_SIZE, stream(100, start=FILE_SIZE))
        unplug(client)
        self.clock.advance(1)
        self.assertEqual(asked, [1])


class StoppedTests(ClientCase):
    """Replication that only an operator starts again."""

    def other_log(self, **options: Any) -> MemoryLog:
        """A slave whose log is not its master's has stopped."""
        log = MemoryLog(stream(3000, at=9))
        self.make(log, **options)
        client, transport = self.endpoint.succeed()
        start = int.from_bytes(transport.take(), "big")
        self.send(client, start, stream(3000)[start:])
        self.assertTrue(transport.is_aborted)
        return log

    def test_stopped_replication_keeps_everything(self) -> None:
        """Nothing is cut, nothing is tried again; the reason is reported once, and in the status."""
        with capturedLogs() as events:
            log = self.other_log()
            self.pass_time(60_000)
        self.assertEqual((log.data, log.cuts, self.endpoint.attempts), (stream(3000, at=9), [], []))
        errors = [event for event in events if event["log_level"] is LogLevel.error]
        self.assertEqual(len(errors), 1)
        status = self.slave.status()
        self.assertIn("replication has stopped: our log differs from the master's at", status.problem)
        self.assertIsNotNone(status.difference)

    def test_another_master_changes_nothing(self) -> None:
        """A name server that reports a master does not start it again, nor does a second start."""
        self.other_log()
        self.slave.follow(self.endpoint, "other:10912")
        self.slave.start()
        self.assertEqual(self.endpoint.attempts, [])

    def test_an_operator_takes_the_log_of_the_master(self) -> None:
        """An operator gives up our log: it is kept, and the master's is taken."""
        log = self.other_log()
        done = Deferred.fromCoroutine(self.slave.take_master())
        self.assertEqual(self.successResultOf(done), "aside")
        self.assertEqual(log.asides, [stream(3000, at=9)])
        client, transport = self.endpoint.succeed()
        self.assertEqual(transport.take(), encode_report(0))
        self.send(client, 0, stream(3000))
        self.assertEqual((log.data, self.slave.status().problem), (stream(3000), ""))

    def test_a_stop_waits_for_a_decision(self) -> None:
        """The log is not closed while its files are copied and it is cut; nothing is decided after that."""
        log = self.other_log()
        copying: Deferred[str] = Deferred()
        self.patch(log, "set_aside", lambda _: copying)
        first = Deferred.fromCoroutine(self.slave.take_master())
        stopped = self.slave.stop()
        self.assertNoResult(stopped)
        copying.callback("aside")
        self.assertEqual(self.successResultOf(first), "aside")
        self.successResultOf(stopped)
        self.assertEqual(self.endpoint.attempts, [])
        self.successResultOf(self.slave.stop())

    def test_no_decision_after_a_stop(self) -> None:
        """A decision that comes while the broker stops changes nothing."""
        log = self.other_log()
        self.successResultOf(self.slave.stop())
        done = Deferred.fromCoroutine(self.slave.take_master())
        self.assertIn("stopping", str(self.failureResultOf(done, DecisionUnderWay).value))
        self.assertRaises(DecisionUnderWay, self.slave.try_again)
        self.assertEqual(log.asides, [])

    def test_one_decision_at_a_time(self) -> None:
        """While the old files are copied, no other decision touches the log; after a failure, one may."""
        log = self.other_log()
        copying: Deferred[str] = Deferred()
        self.patch(log, "set_aside", lambda _: copying)
        first = Deferred.fromCoroutine(self.slave.take_master())
        second = Deferred.fromCoroutine(self.slave.take_master())
        self.assertIn("wait", str(self.failureResultOf(second, DecisionUnderWay).value))
        self.assertRaises(DecisionUnderWay, self.slave.try_again)
        self.assertNoResult(first)
        self.assertEqual((self.endpoint.attempts, self.slave.is_stopped), ([], True))
        copying.errback(OSError(28, "No space left on device"))
        self.failureResultOf(first, OSError)
        self.slave.try_again()
        self.assertEqual(len(self.endpoint.attempts), 1)

    def test_no_room_to_keep_it(self) -> None:
        """What cannot be kept is not given up."""
        log = self.other_log()
        log.fails = OSError(28, "No space left on device")
        self.failureResultOf(Deferred.fromCoroutine(self.slave.take_master()), OSError)
        self.assertEqual((log.data, self.endpoint.attempts), (stream(3000, at=9), []))
        self.assertIsNotNone(self.slave.status().difference)
        self.assertEqual(self.failures, [])

    def test_an_operator_tries_again(self) -> None:
        """After the master was repaired."""
        log = self.other_log()
        self.slave.try_again()
        client, transport = self.endpoint.succeed()
        start = int.from_bytes(transport.take(), "big")
        self.send(client, start, stream(4000, at=9)[start:])
        self.assertEqual((log.data, log.cuts), (stream(4000, at=9), []))

    def stopped_by_a_later_begin(self, size: int) -> str:
        """
        Our log has C{size} bytes, the master's begins at 4096: it is asked once a session was fruitless, and
        we stop; an operator may give up all of our log then.

        @return: why.
        """
        known = LogRange(begin_offset=FILE_SIZE, end_offset=9000)
        self.make(MemoryLog(stream(size)), master_range=lambda: succeed(known))
        client, _ = self.endpoint.succeed()
        unplug(client)
        self.clock.advance(1)
        self.assertEqual(self.endpoint.attempts, [])
        status = self.slave.status()
        self.assertEqual(status.difference.common_end if status.difference else -1, 0)
        return status.problem

    def test_expired_bytes_stop_replication(self) -> None:
        """The master's log begins after our end."""
        self.assertIn("the master's log begins at 4096", self.stopped_by_a_later_begin(3000))

    def test_log_that_ends_at_the_masters_begin(self) -> None:
        """Every report would be below the master's beginning."""
        self.assertIn("begins at 4096, ours ends at 4096: there is nothing to compare",
                      self.stopped_by_a_later_begin(FILE_SIZE))

    def test_master_does_not_notify(self) -> None:
        """A master that cannot be asked is tried none the less."""
        self.make(MemoryLog(stream(3000)), master_range=lambda: fail(ConnectionRefusedError()))
        client, _ = self.endpoint.succeed()
        unplug(client)
        self.clock.advance(1)
        self.assertEqual(len(self.endpoint.attempts), 1)

    def test_a_master_behind_is_waited_for(self) -> None:
        """A master without bytes that we reported: said once, until it has them; nothing is cut."""
        data = stream(3000)
        self.make(MemoryLog(data))
        client, transport = self.endpoint.succeed()
        start = int.from_bytes(transport.take(), "big")
        end = MemoryLog(data).record_end_below(2000)
        with capturedLogs() as events:
            self.send(client, start, data[start:end])
            for _ in range(4):
                self.pass_time(5000)
                self.send(client, end)
        reported = [event for event in events if event["log_level"] is LogLevel.error]
        self.assertEqual((len(reported), self.commit_log.data), (1, data))
        self.assertIn("ends below bytes that we reported", self.slave.status().problem)
        self.send(client, end, data[end:])
        self.pass_time(100)
        self.assertEqual(self.slave.status().problem, "")


class LifeTests(ClientCase):
    """Another master, and the end."""

    def test_a_slave_waits_for_a_master(self) -> None:
        """Without one it waits for one."""
        self.make()
        self.slave.follow(None, "")
        self.assertEqual(self.endpoint.cancelled, 1)
        self.clock.advance(60)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_another_master_replaces_the_connection(self) -> None:
        """A connection to the old one is left; the same one again changes nothing."""
        self.make()
        client, transport = self.endpoint.succeed()
        self.slave.follow(FakeEndpoint(), "m:10912")
        self.assertFalse(transport.is_aborted)
        other = FakeEndpoint()
        self.slave.follow(other, "n:10912")
        self.assertTrue(transport.is_aborted)
        self.clock.advance(1)
        self.assertEqual(len(other.attempts), 1)
        self.assertEqual(self.slave.status().master, "n:10912")

    def test_other_master_after_a_wait(self) -> None:
        """A wait that is over is not cancelled, whether the old master answers by now or not."""
        for connects in (False, True):
            self.make(ha_reconnect_min=200)
            self.endpoint.fail()
            self.clock.advance(0.26)
            if connects:
                self.endpoint.succeed()
            other = FakeEndpoint()
            self.slave.follow(other, "n:10912")
            self.clock.advance(1)
            self.assertEqual(len(other.attempts), 1)
            self.slave.stop()
            self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_a_stop_ends_every_state(self) -> None:
        """In every state; a flush that is under way ends without a report, and no other one begins."""
        self.make()
        self.slave.stop()
        self.assertEqual((self.endpoint.cancelled, self.clock.getDelayedCalls()), (1, []))
        self.make()
        self.endpoint.fail()
        self.slave.stop()
        self.assertEqual(self.clock.getDelayedCalls(), [])
        self.make(flush_disk_type="SYNC_FLUSH")
        self.commit_log.is_lazy = True
        client, transport = self.endpoint.succeed()
        self.send(client, 0, stream(100))
        transport.take()
        self.commit_log.append_raw(self.commit_log.end_offset, stream(100, start=self.commit_log.end_offset))
        self.slave.stop()
        self.assertTrue(transport.is_aborted)
        self.commit_log.finish_flush()
        self.assertEqual((self.clock.getDelayedCalls(), self.commit_log.flushes), ([], []))
        self.assertEqual(transport.take(), b"")

    def test_an_operator_sees_the_slave(self) -> None:
        """What an operator sees."""
        self.make()
        status = self.slave.status()
        self.assertEqual((status.is_connected, status.reported_offset, status.sessions), (False, -1, 0))
        self.assertEqual((status.heard_ago_ms, status.reported_ago_ms), (-1, -1))
        client, _ = self.endpoint.succeed()
        self.send(client, 0, stream(100)[:100])
        self.clock.advance(0.3)
        status = self.slave.status()
        self.assertEqual((status.heard_ago_ms, status.reported_ago_ms), (300, 300))
        self.assertEqual(
            (status.is_connected, status.reported_offset, status.master_offset, status.received_bytes,
             status.sessions, status.is_comparing),
            (True, 100, 100, 100, 1, False),
        )
