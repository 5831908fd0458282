# -*- test-case-name: tests.broker.popping.test_in_order -*-
"""POP in order: one consumer of a queue at a time, and the same messages until they are done."""

from __future__ import annotations

import json
from base64 import b64encode

from twisted.internet.defer import Deferred

from dledger.rocketmq.answering.refusals import Code
from dledger.rocketmq.broker.consuming.popping.acks import BATCH_ACK_MESSAGE
from dledger.rocketmq.broker.consuming.popping.pops import NOTIFICATION
from dledger.rocketmq.metadata import order_info
from protocols.wire.remoting import RemotingCommand
from tests.broker.popping.rig import RETRIES, REVIVE, Given, PopCase, pop_of


class OrderCase(PopCase):
    """A group that pops T1 in order."""

    def ordered(self, **fields: object) -> list[Given]:
        """Pop."""
        return self.pop(order="true", **fields)

    def bodies(self, **fields: object) -> list[bytes]:
        """Pop, and see only the bodies."""
        return [one.body for one in self.ordered(**fields)]

    def committed(self, queue_id: int = 0) -> int | None:
        """The group's offset."""
        return self.parts.metadata.consumer_offsets.query("G", "T1", queue_id)

    def counts(self, **fields: object) -> str:
        """Pop, and see how often each message was popped before."""
        return self.ask(pop_of(order="true", **fields)).ext_fields["orderCountInfo"]


