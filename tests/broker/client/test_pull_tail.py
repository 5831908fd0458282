# -*- test-case-name: tests.broker.client.test_pull_tail -*-
"""The messages of a broker that shows queues only, in the order of its log."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.client.link import BrokerLink
from dledger.rocketmq.client.pull_tail import PullTail
from dledger.rocketmq.client.values import LogRecords
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode
from protocols.wire.remoting import RemotingCommand
from protocols.wire.rocketmq.broker_frames import OffsetsAnswer
from protocols.wire.rocketmq.message import encode_message, make_message
from tests.broker.client.fake_broker import FakeBroker

Answer = dict[str, Any]


class Java:
    """
    A broker's answers to what a consumer asks.

    @ivar built: the queues show the messages before it; the log is longer.
    @ivar first: of each queue, the first message that is still there.
    """

    def __init__(self) -> None:
        self.queues: dict[tuple[str, int], list[tuple[int, bytes]]] = {}
        self.first: dict[tuple[str, int], int] = {}
        self.begin = self.end = self.built = 0
        self.gone: set[str] = set()
        self.unreadable: set[str] = set()

    def put(self, topic: str, queue_id: int, body: bytes = b"hello") -> None:
        """A message at the end of the log; every topic has four queues."""
        for number in range(4):
            self.queues.setdefault((topic, number), [])
        record = encode_message(make_message(topic, body, physical_offset=self.end, queue_id=queue_id))
        self.queues[topic, queue_id].append((self.end, record))
        self.end += len(record)
        self.built = self.end

    def offsets(self, topics: tuple[str, ...] = (), at_least: int = 0) -> list[int]:
        """Of all messages in the log, or of those of some topics."""
        return sorted(offset for (topic, _), queue in self.queues.items() for offset, _ in queue
                      if (not topics or topic in topics) and offset >= at_least)

    def answer(self, command: RemotingCommand) -> Answer | None:
        """As RocketMQ does."""
        fields = command.ext_fields
        if command.code == 28:
            table = (f'{{"table":{{"commitLogMinOffset":"{self.begin}","commitLogMaxOffset":"{self.end}",'
                     f'"dispatchBehindBytes":"{self.end - self.built}"}}}}')
            return {"body": table.encode()}
        if command.code == 21:
            topics = ",".join(
                f'"{topic}":{{"perm":{2 if topic in self.unreadable else 6},"readQueueNums":4,'
                f'"writeQueueNums":4}}'
                for topic in sorted({topic for topic, _ in self.queues} - self.gone)
            )
            return {"body": f'{{"dataVersion":{{}},"topicConfigTable":{{{topics}}}}}'.encode()}
        if fields["topic"] in self.unreadable:
            return {"code": 16, "remark": "pulling message is forbidden"}
        if fields["topic"] in self.gone:
            return {"code": 17, "remark": "no topic"}
        key = (fields["topic"], int(fields["queueId"]))
        shown = [one for one in self.queues.get(key, []) if one[0] < self.built]
        first = self.first.get(key, 0)
        if command.code in (30, 31):
            return {"ext_fields": {"offset": str(len(shown) if command.code == 30 else first)}}
        assert command.code == 11, command
        at, count = int(fields["queueOffset"]), min(int(fields["maxMsgNums"]), 32)
        said = {"minOffset": str(first), "maxOffset": str(len(shown)), "suggestWhichBrokerId": "0"}
        if at < first:
            return {"code": 20, "ext_fields": {**said, "nextBeginOffset": str(first)}}
        found = shown[at : at + count]
        if not found:
            return {"code": 19, "ext_fields": {**said, "nextBeginOffset": str(at)}}
        return {"ext_fields": {**said, "nextBeginOffset": str(at + len(found))},
                "body": b"".join(record for _, record in found)}


class PullTailTests(SynchronousTestCase):
    """A reader and a broker that knows no native frames."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.rng = random.Random(5)
        self.java = Java()
        self.broker = FakeBroker(self.clock, lambda _: OffsetsAnswer())
        self.broker.wire_version = None
        self.broker.commands = self.java.answer
        self.tails: list[PullTail] = []
        self.found: list[int] = []
        self.ended: list[Any] = []
        self.troubles: list[str] = []
        self.after: Callable[[], None] = lambda: None

    def tearDown(self) -> None:
        for tail in self.tails:
            tail.close()
        self.broker.settle()
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def put(self, count: int) -> None:
        """Messages in any queues of three topics, one of which has nearly all of them."""
        for _ in range(count):
            self.java.put(self.rng.choice(["A"] * 20 + ["B", "C"]), self.rng.randrange(4))

    def read(self, **options: Any) -> None:
        """Read on; offsets go into C{found}."""
        options = {"from_offset": "begin", "follow": False, "batch_bytes_max": 2000, **options}
        tail = PullTail(
            BrokerLink("b:1", self.broker, clock=self.clock), clock=self.clock, rng=self.rng, **options
        )
        tail.on_trouble = self.troubles.append
        self.tails.append(tail)

        def take(batch: LogRecords | None) -> Deferred[Any] | None:
            if batch is None:
                return None
            self.found += [offset for offset, _ in batch.records()]
            self.after()
            return tail.next_batch().addCallback(take)

        tail.next_batch().addCallback(take).addBoth(self.ended.append)

    def error(self) -> DLedgerError:
        """With which reading has ended."""
        error = self.ended[0].value
        assert isinstance(error, DLedgerError), error
        return error

    def test_all(self) -> None:
        """Of all queues, in the order of the log, and then the end."""
        self.put(500)
        self.read()
        self.broker.settle()
        self.assertEqual((self.found, self.ended), (self.java.offsets(), [None]))

    def test_empty(self) -> None:
        """No topic; topics without messages."""
        self.read()
        self.broker.settle()
        self.java.queues["A", 0] = []
        self.read()
        self.broker.settle()
        self.assertEqual((self.found, self.ended), ([], [None, None]))

    def test_topic(self) -> None:
        """Of one topic only; one that is not there is an error."""
        self.put(300)
        self.read(topics=["B"])
        self.broker.settle()
        self.assertEqual((self.found, self.ended), (self.java.offsets(("B",)), [None]))
        self.ended.clear()
        self.read(topics=["B", "nope"])
        self.broker.settle()
        self.assertIn("b:1 has no topic nope", str(self.error()))

    def test_from(self) -> None:
        """From any offset on."""
        self.put(300)
        offsets = self.java.offsets()
        for start in (0, 1, offsets[150], offsets[150] + 1, offsets[-1], self.java.end, self.java.end + 5):
            self.found.clear()
            self.read(from_offset=start)
            self.broker.settle()
            self.assertEqual(self.found, self.java.offsets(at_least=start), start)

    def test_queues_that_lag(self) -> None:
        """What is in the log but not in its queue yet is not overtaken: it comes in the next round."""
        self.put(50)
        self.java.built = self.java.offsets()[30]
        self.read(follow=True)
        self.broker.settle()
        self.assertEqual(self.found, self.java.offsets()[:30])
        self.java.built = self.java.end
        self.broker.settle(0.6)
        self.broker.settle()
        self.assertEqual(self.found, self.java.offsets())

    def test_queues_that_grow_meanwhile(self) -> None:
        """A queue that was read too early does not let a later message of another one pass."""
        for queue_id in (0, 0, 1):
            self.java.put("A", queue_id)
        expected = self.java.offsets()
        self.java.built = 0

        def answer(command: RemotingCommand) -> Answer | None:
            found = self.java.answer(command)
            if command.code == 11 and command.ext_fields["queueId"] == "0":
                self.java.built = self.java.end
            return found

        self.broker.commands = answer
        self.read(follow=True)
        for _ in range(5):
            self.broker.settle(0.3)
        self.assertEqual(self.found, expected)

    def test_follow(self) -> None:
        """Messages come while it is read, topics too; nothing is missed, nothing comes twice."""
        self.put(100)
        self.after = lambda: self.put(3) if len(self.found) < 400 else None
        self.read(follow=True)
        for at in range(60):
            if at == 10:
                self.java.put("new", 3)
            self.broker.settle(0.2)
        self.assertEqual((self.found, self.ended), (self.java.offsets(), []))
        self.assertGreater(len(self.found), 300)

    def test_follow_from_the_end(self) -> None:
        """Only messages after the beginning, also those that come while the ends are looked for."""
        self.put(100)
        asked: list[int] = []

        def answer(command: RemotingCommand) -> Answer | None:
            asked.append(command.code)
            if command.code == 30:
                self.put(1)
            return self.java.answer(command)

        self.broker.commands = answer
        self.read(follow=True, from_offset="end")
        self.broker.settle()
        began = self.tails[0].next_offset
        self.assertGreater(began, self.java.offsets()[99])
        self.put(20)
        for _ in range(5):
            self.broker.settle(0.3)
        self.assertEqual(self.found, self.java.offsets(at_least=began))

    def test_restarts(self) -> None:
        """The connection breaks at any moment: no gap, no repeat."""
        self.put(400)
        self.read(follow=True)
        for _ in range(400):
            if len(self.found) == 400:
                break
            for _ in range(self.rng.randrange(6, 12)):
                for pair in list(self.broker.pairs):
                    pair.carry()
                self.clock.advance(0)
            self.broker.cut()
            self.broker.is_up = False
            self.clock.pump([0.1] * self.rng.randrange(1, 10))
            self.broker.is_up = True
            self.clock.pump([0.1] * 20)
        self.assertEqual((self.found, self.ended), (self.java.offsets(), []))
        self.assertTrue(any(self.troubles))

    def test_expired(self) -> None:
        """Before the beginning of the log; and a queue whose messages went while it was read."""
        self.put(10)
        self.java.begin = self.java.offsets()[3]
        self.read(from_offset=0)
        self.broker.settle()
        self.assertIs(self.error().code, ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN)
        self.assertEqual(self.error().facts["first_offset"], self.java.begin)
        self.ended.clear()
        for _ in range(200):
            self.java.put("A", 0)

        def expire() -> None:
            self.java.first["A", 0] = 190

        self.after = expire
        self.read(topics=["A"])
        self.broker.settle()
        self.assertIn("of A, queue 0, has expired; the first remaining message is 190", str(self.error()))

    def test_deleted_topic(self) -> None:
        """It is left out; the others go on."""
        self.put(100)
        self.read(follow=True)
        self.broker.settle()
        self.java.gone.add("B")
        self.java.put("A", 0)
        for _ in range(5):
            self.broker.settle(0.3)
        self.assertEqual((self.found, self.troubles), (self.java.offsets(), []))

    def test_unreadable_topic(self) -> None:
        """It is left out; a reader that asks for it by name is refused with the reason."""
        self.put(100)
        self.java.unreadable.add("B")
        self.read()
        self.broker.settle()
        self.assertEqual((self.found, self.ended), (self.java.offsets(("A", "C")), [None]))
        self.ended.clear()
        self.read(topics=["B"])
        self.broker.settle()
        self.assertIn("topic B must not be read", str(self.error()))

    def test_refused(self) -> None:
        """A broker that may not be read says so, until the time is over."""
        self.broker.commands = lambda command: (
            {"code": 16, "remark": "not readable"} if command.code == 11 else self.java.answer(command))
        self.put(3)
        self.read(timeout_s=2)
        for _ in range(60):
            self.broker.settle(0.1)
        self.assertIn("answers 11 with 16: not readable", str(self.error()))

    def test_silent(self) -> None:
        """No answer in time: the connection is given up, and another one tried."""
        self.put(3)
        self.broker.commands = lambda command: None if command.code == 11 else self.java.answer(command)
        self.read(timeout_s=60)
        self.broker.settle()
        self.broker.settle(3.1)
        self.assertIn("did not answer 11", self.troubles[0])
        self.broker.commands = self.java.answer
        for _ in range(20):
            self.broker.settle(0.1)
        self.assertEqual(self.found, self.java.offsets())

    def test_nonsense(self) -> None:
        """Answers that make no sense are trouble, not the end of the program."""
        self.put(3)
        for code, nonsense in (
            (28, {"body": b"{"}), (28, {"body": b"{}"}), (21, {"body": b'{"topicConfigTable":7}'}),
            (31, {"ext_fields": {"offset": "x"}}), (11, {"body": b"xyz"}),
            (11, {"ext_fields": {"nextBeginOffset": "9", "minOffset": "0"}, "body": b"x" * 100}),
            (11, {"ext_fields": {"nextBeginOffset": "0", "minOffset": "0"}, "body": b""}),
        ):
            self.troubles.clear()
            self.broker.commands = lambda command, code=code, nonsense=nonsense: (  # type: ignore[misc]
                nonsense if command.code == code else self.java.answer(command))
            self.read(follow=True)
            self.broker.settle()
            self.assertEqual((self.found, len(self.troubles)), ([], 1), nonsense)
            self.tails.pop().close()
