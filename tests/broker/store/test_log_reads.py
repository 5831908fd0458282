# -*- test-case-name: tests.broker.store.test_log_reads -*-
"""Whole records for readers that follow the log."""

from __future__ import annotations

import random

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.store import log_reads
from dledger.rocketmq.store.log_reads import LogReads, read_records
from dledger.rocketmq.store.records.bad_records import BadRecords
from dledger.testing.world.memory_disk import MemoryDisk
from protocols.rocketmq.broker import BrokerConnection, NativeRequests
from protocols.wire.framing import FrameBuffer
from protocols.wire.rocketmq.broker_frames import ReadAnswer, ReadRequest, decode_broker_frame, request_parts
from protocols.wire.rocketmq.message import Message, decode_message
from tests.broker.support import LOG_SIZE, Reported, config_of, message, messages_in, open_log, some_message
from tests.protocols.fakes import FakeTransport, turn_of
from tests.protocols.test_commands import Seen


def messages_of(answer: ReadAnswer) -> list[Message]:
    """The records of an answer, by the readable codec; they fill it."""
    found: list[Message] = []
    at = 0
    while at < len(answer.records):
        found.append(decode_message(answer.records, at, physical_offset=answer.begin_offset + at))
        at += found[-1].size
    return found


class ReadRecordsTests(SynchronousTestCase):
    """One answer."""

    def setUp(self) -> None:
        self.log = open_log(MemoryDisk())

    def put(self, count: int, seed: int = 1) -> None:
        """Append C{count} messages of all sorts, over several files."""
        rng = random.Random(seed)
        for _ in range(count):
            self.log.append([[some_message(rng)]], 5)

    def test_every_message_comes_once(self) -> None:
        """Whatever is asked for at a time, all messages come once and in order, and the end is the end."""
        self.put(60)
        expected = messages_in(self.log)
        self.assertGreater(self.log.record_end, 3 * LOG_SIZE)
        for max_bytes in (-1, 0, 1, 91, 500, 4096, 1 << 20, 2**31 - 1):
            at, found = 0, []
            while at < self.log.record_end:
                answer = read_records(self.log, BadRecords(), at, max_bytes)
                self.assertEqual(answer.code, 0, answer)
                self.assertGreater(answer.next_offset, at)
                got = messages_of(answer)
                self.assertTrue(len(got) == 1 or len(answer.records) <= max_bytes)
                found += got
                at = answer.next_offset
            self.assertEqual(found, expected, max_bytes)
            self.assertEqual((answer.next_offset, answer.log_end_offset), (at, at))

    def test_nothing_comes_at_the_end(self) -> None:
        """At the end, and beyond it: no records, the same offset."""
        self.put(3)
        end = self.log.record_end
        for offset in (end, end + 1000):
            answer = read_records(self.log, BadRecords(), offset, 100)
            self.assertEqual((answer.code, answer.records, answer.next_offset), (0, b"", offset))

    def test_no_record_begins_there(self) -> None:
        """Any offset within a record is refused, also close to the end of the log and of a file."""
        self.put(12)
        end = self.log.record_end
        begins = {one.physical_offset for one in messages_in(self.log)}
        blanks = {base for base in range(0, end, LOG_SIZE)}
        refused = 0
        for offset in range(end):
            answer = read_records(self.log, BadRecords(), offset, 100)
            if offset in begins | blanks:
                self.assertEqual(answer.code, 0, offset)
            elif answer.code == 0:  # the blank itself
                self.assertEqual(answer.begin_offset % LOG_SIZE, 0, offset)
            else:
                self.assertEqual(answer.code, 22, offset)
                self.assertIn("no record begins at", answer.remark)
                refused += 1
        self.assertGreater(refused, end - len(begins) - 5)

    def test_record_in_a_body(self) -> None:
        """What looks like a record, but names another place, is none."""
        self.put(1)
        whole = self.log.read(0, 4096)
        begin = self.log.record_end
        self.log.append([[message(b"..." + whole)]], 5)
        inside = begin + self.log.read(begin, 4096).index(whole)
        self.assertEqual(read_records(self.log, BadRecords(), inside, 4096).code, 22)

    def test_damage_ends_the_answer(self) -> None:
        """The records before it are given; after it nothing is."""
        self.log.append([[message(b"a")], [message(b"b")], [message(b"c")]], 5)
        second = messages_in(self.log)[1].physical_offset
        read = self.log.read
        whole = bytearray(read(0, 4096))
        whole[second + 4] ^= 1
        self.patch(self.log, "read", lambda at, size: bytes(whole[at : at + size]))
        answer = read_records(self.log, BadRecords(), 0, 4096)
        self.assertEqual(([one.body for one in messages_of(answer)], answer.next_offset), ([b"a"], second))
        answer = read_records(self.log, BadRecords(), second, 4096)
        self.assertEqual((answer.code, answer.records), (22, b""))

    def test_a_damaged_body_is_left_out(self) -> None:
        """The messages around it are given, and it is noted."""
        self.log.append([[message(b"first")], [message(b"second")], [message(b"third")]], 5)
        at = self.log.read(0, 4096).index(b"second")
        read = self.log.read
        whole = bytearray(read(0, 4096))
        whole[at] ^= 1
        self.patch(self.log, "read", lambda at, size: bytes(whole[at : at + size]))
        bad = BadRecords()
        found, at = [], 0
        while at < self.log.record_end:
            answer = read_records(self.log, bad, at, 4096)
            found += [one.body for one in messages_of(answer)]
            at = answer.next_offset
        self.assertEqual((found, bad.count), ([b"first", b"third"], 1))

    def test_an_expired_offset_names_the_first(self) -> None:
        """The first offset that is still there is named."""
        self.put(60)
        self.log.flusher.sync()
        self.log.expire_first()
        answer = read_records(self.log, BadRecords(), 0, 100)
        self.assertEqual((answer.code, answer.next_offset, answer.log_begin_offset), (21, LOG_SIZE, LOG_SIZE))

    def test_a_failing_disk_is_an_error(self) -> None:
        """An error, not the end."""
        self.put(3)

        def fail(offset: int, size: int) -> bytes:
            raise OSError("no")

        self.patch(self.log, "read", fail)
        answer = read_records(self.log, BadRecords(), 0, 100)
        self.assertEqual(answer.code, 1)
        self.assertIn("cannot be read at 0: no", answer.remark)

    def test_too_long_for_a_frame(self) -> None:
        """Said, instead of broken off in the middle of a frame."""
        self.patch(log_reads, "NATIVE_FRAME_BYTES_MAX", 8192 + 500)
        self.log.append([[message(b"x" * 1000)]], 5)
        answer = read_records(self.log, BadRecords(), 0, 100)
        self.assertEqual(answer.code, 1)
        self.assertIn("too long for a frame", answer.remark)

    def test_a_slaves_tail(self) -> None:
        """Bytes of a record that is not whole yet are not given."""
        self.put(3)
        data = self.log.read(0, 4096)
        slave = open_log(MemoryDisk(), is_slave=True, config=config_of("slave"))
        slave.append_raw(0, data[:-1])
        answer = read_records(slave, BadRecords(), 0, 4096)
        self.assertEqual(messages_of(answer), messages_in(self.log)[:2])
        self.assertEqual(read_records(slave, BadRecords(), answer.next_offset, 4096).records, b"")
        slave.append_raw(len(data) - 1, data[-1:])
        last = read_records(slave, BadRecords(), answer.next_offset, 4096)
        self.assertEqual(messages_of(last), messages_in(self.log)[2:])