class OrderTests(OrderCase):
    """Pops, acks, other times."""

    def test_one_at_a_time(self) -> None:
        """The next messages of a queue come when all are acknowledged; other queues are free."""
        self.send(b"a", b"b", b"c")
        self.send(b"x", queue=1)
        a, b = self.ordered(queueId=0, maxMsgNums=2)
        self.assertEqual((a.body, b.body, a.receipt.split(" ")[3]), (b"a", b"b", "999"))
        self.assertEqual(self.bodies(), [b"x"])
        self.assertEqual(self.ack(a).code, 0)
        self.assertEqual((self.bodies(), self.committed()), ([], 1))
        self.assertEqual(self.ack(b).code, 0)
        self.assertEqual((self.bodies(), self.committed()), ([b"c"], 2))
        self.assertEqual((self.of(REVIVE), self.parts.pop_acks.acknowledged), ([], 2))

    def test_a_clock_that_is_set_back_blocks_no_queue(self) -> None:
        """A step of less than a minute changes nothing else."""
        self.send(b"a")
        self.assertEqual(self.bodies(), [b"a"])
        self.broker.set_clock(-59_000)
        self.assertEqual(self.bodies(), [])
        self.broker.set_clock(-3_600_000)
        self.assertEqual(self.bodies(), [b"a"])
        self.assertEqual(self.bodies(), [])

    def test_an_undone_message_comes_again_in_its_place(self) -> None:
        """What is not done comes again in its place when its time is over, and is counted."""
        self.send(b"a", b"b", b"c")
        a, _b = self.ordered(maxMsgNums=2)
        self.assertEqual(self.ack(a).code, 0)
        self.wait(9)
        self.assertEqual(self.bodies(), [])
        self.wait(1)
        answer = self.ask(pop_of(order="true", maxMsgNums=2))
        self.assertEqual([one.body for one in self.given(answer)], [b"b", b"c"])
        self.assertEqual(answer.ext_fields["orderCountInfo"], "0 qo0%1 1;0 0 0")
        self.wait(10)
        self.assertEqual(self.counts(), "0 qo0%1 2;0 qo0%2 1;0 0 1")
        self.assertEqual(self.of(RETRIES), [])

    def test_out_of_order(self) -> None:
        """An ack in the middle keeps the committed offset: all from there on come again."""
        self.send(b"a", b"b", b"c")
        _a, b, c = self.ordered()
        self.assertEqual([self.ack(one).code for one in (c, b)], [0, 0])
        self.assertEqual(self.committed(), 0)
        self.wait(10)
        self.assertEqual(self.bodies(), [b"a", b"b", b"c"])

    def test_a_late_receipt_counts_for_nothing(self) -> None:
        """A receipt of an earlier pop counts for nothing; a second ack is answered as the first."""
        self.send(b"a", b"b")
        (old, _) = self.ordered()
        self.wait(10)
        new, _ = self.ordered()
        self.assertEqual(self.ack(old).code, Code.NO_MESSAGE)
        self.assertEqual((self.bodies(), self.committed()), ([], 0))
        self.assertEqual([self.ack(new).code, self.ack(new).code, self.ack(old).code], [0, 0, 0])
        self.assertEqual(self.committed(), 1)

    def test_an_attempt_gets_the_same_messages_again(self) -> None:
        """The same attempt is answered with the same messages, and counts none of them."""
        self.send(b"a")
        self.assertEqual(self.bodies(attemptId="1"), [b"a"])
        self.assertEqual(self.bodies(attemptId="2"), [])
        self.assertEqual(self.bodies(), [])
        self.assertEqual(self.counts(attemptId="1"), "0 0 0")
        self.wait(10)
        self.assertEqual(self.counts(attemptId="2"), "0 qo0%0 1;0 0 1")
        self.assertEqual(self.counts(attemptId="2"), "0 qo0%0 1;0 0 1")
        self.assertEqual(len(self.parts.metadata.order_info), 1)

    def test_another_time_moves_the_whole_queue(self) -> None:
        """A message stays invisible longer, or not so long: its queue with it."""
        self.send(b"a", b"b")
        a, b = self.ordered()
        answer = self.change(a, 20_000)
        self.assertEqual((answer.code, answer.ext_fields["reviveQid"]), (0, "999"))
        self.assertEqual(answer.ext_fields["invisibleTime"], "20000")
        self.wait(15)
        self.assertEqual(self.bodies(), [])
        self.assertEqual(self.change(b, 0).code, 0)
        self.assertEqual(self.bodies(), [])
        self.assertEqual(self.change(a, 1000).code, 0)
        self.wait(1)
        self.assertEqual(self.bodies(), [b"a", b"b"])
        self.assertEqual(self.change(a, 0).code, Code.NO_MESSAGE)

    def test_a_wrong_ack_moves_no_offset(self) -> None:
        """An ack of what was not given moves no offset."""
        self.send(b"a", b"b", b"c")
        (a,) = self.ordered(maxMsgNums=1)
        for fields, code in (
            ({"offset": 1}, Code.NO_MESSAGE), ({"consumerGroup": "other"}, Code.SUBSCRIPTION_GROUP_NOT_EXIST),
            ({"topic": "T2"}, Code.TOPIC_NOT_EXIST), ({"queueId": 9}, Code.MESSAGE_ILLEGAL),
        ):
            self.assertEqual(self.ack(a, **fields).code, code, fields)
        self.assertEqual((self.committed(), self.bodies()), (0, []))

    def batch(self, *given: Given) -> RemotingCommand:
        """Acknowledge all in one request."""
        acks = []
        for one in given:
            start, pop_ms, invisible, queue, retry, _broker, queue_id, _ = one.receipt.split(" ")
            bits = 1 << one.message.queue_offset - int(start)
            acks.append({
                "b": b64encode(bits.to_bytes(4, "little")).decode(), "c": "G", "t": "T1", "r": retry,
                "so": int(start), "q": int(queue_id), "rq": int(queue), "pt": int(pop_ms),
                "it": int(invisible),
            })
        body = json.dumps({"brokerName": "b", "acks": acks}).encode()
        return self.ask(RemotingCommand(code=BATCH_ACK_MESSAGE, opaque=5, body=body))

    def test_a_batch_acknowledges_messages_in_order(self) -> None:
        """Several acks in one request, also beside those of messages in no order."""
        self.send(b"a", b"b", b"c")
        self.send(b"x", queue=1)
        (free,) = self.pop(queueId=1)
        a, b, _c = self.ordered(queueId=0)
        self.assertEqual((self.batch(a, b).code, self.committed()), (0, 2))
        self.wait(10)
        (c,) = self.ordered(queueId=0)
        (free,) = self.pop(queueId=1)
        self.assertEqual((self.batch(c, free).code, self.committed()), (0, 3))
        self.wait(12)
        self.assertEqual(self.pop(), [])

    def test_a_restart_remembers_what_was_given(self) -> None:
        """The next run of the broker knows what was given; after a crash what was done last comes again."""
        self.send(b"a", b"b")
        a, b = self.ordered()
        self.assertEqual(self.ack(a).code, 0)
        self.again()
        self.assertEqual(self.bodies(), [])
        self.assertEqual((self.ack(b).code, self.committed()), (0, 2))
        self.send(b"c", b"d")
        _c, d = self.ordered()
        self.again(crash=True)
        self.assertEqual(self.ack(d).code, Code.NO_MESSAGE)
        self.wait(10)
        self.assertEqual(self.bodies(), [b"b", b"c", b"d"])

    def test_a_full_table_gives_nothing_to_new_places(self) -> None:
        """A full table gives a new place nothing."""
        self.patch(order_info, "ORDERS_MAX", 1)
        self.send(b"a")
        self.send(b"b", queue=1)
        (a,) = self.ordered(queueId=0)
        self.assertEqual(self.ack(a).code, 0)
        self.send(b"c")
        self.assertEqual(self.bodies(), [b"c"])

    def test_a_filter_passes_over_other_tags(self) -> None:
        """Messages with other tags are passed over."""
        self.send(b"a", properties="TAGS\x01A")
        self.send(b"b", properties="TAGS\x01B")
        self.send(b"c", properties="TAGS\x01A")
        a, c = self.ordered(exp="A")
        self.assertEqual([a.body, c.body], [b"a", b"c"])
        found = [self.ack(a).code, self.committed(), self.ack(c).code, self.committed()]
        self.assertEqual(found, [0, 2, 0, 3])


