# -*- test-case-name: tests.broker.sending.test_recalls -*-
"""Messages that are recalled before their time."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any
from unittest.mock import patch

from twisted.internet.defer import Deferred

from dledger.rocketmq.answering.refusals import Code
from dledger.rocketmq.broker.producing.delays import timers
from dledger.rocketmq.broker.producing.delays.recall_handle import RecallHandle
from dledger.rocketmq.broker.producing.delays.recalls import ILLEGAL_OPERATION, RECALL_MESSAGE
from dledger.rocketmq.broker.producing.delays.timed import DONE_TOPIC, TIMED_TOPIC
from dledger.rocketmq.broker.producing.delays.timers import TIMER_GROUP
from dledger.rocketmq.broker.producing.puts import Put
from dledger.rocketmq.replication.put_status import PutStatus
from protocols.wire.remoting import RemotingCommand
from tests.broker.put_support import WALL_MS
from tests.broker.send_support import send_of
from tests.broker.sending.test_timers import TimerCase


class RecallTests(TimerCase):
    """Request 370."""

    def make(self, **options: Any) -> None:
        """With recalls, unless said otherwise."""
        super().make(**{"recall_message_enable": True, **options})

    def handle(self, body: bytes, delay_ms: int, key: str = "K") -> str:
        """Send a message. @return: the handle for its recall; empty: none."""
        properties = f"TIMER_DELAY_MS\x01{delay_ms}\x02UNIQ_KEY\x01{key}"
        (answer,) = self.producer.send(send_of(body, properties=properties))
        self.assertEqual(answer.code, 0)
        return answer.ext_fields.get("recallHandle", "")

    def recall(self, handle: str, topic: str = "T1") -> RemotingCommand:
        """Ask."""
        fields = {"producerGroup": "P", "topic": topic, "recallHandle": handle}
        found = self.producer.send(RemotingCommand(code=RECALL_MESSAGE, opaque=8, ext_fields=fields))
        self.settle()
        (answer,) = found or self.producer.received()
        return answer

    def test_recalled(self) -> None:
        """It is not delivered; others are. The handle names it as RocketMQ's does."""
        handle = self.handle(b"a", 5000, "K1")
        self.assertEqual(RecallHandle.read(handle), RecallHandle("T1", "b", WALL_MS + 5000, "K1"))
        self.handle(b"b", 5000, "K2")
        answer = self.recall(handle)
        self.assertEqual((answer.code, answer.ext_fields), (0, {
            "msgId": "K1", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true",
        }))
        self.wait(6)
        self.assertEqual((self.bodies(), len(self.parts.timers)), ([b"b"], 0))

    def test_refused_with_region(self) -> None:
        """A refusal has the region and the trace switch, too, as RocketMQ's has, and is counted once."""
        reported = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
        for handle, topic in (("x", "T1"), (self.handle(b"a", 5000), "T9")):
            answer = self.recall(handle, topic)
            self.assertNotEqual(answer.code, 0)
            self.assertEqual(answer.ext_fields, reported)
        self.assertEqual(sum(
            count for (code, _), count in self.parts.refusals.counts.items() if code == RECALL_MESSAGE
        ), 2)

    def test_recalled_when_sent_twice(self) -> None:
        """A producer had no answer, and has sent it again with the same time: neither is delivered."""
        for _ in range(3):
            self.handle(b"a", 7000, "K1")
        handle = self.handle(b"a", 7000, "K1")
        self.settle()
        self.assertEqual(len(self.parts.timers), 4)
        self.assertEqual(self.recall(handle).code, 0)
        self.assertEqual(len(self.parts.timers), 0)
        self.handle(b"b", 5000, "K1b")
        self.wait(9)
        self.assertEqual(self.bodies(), [b"b"])

    def test_another_time(self) -> None:
        """
        A producer sends the message with its new time first, and then recalls the old one, by whose handle no
        other is taken; also after a restart, and before the broker has read the messages.
        """
        for is_read in (True, False):
            key = f"K{is_read}"
            unread = patch.object(self.parts.timers, "_read", lambda: False)
            with nullcontext() if is_read else unread:
                old = self.handle(b"old", 5000, key)
                self.handle(b"sooner", 4000, key)
                self.handle(b"later", 8000, key)
                self.settle()
                self.assertEqual(self.recall(old).code, 0)
            self.again(crash=is_read)
            self.wait(10)
            self.assertEqual(self.bodies()[-2:], [b"sooner", b"later"])
        self.assertEqual(len(self.bodies()), 4)

    def test_sent_again_after_a_recall(self) -> None:
        """A recall is for what was sent before it: with another time the same message waits again."""
        for crash in (False, True):
            handle = self.handle(b"first", 5000, "K1")
            self.settle()
            held = self.hold_note(handle)
            self.handle(b"sooner", 4000, "K1")
            self.settle()
            held.callback(PutStatus.PUT_OK)
            self.handle(b"later", 8000, "K1")
            self.settle()
            self.assertEqual(len(self.parts.timers), 2)
            self.again(crash=False)
            self.again(crash=crash)
            self.wait(10)
            self.assertEqual(self.bodies(), [b"sooner", b"later"] * (1 + crash))

    def hold_note(self, handle: str) -> Deferred[PutStatus]:
        """Recall a message. @return: until it fires, the put of the note has not ended."""
        real = self.parts.timers.pipeline.put
        held: Deferred[PutStatus] = Deferred()

        def put(*arguments: Any, **named: Any) -> Put:
            return real(*arguments, **named)._replace(done=held)

        one = RecallHandle.read(handle)
        with patch.object(self.parts.timers.pipeline, "put", put):
            self.parts.timers.recall(one.topic, one.key, one.at_ms)
        return held

    def test_due_while_the_recall_is_stored(self) -> None:
        """
        A message whose time comes meanwhile is not delivered before it is known whether it is recalled: by
        one of two requests, or by none.
        """
        for first, second, bodies in (
            (PutStatus.PUT_OK, PutStatus.PUT_OK, []),
            (PutStatus.PUT_OK, PutStatus.SERVICE_NOT_AVAILABLE, []),
            (PutStatus.SERVICE_NOT_AVAILABLE, PutStatus.PUT_OK, []),
            (PutStatus.SERVICE_NOT_AVAILABLE, PutStatus.SERVICE_NOT_AVAILABLE, [b"a"]),
        ):
            before = len(self.bodies())
            handle = self.handle(b"a", 3000, "K1")
            self.handle(b"b", 3000, "K2")
            self.settle()
            one, other = self.hold_note(handle), self.hold_note(handle)
            self.wait(5)
            self.assertEqual(self.bodies()[before:], [b"b"])
            one.callback(first)
            self.wait(2)
            self.assertEqual(self.bodies()[before:], [b"b"])
            other.callback(second)
            self.wait(2)
            self.assertEqual(self.bodies()[before:], [b"b", *bodies])
            self.assertEqual(len(self.parts.timers), 0)

    def test_a_long_key_is_kept_short(self) -> None:
        """Many messages with long keys may wait; one of a few hundred characters is recalled, too."""
        keys = ["k" * 400, "k" * 399 + "l", "x" * 20_000]
        handle, _, none = (self.handle(key[-1:].encode(), 5000, key) for key in keys)
        self.assertEqual(none, "")
        self.settle()
        held = self.parts.timers.keys()
        self.assertEqual(len(held), 3)
        self.assertLess(max(len(key) for _, key, _ in held), 65)
        self.assertEqual(self.recall(handle).code, 0)
        self.again(crash=False)
        self.wait(6)
        self.assertEqual(sorted(self.bodies()), [b"l", b"x"])

    def test_before_it_is_read(self) -> None:
        """A recall that comes before the broker has read the message from its queue counts, too."""
        with patch.object(self.parts.timers, "_read", lambda: False):
            handle = self.handle(b"a", 5000)
            self.settle()
            self.assertEqual(len(self.parts.timers), 0)
            self.assertEqual(self.recall(handle).code, 0)
        self.wait(6)
        self.assertEqual(self.bodies(), [])
        self.handle(b"b", 5000, "K2")
        self.wait(6)
        self.assertEqual(self.bodies(), [b"b"])

    def test_next_run(self) -> None:
        """The next run knows of it, also after a crash, until the time; then the note is passed."""
        handle = self.handle(b"a", 5000)
        self.handle(b"b", 9000, "K2")
        self.settle()
        self.assertEqual(self.recall(handle).code, 0)
        for crash in (False, True):
            self.again(crash=crash)
            self.wait(1)
        self.wait(10)
        self.assertEqual(self.bodies(), [b"b"])
        offsets = self.parts.metadata.consumer_offsets
        self.assertEqual([offsets.query(TIMER_GROUP, one, 0) for one in (TIMED_TOPIC, DONE_TOPIC)], [2, 2])

    def test_restart_after_its_time(self) -> None:
        """A message that waits before it keeps the recall alive: the next run reads both again."""
        for is_read in (True, False):
            self.producer.send(send_of(b"first", properties=(
                f"TIMER_DELIVER_MS\x01{WALL_MS + 60_000}\x02UNIQ_KEY\x01K0{is_read}"
            )))
            read = self.parts.timers._read if is_read else lambda: False
            with patch.object(self.parts.timers, "_read", read):
                handle = self.handle(b"a", 5000, f"K1{is_read}")
                self.settle()
                self.assertEqual(self.recall(handle).code, 0)
            self.wait(7)
            self.again(crash=False)
            self.wait(3)
            self.again(crash=False)
            self.wait(3)
            self.assertEqual(self.bodies(), [])
        self.wait(60)
        self.assertEqual(self.bodies(), [b"first"] * 2)
        self.wait(2)
        offsets = self.parts.metadata.consumer_offsets
        ends = [self.parts.store.queues.get(one, 0).next_index for one in (TIMED_TOPIC, DONE_TOPIC)]
        self.assertEqual([offsets.query(TIMER_GROUP, one, 0) for one in (TIMED_TOPIC, DONE_TOPIC)], ends)

    def test_others(self) -> None:
        """A message of another topic with the same key stays, and one without a time has no handle."""
        handle = self.handle(b"a", 5000)
        self.assertEqual(self.handle(b"now", 0), "")
        self.parts.checks.writable("T2")
        other = RecallHandle.read(handle)._replace(topic="T2").text()
        self.assertEqual(self.recall(other, "T2").code, 0)
        self.wait(6)
        self.assertEqual(self.bodies(), [b"now", b"a"])

    def test_refused(self) -> None:
        """Handles that name no message of this broker, and times that are over."""
        handle = RecallHandle.read(self.handle(b"a", 5000))
        for text, topic, code in (
            ("", "T1", 604), ("x!", "T1", 604), (handle._replace(topic="T2").text(), "T1", 604),
            (handle._replace(broker="c").text(), "T1", 604), (handle.text(), "T9", Code.TOPIC_NOT_EXIST),
            (handle._replace(at_ms=WALL_MS - 1).text(), "T1", 604),
            (handle._replace(at_ms=WALL_MS * 2).text(), "T1", 604),
        ):
            self.assertEqual(self.recall(text, topic).code, code, text)
        self.assertEqual(ILLEGAL_OPERATION, 604)
        self.patch(timers, "RECALLED_MAX", 0)
        self.assertEqual(self.recall(handle.text()).code, Code.SYSTEM_BUSY)
        self.wait(6)
        self.assertEqual(self.bodies(), [b"a"])

    def test_forbidden(self) -> None:
        """The option is off by default."""
        handle = self.handle(b"a", 5000)
        self.parts.timers.stop()
        self.broker.store.abandon()
        self.make(recall_message_enable=False)
        self.assertEqual(self.recall(handle).code, Code.NO_PERMISSION)
