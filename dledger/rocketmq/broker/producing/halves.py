# -*- test-case-name: tests.broker.sending.test_halves -*-
"""
The messages of a transaction, all of them ordinary messages of three topics of the broker::

    half message     waits in L{HALF_TOPIC}, with its real topic and queue among its properties
    the message      when the producer commits: a copy of the half message in its real topic
    op message       in L{OP_TOPIC}: the half message at this offset of its queue has ended
    a copy           of a half message, when its producer is asked: the earlier one counts as ended

So a transaction is replicated like any message, and a broker of RocketMQ ends what this one began.

Source: TransactionalMessageBridge, EndTransactionProcessor, TransactionalMessageUtil (4.9.8, 5.3.3).
"""

from __future__ import annotations

import attrs

from dledger.rocketmq.store.queues.consume_queues import is_topic
from dledger.rocketmq.store.records.records import SCHEDULE_TOPIC, NewMessage
from protocols.wire.rocketmq.layout import TIMED_TOPIC, TRANSACTION_MASK, SysFlag
from protocols.wire.rocketmq.message import Host, Message, decode_properties, encode_properties

HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
#: Half messages that nobody has ended in time.
DISCARDED_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
#: Queue of all three topics.
HALF_QUEUE = 0
#: The broker's own group: its offsets in the two topics report from where on halves have not ended.
TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"

REAL_TOPIC, REAL_QUEUE = "REAL_TOPIC", "REAL_QID"
PRODUCER_GROUP, UNIQUE_KEY, TRANSACTION_ID = "PGROUP", "UNIQ_KEY", "__transactionId__"
CHECK_TIMES, IMMUNITY = "TRANSACTION_CHECK_TIMES", "CHECK_IMMUNITY_TIME_IN_SECONDS"
FIRST_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"
#: Ours: when the first half message was stored, ms since 1970; RocketMQ passes it on.
FIRST_STORED = "TRAN_PREPARED_STORE_TIME"
#: Ours, of an op message: how the transaction ended, a value of C{commitOrRollback}.
END_KIND = "TRAN_END"
#: Tag of op messages.
_ENDED_TAG = "d"
_QUEUE_ID_MAX = 2**31 - 1


def half_message(message: NewMessage) -> tuple[NewMessage, str]:
    """
    The form in which a message waits for its end.

    @param message: as it would be stored without a transaction.
    @return: the half message, and the id of the transaction; empty if the producer gave the message no key.
    """
    named = decode_properties(message.properties_data)
    for name in (FIRST_OFFSET, FIRST_STORED, CHECK_TIMES):  # the broker's own, for copies
        named.pop(name, None)
    key = named.get(UNIQUE_KEY, "")
    if key:
        named[TRANSACTION_ID] = key
    named[REAL_TOPIC], named[REAL_QUEUE] = message.topic, str(message.queue_id)
    half = attrs.evolve(
        message, topic=HALF_TOPIC, queue_id=HALF_QUEUE, sys_flag=message.sys_flag & ~TRANSACTION_MASK,
        properties_data=encode_properties(named),
    )
    return half, key


def longest_form(half: NewMessage, topic: str) -> NewMessage:
    """
    A half message in the longest of the forms that it may be stored in later: its real topic, or discarded.

    @param topic: its real topic.
    """
    return attrs.evolve(half, topic=max(topic, DISCARDED_TOPIC, key=len))


def real_place(waiting: Message) -> tuple[str, int]:
    """
    The topic and the queue that a half message, or a delayed one, is for.

    @raise ValueError: it names none that a message may leave for.
    """
    named = waiting.properties
    topic, queue = named.get(REAL_TOPIC, ""), named.get(REAL_QUEUE, "")
    if not is_topic(topic) or topic in (HALF_TOPIC, OP_TOPIC, SCHEDULE_TOPIC, TIMED_TOPIC):
        raise ValueError(f"its topic would be {topic[:80]!r}")
    if not (queue.isascii() and queue.isdecimal() and len(queue) <= 10 and int(queue) <= _QUEUE_ID_MAX):
        raise ValueError(f"its queue would be {queue[:80]!r}")
    return topic, int(queue)


def committed_message(half: Message, store_host: Host) -> NewMessage:
    """
    The message that a committed transaction stores. Its properties are those of the half message, as in
    RocketMQ: consumers see its real topic among them.

    @raise ValueError: the half message names no topic and queue.
    """
    topic, queue_id = real_place(half)
    return attrs.evolve(
        copied(half, store_host, half.properties_data), topic=topic, queue_id=queue_id,
        sys_flag=half.sys_flag & ~TRANSACTION_MASK | int(SysFlag.COMMIT),
        prepared_transaction_offset=half.physical_offset,
    )


def copied(half: Message, store_host: Host, properties: bytes) -> NewMessage:
    """A half message, to be stored again with these properties."""
    return NewMessage(
        topic=half.topic, queue_id=half.queue_id, body=half.body, properties_data=properties, flag=half.flag,
        sys_flag=half.sys_flag, born_timestamp=half.born_timestamp, born_host=half.born_host,
        store_host=store_host, reconsume_times=half.reconsume_times,
    )


def first_of(half: Message) -> int:
    """The queue offset of the first half message of a transaction: it names the transaction."""
    first = number_in(half.properties.get(FIRST_OFFSET))
    return half.queue_offset if first is None or first >= half.queue_offset else first


def age_ms(half: Message, now_ms: int) -> int:
    """Milliseconds since the first half message was stored, by the clock of brokers, not of its producer."""
    first = number_in(half.properties.get(FIRST_STORED))
    is_copy = first is not None and half.properties.get(FIRST_OFFSET)
    return now_ms - (first if first is not None and is_copy else half.store_timestamp)


def number_in(text: str | None) -> int | None:
    """The number in a property; None if there is none."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 19 else None


def op_message(offset: int, host: Host, now_ms: int, *, end: int) -> NewMessage:
    """
    Says that the half message at this offset of its queue has ended. One number: 4.9 reads no more.

    @param now_ms: ms since 1970.
    @param end: the value of C{commitOrRollback}.
    """
    return NewMessage(
        topic=OP_TOPIC, queue_id=HALF_QUEUE, body=b"%d" % offset, flag=0, sys_flag=0,
        properties_data=encode_properties({"TAGS": _ENDED_TAG, END_KIND: str(end)}),
        born_timestamp=now_ms, born_host=host, store_host=host,
    )


def ended_offsets(op: Message) -> list[int]:
    """
    The offsets of the half messages that an op message reports; 5.x joins several with commas. What is no
    number counts for nothing.
    """
    numbers = op.body.split(b",") if len(op.body) <= _OP_BYTES_MAX else []
    return [int(number) for number in numbers if number.isdigit() and len(number) < 19]


#: More than the longest op message of RocketMQ.
_OP_BYTES_MAX = 1024 * 1024