class WaitingTests(OrderCase):
    """Requests that wait."""

    def poll(self, **fields: object) -> None:
        """Ask, and wait."""
        self.assertEqual(self.client.send(pop_of(order="true", pollTime=60_000, opaque=9, **fields)), [])

    def answered(self) -> list[bytes]:
        """The bodies that have come."""
        self.settle()
        return [one.body for answer in self.client.received() for one in self.given(answer)]

    def test_freed_by_an_ack(self) -> None:
        """The last ack lets the next messages go."""
        self.send(b"a", b"b")
        (a,) = self.ordered(maxMsgNums=1)
        self.poll()
        self.assertEqual(self.answered(), [])
        reported = self.client.send(self.ack_of(a))
        self.settle()
        reported += self.client.received()
        self.assertEqual(sorted((one.opaque, one.code) for one in reported), [(3, 0), (9, 0)])
        (b,) = [one for answer in reported if answer.opaque == 9 for one in self.given(answer)]
        self.assertEqual(b.body, b"b")

    def test_freed_by_time(self) -> None:
        """At the moment when the messages are visible again, and after another time at that."""
        self.send(b"a")
        self.ordered()
        self.poll()
        self.broker.clock.advance(9.99)
        self.assertEqual(self.answered(), [])
        self.broker.clock.advance(0.02)
        self.assertEqual(self.answered(), [b"a"])

    def test_wakers_end_with_the_last_request(self) -> None:
        """What would wake requests ends with them."""
        self.send(b"a")
        self.ordered()
        before = len(self.broker.clock.getDelayedCalls())
        self.poll()
        self.assertEqual(len(self.broker.clock.getDelayedCalls()), before + 1)
        self.parts.pops.stop()
        self.settle()
        self.assertEqual(len(self.broker.clock.getDelayedCalls()), before)

    def test_a_notification_asks_for_free_queues(self) -> None:
        """A question before a pop in order: are there messages in a queue that is free?"""
        self.send(b"a")
        ask = pop_of(code=NOTIFICATION, order="true")
        self.assertEqual(self.ask(ask).ext_fields["hasMsg"], "true")
        (a,) = self.ordered(attemptId="1")
        self.assertEqual(self.ask(ask).ext_fields["hasMsg"], "false")
        same = pop_of(code=NOTIFICATION, order="true", attemptId="1")
        self.assertEqual(self.ask(same).ext_fields["hasMsg"], "true")
        self.assertEqual(self.ask(pop_of(code=NOTIFICATION)).ext_fields["hasMsg"], "true")
        self.assertEqual(self.ack(a).code, 0)
        self.assertEqual(self.ask(ask).ext_fields["hasMsg"], "false")

    def test_retries_are_not_asked_for(self) -> None:
        """A pop in order gets no retries, so a question before it does not report them."""
        self.send(b"a")
        self.pop()
        self.wait(12)
        self.assertEqual(len(self.of(RETRIES)), 1)
        ask = pop_of(code=NOTIFICATION, order="true")
        self.assertEqual([self.ask(ask).ext_fields["hasMsg"] for _ in range(5)], ["false"] * 5)
        self.assertEqual([self.bodies() for _ in range(5)], [[]] * 5)


class SettledTests(OrderCase):
    """On a raft log an ack is answered when a next master has it."""

    def test_an_ack_waits_until_its_change_is_settled(self) -> None:
        """The answer comes after the log has the change; an error is reported."""
        waiting: list[Deferred[None]] = []

        def settled() -> Deferred[None]:
            waiting.append(Deferred())
            return waiting[-1]

        self.patch(self.parts.pop_acks, "_settled", settled)
        self.send(b"a", b"b")
        a, b = self.ordered()
        self.assertEqual(self.client.send(self.ack_of(a)), [])
        waiting[0].callback(None)
        self.assertEqual([one.code for one in self.client.received()], [0])
        self.assertEqual(self.client.send(self.ack_of(b)), [])
        waiting[1].errback(ValueError("lost"))
        self.assertEqual([one.code for one in self.client.received()], [Code.SYSTEM_ERROR])
