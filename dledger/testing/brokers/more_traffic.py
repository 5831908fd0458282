# -*- test-case-name: tests.sim.test_pairs -*-
"""
Further stories of clients: consumers that send messages back, producers that recall delayed ones, and a group
that pops in order.
"""

from __future__ import annotations

from dledger.testing.brokers.admin_traffic import KEPT, QUEUES
from dledger.testing.brokers.rig.accounts import (
    ASKED,
    DELAYED,
    DONE,
    RETRY_PREFIX,
    GroupFilter,
    ProducedMessage,
    require_pair,
)
from dledger.testing.brokers.traffic import ACK, BACK_GROUP, POP, PRODUCER, Traffic, messages_of
from protocols.wire.remoting import RemotingCommand
from protocols.wire.rocketmq.message import Message

SEND_BACK, RECALL = 36, 370
#: It pops in order.
ORDER_GROUP = "PO"
#: The queue of check points that receipts of pops in order name.
ORDER_QUEUE = 999


class MoreTraffic(Traffic):
    """All clients of a schedule."""

    def begin(self) -> None:
        """Let all stories begin."""
        super().begin()
        self.client.begin(self.pull(GroupFilter(BACK_GROUP), RETRY_PREFIX + BACK_GROUP, 0))
        for queue_id in range(QUEUES):
            self.client.begin(self._pop_in_order(KEPT[1], queue_id))

    # -- messages that come back -----------------------------------------------------------------

    def _got(self, group: str, message: Message, sent: ProducedMessage) -> None:
        if group == BACK_GROUP and sent.topic in KEPT and self._world.is_loaded and self._rng.random() < 0.15:
            self.client.begin(self._send_back(message, sent))

    async def _send_back(self, message: Message, sent: ProducedMessage) -> None:
        accounts = self.accounts
        losses, life = accounts.losses, accounts.life
        answer = await self.ask_master(SEND_BACK, {
            "group": BACK_GROUP, "offset": message.physical_offset, "delayLevel": self._rng.choice((1, 2)),
            "originMsgId": sent.key, "originTopic": sent.topic, "unitMode": "false", "maxReconsumeTimes": 16,
        })
        is_sure = (losses, life) == (accounts.losses, accounts.life) and not sent.may_be_lost
        if answer is not None and answer.code == 0 and is_sure:
            accounts.sent_back[BACK_GROUP, sent.key] = None

    # -- messages that are recalled --------------------------------------------------------------

    def _stored(self, sent: ProducedMessage, answer: RemotingCommand) -> None:
        handle = answer.ext_fields.get("recallHandle", "")
        if sent.kind == DELAYED and handle and self._rng.random() < 0.5:
            self.client.begin(self._recall(sent, handle))

    async def _recall(self, sent: ProducedMessage, handle: str) -> None:
        accounts = self.accounts
        await self.client.pause(self._rng.random())
        losses, life = accounts.losses, accounts.life
        sent.recall = ASKED
        answer = await self.ask_master(RECALL, {
            "producerGroup": PRODUCER, "topic": sent.topic, "recallHandle": handle,
        })
        is_sure = (losses, life) == (accounts.losses, accounts.life)
        if answer is not None and answer.code == 0 and is_sure:
            sent.recall = DONE

    # -- in order --------------------------------------------------------------------------------

    async def _pop_in_order(self, topic: str, queue_id: int) -> None:
        rng, world = self._rng, self._world
        while not world.is_over:
            era = self.accounts.era(topic)
            answer = await self.ask_master(POP, {
                "consumerGroup": ORDER_GROUP, "topic": topic, "queueId": queue_id,
                "maxMsgNums": rng.choice((1, 4, 16)), "invisibleTime": 1500, "pollTime": 1500,
                "bornTime": world.wall_ms(), "initMode": 0, "expType": "TAG", "exp": "*", "order": "true",
            })
            if answer is None or answer.code != 0:
                await self.client.pause(0.3 if answer is None or answer.code != 210 else 0.01)
                continue
            fields = answer.ext_fields
            starts = dict(part.rsplit(" ", 1) for part in fields["startOffsetInfo"].split(";"))
            start = starts[f"0 {queue_id}"]
            messages = messages_of(answer.body)
            offsets = [one.queue_offset for one in messages]
            require_pair(offsets == sorted(set(offsets)) and offsets[0] == int(start), 1,
                         f"{ORDER_GROUP} got {offsets} of {topic}/{queue_id} from {start} on")
            for message in messages:
                self.accounts.delivered(ORDER_GROUP, message, now_ms=world.wall_ms(), era=era)
                if world.is_loaded and rng.random() < 0.1:
                    continue  # it, and those after it, come again
                await self.ask_master(ACK, {
                    "consumerGroup": ORDER_GROUP, "topic": topic, "queueId": queue_id,
                    "offset": message.queue_offset,
                    "extraInfo": f"{start} {fields['popTime']} {fields['invisibleTime']} {ORDER_QUEUE} 0 b "
                                 f"{queue_id} {message.queue_offset}",
                })
