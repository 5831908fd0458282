# -*- test-case-name: tests.broker.popping.test_acks -*-
"""Popped messages are acknowledged, or stay invisible for another time."""

from __future__ import annotations

import json
from base64 import b64encode

from dledger.rocketmq.answering.refusals import Code
from dledger.rocketmq.broker.consuming.popping.acks import BATCH_ACK_MESSAGE, REFUSED
from dledger.rocketmq.broker.producing.puts import NotPut
from dledger.rocketmq.replication.put_status import PutStatus
from protocols.wire.remoting import RemotingCommand
from tests.broker.popping.rig import RETRIES, REVIVE, Given, PopCase


class AckTests(PopCase):
    """Requests 200051 and 200151."""

    def test_an_acknowledged_message_never_comes_again(self) -> None:
        """An acknowledged message is done; the other of its check point comes again."""
        self.send(b"a", b"b")
        a, _b = self.pop()
        self.assertEqual(self.ack(a).code, 0)
        self.assertEqual([one.tags for one in self.of(REVIVE)], ["ck", "ack"])
        self.wait(12)
        self.assertEqual([(one.body, one.tries) for one in self.pop()], [(b"b", 1)])
        self.assertEqual(self.parts.pop_acks.acknowledged, 1)

    def test_a_late_ack_is_refused(self) -> None:
        """An ack after the time is refused: the message comes again. So is a second ack."""
        self.send(b"a", b"b")
        a, b = self.pop()
        self.assertEqual([self.ack(a).code, self.ack(a).code], [0, Code.NO_MESSAGE])
        self.wait(12)
        answer = self.ack(b)
        self.assertEqual(answer.code, Code.NO_MESSAGE)
        self.assertIn("its time is over", answer.remark or "")

    def test_an_ack_needs_the_receipt(self) -> None:
        """A consumer without the receipt acknowledges nothing."""
        self.send(b"a")
        (a,) = self.pop()
        for fields, code in (
            ({"extraInfo": "1 2 3"}, Code.MESSAGE_ILLEGAL),
            ({"extraInfo": a.receipt.replace("10000", "x")}, Code.MESSAGE_ILLEGAL),
            ({"extraInfo": "0 1 2 998 0 b 0 0"}, Code.MESSAGE_ILLEGAL),
            ({"offset": 1}, Code.NO_MESSAGE),
            ({"consumerGroup": "other"}, Code.NO_MESSAGE),
            ({"topic": "T2"}, Code.NO_MESSAGE),
            ({"queueId": 1}, Code.NO_MESSAGE),
            ({"offset": "x"}, 1),
        ):
            self.assertEqual(self.ack(a, **fields).code, code, fields)
        self.assertEqual(len(self.of(REVIVE)), 1)
        self.wait(12)
        self.assertEqual(len(self.pop()), 1)

    def test_an_ack_that_is_not_stored_counts_for_nothing(self) -> None:
        """An ack that is not in the log counts for nothing."""
        self.send(b"a")
        (a,) = self.pop()
        refusal = self.parts.pipeline.refusal
        self.parts.pipeline.close("a test")
        self.assertEqual(self.ack(a).code, Code.SERVICE_NOT_AVAILABLE)
        self.assertEqual(self.change(a, 5000).code, Code.SERVICE_NOT_AVAILABLE)
        self.assertIsNotNone(refusal())
        self.again()
        self.wait(12)
        self.assertEqual(len(self.pop()), 1)

    def test_a_message_waits_for_the_outcome_of_its_ack(self) -> None:
        """As long as nobody knows whether an ack is stored, the message is not delivered; then it is."""
        self.send(b"a")
        (a,) = self.pop()
        held = self.hold_puts()
        self.assertEqual(self.client.send(self.ack_of(a)), [])
        self.wait(12)
        self.assertEqual(self.of(RETRIES), [])
        held[0].callback(PutStatus.SERVICE_NOT_AVAILABLE)
        self.assertEqual([one.code for one in self.client.received()], [Code.SERVICE_NOT_AVAILABLE])
        self.wait(2)
        self.assertEqual([one.body for one in self.of(RETRIES)], [b"a"])

    def test_a_refused_put_changes_nothing(self) -> None:
        """A put that is refused at once changes nothing."""
        self.send(b"a")
        (a,) = self.pop()

        def refusing(*_: object, **__: object) -> None:
            raise NotPut(PutStatus.OS_PAGE_CACHE_BUSY, "a test")

        put = self.parts.pipeline.put
        self.parts.pipeline.put = refusing  # type: ignore[method-assign,assignment]
        self.assertNotEqual(self.ack(a).code, 0)
        self.parts.pipeline.put = put  # type: ignore[method-assign]
        self.wait(12)
        self.assertEqual([one.body for one in self.pop()], [b"a"])

    def batch(self, *given: Given, **more: object) -> RemotingCommand:
        """All of one check point, in one request."""
        start, pop_ms, invisible, queue, retry, broker, queue_id, _ = given[0].receipt.split(" ")
        bits = sum(1 << one.message.queue_offset - int(start) for one in given)
        document: dict[str, object] = {
            "b": b64encode(bits.to_bytes(4, "little")).decode(),
            "c": "G", "t": "T1", "r": retry, "so": int(start), "q": int(queue_id), "rq": int(queue),
            "pt": int(pop_ms), "it": int(invisible), **more,
        }
        body = json.dumps({"brokerName": broker, "acks": [document]}).encode()
        return self.ask(RemotingCommand(code=BATCH_ACK_MESSAGE, opaque=5, body=body))

    def test_a_batch_acknowledges_several_messages(self) -> None:
        """Several acks in one message; also of retries."""
        self.send(b"a", b"b", b"c")
        a, _b, c = self.pop()
        self.assertEqual(self.batch(a, c).code, 0)
        self.assertEqual(json.loads(self.of(REVIVE)[-1].body)["aol"], [0, 2])
        self.assertEqual(self.batch(a, c).code, Code.NO_MESSAGE)
        self.wait(12)
        (b,) = self.pop()
        self.assertEqual((b.body, b.topic), (b"b", RETRIES))
        self.assertEqual(self.batch(b).code, 0)
        self.wait(12)
        self.assertEqual(self.pop(), [])

    def test_bad_batches_change_nothing(self) -> None:
        """They change nothing."""
        self.send(b"a")
        (a,) = self.pop()
        for more in ({"t": 5}, {"so": "x"}, {"b": "!"}, {"rq": 998}, {"b": "/" * 4 * 5000}):
            self.assertEqual(self.batch(a, **more).code, Code.MESSAGE_ILLEGAL, more)
        for body in (b"", b"{", b'{"acks":5}'):
            self.assertEqual(self.ask(RemotingCommand(code=BATCH_ACK_MESSAGE, opaque=5, body=body)).code,
                             Code.MESSAGE_ILLEGAL)
        self.assertEqual(len(self.of(REVIVE)), 1)

    def test_refused_codes_name_their_replacement(self) -> None:
        """What is not there says what to use."""
        for code, words in REFUSED.items():
            answer = self.ask(RemotingCommand(code=code, opaque=5))
            self.assertEqual((answer.code, answer.remark), (Code.REQUEST_CODE_NOT_SUPPORTED, words))
            self.assertIn(" is not supported: ", words)


class ChangeTests(PopCase):
    """Request 200053."""

    def test_an_invisible_time_can_be_prolonged(self) -> None:
        """From now on, and with a new receipt; the old one is worth nothing."""
        self.send(b"a")
        (a,) = self.pop()
        self.wait(6)
        answer = self.change(a, 20_000)
        self.assertEqual((answer.code, answer.ext_fields["invisibleTime"]), (0, "20000"))
        self.assertEqual(self.ack(a).code, Code.NO_MESSAGE)
        self.wait(14)
        self.assertEqual(self.pop(), [])
        fields = answer.ext_fields
        a.receipt = f"0 {fields['popTime']} {fields['invisibleTime']} 0 0 b 0 0"
        self.assertEqual(self.ack(a).code, 0)
        self.wait(30)
        self.assertEqual(self.pop(), [])

    def test_an_invisible_time_can_be_shortened(self) -> None:
        """At once, also if the broker ends meanwhile."""
        self.send(b"a")
        (a,) = self.pop()
        self.assertEqual(self.change(a, 0).code, 0)
        self.again()
        self.wait(1)
        self.assertEqual([one.tries for one in self.pop()], [1])
