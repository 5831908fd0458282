# -*- test-case-name: tests.broker.sending.test_tracing -*-
"""Spans of messages: which there are, whose they are, and what messages carry of them."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from dledger.base.tracing.spans import SpanContext, write_context
from dledger.rocketmq.broker.consuming.popping.acks import ACK_MESSAGE
from dledger.rocketmq.broker.consuming.pulls import PULL_MESSAGE
from dledger.rocketmq.broker.producing.puts import Put
from dledger.rocketmq.broker.producing.tracing import CONTEXT, CONTEXTS_MAX, MessageTrace, TracedWriter
from dledger.rocketmq.replication.put_status import PutStatus
from dledger.rocketmq.store.records.plain_records import Placed, PlainMessage
from dledger.rocketmq.store.records.records import NewMessage
from protocols.wire.remoting import RemotingCommand
from protocols.wire.rocketmq.layout import PROPERTIES_BYTES_MAX
from protocols.wire.rocketmq.message import Message
from tests.base.reported_spans import ReportedSpans
from tests.broker.popping.rig import PopCase
from tests.broker.send_support import Sending, send_of
from tests.broker.support import message, plain

#: Where a producer is.
REMOTE = SpanContext(0xABC, 0xDEF, 1)
OTHER = SpanContext(0xABC, 0x123, 1)


def carried(context: SpanContext) -> str:
    """The property of a producer."""
    return f"traceparent\x01{write_context(context)}\x02"


class TracedSending(Sending):
    """A broker with spans."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.spans = ReportedSpans()
        self.trace = MessageTrace(self.spans)
        super().__init__(*arguments, **options)


class SendTests(SynchronousTestCase):
    """What a producer causes."""

    def make(self, **options: Any) -> TracedSending:
        """Running."""
        broker = TracedSending(**options)
        self.addCleanup(broker.stop)
        self.client = broker.connect()
        self.client.send(send_of())  # makes the topic
        broker.spans.all.clear()
        return broker

    def test_asynchronous(self) -> None:
        """Stored and answered at once; the message says whose send it was in."""
        broker = self.make()
        (answer,) = self.client.send(send_of(b"body", properties="KEYS\x01k"))
        self.assertEqual(answer.code, 0)
        self.assertEqual(broker.spans.shown(), ["send - PUT_OK", "store send written"])
        send, _ = broker.spans.all
        stored = broker.stored()[-1]
        self.assertEqual(stored.properties["traceparent"], write_context(send.context))
        self.assertEqual(stored.properties["KEYS"], "k")
        self.assertEqual(send.facts, {
            "topic": "T1", "queue": 0, "count": 1, "bytes": 4, "offset": stored.physical_offset,
            "result": "PUT_OK",
        })
        self.assertEqual({one.ends for one in broker.spans.all}, {1})

    def test_replicated(self) -> None:
        """Until a slave has it."""
        broker = self.make(broker_role="SYNC_MASTER")
        slave = broker.slave()
        broker.spans.all.clear()
        self.client.send(send_of())
        self.assertEqual(
            broker.spans.shown(), ["send - open", "store send written", "replicate send open"]
        )
        broker.report(slave)
        self.assertEqual(
            broker.spans.shown(), ["send - PUT_OK", "store send written", "replicate send PUT_OK"]
        )

    def test_of_a_producer(self) -> None:
        """A context that a producer has set stays, and is the parent of the send."""
        broker = self.make()
        self.client.send(send_of(properties=carried(REMOTE)))
        self.assertEqual(broker.spans.all[0].parent, REMOTE)
        self.assertEqual(broker.stored()[-1].properties["traceparent"], write_context(REMOTE))

    def test_malformed_context(self) -> None:
        """Stays as well; it is nobody's."""
        broker = self.make()
        self.client.send(send_of(properties="traceparent\x01mine\x02"))
        self.assertIsNone(broker.spans.all[0].parent)
        self.assertEqual(broker.stored()[-1].properties["traceparent"], "mine")

    def test_several(self) -> None:
        """Sends of one read are one put: it has links to all contexts, each once."""
        broker = self.make()
        self.client.send(
            send_of(properties=carried(REMOTE)), send_of(properties=carried(OTHER), opaque=2),
            send_of(properties=carried(REMOTE), opaque=3), send_of(opaque=4),
        )
        send = broker.spans.all[0]
        self.assertEqual((send.parent, send.links), (None, (REMOTE, OTHER)))
        self.assertEqual(send.facts["count"], 4)
        self.assertEqual(broker.stored()[-1].properties["traceparent"], write_context(send.context))

    def test_not_recorded(self) -> None:
        """Messages of a send that a sampler leaves out are stored as they would be without tracing."""
        broker = self.make()
        broker.spans.records = False
        self.client.send(send_of())
        self.assertNotIn("traceparent", broker.stored()[-1].properties)

    def test_off(self) -> None:
        """Not a byte more."""
        broker = Sending()
        self.addCleanup(broker.stop)
        broker.connect().send(send_of())
        (stored,) = broker.stored()
        self.assertNotIn("traceparent", stored.properties)
        self.assertNotIsInstance(broker.pipeline._writer, TracedWriter)


