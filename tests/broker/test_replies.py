# -*- test-case-name: tests.broker.test_replies -*-
"""Consumers answer requests; the producer that waits gets the reply."""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.answering.refusals import Code
from dledger.rocketmq.broker.producing.sending.sends import SEND_REPLY_V2
from dledger.rocketmq.broker.replies import PUSH_REPLY_MESSAGE_TO_CLIENT
from protocols.wire.remoting import RemotingCommand
from protocols.wire.rocketmq.message import encode_properties
from tests.broker.send_support import Sending, send_of

HEART_BEAT = b'{"clientID":"asker@1","producerDataSet":[{"groupName":"P"}],"consumerDataSet":[]}'


class ReplyTests(SynchronousTestCase):
    """One producer that waits, and a consumer that replies."""

    def setUp(self) -> None:
        self.make()

    def make(self, **options: Any) -> None:
        """Running."""
        self.broker = Sending(options=options)
        self.addCleanup(self.broker.stop)
        self.producer, self.consumer = self.broker.connect(), self.broker.connect()
        self.producer.send(RemotingCommand(code=34, opaque=1, body=HEART_BEAT))

    def reply(self, body: bytes = b"yes", **properties: str) -> RemotingCommand:
        """A reply of the consumer. @return: the broker's answer to it."""
        (answer,) = self.consumer.send(send_of(
            body, code=SEND_REPLY_V2, topic="C_REPLY_TOPIC", properties=encode_properties(properties).decode()
        ))
        return answer

    def test_pushed(self) -> None:
        """The producer gets it with all its properties; it is stored, too."""
        answer = self.reply(REPLY_TO_CLIENT="asker@1", CORRELATION_ID="7", MSG_TYPE="reply")
        self.assertEqual((answer.code, answer.ext_fields["queueOffset"]), (0, "0"))
        (pushed,) = self.producer.received()
        self.assertEqual((pushed.code, pushed.is_oneway), (PUSH_REPLY_MESSAGE_TO_CLIENT, True))
        self.assertEqual((pushed.body, pushed.ext_fields["topic"]), (b"yes", "C_REPLY_TOPIC"))
        self.assertIn("CORRELATION_ID\x017\x02", pushed.ext_fields["properties"])
        (stored,) = self.broker.stored()
        self.assertEqual((stored.topic, stored.body), ("C_REPLY_TOPIC", b"yes"))
        self.assertEqual(int(answer.ext_fields["msgId"][16:], 16), stored.physical_offset)
        self.assertEqual(self.broker.broker.replies.pushed, 1)

    def test_nobody_waits(self) -> None:
        """The consumer is informed; the reply is stored all the same, as in RocketMQ."""
        answer = self.reply(REPLY_TO_CLIENT="other@1")
        self.assertEqual((answer.code, answer.remark), (1, "Channel of 'other@1' not found."))
        self.assertEqual(self.reply().code, 1)
        self.assertEqual(len(self.broker.stored()), 2)
        self.assertEqual(self.producer.received(), [])

    def test_not_stored(self) -> None:
        """On request, replies are only passed on."""
        self.make(store_reply_message_enable=False)
        self.assertEqual(self.reply(REPLY_TO_CLIENT="asker@1").code, 0)
        self.assertEqual(len(self.producer.received()), 1)
        self.assertEqual(self.broker.stored(), [])

    def test_refused(self) -> None:
        """A malformed body goes to nobody, and neither does one that comes when none is taken."""
        (answer,) = self.consumer.send(send_of(b"x", code=SEND_REPLY_V2, topic="no such/topic"))
        self.assertEqual(answer.code, Code.SYSTEM_ERROR)
        self.broker.broker.pipeline.close("a test")
        self.assertEqual(self.reply(REPLY_TO_CLIENT="asker@1").code, Code.SERVICE_NOT_AVAILABLE)
        self.assertEqual(self.producer.received(), [])
