# -*- test-case-name: tests.broker.sending.test_send_properties -*-
"""
A message's properties between the producer and the log.

Their bytes are copied, except for these changes: the broker removes C{WAIT=true}, the default, and what
another broker has written for its own consumers (L{_OF_BROKERS}); it adds C{CLUSTER}, the cluster that
stores the message, C{MSG_REGION} and C{TRACE_ON}, and C{UNIQ_KEY} if the producer has set none
(L{dledger.rocketmq.broker.producing.sending.sends.UniqueIds}); and it adds the real topic and queue to a
delayed message.

Later a broker adds more: its receipt, the first pop, the place of a delayed message or of a dead letter. A
message that is taken in leaves L{PROPERTIES_ROOM} for these, so that it can be delivered again.

Source: SendMessageProcessor.sendMessage, CommitLog.asyncPutMessage, MessageExtBatchEncoder (4.9.8, 5.3.3).
"""

from __future__ import annotations

from dledger.rocketmq.store.records.records import SCHEDULE_TOPIC, property_of
from protocols.wire.rocketmq.layout import PROPERTIES_BYTES_MAX
from protocols.wire.rocketmq.message import decode_properties, encode_properties

_WAIT, _CLUSTER, _DELAY, _PREPARED = b"WAIT\x01", b"CLUSTER\x01", b"DELAY\x01", b"TRAN_MSG\x01"
_WAITS = b"WAIT\x01true"
#: Common beginning of the names of all L{TIMERS}.
_TIMER = b"TIMER_D"
TIMERS = (b"TIMER_DELIVER_MS\x01", b"TIMER_DELAY_SEC\x01", b"TIMER_DELAY_MS\x01")
#: What a broker adds for consumers by POP: the receipt of another delivery would acknowledge at its place.
_OF_BROKERS = ("POP_CK", "1ST_POP_TIME", "ORIGIN_GROUP")
#: What every broker adds: L{broker_properties}.
_OF_EVERY_BROKER = ("CLUSTER", "MSG_REGION", "TRACE_ON")
#: Each of L{_OF_BROKERS} has one of these in its name.
_OF_BROKERS_1, _OF_BROKERS_2 = b"POP_", b"ORIGIN_G"

#: Most bytes that must be left: a receipt with a name of a broker, a group and a topic have 255 each.
PROPERTIES_ROOM = 1024

#: The topic of a message that waits among the retries or the dead letters of a group: consumers see this one.
RETRY_TOPIC = "RETRY_TOPIC"


def name_retry_topic(properties: dict[str, str], topic: str) -> None:
    """
    Set L{RETRY_TOPIC} of a copy for retries or dead letters.

    @param topic: of the message that is copied. Only among retries and dead letters does its own property
        count: elsewhere its producer has written it, who may have no right to that topic.
    """
    if topic == SCHEDULE_TOPIC:
        topic = properties.get("REAL_TOPIC") or topic
    if not (topic.startswith(("%RETRY%", "%DLQ%")) and properties.get(RETRY_TOPIC)):
        properties[RETRY_TOPIC] = topic


def is_false(value: bytes | None) -> bool:
    """Whether Java would read C{false}: the value is present and is not C{true}."""
    return value is not None and value.lower() != b"true"


def waits(properties: bytes) -> bool:
    """Whether the producer waits for slaves and disk (property C{WAIT})."""
    return _WAIT not in properties or not is_false(property_of(properties, _WAIT))


def is_prepared(properties: bytes) -> bool:
    """Whether it is the first half of a transaction (property C{TRAN_MSG})."""
    if _PREPARED not in properties:
        return False
    value = property_of(properties, _PREPARED)
    return value is not None and value.lower() == b"true"


def has_timer(properties: bytes) -> bool:
    """Whether it has its own delivery time, as in 5.x (properties C{TIMER_...})."""
    return _TIMER in properties and any(property_of(properties, name) is not None for name in TIMERS)


def delay_level(properties: bytes) -> int:
    """
    The delay level (property C{DELAY}); 0 for no delay.

    @raise ValueError: it is not a number of 32 bits.
    """
    if _DELAY not in properties:
        return 0
    value = property_of(properties, _DELAY)
    if value is None:
        return 0
    digits = value[1:] if value[:1] in (b"-", b"+") else value
    if not (digits.isdigit() and len(digits) <= 10):
        raise ValueError(f"DELAY={value[:40]!r} is not a number")
    return int(value)


def _without_wait(properties: bytes) -> bytes:
    """The properties without C{WAIT=true}, at any position."""
    at = properties.find(_WAITS)
    if at < 0:
        return properties
    end = at + len(_WAITS)
    is_whole = (at == 0 or properties[at - 1] == 2) and (end == len(properties) or properties[end] == 2)
    return properties[:at] + properties[end + 1 :] if is_whole else properties


def stored_properties(properties: bytes, added: bytes) -> bytes:
    """
    The properties in their stored form.

    @param added: properties that the broker adds, each with its 0x02: see L{broker_properties}.
    """
    kept = _without_wait(properties)
    if _CLUSTER in kept or _OF_BROKERS_1 in kept or _OF_BROKERS_2 in kept:
        # The message was stored before, perhaps in another cluster.
        named = decode_properties(kept)
        if any([named.pop(name, None) is not None for name in (*_OF_EVERY_BROKER, *_OF_BROKERS)]):
            kept = encode_properties(named)
    return kept + added if not kept or kept[-1] == 2 else kept + b"\x02" + added


def plain_properties(properties: bytes, added: bytes) -> bytes | None:
    """
    As L{stored_properties}, for properties that a broker does not act on, and whose producer waits.

    @return: the stored form; None if one of them may be special, or they may be too long.
    """
    if (
        _DELAY in properties or _PREPARED in properties or _CLUSTER in properties or b"\0" in properties
        or _TIMER in properties or len(properties) + len(added) > PROPERTIES_BYTES_MAX - PROPERTIES_ROOM
        or _OF_BROKERS_1 in properties or _OF_BROKERS_2 in properties
    ):
        return None
    kept = _without_wait(properties)
    if _WAIT in kept:
        return None
    return kept + added if not kept or kept[-1] == 2 else kept + b"\x02" + added


def broker_properties(cluster: str, *, region: str, trace_on: bool) -> bytes:
    """What every stored message has. @param region, trace_on: options; clients trace by them."""
    values = (cluster, region, str(trace_on).lower())
    return encode_properties(dict(zip(_OF_EVERY_BROKER, values, strict=True)))


def for_schedule(properties: bytes, *, topic: str, queue_id: int, level: int) -> bytes:
    """
    Properties of a delayed message, from those that L{stored_properties} made.

    @param topic, queue_id: its real topic and queue.
    @param level: its delay level; replaces the one that the producer set.
    """
    named = decode_properties(properties)
    named["DELAY"] = str(level)
    named["REAL_TOPIC"] = topic
    named["REAL_QID"] = str(queue_id)
    return encode_properties(named)


def without_delay(properties: bytes) -> bytes:
    """The properties without a delay."""
    named = decode_properties(properties)
    named.pop("DELAY", None)
    return encode_properties(named)
