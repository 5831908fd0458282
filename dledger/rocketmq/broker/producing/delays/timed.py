# -*- test-case-name: tests.broker.sending.test_timed -*-
"""
Messages with a delivery time of their own, as in 5.x: what a producer asks for, and where they wait::

    TIMER_DELIVER_MS    at this time, ms since 1970
    TIMER_DELAY_SEC     after this number of seconds
    TIMER_DELAY_MS      after this number of milliseconds

They wait in a topic of our own, L{TIMED_TOPIC}: RocketMQ's timer would not know which of them are delivered,
nor would we of its own. Their delivery is noted in L{DONE_TOPIC}.

Rule 1: a time that has passed is not a delay. A delay level counts more than a time.
Rule 2: a time is at most C{timerMaxDelaySec} away, and no further than a file of the log is kept.

Source: HookUtils.transformTimerMessage (5.3.3).
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b

import attrs

from dledger.rocketmq.answering.refusals import Code, Refused
from dledger.rocketmq.broker.options.config import BrokerConfig
from dledger.rocketmq.broker.producing.send_properties import TIMERS, has_timer
from dledger.rocketmq.store.records.records import NewMessage, property_of
from protocols.wire.rocketmq.layout import TIMED_DONE_TOPIC, TIMED_TOPIC
from protocols.wire.rocketmq.message import decode_properties, encode_properties

__all__ = [
    "DONE_TOPIC", "OUT_MS", "TIMED_TOPIC", "TimedKey", "delay_ms_of", "max_delay_ms", "timed", "timed_key"
]

DONE_TOPIC = TIMED_DONE_TOPIC
#: Property with the time of delivery, ms since 1970, as of RocketMQ.
OUT_MS = "TIMER_OUT_MS"
REAL_TOPIC, REAL_QUEUE = "REAL_TOPIC", "REAL_QID"

NO_TIMERS = "accurate timer message is not enabled: the broker has timerWheelEnable=false"


#: Topic, unique key and time of a message, ms since 1970; of a long key its digest, for many messages wait.
#: A producer may give the same message another time: it keeps its unique key, and is another one that waits.
TimedKey = tuple[str, str, int]
#: Characters of a unique key that are kept. Those of RocketMQ's clients have 32.
KEY_CHARACTERS_MAX = 64


def timed_key(topic: str, key: str, at_ms: int) -> TimedKey:
    """@param key: of any length. @param at_ms: its time, ms since 1970."""
    if len(key) > KEY_CHARACTERS_MAX:
        key = "\0" + blake2b(key.encode("utf-8", "replace"), digest_size=16).hexdigest()
    return topic, key, at_ms


def max_delay_ms(config: BrokerConfig) -> int:
    """The longest delay: a message whose file is deleted before would be lost."""
    return min(config.timer_max_delay_sec, config.store.file_reserved_time_h * 3600) * 1000


def timed(message: NewMessage, config: BrokerConfig, now_ms: int) -> NewMessage:
    """
    A message in the form in which it waits for its time.

    @param now_ms: since 1970.
    @raise Refused: this broker has no timers.
    @raise ValueError: the time is malformed, or too far away.
    """
    if not has_timer(message.properties_data):
        return message
    if not config.timer_wheel_enable:
        raise Refused(Code.SYSTEM_ERROR, NO_TIMERS)
    at_ms = _time_of(message.properties_data, now_ms)
    if at_ms <= now_ms:
        return message
    most_ms = max_delay_ms(config)
    if at_ms - now_ms > most_ms:
        raise ValueError(f"timer message illegal, the delay time should not be bigger than the max delay "
                         f"{most_ms}ms")
    named = decode_properties(message.properties_data)
    named.update({OUT_MS: str(at_ms), REAL_TOPIC: message.topic, REAL_QUEUE: str(message.queue_id)})
    return attrs.evolve(message, topic=TIMED_TOPIC, queue_id=0, properties_data=encode_properties(named))


def delay_ms_of(properties: Mapping[str, str]) -> int | None:
    """The delay for which a producer has asked, of a message that waits; None: it has named a time."""
    seconds, milliseconds = properties.get("TIMER_DELAY_SEC"), properties.get("TIMER_DELAY_MS")
    value = milliseconds if seconds is None else seconds
    if value is None or not value.isdecimal():
        return None
    return int(value) * (1 if seconds is None else 1000)


def _time_of(properties: bytes, now_ms: int) -> int:
    """@raise ValueError: it is not a number."""
    deliver, seconds, milliseconds = (property_of(properties, name) for name in TIMERS)
    value = next(one for one in (seconds, milliseconds, deliver) if one is not None)
    if not (value.isdigit() and len(value) <= 15):
        raise ValueError(f"timer message illegal: {value[:40]!r} is not a number")
    if seconds is not None:
        return now_ms + int(value) * 1000
    return now_ms + int(value) if milliseconds is not None else int(value)