class LogReadsTests(SynchronousTestCase):
    """Requests that wait, and for how long."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.turn = turn_of(self.clock)
        reported = Reported()
        self.log = open_log(MemoryDisk(), events=reported)
        self.reads = LogReads(self.log, clock=self.clock, turn=self.turn, bad=BadRecords())
        reported.also.append(self.reads.grown)
        self.connection, self.transport = self.connected()
        self.numbers = iter(range(1, 10_000))

    def connected(self) -> tuple[BrokerConnection, FakeTransport]:
        """A reader's connection."""
        connection = BrokerConnection(Seen(), self.turn, native=self)
        transport = FakeTransport()
        connection.makeConnection(transport)
        return connection, transport

    def natives_received(self, connection: BrokerConnection, requests: NativeRequests) -> None:
        """See NativeSink."""
        for ticket, request in requests:
            assert isinstance(request, ReadRequest)
            self.reads.read(connection, ticket, request)

    def ask(self, offset: int, wait_ms: int, at: BrokerConnection | None = None) -> None:
        """One request."""
        request = ReadRequest(begin_offset=offset, max_bytes=4096, wait_ms=wait_ms)
        (at or self.connection).dataReceived(b"".join(request_parts(request, next(self.numbers))))

    def answers(self, transport: FakeTransport | None = None) -> list[ReadAnswer]:
        """What went out since the last call."""
        self.clock.advance(0)
        self.clock.advance(0)
        transport = transport or self.transport
        frames = FrameBuffer().feed(transport.value())
        transport.clear()
        found = [decode_broker_frame(frame.data)[1] for frame in frames]
        assert all(isinstance(answer, ReadAnswer) for answer in found)
        return found  # type: ignore[return-value]

    def put(self, body: bytes) -> None:
        """Append a message."""
        self.log.append([[message(body)]], 5)

    def test_a_reader_waits_for_messages(self) -> None:
        """A reader at the end waits for the next message, and is given all of one turn."""
        self.ask(0, 1000)
        self.assertEqual(self.answers(), [])
        self.put(b"a")
        self.put(b"b")
        (answer,) = self.answers()
        self.assertEqual([one.body for one in messages_of(answer)], [b"a", b"b"])
        self.assertEqual((self.connection.unanswered, self.clock.getDelayedCalls()), (0, []))

    def test_a_reader_is_answered_at_its_deadline(self) -> None:
        """Nothing came: an empty answer at its time, to each at its own."""
        self.ask(0, 1000)
        self.ask(0, 300)
        self.clock.advance(0.29)
        self.assertEqual(self.answers(), [])
        self.clock.advance(0.02)
        self.assertEqual(len(self.answers()), 1)
        self.clock.advance(0.68)
        self.assertEqual(self.answers(), [])
        self.clock.advance(0.02)
        (answer,) = self.answers()
        self.assertEqual((answer.code, answer.records, answer.next_offset), (0, b"", 0))
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_a_wait_has_its_bounds(self) -> None:
        """Zero and less are answered at once; more than our bound is our bound."""
        self.ask(0, 0)
        self.ask(0, -5)
        self.assertEqual(len(self.answers()), 2)
        self.ask(0, 2**31 - 1)
        self.clock.advance(log_reads.WAIT_MS_MAX / 1000 + 0.01)
        self.assertEqual(len(self.answers()), 1)

    def test_errors_do_not_wait(self) -> None:
        """There is nothing to wait for."""
        self.put(b"a")
        self.ask(5, 1000)
        self.assertEqual([answer.code for answer in self.answers()], [22])

    def test_waiters_are_bounded(self) -> None:
        """One too many is answered with nothing."""
        self.patch(log_reads, "READERS_MAX", 2)
        for _ in range(3):
            self.ask(0, 1000)
        self.assertEqual((len(self.answers()), self.reads.waiting), (1, 2))

    def test_a_lost_reader_does_not_wait(self) -> None:
        """Who is gone waits no longer."""
        self.ask(0, 1000)
        self.connection.abort("test")
        self.patch(log_reads, "read_records", lambda *_: self.fail("nobody wants it"))
        self.put(b"a")
        self.assertEqual(self.answers(), [])
        self.assertEqual((self.reads.waiting, self.clock.getDelayedCalls()), (0, []))

    def test_a_slow_reader_is_waited_for(self) -> None:
        """
        A consumer that does not take its messages is given nothing more, until it does, or until its time is
        over.
        """
        self.put(b"a")
        other, transport = self.connected()
        self.connection.pauseProducing()
        self.ask(0, 1000)
        self.ask(0, 1000, at=other)
        self.assertEqual((len(self.answers()), len(self.answers(transport))), (0, 1))
        self.connection.resumeProducing()
        self.reads.grown()
        self.assertEqual([len(messages_of(answer)) for answer in self.answers()], [1])
        self.connection.pauseProducing()
        self.ask(0, 1000)
        self.clock.advance(1.01)
        self.assertEqual([answer.records for answer in self.answers()], [b""])

    def test_a_turn_is_bounded(self) -> None:
        """Readers that ask for much at once are served over several turns."""
        self.put(b"x" * 500)
        self.patch(log_reads, "TURN_BYTES_MAX", 1000)
        self.reads = LogReads(self.log, clock=self.clock, turn=self.turn, bad=BadRecords())
        connections = [self.connected() for _ in range(6)]
        for connection, _ in connections:
            self.ask(0, 1000, at=connection)
        self.assertEqual(self.reads.waiting, 4)
        self.clock.advance(0)  # every turn has its own
        self.assertEqual(self.reads.waiting, 0)
        for _, transport in connections:
            self.assertEqual([len(messages_of(answer)) for answer in self.answers(transport)], [1])

    def test_closing_answers_all_readers(self) -> None:
        """All who wait are informed that there is nothing."""
        self.ask(0, 1000)
        self.reads.answer_waiting()
        self.assertEqual([answer.records for answer in self.answers()], [b""])
        self.assertEqual(self.clock.getDelayedCalls(), [])
