# -*- test-case-name: tests.broker.sending.test_native -*-
"""What our own producers and readers ask a broker for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.broker.producing.puts import NotPut
from dledger.rocketmq.replication.put_status import PutStatus
from protocols.wire.framing import FrameBuffer
from protocols.wire.remoting import RemotingCommand, decode_command, encode_command
from protocols.wire.rocketmq.broker_frames import (
    BrokerAnswer,
    BrokerRequest,
    OffsetsAnswer,
    OffsetsRequest,
    PutAnswer,
    PutRequest,
    ReadAnswer,
    ReadRequest,
    decode_broker_frame,
    request_parts,
)
from protocols.wire.rocketmq.message import decode_properties
from tests.broker.put_support import WALL_MS
from tests.broker.send_support import EVERY, Sending
from tests.broker.store.test_log_reads import messages_of
from tests.broker.support import Threads, inline


class _Threads(Threads):
    """Threads that no longer wait once C{is_inline} is set."""

    is_inline = False

    def __call__(self, call: Callable[[], None]) -> Deferred[None]:
        return inline(call) if self.is_inline else super().__call__(call)


class NativeTests(SynchronousTestCase):
    """A master whose port understands native frames."""

    def made(self, **options: Any) -> Sending:
        """A broker; one connection to it."""
        broker = Sending(**options)
        client = broker.connect()
        self.connection = client.connection
        self.transport = client.transport
        self.broker = broker
        self.addCleanup(broker.stop)
        return broker

    def setUp(self) -> None:
        self.made()

    def ask(self, *requests: BrokerRequest) -> list[BrokerAnswer]:
        """In one read. @return: what was answered at once."""
        stream = b"".join(b"".join(request_parts(one, at)) for at, one in enumerate(requests))
        self.connection.dataReceived(stream)
        return self.answers()

    def answers(self) -> list[BrokerAnswer]:
        """What was answered since the last call, in the order of the requests."""
        self.broker.clock.advance(0)
        frames = FrameBuffer().feed(self.transport.value())
        self.transport.clear()
        found = [decode_broker_frame(frame.data) for frame in frames]
        return [answer for _, answer in sorted(found, key=lambda one: one[0])]  # type: ignore[misc]

    def test_version(self) -> None:
        """Asked by a remoting command."""
        self.connection.dataReceived(encode_command(RemotingCommand(code=51101, opaque=3)))
        self.broker.clock.advance(0)
        answer = decode_command(self.transport.value()[4:])
        self.assertEqual((answer.code, dict(answer.ext_fields)), (0, {"brokerWireVersion": "1"}))

    def test_put(self) -> None:
        """Messages stand in the log as those of another producer; the answer says where."""
        (answer,) = self.ask(PutRequest(
            topic="T1", bodies=(b"a", b"bb", b""), queue_id=2, properties=b"TAGS\x01A", flag=7, sys_flag=1,
            born_timestamp=1_600_000_000_000,
        ))
        stored = self.broker.stored()
        self.assertEqual(answer, PutAnswer(
            code=0, queue_id=2, queue_offset=0, store_timestamp=WALL_MS,
            offsets=tuple(one.physical_offset for one in stored),
        ))
        self.assertEqual([(one.body, one.queue_id, one.queue_offset) for one in stored],
                         [(b"a", 2, 0), (b"bb", 2, 1), (b"", 2, 2)])
        first = stored[0]
        self.assertEqual((first.topic, first.flag, first.sys_flag, first.born_timestamp),
                         ("T1", 7, 1, 1_600_000_000_000))
        self.assertEqual(dict(first.properties), {"TAGS": "A", **EVERY})
        self.assertEqual((str(first.store_host), self.broker.created), ("10.0.0.1:10911", 1))
        self.assertEqual(self.connection.unanswered, 0)

    def test_born_on_arrival(self) -> None:
        """A producer that does not say when."""
        self.ask(PutRequest(topic="T1", bodies=(b"a",)))
        self.assertEqual(self.broker.stored()[0].born_timestamp, WALL_MS)

    def test_queues_in_turn(self) -> None:
        """Whoever leaves the queue to us gets one for each frame."""
        answers = self.ask(*[PutRequest(topic="T1", bodies=(b"a", b"b")) for _ in range(4)])
        queues = [one.queue_id for one in answers if isinstance(one, PutAnswer)]
        self.assertEqual(len(set(queues)), 4)
        self.assertEqual([one.queue_id for one in self.broker.stored()],
                         [queue for queue in queues for _ in range(2)])

    def test_one_append(self) -> None:
        """All frames of one read are one put; what is wrong with one costs the others nothing."""
        calls: list[int] = []
        append = self.broker.store.append_plain

        def counted(messages: Any, now_ms: int) -> Any:
            calls.append(len(messages))
            return append(messages, now_ms)

        self.patch(self.broker.store, "append_plain", counted)
        answers = self.ask(
            PutRequest(topic="T1", bodies=(b"a", b"b"), queue_id=0),
            PutRequest(topic="T 1", bodies=(b"no",)),
            PutRequest(topic="T1", bodies=(b"no",), queue_id=99),
            PutRequest(topic="T1", bodies=()),
            PutRequest(topic="T1", bodies=(b"no",), properties=b"A\x01\0"),
            PutRequest(topic="T1", bodies=(b"no", b"x" * 4096)),
            PutRequest(topic="T1", bodies=(b"no",), sys_flag=4),
            PutRequest(topic="T1", bodies=(b"no",), properties=b"TRAN_MSG\x01true"),
            PutRequest(topic="T1", bodies=(b"no",), properties=b"TIMER_DELAY_MS\x017"),
            PutRequest(topic="T2", bodies=(b"c",), queue_id=1),
        )
        self.assertEqual(calls, [3])
        self.assertEqual([one.code for one in answers], [0, 1, 1, 13, 13, 13, 16, 16, 1, 0])
        refused = [one for one in answers[1:-1] if isinstance(one, PutAnswer)]
        self.assertEqual([one.offsets for one in refused], [()] * 8)
        self.assertTrue(all(one.remark for one in refused))
        self.assertEqual([one.body for one in self.broker.stored()], [b"a", b"b", b"c"])

    def test_as_other_sends(self) -> None:
        """Flags of transactions are refused, and a delay counts, for the topic of a retry, too."""
        answers = self.ask(*(PutRequest(topic="T1", bodies=(b"no",), sys_flag=flag) for flag in (4, 8, 12)))
        self.assertEqual([one.code for one in answers], [16] * 3)
        self.ask(PutRequest(topic="%RETRY%G", bodies=(b"a",), queue_id=0, properties=b"DELAY\x013\x02"))
        (stored,) = self.broker.stored()
        self.assertEqual((stored.topic, stored.queue_id), ("SCHEDULE_TOPIC_XXXX", 2))

    def test_delayed(self) -> None:
        """It waits where messages wait; the producer is informed of the queue where it goes."""
        (answer,) = self.ask(PutRequest(topic="T1", bodies=(b"a",), queue_id=1, properties=b"DELAY\x013\x02"))
        (stored,) = self.broker.stored()
        self.assertEqual((stored.topic, stored.queue_id), ("SCHEDULE_TOPIC_XXXX", 2))
        named = decode_properties(stored.properties_data)
        self.assertEqual((named["REAL_TOPIC"], named["REAL_QID"], named["DELAY"]), ("T1", "1", "3"))
        assert isinstance(answer, PutAnswer)
        self.assertEqual(answer.queue_id, 1)

    def test_files_roll(self) -> None:
        """More than a file takes in one frame: no message is split, each has its place."""
        (answer,) = self.ask(PutRequest(topic="T1", bodies=(b"x" * 700,) * 20))
        stored = self.broker.stored()
        assert isinstance(answer, PutAnswer)
        self.assertEqual(answer.offsets, tuple(one.physical_offset for one in stored))
        self.assertEqual(len(stored), 20)

    def test_sync(self) -> None:
        """
        Answered when slaves have said so, or with why not; a producer that does not wait is not held up.
        """
        broker = self.made(broker_role="SYNC_MASTER")
        (answer,) = self.ask(PutRequest(topic="T1", bodies=(b"a",)))
        self.assertEqual((answer.code, broker.stored()[0].body), (11, b"a"))
        assert isinstance(answer, PutAnswer)
        self.assertEqual(answer.offsets, (0,))
        slave = broker.slave()
        puts = [PutRequest(topic="T1", bodies=(b"b", b"c")), PutRequest(topic="T1", bodies=(b"d",))]
        self.assertEqual(self.ask(*puts), [])
        self.assertEqual(self.connection.unanswered, 2)
        broker.report(slave)
        answers = self.answers()
        self.assertEqual((self.connection.unanswered, self.connection.unanswered_bytes), (0, 0))
        places = [one.physical_offset for one in broker.stored()[1:]]
        self.assertEqual([(one.code, one.offsets) for one in answers], [
            (0, tuple(places[:2])), (0, tuple(places[2:])),
        ])
        self.assertEqual(self.ask(puts[0]), [])
        broker.pass_time(3500)
        (late,) = self.answers()
        self.assertEqual(late.code, 12)
        assert isinstance(late, PutAnswer)
        self.assertEqual(late.offsets, tuple(one.physical_offset for one in broker.stored()[4:]))

    def test_sync_flush(self) -> None:
        """Each answer comes after the flush; one that need not wait does not."""
        threads = _Threads()
        self.made(flush_disk_type="SYNC_FLUSH")
        self.patch(self.broker.store.log.flusher._group, "_run_in_thread", threads)
        no_wait = PutRequest(topic="T1", bodies=(b"a",), properties=b"WAIT\x01false")
        self.assertEqual(len(self.ask(PutRequest(topic="T1", bodies=(b"a",)), no_wait)), 1)
        threads.run()
        self.assertEqual([one.code for one in self.answers()], [0])
        threads.is_inline = True

    def test_slave(self) -> None:
        """A slave refuses, and makes no topics."""
        broker = self.made(broker_role="SLAVE")
        answers = self.ask(PutRequest(topic="T1", bodies=(b"a",)), PutRequest(topic="T2", bodies=(b"a",)))
        self.assertEqual([one.code for one in answers], [14, 14])
        self.assertEqual(broker.created, 0)
        offsets = self.ask(OffsetsRequest())[0]
        assert isinstance(offsets, OffsetsAnswer)
        self.assertEqual((offsets.broker_role, offsets.broker_id), ("SLAVE", 1))

    def test_failed_write(self) -> None:
        """Nobody knows what is on the disk: no certain refusal."""
        def fail(messages: Any, *, waits: bool) -> Any:
            raise NotPut(PutStatus.UNKNOWN_ERROR, "the disk is gone")

        self.patch(self.broker.pipeline, "put", fail)
        (answer,) = self.ask(PutRequest(topic="T1", bodies=(b"a", b"b")))
        assert isinstance(answer, PutAnswer)
        self.assertEqual((answer.code, answer.offsets), (1, (-1, -1)))
        self.assertIn("the disk is gone", answer.remark)

    def test_unforeseen(self) -> None:
        """A bug costs the connection, not the broker."""
        def fail(topic: str) -> Any:
            raise RuntimeError("a bug")

        self.patch(self.broker.broker.checks, "writable", fail)
        self.assertEqual(self.ask(PutRequest(topic="T1", bodies=(b"a",))), [])
        self.assertTrue(self.connection.is_lost)
        self.assertEqual([type(one) for one in self.flushLoggedErrors(RuntimeError)], [Failure])

    def test_read_and_offsets(self) -> None:
        """What was put can be read; a reader at the end waits for the next."""
        self.ask(PutRequest(topic="T1", bodies=(b"a", b"b")))
        offsets, read = self.ask(OffsetsRequest(), ReadRequest(begin_offset=0))
        assert isinstance(offsets, OffsetsAnswer) and isinstance(read, ReadAnswer)
        self.assertEqual([one.body for one in messages_of(read)], [b"a", b"b"])
        self.assertEqual((offsets.end_offset, offsets.file_size, offsets.broker_name, offsets.broker_role),
                         (read.next_offset, 4096, "b", "ASYNC_MASTER"))
        self.assertEqual(self.ask(ReadRequest(begin_offset=read.next_offset, wait_ms=1000)), [])
        put, waited = sorted(self.ask(PutRequest(topic="T1", bodies=(b"c",))), key=lambda one: one.kind)
        assert isinstance(put, PutAnswer) and isinstance(waited, ReadAnswer)
        self.assertEqual(([one.body for one in messages_of(waited)], waited.begin_offset),
                         ([b"c"], put.offsets[0]))

    def test_slow_reader(self) -> None:
        """One that takes no answers is given none, until it does."""
        self.ask(PutRequest(topic="T1", bodies=(b"a",)))
        self.connection.pauseProducing()
        self.assertEqual(self.ask(ReadRequest(begin_offset=0, wait_ms=1000)), [])
        self.connection.resumeProducing()
        self.assertEqual([type(one) for one in self.answers()], [ReadAnswer])
