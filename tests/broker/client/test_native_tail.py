# -*- test-case-name: tests.broker.client.test_native_tail -*-
"""Reading on in a broker's log: no gap, no repeat, whatever happens to the broker."""

from __future__ import annotations

import random
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.client.link import BrokerLink
from dledger.rocketmq.client.native_tail import NativeTail
from dledger.rocketmq.client.values import LogRecords, split_records
from dledger.rocketmq.store.log.commit_log import CommitLog
from dledger.rocketmq.store.log_reads import read_records
from dledger.rocketmq.store.records.bad_records import BadRecords
from dledger.testing.world.memory_disk import MemoryDisk
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode
from protocols.wire.errors import WireError
from protocols.wire.rocketmq.broker_frames import (
    BrokerAnswer,
    BrokerRequest,
    OffsetsAnswer,
    PutAnswer,
    ReadAnswer,
    ReadRequest,
)
from tests.broker.client.fake_broker import FakeBroker
from tests.broker.support import LOG_SIZE, messages_in, open_log, some_message


class NativeTailTests(SynchronousTestCase):
    """A reader of a broker with a real log."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.rng = random.Random(1)
        self.log: CommitLog = open_log(MemoryDisk())
        self.broker = FakeBroker(self.clock, self.serve)
        self.troubles: list[str] = []
        self.tail: NativeTail | None = None
        self.found: list[int] = []
        self.ended: list[object] = []

    def tearDown(self) -> None:
        if self.tail is not None:
            self.tail.close()
        self.broker.settle()
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def serve(self, request: BrokerRequest) -> BrokerAnswer | None:
        """As a broker does; a reader that wants to wait is not answered."""
        if not isinstance(request, ReadRequest):
            return OffsetsAnswer(begin_offset=self.log.begin_offset, end_offset=self.log.record_end)
        answer = read_records(self.log, BadRecords(), request.begin_offset, request.max_bytes)
        return answer if answer.code or answer.records or not request.wait_ms else None

    def put(self, count: int) -> None:
        """Messages of all sorts."""
        for _ in range(count):
            self.log.append([[some_message(self.rng)]], 5)

    def expected(self) -> list[int]:
        """Offsets of all messages."""
        return [one.physical_offset for one in messages_in(self.log)]

    def read(self, **options: Any) -> None:
        """Read on until the end; offsets go into C{found}."""
        options = {"from_offset": "begin", "follow": False, "batch_bytes_max": 900, **options}
        tail = self.tail = NativeTail(
            BrokerLink("b:1", self.broker, clock=self.clock), clock=self.clock, rng=self.rng, **options
        )
        tail.on_trouble = self.troubles.append

        def take(batch: LogRecords | None) -> Deferred[Any] | None:
            if batch is None:
                return None
            self.found += [offset for offset, _ in batch.records()]
            return tail.next_batch().addCallback(take)

        tail.next_batch().addCallback(take).addBoth(self.ended.append)

    def error(self) -> DLedgerError:
        """With which reading has ended."""
        (failure,) = self.ended
        error = failure.check(DLedgerError) and failure.value  # type: ignore[attr-defined]
        assert isinstance(error, DLedgerError), failure
        return error

    def test_all(self) -> None:
        """Everything that is there, over several files, and then the end."""
        self.put(60)
        self.read()
        self.broker.settle()
        self.assertEqual((self.found, self.ended), (self.expected(), [None]))
        self.assertGreater(len(self.broker.asked), 5)

    def test_empty(self) -> None:
        """Nothing, from either end."""
        for start in ("begin", "end", 0):
            self.ended.clear()
            self.read(from_offset=start)
            self.broker.settle()
            self.assertEqual((self.found, self.ended), ([], [None]))

    def test_from(self) -> None:
        """From the record at an offset on; from the end nothing."""
        self.put(20)
        expected = self.expected()
        self.read(from_offset=expected[7])
        self.broker.settle()
        self.assertEqual((self.found, self.ended), (expected[7:], [None]))
        self.ended.clear()
        self.read(from_offset="end")
        self.broker.settle()
        self.assertEqual((len(self.found), self.ended), (13, [None]))

    def test_what_comes_meanwhile(self) -> None:
        """Not following, what came after the beginning of reading is left out."""
        self.put(5)
        expected = self.expected()
        offsets = self.serve

        def serve(request: BrokerRequest) -> BrokerAnswer | None:
            answer = offsets(request)
            if isinstance(answer, OffsetsAnswer):
                self.put(5)
            return answer

        self.broker.answers = serve
        self.read(batch_bytes_max=1 << 20)
        self.broker.settle()
        self.assertEqual((self.found, self.ended), (expected, [None]))

    def test_follow(self) -> None:
        """Later messages come at once: the broker answers the request that waits."""
        self.read(follow=True)
        self.broker.settle()
        for _ in range(30):
            self.put(1)
            for connection, ticket, request in self.broker.unanswered:
                assert isinstance(request, ReadRequest)
                answer = read_records(self.log, BadRecords(), request.begin_offset, 900)
                connection.answer_native(ticket, answer)
            self.broker.unanswered.clear()
            self.broker.settle()
        self.assertEqual((self.found, self.ended), (self.expected(), []))

    def test_follow_from_the_end(self) -> None:
        """Only what is new."""
        self.put(3)
        self.read(follow=True, from_offset="end")
        self.broker.settle()
        self.assertEqual(self.broker.unanswered[0][2], ReadRequest(
            begin_offset=self.log.record_end, max_bytes=900, wait_ms=1000))

    def test_restarts(self) -> None:
        """The connection breaks at any moment, and the broker is away for a while: no gap, no repeat."""
        self.put(200)
        self.read(follow=True)
        while len(self.found) < 200:
            for _ in range(self.rng.randrange(1, 6)):
                for pair in list(self.broker.pairs):
                    pair.carry()
                self.clock.advance(0)
            self.broker.cut()
            self.broker.is_up = False
            self.clock.pump([0.1] * self.rng.randrange(1, 30))
            self.broker.is_up = True
            self.clock.pump([0.1] * 20)
        self.assertEqual((self.found, self.ended), (self.expected(), []))
        self.assertIn("", self.troubles)
        self.assertTrue(any(self.troubles))
        said = [bool(one) for one in self.troubles]
        self.assertEqual(said, [at % 2 == 0 for at in range(len(said))])  # each is said once, and its end

    def test_gives_up(self) -> None:
        """A broker that was never there."""
        for follow in (False, True):
            self.ended.clear()
            self.broker.is_up = False
            self.read(follow=follow, timeout_s=2)
            self.clock.pump([0.1] * 60)
            self.assertIs(self.error().code, ResponseCode.NETWORK_ERROR)
            self.assertIn("b:1: Connection was refused", str(self.error()))

    def test_no_answer(self) -> None:
        """A broker that hangs is left and tried again."""
        self.put(3)
        self.broker.answers = lambda _: None
        self.read(timeout_s=60)
        self.broker.settle()
        self.broker.settle(3.1)
        self.assertFalse(any(pair.is_open for pair in self.broker.pairs))
        self.broker.answers = self.serve
        for _ in range(20):
            self.broker.settle(0.1)
        self.assertEqual((self.found, self.ended), (self.expected(), [None]))
        self.assertIn("did not answer OFFSETS", self.troubles[0])

    def test_expired(self) -> None:
        """What is still there is named."""
        self.put(60)
        self.log.flusher.sync()
        self.log.expire_first()
        self.read(from_offset=0)
        self.broker.settle()
        self.assertIs(self.error().code, ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN)
        self.assertEqual(self.error().facts["first_offset"], LOG_SIZE)

    def test_no_record_there(self) -> None:
        """An offset in the middle of a record."""
        self.put(3)
        self.read(from_offset=1, follow=True)
        self.broker.settle()
        self.assertIs(self.error().code, ResponseCode.INDEX_OUT_OF_RANGE)
        self.assertIn("no record begins at 1", str(self.error()))

    def test_behind(self) -> None:
        """A log that ends before the offset: an error, or, followed, something to wait for."""
        self.put(2)
        expected = self.expected()
        end = self.log.record_end
        self.put(1)
        later, self.log = self.log, open_log(MemoryDisk())
        self.read(from_offset=end)
        self.broker.settle()
        self.assertIn(f"its log ends at 0, before offset {end}", str(self.error()))
        self.ended.clear()
        self.read(from_offset=end, follow=True, wait_ms=0)
        for _ in range(5):
            self.broker.settle(0.11)
        self.log = later
        for _ in range(5):
            self.broker.settle(0.11)
        self.assertEqual((self.found, self.ended), ([end], []))
        self.assertEqual(len(expected), 2)
        self.assertEqual([bool(one) for one in self.troubles], [True, False])

    def test_back_with_less(self) -> None:
        """A broker that comes back with an empty log: that is said, too, and waited for."""
        self.put(3)
        self.read(follow=True, from_offset="end", wait_ms=0)
        self.broker.settle()
        self.log = open_log(MemoryDisk())
        self.broker.is_up = False
        self.broker.cut()
        for _ in range(20):
            self.broker.settle(0.2)
            self.broker.is_up = len(self.troubles) > 0
        self.assertEqual(len(self.troubles), 2, self.troubles)
        self.assertIn("refused", self.troubles[0])
        self.assertIn("its log ends at 0", self.troubles[1])
        self.assertEqual((self.found, self.ended), ([], []))

    def test_java(self) -> None:
        """It does not know these frames: said, not tried for ever."""
        self.broker.wire_version = None
        self.read()
        self.broker.settle()
        self.assertIs(self.error().code, ResponseCode.UNSUPPORTED)

    def test_nonsense(self) -> None:
        """Records from before, or that stand elsewhere: the broker is left, nothing of it is handed out."""
        self.put(3)
        whole = read_records(self.log, BadRecords(), 0, 1 << 20)
        begin = self.expected()[1]
        moved = ReadAnswer(code=0, log_begin_offset=0, log_end_offset=9999, begin_offset=begin + 1,
                           next_offset=begin + 1 + len(whole.records[begin:]), records=whole.records[begin:])
        for nonsense in (whole, moved, PutAnswer(code=0)):
            self.troubles.clear()
            self.broker.answers = lambda _, nonsense=nonsense: nonsense  # type: ignore[misc]
            self.read(from_offset=begin, follow=True, timeout_s=1)
            self.broker.settle()
            self.assertEqual((self.found, len(self.troubles)), ([], 1), nonsense)
            assert self.tail is not None
            self.tail.close()

    def test_close(self) -> None:
        """A reader that waits gets the end."""
        self.read(follow=True)
        self.broker.settle()
        assert self.tail is not None
        self.tail.close()
        self.assertEqual(self.ended, [None])


class SplitTests(SynchronousTestCase):
    """Records of an answer."""

    def test_split(self) -> None:
        """Offset and bytes; every truncation and another magic are noticed."""
        log = open_log(MemoryDisk())
        rng = random.Random(3)
        for _ in range(5):
            log.append([[some_message(rng)]], 5)
        data = read_records(log, BadRecords(), 0, 1 << 20).records
        records = list(split_records(data))
        self.assertEqual(b"".join(record for _, record in records), data)
        ends = {offset + len(record) for offset, record in records}
        for size in range(1, len(data)):
            if size not in ends:
                self.assertRaises(WireError, list, split_records(data[:size]))
        self.assertRaises(WireError, list, split_records(data[:4] + b"\0" + data[5:]))
