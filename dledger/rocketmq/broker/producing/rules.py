# -*- test-case-name: tests.broker.sending.test_sends -*-
"""
RocketMQ's rules for a new message, each written once. The readers of requests apply them in order::

    rule          where                                    refused with
    ------------  ---------------------------------------  ---------------------------------------------
    writable      L{TopicChecks.writable}                  no such topic, or no permission
    queue         L{TopicChecks.queue_of}                  no such queue
    properties    L{PutRules.stored}                       C{ValueError}: too long
    transaction   L{PutRules.refuse_transaction}           NO_PERMISSION
    timer         L{PutRules.refuse_timer}, L{timed}       SYSTEM_ERROR
    delay         L{PutRules.delayed}                      C{ValueError}: not a number
    size          L{dledger.rocketmq.broker.producing.puts}  C{ValueError}

A message that has passed is a L{NewMessage};
L{PutPipeline.checked<dledger.rocketmq.broker.producing.puts.PutPipeline>} converts it for the layout of its
record.

Source: SendMessageProcessor.asyncSendMessage, CommitLog.asyncPutMessage (4.9.8).
"""

from __future__ import annotations

from functools import lru_cache

import attrs

from dledger.rocketmq.answering.refusals import Code, Refused
from dledger.rocketmq.broker.options.config import BrokerConfig
from dledger.rocketmq.broker.producing.send_properties import (
    PROPERTIES_ROOM,
    broker_properties,
    for_schedule,
    has_timer,
    is_prepared,
    stored_properties,
)
from dledger.rocketmq.broker.producing.topic_checks import TopicChecks
from dledger.rocketmq.metadata.tables import RETRY_PREFIX
from dledger.rocketmq.store.records.records import SCHEDULE_TOPIC, NewMessage
from protocols.rocketmq.commands import CommandConnection
from protocols.wire.rocketmq.layout import PROPERTIES_BYTES_MAX
from protocols.wire.rocketmq.message import Host


class PutRules:
    """
    The rules of one broker.

    @ivar checks: the rules about topics and queues.
    @ivar added: the properties to add to every message.
    @ivar levels: delay levels.
    """

    def __init__(self, checks: TopicChecks, config: BrokerConfig) -> None:
        self.checks = checks
        self.added = broker_properties(
            config.broker_cluster_name, region=config.region_id, trace_on=config.trace_on
        )
        self.levels = len(config.store.delay_levels_ms)

    def stored(self, properties: bytes, *, topic: str, added: bytes | None = None) -> bytes:
        """
        The properties in their stored form.

        @param topic: of the message. One that a consumer sends back may use the room for what brokers add.
        @param added: what is appended; None: what every message has.
        @raise ValueError: they are longer than allowed.
        """
        most = PROPERTIES_BYTES_MAX - (0 if topic.startswith(RETRY_PREFIX) else PROPERTIES_ROOM)
        if len(properties) <= PROPERTIES_BYTES_MAX:
            properties = stored_properties(properties, self.added if added is None else added)
        if len(properties) > most:
            raise ValueError(f"properties of {len(properties)} bytes; {most} are allowed: brokers add some")
        return properties

    def refuse_transaction(self, properties: bytes, *, is_flagged: bool, remark: str) -> None:
        """
        @param is_flagged: whether its flags make the message part of a transaction.
        @raise Refused: its flags or its properties make it part of a transaction.
        """
        if is_flagged or is_prepared(properties):
            raise Refused(Code.NO_PERMISSION, remark)

    def refuse_timer(self, properties: bytes, remark: str) -> None:
        """@raise Refused: the message has its own delivery time, as in 5.x."""
        if has_timer(properties):
            raise Refused(Code.SYSTEM_ERROR, remark)

    def delayed(self, message: NewMessage, level: int) -> NewMessage:
        """
        The message in the form in which it waits for its delay.

        @param level: delay level; a level above the last counts as the last, 0 or less means no delay.
        """
        level = min(level, self.levels)
        if level <= 0:
            return message
        properties = for_schedule(
            message.properties_data, topic=message.topic, queue_id=message.queue_id, level=level
        )
        return attrs.evolve(message, topic=SCHEDULE_TOPIC, queue_id=level - 1, properties_data=properties)


def host_of(connection: CommandConnection) -> Host:
    """The address of a producer for its messages; 0.0.0.0:0 if it is not an IP address."""
    peer = connection.transport.getPeer()
    return _host(getattr(peer, "host", None) or "0.0.0.0", getattr(peer, "port", 0))


@lru_cache(maxsize=1024)
def _host(host: str, port: int) -> Host:
    try:
        return Host.of(host, port)
    except ValueError:
        return Host.of("0.0.0.0", 0)
