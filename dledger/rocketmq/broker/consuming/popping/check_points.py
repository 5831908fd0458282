# -*- test-case-name: tests.broker.popping.test_check_points -*-
"""
What POP stores in the revive topic, and what a consumer gets to acknowledge with, as RocketMQ writes them::

    check point (tag ck)        messages of one queue are given to a group until a time
    ack (ack, bAck)             some of them are done: acknowledged, or stored again for a retry

Both are ordinary messages with a body of JSON. Unlike RocketMQ's, they are in the revive topic at once, not
after a time in the timer: C{TIMER_DELIVER_MS} is the time of their storing, from which a Java broker counts.

Source: PopCheckPoint, AckMsg, BatchAckMsg, ExtraInfoUtil, KeyBuilder, PopAckConstants (5.3.3).
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import NamedTuple

from dledger.rocketmq.answering.java_json import read_document, to_long, wire_json
from dledger.rocketmq.broker.producing.topic_checks import REVIVE_PREFIX
from dledger.rocketmq.metadata.tables import RETRY_PREFIX
from dledger.rocketmq.store.records.records import NewMessage
from protocols.wire.errors import BodyError
from protocols.wire.fastjson import shown
from protocols.wire.rocketmq.message import Host, Message, encode_properties

#: The broker's own group: its offset in each queue of the revive topic is that of the last finished message.
REVIVE_GROUP = "CID_RMQ_SYS_REVIVE_GROUP"
#: One of ours: the messages of all check points before its offset are before the offsets of their groups, in
#: the same table. Those after it came to the log, and not to the table.
POPPED_GROUP = "CID_RMQ_SYS_POPPED_GROUP"
#: Queues of the revive topic, as in Java; ours writes to the first.
REVIVE_QUEUES = 8
OWN_QUEUE = 0
#: The number that Java uses for messages in order, which have no check point.
ORDER_QUEUE = 999

CHECK_POINT_TAG, ACK_TAG, BATCH_ACK_TAG = "ck", "ack", "bAck"
POP_RECEIPT, FIRST_POP_TIME, ORIGIN_GROUP = "POP_CK", "1ST_POP_TIME", "ORIGIN_GROUP"
#: A receipt is shorter, as a property: the name of a broker has 127 characters.
RECEIPT_BYTES_MAX = 256

#: A clock that is set back by more than this makes no message invisible for longer than its time and this.
SET_BACK_MS = 60_000

#: The most messages of one check point: RocketMQ keeps a bit for each.
MESSAGES_MAX = 32
#: A check point or ack is much shorter.
_BODY_BYTES_MAX = 64 * 1024


def revive_topic(cluster: str) -> str:
    """The topic of check points and acks."""
    return REVIVE_PREFIX + cluster


def pop_retry_topic(topic: str, group: str, *, version: int = 2) -> str:
    """
    Where messages go that a group did not acknowledge in time.

    @param version: of the name. Of 1, as without C{enableRetryTopicV2}, two groups may have the same name.
    """
    return f"{RETRY_PREFIX}{group}{'+' if version == 2 else '_'}{topic}"


def normal_topic(topic: str, group: str) -> str:
    """The topic of the producers, from itself or from the topic of its retries."""
    for separator in "_+":
        prefix = f"{RETRY_PREFIX}{group}{separator}"
        if topic.startswith(prefix):
            return topic[len(prefix) :]
    return topic


def popped_places(
    name: str, *, groups: Container[str], topics: Container[str]
) -> Iterator[tuple[str, str]]:
    """
    The groups and topics whose retries of POP a topic may hold: its name does not say where the group ends.

    @param name: of the topic. @param groups, topics: those that there are.
    """
    joined = name.removeprefix(RETRY_PREFIX)
    for at, separator in enumerate(joined):
        if separator in "_+" and joined[:at] in groups and joined[at + 1 :] in topics:
            yield joined[:at], joined[at + 1 :]


class PopKey(NamedTuple):
    """
    What names a check point.

    @ivar topic: of its queue; perhaps of retries.
    @ivar start: queue offset at which the pop began.
    @ivar pop_ms: since 1970.
    """

    topic: str
    group: str
    queue_id: int
    start: int
    pop_ms: int
    broker: str


class CheckPoint(NamedTuple):
    """
    Messages that are given to a group.

    @ivar invisible_ms: for so long from C{key.pop_ms}.
    @ivar offsets: their queue offsets, ascending.
    """

    key: PopKey
    invisible_ms: int
    offsets: tuple[int, ...]

    @property
    def due_ms(self) -> int:
        """When the rest of them is delivered again."""
        return self.key.pop_ms + self.invisible_ms


class Ack(NamedTuple):
    """Messages of a check point that are done."""

    key: PopKey
    offsets: tuple[int, ...]


class Receipt(NamedTuple):
    """
    What a consumer shows to acknowledge a message.

    @ivar kind: 2 if it is a retry whose topic has a name of version 2; else the request has the name.
    """

    start: int
    pop_ms: int
    invisible_ms: int
    revive_queue: int
    broker: str
    queue_id: int
    kind: int = 0

    @classmethod
    def read(cls, text: str) -> Receipt:
        """@raise ValueError: it is none."""
        words = text.split(" ")
        # A client adds the offset in the queue, a proxy that in the log.
        if not 7 <= len(words) <= 9 or len(text) > 1024:
            raise ValueError(f"the receipt {shown(text)} has {len(words)} words, 7 to 9 are allowed")
        start, pop_ms, invisible_ms, queue, kind, broker, queue_id = words[:7]
        numbers = (start, pop_ms, invisible_ms, queue, queue_id)
        if not all(word.isascii() and word.isdigit() and len(word) < 19 for word in numbers):
            raise ValueError(f"the receipt {shown(text)} has a word that is not a number")
        own = 2 if kind == "2" else 0
        return cls(int(start), int(pop_ms), int(invisible_ms), int(queue), broker, int(queue_id), own)


def kind_of(topic: str) -> int:
    """RocketMQ's number: 0 for a normal topic, else the version of the name of a topic of retries."""
    if not topic.startswith(RETRY_PREFIX):
        return 0
    return 2 if "+" in topic else 1


