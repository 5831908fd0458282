# -*- test-case-name: tests.broker.ha.test_master -*-
"""A master and its slaves: frames, start rules, refusals, heartbeats, house-keeping, back-pressure."""

from __future__ import annotations

import struct
from typing import Any

from twisted.internet.address import IPv4Address
from twisted.internet.error import ConnectionDone
from twisted.internet.task import Clock
from twisted.logger import LogLevel, capturedLogs, formatEvent
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.replication.config import HAConfig
from dledger.rocketmq.replication.master import GATHER_S, READ_SIZE_MAX, TURN_SIZE_MAX, HAMaster
from dledger.rocketmq.replication.put_status import PutStatus
from dledger.rocketmq.store.records.events import BrokerEvents
from dledger.values.errors import StoreError
from protocols.rocketmq.ha import HAConnection
from protocols.wire.rocketmq.ha import TRANSFER_HEADER, TRANSFER_HEADER_SIZE, encode_report
from protocols.wire.rocketmq.layout import HEAD, MAGIC_V1
from tests.broker.ha.fakes import FILE_SIZE, HATransport, MemoryLog, plug, unplug
from tests.broker.support import Reported

HEARTBEAT_MS, LIMIT_MS = 5000, 20_000


def records_of(count: int) -> list[bytes]:
    """The heads of records of 100 bytes, one after the other from 0 on."""
    return [HEAD.pack(100, MAGIC_V1, 0, 0, 0, at, at * 100, 0, 0).ljust(100, b"x") for at in range(count)]


def frames_of(data: bytes) -> list[tuple[int, bytes]]:
    """Offset and body of every frame."""
    found, at = [], 0
    while at < len(data):
        offset, size = TRANSFER_HEADER.unpack_from(data, at)
        at += TRANSFER_HEADER_SIZE
        found.append((offset, data[at : at + size]))
        at += size
    return found


class Slave:
    """One who has connected."""

    def __init__(self, case: MasterCase, host: str = "10.0.0.1", port: int = 4711) -> None:
        self.case = case
        connection = case.master.buildProtocol(IPv4Address("TCP", host, port))
        assert connection is not None
        self.connection: HAConnection = connection
        self.transport: HATransport = plug(connection, host, port)

    def report(self, offset: int) -> None:
        """Inform the master."""
        self.connection.dataReceived(encode_report(offset))

    def frames(self) -> list[tuple[int, bytes]]:
        """What came since the last time, and what gathers now."""
        self.case.clock.advance(GATHER_S)
        return frames_of(self.transport.take())


