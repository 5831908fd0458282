# -*- test-case-name: tests.broker.sending.test_tracing -*-
"""
Spans of messages, from their put to their consumers::

    send           messages of one put taken -> their producers have the result
      store        given to the log -> written (a raft log: handed to the member)
      replicate    from there -> slaves and disk, or a majority, have them; not if nobody waits for that
    deliver        messages of an answer to a pull or a POP

The context of a C{send} is in a property of its messages, L{CONTEXT}, for whoever consumes them; a producer
that has set one keeps it, and the C{send} belongs to it. A C{send} or C{deliver} whose messages have one
context is its child; with several it begins a trace, with links to them.

Rule 1: without tracing nothing of this is made, and no message is changed.
Rule 2: a message gets a context only if its C{send} is recorded, and where there is room: what the broker
adds to a message later, and the file, must still fit. Check points and the like get none.
Rule 3: as many spans are open as L{BoundedSpans} allows. Each ends: with its status, or with the broker.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dledger.base.tracing.spans import (
    SPANS_MAX,
    BoundedSpans,
    SpanContext,
    Spans,
    read_context,
    write_context,
)
from dledger.rocketmq.broker.producing.halves import OP_TOPIC
from dledger.rocketmq.broker.producing.puts import LogWriter, NotPut, Put
from dledger.rocketmq.broker.producing.send_properties import PROPERTIES_ROOM
from dledger.rocketmq.broker.producing.topic_checks import REVIVE_PREFIX
from dledger.rocketmq.replication.put_status import PutStatus
from dledger.rocketmq.store.records.plain_records import PlainMessage
from dledger.rocketmq.store.records.records import NewMessage, keyed_part_of, property_of
from protocols.wire.errors import WireError
from protocols.wire.rocketmq.layout import PROPERTIES_BYTES_MAX

#: The property of a message that has the context of its sender's span.
CONTEXT = b"traceparent\x01"

#: Messages of one answer, and contexts of one put, that are looked at.
CONTEXTS_MAX = 64

#: What a span has of a topic.
_TOPIC_CHARACTERS_MAX = 255


def _context_of(properties: bytes) -> SpanContext | None:
    if CONTEXT not in properties:
        return None
    value = property_of(properties, CONTEXT)
    return None if value is None else read_context(value.decode("ascii", "replace"))


def _is_kept(topic: str) -> bool:
    """Whether it has messages that somebody has sent, not what the broker notes for itself."""
    return topic != OP_TOPIC and not topic.startswith(REVIVE_PREFIX)


class MessageTrace(BoundedSpans):
    """The spans of the messages of one broker."""

    def __init__(self, spans: Spans, *, spans_max: int = SPANS_MAX) -> None:
        super().__init__(spans, spans_max=spans_max)
        self._waiting: dict[int, tuple[object | None, object | None]] = {}
        self._next = 0

    def of(self, name: str, contexts: Iterable[SpanContext], **facts: int | str) -> object | None:
        """Begin a span that belongs to contexts of messages."""
        found = list(dict.fromkeys(contexts))[:CONTEXTS_MAX]
        if len(found) == 1:
            return self.begin(name, facts, found[0])
        return self.begin(name, facts, None, found)

    def delivered(self, records: Sequence[bytes], group: str, topic: str, queue_id: int = -1) -> None:
        """
        A group is sent records of the log. If the first L{CONTEXTS_MAX} of them have no context, nobody hears
        of it: their senders are not traced.

        @param queue_id: -1: unknown.
        """
        contexts = []
        for record in records[:CONTEXTS_MAX]:
            if CONTEXT in record:  # in its body, perhaps
                try:
                    _, properties, _, _ = keyed_part_of(record, 0)
                except WireError:
                    continue
                found = _context_of(properties)
                if found is not None:
                    contexts.append(found)
        if contexts:
            self.end(self.of(
                "deliver", contexts, group=group, topic=topic[:_TOPIC_CHARACTERS_MAX], count=len(records),
                bytes=sum(map(len, records)), **{"queue": queue_id} if queue_id >= 0 else {},
            ), result="sent")

    def replicating(self, send: object | None, put: Put) -> None:
        """Messages are stored; their C{send} ends when their producers have the result."""
        replicate = None if put.done.called else self.begin("replicate", {}, send)
        if send is None and replicate is None:
            return
        number, self._next = self._next, self._next + 1
        self._waiting[number] = (send, replicate)

        def ended(status: PutStatus) -> PutStatus:
            offsets = put.placed.offsets
            self._ended(number, status.name, **{"offset": offsets[0]} if offsets else {})
            return status

        put.done.addCallback(ended)

    def _ended(self, number: int, result: str, **facts: int | str) -> None:
        waiting = self._waiting.pop(number, None)
        if waiting is not None:  # else the broker has stopped before
            send, replicate = waiting
            self.end(replicate, result=result)
            self.end(send, result=result, **facts)

    def stop(self) -> None:
        """The broker has stopped: end everything."""
        for number in tuple(self._waiting):
            self._ended(number, "stopped")


class TracedWriter:
    """A L{LogWriter} that reports to a L{MessageTrace} what another one does. Implements L{LogWriter}."""

    def __init__(self, writer: LogWriter, trace: MessageTrace) -> None:
        self._writer = writer
        self._trace = trace
        self.always_waits = writer.always_waits
        self.topic_characters_max = writer.topic_characters_max
        self.together_bytes_max = writer.together_bytes_max

    def refusal(self) -> NotPut | None:
        return self._writer.refusal()

    def check(self, messages: Sequence[NewMessage], *, are_copies: bool = False) -> int:
        return self._writer.check(messages, are_copies=are_copies)

    def append(self, messages: Sequence[PlainMessage], now_ms: int, *, waits: bool) -> Put:
        trace = self._trace
        if not any(_is_kept(one.form.topic) for one in messages):
            return self._writer.append(messages, now_ms, waits=waits)
        contexts = [_context_of(one.properties) for one in messages]
        send = trace.of(
            "send", [one for one in contexts if one is not None], count=len(messages),
            bytes=sum(len(one.body) for one in messages),
            topic=messages[0].form.topic[:_TOPIC_CHARACTERS_MAX], queue=messages[0].queue_id,
        )
        own = trace.context_of(send)
        if own is not None:
            messages = self._with_context(messages, contexts, own)
        store = trace.begin("store", {}, send)
        result = "failed"
        try:
            put = self._writer.append(messages, now_ms, waits=waits)
            result = "written" if put.is_placed else "proposed"
        finally:
            trace.end(store, result=result)
            if result == "failed":
                trace.end(send, result=result)
        trace.replicating(send, put)
        return put

    def _with_context(
        self, messages: Sequence[PlainMessage], contexts: Sequence[SpanContext | None], own: SpanContext
    ) -> list[PlainMessage]:
        """The messages; those without a context get C{own}, if all of their batch have room for it."""
        added = CONTEXT + write_context(own).encode() + b"\x02"
        found: list[PlainMessage] = []
        first = 0
        for at, last in enumerate(messages):
            if last.rest:
                continue
            batch = messages[first : at + 1]
            grown = [_grown(one, added) if context is None else one.properties
                     for one, context in zip(batch, contexts[first : at + 1], strict=True)]
            first = at + 1
            found += _lengthened(batch, grown, self.together_bytes_max)
        return found


def _grown(message: PlainMessage, added: bytes) -> bytes:
    """The properties of a message with one more; without it if they, or those to come, had no room."""
    properties = message.properties
    if CONTEXT in properties or not _is_kept(message.form.topic):
        return properties
    has_end = not properties or properties[-1] == 2
    grown = properties + added if has_end else properties + b"\x02" + added
    return grown if len(grown) + PROPERTIES_ROOM <= PROPERTIES_BYTES_MAX else properties


def _lengthened(
    batch: Sequence[PlainMessage], grown: Sequence[bytes], bytes_max: int
) -> Sequence[PlainMessage]:
    """A batch with other properties; as it is if its records would have more than C{bytes_max}."""
    found: list[PlainMessage] = []
    rest = 0
    for message, properties in zip(reversed(batch), reversed(grown), strict=True):
        found.append(message._replace(properties=properties, rest=rest))
        rest += message.form.overhead + len(message.body) + len(properties)
    found.reverse()
    return found if rest <= bytes_max else batch


def traced(writer: LogWriter, trace: MessageTrace | None) -> LogWriter:
    """The writer of a broker, with its spans if it has any."""
    return writer if trace is None else TracedWriter(writer, trace)

