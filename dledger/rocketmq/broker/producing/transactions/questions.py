# -*- test-case-name: tests.broker.transactions.test_check -*-
"""
The question to a producer: has this transaction ended? (CHECK_TRANSACTION_STATE, 39)

Source: AbstractTransactionalMessageCheckListener.sendCheckMessage (4.9.8, 5.3.3).
"""

from __future__ import annotations

import attrs

from dledger.rocketmq.broker.consuming.producers import Member, ProducerRights, ProducerTable, reads
from dledger.rocketmq.broker.options.inside import BrokerInside
from dledger.rocketmq.broker.producing.halves import PRODUCER_GROUP, UNIQUE_KEY, real_place
from dledger.rocketmq.broker.producing.transactions.half_judge import HalfCopy
from protocols.wire.remoting import RemotingCommand
from protocols.wire.rocketmq.message import encode_message

CHECK_TRANSACTION_STATE = 39


class ProducerQuestions:
    """Asks one producer of a group."""

    def __init__(
        self, inside: BrokerInside, producers: ProducerTable, *, rights: ProducerRights | None = None
    ) -> None:
        """@param rights: of the accounts; None: every producer may be asked."""
        self._config = inside.config
        self._producers = producers
        self._own = inside.own
        self._wall_ms = inside.wall_ms
        self._rights = rights

    def ask(self, copy: HalfCopy, offset: int, queue_offset: int) -> None:
        """
        Ask a producer of the group that may send to the topic: it gets the message. Without one, or without
        an answer, the next round asks again.
        """
        named, rights = copy.half.properties, self._rights
        try:
            topic, queue_id = real_place(copy.half)
        except ValueError:
            return  # after some rounds it is discarded

        def may_know(member: Member) -> bool:
            return rights is None or rights.may_publish(member, topic)

        member = self._producers.one_of(named.get(PRODUCER_GROUP, ""), may_know)
        if member is None or not reads(member):
            return
        body = encode_message(attrs.evolve(
            copy.half, topic=topic, queue_id=queue_id, properties_data=copy.message.properties_data,
            queue_offset=queue_offset, physical_offset=offset, store_timestamp=self._wall_ms(),
        ))
        key = named.get(UNIQUE_KEY, "")
        member.notify(RemotingCommand(code=CHECK_TRANSACTION_STATE, opaque=0, body=body, ext_fields={
            "tranStateTableOffset": str(queue_offset), "commitLogOffset": str(offset), "msgId": key,
            "transactionId": key, "topic": topic, "bname": self._config.broker_name,
            "offsetMsgId": f"{self._own.id_start.decode()}{offset:016X}",
        }))
