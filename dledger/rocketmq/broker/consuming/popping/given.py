# -*- test-case-name: tests.broker.popping.test_pops -*-
"""What a consumer gets of one queue by a pop, and the fields of its answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import attrs
from twisted.logger import Logger

from dledger.rocketmq.answering.refusals import Code
from dledger.rocketmq.broker.consuming.popping.check_points import (
    ORDER_QUEUE,
    OWN_QUEUE,
    POP_RECEIPT,
    CheckPoint,
    kind_of,
    offsets_info,
    receipt_text,
)
from dledger.rocketmq.broker.consuming.popping.pop_requests import PopRequest
from dledger.rocketmq.store.queries import GetStatus
from protocols.rocketmq.commands import CommandConnection
from protocols.wire.errors import WireError
from protocols.wire.remoting import RemotingCommand
from protocols.wire.rocketmq.layout import TOPIC_BYTES_MAX
from protocols.wire.rocketmq.message import decode_message, encode_message, encode_properties

_log = Logger()


class Taken(NamedTuple):
    """
    Messages of one queue.

    @ivar following: queue offset after them.
    @ivar committed: the group's offset when they were read; None: it had none.
    """

    point: CheckPoint
    records: tuple[bytes, ...]
    following: int
    committed: int | None = None


def body_of(taken: Taken, topic: str) -> bytes:
    """
    Records for a consumer: a retry looks like a message of its first topic, and brings its receipt. One that
    has no room for it is left out; when its time is over, it goes to the dead letters.

    @param topic: the one that the consumer has asked for.
    """
    if not kind_of(taken.point.key.topic):
        return b"".join(taken.records)
    found = []
    for record in taken.records:
        message = decode_message(record, verify_body=False)
        named = message.properties
        named[POP_RECEIPT] = receipt_text(taken.point, message.queue_offset)
        version = 2 if len(topic.encode()) > TOPIC_BYTES_MAX[1] else 1
        try:
            found.append(encode_message(attrs.evolve(
                message, topic=topic, version=version, properties_data=encode_properties(named)
            )))
        except (ValueError, WireError) as error:
            _log.error("the message at {offset} of {topic}, queue {queue_id} cannot be popped: {reason}",
                       offset=message.queue_offset, topic=taken.point.key.topic,
                       queue_id=taken.point.key.queue_id, reason=str(error))
    return b"".join(found)


def answer_fields(points: Sequence[CheckPoint], *, revive_queue: int, rest: int) -> dict[str, str]:
    """The fields of an answer with messages. @param rest: number of messages that are left, about."""
    starts, offsets = offsets_info(points)
    first = points[0]
    return {
        "popTime": str(first.key.pop_ms), "invisibleTime": str(first.invisible_ms),
        "reviveQid": str(revive_queue), "restNum": str(rest), "startOffsetInfo": starts,
        "msgOffsetInfo": offsets,
    }


def answer_none(
    connection: CommandConnection, request: RemotingCommand, pop: PopRequest, code: Code, now_ms: int
) -> None:
    """
    Answer a request with no message.

    @param code: why, if it is a pop.
    @param now_ms: milliseconds since 1970.
    """
    if pop.takes:
        connection.answer(request, code=code, remark=GetStatus.NO_MESSAGE_IN_QUEUE.value, ext_fields={
            "popTime": str(now_ms), "invisibleTime": str(pop.invisible_ms),
            "reviveQid": str(ORDER_QUEUE if pop.in_order else OWN_QUEUE), "restNum": "0",
            "startOffsetInfo": "", "msgOffsetInfo": "",
        })
    else:
        is_full = "true" if code == Code.POLLING_FULL else "false"
        connection.answer(request, ext_fields={"hasMsg": "false", "pollingFull": is_full})