class PlayedWriter:
    """A log that takes everything. @ivar taken: the messages."""

    always_waits = False
    topic_characters_max = 127
    together_bytes_max = 100_000

    def __init__(self) -> None:
        self.taken: list[PlainMessage] = []
        self.done: Deferred[PutStatus] = Deferred()
        self.error: Exception | None = None

    def refusal(self) -> None:
        """Never."""

    def check(self, messages: Any) -> int:
        """Anything goes."""
        return 0

    def append(self, messages: Any, now_ms: int, *, waits: bool) -> Put:
        """Keep them."""
        if self.error is not None:
            raise self.error
        self.taken = list(messages)
        return Put(Placed([], [], 0, now_ms), self.done, is_placed=False)


class WriterTests(SynchronousTestCase):
    """What is added, and where there is no room."""

    def setUp(self) -> None:
        self.spans = ReportedSpans()
        self.trace = MessageTrace(self.spans)
        self.inner = PlayedWriter()

    def append(self, *batches: list[NewMessage]) -> list[PlainMessage]:
        """@return: the records that the log gets."""
        TracedWriter(self.inner, self.trace).append(plain(*batches), 1, waits=True)
        return self.inner.taken

    def test_batch(self) -> None:
        """The messages of a batch know how many bytes follow in their file."""
        taken = self.append([message(b"a"), message(b"b"), message(b"c")], [message(b"d"), message(b"e")])
        self.assertTrue(all(one.properties.count(CONTEXT) == 1 for one in taken))
        sizes = [one.form.overhead + len(one.body) + len(one.properties) for one in taken]
        self.assertEqual([one.rest for one in taken], [sizes[1] + sizes[2], sizes[2], 0, sizes[4], 0])

    def test_no_room_in_the_file(self) -> None:
        """A batch that would be too long with contexts stays as it is; another one has its own."""
        bare = plain([message(b"a"), message(b"b")], [message(b"c")])
        first = bare[0]
        self.inner.together_bytes_max = first.form.overhead + len(first.body + first.properties) + first.rest
        taken = self.append([message(b"a"), message(b"b")], [message(b"c")])
        self.assertEqual(taken[:2], bare[:2])
        self.assertIn(CONTEXT, taken[2].properties)

    def test_no_room_among_the_properties(self) -> None:
        """What a broker adds later still fits."""
        full = PROPERTIES_BYTES_MAX - 1024
        added = len(CONTEXT) + 55 + 1
        for size, has_room in ((full - added, True), (full - added + 1, False)):
            properties = b"k\x01" + b"x" * (size - 3) + b"\x02"
            (taken,) = self.append([message(b"a", properties_data=properties)])
            self.assertEqual(CONTEXT in taken.properties, has_room, size)

    def test_no_end(self) -> None:
        """The last property may lack its end."""
        (taken,) = self.append([message(properties_data=b"a\x01b")])
        self.assertTrue(taken.properties.startswith(b"a\x01b\x02" + CONTEXT))
        (taken,) = self.append([message(properties_data=b"")])
        self.assertTrue(taken.properties.startswith(CONTEXT))

    def test_own_notes(self) -> None:
        """What a broker notes for itself has no spans."""
        for topic in ("rmq_sys_REVIVE_LOG_C", "RMQ_SYS_TRANS_OP_HALF_TOPIC"):
            (taken,) = self.append([message(topic=topic)])
            self.assertNotIn(CONTEXT, taken.properties)
        self.assertEqual(self.spans.all, [])

    def test_raft_log(self) -> None:
        """Its member has the messages; the rest is the wait for a majority."""
        self.append([message()])
        self.assertEqual(
            self.spans.shown(), ["send - open", "store send proposed", "replicate send open"]
        )
        self.inner.done.callback(PutStatus.SERVICE_NOT_AVAILABLE)
        self.assertEqual(self.spans.shown(), [
            "send - SERVICE_NOT_AVAILABLE", "store send proposed", "replicate send SERVICE_NOT_AVAILABLE",
        ])

    def test_failed(self) -> None:
        """A write that fails ends its spans."""
        self.inner.error = OSError("the disk")
        self.assertRaises(OSError, self.append, [message()])
        self.assertEqual(self.spans.shown(), ["send - failed", "store send failed"])

    def test_stop(self) -> None:
        """Spans that are open end with the broker, once; their puts may end later."""
        self.append([message()])
        self.trace.stop()
        self.assertEqual([one.facts["result"] for one in self.spans.named("send", "replicate")],
                         ["stopped", "stopped"])
        self.inner.done.callback(PutStatus.PUT_OK)
        self.assertEqual({one.ends for one in self.spans.all}, {1})

    def test_bound(self) -> None:
        """Beyond it messages are stored without spans, and nothing is kept of them."""
        self.trace = MessageTrace(self.spans, spans_max=2)
        self.append([message()])
        self.inner.done = Deferred()
        (taken,) = self.append([message()])
        self.assertNotIn(CONTEXT, taken.properties)
        self.assertEqual(len(self.spans.named("send")), 1)
        self.assertEqual(len(self.trace._waiting), 1)