class MasterCase(SynchronousTestCase):
    """A master with a log in memory and a clock that stands still."""

    def make(self, size: int = 0, **options: Any) -> MemoryLog:
        """@param size: bytes in the log."""
        self.clock = Clock()
        self.commit_log = MemoryLog(bytes(at % 251 for at in range(size)))
        self.failures: list[Failure] = []
        self.events = Reported()
        self.master = HAMaster(
            HAConfig(**{"ha_allowed_hosts": ("*",), **options}), self.commit_log, self.clock,
            events=self.events, failed=self.failures.append,
        )
        return self.commit_log

    def pass_time(self, ms: int, step_ms: int = 100) -> None:
        """Tick all the while."""
        for _ in range(ms // step_ms):
            self.clock.advance(step_ms / 1000)
            self.master.tick(self.master._now_ms())


class StreamTests(MasterCase):
    """What slaves are sent."""

    def test_nothing_before_the_first_report(self) -> None:
        """Neither data nor heartbeats."""
        self.make(100)
        slave = Slave(self)
        self.pass_time(15_000)
        self.assertEqual(slave.frames(), [])

    def test_a_slave_gets_the_whole_log(self) -> None:
        """In frames of at most the batch size that never cross a file."""
        log = self.make(2 * FILE_SIZE + 100, ha_transfer_batch_size=1000)
        slave = Slave(self)
        slave.report(1)
        frames = slave.frames()
        self.assertEqual(b"".join(body for _, body in frames), log.data[1:])
        for offset, body in frames:
            self.assertLessEqual(len(body), 1000)
            self.assertEqual(offset // FILE_SIZE, (offset + len(body) - 1) // FILE_SIZE)
        self.assertEqual([len(body) for _, body in frames], [1000] * 4 + [95] + [1000] * 4 + [96, 100])

    def test_one_frame_at_a_time(self) -> None:
        """A batch size of one byte is allowed."""
        log = self.make(600, ha_transfer_batch_size=1)
        slave = Slave(self)
        slave.report(1)
        self.assertEqual(b"".join(body for _, body in slave.frames()), log.data[1:])

    def test_an_empty_slave_begins_with_the_last_file(self) -> None:
        """It begins with the last file; or with the first one, if it is asked to."""
        for option, start in ((False, 2 * FILE_SIZE), (True, 0)):
            self.make(2 * FILE_SIZE + 100, ha_start_at_first_file=option)
            slave = Slave(self)
            slave.report(0)
            self.assertEqual(slave.frames()[0][0], start)

    def test_new_bytes_go_to_each_slave(self) -> None:
        """
        What is appended goes out to each slave from its place, gathered for a while; if puts wait for it,
        when the turn ends, and at once to a slave that has reported everything.
        """
        for role, at_once in (("ASYNC_MASTER", []), ("SYNC_MASTER", [b"abc"])):
            log = self.make(100, broker_role=role)
            slaves = [Slave(self, port=port) for port in (1, 2, 3)]
            for slave, offset in zip(slaves, (100, 40, 7), strict=True):
                slave.report(offset)
                slave.frames()
            for _turn in range(2):
                start = log.end_offset
                for slave in slaves:
                    slave.report(start)
                for part in (b"abc", b"def", b"ghi"):
                    log.put(part)
                    self.master.appended()
                for slave in slaves:
                    self.assertEqual([body for _, body in frames_of(slave.transport.take())], at_once)
                self.clock.advance(0)
                self.assertEqual({bool(slave.transport.value()) for slave in slaves}, {bool(at_once)})
                for slave in slaves:
                    frames = slave.frames()
                    self.assertEqual(b"".join([*at_once, *(body for _, body in frames)]), b"abcdefghi")
                    self.assertEqual(frames[-1][0] + len(frames[-1][1]), start + 9)
                    self.assertEqual(len(frames), 1)

    def test_reported_of_reports(self) -> None:
        """Of a report that says more than those before, after the puts that waited for it."""
        log = self.make(100, broker_role="SYNC_MASTER")
        slave = Slave(self)
        slave.report(100)
        slave.frames()
        log.put(b"abc")
        self.master.appended()
        reported: list[str] = []
        put = self.master.transfers.wait(103, needed=1, deadline_ms=1000)
        put.addCallback(lambda _status: reported.append("put"))
        self.events.acknowledged = lambda: reported.append("acked")  # type: ignore[method-assign]
        slave.report(100)
        self.assertEqual(reported, [])
        slave.report(103)
        slave.report(103)
        self.assertEqual(reported, ["put", "acked"])

    def test_unflushed_bytes_are_not_sent(self) -> None:
        """What is not on stable storage is not shipped; it is as soon as it is."""
        log = self.make(0, ha_transfer_flushed_only=True)
        slave = Slave(self)
        slave.report(0)
        log.put(b"abcdef")
        log.flushed_offset = 4
        self.master.appended()
        self.assertEqual(slave.frames(), [(0, b"abcd")])
        log.flushed_offset = 6
        self.master.appended()
        self.assertEqual(slave.frames(), [(4, b"ef")])

    def test_a_congested_slave_is_waited_for(self) -> None:
        """Nothing is sent while the transport is full; the rest follows when it is drained."""
        log = self.make(0)
        slave = Slave(self)
        slave.report(0)
        slave.connection.pauseProducing()
        log.put(b"abc")
        self.master.appended()
        self.pass_time(6000)
        self.assertEqual(slave.frames(), [])
        slave.connection.resumeProducing()
        self.assertEqual(slave.frames(), [(0, b"abc")])

    def test_a_slave_behind_gets_several_turns(self) -> None:
        """A slave that lacks much goes on in the next turn."""
        self.clock = Clock()
        big = TURN_SIZE_MAX + 3 * READ_SIZE_MAX
        self.commit_log = MemoryLog(bytes(big), file_size=1 << 30)
        config = HAConfig(ha_allowed_hosts=("*",))
        self.master = HAMaster(config, self.commit_log, self.clock, events=BrokerEvents())
        slave = Slave(self)
        slave.report(1)
        sizes = []
        while self.clock.calls:
            call = self.clock.calls.pop(0)  # one at a time: an advancing clock runs new calls, too
            call.func(*call.args)
            sizes.append(sum(len(body) for _, body in frames_of(slave.transport.take())))
        self.assertEqual(sizes, [TURN_SIZE_MAX, 3 * READ_SIZE_MAX - 1])

    def test_a_broken_log_ends_the_broker(self) -> None:
        """A log that cannot be read ends the broker, not the process."""
        log = self.make(10)
        slave = Slave(self)
        slave.report(1)

        def read(offset: int, size: int) -> bytes:
            raise StoreError("bad block")

        self.patch(log, "read", read)
        self.assertEqual(slave.frames(), [])
        self.assertIn("bad block", self.failures[0].getErrorMessage())


class RefusalTests(MasterCase):
    """Who is closed, and what is said."""

    def assertRefused(self, slave: Slave, reason: str, events: Any) -> None:
        """It is closed, for a reason that is logged as a warning."""
        self.assertTrue(slave.transport.is_aborted)
        warnings = [str(event.get("reason", "")) for event in events if event["log_level"] is LogLevel.warn]
        self.assertTrue(any(reason in warning for warning in warnings), warnings)
        self.assertEqual(len(self.master.acks), 0)

    def test_beyond_the_end(self) -> None:
        """The first report, or a later one: refused, and counted for nothing."""
        self.make(100)
        put = self.master.transfers.wait(100, needed=1, deadline_ms=10**9)
        with capturedLogs() as events:
            slave = Slave(self)
            slave.report(1 << 40)
            self.assertRefused(slave, "beyond our end at 100", events)
            slave = Slave(self)
            slave.report(100)
            slave.report(101)
            self.assertRefused(slave, "was sent bytes only up to 100", events)
        self.assertEqual((self.master.acks.held(1), self.master.status()), (-1, ()))
        self.assertIs(self.successResultOf(put), PutStatus.PUT_OK)  # the second one had vouched for 100

    def test_below_the_beginning(self) -> None:
        """What is deleted cannot be sent."""
        self.make()
        self.commit_log.begin_offset = FILE_SIZE
        with capturedLogs() as events:
            slave = Slave(self)
            slave.report(FILE_SIZE - 1)
            self.assertRefused(slave, "below our beginning at 4096", events)

    def test_deleted_under_it(self) -> None:
        """A slave that is so slow that its next byte was deleted."""
        log = self.make(2 * FILE_SIZE)
        slave = Slave(self)
        slave.report(5)
        slave.connection.pauseProducing()
        slave.frames()
        del log.data[:FILE_SIZE]
        log.begin_offset = FILE_SIZE
        with capturedLogs() as events:
            slave.connection.resumeProducing()
            self.assertRefused(slave, "it was too slow", events)

    def test_connections_beyond_the_bound_are_closed(self) -> None:
        """More connections than allowed, and addresses that are not."""
        self.make(ha_slaves_max=2, ha_allowed_hosts=("10.0.0.1",))
        with capturedLogs() as events:
            self.assertTrue(Slave(self, "10.0.0.2").transport.is_aborted)
            slave = Slave(self)
            Slave(self)
            self.assertIsNone(self.master.buildProtocol(IPv4Address("TCP", "10.0.0.1", 1)))
        reasons = [event["reason"] for event in events if event["log_level"] is LogLevel.warn]
        self.assertIn("ha_allowed_hosts allows only 10.0.0.1", reasons[0])
        self.assertIn("ha_slaves_max allows no more", reasons[1])
        unplug(slave.connection)
        Slave(self)

    def test_only_this_host(self) -> None:
        """Without a list: the loopback interface, and the address at which the connection arrived."""
        self.make(ha_allowed_hosts=())
        for host, is_taken in (("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("10.0.0.1", False),
                               ("::ffff:127.0.0.1", True), ("10.0.0.9", True)):
            connection = self.master.buildProtocol(IPv4Address("TCP", host, 1))
            assert connection is not None
            transport = HATransport(IPv4Address("TCP", host, 1))
            transport.hostAddr = IPv4Address("TCP", "10.0.0.9", 10912)
            connection.makeConnection(transport)
            self.assertEqual(transport.is_aborted, not is_taken, host)
            self.assertEqual(len(self.master.acks), int(is_taken), host)
            connection.dataReceived(encode_report(0))
            unplug(connection)
        self.assertEqual([one.host for one in self.master.refused()], ["10.0.0.1"])

    def test_refusals_are_folded(self) -> None:
        """A host that tries again and again is logged once in a while, and counted."""
        self.make(100)
        with capturedLogs() as events:
            for number in range(5):
                Slave(self).report(200 + number)
        self.assertEqual(len([one for one in events if "refused" in one["log_format"]]), 1)
        (refused,) = self.master.refused()
        self.assertEqual((refused.host, refused.count), ("10.0.0.1", 5))
        Slave(self).report(100)
        self.assertEqual(self.master.refused(), ())

    def test_strangers_are_folded(self) -> None:
        """Reasons in turn, connections without a report, slaves that come and go: one line for each kind."""
        self.make(100)
        with capturedLogs() as events:
            for _ in range(10):
                Slave(self).report(200)
                unplug(Slave(self).connection)
                Slave(self).connection.dataReceived(struct.pack(">q", -5))
                slave = Slave(self)
                slave.report(100)
                unplug(slave.connection)
        lines = [str(formatEvent(one)) for one in events]
        self.assertEqual(len(lines), 5, lines)
        self.assertEqual(sum("without a report" in line for line in lines), 2)
        self.clock.advance(11)
        with capturedLogs() as events:
            self.master.tick(self.master._now_ms())
        self.assertIn("slaves of 10.0.0.1 connected 10 times in 0 s", [formatEvent(one) for one in events])

    def test_a_controller_handshake_is_refused(self) -> None:
        """A handshake of 5.0 or 5.1 is refused by its first word, in one read with the rest or not."""
        five_one = struct.pack(">ihhq", 1, 0, 1, 2)
        five_zero = struct.pack(">ihhi50s", 1, 1, 0, 9, b"10.0.0.1:1")
        for whole in (five_one, five_zero):
            for pieces in ((whole,), (whole[:8], whole[8:])):
                self.make(100)
                slave = Slave(self)
                for piece in pieces:
                    slave.connection.dataReceived(piece)
                self.assertTrue(slave.transport.is_aborted)
                self.assertEqual(slave.transport.value(), b"")

    def test_controller_mode_of_a_long_log(self) -> None:
        """Where the first word is an offset of the log, the rest is none that a slave reports."""
        for second in (2, 9 << 32 | 0x31302E30):
            self.make(100)
            self.commit_log.begin_offset = 1 << 32
            slave = Slave(self)
            slave.connection.dataReceived(struct.pack(">ihhq", 1, 0, 1, second))
            self.assertTrue(slave.transport.is_aborted)
            self.assertEqual(slave.transport.value(), b"")

    def test_another_protocol_is_refused(self) -> None:
        """A browser at the port is closed by its first bytes, as its number is beyond all ends."""
        self.make(100)
        with capturedLogs() as events:
            slave = Slave(self)
            slave.connection.dataReceived(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            self.assertRefused(slave, "beyond our end", events)


class TimeTests(MasterCase):
    """Heartbeats and house-keeping."""

    def test_a_silent_master_sends_heartbeats(self) -> None:
        """Every five seconds of silence, with the offset that comes next; data puts them off."""
        log = self.make(100)
        slave = Slave(self)
        slave.report(100)
        self.pass_time(HEARTBEAT_MS - 100)
        self.assertEqual(slave.frames(), [])
        self.pass_time(100)
        self.assertEqual(slave.frames(), [(100, b"")])
        self.pass_time(3000)
        slave.report(100)
        log.put(b"abc")
        self.master.appended()
        self.assertEqual(slave.frames(), [(100, b"abc")])
        self.pass_time(HEARTBEAT_MS - 100)
        self.assertEqual(slave.frames(), [])
        self.pass_time(100)
        self.assertEqual(slave.frames(), [(103, b"")])

    def test_a_silent_slave_is_closed(self) -> None:
        """Twenty seconds without a report; not one less, and each report counts."""
        self.make(100)
        never, once = Slave(self, port=1), Slave(self, port=2)
        self.pass_time(10_000)
        once.report(100)
        self.pass_time(LIMIT_MS - 10_000)
        self.assertFalse(never.transport.is_aborted)
        self.pass_time(200)
        self.assertTrue(never.transport.is_aborted)
        self.assertFalse(once.transport.is_aborted)
        self.pass_time(10_000)
        self.assertTrue(once.transport.is_aborted)
        self.assertEqual(self.master.status(), ())

    def test_congested_slave_is_timed_too(self) -> None:
        """Who neither reads nor reports does not stay."""
        self.make(100)
        slave = Slave(self)
        slave.report(1)
        slave.connection.pauseProducing()
        self.pass_time(LIMIT_MS + 200)
        self.assertTrue(slave.transport.is_aborted)


class AckTests(MasterCase):
    """Reports answer puts."""

    def test_a_report_answers_its_puts(self) -> None:
        """When the slave has all bytes that were sent."""
        log = self.make(100)
        slave = Slave(self)
        slave.report(100)
        put = self.master.transfers.wait(log.put(b"abc"), needed=1, deadline_ms=10**9)
        self.master.appended()
        slave.frames()
        slave.report(102)
        self.assertNoResult(put)
        slave.report(103)
        self.assertIs(self.successResultOf(put), PutStatus.PUT_OK)

    def test_first_report_after_a_crash(self) -> None:
        """A slave that comes with what we have written again since is not believed."""
        log = self.make(100)
        put = self.master.transfers.wait(log.put(b"abc"), needed=1, deadline_ms=10**9)
        slave = Slave(self)
        slave.report(103)
        self.assertNoResult(put)
        self.assertEqual(self.master.status()[0].gap_bytes, 0)

    def test_another_log_acknowledges_nothing(self) -> None:
        """A slave whose own tail ends in the middle of a record of ours counts for nothing."""
        log = self.make()
        for record in records_of(10):
            log.put(record)
        size = log.end_offset // 10
        with capturedLogs() as events:
            for host, offset in (("10.0.0.1", size + 3), ("10.0.0.2", 3 * size)):
                slave = Slave(self, host)
                slave.report(offset)
                put = self.master.transfers.wait(log.put(b"abc"), needed=1, deadline_ms=10**9)
                self.master.appended()
                slave.frames()
                slave.report(log.end_offset)
                if host == "10.0.0.1":
                    self.assertNoResult(put)
                else:
                    self.assertIs(self.successResultOf(put), PutStatus.PUT_OK)
        reported = [one for one in events if "followed another log" in str(one.get("log_format"))]
        self.assertEqual([one["ack_offset"] for one in reported], [size + 3])

    def test_asks_for_everything(self) -> None:
        """An empty slave reports 1, to be sent all: it counts at once."""
        log = self.make()
        for record in records_of(3):
            log.put(record)
        slave = Slave(self)
        slave.report(1)
        put = self.master.transfers.wait(log.put(b"abc"), needed=1, deadline_ms=10**9)
        self.master.appended()
        slave.frames()
        slave.report(log.end_offset)
        self.assertIs(self.successResultOf(put), PutStatus.PUT_OK)

    def test_cut_in_a_record(self) -> None:
        """One that lost its connection in the middle of a record counts again, as one of before does."""
        log = self.make()
        for record in records_of(10):
            log.put(record)
        slave = Slave(self)
        slave.report(0)
        slave.frames()
        slave.report(log.end_offset - 5)
        slave.connection.connectionLost(Failure(ConnectionDone()))
        slave = Slave(self, port=4712)
        slave.report(log.end_offset - 5)
        put = self.master.transfers.wait(log.put(b"abc"), needed=1, deadline_ms=10**9)
        self.master.appended()
        slave.frames()
        slave.report(log.end_offset)
        self.assertIs(self.successResultOf(put), PutStatus.PUT_OK)
        log = self.make(100)
        slave = Slave(self)
        slave.report(77)
        put = self.master.transfers.wait(log.put(b"abc"), needed=1, deadline_ms=10**9)
        self.master.appended()
        slave.frames()
        slave.report(103)
        self.assertIs(self.successResultOf(put), PutStatus.PUT_OK)

    def test_lost_slave_counts_no_more(self) -> None:
        """Acknowledgements live as long as their connection."""
        self.make(100)
        slave = Slave(self)
        slave.report(100)
        self.assertEqual(self.master.acks.held(1), 100)
        unplug(slave.connection)
        self.assertEqual(self.master.acks.held(1), -1)

    def test_the_tick_expires_puts(self) -> None:
        """The tick expires puts."""
        self.make(100)
        put = self.master.transfers.wait(100, needed=1, deadline_ms=3000)
        self.pass_time(2900)
        self.assertNoResult(put)
        self.pass_time(100)
        self.assertIs(self.successResultOf(put), PutStatus.FLUSH_SLAVE_TIMEOUT)

    def test_a_stop_closes_all_connections(self) -> None:
        """Connections are closed, puts answered, nobody else is taken."""
        self.make(100)
        slave = Slave(self)
        put = self.master.transfers.wait(100, needed=1, deadline_ms=10**9)
        self.master.stop()
        self.assertTrue(slave.transport.is_aborted)
        self.assertIs(self.successResultOf(put), PutStatus.FLUSH_SLAVE_TIMEOUT)
        self.assertIsNone(self.master.buildProtocol(IPv4Address("TCP", "10.0.0.1", 1)))

    def test_an_operator_sees_the_slaves(self) -> None:
        """What an operator sees."""
        log = self.make(100, ha_max_gap_not_in_sync=50)
        slave = Slave(self)
        slave.report(60)
        slave.frames()
        slave.report(80)
        log.put(bytes(30))
        (status,) = self.master.status()
        self.assertEqual(
            (status.address, status.ack_offset, status.transfer_offset, status.gap_bytes, status.is_in_sync,
             status.transferred_bytes),
            ("10.0.0.1:4711", 80, 100, 50, False, 40),
        )
