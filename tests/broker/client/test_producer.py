# -*- test-case-name: tests.broker.client.test_producer -*-
"""Messages to a broker: frames, order, outcomes, bounds."""

from __future__ import annotations

import random
from typing import Any

from twisted.internet.defer import CancelledError
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.client.link import BrokerLink
from dledger.rocketmq.client.producer import BrokerProducer, PutLimits
from dledger.rocketmq.client.values import PutError, PutRefused, PutUnknown, Stored
from protocols.wire.codes import ResponseCode
from protocols.wire.rocketmq.broker_frames import BrokerAnswer, BrokerRequest, PutAnswer, PutRequest
from tests.broker.client.fake_broker import FakeBroker

Outcome = tuple[Stored, ...] | PutError


class PutTests(SynchronousTestCase):
    """A producer and a broker."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.stored: list[bytes] = []
        self.broker = FakeBroker(self.clock, self.store)
        self.producer = self.made()
        self.outcomes: list[Outcome] = []

    def made(self, **limits: Any) -> BrokerProducer:
        """A producer with these bounds."""
        producer = BrokerProducer(
            BrokerLink("b:1", self.broker, clock=self.clock), clock=self.clock, rng=random.Random(1),
            timeout_s=5, limits=PutLimits(**limits),
        )
        self.addCleanup(self.nothing_left)
        return producer

    def nothing_left(self) -> None:
        """A closed producer leaves no timers."""
        self.producer.close()
        self.broker.settle()
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def store(self, request: BrokerRequest, code: int = 0) -> BrokerAnswer:
        """Every record has 100 bytes."""
        assert isinstance(request, PutRequest)
        first = len(self.stored)
        self.stored += request.bodies
        return PutAnswer(
            code=code, queue_id=max(request.queue_id, 0), queue_offset=first, store_timestamp=9,
            offsets=tuple(100 * at for at in range(first, len(self.stored))),
        )

    def test_access(self) -> None:
        """Numbers are checked before anything is sent, with name, value and range."""
        producer: Any = self.producer
        for options, kind, words in (
            ({"queue_id": "0"}, TypeError, "queue_id='0'"), ({"queue_id": -2}, ValueError, "queue_id=-2"),
            ({"queue_id": 2**31}, ValueError, f"from -1 to {2**31 - 1}"),
            ({"flag": 1.5}, TypeError, "flag=1.5"),
            ({"flag": 2**40}, ValueError, "flag="),
            ({"queue_id": True}, TypeError, "queue_id=True"),
        ):
            error = self.assertRaises(kind, producer.put, "T", b"x", **options)
            self.assertIn(words, str(error))
        self.broker.settle()
        self.assertEqual(self.broker.asked, [])

    def frames(self) -> list[tuple[str, int]]:
        """Topic and number of messages of each frame that came in."""
        return [(one.topic, len(one.bodies)) for one in self.broker.asked if isinstance(one, PutRequest)]

    def submit(self, bodies: list[bytes], topic: str = "T", **options: Any) -> None:
        """One call; its outcome goes into C{outcomes}."""
        self.producer.submit(topic, bodies, self.outcomes.append, **options)

    def test_put(self) -> None:
        """One message, with everything that it may have."""
        put = self.producer.put("T", b"a", queue_id=3, properties={"TAGS": "A", "KEYS": "k"}, flag=7)
        self.broker.settle()
        self.assertEqual(self.successResultOf(put), Stored(
            status="PUT_OK", queue_id=3, queue_offset=0, offsets=(0,), store_timestamp=9))
        (request,) = self.broker.asked
        self.assertEqual(request, PutRequest(topic="T", bodies=(b"a",), queue_id=3, flag=7,
                                             properties=b"TAGS\x01A\x02KEYS\x01k\x02"))

    def test_cancelled(self) -> None:
        """Cancelling stops the wait, not the put; the answer that comes later does no harm."""
        put, others = self.producer.put("T", b"a"), self.producer.put_many("T", [b"b", b"c"])
        for waiter in (put, others):
            waiter.cancel()
            self.failureResultOf(waiter, CancelledError)
        self.broker.settle()
        self.assertEqual(self.stored, [b"a", b"b", b"c"])
        self.assertEqual(self.flushLoggedErrors(), [])

    def test_waiting_for_room(self) -> None:
        """If the limits say so, a call beyond them waits instead of being refused."""
        self.producer = self.made(pending_count_max=1, when_full="wait", waiting_calls_max=1)
        for body in (b"a", b"b", b"c"):
            self.submit([body])
        self.assertEqual([type(one) for one in self.outcomes], [PutRefused])
        self.broker.settle()
        self.assertEqual(self.stored, [b"a", b"b"])

    def test_gathered(self) -> None:
        """What is alike and adjacent shares a frame; order is that of the calls."""
        for topic, body in (("T", b"0"), ("T", b"1"), ("U", b"2"), ("T", b"3"), ("T", b"4")):
            self.submit([body], topic)
        self.submit([b"5", b"6"], properties={"TAGS": "A"})
        self.broker.settle()
        self.assertEqual(self.frames(), [("T", 2), ("U", 1), ("T", 2), ("T", 2)])
        self.assertEqual(self.stored, [b"%d" % at for at in range(7)])
        self.assertEqual([one[0].queue_offset for one in self.outcomes if isinstance(one, tuple)],
                         [0, 1, 2, 3, 4, 5])
        self.assertEqual((self.producer.sender.pending_count, self.producer.sender.pending_bytes), (0, 0))

    def test_frames_are_bounded(self) -> None:
        """In messages and in bytes; a call may take several, one message is never too long."""
        self.producer = self.made(frame_count_max=3, frame_bytes_max=10)
        self.submit([b"%d" % at for at in range(8)])
        self.submit([b"x" * 4, b"y" * 6, b"z" * 25, b"w"])
        self.broker.settle()
        self.assertEqual(self.frames(), [("T", 3), ("T", 3), ("T", 3), ("T", 1), ("T", 1), ("T", 1)])
        self.assertEqual(self.stored[8:], [b"x" * 4, b"y" * 6, b"z" * 25, b"w"])
        first, second = self.outcomes
        assert isinstance(first, tuple) and isinstance(second, tuple)
        self.assertEqual([(one.first, one.count) for one in first], [(0, 3), (3, 3), (6, 2)])
        self.assertEqual([(one.first, one.offsets) for one in second],
                         [(0, (800,)), (1, (900,)), (2, (1000,)), (3, (1100,))])

    def test_window(self) -> None:
        """No more frames in flight than allowed; messages gather meanwhile."""
        self.producer = self.made(frames_in_flight_max=2)
        self.broker.answers = lambda _: None
        for at in range(3):
            self.submit([b"%d" % at], f"T{at}")
        self.broker.settle()
        self.assertEqual(len(self.broker.unanswered), 2)
        for at in range(3, 9):
            self.submit([b"%d" % at], "T2")
        connection, ticket, request = self.broker.unanswered[0]
        connection.answer_native(ticket, self.store(request))
        self.broker.settle()
        self.assertEqual(self.frames(), [("T0", 1), ("T1", 1), ("T2", 7)])

    def test_statuses(self) -> None:
        """Stored, but not as was asked for: a result that says so."""
        for code, status in ((10, "FLUSH_DISK_TIMEOUT"), (11, "SLAVE_NOT_AVAILABLE"),
                             (12, "FLUSH_SLAVE_TIMEOUT")):
            self.broker.answers = lambda request, code=code: self.store(request, code)
            put = self.producer.put("T", b"a")
            self.broker.settle()
            self.assertEqual(self.successResultOf(put).status, status)

    def test_refused(self) -> None:
        """Certainly not stored, with the broker's code and words."""
        self.broker.answers = lambda _: PutAnswer(code=14, remark="a slave")
        put = self.producer.put("T", b"a")
        self.broker.settle()
        error = self.failureResultOf(put, PutRefused).value
        self.assertEqual((error.refused, error.unknown, error.code), (1, 0, ResponseCode.LEADER_NOT_READY))
        self.assertEqual(error.facts, {"reason": "b:1: a slave", "broker_code": 14})

    def test_refused_in_the_middle(self) -> None:
        """What follows in the same call is not sent any more; what was before is stored."""
        self.producer = self.made(frame_count_max=2, frames_in_flight_max=1)

        def busy_at_two(request: BrokerRequest) -> BrokerAnswer:
            assert isinstance(request, PutRequest)
            return PutAnswer(code=2, remark="busy") if b"2" in request.bodies else self.store(request)

        self.broker.answers = busy_at_two
        self.submit([b"%d" % at for at in range(7)])
        self.submit([b"next"])
        self.broker.settle()
        error = self.outcomes[0]
        assert isinstance(error, PutRefused)
        self.assertEqual((error.refused, [one.count for one in error.stored]), (5, [2]))
        self.assertEqual(self.stored, [b"0", b"1", b"next"])
        self.assertIsInstance(self.outcomes[1], tuple)

    def test_nothing_promised(self) -> None:
        """In the log, but the broker cannot promise anything: unknown."""
        self.broker.answers = lambda _: PutAnswer(code=1, remark="disk", offsets=(0,))
        put = self.producer.put("T", b"a")
        self.broker.settle()
        self.assertEqual(self.failureResultOf(put, PutUnknown).value.unknown, 1)

    def test_answer_that_does_not_add_up(self) -> None:
        """Another number of offsets than messages: unknown, and the connection is not trusted any more."""
        self.broker.answers = lambda _: PutAnswer(code=0, offsets=(0, 100))
        put = self.producer.put("T", b"a")
        self.broker.settle()
        self.failureResultOf(put, PutUnknown)
        self.assertFalse(any(pair.is_open for pair in self.broker.pairs))

    def test_lost(self) -> None:
        """What was sent is unknown and not sent again; what was not waits for the next connection."""
        self.producer = self.made(frames_in_flight_max=1)
        self.broker.answers = lambda _: None
        self.submit([b"0"])
        self.broker.settle()
        self.submit([b"1"], "U")
        self.broker.settle()
        self.broker.answers = self.store
        self.broker.cut()
        self.broker.settle()
        (error,) = self.outcomes
        assert isinstance(error, PutUnknown)
        self.assertEqual((error.unknown, error.code), (1, ResponseCode.NETWORK_ERROR))
        for _ in range(10):
            self.broker.settle(0.2)
        self.assertIsInstance(self.outcomes[1], tuple)
        self.assertEqual(self.stored, [b"1"])

    def test_nobody_listens(self) -> None:
        """Until the time is over, and then it is certain that nothing was stored."""
        self.broker.is_up = False
        self.submit([b"0"])
        for _ in range(60):
            self.broker.settle(0.1)
        (error,) = self.outcomes
        assert isinstance(error, PutRefused)
        self.assertIn("refused", str(error.facts["reason"]))
        self.assertIs(error.code, ResponseCode.NETWORK_ERROR)

    def test_comes_up(self) -> None:
        """A broker that starts later is found."""
        self.broker.is_up = False
        self.submit([b"0"])
        for _ in range(20):
            self.broker.settle(0.1)
        self.broker.is_up = True
        for _ in range(20):
            self.broker.settle(0.1)
        self.assertIsInstance(self.outcomes[0], tuple)

    def test_no_answer(self) -> None:
        """Sent, and nothing heard: unknown at its time, and the connection is ended."""
        self.broker.answers = lambda _: None
        self.submit([b"0"])
        self.broker.settle()
        self.broker.settle(4.9)
        self.assertEqual(self.outcomes, [])
        self.broker.settle(0.3)
        (error,) = self.outcomes
        assert isinstance(error, PutUnknown)
        self.assertIs(error.code, ResponseCode.TIMEOUT)
        self.assertFalse(any(pair.is_open for pair in self.broker.pairs))

    def test_full(self) -> None:
        """A call beyond the bounds is refused at once; a single one of any size passes."""
        self.producer = self.made(pending_count_max=3, pending_bytes_max=100)
        self.broker.answers = lambda _: None
        self.submit([b"x" * 200])
        self.submit([b"a"])
        (error,) = self.outcomes
        assert isinstance(error, PutRefused)
        self.assertIs(error.code, ResponseCode.LEADER_PENDING_FULL)
        self.assertIn("1 messages of 200 bytes are pending", str(error))

    def test_misfits(self) -> None:
        """What no broker could store is refused before anything is sent."""
        for topic, body, properties, word in (
            ("", b"", b"", "topic has 0 bytes"), ("t" * 40000, b"", b"", "topic has 40000 bytes"),
            ("T", bytes(8 * 1024 * 1024 + 1), b"", "a body has 8388609 bytes"),
            ("T", b"", bytes(32768), "properties have 32768 bytes"), ("T", b"", {"a\x01": "b"}, "a"),
            ("T", "text", b"", "must be bytes, not str"),
        ):
            self.outcomes.clear()
            self.submit([body], topic, properties=properties)  # type: ignore[list-item]
            (error,) = self.outcomes
            assert isinstance(error, PutRefused)
            self.assertIs(error.code, ResponseCode.UNEXPECTED_ARGUMENT)
            self.assertIn(word, str(error))
        self.outcomes.clear()
        self.submit([])
        self.assertEqual(self.outcomes, [()])

    def test_java(self) -> None:
        """A broker that knows no native frames: said at once, and nothing was sent."""
        self.broker.wire_version = None
        self.submit([b"a"])
        self.broker.settle()
        (error,) = self.outcomes
        assert isinstance(error, PutRefused)
        self.assertIs(error.code, ResponseCode.UNSUPPORTED)
        self.assertEqual(self.broker.asked, [])

    def test_close(self) -> None:
        """Sent messages are unknown; unsent and later ones are refused."""
        self.producer = self.made(frames_in_flight_max=1)
        self.broker.answers = lambda _: None
        self.submit([b"0"], "T")
        self.submit([b"1"], "U")
        self.broker.settle()
        self.producer.close()
        self.submit([b"2"])
        self.assertEqual([type(one) for one in self.outcomes], [PutUnknown, PutRefused, PutRefused])

    def test_idle(self) -> None:
        """A connection without messages for a minute is closed, before the broker does it."""
        self.submit([b"0"])
        self.broker.settle()
        self.broker.settle(40)
        self.submit([b"1"])
        self.broker.settle()
        self.broker.settle(59)
        self.assertTrue(self.broker.pairs[0].is_open)
        self.broker.settle(2)
        self.broker.settle()
        self.assertFalse(self.broker.pairs[0].is_open)
        self.submit([b"2"])
        self.broker.settle()
        self.assertEqual(self.stored, [b"0", b"1", b"2"])
        self.assertEqual([type(one) for one in self.outcomes], [tuple] * 3)

    def test_calls_from_outcomes(self) -> None:
        """A producer that is informed may put again, for ever, and every message is reported once."""
        count = 200

        def again(outcome: Outcome) -> None:
            self.outcomes.append(outcome)
            if len(self.outcomes) < count:
                self.producer.submit("T", [b"%d" % len(self.outcomes)], again)

        self.producer.submit("T", [b"0"], again)
        for _ in range(count):
            self.broker.settle()
        self.assertEqual(self.stored, [b"%d" % at for at in range(count)])