def receipt_text(point: CheckPoint, queue_offset: int) -> str:
    """What a consumer shows for the message at this queue offset."""
    key = point.key
    return (f"{key.start} {key.pop_ms} {point.invisible_ms} {OWN_QUEUE} {kind_of(key.topic)} {key.broker} "
            f"{key.queue_id} {queue_offset}")


def _message(
    topic: str, tag: str, document: Mapping[str, object], host: Host, now_ms: int, queue_id: int
) -> NewMessage:
    return NewMessage(
        topic=topic, queue_id=queue_id, body=wire_json(document), flag=0, sys_flag=0,
        properties_data=encode_properties({"TAGS": tag, "TIMER_DELIVER_MS": str(now_ms), "WAIT": "true"}),
        born_timestamp=now_ms, born_host=host, store_host=host,
    )


def check_point_message(topic: str, point: CheckPoint, host: Host, now_ms: int) -> NewMessage:
    """@param topic: the revive topic."""
    key = point.key
    return _message(topic, CHECK_POINT_TAG, {
        "so": key.start, "pt": key.pop_ms, "it": point.invisible_ms, "bm": 0, "n": len(point.offsets),
        "q": key.queue_id, "t": key.topic, "c": key.group, "ro": 0,
        "d": [offset - key.start for offset in point.offsets], "bn": key.broker,
    }, host, now_ms, OWN_QUEUE)


def ack_message(topic: str, ack: Ack, host: Host, now_ms: int, *, queue_id: int) -> NewMessage:
    """
    @param topic: the revive topic.
    @param queue_id: that of the check point: Java looks for acks in the same queue.
    """
    key = ack.key
    document: dict[str, object] = {
        "ao": -1, "so": key.start, "c": key.group, "t": key.topic, "q": key.queue_id, "pt": key.pop_ms,
        "bn": key.broker,
    }
    if len(ack.offsets) == 1:
        return _message(topic, ACK_TAG, {**document, "ao": ack.offsets[0]}, host, now_ms, queue_id)
    return _message(topic, BATCH_ACK_TAG, {**document, "aol": list(ack.offsets)}, host, now_ms, queue_id)


def read_revive(message: Message, own_broker: str) -> CheckPoint | Ack | None:
    """
    A message of the revive topic; None: of a kind that is unknown.

    @param own_broker: for an ack without the name of its broker.
    @raise BodyError: it is malformed.
    """
    tag = message.tags
    if tag not in (CHECK_POINT_TAG, ACK_TAG, BATCH_ACK_TAG):
        return None
    if len(message.body) > _BODY_BYTES_MAX:
        raise BodyError(f"{len(message.body)} bytes, {_BODY_BYTES_MAX} are allowed")
    document = read_document(message.body)
    topic, group = document.get("t"), document.get("c")
    broker = document.get("bn") or own_broker
    if not (isinstance(topic, str) and isinstance(group, str) and isinstance(broker, str)):
        raise BodyError("it names no topic, group or broker")
    start = to_long(document.get("so"), "so")
    key = PopKey(topic, group, to_long(document.get("q"), "q"), start, to_long(document.get("pt"), "pt"),
                 broker)
    if tag == ACK_TAG:
        return Ack(key, (to_long(document.get("ao"), "ao"),))
    if tag == BATCH_ACK_TAG:
        return Ack(key, _numbers(document.get("aol"), "aol"))
    count, done = to_long(document.get("n"), "n"), to_long(document.get("bm"), "bm")
    away = _numbers(document.get("d") or list(range(min(max(count, 0), MESSAGES_MAX))), "d")
    offsets = tuple(start + one for bit, one in enumerate(away) if not done >> bit & 1)
    return CheckPoint(key, to_long(document.get("it"), "it"), offsets)


def _numbers(value: object, name: str) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise BodyError(f"{name}={shown(value)} is not an array")
    return tuple(to_long(one, f"item of {name}") for one in value)


def offsets_info(points: Sequence[CheckPoint]) -> tuple[str, str]:
    """C{startOffsetInfo} and C{msgOffsetInfo} of an answer."""
    starts, offsets = [], []
    for point in points:
        head = f"{kind_of(point.key.topic)} {point.key.queue_id}"
        starts.append(f"{head} {point.key.start}")
        offsets.append(f"{head} {','.join(map(str, point.offsets))}")
    return ";".join(starts), ";".join(offsets)