class DeliverTests(PopCase):
    """What consumers get."""

    def make(self, **options: Any) -> None:
        """With spans."""
        self.patch(Sending, "trace", None)
        self.spans = ReportedSpans()
        Sending.trace = MessageTrace(self.spans)
        super().make(**options)

    def delivered(self) -> Any:
        """The one delivery; forget it."""
        (found,) = self.spans.named("deliver")
        self.spans.all.clear()
        return found

    def pull(self) -> RemotingCommand:
        """All of queue 0."""
        return self.ask(RemotingCommand(code=PULL_MESSAGE, opaque=9, ext_fields={
            "consumerGroup": "G", "topic": "T1", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32",
            "sysFlag": "4", "commitOffset": "0", "subscription": "*", "subVersion": "0",
        }))

    def test_pull(self) -> None:
        """A child of the send that stored the message."""
        self.send(b"one")
        (send,) = self.spans.named("send")
        self.assertEqual(self.pull().code, 0)
        deliver = self.delivered()
        self.assertEqual(deliver.parent, send.context)
        self.assertEqual(deliver.facts.pop("bytes") > 100, True)
        self.assertEqual(
            deliver.facts, {"group": "G", "topic": "T1", "queue": 0, "count": 1, "result": "sent"}
        )
        self.assertEqual(deliver.ends, 1)

    def test_several(self) -> None:
        """Messages of several sends: links."""
        self.send(b"one", b"two")
        first, second = self.spans.named("send")
        self.pull()
        deliver = self.delivered()
        self.assertEqual((deliver.parent, deliver.links), (None, (first.context, second.context)))

    def test_pop(self) -> None:
        """So do consumers by POP, in order and not; check points and acks have no spans."""
        self.send(b"one", properties=carried(REMOTE))
        self.spans.all.clear()
        (given,) = self.pop()
        self.assertEqual([one.name for one in self.spans.all], ["deliver"])
        self.assertEqual(self.delivered().parent, REMOTE)
        self.assertEqual(given.message.properties["traceparent"], write_context(REMOTE))
        self.assertEqual(self.ack(given, code=ACK_MESSAGE).code, 0)
        self.assertEqual(self.spans.all, [])
        self.pop(order="true", consumerGroup="G2")
        self.assertEqual(self.delivered().parent, REMOTE)

    def test_untraced(self) -> None:
        """Of messages without a context nobody hears; one in a body is none."""
        self.spans.records = False
        self.send(carried(REMOTE).encode())
        self.spans.all.clear()
        self.pull()
        self.assertEqual(self.spans.all, [])

    def test_bound(self) -> None:
        """At most C{CONTEXTS_MAX} contexts are looked at."""
        records = [self.record(number) for number in range(CONTEXTS_MAX + 5)]
        assert Sending.trace is not None
        Sending.trace.delivered(records, "G", "T" * 300)
        deliver = self.delivered()
        self.assertEqual(len(deliver.links), CONTEXTS_MAX)
        self.assertEqual((deliver.facts["count"], len(str(deliver.facts["topic"]))), (len(records), 255))

    def record(self, number: int) -> bytes:
        """A record with a context of its own."""
        self.send(b"%d" % number, properties=carried(SpanContext(1, number + 1, 1)))
        last: Message = self.broker.stored()[-1]
        self.spans.all.clear()
        return self.broker.store.log.read(last.physical_offset, last.size)
